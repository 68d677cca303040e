"""What a DLC holds, in the words of the file: graphs of nodes and tensors, caches of other machines, who made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from isthmus.frontends.composed.entries import GraphEntry
from isthmus.frontends.flatbuffer import File, Table


@dataclass(frozen=True)
class DlcContents:
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
