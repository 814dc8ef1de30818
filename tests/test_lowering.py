"""What the lowering promises: how many loops, how many bytes, no relayout, writes in place, sizes 0 and 1, errors by code."""

from __future__ import annotations

import re
import time
from typing import Any

import numpy as np
import pytest
from lowering_harness import Program

import aotgrad as ag
from aotgrad.codegen.lower import lower
from aotgrad.codegen.target import Target
from aotgrad.ir import Layout, dims, interp, ops, tensor_type
from aotgrad.ir.builder import Builder, build
from aotgrad.ir.core import Block, Func
from aotgrad.ir.transforms.cleanup import standard
from aotgrad.ir.transforms.differentiate import vjp_inline
from aotgrad.ir.transforms.rewrite import substitute_func
from aotgrad_runtime.dtypes import as_dtype

assert ops
RNG = np.random.default_rng(0)


def program(types: Any, body: Any) -> Program:
    return Program(standard(build("f", types, lambda b, *xs: body(b, *xs))))


def value_and_grad(types: Any, body: Any, active: Any = None) -> Func:
    block = Block(types)
    b = Builder(block)
    outs, pullback = vjp_inline(b, build("f", types, body).body, list(block.args), active or [True] * len(types))
    block.outputs = [*outs, *pullback([b.scalar(1.0, outs[0].type.dtype)])]
    return standard(Func("f", block))


def agree(func: Func, p: Program, *arrays: Any, scale: float = 1.0) -> None:
    got, want = p(*arrays, guard=True), interp.run(func, *arrays)
    for g, w in zip(got if isinstance(got, tuple) else (got,), want):
        eps = np.finfo(w.dtype).eps if w.dtype.kind == "f" else 0
        np.testing.assert_allclose(g, w, rtol=200 * eps * scale, atol=200 * eps * scale)


def loops(p: Program) -> list[dict[str, Any]]:
    return [k for k in p.meta["kernels"] if k["kind"] == "loop"]


def chain(b: Any, x: Any) -> Any:
    y = b.mul(x, x)
    return b.sum(b.add(b.mul(b.tanh(x), b.exp(b.neg(y))), b.log1p(y)), dims=(0,))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_value_and_gradient_of_a_chain_is_one_loop(dtype: str) -> None:
    func = value_and_grad([tensor_type(["n"], dtype)], chain)
    p = Program(func)
    size = np.dtype(dtype).itemsize
    (loop,) = p.meta["kernels"]
    assert (loop["loops"], loop["depth"], p.meta["workspace"]) == (1, 1, 0)
    assert (loop["read"], loop["written"]) == (f"{size} * n", f"{size} * n + {size}")
    for n in (0, 1, 2, 7, 8, 9, 31, 32, 33, 1000, 70001):
        agree(func, p, RNG.normal(size=n).astype(dtype), scale=1 + n / 300)


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
def test_other_instruction_sets(target: str) -> None:
    func = value_and_grad([tensor_type(["n", "m"])], lambda b, x: b.sum(b.mul(b.softmax(x, dim=1), b.sin(x)), dims=(0, 1)))
    if Target.native().vector_bits < Target.named(target).vector_bits:
        pytest.skip("this machine lacks the instructions")
    p = Program(func, Target.named(target))
    for shape in ((3, 5), (4, 1), (1, 9), (2, 64)):
        agree(func, p, RNG.normal(size=shape))


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_rows_stay_in_cache(name: str) -> None:
    func = standard(build("f", [tensor_type(["m", "n"])], lambda b, x: getattr(b, name)(x, dim=1)))
    p = Program(func)
    (nest,) = p.meta["kernels"]
    assert (nest["outer"], nest["loops"]) == (1, 3)
    assert "m" not in str(p.meta["workspace"])  # a row at most
    for shape in ((3, 5), (0, 4), (1, 1), (2, 100)):
        agree(func, p, RNG.normal(size=shape))


