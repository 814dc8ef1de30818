"""Corners of the tape's contract beside torch: deep copies that share memory, forward over reverse through custom rules, duals in traces, printing."""

from __future__ import annotations

import copy

import pytest

import aotgrad as ag

needs_torch = pytest.mark.skipif(__import__("importlib.util").util.find_spec("torch") is None, reason="torch is not installed")


def _modules():
    return [__import__("torch"), ag]


# ---- deep copies ------------------------------------------------------------------------------------------------------------------------

def _boxes(m):
    x = m.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    w = m.tensor([1.0, 2.0], requires_grad=True)
    last = m.ones(1, 2, 2, 2).contiguous(memory_format=m.channels_last)
    return {"x": x, "row": x[1], "turned": x.t(), "part": x[:, 1:], "again": x, "w": w, "w too": w.detach(), "every other": x.view(-1)[::2],
            "last": last, "of last": last[0, 1]}


@needs_torch
def test_deepcopy_shares_memory_as_the_original_does():
    seen = []
    for m in _modules():
        box = _boxes(m)
        made = copy.deepcopy(box)
        made["x"][1, 2] = 99.0
        made["row"][0] = 77.0
        made["w too"][0] = 5.0
        made["of last"][0, 0] = 6.0
        seen.append({k: (v.tolist(), v.stride(), v.requires_grad) for k, v in (*made.items(), *((f"old {k}", v) for k, v in box.items()))})
        assert made["again"] is made["x"]
        assert made["w"].is_leaf
    assert seen[0] == seen[1]


def test_deepcopy_of_empty_and_expanded_tensors():
    empty, wide = copy.deepcopy([ag.ones(0, 3), ag.ones(1, 3).expand(2, 3)])
    assert empty.shape == (0, 3)
    assert wide.tolist() == [[1.0] * 3] * 2


# ---- forward over reverse -----------------------------------------------------------------------------------------------------------------

def _square(m):
    class Square(m.autograd.Function):
        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g

        @staticmethod
        def jvp(ctx, t):
            (x,) = ctx.saved_tensors
            return 2 * x * t

    return Square.apply


@needs_torch
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forward_over_reverse_with_a_function_of_ones_own():
    seen = []
    for m in _modules():
        square, fa = _square(m), m.autograd.forward_ad
        with fa.dual_level():
            x = m.tensor([1.0, 2.0], requires_grad=True)
            dual = fa.make_dual(x, m.tensor([1.0, 0.5]))
            out = (square(dual) * dual).sum()
            (grad,) = m.autograd.grad(out, x, create_graph=True)
            primal, tangent = fa.unpack_dual(grad)
            (again,) = m.autograd.grad(tangent.sum(), x)
        seen.append((primal.tolist(), tangent.tolist(), again.tolist()))
    assert seen[0] == seen[1] == ([3.0, 12.0], [6.0, 6.0], [6.0, 3.0])


def test_forward_over_reverse_with_custom_rules():
    @ag.custom_jvp
    def forward_only(x):
        return x ** 3

    @forward_only.defjvp
    def _(primals, tangents):
        return forward_only(primals[0]), 3 * primals[0] ** 2 * tangents[0]

    @ag.custom_vjp
    def reverse_only(x):
        return x ** 3

    reverse_only.defvjp(lambda x: (x ** 3, x), lambda x, g: (3 * x ** 2 * g,))
    for f in (forward_only, reverse_only):
        for how in (lambda g: g, ag.compile):
            value, tangent = how(lambda x, f=f: ag.jvp(ag.grad(lambda x: f(x) * x), (x,), (1.0,)))(2.0)
            assert (float(value), float(tangent)) == (32.0, 48.0)


@pytest.mark.parametrize("how", [ag.compile, ag.vmap])
def test_make_dual_in_a_trace_says_what_to_do(how):
    def f(x):
        with ag.autograd.forward_ad.dual_level():
            return ag.autograd.forward_ad.unpack_dual(ag.autograd.forward_ad.make_dual(x, x).sin()).tangent

    with pytest.raises(ag.AotgradTypeError, match=r"make_dual: the primal is traced; inside vmap and compiled functions use aotgrad.jvp"):
        how(f)(ag.tensor([0.0, 1.0]))
    assert ag.autograd.forward_ad.unpack_dual(ag.ones(1)).tangent is None  # no level is left open


# ---- printing -----------------------------------------------------------------------------------------------------------------------------

PRINTED = [
    "m.tensor([])", "m.zeros(0, 3)", "m.tensor(1.5)", "m.tensor(7)", "m.tensor(True)", "m.tensor([1, -20, 300])", "m.tensor([[1.0, float('nan')], [float('inf'), -2.5]])",
    "m.tensor([1e-8, 1.0, 1e8])", "m.ones(2, 3, dtype=m.float64)", "m.ones(2, dtype=m.float16)", "m.ones(2, dtype=m.int8)", "m.ones(2, dtype=m.uint8)",
    "m.ones(2, dtype=m.bfloat16)", "m.ones(2) > 0", "m.arange(2000)", "m.arange(2000.0).reshape(40, 50)", "m.ones(2, 2, 2)", "m.ones(1, 2, 0)",
    "m.ones(2, requires_grad=True)", "m.ones(2, requires_grad=True) * 2", "m.ones(2, 2, requires_grad=True)[0]", "m.ones(2, 2, requires_grad=True).t()",
    "m.ones(2, requires_grad=True).sum()", "m.ones(2, requires_grad=True).exp().grad_fn.name()", "m.ones(2, 3).size()", "m.ones(2).device", "m.channels_last",
    "m.ones(2, 3, requires_grad=True).max(1)", "m.autograd.forward_ad.unpack_dual(m.ones(2))", "m.finfo(m.float32)", "m.ones(2, requires_grad=True).softmax(0)",
    "m.nn.functional.conv2d(m.ones(1, 1, 2, 2, requires_grad=True), m.ones(1, 1, 1, 1))", "m.nn.functional.max_pool2d(m.ones(1, 1, 2, 2, requires_grad=True), 2)",
    "m.nn.functional.gelu(m.zeros(2))", "m.where(m.tensor([True, False]))", "f'{m.tensor(1.23456):.2f}'", "str(m.tensor([1.0]))", "m.tensor([0.1, 0.25])[:, None]",
]


@needs_torch
@pytest.mark.parametrize("line", PRINTED)
def test_printed_as_torch_prints(line):
    theirs, ours = (repr(eval(line, {"m": m})) for m in _modules())
    assert theirs.replace("torch.", "aotgrad.") == ours
