"""IR text: golden programs that round-trip byte for byte and are executed, faults with their messages, values through text, real mlir-opt."""

from __future__ import annotations

import math
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_programs import CASES
from optable import func_of, ids, rows

from aotgrad.cli import ir_tools
from aotgrad.ir import Block, Builder, Func, Layout, Loc, Op, build, dims, interp, ops, tensor_type, walk
from aotgrad.ir.attributes import Raw
from aotgrad.ir.parser import ParseError, parse_func, parse_module
from aotgrad.ir.printer import print_func, print_module
from aotgrad.ir.transforms.differentiate import vjp_func
from aotgrad.ir.verifier import verify
from aotgrad_runtime import dtypes
from aotgrad_runtime.errors import AotgradError, AotgradValueError

HERE = Path(__file__).parent / "ir"
VALID = sorted(p for p in HERE.glob("*.mlir") if not p.name.endswith("_invalid.mlir"))
INVALID = sorted(HERE.glob("*_invalid.mlir"))
KERNEL = sorted((HERE / "kernel").glob("*.mlir"))
N = dims.symbol("n")
assert ops.__all__  # the registry is filled


def body_of(path):
    """The text below the comment lines."""
    return "".join(line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if not line.startswith("//"))


def same_value(a, b):
    if isinstance(a, float) and isinstance(b, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, complex) and isinstance(b, complex):
        return same_value(a.real, b.real) and same_value(a.imag, b.imag)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same_value, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same_value(v, b[k]) for k, v in a.items())
    return type(a) is type(b) and a == b


def same_func(f, g):
    """Structural equality: names, types, attributes and the graph, op by op."""
    at, ends = {}, []

    def match(xs, ys):
        for x, y in zip(xs, ys):
            at[x] = y
        return len(xs) == len(ys) and all(x.type == y.type for x, y in zip(xs, ys))

    stack = [(f.body, g.body)]
    while stack:
        p, q = stack.pop()
        if not match(p.args, q.args) or len(p.ops) != len(q.ops):
            return False
        for o, r in zip(p.ops, q.ops):
            if (o.name, len(o.regions), o.loc) != (r.name, len(r.regions), r.loc) or not same_value(o.attrs, r.attrs):
                return False
            if [at[x] for x in o.operands] != r.operands or not match(o.results, r.results):
                return False
            stack.extend(zip(o.regions, r.regions))
        ends.append((p, q))
    return all([at[x] for x in p.outputs] == q.outputs for p, q in ends) and f.name == g.name and same_value(f.attrs, g.attrs)


# ---- golden programs ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("path", VALID, ids=lambda p: p.stem)
def test_golden_round_trip(path):
    text = body_of(path)
    funcs = parse_module(text)
    assert print_module(funcs, locs=" loc(" in text) == text
    for f in funcs:
        verify(f)
        assert same_func(f, parse_func(print_func(f, locs=True)))


@pytest.mark.parametrize("path", VALID, ids=lambda p: p.stem)
def test_golden_runs(path):
    inputs, sizes, want = CASES[path.stem]
    for f, expected in zip(parse_module(path.read_text(encoding="utf-8")), want, strict=True):
        got = interp.run(f, *inputs) if sizes is None else interp.run(f, *inputs, sizes=sizes)
        assert len(got) == len(expected)
        for a, b in zip(got, expected):
            b = np.asarray(b)
            assert a.dtype == b.dtype and a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-14, atol=0)
            if a.dtype.kind in "fc":
                assert np.array_equal(np.signbit(a.real), np.signbit(b.real))


def test_every_golden_program_is_executed():
    assert {p.stem for p in VALID} == set(CASES)


@pytest.mark.parametrize("path", INVALID, ids=lambda p: p.stem)
def test_invalid(path):
    text = path.read_text(encoding="utf-8")
    want = text.splitlines()[0].removeprefix("// expect: ")
    with pytest.raises(AotgradError) as caught:
        for f in parse_module(text, path.name):
            verify(f)
    assert want in str(caught.value)
    if isinstance(caught.value, ParseError) and caught.value.line:
        assert f"{path.name}:{caught.value.line}:{caught.value.column}: " in str(caught.value)


