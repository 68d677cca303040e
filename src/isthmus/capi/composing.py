"""libQnnIr.so, libQnnSaver.so and libQnnDsp.so: backends on which graphs are composed and not executed, and one that is
not there.

Graphs are composed and checked as on any other backend. Besides, what the client passes is recorded. libQnnIr.so writes
a DLC of it when a graph is finalized; what libQnnSaver.so does with it is in saver.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from weakref import WeakKeyDictionary

from isthmus import qnn
from isthmus.backends.seam.facets import CFacet, LogFunction
from isthmus.cabi import other_backends
from isthmus.cabi.client import checked, pointer, read, text, write_number
from isthmus.cabi.objects import GraphConfig, GraphOption
from isthmus.cabi.types import OpConfig, Tensor
from isthmus.capi import graph as graphs
from isthmus.capi.context import ClientContext
from isthmus.capi.functions import serves
from isthmus.capi.graph import ClientGraph
from isthmus.capi.records import ClientProfile
from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.entries import ComposedTensor, NodeEntry
from isthmus.frontends.dlc import writing
from isthmus.log import LogLevel
from isthmus.qnn.recorder import Recording, composed_tensor
from isthmus.system.writing import rewrite
from isthmus.version import PRODUCER, __version__

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

IR, SAVER, DSP = "QnnIr", "QnnSaver", "QnnDsp"
# QNN_IR_GRAPH_CONFIG_OPTION_SERIALIZATION, and the only type of it.
_SERIALIZATION, _FLAT_BUFFER = 1, 1


def _read_elsewhere(address: int, log: LogFunction) -> dict[object, object]:
    """Return no settings: where a graph is written is no config of the graph (`_output_path`)."""
    return {}


FACETS = {
    IR: CFacet(*other_backends.IR, configs={"graph": _read_elsewhere}),
    SAVER: CFacet(*other_backends.SAVER),
    DSP: CFacet(*other_backends.DSP),
}
"""The libraries here, with what each presents."""


@dataclass
class GraphRecording(Recording):
    """A graph as a client composes it.

    - `variables`: The variables of its tensors in a program of Saver, by name.
    """

    path: str = ""
    is_final: bool = False
    variables: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


recordings: WeakKeyDictionary[ClientGraph, GraphRecording] = WeakKeyDictionary()
"""What was recorded of graphs."""
# Held while a DLC is written, which may have graphs that other threads finalize.
_writing = threading.Lock()


@contextmanager
def composition_of(graph: ClientGraph) -> Iterator[GraphRecording]:
    """Yield what was recorded of a graph that is not finalized, to one thread at a time."""
    composed = recordings[graph]
    with composed.lock:
        if composed.is_final:
            raise QnnError(Code.GRAPH_FINALIZED, f"graph '{composed.name}'", "it is finalized")
        yield composed


# -- graphs ------------------------------------------------------------------------------------------------------------


@serves("graphCreate", Code.GRAPH_INVALID_ARGUMENT, is_shielded=True, libraries=[IR])
def graph_create(
    server: LibraryServer, context: ClientContext, name: str | None, configs: list[GraphConfig]
) -> ClientGraph:
    """Create an empty graph, and note where its DLC is to be written."""
    path = _output_path(configs) if server.library == IR else None
    graph: ClientGraph = graphs.graph_create(server, context, name, configs)
    # As with the vendor's library, a graph without a path is written into the working folder.
    recordings[graph] = GraphRecording(graph.handle.name, path=f"{graph.handle.name}.dlc" if path is None else path)
    return graph


@serves("graphSetConfig", Code.GRAPH_INVALID_ARGUMENT, libraries=[IR])
def graph_set_config(server: LibraryServer, graph: ClientGraph, configs: list[GraphConfig]) -> None:
    """Change configs of a graph: where its DLC is to be written too."""
    with composition_of(graph) as composed:
        path = _output_path(configs)
        graphs.graph_set_config(server, graph, configs)
        if path is not None:
            composed.path = path


def _output_path(configs: list[GraphConfig]) -> str | None:
    """Return the path of the DLC that a client's configs name; None if they name none."""
    path = None
    for config in configs:
        if config.option == GraphOption.CUSTOM:
            custom = read(checked(config.customConfig), other_backends.IrGraphConfig)
            kind = custom.serializationOption.serializationType
            if custom.option != _SERIALIZATION or kind != _FLAT_BUFFER:
                rule = (
                    f"it has no custom config {custom.option} of type {kind}; it has QNN_IR_GRAPH_CONFIG_OPTION_"
                    "SERIALIZATION (1) of type QNN_IR_GRAPH_SERIALIZATION_TYPE_FLAT_BUFFER (1)"
                )
                raise QnnError(Code.GRAPH_INVALID_ARGUMENT, "IR graph", rule)
            path = text(checked(pointer(custom.serializationOption, "outputPath")))
    return path


