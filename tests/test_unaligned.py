"""Arrays whose elements lie between the bytes where whole numbers start: every way to compute takes them, and gives what it gives for others."""

from typing import Any

import numpy as np
import pytest

import aotgrad as ag

F = ag.nn.functional
rng = np.random.default_rng(7)
V, M = rng.random(3) + 0.1, rng.random((4, 3)) + 0.1
IMAGES, WEIGHT = rng.random((1, 2, 6, 6)).astype("f4"), rng.random((3, 2, 3, 3)).astype("f4")


def shifted(x: Any) -> Any:
    """A copy that starts one byte late."""
    x = np.asarray(x)
    raw = np.zeros(x.nbytes + x.itemsize, "u1")
    out = next(v for v in (raw[k:k + x.nbytes].view(x.dtype) for k in (1, 2)) if not v.flags.aligned).reshape(x.shape)
    out[...] = x
    return out


CASES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "elementwise": (lambda m, x: m.exp(x), (V,)), "moved": (lambda m, x: m.expm1(x.T), (M,)), "several": (lambda m, x, y: m.tanh(x + y * 2), (M, V)),
    "float32": (lambda m, x: m.sin(x), (np.float32(V),)), "scalar": (lambda m, x: m.cos(x), (np.array(0.3),)), "whole": (lambda m, x: m.cumsum(x, 0), (M,)),
    "sum": (lambda m, x: m.sum(x, 0), (M,)), "dot": (lambda m, x, y: m.matmul(x, y), (M, M.T.copy())), "dot_turned": (lambda m, x, y: m.matmul(x, y.T), (M, M)),
    "batched": (lambda m, x: m.matmul(x, x), (rng.random((2, 3, 3)),)), "column": (lambda m, x, y: m.matmul(x, y), (M, V)),
    "softmax": (lambda m, x: ag.softmax(x, -1), (M,)),
    "take": (lambda m, x: x[[0, 2]], (M,)), "erf": (lambda m, x: ag.erf(x), (V,)),
    "conv": (lambda m, x, w: F.conv2d(x, w), (IMAGES, WEIGHT)), "pool": (lambda m, x: F.max_pool2d(x, 2), (IMAGES,)),
}


def _numbers(x: Any) -> Any:
    return x.detach().numpy() if isinstance(x, ag.Tensor) else np.asarray(x)


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_aligned_arrays(name: str) -> None:
    f, given = CASES[name]
    late = [shifted(x) for x in given]
    assert not any(x.flags.aligned for x in late)

    def backward(*xs: Any) -> Any:
        leaves = [ag.from_numpy(x).requires_grad_() for x in xs]
        (f(ag, *leaves) * 1.5).sum().backward()
        return leaves[0].grad

    ways = {"arrays": lambda *xs: f(ag, *xs), "tensors": lambda *xs: f(ag, *map(ag.from_numpy, xs)), "compiled": ag.compile(lambda *xs: f(np, *xs)),
            "grad": ag.grad(lambda *xs: (f(np, *xs) * 1.5).sum()), "compiled grad": ag.compile(ag.grad(lambda *xs: (f(np, *xs) * 1.5).sum())), "backward": backward}
    for way, run in ways.items():
        want = _numbers(run(*given))
        for _ in range(4):  # short ways are taken after a few calls
            assert _numbers(run(*late)).tobytes() == want.tobytes(), way


def test_writes_reach_unaligned_tensors() -> None:
    @ag.compile
    def double(t: Any) -> Any:
        t.mul_(2.0)
        return t + 1

    x = shifted(V)
    t = ag.from_numpy(x)
    for k in range(1, 5):
        np.testing.assert_array_equal(double(t).numpy(), V * 2**k + 1)
    t.exp_()
    np.testing.assert_array_equal(x, ag.exp(ag.from_numpy(V * 16)).numpy())


@pytest.mark.parametrize("make", [lambda p: ag.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: ag.optim.Adam(p, lr=0.1)], ids=["SGD", "Adam"])
@pytest.mark.parametrize("compiled", [False, True])
def test_unaligned_parameters_are_trained(make: Any, compiled: bool) -> None:
    found = []
    for place in (shifted, np.array):
        p = ag.nn.Parameter(ag.from_numpy(place(np.float32(V))))
        opt = make([p])

        def step(p: Any = p, opt: Any = opt) -> None:
            opt.zero_grad()
            (p * p).sum().backward()
            opt.step()

        run = ag.compile(step) if compiled else step
        for _ in range(5):
            run()
        found.append(p.detach().numpy().tobytes())
    assert found[0] == found[1]


def test_what_does_not_fit_is_still_named() -> None:
    kernel = ag.compile(lambda x, y: x + y)
    with pytest.raises(ag.AotgradError, match="do not broadcast"):
        kernel(shifted(V), shifted(np.ones(5)))
