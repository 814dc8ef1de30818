"""Operators and methods of tensors against NumPy, and against torch where it is installed; in-place writes, views and the tape."""

from __future__ import annotations

import importlib.util
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.frontend.program import Program
from aotgrad.ir import build, tensor_type

torch: Any = __import__("torch") if importlib.util.find_spec("torch") else None
needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")
RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(3, 4)), RNG.uniform(0.5, 2.0, (3, 4)) * np.where(RNG.random((3, 4)) > 0.5, 1, -1)
OPERATORS = ["add", "sub", "mul", "truediv", "floordiv", "mod"]
COMPARE = ["lt", "le", "gt", "ge", "eq", "ne"]


def numbers(x: Any) -> Any:
    return x.detach().numpy() if isinstance(x, ag.Tensor) else np.asarray(x)


def numeric_gradient(f: Callable[[Any], Any], x: Any, eps: float = 1e-6) -> Any:
    out = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[i] = eps
        out[i] = (f(x + step) - f(x - step)) / (2 * eps)
    return out


# ---- operators --------------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", OPERATORS + COMPARE)
def test_operators_in_every_order(name: str) -> None:
    op = getattr(operator, name)
    with np.errstate(all="ignore"):
        for x, y in ((A, B), (A, 1.5), (1.5, A), (A, np.float64(0.5)), (np.float64(0.5), A), (A, B[0]), (A[:, :1], B)):
            want = op(x, y)
            for left, right in ((True, False), (False, True), (True, True)):
                p = ag.tensor(x) if left and isinstance(x, np.ndarray) else x
                q = ag.tensor(y) if right and isinstance(y, np.ndarray) else y
                if isinstance(p, ag.Tensor) or isinstance(q, ag.Tensor):
                    got = op(p, q)
                    assert isinstance(got, ag.Tensor)
                    np.testing.assert_array_equal(numbers(got), want)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "floordiv", "mod"])
def test_integer_operators(name: str, dtype: Any) -> None:
    x, y = np.array([7, 9, 3, 250, 0, 5]).astype(dtype), np.array([3, 4, 5, 7, 3, 5]).astype(dtype)
    if dtype is not np.uint8:
        x, y = np.concatenate([x, -x, x, -x]), np.concatenate([y, y, -y, -y])
    np.testing.assert_array_equal(numbers(getattr(operator, name)(ag.tensor(x), ag.tensor(y))), getattr(operator, name)(x, y))
    assert getattr(operator, name)(ag.tensor(x), 3)._dtype is ag.tensor(x)._dtype


def test_fmod_and_its_kin_have_the_right_signs() -> None:
    x, y = np.array([5.5, -5.5, 5.5, -5.5, -0.0, 3.0]), np.array([2.0, 2.0, -2.0, -2.0, 2.0, np.inf])
    for name in ("fmod", "remainder", "floor_divide"):
        got, want = numbers(getattr(ag, name)(ag.tensor(x), ag.tensor(y))), getattr(np, name)(x, y)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want))
        i, j = np.array([7, -7, 7, -7]), np.array([3, 3, -3, -3])
        np.testing.assert_array_equal(numbers(getattr(ag, name)(ag.tensor(i), ag.tensor(j))), getattr(np, name)(i, j))
    assert divmod(ag.tensor(-7), 2) == (ag.tensor(-4), ag.tensor(1))
    assert divmod(7, ag.tensor(-2)) == (ag.tensor(-4), ag.tensor(-1))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 4, 0.0, 1.0, 2.0, 3.0, 4.0, 0.5, -1, -1.0, 2.5, -2])
def test_powers(exponent: Any) -> None:
    x = np.array([0.25, 1.0, 2.0, 3.7])
    got = ag.tensor(x) ** exponent
    np.testing.assert_allclose(numbers(got), x ** exponent, rtol=4e-16)
    products = {0: x * 0 + 1, 1: x, 2: x * x, 3: x * x * x, 4: (x * x) * (x * x), 0.5: np.sqrt(x), -1: 1 / x}
    if exponent in products:
        np.testing.assert_array_equal(numbers(got), products[exponent])
    slope = ag.grad(lambda v: (v ** exponent).sum())(ag.tensor(x))
    np.testing.assert_allclose(numbers(slope), exponent * x ** (exponent - 1.0), rtol=1e-14)


