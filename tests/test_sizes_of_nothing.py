"""Convolution, pooling, norms, softmax and attention over a grid of sizes 0, 1 and few, of windows that do and do not fit: eager calls, compiled ones and built libraries
give the same numbers or an ``AotgradError``; a compiled one names the user's line."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sweep

import aotgrad as ag
from aotgrad.frontend import aot

F = ag.nn.functional
Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def convolutions(n: int, c: int, h: int) -> Iterator[Call]:
    for k, stride, p, d, groups in itertools.product((0, 1, 3), (1, 2), (0, 1, 4), (1, 2), (1, 2)):
        kw = {"stride": stride, "padding": (p, 0), "dilation": d, "groups": groups}
        yield "conv2d", ((n, c, h, 2), (2, c // groups, k, 1)), kw
        yield "conv_transpose2d", ((n, c, h, 2), (c, 2, k, 1)), kw
        if stride == d == 1:
            yield "conv1d", ((n, c, h), (2, c // groups, k)), {"padding": "same" if p == 4 else p, "groups": groups}
            yield "conv3d", ((n, c, h, 1, 2), (2, c // groups, k, 1, 1)), {"padding": (p, 0, 1), "groups": groups}


def windows(n: int, c: int, h: int) -> Iterator[Call]:
    for k, stride, p, ceil in itertools.product((0, 1, 2, 4), (1, 2), (0, 1, 2), (False, True)):
        kw = {"kernel_size": (k, 1), "stride": stride, "padding": (p, 0), "ceil_mode": ceil}
        yield "max_pool2d", ((n, c, h, 3),), kw
        yield "avg_pool2d", ((n, c, h, 3),), kw
        yield "max_pool1d", ((n, c, h),), {"kernel_size": k, "stride": stride, "padding": p, "ceil_mode": ceil}
    for out in (0, 1, 2, 5):
        yield "adaptive_avg_pool2d", ((n, c, h, 3),), {"output_size": (out, 2)}
        yield "adaptive_max_pool2d", ((n, c, h, 3),), {"output_size": (out, 2)}


def norms(n: int, c: int, h: int) -> Iterator[Call]:
    x = (n, c, h)
    for shape in ((c, h), (h,), (h + 1,)):
        yield "layer_norm", (x,), {"normalized_shape": shape}
        yield "rms_norm", (x,), {"normalized_shape": shape}
    for groups in (0, 1, 2, 3):
        yield "group_norm", (x,), {"num_groups": groups}
    yield "instance_norm", (x,), {}
    for channels, training in ((c, True), (c, False), (c + 1, False)):
        yield "batch_norm", (x, (channels,), (channels,)), {"training": training}
    for d in (0, 1, 2, 3):
        yield "softmax", (x,), {"dim": d}
        yield "log_softmax", (x,), {"dim": d}


def attention() -> Iterator[Call]:
    for n, h, queries, keys, e, v in itertools.product((0, 1, 2), (0, 1, 2), (0, 1, 3), (0, 1, 3), (0, 1, 2), (0, 2)):
        yield "scaled_dot_product_attention", ((n, h, queries, e), (n, h, keys, e), (n, h, keys, v)), {"is_causal": bool((n + h + e) % 2)}
    q = (1, 2, 3, 4)
    for k, v in (((1, 2, 3, 5), q), (q, (1, 2, 2, 4)), ((1, 3, 3, 4), q)):
        yield "scaled_dot_product_attention", (q, k, v), {}


GRID = [*(call for of in (convolutions, windows, norms) for n, c, h in itertools.product((0, 1, 2), (0, 1, 2), (0, 1, 3)) for call in of(n, c, h)), *attention()]
PARTS, STEP = 12, 151  # a part of the suite takes one call of so many, of the thorough run a part of those


def outcome(f: Any) -> Any:
    """Shapes and numbers, or the error."""
    try:
        found = f()
    except ag.AotgradError as error:
        return error
    return [np.asarray(a.detach() if isinstance(a, ag.Tensor) else a) for a in (found if isinstance(found, tuple) else (found,))]


def agree(a: Any, b: Any, what: Any) -> None:
    assert isinstance(a, Exception) == isinstance(b, Exception), (what, a, b)
    if not isinstance(a, Exception):
        for x, y in zip(a, b, strict=True):
            assert x.shape == y.shape and x.dtype == y.dtype, what
            np.testing.assert_allclose(x, y, rtol=1e-5 if x.dtype == np.float32 else 1e-12, atol=1e-6, err_msg=str(what))


@pytest.mark.parametrize("part", [0, *(pytest.param(i, marks=pytest.mark.thorough) for i in range(1, PARTS))])
def test_eager_and_compiled_calls_agree(part: int) -> None:
    rng, errors, values = np.random.default_rng(part), 0, 0
    for name, shapes, kw in GRID[7 * part::STEP]:
        given = [ag.tensor(rng.uniform(0.5, 1.5, s)) for s in shapes]
        want = outcome(lambda: getattr(F, name)(*given, **kw))  # noqa: B023
        got = outcome(lambda: ag.compile(lambda *xs: getattr(F, name)(*xs, **kw))(*given))  # noqa: B023
        agree(want, got, (name, shapes, kw))
        if isinstance(got, Exception):
            assert "test_sizes_of_nothing.py" in str(got), (name, shapes, kw, str(got))
        errors, values = errors + isinstance(got, Exception), values + (not isinstance(got, Exception))
    assert errors > 10 and values > 10


def _range(*sizes: Any) -> list[Any]:
    return list(itertools.product(*sizes))


IMAGE = _range((0, 1, 2), (2,), (0, 1, 2, 4), (0, 1, 3))
ROWS = _range((0, 1, 2), (0, 3), (0, 1, 3))
OPEN: dict[str, tuple[Any, list[str], list[list[Any]]]] = {  # sizes that a library meets when it is called
    "conv": (lambda x, w: F.conv2d(x, w, padding=1), ["x: f64[n, 2, h, v]", "w: f64[3, 2, 3, 3]"], [IMAGE, [(3, 2, 3, 3)]]),
    "kernels": (lambda x, w: F.conv2d(x, w), ["x: f64[n, 2, h, v]", "w: f64[3, 2, k, l]"], [IMAGE[::2], _range((3,), (2,), (0, 1, 3, 5), (1,))]),
    "same": (lambda x, w: F.conv2d(x, w, padding="same"), ["x: f64[n, 2, h, v]", "w: f64[3, 2, 3, 2]"], [IMAGE, [(3, 2, 3, 2)]]),
    "transpose": (lambda x, w: F.conv_transpose2d(x, w, padding=1, stride=2), ["x: f64[n, 2, h, v]", "w: f64[2, 3, 2, 3]"], [IMAGE, [(2, 3, 2, 3)]]),
    "max": (lambda x: F.max_pool2d(x, 3, 2, 1), ["x: f64[n, c, h, v]"], [IMAGE]),
    "average": (lambda x: F.avg_pool2d(x, 2, 2, 1, ceil_mode=True, count_include_pad=False), ["x: f64[n, c, h, v]"], [IMAGE]),
    "adaptive_average": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), ["x: f64[n, c, h, v]"], [IMAGE]),
    "adaptive_max": (lambda x: F.adaptive_max_pool2d(x, (2, 3)), ["x: f64[n, c, h, v]"], [IMAGE]),
    "group": (lambda x: F.group_norm(x, 2), ["x: f64[n, 4, h]"], [_range((0, 1, 2), (4,), (0, 1, 3))]),
    "layer": (lambda x: F.layer_norm(x, (x.shape[-1],)), ["x: f64[n, c, h]"], [ROWS]), "softmax": (lambda x: F.softmax(x, 1), ["x: f64[n, c, h]"], [ROWS]),
    "rms": (lambda x: F.rms_norm(x, (x.shape[-1],)), ["x: f64[n, c, h]"], [ROWS]),
    "batch": (lambda x, m: F.batch_norm(x, m, m * m + 1), ["x: f64[n, c, h]", "m: f64[c]"], [ROWS, [(0,), (3,), (4,)]]),
}


@pytest.mark.parametrize("slope", [False, True], ids=["value", "gradient"])
@pytest.mark.parametrize("name", sweep.part(OPEN, of=4))
def test_libraries_for_all_sizes_agree(name: str, slope: bool, tmp_path: Path) -> None:
    f, declared, shapes = OPEN[name]

    def program(*xs: Any) -> Any:
        return ag.grad(lambda *xs: (f(*xs) ** 2).sum())(*xs) if slope else f(*xs)

    library, compiled = ag.load(aot.build(program, declared, out=tmp_path, name="program").library), ag.compile(program)
    rng = np.random.default_rng(0)
    for sizes in itertools.product(*shapes):
        given = [rng.uniform(0.5, 1.5, s) for s in sizes]
        want = outcome(lambda: program(*given))  # noqa: B023
        for road in (compiled, library.program):
            agree(want, outcome(lambda: road(*given)), (name, sizes))  # noqa: B023
