"""Random graphs whose outputs are in the memory of inputs, beside the same graphs with memory for each tensor."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any

import numpy as np

from isthmus import qnn
from isthmus.memory import rpcmem
from isthmus.qnn import ClientTensor, DescriptorType, GraphConfig, MemDescriptor
from support.tile_networks import of_one_size

WAYS = {"cpu": ("buffer", "mapping"), "htp": ("handle", "handle", "buffer", "mapping"), "gpu": ("buffer", "mapping"),
        "lpai": ("handle", "buffer", "mapping")}  # fmt: skip
"""How the same memory is named: by its buffer, a second mapping of its file, or a memory handle."""


class SharedPlace:
    """Memory for tensors of one size, with two mappings, and a handle once one is asked for."""

    def __init__(self, context: qnn.Context, info: qnn.TensorInfo) -> None:
        self._context, self._info = context, info
        self.buffer = rpcmem.alloc(25, 1, -(-info.nbytes // 128) * 128)
        self.mapping = mmap.mmap(self.buffer.fd, self.buffer.nbytes)
        self.bytes = self.buffer.array[: info.nbytes]
        self._handle: qnn.MemHandle | None = None

    def tensor(self, name: str, way: str) -> ClientTensor:
        """Name the memory in one of the ways, for a tensor."""
        if way != "handle":
            memory = self.buffer if way == "buffer" else self.mapping
            return ClientTensor(name, np.frombuffer(memory, np.uint8, self._info.nbytes))
        if self._handle is None:
            custom: Any = None
            kind, fd = DescriptorType.ION, self.buffer.fd
            if self._context.backend.name == "lpai":
                kind, fd, custom = DescriptorType.CUSTOM, -1, qnn.lpai.MemInfo(self.buffer.fd, 0)
            [self._handle] = self._context.mem_register(
                [MemDescriptor(self._info.dims, self._info.dtype, kind, fd=fd, custom=custom)]
            )
        return ClientTensor(name, mem_handle=self._handle)


@contextmanager
def ready(backend: qnn.Backend, seed: int, threads: int, limit: str | None) -> Iterator[qnn.Graph]:
    """Prepare the graph of a seed in a context of its own."""
    with ExitStack() as stack:
        context = backend.create_context()
        stack.callback(context.free)
        graph = context.add_graph(of_one_size(seed))
        if backend.name in ("cpu", "htp"):
            graph.set_config({GraphConfig.THREADS: threads, GraphConfig.SCRATCH_LIMIT: limit})
        elif backend.name == "lpai":
            graph.set_config(GraphConfig.SCRATCH_LIMIT, limit)
            buffers = graph.context.backend.entry.io.pools(graph.driver)
            stack.callback(lambda: [buffer.close() for buffer in buffers])
            stack.callback(context.free)
        graph.finalize()
        yield graph


def difference(backend: qnn.Backend, seed: int, threads: int = 1, limit: str | None = None) -> str | None:
    """Execute the graph of a seed apart and in place, twice; return what differs, or None."""
    chance = Random(seed)
    with ready(backend, seed, threads, limit) as graph:
        inputs, outputs = graph.input_tensors, graph.output_tensors
        info, values = inputs[0], np.random.default_rng(seed)
        shared = [SharedPlace(graph.context, info) for _ in range(len(inputs) + len(outputs))]
        # Inputs may share memory; an output is in memory of its own or in that of an input, and no two share any.
        of_input = [i if chance.random() < 0.7 else chance.randrange(i + 1) for i in range(len(inputs))]
        free = list(dict.fromkeys(of_input)) + list(range(len(inputs), len(shared)))
        # The first output is always in the memory of an input.
        of_output = [free.pop(0 if number == 0 or chance.random() < 0.8 else -1) for number in range(len(outputs))]
        assert set(of_output) & set(of_input)
        ways = WAYS[backend.name]
        tensors = [
            [shared[place].tensor(each.name, chance.choice(ways)) for each, place in zip(infos, places, strict=True)]
            for infos, places in ((inputs, of_input), (outputs, of_output))
        ]
        binding = graph.bind(*tensors)
        for place in dict.fromkeys(of_input):
            noise = values.normal(0, 1, info.dims).astype(np.float32)
            stored = noise if info.dtype.numpy == np.float32 else (noise * 40).astype(np.int8)
            shared[place].bytes[...] = stored.reshape(-1).view(np.uint8)
        for turn in range(2):
            expected = apart(graph, [shared[place].bytes.copy() for place in of_input])
            before = [each.bytes.copy() for each in shared]
            binding.execute()
            for each, place, want in zip(outputs, of_output, expected, strict=True):
                before[place] = want
                if not np.array_equal(shared[place].bytes, want):
                    return f"turn {turn}: {each.name} in the memory of {of_input} {of_output}"
            if not all(np.array_equal(each.bytes, kept) for each, kept in zip(shared, before, strict=True)):
                return f"turn {turn}: an input was overwritten"
        binding.close()
        for each in shared:
            if each._handle is not None:
                graph.context.mem_deregister([each._handle])
    return None


def apart(graph: qnn.Graph, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Execute with memory for each tensor, and return the outputs."""
    # Aligned and padded, as LPAI wants it.
    given = [rpcmem.alloc(25, 1, -(-info.nbytes // 128) * 128) for info in graph.info.tensors]
    for buffer, content in zip(given, inputs, strict=False):
        buffer.array[: content.size] = content
    named = [ClientTensor(info.name, buffer) for info, buffer in zip(graph.info.tensors, given, strict=True)]
    with graph.bind(named[: len(inputs)], named[len(inputs) :]) as binding:
        binding.execute()
        results = zip(graph.output_tensors, given[len(inputs) :], strict=True)
        outputs = [buffer.array[: info.nbytes].copy() for info, buffer in results]
    for buffer in given:
        buffer.close()
    return outputs