def test_derivatives_of_powers_at_zero() -> None:
    f: Any = lambda x: x ** 4.0
    found = []
    for _ in range(5):
        f = ag.grad(f)
        found.append(float(f(0.0)))
    assert found == [0.0, 0.0, 0.0, 24.0, 0.0]
    assert ag.grad(lambda x: np.sum(x ** 0.0))(np.array([0.0, 1.0])).tolist() == [0.0, 0.0]
    assert [float(g) for g in ag.grad(lambda a, b: a ** b, argnums=(0, 1))(0.0, 0.0)] == [0.0, 0.0]
    assert ag.tensor([2, 3]).pow(2).tolist() == [4, 9]
    with pytest.raises(ag.AotgradValueError, match="negative integer powers"):
        ag.tensor([2, 3]) ** -1


def test_operators_refuse_what_they_do_not_know() -> None:
    x = ag.tensor([1.0])
    for other in ("a", None, object(), [1.0]):
        with pytest.raises(TypeError):
            x + other
        with pytest.raises(TypeError):
            other - x
    assert (x == None) is False and (x != "a") is True  # noqa: E711
    assert len({x, ag.tensor([1.0])}) == 2  # hashed by identity
    with pytest.raises(ag.AotgradTypeError, match="bools and integers"):
        ag.tensor([1.0]) & ag.tensor([3])
    assert (ag.tensor([6]) & ag.tensor([3])).tolist() == [2] and (6 ^ ag.tensor([3])).tolist() == [5] and (ag.tensor([6]) >> 1).tolist() == [3]
    assert (~ag.tensor([True, False])).tolist() == [False, True] and (~ag.tensor([5])).tolist() == [-6]
    assert 2.0 in ag.tensor([1.0, 2.0]) and 3.0 not in ag.tensor([1.0, 2.0])


def test_booleans() -> None:
    p, q = np.array([True, True, False, False]), np.array([True, False, True, False])
    for name in ("and_", "or_", "xor"):
        np.testing.assert_array_equal(numbers(getattr(operator, name)(ag.tensor(p), ag.tensor(q))), getattr(operator, name)(p, q))
        np.testing.assert_array_equal(numbers(getattr(operator, name)(p, ag.tensor(q))), getattr(operator, name)(p, q))


def test_promotion_is_torchs_among_tensors() -> None:
    f32, f64, i64 = ag.ones(2), ag.ones(2, dtype=ag.float64), ag.tensor([1, 2])
    assert (f32 * 2.0).dtype is ag.float32 and (f32 * np.ones(2)).dtype is ag.float64 and (i64 * 2.0).dtype is ag.float32
    assert (i64 / 2).dtype is ag.float32 and (f32 + f64.sum()).dtype is ag.float32 and (f32 + f64).dtype is ag.float64
    ag.set_default_dtype(ag.float64)
    try:
        assert (i64 * 2.0).dtype is ag.float64
    finally:
        ag.set_default_dtype(ag.float32)
    assert (i64 * 2.0).dtype is ag.float32


# ---- methods against torch ----------------------------------------------------------------------------------------------------------------

