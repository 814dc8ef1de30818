"""What ``aot.build`` compiles: a function traced on declared types, and its derivatives with all results of one forward pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from aotgrad.codegen.cabi import Guard
from aotgrad.ir import Block, Builder, Func, TensorType, Value, dims
from aotgrad.ir.dims import DimLike
from aotgrad.ir.transforms.cleanup import standard
from aotgrad.ir.transforms.differentiate import differentiate, jvp_func, vjp_inline
from aotgrad.ir.transforms.rewrite import close_over, copy_ops, decompose_block, free_values, substitute_func
from aotgrad.ir.transforms.stabilise import stable
from aotgrad_runtime import modes
from aotgrad_runtime.dtypes import int64
from aotgrad_runtime.errors import AotgradError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.records import record
from aotgrad_runtime.trees import Leaf, Node, leaves

from .aot_calls import Wanted, node_of
from .explained import explained_with_line
from .front import unforeseen
from .gathering import gathering
from .pytree import TreeDef, tree_flatten, tree_unflatten, with_numbers
from .randomness import States
from .sizes import TracedNumber
from .subtrace import as_value
from .trace import Trace, TracedArray, raised_at, tracing
from .watch import survey

__all__ = ["Declared", "Named", "Program", "Tree", "gradient", "second", "tangent", "trace", "value"]

Named = tuple[str, TensorType, str]
"""Name, type and meaning of an array parameter."""


class Tree:
    """One argument: the types of its leaves, and its structure."""

    def __init__(self, types: list[TensorType], shape: TreeDef) -> None:
        self.types, self.shape = types, shape


class Declared:
    """The arguments as the user wrote them, flattened: ``leaves`` are (name, type), ``paths`` how a caller would write them, ``nodes`` the tree of each argument;
    ``symbols`` the sizes in order of first appearance."""

    def __init__(self, args: Sequence[tuple[str, Tree]]) -> None:
        self.args = list(args)
        self.leaves: list[tuple[str, TensorType]] = []
        self.owner: list[str] = []
        self.paths: list[str] = []
        self.nodes: list[tuple[str, Node]] = []
        for name, tree in self.args:
            node = node_of(tree.shape, iter(range(len(self.leaves), len(self.leaves) + len(tree.types))), name)
            self.nodes.append((name, node))
            self.paths += [leaf.path for leaf in leaves(node)]
            paths = _paths(tree.shape, name)
            self.leaves += zip(paths, tree.types)
            self.owner += [name] * len(paths)
        self.symbols = tuple(dict.fromkeys(s for _, t in self.leaves for d in t.shape for s in dims.symbols_of(d)))

    def select(self, what: str, names: Sequence[str]) -> list[int]:
        """Leaves that the names mean: an argument means all its floating-point leaves."""
        out: list[int] = []
        for name in names:
            found = self._named(name)
            if not found:
                raise AotgradValueError(f"{what}: there is no argument {name!r}; the arguments are {', '.join(n for n, _ in self.leaves) or 'none'}")
            kept = [i for i in found if self.leaves[i][1].dtype.is_differentiable]
            if not kept:
                raise AotgradTypeError(f"{what}: argument {name} is {self.leaves[found[0]][1].dtype.name}; a derivative needs a floating-point argument (f64 or f32)")
            out += [i for i in kept if i not in out]
        return out

    def _named(self, name: str) -> list[int]:
        """Leaves that a name means: an argument's, or the one that is called so in C or in Python."""
        own = [i for i, owner in enumerate(self.owner) if owner == name]
        return own or [i for i, (leaf, _) in enumerate(self.leaves) if name in (leaf, self.paths[i])]

    def wanted(self, names: Sequence[str], order: Sequence[str]) -> list[Wanted]:
        """What the names mean; ``order``: the parameters of the function."""
        out = []
        for name in names:
            i = self._named(name)[0]
            owner = self.owner[i]
            label, tree = (name, dict(self.nodes)[name]) if name == owner else (self.leaves[i][0], Leaf(i))
            out.append(Wanted(label, tree, order.index(owner)))
        return out

    def inputs(self) -> list[Named]:
        """The inputs of every function."""
        return [(name, t, "") for name, t in self.leaves]


