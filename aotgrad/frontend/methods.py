"""Methods and operators of tensors, built from the tables of public functions, and handed to the runtime once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgrad.ir.dims import Dim
from aotgrad.ir.ops.common import norm_dim
from aotgrad.ir.ops.contract import einsum_view
from aotgrad_runtime import memory_format as mf
from aotgrad_runtime.dtypes import ALL, DType, as_dtype, bool_, int64
from aotgrad_runtime.errors import (
    AotgradArgumentError,
    AotgradAttributeError,
    AotgradDimError,
    AotgradDTypeError,
    AotgradNotImplementedError,
    AotgradRuntimeError,
    AotgradTypeError,
    AotgradValueError,
)
from aotgrad_runtime.install import OpsTable
from aotgrad_runtime.parameter import Parameter
from aotgrad_runtime.tensor import ArrayTensor, Device, Tensor

from . import backward, dispatch, factories, hooks, indexing, inplace, ledger, placement
from .boundary import told, told_method
from .composed import written
from .dispatch import NUMPY, TORCH, call, run
from .draws import DRAW_METHODS, DRAWS
from .eager import Dual
from .front import Public
from .further import FURTHER, FURTHER_METHODS
from .numpy_protocol import PUBLIC, array_function, array_ufunc, ordered_reshape
from .numpy_reductions import REDUCTIONS
from .ordered import ORDERED, ORDERED_METHODS
from .promotion import is_number
from .queries import (
    allclose,
    conj,
    detach,
    equal,
    imag,
    is_complex,
    is_floating_point,
    is_inference,
    is_nonzero,
    is_same_size,
    is_signed,
    is_tensor,
    numel,
    positive,
    real,
)
from .rarer import RARER, RARER_METHODS
from .sizes import TracedNumber, equal_sizes
from .trace import Traced, user_loc
from .views import ViewExtra

__all__ = ["FUNCTIONS", "contiguous", "table", "wanted_dtype"]

Method = Callable[..., Any]
_OPERANDS = (Tensor, np.ndarray, np.generic, int, float, Dim)
_DTYPE_NAMES = frozenset(d.name for d in ALL)
_AUGMENTED = {"add": "__iadd__", "sub": "__isub__", "mul": "__imul__", "div": "__itruediv__", "floor_divide": "__ifloordiv__", "remainder": "__imod__", "pow": "__ipow__"}
_BITWISE = frozenset(("logical_and", "logical_or", "logical_xor"))

FUNCTIONS: dict[str, Method] = {name: dispatch.function(public, name) for name, public in TORCH.items()}
"""Public functions by torch's name; methods are the same objects."""


def _where(condition: Any, *values: Any, **named: Any) -> Any:
    if values or named:
        return _choose(condition, *values, **named)
    return _nonzero(condition, True) if isinstance(condition, Tensor) else np.nonzero(condition)


_choose = FUNCTIONS["where"]
functools.update_wrapper(_where, _choose)
_where.__signature__ = inspect.Signature([p.replace(default=p.empty if n == "condition" else None)  # type: ignore[attr-defined]
                                          for n, p in inspect.signature(_choose).parameters.items()])
_where.__doc__ = f"{_choose.__doc__} With the condition alone: where it holds, one tensor of places for each dim (``nonzero(as_tuple=True)``)."
FUNCTIONS["where"] = told(_where)


def _einsum(equation: Any, *operands: Any) -> Any:
    if isinstance(equation, str) and len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if len(operands) != 1 or not isinstance(equation, str) or not isinstance(operands[0], Tensor):
        return _summed(equation, *operands)
    x, found = operands[0], einsum_view(equation, operands[0].ndim)
    if found is None:
        return _summed(equation, x)
    for i, j in found[0]:
        if not equal_sizes(x.shape[i], x.shape[j]):
            raise AotgradValueError(f"{user_loc()}: einsum {equation!r}: the sizes of an index in operand 0 differ: {int(x.shape[i])} and {int(x.shape[j])}")
        x = call(TORCH["diagonal"], (x, 0, i, j), {})
    return call(TORCH["permute"], (x, found[1]), {})


_summed = FUNCTIONS["einsum"]
functools.update_wrapper(_einsum, _summed).__doc__ = f"{_summed.__doc__} A view where nothing is summed of one operand."
FUNCTIONS["einsum"] = told(_einsum)


def _diag(input: Any, diagonal: int = 0) -> Any:
    return _diagonal(input, diagonal) if len(np.shape(input) if not isinstance(input, Tensor) else input.shape) != 1 else FUNCTIONS["diag_embed"](input, diagonal)


