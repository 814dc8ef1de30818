"""Random numbers: known answers of the cipher, the same numbers eagerly and in compiled code, dropout in training, vmap."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
from random_oracles import threefry

import aotgrad as ag

F = ag.nn.functional


def test_known_answers_of_the_cipher() -> None:
    """Those of Random123."""
    assert threefry((0, 0), (0, 0)) == (0x6B200159, 0x99BA4EFE)
    assert threefry((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2) == (0x1CB996FC, 0xBB002BE7)
    assert threefry((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3)) == (0xC4923A9C, 0x483DF7A0)


def _draws(x: Any) -> tuple[Any, ...]:
    g = x.dtype
    return (ag.rand(3, 5), ag.rand(7, dtype=ag.float64), ag.randn(4, dtype=g), ag.randn(3, dtype=ag.float64), ag.randint(-2, 9, (11,)), ag.rand_like(x) * x,
            ag.rand(2, dtype=ag.float16), ag.randint(5, (3,), dtype=ag.int32), F.dropout(x, 0.3), F.dropout2d(ag.ones(2, 3, 4, 4) * x[0, 0]))


def test_compiled_code_draws_what_eager_code_draws() -> None:
    compiled, x = ag.compile(_draws), ag.ones(4, 6)
    ag.manual_seed(5)
    want = [_draws(x) for _ in range(3)]
    state = ag.get_rng_state()
    ag.manual_seed(5)
    for calls in want:
        got = compiled(x)
        assert all(ag.equal(a, b) and a.dtype is b.dtype for a, b in zip(got, calls, strict=True))
    assert ag.equal(ag.get_rng_state(), state) and not ag.equal(want[0][0], want[1][0]) and compiled.cache_info().traces == 1
    assert ag.equal(compiled(ag.ones(2, 3))[0], _after(state, lambda: ag.rand(3, 5)))  # other sizes, the same program


def _after(state: Any, f: Any) -> Any:
    before = ag.get_rng_state()
    ag.set_rng_state(state)
    try:
        return f()
    finally:
        ag.set_rng_state(before)


def test_numbers_do_not_depend_on_what_they_are_fused_with() -> None:
    big = ag.compile(lambda x: (ag.randn(300, 17) * x).sum(1))
    ag.manual_seed(1)
    alone = ag.randn(300, 17)
    ag.manual_seed(1)
    x = ag.linspace(-1, 1, 17)
    np.testing.assert_allclose(big(x).numpy(), (alone * x).sum(1).numpy(), rtol=2e-5, atol=1e-5)
    ag.manual_seed(1)
    assert ag.equal(ag.compile(lambda x: ag.randn(300, 17) * 1.0, threads=2)(x), alone)


def test_moments() -> None:
    ag.manual_seed(0)
    u, z = ag.rand(200_000, dtype=ag.float64).numpy(), ag.randn(200_000).numpy()
    assert abs(u.mean() - 0.5) < 0.004 and abs(u.var() - 1 / 12) < 0.001 and u.min() >= 0 and u.max() < 1
    assert abs(z.mean()) < 0.01 and abs(z.std() - 1) < 0.01 and abs((z ** 4).mean() - 3) < 0.1 and np.isfinite(z).all()
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.01
    counts = np.bincount(ag.randint(0, 10, (100_000,)).numpy(), minlength=10)
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 30  # chi square with 9 degrees of freedom: 1 in 2500


@pytest.mark.parametrize("way", ["module", "function"])
def test_a_training_step_with_dropout(way: str) -> None:
    def losses(compiled: bool) -> list[float]:
        ag.manual_seed(3)
        net = ag.nn.Sequential(ag.nn.Linear(8, 16), ag.nn.ReLU(), *([ag.nn.Dropout(0.4)] if way == "module" else []), ag.nn.Linear(16, 1)).double()
        opt = ag.optim.SGD(net.parameters(), lr=0.1)
        x = ag.rand(32, 8, dtype=ag.float64)

        def step(x: Any) -> Any:
            opt.zero_grad()
            loss = (net(x if way == "module" else F.dropout(x, 0.4)) ** 2).mean()
            loss.backward()
            opt.step()
            return loss

        run = ag.compile(step) if compiled else step
        return [run(x).item() for _ in range(5)]

    np.testing.assert_allclose(losses(True), losses(False), rtol=1e-10)


def test_the_mask_of_the_backward_pass_is_that_of_the_forward_pass() -> None:
    f = ag.compile(lambda x: F.dropout(x, 0.5))
    x = ag.ones(500, requires_grad=True)
    first, second = f(x), f(x)
    assert not ag.equal(first, second)
    for out in (second, first):  # the later one first
        x.grad = None
        out.sum().backward()
        assert ag.equal(x.grad, out.detach())
    inner = ag.compile(lambda v: ag.value_and_grad(lambda w: (F.dropout(w, 0.5) ** 2).sum())(v))
    value, g = inner(ag.ones(100))
    assert float(value) * 2.0 == pytest.approx(float(g.sum())) and set(g.tolist()) == {0.0, 8.0}


def test_evaluation_and_generators() -> None:
    layer = ag.nn.Dropout(0.5)
    f, x = ag.compile(lambda v: layer(v)), ag.ones(50)
    state = ag.get_rng_state()
    layer.eval()
    assert ag.equal(f(x), x) and ag.equal(ag.get_rng_state(), state)
    layer.train()
    assert set(f(x).tolist()) == {0.0, 2.0}
    own = ag.Generator(11)
    g = ag.compile(lambda v: v + ag.rand(50, generator=own))
    state = ag.get_rng_state()
    a, b = g(x), g(x)
    twin = ag.Generator(11)
    assert ag.equal(a, x + ag.rand(50, generator=twin)) and ag.equal(b, x + ag.rand(50, generator=twin)) and ag.equal(ag.get_rng_state(), state)
    own.manual_seed(11)
    assert ag.equal(g(x), a) and own.initial_seed() == 11


def test_vmap() -> None:
    x = ag.ones(64, 32)
    f = ag.vmap(lambda r: F.dropout(r, 0.5))
    with pytest.raises(RuntimeError, match="randomness error mode"):
        f(x)
    same = ag.vmap(lambda r: F.dropout(r, 0.5), randomness="same")(x)
    assert ag.equal(same, same[:1].expand(64, 32))
    each = ag.vmap(lambda r: F.dropout(r, 0.5), randomness="different")
    ag.manual_seed(2)
    rows = each(x)
    assert all(not ag.equal(a, b) for a, b in itertools.combinations(list(rows)[:8], 2)) and abs(float(rows.mean()) - 1) < 0.1
    ag.manual_seed(2)
    assert ag.equal(ag.compile(each)(x), rows)
    nested = ag.vmap(ag.vmap(lambda v: ag.rand(()) + v * 0, randomness="different"), randomness="different")(x)
    assert len(set(nested.reshape(-1).tolist())) > 2040


def test_matrices_of_derivatives_are_of_one_draw() -> None:
    """Whatever the mode runs again: every row of numbers is a function of one sample, and as many draws are taken as by one run."""
    other = ag.Generator().manual_seed(4)
    inner = ag.compile(lambda v: v * ag.rand(3, dtype=ag.float64))

    def f(v: Any) -> Any:
        return inner(v.sum() ** 2) * ag.rand(3, dtype=ag.float64, generator=other)

    x = ag.tensor(np.arange(1.0, 5.0))
    functional = ag.autograd.functional
    for make in (ag.jacfwd, ag.jacrev, ag.hessian, lambda f: ag.jacfwd(ag.jacfwd(f)), lambda f: ag.compile(ag.jacfwd(f)),
                 lambda f: lambda x: functional.jacobian(f, x, vectorize=True, strategy="forward-mode")):
        ag.manual_seed(2)
        other.manual_seed(4)
        found = make(f)(x).numpy().reshape(3, -1)
        after = ag.rand(2).tolist(), ag.rand(2, generator=other).tolist()
        ag.manual_seed(2)
        other.manual_seed(4)
        want = f(x).numpy() / 100 * (20 if found.shape[1] == 4 else 2)
        np.testing.assert_allclose(found, np.repeat(want[:, None], found.shape[1], 1), rtol=1e-13)
        assert after == (ag.rand(2).tolist(), ag.rand(2, generator=other).tolist())


def test_branches_draw_what_they_draw_eagerly() -> None:
    """Both from the same state; what is drawn behind them goes on from the branch that ran."""
    def one(x: Any) -> Any:
        return ag.cond(x.sum() > 4, lambda x: x * ag.rand_like(x), lambda x: x + ag.rand_like(x), x) * ag.rand_like(x)

    def f(x: Any) -> Any:
        y = ag.cond(x.sum() > 0, one, lambda x: ag.rand_like(x) - ag.rand_like(x) * ag.randn_like(x), x)
        return y, ag.cond(y.sum() > 0, lambda y: ag.nn.functional.dropout(y), lambda y: y, y), ag.rand_like(x)

    def g(x: Any) -> Any:  # the branches draw equally often: the same in a function that is differentiated
        return ag.grad(lambda x: ag.cond(x.sum() > 0, lambda x: x * x * ag.rand_like(x), lambda x: ag.nn.functional.dropout(x), x).sum())(x), ag.rand_like(x)

    for h in (f, g):
        compiled = ag.compile(h)
        for size, value in ((3, 0.5), (3, -0.5), (4, 2.0), (2, -1.0)):
            found = []
            for run in (h, compiled):
                ag.manual_seed(size)
                found.append([t.numpy() for t in (*run(ag.full((size,), value)), ag.rand(2))])
            for a, b in zip(*found):
                np.testing.assert_allclose(a, b, rtol=1e-6)
        assert compiled.cache_info().traces == 1


def test_where_it_cannot_be() -> None:
    with pytest.raises(ag.AotgradNotImplementedError, match="draw them before it"):
        ag.compile(lambda x: ag.fori_loop(0, 3, lambda i, c: c * ag.rand(4), x))(ag.ones(4))
    with pytest.raises(ag.AotgradNotImplementedError, match="call it outside"):
        ag.compile(lambda x: (ag.manual_seed(0), x)[1])(ag.ones(4))
    with pytest.raises(ag.AotgradNotImplementedError, match="built library has no generator"):
        ag.aot.build(_noisy, ["x: f64[4]"], out="nowhere", name="noisy")
    with pytest.raises(ValueError, match="int64 tensor of three"):
        ag.set_rng_state(ag.ones(3))


def _noisy(x: Any) -> Any:
    return x * ag.rand(4)


def test_threads_draw_different_numbers() -> None:
    found: list[list[float]] = []
    threads = [threading.Thread(target=lambda: found.extend(ag.rand(4).tolist() for _ in range(50))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len({tuple(v) for v in found}) == 200
