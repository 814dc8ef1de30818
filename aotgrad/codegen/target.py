"""Machines to generate code for. Nothing here needs llvmlite, except ``Target.machine()``."""

from __future__ import annotations

import functools
import platform
from typing import Any, Final

from aotgrad_runtime.dtypes import DType, from_mlir
from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError
from aotgrad_runtime.records import record

from . import llvm

__all__ = ["Target"]

_CPUINFO: Final = "/proc/cpuinfo"
_X86_TRIPLE: Final = "x86_64-unknown-linux-gnu"
_ARM_TRIPLE: Final = "aarch64-unknown-linux-gnu"

# What each x86-64 level needs, in the spelling of /proc/cpuinfo (abm is lzcnt's).
_V2: Final = frozenset(["cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"])
_V3: Final = _V2 | frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"])
_V4: Final = _V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
_LEVELS: Final = (("x86-64-v4", _V4), ("x86-64-v3", _V3), ("x86-64-v2", _V2))

# Extras beyond the level that generated code may use: /proc/cpuinfo -> LLVM. A short list keeps cached objects valid across similar machines.
_X86_EXTRAS: Final = {
    "avx512vbmi": "avx512vbmi", "avx512_vbmi2": "avx512vbmi2", "avx512_bf16": "avx512bf16", "avx512_fp16": "avx512fp16", "avx512_vnni": "avx512vnni",
    "avx512_vpopcntdq": "avx512vpopcntdq", "avx_vnni": "avxvnni",
}
# Without this LLVM's own vectoriser stays at 256 bits on most AVX-512 models, 0.9 of the speed in measurements.
_WIDE: Final = "-prefer-256-bit"

_NAMED: Final = {
    "x86-64": (_X86_TRIPLE, "x86-64", "", 128),
    "x86-64-v2": (_X86_TRIPLE, "x86-64-v2", "", 128),
    "x86-64-v3": (_X86_TRIPLE, "x86-64-v3", "", 256),
    "x86-64-v4": (_X86_TRIPLE, "x86-64-v4", _WIDE, 512),
    "aarch64": (_ARM_TRIPLE, "generic", "+neon", 128),
}
_ALIASES: Final = {
    "x86_64": "x86-64", "x86_64-linux-gnu": "x86-64", _X86_TRIPLE: "x86-64", "aarch64-linux-gnu": "aarch64", _ARM_TRIPLE: "aarch64", "arm64": "aarch64",
}


@record(frozen=True)
class Target:
    """One kind of processor: LLVM ``triple``, ``cpu`` and ``features``, and the vector width ``vector_bits`` that kernels are written for.

    >>> Target.named("x86-64-v3").lanes("f32")
    8
    """

    triple: str
    cpu: str
    features: str
    vector_bits: int

    @staticmethod
    def native() -> Target:
        """The machine this runs on, read from /proc/cpuinfo; the plain base level of its architecture where that cannot be read."""
        return _native()

    @staticmethod
    def named(name: str) -> Target:
        """The target called ``name``: ``native``, ``x86-64``, ``x86-64-v2``, ``x86-64-v3``, ``x86-64-v4`` or ``aarch64-linux-gnu``.

        Raises ``AotgradValueError`` for any other name.
        """
        if name == "native":
            return _native()
        fields = _NAMED.get(_ALIASES.get(name, name))
        if fields is None:
            raise AotgradValueError(f"target {name!r} is not known; use one of native, {', '.join(n for n in _NAMED if n != 'aarch64' and Target(*_NAMED[n]).fma)}, "
                                    "aarch64-linux-gnu")
        return Target(*fields)

    @property
    def arch(self) -> str:
        """``"x86_64"`` or ``"aarch64"``."""
        return self.triple.split("-")[0]

    @property
    def fma(self) -> bool:
        """Whether a fused multiply-add is one instruction (``llvm.fma`` is a slow library call elsewhere)."""
        return self.arch == "aarch64" or self.vector_bits >= 256

    @property
    def masked(self) -> bool:
        """Whether loads and stores take a lane mask for every element of 4 and 8 bytes in hardware (AVX2 and later)."""
        return self.arch == "x86_64" and self.vector_bits >= 256

    @property
    def registers(self) -> int:
        """Vector registers."""
        return 32 if self.arch == "aarch64" or self.vector_bits == 512 else 16

    @property
    def key(self) -> str:
        """All fields as one string, for cache keys."""
        return f"{self.triple};{self.cpu};{self.features};{self.vector_bits}"

    @property
    def cpu_flags(self) -> tuple[str, ...]:
        """The flags of /proc/cpuinfo that code for this target relies on (none for base levels and aarch64)."""
        extras = {llvm_name: name for name, llvm_name in _X86_EXTRAS.items()}
        given = [f[1:] for f in self.features.split(",") if f.startswith("+")]
        return tuple(sorted({*dict(_LEVELS).get(self.cpu, ()), *(extras[f] for f in given if f in extras)}))

    def lanes(self, dtype: str | DType) -> int:
        """Elements of ``dtype`` (``"f64"``, ``"f32"``, ``"i64"``, ... or a ``DType``) in one vector register.

        Raises ``AotgradTypeError`` for something that is no element type.

        >>> Target.named("x86-64-v4").lanes("f64")
        8
        """
        found = dtype if isinstance(dtype, DType) else from_mlir(dtype)
        if found.is_complex:
            raise AotgradTypeError(f"dtype {found.name} has no vector form; use the lanes of its real part")
        return self.vector_bits // (8 * found.itemsize)

    def machine(self, opt: int = 2) -> Any:
        """An llvmlite ``TargetMachine`` for position-independent code, optimising at level ``opt`` (0 to 3); needs llvmlite."""
        return llvm.machine(self.triple, self.cpu, self.features, opt)


@functools.lru_cache(maxsize=1)
def _native() -> Target:
    arch = platform.machine().lower()
    flags = _cpu_flags()
    if arch in ("aarch64", "arm64"):
        return Target.named("aarch64")
    if arch not in ("x86_64", "amd64"):
        raise AotgradValueError(f"this machine ({arch}) is not a target aotgrad generates code for; it runs on x86-64 and aarch64 Linux")
    return from_x86_flags(flags)


def from_x86_flags(flags: frozenset[str]) -> Target:
    """The target of an x86-64 machine whose /proc/cpuinfo shows ``flags``."""
    for level, needed in _LEVELS:
        if needed <= flags:
            base = Target.named(level)
            wide = base.vector_bits == 512
            extras = [llvm_name for name, llvm_name in sorted(_X86_EXTRAS.items()) if name in flags and (wide or not name.startswith("avx512"))]
            parts = [base.features] if base.features else []
            return Target(base.triple, base.cpu, ",".join(parts + ["+" + e for e in extras]), base.vector_bits)
    return Target.named("x86-64")


def _cpu_flags() -> frozenset[str]:
    """The flags every listed processor has (hybrid machines list several kinds)."""
    try:
        with open(_CPUINFO, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return frozenset()
    sets = [frozenset(line.partition(":")[2].split()) for line in text.splitlines() if line.partition(":")[0].strip() in ("flags", "Features")]
    return frozenset.intersection(*sets) if sets else frozenset()