_diagonal = FUNCTIONS["diag"]
FUNCTIONS["diag"] = told(functools.update_wrapper(_diag, _diagonal))


def _narrow(input: Any, dim: Any, start: Any, length: Any) -> Any:
    if isinstance(start, Tensor) and not isinstance(start, TracedNumber) and start.ndim == 0:
        if isinstance(start, Traced) and "_leaf_index" not in start.__dict__:
            size = input.shape[norm_dim(dim, len(input.shape))]
            start = FUNCTIONS["where"](start < 0, start + size, start)
            begin = FUNCTIONS["where"](start < 0, size, start)  # where none of the part is there, the places say so: they would be counted from the end
            return FUNCTIONS["index_select"](input, dim, begin + factories.arange(length))
        start = start.__index__()
    return _narrowed(input, dim, start, length)


_narrowed = FUNCTIONS["narrow"]
FUNCTIONS["narrow"] = told(functools.update_wrapper(_narrow, _narrowed))
_narrow.__doc__ = f"{_narrowed.__doc__} ``start`` may be a tensor of no dims; in compiled code the part is then a copy."


def _of_one_or_two(name: str, pair: str) -> Method:
    """``max`` and ``min``: over an array, or of two arrays element by element, as torch has both under one name."""
    reduced, of_two = FUNCTIONS[name], FUNCTIONS[pair]

    def fn(*args: Any, **kwargs: Any) -> Any:
        other = kwargs.get("other") if len(args) < 2 else args[1]
        if isinstance(other, (Tensor, np.ndarray)) and "_leaf_index" not in getattr(other, "__dict__", ()) or "other" in kwargs:  # a traced integer is a dim
            return of_two(*args, **kwargs)
        return reduced(*args, **kwargs)

    functools.update_wrapper(fn, reduced)
    fn.__doc__ = f"{reduced.__doc__} With a second array: ``{pair}`` of the two."
    return fn


FUNCTIONS.update({name: _of_one_or_two(name, pair) for name, pair in (("max", "maximum"), ("min", "minimum"))})


# ---- operators ------------------------------------------------------------------------------------------------------------------------

def _fits(self: Any, other: Any) -> bool:
    return isinstance(other, _OPERANDS) or (isinstance(other, (list, tuple)) and isinstance(self, ArrayTensor))


def _computed(public: Public, arguments: dict[str, Any]) -> Any:
    """An operator's call. Of Python's numbers alone, some of them traced or differentiated, it gives one again: it decides no dtype."""
    if not all(map(is_number, arguments.values())):
        return run(public, arguments)
    front = public.op.front
    whole = front is not None and front.promote != "compare" and "bitwise" not in public.op.name and public.op.name not in _BITWISE
    if whole and all(isinstance(x, bool) or getattr(x, "_dtype", None) is bool_ for x in arguments.values()):  # True + True is 2
        arguments = {k: call(TORCH["astype"], (x, int64), {}) if isinstance(x, Tensor) else int(x) for k, x in arguments.items()}
    out = run(public, arguments, numbers=True)
    out._weak = True
    return out


def _binary(public: Public) -> Method:
    first, second = public.layout.positional[:2]

    def forward(self: Any, other: Any) -> Any:
        if not _fits(self, other):
            return NotImplemented
        return _computed(public, {first: self, second: other}) if self._weak else call(public, (self, other), {})

    return dispatch.short(public, forward) or forward


def _reflected(public: Public) -> Method:
    first, second = public.layout.positional[:2]

    def backward(other: Any, self: Any) -> Any:
        if not _fits(self, other):
            return NotImplemented
        return _computed(public, {first: other, second: self}) if is_number(self) else call(public, (other, self), {})

    fast = dispatch.short(public, backward) or backward
    if public.op.name in ("add", "mul"):  # a tensor stands first, as in PyTorch
        def in_front(self: Any, other: Any) -> Any:
            return fast(self, other) if (type(self) is Tensor or type(self) is Parameter) and isinstance(other, (int, float)) else fast(other, self)

        return in_front
    return lambda self, other: fast(other, self)


def _augmented(public: Public, name: str) -> Method:
    def compute(self: Any, other: Any) -> Any:
        return call(public, (self, other), {})

    fast = dispatch.short(public, compute) or compute

    def augmented(self: Any, other: Any) -> Any:
        if not _fits(self, other) or (isinstance(self, ArrayTensor) and self.ndim == 0):  # NumPy's scalars cannot be changed: x += y makes a new one
            return NotImplemented
        return inplace.update(self, fast(self, other), name)

    return augmented


