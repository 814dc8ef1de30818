"""Calls of compiled functions: what goes in, what comes out, when it is traced again, and what wrong calls say."""

from __future__ import annotations

import _thread
import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.ir import opdef

X = np.array([1.0, 2.0, 3.0])


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass
class Point:
    x: Any
    y: Any


@pytest.mark.parametrize("tree", [{"p": X, "q": 2.0}, [X, X + 1], (X, (X, 3.0)), Pair(X, X * 2), Point(X, np.float64(2.0)), {"n": {"m": [X]}}])
def test_pytrees_in_and_out(tree: Any) -> None:
    f = ag.compile(lambda t: ag.frontend.pytree.tree_map(lambda v: v * 2.0, t))
    out = f(tree)
    assert type(out) is type(tree)
    got, wanted = (ag.frontend.pytree.tree_flatten(t)[0] for t in (out, tree))
    for a, b in zip(got, wanted):
        np.testing.assert_array_equal(a, np.asarray(b) * 2)


@dataclasses.dataclass(frozen=True)
class Settings:
    w: Any
    power: int = 2
    name: str = "k"


@pytest.mark.parametrize("wrap", [lambda f: f, ag.compile], ids=["eager", "compiled"])
@pytest.mark.parametrize(("make", "f", "want"), [
    (lambda: Pair(X, X * 2), lambda p: (p.a * p.b).sum(), Pair(X * 2, X)), (lambda: Point(X, X * 2), lambda p: (p.x * p.y).sum(), Point(X * 2, X)),
    (lambda: Settings(X, 3), lambda p: (p.w ** p.power).sum(), Settings(3 * X * X, None, None)),
    (lambda: {"a": [X], "n": None, "i": 3}, lambda p: (p["a"][0] * p["i"]).sum(), {"a": [X * 0 + 3], "n": None, "i": None}),
], ids=["namedtuple", "dataclass", "frozen, with constants", "None and an integer"])
def test_gradients_have_the_structure_of_their_argument(wrap: Any, make: Any, f: Any, want: Any) -> None:
    value, gradient = wrap(ag.value_and_grad(f))(make())
    assert value == pytest.approx(f(make())) and type(gradient) is type(want)
    (got, tree), (right, wanted) = (ag.frontend.pytree.tree_flatten(t) for t in (gradient, want))
    assert tree == wanted
    for a, b in zip(got, right, strict=True):
        assert a is b is None or np.array_equal(a, b)


def test_numpy_in_numpy_out_and_tensors_in_tensors_out() -> None:
    f = ag.compile(lambda x: ag.sum(x * 2))
    assert type(f(X)) is np.float64
    assert type(ag.compile(lambda x: x * 2)(X)) is np.ndarray
    t = ag.tensor(X, requires_grad=True)
    out = f(t)
    assert isinstance(out, ag.Tensor) and out.grad_fn is not None
    out.backward()
    np.testing.assert_array_equal(t.grad.numpy(), [2, 2, 2])
    with ag.no_grad():
        assert f(t).grad_fn is None


@pytest.mark.parametrize("view", [lambda a: a[::2], lambda a: a[::-1], lambda a: a.T, lambda a: np.asfortranarray(a),
                                  lambda a: a[1:, ::-2], lambda a: a[:0], lambda a: a[:1, :1]])
def test_arrays_in_any_layout(view: Any) -> None:
    a = view(np.arange(30.0).reshape(5, 6))
    np.testing.assert_array_equal(ag.compile(lambda v: v * v + 1)(a), a * a + 1)
    np.testing.assert_allclose(ag.compile(lambda v: v.sum(axis=0))(a), a.sum(axis=0))


def test_big_endian_and_read_only_inputs() -> None:
    f = ag.compile(lambda v: v * 2)
    np.testing.assert_array_equal(f(X.astype(">f8")), X * 2)
    ro = X.copy()
    ro.flags.writeable = False
    np.testing.assert_array_equal(f(ro), X * 2)


