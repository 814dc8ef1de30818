"""A folder of compiled libraries, shared by all processes of a user, that can be damaged, filled or removed at any time without harm.

One file per entry: the library, then its metadata as JSON, then a fixed trailer with a SHA-256 over all before it. The file is a loadable library as it
stands (loaders do not look behind the sections). Entries appear by rename, so readers see whole files or none; what a killed writer leaves is a temporary
file that a later trim removes. Nothing is ever unpickled. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import struct
import time
from typing import Any, NamedTuple

from .digests import sha256
from .errors import AotgradError, AotgradTypeError
from .loader import Library, load_bytes, load_path

__all__ = ["Entry", "ObjectCache", "default_folder"]

_TRAILER = struct.Struct("<QQ32s8s")  # library bytes, metadata bytes, SHA-256 of both and the two lengths, magic
_MAGIC = b"agcache1"
_SUFFIX = ".so"
_TEMPORARY = ".tmp-"
_STAMP = ".trimmed"
_ABANDONED = 3600.0  # seconds after which a temporary file belongs to no living writer
_REFRESH = 3600.0  # a hit renews the file's time at most this often
_TRIM_EVERY = 60.0  # seconds between looks at the whole folder by processes that write little


def default_folder() -> str | None:
    """``$AOTGRAD_CACHE_DIR``, else ``$XDG_CACHE_HOME/aotgrad``, else ``~/.cache/aotgrad``; None when there is no home."""
    if own := os.environ.get("AOTGRAD_CACHE_DIR"):
        return own
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: a relative path is to be ignored
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "aotgrad") if os.path.isabs(base) else None


class Entry(NamedTuple):
    """A cached library. ``path`` is its file, or None when it is not on disk; ``meta`` the JSON stored with it; ``so`` its bytes."""

    path: str | None
    meta: dict[str, Any]
    so: bytes

    def load(self) -> Library:
        """Load the library until nothing refers to it, from its file or from memory where that fails. Raises as `load_bytes` does."""
        if self.path is not None:
            with contextlib.suppress(AotgradError):  # trimmed meanwhile, or on a disk from which nothing may be executed
                return load_path(self.path, unload=True)
        return load_bytes(self.so, self.path or "<memory>", unload=True)


class ObjectCache:
    """Compiled libraries by key, in one folder.

    ``folder`` is usually `default_folder()`; None keeps nothing. The folder is made with mode 0700; one that others may enter or that belongs to
    another user is not used, and ``off`` then says why. ``limit`` bounds the bytes kept: the least recently used entries go first. Trouble with the disk
    never raises: it means that nothing is found or kept. Safe for many threads and processes.

    >>> from aotgrad_runtime.cache import ObjectCache
    >>> cache = ObjectCache(None)
    >>> cache.get("key") is None, cache.off
    (True, 'no folder was given')
    """

    def __init__(self, folder: str | os.PathLike[str] | None, *, limit: int = 1 << 30) -> None:
        path = None if folder is None else os.path.abspath(os.fspath(folder))
        self.off: str | None = "no folder was given" if path is None else _unusable(path)
        self.folder: str | None = path if self.off is None else None
        self.limit = limit
        self._written = 0

    def get(self, key: str) -> Entry | None:
        """The entry of ``key`` if it is there and whole, else None. A damaged file is removed."""
        path = self._path(key)
        if path is None:
            return None
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            about = os.fstat(fd)
            data = os.read(fd, about.st_size + 1) if stat.S_ISREG(about.st_mode) else b""
            while len(data) < about.st_size and (more := os.read(fd, about.st_size)):
                data += more
        except OSError:
            return None
        finally:
            os.close(fd)
        entry = _unpack(path, key, data)
        with contextlib.suppress(OSError):
            if entry is None:
                os.unlink(path)
            elif time.time() - about.st_mtime > _REFRESH:
                os.utime(path)
        return entry

    def put(self, key: str, so: bytes, meta: dict[str, Any]) -> Entry:
        """Keep ``so`` and ``meta`` under ``key``, replacing what was there. The entry returned can be loaded even when the disk refused it.

        Raises AotgradTypeError when ``meta`` is not made of JSON's types."""
        so = bytes(so)
        try:
            text = json.dumps({"key": key, "meta": meta}, sort_keys=True, allow_nan=False)
            kept = json.loads(text)["meta"]
        except (TypeError, ValueError) as why:
            raise AotgradTypeError(f"ObjectCache.put: meta must hold only JSON's types: {why}") from None
        path = self._path(key)
        if path is None or not self._store(path, _pack(so, text.encode())):
            return Entry(None, kept, so)
        return Entry(path, kept, so)

    def _path(self, key: str) -> str | None:
        if self.folder is None:
            return None
        return os.path.join(self.folder, sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:40] + _SUFFIX)

    def _store(self, path: str, data: bytes) -> bool:
        assert self.folder is not None
        if len(data) > self.limit:
            return False
        temporary = os.path.join(self.folder, f"{_TEMPORARY}{os.getpid()}-{os.urandom(8).hex()}")
        try:
            _write_new(self.folder, temporary, data)
            os.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            return False
        self._written += len(data)
        if self._written > self.limit // 64 or self._stale_stamp():
            self._written = 0
            self.trim(keep=path)
        return True

    def _stale_stamp(self) -> bool:
        assert self.folder is not None
        try:
            return time.time() - os.stat(os.path.join(self.folder, _STAMP)).st_mtime > _TRIM_EVERY
        except OSError:
            return True

    def trim(self, keep: str | None = None) -> None:
        """Remove abandoned temporary files and, while more than ``limit`` bytes are kept, the entries longest unused (never the file ``keep``)."""
        if self.folder is None:
            return
        with contextlib.suppress(OSError):
            files = self._files()
            with open(os.path.join(self.folder, _STAMP), "w"):  # rewriting it renews its time
                pass
            total = sum(size for _, size, _ in files)
            for _, size, path in sorted(files) if total > self.limit else ():
                if total <= self.limit - self.limit // 16:
                    break
                if path != keep:
                    total -= size
                    with contextlib.suppress(OSError):
                        os.unlink(path)

    def _files(self) -> list[tuple[float, int, str]]:
        """(time, size, path) of every entry; abandoned temporary files are removed on the way."""
        assert self.folder is not None
        found, now = [], time.time()
        with os.scandir(self.folder) as listing:
            for item in listing:
                with contextlib.suppress(OSError):
                    about = item.stat(follow_symlinks=False)
                    if item.name.startswith(_TEMPORARY) and now - about.st_mtime > _ABANDONED:
                        os.unlink(item.path)
                    elif item.name.endswith(_SUFFIX):
                        found.append((about.st_mtime, about.st_size, item.path))
        return found


