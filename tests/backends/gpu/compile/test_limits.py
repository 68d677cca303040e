"""A graph that needs more memory at a time than a device allocates is refused when it is prepared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from backends.gpu.compile.checking import graph_of, traits
from isthmus.backends.gpu.compile.lower import prepare
from isthmus.backends.gpu.compile.program import KernelProgram
from isthmus.backends.gpu.compile.traits import FloatStorage
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, Graph, TensorType

N = 4096


def heavy() -> Graph:
    """A graph whose constants are its largest tensors."""
    x, weights = np.ones((2, 64), np.float32), np.random.default_rng(0).random((64, 128), np.float32)
    return graph_of("MatMul", [x, weights], statics=(1,), then=("Softmax",))


def wide(whole_numbers: bool) -> Graph:
    """A graph whose intermediates are its largest tensors: floats, and integers too if asked for."""
    graph = Graph("wide")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (N,))
    many = graph.emit("Tile", [x], {"multiples": [8]})[0]
    if whole_numbers:
        many = graph.emit("Cast", [many], dtypes=[DataType.INT_32])[0]
        many = graph.emit("ElementWiseAbs", [graph.emit("ElementWiseNeg", [many])[0]])[0]
        many = graph.emit("Cast", [many], dtypes=[DataType.FLOAT_32])[0]
    total = graph.emit("ReduceSum", [graph.emit("Softmax", [many])[0]], {"axes": [0], "keep_dims": True})[0]
    total.type = TensorType.APP_READ
    graph.finalize()
    return graph


def remembering() -> Graph:
    """A graph whose state is its largest tensor."""
    graph = Graph("remembering")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (4,))
    start = np.ones(N, np.float32)
    state = graph.create_tensor("state", TensorType.APP_READWRITE, DataType.FLOAT_32, (N,), None, start)
    first = graph.emit("StridedSlice", [state], {"ranges": np.int32([[0, 4, 1]])})[0]
    y = graph.emit("ElementWiseAdd", [x, first])[0]
    y.type = TensorType.APP_READ
    graph.update_state(state, graph.emit("ElementWiseNeg", [state])[0])
    graph.finalize()
    return graph


def prepared(graph: Graph, most: int, precision: FloatStorage) -> KernelProgram:
    return prepare(graph, replace(traits("cpu"), largest_allocation=most), precision, fuse=False)


@pytest.mark.parametrize("precision", FloatStorage)
@pytest.mark.parametrize("which", ["constants", "scratch", "scratch with integers"])
def test_the_largest_pool_must_be_one_that_the_device_allocates(which: str, precision: FloatStorage) -> None:
    graph = heavy() if which == "constants" else wide(which.endswith("integers"))
    free = prepared(graph, 1 << 40, precision)
    needed = free.constant_bytes if which == "constants" else free.scratch_bytes
    assert needed == max(free.constant_bytes, free.scratch_bytes, *(info.nbytes for info in free.info.tensors))
    assert prepared(graph, needed, precision).launches == free.launches
    what = "its buffer of constants" if which == "constants" else "its scratch"
    rule = f"{what} needs {needed:,} bytes, the device allocates at most {needed - 1:,} at a time"
    with pytest.raises(QnnError) as refused:
        prepared(graph, needed - 1, precision)
    assert (refused.value.code, refused.value.rule) == (Code.COMMON_MEM_ALLOC, rule)


@pytest.mark.parametrize("precision", FloatStorage)
def test_states_must_be_ones_that_the_device_allocates(precision: FloatStorage) -> None:
    graph = remembering()
    needed = prepared(graph, 1 << 40, precision).state_bytes
    assert needed >= N * (4 if precision is FloatStorage.FP32 else 2)
    prepared(graph, needed, precision)
    with pytest.raises(QnnError, match=f"state needs {needed:,} bytes, the device allocates at most") as refused:
        prepared(graph, needed - 1, precision)
    assert refused.value.code is Code.COMMON_MEM_ALLOC


@pytest.mark.parametrize("kind", ["APP_WRITE", "APP_READ"])
def test_a_tensor_of_the_clients_must_be_one_that_the_device_allocates(kind: str) -> None:
    graph = Graph("tensors")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (N if kind == "APP_WRITE" else 4,))
    params = {"axes": [0], "keep_dims": True} if kind == "APP_WRITE" else {"multiples": [N // 4]}
    y = graph.emit("ReduceSum" if kind == "APP_WRITE" else "Tile", [x], params)[0]
    y.type = TensorType.APP_READ
    graph.finalize()
    large = x if kind == "APP_WRITE" else y
    prepared(graph, 4 * N, FloatStorage.FP32)
    with pytest.raises(QnnError, match=f"tensor '{large.name}' needs 16,384 bytes") as refused:
        prepared(graph, 4 * N - 1, FloatStorage.FP32)
    assert refused.value.code is Code.COMMON_MEM_ALLOC
