"""The short way of eager calls: it is taken, and means what the general way means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import flat
import numpy as np
import pytest

import aotgrad as ag
from aotgrad.autograd import forward_ad
from aotgrad.frontend import dispatch, native, quick
from aotgrad_runtime import tape

pytestmark = pytest.mark.skipif(not native.available(), reason="without the compiler there is no short way")

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y, "neg": lambda x, y: -x, "maximum": ag.maximum,
    "times number": lambda x, y: x * 2.5, "number minus": lambda x, y: 3 - x, "number over": lambda x, y: 1.0 / y, "tanh": lambda x, y: x.tanh(),
    "exp": lambda x, y: ag.exp(x), "sigmoid": lambda x, y: ag.sigmoid(x), "sqrt": lambda x, y: y.sqrt(), "sin": lambda x, y: ag.sin(x),
    "relu": lambda x, y: x.relu(), "softplus": lambda x, y: ag.nn.functional.softplus(x), "atan2": ag.atan2, "same": lambda x, y: x * x,
}


@pytest.fixture(autouse=True)
def hot(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The second call of a program compiles it: of every program, also one that ran before (it is asked at the second call alone)."""
    dispatch.forget()
    monkeypatch.setattr(quick, "HOT", 2)
    monkeypatch.setattr(quick, "INSTANCES", 1 << 10)  # whatever ran before
    yield


