"""The short way of eager calls whose like came before: it is taken, and means what the general way means."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
import aotgrad.nn.functional as F
from aotgrad.frontend import dispatch, known, program

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "matmul": lambda x, y: x @ y.T, "linear": lambda x, y: F.linear(x, y, y[:, 0]), "sum of a dim": lambda x, y: x.sum(1, keepdim=True), "mean": lambda x, y: x.mean(),
    "broadcast": lambda x, y: x + y[0], "same twice": lambda x, y: x @ x.T, "softmax": lambda x, y: ag.softmax(x, -1), "stack": lambda x, y: ag.stack([x, y], 1),
    "cat": lambda x, y: ag.cat((x, y), dim=1), "unbind": lambda x, y: ag.unbind(x, 1), "split": lambda x, y: ag.split(x, 2), "chunk": lambda x, y: x.chunk(2, 1),
    "max": lambda x, y: x.max(1), "view": lambda x, y: x.view(-1), "view of a view": lambda x, y: x.view(2, 8).view((4, 4)), "transpose": lambda x, y: x.transpose(0, 1),
    "permute": lambda x, y: x.permute(1, 0), "expand": lambda x, y: x[0].expand(3, 4), "unsqueeze": lambda x, y: x.unsqueeze(0), "same": lambda x, y: x.float().double(),
    "gather": lambda x, y: ag.gather(x, 1, ag.tensor([[0, 3], [1, 1], [2, 0], [3, 3]])), "embedding": lambda x, y: F.embedding(ag.tensor([[0, 3], [3, 1]]), x),
    "cross entropy": lambda x, y: F.cross_entropy(x, ag.tensor([0, 3, 1, 1])), "layer norm": lambda x, y: F.layer_norm(x, (4,), y[0], y[1]),
    "batch norm": lambda x, y: F.batch_norm(x, None, None, y[0], y[1], True), "clamp": lambda x, y: ag.clamp(x, 0.8, max=1.5), "cumsum": lambda x, y: x.cumsum(0),
    "addmm": lambda x, y: ag.addmm(x, y, x, beta=0.5, alpha=2), "where": lambda x, y: ag.where(x > y, x, 0.5), "add": lambda x, y: ag.add(x, y, alpha=2),
    "argmax": lambda x, y: x.argmax(1), "pow": lambda x, y: x ** 3, "index_select": lambda x, y: ag.index_select(x, 0, ag.tensor([2, 0])),
}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The third call of a kind takes the short way."""
    monkeypatch.setattr(known, "AGAIN", 3)
    monkeypatch.setattr(dispatch.quick, "HOT", 2)
    monkeypatch.setattr(program, "HOT", 4)
    dispatch.forget()
    yield


def _data(seed: int = 0) -> tuple[Any, Any]:
    r = np.random.default_rng(seed)
    return ag.tensor(r.uniform(0.5, 2.0, (4, 4))), ag.tensor(r.uniform(0.5, 2.0, (4, 4)))


def _listed(out: Any) -> list[Any]:
    return list(out) if isinstance(out, tuple) else [out]


def _told(f: Callable[..., Any], x: Any, y: Any) -> list[Any]:
    """All there is to see of a call, derivatives of two orders included."""
    x, y = x.detach().clone().requires_grad_(), y.detach().clone().requires_grad_()
    out = f(x, y)
    outs = _listed(out)
    told: list[Any] = [type(out)]
    for z in outs:
        told += [z.detach().numpy().copy(), z.dtype, z.stride(), z.requires_grad, z._is_view(), z._version, z.is_leaf]
        node = z.grad_fn
        if node is not None:
            told += [str(node.name), [None if n is None else str(n.name) for n, _ in node.next_functions], sorted(n for n in dir(node) if n.startswith("_saved_"))]
            told += [getattr(node, n) for n in dir(node) if n.startswith("_saved_")]
    moving = [z for z in outs if z.requires_grad]
    if moving:
        cts = [ag.tensor(np.linspace(-1.0, 2.0, z.numel()).reshape(z.shape)) for z in moving]
        first = ag.autograd.grad(moving, [x, y], cts, create_graph=True, allow_unused=True)
        plain = ag.autograd.grad([z for z in _listed(f(x, y)) if z.requires_grad], [x, y], cts, allow_unused=True)
        alone = ag.autograd.grad(moving[-1:], [x, y], cts[-1:], allow_unused=True, retain_graph=True)  # of several results, others get none
        total: Any = sum(((g * g).sum() for g in first if g is not None and g.requires_grad), start=ag.zeros((), dtype=x.dtype))
        told += [*first, *plain, *alone, *(ag.autograd.grad(total, [x, y], allow_unused=True) if total.requires_grad else ())]
        told += [sorted(n for n in dir(moving[0].grad_fn) if n.startswith("_saved_"))]
    return told


