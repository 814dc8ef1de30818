"""A backward pass that fails in its middle, in both packages: what it leaves in leaves, graph and modes, and whether it can be walked again."""

from __future__ import annotations

import contextlib
import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from autograd_pair import f64, modules, outcome, plain, same
from test_autograd_function import functions

import aotgrad as ag

Fail = Callable[..., Any]


def refuse(*args: Any) -> Any:
    """A hook of the user's that fails."""
    raise LookupError("mine")


def bad(m: Any, give: Callable[[Any, Any], Any]) -> Any:
    """A Function of two inputs whose backward is ``give``."""
    class Bad(functions(m).Mul):  # type: ignore[misc]
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return give(ctx.saved_tensors, g)

    return Bad.apply


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "raises": lambda saved, g: refuse(), "too few": lambda saved, g: g, "too many": lambda saved, g: (g, g, g),
    "wrong shape": lambda saved, g: (g * saved[1], g.reshape(1, 1, 2)[:, :, :1].expand(3, 1, 1)), "no tensor": lambda saved, g: (g, "ct"),
}
HOOKS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "tensor hook raises": lambda m, c, mid, out: mid.register_hook(refuse),
    "tensor hook, wrong shape": lambda m, c, mid, out: mid.register_hook(lambda g: g.sum()),
    "tensor hook, no tensor": lambda m, c, mid, out: mid.register_hook(lambda g: 3),
    "second tensor hook raises": lambda m, c, mid, out: (mid.register_hook(lambda g: g * 2), mid.register_hook(refuse)),
    "node prehook raises": lambda m, c, mid, out: mid.grad_fn.register_prehook(refuse),
    "node hook raises": lambda m, c, mid, out: mid.grad_fn.register_hook(refuse),
    "leaf hook raises": lambda m, c, mid, out: c.register_hook(refuse),
    "leaf hook, wrong shape": lambda m, c, mid, out: c.register_hook(lambda g: g.sum()),
    "post accumulate hook raises": lambda m, c, mid, out: c.register_post_accumulate_grad_hook(refuse),
    "hook of the output raises": lambda m, c, mid, out: out.register_hook(refuse),
}
FAULTS = [*(("function", name) for name in FUNCTIONS), *(("hook", name) for name in HOOKS), ("unpack", "unpack hook raises")]
WAYS: dict[str, Callable[..., Any]] = {
    "backward": lambda m, out, leaves, keep: out.backward(retain_graph=keep), "create_graph": lambda m, out, leaves, keep: out.backward(create_graph=True),
    "inputs": lambda m, out, leaves, keep: out.backward(retain_graph=keep, inputs=leaves),
    "grad": lambda m, out, leaves, keep: m.autograd.grad(out, leaves, retain_graph=keep),
    "grad, create_graph": lambda m, out, leaves, keep: m.autograd.grad(out, leaves, create_graph=True),
}


def graph(m: Any, kind: str, name: str) -> tuple[Any, list[Any], Any, Any, Any]:
    """``d`` is complete before the fault, ``a`` and ``b`` are behind it; ``c`` has a gradient already. One intermediate value retains its own. Last what hooks gave."""
    a, b, c, d = (f64(m, v, True) for v in ([1.0, 2.0], [3.0, -1.0], [0.5, 0.25], [2.0, 7.0]))
    c.grad = f64(m, [10.0, 20.0])
    with m.autograd.graph.saved_tensors_hooks(lambda t: t, refuse if kind == "unpack" else lambda t: t):
        first = a.exp() * b
    mid = bad(m, FUNCTIONS[name])(first, c) if kind == "function" else first * c
    late = mid * d
    late.retain_grad()
    out = (late.view(2) + d).sum()
    handles = HOOKS[name](m, c, mid, out) if kind == "hook" else ()
    return out, [a, b, c, d], late, first.grad_fn, handles if isinstance(handles, tuple) else (handles,)