def test_each_truncation_is_a_clean_error():
    text = body_of(HERE / "scan_recurrence.mlir")
    for cut in range(1, len(text) - len(") -> ()\n"), 7):
        with pytest.raises(AotgradError):
            parse_module(text[:cut])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_text_never_crashes(data):
    text = body_of(data.draw(st.sampled_from([p for p in VALID if p.stem in ("cond_in_scan", "constants_inline", "slice_negative_step", "locations")])))
    at = data.draw(st.integers(0, len(text) - 1))
    new = data.draw(st.sampled_from(["", "0", "-", "<", ">", '"', "(", "}", ",", " ", "%", "x", "\\", "#", "é", "1" * 30, "\n"]))
    damaged = text[:at] + new + text[at + 1:]
    try:
        funcs = parse_module(damaged)
        for f in funcs:
            verify(f)
    except AotgradError:
        return
    for f in funcs:  # the damage was harmless: what was read still round-trips
        assert print_func(parse_func(print_func(f, locs=True)), locs=True) == print_func(f, locs=True)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_shuffled_tokens_never_crash(data):
    path = HERE / data.draw(st.sampled_from(["cond_in_scan.mlir", "constants_inline.mlir", "pass_through.mlir"]))
    tokens = re.findall(r'"(?:[^"\\]|\\.)*"|[\w.%#!^]+|\s+|.', body_of(path))
    i, j = data.draw(st.integers(0, len(tokens) - 1)), data.draw(st.integers(0, len(tokens) - 1))
    how = data.draw(st.sampled_from(["swap", "delete", "double", "copy"]))
    if how == "swap":
        tokens[i], tokens[j] = tokens[j], tokens[i]
    elif how == "copy":
        tokens[i] = tokens[j]
    else:
        tokens[i:i + 1] = [] if how == "delete" else [tokens[i]] * 2
    try:
        for f in parse_module("".join(tokens)):
            verify(f)
    except AotgradError:
        pass


@pytest.mark.parametrize(("value", "message"), [
    ("1" * 5000 + " : i64", "integer string conversion|4300"), ("#ag.int<x>", "#ag.int|invalid literal"), ("#ag.complex<1.0>", "two numbers"),
    ("#ag.complex<a, b>", "could not convert"),
    ("#ag.dim<n +>", "not understood"), ("#ag.dim<" + "9" * 100 + ">", "not understood"), ("#ag.layout<[1, 1]>", "not an order"), ("#ag.layout<[0 1]>", "."),
    ("#ag.layout<[0], blocks = [[3, 2]]>", "blocks"), ("dense<1.0> : tensor<1000000000000xf64>", "write ag.full"), ("dense<[1.0, x]> : tensor<2xf64>", "'x'"),
    ("dense<[300]> : tensor<1xui8>", "'300'"), ("dense<[[1.0], [2.0, 3.0]]> : tensor<3xf64>", "needs shape"), ('dense<"0x00"> : tensor<1xf64>', "does not hold"),
    ("dense<1.0> : tensor<?xf64>", "static"), ("dense<1.0> : tensor<2xf8>", "f8"), ('"a\\q"', "escape"), ('"\\FF"', "UTF-8"),
    ("[" * 3000 + "]" * 3000, "too deeply"), ("f65", "f65"),
    ("@name", "no meaning at tensor level"), ("3 : i32", "no meaning at tensor level"), ("() -> ()", "no meaning"), ("0x10", "hex"),
    ("0x1FFFFFFFFFFFFFFFF : f64", "more bits"),
    ("array<i64: 1>", "no meaning"), ("#arith.fastmath<none>", "no meaning"),
])
def test_bad_attribute_values(value, message):
    with pytest.raises(AotgradError, match=message):
        parse_func(f'"func.func"() <{{function_type = () -> (), sym_name = "f"}}> ({{\n"func.return"() : () -> ()\n}}) {{v = {value}}} : () -> ()')


def test_text_must_be_text():
    with pytest.raises(TypeError, match="decode bytes"):
        parse_module(b"")


# ---- every op, every sample, its derivative -------------------------------------------------------------------------------------

