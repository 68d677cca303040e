"""What contexts need, as a binary's public information or a log has it, and what of it is charged to a process domain.

Charged are the weights, spill-fill and op data of a context and the I/O that its client registers. A user measured that
on SA8255P for shared weights, I/O, spill-fill and op data. Constants that no graph shares are counted with the weights:
assumed. DDR tensors are not counted: in known binaries they are little more than the I/O again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from isthmus.errors import Code, QnnError, counted, invalid_argument
from isthmus.graph import GraphInfo, GraphSizes

PROPERTY_UNIT = 2 << 20
"""The multiple that a deferred context's properties are rounded up to."""
MAX_BYTES = 1 << 40
"""The largest size of a part of a context."""


@dataclass(frozen=True)
class GraphNeeds:
    """The memory of one graph in bytes, under the names of a binary's information.

    - `shared_weights`: weights that graphs of the context share; each graph reports all of them.
    """

    name: str
    constants: int = 0
    shared_weights: int = 0
    op_data: int = 0
    spill_fill: int = 0
    io: int = 0

    @classmethod
    def of(cls, graph: GraphInfo) -> GraphNeeds:
        """Return the memory of a graph in a binary of this project. Its states, the DDR tensors, are op data."""
        stated = graph.figures
        if stated is None:
            needs, sizes = graph.memory, graph.sizes or GraphSizes(graph.memory.constant_bytes, 0)
            return cls(
                graph.name, sizes.constants, sizes.shared_weights, spill_fill=needs.scratch_bytes, io=graph.io_bytes
            )
        fixed = stated.op_data + stated.ddr
        return cls(graph.name, stated.constants, stated.shared_weights, fixed, stated.spill_fill, stated.io)


@dataclass(frozen=True)
class SpillGroup:
    """A group of contexts with one spill-fill buffer: its name, and the bytes that its founder reserved."""

    name: str
    nbytes: int


@dataclass(frozen=True)
class ContextSizes:
    """The memory of one context in bytes.

    - `graphs`: its graphs; none if only the size of its file is known.
    - `file_bytes`: the size of its binary, which counts as weights where no graph states any.
    - `buffers`: the sizes of the buffers that the client registers; None for one with the I/O of all graphs.
    - `group`: the group whose spill-fill buffer it uses.
    - `same_weights`: a name that contexts with equal weights have in common; empty if none has.
    - `reused_io`: whether the I/O of one graph is registered at a time (REUSED_IO_LIMIT).
    - `loaded`: the graphs that are loaded, with graph switching; None without it, for all. The largest graph has room
      whether it is loaded or not, so that it can be loaded at any time.
    """

    name: str
    graphs: tuple[GraphNeeds, ...] = ()
    file_bytes: int = 0
    buffers: tuple[int, ...] | None = None
    group: SpillGroup | None = None
    same_weights: str = ""
    reused_io: bool = False
    loaded: tuple[str, ...] | None = None

    @property
    def shared_weights(self) -> int:
        """The weights that its graphs share, once."""
        return max((each.shared_weights for each in self.graphs), default=0)

    @property
    def weights(self) -> int:
        """The weights that no graphs share; the whole file if its graphs state none."""
        if not any(each.constants or each.shared_weights for each in self.graphs):
            return self.file_bytes
        return self._of_graphs(lambda graph: graph.constants)

    @property
    def op_data(self) -> int:
        """Code and descriptors of its operations."""
        return self._of_graphs(lambda graph: graph.op_data)

    @property
    def spill_fill(self) -> int:
        """Its own need of spill-fill: the largest of its graphs."""
        return max((each.spill_fill for each in self.graphs), default=0)

    @property
    def io(self) -> tuple[int, ...]:
        """The sizes of the I/O buffers that its client registers."""
        if self.buffers is not None:
            return tuple(each for each in self.buffers if each)
        sizes = [each.io for each in self.graphs]
        total = max(sizes, default=0) if self.reused_io else sum(sizes)
        return (total,) if total else ()

    @property
    def pieces(self) -> tuple[tuple[str, int], ...]:
        """What is mapped for it besides I/O and the buffer of its group, in the order that is assumed."""
        spill = 0 if self.group else self.spill_fill
        sizes = {"shared weights": self.shared_weights, "weights": self.weights}
        sizes |= {"spill-fill": spill, "op data": self.op_data}
        return tuple((name, size) for name, size in sizes.items() if size)

    @property
    def charge(self) -> int:
        """The bytes of all its pieces and of its I/O."""
        return sum(size for _, size in self.pieces) + sum(self.io)

    def _of_graphs(self, size: Callable[[GraphNeeds], int]) -> int:
        """Return what all graphs have, or with switching those that are loaded, but at least the largest."""
        if self.loaded is None:
            return sum(map(size, self.graphs))
        return max([sum(size(each) for each in self.graphs if each.name in self.loaded), *map(size, self.graphs)])

    def enabled(self, names: Collection[str]) -> ContextSizes:
        """Return what it needs if only some of its graphs are enabled (ENABLE_GRAPHS); unknown names are refused."""
        for name in names:
            if name not in {each.name for each in self.graphs}:
                raise QnnError(Code.GRAPH_INVALID_NAME, f"context '{self.name}'", f"it has no graph '{name}'")
        return replace(self, graphs=tuple(each for each in self.graphs if each.name in names))

    def check(self) -> None:
        """Refuse sizes that no memory has, and a spill-fill that its group's buffer cannot hold."""
        numbers = [self.file_bytes, *(self.buffers or ())]
        for graph in self.graphs:
            numbers += [graph.constants, graph.shared_weights, graph.op_data, graph.spill_fill, graph.io]
        if self.group is not None:
            numbers.append(self.group.nbytes)
        if not all(0 <= number <= MAX_BYTES for number in numbers):
            raise invalid_argument(f"context '{self.name}'", f"a size of it is not from 0 to {MAX_BYTES:,} bytes")
        if self.group is not None:
            check_member(self.group.nbytes, self.spill_fill)


