"""What compiled functions return and are given: results that are no arrays, ``out=``, random numbers in a trace, traces that go on, errors that name the argument."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.cli.app import main

X = np.array([1.0, 2.0, 3.0])


class Own:
    def __init__(self, v: Any) -> None:
        self.v = v


class Slotted:
    __slots__ = ("v",)

    def __init__(self, v: Any) -> None:
        self.v = v


@pytest.mark.parametrize(("make", "says"), [
    (lambda x: {x.sum()}, r"used as a key or in a set.*Use a list"),
    (lambda x: {"a": x}.values(), r"the result is a dict_values of"),
    (lambda x: {"a": x}.items(), r"the result is a dict_items of"),
    (lambda x: (v for v in (x, x)), r"is a generator, which would run only after"),
    (lambda x: map(np.sin, [x]), r"is a map, which"),
    (lambda x: [x, iter([x])], r"the result\[1\] is a list_iterator"),
    (lambda x: Own(x), r"Own that holds a computed value \(the result\.v\)"),
    (lambda x: [Slotted([x])], r"\(the result\[0\]\.v\[0\]\)"),
    (lambda x: lambda y: x * y, r"the result's variable x"),
    (lambda x: Own(Own({"k": x})), r"the result\.v\.v\['k'\]"),
])
def test_results_that_would_keep_traced_values_are_errors(make: Any, says: str) -> None:
    with pytest.raises(ag.AotgradTypeError, match=says):
        ag.compile(make, name="f")(X)


def test_sets_of_tensors_are_errors() -> None:
    """NumPy's arrays have no hash; tensors have that of the object, as in PyTorch."""
    with pytest.raises(ag.AotgradTypeError, match="the result is a set of computed values; return a list"):
        ag.compile(lambda x: {x.sum()})(ag.tensor(X))
    with pytest.raises(ag.AotgradTypeError, match=r"the result\[1\]\['a'\] is a frozenset"):
        ag.compile(lambda x: (1.0, {"a": frozenset([x])}))(ag.tensor(X))


def test_constants_of_any_kind_come_back_as_they_are() -> None:
    own, names = Own(3), {"a", "b"}
    f = ag.compile(lambda x: (x * 2, own, names, "text", None, len))
    for _ in range(2):
        out = f(X)
        assert out[1] is own and out[2] is names and out[3:] == ("text", None, len)


def test_values_kept_beyond_the_trace_say_so() -> None:
    kept: list[Any] = []
    keep = kept.append  # a list that no name leads to
    ag.compile(lambda x: (keep(x), keep(x.shape[0]), x * 2)[2])(X)
    for use in (lambda v: v + 1, lambda v: np.sin(v), float, np.asarray, bool):
        with pytest.raises(ag.AotgradTypeError, match="outside the call that made it"):
            use(kept[0])
    with pytest.raises(ag.AotgradTypeError):
        kept[1] * 0.5
    with pytest.raises(ag.AotgradTypeError, match="outside the call that made it"):
        ag.compile(lambda x: x + kept[0])(X)


@pytest.mark.parametrize(("out", "says"), [
    ((lambda o: (o, o))(np.empty(3)), r"out\[1\]= and out\[0\]= share memory"),
    ((lambda o: (o[:3], o[2:5]))(np.empty(5)), r"share memory"),
    ((np.lib.stride_tricks.as_strided(np.empty(1), (3,), (0,)), np.empty(3)), r"out\[0\]= has elements that share memory"),
    ((np.lib.stride_tricks.as_strided(np.empty(3), (3,), (4,)), np.empty(3)), r"out\[0\]= has elements that share memory"),
    ((np.empty(3), np.empty(4)), r"out\[1\]= has shape \(4,\)"),
    ((np.empty(3), np.empty(3, np.float32)), r"out\[1\]= has shape \(3,\) and dtype float32"),
    ((np.empty(3), [1.0]), r"structure of the result"),
    ((np.empty(3), 1.0), r"out\[1\]= is a float"),
    (np.empty(3), r"the result is a tuple of 2, but out is one array"),
])
def test_bad_out_names_the_array_and_writes_nothing(out: Any, says: str) -> None:
    f = ag.compile(lambda x: (x + 1, x * 2))
    arrays = [a for a in (out if isinstance(out, tuple) else (out,)) if isinstance(a, np.ndarray)]
    for a in arrays:
        a[...] = 7
    before = [a.copy() for a in arrays]
    with pytest.raises((ag.AotgradValueError, ag.AotgradTypeError), match=says):
        f(X, out=out)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(arrays, before))


