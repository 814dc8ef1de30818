"""Writes one relocatable object from several, with only the exports global."""

from __future__ import annotations

from collections.abc import Sequence

from . import format as elf
from .machines import Use
from .program import KINDS, Piece, Place, Program, build_program, joined

_NAMES = {"rodata": ".rodata", "text": ".text", "relro": ".data.rel.ro", "data": ".data", "bss": ".bss"}
_FLAGS = {
    "rodata": elf.SHF_ALLOC,
    "text": elf.SHF_ALLOC | elf.SHF_EXECINSTR,
    "relro": elf.SHF_ALLOC | elf.SHF_WRITE,
    "data": elf.SHF_ALLOC | elf.SHF_WRITE,
    "bss": elf.SHF_ALLOC | elf.SHF_WRITE,
}

__all__ = ["link_relocatable"]


def link_relocatable(objects: Sequence[bytes], exports: Sequence[str]) -> bytes:
    """Merge relocatable objects into one, in which only ``exports`` are global; what else the objects define becomes local.

    Undefined symbols stay undefined for the final link. Only what the exports reach is kept; unwind tables and debug sections are dropped.
    Raises AotgradValueError for a damaged object, a symbol defined twice or an export that no object defines, AotgradTypeError for arguments of a wrong type.

    >>> from aotgrad.codegen.elf import link_relocatable
    >>> link_relocatable([], ["f"])
    Traceback (most recent call last):
    aotgrad_runtime.errors.AotgradValueError: link_relocatable: give at least one object and one exported name
    """
    return _Merged(build_program("link_relocatable", objects, exports, None)).build()


class _Merged:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.kinds = [kind for kind in KINDS if program.sizes[kind]]
        self.section_number = {kind: number for number, kind in enumerate(self.kinds, 1)}
        self.strings = elf.StringTable()
        self.symbols = bytearray(elf.SYM.size)
        self.numbers: dict[object, int] = {}
        for kind in self.kinds:
            self._add(("section", kind), elf.SYM.pack(0, elf.STT_SECTION, 0, self.section_number[kind], 0, 0))

    def build(self) -> bytes:
        exported = {self._key(place) for place in self.program.exports}
        for piece in self.program.pieces:
            for _, _, place in piece.refs:
                if not (place.imported or place.is_section or self._key(place) in exported):
                    self._symbol(place, elf.STB_LOCAL)
        locals_end = len(self.symbols) // elf.SYM.size
        for place in self.program.exports:
            self._symbol(place, elf.STB_GLOBAL)
        for name in self.program.imports:
            self._add(("import", name), elf.SYM.pack(self.strings.add(name), elf.STB_GLOBAL << 4, 0, elf.SHN_UNDEF, 0, 0))
        return self._write({kind: self._relocs(kind) for kind in self.kinds}, locals_end)

    def _add(self, key: object, record: bytes) -> None:
        if key not in self.numbers:
            self.numbers[key] = len(self.symbols) // elf.SYM.size
            self.symbols += record

    @staticmethod
    def _key(place: Place) -> tuple[Piece | None, int, str]:
        return place.piece, place.value, place.name

    def _symbol(self, place: Place, bind: int) -> None:
        section, value = elf.SHN_ABS, place.value
        if place.piece:
            section, value = self.section_number[place.piece.kind], place.piece.offset + place.value
        self._add(self._key(place), elf.SYM.pack(self.strings.add(place.name), bind << 4 | place.type, 0, section, value, place.size))

    def _relocs(self, kind: str) -> bytes:
        records = []
        for piece in self.program.of_kind(kind):
            for reloc, rule, place in piece.refs:
                assert rule.use is not Use.NONE
                addend = reloc.addend
                if place.imported:
                    number = self.numbers["import", place.name]
                elif place.is_section and place.piece:
                    number = self.numbers["section", place.piece.kind]
                    addend = elf.wrapped(addend + place.piece.offset + place.value)
                else:
                    number = self.numbers[self._key(place)]
                records.append(elf.RELA.pack(piece.offset + reloc.offset, reloc.type, number, addend))
        return b"".join(records)

    def _write(self, relocs: dict[str, bytes], locals_end: int) -> bytes:
        image, names = bytearray(elf.EHDR.size), elf.StringTable()
        headers = [bytes(elf.SHDR.size)]

        def emit(name: str, kind: int, flags: int, data: bytes | bytearray, align: int, size: int | None = None, link: int = 0, info: int = 0, entsize: int = 0) -> None:
            image.extend(bytes(elf.align_up(len(image), align) - len(image)))
            length = len(data) if size is None else size
            headers.append(elf.SHDR.pack(names.add(name), kind, flags, 0, len(image), length, link, info, align, entsize))
            image.extend(data)

        for kind in self.kinds:
            empty = kind == "bss"
            content = b"" if empty else joined(self.program, kind)
            emit(_NAMES[kind], elf.SHT_NOBITS if empty else elf.SHT_PROGBITS, _FLAGS[kind], content, self.program.aligns[kind], self.program.sizes[kind])
        with_relocs = [kind for kind in self.kinds if relocs[kind]]
        symtab = len(self.kinds) + len(with_relocs) + 1
        for kind in with_relocs:
            emit(".rela" + _NAMES[kind], elf.SHT_RELA, elf.SHF_INFO_LINK, relocs[kind], 8, None, symtab, self.section_number[kind], elf.RELA.size)
        emit(".symtab", elf.SHT_SYMTAB, 0, self.symbols, 8, None, symtab + 1, locals_end, elf.SYM.size)
        emit(".strtab", elf.SHT_STRTAB, 0, self.strings.data, 1)
        emit(".note.GNU-stack", elf.SHT_PROGBITS, 0, b"", 1)
        names.add(".shstrtab")
        emit(".shstrtab", elf.SHT_STRTAB, 0, names.data, 1)
        image.extend(bytes(elf.align_up(len(image), 8) - len(image)))
        count, machine = len(headers), self.program.machine.number
        elf.EHDR.pack_into(image, 0, elf.IDENT, elf.ET_REL, machine, 1, 0, 0, len(image), 0, elf.EHDR.size, 0, 0, elf.SHDR.size, count, count - 1)
        return bytes(image) + b"".join(headers)
