"""Sizes of graphs in a context binary: constants that a graph has alone, and constants that several graphs share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isthmus.backends.seam.planned import PlannedGraph
from isthmus.graph import GraphSizes
from isthmus.system.contents import Contents, shared_bytes

PAGE = 4096
"""The sizes of shared constants are multiples of this."""


def graph_sizes(arrays: Mapping[str, Mapping[int, int]]) -> dict[str, GraphSizes]:
    """Return the sizes of graphs by name; `arrays` has the size of each of a graph's arrays by its offset.

    >>> graph_sizes({"prefill": {0: 5000, 5000: 8}, "decode": {0: 5000}})["prefill"]
    GraphSizes(constants=8, shared_weights=8192)
    """
    alone, shared = shared_bytes(arrays)
    return {name: GraphSizes(nbytes, -(-shared // PAGE) * PAGE) for name, nbytes in alone.items()}


def sizes_of(graphs: Sequence[PlannedGraph], shares: bool = True) -> dict[str, GraphSizes]:
    """Return the sizes that graphs will have in one context binary, by name.

    - `shares`: Whether the graphs of the context share equal constants.
    """
    contents = Contents(shares, stores=False)
    for graph in graphs:
        graph.to_bytes(contents.of(graph.name))
    return graph_sizes(contents.arrays)
