"""Functions of built libraries take and give the trees of the Python function: structure, keyword arguments, defaults, derivatives, and errors that name the place."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from without import run_blocked

import aotgrad as ag
from aotgrad.cli.inspect import report
from aotgrad.codegen import cabi
from aotgrad_runtime import library_call
from aotgrad_runtime.errors import AotgradError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.library import describe_text, read_description, signatures

RNG = np.random.default_rng(7)
Layer = collections.namedtuple("Layer", "w b")


@dataclasses.dataclass
class State:
    """A container of the test's."""

    mean: Any
    count: Any


def model(params: Any, x: Any, power: int = 2, *, scale: Any = 1.5) -> Any:
    """A loss of trees."""
    y = x @ params["w"] + params["layers"][0].b
    loss = np.sum(y**power * params["layers"][0].w) * scale + np.sum(params[3][0] ** 3)
    return {"loss": loss, "all": (y, Layer(np.sum(y, axis=0), None)), "state": State(np.sum(y), params["steps"] + 1), "size": x.shape[0]}


def total(params: Any, x: Any, power: int = 2, *, scale: Any = 1.5) -> Any:
    """A number, of the same trees."""
    return model(params, x, power, scale=scale)["loss"]


TYPES = {"x": "f64[n, k]", "params": {"w": "f64[k, m]", "layers": [Layer("f64", "f64[m]"), None], "steps": "i64", 3: ("f64[j]",)}, "scale": "f64"}


def arguments(n: int = 4, k: int = 3, m: int = 2, j: int = 3) -> tuple[Any, Any]:
    layers = [Layer(np.float64(0.7), RNG.normal(size=m)), None]
    return {"w": RNG.normal(size=(k, m)), "layers": layers, "steps": 5, 3: (RNG.normal(size=j),)}, RNG.normal(size=(n, k))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trees")
    ag.aot.build(model, TYPES, out=out, emit=("so", "h", "python"), target="x86-64-v3")
    names = ("params", "x")
    ag.aot.build(total, TYPES, grad=names, jvp="params", hess=("x", "params"), out=out, emit=("so", "h", "python"), target="x86-64-v3")
    return out


@pytest.fixture(scope="module")
def library(folder: Path) -> Any:
    return ag.load(folder / "libtotal.so")


def numpy_module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def same(got: Any, want: Any, classes: bool = True, rtol: float = 1e-10) -> None:
    """Equal trees, of the same containers."""
    if want is None:
        assert got is None
    elif isinstance(want, dict):
        assert type(got) is type(want) and got.keys() == want.keys()
        for k in want:
            same(got[k], want[k], classes, rtol)
    elif isinstance(want, (tuple, list)):
        assert (type(got) is type(want) or not classes) and len(got) == len(want)
        for a, b in zip(got, want):
            same(a, b, classes, rtol)
    elif dataclasses.is_dataclass(want):
        assert type(got) is type(want) or not classes
        same(vars(got), vars(want), classes, rtol)
    else:
        assert np.shape(got) == np.shape(want) and np.asarray(got).dtype == np.asarray(want).dtype
        np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-12)


# ---- round trips ------------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("sizes", [(4, 3, 2, 3), (1, 1, 1, 1), (0, 2, 3, 0), (9, 5, 4, 2)])
def test_results_are_the_trees_of_the_function(folder: Path, sizes: tuple[int, ...]) -> None:
    params, x = arguments(*sizes)
    for module in (ag.load(folder / "libmodel.so"), numpy_module(folder / "model.py")):
        got, want = module.model(params, x), model(params, x)
        same(got, want, classes=hasattr(module, "signatures"))  # the file, which knows no other, has classes of its own
        assert type(got["size"]) is int
    same(ag.load(folder / "libmodel.so").model(params, x), ag.compile(model)(params, x))
    assert {type(v) for v in (got["loss"], got["state"].mean)} == {np.float64}


