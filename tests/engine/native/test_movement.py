"""Data movement puts every element where numpy puts it, for every element size, and touches nothing else."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.suites import only

from engine.native.harness import ON_TARGETS, Result, check, quantized_input, static
from isthmus.graph import DataType, Quantization

pytestmark = ON_TARGETS
RNG = np.random.default_rng(1)
TYPES = [np.uint8, np.int16, np.float32, np.int64]


def numbers(*dims: int, dtype: type = np.float32) -> np.ndarray:
    return RNG.integers(0, 100, dims).astype(dtype)


@pytest.mark.parametrize("dtype", only((np.float32,), TYPES))
@pytest.mark.parametrize(
    ("dims", "perm"),
    [((3, 20, 37), (1, 2, 0)), ((20, 37, 3), (2, 0, 1)), ((2, 2, 50), (0, 2, 1)), ((2, 50, 4), (0, 2, 1)),
     ((19, 35), (1, 0)), ((2, 17, 9, 5), (0, 2, 1, 3)), ((2, 33, 18), (0, 2, 1)), ((3, 5, 7, 2, 3), (4, 2, 0, 3, 1)),
     ((4, 1, 6), (1, 0, 2)), ((64,), (0,)), ((2, 3, 2, 2, 3, 2, 2, 3), (7, 5, 3, 1, 0, 2, 4, 6))],
)  # fmt: skip
def test_transpose(dims: tuple, perm: tuple, dtype: type) -> None:
    check("Transpose", [numbers(*dims, dtype=dtype)], {"perm": perm})


def test_transposes_of_every_order_of_four_axes() -> None:
    x = numbers(3, 9, 17, 10)
    for perm in itertools.permutations(range(4)):
        check("Transpose", [x], {"perm": perm})


def test_a_transpose_in_tiles_is_right_for_any_remainder() -> None:
    for rows, columns in itertools.product((7, 8, 9, 16, 17), repeat=2):
        for dtype in (np.uint8, np.float32):
            check("Transpose", [numbers(rows, columns, dtype=dtype)], {"perm": (1, 0)})


@pytest.mark.parametrize(
    "ranges",
    [[(0, 5, 1), (0, 6, 1), (0, 7, 1)], [(1, 4, 2), (2, 6, 1), (0, 7, 3)], [(4, -1, -1), (5, 1, -2), (6, -1, -3)],
     [(0, 5, 1), (3, 4, 1), (0, 7, 1)], [(2, 2, 1), (0, 6, 1), (0, 7, 1)]],
)  # fmt: skip
@pytest.mark.parametrize("dtype", TYPES)
def test_strided_slice(ranges: list, dtype: type) -> None:
    check("StridedSlice", [numbers(5, 6, 7, dtype=dtype)], {"ranges": ranges})


def test_strided_slice_drops_shrunk_axes() -> None:
    check("StridedSlice", [numbers(5, 6, 7)], {"ranges": [(2, 3, 1), (0, 6, 1), (1, 5, 2)], "shrink_axes": 1})


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concat_and_split(axis: int) -> None:
    parts = [numbers(*(n if i == axis else 4 + i for i in range(3))) for n in (3, 1, 5)]
    check("Concat", parts, {"axis": axis})
    check("Split", [np.concatenate(parts, axis)], {"axis": axis, "split_index": [3, 4]})


def test_concat_and_slice_of_fixed_point() -> None:
    parts = [quantized_input(numbers(1, n, 40, dtype=np.int8), 0.1, 3) for n in (2, 3)]
    check("Concat", parts, {"axis": 1})
    check("StridedSlice", parts[1:], {"ranges": [(0, 1, 1), (1, 3, 1), (0, 40, 1)]})
    check("Transpose", parts[1:], {"perm": (0, 2, 1)})


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_pack_and_unpack(axis: int) -> None:
    parts = [numbers(3, 5) for _ in range(4)]
    check("Pack", parts, {"axis": axis})
    check("UnPack", [np.stack(parts, axis)], {"axis": axis})


@pytest.mark.parametrize("dtype", TYPES)
def test_tile(dtype: type) -> None:
    for multiples in [(1, 1, 1), (2, 3, 1), (1, 1, 5), (3, 1, 2)]:
        check("Tile", [numbers(2, 3, 5, dtype=dtype)], {"multiples": multiples})
    check("Tile", [numbers(1, 7, 1, dtype=dtype)], {"multiples": (4, 1, 9)})


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_reverse(axes: tuple) -> None:
    check("Reverse", [numbers(3, 4, 5)], {"axes": axes})


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_blocks_move_between_depth_space_and_batch(dtype: type) -> None:
    check("DepthToSpace", [numbers(2, 3, 5, 24, dtype=dtype)], {"block_size": (2, 3), "mode": 0})
    check("DepthToSpace", [numbers(2, 3, 5, 24, dtype=dtype)], {"block_size": (2, 3), "mode": 1})
    check("SpaceToDepth", [numbers(2, 6, 9, 5, dtype=dtype)], {"block_size": (2, 3)})
    check("SpaceToBatch", [numbers(2, 6, 9, 5, dtype=dtype)], {"block_size": (2, 3)})
    check("SpaceToBatch", [numbers(2, 5, 9, 5, dtype=dtype)], {"block_size": (3, 2), "pad_amount": [[3, 1], [0, 1]]})
    check("BatchToSpace", [numbers(12, 3, 4, 5, dtype=dtype)], {"block_size": (2, 3)})
    check("BatchToSpace", [numbers(12, 3, 4, 5, dtype=dtype)], {"block_size": (2, 3), "crops": [[1, 2], [0, 4]]})


def test_channel_shuffle() -> None:
    check("ChannelShuffle", [numbers(2, 3, 12)], {"num_groups": 3})
    check("ChannelShuffle", [numbers(2, 12, 3)], {"num_groups": 4, "axis": 1})


PADS = [
    [(0, 0), (1, 2), (2, 1), (0, 0)],
    [(1, 0), (0, 0), (0, 3), (1, 1)],
    [(0, 0)] * 4,
    [(0, 0), (0, 0), (0, 0), (0, 5)],
]


@pytest.mark.parametrize("pads", PADS)
@pytest.mark.parametrize("dtype", TYPES)
def test_pad_with_a_constant(pads: list, dtype: type) -> None:
    check("Pad", [numbers(2, 3, 4, 7, dtype=dtype)], {"scheme": 0, "pad_amount": pads, "pad_constant_value": 3})


def test_pad_of_fixed_point_stores_the_quantized_value() -> None:
    x = quantized_input(numbers(1, 3, 4, 2, dtype=np.int8), 0.5, -7)
    check("Pad", [x], {"scheme": 0, "pad_amount": PADS[0], "pad_constant_value": 0})


@pytest.mark.parametrize("scheme", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_pad_by_mirroring_or_repeating_the_edge(scheme: int, dtype: type) -> None:
    x = numbers(2, 4, 5, 6, dtype=dtype)
    for pads in ([(0, 0), (2, 3), (1, 4), (0, 0)], [(1, 1), (0, 0), (0, 0), (3, 5)], [(0, 0)] * 4):
        check("Pad", [x], {"scheme": scheme, "pad_amount": pads})


def test_constants_of_a_shape_and_the_shape_itself() -> None:
    shape = static(np.array([3, 70], np.int32))
    check("ConstantOfShape", [shape], {"value": 2.5}, [Result((3, 70), DataType.FLOAT_32)])
    check("Shape", [numbers(3, 70, 2)], {"start": 1}, [Result((2,), DataType.INT_64)])


def test_reshape_copies() -> None:
    check("Reshape", [numbers(3, 70)], results=[Result((7, 30))])
    x = quantized_input(numbers(3, 70, dtype=np.uint8), 0.5, 2)
    check("Reshape", [x], results=[Result((7, 30), quantization=Quantization.per_tensor(0.5, 2))])


@pytest.mark.parametrize("kind", [np.uint8, np.float32, np.int64])
@pytest.mark.parametrize("more", [0, 1, 2])
def test_copies_of_whole_pieces_and_a_little_more_are_whole(kind, more) -> None:
    """Pieces of 8192 bytes are dealt out to threads; what is left over is one too."""
    piece = 8192 // np.dtype(kind).itemsize
    for elements in (more or 3, piece + more, 2 * piece + more):
        x = np.arange(2 * elements).astype(kind)
        check("StridedSlice", [x], {"ranges": [[0, 2 * elements, 2]]})
