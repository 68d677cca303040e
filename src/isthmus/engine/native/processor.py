"""The features of this machine's processor, by LLVM's names.

On arm64 the kernel lists them in the process's auxiliary vector, which emulators and sandboxes provide too; on x86 in
``/proc/cpuinfo``. If neither describes this processor (no such file, or that of an emulator's host), LLVM is asked. It
comes last because loading it takes longer than the rest of a process's start.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

_AT_HWCAP = 16
# Bits of the auxiliary vector's AT_HWCAP on arm64; a feature is present if all of its bits are set.
_HWCAP = {
    "neon": 1 << 1,
    "lse": 1 << 8,
    "fullfp16": 1 << 9 | 1 << 10,  # scalars and vectors
    "rdm": 1 << 12,
    "rcpc": 1 << 15,
    "dotprod": 1 << 20,
}

# Features of x86 for which Linux and LLVM have different names.
_LINUX_NAMES = {
    "abm": "lzcnt",
    "amx_int8": "amx-int8",
    "amx_tile": "amx-tile",
    "avx512_bitalg": "avx512bitalg",
    "avx512_vbmi2": "avx512vbmi2",
    "avx512_vnni": "avx512vnni",
    "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx_vnni": "avxvnni",
    "bmi1": "bmi",
}


# Prefixes of features that valgrind's emulated processor lacks.
_NOT_ON_VALGRIND = ("amx", "avx512", "avxvnni")


# The system call that asks for parts of an x86 processor's state, its code for asking, and the number of AMX's part.
_ARCH_PRCTL = 158
_REQUEST_PERMISSION = 0x1023
_MATRIX_REGISTERS = 18


def architecture() -> str:
    """Return the processor's family, by its name in LLVM's triples."""
    return platform.machine().replace("arm64", "aarch64")


@lru_cache(maxsize=1)
def features() -> frozenset[str]:
    """Return the features of the processor that runs this process."""
    names = _READERS[architecture()]() if architecture() in _READERS else None
    if names is None:
        return from_llvm()
    if on_valgrind():
        return frozenset(name for name in names if not name.startswith(_NOT_ON_VALGRIND))
    return names


@lru_cache(maxsize=1)
def may_use_matrix_registers() -> bool:
    """Ask Linux to let this process use AMX's registers, and return whether it may.

    A child process that executes another program must ask again.
    """
    c = ctypes.CDLL(None)
    return bool(c.syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _MATRIX_REGISTERS) == 0)


def on_valgrind() -> bool:
    """Return whether valgrind runs this process; Linux then describes the real processor, not the emulated one."""
    return hasattr(ctypes.CDLL(None), "_vgnU_freeres")  # a function of the library that valgrind preloads


def from_auxiliary_vector(getauxval: Callable[[int], int] | None = None) -> frozenset[str] | None:
    """Return the features of an arm64 processor; None if the C library cannot read the vector.

    Parameters
    ----------
    getauxval
        Returns the value of an entry of the vector; by default the C library's function.
    """
    if getauxval is None:
        try:
            getauxval = ctypes.CDLL(None).getauxval
        except (AttributeError, OSError):
            return None
        getauxval.restype, getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    bits = getauxval(_AT_HWCAP)
    return frozenset(name for name, mask in _HWCAP.items() if bits & mask == mask)


def from_cpuinfo(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str] | None:
    """Return the features of an x86 processor; None if the file is absent or describes another family."""
    try:
        for line in cpuinfo.read_text().splitlines():
            field, _, value = line.partition(":")
            if field.strip() == "flags":
                return frozenset(_LINUX_NAMES.get(flag, flag) for flag in value.split())
    except OSError:
        pass
    return None


def from_llvm() -> frozenset[str]:
    """Return the features that LLVM detects; an empty set if it cannot, or if it is not installed."""
    try:
        import llvmlite.binding as llvm
    except ImportError:
        return frozenset()
    try:
        return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)
    except RuntimeError:
        return frozenset()


_READERS: dict[str, Callable[[], frozenset[str] | None]] = {
    "aarch64": from_auxiliary_vector,
    "x86_64": from_cpuinfo,
}