def test_results_never_alias_inputs() -> None:
    for f in (lambda v: v, lambda v: v[1:], lambda v: v.reshape(3, 1), lambda v: (v, v)):
        out = ag.compile(f)(X)
        for o in out if isinstance(out, tuple) else (out,):
            assert not np.may_share_memory(o, X)
    a, b = ag.compile(lambda v: (v, v))(X)
    assert not np.may_share_memory(a, b)


def test_python_numbers_are_weak_and_float64() -> None:
    f = ag.compile(lambda x, s: x * s)
    assert f(X.astype(np.float32), 2.0).dtype == np.float32
    assert f(2.0, 3.0) == 6.0 and type(f(2.0, 3.0)) is np.float64
    assert f(2, 3) == 6 and type(f(2, 3)) is np.int64
    assert f(np.float32(2), 3.0).dtype == np.float32


def test_keywords_static_and_out() -> None:
    f = ag.compile(lambda x, *, scale=2.0: x * scale)
    np.testing.assert_array_equal(f(X, scale=3.0), X * 3)
    np.testing.assert_array_equal(f(X), X * 2)
    g = ag.compile(lambda x, mode: x + 1 if mode == "up" else x - 1, static="mode")
    np.testing.assert_array_equal(g(X, "up"), X + 1)
    np.testing.assert_array_equal(g(X, mode="down"), X - 1)
    out = np.empty(3)
    assert f(X, out=out) is out
    np.testing.assert_array_equal(out, X * 2)
    with pytest.raises(ag.AotgradError, match="out="):
        f(X, out=np.empty(4))
    with pytest.raises(ag.AotgradError, match="static='nope'"):
        ag.compile(lambda x: x, static="nope")


OUT: dict[str, tuple[Any, Any]] = {
    "number": (lambda x: x.sum(), lambda: np.empty(())), "index": (lambda x: x.argmax(), lambda: np.empty((), np.int64)),
    "bools": (lambda x: x > 1, lambda: np.empty(3, bool)), "tuple": (lambda x: (x * 2, x.sum()), lambda: (np.empty(3), np.empty(()))),
    "dict": (lambda x: {"b": x - 1, "a": [x * 2]}, lambda: {"a": [np.empty(3)], "b": np.empty(3)}),
    "namedtuple": (lambda x: Pair(x * 2, x.sum()), lambda: Pair(np.empty(3), np.empty(()))),
    "dataclass": (lambda x: Point(x * 2, x.sum()), lambda: Point(np.empty(3), np.empty(()))),
    "with None": (lambda x: (x * 2, None), lambda: (np.empty(3), None)), "with a constant": (lambda x: (x * 2, 3.0), lambda: (np.empty(3), np.empty(()))),
    "gradient": (ag.value_and_grad(lambda x: (x * x).sum()), lambda: (np.empty(()), np.empty(3))), "an argument itself": (lambda x: x, lambda: np.empty(3)),
    "strided": (lambda x: x * 2, lambda: np.empty(6)[::2]), "backwards": (lambda x: x * 2, lambda: np.empty(3)[::-1]),
}


@pytest.mark.parametrize("name", OUT)
def test_out_takes_the_structure_of_the_result(name: str) -> None:
    f, make = OUT[name]
    compiled, leaves = ag.compile(f), lambda tree: ag.frontend.pytree.tree_flatten(tree)[0]
    for x in (X, X + 1, X):
        out, want = make(), compiled(x)
        mine = leaves(out)
        assert compiled(x, out=out) is out
        for now, before, w in zip(leaves(out), mine, leaves(want), strict=True):
            assert now is before and not np.may_share_memory(now, x)
            np.testing.assert_array_equal(now, w)


