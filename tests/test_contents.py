"""Arrays whose numbers a trace used as they were: a change in place is seen at the next call, and arrays that are inputs are not compared."""

from __future__ import annotations

import array
import collections
import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.frontend import compile as compile_module
from aotgrad_runtime.errors import AotgradRuntimeError

C = ag.compile
X = np.array([0.5, 1.0, 2.0])
G = np.arange(3.0)
W = np.arange(9.0).reshape(3, 3)
B = np.ones(3)
T, ONE = ag.tensor([1.0, 2.0, 3.0]), ag.tensor(2.0)
LONG = [float(i) for i in range(1000)]
TABLE = {"w": W, "b": B, "deep": {"g": [G, 2.0]}}
PAIR = [W, B]
OBJECTS = np.array([1.0, "a"], object)
BUFFER, VIEW, DEQUE, BYTES = array.array("d", [1.0, 2.0]), memoryview(np.arange(3.0)), collections.deque([1.0, 2.0]), bytearray(b"\1\2")


class Layer:
    def __init__(self) -> None:
        self.w, self.b, self._hidden = W + 1, B + 1, G + 1

    @property
    def hidden(self) -> Any:
        return self._hidden

    def read(self, x: Any) -> Any:
        return x * np.exp(self.w[0])

    def of_property(self, x: Any) -> Any:
        return x * np.exp(self.hidden)

    def __call__(self, x: Any) -> Any:
        return x * float(self.b.sum())


def helper() -> Any:
    return np.exp(G)


def enclosed() -> tuple[Any, Any]:
    g = np.arange(3.0)
    return (lambda x: x * np.exp(g)), g


def default(x: Any, g: Any = G) -> Any:
    return x * np.exp(g)


LAYER = Layer()
CLOSED, CELL = enclosed()


def add(a: Any) -> Callable[[], None]:
    def change() -> None:
        a[...] = a + 1

    return change


READ: dict[str, tuple[Any, Callable[[], Any]]] = {
    "a global": (lambda x: x * np.exp(G), add(G)), "a number of it": (lambda x: x * float(W.sum()), add(W)), "an element": (lambda x: x * G[1], add(G)),
    "a condition": (lambda x: x * 2 if G[0] > 0.5 else x * 3, add(G)), "a cell": (CLOSED, add(CELL)), "an attribute": (LAYER.read, add(LAYER.w)),
    "a property": (LAYER.of_property, add(LAYER._hidden)), "an object that is called": (LAYER, add(LAYER.b)), "a helper": (lambda x: x * helper(), add(G)),
    "a default": (default, add(G)), "a partial": (functools.partial(lambda g, x: x * np.exp(g), G), add(G)),
    "deep in containers": (lambda x: x * np.exp(TABLE["deep"]["g"][0]), add(G)),  # type: ignore[index]
    "an input too": (lambda x: x * G + np.exp(G), add(G)), "an input and a part of it": (lambda x: np.where(x > 1, G, G[0]), add(G)),
    "an input by another name": (lambda x: (lambda g: x * g + np.exp(g))(G), add(G)), "after a loop": (lambda x: sum(x * w for w in (G, np.exp(G))), add(G)),
    "a view": (lambda x: x * float(W[1:, :2].sum()), add(W)), "objects": (lambda x: x * OBJECTS[0], lambda: OBJECTS.__setitem__(0, OBJECTS[0] + 1)),
    "a tensor by numpy()": (lambda x: x * np.exp(T.numpy()), lambda: T.add_(1.0)), "a tensor by item()": (lambda x: x * ONE.item(), lambda: ONE.add_(1.0)),
    "a tensor by float()": (lambda x: x * float(ONE), lambda: ONE.add_(1.0)), "a tensor by tolist()": (lambda x: x * T.tolist()[1], lambda: T.add_(1.0)),
    "a tensor through NumPy": (lambda x: x * ONE.item(), add(ONE.numpy())), "a detached tensor": (lambda x: x * ONE.detach().item(), lambda: ONE.add_(1.0)),
    "a tensor as a condition": (lambda x: x * 2 if T.tolist()[0] > 1.5 else x, lambda: T.add_(1.0)),
    "a long list": (lambda x: x * sum(LONG), lambda: LONG.__setitem__(700, LONG[700] + 1)),
    "a deque": (lambda x: x * DEQUE[0], lambda: DEQUE.__setitem__(0, DEQUE[0] + 1)),
    "array.array": (lambda x: x * BUFFER[0], lambda: BUFFER.__setitem__(0, BUFFER[0] + 1)),
    "a memoryview": (lambda x: x * VIEW[1], lambda: VIEW.__setitem__(1, VIEW[1] + 1)),
    "a bytearray": (lambda x: x * BYTES[0], lambda: BYTES.__setitem__(0, BYTES[0] + 1)),
}


