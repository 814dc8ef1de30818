"""Tensors beside torch: printing, operators with numbers, attributes, copies; control flow on values; memory."""

from __future__ import annotations

import ast
import contextlib
import copy
import gc
import operator
import pickle
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flat
import numpy as np
import pytest
from autograd_pair import HAS_TORCH, modules

import aotgrad as ag

needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


def _text(m: Any, lines: Callable[[Any], Any]) -> str:
    """The printed form of what ``lines(m)`` gives, or the built-in types of its error."""
    try:
        return repr(lines(m)).replace("torch.", "aotgrad.")
    except Exception as error:
        return "/".join(sorted({c.__name__ for c in type(error).__mro__ if c.__module__ == "builtins"} - {"object", "BaseException", "Exception"}))


def _equal(lines: Callable[[Any], Any], what: Any = "") -> None:
    ours, theirs = (_text(m, lines) for m in modules())
    assert ours == theirs, what


# ---- printing ---------------------------------------------------------------------------------------------------------------------------

VALUES = [
    [0.1, -2.5, 3.75], [1.0, 2.0, -3.0], [1e10, 1.0, -2.0], [1e-7, 1.0, 2.0], [float("nan"), 1.0, float("inf")], [-float("inf"), 0.5, -0.0], [0.0, -0.0, 0.0],
    [float("nan")] * 2, [1e-5, 1e5, 3.0], [123456789.0, 2.0], [1000.5, 0.001],
]


@needs_torch
@pytest.mark.parametrize("dtype", [*DTYPES, "complex64", "complex128"])
def test_prints_as_torch(dtype: str) -> None:
    for values in VALUES:
        whole = [0 if x != x or abs(x) > 100 else int(abs(x)) for x in values]
        given: list[Any] = values if dtype[:2] in ("fl", "bf", "co") else whole
        for make in (lambda m, v=given: m.tensor(v, dtype=getattr(m, dtype)), lambda m, v=given: m.tensor(v[0], dtype=getattr(m, dtype)),
                     lambda m, v=given: m.tensor([v, v], dtype=getattr(m, dtype))):
            _equal(make, given)
    for shape in ((0,), (2, 0), (2, 3, 4), (2, 30, 40, 2), (2000,), (1, 1, 1)):
        _equal(lambda m, s=shape: m.tensor(np.arange(np.prod(s)).reshape(s) % 7).to(getattr(m, dtype)) if dtype[0] != "c" else 0, shape)


GRAPHS: dict[str, Callable[[Any], Any]] = {
    "leaf": lambda a: a, "add": lambda a: a + a, "mul": lambda a: a * 2, "neg": lambda a: -a, "div": lambda a: a / 3, "pow": lambda a: a**2, "exp": lambda a: a.exp(),
    "log": lambda a: a.log(), "sum": lambda a: a.sum(), "mean": lambda a: a.mean(), "view": lambda a: a.view(3, 1), "transposed": lambda a: a.reshape(3, 1).t(),
    "index": lambda a: a[0], "slice": lambda a: a[1:], "mask": lambda a: a[a > 0], "dot": lambda a: a @ a, "clamp": lambda a: a.clamp(0), "relu": lambda a: a.relu(),
    "softmax": lambda a: a.softmax(0), "std": lambda a: a.std(), "detach": lambda a: a.detach(), "expand": lambda a: a.expand(2, 3), "long": lambda a: a.long(),
    "compare": lambda a: a > 0, "sin": lambda a: a.sin(), "chunk": lambda a: a.chunk(2), "unbind": lambda a: a.unbind(), "in place": lambda a: a.clone().add_(1),
    "rsqrt": lambda a: a.abs().rsqrt(), "shape": lambda a: (a.shape, a.shape + (4,), a.shape[:1], a.size(-1), a.stride(), a.dtype),
    "str": lambda a: f"{a} {a[0].item():.2f}",
}


