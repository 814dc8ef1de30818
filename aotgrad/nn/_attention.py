"""Scaled-dot-product attention by rows of scores that stay in cache: neither pass keeps the matrix of scores, unless it is no larger than its arguments.

One head after the other. Forwards a block of queries at a time: scores, softmax and the product with the values of a block are done before the next; beside the result
one number per query is left (of short sequences all exponentials), from which the backward pass makes scores again. It goes by tiles of some keys and some queries:
gradients of keys stay in the cache while queries pass, once for each part of the keys. With ``is_causal`` a block meets the keys before its end alone, and a part of the
keys the queries behind its start.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from aotgrad.frontend import factories
from aotgrad.frontend.compile import compile as compiled
from aotgrad.frontend.control import scan
from aotgrad.frontend.custom import custom_vjp
from aotgrad.frontend.queries import stop_gradient
from aotgrad_runtime.dtypes import bfloat16
from aotgrad_runtime.errors import AotgradArgumentError, AotgradDTypeError, AotgradRuntimeError, AotgradValueError

from ._norms import dropout
from ._shared import dtype_of, f, is_float, rank

__all__ = ["scaled_dot_product_attention"]

_BLOCK = 1 << 16
"""Scores of a block: 256 KB in float32."""
_TILE, _COLUMNS, _KEYS = 1 << 18, 1 << 11, 1 << 17
"""Bytes of a tile of scores in the backward pass, of a row of it at most, and of the tile's keys at most: two tiles and seven times the keys stay in the second cache."""
_ROWS = 64
"""Queries of a causal segment at least; there are at most ``_SEGMENTS`` of rows, ``_CORNER`` of tiles on the diagonal, each with code of its own."""
_SEGMENTS, _CORNER = 8, 4
_LEAST = 16


def scaled_dot_product_attention(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
                                 enable_gqa: bool = False) -> Any:
    """``softmax(query @ key.T * scale + mask) @ value``: query (..., L, E), key (..., S, E), value (..., S, V) of one floating dtype, result (..., L, V).

    ``attn_mask`` broadcasts to (..., L, S): bools (True takes part) or numbers to add. ``is_causal`` lets query i see keys 0 to i. ``scale`` is 1/sqrt(E) by default.
    ``enable_gqa`` repeats heads of key and value (dim -3) for groups of heads of query. A query that no key is left for gives 0, with gradient 0, as in PyTorch.
    Memory grows with L and S, not with their product (scores are kept only where they are no larger than arguments and result); with ``dropout_p`` (whose random numbers
    are an array), and in derivatives of derivatives, it does.

    Raises AotgradArgumentError for shapes that do not fit, AotgradDTypeError for dtypes, AotgradRuntimeError for a mask beside ``is_causal``.

    >>> import aotgrad as ag
    >>> q, k, v = ag.zeros(1, 2), ag.zeros(2, 2), ag.tensor([[1.0], [3.0]])
    >>> ag.nn.functional.scaled_dot_product_attention(q, k, v)
    tensor([[2.]])
    """
    _check(query, key, value, attn_mask, dropout_p, is_causal)
    if dtype_of(query) is bfloat16:  # compiled code computes in float32
        query, key, value, attn_mask = (f.float(x) if x is not None and dtype_of(x) is bfloat16 else x for x in (query, key, value, attn_mask))
        return f.astype(scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa), bfloat16)
    if enable_gqa:
        key, value = (_repeated(x, query, name) for x, name in ((key, "key"), (value, "value")))
    lead = _lead(query, key, value, attn_mask)
    size, number = _sizes(query), _sizes(key)
    factor = 1.0 / math.sqrt(max(size[-1], 1)) if scale is None else float(scale)
    whole = (*lead, size[-2], _sizes(value)[-1])
    if 0 in (*whole, number[-2]):
        nothing = f.matmul(f.matmul(query, f.swapaxes(key, -1, -2)), value)
        own = 0 in (size[-2], *_sizes(value))  # torch then takes the leading dims of query alone
        return f.sum_to_size(nothing, (*size[:-1], whole[-1])) if own and lead != size[:-2] else nothing
    heads = [_flat(x, lead or (1,)) for x in (query, key, value)]
    mask = None if attn_mask is None else _flat(attn_mask, lead if rank(attn_mask) > 2 and any(n != 1 for n in _sizes(attn_mask)[:-2]) else ())
    if mask is not None:
        mask = f.broadcast_to(mask, (*_sizes(mask)[:-2], size[-2], number[-2]))
    if dropout_p > 0:
        return f.reshape(_dropped(heads, mask, is_causal, factor, dropout_p), whole)
    kind = "none" if mask is None else "bool" if dtype_of(mask).kind == "b" else "add"
    each = mask is not None and rank(mask) == 3
    run = _compiled(is_causal, factor, kind, each)
    return f.reshape(run(*heads) if mask is None else run(*heads, mask), whole)