def test_gradients_are_in_the_tree_of_their_argument(folder: Path, library: Any) -> None:
    params, x = arguments()
    value, grads = ag.value_and_grad(total, argnums=(0, 1))(params, x)
    same(library.total_grad(params, x), (value, *grads))
    same(library.total_grad(params, x), (value, *ag.compile(ag.grad(total, argnums=(0, 1)))(params, x)))
    same(numpy_module(folder / "total.py").total_grad(params, x), (value, *grads), classes=False)


def test_gradients_come_in_the_callers_own_containers(library: Any) -> None:
    params, x = arguments()
    other = collections.namedtuple("other", "w b")
    given = collections.OrderedDict([(k, params[k]) for k in ("steps", "layers", 3, "w")])
    given["layers"] = (other(*params["layers"][0]), None)
    grad = library.total_grad(given, x)[1]
    assert type(grad) is collections.OrderedDict and list(grad) == ["steps", "layers", 3, "w"] and type(grad["layers"]) is tuple and type(grad["layers"][0]) is other
    same(grad["w"], library.total_grad(params, x)[1]["w"])
    counted = collections.defaultdict(list, params)
    grad = library.total_grad(counted, x)[1]
    assert type(grad) is collections.defaultdict and grad.default_factory is list


def test_directional_derivatives_take_and_give_trees(folder: Path, library: Any) -> None:
    params, x = arguments()
    tangent, _ = arguments()
    value, moved = ag.jvp(lambda p: total(p, x), (params,), (tangent,))
    same(library.total_jvp(params, x, params_t=tangent), (value, moved))
    same(numpy_module(folder / "total.py").total_jvp(params, x, params_t=tangent), (value, moved))
    same(library.total_jvp(params, x, params_t={**tangent, "steps": None}), (value, moved))  # what has no tangent is not read
    with pytest.raises(AotgradValueError, match=r"total_jvp: argument params_t\['w'\] has size 9 in dim 0, it should be k = 3"):
        library.total_jvp(params, x, params_t={**tangent, "w": np.ones((9, 2))})


def test_second_derivatives_are_trees_of_trees(folder: Path, library: Any) -> None:
    params, x = arguments()
    hess = ag.hessian(total, argnums=(0, 1))(params, x)
    _, grad_x, grad_params, hess_x, hess_x_params, hess_params = library.total_hess(params, x)
    same((grad_params, grad_x), ag.grad(total, argnums=(0, 1))(params, x))
    same(hess_x, hess[1][1])
    same(hess_x_params, hess[1][0])
    same(hess_params, ag.hessian(lambda p: total(p, x))(params))
    same(numpy_module(folder / "total.py").total_hess(params, x)[3:], (hess_x, hess_x_params, hess_params), classes=False)


def test_results_spread_in_derivatives_where_they_are_a_tuple(tmp_path: Path) -> None:
    def pair(p: Any, x: Any) -> Any:
        return np.sum(p["a"] * x) * p["b"], {"y": p["a"] * x, "on": x > 0}, np.argmax(x)

    lib = ag.load(ag.aot.build(pair, {"p": {"a": "f64[n]", "b": "f64"}, "x": "f64[n]"}, grad=("p_a", "p", "x"), jvp="p['a']", out=tmp_path, emit=("so", "python")))
    p, x = {"a": RNG.normal(size=3), "b": 2.0}, RNG.normal(size=3)
    for module in (lib, numpy_module(tmp_path / "pair.py")):
        value, aux, at, grad_a, grad_p, grad_x = module.pair_grad(p, x)
        same((value, aux, at), pair(p, x))
        same(grad_p, ag.grad(lambda p: pair(p, x)[0])(p))
        same((grad_a, grad_x), (grad_p["a"], p["a"] * 2.0))
        assert not np.shares_memory(grad_a, grad_p["a"])
        *_, moved, moved_aux = module.pair_jvp(p, x, p_a_t=np.ones(3))
        same((moved, moved_aux), (np.sum(x) * 2.0, {"y": x, "on": None}))
    one = ag.load(ag.aot.build(lambda x: (x,), ["x: f64"], out=tmp_path, name="one", emit="so"))
    assert one.one(2.0) == (2.0,) and type(one.one(2.0)) is tuple


