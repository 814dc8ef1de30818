"""aotgrad: write NumPy- or PyTorch-style Python; get native code, its gradients, and shared libraries that depend on nothing.

>>> import aotgrad as ag
>>> ag.grad(lambda x: x * x * x)(2.0)
12.0
"""

from __future__ import annotations

import gc as _gc
import importlib as _importlib
from math import e, inf, nan, pi
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _collects := _gc.isenabled():  # nothing that is imported becomes garbage: the collector walked it 80 times, a fifth of the whole
    _gc.disable()
try:
    from aotgrad_runtime import install as _install

    from .frontend import methods as _methods

    if not _install.is_installed():
        _install.install(_methods.table())
    for _name in ("compile", "control", "custom", "host", "jacobians", "randoms", "transforms", "vmap"):  # what is left of the imports below
        _importlib.import_module(f"aotgrad.frontend.{_name}")
finally:
    if _collects:
        if not _gc.get_freeze_count():  # what was made here counts as old; else the collector walks all of it as soon as it is on
            _gc.freeze()
            _gc.unfreeze()
        _gc.enable()

from aotgrad_runtime import dtypes as _dtypes
from aotgrad_runtime.arrays import get_default_dtype, set_default_dtype
from aotgrad_runtime.dtypes import DType, bfloat16, complex64, complex128, float16, float32, float64, int8, int16, int32, int64, promote_types, uint8
from aotgrad_runtime.errors import (
    AotgradArgumentError,
    AotgradAttributeError,
    AotgradDimError,
    AotgradDTypeError,
    AotgradError,
    AotgradIndexError,
    AotgradIndexTypeError,
    AotgradMemoryError,
    AotgradNotImplementedError,
    AotgradRangeError,
    AotgradRuntimeError,
    AotgradTypeError,
    AotgradValueError,
    AotgradWarning,
)
from aotgrad_runtime.limits import finfo, iinfo
from aotgrad_runtime.memory_format import channels_last, channels_last_3d, contiguous_format, preserve_format
from aotgrad_runtime.modes import enable_grad, inference_mode, is_grad_enabled, is_inference_mode_enabled, no_grad, set_grad_enabled
from aotgrad_runtime.profiler import set_region_hook
from aotgrad_runtime.tensor import Device as device
from aotgrad_runtime.tensor import Size, Tensor

from . import ir
from ._version import __version__
from .frontend.anomaly import is_anomaly_check_nan_enabled, is_anomaly_enabled
from .frontend.boundary import guard as _guard
from .frontend.compile import compile
from .frontend.control import cond, fori_loop, scan, while_loop
from .frontend.control import map_ as map
from .frontend.custom import custom_jvp, custom_vjp
from .frontend.dispatch import TORCH as _TORCH
from .frontend.factories import (
    arange,
    as_tensor,
    empty,
    empty_like,
    eye,
    from_dlpack,
    from_numpy,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    tensor,
    zeros,
    zeros_like,
)
from .frontend.host import debug_print, host_call
from .frontend.jacobians import hessian, jacfwd, jacobian, jacrev
from .frontend.queries import stop_gradient
from .frontend.randoms import (
    Generator,
    default_generator,
    get_rng_state,
    initial_seed,
    manual_seed,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    seed,
    set_rng_state,
)
from .frontend.transforms import grad, hvp, jvp, linearize, value_and_grad, vjp
from .frontend.vmap import vmap

if _TYPE_CHECKING:
    from . import autograd, nn, optim, utils

newaxis = None

_MODULES = {"aot": "aotgrad.frontend.aot", "autograd": "aotgrad.autograd", "func": "aotgrad.func", "nn": "aotgrad.nn", "optim": "aotgrad.optim", "utils": "aotgrad.utils"}
_LAZY = {"load": "aotgrad_runtime.saving", "save": "aotgrad_runtime.saving", "dropout": "aotgrad.nn._top", "embedding": "aotgrad.nn._top", **dict.fromkeys((
    "celu", "celu_", "cosine_similarity", "group_norm", "hardshrink", "layer_norm", "pairwise_distance", "prelu", "rms_norm", "selu", "selu_", "threshold", "threshold_",
), "aotgrad.nn.functional")}
# Read when they are first asked for: not every program needs them.

__all__ = [
    "AotgradArgumentError", "AotgradAttributeError", "AotgradDTypeError", "AotgradDimError", "AotgradError", "AotgradIndexError", "AotgradIndexTypeError",
    "AotgradMemoryError",
    "AotgradNotImplementedError", "AotgradRangeError", "AotgradRuntimeError", "AotgradTypeError", "AotgradValueError", "AotgradWarning",
    "DType", "Generator", "Size", "Tensor",
    "__version__", "arange", "as_tensor", "autograd", "bfloat16", "channels_last", "channels_last_3d", "compile", "complex128", "complex64",
    "cond", "contiguous_format", "custom_jvp",
    "custom_vjp",
    "debug_print", "default_generator", "device", "e", "empty",
    "empty_like", "enable_grad", "eye", "finfo", "float16", "float32", "float64", "fori_loop", "from_dlpack", "from_numpy", "full", "full_like", "get_default_dtype",
    "get_rng_state", "initial_seed", "seed", "set_rng_state",
    "grad",
    "hessian", "host_call", "hvp",
    "iinfo", "inf", "inference_mode", "int16", "int32", "int64", "int8", "ir", "is_grad_enabled", "is_inference_mode_enabled", "jacfwd", "jacobian", "jacrev",
    "jvp", "linearize",
    "linspace",
    "is_anomaly_check_nan_enabled", "is_anomaly_enabled",
    "manual_seed", "map", "nan", "newaxis", "nn", "no_grad", "ones", "ones_like", "pi", "preserve_format", "promote_types",
    "rand", "rand_like", "randint", "randn", "randn_like",
    "randperm", "scan",
    "set_default_dtype",
    "set_grad_enabled", "set_region_hook", "stop_gradient", "tensor", "uint8", "value_and_grad", "vjp", "vmap", "while_loop", "zeros", "zeros_like", "optim", "utils",
]


def __getattr__(name: str) -> _Any:
    if name in _MODULES:
        return globals().setdefault(name, _importlib.import_module(_MODULES[name]))
    if name in _LAZY:
        globals().setdefault(name, getattr(_importlib.import_module(_LAZY[name]), name))
        _guard(globals(), (name,))
        return globals()[name]
    raise AotgradAttributeError(f"module 'aotgrad' has no attribute {name!r}; docs/supported.md lists the functions that there are")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# The functions of the registry, and torch's names of dtypes. Last, because some are names of Python's own.
_FUNCTIONS = {n: f for n, f in _methods.FUNCTIONS.items() if (front := _TORCH[n].op.front) is not None and front.function}
globals().update(_FUNCTIONS)
globals().update(bool=_dtypes.bool_, float=float32, double=float64, half=float16, int=int32, long=int64, short=int16)
__all__ += sorted({*_FUNCTIONS, *_methods.ATTRIBUTES, "bool", "double", "float", "half", "int", "long", "short"} - {*__all__})
globals().update(_methods.ATTRIBUTES)
__all__ += sorted({*_MODULES, *_LAZY} - {*__all__})

_guard(globals(), __all__)
