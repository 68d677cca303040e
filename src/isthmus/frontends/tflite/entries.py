"""The description of a TFLite model, independent of its source: subgraphs, tensors and operators as plain data.

There are two sources: a file (`model`), and a running interpreter that a delegate is applied to. The walk and all
conversions use only this description.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.tflite.schema import ElementType
from isthmus.graph import Quantization

MAX_OPERATORS = 50_000
"""The most operators of one subgraph. In a file, many operators may point to one table."""
MAX_CUSTOM_OPTIONS = 1 << 16
"""The most bytes of a custom operator's options. Many operators may point to the same bytes."""


@dataclass(frozen=True)
class TfliteTensor:
    """A tensor as it is declared.

    - `shape`, `signature`: the dimensions with defaults for open ones, and with -1 for a dimension that the caller
      chooses.
    - `is_variable`: whether its value lasts from one execution to the next.
    - `scales`, `zero_points`, `quantized_dimension`: the quantization; without scales there is none. Several scales are
      along the quantized dimension.
    - `buffer`, `sparsity`: where and how its contents are stored. Only its model uses these, to read the contents.
    """

    index: int
    name: str
    type: ElementType
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    buffer: int
    is_variable: bool
    scales: np.ndarray
    zero_points: np.ndarray
    quantized_dimension: int
    sparsity: Any = None

    def quantization(self) -> Quantization | None:
        """Return the quantization, or None if there is no scale."""
        if not self.scales.size:
            return None
        zero_points = self.zero_points if self.zero_points.size else np.zeros(self.scales.size, np.int64)
        bits = 4 if self.type is ElementType.INT4 else 0
        if self.scales.size == 1:
            return replace(Quantization.per_tensor(self.scales[0], zero_points[0]), bits=bits)
        if zero_points.size == 1:
            zero_points = np.repeat(zero_points, self.scales.size)
        return replace(Quantization.per_channel(self.scales, zero_points, self.quantized_dimension), bits=bits)


@dataclass(frozen=True)
class OperatorEntry:
    """An operator of a subgraph.

    - `code`: the operator's name in the schema; a custom operator's name follows "CUSTOM:".
    - `inputs`, `outputs`: the numbers of its tensors, -1 for an absent one.
    - `custom_options`: the bytes of a custom operator's options, in its own format.
    """

    index: int
    code: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: dict[str, Any]
    custom_options: bytes


def oversized_name(code: str, nbytes: int) -> str:
    """Return a name for a custom operator whose options are too large to be read; no converter has that name."""
    return f"{code} with {nbytes} bytes of options, more than {MAX_CUSTOM_OPTIONS}"


@dataclass(frozen=True)
class SparseDimension:
    """One level of a sparse tensor: dense with a size, or a list of the indices that are present, in segments.

    - `segments`: for each entry of the level before, where its indices start in `indices`, and the end of the last.
    - `indices`: the indices that are present along this level.
    """

    format: int
    size: int = 0
    segments: np.ndarray | None = None
    indices: np.ndarray | None = None


@dataclass(frozen=True)
class TfliteSparsity:
    """The storage of a sparse tensor: its dimensions are split into blocks, reordered, and each dense or listed.

    - `order`: the dimension that each level stores, outermost first. Numbers from the rank on are the insides of
      blocks.
    - `block_map`: the dimensions that are split into blocks.
    - `dimensions`: one description for each level.
    """

    order: Sequence[int]
    block_map: Sequence[int]
    dimensions: Sequence[SparseDimension]


class Subgraph(ABC):
    """A subgraph of a model; its inputs and outputs are numbers of its tensors."""

    index: int
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kept_variables: tuple[int, ...] = ()
    """Inputs that are variables of the caller. Their new values are additional outputs, in this order."""

    @abstractmethod
    def tensor(self, index: int) -> TfliteTensor:
        """Return tensor `index`."""

    @abstractmethod
    def operators(self) -> Iterator[OperatorEntry]:
        """Return the operators in execution order."""

    def operator_name(self, entry: OperatorEntry) -> str:
        """Return the name of an operator: that of its first result, since operators have no names."""
        if entry.outputs and entry.outputs[0] >= 0:
            return self.tensor(entry.outputs[0]).name
        return f"{entry.code}_{entry.index}"


class TfliteModel(ABC):
    """A model: its subgraphs, of which the first is run and calls the others, and the contents of its constants."""

    name: str
    nbytes: int
    """The size of the model, which limits what may be computed from its constants."""

    @abstractmethod
    def subgraph(self, index: int) -> Subgraph:
        """Return subgraph `index`."""

    @abstractmethod
    def contents(self, subgraph: Subgraph, entry: TfliteTensor) -> np.ndarray | None:
        """Return the array that a tensor holds initially, or None if it has no contents."""

    def refuse(self, rule: str) -> NoReturn:
        """Refuse an inconsistent model."""
        raise QnnError(Code.COMMON_LOADING_BINARIES, f"model '{self.name}'", rule)

    def reachable(self, initializers: bool) -> Iterator[Subgraph]:
        """Yield the main subgraph and those it calls, directly or not; with `initializers` also those of CALL_ONCE.

        It stops after `MAX_OPERATORS` operators in all, since many subgraphs may share their operators.
        """
        pending, reached, scanned = [0], {0}, 0
        while pending and scanned < MAX_OPERATORS:
            subgraph = self.subgraph(pending.pop())
            yield subgraph
            for operator in subgraph.operators():
                scanned += 1
                if operator.code == "CALL_ONCE" and not initializers:
                    continue
                called = {value for name, value in operator.options.items() if name.endswith("subgraph")}
                pending.extend(sorted(called - reached))
                reached |= called
