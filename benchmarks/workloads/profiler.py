"""What the profiler costs: nothing while it is off, and little while it is on, on a step of a few milliseconds."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np

import aotgrad as ag
from aotgrad.frontend import dispatch
from aotgrad_runtime import engine
from aotgrad_runtime.profiler import state

from ..harness import OURS, Bench, Candidate

LIMIT = 3.0  # per cent beyond the A/A spread
OFF_LIMIT = 0.5  # the same while off: what can be told from nothing
RATE = 0.01
STEPS = 10


def run(bench: Bench) -> None:
    """Off against copies of the code without its hook points; on against off."""
    _off_eager(bench)
    _off_backward(bench)
    for name, batch, width in (("eager", 256, 256), ("compiled, NumPy", 256, 256), ("compiled, tensors", 256, 256)):
        step, values = _eager(batch, width) if name == "eager" else _numpy(batch, width) if name == "compiled, NumPy" else _tensors(batch, width)
        _on(bench, name, step, values)


# ---- off ------------------------------------------------------------------------------------------------------------------------------

def _rewritten(module: Any, functions: list[Any], changes: dict[str, str]) -> dict[str, Any]:
    """The names of a module with some functions compiled anew from changed text."""
    names = dict(vars(module))
    for f in functions:
        text = textwrap.dedent(inspect.getsource(f))
        for old in [old for old in changes if old in text]:
            text = text.replace(old, changes[old])
        exec(compile(text, module.__file__, "exec"), names)
    return names


def _off_eager(bench: Bench) -> None:
    a, b = ag.tensor(np.ones(10, np.float32), requires_grad=True), ag.tensor(np.ones(10, np.float32))
    bare = _rewritten(dispatch, [dispatch.run, dispatch.call, dispatch.function], {"run_eager(": "_run_eager("})["function"](dispatch.TORCH["add"], "add")
    with_points = _rewritten(dispatch, [dispatch.run, dispatch.call, dispatch.function], {})["function"](dispatch.TORCH["add"], "add")
    candidates = [Candidate(OURS, with_points, _array, args=(a, b)), Candidate("without hook points", bare, _array, args=(a, b))]
    rows = bench.case("off: a + b of ten elements, recorded", candidates, [np.full(10, 2.0)], 0.0)
    bench.excess("off, eager add against the same code without hook points", 1.0 / rows["without hook points"]["ratio"], rows, OFF_LIMIT)


def _array(out: Any) -> list[Any]:
    return [out.detach().numpy()]


def _off_backward(bench: Bench) -> None:
    functions = [engine._Run, engine._run, engine._run_node, engine._execute, engine.backward]
    changes = {
        ', "recorder"': "", "        self.recorder = profiler.state.recorder\n": "", "    recorder = run.recorder\n": "",
        "run.needed is None and recorder is None": "run.needed is None",
        "            if recorder is None:\n                _finish_leaf(run, end)\n            else:\n                recorder.leaf(_finish_leaf, run, end)\n":
            "            _finish_leaf(run, end)\n",
        "tape.run_apply(node, cts) if recorder is None else recorder.node(tape.run_apply, node, cts)": "tape.run_apply(node, cts)",
    }
    bare, same = _rewritten(engine, functions, changes)["backward"], _rewritten(engine, functions, {})["backward"]
    x = ag.tensor(np.full(10, 0.5), requires_grad=True)
    y = x
    for _ in range(20):
        y = y * 1.01
    out = y.sum()

    def backward(how: Callable[..., Any]) -> Callable[[], Any]:
        def call() -> Any:
            x.grad = None
            how([out], None, True)
            return x.grad
        return call

    candidates = [Candidate(OURS, backward(same), _array), Candidate("without hook points", backward(bare), _array)]
    rows = bench.case("off: backward of 20 operations on ten elements", candidates, [np.full(10, 1.01**20)], 1e-12)
    bench.excess("off, backward against the same code without hook points", 1.0 / rows["without hook points"]["ratio"], rows, OFF_LIMIT)


# ---- on -------------------------------------------------------------------------------------------------------------------------------

def _on(bench: Bench, name: str, step: Callable[[], Any], values: Callable[[Any], Any]) -> None:
    """A call is STEPS steps in a row: the kernels of a profiled call have memory of their own, which only the first step finds cold."""

    def plain() -> Any:
        for _ in range(STEPS):
            out = step()
        return out

    def profiled() -> Any:
        with ag.autograd.profiler.profile():
            return plain()

    for _ in range(3):
        profiled()
    assert state.recorder is None
    rows = bench.case(f"on: {STEPS} {name} steps", [Candidate(OURS, plain, values), Candidate("in a profile", profiled, values)], values(step()), 1e-6)
    with ag.autograd.profiler.profile() as prof:
        step()
    bench.fact(f"on: {name} step, events", len(prof.function_events or ()))
    bench.excess(f"on, {name} step against the same step unwatched", rows["in a profile"]["ratio"], rows, LIMIT)


def _weights(width: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(width, width)) / np.sqrt(width)).astype(np.float32) for _ in range(4)]


def _loss(x: Any, *weights: Any) -> Any:
    for w in weights:
        x = ag.tanh(ag.matmul(x, w))
    return ag.mean(x * x)


def _eager(batch: int, width: int) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    weights = [ag.tensor(w, requires_grad=True) for w in _weights(width)]
    x = ag.tensor(np.ones((batch, width), np.float32))

    def step() -> Any:
        loss = _loss(x, *weights)
        grads = ag.autograd.grad(loss, weights)
        with ag.no_grad():
            return [loss, *(w - RATE * g for w, g in zip(weights, grads))]

    return step, lambda out: [v.detach().numpy() for v in out]


def _numpy(batch: int, width: int) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    weights, x = _weights(width), np.ones((batch, width), np.float32)
    compiled = ag.compile(ag.value_and_grad(_loss, argnums=(1, 2, 3, 4)))
    return lambda: compiled(x, *weights), lambda out: [out[0], *out[1]]


def _tensors(batch: int, width: int) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    weights = [ag.tensor(w, requires_grad=True) for w in _weights(width)]
    x, compiled = ag.tensor(np.ones((batch, width), np.float32)), ag.compile(_loss)

    def step() -> Any:
        loss = compiled(x, *weights)
        return [loss, *ag.autograd.grad(loss, weights)]

    return step, lambda out: [v.detach().numpy() for v in out]
