"""A graph as QNN's own tools compose it, told as data: tensors and nodes in QNN's numbers and names.

Numbers are not believed yet: a data type may be one that nothing here computes with. Bytes are views of where they came
from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

PACKAGE = "qti.aisw"
"""QNN's own package of operations."""

Scalar = bool | int | float | str


@dataclass(frozen=True)
class EncodingEntry:
    """How stored integers mean reals: one scale and offset, or one of each an index along an axis.

    Parameters
    ----------
    bits
        How many low bits of an element count; 0 for all that its data type has.
    kind
        QNN's number for the form. Of one that is not understood there are no scales.
    """

    scales: np.ndarray
    offsets: np.ndarray
    axis: int | None = None
    bits: int = 0
    kind: int = 0


@dataclass(frozen=True)
class ComposedTensor:
    """A tensor: name, QNN's numbers for its type and data type, dimensions, encoding, and its bytes if it is static.

    Parameters
    ----------
    mem_type
        QNN's number for the memory that a client will bring.
    """

    name: str
    type: int
    dtype: int
    dims: tuple[int, ...]
    encoding: EncodingEntry | None = None
    data: memoryview | None = None
    mem_type: int = 0


@dataclass(frozen=True)
class NodeEntry:
    """A node: the name of its operation, operands by name, parameters, and what else it is told by.

    Parameters
    ----------
    extras
        Attributes that are no parameters, such as which of a family of operations it is.
    package
        The package that has the operation.
    kinds
        QNN's data types of parameters that are scalars, as far as they are told.
    """

    name: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    params: Mapping[str, Scalar | ComposedTensor]
    extras: Mapping[str, Scalar] = field(default_factory=dict)
    package: str = PACKAGE
    kinds: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class GraphEntry:
    """A graph: its tensors in the order of the file, its nodes in the order of their data."""

    name: str
    tensors: tuple[ComposedTensor, ...]
    nodes: tuple[NodeEntry, ...]
