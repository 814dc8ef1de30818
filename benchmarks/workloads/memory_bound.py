"""The part of a model that memory limits: softmax, norms, cross-entropy, activations, embeddings, changes of layout, optimiser steps; float32, one thread.

Every case is one compiled function of forward and backward together. Beside the peers stands a copy that reads and writes as many bytes as the arguments and the
results have: what no program can beat out of cache, unless it leaves caches warmer. 1 over its row is the share of copy bandwidth that is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import aotgrad as ag

from .. import peers
from ..harness import OURS, Bench, Candidate
from ..limits import work

TOLERANCE = 5e-5
COPY, TORCH, JAX = "copy of as many bytes", peers.TORCH, peers.JAX
IN_CACHE, OVER_TORCH = 8 << 20, 1.3
EPS = 1e-5
Function = Callable[..., Sequence[Any]]


@dataclass
class Case:
    """One function in several hands. ``share``: of copy bandwidth, to reach out of cache. ``torch`` and ``jax`` take the module and give the function."""

    name: str
    args: tuple[Any, ...]
    ours: Function
    by_hand: Function
    share: float
    torch: Callable[[Any], Function] | None = None
    jax: Callable[[Any, Any], Function] | None = None
    donate: tuple[int, ...] = ()
    least: int = 0  # bytes to move at least, where arguments and results do not say it


def run(bench: Bench) -> None:
    """All cases."""
    rng = np.random.default_rng(0)
    for make in (softmaxes, norms, cross_entropies, batch_norms, activations, embeddings, relayouts, optimisers):
        for case in make(rng, bench.quick):
            measure(bench, case)


def measure(bench: Bench, case: Case) -> None:
    """One case, beside its peers and the copy, and its targets."""
    exact = [np.asarray(v) for v in case.by_hand(*[a.astype(np.float64) if a.dtype == np.float32 else a for a in case.args])]
    moved = case.least or sum(a.nbytes for a in case.args) + sum(4 * v.size for v in exact)
    f = ag.compile(case.ours, donate=case.donate)
    candidates = [Candidate(OURS, f, args=_own_args(case, f)), _copy(moved, exact)]
    if case.torch is not None:
        candidates += bench.peer(TORCH, lambda: _torch(case))
    if case.jax is not None:
        candidates += bench.peer(JAX, lambda: _jax(case))
    rows = bench.case(case.name, candidates, exact, TOLERANCE, work=work(0.0, moved))
    seconds = rows[OURS]["seconds"]
    bench.fact(f"{case.name}: moved", moved / seconds / 1e9, "GB/s", f"{moved >> 10} KiB of arguments and results")
    if moved > IN_CACHE:
        bench.target(f"{case.name}: share of copy bandwidth", rows[COPY]["ratio"], case.share, at_least=True)
    elif TORCH in rows:
        bench.target(f"{case.name}: speed over torch eager", rows[TORCH]["seconds"] / seconds, OVER_TORCH, at_least=True)


def _own_args(case: Case, f: Any) -> tuple[Any, ...]:
    return tuple(a.copy(order="K") if i in case.donate else a for i, a in enumerate(case.args))


def _copy(moved: int, exact: Sequence[Any]) -> Candidate:
    a, b = np.ones(moved // 2, np.uint8), np.zeros(moved // 2, np.uint8)
    return Candidate(COPY, np.copyto, lambda _: exact, args=(b, a), note="a limit, not a peer")


def _torch(case: Case) -> Candidate:
    torch = peers.torch()
    assert case.torch is not None
    return Candidate(TORCH, case.torch(torch), lambda out: [v.detach().numpy() for v in out], args=tuple(torch.from_numpy(a) for a in case.args))


def _jax(case: Case) -> Candidate:
    j = peers.Jax()
    jx, jnp = j.jax, j.np
    assert case.jax is not None
    f = jx.jit(case.jax(jx, jnp))
    return Candidate(JAX, lambda *xs: jx.block_until_ready(f(*xs)), args=tuple(jnp.asarray(a) for a in case.args))


def normal(rng: np.random.Generator, *shape: int) -> Any:
    """Normal values in float32."""
    return rng.standard_normal(shape, dtype=np.float32)


def ours_of(f: Callable[..., Any]) -> Function:
    """Value and the gradients of all arguments but the last, which is the cotangent."""

    def both(*args: Any) -> list[Any]:
        out, pull = ag.vjp(f, *args[:-1])
        found = pull(args[-1])
        return [out, *(found if isinstance(found, tuple) else (found,))]

    return both


def torch_of(torch: Any, f: Callable[..., Any]) -> Function:
    """The same by torch's tape."""

    def both(*args: Any) -> list[Any]:
        xs = [a.detach().requires_grad_() for a in args[:-1]]
        out = f(*xs)
        return [out, *torch.autograd.grad(out, xs, args[-1])]

    return both


