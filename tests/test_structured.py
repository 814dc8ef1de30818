"""Calls with containers, keywords and strided arrays: their short way gives what the long way gives, and takes only what fits."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
from long_calls import Watched

import aotgrad as ag

X = np.array([1.0, 2.0, 3.0])


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass
class Config:
    w: Any
    power: int = 2


def same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for k in a:
            same(a[k], b[k])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    elif dataclasses.is_dataclass(a):
        same(vars(a), vars(b))
    else:
        np.testing.assert_array_equal(a, b)


CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "list of arrays": (lambda ps, x: (ps[0].sum() + x[0], [p + p for p in ps]), ([X, X * 2, X * 3], X), {}),
    "dict": (lambda p: {"sum": p["b"] + p["a"], "both": (p["a"], p["b"])}, ({"b": X, "a": X * 2},), {}),
    "named": (lambda p: Pair(p.a * p.b, None), (Pair(X, X * 2),), {}),
    "dataclass": (lambda c: Config(c.w ** c.power, c.power), (Config(X, 3),), {}),
    "nested": (lambda t: [t[0][0]["k"][0] + 1, (), [], {}], (([{"k": (X,)}], None),), {}),
    "keywords": (lambda x, *, y, k: x * y + k, (X,), {"y": X * 4, "k": 2.5}),
    "numbers": (lambda t: [t[0] * t[1] + t[2]], ((1.5, 2, X[1]),), {}),
    "text and flags": (lambda x, mode, up: {mode: x + 1 if up else x - 1, "n": 7}, (X,), {"mode": "m" + str(1), "up": True}),
    "single result": (lambda t: t[0] @ t[1], ((np.eye(3), X),), {}),
    "scalars out": (lambda t: [t[0].sum(), t[1].max()], ((X, X),), {}),
    "keys that pytrees use": (lambda p, q: ({"named": p["named"] + q["dataclass"]}, {"dataclass": X}), ({"named": X}, {"dataclass": X}), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_short_way_gives_what_the_long_way_gives(name: str) -> None:
    f, args, kwargs = CASES[name]
    g = Watched(f)
    long = g(*args, **kwargs)
    short = [g(*args, **kwargs) for _ in range(2)]
    assert g.long == 1
    for out in short:
        same(out, long)


def test_another_structure_dtype_rank_or_size_never_takes_a_wrong_entry() -> None:
    g = Watched(lambda p, k=1.0: [x * k for x in (p if isinstance(p, list) else [p["a"], p["b"]])])
    calls: list[tuple[Any, dict[str, Any]]] = [
        ([X, X], {}), ([X, X, X], {}), ({"a": X, "b": X}, {}), ({"a": X, "b": X[:1]}, {}), ([X.astype(np.float32), X], {}), ([np.eye(3), X], {}), ([X, X], {"k": 2.0}),
        ([X[:0], X], {"k": 3.0}), ([2.0, X], {}), ([X.view(np.ndarray)[::-1], np.eye(3).T], {}),
        ([np.asfortranarray(np.ones((2, 3))), X], {}), ([X.astype(">f8"), X], {}),
    ]
    for _ in range(3):
        for p, kwargs in calls:
            k = kwargs.get("k", 1.0)
            want = [x * k for x in (p if isinstance(p, list) else [p["a"], p["b"]])]
            got = g(p, **kwargs)
            assert [np.asarray(x).dtype.newbyteorder("=") for x in want] == [np.asarray(x).dtype for x in got]
            for a, b in zip(got, want):
                np.testing.assert_array_equal(a, b)
    with pytest.raises(KeyError):
        g({"a": X, "c": X})
    with pytest.raises(TypeError):
        g([X, X], z=1)


def test_static_leaves_are_compared_by_type_and_value() -> None:
    g = Watched(lambda p, how: [p[0] * 2 if how == "twice" else p[0] + (1 if how is True else 10 if type(how) is float else 100)], static="how")
    for _ in range(2):
        for how, want in (("twi" + "ce"[:2], 2.0), (True, 2.0), (1.0, 11.0), (1, 101.0), ("other", 101.0)):
            assert g([np.ones(1)], how)[0][0] == want, how
    assert g.long == 5
    h = ag.compile(lambda x, n: x * n, static="n")
    assert [h(X, np.float64(n))[0] for n in (2.0, 3.0, 2.0)] == [2.0, 3.0, 2.0]
    with pytest.raises(ag.AotgradTypeError, match="static"):
        h(X, X)


def test_sizes_that_were_equal_at_the_trace_are_checked() -> None:
    g = Watched(lambda p: [p[0] + p[1]])
    for n in (3, 3, 5, 0, 1):
        assert g([np.ones(n), np.ones(n)])[0].shape == (n,)
    assert g.long == 1
    assert g([np.ones(4), np.ones(1)])[0].tolist() == [2.0] * 4
    with pytest.raises(ag.AotgradError):
        g([np.ones(4), np.ones(3)])
    assert g([np.ones(2), np.ones(2)])[0].tolist() == [2.0, 2.0]


def test_strided_arrays_are_packed_on_the_short_way() -> None:
    g = Watched(lambda x, y: x * y)
    a = np.arange(12.0)
    assert g(a[:6], a[6:]).shape == (6,) and g(a[::2], a[6:]).shape == (6,)
    before = g.long
    for x, y in ((a[::2], a[::-2]), (a[::-1][:6], a[:6]), (np.broadcast_to(a[:1], (6,)), a[::2])):
        np.testing.assert_array_equal(g(x, y), x * y)
    assert g.long == before


def test_hidden_inputs_are_read_again_and_results_are_fresh() -> None:
    scale = np.full(3, 2.0)

    def f(p: Any) -> Any:
        return [p[0] * scale, p[0]]

    g = Watched(f)
    g([X])
    out = g([X])
    assert g.long == 1 and not np.shares_memory(out[1], X)
    scale[:] = 3.0
    assert g([X])[0].tolist() == [3.0, 6.0, 9.0]
    scale = np.full(3, 4.0)
    assert g([X])[0].tolist() == [4.0, 8.0, 12.0]
    scale = np.full(3, 5.0, np.float32)
    assert g([X])[0].tolist() == [5.0, 10.0, 15.0]
    assert g.long >= 2


def test_tensors_traces_and_unknown_containers_go_the_long_way() -> None:
    g = Watched(lambda p: [p[0] * 3.0])
    g([X])
    g([X])
    t = ag.tensor(X, requires_grad=True)
    g([t])[0].sum().backward()
    assert t.grad.tolist() == [3.0] * 3 and g([X])[0].tolist() == [3.0, 6.0, 9.0]
    assert ag.grad(lambda x: g([x])[0].sum())(X).tolist() == [3.0] * 3
    assert ag.compile(lambda x: g([x])[0].sum() + g([X])[0].sum())(X) == 36.0
    h = Watched(lambda d: d["a"] + 1)
    assert [h(OrderedDict(a=X)).tolist() for _ in range(2)] == [[2.0, 3.0, 4.0]] * 2 and h({"a": X}).tolist() == [2.0, 3.0, 4.0]
    assert g.long > 1 and h.long == 3


def test_anomaly_mode_and_the_profiler_see_such_calls() -> None:
    g = Watched(lambda p: {"y": ag.log(p["x"])})
    for _ in range(2):
        g({"x": X})
    assert g.long == 1
    with ag.autograd.detect_anomaly(), pytest.raises(ag.AotgradError, match="log"):
        g({"x": -X})
    with ag.autograd.profiler.profile() as prof:
        g({"x": X})
    assert any("lambda" in e.name for e in prof.function_events), [e.name for e in prof.function_events]
    before = g.long
    g({"x": X})
    assert g.long == before


def test_errors_of_the_kernel_are_raised() -> None:
    g = Watched(lambda p, i: [p[0][i]])
    index = np.array([0, 2])
    g([X], index)
    assert g([X], index)[0].tolist() == [1.0, 3.0] and g.long == 1
    with pytest.raises(ag.AotgradIndexError, match="index 3 is out of bounds for dimension 0 with size 3"):
        g([X], np.array([0, 3]))


def test_out_and_verify() -> None:
    g = Watched(lambda p: [p[0] + 1])
    g([X])
    buffer = [np.zeros(3)]
    assert g([X], out=buffer) is buffer and buffer[0].tolist() == [2.0, 3.0, 4.0]
    v = Watched(lambda p: [p[0] + 1], verify=2)
    assert [v([X])[0].tolist() for _ in range(3)] == [[2.0, 3.0, 4.0]] * 3


def test_many_structures_and_threads() -> None:
    g = Watched(lambda p: [x + 1 for x in p])
    for n in [*range(1, 24), *range(1, 24)]:
        assert len(g([X] * n)) == n
    assert len(g.state.runs) <= 16
    wrong: list[Any] = []

    def work(k: int) -> None:
        for i in range(300):
            n = 1 + (i + k) % 5
            got = g([np.full(4, float(k))] * n)
            if len(got) != n or any(x.tolist() != [k + 1.0] * 4 for x in got):
                wrong.append((k, n))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_sizes_that_must_differ_are_compared_by_the_kernel():
    """Which branch ``x.shape[0] == y.shape[0]`` takes is a check in front of the kernel, not a call through Python."""
    def f(x, y):
        return np.sum(x) * 2.0 if x.shape[0] == y.shape[0] else np.sum(x) + np.sum(y)

    def structure(both):
        return {"sum": f(both["x"], both["y"])}

    x = [np.arange(float(n)) for n in range(6)]
    for counted, call in ((Watched(f), lambda g, a, b: g(a, b)), (Watched(structure), lambda g, a, b: g({"x": a, "y": b})["sum"])):
        for a, b in ((3, 4), (3, 4), (5, 5), (5, 5)):
            call(counted, x[a], x[b])
        before, traces = counted.long, counted.call.cache_info().traces
        for a, b in ((3, 4), (2, 5), (5, 2), (0, 3), (2, 2), (4, 4), (1, 2)):
            assert call(counted, x[a], x[b]) == f(x[a], x[b])
        assert (counted.long, counted.call.cache_info().traces) == (before, traces)
    t = [ag.tensor(a) for a in x]
    counted = Watched(f)
    for a, b in ((3, 4), (3, 4), (5, 5), (5, 5), (2, 4), (4, 4)):
        assert counted(t[a], t[b]).item() == f(x[a], x[b])
