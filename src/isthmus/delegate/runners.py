"""Runners: how a delegate's node executes its graph, depending on the backend.

`NativeRunner`: the backend runs in this process; the interpreter calls a compiled function, which points the program at
the interpreter's tensors. `BoundRunner`: the backend takes client memory; one call from Python, with tensors in shared
memory registered and used in place. `CopyRunner`: the backend has its own memory for inputs and outputs.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from isthmus import qnn
from isthmus.backends.seam.driver import GraphStats, NativeCall
from isthmus.delegate.block import BlockOperand, NodeBlock
from isthmus.delegate.custom_memory import CustomMemory
from isthmus.delegate.view import Nodes
from isthmus.errors import Code, QnnError
from isthmus.qnn import ClientTensor, DescriptorType, MemDescriptor
from isthmus.system.shield import shielded


@dataclass(frozen=True)
class TensorSlot:
    """The interpreter's tensor for an input or output of a graph.

    `is_variable` marks the new value of a variable, which replaces the old one only after the graph has run.
    """

    tensor: int
    is_variable: bool = False


@dataclass(frozen=True)
class ReadyGraph:
    """A finalized graph of a partition, with a slot for each input, then each output."""

    graph: qnn.Graph
    places: tuple[TensorSlot, ...]

    @property
    def infos(self) -> tuple[qnn.TensorInfo, ...]:
        """The descriptions of all inputs, then all outputs."""
        return tuple(self.graph.info.tensors)


class NodeRunner(ABC):
    """The base class of runners, which execute the graph of one node."""

    def __init__(self, ready: ReadyGraph) -> None:
        self.ready = ready
        # Memory for new values of variables, by index among inputs and outputs.
        self._next = {
            index: np.zeros(info.nbytes, np.uint8)
            for index, (slot, info) in enumerate(zip(ready.places, ready.infos, strict=True))
            if slot.is_variable
        }

    @property
    def kept_bytes(self) -> int:
        """The bytes of new values that each run copies into variables."""
        return sum(array.nbytes for array in self._next.values())

    def attach(self, nodes: Nodes, shared: Mapping[int, CustomMemory]) -> list[int]:
        """Prepare for the tensors' current memory; return the tensors that were registered for it.

        - `shared`: The memory of the tensors that are in custom memory, by tensor.
        """
        return []

    @abstractmethod
    def execute(self, nodes: Nodes) -> None:
        """Run once, from Python."""

    @abstractmethod
    def stats(self) -> GraphStats:
        """Return the totals so far."""

    @abstractmethod
    def detach(self) -> None:
        """Stop using the graph, before its context ends; safe to call again."""

    def close(self) -> None:  # noqa: B027
        """Release memory, after the graph's context has ended; safe to call again."""

    def _addresses(self, nodes: Nodes) -> tuple[int, ...]:
        """Return the current addresses of the tensors of all inputs, then all outputs, after checking their sizes."""
        tensors = nodes.structure.tensors
        addresses = []
        for slot, info in zip(self.ready.places, self.ready.infos, strict=True):
            tensor = tensors[slot.tensor]
            if tensor.bytes != info.nbytes or (not tensor.data and info.nbytes):
                rule = f"it has {tensor.bytes if tensor.data else 0} bytes of memory, its node needs {info.nbytes}"
                hint = "Call AllocateTensors after whatever changes a tensor's shape or memory."
                raise QnnError(Code.GRAPH_INVALID_TENSOR, f"tensor {slot.tensor} ('{info.name}')", rule, hint)
            addresses.append(tensor.data or 0)
        return tuple(addresses)

    def _store(self, addresses: Sequence[int]) -> None:
        """Copy new values into the variables."""
        values = self._next.values()
        _copy([addresses[i] for i in self._next], [v.ctypes.data for v in values], [v.nbytes for v in values])


def _copy(targets: Sequence[int], sources: Sequence[int], sizes: Sequence[int]) -> None:
    """Copy memory from addresses to addresses, all of it or, after an interrupt, nothing."""
    # It is one call of C, within which no signal handler runs.
    deque(map(ctypes.memmove, targets, sources, sizes), maxlen=0)


class NativeRunner(NodeRunner):
    """A runner in native code, on whatever memory the interpreter's tensors have.

    - `block`: The node's block, which is pointed at the graph.
    """

    def __init__(self, ready: ReadyGraph, call: NativeCall, block: NodeBlock) -> None:
        super().__init__(ready)
        self._call, self._block = call, block
        # The block also counts the runs of earlier graphs.
        self._runs_before = block.runs

    def attach(self, nodes: Nodes, shared: Mapping[int, CustomMemory]) -> list[int]:
        """Point the block at the graph; custom memory is used like any other, so nothing is registered."""
        self._block.point(
            self._call,
            [
                BlockOperand(slot.tensor, info.nbytes, self._next[index].ctypes.data if slot.is_variable else 0)
                for index, (slot, info) in enumerate(zip(self.ready.places, self.ready.infos, strict=True))
            ],
        )
        return []

    def execute(self, nodes: Nodes) -> None:
        """Raise the reason why native code could not run: a tensor has changed, or a run has failed."""
        self._addresses(nodes)
        self._call.check(self.ready.graph._what)
        raise QnnError(Code.GRAPH_INVALID_TENSOR, self.ready.graph._what, "it is not ready to run")

    def stats(self) -> GraphStats:
        runs = self._block.runs - self._runs_before
        io = self.ready.graph.info.io_bytes - self.kept_bytes
        return GraphStats(runs, 0, runs * self.kept_bytes, {"raw": runs * io})

    def detach(self) -> None:
        self._block.stop()


