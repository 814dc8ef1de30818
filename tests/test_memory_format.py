"""Memory formats: strides as torch's, formats kept by operations, gradients and compiled functions."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sweep
from autograd_pair import HAS_TORCH, modules, outcome, same

import aotgrad as ag

CL = "channels_last"
SHAPES = [
    (2, 3, 4, 5), (1, 1, 4, 5), (2, 1, 4, 5), (2, 3, 1, 1), (1, 3, 1, 1), (1, 1, 1, 1), (2, 1, 1, 1), (1, 3, 4, 1), (1, 3, 1, 5), (0, 3, 4, 5), (2, 0, 4, 5),
    (3, 4), (3,), (), (2, 3, 4), (2, 3, 4, 5, 6), (1, 1, 1, 5),
]
FORMATS = ["contiguous_format", CL, "preserve_format", "channels_last_3d"]


def _facts(m: Any, t: Any) -> Any:
    return tuple(t.shape), tuple(t.stride()), t.is_contiguous(), t.is_contiguous(memory_format=m.channels_last), t.stride(0) if t.dim() else None


MAKERS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "empty": lambda m, t, f: m.empty(tuple(t.shape), memory_format=f),
    "to": lambda m, t, f: t.to(memory_format=f),
    "to the same": lambda m, t, f: t.to(memory_format=f) is t,
    "to another dtype": lambda m, t, f: t.to(m.float64, memory_format=f),
    "double": lambda m, t, f: t.double(memory_format=f),
    "float": lambda m, t, f: t.float(memory_format=f),
    "bool": lambda m, t, f: t.bool(memory_format=f),
    "to, copied": lambda m, t, f: t.to(copy=True, memory_format=f),
    "contiguous": lambda m, t, f: t.contiguous(memory_format=f),
    "contiguous, the same": lambda m, t, f: t.contiguous(memory_format=f) is t,
    "clone": lambda m, t, f: t.clone(memory_format=f),
    "is_contiguous": lambda m, t, f: t.is_contiguous(memory_format=f),
    **{f"{name}_like": (lambda m, t, f, name=name: getattr(m, f"{name}_like")(t, memory_format=f)) for name in ("empty", "zeros", "ones", "rand", "randn")},
    "full_like": lambda m, t, f: m.full_like(t, 2.0, memory_format=f),
}


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
@pytest.mark.parametrize("name", MAKERS)
def test_strides_are_torchs(name: str) -> None:
    for shape in SHAPES:
        for first in FORMATS:
            for second in FORMATS:
                def lines(m: Any, shape: Any = shape, first: str = first, second: str = second) -> Any:
                    x = m.ones(shape)
                    x = x.to(memory_format=getattr(m, first)) if first == "preserve_format" or len(shape) == {CL: 4, "channels_last_3d": 5}.get(first, len(shape)) else x
                    made = MAKERS[name](m, x, getattr(m, second))
                    return made if isinstance(made, bool) else _facts(m, made)
                ours, theirs = (outcome(m, lines) for m in modules())
                assert ours == theirs, (shape, first, second)


def test_ambiguous_formats() -> None:
    """``to`` gives a tensor the format's own strides, also where one row-major order is in both formats; ``contiguous`` has nothing to do there."""
    for shape, strides in (((2, 1, 4, 5), (20, 1, 5, 1)), ((2, 3, 1, 1), (3, 1, 3, 3)), ((1, 1, 1, 1), (1, 1, 1, 1))):
        x = ag.ones(*shape)
        assert x.is_contiguous() and x.is_contiguous(memory_format=ag.channels_last)
        assert x.contiguous(memory_format=ag.channels_last) is x
        y = x.to(memory_format=ag.channels_last)
        assert y.stride() == strides and y.is_contiguous() and y.is_contiguous(memory_format=ag.channels_last)
        assert (y * 2).stride() == strides and ag.empty_like(y).stride() == strides and y.clone().stride() == strides


def test_wrong_formats() -> None:
    for make in (lambda: ag.empty(2, 3, memory_format=ag.channels_last), lambda: ag.ones(2, 3).to(memory_format=ag.channels_last),
                 lambda: ag.ones(2, 3, 4).contiguous(memory_format=ag.channels_last), lambda: ag.zeros_like(ag.ones(2), memory_format=ag.channels_last)):
        with pytest.raises(RuntimeError, match="required rank 4"):
            make()
    with pytest.raises(TypeError, match="memory_format"):
        ag.ones(2, 3).to(memory_format="channels_last")
    with pytest.raises(RuntimeError, match="preserve"):
        ag.ones(3, 4).t().contiguous(memory_format=ag.preserve_format)


