"""Copies of matrix blocks: rows with unit stride, transposition by vector shuffles, and any other strides one by one. Strides are in bytes."""

from __future__ import annotations

from .emit import Fn, Val, Vec

__all__ = ["COPY", "STRIDED", "STRIPS", "TRANSPOSE", "copy_rows", "copy_strided", "copy_strips", "copy_transposed", "transpose"]

COPY, TRANSPOSE, STRIDED, STRIPS = "ag_copy_rows", "ag_copy_transposed", "ag_copy_strided", "ag_copy_strips"


def copy_rows(vec: Vec) -> str:
    """dst[r, c] = src[r, c] for unit column strides."""
    f = Fn(f"{COPY}_{vec.dtype}", [("ptr", "dst"), ("i64", "ds"), ("ptr", "src"), ("i64", "ss"), ("i64", "rows"), ("i64", "cols")], attrs="noinline nounwind")
    full = f.mul(f.udiv("%cols", vec.lanes), vec.lanes)
    tail = f.sub("%cols", full)
    has_tail = f.cmp("ne", tail, 0)
    mask = vec.mask(f, tail)

    def row(r: str) -> None:
        src, dst = f.at("%src", f.mul(r, "%ss")), f.at("%dst", f.mul(r, "%ds"))

        def chunk(c: str) -> None:
            offset = f.mul(c, vec.size)
            vec.store(f, vec.load(f, f.at(src, offset)), f.at(dst, offset))

        f.for_(full, vec.lanes, chunk)
        offset = f.mul(full, vec.size)
        f.when(has_tail, lambda: vec.store(f, vec.load(f, f.at(src, offset), mask), f.at(dst, offset), mask))

    f.for_("%rows", 1, row)
    f.ret()
    f.end()
    return f.text()


def copy_strips(vec: Vec, vectors: int) -> str:
    """Strips of ``vectors`` of columns, each [rows][strip], one behind the other at dst: whole rows of src are read, which processors fetch by themselves."""
    params = [("ptr", "dst"), ("ptr", "src"), ("i64", "ss"), ("i64", "rows"), ("i64", "strips")]
    f = Fn(f"{STRIPS}_{vec.dtype}", params, attrs="noinline nounwind")
    width = vectors * vec.bytes
    apart = f.mul("%rows", width)

    def row(r: str) -> None:
        src, dst = f.at("%src", f.mul(r, "%ss")), f.at("%dst", f.mul(r, width))

        def strip(s: str) -> None:
            start, to = f.at(src, f.mul(s, width)), f.at(dst, f.mul(s, apart))
            for v in range(0, width, vec.bytes):
                vec.store(f, vec.load(f, f.at(start, v)), f.at(to, v))

        f.for_("%strips", 1, strip)

    f.for_("%rows", 1, row)
    f.ret()
    f.end()
    return f.text()


def copy_transposed(vec: Vec, masked: bool) -> str:
    """dst[c, r] = src[r, c] for src with unit column stride, in blocks of lanes x lanes.

    Writes whole vectors: up to lanes - 1 elements past the last row's end of dst and lanes - 1 rows below it, so dst needs that much slack.
    """
    n = vec.lanes
    f = Fn(f"{TRANSPOSE}_{vec.dtype}", [("ptr", "dst"), ("i64", "ds"), ("ptr", "src"), ("i64", "ss"), ("i64", "rows"), ("i64", "cols")], attrs="noinline nounwind")
    last = f.sub("%rows", 1)

    def strip(r: str) -> None:
        rows = [f.at("%src", f.mul(f.min(f.add(r, i), last), "%ss")) for i in range(n)]
        dst = f.at("%dst", f.mul(r, vec.size))

        def block(c: str, mask: str | None) -> None:
            offset = f.mul(c, vec.size)
            out = transpose(f, vec, [vec.load(f, f.at(row, offset), mask) for row in rows])
            to = f.at(dst, f.mul(c, "%ds"))
            for i, value in enumerate(out):
                vec.store(f, value, f.at(to, f.mul("%ds", i)))

        if masked:  # one body for whole and partial blocks: a wide transpose is the dearest text of the module to compile
            f.for_("%cols", n, lambda c: block(c, vec.mask(f, f.sub("%cols", c))))
            return
        full = f.mul(f.udiv("%cols", n), n)
        f.for_(full, n, lambda c: block(c, None))
        f.when(f.cmp("slt", full, "%cols"), lambda: block(full, vec.mask(f, f.sub("%cols", full))))

    f.for_("%rows", n, strip)
    f.ret()
    f.end()
    return f.text()


def transpose(f: Fn, vec: Vec, rows: list[str]) -> list[str]:
    """The transpose of a lanes x lanes block by log2(lanes) rounds of two-operand shuffles that swap halves at growing distance."""
    n, step = vec.lanes, 1
    while step < n:
        low = [i if not i & step else n + (i ^ step) for i in range(n)]
        high = [i + step if not i & step else n + i for i in range(n)]
        nxt = list(rows)
        for i in range(n):
            if not i & step:
                nxt[i] = vec.shuffle(f, rows[i], rows[i + step], low)
                nxt[i + step] = vec.shuffle(f, rows[i], rows[i + step], high)
        rows, step = nxt, 2 * step
    return rows


def copy_strided(vec: Vec) -> str:
    """dst[r, c] = src[r, c] for unit column stride of dst and any strides of src."""
    params = [("ptr", "dst"), ("i64", "ds"), ("ptr", "src"), ("i64", "rs"), ("i64", "cs"), ("i64", "rows"), ("i64", "cols")]
    f = Fn(f"{STRIDED}_{vec.dtype}", params, attrs="noinline nounwind")

    def row(r: str) -> None:
        src, dst = f.at("%src", f.mul(r, "%rs")), f.at("%dst", f.mul(r, "%ds"))

        def one(c: str) -> None:
            vec.store_elem(f, vec.load_elem(f, f.at(src, f.mul(c, "%cs"))), f.at(dst, f.mul(c, vec.size)))

        f.for_("%cols", 1, one)

    f.for_("%rows", 1, row)
    f.ret()
    f.end()
    return f.text()


def call_copy(f: Fn, vec: Vec, kind: str, args: list[tuple[str, Val]]) -> None:
    f.raw(f"call void @{kind}_{vec.dtype}({', '.join(f'{ty} {v}' for ty, v in args)})")
