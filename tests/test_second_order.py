"""Second derivatives of whole functions: the eager tape, dual values, compiled code and the interpreter give the same numbers, and differences agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import sweep

import aotgrad as ag
from aotgrad.ir import interp
from aotgrad.ir.transforms.differentiate import jvp_func, vjp_func

_rng = np.random.default_rng(71)


def _normal(*shape: int) -> Any:
    return _rng.normal(size=shape)


LABELS = np.array([2, 0, 1, 1])
ROWS = np.array([3, 0, 3, 1, 2])


def cross_entropy(w: Any, x: Any) -> Any:
    z = ag.log_softmax(x @ w, 1)
    return -ag.mean(ag.gather(z, 1, LABELS[:, None]))


def rnn(w: Any, u: Any, xs: Any) -> Any:
    h, ys = ag.scan(lambda h, x: ((ag.tanh(w @ h + u * x), ag.sum(h * h))), ag.tanh(u), xs)
    return ag.sum(h ** 2.0) + ag.sum(ys * ag.sin(ys))


def branches(x: Any, y: Any) -> Any:
    return ag.cond(ag.sum(x) > 0, lambda: ag.sum(ag.exp(x) * y), lambda: ag.sum(ag.sin(x * y))) + ag.cond(ag.sum(y) > 100, lambda: ag.sum(x), lambda: ag.sum(x * x * y))


def gather_scatter(x: Any, v: Any) -> Any:
    y = ag.clone(x)
    y[ROWS] = v
    picked = ag.index_select(y * y, 0, ROWS)
    return ag.sum(ag.index_add(ag.sin(x), 0, ROWS, picked) ** 3.0)


def written(x: Any, y: Any) -> Any:
    z = ag.clone(x)
    z[1:, ::2] = ag.exp(y)
    z[0] += z[2] * z[3]
    return ag.sum(z * z * ag.flip(z, (1,)))


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "cross_entropy": (cross_entropy, (_normal(3, 3), _normal(4, 3))),
    "logsumexp": (lambda x: ag.sum(ag.logsumexp(x * x, 1) ** 2.0), (_normal(3, 4),)),
    "norm": (lambda x, y: ag.norm(x * y) + ag.sum(ag.norm(x - y, 3, 1)), (_normal(3, 4), _normal(3, 4))),
    "var_std": (lambda x: ag.sum(ag.var(x, 0) * ag.std(x, 0)) + ag.std(x * x), (_normal(4, 3),)),
    "matmul_chain": (lambda a, b, c: ag.sum(ag.tanh(a @ b) @ c @ ag.transpose(a, 0, 1)), (_normal(2, 3), _normal(3, 4), _normal(4, 3))),
    "rnn": (rnn, (0.5 * _normal(3, 3), _normal(3), _normal(5, 3))),
    "branches": (branches, (np.abs(_normal(4)), _normal(4))),
    "other_branches": (branches, (-np.abs(_normal(4)), _normal(4))),
    "gather_scatter": (gather_scatter, (_normal(4, 2), _normal(5, 2))),
    "cumprod": (lambda x: ag.sum(ag.cumprod(x, 0) * ag.cumsum(x * x, 1)), (_normal(4, 3),)),
    "zero_in_a_product": (lambda x: ag.sum(ag.prod(x, 1) ** 2.0) + ag.sum(ag.cumprod(x, 1)), (np.array([[1.5, 0.0, -2.0], [0.0, 3.0, 0.0]]),)),
    "einsum": (lambda a, b: ag.sum(ag.einsum("ij,jk,kj->i", a, b, a) ** 2.0), (_normal(3, 4), _normal(4, 3))),
    "written": (written, (_normal(4, 4), _normal(3, 2))),
    "kinks": (lambda x, y: ag.sum(ag.maximum(x, y) * ag.abs(x) + ag.relu(x * y) * ag.clamp(y, -1.0, 1.0)),
    (np.array([1.0, 0.0, -2.0, 0.5]), np.array([1.0, 0.0, 1.0, -1.5]))),
}


def agree(got: Sequence[Any], want: Sequence[Any], what: str, rtol: float = 1e-12) -> None:
    for g, w in zip(got, want, strict=True):
        scale = max(1.0, float(np.max(np.abs(w), initial=0.0)))
        np.testing.assert_allclose(np.asarray(g), w, rtol=rtol, atol=rtol * scale, err_msg=what)


def by_tape(f: Any, xs: Sequence[Any], vs: Sequence[Any]) -> list[Any]:
    """``backward`` through a recorded ``autograd.grad``."""
    tensors = [ag.tensor(x, dtype=ag.float64, requires_grad=True) for x in xs]
    grads = ag.autograd.grad(f(*tensors), tensors, create_graph=True)
    total: Any = 0.0
    for g, v in zip(grads, vs):
        total = total + ag.sum(g * ag.tensor(v, dtype=ag.float64))
    total.backward()
    return [np.zeros(x.shape) if t.grad is None else t.grad.numpy() for t, x in zip(tensors, xs)]


def by_interpreter(f: Any, xs: Sequence[Any], vs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Reverse over reverse and forward over reverse of the traced program."""
    func = ag.compile(f).trace(*xs)
    hidden = func.arg_types[len(xs):]
    assert not hidden or all(t.dtype.kind != "f" for t in hidden)
    rest = [next(a for a in (LABELS[:, None], ROWS) if a.ndim == t.rank) for t in hidden]
    on = [True] * len(xs) + [False] * len(rest)
    pull, one = vjp_func(func, on), np.ones(())
    outs = len(func.outputs)
    twice = vjp_func(pull, [*on, False])
    reverse = interp.run(twice, *xs, *rest, one, *(np.zeros(()) for _ in range(outs)), *vs)[-len(xs):]
    forward = interp.run(jvp_func(pull, [*on, False]), *xs, *rest, one, *vs)[-len(xs):]
    return reverse, forward


