"""``grad_fn._saved_*``: torch's names, values and errors."""

from __future__ import annotations

import pytest

import aotgrad as ag
from aotgrad.frontend import quick

torch = pytest.importorskip("torch")

# the line, and the attributes to compare
LINES = {
    "x * y": "self other", "x * d": "self other", "x * 2.0": "self other", "x + y": "alpha self", "x - y": "alpha", "x / y": "other", "x ** 2": "self exponent",
    "x ** y": "self exponent result", "2 ** x": "exponent result self", "x.exp()": "result self", "x.log()": "self", "x.sum()": "self self_sym_sizes",
    "M.sum(0)": "dim keepdim self_sym_sizes", "M.mean(1, True)": "dim keepdim self_sym_sizes self_sym_numel", "M.softmax(1)": "dim result",
    "M.log_softmax(1)": "dim result", "M.transpose(0, 1)": "dim0 dim1", "M.view(3, 2)": "self_sym_sizes", "M @ M.t()": "self", "x.clamp(0, 1.5)": "min max self",
    "x.tanh()": "result", "x.relu()": "result", "x.sigmoid()": "result", "x.sqrt()": "result", "m.where(x > 1, x, y)": "condition", "x.abs()": "self",
    "m.maximum(x, y)": "self other", "x.cumsum(0)": "dim", "x.gather(0, m.tensor([0]))": "dim index", "m.atan2(x, y)": "self other", "x.unsqueeze(0)": "dim",
    "x.neg()": "self result", "x.sin()": "self nonsense",
}


def _shown(m, line, name):
    x, y, M = (m.tensor(v, requires_grad=True) for v in ([1.0, 2.0], [3.0, 4.0], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    node = eval(line, {"m": m, "x": x, "y": y, "M": M, "d": m.tensor([3.0, 4.0])}).grad_fn
    try:
        found = getattr(node, f"_saved_{name}")
    except AttributeError:
        return "no such attribute"
    if hasattr(found, "grad_fn"):
        kind = "x" if found is x else "y" if found is y else "M" if found is M else type(found.grad_fn).__name__
        return [round(v, 5) for v in found.detach().reshape(-1).tolist()], kind, found.requires_grad
    return tuple(found) if isinstance(found, (tuple, list)) else found


@pytest.mark.parametrize("line", LINES)
def test_names_and_values(line):
    for name in LINES[line].split():
        assert _shown(ag, line, name) == _shown(torch, line, name), name


def test_after_the_graph_is_freed():
    kinds = []
    for m in (torch, ag):
        x, y = (m.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
        out = (x * y).sum()
        node = out.grad_fn.next_functions[0][0]
        assert node._saved_other is y
        out.backward()
        with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time") as info:
            node._saved_self  # noqa: B018
        kinds.append(isinstance(info.value, RuntimeError))
    assert kinds == [True, True]


FREED_LINES = [
    "M.sum(0)", "M.mean(1, True)", "x * y", "x + y", "x ** 2", "x ** y", "x.exp()", "M.softmax(1)", "M.transpose(0, 1)", "M.view(3, 2)", "x.clamp(0, 1.5)", "x.cumsum(0)",
    "M.index_select(0, m.tensor([0]))", "M.logsumexp(0)", "x.unsqueeze(0)", "m.where(x > 1, x, y)", "M.amax(0)", "M.flip([0])"]


def _freed(m, line):
    """What can be read of a node before and after its graph is freed, and whether a second pass runs."""
    x, y, M = (m.tensor(v, requires_grad=True) for v in ([1.0, 2.0], [3.0, 4.0], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    out = eval(line, {"m": m, "x": x, "y": y, "M": M})
    node, total, found = out.grad_fn, out.sum(), {}
    total.backward()
    for name in ("self", "other", "exponent", "result", "dim", "keepdim", "alpha", "min", "index", "condition", "self_sym_sizes", "dim0", "dims"):
        try:
            value = getattr(node, f"_saved_{name}")
            found[name] = tuple(value) if isinstance(value, (tuple, list)) else value
        except RuntimeError:
            found[name] = "freed"
        except AttributeError:
            found[name] = "no such attribute"
    try:
        total.backward()
        found["again"] = True
    except RuntimeError:
        found["again"] = False
    return found


@pytest.mark.parametrize("line", FREED_LINES)
def test_what_is_left_after_the_graph_is_freed(line, monkeypatch):
    monkeypatch.setattr(quick, "HOT", 2)
    theirs = _freed(torch, line)
    for _ in range(4):  # the last ones are short calls
        ours = _freed(ag, line)
        extra = {k for k in theirs if theirs[k] == "no such attribute"}  # the derivative here saves other tensors, see the documentation
        assert {k: v for k, v in ours.items() if k not in extra and k != "dim"} == {k: v for k, v in theirs.items() if k not in extra and k != "dim"}
        assert ours["dim"] == theirs["dim"] or ours["dim"] == -1 or theirs["dim"] > 1 << 40


@pytest.mark.parametrize("line", ["x.sum()", "(x + 1).sum()", "x.mean()", "x[0].sum()", "x.reshape(-1).sum()", "m.cat([x, x]).sum()", "(-x).sum()", "x.double().sum()",
                                  "x.cumsum(0).sum()", "x.clone().sum()", "x.exp().sum()", "(x * x).sum()", "x.relu().sum()", "x.max()"])
def test_where_nothing_is_saved_a_graph_runs_again(line):
    found = []
    for m in (torch, ag):
        x = m.ones(2, 3, requires_grad=True)
        out = eval(line, {"m": m, "x": x})
        out.backward()
        try:
            out.backward()
            found.append(x.grad.tolist())
        except RuntimeError:
            found.append("freed")
    assert found[0] == found[1]


def test_calls_that_became_kernels_show_the_same():
    x, y = (ag.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    for _ in range(400):
        z, w, s = x * y, x.exp(), x + y
    assert z.grad_fn._saved_other is y
    assert z.grad_fn._saved_self is x
    assert w.grad_fn._saved_result.tolist() == w.tolist()
    assert w.grad_fn._saved_result.grad_fn is w.grad_fn
    assert s.grad_fn._saved_alpha == 1
    assert {"_saved_self", "_saved_other"} <= set(dir(z.grad_fn))
    assert not hasattr(z.grad_fn, "variable")


def test_saved_tensor_hooks_are_seen_through():
    x = ag.tensor([1.0, 2.0], requires_grad=True)
    with ag.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        y = x * x
    assert y.grad_fn._saved_self.tolist() == [2.0, 4.0]
