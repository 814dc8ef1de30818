"""The table over every road: each op and sample compiled, laid out, in C form, by users' calls, against the interpreter, NumPy, and the complex step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import native_table
import numpy as np
import oracles
import pytest
import sweep
import user_table

from aotgrad.ir import opdef

HOST = ("graft", "hook", "host_call")  # they hold Python functions, or a derivative that is not their value's: see test_hooks_compiled
OPS = [op.name for op in opdef.all_ops().values() if not op.regions and op.name not in HOST]
FLOAT_OPS = [n for n in OPS if any(np.asarray(x).dtype == np.float64 for s in (opdef.get(n).samples or tuple)() for x in s.operands)]
# One op per kernel family; the C form is a wrapper around the same kernels.
C_FORM = ("add", "where", "tanh", "softplus", "cast", "sum", "prod", "amax", "argmax", "cumsum", "cumprod", "recurrence", "dot", "matmul", "einsum", "reshape",
    "permute", "slice", "insert",
          "concatenate", "take", "scatter", "scatter_add", "relayout", "softmax", "logsumexp", "var", "getitem", "setitem", "constant", "iota", "isnan")
HALF = [n if i % 2 else pytest.param(n, marks=pytest.mark.thorough) for i, n in enumerate(OPS)]  # in each run; CI runs the others after it


def composite(name: str) -> bool:
    """Whether an op is made of others: its kernels are theirs, all of which run; its own in every dtype are part of the sweep."""
    return isinstance(opdef.get(name).derivative, opdef.Composite)


@pytest.mark.parametrize("name", [*(n for n in OPS if not composite(n)), *[n for n in OPS if composite(n)][::12]])
def test_compiled_float64(name: str) -> None:
    """Value, VJP, JVP and VJP of VJP between guard pages, on samples and on other sizes. Composites consist of the others; all of them are in ``test_all_samples``."""
    assert native_table.check_op(name, samples=2, others=("value", "vjp")) > 0


@pytest.mark.parametrize("name", [n for n in FLOAT_OPS if not composite(n)][::5])
def test_compiled_float32(name: str) -> None:
    assert native_table.check_op(name, np.float32, ("value", "vjp"), 2) > 0


@pytest.mark.parametrize("name", OPS[::12])  # all of them in test_all_samples
def test_layouts(name: str) -> None:
    """channels_last at rank 4, Fortran order below: as compiled kernels, values and cotangents."""
    native_table.check_layouts(name, 2)


@pytest.mark.thorough
@pytest.mark.parametrize("name", OPS)
def test_all_samples(name: str) -> None:
    """In both dtypes and in other layouts, with forward mode; of what is made of others, values and gradients."""
    if composite(name):
        assert native_table.check_op(name, np.float64, ("value", "vjp")) > 0
        return
    assert native_table.check_op(name) > 0
    assert name not in FLOAT_OPS or native_table.check_op(name, np.float32, ("value", "vjp", "jvp")) > 0
    native_table.check_layouts(name)


@pytest.mark.parametrize("name", sweep.part(C_FORM))
def test_c_form(name: str) -> None:
    native_table.check_c_form(name)


@pytest.mark.parametrize("name", oracles.composites())
def test_composite_has_the_value_of_numpy(name: str) -> None:
    oracles.check_value(name)


@pytest.mark.parametrize("name", HALF)
def test_complex_step(name: str) -> None:
    """Forward mode, and forward over reverse, to rounding."""
    oracles.check_types(name)
    oracles.check_complex_step(name)


@pytest.mark.parametrize("kink", oracles.KINKS, ids=lambda k: k.name)
def test_kink(kink: oracles.Kink) -> None:
    """Published derivatives at kinks and singular points, by the interpreter and as kernels, in both modes."""
    oracles.check_kink(kink)
    oracles.check_kink(kink, native_table.run_compiled)


@pytest.mark.parametrize("name, every", [*((n, False) for n in user_table.public()[::8]),
                                         *(pytest.param(n, True, marks=pytest.mark.thorough) for n in user_table.public())])
def test_as_users_call_it(name: str, every: bool) -> None:
    """Eager and compiled, any strides, tape, reverse and forward."""
    for i, (f, xs) in enumerate(user_table.rows(name)):
        user_table.check_row(f, xs, f"{name}[{i}]", None if every else [*opdef.all_ops()].index(name) + i, either=i > 0 or name not in user_table.ROWS)


@pytest.mark.filterwarnings("ignore")  # NumPy's own, of empty means and the like
@pytest.mark.parametrize("name", sweep.part(user_table.public(), of=8))
def test_other_sizes_after_the_first_call(name: str) -> None:
    """0, 1, and more; and sizes that do not fit together raise as eager does."""
    for i, (f, xs) in enumerate(user_table.rows(name)):
        user_table.check_sizes(f, xs, f"{name}[{i}]")


def test_most_sizes_are_symbols() -> None:
    """Static kernels only where the op's attributes fix the sizes."""
    static = {c.op.name for name in OPS for c in native_table.cases(opdef.get(name)) if not c.symbolic and any(x.ndim for x in c.arrays)}
    images = {name for name in static if name.startswith(("conv", "window", "adaptive")) or "pool" in name}  # of given sizes of kernels and windows
    assert static - images <= {"view", "flatten", "reshape", "broadcast"}, static


OVERRUN = """
import sys
sys.path.insert(0, {tests!r})
from lowering_harness import Guarded
import ctypes, faulthandler
at_end = sys.argv[1] == "end"
g = Guarded(40, at_end, 8)
ctypes.memset(g.address, 1, 40)
print("inside", flush=True)
ctypes.memset(g.address + (40 if at_end else -1), 1, 1)
print("outside", flush=True)
"""


@pytest.mark.parametrize("side", ["end", "start"])
def test_guard_pages_catch_one_byte(side: str) -> None:
    """What makes the runs above mean something: a byte beyond either end of a guarded buffer ends the process."""
    run = subprocess.run([sys.executable, "-c", OVERRUN.format(tests=str(Path(__file__).parent)), side], capture_output=True, text=True)
    assert run.returncode == -11 and run.stdout.split() == ["inside"], (run.returncode, run.stdout, run.stderr)
