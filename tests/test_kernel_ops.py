"""Every elementwise op's kernel-level meaning, compiled as scalars and as vectors with a masked tail, against the op's own reference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kernel_tools import call, elementwise, load, run_elementwise, simple_entry

from aotgrad.codegen import kernel, vmath
from aotgrad.ir import Value, opdef, ops, tensor_type
from aotgrad_runtime import dtypes
from aotgrad_runtime.dtypes import as_dtype, bool_, float32, float64, int8, int32, int64, uint8

assert ops  # importing it fills the registry
SPECIAL = np.array([0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 5e-324, 1e308, -2.5, 0.5])
LOWERED = sorted(name for name, d in opdef.all_ops().items() if isinstance(d.lower, opdef.Scalar) and name not in ("cast", "fit", "graft", "hook", "row_index"))
LANES = (1, 8)


def _operands(name: str, dtype: Any, special: bool) -> list[Any]:
    """Flat operands of an op: its first sample's, or all pairs of special values, in ``dtype`` where the sample is float."""
    sample = [np.asarray(x) for x in next(iter(opdef.get(name).samples())).operands]
    if special:
        grid = np.meshgrid(*([SPECIAL] * len(sample)))
        sample = [g if s.dtype == np.float64 else (g > 0).astype(s.dtype) for g, s in zip(grid, sample)]
    with np.errstate(all="ignore"):
        return [np.ascontiguousarray(x.astype(dtype.np) if x.dtype == np.float64 else x).reshape(-1) for x in sample]


def _cases() -> list[tuple[str, Any, bool]]:
    return [(n, d, s) for n in LOWERED for d in (float64, float32) for s in (False, True)]


def _key(name: str, dtype: Any, special: bool, lanes: int) -> str:
    return f"{name}_{dtype.mlir}_{'special' if special else 'sample'}_{lanes}"


@pytest.fixture(scope="module")
def library() -> Any:
    funcs, entries = [], []
    for name, dtype, special in _cases():
        if special:
            continue
        d = opdef.get(name)
        ins = [as_dtype(x.dtype) for x in _operands(name, dtype, False)]
        out = d.type_rule([tensor_type(["n"], i) for i in ins], {})[0].dtype
        op = SimpleNamespace(attrs=d.complete({}), operands=[Value(tensor_type(["n"], i)) for i in ins])
        for lanes in LANES:
            f = elementwise(_key(name, dtype, False, lanes), ins, out, lambda k, *xs, d=d, op=op: d.lower.fn(k, op, *xs), lanes)
            funcs.append(f.func)
            entries.append(simple_entry(f))
    return load(funcs, entries)


@pytest.mark.parametrize(("name", "dtype", "special"), _cases(), ids=str)
def test_lowering_agrees_with_reference(library: Any, name: str, dtype: Any, special: bool) -> None:
    operands = _operands(name, dtype, special)
    with np.errstate(all="ignore"):
        want = np.asarray(opdef.get(name).ref(*operands, **opdef.get(name).complete({})))
    got = [np.full(want.shape, 77, want.dtype) for _ in LANES]
    for lanes, out in zip(LANES, got):
        assert call(library, _key(name, dtype, False, lanes), [*operands, out], [want.size])[0] == 0
    np.testing.assert_array_equal(got[0].view(f"u{want.itemsize}"), got[1].view(f"u{want.itemsize}"), "scalar and vector code differ")
    if opdef.get(name).exact or want.dtype == bool:
        np.testing.assert_array_equal(got[0], want)
        return
    keep = np.isfinite(want) | ~np.isfinite(operands[0])  # a reference in double may overflow at another place than its float32 form
    np.testing.assert_allclose(got[0][keep], want[keep], rtol=4 * np.finfo(want.dtype).eps, atol=np.finfo(want.dtype).tiny * 4)


def test_every_math_function_of_the_ops_exists() -> None:
    assert {"exp", "log1p", "sigmoid", "pow", "atan2", "erfc"} <= vmath.NAMES


INTS = {int32: np.array([0, 1, -1, 2, -2, 3, -7, 7, 100, 2**31 - 1, -2**31], np.int32), uint8: np.array([0, 1, 2, 3, 7, 100, 127, 128, 200, 254, 255], np.uint8),
        int8: np.array([0, 1, -1, 2, -2, 3, -7, 7, 100, 127, -128], np.int8), int64: np.array([0, 1, -1, 2, -2, 3, -7, 7, 2**40, 2**63 - 1, -2**63], np.int64)}
BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.floor_divide, "rem": np.remainder, "min": np.minimum, "max": np.maximum}


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_integers_behave_as_numpy(dtype: Any) -> None:
    x, y = (np.ascontiguousarray(g.reshape(-1)) for g in np.meshgrid(INTS[dtype], INTS[dtype]))
    funcs = {f"{n}_{lanes}": elementwise(f"{n}_{lanes}", [dtype] * 2, dtype, lambda k, a, b, n=n: getattr(k, n)(a, b), lanes) for n in BINARY for lanes in LANES}
    tests = {f"{n}_{lanes}": elementwise(f"{n}_{lanes}", [dtype] * 2, bool_, lambda k, a, b, n=n: k.cmp(n, a, b), lanes) for n in ("lt", "ge", "eq") for lanes in LANES}
    library = load([f.func for f in (*funcs.values(), *tests.values())], [simple_entry(f) for f in (*funcs.values(), *tests.values())])
    for key in (*funcs, *tests):
        name = key.partition("_")[0]
        with np.errstate(all="ignore"):
            want = BINARY[name](x, y) if name in BINARY else {"lt": x < y, "ge": x >= y, "eq": x == y}[name]
        out = np.zeros(x.shape, want.dtype)
        assert call(library, key, [x, y, out], [x.size])[0] == 0
        np.testing.assert_array_equal(out, want, key)


@pytest.mark.parametrize("lanes", LANES)
def test_integer_power_wraps_and_truncates(lanes: int) -> None:
    x = np.array([2, 3, -2, 7, 0, 1, -1, -1, 2, 0, 1, 5, 10], np.int64)
    y = np.array([10, 40, 63, 30, 0, -5, -5, -4, -1, -1, 0, 1, 19], np.int64)
    want = [(pow(int(a), int(b)) if b >= 0 else {1: 1, -1: -1 if b % 2 else 1}.get(int(a), 0)) for a, b in zip(x, y)]
    want = [(w + 2**63) % 2**64 - 2**63 for w in want]
    np.testing.assert_array_equal(run_elementwise([int64, int64], int64, lambda k, a, b: k.pow(a, b), [x, y], lanes), want)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("direction", ["left", "right"])
def test_shifts_are_defined_for_every_count(direction: str, lanes: int) -> None:
    x = np.array([1, -8, 2**31 - 1, -2**31, 5, -1, 1, 1], np.int32)
    y = np.array([3, 1, 1, 31, 32, 40, -1, 0], np.int32)
    want = [{"left": (int(a) << int(b)) if 0 <= b < 32 else 0, "right": int(a) >> (int(b) if 0 <= b < 32 else 31)}[direction] for a, b in zip(x, y)]
    want = [(w + 2**31) % 2**32 - 2**31 for w in want]
    np.testing.assert_array_equal(run_elementwise([int32] * 2, int32, lambda k, a, b: k.shift(direction, a, b), [x, y], lanes), want)


CASTS = [float64, float32, int64, int32, int8, uint8, bool_]
BIG = np.array([0.0, -0.0, 1.9, -1.9, 127.5, -129.0, 300.7, 2.0**31, -2.0**31 - 1, 2.0**40, 2.0**63, -2.0**63, np.inf, -np.inf, np.nan, 1e300])


@pytest.fixture(scope="module")
def casts() -> Any:
    made = [elementwise(f"{a.name}_to_{b.name}_{lanes}", [a], b, lambda k, x, a=a, b=b: k.cast(x, a, b), lanes) for a in CASTS for b in CASTS for lanes in LANES]
    return load([f.func for f in made], [simple_entry(f) for f in made])


@pytest.mark.parametrize("target", CASTS, ids=str)
@pytest.mark.parametrize("source", CASTS, ids=str)
def test_casts(casts: Any, source: Any, target: Any) -> None:
    with np.errstate(all="ignore"):
        x = BIG.astype(source.np) if source.kind == "f" else np.ascontiguousarray(np.resize(INTS.get(source, np.array([True, False])), 13))
    for lanes in LANES:
        out = np.zeros(x.shape, target.np)
        assert call(casts, f"{source.name}_to_{target.name}_{lanes}", [x, out], [x.size])[0] == 0
        np.testing.assert_array_equal(out, _converted(x, source, target))


def _converted(x: Any, source: Any, target: Any) -> Any:
    """NumPy's conversion on x86, spelled out: through int32 or int64, whose minimum stands for all that does not fit."""
    with np.errstate(all="ignore"):
        if source.kind != "f" or target.kind not in "iu":
            return x.astype(target.np)
        wide = np.int64 if target.itemsize == 8 else np.int32
        info = np.iinfo(wide)
        inside = (x > info.min - 1.0) & (x < -float(info.min))
        return np.where(inside, np.where(inside, x, 0), info.min).astype(wide).astype(target.np)


