"""Events of a profile, their averages and totals, and the tables printed of them, as torch.autograd.profiler_util has them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from aotgrad.ir import Loc
from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError
from aotgrad_runtime.profiler import COMPILE, KERNEL, NODE, OP, REGION, USER, Recorder

__all__ = ["EventList", "FunctionEvent", "FunctionEventAvg", "Interval", "LineAverage", "LineList", "format_memory", "format_time", "read"]

KINDS: Final = {OP: "op", NODE: "backward", REGION: "region", KERNEL: "kernel", USER: "user", COMPILE: "compile"}
_WIDTH, _SPACING = 12, 2


def format_time(us: float) -> str:
    """Microseconds as torch prints them.

    >>> format_time(1500.0)
    '1.500ms'
    """
    if us >= 1e6:
        return f"{us / 1e6:.3f}s"
    return f"{us / 1e3:.3f}ms" if us >= 1e3 else f"{us:.3f}us"


def format_memory(nbytes: int) -> str:
    """Bytes as torch prints them.

    >>> format_memory(2048)
    '2.00 KB'
    """
    for name, size in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if abs(nbytes) >= size:
            return f"{nbytes / size:.2f} {name}"
    return f"{nbytes} B"


def format_share(us: float, total: float) -> str:
    """A share in percent; NaN of nothing."""
    return f"{100.0 * us / total:.2f}%" if total else "NaN"


class Interval(NamedTuple):
    """Start and end, in microseconds since the profile began."""

    start: float
    end: float

    def elapsed_us(self) -> float:
        """The length."""
        return self.end - self.start


class _Times:
    """What events and averages share: times in microseconds, as numbers and as text."""

    count: int
    cpu_time_total: float
    self_cpu_time_total: float

    @property
    def cpu_time(self) -> float:
        """The average of one call."""
        return self.cpu_time_total / self.count if self.count else 0.0

    @property
    def cpu_time_str(self) -> str:
        return format_time(self.cpu_time)

    @property
    def cpu_time_total_str(self) -> str:
        return format_time(self.cpu_time_total)

    @property
    def self_cpu_time_total_str(self) -> str:
        return format_time(self.self_cpu_time_total)


class FunctionEvent(_Times):
    """One call: of an op, a node of the backward pass, a compiled function ("region"), a kernel inside one, a ``record_function`` block, or the compiler.

    ``cpu_parent`` and ``cpu_children`` are the events around and directly inside it; ``line`` is the user's (file, number); ``lines`` are those of a kernel, each with
    its share and whether that share is an adjoint's; ``sequence_nr`` is that of the node on the tape, -1 for none. Times are microseconds.
    """

    def __init__(self, id: int, name: str, kind: str, thread: int, span: Interval) -> None:
        self.id, self.name, self.key, self.kind, self.thread, self.time_range = id, name, name, kind, thread, span
        self.count = 1
        self.cpu_time_total = span.end - span.start
        self.cpu_parent: FunctionEvent | None = None
        self.cpu_children: list[FunctionEvent] = []
        self.input_shapes: Any = None
        self.stack: list[str] = []
        self.line: tuple[str, int] | None = None
        self.lines: Sequence[tuple[tuple[str, int], float, bool]] = ()
        self.sequence_nr = -1
        self.cpu_memory_usage = 0
        self.is_async = False

    @property
    def self_cpu_time_total(self) -> float:  # type: ignore[override]
        """Time in the event, its children excluded: of one that ends later (marks of two tasks that take turns), the part inside."""
        end = self.time_range.end
        return self.cpu_time_total - sum(c.cpu_time_total - max(c.time_range.end - end, 0.0) for c in self.cpu_children)

    @property
    def self_cpu_memory_usage(self) -> int:
        """Bytes of results, those of its children excluded."""
        return max(self.cpu_memory_usage - sum(c.cpu_memory_usage for c in self.cpu_children), 0)

    def backward_of(self) -> FunctionEvent | None:
        """The node of the backward pass that the event is, or lies in."""
        at: FunctionEvent | None = self
        while at is not None and at.kind != "backward":
            at = at.cpu_parent
        return at

    def __repr__(self) -> str:
        return (f"<FunctionEvent id={self.id} name={self.name} kind={self.kind} cpu_time={self.cpu_time_str} cpu_start_us={self.time_range.start:.3f} "
                f"cpu_end_us={self.time_range.end:.3f} cpu_children={[c.id for c in self.cpu_children]} thread={self.thread} input_shapes={self.input_shapes}>")


class FunctionEventAvg(_Times):
    """The sums over events of one name (and shape, and stack). ``cpu_time`` is the average of one call."""

    def __init__(self, key: str = "") -> None:
        self.key = key
        self.count = 0
        self.cpu_time_total = self.self_cpu_time_total = 0.0
        self.cpu_memory_usage = self.self_cpu_memory_usage = 0
        self.input_shapes: Any = None
        self.stack: list[str] = []
        self.kind = ""
        self.cpu_parent: FunctionEvent | None = None
        self.is_async = False

    def add(self, event: FunctionEvent) -> None:
        """Counts one more event."""
        if not self.count:
            self.kind, self.cpu_parent = event.kind, event.cpu_parent
        self.count += 1
        self.cpu_time_total += event.cpu_time_total
        self.self_cpu_time_total += event.self_cpu_time_total
        self.cpu_memory_usage += event.cpu_memory_usage
        self.self_cpu_memory_usage += event.self_cpu_memory_usage

    def __repr__(self) -> str:
        return f"<FunctionEventAvg key={self.key} self_cpu_time={self.self_cpu_time_total_str} cpu_time={self.cpu_time_str} input_shapes={self.input_shapes}>"


_SORTS: Final = ("self_cpu_time_total", "cpu_time_total", "cpu_time", "count", "cpu_memory_usage", "self_cpu_memory_usage", "key")


class EventList(list[Any]):
    """Events, or averages of them, in order. ``print`` shows the table."""

    def __init__(self, events: Iterable[Any] = (), *, profile_memory: bool = False, with_stack: bool = False) -> None:
        super().__init__(events)
        self._memory, self._stack = profile_memory, with_stack

    def __str__(self) -> str:
        return self.table()

    @property
    def self_cpu_time_total(self) -> float:
        """Microseconds in all of the events."""
        return float(sum(e.self_cpu_time_total for e in self))

    def key_averages(self, group_by_input_shapes: bool = False, group_by_stack_n: int = 0) -> EventList:
        """One average per name; with ``group_by_input_shapes`` per name and input shapes, with ``group_by_stack_n`` per name and its n innermost lines of the user."""
        if isinstance(group_by_stack_n, bool) or not isinstance(group_by_stack_n, int) or group_by_stack_n < 0:
            raise AotgradValueError(f"key_averages: group_by_stack_n must be a count of stack entries, got {group_by_stack_n!r}")
        found: dict[Any, FunctionEventAvg] = {}
        for e in self:
            stack = e.stack[:group_by_stack_n]
            shapes = str(e.input_shapes) if group_by_input_shapes else ""
            key = (e.key, shapes, tuple(stack))
            average = found.get(key)
            if average is None:
                average = found[key] = FunctionEventAvg(e.key)
                average.input_shapes = e.input_shapes if group_by_input_shapes else ""
                average.stack = stack
            average.add(e)
        return EventList(found.values(), profile_memory=self._memory, with_stack=group_by_stack_n > 0)

    def total_average(self) -> FunctionEventAvg:
        """The sums over everything."""
        total = FunctionEventAvg("Total")
        for e in self:
            total.add(e)
        return total

    def table(self, sort_by: str | None = None, row_limit: int = 100, max_src_column_width: int = 75, max_name_column_width: int | None = 55,
              max_shapes_column_width: int = 80, header: str | None = None, top_level_events_only: bool = False) -> str:
        """The table as text, laid out as torch's.

        ``sort_by``: ``cpu_time``, ``cpu_time_total``, ``self_cpu_time_total``, ``count``, ``cpu_memory_usage``, ``self_cpu_memory_usage``, the largest first, or ``key``.
        ``row_limit``: rows printed, -1 for all. Raises ``AotgradValueError`` for another key.
        """
        if not self:
            return ""
        if sort_by is not None and sort_by not in _SORTS:
            raise AotgradValueError(f"table: sort_by must be one of {', '.join(_SORTS)}, got {sort_by!r}")
        if isinstance(row_limit, bool) or not isinstance(row_limit, int):
            raise AotgradTypeError(f"table: row_limit must be an int, got {type(row_limit).__name__}")
        events = list(self) if sort_by is None else sorted(self, key=lambda e: getattr(e, sort_by), reverse=sort_by != "key")
        if top_level_events_only:
            events = [e for e in events if e.cpu_parent is None]
        total = self.self_cpu_time_total
        rows = [self._row(e, total, max_name_column_width) for e in (events if row_limit < 0 else events[:row_limit])]
        columns = ["Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg"]
        columns += ["CPU Mem", "Self CPU Mem"] * self._memory
        columns.append("# of Calls")
        widths = [_name_width([e.key for e in events], max_name_column_width), *[_WIDTH] * (len(columns) - 1)]
        shapes = any(e.input_shapes for e in events)
        if shapes:
            columns.append("Input Shapes")
            widths.append(min(max(len(str(e.input_shapes)) for e in events) + 4, max_shapes_column_width))
        if self._stack:
            columns.append("Source Location")
            widths.append(min(max((len(s) for e in events for s in e.stack), default=8) + 4, max_src_column_width))
        cells = []
        for row, e in zip(rows, events):
            row += [str(e.input_shapes)[:widths[-1 - self._stack]]] * shapes
            stack = [_trimmed(s, widths[-1]) for s in e.stack] if self._stack else []
            cells.append(row + ([stack[0] if stack else ""] if self._stack else []))
            cells += [[*[""] * len(row), s] for s in stack[1:]]
            if self._stack:
                cells.append([""] * len(columns))
        top = header if not top_level_events_only else "\n".join(filter(None, (header, "This report only display top-level ops statistics")))
        return _layout(columns, widths, cells, top, f"Self CPU time total: {format_time(total)}", left_last=self._stack)

    def _row(self, e: Any, total: float, limit: int | None) -> list[str]:
        name = e.key if limit is None or len(e.key) < limit - 3 else e.key[:limit - 3] + "..."
        memory = [format_memory(e.cpu_memory_usage), format_memory(e.self_cpu_memory_usage)] * self._memory
        return [name, format_share(e.self_cpu_time_total, total), e.self_cpu_time_total_str, format_share(e.cpu_time_total, total), e.cpu_time_total_str,
                e.cpu_time_str, *memory, str(e.count)]

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the events in Chrome's trace format, for Perfetto (ui.perfetto.dev) or chrome://tracing."""
        Path(path).write_text(json.dumps(chrome_trace(self), separators=(",", ":")), encoding="utf-8")

    def export_stacks(self, path: str | os.PathLike[str], metric: str = "self_cpu_time_total") -> None:
        """Writes one line per stack, ``outer;inner;op microseconds``, for flamegraph.pl and speedscope. Needs ``with_stack=True``."""
        if metric not in ("self_cpu_time_total", "cpu_time_total"):
            raise AotgradValueError(f"export_stacks: metric must be 'self_cpu_time_total' or 'cpu_time_total', got {metric!r}")
        sums: dict[str, int] = {}
        for e in self:
            if e.stack and (value := int(getattr(e, metric))) > 0:
                path_text = ";".join([s.replace(";", ",") for s in reversed(e.stack)] + [e.name])
                sums[path_text] = sums.get(path_text, 0) + value
        Path(path).write_text("".join(f"{k} {v}\n" for k, v in sums.items()), encoding="utf-8")

    def line_averages(self) -> LineList:
        """Time by source line, forward and adjoint apart."""
        return line_averages(self)


