"""The only door to llvmlite: imported and initialised on first use, so that importing aotgrad and cache hits never need it."""

from __future__ import annotations

import functools
import threading
from typing import Any, Final, Protocol

from aotgrad_runtime import forks
from aotgrad_runtime.errors import AotgradRuntimeError, AotgradValueError

__all__ = ["Machine", "assembly", "binding", "compile_object", "machine"]

PASSES: Final = ("none", "inline", "O1", "O2")
_LOCK: Final = forks.safe(threading.RLock(), outer=True)


class Machine(Protocol):
    """What this file needs of a ``Target``, which imports it."""

    @property
    def triple(self) -> str: ...

    @property
    def cpu(self) -> str: ...

    @property
    def features(self) -> str: ...


def binding() -> Any:
    """``llvmlite.binding`` with every target initialised. Raises ``AotgradRuntimeError`` where llvmlite is missing or broken."""
    with _LOCK:
        return _llvm()


@functools.lru_cache(maxsize=1)
def _llvm() -> Any:
    try:
        import llvmlite.binding as found  # noqa: PLC0415  (lazy by design)
    except (ImportError, OSError) as e:
        raise AotgradRuntimeError(f"compiling needs llvmlite, which cannot be imported ({e}); install it with 'pip install llvmlite'") from e
    found.initialize_all_targets()
    found.initialize_all_asmprinters()
    inside = getattr(getattr(getattr(found, "ffi", None), "lib", None), "_lock", None)  # held through every call of LLVM; it has no public name
    lock = getattr(inside, "_lock", None)
    if isinstance(lock, type(_LOCK)):
        forks.safe(lock, outer=True)
    return found


def machine(triple: str, cpu: str, features: str, opt: int = 2) -> Any:
    """An llvmlite ``TargetMachine``: position-independent, small code model, optimisation level ``opt``."""
    if opt not in (0, 1, 2, 3):
        raise AotgradValueError(f"opt must be 0, 1, 2 or 3, not {opt!r}")
    b = binding()
    try:
        return b.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=opt, reloc="pic", codemodel="small")
    except RuntimeError as e:
        raise AotgradRuntimeError(f"this llvmlite has no code generator for target {triple}: {e}") from e


@functools.lru_cache(maxsize=16)
def _machine(triple: str, cpu: str, features: str, opt: int) -> Any:
    return machine(triple, cpu, features, opt)


def compile_object(text: str, target: Machine, opt: int = 2, passes: str = "inline") -> bytes:
    """A relocatable object file from the LLVM module ``text``.

    ``passes``: ``"inline"``, for generated kernels, inlines ``alwaysinline`` functions where there are some (3 ms in a new process) and does nothing else;
    ``"none"`` is for hand-vectorised text; ``"O1"`` and ``"O2"`` run LLVM's whole pipeline. Raises ``AotgradRuntimeError`` with LLVM's own message for text it
    does not accept, ``AotgradValueError`` for an unknown ``opt`` or ``passes``.

    >>> from aotgrad.codegen.target import Target
    >>> compile_object("define i32 @f() { ret i32 7 }", Target.native())[:4]
    b'\\x7fELF'
    """
    return bytes(_emit(text, target, opt, passes, "emit_object"))


def assembly(text: str, target: Machine, opt: int = 2, passes: str = "inline") -> str:
    """The assembly of the same module: arguments and errors of ``compile_object``."""
    return str(_emit(text, target, opt, passes, "emit_assembly"))


def _emit(text: str, target: Machine, opt: int, passes: str, how: str) -> Any:
    if passes not in PASSES:
        raise AotgradValueError(f"passes must be one of {', '.join(PASSES)}, not {passes!r}")
    if opt not in (0, 1, 2, 3):
        raise AotgradValueError(f"opt must be 0, 1, 2 or 3, not {opt!r}")
    b = binding()
    tm = _machine(target.triple, target.cpu, target.features, opt)
    try:
        # A context of its own: the global one keeps every type and constant for ever.
        module = b.parse_assembly(text, b.create_context())
        with module:
            module.triple = target.triple
            module.data_layout = str(tm.target_data)
            module.verify()
            if passes != "inline" or "alwaysinline" in text:
                _run_passes(b, module, tm, passes)
            return getattr(tm, how)(module)
    except RuntimeError as e:
        raise AotgradRuntimeError(f"LLVM does not accept the generated module (a fault in aotgrad, please report it): {e}") from e


def _run_passes(b: Any, module: Any, tm: Any, passes: str) -> None:
    if passes == "none":
        return
    tuning = b.create_pipeline_tuning_options(2 if passes == "O2" else 1)
    tuning.loop_unrolling = passes == "O2"
    tuning.loop_vectorization = tuning.slp_vectorization = passes != "inline"
    builder = b.create_pass_builder(tm, tuning)
    if passes == "inline":
        pm = b.create_new_module_pass_manager()
        pm.add_always_inliner_pass()  # the text is written folded and hoisted already: cleaning passes measured slower code and longer compiles
        pm.add_global_dead_code_eliminate_pass()
    else:
        pm = builder.getModulePassManager()
    pm.run(module, builder)