@pytest.mark.parametrize("row", list(rows()), ids=ids)
def test_every_op_round_trips(row):
    f, _ = func_of(*row)
    text = print_func(f)
    again = parse_func(text)
    assert print_func(again) == text
    assert same_func(f, again)
    verify(again)


def test_a_gradient_round_trips_and_computes_the_same():
    f = parse_func(body_of(HERE / "scan_recurrence.mlir"))
    g = vjp_func(f, [True] * 3)
    text = print_func(g)
    again = parse_func(text)
    assert print_func(again) == text
    inputs = [np.array(0.5), np.array(1.5), np.array([1.0, -2.0, 0.25]), np.array(1.0), np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.25, 0.125])]
    for a, b in zip(interp.run(g, *inputs), interp.run(again, *inputs)):
        assert same_value(a, b)


# ---- attribute values -----------------------------------------------------------------------------------------------------------

SIZE = st.sampled_from([N, N + 1, 3 * N * N - 2, dims.floordiv(N, 2), dims.minimum(N, dims.symbol("m") + 1), dims.mod(N, 3)])
FLOATS = st.floats() | st.integers(0, 2**64 - 1).map(lambda b: struct.unpack("d", struct.pack("Q", b))[0])
SCALAR = st.one_of(st.none(), st.booleans(), st.integers(), st.integers(2**62, 2**66), FLOATS, st.builds(complex, FLOATS, FLOATS), st.text(), SIZE,
                   st.sampled_from(dtypes.ALL), st.sampled_from([Layout((1, 0)), Layout((0, 2, 1), ((1, 16),
                       (2, 4)))]), st.just(tensor_type([N, 2], "int8", Layout((1, 0)))))
VALUE = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text(min_size=1, max_size=5), inner, max_size=3), max_leaves=6)


def carried(value):
    """``value`` as an attribute of a function, through text."""
    f = Func("f", Block(), {"v": value})
    text = print_func(f)
    again = parse_func(text)
    assert print_func(again) == text
    return again.attrs["v"]


@settings(max_examples=300, deadline=None)
@given(VALUE)
def test_attribute_values_round_trip(value):
    assert same_value(carried(value), value)


ARRAYS = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128"]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(ARRAYS), st.lists(st.integers(0, 4), max_size=3), st.randoms(use_true_random=False))
def test_arrays_round_trip_bit_for_bit(name, shape, random):
    dtype = np.dtype(name)
    count = math.prod(shape) * dtype.itemsize
    raw = bytes(random.randrange(256) for _ in range(count))
    x = np.frombuffer(raw, dtype).reshape(shape) if name != "bool" else (np.frombuffer(raw, np.uint8) > 127).reshape(shape)
    assert same_value(carried(x), x)


def test_arrays_of_other_orders_and_bytes():
    x = np.arange(24.0).reshape(4, 6)
    for y in (x.T, x[::-1, ::2], x.astype(">f8"), np.asfortranarray(x)):
        assert same_value(carried(y), np.ascontiguousarray(y, np.float64))


def test_numpy_numbers_print_as_python_numbers():
    assert carried((np.float32(0.5), np.int64(3), np.bool_(True), np.float64(0.1))) == (0.5, 3, True, 0.1)


def test_what_text_cannot_carry_prints_and_is_refused():
    text = print_func(Func("f", Block(), {"hook": print}))
    assert "#ag.opaque<" in text
    with pytest.raises(AotgradValueError, match="build the function in Python"):
        parse_func(text)


@pytest.mark.parametrize("text", ["1.5 : f64", "1.500000e+00 : f64", "1.5", "0x3FF8000000000000 : f64"])
def test_spellings_of_a_float(text):
    assert parse_func(f'"func.func"() <{{function_type = () -> (), sym_name = "f"}}> ({{ "func.return"() : () -> () }}) {{v = {text}}} : () -> ()').attrs == {"v": 1.5}


# ---- form -----------------------------------------------------------------------------------------------------------------------

def test_comments_spaces_modules_and_value_names_do_not_matter():
    text = body_of(HERE / "cond_in_scan.mlir")
    loose = '"builtin.module"() ({ // a module\n' + text.replace("%4", "%a_b.c").replace(", ", " ,\n  ").replace("%0", "%x$1") + "}) : () -> ()"
    assert print_module(parse_module(loose)) == text


