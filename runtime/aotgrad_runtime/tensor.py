"""``Tensor``: a NumPy array with a place on the tape. Everything here is not an operation; operators and methods that compute are installed by the frontend."""

from __future__ import annotations

import copy as copy_module
import operator
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, SupportsIndex

import numpy as np

from . import arrays, dlpack, dtypes, engine, modes, printing, recording, tape, watched
from . import memory_format as mf
from ._methods import TensorMethods
from .arrays import DTYPES, decode, defaults, get_default_dtype, set_default_dtype
from .dtypes import DType
from .errors import AotgradArgumentError, AotgradError, AotgradIndexError, AotgradRuntimeError, AotgradTypeError, AotgradValueError
from .tape import Extra, Node, RemovableHandle, Value

__all__ = [
    "ArrayTensor", "CPU", "Device", "Size", "Tensor", "as_tensor", "from_dlpack", "from_numpy", "get_default_dtype", "make_output", "make_view", "set_default_dtype",
    "tensor", "wrap",
]

Array = np.ndarray[Any, Any]
_new: Final = object.__new__
_NATIVE_DEFAULT: Final = (dtypes.int64, dtypes.bool_)


class Size(tuple[int, ...]):
    """The shape of a tensor: a tuple that can count its elements."""

    __slots__ = ()

    def numel(self) -> int:
        """The number of elements."""
        n = 1
        for size in self:
            n *= size
        return n

    def __add__(self, other: Any) -> Any:
        return Size(tuple.__add__(self, other))

    def __radd__(self, other: Any) -> Any:
        return Size(other + tuple(self))

    def __mul__(self, count: SupportsIndex) -> Any:
        return Size(tuple.__mul__(self, count))

    __rmul__ = __mul__

    def __getitem__(self, index: Any) -> Any:
        found = tuple.__getitem__(self, index)
        return Size(found) if isinstance(index, slice) else found

    def __repr__(self) -> str:
        return f"aotgrad.Size({list(self)})"


class Device:
    """Where a tensor lives: always the processor. Equal to the string ``"cpu"``.

    >>> import aotgrad as ag
    >>> ag.ones(2).to(ag.device("cpu")).device
    device(type='cpu')
    """

    __slots__ = ()

    def __init__(self, type: object = "cpu", index: object = None) -> None:
        if str(type) not in ("cpu", "cpu:0") or index not in (None, 0):
            raise AotgradArgumentError(f"device {str(type)!r} is not there: aotgrad runs on the CPU; use 'cpu', or leave the device out")

    type: Final = "cpu"
    index: Final = None

    def __eq__(self, other: object) -> bool:
        return str(other) == "cpu"

    def __hash__(self) -> int:
        return hash("cpu")

    def __str__(self) -> str:
        return "cpu"

    def __repr__(self) -> str:
        return "device(type='cpu')"


CPU: Final = Device()


class _DLPackError(AotgradError, BufferError):
    """What cannot be exported."""


def _dim(dim: SupportsIndex, ndim: int) -> int:
    if not hasattr(dim, "__index__"):
        raise AotgradTypeError(f"a dimension is a whole number, not {type(dim).__name__} ({dim!r})")
    d, span = dim.__index__(), max(ndim, 1)
    if not -span <= d < span:
        raise AotgradIndexError(f"Dimension out of range (expected to be in range of [{-span}, {span - 1}], but got {d})")
    return d % span


