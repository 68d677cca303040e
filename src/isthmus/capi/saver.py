"""libQnnSaver.so: records the calls with which a client composes and executes graphs, as a program in C.

Nothing is executed. The program is written when a graph is finalized, when a backend is freed, and at the end.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus import qnn
from isthmus.backends.seam.staging import require_memory
from isthmus.cabi.client import checked, listed, pointer, read_large, text
from isthmus.cabi.objects import BackendConfig, ContextConfig, DeviceConfig, GraphConfig
from isthmus.cabi.other_backends import SaverConfig, SaverOption
from isthmus.capi import backend as backends
from isthmus.capi import composing
from isthmus.capi import context as contexts
from isthmus.capi import device as devices
from isthmus.capi.composing import SAVER, GraphRecording
from isthmus.capi.context import ClientContext
from isthmus.capi.device import ClientDevice
from isthmus.capi.execution import read_tensors
from isthmus.capi.functions import TABLE, serves
from isthmus.capi.graph import ClientGraph
from isthmus.capi.records import ClientProfile
from isthmus.capi.saver_program import SaverProgram
from isthmus.capi.saver_program import text as quoted
from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.entries import ComposedTensor, NodeEntry
from isthmus.graph import Tensor as GraphTensor
from isthmus.graph import TensorInfo
from isthmus.log import Log
from isthmus.qnn.tensor import ClientTensor, match_tensors
from isthmus.version import PRODUCER

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer


@dataclass
class _Recorder:
    """The recording of a library.

    - `folder`, `program_name`, `data_name`: Where it is written: a folder, which is created with the first call, and
      the names of its two files.
    - `variables`: The variables of handles in the program, by the objects of the handles.
    """

    folder: Path = Path("saver_output")
    program_name: str = "saver_output.c"
    data_name: str = "params.bin"
    variables: dict[object, str] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    opening: threading.Lock = field(default_factory=threading.Lock)
    program: SaverProgram | None = None


# The recorders by the id of their library's server; servers are never freed.
_recorders: dict[int, _Recorder] = {}


def _recorder(server: LibraryServer) -> _Recorder:
    return _recorders.setdefault(id(server), _Recorder())


def _program(server: LibraryServer) -> SaverProgram:
    """Return the program of a library's recording, beginning it if needed."""
    recorder = _recorder(server)
    with recorder.opening:
        if recorder.program is None:
            with _writing(recorder):
                recorder.folder.mkdir(parents=True, exist_ok=True)
                folder = recorder.folder.resolve()
                recorder.program = SaverProgram(folder / recorder.program_name, folder / recorder.data_name, PRODUCER)
            server.endings[id(recorder)] = lambda: _end(server)
        return recorder.program


@contextmanager
def _writing(recorder: _Recorder) -> Iterator[None]:
    """Tell the client if the block cannot write the recording."""
    try:
        yield
    except (OSError, ValueError) as problem:
        rule = f"it cannot be written: {problem}"
        raise QnnError(Code.COMMON_SYSTEM, f"recording in '{recorder.folder}'", rule) from None


@contextmanager
def _recording(server: LibraryServer) -> Iterator[SaverProgram]:
    """Yield the program of a library's recording; tell the client if the block cannot write it."""
    program = _program(server)
    with _writing(_recorder(server)):
        yield program


def _end(server: LibraryServer) -> None:
    """Write the program, and close its files."""
    with _recording(server) as program:
        program.close()


@serves("QnnSaver_initialize")
def initialize(server: LibraryServer, configs: int) -> None:
    """Set where the recording is written, before the first call."""
    recorder, stamp = _Recorder(), ""
    for config in listed(configs, SaverConfig):
        if config.option == SaverOption.OUTPUT_DIRECTORY:
            recorder.folder = Path(_name(pointer(config, "outputDirectory"), "output directory"))
        elif config.option == SaverOption.APPEND_TIMESTAMP:
            stamp = time.strftime("_%Y%m%d_%H%M%S") if config.appendTimestamp else ""
        elif config.option == SaverOption.FILE_CONFIG:
            files = config.fileConfig
            recorder.program_name = Path(_name(pointer(files, "modelFileName"), "name of the program")).name
            recorder.data_name = Path(_name(pointer(files, "dataFileName"), "name of the data file")).name
        elif config.option != SaverOption.BACKEND_ID:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "Saver", f"it has no config {config.option}")
    # Not with_name: "." and "/" have no name.
    recorder.folder = recorder.folder.parent / (recorder.folder.name + stamp)
    if _recorders.setdefault(id(server), recorder) is not recorder:
        raise QnnError(Code.SAVER_ALREADY_INSTANTIATED, "Saver", "it can be initialized once, before all other calls")