def test_defaults_may_be_left_out():
    text = print_func(build("f", [tensor_type([2])], lambda b, x: b.cumsum(x, dim=0)))
    f = parse_func(text.replace(", exclusive = false, reverse = false", ""))
    assert f.body.ops[0].attrs == {"dim": 0, "exclusive": False, "reverse": False} and print_func(f) == text


def test_locations():
    def body(b, x):
        b.loc = Loc("dir with space/mödel.py", 7)
        return b.exp(x)

    f = build("f", [tensor_type(["n"])], body)
    assert "loc(" not in print_func(f)
    text = print_func(f, locs=True)
    again = parse_func(text)
    assert again.body.ops[0].loc == Loc("dir with space/mödel.py", 7) and print_func(again, locs=True) == text
    assert parse_func(print_func(f)).body.ops[0].loc is None


def test_str_is_the_text():
    f = parse_func(body_of(HERE / "elementwise.mlir"))
    assert str(f) == body_of(HERE / "elementwise.mlir")


def test_a_broken_function_still_prints():
    stray = build("g", [tensor_type([2])], lambda b, x: b.neg(x)).outputs[0]
    block = Block([tensor_type([2])])
    block.outputs = [Builder(block).exp(stray)]
    assert '"ag.exp"(%undefined)' in print_func(Func("f", block))


def test_layering_and_laziness():
    code = "import sys; sys.modules['lark'] = None\nimport aotgrad.ir, aotgrad.ir.ops, aotgrad.ir.parser as p\nfrom aotgrad_runtime.errors import AotgradError\n" \
           "from aotgrad.ir import build, tensor_type\nassert '\"ag.exp\"' in str(build('f', [tensor_type([2])], lambda b, x: b.exp(x)))\n" \
           "try: p.parse_module('')\nexcept AotgradError as e: assert 'pip install lark' in str(e)\nelse: raise SystemExit(1)"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- size of programs -------------------------------------------------------------------------------------------------------------

def chain(length):
    def body(b, x):
        for i in range(length):
            x = b.mul(x, x) if i % 2 else b.exp(x)
        return x

    return build("chain", [tensor_type(["n"])], body)


def nested(depth):
    """Conds inside conds."""
    block = Block([tensor_type([], "bool"), tensor_type([])])
    block.outputs = [Builder(block).neg(block.args[1])]
    for _ in range(depth):
        outer = Block([tensor_type([], "bool"), tensor_type([])])
        other = Block([tensor_type([], "bool"), tensor_type([])])
        other.outputs = [other.args[1]]
        outer.outputs = list(Builder(outer).emit("cond", [outer.args[0], *outer.args], {}, [block, other]))
        block = outer
    return Func("nested", block)


def test_long_programs_in_linear_work_without_recursion():
    f = chain(20_000)
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(300)
        text = print_func(f)
        again = parse_func(text)
        verify(again)
    finally:
        sys.setrecursionlimit(limit)
    assert print_func(again) == text and text.count("\n") == 20_004


def test_deep_nesting_needs_no_recursion():
    f = nested(400)
    text = print_func(f)
    again = parse_func(text)
    assert print_func(again) == text
    verify(again)
    assert sum(1 for _ in walk(again.body)) == 401


# ---- kernel level -----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("path", KERNEL, ids=lambda p: p.stem)
def test_kernel_round_trip(path):
    text = body_of(path)
    funcs = parse_module(text)
    assert print_module(funcs) == text
    for f in funcs:
        verify(f, "kernel")
        assert same_func(f, parse_func(print_func(f)))


def kernel_func(*made, args=(), outs=()):
    block = Block(args)
    block.ops = list(made)
    block.outputs = list(outs)
    return Func("k", block)


