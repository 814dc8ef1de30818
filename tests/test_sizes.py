"""Sizes in the user's program: arithmetic on ``x.shape[i]`` means what it means on Python's integers, and serves all sizes where it can."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotgrad as ag

F = ag.nn.functional

# Computed when the code runs: one trace serves all sizes.
SERVES_ALL = """-0.5*n*np.log(2*np.pi) - np.sum(x**2)/2
n/2
1/n
np.sqrt(n)
np.log(n)
n**0.5
n**-1
2.0**n
(-1.0)**n
x.sum()/n
n//2
n%2
7//n
n**2
x.sum()/(n-1)
n - x
x % n
(n/2)*x
x/np.sqrt(n)
np.sum(x)/np.sqrt(n-1)
n*(n-1)/2
np.exp(-n)
np.hypot(n, 2)
np.power(n, 2)
np.prod(x.shape)
np.maximum(n, 4)
np.float64(2)*n
np.int64(2)*n
n*np.float64(2)
n*np.ones(2)
np.arange(4.)*n
sum([n, 1.5])
divmod(n, 2)
divmod(7, n)
np.round(n/3, 2)
np.clip(n, 1, 2)
np.where(x > 1, x, n)
(n/2 > 1)*x
np.isfinite(n/2)*1.0
x.size/2
np.shape(x)[0]/2
+n
round(n)
math.floor(n)
ag.arange(n)*1.0
np.tile(x, n)
n*1.5 - 2*n/3 + (n + 0.5)**2
abs(-(n/2))""".splitlines()
# The number itself is needed: traced once per size.
FIXED = """np.arange(n)*x
ag.arange(0, n/2)*1.0
np.arange(1, n+1)*x
x[np.arange(n)]
np.tri(n)@x
np.mgrid[0:n]*x
np.indices(x.shape)[0]*x
np.fft.fftfreq(n)*x
2**n
(-1)**n
n**n
float(n)
np.zeros(n)+x
np.eye(n)@x
{3: 1.0, 5: 2.0}.get(n, 7.0)
{4: 1.0}.get(n + 1, 7.0)
{(3,): 1.0}.get(x.shape, 7.0)
float(n in {3})
float(n in (3, 4))
float(n == 3.0)
float(n == 3.5)
float(3 == n)
float(n == np.int64(3))
float(np.int64(3) == n)
float(n != 3)
float(n > 3.5)
float(3.5 > n)
float(n < 4)
float(n/2 == 1.5)
{1.5: 1.0}.get(n/2, 7.0)
math.sqrt(n)
math.log(n/2)
math.factorial(n)
math.gcd(n, 4)
math.ceil(n/2)
int(n/2)
x[:int(n*0.8)].sum()
round(n*0.3)
round(n*0.3, 1)
float(f"{n}")
float(f"{n:d}")
float(f"{n:6.2f}")
float(f"{n/2:.3f}")
float("%d" % n)
float("%s" % n)
float(repr(n))
float(str(n/2))
len(f"{x.shape}")
max(n, 4)
abs(n-5)
n & 1
n & (n - 1)
n << 1
n >> 1
1 << n
~n
n.bit_length()
(n/2).is_integer()*1.0
np.array([n, 1.0])
np.array([n/2, 1.0])
np.mean([n, 1])
np.gcd(n, 4)
np.hanning(n)*x
x if n/2 > 2 else -x
sum(range(n))
[1.0, 2.0]*n
pow(n, 2, 5)
complex(n).real
isinstance(n, int)*2.0 if math.isqrt(n) > 5 else 1.0""".splitlines()
NAMES = {"np": np, "ag": ag, "math": math}


def _case(text: str) -> Any:
    inner = eval(f"lambda x, n: ({text})", NAMES)
    return lambda x: inner(x, x.shape[0])


def _same(got: Any, want: Any) -> None:
    if isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for a, b in zip(got, want):
            _same(a, b)
        return
    want = want.numpy() if isinstance(want, ag.Tensor) else want
    np.testing.assert_allclose(np.asarray(got, dtype=float), np.asarray(want, dtype=float), rtol=1e-14)
    assert np.shape(got) == np.shape(want)


@pytest.mark.parametrize("text", SERVES_ALL)
def test_arithmetic_serves_all_sizes(text: str) -> None:
    f = _case(text)
    compiled = ag.compile(f, name="f")
    for n in (3, 5, 8, 3):
        x = np.linspace(0.5, 2, n)
        _same(compiled(x), f(x))
    assert compiled.cache_info().traces == 1


@pytest.mark.parametrize("text", FIXED)
def test_what_needs_the_number_is_traced_per_size(text: str) -> None:
    f = _case(text)
    compiled = ag.compile(f, name="f")
    for n in (3, 5, 4, 3):
        x = np.linspace(0.5, 2, n)
        _same(compiled(x), f(x))


def test_sizes_of_other_numbers_do_not_change_dtypes() -> None:
    x = np.ones(3, np.float32)
    for text in ("x/n", "x*(n/2)", "x*(n/2 + 1.5)", "x + n", "x/n**0.5", "(2*n + 0.5*n)*x"):
        assert ag.compile(_case(text), name="f")(x).dtype == np.float32 == _case(text)(x).dtype
    for text in ("x*np.sqrt(n)", "x*np.float64(n)", "x*(np.float64(2)*n)"):
        assert ag.compile(_case(text), name="f")(x).dtype == np.float64 == _case(text)(x).dtype


def test_sizes_in_derivatives_and_with_tensors() -> None:
    def loglik(x: Any) -> Any:
        n = x.shape[0]
        return -0.5 * n * np.log(2 * np.pi) - np.sum(x**2) / np.sqrt(n)

    x = np.arange(1.0, 5.0)
    np.testing.assert_allclose(ag.compile(ag.grad(loglik))(x), -2 * x / 2)
    np.testing.assert_allclose(ag.compile(ag.hessian(loglik))(x), -np.eye(4), atol=1e-15)
    t = ag.tensor([1.0, 2.0, 3.0], requires_grad=True)
    out = ag.compile(lambda t: (t * t).sum() / t.shape[0] ** 0.5 + t.shape[0] / 2)(t)
    assert out.dtype is ag.float32
    out.backward()
    np.testing.assert_allclose(t.grad.numpy(), 2 * np.array([1, 2, 3]) / 3**0.5, rtol=1e-6)


def test_explain_tells_which_size_is_fixed_and_where() -> None:
    def f(x: Any) -> Any:
        return x * np.arange(x.shape[0])

    text = ag.compile(f).explain(np.ones(3))
    assert "x_0 = 3" in text and "test_sizes.py" in text
    text = ag.compile(lambda x: x * np.fft.fftfreq(x.shape[0])).explain(np.ones(3))
    assert "n should be an integer" in text


def test_errors_of_division_and_of_math_are_those_of_python() -> None:
    f = ag.compile(lambda x: x * math.log(x.shape[0] - 3))
    with pytest.raises(ValueError):
        f(np.ones(3))
    with pytest.raises(ZeroDivisionError):
        ag.compile(lambda x: x * float(1 / (x.shape[0] - 3)))(np.ones(3))


def test_a_users_own_error_stays_as_it_is() -> None:
    def f(x: Any) -> Any:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="^mine$"):
        ag.compile(f)(np.ones(3))
    with pytest.raises(ValueError, match="^mine$"):
        ag.aot.build(f, ["x: f64[n]"])


def test_ahead_of_time_sizes_are_numbers_of_the_call(tmp_path: Path) -> None:
    def loglik(x: Any) -> Any:
        n = x.shape[0]
        return -0.5 * n * np.log(2 * np.pi) - np.sum(x**2) / np.sqrt(n) + 1 / n

    built = ag.aot.build(loglik, ["x: f64[n]"], grad="x", out=tmp_path, emit=("so",))
    library = ag.load(built.library)
    for n in (1, 4, 9):
        x = np.linspace(1, 2, n)
        np.testing.assert_allclose(library.loglik(x), loglik(x))
        np.testing.assert_allclose(library.loglik_grad(x)[1], -2 * x / n**0.5)


@pytest.mark.parametrize("text", ["{3: 1.0}.get(n, 2.0)*x", "np.arange(n)*x", "x*2**n", "x*np.fft.fftfreq(n)", "x*math.log(n)", "x*float(f'{n:d}')", "x[:int(n/2)]"])
def test_ahead_of_time_what_needs_the_number_is_an_error_with_the_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(ag.AotgradTypeError, match=r"<string>:1: .*fixed size"):
        ag.aot.build(_case(text), ["x: f64[n]"], name="f", out=tmp_path)


@pytest.mark.parametrize("f", [
    lambda x: np.stack([x, x]).reshape(2 * x.shape[0]), lambda x: x.reshape(1, x.shape[0]), lambda x: x[x.shape[0] // 2:x.shape[0] - 1], lambda x: x[-(x.shape[0] // 2):],
    lambda x: x[ag.arange(x.shape[0] - 1)][:x.shape[0] // 2], lambda x: ag.zeros(x.shape[0] // 2).sum() + x, lambda x: ag.eye(x.shape[0], dtype=ag.float64) @ x,
    lambda x: np.roll(x, x.shape[0] // 2), lambda x: np.concatenate([x, ag.ones(x.shape[0] // 2)]), lambda x: ag.full((x.shape[0],), x.shape[0] / 2) * x,
    lambda x: np.broadcast_to(x.sum(), (x.shape[0] - 1,)), lambda x: x + ag.arange(x.shape[0]),
])
def test_sizes_as_shapes_and_bounds_stay_open(f: Any) -> None:
    compiled = ag.compile(f)
    for n in (4, 8, 12):
        x = np.linspace(0.5, 2, n)
        _same(compiled(x), f(x))
    assert compiled.cache_info().traces == 1


W12, V1 = np.ones((1, 2)), np.full(1, 3.0)


@pytest.mark.parametrize("f", [
    lambda x: x @ W12, lambda x: x @ np.ones((1, 2)), lambda x: x @ V1, lambda x: np.dot(x, V1), lambda x: np.dot(x, np.ones((2, 1, 3))), lambda x: np.ones((4, 1)) @ x.T,
    lambda x: ag.nn.functional.linear(x, np.ones((2, 1)), np.ones(2)), lambda x: ag.grad(lambda w: np.sum((x @ w) ** 2))(W12), lambda x: np.broadcast_to(x, (5, 1)),
    lambda x: ag.scan(lambda c, t: (c + t, c), np.zeros(1), x)[1], lambda x: ag.fori_loop(0, 2, lambda i, c: c + x, np.zeros((5, 1))),
    lambda x: ag.fori_loop(0, 2, lambda i, c: c @ np.full((1, 1), 0.5), x), lambda x: ag.cond(x.sum() > 0, lambda y: y, lambda y: np.ones((5, 1)), x),
    lambda x: ag.cond(x.sum() > 0, lambda y: y[:, 0], lambda y: np.ones(5), x),
])
def test_an_open_size_of_1_meets_a_1(f: Any) -> None:
    """One feature: the size 1 of an argument and a 1 in the program are the same size where sizes must be equal."""
    compiled, x = ag.compile(f), np.linspace(0.5, 2, 5).reshape(5, 1)
    _same(compiled(x), f(x))
    _same(compiled(2 * x), f(2 * x))
    assert compiled.cache_info().traces == 1


def test_sizes_that_must_be_equal_are_checked_at_later_calls() -> None:
    product = ag.compile(lambda x: x @ W12)
    assert product(np.ones((5, 1))).shape == (5, 2)
    with pytest.raises(ag.AotgradValueError, match="inner sizes: sizes 3 and 1 differ"):
        product(np.ones((5, 3)))
    carried = ag.compile(lambda c, y, xs: ag.scan(lambda c, t: (y * t, c), c, xs)[0])
    assert [carried(np.ones(n), np.ones(n), np.ones(2)).shape for n in (3, 1)] == [(3,), (1,)] and carried.cache_info().traces == 1
    for n, m in ((1, 3), (3, 1)):
        with pytest.raises(ag.AotgradTypeError, match="must be equal"):
            carried(np.ones(n), np.ones(m), np.ones(2))


PADDED = {
    "after": lambda x: np.pad(x, (0, x.shape[0])),
    "both": lambda x: np.pad(x, x.shape[0]),
    "sums": lambda x: np.pad(x, (x.shape[0] // 2, 2 * x.shape[0] - 1), constant_values=2.0),
    "pairs": lambda x: np.pad(np.stack([x, x]), ((1, x.shape[0]), (x.shape[0], 0))),
    "one pair": lambda x: np.pad(np.stack([x, x]), ((x.shape[0] + 1, 0),)),
    "numbers": lambda x: np.pad(x, [[1, 2]]),
}


@pytest.mark.parametrize("name", PADDED)
def test_pad_takes_sizes(name: str) -> None:
    """One trace for all sizes, where no width could become negative; values and gradients as NumPy's."""
    f = PADDED[name]
    compiled, gradient = ag.compile(f), ag.compile(ag.grad(lambda x: (f(x) ** 2).sum()))
    for n in (3, 5, 1):
        x = np.arange(1.0, n + 1.0)
        got = compiled(x)
        np.testing.assert_array_equal(got, f(x))
        np.testing.assert_allclose(gradient(x), ag.grad(lambda x: (f(x) ** 2).sum())(x))
    assert compiled.cache_info().traces == 1