def _name_width(names: Sequence[str], limit: int | None) -> int:
    width = max(map(len, names), default=0) + 4
    return width if limit is None else min(width, limit)


def _trimmed(path: str, width: int) -> str:
    return path if len(path) <= width else "..." + path[len(path) - width + 3:]


def _layout(columns: Sequence[str], widths: Sequence[int], cells: Sequence[Sequence[str]], header: str | None, footer: str, left_last: bool = False) -> str:
    align = [">"] * len(columns)
    if left_last:
        align[-1] = "<"
    gap = " " * _SPACING
    rule = "".join("-" * w + gap for w in widths)
    line = "".join(f"{{: {a}{w}}}{gap}" for a, w in zip(align, widths))
    out = [] if header is None else ["=" * (sum(widths) + _SPACING * (len(widths) - 1)), header]
    out += [rule, line.format(*columns), rule, *(line.format(*row) for row in cells), rule, footer]
    return "\n".join(out)


# ---- by source line -------------------------------------------------------------------------------------------------------------------

class LineAverage:
    """Microseconds that one source line took, forward and in its adjoint; ``count``: calls (of ops, nodes and kernels) that took part."""

    __slots__ = ("adjoint", "count", "file", "forward", "line")

    def __init__(self, file: str, line: int) -> None:
        self.file, self.line = file, line
        self.forward = self.adjoint = 0.0
        self.count = 0

    @property
    def total(self) -> float:
        return self.forward + self.adjoint

    @property
    def source(self) -> str:
        """The text of the line."""
        return Loc(self.file, self.line).source

    def __repr__(self) -> str:
        return f"<LineAverage {self.file}:{self.line} forward={format_time(self.forward)} adjoint={format_time(self.adjoint)}>"