def _same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            _same(x, y)
    elif isinstance(a, ag.Tensor):
        assert a.stride() == b.stride() and a.requires_grad == b.requires_grad
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy(), strict=True)
    elif isinstance(a, np.ndarray):
        np.testing.assert_array_equal(a, b, strict=True)
    else:
        assert a == b


def _taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of functions called the short way from now on."""
    found: list[str] = []
    again = dispatch.again

    def asked(public: Any, args: Any, kwargs: Any) -> Any:
        out = again(public, args, kwargs)
        if out is not dispatch.MISS:
            found.append(public.name)
        return out

    monkeypatch.setattr(dispatch, "again", asked)
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_as_the_general_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f = FUNCTIONS[name]
    x, y = _data()
    with ag.autograd.detect_anomaly():  # nobody may take the short way
        want = _told(f, x, y)
    for _ in range(4):
        _same(_told(f, x, y), want)
    taken = _taken(monkeypatch)
    _same(_told(f, x, y), want)
    with ag.no_grad():
        _same([z.numpy() for z in _listed(f(x, y))], [z.detach().numpy() for z in _listed(f(x.requires_grad_(), y))])
    assert taken


def _often(f: Callable[[], Any], times: int = 6) -> Any:
    for _ in range(times):
        out = f()
    return out


def test_arguments_that_are_equal_in_python_are_not_the_same() -> None:
    x = ag.tensor([[1.0, -2.0], [3.0, 4.0]])
    assert tuple(_often(lambda: x.sum(1)).shape) == (2,) and tuple(x.sum(1, True).shape) == (2, 1)
    zero = _often(lambda: ag.clamp(-x.abs(), max=0.0) * 0.0 + ag.clamp(x, min=0.0, max=0.0))
    assert not np.signbit(ag.clamp(x, min=0.0, max=0.0).numpy()).any() and zero.shape == x.shape
    assert _often(lambda: ag.add(x, 1, alpha=2)).dtype is ag.float32
    whole = ag.tensor([1, 2])
    assert _often(lambda: ag.add(whole, 1)).dtype is ag.int64 and ag.add(whole, 1.0).dtype is ag.float32 and ag.add(whole, True).dtype is ag.int64


def test_another_default_dtype_is_another_call() -> None:
    whole = ag.tensor([1, 2])
    assert _often(lambda: ag.true_divide(whole, 2)).dtype is ag.float32
    ag.set_default_dtype(ag.float64)
    try:
        assert ag.true_divide(whole, 2).dtype is ag.float64
    finally:
        ag.set_default_dtype(ag.float32)


def test_operands_that_were_one_tensor_may_be_two() -> None:
    x, y = _data()
    for _ in range(5):
        ag.matmul(x, x)
    np.testing.assert_array_equal(ag.matmul(x, y).numpy(), x.numpy() @ y.numpy())


def test_views_and_versions() -> None:
    x = ag.arange(6.0)
    for _ in range(6):
        v = x.view(2, 3)
    assert v._base is x
    v[0, 0] = 7.0
    assert x[0].item() == 7.0 and x._version == v._version == 1
    w = x.requires_grad_() * 1.0
    for _ in range(6):
        v = w.view(2, 3)
    v.mul_(3.0)
    (w * 1.0).sum().backward()
    assert x.grad.tolist() == [3.0] * 6


def test_writes_after_a_value_was_saved() -> None:
    x, y = _data()
    x.requires_grad_()
    w = y.clone()
    for _ in range(6):
        out = x @ w
    w.zero_()
    out.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.ones((4, 4)) @ y.numpy().T)


def test_who_watches_sees_every_call() -> None:
    x, y = _data()
    x.requires_grad_()
    _often(lambda: x @ y)
    packed: list[Any] = []
    with ag.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        out = x @ y
    assert len(packed) == 1
    out.sum().backward()
    with ag.autograd.profiler.profile() as p:
        x @ y
    assert "matmul" in [e.key for e in p.key_averages()]
    f = ag.compile(lambda a: a @ y)
    np.testing.assert_array_equal(f(x.detach()).numpy(), (x @ y).detach().numpy())


def test_errors_are_those_of_the_general_way() -> None:
    x, place = _data()[0], ag.tensor([[0], [1], [2], [3]])
    _often(lambda: ag.gather(x, 1, place))
    for _ in range(8):
        with pytest.raises(IndexError, match="index 9 is out of bounds for dimension 1 with size 4"):
            ag.gather(x, 1, ag.tensor([[0], [1], [9], [3]]))
        with pytest.raises(RuntimeError, match="size of tensor a"):
            ag.add(x, ag.ones(3), alpha=2)
    np.testing.assert_array_equal(ag.gather(x, 1, place).numpy()[:, 0], np.diag(x.numpy()))
    with pytest.raises(RuntimeError, match="second time"):
        z = (x.requires_grad_() @ x).sum()
        z.backward()
        z.backward()


def test_inference_tensors_are_not_saved() -> None:
    x, y = _data()
    x.requires_grad_()
    _often(lambda: x @ y)
    with ag.inference_mode():
        z = y.clone()
        assert (x @ z).is_inference() and not (x @ z).requires_grad
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        x @ z


def test_parts_between_products_are_kernels_of_the_same_numbers() -> None:
    x, y = _data()
    with ag.autograd.detect_anomaly():
        want = ag.addmm(y[0], x, y, alpha=0.3)
    for _ in range(8):
        np.testing.assert_array_equal(ag.addmm(y[0], x, y, alpha=0.3).numpy(), want.numpy())
    row = ag.stack([y[0], y[0]], 1)[:, 0]  # with gaps, which the kernels were not made for
    np.testing.assert_array_equal(ag.addmm(row, x, y, alpha=0.3).numpy(), want.numpy())


def test_running_means_move_by_another_share_at_every_call() -> None:
    x, _ = _data()
    mean, var, want = ag.zeros(4, dtype=ag.float64), ag.ones(4, dtype=ag.float64), np.zeros(4)
    for n in range(1, 9):
        F.batch_norm(x, mean, var, training=True, momentum=1.0 / n)
        want = want * (1 - 1.0 / n) + x.numpy().mean(0) * (1.0 / n)
    np.testing.assert_allclose(mean.numpy(), want, rtol=1e-14)
    assert mean._version == 8


def test_memory_is_flat_with_the_collector_off() -> None:
    x, y = _data()
    x.requires_grad_()

    def step() -> None:
        x.grad = None
        F.linear(x, y, y[0]).view(-1).sum().backward()

    _often(step, 20)
    gc.collect()
    gc.disable()
    try:
        step()
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["sort", "topk", "kthvalue", "median"])
def test_nodes_that_take_another_name_know_what_they_saved(name: str) -> None:
    numbers = np.random.default_rng(3).random((4, 3))
    for _ in range(5):
        x = ag.from_numpy(numbers).requires_grad_()
        y = getattr(ag, name)(x, *{"topk": (2,), "kthvalue": (2,), "median": (-1,)}.get(name, ()))[0]
        (y * 2.0).sum().backward()
        assert name not in ("sort", "topk") or y.grad_fn.name().lower() == f"{name}backward0"
        assert sorted(set(x.grad.flatten().tolist())) in ([2.0], [0.0, 2.0])
        assert x.grad.sum().item() == 2.0 * y.numel()
