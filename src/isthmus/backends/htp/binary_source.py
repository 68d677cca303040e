"""The binary that a context of HTP comes from, and the ways in which its graphs reach the accelerator.

It is read at once, or stays with its client, or its constants are brought by callbacks. Graphs may be deferred: they
are loaded after the client has brought buffers for them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum

from isthmus.backends.accelerator.process import Accelerator
from isthmus.backends.htp import client_buffers, options
from isthmus.backends.htp.kept_binary import KeptBinary
from isthmus.backends.htp.provided_weights import ProvidedWeights
from isthmus.backends.seam import driver as seam
from isthmus.backends.seam import native
from isthmus.backends.seam.binary import BinaryContents, ContextBinary
from isthmus.backends.seam.planned import GraphOutline, PlannedGraph
from isthmus.backends.seam.provided import ProvidedBinary
from isthmus.backends.seam.provider import BinarySection, ProvidedBuffer
from isthmus.domains import GraphNeeds
from isthmus.domains.sizes import rounded_up, spill_fill_property, weights_property
from isthmus.engine.native.packing import keep_nothing
from isthmus.engine.native.program import Program
from isthmus.errors import Code, QnnError
from isthmus.graph import GraphInfo
from isthmus.log import Log

Graphs = Mapping[str, PlannedGraph | GraphOutline]
"""Graphs of a binary by name; of one that its client keeps, without their constants."""


class BinarySource:
    """What a context keeps of its binary.

    - `infos`: Its graphs that are enabled.
    - `kept`: The binary, if its client keeps it.
    - `deferred`: Its contents, if its graphs are yet to be loaded.
    - `provided`: The client's buffers with its constants, if callbacks have brought them.
    """

    def __init__(self, log: Log) -> None:
        self.infos: Sequence[GraphInfo] = ()
        self.kept: KeptBinary | None = None
        self.deferred: BinaryContents | None = None
        self.provided: ProvidedWeights | None = None
        self._log = log
        self._awaited: ProvidedBinary | None = None
        # The bytes that deferred graphs take of a weights buffer, and the programs that these were computed from.
        self._weights_bytes: int | None = None
        self._programs: list[Program] = []

    def read(self, binary: seam.Source, is_persistent: bool) -> BinaryContents:
        """Read a binary, where its client keeps it or as a sealed copy."""
        if is_persistent:
            self.kept = KeptBinary(binary, "htp", self._log)
            return self.kept.contents
        with ContextBinary(binary, "htp") as content:
            return content.contents

    def sections(self, binary: seam.Source) -> Sequence[BinarySection]:
        """Return the parts of a binary that callbacks are to bring."""
        self._awaited = ProvidedBinary(binary, "htp")
        return self._awaited.sections

    def read_provided(self, accelerator: Accelerator, buffers: Sequence[ProvidedBuffer]) -> BinaryContents:
        """Read the binary whose constants are in buffers that the accelerator uses in place."""
        awaited, self._awaited = self._awaited, None
        assert awaited is not None, "no sections were asked for"
        self.provided = ProvidedWeights(accelerator, awaited.sections, buffers, self._log)
        return awaited.contents(self.provided.sections)

    def graph(self, name: str) -> PlannedGraph:
        """Return a graph of the binary that its client keeps."""
        if self.kept is None:
            raise QnnError(Code.GRAPH_INVALID_HANDLE, f"graph '{name}'", "its context has been freed")
        return self.kept.graph(name)

    def check_own(self, what: str) -> None:
        """Refuse what needs the constants of graphs as they were stored."""
        if self.provided is not None:
            rule = "the weights of its context are in the client's buffers, in the form of kernels"
            raise QnnError(Code.COMMON_NOT_SUPPORTED, what, rule, "Create a context without data callbacks.")

    def property(self, option: IntEnum, enabled: Collection[str] | None) -> int:
        """Return what a client allocates for the deferred graphs, or for those of them that are enabled."""
        if self.deferred is None:
            rule = "a context has it only before the finalization of deferred graphs"
            raise QnnError(Code.COMMON_NOT_SUPPORTED, f"property {option.name}", rule)
        needs = [
            GraphNeeds(name, figures.constants, figures.shared_weights, spill_fill=figures.spill_fill)
            for name, figures in ((graph.name, graph.figures) for graph in self.deferred.info.graphs)
            if figures is not None and (enabled is None or name in enabled)
        ]
        if option is options.HtpContextProperty.BUFFER_START_ALIGNMENT:
            return client_buffers.BUFFER_ALIGNMENT
        if option is options.HtpContextProperty.MAX_SPILLFILL_BUFFER_SIZE:
            return spill_fill_property(needs)
        if option is options.HtpContextProperty.WEIGHTS_BUFFER_SIZE:
            return max(weights_property(needs), rounded_up(self._packed_bytes(self.deferred, enabled)))
        return 0

    def _packed_bytes(self, contents: BinaryContents, enabled: Collection[str] | None) -> int:
        """Return how many bytes of a weights buffer the graphs take that are yet to be loaded."""
        # Two threads that come here at once compute the same.
        if self._weights_bytes is None:
            names = [name for name in contents.graphs if enabled is None or name in enabled]
            graph = contents.planned.__getitem__ if self.kept is None else self.kept.graph
            programs = [native.lowered(graph(name)) for name in names]
            self._weights_bytes = client_buffers.weights_bytes(programs)
            if self.kept is None:
                # Constants of a binary that its client keeps may change until they are loaded.
                self._programs = programs
        return self._weights_bytes

    def select(self, contents: BinaryContents, enabled: Collection[str] | None) -> Graphs:
        """Return the enabled graphs of a binary, or all."""
        graphs: Graphs = contents.planned if self.kept is None else self.kept.outlines
        return {name: each for name, each in graphs.items() if enabled is None or name in enabled}

    def check(self, contents: BinaryContents) -> None:
        """Check the plans of a binary; those of a binary that is kept were checked when it was read."""
        for planned in contents.planned.values() if self.kept is None else ():
            native.check_plan(planned)

    def lower(self, graphs: Graphs) -> tuple[Graphs, list[Program]]:
        """Return graphs as drivers get them, with their programs as far as these are made already."""
        if self.provided is None:
            return graphs, self._programs
        # The client's buffers get the constants as kernels have them, and nothing else keeps them.
        provided = {name: each for name, each in graphs.items() if isinstance(each, PlannedGraph)}
        with keep_nothing():
            programs = list(map(native.lowered, provided.values()))
        return {name: each.bare() for name, each in provided.items()}, programs

    def end_deferral(self) -> None:
        """Forget what was kept until the graphs were loaded."""
        self.deferred, self._programs = None, []

    def close(self) -> None:
        """Release everything; safe to call again."""
        self.kept = self.deferred = None
        if self.provided is not None:
            self.provided.close()