def test_pad_with_a_width_that_becomes_negative() -> None:
    f = ag.compile(lambda x: np.pad(x, (0, x.shape[0] - 3)))
    assert f(np.ones(5)).shape == (7,) and f(np.ones(3)).shape == (3,)
    with pytest.raises(ag.AotgradValueError, match=r"test_sizes.py:\d+[\s\S]*pad_width=\(0, .*negative"):
        f(np.ones(2))
    with pytest.raises(ag.AotgradTypeError, match=r"pad_width=\(0, 1.5\) must be whole numbers"):
        ag.compile(lambda x: np.pad(x, (0, 1.5)))(np.ones(2))


@pytest.mark.parametrize("f", [lambda x, w, c: (F.avg_pool2d(x * c, 2).flatten(1) @ w).sum(),
                               lambda x, w, c: (F.conv2d(x, c * ag.ones(3, 3, 3, 3), padding=1)[:, :, ::2, ::2].flatten(1) @ w).sum()], ids=["pool", "conv"])
def test_backward_through_sizes_that_met_a_number(f: Any) -> None:
    """The features of an image meet the rows of a weight: backward() stands in the same program, whose earlier operations have the sizes as they were."""
    w, c = ag.linspace(-1.0, 1.0, 60).reshape(12, 5).detach().requires_grad_(), ag.tensor(0.5, requires_grad=True)

    def step(x: Any) -> Any:
        loss = f(x, w, c)
        loss.backward()
        return loss

    compiled, images = ag.compile(step), [ag.linspace(0.0, 1.0, n * 48).reshape(n, 3, 4, 4) for n in (2, 5, 7)]
    for x in images:
        got: list[Any] = []
        for run in (step, compiled):
            w.grad = c.grad = None
            got.append([run(x).detach().numpy(), w.grad.numpy(), c.grad.numpy()])
        for a, b in zip(*got):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
    assert compiled.cache_info().traces <= 3 and "only for x_0" not in compiled.explain(images[0])  # the number of images stays open


