"""The order of a sum goes by its own dtype and sizes: what else is computed in its loop, and on which road, changes no bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sweep

import aotgrad as ag

C = ag.compile
SIZES = [1, 3, 8, 9, 16, 17, 33, 100, 1000, 2047, 2049, 5000, 70_000, 300_001]


def data(*shape: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(sum(shape))
    return rng.standard_normal(shape).astype(np.float32), rng.standard_normal(shape)


SIBLINGS: dict[str, Any] = {
    "a sum": lambda x, y: (np.sum(x), np.sum(y)), "a sum of both": lambda x, y: (np.sum(x), np.sum(y * y + x)), "elements": lambda x, y: (np.sum(x), np.exp(y) * 2 + x),
    "integers": lambda x, y: (np.sum(x), ag.arange(x.shape[0]) * 2), "a maximum": lambda x, y: (np.sum(x), np.max(y - x)),
    "a mean, then elements": lambda x, y: (np.sum(x), (y - x) * np.sum(x)), "all at once": lambda x, y: (np.sum(x), np.sum(y), np.exp(y) - x, np.prod(y), np.min(y)),
}


@pytest.mark.parametrize("name", SIBLINGS)
def test_wider_values_in_the_loop_do_not_change_a_sum(name: str) -> None:
    fused, alone, wide = C(SIBLINGS[name]), C(lambda x: np.sum(x)), C(lambda y: np.sum(y))
    for n in SIZES:
        x, y = data(n)
        found = fused(x, y)
        assert found[0] == alone(x), n
        if name in ("a sum", "all at once"):
            assert found[1] == wide(y), n


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_and_columns_likewise(axis: int) -> None:
    fused, alone = C(lambda x, y: (np.sum(x, axis=axis), np.exp(y) + x, np.sum(y - x, axis=axis))), C(lambda x: np.sum(x, axis=axis))
    for shape in ((3, 7), (5, 33), (33, 5), (40, 3000), (3000, 40)):
        x, y = data(*shape)
        np.testing.assert_array_equal(fused(x, y)[0], alone(x))


def test_a_compiled_sum_is_the_eager_one() -> None:
    compiled = C(lambda x, y: (ag.sum(x), ag.sum(y), y * 2 + x))
    for n in SIZES:
        x, y = (ag.tensor(v) for v in data(n))
        found = compiled(x, y)
        assert found[0].item() == ag.sum(x).item() and found[1].item() == ag.sum(y).item(), n


ROADS: dict[str, Any] = {
    "sum": lambda x: ag.sum(x), "columns": lambda x: ag.sum(ag.exp(x), 0), "product": lambda x: ag.prod(x, 0),
    "running": lambda x: ag.cumsum(x, 1),
    "log_softmax": lambda x: ag.log_softmax(x, 0), "std": lambda x: ag.std(x, 1), "row added": lambda x: ag.sum((x + x[:1]) ** 2),
    "columns of a row": lambda x: ag.sum(ag.sum(x, 1, keepdim=True), 0), "channels": lambda x: ag.sum(ag.mean(x, tuple(d for d in range(x.ndim) if d != 1)) ** 2),
}
LAYOUTS: dict[str, Any] = {
    "C": np.ascontiguousarray, "fortran": np.asfortranarray, "channels_last": lambda x: np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1),
}


def bits(x: Any) -> bytes:
    return bytes(np.ascontiguousarray(x.detach().numpy() if isinstance(x, ag.Tensor) else x).tobytes())


@pytest.mark.parametrize("name", sweep.part(ROADS, of=4))
def test_one_order_on_every_road(name: str) -> None:
    """Eager and compiled, NumPy arrays and tensors, alone, and beside a gradient and other things; wherever the layout is the same."""
    f = ROADS[name]

    def loss(x: Any) -> Any:
        return ag.sum(ag.sin(f(x)))

    alone, beside = C(f), C(lambda x, y: (ag.sum(y * y + x), f(x), ag.value_and_grad(loss)(x), ag.sum(ag.exp(y) - x, 0)))
    for shape, layouts in (((300, 7), "C fortran"), ((150, 1), "C"), ((2, 40, 3, 3), "C channels_last")):
        plain, y = data(*shape)
        for layout in layouts.split():
            x, note = LAYOUTS[layout](plain), f"{layout} {shape}"
            want, (_, found, (value, _), _) = bits(alone(x)), beside(x, y)
            assert bits(found) == bits(alone(ag.from_numpy(x))) == want, note
            if layout == "C":
                assert bits(f(x)) == bits(f(ag.tensor(x, requires_grad=True))) == want and bits(loss(x)) == bits(value), note


@pytest.mark.parametrize("name", ("columns", "columns of a row", "channels"))
def test_built_for_any_size_and_for_one(name: str, tmp_path: Any) -> None:
    for i, (shape, layout) in enumerate((((150, 1), "C"), ((40, 7), "C"), ((2, 40, 3, 3), "channels_last"))):
        x = LAYOUTS[layout](data(*shape)[0])
        want = bits(C(ROADS[name])(x))
        for kind, sizes in (("any", "abcd"[:x.ndim]), ("one", map(str, shape))):
            text = f"x: f32[{', '.join(sizes)}]" + (" channels_last" if layout != "C" else "")
            built = ag.aot.build(ROADS[name], [text], name=f"s{i}{kind}", out=tmp_path, emit=("so",))
            assert bits(getattr(ag.load(built.library), f"s{i}{kind}")(x)) == want, text


COMPOSITES: dict[str, Any] = {
    "std": lambda x: ag.std(x, 0), "softmax": lambda x: ag.softmax(x, -1), "log_softmax": lambda x: ag.log_softmax(x, 1), "var": lambda x: ag.var(x, -1),
}


@pytest.mark.parametrize("name", sweep.part(COMPOSITES, of=4))
def test_gradients_in_any_layout_are_those_of_plain_arrays(name: str) -> None:
    """Value, gradient and directional derivative; tangents and cotangents lie in another order than what they belong to."""
    f = COMPOSITES[name]

    def loss(x: Any) -> Any:
        return ag.sum(f(x) * ag.cos(f(x)))

    everything = C(lambda x, t: (f(x), ag.grad(loss)(x), ag.jvp(loss, (x,), (t,))[1]))
    for shape, layouts in (((4, 9), "fortran"), ((2, 17, 6), "fortran channels_last"), ((2, 5, 3, 4), "channels_last")):
        x, t = data(*shape)[1], data(*shape[::-1])[1].T
        want = (f(x), ag.grad(loss)(x), ag.jvp(loss, (x,), (t,))[1])
        for layout in layouts.split():
            for got, w in zip(everything(LAYOUTS[layout](x), t), want):
                np.testing.assert_allclose(got, w, rtol=1e-12, atol=1e-12, err_msg=f"{layout} {shape}")