@needs_torch
@pytest.mark.parametrize("name", GRAPHS)
def test_results_print_as_torchs(name: str) -> None:
    for dtype in ("float64", "float32"):
        _equal(lambda m, d=dtype: GRAPHS[name](m.tensor([0.5, -1.25, 2.0], dtype=getattr(m, d), requires_grad=True)))


# ---- operators with numbers -----------------------------------------------------------------------------------------------------------------

OPERATORS = {n: getattr(operator, n) for n in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "eq", "ne", "lt", "le", "gt", "ge")}
NUMBERS: dict[str, Any] = {
    "int": 3, "negative": -2, "float": 2.5, "bool": True, "np.float64": np.float64(2.5), "np.float32": np.float32(2.5), "np.float16": np.float16(1.5),
    "np.int64": np.int64(3), "np.int32": np.int32(3), "np.uint8": np.uint8(3),
}


@needs_torch
@pytest.mark.parametrize("name", OPERATORS)
def test_numbers_on_either_side(name: str) -> None:
    """Values and dtypes; NumPy's scalars are plain numbers, so the tensor's dtype stays."""
    f = OPERATORS[name]
    for dtype in ("float64", "float32", "int64", "int32", "uint8"):
        for key, number in NUMBERS.items():
            for left in (True, False):
                def lines(m: Any, dtype: str = dtype, number: Any = number, left: bool = left) -> Any:
                    t = m.tensor([1, 2, 3]).to(getattr(m, dtype))
                    out = f(t, number) if left else f(number, t)
                    return out.dtype, [round(float(v), 4) + 0.0 for v in out.tolist()]
                if not (name == "pow" and key == "negative" and "int" in dtype) and not (key == "bool" and name == "sub"):
                    _equal(lines, (dtype, key, left))


def test_numpy_scalars_keep_the_dtype() -> None:
    x = ag.ones(3, dtype=ag.float32, requires_grad=True)
    for number in (np.float64(2.0), np.float32(2.0), np.int64(2)):
        for y in (x * number, number * x, x + number, number - x):
            assert y.dtype is ag.float32 and y.requires_grad and isinstance(y, ag.Tensor)
    assert (ag.tensor([1, 2]) * np.float64(1.5)).dtype is ag.float32
    with pytest.raises(TypeError):
        x @ 2.0


# ---- attributes, copies, protocols ------------------------------------------------------------------------------------------------------------

def _matrix(m: Any, grad: bool = False) -> Any:
    return m.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=grad)


def _kept(m: Any, again: Callable[[Any], Any]) -> Any:
    x = _matrix(m, True)
    x.note = "mine"
    y = again(x)
    return y, y.note, y.requires_grad, y.is_leaf, y is x


