"""Nonlinear least squares by Levenberg and Marquardt's method on a compiled residual and Jacobian."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import aotgrad as ag

from .models import residuals

__all__ = ["Fit", "fit", "grid", "residual_and_jacobian"]

START = (0.8, 3.5, 3.5, 1.0, 0.2, 0.1, 0.05)
MAX_STEPS = 60


@dataclass
class Fit:
    """Parameters, the root mean square residual, and how often the Jacobian was computed."""

    params: Any
    rms: float
    jacobians: int


@ag.compile
def residual_and_jacobian(p: Any, u: Any, v: Any, z: Any) -> Any:
    """Residuals [64] and their Jacobian [64, 7] with respect to p [7]."""
    return residuals(p, u, v, z), ag.jacfwd(residuals)(p, u, v, z)


def grid() -> tuple[Any, Any]:
    """Column and row of each of the 64 pixels."""
    v, u = np.mgrid[0:8, 0:8].astype(np.float64)
    return u.ravel(), v.ravel()


def fit(image: Any, start: Any = START) -> Fit:
    """The tilted Gaussian nearest to ``image`` [64]."""
    u, v = grid()
    z = np.asarray(image, np.float64)
    p = np.array(start, np.float64)
    damping = 1e-2
    r, j = residual_and_jacobian(p, u, v, z)
    count = 1
    cost = r @ r
    for _ in range(MAX_STEPS):
        h = j.T @ j
        step = np.linalg.solve(h + damping * np.diag(np.diag(h) + 1e-9), -(j.T @ r))
        new_r, new_j = residual_and_jacobian(p + step, u, v, z)
        count += 1
        new_cost = new_r @ new_r
        if new_cost < cost:
            done = cost - new_cost < 1e-10 * cost
            p, r, j, cost, damping = p + step, new_r, new_j, new_cost, damping / 3
            if done:
                break
        else:
            damping *= 4
            if damping > 1e12:
                break
    return Fit(p, float(np.sqrt(cost / z.size)), count)
