"""Faults planted on purpose: each must turn the rows of the table red that would meet it, and those rows are green without it.

A fault replaces a registry entry or one function of a transform or of code generation, for the time of one check, in this process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import native_table
import numpy as np
import optable
import oracles
import pytest
import sweep
import test_control
import test_conv_kernels
import test_pooling
import test_winograd
from lowering_harness import Program

from aotgrad.codegen import lower, lowering_conv, lowering_window
from aotgrad.codegen.conv import taps, winograd
from aotgrad.codegen.gemm.emit import Fn
from aotgrad.codegen.kernel import ScalarBuilder
from aotgrad.codegen.kernel_core import KernelBuilder
from aotgrad.ir import TensorType, interp, opdef
from aotgrad.ir.transforms import control, differentiate
from aotgrad_runtime.dtypes import as_dtype
from aotgrad_runtime.errors import AotgradError

Check = Callable[[], Any]


# ---- checks: rows of the table ------------------------------------------------------------------------------------------------------

def derivatives(*names: str) -> Check:
    """Both modes and second order against differences and each other; types of cotangents."""

    def check() -> None:
        for name in names:
            oracles.check_types(name)
            for op, sample in optable.rows():
                if op.name == name:
                    optable.check_derivatives(*optable.func_of(op, sample), np.random.default_rng(0))

    return check


def exact_derivatives(name: str) -> Check:
    return lambda: oracles.check_complex_step(name)


def value(name: str) -> Check:
    return lambda: oracles.check_value(name)


def native(name: str, dtype: Any = np.float64) -> Check:
    return lambda: native_table.check_op(name, dtype, ("value", "vjp", "jvp"))


def layouts(name: str) -> Check:
    return lambda: native_table.check_layouts(name)


def kink(name: str) -> Check:
    return lambda: oracles.check_kink(next(k for k in oracles.KINKS if k.name == name))


def compiled_kink(name: str) -> Check:
    return lambda: oracles.check_kink(next(k for k in oracles.KINKS if k.name == name), native_table.run_compiled)


def conv_kernels() -> None:
    test_conv_kernels.check_all([test_conv_kernels.spec(kind, channels=5, padding=((1, 1), (1, 1))) for kind in ("forward", "input_grad")], "native")


def conv_tiles() -> None:
    spec = test_conv_kernels.spec
    test_conv_kernels.check_all([spec(kind, channels=40, filters=24, spatial=(12, 13), padding=((1, 1), (1, 1))) for kind in ("forward", "input_grad")], "native")


def conv_infinity() -> None:
    s = test_conv_kernels.spec(channels=24, filters=40, spatial=(12, 13), padding=((1, 1), (1, 1)))
    x = np.full((2, 24, 12, 13), np.inf)
    assert np.isposinf(test_winograd.run(test_conv_kernels.build([s], "native")[0], s, x, np.ones((40, 24, 3, 3)))).all()


def conv_loops() -> None:
    op, sample = next((op, s) for op, s in optable.rows() if op.name == "conv")
    func, args = optable.func_of(op, sample)
    np.testing.assert_allclose(Program(func)(*args), interp.run(func, *args)[0], rtol=1e-12)


def long_rows() -> None:
    test_pooling.test_long_rows_of_known_sizes(np.float32)


def scan() -> None:
    rng = np.random.default_rng(1)
    func = test_control.scan_func(False, 4)
    optable.check_derivatives(func, [rng.normal(size=3), rng.normal(size=3), rng.normal(size=(4, 3))], rng)


# ---- faults -------------------------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Fault:
    """``plant(monkeypatch)`` makes the fault; ``red`` are the checks that must find it."""

    name: str
    plant: Callable[[pytest.MonkeyPatch], None]
    red: tuple[Check, ...]


def derivative(name: str, **parts: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """Replaces parts of an op's derivative rule."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        op = opdef.get(name)
        patch.setitem(opdef._REGISTRY, name, dataclasses.replace(op, derivative=dataclasses.replace(op.derivative, **parts)))  # type: ignore[type-var]

    return plant


