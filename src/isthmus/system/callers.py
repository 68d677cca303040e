"""The line of the client's program that led to the running code, in Python or in C."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from types import FrameType

from isthmus.system import shield

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
_COMMANDS = f"{_PACKAGE}tools{os.sep}", f"{_PACKAGE}__main__.py"
# ET_EXEC: the type of an ELF file whose code is at the addresses in the file, wherever it is loaded.
_FIXED_ADDRESSES = 2
# A context variable, because a shielded call runs in the context of its caller.
_return_address: ContextVar[int] = ContextVar("return_address", default=0)


def called_from_native(return_address: int) -> None:
    """Record that a call from native code is in progress, and where it returns to; 0 if that is unknown."""
    _return_address.set(return_address)


def calling_line() -> str:
    """Return the innermost executing line outside this package, as ``file.py:12 in function``.

    A shielded call runs on a helper thread; its line is that of the main thread, which waits for it. Below a call from
    a program in C it is that program's line. It is empty in a thread that this package has started for itself, and
    below a command of this package, which only a script calls.

    >>> def work():
    ...     return calling_line()
    >>> work().endswith("in work")
    True
    """
    frame: FrameType | None = sys._getframe(1)
    if shield.is_helping():
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
    outermost = ""
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        outermost, frame = frame.f_code.co_filename, frame.f_back
    if outermost.startswith(_COMMANDS):
        return ""
    # A thread that this package has started begins in the module ``threading``.
    if frame is None or frame.f_code.co_filename == threading.__file__:
        return line_before(_return_address.get()) if _return_address.get() else ""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def is_below(room: str) -> bool:
    """Return whether code of a folder of this package, such as ``backends``, is executing in this thread."""
    folder = f"{_PACKAGE}{room}{os.sep}"
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(folder):
        frame = frame.f_back
    return frame is not None


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
    """Return an address as ``file.c:12 in function`` by addr2line; empty if that is not possible."""
    # `start` is the address at which the file is loaded.
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