def jax_of(jx: Any, f: Callable[..., Any]) -> Function:
    """The same by jax."""

    def both(*args: Any) -> list[Any]:
        out, pull = jx.vjp(f, *args[:-1])
        return [out, *pull(args[-1])]

    return both


# ---- softmax ---------------------------------------------------------------------------------------------------------------------------

SIZES = ((64, 128), (256, 256), (1024, 1024), (4096, 4096))


def softmax_by_hand(x: Any, g: Any) -> list[Any]:
    """Value and gradient."""
    e = np.exp(x - x.max(-1, keepdims=True))
    s = e / e.sum(-1, keepdims=True)
    return [s, s * (g - (s * g).sum(-1, keepdims=True))]


def log_softmax_by_hand(x: Any, g: Any) -> list[Any]:
    """Value and gradient."""
    z = x - x.max(-1, keepdims=True)
    out = z - np.log(np.exp(z).sum(-1, keepdims=True))
    return [out, g - np.exp(out) * g.sum(-1, keepdims=True)]


def softmaxes(rng: np.random.Generator, quick: bool) -> list[Case]:
    """softmax forward alone; softmax and log_softmax with gradient."""
    return [case for m, n in (SIZES[:1] if quick else SIZES) for case in _softmaxes(normal(rng, m, n), normal(rng, m, n), f"{m} x {n}")]


def _softmaxes(x: Any, g: Any, size: str) -> list[Case]:
    return [
        Case(f"softmax, {size}", (x,), lambda v: [ag.softmax(v, -1)], lambda v: softmax_by_hand(v, v)[:1], 0.7, lambda t: lambda x: [t.softmax(x, -1)],
             lambda jx, _: lambda x: [jx.nn.softmax(x)]),
        Case(f"softmax and gradient, {size}", (x, g), ours_of(lambda x: ag.softmax(x, -1)), softmax_by_hand, 0.7,
             lambda t: torch_of(t, lambda x: t.softmax(x, -1)), lambda jx, _: jax_of(jx, jx.nn.softmax)),
        Case(f"log_softmax and gradient, {size}", (x, g), ours_of(lambda x: ag.log_softmax(x, -1)), log_softmax_by_hand, 0.7,
             lambda t: torch_of(t, lambda x: t.log_softmax(x, -1)), lambda jx, _: jax_of(jx, jx.nn.log_softmax)),
    ]


# ---- norms -----------------------------------------------------------------------------------------------------------------------------

def layer_norm(x: Any, w: Any, b: Any, numpy: Any = ag) -> Any:
    """In plain operations."""
    d = x - numpy.mean(x, -1).reshape(-1, 1)
    return d / numpy.sqrt(numpy.mean(d * d, -1).reshape(-1, 1) + EPS) * w + b


def rms_norm(x: Any, w: Any, numpy: Any = ag) -> Any:
    """In plain operations."""
    return x / numpy.sqrt(numpy.mean(x * x, -1).reshape(-1, 1) + EPS) * w


def layer_norm_by_hand(x: Any, w: Any, b: Any, g: Any) -> list[Any]:
    """Value and gradients."""
    d = x - x.mean(-1, keepdims=True)
    r = 1 / np.sqrt((d * d).mean(-1, keepdims=True) + EPS)
    h, q = d * r, g * w
    return [h * w + b, r * (q - q.mean(-1, keepdims=True) - h * (q * h).mean(-1, keepdims=True)), (g * h).sum(0), g.sum(0)]


def rms_norm_by_hand(x: Any, w: Any, g: Any) -> list[Any]:
    """Value and gradients."""
    r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
    h, q = x * r, g * w
    return [h * w, r * (q - h * (q * h).mean(-1, keepdims=True)), (g * h).sum(0)]