def test_out_beside_keywords_static_methods_and_captured_arrays() -> None:
    f = ag.compile(lambda x, mode, *, k=2.0: x * k if mode == "up" else x / k, static="mode")
    out = np.empty(3)
    for mode, k in (("up", 2.0), ("down", 4.0), ("up", 3.0)):
        assert f(X, mode, k=k, out=out) is out and f(X, mode=mode, k=k).tolist() == out.tolist()
    w = np.array([1.0, 10.0, 100.0])
    g = ag.compile(lambda x: x * w)
    assert g(X, out=w) is w and w.tolist() == [1.0, 20.0, 300.0] and g(X).tolist() == [1.0, 40.0, 900.0]  # read before it is written
    x = X.copy()
    assert ag.compile(lambda v: v[::-1] + v)(x, out=x) is x and x.tolist() == [4.0, 4.0, 4.0]
    assert ag.compile(lambda x, out=None: x if out is None else x + out)(X, out=X).tolist() == (2 * X).tolist()  # a parameter of that name is the function's
    read_only = np.empty(3)
    read_only.flags.writeable = False
    with pytest.raises(ag.AotgradValueError, match="out= is read-only"):
        g(X, out=read_only)


def test_integer_used_as_a_number_becomes_static() -> None:
    f = ag.compile(lambda x, n: sum((x * i for i in range(n)), x * 0))
    np.testing.assert_array_equal(f(X, 3), X * 3)
    np.testing.assert_array_equal(f(X, 4), X * 6)
    np.testing.assert_array_equal(f(X, 3), X * 3)
    assert f.cache_info().variants == 2


class Model:
    def __init__(self, w: Any) -> None:
        self.w = w

    @ag.compile
    def loss(self, x: Any) -> Any:
        return ag.sum(self.w * x)


def test_methods_and_attributes_that_change() -> None:
    m, n = Model(np.ones(3)), Model(np.zeros(3))
    assert (m.loss(X), n.loss(X)) == (6.0, 0.0)
    m.w = np.full(3, 2.0)
    assert m.loss(X) == 12.0
    m.w[0] = 0.0
    assert m.loss(X) == 10.0


SCALE = np.ones(3)


def test_captured_arrays_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    f = ag.compile(lambda x: ag.sum(SCALE * x))
    assert f(X) == 6.0
    SCALE[0] = 10.0
    assert f(X) == 15.0
    SCALE[0] = 1.0
    monkeypatch.setattr(sys.modules[__name__], "SCALE", np.zeros(3))
    assert f(X) == 0.0
    w = np.ones(3)
    g = ag.compile(lambda x: ag.sum(w * x))
    assert g(X) == 6.0
    w = np.zeros(3)
    assert g(X) == 0.0
    w = np.ones((2, 3))
    assert g(X) == 12.0
    t = ag.tensor(np.ones(3))
    h = ag.compile(lambda x: ag.sum(t * x))
    assert float(h(X)) == 6.0
    t.mul_(2.0)
    assert float(h(X)) == 12.0


def rosenbrock(x: Any) -> Any:
    return np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


