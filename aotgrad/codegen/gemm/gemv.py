"""Matrix times vector without packing: dots of whole rows, and rows streamed into the result. Strides are in bytes."""

from __future__ import annotations

from .emit import Fn, Val, Vec

__all__ = ["DOTS", "DOT_CHAINS", "DOT_TILES", "STREAM", "TILE_CHAINS", "dot_tiles", "row_dots", "stream"]

DOTS, DOT_TILES, STREAM = "ag_dots", "ag_dot_tiles", "ag_stream"
DOT_CHAINS, TILE_CHAINS = 4, 2
"""Partial sums of one dot: enough for two loads a cycle at four cycles of latency; of each of several at once."""


def row_dots(vec: Vec, block: int) -> str:
    """y[r] (+)= sum over k of A[r, k] x[k], for unit strides along k; ``block`` rows share the loads of x.

    Each dot has 4 vectors of partial sums, joined in a fixed tree, the same for blocked and single rows.
    """
    params = [("i64", "M"), ("i64", "K"), ("ptr", "A"), ("i64", "rsa"), ("ptr", "X"), ("ptr", "Y"), ("i64", "sy"), ("i1", "acc")]
    f = Fn(f"{DOTS}_{vec.dtype}", params, attrs="noinline nounwind")
    full, masks, has_tail = _split(f, vec, DOT_CHAINS)
    state: list[tuple[str, Val]] = [("i64", "%M"), ("ptr", "%A"), ("ptr", "%Y")]
    for rows in (block, 1):
        def some(v: list[str], rows: int = rows) -> list[Val]:
            _dots(f, vec, rows, v[1], v[2], full, masks, has_tail)
            return [f.sub(v[0], rows), f.at(v[1], f.mul("%rsa", rows)), f.at(v[2], f.mul("%sy", rows))]
        values = f.loop(state, lambda v, rows=rows: f.cmp("sge", v[0], rows), some)  # type: ignore[misc]
        state = [("i64", values[0]), ("ptr", values[1]), ("ptr", values[2])]
    f.ret()
    f.end()
    return f.text()


def _dots(f: Fn, vec: Vec, rows: int, a: str, y: str, full: str, masks: list[str], has_tail: str) -> None:
    ptrs = [f.at(a, 0 if i == 0 else f.mul("%rsa", i)) for i in range(rows)]
    sums = _products(f, vec, ptrs, ["%X"], full, masks, has_tail)
    _add_to(f, vec, [f.at(y, 0 if i == 0 else f.mul("%sy", i)) for i in range(rows)], sums)


def _products(f: Fn, vec: Vec, left: list[str], right: list[str], full: str, masks: list[str], has_tail: str) -> list[str]:
    """The dots of every row of ``left`` with every row of ``right`` (the right one varies fastest), each in ``len(masks)`` chains."""
    chains = len(masks)
    n = len(left) * len(right) * chains

    def terms(k: Val, acc: list[str], masked: bool) -> list[str]:
        offset, out = f.mul(k, vec.size), []
        for j in range(chains):
            m, at = masks[j] if masked else None, f.add(offset, j * vec.bytes)
            xs = [vec.load(f, f.at(p, at), m) for p in right]
            for i, p in enumerate(left):
                x = vec.load(f, f.at(p, at), m)
                out += [vec.muladd(f, x, y, acc[(j * len(left) + i) * len(right) + q]) for q, y in enumerate(xs)]
        return out

    acc = f.loop([("i64", 0), *([(vec.type, vec.zero)] * n)], lambda v: f.cmp("slt", v[0], full),
                 lambda v: [f.add(v[0], chains * vec.lanes), *terms(v[0], v[1:], False)])[1:]
    acc = f.branch(has_tail, lambda: terms(full, acc, True), lambda: acc, [vec.type] * n)
    pairs = n // chains
    return _fold(f, vec, [_tree(f, vec, acc[i::pairs]) for i in range(pairs)])


def _add_to(f: Fn, vec: Vec, outs: list[str], sums: list[str]) -> None:
    old = f.branch("%acc", lambda: [vec.load_elem(f, p) for p in outs], lambda: ["0.0"] * len(outs), [vec.elem] * len(outs))
    for p, was, value in zip(outs, old, sums, strict=True):
        vec.store_elem(f, f.op(f"fadd {vec.elem} {was}, {value}"), p)


