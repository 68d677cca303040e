"""The memory of a graph on a chip, in the parts that context binaries of HTP state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class GraphFigures:
    """The memory of one graph on the chip, in bytes.

    - `spill_fill`: DDR memory for tensors that do not fit into VTCM. Executions move them there and back.
    - `vtcm`: On-chip memory.
    - `op_data`, `constants`: Code and descriptors of operations, and weights in the compiler's format.
    - `ddr`: Tensors that are always in DDR memory.
    - `shared_weights`: Weights that the graphs of a context share. Each graph reports all of them.
    - `level`, `hvx_threads`, `dlbc`: The options that the graph was compiled with.
    - `share_io`: 1 if every output may be in the memory of any input.
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
    share_io: int = 0

    def to_json(self) -> dict[str, int]:
        """Return the figures as plain data."""
        return asdict(self)

    @property
    def own(self) -> int:
        """The memory of this graph without shared weights."""
        return self.op_data + self.constants + self.ddr + self.spill_fill + self.io + self.vtcm


def total_ram(graphs: Iterable[GraphFigures]) -> int:
    """Return the memory of a context: the sum of its graphs', and the weights that they share once.

    >>> total_ram([GraphFigures(0, 10, constants=5, shared_weights=7), GraphFigures(2, 10, shared_weights=7)])
    34
    """
    listed = list(graphs)
    return sum(each.own for each in listed) + max((each.shared_weights for each in listed), default=0)