def test_interleaved_and_overlapping_out_are_right() -> None:
    f = ag.compile(lambda x: (x + 1, x * 2))
    whole = np.zeros(6)
    f(X, out=(whole[::2], whole[1::2]))
    np.testing.assert_array_equal(whole, [2, 2, 3, 4, 4, 6])
    x = np.arange(6.0)
    ag.compile(lambda v: v * 2 + v[::-1])(x[:5], out=x[1:])  # overlaps the argument: the result is computed first
    v = np.arange(5.0)
    np.testing.assert_array_equal(x[1:], v * 2 + v[::-1])


RNG = np.random.default_rng(0)


@pytest.mark.parametrize("draw", [lambda: np.random.normal(), lambda: np.random.rand(), lambda: random.random(), lambda: RNG.normal()])
def test_random_numbers_while_tracing_are_refused(draw: Any, tmp_path: Path) -> None:
    def f(x: Any) -> Any:
        RNG.bit_generator  # noqa: B018  (names it)
        return x + draw()

    with pytest.raises(ag.AotgradNotImplementedError, match=r"draws random numbers from .* pass them as an argument"):
        ag.compile(f)(X)
    with pytest.raises(ag.AotgradNotImplementedError, match=r"draws random numbers from"):
        ag.aot.build(f, ["x: f64[n]"], out=tmp_path)


def test_seeded_generators_made_inside_are_fixed_numbers() -> None:
    f = lambda x: x + np.random.default_rng(3).normal(size=3) + np.random.RandomState(1).rand(3)
    np.testing.assert_allclose(ag.compile(f)(X), f(X))


def test_traces_that_go_on_are_told_once_with_line_and_argument() -> None:
    f = ag.compile(lambda x, k: x[:k].sum(), name="head")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for k in range(40):
            f(np.ones(50), k)
    assert [w.category for w in seen] == [ag.AotgradWarning]
    text = str(seen[0].message)
    assert "head" in text and "integer k" in text and "static=" in text and seen[0].filename.endswith("test_frontend_results.py")
    g = ag.compile(lambda x: x.sum() / len(x), name="mean")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for n in range(1, 30):
            g(np.ones(n))
    assert len(seen) == 1 and "size x_0" in str(seen[0].message)
    h = ag.compile(lambda x, k: x[:k].sum(), static="k")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(20):
            h(np.ones(50), k)


def test_explain_tells_numbers_of_integers_and_their_line() -> None:
    text = ag.compile(lambda x, k: x[:k].sum()).explain(X, 2)
    assert "only for k = 2: used as a Python number at" in text and "test_frontend_results.py" in text
    assert "only for k = 2: named by static=" in ag.compile(lambda x, k: x[:k].sum(), static="k").explain(X, 2)


@pytest.mark.parametrize(("call", "says"), [
    (lambda: ag.compile(lambda a, b: b)(X, np.array(["a"])), r"argument b: dtype <U1 holds text; convert it"),
    (lambda: ag.compile(lambda a, b: b)(X, np.array([None])), r"argument b: .*dtype object holds Python objects"),
    (lambda: ag.compile(lambda a, b: b)(X, {"k": np.zeros(2, np.uint32)}), r"argument b_k: dtype uint32"),
    (lambda: ag.compile(lambda a, b: b)(X, np.zeros(2, complex)), r"argument b: dtype complex128 is complex"),
    (lambda: ag.compile(lambda a, b: b)(X, np.longdouble(2)), r"argument b: "),
    (lambda: ag.compile(lambda a, b: b, static="b")(X, X), r"argument b: static= names it"),
    (lambda: ag.compile(lambda a, b: b)(X, 1 << 70), r"argument b: the integer"),
])
def test_wrong_arguments_are_named(call: Any, says: str) -> None:
    with pytest.raises(ag.AotgradError, match=says):
        call()


def test_prebind_takes_keywords_and_names_what_it_cannot_take() -> None:
    f = ag.compile(lambda x, y: x * y, name="f")
    run = f.prebind(X, y=X + 1)
    run()
    np.testing.assert_array_equal(run.out, X * (X + 1))
    with pytest.raises(ag.AotgradTypeError, match="do not fit f"):
        f.prebind(X, z=X)
    with pytest.raises(ag.AotgradTypeError, match="by keyword only"):
        ag.compile(lambda x, *, y: x * y, name="f").prebind(X, y=X)
    with pytest.raises(ag.AotgradTypeError, match="takes k as part of its signature"):
        ag.compile(lambda x, k: x * len(k), name="f").prebind(X, "abc")
    with pytest.raises(ag.AotgradTypeError, match="bytes are swapped"):
        f.prebind(X.astype(">f8"), X)


def test_methods_have_docstrings_of_their_own() -> None:
    f = ag.compile(lambda x: x)
    for name in ("trace", "lower", "prebind", "explain", "cache_info"):
        doc = getattr(f, name).__doc__
        assert doc and "partial" not in doc and getattr(f, name).__name__ == name


