"""The program of the process that runs the vendor's library: the requests that it answers."""

from __future__ import annotations

import ctypes
import mmap
import sys
import time
from collections.abc import Callable
from ctypes import POINTER, byref, c_uint32, c_uint64, c_void_p
from typing import Any

import numpy as np

from isthmus.backends.foreign.serving import CallError, serve
from isthmus.backends.htp.headers import MEM_DESCRIPTOR
from isthmus.backends.vendor.calls import BackendLibrary, SystemLibrary
from isthmus.backends.vendor.structures import describe, device_configs, graph_configs, handle_memory
from isthmus.cabi.objects import MemDescriptor
from isthmus.cabi.system import BinaryInfo
from isthmus.cabi.types import Tensor
from isthmus.cabi.writer import Keeps, write_node, write_tensor
from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.entries import ComposedTensor, GraphEntry
from isthmus.frontends.composed.serialization import read as read_graphs
from isthmus.graph.datatypes import TensorType
from isthmus.system.channel import Message

_IO = (TensorType.APP_WRITE, TensorType.APP_READ)
# QNN_MEM_TYPE_CUSTOM.
_CUSTOM_MEMORY = 2


class Server:
    """What the process holds: the libraries, one context, its graphs and memory handles."""

    def __init__(self, stage: mmap.mmap) -> None:
        self._stage = stage
        self._library: BackendLibrary | None = None
        self._system_path = ""
        self._system: SystemLibrary | None = None
        self._backend = self._device = self._context = c_void_p()
        self._target: dict[str, Any] = {}
        self._graphs: dict[str, c_void_p] = {}
        self._tensors: dict[str, dict[str, Tensor]] = {}
        """The inputs and outputs of each graph, by name, as the library knows them."""
        self._keeps: Keeps = []

    @property
    def library(self) -> BackendLibrary:
        """The HTP library."""
        assert self._library is not None
        return self._library

    def answer(self, message: Message) -> Message:
        """Do what a request asks for."""
        arguments = dict(message.header)
        handler: Callable[..., Any] = getattr(self, f"do_{arguments.pop('call')}")
        if self._library is not None:
            self._library.log.clear()
        try:
            answer = handler(message, **arguments)
            return answer if isinstance(answer, Message) else Message(answer or {})
        except CallError as problem:
            log = list(self.library.log) if self._library is not None else []
            return Message({"code": problem.code, "function": problem.function, "log": log})
        except QnnError as problem:
            return Message({"code": int(problem.code), "function": problem.what, "log": [problem.rule]})
        except OSError as problem:
            return Message({"code": int(Code.COMMON_LOADING_BINARIES), "function": "dlopen", "log": [str(problem)]})
        except (LookupError, TypeError, ValueError) as problem:
            log = [f"{type(problem).__name__}: {problem}"]
            return Message({"code": int(Code.COMMON_GENERAL), "function": "the request", "log": log})

    def do_open(self, message: Message, backend: str, system: str, log_level: int) -> dict[str, Any]:
        """Load the libraries."""
        self._library = BackendLibrary(backend, log_level, self._stage)
        self._system_path = system
        return {"build": self._library.build, "versions": self._library.versions}

    def do_context(self, message: Message, target: dict[str, Any]) -> dict[str, Any]:
        """Create a backend, a device for a target, and an empty context."""
        self._open_device(target)
        self._context = self.library.handle("contextCreate", self._backend, self._device, None)
        return {"log": list(self.library.log)}

    def _open_device(self, target: dict[str, Any]) -> None:
        library, keeps = self.library, Keeps()
        self._target = target
        self._backend = library.handle("backendCreate", library.log_handle, None)
        try:
            self._device = library.handle("deviceCreate", library.log_handle, device_configs(target, keeps))
        except CallError:
            library.code("backendFree", self._backend)
            raise

    def do_close_context(self, message: Message) -> None:
        """Free the context, the device and the backend, so that another target can follow."""
        library = self.library
        library.code("contextFree", self._context, None)
        library.code("deviceFree", self._device)
        library.code("backendFree", self._backend)
        self._graphs.clear()
        self._tensors.clear()
        self._keeps.clear()

    def do_compose(self, message: Message, name: str) -> dict[str, Any]:
        """Create a graph with all its tensors and nodes."""
        (entry,) = read_graphs(memoryview(message.sections["graph"]), "the parent process")
        library, keeps = self.library, Keeps()
        begun = time.perf_counter()
        graph = c_void_p()
        configs = graph_configs(self._target, keeps)
        library.call("graphCreate", self._context, name.encode(), configs, byref(graph))
        tensors = self._create_tensors(graph, entry, keeps)
        for node in entry.nodes:
            config = write_node(node, tensors, keeps)
            library.call("graphAddNode", graph, config, of=f" of node '{node.name}' ({node.type})")
        self._graphs[name] = graph
        self._tensors[name] = {each.name: tensors[each.name] for each in entry.tensors if each.type in _IO}
        # Structures of inputs and outputs are used again by executions; they point into this list.
        self._keeps.append((message, keeps))
        return {"seconds": time.perf_counter() - begun}

    def _create_tensors(self, graph: c_void_p, entry: GraphEntry, keeps: Keeps) -> dict[str, Tensor]:
        """Create the tensors of a graph, also those of parameters; return them by name."""
        library = self.library
        made: dict[str, Tensor] = {}
        params = [value for node in entry.nodes for value in node.params.values() if isinstance(value, ComposedTensor)]
        for each in (*entry.tensors, *params):
            structure = write_tensor(each, keeps, version=1)
            if each.type != TensorType.NULL:
                library.call("tensorCreateGraphTensor", graph, byref(structure), of=f" of tensor '{each.name}'")
            made[each.name] = structure
        return made

    def do_finalize(self, message: Message, name: str) -> dict[str, Any]:
        """Compile a graph; return the DDR traffic that the library logs too."""
        begun = time.perf_counter()
        self.library.traffic.clear()
        self.library.call("graphFinalize", self._graphs[name], None, None)
        return {"seconds": time.perf_counter() - begun, "traffic": dict(self.library.traffic)}

    def _binary(self) -> bytes:
        size, written = c_uint64(), c_uint64()
        # The library needs to be asked for the size first.
        self.library.call("contextGetBinarySize", self._context, byref(size))
        room = ctypes.create_string_buffer(size.value)
        self.library.call("contextGetBinary", self._context, room, size.value, byref(written))
        return room.raw[: written.value]

    def do_binary(self, message: Message) -> Message:
        """Return the context as a binary."""
        return Message({}, {"binary": self._binary()})

    def do_describe(self, message: Message) -> dict[str, Any]:
        """Describe a binary that is given, or that of the context."""
        return self._describe(message.sections.get("binary") or self._binary())

    def _describe(self, binary: bytes | memoryview) -> dict[str, Any]:
        """Describe a binary by the system library."""
        if self._system is None:
            self._system = SystemLibrary(self._system_path, self._stage)
        content = np.frombuffer(binary, np.uint8)
        handle = self._system.handle("systemContextCreate")
        info, size = POINTER(BinaryInfo)(), c_uint64()
        try:
            self._system.call(
                "systemContextGetBinaryInfo", handle, content.ctypes.data, content.nbytes, byref(info), byref(size)
            )
            return {"bytes": content.nbytes, **describe(info.contents)}
        finally:
            self._system.code("systemContextFree", handle)

    def do_restore(self, message: Message, target: dict[str, Any]) -> dict[str, Any]:
        """Create a context from a binary; return its description."""
        content = np.frombuffer(message.sections["binary"], np.uint8)
        answer = self._describe(message.sections["binary"])
        self._open_device(target)
        library = self.library
        self._context = c_void_p()
        library.call(
            "contextCreateFromBinary", self._backend, self._device, None, content.ctypes.data, content.nbytes,
            byref(self._context), None,
        )  # fmt: skip
        self._keeps.append(message)
        for graph in answer["graphs"]:
            handle = c_void_p()
            library.call("graphRetrieve", self._context, graph["name"].encode(), byref(handle))
            self._graphs[graph["name"]] = handle
            entries = [
                (ComposedTensor(each["name"], kind, each["dtype"], tuple(each["dims"])), each["id"])
                for kind, side in zip(_IO, ("inputs", "outputs"), strict=True)
                for each in graph[side]
            ]
            self._tensors[graph["name"]] = {
                entry.name: write_tensor(entry, self._keeps, 1, number) for entry, number in entries
            }
        return answer

    def do_execute(self, message: Message, name: str, inputs: list[Any], outputs: list[Any]) -> Message:
        """Execute a graph.

        Inputs and outputs are given as name, number of bytes and memory handle. Without a handle (0), the bytes of an
        input are in the request's section of that name, and those of an output go to the answer's.
        """
        tensors = self._tensors[name]
        results = {each: np.zeros(size, np.uint8) for each, size, handle in outputs if not handle}
        content = {each: np.frombuffer(message.sections[each], np.uint8) for each, _, handle in inputs if not handle}
        sides = []
        for side, arrays in ((inputs, content), (outputs, results)):
            array = (Tensor * max(1, len(side)))()
            for index, (each, _, handle) in enumerate(side):
                array[index] = tensors[each]
                if handle:
                    handle_memory(array[index], handle)
                else:
                    array[index].v1.clientBuf.data = arrays[each].ctypes.data
                    array[index].v1.clientBuf.dataSize = arrays[each].nbytes
            sides.append(array)
        self.library.call("graphExecute", self._graphs[name], sides[0], len(inputs), sides[1], len(outputs), None, None)
        return Message({}, {each: array.data for each, array in results.items()})

    def do_register(self, message: Message, memories: list[dict[str, Any]]) -> dict[str, Any]:
        """Register memory by descriptors that come with the request, all or none; return the handles."""
        made: list[int] = []
        try:
            for fd, fields in zip(message.descriptors, memories, strict=True):
                made.append(self._register(fd, fields))
        except CallError:
            for each in made:
                self._deregister(each)
            raise
        finally:
            message.close()
        return {"handles": made}

    def _register(self, fd: int, fields: dict[str, Any]) -> int:
        """Register the memory of one tensor; `fields` are those of QNN's memory descriptor."""
        dims = (c_uint32 * max(1, len(fields["dims"])))(*fields["dims"])
        descriptor = MemDescriptor()
        descriptor.memShape.numDim, descriptor.memShape.dimSize = len(fields["dims"]), dims
        descriptor.dataType, descriptor.memType = fields["dtype"], fields["mem_type"]
        custom = MEM_DESCRIPTOR()
        if fields["mem_type"] == _CUSTOM_MEMORY:
            custom.type, custom.size = fields["type"], fields["size"]
            custom.sharedBufferConfig.fd, custom.sharedBufferConfig.offset = fd, fields["offset"]
            descriptor.customInfo = ctypes.addressof(custom)
        else:
            descriptor.ionInfo.fd = fd
        handle = c_void_p()
        self.library.call("memRegister", self._context, byref(descriptor), 1, byref(handle))
        assert handle.value is not None
        return handle.value

    def do_deregister(self, message: Message, handles: list[int]) -> None:
        """Deregister memory."""
        for handle in handles:
            self._deregister(handle)

    def _deregister(self, handle: int) -> None:
        self.library.call("memDeRegister", byref(c_void_p(handle)), 1)

    def do_validate(self, message: Message, target: dict[str, Any]) -> dict[str, Any]:
        """Validate the nodes of a graph that is never created; return the code of each, and its log."""
        (entry,) = read_graphs(memoryview(message.sections["graph"]), "the parent process")
        if not self._backend:
            self._open_device(target)
        answers = []
        for node in entry.nodes:
            keeps = Keeps()
            params = [value for value in node.params.values() if isinstance(value, ComposedTensor)]
            tensors = {each.name: write_tensor(each, keeps, version=1) for each in (*entry.tensors, *params)}
            self.library.log.clear()
            config = write_node(node, tensors, keeps)
            code = self.library.code("backendValidateOpConfig", self._backend, config, of=f" of {node.type}")
            answers.append({"code": code, "log": list(self.library.log)})
        return {"answers": answers}


if __name__ == "__main__":
    serve(sys.argv[1:], lambda stage: Server(stage).answer)
