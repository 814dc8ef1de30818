"""The parts of the ELF64 format that the linker reads and writes: record layouts, numbers, small encoders."""

from __future__ import annotations

import struct

EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
PHDR = struct.Struct("<IIQQQQQQ")
SHDR = struct.Struct("<IIQQQQIIQQ")
SYM = struct.Struct("<IBBHQQ")
RELA = struct.Struct("<QIIq")  # offset, type, symbol, addend: r_info split into its little-endian halves
DYN = struct.Struct("<qQ")

MAGIC = b"\x7fELF"
IDENT = MAGIC + bytes([2, 1, 1]) + bytes(9)  # 64-bit, little-endian, version 1, System V

ET_REL, ET_DYN = 1, 3
EM_X86_64, EM_AARCH64 = 62, 183

SHT_NULL, SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_RELA, SHT_HASH, SHT_DYNAMIC, SHT_NOTE, SHT_NOBITS, SHT_REL, SHT_DYNSYM = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11
SHT_INIT_ARRAY, SHT_FINI_ARRAY, SHT_PREINIT_ARRAY = 14, 15, 16
SHT_X86_64_UNWIND = 0x70000001
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR, SHF_INFO_LINK, SHF_TLS = 1, 2, 4, 0x40, 0x400
SHN_UNDEF, SHN_LORESERVE, SHN_ABS, SHN_COMMON = 0, 0xFF00, 0xFFF1, 0xFFF2

STB_LOCAL, STB_GLOBAL, STB_WEAK = 0, 1, 2
STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_SECTION, STT_FILE, STT_TLS, STT_GNU_IFUNC = 0, 1, 2, 3, 4, 6, 10

PT_LOAD, PT_DYNAMIC, PT_NOTE, PT_GNU_STACK, PT_GNU_RELRO = 1, 2, 4, 0x6474E551, 0x6474E552
PF_X, PF_W, PF_R = 1, 2, 4

DT_NULL, DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_RELA, DT_RELASZ, DT_RELAENT, DT_STRSZ, DT_SYMENT, DT_SONAME = 0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 14
DT_FLAGS, DT_RELACOUNT, DT_FLAGS_1 = 30, 0x6FFFFFF9, 0x6FFFFFFB
DF_SYMBOLIC, DF_BIND_NOW, DF_1_NOW = 2, 8, 1


def align_up(value: int, alignment: int) -> int:
    """The least multiple of ``alignment`` (a power of two) that is not below ``value``."""
    return (value + alignment - 1) & -alignment


def wrapped(value: int) -> int:
    """``value`` as a signed 64-bit number, as address arithmetic wraps."""
    return ((value + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


def sysv_hash(name: bytes) -> int:
    """The hash of DT_HASH tables."""
    h = 0
    for byte in name:
        h = (h << 4) + byte
        high = h & 0xF0000000
        h = (h ^ (high >> 24)) & ~high
    return h


class StringTable:
    """A string table that stores each string once."""

    def __init__(self) -> None:
        self.data = bytearray(1)
        self._at: dict[str, int] = {"": 0}

    def add(self, text: str) -> int:
        """The offset of ``text``, added if new."""
        at = self._at.get(text)
        if at is None:
            at = self._at[text] = len(self.data)
            self.data += text.encode() + b"\0"
        return at
