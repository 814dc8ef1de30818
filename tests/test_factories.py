"""Factories: values, dtypes, random numbers, and what they become in a trace."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.ir import interp

torch: Any = __import__("torch") if importlib.util.find_spec("torch") else None


def test_values_and_dtypes() -> None:
    assert ag.zeros(2, 3).shape == (2, 3) and ag.zeros((2, 3)).dtype is ag.float32 and ag.zeros(2, dtype=ag.int64).tolist() == [0, 0]
    assert ag.ones(2, requires_grad=True).requires_grad and ag.full((2,), 1.5).dtype is ag.float32 and ag.full((2,), 7).dtype is ag.int64 and ag.full((),
        True).dtype is ag.bool
    assert ag.eye(2, 3).tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]] and ag.empty(0, 2).shape == (0, 2)
    assert ag.arange(3).dtype is ag.int64 and ag.arange(1, 7, 2).tolist() == [1, 3, 5] and ag.arange(5, 0, -2).tolist() == [5, 3, 1] and ag.arange(0.0, 1.0,
        0.25).dtype is ag.float32
    assert ag.tensor(np.ones(2)).dtype is ag.float64 and ag.tensor([1, 2]).dtype is ag.int64 and ag.tensor(1.0).dtype is ag.float32
    x = np.arange(3.0)
    assert ag.as_tensor(x).data_ptr() == ag.from_numpy(x).data_ptr() != ag.tensor(x).data_ptr()
    y = ag.tensor([[1.0, 2.0]], dtype=ag.float64)
    assert ag.zeros_like(y).dtype is ag.float64 and ag.ones_like(y, dtype=ag.int64).tolist() == [[1, 1]] and ag.full_like(y, 3).tolist() == [[3.0, 3.0]]
    assert y.new_zeros(2).dtype is ag.float64 and y.new_full((1,), 2).tolist() == [2.0] and y.new_tensor([1]).dtype is ag.float64


def test_filled_with_a_tensor() -> None:
    """The other arguments count as they do with a number, in compiled code too; errors name the method that was called."""
    x, fill = ag.ones(1), ag.tensor(3.0)
    made = x.new_full((2,), fill, requires_grad=True)
    assert made.requires_grad and made.is_leaf and made.tolist() == [3.0, 3.0] and not fill.requires_grad
    assert ag.full((1, 2, 3, 4), fill, memory_format=ag.channels_last).stride() == (24, 1, 8, 2)

    def f(x: ag.Tensor, fill: ag.Tensor) -> tuple[ag.Tensor, ag.Tensor]:
        with ag.enable_grad():
            made = x.new_full((2,), fill, requires_grad=True)
            (made * made).sum().backward()
        return made.grad, ag.full((1, 2, 3, 4), fill, memory_format=ag.channels_last)

    grad, image = ag.compile(f)(x, fill)
    assert grad.tolist() == [6.0, 6.0] and image.stride() == (24, 1, 8, 2)
    for name in ("new_zeros", "new_ones", "new_empty"):
        with pytest.raises(ag.AotgradError, match=f"^{name}: size -1"):
            getattr(x, name)(-1)


def test_default_dtype() -> None:
    ag.set_default_dtype("float64")
    try:
        assert ag.zeros(1).dtype is ag.float64 and ag.rand(1).dtype is ag.float64 and ag.tensor(1.0).dtype is ag.float64
    finally:
        ag.set_default_dtype(ag.float32)


def test_memory_formats() -> None:
    x = ag.zeros(2, 3, 4, 5, memory_format=ag.channels_last)
    assert x.is_contiguous(memory_format=ag.channels_last) and x.stride() == (60, 1, 15, 3)
    assert ag.zeros_like(x).stride() == x.stride() and ag.zeros_like(x, memory_format=ag.contiguous_format).is_contiguous()
    y = ag.tensor(np.arange(120.0).reshape(2, 3, 4, 5), requires_grad=True)
    z = y.contiguous(memory_format=ag.channels_last)
    assert z.stride() == x.stride() and z.tolist() == y.tolist() and y.contiguous() is y
    z.sum().backward()
    assert y.grad.is_contiguous() and z.clone().stride() == z.stride()
    assert y.to(memory_format=ag.channels_last).stride() == x.stride()


@pytest.mark.skipif(torch is None, reason="torch is not installed")
@pytest.mark.parametrize("args", [(0.0, 1.0, 5), (0.1, 0.7, 7), (3.0, -2.0, 10), (1.0, 1.0, 3), (0.0, 1.0, 1), (0.0, 1.0, 0), (2, 10, 3)])
def test_sequences_as_torch(args: Any) -> None:
    ulps = 4 * 2.0 ** -53 * max(map(abs, args[:2]))  # near 0 the ends cancel, so their size sets the error
    np.testing.assert_allclose(ag.linspace(*args, dtype=ag.float64).numpy(), torch.linspace(*args, dtype=torch.float64).numpy(), rtol=0, atol=ulps)
    np.testing.assert_allclose(ag.linspace(*args).numpy(), np.linspace(*args).astype(np.float32), rtol=1e-7, atol=1e-7 * ulps)  # rounded once; torch computes in float32
    start, end = sorted(args[:2])
    np.testing.assert_allclose(ag.arange(start, end, 0.1, dtype=ag.float64).numpy(), torch.arange(start, end, 0.1, dtype=torch.float64).numpy(), rtol=0, atol=ulps)


def test_linspace_of_tensors_has_a_gradient() -> None:
    a, b = ag.tensor(1.0, requires_grad=True), ag.tensor(3.0, requires_grad=True)
    out = ag.linspace(a, b, 5)
    np.testing.assert_allclose(out.detach().numpy(), np.linspace(1, 3, 5), rtol=1e-6)
    out.sum().backward()
    assert float(a.grad) == pytest.approx(2.5) and float(b.grad) == pytest.approx(2.5)


def test_random_numbers() -> None:
    ag.manual_seed(7)
    first = ag.rand(1000), ag.randn(1000), ag.randint(5, (1000,)), ag.randperm(50)
    ag.manual_seed(7)
    again = ag.rand(1000), ag.randn(1000), ag.randint(5, (1000,)), ag.randperm(50)
    assert all(ag.equal(a, b) for a, b in zip(first, again))
    u, z, i, p = (t.numpy() for t in first)
    assert u.dtype == np.float32 and u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 0.05 and abs(z.std() - 1) < 0.1
    assert set(i) == set(range(5)) and i.dtype == np.int64 and sorted(p) == list(range(50))
    own = ag.Generator(3)
    assert not ag.equal(ag.rand(4, generator=own), ag.rand(4, generator=own))
    assert ag.equal(ag.rand(4, generator=ag.Generator(3)), ag.rand(4, generator=own.manual_seed(3)))
    assert ag.rand_like(ag.zeros(2, 2, dtype=ag.float64)).dtype is ag.float64 and ag.randn(2, requires_grad=True).requires_grad
    assert ag.randint(2, 4, (50,)).numpy().min() == 2


def test_in_a_trace_sizes_are_symbolic() -> None:
    def f(x: Any) -> Any:
        n = x.shape[0]
        return (ag.arange(n), ag.arange(1, 2 * n + 1, 2), ag.zeros(n, 2, dtype=ag.float64), ag.full((n,), 2.5, dtype=ag.float64) * x, ag.eye(n),
            ag.linspace(0.0, 1.0, n, dtype=ag.float64),
                ag.ones_like(x), np.zeros_like(x) + x, ag.zeros(3), x.T.shape[0] * x)

    func = ag.compile(f).trace(np.arange(4.0))
    for n in (1, 2, 5):
        x = np.arange(float(n))
        got = interp.run(func, x)
        want = (np.arange(n), np.arange(1, 2 * n + 1, 2), np.zeros((n, 2)), 2.5 * x, np.eye(n, dtype=np.float32), np.linspace(0, 1, n), np.ones(n), x,
            np.zeros(3, np.float32), n * x)
        for a, b in zip(got, want):
            np.testing.assert_allclose(a, b, rtol=1e-15)
            assert a.dtype == b.dtype
    names = [op.name for op in func.body.ops]
    assert "constant" not in names and "iota" in names  # nothing fresh is frozen


def test_what_a_trace_refuses() -> None:
    for make, text in ((lambda x: x * ag.randperm(3), "randperm"), (lambda x: ag.tensor([x[0], 1.0]), "ag.stack"), (lambda x: ag.arange(x[0]), "traced value"),
        (lambda x: ag.map(lambda y: y * ag.zeros(3, requires_grad=True), x), "requires_grad")):
        with pytest.raises(ag.AotgradError, match=rf"test_factories.py:\d+.*{text}"):
            ag.compile(make).trace(np.ones(3))


@pytest.mark.parametrize(("make", "text"), [
    (lambda: ag.zeros(-1), "negative"), (lambda: ag.zeros(1.5), "integers"), (lambda: ag.arange(0, 5, 0), "step"), (lambda: ag.randint(5, 5, (2,)), "less than"),
    (lambda: ag.rand(2, dtype=ag.int64), "floating"),
    (lambda: ag.linspace(0, 1, -1), "non-negative"), (lambda: ag.zeros_like(3), "tensor"), (lambda: ag.tensor("a"), "infer"),
    (lambda: ag.tensor([1], requires_grad=True), "floating point"),
])
def test_bad_arguments(make: Any, text: str) -> None:
    with pytest.raises(ag.AotgradError, match=text):
        make()


# ---- as torch's -------------------------------------------------------------------------------------------------------------------------

PLACED = [
    "m.zeros(2, device=D)", "m.ones((2,), device=D)", "m.empty(0, device=D)", "m.full((2,), 3, device=D)", "m.tensor([1.0], device=D)", "m.as_tensor([1], device=D)",
    "m.arange(3, device=D)", "m.linspace(0, 1, 3, device=D)", "m.eye(2, device=D)", "m.zeros_like(x, device=D)", "m.ones_like(x, device=D)",
    "m.full_like(x, 2, device=D)",
    "m.empty_like(x[:0], device=D)", "x.new_zeros(2, device=D)", "x.new_ones(2, device=D)", "x.new_full((2,), 3, device=D)", "x.new_empty(0, device=D)",
    "x.new_tensor([3.0], device=D)", "m.rand(2, device=D).shape", "m.randn(2, device=D).shape", "m.randint(3, (2,), device=D).shape", "m.randperm(3, device=D).shape",
    "m.rand_like(x, device=D).shape", "m.randn_like(x, device=D).shape"]


@pytest.mark.parametrize("line", PLACED)
def test_device_is_the_processor(line: str) -> None:
    def run(m: Any, device: Any) -> Any:
        out = eval(line, {"m": m, "x": m.ones(2), "D": device})
        return out.tolist() if hasattr(out, "tolist") else list(out)

    want = run(ag, None)
    assert run(ag, "cpu") == run(ag, ag.device("cpu")) == run(ag, ag.ones(1).device) == want
    if torch is not None:
        assert run(torch, "cpu") == want
    with pytest.raises(ag.AotgradError, match="device 'cuda' is not there: aotgrad runs on the CPU"):
        run(ag, "cuda")


def test_pinned_memory_is_refused() -> None:
    assert ag.zeros(2, pin_memory=False).tolist() == [0.0, 0.0]
    with pytest.raises(ag.AotgradError, match="zeros: pin_memory=True is for copies to other devices"):
        ag.zeros(2, pin_memory=True)


MIXED = {
    "[m.tensor(1.0), 2.0]": "float32", "[[m.tensor(1.0), 2.0]]": "float32", "[m.tensor(1), 2.5]": "float32", "[np.float32(1), 2]": "float32",
    "(1, np.float16(2))": "float16",
    "[np.float32(1), 2.5]": "float32", "[np.float16(1), 2.5]": "float32", "[np.float64(1), 2]": "float64", "[m.tensor(1, dtype=m.int32), 2]": "int64",
    "[m.tensor(1.0, dtype=m.float16), 2]": "float16", "[m.tensor(1.0, dtype=m.bfloat16), 2]": "bfloat16", "[m.tensor(1.0, dtype=m.float64), 2.0]": "float64",
    "[np.int8(1), True]": "int8", "[m.tensor(True), 1]": "int64", "[1j, np.float32(1)]": "complex64", "[m.tensor(1), m.tensor(2.0)]": "float32",
    "[np.ones(2, np.float32), [1, 2.0]]": "float32", "[m.tensor(3), np.float64(2)]": "float64", "[np.uint8(1), np.int8(1)]": "int16", "[True, 2.0]": "float32",
}


@pytest.mark.parametrize("data", MIXED)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_dtype_of_mixed_data(data: str) -> None:
    for m in (ag, torch) if torch is not None else (ag,):
        given = eval(data, {"m": m, "np": np})
        for make in (m.tensor, m.as_tensor):
            assert str(make(given).dtype).rpartition(".")[2] == MIXED[data]
    assert ag.tensor(eval(data, {"m": ag, "np": np}), dtype=ag.complex128).dtype is ag.complex128


@pytest.mark.parametrize("line", ["m.max(a, b)", "m.min(a, b)", "a.max(b)", "a.min(b)", "m.max(a, other=b)", "m.max(a, 1).values", "a.min(dim=0).indices",
                                  "a.max(1, True).values", "m.max(a)", "a.max(c)"])
def test_max_of_one_or_two(line: str) -> None:
    found = []
    for m in (ag, torch) if torch is not None else (ag,):
        a, b = m.tensor([[1.0, 5.0], [4.0, -2.0]], requires_grad=True), m.tensor([3.0, 0.0], requires_grad=True)
        out = eval(line, {"m": m, "a": a, "b": b, "c": m.tensor(1)})
        if out.requires_grad:
            (out * out).sum().backward()
        found.append((out.tolist(), a.grad is not None and a.grad.tolist(), b.grad is not None and b.grad.tolist()))
    assert all(x == found[0] for x in found)
    if "b" in line.partition("(")[2]:
        assert found[0][0] == ([[3.0, 5.0], [4.0, 0.0]] if "max" in line else [[1.0, 0.0], [3.0, -2.0]])


def test_a_copy_that_would_lose_a_derivative() -> None:
    """Of a NumPy value that is being differentiated it is refused, as in lists; of a tensor it warns; ``as_tensor`` goes on with the value."""
    x = np.ones(2)
    for transform in (ag.grad, lambda f: lambda x: ag.jvp(f, (x,), (x,)), ag.jacfwd, ag.hessian):
        for f in (lambda x: (ag.tensor(x) ** 2).sum(), lambda x: (ag.tensor([x[0], 1.0]) ** 2).sum(), lambda x: (ag.ones(1).new_tensor(x) ** 2).sum()):
            with pytest.raises(ag.AotgradTypeError, match=r"test_factories\.py:\d+: tensor: the data hold a value that is being differentiated.*detach"):
                transform(f)(x)
    assert ag.grad(lambda x: (ag.as_tensor(x) ** 2).sum())(x).tolist() == [2.0, 2.0] and ag.grad(lambda x: (ag.tensor(x.detach()) * x).sum())(x).tolist() == [1.0, 1.0]
    leaf = ag.tensor(x, requires_grad=True)
    with pytest.warns(UserWarning, match="To copy construct from a tensor, it is recommended to use"):
        assert not ag.tensor(leaf).requires_grad
    with ag.no_grad():
        assert ag.tensor(leaf).tolist() == [1.0, 1.0]