def _unary(public: Public) -> Method:
    first = public.layout.positional[0]

    def unary(self: Any) -> Any:
        return _computed(public, {first: self}) if self._weak else call(public, (self,), {})

    return dispatch.short(public, unary) or unary


def _bits(method: Method, symbol: str, reflected: bool) -> Method:
    """``& | ^``: logical of bools, bitwise where an integer is among them."""
    public = TORCH[{"&": "bitwise_and", "|": "bitwise_or", "^": "bitwise_xor"}[symbol]]

    def checked(self: Any, other: Any) -> Any:
        if not _fits(self, other):
            return NotImplemented
        whole = False
        for x in (self, other):
            kind = x._dtype if isinstance(x, Tensor) else np.asarray(x).dtype
            if kind.kind not in "biu":
                raise AotgradDTypeError(f"{user_loc()}: {symbol} takes bools and integers, not {kind.name}; round and convert floats first")
            whole = whole or kind.kind != "b"
        if not whole:
            return method(self, other)
        return (_computed if self._weak else run)(public, {"input": other, "other": self} if reflected else {"input": self, "other": other})

    return checked


def _no_numbers(method: Method) -> Method:
    """``@`` takes arrays only."""
    return lambda self, other: NotImplemented if isinstance(other, (int, float, np.generic)) else method(self, other)


def _square_of_bools(method: Method) -> Method:
    """``**``: NumPy's operator squares bools as int8, its function as the integer's dtype."""

    def power(self: Any, other: Any, modulus: Any = None) -> Any:
        if modulus is not None:
            raise AotgradTypeError(f"{user_loc()}: pow(x, y, modulus) is for Python integers; write (x ** y) % modulus")
        if other.__class__ is int and other == 2 and self._dtype is bool_ and isinstance(self, ArrayTensor):
            return call(TORCH["square"], (self,), {})
        return method(self, other)

    return power


def _positive(self: Any) -> Any:
    if self._weak:
        return self
    if isinstance(self, ArrayTensor):
        return call(TORCH["clone"], (self,), {})
    if self._dtype is bool_:
        raise AotgradDTypeError(f"{user_loc()}: The `+` operator, on a bool tensor is not supported; convert it first (x.to(ag.int64))")
    return self


def _operators() -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, public in TORCH.items():
        front = public.op.front
        if front is None or name in front.aliases or not front.operator:
            continue
        for method in front.operator:
            if len(public.layout.positional) == 1:
                made = _unary(public)
            else:
                made = _reflected(public) if method.startswith("__r") and method not in ("__round__", "__rshift__", "__rsub__") else _binary(public)
            if name == "matmul":
                made = _no_numbers(made)
            out[method] = _bits(made, {"and": "&", "or": "|", "xor": "^"}[name.rpartition("_")[2]], method.startswith("__r")) if name in _BITWISE else made
        if name in _AUGMENTED:
            out[_AUGMENTED[name]] = _augmented(public, f"{name}_")
    out["__pow__"] = _square_of_bools(out["__pow__"])
    floor, mod = out["__floordiv__"], out["__mod__"]
    out["__divmod__"] = lambda self, other: (floor(self, other), mod(self, other)) if _fits(self, other) else NotImplemented
    out["__rdivmod__"] = lambda self, other: (out["__rfloordiv__"](self, other), out["__rmod__"](self, other)) if _fits(self, other) else NotImplemented
    out["__pos__"] = _positive
    out["__contains__"] = lambda self, value: bool(call(TORCH["any"], (run(TORCH["eq"], {"input": self, "other": value}),), {}))
    out["__getitem__"], out["__setitem__"] = indexing.getitem, indexing.setitem
    out["__array_ufunc__"], out["__array_function__"] = array_ufunc, array_function
    return out


# ---- methods that are not functions of the registry --------------------------------------------------------------------------------------

def _inplace_method(public: Public, name: str) -> Method:
    if dispatch.is_view(public):
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return inplace.turn(self, lambda x: call(public, (x, *args), kwargs), name)
    else:
        fast, others = dispatch.short(public, lambda *args: call(public, args, {})), len(public.tensors) - 1

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            short = fast is not None and len(args) == others and not kwargs
            return inplace.update(self, fast(self, *args) if short else call(public, (self, *args), kwargs), name)  # type: ignore[misc]

    method.__doc__ = _in_place_doc(public)
    return method


