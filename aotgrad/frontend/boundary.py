"""Where calls of public functions begin: what Python or NumPy refuses of one, inside, is an error of ours that names the function, its arguments and the user's line.

Errors out of the user's own code (hooks, callbacks, ``__array__``) pass as they are.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeVar

import numpy as np

from aotgrad_runtime.errors import (
    AotgradArgumentError,
    AotgradAttributeError,
    AotgradError,
    AotgradIndexError,
    AotgradMemoryError,
    AotgradOverflowError,
    AotgradTypeError,
)
from aotgrad_runtime.tensor import Tensor

from .trace import user_loc, within

__all__ = ["PLAIN", "absent", "called_wrongly", "guard", "refusal", "restate", "standing_in", "told", "told_method"]

F = TypeVar("F", bound=Callable[..., Any])

PLAIN = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, MemoryError, RecursionError)
"""What Python and NumPy raise of arguments that nobody foresaw."""

_KINDS: tuple[tuple[Any, Any], ...] = ((MemoryError, AotgradMemoryError), (IndexError, AotgradIndexError), (OverflowError, AotgradOverflowError),
                                       (ValueError, AotgradArgumentError), (ArithmeticError, AotgradArgumentError))


def told(f: F, name: str | None = None, module: str | None = None) -> F:
    """``f``, a public function (under another name and of another module where they are given), with its errors in our words.

    >>> import aotgrad as ag
    >>> ag.diff()
    Traceback (most recent call last):
    aotgrad_runtime.errors.AotgradTypeError: diff() missing a required argument: 'input'; its signature is diff(input, n=1, dim=-1)
    """
    plain, refuse = PLAIN, _refuse

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return f(*args, **kwargs) if kwargs else f(*args)
        except plain as error:
            refuse(out, args, kwargs, error)

    out = standing_in(call, f)
    out.__name__ = out.__qualname__ = name or f.__name__
    out.__module__ = module or ("aotgrad" if not f.__module__.startswith("aotgrad.nn") else "aotgrad.nn.functional")  # by which it is found again
    out._told = True  # type: ignore[attr-defined]
    return out


def told_method(f: F, name: str) -> F:
    """``f``, the method ``name`` of tensors, with its errors in our words.

    >>> import aotgrad as ag
    >>> ag.ones(2).view_as()
    Traceback (most recent call last):
    aotgrad_runtime.errors.AotgradTypeError: view_as() missing a required argument: 'other'; its signature is view_as(other)
    """
    plain, refuse = PLAIN, _refuse

    def call(self: Any = None, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return f(self, *args, **kwargs) if args or kwargs else f(self)  # most are called with nothing, which is quicker so
        except plain as error:
            refuse(out, (self, *args), kwargs, error, 1)

    out = standing_in(call, f)
    out.__name__, out._told = name, True  # type: ignore[attr-defined]
    return out


def standing_in(call: Callable[..., Any], f: F) -> F:
    """``call`` under the name of ``f``, and of its module for those who look there for examples. ``call`` has no globals of its own then."""
    made = types.FunctionType(call.__code__, f.__globals__, f.__name__, call.__defaults__, call.__closure__)
    return functools.update_wrapper(made, f)  # type: ignore[return-value]


_STANDS_IN: dict[Any, Any] = {}


def guard(namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Puts what ``told`` makes in place of the functions and the constructors of a public module; other names are errors of ours there."""
    names = tuple(names)
    namespace.setdefault("__getattr__", absent(namespace["__name__"], names))
    for name in names:
        thing = namespace.get(name)
        if isinstance(thing, types.FunctionType) and not hasattr(thing, "_told"):
            namespace[name] = _STANDS_IN.get(thing) or _STANDS_IN.setdefault(thing, told(thing, name, namespace["__name__"]))
        elif isinstance(thing, type) and not issubclass(thing, BaseException):
            _guard_class(thing)


def absent(module: str, names: Iterable[str]) -> Callable[[str], NoReturn]:
    """The ``__getattr__`` of a public module that has ``names``: Python asks it for those that are not there.

    >>> from aotgrad.frontend.boundary import absent
    >>> absent("aotgrad.optim", ["SGD", "Adam"])("LBFGS")
    Traceback (most recent call last):
    aotgrad_runtime.errors.AotgradAttributeError: module 'aotgrad.optim' has no attribute 'LBFGS'; it has Adam, SGD
    """
    def refuse(name: str) -> NoReturn:
        raise AotgradAttributeError(f"module {module!r} has no attribute {name!r}; it has {', '.join(sorted(names))}")

    return refuse


