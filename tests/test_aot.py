"""Libraries built ahead of time: what is in them, what C and Python see, and what becomes of bad input."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import inspect
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import elf_reader
import numpy as np
import pytest
from without import run_blocked

import aotgrad as ag
from aotgrad.codegen import numpy_source
from aotgrad.codegen.cabi import CFunction, Param
from aotgrad.frontend import aot
from aotgrad.ir import TensorType, interp, opdef
from aotgrad.ir import build as build_ir
from aotgrad.ir.parser import parse_module
from aotgrad.ir.transforms.cleanup import standard
from aotgrad.ir.transforms.custom import runnable
from aotgrad_runtime.arrays import DTYPES
from aotgrad_runtime.errors import AotgradError, AotgradIndexError, AotgradNotImplementedError, AotgradRuntimeError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.library import describe_text, load, read_description, signatures

ROOT = Path(__file__).resolve().parents[1]
RNG = np.random.default_rng(20)


def rosenbrock(x: Any) -> Any:
    """The Rosenbrock function."""
    return np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def softreg(w: Any, b: Any, x: Any, y: Any) -> Any:
    """Mean cross-entropy of softmax regression."""
    z = x @ w + b
    z = z - np.max(z, axis=1, keepdims=True)
    return np.mean(np.log(np.sum(np.exp(z), axis=1)) - np.sum(z * y, axis=1))


def mixed(x: Any, k: Any, a: Any) -> Any:
    """A number, an array and an integer."""
    return np.sum(np.sin(x) * k) * a, np.exp(x) * a, np.argmax(x)


def recurrent(start: Any, u: Any) -> Any:
    """A scan."""

    def step(c: Any, v: Any) -> Any:
        c = np.sin(c) + v
        return c, c * c

    last, squares = ag.scan(step, start, u)
    return np.sum(squares) + last


SOFTREG = ["w: f64[d, k]", "b: f64[k]", "x: f64[n, d]", "y: f64[n, k]"]


def softreg_data(n: int = 9, d: int = 4, k: int = 3) -> list[Any]:
    labels = RNG.integers(0, k, n)
    return [RNG.normal(size=(d, k)), RNG.normal(size=k), RNG.normal(size=(n, d)), np.eye(k)[labels]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("aot")
    emit = ("so", "a", "o", "h", "ll", "asm", "mlir", "python")
    # x86-64-v3, because valgrind knows no AVX-512
    aot.build(rosenbrock, ["x: f64[n]"], grad="x", jvp="x", hess="x", out=out, emit=emit, target="x86-64-v3")
    aot.build(softreg, SOFTREG, grad=("w", "b"), jvp=("b", "w"), hess="b", out=out, emit=emit, target="x86-64-v3")
    aot.build(mixed, ["x: f64[n]", "k: i64", "a: f64"], grad=("a", "x"), out=out, emit=emit, target="x86-64-v3")
    aot.build(recurrent, ["start: f64", "u: f64[n]"], grad=("start", "u"), hess=("u", "start"), out=out, emit=emit, target="x86-64-v3")
    return out


def numpy_module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


# ---- numbers --------------------------------------------------------------------------------------------------------------------------

def central(f: Callable[..., Any], args: list[Any], i: int) -> Any:
    """The gradient for argument i by central differences."""
    x = np.asarray(args[i], float)
    out = np.zeros(x.shape)
    for at in np.ndindex(x.shape):
        moved = []
        for h in (1e-6, -1e-6):
            y = x.copy()
            y[at] += h
            moved.append(f(*args[:i], y, *args[i + 1:]))
        out[at] = (moved[0] - moved[1]) / 2e-6
    return out


def test_values_and_derivatives(folder: Path) -> None:
    library = load(folder / "libsoftreg.so")
    data = softreg_data()
    w, b, *rest = data
    tw, tb = RNG.normal(size=w.shape), RNG.normal(size=b.shape)
    value, gw, gb = library.softreg_grad(*data)
    assert value == library.softreg(*data)
    np.testing.assert_allclose(value, softreg(*data), rtol=1e-14)
    np.testing.assert_allclose(gw, central(softreg, data, 0), atol=1e-8)
    np.testing.assert_allclose(gb, central(softreg, data, 1), atol=1e-8)
    value_j, moved = library.softreg_jvp(*data, tb, tw)
    assert value_j == value
    np.testing.assert_allclose(moved, np.sum(gw * tw) + np.sum(gb * tb), rtol=1e-12)
    value_h, gb_h, hess = library.softreg_hess(*data)
    np.testing.assert_allclose((value_h, *gb_h), (value, *gb), rtol=1e-14)
    for j in range(3):
        column = central(lambda v: library.softreg_grad(w, v, *rest)[2][j], [b], 0)  # noqa: B023
        np.testing.assert_allclose(hess[j], column, atol=1e-8)


def test_hessian_blocks_of_a_loop(folder: Path) -> None:
    library = load(folder / "librecurrent.so")
    start, u = 0.3, RNG.normal(size=5)
    value, grad_u, grad_start, hess_u, hess_u_start, hess_start = library.recurrent_hess(start, u)
    assert [x.shape for x in (grad_u, hess_u, hess_u_start)] == [(5,), (5, 5), (5,)]
    np.testing.assert_allclose(library.recurrent_grad(start, u)[1:][0], grad_start, rtol=1e-14)
    np.testing.assert_allclose(grad_start, central(library.recurrent, [start, u], 0), atol=1e-8)
    np.testing.assert_allclose(hess_u, hess_u.T, atol=1e-13)
    for i in range(5):
        np.testing.assert_allclose(hess_u[i], central(lambda v: library.recurrent_grad(start, v)[2][i], [u], 0), atol=1e-8)  # noqa: B023
    np.testing.assert_allclose(hess_u_start, central(lambda v: library.recurrent_grad(start, v)[1], [u], 0), atol=1e-8)
    np.testing.assert_allclose(hess_start, central(lambda s: library.recurrent_grad(s, u)[1], [start], 0), atol=1e-8)


@pytest.mark.parametrize("n", [0, 1, 2, 7, 64, 1000])
def test_one_library_for_all_sizes(folder: Path, n: int) -> None:
    library = load(folder / "librosenbrock.so")
    x = RNG.normal(size=n)
    value, grad = library.rosenbrock_grad(x)
    np.testing.assert_allclose(value, rosenbrock(x), rtol=1e-13)
    assert grad.shape == (n,)
    if n < 100:
        np.testing.assert_allclose(grad, central(rosenbrock, [x], 0), rtol=1e-5, atol=1e-5)


def test_results_of_several_types(folder: Path) -> None:
    library = load(folder / "libmixed.so")
    x = RNG.normal(size=6)
    total, big, at = library.mixed(x, 3, 2.5)
    assert (type(total), big.dtype, type(at), at) == (np.float64, np.float64, np.int64, np.argmax(x))
    np.testing.assert_allclose(big, np.exp(x) * 2.5, rtol=1e-14)
    results = library.mixed_grad(x, 3, 2.5)
    assert len(results) == 5  # the results, then the gradients in the order asked for
    np.testing.assert_allclose(results[3], np.sum(np.sin(x) * 3), rtol=1e-13)
    np.testing.assert_allclose(results[4], np.cos(x) * 3 * 2.5, rtol=1e-13)


@pytest.mark.parametrize("name", ["rosenbrock", "softreg", "mixed", "recurrent"])
def test_numpy_source_agrees(folder: Path, name: str) -> None:
    library, module = load(folder / f"lib{name}.so"), numpy_module(folder / f"{name}.py")
    assert set(module.__all__) == set(library.signatures)
    sizes = {"n": 5, "d": 4, "k": 3}
    for s in library.signatures.values():
        args = [np.int64(3) if a.dtype.kind == "i" else RNG.normal(size=[d if isinstance(d, int) else sizes[d] for d in a.shape]) for a in s.inputs]
        got, want = flat(getattr(library, s.name)(*args)), flat(getattr(module, s.name)(*args))
        assert [(np.shape(a), a.dtype) for a in got] == [(np.shape(b), b.dtype) for b in want]
        for a, b in zip(got, want):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_numpy_source_over_nothing(tmp_path: Path) -> None:
    """What has a value over no elements has it in the Python file too: a norm and a softmax read the greatest number of nothing."""
    built = aot.build(lambda x: (ag.norm(x), ag.softmax(x, 0), ag.logsumexp(x, 1)), ["x: f32[n, m]"], grad="x", out=tmp_path, name="none", emit=("so", "python"))
    library, module = load(built.library), numpy_module(built.files["python"])
    for n, m in ((0, 3), (3, 0), (2, 3)):
        x = np.ones((n, m), np.float32)
        for a, b in zip(flat(module.none_grad(x)), flat(library.none_grad(x)), strict=True):
            assert (np.shape(a), np.asarray(a).dtype) == (np.shape(b), np.asarray(b).dtype)
            np.testing.assert_allclose(a, b, rtol=1e-6)


def _single_ops() -> list[tuple[str, int]]:
    return [(name, i) for name, op in opdef.all_ops().items() if not op.regions and op.samples is not None for i in range(len(list(op.samples())))]


def test_every_op_has_a_numpy_form() -> None:
    count = 0
    for name, i in _single_ops():
        sample = list(opdef.get(name).samples())[i]  # type: ignore[misc]
        arrays = [np.asarray(o) for o in sample.operands]
        types = [TensorType(o.shape, DTYPES[o.dtype]) for o in arrays]
        func = runnable(standard(build_ir("f", types, lambda b, *xs: b.emit(name, xs, sample.attrs))))  # noqa: B023
        params = [tuple(Param(f"{stem}{j}", t) for j, t in enumerate(ts)) for stem, ts in (("x", types), ("y", func.out_types))]
        space: dict[str, Any] = {}
        exec(numpy_source.module("m", [CFunction("f", "value", "", func, *params, (), ())], "0"), space)
        for got, want in zip(flat(space["f"](*arrays)), interp.run(func, *arrays)):
            assert (np.shape(got), np.asarray(got).dtype) == (want.shape, want.dtype), (name, sample.name)
            np.testing.assert_allclose(got, want, rtol=1e-12, err_msg=f"{name} {sample.name}")
        count += 1
    assert count > 300


def test_python_file_needs_numpy_alone_and_reads_well(folder: Path) -> None:
    text = (folder / "rosenbrock.py").read_text()
    assert [line for line in text.splitlines() if "import" in line] == ["import numpy as np"]
    assert "# test_aot.py:" in text and "return np.sum(100.0" in text  # the user's lines beside what they became
    assert max(map(len, text.splitlines())) < 200


def test_tensor_text_is_valid_ir(folder: Path) -> None:
    funcs = parse_module((folder / "softreg.mlir").read_text(), "softreg.mlir")
    assert [f.name for f in funcs] == ["softreg", "softreg_grad", "softreg_jvp", "softreg_hess"]
    data = softreg_data()
    np.testing.assert_allclose(interp.run(funcs[1], *data)[1], load(folder / "libsoftreg.so").softreg_grad(*data)[1], rtol=1e-10, atol=1e-14)


# ---- what is in the library ---------------------------------------------------------------------------------------------------------------

def test_library_needs_nothing_and_shows_its_functions_alone(folder: Path) -> None:
    """Read without the linker's own code and without tools, so it holds wherever the tests run."""
    every = ("", "_grad", "_jvp", "_hess")
    for name, kinds in (("rosenbrock", every), ("softreg", every), ("mixed", every[:2]), ("recurrent", ("", "_grad", "_hess"))):
        so = elf_reader.read((folder / f"lib{name}.so").read_bytes())
        tags = so.tags()
        assert tags and elf_reader.NEEDED not in tags and elf_reader.TEXTREL not in tags
        shown = so.symbols(elf_reader.DYNSYM)
        assert all(here for _, _, here in shown)  # nothing is asked of other libraries
        symbols = {name for name, _, _ in shown}
        assert symbols == {f"{name}{k}{part}" for k in kinds for part in ("", "_workspace")} | {f"{name}_meta"}
        state = [s.name for s in so.sections if s.flags & elf_reader.SHF_WRITE and s.kind != elf_reader.DYNAMIC]
        assert not [s for s in state if not s.startswith((".got", ".data.rel.ro", ".dynamic"))], state  # no state: those are read-only once loaded
        made = elf_reader.read((folder / f"{name}.o").read_bytes())
        assert {n for n, bind, _ in made.symbols(elf_reader.SYMTAB) if bind} == symbols