@serves("tensorCreateGraphTensor", Code.TENSOR_INVALID_TENSOR_PARAM, libraries=[IR])
def tensor_create_graph_tensor(
    server: LibraryServer,
    graph: ClientGraph,
    tensor: int,
    record: Callable[[GraphRecording, int, ComposedTensor], object] = lambda composed, number, created: None,
) -> None:
    """Create a tensor, and record it; if `record` raises, no tensor is created."""
    with composition_of(graph) as composed:

        def add(number: int) -> None:
            created = composed_tensor(read(tensor, Tensor))
            record(composed, number, created)
            composed.tensors[number] = created

        graphs.tensor_create_graph_tensor(server, graph, tensor, add)


@serves("graphAddNode", Code.GRAPH_INVALID_ARGUMENT, libraries=[IR])
def graph_add_node(
    server: LibraryServer,
    graph: ClientGraph,
    config: int,
    record: Callable[[GraphRecording, NodeEntry], object] = lambda composed, node: None,
) -> None:
    """Add a node, and record it; if `record` raises, no node is added."""
    with composition_of(graph) as composed:

        def add() -> None:
            described = read(config, OpConfig)
            node = composed.describe_node(described)
            record(composed, node)
            composed.add_node(described, node)

        graphs.graph_add_node(server, graph, config, add)


@serves("graphFinalize", Code.GRAPH_INVALID_ARGUMENT, libraries=[IR])
def graph_finalize(
    server: LibraryServer, graph: ClientGraph, profile: ClientProfile | None, signal: qnn.Signal | None
) -> None:
    """Write the DLC of a graph. Graphs of a context that name one file are all in it."""
    with composition_of(graph) as composed, _writing:
        check_nodes(composed)
        together = [*(each for each in _finalized_graphs(graph.context) if each.path == composed.path), composed]
        data = writing.dlc([each.entry for each in together], PRODUCER, __version__)
        try:
            with rewrite(Path(composed.path)) as stream:
                stream.write(data)
        except (OSError, ValueError) as problem:
            rule = f"its DLC '{composed.path}' cannot be written: {problem}"
            raise QnnError(Code.GRAPH_FINALIZE_FAILED, f"graph '{composed.name}'", rule) from None
        composed.is_final = True
    server.log(LogLevel.INFO, f"graph '{composed.name}' is written to '{composed.path}'")


def check_nodes(composed: GraphRecording) -> None:
    """Refuse to finalize a graph without nodes."""
    if not composed.nodes:
        raise QnnError(Code.GRAPH_FINALIZE_FAILED, f"graph '{composed.name}'", "it has no nodes")


def _finalized_graphs(context: ClientContext) -> list[GraphRecording]:
    """Return the finalized graphs of a context, in the order of their creation."""
    composed = [recordings[graph] for graph in list(context.graphs.values()) if graph in recordings]
    return [each for each in composed if each.is_final]


# -- what is not there -------------------------------------------------------------------------------------------------


def refuse_all(library: str, names: Iterable[str], reason: QnnError, creates: bool = False) -> None:
    """Register functions of a library that refuse every call for this reason."""

    def refuse(server: LibraryServer, *arguments: int) -> NoReturn:
        """Refuse the call."""
        if creates:
            # The last argument is the place of what is created.
            write_number(arguments[-1], 0)
        raise QnnError(reason.code, reason.what, reason.rule, reason.hint)

    for name in names:
        serves(name, libraries=[library])(refuse)


EXECUTING = (
    "graphExecute", "graphExecuteAsync", "contextGetBinarySize", "contextGetBinary", "contextCreateFromBinary",
    "contextCreateFromBinaryWithSignal", "contextCreateFromBinaryListAsync", "contextCreateFromBinaryWithCallback",
    "contextValidateBinary", "memRegister",
)  # fmt: skip
"""Functions of backends that execute."""
_rule = "graphs are composed there and written to DLC files; they are neither executed nor kept in context binaries"
_hint = "Compose the DLC on a backend such as libQnnHtp.so (QnnSystemDlc_composeGraphs)."
refuse_all(IR, EXECUTING, QnnError(Code.COMMON_NOT_SUPPORTED, "IR backend", _rule, _hint))
_rule, _hint = "there is no such processor on this machine, and none is simulated", "Load libQnnHtp.so instead."
_missing = QnnError(Code.COMMON_PLATFORM_NOT_SUPPORTED, "DSP backend", _rule, _hint)
refuse_all(DSP, ("backendCreate", "deviceCreate", "deviceGetPlatformInfo"), _missing, creates=True)
