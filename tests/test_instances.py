"""Instances of a trace with sizes as numbers, where kernels are made for sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.frontend import variant


def _loss(x: Any, w: Any) -> Any:
    return ag.sum(ag.relu(ag.conv2d(x, w, padding=1)) ** 2)


def _data(n: int, size: int) -> tuple[Any, Any]:
    r = np.random.default_rng(n + size)
    return r.normal(size=(n, 16, size, size)).astype(np.float32), r.normal(size=(16, 16, 3, 3)).astype(np.float32)


def test_one_trace_serves_all_sizes_with_an_instance_for_each() -> None:
    f = ag.compile(ag.value_and_grad(_loss, argnums=(0, 1)))
    for n, size in ((1, 8), (2, 8), (1, 9), (1, 8), (0, 8)):
        x, w = _data(n, size)
        value, grads = f(x, w)
        want, expected = ag.value_and_grad(_loss, argnums=(0, 1))(x, w)
        np.testing.assert_allclose(value, want, rtol=2e-4)
        for a, b in zip(grads, expected):
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3)
    assert f.cache_info().traces == 1
    assert "x_0" in str(f.trace(*_data(1, 8)))


def test_tensors_take_instances_too() -> None:
    f = ag.compile(_loss)
    for n in (1, 2):
        x, w = (ag.tensor(v, requires_grad=True) for v in _data(n, 8))
        f(x, w).backward()
        plain = [ag.tensor(v.detach().numpy(), requires_grad=True) for v in (x, w)]
        _loss(*plain).backward()
        for a, b in zip((x, w), plain):
            np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=2e-3, atol=2e-3)
    assert f.cache_info().traces == 1


def test_instances_are_few_and_only_where_they_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variant, "_INSTANCES", 2)
    f = ag.compile(lambda x, w: ag.conv2d(x, w))
    for size in range(5, 11):
        x, w = _data(1, size)
        np.testing.assert_allclose(f(x, w), ag.conv2d(ag.tensor(x), ag.tensor(w)).numpy(), rtol=1e-3, atol=1e-4)
    assert (f.cache_info().traces, f.cache_info().variants) == (1, 3)
    g = ag.compile(lambda x: ag.sin(x))
    for n in range(5):
        g(np.ones(n))
    assert g.cache_info().variants == 1


def test_pooling_takes_instances() -> None:
    f = ag.compile(lambda x: ag.max_pool2d(x, 2))
    for size, variants in ((6, 2), (40, 3), (41, 4), (6, 4)):
        x = np.random.default_rng(size).normal(size=(1, 2, size, size))
        np.testing.assert_array_equal(f(x), ag.max_pool2d(ag.tensor(x), 2).numpy())
        assert (f.cache_info().traces, f.cache_info().variants) == (1, variants)
