"""The verifier: every rule is broken once, by hand, and named; what the builder, the derivatives and the passes make is accepted. Pipelines."""

from __future__ import annotations

import dataclasses
import types as pytypes
from dataclasses import dataclass

import numpy as np
import pytest
import sweep
from optable import active, func_of, ids, rows

from aotgrad.ir import Block, Builder, Func, Layout, Loc, Op, Value, build, dims, passes, tensor_type, walk
from aotgrad.ir.attributes import Raw
from aotgrad.ir.interp import run
from aotgrad.ir.passes import all_passes, parse_pipeline, pipeline_text, run_pipeline
from aotgrad.ir.transforms.differentiate import jvp_func, vjp_func
from aotgrad.ir.verifier import VerifyError, verify
from aotgrad_runtime import dtypes
from aotgrad_runtime.errors import AotgradError, AotgradValueError

N = dims.symbol("n")
T = tensor_type(["n"])
S = tensor_type([])


def two_ops():
    """exp, then mul, with a source line on each."""
    def body(b, x):
        b.loc = Loc("model.py", 3)
        y = b.exp(x)
        b.loc = Loc(__file__, 1)
        return b.mul(y, x)

    return build("f", [T], body)


def scan_func():
    body = Block([S, S])
    body.outputs = [Builder(body).add(*body.args)]
    return build("s", [S, T], lambda b, c, xs: b.emit("scan", [c, xs], {"consts": 0, "carry": 1, "length": N}, [body]))


def cond_func():
    one, two = Block([T]), Block([T])
    one.outputs, two.outputs = [Builder(one).exp(one.args[0])], [two.args[0]]
    return build("c", [tensor_type([], "bool"), T], lambda b, p, x: b.emit("cond", [p, x], {}, [one, two]))


def broken(func, message, **kw):
    with pytest.raises(VerifyError) as caught:
        verify(func, **kw)
    assert message in str(caught.value), str(caught.value)
    return caught.value


# ---- what is right ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("row", sweep.part(rows()), ids=ids)
def test_every_op_and_its_derivatives_verify(row):
    f, arrays = func_of(*row)
    verify(f)
    on = active(arrays)
    if any(on) and any(t.dtype.is_differentiable for t in f.out_types):
        for g in (jvp_func(f, on), vjp_func(f, on)):
            verify(g)
            verify(run_pipeline(g, parse_pipeline("decompose,simplify,cse,dce")))


@pytest.mark.parametrize("make", [two_ops, scan_func, cond_func])
def test_control_flow_verifies(make):
    verify(make())


def test_a_region_shared_by_two_ops_is_fine():
    f = scan_func()
    b = Builder(f.body)
    op = f.body.ops[0]
    f.body.outputs = list(b.append_copy(op, [op.result, op.operands[1]]))
    verify(f)


# ---- SSA ----------------------------------------------------------------------------------------------------------------------

def test_use_before_definition():
    f = two_ops()
    f.body.ops.reverse()
    error = broken(f, "ag.mul in function 'f': its operands: value 0 (!ag.tensor<[n], f64>) is used before ag.exp defines it")
    assert error.op is f.body.ops[0]


def test_source_line_comes_first():
    f = two_ops()
    f.body.ops[0].operands = [Value(T)]
    assert str(broken(f, "is an argument of another region or function")).startswith("model.py:3: ag.exp in function 'f': ")
    f = two_ops()
    f.body.ops[1].attrs["x"] = 1
    assert str(broken(f, "no attribute 'x'")).startswith(f'{__file__}:1: """The verifier: every rule')


def test_value_of_another_function():
    f, g = two_ops(), two_ops()
    f.body.outputs = [g.body.ops[0].result]
    broken(f, "function 'f': the outputs: value 0 (!ag.tensor<[n], f64>) is defined by ag.exp in another region or function; regions are isolated")


