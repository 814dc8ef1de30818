"""Corners of the tape's contract beside torch: deep copies that share memory, forward over reverse through custom rules, duals in traces, printing."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
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


# ---- modes, retained gradients, saved tensors, copies -------------------------------------------------------------------------------------

def _modes(m):
    x = m.tensor([1.0, 2.0], requires_grad=True)
    with m.inference_mode():
        with m.enable_grad():
            a = x * 2
        with m.set_grad_enabled(True):
            b = x * 2
        with m.inference_mode(False):
            c = x * 2
    return [(t.requires_grad, t.is_inference()) for t in (a, b, c)]


def _retained(m):
    """The gradient of the newest value, whichever way it was written."""
    x = m.tensor([1.0, 2.0, 3.0], requires_grad=True)
    a, b, c, d = (x * 2 for _ in range(4))
    part, whole = b[1:], c[1:]
    for t in (a, part, c, d):
        t.retain_grad()
    a.mul_(3)
    b.mul_(3)
    whole.mul_(3)
    with m.no_grad():
        d.mul_(3)
    (a * a + b * b + c * c + d * d).sum().backward()
    return [t.tolist() for t in (a.grad, c.grad, d.grad, x.grad)] + [part.retains_grad]


def _part_of_base(m):
    x = m.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = x * 2
    part = y[1:]
    part.retain_grad()
    y.mul_(3)
    (part * part).sum().backward()
    return part.grad.tolist(), x.grad.tolist()


def _type(f):
    try:
        return f()
    except Exception as error:
        return [kind for kind in (TypeError, RuntimeError) if isinstance(error, kind)]


def _bad_hooks(m):
    x = m.tensor([1.0, 2.0], requires_grad=True)
    y = x * 2
    y.grad_fn.register_hook(lambda gi, go: (3, None))
    x.register_post_accumulate_grad_hook(lambda t: t)
    first = _type(lambda: y.sum().backward()), _type(lambda: (x * 3).sum().backward())
    x.register_post_accumulate_grad_hook(lambda t: 3)
    return *first, _type(lambda: (x * 3).sum().backward()), x.grad.tolist()


def _copies(m):
    p = m.nn.Parameter(m.ones(2))
    p.sum().backward()
    with m.autograd.forward_ad.dual_level():
        d = m.autograd.forward_ad.make_dual(m.ones(2), m.ones(2))
        duals = [m.autograd.forward_ad.unpack_dual(t).tangent for t in (copy.deepcopy(d), copy.deepcopy([d])[0])]
    node = (p * 2).grad_fn
    return copy.deepcopy(p).grad, duals, [_type(lambda f=f: f(node)) for f in (copy.copy, copy.deepcopy, pickle.dumps)]


def _gradient_of_a_tangent(m):
    fw, x = m.autograd.forward_ad, m.tensor([1.0, 2.0], requires_grad=True)
    with fw.dual_level():
        d = fw.make_dual(x, m.tensor([3.0, 4.0]))
        y = d * d * d
        t = fw.unpack_dual(y).tangent
        return [m.autograd.grad(t.sum(), v, retain_graph=True)[0].tolist() for v in (d, x)], fw.unpack_dual(m.autograd.grad(y.sum(), d)[0]).tangent.tolist()


def _order_of_hooks(m):
    log, x = [], m.tensor([1.0, 2.0], requires_grad=True)
    end = x.expand_as(x).grad_fn.next_functions[0][0]
    end.register_prehook(lambda g: log.append("before"))
    end.register_hook(lambda i, o: log.append((len(i), len(o))))
    x.register_hook(lambda g: log.append("tensor"))
    x.register_post_accumulate_grad_hook(lambda t: log.append("accumulated"))
    y, z, w = x * 2, x * 3, x * 4
    y.retain_grad()
    y.sum().backward()
    log.append("inputs")
    (z * z).sum().backward(inputs=[x])
    log.append("grad")
    m.autograd.grad((x * 2).sum(), x)
    z, w = x * 3, x * 4
    z.retain_grad()
    (z.sum() + w.sum()).backward(inputs=[z, w, z, w])
    return log, y.grad.tolist(), x.grad.tolist(), z.grad.tolist(), w.grad.tolist()


def _marks(m):
    def function(run):
        class Marked(m.autograd.Function):
            forward = staticmethod(run)
            backward = staticmethod(lambda ctx, *g: g[0])
        return Marked.apply

    def both(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        ctx.mark_non_differentiable(x)
        return x

    x = m.tensor([1.0, 2.0], requires_grad=True)
    seen = [_type(lambda f=f: function(f)(x * 1)) for f in (
        lambda ctx, x: ctx.mark_dirty([x]) or x, lambda ctx, x: ctx.mark_non_differentiable([x]) or x, lambda ctx, x: ctx.mark_non_differentiable(None) or x)]
    y, z = x * 3, x * 3
    whole = function(both)(z)
    if m is ag:  # in torch what was overwritten keeps its gradient
        function(both)(y[:1])
        y.sum().backward()
        assert (y.tolist(), x.grad.tolist()) == ([6.0, 6.0], [0.0, 3.0])
        assert z.grad_fn is None
    return seen, z.tolist(), whole.tolist(), whole.requires_grad, whole.grad_fn


@needs_torch
@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # of the first import of its forward_ad
@pytest.mark.parametrize("script", [_marks, _order_of_hooks, _gradient_of_a_tangent, _modes, _retained, _part_of_base, _bad_hooks, _copies])
def test_as_in_torch(script):
    theirs, ours = [script(m) for m in _modules()]
    assert ours == theirs


def test_derivatives_do_not_ask_for_the_mode():
    f = lambda x: (x * x * x).sum()
    x = ag.tensor([1.0, 2.0])
    with ag.inference_mode():
        for given in (x, ag.tensor([1.0, 2.0]), np.array([1.0, 2.0])):
            assert ag.grad(f)(given).tolist() == [3.0, 12.0]
            assert ag.vjp(f, given)[1](1.0)[0].tolist() == [3.0, 12.0]
            assert ag.hessian(f)(given).tolist() == [[6.0, 0.0], [0.0, 12.0]]
        assert ag.autograd.functional.hessian(f, x).tolist() == [[6.0, 0.0], [0.0, 12.0]]


def test_enable_grad_is_of_the_mode_of_the_call():
    def f(x):
        with ag.no_grad(), ag.enable_grad():
            return x * 2

    x, c = ag.ones(1, requires_grad=True), ag.compile(f)
    for _ in range(3):
        for mode in (ag.inference_mode, ag.no_grad, ag.enable_grad):
            with mode():
                assert c(x).requires_grad == f(x).requires_grad == (mode is not ag.inference_mode)


@pytest.mark.parametrize("compiled", [False, True])
def test_what_an_unpack_hook_returns_is_checked(compiled):
    f = (ag.compile if compiled else lambda f: f)(lambda x, y: (x * y).exp() * x)

    def gradient(unpack):
        x, y = ag.tensor([1.0, 2.0, 3.0], requires_grad=True), ag.ones(3, requires_grad=True)
        with ag.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            out = f(x, y)
        out.sum().backward()
        return x.grad

    for wrong in (lambda t: t[:1], lambda t: t[None], lambda t: ag.ones(7)):
        with pytest.raises(RuntimeError, match=r"unpack_hook returned a Tensor of shape \[.*\], but one of shape \[3\] was saved"):
            gradient(wrong)
    assert ag.allclose(gradient(lambda t: t.double()), gradient(lambda t: t))


# ---- duals and what compiled functions write and read -------------------------------------------------------------------------------------

@pytest.mark.parametrize("dual_first", [False, True])
def test_compiled_writes_reach_duals(dual_first):
    state = ag.zeros(2)

    def step(x):
        state.add_(x)
        x.mul_(2)
        return x * state

    f, plain, fw = ag.compile(step), ag.tensor([1.0, 2.0]), ag.autograd.forward_ad
    if not dual_first:
        f(plain)
        assert plain.tolist() == [2.0, 4.0]
        state.zero_()
    seen = []
    for run in (f, step):
        state = ag.zeros(2)
        with fw.dual_level():
            d = fw.make_dual(ag.tensor([1.0, 2.0]), ag.tensor([3.0, 4.0]))
            out = run(d)
            seen.append([[part.tolist() for part in fw.unpack_dual(t)] for t in (out, d, state)])
    assert seen[0] == seen[1]
    state = ag.zeros(2)
    f(plain)
    assert plain.tolist() == ([2.0, 4.0] if dual_first else [4.0, 8.0])


def test_tangents_of_captured_tensors_stay_over_calls():
    fw, x = ag.autograd.forward_ad, ag.tensor([1.0, 2.0])
    w = ag.tensor([5.0, 6.0])
    f = ag.compile(lambda x: x * w)
    f(x)
    with fw.dual_level():
        w = fw.make_dual(w, ag.tensor([3.0, 4.0]))
        for _ in range(3):
            assert fw.unpack_dual(f(x)).tangent.tolist() == [3.0, 8.0]


# ---- out= and copies of compiled functions ------------------------------------------------------------------------------------------------

def test_out_takes_numbers_alone():
    """What was saved keeps its numbers, and no gradient is lost in silence."""
    x, out, f = ag.tensor([1.0, 2.0], requires_grad=True), ag.ones(2), ag.compile(lambda x: x * 2)
    y = x * out
    f(ag.tensor([5.0, 6.0]), out=out)
    y.sum().backward()
    assert (out.tolist(), out._version, x.grad.tolist()) == ([10.0, 12.0], 1, [1.0, 1.0])
    with ag.autograd.forward_ad.dual_level():
        dual = ag.autograd.forward_ad.make_dual(ag.ones(2), ag.ones(2))
        for given, into in ((x, out), (out, x), (out, x * 1), (dual, out), (out, dual), (out, x[:])):
            for _ in range(2):
                with pytest.raises(RuntimeError, match="do not support automatic differentiation"):
                    f(given, out=into)
    with ag.no_grad():
        assert f(x, out=out) is out
    assert (out.tolist(), x.tolist()) == ([2.0, 4.0], [1.0, 2.0])


class Doubled(ag.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = ag.nn.Linear(1, 1, bias=False)
        self.run, self.method = ag.compile(self.inner), ag.compile(self.inner.forward)
        self.generator = ag.Generator().manual_seed(3)

    def forward(self, x):
        return self.run(x) + self.method(x)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_of_modules_run_what_they_hold(copied):
    net, x = Doubled(), ag.ones(1, 1)
    net.inner.weight.data.fill_(1.0)
    net(x)
    other = copied(net)
    other.inner.weight.data.fill_(5.0)
    assert (net(x).item(), other(x).item()) == (2.0, 10.0)
    assert repr(other.run) == "<aotgrad function Linear>"
    assert ag.rand(2, generator=other.generator).tolist() == ag.rand(2, generator=net.generator).tolist()


def test_integers_beside_dual_tensors_stay_plain():
    """A counter (as that of random numbers) that a compiled call writes; results of comparisons and of functions of several results."""
    count = ag.zeros(3, dtype=ag.int64)

    def f(x):
        count.add_(1)
        return ag.nn.functional.dropout(x * 2, 0.5, training=True)

    g = ag.compile(f)
    forward_ad = ag.autograd.forward_ad
    with forward_ad.dual_level():
        d = forward_ad.make_dual(ag.ones(4), ag.ones(4))
        for _ in range(2):
            primal, tangent = forward_ad.unpack_dual(g(d))
            assert primal.tolist() == tangent.tolist()
        places = ag.max(d, dim=0).indices
        for x in (count, d > 0, places, ag.argmax(d)):
            assert type(x) is ag.Tensor
    assert count.tolist() == [2] * 3
    assert not [x for x in gc.get_objects() if type(x).__name__ == "DualTensor" and not x.dtype.is_floating_point]


# ---- numbers on their way into memory -----------------------------------------------------------------------------------------------------

BFLOAT16 = {
    "fill_": lambda x: x.fill_(1.5), "number": lambda x: x.__setitem__(0, 1.5), "numbers": lambda x: x.__setitem__(0, [1.5, 2.0, 2.5]),
    "copy_": lambda x: x.copy_(ag.tensor([1.5, 2.0, 2.5])), "tensor": lambda x: x.__setitem__((..., 0), ag.tensor(2.5)), "view": lambda x: x[1].fill_(2.5),
    "permuted": lambda x: x.t()[1].add_(1.5), "shape": lambda x: x.view(-1)[4:].mul_(0.5),
    "part of a part": lambda x: x[:, 1:][0].copy_(ag.zeros(2)), "split": lambda x: x.split(1)[1].zero_(),
}


@pytest.mark.parametrize("how", BFLOAT16)
def test_bfloat16_is_written_as_numbers_and_through_views(how):
    x, y = ag.ones(2, 3, dtype=ag.bfloat16), ag.ones(2, 3)
    for t in (x, y):
        BFLOAT16[how](t)
    assert x.tolist() == y.tolist() != [[1.0] * 3] * 2
    assert ag.zeros(2, 3).copy_(x).tolist() == y.tolist()
    assert x._version == y._version == 1


def test_bfloat16_from_factories():
    for make in (lambda **k: ag.arange(3, **k), lambda **k: ag.linspace(0, 1, 3, **k), lambda **k: ag.eye(2, **k), lambda **k: ag.full((2,), 1.5, **k),
                 lambda **k: ag.full_like(ag.ones(2), 1.5, **k)):
        assert make().tolist() == make(dtype=ag.bfloat16).tolist()
    assert ag.compile(lambda x: ag.full((2,), 1.5, dtype=ag.bfloat16).float() + x)(ag.zeros(2)).tolist() == [1.5, 1.5]
    x = ag.ones(2, 3, dtype=ag.bfloat16)
    assert x.t()._base is x
    assert x.view(3, 2)._base is x


def _into(m, number, dtype):
    kind = getattr(m, dtype)
    zero = m.zeros(1, dtype=kind)
    return [_type(f) for f in (lambda: m.tensor([number], dtype=kind).tolist(), lambda: m.full((1,), number, dtype=kind).tolist(),
                               lambda: zero.clone().fill_(number).tolist(), lambda: m.full_like(zero, number).tolist())]


NUMBERS = [(300, "uint8"), (-1, "uint8"), (-255, "uint8"), (-256, "uint8"), (-1.5, "uint8"), (200, "int8"), (-129, "int8"), (2 ** 31, "int32"), (300.0, "uint8"),
           (1.7, "int64"), (float("nan"), "int64"), (5, "bool"), (1e6, "float16"), (np.int64(300), "uint8")]


@needs_torch
@pytest.mark.parametrize(("number", "dtype"), NUMBERS)
def test_numbers_that_a_dtype_does_not_hold(number, dtype):
    theirs, ours = (_into(m, number, dtype) for m in _modules())
    assert theirs == ours


def test_numbers_that_do_not_fit_are_refused():
    x = ag.zeros(2, dtype=ag.uint8)
    for f in (lambda: ag.tensor([1, 300], dtype=ag.uint8), lambda: x.fill_(300), lambda: x.__setitem__(0, -256), lambda: ag.full((2,), 2 ** 70, dtype=ag.int64)):
        with pytest.raises(ag.AotgradRuntimeError, match=r"value cannot be converted to type u?int\d+ without overflow") as error:
            f()
        assert isinstance(error.value, OverflowError)
    with pytest.raises(ag.AotgradTypeError, match="a number is needed, not NoneType"):
        ag.zeros(2)[0] = None
    assert x.tolist() == [0, 0]
    assert x._version == 0


FAILING = {
    "copy_": lambda m, x: x.copy_(m.ones(5)), "copy_ of more dims": lambda m, x: x.copy_(m.ones(1, 2, 3)), "row": lambda m, x: x.__setitem__(0, m.ones(5)),
    "list": lambda m, x: x.__setitem__([0, 1], m.ones(5)), "place": lambda m, x: x.__setitem__(7, 1.0), "fill_": lambda m, x: x.fill_(m.ones(3)),
    "text": lambda m, x: x.__setitem__(0, "a"), "None": lambda m, x: x.__setitem__(0, None), "mul_": lambda m, x: x.mul_(m.ones(5)),
}


@needs_torch
@pytest.mark.parametrize("how", FAILING)
def test_a_write_that_fails_is_not_counted(how):
    seen = []
    for m in _modules():
        x = m.ones(2, 3)
        view = x.view(-1)
        seen.append((_type(lambda m=m, x=x: FAILING[how](m, x)), x.tolist(), view._version))
    assert seen[0][1:] == seen[1][1:] == ([[1.0] * 3] * 2, 0)
    assert all(kind in seen[1][0] for kind in seen[0][0])


def test_a_write_into_an_array_that_fails_writes_nothing():
    """Also where NumPy would have written what comes before the number it cannot convert; bfloat16 takes numbers, not bits."""
    def f(a):
        z = np.zeros_like(a)
        for value in (["1", "q"], np.array([1, 1j], dtype=object)):
            with pytest.raises(ag.AotgradError, match=r"test_pytorch_corners\.py:\d+: "):
                z[:] = value
        z[:1] = ["2"]
        half = np.zeros_like(a, dtype=ag.bfloat16)
        half[0], half[1:] = 1.5, [np.float64(2)]
        seen.append((z._version, z.tolist(), ag.tensor(half).tolist()))
        return (a * a).sum()

    seen = []
    ag.grad(f)(np.ones(2))
    assert seen == [(1, [2.0, 0.0], [1.5, 2.0])]


def test_errors_of_writes_tell_the_line():
    for x, value in ((ag.zeros(2, dtype=ag.uint8), 300), (ag.zeros(2), None), (ag.zeros(2), ag.ones(3)), (ag.zeros(2), "a")):
        with pytest.raises(ag.AotgradError, match=r"^[^\n]*test_pytorch_corners\.py:\d+: (?!.*\.py)"):
            x[:] = value
        assert x._version == 0


def test_what_was_expanded_to_its_own_shape_is_its_own():
    x = ag.ones(2, 3)
    for view in (x.expand(2, 3).detach(), x.expand_as(x).data, x.broadcast_to((2, 3)).detach(), ag.from_dlpack(x.expand(2, 3))):
        view.add_(1)
    assert x.tolist() == [[5.0] * 3] * 2
    assert ag.full((2,), ag.tensor(3.0)).add_(1).tolist() == [4.0, 4.0]
    assert [t.storage_offset() for t in (ag.ones(4)[1:].expand(1, 3), ag.ones(4)[1:].expand(2, 3), ag.ones(4)[2:].view(1, 2, 1)[0])] == [1, 1, 2]


@needs_torch
@pytest.mark.parametrize("name", ["exp", "sin", "tanh", "sigmoid", "log", "sqrt", "abs", "neg", "erf", "log1p"])
def test_strides_where_dims_are_exchanged_and_have_gaps(name):
    theirs, ours = (getattr(m.ones(3, 4)[::2].transpose(0, 1), name)().stride() for m in _modules())
    assert theirs == ours == (1, 4)


@needs_torch
@pytest.mark.parametrize(("of", "bound"), [
    ("int8", "int64"), ("int64", "float64"), ("int64", "float16"), ("float32", "float64"), ("uint8", "int64"), ("bfloat16", "float32")])
def test_tensors_as_bounds_take_part_in_the_dtype(of, bound):
    seen = []
    for m in _modules():
        x, b = m.tensor([1, 2, 3]).to(getattr(m, of)), m.tensor([100, 1, 2]).to(getattr(m, bound))
        found = (x.clamp(max=b), x.clamp(b, b), x.clamp(min=b[0]))
        seen.append([(t.tolist(), str(t.dtype).rpartition(".")[2]) for t in found])
    assert seen[0] == seen[1]


def test_bounds_are_not_cut_to_the_dtype_of_what_is_limited():
    x, bound = np.array([1, 2, 3], np.int8), np.array([1000, 1, 2])
    for how in (lambda f: f, ag.compile):
        assert how(lambda x, b: ag.clamp(x, max=b))(ag.tensor(x), ag.tensor(bound)).tolist() == [1, 1, 2]
        assert how(lambda x, b: np.clip(x, None, b))(x, bound).tolist() == [1, 1, 2]