def _in_place_doc(public: Public) -> str:
    if dispatch.is_view(public):
        return (f"{public.op.doc} In place: the tensor becomes this view of itself. Its numbers stay where they are, other views of it stay as they are, and gradients "
                "follow. A leaf that requires grad raises ``RuntimeError``, as does a tensor from outside in a compiled function.")
    return (f"{public.op.doc} In place: the result is written into the tensor, which is returned. Shape and dtype stay: a result of another shape, or of a kind that "
            "the dtype cannot hold (floats in integers), raises ``RuntimeError``, as does a leaf that requires grad.")


def _fill(self: Any, value: Any) -> Any:
    """Every element becomes ``value`` (a number or 0-d tensor). In place."""
    if isinstance(value, Tensor) and value.ndim:
        raise AotgradRuntimeError(f"{user_loc()}: fill_ only supports 0-dimension value tensor but got tensor with {value.ndim} dimensions; copy_ takes such values")
    indexing.setitem(self, Ellipsis, value)
    return self


def _zero(self: Any) -> Any:
    """Every element becomes 0. In place."""
    return _fill(self, 0)


def _copy(self: Any, src: Any, non_blocking: bool = False) -> Any:
    """Takes the values of ``src``, broadcast and converted. In place."""
    shape = getattr(src, "shape", ())
    if len(shape) > self.ndim:
        raise AotgradArgumentError(f"{user_loc()}: copy_: output with shape {list(self.shape)} doesn't match the broadcast shape {list(shape)}")
    indexing.setitem(self, Ellipsis, src)
    return self


def _cast(x: Any, dtype: Any) -> Any:
    """The tensor in another dtype, in the same shape and memory order: itself where it has that dtype already."""
    dtype = as_dtype(dtype)
    if x._dtype is dtype:
        return x
    out = run(TORCH["astype"], {"input": x, "dtype": dtype})
    return out if isinstance(out, (Traced, Dual)) or x.ndim < 3 or type(out) is not Tensor else _in_format(x, out, mf.preserve_format)


def wanted_dtype(args: Sequence[Any], dtype: Any = None, device: Any = None) -> Any:
    """The dtype that arguments of ``to`` name, None where they name none; a device that there is not is an error."""
    for a in args:
        if isinstance(a, Tensor):
            dtype = a._dtype
        elif isinstance(a, Device) or (isinstance(a, str) and a not in _DTYPE_NAMES):
            device = a
        elif not isinstance(a, bool):
            dtype = a
    if device is not None:
        Device(device)  # which says what is wrong with it
    return dtype


def _to(self: Any, *args: Any, dtype: Any = None, device: Any = None, non_blocking: bool = False, copy: bool = False, memory_format: Any = None) -> Any:
    """``to(dtype)``, ``to(other)``, ``to("cpu")``: converted where that changes something, else the tensor itself."""
    self, dtype = ledger.twin(self), wanted_dtype(args, dtype, device)
    wanted = mf.preserve_format if memory_format is None else mf.check(memory_format)
    out = self if dtype is None else _cast(self, dtype)
    if isinstance(self, Traced):
        return contiguous(call(TORCH["clone"], (self,), {}) if copy and out is self else out, wanted)
    if out is self and not copy and wanted in (mf.preserve_format, mf.suggest_memory_format(self._data.shape, self.stride())):
        return self
    return _in_format(self, call(TORCH["clone"], (self,), {}) if out is self else out, wanted)


def _in_format(x: Any, out: Any, memory_format: Any) -> Any:
    """``out``, a fresh copy of ``x``, with the strides that ``memory_format`` means for ``x``."""
    data, shape = x._data, x._data.shape
    if memory_format is mf.preserve_format and data.strides == out._data.strides and data.flags.c_contiguous and data.size and 1 not in shape:
        return out
    strides = mf.preserved_strides(shape, x.stride()) if memory_format is mf.preserve_format else mf.format_strides(shape, memory_format)
    if out.stride() != strides:
        out._data = mf.copy_to_strides(out._data, strides)
    return out


def contiguous(x: Any, memory_format: Any = mf.contiguous_format) -> Any:
    """The tensor with its elements dense in ``memory_format``: itself if they are, else a copy."""
    memory_format, x = mf.check(memory_format), ledger.twin(x)
    if isinstance(x, Traced):
        return x if memory_format is mf.preserve_format else placement.contiguous(x, factories.relaid(x, factories.layout_of(x.shape, memory_format)))
    if x.is_contiguous(memory_format):
        return x
    if memory_format is mf.preserve_format:
        raise AotgradRuntimeError("preserve memory format is unsupported by the contiguous operator; give contiguous_format or channels_last")
    return _in_format(x, call(TORCH["clone"], (x,), {}), memory_format)


