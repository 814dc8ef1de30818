"""Trains the classifier with one compiled step: loss, gradient and update are a single native function."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import aotgrad as ag

from .data import one_hot
from .models import initial, logits, loss
from .progress import Progress

__all__ = ["Trained", "predict", "train", "train_step"]

BATCH, RATE, MOMENTUM = 128, 0.1, 0.9


@dataclass
class Trained:
    """Weights, and per epoch the mean training loss and the held-back error (share of wrong answers)."""

    params: list[Any]
    losses: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    steps: int = 0


@ag.compile
def train_step(params: Any, velocity: Any, x: Any, y: Any, rate: float, momentum: float) -> Any:
    """One step of gradient descent with momentum; gives new weights, new velocity and the loss."""
    value, grads = ag.value_and_grad(loss)(params, x, y)
    velocity = [momentum * v - rate * g for v, g in zip(velocity, grads)]
    return [p + v for p, v in zip(params, velocity)], velocity, value


@ag.compile
def predict(params: Any, x: Any) -> Any:
    """The most likely digit of each image x [n, 64]."""
    return np.argmax(logits(params, x), axis=1)


def train(images: Any, labels: Any, rows: Any, held_back: Any, epochs: int, seed: int = 0) -> Trained:
    """Trains on ``images[rows]`` for ``epochs`` passes and measures on ``images[held_back]`` after each."""
    rng = np.random.default_rng(seed)
    targets = one_hot(labels)
    result = Trained(initial(seed))
    velocity = [np.zeros_like(p) for p in result.params]
    with Progress("training", epochs) as bar:
        for epoch in range(epochs):
            rate = RATE * 0.5 * (1 + np.cos(np.pi * epoch / epochs))
            losses = []
            order = rng.permutation(rows)
            for start in range(0, len(order), BATCH):
                batch = order[start : start + BATCH]
                result.params, velocity, value = train_step(result.params, velocity, images[batch], targets[batch], float(rate), MOMENTUM)
                losses.append(float(value))
            result.steps += len(losses)
            result.losses.append(float(np.mean(losses)))
            result.errors.append(float(np.mean(predict(result.params, images[held_back]) != labels[held_back])))
            bar.step(f"loss {result.losses[-1]:.4f}, {100 * (1 - result.errors[-1]):.1f} % right")
    return result
