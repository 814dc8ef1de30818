"""Grad modes under the names of ``torch.autograd.grad_mode``."""

from __future__ import annotations

from aotgrad.frontend.boundary import guard
from aotgrad_runtime.errors import AotgradTypeError
from aotgrad_runtime.modes import enable_grad, inference_mode, no_grad, set_grad_enabled

__all__ = ["enable_grad", "inference_mode", "no_grad", "set_grad_enabled", "set_multithreading_enabled"]


class set_multithreading_enabled:
    """Takes what ``torch.autograd.set_multithreading_enabled`` takes, as a call or a context manager. A backward pass runs on the thread that asks for it either way.

    >>> import aotgrad as ag
    >>> x = ag.tensor(2.0, requires_grad=True)
    >>> with ag.autograd.set_multithreading_enabled(False):
    ...     (x * x).backward()
    >>> x.grad
    tensor(4.)
    """

    def __init__(self, mode: bool) -> None:
        if not isinstance(mode, bool):
            raise AotgradTypeError(f"set_multithreading_enabled(): argument 'enabled' (position 1) must be bool, not {type(mode).__name__}")
        self.mode = mode

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def clone(self) -> set_multithreading_enabled:
        """Another of the same mode."""
        return set_multithreading_enabled(self.mode)


guard(globals(), __all__)