# ---- arguments -------------------------------------------------------------------------------------------------------------------------

def _check(query: Any, key: Any, value: Any, mask: Any, dropout_p: float, causal: bool) -> None:
    name = "scaled_dot_product_attention"
    for x, what in ((query, "query"), (key, "key"), (value, "value")):
        if rank(x) < 2:
            raise AotgradArgumentError(f"{name}: {what} has {rank(x)} dims; at least 2 are needed, (..., length, features)")
        if not is_float(x) or dtype_of(x) is not dtype_of(query):
            raise AotgradDTypeError(f"{name}: query, key and value need one floating dtype, but {what} is {dtype_of(x).name} and query {dtype_of(query).name}")
    (length, features), (keys, wide), (values, _) = (_sizes(x)[-2:] for x in (query, key, value))
    if features != wide:
        raise AotgradArgumentError(f"{name}: query has {features} features and key {wide}; they must be equal")
    if keys != values:
        raise AotgradArgumentError(f"{name}: there are {keys} keys and {values} values; one for each is needed")
    if not 0.0 <= dropout_p <= 1.0:
        raise AotgradValueError(f"{name}: dropout_p={dropout_p} is no probability; give one from 0 to 1")
    if mask is None:
        return
    if causal:
        raise AotgradRuntimeError(f"{name}: give attn_mask or is_causal=True, not both")
    if dtype_of(mask).kind != "b" and dtype_of(mask) is not dtype_of(query):
        raise AotgradDTypeError(f"{name}: attn_mask is {dtype_of(mask).name}; give bools, or {dtype_of(query).name} as query is")
    if any(n not in (1, want) for n, want in zip(reversed(_sizes(mask)), (keys, length))):
        raise AotgradArgumentError(f"{name}: attn_mask of shape {_sizes(mask)} does not broadcast to (..., {length}, {keys})")


def _sizes(x: Any) -> tuple[int, ...]:
    """The shape in numbers: blocks are laid out for them."""
    return tuple(int(n) for n in x.shape)


def _repeated(x: Any, query: Any, name: str) -> Any:
    if rank(x) < 3 or rank(query) < 3 or _sizes(query)[-3] % max(_sizes(x)[-3], 1):
        raise AotgradArgumentError(f"scaled_dot_product_attention: enable_gqa needs heads in dim -3, those of {name} dividing those of query, "
                                   f"not {tuple(x.shape)} and {tuple(query.shape)}")
    *lead, heads, length, features = _sizes(x)
    times = _sizes(query)[-3] // max(heads, 1)
    return f.reshape(f.broadcast_to(f.unsqueeze(x, -3), (*lead, heads, times, length, features)), (*lead, heads * times, length, features))


def _lead(query: Any, key: Any, value: Any, mask: Any) -> tuple[int, ...]:
    """The shape of heads and batches that all broadcast to."""
    lead: list[int] = []
    for x, name in ((query, "query"), (key, "key"), (value, "value"), (mask, "attn_mask")):
        own = [] if x is None else list(_sizes(x)[:-2])
        lead, own = [1] * (len(own) - len(lead)) + lead, [1] * (len(lead) - len(own)) + own
        if any(1 not in (a, b) and a != b for a, b in zip(lead, own)):
            raise AotgradArgumentError(f"scaled_dot_product_attention: the leading dims of {name}, {tuple(own)}, do not broadcast with {tuple(lead)}; "
                                       "for groups of heads use enable_gqa=True")
        lead = [b if a == 1 else a for a, b in zip(lead, own)]
    return tuple(lead)


def _flat(x: Any, lead: tuple[int, ...]) -> Any:
    """(heads, rows, columns), or (rows, columns) without ``lead``."""
    last = (1, *_sizes(x))[-2:]
    if not lead:
        return f.reshape(x, last) if _sizes(x) != last else x
    return f.reshape(f.broadcast_to(x, (*lead, *last)), (math.prod(lead), *last))


# ---- the composite ---------------------------------------------------------------------------------------------------------------------

