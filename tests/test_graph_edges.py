"""Edges of the graph in the place of tensors, dicts of inputs; beside torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from autograd_pair import f64, same

import aotgrad as ag

Lines = Callable[[Any], Any]


def _edges(m: Any) -> Any:
    x = f64(m, [1.0, 2.0], True)
    y = x * x
    return x, y, m.autograd.graph.get_gradient_edge(y)


def out_of_an_edge(m: Any) -> Any:
    x, _, edge = _edges(m)
    return m.autograd.grad([edge], [x], grad_outputs=[f64(m, [1.0, 10.0])])


def edge_and_tensor(m: Any) -> Any:
    x, y, edge = _edges(m)
    return m.autograd.grad([edge, (y * 3).sum()], [x, edge], grad_outputs=[f64(m, [1.0, 10.0]), None])


def backward_from_an_edge(m: Any) -> Any:
    x, _, edge = _edges(m)
    m.autograd.backward([edge], [f64(m, [1.0, 10.0])])
    return x.grad


def output_of_several(m: Any) -> Any:
    x = f64(m, [3.0, 1.0, 2.0], True)
    edge = m.autograd.graph.get_gradient_edge(x.split([1, 2])[1])
    return edge.output_nr, m.autograd.grad([edge], [x], grad_outputs=[f64(m, [1.0, 10.0])])


def edge_of_a_leaf(m: Any) -> Any:
    x = f64(m, [1.0, 2.0], True)
    edge = m.autograd.graph.get_gradient_edge(x)
    return m.autograd.grad([edge], [edge], grad_outputs=[f64(m, [1.0, 10.0])])


def hooks_on_the_way(m: Any) -> Any:
    x, y, edge = _edges(m)
    y.register_hook(lambda g: g * 2)
    y.retain_grad()
    m.autograd.backward([edge], [f64(m, [1.0, 10.0])], retain_graph=True)
    (g,) = m.autograd.grad([edge], [x], grad_outputs=[f64(m, [1.0, 10.0])], create_graph=True)
    return x.grad, y.grad, m.autograd.grad(g.sum(), x)


def inputs_by_name(m: Any) -> Any:
    x, w = f64(m, [1.0, 2.0], True), f64(m, 3.0, True)
    found = m.autograd.grad((x * x * w).sum(), {"x": x, "w": w})
    return sorted(found), found["x"], found["w"], type(found).__name__


@pytest.mark.parametrize("lines", [out_of_an_edge, edge_and_tensor, backward_from_an_edge, output_of_several, edge_of_a_leaf, hooks_on_the_way, inputs_by_name],
                         ids=lambda f: f.__name__)
def test_as_torch(lines: Lines) -> None:
    result = same(lines)
    assert result[0] != "error"


def freed(m: Any) -> Any:
    x, _, edge = _edges(m)
    for _ in range(2):
        m.autograd.grad([edge], [x], grad_outputs=[f64(m, [1.0, 10.0])])


@pytest.mark.parametrize("lines", [freed, lambda m: m.autograd.grad([_edges(m)[2]], [_edges(m)[0]]), lambda m: m.autograd.backward([_edges(m)[2]])],
                         ids=["freed", "grad without a gradient", "backward without a gradient"])
def test_errors(lines: Lines) -> None:
    assert same(lines)[0] == "error"


def test_an_output_that_is_not_there() -> None:
    x, y, _ = _edges(ag)
    with pytest.raises(IndexError, match="output 1 of MulBackward0, which has 1"):
        ag.autograd.grad([(y.grad_fn, 1)], [x], grad_outputs=[y])


def test_compiled_calls_have_edges() -> None:
    x = f64(ag, [1.0, 2.0], True)
    edge = ag.autograd.graph.get_gradient_edge(ag.compile(lambda v: v * v)(x))
    (g,) = ag.autograd.grad([edge], {"x": x}, grad_outputs=[f64(ag, [1.0, 10.0])]).values()
    assert g.tolist() == [2.0, 40.0]
    named = ag.compile(lambda v: ag.autograd.grad((v * v).sum(), {"v": v})["v"])
    assert named(x).tolist() == [2.0, 4.0]
