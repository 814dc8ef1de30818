"""What tensors know that show the memory of others."""

from __future__ import annotations

import weakref
from typing import Any

from aotgrad_runtime import modes
from aotgrad_runtime.tape import Extra, VersionCell, cell_of, drift
from aotgrad_runtime.tensor import ArrayTensor

__all__ = ["ViewExtra", "mark_view"]


class _Strong:
    """A reference with the call of a weak one."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any) -> None:
        self.obj = obj

    def __call__(self) -> Any:
        return self.obj


class ViewExtra(Extra):
    """What a view knows: the tensor whose memory it shows, and ``how``: ("index", spec, places of the spec that are computed), ("reshape",),
    ("permute", order) or ("call", function, arguments, result); in a trace also ("unsettled", function, ...) and ("copied",), see ``placement``.

    A view keeps what it shows alive, as in torch. ``made``: the grad mode it was made in, where writes through it are refused for that.
    """

    cell: VersionCell
    made: str | None = None

    def __init__(self, parent: Any, how: tuple[Any, ...]) -> None:
        self.parent: Any = _Strong(parent)
        self.how = how
        self.cell = cell_of(parent)
        base = parent._extra.base
        self.base = parent if base is None else base
        if not modes.state.grad:
            self.made = "inference" if modes.state.inference else "no_grad"
        self.inference = parent._extra.inference

    def show(self, parent: Any) -> None:
        """Makes it a view of ``parent``, which has taken the place of what it showed."""
        self.parent = _Strong(parent)


def mark_view(out: Any, parent: Any, how: Any, place: int = 0) -> None:
    """Makes ``out``, result ``place`` of a call, a view of ``parent``: they share a version counter, and writes to one reach the other."""
    out._extra = extra = ViewExtra(parent, (*how, place) if how[0] == "call" else how)
    cell = extra.cell
    views = cell.views
    if views is None:
        views = cell.views = []
    if len(views) >= 16 and len(views) & (len(views) - 1) == 0:  # now and then the dead go
        views[:] = [r for r in views if r() is not None]
    views.append(weakref.ref(out))
    if extra.base is not None and extra.base._requires_grad and out._node is None and not isinstance(out, ArrayTensor):
        drift(out, True)