def _clone(self: Any, *, memory_format: Any = mf.preserve_format) -> Any:
    """A copy, recorded."""
    self = ledger.twin(self)
    out = call(TORCH["clone"], (self,), {})
    if not isinstance(out, Tensor):
        return out  # of a NumPy array
    return contiguous(out, memory_format) if isinstance(self, Traced) else _in_format(self, out, mf.check(memory_format))


def _type(self: Any, dtype: Any = None) -> Any:
    """The tensor in another dtype; without one, the name of its kind in torch's old spelling."""
    return _cast(self, dtype) if dtype is not None else f"aotgrad.{_OLD_NAMES[self._dtype.name]}Tensor"


_OLD_NAMES = {
    "float64": "Double", "float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long", "int32": "Int", "int16": "Short", "int8": "Char",
    "uint8": "Byte", "bool": "Bool", "complex64": "ComplexFloat", "complex128": "ComplexDouble",
}


def _view(self: Any, *shape: Any, dtype: Any = None) -> Any:
    """The same memory with another shape; an error where the strides do not allow that (``reshape`` copies then). With a dtype: its bits read as numbers of that dtype.

    >>> ag.tensor([1.0]).view(ag.int32)
    tensor([1065353216], dtype=aotgrad.int32)
    """
    if dtype is None and len(shape) == 1 and isinstance(shape[0], (DType, np.dtype, type)):
        return _reread(ledger.twin(self), as_dtype(shape[0]))
    if dtype is not None:
        if shape:
            raise AotgradTypeError(f"{user_loc()}: view() takes a shape or a dtype, not both")
        return _reread(ledger.twin(self), as_dtype(dtype))
    return _shown(self, call(TORCH["view"], (self, *shape), {}))


def _reread(x: Any, dtype: DType) -> Any:
    """The bits of ``x`` as numbers of ``dtype``, which have no derivative."""
    if isinstance(x, Traced):
        raise AotgradNotImplementedError(f"{user_loc()}: view(dtype) reads the bits of numbers, which compiled functions cannot do; do it outside, or convert with .to()")
    if x._dtype is dtype:
        return x
    have, want = x._dtype.itemsize, dtype.itemsize
    if have != want and (not x.ndim or x.stride(-1) != 1 or x.shape[-1] * have % want):
        raise AotgradRuntimeError(f"{user_loc()}: view({dtype.name}): the last dim of {x._dtype.name} must have stride 1 and a size that is a whole number of "
                                  f"{dtype.name}, not size {list(x.shape)[-1:]} and stride {list(x.stride())[-1:]}")
    out = ledger.detach(x)
    out._data = out._data.view(dtype.np)
    return out


def _shown(self: Any, out: Any) -> Any:
    """``out``, a reshaped ``self``, where it is a view."""
    if type(self) is Tensor and type(out) is Tensor and not isinstance(out._extra, ViewExtra):
        raise AotgradRuntimeError("view size is not compatible with input tensor's size and stride (at least one dimension spans across two contiguous subspaces). "
                                  f"Use .reshape(...) instead. ({user_loc()})")
    return out


def _select(self: Any, dim: int, index: int) -> Any:
    """The slice at ``index`` along ``dim``, without that dim."""
    if not self.ndim:
        raise AotgradDimError("select() cannot be applied to a 0-dim tensor")
    return indexing.getitem(self, (*[slice(None)] * norm_dim(dim, self.ndim), index))


def _masked_select(self: Any, mask: Any) -> Any:
    """The elements where ``mask`` holds, as a vector; the two broadcast."""
    if mask._dtype is not bool_:
        raise AotgradDTypeError(f"{user_loc()}: masked_select: expected BoolTensor for mask, not {mask._dtype.name}; compare it with 0 first")
    if tuple(mask.shape) != tuple(self.shape):
        both = run(TORCH["where"], {"condition": mask, "input": self, "other": self})
        self, mask = both, run(TORCH["expand"], {"input": mask, "sizes": (tuple(both.shape),)})
    return indexing.getitem(self, mask, "mask")