def spill_fill_property(graphs: Iterable[GraphNeeds]) -> int:
    """Return MAX_SPILLFILL_BUFFER_SIZE of a deferred context (property 2).

    >>> spill_fill_property([GraphNeeds("OCR", spill_fill=5_177_344)])
    6291456
    """
    return rounded_up(max((each.spill_fill for each in graphs), default=0))


def weights_property(graphs: Iterable[GraphNeeds]) -> int:
    """Return WEIGHTS_BUFFER_SIZE of a deferred context (property 3).

    >>> weights_property([GraphNeeds(name, constants=2304, shared_weights=3_149_824) for name in "ab"])
    8388608
    """
    listed = list(graphs)
    shared = max((each.shared_weights for each in listed), default=0)
    return sum(rounded_up(each.constants) for each in listed) + rounded_up(shared)


def rounded_up(size: int) -> int:
    """Return a size as a property of a deferred context states it."""
    return -(-size // PROPERTY_UNIT) * PROPERTY_UNIT


def check_member(size: int, need: int) -> None:
    """Refuse a context whose spill-fill is larger than the buffer of its group, and a buffer of no bytes."""
    if not size:
        rule = "the first context of a group must state the size of its spill-fill buffer, states 0"
        raise QnnError(Code.CONTEXT_CREATE_FROM_BINARY, "spill-fill group", rule)
    if need > size:
        rule = f"Shared spill-fill size {size} is smaller than required spill-fill size {need}"
        hint = f"The first context of the group must reserve {counted(need, 'byte')}: load the largest need first."
        raise QnnError(Code.CONTEXT_CREATE_FROM_BINARY, "spill-fill group", rule, hint)


# -- graph switching ---------------------------------------------------------------------------------------------------

# Which graphs of a context are loaded when one is to be executed that is not. The rule is Qualcomm's. It is the same
# with an order of retention and without one: that is an order of no graphs.
Choice = tuple[str, ...]
"""Graphs of a context that are loaded together."""


def choices(loaded: Collection[str], retained: Sequence[str], graph: str) -> list[Choice]:
    """Return what may be loaded together with a graph, the best choice first: the first that fits is.

    Graphs outside the order of retention are unloaded, then those in it while there is no room, the last one first.

    - `loaded`: The graphs that are loaded.
    - `retained`: The order of retention, the most important graph first.

    >>> choices(["A", "B"], ["A", "B"], "C"), choices(["A", "C"], ["A", "B"], "D")
    ([('A', 'B', 'C'), ('A', 'C'), ('C',)], [('A', 'D'), ('D',)])
    """
    loaded_ones = [name for name in retained if name in loaded and name != graph]
    return [(*loaded_ones[:count], graph) for count in range(len(loaded_ones), -1, -1)]


def choices_at_creation(graphs: Sequence[str], retained: Sequence[str]) -> list[Choice]:
    """Return what may be loaded when a context is created: the graphs to retain, or else its first graph.

    >>> choices_at_creation(["A", "B", "C"], ["B", "C"]), choices_at_creation(["A", "B", "C"], [])
    ([('B', 'C'), ('B',)], [('A',)])
    """
    first = tuple(retained) or tuple(graphs[:1])
    return [first[:count] for count in range(len(first), 0, -1)]
