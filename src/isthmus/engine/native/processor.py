"""What this machine's processor has, in LLVM's names for features.

On arm64 the kernel says it in the process's auxiliary vector, which emulators and sandboxes give too; on x86 in
``/proc/cpuinfo``. Where neither speaks of this processor (no such file, or that of an emulator's host), LLVM is asked.
It comes last because loading it takes longer than all else that a process does to start.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

_AT_HWCAP = 16
_HWCAP = {
    "neon": 1 << 1,
    "lse": 1 << 8,
    "fullfp16": 1 << 9 | 1 << 10,  # scalars and vectors
    "rdm": 1 << 12,
    "rcpc": 1 << 15,
    "dotprod": 1 << 20,
}
"""Bits of the auxiliary vector's AT_HWCAP on arm64; a feature is there if all of its bits are."""

_LINUX_NAMES = {
    "abm": "lzcnt",
    "avx512_bitalg": "avx512bitalg",
    "avx512_vbmi2": "avx512vbmi2",
    "avx512_vnni": "avx512vnni",
    "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx_vnni": "avxvnni",
    "bmi1": "bmi",
}
"""Features of x86 that Linux calls otherwise than LLVM."""


_NOT_ON_VALGRIND = ("avx512", "avxvnni")
"""How the names of features begin that the processor which valgrind emulates has not."""


def architecture() -> str:
    """The processor's family as LLVM's triples name it."""
    return platform.machine().replace("arm64", "aarch64")


@lru_cache(maxsize=1)
def features() -> frozenset[str]:
    """The features of the processor that this process runs on."""
    found = _READERS[architecture()]() if architecture() in _READERS else None
    if found is None:
        return from_llvm()
    if on_valgrind():
        return frozenset(name for name in found if not name.startswith(_NOT_ON_VALGRIND))
    return found


def on_valgrind() -> bool:
    """Answer whether valgrind runs this process; what Linux tells of processors is then of the real one."""
    return hasattr(ctypes.CDLL(None), "_vgnU_freeres")  # a function of the library that valgrind preloads


def from_auxiliary_vector(getauxval: Callable[[int], int] | None = None) -> frozenset[str] | None:
    """The features of an arm64 processor; None where the C library does not know the vector.

    Parameters
    ----------
    getauxval
        The value of an entry of the vector; the C library's own without it.
    """
    if getauxval is None:
        try:
            getauxval = ctypes.CDLL(None).getauxval
        except (AttributeError, OSError):
            return None
        getauxval.restype, getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]  # type: ignore[attr-defined]
    bits = getauxval(_AT_HWCAP)
    return frozenset(name for name, mask in _HWCAP.items() if bits & mask == mask)


def from_cpuinfo(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str] | None:
    """The features of an x86 processor; None where the file is absent or speaks of another family."""
    try:
        for line in cpuinfo.read_text().splitlines():
            field, _, value = line.partition(":")
            if field.strip() == "flags":
                return frozenset(_LINUX_NAMES.get(flag, flag) for flag in value.split())
    except OSError:
        pass
    return None


def from_llvm() -> frozenset[str]:
    """The features as LLVM finds them; none where it cannot."""
    import llvmlite.binding as llvm

    try:
        return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)
    except RuntimeError:
        return frozenset()


_READERS: dict[str, Callable[[], frozenset[str] | None]] = {
    "aarch64": from_auxiliary_vector,
    "x86_64": from_cpuinfo,
}