def test_the_first_line_of_a_scipy_style_function_says_what_to_do() -> None:
    for make in (np.asarray, np.array, np.ascontiguousarray, np.float64):  # by their own names; as np.NAME they work, see test_gathering
        for run in (lambda f: ag.compile(f, static="make"), ag.grad):
            with pytest.raises(ag.AotgradTypeError, match=r"Call np\.array, np\.asarray and np\.full as np\.NAME"):
                run(lambda x, make=make: np.sum(make(x)))(X)

    def f(x: Any) -> Any:
        return np.sum(np.atleast_1d(np.copy(x)) ** 2)

    for x in ([1.0, 2.0], X):
        assert f(x) == np.sum(np.asarray(x) ** 2)
    np.testing.assert_array_equal(ag.compile(ag.grad(f))(X), 2 * X)
    np.testing.assert_array_equal(ag.grad(f)(X), 2 * X)
    assert ag.compile(lambda x: np.sum(np.atleast_2d(x)))(X) == 6


def test_text_of_traced_values() -> None:
    seen: list[str] = []

    def f(x: Any) -> Any:
        seen.extend([f"{x}", "%s" % x, str(x), f"{x!r}", "{}".format(x)])  # noqa: UP031, UP032
        return x * 2

    ag.compile(f)(X)
    assert set(seen) == {"Traced<float64[x_0]>"}
    for text in (lambda x: f"{x.sum():.3f}", lambda x: "%f" % x.sum()):  # noqa: UP031
        with pytest.raises(ag.AotgradTypeError, match="debug_print"):
            ag.compile(lambda x, text=text: (text(x), x)[1])(X)


def test_round_of_traced_and_taped_values() -> None:
    for g in (ag.compile, ag.grad):
        with pytest.raises(ag.AotgradTypeError, match=r"use np\.round\(x\)"):
            g(lambda x: x * round(x))(1.5)
        assert g(lambda x: 3.0 * x + round(x, 1))(1.26) == (pytest.approx(3 * 1.26 + 1.3) if g is ag.compile else 3)


@pytest.mark.parametrize("wrap", [lambda f: f, ag.compile])
@pytest.mark.parametrize(("f", "says"), [
    (lambda x: ag.scan(lambda c, v: (np.zeros(2), None), x, x)[0], r"scan: leaf 0 of the carry starts as float64\[.*\] and comes back as float64\[2\]"),
    (lambda x: ag.scan(lambda c, v: (c > 0, None), x, x)[0], r"scan: leaf 0 .*comes back as bool\["),
    (lambda x: ag.scan(lambda c, v: ((c, c), None), x, x)[0], r"scan: the carry comes back with another structure"),
    (lambda x: ag.fori_loop(0, 3, lambda i, c: c[:2], x), r"fori_loop: leaf 0 of the carry starts as"),
    (lambda x: ag.fori_loop(0, 3, lambda i, c: (c, c), x), r"fori_loop: the carry comes back with another structure"),
    (lambda x: ag.cond(x[0] > 0, lambda x: x, lambda x: x[:2], x), r"cond: one branch gives float64\[.*\], the other float64\["),
    (lambda x: ag.cond(x[0] > 0, lambda x: x, lambda x: x > 0, x), r"cond: one branch gives float64\[.*\], the other bool\["),
    (lambda x: ag.scan(lambda c, v: (c, v), x, (x, x[0]))[0], r"scan: a leaf of xs is 0-d"),
    (lambda x: ag.scan(lambda c, v: (c, v), x, ())[0], r"scan: give xs, or length="),
])
def test_mismatches_are_told_with_the_line_in_plain_types(wrap: Any, f: Any, says: str) -> None:
    with pytest.raises(ag.AotgradError, match=rf"test_frontend_results\.py:\d+: {says}") as caught:
        wrap(f)(np.ones(3))
    assert "!ag." not in str(caught.value)


def test_a_target_without_fma_is_no_choice() -> None:
    with pytest.raises(ag.AotgradValueError, match="use one of native, x86-64-v3, x86-64-v4, aarch64-linux-gnu$"):
        ag.aot.build(lambda x: x, ["x: f64"], name="f", target="foo")
    with pytest.raises(ag.AotgradValueError, match="--name"):
        ag.aot.build(lambda x: x, ["x: f64"])


def test_run_takes_inputs_after_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "f.mlir"
    file.write_text(str(ag.compile(lambda x: x * 2.0, name="sq").trace(np.ones(2))))
    for given in (["--function", "sq", "[1, 4]"], ["[1, 4]", "--function", "sq"]):
        assert main(["run", str(file), *given]) == 0
        assert capsys.readouterr().out == "[2. 8.]\n"
    with pytest.raises(SystemExit):
        main(["run", str(file), "--odd", "[1, 4]"])