def test_layer_norm_with_gradients_is_one_nest() -> None:
    def body(b: Any, x: Any, g: Any, w: Any) -> Any:
        c = b.sub(x, b.keep_dims(b.mean(x, dims=(1,)), x, (1,)))
        v = b.mean(b.mul(c, c), dims=(1,))
        y = b.div(c, b.keep_dims(b.sqrt(b.add(v, b.full_like(v, 1e-5))), x, (1,)))
        return b.sum(b.mul(b.mul(y, b.expand(g, x.type.shape)), w), dims=(0, 1))

    func = value_and_grad([tensor_type(["m", "n"]), tensor_type(["n"]), tensor_type(["m", "n"])], body, [True, True, False])
    p = Program(func)
    assert [k["outer"] for k in p.meta["kernels"]] in ([1], [1, 0]), "the sum of all is no sum of rows: it may have a loop of its own"
    for m, n in ((3, 5), (1, 1), (4, 33), (2, 8), (300, 5)):
        agree(func, p, RNG.normal(size=(m, n)), RNG.normal(size=n), RNG.normal(size=(m, n)))


def test_reduction_takes_a_prologue_and_an_epilogue() -> None:
    func = standard(build("f", [tensor_type(["m", "n"]), tensor_type(["n"]), tensor_type(["m"])],
                          lambda b, a, x, c: b.tanh(b.add(b.sum(b.mul(a, b.expand(x, a.type.shape)), dims=(1,)), c))))
    p = Program(func)
    assert len(p.meta["kernels"]) <= 2  # the matrix is read once; what follows runs over rows
    assert p.meta["kernels"][0]["read"] == "8 * m * n + 8 * n"
    agree(func, p, RNG.normal(size=(5, 70)), RNG.normal(size=70), RNG.normal(size=5))


def test_channels_last_needs_no_relayout() -> None:
    t = tensor_type(["n", 3, "h", "w"], "float32", Layout.channels_last(4))
    func = standard(build("f", [t, t], lambda b, x, y: (b.relu(b.add(b.mul(x, y), x)), b.sum(b.relu(x), dims=(0, 2, 3)), b.sum(x, dims=(0, 1, 2, 3)))))
    p = Program(func)
    assert sorted(k["depth"] for k in p.meta["kernels"]) == [1, 2]  # (n h w) and c; the sum of all goes through all as one
    assert p.meta["outs"][0]["order"] == [0, 2, 3, 1]
    for shape in ((2, 3, 4, 5), (1, 3, 1, 1), (0, 3, 2, 2)):
        agree(func, p, RNG.normal(size=shape).astype("float32"), RNG.normal(size=shape).astype("float32"))
    flat = program([t, t], lambda b, x, y: b.relu(b.add(b.mul(x, y), x)))
    assert flat.meta["kernels"][0]["depth"] == 1  # all operands dense in one layout: one loop over elements


def test_dense_operands_collapse_and_code_does_not_grow() -> None:
    sizes = []
    for shape in ((40, 50, 60), (50, 60, 70), (400, 500, 600), (500, 600, 700)):  # more than one strip, between which the loop asks whether to stop
        func = build("f", [tensor_type(shape)] * 2, lambda b, x, y: b.exp(b.add(x, y)))
        low = lower(func, "f", Target.native())
        assert low.module.report[0]["depth"] == 1
        sizes.append(len(str(low.funcs[0])))
    assert max(sizes[:2]) < 1.2 * min(sizes[:2]) and max(sizes[2:]) < 1.2 * min(sizes[2:])
    assert max(sizes) < 1.5 * min(sizes)  # past the cache results are written in another way