NUMBERS = [  # those that give Python's numbers, which multiply a tensor too
    "a number of it", "an element", "a condition", "an object that is called", "a view", "objects", "a tensor by item()", "a tensor by float()", "a tensor by tolist()",
    "a tensor through NumPy", "a detached tensor", "a tensor as a condition", "a long list", "a deque", "array.array", "a memoryview", "a bytearray",
]


@pytest.mark.parametrize(("name", "tensors"), [*((n, False) for n in READ), *((n, True) for n in NUMBERS)])
def test_a_change_in_place_of_numbers_that_were_used_is_seen(name: str, tensors: bool) -> None:
    f, change = READ[name]
    x: Any = ag.tensor(X) if tensors else X
    g = C(f)
    for _ in range(3):
        for _ in range(3):  # traced, through Python, the short way
            np.testing.assert_array_equal(np.asarray(g(x)), np.asarray(f(x)))
        change()
    np.testing.assert_array_equal(np.asarray(g(x)), np.asarray(f(x)))


INPUTS: dict[str, tuple[Any, Any]] = {
    "an operand": (lambda x: x @ W + B, W), "a transposed one": (lambda x: x @ W.T + B, W), "a slice": (lambda x: x * W[1:, 0:3][0], W),
    "reshaped": (lambda x: x @ W.reshape(3, 3), W),
    "its form": (lambda x: x @ W * len(W) / W.shape[0] + W.ndim, W), "not None": (lambda x: x @ W if W is not None else x, W),
    "an argument": (lambda x: np.matmul(x, W), W),
    "in a dict": (lambda x: x @ TABLE["w"] + TABLE["b"], W), "in a list": (lambda x: x @ PAIR[0] + PAIR[1], W),
}


class Plain:
    w, b = W + 2, B + 2


def named(x: Any) -> Any:
    w, b = Plain.w, Plain.b
    h = x @ w
    return h + b


if sys.version_info[:2] in ((3, 11), (3, 12)):  # others have instructions for it that count as reads
    INPUTS["local names"] = named, Plain.w


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_that_only_the_program_reads_are_not_compared(name: str) -> None:
    f, w = INPUTS[name]
    g = C(f)
    for _ in range(3):
        np.testing.assert_allclose(g(X), f(X), rtol=1e-14)
        w += 1
    assert g.cache_info().traces == 1 and "compared" not in g.explain(X)


def test_code_that_is_not_understood_counts_as_a_read() -> None:
    def walrus(x: Any) -> Any:
        return x * (w if (w := G) is not None else B)

    assert "compared before every call, as its numbers were used while tracing: ndarray from G" in C(walrus).explain(X)


def test_numbers_are_compared_by_their_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.array([np.nan, 0.0])
    g = C(lambda x: x * np.copysign(1.0, values).sum())
    assert g(1.0) == 2.0 and g(1.0) == 2.0 and g.cache_info().traces == 1  # NaN is itself
    values[1] = -0.0
    assert g(1.0) == 0.0 and g.cache_info().traces == 2
    values[1] = 0.0
    assert g(1.0) == 2.0 and g.cache_info().traces == 2  # seen before