def _name(address: int, noun: str) -> str:
    """Return a name that a config has."""
    name = text(checked(address))
    if not name:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "Saver", f"its {noun} is empty")
    return name


# -- objects -----------------------------------------------------------------------------------------------------------


def _record_creation(server: LibraryServer, kind: str, created: object, call: str, *arguments: str) -> None:
    """Record a call that has created an object."""
    recorder = _recorder(server)
    variable = f"{kind.lower()}_{next(recorder.numbers)}"
    recorder.variables[created] = variable
    passed = ", ".join((*arguments, f"&{variable}"))
    _program(server).add(f"CALL({call}, {passed});", variable=f"Qnn_{kind}Handle_t {variable}")


def _variable(server: LibraryServer, thing: object) -> str:
    """Return the variable of an object's handle; NULL for none."""
    return _recorder(server).variables.get(thing, "NULL")


@serves("backendCreate", Code.BACKEND_INVALID_ARGUMENT, is_shielded=True, libraries=[SAVER])
def backend_create(server: LibraryServer, log: Log | None, configs: list[BackendConfig]) -> qnn.Backend:
    """Create a backend. Its configs are not recorded, like those of other objects."""
    _program(server)
    backend: qnn.Backend = backends.backend_create(server, log, configs)
    _record_creation(server, "Backend", backend, "backendCreate", "NULL", "NULL")
    return backend


@serves("deviceCreate", libraries=[SAVER])
def device_create(server: LibraryServer, log: Log | None, configs: list[DeviceConfig]) -> ClientDevice:
    """Create a device."""
    _program(server)
    device: ClientDevice = devices.device_create(server, log, configs)
    _record_creation(server, "Device", device, "deviceCreate", "NULL", "NULL")
    return device


@serves("contextCreate", Code.CONTEXT_INVALID_ARGUMENT, libraries=[SAVER])
def context_create(
    server: LibraryServer, backend: qnn.Backend, device: ClientDevice | None, configs: list[ContextConfig]
) -> ClientContext:
    """Create a context."""
    context: ClientContext = contexts.context_create(server, backend, device, configs)
    owner = _variable(server, backend), _variable(server, device)
    _record_creation(server, "Context", context, "contextCreate", *owner, "NULL")
    return context


def _frees(name: str, *more: str) -> None:
    """Register a function that frees an object, records it, and writes the program."""
    function = TABLE[name]

    def free(server: LibraryServer, handle: int, *arguments: int) -> None:
        """Free an object."""
        freed = dict(server.handles.of_kind(object)).get(handle)
        function.call(server, handle, *arguments)
        variable = _recorder(server).variables.pop(freed, "NULL")
        _program(server).add(f"CALL({name}, {', '.join((variable, *more))});")
        # The object is freed, so the call stays recorded even if it cannot be written yet.
        with _recording(server) as program:
            program.write()

    serves(name, function.invalid, libraries=[SAVER])(free)


_frees("backendFree")
_frees("deviceFree")
_frees("contextFree", "NULL")

# -- graphs ------------------------------------------------------------------------------------------------------------


@serves("graphCreate", Code.GRAPH_INVALID_ARGUMENT, is_shielded=True, libraries=[SAVER])
def graph_create(
    server: LibraryServer, context: ClientContext, name: str | None, configs: list[GraphConfig]
) -> ClientGraph:
    """Create a graph."""
    graph: ClientGraph = composing.graph_create(server, context, name, configs)
    passed = _variable(server, context), quoted(graph.handle.name), "NULL"
    _record_creation(server, "Graph", graph, "graphCreate", *passed)
    return graph