@pytest.mark.parametrize(("type", "value", "text"), [
    ("f64", 1.5, "1.5 : f64"), ("f32", float("nan"), "0x7FC00000 : f32"), ("f16", float("-inf"), "0xFC00 : f16"), ("bf16", float("inf"), "0x7F80 : bf16"),
    ("index", 3, "3 : index"),
    ("i32", -1, "-1 : i32"), ("i1", True, "true"), ("i64", 5, "5 : i64"), ("vector<4xf32>", 0.1, "dense<0.1> : vector<4xf32>"),
    ("vector<4xi1>", False, "dense<false> : vector<4xi1>"),
    ("vector<2xindex>", 7, "dense<7> : vector<2xindex>"), ("vector<2xi64>", np.array([1, 1]), "dense<[1, 1]> : vector<2xi64>"),
    ("vector<4xf64>", float("inf"), "dense<0x7FF0000000000000> : vector<4xf64>"),
])
def test_constants_take_the_type_of_their_result(type, value, text):
    f = kernel_func(Op("arith.constant", (), (type,), {"value": value}))
    printed = print_func(f)
    assert f"<{{value = {text}}}>" in printed
    got = parse_func(printed).body.ops[0].attrs["value"]
    assert same_value(got, value) or (value != value and got != got)
    assert print_func(parse_func(printed)) == printed


@pytest.mark.parametrize(("name", "attrs", "text"), [
    ("func.call", {"callee": "ag_exp"}, "<{callee = @ag_exp}>"), ("func.call", {"callee": "a b"}, '<{callee = @"a b"}>'),
    ("x.y", {"static_position": (0, 3)}, "<{static_position = array<i64: 0, 3>}>"),
    ("x.y", {"operandSegmentSizes": (1, 0)}, "<{operandSegmentSizes = array<i32: 1, 0>}>"), ("x.y", {"m": ()}, "<{m = array<i64>}>"),
    ("x.y", {"kind": "maximumf"}, "<{kind = #vector.kind<maximumf>}>"),
    ("x.y", {"fastmath": "none"}, "<{fastmath = #arith.fastmath<none>}>"), ("x.y", {"predicate": 2}, "<{predicate = 2 : i64}>"),
    ("x.y", {"flag": None, "on": True}, "<{flag, on = true}>"),
    ("x.y", {"map": Raw("#llvm.x<(d0) -> (d0)>")}, "<{map = #llvm.x<(d0) -> (d0)>}>"), ("x.y", {"w": Raw("3 : i8")}, "<{w = 3 : i8}>"),
    ("x.y", {"ag.poll": True}, " {ag.poll = true} :"), ("x.y", {"list": [1, 2]}, "<{list = [1, 2]}>"),
])
def test_attributes_of_kernel_ops(name, attrs, text):
    f = kernel_func(Op(name, (), (), attrs))
    printed = print_func(f)
    assert text in printed
    again = parse_func(printed)
    assert same_value(again.body.ops[0].attrs, attrs) and print_func(again) == printed


def test_calls_to_others_are_declared_once():
    call = Op("func.call", (), ("f64",), {"callee": "ag_one"})
    again = Op("func.call", (), ("f64",), {"callee": "ag_one"})
    text = print_module([kernel_func(call, again)])
    assert text.count('sym_name = "ag_one", sym_visibility = "private"') == 1
    assert print_module(parse_module(text)) == text


# ---- the command line's pieces ------------------------------------------------------------------------------------------------------

def test_opt(tmp_path):
    path = tmp_path / "f.mlir"
    path.write_text(print_func(build("f", [tensor_type([3])], lambda b, x: [b.exp(x), b.mul(x, x)][1])))
    steps = []
    text = ir_tools.opt(str(path), "cse,dce", steps.append)
    assert [op.name for op in parse_func(text).body.ops] == ["mul"]
    assert [(s.index, s.passed.name) for s in steps] == [(0, "cse"), (1, "dce")] and all(s.seconds >= 0 for s in steps)
    with pytest.raises(AotgradError, match="did you mean 'dce'"):
        ir_tools.opt(str(path), "dec")


def test_run(tmp_path):
    out = ir_tools.run(str(HERE / "elementwise.mlir"), ["[1, 2]", np.array([3.0, 4.0])])
    np.testing.assert_allclose(out[0], [3 + math.e, 8 + math.e**2])
    np.save(tmp_path / "x.npy", np.array([0.0]))
    assert ir_tools.run(str(HERE / "elementwise.mlir"), [str(tmp_path / "x.npy"), "[5]"])[0] == 1.0
    np.testing.assert_array_equal(ir_tools.run(str(HERE / "two_functions.mlir"), ["[1, 2]"], "g")[0], [1.0, 4.0])