def _paths(tree: TreeDef, base: str) -> list[str]:
    if tree.kind is None:
        return [base]
    if tree.kind == "none":
        return []
    keys: Sequence[Any] = range(len(tree.children))
    if tree.meta == ("named",) and issubclass(tree.kind, tuple):
        keys = tree.kind._fields
    elif tree.meta:
        keys = tree.meta[1:] if tree.meta[0] == "dataclass" and not issubclass(tree.kind, dict) else tree.meta
    return [p for k, c in zip(keys, tree.children) for p in _paths(c, f"{base}_{k}")]


@record(frozen=True)
class Program:
    """The traced function: ``func`` in primitive ops, sizes known to be equal merged; ``names`` of its results, and their tree; what every call must satisfy."""

    func: Func
    names: tuple[str, ...]
    guards: tuple[Guard, ...]
    results: Node


# ---- tracing ----------------------------------------------------------------------------------------------------------------------------

@modes.intact
def trace(f: Callable[..., Any], name: str, declared: Declared, again: bool = False) -> Program:
    """Runs ``f`` on traced values of the declared types. Raises ``AotgradError`` with the user's line where a size is needed as a number."""
    here = Trace(name, hidden=False)
    given: list[tuple[str, Any]] = []
    for arg, tree in declared.args:
        given.append((arg, tree_unflatten(tree.shape, [here.argument(t, TracedArray) for t in tree.types])))
    positional, keywords = _bound(f, name, given)
    states = States(survey(f)[0])
    try:
        with tracing(here), gathering():
            found, tree_out = tree_flatten(f(*positional, **keywords))
            here.block.outputs = [as_value(x, here) for x in found]
    except Exception as error:
        explained = explained_with_line(error)
        if explained is not error:
            try:
                raise explained from None
            finally:
                del explained
        if unforeseen(error) and _numbers_help(f, name, declared):
            where = "" if isinstance(error, AotgradError) else f"{raised_at(error)}: "
            raise AotgradTypeError(f"{where}{error}. A function called there needs a size as a Python integer, and {', '.join(declared.symbols)} "
                                   "are known only when the code runs; give the argument a fixed size, or compute the numbers outside and pass them") from error
        raise
    if not again:
        states.check(name, lambda: trace(f, name, declared, again=True))
    if not found:
        raise AotgradTypeError(f"{name} returns nothing; return arrays or numbers")
    plain = [type(x) in (bool, int, float) or isinstance(x, dims.Dim) or isinstance(x, TracedNumber) and x._weak for x in found]
    results = node_of(with_numbers(tree_out, iter(plain)), iter(range(len(found))), f"{name}: the result", result=True)
    func = substitute_func(Func(name, here.block), here.equal.names)
    return Program(stable(func), tuple(_result_names(tree_out)), tuple(_guards(here, declared)), results)


def _numbers_help(f: Callable[..., Any], name: str, declared: Declared) -> bool:
    """Whether ``f``, which failed, can be traced once sizes are numbers."""
    if not declared.symbols:
        return False
    env = dict.fromkeys(declared.symbols, 8)
    args = [(arg, [TensorType(tuple(dims.substitute(d, env) for d in t.shape), t.dtype, t.layout) for t in tree.types], tree.shape) for arg, tree in declared.args]
    try:
        trace(f, name, Declared([(arg, Tree(types, shape)) for arg, types, shape in args]))
    except Exception:
        return False
    return True


def _bound(f: Callable[..., Any], name: str, given: Sequence[tuple[str, Any]]) -> tuple[list[Any], dict[str, Any]]:
    """How to call ``f``: by keyword where it has such parameters, else by position."""
    try:
        parameters = inspect.signature(f).parameters
    except (TypeError, ValueError):
        return [x for _, x in given], {}
    if any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        return [x for _, x in given], {}
    rest = dict(given)
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for p in parameters.values():
        if p.kind is p.VAR_KEYWORD:
            keywords.update(rest)
            rest = {}
        elif p.name in rest:
            if p.kind is p.POSITIONAL_ONLY:
                positional.append(rest.pop(p.name))
            else:
                keywords[p.name] = rest.pop(p.name)
        elif p.default is p.empty:
            hint = "; it is a method: build a bound one, such as model.f of an object in the file" if p.name == "self" else f"; add '{p.name}: f64[...]'"
            raise AotgradValueError(f"args: {name} needs a type for its parameter {p.name}{hint}")
    if rest:
        raise AotgradValueError(f"args: {name} has no parameter {next(iter(rest))!r}; it takes {', '.join(parameters) or 'none'}")
    return positional, keywords


