"""``custom_vjp`` and ``custom_jvp``: functions with derivative rules of the user's. Either rule is enough; the other one is its transpose."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgrad_runtime import modes
from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError
from aotgrad_runtime.tape import Node, edge_of
from aotgrad_runtime.tensor import Tensor, make_output, wrap

from .eager import Dual, Kept, make_dual
from .leaves import tree_flatten_nones
from .pytree import TreeDef, tree_flatten, tree_unflatten
from .rules import Rule, call_traced, fit, flavour, split_level, tensor_of, transposed_call, zeros_like
from .subtrace import is_leaf_array
from .trace import current

__all__ = ["custom_jvp", "custom_vjp"]

F = Callable[..., Any]


class _Forward(threading.local):
    """How many forward rules of a function are being traced around this call. A rule may call its function (``fwd = lambda x: (f(x), x)``): in the first one that is
    a call with rules, for derivatives of what it keeps; further in the function runs plainly."""

    def __init__(self) -> None:
        self.of: dict[Any, int] = {}


_forward = _Forward()


class _Call:
    """One call: arguments taken apart, and the user's rules on flat lists of the array leaves."""

    def __init__(self, owner: Any, args: Sequence[Any]) -> None:
        self.owner, self.args = owner, args
        self.nondiff = [a for i, a in enumerate(args) if i in owner.nondiff]
        self.leaves, self.tree = tree_flatten(tuple(a for i, a in enumerate(args) if i not in owner.nondiff))
        self.where = [i for i, x in enumerate(self.leaves) if is_leaf_array(x)]
        self.out_tree = TreeDef()

    def emptied(self) -> _Call:
        """The call without its arrays, for the tape (which keeps them its own way)."""
        for i in self.where:
            self.leaves[i] = None
        self.args = [a if i in self.owner.nondiff else None for i, a in enumerate(self.args)]
        return self

    @property
    def arrays(self) -> list[Any]:
        return [self.leaves[i] for i in self.where]

    def filled(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """The differentiable arguments with other array leaves."""
        full = list(self.leaves)
        for i, x in zip(self.where, arrays):
            full[i] = x
        return tree_unflatten(self.tree, full)  # type: ignore[no-any-return]

    def every(self, arrays: Sequence[Any]) -> list[Any]:
        """All arguments in their order, with other array leaves."""
        moved = iter(self.filled(arrays))
        return [a if i in self.owner.nondiff else next(moved) for i, a in enumerate(self.args)]

    def outputs(self, out: Any) -> list[Any]:
        leaves, self.out_tree = tree_flatten(out)
        for x in leaves:
            if not is_leaf_array(x):
                raise AotgradTypeError(f"{self.owner.name}: a result is {type(x).__name__}; functions with rules of their own return arrays, tensors and numbers")
        return leaves

    def plain(self, arrays: Sequence[Any]) -> list[Any]:
        """Results of the function itself."""
        return self.outputs(self.owner.fun(*self.every(arrays)))

    def forward(self, arrays: Sequence[Any]) -> tuple[list[Any], Any]:
        """Results, and what the reverse rule is to be given."""
        if self.owner.bwd is None:
            return self.plain(arrays), None
        depth = _forward.of.get(self.owner, 0)
        _forward.of[self.owner] = depth + 1
        try:
            found = self.owner.fwd(*self.every(arrays))
        finally:
            _forward.of[self.owner] = depth
            if depth == 0:
                del _forward.of[self.owner]
        if not isinstance(found, tuple) or len(found) != 2:
            raise AotgradTypeError(f"{self.owner.name}: the forward rule must return (result, residuals), but returned {type(found).__name__}")
        return self.outputs(found[0]), found[1]

    def reverse(self, residuals: Any, cts: Sequence[Any]) -> list[Any]:
        """Cotangents of the array leaves (None: zero)."""
        grads = self.owner.bwd(*self.nondiff, residuals, tree_unflatten(self.out_tree, list(cts)))
        return self._leaves(grads, "the reverse rule")

    def _leaves(self, grads: Any, what: str) -> list[Any]:
        count = len(self.tree.children)
        if not isinstance(grads, (tuple, list)) or len(grads) != count:
            got = f"{len(grads)}" if isinstance(grads, (tuple, list)) else type(grads).__name__
            raise AotgradTypeError(f"{self.owner.name}: {what} must return a tuple of {count} gradient(s), one per differentiable argument (None for no gradient), "
                                   f"but returned {got}")
        flat: list[Any] = []
        for g, t in zip(grads, self.tree.children):
            flat += [None] * t.leaves if g is None else _matched(g, t, f"{self.owner.name}: {what}")
        return [flat[i] for i in self.where]

    def push(self, arrays: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """Tangents of the results (None: zero)."""
        full: list[Any] = [None] * len(self.leaves)
        for i, t in zip(self.where, tangents):
            full[i] = t
        found = self.owner.jvp(*self.nondiff, self.filled(arrays), tree_unflatten(self.tree, full))
        if not isinstance(found, tuple) or len(found) != 2:
            raise AotgradTypeError(f"{self.owner.name}: the forward-mode rule must return (result, tangent), but returned {type(found).__name__}")
        if found[1] is None:
            return [None] * self.out_tree.leaves
        return _matched(found[1], self.out_tree, f"{self.owner.name}: the tangent of the forward-mode rule")


def _matched(tree: Any, like: TreeDef, what: str) -> list[Any]:
    try:
        found = tree_flatten_nones(tree, like)
    except (TypeError, KeyError, AttributeError, IndexError):
        found = []
    if len(found) != like.leaves or any(x is not None and not is_leaf_array(x) for x in found):
        raise AotgradValueError(f"{what} does not have the structure of what it belongs to")
    return found


class _TracedCall(Rule):
    def __init__(self, call: _Call) -> None:
        self.call, self.name = call, call.owner.name
        self.through, self.owner = True, call.owner
        if call.owner.bwd is not None:
            self.reverse = self._reverse
        if call.owner.jvp is not None:
            self.pushed = self._pushed
        if call.owner.bwd is None and call.owner.jvp is None:
            self.error = call.owner.missing()

    def forward(self, args: list[Any]) -> list[Any]:
        self.args = list(args)
        outs, self.residuals = self.call.forward(args)
        return outs

    def _reverse(self, cts: list[Any]) -> list[Any]:
        return self.call.reverse(self.residuals, cts)

    def _pushed(self, tangents: list[Any]) -> list[Any]:
        return self.call.push(self.args, tangents)


class _RuleNode(Node):
    """A taped call: saved are the call, its inputs, what the forward rule kept, and the types of the differentiable results."""

    __slots__ = ()

    def apply(self, cts: tuple[Any, ...]) -> tuple[Any, ...]:
        call, inputs, residuals, floats, cls = self._saved
        full: list[Any] = [None] * call.out_tree.leaves
        for (j, shape, dtype), c in zip(floats, cts):
            full[j] = wrap(np.zeros(shape, dtype), cls) if c is None else c
        values = [_value(k) for k in inputs]
        if call.owner.bwd is None:
            moving = [t for t in (tensor_of(x, cls) for x in values) if t._dtype.is_differentiable]
            grads = _spread(transposed_call(call.owner.name, lambda ts: call.push(values, _spread(ts, values, cls)), moving, full, cls, "the reverse rule (defvjp)"),
                            values, cls)
        elif modes.state.grad:
            grads = call.reverse(call.forward(values)[1], full)
        else:
            leaves, tree = residuals
            grads = call.reverse(tree_unflatten(tree, [_value(k) for k in leaves]), full)
        return tuple([None if g is None or edge[0] is None else fit(tensor_of(g, cls), tensor_of(x, cls), self.name, i, exact=True)
                      for i, (g, x, edge) in enumerate(zip(grads, values, self.next_functions))])


def _keep(x: Any) -> Any:
    return Kept(x) if isinstance(x, (Tensor, np.ndarray)) else x


def _value(k: Any) -> Any:
    return k.value() if isinstance(k, Kept) else k


def _spread(ts: Sequence[Any], values: Sequence[Any], cls: type[Any]) -> list[Any]:
    """One entry per array leaf from one per differentiable leaf."""
    it = iter(ts)
    return [next(it) if tensor_of(x, cls)._dtype.is_differentiable else None for x in values]


class _Custom:
    """A function with rules of its own. Call it as the function."""

    def __init__(self, fun: F, nondiff_argnums: Sequence[int] = ()) -> None:
        if not callable(fun):
            raise AotgradTypeError(f"{type(self).__name__}: {type(fun).__name__} is not callable; pass a function")
        self.fun, self.nondiff = fun, frozenset(nondiff_argnums)
        self.name = getattr(fun, "__name__", type(fun).__name__)
        self.fwd: F | None = None
        self.bwd: F | None = None
        self.jvp: F | None = None
        functools.update_wrapper(self, fun)
        try:
            self._signature: inspect.Signature | None = inspect.signature(fun)
        except (TypeError, ValueError):
            self._signature = None

    def defvjp(self, fwd: F, bwd: F) -> F:
        """``fwd(*args) -> (result, residuals)`` and ``bwd(residuals, cotangent) -> (one gradient or None per argument)``; non-differentiable arguments come first in
        ``bwd``."""
        self.fwd, self.bwd = fwd, bwd
        return bwd

    def defjvp(self, jvp: F) -> F:
        """``jvp(primals, tangents) -> (result, tangent)``, both given as tuples; non-differentiable arguments come first."""
        self.jvp = jvp
        return jvp

    def defjvps(self, *jvps: F | None) -> None:
        """One ``jvp_i(tangent_i, result, *primals)`` per argument (None: no dependence); their sum is the tangent."""

        def jvp(*given: Any) -> tuple[Any, Any]:
            *nondiff, primals, tangents = given
            moved = iter(primals)
            out = self(*[nondiff.pop(0) if i in self.nondiff else next(moved) for i in range(len(nondiff) + len(primals))])
            total: Any = None
            for rule, t in zip(jvps, tangents):
                if rule is not None and t is not None:
                    part = rule(t, out, *primals)
                    total = part if total is None else total + part
            return out, total

        self.jvp = jvp

    def missing(self) -> str:
        """What to do when no rule was given."""
        return f"{self.name} has no derivative rule: give one with {self.name}.defvjp(fwd, bwd) or {self.name}.defjvp(jvp)"

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        return self if obj is None else functools.partial(self, obj)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = _Call(self, self._positional(args, kwargs))
        arrays = call.arrays
        if current() is not None:
            if _forward.of.get(self, 0) > 1:
                return self.fun(*args, **kwargs)
            outs = call_traced(arrays, _TracedCall(call))
            return tree_unflatten(call.out_tree, outs)
        if any(isinstance(x, Dual) for x in arrays):
            outs = self._pushed(call, arrays)
            return tree_unflatten(call.out_tree, outs)
        if modes.state.grad and any(isinstance(x, Tensor) and x._requires_grad for x in arrays):
            outs = self._recorded(call, arrays)
            return tree_unflatten(call.out_tree, outs)
        return self.fun(*args, **kwargs)

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        if not kwargs and not self._has_defaults(len(args)):
            return args
        if self._signature is None:
            raise AotgradTypeError(f"{self.name}: keyword arguments need a function with a signature; pass them by position")
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.kwargs:
            raise AotgradTypeError(f"{self.name}: keyword-only arguments ({', '.join(bound.kwargs)}) cannot be used in a function with rules of its own; make them "
                                   f"positional")
        return bound.args

    def _has_defaults(self, given: int) -> bool:
        return self._signature is not None and given < len(self._signature.parameters)

    @modes.intact
    def _recorded(self, call: _Call, arrays: list[Any]) -> list[Any]:
        cls = flavour(arrays)
        if self.bwd is None and self.jvp is None:
            raise AotgradTypeError(self.missing())
        edges = tuple([edge_of(x) if isinstance(x, Tensor) and x._dtype.is_differentiable else (None, 0) for x in arrays])
        with modes.no_grad():
            outs, residuals = call.forward(arrays)
        made = [_own(tensor_of(o, cls), arrays) for o in outs]
        floats = [j for j, o in enumerate(made) if o._dtype.is_differentiable]
        if not floats:
            return made
        leaves, tree = tree_flatten(residuals)
        kept = ([_keep(x) for x in leaves], tree)
        types = [(j, tuple(made[j].shape), made[j]._dtype.np) for j in floats]
        node = _node_type(self.name, len(floats))(edges, (call.emptied(), [_keep(x) for x in arrays], kept, types, cls))
        return [make_output(o._data, node, floats.index(j), cls) if j in floats else o for j, o in enumerate(made)]

    def _pushed(self, call: _Call, arrays: list[Any]) -> list[Any]:
        level, primals, tangents = split_level(arrays)
        cls = flavour(primals)
        if self.bwd is None and self.jvp is None:
            raise AotgradTypeError(self.missing())
        outs = [tensor_of(o, cls) for o in call.outputs(self(*call.every(primals)))]
        floats = [o if o._dtype.is_differentiable else None for o in outs]
        if self.jvp is not None:
            full = [zeros_like(tensor_of(x, cls)) if t is None and tensor_of(x, cls)._dtype.is_differentiable else t for x, t in zip(primals, tangents)]
            moved = [None if t is None else fit(tensor_of(t, cls), o, self.name, j, "tangent", exact=True) for j,
                     (t, o) in enumerate(zip(call.push(primals, full), outs))]
        else:
            residuals = call.forward(primals)[1]
            likes = [o for o in floats if o is not None]

            def pull(cts: list[Any]) -> list[Any]:
                it = iter(cts)
                return call.reverse(residuals, [None if o is None else next(it) for o in floats])

            found = iter(transposed_call(self.name, pull, likes, tangents, cls, "the forward-mode rule (defjvp)"))
            moved = [None if o is None else next(found) for o in floats]
        return [o if not o._dtype.is_differentiable else make_dual(o, t, level) for o, t in zip(outs, moved)]


def _own(o: Any, inputs: Sequence[Any]) -> Any:
    """A result with memory of its own: a rule's result is no view of an input."""
    shared = any(isinstance(x, (Tensor, np.ndarray)) and np.may_share_memory(o._data, x._data if isinstance(x, Tensor) else x) for x in inputs)
    return o._wrap(o._data.copy()) if shared else o


@functools.lru_cache(maxsize=1024)
def _node_type(name: str, outputs: int) -> type[_RuleNode]:
    title = "".join(part.capitalize() for part in name.strip("<>").split("_"))
    return type(f"{title}Backward", (_RuleNode,), {"__slots__": (), "outputs": outputs})


class custom_vjp(_Custom):
    """Gives a function a reverse-mode rule of its own; forward mode is derived from it (``defjvp`` may give that one too).

    >>> import aotgrad as ag
    >>> @ag.custom_vjp
    ... def clip_gradient(x):
    ...     return x * 1.0
    >>> _ = clip_gradient.defvjp(lambda x: (x * 1.0, None), lambda _, g: (ag.clip(g, -1.0, 1.0),))
    >>> ag.grad(lambda x: 5.0 * clip_gradient(x))(2.0)
    np.float64(1.0)
    """


class custom_jvp(_Custom):
    """Gives a function a forward-mode rule of its own; reverse mode is derived from it (``defvjp`` may give that one too).

    >>> import aotgrad as ag
    >>> @ag.custom_jvp
    ... def log1pexp(x):
    ...     return ag.log(1.0 + ag.exp(x))
    >>> @log1pexp.defjvp
    ... def _(primals, tangents):
    ...     (x,), (t,) = primals, tangents
    ...     return log1pexp(x), (1.0 - 1.0 / (1.0 + ag.exp(x))) * t
    >>> ag.grad(log1pexp)(100.0)
    np.float64(1.0)
    """
