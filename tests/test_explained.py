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
