"""The entry points: choice of path, cache blocks, packing, and the calls of the strip kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from aotgrad_runtime.records import record

from ...ir import dims
from ...ir.dims import DimLike
from .emit import Fn, Val, Vec
from .gemv import DOT_TILES, DOTS, STREAM
from .micro import PANEL_PARAMS, WHOLE_PARAMS, Panel
from .pack import COPY, STRIDED, STRIPS, TRANSPOSE, call_copy

__all__ = ["Config", "entry", "pack", "packed_bytes", "packed_column", "workspace"]

_INTERRUPTED = 5
_PART = 1 << 24  # products of elements between two questions whether to stop, where no matrix is packed
_ROWS, _COLUMNS = 16, 4096  # parts are multiples of so many dots, or columns of a stream
_SIZES = (("i64", "M"), ("i64", "N"), ("i64", "K"))
_STRIDES = (("i64", "rsa"), ("i64", "csa"), ("i64", "rsb"), ("i64", "csb"))


@record(frozen=True)
class Config:
    """What the generator chose for one dtype and target. ``kc``, ``mc``, ``nc``: elements per cache block; the other limits are in bytes."""

    vec: Vec
    panels: tuple[Panel, ...]  # 1, 2, ... vectors, the last of them partial
    whole: Panel  # one vector more, none partial: a strip
    scalar: Panel | None  # for the columns beyond the last full vector, where lanes cannot be masked
    kc: int
    kc_packed: int  # where A is packed
    kc_apart: int  # where A is read along columns: a page for each step of k, which the tiles of the next rows find again
    mc: int
    mc_packed: int  # where A is packed
    nc: int
    once: tuple[int, int, int]  # up to so many rows all are one block, with this ``kc`` and ``nc``
    together: bool  # there all strips of a block of B are packed in one pass over its rows, not each by the first tile
    pack_b_bytes: int
    pack_a_bytes: int
    often_b: tuple[int, int]  # B is packed above so many bytes where so many rows of A read it
    often_a: tuple[int, int]  # A, above so many bytes where so many columns of B read it
    row_dots: int  # up to this many rows, B with unit row stride is read in place instead of being transposed first
    col_dots: int  # up to this many columns, A with unit column stride is read by vectors along k

    @property
    def strip(self) -> int:
        return self.whole.vectors * self.vec.lanes

    @property
    def tiles(self) -> int:
        """Rows that every panel divides."""
        return math.lcm(*(p.rows[0] for p in (*self.panels, self.whole)))


@record(frozen=True)
class _Plan:
    kc: str
    mc: str
    nc: str
    once: str
    together: str
    pack_a: str
    pack_b: str
    bytes_b: str
    total: str


def _unit(f: Fn, cfg: Config) -> dict[str, str]:
    """The cases of vector results, in the order they are tried, and whether B's columns are adjacent. Values are i1."""
    one_row, one_col = f.cmp("eq", "%M", 1), f.cmp("eq", "%N", 1)
    unit = {name: f.cmp("eq", f"%{name}", 1) for name in ("rsa", "csa", "rsb", "csb")}
    wide = f.cmp("sgt", "%N", 1)
    adjacent = f.either(one_col, unit["csb"])
    few_rows, few_cols = f.cmp("sle", "%M", cfg.row_dots), f.cmp("sle", "%N", cfg.col_dots)
    spread = f.both(wide, f.op(f"xor i1 {unit['csb']}, true"))
    return {
        "row_stream": f.both(f.both(one_row, wide), unit["csb"]),
        "row_dots": f.both(f.both(few_rows, unit["rsb"]), f.either(spread, f.both(one_row, one_col))),
        "col_dots": f.both(f.either(one_col, f.both(few_cols, f.cmp("sge", "%K", 4 * cfg.vec.lanes))), unit["csa"]),
        "col_stream": f.both(one_col, unit["rsa"]),
        "adjacent": adjacent,
    }


