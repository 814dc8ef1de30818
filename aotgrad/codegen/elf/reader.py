"""Reads a relocatable ELF64 object and checks everything it says, so that a damaged one gives an AotgradError."""

from __future__ import annotations

import struct
from dataclasses import field

from aotgrad_runtime.errors import AotgradValueError
from aotgrad_runtime.records import record

from . import format as elf

MAX_ALIGN = 4096


@record(eq=False)
class Reloc:
    """One entry of a .rela section."""

    offset: int
    type: int
    symbol: int
    addend: int


@record(eq=False)
class Symbol:
    """One entry of the symbol table; ``section`` is an index, SHN_UNDEF or SHN_ABS."""

    name: str
    value: int
    size: int
    bind: int
    type: int
    section: int


@record
class Section:
    """One section with its bytes (empty if NOBITS) and the relocations that apply to it."""

    name: str
    type: int
    flags: int
    size: int
    align: int
    data: bytes
    relocs: list[Reloc] = field(default_factory=list)


@record
class ObjectFile:
    """A checked relocatable object."""

    label: str
    machine: int
    sections: list[Section]
    symbols: list[Symbol]


class _Damaged(Exception):
    """What is wrong with the object being read."""


@record(eq=False)
class _Header:
    name: int
    type: int
    flags: int
    addr: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entsize: int


def read_object(data: bytes, label: str) -> ObjectFile:
    """Parse one relocatable object. ``label`` names it in messages.

    Raises AotgradValueError when the bytes are not a sound ELF64 little-endian relocatable object for x86-64 or aarch64."""
    try:
        return _read(bytes(data), label)
    except (_Damaged, struct.error) as why:
        raise AotgradValueError(f"{label} is not a sound ELF64 relocatable object: {why}; build it again (llvmlite's TargetMachine.emit_object makes one)") from None


def _read(data: bytes, label: str) -> ObjectFile:
    machine, headers, names_index = _headers(data)
    names = _strings(data, headers, names_index, "the section names")
    sections = [_section(data, header, names) for header in headers]
    symbols: list[Symbol] = []
    tables = [i for i, header in enumerate(headers) if header.type == elf.SHT_SYMTAB]
    if len(tables) > 1:
        raise _Damaged("more than one symbol table")
    for index in tables:
        symbols = _symbols(data, headers, index, sections)
    for header in headers:
        if header.type in (elf.SHT_RELA, elf.SHT_REL):
            _relocs(data, header, tables, sections, len(symbols))
    return ObjectFile(label, machine, sections, symbols)


def _headers(data: bytes) -> tuple[int, list[_Header], int]:
    if len(data) < elf.EHDR.size or data[:4] != elf.MAGIC:
        raise _Damaged("no ELF header")
    if data[4:7] != elf.IDENT[4:7]:
        raise _Damaged("not a 64-bit little-endian file")
    _, kind, machine, version, _, _, shoff, _, ehsize, _, _, shentsize, shnum, shstrndx = elf.EHDR.unpack_from(data)
    if kind != elf.ET_REL:
        raise _Damaged(f"its type is {kind}, not relocatable (1)")
    if machine not in (elf.EM_X86_64, elf.EM_AARCH64):
        raise _Damaged(f"machine number {machine} is neither x86-64 (62) nor aarch64 (183)")
    if version != 1 or ehsize != elf.EHDR.size or shentsize != elf.SHDR.size:
        raise _Damaged("header sizes or version are wrong")
    if not 0 < shnum < elf.SHN_LORESERVE or shoff + shnum * elf.SHDR.size > len(data):
        raise _Damaged(f"its {shnum} section headers do not lie inside the file of {len(data)} bytes")
    if shstrndx >= shnum:
        raise _Damaged("the section name table does not exist")
    headers = [_Header(*fields) for fields in elf.SHDR.iter_unpack(data[shoff : shoff + shnum * elf.SHDR.size])]
    return machine, headers, shstrndx


