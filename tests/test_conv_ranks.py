"""Convolution in combinations where the other sweeps take a few: one and three dims, transposed, string and one-sided padding, the machine's own kernels for known sizes.

The suite takes a part of each, ``-m thorough`` all of the public functions and a sixth of the kernels, in which every value of each dim meets the others.
"""

from __future__ import annotations

import itertools
from typing import Any

import image_oracles
import numpy as np
import pytest
from native_table import agree, natives, run_both_guards
from test_conv import LAST, attrs_of, spread

import aotgrad as ag
from aotgrad.codegen import lowering_conv
from aotgrad.codegen.conv import select
from aotgrad.ir import TensorType, build, interp
from aotgrad.ir.transforms.cleanup import standard
from aotgrad.ir.transforms.differentiate import vjp_func
from aotgrad_runtime.dtypes import as_dtype

STRIDES, DILATIONS, GROUPS, KERNELS = (1, 2, 3), (1, 2), ("1", "2", "C"), (1, 2, 3, 4)
CHANNELS = {"1": (3, 5, 1), "2": (4, 6, 2), "C": (3, 3, 3)}
PUBLIC = list(itertools.product((1, 2, 3), (False, True), STRIDES, (0, 1, 2, "same", "valid"), DILATIONS, GROUPS, KERNELS))
PUBLIC = [c for c in PUBLIC if not (isinstance(c[3], str) and (c[1] or c[2] > 1))]
PARTS, OF_KERNELS = 96, 216


def parts(count: int) -> Any:
    """The first, and the others."""
    return pytest.mark.parametrize("part", [0, *(pytest.param(i, marks=pytest.mark.thorough) for i in range(1, count))])


def taken(all_of: list[Any], part: int, count: int) -> list[tuple[int, Any]]:
    """A part in which every value of each dim of the grid comes."""
    return [(i, c) for i, c in enumerate(all_of) if (i + i // count) % count == part]


def pads(padding: Any, kernel: tuple[int, ...], dilation: int) -> tuple[tuple[int, int], ...]:
    """As torch has it: of an odd number the larger half comes behind."""
    if padding == "same":
        return tuple(((spread(k, dilation) - 1) // 2, spread(k, dilation) // 2) for k in kernel)
    return ((0 if padding == "valid" else padding,) * 2,) * len(kernel)


@parts(PARTS)
def test_public_functions_are_the_definition(part: int) -> None:
    """Values against loops over single elements; gradients by what the definition gives in their directions, as both operands are linear: eager, and compiled."""
    rng, count = np.random.default_rng(part), 0
    for i, (rank, transposed, stride, padding, dilation, groups, k) in taken(PUBLIC, part, PARTS):
        channels, filters, n = CHANNELS[groups]
        kernel = tuple((k + j * (i % 3)) % 4 + 1 if j else k for j in range(rank))
        low = pads(padding, kernel, dilation)
        if transposed:
            given = tuple(int(rng.integers(1, 3)) + (2 * lo >= spread(s, dilation) and 2 * lo) for s, (lo, _) in zip(kernel, low))
            spatial = tuple((m - 1) * stride + spread(s, dilation) - sum(p) for m, s, p in zip(given, kernel, low))
            shapes = ((2, channels, *given), (channels, filters // n, *kernel))
        else:
            spatial = tuple(max(1, spread(s, dilation) - sum(p)) + int(rng.integers(0, 3)) for s, p in zip(kernel, low))
            shapes = ((2, channels, *spatial), (filters, channels // n, *kernel))
        if min(spatial) < 1:
            continue
        kw = {"stride": stride, "padding": padding, "dilation": dilation, "groups": n}
        attrs = attrs_of(stride, low, dilation, n, rank)
        function = getattr(ag, f"conv{'_transpose' * transposed}{rank}d")

        def defined(x: Any, w: Any, transposed: bool = transposed, attrs: Any = attrs, spatial: Any = spatial) -> Any:
            return image_oracles.conv_transpose(x, w, spatial=spatial, **attrs) if transposed else image_oracles.conv(x, w, **attrs)

        x, w, dx, dw = (rng.normal(size=s) for s in shapes * 2)
        want = defined(x, w)
        ct = rng.normal(size=want.shape)

        def value(x: Any, w: Any, function: Any = function, kw: Any = kw) -> Any:
            return function(x, w, **kw)

        def slopes(x: Any, w: Any, ct: Any, value: Any = value) -> Any:
            return ag.grad(lambda x, w: ag.sum(value(x, w) * ct), argnums=(0, 1))(x, w)

        last = rank > 1 and i % 2
        first = ag.tensor(x).to(memory_format=ag.channels_last if rank == 2 else ag.channels_last_3d).numpy() if last else x
        for run in (lambda f: f, ag.compile) if i % 5 == 0 else (lambda f: f,):
            np.testing.assert_allclose(run(value)(first, w), want, rtol=1e-12, atol=1e-12, err_msg=str((function.__name__, kw, shapes)))
            gx, gw = run(slopes)(first, w, ct)
            for got, along in ((np.vdot(gx, dx), defined(dx, w)), (np.vdot(gw, dw), defined(x, dw))):
                np.testing.assert_allclose(got, np.vdot(ct, along), rtol=1e-10, atol=1e-10, err_msg=str((function.__name__, kw, shapes)))
        count += 1
    assert count > 8


SIDES = ((0, 1), (2, 0), (1, 2), (-1, 2), (1, -1))
ONE_SIDED = list(itertools.product((1, 2, 3), (False, True), STRIDES, SIDES, DILATIONS, GROUPS, KERNELS))


@parts(OF_KERNELS // 6)
def test_kernels_with_one_sided_padding(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known sizes, one, two and three dims, on this machine's own kernels wherever there is one, value and both gradients between guard pages; layouts in turn."""
    monkeypatch.setattr(select, "_LEAST", 0)
    found, choose = [], select.select
    monkeypatch.setattr(lowering_conv, "select", lambda *a: found.append(choose(*a)) or found[-1])
    rng, made, calls = np.random.default_rng(part), {}, []
    for i, (rank, last, stride, side, dilation, groups, k) in taken(ONE_SIDED, part, OF_KERNELS):
        channels, filters, n = CHANNELS[groups]
        kernel = tuple((k + j * (i % 3)) % 4 + 1 if j else k for j in range(rank))
        sides = tuple(side[::-1] if j % 2 else side for j in range(rank))
        spatial = tuple(max(1, spread(s, dilation) - sum(p), -min(p) + 1) + int(rng.integers(0, 4)) // rank for s, p in zip(kernel, sides))
        dtype = (np.float64, np.float32)[i // 2 % 2]
        types = [TensorType((2, channels, *spatial), as_dtype(dtype), LAST(rank + 2) if last and rank > 1 else None),
                 TensorType((filters, channels // n, *kernel), as_dtype(dtype), LAST(rank + 2) if i % 3 == 0 and rank > 1 else None)]
        attrs = attrs_of(stride, sides, dilation, n, rank)
        made[f"s{i}"] = func = standard(vjp_func(build("conv", types, lambda b, x, w: b.conv(x, w, **attrs)), [True, True]))  # noqa: B023
        calls.append((f"s{i}", attrs, [rng.normal(size=t.shape).astype(dtype) for t in func.arg_types]))
    kernels = natives(made)
    for name, attrs, args in calls:
        agree(run_both_guards(kernels[name], args), interp.run(made[name], *args), False, f"{name} {attrs} {[a.shape for a in args]}")
    assert len(calls) == len(ONE_SIDED) // OF_KERNELS and sum(t is not None for t in found) >= 2 * len(made)
