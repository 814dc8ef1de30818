"""What a call costs before it computes anything."""

from __future__ import annotations

from typing import Any

import numpy as np

import aotgrad as ag

from ..harness import OURS, Bench, Candidate, optional
from ..limits import empty_builtin

FLOOR = 100.0  # nanoseconds over an empty builtin
TENSORS = 1.0  # microseconds that a call recorded on the tape may take longer than the same of NumPy arrays


def run(bench: Bench) -> None:
    """Functions that do next to nothing, of one to three arrays, bound buffers, keyword arguments, pytrees."""
    x, y, z = np.ones(10), np.ones(10), np.ones(10)
    builtin, what = empty_builtin()
    first = ag.compile(lambda x: x[0])
    empty = Candidate("empty builtin", builtin, lambda out: [1.0], what, args=(x,))
    rows = bench.case("scalar out of an array", [Candidate(OURS, first, lambda out: [out], args=(x,)), empty], [1.0], 0.0)
    extra = 1e9 * (rows[OURS]["seconds"] - rows["empty builtin"]["seconds"])
    bench.target("call over an empty METH_FASTCALL builtin, scalar out", extra, FLOOR, unit="ns")
    bound = ag.compile(lambda x: x + 1).prebind(x)
    rows = bench.case("bound buffers", [Candidate(OURS, bound, lambda out: [bound.out]), Candidate("empty builtin", builtin, lambda out: [x + 1])], [x + 1], 0.0)
    bench.target("prebound call over an empty METH_FASTCALL builtin", 1e9 * (rows[OURS]["seconds"] - rows["empty builtin"]["seconds"]), FLOOR, unit="ns")
    _arrays(bench, x, y, z)
    _recorded(bench, x, y)
    _other_forms(bench, x, y)


def _arrays(bench: Bench, x: Any, y: Any, z: Any) -> None:
    one, two, three = ag.compile(lambda x: x + 1), ag.compile(lambda x, y: x + y), ag.compile(lambda x, y, z: x + y + z)
    candidates = [Candidate(OURS, one, lambda out: [out], args=(x,)), Candidate("numpy x + 1", lambda x: x + 1, lambda out: [out], args=(x,))]
    candidates += bench.peer("numba", lambda: _numba(x)) + bench.peer("jax.jit", lambda: _jax(x))
    bench.case("array of 10 in, new array out", candidates, [x + 1], 0.0)
    bench.case("two arrays in", [Candidate(OURS, two, lambda out: [out], args=(x, y)), Candidate("numpy x + y", np.add, lambda out: [out], args=(x, y))], [x + y], 0.0)
    three_numpy = Candidate("numpy x + y + z", lambda x, y, z: x + y + z, lambda out: [out], args=(x, y, z))
    bench.case("three arrays in", [Candidate(OURS, three, lambda out: [out], args=(x, y, z)), three_numpy], [x + y + z], 0.0)


def _recorded(bench: Bench, x: Any, y: Any) -> None:
    f = ag.compile(lambda x, y: x * y + x)
    a, b = (ag.tensor(v, requires_grad=True) for v in (x, y))
    recorded = Candidate("on tensors that require gradients", f, lambda out: [out.detach().numpy()], args=(a, b))
    rows = bench.case("two arrays, or tensors on the tape", [Candidate(OURS, f, lambda out: [out], args=(x, y)), recorded], [x * y + x], 0.0)
    bench.target("compiled call recorded on the tape, over the NumPy call", 1e6 * (rows[recorded.name]["seconds"] - rows[OURS]["seconds"]), TENSORS, unit="us")


def _other_forms(bench: Bench, x: Any, y: Any) -> None:
    two = ag.compile(lambda x, y: x + y)
    tree = ag.compile(lambda p: p["a"] + p["b"])
    strided = np.ones(20)[::2]
    candidates = [
        Candidate(OURS, two, lambda out: [out], "two positional arrays", args=(x, y)),
        Candidate("keyword arguments", lambda: two(x=x, y=y), lambda out: [out], "in a Python function"),
        Candidate("dict of two arrays", tree, lambda out: [out], args=({"a": x, "b": y},)),
        Candidate("one strided array", two, lambda out: [out], args=(strided, y)),
        Candidate("Python float and array", two, lambda out: [out], args=(1.0, y)),
    ]
    bench.case("other forms of arguments", candidates, [x + y], 0.0)


def _numba(x: Any) -> Candidate:
    nb = optional("numba")
    return Candidate("numba", nb.njit(lambda x: x + 1), lambda out: [out], args=(x,))


def _jax(x: Any) -> Candidate:
    jx = optional("jax")
    jx.config.update("jax_enable_x64", True)
    f = jx.jit(lambda x: x + 1)
    return Candidate("jax.jit", lambda x: np.asarray(f(x)), lambda out: [out], args=(x,))
