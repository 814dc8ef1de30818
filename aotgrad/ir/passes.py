"""Passes and pipelines: ``parse_pipeline("cse,dce")`` and ``run_pipeline(func, passes, callback)``.

A pass is a frozen dataclass in ``ir/transforms/`` with a field ``name``, other fields as its typed options, and ``__call__(func) -> func``.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import os
import pkgutil
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, get_args, get_type_hints

from aotgrad_runtime.errors import AotgradError, AotgradValueError
from aotgrad_runtime.records import record

from . import dims, transforms
from .core import Func, walk
from .types import TensorType
from .verifier import VerifyError, verify

__all__ = ["Pass", "Step", "all_passes", "parse_pipeline", "pipeline_text", "run_pipeline"]


class Pass(Protocol):
    """A transformation of a function; it may change its argument and gives the result."""

    @property
    def name(self) -> str: ...

    def __call__(self, func: Func) -> Func: ...


@record(frozen=True)
class Step:
    """What the callback is told after each pass: which (its place from 0), the function it gave, and the seconds it took."""

    index: int
    passed: Pass
    func: Func
    seconds: float


@functools.lru_cache(maxsize=1)
def all_passes() -> Mapping[str, type[Any]]:
    """Pass classes of ``ir/transforms`` by name, sorted.

    >>> "dce" in all_passes()
    True
    """
    found: dict[str, type[Any]] = {}
    for info in pkgutil.iter_modules(transforms.__path__):
        module = importlib.import_module(f"{transforms.__name__}.{info.name}")
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == module.__name__ and dataclasses.is_dataclass(cls) and "__call__" in vars(cls):
                name = {f.name: f.default for f in dataclasses.fields(cls)}.get("name")
                if not isinstance(name, str):
                    continue
                if name in found:
                    raise AotgradValueError(f"pass {name!r} is declared twice: {found[name].__qualname__} and {cls.__qualname__}")
                found[name] = cls
    return dict(sorted(found.items()))


# ---- text ---------------------------------------------------------------------------------------------------------------------

_ITEM: Final = re.compile(r"\s*([\w.-]+)\s*(?:\{([^{}]*)\})?\s*(,|$)")
_OPTION: Final = re.compile(r"""\s*([\w-]+)\s*=\s*("[^"]*"|'[^']*'|[^\s,]+)\s*(?:,|\s|$)""")


def parse_pipeline(text: str) -> list[Pass]:
    """Passes from their text: names with commas between, options in braces. Raises ``AotgradValueError`` naming what is not known.

    >>> [p.name for p in parse_pipeline("cse, dce")]
    ['cse', 'dce']
    """
    out: list[Pass] = []
    at = 0
    while at < len(text.rstrip()):
        m = _ITEM.match(text, at)
        if m is None or (m[3] == "," and not text[m.end():].strip()):
            raise AotgradValueError(f"pipeline {text!r} is not understood at {text[at:]!r}; write pass names with commas between, options as name{{size=4}}")
        out.append(_make(m[1], m[2] or ""))
        at = m.end()
    return out


def pipeline_text(passes: Sequence[Pass]) -> str:
    """The text that ``parse_pipeline`` reads back as ``passes`` (options at their defaults are left out)."""
    return ",".join(map(_pass_text, passes))


def _pass_text(p: Any) -> str:
    fields = [f for f in dataclasses.fields(p) if f.name != "name" and getattr(p, f.name) != f.default]
    inside = " ".join(f"{f.name}={_option_text(getattr(p, f.name))}" for f in fields)
    return f"{p.name}{{{inside}}}" if inside else str(p.name)


def _option_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _make(name: str, options: str) -> Pass:
    known = all_passes()
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        raise AotgradValueError(f"unknown pass {name!r}{f'; did you mean {close[0]!r}?' if close else ''} (known: {', '.join(known)})")
    cls = known[name]
    hints = get_type_hints(cls)
    fields = {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.name != "name"}
    given: dict[str, Any] = {}
    at = 0
    while at < len(options.rstrip()):
        m = _OPTION.match(options, at)
        if m is None:
            raise AotgradValueError(f"options of pass {name!r} are not understood at {options[at:]!r}; write key=value with spaces or commas between")
        if m[1] not in fields:
            raise AotgradValueError(f"pass {name!r} has no option {m[1]!r}; it takes {', '.join(fields) or 'none'}")
        given[m[1]] = _read_option(name, m[1], m[2], fields[m[1]])
        at = m.end()
    try:
        return cls(**given)  # type: ignore[no-any-return]
    except TypeError as error:
        raise AotgradValueError(f"pass {name!r}: {error}; give its options in braces") from error


def _read_option(name: str, key: str, text: str, hint: Any) -> Any:
    kinds = get_args(hint) or (hint,)
    quoted = text[0] in "\"'"
    body = text[1:-1] if quoted else text
    if type(None) in kinds and body.lower() == "none" and not quoted:
        return None
    for kind in (bool, int, float, str):
        if kind not in kinds or (quoted and kind is not str):
            continue
        if kind is bool:
            if body.lower() in ("true", "false"):
                return body.lower() == "true"
            continue
        try:
            return kind(body)
        except ValueError:
            continue
    shown = " or ".join(getattr(k, "__name__", str(k)) for k in kinds)
    raise AotgradValueError(f"option {key!r} of pass {name!r} must be {shown}, not {text!r}")


# ---- running ------------------------------------------------------------------------------------------------------------------

def run_pipeline(func: Func, passes: Sequence[Pass], callback: Callable[[Step], None] | None = None) -> Func:
    """``func`` after all passes. ``callback`` is called after each one; with ``AOTGRAD_VERIFY=1`` in the environment the function is verified
    before the first and after each, and an error names the pass that broke it.

    >>> from aotgrad.ir import build, tensor_type
    >>> f = build("f", [tensor_type([3])], lambda b, x: [b.exp(x), b.mul(x, x)][1])
    >>> [op.name for op in run_pipeline(f, parse_pipeline("dce")).body.ops]
    ['mul']
    """
    check = os.environ.get("AOTGRAD_VERIFY", "0") not in ("", "0")
    sizes = _sizes(func) if check else ()
    if check:
        verify(func, sizes=sizes)
    for i, p in enumerate(passes):
        start = time.perf_counter()
        try:
            func = p(func)
        except AotgradError as error:
            error.args = (f"pass {p.name!r}: {error}", *error.args[1:])
            raise
        step = Step(i, p, func, time.perf_counter() - start)
        if check:
            try:
                verify(func, sizes=sizes)
            except VerifyError as error:
                raise VerifyError(f"after pass {p.name!r} (number {i}): {error}", error.op) from error
        if callback is not None:
            callback(step)
    return func


def _sizes(func: Func) -> Sequence[str]:
    """Every size the function names: those a derived function is given beside its arguments count as bound."""
    seen: dict[str, None] = {}
    stack: list[Any] = [a.type for a in func.args]
    for op in walk(func.body):
        stack.extend(r.type for r in op.results)
        stack.extend(op.attrs.values())
    while stack:
        v = stack.pop()
        if isinstance(v, dims.Dim):
            seen.update(dict.fromkeys(v.symbols()))
        elif isinstance(v, TensorType):
            stack.extend(v.shape)
        elif isinstance(v, (tuple, list)):
            stack.extend(v)
    return list(seen)