@serves("tensorCreateGraphTensor", Code.TENSOR_INVALID_TENSOR_PARAM, libraries=[SAVER])
def tensor_create_graph_tensor(server: LibraryServer, graph: ClientGraph, tensor: int) -> None:
    """Create a tensor."""

    def record(composed: GraphRecording, number: int, created: ComposedTensor) -> None:
        variable = f"{_variable(server, graph)}_tensor_{number}"
        with _recording(server) as program:
            described = program.tensor(variable, created)
        call = f"CALL(tensorCreateGraphTensor, {_variable(server, graph)}, &{variable});"
        program.add(*described, call, variable=f"Qnn_Tensor_t {variable}")
        composed.variables[created.name] = variable

    composing.tensor_create_graph_tensor(server, graph, tensor, record)


@serves("graphAddNode", Code.GRAPH_INVALID_ARGUMENT, libraries=[SAVER])
def graph_add_node(server: LibraryServer, graph: ClientGraph, config: int) -> None:
    """Add a node."""

    def record(composed: GraphRecording, node: NodeEntry) -> None:
        with _recording(server) as program:
            described = program.node(node, composed.variables)
        program.add(*described, f"CALL(graphAddNode, {_variable(server, graph)}, node);")

    composing.graph_add_node(server, graph, config, record)


@serves("graphFinalize", Code.GRAPH_INVALID_ARGUMENT, libraries=[SAVER])
def graph_finalize(
    server: LibraryServer, graph: ClientGraph, profile: ClientProfile | None, signal: qnn.Signal | None
) -> None:
    """Record that a graph is finalized, and write the program."""
    with composing.composition_of(graph) as composed, _recording(server) as program:
        composing.check_nodes(composed)
        program.add(f"CALL(graphFinalize, {_variable(server, graph)}, NULL, NULL);", now=True)
        composed.is_final = True


@serves("graphExecute", Code.GRAPH_INVALID_ARGUMENT, libraries=[SAVER])
def graph_execute(
    server: LibraryServer, graph: ClientGraph, inputs: int, input_count: int, outputs: int, output_count: int,
    profile: ClientProfile | None, signal: qnn.Signal | None,
) -> None:  # fmt: skip
    """Record an execution with the bytes of its inputs, checked as on other backends. Outputs are left as they are."""
    composed = composing.recordings[graph]
    if not composed.is_final:
        raise QnnError(Code.GRAPH_NOT_FINALIZED, f"graph '{composed.name}'", "it is not finalized")
    signature = graph.handle.driver.graph.inputs, graph.handle.driver.graph.outputs
    tensors = read_tensors(server, graph, inputs, input_count, outputs, output_count, *signature)
    read_buffers, written_buffers = map(partial(_buffers, graph), ("input", "output"), tensors, signature)
    lines = []
    with _recording(server) as program:
        for side, buffers in (("inputs", read_buffers), ("outputs", written_buffers)):
            lines.append(f"Qnn_Tensor_t {side}[{max(len(buffers), 1)}];")
            for index, (info, address) in enumerate(buffers):
                held = f"calloc(1, {max(info.nbytes, 1)})"
                if side == "inputs":
                    held = program.store(read_large(address, info.nbytes) if info.nbytes else b"")
                lines += [
                    f"{side}[{index}] = {composed.variables[info.name]};",
                    f"{side}[{index}].v1.clientBuf.data = {held};",
                    f"{side}[{index}].v1.clientBuf.dataSize = {info.nbytes};",
                ]
    passed = f"inputs, {len(read_buffers)}, outputs, {len(written_buffers)}, NULL, NULL"
    program.add(*lines, f"CALL(graphExecute, {_variable(server, graph)}, {passed});")


def _buffers(
    graph: ClientGraph, kind: str, tensors: Sequence[ClientTensor], signature: Sequence[GraphTensor]
) -> list[tuple[TensorInfo, int]]:
    """Return the graph's inputs or outputs, with the addresses of the client's memory, which is large enough."""
    infos, what = [TensorInfo.of(tensor) for tensor in signature], graph.handle.what
    buffers = []
    for info, client in zip(infos, match_tensors(what, kind, tensors, infos), strict=True):
        memory = None if client is None else client.memory(info, graph.handle.context, writable=kind == "output")
        buffers.append((info, require_memory(what, info, memory, "Saver").window.address))
    return buffers


_rule = "calls are recorded here, and nothing is prepared or executed"
composing.refuse_all(SAVER, composing.EXECUTING[1:], QnnError(Code.SAVER_DUMMY_RETVALUE, "Saver", _rule))