def _unusable(folder: str) -> str | None:
    """Why a folder cannot hold the cache, or None. Makes it if it is missing."""
    try:
        _make(folder)
        about = os.stat(folder)
    except OSError as why:
        return f"{folder}: {why.strerror}"
    if not stat.S_ISDIR(about.st_mode):
        return f"{folder} is not a folder"
    if about.st_uid != os.geteuid():
        return f"{folder} belongs to another user"
    if about.st_mode & 0o022:  # what others may read does no harm, and files are the user's alone
        return f"{folder} can be written to by other users (mode {stat.S_IMODE(about.st_mode):04o}), whose code would run as yours; run chmod go-w on it"
    return None


def _make(folder: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        os.mkdir(folder, 0o700)


def _write_new(folder: str, path: str, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(path, flags, 0o600)
    except FileNotFoundError:  # the folder was removed while this process ran
        _make(folder)
        fd = os.open(path, flags, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)


def _pack(so: bytes, text: bytes) -> bytes:
    lengths = struct.pack("<QQ", len(so), len(text))
    return b"".join((so, text, lengths, sha256(so + text + lengths).digest(), _MAGIC))


def _unpack(path: str, key: str, data: bytes) -> Entry | None:
    if len(data) < _TRAILER.size:
        return None
    length, extra, digest, magic = _TRAILER.unpack_from(data, len(data) - _TRAILER.size)
    if magic != _MAGIC or length + extra + _TRAILER.size != len(data):
        return None
    if sha256(memoryview(data)[: length + extra + 16]).digest() != digest:
        return None
    try:
        stored = json.loads(data[length : length + extra])
    except ValueError:
        return None
    if not isinstance(stored, dict) or stored.get("key") != key or not isinstance(stored.get("meta"), dict):
        return None
    return Entry(path, stored["meta"], data[:length])