@pytest.mark.parametrize("passes", ["none", "inline", "O2"])
def test_casts_of_constants_are_not_undefined(passes: str) -> None:
    """What LLVM folds has no processor to decide what a value out of range becomes."""
    values = [float("nan"), 1e300, -1e300, 2.0**31, 2.0**63, -3.7]
    f = kernel.function("f", [], [int32, int64], [])
    k = f.kb.scalars()
    for i, v in enumerate(values):
        for dtype, out in zip((int32, int64), f.outputs):
            f.kb.store(k.cast(k.const(v, float64), float64, dtype), out, i)
    f.kb.ret()
    a, b = np.zeros(6, np.int32), np.zeros(6, np.int64)
    assert call(load([f.func], [simple_entry(f)], passes), "f", [a, b], [])[0] == 0
    low, most = -2**31, -2**63
    assert (list(a), list(b)) == ([low] * 5 + [-3], [most, most, most, 2**31, most, -3])


def test_signed_and_unsigned_bytes_do_not_mix() -> None:
    """Their types and constants are spelled alike."""
    f = kernel.function("f", [int8, uint8], [int8, uint8, bool_], ["n"])
    kb, k = f.kb, f.kb.scalars()
    with kb.for_(0, f.sizes["n"]) as loop:
        x, y = (kb.load(m, loop.iv) for m in f.inputs)
        kb.store(k.max(x, k.const(3, x)), f.outputs[0], loop.iv)
        kb.store(k.max(y, k.const(3, y)), f.outputs[1], loop.iv)
        kb.store(k.logical("and", k.cmp("lt", x, k.const(3, x)), k.cmp("gt", y, k.const(3, y))), f.outputs[2], loop.iv)
    kb.ret()
    x = np.arange(-4, 6, dtype=np.int8)
    outs = np.zeros(10, np.int8), np.zeros(10, np.uint8), np.zeros(10, bool)
    assert call(load([f.func], [simple_entry(f)]), "f", [x, x.view(np.uint8), *outs], [10])[0] == 0
    y = x.view(np.uint8)
    for got, want in zip(outs, (np.maximum(x, 3), np.maximum(y, 3), (x < 3) & (y > 3))):
        np.testing.assert_array_equal(got, want)


def test_where_scalars_meet_vectors_they_are_broadcast_once() -> None:
    f = kernel.function("f", [float64, float64], [float64], ["n"])
    kb, k = f.kb, f.kb.scalars(8)
    with kb.for_(0, f.sizes["n"], 8) as loop:
        x = kb.load(f.inputs[0], loop.iv, 8)
        s = kb.load(f.inputs[1], 0)
        a, b = k.mul(x, k.math("exp", s)), k.add(x, k.math("exp", s))
        kb.store(k.sub(a, b), f.outputs[0], loop.iv)
    kb.ret()
    body = [op.name for loop_op in f.func.body.ops for region in loop_op.regions for op in region.ops]
    assert (body.count("math.exp"), body.count("vector.broadcast")) == (1, 1)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-45, 3.4028235e38, float("inf"), float("-inf"), -0.0])
@pytest.mark.parametrize("dtype", [float64, float32], ids=str)
def test_constants_are_exact(value: float, dtype: Any) -> None:
    out = run_elementwise([dtype], dtype, lambda k, x: k.const(value, x), [np.zeros(3, dtype.np)], 8)
    assert out.tobytes() == np.full(3, value, dtype.np).tobytes()


def test_from_index_counts_in_every_dtype() -> None:
    for dtype in (float64, float32, int32, int64, uint8):
        f = kernel.function("f", [], [dtype], ["n"])
        kb = f.kb
        with kb.for_(0, f.sizes["n"], 8) as loop:
            mask = kb.create_mask(kb.sub(f.sizes["n"], loop.iv), 8)
            kb.store(kb.scalars(8).from_index(kb.iota(loop.iv, 8), dtype), f.outputs[0], loop.iv, mask)
        kb.ret()
        out = np.zeros(11, dtype.np)
        assert call(load([f.func], [simple_entry(f)]), "f", [out], [11])[0] == 0
        np.testing.assert_array_equal(out, np.arange(11))


def test_operands_of_different_types_are_an_error() -> None:
    f = kernel.function("f", [float64, float32], [float64], ["n"])
    x, y = (f.kb.load(m, 0) for m in f.inputs)
    with pytest.raises(TypeError, match="differ in element type: f64 and f32"):
        f.kb.scalars().add(x, y)
    with pytest.raises(TypeError, match="cast it first"):
        f.kb.store(y, f.outputs[0], 0)
    with pytest.raises(TypeError, match="cast to a floating-point type"):
        f.kb.scalars().math("exp", f.kb.scalars().const(1, dtypes.int64))
