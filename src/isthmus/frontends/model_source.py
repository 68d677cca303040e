"""A model file or library, and which graphs of it are to be made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from isthmus.errors import Code, QnnError

if TYPE_CHECKING:
    from isthmus.frontends.composed.entries import GraphEntry
    from isthmus.graph import Graph

_Named = TypeVar("_Named", "Graph", "GraphEntry")


@dataclass(frozen=True)
class ModelSource:
    """A model file or library, and what is asked of it.

    Parameters
    ----------
    path
        A TFLite, ONNX or DLC file, or a model library; its contents say which.
    shapes
        Dimensions of inputs, by name, where the file leaves some open; open ones become 1 otherwise.
    constants
        Inputs of an ONNX model to be bound to values; they are no longer inputs of the graph.
    graph
        Which graph of a file that holds several; all of them without it.
    clean_names
        Whether the tensors of a DLC get the names that QNN's own reader gives them: all but letters, digits and ``_``
        replaced. Other formats keep their names.
    """

    path: Path
    shapes: Mapping[str, Sequence[int]] | None = None
    constants: Mapping[str, Any] | None = None
    graph: str | None = None
    clean_names: bool = False

    def select(self, graphs: Sequence[_Named]) -> list[_Named]:
        """Give the graph that is asked for, or all of them; refuse a name that none of them has."""
        found = [one for one in graphs if self.graph in (None, one.name)]
        if not found:
            known = ", ".join(f"'{one.name}'" for one in graphs)
            raise QnnError(Code.GRAPH_DOES_NOT_EXIST, f"graph '{self.graph}'", f"'{self.path.name}' has {known}")
        return found

    def only(self, graphs: Sequence[Graph]) -> Graph:
        """Give the graph of a file that holds one, or of which one is asked for; refuse several."""
        if len(graphs) > 1:
            names = ", ".join(f"'{one.name}'" for one in graphs)
            rule = f"it holds {len(graphs)} graphs: {names}"
            hint = "Say which of them is meant."
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"model file '{self.path}'", rule, hint)
        return graphs[0]