class LineList(list[LineAverage]):
    """Source lines with their times. ``print`` shows the table."""

    def __str__(self) -> str:
        return self.table()

    def table(self, sort_by: str = "total", row_limit: int = 100) -> str:
        """The lines as text; ``sort_by``: ``total``, ``forward``, ``adjoint`` or ``count``, the largest first, or ``line``."""
        if sort_by not in ("total", "forward", "adjoint", "count", "line"):
            raise AotgradValueError(f"table: sort_by must be one of total, forward, adjoint, count, line, got {sort_by!r}")
        lines = sorted(self, key=(lambda e: (e.file, e.line)) if sort_by == "line" else lambda e: -getattr(e, sort_by))
        total = sum(e.total for e in self)
        names = [f"{os.path.basename(e.file)}:{e.line}" for e in lines]
        cells = [[name, format_time(e.forward), format_time(e.adjoint), format_time(e.total), format_share(e.total, total), str(e.count), e.source[:75]]
                 for name, e in zip(names, lines)]
        columns = ["Line", "Forward", "Adjoint", "Total", "Total %", "# of Calls", "Source"]
        widths = [_name_width(names, 40), *[_WIDTH] * 5, max((len(c[-1]) for c in cells), default=4) + 2]
        return _layout(columns, widths, cells if row_limit < 0 else cells[:row_limit], None, f"Time of source lines: {format_time(total)}", left_last=True)


