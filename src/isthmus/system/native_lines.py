"""Lines of native code: which function and source line an address of this process belongs to."""

from __future__ import annotations

import ctypes
import subprocess
from functools import lru_cache
from pathlib import Path

_FIXED_ADDRESSES = 2
"""ET_EXEC: the type of an ELF file whose code is at the addresses in the file, wherever it is loaded."""


class _Place(ctypes.Structure):
    """Dl_info: the file and the symbol that an address is in."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("file_start", ctypes.c_size_t),
        ("symbol", ctypes.c_char_p),
        ("symbol_start", ctypes.c_size_t),
    )


@lru_cache(maxsize=4096)
def line_before(address: int) -> str:
    """Return the line of the call that returns to an address.

    The form is ``file.c:12 in function`` if the file has debug information and addr2line is installed, and
    ``program(function+0x1f)`` or ``program(+0x1f)`` otherwise. It is empty if the address is in no file.
    """
    place = _Place()
    dladdr = ctypes.CDLL(None).dladdr
    dladdr.argtypes = (ctypes.c_size_t, ctypes.c_void_p)
    # The last byte of the call: the next line may begin at the address itself.
    if not dladdr(address - 1, ctypes.byref(place)) or not place.file:
        return ""
    file = _path(place.file.decode(errors="surrogateescape"))
    symbol = (place.symbol or b"").decode(errors="surrogateescape")
    offset = address - 1 - (place.symbol_start if symbol else place.file_start)
    return _source_line(file, address - 1, place.file_start) or f"{file}({symbol}+{offset:#x})"


def _path(file: str) -> str:
    """Return the path of a loaded file; the loader knows the program itself by the name it was started with."""
    return file if Path(file).exists() else str(Path("/proc/self/exe").resolve())


def _source_line(file: str, address: int, start: int) -> str:
    """Return an address as ``file.c:12 in function`` by addr2line; empty if that is not possible.

    `start` is the address at which the file is loaded.
    """
    try:
        with open(file, "rb") as elf:
            kind = int.from_bytes(elf.read(18)[16:18], "little")
        inside = address if kind == _FIXED_ADDRESSES else address - start
        command = ["addr2line", "-f", "-C", "-e", file, hex(inside)]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=10, check=False, start_new_session=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    function, _, line = done.stdout.strip().partition("\n")
    # It prints question marks for what it does not know, and may add remarks after the line.
    line = line.split(" (")[0]
    return "" if not line or line.startswith("??") or line.endswith(":?") else f"{line} in {function}"