def _nonzero(self: Any, as_tuple: bool = False) -> Any:
    """Places of the elements that are not 0: one row each, or one tensor per dim."""
    if isinstance(self, Traced):
        raise AotgradTypeError(f"{user_loc()}: nonzero: how many elements there are is known only when the code runs; use ag.where or a mask")
    data = self._data
    if as_tuple:
        return tuple([self._wrap(i) for i in np.atleast_1d(data).nonzero()])
    return self._wrap(np.stack(data.nonzero()).T if data.ndim else np.zeros((int(data != 0), 0), np.int64))


def _no_dim(self: Any) -> Any:
    return run(NUMPY["transpose"], {"input": self})


def _conjugate_transpose(self: Any) -> Any:
    return conj(_matrix_transpose(self))


def _matrix_transpose(self: Any) -> Any:
    if self.ndim < 2:
        raise AotgradArgumentError(f"mT needs a matrix or a batch of them, not rank {self.ndim}")
    return run(TORCH["transpose"], {"input": self, "dim0": -1, "dim1": -2})


def _where_method(self: Any, condition: Any, other: Any) -> Any:
    """This tensor where ``condition`` (bools) holds, else ``other``: an array or a number. The three broadcast; the dtype is the common one.

    >>> ag.tensor([1.0, -2.0]).where(ag.tensor([True, False]), 0.0)
    tensor([1., 0.])
    """
    return run(TORCH["where"], {"condition": condition, "input": self, "other": other})


def _cpu(self: Any) -> Any:
    """The tensor itself: the CPU is all there is."""
    return self


def _view_as(self: Any, other: Any) -> Any:
    """The same memory in the shape of ``other``, as ``view(other.shape)``: ``RuntimeError`` where sizes or strides do not allow it."""
    return _view(self, tuple(other.shape))


def _reshape_as(self: Any, other: Any) -> Any:
    """The tensor in the shape of ``other``, as ``reshape(other.shape)``: a view where the strides allow it, else a copy; ``RuntimeError`` where sizes do not fit.

    >>> ag.arange(4.0).reshape_as(ag.zeros(2, 2))
    tensor([[0., 1.],
            [2., 3.]])
    """
    return run(TORCH["reshape"], {"input": self, "shape": (tuple(other.shape),)})


def _expand_as(self: Any, other: Any) -> Any:
    """The tensor broadcast to the shape of ``other``, as ``expand(other.shape)``: a view; ``RuntimeError`` where it does not broadcast.

    >>> ag.tensor([[1.0], [2.0]]).expand_as(ag.zeros(2, 2))
    tensor([[1., 1.],
            [2., 2.]])
    """
    return run(TORCH["expand"], {"input": self, "sizes": (tuple(other.shape),)})


def _type_as(self: Any, other: Any) -> Any:
    """The tensor in the dtype of ``other``: itself where it has that dtype already.

    >>> ag.tensor([1, 2]).type_as(ag.tensor(0.5))
    tensor([1., 2.])
    """
    return _cast(self, other._dtype)


def _to_dtype(name: str, dtype: str) -> Method:
    def convert(self: Any, memory_format: Any = None) -> Any:
        return _cast(self, dtype) if memory_format is None else _to(self, dtype, memory_format=memory_format)

    convert.__doc__ = (f"The tensor as {dtype}, in the same shape, and the same memory order where ``memory_format`` says nothing else: itself where it is so already. "
                       "Floats become integers by leaving out what is behind the point. The gradient comes back in the dtype of the tensor.")
    return convert


