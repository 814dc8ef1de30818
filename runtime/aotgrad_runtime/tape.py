"""The tape: what every tensor-like value stores, the nodes of the graph, hooks, versions, and the slot the frontend's ops are installed in."""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from . import memory_format as mf
from . import modes, recording, watchers
from .dtypes import DType
from .errors import AotgradError, AotgradRuntimeError, AotgradTypeError

__all__ = [
    "AccumulateGrad", "Edge", "Extra", "FREED", "Freed", "Hooks", "Memory", "NO_EDGE", "Node", "NodeExtra", "RemovableHandle", "SavedArray", "Value", "VersionCell",
    "accumulate", "cell_of", "data_slot", "drift", "edge_of", "edges_of", "extra_of", "follow", "installed", "next_sequence", "node_extra_of",
]

Array = np.ndarray[Any, Any]
Hook = Callable[..., Any]


class _Installed:
    """What the frontend installs (see ``install.py``). Until then every use says so."""

    __slots__ = ("add", "add_into", "cast", "done")
    add: Callable[[Any, Any], Any]
    add_into: Callable[[Any, Any], None] | None
    cast: Callable[[Any, DType], Any] | None
    done: bool

    def __init__(self) -> None:
        self.add, self.add_into, self.cast, self.done = not_loaded, None, None, False


def not_loaded(*_args: Any, **_kwargs: Any) -> Any:
    """Stands for every operator until the frontend has installed its own."""
    raise AotgradError("operations on tensors need the aotgrad frontend, which is not loaded: import aotgrad (aotgrad_runtime alone has no operators)")


installed: Final = _Installed()
_watching: Final = watchers.shared


class Hooks(dict[int, Hook]):
    """Hooks by number, in order of registration. A dict that takes weak references, so that a handle does not keep it alive."""

    __slots__ = ("__weakref__",)

    def register(self, hook: Hook) -> RemovableHandle:
        if not callable(hook):
            raise AotgradTypeError(f"hook must be callable, got {type(hook).__name__}")
        handle = RemovableHandle(self)
        self[handle.id] = hook
        return handle


class RemovableHandle:
    """Removes a hook: ``handle.remove()``, or at the end of a ``with`` block. Removing twice does nothing."""

    __slots__ = ("_hooks", "id")
    _numbers: ClassVar[Any] = itertools.count()

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = weakref.ref(hooks)
        self.id: int = next(self._numbers)

    def remove(self) -> None:
        hooks = self._hooks()
        if hooks is not None:
            hooks.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class SavedArray:
    """An array kept for a backward pass: as it was, whatever happens to its memory later."""

    __slots__ = ("data",)

    def __init__(self, data: Array) -> None:
        self.data = data


def _holders(known: list[SavedArray], place: int) -> int:
    """How often an entry of ``known`` is referenced: told by the same code for one that nobody else holds, below."""
    return sys.getrefcount(known[place])


_UNUSED: Final = _holders([SavedArray(np.empty(0))], 0)


_marks: Final = itertools.count(1)


class Memory:
    """What is known of the memory of a tensor, for those who keep what they made of its numbers (see ``watched``). ``mark`` is another number after every write
    through any tensor, and once it is ``open``: somebody outside may write without a word."""

    __slots__ = ("array", "mark", "open")

    def __init__(self, array: Array) -> None:
        self.array = weakref.ref(array)  # the owner
        self.mark, self.open = 0, False

    def written(self) -> None:
        """Called before a write, and after it: what was read meanwhile may be of either kind. Numbers are never given twice, so that no thread undoes another's."""
        self.mark = next(_marks)