EMPTY = {"twice one and the other": lambda a, b: np.concatenate([a, a, b]) * a,
         "the sum": lambda a, b: (np.concatenate([a, a, b]) * a).sum(),
         "the gradient": ag.grad(lambda a, b: (np.concatenate([a, a, b]) * a).sum()),
         "other way round": lambda a, b: b * np.concatenate([b, a, a, b]) + a.sum(),
         "a product": lambda a, b: np.concatenate([np.outer(a, b).ravel(), a]) * a}


@pytest.mark.parametrize("name", EMPTY)
def test_sizes_that_are_equal_only_where_there_is_nothing(name: str) -> None:
    """All sizes of the first call are 0, and no others but 1 fit: later calls get what fits, and an error for what does not."""
    f = ag.compile(EMPTY[name])
    for n, m in ((0, 0), (1, 0), (0, 1), (1, 1), (2, 1), (0, 0), (1, 2), (2, 0)):
        a, b = np.arange(1.0, n + 1), np.arange(2.0, m + 2)
        try:
            want = EMPTY[name](a, b)
        except ValueError:
            with pytest.raises(ag.AotgradValueError, match=r"test_sizes.py:\d+"):
                f(a, b)
            continue
        got = f(a, b)
        assert np.shape(got) == np.shape(want)
        np.testing.assert_allclose(got, want, rtol=1e-15)