def test_archive_holds_the_object(folder: Path) -> None:
    """The format of ``ar``: a header of 60 bytes for each member, its size in it, members at even places."""
    for name in ("rosenbrock", "softreg"):
        data, at, members = (folder / f"lib{name}.a").read_bytes(), 8, {}
        assert data[:8] == b"!<arch>\n"
        while at < len(data):
            header, size = data[at : at + 60], int(data[at + 48 : at + 58])
            assert header[58:] == b"`\n"
            members[header[:16].decode().strip()] = data[at + 60 : at + 60 + size]
            at += 60 + size + size % 2
        index, *objects = members.values()
        assert objects == [(folder / f"{name}.o").read_bytes()]
        exported = {n for n, bind, _ in elf_reader.read(objects[0]).symbols(elf_reader.SYMTAB) if bind}
        count = int.from_bytes(index[:4], "big")
        assert set(index[4 + 4 * count:].rstrip(b"\0").decode().split("\0")) == exported and count == len(exported)  # what linkers look a name up in


def digests(where: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(where.iterdir()) if p.is_file()}


_AGAIN = """
import sys
import numpy as np
import aotgrad as ag
from aotgrad.frontend import aot
sys.path.insert(0, {tests!r})
from test_aot import SOFTREG, softreg
aot.build(softreg, SOFTREG, grad=("w", "b"), jvp=("b", "w"), hess="b", out=sys.argv[1], emit=("so", "a", "o", "h", "ll", "asm", "mlir", "python"), target="x86-64-v3")
"""


