"""Servers that no library has loaded: functions are called with plain numbers, as a library calls them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from capi.qnn_calls import Client
from isthmus.cabi import types
from isthmus.capi.serve import LibraryServer
from isthmus.graph import DataType, TensorType
from isthmus.log import LogLevel

UNREADABLE = 0x10
"""An address where no process has memory."""
F32 = DataType.FLOAT_32


class Served:
    """The server of a library, with what it has logged."""

    def __init__(self, library: str) -> None:
        self.server = LibraryServer(library)
        self.logged: list[tuple[LogLevel, str]] = []
        vars(self.server)["log"] = lambda level, text, own=None: self.logged.append((level, text))
        # Only for the client's methods that make descriptions, and to keep these alive.
        self.client = Client.__new__(Client)
        self.client._kept = []

    def call(self, name: str, *values: Any) -> Any:
        """Call a function: the code that it returns, or what it returns instead."""
        return getattr(self.server, name)(*map(self.number, values))

    def do(self, name: str, *values: Any) -> None:
        """Call a function that must succeed."""
        code = self.call(name, *values)
        assert code == 0, f"{name} returns {code}: {self.server.reason(code)}"

    def make(self, name: str, *values: Any) -> int:
        """Call a function that creates an object; its handle."""
        out = ctypes.c_uint64()
        self.do(name, *values, out)
        assert out.value
        return out.value

    def refused(self, name: str, *values: Any) -> tuple[int, str]:
        """Call a function that must be refused: the code, and the reason without the function and the code."""
        code = self.call(name, *values)
        assert code
        reason = self.server.reason(code) or ""
        assert reason.startswith(f"{name}: [{code} "), reason
        return code, reason.partition("] ")[2]

    def number(self, thing: Any) -> int:
        """An argument as C passes it: a number, or the address of what stays there."""
        if thing is None or isinstance(thing, int):
            return int(thing or 0)
        if isinstance(thing, bytes):
            thing = ctypes.create_string_buffer(thing)
        self.client.keep(thing)
        return int(thing.ctypes.data) if isinstance(thing, np.ndarray) else ctypes.addressof(thing)

    def listed(self, *things: Any, end: bool = True) -> Any:
        """A list of pointers, with a null pointer at its end."""
        addresses = list(map(self.number, things)) + [0] * end
        return self.client.keep((ctypes.c_uint64 * len(addresses))(*addresses))

    def configs(self, kind: type[ctypes.Structure], *options: int, **fields: Any) -> Any:
        """A list of configs with these options, and these fields in each."""
        made: list[Any] = [kind() for _ in options]
        for each, option in zip(made, options, strict=True):
            each.option = option
            for name, value in fields.items():
                setattr(each, name, value)
        return self.listed(*made)

    def opened(self) -> tuple[int, int]:
        """A backend and a context."""
        backend = self.make("backendCreate", 0, 0)
        return backend, self.make("contextCreate", backend, 0, 0)

    def composed(self, context: int, name: bytes = b"twice") -> tuple[int, types.Tensor, types.Tensor]:
        """A graph y = x + x, not finalized, with its tensors."""
        graph = self.make("graphCreate", context, name, 0)
        x = self.client.tensor("x", TensorType.APP_WRITE, F32, (1, 8))
        y = self.client.tensor("y", TensorType.APP_READ, F32, (1, 8))
        for tensor in (x, y):
            self.do("tensorCreateGraphTensor", graph, tensor)
        self.do("graphAddNode", graph, self.client.operation("add", "ElementWiseAdd", [x, x], [y]))
        return graph, x, y

    def ready(self, context: int, name: bytes = b"twice") -> tuple[int, types.Tensor, types.Tensor]:
        """The same, finalized."""
        graph, x, y = self.composed(context, name)
        self.do("graphFinalize", graph, 0, 0)
        return graph, x, y
