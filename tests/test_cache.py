"""The object cache: damage, full and foreign folders, many processes, killed writers, trimming."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aotgrad_runtime import cache as cache_module
from aotgrad_runtime.cache import ObjectCache, default_folder
from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the cache holds ELF libraries")


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "deep" / "cache")


def files(cache: ObjectCache) -> list[Path]:
    return sorted(Path(cache.folder or "").glob("*.so"))


def test_round_trip(cache: ObjectCache) -> None:
    assert cache.off is None and cache.get("k") is None
    meta = {"name": "f", "sizes": [1, 2.5, None, True], "nested": {"é": "ü"}}
    put = cache.put("k", b"library", meta)
    got = cache.get("k")
    assert got == put and got is not None and got.meta == meta and got.so == b"library"
    assert got.path is not None and Path(got.path).read_bytes().startswith(b"library")
    again = ObjectCache(cache.folder).get("k")
    assert again == got
    cache.put("k", b"other", {})
    assert cache.get("k").so == b"other" and len(files(cache)) == 1
    assert os.stat(cache.folder).st_mode & 0o777 == 0o700 and files(cache)[0].stat().st_mode & 0o077 == 0


def test_keys_may_be_any_text(cache: ObjectCache) -> None:
    keys = ["", "../../etc/passwd", "a" * 10_000, "a\0b", "é", "\ud800"]
    for number, key in enumerate(keys):
        cache.put(key, bytes([number]), {"n": number})
    assert [cache.get(key).meta["n"] for key in keys] == list(range(len(keys)))
    assert {path.parent for path in Path(cache.folder).parent.rglob("*.so")} == {Path(cache.folder)}


def test_a_cached_library_loads_from_its_file_and_from_memory(cache: ObjectCache) -> None:
    elf, llvm = pytest.importorskip("aotgrad.codegen.elf"), pytest.importorskip("llvmlite.binding")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="small")
    so = elf.link_shared([machine.emit_object(llvm.parse_assembly('@meta = constant [3 x i8] c"hi\\00"'))], ["meta"], "libf.so")
    entry = cache.put("k", so, {})
    assert entry.load().string("meta") == b"hi" and cache.get("k").load().string("meta") == b"hi"
    program = (
        "import sys; sys.modules['llvmlite'] = sys.modules['lark'] = None\n"
        "from aotgrad_runtime.cache import ObjectCache\n"
        f"print(ObjectCache({cache.folder!r}).get('k').load().string('meta').decode())"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "hi\n"
    os.unlink(entry.path)  # trimmed by another process between get and load
    assert entry.load().string("meta") == b"hi"
    assert ObjectCache(None).put("k", so, {}).load().string("meta") == b"hi"
    with pytest.raises(AotgradValueError, match="not a shared library"):
        ObjectCache(None).put("k", b"nonsense", {}).load()


def test_metadata_must_be_json(cache: ObjectCache) -> None:
    for bad in ({"a": object()}, {"a": {1, 2}}, {"a": float("nan")}):
        with pytest.raises(AotgradTypeError, match="meta must hold only JSON"):
            cache.put("k", b"x", bad)
    assert files(cache) == []


def test_damaged_files_are_misses_and_removed(cache: ObjectCache) -> None:
    path = Path(cache.put("k", b"library" * 50, {"n": 1}).path)
    whole = path.read_bytes()
    damaged = [whole[:i] + bytes([whole[i] ^ 4]) + whole[i + 1 :] for i in range(0, len(whole), 3)]
    for data in [b"", whole[:-1], whole[1:], whole + b"x", whole[-56:], *damaged]:
        path.write_bytes(data)
        assert cache.get("k") is None and not path.exists()
    path.write_bytes(whole)
    assert cache.get("k").meta == {"n": 1}
    (Path(cache.folder) / files(cache)[0].name).rename(Path(cache._path("other")))  # a sound file under another key's name
    assert cache.get("other") is None


def test_what_is_not_a_file_is_a_miss(cache: ObjectCache) -> None:
    for make in (os.mkdir, os.mkfifo, lambda path: os.symlink("/etc/passwd", path)):
        path = cache._path("k")
        make(path)
        assert cache.get("k") is None
        if os.path.isdir(path):
            os.rmdir(path)
        elif os.path.lexists(path):
            os.unlink(path)
    assert os.path.exists("/etc/passwd")


# --- folders that cannot be used ------------------------------------------------------------------------------------------------


def works_without_keeping(cache: ObjectCache) -> None:
    entry = cache.put("k", b"library", {"n": 1})
    assert entry.path is None and entry.meta == {"n": 1} and entry.so == b"library" and cache.get("k") is None
    cache.trim()


def test_unfit_folders_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_ = tmp_path / "open"
    open_.mkdir()
    for mode in (0o775, 0o777, 0o720, 0o702):
        open_.chmod(mode)
        cache = ObjectCache(open_)
        assert "written to by other users" in cache.off and "chmod go-w" in cache.off
        works_without_keeping(cache)
        assert list(open_.iterdir()) == []
    (tmp_path / "file").write_text("")
    for bad in (tmp_path / "file", tmp_path / "file" / "below", "/proc/aotgrad/cache", "/dev/null"):
        cache = ObjectCache(bad)
        assert str(bad) in cache.off
        works_without_keeping(cache)
    works_without_keeping(ObjectCache(None))
    (tmp_path / "mine").mkdir(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert "another user" in ObjectCache(tmp_path / "mine").off


def test_a_folder_that_others_may_read_is_used(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    for mode in (0o755, 0o711, 0o700):
        (tmp_path / "plain").chmod(mode)
        cache = ObjectCache(tmp_path / "plain")
        assert cache.off is None
        entry = cache.put("k", b"library", {"n": mode})
        assert entry.path is not None and os.stat(entry.path).st_mode & 0o077 == 0


def test_a_disk_that_refuses(cache: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        return write(fd, data[:3]) if os.fstat(fd).st_size == 0 else fail()

    def fail() -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        works_without_keeping(cache)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *_: fail())
        works_without_keeping(cache)
    assert os.listdir(cache.folder) == [cache_module._STAMP]
    shutil.rmtree(cache.folder)
    assert cache.get("k") is None
    assert cache.put("k", b"library", {}).path is not None and cache.get("k").so == b"library"  # the folder is made again


def test_a_real_limit_on_file_sizes(cache: ObjectCache) -> None:
    program = (
        "import resource; from aotgrad_runtime.cache import ObjectCache\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)); cache = ObjectCache({cache.folder!r})\n"
        "print(cache.put('big', bytes(100_000), {}).path, cache.get('big'), cache.put('small', b'x', {}).path is not None)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "None None True\n", done.stderr
    assert [name for name in os.listdir(cache.folder) if name.startswith(".tmp-")] == []


def test_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("AOTGRAD_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_folder() == "/home/someone/.cache/aotgrad"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_folder() == "/home/someone/.cache/aotgrad"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_folder() == "/xdg/aotgrad"
    monkeypatch.setenv("AOTGRAD_CACHE_DIR", "/own")
    assert default_folder() == "/own"


# --- size -----------------------------------------------------------------------------------------------------------------------


def test_size_is_bounded_and_the_longest_unused_goes_first(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "c", limit=100_000)
    for number in range(40):
        path = cache.put(str(number), bytes(5000), {}).path
        os.utime(path, (number, number))
        assert sum(file.stat().st_size for file in files(cache)) <= 100_000
    kept = [number for number in range(40) if cache.get(str(number))]
    assert kept == list(range(40 - len(kept), 40)) and 15 <= len(kept) <= 20
    assert cache.put("huge", bytes(100_001), {}).path is None and cache.get("39") is not None


def test_a_hit_counts_as_use(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "c", limit=100_000)
    for number in range(15):
        os.utime(cache.put(str(number), bytes(5000), {}).path, (number, number))
    assert cache.get("0") is not None
    for number in range(15, 25):
        os.utime(cache.put(str(number), bytes(5000), {}).path, (number, number))
    assert cache.get("0") is not None and cache.get("1") is None


def test_what_killed_writers_left_is_removed(cache: ObjectCache) -> None:
    old, young = (Path(cache.folder) / f".tmp-{name}" for name in ("old", "young"))
    for path in (old, young):
        path.write_bytes(bytes(10))
    os.utime(old, (time.time() - 7200,) * 2)
    cache.put("k", b"x", {})
    assert not old.exists() and young.exists()


def test_small_puts_look_at_the_folder_seldom(cache: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(ObjectCache, "_files", lambda self: looks.append(1) or [])
    for number in range(20):
        cache.put(str(number), bytes(100), {})
    assert len(looks) == 1
    os.utime(Path(cache.folder) / cache_module._STAMP, (0, 0))
    cache.put("k", bytes(100), {})
    assert len(looks) == 2


# --- many processes -------------------------------------------------------------------------------------------------------------

HAMMER = """
import hashlib, random, sys
from aotgrad_runtime.cache import ObjectCache
folder, seed, rounds, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
cache, rng, hits = ObjectCache(folder, limit=limit), random.Random(seed), 0
print('ready', flush=True)
for _ in range(rounds):
    key = str(rng.randrange(12))
    if rng.random() < 0.5:
        so = rng.randbytes(rng.randrange(20_000))
        cache.put(key, so, {'digest': hashlib.sha256(so).hexdigest(), 'key': key})
    elif entry := cache.get(key):
        hits += 1
        assert entry.meta == {'digest': hashlib.sha256(entry.so).hexdigest(), 'key': key}
