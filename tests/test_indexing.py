"""Index expressions against NumPy: values, gradients, writes; eager, forward mode, and traced with symbolic sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aotgrad as ag
from aotgrad.frontend import indexing
from aotgrad.ir import interp

SETTINGS = settings(max_examples=120, deadline=None, derandomize=True)


@st.composite
def basic_part(draw: Any, n: int) -> Any:
    kind = draw(st.sampled_from(["int", "slice", "slice", "full"]))
    if kind == "int" and n:
        return draw(st.integers(-n, n - 1))
    if kind == "slice":
        bound = st.none() | st.integers(-n - 2, n + 2)
        return slice(draw(bound), draw(bound), draw(st.none() | st.sampled_from([1, 2, 3, -1, -2])))
    return slice(None)


@st.composite
def expressions(draw: Any, arrays: bool = True, least: int = 0) -> tuple[np.ndarray[Any, Any], Any]:
    """An array and an index for it: basic parts, integer arrays that broadcast together, a mask, None and ``...`` anywhere."""
    rank = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(least, 4)) for _ in range(rank))
    x = np.random.default_rng(draw(st.integers(0, 99))).normal(size=shape)
    block = draw(st.sampled_from([(), (2,), (3,), (2, 3), (0,)]))
    parts: list[Any] = []
    for n in shape[:draw(st.integers(0, rank))]:
        choice = draw(st.sampled_from(["basic", "basic", "array", "mask"])) if arrays else "basic"
        if choice == "array" and (n or 0 in block):
            own = block[draw(st.integers(0, len(block))):]
            own = tuple(1 if draw(st.booleans()) and d != 0 else d for d in own)
            own = own if n else (0,)
            values = [draw(st.integers(-n, n - 1)) for _ in range(int(np.prod(own, dtype=int)))]
            parts.append(np.array(values, draw(st.sampled_from([np.int64, np.int32]))).reshape(own))
        elif choice == "mask" and not any(isinstance(p, np.ndarray) for p in parts) and block == ():
            parts.append(np.array([draw(st.booleans()) for _ in range(n)], bool))
        else:
            parts.append(draw(basic_part(n)))
    if draw(st.booleans()) and len(parts) < rank:
        at = draw(st.integers(0, len(parts)))
        parts.insert(at, Ellipsis)
        parts[at + 1:] = _fitted(draw, parts[at + 1:], shape)
    for _ in range(draw(st.integers(0, 2))):
        parts.insert(draw(st.integers(0, len(parts))), None)
    return x, tuple(parts)


def _fitted(draw: Any, parts: list[Any], shape: tuple[int, ...]) -> list[Any]:
    return [draw(basic_part(n)) for n in shape[len(shape) - len(parts):]] if parts else []


def numpy_result(x: Any, index: Any) -> Any:
    try:
        return x[index]
    except (IndexError, ValueError):
        return None


@SETTINGS
@given(expressions())
def test_values_and_gradients(case: tuple[Any, Any]) -> None:
    x, index = case
    want = numpy_result(x, index)
    if want is None:
        with pytest.raises((IndexError, ValueError)):
            ag.tensor(x)[index]
        return
    t = ag.tensor(x, requires_grad=True)
    got = t[index]
    assert got.shape == np.shape(want)
    np.testing.assert_array_equal(got.detach().numpy(), want)
    weights = np.random.default_rng(1).normal(size=np.shape(want))
    (g,) = ag.autograd.grad(got, [t], ag.tensor(weights))
    expected = np.zeros_like(x)
    np.add.at(expected, index, weights)
    np.testing.assert_allclose(g.numpy(), expected, rtol=1e-14, atol=1e-14)


@SETTINGS
@given(expressions())
def test_writes(case: tuple[Any, Any]) -> None:
    x, index = case
    part = numpy_result(x, index)
    if part is None:
        return
    v = np.random.default_rng(2).normal(size=np.shape(part))
    expected = x.copy()
    expected[index] = v
    plain = ag.tensor(x)
    address = plain.data_ptr()
    plain[index] = v
    np.testing.assert_array_equal(plain.numpy(), expected)
    assert plain.data_ptr() == address  # in place
    np.testing.assert_array_equal(ag.tensor(x).at[index].set(v).numpy(), expected)
    added = x.copy()
    np.add.at(added, index, v)
    np.testing.assert_allclose(ag.tensor(x).at[index].add(v).numpy(), added, rtol=1e-14)
    raised = x.copy()
    np.maximum.at(raised, index, v)
    np.testing.assert_array_equal(ag.tensor(x).at[index].max(v).numpy(), raised)


@SETTINGS
@given(expressions())
def test_recorded_writes(case: tuple[Any, Any]) -> None:
    """d/dx and d/dv of sum(w * (x with v written)), against where each element of the result comes from."""
    x, index = case
    part = numpy_result(x, index)
    if part is None:
        return
    tx, tv = ag.tensor(x, requires_grad=True), ag.tensor(np.random.default_rng(3).normal(size=np.shape(part)), requires_grad=True)
    y = tx * 1.0
    y[index] = tv
    source = np.arange(x.size).reshape(x.shape)
    source[index] = x.size + np.arange(tv.numel()).reshape(np.shape(part))
    both = np.concatenate([x.ravel(), tv.detach().numpy().ravel()])
    np.testing.assert_array_equal(y.detach().numpy(), both[source])
    weights = np.random.default_rng(4).normal(size=x.shape)
    gx, gv = ag.autograd.grad(y, [tx, tv], ag.tensor(weights))
    expected = np.zeros(both.size)
    np.add.at(expected, source, weights)
    np.testing.assert_allclose(np.concatenate([gx.numpy().ravel(), gv.numpy().ravel()]), expected, rtol=1e-14)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(expressions(least=1))
def test_traced_with_symbolic_sizes(case: tuple[Any, Any]) -> None:
    x, index = case
    want = numpy_result(x, index)
    if want is None or any(isinstance(p, np.ndarray) and p.dtype == bool for p in index):
        return

    def read(a: Any) -> Any:
        return a[index]

    def write(a: Any) -> Any:
        a = a * 1.0
        a[index] = 7.0
        return a

    arrays = [p for p in index if isinstance(p, np.ndarray)]
    func = ag.compile(read).trace(x)
    np.testing.assert_array_equal(interp.run(func, x, *arrays)[0], want)
    expected = x.copy()
    expected[index] = 7.0
    np.testing.assert_array_equal(interp.run(ag.compile(write).trace(x), x, *arrays)[0], expected)


@pytest.mark.parametrize("index", [
    np.s_[1:], np.s_[:-1], np.s_[2:-1], np.s_[::2], np.s_[::-1], np.s_[-3:], np.s_[:-3:-1], np.s_[5:1:-2], np.s_[-2:1], np.s_[1:4], np.s_[None, 3:], np.s_[-4:-1:2],
    np.s_[:100], np.s_[100:],
])
def test_one_trace_serves_every_size(index: Any) -> None:
    func = ag.compile(lambda a: a[index]).trace(np.arange(6.0))
    for n in range(9):
        x = np.arange(float(n))
        np.testing.assert_array_equal(interp.run(func, x)[0], x[index])
        if isinstance(func.out_types[0].size, int):
            assert np.size(x[index]) == func.out_types[0].size


def test_one_trace_serves_every_size_that_has_the_index() -> None:
    f = ag.compile(lambda a: a[2] * a[-3] + a[a.shape[0] // 2] + a[0])
    func = f.trace(np.arange(6.0))
    for n in (3, 5, 9):
        x = np.arange(float(n)) + 1
        assert interp.run(func, x)[0] == x[2] * x[-3] + x[n // 2] + x[0]
    assert float(f(np.arange(7.0))) == 2 * 4 + 3 + 0 and float(f(np.arange(9.0))) == 2 * 6 + 4
    assert f.cache_info().variants == 1
    with pytest.raises(ag.AotgradIndexError, match="index 2 is out of bounds for dimension 0 with size 2"):
        f(np.arange(2.0))  # the guard sends it to a trace of its own


def test_sizes_in_bounds() -> None:
    def f(a: Any) -> Any:
        n = a.shape[0]
        return a[:n - 1] + a[1:n], a[n // 2]

    func = ag.compile(f).trace(np.arange(7.0))
    for n in (1, 4, 7):
        x = np.arange(float(n)) ** 2
        pair, middle = interp.run(func, x)
        np.testing.assert_array_equal(pair, x[:-1] + x[1:])
        assert middle == x[n // 2]


def test_separated_advanced_indices_go_to_the_front() -> None:
    x = np.arange(120.0).reshape(2, 3, 4, 5)
    for index in (np.s_[[0, 1], :, [1, 2]], np.s_[:, [0, 2], :, [1, 3]], np.s_[0, :, [1, 2]], np.s_[:, [0, 1], [1, 2]], np.s_[[[0], [1]], :, :, [[1, 2, 3]]],
        np.s_[:, 1, None, [0, 2]]):
        assert ag.tensor(x)[index].shape == x[index].shape
        np.testing.assert_array_equal(ag.tensor(x)[index].numpy(), x[index])


def test_masks() -> None:
    x = np.arange(12.0).reshape(3, 4)
    t = ag.tensor(x, requires_grad=True)
    np.testing.assert_array_equal(t[t > 4].detach().numpy(), x[x > 4])
    np.testing.assert_array_equal(t[np.array([True, False, True])].detach().numpy(), x[[0, 2]])
    np.testing.assert_array_equal(t[True].detach().numpy(), x[True])
    np.testing.assert_array_equal(t[:, False].detach().numpy(), x[:, False])
    with pytest.raises(ag.AotgradIndexError, match="shape of the mask"):
        t[np.array([True, False])]
    (g,) = ag.autograd.grad((t[t > 4] ** 2).sum(), [t])
    np.testing.assert_array_equal(g.numpy(), np.where(x > 4, 2 * x, 0))


def test_traced_masks() -> None:
    with pytest.raises(ag.AotgradIndexError, match=r"test_indexing.py:\d+.*ag.where"):
        ag.compile(lambda a: a[a > 0]).trace(np.ones(3))

    def write(a: Any) -> Any:
        b = a * 1.0
        b[a < 0] = 0.0
        return b.at[a > 2].mul(10.0)

    x = np.array([-1.0, 1.0, 3.0])
    np.testing.assert_array_equal(interp.run(ag.compile(write).trace(x), x)[0], [0.0, 1.0, 30.0])
    np.testing.assert_array_equal(ag.grad(lambda a: np.sum(write(a)))(x), [0.0, 1.0, 10.0])


def test_traced_integers() -> None:
    def f(a: Any, i: Any) -> Any:
        row = a[i]
        return row * a[-1], a[i, 0], a.at[i].set(0.0)

    x = np.arange(6.0).reshape(3, 2)
    func = ag.compile(f).trace(x, np.int64(1))
    for i in (0, 2, -1):
        row, item, zeroed = interp.run(func, x, np.array(i))
        expected = x.copy()
        expected[i] = 0
        np.testing.assert_array_equal(row, x[i] * x[-1])
        assert item == x[i, 0]
        np.testing.assert_array_equal(zeroed, expected)
    with pytest.raises(ag.AotgradIndexError):
        interp.run(func, x, np.array(3))


def test_repeated_indices() -> None:
    x = ag.tensor([1.0, 2.0])
    assert x.at[[0, 0, 1]].add(ag.tensor([1.0, 2.0, 3.0])).tolist() == [4.0, 5.0]
    assert x.at[[0, 0]].mul(3.0).tolist() == [9.0, 2.0]
    assert x.at[[0, 0]].set(ag.tensor([5.0, 6.0])).tolist() == [6.0, 2.0]
    assert x.at[[1, 1]].min(ag.tensor([5.0, 0.5])).tolist() == [1.0, 0.5]
    v = ag.tensor([5.0, 6.0], requires_grad=True)
    (g,) = ag.autograd.grad(x.at[[0, 0]].set(v).sum(), [v])
    assert g.tolist() == [0.0, 1.0]  # the last write stays
    (g,) = ag.autograd.grad(x.at[[0, 0]].mul(v)[0], [v])
    assert g.tolist() == [6.0, 5.0]


@pytest.mark.parametrize(("index", "message"), [
    (3, "index 3 is out of bounds for dimension 0 with size 3"), (-4, "index -4"), ([0, 5], "index 5 is out of bounds for dimension 0 with size 3"),
    (([0, 1], [0, 2]), "index 2 is out of bounds for dimension 1 with size 2"), ((0, 0, 0), "too many indices"), (1.5, "float is no index"), ("a", "str is no index"),
    (np.array([0.5]), "integers or booleans"), ((Ellipsis, Ellipsis), "single ellipsis"),
])
def test_bad_indices(index: Any, message: str) -> None:
    x = ag.zeros(3, 2)
    with pytest.raises(ag.AotgradIndexError, match=message):
        x[index]
    with pytest.raises(ag.AotgradError):
        x[index] = 1.0


def test_values_that_do_not_fit() -> None:
    x = ag.zeros(3, 2)
    with pytest.raises(ag.AotgradValueError):
        x[0] = ag.ones(3)
    y = ag.zeros(3, 2, requires_grad=True) * 1.0
    with pytest.raises(ag.AotgradValueError, match="does not fit|differ"):
        y[0] = ag.ones(3)
    x[0] = np.ones((1, 1, 2))  # leading dims of size 1 are dropped, as in NumPy
    assert x[0].tolist() == [1.0, 1.0]


def test_forward_mode_agrees_with_reverse() -> None:
    x = np.random.default_rng(5).normal(size=(4, 3))
    t = np.random.default_rng(6).normal(size=(4, 3))

    def f(a: Any) -> Any:
        b = a * 2.0
        b[1:3, [0, 2]] = a[0, 1] * a[:2, :2]
        b[0] += b[-1]
        return np.sum(b ** 3)

    _, moved = ag.jvp(f, (x,), (t,))
    assert moved == pytest.approx(float(np.sum(ag.grad(f)(x) * t)), rel=1e-12)
    eps = 1e-6
    assert moved == pytest.approx((f(x + eps * t) - f(x - eps * t)) / (2 * eps), rel=1e-6)


def test_second_order_through_indexing() -> None:
    x = np.array([1.0, 2.0, 3.0])

    def f(a: Any) -> Any:
        return np.sum(a[1:] * a[:-1] ** 2) + a[[0, 0]].sum() * a[2]

    expected = np.array([[2 * x[1], 2 * x[0], 2.0], [2 * x[0], 2 * x[2], 2 * x[1]], [2.0, 2 * x[1], 0.0]])
    np.testing.assert_allclose(ag.hessian(f)(x), expected, rtol=1e-14)


def _write(x, i):
    y = np.zeros_like(x)
    y[i] = 1.0
    return y


_A, _B = np.arange(3.0), np.ones((3, 4))
OUT_OF_RANGE = {  # the function, its arguments, and index, dim and size that the message names
    "array": (lambda x, i: x[i], (_A, np.array([0, -4])), (-4, 0, 3)),
    "above": (lambda x, i: x[i], (_A, np.array([0, 7])), (7, 0, 3)),
    "number": (lambda x, i: x[i], (_A, -4), (-4, 0, 3)),
    "second dim": (lambda x, i: x[:, i], (_B, np.array([0, -9])), (-9, 1, 4)),
    "pair": (lambda x, i, j: x[i, j], (_B, np.array([0, 1]), np.array([0, -9])), (-9, 1, 4)),
    "first of a pair": (lambda x, i, j: x[i, j], (_B, np.array([3, 1]), np.array([0, 9])), (3, 0, 3)),
    "far": (lambda x, i, j: x[i, j], (_B, np.array([0, 1]), np.array([0, -(1 << 40)])), (-(1 << 40), 1, 4)),
    "take_along_axis": (lambda x, i: np.take_along_axis(x, i, axis=1), (_B, np.array([[0], [1], [-7]])), (-7, 1, 4)),
    "take": (lambda x, i: np.take(x, i), (_B, np.array([0, -17])), (-17, 0, 12)),
    "write": (_write, (_A, np.array([0, -5])), (-5, 0, 3)),
    "add": (lambda x, i: x.at[i, i].add(2.0), (_B, np.array([0, 3])), (3, 0, 3)),
    "mul": (lambda x, i: x.at[i].mul(2.0), (_A, np.array([0, -5])), (-5, 0, 3)),
    "gradient": (ag.grad(lambda x, i: (x[i] ** 2).sum()), (_A, np.array([0, -5])), (-5, 0, 3)),
    "loop": (lambda x: ag.fori_loop(0, 6, lambda k, a: a + x[-k - 1], 0.0), (_A,), (-4, 0, 3)),
    "vmap": (ag.vmap(lambda x, i: x[i]), (_B, np.array([0, -9, 1])), (-9, 0, 4)),
    "vmap of pairs": (ag.vmap(lambda x, i: x[0, i, i]), (np.ones((2, 1, 3, 4)), np.array([0, 3])), (3, 1, 3)),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_messages_name_index_dim_size_and_line(name):
    f, args, (index, dim, size) = OUT_OF_RANGE[name]
    with pytest.raises(IndexError, match=rf"test_indexing.py:\d+: .*index {index} is out of bounds for dimension {dim} with size {size}$"):
        ag.compile(f)(*args)
    if "vmap" not in name:  # eager calls, and the plain function on tensors
        with pytest.raises(IndexError, match=rf"index {index} is out of bounds for (dimension|axis) {dim} with size {size}$"):
            f(*[ag.tensor(a) if isinstance(a, np.ndarray) else a for a in args])


def test_without_checks_indices_are_clamped_and_writes_dropped():
    run = lambda f, *args: ag.compile(f, checks=False)(*args)
    x = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(run(lambda x, i: x[i], _A, np.array([0, -5, 7, -1])), [0, 0, 2, 2])
    np.testing.assert_array_equal(run(lambda x, i, j: x.at[i, j].add(1.0), x, np.array([0, 3, -1]), np.array([0, 0, -4])), x + np.eye(3, 4) * [[1], [0], [0]] +
                                  [[0] * 4, [0] * 4, [1, 0, 0, 0]])


@pytest.mark.parametrize("dtype", [ag.float32, ag.float64, ag.int64, ag.bool, ag.bfloat16])
@pytest.mark.parametrize("grad", [False, True])
def test_the_short_way_of_integers_and_slices_is_the_general_one(monkeypatch: pytest.MonkeyPatch, dtype: Any, grad: bool) -> None:
    grad = grad and dtype.is_floating_point
    short = indexing._part
    exprs = [0, -1, (1, 2), (1, -1, 0), slice(1, 3), (slice(None), 1), (slice(0, 9, 2), slice(-2, None)), slice(2, 2), slice(5, 1), (0, slice(None), 1),
             (slice(1, 2), slice(1, 2)), (), True, (True, 0), None, (..., 0), 4, (0, 7), (0, 0, 0, 0), slice(None, None, -1), 1.0, np.int64(2), slice(np.int64(1), None)]
    found: list[Any] = []
    for way in (short, lambda x, index: None):
        monkeypatch.setattr(indexing, "_part", way)
        found.append([])
        for index in exprs:
            base = ag.ones(3, 6, 4).to(dtype)
            base.requires_grad_(grad)
            x = base[:, ::2].transpose(0, 1)
            try:
                y = x[index]
            except Exception as error:
                found[-1].append((type(error), str(error)))
                continue
            back = None
            if grad:
                y.sum().backward()
                back = base.grad.tolist()
            with ag.no_grad():
                base[1, :2].zero_()
            node = type(y.grad_fn).__name__, [type(n).__name__ for n, _ in y.grad_fn.next_functions] if grad else None
            found[-1].append((y.tolist(), y.dtype, y.shape, y.stride(), y.storage_offset(), node, y.requires_grad, y._is_view(), y._version, base.tolist(), back))
    assert str(found[0]) == str(found[1])


@pytest.mark.parametrize("wrap", [lambda f: f, ag.compile], ids=["eager", "compiled"])
def test_narrow_from_a_place_that_is_a_tensor(wrap: Any) -> None:
    x = ag.arange(12.0).reshape(4, 3)
    part = wrap(lambda x, i: ag.narrow(x, 0, i, 2) * 1.0)
    for i in range(-4, 3):
        if i != -1:
            assert part(x, ag.tensor(i)).tolist() == ag.narrow(x, 0, i, 2).tolist(), i
    for i in (-6, -5, -1, 3, 4):
        with pytest.raises(ag.AotgradError):
            part(x, ag.tensor(i))