def entry(name: str, **parts: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """Replaces parts of an op."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setitem(opdef._REGISTRY, name, dataclasses.replace(opdef.get(name), **parts))

    return plant


def partial(name: str, *fns: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return derivative(name, fns=fns)


def transpose(name: str, fn: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return derivative(name, transpose=fn)


def body(name: str, change: Callable[..., Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """``change(the true body, b, *operands, **attrs)``."""
    true = opdef.get(name).derivative
    assert isinstance(true, opdef.Composite)
    return derivative(name, body=lambda b, *xs, **attrs: change(true.body, b, *xs, **attrs))


def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """``make(the true function)`` in its place."""
    return lambda patch: patch.setattr(owner, name, make(getattr(owner, name)))


def _broadcast_without_sum(b: Any, ct: Any, op: Any) -> dict[int, Any]:
    x, shape, placed = op.operands[0], op.attrs["shape"], op.attrs["dims"]
    sizes = tuple(1 if d not in placed or x.shape[placed.index(d)] == 1 else n for d, n in enumerate(shape))
    first = b.slice(ct, starts=(0,) * len(shape), sizes=tuple(min(s, n) for s, n in zip(sizes, shape)), steps=(1,) * len(shape))
    return {0: b.to_shape(first, x.shape)} if 0 not in shape else {0: b.zeros(x)}


def _slice_without_stride(b: Any, ct: Any, op: Any) -> dict[int, Any]:
    steps = tuple(1 if s > 0 else -1 for s in op.attrs["steps"])
    return {0: b.insert_add(b.zeros(op.operands[0]), ct, starts=op.attrs["starts"], steps=steps)}


def _same_direction(true: Any) -> Any:
    def transposed(b: Any, cts: Any, op: Any) -> Any:
        op.attrs = {**op.attrs, "reverse": not op.attrs["reverse"]}
        return true(b, cts, op)

    return transposed


def _shifted_residual(true: Any) -> Any:
    """Each step reads the residual of the step before it."""

    def transposed(b: Any, cts: Any, op: Any) -> Any:
        first = op.attrs["consts"] + op.attrs["carry"]
        for i in range(first, len(op.operands)):
            x = op.operands[i]
            if not op.linear[i] and len(x.type.shape) > 1:
                op.operands[i] = _rolled(b, x)
        return true(b, cts, op)

    return transposed


def _rolled(b: Any, x: Any) -> Any:
    n, rest = x.type.shape[0], x.type.shape[1:]
    if n == 0:
        return x
    parts = [b.slice(x, starts=(start, *(0 for _ in rest)), sizes=(size, *rest), steps=(1,) * (1 + len(rest))) for start, size in ((n - 1, 1), (0, n - 1))]
    return b.concatenate(*parts, dim=0)


def _scan_transpose(make: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return derivative("scan", transpose=make(control.transpose_scan))


def _plain_direction(b: Any, ins: Any, outs: Any, a: Any, active: Any) -> Any:
    direction = b.div(ins[0], b.keep_dims(outs[0], ins[0], a["dims"]))
    return lambda lb, tangents: (lb.sum(lb.mul(direction, tangents[0]), dims=a["dims"]),)


def _plain_partials(true: Any) -> Any:
    def partials(pb: Any, lb: Any, rule: Any, ins: Any, out: Any, tangents: Any) -> Any:
        return differentiate._sum(lb, [lb.mul(fn(pb, ins, out), t) for fn, t in zip(rule.fns, tangents) if t is not None and fn is not None])

    return partials


def _no_ties(true: Any) -> Any:
    def linearize(b: Any, ins: Any, outs: Any, attrs: Any, active: Any) -> Any:
        x, over = ins[0], attrs["dims"]
        share = b.to_dtype(b.eq(x, b.keep_dims(outs[0], x, over)), x.type.dtype)
        return lambda lb, tangents: (lb.sum(lb.lmul(share, tangents[0]), dims=over),)

    return linearize


def _prod_by_division(b: Any, ins: Any, outs: Any, attrs: Any, active: Any) -> Any:
    x, over = ins[0], attrs["dims"]
    share = b.div(b.keep_dims(outs[0], x, over), x)
    return lambda lb, tangents: (lb.sum(lb.lmul(share, tangents[0]), dims=over),)


def _half_bilinear(true: Any) -> Any:
    return lambda lb, rule, op, ins, tangents: true(lb, rule, op, ins, [tangents[0], None if tangents[0] is not None else tangents[1]])


def _short_mask(true: Any) -> Any:
    return lambda self, count, lanes: true(self, self.sub(count, 1), lanes)


def _view_steps(true: Any) -> Any:
    def view(op: Any) -> Any:
        found = true(op)
        return opdef.ViewMap(found.offsets, tuple(tuple((j, 1 if isinstance(s, int) and s > 0 else s) for j, s in row) for row in found.steps))

    return view


def _row_major(true: Any) -> Any:
    return lambda store, t: true(store, TensorType(t.shape, t.dtype))


def _identity(true: Any) -> Any:
    return lambda self, kind, dtype: 0 if kind == "mul" else true(self, kind, dtype)


def _float32_only(b: Any, ins: Any, out: Any) -> Any:
    return b.cast(b.cast(b.cos(ins[0]), dtype=as_dtype("float32")), dtype=ins[0].type.dtype)


def _swapped(b: Any, x: Any) -> Any:
    rank = len(x.type.shape)
    return b.permute(x, perm=(*range(rank - 2), rank - 1, rank - 2))


def _take_first_dim(b: Any, ct: Any, op: Any) -> dict[int, Any]:
    x, dim = op.operands[0], op.attrs["dim"]
    rank = len(op.operands[1].type.shape)
    order = (*range(dim, dim + rank), *range(dim), *range(dim + rank, len(ct.type.shape)))
    moved = b.to_perm(ct, order)  # the indexed dims in front, where dim 0 expects them
    if moved.type.shape[rank:] != x.shape[1:]:
        return {0: b.zeros(x)}
    return {0: b.scatter_add(b.zeros(x), op.operands[1], moved, dim=0)}


def _padding_turned(b: Any, ct: Any, x: Any, op: Any) -> Any:
    """Padding of the other side in the gradient of a convolution's weights."""
    turned = {**op.attrs, "padding": tuple(p[::-1] for p in op.attrs["padding"])}
    return CONV.transposes[1](b, ct, x, SimpleNamespace(attrs=turned, operands=op.operands))


def _undivided(b: Any, ct: Any, op: Any) -> dict[int, Any]:
    return {0: b.window_spread(ct, spatial=op.operands[0].shape[2:], **{k: op.attrs[k] for k in ("kernel", "stride", "low", "dilation")})}


def _one_short(true: Any) -> Any:
    def valid(self: Any, t: int) -> tuple[int, int]:
        low, high = true(self, t)
        return low, max(low, high - (self.count > 1 and t == len(self.taps) - 1))

    return valid


def _all_inside(true: Any) -> Any:
    def inside(self: Any, d: int, start: Any, step: int, count: Any) -> Any:
        first, last, by = true(self, d, start, step, count)
        return self.kb.min(self.kb.add(first, 1), last), last, by

    return inside


def _narrow(true: Any) -> Any:
    return lambda f, axis, p: true(f, dataclasses.replace(axis, size=axis.size - 1), p)


def _left_as_it_is(true: Any) -> Any:
    def nothing(name: str, *_: Any) -> str:
        f = Fn(name, [("ptr", "x"), ("ptr", "weights"), ("ptr", "y"), ("i64", "p0"), ("i64", "p1")])
        f.ret()
        f.end()
        return f.text()

    return nothing


CONV: Any = opdef.get("conv").derivative
LINEAR = {name: opdef.get(name).derivative for name in ("where", "insert", "cumsum", "scatter", "add", "sub", "concatenate")}
TRUE: dict[str, Any] = {name: d.transpose for name, d in LINEAR.items()}  # type: ignore[union-attr]
LOWER: dict[str, Any] = {name: opdef.get(name).lower for name in ("slice",)}

FAULTS = [
    # Elementwise partials.
    Fault("a sign flipped", partial("cos", lambda b, ins, out: b.sin(ins[0])), (derivatives("cos"), exact_derivatives("cos"))),
    Fault("sqrt without its half", partial("sqrt", lambda b, ins, out: b.div(b.full_like(out, 1), out)), (derivatives("sqrt"), exact_derivatives("rsqrt"))),
    Fault("a partial of the input where the output is meant", partial("tanh", lambda b, ins, out: b.sub(b.full_like(out, 1), b.mul(ins[0], ins[0]))),
        (derivatives("tanh"),)),
    Fault("partials of two operands exchanged", partial("div", *opdef.get("div").derivative.fns[::-1]), (derivatives("div"),)),  # type: ignore[union-attr]
    Fault("a constant wrong in the tenth digit", partial("log2", lambda b, ins, out: b.div(b.full_like(out, 1.442695041), ins[0])), (exact_derivatives("log2"),)),
    Fault("a partial rounded to float32", partial("sin", _float32_only), (exact_derivatives("sin"),)),
    Fault("stop_gradient in a partial: wrong from second order on", partial("exp", lambda b, ins, out: b.stop_gradient(out)),
        (derivatives("exp"), exact_derivatives("exp"))),
    Fault("ties of maximum not split", partial("maximum", *(lambda b, ins, out, i=i: b.to_dtype(b.ge(ins[i], ins[1 - i]), out.type.dtype) for i in (0, 1))),
        (kink("maximum"),)),
    Fault("0 to the b differentiated by the book", partial("pow", opdef.get("pow").derivative.fns[0], lambda b, ins, out: b.mul(out, b.log(ins[0]))),
        (kink("0 to the b"),)),  # type: ignore[union-attr]
    # Moves and their transposes.
    Fault("un-broadcast lost", transpose("broadcast", _broadcast_without_sum), (derivatives("broadcast"), derivatives("outer"))),
    Fault("dot transposes swapped", derivative("dot", transposes=tuple(opdef.get("dot").derivative.transposes[::-1])), (derivatives("dot"),)),  # type: ignore[union-attr]
    Fault("a dot transpose with its factor not transposed", derivative("dot", transposes=(lambda b, ct, other, op: b.dot(ct, other), lambda b, ct, other,
        op: b.dot(_swapped(b, other), ct))),
          (derivatives("dot"), derivatives("einsum"))),
    Fault("stride dropped in the transpose of slice", transpose("slice", _slice_without_stride), (derivatives("slice"), derivatives("getitem"))),
    Fault("permute not inverted", transpose("permute", lambda b, ct, op: {0: b.to_perm(ct, op.attrs["perm"])}), (derivatives("permute"),)),
    Fault("where transposed to the other side", transpose("where", lambda b, ct, op: dict(zip((2, 1), TRUE["where"](b, ct, op).values()))),
        (derivatives("where"), derivatives("relu"))),
    Fault("insert transposed without zeroing what was overwritten", transpose("insert", lambda b, ct, op: {**TRUE["insert"](b, ct, op), 0: ct}),
        (derivatives("insert"),)),
    Fault("cast transposed without casting back", transpose("cast", lambda b, ct, op: {0: ct}), (derivatives("cast"),)),
    Fault("take transposed along dim 0", transpose("take", _take_first_dim), (derivatives("take"),)),
    Fault("repeated writes all get the cotangent",
          transpose("scatter", lambda b, ct, op: {**TRUE["scatter"](b, ct, op), 2: b.take(ct, op.operands[1], dim=op.attrs["dim"])}),
              (derivatives("scatter"), kink("repeated writes"))),
    Fault("concatenate transposed in reverse order", transpose("concatenate", lambda b, ct, op: TRUE["concatenate"](b, b.neg(ct), op)), (derivatives("concatenate"),)),
    Fault("sub transposed as add", transpose("sub", TRUE["add"]), (derivatives("sub"),)),
    Fault("padding on the other side in the gradient of weights", derivative("conv", transposes=(CONV.transposes[0], _padding_turned)), (derivatives("conv"),)),
    Fault("a mean transposed as a sum", transpose("window_sum", _undivided), (derivatives("window_sum"), derivatives("avg_pool2d"))),
    # Running values, reductions, control flow.
    Fault("cumsum transposed in its own direction",
          transpose("cumsum", lambda b, ct, op: {0: b.cumsum(ct, dim=op.attrs["dim"], exclusive=op.attrs["exclusive"], reverse=op.attrs["reverse"])}),
              (derivatives("cumsum"),)),
    Fault("ties of amax not split", derivative("amax", fn=_no_ties(None)), (kink("amax"),)),
    Fault("prod by division", derivative("prod", fn=_prod_by_division), (kink("one zero in a product"),)),
    Fault("scan transposed in its own direction", _scan_transpose(_same_direction), (scan,)),
    Fault("residuals of a scan shifted by one step", _scan_transpose(_shifted_residual), (scan,)),
    # Transforms.
    Fault("zero does not annihilate", entry("lmul", ref=np.multiply), (kink("masked sqrt"), kink("untaken overflow"))),
    Fault("zero does not annihilate in forward mode", replaced(differentiate, "_partials", _plain_partials), (kink("sqrt"), kink("logsumexp"))),
    Fault("norm without its kink", entry("root_sum_powers", derivative=opdef.Linearize(_plain_direction)), (kink("norm"), kink("std"), compiled_kink("norm"))),
    Fault("the second term of a product rule forgotten", replaced(differentiate, "_bilinear", _half_bilinear), (derivatives("mul"), derivatives("square"))),
    # Bodies of composites: right derivatives of a wrong function.
    Fault("pad on the other side", body("pad", lambda true, b, x, low, high, value: true(b, x, high, low, value)), (value("pad"), value("constant_pad"))),
    Fault("var with the wrong correction", body("var", lambda true, b, x, dims, correction: true(b, x, dims, 1 - correction)), (value("var"),)),
    Fault("softmax along another dim", body("softmax", lambda true, b, x, dim: true(b, x, 0)), (value("softmax"),)),
    Fault("a diagonal one off", body("tril", lambda true, b, x, diagonal: true(b, x, diagonal + 1)), (value("tril"),)),
    # Kernels.
    Fault("a reduction that combines with max", entry("amin", lower=opdef.Reduce("max")), (native("amin"), native("min"))),
    Fault("zero does not annihilate in kernels", entry("lmul", lower=opdef.Scalar(lambda k, op, x, y: k.mul(x, y))),
        (compiled_kink("masked sqrt"), compiled_kink("untaken overflow"))),
    Fault("operands of a kernel exchanged", entry("atan2", lower=opdef.Scalar(lambda k, op, y, x: k.math("atan2", x, y))),
        (native("atan2"), native("atan2", np.float32))),
    Fault("a selection that picks the other", entry("where", lower=opdef.Scalar(lambda k, op, c, x, y: k.select(c, y, x))), (native("where"), native("relu"))),
    Fault("a stride dropped in a view", entry("slice", lower=opdef.View(_view_steps(LOWER["slice"].fn))), (native("slice"),)),
    Fault("the last element left out of a masked rest", replaced(KernelBuilder, "create_mask", _short_mask), (native("tanh"), native("sum"), native("tanh", np.float32))),
    Fault("a product that starts from 0", replaced(ScalarBuilder, "identity", _identity), (native("prod"),)),
    Fault("the first place of every window left out of a convolution", replaced(lowering_conv._Loops, "_inside", _all_inside), (conv_loops,)),
    Fault("a tap that ends a position early", replaced(taps.Axis, "valid", _one_short), (conv_kernels,)),
    *([
        Fault("a tile that leaves out the last row and column of x", replaced(winograd, "inside", _narrow), (conv_tiles,)),
        Fault("a result that is not finite because a sum in between is not", replaced(winograd, "exact_function", _left_as_it_is), (conv_infinity,)),
    ] if test_winograd.NAMES else []),
    Fault("places of windows counted from the first lane's", replaced(lowering_window._Down, "_own", lambda true: lambda self, at: at),
          (long_rows, native("window_argmax"))),
    Fault("windows of neighbouring lanes not told apart", replaced(lowering_window._Up, "_near", lambda true: lambda self, b, c, q, lane, acc: true(
        self, b, c, q, self.kb.add(lane, self.lanes), acc)), (long_rows,)),
    Fault("a layout read as row-major", replaced(lower, "dense", _row_major), (layouts("add"), layouts("sum"), layouts("softmax"))),
]


def turns_red(check: Check) -> bool:
    """Whether a check fails as a test would: by an assertion, or by types that no longer fit."""
    try:
        check()
    except (AssertionError, AotgradError, ValueError):
        return True
    return False


@pytest.mark.parametrize("fault", sweep.part(FAULTS), ids=lambda f: f.name)
def test_fault_turns_the_table_red(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    for check in fault.red:
        check()
    fault.plant(monkeypatch)
    missed = [i for i, check in enumerate(fault.red) if not turns_red(check)]
    monkeypatch.undo()
    assert not missed, f"check {missed} of {fault.name!r} stayed green"


def test_there_are_enough() -> None:
    assert len(FAULTS) >= 20 and len({f.name for f in FAULTS}) == len(FAULTS)


def test_a_second_order_fault_is_green_at_first_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the second order of the table is what finds it."""
    next(f for f in FAULTS if "second order" in f.name).plant(monkeypatch)
    for op, sample in optable.rows():
        if op.name == "exp":
            optable.check_derivatives(*optable.func_of(op, sample), np.random.default_rng(0), order=1)


def test_a_fault_in_the_tenth_digit_is_below_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the complex step is what finds it."""
    next(f for f in FAULTS if "tenth digit" in f.name).plant(monkeypatch)
    derivatives("log2")()
