"""Calls of compiled functions that read and write tensors in variables (training steps, modules): the short way.

After a call has gone the general way, what it looked at is turned into one Python function that asks the same of the next call: whether each name still holds the same
object, each tensor the same array, each option the same value. If so, the kernel is called with those arrays, and results go where they went. All else goes the general
way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgrad_runtime import modes, watchers
from aotgrad_runtime.call import Attr, Cell, Fixed, Global
from aotgrad_runtime.parameter import Parameter
from aotgrad_runtime.tensor import Tensor, wrap
from aotgrad_runtime.watched import written

from . import inplace, sources
from .changes import Changes, span, use_up
from .eager import Dual
from .kernels import run_flat, whole
from .program import depends
from .pytree import TreeDef, tree_unflatten
from .recorder import Recorder
from .sources import GradOf, Item, Path
from .structured import MISS, TRACED
from .variant import Variant
from .watch import RENEWED, Watch, is_defaults, listed, print_of

__all__ = ["Ready", "make"]

_MOST = 2000  # places that are looked at
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class _Unfit(Exception):
    """Something that the short way does not know."""


class _Asking:
    """Writes the function that asks whether names hold what they held: it raises, or gives False, where one does not."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.known: dict[Any, str] = {}

    def constant(self, value: Any) -> str:
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def value(self, path: Path) -> str:
        """The name of the variable that has what ``path`` holds."""
        root = path.root
        key = *((id(root.namespace), root.key) if isinstance(root, Global) else (id(root.cell if isinstance(root, Cell) else root.obj), None)), path.steps
        found = self.known.get(key)
        if found is not None:
            return found
        if not path.steps:
            text = (f"{self.constant(root.cell)}.cell_contents" if isinstance(root, Cell) else
                    f"{self.constant(root.namespace)}[{root.key!r}]" if isinstance(root, Global) else self.constant(root.obj))
        else:
            parent, (how, step) = Path(root, path.steps[:-1]), path.steps[-1]
            inner = self.value(parent)
            text = f"{inner}[{self.constant(step)}]" if how == "[" else f"getattr({inner}, {step!r})"
            table = next((t for t in ("_parameters", "_buffers", "_modules") if step in getattr(sources.read(None, parent), t, ())), None) if how == "." else None
            if table is not None and listed(sources.read(None, parent)):
                text = f"{inner}.{table}[{step!r}]"
        name = self.known[key] = f"v{len(self.known)}"
        self.lines.append(f"{name} = {text}")
        return name

    def same(self, path: Path, value: Any) -> None:
        """The place holds this very object, of this form."""
        tests = [f"{(at := self.value(path))} is {self.constant(value)}"]
        if listed(value):
            if any(value.__dict__[n] for n in _HOOKS):
                raise _Unfit
            tests += [f"len({at}.{t}) == {len(value.__dict__[t])}" for t in ("_parameters", "_buffers", "_modules")] + [f"not {at}.{n}" for n in _HOOKS]
        elif isinstance(value, (list, dict)) and not is_defaults(path):
            if len(value) > 256:
                raise _Unfit
            tests.append(f"len({at}) == {len(value)}")
        elif isinstance(value, (set, bytearray, memoryview)):
            raise _Unfit
        self.lines += [f"if not ({' and '.join(tests)}):", "    return False"]

    def function(self) -> Callable[[], bool]:
        exec("def ask():\n" + "".join(f"    {line}\n" for line in [*self.lines, "return True"]), self.names)
        return self.names["ask"]  # type: ignore[no-any-return]


def _path(source: Any) -> Path:
    if isinstance(source, Attr):
        assert not isinstance(source.base, int)
        return Path(source.base, tuple([(".", n) for n in source.path]))
    if isinstance(source, Path):
        return source
    if isinstance(source, (Cell, Global, Fixed)):
        return Path(source)
    raise _Unfit


def _asking(watch: Watch, hidden: Sequence[tuple[Any, Any]]) -> Callable[[], bool]:
    if watch.contents or len(watch.places) > _MOST:
        raise _Unfit
    out = _Asking()
    for path, seen, value in watch.places:
        if value is RENEWED:
            out.lines += [f"if {out.constant(print_of)}({out.value(path)}) != {out.constant(seen)}:", "    return False"]
            continue
        if isinstance(value, (np.ndarray, Tensor)):
            raise _Unfit
        out.same(path, value)
    for group in watch.shared:
        first = out.value(group[0])
        out.lines += [f"if {out.value(p)} is not {first}:\n        return False" for p in group[1:]]
    for held, source in hidden:
        if not isinstance(source, (Item, GradOf)):
            out.lines += [f"if {out.value(_path(source))} is not {out.constant(held)}:", "    return False"]
    return out.function()