def _guard_class(cls: type[Any]) -> None:
    for name in ("__new__", "__init__"):
        for owner in cls.__mro__:
            made = vars(owner).get(name)
            made = made.__func__ if isinstance(made, staticmethod) else made
            if made is not None:
                if isinstance(made, types.FunctionType) and made.__module__.startswith("aotgrad") and not hasattr(made, "_told"):
                    setattr(owner, name, _told_constructor(made, owner))
                break


def _told_constructor(f: F, owner: type[Any]) -> F:
    plain, refuse = PLAIN, _refuse

    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return f(self, *args, **kwargs)
        except plain as error:
            refuse(out, (self, *args), kwargs, error, 1, owner, self)

    out = standing_in(call, f)
    out._told = True  # type: ignore[attr-defined]
    return out


def restate(found: AotgradError | None, error: BaseException) -> NoReturn:
    """Raises ``found`` in place of ``error``, or that itself where there is none; neither stays a variable of a frame, which would hold what the frame holds."""
    try:
        if found is None:
            raise error
        raise found from error
    finally:
        del found, error


def _refuse(f: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], error: BaseException, bound: int = 0, owner: Any = None,
            made: Any = None) -> NoReturn:
    """Restates ``error``. ``bound``: how many parameters the caller does not write (``self``); ``owner``, ``made``: the class that has this constructor, and what it
    makes."""
    try:
        name = f.__name__
        if owner is not None:
            made = made if isinstance(made, type) else type(made)
            name = (made if made.__module__.startswith("aotgrad") else owner).__name__
        restate(called_wrongly(f, args, kwargs, error, bound, name), error)
    finally:
        del args, kwargs, error, made


def called_wrongly(f: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], error: BaseException, bound: int = 0,
                   name: str | None = None) -> AotgradError | None:
    """The error for a call of ``f``; None where it is ours already, or the user's."""
    if isinstance(error, AotgradError) or _of_user(error):
        return None
    name, signature = name or f.__name__, inspect.signature(f)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError as wrong:
        return AotgradTypeError(f"{name}() {wrong}; its signature is {name}{_plain(signature, bound)}")
    for own in list(given)[:bound] if name != f.__name__ else ():
        del given[own]
    return refusal(name, given, f"{name}{_plain(signature, bound)}", error)


def _plain(signature: inspect.Signature, bound: int) -> str:
    """The parameters without their annotations."""
    kept = [p.replace(annotation=p.empty) for p in signature.parameters.values()][bound:]
    return str(signature.replace(parameters=kept, return_annotation=signature.empty))


def refusal(name: str, given: Mapping[str, Any], signature: str, error: BaseException) -> AotgradError | None:
    """The error for arguments that ``error`` is about; None where it is ours already, the user's or Python's."""
    if isinstance(error, AotgradError) or _of_user(error):
        return None
    if isinstance(error, RecursionError) and not any(isinstance(v, (list, tuple, dict)) for v in given.values()):
        return None  # no argument is nested: the caller calls itself without end, and Python's error says so
    kind: type[Any] = next((ours for theirs, ours in _KINDS if isinstance(error, theirs)), AotgradTypeError)
    why = "lists are nested too deeply, or one holds itself" if isinstance(error, RecursionError) else str(error) or "there is not enough memory"
    advice = "make the sizes smaller" if kind is AotgradMemoryError else f"its signature is {signature}"
    found = kind(f"{user_loc()}: {name}() cannot use {', '.join(f'{k}={_brief(v)}' for k, v in given.items()) or 'these arguments'} ({why}); {advice}")
    found.unforeseen = kind in (AotgradTypeError, AotgradArgumentError)  # perhaps sizes as Python's integers help
    return found  # type: ignore[no-any-return]


def _of_user(error: BaseException) -> bool:
    """Whether code of the user's stands between the call and what raised it."""
    at = error.__traceback__
    while at is not None and within(at.tb_frame.f_code.co_filename):
        at = at.tb_next
    return at is not None


def _brief(x: Any) -> str:
    if isinstance(x, (Tensor, np.ndarray)):
        return f"<{'tensor' if isinstance(x, Tensor) else 'array'} of shape {list(map(str, x.shape))}>".replace("'", "")
    try:
        return f"{x!r:.40}"
    except Exception:  # a printed form of the user's, or lists too deep
        return f"<{type(x).__name__}>"
