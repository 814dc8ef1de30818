"""Strides of eager results where shapes leave a choice: PyTorch's for sizes of 0 and 1, which NumPy sees otherwise, and for results that do not follow their operands.

Decided when a program is made: one whose shapes leave no choice runs as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from aotgrad.ir import Block, Func, Value, opdef
from aotgrad.ir.transforms.rewrite import decompose_block
from aotgrad_runtime import memory_format as mf
from aotgrad_runtime.tensor import Tensor

from .front import Public
from .program import Program, Pullback

__all__ = ["expanded", "made"]

Strides = tuple[int, ...]
_ROW_MAJOR = frozenset(("softmax", "log_softmax", "masked_fill", "logsigmoid", "any", "all", "tril", "triu", "layer_norm", "diag_embed"))
_NORMS = frozenset(("batch_norm", "running_norm", "group_norm"))
_PARTS = frozenset(("cat", "roll"))  # row-major, whatever the strides of their operand
_PLAIN_NUMBERS = frozenset(("clip", "hardtanh", "lerp"))  # where a number is no operand in PyTorch, which would be one of another shape
_TIMES_A_NUMBER = frozenset(("deg2rad", "rad2deg"))
_CASTS = frozenset(("convert", "to_double", "to_float", "to_int", "to_long", "to_bool"))
# The order of operands in PyTorch's formulas of gradients: g is the cotangent, x what is saved, G and f what is computed of them first. Others are "gf".
_FORMS = {name: form for form, names in {
    "gx": "log log1p log2 log10 gelu silu softplus elu hardtanh relu6 hardswish hardsigmoid mish celu selu softshrink hardshrink mul addcmul addcdiv",
    "Gf": "reciprocal rsqrt atanh",
    "xg": "leaky_relu threshold",
    "fg": "relu maximum minimum erf erfc erfinv sinc binary_cross_entropy_with_logits",
    "g": "neg masked_fill lerp add sub logsigmoid",
    "cg": "where clip prelu",  # x first, and a number is among the operands
}.items() for name in names.split()}
_MOVES = frozenset(("broadcast", "full", "constant", "cast"))


class Arranged(Program):
    """A program whose results are put into the strides that ``arrange(result, arrays)`` wants; None: as they are."""

    __slots__ = ("arrange", "public")
    arrange: Callable[[Any, Sequence[Any]], Any] | None
    public: tuple[Public, dict[str, Any]]

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        found, arrange = super().run(arrays), self.arrange
        return found if arrange is None else [arrange(out, arrays) for out in found]

    def direct(self) -> Callable[..., Any] | None:
        found, arrange = super().direct(), self.arrange
        return found if arrange is None or found is None else lambda *arrays: arrange(found(*arrays), arrays)

    def pullback(self, active: tuple[bool, ...], present: tuple[bool, ...]) -> Pullback:
        known = self._vjps.get((active, present))
        if known is not None:
            return known
        found = super().pullback(active, present)
        rules = _of_gradients(*self.public, self.func, found, active)
        if rules is not None:
            found.program = made = Gradients(found.program.func, found.program.name)
            made.backward, made.rules = True, rules
        return found


class Gradients(Program):
    """A backward program with a rule for the strides of each result."""

    __slots__ = ("rules",)
    rules: list[Callable[[Any, Sequence[Any]], Any]]

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        return [rule(out, arrays) for rule, out in zip(self.rules, super().run(arrays))]


def made(public: Public, func: Func, name: str, runner: Any, view: tuple[Any, ...] | None, arguments: dict[str, Any]) -> Program:
    """The program of an eager call on tensors."""
    out = Arranged(func, name, runner, view)
    out.public = public, {k: arguments.get(k) for k in ("dim", "dims")}  # a program is kept: no tensors
    out.arrange = _rule(public, func, view, arguments)
    return out


def _of_gradients(public: Public, arguments: dict[str, Any], func: Func, pullback: Pullback, active: Sequence[bool]) -> Any:
    """Gradients of an elementwise call are elementwise results of cotangents and saved values, in an order of the operation's."""
    back = pullback.program.func
    if not back.outputs or not all(isinstance(n, int) for t in (*back.out_types, *back.arg_types) for n in t.shape):
        return None
    shape = func.out_types[0].shape
    rule = _RULES.get(public.op.name)
    if rule is not None and len(back.out_types[0].shape) > 1:
        return [functools.partial(rule, arguments, len(pullback.inputs) + len(pullback.outputs))] * len(back.outputs)
    if len(shape) < 2 or not _elementwise(func):
        return None
    block, saved = decompose_block(back.body), len(pullback.inputs) + len(pullback.outputs)
    operands = iter(i for i, on in enumerate(active) if on)
    wanted = [i for i, on in zip(operands, pullback.gives) if on]
    rules: list[Any] = []
    for i, out in zip(wanted, block.outputs):
        needed = _needed(block, out)
        if out.type.shape != shape or out in block.args:
            rules.append(_as_found)
        elif not needed:
            rules.append(functools.partial(_like_cotangent, saved))
        else:
            rules.append(functools.partial(_gradient, _form(public.op.name, func, i), saved, needed))
    return None if all(rule is _as_found for rule in rules) else rules


