"""Schedules of the learning rate, under torch.optim.lr_scheduler's names. ``scheduler.step()`` goes after ``optimizer.step()``, outside compiled functions; a compiled
step reads the learning rate at every call, so a schedule compiles nothing anew."""

from __future__ import annotations

import math
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from aotgrad.frontend.boundary import guard as _guard
from aotgrad.frontend.ledger import ledger_of
from aotgrad.frontend.trace import user_loc
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.tensor import Tensor

from .optimizer import Optimizer

__all__ = ["ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialLR", "LRScheduler", "LambdaLR", "LinearLR",
           "MultiStepLR", "MultiplicativeLR", "OneCycleLR", "PolynomialLR", "ReduceLROnPlateau", "SequentialLR", "StepLR"]


def _outside(what: str) -> None:
    if ledger_of() is not None:
        raise AotgradNotImplementedError(f"{user_loc()}: {what}.step() counts epochs in Python, which a compiled function cannot; call it after the compiled step, which "
                                         "reads the learning rate at every call")


def _set(group: dict[str, Any], rate: Any, key: str = "lr") -> None:
    if isinstance(group[key], Tensor):
        group[key].fill_(rate)
    else:
        group[key] = float(rate)


def _optimizer(given: Any, what: str) -> Any:
    if not isinstance(given, Optimizer):
        raise AotgradTypeError(f"{what}: optimizer must be an ag.optim.Optimizer, not {type(given).__name__}")
    return given


class LRScheduler:
    """The base of schedules: write ``get_lr()``, the rates of all groups for epoch ``self.last_epoch``. ``last_epoch=-1`` begins; another continues from there.

    >>> import aotgrad as ag
    >>> opt = ag.optim.SGD([ag.ones(1, requires_grad=True)], lr=1.0)
    >>> schedule = ag.optim.lr_scheduler.StepLR(opt, step_size=2, gamma=0.1)
    >>> for _ in range(3):
    ...     opt.step(); schedule.step()
    >>> schedule.last_epoch, schedule.get_last_lr()
    (3, [0.1])
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = _optimizer(optimizer, type(self).__name__)
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                rate = group["lr"]
                group.setdefault("initial_lr", rate.clone() if isinstance(rate, Tensor) else rate)
            elif "initial_lr" not in group:
                raise AotgradValueError(f"param 'initial_lr' is not specified in param_groups[{i}] when resuming an optimizer; load its state, or set it")
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._step_count = 0
        self._last_lr: list[Any] = []
        self.step()

    def get_lr(self) -> list[Any]:
        """The rates of the groups for ``last_epoch``: written by every subclass."""
        raise AotgradNotImplementedError(f"{type(self).__name__}.get_lr")

    def get_last_lr(self) -> list[Any]:
        """The rates that ``step`` has set last, one per group."""
        return self._last_lr

    def step(self, epoch: int | None = None) -> None:
        """Goes on by an epoch (or to ``epoch``) and sets the rates."""
        _outside(type(self).__name__)
        if self._step_count == 1 and not self.optimizer._opt_called:
            warnings.warn("Detected call of `lr_scheduler.step()` before `optimizer.step()`. You should call them in the opposite order: `optimizer.step()` before "
                          "`lr_scheduler.step()`. Failure to do this will result in skipping the first value of the learning rate schedule.", UserWarning, stacklevel=2)
        self._step_count += 1
        closed = getattr(self, "_get_closed_form_lr", None)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        for group, rate in zip(self.optimizer.param_groups, self.get_lr() if epoch is None or closed is None else closed()):
            _set(group, rate)
        self._last_lr = [group["lr"].clone() if isinstance(group["lr"], Tensor) else group["lr"] for group in self.optimizer.param_groups]

    def _rates(self) -> list[Any]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """All that is kept but the optimizer."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what ``state_dict`` of a schedule of this kind gave."""
        self.__dict__.update(state_dict)


