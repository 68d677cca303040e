"""What a backend tells of itself: its names, how its configuration is read, how its graphs get memory, its driver.

One entry a backend, in the backend's own module; the registry finds it by name, and nothing else knows any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from isthmus.backends.seam.driver import BackendDriver, GraphDriver, Source, TensorMemory
from isthmus.backends.seam.facets import CFacet, DelegateFacet
from isthmus.errors import Code, QnnError
from isthmus.graph import BinaryInfo, Graph, GraphInfo, TensorMemType
from isthmus.log import Log
from isthmus.memory import Buffer, host
from isthmus.prepare.schedule import Plan
from isthmus.prepare.tiling import ScratchLimit

_IO_ALIGNMENT = 64


class Section(Protocol):
    """What a backend adds to a report: as plain data, and as lines for people."""

    def to_json(self) -> dict[str, Any]:
        """As plain data."""

    def lines(self) -> list[str]:
        """For people."""


@dataclass(frozen=True)
class PlanReport:
    """What a backend would make of a graph, without executing it.

    Parameters
    ----------
    section
        What the backend has to say besides.
    """

    info: GraphInfo
    plan: Plan
    threads: int
    section: Section | None = None


@dataclass(frozen=True)
class IoMemory:
    """Memory for every input, then every output, and the buffers to close after the graph has ended."""

    memories: Sequence[TensorMemory | None]
    buffers: Sequence[Buffer] = ()


class IoPolicy:
    """How a graph gets memory when its user brings none: raw host memory, where the backend has no place of its own."""

    kinds: ClassVar[Mapping[str, TensorMemType]] = {"raw": TensorMemType.RAW}
    """What inputs and outputs may be, with the memory type that a graph is prepared for; the usual one first."""

    def pools(self, graph: GraphDriver) -> list[Buffer]:
        """Give a composed graph the memory that it needs before it is finalized."""
        return []

    def io(self, graph: GraphDriver, kind: str | None) -> IoMemory:
        """Memory for a finalized graph: of a kind, or where the backend would have it."""
        memories: list[TensorMemory | None] = []
        buffers: list[Buffer] = []
        for index, info in enumerate(graph.info.tensors):
            if kind is None and graph.place(index) is not None:
                memories.append(None)
                continue
            buffers.append(host(info.nbytes, _IO_ALIGNMENT))
            memories.append(TensorMemory(buffers[-1].window()))
        return IoMemory(memories, buffers)


@dataclass(frozen=True)
class BackendEntry:
    """A backend as the registry knows it.

    Parameters
    ----------
    name, library
        What it is called for short, and the library file that QNN's command lines name it by; ``libQnnName.so`` means
        the backend "name" in any case.
    driver
        Its implementation.
    read_config
        Turns what a user gives as configuration (a path, a mapping, a list of them, nothing) into what the driver is
        made with.
    io
        How its graphs get memory when the user brings none.
    prepare
        Plans a complete graph with a checked configuration, a number of threads, and perhaps a limit on scratch.
    inspect
        Describes a context binary, or answers None for one of another format.
    c
        What its library in C presents, or where that is declared ("module:name"): imported for clients in C alone.
    delegate
        How the TFLite delegate uses it.
    modes
        Ways to run it that QNN's command lines name (``--direct_mode``), each with the configuration it stands for.
    """

    name: str
    library: str
    driver: type[BackendDriver]
    read_config: Callable[[Any, Log], Any]
    io: IoPolicy = field(default_factory=IoPolicy)
    prepare: Callable[[Graph, Any, int, ScratchLimit | None], PlanReport] | None = None
    inspect: Callable[[Source], BinaryInfo | None] = lambda source: None
    c: CFacet | str = field(default_factory=CFacet)
    delegate: DelegateFacet = field(default_factory=DelegateFacet)
    modes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def io_kind(self, kind: str | None) -> TensorMemType:
        """The memory type that graphs are prepared for when inputs and outputs are of a kind."""
        if kind is not None and (not isinstance(kind, str) or kind not in self.io.kinds):
            rule = f"backend '{self.name}' has {' and '.join(map(repr, self.io.kinds))}"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"io {kind!r}", rule)
        return self.io.kinds[kind] if kind is not None else next(iter(self.io.kinds.values()))