def _content(data: bytes, header: _Header, what: str) -> bytes:
    if header.offset + header.size > len(data):
        raise _Damaged(f"{what} ends outside the file")
    return data[header.offset : header.offset + header.size]


def _strings(data: bytes, headers: list[_Header], index: int, what: str) -> bytes:
    if index >= len(headers) or headers[index].type != elf.SHT_STRTAB:
        raise _Damaged(f"{what}: section {index} is not a string table")
    table = _content(data, headers[index], what)
    if not table.endswith(b"\0"):
        raise _Damaged(f"{what} do not end with a zero byte")
    return table


def _string(table: bytes, at: int) -> str:
    if at >= len(table):
        raise _Damaged(f"a name lies outside its string table ({at} of {len(table)})")
    return table[at : table.index(0, at)].decode("utf-8", "backslashreplace")


def _section(data: bytes, header: _Header, names: bytes) -> Section:
    name = _string(names, header.name)
    if header.type in (elf.SHT_NULL, elf.SHT_NOBITS):
        content = b""
    else:
        content = _content(data, header, f"section {name!r}")
    align = max(header.align, 1)
    if align & (align - 1) or align > MAX_ALIGN:
        raise _Damaged(f"section {name!r} asks for an alignment of {align}, not a power of two up to {MAX_ALIGN}")
    if header.size > 1 << 40:
        raise _Damaged(f"section {name!r} claims {header.size} bytes")
    return Section(name, header.type, header.flags, header.size, align, content)


def _symbols(data: bytes, headers: list[_Header], index: int, sections: list[Section]) -> list[Symbol]:
    header = headers[index]
    if header.entsize != elf.SYM.size or header.size % elf.SYM.size:
        raise _Damaged("the symbol table has entries of a wrong size")
    names = _strings(data, headers, header.link, "the symbol names")
    symbols = []
    for name, info, _, section, value, size in elf.SYM.iter_unpack(sections[index].data):
        symbol = Symbol(_string(names, name), value, size, info >> 4, info & 15, section)
        _check_symbol(symbol, sections)
        symbols.append(symbol)
    return symbols


def _check_symbol(symbol: Symbol, sections: list[Section]) -> None:
    what = f"symbol {symbol.name!r}"
    if symbol.section == elf.SHN_COMMON:
        raise _Damaged(f"{what} has common linkage, which is not supported (give it internal or external linkage)")
    if symbol.type in (elf.STT_TLS, elf.STT_GNU_IFUNC):
        raise _Damaged(f"{what} is thread-local or an ifunc, which is not supported")
    if symbol.bind not in (elf.STB_LOCAL, elf.STB_GLOBAL, elf.STB_WEAK):
        raise _Damaged(f"{what} has binding {symbol.bind}")
    if symbol.section in (elf.SHN_UNDEF, elf.SHN_ABS):
        return
    if symbol.section >= len(sections):
        raise _Damaged(f"{what} lies in section {symbol.section}, which does not exist")
    if symbol.value + symbol.size > sections[symbol.section].size:
        raise _Damaged(f"{what} ends outside its section")


def _relocs(data: bytes, header: _Header, tables: list[int], sections: list[Section], nsymbols: int) -> None:
    if header.info >= len(sections):
        raise _Damaged(f"relocations for section {header.info}, which does not exist")
    section = sections[header.info]
    if not section.flags & elf.SHF_ALLOC:
        return
    if header.type == elf.SHT_REL or header.entsize != elf.RELA.size or header.size % elf.RELA.size or header.link not in tables:
        raise _Damaged(f"the relocations of section {section.name!r} are not RELA records of its symbol table")
    if section.type == elf.SHT_NOBITS:
        raise _Damaged(f"section {section.name!r} has no bytes but has relocations")
    for offset, kind, symbol, addend in elf.RELA.iter_unpack(_content(data, header, f"the relocations of {section.name!r}")):
        if offset >= section.size or symbol >= nsymbols:
            raise _Damaged(f"a relocation of section {section.name!r} is out of range (offset {offset}, symbol {symbol})")
        section.relocs.append(Reloc(offset, kind, symbol, addend))
