"""The declaration of a backend: its names, how its configuration is read, how its graphs get memory, its driver.

Each backend has one entry, in its own module. The registry finds it by name; no other code knows a backend's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from isthmus.backends.seam.config import Table
from isthmus.backends.seam.driver import (
    BackendDriver,
    ContextDriver,
    DescriptorType,
    GraphDriver,
    MemDescriptor,
    Source,
    TensorMemory,
)
from isthmus.backends.seam.facets import CFacet, DelegateFacet
from isthmus.errors import Code, QnnError, did_you_mean
from isthmus.graph import BinaryInfo, DataType, Graph, GraphInfo, TensorInfo, TensorMemType
from isthmus.graph.acceptance import Acceptance
from isthmus.log import Log
from isthmus.memory import Buffer, host
from isthmus.prepare.schedule import Plan
from isthmus.prepare.sharing import UnsharedConstants
from isthmus.prepare.tiling import ScratchLimit

_IO_ALIGNMENT = 64


class Section(Protocol):
    """A backend's addition to a report: as plain data, and as lines of text."""

    @property
    def fits(self) -> bool:
        """Whether the model fits the memory that it is judged by."""

    @property
    def limits(self) -> Sequence[dict[str, Any]]:
        """The memory of limited size that the model is judged by, as "limits" of the plain data."""

    def to_json(self) -> dict[str, Any]:
        """Return the section as plain data.

        Pages draw two lists of it, if they are there:

        - "limits": each has a "name", "bytes", the "limit" that they must not exceed (or None), whether the model
          "fits", whether that "applies" (if not, the memory is not in use, and this is only a remark), whether the
          configuration has "stated" the memory, the verdict as a "note", and "remedies". "binary_bytes" of the bytes
          are the model binary.
        - "moved": the tensors that move between a fast memory and a slow one. Each has a "name", its "bytes" and
          "kind", the bytes "spilled" and "filled", and the "first" and the "last" step that uses it.
        """

    def lines(self) -> list[str]:
        """Return the section as lines of text."""


@dataclass(frozen=True)
class PlanRequest:
    """What a plan is asked for besides a graph and a configuration.

    - `threads`: The number of threads of an execution.
    - `limit`: The limit on scratch, if there is one.
    - `target`: The instruction set to plan for, by its name. By default that of this machine. Backends whose plans are
      the same for all of them only check the name.
    """

    threads: int = 1
    limit: ScratchLimit | None = None
    target: str | None = None


@dataclass(frozen=True)
class PlanReport:
    """A backend's plan for a graph, without executing it.

    - `info`: The graph's public description.
    - `plan`: The plan of its scratch.
    - `threads`: Number of threads of an execution.
    - `section`: The backend's own section of the report.
    """

    info: GraphInfo
    plan: Plan
    threads: int
    section: Section | None = None


@dataclass(frozen=True)
class IoMemory:
    """Memory for every input, then every output, and the buffers to close after the graph has ended.

    An input or output without memory here is used in the backend's own memory.
    """

    memories: Sequence[TensorMemory | None]
    buffers: Sequence[Buffer] = ()


def register_custom(
    context: ContextDriver, tensors: Iterable[TensorInfo], customs: Iterable[Any]
) -> list[TensorMemory]:
    """Register memory for each of these tensors, described by a backend's own structures."""
    descriptors = [
        MemDescriptor(info.dims, info.dtype, DescriptorType.CUSTOM, custom=custom)
        for info, custom in zip(tensors, customs, strict=True)
    ]
    return [TensorMemory(each.window, each) for each in context.register(descriptors)]