def state(m: Any, kind: str, leaves: list[Any], late: Any, behind: Any) -> Any:
    grads = [None if x.grad is None else (x.grad.detach(), x.grad.requires_grad or x.grad._version) for x in (*leaves, late)]  # of recorded ones torch counts otherwise
    freed = None if kind == "unpack" else outcome(m, lambda m: (behind._saved_other, late.grad_fn._saved_other))[:2]
    return grads, freed, [(x._version, x.requires_grad, x.is_leaf) for x in leaves], m.is_grad_enabled(), m.is_inference_mode_enabled()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "name"), FAULTS, ids=[name for _, name in FAULTS])
def test_as_torch_leaves_things(kind: str, name: str, way: str) -> None:
    """Gradients that were complete have arrived, whole; nothing else has changed. What was not reached can be walked: again, and to the end when the fault is gone."""
    def lines(m: Any, keep: bool, again: bool) -> Any:
        out, leaves, late, behind, handles = graph(m, kind, name)
        found = []
        for _ in range(1 + again):
            error = outcome(m, lambda m: WAYS[way](m, out, leaves, keep))
            found.append((error[:2] if error is not None and error[0] == "error" else error, state(m, kind, leaves, late, behind)))
        if again and handles:
            for handle in handles:
                handle.remove()
            found.append((outcome(m, lambda m: WAYS[way](m, out, leaves, keep)), state(m, kind, leaves, late, behind)))
        return tuple(found)

    same(lambda m: lines(m, True, True))
    (first,) = same(lambda m: lines(m, False, False))
    if way in ("backward", "inputs", "grad") and name != "hook of the output raises":  # freed up to the fault: refused before anything runs
        error, after = lines(ag, False, True)[1]
        assert error == ("error", ("RuntimeError",)) and plain(after) == first[1]


@pytest.mark.parametrize(("kind", "name"), FAULTS, ids=[name for _, name in FAULTS])
def test_modes_profiler_and_memory_afterwards(kind: str, name: str) -> None:
    """A profile that saw the failing pass goes on as if it had ended; the pass itself leaves nothing alive."""
    out, leaves, late, behind, handles = graph(ag, kind, name)
    with ag.no_grad(), ag.autograd.profiler.profile() as prof, ag.autograd.profiler.record_function("around"):
        with pytest.raises((LookupError, ag.AotgradError)):
            out.backward()
        assert not ag.is_grad_enabled()
        with ag.autograd.profiler.record_function("after"):
            leaves[0].exp()
    shown = {e.key: e for e in prof.key_averages()}
    assert shown["around"].count == shown["after"].count == 1
    assert shown["after"].self_cpu_time_total < shown["after"].cpu_time_total <= shown["around"].cpu_time_total  # "after" holds its exp and lies in "around"
    alive = weakref.ref(behind)
    gc.collect()
    gc.disable()
    try:
        del out, leaves, late, behind, handles
        assert alive() is None
    finally:
        gc.enable()


def test_anomaly_mode_ends_its_pass() -> None:
    def lines(m: Any) -> Any:
        x, y = f64(m, [0.0, 1.0], True), f64(m, [2.0, 3.0], True)
        out = (bad(m, lambda saved, g: (g * float("nan"), g))(x, y) * y).sum()
        with m.autograd.detect_anomaly():
            error = outcome(m, lambda m: out.backward())[:2]
        return error, x.grad, y.grad, m.is_anomaly_enabled(), outcome(m, lambda m: m.autograd.grad(y * y, y, m.ones_like(y)))

    assert same(lines)[0] == ("error", ("RuntimeError",))


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_computed_after_a_pass_in_anomaly_mode_was_not_induced_by_it(fails: bool) -> None:
    for m in modules():
        x = f64(m, [2.0, 3.0], True)
        with warnings.catch_warnings(record=True) as seen, contextlib.ExitStack() as stack:
            warnings.simplefilter("always")
            stack.enter_context(m.autograd.detect_anomaly())  # torch warns of the mode itself
            for fault in (fails, True):
                with pytest.raises(LookupError) if fault else contextlib.nullcontext():
                    bad(m, lambda saved, g, fault=fault: refuse() if fault else (g, g))(x, x).sum().backward()
        texts = [str(w.message) for w in seen]
        assert sum("Traceback of forward call that caused" in t for t in texts) == 1 + fails and not any("Previous calculation" in t for t in texts), texts


