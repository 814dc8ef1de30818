"""The report's pictures as SVG, from its rows; no plotting library is needed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from .harness import OURS, geometric_mean

__all__ = ["draw"]

OWN, OTHER, THIRD, GREY, LINE = "#1f6f8b", "#e0893d", "#8a6fb0", "#666666", "#d8d8d8"
COLOURS = (OWN, OTHER, THIRD, "#5b9a5b", "#b5524f")
HEADLINE = ("rosenbrock", "chain", "mlp", "mlp784", "gpt", "scan", "blocks", "resnet")
Row = Mapping[str, Any]


class Picture:
    """Shapes and texts on white, readable in light and dark pages."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height = width, height
        self.parts = [f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>', f"<title>{escape(title)}</title>"]
        self.text(12, 24, title, size=15, weight="bold")

    def text(self, x: float, y: float, words: str, size: float = 12, anchor: str = "start", fill: str = "#222222", weight: str = "normal") -> None:
        """A line of text."""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}" fill="{fill}" font-weight="{weight}">{escape(words)}</text>')

    def bar(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        """A rectangle."""
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}" fill="{fill}"/>')

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str = LINE, width: float = 1) -> None:
        """A straight line."""
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" stroke-width="{width:g}"/>')

    def dot(self, x: float, y: float, fill: str, title: str) -> None:
        """A point, named when the mouse is on it."""
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{fill}" fill-opacity="0.8"><title>{escape(title)}</title></circle>')

    def legend(self, x: float, y: float, names: Sequence[tuple[str, str]]) -> None:
        """Names beside their colours, from left to right."""
        for name, fill in names:
            self.bar(x, y - 9, 10, 10, fill)
            self.text(x + 14, y, name, size=11)
            x += 30 + 6.5 * len(name)

    def __str__(self) -> str:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" width="{self.width:g}" font-family="sans-serif">'
        return "\n".join([head, *self.parts, "</svg>", ""])


def draw(rows: Mapping[str, Sequence[Row]], folder: Path) -> dict[str, str]:
    """Writes the pictures for which there are rows; gives their titles by file name."""
    made = {"speed.svg": _speed(rows), "gemm.svg": _gemm(rows.get("gemm", ())), "convolution.svg": _convolution(rows.get("convolution", ())),
            "roofline.svg": _roofline(rows)}
    titles = {}
    for name, picture in made.items():
        if picture is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(str(picture), encoding="utf-8")
            titles[name] = re.search("<title>(.*?)</title>", str(picture)).group(1)  # type: ignore[union-attr]
    return titles


def _cases(group: Sequence[Row]) -> dict[str, list[Row]]:
    cases: dict[str, list[Row]] = {}
    for r in group:
        if r["kind"] == "time":
            cases.setdefault(r["case"], []).append(r)
    return cases


def _peers(timed: Sequence[Row]) -> list[Row]:
    return [r for r in timed if not r["name"].startswith("aotgrad") and "A/A" not in r["name"] and r.get("note") != "a limit, not a peer"]


def _speed(rows: Mapping[str, Sequence[Row]]) -> Picture | None:
    """How many times as fast as the fastest peer."""
    bars = []
    for name in HEADLINE:
        for case, timed in _cases(rows.get(name, ())).items():
            peers = _peers(timed)
            if peers and any(r["name"] == OURS for r in timed):
                best = min(peers, key=lambda r: r["ratio"])
                bars.append((f"{name}: {case}" if name not in case.lower() else case, best["ratio"], best["name"]))
    if not bars:
        return None
    left, step, most = 330, 20, max(b[1] for b in bars)
    p = Picture(1000, 56 + step * len(bars), "Speed over the fastest peer (1: as fast), one thread")
    scale = 400 / math.log10(max(most, 10) / 0.5)

    def at(v: float) -> float:
        return left + scale * math.log10(max(v, 0.5) / 0.5)

    for mark in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500):
        if mark <= max(most, 10):
            p.line(at(mark), 40, at(mark), 48 + step * len(bars), "#333333" if mark == 1 else LINE)
            p.text(at(mark), 38, f"{mark:g}", size=10, anchor="middle", fill=GREY)
    for i, (label, ratio, who) in enumerate(bars):
        y = 48 + step * i
        p.text(left - 6, y + 12, label, size=11, anchor="end")
        p.bar(min(at(1), at(ratio)), y + 2, abs(at(ratio) - at(1)), step - 6, OWN if ratio >= 1 else OTHER)
        p.text(max(at(ratio), at(1)) + 5, y + 12, f"{ratio:.2f} x ({who})", size=10, fill=GREY)
    return p