METHODS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: x.sum(), "sum_dim": lambda x: x.sum(1), "sum_keep": lambda x: x.sum(dim=0, keepdim=True), "mean": lambda x: x.mean(dim=(0, 1)),
    "std": lambda x: x.std(),
    "var_dim": lambda x: x.var(1), "var0": lambda x: x.var(unbiased=False), "prod": lambda x: x.prod(1), "max": lambda x: x.max(), "max_dim": lambda x: x.max(1).values,
    "min_dim": lambda x: x.min(0)[0],
    "argmax": lambda x: x.argmax(1), "amax": lambda x: x.amax((0, 1)), "cumsum": lambda x: x.cumsum(0), "logsumexp": lambda x: x.logsumexp(1),
    "softmax": lambda x: x.softmax(1),
    "t": lambda x: x.t(), "T": lambda x: x.T, "mT": lambda x: x.mT, "view": lambda x: x.view(-1, 2), "reshape": lambda x: x.reshape(2, 6),
    "transpose": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.permute(1, 0), "unsqueeze": lambda x: x.unsqueeze(-1), "squeeze": lambda x: x[:1].squeeze(0), "flatten": lambda x: x.flatten(),
    "expand": lambda x: x[:1].expand(5, 4),
    "repeat": lambda x: x.repeat(2, 1), "flip": lambda x: x.flip(0), "roll": lambda x: x.roll(1, 0), "chunk": lambda x: x.chunk(2, 1)[1],
    "split": lambda x: x.split(2)[0], "unbind": lambda x: x.unbind(1)[2],
    "narrow": lambda x: x.narrow(1, 1, 2), "select": lambda x: x.select(1, 2), "tril": lambda x: x.tril(), "diagonal": lambda x: x.diagonal(),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp_min": lambda x: x.clamp(min=0.1), "masked_fill": lambda x: x.masked_fill(x > 0, 2.0), "norm": lambda x: x.norm(), "norm1": lambda x: x.norm(p=1, dim=1),
    "pow": lambda x: x.pow(2),
    "index": lambda x: x[[0, 2], 1:], "masked": lambda x: x[x > 0], "clone": lambda x: x.clone(), "double": lambda x: x.float().double(), "to": lambda x: x.to(x.dtype),
    "floor": lambda x: x.floor(),
    "remainder": lambda x: x.remainder(0.7), "fmod": lambda x: x.fmod(0.7), "floor_divide": lambda x: x.floor_divide(0.7), "abs": lambda x: abs(x), "neg": lambda x: -x,
    "rsub": lambda x: 1 - x,
    "rdiv": lambda x: 1 / x, "rpow": lambda x: 2 ** x, "tanh": lambda x: x.tanh(), "sigmoid": lambda x: x.sigmoid(), "relu": lambda x: x.relu(),
    "exp": lambda x: x.exp(), "expm1": lambda x: x.expm1(),
    "add_alpha": lambda x: x.add(x, alpha=2), "dot": lambda x: x[0].dot(x[1]), "outer": lambda x: x[0].outer(x[1]), "view_as": lambda x: x.view_as(x.t().contiguous()),
    "mm": lambda x: x.mm(x.t()),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1), "new": lambda x: x.new_ones(2) * x[0, :2], "numel": lambda x: x.sum() * x.numel(),
    "iter": lambda x: sum(row.sum() for row in x),
    "augmented": lambda x: _augmented(x), "gather": lambda x: x.gather(1, (x > 0).long()), "triu_": lambda x: (x * 2).triu_(),
}


def _augmented(x: Any) -> Any:
    y = x * 1.0
    y += 2.0
    y *= x
    y -= x.sum()
    y /= 3.0
    y[1] += y[0]
    return y


