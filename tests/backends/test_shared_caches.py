"""A cache in a piece of one registered buffer is updated where it is, by every graph that has it.

Graphs for prompts and for tokens and for two context lengths have one cache in the same place, and weights in common.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from isthmus import Code, QnnError, memory, qnn
from isthmus.graph import DataType, TensorType
from isthmus.memory import rpcmem
from isthmus.qnn import ClientTensor, DescriptorType, MemDescriptor, htp

WIDTH = 32
LENGTHS, COUNTS = (8, 16), (3, 1)
F32, I32 = DataType.FLOAT_32, DataType.INT_32
CACHE, SUM, X, ROWS = 4096 + 128, 2048, {3: 256, 1: 768}, {3: 1024, 1: 1536}
"""Where the tensors are in the buffer; the cache begins in the middle of a page."""
BYTES = 16384
ARM = {"lpai_backend": {"target_env": "arm"}}
NAMES = ("cpu", "htp", "lpai", "arm")


def weights() -> np.ndarray:
    """Whole numbers, so that no sum is rounded."""
    return np.random.default_rng(3).integers(-3, 4, (WIDTH, WIDTH)).astype(np.float32)


def compose(context: qnn.Context, length: int, count: int) -> qnn.Graph:
    """A graph that puts rows of products into a cache of some length, and sums the cache up."""
    graph = context.create_graph(f"ar{count}_cl{length}")
    cache = graph.create_tensor("cache", TensorType.APP_WRITE, F32, (length, WIDTH))
    x = graph.create_tensor("x", TensorType.APP_WRITE, F32, (count, WIDTH))
    rows = graph.create_tensor("rows", TensorType.APP_WRITE, I32, (count, 1))
    weight = graph.create_tensor("w", TensorType.STATIC, F32, (WIDTH, WIDTH), data=weights())
    new = graph.create_tensor("new", TensorType.NATIVE, F32, (count, WIDTH))
    updated = graph.create_tensor("updated", TensorType.APP_READ, F32, (length, WIDTH))
    total = graph.create_tensor("sum", TensorType.APP_READ, F32, (1, WIDTH))
    graph.add_node("project", "MatMul", [x, weight], [new])
    graph.add_node("update", "ScatterNd", [cache, rows, new], [updated])
    graph.add_node("total", "ReduceSum", [updated], [total], {"axes": [0], "keep_dims": True})
    graph.pools = context.backend.entry.io.pools(graph.driver)
    graph.finalize()
    return graph


def described(
    context: qnn.Context, buffer: memory.RpcBuffer, dims: Sequence[int], dtype: DataType, offset: int
) -> MemDescriptor:
    """Return what registers a piece of a buffer for a tensor, on each backend that registers memory."""
    place = qnn.lpai.MemInfo(buffer.fd, offset)
    if context.backend.name == "htp":
        place = htp.Descriptor(buffer.nbytes, buffer.fd, offset)
    return MemDescriptor(tuple(dims), dtype, DescriptorType.CUSTOM, custom=place)


class Pieces:
    """The pieces of a buffer, each registered once for a shape."""

    def __init__(self, context: qnn.Context, buffer: memory.RpcBuffer) -> None:
        self.context, self.buffer = context, buffer
        self.handles: dict[tuple, qnn.MemHandle] = {}

    def tensor(self, info) -> ClientTensor:
        """A tensor in its piece; the cache that is read is the one that is written."""
        offsets = {
            "cache": CACHE,
            "updated": CACHE,
            "sum": SUM,
            "x": X.get(info.dims[0]),
            "rows": ROWS.get(info.dims[0]),
        }
        offset = offsets[info.name]
        if self.context.backend.name == "cpu":
            return ClientTensor(info.name, self.buffer.window(offset, info.nbytes))
        key = (offset, info.dims)
        if key not in self.handles:
            descriptor = described(self.context, self.buffer, info.dims, info.dtype, offset)
            [self.handles[key]] = self.context.mem_register([descriptor])
        return ClientTensor(info.name, mem_handle=self.handles[key])

    def bind(self, graph: qnn.Graph) -> qnn.Binding:
        """A graph in these pieces."""
        return graph.bind(*(map(self.tensor, infos) for infos in (graph.input_tensors, graph.output_tensors)))


@pytest.fixture(params=NAMES)
def context(request: pytest.FixtureRequest):
    """A context; on HTP its graphs share their weights, and a place may be registered for several shapes."""
    name = request.param
    with qnn.Backend("lpai", ARM) if name == "arm" else qnn.Backend(name) as backend:
        shared = {htp.WEIGHT_SHARING_ENABLED: True, htp.REREGISTRATION: htp.Reregistration.OTHER_SHAPE}
        made = backend.create_context(shared if name == "htp" else None)
        yield made
        made.free()


def test_graphs_of_several_lengths_update_one_cache_where_it_is(context: qnn.Context) -> None:
    buffer = rpcmem.alloc(rpcmem.HEAP_ID_SYSTEM, rpcmem.DEFAULT_FLAGS, BYTES)
    # On LPAI a place is registered for one shape.
    lengths = LENGTHS[1:] if context.backend.name == "lpai" else LENGTHS
    pieces = Pieces(context, buffer)
    bindings = {(length, count): pieces.bind(compose(context, length, count)) for length in lengths for count in COUNTS}
    buffer.view(np.uint8, (BYTES,))[...] = 77
    longest = buffer.window(CACHE, 4 * WIDTH * max(LENGTHS)).view(np.float32, (max(LENGTHS), WIDTH))
    longest[...] = 0
    expected = longest.copy()
    random = np.random.default_rng(5)
    position = 0
    with memory.statistics() as seen:
        # A prompt of three, then tokens; where the short cache is full, the long one goes on, and so does a prompt.
        for length, count in ((8, 3), (8, 1), (8, 1), (8, 3), (16, 1), (16, 3), (16, 1), (16, 1)):
            x = random.integers(-3, 4, (count, WIDTH)).astype(np.float32)
            buffer.window(X[count], x.nbytes).view(np.float32, x.shape)[...] = x
            rows = np.arange(position, position + count, dtype=np.int32)[:, None]
            buffer.window(ROWS[count], rows.nbytes).view(np.int32, rows.shape)[...] = rows
            length = max(length, lengths[0])
            bindings[length, count].execute()
            expected[position : position + count] = x @ weights()
            position += count
            assert np.array_equal(longest, expected)
            total = buffer.window(SUM, 4 * WIDTH).view(np.float32, (WIDTH,))
            assert np.array_equal(total, expected[:length].sum(axis=0))
    assert seen.allocations == 0, "executions allocate nothing"
    assert [binding.stats.copied_bytes for binding in bindings.values()] == [0] * len(bindings)
    # What is before and behind the cache is as it was.
    whole = buffer.view(np.uint8, (BYTES,))
    assert np.all(whole[CACHE - 128 : CACHE] == 77)
    assert np.all(whole[CACHE + longest.nbytes :] == 77)


def test_without_leave_a_place_is_registered_for_one_shape() -> None:
    with qnn.Backend("htp") as backend:
        context = backend.create_context()
        buffer = rpcmem.alloc(rpcmem.HEAP_ID_SYSTEM, rpcmem.DEFAULT_FLAGS, BYTES)
        short, long = (described(context, buffer, (length, WIDTH), F32, CACHE) for length in LENGTHS)
        [handle] = context.mem_register([short])
        with pytest.raises(QnnError, match="is registered as CUSTOM") as refused:
            context.mem_register([long])
        assert refused.value.code is Code.MEM_ALREADY_REGISTERED
        context.mem_deregister([handle])
        context.mem_register([long])
        context.free()
        buffer.close()