def test_region_captures():
    f = scan_func()
    body = f.body.ops[0].regions[0]
    body.ops[0].operands[1] = f.args[0]
    broken(f, "ag.add in function 's': its operands: value 1 (!ag.tensor<[], f64>) is an argument of another region or function; "
              "regions are isolated, pass it as an operand")
    f = scan_func()
    f.body.ops[0].regions[0].outputs = [f.args[0]]
    broken(f, "ag.scan in function 's': the outputs of its region: value 0")


def test_value_of_a_region_used_outside():
    f = scan_func()
    f.body.outputs = [f.body.ops[0].regions[0].ops[0].result]
    broken(f, "is defined by ag.add in another region or function")


def test_same_op_twice():
    f = two_ops()
    f.body.ops.append(f.body.ops[0])
    broken(f, "ag.exp in function 'f': the op stands twice in the program")


def test_results_that_do_not_point_back():
    f = two_ops()
    f.body.ops[0].results = (Value(T, f.body.ops[1], 0),)
    broken(f, "result 0 does not point back at the op")
    f = two_ops()
    f.body.args[0].index = 4
    broken(f, "argument 0 is not a fresh argument")
    f = two_ops()
    f.body.args.append(f.body.args[0])
    broken(f, "argument 1 is not a fresh argument")


# ---- types and attributes -------------------------------------------------------------------------------------------------------

def with_result(t):
    f = two_ops()
    f.body.ops[0].results[0].type = t
    return f


@pytest.mark.parametrize(("func", "message"), [
    (lambda: with_result(tensor_type(["n"], "float32")), "result 0 has type !ag.tensor<[n], f32>, its rule gives !ag.tensor<[n], f64>"),
    (lambda: with_result("f64"), "result 0: 'f64' is not a tensor type"), (lambda: with_result(None), "None is not a tensor type"),
    (lambda: with_result(tensor_type([-1])), "size -1 of !ag.tensor<[-1], f64> is negative"),
        (lambda: with_result(tensor_type([True])), "size True is neither an int nor a Dim"),
    (lambda: with_result(tensor_type([2.0])), "size 2.0 is neither"),
    (lambda: with_result(dataclasses.replace(T, dtype=np.dtype("f8"))), "is not an aotgrad dtype"),
        (lambda: with_result(tensor_type(["k"])), "size 'k' (in k) is bound by no argument"),
    (lambda: with_result(tensor_type(["n"], layout=Layout((1, 0)))), "layout order [1, 0] is not an order of the 1 dims"),
])
def test_wrong_types(func, message):
    broken(func(), message)


def with_op(name, types, attrs, operands=1, regions=()):
    block = Block([T])
    block.ops = [Op(name, block.args * operands, types, attrs, regions)]
    return Func("f", block)


def test_numbers_that_no_machine_has_are_errors_where_they_are_computed():
    func = build("f", [T], lambda b, x: b.size(dim=N + ((1 << 63) - 1)))
    verify(func)
    with pytest.raises(AotgradValueError, match="ag.size"):
        run(func, np.ones(3))


