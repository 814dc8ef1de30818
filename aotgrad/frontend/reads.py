"""Whether plain NumPy may have read the numbers of an array that a traced program names: where each load of the name ends, by the code of the functions.

A load is harmless when what it puts on the stack, or a view made of it, goes straight into an operation that the trace took it for (there it is an input, read at
every call), or is only asked for its shape. Everything that is not understood counts as a read.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

from aotgrad_runtime.call import Cell, Global

from .sources import Path, memory_of

__all__ = ["Loads"]

_FORM = frozenset(("shape", "ndim", "dtype", "size", "itemsize", "nbytes", "strides", "flags"))
_ASKERS = frozenset(("len", "isinstance", "type", "id"))
_NOTHING = frozenset(("NOP", "CACHE", "RESUME", "PRECALL", "KW_NAMES", "EXTENDED_ARG", "NOT_TAKEN", "PUSH_NULL"))
_ONE = ("BINARY_", "INPLACE_", "UNARY_", "CALL", "BUILD_", "COMPARE_OP", "IS_OP", "CONTAINS_OP")  # instructions that leave one value
_DROPS = ("STORE_", "POP_TOP", "POP_JUMP", "RETURN_VALUE")  # instructions that leave none
_NAMED = ("LOAD_GLOBAL", "LOAD_NAME"), ("LOAD_DEREF", "LOAD_CLASSDEREF"), ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
_ARGUMENTS = frozenset(("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_DEREF", "LOAD_ATTR"))
_HOPS = 8  # names that a value is handed on to
_VIEWS = frozenset(("reshape", "ravel", "transpose", "swapaxes", "squeeze", "view", "diagonal"))
Places = set[tuple[CodeType, int]]
Ends = list[tuple[tuple[CodeType, int], bool]]


class Loads:
    """The instructions of the functions of a program. ``taken``: for each owner of memory, by id, where (code, offset) the trace took an array for an operand."""

    def __init__(self, functions: Sequence[FunctionType], taken: dict[int, Places]) -> None:
        self.taken = taken
        self.codes = [(fn, code) for fn in functions for code in _nested(fn.__code__)]
        self.listed: dict[CodeType, list[dis.Instruction]] = {}

    def may_read(self, path: Path, array: Any) -> bool:
        """Whether the numbers of ``array``, which the program reaches at ``path``, may have been read while tracing."""
        loads, ends = self._loads(path), dict[tuple[CodeType, int], list[bool]]()
        if loads is None:
            return True
        places = self.taken.get(id(memory_of(array)), set())
        for code, i in loads:
            end = self._end(code, i, places)
            if end is None:
                return True
            for place, part in end:
                ends.setdefault(place, []).append(part)
        return any(len(parts) > 1 and any(parts) for parts in ends.values())  # of several operands of one call, which was the array and which a number of it?

    def _instructions(self, code: CodeType) -> list[dis.Instruction]:
        found = self.listed.get(code)
        if found is None:
            found = self.listed[code] = list(dis.get_instructions(code))
        return found

    def _loads(self, path: Path) -> list[tuple[CodeType, int]] | None:
        """Where the program loads what is at ``path``; None where no instruction tells."""
        if path.steps:
            how, name = path.steps[-1]
            if how == "[":
                return self._items(Path(path.root, path.steps[:-1]), name)
            return None if any(name in code.co_consts for _, code in self.codes) else self._named(_NAMED[2], name) or None
        root = path.root
        if isinstance(root, Global):
            return self._named(_NAMED[0], root.key, root.namespace)  # perhaps none: a global with the name of an attribute
        if isinstance(root, Cell):
            names = {n for fn, _ in self.codes for n, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()) if cell is root.cell}
            return [load for n in names for load in self._named(_NAMED[1], n)] or None
        return None

    def _named(self, kinds: tuple[str, ...], name: Any, namespace: Any = None) -> list[tuple[CodeType, int]]:
        codes = [code for fn, code in self.codes if namespace is None or fn.__globals__ is namespace]
        return [(code, i) for code in codes for i, ins in enumerate(self._instructions(code)) if ins.opname in kinds and ins.argval == name]

    def _items(self, container: Path, key: Any) -> list[tuple[CodeType, int]] | None:
        """Where item ``key`` is taken out of a container that the program takes items at constant keys out of, and does nothing else with."""
        out = list[tuple[CodeType, int]]()
        loads = self._loads(container)
        if loads is None:
            return None
        for code, i in loads:
            constant, item = [*self._instructions(code)[i + 1:i + 3], None, None][:2]
            if constant is None or constant.opname not in ("LOAD_CONST", "LOAD_SMALL_INT") or item is None or not _is_item(item):
                return None
            if constant.argval == key:
                out.append((code, i + 2))
        return out

    def _end(self, code: CodeType, start: int, places: Places, hops: int = _HOPS) -> Ends | None:
        """The operations of the trace that the value which instruction ``start`` loads ends in, and whether a part of it does; None where it may be read."""
        listed = self._instructions(code)
        above, method, part = 0, False, False  # values on the stack above ours; whether ours is a method about to be called
        for i in range(start + 1, len(listed)):
            ins = listed[i]
            name, effect = ins.opname, _effect(ins)
            used = 1 - effect
            if name in _NOTHING:
                above += name == "PUSH_NULL"
            elif name in ("LOAD_ATTR", "LOAD_METHOD") and above == 0:
                if ins.argval in _FORM:
                    return []
                above, method, part = effect, ins.argval in _VIEWS, True
            elif name.startswith("LOAD_") or name.startswith(_ONE) and used <= above or name.startswith(_DROPS) and -effect <= above and not name.startswith("POP_JUMP"):
                above += effect
            elif name.startswith(_ONE):
                if (place := self._place(code, listed, i, places)) is not None:
                    return [(place, part)]
                if name == "IS_OP" or name.startswith("CALL") and not part and _callee(listed, start) in _ASKERS:
                    return []
                if used != above + 1 or not (method and name.startswith("CALL") or _is_item(ins)):
                    return None
                above, method, part = 0, False, True
            elif name == "STORE_FAST" and above == 0 and hops:
                return self._handed_on(code, ins, places, hops - 1)
            else:
                return [] if above == 0 and (name == "POP_TOP" or name.startswith("POP_JUMP") and name.endswith("NONE")) else None
        return None

    def _handed_on(self, code: CodeType, store: dis.Instruction, places: Places, hops: int) -> Ends | None:
        """A local name that is given the value and nothing else."""
        listed, name = self._instructions(code), store.argval
        touched = [(i, ins) for i, ins in enumerate(listed) if "_FAST" in ins.opname and (name in ins.argval if isinstance(ins.argval, tuple) else ins.argval == name)]
        loads = [i for i, ins in touched if ins.opname in ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW")]
        if name in code.co_cellvars or name in code.co_varnames[:code.co_argcount + code.co_kwonlyargcount] or len(touched) != len(loads) + 1:
            return None
        ends = [self._end(code, i, places, hops) for i in loads]
        return None if None in ends else [(place, True) for end in ends for place, _ in end or ()]

    def _place(self, code: CodeType, listed: Sequence[dis.Instruction], i: int, places: Places) -> tuple[CodeType, int] | None:
        end = listed[i + 1].offset if i + 1 < len(listed) else len(code.co_code)
        return next(((at, offset) for at, offset in places if at is code and listed[i].offset <= offset < end), None)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _nested(inner)


def _effect(ins: dis.Instruction) -> int:
    """What an instruction adds to the stack."""
    if ins.opname == "CALL":  # 3.11 spreads it over two
        return -int(ins.arg or 0) - 1
    return dis.stack_effect(ins.opcode, ins.arg, jump=False)


def _is_item(ins: dis.Instruction) -> bool:
    return ins.opname in ("BINARY_SUBSCR", "BINARY_SLICE") or ins.opname == "BINARY_OP" and ins.argrepr == "[]"


def _callee(listed: Sequence[dis.Instruction], start: int) -> Any:
    """The global that was loaded before the arguments, where these are names and attributes."""
    before = next((ins for ins in reversed(listed[:start]) if ins.opname not in _NOTHING and ins.opname not in _ARGUMENTS), None)
    return before.argval if before is not None and before.opname == "LOAD_GLOBAL" else None
