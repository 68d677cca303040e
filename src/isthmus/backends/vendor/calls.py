"""The vendor's library in the process that has loaded it: its tables, its log, its errors.

Only the child process imports this. Before each call the function's name goes to the page that the parent reads if the
library ends the process.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from collections import deque
from collections.abc import Callable
from ctypes import byref, c_char_p, c_uint64, c_void_p
from typing import Any

from isthmus.backends.foreign.serving import CallError, enter
from isthmus.cabi.tables import LOG_CALLBACK, FunctionTable, SystemFunctionTable, function, providers, system_providers

MAX_LINES = 64
"""How many lines of the library's log are kept."""
_MAX_LINE = 1 << 14
# QNN_LOG_LEVEL_INFO, of which the lines about DDR traffic are.
_INFO = 3
# A line of the summary of DDR traffic, which graphFinalize logs.
_TRAFFIC = re.compile("(spill_bytes|fill_bytes|write_total_bytes|read_total_bytes)=([0-9]{1,18})")
_libc = ctypes.CDLL(None)


class Calls:
    """The functions of a table; the name of the one that is being called goes to the page `stage`."""

    def __init__(self, table: FunctionTable | SystemFunctionTable, stage: mmap.mmap) -> None:
        self._table, self._stage = table, stage
        self._functions: dict[str, Callable[..., int]] = {}

    def code(self, name: str, *values: Any, of: str = "") -> int:
        """Call a function and return its code; `of` says what it is called for, if the name does not."""
        pointer = self._functions.get(name)
        if pointer is None:
            pointer = self._functions[name] = function(self._table, name)
        enter(self._stage, f"{name}{of}")
        return int(pointer(*values))

    def call(self, name: str, *values: Any, of: str = "") -> None:
        """Call a function; raise its code if that is not 0."""
        code = self.code(name, *values, of=of)
        if code:
            raise CallError(name, code)

    def handle(self, name: str, *values: Any) -> c_void_p:
        """Call a function that makes an object, and return its handle."""
        made = c_void_p()
        self.call(name, *values, byref(made))
        return made


class BackendLibrary(Calls):
    """The vendor's HTP library, with its log of a level of QNN's."""

    def __init__(self, path: str, log_level: int, stage: mmap.mmap) -> None:
        enter(stage, "loading")
        interface = providers(ctypes.CDLL(path))[0]
        super().__init__(interface.table, stage)
        self.versions = {"core": str(interface.coreApiVersion), "backend": str(interface.backendApiVersion)}
        self.log: deque[str] = deque(maxlen=MAX_LINES)
        self.traffic: dict[str, int] = {}
        """The figures of the last summary of DDR traffic in the log."""
        self._level = log_level
        self._callback = LOG_CALLBACK(self._log_line)
        self.log_handle = self.handle("logCreate", ctypes.cast(self._callback, c_void_p), max(log_level, _INFO))
        build = c_char_p()
        self.call("backendGetBuildId", byref(build))
        self.build = (build.value or b"").decode(errors="replace")

    def _log_line(self, text: bytes, level: int, time: int, arguments: int) -> None:
        """Keep a line of the library's log, or a figure of DDR traffic in it; its arguments are a va_list."""
        room = ctypes.create_string_buffer(_MAX_LINE)
        _libc.vsnprintf(room, c_uint64(_MAX_LINE), c_char_p(text), c_void_p(arguments))
        line = room.value.decode(errors="replace").strip()
        figure = _TRAFFIC.fullmatch(line)
        if figure is not None:
            self.traffic[figure[1]] = int(figure[2])
        if level <= self._level:
            self.log.append(line)


class SystemLibrary(Calls):
    """The vendor's system library."""

    def __init__(self, path: str, stage: mmap.mmap) -> None:
        enter(stage, "loading")
        super().__init__(system_providers(ctypes.CDLL(path))[0].table, stage)
