"""Programs that run often: one kernel for all of their steps, with the same numbers; matrix products that read transposed operands where they lie; watched short ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sweep

import aotgrad as ag
from aotgrad.frontend import dispatch, native, program, quick

CASES: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda x: ag.softmax(x, -1),
    "log_softmax": lambda x: ag.log_softmax(x, 0),
    "logsumexp": lambda x: ag.logsumexp(x, 1),
    "var": lambda x: ag.var(x),
    "std": lambda x: ag.std(x, 1, keepdim=True),
    "mean": lambda x: ag.mean(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + ag.erf(x / 1.5)) + ag.sigmoid(x) ** 3,
    "prod": lambda x: ag.prod(x, 1),
    "broadcast": lambda x: x + x[:1] * ag.maximum(x, 0.1),
    "where": lambda x: ag.where(x > 0, x, x * x),
    "cumsum": lambda x: ag.cumsum(x, 1) * ag.nn.functional.softplus(x),
    "layer norm": lambda x: (x - ag.mean(x, 1, keepdim=True)) / ag.sqrt(ag.var(x, 1, keepdim=True) + 1e-5) * x[:1] + x[1:2],
    "sums": lambda x: ag.sum(x * x[:1]) * ag.sum(x, 0) + ag.sum(x, 1)[:1],
    "norm": lambda x: ag.sqrt(ag.sum(x * x, 1)),
}


def _run(f: Callable[[Any], Any], data: Any) -> list[Any]:
    x = ag.tensor(data, requires_grad=True)
    y = f(x)
    (g,) = ag.autograd.grad((y * y).sum(), [x], create_graph=True)
    (h,) = ag.autograd.grad((g * g).sum(), [x])
    return [v.detach().numpy() for v in (y, g, h)]


def _bits(x: Any) -> bytes:
    return bytes(np.where(x == x, x, np.nan).astype(x.dtype).tobytes())  # a NaN has no sign that means anything


def _kernels_made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that become one kernel from here on; the short way of single operations is off."""
    made, fused = list[Any](), native.fused

    def counted(func: Any) -> Any:
        found = fused(func)
        made.extend([found] if found is not None else [])
        return found

    monkeypatch.setattr(native, "fused", counted)
    monkeypatch.setattr(quick, "HOT", -1)
    return made


TYPED = sweep.part(CASES, (np.float32, np.float64), of=8)


@pytest.mark.parametrize("name, dtype", TYPED)
def test_a_program_that_runs_often_gives_the_same_bits(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _kernels_made(monkeypatch)
    for shape in ((17, 33), (1, 1), (2, 0), (40, 7), (3, 5), (300, 300), (5000, 3), (2, 5000)):
        if name == "logsumexp" and 0 in shape:
            continue
        data = np.random.default_rng(3).normal(size=shape).astype(dtype)
        dispatch.forget()
        monkeypatch.setattr(program, "HOT", -1)
        with np.errstate(all="ignore"):
            expected = _run(CASES[name], data)
        dispatch.forget()
        monkeypatch.setattr(program, "HOT", 2)
        for _ in range(4):
            for got, want in zip(_run(CASES[name], data), expected):
                assert got.dtype == want.dtype and got.shape == want.shape
                assert _bits(got) == _bits(want)
        strided = np.repeat(data, 2, 1)[:, ::2]
        for got, want in zip(_run(CASES[name], strided), expected):
            assert _bits(got) == _bits(want)
    assert made


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mkn", [(1, 5, 7), (3, 5, 1), (8, 8, 8), (1, 700, 60), (60, 700, 1), (3, 1100, 5), (33, 40, 48)])
def test_products_of_transposed_matrices_are_the_compiled_ones(dtype: Any, mkn: tuple[int, int, int]) -> None:
    m, k, n = mkn
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(m, k)).astype(dtype), rng.normal(size=(k, n)).astype(dtype)
    close = {"rtol": 1e-4, "atol": 1e-3} if dtype == np.float32 else {"rtol": 1e-11, "atol": 1e-12}
    at, bt = np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)
    for x, y, f in ((a, b, lambda x, y: x @ y), (at, b, lambda x, y: x.T @ y), (a, bt, lambda x, y: x @ y.T), (at, bt, lambda x, y: x.T @ y.T)):
        eager = f(ag.tensor(x), ag.tensor(y)).numpy()
        assert eager.tobytes() == ag.compile(f)(x, y).tobytes()
        np.testing.assert_allclose(eager, a.astype(np.float64) @ b.astype(np.float64), **close)
    batch = np.stack([at, at + 1])
    np.testing.assert_allclose((ag.tensor(batch).transpose(1, 2) @ ag.tensor(b)).numpy(), batch.astype(np.float64).swapaxes(1, 2) @ b, **close)


