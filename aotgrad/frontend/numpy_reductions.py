"""NumPy's reductions with all their arguments, in NumPy's order: ``where=``, ``initial=``, ``mean=``; and those that leave NaN out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aotgrad_runtime.dtypes import as_dtype, bool_
from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError
from aotgrad_runtime.tensor import Tensor

from .dispatch import NUMPY, TORCH, call, run
from .trace import user_loc

__all__ = ["REDUCTIONS", "accumulated", "reduced", "reduction"]

_SUMS, _MEANS = "axis dtype out keepdims initial where", "axis dtype out keepdims * where"
_EXTREMA, _TESTS = "axis out keepdims initial where", "axis out keepdims * where"
_SPREADS = "axis dtype out ddof keepdims * where mean correction"
_ORDERS = {"sum": _SUMS, "prod": _SUMS, "mean": _MEANS, "std": _SPREADS, "var": _SPREADS, **dict.fromkeys(("max", "min", "amax", "amin"), _EXTREMA),
           "any": _TESTS, "all": _TESTS, "nansum": _SUMS, "nanprod": _SUMS, "nanmean": _MEANS, "nanmax": _EXTREMA, "nanmin": _EXTREMA, "ptp": "axis out keepdims",
           "reduce": _SUMS, "accumulate": "axis dtype out"}
"""The parameters behind the array; those behind a star by name alone."""
_UNITS: dict[str, Any] = {"sum": 0, "prod": 1, "any": False, "all": True}
_WITH_INITIAL = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum", "amax": "maximum", "amin": "minimum"}
_FURTHER = frozenset(("where", "initial", "mean"))


def _given(name: str, called: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by NumPy's names, without those that say nothing."""
    placed, _, named = _ORDERS[name].partition(" *")
    places, known = placed.split(), [*placed.split(), *named.split()]
    what = None
    if len(args) > len(places):
        what = f"takes {1 + len(places)} positional arguments, {1 + len(args)} were given"
    elif unknown := [k for k in kwargs if k not in known]:
        what = f"got an unexpected argument {unknown[0]!r}"
    elif twice := [k for k in places[:len(args)] if k in kwargs]:
        what = f"got two values for {twice[0]!r}"
    if what is None:
        found = {k: v for k, v in (*zip(places, args), *kwargs.items()) if v is not np._NoValue}
        if found.pop("out", None) is None:
            return found
        what = "cannot write into out=; write y[...] = v with the result v"
    raise AotgradTypeError(f"{user_loc()}: np.{called}() {what}; its signature is {called}(a, {_ORDERS[name].replace(' ', ', ')})")


def _array(a: Any) -> Any:
    return a if isinstance(a, Tensor) else np.asarray(a)


def _dtype_of(x: Any) -> Any:
    return x._dtype.np if isinstance(x, Tensor) else x.dtype


def _cast(x: Any, dtype: Any) -> Any:
    return run(TORCH["astype"], {"input": x, "dtype": as_dtype(dtype)}) if isinstance(x, Tensor) else np.asarray(x, as_dtype(dtype).np)


def reduction(name: str) -> Callable[..., Any]:
    """NumPy's reduction; elements that ``where`` leaves out count as the unit, or as ``initial``."""
    places = len(NUMPY[name].layout.positional)

    def reduce(a: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) < places and _FURTHER.isdisjoint(kwargs):
            return call(NUMPY[name], (a, *args), {k: v for k, v in kwargs.items() if v is not np._NoValue})
        given = _given(name, name, args, kwargs)
        where = given.pop("where", True)
        if name in ("std", "var"):
            return _spread(name, _array(a), where, **given) if where is not True or given.get("mean") is not None else call(NUMPY[name], (a,), given)
        initial = given.pop("initial", None)
        if where is True and initial is None:
            return call(NUMPY[name], (a,), given)
        return _partial(name, _array(a), given, where, initial)

    reduce.__name__ = reduce.__qualname__ = name
    return reduce


def _partial(name: str, a: Any, given: dict[str, Any], where: Any, initial: Any) -> Any:
    if initial is not None and name not in _UNITS:  # as in NumPy the dtype is that of the array
        initial = _cast(initial, _dtype_of(a))
    if where is True:
        return call(NUMPY[_WITH_INITIAL[name]], (call(NUMPY[name], (a,), given), initial), {})
    if name not in _UNITS and name != "mean" and initial is None:
        raise AotgradValueError(f"{user_loc()}: np.{name} with where= needs initial=, as in NumPy: over nothing it has no value")
    kept = call(NUMPY["where"], (where, a, _UNITS.get(name, 0 if name == "mean" else initial)), {})
    if name == "mean":
        return _mean_of(kept, where, given)
    out = call(NUMPY[name], (kept,), given)
    return out if initial is None else call(NUMPY[_WITH_INITIAL[name]], (out, initial), {})


