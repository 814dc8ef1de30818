"""One order of sums on every road: random programs as one kernel, op by op, and with sizes known ahead give the same bits."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest
import sweep
from lowering_harness import Program
from test_lowering_random import Maker

from aotgrad.ir import Layout, dims, interp, tensor_type
from aotgrad.ir.core import Block, Func, Op, Value
from aotgrad.ir.transforms.cleanup import standard
from aotgrad.ir.transforms.rewrite import substitute_func
from aotgrad_runtime.dtypes import float32, float64

SEEDS = int(os.environ.get("AOTGRAD_ORDER_SEEDS", "12"))
SIZES = ((5, 4), (33, 3), (17, 21), (3, 70), (300, 9), (2, 3), (300, 1), (1, 40), (9, 1), (1, 1))
_alone: dict[Any, Program] = {}


class SumMaker(Maker):
    """Programs in which most things are sums, or feed them: of two dtypes, in several layouts."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        other = {"float32": "float64", "float64": "float32"}[self.values[0].type.dtype.name]
        for shape, layout, dtype in ((("n", "m"), Layout((1, 0)), other), (("n", 3, "m", 2), Layout.channels_last(4), self.values[0].type.dtype.name)):
            self.values.append(self.block.add_arg(tensor_type(shape, dtype, layout)))

    def grow(self, steps: int) -> None:
        kinds = (self.unary, self.binary, self.reduce, self.reduce, self.plain_sum, self.plain_sum, self.softmax, self.permute, self.slice, self.broadcast,
                 self.reshape, self.dot, self.cumsum, self.relayout, self.flip, self.scatter, self.insert, self.concatenate, self.cast)
        for _ in range(steps):
            made = self.rng.choice(kinds)(self.rng.choice(self.values))
            if made is not None:
                self.values.append(made)

    def cast(self, x: Value) -> Any:
        return self.b.cast(x, dtype=float64 if x.type.dtype is float32 else float32)

    def plain_sum(self, x: Value) -> Any:
        rank = len(x.type.shape)
        over = tuple(sorted(self.rng.sample(range(rank), self.rng.randint(min(rank, 1), rank))))
        out = getattr(self.b, self.rng.choice(("sum", "sum", "sum", "prod")))(x, dims=over)
        return self.b.keep_dims(out, x, over) if self.rng.random() < 0.5 and x.type.layout is None else out


def make(seed: int, steps: int = 14) -> Func:
    maker = SumMaker(seed)
    maker.grow(steps)
    last = [v for v in maker.values if v.op is not None]
    maker.block.outputs = [*last[-3:], maker.rng.choice(last), maker.rng.choice(last)]
    return standard(Func("f", maker.block))


def known(func: Func, sizes: dict[str, int]) -> Func:
    """The program with its sizes as numbers."""
    return standard(substitute_func(func, sizes))


def run(program: Program, args: list[Any]) -> tuple[Any, ...]:
    found = program(*args)
    return found if isinstance(found, tuple) else (found,)


def run_alone(func: Func, arrays: list[Any], sizes: dict[str, int]) -> list[Any]:
    """Each op by a kernel of its own, for any size where its operands say all sizes."""
    env = dict(zip(func.body.args, arrays))
    for op in func.body.ops:
        single = Block()
        given, args = [], []
        for o in op.operands:
            views: list[Op] = []  # a product reads a transposed matrix where it lies, on every road
            while op.name == "dot" and o.op is not None and o.op.name in ("permute", "relayout"):
                views.append(o.op)
                (o,) = o.op.operands
            given.append(o)
            args.append(single.add_arg(o.type))
            for view in reversed(views):
                single.ops.append(Op(view.name, [args[-1]], [view.result.type], view.attrs))
                args[-1] = single.ops[-1].result
        single.ops.append(Op(op.name, args, [r.type for r in op.results], op.attrs))
        single.outputs = list(single.ops[-1].results)
        bare = {d.as_symbol() for o in given for d in o.type.shape if isinstance(d, dims.Dim)}
        one = Func("one", single)
        if not set(one.symbols()) <= bare or any(s in str(op.attrs) for s in {"n", "m"} - bare):
            one = substitute_func(one, sizes)
        key = str(one)
        if key not in _alone:
            _alone[key] = Program(one)
        env.update(zip(op.results, run(_alone[key], [env[o] for o in given])))
    return [env[v] for v in func.body.outputs]


def same(got: Any, want: Any) -> bool:
    return got.shape == want.shape and bool(np.all((got == want) & (np.signbit(got) == np.signbit(want)) | ((got != got) & (want != want))))


def close(got: Any, want: Any) -> bool:
    """Whether numbers agree about as well as sums of any order do."""
    eps = 1e4 * float(np.finfo(np.float32).eps)
    scale = max(1.0, float(np.max(np.abs(want), initial=0, where=np.isfinite(want))))
    return bool(np.all(np.isfinite(got) == np.isfinite(want)) and np.allclose(got, want, rtol=eps, atol=eps * scale, equal_nan=True))


@pytest.mark.parametrize("seed", sweep.part(range(SEEDS)))
def test_one_kernel_op_by_op_and_known_sizes(seed: int) -> None:
    func = make(seed)
    whole = Program(func)
    values = [*func.body.args, *(r for op in func.body.ops for r in op.results)]
    fits = [s for s in ({"n": n, "m": m} for n, m in SIZES) if all(dims.substitute(v.type.size, s) < 100_000 for v in values)]
    sizes = random.Random(seed).choice(fits)
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=[dims.substitute(d, sizes) for d in t.shape]).astype(t.dtype.np) for t in func.arg_types]
    with np.errstate(all="ignore"):
        found = run(whole, arrays)
        alone = run_alone(func, arrays, sizes)
        fixed = run(Program(known(func, sizes)), arrays)
        plain = interp.run(func, *arrays)
    for i, (a, b, c) in enumerate(zip(found, alone, fixed)):
        assert same(a, b), f"output {i} is not what its ops give one by one\n{func}"
        assert same(a, c), f"output {i} is another for sizes known ahead\n{func}"
        assert close(a, plain[i]), f"output {i} is not the sum\n{func}"