def _shared(m: Any) -> Any:
    t = _matrix(m)
    a, b = copy.deepcopy([t, t])
    c = copy.copy(t)
    c.fill_(7.0)
    return a is b, t, a


ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda m: _kept(m, lambda x: pickle.loads(pickle.dumps(x))), "copy": lambda m: _kept(m, copy.copy), "deepcopy": lambda m: _kept(m, copy.deepcopy),
    "strides survive": lambda m: pickle.loads(pickle.dumps(_matrix(m).t())).stride(), "deepcopy of a result": lambda m: copy.deepcopy(_matrix(m, True) * 2),
    "what copies share": _shared, "asarray": lambda m: np.asarray(_matrix(m)), "asarray with gradient": lambda m: np.asarray(_matrix(m, True)),
    "float": lambda m: (float(m.tensor(2.5)), int(m.tensor([3])), complex(m.tensor(1.5)), [10, 20][m.tensor(1)], bool(m.tensor(0.0))),
    "float of many": lambda m: float(_matrix(m)), "index by a float": lambda m: [1, 2][m.tensor(1.0)], "bool of many": lambda m: bool(_matrix(m)),
    "bool of none": lambda m: bool(m.zeros(0)), "len": lambda m: len(_matrix(m)), "len of a scalar": lambda m: len(m.tensor(1.0)),
    "iteration": lambda m: list(_matrix(m)),
    "iteration of a scalar": lambda m: list(m.tensor(1.0)), "in": lambda m: (1.0 in _matrix(m), 9.0 in _matrix(m)), "hash": lambda m: len({_matrix(m), _matrix(m)}),
    "sizes": lambda m: (lambda t: (t.size(), t.numel(), t.nelement(), t.ndim, t.dim(), t.ndimension(), t.itemsize, t.nbytes, t.element_size()))(_matrix(m)),
    "kinds": lambda m: (lambda t: (t.is_floating_point(), t.is_complex(), t.is_signed(), t.is_cuda, str(t.device), t.type(), m.is_tensor(t)))(_matrix(m)),
    "dtypes": lambda m: (m.float32.is_floating_point, m.float32.itemsize, m.uint8.is_signed, m.float32.is_complex),
    "turned": lambda m: (lambda t: (t.T, t.mT, t.H, t.real))(_matrix(m)), "data": lambda m: (lambda t: (t.data, t.data.requires_grad))(_matrix(m, True)),
    "versions": lambda m: (lambda t: (t._version, t.add_(1)._version, t[0].zero_()._version, t._version))(_matrix(m)), "item of many": lambda m: _matrix(m).item(),
    "weak reference": lambda m: weakref.ref(_matrix(m))(),
    "new": lambda m: (lambda t: (t.new_zeros(2), t.new_ones((2,)), t.new_full((2,), 3.0), t.new_tensor([1, 2])))(_matrix(m)),
    "set items": lambda m: (lambda t: (t.__setitem__(0, 5.0), t.__setitem__((slice(None), 1), m.tensor([7.0, 8.0])), t)[2])(_matrix(m)),
    "out of range": lambda m: _matrix(m)[5], "too many indices": lambda m: _matrix(m)[0, 0, 0], "write to a leaf": lambda m: _matrix(m, True).add_(1),
    "write of another dtype": lambda m: m.tensor([1, 2]).add_(1.5), "write of another shape": lambda m: m.ones(2).add_(m.ones(3, 2)),
    "from dlpack": lambda m: m.from_dlpack(np.arange(3.0)), "to dlpack": lambda m: np.from_dlpack(_matrix(m)),
    "dlpack with gradient": lambda m: _matrix(m, True).__dlpack__(),
    "numpy": lambda m: _matrix(m).numpy(), "numpy with gradient": lambda m: _matrix(m, True).numpy(), "forced": lambda m: _matrix(m, True).numpy(force=True),
    "ragged": lambda m: m.tensor([[1.0], [1.0, 2.0]]), "text": lambda m: m.tensor("abc"), "where": lambda m: _matrix(m).where(_matrix(m) > 2, m.zeros(2, 2)),
}


@needs_torch
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_as_torchs(name: str) -> None:
    _equal(ATTRIBUTES[name])


@needs_torch
def test_dlpack_shares_memory_with_torch() -> None:
    ours, torch = modules()
    x, y = ours.ones(3), torch.ones(3)
    torch.from_dlpack(x)[0] = 5.0
    ours.from_dlpack(y)[1] = 7.0
    assert x.tolist() == [5.0, 1.0, 1.0] and y.tolist() == [1.0, 7.0, 1.0]


def test_bfloat16_is_rounded_after_each_operation() -> None:
    a = ag.tensor([1.5, -2.25], dtype=ag.bfloat16, requires_grad=True)
    assert (a + 1).tolist() == [2.5, -1.25] and (a * a).sum().dtype is ag.bfloat16
    assert ag.ones(2, dtype=ag.bfloat16).tolist() == [1.0, 1.0] == ag.ones_like(a).tolist()
    assert ag.tensor([1.1]).to(ag.bfloat16).tolist() == [1.1015625]
    (a * a).sum().backward()
    assert a.grad.tolist() == [3.0, -4.5] and a.grad.dtype is ag.bfloat16