def _plan(f: Fn, cfg: Config, adjacent: str, kept: str = "false") -> _Plan:
    size, lanes = cfg.vec.size, cfg.vec.lanes
    of_b, of_a = f.mul(f.mul("%K", "%N"), size), f.mul(f.mul("%K", "%M"), size)
    large_b = f.both(f.cmp("sgt", of_b, cfg.pack_b_bytes), f.cmp("sgt", "%M", 16))
    large_b = f.either(large_b, f.both(f.cmp("sgt", of_b, cfg.often_b[0]), f.cmp("sge", "%M", cfg.often_b[1])))
    pack_b = f.both(f.either(f.op(f"xor i1 {adjacent}, true"), large_b), f.op(f"xor i1 {kept}, true"))
    apart = f.both(f.cmp("ne", "%csa", 1), f.cmp("sgt", of_a, cfg.often_a[0]))
    pack_a = f.both(apart, f.either(f.both(f.cmp("sgt", of_a, cfg.pack_a_bytes), f.cmp("sgt", "%N", cfg.strip)), f.cmp("sge", "%N", cfg.often_a[1])))
    once = f.cmp("sle", "%M", cfg.once[0])  # each strip is packed, used, and not needed again
    rows = f.select(once, cfg.once[0], f.select(pack_a, cfg.mc_packed, cfg.mc))
    mc = f.round_up(f.ceil_div("%M", f.ceil_div("%M", rows)), cfg.tiles)
    deep = f.select(once, cfg.once[1], f.select(pack_a, cfg.kc_packed, f.select(apart, cfg.kc_apart, cfg.kc)))
    kc = f.ceil_div("%K", f.ceil_div("%K", deep))
    most = f.select(once, cfg.once[2], f.select(pack_a, 2 * cfg.nc, cfg.nc))  # A is packed anew for every column block
    nc = f.round_up(f.ceil_div("%N", f.ceil_div("%N", most)), cfg.strip)
    together = f.both(f.both(once, pack_b), f.cmp("eq", "%csb", 1)) if cfg.together else "false"
    width = f.min(f.select(f.both(once, f.op(f"xor i1 {together}, true")), cfg.strip, nc), f.round_up("%N", lanes))
    bytes_b = f.mul(f.add(f.mul(kc, width), lanes * cfg.strip), size)  # copy_transposed wants the slack
    bytes_b = f.select(pack_b, f.op(f"and i64 {f.add(bytes_b, 63)}, -64"), 0)
    bytes_a = f.select(pack_a, f.mul(f.mul(kc, mc), size), 0)
    return _Plan(kc, mc, nc, once, together, pack_a, pack_b, bytes_b, f.add(bytes_a, bytes_b))


def workspace(cfg: Config) -> str:
    """``ag_gemm_T_workspace``: bytes of workspace for these sizes and strides."""
    f = Fn(f"ag_gemm_{cfg.vec.dtype}_workspace", [*_SIZES, *_STRIDES], "i64", "hidden")
    none = f.either(f.either(f.cmp("sle", "%M", 0), f.cmp("sle", "%N", 0)), f.cmp("sle", "%K", 0))
    f.when(none, lambda: f.ret("i64 0"))
    case = _unit(f, cfg)
    needs = {  # copies of what is not adjacent along k; col_stream may have to gather C, whose stride is not known here
        "row_stream": "0", "row_dots": _unless_unit(f, "%csa", f.mul("%M", "%K")), "col_dots": _unless_unit(f, "%rsb", f.mul("%N", "%K")), "col_stream": "%M",
    }
    for name, count in needs.items():
        f.when(case[name], lambda count=count: f.ret(f"i64 {f.mul(count, cfg.vec.size)}"))  # type: ignore[misc]
    f.ret(f"i64 {_plan(f, cfg, case['adjacent']).total}")
    f.end()
    return f.text()


