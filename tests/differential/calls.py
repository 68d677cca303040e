"""What sequences of calls are made of: a client with a small graph, and short names for common steps."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_char_p, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from differential.client import UNKNOWN, Encoding, Node, Session, TensorValue
from isthmus.backends.htp.headers import MEM_DESCRIPTOR
from isthmus.cabi import objects, types
from isthmus.graph.datatypes import DataType
from isthmus.graph.tensor import TensorType

F32, U8, I32, U32 = DataType.FLOAT_32, DataType.UFIXED_POINT_8, DataType.INT_32, DataType.UINT_32
WRITE, READ, NATIVE, STATIC = TensorType.APP_WRITE, TensorType.APP_READ, TensorType.NATIVE, TensorType.STATIC
DIMS = (1, 8, 8, 32)
BYTES = 2048
STEPS = Encoding((0.1,), (-128,))


class Calls(Session):
    """A client with the tensors of y = Relu(x), in 8 bits."""

    def __init__(self, library: Path) -> None:
        super().__init__(library)
        self.x, self.y = self.value("x", WRITE), self.value("y", READ)

    def value(self, name: str, type: int = NATIVE, dtype: int = U8, dims: tuple[int, ...] = DIMS, **more: Any) -> Any:
        """Return a tensor like x; one in 8 bits has an encoding unless another is given."""
        more.setdefault("encoding", STEPS if dtype == U8 else None)
        return TensorValue(name, type, dtype, dims, **more)

    def relu(self, name: str = "node", **more: Any) -> Node:
        """Return the node that reads x and writes y."""
        return Node("Relu", [self.x], [self.y], name=name, **more)

    def open(self, name: str = "g") -> int:
        """Create an empty graph."""
        return self.make("graphCreate", self.context, name.encode(), None)

    def started(self, *more: TensorValue) -> int:
        """Create a graph with x, y and further tensors, without a node."""
        graph = self.open()
        for value in (self.x, self.y, *more):
            self.create(graph, value)
        return graph

    def built(self, name: str = "g") -> int:
        """Create a graph with its node."""
        return self.compose([self.relu()], name)

    def ready(self, name: str = "g") -> int:
        """Create a finalized graph."""
        return self.finalized([self.relu()], name)

    def adding(self, node: Node, *more: TensorValue) -> int:
        """Add a node to a new graph with x, y and further tensors; return the code."""
        return self.add(self.started(*more), node)

    def creating(self, value: TensorValue, change: Callable[[types.Tensor], Any] | None = None) -> int:
        """Create a tensor in a new graph, with a change to its C structure; return the code."""
        tensor = self.tensor(value)
        if change is not None:
            change(tensor)
        return self.code("tensorCreateGraphTensor", self.open(), byref(tensor))

    def checking(self, node: Node, backend: int | None = None) -> int:
        """Validate a node and return the code."""
        return self.code("backendValidateOpConfig", backend or self.backend, self.operation(node))

    def with_memory(self, values: Sequence[TensorValue], size: int = BYTES, null: bool = False) -> Any:
        """Return the C array of tensors, each with memory of `size` bytes, or none."""
        made = self.keep((types.Tensor * max(1, len(values)))())
        for index, value in enumerate(values):
            made[index] = self.tensor(value)
            room = self.keep(np.zeros(max(size, BYTES, 1), np.uint8))
            made[index].v1.clientBuf.data = None if null else room.ctypes.data
            made[index].v1.clientBuf.dataSize = size
        return made

    def run(self, graph: int, inputs: Any, outputs: Any, profile: Any = None, signal: Any = None) -> int:
        """Execute with lists of tensors, or with C arrays of one tensor; return the code."""
        sides = []
        for side in (inputs, outputs):
            sides += [self.with_memory(side), len(side)] if isinstance(side, list) else [side, 1]
        return self.code("graphExecute", graph, *sides, profile, signal)

    def running(self, change: Callable[[types.Tensor], Any], graph: int | None = None) -> int:
        """Execute with a change to the C structure of the input; return the code."""
        graph = self.ready() if graph is None else graph
        inputs = self.with_memory([self.x])
        change(inputs[0])
        return self.run(graph, inputs, [self.y])

    def making(self, function: str, *arguments: Any) -> int:
        """Call a function whose last argument is a place for a handle; return the code."""
        return self.code(function, *arguments, byref(self.keep(c_void_p())))

    def making_with_profile(self, function: str, *arguments: Any) -> int:
        """Call a function that takes a place for a handle and then a profile, without a profile; return the code."""
        return self.code(function, *arguments, byref(self.keep(c_void_p())), None)

    def context_with(self, option: int, name: str = "", value: Any = None) -> int:
        """Create a context with one config; return the code."""
        configs = self.configs(objects.ContextConfig, (option, name, value))
        return self.making("contextCreate", self.backend, self.device, configs)

    def graph_with(self, option: int, name: str = "", value: Any = None) -> int:
        """Create a graph with one config; return the code."""
        return self.making("graphCreate", self.context, b"g", self.configs(objects.GraphConfig, (option, name, value)))

    def restored(self, binary: bytes | None, size: int | None = None, function: str = "contextCreateFromBinary") -> int:
        """Create a context from a binary, or validate the binary; return the code."""
        room = None if binary is None else self.keep(ctypes.create_string_buffer(binary, len(binary)))
        count = len(binary or b"") if size is None else size
        arguments: list[Any] = [self.backend, self.device, None, room, count]
        if function != "contextValidateBinary":
            self.loaded = self.keep(c_void_p())
            arguments += [byref(self.loaded), None]
        return self.code(function, *arguments)

    def sized(self) -> int:
        """Return the code of contextGetBinarySize."""
        return self.code("contextGetBinarySize", self.context, byref(c_uint64()))

    def registering(self, kind: int, fd: int | None = None, count: int = 1, context: int | None = None) -> int:
        """Register memory of a kind; return the code. The handle is in `registered`."""
        descriptor = self.keep(objects.MemDescriptor())
        dims = self.keep((c_uint32 * 4)(*DIMS))
        descriptor.memShape.numDim, descriptor.memShape.dimSize = 4, dims
        descriptor.dataType, descriptor.memType = U8, kind
        fd = shared() if fd is None else fd
        if kind == 2:
            custom = self.keep(MEM_DESCRIPTOR())
            custom.type, custom.size, custom.sharedBufferConfig.fd = 1, 4096, fd
            descriptor.customInfo = ctypes.addressof(custom)
        elif kind == 3:
            descriptor.dmaBufInfo.fd = fd
        else:
            descriptor.ionInfo.fd = fd
        self.registered = self.keep(c_void_p())
        return self.code("memRegister", context or self.context, byref(descriptor), count, byref(self.registered))

    def signal(self, option: int = 1) -> tuple[int, int]:
        """Create a signal; return the code and the handle."""
        out = c_void_p()
        configs = self.configs(objects.SignalConfig, (option, "", None))
        return self.code("signalCreate", self.backend, configs, byref(out)), out.value or 0

    def profile(self, level: int = 1) -> int:
        """Create a profile."""
        return self.make("profileCreate", self.backend, level)

    def events(self, profile: int) -> list[Any]:
        """Return the code of profileGetEvents, and whether there are events."""
        listed, count = POINTER(c_uint64)(), c_uint32()
        return [self.code("profileGetEvents", profile, byref(listed), byref(count)), count.value > 0]

    def message(self, error: int, function: str = "errorGetMessage") -> list[Any]:
        """Return the code of an error message, and the name that the text begins with."""
        text = c_char_p()
        code = self.code(function, error, byref(text))
        return [code, (text.value or b"").decode().partition(":")[0]]

    def property(self, function: str, handle: int, option: int = 0) -> int:
        """Ask for a property without a place for it; return the code."""
        kind = objects.ContextProperty if function.startswith("context") else objects.Property
        request = self.keep(kind())
        request.option = option
        listed = self.keep((POINTER(kind) * 2)(ctypes.pointer(request)))
        return self.code(function, handle, listed)


def shared(nbytes: int = 4096) -> int:
    """Return a file descriptor of shared memory."""
    fd = os.memfd_create("differential")
    os.ftruncate(fd, nbytes)
    return fd


__all__ = ["BYTES", "DIMS", "F32", "I32", "NATIVE", "READ", "STATIC", "STEPS", "U8", "U32", "UNKNOWN", "WRITE", "Calls"]
