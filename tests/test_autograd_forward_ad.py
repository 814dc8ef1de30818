"""``autograd.forward_ad``: levels, dual tensors, nesting, and what forward mode goes through."""

from __future__ import annotations

import importlib
import threading
from typing import Any

import numpy as np
import pytest
from autograd_pair import f64, same

import aotgrad as ag
from aotgrad.autograd import forward_ad as fw


def ad(m: Any) -> Any:
    return importlib.import_module(f"{m.__name__}.autograd.forward_ad")


def test_a_dual_tensor_carries_its_tangent_through_operations() -> None:
    def lines(m: Any) -> Any:
        fw = ad(m)
        with fw.dual_level():
            x = fw.make_dual(f64(m, [1.0, 2.0]), f64(m, [1.0, 10.0]))
            y = (m.sin(x) * x).sum()
            return fw.unpack_dual(x), fw.unpack_dual(y), fw.unpack_dual(m.argmax(x)).tangent is None

    x, y, none = same(lines)
    assert x == ([1.0, 2.0], [1.0, 10.0])
    assert y[1] == pytest.approx(np.sin(1) + np.cos(1) + 10 * (np.sin(2) + 2 * np.cos(2)))
    assert none


def test_names_and_printed_form() -> None:
    def lines(m: Any) -> Any:
        fw = ad(m)
        with fw.dual_level() as level:
            x = fw.make_dual(m.tensor([1.0]), m.tensor([2.0]))
            found = fw.unpack_dual(x)
            shown = repr(x * 3)
        return type(found).__name__, found._fields, shown, repr(x), isinstance(x, m.Tensor), level

    assert same(lines) == ("UnpackedDualTensor", ("primal", "tangent"), "tensor([3.], tangent=tensor([6.]))", "tensor([1.])", True, 0)


def test_tangents_are_kept_unless_their_layout_differs() -> None:
    def lines(m: Any) -> Any:
        fw = ad(m)
        x = f64(m, [[1.0, 2.0], [3.0, 4.0]])
        same, turned = m.ones_like(x), f64(m, [[5.0, 6.0], [7.0, 8.0]]).t()
        with fw.dual_level():
            a, b = fw.unpack_dual(fw.make_dual(x, same)).tangent, fw.unpack_dual(fw.make_dual(x, turned)).tangent
            return a is same, b is turned, b.stride(), b

    assert same(lines) == (True, False, (2, 1), [[5.0, 7.0], [6.0, 8.0]])


def test_a_dual_tensor_is_a_view_of_its_primal() -> None:
    def lines(m: Any) -> Any:
        fw = ad(m)
        x = f64(m, [1.0, 2.0])
        with fw.dual_level():
            d = fw.make_dual(x, m.ones_like(x))
            p = fw.unpack_dual(d).primal
            x.mul_(3.0)
            return d._base is x, d is x, p is x, p, d.shape == x.shape

    assert same(lines) == (True, False, False, [3.0, 6.0], True)


def test_no_tangent_outside_and_for_plain_tensors() -> None:
    def lines(m: Any) -> Any:
        fw = ad(m)
        x = f64(m, [1.0])
        with fw.dual_level():
            d = fw.make_dual(x, x)
            plain = fw.unpack_dual(x).tangent
        after = fw.unpack_dual(d)
        with fw.dual_level():
            later = fw.unpack_dual(d * 1)
        return plain, after.tangent, after.primal, later.tangent, fw.unpack_dual(3)[1]

    assert same(lines) == (None, None, [1.0], None, None)


@pytest.mark.parametrize("lines", [
    lambda m, fw, x: fw.make_dual(x, x), lambda m, fw, x: fw.exit_dual_level(),
    lambda m, fw, x: within(fw, lambda: fw.make_dual(x, m.ones(3, dtype=m.float64))), lambda m, fw, x: within(fw, lambda: fw.make_dual(x.to(m.int64), x)),
    lambda m, fw, x: within(fw, lambda: fw.make_dual(x, x.to(m.int64))), lambda m, fw, x: within(fw, lambda: fw.make_dual(fw.make_dual(x, x), x)),
    lambda m, fw, x: within(fw, lambda: fw.exit_dual_level(level=5)),
])
def test_bad_uses_have_torchs_errors(lines: Any) -> None:
    assert same(lambda m: lines(m, ad(m), f64(m, [1.0, 2.0])), 36)[0] == "error"
    assert not ag.frontend.eager.levels.opened


