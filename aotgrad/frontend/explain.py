"""``f.explain(...)``: what a call runs and what it costs. A method of the functions that ``compile`` returns."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from aotgrad.ir import Func, dims
from aotgrad.ir.dims import Dim
from aotgrad.ir.host import strip_func
from aotgrad.ir.transforms.cleanup import standard
from aotgrad_runtime.records import record
from aotgrad_runtime.tensor import Tensor

from . import compiler, keeping, kernels, profiling, sources, split
from .pytree import tree_flatten
from .signatures import leaf_names
from .variant import Variant, array_of

__all__ = ["Explanation", "KernelCost", "explain"]

_FMA_ROUNDS, _COPY_ROUNDS = 40, 5  # of measuring the machine
Env = Mapping[str, int]


@record(frozen=True)
class KernelCost:
    """One kernel of a call. ``read``, ``written``: bytes of arrays, each once; ``flops``: a multiply-add counts 2, another operation what it takes the time of (division
    4, a function such as exp 16). ``seconds``: predicted, by ``bound``: "arithmetic" or "memory". ``inside``: the kernels of one round of a loop, or of branches."""

    name: str
    lines: tuple[str, ...]
    how: str
    read: int
    written: int
    flops: int
    seconds: float
    bound: str
    inside: tuple[KernelCost, ...] = ()


class Explanation(str):
    """The text, and its figures: ``kernels``; ``peak_memory`` in bytes, the sum of ``results``, ``workspace``, ``copies`` (of arguments that are not dense) and ``kept``
    (what was computed of weights alone, which stays between calls)."""

    kernels: tuple[KernelCost, ...]
    results: int
    workspace: int
    copies: int
    kept: int
    peak_memory: int


def explain(state: Any, *args: Any, **kwargs: Any) -> Explanation:
    """What a call with these arguments runs, as text. Types; every kernel with the lines of your code it came from, the bytes it reads and writes, its arithmetic and the
    time that this machine should need for it; the memory that the call needs at its peak, exactly. Also hidden inputs, what is compared before every call, and which
    numbers of sizes and integers are part of the trace, so that other numbers are traced anew, with the line that needed them.

    The text has the figures as attributes, see ``Explanation``: ``kernels``, ``peak_memory``, ``results``, ``workspace``. The function is compiled and not run.
    Predicted times are a roofline: arithmetic at this machine's multiply-add peak (half of it outside of products), or bytes at the bandwidth of a copy of as many,
    whichever is longer; both are measured once in a process. A call on tensors records one more program, for its backward pass, which is not shown: compile
    ``ag.value_and_grad(f)`` to see both.

    >>> import numpy as np, aotgrad as ag
    >>> f = ag.compile(lambda x: x * len(x), name="f")
    >>> found = f.explain(np.ones(3))
    >>> print(found)                                                               # doctest: +ELLIPSIS
    f: 1 trace(s), 1 variant(s)
    ...
      only for x_0 = 3: ...
    >>> found.kernels[0].read, found.kernels[0].written, found.peak_memory
    (24, 24, 24)
    """
    leaves, tree = tree_flatten((args, kwargs))
    static = state._static_leaves(args, kwargs)
    variant = state.find(leaves, tree, static)[0]
    program = state.program(variant)
    given = [array_of(x) for x in variant.arguments(leaves)]
    env = _sizes(variant.func, given)
    lines = [f"{state.name}: {state.traces} trace(s), {len(state.all())} variant(s)"]
    if state.dropped:
        lines.append(f"  {state.dropped} older variant(s) dropped: at most {state.most} are kept; pass values that change often as arrays or floats")
    lines += [f"  argument {i}: {t}" for i, t in enumerate(variant.func.arg_types)]
    lines += [f"  result {i}: {t}" for i, t in enumerate(variant.func.out_types)]
    lines += _numbers(state, variant, leaves, tree)
    lines += [f"  re-read at every call: {type(obj).__name__} from {sources.shown(source)}" for obj, source in variant.hidden]
    lines += variant.changes.lines()
    lines += [f"  changed while tracing only: {path}" for path in variant.harmless]
    lines += [f"  compared before every call, as its numbers were used while tracing: {type(c.array).__name__} from {c.path}" for c in variant.watch.contents]
    plain = bool(keeping.opened(program, variant))
    found = [_Costs(part, env, plain) if part.native else None for part in _parts(program)]
    shown, costs = _kernels(found)
    apart = any(isinstance(leaves[leaf.index], Tensor) for i, leaf in enumerate(variant.leaves) if i in variant.changes.written)
    memory = _memory(program, given, env, plain, apart)
    lines += keeping.told(program, variant)
    compiled = [c for c in found if c is not None]
    lines += [*shown, *(f"  relayout {r}" for c in compiled for r in c.relayouts), *_sums(costs, memory, any(c.measured for c in compiled))]
    lines.append(f"  traced and compiled in {variant.seconds:.3f} s")
    text = Explanation("\n".join(lines))
    text.kernels, (text.results, text.workspace, text.copies, text.kept) = tuple(costs), memory
    text.peak_memory = sum(memory)
    return text


def _numbers(state: Any, variant: Variant, leaves: Sequence[Any], tree: Any) -> list[str]:
    """The numbers that the trace is for."""
    names, dynamic = leaf_names(state.signature, tree), {leaf.index for leaf in variant.leaves}
    out = [f"  only for {name} = {x!r}: {_why(state.retraces.places.get(i))}" for i, (name, x) in enumerate(zip(names, leaves)) if i not in dynamic
           and type(x) in (int, float)]
    out += [f"  only for {d} = {n}: needed, or met another size, at {loc}" + (f" ({loc.source})" if loc and loc.source else "") for d, n, loc in variant.fixed]
    out += [f"  only for sizes that differ as {a} and {b} do: compared" for a, b in variant.unequal]
    if state.retraces.numbered and not any(isinstance(d, Dim) for leaf in variant.leaves for d in leaf.type.shape):
        out.append(f"  only for these sizes, as the function needed Python integers ({state.retraces.numbered})")
    return out


def _why(loc: Any) -> str:
    return "named by static=" if loc is None else f"used as a Python number at {loc}" + (f" ({loc.source})" if loc.source else "")


# ---- kernels ----------------------------------------------------------------------------------------------------------------------------

def _parts(program: Any) -> list[Any]:
    """The compiled programs of a call, with those that Python runs between them."""
    return [part.program for part in program.parts(False)[0]] if isinstance(program, split.SplitProgram) else [program]


def _sizes(func: Func, given: Sequence[Any]) -> dict[str, int]:
    """The sizes of a call by their names."""
    env: dict[str, int] = {}
    for t, x in zip(func.arg_types, given):
        for d, n in zip(t.shape, np.shape(x)):
            name = d.as_symbol() if isinstance(d, Dim) else None
            if name is not None:
                env.setdefault(name, int(n))
    return env


def _at(d: Any, env: Env) -> int:
    """A size as a number; sizes that only running tells (of a loop inside) count as 1."""
    if not isinstance(d, Dim):
        return int(d)
    found = dims.substitute(d, {s: env.get(s, 1) for s in d.symbols()})
    return int(found)


class _Costs:
    """The kernels of one compiled program, at the sizes of a call."""

    def __init__(self, program: Any, env: Env, plain: bool) -> None:
        stripped = strip_func(program.func)
        func = program.func if stripped is program.func else standard(stripped)
        self.env, self.measured = env, False
        kernel, options = program.shown(plain)
        steps, self.relayouts = compiler.driver.steps(func, kernel.name, kernels.target(), options)
        self.found = [self.cost(s) for s in steps]

    def cost(self, step: Any) -> KernelCost:
        """One kernel's, with those inside it."""
        inside, times = tuple([self.cost(s) for s in step.inside]), _at(step.times, self.env)
        read, written, flops = (_at(d, self.env) for d in (step.read, step.written, step.flops))
        seconds, bound = self._time(step, read + written, flops)
        if inside:
            read, written, flops = (own + times * sum(getattr(c, key) for c in inside) for own, key in ((read, "read"), (written, "written"), (flops, "flops")))
            seconds += times * sum(c.seconds for c in inside)
            bound = max(inside, key=lambda c: c.seconds).bound
        places = sorted({(file, line, adjoint) for file, line, _, adjoint in step.lines})
        lines = tuple(f"{_shortest(file)}:{line}{' (adjoint)' if adjoint else ''}" for file, line, adjoint in places)
        how = "; ".join(_chosen(r, self.env) for r in step.how if not inside or r["kind"] in ("scan", "cond"))
        return KernelCost(profiling.joined(step.ops), lines, how, read, written, flops, seconds, bound, inside)

    def _time(self, step: Any, moved: int, flops: int) -> tuple[float, str]:
        """The longer of arithmetic and memory."""
        if not moved and not flops:
            return 0.0, "memory"
        self.measured, peaks = True, compiler.peaks
        peak = peaks.fma_peak("f32" if step.dtype in ("f32", "f16", "bf16") else "f64", _FMA_ROUNDS) * step.threads
        work = flops / (peak if step.product else peak / 2) / 1e9
        transfer = moved / peaks.bandwidth(moved, _COPY_ROUNDS) / 1e9
        return (work, "arithmetic") if work > transfer else (transfer, "memory")


