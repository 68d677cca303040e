"""A model file as the comparison sees it: its operations in order, and where a composed graph has each of its tensors.

`open_model` recognizes the format. Every format has a graph to run here; ONNX and TFLite files also have a runtime of
their own, which computes the reference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from isthmus import frontends
from isthmus.errors import Code, QnnError, invalid_argument
from isthmus.frontends import ModelSource
from isthmus.graph import Graph
from isthmus.qnn.models import load, refuse_binary

Arrays = Mapping[str, np.ndarray]
"""Arrays by the name of a tensor of the model."""


@dataclass(frozen=True)
class HybridWeights:
    """Fixed-point weights of an operation with float activations, which are rounded to fixed point when it runs.

    - `step`: the largest scale of the weights.
    - `largest`: the largest number that they can represent.
    - `terms`: the number of products that are added up for one result.
    """

    step: float
    largest: float
    terms: int


@dataclass(frozen=True)
class ModelOperation:
    """An operation of the model file.

    - `index`: its number in the file's order.
    - `name`, `kind`: the file's name for it (that of its first result if it has none), and its operator.
    - `inputs`, `outputs`: the names of its tensors; absent ones are left out.
    - `hybrid`: its weights, if it is one of TFLite's hybrid operators.
    """

    index: int
    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    hybrid: HybridWeights | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.kind})"


@dataclass(frozen=True)
class StoredTensor:
    """Where a graph has a tensor of the model: the graph's tensor, and the stored axis of each of the model's axes."""

    tensor: str
    perm: tuple[int, ...]

    def to_model(self, stored: np.ndarray) -> np.ndarray:
        """Return stored elements in the model's axis order."""
        return stored.transpose(self.perm)

    def to_stored(self, array: np.ndarray) -> np.ndarray:
        """Return the model's array in the stored axis order."""
        return np.ascontiguousarray(array.transpose(np.argsort(self.perm)))


@dataclass(frozen=True)
class ModelComposition:
    """A graph that was composed from a model.

    - `stored`: where it has the model's tensors that are computed when it runs.
    - `folded`: the model's tensors that became constants, in the model's axis order.
    """

    graph: Graph
    stored: Mapping[str, StoredTensor]
    folded: Arrays = field(default_factory=dict)


class Subject(ABC):
    """A model file."""

    runtime: str = ""
    """The name of the format's own runtime; empty if there is none."""

    def __init__(self, source: ModelSource, operations: Sequence[ModelOperation]) -> None:
        self.source = source
        self.operations = tuple(operations)

    @abstractmethod
    def compose(self) -> ModelComposition:
        """Compose a new graph of the model."""

    def reference(self, feeds: Arrays) -> dict[str, np.ndarray]:
        """Run the model in the format's own runtime and return all its tensors.

        Raises `QnnError`: COMMON_RESOURCE_UNAVAILABLE if the runtime is not installed, COMMON_NOT_SUPPORTED if the
        format has none or the runtime cannot run the model.
        """
        raise QnnError(
            Code.COMMON_NOT_SUPPORTED, f"model '{self.source.path.name}'", "its format has no runtime to compare with",
            "Compare with another backend or data type, for example --against fp16.",
        )  # fmt: skip

    def extract(self, operations: Sequence[ModelOperation], given: Arrays, results: Sequence[str]) -> bytes:
        """Return the bytes of a file of the same format that has only these operations.

        - `given`: the tensors that become inputs, with arrays that show their shapes and types.
        - `results`: the tensors that become outputs.
        """
        raise QnnError(
            Code.COMMON_NOT_SUPPORTED, f"model '{self.source.path.name}'", "only .onnx and .tflite files can be reduced"
        )


class GraphSubject(Subject):
    """A DLC or a model library: its operations are those of the graph itself."""

    def __init__(self, source: ModelSource) -> None:
        nodes = load(source).nodes
        super().__init__(source, [
            ModelOperation(index, node.name, node.op, tuple(t.name for t in node.inputs if t is not None),
                           tuple(t.name for t in node.outputs))
            for index, node in enumerate(nodes)
        ])  # fmt: skip

    def compose(self) -> ModelComposition:
        graph = load(self.source)
        return ModelComposition(graph, named_tensors(graph))


def named_tensors(graph: Graph) -> dict[str, StoredTensor]:
    """Return where a graph has tensors that keep the model's names and axis order."""
    tensors = [*graph.inputs, *(t for node in graph.nodes for t in node.outputs if graph.tensors.get(t.name) is t)]
    return {tensor.name: StoredTensor(tensor.name, tuple(range(tensor.rank))) for tensor in tensors}


def open_model(source: ModelSource) -> Subject:
    """Read the operations of a model file of any format."""
    path = Path(source.path)
    with path.open("rb") if path.is_file() else _missing(path) as stream:
        head = stream.read(8)
    if head.startswith((frontends.DLC_MAGIC, frontends.LIBRARY_MAGIC)):
        return GraphSubject(source)
    refuse_binary(path)
    data = frontends.contents(path)
    if not frontends.is_model(head):
        raise frontends.unknown_format(path, data)
    return read_model(source, data)


def read_model(source: ModelSource, data: bytes) -> Subject:
    """Read the operations of the bytes of an ONNX or TFLite file."""
    from isthmus.comparison.onnx_subject import OnnxSubject
    from isthmus.comparison.tflite_subject import TfliteSubject

    return TfliteSubject(source, data) if frontends.is_tflite(data) else OnnxSubject(source, data)


def _missing(path: Path) -> Any:
    """Refuse a path that is not a file, as reading a model does."""
    frontends.contents(path)
    raise invalid_argument(f"model file '{path}'", "it is not a regular file")