@pytest.mark.parametrize(("func", "message"), [
    (lambda: with_op("nope", [T], {}), "unknown op"), (lambda: with_op("mul", [T], {}), "takes 2 operands (x, y), not 1"),
        (lambda: with_op("exp", [T], {"k": 1}), "no attribute 'k'"),
    (lambda: with_op("cumsum", [T], {"dim": 0, "exclusive": False}), "attribute 'reverse' is missing (its default is False)"),
    (lambda: with_op("sum", [S], {}), "needs attribute 'dims'"), (lambda: with_op("sum", [S], {"dims": [0]}), "attribute 'dims': [0] is not a plain value"),
    (lambda: with_op("sum", [S], {"dims": (print,)}), "is not a plain value"), (lambda: with_op("sum", [S], {"dims": Raw("x")}), "is not a plain value"),
    (lambda: with_op("sum", [S], {"dims": 0}), "its attributes do not fit"), (lambda: with_op("sum", [S, S], {"dims": (0,)}), "it has 2 result(s), its rule gives 1"),
    (lambda: with_op("exp", [T], {}, regions=[Block()]), "it has 1 region(s), 0 are needed"),
        (lambda: with_op("scan", [T], {"consts": 1, "carry": 0, "length": N, "reverse": False}), "it has 0 region(s), 1 are needed"),
    (lambda: with_op("broadcast", [T], {"shape": (dims.symbol("k"),), "dims": (0,)}), "attribute 'shape': size 'k' (in k) is bound by no argument"),
    (lambda: with_op("cast", [T], {"dtype": "float64"}), "its attributes give no type: dtype 'float64' is not an aotgrad dtype"),
    (lambda: with_op("arith.addf", [T], {}), "unknown op"),
    (lambda: with_op("full", [S], {"shape": (), "value": 1 << 62, "dtype": dtypes.int16}, operands=0), "int16 does not hold 4611686018427387904"),
    (lambda: with_op("full", [S], {"shape": (), "value": float("nan"), "dtype": dtypes.int64}, operands=0), "int64 does not hold nan"),
    (lambda: with_op("full", [S], {"shape": (), "value": "a", "dtype": dtypes.float64}, operands=0), "value 'a' is no number"),
    (lambda: with_op("full", [S], {"shape": (), "value": 1 << 63, "dtype": dtypes.float64}, operands=0), "attribute 'value': 9223372036854775808 is beyond 64 bits"),
    (lambda: with_op("slice", [T], {"starts": ('a"b.py',), "sizes": (N,), "steps": (1,)}), "attribute 'starts': 'a\"b.py' is neither an int nor a Dim"),
    (lambda: with_op("slice", [T], {"starts": (0,), "sizes": (N,), "steps": (1 << 70,)}), "is beyond 64 bits"),
    (lambda: with_op("size", [S], {"dim": 1.5}, operands=0), "attribute 'dim': 1.5 is neither an int nor a Dim"),
])
def test_wrong_ops(func, message):
    broken(func(), message)


def test_layout_of_a_row_major_op():
    t = tensor_type([2, 3], layout=Layout((1, 0)))
    block = Block([t])
    block.ops = [Op("cumsum", block.args, [t], {"dim": 0, "exclusive": False, "reverse": False})]
    broken(Func("f", block), "operand 0 has type !ag.tensor<[2, 3], f64, order = [1, 0]>; the op takes row-major operands")


def test_cond_arguments():
    f = cond_func()
    other = f.body.ops[0].regions[1]
    other.outputs = [Builder(other).sum(other.args[0], dims=(0,))]
    broken(f, "cond: one branch gives")
    f = cond_func()
    f.body.ops[0].regions[1].add_arg(S)
    broken(f, "region 1 takes ['!ag.tensor<[n], f64>', '!ag.tensor<[], f64>'], the operands after the predicate are ['!ag.tensor<[n], f64>']")


def test_scan_types():
    f = scan_func()
    f.body.ops[0].attrs["length"] = N + 1
    broken(f, "needs a leading dim of size n + 1")


def test_sizes_bound_elsewhere():
    f = with_op("full", [tensor_type(["k"])], {"shape": (dims.symbol("k"),), "value": 0, "dtype": dtypes.float64}, operands=0)
    broken(f, "size 'k'")
    verify(f, sizes=["k"])
    f.attrs["sizes"] = ("k",)
    verify(f)


def test_guards_name_bound_sizes_only():
    f = two_ops()
    f.attrs["guards"] = ((N, dims.symbol("m"), "x and y must have one length"),)
    broken(f, "function 'f': the function's attributes: size 'm' (in m) is bound by no argument")
    f.attrs["guards"] = ((N, 4, "x must have length 4"),)
    verify(f)


