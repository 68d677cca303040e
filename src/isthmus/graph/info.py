"""What a client may know of graphs and of context binaries, whoever executes them: descriptions without programs."""

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
        Its elements, dense and row-major.
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
        """What a tensor of a graph is."""
        return TensorInfo(
            tensor.name, tensor.dtype, tensor.dims, tensor.quantization, tensor.nbytes, tensor.mem_type
        )


@dataclass(frozen=True)
class MemoryNeeds:
    """The memory that a graph takes besides its inputs and outputs, in bytes.

    Parameters
    ----------
    scratch_bytes
        Intermediates, free between executions.
    state_bytes
        What lasts from execution to execution.
    constant_bytes
        Weights, in the form that the backend computes with.
    alignment
        What the addresses of scratch and state must be a multiple of.
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
        What it needs besides them.
    target
        What it was prepared for, in a word: an instruction set, a device.
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
        """Bytes of all inputs and outputs."""
        return sum(info.nbytes for info in self.tensors)


@dataclass(frozen=True)
class BinaryInfo:
    """What a context binary holds (QnnSystemContext_getBinaryInfo).

    Parameters
    ----------
    version
        Of its format.
    backend
        The short name of the backend that it was made for.
    producer
        What made it.
    """

    version: int
    backend: str
    producer: str
    nbytes: int
    graphs: tuple[GraphInfo, ...]