def test_equal_input_gives_equal_files(folder: Path, tmp_path: Path) -> None:
    script = _AGAIN.format(tests=str(ROOT / "tests"))
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, env={"PYTHONHASHSEED": "77", "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)})
    here = digests(folder)
    assert digests(tmp_path) == {k: v for k, v in here.items() if "softreg" in k}


def test_all_or_nothing_is_written(tmp_path: Path) -> None:
    built = aot.build(rosenbrock, ["x: f64[n]"], out=tmp_path / "new" / "deep", name="r", emit="so,h")
    assert sorted(p.name for p in (tmp_path / "new" / "deep").iterdir()) == ["libr.so", "r.h", "r.pc", "rConfig.cmake"]
    assert str(built.library) in str(built) and built.functions == ("r",)
    before = digests(built.library.parent)
    with pytest.raises(AotgradError):
        aot.build(lambda x: x * float(x.sum()), ["x: f64[n]"], out=built.library.parent, name="r", emit="so,h")
    assert digests(built.library.parent) == before


def test_other_processors(tmp_path: Path) -> None:
    built = aot.build(softreg, SOFTREG, grad="w", out=tmp_path, target="aarch64-linux-gnu", emit=("so", "a", "h"))
    _, description = read_description(built.library.read_bytes(), str(built.library))
    shown = describe_text(description, signatures(description, "softreg"))
    assert "aarch64" in shown and "softreg_grad(w: float64[d, k], b: float64[k]" in shown
    if sys.platform == "linux" and "aarch64" not in __import__("platform").machine():
        with pytest.raises(AotgradValueError, match="it is for aarch64"):
            load(built.library)
    with pytest.raises(AotgradNotImplementedError, match="fused multiply-add"):
        aot.build(softreg, SOFTREG, out=tmp_path, target="x86-64-v2")
    with pytest.raises(AotgradValueError, match="riscv"):
        aot.build(softreg, SOFTREG, out=tmp_path, target="riscv")


def test_sizes_too_small_name_the_argument_and_the_line(tmp_path: Path) -> None:
    """Windows and kernels that do not fit, and pooling of what a convolution left."""
    def net(image: object, w: object) -> object:
        return ag.max_pool2d(ag.conv2d(image, w, stride=2), 2)

    made = aot.build(net, ["image: f64[n,c,h,v]", "w: f64[o,c,3,3]"], out=tmp_path, name="net", emit="so,h,python")
    said = r"net: h must be at least 3, where h is dim 2 of image \(test_aot.py:\d+\)"
    then = r"net: floordiv\(h \+ 1, 2\) - 1 must be at least 2, where h is dim 2 of image \(test_aot.py:\d+\)"
    assert re.search(said[5:].replace("h must", "H must", 1), " ".join((tmp_path / "net.h").read_text().replace(" * ", " ").split()))
    for library in (load(made.library), numpy_module(tmp_path / "net.py")):
        assert library.net(np.ones((1, 2, 5, 9)), np.ones((4, 2, 3, 3))).shape == (1, 4, 1, 2)
        for height, match in ((2, said), (4, then)):
            with pytest.raises(ValueError, match=match):
                library.net(np.ones((1, 2, height, 9)), np.ones((4, 2, 3, 3)))
    with pytest.raises(AotgradValueError, match=said + ", but the arguments have 2$"):
        load(made.library).net(np.ones((1, 2, 2, 9)), np.ones((4, 2, 3, 3)))


def test_sizes_found_equal_are_guards(tmp_path: Path) -> None:
    library = load(aot.build(lambda x, y: np.sum(x * y), ["x: f64[n]", "y: f64[m]"], grad="x", out=tmp_path, name="dotted", emit="so,h,python"))
    assert "Size m must be equal to n" in (tmp_path / "dotted.h").read_text() or "Size n must be equal to m" in (tmp_path / "dotted.h").read_text()
    assert "int64_t n, int64_t m," in (tmp_path / "dotted.h").read_text()  # the sizes of the text, whatever was found out
    np.testing.assert_array_equal(library.dotted_grad(np.ones(3), np.arange(3.0))[1], np.arange(3.0))
    with pytest.raises(AotgradValueError, match=r"must be equal to .* the arguments have \d and \d"):
        library.dotted(np.ones(3), np.ones(4))
    with pytest.raises(ValueError, match="must be equal"):
        numpy_module(tmp_path / "dotted.py").dotted(np.ones(3), np.ones(4))


def test_expressions_in_sizes(tmp_path: Path) -> None:
    library = load(aot.build(lambda x, y: x[0] * np.sum(x) + y[0], ["x: f64[2*n + 1]", "y: f64[n, m]"], out=tmp_path, name="odd", emit="so,python"))
    x, y = RNG.normal(size=7), RNG.normal(size=(3, 2))
    for f in (library.odd, numpy_module(tmp_path / "odd.py").odd):
        np.testing.assert_allclose(f(x, y), x[0] * np.sum(x) + y[0], rtol=1e-14)
    with pytest.raises(AotgradValueError, match=r"argument x has size 6 in dim 0, it should be 2 \* n \+ 1 = 7"):
        library.odd(np.ones(6), y)
    alone = load(aot.build(np.negative, ["x: f64[3*n]"], out=tmp_path, name="alone", emit="so"))
    np.testing.assert_array_equal(alone.alone(np.arange(6.0)), -np.arange(6.0))
    with pytest.raises(AotgradValueError, match="argument x has size 7 in dim 0, which is not 3"):
        alone.alone(np.ones(7))


def test_pytree_arguments_defaults_and_captured_arrays(tmp_path: Path) -> None:
    scale = np.array([1.0, 2.0])

    def f(params: Any, x: Any, power: int = 2) -> Any:
        return np.sum((x @ params["w"] + params["b"]) ** power * scale)

    built = aot.build(f, {"params": {"w": "f64[k, 2]", "b": "f64[2]"}, "x": "f64[n, k]"}, grad="params", out=tmp_path, name="tree", emit="so")
    library = load(built)
    names = [a.name for a in library.signatures["tree_grad"].inputs]
    assert names == ["params_b", "params_w", "x"]
    b, w, x = RNG.normal(size=2), RNG.normal(size=(3, 2)), RNG.normal(size=(4, 3))
    value, grad = library.tree_grad({"w": w, "b": b}, x)
    gb, gw = grad["b"], grad["w"]
    np.testing.assert_allclose(value, f({"w": w, "b": b}, x), rtol=1e-13)
    np.testing.assert_allclose(gb, 2 * scale * np.sum(x @ w + b, axis=0), rtol=1e-12)
    np.testing.assert_allclose(gw, x.T @ (2 * scale * (x @ w + b)), rtol=1e-12)


def test_arguments_of_other_types(tmp_path: Path) -> None:
    def choose(on: Any, i: Any, x: Any) -> Any:
        return np.where(on, x * i.astype(np.float32), x), np.logical_not(on)

    built = aot.build(choose, ["on: bool[n]", "i: i32[n]", "x: f32[n]"], out=tmp_path, emit="so,h,python")
    assert "const uint8_t *on, const int32_t *i, const float *x" in (tmp_path / "choose.h").read_text()
    on, i, x = np.array([True, False, True]), np.array([2, 3, 4], np.int32), np.array([1.5, 2.5, 3.5], np.float32)
    for f in (load(built).choose, numpy_module(tmp_path / "choose.py").choose):
        y, off = f(on, i, x)
        assert y.dtype == np.float32 and off.dtype == bool
        np.testing.assert_array_equal(y, [3.0, 2.5, 14.0])
        np.testing.assert_array_equal(off, ~on)
    with pytest.raises(AotgradTypeError, match="argument on should be bool"):
        load(built).choose(i, i, x)


def test_no_arguments_and_constant_results(tmp_path: Path) -> None:
    built = aot.build(lambda: (np.arange(3.0), 7), [], out=tmp_path, name="three", emit="so,h,python")
    assert "int32_t three(double *value_0, int64_t *value_1, void *workspace);" in (tmp_path / "three.h").read_text()
    for f in (load(built).three, numpy_module(tmp_path / "three.py").three):
        a, b = f()
        np.testing.assert_array_equal(a, [0.0, 1.0, 2.0])
        assert b == 7


def test_branches_and_sizes_that_must_divide(tmp_path: Path) -> None:
    def f(x: Any) -> Any:
        rows = x.reshape(-1, 3)
        return ag.cond(x[0] > 0, lambda r: np.sum(r * r), lambda r: np.sum(np.cos(r)), rows)

    built = aot.build(f, ["x: f64[3*m]"], grad="x", out=tmp_path, emit="so,python")
    for module in (load(built), numpy_module(tmp_path / "f.py")):
        for sign in (1.0, -1.0):
            x = sign * np.abs(RNG.normal(size=6))
            value, grad = module.f_grad(x)
            np.testing.assert_allclose(value, np.sum(x * x) if sign > 0 else np.sum(np.cos(x)), rtol=1e-14)
            np.testing.assert_allclose(grad, 2 * x if sign > 0 else -np.sin(x), rtol=1e-14)
        with pytest.raises(ValueError, match=r"3 \* m"):
            module.f(np.ones(7))


def test_compiled_functions_and_gradients_inside(tmp_path: Path) -> None:
    inner = ag.compile(lambda x: np.sum(np.sin(x) * x))
    built = aot.build(lambda x: np.sum(ag.grad(inner)(x) ** 2), ["x: f64[n]"], grad="x", out=tmp_path, name="nested", emit="so")
    x = RNG.normal(size=5)
    slope = np.cos(x) * x + np.sin(x)
    value, grad = load(built).nested_grad(x)
    np.testing.assert_allclose(value, np.sum(slope**2), rtol=1e-13)
    np.testing.assert_allclose(grad, 2 * slope * (2 * np.cos(x) - np.sin(x) * x), rtol=1e-12)


def test_results_share_no_memory_with_arguments(tmp_path: Path) -> None:
    built = aot.build(lambda x: (x, x[1:], x), ["x: f64[n]"], out=tmp_path, name="same", emit="so,python")
    x = np.arange(4.0)
    for module in (load(built), numpy_module(tmp_path / "same.py")):
        for got, want in zip(module.same(x), (x, x[1:], x)):
            np.testing.assert_array_equal(got, want)
            assert not np.shares_memory(got, x)


def test_channels_last_argument(tmp_path: Path) -> None:
    built = aot.build(lambda x: np.sum(np.sin(x) * x), ["x: f32[n, 3, h, w] channels_last"], grad="x", out=tmp_path, name="picture", emit="so,h")
    assert "in the order [0, 2, 3, 1]" in (tmp_path / "picture.h").read_text()
    x = RNG.normal(size=(2, 3, 4, 5)).astype(np.float32)
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    for given in (x, last):
        value, grad = load(built).picture_grad(given)
        assert grad.strides == last.strides
        np.testing.assert_allclose(grad, np.cos(x) * x + np.sin(x), rtol=1e-5, atol=1e-6)


# ---- Python without the compiler --------------------------------------------------------------------------------------------------------------

_ALONE = """
import sys
import numpy as np
from aotgrad_runtime.library import load
library = load(sys.argv[1])
x = np.load(sys.argv[2])
np.savez(sys.argv[3], *library.rosenbrock_grad(x))
top = {m.split(".")[0] for m in sys.modules}
assert not top & {"llvmlite", "lark", "aotgrad", "scipy"}, top
"""


def test_loads_with_numpy_alone(folder: Path, tmp_path: Path) -> None:
    x = RNG.normal(size=50)
    np.save(tmp_path / "x.npy", x)
    done = run_blocked(_ALONE, "llvmlite", "lark", "aotgrad", arguments=(str(folder / "librosenbrock.so"), str(tmp_path / "x.npy"), str(tmp_path / "out.npz")))
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "out.npz") as out:
        value, grad = load(folder / "librosenbrock.so").rosenbrock_grad(x)
        np.testing.assert_array_equal(out["arr_0"], value)
        np.testing.assert_array_equal(out["arr_1"], grad)