def within(fw: Any, call: Any) -> Any:
    with fw.dual_level():
        return call()


def test_values_that_are_no_tensors_are_named() -> None:
    with fw.dual_level(), pytest.raises(TypeError, match="the primal must be a Tensor, but got float"):
        fw.make_dual(3.0, f64(ag, [1.0]))
    with fw.dual_level(), pytest.raises(TypeError, match="the tangent must be a Tensor, but got ndarray"):
        fw.make_dual(f64(ag, [1.0]), np.ones(1))


def test_levels_close_when_the_body_fails() -> None:
    with pytest.raises(KeyError), fw.dual_level(), fw.dual_level():
        raise KeyError
    with pytest.raises(RuntimeError, match="no level exists"):
        fw.make_dual(f64(ag, [1.0]), f64(ag, [1.0]))


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_nested_levels_give_higher_order(order: int) -> None:
    def derivative(n: int, x: Any) -> Any:
        if n == 0:
            return x ** 5 * ag.exp(x)
        with fw.dual_level():
            found = fw.unpack_dual(derivative(n - 1, fw.make_dual(x, ag.ones_like(x)))).tangent
        return found

    want = sum(binomial * falling for binomial, falling in zip([[1], [1, 1], [1, 2, 1], [1, 3, 3, 1], [1, 4, 6, 4, 1]][order], (1, 5, 20, 60, 120)))
    assert derivative(order, f64(ag, 1.0)).item() == pytest.approx(want * np.e)


def test_inner_levels_do_not_mix_with_outer_ones() -> None:
    x = f64(ag, 2.0)
    with fw.dual_level() as outer:
        a = fw.make_dual(x, f64(ag, 1.0))
        with fw.dual_level() as inner:
            b = fw.make_dual(f64(ag, 3.0), f64(ag, 1.0))
            y = a * b  # d/db is a, whose own tangent is 1
            down = fw.unpack_dual(y)
            assert (outer, inner) == (0, 1)
            assert fw.unpack_dual(y, level=0).tangent is None  # the newest level is outside
            assert fw.unpack_dual(down.primal, level=0).tangent.item() == 3.0
            assert fw.unpack_dual(down.tangent, level=0).tangent.item() == 1.0
        assert fw.unpack_dual(down.tangent).primal.item() == 2.0


def test_forward_over_reverse_and_reverse_over_forward() -> None:
    x = f64(ag, [1.0, 2.0], True)
    with fw.dual_level():
        d = fw.make_dual(x, f64(ag, [1.0, 0.0]))
        y = (d ** 3).sum()
        g, = ag.autograd.grad(y, d, create_graph=True)
        found = fw.unpack_dual(g)
    assert found.primal.tolist() == [3.0, 12.0]
    assert found.tangent.tolist() == [6.0, 0.0]
    with fw.dual_level():
        tangent = fw.unpack_dual((fw.make_dual(x, f64(ag, [1.0, 0.0])) ** 3).sum()).tangent
    tangent.backward()
    assert x.grad.tolist() == [6.0, 0.0]


def test_backward_on_a_dual_tensor_reaches_the_leaf() -> None:
    def lines(m: Any) -> Any:
        fw = ad(m)
        x = f64(m, [1.0, 2.0], True)
        with fw.dual_level():
            (fw.make_dual(x, m.ones_like(x)) ** 2).sum().backward()
        return x.grad

    assert same(lines) == [2.0, 4.0]


