"""What the QNN API asks of a backend: three abstract classes, and the values that pass between them.

Everything an accelerator does in its own way (memory, properties, configs, execution) is behind these; handles, names
and the order of calls are the API's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar

from isthmus.binary import ContextBinary, GraphBinary
from isthmus.engine.native.program import Program, TensorInfo
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, Graph, TensorType
from isthmus.log import Log
from isthmus.memory import Region, holds
from isthmus.prepare.schedule import Plan


class DescriptorType(IntEnum):
    """QNN_MEM_TYPE_*: what a memory descriptor points to."""

    ION = 1
    CUSTOM = 2
    DMA_BUF = 3


@dataclass(frozen=True)
class MemDescriptor:
    """Memory to register for a tensor (Qnn_MemDescriptor_t).

    Parameters
    ----------
    dims, dtype
        The tensor that the memory is for.
    mem_type
        What follows: a file descriptor, a backend's own structure, or a DMA buffer.
    fd
        The file descriptor of ION and DMA_BUF memory; -1 when unused.
    custom
        The backend's own structure.
    address
        Where the client has mapped DMA_BUF memory.
    """

    dims: tuple[int, ...]
    dtype: DataType
    mem_type: DescriptorType
    fd: int = -1
    custom: Any = None
    address: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        count = 1
        for dim in self.dims:
            count *= dim
        return count * self.dtype.itemsize


class Registration(ABC):
    """Registered memory: what a memory handle stands for in the backend."""

    descriptor: MemDescriptor

    @property
    @abstractmethod
    def region(self) -> Region:
        """Where this process sees it."""

    @abstractmethod
    def close(self) -> None:
        """Forget it; safe to call again."""


@dataclass(frozen=True, eq=False)
class TensorMemory:
    """The memory that a client gives for one tensor of an execution: raw, or registered."""

    region: Region
    registration: Registration | None = None


@dataclass
class GraphStats:
    """What a graph did so far.

    Parameters
    ----------
    executions
        How often it ran.
    copied_in_bytes, copied_out_bytes
        Bytes that executions copied between the client's memory and memory of the backend.
    in_place_bytes
        Bytes of inputs and outputs that executions used where they lay, by the kind of memory.
    staging_prepare_bytes, staging_execute_bytes
        Memory that the backend has reserved for copies of raw buffers: when the graph was prepared, and since then by
        executions that came with raw buffers after all.
    first_execution_us
        How long the first execution took.
    """

    executions: int = 0
    copied_in_bytes: int = 0
    copied_out_bytes: int = 0
    in_place_bytes: dict[str, int] = field(default_factory=dict)
    staging_prepare_bytes: int = 0
    staging_execute_bytes: int = 0
    first_execution_us: float = 0.0

    @property
    def copied_bytes(self) -> int:
        """All bytes copied."""
        return self.copied_in_bytes + self.copied_out_bytes


class GraphDriver(ABC):
    """A graph in a backend. To ask for what depends on all its nodes ends its composition."""

    graph: Graph
    finalized: bool = False
    """Whether it came finalized out of a context binary."""
    priority: int = 100
    """QNN_PRIORITY_*, as the client has set it."""

    @abstractmethod
    def get_property(self, option: int) -> Any:
        """The value of a custom property."""

    @abstractmethod
    def set_config(self, option: int, value: Any) -> None:
        """Set a custom config; refused whole or done whole."""

    @abstractmethod
    def finalize(self) -> None:
        """Make the graph ready to execute; refused whole or done whole."""

    @abstractmethod
    def execute(self, memories: Sequence[TensorMemory | None]) -> None:
        """Run once with a memory for each input, then each output; None leaves the choice to the backend.

        The same sequence object as last time means the same memories.
        """

    @property
    @abstractmethod
    def program(self) -> Program:
        """The executable form of the graph."""

    @property
    @abstractmethod
    def plan(self) -> Plan:
        """How scratch memory was planned."""

    @abstractmethod
    def place(self, index: int) -> Region | None:
        """The backend's own memory for an input or output (inputs first), where it has one."""

    @abstractmethod
    def reset(self) -> None:
        """Set the initial state."""

    @abstractmethod
    def stats(self) -> GraphStats:
        """What happened so far."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; safe to call again."""

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """The inputs, then the outputs."""
        return (*self.program.inputs, *self.program.outputs)


