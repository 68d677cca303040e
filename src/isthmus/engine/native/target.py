"""The instruction sets for which kernels are generated, and a test of which this machine supports.

A `Target` is a plain description. It determines vector lengths and tile shapes, and is part of the key of compiled
code.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache

from isthmus.engine.native import processor
from isthmus.errors import Code, QnnError, did_you_mean


@dataclass(frozen=True)
class Target:
    """An instruction set and options for generating code.

    Parameters
    ----------
    name
        The name by which users select it (``ISTHMUS_TARGET``).
    triple
        LLVM's target triple.
    cpu
        LLVM's processor name.
    features
        LLVM's feature string.
    needs
        The features a processor must have for the code to run, in LLVM's names.
    vector_bytes
        The width of a vector register in bytes.
    dot
        How four bytes are multiplied and added into 32 bits: "vnni", "avxvnni", "sdot" or "none".
    is_uniform
        Whether constant matrices are packed alike, for however many rows they are multiplied with (see `uniform`).
    """

    name: str
    triple: str
    cpu: str
    features: str
    needs: tuple[str, ...]
    vector_bytes: int
    dot: str = "none"
    is_uniform: bool = False

    @property
    def lanes(self) -> int:
        """The number of 32-bit lanes in a vector."""
        return self.vector_bytes // 4

    @property
    def converts_half(self) -> bool:
        """Whether the processor has instructions that convert between FLOAT_16 and FLOAT_32."""
        return self.triple.startswith("aarch64") or "f16c" in self.needs

    @property
    def has_matrix_registers(self) -> bool:
        """Whether the processor multiplies matrices of bytes in registers (AMX)."""
        return "amx-int8" in self.needs

    @property
    def key(self) -> str:
        """A string of everything that compiled code depends on."""
        return f"{self.name}|{self.triple}|{self.cpu}|{self.features}|{self.vector_bytes}|{self.dot}"


_X86 = "x86_64-unknown-linux-gnu"
_ARM = "aarch64-unknown-linux-gnu"
# The needs of targets. All features that LLVM may use for a processor name are required, because a virtual machine can
# hide any of them.
_AVX2 = ("avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_ICE_LAKE = (*_AVX512, "avx512vnni", "avx512vbmi", "avx512vbmi2", "avx512bitalg", "avx512ifma", "avx512vpopcntdq")
_AMX = (*_ICE_LAKE, "amx-tile", "amx-int8")
_PREFERENCES = "+prefer-no-gather,-prefer-256-bit"
_NEOVERSE = ("neon", "dotprod", "fullfp16", "rdm", "lse", "rcpc")

TARGETS: tuple[Target, ...] = (
    Target("avx512-amx", _X86, "icelake-server", f"{_PREFERENCES},+amx-tile,+amx-int8", _AMX, 64, "vnni"),
    Target("avx512-vnni", _X86, "icelake-server", _PREFERENCES, _ICE_LAKE, 64, "vnni"),
    Target("avx512", _X86, "skylake-avx512", "-prefer-256-bit", _AVX512, 64),
    Target("avx2-vnni", _X86, "haswell", "+avxvnni", (*_AVX2, "avxvnni"), 32, "avxvnni"),
    Target("avx2", _X86, "haswell", "", _AVX2, 32),
    Target("neon-dot", _ARM, "neoverse-n1", "", _NEOVERSE, 16, "sdot"),
    Target("neon", _ARM, "cortex-a53", "", ("neon",), 16),
    Target("portable", _X86, "x86-64", "", (), 16),
    Target("portable-arm", _ARM, "generic", "", (), 16),
)
"""All targets, best first; the last of each architecture always runs."""


def uniform(target: Target) -> Target:
    """Return a target whose programs pack constant matrices alike, for however many rows they are multiplied with.

    Graphs of different batch or length can then share them. Code is the same; a few products are a little slower.
    """
    return replace(target, is_uniform=True)


def by_name(name: str) -> Target:
    """Return the target with this name."""
    for target in TARGETS:
        if target.name == name:
            return target
    names = [target.name for target in TARGETS]
    rule, hint = f"must be one of {', '.join(names)}", did_you_mean(name, names)
    raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"target '{name}'", rule, hint)


def runnable(target: Target) -> bool:
    """Return whether this machine can run the target's code."""
    if not target.triple.startswith(processor.architecture()) or not processor.features().issuperset(target.needs):
        return False
    return not target.has_matrix_registers or processor.may_use_matrix_registers()


def request_permissions() -> None:
    """Ask for what code of this machine's targets needs, before this process loses the right to ask."""
    for target in TARGETS:
        runnable(target)


def portable() -> Target:
    """Return the target that every machine of this architecture runs."""
    return next(target for target in TARGETS if not target.needs and runnable(target))


def named(name: str | None) -> Target:
    """Return the target to plan for, whether or not this machine can run it.

    If no name is given, ``ISTHMUS_TARGET`` names it; otherwise it is the best one of this machine.
    """
    choice = name or os.environ.get("ISTHMUS_TARGET")
    if choice:
        return portable() if choice == "portable" else by_name(choice)
    return next(target for target in TARGETS if runnable(target))


@lru_cache(maxsize=1)
def host() -> Target:
    """Return the best target of this machine, or the one that ``ISTHMUS_TARGET`` names."""
    target = named(None)
    if not runnable(target):
        rule, hint = "this machine cannot run its code", "Unset ISTHMUS_TARGET to let the best one be picked."
        raise QnnError(Code.COMMON_PLATFORM_NOT_SUPPORTED, f"target '{target.name}'", rule, hint)
    return target
