"""Loads shared libraries made by aotgrad, after checking that they are whole and for this machine.

A library carries a note: a format version, the length of the file and a SHA-256 over it. What is damaged, cut off, foreign or built for another
processor is refused before the system's loader sees it. What was checked is what is mapped: the library is opened once and loaded through its descriptor.
Needs Linux and the standard library only.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
import os
import struct
import sys
from typing import Any, NamedTuple

from .digests import sha256
from .errors import AotgradRuntimeError, AotgradTypeError, AotgradValueError

__all__ = ["NOTE_SIZE", "Library", "check_library", "empty_note", "load_bytes", "load_path", "seal"]

_dlclose: Any = getattr(sys.modules.get("_ctypes"), "dlclose", None)  # None in other Pythons: nothing is unloaded
_NAME = b"aotgrad\0"
_TYPE = 1
VERSION = 1
_NOTE = struct.Struct("<III8sIIQ32s")  # name size, description size, type, name | version, reserved, file length, SHA-256
NOTE_SIZE = _NOTE.size
_DESCRIPTION = NOTE_SIZE - 20
_DIGEST_AT = NOTE_SIZE - 32

_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_PHDR = struct.Struct("<IIQQQQQQ")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_PT_LOAD, _PT_DYNAMIC, _PT_NOTE = 1, 2, 4
_SHT_NULL, _SHT_NOBITS = 0, 8
_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64", 40: "arm", 3: "i386"}


class _Segment(NamedTuple):
    type: int
    flags: int
    offset: int
    vaddr: int
    paddr: int
    filesz: int
    memsz: int
    align: int


def empty_note() -> bytes:
    """The note of a library whose bytes are not complete yet; `seal` fills it in."""
    return _NOTE.pack(len(_NAME), _DESCRIPTION, _TYPE, _NAME, VERSION, 0, 0, bytes(32))


def seal(image: bytearray, note_at: int) -> bytes:
    """Write the length and digest of ``image`` into its note at ``note_at`` and return the finished file."""
    _NOTE.pack_into(image, note_at, len(_NAME), _DESCRIPTION, _TYPE, _NAME, VERSION, 0, len(image), bytes(32))
    digest_at = note_at + _DIGEST_AT
    image[digest_at : digest_at + 32] = _digest(image, len(image), digest_at)
    return bytes(image)


def _digest(data: bytes | bytearray, length: int, digest_at: int) -> bytes:
    view = memoryview(data)
    state = sha256(view[:digest_at], size=length)
    state.update(bytes(32))
    state.update(view[digest_at + 32 : length])
    return state.digest()


class _Handle(int):
    """The system's handle of a library, which is given back with the last reference to it.

    The cyclic collector is kept from looking at it: that finalises all of a dead cycle before it takes any of it apart, and one of those finalisers may still call into a
    library, or bring all back to life. What the collector does not know goes after the last of them. The finaliser is the system's own function, behind a method: Python
    keeps an exception that is under way aside while it runs, and an interrupt cannot get lost in it.
    """

    __slots__ = ()


def _stay() -> None:
    """While the interpreter ends nothing is unloaded: threads may still be inside, and what closes is taken apart itself."""
    del _Handle.__del__  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=1)
def _untrack() -> Any:
    """What hides an object from the cyclic collector; None where nothing is unloaded."""
    if _dlclose is None or sys.implementation.name != "cpython":
        return None
    method = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(("PyInstanceMethod_New", ctypes.pythonapi))
    _Handle.__del__ = method(_dlclose)  # type: ignore[attr-defined]
    atexit.register(_stay)
    return ctypes.PYFUNCTYPE(None, ctypes.py_object)(("PyObject_GC_UnTrack", ctypes.pythonapi))


class Library:
    """A loaded library. It stays for the life of the process, or, loaded with ``unload``, while this object lives: who keeps an address of such a one keeps the object
    too.

    ``name`` says where it came from.
    """

    __slots__ = ("__weakref__", "_handle", "_hold", "name")

    def __init__(self, handle: ctypes.CDLL, name: str, unload: bool = False) -> None:
        self._handle = handle
        self.name = name
        self._hold = None
        if unload and (untrack := _untrack()) is not None:
            self._hold = _Handle(handle._handle)
            untrack(self._hold)

    def address(self, symbol: str) -> int:
        """The address of a function or a datum. Raises AotgradValueError when the library has no such symbol."""
        try:
            return ctypes.addressof(ctypes.c_char.in_dll(self._handle, symbol))
        except (ValueError, TypeError):
            raise AotgradValueError(f"library {self.name} has no symbol {symbol!r}; `nm -D` lists what it exports") from None

    def string(self, symbol: str) -> bytes:
        """The zero-terminated bytes stored at ``symbol`` (metadata), without the zero."""
        return ctypes.string_at(self.address(symbol))

    def __contains__(self, symbol: object) -> bool:
        try:
            return isinstance(symbol, str) and self.address(symbol) != 0
        except AotgradValueError:
            return False

    def __repr__(self) -> str:
        return f"<aotgrad library {self.name}>"


def load_bytes(so: bytes, name: str = "<memory>", *, foreign_ok: bool = False, unload: bool = False) -> Library:
    """Load a shared library from memory; nothing is left on disk. Each call loads a new copy. ``unload``: until nothing refers to it.

    ``so`` is what `aotgrad.codegen.elf.link_shared` returned. Raises AotgradValueError when it is damaged, foreign (unless ``foreign_ok``) or for
    another machine, AotgradTypeError when it is not bytes, AotgradRuntimeError when the system refuses to load it.

    >>> from aotgrad_runtime.loader import load_bytes
    >>> load_bytes(b"nonsense")
    Traceback (most recent call last):
    aotgrad_runtime.errors.AotgradValueError: <memory> is not a shared library that can be loaded here: no ELF header; ...
    """
    if not isinstance(so, (bytes, bytearray, memoryview)):
        raise AotgradTypeError(f"load_bytes: so must be bytes, not {type(so).__name__}; use load_path for a file")
    so = bytes(so)
    ours = check_library(so, name, foreign_ok=foreign_ok)
    fd = _memory_file(so)
    try:
        return Library(_open(_through_descriptor(fd), name), name, unload and ours)
    finally:
        os.close(fd)


def load_path(path: str | os.PathLike[str], *, foreign_ok: bool = False, unload: bool = False) -> Library:
    """Load a shared library from a file, after the same checks as `load_bytes`.

    ``unload``: until nothing refers to it. A file that was replaced (renamed over) since it was last loaded is loaded anew. With ``foreign_ok`` a library of other makers
    is loaded too, by its path, so that its search paths work; it stays. Raises FileNotFoundError and other OSErrors of reading wrapped in AotgradRuntimeError.
    """
    name = os.fspath(path)
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as why:
        raise AotgradRuntimeError(f"cannot read library {name}: {why.strerror}; check the path") from why
    try:
        try:
            data = _read_all(fd)
        except OSError as why:
            raise AotgradRuntimeError(f"cannot read library {name}: {why.strerror}; check the path") from why
        ours = check_library(data, name, foreign_ok=foreign_ok)
        return Library(_open(_through_descriptor(fd) if ours else os.path.abspath(name), name), name, unload and ours)
    finally:
        os.close(fd)


def check_library(data: bytes, name: str, *, foreign_ok: bool = False, any_machine: bool = False) -> bool:
    """Check a whole library file. True when it is aotgrad's own and intact, False when it is a sound foreign one and ``foreign_ok``.

    ``any_machine``: one for another processor will do (it is going to be read, not loaded). Raises AotgradValueError saying what is wrong. Bytes after
    the length that the note records are not looked at (a cache keeps its metadata there).
    """
    try:
        segments = _segments(data, any_machine)
        note = _find_note(data, segments)
        if note is None:
            if foreign_ok:
                return False
            raise _Unsound("it was not made by aotgrad (no .note.aotgrad)")
        _check_note(data, note)
    except (_Unsound, struct.error) as why:
        wanted = "build it again with aotgrad for this machine" if data[:4] == b"\x7fELF" else "a library that aotgrad build has made (lib*.so) is needed"
        raise AotgradValueError(f"{name} is not a shared library that can be loaded here: {why}; {wanted}") from None
    return True


class _Unsound(Exception):
    """What is wrong with a library."""


def _segments(data: bytes, any_machine: bool) -> list[_Segment]:
    if len(data) < _EHDR.size or data[:4] != b"\x7fELF":
        raise _Unsound("no ELF header")
    if data[4:7] != b"\x02\x01\x01":
        raise _Unsound("not a 64-bit little-endian file")
    _, kind, machine, _, _, phoff, shoff, _, _, phentsize, phnum, shentsize, shnum, _ = _EHDR.unpack_from(data)
    if kind != 3:
        raise _Unsound(f"its type is {kind}, not shared object (3)")
    here = os.uname().machine
    if _MACHINES.get(machine) != here and not any_machine:
        raise _Unsound(f"it is for {_MACHINES.get(machine, f'machine number {machine}')}, this is {here}")
    if phentsize != _PHDR.size or not phnum or phoff + phnum * _PHDR.size > len(data):
        raise _Unsound("its program headers do not lie inside the file")
    segments = [_Segment(*fields) for fields in _PHDR.iter_unpack(data[phoff : phoff + phnum * _PHDR.size])]
    for segment in segments:
        _check_segment(segment, len(data))
    if not any(s.type == _PT_LOAD for s in segments) or not any(s.type == _PT_DYNAMIC for s in segments):
        raise _Unsound("it has nothing to load")
    _check_sections(data, shoff, shentsize, shnum)
    return segments


def _check_segment(segment: _Segment, length: int) -> None:
    if segment.offset + segment.filesz > length:
        raise _Unsound(f"a segment ends outside the file of {length} bytes; the file was cut off")
    if segment.type != _PT_LOAD:
        return
    if segment.memsz < segment.filesz or segment.vaddr + segment.memsz >= 1 << 47:
        raise _Unsound("a segment has impossible sizes")
    if segment.align & (segment.align - 1) or segment.align and (segment.vaddr - segment.offset) % segment.align:
        raise _Unsound("a segment is misaligned")
    if segment.flags & 3 == 3:
        raise _Unsound("a segment is both writable and executable")


def _check_sections(data: bytes, shoff: int, shentsize: int, shnum: int) -> None:
    if not shnum:
        return
    if shentsize != _SHDR.size or shoff + shnum * _SHDR.size > len(data):
        raise _Unsound("its section headers do not lie inside the file; the file was cut off")
    for _, kind, _, _, offset, size, *_ in _SHDR.iter_unpack(data[shoff : shoff + shnum * _SHDR.size]):
        if kind not in (_SHT_NULL, _SHT_NOBITS) and offset + size > len(data):
            raise _Unsound("a section ends outside the file")


def _find_note(data: bytes, segments: list[_Segment]) -> int | None:
    head = _NOTE.pack(len(_NAME), _DESCRIPTION, _TYPE, _NAME, 0, 0, 0, bytes(32))[:20]
    for segment in segments:
        if segment.type == _PT_NOTE and segment.filesz >= NOTE_SIZE and data[segment.offset : segment.offset + 20] == head:
            return segment.offset
    return None


def _check_note(data: bytes, at: int) -> None:
    *_, version, _, length, digest = _NOTE.unpack_from(data, at)
    if version != VERSION:
        raise _Unsound(f"its format version is {version}, this aotgrad reads {VERSION}")
    if not at + NOTE_SIZE <= length <= len(data):
        raise _Unsound(f"{length} bytes were written, {len(data)} are there; the file was cut off")
    if _digest(data, length, at + _DIGEST_AT) != digest:
        raise _Unsound("its checksum does not match; the file was damaged or changed after it was built")


def _read_all(fd: int) -> bytes:
    parts = []
    while part := os.read(fd, 1 << 24):
        parts.append(part)
    return b"".join(parts)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _memory_file(data: bytes) -> int:
    """A descriptor of an unnamed file holding ``data``: in memory, or in the temporary folder where the system has no memfd."""
    try:
        fd = os.memfd_create("aotgrad", os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        fd = _unnamed_file(len(data))
    try:
        _write_all(fd, data)
    except OSError as why:
        os.close(fd)
        raise AotgradRuntimeError(f"no room to load a library of {len(data)} bytes: {why.strerror}; free some memory") from why
    return fd


def _unnamed_file(length: int) -> int:
    folder = os.environ.get("TMPDIR") or "/tmp"
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o700)
    except OSError as why:
        message = f"no place to load a library of {length} bytes: the system has no memfd, and {folder}: {why.strerror}; set TMPDIR to a writable folder"
        raise AotgradRuntimeError(message) from why


_opened = itertools.count(1)


def _through_descriptor(fd: int) -> str:
    """A path to ``fd`` that was never used before in this process.

    glibc takes a library for loaded when its path is the same as before, and descriptor numbers come back after close; so each path is spelled
    differently, with `/.` for the ones in the binary digits of a running number, `/` for the zeros.
    """
    return "/proc/self" + "".join("/." if bit == "1" else "/" for bit in f"{next(_opened):b}") + f"/fd/{fd}"


def _open(path: str, name: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as why:
        reason = str(why).replace(path, name)
        raise AotgradRuntimeError(f"the system's loader refused {name}: {reason}; a symbol it imports may be missing") from None
