"""ResNet-18's training step (forward, backward, SGD with momentum) by each library; each function gives a call that makes one step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import aotgrad as ag

from . import models, peers
from .models import Params

RATE, MOMENTUM = 0.01, 0.9


def own_step(params: Params, velocity: Params, x: Any, labels: Any) -> Any:
    """One step, which writes to the parameters and velocities. Gives the loss."""
    value, grads = ag.value_and_grad(lambda p: models.loss(ag.nn.functional, p, x, labels))(params)
    for p, v, g in zip(params, velocity, grads):
        v *= MOMENTUM
        v += g
        p -= RATE * v
    return value


def own_state(params: Params, x: Any, labels: Any) -> Callable[[], Any]:
    """Steps one after the other; each gives the loss and the velocities."""
    f = ag.compile(own_step, donate=("params", "velocity"))
    state = [[p.copy() for p in params], [np.zeros_like(p) for p in params]]
    return lambda: (f(*state, x, labels), state[1])


def torch_step(torch: Any, params: Params, x: Any, labels: Any, last: bool, compiled: bool = False) -> Callable[[], Any]:
    """A step as users write it, with torch's own optimiser (all parameters in a few calls). Gives the loss and the gradients."""
    leaves = [p.requires_grad_() for p in peers.tensors(torch, params, last)]
    (image,), target = peers.tensors(torch, [x], last), torch.from_numpy(labels)
    optimiser = torch.optim.SGD(leaves, lr=RATE, momentum=MOMENTUM, foreach=True)
    value_of = (lambda p, image, target: models.loss(torch.nn.functional, p, image, target))
    if compiled:
        value_of = torch.compile(value_of, dynamic=False)

    def one() -> Any:
        optimiser.zero_grad(set_to_none=True)
        value = value_of(leaves, image, target)
        value.backward()
        optimiser.step()
        return value, [p.grad for p in leaves]

    return one


def jax_step(params: Params, x: Any, labels: Any, last: bool) -> Callable[[], Any]:
    """Steps of one jitted function, which may write into the memory of its arguments."""
    j = peers.Jax(last)

    def step(params: Any, velocity: Any, x: Any, labels: Any) -> Any:
        value, grads = j.jax.value_and_grad(lambda p: models.loss(j, p, x, labels))(params)
        velocity = [MOMENTUM * v + g for v, g in zip(velocity, grads)]
        return value, [p - RATE * v for p, v in zip(params, velocity)], velocity

    f, image, target = j.jax.jit(step, donate_argnums=(0, 1)), j.image(x), j.np.asarray(labels)
    state = [[j.np.asarray(p.copy()) for p in params], [j.np.zeros_like(p) for p in params]]

    def one() -> Any:
        value, *state[:] = j.jax.block_until_ready(f(*state, image, target))
        return value, state[1]

    return one