POINTWISE: dict[str, Callable[[Any, Any], Any]] = {
    "relu": lambda m, x: x.relu(), "exp": lambda m, x: x.exp(), "times number": lambda m, x: x * 2, "add": lambda m, x: x + x, "compare": lambda m, x: x > 0,
    "with row-major": lambda m, x: x + m.ones(tuple(x.shape)), "row-major with": lambda m, x: m.ones(tuple(x.shape)) + x, "where": lambda m, x: m.where(x > 0, x, x * 2),
    "where number": lambda m, x: m.where(x > 0, x, 0.0), "bias": lambda m, x: x + m.ones(x.shape[1]).view(1, -1, 1, 1), "0-d": lambda m, x: x * m.tensor(2.0),
    "bias first": lambda m, x: m.ones(x.shape[1]).view(1, -1, 1, 1) + x, "sum of maps": lambda m, x: x.sum((2, 3), keepdim=True), "double": lambda m, x: x.double(),
    "sum of batch": lambda m, x: x.sum(0, keepdim=True), "sum of channels": lambda m, x: x.sum(1, keepdim=True), "mean": lambda m, x: x.mean((2, 3), keepdim=True),
    "times mean": lambda m, x: x.mean((2, 3), keepdim=True) * x, "cat": lambda m, x: m.cat([x, x], 1), "cat of both": lambda m, x: m.cat([x, m.ones(tuple(x.shape))], 1),
    "slice": lambda m, x: x[:1] * 2, "in place": lambda m, x: x.clone().mul_(2), "detach": lambda m, x: x.detach(), "pad": lambda m, x: m.nn.functional.pad(x, (1, 1)),
    "flip": lambda m, x: x.flip(2), "permute": lambda m, x: x.permute(0, 2, 3, 1), "matmul": lambda m, x: x @ x.transpose(-1, -2),
    "repeat": lambda m, x: x.repeat(1, 2, 1, 1),
    "normalised": lambda m, x: (x - x.mean((0, 2, 3), keepdim=True)) / (x.var((0, 2, 3), keepdim=True) + 1), "pow": lambda m, x: x**2, "cumsum": lambda m, x: x.cumsum(1),
}


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
@pytest.mark.parametrize("name", POINTWISE)
def test_results_lie_as_torchs(name: str) -> None:
    for shape in SHAPES[:9]:
        for fmt in ("contiguous_format", CL):
            def lines(m: Any, shape: Any = shape, fmt: str = fmt) -> Any:
                return _facts(m, POINTWISE[name](m, m.ones(shape).to(memory_format=getattr(m, fmt))))
            ours, theirs = (outcome(m, lines) for m in modules())
            assert ours == theirs, (shape, fmt)


def _random(*shape: int) -> Any:
    return ag.tensor(np.random.default_rng(0).uniform(0.5, 2.0, shape)).to(memory_format=ag.channels_last)


@pytest.mark.parametrize("name", [n for n in POINTWISE if n not in ("permute", "matmul", "repeat", "cat of both", "row-major with", "cumsum", "sum of batch")])
def test_channels_last_is_kept_with_right_values(name: str) -> None:
    """Values are those of the row-major tensor."""
    if name in ("with row-major", "bias", "bias first", "where number", "0-d", "compare"):
        x = _random(2, 3, 4, 5).float()
    else:
        x = _random(2, 3, 4, 5)
    got, want = POINTWISE[name](ag, x), POINTWISE[name](ag, x.contiguous())
    assert got.is_contiguous(memory_format=ag.channels_last)
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)


def test_gradients_keep_the_layout_of_their_tensor() -> None:
    x = _random(2, 3, 4, 5).requires_grad_()
    w = ag.tensor(np.linspace(0.5, 1.0, 120).reshape(2, 3, 4, 5), requires_grad=True)
    v = _random(2, 3, 4, 5)
    seen: list[Any] = []
    y = (x * 2).tanh()
    y.register_hook(lambda g: seen.append(g.stride()))
    (y * v + w).sum().backward()
    assert x.grad.stride() == x.stride() == (60, 1, 15, 3) and w.grad.stride() == (60, 20, 5, 1)
    assert seen == [(60, 1, 15, 3)]
    (g,) = ag.autograd.grad((x.exp() * x).sum(), x)
    assert g.stride() == x.stride()
    x.grad = None
    x.contiguous().sum().backward()
    assert x.grad.stride() == x.stride()
    again = ag.autograd.grad(ag.autograd.grad((x**3).sum(), x, create_graph=True)[0].sum(), x)[0]
    assert again.stride() == x.stride()


