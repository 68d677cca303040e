"""A whole backend in one file: the numpy reference runs graphs in memory of a "device" that the host does not see.

Inputs go there and outputs come back by counted copies; memory of the device itself (`ToyBuffer`), and what is
registered, is used in place. Its context binaries are in a format of its own. Clients in C name a `ToyBuffer` by its
number (8 bytes) in a custom memory descriptor; TFLite delegates find the backend by its number, 1000.
"""
# ruff: noqa: B905

from __future__ import annotations

import ctypes
import itertools
import pickle

import numpy as np

from isthmus import memory
from isthmus.backends.seam import registry
from isthmus.backends.seam.binding import BindingBase, ExecutionCounts
from isthmus.backends.seam.driver import (
    BackendDriver,
    ContextDriver,
    GraphDriver,
    Registration,
    Traffic,
    check_overlaps,
)
from isthmus.backends.seam.entry import BackendEntry
from isthmus.backends.seam.execution_lock import ExecutionLock
from isthmus.backends.seam.facets import CFacet, DelegateFacet
from isthmus.cabi.client import read
from isthmus.errors import Code, QnnError
from isthmus.graph import BinaryInfo, GraphInfo, MemoryNeeds, TensorInfo
from isthmus.graph.evaluate import evaluate

MAGIC = b"TOY!"
OPERATIONS = {"ElementWiseAdd", "ElementWiseMultiply", "Relu", "Sigmoid"}


class ToyBuffer(memory.Buffer):
    """Memory of the device: an identity, a number and a size, and no view from the host."""

    every, numbers = {}, itertools.count(1)

    def __init__(self, nbytes):
        self.there, self.number = np.zeros(nbytes, np.uint8), next(self.numbers)
        self.every[self.number] = self
        self._describe("toy", nbytes, None, memory.Identity("toy", (id(self),)), 0)


class ToyRegistration(Registration):
    def __init__(self, descriptor):
        if descriptor.custom is None:
            raise QnnError(Code.MEM_INVALID_ARGUMENT, "memory registration", "a toy has no such buffer")
        self.descriptor, (buffer, offset) = descriptor, descriptor.custom
        self.window = buffer.window(offset, descriptor.nbytes)

    def _release(self): ...


class Toy(BackendDriver):
    def __init__(self, config, log): ...

    def create_context(self, device=None):
        return ToyContext()

    def supports(self, call):
        return None if call.op in OPERATIONS else f"a toy has no {call.op}"


class ToyContext(ContextDriver):
    def __init__(self):
        self.graphs = []

    def create_graph(self, graph):
        self.graphs.append(ToyGraph(graph))
        return self.graphs[-1]

    def register(self, descriptors):
        return list(map(ToyRegistration, descriptors))

    def get_binary(self):
        return MAGIC + pickle.dumps([graph.graph for graph in self.graphs])

    def restore(self, binary):
        self.graphs = [ToyGraph(graph) for graph in pickle.loads(bytes(binary)[len(MAGIC) :])]
        for graph in self.graphs:
            graph.finalized = True
        return self.graphs

    def close(self):
        for graph in self.graphs:
            graph.close()


class ToyGraph(GraphDriver):
    def __init__(self, graph):
        self.graph, self.states = graph, {}
        self.counts = ExecutionCounts(ExecutionLock())

    @property
    def info(self):
        if not self.graph.finalized:
            self.graph.finalize()
        return describe(self.graph)

    def finalize(self):
        missing = [f"{n.name} ({n.op})" for n in self.graph.nodes if n.op not in OPERATIONS]
        if missing:
            raise QnnError(Code.COMMON_NOT_SUPPORTED, f"graph '{self.graph.name}'", f"a toy has no {missing}")
        self.reset()
        self.finalized = bool(self.info)

    def bind(self, memories):
        return ToyBinding(self, memories)

    def reset(self):
        self.states = {tensor: np.array(tensor.data) for tensor in self.graph.states}

    def stats(self):
        return self.counts.stats()

    def close(self):
        with self.counts.lock:
            self.counts.close()


class ToyBinding(BindingBase):
    def __init__(self, graph, memories):
        self.driver = graph
        super().__init__(f"graph '{graph.graph.name}'", memories, graph.counts)

    def _bind(self):
        infos, inputs = self.driver.info.tensors, len(self.driver.info.inputs)
        for info, given in zip(infos, self.memories, strict=True):
            if given is None:
                raise QnnError(Code.GRAPH_INVALID_TENSOR, f"tensor '{info.name}'", "needs memory")
            given.window.check(f"tensor '{info.name}'", info.nbytes)
        windows = [given.window for given in self.memories]
        check_overlaps(self._what, infos, inputs, windows)
        raw = [given.registration is None and given.window.buffer.has_host_view for given in self.memories]
        copied = [info.nbytes * copies for info, copies in zip(infos, raw)]
        in_place = {"toy": self.driver.info.io_bytes - sum(copied)}
        traffic = Traffic(sum(copied[:inputs]), sum(copied[inputs:]), in_place)
        return traffic, list(zip([info.name for info in infos], windows))

    def _run(self):
        graph, values = self.driver.graph, dict(self.driver.states)
        io = [(info, self._bytes(given.window)) for info, given in zip(self.driver.info.tensors, self.memories)]
        for tensor, (info, array) in zip(graph.inputs, io):
            values[tensor] = array[: info.nbytes].view(info.dtype.numpy).reshape(info.dims).copy()
        for node in graph.nodes:
            arrays = [None if t is None else t.data if t.is_static else values[t] for t in node.inputs]
            values.update(zip(node.outputs, evaluate(node.op, node.inputs, arrays, node.params, node.outputs)))
        for tensor, (info, array) in zip(graph.outputs, io[len(graph.inputs) :]):
            array[: info.nbytes] = np.ascontiguousarray(values[tensor]).reshape(-1).view(np.uint8)
        for name, value in graph.state_updates.items():
            self.driver.states[graph.tensors[name]] = values[value]

    def _bytes(self, window):
        whole = window.buffer.array if window.buffer.has_host_view else window.buffer.there
        return whole[window.offset : window.offset + window.nbytes]


def describe(graph):
    constants = sum(tensor.nbytes for tensor in graph.tensors.values() if tensor.is_static)
    tensors = (tuple(map(TensorInfo.of, some)) for some in (graph.inputs, graph.outputs))
    return GraphInfo(graph.name, *tensors, MemoryNeeds(constant_bytes=constants), "numpy")


def inspect(binary):
    binary = binary if isinstance(binary, (bytes, bytearray, memoryview)) else np.fromfile(binary, np.uint8).tobytes()
    if bytes(binary[: len(MAGIC)]) != MAGIC:
        return None
    return BinaryInfo(1, "toy", "a test", len(binary), tuple(map(describe, pickle.loads(binary[len(MAGIC) :]))))


def read_memory(address):
    found = ToyBuffer.every.get(read(address, ctypes.c_uint64).value)
    return None if found is None else (found, 0)


IN_C = CFacet(backend_id=1000, version=(1, 2, 3), capabilities=frozenset({502, 1101}), memory=read_memory)
IN_TFLITE = DelegateFacet(number=1000, shared_memory=lambda buffer, offset: (buffer, offset))
ENTRY = BackendEntry(
    "toy", "libQnnToy.so", Toy, lambda config, log: config, inspect=inspect, c=IN_C, delegate=IN_TFLITE
)
registry.register(ENTRY)
