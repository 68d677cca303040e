"""What HTP adds to the description of a context binary: written for clients in C, read from the vendor's library."""

from __future__ import annotations

import ctypes
from dataclasses import replace

from isthmus.backends.htp.headers import CONTEXT_METADATA, GRAPH_BLOB, GRAPH_BLOB_V2, HARDWARE_BLOB
from isthmus.backends.seam.facets import BinaryBlobs
from isthmus.graph import BinaryInfo
from isthmus.graph.figures import GraphFigures

# Numbers of VTCM below this are MB, as libraries before 2.50 report it; later ones report bytes.
_MAX_MB = 4096
# The tiles of keys and values in HTP's own layout of caches, which no option changes.
_KEY_CHANNELS, _VALUE_CHANNELS = 256, 64


def figures_of(blob: bytes) -> GraphFigures | None:
    """Read a graph's blob; None if it is too short to be one."""
    first = ctypes.sizeof(GRAPH_BLOB)
    if len(blob) < first:
        return None
    one = GRAPH_BLOB.from_buffer_copy(blob).contextBinaryGraphBlobInfoV1
    vtcm = one.vtcmSize << 20 if one.vtcmSize < _MAX_MB else one.vtcmSize
    found = GraphFigures(
        one.spillFillBufferSize, vtcm, level=one.optimizationLevel, hvx_threads=one.numHvxThreads, dlbc=one.htpDlbc
    )
    if len(blob) < first + ctypes.sizeof(GRAPH_BLOB_V2):
        return found
    two = GRAPH_BLOB_V2.from_buffer_copy(blob, first).contextBinaryGraphBlobInfoV2
    return replace(
        found, op_data=two.opDataSize, constants=two.constSize, ddr=two.ddrTensorSize, io=two.ioTensorSize,
        shared_weights=two.sharedWeightsSize, share_io=two.isSafeShareIO,
    )  # fmt: skip


def graph_blob(figures: GraphFigures) -> bytes:
    """Return a graph's blob.

    >>> figures_of(graph_blob(GraphFigures(65536, 8 << 20, io=12))) == GraphFigures(65536, 8 << 20, io=12)
    True
    """
    one, two = GRAPH_BLOB(1), GRAPH_BLOB_V2(2)
    first, second = one.contextBinaryGraphBlobInfoV1, two.contextBinaryGraphBlobInfoV2
    first.spillFillBufferSize, first.vtcmSize = figures.spill_fill, figures.vtcm
    first.optimizationLevel, first.htpDlbc, first.numHvxThreads = figures.level, figures.dlbc, figures.hvx_threads
    second.nativeKChannelSize, second.nativeVChannelSize = _KEY_CHANNELS, _VALUE_CHANNELS
    second.isSafeShareIO, second.ioTensorSize, second.opDataSize = figures.share_io, figures.io, figures.op_data
    second.constSize, second.ddrTensorSize = figures.constants, figures.ddr
    second.sharedWeightsSize = figures.shared_weights
    return bytes(one) + bytes(two)


def blobs(info: BinaryInfo) -> BinaryBlobs:
    """Return what HTP adds to the description of a binary; one that states no figures has zeros."""
    figures = [graph.figures or GraphFigures(0, 0) for graph in info.graphs]
    hardware = b""
    for index, each in enumerate(figures):
        entry = HARDWARE_BLOB(1)
        part = entry.contextBinaryHwInfoBlobV1_t
        part.graphListIndex, part.spillFillBufferSize = index, each.spill_fill
        hardware += bytes(entry)
    return BinaryBlobs(tuple(map(graph_blob, figures)), bytes(CONTEXT_METADATA(1, info.arch)), hardware)