def line_averages(events: Iterable[FunctionEvent]) -> LineList:
    """An op counts for its own line; a node of the backward pass for the line of the op that made it; a kernel for the lines of its operations, by their shares."""
    events = list(events)
    made: dict[int, tuple[str, int]] = {}
    for e in events:
        if e.kind == "op" and e.sequence_nr >= 0 and e.line is not None:
            made.setdefault(e.sequence_nr, e.line)
    found: dict[tuple[str, int], LineAverage] = {}

    def add(place: tuple[str, int] | None, us: float, adjoint: bool) -> None:
        if place is None:
            return
        entry = found.get(place)
        if entry is None:
            entry = found[place] = LineAverage(*place)
        entry.count += 1
        if adjoint:
            entry.adjoint += us
        else:
            entry.forward += us

    for e in events:
        if e.kind == "kernel":
            node = e.backward_of()
            for place, share, adjoint in e.lines:
                add(place, e.cpu_time_total * share, adjoint or node is not None)
        elif e.kind == "backward":
            add(made.get(e.sequence_nr), e.self_cpu_time_total, True)
        elif e.kind in ("op", "region"):
            node = e.backward_of()
            if node is None or e.kind == "op":
                add(e.line, e.self_cpu_time_total, node is not None)
            else:
                add(made.get(node.sequence_nr), e.self_cpu_time_total, True)
    return LineList(sorted(found.values(), key=lambda e: -e.total))


# ---- reading a recording --------------------------------------------------------------------------------------------------------------