def packed(m: Any, write: Callable[[], Any], good: int = 0) -> Any:
    """``write()`` where the pack hook fails after ``good`` calls."""
    seen: list[int] = []
    with m.autograd.graph.saved_tensors_hooks(lambda t: (seen.append(1), t if len(seen) <= good else refuse())[1], lambda t: t):
        return write()


WRITES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "shape": lambda m, y, s: y.add_(f64(m, [1.0, 2.0, 3.0])), "wider": lambda m, y, s: y.mul_(f64(m, [[1.0, 2.0], [3.0, 4.0]])),
    "item": lambda m, y, s: y.__setitem__(5, 1.0), "values of an item": lambda m, y, s: y.__setitem__(slice(0, 2), f64(m, [1.0, 2.0, 3.0])),
    "mask": lambda m, y, s: y.__setitem__(m.tensor([True] * 3), 1.0), "copy": lambda m, y, s: y.copy_(f64(m, [1.0, 2.0, 3.0])),
    "fill": lambda m, y, s: y.fill_(f64(m, [1.0, 2.0])), "fill a mask": lambda m, y, s: y.masked_fill_(m.tensor([True, False, True]), 0.0),
    "rows": lambda m, y, s: y.index_add_(0, m.tensor([0, 7]), f64(m, [1.0, 1.0])), "scatter": lambda m, y, s: y.scatter_(0, m.tensor([0, 7]), f64(m, [1.0, 1.0])),
    "clamp": lambda m, y, s: y.clamp_(), "pack": lambda m, y, s: packed(m, lambda: y.mul_(s)), "second pack": lambda m, y, s: packed(m, lambda: y.mul_(s), 1),
    "pack of a result": lambda m, y, s: packed(m, lambda: y.exp_()), "pack, through a view": lambda m, y, s: packed(m, lambda: y[0].mul_(s[0])),
    "requires_grad": lambda m, y, s: y.requires_grad_(False), "data": lambda m, y, s: setattr(y, "data", 3), "detach a view": lambda m, y, s: y[0:1].detach_(),
    "grad of another shape": lambda m, y, s: setattr(s, "grad", f64(m, [1.0, 2.0, 3.0])), "no grad": lambda m, y, s: setattr(s, "grad", 3),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_fails_changes_nothing(name: str) -> None:
    """The error is of torch's type; numbers, versions, history and gradients are as before, also where torch has written half of the elements."""
    def operands(m: Any) -> Any:
        x, s = f64(m, [1.0, 2.0], True), f64(m, [3.0, 4.0], True)
        return x, x * 2, s

    found = [outcome(m, lambda m: WRITES[name](m, *operands(m)[1:])) for m in modules()]
    x, y, s = operands(ag)
    view = y.view(2)
    assert outcome(ag, lambda m: WRITES[name](m, y, s)) == found[0]
    assert y.tolist() == view.tolist() == [2.0, 4.0] and y._version == view._version == s._version == 0 and s.grad is None
    assert y.grad_fn.name() == "MulBackward0" and ag.autograd.grad((y * view).sum(), x)[0].tolist() == [8.0, 16.0]
    assert all(error[0] == "error" and {*error[1]} <= {*found[0][1]} for error in found), found


def test_a_trace_that_fails_beside_a_namespace() -> None:
    """Names that a function reaches through a dict, Python's own among them, are there afterwards; what it changed is as before."""
    names: dict[str, object] = {"ag": ag, "seen": []}
    names["names"] = names
    exec("def f(x):\n    names['seen'].append(1)\n    return x[x > 0] * len(names['seen'])", names)
    with pytest.raises(IndexError, match="how many elements"):
        ag.compile(names["f"])(ag.ones(3))
    assert names["seen"] == [] and names["f"](ag.ones(2)).tolist() == [1.0, 1.0]