class _Functions(LRScheduler):
    def __init__(self, optimizer: Optimizer, lr_lambda: Any, last_epoch: int = -1) -> None:
        count = len(_optimizer(optimizer, type(self).__name__).param_groups)
        self.lr_lambdas = list(lr_lambda) if isinstance(lr_lambda, (list, tuple)) else [lr_lambda] * count
        if len(self.lr_lambdas) != count:
            raise AotgradValueError(f"Expected {count} lr_lambdas, but got {len(self.lr_lambdas)}")
        if not all(callable(f) for f in self.lr_lambdas):
            raise AotgradTypeError(f"{type(self).__name__}: lr_lambda must be a function of the epoch, or a list of them")
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """All that is kept but the optimizer and the functions (of objects that are called: their attributes)."""
        kept = {k: v for k, v in super().state_dict().items() if k != "lr_lambdas"}
        return {**kept, "lr_lambdas": [None if isinstance(f, type(_outside)) else dict(f.__dict__) for f in self.lr_lambdas]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what ``state_dict`` gave; the functions stay."""
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "lr_lambdas"})
        for f, kept in zip(self.lr_lambdas, state_dict["lr_lambdas"]):
            if kept is not None:
                f.__dict__.update(kept)


class LambdaLR(_Functions):
    """The initial rate times ``lr_lambda(epoch)``, a function or one per group."""

    def get_lr(self) -> list[Any]:
        """See ``LRScheduler.get_lr``."""
        return [base * f(self.last_epoch) for f, base in zip(self.lr_lambdas, self.base_lrs)]


class MultiplicativeLR(_Functions):
    """The rate times ``lr_lambda(epoch)`` at every step, a function or one per group."""

    def get_lr(self) -> list[Any]:
        """See ``LRScheduler.get_lr``."""
        return self._rates() if self.last_epoch <= 0 else [rate * f(self.last_epoch) for f, rate in zip(self.lr_lambdas, self._rates())]


class StepLR(LRScheduler):
    """The rate times ``gamma`` every ``step_size`` epochs."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """See ``LRScheduler.get_lr``."""
        return self._rates() if self.last_epoch == 0 or self.last_epoch % self.step_size else [rate * self.gamma for rate in self._rates()]

    def _get_closed_form_lr(self) -> list[Any]:
        return [base * self.gamma ** (self.last_epoch // self.step_size) for base in self.base_lrs]


class MultiStepLR(LRScheduler):
    """The rate times ``gamma`` at each of the epochs ``milestones``."""

    def __init__(self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """See ``LRScheduler.get_lr``."""
        times = self.milestones.get(self.last_epoch, 0)
        return [rate * self.gamma ** times for rate in self._rates()] if times else self._rates()

    def _get_closed_form_lr(self) -> list[Any]:
        return [base * self.gamma ** bisect_right(sorted(self.milestones.elements()), self.last_epoch) for base in self.base_lrs]


class ExponentialLR(LRScheduler):
    """The rate times ``gamma`` every epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """See ``LRScheduler.get_lr``."""
        return self._rates() if self.last_epoch == 0 else [rate * self.gamma for rate in self._rates()]

    def _get_closed_form_lr(self) -> list[Any]:
        return [base * self.gamma ** self.last_epoch for base in self.base_lrs]


class ConstantLR(LRScheduler):
    """The rate times ``factor`` until epoch ``total_iters``."""

    def __init__(self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1) -> None:
        if not 0 <= factor <= 1.0:
            raise AotgradValueError("Constant multiplicative factor expected to be between 0 and 1.")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """See ``LRScheduler.get_lr``."""
        change = self.factor if self.last_epoch == 0 else 1.0 / self.factor if self.last_epoch == self.total_iters else None
        return self._rates() if change is None else [rate * change for rate in self._rates()]

    def _get_closed_form_lr(self) -> list[Any]:
        return [base * (self.factor if self.last_epoch < self.total_iters else 1.0) for base in self.base_lrs]


class LinearLR(LRScheduler):
    """The rate times a factor that goes from ``start_factor`` to ``end_factor`` in ``total_iters`` epochs."""

    def __init__(self, optimizer: Optimizer, start_factor: float = 1.0 / 3, end_factor: float = 1.0, total_iters: int = 5, last_epoch: int = -1) -> None:
        if not 0 < start_factor <= 1.0:
            raise AotgradValueError("Starting multiplicative factor expected to be greater than 0 and less or equal to 1.")
        if not 0 <= end_factor <= 1.0:
            raise AotgradValueError("Ending multiplicative factor expected to be between 0 and 1.")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """See ``LRScheduler.get_lr``."""
        span = self.end_factor - self.start_factor
        if self.last_epoch == 0:
            return [rate * self.start_factor for rate in self._rates()]
        if self.last_epoch > self.total_iters:
            return self._rates()
        return [rate * (1.0 + span / (self.total_iters * self.start_factor + (self.last_epoch - 1) * span)) for rate in self._rates()]

    def _get_closed_form_lr(self) -> list[Any]:
        done = min(self.total_iters, self.last_epoch)
        return [base * (self.start_factor + (self.end_factor - self.start_factor) * done / self.total_iters) for base in self.base_lrs]


class PolynomialLR(LRScheduler):
    """The initial rate times ``(1 - epoch / total_iters) ** power``."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """See ``LRScheduler.get_lr``."""
        if self.last_epoch == 0 or self.last_epoch > self.total_iters:
            return self._rates()
        change = ((1.0 - self.last_epoch / self.total_iters) / (1.0 - (self.last_epoch - 1) / self.total_iters)) ** self.power
        return [rate * change for rate in self._rates()]

    def _get_closed_form_lr(self) -> list[Any]:
        return [base * (1.0 - min(self.total_iters, self.last_epoch) / self.total_iters) ** self.power for base in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """Half a wave of the cosine from the initial rate to ``eta_min`` in ``T_max`` epochs, and back in the next."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """See ``LRScheduler.get_lr``."""
        if self.last_epoch == 0:
            return self._rates()
        if self._step_count == 1 and self.last_epoch > 0:
            return self._get_closed_form_lr()
        if (self.last_epoch - 1 - self.T_max) % (2 * self.T_max) == 0:
            return [rate + (base - self.eta_min) * (1 - math.cos(math.pi / self.T_max)) / 2 for base, rate in zip(self.base_lrs, self._rates())]
        change = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / (1 + math.cos(math.pi * (self.last_epoch - 1) / self.T_max))
        return [change * (rate - self.eta_min) + self.eta_min for rate in self._rates()]

    def _get_closed_form_lr(self) -> list[Any]:
        return [self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2 for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a wave of the cosine from the initial rate to ``eta_min`` in ``T_0`` epochs, then again, each time ``T_mult`` times as long."""

    def __init__(self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        for name, value in (("T_0", T_0), ("T_mult", T_mult)):
            if not isinstance(value, int) or value < 1:
                raise AotgradValueError(f"Expected integer {name} >= 1, but got {value}")
        self.T_0, self.T_i, self.T_mult, self.eta_min, self.T_cur = T_0, T_0, T_mult, eta_min, last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """See ``LRScheduler.get_lr``."""
        return [self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2 for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Goes on by an epoch, or to ``epoch``, which may lie between two."""
        _outside(type(self).__name__)
        self._step_count += 1
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch, self.T_cur = self.last_epoch + 1, self.T_cur + 1
            if self.T_cur >= self.T_i:
                self.T_cur, self.T_i = self.T_cur - self.T_i, self.T_i * self.T_mult
        elif epoch < 0:
            raise AotgradValueError(f"Expected non-negative epoch, but got {epoch}")
        elif epoch < self.T_0 or self.T_mult == 1:
            self.T_cur, self.T_i = epoch % self.T_0 if epoch >= self.T_0 else epoch, self.T_0  # type: ignore[assignment]
        else:
            n = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            self.T_cur = epoch - self.T_0 * (self.T_mult ** n - 1) / (self.T_mult - 1)
            self.T_i = self.T_0 * self.T_mult ** n
        self.last_epoch = math.floor(epoch)
        for group, rate in zip(self.optimizer.param_groups, self.get_lr()):
            _set(group, rate)
        self._last_lr = self._rates()


def _begin_momentum(beta: bool, groups: Sequence[Any], low: Any, high: Any, last_epoch: int) -> None:
    if not beta and "momentum" not in groups[0]:
        raise AotgradValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")
    if last_epoch == -1:
        for group, a, b in zip(groups, OneCycleLR._each(low, groups, "base_momentum"), OneCycleLR._each(high, groups, "max_momentum")):
            group.update(base_momentum=a, max_momentum=b)
            _set_momentum(beta, group, b)


def _set_momentum(beta: bool, group: dict[str, Any], value: float) -> None:
    if beta:
        group["betas"] = (value, *group["betas"][1:])
    else:
        group["momentum"] = value


def _state_of_several(self: Any) -> dict[str, Any]:
    """What is kept, with that of the schedules."""
    return {**{k: v for k, v in self.__dict__.items() if k not in ("optimizer", "_schedulers")}, "_schedulers": [s.state_dict() for s in self._schedulers]}


def _load_several(self: Any, state_dict: dict[str, Any]) -> None:
    """Takes over what ``state_dict`` gave."""
    self.__dict__.update({k: v for k, v in state_dict.items() if k != "_schedulers"})
    for scheduler, kept in zip(self._schedulers, state_dict["_schedulers"]):
        scheduler.load_state_dict(kept)


class OneCycleLR(LRScheduler):
    """From ``max_lr / div_factor`` up to ``max_lr`` in the first ``pct_start`` of all steps, and down to ``initial / final_div_factor`` (``three_phase``: down to the
    initial rate first). ``total_steps``, or ``epochs`` and ``steps_per_epoch``. With ``cycle_momentum`` the momentum (or the first beta) goes the other way."""

    def __init__(self, optimizer: Optimizer, max_lr: float | Sequence[float], total_steps: int | None = None, epochs: int | None = None,
                 steps_per_epoch: int | None = None, pct_start: float = 0.3, anneal_strategy: str = "cos", cycle_momentum: bool = True,
                 base_momentum: float | Sequence[float] = 0.85, max_momentum: float | Sequence[float] = 0.95, div_factor: float = 25.0, final_div_factor: float = 1e4,
                 three_phase: bool = False, last_epoch: int = -1) -> None:
        groups = _optimizer(optimizer, "OneCycleLR").param_groups
        if total_steps is None and (epochs is None or steps_per_epoch is None):
            raise AotgradValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
        for name, value in (("total_steps", total_steps), ("epochs", epochs), ("steps_per_epoch", steps_per_epoch)):
            if value is not None and (not isinstance(value, int) or value <= 0):
                raise AotgradValueError(f"Expected positive integer {name}, but got {value}")
        if not 0 <= pct_start <= 1:
            raise AotgradValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise AotgradValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        self.total_steps: int = total_steps if total_steps is not None else (epochs or 1) * (steps_per_epoch or 1)
        self._anneal_func_type, self.cycle_momentum = anneal_strategy, cycle_momentum
        up = float(pct_start * self.total_steps) - 1
        ends = [(up, "initial_lr", "max_lr", "max_momentum", "base_momentum")]
        if three_phase:
            ends += [(float(2 * pct_start * self.total_steps) - 2, "max_lr", "initial_lr", "base_momentum", "max_momentum"),
                     (self.total_steps - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum")]
        else:
            ends += [(self.total_steps - 1, "max_lr", "min_lr", "base_momentum", "max_momentum")]
        self._schedule_phases = ends
        if last_epoch == -1:
            for group, rate in zip(groups, self._each(max_lr, groups, "max_lr")):
                initial = rate / div_factor
                group.update(initial_lr=initial, max_lr=rate, min_lr=initial / final_div_factor)
                _set(group, initial)
        self.use_beta1 = "betas" in optimizer.defaults
        if cycle_momentum:
            _begin_momentum(self.use_beta1, groups, base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)

    @staticmethod
    def _each(given: Any, groups: Sequence[Any], name: str) -> list[Any]:
        if isinstance(given, (list, tuple)):
            if len(given) != len(groups):
                raise AotgradValueError(f"expected {len(groups)} values for {name}, got {len(given)}")
            return list(given)
        return [given] * len(groups)

    def _between(self, start: float, end: float, share: float) -> float:
        if self._anneal_func_type == "cos":
            return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)
        return (end - start) * share + start

    def get_lr(self) -> list[Any]:
        """See ``LRScheduler.get_lr``. Raises ``AotgradValueError`` beyond the last step."""
        at = self.last_epoch
        if at > self.total_steps:
            raise AotgradValueError(f"Tried to step {at} times. The total number of steps is {self.total_steps}")
        rates, before = [], 0.0
        for group in self.optimizer.param_groups:
            before = 0.0
            for i, (end, *names) in enumerate(self._schedule_phases):
                if at <= end or i == len(self._schedule_phases) - 1:
                    share = (at - before) / (end - before)
                    rates.append(self._between(group[names[0]], group[names[1]], share))
                    if self.cycle_momentum:
                        _set_momentum(self.use_beta1, group, self._between(group[names[2]], group[names[3]], share))
                    break
                before = end
        return rates


_SCALES: dict[str, tuple[Callable[[float, float], float], str]] = {
    "triangular": (lambda x, gamma: 1.0, "cycle"), "triangular2": (lambda x, gamma: 1 / (2.0 ** (x - 1)), "cycle"),
    "exp_range": (lambda x, gamma: gamma ** x, "iterations")}


class CyclicLR(LRScheduler):
    """Up from ``base_lr`` to ``max_lr`` in ``step_size_up`` steps and down again in ``step_size_down``, over and over. ``mode``: "triangular", "triangular2" (every cycle
    half as high), "exp_range" (times ``gamma ** step``), or ``scale_fn`` of the cycle or of the step, as ``scale_mode`` says "cycle" or "iterations". With
    ``cycle_momentum`` the momentum (or the first beta) goes the other way. A ``scale_fn`` is no part of ``state_dict``."""

    def __init__(self, optimizer: Optimizer, base_lr: float | Sequence[float], max_lr: float | Sequence[float], step_size_up: int = 2000,
                 step_size_down: int | None = None, mode: str = "triangular", gamma: float = 1.0, scale_fn: Callable[[float], float] | None = None,
                 scale_mode: str = "cycle", cycle_momentum: bool = True, base_momentum: float | Sequence[float] = 0.8, max_momentum: float | Sequence[float] = 0.9,
                 last_epoch: int = -1) -> None:
        groups = _optimizer(optimizer, "CyclicLR").param_groups
        low = OneCycleLR._each(base_lr, groups, "base_lr")
        if mode not in _SCALES and scale_fn is None:
            raise AotgradValueError("mode is invalid and scale_fn is None")
        if last_epoch == -1:
            for group, rate in zip(groups, low):
                _set(group, rate)
        self.max_lrs = OneCycleLR._each(max_lr, groups, "max_lr")
        down = float(step_size_up if step_size_down is None else step_size_down)
        self.total_size = float(step_size_up) + down
        self.step_ratio = float(step_size_up) / self.total_size
        self.mode, self.gamma, self.scale_fn = mode, gamma, scale_fn
        self.scale_mode = scale_mode if scale_fn is not None else _SCALES[mode][1]
        self.cycle_momentum, self.use_beta1 = cycle_momentum, "betas" in optimizer.defaults
        if cycle_momentum:
            _begin_momentum(self.use_beta1, groups, base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = low

    def state_dict(self) -> dict[str, Any]:
        """All that is kept but the optimizer and ``scale_fn``."""
        return {k: v for k, v in super().state_dict().items() if k != "scale_fn"}

    def get_lr(self) -> list[Any]:
        """See ``LRScheduler.get_lr``."""
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        height = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        at = cycle if self.scale_mode == "cycle" else self.last_epoch
        scale = self.scale_fn(at) if self.scale_fn is not None else _SCALES[self.mode][0](at, self.gamma)
        if self.cycle_momentum:
            for group in self.optimizer.param_groups:
                _set_momentum(self.use_beta1, group, group["max_momentum"] - (group["max_momentum"] - group["base_momentum"]) * height * scale)
        return [low + (high - low) * height * scale for low, high in zip(self.base_lrs, self.max_lrs)]


class ChainedScheduler(LRScheduler):
    """Several schedules of one optimizer at once: each ``step`` is one of all, in order."""

    def __init__(self, schedulers: Sequence[Any], optimizer: Optimizer | None = None) -> None:
        if len(schedulers) < 1:
            raise AotgradValueError("ChainedScheduler expects at least one scheduler to be chained, but got no scheduler.")
        self.optimizer = _optimizer(schedulers[0].optimizer if optimizer is None else optimizer, "ChainedScheduler")
        for i, scheduler in enumerate(schedulers):
            if isinstance(scheduler, ReduceLROnPlateau):
                raise AotgradValueError(f"ChainedScheduler: schedulers[{i}] is a ReduceLROnPlateau, whose step takes a measure; call it by itself")
            if scheduler.optimizer is not self.optimizer:
                raise AotgradValueError(f"ChainedScheduler: schedulers[{i}] is of another optimizer")
        self._schedulers = list(schedulers)
        self._last_lr = self._rates()

    def step(self, epoch: int | None = None) -> None:
        """Goes on by an epoch. Raises ``AotgradTypeError`` for an epoch to go to."""
        _outside("ChainedScheduler")
        if epoch is not None:
            raise AotgradTypeError("ChainedScheduler.step() takes no epoch: all its schedules go on by one")
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._rates()

    state_dict, load_state_dict = _state_of_several, _load_several


class SequentialLR(LRScheduler):
    """Several schedules one after the other: the next one begins at each of ``milestones``."""

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[Any], milestones: Sequence[int], last_epoch: int = -1) -> None:
        if len(schedulers) < 1 or len(milestones) != len(schedulers) - 1:
            raise AotgradValueError("Sequential Schedulers expects number of schedulers provided to be one more than the number of milestone points, but got number of "
                                    f"schedulers {len(schedulers)} and the number of milestones to be equal to {len(milestones)}")
        for i, scheduler in enumerate(schedulers):
            if scheduler.optimizer is not optimizer:
                raise AotgradValueError(f"SequentialLR: schedulers[{i}] is of another optimizer")
        self.optimizer = _optimizer(optimizer, "SequentialLR")
        self._schedulers, self._milestones, self.last_epoch = list(schedulers), list(milestones), last_epoch + 1
        for group in optimizer.param_groups:
            _set(group, group["initial_lr"])
        for scheduler in self._schedulers:  # each has made a first step, which is undone
            scheduler.last_epoch -= 1
            scheduler._step_count -= 1
        first = self._schedulers[0]
        first.step()
        self._last_lr = first.get_last_lr()

    def step(self, epoch: int | None = None) -> None:
        """Goes on by an epoch. Raises ``AotgradTypeError`` for an epoch to go to."""
        _outside("SequentialLR")
        if epoch is not None:
            raise AotgradTypeError("SequentialLR.step() takes no epoch: its schedules are called one after the other")
        self.last_epoch += 1
        at = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[at]
        if at > 0 and self._milestones[at - 1] == self.last_epoch:
            scheduler.step(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()

    state_dict, load_state_dict = _state_of_several, _load_several


class ReduceLROnPlateau(LRScheduler):
    """The rate times ``factor`` when what ``step(metrics)`` is given has not got better for more than ``patience`` epochs. ``mode``: ``"min"`` or ``"max"`` is better;
    ``threshold``: by how much, ``"rel"`` or ``"abs"``; ``cooldown``: epochs to wait after a cut; no rate falls under ``min_lr``."""

    def __init__(self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10, threshold: float = 1e-4, threshold_mode: str = "rel",
                 cooldown: int = 0, min_lr: float | Sequence[float] = 0, eps: float = 1e-8) -> None:
        if factor >= 1.0:
            raise AotgradValueError("Factor should be < 1.0.")
        if mode not in ("min", "max"):
            raise AotgradValueError(f"mode {mode} is unknown!")
        if threshold_mode not in ("rel", "abs"):
            raise AotgradValueError(f"threshold mode {threshold_mode} is unknown!")
        self.optimizer = _optimizer(optimizer, "ReduceLROnPlateau")
        self.factor, self.mode, self.patience, self.cooldown, self.eps = factor, mode, patience, cooldown, eps
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.min_lrs = OneCycleLR._each(min_lr, optimizer.param_groups, "min_lr")
        self.default_min_lr = None
        self.last_epoch = 0
        self._last_lr = self._rates()
        self._reset()

    def _reset(self) -> None:
        self.best = math.inf if self.mode == "min" else -math.inf
        self.cooldown_counter = self.num_bad_epochs = 0

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]
        """Looks at the measure of an epoch."""
        _outside("ReduceLROnPlateau")
        current = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(current, self.best):
            self.best, self.num_bad_epochs = current, 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group, least in zip(self.optimizer.param_groups, self.min_lrs):
                old = float(group["lr"])
                new = max(old * self.factor, least)
                if old - new > self.eps:
                    _set(group, new)
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self._rates()

    @property
    def in_cooldown(self) -> bool:
        """Whether a cut was made less than ``cooldown`` epochs ago."""
        return self.cooldown_counter > 0

    def _is_better(self, a: float, best: float) -> bool:
        sign = 1.0 if self.mode == "max" else -1.0
        if self.threshold_mode == "rel":
            return sign * a > sign * best * (1.0 + sign * self.threshold)
        return sign * a > sign * best + self.threshold


_guard(globals(), __all__)
