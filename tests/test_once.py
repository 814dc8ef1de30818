"""What depends on constant arguments alone is computed in an entry of its own: the same bits as without, inside its buffers."""

from __future__ import annotations

import numpy as np
import pytest
from lowering_harness import Program

from aotgrad.codegen.lower import lower
from aotgrad.codegen.target import Target
from aotgrad.ir import Block, Builder, Func, Layout, TensorType, dims, tensor_type
from aotgrad.ir.builder import build
from aotgrad.ir.transforms.cleanup import standard
from aotgrad_runtime.dtypes import float32, float64

F4 = float32
LAST = Layout.channels_last(4)


def _conv(b, x, w, stride=1, groups=1, pad=1):
    return b.conv(x, w, stride=(stride, stride), padding=((pad, pad), (pad, pad)), dilation=(1, 1), groups=groups)


def _normed(b, x, w, mean, var):
    """A convolution, and a norm by running statistics."""
    scale = b.div(b.full(shape=var.shape, value=1.0, dtype=F4), b.sqrt(b.add(var, b.full(shape=var.shape, value=1e-5, dtype=F4))))
    y = _conv(b, x, w)
    c = b.broadcast(b.neg(b.mul(mean, scale)), shape=y.shape, dims=(1,))
    return b.maximum(b.add(b.mul(y, b.broadcast(scale, shape=y.shape, dims=(1,))), c), b.full(shape=y.shape, value=0.0, dtype=F4))


def _gradient(b, y, w):
    return b.conv_input_grad(y, w, spatial=(15, 15), stride=(2, 2), padding=((1, 1), (1, 1)), dilation=(1, 1), groups=1)


def _staged_gradient(b, y, w):
    return b.conv_input_grad(y, w, spatial=(7, 7), stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1), groups=1)


def _twice(b, x, w):
    return b.add(_conv(b, x, w), _conv(b, b.mul(x, x), w))


def _both(b, x, w):
    """Weights that are packed, read as they are, and given back."""
    return _conv(b, x, w), b.sum(b.mul(w, w), dims=(0, 1)), b.exp(w)


def _square(b, x, v):
    """An outer product is larger than what it is made of."""
    wide = b.mul(b.broadcast(v, shape=(64, 64), dims=(0,)), b.broadcast(v, shape=(64, 64), dims=(1,)))
    return b.mul(b.mul(x, wide), b.broadcast(b.exp(b.sqrt(v)), shape=(64, 64), dims=(1,)))


def _t(*shape, layout=None, dtype=F4):
    return TensorType(shape, dtype, layout)


def _dense(b, x, w, c):
    """A layer of PyTorch's, with its bias and a rectifier on blocks of the product."""
    y = b.dot(x, b.permute(w, perm=(1, 0)))
    return b.maximum(b.add(y, b.broadcast(c, shape=y.shape, dims=(1,))), b.full(shape=y.shape, value=0.0, dtype=c.type.dtype))


def _loop(b, x, w):
    """Rounds of a loop read the weights from outside of it."""
    def body(inner, carry, u):
        out = inner.tanh(inner.dot(carry, u))
        return out, inner.sum(out, dims=(0,))

    block = Block([w.type, x.type])
    block.outputs = list(body(Builder(block), block.args[1], block.args[0]))
    return b.emit("scan", [w, x], {"consts": 1, "carry": 1, "length": 5}, (block,))


_N = dims.symbol("n")
CASES = {
    "forward": (lambda b, x, w: _conv(b, x, w), [_t(2, 24, 13, 13), _t(40, 24, 3, 3)], (1,)),
    "channels_last": (lambda b, x, w: _conv(b, x, w, 2), [_t(2, 24, 13, 13, layout=LAST), _t(40, 24, 3, 3, layout=LAST)], (1,)),
    "staged": (lambda b, x, w: _conv(b, x, w), [_t(2, 160, 7, 7, layout=LAST), _t(161, 160, 3, 3)], (1,)),
    "staged, few rows": (lambda b, x, w: _conv(b, x, w, 2), [_t(2, 160, 4, 4, layout=LAST), _t(161, 160, 3, 3)], (1,)),
    "staged, float64": (lambda b, x, w: _conv(b, x, w), [_t(1, 120, 7, 7, dtype=float64), _t(90, 120, 3, 3, dtype=float64)], (1,)),
    "staged gradient": (_staged_gradient, [_t(1, 160, 7, 7, layout=LAST), _t(160, 140, 3, 3)], (1,)),
    "float64": (lambda b, x, w: _conv(b, x, w), [_t(1, 24, 13, 13, dtype=float64), _t(40, 24, 3, 3, dtype=float64)], (1,)),
    "depthwise": (lambda b, x, w: _conv(b, x, w, 1, 144), [_t(1, 144, 14, 14, layout=LAST), _t(144, 1, 3, 3)], (1,)),
    "norm": (_normed, [_t(2, 24, 13, 13), _t(40, 24, 3, 3), _t(40), _t(40)], (1, 2, 3)),
    "gradient of the input": (_gradient, [_t(2, 40, 8, 8, layout=LAST), _t(40, 24, 3, 3)], (1,)),
    "one array twice": (_twice, [_t(2, 24, 13, 13), _t(40, 24, 3, 3)], (1,)),
    "packed and read": (_both, [_t(2, 24, 13, 13), _t(40, 24, 3, 3)], (1,)),
    "loops": (lambda b, x, w: _conv(b, x, b.mul(w, w)), [TensorType((dims.symbol("n"), 16, 9, 9), F4), _t(24, 16, 3, 3)], (1,)),
    "product": (lambda b, x, w: b.dot(x, w), [_t(32, 300), _t(300, 257)], (1,)),
    "product of few rows": (lambda b, x, w: b.dot(x, w), [_t(8, 256), _t(256, 256)], (1,)),
    "product, float64": (lambda b, x, w: b.dot(x, b.mul(w, w)), [_t(49, 1100, dtype=float64), _t(1100, 70, dtype=float64)], (1,)),
    "layer": (_dense, [_t(20, 300), _t(100, 300), _t(100)], (1, 2)),
    "layer, any batch": (_dense, [TensorType((_N, 300), F4), _t(100, 300), _t(100)], (1, 2)),
    "loop": (_loop, [_t(20, 90), _t(90, 90)], (1,)),
    "products of one matrix": (lambda b, x, w: b.dot(x, b.broadcast(w, shape=(3, 70, 90), dims=(1, 2))), [_t(3, 20, 70), _t(70, 90)], (1,)),
    "larger than its parts": (_square, [_t(64, 64), _t(64)], (1,)),
}


