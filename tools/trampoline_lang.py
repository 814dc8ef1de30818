"""A tiny language for the trampoline: Python syntax, every value a 64-bit integer, compiled to LLVM text.

Statements: assignment, augmented assignment, ``if``, ``while``, ``break``, ``continue``, ``return``, calls. Expressions: integers, locals, ``+ - * & | ^ << >> ~``,
comparisons (signed), ``and``/``or``/``not`` in conditions, and

* ``i64[p]``, ``i32[p]``, ``i8[p]`` loads (sign-extended) and stores at address ``p``;
* ``NAME`` of a constant, ``STRUCT.field`` (the field's byte offset), ``T.name`` (the address the table holds);
* ``call(f, ...)``, ``call32(f, ...)`` a C function at address ``f`` returning 64 or 32 bits; ``name(...)`` another function of the program;
* ``stack(n)`` fixed and ``alloca(n)`` dynamic stack memory, ``xchg(p, v)`` atomic exchange, ``address(name)`` of a function;
* ``likely(c)``, ``unlikely(c)`` around a condition.

Decorators: ``export`` (callable from outside), ``noinline``. All arguments travel as 64-bit integers, which the calling conventions of 64-bit Linux allow for C's int
and pointers alike.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

__all__ = ["compile_program"]

_WIDTH = {"i64": "i64", "i32": "i32", "i8": "i8"}
_BINARY = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor", ast.LShift: "shl", ast.RShift: "ashr"}
_COMPARE = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "slt", ast.LtE: "sle", ast.Gt: "sgt", ast.GtE: "sge"}
_HEADER = """@ag_table = external hidden constant [{count} x i64]
"""
_FOOTER = """
attributes #0 = {{ nounwind "no-builtins" "target-cpu"="{cpu}" }}
attributes #1 = {{ nounwind noinline "no-builtins" "target-cpu"="{cpu}" }}
!0 = !{{!"branch_weights", i32 2000, i32 1}}
!1 = !{{!"branch_weights", i32 1, i32 2000}}
!2 = !{{}}
"""


class _Function:
    """Compiles one function; ``lines`` collects its body, ``entry`` the allocas."""

    def __init__(self, program: _Program, node: ast.FunctionDef) -> None:
        self.program, self.node = program, node
        self.entry: list[str] = []
        self.lines: list[str] = []
        self.counter = 0
        self.terminated = False
        self.loops: list[tuple[str, str]] = []
        self.locals: set[str] = set()

    def fresh(self, hint: str = "t") -> str:
        self.counter += 1
        return f"{hint}{self.counter}"

    def emit(self, text: str) -> None:
        if self.terminated:
            self.label(self.fresh("dead"))
        self.lines.append("  " + text)

    def value(self, text: str) -> str:
        name = "%" + self.fresh()
        self.emit(f"{name} = {text}")
        return name

    def label(self, name: str) -> None:
        if not self.terminated:
            self.lines.append(f"  br label %{name}")
        self.lines.append(f"{name}:")
        self.terminated = False

    def branch(self, text: str) -> None:
        self.emit(text)
        self.terminated = True

    def fail(self, node: ast.AST, text: str) -> SyntaxError:
        return SyntaxError(f"{self.program.filename}:{getattr(node, 'lineno', 0)}: {text}")

    def compile(self) -> str:
        decorators = {d.id for d in self.node.decorator_list if isinstance(d, ast.Name)}
        names = [a.arg for a in self.node.args.args]
        for name in names:
            self.declare(name)
            self.lines.append(f"  store i64 %arg.{name}, ptr %v.{name}")
        self.block(self.node.body)
        if not self.terminated:
            self.branch("ret i64 0")
        linkage = "hidden" if "export" in decorators else "internal"
        attributes = "#1" if "noinline" in decorators else "#0"
        arguments = ", ".join(f"i64 %arg.{name}" for name in names)
        body = "\n".join(["entry:", *self.entry, *self.lines])
        return f"define {linkage} i64 @{self.node.name}({arguments}) {attributes} {{\n{body}\n}}\n"

    def declare(self, name: str) -> None:
        if name not in self.locals:
            self.locals.add(name)
            self.entry.append(f"  %v.{name} = alloca i64")

    # Statements

    def block(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=[target], value=value):
                self.assign(target, self.expr(value))
            case ast.AugAssign(target=ast.Name() as target, op=op, value=value):
                self.assign(target, self.binary(node, op, self.expr(ast.Name(target.id, ast.Load())), self.expr(value)))
            case ast.If(test=test, body=body, orelse=orelse):
                self.conditional(test, body, orelse)
            case ast.While(test=test, body=body):
                self.loop(test, body)
            case ast.Return(value=value):
                self.branch(f"ret i64 {self.expr(value) if value is not None else '0'}")
            case ast.Break():
                self.branch(f"br label %{self.loops[-1][1]}")
            case ast.Continue():
                self.branch(f"br label %{self.loops[-1][0]}")
            case ast.Expr(value=ast.Constant(value=str())) | ast.Pass():
                pass
            case ast.Expr(value=value):
                self.expr(value)
            case _:
                raise self.fail(node, f"statement {type(node).__name__} is not in the language")

    def assign(self, target: ast.expr, value: str) -> None:
        if isinstance(target, ast.Name):
            self.declare(target.id)
            self.emit(f"store i64 {value}, ptr %v.{target.id}")
            return
        width, pointer = self.place(target)
        if width != "i64":
            value = self.value(f"trunc i64 {value} to {width}")
        self.emit(f"store {width} {value}, ptr {pointer}")

    def conditional(self, test: ast.expr, body: Sequence[ast.stmt], orelse: Sequence[ast.stmt]) -> None:
        yes, no, done = self.fresh("then"), self.fresh("else"), self.fresh("end")
        self.condition(test, yes, no)
        self.label(yes)
        self.block(body)
        if not self.terminated:
            self.branch(f"br label %{done}")
        self.label(no)
        self.block(orelse)
        self.label(done)

    def loop(self, test: ast.expr, body: Sequence[ast.stmt]) -> None:
        head, inside, done = self.fresh("loop"), self.fresh("body"), self.fresh("end")
        self.label(head)
        self.condition(test, inside, done)
        self.label(inside)
        self.loops.append((head, done))
        self.block(body)
        self.loops.pop()
        if not self.terminated:
            self.branch(f"br label %{head}")
        self.label(done)

    def condition(self, node: ast.expr, yes: str, no: str, weights: str = "") -> None:
        match node:
            case ast.Call(func=ast.Name(id="likely" | "unlikely" as name), args=[inner]):
                self.condition(inner, yes, no, ", !prof !0" if name == "likely" else ", !prof !1")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.condition(operand, no, yes)
            case ast.BoolOp(op=op, values=values):
                for inner in values[:-1]:
                    more = self.fresh("and" if isinstance(op, ast.And) else "or")
                    self.condition(inner, *((more, no) if isinstance(op, ast.And) else (yes, more)), weights)
                    self.label(more)
                self.condition(values[-1], yes, no, weights)
            case _:
                self.branch(f"br i1 {self.bit(node)}, label %{yes}, label %{no}{weights}")

    def bit(self, node: ast.expr) -> str:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = self.expr(node.left), self.expr(node.comparators[0])
            return self.value(f"icmp {_COMPARE[type(node.ops[0])]} i64 {left}, {right}")
        return self.value(f"icmp ne i64 {self.expr(node)}, 0")

    # Expressions

    def expr(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=int(number)):
                return str(number)
            case ast.Name(id=name) if name in self.locals:
                return self.value(f"load i64, ptr %v.{name}")
            case ast.Name(id=name) if name in self.program.constants:
                return str(self.program.constants[name])
            case ast.Attribute(value=ast.Name(id=struct), attr=field):
                return self.member(node, struct, field)
            case ast.BinOp(left=left, op=op, right=right):
                return self.binary(node, op, self.expr(left), self.expr(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self.value(f"sub i64 0, {self.expr(operand)}")
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                return self.value(f"xor i64 {self.expr(operand)}, -1")
            case ast.Compare():
                return self.value(f"zext i1 {self.bit(node)} to i64")
            case ast.Subscript():
                width, pointer = self.place(node)
                loaded = self.value(f"load {width}, ptr {pointer}")
                return loaded if width == "i64" else self.value(f"sext {width} {loaded} to i64")
            case ast.Call():
                return self.call(node)
        raise self.fail(node, f"expression {ast.unparse(node)!r} is not in the language")

    def member(self, node: ast.expr, struct: str, field: str) -> str:
        if struct == "T":
            if field not in self.program.table:
                raise self.fail(node, f"the table has no {field!r}")
            slot = f"getelementptr inbounds (i8, ptr @ag_table, i64 {8 * self.program.table.index(field)})"
            return self.value(f"load i64, ptr {slot}, !invariant.load !2")
        if field not in self.program.structs.get(struct, {}):
            raise self.fail(node, f"{struct} has no field {field!r}")
        return str(self.program.structs[struct][field])

    def binary(self, node: ast.AST, op: ast.operator, left: str, right: str) -> str:
        if type(op) not in _BINARY:
            raise self.fail(node, f"operator {type(op).__name__} is not in the language")
        return self.value(f"{_BINARY[type(op)]} i64 {left}, {right}")

    def place(self, node: ast.expr) -> tuple[str, str]:
        match node:
            case ast.Subscript(value=ast.Name(id=width), slice=index) if width in _WIDTH:
                return width, self.value(f"inttoptr i64 {self.expr(index)} to ptr")
        raise self.fail(node, f"{ast.unparse(node)!r} is not a place in memory")

    def call(self, node: ast.Call) -> str:
        if not isinstance(node.func, ast.Name):
            raise self.fail(node, "only names can be called")
        name = node.func.id
        if name == "address":
            return self.value(f"ptrtoint ptr @{ast.unparse(node.args[0])} to i64")
        if name == "stack":
            slot = "%" + self.fresh("mem")
            self.entry.append(f"  {slot} = alloca [{self.expr(node.args[0])} x i8], align 16")
            return self.value(f"ptrtoint ptr {slot} to i64")
        arguments = [self.expr(a) for a in node.args]
        typed = ", ".join(f"i64 {a}" for a in arguments[1:])
        if name in ("call", "call32"):
            width = "i64" if name == "call" else "i32"
            target = self.value(f"inttoptr i64 {arguments[0]} to ptr")
            result = self.value(f"call {width} {target}({typed})")
            return result if width == "i64" else self.value(f"sext i32 {result} to i64")
        if name == "alloca":
            return self.value(f"ptrtoint ptr {self.value(f'alloca i8, i64 {arguments[0]}, align 16')} to i64")
        if name == "xchg":
            pointer = self.value(f"inttoptr i64 {arguments[0]} to ptr")
            return self.value(f"atomicrmw xchg ptr {pointer}, i64 {arguments[1]} acq_rel")
        if self.program.arity.get(name) != len(arguments):
            raise self.fail(node, f"no function {name!r} of {len(arguments)} arguments")
        return self.value(f"call i64 @{name}({', '.join(f'i64 {a}' for a in arguments)})")


class _Program:
    def __init__(self, source: str, filename: str, constants: Mapping[str, int], structs: Mapping[str, Mapping[str, int]], table: Sequence[str]) -> None:
        self.filename, self.constants, self.structs, self.table = filename, constants, structs, table
        self.functions = [node for node in ast.parse(source, filename).body if isinstance(node, ast.FunctionDef)]
        self.arity = {f.name: len(f.args.args) for f in self.functions}

    def exports(self) -> list[str]:
        return [f.name for f in self.functions if any(isinstance(d, ast.Name) and d.id == "export" for d in f.decorator_list)]


def compile_program(
    source: str, filename: str, *, constants: Mapping[str, int], structs: Mapping[str, Mapping[str, int]], table: Sequence[str], cpu: str
) -> tuple[str, list[str]]:
    """LLVM text of the program in ``source``, and the names it exports. ``SyntaxError`` names the line of what is not in the language."""
    program = _Program(source, filename, constants, structs, table)
    bodies = [_Function(program, node).compile() for node in program.functions]
    return _HEADER.format(count=len(table)) + "\n".join(bodies) + _FOOTER.format(cpu=cpu), program.exports()