@pytest.mark.parametrize(("file", "inputs", "message"), [
    ("elementwise", ["[1]"], "takes 2 input"), ("elementwise", ["[1]", "what"], "arg1"), ("elementwise", ["[1]", "missing.npy"], "missing.npy"),
    ("elementwise", ["[1]", "[1, 2]"], "argument 1"),
    ("two_functions", ["[1, 2]"], "name one function"), ("nothing", [], "cannot be read"), ("pass_through", ["[1]", "[[True]]"], "naïve"),
    ("kernel/masked_sum", [], "kernel"),
])
def test_bad_runs_are_clear(file, inputs, message):
    with pytest.raises(AotgradError, match=message):
        ir_tools.run(str(HERE / f"{file}.mlir"), inputs)


# ---- real MLIR ------------------------------------------------------------------------------------------------------------------------

OPT = os.environ.get("AOTGRAD_MLIR_OPT") or shutil.which("mlir-opt")
needs_mlir = pytest.mark.skipif(not OPT, reason="mlir-opt is not installed (set AOTGRAD_MLIR_OPT)")
TO_LLVM = ["convert-vector-to-scf", "convert-scf-to-cf", "expand-strided-metadata", "convert-vector-to-llvm", "convert-math-to-llvm", "finalize-memref-to-llvm"
    , "convert-arith-to-llvm",
           "convert-func-to-llvm", "convert-cf-to-llvm", "reconcile-unrealized-casts"]


def mlir_opt(text, *flags):
    done = subprocess.run([OPT, *flags], input=text, capture_output=True, text=True, encoding="utf-8", timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_mlir
@pytest.mark.parametrize("path", VALID, ids=lambda p: p.stem)
def test_mlir_reads_and_gives_back_the_same(path):
    flags = ["--allow-unregistered-dialect", "--mlir-print-op-generic"]
    assert print_module(parse_module(mlir_opt(body_of(path), *flags))) == print_module(parse_module(body_of(path)))


@needs_mlir
def test_mlir_reads_every_op_and_its_values():
    funcs = [func_of(*row)[0] for row in rows()]
    for i, f in enumerate(funcs):
        f.name = f"f{i}"
    back = parse_module(mlir_opt(print_module(funcs), "--allow-unregistered-dialect", "--mlir-print-op-generic", "--mlir-print-elementsattrs-with-hex-if-larger=100000"))
    assert len(back) == len(funcs)
    for f, g in zip(funcs, back):
        assert print_func(g) == print_func(f)


@needs_mlir
@settings(max_examples=15, deadline=None)
@given(st.lists(VALUE, max_size=12))
def test_mlir_reads_attribute_values(values):
    text = print_func(Func("f", Block(), {f"v{i}": v for i, v in enumerate(values)}))
    back = parse_func(mlir_opt(text, "--allow-unregistered-dialect", "--mlir-print-op-generic"))
    assert print_func(back) == text


@needs_mlir
@pytest.mark.parametrize("path", KERNEL, ids=lambda p: p.stem)
def test_mlir_verifies_and_runs_kernel_programs(path):
    _, _, kind, want, *_ = path.read_text().split()
    lowered = mlir_opt(print_module(parse_module(body_of(path))), *(f"--{p}" for p in TO_LLVM))
    runner = Path(OPT).with_name("mlir-runner")
    if not runner.exists():
        pytest.skip("mlir-runner is not beside mlir-opt")
    done = subprocess.run([str(runner), "-e", "main", f"--entry-point-result={kind}"], input=lowered, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == want, done.stderr


def test_run_tells_of_functions_that_are_not_there_and_of_words_in_place_of_numbers() -> None:
    with pytest.raises(AotgradError, match="there is no function 'zz'; it has"):
        ir_tools.run(str(HERE / "two_functions.mlir"), ["[1, 2]"], "zz")
    with pytest.raises(AotgradError, match=r"'hello' is neither a \.npy file nor numbers of dtype \w+, such as [^<]*$"):
        ir_tools.run(str(HERE / "elementwise.mlir"), ["hello", "[5]"])
