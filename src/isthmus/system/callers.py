"""The line of the client's program that led to the running code."""

from __future__ import annotations

import os
import sys
import threading
from contextvars import ContextVar
from pathlib import Path
from types import FrameType

from isthmus.system import shield
from isthmus.system.native_lines import line_before

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
_COMMANDS = f"{_PACKAGE}tools{os.sep}", f"{_PACKAGE}__main__.py"
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

    Examples
    --------
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
