"""``autograd.Function``: torch's contract on the tape, forward mode, derived rules, and the same calls in compiled code."""

from __future__ import annotations

import gc
import importlib
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from autograd_pair import f64, modules, same

import aotgrad as ag
from aotgrad.ir import interp
from aotgrad.ir.parser import parse_func
from aotgrad.ir.printer import print_func
from aotgrad.ir.verifier import verify

Both = pytest.mark.parametrize("wrap", [lambda f: f, ag.compile], ids=["eager", "compiled"])
XS = np.array([1.0, 2.0])


def functions(m: Any) -> Any:
    """The Functions of the tests, on module ``m``."""
    function = m.autograd.Function

    class Mul(function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x, y = ctx.saved_tensors
            return g * y, g * x

    class Half(Mul):
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x, _ = ctx.saved_tensors
            return None, g * x

    class Few(Mul):
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    class Many(Mul):
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g, g, g

    class Spare(Mul):
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g, g, None

    class Misshapen(Mul):
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return m.ones(3, dtype=m.float64), g

    class Expanded(Mul):
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return m.ones(3, 2, dtype=m.float64), g

    class Number(Mul):
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return 3.0, g

    class Scale(function):
        @staticmethod
        def forward(ctx: Any, x: Any, k: float) -> Any:
            ctx.k = k
            return x * k

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            assert ctx.needs_input_grad == (True, False)
            return g * ctx.k, None

    class Loud(Scale):
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.k, g

    class Bare(function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

    class Same(function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 3

    class Double(function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            x.mul_(2)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    class Forgets(Double):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            x.mul_(2)
            ctx.mark_dirty(x)
            return x * 1

    class Parts(function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            at, copy = m.argmax(x), x * 1
            ctx.mark_non_differentiable(at, copy)
            return x * x, at, copy

        @staticmethod
        def backward(ctx: Any, g: Any, at: Any, copy: Any) -> Any:
            return g * 3 + copy

    class Sparse(function):
        seen: list[Any] = []

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.set_materialize_grads(False)
            return x * 2, x * 3, "text"

        @staticmethod
        def backward(ctx: Any, a: Any, b: Any, c: Any) -> Any:
            Sparse.seen.append([v is None for v in (a, b, c)])
            return (0 if a is None else a * 2) + (0 if b is None else b * 3)

    class Exp(function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            y = m.exp(x)
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            y, = ctx.saved_tensors
            return g * y

    class Apart(function):
        @staticmethod
        def forward(x: Any, k: float = 2.0) -> Any:
            return x * k

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.k = inputs[1]
            ctx.save_for_backward(output)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.k + ctx.saved_tensors[0] * 0, None

    class Wrong(function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(3)
            return x

    class Jvp(function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any, k: float) -> Any:
            ctx.save_for_forward(x, y)
            ctx.k = k
            return x * y * k

        @staticmethod
        def jvp(ctx: Any, tx: Any, ty: Any, tk: Any) -> Any:
            assert tk is None
            x, y = ctx.saved_tensors
            return (tx * y + x * ty) * ctx.k

    return type("Functions", (), dict(locals()))


ALL = {m.__name__: functions(m) for m in modules()}


def of(m: Any) -> Any:
    return ALL[m.__name__]


def pair(m: Any) -> tuple[Any, Any]:
    return f64(m, [2.0, 3.0], True), f64(m, [5.0, 7.0], True)


def pulled(m: Any, name: str) -> Any:
    x, y = pair(m)
    getattr(of(m), name).apply(x, y).sum().backward()
    return x.grad, y.grad


# ---- the contract, beside torch -------------------------------------------------------------------------------------------------------

def test_the_node_is_named_after_the_function() -> None:
    def lines(m: Any) -> Any:
        x, y = pair(m)
        z = of(m).Mul.apply(x, y)
        edges = [type(n).__name__ for n, _ in z.grad_fn.next_functions]
        owners = [n.variable is v for (n, _), v in zip(z.grad_fn.next_functions, (x, y))]
        return z.grad_fn.name(), repr(z).partition("grad_fn=")[2], edges, z.grad_fn.saved_tensors[0] is x, owners

    assert same(lines) == ("MulBackward", "<MulBackward>)", ["AccumulateGrad", "AccumulateGrad"], True, [True, True])


def test_backward_gives_one_gradient_per_input() -> None:
    assert same(lambda m: pulled(m, "Mul")) == ([5.0, 7.0], [2.0, 3.0])


def test_none_for_one_of_two_aliased_slots() -> None:
    def lines(m: Any) -> Any:
        a = f64(m, 3.0, True)
        of(m).Half.apply(a, a).backward()
        return a.grad

    assert same(lines) == 3.0


@pytest.mark.parametrize(("name", "text"), [("Few", 81), ("Many", 82), ("Misshapen", 113), ("Number", 37)])
def test_wrong_gradients_are_errors_with_torchs_text(name: str, text: int) -> None:
    assert same(lambda m: pulled(m, name), text)[:2] == ("error", ("RuntimeError",))


def test_trailing_none_and_broadcast_gradients_are_accepted() -> None:
    assert same(lambda m: pulled(m, "Spare")) == ([1.0, 1.0], [1.0, 1.0])
    assert same(lambda m: pulled(m, "Expanded")) == ([3.0, 3.0], [1.0, 1.0])


def test_backward_is_called_once_with_needs_input_grad() -> None:
    assert same(lambda m: (lambda x: (of(m).Scale.apply(x, 4.0).sum().backward(), x.grad)[1])(pair(m)[0])) == [4.0, 4.0]


def test_a_gradient_for_a_number_is_an_error() -> None:
    assert same(lambda m: of(m).Loud.apply(pair(m)[0], 4.0).sum().backward(), 120)[1] == ("RuntimeError",)


def test_a_missing_backward_is_not_implemented() -> None:
    assert same(lambda m: of(m).Bare.apply(pair(m)[0]).sum().backward(), 90)[1] == ("NotImplementedError", "RuntimeError")


def test_a_second_backward_says_that_the_graph_is_freed() -> None:
    def lines(m: Any) -> Any:
        z = of(m).Mul.apply(*pair(m)).sum()
        z.backward()
        z.backward()

    assert same(lines, 60)[1] == ("RuntimeError",)


def test_a_returned_input_is_a_view_with_a_node() -> None:
    def lines(m: Any) -> Any:
        x = pair(m)[0]
        y = of(m).Same.apply(x)
        with m.no_grad():
            z = of(m).Same.apply(x)
        y.sum().backward()
        return y.grad_fn.name(), y is x, y._base is x, x.grad, z is x, z.requires_grad

    assert same(lines) == ("SameBackward", False, True, [3.0, 3.0], False, False)


def test_mark_dirty_gives_the_input_itself_a_history() -> None:
    def lines(m: Any) -> Any:
        x = pair(m)[0]
        w = x * 1
        out = of(m).Double.apply(w)
        base = x * 1
        view = base[:1]
        of(m).Double.apply(view)
        (w.sum() + base.sum()).backward()
        return out is w, w, w._version, w.grad_fn.name(), base, x.grad

    assert same(lines) == (True, [4.0, 6.0], 2, "DoubleBackward", [4.0, 3.0], [4.0, 3.0])


def test_mark_dirty_of_a_leaf_or_of_what_is_not_returned_is_an_error() -> None:
    assert same(lambda m: of(m).Double.apply(pair(m)[0]))[1] == ("RuntimeError",)
    assert same(lambda m: of(m).Forgets.apply(pair(m)[0] * 1), 130)[1] == ("RuntimeError",)


def test_results_marked_as_not_differentiable() -> None:
    def lines(m: Any) -> Any:
        x = pair(m)[0]
        out = of(m).Parts.apply(x)
        out[0].sum().backward()
        return [o.requires_grad for o in out], out, x.grad

    assert same(lines) == ([True, False, False], ([4.0, 9.0], 1, [2.0, 3.0]), [3.0, 3.0])


def test_absent_gradients_are_zeros_or_none() -> None:
    def lines(m: Any) -> Any:
        functions = of(m)
        functions.Sparse.seen.clear()
        x = pair(m)[0]
        out = functions.Sparse.apply(x)
        out[1].sum().backward()
        return out[2], x.grad, functions.Sparse.seen[:]

    assert same(lines) == ("text", [3.0, 3.0], [[True, False, True]])


def test_double_backward_runs_through_backwards_own_ops() -> None:
    def lines(m: Any) -> Any:
        x, y = pair(m)
        g, = m.autograd.grad(of(m).Mul.apply(x, y * x).sum(), x, create_graph=True)
        e = of(m).Exp.apply(x)
        first, = m.autograd.grad(e.sum(), x, create_graph=True)
        second, = m.autograd.grad(first.sum(), x, create_graph=True)
        third, = m.autograd.grad(second.sum(), x)
        return g, m.autograd.grad(g.sum(), x), second, third, e

    g, gg, second, third, e = same(lines)
    assert (g, gg) == ([20.0, 42.0], ([10.0, 14.0],))
    assert second == third == e


def test_setup_context_takes_defaults_and_keywords() -> None:
    def lines(m: Any) -> Any:
        x = pair(m)[0]
        a, b = of(m).Apart.apply(x), of(m).Apart.apply(x, k=3.0)
        (a + b).sum().backward()
        return a, b, x.grad

    assert same(lines) == ([4.0, 6.0], [6.0, 9.0], [5.0, 5.0])


def test_saving_something_else_is_a_type_error() -> None:
    assert same(lambda m: of(m).Wrong.apply(pair(m)[0]), 72)[1] == ("TypeError",)


def square_once(m: Any) -> Any:
    """A square whose derivative has none."""
    class Once(m.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x ** 2

        @staticmethod
        @m.autograd.function.once_differentiable
        def backward(ctx: Any, g: Any) -> Any:
            return 2 * ctx.saved_tensors[0] * g

    return Once


def test_once_differentiable() -> None:
    def lines(m: Any) -> Any:
        x, w = pair(m)
        y = square_once(m).apply(x)
        first, = m.autograd.grad((y * w).sum(), x, create_graph=True)
        first.sum().backward()

    assert same(lines, 70) == ("error", ("RuntimeError",), "trying to differentiate twice a function that was marked with @once_di")


def test_an_overwritten_saved_input_keeps_its_old_value() -> None:
    x, y = pair(ag)
    w = x * 1
    z = of(ag).Mul.apply(w, y).sum()
    w.mul_(10.0)
    z.backward()
    assert y.grad.tolist() == [2.0, 3.0]


def test_no_reference_cycle_is_left() -> None:
    gc.disable()
    try:
        x = f64(ag, [1.0], True)
        y = of(ag).Exp.apply(x)
        ref = weakref.ref(y.grad_fn)
        del y
        assert ref() is None
    finally:
        gc.enable()


def test_a_function_is_not_instantiated() -> None:
    with pytest.raises(TypeError, match="should not be instantiated"):
        of(ag).Mul()


# ---- forward mode and derived rules -----------------------------------------------------------------------------------------------------

def test_jvp_takes_zeros_for_what_does_not_move() -> None:
    def lines(m: Any) -> Any:
        fw = m.autograd.forward_ad
        x, y = pair(m)
        with fw.dual_level():
            out = fw.unpack_dual(of(m).Jvp.apply(fw.make_dual(x, f64(m, [1.0, 1.0])), y, 2.0))
        out.tangent.sum().backward()
        return out.primal, out.tangent, x.grad, y.grad

    def checked(m: Any) -> Any:
        try:
            return lines(m)[:2]
        except AttributeError:  # torch.autograd.forward_ad is a module of its own
            return None

    assert checked(ag) is not None
    primal, tangent, gx, gy = lines(ag)
    assert (primal.tolist(), tangent.tolist()) == ([20.0, 42.0], [10.0, 14.0])
    assert gy.tolist() == [2.0, 2.0]
    assert gx is None or gx.tolist() == [0.0, 0.0]


@Both
@pytest.mark.parametrize("tangent", [lambda t: t.sum(), lambda t: ag.ones(3, 2, dtype=ag.float64), lambda t: t[:1]], ids=["fewer dims", "more dims", "shorter"])
def test_tangents_of_another_shape_are_errors(wrap: Callable[..., Any], tangent: Callable[..., Any]) -> None:
    """Of gradients what was broadcast is summed; a tangent has the shape of its output, in torch too."""
    def twice(m: Any) -> Any:
        class Twice(m.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x * 2

            @staticmethod
            def jvp(ctx: Any, t: Any) -> Any:
                return tangent(t) if m is ag else m.ones(3, dtype=m.float64)

        return Twice

    def lines(m: Any) -> Any:
        fw, x = importlib.import_module(f"{m.__name__}.autograd.forward_ad"), f64(m, [1.0, 2.0])
        with fw.dual_level():
            twice(m).apply(fw.make_dual(x, x))

    assert same(lines)[0] == "error"
    with pytest.raises(RuntimeError, match="invalid tangent"):
        wrap(lambda x: ag.jvp(twice(ag).apply, (x,), (x,)))(XS)


def test_backward_and_vjp_are_one_method_of_two_names() -> None:
    def lines(m: Any) -> Any:
        class Twice(m.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x * 2

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g * 2

            vjp = backward

        Twice.apply(f64(m, [1.0, 2.0], True)).sum().backward()

    assert same(lines, 38)[2] == "Implementing both 'backward' and 'vjp'"


@Both
def test_forward_mode_follows_from_backward(wrap: Callable[..., Any]) -> None:
    f = wrap(lambda x, y: ag.jvp(lambda a, b: ag.sum(of(ag).Mul.apply(a, b)), (x, y), (np.array([1.0, 0.0]), np.array([0.0, 1.0]))))
    value, tangent = f(np.array([2.0, 3.0]), np.array([5.0, 7.0]))
    assert (float(value), float(tangent)) == (31.0, 8.0)


@Both
def test_reverse_mode_follows_from_jvp(wrap: Callable[..., Any]) -> None:
    def f(x: Any) -> Any:
        return ag.sum(of(ag).Jvp.apply(x, x * x, 2.0))  # 2 x**3

    assert wrap(ag.grad(f))(XS).tolist() == [6.0, 24.0]
    assert wrap(ag.hessian(f))(XS).tolist() == [[12.0, 0.0], [0.0, 24.0]]
    assert wrap(ag.jacfwd(f))(XS).tolist() == [6.0, 24.0]


def test_what_cannot_be_derived_says_so() -> None:
    class Opaque(ag.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return ag.from_numpy(g.detach().numpy() * 2)

    with pytest.raises(NotImplementedError, match="You must implement the jvp function.*cannot be traced"):
        ag.jvp(Opaque.apply, (XS,), (XS,))
    with pytest.raises(NotImplementedError, match="OpaqueBackward: its backward cannot be traced"):
        ag.compile(ag.grad(lambda x: ag.sum(Opaque.apply(x))))(XS)
    assert ag.compile(Opaque.apply)(XS).tolist() == [2.0, 4.0]


# ---- NumPy, transforms, compiled --------------------------------------------------------------------------------------------------------

@Both
def test_aliased_slots_under_transforms(wrap: Callable[..., Any]) -> None:
    f = lambda a: of(ag).Half.apply(a, a)
    assert wrap(ag.grad(f))(3.0) == 3.0
    assert wrap(lambda a: ag.jvp(f, (a,), (1.0,)))(3.0) == (9.0, 3.0)
    assert ag.grad(wrap(f))(3.0) == 3.0
    a = ag.tensor(3.0, requires_grad=True)
    wrap(f)(a).backward()
    assert a.grad.item() == 3.0


@Both
@pytest.mark.parametrize("make", [lambda f: ag.hessian(f), lambda f: ag.jacrev(ag.jacrev(f)), lambda f: ag.jacfwd(ag.jacfwd(f)), lambda f: ag.jacrev(ag.jacfwd(f))],
                         ids=["fwd-rev", "rev-rev", "fwd-fwd", "rev-fwd"])
def test_second_derivatives_differentiate_the_rule(wrap: Callable[..., Any], make: Callable[..., Any]) -> None:
    class Sin(ag.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.save_for_backward(x, y)
            return ag.sin(x) * y

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x, y = ctx.saved_tensors
            return g * ag.cos(x) * y, g * ag.sin(x)

    assert float(wrap(make(Sin.apply))(1.0, 2.0)) == pytest.approx(-2 * np.sin(1.0), rel=1e-14)


@Both
def test_none_for_a_slot_of_its_own(wrap: Callable[..., Any]) -> None:
    half = of(ag).Half.apply
    assert wrap(ag.grad(half, argnums=(0, 1)))(3.0, 5.0) == (0.0, 3.0)
    assert wrap(lambda x, y: ag.jvp(half, (x, y), (1.0, 0.0)))(3.0, 5.0) == (15.0, 0.0)
    assert wrap(lambda x, y: ag.jvp(half, (x, y), (0.0, 1.0)))(3.0, 5.0) == (15.0, 3.0)
    assert wrap(ag.jacrev(ag.grad(half, argnums=1)))(3.0, 5.0) == 1.0  # the rule's own derivative
    assert wrap(ag.grad(lambda x: ag.grad(half, argnums=1)(x * 1.0, 5.0) * 1.0))(3.0) == 1.0


@Both
def test_gradients_of_broadcast_inputs_are_summed(wrap: Callable[..., Any]) -> None:
    class Add(ag.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, b: Any) -> Any:
            return x + b

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g, g

    weights = np.arange(6.0).reshape(2, 3)
    f = lambda x, b: ag.sum(Add.apply(x, b) * weights)
    for shape in ((3,), (1, 3), (2, 1), (1, 1), ()):
        b = np.zeros(shape)
        want = ag.grad(lambda b: ag.sum((np.zeros((2, 3)) + b) * weights))(b)
        got = wrap(ag.grad(f, argnums=1))(np.zeros((2, 3)), b)
        assert np.shape(got) == shape
        np.testing.assert_array_equal(got, want)


@Both
def test_rules_inside_loops_and_branches(wrap: Callable[..., Any]) -> None:
    mul = of(ag).Mul
    rows = np.linspace(0.2, 1.2, 6).reshape(3, 2)

    def loop(product: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: ag.sum(ag.scan(lambda c, r: (ag.sin(product(c, r)), c), x[0] * 1.0, x)[0])

    def branch(product: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: ag.cond(ag.sum(x) > 0, lambda x: ag.sum(product(x, x * x)), lambda x: ag.sum(x), x)

    for make in (loop, branch):
        for d in (ag.grad, ag.jacfwd, ag.hessian):
            want = d(make(lambda a, b: a * b))(rows)
            np.testing.assert_allclose(wrap(d(make(mul.apply)))(rows), want, rtol=1e-12, atol=1e-14)


@Both
def test_writes_in_place_and_constant_results(wrap: Callable[..., Any]) -> None:
    def double(x: Any) -> Any:
        w = x * 1.0
        out = of(ag).Double.apply(w)
        return ag.sum(w * out)

    x = f64(ag, [1.0, 2.0], True)
    wrap(double)(x).backward()
    assert x.grad.tolist() == [8.0, 16.0]
    parts = lambda x: ag.sum(of(ag).Parts.apply(x)[0]) + ag.sum(of(ag).Parts.apply(x)[2])
    assert wrap(ag.grad(parts))(XS).tolist() == [3.0, 3.0]
    assert wrap(ag.jacfwd(parts))(XS).tolist() == [3.0, 3.0]


@Both
def test_saved_results_and_intermediates_in_second_order(wrap: Callable[..., Any]) -> None:
    class Mid(ag.autograd.Function):  # keeps an intermediate: constant in second order, as in torch
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            c = ag.cos(x)
            ctx.save_for_backward(c)
            return ag.sin(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.saved_tensors[0]

    assert wrap(ag.grad(ag.grad(Mid.apply)))(1.0) == 0.0
    assert wrap(ag.grad(ag.grad(ag.grad(of(ag).Exp.apply))))(1.0) == pytest.approx(np.e)


@Both
def test_once_differentiable_under_transforms(wrap: Callable[..., Any]) -> None:
    square = square_once(ag).apply
    assert wrap(ag.grad(square))(3.0) == 6.0
    with pytest.raises(ag.AotgradError, match="marked with @once_differentiable"):
        wrap(ag.grad(ag.grad(square)))(3.0)


def test_numpy_in_numpy_out() -> None:
    out = of(ag).Scale.apply(XS, 3.0)
    assert type(out) is np.ndarray
    assert out.tolist() == [3.0, 6.0]
    assert ag.grad(lambda x: ag.sum(of(ag).Mul.apply(x, 2.0)))(XS).tolist() == [2.0, 2.0]


def test_a_write_that_is_not_marked_is_an_error_in_a_trace() -> None:
    class Silent(ag.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            x.mul_(2)
            return x * 1

    with pytest.raises(RuntimeError, match="ctx.mark_dirty"):
        ag.compile(lambda x: Silent.apply(x * 1.0))(f64(ag, [1.0]))


def test_the_op_survives_text_and_the_verifier() -> None:
    func = ag.compile(lambda x, y: of(ag).Mul.apply(ag.exp(x), y)).trace(XS, XS)
    verify(func)
    text = print_func(func)
    again = parse_func(text)
    verify(again)
    assert print_func(again) == text
    assert '"ag.custom"' in text
    assert interp.run(again, XS, XS)[0].tolist() == (np.exp(XS) * XS).tolist()
