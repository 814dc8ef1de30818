"""Attribute values and types as MLIR text, and back. Leaf functions for the printer and the parser; nothing here knows ops or values.

Tensor level: a Python value prints so that reading it gives an equal value (floats exactly, NaN with its bits).
Kernel level: ``Raw`` text stands for itself, and a few attributes of MLIR's ops have a plain Python form (``KERNEL``).
"""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from aotgrad_runtime import dtypes
from aotgrad_runtime.dtypes import DType, as_dtype
from aotgrad_runtime.errors import AotgradError, AotgradValueError

from . import dims
from .types import Layout, TensorType

__all__ = [
    "Raw", "attr_text", "complex_from_text", "dense_from_text", "float_bits", "float_text", "kernel_attr_text", "key_text", "layout_from_text", "layout_text", "quote",
    "splat_from_text", "type_from_text", "unquote",
]

INLINE_ELEMENTS: Final = 16  # larger constant arrays print as the hex of their bytes
MAX_SPLAT: Final = 1 << 24  # a few characters of text must not take gigabytes


class Raw(str):
    """The text of an MLIR attribute that has no plain Python form: ``Raw("#vector.kind<add>")``. Prints as it is."""

    __slots__ = ()


# ---- strings ------------------------------------------------------------------------------------------------------------------

def quote(text: str) -> str:
    """An MLIR string literal: printable ASCII as it is, every other UTF-8 byte as a backslash and two hex digits."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    out = []
    for byte in text.encode("utf-8", "surrogatepass"):
        plain = 32 <= byte < 127 and byte not in (34, 92)
        out.append(chr(byte) if plain else "\\\\" if byte == 92 else f"\\{byte:02X}")
    return f'"{"".join(out)}"'


def unquote(literal: str) -> str:
    """The text of a literal in quotes. Raises ``AotgradValueError`` for an escape that MLIR has not, or bytes that are not UTF-8."""
    body = literal[1:-1]
    if "\\" not in body:
        return body
    short = {"n": b"\n", "t": b"\t", "\\": b"\\", '"': b'"'}
    out, at = bytearray(), 0
    for m in re.finditer(r'\\([0-9A-Fa-f]{2}|[nt"\\])', body):
        gap = body[at:m.start()]
        if "\\" in gap:
            break
        out += gap.encode("utf-8", "surrogatepass") + (short[m[1]] if m[1] in short else bytes([int(m[1], 16)]))
        at = m.end()
    if "\\" in body[at:]:
        raise AotgradValueError(f"string {literal} has a backslash that starts no escape; write \\\\, \\\", \\n, \\t or two hex digits")
    try:
        return (bytes(out) + body[at:].encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise AotgradValueError(f"string {literal} is not UTF-8") from None


# ---- numbers ------------------------------------------------------------------------------------------------------------------

_FLOAT_FORMATS: Final = {"f64": ("<d", 16), "f32": ("<f", 8), "f16": ("<e", 4)}


def float_text(x: float, mlir: str = "f64") -> str:
    """A float as an MLIR literal: the shortest decimal that reads back to the same double; infinities and NaN as bits of the type."""
    if x == x and x not in (float("inf"), float("-inf")):
        text = repr(float(x))
        if "e" in text and "." not in text:
            text = text.replace("e", ".0e")
        return text
    if mlir == "bf16":
        return f"0x{struct.unpack('<I', struct.pack('<f', x))[0] >> 16:04X}"
    code, digits = _FLOAT_FORMATS[mlir]
    return f"0x{int.from_bytes(struct.pack(code, x), 'little'):0{digits}X}"


def float_bits(literal: str, mlir: str) -> float:
    """The float whose bits in type ``mlir`` are the hex ``literal``."""
    bits = int(literal, 16)
    if mlir == "bf16":
        mlir, bits = "f32", bits << 16
    if mlir not in _FLOAT_FORMATS:
        raise AotgradValueError(f"hex {literal} needs a floating-point type after it (: f64), not {mlir!r}")
    code, digits = _FLOAT_FORMATS[mlir]
    if bits >= 16 ** digits:
        raise AotgradValueError(f"hex {literal} has more bits than {mlir}")
    return float(struct.unpack(code, bits.to_bytes(digits // 2, "little"))[0])


def complex_from_text(body: str) -> complex:
    """The inside of ``#ag.complex<re, im>``."""
    parts = [p.strip() for p in body.split(",")]
    if len(parts) != 2:
        raise AotgradValueError(f"#ag.complex<{body}>: two numbers are needed")
    return complex(*(_float(p, "f64") for p in parts))