def _extra_methods() -> dict[str, Any]:
    out: dict[str, Any] = {
        "T": property(_no_dim, doc="All dims in reverse order."), "mT": property(_matrix_transpose, doc="The last two dims exchanged."),
        "at": property(indexing.At, doc="``x.at[i].set(v)`` and its kin: updated copies."), "clone": _clone,
        "register_hook": hooks.register_hook, "retain_grad": hooks.retain_grad, "grad_fn": property(hooks.grad_fn, doc=hooks.grad_fn.__doc__),
        "register_post_accumulate_grad_hook": hooks.register_post_accumulate_grad_hook, "detach": ledger.detach, "detach_": ledger.detach_, "backward": backward.method,
        "data": property(ledger.get_data, ledger.set_data(inplace.store), doc=ledger.get_data.__doc__),
        "grad": property(ledger.get_grad, ledger.set_grad, lambda self: ledger.set_grad(self, None), doc=ledger.get_grad.__doc__),
        "contiguous": contiguous, "to": _to, "type": _type,
        "astype": _cast,
        "fill_": _fill, "zero_": _zero, "copy_": _copy, "select": _select, "nonzero": _nonzero, "view": _view, "cpu": _cpu, "positive": positive,
        "where": _where_method,
        "H": property(_conjugate_transpose, doc="The conjugate transpose of a matrix."), "real": property(lambda self: real(self), doc="The real part."),
        "imag": property(lambda self: imag(self), doc="The imaginary part of a complex tensor."), "conj": conj,
        "view_as": _view_as, "reshape_as": _reshape_as, "expand_as": _expand_as, "type_as": _type_as, "masked_select": _masked_select,
        "allclose": allclose, "equal": equal, "is_nonzero": is_nonzero,
        "is_same_size": is_same_size, "diff": PUBLIC["diff"],
        "new_zeros": _new("new_zeros", 0), "new_ones": _new("new_ones", 1), "new_empty": _new("new_empty", 0), "new_tensor": _new_tensor,
        "new_full": _new_full,
    }
    out.update((name, _to_dtype(name, dtype)) for name, dtype in (("half", "float16"), ("float", "float32"), ("double", "float64"), ("int", "int32"), ("long", "int64"),
        ("short", "int16"), ("bool", "bool"), ("bfloat16", "bfloat16"), ("byte", "uint8"), ("char", "int8"),
        ("cfloat", "complex64"), ("cdouble", "complex128")))
    return out


def _new(name: str, value: Any) -> Method:
    @factories.on_cpu
    def make(self: Any, *size: Any, dtype: Any = None, requires_grad: bool = False) -> Any:
        return factories.filled(name, factories.shape_of(size, name), value, dtype or self._dtype, requires_grad)

    make.__doc__ = f"""A fresh tensor of shape ``size`` (whole numbers, or one tuple of them), filled with {value}, of this tensor's dtype where ``dtype`` does
    not say another. It is no part of this tensor's graph. ``requires_grad`` of a dtype that is no float, and a negative size, raise ``RuntimeError``.

    >>> ag.tensor([1.5, 2.5], dtype=ag.float64).{name}(2, 1)
    tensor([[{value}.],
            [{value}.]], dtype=aotgrad.float64)
    """
    return make


@factories.on_cpu
def _new_full(self: Any, size: Any, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False) -> Any:
    """A fresh tensor of shape ``size``, filled with ``fill_value``, of this tensor's dtype where ``dtype`` does not say another; the rest as ``new_zeros``.

    >>> ag.tensor([1, 2]).new_full((2,), 7)
    tensor([7, 7])
    """
    return factories.filled("new_full", factories.shape_of((size,), "new_full"), fill_value, dtype or self._dtype, requires_grad)


@factories.on_cpu
def _new_tensor(self: Any, data: Any, dtype: Any = None, requires_grad: bool = False) -> Any:
    """A fresh tensor with a copy of ``data`` (numbers, lists of them, an array), of this tensor's dtype where ``dtype`` does not say another.

    >>> ag.tensor([1.5]).new_tensor([1, 2])
    tensor([1., 2.])
    """
    return factories.tensor(data, dtype=dtype or self._dtype, requires_grad=requires_grad)


# ---- NumPy's meanings ---------------------------------------------------------------------------------------------------------------------

_ARRAY_METHODS = ("all", "any", "argmax", "argmin", "clip", "cumprod", "cumsum", "diagonal", "dot", "max", "mean", "min", "prod", "repeat", "round",
    "squeeze", "std",
                  "sum", "swapaxes", "take", "trace", "transpose", "var")


def _array_astype(self: Any, dtype: Any, order: str = "K", casting: str = "unsafe", subok: bool = True, copy: bool = True) -> Any:
    if self._dtype is as_dtype(dtype):
        return call(TORCH["clone"], (self,), {}) if copy else self
    return _cast(self, dtype)


def _array_flatten(self: Any, order: str = "C") -> Any:
    return call(TORCH["clone"], (ordered_reshape(self, None, order),), {})


def _array_reshape(self: Any, *shape: Any, order: str = "C", copy: Any = None) -> Any:
    return ordered_reshape(self, shape, order)


def _array_ravel(self: Any, order: str = "C") -> Any:
    return ordered_reshape(self, None, order)


def _array_copy(self: Any, order: str = "C") -> Any:
    out = call(TORCH["clone"], (self,), {})
    if order in ("K", "A") or isinstance(out, Dual):
        return out
    return contiguous(out)


def _array_fill(self: Any, value: Any) -> None:
    indexing.setitem(self, Ellipsis, value)


