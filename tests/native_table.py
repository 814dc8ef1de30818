"""The native rows of the table: every op and sample as compiled kernels (value, VJP, JVP, VJP of VJP) against the interpreter.

One library per op and dtype; sizes are symbols wherever the op's attributes allow it, so one kernel serves all samples of a rank, sizes 0 and 1, and sizes
that leave SIMD tails. Every call runs twice: all buffers ending at a page nobody may touch, then all beginning after one.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from lowering_harness import AgCall, Guarded, Program, from_layout, in_layout

from aotgrad.codegen import llvm
from aotgrad.codegen.driver import kernel_objects
from aotgrad.codegen.elf import link_shared
from aotgrad.codegen.emit import module
from aotgrad.codegen.lower import lower
from aotgrad.codegen.target import Target
from aotgrad.ir import Func, Layout, TensorType, build, dims, interp, opdef
from aotgrad.ir.core import walk
from aotgrad.ir.transforms.cleanup import standard
from aotgrad.ir.transforms.differentiate import jvp_func, vjp_func
from aotgrad.ir.transforms.rewrite import decompose_func, substitute_func
from aotgrad_runtime.dtypes import as_dtype
from aotgrad_runtime.errors import AotgradError, AotgradIndexError
from aotgrad_runtime.loader import Library, load_bytes

ROADS = ("value", "vjp", "jvp", "second")


# ---- libraries of many functions ----------------------------------------------------------------------------------------------------

class Native(Program):
    """One function of a library that holds many; called as ``Program`` is."""

    def __init__(self, func: Func, name: str, library: Library) -> None:
        self.func, self.library, self.info = func, library, []
        self.entry = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(AgCall))(library.address(name))
        self.need = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(library.address(f"{name}_workspace"))


def compile_all(funcs: Mapping[str, Func], plain: bool = False, target: Target | None = None) -> tuple[dict[str, Func], Library]:
    """The functions (free of composites) in one library, each under its key; ``plain``: in the C form, which has it then."""
    target = target or Target.native()
    lowered = [lower(f, name, target) for name, f in funcs.items()]
    if plain:
        lowered = [replace(low, entry=replace(low.entry, name=f"call_{low.entry.name}", kernel=low.entry.name, plain=low.entry.name)) for low in lowered]
    kernels = [k for low in lowered for k in low.funcs]
    text = module(kernels, [low.entry for low in lowered], target)
    objects = [llvm.compile_object(text, target, passes="inline"), *kernel_objects(kernels, target)]
    return dict(funcs), load_bytes(link_shared(objects, [s for low in lowered for s in low.entry.exports], "libtable.so"))


def natives(funcs: Mapping[str, Func], target: Target | None = None) -> dict[str, Native]:
    """The functions, ready to be called with arrays."""
    known, library = compile_all(funcs, target=target)
    return {name: Native(f, name, library) for name, f in known.items()}


def run_compiled(func: Func, *arrays: Any) -> list[Any]:
    """``interp.run``, but compiled."""
    out = natives({"f": standard(func)})["f"](*arrays, guard=True)
    return list(out) if isinstance(out, tuple) else [out]


# ---- rows ---------------------------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Case:
    """A sample with the most general function it can be a call of."""

    op: opdef.OpDef
    name: str
    func: Func
    attrs: Mapping[str, Any]
    arrays: tuple[Any, ...]
    pools: tuple[Any, ...] = field(default=(), compare=False)

    @property
    def symbolic(self) -> bool:
        return bool(self.func.symbols())


def emit_func(op: opdef.OpDef, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Func:
    return build(op.name, types, lambda b, *xs: b.emit(op.name, xs, dict(attrs)))


def _symbolic(op: opdef.OpDef, arrays: Sequence[Any], attrs: Mapping[str, Any], keep_one: bool, swap: bool) -> Func:
    """Equal sizes get one symbol; sizes in shape-like attributes are swapped for the symbols of equal operand sizes."""
    names: dict[int, Any] = {}
    for x in arrays:
        for n in x.shape:
            if n not in names and not (n == 1 and keep_one):
                names[n] = dims.symbol("abcdefgh"[len(names)])
    types = [TensorType(tuple(names.get(n, n) for n in x.shape), as_dtype(x.dtype)) for x in arrays]
    given = {k: tuple(names.get(d, d) for d in v) if swap and k in ("shape", "sizes") else v for k, v in attrs.items()}
    func = emit_func(op, types, given)
    env = {s.as_symbol(): n for n, s in names.items()}
    static = emit_func(op, [TensorType(x.shape, as_dtype(x.dtype)) for x in arrays], attrs)
    if [t.substitute(env) for t in func.out_types] != static.out_types or not in_range(func, env):
        raise ValueError("the symbols do not fit")
    func.attrs["sample_attrs"] = given
    return func


def general(op: opdef.OpDef, arrays: Sequence[Any], attrs: Mapping[str, Any]) -> Func:
    """The function of a sample with as many sizes symbolic as its type rule allows."""
    for keep_one, swap in ((False, True), (False, False), (True, True), (True, False)):
        try:
            return _symbolic(op, arrays, attrs, keep_one, swap)
        except (AotgradError, ValueError, TypeError, AssertionError):
            continue
    func = emit_func(op, [TensorType(x.shape, as_dtype(x.dtype)) for x in arrays], attrs)
    func.attrs["sample_attrs"] = dict(attrs)
    return func


def cast_arrays(arrays: Iterable[Any], dtype: Any) -> tuple[Any, ...]:
    return tuple(np.asarray(x, dtype) if np.asarray(x).dtype == np.float64 else np.asarray(x) for x in arrays)


def cases(op: opdef.OpDef, dtype: Any = np.float64) -> list[Case]:
    """The samples of an op in ``dtype``, with pools of values to draw further operands from."""
    found = list((op.samples or tuple)())
    rows = [cast_arrays(s.operands, dtype) for s in found]
    out = []
    for s, arrays in zip(found, rows):
        alike = [r for r in rows if [x.dtype for x in r] == [x.dtype for x in arrays]]
        pools = tuple(np.concatenate([r[i].ravel() for r in alike]) for i in range(len(arrays)))
        func = general(op, arrays, s.attrs)
        out.append(Case(op, s.name, func, func.attrs.pop("sample_attrs"), arrays, pools))
    return out


def in_range(func: Func, env: Mapping[str, int]) -> bool:
    """Whether no size is negative, reshapes keep the number of elements, and slices and inserts stay inside (what tracing guards and a kernel does not check)."""
    whole = substitute_func(decompose_func(func), env)
    for op in walk(whole.body):
        if any(isinstance(n, int) and n < 0 for r in op.results for n in r.type.shape):
            return False
        if op.name == "reshape" and op.operands[0].type.size != op.results[0].type.size:
            return False
        if op.name in ("slice", "insert", "insert_add"):
            inner = op.results[0].type.shape if op.name == "slice" else op.operands[1].type.shape
            for n, size, start, step in zip(op.operands[0].type.shape, inner, op.attrs["starts"], op.attrs["steps"]):
                last = start + (size - 1) * step
                if size and not (0 <= start < n and 0 <= last < n):
                    return False
    return True


def _substituted(value: Any, env: Mapping[str, int]) -> Any:
    if isinstance(value, tuple):
        return tuple(_substituted(v, env) for v in value)
    return value.substitute(env) if isinstance(value, dims.Dim) else value


def resized(case: Case, rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    """Operands of other sizes for the same function: all 0, all 1, mixed small ones, and ones with SIMD tails."""
    symbols = case.func.symbols()
    if not symbols:
        return
    for low, high in ((0, 1), (1, 2), (0, 4), (2, 7), (13, 38)):
        env = {s: int(rng.integers(low, high)) for s in symbols}
        types = [t.substitute(env) for t in case.func.arg_types]
        if any(pool.size == 0 for pool in case.pools) or sum(int(np.prod(t.shape)) for t in types) > 4000:
            continue
        try:
            emit_func(case.op, types, {k: _substituted(v, env) for k, v in case.attrs.items()})
        except (AotgradError, ValueError):
            continue
        if in_range(case.func, env):
            yield tuple(np.asarray(rng.choice(pool, size=t.shape), pool.dtype) for pool, t in zip(case.pools, types))


# ---- functions of a row, and their arguments ----------------------------------------------------------------------------------------

def is_float(t: TensorType) -> bool:
    return t.dtype.kind == "f"


def derived(func: Func) -> dict[str, Func]:
    """The function and what is derived from it, as the interpreter runs them."""
    on = [is_float(t) for t in func.arg_types]
    out = {"value": func}
    if any(on):
        vjp = vjp_func(func, on)
        out.update(vjp=vjp, jvp=jvp_func(func, on), second=vjp_func(vjp, [is_float(t) for t in vjp.arg_types]))
    return out


def _noise(rng: np.random.Generator, like: Iterable[Any]) -> list[Any]:
    return [np.asarray(rng.normal(size=np.shape(x)), x.dtype) for x in like if x.dtype.kind == "f"]


def arguments(funcs: Mapping[str, Func], arrays: Sequence[Any], rng: np.random.Generator) -> dict[str, list[Any]]:
    """Arguments of each derived function: operands, then random cotangents or tangents."""
    out = {"value": list(arrays)}
    if "vjp" in funcs:
        outs = interp.run(funcs["value"], *arrays)
        out["vjp"] = [*arrays, *_noise(rng, outs)]
        out["jvp"] = [*arrays, *_noise(rng, arrays)]
        pulled = interp.run(funcs["vjp"], *out["vjp"])
        out["second"] = [*out["vjp"], *_noise(rng, pulled)]
    return out


def agree(got: Any, want: Any, exact: bool, what: str, moved: Callable[[], list[Any]] | None = None) -> None:
    """Equal bits for exact ops and data; a few units in the last place of the largest element otherwise.

    ``moved``: where that does not hold, how far rounding of the operands alone moves each result; no order of operations can do better.
    """
    gots = list(got) if isinstance(got, tuple) else [got]
    assert len(gots) == len(want), what
    for i, (g, w) in enumerate(zip(gots, want)):
        assert g.shape == w.shape and g.dtype == w.dtype, f"{what}: {g.dtype}{g.shape} is not {w.dtype}{w.shape}"
        if exact or w.dtype.kind in "iub":
            np.testing.assert_array_equal(g, w, err_msg=what)
        else:
            eps = float(np.finfo(w.dtype).eps)
            scale = max(1.0, float(np.max(np.abs(w), initial=0.0, where=np.isfinite(w))))
            near = np.isclose(g, w, rtol=64 * eps, atol=16 * eps * scale, equal_nan=True)
            if moved is not None and not near.all():
                with np.errstate(invalid="ignore"):
                    near |= np.abs(g - w) <= 4 * moved()[i]
            if not near.all():
                np.testing.assert_allclose(g, w, rtol=64 * eps, atol=16 * eps * scale, err_msg=what)


def run_both_guards(native: Native, args: Sequence[Any], status: int = 0) -> Any:
    """Runs with buffers ending at, then beginning after, a page nobody may touch; both give the same bits."""
    late, early = (native(*args, guard=g, status=status) for g in (True, False))
    if status:
        return None
    for a, b in zip(late if isinstance(late, tuple) else (late,), early if isinstance(early, tuple) else (early,)):
        assert a.tobytes() == b.tobytes(), "alignment changed a result"
    return late


@dataclass
class Group:
    """Cases that are calls of one function, its derived functions, and their kernels."""

    cases: list[Case]
    funcs: dict[str, Func]
    roads: Sequence[str]
    kernels: dict[str, Native] = field(default_factory=dict)


def groups(found: Iterable[Case], roads: Sequence[str] = ROADS, others: Sequence[str] | None = None) -> list[Group]:
    """Cases by function, all kernels compiled into one library. ``others``: the roads of functions beyond the first, where they are not the same."""
    by_text: dict[str, Group] = {}
    for case in found:
        text = str(case.func)
        if text not in by_text:
            here = roads if others is None or not by_text else others
            by_text[text] = Group([], {r: f for r, f in derived(case.func).items() if r in here or r in ("value", "vjp")}, here)
        by_text[text].cases.append(case)
    out = list(by_text.values())
    if not out:
        return []
    wanted = {f"g{i}_{road}": standard(f) for i, g in enumerate(out) for road, f in g.funcs.items() if road in g.roads}
    made = natives(wanted)
    for i, g in enumerate(out):
        g.kernels = {road: made[f"g{i}_{road}"] for road in g.funcs if road in g.roads}
    return out


def seeded(*names: Any) -> np.random.Generator:
    """A generator of numbers that depend on what they are for, and not on what was run before."""
    return np.random.default_rng(zlib.crc32(repr(names).encode()))


def moved_by_rounding(func: Func, args: Sequence[Any]) -> list[Any]:
    """How far each result moves when every float operand that is no whole number (those may stand at a kink) moves by a unit in the last place."""
    want, most = interp.run(func, *args), [np.zeros(())] * len(func.outputs)
    for side in (np.inf, -np.inf):
        near = interp.run(func, *(np.where(x == np.rint(x), x, np.nextafter(x, np.asarray(side, x.dtype))) if x.dtype.kind == "f" else x for x in args))
        with np.errstate(invalid="ignore"):
            by = [np.abs(n - w) if w.dtype.kind == "f" else np.zeros(()) for n, w in zip(near, want)]
        most = [np.maximum(m, np.where(np.isfinite(d), d, 0)) for m, d in zip(most, by)]
    return most


def check_arrays(group: Group, case: Case, arrays: Sequence[Any]) -> None:
    """All roads of a group on one set of operands."""
    what = f"{case.op.name}[{case.name}]{[x.shape for x in arrays]}"
    rng = seeded(what)
    try:
        args = arguments(group.funcs, arrays, rng)
    except AotgradIndexError:
        run_both_guards(group.kernels["value"], arrays, status=2)
        return
    for road, kernel in group.kernels.items():
        want = interp.run(group.funcs[road], *args[road])
        got = run_both_guards(kernel, args[road])
        exact = road == "value" and case.op.exact and case.op.name != "scatter_add"
        agree(got, want, exact, f"{what} {road}", lambda road=road: moved_by_rounding(group.funcs[road], args[road]))


def spread(found: list[Case], most: int | None) -> list[Case]:
    """No more than ``most`` of them, from first to last."""
    return found if most is None or len(found) <= most else [found[i * (len(found) - 1) // (most - 1)] for i in range(most)]


def check_op(name: str, dtype: Any = np.float64, roads: Sequence[str] = ROADS, samples: int | None = None, others: Sequence[str] | None = None) -> int:
    """The samples of an op (no more than ``samples``), and other sizes of it, on every road (``others``: on these where the function is not that of the first
    sample). Gives the number of operand sets run."""
    found = spread(cases(opdef.get(name), dtype), samples)
    if dtype != np.float64 and not any(x.dtype == dtype for c in found for x in c.arrays):
        return 0
    count = 0
    for group in groups(found, roads, others):
        for case in group.cases:
            for arrays in (case.arrays, *(resized(case, seeded(name, case.name)) if case is group.cases[0] else ())):
                check_arrays(group, case, arrays)
                count += 1
    return count


# ---- layouts ------------------------------------------------------------------------------------------------------------------------

CHANNELS_LAST = Layout((0, 2, 3, 1))


def _laid_out(t: TensorType) -> TensorType:
    """Rank 4 in channels_last, rank 2 and 3 in Fortran order."""
    order = CHANNELS_LAST if t.rank == 4 else Layout(tuple(reversed(range(t.rank))))
    return TensorType(t.shape, t.dtype, order) if t.rank > 1 else t


def _wide(case: Case) -> list[Case]:
    """Rank-4 calls of elementwise ops and of reductions, whose samples have lower rank."""
    rank2 = len(case.arrays) and all(x.ndim == 2 for x in case.arrays)
    if not rank2 or case.op.layouts == "row_major" and "dims" not in case.attrs:
        return []
    if case.op.layouts == "elementwise":
        choices: list[Any] = [{}]
    else:
        choices = [{"dims": d} for d in ((1,), (2, 3), (0, 2, 3), (0, 1, 2, 3))] if set(case.attrs) == {"dims"} else []
    rng, shape = np.random.default_rng(3), (2, 3, 5, 4)
    types = [TensorType(tuple(map(dims.symbol, "nchw")), t.dtype) for t in case.func.arg_types]
    arrays = tuple(np.asarray(rng.choice(pool, size=shape), pool.dtype) for pool in case.pools if pool.size)
    if len(arrays) < len(types):
        return []
    return [Case(case.op, f"nchw{list(a.values())}", emit_func(case.op, types, {**case.attrs, **a}), {**case.attrs, **a}, arrays, case.pools) for a in choices]


def layout_cases(name: str) -> list[Case]:
    """Every sample with an operand of rank 2 or more, all operands laid out; and one with only the first."""
    out: list[Case] = []
    found = cases(opdef.get(name))
    for case in [*found, *(w for c in found[:1] for w in _wide(c))]:
        types = case.func.arg_types
        laid = [_laid_out(t) for t in types]
        if laid == types:
            continue
        for kind, chosen in (("all", laid), ("first", [laid[0], *types[1:]])):
            if chosen != types and (kind == "all" or chosen != laid and not any(c.name.endswith(":first") for c in out)):
                out.append(Case(case.op, f"{case.name}:{kind}", emit_func(case.op, chosen, case.attrs), case.attrs, case.arrays, case.pools))
    return out


def check_layouts(name: str, samples: int | None = None) -> int:
    """Values and cotangents with operands in other memory orders: equal values; cotangents in the layout of their operands.

    ``samples``: no more than these, without forward mode.
    """
    count = 0
    for group in groups(spread(layout_cases(name), samples), ("value", "vjp", *(("jvp",) if samples is None else ()))):
        n = len(group.funcs["value"].outputs)
        if "vjp" in group.funcs:
            assert group.funcs["vjp"].out_types[n:] == [t for t in group.funcs["value"].arg_types if is_float(t)], f"{name}: a cotangent lost its layout"
        for case in group.cases:
            check_arrays(group, case, case.arrays)
            count += 1
    return count


# ---- the C form -----------------------------------------------------------------------------------------------------------------------

class CForm(Program):
    """``int32_t NAME(inputs..., sizes..., outputs..., workspace)``, called with exact-size guarded buffers; outputs may be refused."""

    def __init__(self, func: Func, name: str, library: Library) -> None:
        self.func, self.library = func, library
        count = len(func.args) + len(func.symbols()) + len(func.outputs) + 1
        kinds = [ctypes.c_void_p] * len(func.args) + [ctypes.c_int64] * len(func.symbols()) + [ctypes.c_void_p] * (len(func.outputs) + 1)
        assert len(kinds) == count
        self.c_entry = ctypes.CFUNCTYPE(ctypes.c_int32, *kinds)(library.address(name))
        self.need = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(func.symbols()))(library.address(f"{name}_workspace"))

    def call(self, args: Sequence[Any], refused: int | None = None, at_end: bool = True) -> list[Any]:
        """Outputs as arrays; None for the one that is refused by a NULL pointer."""
        env = self.sizes(args)
        sizes = [env[s] for s in self.func.symbols()]
        ins = [Guarded(a.nbytes, at_end, a.itemsize) for a in args]
        for g, a, t in zip(ins, args, self.func.arg_types):
            flat = in_layout(a, t.order)
            ctypes.memmove(g.address, flat.ctypes.data, flat.nbytes)
        shapes = [t.substitute(env).shape for t in self.func.out_types]
        outs = [Guarded(int(np.prod(s, dtype=np.int64)) * t.dtype.itemsize, at_end, t.dtype.itemsize) for s, t in zip(shapes, self.func.out_types)]
        work = Guarded(int(self.need(*sizes)), at_end, 1)
        pointers = [None if i == refused else g.address for i, g in enumerate(outs)]
        assert self.c_entry(*(g.address for g in ins), *sizes, *pointers, work.address) == 0
        results: list[Any] = []
        for i, (g, s, t) in enumerate(zip(outs, shapes, self.func.out_types)):
            flat = g.array((int(np.prod(s, dtype=np.int64)),), t.dtype.np)
            results.append(None if i == refused else from_layout(flat, s, t.order))
        return results


def check_c_form(name: str, dtype: Any = np.float64) -> None:
    """The VJP (or the value) of an op's first samples in the plain C form, each output refused once."""
    rng = np.random.default_rng(4)
    by_text = {str(c.func): c for c in cases(opdef.get(name), dtype)}
    made = {f"{name}_{i}": derived(c.func) for i, c in enumerate(by_text.values())}
    wanted = {n: standard(d.get("vjp", d["value"])) for n, d in made.items()}
    library = compile_all(wanted, plain=True)[1]
    for (n, funcs), case in zip(made.items(), by_text.values()):
        road = "vjp" if "vjp" in funcs else "value"
        args = arguments(funcs, case.arrays, rng)[road]
        form, want = CForm(wanted[n], n, library), interp.run(funcs[road], *args)
        for refused in (None, *range(len(want))):
            got = form.call([np.ascontiguousarray(a).reshape(a.shape) for a in args], refused, at_end=refused is None or refused % 2 == 0)
            kept = [(g, w) for g, w in zip(got, want) if g is not None]
            agree(tuple(g for g, _ in kept), [w for _, w in kept], False, f"{n} in C form, without output {refused}")