def _float(text: str, mlir: str) -> float:
    return float_bits(text, mlir) if text.startswith("0x") else float(text)


# ---- layouts and types --------------------------------------------------------------------------------------------------------

def layout_text(layout: Layout) -> str:
    """``#ag.layout<[0, 2, 3, 1], blocks = [[1, 16]]>``."""
    blocks = f", blocks = {_pairs(layout)}" if layout.blocks else ""
    return f"#ag.layout<{list(layout.order)}{blocks}>"


def _pairs(layout: Layout) -> str:
    return str([list(b) for b in layout.blocks])


_ORDER = r"\[([\d\s,]*)\](?:\s*,\s*blocks\s*=\s*\[([\d\s,\[\]]*)\])?"
_TENSOR: Final = r"!ag\.tensor<\s*\[([^\]<>]*)\]\s*,\s*(complex<\s*f\d+\s*>|\w+)\s*(?:,\s*order\s*=\s*" + _ORDER + r")?\s*>"


def layout_from_text(body: str) -> Layout:
    """The inside of ``#ag.layout<...>``."""
    m = re.fullmatch(_ORDER, body.strip())
    if m is None:
        raise AotgradValueError(f"layout <{body}> is not understood; write #ag.layout<[0, 2, 3, 1]> or #ag.layout<[0, 1], blocks = [[1, 16]]>")
    return _layout(m[1], m[2])


def _layout(order: str, blocks: str | None) -> Layout:
    dims_order = _ints(order)
    if sorted(dims_order) != list(range(len(dims_order))):
        raise AotgradValueError(f"layout order [{order}] is not an order of the dims 0 to {len(dims_order) - 1}")
    pairs = [_ints(b) for b in re.findall(r"\[([^\[\]]*)\]", blocks or "")]
    if (blocks or "").strip() and (not pairs or any(len(p) != 2 or p[0] >= len(dims_order) or p[1] < 1 for p in pairs)):
        raise AotgradValueError(f"layout blocks [{blocks}] are not pairs of a dim and a block size")
    return Layout(dims_order, tuple((p[0], p[1]) for p in pairs))


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(p) for p in text.split(",") if p.strip())


def split_commas(text: str) -> list[str]:
    """Parts of ``text`` between the commas that stand in no bracket."""
    if not text.strip():
        return []
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "([":
            depth += 1
        elif c in ")]":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()]


@functools.lru_cache(maxsize=4096)
def type_from_text(text: str) -> Any:
    """A ``TensorType`` from ``!ag.tensor<...>``; any other type is MLIR's own and stays a string. Raises ``AotgradError`` for a wrong tensor type."""
    if not text.startswith("!ag."):
        return text
    m = re.fullmatch(_TENSOR, text)
    if m is None:
        raise AotgradValueError(f"type {text} is not understood; write !ag.tensor<[2, n], f64>")
    shape = tuple(dims.parse(p) for p in split_commas(m[1]))
    if any(isinstance(d, int) and d < 0 for d in shape):
        raise AotgradValueError(f"type {text} has a negative size")
    layout = _layout(m[3], m[4]) if m[3] is not None else None
    if layout is not None and len(layout.order) != len(shape):
        raise AotgradValueError(f"type {text}: the order names {len(layout.order)} dims, the shape has {len(shape)}")
    return TensorType(shape, dtypes.from_mlir(m[2].replace(" ", "")), layout)


# ---- arrays -------------------------------------------------------------------------------------------------------------------

def _array_text(x: np.ndarray[Any, Any], shaped: str | None = None) -> str:
    dtype = as_dtype(x.dtype)
    kind = shaped or f"tensor<{''.join(f'{n}x' for n in x.shape)}{dtype.mlir}>"
    if x.size > INLINE_ELEMENTS and dtype.kind != "b":  # MLIR packs bools in hex form, and not the same way in all versions
        data = np.ascontiguousarray(x, dtype.np.newbyteorder("<")).tobytes()
        return f'dense<"0x{data.hex().upper()}"> : {kind}'
    return f"dense<{_nested(x, dtype) if x.size else ''}> : {kind}"


def _element(x: Any, dtype: DType) -> str:
    if dtype.kind == "b":
        return "true" if x else "false"
    if dtype.kind in "iu":
        return str(int(x))
    part = "f32" if dtype is dtypes.complex64 else "f64" if dtype is dtypes.complex128 else dtype.mlir
    # Bits of the element itself: a conversion to double would quieten a signalling NaN.
    halves = [x.real, x.imag] if dtype.kind == "c" else [x]
    texts = [float_text(float(h), part) if np.isfinite(h) else "0x" + np.array(h).astype(h.dtype.newbyteorder(">")).tobytes().hex().upper() for h in halves]
    return f"({texts[0]},{texts[1]})" if dtype.kind == "c" else texts[0]