class VersionCell:
    """Counts in-place changes of one storage; all views of it share the cell. It knows which arrays of the storage are saved, and copies them before a write.

    ``views``: the views of this storage that the frontend made, for it to keep up to date. ``memory``: where it is watched. The defaults below keep making one cheap.
    """

    version = 0
    memory: Memory | None = None
    views: list[weakref.ref[Value]] | None = None
    _saved: list[SavedArray] | None = None  # the last is the newest; who is referenced here alone is needed by nobody
    _limit = 4

    def save(self, data: Array) -> SavedArray:
        """``data``, an array of this storage, kept as it is now; several savers of one array share it."""
        known = self._saved
        if known is None:
            known = self._saved = []
        elif known:
            last = known[-1]
            if last.data is data:
                return last
            if len(known) >= self._limit:
                known = self.prune()
                self._limit = max(4, 2 * len(known))
        saved = SavedArray(data)
        known.append(saved)
        return saved

    def prune(self) -> list[SavedArray]:
        """Forgets what no backward pass needs any more; gives the rest."""
        known = self._saved or []
        kept = self._saved = [known[i] for i in range(len(known)) if _holders(known, i) > _UNUSED]
        return kept

    def bump(self) -> None:
        """Called before the memory changes: what is saved gets a copy of its own."""
        self.version += 1
        if self.memory is not None:
            self.memory.written()
        known, self._saved = self._saved, None
        if known:
            for i in range(len(known)):
                if _holders(known, i) > _UNUSED:
                    known[i].data = known[i].data.copy(order="K")


class Extra:
    """What few tensors have. ``base`` is the tensor this one views, ``hooks`` are a leaf's (those of other tensors sit on their node)."""

    grad: Value | None = None
    cell: VersionCell | None = None
    base: Value | None = None
    hooks: Hooks | None = None
    post_hooks: Hooks | None = None
    retains = False
    inference = False
    pointed = False  # its address was given away
    adrift = False  # a view without history of a tensor that requires grad: it does so too, and its gradient goes nowhere
    accumulator: weakref.ref[AccumulateGrad] | None = None


class Value:
    """The storage of ``Tensor``, without its behaviour. Who makes one by ``object.__new__`` sets all of the five slots.

    ``_data`` the ndarray; ``_node`` the node that made it, None for leaves, and ``_index``, which output of that node it is; ``_requires_grad``, true for
    leaves that want a gradient and for everything computed from them; ``_extra``, None until something rare is needed.
    """

    __slots__ = ("__dict__", "__weakref__", "_data", "_extra", "_index", "_node", "_requires_grad")
    _data: Array
    _node: Node | None
    _index: int
    _requires_grad: bool
    _extra: Extra | None
    _weak: bool = False  # a Python number as a tensor: it does not decide dtypes
    _own: bool = False  # a variable that a transform made for itself: what leads to such alone needs no graph once the transform is done

    _concrete: ClassVar[bool] = True  # False in subclasses whose values are traced, not stored
    _value_type: ClassVar[type[Any]]  # the class of results; a subclass such as a parameter names its base here

    @property
    def shape(self) -> Any:
        return self._data.shape

    @property
    def _dtype(self) -> DType:
        raise NotImplementedError

    @classmethod
    def _wrap(cls, data: Array) -> Any:
        raise NotImplementedError


def extra_of(value: Value) -> Extra:
    """The value's ``Extra``, made at first need."""
    extra = value._extra
    if extra is None:
        extra = value._extra = Extra()
    return extra


def cell_of(value: Value) -> VersionCell:
    """The value's version counter, made at first need."""
    extra = extra_of(value)
    if extra.cell is None:
        extra.cell = VersionCell()
    return extra.cell


class NodeExtra:
    """What few nodes have: hooks on gradients of single outputs, tensors that retain theirs, hooks around the node, the user's metadata."""

    __slots__ = ("metadata", "post_hooks", "pre_hooks", "retained", "tensor_hooks")

    def __init__(self) -> None:
        self.tensor_hooks: dict[int, Hooks] = {}
        self.retained: dict[int, weakref.ref[Value]] = {}  # weak: the tensor holds the node
        self.pre_hooks, self.post_hooks = Hooks(), Hooks()
        self.metadata: dict[Any, Any] = {}


class _NodeName(str):
    """A node's name. PyTorch spells it ``node.name()``; both work."""

    __slots__ = ()

    def __call__(self) -> str:
        return str(self)


class Freed:
    """What a node holds in the place of what it saved, once that is freed. ``plain``: the node's own, for what needs no tensor."""

    __slots__ = ("plain",)

    def __init__(self, plain: Any = None) -> None:
        self.plain = plain

    def __repr__(self) -> str:
        return "<freed>"


