"""Functions in place: every ``name_`` is ``name`` written into the tensor, by whatever road, and those that change the shape make a view of it."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sweep
from autograd_pair import HAS_TORCH, f64, modules, outcome, same

import aotgrad as ag
from aotgrad.frontend import dispatch

_ROWS, _WEIGHTS = [[0.3, -0.6, 0.9], [0.25, 0.5, -0.75]], [[1.0, 2.0, 3.0], [-1.0, 0.5, 2.0]]
_INSIDE = [[0.3, 0.6, 0.9], [0.25, 0.5, 0.75]]
# arguments of what needs some; a function of (module) gives them
ARGUMENTS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    **dict.fromkeys(("cumsum", "cumprod", "unsqueeze"), lambda m: (1,)), **dict.fromkeys(("transpose", "swapaxes", "swapdims"), lambda m: (0, 1)),
    **dict.fromkeys(("addcmul", "addcdiv"), lambda m: (f64(m, _WEIGHTS), f64(m, _INSIDE))), "lerp": lambda m: (f64(m, _WEIGHTS), 0.25),
    "addmm": lambda m: (f64(m, [[1.0], [2.0]]), f64(m, [[1.0, 2.0, 3.0]])), "clamp": lambda m: (0.0, 0.5), "clip": lambda m: (0.0, 0.5),
    "baddbmm": lambda m: (f64(m, [[[1.0], [2.0]]]), f64(m, [[[1.0, 2.0, 3.0]]])), "masked_fill": lambda m: (f64(m, _WEIGHTS) > 1, 7.0),
    **dict.fromkeys(("scatter", "scatter_add"), lambda m: (1, m.tensor([[0], [2]]), f64(m, [[5.0], [6.0]]))),
    "index_add": lambda m: (0, m.tensor([1]), f64(m, [[1.0, 2.0, 3.0]])),
}
_SECOND = ("add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "remainder", "fmod", "floor_divide", "atan2", "arctan2", "heaviside", "hypot",
           "xlogy", "lt", "le", "gt", "ge", "eq", "ne", "less", "less_equal", "greater", "greater_equal", "not_equal", "logical_and", "logical_or", "logical_xor",
           "clamp_min", "clamp_max")
ARGUMENTS.update(dict.fromkeys(_SECOND, lambda m: (f64(m, _WEIGHTS),)))
_WHOLE = ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift")
ARGUMENTS["xlogy"] = lambda m: (f64(m, _INSIDE),)
ARGUMENTS.update(dict.fromkeys(_WHOLE, lambda m: (m.tensor([[1, 2, 3], [0, 1, 2]]),)))
_LARGE = ("acosh", "arccosh")
NAMES = sorted(n for n, p in dispatch.TORCH.items() if p.op.front is not None and p.op.front.inplace)


def given(m: Any, name: str) -> Any:
    """A tensor that the function takes."""
    if name in _WHOLE or name == "bitwise_not":
        return m.tensor([[4, 5, 6], [7, 8, 9]])
    if name == "baddbmm":
        return f64(m, [_ROWS])
    if name.startswith("squeeze"):
        return f64(m, [_ROWS])
    positive = name.startswith(("log", "sqrt", "rsqrt", "asin", "acos", "arc", "atanh", "xlogy")) and name != "logical_not" or name == "pow"
    return f64(m, [[3.0, 1.5, 2.0]] if name in _LARGE else _INSIDE if positive else _ROWS)


def arguments(m: Any, name: str) -> tuple[Any, ...]:
    return (2.0,) if name == "pow" else ARGUMENTS.get(name, lambda m: ())(m)


def is_shape(name: str) -> bool:
    return dispatch.is_view(dispatch.TORCH[name])


@pytest.mark.parametrize("name", NAMES)
def test_in_place_is_the_function_written_into_the_tensor(name: str) -> None:
    x = given(ag, name)
    want = getattr(x.clone(), name)(*arguments(ag, name))
    data, out = x.data_ptr(), getattr(x, f"{name}_")(*arguments(ag, name))
    assert out is x and x._version == 1 and x.data_ptr() == data and x._base is None
    assert tuple(x.shape) == tuple(want.shape) and x.dtype == given(ag, name).dtype
    np.testing.assert_array_equal(x.numpy(), want.to(x.dtype).numpy())


NOT_OF_TORCH = ("softplus", "expit", "cbrt")
REFUSED_BY_TORCH = ("acosh", "arccosh", "arcsinh", "arctanh", "asinh", "atanh", "floor_divide", "heaviside", "sgn")  # backward of the form in place, not of the other
KEEPS_IN_TORCH = ("logical_and", "logical_not", "logical_or", "logical_xor")  # the gradient passes as if nothing had been written


def _with_gradient(m: Any, name: str, after: str = "_") -> Any:
    x = given(m, name).requires_grad_(name not in _WHOLE and name != "bitwise_not")
    y = x * 1
    z = getattr(y, f"{name}{after}")(*arguments(m, name)).to(x.dtype)
    if not x.requires_grad:
        return z.tolist()
    if not z.requires_grad:  # a comparison
        return z, (2, 3), f64(m, np.zeros((2, 3)).tolist())
    (z * m.arange(1.0, 1 + z.numel(), dtype=m.float64).reshape(z.shape)).sum().backward()
    return z, tuple(z.shape), x.grad


@pytest.mark.parametrize("name", NAMES)
def test_gradients_in_place(name: str) -> None:
    want = outcome(ag, functools.partial(_with_gradient, name=name, after=""))
    assert want[0] != "error"
    assert outcome(ag, functools.partial(_with_gradient, name=name)) == want
    if name not in NOT_OF_TORCH + REFUSED_BY_TORCH + KEEPS_IN_TORCH:
        same(functools.partial(_with_gradient, name=name))


@pytest.mark.parametrize("name", sweep.part(NAMES))
def test_in_place_in_compiled_functions(name: str) -> None:
    def run(x: Any, *rest: Any) -> Any:
        y = x * 1
        getattr(y, f"{name}_")(*rest)
        return y + 1

    rest = arguments(ag, name)
    fixed = [r for r in rest if not isinstance(r, ag.Tensor)]
    tensors = [r for r in rest if isinstance(r, ag.Tensor)]
    order = [isinstance(r, ag.Tensor) for r in rest]

    def call(x: Any, *given: Any) -> Any:
        ts, ns = iter(given), iter(fixed)
        return run(x, *[next(ts) if on else next(ns) for on in order])

    want, got = (f(given(ag, name), *tensors) for f in (call, ag.compile(call)))
    assert tuple(got.shape) == tuple(want.shape)
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-12)


@pytest.mark.skipif(not HAS_TORCH, reason="the names of torch are needed")
def test_every_form_of_a_method_that_torch_has_is_there() -> None:
    """Methods in place, functions in place, and methods as functions: whatever torch has of what is here."""
    torch = importlib.import_module("torch")
    f, tf = ag.nn.functional, torch.nn.functional
    known = {n for n in dir(ag.Tensor) if not n.startswith("_")}
    callable_here = {*known, *(n for n in ag.__all__ if callable(getattr(ag, n)))}
    not_yet = {"map_"}  # which calls Python for every element
    methods = {n for n in dir(torch.Tensor) if not n.startswith("_") and n.rstrip("_") in callable_here}
    assert methods - known == not_yet
    functions = {n for n in dir(torch) if not n.startswith("_") and n.endswith("_") and n in known}
    assert {n for n in functions if not hasattr(ag, n)} == set()
    assert {n for n in dir(tf) if n.endswith("_") and not n.startswith("_") and hasattr(f, n.rstrip("_")) and not hasattr(f, n)} == set()


@pytest.mark.parametrize("name", ["exp_", "abs_", "clamp_", "nan_to_num_", "relu_", "celu_", "selu_", "zero_", "xlogy_"])
def test_functions_in_place(name: str) -> None:
    def lines(m: Any) -> Any:
        x = f64(m, _ROWS)
        rest = {"clamp_": (0.0, 0.5), "xlogy_": (f64(m, _INSIDE),)}.get(name, ())
        return getattr(m, name)(x, *rest) is x, x, x._version

    assert same(lines)[0] is True


def test_functions_in_place_of_arrays() -> None:
    a = np.array([0.5, 1.5])
    assert ag.exp_(a) is a and a.tolist() == np.exp([0.5, 1.5]).tolist()


@pytest.mark.parametrize("name", ["relu_", "elu_", "celu_", "selu_", "hardtanh_", "leaky_relu_"])
def test_activations_in_place(name: str) -> None:
    def lines(m: Any) -> Any:
        x = f64(m, _ROWS, True)
        y = x * 1
        out = getattr(m.nn.functional, name)(y)
        out.sum().backward()
        return out is y, y, x.grad

    assert same(lines)[0] is True


# ---- another shape in place ----------------------------------------------------------------------------------------------------------

def _views(m: Any) -> Any:
    """A tensor, a view of it, and writes through both after the shape has changed."""
    x = f64(m, _ROWS, True)
    y = x * 1
    row = y[0]
    y.t_()
    after = y[1]
    y.mul_(3)
    row.add_(1)
    after.mul_(2)
    (y * f64(m, _WEIGHTS).t()).sum().backward()
    return y, row, after, x.grad, y._version, row._version, y._base is None, row._base is y, after._base is y, y.is_contiguous(), y.stride()


def _of_a_view(m: Any) -> Any:
    x = f64(m, _ROWS, True)
    y = x * 1
    row = y[0]
    row.unsqueeze_(0)
    row.mul_(2)
    y[1] = 5.0
    (y * f64(m, _WEIGHTS)).sum().backward()
    return y, row, tuple(row.shape), x.grad, y._version, row._base is y


def _leaf_later(m: Any) -> Any:
    x = f64(m, _ROWS)
    x.transpose_(0, -1).requires_grad_()
    (x * x).sum().backward()
    return x.grad, tuple(x.grad.shape), x.is_leaf, x._version


def _without_recording(m: Any) -> Any:
    x = f64(m, _ROWS, True)
    with m.no_grad():
        x.t_()
    (x * x).sum().backward()
    return x.grad, x.is_leaf, x.requires_grad


def _saved(m: Any) -> Any:
    x = f64(m, _ROWS, True)
    y = x.exp()
    z = y.detach().unsqueeze(0)
    z.squeeze_()
    y.sum().backward()
    return x.grad, y._version, z._version, tuple(z.shape)


def _dual(m: Any) -> Any:
    fw = importlib.import_module(f"{m.__name__}.autograd.forward_ad")
    with fw.dual_level():
        d = fw.make_dual(f64(m, _ROWS), f64(m, _WEIGHTS)) * 1
        d.t_()
        return tuple(fw.unpack_dual(d * d)), tuple(d.shape)


def _attributes(m: Any) -> Any:
    x = f64(m, _ROWS)
    x.tag = "mine"
    alias = x
    x.swapdims_(0, 1).squeeze_().unsqueeze_(0)
    return alias is x, x.tag, tuple(alias.shape), x._version


@pytest.mark.parametrize("lines", [_views, _of_a_view, _leaf_later, _without_recording, _dual, _attributes])
def test_shapes_in_place_as_torch(lines: Callable[[Any], Any]) -> None:
    found = same(lines)
    assert found[0] != "error", found


def test_shapes_in_place_leave_what_is_saved() -> None:
    """The numbers do not change, so that nothing is copied and the gradient is right; torch refuses, as it counts versions alone."""
    assert outcome(ag, _saved) == ([[round(float(v), 9) for v in np.exp(r)] for r in np.array(_ROWS)], 1, 1, (2, 3))


def test_a_retained_gradient_has_the_new_shape() -> None:
    x = f64(ag, _ROWS, True)
    y = x * 2
    y.retain_grad()
    y.t_()
    (y * y).sum().backward()
    np.testing.assert_allclose(y.grad.numpy(), 4 * np.array(_ROWS).T)
    np.testing.assert_allclose(x.grad.numpy(), 8 * np.array(_ROWS))


def error_types(m: Any, lines: Callable[[Any], Any]) -> set[str]:
    found = outcome(m, lines)
    return set(found[1]) if found[0] == "error" else set()


def fails_as_torch(lines: Callable[[Any], Any]) -> None:
    """An error of the type torch raises (and of NumPy's)."""
    kinds = [error_types(m, lines) for m in modules()]
    assert all(k and k <= kinds[0] for k in kinds), kinds


@pytest.mark.parametrize("lines", [
    lambda m: f64(m, _ROWS, True).t_(), lambda m: f64(m, _ROWS, True)[0].unsqueeze_(0), lambda m: f64(m, [_ROWS]).t_(), lambda m: f64(m, _ROWS).transpose_(0, 5),
    lambda m: f64(m, _ROWS).squeeze_(7), lambda m: f64(m, _ROWS).unsqueeze_(4),
])
def test_bad_shapes_in_place(lines: Callable[[Any], Any]) -> None:
    fails_as_torch(lines)


def test_a_failed_change_of_shape_changes_nothing() -> None:
    x = f64(ag, _ROWS, True) * 1
    row, node = x[0], x.grad_fn
    with pytest.raises(IndexError):
        x.squeeze_(7)
    assert x.grad_fn is node and x._version == 0 and tuple(x.shape) == (2, 3)
    row.mul_(2)
    assert x.tolist()[0] == row.tolist() and x._version == 1


def test_shapes_of_tensors_from_outside_stay_in_compiled_functions() -> None:
    w = f64(ag, _ROWS)
    for f in (lambda x: x.t_() + 0, lambda x: w.t_() + x.sum()):
        with pytest.raises(ag.AotgradTypeError, match=r"t_ would change the shape .* x = x.t"):
            ag.compile(f)(f64(ag, _ROWS))
    with pytest.raises(ag.AotgradTypeError, match="NumPy"):
        ag.grad(lambda x: x.t_().sum())(np.array(_ROWS))


# ---- unflatten, sum_to_size ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("lines", [
    lambda m, x: x.unflatten(1, (3, -1)), lambda m, x: x.unflatten(-1, (2, 2)), lambda m, x: x.unflatten(1, (6,)), lambda m, x: x.unflatten(1, (2, -1)).grad_fn.name(),
    lambda m, x: m.unflatten(x, 1, sizes=(2, 3)), lambda m, x: x.sum_to_size(1, 4), lambda m, x: x.sum_to_size((6, 1)), lambda m, x: x.sum_to_size(4),
    lambda m, x: x.sum_to_size(2, 6, 4), lambda m, x: x.sum_to_size(2, 1, 4).grad_fn.name(), lambda m, x: x.sum_to_size(1).stride(),
    lambda m, x: x.clamp_min(5.0).grad_fn.name(), lambda m, x: m.clamp_max(x, x * 0.5).grad_fn.name(),
    lambda m, x: (x > 3).sum_to_size(1, 4), lambda m, x: x.frac(), lambda m, x: m.fix(x * 0.3), lambda m, x: m.bitwise_not(m.tensor([3, -1])),
    lambda m, x: (~(x > 3)).long(),
    lambda m, x: (m.is_nonzero(x[0, 0, 0]), x.is_same_size(x), m.is_complex(x), m.is_signed(x), x.equal(x), x.allclose(x + 1)),
    lambda m, x: x.diff(dim=0), lambda m, x: (x.byte().dtype == m.uint8, x.char().dtype == m.int8, x.bfloat16().dtype == m.bfloat16),
])
def test_further_names_as_torch(lines: Callable[..., Any]) -> None:
    found = same(lambda m: lines(m, m.arange(48.0, dtype=m.float64).reshape(2, 6, 4).requires_grad_()))
    assert not isinstance(found, tuple) or found[0] != "error", found


