"""Writes a shared library: segments, dynamic symbols and relocations, call stubs, table slots, the aotgrad note."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import field

from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError
from aotgrad_runtime.loader import NOTE_SIZE, empty_note, seal
from aotgrad_runtime.records import record

from . import format as elf
from .machines import OutOfRange, Use, Writer
from .program import Piece, Place, Program, build_program, check_names, joined
from .reader import Reloc

FILE_PAGE = 0x1000  # segments start on pages of the file too, so that no page is mapped with two kinds of rights

__all__ = ["link_shared"]


def link_shared(objects: Sequence[bytes], exports: Sequence[str], soname: str, *, needed: Sequence[str] = (), imports: Sequence[str] = ()) -> bytes:
    """Link relocatable objects into one shared library, without any tool.

    ``objects`` are ELF64 little-endian relocatable files for x86-64 or aarch64, compiled with ``reloc='pic'``. Only ``exports`` are visible in the
    result, whatever their visibility was; only what they reach is kept. ``imports`` may stay undefined and are bound by the system's loader when
    the library is loaded; ``needed`` are the libraries it asks for. Calls between the objects are direct. The result is the same bytes for the same input.

    Raises AotgradValueError for a damaged object, a symbol that is undefined or defined twice, an export that no object defines, and code that
    cannot be part of a shared library (32-bit absolute addresses, thread-local storage, constructors); AotgradTypeError for arguments of a wrong type.

    >>> from aotgrad.codegen.elf import link_shared
    >>> link_shared([b"not an object"], ["f"], "libf.so")
    Traceback (most recent call last):
    aotgrad_runtime.errors.AotgradValueError: link_shared: objects[0] is not a sound ELF64 relocatable object: no ELF header; ...
    """
    if not isinstance(soname, str) or not soname or "/" in soname or "\0" in soname:
        raise AotgradTypeError(f"link_shared: soname must be a file name such as 'libf.so', not {soname!r}")
    program = build_program("link_shared", objects, exports, imports)
    return _Image(program, soname, check_names("link_shared", "needed", needed)).build()


@record(eq=False)
class _Out:
    """A section of the library; ``data`` None means it has no bytes in the file."""

    name: str
    type: int
    flags: int
    size: int
    align: int = 8
    entsize: int = 0
    link: str = ""
    info: int = 0
    addr: int = 0
    offset: int = 0
    data: bytes | bytearray | None = None


@record(eq=False)
class _Segment:
    """A PT_LOAD: sections that share rights."""

    flags: int
    sections: list[_Out]


@record
class _Slots:
    """What relocations ask for beyond the sections: table slots, call stubs, words that the loader fills in."""

    got: dict[tuple[object, int, str], tuple[int, Place]] = field(default_factory=dict)
    stubs: dict[str, int] = field(default_factory=dict)
    relative: list[tuple[Piece | None, int, Place, int]] = field(default_factory=list)
    symbolic: list[tuple[Piece, int, str, int]] = field(default_factory=list)

    def slot(self, place: Place) -> int:
        """The number of the table slot of ``place``, made if new."""
        key = (place.piece, place.value, place.name if place.imported else "")
        return self.got.setdefault(key, (len(self.got), place))[0]


class _Image:
    def __init__(self, program: Program, soname: str, needed: list[str]) -> None:
        self.program = program
        self.machine = program.machine
        self.slots = _Slots()
        self.patches: list[tuple[Piece, Reloc, Writer, Use, Place]] = []
        for piece in program.pieces:
            self._scan(piece)
        self.strings = elf.StringTable()
        self.needed = [self.strings.add(name) for name in needed]
        self.soname = self.strings.add(soname)
        self.symbol_names = [*program.imports, *(place.name for place in program.exports)]
        for name in self.symbol_names:
            self.strings.add(name)
        self.sections = {out.name: out for out in self._sections()}
        self.segments = self._segments()

    def build(self) -> bytes:
        self._place_segments()
        for kind in ("rodata", "text", "relro", "data"):
            if self.program.sizes[kind]:
                self._section_of(kind).data = joined(self.program, kind)
        self._fill_tables()
        self._patch()
        return self._write()

    # --- what is needed ---

    def _scan(self, piece: Piece) -> None:
        for reloc, rule, place in piece.refs:
            use, write = rule.use, rule.write
            if use is Use.WORD:
                self._word(piece, reloc, place)
                continue
            if place.imported and use is Use.CALL:
                self.slots.slot(place)
                self.slots.stubs.setdefault(place.name, len(self.slots.stubs))
            elif use is Use.GOT:
                shorter = self.machine.relax(piece.data, reloc.offset, reloc.type, reloc.addend) if place.piece else None
                if shorter:
                    use, write = Use.NEAR, shorter
                else:
                    self.slots.slot(place)
            elif place.piece is None:
                kind = "imported" if place.imported else "absolute"
                where = piece.where(reloc.offset)
                raise AotgradValueError(f"{where}: code takes the {kind} symbol {place.name} to be inside this library; compile with reloc='pic'")
            self.patches.append((piece, reloc, write, use, place))

    def _word(self, piece: Piece, reloc: Reloc, place: Place) -> None:
        if piece.kind == "text" and (place.imported or place.piece):
            raise AotgradValueError(f"{piece.where(reloc.offset)}: machine code holds the 64-bit address of {place.name}; compile with codemodel='small' and reloc='pic'")
        if place.imported:
            self.slots.symbolic.append((piece, reloc.offset, place.name, reloc.addend))
        elif place.piece:
            self.slots.relative.append((piece, reloc.offset, place, reloc.addend))
        else:
            struct.pack_into("<Q", piece.data, reloc.offset, (place.value + reloc.addend) & (1 << 64) - 1)

    # --- sections and segments ---

    def _relocation_count(self) -> tuple[int, int]:
        relative = len(self.slots.relative) + sum(place.piece is not None for _, place in self.slots.got.values())
        other = len(self.slots.symbolic) + sum(place.imported for _, place in self.slots.got.values())
        return relative, relative + other

    def _sections(self) -> list[_Out]:
        sizes, aligns, alloc, write = self.program.sizes, self.program.aligns, elf.SHF_ALLOC, elf.SHF_ALLOC | elf.SHF_WRITE
        count = len(self.symbol_names) + 1
        relocs = self._relocation_count()[1]
        return [
            _Out(".note.aotgrad", elf.SHT_NOTE, alloc, NOTE_SIZE, 4),
            _Out(".hash", elf.SHT_HASH, alloc, 4 * (2 + _buckets(count) + count), 8, 4, ".dynsym"),
            _Out(".dynsym", elf.SHT_DYNSYM, alloc, count * elf.SYM.size, 8, elf.SYM.size, ".dynstr", 1),
            _Out(".dynstr", elf.SHT_STRTAB, alloc, len(self.strings.data), 1),
            _Out(".rela.dyn", elf.SHT_RELA, alloc, relocs * elf.RELA.size, 8, elf.RELA.size, ".dynsym"),
            _Out(".rodata", elf.SHT_PROGBITS, alloc, sizes["rodata"], aligns["rodata"]),
            _Out(".text", elf.SHT_PROGBITS, alloc | elf.SHF_EXECINSTR, sizes["text"], max(aligns["text"], 16)),
            _Out(".plt", elf.SHT_PROGBITS, alloc | elf.SHF_EXECINSTR, len(self.slots.stubs) * self.machine.stub_size, 16),
            _Out(".data.rel.ro", elf.SHT_PROGBITS, write, sizes["relro"], aligns["relro"]),
            _Out(".dynamic", elf.SHT_DYNAMIC, write, elf.DYN.size * len(self._dynamic({})), 8, elf.DYN.size, ".dynstr"),
            _Out(".got", elf.SHT_PROGBITS, write, 8 * len(self.slots.got), 8, 8),
            _Out(".data", elf.SHT_PROGBITS, write, sizes["data"], aligns["data"]),
            _Out(".bss", elf.SHT_NOBITS, write, sizes["bss"], aligns["bss"]),
        ]

    def _segments(self) -> list[_Segment]:
        groups = (
            (elf.PF_R, (".note.aotgrad", ".hash", ".dynsym", ".dynstr", ".rela.dyn", ".rodata")),
            (elf.PF_R | elf.PF_X, (".text", ".plt")),
            (elf.PF_R | elf.PF_W, (".data.rel.ro", ".dynamic", ".got")),
            (elf.PF_R | elf.PF_W, (".data", ".bss")),
        )
        found = [_Segment(flags, [self.sections[name] for name in names if self.sections[name].size]) for flags, names in groups]
        return [segment for segment in found if segment.sections]

    def _section_of(self, kind: str) -> _Out:
        return self.sections[".data.rel.ro" if kind == "relro" else "." + kind]

    def _place_segments(self) -> None:
        offset = elf.EHDR.size + elf.PHDR.size * (len(self.segments) + 4)
        addr = offset
        for number, segment in enumerate(self.segments):
            if number:
                offset = elf.align_up(offset, FILE_PAGE)
                addr = elf.align_up(addr, self.machine.page) + offset % self.machine.page
            for out in segment.sections:
                step = elf.align_up(addr, out.align) - addr
                addr += step
                offset += step
                out.addr, out.offset = addr, offset
                addr += out.size
                offset += 0 if out.type == elf.SHT_NOBITS else out.size

    # --- contents ---

    def _address(self, place: Place) -> int:
        if place.piece is None:
            return place.value
        return self._section_of(place.piece.kind).addr + place.piece.offset + place.value

    def _slot_address(self, place: Place) -> int:
        return self.sections[".got"].addr + 8 * self.slots.slot(place)

    def _stub_address(self, name: str) -> int:
        return self.sections[".plt"].addr + self.machine.stub_size * self.slots.stubs[name]

    def _target(self, use: Use, place: Place) -> int:
        if use is Use.GOT:
            return self._slot_address(place)
        if place.imported:
            return self._stub_address(place.name)
        return self._address(place)

    def _patch(self) -> None:
        for piece, reloc, write, use, place in self.patches:
            out = self._section_of(piece.kind)
            data = out.data
            assert isinstance(data, bytearray)
            at = piece.offset + reloc.offset
            try:
                write(data, at, self._target(use, place), reloc.addend, out.addr + at)
            except OutOfRange as why:
                raise AotgradValueError(f"{piece.where(reloc.offset)}: cannot reach {place.name or 'its target'}: {why}; the library is too large") from None

    def _fill_tables(self) -> None:
        sections = self.sections
        sections[".note.aotgrad"].data = empty_note()
        sections[".dynstr"].data = self.strings.data
        sections[".dynsym"].data = self._dynsym()
        sections[".hash"].data = _hash_table(self.symbol_names)
        got = bytearray(8 * len(self.slots.got))
        for number, place in self.slots.got.values():
            if place.piece is None and not place.imported:
                struct.pack_into("<Q", got, 8 * number, place.value)
        sections[".got"].data = got
        sections[".rela.dyn"].data = self._rela()
        imported = {name: Place(name, None, 0, True) for name in self.slots.stubs}
        stubs = (self.machine.stub(self._stub_address(name), self._slot_address(imported[name])) for name in self.slots.stubs)
        sections[".plt"].data = b"".join(stubs)
        addresses = {name: out.addr for name, out in sections.items()}
        sections[".dynamic"].data = b"".join(elf.DYN.pack(tag, value) for tag, value in self._dynamic(addresses))

    def _dynsym(self) -> bytes:
        table = bytearray(elf.SYM.size)
        for name in self.program.imports:
            table += elf.SYM.pack(self.strings.add(name), elf.STB_GLOBAL << 4, 0, elf.SHN_UNDEF, 0, 0)
        numbers = {out.name: number for number, out in enumerate(self._kept(), 1)}
        for place in self.program.exports:
            section = numbers[self._section_of(place.piece.kind).name] if place.piece else elf.SHN_ABS
            table += elf.SYM.pack(self.strings.add(place.name), elf.STB_GLOBAL << 4 | place.type, 0, section, self._address(place), place.size)
        return bytes(table)

    def _rela(self) -> bytes:
        machine, number = self.machine, {name: index for index, name in enumerate(self.program.imports, 1)}
        relative, other = [], []
        for piece, offset, place, addend in self.slots.relative:
            assert piece is not None
            relative.append((self._section_of(piece.kind).addr + piece.offset + offset, machine.relative, 0, elf.wrapped(self._address(place) + addend)))
        for _, place in self.slots.got.values():
            if place.piece:
                relative.append((self._slot_address(place), machine.relative, 0, self._address(place)))
            elif place.imported:
                other.append((self._slot_address(place), machine.glob_dat, number[place.name], 0))
        for piece, offset, name, addend in self.slots.symbolic:
            other.append((self._section_of(piece.kind).addr + piece.offset + offset, machine.word, number[name], addend))
        return b"".join(elf.RELA.pack(*fields) for fields in sorted(relative) + sorted(other))

    def _dynamic(self, addr: dict[str, int]) -> list[tuple[int, int]]:
        relative, count = self._relocation_count()
        entries = [(elf.DT_NEEDED, name) for name in self.needed]
        entries += [
            (elf.DT_SONAME, self.soname), (elf.DT_HASH, addr.get(".hash", 0)), (elf.DT_STRTAB, addr.get(".dynstr", 0)), (elf.DT_SYMTAB, addr.get(".dynsym", 0)),
            (elf.DT_STRSZ, len(self.strings.data)), (elf.DT_SYMENT, elf.SYM.size),
        ]
        if count:
            entries += [(elf.DT_RELA, addr.get(".rela.dyn", 0)), (elf.DT_RELASZ, count * elf.RELA.size), (elf.DT_RELAENT, elf.RELA.size), (elf.DT_RELACOUNT, relative)]
        return [*entries, (elf.DT_FLAGS, elf.DF_SYMBOLIC | elf.DF_BIND_NOW), (elf.DT_FLAGS_1, elf.DF_1_NOW), (elf.DT_NULL, 0)]

    # --- the file ---

    def _kept(self) -> list[_Out]:
        return [out for segment in self.segments for out in segment.sections]

    def _program_headers(self) -> bytes:
        page, loads, others = self.machine.page, b"", b""  # PT_LOAD comes first, in the order of addresses
        for number, segment in enumerate(self.segments):
            flags, outs = segment.flags, segment.sections
            first, last = outs[0], outs[-1]
            start = 0 if not number else first.addr
            offset = 0 if not number else first.offset
            in_file = max((out.offset + out.size for out in outs if out.type != elf.SHT_NOBITS), default=offset)
            end = last.addr + last.size
            if self._is_relro(outs):  # protected by whole pages, so it must fill its last one
                end = elf.align_up(end, page)
                others += elf.PHDR.pack(elf.PT_GNU_RELRO, elf.PF_R, offset, start, start, in_file - offset, end - start, 1)
            loads += elf.PHDR.pack(elf.PT_LOAD, flags, offset, start, start, in_file - offset, end - start, page)
        for kind, flags, name in ((elf.PT_DYNAMIC, elf.PF_R | elf.PF_W, ".dynamic"), (elf.PT_NOTE, elf.PF_R, ".note.aotgrad")):
            out = self.sections[name]
            others += elf.PHDR.pack(kind, flags, out.offset, out.addr, out.addr, out.size, out.size, out.align)
        return loads + others + elf.PHDR.pack(elf.PT_GNU_STACK, elf.PF_R | elf.PF_W, 0, 0, 0, 0, 0, 16)

    @staticmethod
    def _is_relro(outs: list[_Out]) -> bool:
        return any(out.name == ".dynamic" for out in outs)

    def _write(self) -> bytes:
        kept = self._kept()
        names = elf.StringTable()
        labels = [names.add(out.name) for out in kept]
        own_label = names.add(".shstrtab")
        number = {out.name: index for index, out in enumerate(kept, 1)}
        end = max(out.offset + out.size for out in kept if out.type != elf.SHT_NOBITS)
        shoff = elf.align_up(end + len(names.data), 8)
        phdrs = self._program_headers()
        machine = self.machine.number
        phnum, shnum = len(phdrs) // elf.PHDR.size, len(kept) + 2
        image = bytearray(shoff)
        elf.EHDR.pack_into(image, 0, elf.IDENT, elf.ET_DYN, machine, 1, 0, elf.EHDR.size, shoff, 0, elf.EHDR.size, elf.PHDR.size, phnum, elf.SHDR.size, shnum, shnum - 1)
        image[elf.EHDR.size : elf.EHDR.size + len(phdrs)] = phdrs
        for out in kept:
            if out.data is not None:
                assert len(out.data) == out.size, out.name
                image[out.offset : out.offset + out.size] = bytes(out.data)
        image[end : end + len(names.data)] = names.data
        image += bytes(elf.SHDR.size)
        for label, out in zip(labels, kept):
            image += elf.SHDR.pack(label, out.type, out.flags, out.addr, out.offset, out.size, number.get(out.link, 0), out.info, out.align, out.entsize)
        image += elf.SHDR.pack(own_label, elf.SHT_STRTAB, 0, 0, end, len(names.data), 0, 0, 1, 0)
        return seal(image, self.sections[".note.aotgrad"].offset)


def _buckets(symbols: int) -> int:
    return max(1, symbols // 2) | 1


def _hash_table(names: list[str]) -> bytes:
    """DT_HASH: buckets and chains over the dynamic symbols; number 0 is the empty symbol."""
    count = len(names) + 1
    size = _buckets(count)
    buckets, chains = [0] * size, [0] * count
    for number, name in enumerate(names, 1):
        bucket = elf.sysv_hash(name.encode()) % size
        chains[number], buckets[bucket] = buckets[bucket], number
    return struct.pack(f"<{2 + size + count}I", size, count, *buckets, *chains)