def test_unknown_level():
    with pytest.raises(AotgradValueError, match="'tensor' or 'kernel'"):
        verify(two_ops(), level="llvm")


# ---- kernel level -----------------------------------------------------------------------------------------------------------------

def loop():
    """for i in 0..n: store(load(i) * c)."""
    block = Block(["memref<?xf64>", "index"])
    zero, one = (Op("arith.constant", (), ("index",), {"value": v}) for v in (0, 1))
    c = Op("arith.constant", (), ("f64",), {"value": 2.0})
    body = Block(["index"])
    load = Op("memref.load", [block.args[0], body.args[0]], ["f64"])
    mul = Op("arith.mulf", [load.result, c.result], ["f64"])
    body.ops = [load, mul, Op("memref.store", [mul.result, block.args[0], body.args[0]], [])]
    block.ops = [zero, one, c, Op("scf.for", [zero.result, block.args[1], one.result], [], {}, [body])]
    return Func("k", block)


def test_kernel_regions_see_what_is_around_them():
    verify(loop(), "kernel")


def test_kernel_value_of_a_region_does_not_leave_it():
    f = loop()
    f.body.outputs = [f.body.ops[3].regions[0].ops[1].result]
    broken(f, "the outputs: value 0 (f64) is defined by arith.mulf in another region or function", level="kernel")
    f = loop()
    inner = f.body.ops[3].regions[0].ops[0].result
    f.body.ops.append(Op("arith.negf", [inner], ["f64"], loc=Loc("m.py", 9)))
    assert str(broken(f, "is defined by memref.load", level="kernel")).startswith("m.py:9: arith.negf in function 'k'")


def test_kernel_sibling_regions_are_apart():
    cond = Op("arith.constant", (), ("i1",), {"value": True})
    one, two = Block(), Block()
    made = Op("arith.constant", (), ("f64",), {"value": 1.0})
    one.ops, one.outputs, two.outputs = [made], [made.result], [made.result]
    block = Block()
    block.ops = [cond, Op("scf.if", [cond.result], ["f64"], {}, [one, two])]
    broken(Func("k", block), "scf.if in function 'k': the outputs of its region: value 0 (f64) is defined by arith.constant", level="kernel")
    two.ops = [Op("arith.constant", (), ("f64",), {"value": 2.0})]
    two.outputs = [two.ops[0].result]
    verify(Func("k", block), "kernel")


def test_kernel_spec_is_asked_of_every_op():
    seen = []

    def spec(op):
        seen.append(op.name)
        return "operand types differ" if op.name == "arith.mulf" else None

    error = broken(loop(), "arith.mulf in function 'k': operand types differ", level="kernel", spec=spec)
    assert error.op.name == "arith.mulf" and seen == ["arith.constant"] * 3 + ["scf.for", "memref.load", "arith.mulf"]


def test_kernel_level_refuses_tensor_ops_and_types():
    broken(two_ops(), "is not the text of an MLIR type", level="kernel")
    f = loop()
    f.body.ops.append(Op("exp", [f.body.ops[2].result], ["f64"]))
    broken(f, "a tensor-level op stands at kernel level", level="kernel")
    broken(loop(), "is not a tensor type")


# ---- size of programs -----------------------------------------------------------------------------------------------------------------

def test_deeply_shared_regions_are_looked_at_once():
    """Thirty levels, each region used twice by the next: 2**30 visits without sharing."""
    block = Block([S])
    block.outputs = [Builder(block).neg(block.args[0])]
    for _ in range(30):
        outer = Block([S])
        b = Builder(outer)
        flag = b.gt(outer.args[0], b.scalar(0.0, S.dtype))
        outer.outputs = list(b.emit("cond", [flag, outer.args[0]], {}, [block, block]))
        block = outer
    verify(Func("f", block))


# ---- pipelines ------------------------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Tune:
    """A pass with options, for the tests."""

    name: str = "tune"
    size: int = 8
    rate: float = 0.5
    on: bool = False
    label: str = "x"
    limit: int | None = None

    def __call__(self, func):
        return func


