"""A graph in the vendor's library: composed, compiled and executed in its process; bindings that copy and count.

The process sees no memory of this one. Raw buffers are copied to it and back by messages, registered memory is used in
place. States are kept on this side: the library gets them as inputs and returns them as outputs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus.backends.seam.binding import BindingBase, ExecutionCounts
from isthmus.backends.seam.driver import GraphDriver, GraphStats, Memories, Traffic, check_overlaps
from isthmus.backends.seam.execution_deadline import ExecutionDeadline, abort_error
from isthmus.backends.seam.execution_lock import ExecutionLock
from isthmus.backends.seam.staging import require_memory, traffic
from isthmus.backends.vendor.composition import compose
from isthmus.backends.vendor.figures import figures_from_json
from isthmus.backends.vendor.memory import VendorRegistration
from isthmus.backends.vendor.options import VendorGraphProperty
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph, GraphInfo, MemoryNeeds, Tensor, TensorInfo
from isthmus.graph.figures import GraphFigures, total_ram
from isthmus.memory import Window

if TYPE_CHECKING:
    from isthmus.backends.vendor.driver import VendorContext

_ABORTED = "its execution was aborted, which ends the process"


class VendorGraphDriver(GraphDriver):
    """A graph in the vendor's library.

    - `graph`: The graph, composed or still to be composed; for a graph of a binary, its inputs and outputs.
    - `figures`: The figures of a graph that comes from a binary, which is finalized.
    """

    properties = VendorGraphProperty

    def __init__(
        self, context: VendorContext, graph: Graph, figures: GraphFigures | None = None, is_restored: bool = False
    ) -> None:
        self.graph, self.context = graph, context
        self.figures = figures
        self.finalized = is_restored
        self.finalize_seconds = 0.0
        self.counts = ExecutionCounts(ExecutionLock())
        self._info: GraphInfo | None = None
        self.states: dict[str, np.ndarray] = {}
        """The current value of each state, by name."""
        self.next_states: Mapping[str, str] = {}
        """The output with the next value of each state, by the state's name."""

    @property
    def info(self) -> GraphInfo:
        if self._info is None:
            if not self.graph.finalized:
                self.graph.finalize()
            inputs, outputs = (
                tuple(TensorInfo.of(t) for t in side) for side in (self.graph.inputs, self.graph.outputs)
            )
            state_bytes = sum(tensor.nbytes for tensor in self.graph.states)
            needs = MemoryNeeds(state_bytes=state_bytes)
            if self.figures is not None:
                figures = self.figures
                needs = MemoryNeeds(figures.spill_fill + figures.ddr, state_bytes, figures.constants + figures.op_data)
            self._info = GraphInfo(self.graph.name, inputs, outputs, needs, self.context.config.target.title)
        return self._info

    def get_property(self, option: IntEnum) -> Any:
        if self.figures is None:
            raise QnnError(Code.GRAPH_NOT_FINALIZED, self.what, "only a finalized graph has figures")
        return self.figures if option is VendorGraphProperty.FIGURES else self.finalize_seconds

    @property
    def figures_of_device(self) -> Mapping[str, float]:
        if self.figures is None:
            return {}
        return {**self.figures.to_json(), "total_ram": total_ram([self.figures])}

    def finalize(self) -> None:
        info = self.info
        composition = compose(self.graph)
        process, name = self.context.process(), info.name
        try:
            process.call("compose", {"graph": composition.to_bytes()}, name=name)
            answer, _ = process.call("finalize", name=name, seconds=self.context.config.timeout)
        except QnnError as problem:
            self.context.graph_failed()
            raise QnnError(problem.code, self.what, problem.rule, problem.hint) from None
        self.finalize_seconds = float(answer["seconds"])
        description, _ = process.call("describe")
        graphs = {each["name"]: each["figures"] for each in description["graphs"]}
        self.figures = figures_from_json(graphs[name]) if graphs.get(name) else None
        self.next_states = dict(composition.states)
        self._info = None
        self.reset()
        self.finalized = True

    def bind(self, memories: Memories) -> VendorBinding:
        return VendorBinding(self, memories)

    def reset(self) -> None:
        self.states = {tensor.name: _initial(tensor) for tensor in self.graph.states}

    def stats(self) -> GraphStats:
        return self.counts.stats()

    def close(self) -> None:
        with self.counts.lock:
            self.counts.close()
        self.graph, self.states = Graph(self.graph.name), {}


