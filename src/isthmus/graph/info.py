"""Descriptions of graphs and context binaries for clients. They contain no programs and fit every backend."""

from __future__ import annotations

from dataclasses import dataclass, field

from isthmus.graph.datatypes import DataType, TensorMemType
from isthmus.graph.figures import GraphFigures
from isthmus.graph.quantization import Quantization
from isthmus.graph.tensor import Tensor


@dataclass(frozen=True)
class TensorInfo:
    """A graph input, output or state as a client sees it.

    - `nbytes`: the size of its elements in bytes, dense and row-major.
    - `mem_type`: the memory type that it was prepared for.
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

    - `scratch_bytes`: memory of intermediate tensors, free between executions.
    - `state_bytes`: memory of values that last from one execution to the next.
    - `constant_bytes`: weights, in the backend's own format.
    - `alignment`: the alignment of the addresses of scratch and state.
    """

    scratch_bytes: int = 0
    state_bytes: int = 0
    constant_bytes: int = 0
    alignment: int = 1


@dataclass(frozen=True)
class GraphSizes:
    """Bytes of the constants of a graph in a context: weights, scales and tables, as a binary has them.

    - `constants`: those that no other graph of the context has.
    - `shared_weights`: all that at least two graphs of the context share, a multiple of 4,096. It is the same for every
      graph of a context, and counts once for all of them.
    """

    constants: int
    shared_weights: int


@dataclass(frozen=True)
class GraphInfo:
    """A graph as a client sees it.

    - `memory`: the memory that it needs besides them.
    - `target`: the name of the target that it was prepared for: an instruction set or a device.
    - `figures`: its memory on a chip, if its binary states one.
    - `sizes`: its constants in its binary; None for a graph of a context.
    """

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    memory: MemoryNeeds = field(default_factory=MemoryNeeds)
    target: str = ""
    figures: GraphFigures | None = None
    sizes: GraphSizes | None = None

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

    - `backend`: the short name of the backend that it was made for.
    - `soc`, `arch`: the number of the chip that it was made for, and the version of its processor; 0 if it states none.
    """

    version: int
    backend: str
    producer: str
    nbytes: int
    graphs: tuple[GraphInfo, ...]
    soc: int = 0
    arch: int = 0
