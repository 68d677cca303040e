"""A graph: composed, finalized, executed (QnnGraph_*, QnnTensor_*)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus import graph as ir
from isthmus.backends.driver import GraphDriver, GraphStats, TensorMemory
from isthmus.engine.native.program import Program, TensorInfo
from isthmus.errors import Code, QnnError
from isthmus.prepare.schedule import Plan
from isthmus.qnn.asynchronous import Execution
from isthmus.qnn.handle import Handle
from isthmus.qnn.profile import Event, Profile, ProfileLevel
from isthmus.qnn.tensor import ClientTensor

if TYPE_CHECKING:
    from isthmus.qnn.context import Context

class GraphConfig(IntEnum):
    """QNN_GRAPH_CONFIG_OPTION_* that every backend has; a backend's own options are in the module of its name."""

    PRIORITY = 3


class Priority(IntEnum):
    """QNN_PRIORITY_*."""

    LOW = 0
    NORMAL = 100
    NORMAL_HIGH = 150
    HIGH = 200


@dataclass(frozen=True)
class _Bound:
    """What a client passed last, and the memories that it means."""

    inputs: tuple[ClientTensor, ...]
    outputs: tuple[ClientTensor, ...]
    memories: Sequence[TensorMemory | None]


class Graph(Handle):
    """A graph of a context. Made by `Context.create_graph`, `Context.compose` or `Context.retrieve`."""

    invalid = Code.GRAPH_INVALID_HANDLE

    def __init__(self, context: Context, driver: GraphDriver) -> None:
        super().__init__(f"graph '{driver.graph.name}'", context)
        self.context = context
        self.driver = driver
        self.name = driver.graph.name
        self.finalized = driver.finalized
        self.priority = Priority.NORMAL
        self._last: _Bound | None = None

    # -- composition ---------------------------------------------------------------------------------------------------

    def create_tensor(
        self,
        name: str,
        type: ir.TensorType,
        dtype: ir.DataType,
        dims: Iterable[int],
        quantization: ir.Quantization | None = None,
        data: np.ndarray | None = None,
        **more: Any,
    ) -> ir.Tensor:
        """Create a tensor (QnnTensor_createGraphTensor)."""
        self._check_composing()
        return self.driver.graph.create_tensor(name, type, dtype, dims, quantization, data, **more)

    def add_node(
        self,
        name: str,
        op: str,
        inputs: Sequence[ir.Tensor | None],
        outputs: Sequence[ir.Tensor],
        params: dict[str, Any] | None = None,
    ) -> None:
        """Add a node (QnnGraph_addNode)."""
        self._check_composing()
        self.driver.graph.add_node(name, op, inputs, outputs, params)

    def update_state(self, state: ir.Tensor, value: ir.Tensor) -> None:
        """Say which value a state (an APP_READWRITE tensor) has after an execution."""
        self._check_composing()
        self.driver.graph.update_state(state, value)

    # -- properties and configs ----------------------------------------------------------------------------------------

    def get_property(self, option: int) -> Any:
        """A property (QnnGraph_getProperty)."""
        self._check()
        if isinstance(option, GraphConfig):
            return self.priority
        return self.driver.get_property(int(option))

    def set_config(self, option: int, value: Any) -> None:
        """A config (QnnGraph_setConfig): one of `GraphConfig`, or a backend's own."""
        self._check()
        if not isinstance(option, GraphConfig):
            self.driver.set_config(int(option), value)
            return
        if isinstance(value, bool) or value not in list(Priority):
            known = ", ".join(f"{known.name} {int(known)}" for known in Priority)
            raise QnnError(Code.GRAPH_INVALID_ARGUMENT, f"priority {value!r}", f"must be one of {known}")
        self.priority = Priority(value)
        self.driver.priority = int(value)

    # -- finalize and execute ------------------------------------------------------------------------------------------

    def finalize(self, profile: Profile | None = None) -> None:
        """Make it ready to execute (QnnGraph_finalize)."""
        self._check()
        if self.finalized:
            raise QnnError(Code.GRAPH_FINALIZED, self._what, "it is finalized already")
        begin = time.perf_counter()
        self.driver.finalize()
        self.finalized = True
        if profile is not None:
            profile.add(Event("finalize", (time.perf_counter() - begin) * 1e6, "us"))
            if profile.level is ProfileLevel.DETAILED:
                profile.add(Event("staging reserved", _staging(self.driver.stats()), "bytes"))

    def execute(
        self,
        inputs: Sequence[ClientTensor] = (),
        outputs: Sequence[ClientTensor] = (),
        profile: Profile | None = None,
    ) -> None:
        """Run once (QnnGraph_execute).

        Parameters
        ----------
        inputs, outputs
            Memory for tensors by name, in any order. A tensor that is not named lies where the backend planned it,
            if it has such a place; `inputs` and `outputs` of this object are views of these.
        """
        self._check()
        if not self.finalized:
            raise QnnError(
                Code.GRAPH_NOT_FINALIZED, self._what, "only a finalized graph can be executed", "Call finalize() first."
            )
        memories = self._bound_memories(tuple(inputs), tuple(outputs))
        if profile is None:
            self.driver.execute(memories)
            return
        before = self.driver.stats()
        begin = time.perf_counter()
        self.driver.execute(memories)
        profile.add(*_events(profile.level, (time.perf_counter() - begin) * 1e6, before, self.driver.stats()))

    def execute_async(
        self,
        inputs: Sequence[ClientTensor] = (),
        outputs: Sequence[ClientTensor] = (),
        notify: Callable[[Execution], object] | None = None,
    ) -> Execution:
        """Run once on another thread (QnnGraph_executeAsync), in the order of such calls to the context.

        The answer is a future that can be awaited, and that `notify` is called with at the end. At most 64 executions
        of a graph wait.
        """
        self._check()
        execution = self.context.executions.submit(self, self._what, lambda: self.execute(inputs, outputs))
        if notify is not None:
            execution.add_done_callback(notify)  # type: ignore[arg-type]
        return execution

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def input_tensors(self) -> tuple[TensorInfo, ...]:
        """What each input is: name, type, dimensions, bytes."""
        self._check()
        return self.driver.program.inputs

    @property
    def output_tensors(self) -> tuple[TensorInfo, ...]:
        """What each output is."""
        self._check()
        return self.driver.program.outputs

    @property
    def inputs(self) -> Mapping[str, np.ndarray]:
        """Views of the memory that the backend planned for inputs; those that have none are missing."""
        return self._views(0, self.input_tensors)

    @property
    def outputs(self) -> Mapping[str, np.ndarray]:
        """Views of the memory that the backend planned for outputs; those that have none are missing."""
        return self._views(len(self.input_tensors), self.output_tensors)

    @property
    def stats(self) -> GraphStats:
        """What it did so far: executions, bytes copied, bytes used in place."""
        self._check()
        return self.driver.stats()

    @property
    def program(self) -> Program:
        """The executable form."""
        self._check()
        return self.driver.program

    @property
    def plan(self) -> Plan:
        """How scratch was planned."""
        self._check()
        return self.driver.plan

    def reset(self) -> None:
        """Set the initial state."""
        self._check()
        self.driver.reset()

    # -- inside --------------------------------------------------------------------------------------------------------

    def free(self) -> None:
        """Do nothing: QNN has no call that frees a graph, it ends with its context."""

    def _check_composing(self) -> None:
        self._check()
        if self.driver.graph.finalized:
            raise QnnError(
                Code.GRAPH_FINALIZED,
                self._what,
                "it is complete and cannot be changed",
                "To ask for a size or to finalize ends composition.",
            )

    def _views(self, start: int, infos: Sequence[TensorInfo]) -> Mapping[str, np.ndarray]:
        places = [(info, self.driver.place(start + index)) for index, info in enumerate(infos)]
        return MappingProxyType(
            {info.name: place.view(info.dtype.numpy, info.dims) for info, place in places if place is not None}
        )

    def _bound_memories(
        self, inputs: tuple[ClientTensor, ...], outputs: tuple[ClientTensor, ...]
    ) -> Sequence[TensorMemory | None]:
        """The memory of each input and output in order; the same object as long as the client passes the same."""
        last = self._last
        if last is not None and (last.inputs, last.outputs) == (inputs, outputs):
            for tensor in (*inputs, *outputs):
                tensor.check()
            return last.memories
        infos = (self.input_tensors, self.output_tensors)
        memories: list[TensorMemory | None] = []
        for kind, given, known in zip(("input", "output"), (inputs, outputs), infos, strict=True):
            named: dict[str, ClientTensor] = {}
            for tensor in given:
                if not isinstance(tensor, ClientTensor):
                    raise QnnError(Code.GRAPH_INVALID_TENSOR, self._what, f"{tensor!r} is not a ClientTensor")
                if tensor.name in named:
                    raise QnnError(Code.GRAPH_INVALID_TENSOR, f"{kind} '{tensor.name}'", "it is given twice")
                named[tensor.name] = tensor
            for info in known:
                mine = named.pop(info.name, None)
                memories.append(None if mine is None else mine.memory(info, self.context, kind == "output"))
            for name in named:
                names = ", ".join(f"'{info.name}'" for info in known)
                raise QnnError(
                    Code.GRAPH_INVALID_TENSOR, f"{kind} '{name}'", f"{self._what} has no such {kind}; it has {names}"
                )
        self._last = _Bound(inputs, outputs, memories)
        return memories


def _events(level: ProfileLevel, microseconds: float, before: GraphStats, after: GraphStats) -> list[Event]:
    events = [Event("execute", microseconds, "us")]
    if level is ProfileLevel.DETAILED:
        events.append(Event("copied in", after.copied_in_bytes - before.copied_in_bytes, "bytes"))
        events.append(Event("copied out", after.copied_out_bytes - before.copied_out_bytes, "bytes"))
        events.append(Event("staging reserved", _staging(after) - _staging(before), "bytes"))
        events += [
            Event(f"used in place: {kind}", nbytes - before.in_place_bytes.get(kind, 0), "bytes")
            for kind, nbytes in after.in_place_bytes.items()
        ]
    return events


def _staging(stats: GraphStats) -> int:
    return stats.staging_prepare_bytes + stats.staging_execute_bytes
