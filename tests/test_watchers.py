"""What one thread watches (hooks of saved tensors, anomaly mode, the profiler, region hooks) leaves the short ways of all others alone."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from entered import python_calls

import aotgrad as ag
from aotgrad.autograd import profiler
from aotgrad.frontend import native, quick
from aotgrad_runtime import watchers


@contextlib.contextmanager
def _region_hook() -> Iterator[None]:
    before = ag.set_region_hook(lambda region, phase, ns: None)
    try:
        yield
    finally:
        ag.set_region_hook(before)


WATCH: dict[str, Callable[[], Any]] = {
    "saved-tensor hooks": lambda: ag.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t), "anomaly": ag.autograd.detect_anomaly, "profiler": profiler.profile,
    "region hook": _region_hook,
}


@contextlib.contextmanager
def _elsewhere(*blocks: Callable[[], Any]) -> Iterator[None]:
    """Other threads, inside these contexts."""
    before, stop, inside = watchers.shared.count, threading.Event(), [threading.Event() for _ in blocks]

    def run(block: Callable[[], Any], here: threading.Event) -> None:
        with block():
            here.set()
            stop.wait()

    threads = [threading.Thread(target=run, args=pair) for pair in zip(blocks, inside)]
    for thread in threads:
        thread.start()
    for event in inside:
        event.wait()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert watchers.shared.count == before


@pytest.mark.parametrize("name", WATCH)
def test_other_threads_keep_their_short_ways(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "HOT", 2)
    monkeypatch.setattr(quick, "INSTANCES", 1 << 10)  # whatever ran before
    f, x = ag.compile(lambda a: a * 3.0 + 1.0), np.ones(4)
    f(x)
    t = ag.ones(1931, requires_grad=True)  # a program that nothing ran before: its second call compiles it
    for _ in range(4):
        t * t
    short = native.available()
    plain = python_calls(lambda: f(x))
    with _elsewhere(WATCH[name]):
        assert python_calls(lambda: f(x)) == plain and len(f.instances()) == 1
        assert isinstance((t * t).grad_fn, quick.QuickNode) is short
    with WATCH[name]():
        assert len(python_calls(lambda: f(x))) > len(plain) and f.instances() == ()
        assert name in ("profiler", "region hook") or not isinstance((t * t).grad_fn, quick.QuickNode)
        with _elsewhere(WATCH["anomaly"]):
            pass
        assert f.instances() == ()
    assert python_calls(lambda: f(x)) == plain and watchers.shared.count == 0


def test_a_thread_that_ends_leaves_nothing() -> None:
    thread = threading.Thread(target=lambda: ag.autograd.set_detect_anomaly(True))
    thread.start()
    thread.join()
    assert watchers.shared.count == 0


def test_more_threads_than_the_table_has_room_for() -> None:
    f, x = ag.compile(lambda a: a + 1.0), np.ones(3)
    f(x)
    plain = python_calls(lambda: f(x))
    with _elsewhere(*[WATCH["anomaly"]] * watchers.ROOM):
        assert python_calls(lambda: f(x)) == plain
        with _elsewhere(WATCH["anomaly"]):
            assert f(x).tolist() == [2.0, 2.0, 2.0]
        assert python_calls(lambda: f(x)) == plain
        with ag.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="log"):
            ag.compile(lambda a: ag.log(a))(np.zeros(2))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of threads
def test_a_forked_child_watches_what_its_thread_did() -> None:
    with _elsewhere(WATCH["anomaly"]):
        for mine in (False, True):
            with ag.autograd.detect_anomaly() if mine else contextlib.nullcontext():
                pid = os.fork()
                if pid == 0:
                    os._exit(watchers.shared.count)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == int(mine)
