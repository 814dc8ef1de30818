"""Modules of convolutions, borders, pooling and batch statistics: text, state and numbers as torch's, eagerly and compiled; and the modes of ``pad`` against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aotgrad as ag

F = ag.nn.functional
_rng = np.random.default_rng(4)
SIGNAL, IMAGE, VOLUME, ROWS = (_rng.normal(size=s).astype(np.float32) for s in ((2, 4, 9), (2, 4, 6, 7), (2, 4, 5, 4, 6), (5, 4)))

MODULES: list[tuple[str, Any]] = [
    ("Conv1d(4, 6, 3)", SIGNAL), ("Conv1d(4, 6, 5, padding='same')", SIGNAL), ("Conv2d(4, 6, 3, 2, 1, bias=False)", IMAGE),
    ("Conv3d(4, 2, 2, dilation=(1, 2, 1))", VOLUME),
    ("Conv2d(4, 6, (3, 2), padding=(0, 1), dilation=2, groups=2)", IMAGE), ("Conv2d(4, 4, 3, padding='valid', groups=4)", IMAGE),
    *((f"Conv2d(4, 6, 3, padding={p}, padding_mode='{mode}')", IMAGE) for mode in ("reflect", "replicate", "circular") for p in ((2, 1), "'same'")),
    ("Conv2d(4, 6, 3)", IMAGE[0]), ("ConvTranspose1d(4, 6, 3, 2, 1, 1)", SIGNAL), ("ConvTranspose2d(4, 6, 3, 2, output_padding=(1, 0), groups=2, bias=False)", IMAGE),
    ("ConvTranspose3d(4, 2, 2, dilation=2)", VOLUME), ("MaxPool1d(3, 2, 1)", SIGNAL), ("MaxPool2d(2)", IMAGE), ("MaxPool2d((3, 2), ceil_mode=True)", IMAGE),
    ("MaxPool3d(2, 1)", VOLUME), ("AvgPool1d(2)", SIGNAL), ("AvgPool2d((2, 3), 1, 1)", IMAGE), ("AvgPool2d(3, 2, 1, True, False)", IMAGE),
    ("AvgPool3d(2, divisor_override=3)", VOLUME), ("AdaptiveAvgPool1d(4)", SIGNAL), ("AdaptiveAvgPool2d((None, 2))", IMAGE), ("AdaptiveAvgPool3d(1)", VOLUME),
    ("AdaptiveMaxPool1d(4)", SIGNAL), ("AdaptiveMaxPool2d(3)", IMAGE), ("AdaptiveMaxPool3d((2, 2, 3))", VOLUME), ("BatchNorm1d(4)", SIGNAL), ("BatchNorm1d(4)", ROWS),
    ("BatchNorm2d(4, momentum=None)", IMAGE), ("BatchNorm2d(4).eval()", IMAGE), ("BatchNorm2d(4, affine=False, track_running_stats=False).eval()", IMAGE),
    ("BatchNorm2d(4, 0.1, 0.5, bias=False)", IMAGE), ("BatchNorm3d(4)", VOLUME), ("InstanceNorm1d(4)", SIGNAL), ("InstanceNorm2d(4, affine=True)", IMAGE),
    ("InstanceNorm2d(4, track_running_stats=True)", IMAGE), ("InstanceNorm2d(4, track_running_stats=True).eval()", IMAGE), ("InstanceNorm2d(4)", IMAGE[0]),
    ("InstanceNorm3d(4)", VOLUME),
    *((f"{kind}Pad{n}d({'1' if n == 2 else tuple(range(2 * n))}{', 0.5' if kind == 'Constant' else ''})", x) for kind in ("Constant", "Zero", "Replication", "Circular")
      for n, x in ((1, SIGNAL), (2, IMAGE))), ("ReflectionPad1d((2, 1))", SIGNAL), ("ReflectionPad2d((0, 1, 3, 2))", IMAGE), ("ReflectionPad3d(1)", VOLUME),
]


def _told(m: Any, line: str, input: Any, how: Callable[[Any], Any], last: bool = False) -> Any:
    """The module in words, and its numbers: result, gradients and state after two steps."""
    net = eval(f"nn.{line}", {"nn": m.nn})
    with m.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(m.tensor(np.random.default_rng(k).normal(size=tuple(p.shape)).astype(np.float32)))
    call, numbers = how(net), []
    for _ in range(2):
        x = m.tensor(input)
        x = (x.contiguous(memory_format=m.channels_last) if last and x.ndim == 4 else x).requires_grad_()
        out = call(x)
        (out * out).sum().backward()
        numbers += [out.detach().numpy(), x.grad.numpy()]  # the second has the state of the first
    numbers += [p.grad.numpy() for p in net.parameters() if p.grad is not None] + [b.numpy() for b in net.buffers()]
    return (repr(net), list(net.state_dict()), [tuple(p.shape) for p in net.parameters()], net.training), numbers


@pytest.mark.parametrize(("line", "input"), MODULES, ids=[f"{line} {x.ndim}" for line, x in MODULES])
def test_as_torch(line: str, input: Any) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    told, want = _told(torch, line, input, lambda f: f)
    text, got = _told(ag, line, input, lambda f: f)
    assert text == told and len(got) == len(want)
    for a, b in zip(got, want):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(("line", "input"), [m if i % 3 == 1 else pytest.param(*m, marks=pytest.mark.thorough) for i, m in enumerate(MODULES)],
                         ids=[f"{line} {x.ndim}" for line, x in MODULES])
def test_compiled_as_eager(line: str, input: Any) -> None:
    (text, eager), (other, compiled) = _told(ag, line, input, lambda f: f), _told(ag, line, input, ag.compile, last=True)
    assert text == other and text[0].startswith(line.partition("(")[0])
    for a, b in zip(compiled, eager, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_first_numbers_of_convolutions() -> None:
    ag.manual_seed(0)
    for net, bound in ((ag.nn.Conv2d(16, 8, 3, groups=2), (8 * 9) ** -0.5), (ag.nn.ConvTranspose2d(16, 8, 3, groups=2), (4 * 9) ** -0.5)):
        for p in net.parameters():
            largest = p.detach().abs().max().item()
            assert largest <= bound and (p.ndim == 1 or largest > 0.9 * bound)


def test_sizes_that_a_stride_leaves_open() -> None:
    net, x = ag.nn.ConvTranspose2d(4, 3, 3, stride=2), ag.ones(1, 4, 4, 5)
    assert net(x, output_size=(10, 12)).shape == (1, 3, 10, 12) and net(x, (1, 3, 9, 11)).shape == (1, 3, 9, 11)
    with pytest.raises(ValueError, match=r"requested an output size of \(20, 20\), but valid sizes range from \[9, 11\] to \[10, 12\]"):
        net(x, output_size=(20, 20))
    with pytest.raises(ValueError, match="output_size must have 2 or 4 elements"):
        net(x, output_size=(10,))


WRONG: tuple[tuple[str, str], ...] = (
    ("BatchNorm2d(3)(m.ones(2, 3))", "expected 4D input"), ("BatchNorm1d(3)(m.ones(2, 3, 4, 5))", "expected 2D or 3D input"), ("Conv2d(3, 4, 3, groups=2)", "divisible"),
    ("Conv2d(4, 3, 3, groups=2)", "divisible"), ("Conv2d(3, 4, 3, padding='foo')", "padding string"), ("Conv2d(3, 4, 3, stride=2, padding='same')", "strided"),
    ("Conv2d(3, 4, 3, padding_mode='x')", "padding_mode"), ("ConvTranspose2d(3, 4, 3, padding_mode='reflect')", "zeros"), ("Conv2d(3, 4, 3, groups=0)", "positive"),
    ("InstanceNorm2d(3)(m.ones(2, 3))", "expected 3D or 4D"), ("InstanceNorm2d(3, affine=True)(m.ones(2, 4, 3, 3))", "to match num_features"))


@pytest.mark.parametrize(("line", "match"), WRONG)
def test_errors(line: str, match: str) -> None:
    with pytest.raises(ValueError, match=match) as caught:
        eval(f"nn.{line}", {"nn": ag.nn, "m": ag})
    assert isinstance(caught.value, ag.AotgradError)


def test_wrong_borders() -> None:
    with pytest.raises(ag.AotgradArgumentError, match="give one, or 4"):
        ag.nn.ReflectionPad2d((1, 2))
    with pytest.warns(UserWarning, match="does not match num_features"):
        ag.nn.InstanceNorm2d(3)(ag.ones(2, 4, 3, 3))


# ---- the modes of pad -------------------------------------------------------------------------------------------------------------------

WIDTHS: tuple[tuple[tuple[int, ...], Any], ...] = (((5,), 2), ((3, 4), ((1, 2), (2, 0))), ((3, 4), ((0, 0), (3, 3))), ((3, 4, 5), 1), ((1, 4), ((0, 0), (1, 2))))


@pytest.mark.parametrize("mode", ["reflect", "symmetric", "edge", "wrap"])
@pytest.mark.parametrize(("shape", "widths"), [w if i == 1 else pytest.param(*w, marks=pytest.mark.thorough) for i, w in enumerate(WIDTHS)])
def test_pad_as_numpy(mode: str, shape: tuple[int, ...], widths: Any) -> None:
    x, f = _rng.normal(size=shape), lambda x: np.pad(x, widths, mode=mode)
    want, turned = f(x), np.asfortranarray(x)
    for how in (ag.compile, lambda f: lambda x: ag.vjp(f, x)[0], lambda f: lambda x: f(ag.tensor(x)).numpy()):
        assert np.array_equal(how(f)(x), want) and np.array_equal(how(f)(turned), want)
    ct, t = _rng.normal(size=want.shape), _rng.normal(size=shape)
    for g in (lambda x, ct: ag.vjp(f, x)[1](ct)[0], ag.compile(lambda x, ct: ag.vjp(f, x)[1](ct)[0])):
        assert np.isclose((g(x, ct) * t).sum(), (ct * f(t)).sum())
    for g in (lambda x, t: ag.jvp(f, (x,), (t,))[1], ag.compile(lambda x, t: ag.jvp(f, (x,), (t,))[1])):
        assert np.array_equal(g(x, t), f(t))
    if shape != (3, 4):
        return
    square = ag.hessian(lambda x: (f(x) ** 3).sum())
    assert np.allclose(ag.compile(square)(x), square(x))
    assert np.isclose(t.ravel() @ square(x).reshape(x.size, -1) @ t.ravel(), (6 * want * f(t) ** 2).sum())
    assert np.array_equal(ag.vmap(f)(np.stack([x, t])), np.stack([want, f(t)]))


@pytest.mark.parametrize("mode", ["reflect", "symmetric", "edge", "wrap"])
def test_pad_of_any_size(mode: str) -> None:
    f = ag.compile(ag.value_and_grad(lambda x: (np.pad(x, (2, 3), mode=mode) * np.pad(x, (2, 3), mode=mode)).sum()))
    for n in (4, 5, 9, 64):
        x = _rng.normal(size=n)
        value, grad = f(x)
        counts = np.bincount(np.pad(np.arange(n), (2, 3), mode=mode), minlength=n)
        assert np.isclose(value, (np.pad(x, (2, 3), mode=mode) ** 2).sum()) and np.allclose(grad, 2 * x * counts)
    assert f.cache_info().traces == 1
    if mode != "edge":
        with pytest.raises(ag.AotgradError):
            f(np.ones(2))
    with pytest.raises(ag.AotgradError):
        f(np.ones(0))


PADS = (((2, 3, 5), (2, 1)), ((2, 3, 5, 4), (1, 2, 2, 0)), ((3, 5, 4), (1, 2, 0, 2)), ((1, 2, 4, 5, 3), (1, 1, 2, 0, 1, 2)))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize(("shape", "widths"), PADS)
def test_pad_as_torch(mode: str, shape: tuple[int, ...], widths: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    given, told = _rng.normal(size=shape), []
    for m in (torch, ag):
        x = m.tensor(given, requires_grad=True)
        out = m.nn.functional.pad(x, widths, mode)
        (out * out * m.arange(float(out.numel())).reshape(out.shape)).sum().backward()
        told.append((out.detach().numpy(), x.grad.numpy(), out.grad_fn.name().rpartition(":")[2]))
    (a, g, name), (b, h, ours) = told
    assert np.array_equal(a, b) and np.allclose(g, h) and name == ours


def test_wrong_pads() -> None:
    x = ag.ones(2, 3)
    for call, match in ((lambda: F.pad(x, (3, 0), "reflect"), "too short for a border of 3"), (lambda: F.pad(x, (-1, 0), "replicate"), "cut with"),
                        (lambda: F.pad(x, (1, 0), "foo"), "is not available; use one of 'constant', 'reflect', 'replicate', 'circular'"),
                        (lambda: F.pad(x, (1, 0), "reflect", 2.0), "doesn't take in value"), (lambda: F.pad(ag.ones(1, 0), (1, 1), "replicate"), "no element"),
                        (lambda: ag.grad(lambda x: np.pad(x, 1, mode="mean").sum())(np.ones(3)), "is not available; use one of 'constant', 'reflect', 'symmetric'")):
        with pytest.raises(ag.AotgradError, match=match) as caught:
            call()
        assert isinstance(caught.value, ValueError)
