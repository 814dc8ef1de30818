"""One kernel function as LLVM text: straight-line ops are looked up in ``ops.TABLE``, structured control becomes blocks and phis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aotgrad_runtime.errors import AotgradNotImplementedError

from ...ir.core import Block, Func, Op, Value
from ..kernel_types import as_ktype
from ..target import Target
from ..vmath import VFunc
from .text import const_text, llvm_type

__all__ = ["FunctionEmitter", "ModuleState", "inner_name"]

CALL_CTX, CALL_INFO = 24, 32  # byte offsets in ag_call
CTX_POLL, CTX_HOOK, CTX_HOOK_STATE = 0, 16, 24  # byte offsets in ag_ctx
INTERRUPTED = 5
# LLVM's scheduler and register allocator take more than linear time in the length of a basic block; at this length 40,000 ops compile twice as fast.
BLOCK_OPS = 200
# Ops of a straight kernel from which it is cut into pieces.
LONG = 2000
# Ops of a straight kernel that is inlined into its entry, which saves half a nanosecond of two.
TINY = 64
# Calls of SIMD functions that are written into one function, outside loops and in them; beyond that code size and compile time are not worth it.
INLINE_OUTSIDE, INLINE_IN_LOOPS = 16, 64


def inner_name(name: str) -> str:
    """The LLVM symbol of a kernel function."""
    return f'"ag_k_{name}"' if not name.isidentifier() else f"ag_k_{name}"


class ModuleState:
    """What the functions of a module share: declarations, SIMD functions, thunks."""

    def __init__(self, funcs: Sequence[Func], target: Target) -> None:
        self.funcs = {f.name: f for f in funcs}
        self.target = target
        self.declares: dict[str, None] = {}
        self.vfuncs: dict[str, VFunc] = {}  # those that are called
        self.written = False  # whether there is one that is not called, but written where it is needed
        self.thunks: dict[str, str] = {}
        self.jobs: list[str] = []  # definitions that parallel loops need

    def declare(self, line: str) -> None:
        """Adds ``declare ...`` once."""
        self.declares[line] = None


class FunctionEmitter:
    """Appends the text of ops to ``lines``. ``names`` maps values to LLVM operands (constants to their text)."""

    def __init__(self, state: ModuleState, status: bool, table: dict[str, Callable[[FunctionEmitter, Op], None]]) -> None:
        self.state, self.status, self.table = state, status, table
        self.lines: list[str] = []
        self.entry: list[str] = []  # allocas and what is read once
        self.names: dict[Value, str] = {}
        self.label = "entry"
        self.count = 0
        self.uses_poll = self.uses_ctx = False
        self.depth = 0  # loops around
        self.title = ""
        self.thread = ""  # in a chunk of a parallel loop: the number of the thread
        self.apart: set[Value] = set()  # buffers that nothing else here points into
        self.inlined = [INLINE_OUTSIDE, INLINE_IN_LOOPS]

    # ---- small helpers ----------------------------------------------------------------------------------------------------------

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def put(self, text: str) -> str:
        """Appends ``%new = text``."""
        self.count += 1
        name = f"%v{self.count}"
        self.lines.append(f"  {name} = {text}")
        return name

    def block(self, label: str) -> None:
        """Starts a basic block."""
        self.lines.append(f"{label}:")
        self.label = label

    def labels(self, *stems: str) -> list[str]:
        """Unused labels."""
        self.count += 1
        return [f"{s}{self.count}" for s in stems]

    def jump(self, label: str) -> None:
        self.lines.append(f"  br label %{label}")

    def branch(self, condition: str, yes: str, no: str) -> None:
        self.lines.append(f"  br i1 {condition}, label %{yes}, label %{no}")

    def name(self, value: Value) -> str:
        """The operand text of a value."""
        return self.names[value]

    def typed(self, value: Value) -> str:
        """``double %x``."""
        return f"{llvm_type(value.type)} {self.names[value]}"

    def alloca(self, text: str, alignment: int = 64) -> str:
        """Stack memory taken once, in the entry block."""
        name = self.fresh()
        self.entry.append(f"  {name} = alloca {text}, align {alignment}")
        return name

    def may_inline(self) -> bool:
        """Whether one more SIMD function is to be written in here."""
        i = min(self.depth, 1)
        self.inlined[i] -= 1
        return self.inlined[i] >= 0

    def write(self, function: VFunc, args: Sequence[str]) -> str:
        """The instructions of a SIMD function, here; gives its result."""
        state = self.state
        state.written = True
        state.vfuncs.update((f.symbol, f) for f in function.deps)
        for line in sorted(function.declares):
            state.declare(line)
        self.count += 1
        lines, result, self.label = function.written(args, self.label, f"m{self.count}.")
        self.lines += lines
        return result

    def intrinsic(self, result: str, name: str, args: Sequence[tuple[str, str]]) -> str:
        """A call of ``@llvm.name`` with (type, operand) pairs, declared once."""
        self.state.declare(f"declare {result} @llvm.{name}({', '.join([t for t, _ in args])})")
        call = f"call {result} @llvm.{name}({', '.join([f'{t} {a}' for t, a in args])})"
        if result == "void":
            self.lines.append("  " + call)
            return ""
        return self.put(call)

    # ---- blocks -----------------------------------------------------------------------------------------------------------------

    def ops(self, block: Block) -> None:
        """Every op of a block (regions by recursion, which is as deep as loops nest)."""
        table, names, left = self.table, self.names, BLOCK_OPS
        for op in block.ops:
            left -= 1
            if left == 0:
                left = BLOCK_OPS
                (label,) = self.labels("more")
                self.jump(label)
                self.block(label)
            if op.name == "arith.constant":
                names[op.results[0]] = const_text(op.attrs["value"], op.results[0].type)
                continue
            emit = table.get(op.name)
            if emit is None:
                raise AotgradNotImplementedError(f"kernel-level op {op.name!r} has no LLVM form; see codegen/kernel_spec.py for those that have")
            emit(self, op)

    def phi(self, value: Value, incoming: Sequence[tuple[str, str]]) -> None:
        name = self.fresh()
        self.names[value] = name
        self.lines.append(f"  {name} = phi {llvm_type(value.type)} {', '.join([f'[ {v}, %{b} ]' for v, b in incoming])}")

    def for_loop(self, op: Op) -> None:
        """``scf.for``: a guard, then a loop tested at its end."""
        names, body = self.names, op.regions[0]
        low, high, step = (names[o] for o in op.operands[:3])
        init = [names[o] for o in op.operands[3:]]
        loop, done = self.labels("for", "done")
        before = self.label
        known = "ag.runs" in op.attrs or _runs(low, high)
        if known:
            self.jump(loop)
        else:
            self.branch(self.put(f"icmp slt i64 {low}, {high}"), loop, done)
        self.block(loop)
        head = len(self.lines)
        self.lines.append("")  # phis come here when the values of the last block are known
        for a in body.args:
            names[a] = self.fresh()
        iv = names[body.args[0]]
        self.depth += 1
        self.ops(body)
        self.depth -= 1
        next_iv = self.put(f"add nsw i64 {iv}, {step}")
        every = int(op.attrs.get("ag.poll", 0)) if self.status else 0
        poll = self._poll(every, loop, before) if every > 1 else []
        out = [names[v] for v in body.outputs]
        again = self.put(f"icmp slt i64 {next_iv}, {high}")
        end = latch = self.label
        if every == 1:
            latch = self._ask_between(again, done)
            self.jump(loop)
        else:
            self.branch(again, loop, done)
        phis = [f"  {iv} = phi i64 [ {low}, %{before} ], [ {next_iv}, %{latch} ]"]
        phis += [f"  {names[a]} = phi {llvm_type(a.type)} [ {i}, %{before} ], [ {o}, %{latch} ]" for a, i, o in zip(body.args[1:], init, out)]
        self.lines[head] = "\n".join(phis + poll)
        self.block(done)
        for r, i, o in zip(op.results, init, out):
            if known:
                names[r] = o
            else:
                self.phi(r, [(i, before), (o, end)])

    def _ask_between(self, again: str, done: str) -> str:
        """Where another round follows, ask ctx->poll first. Gives the label of the block that goes on with the loop."""
        self.uses_poll = self.uses_ctx = True
        ask, call, on = self.labels("ask", "poll", "on")
        self.branch(again, ask, done)
        self.block(ask)
        self.branch("%poll.no", on, call)
        self.block(call)
        self.branch(self.put(f"icmp eq i32 {self._asked()}, 0"), on, "interrupted")
        self.block(on)
        return on

    def _asked(self) -> str:
        """The answer of ctx->poll: a call that leaves the caller's registers alone, where the machine has such calls, so that a loop keeps what it holds in them."""
        way = "preserve_mostcc " if self.state.target.triple.startswith(("x86_64", "aarch64")) else ""
        self.state.declare(f"define internal {way}i32 @ag_ask(ptr %f, ptr %ctx) noinline cold #0 {{\n  %r = call i32 %f(ptr %ctx)\n  ret i32 %r\n}}")
        return self.put(f"call {way}i32 @ag_ask(ptr %poll.f, ptr %ctx) cold")

    def _poll(self, every: int, loop: str, before: str) -> list[str]:
        """At the end of a round: every so many, call ctx->poll and leave when it says so. Gives the phi of the counter."""
        self.uses_poll = self.uses_ctx = True
        ask, call, on = self.labels("ask", "poll", "on")
        counter = self.fresh()
        left = self.put(f"sub i64 {counter}, 1")
        here = self.label
        self.branch(self.put(f"icmp eq i64 {left}, 0"), ask, on)
        self.block(ask)
        self.branch("%poll.no", on, call)
        self.block(call)
        self.branch(self.put(f"icmp eq i32 {self._asked()}, 0"), on, "interrupted")
        self.block(on)
        next_counter = self.put(f"phi i64 [ {left}, %{here} ], [ {every}, %{ask} ], [ {every}, %{call} ]")
        return [f"  {counter} = phi i64 [ {every}, %{before} ], [ {next_counter}, %{on} ]"]

    def if_op(self, op: Op) -> None:
        """``scf.if``."""
        yes, no, done = self.labels("then", "else", "fi")
        has_else = len(op.regions) > 1 and bool(op.regions[1].ops or op.results)
        before = self.label
        self.branch(self.names[op.operands[0]], yes, no if has_else else done)
        ends = [before]
        for label, region in zip((yes, no) if has_else else (yes,), op.regions):
            self.block(label)
            self.ops(region)
            ends.append(self.label)
            self.jump(done)
        self.block(done)
        for i, r in enumerate(op.results):
            self.phi(r, [(self.names[region.outputs[i]], end) for region, end in zip(op.regions, ends[1:])])

    def while_op(self, op: Op) -> None:
        """``scf.while``: ``before`` tests, ``after`` is the body."""
        names, (before, after) = self.names, op.regions
        test, body, done = self.labels("while", "do", "od")
        start = self.label
        self.jump(test)
        self.block(test)
        head = len(self.lines)
        self.lines.append("")
        for a in before.args:
            names[a] = self.fresh()
        self.depth += 1
        self.ops(before)
        condition, passed = names[before.outputs[0]], [names[v] for v in before.outputs[1:]]
        self.branch(condition, body, done)
        names.update(zip(after.args, passed))
        self.block(body)
        self.ops(after)
        self.depth -= 1
        init, back, latch = [names[o] for o in op.operands], [names[v] for v in after.outputs], self.label
        self.jump(test)
        self.lines[head] = "\n".join([f"  {names[a]} = phi {llvm_type(a.type)} [ {i}, %{start} ], [ {o}, %{latch} ]" for a, i, o in zip(before.args, init, back)])
        self.block(done)
        names.update(zip(op.results, passed))

    # ---- whole functions --------------------------------------------------------------------------------------------------------

    def define(self, func: Func) -> str:
        """The definition of a kernel function: its arguments, then ``ptr %call``."""
        params = []
        self.title = func.name
        if "outputs" in func.attrs:
            self.apart = {a for a in func.args if as_ktype(a.type).mem and a is not func.args[-1]}
        for i, a in enumerate(func.args):
            self.names[a] = f"%a{i}"
            noalias = " noalias" if as_ktype(a.type).mem and "outputs" in func.attrs else ""
            params.append(f"{llvm_type(a.type)}{noalias} %a{i}")
        self.ops(func.body)
        outs = func.outputs
        returns = llvm_type(outs[0].type) if outs else "void"
        self.lines.append(f"  ret {returns} {self.names[outs[0]]}" if outs else "  ret void")
        if self.uses_poll:
            self.lines += ["interrupted:", f"  ret i32 {INTERRUPTED}"]
        tiny = " alwaysinline" if len(func.body.ops) <= TINY and not any(op.regions for op in func.body.ops) else ""
        head = f"define internal {returns} @{inner_name(func.name)}({', '.join([*params, 'ptr %call'])}){tiny} #0 {{"
        return "\n".join([head, "entry:", *self.entry, *self.context(), *self.lines, "}"])

    def context(self) -> list[str]:
        """Reads ctx, and its poll, once at the start; jumps on to the body under the label the body believes it starts in."""
        if not self.uses_ctx:
            return []
        lines = [f"  %ctx.at = getelementptr i8, ptr %call, i64 {CALL_CTX}", "  %ctx = load ptr, ptr %ctx.at", "  %ctx.no = icmp eq ptr %ctx, null"]
        if self.uses_poll:
            lines += ["  %poll.ctx = select i1 %ctx.no, ptr @ag_no_ctx, ptr %ctx", "  %poll.f = load ptr, ptr %poll.ctx", "  %poll.no = icmp eq ptr %poll.f, null"]
            self.state.declare("@ag_no_ctx = internal unnamed_addr constant [5 x ptr] zeroinitializer, align 8")
        return lines


def _runs(low: str, high: str) -> bool:
    """Whether a loop between two constants runs at least once."""
    try:
        return int(low) < int(high)
    except ValueError:
        return False
