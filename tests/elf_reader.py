"""What an ELF file of 64 bits says of itself, read with struct alone: no code is shared with the linker that wrote it, and no tool must be installed."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

STRTAB, SYMTAB, DYNAMIC, DYNSYM = 3, 2, 6, 11  # types of sections
NEEDED, TEXTREL = 1, 22  # tags
SHF_WRITE = 1


class Section(NamedTuple):
    name: str
    kind: int
    flags: int
    data: bytes
    link: int


@dataclass(frozen=True)
class Elf:
    sections: tuple[Section, ...]

    def of(self, kind: int) -> list[Section]:
        return [s for s in self.sections if s.kind == kind]

    def tags(self) -> dict[int, list[int]]:
        """The dynamic section: values by tag, up to the entry that ends it."""
        out: dict[int, list[int]] = {}
        for section in self.of(DYNAMIC):
            for tag, value in struct.iter_unpack("<qQ", section.data):
                if tag == 0:
                    break
                out.setdefault(tag, []).append(value)
        return out

    def symbols(self, kind: int) -> list[tuple[str, int, bool]]:
        """(name, binding, whether it is defined here) of the symbols of ``.dynsym`` or ``.symtab``; 1 is global, 2 weak."""
        out = []
        for section in self.of(kind):
            names = self.sections[section.link].data
            for name, info, _, where, _, _ in struct.iter_unpack("<IBBHQQ", section.data):
                text = names[name : names.index(b"\0", name)].decode()
                if text:
                    out.append((text, info >> 4, where != 0))
        return out


def read(data: bytes) -> Elf:
    assert data[:6] == b"\x7fELF\x02\x01", "not a little-endian ELF file of 64 bits"
    start, = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    rows = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count)]
    parts = [b"" if kind == 8 else data[at : at + length] for _, kind, _, _, at, length, *_ in rows]
    table = parts[names]
    return Elf(tuple(Section(table[r[0] : table.index(b"\0", r[0])].decode(), r[1], r[2], part, r[6]) for r, part in zip(rows, parts)))
