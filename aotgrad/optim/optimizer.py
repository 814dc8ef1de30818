"""``Optimizer``: parameters in groups with their options, and what is kept per parameter. Under torch's names, eager and in compiled functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from aotgrad.frontend import ledger
from aotgrad.nn.module import clear_grad
from aotgrad_runtime import modes
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.tensor import Tensor

__all__ = ["Optimizer"]


class Optimizer:
    """The base of optimisers. ``params``: tensors, or dicts with ``"params"`` and options of their own; ``defaults``: the options of all others.

    A step in a compiled function is part of the program: parameters and what is kept are read and written in place at every call. Options that are floats (the learning
    rate, momentum) are read at every call, so schedules do not compile anew.
    """

    _opt_called = False  # whether a step was made: schedules warn where it was not

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise AotgradTypeError(f"params argument given to the optimizer should be an iterable of Tensors or dicts, but got {type(params).__name__}")
        self.defaults = defaults
        self.state: Any = defaultdict(dict)
        self.param_groups: list[dict[str, Any]] = []
        groups = list(params)
        if not groups:
            raise AotgradValueError("optimizer got an empty parameter list")
        for group in groups if isinstance(groups[0], dict) else [{"params": groups}]:
            self.add_param_group(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters with options of their own: ``{"params": [...], "lr": 0.1}``."""
        if not isinstance(param_group, dict):
            raise AotgradTypeError(f"param_group must be a dict, but got {type(param_group)}")
        given = param_group["params"]
        made = [given] if isinstance(given, Tensor) else list(given)
        for p in made:
            if not isinstance(p, Tensor):
                raise AotgradTypeError(f"optimizer can only optimize Tensors, but one of the params is {type(p).__name__}")
            if p._node is not None:
                raise AotgradValueError("can't optimize a non-leaf Tensor")
        known = {id(p) for g in self.param_groups for p in g["params"]}
        if any(id(p) in known for p in made) or len({id(p) for p in made}) < len(made):
            raise AotgradValueError("some parameters appear in more than one parameter group, or twice in one")
        self.param_groups.append({**self.defaults, **param_group, "params": made})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of all parameters: None, or zeros in their memory."""
        for group in self.param_groups:
            for p in group["params"]:
                clear_grad(p, set_to_none)

    @modes.intact
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters by their gradients. ``closure`` computes the loss again (and its gradients); its result is given back."""
        self._opt_called = True
        loss = None
        if closure is not None:
            with modes.enable_grad():
                loss = closure()
        ledger.guarded(_Length(self), "param_groups")
        with modes.no_grad():
            for group in self.param_groups:
                options = self._options(group)
                ledger.guarded(_Length(group), "params")
                for p in group["params"]:
                    g = p.grad
                    if g is not None:
                        self._update(p, g, self.state[p], options)
        ledger.guarded(_States(self), "state")
        return loss

    def _options(self, group: dict[str, Any]) -> dict[str, Any]:
        """The options of a group: floats as numbers that are read at every call of a compiled function, others as parts of the program."""
        out: dict[str, Any] = {}
        for key, value in group.items():
            if key == "params":
                continue
            if isinstance(value, tuple):
                out[key] = tuple([ledger.get_number(_Parts(group, key), i) for i in range(len(value))])
            elif type(value) is float or type(value) is int:
                zero = ledger.guarded(_Zero(group), key)
                out[key] = 0.0 if zero else ledger.get_number(group, key)
            else:
                out[key] = ledger.guarded(group, key)
        return out

    def _update(self, p: Any, g: Any, state: dict[str, Any], options: dict[str, Any]) -> None:
        raise AotgradNotImplementedError(f"{type(self).__name__}.step")

    # State --------------------------------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What is kept, by number of the parameter, and the options of the groups."""
        numbers = {id(p): i for i, p in enumerate(p for g in self.param_groups for p in g["params"])}
        groups = [{**{k: v for k, v in g.items() if k != "params"}, "params": [numbers[id(p)] for p in g["params"]]} for g in self.param_groups]
        return {"state": {numbers[id(p)]: dict(s) for p, s in self.state.items() if s}, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over what ``state_dict`` of an optimiser with groups of the same sizes gave; tensors are copied."""
        given = deepcopy(dict(state_dict))
        groups = given["param_groups"]
        if len(groups) != len(self.param_groups):
            raise AotgradValueError("loaded state dict has a different number of parameter groups")
        if any(len(a["params"]) != len(b["params"]) for a, b in zip(groups, self.param_groups)):
            raise AotgradValueError("loaded state dict contains a parameter group that doesn't match the size of optimizer's group")
        of = {i: p for a, b in zip(groups, self.param_groups) for i, p in zip(a["params"], b["params"])}
        self.state = defaultdict(dict, {of[i]: dict(s) for i, s in given["state"].items() if i in of})
        self.param_groups = [{**a, "params": b["params"]} for a, b in zip(groups, self.param_groups)]

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines += [*([""] if i else []), f"Parameter Group {i}", *(f"    {k}: {group[k]}" for k in sorted(group) if k != "params")]
        return "\n".join([*lines, ")"])


class _Length:
    """How long a list is that an optimiser or a group has, and which list it is."""

    __slots__ = ("holder",)

    def __init__(self, holder: Any) -> None:
        self.holder = holder

    def get(self, key: str, default: Any = None) -> tuple[int, int]:
        found = self.holder[key] if isinstance(self.holder, dict) else getattr(self.holder, key)
        return id(found), len(found)

    __getitem__ = get


class _States:
    """Which dicts hold what is kept for the parameters: others (``state.clear()``) are read by another program."""

    __slots__ = ("optimizer",)

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def get(self, key: str, default: Any = None) -> tuple[int, ...]:
        state = self.optimizer.state
        return tuple([id(state.get(p)) for group in self.optimizer.param_groups for p in group["params"]])

    __getitem__ = get


class _Zero:
    """Whether an option is 0: then what it stands for is left out of the program."""

    __slots__ = ("group",)

    def __init__(self, group: dict[str, Any]) -> None:
        self.group = group

    def get(self, key: str, default: Any = None) -> bool:
        return bool(self.group[key] == 0)

    __getitem__ = get


class _Parts:
    """A tuple among the options, item by item."""

    __slots__ = ("group", "key")

    def __init__(self, group: dict[str, Any], key: str) -> None:
        self.group, self.key = group, key

    def get(self, index: int, default: Any = None) -> float:
        return float(self.group[self.key][index])

    __getitem__ = get


def checked(**options: Any) -> None:
    """Refuses options that are negative."""
    for name, value in options.items():
        if not isinstance(value, Tensor) and not value >= 0.0:
            what = {"lr": "learning rate", "eps": "epsilon value"}.get(name, f"{name} value")
            raise AotgradValueError(f"Invalid {what}: {value}")



def is_zero(option: Any) -> bool:
    """Whether an option is left out: numbers that a compiled function reads at every call are not."""
    return type(option) in (float, int) and option == 0