def _unless_unit(f: Fn, stride: str, count: str) -> str:
    return f.select(f.cmp("eq", stride, 1), 0, count)


def packed_bytes(cfg: Config, n: DimLike, k: DimLike) -> DimLike:
    """Bytes of all of B as ``ag_gemm_T_pack`` leaves it: ``packed_column`` for each column, of which there are whole vectors."""
    lanes = cfg.vec.lanes
    out: DimLike = dims.floordiv(n + lanes - 1, lanes) * lanes * packed_column(cfg, k)
    return out


def packed_column(cfg: Config, k: DimLike) -> DimLike:
    """Bytes from a strip to the next for each of its columns."""
    out: DimLike = dims.floordiv(k + cfg.vec.lanes - 1, cfg.vec.lanes) * cfg.vec.bytes
    return out


def pack(cfg: Config) -> str:
    """``ag_gemm_T_pack(N, K, B, rsb, csb, packed, first, last)``: strips ``first`` to ``last`` of columns of B, each [K][width], for ``ag_gemm_T_kept``.

    K and widths are rounded up to whole vectors: copy_transposed writes whole blocks, which end inside of a strip, so strips may be packed in any order.
    """
    f = Fn(f"ag_gemm_{cfg.vec.dtype}_pack", [*_SIZES[1:], ("ptr", "B"), *_STRIDES[2:], ("ptr", "to"), ("i64", "first"), ("i64", "last")], "void", "hidden")
    st = {name: f.mul(f"%{name}", cfg.vec.size) for name in ("rsb", "csb")}
    start, deep = f.mul("%first", cfg.strip), f.round_up("%K", cfg.vec.lanes)
    n = f.sub(f.min("%N", f.mul("%last", cfg.strip)), start)
    to, b = f.at("%to", f.mul(f.mul(deep, start), cfg.vec.size)), f.at("%B", f.mul(start, st["csb"]))
    f.for_(n, cfg.strip, lambda j: _pack_strip(f, cfg.vec, st, f.at(b, f.mul(j, st["csb"])), f.at(to, f.mul(f.mul(deep, j), cfg.vec.size)), "%K",
                                               f.min(f.sub(n, j), cfg.strip)))
    f.ret()
    f.end()
    return f.text()


def entry(cfg: Config) -> str:
    """``ag_gemm_T_kept``, whose last argument is B packed before (or NULL), and ``ag_gemm_T`` without."""
    vec = cfg.vec
    params = [*_SIZES, ("ptr", "A"), ("i64", "rsa"), ("i64", "csa"), ("ptr", "B"), ("i64", "rsb"), ("i64", "csb"), ("ptr", "C"), ("i64", "rsc"),
              ("i64", "accumulate"), ("ptr", "workspace"), ("ptr", "epilogue"), ("ptr", "closure"), ("ptr", "poll"), ("ptr", "ctx")]
    plain = Fn(f"ag_gemm_{vec.dtype}", params, "i32", "hidden")
    given = ", ".join(f"{ty} %{name}" for ty, name in params)
    plain.ret(f"i32 {plain.op(f'call i32 @ag_gemm_{vec.dtype}_kept({given}, ptr null)')}")
    plain.end()
    f = Fn(f"ag_gemm_{vec.dtype}_kept", [*params, ("ptr", "packed")], "i32", "hidden", "noinline nounwind")
    f.when(f.either(f.cmp("sle", "%M", 0), f.cmp("sle", "%N", 0)), lambda: f.ret("i32 0"))
    acc = f.cmp("ne", "%accumulate", 0)
    st = {name: f.mul(f"%{name}", vec.size) for name in ("rsa", "csa", "rsb", "csb", "rsc")}

    def finish(m0: Val, m1: Val, n0: Val, n1: Val) -> None:
        f.when(f.op("icmp ne ptr %epilogue, null"), lambda: f.raw(f"call void %epilogue(ptr %closure, i64 {m0}, i64 {m1}, i64 {n0}, i64 {n1})"))

    def done() -> None:
        finish(0, "%M", 0, "%N")
        f.ret("i32 0")

    def empty() -> None:
        clear = f.op(f"xor i1 {acc}, true")
        f.when(clear, lambda: f.for_("%M", 1, lambda r: f.raw(
            f"call void @{STREAM}_{vec.dtype}(i64 %N, i64 0, ptr %A, i64 0, ptr %B, i64 0, ptr {f.at('%C', f.mul(r, st['rsc']))}, i1 false)")))
        done()

    f.when(f.cmp("sle", "%K", 0), empty)
    case = _unit(f, cfg)
    _vector_cases(f, cfg, case, st, acc, done)
    kept = f.op("icmp ne ptr %packed, null")
    _blocks(f, cfg, _plan(f, cfg, case["adjacent"], kept), st, acc, finish, kept)
    f.ret("i32 0")
    f.end()
    return f"{f.text()}\n{plain.text()}"