@needs_torch
@pytest.mark.parametrize("name", METHODS)
def test_methods_as_torch(name: str) -> None:
    f = METHODS[name]
    mine, other = ag.tensor(A, requires_grad=True), torch.tensor(A, requires_grad=True)
    got, want = f(mine), f(other)
    assert tuple(got.shape) == tuple(want.shape) and str(got.dtype).split(".")[1] == str(want.dtype).split(".")[1]
    np.testing.assert_allclose(numbers(got), want.detach().numpy(), rtol=1e-13, atol=1e-14)
    assert got.requires_grad == want.requires_grad
    if got.requires_grad and name != "floor_divide":  # torch has no derivative for it
        weights = np.random.default_rng(2).normal(size=tuple(want.shape))
        got.backward(ag.tensor(weights))
        want.backward(torch.tensor(weights))
        np.testing.assert_allclose(numbers(mine.grad), other.grad.numpy(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", [n for n in METHODS if n not in ("argmax", "double")])
def test_methods_against_differences(name: str) -> None:
    f = METHODS[name]
    if name in ("floor", "floor_divide"):
        return
    x = ag.tensor(A, requires_grad=True)
    out = f(x)
    weights = np.random.default_rng(3).normal(size=tuple(out.shape))
    out.backward(ag.tensor(weights))
    numeric = numeric_gradient(lambda v: float(np.sum(numbers(f(ag.tensor(v))) * weights)), A)
    np.testing.assert_allclose(numbers(x.grad), numeric, rtol=2e-7, atol=2e-8)


@needs_torch
def test_errors_as_torch() -> None:
    for make in (lambda t: t.tensor([1.0], requires_grad=True).add_(1), lambda t: t.ones(2).add_(t.ones(3, 2)), lambda t: t.tensor([1, 2]).mul_(1.5),
        lambda t: t.ones(2).view(3),
                 lambda t: t.ones(3).dot(t.ones(2)), lambda t: t.ones(2, 2).t().t().unsqueeze(5)):
        with pytest.raises(Exception) as theirs:
            make(torch)
        with pytest.raises(ag.AotgradError) as mine:
            make(ag)
        assert isinstance(mine.value, (RuntimeError, ValueError, TypeError, IndexError)), theirs.value


def test_array_values_have_numpys_methods() -> None:
    seen: dict[str, Any] = {}

    def f(x: Any) -> Any:
        seen.update(std=x.std(), var=x.var(ddof=1), size=x.size, T=x.T.shape, max=x.max(axis=1), reshape=x.reshape(2, 6), transpose=x.transpose(), flat=x.flatten(),
            ravel=x.ravel(), clip=x.clip(0, 1),
                    repeat=x.repeat(2, axis=0), dot=x.dot(x.T), astype=x.astype(np.float32), dtype=x.dtype, cumsum=x.cumsum(), mean=x.mean(axis=0, keepdims=True),
                    take=x.take([1, 0], axis=1), swap=x.swapaxes(0, 1))
        return x.sum()

    ag.grad(f)(A)
    want = {"std": A.std(), "var": A.var(ddof=1), "size": A.size, "T": A.T.shape, "max": A.max(axis=1), "reshape": A.reshape(2, 6), "transpose": A.T, "flat": A.ravel(),
        "ravel": A.ravel(), "clip": A.clip(0, 1),
            "repeat": A.repeat(2, axis=0), "dot": A @ A.T, "astype": A.astype(np.float32), "dtype": A.dtype, "cumsum": A.cumsum(),
            "mean": A.mean(axis=0, keepdims=True), "take": A.take([1, 0], axis=1), "swap": A.T}
    for name, value in want.items():
        got = seen[name]
        if isinstance(got, ag.Tensor):
            assert got.dtype == np.asarray(value).dtype, name
            np.testing.assert_allclose(got._data, value, rtol=1e-14, err_msg=name)
        else:
            assert got == value, name


def test_functions_keep_torchs_meaning_in_both() -> None:
    assert float(ag.std(A)) == pytest.approx(A.std(ddof=1))
    assert ag.grad(lambda x: ag.std(x))(A) == pytest.approx(ag.grad(lambda x: x.std(ddof=1))(A))
    assert isinstance(ag.sin(np.ones(3)), np.ndarray) and isinstance(ag.sin(0.0), np.float64) and isinstance(ag.sum(np.ones(3)), np.float64)


# ---- in-place writes, views, saved values ---------------------------------------------------------------------------------------------------

def test_in_place_shares_memory_and_counts_versions() -> None:
    x = ag.tensor([1.0, 2.0, 3.0, 4.0])
    view, array, detached = x[1:3], x.numpy(), x.detach()
    view += 10.0
    assert x.tolist() == [1.0, 12.0, 13.0, 4.0] and array[1] == 12.0 and detached[2].item() == 13.0
    x.view(2, 2)[1].zero_()
    assert x.tolist() == [1.0, 12.0, 0.0, 0.0] and view.tolist() == [12.0, 0.0]
    assert x._version == view._version == detached._version == 2
    x.copy_(ag.tensor(5))
    x.fill_(2.0).clamp_(max=1.5).neg_()
    assert array.tolist() == [-1.5] * 4
    assert x.clone().data_ptr() != x.data_ptr() and x.flip(0).data_ptr() != x.data_ptr()


def test_saved_values_survive_writes() -> None:
    p = ag.tensor([1.0, 2.0], requires_grad=True)
    other = ag.tensor([3.0, 4.0])
    product = p * other  # saves other
    other.view(2)[0] = 100.0
    product.sum().backward()
    assert p.grad.tolist() == [3.0, 4.0]
    a = ag.tensor([1.0, 2.0, 3.0], dtype=ag.float64, requires_grad=True)
    b = a.sigmoid()  # saves its own result
    b[1] = 2.0
    b.sum().backward()
    s = 1 / (1 + np.exp(-np.array([1.0, 2.0, 3.0])))
    np.testing.assert_allclose(numbers(a.grad), s * (1 - s) * [1, 0, 1], rtol=1e-14)
    x = ag.tensor([-1.0, 2.0], requires_grad=True)
    x.relu().relu_().sum().backward()
    assert x.grad.tolist() == [0.0, 1.0]


def test_a_step_between_two_backward_passes() -> None:
    w = ag.tensor([2.0], requires_grad=True)
    y = w * w
    with ag.no_grad():
        w -= 1.0
    (g,) = ag.autograd.grad(y, [w], create_graph=True)
    assert g.item() == 4.0 and w.item() == 1.0
    (h,) = ag.autograd.grad(g, [w])
    assert h.item() == 2.0


def test_writes_through_views_reach_the_base_and_other_views() -> None:
    for through in (lambda y: y[0], lambda y: y.T[:, 0], lambda y: y.view(-1)[:2], lambda y: y.reshape(4).view(2, 2)[0]):
        x = ag.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        y = x * 2.0
        flat = y.view(-1)
        part = through(y)
        part.mul_(10.0)
        assert y.tolist() == [[20.0, 40.0], [6.0, 8.0]] and flat.tolist() == [20.0, 40.0, 6.0, 8.0]
        for read in (y, flat):
            (g,) = ag.autograd.grad(read.sum(), [x], retain_graph=True)
            assert g.tolist() == [[20.0, 20.0], [2.0, 2.0]]


def test_read_modify_write() -> None:
    x = ag.tensor([[1.0, -1.0, -2.0], [1.0, 1.0, 3.0]], requires_grad=True)
    y = x.clone()
    y[:, 0] += x[:, 2].abs()
    y.sum().backward()
    assert x.grad.tolist() == [[1.0, 1.0, 0.0], [1.0, 1.0, 2.0]]
    z = ag.tensor([3.0])
    z[[0, 0]] += z[[0, 0]]
    assert z.tolist() == [6.0]


def test_a_buffer_joins_the_graph() -> None:
    p = ag.tensor([1.0, 2.0], requires_grad=True)
    buffer = ag.zeros(3)
    buffer[1:] = p * p
    buffer[0] = buffer[1] * 5.0
    assert buffer.requires_grad and not buffer.is_leaf
    buffer.sum().backward()
    assert p.grad.tolist() == [12.0, 4.0]


def test_leaves_refuse_writes() -> None:
    x = ag.tensor([1.0, 2.0], requires_grad=True)
    for write in (lambda: x.add_(1.0), lambda: x.__setitem__(0, 1.0), lambda: x[0].zero_(), lambda: x.view(-1).mul_(2.0)):
        with pytest.raises(ag.AotgradRuntimeError, match="leaf Variable that requires grad"):
            write()
    assert x.tolist() == [1.0, 2.0]
    with ag.no_grad():
        x.add_(1.0)
    assert x.tolist() == [2.0, 3.0] and x.is_leaf
    assert ag.grad(lambda v: [v.__setitem__(0, 1.0), v.sum()][1])(np.ones(2)).tolist() == [0.0, 1.0]  # of NumPy callers' arguments the function has its own


def test_arguments_of_numpy_callers_never_change() -> None:
    x = np.arange(3.0)

    def f(v: Any) -> Any:
        w = v.copy()
        w[0] = v[1] * v[2]
        w += 1.0
        w[1:] *= w[:-1]
        return np.sum(w)

    before = x.copy()
    g = ag.grad(f)(x)
    np.testing.assert_array_equal(x, before)
    np.testing.assert_allclose(g, numeric_gradient(f, x), rtol=1e-7)


def test_numpys_scalars_are_not_views() -> None:
    def f(v: Any) -> Any:
        w = v * 1.0
        first = w[0]
        total = w[0]
        total += w[1]
        w[0] = 100.0
        return first * total * w[1]

    x = np.array([2.0, 3.0])
    assert float(ag.compile(f)(x)) == f(x) == 30.0
    np.testing.assert_allclose(ag.grad(f)(x), numeric_gradient(f, x), rtol=1e-7)


def test_writes_that_do_not_fit_name_the_line() -> None:
    x = ag.ones(2)
    with pytest.raises(ag.AotgradRuntimeError, match=r"test_eager.py:\d+.*doesn't match the broadcast shape"):
        x.add_(ag.ones(3, 2))
    with pytest.raises(ag.AotgradRuntimeError, match="can't be cast"):
        ag.tensor([1, 2]).mul_(1.5)
    with pytest.raises(ag.AotgradRuntimeError, match="clone"):
        ag.ones(1).expand(3).add_(1.0)
    assert ag.tensor([1.0]).mul_(ag.tensor([2.0], dtype=ag.float64)).dtype is ag.float32


def test_losses() -> None:
    F = ag.nn.functional
    scores = RNG.normal(size=(4, 3))
    target = np.array([0, 2, 1, -100])
    logp = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    weight = np.array([1.0, 2.0, 3.0])
    picked = -logp[[0, 1, 2], target[:3]]
    assert float(F.cross_entropy(ag.tensor(scores), ag.tensor(target))) == pytest.approx(picked.mean())
    w = weight[target[:3]]
    assert float(F.cross_entropy(ag.tensor(scores), ag.tensor(target), ag.tensor(weight))) == pytest.approx((picked * w).sum() / w.sum())
    np.testing.assert_allclose(numbers(F.nll_loss(ag.tensor(logp), ag.tensor(target), reduction="none")), [*picked, 0.0])
    assert float(F.mse_loss(ag.tensor(scores), ag.zeros(4, 3))) == pytest.approx((scores ** 2).mean())
    np.testing.assert_allclose(numbers(F.linear(ag.tensor(A), ag.tensor(B), ag.ones(3))), A @ B.T + 1)
    g = ag.grad(lambda s: F.cross_entropy(s, target))(scores)
    soft = np.exp(logp)
    soft[np.arange(3), target[:3]] -= 1
    np.testing.assert_allclose(g, np.where(target[:, None] == -100, 0, soft / 3), rtol=1e-13, atol=1e-16)


@needs_torch
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_as_torch(reduction: str, smoothing: float) -> None:
    scores, target, weight = RNG.normal(size=(4, 3, 2)), np.array([[0, 2], [1, -100], [1, 1], [2, 0]]), np.array([1.0, 2.0, 0.5])
    for w in (None, weight):
        for t in (target, np.abs(RNG.normal(size=(4, 3, 2)))):
            got = ag.nn.functional.cross_entropy(ag.tensor(scores), ag.tensor(t), None if w is None else ag.tensor(w), reduction=reduction, label_smoothing=smoothing)
            want = torch.nn.functional.cross_entropy(torch.tensor(scores), torch.tensor(t), None if w is None else torch.tensor(w), reduction=reduction,
                label_smoothing=smoothing)
            np.testing.assert_allclose(numbers(got), want.numpy(), rtol=1e-12)


def test_names() -> None:
    x = ag.tensor([1.0, 2.0], requires_grad=True)
    for out, name in ((x + 1, "AddBackward0"), (x[0], "SelectBackward0"), (x[:1], "SliceBackward0"), (x[[0]], "IndexBackward0"), (x[None], "UnsqueezeBackward0"),
        (x ** 2, "PowBackward0")):
        assert str(out.grad_fn.name) == name
    assert ag.add.__name__ == "add" and "other" in str(__import__("inspect").signature(ag.add))
    with pytest.raises(ag.AotgradTypeError, match=r"sum\(\).*unexpected argument 'dims_'.*signature is sum\(input"):
        x.sum(dims_=1)
    with pytest.raises(AttributeError):
        ag.no_such_function  # noqa: B018


def test_a_list_of_numbers_is_stacked_and_one_array_in_a_list_is_another_call_than_the_array() -> None:
    x = np.arange(3.0)
    assert ag.stack([x]).shape == (1, 3)
    assert ag.stack([np.float64(1.0), np.float64(2.0), x[2]]).tolist() == [1.0, 2.0, 2.0]
    assert ag.stack([1.0, 2.0]).tolist() == [1.0, 2.0]
    assert ag.cat([[1.0, 2.0], [3.0]]).tolist() == [1.0, 2.0, 3.0]


def test_memory_that_a_view_shows_is_not_used_again() -> None:
    t, wide = tensor_type([3]), tensor_type([2, 3])

    def body(b: Any, x: Any) -> Any:
        doubled = b.add(x, x)
        shown = b.broadcast(doubled, shape=(2, 3), dims=(1,))
        more = b.add(doubled, x)  # the last reader of ``doubled``, whose memory ``shown`` still shows
        return b.sub(shown, b.broadcast(more, shape=(2, 3), dims=(1,)))

    func = build("f", [t], body)
    assert func.out_types[0] == wide
    x = np.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(Program(func, "F").run([x])[0], np.broadcast_to(-x, (2, 3)))


@pytest.mark.parametrize("shape", [(2,), (2, 3)])
def test_sums_of_gradients_overflow_without_a_word(shape: tuple[int, ...]) -> None:
    """Warnings are errors here, and NumPy raises: an infinite gradient is a number like any other, in the pass and when it is added to ``.grad``."""
    w = ag.tensor(np.full(shape, 1e308), requires_grad=True)
    with np.errstate(all="raise"):
        for _ in range(2):
            (w * 1e308 + w * 1e308).backward(ag.ones(shape, dtype=ag.float64))
            assert w.grad.tolist() == np.full(shape, np.inf).tolist()
        w.grad.copy_(ag.tensor(-np.inf))
        w.backward(ag.tensor(np.full(shape, np.inf)))
    assert np.isnan(w.grad.numpy()).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int8])