ALL_SIZES: dict[str, Any] = {
    "elementwise": lambda x: np.exp(x) + 1, "value and gradient": ag.value_and_grad(rosenbrock), "hvp": lambda x: ag.hvp(rosenbrock, x, x),
    "sum and mean": lambda x: (x.sum(), (x * x).mean()), "cumsum": lambda x: np.cumsum(x), "reversed": lambda x: x[::-1] * x,
    "every second": lambda x: x[::2] * 2.0, "outer": lambda x: np.outer(x, x).sum(axis=0), "product": lambda x: x @ x,
    "concatenate": lambda x: np.concatenate([x, x * 2]), "differences": lambda x: np.diff(x), "pad": lambda x: np.pad(x, (1, 2)),
    "roll": lambda x: np.roll(x, 1), "where": lambda x: np.where(x > 0, x, 0.5),
    "two dims": lambda x: (x[None, :] * x[:, None]).sum(axis=1) + x, "reshape": lambda x: x.reshape(-1, 1) * 2.0, "softmax": lambda x: ag.softmax(x, dim=0),
    "variance": ag.value_and_grad(lambda x: np.var(x) + np.linalg.norm(x)), "prod": ag.value_and_grad(lambda x: np.prod(x)),
    "scan": lambda x: ag.scan(lambda c, v: (c * 0.5 + v, c), 0.0, x)[1],
    "gradient of a scan": ag.grad(lambda x: ag.scan(lambda c, v: (c * 0.5 + v, c), 0.0 * x.sum(), x)[0]),
}


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # NumPy's own, of means of nothing
@pytest.mark.parametrize("name", ALL_SIZES)
def test_one_compile_serves_all_sizes_of_a_rank(name: str) -> None:
    """200 lengths, 0 and 1 among them, whichever comes first."""
    f = ALL_SIZES[name]
    g = ag.compile(f)
    for n in [5, *range(200)]:
        x = np.linspace(-1, 1, n)
        got = g(x)
        if n < 9 or n in (64, 199):
            for a, b in zip(*(v if isinstance(v, tuple) else (v,) for v in (got, f(x)))):
                np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-11, atol=1e-13)
    assert g.cache_info().traces == 1 and g.cache_info().variants == 1
    if name in ("elementwise", "cumsum"):
        for first in (0, 1):
            h = ag.compile(f)
            for n in (first, 7, 0, 1, 2):
                np.testing.assert_allclose(h(np.ones(n)), f(np.ones(n)), rtol=1e-14)
            assert h.cache_info().traces == 1


def test_one_compile_serves_all_sizes_of_two_arguments() -> None:
    f = ag.compile(lambda x, y: ag.sum(x * y) + ag.amax(ag.abs(x) + 1.0))
    for n in range(1, 201):
        x = np.linspace(-1, 1, n)
        assert f(x, x) == pytest.approx(np.sum(x * x) + np.max(np.abs(x) + 1))
    assert f.cache_info().traces == 1


def test_sizes_that_decide_are_guarded() -> None:
    def f(x: Any) -> Any:
        return x * 2 if x.shape[0] == 3 else x * 5

    g = ag.compile(f)
    for n in (3, 4, 5, 3, 1, 0):
        np.testing.assert_array_equal(g(np.ones(n)), np.full(n, 2 if n == 3 else 5))
    h = ag.compile(lambda x, y: x + y)
    np.testing.assert_array_equal(h(np.ones(3), np.ones(3)), np.full(3, 2))
    np.testing.assert_array_equal(h(np.ones(3), np.ones(1)), np.full(3, 2))
    np.testing.assert_array_equal(h(np.ones(1), np.ones(4)), np.full(4, 2))
    with pytest.raises(ag.AotgradError, match="sizes 3 and 4"):
        h(np.ones(3), np.ones(4))


