"""Learning curves as text and as SVG, without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

__all__ = ["svg", "text"]


def text(values: Sequence[float], width: int = 60, height: int = 8) -> str:
    """``values`` over their index as rows of characters, the vertical axis logarithmic.

    >>> print(text([1.0, 0.1], width=2, height=2))
       1.000 |*
       0.100 | *
             +--
    """
    logs = [math.log10(max(v, 1e-12)) for v in values]
    high, low = max(logs), min(logs)
    span = (high - low) or 1.0
    columns = min(width, len(logs))
    picked = [logs[round(i * (len(logs) - 1) / max(columns - 1, 1))] for i in range(columns)]
    rows = [round((high - v) / span * (height - 1)) for v in picked]
    lines = []
    for r in range(height):
        label = 10 ** (high - r * span / max(height - 1, 1))
        lines.append(f"{label:8.3f} |" + "".join("*" if row == r else " " for row in rows).rstrip())
    return "\n".join([*lines, " " * 9 + "+" + "-" * columns])


def svg(curves: Mapping[str, Sequence[float]], title: str, across: str, width: int = 640, height: int = 360) -> str:
    """A picture of several curves over the same axis, the vertical axis logarithmic, as the text of an SVG file."""
    left, right, top, bottom = 60, 20, 40, 40
    logs = {name: [math.log10(max(v, 1e-12)) for v in values] for name, values in curves.items()}
    high = math.ceil(max(max(v) for v in logs.values()))
    low = math.floor(min(min(v) for v in logs.values()))

    def y(v: float) -> float:
        return top + (high - v) / max(high - low, 1) * (height - top - bottom)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{width / 2:.0f}" y="22" text-anchor="middle" font-size="15">{_escape(title)}</text>',
        f'<text x="{width / 2:.0f}" y="{height - 8}" text-anchor="middle">{_escape(across)}</text>',
    ]
    for power in range(low, high + 1):
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y(power):.1f}" y2="{y(power):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y(power) + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    colours = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")
    for i, (name, values) in enumerate(logs.items()):
        step = (width - left - right) / max(len(values) - 1, 1)
        points = " ".join(f"{left + k * step:.1f},{y(v):.1f}" for k, v in enumerate(values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colours[i % 4]}" stroke-width="1.5"/>')
        parts.append(f'<text x="{width - right - 6}" y="{top + 14 + 16 * i}" text-anchor="end" fill="{colours[i % 4]}">{_escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _escape(s: str) -> str:
    return s.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
