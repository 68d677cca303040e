"""On a processor small launches in a row are one, which does what they did."""

from __future__ import annotations

import numpy as np
from checking import assert_close, expected, run, traits

from isthmus.backends.gpu.compile.lower import prepare
from isthmus.graph import DataType, Graph, TensorType

F32 = DataType.FLOAT_32
_generator = np.random.default_rng(9)


def steps_in_a_row(size: int) -> tuple[Graph, list[np.ndarray]]:
    """Operations that cannot be one kernel, one after the other."""
    graph = Graph("row")
    x = graph.create_tensor("in0", TensorType.APP_WRITE, F32, (size, size))
    value = graph.emit("Softmax", [x], {"axis": 1})[0]
    value = graph.emit("Transpose", [value], {"perm": [1, 0]})[0]
    value = graph.emit("MatMul", [value, x])[0]
    value = graph.emit("ReduceSum", [value], {"axes": [0], "keep_dims": False})[0]
    value.type = TensorType.APP_READ
    graph.finalize()
    return graph, [_generator.standard_normal((size, size)).astype(np.float32)]


def test_small_steps_are_one_launch_with_the_same_result() -> None:
    graph, inputs = steps_in_a_row(12)
    program = prepare(graph, traits("cpu"))
    apart = prepare(graph, traits("cpu"), fuse=False)
    assert [launch.kernel for launch in program.launches] == ["isthmus_sequence"]
    assert len(apart.launches) > 3
    assert_close(run(program, inputs), expected(graph, inputs), 1e-5, "at once")
    # A compiler may join products and sums in one of them that it keeps apart in the other.
    assert_close(run(program, inputs), run(apart, inputs), 1e-6, "beside steps apart")


def test_what_is_worth_a_launch_keeps_its_own() -> None:
    graph, inputs = steps_in_a_row(120)
    program = prepare(graph, traits("cpu"))
    kernels = [launch.kernel for launch in program.launches]
    assert "isthmus_product" in kernels
    assert_close(run(program, inputs), expected(graph, inputs), 1e-5, "partly at once")


def test_a_gpu_has_a_launch_for_every_step() -> None:
    graph, _ = steps_in_a_row(12)
    assert "isthmus_sequence" not in [launch.kernel for launch in prepare(graph, traits("thin")).launches]