FREED: Final = Freed()
FREED_TEXT: Final = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). Saved intermediate values of "
    "the graph are freed when you call .backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the graph a second time or if "
    "you need to access saved tensors after calling backward."
)
_LAST: Final = sys.maxsize
_new: Final = object.__new__
_weak: Final = weakref.ref
next_sequence: Final = itertools.count().__next__


class Node:
    """One recorded operation. A subclass per op gives ``name`` (by default its own) and ``apply``; ``outputs`` if it has more than one.

    ``next_functions`` holds, for each input, the node that made it and which output it was: ``(node, index)``, or ``(None, 0)`` for an input without
    gradient. What backward needs is in ``_saved``: any object, None if nothing. Never the output tensor itself, which would close a reference cycle: save its
    array and remake the tensor with ``make_output(array, self)``.

    >>> class DoubleBackward0(Node):
    ...     __slots__ = ()
    ...     def apply(self, cts):
    ...         return (cts[0] * 2,)
    """

    __slots__ = ("__weakref__", "_extra", "_saved", "_seq", "next_functions")
    name: ClassVar[Any] = _NodeName("Node")
    outputs: int = 1
    aside: int = 0  # how many of them, at the end, are there for its own backward pass: called by hand, it may be given the gradients of the others alone
    takes_none: ClassVar[bool] = False  # True: apply is called even if every cotangent is None
    next_functions: tuple[Edge, ...]
    _saved: Any
    _seq: int
    _extra: NodeExtra | None

    def __init__(self, next_functions: tuple[Edge, ...] = (), saved: Any = None) -> None:
        self.next_functions = next_functions
        self._saved = saved
        self._seq = next_sequence()
        self._extra = None
        if _watching.count:
            recording.note(self)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = _NodeName(cls.__dict__.get("name", cls.__name__))

    def apply(self, cts: tuple[Any, ...]) -> tuple[Any, ...]:
        """Cotangents of the inputs from those of the outputs; None stands for a zero on both sides."""
        raise NotImplementedError

    def release(self) -> None:
        """Frees what was saved. A node that saved nothing may be run again."""
        if self._saved is not None:
            self._saved = FREED

    @property
    def saved(self) -> Any:
        """What the node saved; raises ``AotgradRuntimeError`` after it was freed."""
        if type(self._saved) is Freed:
            raise AotgradRuntimeError(FREED_TEXT)
        return self._saved

    def __call__(self, *cts: Any) -> Any:
        """Runs the node by hand: cotangents of its outputs in, those of its inputs out, one tensor or a tuple. Frees nothing; recorded in grad mode."""
        if not self.outputs - self.aside <= len(cts) <= self.outputs:
            raise AotgradTypeError(f"{self.name} takes {self.outputs} gradient{'s' * (self.outputs != 1)}, one per output, but got {len(cts)}")
        for i, ct in enumerate(cts):
            if ct is not None and not isinstance(ct, Value):
                raise AotgradTypeError(f"gradient {i} of {self.name} must be a Tensor or None, but got {type(ct).__name__}")
        grads = run_apply(self, (*cts, *[None] * (self.outputs - len(cts))))
        return grads[0] if len(grads) == 1 else grads

    def register_hook(self, hook: Hook) -> RemovableHandle:
        """Calls ``hook(grad_inputs, grad_outputs)`` after the node ran; a returned tuple replaces ``grad_inputs``."""
        return node_extra_of(self).post_hooks.register(hook)

    def register_prehook(self, hook: Hook) -> RemovableHandle:
        """Calls ``hook(grad_outputs)`` before the node runs; a returned tuple replaces them."""
        return node_extra_of(self).pre_hooks.register(hook)

    @property
    def metadata(self) -> dict[Any, Any]:
        """A dict of the user's own."""
        return node_extra_of(self).metadata

    @property
    def requires_grad(self) -> bool:
        return True

    def _sequence_nr(self) -> int:
        return self._seq

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise AotgradTypeError(f"cannot copy or pickle '{self.name}' object: graphs stay where they were recorded; copy the tensors (x.detach()) and compute again")

    def __repr__(self) -> str:
        return f"<{self.name} object at {id(self):#x}>"


