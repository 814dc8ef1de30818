"""Writes docs/supported.md from the registry: ``python tools/list_supported.py`` (``--check``: says whether the page is current, and writes nothing).

What is there is read from the tables that calls go through; what is not yet there is a list of names that users of PyTorch and NumPy reach for, less those that
are found. Dtypes are tried.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import aotgrad as ag
from aotgrad.frontend import aot, numpy_protocol
from aotgrad.frontend.dispatch import NUMPY, TORCH

PAGE = Path(__file__).resolve().parents[1] / "docs" / "supported.md"
WIDTH = 160

TRANSFORMS = ("grad", "value_and_grad", "vjp", "jvp", "linearize", "jacfwd", "jacrev", "jacobian", "hessian", "hvp", "vmap", "custom_jvp", "custom_vjp", "stop_gradient",
              "checkpoint", "compile", "aot", "load", "save")
CONTROL = ("cond", "scan", "fori_loop", "while_loop", "map", "host_call", "debug_print")
DTYPES = ("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "int64", "int32", "int16", "int8", "uint8", "bool")
WANTED_FUNCTIONS = (
    "acosh addbmm addcdiv addcmul addmm aminmax angle argsort asinh atanh baddbmm bernoulli bincount bitwise_and bitwise_or bitwise_xor block_diag bucketize cdist "
    "complex conj conv1d conv2d conv3d conv_transpose2d copysign cross cummax cummin deg2rad diff digamma dropout erfinv frac gelu hardtanh heaviside histc hypot "
    "imag index_put isclose kron kthvalue layer_norm leaky_relu lerp lgamma logaddexp logcumsumexp logit masked_scatter max_pool2d median meshgrid mode "
    "multinomial nan_to_num nanmean nansum normal polar quantile rad2deg real renorm rot90 searchsorted silu sinc sort std_mean tensordot topk unique "
    "vander var_mean view_as_complex xlogy"
)
WANTED_NUMPY = (
    "angle argpartition argsort argwhere bincount bitwise_and bitwise_or block cbrt convolve copysign corrcoef correlate cov cross cummax deg2rad digitize "
    "arccosh arcsinh arctanh fft.fft gradient heaviside histogram hypot imag interp isclose kron ldexp linalg.cholesky linalg.det linalg.eigh linalg.inv "
    "linalg.lstsq linalg.multi_dot linalg.qr linalg.slogdet linalg.solve linalg.svd logaddexp median meshgrid nan_to_num nanmax nanmean nansum nextafter nonzero "
    "partition percentile piecewise polyfit polyval quantile rad2deg real rot90 searchsorted select sinc sort unique vander unwrap "
    "apply_along_axis delete divmod insert linalg.matrix_power modf"
)
WANTED_MODULES = ("fft", "func", "fx", "linalg", "nn.Linear", "nn.Module", "nn.init", "numpy", "optim", "special", "autograd.Function", "autograd.forward_ad",
                  "autograd.functional", "autograd.gradcheck", "autograd.profiler")
WANTED_METHODS = ("trace", "lower", "prebind", "cache_info", "explain", "address")

HEAD = """# What is supported

Made by `python tools/list_supported.py` from the tables that calls go through; a test keeps it current. A call that is not served raises an error that names your
line; nothing falls back silently to code without a gradient.
"""


def _here(path: str) -> bool:
    found: Any = ag
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            return False
    return True


def _filled(names: Iterable[str]) -> str:
    """Names in code spans, broken into lines."""
    lines, line = [], ""
    for piece in [f"`{n}`" for n in names]:
        if line and len(line) + 2 + len(piece) > WIDTH:
            lines.append(f"{line},")
            line = piece
        else:
            line = f"{line}, {piece}" if line else piece
    return "\n".join([*lines, line]) if line else "nothing"


def _functions() -> list[str]:
    rows = []
    for name, public in sorted(TORCH.items()):
        front = public.op.front
        if front is None or name in front.aliases or not front.function:
            continue
        also = f" Also {', '.join(f'`{a}`' for a in front.aliases)}." if front.aliases else ""
        doc = public.op.doc.strip().split("\n")[0].replace("|", "\\|")
        rows.append(f"| `{name}{public.signature}` | {doc}{also} | {'yes' if _differentiable(name) else 'none'} |")
    return ["| `ag.` | what it gives | derivative |", "|---|---|---|", *rows]


def _differentiable(name: str) -> bool:
    """Whether results carry a gradient: by the op's own word, and for what is made of other ops by a call of matrices where these are enough."""
    if type(TORCH[name].op.derivative).__name__ == "Zero":
        return False
    try:
        out = getattr(ag, name)(*[ag.ones((2, 2), requires_grad=True) for _ in TORCH[name].tensors])
    except Exception:  # it takes other operands
        return True
    return any(x.requires_grad for x in (out if isinstance(out, (tuple, list)) else [out]))


def _methods() -> tuple[list[str], list[str]]:
    names = [n for n in dir(ag.Tensor) if not n.startswith("_")]
    in_place = [n for n in names if n.endswith("_")]
    return [n for n in names if not n.endswith("_")], in_place


def _numpy() -> list[str]:
    """NumPy's own names that tensors and traced values are accepted by."""
    known = {*NUMPY, *numpy_protocol._FUNCTIONS, *numpy_protocol._BITS, *numpy_protocol._PRODUCTS, "positive", "conjugate"}
    return sorted(n for n in known if _in_numpy(n))


