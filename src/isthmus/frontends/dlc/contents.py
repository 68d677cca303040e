"""The contents of a DLC with the file's own names: graphs of nodes and tensors, caches for other machines, producer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from isthmus.frontends.composed.entries import GraphEntry
from isthmus.frontends.flatbuffer import File, Table


@dataclass(frozen=True)
class DlcContents:
    """The contents of a DLC.

    - `producer`: the tool that made the file, if the file names it.
    - `entries`: the sizes of the archive's entries by name.
    - `caches`: names of graphs that were prepared for one machine (``htp.cache.0``). Only that machine's own software
      can run them.
    """

    name: str
    version: int
    nbytes: int
    producer: str
    entries: Mapping[str, int]
    caches: tuple[str, ...]
    graphs: tuple[GraphEntry, ...]


class Reading:
    """A record of a DLC during reading, with a limit on the work that it may cause.

    Tables and lists of a flatbuffer may overlap, so a small file could cause endless work. A valid file needs several
    bytes for each table or name, so their number is limited to its size.

    - `identifier`: the identifier that the flatbuffer must carry.
    """

    def __init__(self, data: memoryview, name: str, identifier: bytes) -> None:
        self.file = File(data, name)
        self.root: Table = self.file.root(identifier)
        # How many tables and names may still be counted.
        self._remaining = len(data)

    def count(self, things: int = 1) -> None:
        """Count `things` tables or names; refuse the file if there are more than it has bytes."""
        self._remaining -= things
        if self._remaining < 0:
            self.file.refuse("its tables point to one another so that it has more of them than bytes")
