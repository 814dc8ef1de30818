"""``custom_vjp`` and ``custom_jvp``: rules in eager and compiled code, and the rule that follows from the one given."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.frontend.aot import build
from aotgrad.ir import opdef
from aotgrad.ir.builder import Builder
from aotgrad.ir.core import Block, Func, walk
from aotgrad.ir.interp import run
from aotgrad.ir.parser import parse_func
from aotgrad.ir.printer import print_func
from aotgrad.ir.transforms.custom import expand_func, transpose_block
from aotgrad.ir.transforms.differentiate import jvp_func, vjp_func
from aotgrad.ir.types import tensor_type
from aotgrad.ir.verifier import verify

Both = pytest.mark.parametrize("wrap", [lambda f: f, ag.compile], ids=["eager", "compiled"])
XS = np.array([0.5, 1.5, -2.0])
SECOND = {"fwd-rev": lambda f: ag.jacfwd(ag.jacrev(f)), "rev-rev": lambda f: ag.jacrev(ag.jacrev(f)), "fwd-fwd": lambda f: ag.jacfwd(ag.jacfwd(f)),
          "rev-fwd": lambda f: ag.jacrev(ag.jacfwd(f))}


@ag.custom_vjp
def sin_times(x: Any, y: Any) -> Any:
    return ag.sin(x) * y


sin_times.defvjp(lambda x, y: (ag.sin(x) * y, (ag.cos(x), ag.sin(x), y)), lambda kept, g: (kept[0] * g * kept[2], kept[1] * g))


@ag.custom_jvp
def log1pexp(x: Any) -> Any:
    return ag.log(1.0 + ag.exp(x) * 1.0000000001)  # not the pattern that the compiler improves by itself


@log1pexp.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return log1pexp(x), (1.0 - 1.0 / (1.0 + ag.exp(x))) * t


@Both
def test_first_order_both_ways(wrap: Callable[..., Any]) -> None:
    assert wrap(ag.grad(sin_times, argnums=(0, 1)))(1.0, 2.0) == pytest.approx((2 * np.cos(1), np.sin(1)))
    assert wrap(lambda x, y: ag.jvp(sin_times, (x, y), (1.0, 10.0)))(1.0, 2.0)[1] == pytest.approx(2 * np.cos(1) + 10 * np.sin(1))
    assert wrap(sin_times)(1.0, 2.0) == pytest.approx(2 * np.sin(1))
    assert wrap(ag.grad(log1pexp))(800.0) == 1.0
    assert wrap(ag.jacfwd(log1pexp))(800.0) == 1.0


@Both
@pytest.mark.parametrize("order", list(SECOND))
def test_hessians_differentiate_the_rule(wrap: Callable[..., Any], order: str) -> None:
    assert float(wrap(SECOND[order](sin_times))(1.0, 2.0)) == pytest.approx(-2 * np.sin(1), rel=1e-14)
    s = 1 / (1 + np.exp(-1.0))
    assert float(wrap(SECOND[order](log1pexp))(1.0)) == pytest.approx(s * (1 - s), rel=1e-12)
    assert float(wrap(ag.grad(SECOND[order](log1pexp)))(1.0)) == pytest.approx(s * (1 - s) * (1 - 2 * s), rel=1e-10)


def test_a_rule_that_calls_its_own_function_has_a_limit_in_traces() -> None:
    @ag.custom_jvp
    def exp(x: Any) -> Any:
        return ag.exp(x)

    @exp.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        y = exp(primals[0])
        return y, y * tangents[0]

    d = exp
    for _ in range(3):
        d = ag.grad(d)
        assert d(1.0) == pytest.approx(np.e)
        assert ag.compile(d)(1.0) == pytest.approx(np.e)
    fourth = ag.grad(d)
    assert fourth(1.0) == pytest.approx(np.e)
    with pytest.raises(ag.AotgradError, match="up to order 3"):
        ag.compile(fourth)(1.0)


def clip() -> Any:
    """A rule that is not the derivative, so that it shows whether it was used."""
    @ag.custom_vjp
    def identity(x: Any) -> Any:
        return x * 1.0

    identity.defvjp(lambda x: (x * 1.0, None), lambda kept, g: (ag.clip(g, -1.0, 1.0),))
    return identity


@Both
def test_rules_are_used_not_the_functions_derivative(wrap: Callable[..., Any]) -> None:
    f = clip()
    assert wrap(ag.grad(lambda x: ag.sum(5.0 * f(x))))(XS).tolist() == [1.0, 1.0, 1.0]
    x = ag.tensor([1.0, 2.0], requires_grad=True)
    y = wrap(lambda x: ag.sum(5.0 * f(x)))(x)
    y.backward()
    assert x.grad.tolist() == [1.0, 1.0]


@Both
def test_trees_integers_and_none(wrap: Callable[..., Any]) -> None:
    @ag.custom_vjp
    def f(p: Any, i: Any, w: Any) -> Any:
        return {"a": p["u"][i] * w, "b": (p["v"] * 2.0,)}

    def fwd(p: Any, i: Any, w: Any) -> Any:
        return f.fun(p, i, w), (p["u"], i, w)

    def bwd(kept: Any, g: Any) -> Any:
        u, i, w = kept
        return {"u": (u * 0.0).at[i].add(g["a"] * w * 10.0), "v": g["b"][0] * 20.0}, None, None

    f.defvjp(fwd, bwd)
    index = np.array([0, 2])

    def total(p: Any, w: Any) -> Any:
        out = f(p, index, w)
        return ag.sum(out["a"]) + ag.sum(out["b"][0])

    p = {"u": np.arange(3.0), "v": np.ones(2)}
    gp, gw = wrap(ag.grad(total, argnums=(0, 1)))(p, np.array([1.0, 2.0]))
    assert gp["u"].tolist() == [10.0, 0.0, 20.0]
    assert gp["v"].tolist() == [20.0, 20.0]
    assert gw.tolist() == [0.0, 0.0]


@Both
def test_results_that_are_not_used_and_inputs_that_are_returned(wrap: Callable[..., Any]) -> None:
    f = ag.custom_vjp(lambda x: (x, x * x))
    f.defvjp(lambda x: ((x, x * x), x), lambda x, g: (g[0] * 10.0 + g[1] * 200.0 * x,))
    assert float(wrap(ag.grad(lambda x: f(x)[0] * 1.0))(3.0)) == 10.0
    assert float(wrap(ag.grad(lambda x: f(x)[1] * 1.0))(3.0)) == 600.0
    x = ag.tensor([1.0, 2.0], requires_grad=True)
    same = wrap(f)(x)[0]
    assert not np.shares_memory(same.detach().numpy(), x.detach().numpy())
    same.sum().backward()
    assert x.grad.tolist() == [10.0, 10.0]


@Both
def test_nondiff_argnums_defaults_and_defjvps(wrap: Callable[..., Any]) -> None:
    power = ag.custom_vjp(lambda n, x: x ** n, nondiff_argnums=(0,))
    power.defvjp(lambda n, x: (x ** n, x), lambda n, x, g: (100.0 * n * x * g,))
    assert float(wrap(ag.grad(lambda x: power(3, x)))(2.0)) == 600.0

    @ag.custom_jvp
    def scaled(x: Any, y: Any, k: Any = 2.0) -> Any:
        return x * y * k

    scaled.defjvps(lambda t, out, x, y, k: t * y * k, lambda t, out, x, y, k: t * x * k, None)
    assert wrap(ag.grad(lambda x, y: scaled(x, y=y), argnums=(0, 1)))(3.0, 4.0) == (8.0, 6.0)
    assert float(wrap(ag.grad(lambda x: scaled(x, x)))(3.0)) == 12.0


@Both
def test_both_rules_may_be_given(wrap: Callable[..., Any]) -> None:
    @ag.custom_vjp
    def f(x: Any) -> Any:
        return x * x

    f.defvjp(lambda x: (x * x, x), lambda x, g: (3.0 * x * g,))
    f.defjvp(lambda ps, ts: (f(ps[0]), 7.0 * ps[0] * ts[0]))
    assert float(wrap(ag.grad(f))(2.0)) == 6.0
    assert float(wrap(ag.jacfwd(f))(2.0)) == 14.0


@Both
def test_rules_in_loops(wrap: Callable[..., Any]) -> None:
    rows = np.linspace(0.1, 0.9, 6).reshape(3, 2)

    def total(f: Any) -> Any:
        return lambda x: ag.sum(ag.scan(lambda c, r: (f(c, r), None), x[0] * 1.0, x)[0])

    for d in (ag.grad, ag.jacfwd, ag.hessian):
        np.testing.assert_allclose(wrap(d(total(sin_times)))(rows), d(total(sin_times.fun))(rows), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("derivative", [ag.grad, ag.jacfwd, ag.jacrev, ag.hessian])
def test_other_layouts_in_compiled_code(derivative: Callable[..., Any]) -> None:
    x = np.linspace(0.1, 0.9, 6).reshape(2, 3)
    f = lambda x: ag.sum(sin_times(x, x * x) ** 2)
    compiled = ag.compile(derivative(f))
    want = derivative(lambda x: ag.sum(sin_times.fun(x, x * x) ** 2))(x)
    for given in (x, np.asfortranarray(x), x[::-1][::-1]):
        np.testing.assert_allclose(compiled(given), want, rtol=1e-12)


def test_a_missing_rule_says_what_to_write() -> None:
    f = ag.custom_vjp(lambda x: x * 2.0)
    assert f(3.0) == 6.0
    for call in (ag.grad(f), ag.jacfwd(f), ag.compile(ag.grad(f))):
        with pytest.raises(ag.AotgradError, match="has no derivative rule: give one with"):
            call(3.0)


@pytest.mark.parametrize(("rule", "match"), [
    (lambda kept, g: g, "must return a tuple of 1 gradient"), (lambda kept, g: (g, g), "tuple of 1 gradient.*returned 2"),
    (lambda kept, g: ({"a": g},), "does not have the structure"),
    (lambda kept, g: (ag.stack([g, g, g]),), "invalid gradient at index 0"),
])
def test_bad_reverse_rules(rule: Any, match: str) -> None:
    f = ag.custom_vjp(lambda x: x * 2.0)
    f.defvjp(lambda x: (x * 2.0, None), rule)
    with pytest.raises(ag.AotgradError, match=match):
        ag.grad(lambda x: ag.sum(f(x)))(np.ones(2))


def test_bad_forward_rules() -> None:
    f = ag.custom_vjp(lambda x: x * 2.0)
    f.defvjp(lambda x: x * 2.0, lambda kept, g: (g,))
    with pytest.raises(TypeError, match=r"must return \(result, residuals\)"):
        ag.grad(f)(1.0)
    g = ag.custom_jvp(lambda x: x * 2.0)
    g.defjvp(lambda ps, ts: ts[0])
    with pytest.raises(TypeError, match=r"must return \(result, tangent\)"):
        ag.jacfwd(g)(1.0)
    with pytest.raises(TypeError, match="not callable"):
        ag.custom_vjp(3)


def test_ahead_of_time(tmp_path: Path) -> None:
    f = clip()
    build(lambda x: ag.sum(5.0 * f(x) * x), {"x": "f64[n]"}, grad=["x"], out=tmp_path, name="clipped")
    lib = ctypes.CDLL(str(tmp_path / "libclipped.so"))
    x, g, value = XS.copy(), np.zeros(3), np.zeros(())
    pointer = lambda a: a.ctypes.data_as(ctypes.c_void_p)
    assert lib.clipped_grad(pointer(x), ctypes.c_int64(3), pointer(value), pointer(g), None) == 0
    np.testing.assert_allclose(g, 5.0 * XS + np.clip(5.0 * XS, -1, 1))


# ---- the op itself ------------------------------------------------------------------------------------------------------------------------

def test_the_program_prints_verifies_and_differentiates_from_text() -> None:
    func = ag.compile(lambda x, y: ag.sum(sin_times(x, y))).trace(XS, XS)
    text = print_func(func)
    again = parse_func(text)
    verify(again)
    assert print_func(again) == text
    assert [op.name for op in walk(again.body)].count("custom") == 1
    out = run(vjp_func(again, [True, True]), XS, XS, np.array(1.0))
    np.testing.assert_allclose(out[1], np.cos(XS) * XS)
    np.testing.assert_allclose(out[2], np.sin(XS))
    moved = run(jvp_func(again, [True, False]), XS, XS, np.array([1.0, 0.0, 0.0]))
    np.testing.assert_allclose(moved[1], np.cos(XS[0]) * XS[0])
    plain = expand_func(again)
    assert not [op for op in walk(plain.body) if op.name.startswith("custom")]
    np.testing.assert_array_equal(run(plain, XS, XS)[0], run(again, XS, XS)[0])


def test_the_transpose_of_a_block_is_its_adjoint() -> None:
    n = tensor_type([3])
    block = Block([n, n, n])
    b = Builder(block)
    x, t, u = block.args
    block.outputs = [b.sub(b.mul(b.exp(x), t), u), b.sum(b.div(t, x), dims=(0,))]
    turned = transpose_block(block, (1, 2))
    rng = np.random.default_rng(0)
    v = {k: rng.normal(size=3) for k in "xtuab"}
    c = rng.normal()
    forward = run(Func("f", block), v["x"], v["t"], v["u"])
    back = run(Func("g", turned), v["x"], v["a"], np.array(c))
    assert forward[0] @ v["a"] + forward[1] * c == pytest.approx(back[0] @ v["t"] + back[1] @ v["u"], rel=1e-13)


def test_operands_that_do_not_fit_the_regions_are_refused() -> None:
    block = Block([tensor_type([3])])
    body = Block([tensor_type([4])])
    body.outputs = [body.args[0]]
    with pytest.raises(ag.AotgradError, match="custom: the body takes"):
        Builder(block).emit("custom", block.args, {"name": "f", "outs": 1}, (body, Block(), Block()))
    assert opdef.get("custom").regions == 3