def read(recorder: Recorder) -> EventList:
    """The events of a finished recording as a forest, in order of their starts."""
    places: dict[Any, tuple[tuple[str, int], str]] = {}
    made: list[FunctionEvent] = []
    around: list[FunctionEvent] = []
    # By start; of two that start together the longer one, or the one that was appended (ended) later, is around the other.
    order = sorted(range(len(recorder.events)), key=lambda i: (recorder.events[i][2], -recorder.events[i][3], -i))
    for i in order:
        kind, name, start, end, frames, shapes, nbytes, sequence, lines = recorder.events[i]
        e = FunctionEvent(len(made), _title(name), KINDS[kind], recorder.thread, Interval((start - recorder.began) / 1e3, (end - recorder.began) / 1e3))
        while around and around[-1].time_range.end <= e.time_range.start:
            around.pop()
        if around:
            e.cpu_parent = around[-1]
            around[-1].cpu_children.append(e)
        e.input_shapes = [] if shapes is None and recorder.shapes else shapes
        e.sequence_nr, e.lines, e.cpu_memory_usage = sequence, lines or (), nbytes
        resolved = [_place(places, code, offset) for code, offset in frames]
        e.line = resolved[0][0] if resolved else max(e.lines, key=lambda x: x[1])[0] if e.lines else None
        e.stack = [text for _, text in resolved] or ([f"{e.line[0]}({e.line[1]})"] if e.line is not None else [])
        around.append(e)
        made.append(e)
    for e in reversed(made):
        if e.kind == "user":
            e.cpu_memory_usage = sum(c.cpu_memory_usage for c in e.cpu_children)
    return EventList(made, profile_memory=recorder.memory, with_stack=recorder.stack)


def _title(name: Any) -> str:
    """A name; that of a public function is its own, and one for all forms of indexing."""
    if isinstance(name, str):
        return str(name)
    return "getitem" if name.op.name == "getitem" else str(name.name)


def _place(known: dict[Any, tuple[tuple[str, int], str]], code: Any, offset: int) -> tuple[tuple[str, int], str]:
    key = (id(code), offset)
    found = known.get(key)
    if found is None:
        loc = Loc(code=code, lasti=offset)
        found = known[key] = ((loc.file, loc.line), f"{loc.file}({loc.line}): {code.co_name}")
    return found


# ---- chrome ---------------------------------------------------------------------------------------------------------------------------

_CATEGORIES: Final = {"op": "cpu_op", "backward": "cpu_op", "region": "compiled_region", "kernel": "kernel", "user": "user_annotation", "compile": "compile"}


def chrome_trace(events: Sequence[FunctionEvent]) -> dict[str, Any]:
    """The events as an object of Chrome's trace format: complete events ("X") in microseconds, with arrows from an op to its node of the backward pass."""
    pid = os.getpid()
    threads = sorted({e.thread for e in events})
    out: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": "aotgrad"}}]
    main = threading.main_thread().native_id
    out += [{"ph": "M", "name": "thread_name", "pid": pid, "tid": t, "args": {"name": "main thread" if t == main else f"thread {t}"}} for t in threads]
    forward: dict[int, FunctionEvent] = {}
    for e in events:
        args: dict[str, Any] = {"kind": e.kind}
        if e.line is not None:
            args["source"] = f"{e.line[0]}:{e.line[1]}"
        if e.input_shapes is not None:
            args["Input Dims"] = e.input_shapes
        if e.sequence_nr >= 0:
            args["Sequence number"] = e.sequence_nr
        if e.cpu_memory_usage:
            args["Bytes"] = e.cpu_memory_usage
        if len(e.stack) > 1:
            args["Call stack"] = ";".join(e.stack)
        out.append({"ph": "X", "cat": _CATEGORIES[e.kind], "name": e.name, "pid": pid, "tid": e.thread, "ts": round(e.time_range.start, 3),
                    "dur": round(e.cpu_time_total, 3), "args": args})
        if e.sequence_nr >= 0 and e.kind == "op":
            forward.setdefault(e.sequence_nr, e)
        elif e.kind == "backward" and e.sequence_nr in forward:
            common = {"cat": "fwdbwd", "name": "fwdbwd", "id": e.sequence_nr, "pid": pid}
            source = forward[e.sequence_nr]
            out.append({"ph": "s", **common, "tid": source.thread, "ts": round(source.time_range.start, 3)})
            out.append({"ph": "f", "bp": "e", **common, "tid": e.thread, "ts": round(e.time_range.start, 3)})
    return {"schemaVersion": 1, "displayTimeUnit": "ms", "traceEvents": out}