def test_through_function_jvp_and_no_grad() -> None:
    def lines(m: Any) -> Any:
        fw = ad(m)

        class Cube(m.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.save_for_forward(x)
                return x ** 3

            @staticmethod
            def jvp(ctx: Any, t: Any) -> Any:
                return 100.0 * ctx.saved_tensors[0] * t

        with fw.dual_level(), m.no_grad():
            return fw.unpack_dual(Cube.apply(fw.make_dual(f64(m, 2.0), f64(m, 1.0))))

    assert same(lines) == (8.0, 200.0)


def test_through_compiled_calls_with_nesting_and_backward() -> None:
    f = ag.compile(lambda x, y: ag.sum(ag.sin(x) * y))
    x, y = f64(ag, [1.0, 2.0], True), f64(ag, [3.0, 4.0])
    with fw.dual_level():
        a = fw.make_dual(x, f64(ag, [1.0, 1.0]))
        once = fw.unpack_dual(f(a, y))
        with fw.dual_level():
            b = fw.make_dual(a, f64(ag, [1.0, 1.0]))
            twice = fw.unpack_dual(fw.unpack_dual(f(b, y)).tangent, level=0).tangent
    want = np.cos([1.0, 2.0]) @ [3.0, 4.0]
    assert once.tangent.item() == pytest.approx(want)
    assert twice.item() == pytest.approx(-np.sin([1.0, 2.0]) @ [3.0, 4.0])
    once.tangent.backward()
    np.testing.assert_allclose(x.grad.numpy(), -np.sin([1.0, 2.0]) * [3.0, 4.0])


def test_transforms_inside_a_level_and_levels_inside_transforms() -> None:
    with fw.dual_level():
        x = fw.make_dual(f64(ag, 2.0), f64(ag, 1.0))
        g = fw.unpack_dual(ag.grad(lambda v: v ** 3)(x))
        j = fw.unpack_dual(ag.jvp(lambda v: v ** 3, (x,), (f64(ag, 1.0),))[1])
    assert (g.primal.item(), g.tangent.item()) == (12.0, 12.0)
    assert (j.primal.item(), j.tangent.item()) == (12.0, 12.0)

    def inner(v: Any) -> Any:
        with fw.dual_level():
            return fw.unpack_dual(fw.make_dual(v, ag.ones_like(v)) ** 4).tangent

    assert ag.jvp(inner, (f64(ag, 2.0),), (f64(ag, 1.0),))[1].item() == 48.0
    assert ag.grad(inner)(f64(ag, 2.0)).item() == 48.0


def test_levels_belong_to_a_thread() -> None:
    failed: list[str] = []

    def other() -> None:
        try:
            fw.make_dual(f64(ag, 1.0), f64(ag, 1.0))
        except RuntimeError as error:
            failed.append(str(error))

    with fw.dual_level():
        t = threading.Thread(target=other)
        t.start()
        t.join()
    assert "no level exists" in failed[0]


def test_a_tangent_of_another_dtype_is_converted() -> None:
    with fw.dual_level():
        d = fw.make_dual(ag.tensor([1.0]), f64(ag, [2.0]))
        assert fw.unpack_dual(ag.exp(d)).tangent.dtype is ag.float32


def test_values_of_a_trace_are_refused() -> None:
    def f(x: Any) -> Any:
        with fw.dual_level():
            return fw.unpack_dual(fw.make_dual(x, x)).tangent

    with pytest.raises(TypeError, match=r"use aotgrad\.jvp"):
        ag.compile(f)(np.ones(2))


@pytest.mark.parametrize("told", [True, False], ids=["marked", "integers"])
def test_no_tangent_for_results_without_derivative(told: bool) -> None:
    """``jvp`` has None for what forward marked, and for integers; anything else is torch's error, in eager, in transforms and in compiled code."""
    def parts(m: Any, wrong: bool) -> Any:
        class Parts(m.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                second = x * 3 if told else m.argmax(x)
                if told:
                    ctx.mark_non_differentiable(second)
                return x * 2, second

            @staticmethod
            def jvp(ctx: Any, t: Any) -> Any:
                return t * 2, t * 3 if wrong else None

        return Parts.apply

    def tangents(m: Any, wrong: bool) -> Any:
        with m.autograd.forward_ad.dual_level():
            outs = parts(m, wrong)(m.autograd.forward_ad.make_dual(f64(m, [1.0, 2.0]), f64(m, [1.0, 0.5])))
            return [m.autograd.forward_ad.unpack_dual(o).tangent for o in outs[:1 + told]]

    assert same(lambda m: tangents(m, False)) == ([[2.0, 1.0], None] if told else [[2.0, 1.0]])
    error = same(lambda m: tangents(m, True), text=50)
    assert error == ("error", ("RuntimeError",), "Function's jvp returned a gradient at position 1, but the corresponding"[:50])
    x = np.array([1.0, 2.0])
    for f in (lambda x: ag.jvp(lambda x: parts(ag, True)(x)[0], (x,), (x,)), lambda x: ag.grad(lambda x: parts(ag, True)(x)[0].sum())(x)):
        for g in (f, ag.compile(f)):
            with pytest.raises(RuntimeError, match="gradient at position 1"):
                g(x)
