"""What a compiled function computes of weights alone, and keeps from call to call.

The kernel reads a block that an entry of its own fills (``codegen.once``): packed weights, scales and shifts of norms. The block is good as long as the tensors hold the
arrays it was made of and nobody has written to them, which ``aotgrad_runtime.watched`` knows of memory that tensors alone hold. Where it does not know, or where weights
change all the time, the function runs its plain kernel, which computes everything at each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aotgrad_runtime import modes
from aotgrad_runtime.tensor import ArrayTensor, Tensor
from aotgrad_runtime.watched import watch

from . import kernels, profiling, sources
from .eager import Dual

__all__ = ["Kept", "begin", "candidates", "opened", "told"]

_IN_VAIN = 3  # blocks that served one call alone, before it waits for some calls with the next
_MOST = 1024  # calls it waits, at most


def candidates(variant: Any) -> tuple[int, ...]:
    """The arguments of a program that may keep their numbers: captured tensors that it does not write to, and that no gradient is wanted of."""
    n, written = len(variant.leaves), set(variant.changes.written)
    return tuple([n + i for i, (x, _) in enumerate(variant.hidden) if n + i not in written and _plain(x) and not (x._requires_grad and modes.state.grad)
                  and watch(x) is not None])


def begin(variant: Any) -> None:
    """Watches what a new trace captured, in training steps too: what comes to hold these arrays in later calls is no stranger then."""
    for x, _ in variant.hidden:
        if _plain(x):
            watch(x)


def _plain(x: Any) -> bool:
    return isinstance(x, Tensor) and not isinstance(x, (ArrayTensor, Dual))


def told(program: Any, variant: Any) -> list[str]:
    """What ``explain`` says of it."""
    kept = program.kept
    if kept is None:
        return []
    strangers = opened(program, variant)
    if strangers:
        places = ", ".join(map(sources.shown, strangers))
        return [f"  computed at every call, though it depends on weights alone: others may write their memory (numpy(), DLPack, data_ptr()) without a word: {places}"]
    once = kept.kernel.once
    what = [f"{name}: {count}" for name, count in (("values of the program", once["values"]), *once["packed"].items()) if count]
    return [f"  computed once, and again when one of {len(kept.places)} weights is written or replaced: {', '.join(what)}; {once['bytes']:,} bytes"]


def opened(program: Any, variant: Any) -> list[Any]:
    """The places of weights whose memory others may write, so that nothing is kept."""
    kept, n = program.kept, len(variant.leaves)
    hidden = [] if kept is None else [variant.hidden[place - n] for place in kept.places]
    return [source for x, source in hidden if watch(sources.read(x, source)) is None]


class Good:
    """A block, and what it was made of: the arrays at these places of a call, the marks that their memories had."""

    __slots__ = ("arrays", "block", "marks", "memories", "places")

    def __init__(self, places: Sequence[int], arrays: Sequence[Any], memories: Sequence[Any], marks: Sequence[int], block: Any) -> None:
        self.places, self.arrays, self.memories, self.marks, self.block = places, arrays, memories, marks, block

    def holds(self, args: Sequence[Any]) -> bool:
        """Whether a call has these arrays."""
        return all(args[place]._data is array for place, array in zip(self.places, self.arrays))

    def unwritten(self) -> bool:
        """Whether nobody has written to them since."""
        return [m.mark for m in self.memories] == self.marks


class Kept:
    """The block of one kernel. ``good`` is replaced as a whole: callers on several threads at most compute it twice."""

    __slots__ = ("constant", "fill", "good", "kernel", "places", "rest", "served", "vain")

    def __init__(self, kernel: kernels.Kernel, constant: tuple[int, ...]) -> None:
        assert kernel.once is not None
        self.kernel, self.constant, self.fill = kernel, constant, kernel.filling()
        self.places: list[int] = list(kernel.once["args"])
        self.good: Good | None = None
        self.served = self.vain = self.rest = 0

    def block(self, args: Sequence[Any]) -> Any:
        """The block for a call with these arguments; None where it runs without. The caller holds none of their arrays at that time."""
        good = self.found(args)
        return None if good is None else good.block

    def found(self, args: Sequence[Any]) -> Good | None:
        """The same, with what it was made of."""
        if profiling.watch.on:
            return None
        good = self.good
        if good is not None and good.holds(args) and good.unwritten():
            self.served = 1
            return good
        return self._renewed(args)

    def again(self, good: Good | None) -> bool:
        """Whether ``good``, whose arrays a call is known to have, is still what is kept."""
        if good is None or good is not self.good or profiling.watch.on or not good.unwritten():
            return False
        self.served = 1
        return True

    def _renewed(self, args: Sequence[Any]) -> Good | None:
        if self.rest:
            self.rest -= 1
            return None
        if self.good is not None:
            self.vain = 0 if self.served else self.vain + 1
            self.good, self.served = None, 0
            if self.vain > _IN_VAIN:
                self.rest = min(_MOST, 4 ** (self.vain - _IN_VAIN))
                return None
        memories = []
        for place in self.places:
            x = args[place]
            memory = watch(x) if _plain(x) else None
            if memory is None:
                return None
            memories.append(memory)
        marks = [m.mark for m in memories]  # before the numbers are read
        arrays = [a._data if isinstance(a, Tensor) else a for a in args]
        made = self.good = Good(self.places, [arrays[place] for place in self.places], memories, marks, self.fill(arrays))
        return made
