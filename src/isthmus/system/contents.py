"""Arrays of one or more graphs in one section of a file: each once, found by its offset.

A file of several graphs has one such section for all of them; a graph that is stored alone has its own. What is read is
not trusted: an array must be inside the section and aligned, whatever its offset says.
"""

from __future__ import annotations

import hashlib
import mmap
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from isthmus.system.container import ContainerFormat, as_name, as_size

SECTION = ""
"""The name of the section of a file of several graphs; no graph has this name."""
UNIT = 8
"""The alignment of each array in its section, unless a larger one is asked for."""
ArrayKey = tuple[str, bytes]
"""What tells arrays apart: the graph that owns it, if graphs share none, and the checksum of its contents."""


class Contents:
    """A section that is being written: arrays of graphs, equal ones once.

    - `shares`: Whether graphs share equal arrays. Otherwise each graph has its own copies.
    - `stores`: Whether it keeps the bytes for `join`; otherwise only offsets and sizes.
    - `first`: The same contents, to which all graphs were added already: the arrays that several of them share come
      first.
    """

    def __init__(self, shares: bool = True, stores: bool = True, first: Contents | None = None) -> None:
        self._shares, self._stores = shares, stores
        self.unit = UNIT
        """The largest alignment that was asked for."""
        self._nbytes = 0
        # The places of arrays that come first.
        self._first: dict[ArrayKey, int] = {}
        if first is not None:
            for key, nbytes in first.common().items():
                self._first[key] = self._nbytes
                self._nbytes += nbytes + -nbytes % first.unit
        # Their bytes, since they are not added in this order.
        self._beginning = bytearray(self._nbytes if stores else 0)
        self._pieces: list[bytes | memoryview] = []
        self._offsets: dict[ArrayKey, int] = {}
        self.arrays: dict[str, dict[int, int]] = {}
        """For each graph, the sizes of its arrays by their offsets."""

    def of(self, graph: str) -> GraphContents:
        """Return the part of a graph: what is added there belongs to the graph."""
        return GraphContents(self, self.arrays.setdefault(graph, {}), "" if self._shares else graph)

    def add(
        self, owner: str, array: np.ndarray, unit: int, other: Callable[[], np.ndarray] | None = None
    ) -> tuple[int, int, bool]:
        """Return the offset and the size of an array; equal arrays of one owner are stored once.

        - `other`: Makes another form of the array, of the same size. If only that is stored already, it is what the
          offset is of, and True is returned besides.
        """
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        if not len(raw):
            return 0, 0, False
        key = owner, hashlib.sha256(raw).digest()
        if key not in self._offsets:
            # No other graph has stored anything for the first one.
            if other is not None and len(self.arrays) > 1:
                offset = self._offsets.get((owner, hashlib.sha256(np.ascontiguousarray(other()).data).digest()))
                if offset is not None:
                    return offset, len(raw), True
            if key in self._first:
                place = self._offsets[key] = self._first[key]
                if self._stores:
                    self._beginning[place : place + len(raw)] = raw
                return place, len(raw), False
            self.unit = max(self.unit, unit)
            padding = -self._nbytes % unit
            if self._stores:
                self._pieces += (bytes(padding), raw)
            self._offsets[key] = self._nbytes + padding
            self._nbytes += padding + len(raw)
        return self._offsets[key], len(raw), False

    def common(self) -> dict[ArrayKey, int]:
        """Return the arrays that several graphs share, with their sizes."""
        owners = Counter(offset for own in self.arrays.values() for offset in own)
        sizes = {offset: nbytes for own in self.arrays.values() for offset, nbytes in own.items()}
        return {key: sizes[offset] for key, offset in self._offsets.items() if owners[offset] > 1}

    @property
    def common_bytes(self) -> int:
        """The bytes of the arrays that come first."""
        return len(self._beginning)

    def join(self) -> bytes:
        """Return the section."""
        return b"".join((self._beginning, *self._pieces))