def test_prebind() -> None:
    x = X.copy()
    run = ag.compile(ag.value_and_grad(lambda v: ag.sum(v * v))).prebind(x)
    run()
    assert run.out[0] == 14.0
    x[:] = 1.0
    run()
    assert run.out[0] == 3.0 and run.out[1].tolist() == [2, 2, 2]


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize(("f", "x", "given"), [
    (lambda x: ag.exp(x) * 2, X, {}), (lambda p: {"y": ag.exp(p["x"])}, {"x": X}, {}), (ag.value_and_grad(lambda x: ag.exp(x).sum()), X, {}),
    (lambda x: ag.exp(x) + 1, X, {"out": np.empty(3)}), (lambda x, k=2.0: ag.exp(x) * k, X, {"k": 3.0}), (ag.vmap(lambda v: ag.exp(v)), X, {}),
], ids=["array", "dict", "gradient", "out", "keyword", "vmap"])
def test_verify_compares_the_first_calls_with_the_interpreter(f: Any, x: Any, given: Any, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another meaning of exp in the interpreter: exactly the first n calls tell of it; and without, none."""
    sound = ag.compile(f, verify=n)
    for _ in range(n + 1):
        sound(x, **given)
    op = opdef.get("exp")
    monkeypatch.setitem(opdef._REGISTRY, "exp", dataclasses.replace(op, ref=lambda v: np.exp(v) * (1 + 1e-6)))
    wrong = ag.compile(f, verify=n, name="tested")
    for call in range(n + 2):
        if call < n:
            with pytest.raises(ag.AotgradError, match=r"verify: result \d of tested differs from the interpreter"):
                wrong(x, **given)
        else:
            wrong(x, **given)


def test_verify_asks_for_as_many_digits_of_small_results_and_knows_what_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the largest element, not an amount; where nearly nothing is left of large terms, what rounding of the inputs changes. Binding is a call."""
    ag.compile(lambda x: np.sum(ag.exp(x) / np.sum(ag.exp(x))) - 1.0, verify=1)(np.linspace(-3, 20, 500))
    ag.compile(ag.grad(lambda x: np.sum(ag.softmax(x, 0))), verify=1)(np.linspace(-3, 20, 500))
    op = opdef.get("exp")
    monkeypatch.setitem(opdef._REGISTRY, "exp", dataclasses.replace(op, ref=lambda v: np.exp(v) * (1 + 1e-6)))
    for run in (lambda f: f(X), lambda f: f.prebind(X)):
        with pytest.raises(ag.AotgradError, match="differs from the interpreter by .*e-1[5-9]"):
            run(ag.compile(lambda x: ag.exp(x) * 1e-12, verify=1))
    with pytest.raises(ag.AotgradError, match="result 1 of .* differs"):
        ag.compile(lambda x: (x, (ag.exp(x) * 1e6).astype(np.int64)), verify=1)(X)


def test_verify_compares_calls_on_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    op = opdef.get("exp")
    monkeypatch.setitem(opdef._REGISTRY, "exp", dataclasses.replace(op, ref=lambda v: np.exp(v) * (1 + 1e-6)))
    f = ag.compile(lambda x: ag.exp(x), verify=1)
    with pytest.raises(ag.AotgradError, match="differs from the interpreter"):
        f(ag.tensor(X, requires_grad=True))


def test_explain_trace_and_lower() -> None:
    f = ag.compile(lambda x: ag.sum(x * x))
    f(X)
    assert "1 trace(s)" in f.explain(X) and "kernel" in f.explain(X)
    assert '"ag.mul"' in str(f.trace(X))
    levels = f.lower(X)
    assert "scf.for" in levels.kernel_ir and "define" in levels.llvm_ir and "ret" in levels.asm


def test_transforms_of_compiled_functions_and_back() -> None:
    f = ag.compile(lambda x: ag.sum(ag.sin(x) * x))
    right = np.cos(X) * X + np.sin(X)
    for g in (ag.grad(f), ag.compile(ag.grad(f)), ag.compile(ag.compile(ag.grad(f)))):
        np.testing.assert_allclose(g(X), right, rtol=1e-14)
    second = np.diag(2 * np.cos(X) - X * np.sin(X))
    for h in (ag.hessian(f), ag.compile(ag.hessian(f)), ag.jacfwd(ag.compile(ag.grad(f))), ag.jacrev(ag.grad(f))):
        np.testing.assert_allclose(h(X), second, rtol=1e-13, atol=1e-14)


def test_disable_compile_runs_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTGRAD_DISABLE_COMPILE", "1")
    seen = []
    f = ag.compile(lambda x: (seen.append(type(x)), x * 2)[1])
    np.testing.assert_array_equal(f(X), X * 2)
    assert seen == [np.ndarray]


def test_threads_first_call_together() -> None:
    f = ag.compile(lambda x: ag.sum(ag.exp(x)))
    out: list[Any] = []
    threads = [threading.Thread(target=lambda k=k: out.append((k, f(np.full(4, float(k)))))) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(v == pytest.approx(4 * np.exp(k)) for k, v in out) and len(out) == 8


def test_ctrl_c_interrupts_a_long_call() -> None:
    f = ag.compile(lambda c, n: ag.fori_loop(0, n, lambda i, v: ag.cos(v), c), static="n")
    f(1.0, 10)
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT) if threading.current_thread() is not threading.main_thread() else _thread.interrupt_main())
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        started = time.monotonic()
        f(1.0, 3 * 10**9)
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(("call", "says"), [
    (lambda: ag.compile(lambda x: x if x.sum() > 0 else -x)(X), r"test_compile.py:\d+.*condition.*ag\.where"),
    (lambda: ag.compile(lambda x: float(x[0]))(X), r"test_compile.py:\d+.*no numbers yet"),
    (lambda: ag.compile(lambda x: np.zeros(3).__setitem__(0, x[0]))(X), r"test_compile.py:\d+"),
    (lambda: ag.compile(lambda x, y: x @ y)(X, np.ones(4)), r"test_compile.py:\d+.*3 and 4"),
    (lambda: ag.compile(lambda x: ag.reshape(x, (2, 2)))(X), r"test_compile.py:\d+"),
    (lambda: ag.compile(lambda x: ag.sum(x, dim=3))(X), r"test_compile.py:\d+.*out of range"),
    (lambda: ag.compile(lambda x: ag.sum(x, dimension=0))(X), r"dimension"),
    (lambda: ag.compile(lambda x: x[5])(X), r"test_compile.py:\d+.*index 5"),
    (lambda: ag.compile(lambda x, i: x[i])(X, np.array([0, 7])), r"test_compile.py:\d+.*index 7.*size 3"),
    (lambda: ag.compile(lambda x: x)(np.array(["a"])), r"argument x: dtype <U1 holds text; convert it"),
    (lambda: ag.compile(lambda x: x)(np.array([1j])), r"complex"),
    (lambda: ag.compile(3), r"not callable"),
    (lambda: ag.grad(lambda x: x * 2)(3), r"float"),
    (lambda: ag.grad(lambda x: x * 2)(X), r"shape \(3,\)"),
    (lambda: ag.grad(lambda x: x.astype(int).sum())(X), r"the result is int64, not a floating-point number; return one that"),
    (lambda: ag.compile(ag.grad(lambda x: (x > 1).any()))(X), r"the result is bool, not a floating-point number; return one that"),
    (lambda: ag.compile(ag.grad(lambda x: x * 2))(X), r"shape"),
    (lambda: ag.grad(lambda x: (x, x))(1.0), r"has_aux"),
    (lambda: ag.grad(lambda x: x, argnums=1)(1.0), r"argnums"),
    (lambda: ag.jvp(lambda x: x, (1.0,), (1.0, 2.0)), r"tangents"),
    (lambda: ag.vjp(lambda x: x, X)[1](np.ones(4)), r"shape"),
])
def test_wrong_calls_say_what_to_do(call: Any, says: str) -> None:
    with pytest.raises(ag.AotgradError, match=f"(?s){says}"):
        call()


