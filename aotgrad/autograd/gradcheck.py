"""``gradcheck`` and ``gradgradcheck``: derivatives against finite differences (or complex steps), forward against reverse mode, with torch's arguments and verdicts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from aotgrad.frontend.boundary import guard
from aotgrad_runtime import engine, modes
from aotgrad_runtime.arrays import decode
from aotgrad_runtime.errors import AotgradError, AotgradRuntimeError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.records import record
from aotgrad_runtime.tape import cell_of
from aotgrad_runtime.tensor import Tensor, wrap
from aotgrad_runtime.watched import written

from . import forward_ad
from .gradients import grad

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]

F = Callable[..., Any]
Array = Any
_STEP = 1e-100  # of complex steps: nothing is subtracted, so it may be as small as the exponent allows


class GradcheckError(AotgradError, RuntimeError):
    """The check failed. ``worst``: ``(output, input, output index, input index, analytical, numerical)`` of the element that is furthest off, None for other failures."""

    worst: tuple[Any, ...] | None = None


class _UseError(AotgradValueError, AssertionError):
    """Arguments that contradict each other: AssertionError, as in torch."""


@record
class _Check:
    """One check: the function, its inputs, tolerances."""

    func: F
    inputs: tuple[Any, ...]
    eps: float
    atol: float
    rtol: float
    nondet_tol: float
    dtypes: bool
    fast: bool
    complex_step: bool
    where: list[int] = field(default_factory=list)  # inputs that require grad
    rng: Any = None

    def run(self) -> tuple[Any, ...]:
        return _as_tuple(self.func(*self.inputs))

    @property
    def wanted(self) -> list[Any]:
        return [self.inputs[i] for i in self.where]


def _as_tuple(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def _tracked(outs: Sequence[Any]) -> list[Any]:
    return [o for o in outs if isinstance(o, Tensor) and o._requires_grad]


def _floats(outs: Sequence[Any]) -> list[Any]:
    return [o for o in outs if isinstance(o, Tensor) and o._dtype.is_differentiable]


def _array(x: Any) -> Array:
    return np.asarray(decode(x._data))


def _tensor(data: Array, like: Any) -> Any:
    return wrap(np.ascontiguousarray(data, dtype=like._dtype.np).reshape(tuple(like.shape)), type(like)._value_type)


# ---- numbers: differences -------------------------------------------------------------------------------------------------------------

def _moved(check: _Check, k: int, step: Array) -> list[Array]:
    """Outputs with ``step`` added to input ``k``, in its memory, so that views and captured uses see it too."""
    x = check.inputs[k]
    before = x._data.copy()
    cell_of(x).bump()
    try:
        np.copyto(x._data, before + step.astype(before.dtype))
        written(x)
        return [np.array(_array(o)) if isinstance(o, Tensor) else o for o in check.run()]
    finally:
        np.copyto(x._data, before)
        written(x)


def _difference(check: _Check, k: int, direction: Array, places: Sequence[int]) -> list[Array]:
    """Central difference of the outputs at ``places`` along a direction of input ``k``."""
    step = (direction * check.eps).astype(direction.dtype)
    low, high = _moved(check, k, -step), _moved(check, k, step)
    out = []
    for p in places:
        a, b = low[p], high[p]
        if a.shape != b.shape or a.dtype != b.dtype:
            what = "shape" if a.shape != b.shape else "dtype"
            raise _UseError(f"Expected `func` to return outputs with the same {what} when inputs are perturbed by {check.eps}, but got: {a.shape} {a.dtype} and "
                            f"{b.shape} {b.dtype}.")
        with np.errstate(all="ignore"):
            out.append(((b - a) / b.dtype.type(2 * check.eps)).reshape(-1))
    return out


def _complex_step(check: _Check, k: int, direction: Array, places: Sequence[int]) -> list[Array] | None:
    """The derivative along a direction from one evaluation at ``x + ih``; None where that is not legal: the function refuses complex numbers, drops the imaginary part or
    is not analytic (its central difference tells)."""
    inputs = [wrap(_array(x).astype(np.complex128), type(x)._value_type) if isinstance(x, Tensor) and x._dtype.is_differentiable else x for x in check.inputs]
    inputs[k] = wrap(inputs[k]._data + 1j * _STEP * direction.astype(np.float64), type(inputs[k])._value_type)
    try:
        outs = _as_tuple(check.func(*inputs))
    except (AotgradError, TypeError, ValueError, ArithmeticError):
        return None
    rough, found = _difference(check, k, direction, places), []
    for p, r in zip(places, rough):
        o = _array(outs[p]).reshape(-1)
        if o.dtype.kind != "c" or o.shape != r.shape:
            return None
        exact = o.imag / _STEP
        if not np.allclose(exact, r, rtol=max(1e-3, check.rtol), atol=max(1e-3, check.atol)):
            return None
        found.append(exact)
    return found


def _numerical(check: _Check, k: int, direction: Array, places: Sequence[int]) -> list[Array]:
    if check.complex_step and check.inputs[k]._dtype.kind == "f":
        found = _complex_step(check, k, direction, places)
        if found is not None:
            return found
    return _difference(check, k, direction, places)


def _basis(x: Any) -> Any:
    """Unit directions of an input, one after another."""
    for j in range(x._data.size):
        e = np.zeros(x._data.size, x._dtype.np)
        e[j] = 1
        yield e.reshape(x._data.shape)


def _numerical_jacobian(check: _Check, k: int, outs: Sequence[Any], places: Sequence[int], part: str, holomorphic: bool) -> list[Array]:
    """Per output the matrix (input element, output element). ``part`` of complex outputs; a complex input gives the conjugate Wirtinger derivative unless
    ``holomorphic``."""
    x = check.inputs[k]
    rows: list[list[Array]] = [[] for _ in places]
    for e in _basis(x):
        along = [_part(d, part) for d in _numerical(check, k, e, places)]
        if x._dtype.is_complex and not holomorphic:
            across = [_part(d, part) for d in _difference(check, k, e * 1j, places)]
            along = [a + 1j * b for a, b in zip(along, across)]
        for row, a in zip(rows, along):
            row.append(a)
    sizes = [outs[p]._data.size for p in places]
    return [np.stack(row) if row else np.zeros((0, n)) for row, n in zip(rows, sizes)]


def _part(d: Array, part: str) -> Array:
    if d.dtype.kind != "c" or part == "whole":
        return d
    return d.imag if part == "imaginary" else d.real


# ---- numbers: derivatives -------------------------------------------------------------------------------------------------------------

def _pull(check: _Check, out: Any, ct: Any) -> list[Array]:
    """Gradients of the inputs for one cotangent, twice: they must agree."""
    first, second = [engine.grad([out], check.wanted, [ct], retain_graph=True, allow_unused=True) for _ in range(2)]
    found = []
    for g, h, x in zip(first, second, check.wanted):
        if g is None:
            found.append(np.zeros(x._data.shape, x._dtype.np))
            continue
        if tuple(g.shape) != tuple(x.shape):
            raise GradcheckError("Analytical gradient has incorrect size")
        if check.dtypes and g._dtype is not x._dtype:
            raise GradcheckError("Gradient has dtype mismatch")
        a, b = _array(g), _array(h)
        if a.size and not np.max(np.abs(a - b)) <= check.nondet_tol and not np.array_equal(a, b, equal_nan=True):
            raise GradcheckError("Backward is not reentrant, i.e., running backward with same input and grad_output multiple times gives different values, although "
                                 "analytical "
                                 f"gradient matches numerical gradient. The tolerance for nondeterminism was {check.nondet_tol}.")
        found.append(np.array(a))
    return found


def _reverse_jacobian(check: _Check, out: Any, part: str) -> list[Array]:
    """Per input the matrix (input element, output element)."""
    unit = 1j if part == "imaginary" and out._dtype.is_complex else 1
    columns = [_pull(check, out, _tensor(e * unit, out)) for e in _basis(out)]
    return [np.stack([c[i].reshape(-1) for c in columns], axis=1) if columns else np.zeros((x._data.size, 0)) for i, x in enumerate(check.wanted)]


@modes.intact
def _push(check: _Check, k: int, direction: Array) -> list[Any]:
    """Tangents of the float outputs (None: zero) along a direction of input ``k``."""
    with forward_ad.dual_level():
        given = []
        for i, x in enumerate(check.inputs):
            if i in check.where:
                x = forward_ad.make_dual(x.detach(), _tensor(direction if i == k else np.zeros(tuple(x.shape)), x))
            given.append(x)
        found = []
        for o in _floats(_as_tuple(check.func(*given))):
            primal, tangent = forward_ad.unpack_dual(o)
            if check.dtypes and tangent is not None and primal._dtype.is_complex != tangent._dtype.is_complex:
                raise GradcheckError("Forward AD gradient has dtype mismatch.")
            found.append(np.zeros(primal._data.size, primal._dtype.np) if tangent is None else np.array(_array(tangent)).reshape(-1))
        return found


# ---- comparing ------------------------------------------------------------------------------------------------------------------------

def _close(a: Array, n: Array, rtol: float, atol: float) -> Array:
    """Which elements agree, by torch's rule; a NaN agrees with nothing."""
    with np.errstate(all="ignore"):
        return (a == n) | (np.abs(a - n) <= atol + rtol * np.abs(n)) & np.isfinite(n)