def _groups(title: str, groups: Mapping[str, Mapping[str, float]], most: float, mark: float | None = None) -> Picture:
    """Groups of upright bars: by label, then by who."""
    who = list(dict.fromkeys(name for g in groups.values() for name in g))
    width = 14 * len(who) + 22
    p = Picture(70 + width * len(groups) + 20, 380, title)
    base, high = 270, 200
    for k in range(round(most / 0.2) + 1):
        v = 0.2 * k
        p.line(50, base - high * v / most, 60 + width * len(groups), base - high * v / most)
        p.text(45, base - high * v / most + 4, f"{v:g}", size=10, anchor="end", fill=GREY)
    if mark is not None:
        p.line(50, base - high * mark / most, 60 + width * len(groups), base - high * mark / most, "#b5524f", 1.5)
    for i, (label, values) in enumerate(groups.items()):
        x = 62 + width * i
        for j, name in enumerate(who):
            if name in values:
                p.bar(x + 14 * j, base - high * min(values[name], most) / most, 12, high * min(values[name], most) / most, COLOURS[j % len(COLOURS)])
        cx = x + 7 * len(who)
        p.parts.append(f'<text transform="translate({cx:.1f},{base + 12}) rotate(40)" font-size="10" fill="#222222">{escape(label)}</text>')
    p.legend(60, 48, [(name, COLOURS[j % len(COLOURS)]) for j, name in enumerate(who)])
    return p


def _gemm(group: Sequence[Row]) -> Picture | None:
    """float32 products as shares of the peak."""
    shares: dict[str, dict[str, float]] = {}
    for case, timed in _cases(group).items():
        found = re.fullmatch(r"float32, (.*), A B", case)
        if found:
            shares[found[1].replace(" x ", "x")] = {r["name"]: r["share"] for r in timed if "A/A" not in r["name"] and "share" in r}
    return _groups("float32 matrix products, share of the limit (multiply-add peak, or bandwidth where that binds)", shares, 1.2, 1.0) if shares else None


def _convolution(group: Sequence[Row]) -> Picture | None:
    """The convolutions of ResNet-18 as shares of the peak: mean over the layers, by direction and batch."""
    shares: dict[str, dict[str, list[float]]] = {}
    for case, timed in _cases(group).items():
        label = ", ".join(case.split(", ")[:2]).replace("_", " ")
        for r in timed:
            if "share" in r and "A/A" not in r["name"] and "packing" not in r["name"]:
                shares.setdefault(label, {}).setdefault(r["name"], []).append(r["share"])
    means = {label: {name: geometric_mean(v) for name, v in g.items()} for label, g in shares.items()}
    return _groups("Convolutions of ResNet-18, share of the multiply-add peak, geometric mean of the layers", means, 1.2, 1.0) if means else None


def _roofline(rows: Mapping[str, Sequence[Row]]) -> Picture | None:
    """Every case of float32 with known operations and bytes, under the roofs of this machine."""
    facts = {r["name"]: r["value"] for r in rows.get("limits", ()) if r["kind"] == "fact"}
    peak, slow = facts.get("multiply-add peak f32"), facts.get("copy bandwidth, memory")
    points = [(r["flops"] / r["moved"], r["flops"] / r["seconds"] / 1e9, f"{name}, {r['case']}") for name, group in rows.items() for r in group
              if r["kind"] == "time" and r["name"] == OURS and r.get("flops") and r.get("moved") and "float64" not in r["case"]]
    if peak is None or slow is None or not points:
        return None
    p = Picture(760, 420, "Roofline: aotgrad, float32, one thread (names of points in their tooltips)")
    low_x, high_x, low_y, high_y = 0.05, 1000.0, 0.5, 2 * peak

    def x_of(v: float) -> float:
        return 60 + 670 * math.log(min(max(v, low_x), high_x) / low_x) / math.log(high_x / low_x)

    def y_of(v: float) -> float:
        return 380 - 330 * math.log(min(max(v, low_y), high_y) / low_y) / math.log(high_y / low_y)

    for k in range(-1, 4):
        p.line(x_of(10.0**k), 50, x_of(10.0**k), 380)
        p.text(x_of(10.0**k), 394, f"{10.0**k:g}", size=10, anchor="middle", fill=GREY)
        if low_y < 10.0**k < high_y:
            p.line(60, y_of(10.0**k), 730, y_of(10.0**k))
            p.text(54, y_of(10.0**k) + 4, f"{10.0**k:g}", size=10, anchor="end", fill=GREY)
    p.text(395, 412, "operations per byte of arguments and results", size=11, anchor="middle")
    p.text(60, 44, "GFLOP/s", size=11)
    for level, colour in (("memory", "#b5524f"), ("L2", THIRD)):
        wide = facts.get(f"copy bandwidth, {level}")
        if wide is not None:
            start, knee = max(low_x, low_y / wide), peak / wide
            p.line(x_of(start), y_of(start * wide), x_of(knee), y_of(peak), colour, 1.5)
            p.text(x_of(start) + 14, y_of(start * wide) + 12, f"copy, {level}: {wide:.0f} GB/s", size=10, fill=colour)
    p.line(x_of(peak / slow), y_of(peak), 730, y_of(peak), "#222222", 1.5)
    p.text(726, y_of(peak) - 6, f"multiply-add peak: {peak:.0f} GFLOP/s", size=10, anchor="end")
    for intensity, rate, name in points:
        p.dot(x_of(intensity), y_of(rate), OWN, f"{name}: {rate:.3g} GFLOP/s at {intensity:.3g} operations per byte")
    return p