def _ask(f: Fn, cond: Val) -> None:
    """Where ``cond`` holds: leaves with status 5 when the caller's poll says so."""
    def ask() -> None:
        f.when(f.op(f"icmp ne i32 {f.op('call i32 %poll(ptr %ctx)')}, 0"), lambda: f.ret(f"i32 {_INTERRUPTED}"))

    f.when(f.both(cond, f.op("icmp ne ptr %poll, null")), ask)


def _in_parts(f: Fn, count: str, unit: Val, each: Val, body: Callable[[str, str], object]) -> None:
    """``body(start, length)`` for ``count`` rounds of ``unit`` elements' work each: at once where that is little, else in parts of a multiple of ``each`` rounds,
    between which it asks whether to stop."""
    part = f.branch(f.cmp("sgt", f.mul(count, unit), _PART), lambda: [f.mul(each, f.add(f.udiv(_PART, f.mul(unit, each)), 1))], lambda: [count], ["i64"])[0]

    def run(start: str) -> None:
        _ask(f, f.cmp("ne", start, 0))
        body(start, f.min(part, f.sub(count, start)))

    f.for_(count, part, run)


def _vector_cases(f: Fn, cfg: Config, case: dict[str, str], st: dict[str, str], acc: str, done: object) -> None:
    assert callable(done)
    vec, size = cfg.vec, cfg.vec.size

    def along_k(x: str, count: str, step: str, stride: str) -> tuple[str, str]:
        """``count`` vectors of K elements, ``step`` apart, and their step: themselves, or copies in the workspace where ``stride`` is not unit."""
        packed = f.mul("%K", size)

        def copy() -> list[str]:
            call_copy(f, vec, STRIDED, [("ptr", "%workspace"), ("i64", packed), ("ptr", x), ("i64", step), ("i64", stride), ("i64", count), ("i64", "%K")])
            return ["%workspace", packed]
        ptr, by = f.branch(f.cmp("ne", stride, size), copy, lambda: [x, step], ["ptr", "i64"])
        return ptr, by

    def stream(count: str, x: str, sx: str, a: str, rsa: str, y: str) -> None:
        def some(start: str, n: str) -> None:
            by = f.mul(start, size)
            f.raw(f"call void @{STREAM}_{vec.dtype}(i64 {n}, i64 %K, ptr {x}, i64 {sx}, ptr {f.at(a, by)}, i64 {rsa}, ptr {f.at(y, by)}, i1 {acc})")
        _in_parts(f, count, "%K", _COLUMNS, some)

    def row_stream() -> None:
        stream("%N", "%A", st["csa"], "%B", st["rsb"], "%C")
        done()

    def dots(rows: str, a: str, rsa: str, x: tuple[str, str], count: str, steps: tuple[Val, Val]) -> None:
        def some(start: str, n: str) -> None:
            one = f"i64 %K, ptr {f.at(a, f.mul(start, rsa))}, i64 {rsa}, ptr {x[0]}"
            c, tail = f.at("%C", f.mul(start, steps[0])), f"i1 {acc})"
            single, several = f"@{DOTS}_{vec.dtype}(i64 {n}, {one}", f"@{DOT_TILES}_{vec.dtype}(i64 {n}, i64 {count}, {one}, i64 {x[1]}"
            f.when(f.cmp("eq", count, 1), lambda: f.raw(f"call void {single}, ptr {c}, i64 {steps[0]}, {tail}"))
            f.when(f.cmp("ne", count, 1), lambda: f.raw(f"call void {several}, ptr {c}, i64 {steps[0]}, i64 {steps[1]}, {tail}"))
        _in_parts(f, rows, f.mul("%K", count), _ROWS, some)
        done()

    def row_dots() -> None:
        dots("%N", "%B", st["csb"], along_k("%A", "%M", st["rsa"], st["csa"]), "%M", (size, st["rsc"]))

    def col_dots() -> None:
        dots("%M", "%A", st["rsa"], along_k("%B", "%N", st["csb"], st["rsb"]), "%N", (st["rsc"], size))

    def col_stream() -> None:
        spread = f.cmp("ne", st["rsc"], size)

        def gather() -> list[str]:
            call_copy(f, vec, STRIDED, [("ptr", "%workspace"), ("i64", 0), ("ptr", "%C"), ("i64", 0), ("i64", st["rsc"]), ("i64", 1), ("i64", "%M")])
            return ["%workspace"]
        y = f.branch(spread, gather, lambda: ["%C"], ["ptr"])[0]
        stream("%M", "%B", st["rsb"], "%A", st["csa"], y)

        def scatter() -> None:
            f.for_("%M", 1, lambda m: vec.store_elem(f, vec.load_elem(f, f.at(y, f.mul(m, size))), f.at("%C", f.mul(m, st["rsc"]))))
        f.when(spread, scatter)
        done()

    for name, path in (("row_stream", row_stream), ("row_dots", row_dots), ("col_dots", col_dots), ("col_stream", col_stream)):
        f.when(case[name], path)


