"""What a DLC holds, in the words of the file: graphs of nodes and tensors, caches of other machines, who made it.

Numbers are the file's own and not yet believed: a data type may be one that nothing here computes with. Bytes are views
of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from isthmus.frontends.flatbuffer import File, Table

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
class TensorEntry:
    """A tensor: name, QNN's numbers for its type and data type, dimensions, encoding, and its bytes if it is static."""

    name: str
    type: int
    dtype: int
    dims: tuple[int, ...]
    encoding: EncodingEntry | None = None
    data: memoryview | None = None


@dataclass(frozen=True)
class NodeEntry:
    """A node: the converter's name for its operation, operands by name, parameters, and what else it is told by.

    Parameters
    ----------
    extras
        Attributes that are no parameters: the package, or which of a family of operations it is.
    """

    name: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    params: Mapping[str, Scalar | TensorEntry]
    extras: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class GraphEntry:
    """A graph: its tensors in the order of the file, its nodes in the order of their data."""

    name: str
    tensors: tuple[TensorEntry, ...]
    nodes: tuple[NodeEntry, ...]


@dataclass(frozen=True)
class Contents:
    """All of a DLC.

    Parameters
    ----------
    version
        Of the format: 3 or 4.
    producer
        The tool that made it, as far as it says.
    entries
        The sizes of the archive's entries by name.
    caches
        Graphs prepared for one machine (``htp.cache.0``): nobody but that machine's own software can run them.
    """

    name: str
    version: int
    nbytes: int
    producer: str
    entries: Mapping[str, int]
    caches: tuple[str, ...]
    graphs: tuple[GraphEntry, ...]


class Reading:
    """A record of a DLC while it is read, with the work that its size allows.

    Tables and lists of a flatbuffer may point to one another's parts, so a small file could ask for endless work. An
    honest one has a table or a name for every few bytes at most.
    """

    def __init__(self, data: memoryview, name: str, identifier: bytes) -> None:
        self.file = File(data, name)
        self.root: Table = self.file.root(identifier)
        self._left = len(data)

    def count(self, things: int = 1) -> None:
        """Note that so many tables or names are looked at."""
        self._left -= things
        if self._left < 0:
            self.file.refuse("its tables point to one another so that it has more of them than bytes")