def _shortest(file: str) -> str:
    """A path as seen from the current folder, where it is in it."""
    here = os.path.join(os.getcwd(), "")
    return file[len(here):] if file.startswith(here) else file


def _chosen(r: Mapping[str, Any], env: Env) -> str:
    """An entry of the compiler's report in words."""
    kind, by = r["kind"], f", shared by up to {r['threads']} threads" if r.get("threads", 1) > 1 else ""
    sizes = " x ".join(str(_at(d, env)) for d in r.get("sizes", ()))
    if kind in ("gemm", "small dot"):
        many = _at(r["batch"], env)
        return f"{'packed product' if kind == 'gemm' else 'small product'} {sizes}{f', {many} of them' if many != 1 else ''}{by}"
    if kind in ("loop", "epilogue"):
        lanes = max(r["lanes"], default=1)
        how = "on its blocks: " if kind == "epilogue" else ""
        around = f" inside {r['outer']} around them" if r["outer"] else ""
        return f"{how}{r['loops']} loop nest(s), {r['depth']} deep{around}, vectors of {lanes}{by}"
    if "how" in r:
        return f"{kind} by {r['how']}, image and kernel sizes {sizes}, layouts {', '.join(r['layouts'])}{by}"
    if kind == "scan":
        return f"{_at(r['length'], env)} rounds; carries: {r['registers']} in registers, {r['in place']} in place, {r['double']} copied"
    rest = ", ".join(f"{k} {' x '.join(map(str, v)) if isinstance(v, list) else v}" for k, v in r.items() if k != "kind")
    return f"{kind}{f' ({rest})' if rest else ''}"


