"""Programs that a Python loop wrote out: tiny arrays become numbers, and what is compiled grows with the steps and no faster."""

from __future__ import annotations

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.codegen.lower import lower
from aotgrad.codegen.target import Target
from aotgrad.ir import walk


def pendulum(y):
    return np.stack([y[1], -np.sin(y[0])])


def lorenz(y):
    return np.stack([10.0 * (y[1] - y[0]), y[0] * (28.0 - y[2]) - y[1], y[0] * y[1] - 8.0 / 3.0 * y[2]])


def lorenz_in_place(y):
    out = ag.zeros(3, dtype=ag.float64)
    out[0] = 10.0 * (y[1] - y[0])
    out[1] = y[0] * (28.0 - y[2]) - y[1]
    out[2] = y[0] * y[1] - 8.0 / 3.0 * y[2]
    return out


def orbit(y):
    r = (y[0] * y[0] + y[1] * y[1]) ** 1.5
    return np.concatenate([y[2:], -y[:2] / r])


START = {pendulum: [1.0, 0.5], lorenz: [1.0, 1.5, 2.0], lorenz_in_place: [1.0, 1.5, 2.0], orbit: [1.0, 0.1, 0.2, 0.9]}


def runge_kutta(f, steps, h=0.01):
    def run(y):
        for _ in range(steps):
            k1 = f(y)
            k2 = f(y + h / 2 * k1)
            k3 = f(y + h / 2 * k2)
            k4 = f(y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return (y * y).sum()

    return run


def sizes(f, steps):
    """Ops of the program before code generation, ops of its kernels, and loops among them."""
    func = ag.compile(ag.value_and_grad(runge_kutta(f, steps))).trace(np.array(START[f]))
    ops = [op for k in lower(func, "f", Target.native()).funcs for op in walk(k.body)]
    return len(func.body.ops), len(ops), sum(op.name == "scf.for" for op in ops)


@pytest.mark.parametrize("f", START)
def test_twice_the_steps_are_twice_the_program(f):
    few, many = sizes(f, 6), sizes(f, 12)
    for a, b in zip(few[:2], many[:2]):
        assert b < 2.05 * a
    assert few[2] == many[2] == 0  # numbers in registers, no loops over tiny arrays


def test_beyond_the_length_of_short_blocks():
    program, kernels, loops = sizes(lorenz, 24)
    assert program > 5000 and kernels > 5000 and loops == 0


@pytest.mark.parametrize("f", START)
def test_values_and_gradients(f):
    run, y = runge_kutta(f, 10), np.array(START[f])
    value, gradient = ag.compile(ag.value_and_grad(run))(y)
    expected = run(ag.tensor(y)).item() if f is lorenz_in_place else run(y)
    assert value == pytest.approx(expected, rel=1e-12)
    for i in range(len(y)):
        step = 1e-6 * np.eye(len(y))[i]
        up, down = (float(run(ag.tensor(y + s))) for s in (step, -step))
        assert gradient[i] == pytest.approx((up - down) / 2e-6, rel=1e-6, abs=1e-6)


def test_wide_rows_stay_vectors():
    """Eight numbers a row: a loop's one instruction does what eight scalars would."""
    def run(x):
        for _ in range(600):
            x = x * 1.5 + 0.25
        return x

    func = ag.compile(run).trace(np.ones((1, 8)))
    fixed = ag.compile(lambda x: run(ag.reshape(x, (1, 8)))).trace(np.ones(8))
    for f in (func, fixed):
        kernels = lower(f, "f", Target.native()).funcs
        assert sum(len(list(walk(k.body))) for k in kernels) < 8 * 1200
