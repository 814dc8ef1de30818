"""Calls of Python that do something beside their results: they run as often as the program calls them, in its order, also where nobody uses what they give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotgrad as ag

X = np.array([1.0, 2.0])


class Counter:
    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.call = ag.host_call(self._note, lambda x: x, jvp=lambda xs, ts: [ts[0]], vjp=lambda xs, cts: [cts[0]])

    def _note(self, x: Any) -> Any:
        self.seen.append(np.array(x))
        return x


@pytest.mark.parametrize("way", [lambda f: f, ag.compile, ag.grad, lambda f: ag.compile(ag.grad(f)), lambda f: ag.grad(ag.compile(f)),
                                 lambda f: ag.compile(lambda x: ag.jvp(f, (x,), (x,))[1]), lambda f: ag.compile(ag.hessian(f))])
def test_unused_calls_run_once_each(way: Any) -> None:
    tell = Counter()

    def f(x: Any) -> Any:
        tell.call(x)
        tell.call(x)  # equal, and still a second call
        return np.sum(x * x)

    g = way(f)
    for x in (X, X + 1, X + 2):
        tell.seen.clear()
        g(x)
        assert len(tell.seen) == 2
        np.testing.assert_array_equal(tell.seen[0], x)


def test_unused_calls_in_loops_and_branches() -> None:
    tell = Counter()

    def loop(x: Any) -> Any:
        return ag.scan(lambda c, v: ((tell.call(v), c + v * v)[1], None), 0.0, x)[0]

    for g in (loop, ag.compile(loop)):
        for n in (3, 5):
            tell.seen.clear()
            assert g(np.arange(float(n))) == pytest.approx(np.sum(np.arange(n) ** 2))
            assert [float(v) for v in tell.seen] == list(range(n))
    tell.seen.clear()
    np.testing.assert_allclose(ag.compile(ag.grad(loop))(X), 2 * X)
    assert [float(v) for v in tell.seen[:2]] == [1, 2]

    def branch(x: Any) -> Any:
        return ag.cond(x[0] > 0, lambda x: (tell.call(x), x)[1], lambda x: -x, x)

    g = ag.compile(branch)
    for x, count in ((X, 1), (-X, 0)):
        tell.seen.clear()
        g(x)
        assert len(tell.seen) == count


def test_debug_print_shows_numbers_when_the_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: Any) -> Any:
        ag.debug_print("x {} mean {m:.2f} n {n} {}", x, "text", m=np.mean(x), n=x.shape[0])
        return np.sum(x * x)

    want = "x [1. 2.] mean 1.50 n 2 text\n"
    for g in (f, ag.compile(f), ag.grad(f), ag.compile(ag.grad(f)), ag.grad(ag.compile(f)), lambda x: ag.jvp(f, (x,), (x,))):
        for _ in range(2):
            g(X)
            assert capsys.readouterr().out == want
    t = ag.tensor([1.0, 2.0], requires_grad=True)
    ag.debug_print("{} {:.1f}", t, t.sum())
    assert capsys.readouterr().out == "[1. 2.] 3.0\n"
    ag.compile(lambda t: (ag.debug_print("{}", t), t.sum())[1])(t).backward()
    assert capsys.readouterr().out == "[1. 2.]\n"


def test_debug_print_in_loops_and_without_values(capsys: pytest.CaptureFixture[str]) -> None:
    ag.compile(lambda x: ag.fori_loop(0, 2, lambda i, c: (ag.debug_print("step {i}", i=i), c * 2)[1], x))(X)
    assert capsys.readouterr().out == "step 0\nstep 1\n"
    f = ag.compile(lambda x: (ag.debug_print("here"), x)[1])
    f(X), f(X)
    assert capsys.readouterr().out == "here\nhere\n"
    ag.vmap(lambda x: (ag.debug_print("{}", x), x)[1])(X)
    assert capsys.readouterr().out == "1.0\n2.0\n"


def test_debug_print_errors(tmp_path: Path) -> None:
    with pytest.raises(ag.AotgradTypeError, match="debug_print: the first argument is a text"):
        ag.debug_print(X)  # type: ignore[arg-type]
    with pytest.raises(ag.AotgradNotImplementedError, match=r"test_effects.*debug_print"):
        ag.aot.build(lambda x: (ag.debug_print("{}", x), x)[1], ["x: f64[n]"], name="f", out=tmp_path)
    with pytest.raises(ag.AotgradTypeError, match="debug_print"):
        ag.compile(lambda x: (ag.debug_print("{}", x), x)[1], name="f").lower(X)
