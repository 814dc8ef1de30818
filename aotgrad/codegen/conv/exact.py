"""Results that are not finite, computed again by the definition: rare, so the code is small (and quick to compile) rather than fast."""

from __future__ import annotations

from ..gemm.emit import Fn, Val, Vec
from .choose import Plan

__all__ = ["any_lane", "exact_function"]


def any_lane(f: Fn, vec: Vec, mask: str) -> str:
    """Whether ``mask`` has a lane."""
    bits = f.op(f"bitcast {vec.mask_type} {mask} to i{vec.lanes}")
    return f.op(f"icmp ne i{vec.lanes} {bits}, 0")


def exact_function(name: str, plan: Plan) -> str:
    """``name(x, w, y, p0, p1)``: in the rows [p0, p1) of one image, each result that is not finite as the sum over taps inside x, then channels; w is packed by ``plan``.

    What is finite stays as it is, so that one infinity changes nothing elsewhere. A vector of sums that are NaN stays so and ends.
    """
    f = Fn(name, [("ptr", "x"), ("ptr", "w"), ("ptr", "y"), ("i64", "p0"), ("i64", "p1")], attrs="noinline nounwind")
    ts, vec = plan.sum, plan.vec
    down, across = ts.axes

    def at(p: str, q: str, v: str) -> None:
        y = f.at("%y", f.add(f.add(f.mul(p, down.target), f.mul(q, across.target)), f.mul(v, vec.bytes)))
        mask = vec.mask(f, f.sub(ts.width, f.mul(v, vec.lanes))) if ts.width % vec.lanes else None
        old = vec.load(f, y, mask)
        zeros = f.op(f"fmul {vec.type} {old}, {vec.zero}")
        bad = f.op(f"fcmp uno {vec.type} {zeros}, {zeros}")

        def again() -> None:
            vec.store(f, f.op(f"select {vec.mask_type} {bad}, {vec.type} {_sum(f, plan, (p, q), v)}, {vec.type} {old}"), y, mask)

        f.when(any_lane(f, vec, bad), again)

    def row(v: list[str]) -> list[Val]:
        f.for_(across.count, 1, lambda q: f.for_(-(-ts.width // vec.lanes), 1, lambda o: at(v[0], q, o)))
        return [f.add(v[0], 1)]

    f.loop([("i64", "%p0")], lambda v: f.cmp("slt", v[0], "%p1"), row)
    f.ret()
    f.end()
    return f.text()


def _sum(f: Fn, plan: Plan, at: tuple[str, str], v: str) -> str:
    """The sum for one position and vector ``v`` of output channels."""
    ts, vec, (p, q) = plan.sum, plan.vec, at
    down, across = ts.axes
    columns = len(across.taps)
    block, j = f.udiv(v, plan.vectors), f.op(f"urem i64 {v}, {plan.vectors}")
    step = f.select(f.cmp("eq", block, plan.blocks - 1), plan.last[0] * vec.bytes, plan.vectors * vec.bytes)
    first = f.at("%w", f.add(f.mul(block, plan.block_bytes), f.mul(j, vec.bytes)))

    def tap(t: str, acc: str) -> str:
        r, c = f.add(f.add(p, down.off), f.udiv(t, columns)), f.add(f.add(q, across.off), f.op(f"urem i64 {t}, {columns}"))
        x = f.at("%x", f.add(f.mul(r, down.source), f.mul(c, across.source)))
        w = f.at(first, f.mul(f.mul(t, ts.depth), step))
        count = f.select(f.both(f.cmp("ult", r, down.size), f.cmp("ult", c, across.size)), ts.depth, 0)

        def channel(u: list[str]) -> list[Val]:
            b = vec.splat(f, vec.load_elem(f, f.at(x, f.mul(u[0], ts.source.channel))))
            return [f.add(u[0], 1), vec.muladd(f, b, vec.load(f, f.at(w, f.mul(u[0], step))), u[1])]

        def more(u: list[str]) -> str:
            return f.both(f.cmp("slt", u[0], count), any_lane(f, vec, f.op(f"fcmp ord {vec.type} {u[1]}, {u[1]}")))

        return f.loop([("i64", 0), (vec.type, acc)], more, channel)[1]

    return f.loop([("i64", 0), (vec.type, vec.zero)], lambda u: f.cmp("slt", u[0], ts.taps), lambda u: [f.add(u[0], 1), tap(u[0], u[1])])[1]
