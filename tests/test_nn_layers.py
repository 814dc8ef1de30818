"""Modules over the functions of ``nn.functional``: text, state and numbers as torch's, eagerly and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aotgrad as ag

_rng = np.random.default_rng(9)
X, IMAGES, PLACES, PROB = _rng.normal(size=(4, 6)), _rng.normal(size=(2, 6, 4, 5)), np.array([[0, 3, 1], [3, 2, 2]]), _rng.uniform(0.05, 0.95, (4, 6))

# (the module, its input, its target)
MODULES: list[tuple[str, Any, Any]] = [
    *((f"nn.{name}()", X, None) for name in (
        "CELU", "ELU", "GELU", "GLU", "SELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid", "Mish", "PReLU", "ReLU6", "Softplus",
        "Softshrink", "Softsign", "Tanhshrink")),
    ("nn.CELU(0.5)", X, None), ("nn.ELU(0.5, True)", X * 1, None), ("nn.GELU('tanh')", X, None), ("nn.GLU(0)", X, None), ("nn.Hardtanh(-0.5, 0.25)", X, None),
    ("nn.LeakyReLU(0.2)", X, None), ("nn.LeakyReLU(negative_slope=0.3)", X, None), ("nn.PReLU(6, 0.1)", IMAGES, None), ("nn.Softmin(dim=1)", X, None),
    ("nn.LogSoftmax(dim=1)", X, None), ("nn.Softplus(2, 5.0)", X, None), ("nn.Softshrink(0.1)", X, None), ("nn.Threshold(0.1, -1.0)", X, None),
    ("nn.LayerNorm(6)", X, None), ("nn.LayerNorm((4, 5), 0.1)", IMAGES, None), ("nn.LayerNorm(6, bias=False)", X, None),
    ("nn.LayerNorm([6], elementwise_affine=False)", X, None),
    ("nn.RMSNorm(6)", X, None), ("nn.RMSNorm((4, 5), eps=0.1, elementwise_affine=False)", IMAGES, None), ("nn.GroupNorm(3, 6)", IMAGES, None),
    ("nn.GroupNorm(2, 6, affine=False)", IMAGES, None), ("nn.GroupNorm(2, 6, bias=False)", IMAGES, None), ("nn.Embedding(5, 3)", PLACES, None),
    ("nn.Embedding(5, 3, padding_idx=-2)", PLACES, None), ("nn.Dropout2d(0.0)", IMAGES, None), ("nn.Dropout1d(1.0)", X, None), ("nn.Dropout3d(0.5).eval()", IMAGES, None),
    ("nn.L1Loss()", X, PROB), ("nn.MSELoss(reduction='sum')", X, PROB), ("nn.SmoothL1Loss(beta=0.5)", X, PROB), ("nn.HuberLoss('sum', 0.7)", X, PROB),
    ("nn.KLDivLoss(reduction='batchmean')", X, PROB), ("nn.KLDivLoss(reduction='sum', log_target=True)", X, X), ("nn.BCELoss()", PROB, PROB[::-1].copy()),
    ("nn.BCELoss(m.tensor([0.5, 1, 1, 2, 1, 1]))", PROB, PROB), ("nn.BCEWithLogitsLoss()", X, PROB),
    ("nn.BCEWithLogitsLoss(pos_weight=m.tensor([0.5, 1, 1, 2, 1, 1]), reduction='none')", X, PROB), ("nn.NLLLoss()", X, np.array([0, 1, 5, 2])),
    ("nn.NLLLoss(m.tensor([0.5, 1, 1, 2, 1, 1]), ignore_index=1)", X, np.array([0, 1, 5, 2])),
    ("nn.CrossEntropyLoss(m.tensor([0.5, 1, 1, 2, 1, 1]), label_smoothing=0.1)", X, np.array([0, 1, 5, 2])),
    ("nn.CrossEntropyLoss(ignore_index=5)", X, np.array([0, 1, 5, 2])),
]


def _told(m: Any, line: str, input: Any, target: Any, how: Any = lambda f: f) -> tuple[Any, ...]:
    net = eval(line, {"m": m, "nn": m.nn})
    with m.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(m.tensor(np.random.default_rng(k).normal(size=tuple(p.shape)).astype(np.float32)))
    given = m.tensor(input.astype(np.float32) if input.dtype.kind == "f" else input)
    given.requires_grad_(input.dtype.kind == "f")
    moved = given * 1 if "True" in line else given  # written in place
    out = how(net)(moved, *([] if target is None else [m.tensor(target.astype(np.float32) if target.dtype.kind == "f" else target)]))
    if out.requires_grad:
        (out * out).sum().backward()
    leaves = [x for x in (given, *net.parameters()) if x.requires_grad]
    return (repr(net), list(net.state_dict()), [tuple(p.shape) for p in net.parameters()], net.training), [
        out.tolist(), *([] if x.grad is None else x.grad.tolist() for x in leaves)]


@pytest.mark.parametrize(("line", "input", "target"), MODULES, ids=[line for line, *_ in MODULES])
def test_as_torch(line: str, input: Any, target: Any) -> None:
    torch = pytest.importorskip("torch")
    told, want = _told(torch, line, input, target)
    for how in ((lambda f: f), ag.compile):
        text, got = _told(ag, line, input, target, how)
        assert text == told and len(got) == len(want)
        for a, b in zip(got, want):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("line", "input", "target"), [pytest.param(*m, marks=[pytest.mark.thorough] * (i % 2)) for i, m in enumerate(MODULES)],
                         ids=[line for line, *_ in MODULES])
def test_compiled_as_eager(line: str, input: Any, target: Any) -> None:
    (text, eager), (other, compiled) = _told(ag, line, input, target), _told(ag, line, input, target, ag.compile)
    assert text == other and text[0].startswith(line[3:].partition("(")[0])
    for a, b in zip(compiled, eager, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=2e-5)


def _lists(m: Any) -> list[Any]:
    net = m.nn.Module()
    net.rows, net.named = m.nn.ParameterList([m.ones(2, 3), m.nn.Parameter(m.zeros(1))]), m.nn.ParameterDict({"a": m.ones(2)})
    net.rows.append(m.ones(4))
    net.rows.extend([m.ones(5)])
    net.named["b"] = m.nn.Parameter(m.ones(3))
    net.named.update({"c": m.ones(6)})
    net.rows[1] = m.ones(7)
    out = [[n for n, _ in net.named_parameters()], list(net.state_dict()), len(net.rows), len(net.named), [p.numel() for p in net.rows], list(net.named)]
    out += [net.rows[-1].numel(), [p.numel() for p in net.named.values()], [k for k, _ in net.named.items()], "a" in net.named, net.named.pop("a").numel()]
    out += ["a" in net.named, list(net.named.keys())]
    out += [[p.numel() for p in net.rows[1:3]], repr(net.rows).replace(m.__name__, "m")]
    return out


def test_lists_and_dicts_of_parameters() -> None:
    told = _lists(ag)
    assert told[0] == ["rows.0", "rows.1", "rows.2", "rows.3", "named.a", "named.b", "named.c"]
    torch = pytest.importorskip("torch")
    assert told == _lists(torch)


def test_refused_options() -> None:
    with pytest.raises(NotImplementedError, match="max_norm"):
        ag.nn.Embedding(3, 2, max_norm=1.0)
    with pytest.raises(ValueError, match="must be divisible"):
        ag.nn.GroupNorm(4, 6)
    with pytest.raises(RuntimeError, match="device 'cuda' is not there"):
        ag.nn.Linear(2, 3, device="cuda")


def test_embedding_of_given_rows() -> None:
    rows = ag.tensor([[1.0, 2.0], [3.0, 4.0]])
    kept = ag.nn.Embedding.from_pretrained(rows)
    assert not kept.weight.requires_grad and kept(ag.tensor([1])).tolist() == [[3.0, 4.0]] and ag.nn.Embedding.from_pretrained(rows, freeze=False).weight.requires_grad
