"""Compiled functions while other threads rebind and write what they read: that is no effect of the function's own, and what is kept of traces stays whole."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import aotgrad as ag

scale, count = 1.0, 0
table = np.ones(4)


class Other:
    """A thread that does ``work`` once, at a moment that the code of another thread sets."""

    def __init__(self, work: Any) -> None:
        self.asked, self.done, self.first = threading.Event(), threading.Event(), True
        self.thread = threading.Thread(target=self._run, args=(work,))
        self.thread.start()

    def _run(self, work: Any) -> None:
        self.asked.wait()
        work()
        self.done.set()

    def turn(self) -> None:
        if self.first:
            self.first = False
            self.asked.set()
            self.done.wait()


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """``turns(work)``: another thread does it when a function reads the attribute ``T`` of an array for the first time (no name of the function's leads there)."""
    made: list[Other] = []
    plain = ag.frontend.trace.TracedArray.T

    def use(work: Any) -> None:
        made.append(Other(work))
        monkeypatch.setattr(ag.frontend.trace.TracedArray, "T", property(lambda x: made[-1].turn() or plain.fget(x)))

    yield use
    for other in made:
        other.turn()
        other.thread.join()


def _rebind(value: float) -> None:
    global scale
    scale = value


def _scaled(x: Any) -> Any:
    return x * scale + x.T


def test_a_name_that_another_thread_rebinds_is_no_effect_of_the_function(turns: Any) -> None:
    _rebind(1.0)
    turns(lambda: _rebind(3.0))
    f, x = ag.compile(_scaled), np.ones(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert f(x).tolist() in ([2.0] * 3, [4.0] * 3)
        assert scale == 3.0
        assert f(x).tolist() == [4.0] * 3
        traces = f.cache_info().traces
        assert f(x).tolist() == [4.0] * 3 and f.cache_info().traces == traces <= 2
        _rebind(5.0)
        assert f(x).tolist() == [6.0] * 3


def test_an_array_that_another_thread_writes_is_not_written_by_the_function(turns: Any) -> None:
    table[:] = 1.0
    turns(lambda: table.__setitem__(0, 7.0))
    f = ag.compile(lambda x: x * table.sum() + x.T)
    assert f(np.ones(2)).tolist() in ([5.0] * 2, [11.0] * 2)
    assert table.tolist() == [7.0, 1.0, 1.0, 1.0]
    assert f(np.ones(2)).tolist() == [11.0] * 2


def test_what_a_function_changes_itself_is_told_beside_other_threads(turns: Any) -> None:
    global count

    def counting(x: Any) -> Any:
        global count
        count += 1
        return x * count

    def writing(x: Any) -> Any:
        table[0] = 5.0
        return x * table.sum()

    count, table[:] = 0, 1.0
    turns(lambda: None)
    f = ag.compile(counting)
    with pytest.warns(ag.AotgradWarning, match="changes count"):
        assert f(np.ones(1)).tolist() == [1.0]
    assert f(np.ones(1)).tolist() == [2.0] and count == 2
    with pytest.raises(ag.AotgradTypeError, match=r"table\[0\] = 5\.0"):
        ag.compile(writing)(np.ones(1))
    assert table.tolist() == [1.0] * 4


def test_traces_are_kept_and_dropped_by_many_threads() -> None:
    global table
    errors: list[BaseException] = []
    stop = threading.Event()
    f = ag.compile(lambda x: np.sin(x) + table.sum() * 0)
    interval = sys.getswitchinterval()

    def rebind() -> None:
        global table
        while not stop.wait(0.002):
            table = np.ones(4) * np.float64(threading.get_ident() % 7)

    def work(seed: int) -> None:
        sizes = np.random.default_rng(seed)
        try:
            for _ in range(40):
                x = sizes.random(int(sizes.integers(1, 5))).astype(["f4", "f8"][int(sizes.integers(2))])
                np.testing.assert_allclose(f(x), np.sin(x), rtol=1e-6)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    other = threading.Thread(target=rebind)
    try:
        sys.setswitchinterval(1e-5)
        for t in (other, *threads):
            t.start()
        for t in threads:
            t.join()
    finally:
        stop.set()
        other.join()
        assert sys.getswitchinterval() == pytest.approx(1e-5)
        sys.setswitchinterval(interval)
    assert not errors, errors
