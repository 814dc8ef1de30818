"""What eager calls record is torch's: one node per call with its name, what it is connected to, layouts of results and gradients, and their numbers.

A line that differs is listed with what differs in it; one that is listed and does not is an error too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import aotgrad as ag

torch = pytest.importorskip("torch")

SHAPES = [(4, 6), (2, 4, 4, 6), (6,), ()]
LINES = """
F.elu(x) | F.elu(x, 0.5) | F.selu(x) | F.celu(x) | F.celu(x, 0.5) | F.gelu(x) | F.gelu(x, approximate='tanh') | F.silu(x) | F.mish(x) | F.hardtanh(x) | F.relu6(x)
F.hardswish(x) | F.hardsigmoid(x) | F.leaky_relu(x) | F.leaky_relu(x, 0.3) | F.softplus(x) | F.softplus(x, 2.0) | F.softsign(x) | F.logsigmoid(x) | F.relu(x)
F.threshold(x, 0.1, 0.5) | F.tanhshrink(x) | F.softshrink(x) | F.hardshrink(x) | F.glu(x) | F.glu(x, 0) | F.softmin(x, 0) | F.dropout(x, 0.0) | F.dropout(x, 1.0)
F.prelu(x, w(1)) | F.prelu(x, w(x.shape[1])) | m.exp(x) | m.sin(x) | m.abs(x) | m.square(x) | m.neg(x) | m.sinc(x) | m.expm1(x) | m.erf(x) | m.erfc(x)
m.reciprocal(x) | m.sign(x) | m.floor(x) | m.exp2(x) | m.nan_to_num(x) | m.deg2rad(x) | m.sigmoid(x) | m.tanh(x) | m.atan(x) | m.sinh(x) | m.asinh(x)
m.log1p(m.abs(x)) | m.clamp(x, -0.5, 0.5) | m.clamp(x, min=0.1) | m.clamp(x, max=0.1) | m.clip(x, -1, 1) | m.softmax(x, 0) | m.log_softmax(x, -1) | m.logsumexp(x, 0)
m.cumsum(x, 0) | m.cumprod(x, 0) | m.cumsum(x, -1) | x + 1 | 1 + x | x - 1 | 1 - x | x * 2 | 2 * x | x / 2 | 2 / x | x ** 2 | x ** 3 | x.abs() ** 0.5 | 2.0 ** x
True + x | True * x | m.rsub(x, 2) | x.fmod(2) | m.remainder(x, 2.5) | m.xlogy(x, 2) | m.xlogy(2.0, x.abs())
m.div(x, 2, rounding_mode='floor') | x.div(x.abs() + 1, rounding_mode='trunc') | x % 2
-x | x.pow(2) | x.float() | x.clone() | x.contiguous() | x.detach() * x | x.sum() | x.mean() | x.prod() | x.max() | x.min() | x.amax() | x.var() | x.std()
x.norm() | x.norm(p=3) | x.sum(0) | x.sum(-1, keepdim=True) | x.mean(0) | x.prod(0) | x.max(0)[0] | x.min(-1)[0] | x.amax(0) | x.amin(-1, keepdim=True) | x.var(0)
x.std(-1) | x.norm(dim=0) | x.norm(p=1, dim=0) | x.argmax(0) | x.reshape(-1) | x.view(x.shape) | x.unsqueeze(0) | x.squeeze() | x.expand(2, *x.shape)
x.repeat(*([2] * x.ndim)) | m.tile(x, (2,)) | x.transpose(0, -1) | m.movedim(x, 0, -1) | x.flatten() | x.flatten(1) | m.ravel(x) | x.repeat_interleave(2, 0)
m.unbind(x)[0] | x.chunk(2, 0)[0] | x.chunk(2, -1)[1] | x.split(2, 0)[0] | x.split([1, 1], 0)[0] | x.narrow(0, 0, 1) | x.select(0, 0) | x[0] | x[0:1] | x[..., ::2]
x[None] | x[..., None] | x[...] | x[:] | x[1:, 1:] | x[0, 1] | x[[0, 1]] | x[m.tensor([0, 1])] | x[:, [0, 1]] | x[..., [0, 1]] | x[[0, 1], [0, 1]] | x[[0, 1], 0]
x[x > 0] | x[[0, 1], 1:] | x[:, [[0, 1]]] | x[:, None, [0, 1]] | x.masked_select(x > 0) | m.stack([x, x]) | m.stack([x, x], -1) | m.stack([x, x * 2], 1)
m.cat([x, x]) | m.cat([x, x], -1) | m.hstack([x, x]) | m.vstack([x, x]) | m.dstack([x, x]) | m.tril(x) | m.triu(x, 1) | m.diag(x) | m.diagonal(x) | m.diag_embed(x)
m.trace(x) | F.pad(x, (1, 2)) | F.pad(x, (1, 1), value=2.0) | F.pad(x, (0, 0)) | m.flip(x, [0]) | m.roll(x, 1) | m.roll(x, 1, 0)
x.gather(0, m.zeros(x.shape, dtype=m.int64)) | x.index_select(0, m.tensor([0, 0])) | x.index_select(-1, m.tensor([1, 0]))
m.take_along_dim(x, m.zeros(x.shape, dtype=m.int64), 0) | x.scatter(0, m.zeros(x.shape, dtype=m.int64), 1.0) | x.scatter_add(0, m.zeros(x.shape, dtype=m.int64), x)
x.index_add(0, m.tensor([0, 1]), x[:2]) | x.masked_fill(x > 0, 0.0) | x.masked_fill(x > 0, w()) | m.where(x > 0, x, 0.0) | m.where(x > 0, 0.0, x)
m.where(x > 0, x, x * 2) | F.normalize(x, dim=0) | F.layer_norm(x, x.shape[-1:]) | F.layer_norm(x, x.shape[-2:])
F.layer_norm(x, x.shape[-1:], w(*x.shape[-1:]), w(*x.shape[-1:])) | F.layer_norm(x, x.shape[-1:], w(*x.shape[-1:])) | F.rms_norm(x, x.shape[-1:])
F.rms_norm(x, x.shape[-1:], w(*x.shape[-1:])) | F.group_norm(x, 2) | F.group_norm(x, 2, w(x.shape[1]), w(x.shape[1])) | F.batch_norm(x, None, None, training=True)
F.batch_norm(x, None, None, w(x.shape[1]), w(x.shape[1]), True) | F.batch_norm(x, c(x.shape[1]), c(x.shape[1]).abs())
F.batch_norm(x, c(x.shape[1]), c(x.shape[1]).abs(), w(x.shape[1]), w(x.shape[1])) | F.instance_norm(x)
F.batch_norm(x, c(x.shape[1]), c(x.shape[1]).abs(), training=True) | m.matmul(x, x.transpose(-1, -2)) | m.matmul(x, w(x.shape[-1], 2)) | m.matmul(x, w(x.shape[-1]))
m.outer(x, x) | m.dot(x, x) | m.einsum('...i->...', x) | m.mv(x, w(x.shape[1])) | m.addmm(w(2), x, w(x.shape[-1], 2)) | m.einsum('ij,jk->ik', x, w(x.shape[-1], 2))
m.outer(x, w(3)) | F.linear(x, w(3, x.shape[-1])) | F.linear(x, w(3, x.shape[-1]), w(3)) | m.bmm(x[0], w(4, 6, 2)) | F.embedding(m.tensor([[0, 1], [1, 2]]), x)
F.embedding(m.tensor([0, 1, 1]), x, padding_idx=0) | F.max_pool2d(x, 2) | F.avg_pool2d(x, 2) | F.adaptive_avg_pool2d(x, 2) | F.max_pool1d(x[None], 2)
F.conv2d(x, w(3, x.shape[1], 3, 3)) | F.conv1d(x[None], w(3, x.shape[0], 3)) | F.conv2d(x, w(3, x.shape[1], 3, 3), w(3), padding=1)
F.conv_transpose2d(x, w(x.shape[1], 3, 2, 2)) | F.conv2d(x, w(4, 1, 3, 3), groups=4) | x + y | x - y | x * y | x / y | x.abs() ** y | x % y | m.fmod(x, y)
m.maximum(x, y) | m.fmax(x, y) | m.atan2(x, y) | m.hypot(x, y) | m.logaddexp(x, y) | m.lerp(x, y, 0.3) | m.lerp(x, y, y) | m.addcmul(x, x, y) | m.addcdiv(x, y, y)
m.where(x > 0, x, y) | m.clamp(x, y, y + 1) | m.clamp(x, min=y) | m.add(x, y, alpha=2) | m.stack([x, y]) | m.cat([x, y]) | m.xlogy(x, y.abs()) | x + w(x.shape[-1])
x * w() | x * w(1) | x ** w(1) | m.logaddexp(x, w(1)) | m.lerp(x, w(*x.shape), w()) | m.addcmul(x, w(*x.shape), w(1)) | F.mse_loss(x, y) | F.mse_loss(x, y.detach())
F.mse_loss(x, y, reduction='sum') | F.mse_loss(x, y, reduction='none') | F.l1_loss(x, y) | F.smooth_l1_loss(x, y) | F.smooth_l1_loss(x, y, beta=0.5)
F.smooth_l1_loss(x, y, reduction='none') | F.huber_loss(x, y) | F.huber_loss(x, y, delta=0.5) | F.huber_loss(x, y, reduction='sum') | F.kl_div(x, y.abs())
F.kl_div(x, y, log_target=True) | F.binary_cross_entropy(x.sigmoid(), y.detach().sigmoid()) | F.binary_cross_entropy_with_logits(x, y)
F.binary_cross_entropy_with_logits(x, y.detach(), reduction='none') | F.binary_cross_entropy_with_logits(x, y.detach(), c(x.shape[-1]), pos_weight=c(x.shape[-1]))
F.cosine_similarity(x, y, 0) | F.pairwise_distance(x, y) | F.cross_entropy(x, t) | F.cross_entropy(x, t, reduction='sum') | F.cross_entropy(x, t, reduction='none')
F.cross_entropy(x, t, c(x.shape[1])) | F.cross_entropy(x, t, label_smoothing=0.1) | F.cross_entropy(x, x.detach().softmax(1)) | F.nll_loss(x.clone(), t)
F.nll_loss(x, t, reduction='none') | F.nll_loss(x, t, ignore_index=1) | F.nll_loss(x, t, c(x.shape[1]))
"""
def _split(text: str) -> list[str]:
    return [s.strip() for s in text.replace("\n", "|").split("|") if s.strip()]


OTHER = {  # with the reasons, which docs/coming-from-pytorch.md has in full
    # an index, a change of shape, a product or a pooling of one call is one node; torch's is made of several
    **dict.fromkeys(_split("""
        x.reshape(-1) | x.flatten() | x.flatten(1) | x.repeat_interleave(2, 0) | x[1:, 1:] | x[0, 1] | x[[0, 1], 0] | x[x > 0] | x[[0, 1], 1:] | x[:, None, [0, 1]]
        m.vstack([x, x]) | m.dstack([x, x]) | m.take_along_dim(x, m.zeros(x.shape, dtype=m.int64), 0) | m.matmul(x, w(x.shape[-1])) | m.outer(x, x)
        m.outer(x, w(3)) | m.einsum('...i->...', x) | m.einsum('ij,jk->ik', x, w(x.shape[-1], 2)) | F.max_pool1d(x[None], 2) | 2 / x | m.movedim(x, 0, -1)"""), "node"),
    # one definition for numbers and tensors; forms of torch's own composites
    "F.pairwise_distance(x, y)": "node", "F.cross_entropy(x, t, label_smoothing=0.1)": "node",
    "F.cross_entropy(x, x.detach().softmax(1))": "node",
    # torch puts a copy in front where the operand is not contiguous
    "F.group_norm(x, 2)": "node", "F.group_norm(x, 2, w(x.shape[1]), w(x.shape[1]))": "node",
    "x[:]": "gradients, node", "m.ravel(x)": "node", "m.diag(x)": "node, strides", "F.instance_norm(x)": "gradients, node, strides",
    "x.masked_select(x > 0)": "gradients, gradients of row-major cotangents, node",
    # gradients of products lie as they are computed
    **dict.fromkeys(("m.matmul(x, x.transpose(-1, -2))", "m.matmul(x, w(x.shape[-1], 2))", "F.linear(x, w(3, x.shape[-1]))", "F.linear(x, w(3, x.shape[-1]), w(3))"),
                    "gradients, gradients of row-major cotangents, node"),
    "m.addmm(w(2), x, w(x.shape[-1], 2))": "gradients, gradients of row-major cotangents",
    # the layout of an operand is not known in a backward pass that does not need its numbers
    **dict.fromkeys(("F.avg_pool2d(x, 2)", "F.adaptive_avg_pool2d(x, 2)", "F.batch_norm(x, c(x.shape[1]), c(x.shape[1]).abs())", "F.conv2d(x, w(3, x.shape[1], 3, 3))",
                     "F.conv2d(x, w(3, x.shape[1], 3, 3), w(3), padding=1)", "F.conv_transpose2d(x, w(x.shape[1], 3, 2, 2))", "F.conv2d(x, w(4, 1, 3, 3), groups=4)",
                     "x ** w(1)"),
                    "gradients of row-major cotangents"),
    **dict.fromkeys(("m.logsumexp(x, 0)", "x.norm(p=1, dim=0)", "F.binary_cross_entropy_with_logits(x, y.detach(), c(x.shape[-1]), pos_weight=c(x.shape[-1]))"),
                    "gradients, gradients of row-major cotangents"),
    "x.split(2, 0)[0]": "gradients", "m.xlogy(x, y.abs())": "gradients", "F.glu(x, 0)": "gradients", "x.float()": "gradients, strides",
    # 0 for a spread that is none, and constants that are not rounded to float32
    **dict.fromkeys(("x.var()", "x.std()", "x.var(0)", "x.std(-1)", "F.hardsigmoid(x)"), "numbers of gradients"),
}


def _layouts(m: Any, shape: tuple[int, ...]) -> Iterator[Any]:
    base = ((m.arange(math.prod(shape), dtype=m.float64) * 7) % 11 - 4.7) / 4
    x = base.reshape(shape)
    yield x
    if shape:
        yield base.reshape(shape[::-1]).permute(tuple(reversed(range(len(shape)))))
        yield x.repeat(*[2] * len(shape))[tuple([slice(0, 2 * n, 2) for n in shape])]
    if len(shape) == 2:
        yield base[:shape[-1]].expand(shape)
    if len(shape) == 4:
        yield x.contiguous(memory_format=m.channels_last)


def _name(node: Any) -> str | None:
    return None if node is None else node.name().rpartition("::")[2]


def _moving(x: Any) -> list[tuple[int, int]]:
    """Sizes and strides of dims with more than one element."""
    return [(n, s) for n, s in zip(x.shape, x.stride()) if n != 1]


class Call:
    """One line run by one library: what is compared, by name."""

    def __init__(self, m: Any, line: str, x: Any) -> None:
        self.m, self.leaves = m, [x.detach().requires_grad_(), (x.clone() * 0.7 + 0.1).detach().requires_grad_()]
        known = {"m": m, "F": m.nn.functional, "x": self.leaves[0], "y": self.leaves[1], "w": self.weight, "c": lambda *shape: self.numbers(shape).abs()}
        if " t" in line:
            known["t"] = (m.arange(x.numel() // x.shape[1]) % x.shape[1]).reshape((x.shape[0], *x.shape[2:]))
        self.out = out = eval(line, known)
        self.seen: dict[str, Any] = {"shape": (tuple(out.shape), str(out.dtype).rpartition(".")[2], out.is_leaf, out.requires_grad), "strides": _moving(out)}
        self.values, self.gradients = out.detach().numpy(), []
        if out.requires_grad:
            node = out.grad_fn
            self.seen["node"] = _name(node), None if node is None else [_name(n) for n, _ in node.next_functions]
            self.backward()

    def numbers(self, shape: tuple[int, ...]) -> Any:
        m = self.m
        return (((m.arange(math.prod(shape), dtype=m.float64) * 5 + len(self.leaves)) % 7 - 2.6) / 3).reshape(shape)

    def weight(self, *shape: int) -> Any:
        self.leaves.append(self.numbers(shape).requires_grad_())
        return self.leaves[-1]

    def backward(self) -> None:
        m, out = self.m, self.out
        ct = (m.arange(out.numel(), dtype=out.dtype) % 5 - 1.5).reshape(out.shape)
        for way, g in (("gradients of row-major cotangents", ct), ("gradients", m.zeros_like(out) + ct)):
            found = m.autograd.grad(out, self.leaves, g, allow_unused=True, retain_graph=True)
            self.seen[way] = [None if f is None else _moving(f) for f in found]
        self.gradients = [None if f is None else f.detach().numpy() for f in found]


def _equal(a: Any, b: Any) -> bool:
    return (a is None) is (b is None) and (a is None or np.allclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True))


def _differences(line: str, theirs: Any, ours: Any) -> list[str] | None:
    try:
        a = Call(torch, line, theirs)
    except Exception:  # not for this shape
        return None
    try:
        b = Call(ag, line, ours)
    except Exception as error:
        return [f"error ({error})"]
    assert a.seen["shape"] == b.seen["shape"], (line, a.seen, b.seen)
    found = [k for k in a.seen if a.seen[k] != b.seen.get(k)]
    if not _equal(a.values, b.values):
        found.append("values")
    if len(a.gradients) != len(b.gradients) or not all(map(_equal, a.gradients, b.gradients)):
        found.append("numbers of gradients")
    return found


@pytest.mark.parametrize("line", _split(LINES))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_recorded(line: str) -> None:
    found, compared = set(), 0
    for shape in SHAPES:
        for theirs, ours in zip(_layouts(torch, shape), _layouts(ag, shape)):
            differences = _differences(line, theirs, ours)
            found.update(differences or ())
            compared += differences is not None
    assert compared
    assert sorted(found) == sorted(filter(None, OTHER.get(line, "").split(", ")))