@functools.lru_cache(maxsize=1)
def data_slot() -> int | None:
    """Where a value keeps its array, in bytes from its address: for machine code. None where Python's slots are laid out in another way than expected."""
    value, data = Value(), np.empty(0)
    value._data = data
    if sys.implementation.name != "cpython" or type(Value.__dict__["_data"]).__basicsize__ != 48:
        return None
    member = ctypes.c_void_p.from_address(id(Value.__dict__["_data"]) + 40).value or 0
    offset = ctypes.c_ssize_t.from_address(member + 16).value  # name, type, offset
    size = Value.__basicsize__
    return offset if 0 < offset <= size - 8 and ctypes.c_void_p.from_address(id(value) + offset).value == id(data) else None


Edge = tuple[Node | None, int]
NO_EDGE: Final[Edge] = (None, 0)


def node_extra_of(node: Node) -> NodeExtra:
    extra = node._extra
    if extra is None:
        extra = node._extra = NodeExtra()
    return extra


def run_apply(node: Node, cts: tuple[Any, ...]) -> tuple[Any, ...]:
    """``node.apply`` with what everyone who runs a node must check."""
    if type(node._saved) is Freed:
        raise AotgradRuntimeError(FREED_TEXT)
    if not node.takes_none and not any(ct is not None for ct in cts):
        return (None,) * len(node.next_functions)
    grads = node.apply(cts)
    if type(grads) is not tuple or len(grads) != len(node.next_functions):
        raise AotgradRuntimeError(wrong_count(node, grads))
    return grads


def wrong_count(node: Node, grads: Any) -> str:
    """The message for a node that returned no tuple, or too few or too many gradients."""
    if type(grads) is not tuple:
        return f"{node.name} returned a {type(grads).__name__}; its backward must return a tuple with one gradient per input, None where there is none"
    return (f"{node.name} returned {len(grads)} gradients but has {len(node.next_functions)} inputs; its backward must return one per input, None where there "
            "is none")


class AccumulateGrad(Node):
    """The node at the end of the graph that adds the gradient into ``variable.grad``. It holds its leaf, the leaf holds it weakly."""

    __slots__ = ("variable",)
    variable: Any

    def __init__(self, variable: Any) -> None:
        super().__init__()
        self._seq = _LAST  # runs as soon as its gradient is complete
        self.variable = variable

    def apply(self, cts: tuple[Any, ...]) -> tuple[Any, ...]:
        box = [*cts]
        del cts
        accumulate(self.variable, box)
        return ()


def accumulator_of(leaf: Value) -> AccumulateGrad | None:
    """The one ``AccumulateGrad`` of a leaf while any graph uses it; None for a view without history, see ``Extra.adrift``."""
    extra = leaf._extra
    if extra is None:
        extra = leaf._extra = Extra()
    ref = extra.accumulator
    node = None if ref is None else ref()
    if node is None:  # made as by AccumulateGrad(leaf), at a third of its cost: every graph on a leaf begins here
        if extra.adrift:
            return None
        node = _new(AccumulateGrad)
        node.next_functions = ()
        node._saved = node._extra = None
        node._seq = _LAST
        node.variable = leaf
        extra.accumulator = _weak(node)
    return node


def drift(view: Value, on: bool) -> None:
    """A view without history requires grad where the tensor that it shows does, as in PyTorch."""
    extra = extra_of(view)
    if view._node is None and (extra.adrift or not view._requires_grad) and view._dtype.is_differentiable:
        view._requires_grad = extra.adrift = on


def follow(value: Value) -> None:
    """After ``requires_grad`` of a leaf was set: its views, or what it is a view of, may say otherwise."""
    extra = value._extra
    if extra is None:
        return
    extra.adrift = False
    if extra.base is not None:
        drift(value, extra.base._requires_grad)
    elif extra.cell is not None and extra.cell.views is not None:
        for ref in extra.cell.views:
            view = ref()
            if view is not None and view._extra is not None and view._extra.base is value:
                drift(view, value._requires_grad)


def edge_of(value: Value) -> Edge:
    """Where a value's gradient goes: ``(node, index)``, or ``(None, 0)`` when it wants none."""
    node = value._node
    if node is not None:
        return (node, value._index)
    return (accumulator_of(value), 0) if value._requires_grad else NO_EDGE


def edges_of(values: Iterable[Value]) -> tuple[Edge, ...]:
    """The ``next_functions`` of a node with these inputs."""
    return tuple([edge_of(v) for v in values])


