"""Sweeps of which every run of the suite takes a part; CI runs the rest after it (``-m thorough``)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def part(*axes: Iterable[Any], of: int = 3) -> list[Any]:
    """The product of the axes as parameters, one of ``of`` in each run: where there are two axes or more, each value of each meets some of the others."""
    found = [list(enumerate(axis)) for axis in axes]
    return [pytest.param(*[value for _, value in chosen], marks=[pytest.mark.thorough] * (sum(i for i, _ in chosen) % of > 0)) for chosen in itertools.product(*found)]
