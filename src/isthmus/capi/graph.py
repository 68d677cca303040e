"""QnnGraph_* and QnnTensor_*: composing, configuring and finalizing graphs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus import qnn
from isthmus.cabi import types
from isthmus.cabi.client import checked, write_number
from isthmus.cabi.objects import GraphConfig, GraphOption
from isthmus.cabi.tensors import check_dense
from isthmus.capi import options
from isthmus.capi.context import ClientContext
from isthmus.capi.functions import handle_type, serves
from isthmus.capi.records import ClientProfile
from isthmus.capi.values import ClientTensorInfo, node_at, tensor_at
from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.encodings import narrow_bits
from isthmus.frontends.composed.recurrent import add_batch_first
from isthmus.graph import Tensor, TensorInfo, TensorMemType, TensorType

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

IoTensor = Tensor | TensorInfo
"""An input or output of a graph that the client composed, or of one from a binary."""
# Where a client's tensor has its id, in every version.
_ID_OFFSET = types.Tensor.v1.offset + types.TensorV1.id.offset


@handle_type("Qnn_GraphHandle_t", "graph", Code.GRAPH_INVALID_HANDLE)
@dataclass(eq=False)
class ClientGraph:
    """A client's graph.

    - `formats`: The formats of inputs and outputs that are not dense, with the tensors (`CFacet.formats`).
    - `profile`: The handle of the profile for every execution, if the client has set one; 0 otherwise.
    """

    handle: qnn.Graph
    context: ClientContext
    tensors: dict[int, Tensor] = field(default_factory=dict)
    formats: dict[int, list[Tensor]] = field(default_factory=dict)
    profile: int = 0

    def io_tensors(self) -> Mapping[int, IoTensor]:
        """Return inputs and outputs by the client's ids."""
        if self.tensors:
            io = (TensorType.APP_WRITE, TensorType.APP_READ)
            return {number: tensor for number, tensor in self.tensors.items() if tensor.type in io}
        # From a binary: numbered as in `systemContextGetBinaryInfo`.
        return dict(enumerate(self.handle.info.tensors, 1))


@serves("graphSetConfig", Code.GRAPH_INVALID_ARGUMENT)
def graph_set_config(server: LibraryServer, graph: ClientGraph, configs: list[GraphConfig]) -> None:
    """Change configs of a graph: all or none."""
    settings: dict[Any, Any] = {}
    profile = graph.profile
    for config in configs:
        if config.option == GraphOption.CUSTOM:
            settings.update(options.settings(server, "graph", checked(config.customConfig)))
        elif config.option == GraphOption.PRIORITY:
            settings[qnn.GraphConfig.PRIORITY] = config.priority
        elif config.option == GraphOption.PROFILE_HANDLE:
            ClientProfile.of(server, config.profileHandle or 0)
            profile = config.profileHandle or 0
        else:
            options.log_unused(server, "graph", GraphOption, config.option, Code.COMMON_NOT_SUPPORTED)
    if settings:
        graph.handle.set_config(settings)
    graph.profile = profile


@serves("graphCreate", Code.GRAPH_INVALID_ARGUMENT, is_shielded=True)
def graph_create(
    server: LibraryServer, context: ClientContext, name: str | None, configs: list[GraphConfig]
) -> ClientGraph:
    """Create an empty graph."""
    graph = ClientGraph(context.handle.create_graph(name or ""), context)
    if context.priority is not None:
        graph.handle.set_config(qnn.GraphConfig.PRIORITY, context.priority)
    try:
        graph_set_config(server, graph, configs)
    except Exception:
        context.handle.drop_graph(graph.handle.driver.graph)
        raise
    context.graphs[graph.handle.name] = graph
    return graph


@serves("tensorCreateGraphTensor", Code.TENSOR_INVALID_TENSOR_PARAM)
def tensor_create_graph_tensor(
    server: LibraryServer, graph: ClientGraph, tensor: int, record: Callable[[int], object] = lambda number: None
) -> None:
    """Create a tensor, and write its id into the client's description; if `record` raises, no tensor is created."""
    if not tensor:
        raise QnnError(Code.TENSOR_INVALID_HANDLE, "tensor", "its description is null")
    info = tensor_at(tensor)
    if info.type is TensorType.NULL:
        return
    is_io = info.type in (TensorType.APP_WRITE, TensorType.APP_READ)
    is_other = is_io and info.data_format in server.facet.formats
    if not is_other:
        check_dense(info.what, info.data_format)
    if info.type is TensorType.STATIC and info.mem_type is not types.TensorMemType.RAW:
        raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, info.what, "the memory type of a static tensor must be RAW")
    data = info.contents() if info.type in (TensorType.STATIC, TensorType.APP_READWRITE) else None
    # An undefined memory type means RAW, not memory handles.
    kind = TensorMemType.MEMHANDLE if info.mem_type is types.TensorMemType.MEMHANDLE else TensorMemType.RAW
    created = graph.handle.create_tensor(
        info.name, info.type, info.dtype, info.dims, narrow_bits(info.quantization, data), data, mem_type=kind
    )
    number = len(graph.tensors) + 1
    try:
        write_number(tensor + _ID_OFFSET, number, ctypes.c_uint32)
        record(number)
    except BaseException:
        # By its name: another thread may have created a tensor meanwhile.
        del graph.handle.driver.graph.tensors[created.name]
        raise
    graph.tensors[number] = created
    if is_other:
        graph.formats.setdefault(info.data_format, []).append(created)