# ---- parameters ---------------------------------------------------------------------------------------------------------------------------

def test_parameters_are_those_of_the_function(library: Any) -> None:
    params, x = arguments()
    want = total(params, x)
    for got in (library.total(params, x), library.total(x=x, params=params), library.total(params, x, 2), library.total(params, x=x, power=2, scale=1.5)):
        same(got, want)
    same(library.total(params, x, scale=3), want + (want - np.sum(params[3][0] ** 3)))
    assert list(inspect.signature(library.total).parameters) == ["params", "x", "power", "scale"]
    assert inspect.signature(library.total_grad).parameters["scale"].kind is inspect.Parameter.KEYWORD_ONLY
    for call, match in (
        (lambda: library.total(params, x, 3), r"argument power was fixed when the library was built \(power = 2\)"),
        (lambda: library.total(params, x, True), "power was fixed"), (lambda: library.total(params), "missing a required argument: 'x'"),
        (lambda: library.total(), "missing required arguments: 'params', 'x'"), (lambda: library.total(params, x, 2, 1.0), "too many positional arguments"),
        (lambda: library.total(params, x, params=params), "multiple values for argument 'params'"),
        (lambda: library.total(params, x, y=1), "unexpected keyword argument 'y'"),
    ):
        with pytest.raises(AotgradError, match=match):
            call()


def test_defaults_and_order_are_the_models(tmp_path: Path) -> None:
    def f(x: Any, /, w: Any = (1.0, [2.0, 3.0]), mode: str = "sum", n: Any = None) -> Any:
        return np.sum(x * w[0]) + np.sum(np.asarray(w[1]) if isinstance(w[1], list) else w[1]) + (0 if n is None else n)

    built = ag.aot.build(f, {"n": "f64", "w": ("f64", "f64[k]"), "x": "f64[m]"}, grad="w", out=tmp_path, emit=("so", "python"))
    x = np.arange(3.0)
    for module in (ag.load(built), numpy_module(tmp_path / "f.py")):
        assert module.f(x, n=1.0) == f(x, n=1.0) == 9.0
        assert module.f(x, (2.0, np.ones(4)), "sum", 1) == 11.0
        same(module.f_grad(x, n=0.0), (8.0, (3.0, np.ones(2))))
        with pytest.raises(ValueError, match="mode was fixed"):
            module.f(x, (1.0, [2.0]), "mean", 1.0)
    with pytest.raises(AotgradTypeError, match="missing a required argument: 'n'"):
        ag.load(built).f(x)  # None, its default, is no number
    with pytest.raises(AotgradTypeError, match="unexpected keyword argument 'x'"):
        ag.load(built).f(x=x, n=1.0)
    assert str(inspect.signature(ag.load(built).f)).endswith("mode='sum', n: 'float64' = <required>)")


def test_flat_functions_keep_the_quick_call(library: Any, folder: Path) -> None:
    flat = ag.load(ag.aot.build(lambda x, k: np.sum(x) * k, ["x: f64[n]", "k: f64"], out=folder, name="flat", emit="so")).flat
    assert len(flat.instances()) == 2 and not library.total.instances()  # a tree is taken apart before


# ---- wrong trees ----------------------------------------------------------------------------------------------------------------------------

