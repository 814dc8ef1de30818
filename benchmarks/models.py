"""Models in terms of a module of functions that torch.nn.functional, aotgrad.nn.functional and the adapters in ``peers`` all have; each is written once, in NCHW."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

STAGES = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
UNET = (16, 32, 64, 128)  # channels of the levels
Params = list[Any]


# ---- ResNet-18 --------------------------------------------------------------------------------------------------------------------------

def unit(fn: Any, x: Any, p: Any, stats: Any, stride: int, pad: int, groups: int = 1) -> Any:
    """Convolution and batch norm, with the running statistics or the batch's own."""
    y = fn.conv2d(x, next(p), None, stride, pad, 1, groups)
    scale, shift = next(p), next(p)
    if stats is None:
        return fn.batch_norm(y, None, None, scale, shift, training=True)
    return fn.batch_norm(y, next(stats), next(stats), scale, shift)


def basic(fn: Any, x: Any, p: Any, stats: Any, change: bool, stride: int) -> Any:
    """Two 3 x 3 convolutions beside a shortcut, which has a 1 x 1 convolution where sizes change."""
    y = fn.relu(unit(fn, x, p, stats, stride, 1))
    y = unit(fn, y, p, stats, 1, 1)
    return fn.relu(y + (unit(fn, x, p, stats, stride, 0) if change else x))


def resnet(fn: Any, x: Any, params: Sequence[Any], stats: Sequence[Any] | None) -> Any:
    """The logits."""
    p, s = iter(params), None if stats is None else iter(stats)
    x = fn.max_pool2d(fn.relu(unit(fn, x, p, s, 2, 3)), 3, 2, 1)
    for _, _, stride in STAGES:
        x = basic(fn, x, p, s, stride != 1, stride)
        x = basic(fn, x, p, s, False, 1)
    x = fn.adaptive_avg_pool2d(x, 1)
    return fn.linear(x.reshape(x.shape[0], -1), next(p), next(p))


def loss(fn: Any, params: Sequence[Any], x: Any, labels: Any) -> Any:
    """Cross-entropy of the logits in training."""
    return fn.cross_entropy(resnet(fn, x, params, None), labels)


def conv_params(rng: np.random.Generator, filters: int, channels: int, k: int) -> Params:
    """A weight, and the scale and shift of the norm behind it."""
    w = rng.standard_normal((filters, channels, k, k), dtype=np.float32) * np.float32(math.sqrt(2 / (channels * k * k)))
    return [w, rng.uniform(0.5, 1.5, filters).astype(np.float32), rng.normal(0, 0.1, filters).astype(np.float32)]


def initial(rng: np.random.Generator) -> tuple[Params, Params]:
    """Parameters of ResNet-18 in the order of use, and running statistics."""
    out = conv_params(rng, 64, 3, 7)
    for c, o, stride in STAGES:
        out += conv_params(rng, o, c, 3) + conv_params(rng, o, o, 3) + (conv_params(rng, o, c, 1) if stride != 1 else [])
        out += conv_params(rng, o, o, 3) + conv_params(rng, o, o, 3)
    stats = [s for p in out if p.ndim == 4 for s in (rng.normal(0, 0.1, len(p)).astype(np.float32), rng.uniform(0.5, 1.5, len(p)).astype(np.float32))]
    return [*out, rng.standard_normal((1000, 512), dtype=np.float32) * np.float32(0.04), np.zeros(1000, np.float32)], stats


# ---- smaller image models ---------------------------------------------------------------------------------------------------------------

def separable(fn: Any, params: Sequence[Any], x: Any) -> Any:
    """MobileNet's block: widened sixfold by 1 x 1, 3 x 3 depthwise, narrowed by 1 x 1, added to x; the mean of squares."""
    p, wide = iter(params), params[0].shape[0]
    y = fn.relu(unit(fn, x, p, None, 1, 0))
    y = fn.relu(unit(fn, y, p, None, 1, 1, wide))
    return ((unit(fn, y, p, None, 1, 0) + x) ** 2).mean()


def separable_params(rng: np.random.Generator, channels: int) -> Params:
    """Parameters of the block."""
    wide = 6 * channels
    return [*conv_params(rng, wide, channels, 1), *conv_params(rng, wide, 1, 3), *conv_params(rng, channels, wide, 1)]


def _twice(fn: Any, x: Any, p: Any) -> Any:
    for _ in range(2):
        x = fn.relu(fn.conv2d(x, next(p), next(p), 1, 1))
    return x


def unet(fn: Any, cat: Any, params: Sequence[Any], x: Any) -> Any:
    """U-Net's output: four levels of two convolutions, halved by max pooling, doubled by transposed convolutions, joined across. ``cat``: joins two images by channel."""
    p, kept = iter(params), []
    for _ in UNET[:-1]:
        x = _twice(fn, x, p)
        kept.append(x)
        x = fn.max_pool2d(x, 2)
    x = _twice(fn, x, p)
    for skip in reversed(kept):
        x = fn.conv_transpose2d(x, next(p), next(p), 2)
        x = _twice(fn, cat(skip, x), p)
    return fn.conv2d(x, next(p), next(p))


def unet_params(rng: np.random.Generator) -> Params:
    """Weights and biases in the order of use; three channels in, two out."""
    def one(*shape: int, fan: int) -> Any:
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(math.sqrt(2 / fan))

    def twice(c: int, o: int) -> Params:
        return [one(o, c, 3, 3, fan=9 * c), one(o, fan=100), one(o, o, 3, 3, fan=9 * o), one(o, fan=100)]

    out = [x for c, o in zip((3, *UNET), UNET) for x in twice(c, o)]
    for low, high in zip(reversed(UNET), reversed(UNET[:-1])):
        out += [one(low, high, 2, 2, fan=4 * low), one(high, fan=100), *twice(2 * high, high)]
    return [*out, one(2, UNET[0], 1, 1, fan=UNET[0]), one(2, fan=100)]


# ---- a transformer's block --------------------------------------------------------------------------------------------------------------

def gpt_block(fn: Any, params: Sequence[Any], x: Any, heads: int) -> Any:
    """Layer norm, causal attention, layer norm, a hidden layer four times as wide with gelu; each half is added to its input."""
    b, t, d = x.shape
    g1, c1, w_qkv, b_qkv, w_out, b_out, g2, c2, w_up, b_up, w_down, b_down = params
    qkv = fn.linear(fn.layer_norm(x, (d,), g1, c1), w_qkv, b_qkv).reshape(b, t, 3, heads, d // heads)
    q, k, v = (qkv[:, :, i].swapaxes(1, 2) for i in range(3))
    a = fn.scaled_dot_product_attention(q, k, v, is_causal=True).swapaxes(1, 2).reshape(b, t, d)
    x = x + fn.linear(a, w_out, b_out)
    h = fn.gelu(fn.linear(fn.layer_norm(x, (d,), g2, c2), w_up, b_up), approximate="tanh")
    return x + fn.linear(h, w_down, b_down)


def gpt_params(rng: np.random.Generator, d: int) -> Params:
    """The block's parameters in the order of use."""
    def weight(o: int, i: int) -> Any:
        return rng.standard_normal((o, i), dtype=np.float32) * np.float32(i**-0.5)

    def vector(n: int, around: float = 0.0) -> Any:
        return (around + 0.1 * rng.standard_normal(n, dtype=np.float32)).astype(np.float32)

    return [vector(d, 1.0), vector(d), weight(3 * d, d), vector(3 * d), weight(d, d), vector(d), vector(d, 1.0), vector(d), weight(4 * d, d), vector(4 * d),
            weight(d, 4 * d), vector(d)]