def test_a_traced_value_that_escapes_is_an_error() -> None:
    kept = []
    keep = kept.append  # a list that no name leads to
    ag.compile(lambda x: (keep(x), x * 2)[1])(X)
    with pytest.raises(ag.AotgradError, match="outside the call"):
        ag.compile(lambda x: x + kept[0])(X)
    with pytest.raises(ag.AotgradError, match="outside the call"):
        kept[0] + 1


def test_trace_errors_of_user_code_keep_their_type() -> None:
    def f(x: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        ag.compile(f)(X)


def test_the_innermost_error_of_a_chain_is_raised() -> None:
    def inner(x: Any) -> Any:
        return ag.sum(x, dim=9)

    def outer(x: Any) -> Any:
        try:
            return inner(x)
        except ag.AotgradError as error:
            raise RuntimeError("wrapped") from error

    with pytest.raises(ag.AotgradError, match="out of range"):
        ag.compile(outer)(X)


def test_nan_born_in_a_helper_of_another_file_is_reported_with_its_line(tmp_path: Path) -> None:
    helper = tmp_path / "helper_module.py"
    helper.write_text("import aotgrad as ag\n\ndef shift(x):\n    return ag.log(x - 2.0)\n")
    spec = importlib.util.spec_from_file_location("helper_module", helper)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    f = ag.compile(ag.value_and_grad(lambda x: ag.sum(ag.exp(module.shift(x) * 0.5) * x)))
    good = np.array([3.0, 4.0, 5.0])
    f(good)
    assert np.isnan(f(X)[0])
    with ag.autograd.detect_anomaly():
        f(good)
        with pytest.raises(ag.AotgradError, match=r"(?s)helper_module.py:4.*ag\.log.*\[0\]"):
            f(X)
    assert np.isnan(f(X)[0])


def _log_of_shifted(x: Any) -> Any:
    return ag.log(x - 2.0)


@pytest.mark.parametrize("f", [
    lambda x: ag.scan(lambda c, t: (_log_of_shifted(t) + 0.5 * c, c), 0.0, x)[0], lambda x: ag.scan(lambda c, t: (c, _log_of_shifted(t)), 0.0, x, reverse=True)[1],
    lambda x: ag.cond(x.sum() > 0, lambda y: _log_of_shifted(y).sum(), lambda y: y.sum(), x), lambda x: ag.fori_loop(0, 3, lambda i, c: _log_of_shifted(c), x),
    lambda x: ag.scan(lambda c, t: (ag.cond(t > 0, _log_of_shifted, lambda z: z, t) + c, c), 0.0, x)[0],
], ids=["carry", "rows", "branch", "fori", "nested"])
def test_nan_born_in_a_loop_or_branch_is_reported_with_its_line(f: Any) -> None:
    compiled, line = ag.compile(ag.value_and_grad(lambda x: ag.sum(f(x)))), _log_of_shifted.__code__.co_firstlineno + 1
    with ag.autograd.detect_anomaly(), pytest.raises(ag.AotgradError, match=rf"test_compile.py:{line}: .*\n.*ag.log gave nan"):
        compiled(np.array([3.0, 4.0, 1.0]))


def test_cache_folder_trouble_does_not_matter(tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import numpy as np, aotgrad as ag
        print(ag.compile(lambda x: ag.exp(x).sum())(np.zeros(3)))
    """)
    (tmp_path / "file").write_text("not a folder")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nothing")):
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "AOTGRAD_CACHE_DIR": str(folder)}, check=True)
        assert out.stdout.strip() == "3.0"


def test_damaged_cache_entries_are_compiled_again(tmp_path: Path) -> None:
    code = "import numpy as np, aotgrad as ag; print(ag.compile(lambda x: ag.exp(x).sum())(np.zeros(3)))"
    env = {**os.environ, "AOTGRAD_CACHE_DIR": str(tmp_path / "c")}
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True).stdout.strip() == "3.0"
        for path in (tmp_path / "c").rglob("*"):
            if path.is_file():
                data = bytearray(path.read_bytes())
                if data:
                    data[len(data) // 2] ^= 0xFF
                    path.write_bytes(bytes(data))
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True).stdout.strip() == "3.0"


def test_results_are_numpys_where_the_arguments_are_whatever_is_captured() -> None:
    table, x = ag.tensor([1.0, 2.0, 3.0], dtype=ag.float64), np.ones(3)
    for f in (lambda p: p * table, lambda p: p[ag.arange(2)], lambda p: (p * table).sum(), lambda p: np.sum(p[table.long() % 3])):
        compiled = ag.compile(f)
        for _ in range(3):
            assert type(compiled(x)) in (np.ndarray, np.float64)