@pytest.mark.parametrize("shape", [(70_001,), (150, 200), (3, 5, 40, 41)])
def test_where_of_many_elements(shape: tuple[int, ...], dtype: Any) -> None:
    """Bit for bit, zeros with signs and NaN included, from any layout, with operands that are repeated."""
    rng = np.random.default_rng(0)
    x, y = ((rng.normal(size=shape) * 50).astype(dtype) for _ in range(2))
    if np.dtype(dtype).kind == "f":
        x.flat[::7], x.flat[3::11], y.flat[::5] = np.nan, -0.0, -np.inf
    cond = rng.random(shape) < 0.5
    for turn in (lambda a: a, lambda a: np.asfortranarray(a), lambda a: np.repeat(a, 2, -1)[..., ::2], lambda a: a[..., ::-1], lambda a: np.broadcast_to(a[:1], shape)):
        a, b, c = turn(x), y, turn(cond)
        assert ag.where(ag.from_numpy(c.copy(order="K")), ag.from_numpy(a.copy(order="K")), ag.from_numpy(b)).numpy().tobytes() == np.where(c, a, b).tobytes()
        assert ag.where(ag.as_tensor(c), ag.as_tensor(a), 0).numpy().tobytes() == np.where(c, a, dtype(0)).tobytes()
