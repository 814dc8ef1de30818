"""``vmap`` as users call it: dims, structures, nesting with every transform, control flow, host code, errors, and random programs against loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

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


@pytest.mark.parametrize("seed", [0, *(pytest.param(i, marks=pytest.mark.thorough) for i in range(1, 6))])
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


# ---- matrices of derivatives: the linear part over the basis, a chunk at a time ---------------------------------------------------------------

@pytest.mark.parametrize("first", [0, 3, 40])
def test_matrices_of_derivatives_for_all_sizes_with_one_trace(first: int) -> None:
    """The size of the first call decides how many basis vectors go at a time, not what comes out."""
    def g(x: Any, a: Any) -> Any:
        return ag.tanh(a @ x) + ag.sin(x) * x

    def f(x: Any, a: Any) -> Any:
        return (g(x, a) ** 2).sum()

    compiled = [ag.compile(t) for t in (ag.hessian(f), ag.jacfwd(g), ag.jacrev(g))]
    plain = [ag.hessian(f), ag.jacfwd(g), ag.jacrev(g)]
    for n in (first, 0, 1, 2, 31, 32, 33, 70):
        rng = np.random.default_rng(n)
        x, a = rng.normal(size=n), rng.normal(size=(n, n)) / (n + 1)
        for c, p in zip(compiled, plain):
            np.testing.assert_allclose(c(x, a), p(x, a), rtol=1e-11, atol=1e-12)
    assert all(c.cache_info().traces == 1 for c in compiled)


def test_leaves_that_do_not_meet_give_zeros() -> None:
    def f(p: Any) -> Any:
        return (p["a"] ** 3).sum() + (p["b"] * p["c"]).sum() + (ag.sin(p["a"])[:2] * p["c"]).sum()

    p = {"a": V, "b": W[:, 0][:2], "c": W[:, 1][:2]}
    got, want = ag.compile(ag.hessian(f), verify=1)(p), ag.hessian(f)(p)
    for k in p:
        for m in p:
            np.testing.assert_allclose(got[k][m], want[k][m], rtol=1e-12, atol=1e-14)


def test_derivative_matrices_of_loops_and_branches() -> None:
    def f(x: Any) -> Any:
        c, ys = ag.scan(lambda c, r: (ag.tanh(c * r + x[0]), c * c), x[1], x)
        return ag.cond(c > 0, lambda: (ys * x).sum() + c, lambda: (ys * x * x).sum())

    for s in (1.0, -1.0):
        for t in (ag.hessian, ag.jacrev):
            np.testing.assert_allclose(ag.compile(t(f))(V * s), t(f)(V * s), rtol=1e-11)


# ---- autograd.Function ------------------------------------------------------------------------------------------------------------------------

class Scaled(ag.autograd.Function):
    """x * w, with a rule that says so in another way, and counts its calls."""

    calls: ClassVar[list[Any]] = []

    @staticmethod
    def forward(x: Any, w: Any) -> Any:
        return x * w

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, w = ctx.saved_tensors
        return g * w, g * x

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Any, w: Any) -> Any:
        Scaled.calls.append((info.batch_size, in_dims))
        x = x if in_dims[0] is None else x.transpose(0, 1)
        w = w if in_dims[1] is None else w.transpose(0, 1)
        x, w = (v[:, None] if d is None else v for v, d in zip((x, w), in_dims))
        return Scaled.apply(x, w), 1


class Derived(ag.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return (x ** 2).sum()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return ctx.saved_tensors[0] * g * 20.0


def test_functions_with_a_batch_rule() -> None:
    x, w = (ag.tensor(v.tolist(), dtype=ag.float64) for v in (X, V))
    out = ag.vmap(Scaled.apply, (0, None))(x, w)
    np.testing.assert_allclose(out.numpy(), X * V)
    assert Scaled.calls == [(4, (0, None))]
    np.testing.assert_allclose(ag.compile(ag.vmap(Scaled.apply, (0, None)))(x, w).numpy(), X * V)
    f = lambda a, b: (Scaled.apply(a, b) ** 2).sum()
    for k, want in enumerate((2 * X * V * V, 2 * X * X * V)):
        np.testing.assert_allclose(ag.vmap(ag.grad(f, k), (0, None))(x, w).numpy(), want)
        got = ag.grad(lambda a, b: ag.vmap(f, (0, None))(a, b).sum(), k)(x, w).numpy()
        np.testing.assert_allclose(got, want if k == 0 else want.sum(0))


def test_functions_whose_batch_rule_follows() -> None:
    x = ag.tensor(X.tolist(), dtype=ag.float64)
    for wrap in (lambda g: g, ag.compile):
        np.testing.assert_allclose(wrap(ag.vmap(Derived.apply))(x).numpy(), (X * X).sum(1))
        np.testing.assert_allclose(wrap(ag.vmap(ag.grad(Derived.apply)))(x).numpy(), 20 * X)
        np.testing.assert_allclose(wrap(ag.grad(lambda v: ag.vmap(Derived.apply)(v).sum()))(x).numpy(), 20 * X)


def test_a_batch_rule_that_returns_something_else_is_an_error() -> None:
    class Bad(Scaled):
        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Any, w: Any) -> Any:
            return x * w

    x = ag.tensor(X.tolist())
    case(lambda: ag.vmap(Bad.apply)(x, x), TypeError, "Bad.vmap must return (output, out_dims)")

    class Both(Scaled):
        generate_vmap_rule = True

    case(lambda: ag.vmap(Both.apply)(x, x), RuntimeError, "both generate_vmap_rule=True")


# ---- many cotangents at once --------------------------------------------------------------------------------------------------------------------

def test_a_backward_pass_for_many_cotangents_is_one_pass() -> None:
    seen: list[Any] = []

    class Watched(ag.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            seen.append(g.shape)
            return g * ctx.saved_tensors[0].cos()

    x = ag.tensor(V.tolist(), dtype=ag.float64, requires_grad=True)
    w = ag.tensor(W.tolist(), dtype=ag.float64, requires_grad=True)
    inner = ag.compile(lambda a: ag.tanh(a) * a)
    y = inner(Watched.apply(x) @ w) + x[:2] * x[1:]
    rows = ag.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, -2.0]], dtype=ag.float64)
    want = [ag.autograd.grad(y, (x, w), r, retain_graph=True) for r in rows]
    seen.clear()
    got = ag.autograd.grad(y, (x, w), rows, is_grads_batched=True, create_graph=True)
    assert seen == [(3,)]  # once, on one example
    for k in range(2):
        np.testing.assert_allclose(got[k].detach().numpy(), np.array([r[k].numpy() for r in want]), rtol=1e-12)
    again = ag.autograd.grad((got[0] ** 2).sum(), x, retain_graph=True)[0]
    one = [ag.autograd.grad(y, x, r, create_graph=True)[0] for r in rows]
    np.testing.assert_allclose(again.numpy(), ag.autograd.grad(sum((g ** 2).sum() for g in one), x)[0].numpy(), rtol=1e-11)


def test_a_hook_that_needs_numbers_gets_them_one_by_one() -> None:
    seen: list[float] = []
    x = ag.tensor(V.tolist(), dtype=ag.float64, requires_grad=True)
    y = x * 2.0
    y.register_hook(lambda g: seen.append(float(g.sum())))
    rows = ag.tensor(np.eye(3).tolist(), dtype=ag.float64)
    np.testing.assert_allclose(ag.autograd.grad(y * y, x, rows, is_grads_batched=True)[0].numpy(), np.diag(8 * V))
    assert len(seen) == 3


def test_vectorized_matrices() -> None:
    x = ag.tensor(V.tolist(), dtype=ag.float64)
    f = lambda v: (ag.tanh(v @ ag.tensor(W.tolist(), dtype=ag.float64)), v[:1] * v)
    functional = ag.autograd.functional
    for a, b in zip(functional.jacobian(f, x, vectorize=True), functional.jacobian(f, x)):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12)
    g = lambda v: (ag.tanh(v) ** 2).sum() * v[0]
    np.testing.assert_allclose(functional.hessian(g, x, vectorize=True).numpy(), functional.hessian(g, x).numpy(), rtol=1e-12)
