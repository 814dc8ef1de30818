"""A compiled gradient and Hessian-vector product for scipy.optimize: Rosenbrock's function of 200 variables by a truncated Newton method."""

import sys

import numpy as np

try:
    from scipy.optimize import minimize
except ImportError:
    sys.exit("this example needs SciPy: pip install scipy")

import aotgrad as ag


def rosenbrock(x):
    return np.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


value_and_gradient = ag.compile(ag.value_and_grad(rosenbrock))
hessian_times = ag.compile(lambda x, v: ag.hvp(rosenbrock, x, v))

found = minimize(value_and_gradient, np.zeros(200), jac=True, hessp=hessian_times, method="trust-ncg", options={"maxiter": 1000})
print(f"{found.message} value {found.fun:.1e} after {found.nit} iterations, largest error {np.max(np.abs(found.x - 1)):.1e}")
assert np.allclose(found.x, 1, atol=1e-4)