@pytest.mark.parametrize("name", sweep.part(FUNCTIONS, of=4))
def test_hessian_vector_product_by_every_road(name: str) -> None:
    f, xs = FUNCTIONS[name]
    rng = np.random.default_rng(3)
    vs = [rng.normal(size=x.shape) for x in xs]
    nums = tuple(range(len(xs)))
    gradient = ag.grad(f, argnums=nums)

    def reverse_over_reverse(*given: Any) -> Any:
        here, along = given[:len(xs)], given[len(xs):]

        def slope(*x: Any) -> Any:
            total: Any = 0.0
            for g, v in zip(gradient(*x), along):
                total = total + ag.sum(g * v)
            return total

        return ag.grad(slope, argnums=nums)(*here)

    def forward_over_reverse(*given: Any) -> Any:
        return ag.hvp(f, tuple(given[:len(xs)]), tuple(given[len(xs):]))

    want = [np.asarray(g) for g in reverse_over_reverse(*xs, *vs)]
    for way in (reverse_over_reverse, forward_over_reverse):
        agree(way(*xs, *vs), want, f"{way.__name__}, eager")
        agree(ag.compile(way)(*xs, *vs), want, f"{way.__name__}, compiled")
    agree(by_tape(f, xs, vs), want, "backward through a recorded gradient")
    for found, way in zip(by_interpreter(f, xs, vs), ("reverse", "forward")):
        agree(found, want, f"interpreter, {way} over reverse")
    if name != "kinks":  # differences across a kink are no derivative
        hi, lo = (gradient(*(x + s * v for x, v in zip(xs, vs))) for s in (1e-6, -1e-6))
        agree([(np.asarray(a) - np.asarray(b)) / 2e-6 for a, b in zip(hi, lo)], want, "differences of the gradient", 2e-7)


@pytest.mark.parametrize("name", ["cross_entropy", "rnn", "cumprod", "written"])
def test_hessian_is_symmetric_and_the_same_by_every_road(name: str) -> None:
    f, xs = FUNCTIONS[name]
    first = lambda x: f(x, *xs[1:])
    eager, compiled = (np.asarray(h(xs[0])).reshape(xs[0].size, xs[0].size) for h in (ag.hessian(first), ag.compile(ag.hessian(first))))
    agree([compiled, eager.T], [eager, eager], "hessian")
    rows = np.asarray(ag.jacrev(ag.grad(first))(xs[0])).reshape(eager.shape)
    columns = np.asarray(ag.compile(ag.jacfwd(ag.grad(first)))(xs[0])).reshape(eager.shape)
    agree([rows, columns], [eager, eager], "jacobian of the gradient")