def test_loaded_functions_describe_themselves(folder: Path) -> None:
    library = load(folder / "libmixed.so")
    f = library.mixed_grad
    assert str(inspect.signature(f)) == "(x: 'float64[n]', k: 'int64', a: 'float64')"
    assert f.__name__ == "mixed_grad" and "Gradient of value_0 for a." in f.__doc__
    assert "mixed(x: float64[n], k: int64, a: float64) -> (value_0: float64, value_1: float64[n], value_2: int64)" in library.__doc__
    assert {"mixed", "mixed_grad"} <= set(dir(library)) and not hasattr(library, "other")
    again = pickle.loads(pickle.dumps(f))
    x = np.arange(3.0)
    assert flat(again(x, 1, 2.0))[0] == flat(f(x, 1, 2.0))[0]


def test_arguments_of_every_kind(folder: Path) -> None:
    library = load(folder / "libmixed.so")
    x = RNG.normal(size=4)
    want = library.mixed(x, 3, 2.5)[0]
    strided, swapped = np.repeat(x, 2)[::2], x.astype(">f8")
    for args in ((strided, 3, 2.5), (swapped, 3, 2.5), (list(x), np.int64(3), np.float64(2.5)), (x, np.array(3), np.array(2.5)), (x, np.int8(3), np.float32(2.5))):
        assert library.mixed(*args)[0] == want
    assert library.mixed(a=2.5, x=x, k=3)[0] == want
    assert library.mixed(x, 3, 2)[0] == library.mixed(x, 3, 2.0)[0]
    read_only = x.copy()
    read_only.flags.writeable = False
    assert library.mixed(read_only, 3, 2.5)[0] == want