def test_compiled_functions_keep_formats_too() -> None:
    x = _random(2, 3, 4, 5)
    b = ag.tensor(np.linspace(0.0, 1.0, 3))

    def f(x: Any, b: Any) -> Any:
        return ((x + b.reshape(1, 3, 1, 1)) * 2).tanh().relu()

    compiled = ag.compile(f)
    got = compiled(x, b)
    assert got.stride() == (60, 1, 15, 3)
    np.testing.assert_allclose(got.numpy(), f(x, b).numpy(), rtol=1e-14)
    assert compiled(x.contiguous(), b).stride() == (60, 20, 5, 1)
    z = x.detach().clone().requires_grad_()
    compiled(z, b).sum().backward()
    assert z.grad.stride() == (60, 1, 15, 3)
    for change in (lambda x: x.contiguous(memory_format=ag.channels_last) * 2, lambda x: x.to(memory_format=ag.channels_last) * 2,
                   lambda x: x.clone(memory_format=ag.channels_last)):
        assert ag.compile(change)(x.contiguous()).is_contiguous(memory_format=ag.channels_last)
    assert ag.compile(lambda x: x.contiguous() * 2)(x).is_contiguous()


@pytest.mark.parametrize("name", sweep.part([n for n in MAKERS if "the same" not in n and n != "is_contiguous"] + ["zeros", "new_zeros", "new_full"]))
def test_what_compiled_functions_make_lies_as_in_eager(name: str) -> None:
    extra = {"zeros": lambda m, t, f: m.zeros(2, 3, 4, 5, memory_format=f), "new_zeros": lambda m, t, f: t.new_zeros(2, 3),
             "new_full": lambda m, t, f: t.new_full((2,), 3)}
    make: Any = {**MAKERS, **extra}[name]
    for x in (_random(2, 3, 4, 5), _random(2, 3, 4, 5).contiguous(), ag.ones(2, 3, 4, 5, 6)):
        for f in FORMATS:
            form = getattr(ag, f)

            def run(x: Any, form: Any = form) -> Any:
                return make(ag, x, form)

            eager, compiled = [outcome(ag, lambda m, g=g, x=x: _facts(m, g(x))) for g in (run, ag.compile(run))]
            assert compiled == eager or eager[0] == "error" and f == "preserve_format", (f, x.stride(), compiled)  # which compiled code takes for "as it is"


def test_tensors_in_variables_keep_their_format_in_compiled_functions() -> None:
    w, x = _random(4, 3, 3, 3).requires_grad_(), _random(2, 3, 6, 6)
    opt = ag.optim.SGD([w], lr=0.1, momentum=0.9)

    def step() -> Any:
        opt.zero_grad()
        loss = (ag.nn.functional.conv2d(x, w) ** 2).mean()
        loss.backward()
        opt.step()
        return loss, w * 2

    seen: list[Any] = []
    for run in (step, ag.compile(step)):
        w.detach().copy_(_random(4, 3, 3, 3))
        w.grad = None
        opt.state.clear()
        results = [run() for _ in range(3)]
        assert results[-1][1].stride() == w.grad.stride() == opt.state[w]["momentum_buffer"].stride() == w.stride() == (27, 1, 9, 3)
        seen.append([loss.detach().numpy() for loss, _ in results])
    np.testing.assert_allclose(*seen, rtol=1e-6)
    double = ag.compile(lambda: w * 2)
    assert double().stride() == (27, 1, 9, 3)
    w.data = w.detach().contiguous()  # another order is another program
    np.testing.assert_array_equal(double().detach().numpy(), 2 * w.detach().numpy())
    assert double().stride() == (27, 9, 3, 1) and double.cache_info().traces == 2


class _LostFormat(Exception):
    pass


def _wrapped(fn: Callable[..., Any], seen: set[str]) -> Callable[..., Any]:
    def check(*args: Any, **kwargs: Any) -> Any:
        tensors = [t for a in args for t in (a if isinstance(a, (list, tuple)) else [a]) if isinstance(t, ag.Tensor)]
        was = any(t.dim() == 4 and t.is_contiguous(memory_format=ag.channels_last) and not t.is_contiguous() for t in tensors)
        result = fn(*args, **kwargs)
        if was and isinstance(result, ag.Tensor) and result.dim() == 4:
            seen.add(fn.__name__)
            if not result.is_contiguous(memory_format=ag.channels_last):
                raise _LostFormat(fn.__name__)
        return result

    return check