def _result_names(tree: TreeDef) -> list[str]:
    if tree.kind is None:
        return ["value"]
    plain = tree.kind in (tuple, list)
    return [n[1:] if not plain else f"value{n}" for n in _paths(tree, "")]


def _whose(sizes: Sequence[DimLike], declared: Declared) -> str:
    """Which arguments the symbols of sizes come from."""
    first: dict[str, str] = {}
    for name, t in declared.leaves:
        for axis, d in enumerate(t.shape):
            for symbol in dims.symbols_of(d):
                first.setdefault(symbol, f"{symbol} is dim {axis} of {name}" if d == dims.symbol(symbol) else f"dim {axis} of {name} is {dims.to_text(d)}")
    found = [first[symbol] for symbol in dict.fromkeys(symbol for d in sizes for symbol in sorted(dims.symbols_of(d))) if symbol in first]
    return f", where {' and '.join(found)}" if found else ""


def _guards(here: Trace, declared: Declared) -> list[Guard]:
    out = []
    for symbol, value in here.equal.names.items():
        owner = next(name for name, t in declared.leaves for d in t.shape if symbol in dims.symbols_of(d))
        if isinstance(value, int):
            raise AotgradValueError(f"size {symbol} of argument {owner} meets size {value}, so only {symbol} = {value} would work; write {value} in the argument's type")
        out.append(Guard(dims.symbol(symbol), value, f"size {symbol} must be equal to {value}"))
    least = {place: (here.canonical(size), bound) for size, (bound, place) in here.least.items()}
    for i, (a, b, loc) in enumerate(here.guards):
        left, right = here.canonical(a), here.canonical(b)
        if left != right:
            size, bound = least.get(i, (left, right))
            said = f"{dims.to_text(size)} must be {'at least' if i in least else 'equal to'} {dims.to_text(bound)}"
            place = f" ({str(loc).rpartition('/')[2]})" if loc is not None else ""
            out.append(Guard(left, right, f"{said}{_whose((size, bound), declared)}{place}"))
    return out


# ---- entry points -------------------------------------------------------------------------------------------------------------------------

def _results(program: Program) -> list[Named]:
    many = len(program.names) > 1
    return [(n, t, "") if many else (n, t, "The value.") for n, t in zip(program.names, program.func.out_types)]


def value(program: Program, declared: Declared, chosen: Sequence[int]) -> tuple[Func, list[Named], list[Named]]:
    """The function itself."""
    return Func(program.func.name, program.func.body), declared.inputs(), _results(program)


def _scalar(program: Program, what: str) -> None:
    t = program.func.out_types[0]
    if t.shape or not t.dtype.is_differentiable:
        found = f"{t.dtype.name}[{', '.join(map(str, t.shape))}]"
        raise AotgradTypeError(f"{what}: the first result of {program.func.name} is {found}; it must be one floating-point number. Reduce it (.sum()), or use jvp")


def _value_and_gradient(program: Program, chosen: Sequence[int], what: str) -> Func:
    """(args) -> (results, gradients of the first result)."""
    _scalar(program, what)
    block = Block(program.func.arg_types)
    b = Builder(block)
    ins = list(block.args)
    order = sorted(chosen)
    outs, pullback = vjp_inline(b, program.func.body, ins, [i in chosen for i in range(len(ins))])
    found = dict(zip(order, pullback([b.full_like(outs[0], 1), *[None] * (len(outs) - 1)])))
    grads = [found[i] for i in chosen]
    block.outputs = [*outs, *(b.zeros(ins[i]) if g is None else g for i, g in zip(chosen, grads))]
    return standard(Func(program.func.name, block))


def _gradients(program: Program, declared: Declared, chosen: Sequence[int]) -> list[Named]:
    first = program.names[0]
    types = program.func.arg_types
    return [(f"grad_{declared.leaves[i][0]}", types[i], f"Gradient of {first} for {declared.leaves[i][0]}.") for i in chosen]


def gradient(program: Program, declared: Declared, chosen: Sequence[int]) -> tuple[Func, list[Named], list[Named]]:
    """Results, then gradients."""
    return _value_and_gradient(program, chosen, "grad"), declared.inputs(), [*_results(program), *_gradients(program, declared, chosen)]