class BoundRunner(NodeRunner):
    """A runner on the memory of the interpreter's tensors, bound once for as long as they stay there."""

    def __init__(self, ready: ReadyGraph, profile: qnn.Profile | None = None) -> None:
        super().__init__(ready)
        self._profile = profile
        # Address, handle and memory of registered tensors, by index among inputs and outputs.
        self._handles: dict[int, tuple[int, qnn.MemHandle, CustomMemory]] = {}
        # The binding, and the addresses of the tensors that it was made for.
        self._bound: tuple[int, ...] | None = None
        self._binding: qnn.Binding | None = None

    def attach(self, nodes: Nodes, shared: Mapping[int, CustomMemory]) -> list[int]:
        """Register the tensors in custom memory, and deregister those that have moved."""
        context, registered = self.ready.graph.context, []
        # Returns the backend's description of a part of shared memory, for its registration.
        describe = context.backend.entry.delegate.shared_memory
        for index, (slot, info) in enumerate(zip(self.ready.places, self.ready.infos, strict=True)):
            memory = None if slot.is_variable else shared.get(slot.tensor)
            address = (nodes.tensor(slot.tensor).data or 0) if memory is not None else 0
            entry = self._handles.get(index)
            if entry is not None and entry[0] != address:
                self._unbind()
                handle = self._handles.pop(index)[1]
                if all(other is not handle for _, other, _ in self._handles.values()):
                    context.mem_deregister([handle])
            if memory is not None and describe is not None and index not in self._handles:
                handle = self._handle_at(address, info) or self._register(
                    info, describe(memory.buffer, address - memory.address)
                )
                self._unbind()
                self._handles[index] = address, handle, memory
                registered.append(slot.tensor)
        return registered

    def _handle_at(self, address: int, info: qnn.TensorInfo) -> qnn.MemHandle | None:
        """Return the handle of a tensor at this address with the type and shape of `info`, if one is registered."""
        for index, (place, handle, _) in self._handles.items():
            like = self.ready.infos[index]
            if place == address and (like.dims, like.dtype) == (info.dims, info.dtype):
                return handle
        return None

    def _register(self, info: qnn.TensorInfo, custom: object) -> qnn.MemHandle:
        """Register memory for a tensor, as the backend describes it."""
        descriptor = MemDescriptor(info.dims, info.dtype, DescriptorType.CUSTOM, custom=custom)
        return self.ready.graph.context.mem_register([descriptor])[0]

    def execute(self, nodes: Nodes) -> None:
        addresses = self._addresses(nodes)
        if addresses != self._bound or self._binding is None:
            self._bind(addresses)
        assert self._binding is not None
        self._binding.execute(self._profile)
        if self._next:
            self._store(addresses)

    @shielded
    def _bind(self, addresses: tuple[int, ...]) -> None:
        """Bind the graph to the tensors at these addresses, by their memory handles where they are registered."""
        self._unbind()
        tensors = []
        for index, info in enumerate(self.ready.infos):
            if index in self._next:
                tensors.append(ClientTensor(info.name, self._next[index]))
            elif index in self._handles and self._handles[index][0] == addresses[index]:
                tensors.append(ClientTensor(info.name, mem_handle=self._handles[index][1]))
            else:
                tensors.append(ClientTensor(info.name, addresses[index], nbytes=info.nbytes))
        count = len(self.ready.graph.input_tensors)
        self._binding = self.ready.graph.bind(tensors[:count], tensors[count:])
        self._bound = addresses

    def _unbind(self) -> None:
        """Close the binding, if there is one."""
        self._bound = None
        if self._binding is not None:
            self._binding.close()
            self._binding = None

    def stats(self) -> GraphStats:
        stats = self.ready.graph.stats
        stats.copied_out_bytes += stats.executions * self.kept_bytes
        return stats

    def detach(self) -> None:
        self._unbind()
        for _, handle, _ in self._handles.values():
            handle.free()
        self._handles.clear()


class CopyRunner(NodeRunner):
    """A runner in memory that the backend chooses; tensors are copied there and back."""

    def __init__(self, ready: ReadyGraph, memory: qnn.GraphMemory, profile: qnn.Profile | None = None) -> None:
        super().__init__(ready)
        self._memory, self._profile = memory, profile
        views = [*memory.inputs.values(), *memory.outputs.values()]
        self._own, self._sizes = [view.ctypes.data for view in views], [view.nbytes for view in views]
        self._input_count = len(memory.inputs)

    def execute(self, nodes: Nodes) -> None:
        addresses, count = self._addresses(nodes), self._input_count
        _copy(self._own[:count], addresses, self._sizes)
        self._memory.binding.execute(self._profile)
        _copy(addresses[count:], self._own[count:], self._sizes[count:])

    def stats(self) -> GraphStats:
        stats = self.ready.graph.stats
        stats.copied_in_bytes += stats.executions * sum(self._sizes[: self._input_count])
        stats.copied_out_bytes += stats.executions * sum(self._sizes[self._input_count :])
        # The backend uses its own memory in place, not the interpreter's.
        stats.in_place_bytes = {}
        return stats

    def detach(self) -> None:
        self._memory.binding.close()

    def close(self) -> None:
        self._memory.close()
