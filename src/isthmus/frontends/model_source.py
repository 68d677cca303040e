"""A model file or library, and the selection of its graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from isthmus.errors import Code, QnnError, did_you_mean

if TYPE_CHECKING:
    from isthmus.frontends.composed.entries import GraphEntry
    from isthmus.frontends.onnx.schema import OnnxContents
    from isthmus.graph import Graph, GraphInfo
    from isthmus.graph.operation import Operation

_Named = TypeVar("_Named", "Graph", "GraphEntry", "GraphInfo")


@dataclass(frozen=True)
class ModelSource:
    """A model file or library, and what to load from it.

    - `path`: A TFLite, ONNX or DLC file, or a model library. The format is recognized by the contents.
    - `shapes`: Dimensions of inputs by name, where the file leaves some open. Open dimensions that are not given become
      1.
    - `constants`: Inputs of an ONNX model to be bound to values; they are no longer inputs of the graph.
    - `graph`: The name of the graph to load from a file that holds several; None for all of them.
    - `clean_names`: Whether the tensors of a DLC get the names that QNN's own reader gives them, with every character
      except letters, digits and ``_`` replaced. Other formats keep their names.
    - `prefix`: What the functions of a model library begin with.
    - `operations`: The operations that nodes of a DLC or of a model library may have, if a client's op packages add
      some.
    - `model`: The contents of an ONNX file that has been read already. Whatever happens to the file, this is the model.
    - `whole_rows`: Whether rows whose number depends on the data must be complete. Otherwise outputs of an ONNX model
      may have rows of -1 behind them, as QNN's operations do.
    """

    path: Path
    shapes: Mapping[str, Sequence[int]] | None = None
    constants: Mapping[str, Any] | None = None
    graph: str | None = None
    clean_names: bool = False
    prefix: str = "QnnModel"
    operations: Mapping[str, Operation] | None = None
    model: OnnxContents | None = None
    whole_rows: bool = False

    def select(self, graphs: Sequence[_Named]) -> list[_Named]:
        """Return the requested graph, or all graphs; refuse a name that none of them has."""
        selected = [graph for graph in graphs if self.graph in (None, graph.name)]
        if not selected:
            rule = f"'{self.path.name}' has {', '.join(repr(graph.name) for graph in graphs)}"
            hint = did_you_mean(self.graph, [graph.name for graph in graphs])
            raise QnnError(Code.GRAPH_DOES_NOT_EXIST, f"graph '{self.graph}'", rule, hint)
        return selected

    def only(self, graphs: Sequence[_Named]) -> _Named:
        """Return the single graph; refuse a file that holds several if none of them was requested."""
        if len(graphs) > 1:
            names = ", ".join(f"'{graph.name}'" for graph in graphs)
            rule = f"it holds {len(graphs)} graphs: {names}"
            hint = f"Choose one: --graph {graphs[0].name}, or graph={graphs[0].name!r} in Python."
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"model file '{self.path}'", rule, hint)
        return graphs[0]