def test_a_checker_of_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker of torch's tutorial: every function and method is wrapped by ``setattr`` and raises where channels last is lost."""
    seen: set[str] = set()
    skip = {"is_contiguous", "stride", "dim", "numel", "contiguous", "Tensor"}
    for where in (ag.Tensor, ag.nn.functional, ag):
        for name in dir(where):
            found = getattr(where, name, None)
            if name not in skip and not name.startswith("_") and callable(found) and not isinstance(found, type):
                monkeypatch.setattr(where, name, _wrapped(found, seen))
    for name in ("__add__", "__mul__", "__sub__", "__truediv__", "__radd__", "__neg__", "__pow__"):
        monkeypatch.setattr(ag.Tensor, name, _wrapped(getattr(ag.Tensor, name), seen))
    x = _random(2, 3, 4, 5).requires_grad_()
    scale = ag.ones(1, 3, 1, 1, dtype=ag.float64).requires_grad_()
    h = (x.sqrt() - x.mean((0, 2, 3), keepdim=True)) / (x.var((0, 2, 3), keepdim=True) + 1e-5).sqrt()
    h = ag.nn.functional.relu(h * scale + 0.5)
    h = ag.nn.functional.pad(h, (1, 1, 1, 1))
    h = ag.cat([h, h.sigmoid()], 1).clamp(0, 1) + ag.tanh(ag.cat([h, h], 1))
    h = ag.where(h > 0.5, h, h * 0.1)
    kernel, channel = ag.tensor(np.random.default_rng(2).normal(size=(6, 6, 3, 3))), ag.ones(6, dtype=ag.float64)
    h = ag.nn.functional.conv2d(h, kernel, channel, padding=1)
    h = ag.nn.functional.batch_norm(h, None, None, channel, channel, training=True)
    h = ag.nn.functional.max_pool2d(h, 2, 1) + ag.nn.functional.avg_pool2d(h, 2, 1) + ag.nn.functional.adaptive_avg_pool2d(h, 1)
    h = ag.nn.functional.batch_norm(ag.nn.functional.conv2d(h, kernel, groups=1), channel, channel)
    h = ag.nn.functional.gelu(h) + ag.nn.functional.leaky_relu(h) + ag.nn.functional.dropout(h, 0.5)
    h = h[:, :3].detach().clone().requires_grad_() * ag.exp(h[:, 3:])
    h.sum().backward()
    assert {"relu", "sigmoid", "tanh", "where", "cat", "pad", "clamp", "sqrt", "conv2d", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "batch_norm",
            "gelu", "dropout"} <= seen
    with pytest.raises(_LostFormat, match="softmax"):  # in torch too
        x.softmax(1)
    with pytest.raises(_LostFormat):
        x.clone(memory_format=ag.contiguous_format)


def test_formats_are_objects_with_names() -> None:
    pickle = importlib.import_module("pickle")
    for name in FORMATS:
        fmt = getattr(ag, name)
        assert repr(fmt) == f"aotgrad.{name}" and pickle.loads(pickle.dumps(fmt)) is fmt


MATRICES: dict[str, Callable[[Any], Any]] = {
    "same": lambda m: (m.arange(6.0).view(2, 3), m.arange(6.0).view(3, 2).t()),
    "with gaps": lambda m: (m.arange(24.0).view(4, 6)[::2, ::2], m.arange(6.0).view(3, 2).t()),
    "broadcast": lambda m: (m.arange(2.0)[:, None].expand(2, 3), m.arange(6.0).view(3, 2).t()),
    "integers": lambda m: (m.arange(6).view(2, 3), m.arange(6.0).view(3, 2).t()),
    "a row": lambda m: (m.arange(3.0), m.arange(6.0).view(3, 2).t()), "a number": lambda m: (m.tensor(2.0), m.arange(6.0).view(3, 2).t()),
}


@pytest.mark.parametrize("name", MATRICES)
def test_matrices_of_two_orders(name: str) -> None:
    def strides(m: Any) -> Any:
        found = []
        for a, b in (MATRICES[name](m), MATRICES[name](m)[::-1]):
            found += [(a * b).stride(), (a - b).stride(), m.maximum(a, b + 0 * a).stride(), (a > b).stride(), m.where(b > 2, a, b).stride(), (a / (b + 1)).stride()]
        return found

    assert same(strides)[0] != "error"


def test_joined_matrices_are_row_major() -> None:
    def strides(m: Any) -> Any:
        a, b = m.arange(6.0).view(3, 2).t(), m.arange(24.0).view(4, 3, 2).transpose(0, 1)
        return [m.cat([a, a]).stride(), m.cat([a, a], 1).stride(), m.stack([a, a]).stride(), m.stack([a, a], -1).stride(), m.cat([b, b]).stride()]

    assert same(strides)[0] != "error"
