"""Descriptions of graphs and context binaries for clients. They contain no programs and fit every backend."""

from __future__ import annotations

from dataclasses import dataclass, field

from isthmus.graph.datatypes import DataType, TensorMemType
from isthmus.graph.quantization import Quantization
from isthmus.graph.tensor import Tensor


@dataclass(frozen=True)
class TensorInfo:
    """A graph input, output or state as a client sees it.

    Parameters
    ----------
    nbytes
        The size of its elements in bytes, dense and row-major.
    mem_type
        The memory type that it was prepared for.
    """

    name: str
    dtype: DataType
    dims: tuple[int, ...]
    quantization: Quantization | None
    nbytes: int
    mem_type: TensorMemType = TensorMemType.RAW

    @staticmethod
    def of(tensor: Tensor) -> TensorInfo:
        """Return the description of a tensor of a graph."""
        return TensorInfo(tensor.name, tensor.dtype, tensor.dims, tensor.quantization, tensor.nbytes, tensor.mem_type)


@dataclass(frozen=True)
class MemoryNeeds:
    """The memory that a graph needs besides its inputs and outputs, in bytes.

    Parameters
    ----------
    scratch_bytes
        Memory of intermediate tensors, free between executions.
    state_bytes
        Memory of values that last from one execution to the next.
    constant_bytes
        Weights, in the backend's own format.
    alignment
        The alignment of the addresses of scratch and state.
    """

    scratch_bytes: int = 0
    state_bytes: int = 0
    constant_bytes: int = 0
    alignment: int = 1


@dataclass(frozen=True)
class GraphInfo:
    """A graph as a client sees it.

    Parameters
    ----------
    inputs, outputs
        Its tensors, in order.
    memory
        The memory that it needs besides them.
    target
        The name of the target that it was prepared for: an instruction set or a device.
    """

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    memory: MemoryNeeds = field(default_factory=MemoryNeeds)
    target: str = ""

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """The inputs, then the outputs."""
        return (*self.inputs, *self.outputs)

    @property
    def io_bytes(self) -> int:
        """The size of all inputs and outputs in bytes."""
        return sum(info.nbytes for info in self.tensors)


@dataclass(frozen=True)
class BinaryInfo:
    """The contents of a context binary (QnnSystemContext_getBinaryInfo).

    Parameters
    ----------
    version
        The version of its format.
    backend
        The short name of the backend that it was made for.
    producer
        The software that made it.
    """

    version: int
    backend: str
    producer: str
    nbytes: int
    graphs: tuple[GraphInfo, ...]
