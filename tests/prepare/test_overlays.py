"""A block that holds an operand and then a result of another size takes the bytes of either while they are needed."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from isthmus.backends.seam import native
from isthmus.engine.native.executor import Executor
from isthmus.engine.native.program import Program
from isthmus.graph import DataType, Graph, Tensor, TensorType
from isthmus.memory import host
from isthmus.prepare.inplace import Overlaid, OverlaySpan, overlay_blocks, place_from_top
from isthmus.prepare.schedule import Step
from isthmus.prepare.storage import Life, Storage
from isthmus.prepare.tiling import ScratchLimit


def executed(program: Program, image: np.ndarray) -> bytes:
    """The output of a program with one input."""
    sizes = program.scratch_bytes, image.nbytes, program.outputs[0].nbytes
    scratch, given, result = (host(size, 64) for size in sizes)
    given.array[: image.nbytes] = image.view(np.uint8).reshape(-1)
    executor = Executor(program, scratch.window(), None, [given.window(), result.window()])
    executor.reset()
    executor.run()
    executor.close()
    return result.array.tobytes()


def tensor(name, elements):
    return Tensor(name, TensorType.NATIVE, DataType.UINT_8, (elements,))


def chain(*sizes, alignment=64):
    """Tensors that are each written over the one before, in two steps that have both; five steps to the next."""
    storage, tensors = Storage(), [tensor(f"t{i}", size) for i, size in enumerate(sizes)]
    steps = [Step("Relu", "idle", [], []) for _ in range(5 * len(sizes))]
    overlaid = []
    for number, (source, result) in enumerate(pairwise(tensors)):
        storage.join(source, result, -max(0, result.nbytes - source.nbytes))
        first = 5 * number + 3
        steps[first], steps[first + 1] = (Step("Relu", "over", [source], [result]) for _ in range(2))
        overlaid.append(Overlaid(source, result, first, first + 1))
    steps[0], steps[-1] = Step("Relu", "a", [], [tensors[0]]), Step("Relu", "z", [tensors[-1]], [])
    return overlay_blocks(storage, Life(steps, storage), overlaid, alignment), len(steps) - 1


def test_a_larger_result_takes_its_bytes_from_where_it_is_begun() -> None:
    (found,), end = chain(128, 320)
    assert found.layers == (OverlaySpan(0, 192, 3, end), OverlaySpan(192, 320, 0, end))


def test_a_smaller_result_frees_bytes() -> None:
    (found,), end = chain(320, 128)
    assert found.layers == (OverlaySpan(0, 128, 0, end), OverlaySpan(128, 320, 0, 4))


def test_a_result_of_the_same_size_is_a_plain_block() -> None:
    assert chain(128, 128)[0] == []


def test_results_over_results_are_one_block() -> None:
    (found,), end = chain(128, 320, 64)
    assert found.layers == (OverlaySpan(0, 64, 3, end), OverlaySpan(64, 192, 3, 9), OverlaySpan(192, 320, 0, 9))


def test_edges_are_aligned() -> None:
    (found,), _ = chain(320, 100)
    assert [(layer.low, layer.high) for layer in found.layers] == [(0, 128), (128, 320)]


def test_a_block_that_grows_downwards_hangs_from_a_ceiling_and_others_may() -> None:
    (grows,), _ = chain(128, 320)
    (shrinks,), _ = chain(320, 128)
    assert [[one.offset for one in placed] for placed in place_from_top([grows], 1024)] == [[704]]
    assert [[one.offset for one in placed] for placed in place_from_top([shrinks], 1024)] == [[704]]
    assert [[one.offset for one in placed] for placed in place_from_top([grows, shrinks], 640)] == [[320, 0]]
    assert place_from_top([grows], 320) == [], "where it stands already"


def test_blocks_hang_one_below_the_other_or_not_at_all() -> None:
    (one,), _ = chain(128, 320)
    (other,), _ = chain(128, 320)
    assert [[block.offset for block in placed] for placed in place_from_top([one, other], 704)] == [[384, 64]]
    assert place_from_top([one, other], 600) == [], "the lower one would begin below the first byte"


def test_a_block_that_grows_leaves_room_in_one_piece() -> None:
    """A block beside the operand does not fit below it, but is free when the larger result begins."""
    graph, rng = Graph("neighbours"), np.random.default_rng(0)
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 64, 16, 4))

    def product(image, filters):
        weights = graph.constant(graph.fresh("w"), rng.normal(0, 0.2, (1, 1, image.dims[3], filters)).astype("f4"))
        return graph.emit("Conv2d", [image, weights], {"stride": [1, 1], "pad_amount": np.zeros((2, 2), np.uint32)})[0]

    def scaled(image):
        (most,) = graph.emit("ReduceMax", [image], {"axes": [1, 2], "keep_dims": True})
        return graph.emit("ElementWiseMultiply", [image, most])[0]

    narrow = scaled(product(x, 18))
    first = scaled(product(narrow, 24))
    second = scaled(product(first, 32))
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 64, 16, 4))
    graph.add_node("end", "Relu", [product(second, 4)], [y])
    graph.finalize()
    limit = narrow.nbytes + first.nbytes + 2048
    plan = native.prepare(graph, limit=ScratchLimit.of(limit)).plan
    assert plan.bytes <= limit
    assert len(plan.regions) == 1, "what is as large as the limit as it is need not be split"


@pytest.mark.parametrize(("before", "after"), [(8, 32), (32, 8), (24, 32), (32, 24)])
def test_tiles_need_no_room_for_both_an_operand_and_a_result_of_another_size(before, after) -> None:
    """Two products of pixels with a sum over all pixels on either side, which no tile goes through."""
    rng = np.random.default_rng(0)
    graph = Graph("sizes")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 64, 16, 4))

    def product(image, filters):
        values = rng.normal(0, 0.2, (1, 1, image.dims[3], filters)).astype(np.float32)
        weights = graph.constant(graph.fresh("w"), values)
        return graph.emit("Conv2d", [image, weights], {"stride": [1, 1], "pad_amount": np.zeros((2, 2), np.uint32)})[0]

    def scaled(image):
        (most,) = graph.emit("ReduceMax", [image], {"axes": [1, 2], "keep_dims": True})
        return graph.emit("ElementWiseMultiply", [image, most])[0]

    first = scaled(product(x, before))
    second = scaled(product(first, after))
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 64, 16, 4))
    graph.add_node("end", "Relu", [product(second, 4)], [y])
    graph.finalize()
    larger = max(first.nbytes, second.nbytes)
    whole = native.prepare(graph)
    assert whole.plan.bytes >= first.nbytes + second.nbytes
    split = native.prepare(graph, limit=ScratchLimit.of(larger + larger // 8))
    assert larger <= split.plan.bytes <= larger + larger // 8
    image = rng.uniform(-1, 1, x.dims).astype(np.float32)
    assert executed(split.program, image) == executed(whole.program, image)
