"""Complex tensors: parts and conjugates are right, what has no meaning or no right derivative is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aotgrad as ag

C = np.array([[1 + 2j, 3j], [-1 - 1j, 0.5]])


@pytest.mark.parametrize("f", [lambda x, m: x.real, lambda x, m: m.real(x), lambda x, m: m.imag(x), lambda x, m: x.conj(), lambda x, m: m.conj(x), lambda x, m: x.imag,
                               lambda x, m: x + x, lambda x, m: x * x, lambda x, m: x / (x + 1), lambda x, m: -x, lambda x, m: x == x, lambda x, m: m.stack([x, x])])
def test_values(f: Any) -> None:
    np.testing.assert_allclose(f(ag.tensor(C), ag).numpy(), f(C, np), rtol=1e-6)


@pytest.mark.parametrize("f", [np.real, np.imag, np.conjugate, np.conj])
def test_numpys_functions(f: Any) -> None:
    np.testing.assert_array_equal(np.asarray(f(ag.tensor(C)).numpy()), f(C).astype(f(C).dtype))
    np.testing.assert_array_equal(f(ag.tensor(C.real)).numpy(), f(C.real))


def test_the_conjugate_transpose() -> None:
    np.testing.assert_array_equal(ag.tensor(C).H.numpy(), C.conj().T)


def test_parts_of_what_is_real() -> None:
    x = ag.tensor([1.0, 2.0])
    assert x.real is x and x.conj() is x
    with pytest.raises(RuntimeError, match="imag"):
        _ = x.imag


@pytest.mark.parametrize("f", [lambda t: t.reciprocal(), lambda t: t.sort(), lambda t: t.argsort(), lambda t: t.argmax(), lambda t: t.argmin(0), lambda t: t.median(),
                               lambda t: t.lt(t), lambda t: t >= 1, lambda t: t.signbit(), lambda t: ag.heaviside(t, t), lambda t: t.topk(1), lambda t: t.max(),
                               lambda t: t.clamp(0, 1), lambda t: t.unique(), lambda t: t.relu(), lambda t: t.kthvalue(1), lambda t: ag.maximum(t, t)])
def test_what_has_no_meaning_is_refused(f: Any) -> None:
    with pytest.raises(ag.AotgradError):
        f(ag.tensor(C))


def test_gradients_are_right_or_refused() -> None:
    t, ones = ag.tensor(C, requires_grad=True), ag.ones(2, 2, dtype=ag.complex128)
    (g,) = ag.autograd.grad((-t + t.T).reshape(4), t, ones.reshape(4))
    np.testing.assert_array_equal(g.numpy(), np.zeros((2, 2)))
    for f in (lambda t: t * t, lambda t: ag.tensor(C) / t, lambda t: t * ag.tensor(C), lambda t: t.real, lambda t: t.conj(), lambda t: 1 / t):
        with pytest.raises(ag.AotgradError):
            ag.autograd.grad(f(t), t, ones)
