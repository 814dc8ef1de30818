"""``gradcheck`` and ``gradgradcheck``: torch's verdicts, and what is reported when a derivative is wrong."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from autograd_pair import modules, same

import aotgrad as ag
from aotgrad.autograd.gradcheck import GradcheckError

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(3, 2)), RNG.normal(size=(2, 3))


def t(m: Any, a: Any, grad: bool = True) -> Any:
    out = m.from_numpy(np.array(a))
    return out.requires_grad_(True) if grad else out


def functions(m: Any) -> Any:
    """Operations with faults of several kinds, on module ``m``."""
    function = m.autograd.Function

    class Right(function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.saved_tensors[0] * 2

        @staticmethod
        def jvp(ctx: Any, tangent: Any) -> Any:
            return tangent * ctx.saved_tensors[0] * 2

    class WrongFactor(Right):
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.saved_tensors[0] * 2.1

    class WrongForward(Right):
        @staticmethod
        def jvp(ctx: Any, tangent: Any) -> Any:
            return tangent * ctx.saved_tensors[0] * 3

    class NoCotangent(Right):
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return ctx.saved_tensors[0] * 2

    class NoneIntolerant(function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.set_materialize_grads(False)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    class Intermediate(function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x.cos())
            return x.sin()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.saved_tensors[0]

    class Drifting(function):
        calls = [0]

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            Drifting.calls[0] += 1
            return g * (2 + 1e-9 * Drifting.calls[0])

    return type("Functions", (), dict(locals()))


ALL = {m.__name__: functions(m) for m in modules()}


def smooth(x: Any) -> Any:
    return (x.sin() * x).sum(0)


def verdict(call: Callable[[Any], Any]) -> Any:
    """The verdict and the number of warnings, equal on both modules."""
    def lines(m: Any) -> Any:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            found = call(m)
        return found, len([w for w in seen if "requires gradient" in str(w.message)])

    return same(lines, 24)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("forward", [False, True])
def test_double_precision_passes(fast: bool, forward: bool) -> None:
    assert verdict(lambda m: m.autograd.gradcheck(smooth, (t(m, A),), fast_mode=fast, check_forward_ad=forward)) == (True, 0)
    assert verdict(lambda m: m.autograd.gradcheck(lambda a, b: m.matmul(a, b), (t(m, A), t(m, B)), fast_mode=fast, check_forward_ad=forward)) == (True, 0)


@pytest.mark.parametrize("eps", [1e-6, 1e-4])
def test_low_precision_warns_and_fails(eps: float) -> None:
    a = A.astype(np.float32)
    assert verdict(lambda m: m.autograd.gradcheck(lambda x: (x ** 3).sum(0) * 10, (t(m, a),), eps=eps, raise_exception=False)) == (False, 1)
    assert verdict(lambda m: m.autograd.gradcheck(smooth, (t(m, a),), eps=1e-2, atol=1e-2)) == (True, 1)


@pytest.mark.parametrize("name", ["WrongFactor", "NoCotangent", "Intermediate", "Drifting", "Right", "WrongForward"])
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.filterwarnings("ignore:Backwards compatibility")
def test_faults_have_torchs_verdicts(name: str, fast: bool) -> None:
    good = {"Right": (True, True), "WrongForward": (True, True), "Intermediate": (True, False)}.get(name, (False, None))
    first = verdict(lambda m: m.autograd.gradcheck(getattr(ALL[m.__name__], name).apply, (t(m, A),), fast_mode=fast, raise_exception=False))
    assert first == (good[0], 0)
    if name == "Drifting" and fast:
        return  # whether one random direction shows a drift of 1e-9 in the second derivative is chance, in torch too
    second = verdict(lambda m: m.autograd.gradgradcheck(getattr(ALL[m.__name__], name).apply, (t(m, A),), fast_mode=fast, raise_exception=False))
    assert good[1] is None or second == (good[1], 0)
    forward = verdict(lambda m: m.autograd.gradcheck(ALL[m.__name__].WrongForward.apply, (t(m, A),), fast_mode=fast, check_forward_ad=True, raise_exception=False))
    assert forward == (False, 0)


@pytest.mark.filterwarnings("ignore:Backwards compatibility")
@pytest.mark.parametrize("name", ["WrongFactor", "NoCotangent", "Drifting"])
def test_faults_raise_torchs_error(name: str) -> None:
    assert verdict(lambda m: m.autograd.gradcheck(getattr(ALL[m.__name__], name).apply, (t(m, A),)))[:2] == ("error", ("RuntimeError",))


def test_a_backward_that_cannot_take_none_is_found() -> None:
    assert verdict(lambda m: m.autograd.gradcheck(ALL[m.__name__].NoneIntolerant.apply, (t(m, A),)))[:2] == ("error", ("TypeError",))


def test_a_backward_that_is_not_linear_at_zero_is_found() -> None:
    class Affine(ALL["aotgrad"].Right):  # type: ignore[name-defined,misc]
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.saved_tensors[0] * 2 + (0.0 if g.abs().sum().item() else 1.0)

    with pytest.raises(GradcheckError, match="backward not multiplied by grad_output"):
        ag.autograd.gradcheck(Affine.apply, (t(ag, A),))


def test_tolerances_and_switches() -> None:
    for options in ({"atol": 10.0}, {"rtol": 0.1}):
        assert verdict(lambda m: m.autograd.gradcheck(ALL[m.__name__].WrongFactor.apply, (t(m, A),), **options)) == (True, 0)  # noqa: B023
    assert verdict(lambda m: m.autograd.gradcheck(ALL[m.__name__].NoneIntolerant.apply, (t(m, A),), check_undefined_grad=False)) == (True, 0)
    assert verdict(lambda m: m.autograd.gradcheck(ALL[m.__name__].Drifting.apply, (t(m, A),), nondet_tol=1e-6)) == (True, 0)
    assert verdict(lambda m: m.autograd.gradcheck(ALL[m.__name__].Right.apply, (t(m, A),), check_backward_ad=False, check_forward_ad=True)) == (True, 0)


def test_structures_kinks_integers_and_constants() -> None:
    assert verdict(lambda m: m.autograd.gradcheck(lambda x: [x * 2, x.exp()], [t(m, A)])) == (True, 0)
    assert verdict(lambda m: m.autograd.gradcheck(lambda x, i: x[i], (t(m, A), t(m, np.array([0, 2]), False)))) == (True, 0)
    assert verdict(lambda m: m.autograd.gradcheck(lambda x: x ** 3, t(m, np.array(2.0)))) == (True, 0)
    assert verdict(lambda m: m.autograd.gradcheck(lambda x: x * 3, m.zeros(0, 2, dtype=m.float64, requires_grad=True))) == (True, 0)
    assert verdict(lambda m: m.autograd.gradcheck(lambda x: x.detach() * 0, t(m, A))) == (True, 0)
    assert verdict(lambda m: m.autograd.gradcheck(lambda x: x.detach() * 2, t(m, A), raise_exception=False)) == (False, 0)
    assert verdict(lambda m: m.autograd.gradcheck(lambda x: x.sqrt(), t(m, np.array([0.0, 1.0])), raise_exception=False)) == (False, 0)


def test_second_order() -> None:
    for options in ({}, {"check_fwd_over_rev": True}, {"fast_mode": True}, {"gen_non_contig_grad_outputs": True}, {"check_batched_grad": True}):
        assert verdict(lambda m: m.autograd.gradgradcheck(lambda a, b: m.matmul(a, b).tanh(), (t(m, A), t(m, B)), **options)) == (True, 0)  # noqa: B023
    assert verdict(lambda m: m.autograd.gradgradcheck(lambda x: x ** 3, (t(m, A),), t(m, B.T))) == (True, 0)


@pytest.mark.parametrize("call", [
    lambda m: m.autograd.gradcheck(smooth, (t(m, A, False),)), lambda m: m.autograd.gradcheck(smooth, (t(m, A[:, :1]).detach().expand(3, 2).requires_grad_(True),)),
])
def test_inputs_that_cannot_be_checked(call: Callable[[Any], Any]) -> None:
    assert verdict(call)[0] == "error"


@pytest.mark.parametrize("options", [{"check_backward_ad": False}, {"check_batched_grad": True, "check_backward_ad": False, "check_forward_ad": True},
                                     {"check_batched_forward_grad": True}])
def test_contradicting_arguments(options: dict[str, bool]) -> None:
    with pytest.raises(AssertionError) as error:
        ag.autograd.gradcheck(smooth, (t(ag, A),), **options)
    assert isinstance(error.value, ag.AotgradError)


def test_the_worst_element_is_reported() -> None:
    class OneWrong(ag.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ag.from_numpy(np.array([[2.0, 2.0], [2.0, 7.0], [2.0, 2.1]]))

    with pytest.raises(GradcheckError) as error:
        ag.autograd.gradcheck(OneWrong.apply, (t(ag, A),))
    text = str(error.value)
    assert text.startswith("Jacobian mismatch for output 0 with respect to input 0,\nnumerical:tensor(")
    assert "worst element: output 0 at [1, 1] in input 0 at [1, 1]: analytical 7.0, numerical 2.0000000" in text
    assert "2 of 36 elements are off" in text
    assert error.value.worst is not None
    assert error.value.worst[:5] == (0, 0, (1, 1), (1, 1), 7.0)
    with pytest.raises(GradcheckError, match="worst element: output 0 at"):
        ag.autograd.gradcheck(OneWrong.apply, (t(ag, A),), fast_mode=True)


def test_both_modes_are_compared_with_each_other() -> None:
    class Slightly(ALL["aotgrad"].Right):  # type: ignore[name-defined,misc]
        @staticmethod
        def jvp(ctx: Any, tangent: Any) -> Any:
            return tangent * ctx.saved_tensors[0] * 2.0005  # inside the tolerance of finite differences

    assert ag.autograd.gradcheck(Slightly.apply, (t(ag, A),), check_forward_ad=True, check_backward_ad=False)
    with pytest.raises(GradcheckError, match="Forward and reverse mode differ"):
        ag.autograd.gradcheck(Slightly.apply, (t(ag, A),), check_forward_ad=True)


def test_complex_steps_are_exact_where_they_are_legal() -> None:
    class Slightly(ALL["aotgrad"].Right):  # type: ignore[name-defined,misc]
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.saved_tensors[0] * (2 + 1e-9)

    tight = {"atol": 0.0, "rtol": 1e-12, "check_undefined_grad": False}
    assert ag.autograd.gradcheck(ALL["aotgrad"].Right.apply, (t(ag, A),), complex_step=True, **tight)
    assert not ag.autograd.gradcheck(Slightly.apply, (t(ag, A),), complex_step=True, raise_exception=False, **tight)
    assert not ag.autograd.gradcheck(ALL["aotgrad"].Right.apply, (t(ag, A),), raise_exception=False, **tight)  # differences are not as good
    assert ag.autograd.gradcheck(lambda x: x.abs(), (t(ag, A),), complex_step=True)  # not analytic: differences after all


def test_inputs_are_left_as_they_were() -> None:
    x = t(ag, A)
    ag.autograd.gradcheck(smooth, (x,))
    assert np.array_equal(x.detach().numpy(), A)

    def fails(x: Any, calls: list[int] = []) -> Any:  # noqa: B006
        calls.append(1)
        if len(calls) > 3:
            raise KeyError("stop")
        return x * 2

    with pytest.raises(KeyError):
        ag.autograd.gradcheck(fails, (x,))
    assert np.array_equal(x.detach().numpy(), A)


def test_compiled_functions_are_checked_too() -> None:
    f = ag.compile(lambda a, b: ag.tanh(ag.matmul(a, b)))
    assert ag.autograd.gradcheck(f, (t(ag, A), t(ag, B)), check_forward_ad=True)
    assert ag.autograd.gradgradcheck(f, (t(ag, A), t(ag, B)))


@pytest.mark.parametrize("f", [lambda x: (x ** 3).sum(), lambda x: x[0, 0].exp(), lambda x: ((x * x).sum(), x.sin())])
def test_second_derivatives_of_results_without_dims(f: Any) -> None:
    assert verdict(lambda m: m.autograd.gradgradcheck(f, (t(m, A),))) == (True, 0)
    assert ag.autograd.gradgradcheck(ag.compile(f), (t(ag, A),))
    assert ag.autograd.gradgradcheck(f, (t(ag, A),), gen_non_contig_grad_outputs=True)


def test_results_must_be_tensors() -> None:
    x = ag.tensor(np.array([1.0, 2.0]), requires_grad=True)
    with pytest.raises(TypeError, match="its output 1 is float"):
        ag.autograd.gradcheck(lambda x: (x * x, 3.0), (x,))