class Tensor(Value, TensorMethods):
    """A NumPy array on the tape. ``Tensor(values)`` copies values as floats of the default dtype; ``aotgrad.tensor`` keeps their type.

    Shares memory with NumPy, takes attributes and weak references, hashes by identity.
    """

    __slots__ = ()
    __array_priority__ = 1000
    _copies_grad = True

    def __new__(cls, *args: Any) -> Any:
        if len(args) == 1 and not isinstance(args[0], int):
            data = arrays.array_of(args[0], defaults.dtype)
        else:
            data = np.empty(tuple([operator.index(n) for n in args]), defaults.dtype.np)
        return wrap(data, cls)

    def __init__(self, *args: Any) -> None:
        pass

    @classmethod
    def _wrap(cls, data: Array) -> Any:
        """A new leaf of this class's kind around ``data`` (not copied)."""
        return wrap(data, cls._value_type)

    # Shape and memory ---------------------------------------------------------------------------------------------------------------------------------

    @property
    def _followed(self) -> bool:
        """Whether a derivative is being computed through this value: it would be lost where the numbers leave."""
        return self._requires_grad and modes.state.grad

    @property
    def shape(self) -> Any:
        """The sizes, as ``Size``."""
        return Size(self._data.shape)

    @property
    def dtype(self) -> Any:
        """The element type, an aotgrad ``DType``."""
        return DTYPES[self._data.dtype]

    @property
    def _dtype(self) -> DType:  # the DType on every subclass, also where ``dtype`` means NumPy's
        return DTYPES[self._data.dtype]

    @property
    def ndim(self) -> int:
        return self._data.ndim

    def dim(self) -> int:
        """The number of dimensions."""
        return self.ndim

    ndimension = dim

    @property
    def device(self) -> Device:
        """The processor: aotgrad has no other device."""
        return CPU

    @property
    def is_cuda(self) -> bool:
        return False

    def numel(self) -> Any:
        """The number of elements."""
        return Size(self.shape).numel()

    def nelement(self) -> Any:
        """The number of elements."""
        return self.numel()

    def _size(self, dim: SupportsIndex | None = None) -> Any:
        shape = self.shape
        return shape if dim is None else shape[_dim(dim, len(shape))]

    _size.__name__, _size.__qualname__ = "size", "Tensor.size"
    size: Any = _size  # a method here, an int property on ArrayTensor

    def stride(self, dim: SupportsIndex | None = None) -> Any:
        """Steps between neighbours, in elements, per dimension or of one."""
        data = self._data
        if data.size or any(data.strides):
            item = data.itemsize
            strides = tuple([s // item for s in data.strides])
        else:  # NumPy gives fresh empty arrays zero strides
            strides = mf.format_strides(data.shape)
        return strides if dim is None else strides[_dim(dim, len(strides))]

    def storage_offset(self) -> int:
        """Elements between the start of the memory block and the first element."""
        data = self._data
        return (_address(data) - _address(_owner(data))) // data.itemsize

    def is_contiguous(self, memory_format: mf.MemoryFormat = mf.contiguous_format) -> bool:
        """Whether the elements are dense in ``memory_format``."""
        if mf.check(memory_format) is mf.preserve_format:
            memory_format = mf.contiguous_format
        return mf.is_contiguous(self.shape, self.stride(), memory_format)

    def element_size(self) -> int:
        """Bytes per element."""
        return self._dtype.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.element_size()

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return int(self._data.nbytes)

    def data_ptr(self) -> int:
        """Address of the first element; 0 if there is none."""
        tape.extra_of(self).pointed = True
        watched.give_away(self)
        return _address(self._data) if self._data.size else 0

    def is_floating_point(self) -> bool:
        return self._dtype.is_floating_point

    def is_complex(self) -> bool:
        return self._dtype.is_complex

    def is_signed(self) -> bool:
        return self._dtype.is_signed

    # Tape ---------------------------------------------------------------------------------------------------------------------------------------------

    @property
    def grad_fn(self) -> Node | None:
        """The node that made this tensor; None for leaves."""
        return self._node

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation made this tensor."""
        return self._node is None

    @property
    def output_nr(self) -> int:
        """Which output of ``grad_fn`` this tensor is."""
        return self._index

    @property
    def requires_grad(self) -> bool:
        """Whether operations on this tensor are recorded. Can be set on leaves of a float or complex dtype."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise AotgradRuntimeError(f"requires_grad must be a bool, not {type(value).__name__}")
        if self._node is not None:
            if value:
                return
            raise AotgradRuntimeError(
                "you can only change requires_grad flags of leaf variables. If you want to use a computed variable in a subgraph that doesn't require "
                "differentiation use var_no_grad = var.detach().")
        if value and not self._dtype.is_differentiable:
            raise AotgradRuntimeError(f"only Tensors of floating point and complex dtype can require gradients, not {self._dtype.name}; convert it first")
        if value and self.is_inference() and not modes.state.inference:
            raise AotgradRuntimeError("Setting requires_grad=True on inference tensor outside InferenceMode is not allowed. Clone it to get a normal tensor.")
        self._requires_grad = value
        tape.follow(self)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Sets ``requires_grad`` and returns the tensor. Raises ``AotgradTypeError`` for what is no bool."""
        if not isinstance(requires_grad, bool):
            raise AotgradTypeError(f"requires_grad_(): argument 'requires_grad' (position 1) must be bool, not {type(requires_grad).__name__}")
        self.requires_grad = requires_grad
        return self

    @property
    def grad(self) -> Any:
        """The gradient accumulated so far, or None. Assign a tensor of the same shape and dtype, or None."""
        extra = self._extra
        return None if extra is None else extra.grad

    @grad.setter
    def grad(self, value: Any) -> None:
        if value is not None:
            if not isinstance(value, Value):
                raise AotgradTypeError(f"assigned grad expected to be a Tensor or None but got grad of type {type(value).__name__}")
            if value is self:
                raise AotgradRuntimeError("can't assign Variable as its own grad; assign a clone")
            if tuple(value.shape) != tuple(self.shape):
                raise AotgradRuntimeError(f"attempting to assign a gradient of size '{list(value.shape)}' to a tensor of size '{list(self.shape)}'. "
                                          "Please ensure that the gradient and the tensor are the same size")
            if value._dtype is not self._dtype:
                raise AotgradRuntimeError(f"attempting to assign a gradient with dtype '{value._dtype.name}' to a tensor with dtype '{self._dtype.name}'. "
                                          "Please convert the gradient first")
        if value is not None or self._extra is not None:
            tape.extra_of(self).grad = value

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def retain_grad(self) -> None:
        """Keeps the gradient of an intermediate in ``.grad``; leaves do so anyway."""
        if not self._requires_grad:
            raise AotgradRuntimeError("can't retain_grad on Tensor that has requires_grad=False")
        extra = tape.extra_of(self)
        if self._node is not None and not extra.retains:
            extra.retains = True
            tape.node_extra_of(self._node).retained[self._index] = weakref.ref(self)

    @property
    def retains_grad(self) -> bool:
        """Whether ``retain_grad`` was called on this intermediate."""
        return self._extra is not None and self._extra.retains

    def register_hook(self, hook: Callable[[Any], Any]) -> RemovableHandle:
        """Calls ``hook(grad)`` when this tensor's gradient is complete; a returned tensor replaces it. Returns a handle with ``remove()``."""
        if not self._requires_grad:
            raise AotgradRuntimeError("cannot register a hook on a tensor that doesn't require gradient")
        if self._node is not None:
            hooks = tape.node_extra_of(self._node).tensor_hooks.setdefault(self._index, tape.Hooks())
        else:
            extra = tape.extra_of(self)
            hooks = extra.hooks = tape.Hooks() if extra.hooks is None else extra.hooks
        return hooks.register(hook)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Any], Any]) -> RemovableHandle:
        """Calls ``hook(tensor)`` after a leaf's ``.grad`` was updated."""
        if not self._requires_grad:
            raise AotgradRuntimeError("cannot register a hook on a tensor that doesn't require gradient")
        if self._node is not None:
            raise AotgradRuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors; use register_hook")
        extra = tape.extra_of(self)
        extra.post_hooks = tape.Hooks() if extra.post_hooks is None else extra.post_hooks
        return extra.post_hooks.register(hook)

    def backward(self, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False, inputs: Any = None) -> None:
        """Adds the gradient of this tensor into ``.grad`` of the leaves it depends on (or of ``inputs``); see ``autograd.backward``.

        A tensor with more than one element needs ``gradient``, of its shape.
        """
        engine.backward([self], [gradient], retain_graph, create_graph, inputs)

    def detach(self) -> Any:
        """The same memory without a graph; in-place changes of one are seen and counted by the other."""
        out = self._wrap(self._data)
        tape.extra_of(out).cell = tape.cell_of(self)
        if self.is_inference():
            out._extra.inference = True
        return out

    def detach_(self) -> Tensor:
        """Cuts this tensor from its graph, in place."""
        if self._extra is not None and self._extra.base is not None:
            raise AotgradRuntimeError("Can't detach views in-place. Use detach() instead.")
        self._node, self._index, self._requires_grad = None, 0, False
        if self._extra is not None:
            self._extra.retains = False
        return self

    @property
    def data(self) -> Any:
        """The same memory without a graph, and without a shared version counter. Assigning swaps the memory under this tensor."""
        return watched.share(self, self._wrap(self._data))

    @data.setter
    def data(self, value: Any) -> None:
        if not isinstance(value, Value):
            raise AotgradTypeError(f"data must be a Tensor, but got {type(value).__name__}")
        if self._requires_grad and not value._dtype.is_differentiable:
            raise AotgradRuntimeError(f"data set to a tensor that requires gradients must be floating point or complex dtype, not {value._dtype.name}")
        self._data = value._data
        if self._extra is not None and self._extra.cell is not None:
            self._extra.cell.prune()  # or it would hold the memory of before
            self._extra.cell.memory, self._extra.pointed = None, False
        watched.share(value, self)

    @property
    def _version(self) -> int:
        """How often the memory was changed in place, through this tensor or any other that shares it."""
        if self.is_inference():
            raise AotgradRuntimeError("Inference tensors do not track version counter.")
        extra = self._extra
        return 0 if extra is None or extra.cell is None else extra.cell.version

    def _bump_version(self) -> None:
        tape.cell_of(self).bump()

    @property
    def _base(self) -> Any:
        """The tensor this one is a view of, or None."""
        return None if self._extra is None else self._extra.base

    def _is_view(self) -> bool:
        return self._base is not None

    def is_inference(self) -> bool:
        """Whether the tensor was made inside ``inference_mode``."""
        return self._extra is not None and self._extra.inference

    # To NumPy, Python and others ----------------------------------------------------------------------------------------------------------------------

    def _read(self) -> Array:
        """The array, for somebody outside: a trace then knows that its numbers were used."""
        data: Array = self._data  # raises in a traced value, which is none to be noted
        if modes.flags.noting:
            modes.note(self)
        return data

    def _plain(self, what: str) -> Array:
        """The array, where nothing is lost by taking it off the tape."""
        if self._requires_grad:
            raise AotgradRuntimeError(f"Can't call {what} on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        return self._read()

    def numpy(self, *, force: bool = False) -> Array:
        """The ndarray itself, sharing memory. A tensor that requires grad must be detached first, or ``force=True`` does it."""
        if self._dtype is dtypes.bfloat16:
            raise AotgradTypeError("NumPy has no bfloat16; convert to float32 first")
        data: Array = self._read() if force else self._plain("numpy()")
        watched.give_away(self)
        return data

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        data = decode(self._plain("numpy()"))
        if dtype is None or np.dtype(dtype) == data.dtype:
            if not copy:
                watched.give_away(self)
            return data.copy() if copy else data
        if copy is False:
            raise AotgradValueError(f"a {data.dtype} tensor cannot become {np.dtype(dtype)} without a copy; drop copy=False")
        return data.astype(dtype)

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None) -> Any:
        if self._requires_grad:
            raise _DLPackError("Can't export tensors that require gradient, use tensor.detach()")
        watched.give_away(self)
        return dlpack.exported(self._read(), self._dtype is dtypes.bfloat16, stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # kDLCPU

    def item(self) -> Any:
        """The only element, as a Python number."""
        data = self._read()
        if data.size != 1:
            raise AotgradRuntimeError(f"a Tensor with {data.size} elements cannot be converted to Scalar")
        return decode(data).item()

    def tolist(self) -> Any:
        """Nested lists of Python numbers; a number for a 0-d tensor."""
        return decode(self._read()).tolist()

    def _as_number(self, kind: str) -> Any:
        if self._data.size != 1:
            raise AotgradValueError(f"only one element tensors can be converted to Python scalars, not one of shape {list(self._data.shape)}")
        if self._requires_grad:
            warnings.warn(f"Converting a tensor with requires_grad=True to a Python {kind} may lead to unexpected behavior: the number is not on the tape.\n"
                          "Consider using tensor.detach() first.", stacklevel=3)
        value = decode(self._read()).item()
        if isinstance(value, complex) and kind != "complex":
            if value.imag != 0:
                raise AotgradRuntimeError(f"a complex tensor cannot become a Python {kind}: its imaginary part is {value.imag}; take .real first")
            return value.real
        return value

    def __float__(self) -> float:
        return float(self._as_number("float"))

    def __int__(self) -> int:
        return int(self._as_number("int"))

    def __complex__(self) -> complex:
        return complex(self._as_number("complex"))

    def __index__(self) -> int:
        if self._data.size != 1 or self._dtype.kind not in "iub" or self._dtype is dtypes.bfloat16:
            raise recording.refuse(AotgradTypeError(f"{recording.user_line()}: only integer tensors of a single element can be converted to an index"))
        return int(self._read().item())

    def __bool__(self) -> bool:
        if self._data.size != 1:
            which = "no values" if not self._data.size else "more than one value"
            raise AotgradRuntimeError(f"Boolean value of Tensor with {which} is ambiguous")
        return bool(decode(self._read()).item())

    def __len__(self) -> int:
        shape = self.shape
        if not shape:
            raise AotgradTypeError("len() of a 0-d tensor")
        return int(shape[0])

    def __iter__(self) -> Iterator[Any]:
        if not self.ndim:
            raise AotgradTypeError("iteration over a 0-d tensor")
        get: Any = operator.getitem  # installed
        return iter([get(self, i) for i in range(len(self))])

    def __hash__(self) -> int:
        return id(self)

    def __format__(self, spec: str) -> str:
        if not self.ndim and type(self) is Tensor:
            return format(self.item(), spec)
        return object.__format__(self, spec)

    def __repr__(self) -> str:
        return _text(self)

    # Copies -------------------------------------------------------------------------------------------------------------------------------------------

    def __copy__(self) -> Any:
        out = watched.share(self, wrap(self._read(), type(self)))
        out._requires_grad = self._requires_grad
        out.__dict__.update(self.__dict__)
        return out

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self._node is not None:
            raise AotgradRuntimeError("Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment. "
                                      "Detach or clone().detach() this tensor first.")
        if id(self) in memo:
            return memo[id(self)]
        out = memo[id(self)] = wrap(_copied(self._read(), memo), type(self))
        out._requires_grad = self._requires_grad
        if self.grad is not None and self._copies_grad:
            tape.extra_of(out).grad = copy_module.deepcopy(self.grad, memo)
        out.__dict__.update(copy_module.deepcopy(self.__dict__, memo))
        return out

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        if protocol.__index__() >= 5:  # buffers may be given out of band, not copied
            watched.give_away(self)
        return (_rebuild, (type(self), self._read(), self.stride(), self._requires_grad, self.__dict__))


def _address(data: Array) -> int:
    return int(data.__array_interface__["data"][0])


def _owner(data: Array) -> Array:
    """The array whose memory ``data`` shows."""
    while isinstance(base := data.base, np.ndarray) or isinstance(base := getattr(base, "base", None), np.ndarray):
        data = base
    return data


def _copied(data: Array, memo: dict[int, Any]) -> Array:
    """``data`` in a copy of the memory it is part of, which is copied once for all that share it."""
    owner = _owner(data)
    if not owner.size or not (owner.flags.c_contiguous or owner.flags.f_contiguous):
        return _clone(data)
    new: Array | None = memo.get(id(owner))
    if new is None:
        new = memo[id(owner)] = owner.copy(order="K")
        memo.setdefault(id(memo), []).append(owner)  # its number must stay its own
    flat = new if new.flags.c_contiguous else new.T
    out: Array = np.ndarray(data.shape, data.dtype, buffer=flat, offset=_address(data) - _address(owner), strides=data.strides)
    return out


def _clone(data: Array) -> Array:
    item = data.itemsize
    return mf.copy_to_strides(data, mf.preserved_strides(data.shape, [s // item for s in data.strides]))


def _rebuild(cls: type[Tensor], data: Array, strides: tuple[int, ...], requires_grad: bool, attributes: dict[str, Any]) -> Any:
    """A tensor from its pickle. NumPy pickles keep values only in C or Fortran order, so the strides are given back here."""
    if data.size and mf.is_non_overlapping_and_dense(data.shape, strides):
        data = mf.copy_to_strides(data, strides)
    out = wrap(data, cls)
    out._requires_grad = requires_grad
    out.__dict__.update(attributes)
    return out


def _suffixes(value: Any) -> list[str]:
    node = value._node
    if node is not None:
        return [f"grad_fn=<{node.name}>"]
    return ["requires_grad=True"] if value._requires_grad else []


def _text(value: Tensor) -> str:
    """PyTorch's printed form. The dtype shows unless values tell it; an empty tensor has none, and shows its size."""
    data, dtype = value._data, value._dtype
    plain = type(value) is Tensor or type(value)._value_type is not type(value)
    prefix = "tensor(" if plain else f"{type(value).__name__}("
    suffixes = []
    if not data.size:
        if data.ndim != 1:
            suffixes.append(f"size={data.shape}")
        shown = dtype is not defaults.dtype
    else:
        shown = dtype not in (defaults.dtype, defaults.complex, *_NATIVE_DEFAULT)
    if shown:
        suffixes.append(f"dtype={dtype}")
    body = printing.array_text(decode(data), len(prefix))
    return printing.with_suffixes(prefix + body, suffixes + _suffixes(value), len(prefix))


class ArrayTensor(Tensor):
    """A taped value inside a call that was entered with NumPy or Python values: attributes, methods and printed form mean NumPy's."""

    __slots__ = ()

    @property
    def shape(self) -> Any:
        return self._data.shape

    @property
    def dtype(self) -> Any:
        """The NumPy dtype."""
        return self._data.dtype

    size = property(lambda self: self._data.size, doc="The number of elements.")
    nbytes = property(lambda self: self._data.nbytes, doc="Bytes of all elements.")
    itemsize = property(lambda self: self._data.itemsize, doc="Bytes per element.")
    strides = property(lambda self: self._data.strides, doc="Steps between neighbours, in bytes.")

    def _leave(self, what: str) -> None:
        if self._followed:
            raise recording.refuse(AotgradTypeError(
                f"{recording.user_line()}: {what} would take the numbers of a value that is being differentiated, and its derivative would be lost. Stay with the value: "
                "ag and NumPy functions take it, those of math and of SciPy do not (np.sin, ag.logsumexp, ag.erf); build arrays with np.array([a, b]), "
                "write into y = np.zeros_like(x) with y[i] = v. To look at the numbers, or to treat them as constants, use x.detach()"))

    def _plain(self, what: str) -> Array:
        self._leave(what)
        return self._data

    def item(self) -> Any:
        """The only element, as a Python number."""
        self._leave("item()")
        return super().item()

    def tolist(self) -> Any:
        """Nested lists of Python numbers; a number for a 0-d array."""
        self._leave("tolist()")
        return super().tolist()

    def _as_number(self, kind: str) -> Any:
        self._leave(f"{kind}()")
        if self._data.size != 1:
            raise AotgradTypeError(f"only length-1 arrays can be converted to Python scalars, not one of shape {self._data.shape}")
        value = decode(self._data).item()
        if isinstance(value, complex) and kind != "complex":
            raise AotgradTypeError(f"a complex array cannot become a Python {kind}; take .real first")
        return value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if self._followed:
            raise AotgradTypeError(
                f"{recording.user_line()}: a plain NumPy array (storing into an array, np.float64, a function of SciPy, a list where NumPy wants an array, a "
                "constructor imported by its own name) would take the numbers of a value that is being differentiated, and its derivative would be lost. Call "
                "np.array, np.asarray and np.full as np.NAME, build arrays of lists with np.array([a, b]) or np.stack, write into y = np.zeros_like(x) or "
                "np.zeros_like(x, shape=(n,)) with y[i] = v; to treat the numbers as constants, use x.detach()")
        return super().__array__(dtype, copy)

    def __round__(self, digits: int | None = None) -> Any:
        if digits is None and self._followed or self.ndim:
            raise AotgradTypeError(f"{recording.user_line()}: round() makes a Python integer, which has no derivative and no dims; use np.round(x) or ag.round(x)")
        return round(self._data.item()) if digits is None else np.round(self, digits)

    def __bool__(self) -> bool:
        if self._data.size != 1:
            raise AotgradValueError("The truth value of an array with more than one element is ambiguous. Use a.any() or a.all()" if self._data.size else
                                    "The truth value of an empty array is ambiguous. Use `array.size > 0` to check that an array is not empty.")
        return bool(self._data.item())

    def __repr__(self) -> str:
        text = np.array_repr(self._data).removesuffix(")")
        return ", ".join([text, *_suffixes(self)]) + ")"

    def __str__(self) -> str:
        return str(self._data)

    def __format__(self, spec: str) -> str:
        return format(self._data.item() if not self._data.ndim else self._data, spec)


Tensor._value_type = Tensor
ArrayTensor._value_type = ArrayTensor

_BINARY: Final = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
_OPERATORS: Final = (
    *(f"{side}{name}" for name in _BINARY for side in ("", "r", "i")), "divmod", "rdivmod", "neg", "pos", "abs", "invert", "eq", "ne", "lt", "le", "gt", "ge",
    "getitem", "setitem", "contains", "array_ufunc", "array_function",
)


def _stub(self: Any, *args: Any, **kwargs: Any) -> Any:
    return tape.not_loaded()


for _name in _OPERATORS:  # until install(): a clear error instead of whatever Python or NumPy would make of a foreign object
    setattr(Tensor, f"__{_name}__", _stub)


def drop_stubs() -> None:
    """Removes the stand-ins: an operator the frontend does not install behaves as in any Python class."""
    for name in _OPERATORS:
        delattr(Tensor, f"__{name}__")


# Making tensors ---------------------------------------------------------------------------------------------------------------------------------------


def wrap(data: Array, cls: type[Any] = Tensor) -> Any:
    """A leaf around an ndarray, which is not copied. Results of unrecorded operations; ``data`` must be of a supported dtype in native byte order."""
    value = _new(cls)
    value._data = data
    value._node = value._extra = None
    value._index = 0
    value._requires_grad = False
    if modes.flags.inference and modes.state.inference:
        extra = value._extra = Extra()
        extra.inference = True
    return value


def make_output(data: Array, node: Node, index: int = 0, cls: type[Any] = Tensor) -> Any:
    """Output ``index`` of a recorded operation, around ``data``. Also how a node remakes an output of its own that it saved as an array."""
    value = _new(cls)
    value._data = data
    value._node = node
    value._index = index
    value._requires_grad = True
    value._extra = None
    return value


def make_view(data: Array, base: Any, node: Node | None = None, index: int = 0) -> Any:
    """A tensor whose ``data`` is part of the memory of ``base``: they share the version counter, and ``_base`` names the first owner."""
    out = base._wrap(data)
    if node is not None:
        out._node, out._index, out._requires_grad = node, index, True
    extra = tape.extra_of(out)
    extra.base = base if base._base is None else base._base
    extra.cell = tape.cell_of(base)
    extra.inference = base.is_inference()
    return out


def tensor(data: Any, *, dtype: object = None, requires_grad: bool = False) -> Tensor:
    """A new leaf with a copy of ``data``: numbers, nested sequences, arrays or tensors. Python floats take the default dtype, NumPy values keep theirs.

    Raises ``AotgradValueError`` for ragged sequences, ``AotgradTypeError`` for what is no number.

    >>> tensor([1.0, 2.5], requires_grad=True)
    tensor([1.0000, 2.5000], requires_grad=True)
    """
    out: Tensor = wrap(arrays.array_of(data, None if dtype is None else dtypes.as_dtype(dtype)))
    if requires_grad:
        out.requires_grad = True
    return out


def as_tensor(data: Any, dtype: object = None) -> Tensor:
    """``data`` as a tensor, sharing memory where it can: tensors come back as they are, native ndarrays are wrapped, all else is copied."""
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    if isinstance(data, Tensor) and (wanted is None or wanted is data._dtype):
        return data
    if isinstance(data, Value):
        if data._requires_grad and wanted is not None:
            result: Tensor = tape.cast(data, wanted)
            return result
        return wrap(arrays.array_of(data, wanted))  # type: ignore[no-any-return]
    if isinstance(data, np.ndarray) and (wanted is None or wanted.np == data.dtype) and wanted is not dtypes.bfloat16:
        return wrap(arrays.native(data))  # type: ignore[no-any-return]
    return tensor(data, dtype=wanted)


def from_numpy(array: Array) -> Tensor:
    """A tensor on the memory of ``array``, any strides, negative ones included."""
    if not isinstance(array, np.ndarray):
        raise AotgradTypeError(f"expected np.ndarray (got {type(array).__name__})")
    if not array.dtype.isnative:
        raise AotgradValueError("given numpy array has byte order different from the native byte order; use array.astype(array.dtype.newbyteorder('='))")
    return wrap(arrays.native(array))  # type: ignore[no-any-return]


def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor on the memory of any object with ``__dlpack__`` on the CPU, such as a torch tensor or a JAX array, or of a capsule; ``copy=True``: on its own."""
    if device is not None:
        Device(device)
    array, bits = dlpack.read(ext_tensor.detach() if isinstance(ext_tensor, Tensor) else ext_tensor)
    array = array if bits else arrays.native(array)
    return wrap(array.copy("K") if copy else array)  # type: ignore[no-any-return]
