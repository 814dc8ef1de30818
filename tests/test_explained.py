# ruff: noqa: UP031
"""Python's own functions that want a number of a value that has none: an AotgradError with the user's line, in traces and in eager transforms."""

import contextlib
import copy
import ctypes
import datetime
import decimal
import fractions
import json
import math
import operator
import statistics
import struct

import numpy as np
import pytest

import aotgrad as ag

WANT_NUMBERS = {
    "percent d": lambda x: "%d" % x,
    "percent x": lambda x: "%x" % x,
    "percent c": lambda x: "%c" % x,
    "percent f": lambda x: "%.3f" % x,
    "percent in a tuple": lambda x: "%s %d" % ("n", x),
    "percent by name": lambda x: "%(n)d" % {"n": x},
    "percent of bytes": lambda x: b"%f" % x,
    "index": operator.index,
    "struct d": lambda x: struct.pack("d", x),
    "struct i": lambda x: struct.pack("i", x),
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    "range": lambda x: range(x),
    "bytes": lambda x: bytes(x),
    "bytearray": lambda x: bytearray(x),
    "memoryview": lambda x: memoryview(x),
    "complex": lambda x: complex(1, x),
    "hex": hex,
    "repeat": lambda x: "ab" * x,
    "item": lambda x: [1, 2, 3][x],
    "key": lambda x: {1.5: 2}[x],
    "pow": lambda x: pow(2, x, 5),
    "pow of it": lambda x: pow(x, 2, 5),
    "comb": lambda x: math.comb(5, x),
    "ctypes": lambda x: ctypes.c_double(x),
    "fraction": fractions.Fraction,
    "decimal": decimal.Decimal,
    "timedelta": lambda x: datetime.timedelta(seconds=x),
    "statistics": lambda x: statistics.mean([x, x]),
    "json": json.dumps,
    "join": lambda x: ",".join(["a", x]),
    "attribute": lambda x: x.is_integer(),
    "zeros": lambda x: np.zeros(x),
}


@pytest.mark.parametrize("name", WANT_NUMBERS)
def test_the_line_and_what_to_do(name):
    take = WANT_NUMBERS[name]

    def f(x):
        take(x)  # the line where functions of C are called
        return x * 1.0

    line = f"{__file__}:{f.__code__.co_firstlineno + 1}", f"{__file__}:{take.__code__.co_firstlineno}" if hasattr(take, "__code__") else "?"
    for run in (ag.compile(f), ag.grad(f)):
        with pytest.raises(ag.AotgradError) as raised:
            run(2.5)
        text = str(raised.value)
        assert text.startswith((f"{line[0]}: ", f"{line[0]}\n", f"{line[1]}: ", f"{line[1]}\n")), text
        assert any(word in text for word in ("use ", "Use ", "write ", "integer tensors")), text
        assert "TracedArray" not in text and "ArrayTensor" not in text


def test_a_traced_number_is_no_key():
    """``x in {...}`` and ``table.get(x)`` would be False and None, whatever the number is."""
    for f in (lambda x: x * (x in {1.5, 2.5}), lambda x: x * {2.5: 2.0}.get(x, 1.0)):
        with pytest.raises(ag.AotgradTypeError, match=r"test_explained.py:\d+: a traced value is used as a key or in a set.*static="):
            ag.compile(f)(2.5)
        assert ag.compile(f, static="x")(2.5) == f(2.5)
    assert ag.compile(lambda n: n * (n in {1, 2}))(2) == 2  # integers are looked at


def test_an_attribute_is_still_an_attribute_error():
    with pytest.raises(AttributeError, match=r"no attribute 'hex'"):
        ag.compile(lambda x: x.hex())(2.5)


@pytest.mark.parametrize("error", [TypeError("not TracedArray, says the user"), KeyError("k"), ValueError("of the user's own"), ZeroDivisionError("so")])
def test_errors_of_the_users_own_stay_as_they_are(error):
    def f(x):
        with contextlib.suppress(TypeError):  # refused, and caught
            float(x)
        if x.ndim == 0:
            raise error
        return x

    for run in (ag.compile(f), ag.grad(f), ag.vmap(f)):
        with pytest.raises(type(error)) as raised:
            run(np.ones(2) if "vmap" in run.__name__ else 2.5)
        assert raised.value is error