def _mean_of(kept: Any, where: Any, given: dict[str, Any]) -> Any:
    total = call(NUMPY["sum"], (kept,), given)
    return total / _count(kept, where, {k: v for k, v in given.items() if k != "dtype"}, total)


def _count(x: Any, where: Any, place: dict[str, Any], like: Any) -> Any:
    """How many elements ``where`` keeps of ``x``, in the dtype of ``like`` where that is a float."""
    count = call(NUMPY["sum"], (call(NUMPY["broadcast_to"], (_array(where), tuple(x.shape)), {}),), place)
    return _cast(count, like._dtype) if like._dtype.kind == "f" else count


def _spread(name: str, a: Any, where: Any, axis: Any = None, dtype: Any = None, ddof: Any = 0, keepdims: bool = False, mean: Any = None, correction: Any = None) -> Any:
    """``std`` and ``var`` of a part, or about a mean that is given."""
    place = {"axis": axis, "keepdims": keepdims}
    if dtype is not None or _dtype_of(a).kind in "biu":
        a = _cast(a, np.float64 if dtype is None else dtype)
    if mean is None:
        mean = reduction("mean")(a, axis=axis, keepdims=True, where=where)
    apart = call(NUMPY["where"], (where, call(NUMPY["subtract"], (a, mean), {}), 0), {})
    free = _count(apart, where, place, apart) - (ddof if correction is None else correction)
    free = call(NUMPY["maximum"], (free, 0), {})
    if name == "var":
        return call(NUMPY["sum"], (call(NUMPY["square"], (apart,), {}),), place) / free
    return call(TORCH["norm"], (apart, 2, axis, keepdims), {}) / call(NUMPY["sqrt"], (free,), {})


# ---- without NaN ------------------------------------------------------------------------------------------------------------------------

def _without_nan(name: str) -> Callable[..., Any]:
    """``nansum`` and its kin: NaN counts as what changes nothing, and has derivative 0."""
    least = {"sum": 0, "prod": 1, "mean": 0, "max": -np.inf, "min": np.inf}[name]
    plain = reduction(name)

    def reduce(a: Any, *args: Any, **kwargs: Any) -> Any:
        a, given = _array(a), _given(f"nan{name}", f"nan{name}", args, kwargs)
        if _dtype_of(a).kind != "f":
            return plain(a, **given)
        missing = call(NUMPY["isnan"], (a,), {})
        kept = call(NUMPY["where"], (missing, least, a), {})
        if name == "mean":
            present = call(NUMPY["logical_and"], (call(NUMPY["logical_not"], (missing,), {}), given.pop("where", True)), {})
            return _mean_of(call(NUMPY["where"], (present, kept, 0), {}), present, given)
        out = plain(kept, **given)
        if name in _UNITS or given.get("initial") is not None:
            return out
        place = {k: v for k, v in given.items() if k in ("axis", "keepdims")}
        return call(NUMPY["where"], (call(NUMPY["all"], (missing,), place), np.nan, out), {})

    reduce.__name__ = reduce.__qualname__ = f"nan{name}"
    return reduce


def _ptp(a: Any, *args: Any, **kwargs: Any) -> Any:
    given = _given("ptp", "ptp", args, kwargs)
    return call(NUMPY["max"], (a,), given) - call(NUMPY["min"], (a,), given)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    **{name: reduction(name) for name in ("sum", "prod", "max", "min", "amax", "amin", "mean", "any", "all", "std", "var")},
    **{f"nan{name}": _without_nan(name) for name in ("sum", "prod", "mean", "max", "min")}, "ptp": _ptp,
}
"""NumPy's functions by name."""


# ---- of ufuncs --------------------------------------------------------------------------------------------------------------------------

_REDUCE = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_and": "all", "logical_or": "any"}
_ACCUMULATE = {"add": "cumsum", "multiply": "cumprod"}


def reduced(ufunc: str, a: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """``np.add.reduce(a, ...)``; NotImplemented for ufuncs that no function serves."""
    name = _REDUCE.get(ufunc)
    if name is None:
        return NotImplemented
    given = {"axis": 0, **_given("reduce", f"{ufunc}.reduce", args, kwargs)}
    dtype = given.pop("dtype", None)
    if dtype is not None:
        if name in ("any", "all") and as_dtype(dtype) is not bool_:
            raise AotgradTypeError(f"{user_loc()}: np.{ufunc}.reduce gives bools, not {as_dtype(dtype).name}")
        if name not in ("any", "all"):
            a = _cast(a, dtype)
            given = {**given, "dtype": dtype} if name in ("sum", "prod") else given
    return REDUCTIONS[name](a, **given)


def accumulated(ufunc: str, a: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """``np.add.accumulate(a, ...)``; NotImplemented for ufuncs that no function serves."""
    name = _ACCUMULATE.get(ufunc)
    return NotImplemented if name is None else call(NUMPY[name], (a,), {"axis": 0, **_given("accumulate", f"{ufunc}.accumulate", args, kwargs)})