WRONG: list[tuple[Callable[[Any], Any], type[AotgradError], str]] = [
    (lambda p: {k: v for k, v in p.items() if k != "w"}, AotgradValueError, r"params\['w'\] is missing"),
    (lambda p: {**p, "extra": 1.0}, AotgradValueError, r"there is no params\['extra'\]"),
    (lambda p: {k: v for k, v in p.items() if k != "w"} | {"W": p["w"]}, AotgradValueError, r"params\['w'\] is missing, and there is no params\['W'\]"),
    (lambda p: p["w"], AotgradTypeError, "argument params should be a dict with the keys .*'layers'.*, an array was given"),
    (lambda p: None, AotgradTypeError, "argument params should be a dict .* None was given"),
    (lambda p: {**p, "layers": p["layers"][:1]}, AotgradValueError, r"params\['layers'\] should be a list of 2, one of 1 was given: params\['layers'\]\[1\] is missing"),
    (lambda p: {**p, "layers": [*p["layers"], 1]}, AotgradValueError, r"there is no params\['layers'\]\[2\]"),
    (lambda p: {**p, "layers": [p["layers"][0], 1.0]}, AotgradTypeError, r"argument params\['layers'\]\[1\] should be None, a float was given"),
    (lambda p: {**p, "layers": [tuple(p["layers"][0]), None]}, AotgradTypeError, r"params\['layers'\]\[0\] should be a named tuple with the fields w, b"),
    (lambda p: {**p, "layers": [collections.namedtuple("L", "w c")(1.0, 2.0), None]}, AotgradValueError, r"params\['layers'\]\[0\].b is missing"),
    (lambda p: {**p, "w": p["w"].astype(complex)}, AotgradTypeError, r"argument params\['w'\] should be float64\[k, m\], its dtype is complex128"),
    (lambda p: {**p, "w": p["w"][0]}, AotgradValueError, r"argument params\['w'\] should be float64\[k, m\], it has rank 1"),
    (lambda p: {**p, "w": p["w"][1:]}, AotgradValueError, r"argument params\['w'\] has size 2 in dim 0, it should be k = 3"),
    (lambda p: {**p, "layers": [Layer(0.7, np.ones(5)), None]}, AotgradValueError, r"argument params\['layers'\]\[0\]\.b has size 5 in dim 0, it should be m = 2"),
    (lambda p: {**p, "steps": 2.5}, AotgradTypeError, r"argument params\['steps'\] should be int64, its dtype is float64"),
    (lambda p: {**p, "w": {"v": 1.0}}, AotgradTypeError, r"argument params\['w'\] should be float64\[k, m\], a dict was given"),
    (lambda p: {**p, "w": None}, AotgradTypeError, r"argument params\['w'\] should be float64\[k, m\], None was given"),
    (lambda p: {**p, "w": np.ma.array(p["w"], mask=p["w"] > 0.0)}, AotgradTypeError, r"argument params\['w'\]: MaskedArray is not supported"),
    (lambda p: {**p, "w": p["w"].view(np.matrix)}, AotgradTypeError, r"argument params\['w'\]: matrix is not supported"),
    (lambda p: {**p, 3: p[3][0]}, AotgradTypeError, r"argument params\[3\] should be a tuple of 1, an array was given"),
]


@pytest.mark.parametrize(("change", "kind", "match"), WRONG)
def test_wrong_trees_name_the_place(library: Any, change: Callable[[Any], Any], kind: type[AotgradError], match: str) -> None:
    params, x = arguments()
    for f in (library.total, library.total_grad):
        with pytest.raises(kind, match=f"total.*{match}"):
            f(change(params), x)


def test_dataclasses_are_taken_by_their_fields(tmp_path: Path) -> None:
    @dataclasses.dataclass
    class Other:
        mean: Any
        count: Any = dataclasses.field(init=False, default=0)

    lib = ag.load(ag.aot.build(lambda s: np.sum(s.mean**2) + s.count, {"s": State("f64[n]", "f64")}, grad="s", out=tmp_path, name="data", emit="so"))
    value, grad = lib.data_grad(State(np.ones(3), 1.0))
    assert value == 4.0 and type(grad) is State
    same(vars(grad), {"mean": np.full(3, 2.0), "count": 1.0})
    mine = Other(np.ones(2))
    mine.count = 3.0
    assert type(lib.data_grad(mine)[1]) is Other
    with pytest.raises(AotgradTypeError, match="argument s should be a dataclass with the fields mean, count .such as State., a dict was given"):
        lib.data({"mean": 1.0, "count": 2.0})


