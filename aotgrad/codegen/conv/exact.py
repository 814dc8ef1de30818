"""Results that are not finite, computed again by the definition: rare, so the code is small rather than fast."""

from __future__ import annotations

from ..gemm.emit import Fn, Val, Vec
from .pack import Steps
from .taps import Axis, TapSum

__all__ = ["any_lane", "exact_function"]


def any_lane(f: Fn, vec: Vec, mask: str) -> str:
    """Whether ``mask`` has a lane."""
    bits = f.op(f"bitcast {vec.mask_type} {mask} to i{vec.lanes}")
    return f.op(f"icmp ne i{vec.lanes} {bits}, 0")


def exact_function(name: str, ts: TapSum, vec: Vec, taps: list[int], steps: Steps) -> str:
    """``name(x, weights, y, p0, p1)``: in the rows [p0, p1) of one image, each result that is not finite as the sum over taps inside x, then channels.

    What is finite stays as it is, so that one infinity changes nothing elsewhere. A sum that is NaN in all lanes after a tap stays NaN: the rest is left out.
    """
    f = Fn(name, [("ptr", "x"), ("ptr", "weights"), ("ptr", "y"), ("i64", "p0"), ("i64", "p1")], attrs="noinline nounwind")
    down, across = ts.axes

    def at(p: str, q: str, o: str) -> None:
        y = f.at("%y", f.add(f.add(f.mul(p, down.target), f.mul(q, across.target)), f.mul(o, vec.size)))
        valid = f.min(f.sub(ts.width, o), vec.lanes)
        mask = vec.mask(f, valid) if ts.width % vec.lanes else None
        old = vec.load(f, y, mask)
        zeros = f.op(f"fmul {vec.type} {old}, {vec.zero}")
        bad = f.op(f"fcmp uno {vec.type} {zeros}, {zeros}")

        def again() -> None:
            lanes = [f.mul(f.add(o, f.min(i, f.sub(valid, 1)) if mask else i), steps.lane) for i in range(vec.lanes)]
            new = _sum(f, ts, vec, (p, q), [f.at("%weights", a) for a in lanes], taps, steps)
            vec.store(f, f.op(f"select {vec.mask_type} {bad}, {vec.type} {new}, {vec.type} {old}"), y, mask)

        f.when(any_lane(f, vec, bad), again)

    def row(v: list[str]) -> list[Val]:
        f.for_(across.count, 1, lambda q: f.for_(ts.width, vec.lanes, lambda o: at(v[0], q, o)))
        return [f.add(v[0], 1)]

    f.loop([("i64", "%p0")], lambda v: f.cmp("slt", v[0], "%p1"), row)
    f.ret()
    f.end()
    return f.text()


def _sum(f: Fn, ts: TapSum, vec: Vec, at: tuple[str, str], weights: list[str], taps: list[int], steps: Steps) -> str:
    """The sum for one position and a vector of channels, whose weights begin at ``weights``."""
    (down, across), (p, q) = ts.axes, at
    rows, columns = len(down.taps), len(across.taps)
    # Taps are numbered along each axis with a constant step, forwards or backwards.
    along = taps[1] - taps[0] if columns > 1 else 0
    below = taps[columns] - taps[0] if rows > 1 else 0

    def place(axis: Axis, i: str, t: str) -> str:
        return f.add(f.add(i, axis.off), t)

    def tap(i: str, j: str, acc: str) -> str:
        x = f.at("%x", f.add(f.mul(place(down, p, i), down.source), f.mul(place(across, q, j), across.source)))
        number = f.mul(f.add(f.add(f.mul(i, below), f.mul(j, along)), taps[0]), steps.tap)

        def channel(v: list[str]) -> list[Val]:
            offset = f.add(number, f.mul(v[0], steps.k))
            w = "poison"
            for lane, base in enumerate(weights):
                w = f.op(f"insertelement {vec.type} {w}, {vec.elem} {vec.load_elem(f, f.at(base, offset))}, i64 {lane}")
            b = vec.splat(f, vec.load_elem(f, f.at(x, f.mul(v[0], ts.source.channel))))
            return [f.add(v[0], 1), vec.muladd(f, b, w, v[1])]

        return f.loop([("i64", 0), (vec.type, acc)], lambda v: f.cmp("slt", v[0], ts.depth), channel)[1]

    def open_(acc: str) -> str:
        """Whether a lane is not NaN."""
        return any_lane(f, vec, f.op(f"fcmp ord {vec.type} {acc}, {acc}"))

    def column(i: str, v: list[str]) -> list[Val]:
        inside = f.both(f.both(f.cmp("ult", place(across, q, v[0]), across.size), f.cmp("ult", place(down, p, i), down.size)), open_(v[1]))
        return [f.add(v[0], 1), f.branch(inside, lambda: [tap(i, v[0], v[1])], lambda: [v[1]], [vec.type])[0]]

    def row(v: list[str]) -> list[Val]:
        return [f.add(v[0], 1), f.loop([("i64", 0), (vec.type, v[1])], lambda u: f.cmp("slt", u[0], columns), lambda u: column(v[0], u))[1]]

    return f.loop([("i64", 0), (vec.type, vec.zero)], lambda v: f.cmp("slt", v[0], rows), row)[1]