IMAGES: dict[str, Callable[[Any], Any]] = {
    "batch_norm": lambda x: ag.nn.functional.batch_norm(x, None, None, x[0, :, 0, 0] * 0.5, x[0, :, 0, 0], True),
    "group_norm": lambda x: ag.nn.functional.group_norm(x, 1),
    "relu": lambda x: ag.nn.functional.relu(x) * x[:, :1],
    "softmax": lambda x: ag.softmax(x, 1),
    "moves": lambda x: (x.transpose(1, 2) * 2 + 1).flatten(1),
    "means": lambda x: x - x.mean((2, 3), keepdim=True),
}


def _results(f: Callable[[Any], Any], x: Any) -> list[Any]:
    """The value, its gradient and the gradient of that."""
    y = f(x)
    (g,) = ag.autograd.grad((y * y).sum(), [x], create_graph=True)
    (h,) = ag.autograd.grad((g * g).sum(), [x])
    return [v.detach() for v in (y, g, h)]


@pytest.mark.parametrize("name, last", sweep.part(IMAGES, (False, True)))
def test_programs_on_images_give_the_same_bits_in_the_same_places(name: str, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row-major ones in one kernel, others step by step."""
    made = _kernels_made(monkeypatch)
    rng = np.random.default_rng(4)
    for shape in ((2, 3, 5, 7), (3, 1, 4, 4), (4, 6, 1, 1)):
        dispatch.forget()
        data = rng.normal(size=shape).astype(np.float32)
        x = ag.tensor(data).to(memory_format=ag.channels_last if last else ag.contiguous_format).requires_grad_()
        monkeypatch.setattr(program, "HOT", -1)
        want = _results(IMAGES[name], x)
        dispatch.forget()
        monkeypatch.setattr(program, "HOT", 1)
        for _ in range(3):
            found = _results(IMAGES[name], x)
            for a, b in zip(found, want):
                assert a.stride() == b.stride()
                np.testing.assert_array_equal(a.numpy(), b.numpy())
        # and the other order, which the kernel was not made for
        other = ag.tensor(data).to(memory_format=ag.contiguous_format if last else ag.channels_last).requires_grad_()
        found = _results(IMAGES[name], other)
        monkeypatch.setattr(program, "HOT", -1)
        dispatch.forget()
        for a, b in zip(found, _results(IMAGES[name], other)):
            assert a.stride() == b.stride()
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert made


def test_calls_that_are_short_stay_short_in_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "HOT", 2)
    x = ag.tensor(np.linspace(0.1, 1.0, 7), requires_grad=True)
    f = ag.compile(lambda v: ag.sin(v) * 2.5)
    for _ in range(4):
        plain = [(ag.tanh(x) * x).detach().numpy(), f(x).detach().numpy(), f(x.detach().numpy())]
    with ag.autograd.profiler.profile():  # builds the forms that are watched
        f(x), f(x.detach().numpy())
    long = 0
    run = dispatch._run_eager

    def counted(*args: Any) -> Any:
        nonlocal long
        long += 1
        return run(*args)

    monkeypatch.setattr(dispatch, "run_eager", dispatch.run_eager)  # the profile's end puts the counting one there
    monkeypatch.setattr(dispatch, "_run_eager", counted)
    with ag.autograd.profiler.profile() as prof:
        product = ag.tanh(x) * x
        watched = [product.detach().numpy(), f(x).detach().numpy(), f(x.detach().numpy())]
        product.sum().backward()
    assert [a.tobytes() for a in watched] == [a.tobytes() for a in plain]
    names = [e.name for e in prof.function_events]
    assert names.count("tanh") == 1 and names.count("mul") == 1 and names.count("sum") == 1
    assert "MulBackward0" in names and "TanhBackward0" in names
    assert long <= 2  # sum, and detach


@pytest.mark.parametrize("before", [lambda f, x: f.prebind(x), lambda f, x: f.explain(x)], ids=["prebind", "explain"])
def test_a_call_after_another_use_of_its_trace_is_the_trampolines(before: Any) -> None:
    f = ag.compile(lambda x: (x * x).sum())
    x = np.arange(3.0)
    before(f, x)
    assert f(x) == 5.0 and len(f.instances()) == 1 and f.cache_info().traces == 1
