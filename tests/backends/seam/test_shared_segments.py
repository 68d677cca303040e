"""Programs of a context have equal packed weights once in this process."""

import gc
from dataclasses import replace

import numpy as np
import pytest
from support import tiny

from isthmus import qnn
from isthmus.backends.seam import native
from isthmus.backends.seam.shared_segments import SharedSegments
from isthmus.frontends import load
from isthmus.graph import DataType, TensorType
from isthmus.memory import rpcmem
from isthmus.qnn import lpai

WEIGHTS = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)


def test_equal_segments_are_one_memory_until_the_last_program_ends(tmp_path) -> None:
    plain = native.prepare(load(tiny.gate(tmp_path / "gate.onnx"))).program
    contents = np.arange(1 << 16).astype(np.uint8)
    other = contents.copy()
    # Where no sample is taken.
    other[5] ^= 1
    shared = SharedSegments()
    first = shared.share(replace(plain, segments=(contents.copy()[1:],)))
    second = shared.share(replace(plain, segments=(contents[1:], contents[:100])))
    assert second.segments[0] is first.segments[0]
    assert second.segments[0].ctypes.data % 64 == 0
    assert np.array_equal(second.segments[0], contents[1:])
    assert shared.share(replace(plain, segments=(other[1:],))).segments[0] is not first.segments[0]
    del first, second
    gc.collect()
    again = np.zeros(64 + (1 << 16), np.uint8)
    again = again[-again.ctypes.data % 64 :][: (1 << 16) - 1]
    again[:] = contents[1:]
    assert shared.share(replace(plain, segments=(again,))).segments[0] is again, "nothing keeps what nobody uses"


@pytest.mark.parametrize("backend", ["cpu", "lpai"])
def test_graphs_of_a_context_share_their_weights_in_this_process(backend) -> None:
    with qnn.Backend(backend) as made:
        context = made.create_context()
        for name in ("a", "b"):
            graph = context.create_graph(name)
            x, y = (
                graph.create_tensor(each, kind, DataType.FLOAT_32, (8, 256))
                for each, kind in (("x", TensorType.APP_WRITE), ("y", TensorType.APP_READ))
            )
            w = graph.create_tensor("w", TensorType.STATIC, DataType.FLOAT_32, WEIGHTS.shape, None, WEIGHTS)
            graph.add_node("product", "MatMul", [x, w], [y])
            if backend == "lpai":
                nbytes = graph.get_property(lpai.SCRATCH_MEM_SIZE)
                graph.set_config(lpai.SCRATCH_MEM, lpai.Mem(lpai.MemType.DDR, nbytes, rpcmem.alloc(25, 1, nbytes)))
            graph.finalize()
        [a], [b] = (graph.driver.executor().program.segments for graph in context.graphs.values())
        assert a.ctypes.data == b.ctypes.data
        assert a.nbytes >= WEIGHTS.nbytes