def dot_tiles(vec: Vec, rows: int) -> str:
    """Y[r, q] (+)= sum over k of A[r, k] X[q, k] for unit strides along k: ``rows`` x 2 dots at once in 2 chains each, surplus ones repeat the last."""
    params = [("i64", "M"), ("i64", "Q"), ("i64", "K"), ("ptr", "A"), ("i64", "rsa"), ("ptr", "X"), ("i64", "sx"), ("ptr", "Y"), ("i64", "sy"), ("i64", "sq"),
              ("i1", "acc")]
    f = Fn(f"{DOT_TILES}_{vec.dtype}", params, attrs="noinline nounwind")
    full, masks, has_tail = _split(f, vec, TILE_CHAINS)
    last_r, last_q = f.sub("%M", 1), f.sub("%Q", 1)

    def some(r: str) -> None:
        ris = [f.min(f.add(r, i), last_r) for i in range(rows)]
        left, ys = [f.at("%A", f.mul(i, "%rsa")) for i in ris], [f.at("%Y", f.mul(i, "%sy")) for i in ris]

        def pair(q: str) -> None:
            qis = [f.min(f.add(q, i), last_q) for i in range(2)]
            sums = _products(f, vec, left, [f.at("%X", f.mul(i, "%sx")) for i in qis], full, masks, has_tail)
            offsets = [f.mul(i, "%sq") for i in qis]
            _add_to(f, vec, [f.at(y, o) for y in ys for o in offsets], sums)

        f.for_("%Q", 2, pair)

    f.for_("%M", rows, some)
    f.ret()
    f.end()
    return f.text()


def _split(f: Fn, vec: Vec, chains: int) -> tuple[str, list[str], str]:
    """The largest multiple of ``chains`` vectors in K, the lanes of the vectors beyond it, and whether there are any."""
    span = chains * vec.lanes
    full = f.mul(f.udiv("%K", span), span)
    left = f.sub("%K", full)
    masks = [vec.mask(f, f.op(f"call i64 @llvm.smax.i64(i64 {f.sub(left, j * vec.lanes)}, i64 0)")) for j in range(chains)]
    return full, masks, f.cmp("sgt", left, 0)


def _tree(f: Fn, vec: Vec, values: list[str]) -> str:
    while len(values) > 1:
        values = [vec.add(f, values[i], values[i + 1]) for i in range(0, len(values), 2)]
    return values[0]


def _fold(f: Fn, vec: Vec, values: list[str]) -> list[str]:
    """The sum of the lanes of each vector. Lanes are halved (low + high) in every case; several vectors share the additions."""
    count, n = len(values), vec.lanes
    width = n
    while len(values) > 1 and width > 1:  # two vectors of `width`-lane groups become one of half as wide groups
        half = width // 2
        groups = [g * width for g in range(n // width)]
        low = [base + g + i for base in (0, n) for g in groups for i in range(half)]
        values = [vec.add(f, vec.shuffle(f, x, y, low), vec.shuffle(f, x, y, [i + half for i in low])) for x, y in zip(values[::2], values[1::2], strict=True)]
        width = half
    while width > 1:
        width //= 2
        values = [vec.add(f, v, vec.shuffle(f, v, v, [(i + width) % n for i in range(n)])) for v in values]
    each = count // len(values)  # dots in one vector, in order
    return [f.op(f"extractelement {vec.type} {values[i // each]}, i64 {i % each * (n // each)}") for i in range(count)]


def stream(vec: Vec, block: int) -> str:
    """y[n] (+)= sum over k of x[k] A[k, n], in the order of k, for unit strides along n; ``block`` rows of A are added in one pass over y."""
    params = [("i64", "N"), ("i64", "K"), ("ptr", "X"), ("i64", "sx"), ("ptr", "A"), ("i64", "rsa"), ("ptr", "Y"), ("i1", "acc")]
    f = Fn(f"{STREAM}_{vec.dtype}", params, attrs="noinline nounwind")
    full = f.mul(f.udiv("%N", vec.lanes), vec.lanes)
    tail = f.sub("%N", full)
    mask, has_tail = vec.mask(f, tail), f.cmp("ne", tail, 0)

    def over_y(body: object) -> None:
        assert callable(body)
        f.for_(full, vec.lanes, lambda n: body(f.mul(n, vec.size), None))
        f.when(has_tail, lambda: body(f.mul(full, vec.size), mask))

    f.when(f.op("xor i1 %acc, true"), lambda: over_y(lambda offset, m: vec.store(f, vec.zero, f.at("%Y", offset), m)))
    state: list[tuple[str, Val]] = [("i64", "%K"), ("ptr", "%X"), ("ptr", "%A")]
    for rows in (block, 1):
        def some(v: list[str], rows: int = rows) -> list[Val]:
            xs = [vec.splat(f, vec.load_elem(f, f.at(v[1], f.mul("%sx", i)))) for i in range(rows)]
            ptrs = [f.at(v[2], f.mul("%rsa", i)) for i in range(rows)]

            def chunk(offset: str, m: str | None) -> None:
                y = f.at("%Y", offset)
                acc = vec.load(f, y, m)
                for x, p in zip(xs, ptrs, strict=True):
                    acc = vec.muladd(f, x, vec.load(f, f.at(p, offset), m), acc)
                vec.store(f, acc, y, m)

            over_y(chunk)
            return [f.sub(v[0], rows), f.at(v[1], f.mul("%sx", rows)), f.at(v[2], f.mul("%rsa", rows))]
        values = f.loop(state, lambda v, rows=rows: f.cmp("sge", v[0], rows), some)  # type: ignore[misc]
        state = [("i64", values[0]), ("ptr", values[1]), ("ptr", values[2])]
    f.ret()
    f.end()
    return f.text()