def test_trees_of_types_as_text(tmp_path: Path) -> None:
    def f(p: Any, x: Any) -> Any:
        return np.sum(p["W"] * x) + p["l"][0][0] + p["l"][0][1][1] * np.sum(p[7][0]) + p["a b"][0, 1]

    texts = ["p: { W : f64[2*n, 3],l: [(f64, (None, f64))], 7:(f64[m],), 'a b': f64[min(n, 2), 2], }", "x: f64[3]"]
    lib = ag.load(ag.aot.build(f, texts, grad="p", out=tmp_path, emit="so"))
    p = {"W": RNG.normal(size=(4, 3)), "l": [(1.0, (None, 2.0))], 7: (np.ones(2),), "a b": RNG.normal(size=(2, 2))}
    same(lib.f_grad(p, np.ones(3)), ag.value_and_grad(f)(p, np.ones(3)))


# ---- builds that are refused -----------------------------------------------------------------------------------------------------------------

class Colour(enum.Enum):
    RED = 1


class Mine(dict):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize(("f", "args", "match"), [
    (lambda p: p[Colour.RED], {"p": {Colour.RED: "f64"}}, "p: <Colour.RED: 1> .Colour. is a key of a dict, which a library cannot describe"),
    (lambda x: {b"k": x}, {"x": "f64"}, "the result: b'k' .bytes. is a key"),
    (lambda x: Mine(y=x), {"x": "f64"}, "the result: Mine is a class of dicts"),
    (lambda x: collections.defaultdict(lambda: 0, y=x), {"x": "f64"}, "the result: a library cannot make a defaultdict of"),
])
def test_containers_that_no_description_holds_are_refused(tmp_path: Path, f: Any, args: Any, match: str) -> None:
    with pytest.raises(AotgradTypeError, match=match):
        ag.aot.build(f, args, out=tmp_path, name="bad", emit="so")
    assert not list(tmp_path.iterdir())


def test_kinds_of_dicts_and_keys_come_back(tmp_path: Path) -> None:
    def f(p: Any) -> Any:
        x = p[(0, "a")]
        return collections.OrderedDict([("b", x), ("a", [x, ()])]), collections.defaultdict(list, {None: x}), collections.Counter({True: x, 2.5: x})

    lib = ag.load(ag.aot.build(f, {"p": {(0, "a"): "f64"}}, out=tmp_path, name="kinds", emit=("so", "python")))
    given = {(0, "a"): np.float64(2.0)}
    for module in (lib, numpy_module(tmp_path / "kinds.py")):
        got = module.kinds(given)
        same(got, f(given))
        assert list(got[0]) == ["b", "a"] and got[1].default_factory is list and set(map(type, got[2])) == {bool, float}
    assert lib.kinds(Mine(given))[0]["b"] == 2.0


# ---- descriptions --------------------------------------------------------------------------------------------------------------------------

_ALONE = """
import sys
import collections, dataclasses, pickle
import numpy as np
from aotgrad_runtime.library import load
model, total = load(sys.argv[1]).model, load(sys.argv[2])
Layer = collections.namedtuple("Layer", "w b")
params = {"w": np.ones((3, 2)), "layers": [Layer(0.5, np.zeros(2)), None], "steps": 5, 3: (np.zeros(1),)}
out = model(params, np.ones((4, 3)))
assert out["loss"] == 4 * 2 * 9 * 0.5 * 1.5 and out["size"] == 4 and list(out) == ["all", "loss", "size", "state"]
made = out["all"][1]
assert type(made).__name__ == "Layer" and made._fields == ("w", "b") and made.b is None and isinstance(made, tuple)
assert dataclasses.is_dataclass(out["state"]) and type(out["state"]).__name__ == "State" and out["state"].count == 6
again = pickle.loads(pickle.dumps(out))
assert type(again["all"][1]) is type(made) and (again["all"][1].w == made.w).all() and again["state"] == out["state"]
value, grad, grad_x = total.total_grad(params, np.ones((4, 3)))
assert type(grad["layers"][0]) is Layer and grad["steps"] is None and grad["w"].shape == (3, 2)
try:
    model({**params, "w": np.ones(3)}, np.ones((4, 3)))
except ValueError as error:
    assert "params['w']" in str(error), error
assert not {m.split(".")[0] for m in sys.modules} & {"llvmlite", "lark", "aotgrad"}
"""