def _compare(check: _Check, a: Array, n: Array, i: int, k: int, outs: Sequence[Any], mode: str, part: str) -> None:
    """``a`` (analytical) against ``n`` (numerical): matrices (input element, output element)."""
    good = _close(a, n, check.rtol, check.atol)
    if good.all():
        return
    with np.errstate(all="ignore"):
        excess = np.where(good, -np.inf, np.nan_to_num(np.abs(a - n) - check.rtol * np.abs(n), nan=np.inf, posinf=np.inf))
    row, column = np.unravel_index(int(np.argmax(excess)), a.shape)
    x = check.inputs[check.where[k]]
    at_in, at_out = _index(int(row), tuple(x.shape)), _index(int(column), tuple(outs[i].shape))
    prefix = f"While considering the {part} part of complex outputs only, " if part != "whole" else ""
    mode = " computed with forward mode" if mode == "forward" else ""
    with np.errstate(all="ignore"):
        off = abs(a[row, column] - n[row, column])
    error = GradcheckError(
        f"{prefix}Jacobian{mode} mismatch for output {i} with respect to input {k},\nnumerical:{_shown(n)}\nanalytical:{_shown(a)}\n"
        f"worst element: output {i} at {list(at_out)} in input {k} at {list(at_in)}: analytical {a[row, column]!s}, numerical {n[row, column]!s}, "
        f"difference {off:.3g} where {check.atol + check.rtol * abs(n[row, column]):.3g} is allowed; {int((~good).sum())} of {good.size} elements are off\n")
    error.worst = (i, k, at_out, at_in, a[row, column].item(), n[row, column].item())
    try:
        raise error
    finally:
        del error


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, shape)) if shape else ()