class IoPolicy:
    """The way a graph gets memory if the user brings none: raw host memory, unless the backend has its own."""

    kinds: ClassVar[Mapping[str, TensorMemType]] = {"raw": TensorMemType.RAW}
    """The kinds of input and output memory, with the memory type that a graph is prepared for; the default first."""

    def pools(self, graph: GraphDriver) -> list[Buffer]:
        """Give a composed graph the memory that it needs before it is finalized; return the buffers, to be closed after
        the graph has ended.
        """
        return []

    def io(self, graph: GraphDriver, kind: str | None, tensors: Sequence[TensorInfo] | None = None) -> IoMemory:
        """Provide memory for a finalized graph; all of it or nothing.

        - `kind`: A key of `kinds`. By default the backend's own memory is used for each tensor that has any.
        - `tensors`: The tensors to provide memory for, of this or other graphs of its context. By default its inputs
          and outputs; only these have memory of the backend's own.
        """
        memories: list[TensorMemory | None] = []
        buffers: list[Buffer] = []
        try:
            for index, info in enumerate(graph.info.tensors if tensors is None else tensors):
                memory = None
                if tensors is not None or kind is not None or graph.place(index) is None:
                    buffer, memory = self._allocate(graph, info, kind)
                    buffers.append(buffer)
                memories.append(memory)
        except Exception:
            for memory in memories:
                if memory is not None and memory.registration is not None:
                    memory.registration.close()
            for buffer in buffers:
                buffer.close()
            raise
        return IoMemory(memories, buffers)

    def _allocate(self, graph: GraphDriver, info: TensorInfo, kind: str | None) -> tuple[Buffer, TensorMemory]:
        """Allocate memory of a kind for a tensor; return the buffer and the tensor's memory in it."""
        buffer = host(info.nbytes, _IO_ALIGNMENT)
        return buffer, TensorMemory(buffer.window())


@dataclass(frozen=True)
class BackendEntry:
    """A backend's entry in the registry.

    - `name`, `library`: Its short name, and the library file that QNN's command lines name it by; empty if they cannot,
      and C clients get no library of it. ``libQnnName.so`` always means the backend "name".
    - `driver`: Its implementation.
    - `read_config`: Turns a user's configuration (a path, a mapping, a list of them, nothing) into the driver's
      `config`.
    - `io`: How its graphs get memory if the user brings none.
    - `prepare`: Plans a complete graph with a checked configuration, as requested.
    - `inspect`: Describes a context binary, or returns None for another format.
    - `unshared`: Returns which constants the graphs of a context binary do not share; None for another format.
    - `c`: What its C library presents, or where that is declared ("module:name"): imported only for C clients.
    - `delegate`: How the TFLite delegate uses it.
    - `accepted`: The operations and data types that it accepts; None if it does not say.
    - `modes`: Modes that QNN's command lines name (``--direct_mode``), each with the configuration that it means.
    - `float_type`: The type in which it computes with FLOAT_32 tensors by default, which limits the accuracy of its
      results.
    - `keys`: The keys of its configuration files, for the document that lists them.
    - `memory_sizes`: Memories of the device whose size a command line may state (``--tcm 64KiB``): the name of each,
      and the key of the configuration that has its size.
    """

    name: str
    library: str
    driver: type[BackendDriver]
    read_config: Callable[[Any, Log], Any]
    io: IoPolicy = field(default_factory=IoPolicy)
    prepare: Callable[[Graph, Any, PlanRequest], PlanReport] | None = None
    inspect: Callable[[Source], BinaryInfo | None] = lambda source: None
    unshared: Callable[[Source], Sequence[UnsharedConstants] | None] = lambda source: None
    c: CFacet | str = field(default_factory=CFacet)
    delegate: DelegateFacet = field(default_factory=DelegateFacet)
    modes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    accepted: Acceptance | None = None
    float_type: DataType = DataType.FLOAT_32
    keys: Table = field(default_factory=dict)
    memory_sizes: Mapping[str, str] = field(default_factory=dict)

    def io_kind(self, kind: str | None) -> TensorMemType:
        """Return the memory type that graphs are prepared for if inputs and outputs are of a kind, by default the
        backend's first.
        """
        if kind is not None and (not isinstance(kind, str) or kind not in self.io.kinds):
            rule = f"backend '{self.name}' has {' and '.join(map(repr, self.io.kinds))}"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"io {kind!r}", rule, did_you_mean(kind, self.io.kinds))
        return self.io.kinds[kind] if kind is not None else next(iter(self.io.kinds.values()))
