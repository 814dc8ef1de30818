"""The same programs on the other instruction sets that this machine has or qemu emulates: convolution in every combination, pooling, products, layouts, vector math.

The suite takes a part of each; all of it is ``-m thorough``. What the machine's own set gives is tested by test_conv.py and its like.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_conv
import test_pooling
from elsewhere import MACHINES, Call, results
from native_table import agree

from aotgrad.codegen import lowering_conv
from aotgrad.codegen.conv import select
from aotgrad.codegen.target import Target
from aotgrad.ir import Func, TensorType, build, dims, interp
from aotgrad.ir.transforms.cleanup import standard
from aotgrad.ir.transforms.differentiate import vjp_func
from aotgrad_runtime.dtypes import as_dtype

PARTS = 27


def parts(thorough: int = PARTS) -> Any:
    return pytest.mark.parametrize("part", [0, *(pytest.param(i, marks=pytest.mark.thorough) for i in range(1, thorough))])


on_machines = pytest.mark.parametrize("machine", [pytest.param(m, marks=[pytest.mark.thorough] * (m == "x86-64-v3")) for m in MACHINES])


def check(machine: str, funcs: dict[str, Func], calls: list[Call], folder: Path) -> None:
    for call, found in zip(calls, results(machine, funcs, calls, folder), strict=True):
        agree(tuple(found), interp.run(funcs[call.name], *call.args), False, f"{machine}: {call.name} {[np.shape(a) for a in call.args]}")


@on_machines
@parts()
def test_convolutions_of_open_sizes(machine: str, part: int, tmp_path: Path) -> None:
    """Value and both gradients: layouts, strides 1 to 3, padding 0 to 2, dilation 1 and 2, groups 1, 2 and all, kernels 1 to 4 in each dim, odd images."""
    made, calls, rng = {}, [], np.random.default_rng(part)
    for i, combo in enumerate(test_conv.COMBOS):
        if (i + i // PARTS + MACHINES.index(machine)) % PARTS != part:
            continue
        dtype = (np.float64, np.float32)[(i + i // 2) % 2]
        func, attrs, channels, filters = test_conv.combination(*combo, dtype, i)
        made[f"c{i}"] = func
        calls += [Call(f"c{i}", args) for args in test_conv.runs(func, attrs, channels, filters, dtype, rng)]
    assert len(made) == len(test_conv.COMBOS) // PARTS and len(calls) > 3 * len(made)
    check(machine, made, calls, tmp_path)


def known_sizes(i: int, combo: Any, dtype: Any) -> Iterator[tuple[Func, list[Any]]]:
    """Programs of known sizes, one for each size of kernel, in turn."""
    last, stride, padding, dilation, groups = combo
    channels, filters, count = test_conv.CHANNELS[groups]
    attrs = test_conv.attrs_of(stride, padding, dilation, count)
    rng = np.random.default_rng(i)
    for kernel in (1 + i % 4, 1 + (i + 2) % 4):  # with the other dtype and its neighbours all four
        sizes = (kernel, 5 - kernel)
        image = tuple(2 * int(rng.integers(0, 4)) + 1 + (max(0, (k - 1) * dilation - 2 * padding) + 1) // 2 * 2 for k in sizes)
        types = [TensorType((2, channels, *image), as_dtype(dtype), test_conv.LAST(4) if last else None),
                 TensorType((filters, channels // count, *sizes), as_dtype(dtype), test_conv.LAST(4) if i % 3 else None)]
        func = standard(vjp_func(build("conv", types, lambda b, x, w: b.conv(x, w, **attrs)), [True, True]))
        yield func, [rng.normal(size=t.shape).astype(dtype) for t in func.arg_types]


@on_machines
@parts()
def test_convolutions_of_known_sizes(machine: str, part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, by kernels of their own: packed weights, tiles in registers, borders."""
    monkeypatch.setattr(select, "_LEAST", 0)
    taken, choose = [], select.select
    monkeypatch.setattr(lowering_conv, "select", lambda *a: taken.append(choose(*a)) or taken[-1])
    made, calls = {}, []
    for i, (combo, dtype) in enumerate(itertools.product(test_conv.COMBOS, (np.float64, np.float32))):
        if (i + i // PARTS + MACHINES.index(machine)) % PARTS != part:
            continue
        for j, (func, args) in enumerate(known_sizes(i, combo, dtype)):
            made[f"k{i}_{j}"] = func
            calls.append(Call(f"k{i}_{j}", args))
    assert len(made) == 4 * len(test_conv.COMBOS) // PARTS
    check(machine, made, calls, tmp_path)
    assert sum(t is not None for t in taken) > 2 * len(made)  # of three kernels for each program


@on_machines
@parts(18)
def test_pooling_everywhere(machine: str, part: int, tmp_path: Path) -> None:
    """Sums and maxima of windows with their gradients."""
    made, calls, rng = {}, [], np.random.default_rng(part)
    for i, (combo, last) in enumerate(itertools.product(test_pooling.COMBOS, (False, True))):
        if (i + i // 18 + MACHINES.index(machine)) % 18 != part:
            continue
        dtype = (np.float64, np.float32)[i // 2 % 2]
        for op in ("window_sum", "window_max"):
            made[f"{op}{i}"] = func = test_pooling.whole(op, combo, dtype, last, test_pooling.positions(combo))
            calls += [Call(f"{op}{i}", args) for args in test_pooling.images(func, dtype, rng)]
    check(machine, made, calls, tmp_path)


SIZES = (1, 2, 3, 5, 8, 9, 16, 17, 33, 64, 65)


@on_machines
@parts(4)
def test_products_everywhere(machine: str, part: int, tmp_path: Path) -> None:
    """In every order of the operands, with what is fused to them, alone and in a batch, with both gradients."""
    made: dict[str, Func] = {}
    calls, rng = [], np.random.default_rng(part)
    m, n, k, batch = (dims.symbol(s) for s in ("m", "n", "k", "b"))
    for dtype, a, b in itertools.product((np.float32, np.float64), "rc", "rc"):
        def product(bd: Any, x: Any, y: Any, z: Any, a: str = a, b: str = b) -> Any:
            x, y = (v if order == "r" else bd.permute(v, perm=(1, 0)) for v, order in ((x, a), (y, b)))
            out = bd.add(bd.dot(x, y), z)
            return bd.tanh(out) if Target.named(machine).fma else bd.mul(out, out)

        shapes = ((m, k) if a == "r" else (k, m), (k, n) if b == "r" else (n, k), (m, n))
        name = f"p{a}{b}{np.dtype(dtype).itemsize}"
        made[name] = standard(vjp_func(build("p", [TensorType(s, as_dtype(dtype)) for s in shapes], product), [True] * 3))
        grid = list(itertools.product(SIZES, repeat=3))
        for at in rng.permutation(len(grid))[part::4][:40 if part else 8]:
            env = dict(zip("mnk", grid[at]))
            calls.append(Call(name, [(0.3 * rng.normal(size=t.substitute(env).shape)).astype(dtype) for t in made[name].arg_types]))
    for dtype in (np.float32, np.float64):
        name = f"b{np.dtype(dtype).itemsize}"
        made[name] = standard(vjp_func(build("b", [TensorType(s, as_dtype(dtype)) for s in ((batch, m, k), (batch, k, n))], lambda bd, x, y: bd.dot(x, y)), [True] * 2))
        for env in ({"b": 3, "m": 9, "n": 17, "k": 10}, {"b": 0, "m": 2, "n": 3, "k": 4}, {"b": 2, "m": 1, "n": 33, "k": 5}, {"b": 2, "m": 130, "n": 70, "k": 257}):
            calls.append(Call(name, [(0.3 * rng.normal(size=t.substitute(env).shape)).astype(dtype) for t in made[name].arg_types]))
    check(machine, made, calls, tmp_path)


TURNS = {"last": (0, 2, 3, 1), "first": (0, 3, 1, 2), "matrix": (1, 0)}


@on_machines
@parts(2)
def test_changes_of_layout_everywhere(machine: str, part: int, tmp_path: Path) -> None:
    """Elements of every size, numbers of channels about those that have code of their own and those that fill a vector, alone and with something fused."""
    made: dict[str, Func] = {}
    calls, rng = [], np.random.default_rng(0)
    for i, (dtype, (key, perm)) in enumerate(itertools.product((np.float64, np.float32, np.int16, np.uint8), TURNS.items())):
        kind = TensorType(tuple(dims.symbol(s) for s in "nchw"[:len(perm)]), as_dtype(dtype))
        for fused in (False, True):
            if (i + fused + MACHINES.index(machine)) % 2 != part:
                continue
            name = f"{key}{kind.dtype.name}{fused:d}"
            made[name] = standard(build("turn", [kind], lambda b, x, perm=perm, fused=fused: b.permute(b.add(x, x) if fused else x, perm=perm)))
            for c, (h, w) in itertools.product((1, 2, 3, 4, 5, 16), ((1, 1), (5, 7), (0, 3), (3, 17))):
                for shape in {"last": [(2, c, h, w)], "first": [(2, h, w, c)], "matrix": [(c, h * w), (h * w, c)]}[key]:
                    calls.append(Call(name, [rng.integers(0, 100, shape).astype(dtype)]))
    check(machine, made, calls, tmp_path)


SMOOTH = ("exp", "log", "sin", "cos", "tanh", "sigmoid", "log1p", "expm1", "erf", "sqrt")


@on_machines
def test_vector_math_everywhere(machine: str, tmp_path: Path) -> None:
    """Values and derivatives of functions of one number, and a softmax, of sizes that leave partial vectors."""
    if not Target.named(machine).fma:
        pytest.skip("vector functions are made of fused multiply-adds; libraries for machines without them are refused")
    made: dict[str, Func] = {}
    calls, rng, n = [], np.random.default_rng(0), dims.symbol("n")
    for dtype, name in itertools.product((np.float32, np.float64), SMOOTH):
        key = f"{name}{np.dtype(dtype).itemsize}"
        made[key] = standard(vjp_func(build(name, [TensorType((n,), as_dtype(dtype))], lambda b, x, name=name: b.emit(name, [x], {})), [True]))
        for size in (0, 1, 7, 37):
            x = rng.uniform(0.1, 3, size) if name in ("log", "sqrt") else rng.normal(size=size)
            calls.append(Call(key, [x.astype(dtype), rng.normal(size=size).astype(dtype)]))
    for dtype in (np.float32, np.float64):
        def softmax(b: Any, x: Any) -> Any:
            shift = b.sub(x, b.broadcast(b.amax(x, dims=(1,)), shape=x.type.shape, dims=(0,)))
            e = b.exp(shift)
            return b.div(e, b.broadcast(b.sum(e, dims=(1,)), shape=x.type.shape, dims=(0,)))

        key = f"softmax{np.dtype(dtype).itemsize}"
        made[key] = standard(vjp_func(build("softmax", [TensorType((n, dims.symbol("m")), as_dtype(dtype))], softmax), [True]))
        calls += [Call(key, [rng.normal(size=s).astype(dtype) for _ in range(2)]) for s in ((1, 1), (5, 33), (19, 4))]
    check(machine, made, calls, tmp_path)
