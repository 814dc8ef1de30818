"""What is particular to a processor: how each relocation type is used and written, call stubs, GOT relaxation."""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Mapping

from aotgrad_runtime.records import record

from . import format as elf

__all__ = ["MACHINES", "Machine", "OutOfRange", "Rule", "Use"]


class OutOfRange(Exception):
    """A relocated value does not fit its field."""


class Use(enum.Enum):
    """What a relocation needs from the symbol."""

    NONE = 0
    WORD = 1  # its 64-bit address, as data
    NEAR = 2  # its distance, so it must lie in the same library
    CALL = 3  # its distance, or that of a stub which jumps to it
    GOT = 4  # a table slot that holds its address


Writer = Callable[[bytearray, int, int, int, int], None]


@record(frozen=True)
class Rule:
    """How one relocation type is applied: ``write(data, offset, symbol, addend, place)`` patches ``width`` bytes."""

    use: Use
    width: int
    write: Writer


@record(frozen=True)
class Machine:
    """One processor family."""

    name: str
    number: int
    page: int  # largest page size of its systems: distance between segments of different rights
    rules: Mapping[int, Rule]
    word: int
    relative: int
    glob_dat: int
    stub_size: int
    stub: Callable[[int, int], bytes]  # (address of the stub, address of the slot)
    relax: Callable[[bytearray, int, int, int], Callable[[bytearray, int, int, int, int], None] | None]
    hints: Mapping[int, str]


def _no_write(data: bytearray, at: int, symbol: int, addend: int, place: int) -> None:
    """For Use.NONE, and Use.WORD whose value the linker writes itself."""


def _distance(layout: str, bits: int) -> Writer:
    def write(data: bytearray, at: int, symbol: int, addend: int, place: int) -> None:
        value = symbol + addend - place
        if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            raise OutOfRange(f"distance {value:#x} does not fit {bits} bits")
        struct.pack_into(layout, data, at, value)

    return write


_rel32 = _distance("<i", 32)
_rel64 = _distance("<q", 64)


# --- x86-64 ---------------------------------------------------------------------------------------------------------------------

def _x86_stub(at: int, slot: int) -> bytes:
    return b"\xff\x25" + struct.pack("<i", slot - (at + 6)) + b"\x66\x90"  # jmp *slot(%rip); nop


def _lea(data: bytearray, at: int, symbol: int, addend: int, place: int) -> None:
    data[at - 2] = 0x8D  # mov slot(%rip), reg -> lea symbol(%rip), reg
    _rel32(data, at, symbol, addend, place)


def _direct_call(data: bytearray, at: int, symbol: int, addend: int, place: int) -> None:
    data[at - 2 : at] = b"\x67\xe8"  # call *slot(%rip) -> addr32 call symbol
    _rel32(data, at, symbol, addend, place)


def _direct_jump(data: bytearray, at: int, symbol: int, addend: int, place: int) -> None:
    data[at - 2] = 0xE9  # jmp *slot(%rip) -> jmp symbol; nop
    _rel32(data, at - 1, symbol, addend, place - 1)
    data[at + 3] = 0x90


def _x86_relax(data: bytearray, at: int, kind: int, addend: int) -> Writer | None:
    """The patch that replaces a load from the GOT by the address itself, where the instruction allows it."""
    if kind not in (41, 42) or addend != -4 or at < 2:
        return None
    if data[at - 2] == 0x8B:
        return _lea
    if kind == 41 and data[at - 2] == 0xFF:
        return {0x15: _direct_call, 0x25: _direct_jump}.get(data[at - 1])
    return None


_ABSOLUTE = "it is an absolute address of less than 64 bits, which no shared library can hold; compile with reloc='pic'"
_THREAD = "thread-local storage is not supported"
_MODEL = "compile with codemodel='small' and reloc='pic'"

_X86_64 = Machine(
    "x86-64", elf.EM_X86_64, 0x1000,
    {
        0: Rule(Use.NONE, 0, _no_write),
        1: Rule(Use.WORD, 8, _no_write),  # R_X86_64_64
        2: Rule(Use.NEAR, 4, _rel32),  # PC32
        4: Rule(Use.CALL, 4, _rel32),  # PLT32
        9: Rule(Use.GOT, 4, _rel32),  # GOTPCREL
        24: Rule(Use.NEAR, 8, _rel64),  # PC64
        41: Rule(Use.GOT, 4, _rel32),  # GOTPCRELX
        42: Rule(Use.GOT, 4, _rel32),  # REX_GOTPCRELX
        43: Rule(Use.GOT, 4, _rel32),  # CODE_4_GOTPCRELX
    },
    word=1, relative=8, glob_dat=6, stub_size=8, stub=_x86_stub, relax=_x86_relax,
    hints={
        10: _ABSOLUTE, 11: _ABSOLUTE, 12: _ABSOLUTE, 14: _ABSOLUTE, 16: _THREAD, 17: _THREAD, 18: _THREAD, 19: _THREAD, 20: _THREAD, 21: _THREAD,
        22: _THREAD, 23: _THREAD, 25: _MODEL, 26: _MODEL, 27: _MODEL, 28: _MODEL, 29: _MODEL, 31: _MODEL,
    },
)


