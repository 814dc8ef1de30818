"""A profile as one HTML page without any outside resource: flame view (in time or merged), averages, and source lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from .profiler_util import EventList, FunctionEvent

__all__ = ["LIMIT", "page"]

LIMIT: Final = 200_000  # events on a page; of more, the longest

_STYLE: Final = """
:root { --bg: #fcfcfb; --fg: #1d1d1f; --dim: #6b6b70; --line: #dddde0;
  --op: #7db8e8; --backward: #f0a987; --region: #8fcf9f; --kernel: #c4e3a0; --user: #c9b6ea; --compile: #d8d8da; }
@media (prefers-color-scheme: dark) { :root { --bg: #17181a; --fg: #e9e9ea; --dim: #98989d; --line: #35363a;
  --op: #2f6d9f; --backward: #a3583a; --region: #2f7d47; --kernel: #5f7d2c; --user: #6a4fa0; --compile: #505156; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 16px 20px; background: var(--bg); color: var(--fg); font: 14px/1.45 system-ui, sans-serif; }
h1 { font-size: 18px; margin: 0 0 2px; } p.sum { margin: 0 0 12px; color: var(--dim); }
.bar { display: flex; flex-wrap: wrap; gap: 8px 14px; align-items: center; margin-bottom: 8px; }
.bar button, .bar input { font: inherit; color: inherit; background: transparent; border: 1px solid var(--line); border-radius: 6px; padding: 3px 10px; }
.bar button[aria-pressed=true] { background: var(--fg); color: var(--bg); }
.key { display: inline-flex; align-items: center; gap: 5px; color: var(--dim); } .key i { width: 12px; height: 12px; border-radius: 3px; }
#view { position: relative; border: 1px solid var(--line); border-radius: 8px; overflow: hidden; }
canvas { display: block; width: 100%; cursor: grab; }
#tip { position: fixed; display: none; max-width: 560px; padding: 7px 10px; border-radius: 6px; background: var(--fg); color: var(--bg); pointer-events: none; z-index: 2;
  white-space: pre-wrap; overflow-wrap: anywhere; font-size: 13px; }
h2 { font-size: 15px; margin: 22px 0 6px; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 3px 12px 3px 0; border-bottom: 1px solid var(--line); white-space: nowrap; } th { font-weight: 600; cursor: pointer; }
th:first-child, td:first-child, td.text, th.text { text-align: left; } td.text { font-family: ui-monospace, monospace; font-size: 13px; }
"""

# Rows of D: name, kind, start, length, depth, self time (microseconds), where. Names and places are indices into N and W.
_SCRIPT: Final = """
const D = DATA.events, N = DATA.names, W = DATA.places, K = DATA.kinds, END = DATA.end;
const canvas = document.getElementById('view').firstElementChild, tip = document.getElementById('tip'), ROW = 20;
const us = t => t >= 1e6 ? (t / 1e6).toFixed(3) + ' s' : t >= 1e3 ? (t / 1e3).toFixed(3) + ' ms' : t.toFixed(3) + ' us';
function merged() {
  const root = { kids: new Map(), length: 0 }, path = [root];
  for (const e of D) {
    const parent = path[e[4]];
    let node = parent.kids.get(e[0]);
    if (!node) parent.kids.set(e[0], node = { kids: new Map(), e: e, length: 0, own: 0, calls: 0 });
    node.length += e[3]; node.own += e[5]; node.calls++;
    path[e[4] + 1] = node;
  }
  const out = [], todo = [];
  const place = (kids, at, depth) => {
    for (const k of [...kids.values()].sort((a, b) => b.length - a.length)) { todo.push([k, at, depth]); at += k.length; }
    return at;
  };
  const end = place(root.kids, 0, 0);
  while (todo.length) { const [k, at, depth] = todo.pop(); out.push([k.e[0], k.e[1], at, k.length, depth, k.own, k.e[6], k.calls]); place(k.kids, at, depth + 1); }
  return [out, Math.max(end, 1e-3)];
}
let rows = D, whole = END, from = 0, to = END, find = '', colours = {};
const depth = () => rows.reduce((m, e) => Math.max(m, e[4]), 0) + 1;
function paint() {
  const ratio = window.devicePixelRatio || 1, width = canvas.parentElement.clientWidth, height = depth() * ROW + 24;
  canvas.style.height = height + 'px'; canvas.width = width * ratio; canvas.height = height * ratio;
  const g = canvas.getContext('2d'), style = getComputedStyle(document.documentElement), scale = width / (to - from);
  for (const k of K) colours[k] = style.getPropertyValue('--' + k);
  const ink = style.getPropertyValue('--fg'), dim = style.getPropertyValue('--dim'), back = style.getPropertyValue('--bg');
  g.scale(ratio, ratio); g.font = '12px system-ui, sans-serif'; g.textBaseline = 'middle'; g.fillStyle = dim;
  for (let i = 0; i < 6; i++) g.fillText(us(from + (to - from) * i / 6), width * i / 6 + 4, 12);
  const last = [];
  for (const e of rows) {
    let x = (e[2] - from) * scale, w = e[3] * scale;
    if (x + w < 0 || x > width) continue;
    if (w < 0.5 && last[e[4]] > x) continue;
    last[e[4]] = x + 0.5;
    if (x < 0) { w += x; x = 0; }
    w = Math.min(w, width - x);
    const y = 24 + e[4] * ROW, hit = !find || N[e[0]].toLowerCase().includes(find);
    g.globalAlpha = hit ? 1 : 0.25; g.fillStyle = colours[K[e[1]]]; g.fillRect(x, y, Math.max(w - (w > 3 ? 1 : 0), 0.5), ROW - 1);
    if (w > 30) { g.save(); g.beginPath(); g.rect(x, y, w - 4, ROW); g.clip(); g.fillStyle = ink; g.fillText(N[e[0]], x + 4, y + ROW / 2); g.restore(); }
  }
  g.globalAlpha = 1;
}
function at(event) {
  const box = canvas.getBoundingClientRect(), t = from + (event.clientX - box.left) / box.width * (to - from), d = Math.floor((event.clientY - box.top - 24) / ROW);
  return rows.find(e => e[4] === d && e[2] <= t && t <= e[2] + e[3]);
}
function zoom(a, b) { const least = whole * 1e-7; if (b - a < least) b = a + least; from = Math.max(a, 0); to = Math.min(b, whole); paint(); }
let drag = null, moved = false;
canvas.addEventListener('mousedown', e => { drag = [e.clientX, from, to]; moved = false; });
window.addEventListener('mouseup', () => { drag = null; });
canvas.addEventListener('mousemove', e => {
  if (drag && Math.abs(e.clientX - drag[0]) > 3) {
    moved = true;
    const s = (e.clientX - drag[0]) / canvas.clientWidth * (drag[2] - drag[1]), a = Math.min(Math.max(drag[1] - s, 0), whole - (drag[2] - drag[1]));
    zoom(a, a + drag[2] - drag[1]);
  }
  const hit = at(e);
  tip.style.display = hit ? 'block' : 'none';
  if (!hit) return;
  const calls = hit[7] ? '\\n' + hit[7] + ' calls' : '';
  tip.textContent = N[hit[0]] + '\\n' + K[hit[1]] +
    ', ' + us(hit[3]) + ' (self ' + us(hit[5]) + ', ' + (100 * hit[3] / whole).toFixed(2) + ' %)' + calls + (hit[6] < 0 ? '' : '\\n' + W[hit[6]]);
  tip.style.left = Math.min(e.clientX + 12, window.innerWidth - tip.offsetWidth - 8) + 'px';
  tip.style.top = Math.min(e.clientY + 14, window.innerHeight - tip.offsetHeight - 8) + 'px';
});
canvas.addEventListener('mouseleave', () => { tip.style.display = 'none'; });
canvas.addEventListener('click', e => { if (moved) return; const hit = at(e); if (hit) zoom(hit[2], hit[2] + hit[3]); });
canvas.addEventListener('wheel', e => {
  e.preventDefault();
  const box = canvas.getBoundingClientRect(), t = from + (e.clientX - box.left) / box.width * (to - from), f = Math.exp(e.deltaY * 0.002);
  zoom(t - (t - from) * f, t + (to - t) * f);
}, { passive: false });
const timed = document.getElementById('timed'), joined = document.getElementById('joined');
function show(merge) {
  [rows, whole] = merge ? merged() : [D, END];
  timed.setAttribute('aria-pressed', !merge); joined.setAttribute('aria-pressed', merge); zoom(0, whole);
}
timed.onclick = () => show(false); joined.onclick = () => show(true);
document.getElementById('reset').onclick = () => zoom(0, whole);
document.getElementById('find').oninput = e => { find = e.target.value.toLowerCase(); paint(); };
for (const head of document.querySelectorAll('th')) head.onclick = () => {
  const body = head.closest('table').tBodies[0], i = head.cellIndex, value = r => r.cells[i].dataset.v;
  const text = head.classList.contains('text');
  [...body.rows].sort((a, b) => text ? value(a).localeCompare(value(b)) : value(b) - value(a)).forEach(r => body.append(r));
};
window.addEventListener('resize', paint);
show(false);
"""


def _data(events: Sequence[FunctionEvent]) -> dict[str, Any]:
    kinds = ["op", "backward", "region", "kernel", "user", "compile"]
    names: dict[str, int] = {}
    places: dict[str, int] = {}
    rows = []
    depth: dict[int, int] = {}
    for e in events:
        depth[id(e)] = 0 if e.cpu_parent is None else depth[id(e.cpu_parent)] + 1
    kept = events if len(events) <= LIMIT else sorted(sorted(events, key=lambda e: -e.cpu_time_total)[:LIMIT], key=lambda e: e.id)
    for e in kept:
        where = -1 if e.line is None else places.setdefault(f"{e.line[0]}:{e.line[1]}", len(places))
        rows.append([names.setdefault(e.name, len(names)), kinds.index(e.kind), round(e.time_range.start, 3), round(e.cpu_time_total, 3), depth[id(e)],
                     round(e.self_cpu_time_total, 3), where])
    end = max((e.time_range.end for e in events), default=1.0)
    return {"events": rows, "names": list(names), "places": list(places), "kinds": kinds, "end": round(end, 3)}


def _escaped(text: str) -> str:
    """Text as HTML, in attributes too."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def _table(heads: Sequence[str], text: Sequence[int], rows: Sequence[Sequence[tuple[str, Any]]]) -> str:
    kind = [' class="text"' if i in text else "" for i in range(len(heads))]
    top = "".join(f"<th{k}>{_escaped(h)}</th>" for k, h in zip(kind, heads))
    body = "".join("<tr>" + "".join(f'<td{k} data-v="{_escaped(str(v))}">{_escaped(s)}</td>' for k, (s, v) in zip(kind, row)) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _time(us: float) -> tuple[str, float]:
    return f"{us:,.1f}", us


def page(events: EventList, title: str = "aotgrad profile") -> str:
    """The page as text. Times are microseconds."""
    total = events.self_cpu_time_total
    averages = sorted(events.key_averages(), key=lambda a: -a.self_cpu_time_total)[:200]
    calls = [[(a.key, a.key), (a.kind, a.kind), _time(a.self_cpu_time_total), _time(a.cpu_time_total), _time(a.cpu_time), (str(a.count), a.count)] for a in averages]
    lines = [[(f"{e.file}:{e.line}", f"{e.file}:{e.line:07d}"), _time(e.forward), _time(e.adjoint), _time(e.total), (e.source[:120], e.source)]
             for e in events.line_averages()[:500]]
    data = json.dumps(_data(events), separators=(",", ":")).replace("<", "\\u003c")
    keys = "".join(f'<span class="key"><i style="background:var(--{k})"></i>{k}</span>' for k in ("op", "backward", "region", "kernel", "user", "compile"))
    dropped = f"; the {LIMIT:,} longest are shown" if len(events) > LIMIT else ""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{_escaped(title)}</title><style>{_STYLE}</style>'
    summary = f"{len(events):,} events, {total / 1e3:,.3f} ms in them{dropped}. Click an event to zoom in, drag to move, turn the wheel to scale."
    return f"""<!doctype html>
<html lang="en"><head>{head}</head>
<body><h1>{_escaped(title)}</h1><p class="sum">{summary}</p>
<div class="bar"><button id="timed">In time</button><button id="joined">Merged</button><button id="reset">All</button>
<input id="find" type="search" placeholder="Find" aria-label="Find">{keys}</div>
<div id="view"><canvas></canvas></div><div id="tip"></div>
<h2>Calls (microseconds)</h2>{_table(("Name", "Kind", "Self", "Total", "Average", "Calls"), (0, 1), calls)}
<h2>Source lines (microseconds)</h2>{_table(("Line", "Forward", "Adjoint", "Total", "Source"), (0, 4), lines)}
<script>const DATA = {data};{_SCRIPT}</script></body></html>
"""
