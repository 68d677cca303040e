"""A step on the rows that its map names computes the rows of the whole: held against the numpy reference."""

from __future__ import annotations

import numpy as np
import pytest
from support import tile_networks

from isthmus.graph import DataType, Graph, Tensor, TensorType
from isthmus.graph.evaluate import evaluate
from isthmus.graph.operation import Call
from isthmus.graph.rows import mean_map, row_map
from isthmus.prepare.tiling.step_table import cut

RESIZED = frozenset(("Resize", "ResizeBilinear", "ResizeNearestNeighbor"))
"""Operations whose places in the source depend on the size of the whole: an engine takes rows of the whole's table."""


def _values(graph: Graph, seed: int) -> dict[Tensor, np.ndarray]:
    """All tensors of a graph for random inputs, by the reference."""
    rng = np.random.default_rng(seed)
    values: dict[Tensor, np.ndarray] = {t: t.data for t in graph.tensors.values() if t.is_static}
    for tensor in graph.inputs:
        values[tensor] = rng.integers(-100, 100, tensor.dims).astype(tensor.dtype.numpy)
    for node in graph.nodes:
        arrays = [None if t is None else values[t] for t in node.inputs]
        made = evaluate(node.op, node.inputs, arrays, node.params, node.outputs)
        values.update(zip(node.outputs, made, strict=True))
    return values


def _rows(array: np.ndarray, axis: int, first: int, last: int) -> np.ndarray:
    return np.take(array, np.arange(first, last), axis)


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("seed", range(1, 60, 2))
def test_rows_of_a_result_come_from_the_rows_that_the_map_names(seed, axis) -> None:
    graph = tile_networks.network(seed)
    if graph is None:
        return
    _check(graph, seed, axis)


def _check(graph: Graph, seed: int, axis: int) -> int:
    """Hold every node that has a map against the reference; how many."""
    values, checked = _values(graph, seed), 0
    for node in graph.nodes:
        result = node.outputs[0]
        found = row_map(Call(node.name, node.op, node.inputs, node.params, node.outputs), axis)
        if found is None or result.dims[axis] < 3 or node.op in RESIZED:
            continue
        height = result.dims[axis]
        first, last = (n // found.grain * found.grain for n in (height // 3, height - 1))
        low, high = found.need(first, last)
        if low >= high or first >= last:
            continue
        inputs, arrays = list(node.inputs), [None if t is None else values[t] for t in node.inputs]
        for position, own in found.sliced:
            inputs[position] = cut(node.inputs[position], own, high - low)
            arrays[position] = _rows(arrays[position], own, low, high)
        params = found.params((first, last), (low, high))
        (tile,) = evaluate(node.op, inputs, arrays, params, [cut(result, axis, last - first)])
        np.testing.assert_array_equal(tile, _rows(values[result], axis, first, last), node.op)
        checked += 1
    return checked


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("op", ["SpaceToDepth", "DepthToSpace"])
def test_blocks_may_be_of_other_heights_than_widths(op, axis) -> None:
    graph = Graph("blocks")
    wide, deep = (1, 12, 15, 1), (1, 6, 5, 6)
    dims = (wide, deep) if op == "SpaceToDepth" else (deep, wide)
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, dims[0])
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, dims[1])
    graph.add_node("blocks", op, [x], [y], {"block_size": [2, 3]})
    graph.finalize()
    assert _check(graph, 1, axis) == 1
    [node] = graph.nodes
    assert row_map(Call(node.name, node.op, node.inputs, node.params, node.outputs), 3) is None, "channels are mixed"


def test_no_row_is_needed_beyond_what_the_rate_says() -> None:
    for seed in range(40):
        graph = tile_networks.network(seed)
        for node in () if graph is None else graph.nodes:
            found = row_map(Call(node.name, node.op, node.inputs, node.params, node.outputs), 1)
            if found is None:
                continue
            for first in range(0, node.outputs[0].dims[1] - 1, found.grain):
                low, high = found.need(first, first + found.grain)
                assert low >= first * found.rate - found.before or low == 0
                assert high <= (first + found.grain) * found.rate + found.after or high == found.height


def test_a_mean_over_some_pixels_only_has_no_rows() -> None:
    graph = tile_networks.squeezed(False)
    node = next(node for node in graph.nodes if node.op == "ReduceMean")
    call = Call(node.name, node.op, node.inputs, node.params, node.outputs)
    assert mean_map(call, 1).reduces
    assert mean_map(Call(node.name, node.op, node.inputs, node.params | {"axes": [1]}, node.outputs), 1) is None
    assert row_map(call, 1) is None or row_map(call, 1).height == 1