def test_wrong_arguments_name_themselves(folder: Path) -> None:
    library = load(folder / "libmixed.so")
    x = np.ones(3)
    cases: list[tuple[tuple[Any, ...], type[AotgradError], str]] = [
        ((x, 3), AotgradTypeError, "missing a required argument: 'a'"), ((np.ones((2, 2)), 3, 1.0), AotgradValueError, "argument x should be float64.n., it has rank 2"),
        ((x, 2.5, 1.0), AotgradTypeError, "argument k should be int64, its dtype is float64"), ((x, 3, "a"), AotgradTypeError, "argument a should be float64"),
        ((x.astype(complex), 3, 1.0), AotgradTypeError, "argument x should be .* complex128"), ((x, None, 1.0), AotgradTypeError, "argument k"),
        ((x, 1 << 80, 1.0), AotgradTypeError, "argument k"), (([[1.0], [1.0, 2.0]], 3, 1.0), AotgradTypeError, "argument x"),
    ]
    for args, kind, match in cases:
        with pytest.raises(kind, match=match):
            library.mixed(*args)
    softmax = load(folder / "libsoftreg.so")
    w, b, xs, y = softreg_data()
    with pytest.raises(AotgradValueError, match="argument b has size 2 in dim 0, it should be k = 3"):
        softmax.softreg(w, b[:2], xs, y)