def _arrays(func: Func, n: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.uniform(0.5, 1.5, [d if isinstance(d, int) else n for d in t.shape]).astype(t.dtype.np) for t in func.arg_types]


def _func(case: str) -> tuple[Func, tuple[int, ...]]:
    body, types, constant = CASES[case]
    return standard(build("f", types, body)), constant


@pytest.mark.parametrize("case", [c for c in CASES if c != "larger than its parts"])
def test_same_bits_inside_the_buffers(case: str) -> None:
    func, constant = _func(case)
    plain, kept = Program(func), Program(func, constant=constant)
    assert kept.once and not plain.once
    for n in (1, 3, 8, 9, 40) if func.symbols() else (0,):
        args = _arrays(func, n)
        expected = plain(*args)
        for guard in (None, True, False):
            got = kept(*args, guard=guard)
            for a, b in zip(got if isinstance(got, tuple) else (got,), expected if isinstance(expected, tuple) else (expected,)):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("case", ["product", "layer", "forward", "staged"])
def test_same_bits_on_threads(case: str) -> None:
    func, constant = _func(case)
    if case == "product":
        func = standard(build("f", [_t(40, 512), _t(512, 1100)], CASES[case][0]))
    args = _arrays(func)

    class Threads(Program):
        threads = 3

    np.testing.assert_array_equal(Threads(func, constant=constant)(*args), Program(func)(*args))


def test_large_weights_are_packed_before() -> None:
    """They are packed block by block in a call that packs them, and whole where they are kept."""
    func, constant = _func("staged")
    assert "_pack" in str(lower(func, "f", Target.native()).funcs[0])
    low = lower(func, "f", Target.native(), constant=constant)
    lanes = Target.native().vector_bits // 32
    assert low.module.kept.size == low.module.kept.jobs[0].at + 9 * 160 * (-(-161 // lanes) * lanes) * 4 and "_pack" not in str(low.funcs[0])


@pytest.mark.parametrize("machine", ["x86-64-v3", "x86-64"])
@pytest.mark.parametrize("case", ["product", "product, float64", "layer", "forward", "staged", "norm"])
def test_other_instruction_sets(case: str, machine: str) -> None:
    func, constant = _func(case)
    args, target = _arrays(func), Target.named(machine)
    np.testing.assert_array_equal(Program(func, target, constant=constant)(*args, guard=True), Program(func, target)(*args))


def test_packing_is_nowhere_else() -> None:
    """The convolution of one array is packed once for two of them, and not in the calls."""
    func, constant = _func("one array twice")
    low = lower(func, "f", Target.native(), constant=constant)
    assert low.once is not None and len(low.module.kept.jobs) == 1
    assert "_pack" in str(low.once.funcs[0]) and "_pack" not in str(low.funcs[0])


def test_weights_that_are_only_packed_take_no_room_of_their_own() -> None:
    func, constant = _func("norm")
    low = lower(func, "f", Target.native(), constant=constant)
    vectors = -(-40 // Target.native().lanes("f32")) * Target.native().lanes("f32")
    packed = (9 + 16 * (Target.native().vector_bits >= 256)) * 24 * vectors * 4  # weights, and the same transformed where Winograd's form is chosen
    assert low.module.kept.size == packed + 2 * 192  # a scale and a shift
    func = standard(build("f", [_t(1, 24, 13, 13), _t(40, 24, 3, 3)], lambda b, x, w: _conv(b, x, b.mul(w, w))))
    low = lower(func, "f", Target.native(), constant=(1,))
    assert low.module.kept.size == packed and low.once.entry.workspace == 40 * 24 * 9 * 4


def test_too_little_is_no_entry() -> None:
    func, constant = _func("larger than its parts")
    low = lower(func, "f", Target.native(), constant=constant)
    assert low.once is None and len(low.funcs) == 1 and len(low.entry.inputs) == 2
    args = _arrays(func)
    np.testing.assert_array_equal(Program(func, constant=constant)(*args), Program(func)(*args))


def test_what_may_fail_or_grows_stays_in_the_call() -> None:
    """An integer division asks about its operands, an outer product would take more memory than it is made of."""
    t = tensor_type([64], dtype="int64")
    func = standard(build("f", [t, t], lambda b, x, w: b.add(x, b.pow(w, w))))
    assert lower(func, "f", Target.native(), constant=(1,)).once is None

    def outer(b, x, v):
        return b.mul(x, b.mul(b.broadcast(v, shape=x.shape, dims=(0,)), b.broadcast(v, shape=x.shape, dims=(1,))))

    func = standard(build("f", [_t(640, 640), _t(640)], outer))
    assert lower(func, "f", Target.native(), constant=(1,)).once is None