@record(frozen=True)
class _Block:
    """One block of A with a block of B: sizes, where they are, and what is known before the strips. Pointers and strides in bytes."""

    m: str
    n: str
    k: str
    a: tuple[str, str, str]
    b: str
    rsb: str
    c: str
    rsc: str
    acc: str
    column: str  # the first of this block in B
    row: str
    first: str  # whether B's block is met for the first time: it is packed strip by strip


def _blocks(f: Fn, cfg: Config, plan: _Plan, st: dict[str, str], acc: str, finish: object, kept: str) -> None:
    """The five loops: column blocks, k blocks, row blocks (A packed here), strips (B packed here, in the first row block), and rows inside the strip kernels."""
    assert callable(finish)
    ws_a = f.at("%workspace", plan.bytes_b)
    a_rows = f.both(plan.pack_a, f.cmp("ne", "%rsa", 1))  # packed as [m][k]; else [k][m]
    a_cols = f.both(plan.pack_a, f.cmp("eq", "%rsa", 1))
    size = cfg.vec.size

    def columns(jc: str) -> None:
        n = f.min(plan.nc, f.sub("%N", jc))

        def depth(pc: str) -> None:
            k = f.min(plan.kc, f.sub("%K", pc))
            b = f.at("%B", f.add(f.mul(pc, st["rsb"]), f.mul(jc, st["csb"])))
            more = f.either(acc, f.cmp("ne", pc, 0))
            final = f.cmp("eq", f.add(pc, k), "%K")

            def rows(ic: str) -> None:
                beyond = f.either(f.cmp("ne", ic, 0), f.cmp("sge", jc, 2 * cfg.nc)) if cfg.together else f.cmp("ne", f.op(f"or i64 {jc}, {ic}"), 0)
                far = f.either(beyond, f.cmp("sge", pc, cfg.kc))
                _ask(f, far)  # a product of one block is too short for it
                m = f.min(plan.mc, f.sub("%M", ic))
                a = f.at("%A", f.add(f.mul(ic, st["rsa"]), f.mul(pc, st["csa"])))
                k_bytes, m_bytes = f.mul(k, size), f.mul(m, size)
                f.when(a_cols, lambda: call_copy(f, cfg.vec, COPY, [("ptr", ws_a), ("i64", m_bytes), ("ptr", a), ("i64", st["csa"]), ("i64", k), ("i64", m)]))
                f.when(a_rows, lambda: call_copy(f, cfg.vec, STRIDED, [
                    ("ptr", ws_a), ("i64", k_bytes), ("ptr", a), ("i64", st["rsa"]), ("i64", st["csa"]), ("i64", m), ("i64", k)]))
                rsa = f.select(a_rows, k_bytes, f.select(a_cols, size, st["rsa"]))
                csa = f.select(a_rows, size, f.select(a_cols, m_bytes, st["csa"]))
                c = f.at("%C", f.add(f.mul(ic, st["rsc"]), f.mul(jc, size)))
                block = _Block(m, n, k, (f.select(plan.pack_a, ws_a, a, "ptr"), rsa, csa), b, st["rsb"], c, st["rsc"], more, jc, pc, f.cmp("eq", ic, 0))
                if cfg.together:
                    f.when(f.both(plan.together, block.first), lambda: call_copy(f, cfg.vec, STRIPS, [
                        ("ptr", "%workspace"), ("ptr", b), ("i64", st["rsb"]), ("i64", k), ("i64", f.udiv(n, cfg.strip))]))
                _strips(f, cfg, plan, st, block, kept)
                f.when(final, lambda: finish(ic, f.add(ic, m), jc, f.add(jc, n)))

            f.for_("%M", plan.mc, rows)

        f.for_("%K", plan.kc, depth)

    f.for_("%N", plan.nc, columns)


