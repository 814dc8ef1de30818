"""Which ops share a loop nest. One pass over a block from its end: every value learns who reads it and how, then finds its place.

A value read by one nest through one index map is computed inside that nest (producers fold into consumers); a value that is also
needed elsewhere is stored, from a nest that reads it anyway where the order of items allows; reductions and stored values over the
same space join nests (siblings). What is read in two nests is stored, except chains of at most two cheap operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..ir import dims as dimlib
from ..ir.core import Op, Value
from ..ir.dims import DimLike
from ..ir.opdef import ViewMap
from ..ir.types import TensorType
from .access import Map, compose, identity, is_permutation, map_dims, reshape_view, zero_map
from .plan import CHEAP, WRITES, How, Item, Kern, Nest, Plan, Scalar, Uses, classify, produced, size_one, view_of, weight, write_map
from .sum_order import Pairs, by_blocks, every_pair, groups, in_line, innermost, is_run, joints, kept, may_split, mixes, sum_size, tied, ties
from .windows import WINDOW
from .written import form_of

__all__ = ["fuse"]

_NEAR = 8  # weight of what is computed in every nest that reads it, where all its data is read anyway: less than writing and reading it
_AGAIN = 16  # total weight of what is computed anew at several shifts of one nest rather than stored
_KEEP, _FAR = 8, 2048
_MEMBERS, _SUMS = 512, 64  # values, and reductions, of a nest that takes no more: LLVM's time grows faster than a loop's body


def far_rows(t: TensorType, memory: Sequence[int], kept: Iterable[int]) -> bool:
    """Whether what is reduced lies so far apart that a row does not stay in cache: batch statistics of a channels_last image. Then whole passes are better."""
    order, kept = [d for d in memory if t.shape[d] != 1], set(kept)
    if not order or order[-1] not in kept:
        return False
    reduced = dimlib.product(t.shape[d] for d in order if d not in kept)
    return reduced > _FAR if isinstance(reduced, int) else sum(d not in kept for d in order) > 1


def _shifts(maps: Iterable[Map]) -> bool:
    """Whether maps differ in their offsets alone: neighbours of a stencil."""
    return len({tuple(terms for _, terms in m) for m in maps}) == 1


class _Analysis:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.uses: Uses = {}
        self.items: list[Item] = []
        self.spaces: dict[tuple[DimLike, ...], list[Nest]] = {}
        self.cost: dict[Value, int] = {}
        self.src: dict[Value, int] = {}
        self.rows: dict[Value, frozenset[Op]] = {}
        self.bits: dict[int, tuple[tuple[DimLike, ...], int]] = {}  # of reductions to rows in ``src``: what they run over, and the data they reduce
        self.order: dict[Value, tuple[int, ...]] = {}
        self.narrow: dict[Value, int] = {}  # weight of what gives a value from one array that is computed too
        self.joints: dict[Value, Pairs] = {}  # neighbours that one loop may go through where the value is computed on the spot
        self.in_line: dict[Value, frozenset[int]] = {}  # dims along which it is then read element after element
        self.of_product: set[Value] = set()  # matrices that are made of a product element by element, and so may be on its blocks
        self.out_roots: set[Value] = set()
        self.taken: dict[tuple[int, Value], Value] = {}  # (writer, operand) -> the copy it overwrites

    # ---- forward facts ------------------------------------------------------------------------------------------------------------

    def _outputs(self) -> None:
        # Each output has a buffer of its own: what is an argument, a view, or an output already is copied.
        plan = self.plan
        for i, v in enumerate(plan.outputs):
            if i in plan.registers:
                continue
            root = v
            while root.op is not None and root.op.name == "reshape" and root.op.operands[0].type.layout is None:
                root = root.op.operands[0]
            fits = root.op is not None and root not in self.out_roots and classify(root.op) in ("ew", "idx", "red", "kern") and root.op.name != "constant"
            if not fits:
                turned = root.op is not None and root not in self.out_roots and classify(root.op) == "view" and reshape_view(root.type.shape, v.type.shape) is None
                root = plan.outputs[i] = self._appended("stop_gradient", [root if turned else v])
                if turned:  # a reshape reads it densely: what is copied is copied where the result is, not before
                    plan.outputs[i] = self._appended("reshape", [root], v.type, shape=v.type.shape)
            self.out_roots.add(root)

    def _appended(self, name: str, operands: list[Value], made: TensorType | None = None, **attrs: Any) -> Value:
        """The result of one more op at the end, of the type of its operand unless another is given."""
        self.plan.ops.append(Op(name, operands, [made or operands[0].type], attrs))
        return self.plan.ops[-1].result

    def _facts(self) -> None:
        plan, bit = self.plan, 1
        for a in plan.block.args:
            self.src[a], self.cost[a] = bit, 0
            self.order[a] = a.type.order
            self.joints[a], self.in_line[a] = every_pair(a.type), innermost(a.type)
            bit <<= 1
        for op in plan.ops:
            kind = plan.kind[op] = classify(op)
            if kind == "view":
                plan.views[op] = view_of(op)  # type: ignore[assignment]
            self._lines(op, kind)
            if kind == "view":
                pass
            elif kind in ("red", "kern"):
                for r in op.results:
                    # What is made of a product is stored, so that the product itself need not be: its readers then run on its blocks.
                    self.order[r] = r.type.order
                    self.src[r], self.cost[r] = bit, CHEAP + 1 if op.name == "dot" else 0
                    bit <<= 1
                if kind == "red":
                    self.rows[op.result] = frozenset((op,))
                    if not size_one(op.result.type.shape):
                        self.bits[self.src[op.result]] = op.operands[0].type.shape, self.src[op.operands[0]]
                continue
            r = op.result
            src, cost, rows = 0, weight(op) if kind == "ew" and op.name not in ("cast", "stop_gradient") else 0, frozenset[Op]()
            for o in op.operands:
                src |= self.src[o]
                cost += self.cost[o]
                rows |= self.rows.get(o, frozenset())
            if op.name == "broadcast" and cost > CHEAP:
                cost = 0  # its source is stored: it would be computed again and again otherwise
            self.src[r], self.cost[r] = src, min(cost, 1 << 20)
            memory = self._order_of(op)
            if memory is not None:
                self.order[r] = memory
            if rows and len(rows) <= 8:
                self.rows[r] = rows
            over = {o for o in op.operands if self.src[o]}
            if kind == "ew" and len(over) == 1 and self._alike(one := over.pop(), r):
                self.narrow[r] = weight(op) + (self.narrow[one] if self._is_narrow(one) else 0)

    def _alike(self, v: Value, r: Value) -> bool:
        """Whether ``v`` is computed element by element and could be stored in place of ``r``."""
        a, b = v.type, r.type
        return v.op is not None and self.plan.kind[v.op] == "ew" and (a.shape, a.layout) == (b.shape, b.layout) and a.dtype.itemsize <= b.dtype.itemsize

    def _lines(self, op: Op, kind: str) -> None:
        """What the order of sums asks about results."""
        view = self.plan.views.get(op)
        for r in op.results:
            if kind == "kern":
                self.joints[r], self.in_line[r] = every_pair(r.type), innermost(r.type)
            else:
                self.joints[r] = joints(op, kind, view, self.joints)
                self.in_line[r] = in_line(op, kind, view, self.in_line)
        on_blocks = kind == "ew" and any(o in self.of_product and o.type.shape == op.result.type.shape for o in op.operands)
        if op.name == "dot" or (on_blocks and not any(self.rows.get(o) for o in op.operands)):
            self.of_product.update(op.results)

    def _suits(self, nest: Nest, ties: Pairs) -> bool:
        """Whether one loop may go through tied dims of a nest as it is."""
        return not ties or all(self._keeps(nest, v, m, ties) for v, m in nest.members.items())

    def _keeps(self, nest: Nest, v: Value, m: Map, ties: Pairs) -> bool:
        """Whether it still may when ``v`` is computed in the nest at map ``m``, and perhaps stored."""
        if not any({a, d} & map_dims(m) for a, d in ties):
            return True
        placed = v in self.plan.claims or self.plan.order.get(v, v.type.order) != v.type.order or v.type.layout != nest.layout
        return m == identity(v.type.shape) and ties <= self.joints[v] and not placed

    def _order(self, v: Value) -> tuple[int, ...]:
        """Dims in the order that the data behind a value has in memory, whatever layout its type asks for."""
        return self.order.get(v) or v.type.order

    def _order_of(self, op: Op) -> tuple[int, ...] | None:
        known = self.order.get(op.operands[0]) if op.operands else None
        if op.name in ("relayout", "slice", WINDOW):
            return known
        if op.name == "permute":
            return known and tuple(op.attrs["perm"].index(d) for d in known)
        if self.plan.kind[op] != "ew":
            return None
        return next((o for o in map(self.order.get, op.operands) if o is not None), None)

    # ---- order --------------------------------------------------------------------------------------------------------------------

    def _item(self, item: Item) -> Any:
        self.items.append(item)
        return item

    def _before(self, item: Item, user: Item) -> None:
        """``item`` must run before ``user``."""
        if user is item:
            return
        item.users.add(user)
        user.reached = True
        new = user.desc | (1 << user.id)
        if new & ~item.desc:
            item.desc |= new
            if item.reached:
                for other in self.items:
                    if other.desc >> item.id & 1:
                        other.desc |= item.desc

    def _may_precede(self, item: Item, users: Iterable[Item]) -> bool:
        return all(u is not item and not u.desc >> item.id & 1 for u in users)

    def _request(self, v: Value, item: Item, how: How) -> None:
        self.uses.setdefault(v, []).append((item, how))

    # ---- the pass -----------------------------------------------------------------------------------------------------------------

    def run(self) -> Plan:
        plan = self.plan
        self._outputs()
        self._facts()
        end = self._item(Kern(0, len(plan.ops), None))
        for i, v in enumerate(plan.outputs):
            self._request(v, end, zero_map(v.type.rank) if i in plan.registers else "out")
        for pos in range(len(plan.ops) - 1, -1, -1):
            op = plan.ops[pos]
            if any(r in self.uses for r in op.results):
                getattr(self, "_" + plan.kind[op])(op, pos)
        for a in plan.block.args:
            self._argument(a)
        for v in plan.memory:
            plan.touched.setdefault(plan.base(v), set()).update(u for u, h in self.uses.get(v, ()) if h != "order")
        for item in self.items:
            for v in produced(item):
                if v in plan.memory:
                    plan.touched[plan.base(v)].add(item)
        plan.items = [item for item in self.items if item is not end]
        return plan

    def _argument(self, a: Value) -> None:
        plan, uses = self.plan, self.uses.get(a, [])
        if hows := [h for _, h in uses if isinstance(h, str)]:
            plan.memory_args[a] = "dense" in hows
        writers = [item for item, how in uses if how == "inplace"]
        winner: Item | None = None
        if a in plan.donated and writers:
            last = plan.base(plan.outputs[plan.donated[a]])
            for w in writers:
                continues = last in [x.result for x in w.writes] if isinstance(w, Nest) else isinstance(w, Kern) and w.pairs.get(a) is last
                if continues and all(self._reads_before(u, h, w, a) for u, h in uses if u is not w or h != "inplace"):
                    winner = w
        self._grant(a, winner, writers, -1)

    # ---- views, aliases, sources ----------------------------------------------------------------------------------------------------

    def _view(self, op: Op, pos: int) -> None:
        v, src, view = op.result, op.operands[0], self.plan.views[op]
        alias = op.name == "reshape"
        self._split_copies(v, [u for u in self.uses[v] if u[1] == "inplace" or (not alias and u[1] in ("dense", "out"))], pos)
        for item, how in self.uses[v]:
            self._request(src, item, compose(view, src.type.shape, how) if isinstance(how, tuple) else how)

    def _split_copies(self, v: Value, uses: Sequence[tuple[Item, How]], pos: int) -> None:
        """Readers that need memory of their own get copies, which read ``v`` through a map instead."""
        self.uses[v] = [u for u in self.uses[v] if u not in uses]
        shared = [u for u in uses if u[1] != "inplace"]
        if shared:
            self._copy_for(v, shared, pos)
        for u in uses:
            if u[1] == "inplace":
                self._copy_for(v, [u], pos)

    def _copy_for(self, v: Value, uses: list[tuple[Item, How]], pos: int, order: Sequence[tuple[Item, How]] = ()) -> Value:
        """A stored copy of ``v`` for these readers, made before the items in ``order``."""
        op = Op("stop_gradient", [v], [v.type])
        new, plan = op.result, self.plan
        plan.kind[op] = "ew"
        self._as(new, v)
        for item, how in uses:
            if how == "inplace":
                self.taken[(item.id, v)] = new
                self._set_over(item, v, new)
            else:
                plan.replaced[(item.id, v)] = new
        self.uses[new] = [*uses, *order]
        self._ew(op, pos)
        return new

    def _as(self, copy: Value, v: Value) -> None:
        """What is known of a value, of its copy."""
        self.src[copy], self.cost[copy], self.joints[copy], self.in_line[copy] = self.src[v], self.cost[v], self.joints[v], self.in_line[v]

    def _set_over(self, item: Item, v: Value, base: Value) -> None:
        pairs = {w.operands[0]: w.result for w in item.writes} if isinstance(item, Nest) else item.pairs if isinstance(item, Kern) else {}
        for operand, result in pairs.items():
            if v in (operand, self.taken.get((item.id, operand))):
                self.plan.over[result] = base

    def _alias(self, op: Op, pos: int) -> None:
        v, src = op.result, op.operands[0]
        self._split_copies(v, [u for u in self.uses[v] if u[1] == "inplace"], pos)
        for item, how in self.uses[v]:
            self._request(src, item, "out" if how == "out" else "dense")

    def _idx(self, op: Op, pos: int) -> None:
        # Read through a map it is computed on the spot; in memory each writer gets its own.
        mem = [u for u in self.uses[op.result] if isinstance(u[1], str)]
        own = [u for u in mem if u[1] != "inplace"]
        first = own or mem[:1]
        if first:
            self.uses[op.result] = first
            self._ew(op, pos)
        for u in mem:
            if u not in first:
                self._copy_for(op.result, [u], pos)

    # ---- elementwise ----------------------------------------------------------------------------------------------------------------

    def _readers(self, v: Value, pos: int) -> list[tuple[Item, How]]:
        """Who reads ``v``, itself and not a copy: rows of a piece lie among those of the others in a concatenation, and are no memory for who wants them in turn."""
        whole, dim, _ = self.plan.claims.get(v, (v, 0, 0))
        if not size_one(v.type.shape[:dim]):
            self._split_copies(v, [u for u in self.uses[v] if u[1] in ("dense", "out") and u[0].op is not whole.op], pos)
        if any(h == "inplace" for _, h in self.uses[v]):
            self._inplace(v, pos)
        return self.uses[v]

    def _inplace(self, v: Value, pos: int) -> None:
        """Decides which writer may overwrite the buffer of ``v``; the others get copies, made before it writes."""
        uses = self.uses[v]
        writers = [item for item, how in uses if how == "inplace"]
        winner = None
        if v not in self.plan.claims and v not in self.out_roots:
            winner = next((w for w in writers if all(self._reads_before(u, h, w, v) for u, h in uses if u is not w or h != "inplace")), None)
        self._grant(v, winner, writers, pos)

    def _grant(self, v: Value, winner: Item | None, writers: Sequence[Item], pos: int) -> None:
        """``winner`` overwrites ``v`` after all other readers; the other writers get copies."""
        uses = self.uses.get(v, [])
        if winner is not None:
            self._set_over(winner, v, v)
        for w in writers:
            if w is not winner:
                uses.remove((w, "inplace"))
                order: list[tuple[Item, How]] = [] if winner is None else [(winner, "order")]
                self._copy_for(v, [(w, "inplace")], pos, order)
        if winner is not None:
            for u, h in list(uses):
                if h != "order":
                    self._before(u, winner)

    def _reads_before(self, reader: Item, how: How, writer: Item, v: Value) -> bool:
        if how == "order":
            return True
        if reader is writer:
            if isinstance(writer, Kern):
                return isinstance(how, tuple)  # a number that a loop or a branch is given: it is read before
            return isinstance(writer, Nest) and isinstance(how, tuple) and len(writer.writes) == 1 and how == _written_map(writer.writes[0])
        return not writer.desc >> reader.id & 1

    def _ew(self, op: Op, pos: int) -> None:
        v = op.result
        uses = self._readers(v, pos)
        if not uses:
            return
        mem = any(isinstance(h, str) for _, h in uses)
        if mem:
            self.plan.memory[v] = None
        if v in self.order and v not in self.plan.claims and not any(h in ("dense", "out", "inplace") for _, h in uses):
            self.plan.order[v] = self.order[v]
        if size_one(v.type.shape):
            item = self._item(Scalar(len(self.items), pos, op))
            self._place(item, uses)
            self._operands(op, item, zero_map(v.type.rank))
            return
        cheap = not mem and (self.cost[v] <= CHEAP or self._is_narrow(v))
        maps: dict[Item, set[Map]] = {}
        for item, how in uses:
            if isinstance(how, tuple):
                maps.setdefault(item, set()).add(how)
        cheap = cheap or not mem and len(maps) > 1 and self.cost[v] <= _NEAR and all(isinstance(n, Nest) and not self.src[v] & ~n.src for n in maps)
        cheap = cheap or not mem and any(len(ms) > 1 and _shifts(ms) and self.cost[v] * len(ms) <= _AGAIN for ms in maps.values())
        for item, ms in maps.items():
            if isinstance(item, Nest) and len(ms) == 1 and self._fold(op, item, next(iter(ms)), uses, cheap):
                return
        if cheap:
            for item, ms in maps.items():
                for m in ms:
                    self._operands(op, item, m)
            return
        self._root(op, pos, uses)

    def _is_narrow(self, v: Value) -> bool:
        """Whether a few additions and products give it from one array that is no larger: that is stored in its place, if at all."""
        return self.narrow.get(v, CHEAP + 1) <= CHEAP

    def _operands(self, op: Op, item: Item, m: Map) -> None:
        for o in op.operands:
            self._request(o, item, m)

    def _place(self, item: Item, uses: Iterable[tuple[Item, How]]) -> None:
        for user in {id(u): u for u, _ in uses}.values():
            self._before(item, user)

    def _fold(self, op: Op, nest: Nest, m: Map, uses: list[tuple[Item, How]], cheap: bool) -> bool:
        """Computes the op inside ``nest`` at map ``m`` if nothing is then computed twice; stores it there for the other readers."""
        v = op.result
        missing = {d for d, n in enumerate(nest.space) if n != 1} - map_dims(m)
        if any(u is nest and isinstance(h, str) for u, h in uses) or len(nest.sequence) >= _MEMBERS:
            return False
        if missing and not self._outer_level(v, nest, m):
            return False
        others = [u for u in uses if u[0] is not nest]
        if others:
            if not self._keeps(nest, v, m, ties(nest.kinds.values())):
                return False
            if cheap or not is_permutation(m, v.type.shape, nest.space) or not self._may_precede(nest, [u for u, _ in others]):
                return False
            self.plan.memory[v] = None
            nest.stored.append(v)
            self._place(nest, others)
        nest.members[v] = m
        nest.sequence.append(v)
        nest.src |= self.src[v]
        self._operands(op, nest, m)
        return True

    def _outer_level(self, v: Value, nest: Nest, m: Map) -> bool:
        dims = map_dims(m)
        if nest.epilogue is not None or not dims:
            return False
        if nest.outer is not None:
            return dims == set(nest.outer)
        if not may_split(nest.kinds.values(), dims):
            return False
        for red in self.rows.get(v, ()):
            x = red.operands[0].type
            if x.shape == nest.space and kept(red) == dims and not far_rows(x, self._order(red.operands[0]), dims):
                nest.outer = tuple(sorted(dims))
                return True
        return False

    def _root(self, op: Op, pos: int, uses: list[tuple[Item, How]]) -> None:
        v = op.result
        nest = self._home(op, v, uses) or self._nest(v.type.shape, pos, v.type.layout)
        self.plan.memory[v] = None
        nest.members[v] = identity(v.type.shape)
        nest.sequence.append(v)
        nest.stored.append(v)
        nest.src |= self.src[v]
        self._place(nest, uses)
        self._operands(op, nest, identity(v.type.shape))

    def _nest(self, space: tuple[DimLike, ...], pos: int, layout: Any) -> Nest:
        nest: Nest = self._item(Nest(len(self.items), pos, space))
        nest.layout = layout
        self.spaces.setdefault(space, []).append(nest)
        return nest

    def _home(self, op: Op, over: Value, uses: list[tuple[Item, How]]) -> Nest | None:
        """A nest over the space of ``over`` and some of the same data that may run before all readers, for ``op``."""
        users, space, layout = [u for u, _ in uses], over.type.shape, over.type.layout
        for nest in reversed(self.spaces.get(space, ())[-_KEEP:]):
            if nest.layout != layout or not nest.src & self.src[over] or nest.epilogue is not None or nest.writes or not self._may_precede(nest, users):
                continue
            if self._parts(nest, self.src[over], users) or len(nest.sequence) >= _MEMBERS or len(nest.reductions) >= _SUMS:
                continue
            if self._joins(op, nest) if over is not op.result else self._keeps(nest, over, identity(space), ties(nest.kinds.values())):
                return nest
        return None

    def _joins(self, op: Op, nest: Nest) -> bool:
        """Whether a reduction may be made in a nest, as far as the order of its sums goes."""
        x = op.operands[0]
        if mixes(nest, op) or not ties(nest.kinds.values()) <= self.joints[x]:
            return False
        return sum_size(op) is None or self._suits(nest, tied(x.type, op.attrs["dims"]))

    def _parts(self, nest: Nest, src: int, users: Sequence[Item]) -> bool:
        """Whether what joins ``nest`` would put it between a reduction and a nest over the same data, which then could not compute it: a loss and its gradient."""
        theirs, own = nest.src & ~src, src & ~nest.src
        for bit, (shape, data) in self.bits.items() if theirs | own else ():
            for n in self.spaces.get(shape, ())[-_KEEP:] if (theirs | own) & bit else ():
                if n is not nest and n.src & data and (nest.desc >> n.id & 1 if own & bit else any(u is n or u.desc >> n.id & 1 for u in users)):
                    return True
        return False

    # ---- reductions and kernels -------------------------------------------------------------------------------------------------------

    def _red(self, op: Op, pos: int) -> None:
        v, x = op.result, op.operands[0]
        uses = self._readers(v, pos)
        if not uses:
            return
        nest = self._row_nest(op, uses)
        stored = nest is None and sum_size(op) is not None and (x in self.of_product and not by_blocks(op) or not innermost(x.type) <= self.in_line[x])
        if nest is None:
            nest = self._home(op, x, uses) or self._nest(x.type.shape, pos, x.type.layout)
        others = [u for u in uses if u[0] is not nest]
        if not size_one(v.type.shape) and (others or not self._row_of(op, nest)) or any(isinstance(h, str) for _, h in others):
            self.plan.memory[v] = None
        nest.reductions.append(op)
        nest.kinds.setdefault((op.name, x.type, op.attrs["dims"], v.type.dtype), op)
        nest.sequence.append(v)
        nest.src |= self.src[x]
        self._place(nest, others)
        self._request(x, nest, "dense" if stored else identity(x.type.shape))

    def _row_of(self, op: Op, nest: Nest) -> bool:
        return nest.outer is not None and set(nest.outer) == kept(op)

    def _row_nest(self, op: Op, uses: list[tuple[Item, How]]) -> Nest | None:
        """The nest that reads this reduction row by row, if it can be computed there."""
        v, x = op.result, op.operands[0].type
        if size_one(v.type.shape):
            return None
        want = tuple((0, ((d, 1),)) if x.shape[d] != 1 else (0, ()) for d in range(x.rank) if d not in op.attrs["dims"])
        outer = tuple(sorted(kept(op)))
        summed = sum_size(op) is not None
        if far_rows(x, self._order(op.operands[0]), outer) or (summed and not innermost(x) <= self.in_line[op.operands[0]]):
            return None
        if summed and not is_run(x, op.attrs["dims"]) and sum(g[0] in op.attrs["dims"] for g in groups(x, op.attrs["dims"])) > 1:
            return None
        for item, _ in uses:
            if not isinstance(item, Nest) or item.space != x.shape or item.outer not in (None, outer) or item.epilogue is not None:
                continue
            if mixes(item, op) or not may_split(item.kinds.values(), outer):
                continue
            if any(u is item and h != want for u, h in uses) or not self._may_precede(item, [u for u, _ in uses if u is not item]):
                continue
            item.outer = outer
            return item
        return None

    def _constant(self, op: Op, pos: int) -> None:
        """Read-only data: readers find it in memory, whoever writes gets a copy."""
        v = op.result
        self._split_copies(v, [u for u in self.uses[v] if u[1] == "inplace"], pos)
        self.plan.memory[v] = None
        self._place(self._item(Kern(len(self.items), pos, op)), self.uses[v])

    def _kern(self, op: Op, pos: int) -> None:
        if op.name == "constant":
            self._constant(op, pos)
            return
        for r in op.results:
            if any(h == "inplace" for _, h in self.uses.get(r, ())):
                self._inplace(r, pos)
            self.plan.memory[r] = None
        uses = [u for r in op.results for u in self.uses.get(r, ())]
        if op.name in WRITES:
            self._write(op, pos, uses)
            return
        nest = self._epilogue(op, uses) if op.name in ("dot", "conv") else None
        if nest is not None:
            nest.epilogue = op
            others = [u for u in uses if u[0] is not nest]
            if others:
                self._place(nest, others)
            else:
                del self.plan.memory[op.result]
            for o in op.operands:
                self._request(o, nest, "strided")
            return
        item = self._item(Kern(len(self.items), pos, op))
        self._place(item, uses)
        if op.name == "concatenate":
            self._pieces(op, item, pos)
            return
        pairs, last = dict[int, int](op.attrs.get("pairs", ())), 0
        if op.name in ("scatter", "scatter_add"):
            pairs = {0: 0}
        elif op.name == "scan":
            last = op.attrs["consts"] + op.attrs["carry"]
            pairs = {op.attrs["consts"] + j: j for j in range(op.attrs["carry"])}
        for i, o in enumerate(op.operands):
            if size_one(o.type.shape) and (op.name == "cond" or op.name == "scan" and i < last):  # what a scan runs over is read in memory
                self._request(o, item, zero_map(o.type.rank))
            elif i in pairs:
                self._overwrite(item, i, op.results[pairs[i]], pos)
            elif i == 0 and "form" in op.attrs:
                self._request(o, item, "dense")
            else:
                self._request(o, item, "strided")

    def _epilogue(self, op: Op, uses: list[tuple[Item, How]]) -> Nest | None:
        """The nest that reads this product element by element, before all others: it runs on each block while that is in cache. A convolution's is its only reader."""
        v, whole = op.result, op.name == "conv"
        if (v.type.rank != 2 and not whole) or size_one(v.type.shape):
            return None
        for nest in dict.fromkeys(u for u, _ in uses):
            if not isinstance(nest, Nest) or nest.space != v.type.shape or any(h != identity(v.type.shape) for u, h in uses if u is nest):
                continue
            plain = nest.epilogue is None and nest.outer is None and not nest.writes and (not nest.reductions if whole else nest.layout is None)
            others = [u for u, _ in uses if u is not nest]
            if plain and all(sum_size(r) is None or by_blocks(r) for r in nest.reductions) and not (whole and others) and self._may_precede(nest, others):
                return nest
        return None

    def _overwrite(self, item: Kern, i: int, result: Value, pos: int) -> None:
        """Operand ``i`` and ``result`` share a buffer; an operand given twice is copied first."""
        o = item.args[i]
        if o in item.pairs:
            copy = Op("stop_gradient", [o], [o.type])
            self.plan.kind[copy], item.args[i] = "ew", copy.result
            self._as(copy.result, o)
            item.pairs[copy.result], self.plan.over[result] = result, copy.result
            self.uses[copy.result] = [(item, "dense")]
            self._ew(copy, pos)
            return
        item.pairs[o] = result
        self._request(o, item, "inplace")

    def _write(self, op: Op, pos: int, uses: list[tuple[Item, How]]) -> None:
        x, v = op.operands
        nest = self._nest(v.type.shape, pos, v.type.layout)
        nest.writes.append(op)
        self._place(nest, uses)
        self._request(x, nest, "inplace")
        self._request(v, nest, identity(v.type.shape))

    def _pieces(self, op: Op, item: Item, pos: int) -> None:
        plan, dim = self.plan, op.attrs["dim"]
        start: DimLike = 0
        for p in op.operands:
            direct = p.op is not None and plan.kind.get(p.op) in ("ew", "red") and p not in plan.claims and p not in self.out_roots
            made = Op("stop_gradient", [p], [p.type])
            piece = p if direct else made.result
            plan.claims[piece] = (op.result, dim, start)
            self._request(piece, item, "dense")
            if not direct:
                plan.kind[made] = "ew"
                self._as(piece, p)
                self._ew(made, pos)
            start = start + p.type.shape[dim]


def _written_map(op: Op) -> Map | None:
    """Where the value of an insert goes in the array as it is, if that is a map."""
    shows = form_of(op).map
    return None if shows is None else compose(ViewMap(tuple(o for o, _ in shows), tuple(t for _, t in shows)), op.result.type.shape, write_map(op))


def fuse(plan: Plan) -> tuple[Plan, Uses]:
    """What runs as one loop nest, and which values live in memory; items in any order. With it who reads what, and how."""
    made = _Analysis(plan)
    return made.run(), made.uses
