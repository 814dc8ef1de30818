"""Order of instructions in long innermost loops of LLVM text.

Kernels call SIMD functions one after another; inlined, each is a chain in which every instruction waits for the one before, and a processor looks only a few hundred
instructions ahead. LLVM keeps the order of the text. So the text is put in the order in which operands become ready: independent chains then run side by side.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence

__all__ = ["scheduled"]

_LATENCY = {"fma": 4, "fmul": 3, "fadd": 3, "fsub": 3, "fdiv": 13, "sqrt": 16, "load": 7, "fcmp": 4, "select": 2}
_WIDTH = 4  # instructions that start at once
_LEAST = 100
_MOST = 4000
_LINE = re.compile(r"\s+(?:(%[-\w.$]+) = )?(.*)$")
_NAME = re.compile(r"%[-\w.$]+")
_LABEL = re.compile(r"([-\w.$]+):")
_INTRINSIC = re.compile(r"@llvm\.(fma|fabs|sqrt|copysign|floor|ceil|trunc|rint|minnum|maxnum|vector\.reduce\.\w+)\b")


def _kind(text: str) -> str:
    word = text.split(" ", 1)[0]
    if word in ("call", "tail"):
        found = _INTRINSIC.search(text)
        return found.group(1) if found is not None else "store"  # what a call may touch is not looked into
    return word


def _order(lines: Sequence[str]) -> list[str]:
    """Straight-line code, the longest way to the end first among what is ready."""
    parts = [_LINE.match(line) for line in lines]
    names = {p.group(1): i for i, p in enumerate(parts) if p is not None and p.group(1)}
    kinds = [_kind(p.group(2)) if p is not None else "store" for p in parts]
    before: list[set[int]] = []
    written, read = -1, list[int]()
    for i, p in enumerate(parts):
        needs = {names[n] for n in _NAME.findall(p.group(2)) if n in names} if p is not None else set()
        if kinds[i] in ("store", "load") and written >= 0:
            needs.add(written)
        if kinds[i] == "store":
            needs.update(read)
            written, read = i, []
        elif kinds[i] == "load":
            read.append(i)
        before.append(needs - {i})
    after: list[list[int]] = [[] for _ in lines]
    for i, needs in enumerate(before):
        for q in needs:
            after[q].append(i)
    latency = [_LATENCY.get(k, 1) for k in kinds]
    height = [0] * len(lines)
    for i in range(len(lines) - 1, -1, -1):
        height[i] = latency[i] + max((height[s] for s in after[i]), default=0)
    return [lines[i] for i in _simulate(before, after, latency, height)]


def _simulate(before: Sequence[set[int]], after: Sequence[list[int]], latency: Sequence[int], height: Sequence[int]) -> list[int]:
    left, start = [len(p) for p in before], [0] * len(before)
    waiting = [(0, i) for i, n in enumerate(left) if not n]
    ready: list[tuple[int, int]] = []
    out: list[int] = []
    time = 0
    while len(out) < len(before):
        if not ready and waiting:
            time = max(time, waiting[0][0])
        while waiting and waiting[0][0] <= time:
            i = heapq.heappop(waiting)[1]
            heapq.heappush(ready, (-height[i], i))
        for _ in range(min(_WIDTH, len(ready))):
            i = heapq.heappop(ready)[1]
            out.append(i)
            for s in after[i]:
                left[s] -= 1
                start[s] = max(start[s], time + latency[i])
                if not left[s]:
                    heapq.heappush(waiting, (start[s], s))
        time += 1
    return out


def _block(label: str, lines: list[str]) -> list[str]:
    """A block of a function; reordered when it is a long loop by itself."""
    first = 0
    while first < len(lines) and " = phi " in lines[first]:
        first += 1
    if not _LEAST <= len(lines) - first <= _MOST or not label or not re.search(rf"label %{re.escape(label)}(?![-\w.$])", lines[-1]):
        return lines
    return [*lines[:first], *_order(lines[first:-1]), lines[-1]]


def scheduled(text: str) -> str:
    """The same module with its long innermost loops reordered; every result keeps its bits."""
    out: list[str] = []
    block: list[str] = []
    label = ""
    for line in text.split("\n"):
        if line.startswith("  ") and not line.lstrip().startswith(";"):
            block.append(line)
            continue
        out += _block(label, block)
        block = []
        found = _LABEL.match(line)
        label = found.group(1) if found is not None else ""
        out.append(line)
    return "\n".join([*out, *_block(label, block)])