def _strips(f: Fn, cfg: Config, plan: _Plan, st: dict[str, str], block: _Block, kept: str) -> None:
    """``kept``: whether all of B is packed already."""
    vec, m, n, k = cfg.vec, block.m, block.n, block.k
    packed, deep, by_rows = f.either(plan.pack_b, kept), f.round_up("%K", vec.lanes), f.cmp("eq", "%csb", 1)
    here = f.both(plan.pack_b, block.first)
    wide = _strip_in_place(f, cfg, packed)

    def call(name: str, params: Sequence[tuple[str, str]], b_ptr: str, rsb: str, c_ptr: str, *rest: Val) -> None:
        args = [m, k, *block.a, b_ptr, rsb, c_ptr, block.rsc, block.acc, *rest]
        f.raw(f"call void @{name}({', '.join(f'{ty} {v}' for (ty, _), v in zip(params, args, strict=True))})")

    def strip(j: str) -> None:
        width = f.min(f.sub(n, j), wide)
        padded = f.round_up(width, vec.lanes)
        full = f.cmp("eq", width, cfg.strip)
        own = f.at("%workspace", f.select(f.both(plan.once, f.op(f"xor i1 {plan.together}, true")), 0, f.mul(f.mul(k, j), vec.size)))
        there = f.at("%packed", f.mul(f.add(f.mul(deep, f.add(block.column, j)), f.mul(block.row, padded)), vec.size))
        at, c_ptr = f.select(kept, there, f.at(block.b, f.mul(j, st["csb"])), "ptr"), f.at(block.c, f.mul(j, vec.size))
        done = f.both(plan.together, full)
        fused = f.both(f.both(f.both(here, by_rows), full), f.op(f"xor i1 {done}, true"))  # the first tile packs
        f.when(f.both(here, f.op(f"xor i1 {f.either(fused, done)}, true")), lambda: _pack_strip(f, vec, st, at, own, k, width))
        b_ptr = f.select(f.both(plan.pack_b, f.op(f"xor i1 {fused}, true")), own, at, "ptr")
        rsb = f.select(f.both(packed, f.op(f"xor i1 {fused}, true")), f.mul(padded, vec.size), block.rsb)
        f.when(full, lambda: call(f"{cfg.whole.name}_whole", WHOLE_PARAMS, b_ptr, rsb, c_ptr, f.select(fused, own, "null", "ptr")))
        f.when(f.op(f"xor i1 {full}, true"), lambda: _part(f, cfg, call, width, b_ptr, rsb, c_ptr))

    f.for_(n, wide, strip)