def norms(rng: np.random.Generator, quick: bool) -> list[Case]:
    """layer_norm and rms_norm: forward, and with gradients."""
    return [case for m, n in (SIZES[:1] if quick else SIZES) for case in _norms(normal(rng, m, n), normal(rng, n), normal(rng, n), normal(rng, m, n), f"{m} x {n}")]


def _norms(x: Any, w: Any, b: Any, g: Any, size: str) -> list[Case]:
    return [
        Case(f"layer_norm, {size}", (x, w, b), lambda *a: [layer_norm(*a)], lambda x, w, b: layer_norm_by_hand(x, w, b, x)[:1], 0.7,
             lambda t: lambda x, w, b: [t.layer_norm(x, x.shape[1:], w, b, EPS)], lambda _, jnp: lambda *a: [layer_norm(*a, jnp)]),
        Case(f"layer_norm and gradients, {size}", (x, w, b, g), ours_of(layer_norm), layer_norm_by_hand, 0.7,
             lambda t: torch_of(t, lambda x, w, b: t.layer_norm(x, x.shape[1:], w, b, EPS)), lambda jx, jnp: jax_of(jx, lambda *a: layer_norm(*a, jnp))),
        Case(f"rms_norm and gradients, {size}", (x, w, g), ours_of(rms_norm), rms_norm_by_hand, 0.7,
             lambda t: torch_of(t, lambda x, w: t.nn.functional.rms_norm(x, x.shape[1:], w, EPS)), lambda jx, jnp: jax_of(jx, lambda *a: rms_norm(*a, jnp))),
    ]


# ---- cross-entropy ---------------------------------------------------------------------------------------------------------------------

def cross_entropy_by_hand(x: Any, t: Any) -> list[Any]:
    """Value and gradient."""
    z = x - x.max(-1, keepdims=True)
    p = z - np.log(np.exp(z).sum(-1, keepdims=True))
    hot = np.arange(x.shape[1]) == t[:, None]
    return [-p[hot].mean(), (np.exp(p) - hot) / len(x)]


def cross_entropies(rng: np.random.Generator, quick: bool) -> list[Case]:
    """Mean over the batch, with gradient."""
    def torch_ce(t: Any) -> Function:
        def both(x: Any, target: Any) -> list[Any]:
            x = x.detach().requires_grad_()
            out = t.nn.functional.cross_entropy(x, target)
            return [out, *t.autograd.grad(out, [x])]

        return both

    def jax_ce(jx: Any, jnp: Any) -> Function:
        return jx.value_and_grad(lambda x, t: -jnp.mean(jnp.take_along_axis(jx.nn.log_softmax(x), t[:, None], 1)))  # type: ignore[no-any-return]

    def own(x: Any, t: Any) -> list[Any]:
        return list(ag.value_and_grad(lambda x: ag.nn.functional.cross_entropy(x, t))(x))

    return [Case(f"cross_entropy and gradient, {m} x {n}", (normal(rng, m, n), rng.integers(0, n, m)), own, cross_entropy_by_hand, 0.7, torch_ce, jax_ce)
            for m, n in ((128, 10), (1024, 1000), (4096, 4096))[:1 if quick else 3]]


# ---- batch norm ------------------------------------------------------------------------------------------------------------------------

def batch_norm_relu(x: Any, w: Any, b: Any, numpy: Any = ag) -> Any:
    """With statistics of the batch, then relu."""
    each = (1, -1, 1, 1)
    d = x - numpy.mean(x, (0, 2, 3)).reshape(each)
    v = numpy.mean(d * d, (0, 2, 3)).reshape(each)
    return numpy.maximum(d / numpy.sqrt(v + EPS) * w.reshape(each) + b.reshape(each), 0.0)


def batch_norm_by_hand(x: Any, w: Any, b: Any, g: Any) -> list[Any]:
    """Value and gradients."""
    on, w, b = (0, 2, 3), w.reshape(-1, 1, 1), b.reshape(-1, 1, 1)
    d = x - x.mean(on, keepdims=True)
    r = 1 / np.sqrt((d * d).mean(on, keepdims=True) + EPS)
    h = d * r
    y = h * w + b
    g = np.where(y > 0, g, 0)
    q = g * w
    return [np.maximum(y, 0), r * (q - q.mean(on, keepdims=True) - h * (q * h).mean(on, keepdims=True)), (g * h).sum(on), g.sum(on)]


def channels_last(x: Any) -> Any:
    """The same values, channels last in memory."""
    return x.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)