# Hooks ------------------------------------------------------------------------------------------------------------------------------------------------


def _hook_name(hook: Hook) -> str:
    return getattr(hook, "__name__", None) or type(hook).__name__


def call_hooks(hooks: Hooks, ct: Any) -> Any:
    """Passes one gradient through tensor hooks; each may replace it by one of the same shape and dtype."""
    for hook in [*hooks.values()]:
        new = hook(ct)
        if new is None:
            continue
        if not isinstance(new, Value):
            raise AotgradTypeError(f"expected Tensor, but hook '{_hook_name(hook)}' returned '{type(new).__name__}'; return a Tensor, or None to keep the gradient")
        if tuple(new.shape) != tuple(ct.shape):
            raise AotgradRuntimeError(f"hook '{_hook_name(hook)}' has changed the size of value (was {list(ct.shape)} got {list(new.shape)})")
        if new._dtype is not ct._dtype:
            raise AotgradRuntimeError(f"hook '{_hook_name(hook)}' has changed the type of value (was {ct._dtype} got {new._dtype})")
        ct = new
    return ct


def run_tensor_hooks(extra: NodeExtra, cts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Hooks on the gradients of a node's outputs; then tensors that retain their gradient get the final one, as in PyTorch 2."""
    out = [*cts]
    for index, hooks in extra.tensor_hooks.items():
        if out[index] is not None:
            out[index] = call_hooks(hooks, out[index])
    for index, ref in extra.retained.items():
        tensor = ref()
        if tensor is not None and out[index] is not None:
            accumulate(tensor, [out[index]])
    return tuple(out)


def _whole(hook: Hook, new: Any, old: tuple[Any, ...], what: str) -> tuple[Any, ...]:
    if new is None:
        return old
    if not isinstance(new, (tuple, list)):
        raise AotgradTypeError(f"expected tuple, but hook '{_hook_name(hook)}' returned '{type(new).__name__}'; return {len(old)} {what}, or None to keep them")
    if len(new) != len(old):
        raise AotgradRuntimeError(f"hook '{_hook_name(hook)}' returned {len(new)} values for {len(old)} {what}; return as many, or None to keep them")
    for i, x in enumerate(new):
        if x is not None and not isinstance(x, Value):
            raise AotgradTypeError(f"expected Tensor, but hook '{_hook_name(hook)}' returned '{type(x).__name__}' in place {i} of {what}; return Tensors or None there")
    return (*new,)


def run_pre_hooks(extra: NodeExtra, cts: tuple[Any, ...]) -> tuple[Any, ...]:
    for hook in [*extra.pre_hooks.values()]:
        cts = _whole(hook, hook(cts), cts, "grad_outputs")
    return cts


def run_post_hooks(extra: NodeExtra, grads: tuple[Any, ...], cts: tuple[Any, ...]) -> tuple[Any, ...]:
    for hook in [*extra.post_hooks.values()]:
        before, grads = grads, _whole(hook, hook(grads, cts), grads, "grad_inputs")
        for i, (old, new) in enumerate(zip(before, grads)):
            if old is not None and new is not None and new is not old and tuple(new.shape) != tuple(old.shape):
                raise AotgradRuntimeError(f"hook '{_hook_name(hook)}' returned an invalid gradient at index {i} - got {list(new.shape)} but expected shape compatible "
                                          f"with {list(old.shape)}")
    return grads


# Adding a gradient into a leaf ------------------------------------------------------------------------------------------------------------------------


def _take(box: list[Any]) -> tuple[Any, int, int]:
    """The gradient out of its box, and how often it and its array are referenced: told by the same code for a value nobody else holds, below."""
    ct = box.pop()
    return ct, sys.getrefcount(ct), sys.getrefcount(ct._data)


def _references_when_alone() -> tuple[int, int]:
    value = Value()
    value._data = np.empty(1)
    box = [value]
    del value
    return _take(box)[1:]


_ALONE: Final = _references_when_alone()


def _owned(box: list[Any], like: Value) -> Any:
    """The gradient as a tensor nobody else sees, itself or a copy, in the layout of ``like``: row-major where that has gaps or overlaps."""
    ct, refs, data_refs = _take(box)
    data, model = ct._data, like._data
    strides = model.strides
    alone = (refs, data_refs) == _ALONE
    if data.strides == strides and data.base is None and data.flags.writeable and alone and type(ct) is like._value_type:
        return ct
    if model.flags.c_contiguous and model.size and 1 not in model.shape:
        return like._wrap(data.copy("C"))
    size = model.itemsize
    given = tuple([s // size for s in strides])
    dense = mf.is_non_overlapping_and_dense(model.shape, given)
    wanted = given if dense else mf.format_strides(model.shape)
    if 1 in model.shape and refs == _ALONE[0]:  # PyTorch takes it over as it is: strides of single elements are those it has
        found = tuple([s // size for s in data.strides])
        if all(s == w if n != 1 else s or not dense for n, s, w in zip(model.shape, found, wanted)):
            wanted = found
            if alone and data.base is None and data.flags.writeable and type(ct) is like._value_type:
                return ct
    return like._wrap(mf.copy_to_strides(data, wanted))


def add_up(box: list[Any], ct: Any, among: Sequence[Any]) -> Any:
    """The sum of the cotangent in ``box`` and ``ct``. As in PyTorch it has the strides of the first, also of single elements, where nobody holds that (but ``among``)."""
    old, refs, _ = _take(box)
    out = installed.add(old, ct)
    if not old._concrete or not out._concrete or modes.state.grad:
        return out
    if old is not ct and type(old._data.base) is not np.ndarray and refs == _ALONE[0] + sum(g is old for g in among):
        strides = old._data.strides
        item = old._data.itemsize
        given = tuple([s // item for s in strides])
        if out._data.strides != strides and out.shape == old.shape and mf.is_non_overlapping_and_dense(old.shape, given):
            return out._wrap(mf.copy_to_strides(out._data, given))
    return out


def _add_in_place(grad: Value, ct: Value) -> None:
    cell_of(grad).bump()
    if installed.add_into is not None:
        installed.add_into(grad, ct)
    elif grad._dtype.np.kind == "u" or not grad._data.flags.writeable:  # bfloat16 has no arithmetic in NumPy
        grad._data = np.array(installed.add(grad, ct)._data)
    else:
        with np.errstate(all="ignore"):
            np.add(grad._data, ct._data, out=grad._data)


def _writable(ct: Any) -> Any:
    """A recorded gradient as it is, unless one number stands for many elements: ``.grad`` can be written."""
    if not ct._concrete or ct._data.flags.writeable:
        return ct
    return installed.add(ct, ct._wrap(np.zeros(ct._data.shape, ct._data.dtype)))


def accumulate(variable: Any, box: list[Any]) -> None:
    """Adds the gradient in ``box`` into ``variable.grad``: in place, or as a recorded op when it is part of a graph itself (create_graph)."""
    ct = box[-1]
    if ct is None:
        return
    if tuple(ct.shape) != tuple(variable.shape):
        raise AotgradRuntimeError(
            f"a gradient of shape {list(ct.shape)} reached a tensor of shape {list(variable.shape)}; a backward function or hook returned a wrong shape")
    if ct._dtype is not variable._dtype:
        ct = box[-1] = cast(ct, variable._dtype)
    extra = extra_of(variable)
    old = extra.grad
    if not variable._concrete or ct._requires_grad or (old is not None and (modes.state.grad or old._requires_grad)):
        extra.grad = _writable(ct) if old is None else installed.add(old, ct)
    elif old is None:
        del ct
        extra.grad = _owned(box, variable)
    elif variable._node is not None:  # an intermediate that retains its gradient gets a new tensor, as in PyTorch
        extra.grad = installed.add(old, ct)
    else:
        _add_in_place(old, ct)


def cast(ct: Any, dtype: DType) -> Any:
    """``ct`` in another dtype: through the installed op when it is recorded, else by NumPy."""
    if installed.cast is not None:
        return installed.cast(ct, dtype)
    if ct._requires_grad or not ct._concrete or "bfloat16" in (ct._dtype.name, dtype.name):
        raise AotgradTypeError(f"a gradient of dtype {ct._dtype.name} met a tensor of dtype {dtype.name}; give it the tensor's dtype")
    return ct._wrap(ct._data.astype(dtype.np))