def _in_numpy(name: str) -> bool:
    found: Any = np
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is not None


def _total(x: Any) -> Any:
    return (x * x).sum()


def _any(x: Any) -> Any:
    return x.any()


def _tried(f: Callable[..., Any], dtype: Any, want: float) -> str:
    try:
        found = f(ag.ones(3, dtype=dtype)).tolist()
    except Exception:  # whatever it is, it is not served
        return "no"
    return "yes" if np.all(np.asarray(found, np.complex128) == want) else "no (wrong numbers)"


def _dtypes() -> list[str]:
    rows = ["| dtype | tensors, eagerly | compiled | gradient, eagerly | gradient, compiled | ahead of time |", "|---|---|---|---|---|---|"]
    built = {d.name for d in aot._DTYPES.values()}
    for name in DTYPES:
        dtype = getattr(ag, name)
        run, want = (_any, 1.0) if name == "bool" else (_total, 3.0)
        cells = [_tried(run, dtype, want), _tried(ag.compile(run), dtype, want)]
        if name.startswith(("float", "bfloat", "complex")):
            cells += [_tried(ag.grad(run), dtype, 2.0), _tried(ag.compile(ag.grad(run)), dtype, 2.0)]
        else:
            cells += ["-", "-"]
        rows.append(f"| {name} | {' | '.join(cells)} | {'yes' if name in built else 'no'} |")
    return rows


def _section(title: str, *parts: str | Sequence[str]) -> str:
    return "\n".join([f"## {title}", *(p if isinstance(p, str) else "\n".join(p) for p in parts), ""])


def page() -> str:
    """The text of the page."""
    methods, in_place = _methods()
    served = set(_numpy())
    makers = sorted(n for n in ag.__all__ if n not in TORCH and inspect.isfunction(getattr(ag, n)) and n not in (*TRANSFORMS, *CONTROL))
    absent = [*(n for n in (*TRANSFORMS, *CONTROL) if not _here(n)), *(n for n in WANTED_MODULES if not _here(n))]
    return "\n".join([
        HEAD,
        _section("Transforms and control flow", _filled(f"ag.{n}" for n in (*TRANSFORMS, *CONTROL) if _here(n)), "",
                 "See [derivatives](derivatives.md), [control flow](control-flow.md), [compiling](compile.md), [ahead of time](aot.md)."),
        _section("Functions", "Most are tensor methods too; with NumPy arrays in, NumPy's promotion holds, with tensors torch's.", "", _functions()),
        _section("Making tensors, modes and the rest", _filled(f"ag.{n}" for n in makers), "",
                 "`ag.nn.functional`: " + _filled(sorted(n for n, v in vars(ag.nn.functional).items() if inspect.isfunction(v) and not n.startswith("_")))),
        _section("Tensor methods and attributes", _filled(methods), "", "In place:", _filled(in_place), "",
                 "Operators, indexing as in NumPy, and `x.at[i].set/add/...(v)`."),
        _section("NumPy functions", "These accept tensors and traced values, and so are differentiated and compiled as they stand (`allclose`, `array_equal`,",
                 "`isclose`, `nonzero` and `where` of a mask alone ask for numbers, which a traced value has only when the code runs).", "",
                 _filled(sorted(served)), "",
                 "Also `reduce` of `np.add`, `multiply`, `maximum`, `minimum`, `logical_and`, `logical_or`; `accumulate` of `np.add` and `multiply`; `outer` of the",
                 "functions of two operands."),
        _section("Dtypes", "Tried, when this page was made, with a sum of products:", "", _dtypes()),
        _section("Not supported yet", "Transforms, control flow and modules:", _filled(f"ag.{n}" for n in absent), "",
                 "`ag` functions (names of PyTorch):", _filled(n for n in WANTED_FUNCTIONS.split() if not _here(n) and not _here(f"nn.functional.{n}")), "",
                 "NumPy functions on tensors and traced values:", _filled(n for n in WANTED_NUMPY.split() if n not in served), "",
                 "Methods of compiled functions (for a C function, `ag.aot.build`):", _filled(f"f.{n}" for n in WANTED_METHODS if not hasattr(ag.compile(main), n)), "",
                 "Of NumPy functions that are there: modes of `np.pad` other than `constant`, `reflect`, `symmetric`, `edge` and `wrap`; `np.repeat` with a list of "
                 "counts;\n`order=` other than `C` and `F`; `np.r_` and `np.c_`; masks computed in compiled code as an index that is read "
                 "(`y[mask]`, `y[mask] *= v`; `y[mask] = v` and `y.at[mask].mul(v)` "
                 "work).", "",
                 "`aotgrad build`: dtypes other than " + ", ".join(sorted({d.name for d in aot._DTYPES.values()})) + ". Systems: see the table in the README."),
    ])


def main(arguments: Sequence[str]) -> int:
    """Writes the page, or checks it."""
    text = page()
    if "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    old, new = (set(re.findall(r"`[^`]+`|^\|.*$", t, re.M)) for t in (PAGE.read_text(encoding="utf-8") if PAGE.is_file() else "", text))
    print("docs/supported.md is out of date; run python tools/list_supported.py.")
    print(f"New: {' '.join(sorted(new - old))}", f"Gone: {' '.join(sorted(old - new))}", sep="\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