def tangent(program: Program, declared: Declared, chosen: Sequence[int]) -> tuple[Func, list[Named], list[Named]]:
    """Inputs and tangents to results and their tangents, in one forward pass."""
    active = [i in chosen for i in range(len(program.func.args))]
    func = jvp_func(program.func, active)
    order = sorted(chosen)  # jvp_func takes tangents in the order of the arguments
    count = len(active)
    moved = {i: func.body.args[count + k] for k, i in enumerate(order)}
    func.body.args[count:] = [moved[i] for i in chosen]
    for i, a in enumerate(func.body.args):
        a.index = i
    names = declared.leaves
    ins = [*declared.inputs(), *((f"{names[i][0]}_t", names[i][1], f"Tangent of {names[i][0]}.") for i in chosen)]
    floats = [(n, t) for n, t in zip(program.names, program.func.out_types) if t.dtype.is_differentiable]
    outs = [*_results(program), *((f"{n}_t", t, f"Derivative of {n} along the tangents.") for n, t in floats)]
    return standard(Func(func.name, func.body)), ins, outs


def second(program: Program, declared: Declared, chosen: Sequence[int]) -> tuple[Func, list[Named], list[Named]]:
    """Results, gradients, and second derivatives: the gradient's linear part, swept over a basis of each argument."""
    first = _value_and_gradient(program, chosen, "hess")
    block, aside = Block(first.arg_types), Block()
    b = Builder(block)
    ins = list(block.args)
    tangents = [Value(x.type) if i in chosen else None for i, x in enumerate(ins)]
    outs, moved = differentiate(b, Builder(aside), decompose_block(first.body), ins, tangents)
    grads = outs[len(program.names):]
    changes = moved[len(program.names):]
    results, named = list(outs), [*_results(program), *_gradients(program, declared, chosen)]
    for k, i in enumerate(chosen):
        wanted = [(changes[m], grads[m]) for m in range(k, len(chosen))]
        rows = _rows(b, aside, [t for t in tangents if t is not None], _tangent_of(tangents, i), wanted, ins[i].type)
        for m, row in zip(range(k, len(chosen)), rows):
            a, c = declared.leaves[i][0], declared.leaves[chosen[m]][0]
            results.append(row)
            named.append((f"hess_{a}_{c}" if a != c else f"hess_{a}", row.type, f"Second derivatives of {program.names[0]} for {a} and {c}."))
    block.outputs = results
    return standard(Func(program.func.name, block)), declared.inputs(), named


def _tangent_of(tangents: Sequence[Value | None], i: int) -> Value:
    found = tangents[i]
    assert found is not None
    return found


def _rows(b: Builder, aside: Block, tangents: Sequence[Value], own: Value, wanted: Sequence[tuple[Value | None, Value]], t: TensorType) -> list[Value]:
    """The linear part on every basis vector of ``own``: per wanted (tangent, gradient) an array of shape ``t.shape + gradient.shape``."""

    def push(inner: Builder, direction: Value) -> list[Value]:
        env: dict[Value, Value] = {x: direction if x is own else inner.zeros(x) for x in tangents}
        copy_ops(inner, aside.ops, env)
        return [inner.zeros(g) if w is None else env.get(w, w) for w, g in wanted]

    if not t.shape:
        return push(b, b.full_like(t, 1))
    inner, i = Block(), Value(TensorType((), int64))
    ib = Builder(inner)
    flat = ib.iota(shape=(t.size,), dim=0, dtype=int64)
    hot = ib.to_shape(ib.to_dtype(ib.eq(flat, ib.broadcast(i, shape=(t.size,), dims=())), t.dtype), t.shape)
    outs = push(ib, hot if t.layout is None else ib.relayout(hot, layout=t.layout))
    outs = [o if o.type.layout is None else ib.relayout(o, layout=None) for o in outs]
    free = free_values(inner.ops, outs, [i])
    numbers = b.iota(shape=(t.size,), dim=0, dtype=int64)
    body = close_over(inner.ops, [*free, i], outs)
    stacked = b.emit("scan", [*free, numbers], {"consts": len(free), "carry": 0, "length": t.size}, (body,))
    return [b.to_shape(s, (*t.shape, *g.type.shape)) for s, (_, g) in zip(stacked, wanted)]