@serves("tensorCreateContextTensor", Code.TENSOR_INVALID_TENSOR_PARAM)
def tensor_create_context_tensor(server: LibraryServer, context: ClientContext, tensor: int) -> None:
    """Refuse: tensors shared by several graphs are not supported."""
    raise QnnError(Code.COMMON_NOT_SUPPORTED, "context tensor", "tensors belong to one graph here")


@serves("graphAddNode", Code.GRAPH_INVALID_ARGUMENT)
def graph_add_node(
    server: LibraryServer, graph: ClientGraph, config: int, record: Callable[[], object] = lambda: None
) -> None:
    """Add a node on existing tensors; if `record`, which is called last, raises, no node is added."""

    def static(number: int) -> np.ndarray | None:
        """Return the contents of a created tensor by id, for a parameter that only refers to it."""
        created = graph.tensors.get(number)
        return None if created is None else created.data

    node = node_at(config, static)
    operations = graph.handle.driver.graph.operations
    node.check_package(operations, Code.GRAPH_UNCONNECTED_NODE, Code.GRAPH_INVALID_OP_CONFIG)
    read = [_find_tensor(graph, node.what, info) for info in node.inputs]
    written = [_find_tensor(graph, node.what, info) for info in node.outputs]
    if None in written:
        raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, node.what, "an output cannot be absent")
    node.check_floats(Code.GRAPH_INVALID_OP_CONFIG)
    outputs = [each for each in written if each is not None]
    add, x = graph.handle.add_node, read[0] if read else None
    with graph.handle.driver.graph.all_or_none(outputs):
        if node.batch_first and x is not None and outputs and x.rank == outputs[0].rank == 3:
            add_batch_first(graph.handle.driver.graph, node.name, node.op, x, read[1:], outputs, node.params, add)
        else:
            add(node.name, node.key, read, outputs, node.graph_params())
        record()
    for info, each in zip([*node.inputs, *node.outputs], [*read, *written], strict=True):
        # The memory type may be set on the tensor or on a node; a description that does not set it says RAW.
        if each is not None and info.mem_type is types.TensorMemType.MEMHANDLE:
            each.mem_type = TensorMemType.MEMHANDLE
    # A binary that was made for getBinarySize lacks this node.
    graph.context.binary = None


def _find_tensor(graph: ClientGraph, what: str, info: ClientTensorInfo) -> Tensor | None:
    """Return the tensor that a client refers to by its id; None for an operand that is left out."""
    # The client repeats the tensor's description in the node. It must be that of the tensor with this id.
    if info.type is TensorType.NULL:
        return None
    tensor = graph.tensors.get(info.id)
    if tensor is None:
        rule = f"tensor '{info.name}' has the id {info.id}, and the graph none of that id"
        hint = "Create the tensor first; its id is written into its description."
        raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, what, rule, hint)
    if info.name and info.name != tensor.name:
        rule = f"tensor '{info.name}' has the id {info.id}, which is that of '{tensor.name}'"
        raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, what, rule)
    is_io = tensor.type in (TensorType.APP_WRITE, TensorType.APP_READ)
    if info.mem_type is types.TensorMemType.MEMHANDLE and not is_io:
        rule = f"tensor '{tensor.name}' is MEMHANDLE there, which only graph inputs and outputs may be"
        raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, what, rule)
    if (info.dtype, info.dims) != (tensor.dtype, tensor.dims):
        rule = (
            f"tensor '{tensor.name}' is described as {info.dtype.name}{list(info.dims)}, "
            f"and was created as {tensor.dtype.name}{list(tensor.dims)}"
        )
        raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, what, rule)
    return tensor


@serves("graphFinalize", Code.GRAPH_INVALID_ARGUMENT)
def graph_finalize(
    server: LibraryServer, graph: ClientGraph, profile: ClientProfile | None, signal: qnn.Signal | None
) -> None:
    """Prepare a graph for execution; a signal has no effect here."""
    for data_format, tensors in graph.formats.items():
        server.facet.formats[data_format](tensors)
    profile = profile or ClientProfile.of(server, graph.profile)
    if profile is None:
        graph.handle.finalize()
    else:
        with profile.collecting() as events:
            graph.handle.finalize(events)
