"""Gradients are what small changes of an operand show."""

from __future__ import annotations

import numpy as np
import pytest

from isthmus.backends.gpu.mixed_precision.backward import Computed, backward
from isthmus.graph import DataType, Tensor, TensorType
from isthmus.graph.evaluate import evaluate
from isthmus.graph.ops import OPERATIONS

_generator = np.random.default_rng(4)
PADS = {"pad_amount": [[1, 0], [2, 1]]}
HALF_PIXELS = {"half_pixel_centers": True}


def floats(*dims: int) -> np.ndarray:
    return _generator.standard_normal(dims).astype(np.float32)


def computed(op: str, arrays: list, params: dict, *results: tuple[int, ...]) -> Computed:
    inputs = [Tensor(f"i{n}", TensorType.NATIVE, DataType.FLOAT_32, a.shape) for n, a in enumerate(arrays)]
    outputs = [Tensor(f"o{n}", TensorType.NATIVE, DataType.FLOAT_32, dims) for n, dims in enumerate(results)]
    complete = OPERATIONS[op].complete(op, params)
    found = evaluate(op, inputs, arrays, dict(complete), outputs)
    return Computed(op, inputs, arrays, complete, outputs, found)


CASES = {
    "a convolution": ("Conv2d", [floats(2, 7, 6, 3), floats(3, 2, 3, 4)], {"stride": [2, 1], **PADS}, 0, (2, 3, 8, 4)),
    "one in groups": (
        "Conv2d", [floats(1, 6, 6, 4), floats(3, 3, 2, 6)], {"stride": [1, 1], "group": 2, "dilation": [1, 2], **PADS},
        0, (1, 5, 5, 6),
    ),
    "a depth-wise one": (
        "DepthWiseConv2d", [floats(1, 6, 5, 3), floats(3, 3, 1, 3)], {"stride": [1, 2], **PADS}, 0, (1, 5, 3, 3)
    ),
    "a transposed one": (
        "TransposeConv2d", [floats(1, 4, 3, 3), floats(3, 2, 3, 2)], {"stride": [2, 2], **PADS}, 0, (1, 8, 3, 2)
    ),
    "a dense layer": ("FullyConnected", [floats(3, 5), floats(4, 5)], {}, 0, (3, 4)),
    "a left matrix": ("MatMul", [floats(2, 3, 5), floats(5, 4)], {}, 0, (2, 3, 4)),
    "a right matrix that is repeated": (
        "MatMul", [floats(2, 3, 5), floats(4, 5)], {"transpose_in1": True}, 1, (2, 3, 4)
    ),
    "a mean": ("ReduceMean", [floats(2, 3, 4)], {"axes": [1], "keep_dims": False}, 0, (2, 4)),
    "a pool": (
        "PoolAvg2d", [floats(1, 6, 6, 2)], {"filter_size": [2, 3], "stride": [2, 3], "pad_amount": [[0, 0], [0, 0]]}, 0,
        (1, 3, 2, 2),
    ),
    "a larger image": ("ResizeBilinear", [floats(1, 3, 4, 2)], HALF_PIXELS, 0, (1, 6, 8, 2)),
    "a part of a join": ("Concat", [floats(2, 3), floats(2, 4)], {"axis": 1}, 1, (2, 7)),
    "a slice": ("StridedSlice", [floats(5, 4)], {"ranges": [[0, 5, 2], [1, 4, 1]]}, 0, (3, 3)),
    "an edge": (
        "Pad", [floats(2, 3)], {"scheme": 0, "pad_amount": [[1, 0], [0, 2]], "pad_constant_value": 3.0}, 0, (3, 5)
    ),
    "an addend that is repeated": ("ElementWiseAdd", [floats(3, 4), floats(1, 4)], {}, 1, (3, 4)),
    "a factor": ("ElementWiseMultiply", [floats(3, 4), floats(3, 4)], {}, 0, (3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_gradient_is_the_effect_of_a_small_change(case) -> None:
    op, arrays, params, index, result = CASES[case]
    done = computed(op, arrays, params, result)
    weights = floats(*result)
    found = backward(done, index, [weights], np.random.default_rng(0))
    change = floats(*arrays[index].shape) / 64
    there, back = (done.again(index, arrays[index] + sign * change)[0].astype(np.float64) for sign in (1, -1))
    assert found.shape == arrays[index].shape
    assert np.vdot(found, change) == pytest.approx(np.vdot(weights, there - back) / 2, rel=1e-3, abs=1e-3)


def test_the_slope_of_a_function_is_that_at_each_element() -> None:
    x = np.float32([[-30, -1, 0, 2, 30]])
    done = computed("Sigmoid", [x], {}, x.shape)
    found = backward(done, 0, [np.ones(x.shape, np.float32)], np.random.default_rng(0))
    assert np.allclose(found, np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))) ** 2, atol=4e-3)


def test_the_gradient_of_an_operation_without_a_formula_is_measured() -> None:
    x = floats(40, 12)
    done = computed("Softmax", [x], {}, x.shape)
    weights = floats(*x.shape)
    y = done.results[0]
    true = y * (weights - (weights * y).sum(-1, keepdims=True))
    sizes = [np.linalg.norm(backward(done, 0, [weights], np.random.default_rng(seed))) for seed in range(40)]
    assert np.sqrt(np.mean(np.square(sizes))) == pytest.approx(np.linalg.norm(true), rel=0.4)


def test_what_no_result_depends_on_has_no_gradient() -> None:
    done = computed("Split", [floats(4, 2)], {"axis": 0, "split_index": [1]}, (1, 2), (3, 2))
    assert not backward(done, 0, [None, None], np.random.default_rng(0)).any()
    only = backward(done, 0, [None, np.ones((3, 2), np.float32)], np.random.default_rng(0))
    assert only.tolist() == [[0, 0], [1, 1], [1, 1], [1, 1]]
