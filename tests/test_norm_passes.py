"""What batch norm reads and writes: each pass over an image counted in the kernels, and none of them gathers."""

from __future__ import annotations

from typing import Any

import numpy as np

import aotgrad as ag

F = ag.nn.functional


def normed(x: Any, w: Any, b: Any) -> Any:
    """Convolution, norm, relu."""
    return F.relu(F.batch_norm(F.conv2d(x, w, None, 1, 1), None, None, b, b, training=True))


def arguments() -> list[Any]:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((2, 24, 10, 12), dtype=np.float32), rng.standard_normal((24, 24, 3, 3), dtype=np.float32)
    return [x, w, rng.uniform(0.5, 1.5, 24).astype(np.float32)]


def test_statistics_that_are_kept_do_not_turn_the_rows() -> None:
    args = arguments()
    f = ag.compile(lambda *args: ag.value_and_grad(lambda x, w, b: (normed(normed(x, w, b), w, b) ** 2).mean(), argnums=(0, 1, 2))(*args))
    kernels = f.lower(*args).kernel_ir
    assert "vector.gather" not in kernels and "vector.scatter" not in kernels