def test_index_errors_carry_the_line(tmp_path: Path) -> None:
    def pick(x: Any, i: Any) -> Any:
        return x[i]

    library = load(aot.build(pick, ["x: f64[n]", "i: i64[m]"], out=tmp_path, emit="so"))
    np.testing.assert_array_equal(library.pick(np.arange(4.0), np.array([3, 0])), [3.0, 0.0])
    with pytest.raises(AotgradIndexError, match=r"test_aot.py:\d+: pick: index 4 is out of bounds for dimension 0 with size 4"):
        library.pick(np.arange(4.0), np.array([1, 4]))


def test_integer_powers_outside_their_domain_are_an_error_code(tmp_path: Path) -> None:
    def power(x: Any, y: Any) -> Any:
        return x ** y

    built = aot.build(power, ["x: i64[n]", "y: i64[n]"], out=tmp_path, emit=("so", "h"))
    library, x, out = load(built), np.array([2, 1]), np.zeros(2, np.int64)
    np.testing.assert_array_equal(library.power(x, np.array([10, 3])), [1024, 1])
    with pytest.raises(ValueError, match=r"test_aot.py:\d+: pow: integers to negative integer powers .*\(-3 in power\)"):
        library.power(x, np.array([0, -3]))
    c = ctypes.CDLL(str(next(tmp_path.glob("*.so")))).power

    def code(y: Any) -> int:
        at = [ctypes.c_void_p(a.ctypes.data) for a in (x, y, out)]
        return int(c(at[0], at[1], ctypes.c_int64(2), at[2], None))

    assert [code(np.array([1, 0])), code(np.array([0, -1]))] == [0, 3] and "POWER_ERROR_DOMAIN = 3" in next(tmp_path.glob("*.h")).read_text()


