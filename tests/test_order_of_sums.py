"""The order of a sum goes by its own dtype and sizes: what else is computed in its loop, and on which road, changes no bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aotgrad as ag

C = ag.compile
SIZES = [1, 3, 8, 9, 16, 17, 33, 100, 1000, 2047, 2049, 5000, 70_000, 300_001]


def data(*shape: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(sum(shape))
    return rng.standard_normal(shape).astype(np.float32), rng.standard_normal(shape)


SIBLINGS: dict[str, Any] = {
    "a sum": lambda x, y: (np.sum(x), np.sum(y)), "a sum of both": lambda x, y: (np.sum(x), np.sum(y * y + x)), "elements": lambda x, y: (np.sum(x), np.exp(y) * 2 + x),
    "integers": lambda x, y: (np.sum(x), ag.arange(x.shape[0]) * 2), "a maximum": lambda x, y: (np.sum(x), np.max(y - x)),
    "a mean, then elements": lambda x, y: (np.sum(x), (y - x) * np.sum(x)), "all at once": lambda x, y: (np.sum(x), np.sum(y), np.exp(y) - x, np.prod(y), np.min(y)),
}


@pytest.mark.parametrize("name", SIBLINGS)
def test_wider_values_in_the_loop_do_not_change_a_sum(name: str) -> None:
    fused, alone, wide = C(SIBLINGS[name]), C(lambda x: np.sum(x)), C(lambda y: np.sum(y))
    for n in SIZES:
        x, y = data(n)
        found = fused(x, y)
        assert found[0] == alone(x), n
        if name in ("a sum", "all at once"):
            assert found[1] == wide(y), n


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_and_columns_likewise(axis: int) -> None:
    fused, alone = C(lambda x, y: (np.sum(x, axis=axis), np.exp(y) + x, np.sum(y - x, axis=axis))), C(lambda x: np.sum(x, axis=axis))
    for shape in ((3, 7), (5, 33), (33, 5), (40, 3000), (3000, 40)):
        x, y = data(*shape)
        np.testing.assert_array_equal(fused(x, y)[0], alone(x))


def test_a_compiled_sum_is_the_eager_one() -> None:
    compiled = C(lambda x, y: (ag.sum(x), ag.sum(y), y * 2 + x))
    for n in SIZES:
        x, y = (ag.tensor(v) for v in data(n))
        found = compiled(x, y)
        assert found[0].item() == ag.sum(x).item() and found[1].item() == ag.sum(y).item(), n