class ContextDriver(ABC):
    """A context in a backend."""

    @abstractmethod
    def get_property(self, option: int) -> Any:
        """The value of a custom property."""

    @abstractmethod
    def set_config(self, option: int, value: Any) -> None:
        """Set a custom config."""

    @abstractmethod
    def create_graph(self, graph: Graph) -> GraphDriver:
        """A driver for a graph, finished or still to be built."""

    @abstractmethod
    def register(self, descriptors: Sequence[MemDescriptor]) -> list[Registration]:
        """Register all of these, or none."""

    def graph_binaries(self) -> list[GraphBinary]:
        """The context's graphs as a context binary holds them."""
        raise QnnError(Code.COMMON_NOT_SUPPORTED, "context binary", "the backend does not make them")

    def restore(self, binary: ContextBinary) -> list[GraphDriver]:
        """Drivers for the graphs of a context binary."""
        raise QnnError(Code.COMMON_NOT_SUPPORTED, "context binary", "the backend does not take them")

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; safe to call again."""


class DeviceDriver(ABC):
    """A device of a backend that has any."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; safe to call again."""


class BackendDriver(ABC):
    """A backend.

    Parameters
    ----------
    config
        The backend's own configuration.
    log
        Where it says what it does.
    """

    name: ClassVar[str]

    @abstractmethod
    def __init__(self, config: Any, log: Log) -> None: ...

    @abstractmethod
    def get_property(self, option: int) -> Any:
        """The value of a custom property."""

    def set_config(self, option: int, value: Any) -> None:
        """Set a custom config."""
        raise unknown_option(Code.BACKEND_NOT_SUPPORTED, f"backend '{self.name}'", "config", option)

    def create_device(self) -> DeviceDriver | None:
        """A device; None where the backend has nothing to it."""
        return None

    @abstractmethod
    def create_context(self, configs: Mapping[int, Any], device: DeviceDriver | None = None) -> ContextDriver:
        """A context with these custom configs, on a device of this backend or on its only one."""

    def close(self) -> None:  # noqa: B027
        """Let go of everything; safe to call again. Most backends hold nothing outside their contexts."""


def outline(binary: GraphBinary) -> Graph:
    """A graph out of a context binary as far as a client sees it: its inputs and outputs."""
    graph = Graph(binary.program.name)
    for kind, infos in ((TensorType.APP_WRITE, binary.program.inputs), (TensorType.APP_READ, binary.program.outputs)):
        for info in infos:
            graph.create_tensor(info.name, kind, info.dtype, info.dims, info.quantization)
    for tensor, mem_type in zip((*graph.inputs, *graph.outputs), binary.mem_types, strict=True):
        tensor.mem_type = mem_type
    graph.finalized = True
    return graph


def unknown_option(code: Code, what: str, kind: str, option: int) -> QnnError:
    """The refusal of an option that a backend does not have."""
    return QnnError(code, what, f"it has no {kind} {int(option)}")


def check_apart(graph: str, tensors: Sequence[TensorInfo], inputs: int, given: Sequence[Region | None]) -> None:
    """Refuse an output buffer that lies over another buffer of the client's; inputs may share one."""
    for index, region in enumerate(given):
        for earlier, other in enumerate(given[:index] if index >= inputs else ()):
            if region is not None and other is not None and holds.overlap(region, other):
                raise QnnError(
                    Code.GRAPH_INVALID_TENSOR,
                    f"tensor '{tensors[index].name}' of {graph}",
                    f"its buffer overlaps that of tensor '{tensors[earlier].name}'",
                )