def _form(name: str, func: Func, i: int) -> str:
    """How the gradient of operand ``i`` is computed."""
    if name == "div":
        return "Gf" if i else "gx"
    if name == "pow":
        base, power = (func.args[0].type.rank, func.args[1].type.rank) if len(func.args) == 2 else (1, 0)
        return "g" if not base else "cg" if power and not i else "gf"
    return _FORMS.get(name, "gf")


def _as_found(out: Any, arrays: Sequence[Any]) -> Any:
    return out


def _like_cotangent(saved: int, out: Any, arrays: Sequence[Any]) -> Any:
    return _put(out, mf.preserved_strides(out.shape, strides_of(arrays[saved])))


def _needed(block: Block, out: Value) -> list[int]:
    """The arguments that ``out`` is computed from."""
    seen: set[Value] = set()
    work = [out]
    while work:
        v = work.pop()
        if v not in seen:
            seen.add(v)
            work.extend(() if v.op is None else v.op.operands)
    return [i for i, a in enumerate(block.args) if a in seen]


def _gradient(form: str, saved: int, needed: Sequence[int], out: Any, arrays: Sequence[Any]) -> Any:
    shape = out.shape
    if 1 not in shape and 0 not in shape and out.flags.c_contiguous and all(arrays[i].flags.c_contiguous for i in needed):
        return out
    operands: list[Strides] = []
    same = form != "cg"
    for letter in form:
        for i in needed:
            x = arrays[i]
            if (i >= saved) is not (letter in "gG") or not x.ndim:
                continue
            lead = len(shape) - x.ndim
            own = (0,) * lead + tuple([0 if n == 1 != m else s for s, n, m in zip(strides_of(x), x.shape, shape[lead:])])
            same = same and x.shape == shape
            operands.append(mf.pointwise_strides(shape, [own], x.shape == shape) if letter in "Gf" else own)
    if same and len(operands) == 1 and any(not arrays[i].ndim for i in needed):
        same = False  # times a number
    return _put(out, mf.pointwise_strides(shape, operands, same))


def _g_as_cotangent(arguments: dict[str, Any], saved: int, out: Any, arrays: Sequence[Any]) -> Any:
    return _put(out, mf.preserved_strides(out.shape, strides_of(arrays[saved])))


def _g_of_parts(arguments: dict[str, Any], saved: int, out: Any, arrays: Sequence[Any]) -> Any:
    return _of_parts(out, arrays[saved:]) if arguments.get("dims") is not None else _g_row_major(arguments, saved, out, arrays)


def _g_row_major(arguments: dict[str, Any], saved: int, out: Any, arrays: Sequence[Any]) -> Any:
    return _row_major(out, arrays)


def _g_copied(arguments: dict[str, Any], saved: int, out: Any, arrays: Sequence[Any]) -> Any:
    """What shows a part of the cotangent, or repeats it, as memory of its own."""
    return _put(out, mf.preserved_strides(out.shape, strides_of(out)))


