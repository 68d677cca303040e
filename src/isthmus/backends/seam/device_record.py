"""What a context binary states of the device and the options that its graphs were prepared for.

A backend that simulates a chip writes it into the header of its binaries. It changes nothing that is executed: clients
read it to learn what a binary needs before they load it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from isthmus.graph import GraphInfo, GraphSizes
from isthmus.graph.figures import GraphFigures
from isthmus.system.container import as_size
from isthmus.system.contents import shared_bytes

# The sizes of shared constants are multiples of this.
_PAGE = 4096
_MAX_NUMBER = (1 << 32) - 1


@dataclass(frozen=True)
class GraphRecord:
    """The options of a graph.

    - `vtcm`: On-chip memory in bytes.
    - `level`, `hvx_threads`: The optimization level and the number of vector threads; 0 where none was asked for.
    - `dlbc`: 1 if activations are compressed in DDR memory.
    - `share_io`: 1 if every output may be in the memory of any input.
    - `whole_vtcm`: 1 if it asked for all on-chip memory that its chip has.
    """

    vtcm: int = 0
    level: int = 0
    hvx_threads: int = 0
    dlbc: int = 0
    share_io: int = 0
    whole_vtcm: int = 0

    def figures(self, graph: GraphInfo, op_data: int, sizes: GraphSizes) -> GraphFigures:
        """Return the memory of a graph with these options.

        Nothing is really in VTCM here: all scratch is spill-fill memory, which contexts of a group have in common. In
        other DDR memory are only states.

        - `op_data`: The bytes that describe its operations.
        - `sizes`: Those of its constants.
        """
        needs = graph.memory
        stated = asdict(self)
        # What nobody asks a description for; it is checked when the binary is loaded.
        del stated["whole_vtcm"]
        return GraphFigures(
            spill_fill=needs.scratch_bytes, op_data=op_data, constants=sizes.constants, ddr=needs.state_bytes,
            io=graph.io_bytes, shared_weights=sizes.shared_weights, **stated,
        )  # fmt: skip


@dataclass(frozen=True)
class DeviceRecord:
    """The device of a binary.

    - `soc`: The number of the chip; 0 for any.
    - `arch`: The version of its processor.
    - `graphs`: The options of each graph, by its name.
    """

    soc: int = 0
    arch: int = 0
    graphs: Mapping[str, GraphRecord] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any, graphs: Collection[str]) -> DeviceRecord:
        """Read the record of a binary with these graphs; raise an error of `system.container.MALFORMED` if it is none.

        >>> DeviceRecord.from_json(DeviceRecord(69, 79, {"g": GraphRecord(8 << 20)}).to_json(), ["g"]).graphs["g"].vtcm
        8388608
        """
        if content.keys() != {each.name for each in fields(cls)} or content["graphs"].keys() != {*graphs}:
            raise ValueError("its record of the device has other parts")
        return cls(
            as_size(content["soc"], _MAX_NUMBER), as_size(content["arch"], _MAX_NUMBER),
            {name: _graph(values) for name, values in content["graphs"].items()},
        )  # fmt: skip


def _graph(content: Any) -> GraphRecord:
    """Read the options of a graph."""
    names = [each.name for each in fields(GraphRecord)]
    if content.keys() != {*names}:
        raise ValueError("its record of a graph has other parts")
    limits = {"dlbc": 1, "share_io": 1, "whole_vtcm": 1}
    return GraphRecord(**{name: as_size(content[name], limits.get(name, _MAX_NUMBER)) for name in names})


def graph_sizes(arrays: Mapping[str, Mapping[int, int]]) -> dict[str, GraphSizes]:
    """Return the sizes of graphs by name; `arrays` has the size of each of a graph's arrays by its offset.

    >>> graph_sizes({"prefill": {0: 5000, 5000: 8}, "decode": {0: 5000}})["prefill"]
    GraphSizes(constants=8, shared_weights=8192)
    """
    alone, shared = shared_bytes(arrays)
    return {name: GraphSizes(nbytes, -(-shared // _PAGE) * _PAGE) for name, nbytes in alone.items()}
