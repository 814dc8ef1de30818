"""Learning curves as text and as SVG, without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

__all__ = ["svg", "text", "ticks"]


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from the last one below ``low`` to the first one above ``high`` (both positive): 1, 2, 5 of each decade, or fewer where that is more than ``most``.

    >>> ticks(0.03, 1.4, 8)
    [0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0]
    >>> ticks(1e-6, 1.0, 8)
    [1e-06, 1e-05, 0.0001, 0.001, 0.01, 0.1, 1.0]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    found: list[float] = []
    for digits, step in (((1, 2, 5), 1), ((1, 3), 1), ((1,), 1), ((1,), 2), ((1,), 3), ((1,), 5), ((1,), 10), ((1,), 30), ((1,), 100)):
        every = [float(f"{d}e{power}") for power in range(first, last + step + 1, step) for d in digits]
        found = [v for i, v in enumerate(every) if every[min(i + 1, len(every) - 1)] > low and (i == 0 or every[i - 1] < high)]
        if len(found) <= most:
            break
    return found


def _positive(values: Sequence[float]) -> list[float]:
    return [max(v, 1e-12) for v in values]


def text(values: Sequence[float], width: int = 60, height: int = 8) -> str:
    """``values`` over their index as rows of characters. The vertical axis is logarithmic, and round numbers are marked on it.

    >>> print(text([1.0, 0.5, 0.2, 0.1], width=4, height=4))
           1 +*
         0.5 + *
         0.2 +  *
         0.1 +   *
             +----
    """
    given = _positive(values)
    marks = ticks(min(given), max(given), height)
    low, high = math.log10(min(min(given), marks[0])), math.log10(max(max(given), marks[-1]))
    span = (high - low) or 1.0
    columns = min(width, len(given))

    def row(v: float) -> int:
        return round((high - math.log10(v)) / span * (height - 1))

    rows = [row(given[round(i * (len(given) - 1) / max(columns - 1, 1))]) for i in range(columns)]
    labels = {row(v): f"{v:g}" for v in marks}
    lines = [f"{labels.get(r, ''):>8} {'+' if r in labels else '|'}" + "".join("*" if at == r else " " for at in rows).rstrip() for r in range(height)]
    return "\n".join([*lines, " " * 9 + "+" + "-" * columns])


def svg(curves: Mapping[str, Sequence[float]], title: str, across: str, width: int = 640, height: int = 360) -> str:
    """A picture of several curves over the same axis as the text of an SVG file. The vertical axis is logarithmic, and says so."""
    left, right, top, bottom = 70, 20, 40, 56
    given = {name: _positive(values) for name, values in curves.items()}
    marks = ticks(min(map(min, given.values())), max(map(max, given.values())), 10)
    low, high = math.log10(marks[0]), math.log10(marks[-1])
    count = max(map(len, given.values()))

    def y(v: float) -> float:
        return top + (high - math.log10(v)) / ((high - low) or 1.0) * (height - top - bottom)

    def x(k: int) -> float:
        return left + k * (width - left - right) / max(count - 1, 1)

    middle = (top + height - bottom) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{width / 2:.0f}" y="22" text-anchor="middle" font-size="15">{_escape(title)}</text>',
        f'<text x="{width / 2:.0f}" y="{height - 10}" text-anchor="middle">{_escape(across)}</text>',
        f'<text x="16" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 16 {middle:.0f})">logarithmic scale</text>',
    ]
    for v in marks:
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y(v) + 4:.1f}" text-anchor="end">{v:g}</text>')
    for k in range(0, count, max(1, math.ceil(count / 10))):
        parts.append(f'<text x="{x(k):.1f}" y="{height - bottom + 18}" text-anchor="middle">{k + 1}</text>')
    colours = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")
    for i, (name, values) in enumerate(given.items()):
        points = " ".join(f"{x(k):.1f},{y(v):.1f}" for k, v in enumerate(values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colours[i % 4]}" stroke-width="1.5"/>')
        parts.append(f'<text x="{width - right - 6}" y="{top + 14 + 16 * i}" text-anchor="end" fill="{colours[i % 4]}">{_escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _escape(s: str) -> str:
    return s.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