def _data(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    r = np.random.default_rng(seed)
    return ag.tensor(r.uniform(0.5, 2.0, shape).astype(dtype)), ag.tensor(r.uniform(0.5, 2.0, shape).astype(dtype))


def _everything(f: Callable[..., Any], x: Any, y: Any) -> list[Any]:
    x, y = x.detach().clone().requires_grad_(), y.detach().clone().requires_grad_()
    z = f(x, y)
    ct = ag.tensor(np.linspace(-1.0, 2.0, z.numel()).astype(z.detach().numpy().dtype).reshape(z.shape))
    first = ag.autograd.grad(z, [x, y], ct, create_graph=True, allow_unused=True)
    plain = ag.autograd.grad(f(x, y), [x, y], ct, allow_unused=True)
    total = sum(((g * g).sum() for g in first if g is not None and g.requires_grad), start=ag.zeros((), dtype=x.dtype))
    second = ag.autograd.grad(total, [x, y], allow_unused=True) if total.requires_grad else []
    names = [str(z.grad_fn.name), [str(n.name) for n, _ in z.grad_fn.next_functions if n is not None]]
    return [z, *first, *plain, *second, names]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_as_the_general_way(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f = FUNCTIONS[name]
    x, y = _data((3, 4), dtype)
    with monkeypatch.context() as m:
        m.setattr(quick, "HOT", -1)
        with ag.autograd.detect_anomaly():  # nobody may take the short way
            want = _everything(f, x, y)
    dispatch.forget()  # they were counted
    for _ in range(3):
        f(x, y)
    got = _everything(f, x, y)
    assert isinstance(f(x.clone().requires_grad_(), y).grad_fn if name not in ("sqrt", "number over") else f(x, y.clone().requires_grad_()).grad_fn, quick.QuickNode)
    assert got[-1] == want[-1]
    for a, b in zip(got[:-1], want[:-1], strict=True):
        if b is None:
            assert a is None
        else:
            assert np.array_equal(a.detach().numpy(), b.detach().numpy(), equal_nan=True)


def _warm(f: Callable[..., Any], *xs: Any) -> None:
    for _ in range(4):
        f(*xs)


def _taken(x: Any) -> bool:
    return isinstance(x.grad_fn, quick.QuickNode)


def test_what_does_not_fit_goes_the_general_way() -> None:
    x, y = _data((5,), "float64")
    x.requires_grad_()
    _warm(lambda: x * y)
    assert _taken(x * y)
    assert tuple((x * y[:1]).shape) == (5,) and not _taken(x * y[:1])
    assert (x * y.float()).dtype is ag.float64
    strided = ag.tensor(np.arange(10.0))[::2]
    assert np.array_equal((x * strided).detach().numpy(), x.detach().numpy() * strided.numpy())
    with pytest.raises(TypeError):
        x * "a"
    with pytest.raises(ValueError):
        x * ag.ones(3, dtype=ag.float64)
    assert isinstance(np.ones(5) * x, ag.Tensor) and isinstance(x * np.ones(5), ag.Tensor)


def test_big_integers_and_bools_are_no_floats() -> None:
    x = ag.tensor([1.0, 2.0], dtype=ag.float64)
    _warm(lambda: x + 1)
    assert (x + (2**53 + 2)).tolist() == [float(2**53 + 2) + 1, float(2**53 + 2) + 2]
    assert (x + True).tolist() == [2.0, 3.0] == (x + 1).tolist()
    whole = ag.tensor([1, 2])
    _warm(lambda: whole + 1)
    assert (whole + 1).dtype is ag.int64 and (whole + 1.0).dtype is ag.float32


def test_modes_are_respected() -> None:
    x, y = _data((4,), "float64")
    x.requires_grad_()
    _warm(lambda: x + y)
    with ag.no_grad():
        assert not (x + y).requires_grad
        with ag.enable_grad():
            assert _taken(x + y)
    with ag.inference_mode():
        assert (x + y).is_inference()
    assert _taken(x + y)


def test_forward_mode_and_traces_see_every_call() -> None:
    x, y = _data((4,), "float64")
    _warm(lambda: x * y)
    with forward_ad.dual_level():
        d = forward_ad.make_dual(x, ag.ones(4, dtype=ag.float64))
        assert np.array_equal(forward_ad.unpack_dual(d * y).tangent.numpy(), y.numpy())
    text = str(ag.compile(lambda a: a + x * y).trace(x))
    assert "ag.mul" in text  # an operation on captured tensors is part of the program


def test_writes_after_a_value_was_saved() -> None:
    x, y = _data((4,), "float64")
    _warm(lambda: x.requires_grad_() * y)
    was = y.numpy().copy()
    z = (x * y).sum()
    y.mul_(10.0)
    z.backward()
    assert np.array_equal(x.grad.numpy(), was)
    s = (x * 1.0).tanh()
    t = s.detach().numpy().copy()
    _warm(lambda: x.tanh())
    s = (x * 1.0).tanh()
    x.grad = None
    s[1] = 5.0
    s.sum().backward()
    want = 1 - t**2
    want[1] = 0
    assert np.allclose(x.grad.numpy(), want, rtol=1e-14)


def test_freed_graphs_and_hooks() -> None:
    x, y = _data((4,), "float64")
    x.requires_grad_()
    _warm(lambda: x * y)
    z = x * y
    z.backward(ag.ones(4, dtype=ag.float64))
    with pytest.raises(RuntimeError, match="second time"):
        z.backward(ag.ones(4, dtype=ag.float64))
    seen = []
    z = x * y
    z.register_hook(lambda g: seen.append(g) or 2 * g)
    z.grad_fn.register_hook(lambda gi, go: seen.append(gi))
    x.grad = None
    z.sum().backward()
    assert len(seen) == 2 and np.array_equal(x.grad.numpy(), 2 * y.numpy())
    node = (x * y).grad_fn
    assert np.array_equal(node(ag.ones(4, dtype=ag.float64))[0].detach().numpy(), y.numpy())


def test_zero_annihilates_here_too() -> None:
    x = ag.tensor([0.0, 4.0], dtype=ag.float64, requires_grad=True)
    _warm(lambda: x.sqrt())
    (x.sqrt() * ag.tensor([0.0, 1.0], dtype=ag.float64)).sum().backward()
    assert x.grad.tolist() == [0.0, 0.25]


def test_the_profiler_sees_every_call() -> None:
    x, y = _data((4,), "float64")
    _warm(lambda: x + y)
    with ag.autograd.profiler.profile() as prof:
        for _ in range(3):
            x + y
    assert {e.key: e.count for e in prof.key_averages()}.get("add") == 3 or "add" in prof.key_averages().table()


def test_memory_is_flat_with_the_collector_off() -> None:
    x, w = _data((10,), "float64")
    w.requires_grad_()

    def step() -> None:
        y = x * w
        y = (y + w).tanh() * 0.5
        (y * y).sum().backward()
        w.grad = None

    flat.check(step, 300, 1000)


def test_saved_arrays_are_forgotten() -> None:
    """What a cell keeps for backward passes that are over does not pile up, also where ``.data`` is swapped at every step."""
    w = ag.tensor(np.ones(4), requires_grad=True)
    for _ in range(200):
        (w * w).sum().backward()
        w.data = w.data * 0.9
    cell = tape.cell_of(w)
    assert len(cell._saved or ()) <= 2
    views = [(w * 1.0).detach() for _ in range(50)]
    base = ag.tensor(np.ones((50, 4)))
    kept = [base[i] * w for i in range(50)]
    base.mul_(3.0)
    w.grad = None
    ag.autograd.backward(kept, [ag.ones(4, dtype=ag.float64)] * 50)
    assert w.grad.tolist() == [50.0] * 4 and len(views) == 50


def test_shapes_of_every_rank_share_one_form() -> None:
    """A backward program needs no input for the sizes that its cotangents have."""
    for shape in ((), (2, 3), (4,)):
        x = ag.ones(shape, requires_grad=True)
        _warm(lambda a: a + a, x)
        node = (x + x).grad_fn
        assert isinstance(node, quick.QuickNode) and not node.saved, shape


@pytest.mark.parametrize("call", [lambda x: x % 2.5, lambda x: 2.5 - x, lambda x: ag.xlogy(2.0, x), lambda x: ag.clamp_min(x, 2.0)])
def test_no_edge_for_a_number_however_often(call: Any) -> None:
    def seen() -> Any:
        x = ag.tensor([1.25, 3.5], dtype=ag.float64, requires_grad=True)
        y = call(x)
        edges = [(node.name(), i) for node, i in y.grad_fn.next_functions]
        plain = ag.autograd.grad(y.sum(), x, retain_graph=True)[0].tolist()
        (g,) = ag.autograd.grad(y.sum(), x, create_graph=True)
        second = ag.autograd.grad(g.sum(), x, allow_unused=True)[0] if g.requires_grad else None
        return edges, y.grad_fn.name(), plain, g.tolist(), None if second is None else second.tolist()

    first = seen()
    for _ in range(2 * quick.HOT):
        last = seen()
    assert first[0] == last[0] == [("AccumulateGrad", 0)]
    assert first[1] == last[1] and first[2] == first[3] and last[2] == last[3] and np.allclose(first[2], last[2]) and (first[4] is None or np.allclose(first[4], last[4]))