def batch_norms(rng: np.random.Generator, quick: bool) -> list[Case]:
    """Training batch norm and relu, forward and backward."""
    n, c, s = (2, 8, 14) if quick else (16, 64, 56)
    x, w, b, g = normal(rng, n, c, s, s), normal(rng, c), normal(rng, c), normal(rng, n, c, s, s)
    above, below = (batch_norm_by_hand(*(v.astype(np.float64) for v in (x, w, b + off, g)))[0] for off in (1e-3, -1e-3))
    g[(above > 0) & (below == 0)] = 0  # no gradient hangs on how values next to the kink are rounded
    peer: Callable[[Any], Function] = lambda t: torch_of(t, lambda x, w, b: t.relu(t.nn.functional.batch_norm(x, None, None, w, b, training=True, eps=EPS)))
    title = f"batch_norm, relu and gradients, {n} x {c} x {s} x {s}"
    # A channel of NCHW stays in the second cache between its passes: x and g are read once. Channels that lie side by side do not: x for the statistics, x and g for the
    # result and the sums of the adjoint, x and g again for the gradient, two results.
    whole = 7 * x.nbytes
    return [Case(f"{title}, {name}", (turn(x), w, b, turn(g)), ours_of(batch_norm_relu), batch_norm_by_hand, 0.7, peer,
                 lambda jx, jnp: jax_of(jx, lambda *a: batch_norm_relu(*a, jnp)), least=least)
            for name, turn, least in (("NCHW", lambda v: v, 0), ("channels_last", channels_last, whole))]


# ---- chains ----------------------------------------------------------------------------------------------------------------------------

def activations(rng: np.random.Generator, quick: bool) -> list[Case]:
    """silu and the tanh form of gelu with gradient; relu(a * b + c)."""
    return [case for n in ((8192,) if quick else (8192, 1 << 18, 1 << 22)) for case in _activations(normal(rng, n), normal(rng, n), normal(rng, n), n)]


def _activations(x: Any, g: Any, c: Any, n: int) -> list[Case]:
    def gelu(x: Any, numpy: Any = ag) -> Any:
        return 0.5 * x * (1 + numpy.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))

    def gelu_by_hand(x: Any, g: Any) -> list[Any]:
        t = np.tanh(0.7978845608 * (x + 0.044715 * x**3))
        return [0.5 * x * (1 + t), g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608 * (1 + 3 * 0.044715 * x * x))]

    def silu_by_hand(x: Any, g: Any) -> list[Any]:
        s = 1 / (1 + np.exp(-x))
        return [x * s, g * s * (1 + x * (1 - s))]

    return [
        Case(f"relu(a b + c), {n}", (x, g, c), lambda a, b, c: [ag.relu(a * b + c)], lambda a, b, c: [np.maximum(a * b + c, 0)], 0.9,
             lambda t: lambda a, b, c: [t.relu_(t.addcmul(c, a, b))], lambda _, jnp: lambda a, b, c: [jnp.maximum(a * b + c, 0)]),
        Case(f"silu and gradient, {n}", (x, g), ours_of(lambda x: x * ag.sigmoid(x)), silu_by_hand, 0.9,
             lambda t: torch_of(t, t.nn.functional.silu), lambda jx, _: jax_of(jx, jx.nn.silu)),
        Case(f"gelu (tanh) and gradient, {n}", (x, g), ours_of(gelu), gelu_by_hand, 0.9,
             lambda t: torch_of(t, lambda x: t.nn.functional.gelu(x, approximate="tanh")), lambda jx, _: jax_of(jx, jx.nn.gelu)),
    ]


# ---- gathers ---------------------------------------------------------------------------------------------------------------------------

