"""What nodes show of what they saved: ``grad_fn._saved_self``, ``_saved_other``, ``_saved_result``, ``_saved_dim`` and so on, by the names of a call's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aotgrad_runtime.errors import AotgradAttributeError, AotgradRuntimeError
from aotgrad_runtime.tape import FREED_TEXT, Node
from aotgrad_runtime.tensor import make_output, wrap

__all__ = ["Saved", "names", "value"]

_PREFIX = "_saved_"


class Saved:
    """A recorded call: its parameters (``tensors``: those that are arguments of the program, in order; ``numbers``: those of them that were plain numbers;
    ``arguments``: the values of the others), and what of inputs and outputs is kept. ``outputs`` is None when that was freed: tensors are gone then."""

    __slots__ = ("arguments", "inputs", "numbers", "outputs", "program", "tensors")

    def __init__(self, program: Any, inputs: Mapping[int, Any], outputs: Mapping[int, Any] | None) -> None:
        self.program, self.inputs, self.outputs = program, inputs, outputs
        self.tensors, self.numbers, self.arguments = program.call


def names(node: Node, saved: Saved) -> list[str]:
    """The attributes that ``value`` knows."""
    found = [*("self" if t == "input" else t for t in saved.tensors), *saved.arguments, "result"]
    return [f"{_PREFIX}{n}" for n in found if n != "input" and _here(node, saved, n)]


def _here(node: Node, saved: Saved, name: str) -> bool:
    try:
        value(node, saved, f"{_PREFIX}{name}")
    except AttributeError:
        return False
    except AotgradRuntimeError:  # freed
        return True
    return True


def value(node: Node, saved: Saved, attribute: str) -> Any:
    """What ``node.attribute`` is: a tensor with the history it had, None for what backward does not need in this call, a plain value where it was one."""
    name = attribute.removeprefix(_PREFIX)
    if name == "result":
        return _result(node, saved, attribute)
    name, _, detail = name.partition("_sym_")
    parameter = name if name != "self" else "input" if "input" in saved.arguments else saved.tensors[0]
    if name == "input" or detail not in ("", "sizes", "numel") or (parameter not in saved.tensors and parameter not in saved.arguments):
        raise _absent(node, attribute)
    if parameter not in saved.tensors:
        found = saved.arguments[parameter]
        found = tuple(found) if type(found) is list else found
        return (found,) if parameter == "dim" and type(found) is int and any("dims" in op.attrs for op in saved.program.func.body.ops) else found
    i = saved.tensors.index(parameter)
    if detail in ("sizes", "numel"):
        t = saved.program.func.arg_types[i]
        return tuple(t.shape) if detail == "sizes" else t.size
    if i in saved.inputs:
        found = saved.inputs[i].value()
        return found.item() if parameter in saved.numbers and parameter != "other" else found  # the other operand of arithmetic becomes a tensor, as in PyTorch
    if i not in _all(saved).inputs:
        raise _absent(node, attribute)
    if saved.outputs is None:
        raise AotgradRuntimeError(FREED_TEXT)
    return None


def _all(saved: Saved) -> Any:
    """The backward program of a call with gradients for all inputs."""
    func = saved.program.func
    return saved.program.pullback(tuple(a.type.dtype.is_differentiable for a in func.args), tuple(t.dtype.is_differentiable for t in func.out_types))


def _result(node: Node, saved: Saved, attribute: str) -> Any:
    if saved.outputs is None:
        if saved.program.func.args and not _all(saved).inputs and not _all(saved).outputs:
            raise _absent(node, attribute)
        raise AotgradRuntimeError(FREED_TEXT)
    if 0 in saved.outputs:
        data = saved.outputs[0].data
    elif all(i in saved.inputs for i in range(len(saved.program.func.args))) and 0 not in _all(saved).outputs:
        data = saved.program.run([saved.inputs[i].kept.data for i in range(len(saved.program.func.args))])[0]  # the same numbers again
    elif 0 in _all(saved).outputs:
        return None
    else:
        raise _absent(node, attribute)
    return make_output(data, node, 0) if saved.program.func.out_types[0].dtype.is_differentiable else wrap(data)


def _absent(node: Node, attribute: str) -> AotgradAttributeError:
    return AotgradAttributeError(f"{type(node).__name__!r} object has no attribute {attribute!r}")