class GraphContents:
    """The part of a graph in a section that is being written."""

    def __init__(self, section: Contents, arrays: dict[int, int], owner: str) -> None:
        self._section, self._arrays, self._owner = section, arrays, owner

    def add(self, array: np.ndarray, unit: int = UNIT) -> int:
        """Return the offset of an array in the section, which is a multiple of `unit`, the same for all its arrays."""
        return self.add_either(array, None, unit)[0]

    def add_either(
        self, array: np.ndarray, other: Callable[[], np.ndarray] | None, unit: int = UNIT
    ) -> tuple[int, bool]:
        """Return the offset of an array, or of another form of it if only that is stored already, and True for that."""
        offset, nbytes, is_other = self._section.add(self._owner, array, unit, other)
        if nbytes:
            self._arrays[offset] = nbytes
        return offset, is_other


class StoredContents:
    """A section that is read, for one graph.

    - `pieces`: The section, in one piece or in several that follow each other; no array is in two.
    - `arrays`: The sizes of the arrays that the graph has read, by their offsets.
    """

    def __init__(self, *pieces: memoryview) -> None:
        self._pieces = pieces
        self._nbytes = sum(map(len, pieces))
        self.arrays: dict[int, int] = {}

    def array(self, offset: Any, dtype: Any, count: int, unit: int = UNIT) -> np.ndarray:
        """Return a view of an array, or raise a ValueError if it is not inside the section or not aligned."""
        begin = as_size(offset, self._nbytes)
        nbytes = count * np.dtype(dtype).itemsize
        if begin % unit or nbytes > self._nbytes - begin:
            raise ValueError("an array is outside its section")
        if not count:
            return np.empty(0, dtype)
        self.arrays[begin] = max(nbytes, self.arrays.get(begin, 0))
        for piece in self._pieces:
            if begin < len(piece):
                # An array that ends in the next piece does not fit, which is a ValueError too.
                return np.frombuffer(piece, dtype, count, begin)
            begin -= len(piece)
        raise AssertionError("it was inside")


def shared_bytes(arrays: Mapping[str, Mapping[int, int]]) -> tuple[dict[str, int], int]:
    """Return the bytes of the arrays that each graph has alone, by its name, and those that several graphs share.

    >>> shared_bytes({"prefill": {0: 100, 104: 8}, "decode": {0: 100}})
    ({'prefill': 8, 'decode': 0}, 100)
    """
    owners: dict[int, int] = {}
    for own in arrays.values():
        for offset in own:
            owners[offset] = owners.get(offset, 0) + 1
    alone = {name: sum(nbytes for offset, nbytes in own.items() if owners[offset] == 1) for name, own in arrays.items()}
    return alone, sum({o: n for own in arrays.values() for o, n in own.items() if owners[o] > 1}.values())


def pack_graphs(
    form: ContainerFormat, header: Mapping[str, Any], contents: Contents, graphs: Mapping[str, bytes]
) -> bytes:
    """Return a file with graphs, by their names, and the section with the arrays of all of them, which comes first."""
    arrays = contents.join()
    stated: dict[str, Any] = {"arrays": hashlib.sha256(arrays).hexdigest()}
    if contents.common_bytes:
        stated["shared"] = contents.common_bytes
    return b"".join(form.pack({**header, **stated}, {SECTION: arrays, **graphs}))


def unpack_graphs(
    form: ContainerFormat, content: bytes | memoryview | mmap.mmap, verify: bool = True
) -> tuple[dict[str, Any], memoryview, dict[str, memoryview]]:
    """Return the header of a file of several graphs, the section with their arrays, and the graphs by name.

    - `verify`: Whether to compute the checksum of the section with arrays. Each graph has its own.
    """
    header, sections = form.unpack(content, verify)
    arrays = sections.pop(SECTION, None)
    try:
        for name in sections:
            as_name(name)
    except ValueError as problem:
        raise form.malformed(problem) from None
    if arrays is None:
        raise form.refusal("it has no section with the arrays of its graphs")
    if verify and header.get("arrays") != hashlib.sha256(arrays).hexdigest():
        raise form.refusal("the checksum of its arrays is wrong: it is damaged")
    return header, arrays, sections