def _g_divided(arguments: dict[str, Any], saved: int, out: Any, arrays: Sequence[Any]) -> Any:
    return _put(out, mf.pointwise_strides(out.shape, [strides_of(out)], False))


def _g_as_input(arguments: dict[str, Any], saved: int, out: Any, arrays: Sequence[Any]) -> Any:
    """In the order of the cotangent where that is not repeated, then in that of the input."""
    shape, dim = out.shape, arguments.get("dim")
    x = next((x for x in arrays[:saved] if x.shape == shape), None)
    if x is None:
        return out
    operands = [strides_of(x)]
    ct = arrays[saved]
    if isinstance(dim, int) and ct.ndim :
        steps = strides_of(ct)
        d = dim % len(shape)
        operands.insert(0, (*steps[:d], 0, *steps[d + (ct.ndim == len(shape)):]))
    return _put(out, mf.pointwise_strides(shape, operands, False))


def _g_as_computed_input(arguments: dict[str, Any], saved: int, out: Any, arrays: Sequence[Any]) -> Any:
    x = next((x for x in arrays[:saved] if x.shape == out.shape), None)
    return out if x is None else _put(out, mf.pointwise_strides(out.shape, [strides_of(x)], True))


def _g_as_image(arguments: dict[str, Any], saved: int, out: Any, arrays: Sequence[Any]) -> Any:
    return _as_image(out, [x for x in arrays[:saved] if x.shape == out.shape])


_RULES = {name: rule for rule, names in (
    (_g_as_cotangent, "flip convert to_double to_float to_int to_long to_bool"), (_g_of_parts, "roll"), (_g_copied, "constant_pad"), (_g_divided, "mean"),
    (_g_row_major, "softmax log_softmax masked_fill diagonal max min tril triu fmax fmin layer_norm mse_loss smooth_l1_loss huber_loss"),
    (_g_as_image, "batch_norm running_norm group_norm"), (_g_as_input, "prod norm"), (_g_as_computed_input, "logsumexp binary_cross_entropy"),
) for name in names.split()}


def _as_image(out: Any, arrays: Sequence[Any]) -> Any:
    """Channels last where the first array is an image that is, else row-major."""
    return out if not arrays or arrays[0].shape != out.shape else _of_parts(out, arrays[:1])


def _of_parts(out: Any, arrays: Sequence[Any]) -> Any:
    """Channels last where all parts are, else row-major."""
    if out.ndim < 4:
        return _row_major(out, arrays)
    found = {mf.suggest_memory_format(x.shape, strides_of(x)) for x in arrays if x.ndim == out.ndim}
    return _put(out, mf.format_strides(out.shape, found.pop() if len(found) == 1 else mf.contiguous_format))


def _rule(public: Public, func: Func, view: tuple[Any, ...] | None, arguments: dict[str, Any]) -> Any:
    if not func.outputs:
        return None
    shape = func.out_types[0].shape
    if not all(isinstance(n, int) for t in func.out_types for n in t.shape):
        return None
    if len(shape) > 1 and (public.op.name in _ROW_MAJOR or public.op.name == "pow" and not isinstance(arguments["input"], Tensor)):
        return _row_major
    if public.op.name in _PARTS and len(shape) > 1:
        return _row_major if public.op.name == "roll" and arguments.get("dims") is None else _of_parts
    if public.op.name == "stack":
        return functools.partial(_stacked, arguments.get("dim", 0) % max(len(shape), 1))
    if public.op.name == "constant_pad" and shape == func.args[0].type.shape:
        return _kept
    if public.op.name in _NORMS:
        return _as_image
    if public.op.name == "getitem" and view is None and len(shape) > 1:
        return functools.partial(_looked_up, arguments["spec"].entries)
    if view is not None:
        return _of_view(public, func, view, arguments) if len(func.outputs) == 1 or public.op.name == "unbind" else None
    if public.op.name in _CASTS and (0 in shape or 1 in shape):
        return _kept
    if len(func.outputs) == 1 and len(shape) > 1 and (steps := _elementwise(func)) and (0 in shape or 1 in shape or steps > 1 or public.op.name in _PLAIN_NUMBERS):
        shapes = [tuple(a.type.shape) for a in func.args]
        if public.op.name in _PLAIN_NUMBERS and not isinstance(arguments.get("weight"), Tensor):
            shapes = [own for own in shapes if own]
        same = all(own == shape for own in shapes) and public.op.name not in _TIMES_A_NUMBER
        return functools.partial(_reciprocal if public.op.name == "div" and not shapes[0] else _pointwise, shapes, same)
    return _spaced if any(0 in t.shape for t in func.out_types) else None


