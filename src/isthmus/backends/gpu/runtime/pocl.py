"""PoCL on processors that its compiler does not know.

PoCL 3.0, the release that a package brings, asks LLVM 14 for the processor's name. LLVM 14 does not know processors of
2023 and later and answers "generic", which PoCL's own compiler then refuses: no kernel builds. No option and no
variable sets the name, so it is replaced in PoCL's description of the device, by one for the instructions that the
processor has.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

PLATFORM, VERSION = "Portable Computing Language", "PoCL 3.0"
_UNKNOWN = b"generic\0"
# Bytes of a device's description that are searched; the pointer to the name is at 640.
_EXTENT = 1024

# Names of the x86-64 ABI for sets of instructions, and Linux's names of what each one adds; the best comes first.
_LEVELS = {
    b"x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    b"x86-64-v3": {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"},
    b"x86-64-v2": {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"},
    b"x86-64": set(),
}
# The strings that devices point to, one for each name, for as long as the process lives.
_STRINGS = {name: ctypes.create_string_buffer(name) for name in _LEVELS}


def name_processor(device: int, cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
    """Give a device of PoCL 3.0 a name of its processor that PoCL's compiler knows, if it has none.

    - `device`: OpenCL's handle of the device: the address of PoCL's description.
    - `cpuinfo`: Linux's description of the processor.
    """
    description = _bytes(device, _EXTENT)
    for offset in range(0, len(description), 8):
        if _bytes(int.from_bytes(description[offset : offset + 8], "little"), len(_UNKNOWN)) == _UNKNOWN:
            name = _STRINGS[_best_level(cpuinfo)]
            ctypes.c_void_p.from_address(device + offset).value = ctypes.addressof(name)


def _bytes(address: int, count: int) -> bytes:
    """Return the bytes at an address; none if it is no address."""
    # Only this driver needs it here, so it is not imported with the backend.
    from isthmus.cabi.client import BadPointer, read_bytes

    try:
        return read_bytes(address, count)
    except BadPointer:
        return b""


def _best_level(cpuinfo: Path) -> bytes:
    """Return the best name whose instructions, and those of all names below it, this processor has."""
    flags = {
        flag
        for line in cpuinfo.read_text().splitlines()
        if line.startswith("flags")
        for flag in line.partition(":")[2].split()
    }
    names = list(_LEVELS)
    return next(name for i, name in enumerate(names) if set().union(*(_LEVELS[n] for n in names[i:])) <= flags)