def _no_sort(name: str) -> Method:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise AotgradTypeError(f"{user_loc()}: .{name}() of an array under differentiation or compilation is not available yet")

    return method


def _no_attribute(name: str) -> property:
    """What NumPy's arrays have and can be given, and these have not: set, it would be an attribute like any other, and lost."""
    def refuse(self: Any, *value: Any) -> Any:
        raise AotgradAttributeError(f"{user_loc()}: an array under differentiation or compilation has no .{name}; "
                                    + ("x.ravel() reads and x[...] = v writes all elements" if name == "flat" else "use indexing and NumPy's functions"))

    return property(refuse, refuse, doc=f"Not available: ``{name}`` of NumPy's arrays.")


def _array_table() -> dict[str, Any]:
    out: dict[str, Any] = {name: dispatch.function(NUMPY[name], name) for name in _ARRAY_METHODS if name in NUMPY}
    out.update((name, REDUCTIONS[name]) for name in ("all", "any", "max", "mean", "min", "prod", "std", "sum", "var"))
    out.update(astype=_array_astype, flatten=_array_flatten, reshape=_array_reshape, ravel=_array_ravel, fill=_array_fill, copy=_array_copy,
               nonzero=lambda self: tuple(x._data for x in _nonzero(self, True)), sort=_no_sort("sort"), argsort=_no_sort("argsort"), conj=lambda self: self,
               conjugate=lambda self: self)
    out.update((name, _no_attribute(name)) for name in ("flat", "base", "ctypes", "flags"))
    return out


# ---- what the runtime gets --------------------------------------------------------------------------------------------------------------------

def _converted(x: Any, dtype: DType) -> Any:
    return _cast(x, dtype)


def table() -> OpsTable:
    """The operations of tensors."""
    methods, registered = _operators(), {}
    for name, public in TORCH.items():
        front = public.op.front
        if front is None or not (front.method or not front.function) or name in ("getitem", "setitem", "masked_set"):
            continue
        registered[name] = FUNCTIONS[name]
        if front.inplace:
            registered[f"{name}_"] = _inplace_method(public, f"{name}_")
    methods.update({**registered, **FURTHER_METHODS, **RARER_METHODS, **ORDERED_METHODS, **DRAW_METHODS, **_extra_methods()})
    return OpsTable(add=methods["__add__"], methods=methods, array_methods=_array_table(), cast=_converted,
                    guard=lambda method, name: method if registered.get(name) is method or hasattr(method, "_told") else told_method(method, name))


def _in_place_function(public: Public, name: str) -> Method:
    def fn(input: Any, *args: Any, **kwargs: Any) -> Any:
        return written(input, call(public, (input, *args), kwargs), name)

    fn.__name__ = fn.__qualname__ = name
    fn.__module__ = "aotgrad"
    fn.__doc__, fn.__signature__ = _in_place_doc(public), public.signature  # type: ignore[attr-defined]
    return fn


def _in_place_functions() -> dict[str, Method]:
    """``ag.exp_(x)``: torch has this form of the functions of one tensor, and of a few more."""
    of_one = [n for n, p in TORCH.items() if p.op.front is not None and p.op.front.inplace and p.op.layouts == "elementwise" and len(p.tensors) == 1]
    return {f"{n}_": _in_place_function(TORCH[n], f"{n}_") for n in (*of_one, "clamp", "clip", "clamp_min", "clamp_max", "xlogy")}


ATTRIBUTES: dict[str, Any] = {
    "numel": numel, "is_tensor": is_tensor, "is_floating_point": is_floating_point, "equal": equal, "allclose": allclose, "detach": detach,
    "is_complex": is_complex, "is_signed": is_signed, "is_inference": is_inference, "is_same_size": is_same_size, "is_nonzero": is_nonzero, "positive": positive,
    "real": real, "imag": imag, "conj": conj, "fill_": _fill, "zero_": _zero, "detach_": ledger.detach_, **_in_place_functions(),
    "select": _select, "nonzero": _nonzero, "clone": _clone,
    "masked_select": _masked_select, **PUBLIC, **FURTHER, **RARER, **ORDERED, **DRAWS, "addmv_": FURTHER_METHODS["addmv_"], "logit_": FURTHER_METHODS["logit_"],
    **{name: RARER_METHODS[name] for name in ("gcd_", "index_put_", "lcm_", "ldexp_")},
}
ATTRIBUTES = {name: told(fn, name) for name, fn in ATTRIBUTES.items()}
"""Public functions that are not in the registry."""
