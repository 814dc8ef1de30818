"""The cheapest division of a graph in two: each node on one side, where being on a side and being apart from a neighbour have a price."""

from __future__ import annotations

from collections import deque

__all__ = ["Cut"]

_SOURCE, _SINK = 0, 1


class Cut:
    """Prices of a division. Every sum of such prices has an exact least, by the duality of cuts and flows (Dinic's algorithm: iterative, the same division every time).

    >>> cut = Cut()
    >>> a, b = cut.node(), cut.node()
    >>> cut.price(a, 5, 0), cut.price(b, 0, 3), cut.apart(a, b, 1)
    (None, None, None)
    >>> cut.second() == {a}
    True
    """

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[], []]  # of each node: positions of its edges in ``_to`` and ``_room``; an edge's reverse is beside it
        self._to: list[int] = []
        self._room: list[int] = []

    def node(self) -> int:
        """A new node."""
        self._edges.append([])
        return len(self._edges) - 1

    def price(self, node: int, first: int, second: int) -> None:
        """What ``node`` costs on the first side, and on the second."""
        if second:
            self._edge(node, _SINK, second, 0)
        if first:
            self._edge(_SOURCE, node, first, 0)

    def apart(self, a: int, b: int, price: int) -> None:
        """What it costs when two nodes are on different sides."""
        if price and a != b:
            self._edge(a, b, price, price)

    def second(self) -> set[int]:
        """The nodes on the second side of a cheapest division: as few as can be."""
        while (level := self._levels()).get(_SINK) is not None:
            self._fill(level)
        return {n for n in self._levels() if n > _SINK}

    def _edge(self, a: int, b: int, there: int, back: int) -> None:
        self._edges[a].append(len(self._to))
        self._edges[b].append(len(self._to) + 1)
        self._to += [b, a]
        self._room += [there, back]

    def _levels(self) -> dict[int, int]:
        """Distances from the source over edges with room."""
        level = {_SOURCE: 0}
        queue = deque([_SOURCE])
        while queue:
            n = queue.popleft()
            for e in self._edges[n]:
                if self._room[e] and self._to[e] not in level:
                    level[self._to[e]] = level[n] + 1
                    queue.append(self._to[e])
        return level

    def _fill(self, level: dict[int, int]) -> None:
        """Paths from level to level until there is none."""
        at = [0] * len(self._edges)
        path: list[int] = []
        while True:
            n = self._to[path[-1]] if path else _SOURCE
            if n == _SINK:
                least = min(self._room[e] for e in path)
                for e in path:
                    self._room[e] -= least
                    self._room[e ^ 1] += least
                path = path[:next(i for i, e in enumerate(path) if not self._room[e])]
                continue
            edges = self._edges[n]
            while at[n] < len(edges) and not (self._room[edges[at[n]]] and level.get(self._to[edges[at[n]]]) == level[n] + 1):
                at[n] += 1
            if at[n] < len(edges):
                path.append(edges[at[n]])
            elif path:
                at[self._to[path.pop() ^ 1]] += 1
            else:
                return