def test_what_is_bound_anew_is_seen_too() -> None:
    def make() -> tuple[Any, Any]:
        g = np.arange(3.0)

        def bind(v: Any) -> None:
            nonlocal g
            g = v

        return (lambda x: x * np.exp(g)), bind

    f, bind = make()
    g = C(f)
    first = np.arange(3.0)
    g(X)
    bind(first)  # equal: the program is the same
    g(X)
    assert g.cache_info().traces == 1
    first += 1
    np.testing.assert_array_equal(g(X), X * np.exp(first))
    for other in (np.arange(4.0)[1:], np.arange(3.0, dtype=np.float32), np.array(2.0), 3.0):
        bind(other)
        for _ in range(2):
            np.testing.assert_allclose(g(X), X * np.exp(other), rtol=1e-6)


def test_a_tensor_bound_anew_whose_number_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    g = C(lambda x: x * ONE.item())
    for value in (3.0, 4.0, 4.0):
        monkeypatch.setitem(globals(), "ONE", ag.tensor(value))
        assert g(2.0) == 2 * value


@pytest.mark.parametrize("shape", [(400, 300), (50,)])
def test_large_arrays_of_any_layout(shape: tuple[int, ...]) -> None:
    for big in (np.zeros(shape), np.zeros(shape, order="F"), np.zeros((*shape, 2))[..., 0], np.zeros(shape, np.float32), np.zeros(shape, bool)):
        g = C(lambda x, big=big: x + big.sum())
        for _ in range(2):
            assert g(1.0) == 1.0
        big[(-1,) * len(shape)] = 1
        for _ in range(2):
            assert g(1.0) == 2.0


def test_copies_are_shared_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.zeros(1000)
    g = C(lambda x: x + table.sum())
    state = g.trace.__self__
    for x in (1.0, np.ones(2), np.ones((2, 2)), np.ones(3, np.float32)):
        g(x)
    contents = state._contents()
    assert len(contents) == 4 and len({id(c.kept) for c in contents}) == 1
    for i in range(20):
        table[0] = i
        for _ in range(3):
            assert g(1.0) == 1.0 + i
    kept = [c for c in state._contents() if c.kept is not None]
    assert len(kept) <= 4 + 3 and len(state.entries) <= 7 and g.cache_info().variants == len(state.order) == len(kept)
    monkeypatch.setattr(compile_module, "_BYTES", 10_000)
    for i in range(5):
        table[1] = i
        g(1.0)
    assert sum(len(k) for k in {id(c.kept): c.kept for c in state._contents()}.values()) <= 10_000


def test_a_change_at_every_call_compiles_once() -> None:
    table = np.zeros(3)
    g = C(lambda x: x * np.exp(table))
    g(X)
    program = g.trace(X)
    for _ in range(3):
        table += 1
        np.testing.assert_array_equal(g(X), X * np.exp(table))
    assert str(g.trace(X)) == str(program)  # exp(table) is an input of it


def test_a_bound_call_says_that_numbers_have_changed() -> None:
    table = np.ones(3)
    f = C(lambda x: x * np.exp(table))
    run = f.prebind(X)
    run()
    np.testing.assert_array_equal(run.out, X * np.exp(1.0))
    table[0] = 2.0
    with pytest.raises(AotgradRuntimeError, match="closure variable was bound anew .* or its numbers, which the trace used as they were, have changed"):
        run()
    table[0] = 1.0
    run()


def test_gradients_and_other_structures_see_it_too() -> None:
    table = np.ones(3)
    gradient = C(ag.grad(lambda p: ag.sum(p["x"] ** 2 * float(table.sum()))))
    for _ in range(3):
        for _ in range(3):
            np.testing.assert_allclose(gradient({"x": X})["x"], 2 * X * table.sum())
        table += 1
    loss = C(lambda x: (x * x).sum() * float(table[0]))
    for _ in range(3):
        for _ in range(3):
            x = ag.tensor(X, requires_grad=True)
            loss(x).backward()
            np.testing.assert_allclose(x.grad.numpy(), 2 * X * table[0])
        table += 1


def test_training_a_captured_tensor_does_not_trace_again() -> None:
    w = ag.tensor([1.0, 2.0, 3.0], requires_grad=True)
    loss = C(lambda x: ((x * w) ** 2).sum() if w is not None else x)
    for _ in range(3):
        loss(ag.tensor(X)).backward()
        with ag.no_grad():
            w -= 0.1 * w.grad
        w.grad = None
    assert loss.cache_info().traces == 1