def _kernels(found: Sequence[_Costs | None]) -> tuple[list[str], list[KernelCost]]:
    lines: list[str] = []
    costs: list[KernelCost] = []
    for one in found:
        if one is None:
            lines.append("  call of Python")
            continue
        for c in one.found:
            lines += _shown(c, f"  kernel {len(costs)}: ", "      ")
            costs.append(c)
    return lines, costs


def _shown(c: KernelCost, head: str, indent: str) -> Iterator[str]:
    yield f"{head}{c.name}"
    if c.how:
        yield f"{indent}{c.how}"
    if c.lines:
        yield f"{indent}from {', '.join(c.lines)}"
    yield f"{indent}reads {_bytes(c.read)}, writes {_bytes(c.written)}, {_count(c.flops)}FLOP; predicted {_time(c.seconds)} ({c.bound})"
    for i, inner in enumerate(c.inside):
        yield from _shown(inner, f"{indent}inside, {i}: ", indent + "    ")


# ---- sums -------------------------------------------------------------------------------------------------------------------------------

def _memory(program: Any, given: Sequence[Any], env: Env, plain: bool, apart: bool) -> tuple[int, int, int, int]:
    """Bytes of results, workspace, copies of arguments that are not dense, and what is kept. ``apart``: what is written to arguments is made apart from them first."""
    results = workspace = kept = 0
    for part in _parts(program):
        kernel = part.shown(plain)[0] if part.native else None
        placed = {j for j, i in kernel.over if not apart and kernels.dense_order(given[i]) is not False} if kernel is not None else set()
        results += sum(_at(t.size, env) * t.dtype.itemsize for j, t in enumerate(part.func.out_types) if j not in placed)
        if kernel is not None:
            need, kept = kernel.meta["workspace"], kept + (kernel.once["bytes"] if kernel.once else 0)
            workspace += _at(need if isinstance(need, int) else dims.parse(need), env)
    copies = sum(x.nbytes for x in given if isinstance(x, np.ndarray) and kernels.dense_order(x) is False)
    return results, workspace, copies, kept


def _sums(costs: Sequence[KernelCost], memory: tuple[int, int, int, int], measured: bool) -> list[str]:
    results, workspace, copies, kept = memory
    also = f" + {copies:,} of arguments that are not dense, copied" if copies else ""
    also += f" + {kept:,} kept between calls" if kept else ""
    lines = []
    if len(costs) > 1:
        read, written, flops = (sum(getattr(c, key) for c in costs) for key in ("read", "written", "flops"))
        lines.append(f"  in all: reads {_bytes(read)}, writes {_bytes(written)}, {_count(flops)}FLOP; predicted {_time(sum(c.seconds for c in costs))}")
    lines.append(f"  peak memory of a call: {sum(memory):,} bytes = {results:,} of results + {workspace:,} of workspace{also}")
    if measured:
        peaks = compiler.peaks
        rates = " and ".join(f"{peaks.fma_peak(d, _FMA_ROUNDS):.0f} ({d})" for d in ("f32", "f64"))
        widths = ", ".join(f"{peaks.copy_bandwidth(n, _COPY_ROUNDS):.0f} ({level})" for level, n in peaks.LEVELS.items())
        lines.append(f"  predicted by: multiply-add peak {rates} GFLOP/s on one thread, half of it outside of products; copies {widths} GB/s; measured in this process")
    return lines


def _bytes(n: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} bytes"


def _count(n: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} "


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