MADE: dict[str, Any] = {
    "zeros_like": np.zeros_like, "ones_like": np.ones_like, "empty_like": np.empty_like, "full_like": lambda x: np.full_like(x, 2.0),
    "of a value": lambda x: np.full_like(x, x[0]),
    "of a shape": lambda x: np.zeros_like(x, shape=(x.shape[0], 2)), "of a size": lambda x: np.zeros_like(x, shape=x.shape[0] + 1),
    "zeros": lambda x: ag.zeros(x.shape),
    "zeros n": lambda x: ag.zeros(x.shape[0], 2), "full": lambda x: ag.full((x.shape[0],), 1.0), "arange": lambda x: ag.arange(x.shape[0]),
    "eye": lambda x: ag.eye(x.shape[0]),
    "linspace": lambda x: ag.linspace(0, 1, x.shape[0]), "rand": lambda x: ag.rand(x.shape[0]), "new": lambda x: ag.zeros_like(x),
    "np.full": lambda x: np.full(x.shape, x[0]),
    "broadcast": lambda x: np.copy(np.broadcast_to(x[0], (x.shape[0],))), "tile": lambda x: np.tile(x, (x.shape[0], 1)),
}


def test_writing_an_element_leaves_the_sizes_of_what_was_made_open() -> None:
    def written(x: Any) -> Any:
        out = {name: make(x) for name, make in MADE.items()}
        for y in out.values():
            y[0] = 7
            y[-1] = x[1]
        return out

    f = ag.compile(written)
    for n in (3, 8, 5):
        out = f(np.linspace(2.0, 4.0, n))
        assert all(np.all(np.asarray(y)[0] == 7) and np.all(np.abs(np.asarray(y)[-1] - np.linspace(2.0, 4.0, n)[1]) < 1) for y in out.values())
    assert f.cache_info().traces == 1