def _of_view(public: Public, func: Func, view: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
    x, shape = func.args[0].type.shape, func.out_types[0].shape
    entries = view[1].entries if view[0] == "index" else ()
    if public.op.name == "unbind" and 1 in shape:
        return functools.partial(_without, arguments.get("dim", 0) % len(x))
    if public.op.name == "unsqueeze":
        dim = arguments["dim"]
        return functools.partial(_put_in, sorted(d % len(shape) for d in (dim if isinstance(dim, (tuple, list)) else (dim,))))
    if entries and ((0 in shape or 1 in shape) and len(entries) >= len(x) or ("new",) in entries):
        return functools.partial(_part, entries)
    return None


def _elementwise(func: Func) -> int:
    """How many elementwise ops a program is made of, if of those alone, else 0; one that chooses counts twice, because NumPy's result is row-major then."""
    if not any(a.type.shape == func.out_types[0].shape for a in func.args):
        return 0
    ops = [op for op in decompose_block(func.body).ops if op.name not in _MOVES]
    return sum(1 + (op.name == "where") for op in ops) if all(isinstance(opdef.get(op.name).lower, opdef.Scalar) for op in ops) else 0


def strides_of(x: Any) -> Strides:
    """Strides in elements; those of PyTorch where NumPy gave an empty array none."""
    if not x.size and not any(x.strides):
        return mf.format_strides(x.shape)
    item = x.itemsize
    return tuple([s // item for s in x.strides])


def _put(out: Any, wanted: Strides) -> Any:
    item = out.itemsize
    return out if out.strides == tuple([s * item for s in wanted]) else mf.copy_to_strides(out, wanted)


def _spaced(out: Any, arrays: Sequence[Any]) -> Any:
    return _put(out, mf.format_strides(out.shape)) if not out.size and not any(out.strides) and out.base is None else out


def _row_major(out: Any, arrays: Sequence[Any]) -> Any:
    if out.flags.c_contiguous and out.size and 1 not in out.shape:
        return out
    return _put(out, mf.format_strides(out.shape))


def _stacked(dim: int, out: Any, arrays: Sequence[Any]) -> Any:
    """As parts put together along ``dim``, which is then taken apart."""
    if out.ndim < 5 and out.size:
        return _row_major(out, arrays)
    shape, found = out.shape, {mf.suggest_memory_format(x.shape, strides_of(x)) for x in arrays}
    if dim == len(shape) - 1 or len(found) > 1:
        return _row_major(out, arrays)
    steps = mf.format_strides((*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2:]), found.pop())
    return _put(out, (*steps[:dim], steps[dim] * shape[dim + 1], *steps[dim:]))


def _kept(out: Any, arrays: Sequence[Any]) -> Any:
    return _put(out, mf.preserved_strides(out.shape, strides_of(arrays[0])))


def _reciprocal(shapes: Sequence[tuple[int, ...]], same: bool, out: Any, arrays: Sequence[Any]) -> Any:
    """A number over a tensor is the number times its reciprocal, in PyTorch."""
    one = mf.pointwise_strides(out.shape, [strides_of(arrays[1])], True)
    return _put(out, mf.pointwise_strides(out.shape, [(0,) * out.ndim, one], False))


def _pointwise(shapes: Sequence[tuple[int, ...]], same: bool, out: Any, arrays: Sequence[Any]) -> Any:
    if any(out is x for x in arrays):
        return out
    shape, operands = out.shape, []
    if 1 not in shape and 0 not in shape and out.flags.c_contiguous and all(x.flags.c_contiguous for x in arrays):
        return out
    for own, x in zip(shapes, arrays):
        lead = (0,) * (len(shape) - len(own))
        operands.append((*lead, *(0 if n == 1 != m else s for s, n, m in zip(strides_of(x), own, shape[len(lead):]))))
    return _put(out, mf.pointwise_strides(shape, operands, same))


def _put_in(at: Sequence[int], out: Any, arrays: Sequence[Any]) -> Any:
    """Dims of size 1 put in at ``at`` step over what follows them."""
    rest = iter(strides_of(arrays[0]))
    kept = [1 if d in at else next(rest) for d in range(out.ndim)]
    for d in reversed(at):
        kept[d] = out.shape[d + 1] * kept[d + 1] if d + 1 < out.ndim else 1
    return _with_strides(out, kept)


def _part(entries: Sequence[tuple[Any, ...]], out: Any, arrays: Sequence[Any]) -> Any:
    """Slices step as many times as far, also through nothing; new dims step over what follows them."""
    x = arrays[0]
    sizes, strides, d = list(x.shape), list(strides_of(x)), 0
    for entry in entries:
        if entry[0] == "new":
            sizes.insert(d, 1)
            strides.insert(d, sizes[d + 1] * strides[d] if d + 1 < len(sizes) else 1)
        elif entry[0] == "int":
            del sizes[d], strides[d]
            continue
        else:
            sizes[d] = out.shape[d]
            strides[d] *= entry[3] or 1
        d += 1
    return _with_strides(out, strides)


def _looked_up(entries: Sequence[tuple[Any, ...]], out: Any, arrays: Sequence[Any]) -> Any:
    """In the order of what indices leave of the operand, and of the index arrays."""
    x, own, before, places, d = arrays[0], list[int](), 0, list[int](), 0
    if x.flags.c_contiguous:
        return out
    steps = strides_of(x)
    for k, entry in enumerate(entries):
        if entry[0] == "array":
            before = before if places else len(own)
            places.append(k)
        elif entry[0] != "int":
            own.append(0 if entry[0] == "new" else steps[d] * (entry[3] or 1))
        d += entry[0] != "new"
    before = before if len(places) == places[-1] - places[0] + 1 else 0
    rank = out.ndim - len(own)
    if max(a.ndim for a in arrays[1:]) != rank:
        return out
    operands = [(*own[:before], *[0] * rank, *own[before:])]
    for a in arrays[1:]:
        steps = tuple([0 if n == 1 else s for n, s in zip(a.shape, strides_of(a))])
        operands.append((*[0] * (before + rank - a.ndim), *steps, *[0] * (len(own) - before)))
    return _put(out, mf.pointwise_strides(out.shape, operands, False))


def _without(dim: int, out: Any, arrays: Sequence[Any]) -> Any:
    kept = strides_of(arrays[0])
    return _with_strides(out, kept[:dim] + kept[dim + 1:])


def _with_strides(out: Any, strides: Sequence[int]) -> Any:
    wanted = tuple([s * out.itemsize for s in strides])
    if out.strides == wanted:
        return out
    return as_strided(out, out.shape, wanted) if out.size else np.ndarray(out.shape, out.dtype, buffer=out, strides=wanted)


def expanded(shape: tuple[Any, ...], x: Any) -> list[Any]:
    """``x`` broadcast to ``shape``; dims of size 1 that stay keep their strides, which NumPy would drop, and new ones step over what follows them."""
    if x.shape == tuple(shape):
        return [x[...]]
    out = np.broadcast_to(x, shape)
    if x.ndim and 1 in shape:
        lead = len(shape) - x.ndim
        kept: Strides = tuple([s if n == shape[lead + i] else 0 for i, (s, n) in enumerate(zip(x.strides, x.shape))])
        for i in reversed(range(lead)):
            kept = (shape[i + 1] * kept[0] if shape[i] == 1 else 0, *kept)
        if out.strides != kept:
            own = all(s or n < 2 for s, n in zip(kept, shape))  # every element is one of its own
            out = as_strided(x, shape, kept, writeable=own and x.flags.writeable)
    return [out]
