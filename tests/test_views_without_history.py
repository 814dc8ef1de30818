"""Views that were made while nothing was recorded: they require grad as what they show does, and no gradient comes of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from autograd_pair import f64, modules, outcome

import aotgrad as ag

VIEWS: dict[str, Callable[[Any, Any], Any]] = {
    "x[0]": lambda m, x: x[0], "x[:, 1:]": lambda m, x: x[:, 1:], "x[...]": lambda m, x: x[...], "x[None]": lambda m, x: x[None], "view": lambda m, x: x.view(6),
    "reshape": lambda m, x: x.reshape(3, 2), "flatten": lambda m, x: x.flatten(), "t": lambda m, x: x.t(), "T": lambda m, x: x.T, "mT": lambda m, x: x.mT,
    "transpose": lambda m, x: x.transpose(0, 1), "permute": lambda m, x: x.permute(1, 0), "movedim": lambda m, x: x.movedim(0, 1),
    "expand": lambda m, x: x.expand(2, 2, 3), "broadcast_to": lambda m, x: m.broadcast_to(x, (2, 2, 3)), "unsqueeze": lambda m, x: x.unsqueeze(0),
    "squeeze": lambda m, x: x.squeeze(), "narrow": lambda m, x: x.narrow(0, 0, 1), "select": lambda m, x: x.select(0, 0), "unbind": lambda m, x: x.unbind()[1],
    "split": lambda m, x: x.split(1)[0], "chunk": lambda m, x: x.chunk(2)[1], "diagonal": lambda m, x: x.diagonal(), "twice": lambda m, x: x.view(6)[1:].view(5, 1),
    "detach": lambda m, x: x.detach(), "data": lambda m, x: x.data, "contiguous": lambda m, x: x.contiguous(), "a copy": lambda m, x: x.t().contiguous(),
    "clone": lambda m, x: x.clone(), "x + 1": lambda m, x: x + 1, "x[[0, 1]]": lambda m, x: x[[0, 1]], "to": lambda m, x: x.to(m.float32),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_which_require_grad(view: str, mode: str) -> None:
    def lines(m: Any) -> Any:
        leaf = f64(m, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], True)
        found = []
        for x in (leaf, leaf * 2, f64(m, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])):
            for _ in range(15):  # calls that came before go another way
                with getattr(m, mode)():
                    y = VIEWS[view](m, x)
            found.append((y.requires_grad, y.is_leaf, y.grad_fn is None or y is x))
        return found

    wanted = outcome(ag, lines)
    assert wanted[0][0] == (view not in ("detach", "data", "a copy", "clone", "x + 1", "x[[0, 1]]", "to"))
    assert all(outcome(m, lines) == wanted for m in modules())


def made(m: Any) -> tuple[Any, Any]:
    leaf = f64(m, [1.0, 2.0, 3.0], True)
    with m.no_grad():
        return leaf, leaf[0:2]


def used(m: Any) -> Any:
    leaf, v = made(m)
    y = v * leaf[:2] * v
    edges = (v * v).grad_fn.next_functions
    y.sum().backward()
    return [leaf.grad.tolist(), v.grad is None, edges, m.cat([v, v]).grad_fn.next_functions, m.autograd.grad((v * 2).sum(), v, allow_unused=True)]


def switched(m: Any) -> Any:
    leaf, v = made(m)
    found = [v.requires_grad_(False).requires_grad]
    leaf.requires_grad_(False)
    found += [v.requires_grad, (v * 2).requires_grad]
    leaf.requires_grad_(True)
    found.append(v.requires_grad)
    v.requires_grad_(True)
    (v * 2).sum().backward()
    return [*found, v.grad.tolist(), leaf.grad is None]


def later(m: Any) -> Any:
    base = f64(m, [1.0, 2.0])
    v = base[:1]
    base.requires_grad_()
    return v.requires_grad, v.is_leaf, v.grad_fn, (v * 2).requires_grad


def passed_on(m: Any) -> Any:
    leaf, v = made(m)
    with m.no_grad():
        v.mul_(2)
        u, w = v[0:1], v * 2
    numbers, v = leaf.tolist(), made(m)[1]
    shown = v.view(2, 1)
    return [numbers, u.requires_grad, w.requires_grad, v.detach().requires_grad, copy.deepcopy(v).requires_grad, shown.is_leaf, shown.grad_fn.next_functions,
            repr(v).endswith("requires_grad=True)"), v.register_hook(print) is not None]


def written(m: Any) -> Any:
    _, v = made(m)
    v.add_(1)


def as_array(m: Any) -> Any:
    return made(m)[1].numpy()


def late_write(m: Any) -> Any:
    base = f64(m, [1.0, 2.0])
    v = base[:1]
    base.requires_grad_()
    v.add_(1)


def function(m: Any) -> Any:
    asked: list[Any] = []

    class Double(m.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            asked.append(ctx.needs_input_grad)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            asked.append("backward")
            return g * 2

    y = Double.apply(made(m)[1])
    y.sum().backward()
    return [y.requires_grad, asked]


@pytest.mark.parametrize("lines", [used, switched, later, passed_on, written, as_array, late_write, function], ids=lambda f: f.__name__)
def test_what_follows(lines: Callable[[Any], Any]) -> None:
    wanted = outcome(ag, lines, 40)
    assert (wanted[0] == "error") == (lines in (written, as_array, late_write)), wanted
    assert all(outcome(m, lines, 40) == wanted for m in modules())


def test_numbers_of_numpy_callers_stay_constants() -> None:
    def f(x: Any) -> Any:
        with ag.no_grad():
            v = x[0:1]
        return x.sum() * float(v[0])

    assert ag.grad(f)(np.array([2.0, 3.0])).tolist() == [2.0, 2.0]


def compiled(m: Any, f: Callable[..., Any]) -> Any:
    return ag.compile(f) if m is ag else f


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_results_of_compiled_functions(mode: str) -> None:
    """All of them at once, of an argument and of a computed value: what each requires, and what is computed from it in the function and outside."""
    names = [v for v in VIEWS if v not in ("contiguous", "x[...]")]  # those give the argument itself

    def lines(m: Any) -> Any:
        def f(x: Any) -> Any:
            h = x * 2
            with getattr(m, mode)():
                found = [VIEWS[v](m, of) for v in names for of in (x, h)]
            return h, found, [y * 3 for y in found if mode == "no_grad"], [y.requires_grad + 2 * y.is_leaf + 4 * (y.grad_fn is None) for y in found]

        g, seen = compiled(m, f), []
        for grad in (True, False):
            x = f64(m, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], grad)
            for _ in range(3):
                h, views, later, flags = g(x)
            for y in views:
                kept = (y * 2).grad_fn.next_functions[0] if y.requires_grad and mode == "no_grad" else None
                seen.append((y.requires_grad, y.is_leaf, y.grad_fn is None, kept))
            seen += [(y.requires_grad, y.is_leaf, y.grad_fn is None, y) for y in later]
            seen.append(flags)
            if grad:
                h.sum().backward()
                seen.append(x.grad)
        return seen

    wanted = outcome(ag, lines)
    assert wanted[0][0] and wanted[0] != "error"
    assert all(outcome(m, lines) == wanted for m in modules())


def test_gradients_that_are_not_there_in_compiled_functions() -> None:
    def lines(m: Any) -> Any:
        def f(x: Any, y: Any) -> Any:
            with m.no_grad():
                v = x[0:1]
            return v * y + x.detach()[1:] * y

        g, x, y = compiled(m, f), f64(m, [1.0, 2.0], True), f64(m, [3.0], True)
        g(x, y).backward()
        z = f64(m, [1.5], True)
        compiled(m, lambda z: z.floor() * 2)(z).backward()
        return x.grad is None, y.grad, z.grad

    assert all(outcome(m, lines) == (True, [3.0], [0.0]) for m in modules())


def test_gradients_that_are_zero_are_there() -> None:
    def lines(m: Any) -> Any:
        x = f64(m, 2.0, True)
        m.softmax(x, 0).backward()  # of one number: its result does not depend on it
        return x.grad

    assert all(outcome(m, lines) == 0.0 for m in modules())
