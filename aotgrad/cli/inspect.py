"""``aotgrad inspect LIB``: what a built library offers, and what it needs (nothing)."""

from __future__ import annotations

import struct
from pathlib import Path

from aotgrad_runtime.errors import AotgradValueError
from aotgrad_runtime.library import describe_text, read_description, refuse_device, signatures

__all__ = ["dynamic", "report"]

_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_SYM = struct.Struct("<IBBHQQ")
_DYN = struct.Struct("<qQ")
_SHT_DYNAMIC, _SHT_DYNSYM, _DT_NEEDED = 6, 11, 1
_ARCHITECTURES = {62: "x86-64", 183: "aarch64"}
_TEXTS = {".h": "a header", ".pc": "a pkg-config file", ".cmake": "a CMake file", ".mlir": "IR text", ".ll": "LLVM text", ".s": "assembly"}
_KINDS = {1: "data", 2: "function"}


def report(path: str) -> str:
    """Functions, size, processor and symbols of a library for any machine. Raises ``AotgradValueError`` for a file that is damaged or was not built by aotgrad."""
    refuse_device(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise AotgradValueError(f"{path}: cannot be read ({error.strerror})") from error
    _shared_only(data, path)
    _, description = read_description(data, path)
    machine, needed, symbols = dynamic(data)
    lines = [describe_text(description, signatures(description, path))]
    lines.append(f"{len(data)} bytes for {_ARCHITECTURES.get(machine, f'machine {machine}')}; needs {', '.join(needed) or 'no other library'}; exports")
    lines += [f"  {name} ({kind}, {size} bytes)" for name, kind, size in symbols]
    return "\n".join(lines)


def _shared_only(data: bytes, path: str) -> None:
    """Refuses the other files of a build, which hold no description, with the name of the one that does."""
    relocatable = data[:4] == b"\x7fELF" and data[16:18] in (b"\1\0", b"\0\1")
    kind = "an archive" if data[:8] == b"!<arch>\n" else "a relocatable object" if relocatable else _TEXTS.get(Path(path).suffix, "")
    if not kind:
        return
    stem = Path(path).stem.removeprefix("lib").removesuffix("Config")
    beside = Path(path).parent / f"lib{stem}.so"
    raise AotgradValueError(f"{path} is {kind}, which does not describe itself; give the .so{f': {beside}' if beside.is_file() else ' that is built with it'}")


def dynamic(data: bytes) -> tuple[int, list[str], list[tuple[str, str, int]]]:
    """The machine number, the needed libraries, and (name, kind, size) of every exported symbol of a shared library that was checked before."""
    header = _EHDR.unpack_from(data)
    at, step, count = header[6], header[11], header[12]
    sections = [_SHDR.unpack_from(data, at + i * step) for i in range(count)]
    needed: list[str] = []
    symbols: list[tuple[str, str, int]] = []
    for _, kind, _, _, offset, size, link, *_ in sections:
        if kind == _SHT_DYNAMIC:
            needed += [_string(data, sections[link], value) for tag, value in _DYN.iter_unpack(data[offset : offset + size]) if tag == _DT_NEEDED]
        elif kind == _SHT_DYNSYM:
            for name, bits, _, index, _, length in _SYM.iter_unpack(data[offset : offset + size]):
                if index and bits >> 4:
                    symbols.append((_string(data, sections[link], name), _KINDS.get(bits & 15, "symbol"), length))
    return header[2], needed, sorted(symbols)


def _string(data: bytes, section: tuple[int, ...], at: int) -> str:
    start = section[4] + at
    return data[start : data.index(b"\0", start)].decode("utf-8", "replace")