def _shown(matrix: Array) -> str:
    return repr(wrap(np.ascontiguousarray(matrix)))


def _parts(outs: Sequence[Any]) -> list[str]:
    return ["imaginary", "real"] if any(o._dtype.is_complex for o in _floats(outs)) else ["whole"]


def _slow(check: _Check, outs: tuple[Any, ...], reverse: bool, forward: bool) -> None:
    places = [i for i, o in enumerate(outs) if isinstance(o, Tensor) and o._requires_grad]
    if not places:
        _expect_zero(check, outs)
        return
    tracked = [outs[p] for p in places]
    found: dict[tuple[int, int], Array] = {}
    if reverse:
        for part in _parts(tracked):
            numerical = [_numerical_jacobian(check, k, outs, places, part, False) for k in check.where]
            for i, o in enumerate(tracked):
                for k, a in enumerate(_reverse_jacobian(check, o, part)):
                    _compare(check, a, numerical[k][i], i, k, tracked, "reverse", part if o._dtype.is_complex else "whole")
                    found[i, k] = a
    if forward:
        among = _floats(outs)
        index = [next(j for j, f in enumerate(among) if f is o) for o in tracked]
        for k, where in enumerate(check.where):
            x = check.inputs[where]
            for unit in (1, 1j) if x._dtype.is_complex else (1,):
                columns = [_push(check, where, e * unit) for e in _basis(x)]
                rows = [[_difference(check, where, e * unit, places)[i] for e in _basis(x)] for i in range(len(places))]
                for i, o in enumerate(tracked):
                    a = np.stack([c[index[i]] for c in columns]) if columns else np.zeros((0, o._data.size))
                    _compare(check, a, np.stack(rows[i]) if rows[i] else a, i, k, tracked, "forward", "whole")
                    if unit == 1 and (i, k) in found and not x._dtype.is_complex and not o._dtype.is_complex:
                        _same_modes(check, a, found[i, k], i, k)


def _same_modes(check: _Check, forward: Array, reverse: Array, i: int, k: int) -> None:
    """Both modes are exact up to rounding, so they must agree better than either does with a difference."""
    good = _close(forward, reverse, check.rtol / 100, check.atol / 100)
    if not good.all():
        row, column = np.unravel_index(int(np.argmax(~good)), good.shape)
        raise GradcheckError(f"Forward and reverse mode differ for output {i} with respect to input {k}: forward {forward[row, column]!s}, reverse "
                             f"{reverse[row, column]!s} at "
                             f"element {int(column)} of the output and element {int(row)} of the input, both counted flat")


