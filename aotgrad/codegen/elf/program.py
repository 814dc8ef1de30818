"""Joins checked objects into one program: symbol resolution, dropping of unreached sections, placement by kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError
from aotgrad_runtime.records import record

from . import format as elf
from .machines import MACHINES, Machine, Rule, Use
from .reader import ObjectFile, Reloc, Section, Symbol, read_object

KINDS = ("rodata", "text", "relro", "data", "bss")


@record(eq=False)
class Piece:
    """One input section that is kept. ``offset`` is its place in the output section of its kind."""

    owner: ObjectFile
    section: Section
    kind: str
    data: bytearray
    offset: int = 0
    refs: list[tuple[Reloc, Rule, Place]] = field(default_factory=list)

    def where(self, offset: int) -> str:
        """A phrase for messages: the spot ``offset`` bytes into this section."""
        return f"{self.owner.label}, section {self.section.name}+{offset:#x}"


@record(frozen=True)
class Place:
    """Where a symbol lives: in a piece, at a fixed number (``piece`` None), or in another library (``imported``)."""

    name: str
    piece: Piece | None
    value: int
    imported: bool = False
    is_section: bool = False
    size: int = 0
    type: int = elf.STT_NOTYPE


@record
class Program:
    """All that is kept of the inputs, resolved."""

    machine: Machine
    pieces: list[Piece]
    exports: list[Place]
    imports: list[str]
    sizes: dict[str, int]
    aligns: dict[str, int]

    def of_kind(self, kind: str) -> list[Piece]:
        """The pieces of one output section, in order."""
        return [piece for piece in self.pieces if piece.kind == kind]


def check_names(what: str, argument: str, names: Sequence[str]) -> list[str]:
    """``names`` as a list without repetition; AotgradTypeError unless it is a sequence of non-empty strings."""
    if isinstance(names, (str, bytes)) or not all(isinstance(name, str) and name and "\0" not in name for name in names):
        raise AotgradTypeError(f"{what}: {argument} must be a sequence of non-empty names, not {names!r}")
    return list(dict.fromkeys(names))


def build_program(what: str, objects: Sequence[bytes], exports: Sequence[str], imports: Sequence[str] | None) -> Program:
    """Resolve ``objects``; ``imports`` None lets every undefined symbol stay undefined. ``what`` names the caller in messages."""
    if isinstance(objects, (bytes, bytearray, memoryview)) or not all(isinstance(o, (bytes, bytearray, memoryview)) for o in objects):
        raise AotgradTypeError(f"{what}: objects must be a sequence of bytes, one item per object file")
    names = check_names(what, "exports", exports)
    if not objects or not names:
        raise AotgradValueError(f"{what}: give at least one object and one exported name")
    files = [read_object(bytes(data), f"{what}: objects[{index}]") for index, data in enumerate(objects)]
    machines = {file.machine for file in files}
    if len(machines) > 1:
        raise AotgradValueError(f"{what}: the objects are for different machines ({', '.join(sorted(MACHINES[m].name for m in machines))}); build all for one target")
    return _Resolver(what, files, None if imports is None else frozenset(check_names(what, "imports", imports))).run(names)


class _Resolver:
    """Walks from the exports over relocations; what it never meets (unwind tables, notes, unused functions) is left out."""

    def __init__(self, what: str, files: list[ObjectFile], imports: frozenset[str] | None) -> None:
        self.what = what
        self.files = files
        self.machine = MACHINES[files[0].machine]
        self.imports = imports
        self.used_imports: set[str] = set()
        self.missing: dict[str, str] = {}
        self.pieces: dict[tuple[int, int], Piece] = {}
        self.pending: list[tuple[int, Piece]] = []
        self.places: dict[tuple[int, int], Place] = {}
        self.globals = self._globals()

    def run(self, exports: list[str]) -> Program:
        for file in self.files:
            self._refuse_constructors(file)
        absent = [name for name in exports if name not in self.globals]
        if absent:
            raise AotgradValueError(f"{self.what}: no object defines the exported symbol{'s' * (len(absent) > 1)} {', '.join(absent)}")
        places = [self._defined(*self.globals[name]) for name in exports]
        while self.pending:
            self._visit(*self.pending.pop())
        if self.missing:
            listed = "; ".join(f"{name} (used by {where})" for name, where in sorted(self.missing.items()))
            raise AotgradValueError(f"{self.what}: undefined symbol{'s' * (len(self.missing) > 1)}: {listed}; link the object that defines it, or name it in imports=")
        return self._placed(places)

    def _globals(self) -> dict[str, tuple[int, Symbol]]:
        table: dict[str, tuple[int, Symbol]] = {}
        for index, file in enumerate(self.files):
            for symbol in file.symbols:
                if symbol.bind == elf.STB_LOCAL or symbol.section == elf.SHN_UNDEF:
                    continue
                known = table.get(symbol.name)
                if known is None or (known[1].bind == elf.STB_WEAK and symbol.bind == elf.STB_GLOBAL):
                    table[symbol.name] = (index, symbol)
                elif known[1].bind == elf.STB_GLOBAL and symbol.bind == elf.STB_GLOBAL:
                    raise AotgradValueError(f"{self.what}: symbol {symbol.name} is defined by objects[{known[0]}] and objects[{index}]; rename one or make it internal")
        return table

    def _refuse_constructors(self, file: ObjectFile) -> None:
        for section in file.sections:
            named = section.name.startswith((".ctors", ".dtors"))
            if section.size and (named or section.type in (elf.SHT_INIT_ARRAY, elf.SHT_FINI_ARRAY, elf.SHT_PREINIT_ARRAY)):
                raise AotgradValueError(f"{file.label} has constructors or destructors (section {section.name}), which are not supported")

    def _defined(self, index: int, symbol: Symbol) -> Place:
        if symbol.section == elf.SHN_ABS:
            return Place(symbol.name, None, symbol.value)
        piece = self._piece(index, symbol.section)
        return Place(symbol.name, piece, symbol.value, False, symbol.type == elf.STT_SECTION, symbol.size, symbol.type)

    def _piece(self, index: int, number: int) -> Piece:
        piece = self.pieces.get((index, number))
        if piece is None:
            file = self.files[index]
            section = file.sections[number]
            piece = self.pieces[index, number] = Piece(file, section, self._kind(file, section), bytearray(section.data))
            self.pending.append((index, piece))
        return piece

    def _kind(self, file: ObjectFile, section: Section) -> str:
        flags = section.flags
        if not flags & elf.SHF_ALLOC or section.type not in (elf.SHT_PROGBITS, elf.SHT_NOBITS):
            raise AotgradValueError(f"{file.label}: code refers to section {section.name}, which is not loaded into memory")
        if flags & elf.SHF_TLS or flags & elf.SHF_WRITE and flags & elf.SHF_EXECINSTR:
            raise AotgradValueError(f"{file.label}: section {section.name} is thread-local or both writable and executable, which is not supported")
        if section.type == elf.SHT_NOBITS:
            return "bss"
        if flags & elf.SHF_EXECINSTR:
            return "text"
        if section.name.startswith(".data.rel.ro"):
            return "relro"
        if flags & elf.SHF_WRITE:
            return "data"
        word = self.machine.word
        return "relro" if any(reloc.type == word for reloc in section.relocs) else "rodata"

    def _visit(self, index: int, piece: Piece) -> None:
        for reloc in piece.section.relocs:
            rule = self.machine.rules.get(reloc.type)
            if rule is None:
                hint = self.machine.hints.get(reloc.type, "this linker does not know it")
                raise AotgradValueError(f"{piece.where(reloc.offset)}: relocation type {reloc.type} for {self.machine.name} cannot be linked: {hint}")
            if reloc.offset + rule.width > len(piece.data):
                raise AotgradValueError(f"{piece.where(reloc.offset)}: a relocation ends outside its section; build the object again")
            if rule.use is not Use.NONE:
                piece.refs.append((reloc, rule, self._place(index, reloc.symbol, piece, reloc.offset)))

    def _place(self, index: int, number: int, piece: Piece, offset: int) -> Place:
        place = self.places.get((index, number))
        if place is not None:
            return place
        symbol = self.files[index].symbols[number]
        if symbol.bind == elf.STB_LOCAL:
            if symbol.section == elf.SHN_UNDEF:
                raise AotgradValueError(f"{piece.where(offset)}: a relocation against no symbol cannot be linked; build the object again")
            place = self._defined(index, symbol)
        elif symbol.name in self.globals:
            place = self._defined(*self.globals[symbol.name])
        else:
            place = Place(symbol.name, None, 0, True)
            if self.imports is None or symbol.name in self.imports:
                self.used_imports.add(symbol.name)
            else:
                self.missing.setdefault(symbol.name, piece.where(offset))
        self.places[index, number] = place
        return place

    def _placed(self, exports: list[Place]) -> Program:
        pieces = [self.pieces[key] for key in sorted(self.pieces)]
        sizes = dict.fromkeys(KINDS, 0)
        aligns = dict.fromkeys(KINDS, 1)
        for piece in pieces:
            align = piece.section.align
            piece.offset = elf.align_up(sizes[piece.kind], align)
            sizes[piece.kind] = piece.offset + piece.section.size
            aligns[piece.kind] = max(aligns[piece.kind], align)
        return Program(self.machine, pieces, exports, sorted(self.used_imports), sizes, aligns)


def joined(program: Program, kind: str) -> bytearray:
    """The bytes of one output section: its pieces, padded to their alignments with zeros."""
    data = bytearray(program.sizes[kind])
    for piece in program.of_kind(kind):
        data[piece.offset : piece.offset + len(piece.data)] = piece.data
    return data