@dataclass(frozen=True)
class Spoil:
    """A pass that breaks the function."""

    name: str = "spoil"

    def __call__(self, func):
        func.body.ops.reverse()
        return func


@dataclass(frozen=True)
class Refuse:
    name: str = "refuse"

    def __call__(self, func):
        raise AotgradValueError("no")


@pytest.fixture
def with_test_passes(monkeypatch):
    known = {**all_passes(), "tune": Tune, "spoil": Spoil, "refuse": Refuse}
    monkeypatch.setattr(passes, "all_passes", lambda: pytypes.MappingProxyType(known))


def test_all_passes_are_frozen_dataclasses_with_a_name():
    found = all_passes()
    assert {"dce", "cse", "decompose", "simplify"} <= set(found) and list(found) == sorted(found)
    for name, cls in found.items():
        assert cls().name == name and cls.__doc__
        with pytest.raises(dataclasses.FrozenInstanceError):
            cls().name = "other"


def test_options(with_test_passes):
    assert parse_pipeline("") == [] and parse_pipeline("  ") == []
    text = 'tune{size=4 rate=1e-3, on=true label="a b" limit=7},dce, tune{limit=none}'
    got = parse_pipeline(text)
    assert got == [Tune(size=4, rate=1e-3, on=True, label="a b", limit=7), all_passes()["dce"](), Tune()]
    assert parse_pipeline(pipeline_text(got)) == got and pipeline_text(parse_pipeline("cse,dce")) == "cse,dce"
    assert type(parse_pipeline("tune{rate=1}")[0].rate) is float


@pytest.mark.parametrize(("text", "message"), [
    ("tuen", "did you mean 'tune'"), ("tune{sise=4}", "no option 'sise'; it takes size, rate, on, label, limit"),
    ("tune{size=four}", "option 'size' of pass 'tune' must be int, not 'four'"),
    ("tune{on=1}", "must be bool"), ("tune{size}", "not understood at 'size'"), ("dce{x=1}", "it takes none"), ("dce,,cse", "not understood"),
    ("dce cse", "not understood"), ("dce,", "not understood"),
    ("tune{size=4", "not understood"), ("tune{limit=x}", "must be int or NoneType"),
])
def test_bad_pipelines(with_test_passes, text, message):
    with pytest.raises(AotgradValueError, match=message.replace("(", r"\(")):
        parse_pipeline(text)


def test_callback_and_result():
    f = build("f", [T], lambda b, x: [b.exp(x), b.mul(x, x), b.mul(x, x)][1:])
    counts = []
    out = run_pipeline(f, parse_pipeline("dce,cse,dce"), lambda step: counts.append((step.passed.name, sum(1 for _ in walk(step.func.body)))))
    assert counts == [("dce", 2), ("cse", 1), ("dce", 1)] and out.outputs[0] is out.outputs[1]


def test_verification_between_passes(with_test_passes, monkeypatch):
    monkeypatch.delenv("AOTGRAD_VERIFY", raising=False)
    run_pipeline(two_ops(), parse_pipeline("spoil"))
    monkeypatch.setenv("AOTGRAD_VERIFY", "1")
    with pytest.raises(VerifyError, match=r"(?s)after pass 'spoil' \(number 1\): .*ag.mul in function 'f'.*used before") as caught:
        run_pipeline(two_ops(), parse_pipeline("dce,spoil"))
    assert caught.value.op.name == "mul"
    bad = two_ops()
    bad.body.ops.reverse()
    with pytest.raises(VerifyError, match="used before"):
        run_pipeline(bad, [])


def test_a_failing_pass_is_named(with_test_passes):
    with pytest.raises(AotgradError, match="pass 'refuse': no"):
        run_pipeline(two_ops(), parse_pipeline("refuse"))
