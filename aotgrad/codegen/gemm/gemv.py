"""Matrix times vector without packing: dots of whole rows, and rows streamed into the result. Strides are in bytes."""

from __future__ import annotations

from .emit import Fn, Val, Vec

__all__ = ["DOTS", "STREAM", "row_dots", "stream"]

DOTS, STREAM = "ag_dots", "ag_stream"
_CHAINS = 4  # partial sums of one dot: enough for two loads a cycle at four cycles of latency


def row_dots(vec: Vec, block: int) -> str:
    """y[r] (+)= sum over k of A[r, k] x[k], for unit strides along k; ``block`` rows share the loads of x.

    Each dot has 4 vectors of partial sums, joined in a fixed tree, the same for blocked and single rows.
    """
    params = [("i64", "M"), ("i64", "K"), ("ptr", "A"), ("i64", "rsa"), ("ptr", "X"), ("ptr", "Y"), ("i64", "sy"), ("i1", "acc")]
    f = Fn(f"{DOTS}_{vec.dtype}", params, attrs="noinline nounwind")
    span = _CHAINS * vec.lanes
    full = f.mul(f.udiv("%K", span), span)
    left = f.sub("%K", full)
    masks = [vec.mask(f, f.op(f"call i64 @llvm.smax.i64(i64 {f.sub(left, j * vec.lanes)}, i64 0)")) for j in range(_CHAINS)]
    has_tail = f.cmp("sgt", left, 0)
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

    def terms(k: Val, acc: list[str], masked: bool) -> list[str]:
        offset, out = f.mul(k, vec.size), list(acc)
        for j in range(_CHAINS):
            m = masks[j] if masked else None
            x = vec.load(f, f.at(f.at("%X", offset), j * vec.bytes), m)
            for i in range(rows):
                out[i * _CHAINS + j] = vec.muladd(f, vec.load(f, f.at(f.at(ptrs[i], offset), j * vec.bytes), m), x, acc[i * _CHAINS + j])
        return out

    n = rows * _CHAINS
    acc = f.loop([("i64", 0), *([(vec.type, vec.zero)] * n)], lambda v: f.cmp("slt", v[0], full),
                 lambda v: [f.add(v[0], _CHAINS * vec.lanes), *terms(v[0], v[1:], False)])[1:]
    acc = f.branch(has_tail, lambda: terms(full, acc, True), lambda: acc, [vec.type] * n)
    sums = _fold(f, vec, [_tree(f, vec, acc[i * _CHAINS:(i + 1) * _CHAINS]) for i in range(rows)])
    outs = [f.at(y, 0 if i == 0 else f.mul("%sy", i)) for i in range(rows)]
    old = f.branch("%acc", lambda: [vec.load_elem(f, p) for p in outs], lambda: ["0.0"] * rows, [vec.elem] * rows)
    for p, was, value in zip(outs, old, sums, strict=True):
        vec.store_elem(f, f.op(f"fadd {vec.elem} {was}, {value}"), p)


def _tree(f: Fn, vec: Vec, values: list[str]) -> str:
    while len(values) > 1:
        values = [vec.add(f, values[i], values[i + 1]) for i in range(0, len(values), 2)]
    return values[0]


def _fold(f: Fn, vec: Vec, values: list[str]) -> list[str]:
    """The sum of the lanes of each vector. Lanes are halved (low + high) in every case; several vectors share the additions."""
    rows, n = len(values), vec.lanes
    width = n
    while len(values) > 1:  # two vectors of `width`-lane groups become one of half as wide groups
        half = width // 2
        groups = [g * width for g in range(n // width)]
        low = [base + g + i for base in (0, n) for g in groups for i in range(half)]
        values = [vec.add(f, vec.shuffle(f, x, y, low), vec.shuffle(f, x, y, [i + half for i in low])) for x, y in zip(values[::2], values[1::2], strict=True)]
        width = half
    v = values[0]
    while width > 1:
        width //= 2
        v = vec.add(f, v, vec.shuffle(f, v, v, [(i + width) % n for i in range(n)]))
    group = n // rows
    return [f.op(f"extractelement {vec.type} {v}, i64 {i * group}") for i in range(rows)]


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