def _expect_zero(check: _Check, outs: tuple[Any, ...]) -> None:
    places = [i for i, o in enumerate(outs) if isinstance(o, Tensor)]
    for k in check.where:
        for e in _basis(check.inputs[k]):
            if any(np.any(d != 0) for d in _difference(check, k, e, places)):
                raise GradcheckError("Numerical gradient for function expected to be zero")


def _fast(check: _Check, outs: tuple[Any, ...], reverse: bool, forward: bool) -> None:
    """Random combinations v' J u instead of whole matrices."""
    places = [i for i, o in enumerate(outs) if isinstance(o, Tensor) and o._requires_grad]
    if not places:
        _expect_zero(check, outs)
        return
    tracked = [outs[p] for p in places]
    us = [_random(check, x, True) for x in check.wanted]
    if reverse:
        vs = [_random(check, o, False) for o in tracked]
        pulled = [_pull(check, o, _tensor(v, o)) for o, v in zip(tracked, vs)]
        for k, (where, u) in enumerate(zip(check.where, us)):
            moved = _difference(check, where, u, places) if not check.complex_step else _numerical(check, where, u, places)
            across = _difference(check, where, _random(check, check.inputs[where], True) * 0 + u * 1j, places) if check.inputs[where]._dtype.is_complex else None
            for i, v in enumerate(vs):
                g = pulled[i][k]
                a = np.vdot(g, u).conj() if across is None else g.real.ravel() @ u.real.ravel() + 1j * (g.imag.ravel() @ u.real.ravel())
                n = _dot(v, moved[i]) if across is None else _dot(v, moved[i]) + 1j * _dot(v, across[i])
                _compare_scalar(check, np.real_if_close(a), n, i, k, outs, tracked, float(np.abs(u).sum() * np.abs(v).sum()), "reverse")
    if forward:
        among = _floats(outs)
        for k, (where, u) in enumerate(zip(check.where, us)):
            pushed, moved = _push(check, where, u), _difference(check, where, u, places)
            for i, o in enumerate(tracked):
                a = pushed[next(j for j, f in enumerate(among) if f is o)]
                if not _close(a, moved[i], check.rtol, check.atol * float(np.abs(u).sum())).all():
                    _slow(check, outs, False, True)
                    raise _fast_only(i, k, "forward")


def _dot(v: Array, d: Array) -> Any:
    """Re <v, d> for a complex output, v . d for a real one."""
    return np.real(np.vdot(v, d)) if d.dtype.kind == "c" else v.ravel() @ d.ravel()


def _random(check: _Check, like: Any, real: bool) -> Array:
    """A vector in the first orthant of length 1, as torch's, so that tolerances scale with its sum."""
    shape = tuple(like.shape)
    v = check.rng.random(shape)
    if like._dtype.is_complex and not real:
        v = v + 1j * check.rng.random(shape)
    norm = np.sqrt(np.sum(np.abs(v) ** 2))
    return np.asarray(v / norm if norm else v).astype(like._dtype.np)


def _compare_scalar(check: _Check, a: Any, n: Any, i: int, k: int, outs: tuple[Any, ...], tracked: Sequence[Any], scale: float, mode: str) -> None:
    if bool(np.all(_close(np.asarray(a), np.asarray(n), check.rtol, check.atol * scale))):
        return
    _slow(check, outs, True, False)  # names the worst element
    raise _fast_only(i, k, mode)


def _fast_only(i: int, k: int, mode: str) -> GradcheckError:
    forward = " computed with forward mode" if mode == "forward" else ""
    return GradcheckError(f"Jacobian{forward} mismatch for output {i} with respect to input {k}: a random combination is off, though element-wise differences are small. "
                          "The check might pass with fast_mode=False.")


# ---- zero and absent gradients ----------------------------------------------------------------------------------------------------------

def _check_scaling(check: _Check, outs: Sequence[Any]) -> None:
    tracked = _tracked(outs)
    if not tracked:
        return
    zeros = [_tensor(np.zeros(tuple(o.shape)), o) for o in tracked]
    grads = engine.grad(tracked, check.wanted, zeros, retain_graph=True, allow_unused=True)
    for g, x in zip(grads, check.wanted):
        if g is None:
            continue
        if np.any(_array(g) != 0):
            raise GradcheckError("backward not multiplied by grad_output")
        if g._dtype is not x._dtype:
            raise GradcheckError("grad is incorrect type")
        if tuple(g.shape) != tuple(x.shape):
            raise GradcheckError("grad is incorrect size")


