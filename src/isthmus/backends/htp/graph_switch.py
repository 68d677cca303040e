"""Graph switching: a context from a persistent binary has only some of its graphs in the accelerator at a time.

`isthmus.domains.choices` is the rule. All of this happens under the lock of the context's executions, of which one
runs at a time, so that no graph is unloaded while it executes. A graph that is unloaded keeps its state, in memory of
this process, and the client's memory stays registered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from isthmus.backends.seam import native
from isthmus.domains import Choice, choices, choices_at_creation
from isthmus.log import Log, LogLevel
from isthmus.system.interrupts import FileDescriptor
from isthmus.system.shield import shielded

if TYPE_CHECKING:
    from isthmus.backends.htp.context import HtpContext
    from isthmus.backends.htp.graph import HtpGraphDriver


class GraphSwitch:
    """The graphs of a context of which not all are loaded.

    - `order`: The names of its graphs; the first is loaded when the context is created, unless others are retained.
    """

    def __init__(self, context: HtpContext, order: Sequence[str], graphs: Sequence[HtpGraphDriver], log: Log) -> None:
        self._context, self._order, self._log = context, order, log
        self._graphs = {graph.graph.name: graph for graph in graphs}
        self._states: dict[str, FileDescriptor] = {}
        """The states of graphs that are not loaded, if they have any."""

    @property
    def loaded(self) -> Choice:
        """The names of the graphs that are loaded."""
        return tuple(name for name, graph in self._graphs.items() if graph.number >= 0)

    def begin(self) -> None:
        """Load what is loaded when a context is created."""
        chosen = self._charge(choices_at_creation(self._order, self._context.loading.retained))
        for name, graph in self._graphs.items():
            graph.finalized = True
            if name in chosen:
                graph.mark_loaded(self._context.load([native.lowered(graph.planned())])[name])
        self._log(LogLevel.INFO, f"HTP graph switching: {', '.join(chosen)} of {len(self._graphs)} graphs loaded")

    @shielded
    def switch_to(self, name: str) -> None:
        """Load a graph, and unload those that have to go; the caller holds the lock of executions.

        A refusal because of the binary or of too little room changes nothing. If the accelerator itself refuses the
        graph, others may be unloaded by then, and are loaded again when they are executed.
        """
        with self._context.queue.held():
            self._switch_to(name)

    def _switch_to(self, name: str) -> None:
        graph = self._graphs[name]
        # Before anything is unloaded: this may be refused.
        program = native.lowered(graph.planned())
        loaded = self.loaded
        chosen = self._charge(choices(loaded, self._context.loading.retained, name))
        gone = [each for each in loaded if each not in chosen]
        for each in gone:
            self._unload(each)
        number = self._context.load([program])[name]
        if name in self._states:
            try:
                self._context.queue.restore_state(number, self._states[name])
            except Exception:
                # With its initial state it would be loaded as another graph than it was.
                self._context.queue.unload(number)
                raise
            self.reset(name)
        graph.number = number
        self._log(LogLevel.INFO, f"HTP graph switch: loaded {name}, unloaded {', '.join(gone) or 'none'}")

    def reset(self, name: str) -> None:
        """Forget the state of a graph: when it is loaded the next time, it begins with its initial one."""
        if (state := self._states.pop(name, None)) is not None:
            state.close()

    def forget(self, name: str) -> None:
        """Forget a graph that is released."""
        self.reset(name)
        self._graphs.pop(name, None)

    def close(self) -> None:
        """Forget all states; safe to call again."""
        for name in list(self._states):
            self.reset(name)

    def _charge(self, options: Sequence[Choice]) -> Choice:
        """Charge the first of these choices that has room, and return it."""
        return options[self._context.charge_loaded(options)]

    def _unload(self, name: str) -> None:
        graph = self._graphs[name]
        if graph.info.memory.state_bytes:
            self._states[name] = self._context.queue.save_state(graph.number, graph.info.memory.state_bytes)
        graph.unload()
