"""The panel kernels: all rows of C times one strip of 1 to 4 vectors of columns, with accumulators in registers.

Every element is one chain of multiply-adds in the order of k that starts at 0 or at C, so neither tiles nor blocks change a bit of the result.
Strides are in bytes. Rows beyond the last full tile run in smaller tiles; in the smallest, surplus rows repeat the last row (same loads, same stores),
which costs nothing where the chains are shorter than the multiplier's latency, and no memory outside the matrices is touched.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotgrad_runtime.records import record

from .emit import Fn, Val, Vec

__all__ = ["PANEL_PARAMS", "WHOLE_PARAMS", "Panel", "panel", "whole_panel"]

PANEL_PARAMS = (
    ("i64", "M"), ("i64", "K"), ("ptr", "A"), ("i64", "rsa"), ("i64", "csa"), ("ptr", "B"), ("i64", "rsb"), ("ptr", "C"), ("i64", "rsc"), ("i1", "acc"),
    ("i64", "nt"),
)
WHOLE_PARAMS = (*PANEL_PARAMS[:-1], ("ptr", "to"))
_LINE = 64  # bytes
_LEAN = (4, 6)  # tiles of so many rows have few instructions beside the multiply-adds


@record(frozen=True)
class Panel:
    """A strip kernel: ``vectors`` of columns, tiles of ``rows`` rows (descending), lanes of the last vector masked if ``masked``."""

    vec: Vec
    vectors: int
    rows: tuple[int, ...]
    masked: bool
    branch_stores: bool

    @property
    def name(self) -> str:
        return f"ag_panel_{self.vec.suffix}_{self.vectors}"


def panel(p: Panel) -> str:
    """The text of one strip kernel. Its last parameter ``nt`` counts the valid lanes of the last vector."""
    f = Fn(p.name, PANEL_PARAMS, attrs="noinline nounwind")
    mask = p.vec.mask(f, "%nt") if p.masked else None
    full = f.cmp("sge", "%nt", p.vec.lanes) if p.branch_stores and p.masked else None

    def tile(rows: int, clamp: bool, v: list[str]) -> list[Val]:
        left, a, c = v
        _tile(f, p, rows, left if clamp else None, a, c, mask, full)
        if clamp:
            used = f.min(left, rows)
            return [f.sub(left, used), f.at(a, f.mul(used, "%rsa")), f.at(c, f.mul(used, "%rsc"))]
        return [f.sub(left, rows), f.at(a, f.mul("%rsa", rows)), f.at(c, f.mul("%rsc", rows))]

    state = [("i64", "%M"), ("ptr", "%A"), ("ptr", "%C")]
    for rows in p.rows:
        last = rows == p.rows[-1]
        values = f.loop(state, lambda v, least=1 if last else rows: f.cmp("sge", v[0], least), lambda v, r=rows, last=last: tile(r, last, v))  # type: ignore[misc]
        state = [("i64", values[0]), ("ptr", values[1]), ("ptr", values[2])]
    f.ret()
    f.end()
    return f.text()


def whole_panel(p: Panel) -> str:
    """The text of the kernel of whole strips: no lane is masked (a masked load takes a slot of the multipliers in every step of k).

    ``to``: NULL, or where the first tile leaves the rows of B, packed, which the other tiles then read; M is at least a tile's rows.
    """
    f = Fn(f"{p.name}_whole", WHOLE_PARAMS, attrs="noinline nounwind")

    def tile(rows: int, b: tuple[Val, Val], to: str | None, clamp: bool, v: list[str]) -> list[Val]:
        left, a, c = v
        _tile(f, p, rows, left if clamp else None, a, c, None, None, b, to)
        used: Val = f.min(left, rows) if clamp else rows
        return [f.sub(left, used), f.at(a, f.mul(used, "%rsa")), f.at(c, f.mul(used, "%rsc"))]

    types = ["i64", "ptr", "ptr"]
    packs = f.op("icmp ne ptr %to, null")
    values = f.branch(packs, lambda: tile(p.rows[0], ("%B", "%rsb"), "%to", False, ["%M", "%A", "%C"]), lambda: ["%M", "%A", "%C"], types)
    b = (f.select(packs, "%to", "%B", "ptr"), f.select(packs, p.vectors * p.vec.bytes, "%rsb"))
    for rows in p.rows:
        last = rows == p.rows[-1]
        values = f.loop(list(zip(types, values)), lambda v, least=1 if last else rows: f.cmp("sge", v[0], least),  # type: ignore[misc]
                        lambda v, r=rows, last=last: tile(r, b, None, last, v))  # type: ignore[misc]
    f.ret()
    f.end()
    return f.text()


def _tile(f: Fn, p: Panel, rows: int, left: str | None, a: str, c: str, mask: str | None, full: str | None, b: tuple[Val, Val] = ("%B", "%rsb"),
          to: str | None = None) -> None:
    """One tile: C[rows, strip] (+)= A[rows, :] B[:, strip]; ``left`` valid rows (None: all of them). ``b``: B and its step; ``to``: where its rows go, packed."""
    vec = p.vec
    index: list[Val] = [i if left is None or i == 0 else f.min(i, f.sub(left, 1)) for i in range(rows)]
    a_rows = [f.at(a, 0 if i == 0 else f.mul(i, "%rsa")) for i in index]
    c_rows = [f.at(c, 0 if i == 0 else f.mul(i, "%rsc")) for i in index]
    masks = [None] * (p.vectors - 1) + [mask]

    def from_c() -> list[Val]:
        if left is None:  # sums wait for C: the next tile's part of it
            for row in c_rows:
                f.prefetch(f.at(row, f.mul(rows, "%rsc")), p.vectors * vec.bytes, _LINE)
        return [vec.load(f, f.at(row, j * vec.bytes), m) for row in c_rows for j, m in enumerate(masks)]

    start = f.branch("%acc", from_c, lambda: [vec.zero] * (rows * p.vectors), [vec.type] * (rows * p.vectors))
    moving: list[tuple[str, Val]] = [] if to is None else [("ptr", to)]
    done = _chains(f, p, (a_rows, b[0], b[1]), masks, moving, start, rows in _LEAN and left is None and mask is None and to is None)

    def store(last: str | None) -> list[Val]:
        for i, row in enumerate(c_rows):
            for j in range(p.vectors):
                vec.store(f, done[i * p.vectors + j], f.at(row, j * vec.bytes), last if j == p.vectors - 1 else None)
        return []

    if full is None:
        store(mask)
    else:  # masked stores of AVX2 are slow on some machines
        f.branch(full, lambda: store(None), lambda: store(mask), ())


def _chains(f: Fn, p: Panel, at: tuple[list[str], Val, Val], masks: list[str | None], moving: list[tuple[str, Val]], start: list[str], lean: bool) -> list[Val]:
    """The sums of a tile after all of K. ``at``: rows of A, B and its step; ``moving``: where B's rows go, if anywhere.

    ``lean``: with few instructions beside the multiply-adds, since a core that runs a second thread decodes half as many for this one: rows of A keep a register each
    (LLVM would walk from one to the next), and a round has two steps.
    """
    vec, (a_rows, b, rsb) = p.vec, at
    rows = [f.opaque(x) for x in a_rows] if lean else a_rows
    types = ["i64", "ptr", *(t for t, _ in moving), *[vec.type] * len(start)]

    def step(v: Sequence[Val]) -> list[Val]:
        ka, row, to, acc = v[0], v[1], v[2:2 + len(moving)], v[2 + len(moving):]
        bs = [vec.load(f, f.at(row, j * vec.bytes), m) for j, m in enumerate(masks)]
        for j, x in enumerate(bs if to else ()):
            vec.store(f, x, f.at(to[0], j * vec.bytes))
        after = [f.at(x, p.vectors * vec.bytes) for x in to]
        out: list[Val] = []
        for i, a in enumerate(rows):
            x = vec.splat(f, vec.load_elem(f, f.at(a, ka)))
            out += [vec.muladd(f, x, bs[j], acc[i * p.vectors + j]) for j in range(p.vectors)]
        return [f.add(ka, "%csa"), f.at(row, rsb), *after, *out]

    def loop(count: Val, length: int, values: Sequence[Val]) -> list[Val]:
        def body(v: list[str]) -> tuple[list[Val], Val]:
            now = step(v[1:])
            for _ in range(1, length):
                now = step([f.opaque(now[0], "i64"), f.opaque(now[1]), *now[2:]])
            left = f.sub(v[0], length)
            return [left, *now], f.cmp("ne", left, 0)

        return f.do_loop([("i64", count), *zip(types, values)], body)[1:]

    values: Sequence[Val] = [0, b, *(x for _, x in moving), *start]
    if lean:
        even = f.op("and i64 %K, -2")
        values = f.branch(f.cmp("ne", even, 0), lambda: loop(even, 2, values), lambda: values, types)
        values = f.branch(f.cmp("ne", even, "%K"), lambda: step(values), lambda: values, types)
    else:
        values = loop("%K", 1, values)
    return list(values[2 + len(moving):])