print(hits)
"""


def hammer(cache: ObjectCache, seed: int, rounds: int, limit: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", HAMMER, str(cache.folder), str(seed), str(rounds), str(limit)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_processes_share_one_folder(cache: ObjectCache) -> None:
    limit = 100_000  # less than twelve entries take, so that entries vanish all the time
    running = [hammer(cache, seed, 400, limit) for seed in range(4)]
    for process in running:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0 and not err, err
        assert int(out.split()[-1]) > 10
    assert [name for name in os.listdir(cache.folder) if name.startswith(".tmp-")] == []
    ObjectCache(cache.folder, limit=limit).trim()
    assert sum(file.stat().st_size for file in files(cache)) <= limit


def test_killed_writers_leave_no_half_entries(cache: ObjectCache) -> None:
    for seed in range(6):
        process = hammer(cache, seed, 10**9, 1 << 30)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(0.01 * seed)
        process.kill()
        process.communicate()
        for file in files(cache):
            key = json.loads(file.read_bytes()[slice(*meta_span(file))])["key"]
            entry = cache.get(key)
            assert entry is not None and entry.path == str(file)


def meta_span(file: Path) -> tuple[int, int]:
    data = file.read_bytes()
    length, extra, _, _ = cache_module._TRAILER.unpack(data[-cache_module._TRAILER.size :])
    return length, length + extra