def test_eight_threads(folder: Path) -> None:
    library = load(folder / "libsoftreg.so")
    inputs = [softreg_data(n) for n in range(1, 65)]
    want = [library.softreg_hess(*data) for data in inputs]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda data: library.softreg_hess(*data), inputs * 4))
    for a, b in zip(got, want * 4):
        for p, q in zip(a, b):
            np.testing.assert_array_equal(p, q)


# ---- bad files ------------------------------------------------------------------------------------------------------------------------------

def test_damaged_and_foreign_files(folder: Path, tmp_path: Path) -> None:
    data = (folder / "librosenbrock.so").read_bytes()
    bad = tmp_path / "bad.so"
    for at in (5, 70, len(data) // 3, len(data) // 2, len(data) - 9):
        bad.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1:])
        with pytest.raises(AotgradError, match="bad.so"):
            load(bad)
    for content in (b"", b"\x7fELF", data[:1000], data[:-1], b"#!/bin/sh\n", Path(sys.executable).resolve().read_bytes()[:100000]):
        bad.write_bytes(content)
        with pytest.raises(AotgradError, match="bad.so"):
            load(bad)
    with pytest.raises(AotgradRuntimeError, match="missing.so"):
        load(tmp_path / "missing.so")
    with pytest.raises(AotgradError):
        load(tmp_path)