def _scores(q: Any, k: Any, mask: Any, numbers: Any) -> Any:
    """``numbers`` of the queries (rows, 1), where they see only keys up to theirs."""
    s = f.matmul(q, f.swapaxes(k, -1, -2))
    if numbers is not None:
        mask = f.le(factories.arange(_sizes(k)[-2], dtype="int32"), numbers)
    if mask is None:
        return s
    return f.where(mask, s, -math.inf) if dtype_of(mask).kind == "b" else f.add(s, mask)


def _numbers(first: int, end: int, causal: bool) -> Any:
    return f.reshape(factories.arange(first, end, dtype="int32"), (-1, 1)) if causal else None


def _top(s: Any) -> Any:
    """The largest of each row; 0 where all are -inf."""
    top = f.amax(s, -1, keepdim=True)
    return f.where(f.eq(top, -math.inf), 0.0, top)


def _dropped(heads: Sequence[Any], mask: Any, causal: bool, scale: float, p: float) -> Any:
    q, k, v = heads
    s = _scores(f.mul(q, scale), k, mask, _numbers(0, _sizes(q)[-2], causal))
    e = f.exp(f.sub(s, stop_gradient(_top(s))))
    total = f.sum(e, -1, keepdim=True)
    return f.matmul(dropout(f.div(e, f.where(f.eq(total, 0.0), 1.0, total)), p), v)


# ---- blocks ----------------------------------------------------------------------------------------------------------------------------