def _check_undefined(check: _Check) -> None:
    """A backward function must accept None for any of its cotangents."""
    tracked = _tracked(check.run())
    nodes: dict[Any, list[int]] = {o._node: [] for o in tracked if o._node is not None}
    for o in tracked:
        if o._node is not None:
            nodes[o._node].append(o._index)
    for node in nodes:
        cts: list[Any] = [None] * node.outputs
        try:
            grads = node(*cts)
        except RuntimeError as error:
            _warn_undefined()
            raise GradcheckError("Expected backward function to handle undefined output grads. Test gradients for None, or keep "
                                 "ctx.set_materialize_grads(True)") from error
        for g in grads if isinstance(grads, tuple) else (grads,):
            if g is not None and np.any(_array(g) != 0):
                _warn_undefined()
                raise GradcheckError("Expected all input grads to be undefined or zero when all output grads are undefined or zero")


def _warn_undefined() -> None:
    warnings.warn("Backwards compatibility: New undefined gradient support checking feature is enabled by default, but it may break existing callers of this "
                  "function. If this is "
                  'true for you, you can call this function with "check_undefined_grad=False" to disable the feature', stacklevel=5)


# ---- the checks -----------------------------------------------------------------------------------------------------------------------

def _check_inputs(inputs: tuple[Any, ...]) -> list[int]:
    where = [i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x._requires_grad]
    for i in where:
        x = inputs[i]
        if x._dtype.name not in ("float64", "complex128"):
            warnings.warn(f"Input #{i} requires gradient and is not a double precision floating point or complex. This check will likely fail if all the inputs are "
                          f"not of double "
                          "precision floating point or complex. ", stacklevel=4)
        if x._data.size and any(step == 0 and n > 1 for step, n in zip(x._data.strides, x._data.shape)):
            raise AotgradRuntimeError(f"The {i}th input has a dimension with stride 0. gradcheck only supports inputs that are non-overlapping to be able to compute "
                                      f"the numerical "
                                      "gradients correctly. You should call .contiguous on the input before passing it to gradcheck.")
        if not x._data.flags.writeable:
            raise AotgradRuntimeError(f"The {i}th input lies in read-only memory, which cannot be perturbed; pass a clone of it")
    if not where:
        raise AotgradValueError("gradcheck expects at least one input tensor to require gradient, but none of them have requires_grad=True.")
    return where


def gradcheck(
    func: F, inputs: Any, *, eps: float = 1e-6, atol: float = 1e-5, rtol: float = 1e-3, raise_exception: bool = True, nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False, check_batched_grad: bool = False, check_batched_forward_grad: bool = False, check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False, masked: bool | None = None, complex_step: bool = False,
) -> bool:
    """Compares derivatives with central differences at the ``inputs`` that require grad: True, or ``GradcheckError`` that names the worst element (False without
    ``raise_exception``).

    Made for float64: lower precision warns. ``check_forward_ad`` also checks forward mode, and both modes against each other. ``fast_mode`` compares random combinations.
    ``complex_step`` takes derivatives by complex steps, exact to rounding, where the function is analytic and takes complex numbers.

    >>> import numpy as np, aotgrad as ag
    >>> x = ag.tensor(np.array([1.0, 2.0]), requires_grad=True)
    >>> ag.autograd.gradcheck(lambda x: (x ** 3).sum(), (x,))
    True
    """
    if not (check_forward_ad or check_backward_ad):
        raise _UseError("Expected at least one of check_forward_ad or check_backward_ad to be True")
    if check_batched_grad and not check_backward_ad:
        raise _UseError("Setting check_batched_grad=True requires check_backward_ad to be True")
    if check_batched_forward_grad and not check_forward_ad:
        raise _UseError("Setting check_batched_forward_grad=True requires check_forward_ad to be True")
    given = _as_tuple(inputs)
    check = _Check(func, given, eps, atol, rtol, nondet_tol, check_grad_dtypes, fast_mode, complex_step, _check_inputs(given), np.random.default_rng(0))
    try:
        _run(check, check_backward_ad, check_forward_ad, check_undefined_grad, check_batched_grad)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _run(check: _Check, reverse: bool, forward: bool, undefined: bool, batched: bool) -> None:
    outs = check.run()
    for i, o in enumerate(outs):
        if not isinstance(o, Tensor):
            raise AotgradTypeError(f"gradcheck: func must return tensors, but its output {i} is {type(o).__name__}")
    (_fast if check.fast else _slow)(check, outs, reverse, forward)
    if not reverse:
        return
    if batched:
        _check_batched(check, outs)
    _check_scaling(check, outs)
    if undefined:
        _check_undefined(check)