# ---- bad builds -----------------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("args", "match"), [
    (["x: f65[n]"], "'x: f65.n.': dtype 'f65' is not one of"), (["x f64[n]"], "'x f64.n.' is not understood"), (["x: f64[n"], "is not understood"),
    (["x: f64[n,]"], "size '' is not"),
    (["x: f64[-3]"], "size -3 is negative"), (["x: f64[n/2]"], "is not understood"), (["2x: f64"], "'2x' is not an argument name"),
    (["x: f64", "x: f64"], "x is given twice"),
    (["y: f64[n]"], "has no parameter 'y'; it takes x"), (["x: f64[n]", "y: f64"], "has no parameter 'y'"), ([3], "3 is not understood"),
    (["x: f64[n] channels_last"], "4 or 5 sizes"), (["x: {a: f64[n]"], "'x': '{a: f64.n.' is not understood after"), (["x: [f64[n] f64]"], "is not understood"),
    (["x: {a: f64, a: f64}"], "is not understood"), (["x: {f64}"], "is not understood"), (["x: [f64, {a: f65}]"], "dtype 'f65' is not one of"),
    (["x: [f64], f64"], "not understood"),
    ([], "needs a type for its parameter x"),
])
def test_bad_argument_texts(tmp_path: Path, args: Any, match: str) -> None:
    with pytest.raises(AotgradValueError, match=match):
        aot.build(rosenbrock, args, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_bad_requests(tmp_path: Path) -> None:
    x = ["x: f64[n]"]
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: aot.build(rosenbrock, x, grad="z", out=tmp_path), "grad: there is no argument 'z'; the arguments are x"),
        (lambda: aot.build(mixed, ["x: f64[n]", "k: i64", "a: f64"], jvp="k", out=tmp_path), "jvp: argument k is int64"),
        (lambda: aot.build(np.exp, x, grad="x", name="e", out=tmp_path), r"grad: the first result of e is float64\[n\]"),
        (lambda: aot.build(rosenbrock, x, out=tmp_path, name="int"), "'int' cannot name a C function"), (lambda: aot.build(lambda x: x, x, out=tmp_path), "name="),
        (lambda: aot.build(rosenbrock, x, out=tmp_path, emit="exe"), "emit: 'exe' is not one of"),
        (lambda: aot.build(rosenbrock, x, out=tmp_path, threads=65), "threads=65"),
        (lambda: aot.build(3, x, out=tmp_path), "int is not callable"),  # type: ignore[arg-type]
        (lambda: aot.build(lambda x: x + np.ones(3), x, out=tmp_path, name="f"), "size n of argument x meets size 3"),
        (lambda: aot.build(lambda x: x[0] if len(x) > 2 else x[1], x, out=tmp_path, name="f"), r"test_aot.py:\d+: .*symbolic"),
        (lambda: aot.build(lambda x: x if x[0] > 0 else -x, x, out=tmp_path, name="f"), r"test_aot.py:\d+: a traced value is used as a condition"),
        (lambda: aot.build(lambda x: float(x[0]), x, out=tmp_path, name="f"), r"test_aot.py:\d+: "),
        (lambda: aot.build(lambda x: None, x, out=tmp_path, name="f"), "returns nothing"),
        (lambda: aot.build(lambda x: "a", x, out=tmp_path, name="f"), "str"),
    ]
    for make, match in cases:
        with pytest.raises(AotgradError, match=match):
            make()
    assert not list(tmp_path.iterdir())


_FULL_DISK = """
import resource, sys
import numpy as np
import aotgrad as ag
sys.dont_write_bytecode = True  # which would be cut short
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
try:
    ag.aot.build(lambda x: np.sum(np.exp(x)), ["x: f64[n]"], grad="x", name="f", out=sys.argv[1])
except ag.AotgradError as error:
    assert "cannot be written" in str(error), error
else:
    raise SystemExit("no error")
"""


def test_full_disk_leaves_nothing(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _FULL_DISK, str(tmp_path)], check=True)
    assert not list(tmp_path.iterdir())


def test_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "under", Path("/proc/none")):
        with pytest.raises(AotgradRuntimeError, match="cannot be written"):
            aot.build(rosenbrock, ["x: f64[n]"], out=out, emit="h")


def test_names_that_c_reserves(tmp_path: Path) -> None:
    built = aot.build(lambda double, n, workspace: np.sum(double) * n + workspace, ["double: f64[n]", "n: f64", "workspace: f64"], out=tmp_path, name="odd", emit="so,h")
    assert "odd(const double *double_, const double *n, const double *workspace_, int64_t n_, double *value, void *workspace)" in (tmp_path / "odd.h").read_text()
    assert load(built).odd(np.ones(3), 2.0, 1.0) == 7.0