def test_a_refusal_that_was_caught_is_not_told_elsewhere():
    def f(x):
        with contextlib.suppress(TypeError):
            "%d" % x
        return {}["missing"]

    for run in (ag.compile(f), ag.grad(f)):
        with pytest.raises(KeyError, match="missing"):
            run(2.5)


def test_integers_that_python_needs_are_numbers():
    f = ag.compile(lambda x, n: x * len("%d" % n) + struct.calcsize(f"{n}d"))
    assert f(2.0, 10) == 84.0 and f(2.0, 3) == 26.0


def test_errors_without_a_line_get_it():
    def f(x):
        return copy.copy(list(x))

    with pytest.raises(ag.AotgradTypeError, match=rf"test_explained.py:{f.__code__.co_firstlineno + 1}[:\s]"):
        ag.compile(f)(2.5)


# ---- dtypes that are not computed with -----------------------------------------------------------------------------------------------

UNUSABLE = {
    "complex": (np.ones(3, complex), "is complex.*the real and the imaginary part"),
    "long double": (np.ones(3, np.longdouble), r"x.astype\(np.float64\)"),
    "unsigned": (np.ones(3, np.uint64), r"x.astype\(np.int64\)"), "text": (np.array(["1", "2", "3"]), "holds text; convert it to numbers"),
    "objects": (np.array([1.0, None, 2]), "holds Python objects; make numbers"), "dates": (np.array(["2020-01-01"] * 3, "M8[D]"), "holds dates; convert"),
    "times": (np.array([1, 2, 3], "m8[s]"), "holds times; convert"),
    "records": (np.zeros(3, [("a", float)]), r"holds records; use its fields one by one \(x\['name'\]\)"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_dtypes_that_are_not_computed_with_are_named(name):
    bad, what = UNUSABLE[name]
    x = np.ones(3)

    def scaled(weights, k=1.0):
        return (weights * k).sum()

    line = r"test_explained.py:\d+: "
    place = "argument weights" if name != "complex" else ""
    cases = {
        "argument": (lambda: ag.compile(scaled)(bad), "argument weights: dtype"),
        "in a container": (lambda: ag.compile(lambda tree: tree["p"])({"p": [x, bad]}), "argument tree_p_1: dtype"),
        "keyword": (lambda: ag.compile(scaled)(x, k=bad), "argument k: dtype"),
        "captured": (lambda: ag.compile(lambda y: y * bad)(x), rf"{line}mul: other \(bad\): dtype"),
        "result": (lambda: ag.compile(lambda y: {"y": y, "kept": [bad]})(x), r"the result\['kept'\]\[0\]: dtype"),
        "differentiated": (lambda: ag.grad(scaled)(bad), r"argument 0 \(weights\): dtype" if place else rf"{line}mul: input \(weights\): dtype"),
        "beside": (lambda: ag.grad(scaled)(x, bad), rf"{line}mul: other \(k\): dtype"),
        "of an operation": (lambda: ag.exp(bad), rf"{line}exp: input \(bad\): dtype"),
    }
    for how, (call, where) in cases.items():
        with pytest.raises(ag.AotgradTypeError, match=f"{where}.*{what}") as raised:
            call()
        assert str(bad.dtype) in str(raised.value), how


def test_tensors_that_are_not_computed_with_in_compiled_code():
    z, half = ag.tensor([1.0, 2.0], dtype=ag.complex64), ag.tensor([1.0, 2.0], dtype=ag.bfloat16)
    with pytest.raises(ag.AotgradTypeError, match=r"mul: other \(z\): dtype complex64 is complex"):
        ag.compile(lambda y: y * z)(ag.ones(2))
    for f, args in ((lambda w: w * 2.0, (half,)), (lambda y: y * half, (ag.ones(2),))):
        with pytest.raises(ag.AotgradNotImplementedError, match=r"test_explained.py:\d+[\s\S]*bfloat16 can be stored.*convert to float32 first"):
            ag.compile(f)(*args)


def test_other_operands_of_pythons_own():
    for run in (ag.compile, ag.grad):
        with pytest.raises(ag.AotgradTypeError, match=r"test_explained.py:\d+: unsupported operand.*'Fraction'; convert the other operand to a number"):
            run(lambda y: (y * fractions.Fraction(1, 2)).sum())(np.ones(2))
        with pytest.raises(ag.AotgradTypeError, match=r"test_explained.py:\d+: unsupported operand.*'complex'.*; complex numbers are not there yet"):
            run(lambda y: (1j * y).real.sum())(np.ones(2))
