"""Writes static libraries: the ar format with GNU's symbol index and long names, as linkers read it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError

from . import format as elf
from .reader import read_object

__all__ = ["write_archive"]

_HEADER = 60


def write_archive(members: Sequence[tuple[str, bytes]]) -> bytes:
    """A static library of relocatable objects, with the symbol index that linkers need, so no ranlib is run on it.

    ``members`` are (file name, content). Times, owners and modes are fixed, so equal input gives equal bytes.
    Raises AotgradValueError for a name that occurs twice or holds ``/`` or a line break, and for content that is not a sound relocatable object;
    AotgradTypeError for arguments of a wrong type.

    >>> from aotgrad.codegen.elf import write_archive
    >>> write_archive([])
    b'!<arch>\\n'
    """
    parts = [_checked(item) for item in members]
    names = [name for name, _ in parts]
    if len(set(names)) < len(names):
        raise AotgradValueError(f"write_archive: members must have different names, got {', '.join(names)}")
    long_names, fields = _names(names)
    symbols = [(symbol, index) for index, (name, data) in enumerate(parts) for symbol in _defines(data, name)]
    index_size = 4 + 4 * len(symbols) + sum(len(symbol.encode()) + 1 for symbol, _ in symbols)
    at = 8 + (_HEADER + index_size + index_size % 2 if symbols else 0) + (_HEADER + len(long_names) + len(long_names) % 2 if long_names else 0)
    offsets = []
    for _, data in parts:
        offsets.append(at)
        at += _HEADER + len(data) + len(data) % 2
    if at >= 1 << 32:
        raise AotgradValueError(f"write_archive: the archive would have {at} bytes, the format's index reaches 4 GiB; split it")
    out = [b"!<arch>\n"]
    if symbols:
        table = struct.pack(f">{1 + len(symbols)}I", len(symbols), *(offsets[index] for _, index in symbols))
        out.append(_member("/", table + b"".join(symbol.encode() + b"\0" for symbol, _ in symbols), b"\0"))
    if long_names:
        out.append(_member("//", long_names, b"\n"))
    out += [_member(field, data, b"\n") for field, (_, data) in zip(fields, parts)]
    return b"".join(out)


def _checked(item: tuple[str, bytes]) -> tuple[str, bytes]:
    if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[0], str) or not isinstance(item[1], (bytes, bytearray, memoryview)):
        raise AotgradTypeError("write_archive: each member must be a pair (file name, bytes)")
    name, data = item
    if not name or any(c in "/\n\0" for c in name):
        raise AotgradValueError(f"write_archive: {name!r} cannot be a member's name; give a plain file name such as 'f.o'")
    return name, bytes(data)


def _names(names: list[str]) -> tuple[bytes, list[str]]:
    """The table of names that do not fit a header, and each member's name field."""
    table, fields = b"", []
    for name in names:
        encoded = name.encode()
        if len(encoded) <= 15 and name.isascii():
            fields.append(name + "/")
        else:
            fields.append(f"/{len(table)}")
            table += encoded + b"/\n"
    return table, fields


def _defines(data: bytes, name: str) -> list[str]:
    file = read_object(data, f"write_archive: member {name!r}")
    return [symbol.name for symbol in file.symbols if symbol.bind != elf.STB_LOCAL and symbol.section != elf.SHN_UNDEF]


def _member(name: str, data: bytes, pad: bytes) -> bytes:
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'644' if name not in ('/', '//') else '0':<8}{len(data):<10}`\n".encode()
    return header + data + pad * (len(data) % 2)
