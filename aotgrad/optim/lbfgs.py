"""LBFGS: a quasi-Newton method that calls its closure several times a step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from aotgrad.frontend.factories import zeros_like
from aotgrad.frontend.ledger import ledger_of
from aotgrad.frontend.methods import FUNCTIONS as _f
from aotgrad.frontend.trace import user_loc
from aotgrad_runtime import modes
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradRuntimeError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.tensor import Tensor

from .optimizer import Optimizer, checked

__all__ = ["LBFGS"]

_ARMIJO, _CURVATURE, _SEARCHES = 1e-4, 0.9, 25


def _number(loss: Any) -> float:
    return float(loss.item() if isinstance(loss, Tensor) else loss)


class _Point(NamedTuple):
    """A place on the line of a search: the length of the step, the loss there, its gradient, and the derivative along the line."""

    t: float
    loss: float
    grad: Any
    slope: float


def _minimum(a: _Point, b: _Point, bounds: tuple[float, float] | None = None) -> float:
    """Where the cubic through two points with these slopes has its minimum, within ``bounds`` (the points themselves)."""
    low, high = bounds or (min(a.t, b.t), max(a.t, b.t))
    d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = d1 * d1 - a.slope * b.slope
    if not square >= 0:
        return (low + high) / 2.0
    d2 = math.sqrt(square)
    if a.t <= b.t:
        found = b.t - (b.t - a.t) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2))
    else:
        found = a.t - (a.t - b.t) * ((a.slope + d2 - d1) / (a.slope - b.slope + 2 * d2))
    return min(max(found, low), high)


class LBFGS(Optimizer):
    """Limited-memory BFGS, for all parameters as one vector (one group). ``step(closure)`` needs a function that clears the gradients, computes the loss, calls
    ``backward`` and gives the loss; it is called up to ``max_eval`` times (None: ``max_iter * 5 // 4``). ``line_search_fn``: None or ``"strong_wolfe"``.

    It decides by numbers how to go on, so ``step`` is called outside compiled functions; the closure may call compiled ones.

    >>> import aotgrad as ag
    >>> w = ag.tensor([3.0, -2.0], requires_grad=True)
    >>> opt = ag.optim.LBFGS([w], line_search_fn="strong_wolfe")
    >>> def closure():
    ...     opt.zero_grad()
    ...     loss = ((w - 1) ** 2).sum()
    ...     loss.backward()
    ...     return loss
    >>> opt.step(closure)
    tensor(13., grad_fn=<SumBackward0>)
    >>> ag.allclose(w, ag.ones(2))
    True
    """

    def __init__(self, params: Any, lr: float = 1, max_iter: int = 20, max_eval: int | None = None, tolerance_grad: float = 1e-7, tolerance_change: float = 1e-9,
                 history_size: int = 100, line_search_fn: str | None = None) -> None:
        checked(lr=lr)
        if line_search_fn not in (None, "strong_wolfe"):
            raise AotgradRuntimeError(f"LBFGS: line_search_fn must be None or 'strong_wolfe', got {line_search_fn!r}")
        super().__init__(params, {"lr": lr, "max_iter": max_iter, "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval, "tolerance_grad": tolerance_grad,
                                  "tolerance_change": tolerance_change, "history_size": history_size, "line_search_fn": line_search_fn})
        if len(self.param_groups) != 1:
            raise AotgradValueError("LBFGS doesn't support per-parameter options (parameter groups)")
        self._params = self.param_groups[0]["params"]

    # All parameters as one vector ---------------------------------------------------------------------------------------------------------------

    def _gradient(self) -> Any:
        return _f["cat"]([(zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in self._params])

    def _move(self, direction: Any, t: float) -> None:
        at = 0
        for p in self._params:
            n = p.numel()
            p.add_(direction[at:at + n].view_as(p), alpha=t)
            at += n

    def _evaluate(self, closure: Callable[[], Any], start: list[Any], direction: Any, t: float) -> _Point:
        """The loss ``t`` along ``direction`` from ``start``, where the parameters are again afterwards."""
        self._move(direction, t)
        with modes.enable_grad():
            loss = _number(closure())
        grad = self._gradient()
        for p, old in zip(self._params, start):
            p.copy_(old)
        return _Point(t, loss, grad, float(grad.dot(direction)))

    @modes.intact
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Up to ``max_iter`` iterations. Gives what the closure gave first. Raises ``AotgradTypeError`` without a closure."""
        if closure is None:
            raise AotgradTypeError("LBFGS.step() needs a closure: a function that clears the gradients, computes the loss, calls backward() and returns the loss")
        if ledger_of() is not None:
            raise AotgradNotImplementedError(f"{user_loc()}: LBFGS.step decides by numbers how often it calls its closure, which a compiled function cannot; call it "
                                             "outside, and compile the closure")
        self._opt_called = True
        with modes.no_grad():
            return self._iterate(closure)

    def _iterate(self, closure: Callable[[], Any]) -> Any:
        group, state = self.param_groups[0], self.state[self._params[0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        with modes.enable_grad():
            first = closure()
        loss, evaluations = _number(first), 1
        state["func_evals"] += 1
        grad = self._gradient()
        if float(grad.abs().max()) <= group["tolerance_grad"]:
            return first
        for k in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            direction = self._direction(state, grad, group["history_size"])
            state.update(prev_flat_grad=grad.clone(), prev_loss=loss, d=direction)
            length = min(1.0, 1.0 / float(grad.abs().sum())) * group["lr"] if state["n_iter"] == 1 else group["lr"]
            slope = float(grad.dot(direction))
            state["t"] = length
            if slope > -group["tolerance_change"]:
                break
            before, more = loss, 0
            if group["line_search_fn"] is not None:
                found, more = self._search(closure, direction, _Point(0.0, loss, grad, slope), length, group["tolerance_change"])
                loss, grad, state["t"] = found.loss, found.grad, found.t
                self._move(direction, found.t)
            else:
                self._move(direction, length)
                if k != group["max_iter"]:
                    with modes.enable_grad():
                        loss = _number(closure())
                    grad, more = self._gradient(), 1
            evaluations += more
            state["func_evals"] += more
            if self._done(state, group, grad, loss, before, evaluations):
                break
        return first

    @staticmethod
    def _done(state: dict[str, Any], group: dict[str, Any], grad: Any, loss: float, before: float, evaluations: int) -> bool:
        tolerance = group["tolerance_change"]
        return bool(evaluations >= group["max_eval"] or float(grad.abs().max()) <= group["tolerance_grad"]
                    or float((state["d"] * state["t"]).abs().max()) <= tolerance or abs(loss - before) < tolerance)

    @staticmethod
    def _direction(state: dict[str, Any], grad: Any, size: int) -> Any:
        """Minus the inverse Hessian, as the last steps tell it, times the gradient (two loops over the history)."""
        if state["n_iter"] == 1:
            state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1.0)
            return -grad
        change, moved = grad - state["prev_flat_grad"], state["d"] * state["t"]
        curvature = float(change.dot(moved))
        if curvature > 1e-10:
            if len(state["old_dirs"]) == size:
                for name in ("old_dirs", "old_stps", "ro"):
                    state[name].pop(0)
            state["old_dirs"].append(change)
            state["old_stps"].append(moved)
            state["ro"].append(1.0 / curvature)
            state["H_diag"] = curvature / float(change.dot(change))
        history = list(zip(state["old_dirs"], state["old_stps"], state["ro"]))
        q, shares = -grad, []
        for y, s, rho in reversed(history):
            shares.append(float(s.dot(q)) * rho)
            q = q - y * shares[-1]
        q = q * state["H_diag"]
        for (y, s, rho), share in zip(history, reversed(shares)):
            q = q + s * (share - float(y.dot(q)) * rho)
        return q

    # The line search ----------------------------------------------------------------------------------------------------------------------------

    def _search(self, closure: Callable[[], Any], direction: Any, origin: _Point, length: float, tolerance: float) -> tuple[_Point, int]:
        """A step that meets the strong Wolfe conditions (Nocedal and Wright, algorithms 3.5 and 3.6), and how often the closure was called."""
        start = [p.clone() for p in self._params]
        norm = float(direction.abs().max())

        def evaluate(t: float) -> _Point:
            return self._evaluate(closure, start, direction, t)

        last, now, count = origin, evaluate(length), 1
        bracket: list[_Point] | None = None
        for k in range(_SEARCHES):
            higher = now.loss > origin.loss + _ARMIJO * now.t * origin.slope or k > 0 and now.loss >= last.loss
            if not higher and abs(now.slope) <= -_CURVATURE * origin.slope:
                return now, count
            if higher or now.slope >= 0:
                bracket = [last, now]
                break
            last, now = now, evaluate(_minimum(last, now, (now.t + 0.01 * (now.t - last.t), now.t * 10)))
            count += 1
        if bracket is None:
            bracket, k = [origin, now], _SEARCHES
        return self._zoom(evaluate, origin, bracket, _SEARCHES - k, norm, tolerance, count)

    @staticmethod
    def _zoom(evaluate: Callable[[float], _Point], origin: _Point, bracket: list[_Point], rounds: int, norm: float, tolerance: float,
              count: int) -> tuple[_Point, int]:
        low, high = sorted(bracket, key=lambda p: p.loss)
        stuck = False
        for _ in range(rounds):
            left, right = min(low.t, high.t), max(low.t, high.t)
            if (right - left) * norm < tolerance:
                break
            t, margin = _minimum(low, high), 0.1 * (right - left)
            if min(right - t, t - left) < margin:  # too near an end, which is allowed once
                if stuck or t >= right or t <= left:
                    t = right - margin if abs(t - right) < abs(t - left) else left + margin
                    stuck = False
                else:
                    stuck = True
            else:
                stuck = False
            now = evaluate(t)
            count += 1
            if now.loss > origin.loss + _ARMIJO * t * origin.slope or now.loss >= low.loss:
                high = now
                if high.loss < low.loss:
                    low, high = high, low
                continue
            if abs(now.slope) <= -_CURVATURE * origin.slope:
                return now, count
            if now.slope * (high.t - low.t) >= 0:
                high = low
            low = now
        return low, count