def _nested(x: np.ndarray[Any, Any], dtype: DType) -> str:
    if x.ndim == 0:
        return _element(x[()], dtype)
    return f"[{', '.join(_nested(row, dtype) for row in x)}]"


_DENSE_TYPE: Final = r"(tensor|vector)<\s*((?:\d+\s*x\s*)*)(complex<f32>|complex<f64>|\w+)\s*>"


def splat_from_text(body: str, shaped: str) -> Any:
    """The number of ``dense<body> : shaped`` where one stands for all elements (not rounded to the element type: that is the constant's own), else None."""
    value, splat = dense_from_text(body, shaped)
    if not splat:
        return None
    return float(body) if value.dtype.kind == "f" and "0x" not in body else value.flat[0].item()


def dense_from_text(body: str, shaped: str) -> tuple[Any, bool]:
    """The array of ``dense<body> : shaped`` (read-only), and whether the text was one number for all elements."""
    m = re.fullmatch(_DENSE_TYPE, shaped)
    if m is None:
        raise AotgradValueError(f"dense<...> needs a static tensor or vector type after it, not {shaped!r}")
    shape = tuple(int(n) for n in m[2].replace(" ", "").split("x") if n)
    dtype = dtypes.int64 if m[3] == "index" else dtypes.from_mlir(m[3])
    body = body.strip()
    if body.startswith('"'):
        return _from_hex(body[3:-1], shape, dtype), False
    leaves = re.findall(r"\([^()]*\)|[^\s,\[\]]+", body)
    splat = len(leaves) == 1 and not body.startswith("[")
    count = math.prod(shape)
    if splat and count > MAX_SPLAT:
        raise AotgradValueError(f"dense<{body}> : {shaped} stands for {count} elements; write ag.full")
    if not splat and (len(leaves) != count or (count and _shape_of(body) != shape)):
        raise AotgradValueError(f"dense<...> holds elements of shape {_shape_of(body)}, its type {shaped} needs shape {shape}")
    flat = np.array([_read_element(t, dtype) for t in leaves], dtype.np)
    out = np.full(shape, flat[0]) if splat else flat.reshape(shape)
    out.setflags(write=False)
    return out, splat


def _shape_of(body: str) -> tuple[int, ...]:
    """Shape of nested lists, by counting; (0,) for no text. Ragged lists give a shape that cannot match the number of leaves and brackets."""
    if not body:
        return (0,)
    depth, sizes = 0, []
    text = re.sub(r"\([^()]*\)|[^\s,\[\]()]+", "x", body).replace(" ", "")
    while text.startswith("["):
        rows = re.findall(r"\[[^\[\]]*\]", text)
        counts = {r.count("x") for r in rows}
        if len(counts) != 1:
            return (-1,)
        sizes.append(counts.pop())
        text = re.sub(r"\[[^\[\]]*\]", "x", text)
        depth += 1
    return tuple(reversed(sizes))


def _read_element(text: str, dtype: DType) -> Any:
    try:
        if dtype.kind == "b":
            return {"true": True, "false": False, "1": True, "0": False}[text]
        if dtype.kind in "iu":
            value = int(text, 0)
            return np.array(value).astype(dtype.np) if _fits(value, dtype) else _no(text, dtype)
        part = np.dtype("f4") if dtype is dtypes.complex64 else np.dtype("f8") if dtype is dtypes.complex128 else dtype.np
        halves = [h.strip() for h in text.strip("()").split(",")]
        if len(halves) != (2 if dtype.kind == "c" else 1):
            return _no(text, dtype)
        numbers = [np.frombuffer(bytes.fromhex(h[2:]), part.newbyteorder(">"))[0] if h.startswith("0x") else part.type(h) for h in halves]
        return np.array(numbers, part).view(dtype.np)[0]
    except (ValueError, KeyError, OverflowError):
        return _no(text, dtype)


def _fits(value: int, dtype: DType) -> bool:
    info = np.iinfo(dtype.np)
    return bool(info.min <= value <= info.max)


def _no(text: str, dtype: DType) -> Any:
    raise AotgradValueError(f"element {text!r} of dense<...> is not a value of {dtype.mlir}")