# --- aarch64 --------------------------------------------------------------------------------------------------------------------

def _patch(data: bytearray, at: int, mask: int, bits: int) -> None:
    (word,) = struct.unpack_from("<I", data, at)
    struct.pack_into("<I", data, at, word & ~mask | bits & mask)


def _signed(value: int, bits: int, scale: int) -> int:
    if value & ((1 << scale) - 1):
        raise OutOfRange(f"distance {value:#x} is not a multiple of {1 << scale}")
    value >>= scale
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise OutOfRange(f"distance {value << scale:#x} does not fit {bits} bits")
    return value


def _branch(bits: int, shift: int) -> Writer:
    mask = ((1 << bits) - 1) << shift

    def write(data: bytearray, at: int, symbol: int, addend: int, place: int) -> None:
        _patch(data, at, mask, _signed(symbol + addend - place, bits, 2) << shift)

    return write


def _adr_bits(value: int) -> int:
    return (value & 3) << 29 | (value >> 2 & 0x7FFFF) << 5


_ADR_MASK = 3 << 29 | 0x7FFFF << 5


def _adr(data: bytearray, at: int, symbol: int, addend: int, place: int) -> None:
    _patch(data, at, _ADR_MASK, _adr_bits(_signed(symbol + addend - place, 21, 0)))


def _adrp(data: bytearray, at: int, symbol: int, addend: int, place: int) -> None:
    _patch(data, at, _ADR_MASK, _adr_bits(_signed((symbol + addend & -4096) - (place & -4096), 21, 12)))


def _low12(scale: int) -> Writer:
    def write(data: bytearray, at: int, symbol: int, addend: int, place: int) -> None:
        value = symbol + addend & 0xFFF
        if value & ((1 << scale) - 1):
            raise OutOfRange(f"address {symbol + addend:#x} is not a multiple of {1 << scale}")
        _patch(data, at, 0xFFF << 10, value >> scale << 10)

    return write


def _arm_stub(at: int, slot: int) -> bytes:
    code = bytearray(struct.pack("<4I", 0x90000010, 0xF9400211, 0xD61F0220, 0xD503201F))  # adrp x16; ldr x17, [x16]; br x17; nop
    _adrp(code, 0, slot, 0, at)
    _low12(3)(code, 4, slot, 0, at + 4)
    return bytes(code)


def _arm_relax(data: bytearray, at: int, kind: int, addend: int) -> Writer | None:
    return None


_AARCH64 = Machine(
    "aarch64", elf.EM_AARCH64, 0x10000,
    {
        0: Rule(Use.NONE, 0, _no_write),
        256: Rule(Use.NONE, 0, _no_write),
        257: Rule(Use.WORD, 8, _no_write),  # ABS64
        260: Rule(Use.NEAR, 8, _rel64),  # PREL64
        261: Rule(Use.NEAR, 4, _rel32),  # PREL32
        273: Rule(Use.NEAR, 4, _branch(19, 5)),  # LD_PREL_LO19
        274: Rule(Use.NEAR, 4, _adr),  # ADR_PREL_LO21
        275: Rule(Use.NEAR, 4, _adrp),  # ADR_PREL_PG_HI21
        277: Rule(Use.NEAR, 4, _low12(0)),  # ADD_ABS_LO12_NC
        278: Rule(Use.NEAR, 4, _low12(0)),  # LDST8
        279: Rule(Use.CALL, 4, _branch(14, 5)),  # TSTBR14
        280: Rule(Use.CALL, 4, _branch(19, 5)),  # CONDBR19
        282: Rule(Use.CALL, 4, _branch(26, 0)),  # JUMP26
        283: Rule(Use.CALL, 4, _branch(26, 0)),  # CALL26
        284: Rule(Use.NEAR, 4, _low12(1)),  # LDST16
        285: Rule(Use.NEAR, 4, _low12(2)),  # LDST32
        286: Rule(Use.NEAR, 4, _low12(3)),  # LDST64
        299: Rule(Use.NEAR, 4, _low12(4)),  # LDST128
        311: Rule(Use.GOT, 4, _adrp),  # ADR_GOT_PAGE
        312: Rule(Use.GOT, 4, _low12(3)),  # LD64_GOT_LO12_NC
        314: Rule(Use.CALL, 4, _rel32),  # PLT32
    },
    word=257, relative=1027, glob_dat=1025, stub_size=16, stub=_arm_stub, relax=_arm_relax,
    hints={
        258: _ABSOLUTE, 259: _ABSOLUTE, 263: _MODEL, 264: _MODEL, 265: _MODEL, 266: _MODEL, 267: _MODEL, 268: _MODEL, 269: _MODEL,
        **dict.fromkeys(range(512, 574), _THREAD),
    },
)

MACHINES: Mapping[int, Machine] = {machine.number: machine for machine in (_X86_64, _AARCH64)}