# ---- control flow and memory --------------------------------------------------------------------------------------------------------------------

def test_control_flow_on_values() -> None:
    """Each call records its own graph."""
    def f(x: Any) -> Any:
        y, n = x, 0
        while y.norm().item() < 10.0:
            y, n = y * 2, n + 1
        return y.sum() if y.sum().item() > 0 else -y.sum() * n

    for values, want in (([1.0, 1.0], [8.0, 8.0]), ([20.0, 1.0], [1.0, 1.0]), ([-1.0, -1.0], [-24.0, -24.0]), ([-3.0, 1.0], [-8.0, -8.0])):
        x = ag.tensor(values, requires_grad=True)
        f(x).backward()
        assert x.grad.tolist() == want
    x = ag.tensor([3.0, -1.0], requires_grad=True)
    total = sum((v * i if v > 0 else -v for i, v in enumerate(x, 1)), start=ag.tensor(0.0))
    total.backward()
    assert x.grad.tolist() == [1.0, -1.0]


def _refused_shapes() -> None:
    with contextlib.suppress(RuntimeError):
        ag.ones(3) + ag.ones(4)


def _refused_in_a_transform() -> None:
    with contextlib.suppress(ValueError):
        ag.grad(lambda x: (x + np.ones(4)).sum())(np.ones(3))


def _refused_by_python() -> None:
    with contextlib.suppress(TypeError):
        ag.vmap(lambda x: x + "a")(np.ones(3))


@pytest.mark.parametrize("step", [
    _refused_shapes, _refused_in_a_transform, _refused_by_python, lambda: ag.vmap(lambda x: x * 2)(ag.ones(3, 2)), lambda: ag.vmap(lambda x: x.sum())(np.ones((3, 2))),
    lambda: ag.vmap(lambda x: (x * x).sum())(ag.ones(3, 2, requires_grad=True)).sum().backward(),
])
def test_failed_operations_and_vmap_leave_no_cycles(step: Callable[[], Any]) -> None:
    flat.check(step, 5, 50)


def test_what_is_raised_is_no_variable_of_the_frame() -> None:
    """``error = ...; raise error`` makes a cycle of frame and traceback: the variable goes, in a ``finally``, or the value is never one."""
    def own(node: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
                yield child
                yield from own(child)

    root, found = Path(ag.__file__).parents[1], []
    for path in [*(root / "aotgrad").rglob("*.py"), *(root / "runtime").rglob("*.py")]:
        for f in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(f, ast.FunctionDef):
                continue
            nodes = list(own(f))
            gone = {n.name for n in nodes if isinstance(n, ast.ExceptHandler)} | {t.id for n in nodes if isinstance(n, ast.Delete) for t in n.targets
                                                                                 if isinstance(t, ast.Name)}
            kept = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} | {a.arg for a in f.args.args}
            found += [f"{path.name}:{n.lineno}" for n in nodes if isinstance(n, ast.Raise) and isinstance(n.exc, ast.Name) and n.exc.id in kept - gone]
    assert not found


@pytest.mark.parametrize("steps", [20_000, pytest.param(100_000, marks=pytest.mark.thorough)])
def test_memory_is_flat_over_many_steps_without_the_collector(steps: int) -> None:
    """Many steps of forward and backward: what one step makes is gone after it."""
    x = ag.tensor(np.linspace(0.1, 1.0, 10), requires_grad=True)
    w = ag.tensor(np.linspace(0.5, 1.5, 10), requires_grad=True)
    seed = ag.ones(10, dtype=ag.float64)

    def step() -> None:
        y = (x * w).tanh()
        y.backward(seed)
        x.grad = w.grad = None

    for _ in range(500):
        step()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        step()
        before, count = tracemalloc.get_traced_memory()[0], len(gc.get_objects())
        tracemalloc.stop()
        for _ in range(steps):
            step()
        tracemalloc.start()
        step()
        assert len(gc.get_objects()) - count < 100
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()
        gc.enable()