def embeddings(rng: np.random.Generator, quick: bool) -> list[Case]:
    """Rows of a table, and the gradient of the table."""
    rows, width, tokens = (100, 32, 64) if quick else (10_000, 256, 4096)
    w, i, g = normal(rng, rows, width), rng.integers(0, rows, tokens), normal(rng, tokens, width)

    def by_hand(w: Any, i: Any, g: Any) -> list[Any]:
        d = np.zeros_like(w)
        np.add.at(d, i, g)
        return [w[i], d]

    def own(w: Any, i: Any, g: Any) -> list[Any]:
        out, pull = ag.vjp(lambda w: w[i], w)
        found = pull(g)
        return [out, found[0] if isinstance(found, tuple) else found]

    def torch_rows(t: Any) -> Function:
        def both(w: Any, i: Any, g: Any) -> list[Any]:
            w = w.detach().requires_grad_()
            out = t.nn.functional.embedding(i, w)
            return [out, *t.autograd.grad(out, [w], g)]

        return both

    def jax_rows(jx: Any, _: Any) -> Function:
        def both(w: Any, i: Any, g: Any) -> list[Any]:
            out, pull = jx.vjp(lambda w: w[i], w)
            return [out, *pull(g)]

        return both

    least = 4 * width * (2 * tokens + rows + 3 * tokens)  # rows read and written; the gradient zeroed; rows of it read, with g, and written
    return [Case(f"embedding and gradient, {tokens} of {rows} x {width}", (w, i, g), own, by_hand, 0.7, torch_rows, jax_rows, least=least)]


# ---- layouts ---------------------------------------------------------------------------------------------------------------------------

def _torch_permuted(*order: int) -> Callable[[Any], Function]:
    return lambda _: lambda x: [x.permute(order).contiguous()]


def relayouts(rng: np.random.Generator, quick: bool) -> list[Case]:
    """Changes of layout and transposes."""
    def turned(x: Any) -> list[Any]:
        return [ag.permute(x, (0, 2, 3, 1)).contiguous()]

    def back(x: Any) -> list[Any]:
        return [ag.permute(x, (0, 3, 1, 2)).contiguous()]

    def transposed(x: Any) -> list[Any]:
        return [ag.permute(x, (1, 0)).contiguous()]

    sizes = ((1, 8, 8),) if quick else ((1, 64, 56), (16, 64, 56), (16, 3, 224), (16, 256, 14))
    images = [(n, c, s, normal(rng, n, c, s, s)) for n, c, s in sizes]
    cases = []
    for n, c, s, x in images:
        y = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
        cases += [
            Case(f"NCHW to channels_last, {n} x {c} x {s} x {s}", (x,), turned, lambda v: [v.transpose(0, 2, 3, 1)], 0.9,
                 _torch_permuted(0, 2, 3, 1)),
            Case(f"channels_last to NCHW, {n} x {c} x {s} x {s}", (y,), back, lambda v: [v.transpose(0, 3, 1, 2)], 0.9,
                 _torch_permuted(0, 3, 1, 2)),
        ]
    for n in (64,) if quick else (512, 1024, 2048):
        cases.append(Case(f"transpose, {n} x {n}", (normal(rng, n, n),), transposed, lambda v: [v.T], 0.9, _torch_permuted(1, 0)))
    return cases


# ---- optimisers ------------------------------------------------------------------------------------------------------------------------

def optimisers(rng: np.random.Generator, quick: bool) -> list[Case]:
    """Steps over 11 million parameters in place: SGD with momentum, Adam. Zero gradients keep what is timed the same at every call."""
    n = 10_000 if quick else 11_000_000
    p, m, v, g = normal(rng, n), normal(rng, n), np.abs(normal(rng, n)) + 1, np.zeros(n, np.float32)

    def sgd(p: Any, m: Any, g: Any) -> list[Any]:
        m = 0.9 * m + g
        return [p - 1e-3 * m, m]

    def adam(p: Any, m: Any, v: Any, g: Any, numpy: Any = ag) -> list[Any]:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return [p - 1e-3 * m / (numpy.sqrt(v) + 1e-8), m, v]

    def torch_sgd(t: Any) -> Function:
        """torch's fused optimiser, in place."""
        leaf = t.from_numpy(p.copy()).requires_grad_()
        leaf.grad = t.from_numpy(g)
        optimiser = t.optim.SGD([leaf], lr=1e-3, momentum=0.9, fused=True)
        optimiser.state[leaf]["momentum_buffer"] = t.from_numpy(m.copy())

        def step(*_: Any) -> list[Any]:
            optimiser.step()
            return [leaf, optimiser.state[leaf]["momentum_buffer"]]

        return step

    return [Case(f"SGD with momentum, {n}", (p, m, g), sgd, sgd, 0.9, torch_sgd, lambda _jx, _jnp: sgd),
            Case(f"Adam, {n}", (p, m, v, g), adam, lambda *a: adam(*a, np), 0.9, None, lambda _, jnp: lambda *a: adam(*a, jnp))]


