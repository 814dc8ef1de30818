"""``vmap`` as users call it: dims, structures, nesting with every transform, control flow, host code, errors, and random programs against loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad_runtime.errors import AotgradError, AotgradNotImplementedError, AotgradTypeError, AotgradValueError

F = Callable[..., Any]
X = np.random.default_rng(0).normal(size=(4, 3))
W = np.random.default_rng(1).normal(size=(3, 2))
V = np.random.default_rng(2).normal(size=3)


def loop(f: F, xs: Any) -> Any:
    return np.array([np.asarray(f(x)) for x in xs])


def both(f: F, *args: Any, want: Any, rtol: float = 1e-12) -> None:
    """Eager, and compiled (which compares itself with the interpreter)."""
    for run in (f, ag.compile(f, verify=1)):
        np.testing.assert_allclose(run(*args), want, rtol=rtol, atol=1e-13)


# ---- dims and structures --------------------------------------------------------------------------------------------------------------

def test_dims_of_arguments_and_results() -> None:
    f = lambda x, w: ag.tanh(x @ w)
    want = np.tanh(X @ W)
    both(ag.vmap(f, in_dims=(0, None)), X, W, want=want)
    both(ag.vmap(f, in_dims=(1, None)), X.T, W, want=want)
    both(ag.vmap(f, in_dims=(-2, None), out_dims=-1), X, W, want=want.T)
    both(ag.vmap(f, (None, 1), 1), X, W, want=want)
    both(ag.vmap(f, in_axes=(0, None), out_axes=1), X, W, want=want.T)


def test_structures() -> None:
    def f(p: Any, x: Any, *, scale: Any) -> Any:
        return {"y": (x @ p["w"] + p["b"]) * scale, "n": (x.sum(), ag.ones(2) * 3.0)}

    p = {"w": W, "b": np.stack([np.ones(2)] * 4) * np.arange(4.0)[:, None]}
    mapped = ag.vmap(f, in_dims=({"w": None, "b": 0}, 0), out_dims={"y": 1, "n": (0, None)})
    for run in (mapped, ag.compile(mapped, verify=1)):
        out = run(p, X, scale=2.0)
        np.testing.assert_allclose(out["y"], ((X @ W + p["b"]) * 2.0).T)
        np.testing.assert_allclose(out["n"][0], X.sum(1))
        np.testing.assert_allclose(out["n"][1], [3.0, 3.0])


def test_results_that_are_equal_for_all_are_repeated_and_numbers_stay_numbers() -> None:
    out = ag.vmap(lambda x, n: (ag.arange(n), x[n - 1]), in_dims=(0, None))(X, 2)
    assert out[0].tolist() == [[0, 1]] * 4 and out[1].tolist() == X[:, 1].tolist()


def test_numpy_and_tensors_keep_their_kinds() -> None:
    assert type(ag.vmap(ag.sin)(X)) is np.ndarray
    t = ag.tensor(X.tolist(), dtype=ag.float64)
    out = ag.vmap(lambda x: x.exp().sum())(t)
    assert type(out) is ag.Tensor and not out.requires_grad
    assert ag.vmap(lambda x: x * 2)(X.astype(np.float32)).dtype == np.float32


def test_size_zero_and_one() -> None:
    f = lambda x: (x * V).sum() + ag.softmax(x)[0]
    for n in (0, 1):
        x = X[:n]
        both(ag.vmap(f), x, want=loop(f, x) if n else np.zeros(0))
        both(ag.vmap(f, chunk_size=2), x, want=loop(f, x) if n else np.zeros(0))


def test_chunks_give_the_same() -> None:
    f = lambda x, w: ag.sin(x @ w)
    x = np.random.default_rng(3).normal(size=(7, 3))
    for chunk in (1, 2, 3, 7, 10):
        both(ag.vmap(f, (0, None), 1, chunk_size=chunk), x, W, want=np.sin(x @ W).T)
    want = ag.grad(lambda w: ag.vmap(f, (0, None))(x, w).sum())(W)
    both(ag.grad(lambda w: ag.vmap(f, (0, None), chunk_size=3)(x, w).sum()), W, want=want)


def test_compiled_once_for_all_sizes() -> None:
    f = ag.compile(ag.vmap(lambda x: (x * x).sum()))
    for n in (1, 4, 9):
        x = np.random.default_rng(n).normal(size=(n, n + 1))
        np.testing.assert_allclose(f(x), (x * x).sum(1))
    assert f.cache_info().traces == 1


# ---- nesting ----------------------------------------------------------------------------------------------------------------------------

def energy(x: Any) -> Any:
    return (ag.tanh(x @ W) ** 2).sum() + ag.logsumexp(x) + x[0] * x[1] * x[2]


@pytest.mark.parametrize("transform", [ag.grad, ag.hessian, ag.jacfwd, ag.jacrev, lambda f: ag.grad(lambda x: ag.grad(f)(x).sum())],
                         ids=["grad", "hessian", "fwd", "rev", "grad2"])
def test_vmap_of_transforms(transform: Any) -> None:
    both(ag.vmap(transform(energy)), X, want=loop(transform(energy), X), rtol=1e-11)


@pytest.mark.parametrize("transform", [ag.grad, ag.hessian, ag.jacfwd, ag.jacrev], ids=["grad", "hessian", "fwd", "rev"])
def test_transforms_of_vmap(transform: Any) -> None:
    total = lambda g: lambda w: g(w)
    by_vmap = transform(total(lambda w: ag.vmap(lambda x: ag.sin(x * w).sum())(X).sum()))
    by_hand = transform(total(lambda w: ag.sin(X * w).sum()))
    both(by_vmap, V, want=by_hand(V), rtol=1e-11)


def test_jvp_vjp_and_hvp_through_vmap() -> None:
    f, g = ag.vmap(energy), lambda x: sum(energy(r) for r in x)
    t = np.ones_like(X) * 0.5
    both(lambda x, t: ag.jvp(f, (x,), (t,))[1], X, t, want=np.array([ag.jvp(energy, (r,), (s,))[1] for r, s in zip(X, t)]))
    both(lambda x: ag.vjp(f, x)[1](np.ones(4))[0], X, want=loop(ag.grad(energy), X))
    both(lambda x, t: ag.hvp(lambda y: f(y).sum(), x, t), X, t, want=ag.hvp(g, X, t), rtol=1e-11)


def test_vmap_of_vmap() -> None:
    outer = ag.vmap(lambda x: ag.vmap(lambda v: (x * v).sum())(W.T))
    both(outer, X, want=X @ W)
    both(ag.vmap(ag.vmap(lambda a, b: a * b, (0, None)), (None, 0), 1), V, X[:, 0], want=np.outer(V, X[:, 0]))
    pairs = ag.vmap(ag.vmap(lambda a, b: ag.exp(-((a - b) ** 2).sum()), (None, 0)), (0, None))
    both(pairs, X, X, want=np.exp(-((X[:, None] - X[None]) ** 2).sum(-1)))


def test_closures_are_shared_and_differentiated() -> None:
    w = ag.tensor(V.tolist(), dtype=ag.float64, requires_grad=True)
    x = ag.tensor(X.tolist(), dtype=ag.float64)
    ag.vmap(lambda r: ag.tanh((r * w).sum()))(x).sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), ((1 - np.tanh(X @ V) ** 2)[:, None] * X).sum(0))
    both(ag.grad(lambda v: ag.vmap(lambda r: ag.sin((r * v).sum()))(X).sum()), V, want=(np.cos(X @ V)[:, None] * X).sum(0))


def test_per_example_gradients_of_a_network() -> None:
    def loss(p: Any, x: Any, y: Any) -> Any:
        h = ag.tanh(p["a"] @ x + p["b"])
        return ((p["c"] @ h - y) ** 2).sum()

    rng = np.random.default_rng(5)
    p = {"a": rng.normal(size=(5, 3)), "b": rng.normal(size=5), "c": rng.normal(size=(2, 5))}
    y = rng.normal(size=(4, 2))
    per = ag.vmap(ag.grad(loss), in_dims=(None, 0, 0))
    for run in (per, ag.compile(per, verify=1)):
        found = run(p, X, y)
        for k in p:
            np.testing.assert_allclose(found[k], loop(lambda i, k=k: ag.grad(loss)(p, X[i], y[i])[k], range(4)), rtol=1e-12)


# ---- control flow and host code ------------------------------------------------------------------------------------------------------------

def test_scan_over_examples() -> None:
    f = lambda x: ag.scan(lambda c, r: (ag.sin(c) + r * V[0], c * r), 0.5, x)
    want = [f(x) for x in X]
    for run in (ag.vmap(f), ag.compile(ag.vmap(f), verify=1)):
        last, ys = run(X)
        np.testing.assert_allclose(last, [w[0] for w in want])
        np.testing.assert_allclose(ys, [w[1] for w in want])
    g = lambda x: f(x)[0]
    both(ag.vmap(ag.grad(g)), X, want=loop(ag.grad(g), X))
    both(ag.grad(lambda x: ag.vmap(g)(x).sum()), X, want=loop(ag.grad(g), X))


def test_a_carry_that_becomes_batched_in_the_second_step() -> None:
    f = lambda x: ag.scan(lambda c, _: ((c[1] * 2.0, c[1] + x), c[0]), (0.0, 1.0), None, length=3)[1]
    both(ag.vmap(f), V, want=loop(f, V))


def test_cond_with_a_predicate_for_each_example() -> None:
    f = lambda x: ag.cond(x[0] > 0, lambda x: ag.log(x[0]) + x[1], lambda x: x[2] * 1.0, x)
    both(ag.vmap(f), X, want=loop(f, X))
    both(ag.vmap(ag.grad(f)), X, want=loop(ag.grad(f), X))
    both(ag.grad(lambda x: ag.vmap(f)(x).sum()), X, want=loop(ag.grad(f), X))
    shared = lambda x, p: ag.cond(p > 0, lambda x: x * 2, lambda x: -x, x)
    both(ag.vmap(shared, (0, None)), X, 1.0, want=2 * X)
    both(ag.vmap(shared, (0, None)), X, -1.0, want=-X)


def test_a_branch_that_is_not_chosen_does_not_run() -> None:
    """Its index is out of range, or it calls Python."""
    f = lambda i, v: ag.cond(i < 3, lambda i, v: v[i], lambda i, v: v[0] * 0.0, i, v)
    both(ag.vmap(f, (0, None)), np.array([0, 5, 2]), V, want=[V[0], 0.0, V[2]])
    seen: list[float] = []

    def note(x: Any) -> Any:
        seen.append(float(x))
        return np.asarray(x) * 10.0

    tell = ag.host_call(note, lambda x: x, vjp=lambda xs, cts: [10.0 * cts[0]])
    g = ag.vmap(lambda x: ag.cond(x > 0, lambda x: tell(x), lambda x: x, x))
    assert g(np.array([1.0, -2.0, 3.0])).tolist() == [10.0, -2.0, 30.0] and seen == [1.0, 3.0]


def test_host_calls_see_one_example() -> None:
    shapes: list[Any] = []

    def host(x: Any, w: Any) -> Any:
        shapes.append((x.shape, w.shape))
        return np.sin(x) * w

    f = ag.host_call(host, lambda x, w: x, jvp=lambda xs, ts: [np.cos(xs[0]) * xs[1] * ts[0] + np.sin(xs[0]) * ts[1]],
                     vjp=lambda xs, cts: [np.cos(xs[0]) * xs[1] * cts[0], np.sin(xs[0]) * cts[0]])
    plain = lambda x, w: ag.sin(x) * w
    np.testing.assert_allclose(ag.vmap(f, (0, None))(X, V), np.sin(X) * V)
    assert shapes == [((3,), (3,))] * 4
    np.testing.assert_allclose(ag.compile(ag.vmap(f, (0, None)))(X, V), np.sin(X) * V)
    for argnum in (0, 1):
        for wrap in (lambda g: g, ag.compile):
            total = lambda h: lambda x, w: (ag.vmap(h, (0, None))(x, w) ** 2).sum()
            np.testing.assert_allclose(wrap(ag.grad(total(f), argnum))(X, V), ag.grad(total(plain), argnum)(X, V), rtol=1e-12)
            each = lambda h, k=argnum: ag.vmap(ag.grad(lambda x, w: (h(x, w) ** 2).sum(), k), (0, None))
            np.testing.assert_allclose(wrap(each(f))(X, V), each(plain)(X, V), rtol=1e-12)
    np.testing.assert_allclose(ag.jvp(lambda x: ag.vmap(f, (0, None))(x, V), (X,), (X,))[1], np.cos(X) * V * X)
    assert ag.vmap(f, (0, None))(X[:0], V).shape == (0, 3)


def test_user_rules_stay_rules() -> None:
    @ag.custom_vjp
    def clipped(x: Any, w: Any) -> Any:
        return (x * w).sum()

    clipped.defvjp(lambda x, w: ((x * w).sum(), (x, w)), lambda r, g: (ag.clip(g * r[1], -0.1, 0.1), g * r[0] * 100.0))
    f = lambda x, w: clipped(x, w) ** 2
    for argnum in (0, 1):
        both(ag.vmap(ag.grad(f, argnum), (0, None)), X, V, want=loop(lambda x, k=argnum: ag.grad(f, k)(x, V), X))
        want = loop(lambda x, k=argnum: ag.grad(f, k)(x, V), X)
        both(ag.grad(lambda x, w: ag.vmap(f, (0, None))(x, w).sum(), argnum), X, V, want=want if argnum == 0 else want.sum(0))


# ---- errors -------------------------------------------------------------------------------------------------------------------------------

def case(f: F, error: type[Exception], *words: str) -> None:
    with pytest.raises(error) as found:
        f()
    assert isinstance(found.value, AotgradError)
    for w in words:
        assert w in str(found.value), (w, str(found.value))


def test_errors_name_the_argument_and_what_to_do() -> None:
    def f(first: Any, second: Any = None) -> Any:
        return first

    case(lambda: ag.vmap(f)(X, X[:2]), ValueError, "test_vmap.py", "argument first has 4 examples along dim 0", "argument second has 2")
    case(lambda: ag.compile(ag.vmap(f))(X, X[:2]), ValueError, "argument first", "4", "2")
    case(lambda: ag.vmap(f)(3.0), TypeError, "argument first is a float", "None")
    case(lambda: ag.vmap(f, in_dims=None)(X), ValueError, "no argument is mapped")
    case(lambda: ag.vmap(f, in_dims=2)(X), ValueError, "argument first", "dim 2 is out of range", "2 dimension")
    case(lambda: ag.vmap(f, in_dims=(0, 0, 0))(X, X), ValueError, "in_dims", "structure")
    case(lambda: ag.vmap(f, in_dims=0.5)(X), ValueError, "in_dims")
    case(lambda: ag.vmap(f, out_dims=2)(X), ValueError, "out_dims", "out of range")
    case(lambda: ag.vmap(f, out_dims=None)(X), ValueError, "out_dims", "differs between examples")
    case(lambda: ag.vmap(f, out_dims=(0, 0))(X), ValueError, "out_dims")
    case(lambda: ag.vmap(lambda x: "text")(X), TypeError, "str")
    case(lambda: ag.vmap(3), TypeError, "not callable")  # type: ignore[arg-type]
    case(lambda: ag.vmap(f, randomness="often"), ValueError, "randomness")
    case(lambda: ag.vmap(f, chunk_size=0), ValueError, "chunk_size")
    case(lambda: ag.vmap(f, 1, in_axes=0), TypeError, "in_dims and in_axes")
    case(lambda: ag.vmap(lambda x: x if x.sum() > 0 else -x)(X), TypeError, "test_vmap.py", "ag.where")


def test_writes_into_a_tensor_argument_are_refused_and_into_copies_are_fine() -> None:
    def f(x: Any) -> Any:
        x[0] = 1.0
        return x

    t = ag.tensor(X.tolist())
    case(lambda: ag.vmap(f)(t), AotgradNotImplementedError, "in place", "clone")
    assert ag.vmap(lambda x: f(x.clone()))(t)[:, 0].tolist() == [1.0] * 4
    before = X.copy()
    assert ag.vmap(f)(X)[:, 0].tolist() == [1.0] * 4 and np.array_equal(X, before)


def test_error_kinds() -> None:
    assert issubclass(AotgradValueError, ValueError) and issubclass(AotgradTypeError, TypeError)


# ---- random programs ------------------------------------------------------------------------------------------------------------------------

def program(seed: int) -> F:
    """A function of (vector of 3, matrix of 3 x 2) made of ops of all families."""
    rng = np.random.default_rng(seed)
    unary = [ag.sin, ag.tanh, ag.exp, lambda v: v * v, lambda v: ag.cumsum(v, 0), lambda v: ag.flip(v, (0,)), lambda v: ag.softmax(v, 0), lambda v: ag.roll(v, 1, 0),
             lambda v: v - v.mean(), lambda v: ag.where(v > 0, v, 0.1 * v), lambda v: ag.cat([v[1:], v[:1]])]
    binary = [lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a - 0.5 * b, lambda a, b: ag.maximum(a, b), lambda a, b: ag.outer(a, b).sum(0),
              lambda a, b: a / (1 + b * b)]
    plan = [(int(rng.integers(len(unary))), int(rng.integers(len(binary))), int(rng.integers(4)), int(rng.integers(4))) for _ in range(5)]
    last = int(rng.integers(4))

    def f(x: Any, m: Any) -> Any:
        pool = [x, m @ ag.tanh(m.T @ x), m[:, 0] * 0.5, ag.stack([m.sum(), x.sum(), x[0]])]
        for u, b, i, j in plan:
            v = unary[u](ag.tanh(pool[i]))
            pool.append(binary[b](v, pool[j]) if pool[j].shape == v.shape else v)
            pool[i] = pool[-1]
        out = pool[-1] + pool[last]
        return (ag.tanh(out) * ag.tanh(x)).sum()

    return f


@pytest.mark.parametrize("seed", range(4))
def test_random_programs(seed: int) -> None:
    f = program(seed)
    rng = np.random.default_rng(100 + seed)
    x, m = rng.normal(size=(3, 3)), rng.normal(size=(3, 3, 2))
    for dims in ((0, 0), (0, None), (None, 0)):
        args = [a if d == 0 else a[0] for a, d in zip((x, m), dims)]
        rows = [[a[i] if d == 0 else a for a, d in zip(args, dims)] for i in range(3)]
        both(ag.vmap(f, dims), *args, want=np.array([f(*r) for r in rows]), rtol=1e-10)
        grads = np.array([ag.grad(f)(*r) for r in rows])
        both(ag.vmap(ag.grad(f), dims), *args, want=grads, rtol=1e-9)
        whole = ag.grad(lambda *a, dims=dims: ag.vmap(f, dims)(*a).sum())
        both(whole, *args, want=grads if dims[0] == 0 else grads.sum(0), rtol=1e-9)
    t = rng.normal(size=3)
    second = np.array([ag.hvp(lambda y, k=k: f(y, m[k]), x[k], t) for k in range(3)])
    both(ag.vmap(lambda y, n: ag.hvp(lambda z: f(z, n), y, t)), x, m, want=second, rtol=1e-8)