class Ready:
    """One variant with the objects of one call."""

    def __init__(self, state: Any, variant: Variant, leaves: Sequence[Any]) -> None:
        program, changes, n = state.program(variant), variant.changes, len(variant.leaves)
        self.variant, self.forget = variant, state.unready
        self.program, self.kept, self.grad = program, program.kept, modes.state.grad
        self.plain: Any = program.kernel if self.kept is None else None
        args = variant.arguments(leaves)
        self.arguments = [(leaf.index, leaves[leaf.index]._data.shape, leaf.type.dtype.np) for leaf in variant.leaves]
        self.statics = [(i, x) for i, x in enumerate(leaves) if i not in {leaf.index for leaf in variant.leaves}]
        self.count = len(leaves)
        held = [(x, source) for x, (_, source) in zip(args[n:], variant.hidden)]
        self.numbers = [(n + k, source.holder, source.key) for k, (x, source) in enumerate(held) if type(x) is float]
        self.tensors = [(x, x._data, x._requires_grad) for x, _ in held if isinstance(x, Tensor)]
        self.ask = _asking(variant.watch, [(x, source) for x, source in held if isinstance(x, Tensor)])
        self.items = [(source.holder, source.key, x) for x, source in held if isinstance(x, Tensor) and isinstance(source, Item)]
        self.grads = [(source, x) for x, source in held if isinstance(source, GradOf)]
        if any(isinstance(x, Dual) for x, _ in held):
            raise _Unfit
        if any(not isinstance(x, Tensor) and type(x) is not float for x, _ in held) or any(not x._data.flags.c_contiguous for x, _ in held if isinstance(x, Tensor)):
            raise _Unfit
        self.all = held
        self.given = [None] * n + [x for x, _ in held]
        self.good: Any = None
        self.arrays: list[Any] = [None] * n + [x._data if isinstance(x, Tensor) else None for x, _ in held]
        self.changes = changes
        self.held = list({(id(h), k): (h, k, v) for h, k, v in changes.held}.values())
        owners = {id(source): x for x, source in held}

        def tensor(place: Any) -> Any:
            found = owners.get(id(place))
            return sources.read(None, place, leaves) if found is None else found

        self.absent = [tensor(place.owner) if isinstance(place, GradOf) else place for place in changes.absent]
        self.no_leaves = [tensor(place) for place in changes.no_leaves]
        self.hooked = [(tensor(place), on) for place, on in changes.hooked]
        if any(not isinstance(x, Tensor) for x in self.absent) or any(on for _, on in self.hooked) or any(isinstance(s.owner, sources.Argument) for s, _ in self.grads):
            raise _Unfit
        self.owners = [(tensor(c.place.owner) if isinstance(c.place, GradOf) else None, c) for c in changes.sets]
        self.targets = [(args[i], args[i]._data, i < n, out) for i, out in zip(changes.written, changes.outs)]
        self.spans = [span(a) for _, a, mine, _ in self.targets if not mine]
        self.form = _form(program, args)
        if self.form is not None and (changes.freed or changes.sets):
            raise _Unfit
        joined = self.form is not None and _recorded(program, args, changes.outs)
        if self.grad and (joined or any(x._requires_grad and x._node is not None for x, _, _, _ in self.targets)):
            raise _Unfit  # a tensor that is written gets another history
        if any(mine for *_, mine, _ in self.targets):
            raise _Unfit  # arguments that are written: their memory is compared with all others, the general way

    def stands(self) -> bool:
        """Whether all that the program reads is where it was."""
        for x, array, wanted in self.tensors:
            if x._data is not array or x._requires_grad is not wanted:
                return False
        for holder, key, x in self.items:
            if holder.get(key) is not x:
                return False
        for source, x in self.grads:
            if sources.read(None, source) is not x:
                return False
        try:
            return self.ask()
        except Exception:  # a name is gone
            return False

    def fits(self) -> bool:
        """Whether options are as in the program."""
        for holder, key, value in self.held:
            now = holder.get(key, MISS)
            if now is not value and (type(now) is not type(value) or now != value):
                return False
        for x in self.absent:
            if x._extra is not None and x._extra.grad is not None:
                return False
        if any(inplace.leaf_shown(x) is not None for x in self.no_leaves) or self.grad and any(inplace.retains(x) for x, _, _, _ in self.targets):
            return False
        return not any(x._extra is not None and (x._extra.hooks or x._extra.post_hooks) for x, _ in self.hooked)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call, or ``MISS``."""
        state = modes.state
        if kwargs or len(args) != self.count or state.grad is not self.grad or state.inference or (watchers.shared.count and watchers.state.count):
            return MISS
        arrays = self.arrays.copy()
        for place, (i, shape, dtype) in enumerate(self.arguments):
            x = args[i]
            if type(x) is not Tensor and type(x) is not Parameter or x._requires_grad:
                return MISS
            data = x._data
            if data.shape != shape or data.dtype is not dtype or not data.flags.c_contiguous or not data.flags.aligned:
                return MISS
            arrays[place] = data
        for i, value in self.statics:
            if args[i] is not value:
                return MISS
        if not self.fits():
            return MISS
        if not self.stands():
            self.forget(self.variant)
            return MISS
        for place in range(len(self.arguments) if self.spans else 0):
            low, high = span(arrays[place])
            for a, b in self.spans:
                if a < high and low < b:
                    return MISS
        for place, holder, key in self.numbers:
            value = holder.get(key)
            if type(value) is not float:
                return MISS
            arrays[place] = np.asarray(value)
        if self.form is None:
            memory = [inplace.memory(x) for x, _, _, _ in self.targets]  # what is saved is as it was; the kernel may write there
            return self._put(self._found(arrays, memory), None, memory)
        found = self._found(arrays, None)
        given = [*(args[i] for i, _, _ in self.arguments), *(x if isinstance(x, Tensor) else a for (x, _), a in zip(self.all, arrays[len(self.arguments):]))]
        made = self.form(tuple(found) if len(found) > 1 else found[0], *given)  # before anything is written
        return self._put(found, made, [inplace.memory(x) for x, _, _, _ in self.targets])

    def _found(self, arrays: list[Any], memory: Sequence[Any] | None) -> Sequence[Any]:
        """What the kernel gives. ``memory``: of the targets, where it may write; None: nowhere."""
        kernel, block = (self.plain, ()) if self.kept is None else self._with_kept()
        if memory is None or any(arrays[i] is not data for i, data in zip(self.changes.written, memory)):  # a copy on write
            return run_flat(kernel, arrays, *block)
        found = kernel.flat(*arrays, *block)
        results = found if type(found) is tuple else () if found is None else (found,)
        return whole(kernel, results, arrays) if kernel.over else results

    def _with_kept(self) -> tuple[Any, tuple[Any, ...]]:
        """The kernel that reads what was computed of weights alone, and that; the plain one where it is not to be had."""
        good = self.good
        if not self.kept.again(good):
            good = self.good = self.kept.found(self.given)
        return (self.program.kernel, ()) if good is None else (self.kept.kernel, (good.block,))

    def _put(self, found: Sequence[Any], made: Any, memory: Sequence[Any]) -> Any:
        """Everything in its place. ``made``: the results as tensors, where the call is recorded."""
        for data, (_, _, _, out) in zip(memory, self.targets):
            if found[out] is not data:
                np.copyto(data, found[out])
        for x, _, _, _ in self.targets:
            written(x)
        for owner, change in self.owners:
            value = wrap(found[change.out]) if change.out >= 0 else change.value
            if owner is not None:
                owner.grad = value
            elif isinstance(change.place, Path):
                sources.put(change.place, value)
            else:
                change.place.holder[change.place.key] = value
        count = self.changes.results
        if made is None:
            results = [wrap(x) for x in found[:count]]
        else:
            results = [*made[:count]] if type(made) is tuple else [made]
        if self.grad:
            for i in self.changes.freed:
                use_up(results[i])
        if count == 1 and self.variant.out_tree.kind is None:
            return results[0]
        it, constants = iter(results), self.variant.out_constants
        return tree_unflatten(self.variant.out_tree, [next(it) if c is TRACED else c for c in constants])


def _serves(variant: Variant, leaves: Sequence[Any], tree: TreeDef) -> bool:
    changes: Changes = variant.changes
    flat = not tree.children[1].children and all(c.kind is None for c in tree.children[0].children)
    given = [leaves[leaf.index] for leaf in variant.leaves]
    tensors = all(type(x) in (Tensor, Parameter) and not x._requires_grad and x._data.flags.c_contiguous for x in given)
    if not flat or not tensors or not variant.tensors or variant.records:
        return False
    if changes.flags or changes.leaves or any(c.out == -2 or c.plain or c.parts is not None for c in changes.sets):
        return False
    return all(isinstance(c.place, (GradOf, Item, Path)) and not isinstance(getattr(c.place, "owner", None), sources.Argument) for c in changes.sets)


def _recorded(program: Any, args: Sequence[Any], outs: Sequence[int]) -> bool:
    """Whether one of these results is part of a graph."""
    recorded = depends(program.func, [isinstance(x, Tensor) and x._requires_grad for x in args])
    return any(program.func.outputs[i].type.dtype.is_differentiable if recorded is None else recorded[i] for i in outs)


def _form(program: Any, args: Sequence[Any]) -> Callable[..., Any] | None:
    """How the results of a call with these arguments are recorded (see ``taped.Recorder``); None where they are not."""
    active = [isinstance(x, Tensor) and x._requires_grad for x in args]
    recorded = depends(program.func, active) if modes.state.grad and any(active) else ()
    if recorded is not None and not any(recorded):
        return None
    if program.split is not None:
        raise _Unfit
    places = [i for i, x in enumerate(args) if isinstance(x, Tensor)]
    return Recorder(program, places).learn(sum(1 << k for k, i in enumerate(places) if active[i]))


def make(state: Any, variant: Variant, leaves: Sequence[Any], tree: TreeDef) -> Ready | None:
    """The short way of ``variant`` for calls like this one, where there is one."""
    if not _serves(variant, leaves, tree) or any(t.layout is not None for t in (*variant.func.arg_types, *variant.func.out_types)):
        return None
    if not state.program(variant).native:
        return None
    try:
        return Ready(state, variant, leaves)
    except _Unfit:
        return None
