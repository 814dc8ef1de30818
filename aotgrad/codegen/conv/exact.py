"""Results that are not finite, computed again by the definition: rare, so the code is small (and quick to compile) rather than fast."""

from __future__ import annotations

from ..gemm.emit import Fn, Val, Vec
from .pack import Steps
from .taps import TapSum

__all__ = ["any_lane", "exact_function"]


def any_lane(f: Fn, vec: Vec, mask: str) -> str:
    """Whether ``mask`` has a lane."""
    bits = f.op(f"bitcast {vec.mask_type} {mask} to i{vec.lanes}")
    return f.op(f"icmp ne i{vec.lanes} {bits}, 0")


def exact_function(name: str, ts: TapSum, vec: Vec, taps: list[int], steps: Steps) -> str:
    """``name(x, weights, y, p0, p1)``: in the rows [p0, p1) of one image, each result that is not finite as the sum over taps inside x, then channels.

    What is finite stays as it is, so that one infinity changes nothing elsewhere. A sum that is NaN stays so and ends.
    """
    f = Fn(name, [("ptr", "x"), ("ptr", "weights"), ("ptr", "y"), ("i64", "p0"), ("i64", "p1")], attrs="noinline nounwind")
    down, across = ts.axes
    one = Vec(vec.dtype, 1, vec.fma)

    def at(p: str, q: str, o: str) -> None:
        y = f.at("%y", f.add(f.add(f.mul(p, down.target), f.mul(q, across.target)), f.mul(o, vec.size)))
        f.when(f.op(f"fcmp uno {one.type} {f.op(f'fmul {one.type} {one.load(f, y)}, 0.0')}, 0.0"),
               lambda: one.store(f, _sum(f, ts, one, (p, q), f.at("%weights", f.mul(o, steps.lane)), taps, steps), y))

    def row(v: list[str]) -> list[Val]:
        f.for_(across.count, 1, lambda q: f.for_(ts.width, 1, lambda o: at(v[0], q, o)))
        return [f.add(v[0], 1)]

    f.loop([("i64", "%p0")], lambda v: f.cmp("slt", v[0], "%p1"), row)
    f.ret()
    f.end()
    return f.text()


def _sum(f: Fn, ts: TapSum, one: Vec, at: tuple[str, str], weights: str, taps: list[int], steps: Steps) -> str:
    """The sum for one position and the output channel whose weights begin at ``weights``."""
    (down, across), (p, q) = ts.axes, at
    rows, columns = len(down.taps), len(across.taps)
    # Taps are numbered along each axis with a constant step, forwards or backwards.
    along = taps[1] - taps[0] if columns > 1 else 0
    below = taps[columns] - taps[0] if rows > 1 else 0

    def tap(t: str, acc: str) -> str:
        i, j = f.udiv(t, columns), f.op(f"urem i64 {t}, {columns}")
        r, c = f.add(f.add(p, down.off), i), f.add(f.add(q, across.off), j)
        x = f.at("%x", f.add(f.mul(r, down.source), f.mul(c, across.source)))
        w = f.at(weights, f.mul(f.add(f.add(f.mul(i, below), f.mul(j, along)), taps[0]), steps.tap))
        inside = f.both(f.cmp("ult", r, down.size), f.cmp("ult", c, across.size))
        count = f.select(inside, ts.depth, 0)

        def channel(v: list[str]) -> list[Val]:
            product = (one.load_elem(f, f.at(x, f.mul(v[0], ts.source.channel))), one.load_elem(f, f.at(w, f.mul(v[0], steps.k))))
            return [f.add(v[0], 1), one.muladd(f, *product, v[1])]

        def more(v: list[str]) -> str:
            return f.both(f.cmp("slt", v[0], count), f.op(f"fcmp ord {one.type} {v[1]}, 0.0"))

        return f.loop([("i64", 0), (one.type, acc)], more, channel)[1]

    return f.loop([("i64", 0), (one.type, "0.0")], lambda v: f.cmp("slt", v[0], rows * columns), lambda v: [f.add(v[0], 1), tap(v[0], v[1])])[1]