def _segments(rows: int, keys: int, causal: bool, most: int = _SEGMENTS) -> list[tuple[int, int, int]]:
    """(first query, end, keys they see): one segment, or several where later queries see more."""
    if not causal:
        return [(0, rows, keys)]
    step = max(_ROWS, -(-rows // (most * _LEAST)) * _LEAST)
    return [(a, min(a + step, rows), min(a + step, rows, keys)) for a in range(0, rows, step)]


def _blocks(rows: int, keys: int) -> int:
    """Queries of a block."""
    return rows if rows * keys <= 2 * _BLOCK else min(rows, max(_LEAST, _BLOCK // keys // _LEAST * _LEAST))


def _columns(k: Any, keys: int, most: int = 1 << 30) -> int:
    """Keys of a tile of the backward pass: all in about equal parts, ``most`` of them."""
    row = min(_COLUMNS, _KEYS // max(_sizes(k)[1], 1))
    parts = min(-(-keys * dtype_of(k).itemsize // max(row, 16 * _LEAST)), most)
    return min(keys, -(-keys // (parts * _LEAST)) * _LEAST)


def _rows(rows: int, keys: int, itemsize: int) -> int:
    """Queries of such a tile."""
    return min(rows, max(_LEAST, _TILE // (keys * itemsize) // _LEAST * _LEAST))


def _each(step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, arrays: Sequence[Any], size: int) -> tuple[Any, list[Any]]:
    """``step(carry, blocks) -> carry, results`` over blocks of ``size`` rows of the arrays, in a loop; the rows that are left over after it. None stays None."""
    rows = _sizes(arrays[0])[0]
    whole = rows // size
    if whole <= 1 and rows == size:
        carry, out = step(carry, arrays)
        return carry, list(out)
    there = [x is not None for x in arrays]
    cut = [f.reshape(x[:whole * size], (whole, size, _sizes(x)[-1])) for x in arrays if x is not None]

    def one(carry: Any, given: Any) -> tuple[Any, Any]:
        blocks = iter(given)
        carry, out = step(carry, [next(blocks) if here else None for here in there])
        return carry, tuple(out)

    carry, found = scan(one, carry, tuple(cut))
    out = [f.reshape(x, (whole * size, _sizes(x)[-1])) for x in found]
    if rows > whole * size:
        carry, rest = step(carry, [None if x is None else x[whole * size:] for x in arrays])
        out = [f.cat([a, b], 0) for a, b in zip(out, rest)]
    return carry, out


def _joined(parts: Sequence[Any]) -> Any:
    return parts[0] if len(parts) == 1 else f.cat(list(parts), 0)


def _longer(x: Any, rows: int) -> Any:
    """``x`` with rows of 0 behind it, up to ``rows``."""
    have, wide = _sizes(x)
    return x if have == rows else f.cat([x, factories.zeros((rows - have, wide), dtype=dtype_of(x).name)], 0)


def _keeps(q: Any, k: Any, v: Any) -> bool:
    """Whether the backward pass gets the exponentials of the scores: no more numbers than queries, keys, values and results have, and of one block."""
    (rows, wide), (keys, out) = _sizes(q), _sizes(v)
    return rows * keys <= min(2 * _BLOCK, (rows + keys) * (wide + out))


def _forward(causal: bool, scale: float) -> Callable[..., tuple[Any, Any]]:
    """Result of one head, and what the backward pass needs of it: the logarithm of the sums of exponentials, or where ``_keeps`` holds the sums and all exponentials."""

    def head(q: Any, k: Any, v: Any, mask: Any) -> tuple[Any, Any]:
        keeps = _keeps(q, k, v)
        parts, q = [], f.mul(q, scale)
        for first, end, keys in _segments(_sizes(q)[0], _sizes(k)[0], causal):
            size = _blocks(end - first, keys)
            own_k, own_v = k[:keys], v[:keys]

            def step(carry: Any, x: Any, own_k: Any = own_k, own_v: Any = own_v) -> tuple[Any, Any]:
                s = _scores(x[0], own_k, x[1], x[2])
                top = _top(s)
                e = f.exp(f.sub(s, top))
                total = f.sum(e, -1, keepdim=True)
                total = f.where(f.eq(total, 0.0), 1.0, total)
                return carry, (f.div(f.matmul(e, own_v), total), *((total, e) if keeps else (f.add(top, f.log(total)),)))

            parts.append(_each(step, (), (q[first:end], mask, _numbers(first, end, causal)), size)[1])
        out, sums = (_joined([p[i] for p in parts]) for i in range(2))
        return out, (sums, tuple(p[2] for p in parts)) if keeps else sums

    return head


def _tile(own_k: Any, own_v: Any, p: Any, qs: Any, gs: Any, inner: Any) -> tuple[Any, Any, Any, Any]:
    """What some queries and keys give to the gradients of both, and to those of values and mask."""
    ds = f.mul(p, f.sub(f.matmul(gs, f.swapaxes(own_v, -1, -2)), inner))
    return f.matmul(ds, own_k), f.matmul(f.swapaxes(ds, -1, -2), qs), f.matmul(f.swapaxes(p, -1, -2), gs), ds


def _again(own_k: Any, own_v: Any, x: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """The same from queries, gradients, logarithms of sums and inner products, where the probabilities have to be made again."""
    qs, gs, ls, inner, ms, at = x
    return _tile(own_k, own_v, f.exp(f.sub(_scores(qs, own_k, ms, at), ls)), qs, gs, inner)


def _column(own_k: Any, own_v: Any, given: Sequence[Any], dq: Any, sums: Any, adds: bool = False) -> tuple[Any, Any, Any]:
    """Some keys and all queries that see them: the gradient of queries added to ``dq``, those of keys and values to ``sums``; with ``adds`` that of a mask."""

    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        *blocks, before = x
        more, dk, dv, ds = _again(own_k, own_v, blocks)
        carry = (dk, dv) if carry is None else (f.add(carry[0], dk), f.add(carry[1], dv))
        return carry, (more if before is None else f.add(before, more), *((ds,) if adds else ()))

    rows = _sizes(given[0])[0]
    size = _rows(rows, _sizes(own_k)[0], dtype_of(own_k).itemsize)
    if sums is None and size < rows:
        sums = (factories.zeros_like(own_k), factories.zeros_like(own_v))
    sums, found = _each(step, sums, [*given, dq], size)
    return found[0], sums, found[1] if adds else None


def _stairs(segments: Sequence[tuple[int, int, int]], tile: Callable[[int, int, int, int], tuple[Any, ...]]) -> tuple[Any, Any, Any, Any]:
    """All gradients of queries that see more keys the later they are, from those of ``tile(number, first query, end, keys)``."""
    parts, sums, ds = [], None, None
    for i, (first, end, keys) in reversed(list(enumerate(segments))):
        dq, dk, dv, ds = tile(i, first, end, keys)
        parts.append(dq)
        sums = (dk, dv) if sums is None else tuple(a.at[:keys].add(b) for a, b in zip(sums, (dk, dv)))
    return (_joined(parts[::-1]), *sums, ds)  # type: ignore[misc]


def _corner(carry: Any, x: Any) -> tuple[Any, Any]:
    """As many queries as keys, each of which sees those up to its own."""
    own_k, own_v, *given = x
    size = _sizes(own_k)[0]
    found = _stairs(_segments(size, size, True, _CORNER), lambda i, first, end, keys: _again(
        own_k[:keys], own_v[:keys], [*(a[first:end] for a in given), None, _numbers(first, end, True)]))
    return carry, found[:3]


def _kept(k: Any, v: Any, es: Sequence[Any], segments: Sequence[tuple[int, int, int]], given: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """Gradients from the exponentials of the scores; the gradients and inner products that are ``given`` were divided by their sums."""
    dq, dk, dv, ds = _stairs(segments, lambda i, first, end, keys: _tile(k[:keys], v[:keys], es[i], *(a[first:end] for a in given)))
    return dq, _longer(dk, _sizes(k)[0]), _longer(dv, _sizes(k)[0]), ds


def _square(k: Any, v: Any, given: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Queries that see the keys up to theirs: the corners on the diagonal, then each part of the keys with the queries behind it."""
    rows, seen = _sizes(given[0])[0], min(_sizes(given[0])[0], _sizes(k)[0])
    size = _columns(k, seen, _SEGMENTS)
    dq, dk, dv = _each(_corner, (), [k[:seen], v[:seen], *(x[:seen] for x in given)], size)[1]
    rest = _longer(dq, rows)
    parts, sums = [], []
    for first in range(0, seen, size):
        end = min(first + size, seen)
        parts.append(rest[:end - first])
        rest, own = rest[end - first:], (dk[first:end], dv[first:end])
        if end < rows:
            rest, own, _ = _column(k[first:end], v[first:end], [*(x[end:] for x in given), None, None], rest, own)
        sums.append(own)
    dk, dv = (_longer(_joined(x), _sizes(k)[0]) for x in zip(*sums))
    return _joined([*parts, rest] if rows > seen else parts), dk, dv


def _backward(causal: bool, scale: float, adds: bool) -> Callable[..., tuple[Any, ...]]:
    """Gradients of queries, keys, values, and of an added mask, of one head."""

    def head(q: Any, k: Any, v: Any, mask: Any, out: Any, left: Any, g: Any) -> tuple[Any, ...]:
        qs, inner = f.mul(q, scale), f.sum(f.mul(out, g), -1, keepdim=True)
        size = _sizes(k)[0] if mask is not None else _columns(k, _sizes(k)[0])
        ds: Any = None

        def part(dq: Any, x: Any) -> tuple[Any, Any]:
            return _column(x[0], x[1], [qs, g, left, inner, None, None], dq, None)[:2]

        if _keeps(q, k, v):
            total, es = left
            dq, dk, dv, ds = _kept(k, v, es, _segments(_sizes(q)[0], _sizes(k)[0], causal), [qs, f.div(g, total), f.div(inner, total)])
        elif causal:
            dq, dk, dv = _square(k, v, [qs, g, left, inner])
        elif size == _sizes(k)[0]:
            dq, (dk, dv), ds = _column(k, v, [qs, g, left, inner, mask, None], None, None, adds)
        else:
            dq, (dk, dv) = _each(part, factories.zeros_like(q), [k, v], size)
        return (f.mul(dq, scale), dk, dv, *((ds,) if adds else ()))

    return head


@functools.lru_cache(maxsize=64)
def _compiled(causal: bool, scale: float, kind: str, each: bool) -> Callable[..., Any]:
    """Attention of (heads, rows, features). ``kind`` of mask: "none", "bool", "add"; ``each``: one for every head."""
    forward, backward = _forward(causal, scale), _backward(causal, scale, kind == "add")

    def run(q: Any, k: Any, v: Any, *mask: Any) -> tuple[Any, Any]:
        for x in (q, k, v, *mask):
            _sizes(x)

        def step(carry: Any, x: Any) -> tuple[Any, Any]:
            return carry, forward(*x[:3], x[3] if each else mask[0] if mask else None)

        return scan(step, (), (q, k, v, *(mask if each else ())))[1]  # type: ignore[no-any-return]

    @custom_vjp
    def attention(q: Any, k: Any, v: Any, *mask: Any) -> Any:
        return run(q, k, v, *mask)[0]

    def kept(q: Any, k: Any, v: Any, *mask: Any) -> tuple[Any, Any]:
        out, left = run(q, k, v, *mask)
        return out, (q, k, v, mask, out, left)

    def pulled(saved: Any, g: Any) -> tuple[Any, ...]:
        q, k, v, mask, out, left = saved
        given = factories.zeros_like(mask[0]) if kind == "add" and not each else ()

        def step(carry: Any, x: Any) -> tuple[Any, Any]:
            found = backward(*x[:3], x[6] if each else mask[0] if mask else None, x[4], x[5], x[3])
            if kind == "add" and not each:
                return f.add(carry, found[3]), found[:3]
            return carry, found

        total_mask, found = scan(step, given, (q, k, v, g, out, left, *(mask if each else ())))
        if kind == "add":
            return (*found[:3], found[3] if each else total_mask)
        return (*found, *((None,) if mask else ()))

    attention.defvjp(kept, pulled)
    made: Callable[..., Any] = compiled(attention, name="attention")
    return made