@pytest.mark.parametrize("lines", [
    lambda m, x: x.unflatten(1, (4, -1)), lambda m, x: x.unflatten(1, ()), lambda m, x: x.unflatten(5, (2, 3)), lambda m, x: x.unflatten(1, (-1, -1)),
    lambda m, x: x.sum_to_size(3, 4), lambda m, x: x.sum_to_size(1, 2, 6, 4), lambda m, x: ~x, lambda m, x: m.is_nonzero(x), lambda m, x: (x > 3).positive(),
])
def test_further_names_with_wrong_arguments(lines: Callable[..., Any]) -> None:
    fails_as_torch(lambda m: lines(m, m.arange(48.0, dtype=m.float64).reshape(2, 6, 4)))


@pytest.mark.parametrize("f", [lambda x: x.unflatten(1, (2, -1)) * 2, lambda x: x.sum_to_size(1, 6, 1), lambda x: x.sum_to_size(4)])
def test_with_open_sizes(f: Callable[..., Any]) -> None:
    run = ag.compile(f)
    for n in (3, 5, 3):
        x = ag.rand(n, 6, 4, dtype=ag.float64)
        np.testing.assert_allclose(run(x).numpy(), f(x).numpy(), rtol=1e-12)
    assert run.cache_info().variants == 1


def test_gradients_of_sum_to_size_and_unflatten() -> None:
    for f in (lambda x: x.sum_to_size(2, 1, 1), lambda x: x.unflatten(1, (2, 3)) ** 2, lambda x: x.clamp_min(0.2), lambda x: x.clamp_max(x.detach() * 0 + 0.2)):
        assert ag.autograd.gradcheck(f, (ag.rand(2, 6, 4, dtype=ag.float64).requires_grad_(),))


def test_parts_are_used() -> None:
    """Every name of the tables above is one of the registry."""
    assert {*ARGUMENTS} <= {*NAMES} and functools.reduce(lambda a, b: a and b, map(is_shape, ("t", "squeeze", "unsqueeze", "transpose")))
