"""What batch norm reads and writes: each pass over an image counted in the kernels, and none of them gathers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import aotgrad as ag

F = ag.nn.functional
SHAPE = (4, 32, 24, 20)  # rows of a channel lie apart in channels_last, so nests are passes over the image


def arguments(last: bool) -> list[Any]:
    rng = np.random.default_rng(3)
    x = rng.standard_normal(SHAPE, dtype=np.float32)
    if last:
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    return [x, *(rng.uniform(0.5, 1.5, SHAPE[1]).astype(np.float32) for _ in range(2))]


def forward(x: Any, w: Any, b: Any) -> Any:
    """Norm and relu."""
    return F.relu(F.batch_norm(x, None, None, w, b, training=True))


def both(x: Any, w: Any, b: Any, ct: Any) -> Any:
    """The same with its gradients."""
    y, pullback = ag.vjp(forward, x, w, b)
    return y, pullback(ct)


def kept(x: Any, w: Any, b: Any, m: Any) -> Any:
    """A product between a norm and its backward pass, for which statistics are kept."""
    def loss(x: Any, w: Any, b: Any) -> Any:
        return ((forward(x, w, b).reshape(x.shape[0], -1) @ m) ** 2).sum()

    return ag.value_and_grad(loss, argnums=(0, 1, 2))(x, w, b)


def test_statistics_that_are_kept_do_not_turn_the_rows() -> None:
    f = ag.compile(kept)
    kernels = f.lower(*arguments(False), np.ones((SHAPE[1] * SHAPE[2] * SHAPE[3], 3), np.float32)).kernel_ir
    assert kernels.count("scf.for") and "vector.gather" not in kernels and "vector.scatter" not in kernels


@pytest.mark.parametrize(("fn", "reads", "writes"), [(forward, 2, 1), (both, 5, 2)], ids=["forward", "gradient"])
def test_passes(fn: Any, reads: int, writes: int) -> None:
    """Of a channels_last image: one pass for the statistics (and an eighth of one), one for the result; backward one for two sums, one for the gradient, which is that
    of the result as well: both images are read, and both results written."""
    x, w, b = arguments(True)
    args = (x, w, b) if fn is forward else (x, w, b, x[:, ::-1].copy().transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2))
    f = ag.compile(fn)
    f(*args)
    units = {"bytes": 1.0, "KiB": 1024.0, "MiB": 2.0**20}
    moved = [[float(n) * units[u] for n, u in re.findall(rf"{what} ([0-9.]+) (\w+)", f.explain(*args))] for what in ("reads", "writes")]
    image, small = float(x.nbytes), 0.05 * x.nbytes
    for found, passes in zip(moved, (reads + 1 / 8, writes)):
        assert abs(sum(found[:-1]) - passes * image) < small, (found, image)  # the last is the sum of all


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
def test_statistics_in_one_pass_are_as_good_as_in_two(last: bool) -> None:
    """Far from 0, and with a first eighth that is far from the rest: at most three bits are lost to the square of what is left of the mean."""
    x, w, b = arguments(last)
    x += np.float32(1000)
    x[:, :, :3] += np.linspace(0, 300, SHAPE[1], dtype=np.float32)[:, None, None]
    exact = x.astype(np.float64)
    for f in (F.batch_norm, ag.compile(F.batch_norm)):
        mean, var = ag.zeros(SHAPE[1]), ag.ones(SHAPE[1])
        f(ag.from_numpy(x), mean, var, ag.tensor(w), ag.tensor(b), True, 1.0)
        np.testing.assert_allclose(mean.numpy(), exact.mean((0, 2, 3)), rtol=1e-6)
        np.testing.assert_allclose(var.numpy(), exact.var((0, 2, 3), ddof=1), rtol=8 * 8 * np.finfo(np.float32).eps)
