"""``record``: what ``dataclasses.dataclass`` promises of the same declaration, with its methods made late."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
import threading

import pytest

from aotgrad_runtime.records import record


def declared(decorator):
    @decorator
    class Loose:
        a: int
        b: str = "b"
        c: list[int] = dataclasses.field(default_factory=list)
        d: int = dataclasses.field(default=4, compare=False, repr=False)
        e: int = dataclasses.field(init=False, default=5)
        f: dict[str, int] = dataclasses.field(init=False, default_factory=dict, compare=False)

    return Loose


Loose, Worn, Standard = declared(record), declared(record), declared(dataclasses.dataclass)
for _ in range(100):
    Worn(1)  # its first instances are over: its methods are compiled


@record(frozen=True)
class Pair:
    x: int
    y: tuple[int, ...] = ()


@record(frozen=True)
class One:
    x: object


@record(eq=False)
class Node:
    x: int
    twice: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.twice = 2 * self.x


@pytest.mark.parametrize("cls", [Loose, Worn], ids=["first", "compiled"])
@pytest.mark.parametrize("args", [((1,), {}), ((1, "x"), {"d": 7}), ((1, "x", [3], 9), {}), ((), {"a": 2, "c": [1]})])
def test_as_the_standard_one(cls, args):
    positional, named = args
    ours, theirs = cls(*positional, **named), Standard(*positional, **named)
    assert vars(ours) == vars(theirs) and repr(ours) == repr(theirs)
    assert ours.c is not cls(*positional, **named).c or len(positional) > 2 or "c" in named
    assert ours.f is not cls(*positional, **named).f


@pytest.mark.parametrize("args", [((), {}), ((1, "x", [], 4, 5), {}), ((1,), {"a": 2}), ((1,), {"e": 2}), ((1,), {"z": 2})])
def test_wrong_arguments(args):
    for cls in (Loose, Worn, declared(record), Standard):
        with pytest.raises(TypeError):
            cls(*args[0], **args[1])


def test_equality_and_hashes():
    assert Loose(1, d=1) == Loose(1, d=2) and Loose(1) != Loose(2) and Loose(1) != Pair(1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Loose(1))
    assert Pair(1, (2,)) == Pair(1, (2,)) and hash(Pair(1, (2,))) == hash(Pair(1, (2,))) and Pair(1) != Pair(2)
    assert {Pair(1): "p", One(1): "o"}[One(1)] == "o" and One(1) != Pair(1)
    nan = float("nan")
    assert One(nan) == One(nan)  # by identity first, as tuples compare
    node = Node(3)
    assert node == node and node != Node(3) and hash(node) == hash(node) and node.twice == 6


def test_frozen():
    p = Pair(1)
    for change in (lambda: setattr(p, "x", 2), lambda: setattr(p, "new", 2), lambda: delattr(p, "x")):
        with pytest.raises(dataclasses.FrozenInstanceError, match="of a Pair cannot be changed"):
            change()
    assert dataclasses.replace(p, y=(4,)) == Pair(1, (4,)) and copy.copy(p) == pickle.loads(pickle.dumps(p)) == p
    assert dataclasses.is_dataclass(p) and dataclasses.asdict(p) == {"x": 1, "y": ()}


def test_patterns():
    match Pair(1, (2,)):
        case Pair(x, y=(two,)):
            assert (x, two) == (1, 2)
        case _:
            pytest.fail("no match")


def test_the_first_instance_of_a_derived_class():
    class Derived(Pair):
        pass

    assert (Derived(1).x, Derived(2).x, Pair(3).x) == (1, 2, 3) and Derived(1) != Pair(1)


def test_who_asks_for_the_fields_first():
    """The standard decorator takes what ``field`` gave out of the class; instances are made as before."""
    cls = declared(record)
    assert [f.name for f in dataclasses.fields(cls)] == list("abcdef")
    assert vars(cls(1)) == vars(Standard(1)) and cls(1).c is not cls(1).c and dataclasses.replace(cls(1), b="x").b == "x"


def test_many_threads_ask_at_once():
    for cls in [declared(record) for _ in range(30)]:
        start, found = threading.Barrier(4), []

        def ask(i, cls=cls, start=start, found=found):
            start.wait()
            found.append(dataclasses.replace(cls(1), d=i) if i % 2 else cls(1, d=i))

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert sorted((x.d, x.c, x.f) for x in found) == [(i, [], {}) for i in range(4)]


def test_declaring_compiles_nothing():
    code = """
import builtins, dataclasses, sys
from aotgrad_runtime.records import record
count, real = [], builtins.exec
builtins.exec = lambda *a: (count.append(1), real(*a))[1]
@record(frozen=True)
class A:
    x: int
A(1), A(2), A(x=1) == A(2), hash(A(1)), repr(A(1))
assert not count
many = [A(i).x for i in range(100)]
assert many == list(range(100)) and len(count) == 1, count
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
