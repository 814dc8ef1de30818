"""``ag.save``, and what ``ag.load`` reads besides libraries: states of modules and optimisers, ``.npz`` and safetensors. Numbers, texts and containers; never code.

A file of ``save`` is a zip archive: each array as ``.npy``, and ``structure.json``, which says what they are part of.
"""

from __future__ import annotations

import io
import json
import math
import os
import struct
import zipfile
import zlib
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from . import dtypes, library
from .dtypes import DType, as_dtype
from .errors import AotgradRuntimeError, AotgradTypeError, AotgradValueError
from .parameter import Parameter
from .tensor import Device, Size, Tensor, wrap

__all__ = ["load", "save"]

_STRUCTURE: Final = "structure.json"
_VERSION: Final = 1
_PLAIN: Final = (bool, int, float, str, type(None))
_SEQUENCES: Final[dict[Any, str]] = {list: "list", tuple: "tuple", Size: "size"}
_BY_NAME: Final = {name: made for made, name in _SEQUENCES.items()}
_MAPPINGS: Final[dict[str, Any]] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
_SAFE: Final = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8",
                "BOOL": "bool", "C64": "complex64"}


# ---- writing ----------------------------------------------------------------------------------------------------------------------------

class _Writer:
    """The structure of an object, and the arrays in it; an object that is in it twice is written once."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self.known: dict[int, tuple[int, Any]] = {}

    def array(self, owner: Any, data: Any) -> int:
        found = self.known.get(id(owner))
        if found is None:
            self.arrays.append(data)
            found = self.known[id(owner)] = len(self.arrays) - 1, owner
        return found[0]

    def described(self, x: Any, at: str) -> Any:
        kind = type(x)
        if kind in _PLAIN:
            return x
        if isinstance(x, Tensor):
            return self.tensor(x, at)
        if isinstance(x, (np.ndarray, np.generic)):
            if x.dtype.kind not in "fciub":
                raise AotgradTypeError(f"save: {at} is an array of {x.dtype}; arrays of numbers can be saved")
            return {"array" if isinstance(x, np.ndarray) else "number": self.array(x, np.asarray(x))}
        if isinstance(x, DType):
            return {"dtype": x.name}
        if kind in (list, tuple, Size):
            return {_SEQUENCES[kind]: [self.described(v, f"{at}[{i}]") for i, v in enumerate(x)]}
        if isinstance(x, Mapping):
            name = "counter" if isinstance(x, Counter) else "ordered" if isinstance(x, OrderedDict) else "dict"
            return {name: [[self.described(k, f"a key of {at}"), self.described(v, f"{at}[{k!r}]")] for k, v in x.items()]}
        instead = "its state_dict()" if hasattr(x, "state_dict") else "what it is made of: tensors, arrays, numbers, texts, lists, tuples and dicts"
        raise AotgradTypeError(f"save: {at} is a {kind.__name__}, which cannot be saved, as files hold no code; save {instead}")

    def tensor(self, x: Tensor, at: str) -> Any:
        if x._node is not None:
            raise AotgradRuntimeError(f"save: {at} was computed by a recorded operation; save {at}.detach()")
        data = x._data.view(np.uint16) if x._dtype is dtypes.bfloat16 else x._data
        return {"tensor": self.array(x, data), "dtype": x._dtype.name, "grad": x._requires_grad, "parameter": isinstance(x, Parameter)}


def save(obj: Any, f: Any) -> None:
    """Writes ``obj`` to the file ``f`` (a path, or a file that is open for bytes): tensors, parameters, NumPy's arrays, numbers, texts, None and dtypes, in dicts, lists
    and tuples, such as ``state_dict()`` of modules, optimisers and schedules. ``ag.load`` reads it. A file holds values and no code, so reading one runs nothing.

    Tensors that are in ``obj`` twice are one again; views become tensors of their own. A file at a path is replaced when all is written. Raises ``AotgradTypeError`` that
    names what cannot be saved, ``AotgradRuntimeError`` where the file cannot be written, and for tensors with a graph.

    >>> import io, aotgrad as ag
    >>> file = io.BytesIO()
    >>> ag.save({"step": 3, "net": ag.nn.Linear(2, 1).state_dict()}, file)
    >>> _ = file.seek(0)
    >>> found = ag.load(file)
    >>> found["step"], found["net"]["weight"].shape
    (3, aotgrad.Size([1, 2]))
    """
    if not hasattr(f, "write") and not isinstance(f, (str, os.PathLike)):
        raise AotgradTypeError(f"save: f must be a path or a file that is open for bytes, not {type(f).__name__}")
    writer = _Writer()
    try:
        text = json.dumps({"version": _VERSION, "content": writer.described(obj, "obj")})
    except RecursionError:
        raise AotgradValueError("save: obj is nested too deeply, or holds itself") from None
    if hasattr(f, "write"):
        _write(f, text, writer.arrays)
        return
    name = os.fspath(f)
    fresh = f"{name}.{os.getpid()}.tmp"
    try:
        try:
            with open(fresh, "wb") as file:
                _write(file, text, writer.arrays)
            os.replace(fresh, name)
        except BaseException:
            if os.path.exists(fresh):
                os.unlink(fresh)
            raise
    except OSError as error:
        raise AotgradRuntimeError(f"save: cannot write {name}: {error.strerror}; check the path") from error


def _write(file: Any, text: str, arrays: list[Any]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_STRUCTURE, text)
        for i, data in enumerate(arrays):
            with archive.open(f"{i}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asarray(data), allow_pickle=False)


# ---- reading ----------------------------------------------------------------------------------------------------------------------------

def load(path: Any, map_location: Any = None, *, weights_only: bool = True) -> Any:
    """The library that ``ag.aot.build`` wrote to ``path``, as an object with the same functions; or what ``ag.save`` wrote there; or the tensors of an ``.npz`` or a
    safetensors file, by name. Which it is, the content says. Needs NumPy alone, and runs nothing but libraries that aotgrad has made. Instead of a path, states may be
    read from a file that is open for bytes. ``map_location`` (None or the processor) and ``weights_only`` (True: files hold no code) are there as in PyTorch.

    Raises ``AotgradValueError`` for a file that is damaged, was not made by aotgrad, is for another processor or needs instructions this one lacks, and
    ``AotgradRuntimeError`` for one that cannot be read.

    >>> library = load("build/librosenbrock.so")              # doctest: +SKIP
    >>> library.rosenbrock_grad(np.array([1.0, 2.0]))         # doctest: +SKIP
    (np.float64(100.0), array([-400.,  200.]))
    >>> net.load_state_dict(load("net.ag"))                   # doctest: +SKIP
    <All keys matched successfully>
    """
    if map_location is not None:
        Device(map_location)  # which says what is wrong with it
    if weights_only is not True and weights_only is not None:
        raise AotgradValueError(f"load: weights_only={weights_only!r}: files of ag.save hold values and no code; leave it out")
    if hasattr(path, "read"):
        data, name = path.read(), str(getattr(path, "name", "the file"))
        if not isinstance(data, bytes):
            raise AotgradTypeError(f"load: {name} gives {type(data).__name__}, not bytes; open it with mode 'rb'")
        if not _is_state(data):
            raise AotgradValueError(f"{name} is no file of ag.save, no .npz and no safetensors; a library is loaded by its path")
        return _read(data, name)
    if isinstance(path, (str, os.PathLike)) and os.path.isfile(name := os.fspath(path)):
        try:
            with open(name, "rb") as file:
                if _is_state(file.read(16)):
                    file.seek(0)
                    return _read(file.read(), name)
        except OSError as error:
            raise AotgradRuntimeError(f"cannot read {name}: {error.strerror}; check the path") from error
    return library.load(path)


def _is_state(data: bytes) -> bool:
    """Whether a file that begins so is an archive or safetensors, not a library."""
    return data[:4] in (b"PK\x03\x04", b"PK\x05\x06") or data[8:9] == b"{" and data[:4] != b"\x7fELF"


def _read(data: bytes, name: str) -> Any:
    """The content of a file of ``save``, or a dict of the tensors of an ``.npz`` or a safetensors file. Raises ``AotgradValueError`` for files that are damaged."""
    try:
        if data[:2] != b"PK":
            return _safetensors(data)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if _STRUCTURE in archive.namelist():
                return _content(archive)
            return {entry.removesuffix(".npy"): wrap(_array(archive, entry)) for entry in archive.namelist()}
    except (ValueError, LookupError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError) as error:
        raise AotgradValueError(f"{name} cannot be read: {error}; a whole file that ag.save, numpy.savez or safetensors has written is needed") from error


def _array(archive: zipfile.ZipFile, entry: str) -> Any:
    """An array from its file, whose header is not believed."""
    raw = io.BytesIO(archive.read(entry))
    version = np.lib.format.read_magic(raw)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{entry} is of version {version}")
    shape, fortran, dtype = (np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0)(raw)
    if dtype.kind not in "fciub" or math.prod(shape) * dtype.itemsize != len(raw.getbuffer()) - raw.tell():
        raise ValueError(f"{entry} holds no array of numbers of {dtype}{list(shape)}")
    flat = np.frombuffer(raw.getbuffer(), dtype, offset=raw.tell()).astype(dtype.newbyteorder("="))
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def _content(archive: zipfile.ZipFile) -> Any:
    head = json.loads(archive.read(_STRUCTURE))
    if head["version"] != _VERSION:
        raise ValueError(f"it is of version {head['version']}, and this reads version {_VERSION}")
    made: dict[int, Any] = {}

    def array(number: int) -> Any:
        if number not in made:
            made[number] = _array(archive, f"{int(number)}.npy")
        return made[number]

    def tensor(x: dict[str, Any]) -> Any:
        data = array(x["tensor"])
        if not isinstance(data, Tensor):
            if x["dtype"] == "bfloat16":
                data = data.view(dtypes.bfloat16.np)
            out = wrap(data, Parameter if x["parameter"] else Tensor)
            if out._dtype.name != x["dtype"]:
                raise ValueError(f"a tensor is {out._dtype.name}, not {x['dtype']}")
            made[x["tensor"]] = data = out.requires_grad_(bool(x["grad"]))
        return data

    def built(x: Any) -> Any:
        if not isinstance(x, dict):
            if type(x) not in _PLAIN:
                raise ValueError("its structure is not one that ag.save writes")
            return x
        if "tensor" in x:
            return tensor(x)
        ((kind, value),) = x.items()
        if kind in ("array", "number"):
            return array(value) if kind == "array" else array(value)[()]
        if kind == "dtype":
            return as_dtype(value)
        if kind in _MAPPINGS:
            return _MAPPINGS[kind]([(built(k), built(v)) for k, v in value]) if kind != "counter" else Counter({built(k): built(v) for k, v in value})
        return _BY_NAME[kind]([built(v) for v in value])

    return built(head["content"])


def _safetensors(data: bytes) -> dict[str, Any]:
    (length,) = struct.unpack_from("<Q", data)
    if length > len(data) - 8:
        raise ValueError("its header is cut off")
    body, out = memoryview(data)[8 + length:], {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        kind = as_dtype(_SAFE[entry["dtype"]])
        begin, end = entry["data_offsets"]
        if not 0 <= begin <= end <= len(body) or end - begin != math.prod(entry["shape"]) * kind.itemsize:
            raise ValueError(f"{name} does not fit its shape, {entry['shape']}")
        stored = np.frombuffer(body[begin:end], np.uint16 if kind is dtypes.bfloat16 else kind.np.newbyteorder("<"))
        native = stored.astype(stored.dtype.newbyteorder("="))
        out[name] = wrap((native.view(kind.np) if kind is dtypes.bfloat16 else native).reshape(entry["shape"]))
    return out
