"""The memory of a compiled graph, as the vendor's system library reports it for a context binary.

The structures are those of QNN's public header of HTP's part of a binary's description.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from ctypes import c_uint8, c_uint32, c_uint64
from dataclasses import asdict, dataclass, fields
from typing import Any

from isthmus.system.container import as_size

_MAX_MB = 4096
"""VTCM is given in bytes; libraries before 2.50 give MB, so that smaller numbers are MB."""


class GraphBlobInfoV1(ctypes.Structure):
    """QnnHtpSystemContext_GraphBlobInfoV1_t, after its version."""

    _fields_ = [
        ("version", c_uint32),
        ("spillFillBufferSize", c_uint64),
        ("vtcmSize", c_uint32),
        ("optimizationLevel", c_uint32),
        ("htpDlbc", c_uint8),
        ("numHvxThreads", c_uint64),
    ]


class GraphBlobInfoV2(ctypes.Structure):
    """QnnHtpSystemContext_GraphBlobInfoV2_t, after its version; it follows version 1."""

    _fields_ = [
        ("version", c_uint32),
        ("nativeKeyLayout", c_uint64),
        ("nativeValueLayout", c_uint64),
        ("isSafeShareIo", c_uint32),
        ("ioSize", c_uint64),
        ("opDataSize", c_uint64),
        ("constSize", c_uint64),
        ("ddrTensorSize", c_uint64),
        ("sharedWeightsSize", c_uint64),
    ]


@dataclass(frozen=True)
class VendorFigures:
    """The memory of one graph on the chip, in bytes.

    Parameters
    ----------
    spill_fill
        DDR memory for tensors that do not fit into VTCM. Executions move them there and back.
    vtcm
        On-chip memory.
    op_data, constants
        Code and descriptors of operations, and weights in the compiler's format.
    ddr
        Tensors that are always in DDR memory.
    io
        Inputs and outputs.
    shared_weights
        Weights that the graphs of a context share. Each graph reports all of them.
    level, hvx_threads, dlbc
        The options that the graph was compiled with.
    """

    spill_fill: int
    vtcm: int
    op_data: int = 0
    constants: int = 0
    ddr: int = 0
    io: int = 0
    shared_weights: int = 0
    level: int = 0
    hvx_threads: int = 0
    dlbc: int = 0

    @classmethod
    def of_blob(cls, blob: bytes) -> VendorFigures | None:
        """Read a graph's blob; None if it is too short to be one."""
        if len(blob) < ctypes.sizeof(GraphBlobInfoV1):
            return None
        one = GraphBlobInfoV1.from_buffer_copy(blob)
        vtcm = one.vtcmSize << 20 if one.vtcmSize < _MAX_MB else one.vtcmSize
        found = cls(
            one.spillFillBufferSize, vtcm, level=one.optimizationLevel, hvx_threads=one.numHvxThreads, dlbc=one.htpDlbc
        )
        first = ctypes.sizeof(GraphBlobInfoV1)
        if len(blob) < first + ctypes.sizeof(GraphBlobInfoV2):
            return found
        two = GraphBlobInfoV2.from_buffer_copy(blob, first)
        more = {
            "op_data": two.opDataSize, "constants": two.constSize, "ddr": two.ddrTensorSize, "io": two.ioSize,
            "shared_weights": two.sharedWeightsSize,
        }  # fmt: skip
        return cls(**{**asdict(found), **more})

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> VendorFigures:
        """Read figures that another process or a file has; raise a ValueError if they are not numbers."""
        return cls(**{field.name: as_size(content[field.name]) for field in fields(cls)})

    def to_json(self) -> dict[str, int]:
        """Return the figures as plain data."""
        return asdict(self)

    @property
    def own(self) -> int:
        """The memory of this graph without shared weights."""
        return self.op_data + self.constants + self.ddr + self.spill_fill + self.io + self.vtcm


def total_ram(graphs: Iterable[VendorFigures]) -> int:
    """Return the memory of a context: the sum of its graphs', and the weights that they share once.

    Examples
    --------
    >>> total_ram([VendorFigures(0, 10, constants=5, shared_weights=7), VendorFigures(2, 10, shared_weights=7)])
    34
    """
    listed = list(graphs)
    return sum(each.own for each in listed) + max((each.shared_weights for each in listed), default=0)