LOOPS: dict[str, Any] = {
    "softmax": (ag.value_and_grad(lambda x: (ag.softmax(x, dim=1) ** 2).sum()), lambda n: ((n, n),)),
    "variance": (ag.value_and_grad(lambda x: np.var(x, axis=0).sum()), lambda n: ((n, n),)),
    "product": (ag.value_and_grad(lambda x, w: (ag.relu(x @ w) ** 2).sum(), argnums=(0, 1)), lambda n: ((n, n), (n, n))),
    "scan": (ag.grad(lambda x: ag.scan(lambda c, v: (np.tanh(c + v), c), np.zeros(3), x)[0].sum()), lambda n: ((n, 3),)),
    "cumsum": (ag.grad(lambda x: (np.cumsum(x, axis=0) ** 2).sum()), lambda n: ((n, n),)),
    "concatenate": (lambda x: np.concatenate([x, x[::-1] * 2]), lambda n: ((n, n),)),
    "transpose": (lambda x: x.T * 2 + 1, lambda n: ((n, n),)), "hessian": (ag.hessian(lambda x: (np.sin(x) * x).sum()), lambda n: ((n,),)),
    "pooling": (lambda x: ag.nn.functional.avg_pool2d(x, 2), lambda n: ((2, 3, n, n),)),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_stay_loops(name: str) -> None:
    """Code for known sizes: a hundred times as many elements, and no more of it than other ways for large arrays take. (Arrays of a few numbers are written out.)"""
    f, shapes = LOOPS[name]
    func, lines = ag.compile(f).trace(*(np.ones(s) for s in shapes(40))), []
    for n in (40, 210, 1010, 4010):
        env = {s.as_symbol(): m for t, shape in zip(func.arg_types, shapes(n)) for s, m in zip(t.shape, shape) if not isinstance(s, int)}
        low = lower(standard(substitute_func(func, env)), "f", Target.native())
        lines.append(sum(len(str(k).splitlines()) for k in low.funcs))
    assert max(lines) <= 2 * lines[0] + 40, lines


def test_workspace_is_reused() -> None:
    def body(b: Any, x: Any) -> Any:
        for _ in range(6):
            x = b.cumsum(b.cumsum(b.tanh(x), dim=0), dim=0, reverse=True)
        return x

    p = program([tensor_type([1000])], body)
    assert p.meta["workspace"] <= 3 * 8064


def test_insert_into_a_fresh_array_copies_nothing() -> None:
    def body(b: Any, x: Any, v: Any) -> Any:
        y = b.cumsum(x, dim=0)
        for i in range(3):
            y = b.insert(y, v, starts=(10 * i,), steps=(1,))
        return y

    func = standard(build("f", [tensor_type([1000]), tensor_type([5])], body))
    p = Program(func)
    assert p.meta["workspace"] == 0 and all(k["written"] == "40" for k in loops(p))
    agree(func, p, RNG.normal(size=1000), RNG.normal(size=5))


def test_an_input_is_never_written() -> None:
    func = standard(build("f", [tensor_type(["n"]), tensor_type([1])], lambda b, x, v: (b.insert(x, v, starts=(0,), steps=(1,)), x)))
    agree(func, Program(func), RNG.normal(size=9), np.array([7.0]))


def test_old_and_new_value_of_a_write_are_both_right() -> None:
    def body(b: Any, x: Any, v: Any) -> Any:
        y = b.tanh(x)
        z = b.insert(y, v, starts=(1,), steps=(2,))
        return b.add(b.slice(y, starts=(0,), sizes=(8,), steps=(1,)), b.slice(z, starts=(0,), sizes=(8,), steps=(1,))), z, y

    func = standard(build("f", [tensor_type([9]), tensor_type([3])], body))
    agree(func, Program(func), RNG.normal(size=9), RNG.normal(size=3))


def test_concatenate_writes_pieces_in_place() -> None:
    p = program([tensor_type(["n"]), tensor_type(["m"])], lambda b, x, y: b.concatenate(b.exp(x), b.sin(y), dim=0))
    assert p.meta["workspace"] == 0 and [k["kind"] for k in p.meta["kernels"]] == ["loop", "loop"]
    x, y = RNG.normal(size=5), RNG.normal(size=0)
    np.testing.assert_allclose(p(x, y), np.concatenate([np.exp(x), np.sin(y)]), rtol=1e-15)


FLAT: dict[str, Any] = {
    "cumsum": lambda b, p: b.cumsum(b.reshape(p, shape=(p.type.shape[0] * p.type.shape[1],)), dim=0),
    "take": lambda b, p: b.take(b.reshape(p, shape=(12,)), b.iota(shape=(5,), dim=0, dtype=as_dtype("int64")), dim=0),
    "rows": lambda b, p: b.take(p, b.iota(shape=(2,), dim=0, dtype=as_dtype("int64")), dim=0),
    "product": lambda b, p: b.dot(b.reshape(p, shape=(4, 3)), b.reshape(p, shape=(3, 4))), "itself": lambda b, p: p, "reshaped": lambda b, p: b.reshape(p, shape=(2, 6)),
    "argmax": lambda b, p: b.argmax(b.reshape(p, shape=(12,)), dim=0), "another": lambda b, p: b.concatenate(p, p, dim=0),
    "flattened twice": lambda b, p: b.cumsum(b.reshape(b.reshape(p, shape=(1, 3, 4)), shape=(12,)), dim=0),
}


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("kind", ["elementwise", "reduction"])
@pytest.mark.parametrize("name", FLAT)
def test_pieces_of_a_concatenation_are_read_where_they_lie(name: str, kind: str, first: bool) -> None:
    """Along dim 1 the rows of a piece lie among those of the others: who reads it as one run of numbers has a copy."""
    def body(b: Any, x: Any, z: Any) -> Any:
        p = b.sin(x) if kind == "elementwise" else b.sum(z, dims=(2,))
        outs = [FLAT[name](b, p)] if first else []
        outs.append(b.concatenate(p, x, b.exp(x), dim=1))
        return tuple(outs if first else [*outs, FLAT[name](b, p)])

    func = standard(build("f", [tensor_type([3, 4]), tensor_type([3, 4, 2])], body))
    agree(func, Program(func), RNG.normal(size=(3, 4)), RNG.normal(size=(3, 4, 2)))


def test_views_of_a_product_cost_nothing() -> None:
    func = standard(build("f", [tensor_type([40, 30]), tensor_type([40, 20])], lambda b, x, y: b.dot(b.permute(x, perm=(1, 0)), y)))
    p = Program(func)
    assert [k["kind"] for k in p.meta["kernels"]] == ["gemm"]
    agree(func, p, RNG.normal(size=(40, 30)), RNG.normal(size=(40, 20)))


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int32"])
@pytest.mark.parametrize("shape", [("m", "k", "n"), (3, 4, 2), (1, 8, 8), (8, 8, 1)])
def test_products(dtype: str, shape: Any) -> None:
    m, k, n = shape
    func = build("f", [tensor_type([2, m, k], dtype), tensor_type([2, k, n], dtype)], lambda b, x, y: b.dot(x, y))
    p = Program(func)
    for trial in [shape] if isinstance(m, int) else [(3, 4, 2), (1, 7, 1), (0, 3, 2), (3, 0, 2), (40, 33, 65)]:
        x, y = (RNG.integers(-3, 4, size=(2, *s)).astype(dtype) for s in ((trial[0], trial[1]), (trial[1], trial[2])))
        np.testing.assert_array_equal(p(x, y, guard=True), x @ y)


def test_mixed_dtypes_in_one_loop() -> None:
    def body(b: Any, x: Any, y: Any, c: Any, i: Any) -> Any:
        wide = b.where(c, b.to_dtype(x, y.type.dtype), y)
        return b.add(wide, b.to_dtype(i, y.type.dtype)), b.logical_not(c), b.to_dtype(b.gt(y, wide), i.type.dtype)

    types = [tensor_type(["n"], d) for d in ("float32", "float64", "bool", "int32")]
    func = standard(build("f", types, body))
    p = Program(func)
    assert len(p.meta["kernels"]) == 1
    for n in (0, 1, 7, 20):
        agree(func, p, RNG.normal(size=n).astype("float32"), RNG.normal(size=n), RNG.random(n) > 0.5, RNG.integers(-9, 9, n).astype(np.int32))


def test_identical_outputs_and_an_output_that_is_an_input() -> None:
    func = standard(build("f", [tensor_type(["n"])], lambda b, x: (lambda y: (y, y, x, b.reshape(y, shape=(x.type.shape[0], 1))))(b.exp(x))))
    agree(func, Program(func), RNG.normal(size=6))


def test_sums_do_not_depend_on_their_surroundings() -> None:
    # A light loop is unrolled and a heavy one is not, a static size has no outer block: the order of the sum is the same.
    x = RNG.normal(size=20011)
    alone = program([tensor_type(["n"])], lambda b, v: b.sum(v, dims=(0,)))(x)
    static = program([tensor_type([20011])], lambda b, v: b.sum(v, dims=(0,)))(x)
    beside = program([tensor_type(["n"])], lambda b, v: (b.sum(v, dims=(0,)), b.sin(b.exp(b.tanh(v)))))(x)[0]
    assert alone == static == beside


def test_sum_is_accurate() -> None:
    x = np.full(10**6 + 3, 0.1, np.float32)
    got = program([tensor_type(["n"], "float32")], lambda b, v: b.sum(v, dims=(0,)))(x)
    assert abs(float(got) - 0.1 * len(x)) < 0.1


def test_index_out_of_range_is_code_2() -> None:
    for body in (lambda b, x, i: b.take(x, i, dim=0), lambda b, x, i: b.scatter_add(x, i, b.take(x, b.iota(shape=(2,)), dim=0), dim=0)):
        p = program([tensor_type([4, 3]), tensor_type([2], "int64")], body)
        p(np.ones((4, 3)), np.array([0, 3]))
        for bad in (4, -1, 10**12):
            p(np.ones((4, 3)), np.array([0, bad]), status=2)
            assert p.info[1:3] == [bad, 4]


def test_scalar_programs_are_straight_line() -> None:
    func = value_and_grad([tensor_type([2])], lambda b, x: _rosenbrock(b, x))
    p = Program(func)
    assert all(k["depth"] <= 1 for k in loops(p))
    agree(func, p, np.array([-1.2, 1.0]))


def _rosenbrock(b: Any, x: Any) -> Any:
    n = x.type.shape[0]
    hi, lo = (b.slice(x, starts=(s,), sizes=(n - 1,), steps=(1,)) for s in (1, 0))
    d, e = b.sub(hi, b.mul(lo, lo)), b.sub(b.full_like(lo, 1), lo)
    return b.sum(b.add(b.mul(b.full_like(d, 100), b.mul(d, d)), b.mul(e, e)), dims=(0,))


def test_rosenbrock_of_any_size() -> None:
    func = value_and_grad([tensor_type(["n"])], _rosenbrock)
    p = Program(func)
    for n in (1, 2, 3, 10, 100):
        agree(func, p, RNG.normal(size=n), scale=100)


def _unrolled(count: int) -> Func:
    def body(b: Any, x: Any) -> Any:
        s = [b.reshape(b.slice(x, starts=(i,), sizes=(1,), steps=(1,)), shape=()) for i in range(4)]
        for i in range(count // 2):
            s[i % 4] = b.sub(b.mul(s[i % 4], s[(i + 1) % 4]), s[(i + 2) % 4])
        return s[0]

    return build("f", [tensor_type([4])], body)


def test_lowering_time_is_linear() -> None:
    times = []
    for count in (1250, 5000):
        func = _unrolled(count)
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            lower(func, "f", Target.native())
            best = min(best, time.process_time() - start)
        times.append(best)
    assert times[1] < 10 * times[0]


def test_long_chain_does_not_recurse() -> None:
    def body(b: Any, x: Any) -> Any:
        for _ in range(3000):
            x = b.mul(x, x)
        return x

    low = lower(build("f", [tensor_type(["n"])], body), "f", Target.native())
    assert len(low.module.report) == 6  # of 512 values at most


def test_size_expression_as_output_shape() -> None:
    func = build("f", [tensor_type(["n"])], lambda b, x: b.slice(x, starts=(0,), sizes=(dims.floordiv(x.type.shape[0] + 1, 2),), steps=(2,)))
    p = Program(func)
    for n in (1, 2, 5, 17):
        x = RNG.normal(size=n)
        np.testing.assert_array_equal(p(x, guard=True), x[::2])


@pytest.mark.parametrize("shape", [("m", "k", "n"), (40, 30, 50), (1, 5, 9), (9, 5, 1)])
def test_bias_activation_and_its_mask_run_on_blocks_of_the_product(shape: Any) -> None:
    m, k, n = shape

    def body(b: Any, x: Any, w: Any, c: Any) -> Any:
        z = b.add(b.dot(x, w), b.expand(c, (m_, n_)))
        return b.relu(z), b.to_dtype(b.gt(z, b.full_like(z, 0)), z.type.dtype), b.sum(z, dims=(0,)), b.sum(z, dims=(0, 1))

    types = [tensor_type([m, k], "float32"), tensor_type([k, n], "float32"), tensor_type([n], "float32")]
    m_, n_ = types[0].shape[0], types[1].shape[1]
    func = standard(build("f", types, body))
    p = Program(func)
    if 1 not in shape:
        kinds = [x["kind"] for x in p.meta["kernels"]]
        assert kinds[:2] == ["gemm", "epilogue"] and set(kinds[2:]) == {"loop"} and p.meta["kernels"][0]["epilogue"]  # sums are no sums of blocks
    for trial in [shape] if isinstance(m, int) else [(130, 60, 70), (1, 1, 1), (0, 3, 2), (3, 0, 2), (17, 300, 5)]:
        arrays = [RNG.normal(size=s).astype("float32") for s in ((trial[0], trial[1]), (trial[1], trial[2]), (trial[2],))]
        agree(func, p, *arrays, scale=20)


def test_softmax_over_the_first_dim_runs_across_columns() -> None:
    for dtype in ("float32", "float64"):
        func = standard(build("f", [tensor_type(["m", "n"], dtype)], lambda b, x: (b.softmax(x, dim=0), b.amax(x, dims=(0,)), b.tanh(b.sum(x, dims=(0,))))))
        p = Program(func)
        nest = p.meta["kernels"][0]
        assert nest["outer"] == 1 and nest["lanes"][0] == Target.native().lanes("f32" if dtype == "float32" else "f64")
        for shape in ((3, 5), (1, 1), (7, 16), (300, 37)):
            agree(func, p, RNG.normal(size=shape).astype(dtype), scale=10)


@pytest.mark.parametrize("columns", [1, 4, 8, 12, 15, 16, 17, 33])
def test_softmax_over_the_first_dim_of_static_size(columns: int) -> None:
    func = standard(build("f", [tensor_type([30, columns])], lambda b, x: b.softmax(x, dim=0)))
    agree(func, Program(func), RNG.normal(size=(30, columns)))


def test_softmax_over_the_middle_dim() -> None:
    func = standard(build("f", [tensor_type([2, "m", "n"])], lambda b, x: b.softmax(x, dim=1)))
    p = Program(func)
    for shape in ((2, 3, 5), (2, 1, 1), (2, 7, 16)):
        agree(func, p, RNG.normal(size=shape), scale=10)


def test_constants_are_read_only_data() -> None:
    table = RNG.normal(size=(50, 20))

    def body(b: Any, x: Any) -> Any:
        c = b.array(table)
        return b.dot(x, b.permute(c, perm=(1, 0))), b.insert(c, b.array([[7.0]]), starts=(1, 2), steps=(1, 1)), b.add(c, b.expand(x, c.type.shape)), c

    func = standard(build("f", [tensor_type([1, 20])], body))
    p = Program(func)
    x = RNG.normal(size=(1, 20))
    agree(func, p, x)
    agree(func, p, x)


def test_sums_over_many_rows_are_accurate() -> None:
    x = np.full((40001, 3), 0.1, np.float32)
    p = program([tensor_type(["m", "n"], "float32")], lambda b, v: b.sum(v, dims=(0,)))
    np.testing.assert_allclose(p(x, guard=True), 4000.1, rtol=5e-6)  # a plain running sum is off by 4e-4
    np.testing.assert_allclose(p(x[:129], guard=True), 12.9, rtol=3e-6)


def test_statistics_of_channels_last_images_are_whole_passes() -> None:
    t = tensor_type(["n", "c", "h", "w"], "float32", Layout.channels_last(4))

    def body(b: Any, x: Any) -> Any:
        c = b.sub(x, b.keep_dims(b.mean(x, dims=(0, 2, 3)), x, (0, 2, 3)))
        v = b.mean(b.mul(c, c), dims=(0, 2, 3))
        return b.div(c, b.keep_dims(b.sqrt(b.add(v, b.full_like(v, 1e-5))), x, (0, 2, 3)))

    func = standard(build("f", [t], body))
    p = Program(func)
    assert all(k["outer"] == 0 and k["depth"] <= 2 for k in loops(p))
    assert "n" not in str(p.meta["workspace"]).replace("floordiv", "")  # nothing of the image's size is kept
    for shape in ((2, 3, 4, 5), (3, 1, 2, 2)):
        agree(func, p, RNG.normal(size=shape).astype("float32"), scale=10)


def test_offsets_into_the_workspace_are_one_number_to_the_code_generator():
    """LLVM's loop passes try every way to split a sum of sizes: of a Hessian with thirty buffers they took nine tenths of the time."""
    x = np.ones((3, 4))
    text = ag.compile(lambda x: np.sum((x @ x.T) @ (np.exp(x) @ x.T))).lower(x).llvm_ir
    offsets = re.findall(r"getelementptr inbounds i8, ptr %\S+, i64 (%\w+)", text)
    assert offsets and all(f"{v} = freeze i64" in text for v in offsets)


@pytest.mark.parametrize("rank", [7, 9, 24])
def test_deep_nests_are_few_loops(rank: int) -> None:
    """No more loops than a few in each other, whatever the rank: LLVM's time grows fast with depth. The outermost take their index apart."""
    shape = [2 if d % 4 == 1 else 1 + 2 * (d == rank - 1) for d in range(rank)]
    rng = np.random.default_rng(rank)
    turned, some = tuple(rng.permutation(rank)), tuple(range(rank // 2))
    programs = {
        "turned": lambda b, x: b.mul(b.permute(x, perm=tuple(map(int, turned))), b.permute(x, perm=tuple(map(int, turned)))),
        "added": lambda b, x: b.sum(b.permute(x, perm=tuple(range(rank))[::-1]), dims=some),
        "greatest": lambda b, x: b.amax(b.permute(x, perm=tuple(range(rank))[::-1]), dims=some),
    }
    x = rng.normal(size=shape)
    for name, body in programs.items():
        func = standard(build("f", [tensor_type([f"n{d}" for d in range(rank)])], body))
        p = Program(func)
        assert max(k["depth"] for k in p.meta["kernels"]) <= 8, name
        agree(func, p, x)


def test_long_programs_are_several_nests() -> None:
    """Thousands of operations, and of sums, are parted: LLVM's time grows faster than the body of a loop. Bits do not depend on where."""
    def chain(b: Any, x: Any, rounds: int = 400) -> Any:
        for _ in range(rounds):
            x = b.mul(b.sin(x), b.sin(x))
        return x

    def sums(b: Any, *xs: Any) -> Any:
        return tuple(b.sum(b.mul(x, y), dims=(0,)) for x, y in zip(xs, xs[1:]))

    def made(body: Any, count: int) -> Any:
        return Program(standard(build("f", [tensor_type(["n"])] * count, body)))

    x, xs = RNG.normal(size=9), list(RNG.normal(size=(150, 9)))
    long, many, short, one = made(chain, 1), made(sums, 150), made(lambda b, x: chain(b, x, 50), 1), made(sums, 2)
    assert all(1 < len(p.meta["kernels"]) <= 5 for p in (long, many)) and len(short.meta["kernels"]) == 1
    want = x
    for _ in range(8):
        want = short(want)
    np.testing.assert_array_equal(long(x), want)
    np.testing.assert_array_equal(many(*xs), [one(a, b) for a, b in zip(xs, xs[1:])])