def _part(f: Fn, cfg: Config, call: Callable[..., None], width: str, b: str, rsb: str, c: str) -> None:
    """The columns of a strip that is not whole: as many vectors as a panel has, and what is left, at most a vector; by numbers where lanes cannot be masked."""
    vec, most = cfg.vec, cfg.panels[-1].vectors
    vectors = f.ceil_div(width, vec.lanes) if cfg.scalar is None else f.udiv(width, vec.lanes)
    several = f.min(vectors, most)
    for p in cfg.panels:
        valid = f.min(vec.lanes, f.sub(width, (p.vectors - 1) * vec.lanes))
        f.when(f.cmp("eq", several, p.vectors), lambda p=p, valid=valid: call(p.name, PANEL_PARAMS, b, rsb, c, valid))  # type: ignore[misc]
    done = f.mul(several, vec.lanes)
    one, step = (cfg.panels[0], vec.lanes) if cfg.scalar is None else (cfg.scalar, 1)

    def column(v: list[str]) -> list[Val]:
        offset = f.mul(v[0], vec.size)
        call(one.name, PANEL_PARAMS, f.at(b, offset), rsb, f.at(c, offset), f.sub(width, v[0]) if cfg.scalar is None else 1)
        return [f.add(v[0], step)]

    f.loop([("i64", done)], lambda v: f.cmp("slt", v[0], width), column)


def _strip_in_place(f: Fn, cfg: Config, packed: str) -> Val:
    """Columns of a strip. Of few rows B is the traffic: one or two tiles of the higher, narrower kind read it less often than those of the usual one and a rest."""
    few = [p for p in cfg.panels if p.rows[0] > cfg.whole.rows[0]][-1:]
    if not few:
        return cfg.strip
    rows = few[0].rows[0]
    suits = f.both(f.op(f"xor i1 {packed}, true"), f.either(f.cmp("eq", "%M", rows), f.cmp("eq", "%M", 2 * rows)))
    return f.select(suits, few[0].vectors * cfg.vec.lanes, cfg.strip)


def _pack_strip(f: Fn, vec: Vec, st: dict[str, str], src: str, own: str, k: str, width: str) -> None:
    """A strip of B at ``own``: [k][width rounded up to whole vectors]."""
    by_rows = f.cmp("eq", "%csb", 1)
    by_cols = f.both(f.cmp("eq", "%rsb", 1), f.op(f"xor i1 {by_rows}, true"))
    others = f.op(f"xor i1 {f.either(by_rows, by_cols)}, true")
    to = [("ptr", own), ("i64", f.mul(f.round_up(width, vec.lanes), vec.size))]
    f.when(by_rows, lambda: call_copy(f, vec, COPY, [*to, ("ptr", src), ("i64", st["rsb"]), ("i64", k), ("i64", width)]))
    f.when(by_cols, lambda: call_copy(f, vec, TRANSPOSE, [*to, ("ptr", src), ("i64", st["csb"]), ("i64", width), ("i64", k)]))
    f.when(others, lambda: call_copy(f, vec, STRIDED, [*to, ("ptr", src), ("i64", st["rsb"]), ("i64", st["csb"]), ("i64", k), ("i64", width)]))
