"""Models written in NCHW beside the same in channels_last (images and weights), by aotgrad alone: what the choice of layouts leaves between them.

ResNet-18's inference and training step, and value and gradients of a U-Net. Inference has its weights in tensors, which are packed once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import aotgrad as ag

from .. import models, training
from ..harness import OURS, Bench, Candidate
from .blocks import unet_value

LIMIT = 3.0  # per cent beyond the A/A spread
TOLERANCE, DEEP = 1e-4, 2e-2  # as in ``resnet``: the deepest gradients turn on which side of 0 single elements fall
WRITTEN = "aotgrad, written in NCHW"


def run(bench: Bench) -> None:
    """ResNet-18 and a U-Net, one image and several."""
    rng = np.random.default_rng(0)
    params, stats = models.initial(rng)
    unet = models.unet_params(rng)
    for batch in (1,) if bench.quick else (1, 16):
        x = rng.standard_normal((batch, 3, 224, 224), dtype=np.float32)
        labels = rng.integers(0, 1000, batch)
        _inference(bench, params, stats, x)
        steps = [training.own_state([turned(p) for p in params], turned(x), labels), training.own_state(params, x, labels)]
        shown = [_first(step()) for step in steps]
        _compare(bench, f"ResNet-18, training step, batch {batch}", [(f, (), lambda _, v=v: v) for f, v in zip(steps, shown)], DEEP)
    for batch in (1,) if bench.quick else (1, 4):
        x = rng.standard_normal((batch, 3, 128, 128), dtype=np.float32)
        f = ag.compile(_unet)
        _compare(bench, f"U-Net @ 128, value and gradients, batch {batch}", [(f, ([turned(p) for p in unet], turned(x)), _flat), (f, (unet, x), _flat)], DEEP)


def turned(x: Any) -> Any:
    """An image or its weights in channels_last; all else as it is."""
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) if x.ndim == 4 else x


def _inference(bench: Bench, params: Any, stats: Any, x: Any) -> None:
    found = []
    running = [ag.tensor(a) for a in stats]
    for turn in (turned, lambda a: a):
        weights, image = [ag.as_tensor(turn(p)).clone() for p in params], ag.as_tensor(turn(x)).clone()
        found.append((_logits(weights, running), (image,), lambda out: [out.numpy()]))
    _compare(bench, f"ResNet-18, inference, batch {len(x)}", found, TOLERANCE)


def _logits(weights: Any, running: Any) -> Any:
    return ag.compile(lambda x: models.resnet(ag.nn.functional, x, weights, running))


def _unet(params: Any, x: Any) -> Any:
    return ag.value_and_grad(lambda p, x: unet_value(ag.nn.functional, p, x), argnums=(0, 1))(params, x)


def _first(out: Any) -> Any:
    """The loss and the last velocity of a first step: they do not turn on single elements."""
    value, grads = out
    return [np.array(value), np.array(grads[-2])]


def _flat(out: Any) -> Any:
    value, (grads, gx) = out
    return [np.asarray(value), *(np.asarray(g) for g in grads), np.asarray(gx).mean((0, 2, 3))]


def _compare(bench: Bench, title: str, pair: Any, tolerance: float) -> None:
    last, first = (Candidate(name, f, values, args=args) for name, (f, args, values) in zip((OURS, WRITTEN), pair))
    rows = bench.case(title, [last, first], first.values(first.call(*first.args)), tolerance)
    bench.excess(f"{title}: NCHW over channels_last", rows[WRITTEN]["ratio"], rows, LIMIT)