def _check_batched(check: _Check, outs: Sequence[Any]) -> None:
    """Gradients of several cotangents at once are those of each."""
    for i, o in enumerate(_tracked(outs)):
        vs = [_random(check, o, False) for _ in range(2)]
        both = _pull(check, o, _tensor(vs[0] + vs[1], o))
        for k, (total, *parts) in enumerate(zip(both, *[_pull(check, o, _tensor(v, o)) for v in vs])):
            if not np.allclose(total, sum(parts), rtol=1e-4, atol=1e-6):
                raise GradcheckError(f"For output {i} and input {k}: the gradient of a sum of cotangents is not the sum of their gradients")


def gradgradcheck(
    func: F, inputs: Any, grad_outputs: Any = None, *, eps: float = 1e-6, atol: float = 1e-5, rtol: float = 1e-3, gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True, nondet_tol: float = 0.0, check_undefined_grad: bool = True, check_grad_dtypes: bool = False, check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False, check_rev_over_rev: bool = True, fast_mode: bool = False, masked: bool = False,
) -> bool:
    """``gradcheck`` of the gradient: second derivatives in ``inputs`` and ``grad_outputs`` (random ones by default, non-contiguous with ``gen_non_contig_grad_outputs``).

    >>> import numpy as np, aotgrad as ag
    >>> x = ag.tensor(np.array([1.0, 2.0]), requires_grad=True)
    >>> ag.autograd.gradgradcheck(lambda x: x ** 3, (x,))
    True
    """
    if not (check_fwd_over_rev or check_rev_over_rev):
        raise _UseError("Expected at least one of check_fwd_over_rev or check_rev_over_rev to be True")
    if check_undefined_grad and not check_rev_over_rev:
        raise _UseError("Setting check_undefined_grad=True requires check_rev_over_rev to be True")
    if check_batched_grad and not check_rev_over_rev:
        raise _UseError("Setting check_batched_grad=True requires check_rev_over_rev to be True")
    given = _as_tuple(inputs)
    if grad_outputs is None:
        cts = tuple(_random_cotangent(o, gen_non_contig_grad_outputs, n) for n, o in enumerate(_tracked(_as_tuple(func(*given)))))
    else:
        cts = _as_tuple(grad_outputs)
    inner = _Gradient(func, given, cts)
    return gradcheck(inner, (*given, *cts), eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception, nondet_tol=nondet_tol,
                     check_undefined_grad=check_undefined_grad,
                     check_grad_dtypes=check_grad_dtypes, check_batched_grad=check_batched_grad, fast_mode=fast_mode, check_forward_ad=check_fwd_over_rev,
                     check_backward_ad=check_rev_over_rev, masked=masked)


def _random_cotangent(out: Any, strided: bool, seed: int) -> Any:
    rng = np.random.default_rng(seed + 1)
    shape = tuple(out.shape)
    data = rng.uniform(-1, 1, (*shape, 2))
    if out._dtype.is_complex:
        data = data + 1j * rng.uniform(-1, 1, data.shape)
    data = data.astype(out._dtype.np)[..., 0]
    made = wrap(data if strided else data.copy(), type(out)._value_type)
    made.requires_grad_(True)
    return made


class _Gradient:
    """(inputs, cotangents) -> gradients of the inputs, on the tape."""

    def __init__(self, func: F, inputs: tuple[Any, ...], cts: tuple[Any, ...]) -> None:
        self.func, self.count = func, len(cts)
        self.wants = [isinstance(x, Tensor) and x._requires_grad for x in (*inputs, *cts)]

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        n = len(args) - self.count
        args = tuple(a.requires_grad_(True) if on and not a._requires_grad else a for a, on in zip(args, self.wants))
        xs = [a for a, on in zip(args[:n], self.wants) if on]
        outs = [o for o in _as_tuple(self.func(*args[:n])) if isinstance(o, Tensor) and o._requires_grad]
        found = grad(outs, xs, list(args[n:]), create_graph=True, allow_unused=True)
        return tuple(g for g in found if g is not None)


guard(globals(), __all__)
