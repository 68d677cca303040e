"""QnnSystemContext_* and QnnSystemTensor_*: the contents of context binaries, described without a backend."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus import qnn
from isthmus.backends.seam import registry
from isthmus.backends.seam.facets import CFacet
from isthmus.cabi import system
from isthmus.cabi.client import checked, read_large, write_number
from isthmus.cabi.tables import CORE_VERSION
from isthmus.cabi.types import Tensor, Version
from isthmus.cabi.writer import write_tensor
from isthmus.capi.context import MAX_BINARY_BYTES
from isthmus.capi.device import platform
from isthmus.capi.functions import handle_type, serves
from isthmus.capi.values import tensor_at
from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.entries import ComposedTensor, EncodingEntry
from isthmus.graph import GraphInfo, TensorInfo, TensorMemType, TensorType
from isthmus.log import LogLevel

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

MALFORMED_BINARY = 30010
"""An error code of the system library that no backend returns."""
# The version of descriptions that QNN 2.51 writes.
_LATEST = 3


def _version() -> int:
    """Return the version of descriptions that the user chose for clients that do not know the latest."""
    chosen = os.environ.get("ISTHMUS_BINARY_INFO", "")
    if chosen and chosen not in map(str, range(1, _LATEST + 1)):
        rule = f"ISTHMUS_BINARY_INFO is {chosen!r}; it may be a number from 1 to {_LATEST}"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "description of a binary", rule)
    return int(chosen or _LATEST)


@handle_type("QnnSystemContext_Handle_t", "system context", is_system=True)
class ClientSystemContext:
    """A client's system context, with the descriptions of binaries that it has returned."""

    def __init__(self) -> None:
        self.descriptions: list[Any] = []


@serves("systemContextCreate")
def system_context_create(server: LibraryServer) -> ClientSystemContext:
    """Create a system context."""
    return ClientSystemContext()


@serves("systemContextGetBinaryInfo")
@serves("systemContextGetMetaData")
def system_context_get_binary_info(
    server: LibraryServer, context: ClientSystemContext, binary: int, nbytes: int, out: int, size: int = 0
) -> int | None:
    """Describe a binary. The description lives as long as the system context."""
    write_number(out, 0)
    if not 1 <= nbytes <= MAX_BINARY_BYTES:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "context binary", f"it cannot have {nbytes} bytes")
    content = read_large(checked(binary), nbytes)
    try:
        info = qnn.SystemContext().get_binary_info(content)
    except QnnError as problem:
        server.log(LogLevel.ERROR, f"systemContextGetBinaryInfo: {problem}")
        return MALFORMED_BINARY
    described = _DescribedBinary(info)
    context.descriptions.append(described)
    write_number(out, ctypes.addressof(described.info))
    if size:
        write_number(size, ctypes.sizeof(described.info))
    return None


@serves("systemContextFree")
def system_context_free(server: LibraryServer, context: ClientSystemContext) -> None:
    """Free a system context and the descriptions it has returned, which nothing else holds."""


@serves("systemTensorGetMemoryFootprint")
def system_tensor_get_memory_footprint(server: LibraryServer, tensor: int, out: int) -> None:
    """Write how many bytes a tensor's elements take."""
    info = tensor_at(tensor)
    if info.type is TensorType.NULL:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, info.what, "an absent tensor has no size")
    write_number(out, info.needed_bytes)


class _DescribedBinary:
    """The C description of a binary; it keeps what `info` points to."""

    # It has the version that the user chose, and version 1 if the backend has no structures for the others, so that no
    # client finds a null pointer where it expects one.

    def __init__(self, info: qnn.BinaryInfo) -> None:
        self._references: list[Any] = []
        facet = registry.c_facet(info.backend) if info.backend in registry.names() else CFacet()
        blobs = facet.blobs(info) if facet.blobs is not None else None
        version = 1 if blobs is None else _version()
        graphs = [self._graph(graph, version) for graph in info.graphs]
        self.info = system.BinaryInfo()
        self.info.version = version
        fields = getattr(self.info, f"contextBinaryInfoV{version}")
        fields.backendId = facet.backend_id
        fields.buildId = info.producer.encode()
        fields.coreApiVersion = Version(*CORE_VERSION)
        fields.backendApiVersion = Version(*facet.version)
        fields.socVersion = b""
        fields.contextBlobVersion = Version(info.version, 0, 0)
        fields.contextBlobSize = info.nbytes
        if blobs is not None:
            for graph, blob in zip(graphs, blobs.graphs, strict=True):
                graph.graphInfoV3.graphBlobInfo, graph.graphInfoV3.graphBlobInfoSize = self._bytes(blob), len(blob)
            if version == _LATEST:
                fields.socModel = info.soc
                fields.contextMetadata, fields.contextMetadataSize = self._bytes(blobs.context), len(blobs.context)
            else:
                fields.hwInfoBlobVersion = Version(0, 0, 1)
                fields.hwInfoBlob, fields.hwInfoBlobSize = self._bytes(blobs.hardware), len(blobs.hardware)
            if version > 1:
                described = platform(facet, info.soc, info.arch)
                self._references.append(described)
                fields.platformInfo = ctypes.pointer(described)
        fields.numGraphs, fields.graphs = len(info.graphs), self._array(system.GraphInfo, graphs)

    def _array(self, kind: Any, items: list[Any]) -> Any:
        """Return a C array that lives as long as this object."""
        array = (kind * len(items))(*items)
        self._references.append((array, items))
        return array

    def _bytes(self, content: bytes) -> int:
        """Return the address of bytes that live as long as this object."""
        held = ctypes.create_string_buffer(content, max(len(content), 1))
        self._references.append(held)
        return ctypes.addressof(held)

    def _graph(self, info: GraphInfo, version: int) -> system.GraphInfo:
        """Describe a graph: its name, inputs and outputs."""
        described = system.GraphInfo()
        described.version = version
        # Version 3 begins with the fields of the others. What they lack is not read.
        inner = described.graphInfoV3
        inner.graphName = info.name.encode()
        count = len(info.inputs)
        tensors = [
            self._tensor(tensor, number, TensorType.APP_WRITE if number <= count else TensorType.APP_READ)
            for number, tensor in enumerate(info.tensors, 1)
        ]
        inner.numGraphInputs, inner.graphInputs = count, self._array(Tensor, tensors[:count])
        inner.numGraphOutputs, inner.graphOutputs = len(tensors) - count, self._array(Tensor, tensors[count:])
        return described

    def _tensor(self, info: TensorInfo, number: int, kind: TensorType) -> Tensor:
        """Describe an input or output; `number` is its id, from 1, as executions name it."""
        encoding, quantization = None, info.quantization
        if quantization is not None:
            scales, offsets = np.array(quantization.scales, np.float32), np.array(quantization.offsets, np.int32)
            encoding = EncodingEntry(scales, offsets, quantization.axis, quantization.bits, int(quantization.encoding))
        entry = ComposedTensor(info.name, kind, info.dtype, info.dims, encoding)
        described = write_tensor(entry, self._references, version=1, number=number)
        described.v1.memType = TensorMemType(info.mem_type)
        return described