def _initial(tensor: Tensor) -> np.ndarray:
    """Return the initial value of a state: that in the graph, or the stored form of 0.0."""
    if tensor.data is not None:
        return np.ascontiguousarray(tensor.data)
    quantization = tensor.quantization
    zero = 0 if quantization is None or quantization.axis is not None else quantization.zero_point
    return np.full(tensor.dims, zero, tensor.dtype.numpy)


class VendorBinding(BindingBase):
    """Memory for a graph in the vendor's library."""

    def __init__(self, graph: VendorGraphDriver, memories: Memories) -> None:
        self._graph = graph
        # When the binding was created; 0 once its first execution, which is measured from there, has ended.
        self._begun = time.perf_counter()
        super().__init__(graph.what, memories, graph.counts)

    def _basis(self) -> object:
        return self._graph.context.process()

    def _bind(self) -> tuple[Traffic, list[tuple[str, Window]]]:
        infos, inputs = self._graph.info.tensors, len(self._graph.info.inputs)
        given = [
            require_memory(self._what, info, memory, "this process")
            for info, memory in zip(infos, self.memories, strict=True)
        ]
        self._io = [memory.window.part(0, info.nbytes) for info, memory in zip(infos, given, strict=True)]
        check_overlaps(self._what, infos, inputs, self._io)
        self._handles = [
            memory.registration.handle if isinstance(memory.registration, VendorRegistration) else 0 for memory in given
        ]
        kinds = ["shared" if handle else None for handle in self._handles]
        windows = [(info.name, window) for info, window in zip(infos, self._io, strict=True)]
        return traffic(infos, inputs, kinds), windows

    def _run_within(self, limit: ExecutionDeadline) -> None:
        process = self._graph.context.process()
        killed: list[bool] = []

        def abort() -> None:
            killed.append(True)
            process.kill(_ABORTED)

        with limit.watched(abort):
            try:
                self._run(limit.left)
            except QnnError as problem:
                if killed:
                    raise abort_error(self._what) from None
                if problem.code is Code.GRAPH_TIMED_OUT:
                    raise limit.timeout_error(self._what) from None
                raise

    def _run(self, seconds: float | None = None) -> None:
        graph = self._graph
        infos, inputs = graph.info.tensors, len(graph.info.inputs)
        sections: dict[str, bytes | memoryview] = {}
        # Inputs and outputs, each as name, bytes and memory handle; without a handle (0), the bytes go by a section.
        sides: tuple[list[tuple[str, int, int]], list[tuple[str, int, int]]] = ([], [])
        for index, (info, window, handle) in enumerate(zip(infos, self._io, self._handles, strict=True)):
            sides[index >= inputs].append((info.name, info.nbytes, handle))
            if index < inputs and not handle:
                sections[info.name] = window.view(np.uint8, (info.nbytes,)).data
        for name, value in graph.states.items():
            sides[0].append((name, value.nbytes, 0))
            sections[name] = value.reshape(-1).view(np.uint8).data
        sides[1].extend((graph.next_states[name], value.nbytes, 0) for name, value in graph.states.items())
        _, results = graph.context.process().call(
            "execute", sections, name=graph.info.name, inputs=sides[0], outputs=sides[1],
            seconds=graph.context.config.timeout if seconds is None else seconds,
        )  # fmt: skip
        for info, window, handle in zip(infos[inputs:], self._io[inputs:], self._handles[inputs:], strict=True):
            if not handle:
                window.view(np.uint8, (info.nbytes,))[...] = np.frombuffer(results[info.name], np.uint8, info.nbytes)
        graph.states = {
            name: np.frombuffer(results[graph.next_states[name]], value.dtype).reshape(value.shape)
            for name, value in graph.states.items()
        }
        if self._begun:
            self._count_first((time.perf_counter() - self._begun) * 1e6)
            self._begun = 0.0