def test_trees_need_numpy_alone(folder: Path) -> None:
    done = run_blocked(_ALONE, "llvmlite", "lark", "aotgrad", arguments=(str(folder / "libmodel.so"), str(folder / "libtotal.so")))
    assert done.returncode == 0, done.stderr


def _doctored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> Path:
    real = cabi.describe

    def changed(*args: Any, **kwargs: Any) -> Any:
        meta = real(*args, **kwargs)
        change(meta)
        return meta

    with monkeypatch.context() as m:
        m.setattr(cabi, "describe", changed)
        return ag.aot.build(lambda p: p["a"] * 2, {"p": {"a": "f64[n]"}}, out=tmp_path, name="tiny", emit="so").library


def test_libraries_of_other_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def before(meta: Any) -> None:
        meta["format"] = 1
        del meta["functions"][0]["python"]

    old = ag.load(_doctored(tmp_path, monkeypatch, before)).tiny
    same(old(np.ones(2)), np.full(2, 2.0))  # its arrays one by one, as it was
    same(old(p_a=np.ones(2)), np.full(2, 2.0))
    path = _doctored(tmp_path, monkeypatch, lambda meta: meta.update(format=3))
    with pytest.raises(AotgradValueError, match="description format 3, this aotgrad reads 1 and 2"):
        ag.load(path)
    path = _doctored(tmp_path, monkeypatch, lambda meta: meta["functions"][0]["python"].update(results=7))
    for look in (ag.load, report):
        with pytest.raises(AotgradValueError, match="has a description that is damaged"):
            look(str(path))


def test_descriptions_of_nothing_are_refused(folder: Path) -> None:
    _, description = read_description((folder / "libtotal.so").read_bytes(), "libtotal.so")
    shown = describe_text(description, signatures(description, "libtotal.so"))
    assert "    in C: total_grad(x: float64[n, k], params_w: float64[k, m], params_layers_0_w: float64, " in shown
    assert "  total_grad(params: {'w': float64[k, m], 'layers': [Layer(w=float64, b=float64[m]), None], " in shown
    assert "grad_params: as params, grad_x: float64[n, k])" in shown
    entry = next(d for d in description["functions"] if d["name"] == "total_grad")
    good, count = entry["python"], (len(entry["inputs"]), len(entry["outputs"]))

    def read(change: Callable[[Any], Any]) -> Any:
        plain = copy.deepcopy(good)
        change(plain)
        return library_call.decode_call(plain, *count, lambda i, x: isinstance(x, float))

    assert [p.name for p in read(lambda d: None).parameters] == ["params", "x", "power", "scale"]
    deep: Any = 0
    for _ in range(300):
        deep = ["tuple", [deep]]
    for change in (
        lambda d: d.update(results=deep), lambda d: d.update(results="x"), lambda d: d.update(results=["set", [0]]), lambda d: d.update(results=-1),
        lambda d: d.update(results=99),
        lambda d: d.update(results=["dict", "eval", "", ["a"], [0]]), lambda d: d.update(results=["dict", "dict", "", ["a", "a"], [0, 1]]),
        lambda d: d.update(results=["dict", "dict", "", ["a"], []]), lambda d: d.update(results=["named", "os", "a; b", ["x"], [0]]),
        lambda d: d.update(results=["named", "os", "P", ["x y"], [0]]), lambda d: d.update(results=["like", 0, "", ["tuple", [0]]]),
        lambda d: d.update(results=["like", 9, "", 0]),
        lambda d: d["parameters"].pop(0), lambda d: d["parameters"].append(d["parameters"][0]), lambda d: d["parameters"][0].update(kind="any"),
        lambda d: d["parameters"][0].update(name="a b"), lambda d: d["parameters"][3].update(default=["a"]), lambda d: d["parameters"][3].update(default=[1.0, 2.0]),
        lambda d: d["parameters"].reverse(), lambda d: d.pop("results"),
    ):
        with pytest.raises((ValueError, TypeError, KeyError, IndexError)):
            read(change)