def _from_hex(digits: str, shape: tuple[int, ...], dtype: DType) -> Any:
    if dtype.kind == "b":
        raise AotgradValueError("dense hex of bools is not read; write true and false")
    try:
        data = bytes.fromhex(digits)
    except ValueError:
        data = b"\0" * (dtype.itemsize + 1)
    if len(data) != dtype.itemsize * math.prod(shape):
        raise AotgradValueError(f"dense hex of {len(digits)} digits does not hold {shape} elements of {dtype.mlir}")
    out = np.frombuffer(data, dtype.np.newbyteorder("<")).astype(dtype.np).reshape(shape)
    out.setflags(write=False)
    return out


# ---- attributes ---------------------------------------------------------------------------------------------------------------

def attr_text(value: Any) -> str:
    """An attribute of the tensor level (or of a function) as text."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _inner(value)
    text = _inner(value)
    return text if text.startswith("#") or " : " in text else f"{text} : {'i64' if isinstance(value, int) else 'f64'}"


def _inner(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    for kind, form in _FORMS:
        if isinstance(value, kind):
            return str(form(value))
    return f"#ag.opaque<{quote(repr(value))}>"


def _list_text(value: Sequence[Any]) -> str:
    return f"[{', '.join(map(_inner, value))}]"


def _dict_text(value: dict[Any, Any]) -> str:
    return "{" + ", ".join(f"{key_text(str(k))} = {attr_text(v)}" for k, v in sorted(value.items())) + "}"


def key_text(key: str) -> str:
    """The name of an attribute, quoted where MLIR wants it."""
    return key if re.fullmatch(r"[A-Za-z_][\w.$]*", key, re.ASCII) else quote(key)


def _float_inner(x: float) -> str:
    text = float_text(x)
    return f"{text} : f64" if text.startswith("0x") else text


_FORMS: Final[tuple[tuple[Any, Any], ...]] = (
    (bool, lambda v: "true" if v else "false"),
    (int, lambda v: str(v) if -2**63 <= v < 2**63 else f"#ag.int<{v}>"),
    (float, _float_inner),
    (complex, lambda v: f"#ag.complex<{float_text(v.real)}, {float_text(v.imag)}>"),
    (Raw, str),
    (str, quote),
    (DType, lambda v: v.mlir),
    (dims.Dim, lambda v: f"#ag.dim<{dims.to_text(v)}>"),
    (Layout, layout_text),
    (TensorType, str),
    ((tuple, list), _list_text),
    (np.ndarray, _array_text),
    (dict, _dict_text),
    (type(None), lambda v: "#ag.none"),
)


# ---- kernel level -------------------------------------------------------------------------------------------------------------

ENUMS: Final = {"kind": "#vector.kind", "fastmath": "#arith.fastmath", "overflowFlags": "#arith.overflow"}
SYMBOLS: Final = frozenset({"callee"})
SEGMENTS: Final = frozenset({"operandSegmentSizes", "resultSegmentSizes"})


def kernel_attr_text(name: str, key: str, value: Any, result: Any) -> str:
    """Attribute ``key`` of kernel op ``name``: ``arith.constant``'s value takes the type of its ``result``; int is i64, a tuple ``array<i64: ...>``,
    a callee ``@name``, ``kind``, ``fastmath`` and ``overflowFlags`` their enum; None is a unit; ``Raw`` is itself."""
    if name == "arith.constant" and key == "value" and not isinstance(value, Raw):
        return constant_text(value, str(result))
    if value is None:
        return "unit"
    if isinstance(value, str) and not isinstance(value, Raw):
        if key in SYMBOLS:
            return "@" + (value if re.fullmatch(r"[A-Za-z_][\w.$]*", value, re.ASCII) else quote(value))
        return f"{ENUMS[key]}<{value}>" if key in ENUMS else quote(value)
    if isinstance(value, tuple):
        kind = "i32" if key in SEGMENTS else "i64"
        return f"array<{kind}: {', '.join(str(int(v)) for v in value)}>" if value else f"array<{kind}>"
    return attr_text(value)


def constant_text(value: Any, result: str) -> str:
    """The value of an ``arith.constant`` of type ``result``: a scalar, the same for all lanes of a vector, or an array of lanes."""
    if isinstance(value, np.ndarray) and value.ndim:
        return _array_text(value, result)
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.item()
    m = re.fullmatch(r"vector<(?:\d+x)+(\w+)>", result)
    element = m[1] if m else result
    if element == "i1":
        text = "true" if value else "false"
    elif element[0] in "fb":
        text = float_text(float(value), element)
    else:
        text = str(int(value))
    if m:
        return f"dense<{text}> : {result}"
    return text if element == "i1" else f"{text} : {result}"


def opaque_error(text: str) -> AotgradError:
    """What is wrong with an attribute that only prints."""
    return AotgradValueError(f"{text} stands for a Python object that text cannot carry; build the function in Python")
