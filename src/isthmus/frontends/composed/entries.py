"""A graph as QNN's own tools compose it, as plain data: tensors and nodes with QNN's numbers and names.

Numbers are not validated yet: a data type may be one that is not supported here. Bytes are views of their source.
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
    """A mapping from stored integers to real numbers: one scale and offset, or one of each per index along an axis.

    - `axis`: the axis along which there is one scale and offset per index; None if there is only one.
    - `bits`: the number of low bits of an element that are used; 0 for all bits of its data type. Of
      BLOCKWISE_EXPANSION, the bits of a factor.
    - `kind`: QNN's number for the form of the encoding. An unknown form has no scales.
    - `blocks`: the size of a block in each dimension (BLOCK), or the number of blocks of a channel
      (BLOCKWISE_EXPANSION); otherwise empty.
    - `factors`: the factor of each block of BLOCKWISE_EXPANSION, channel by channel; otherwise empty.
    """

    scales: np.ndarray
    offsets: np.ndarray
    axis: int | None = None
    bits: int = 0
    kind: int = 0
    blocks: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint32))
    factors: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint16))


@dataclass(frozen=True)
class ComposedTensor:
    """A tensor: name, QNN's numbers for its type and data type, dimensions, encoding, and its bytes if it is static.

    - `mem_type`: QNN's number for the kind of memory that a client will provide.
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
    """A node: the name of its operation, the names of its operands, parameters, and other attributes.

    - `inputs`, `outputs`: the names of its tensors; "" for an absent optional one.
    - `params`: the parameters by name, scalars or arrays; an array is a static tensor.
    - `extras`: attributes that are not parameters, such as which operation of a family this is.
    - `kinds`: QNN's data types of the scalar parameters, as far as they are given.
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
    """A graph: its tensors in the order of the file, its nodes in the order of their data flow."""

    name: str
    tensors: tuple[ComposedTensor, ...]
    nodes: tuple[NodeEntry, ...]
