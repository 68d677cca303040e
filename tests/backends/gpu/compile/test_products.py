"""Products and convolutions agree with the reference, whatever tiles they are cut into."""

from __future__ import annotations

import numpy as np
import pytest
from support.suites import long, sampled

from backends.gpu.compile.checking import check, graph_of, traits
from isthmus.backends.gpu.compile.lower import prepare
from isthmus.backends.gpu.compile.lowering.emitter import KernelLowering
from isthmus.backends.gpu.compile.lowering.hybrid import hybrid
from isthmus.backends.gpu.compile.traits import FloatStorage
from isthmus.graph import DataType, Graph, Quantization, TensorType
from isthmus.prepare.geometry.fixed_point import is_hybrid
from isthmus.prepare.schedule import Step

_generator = np.random.default_rng(7)
_ALL = ("cpu", "tiles", "thin")
_GPU_TOO = ("few channels", "more rows than a tile", "batches of both")
"""Cases that are tried with the kernels for GPUs too, which take PoCL a while to compile."""
BOTH = (FloatStorage.FP32, FloatStorage.FP16)


def _random(*dims: int) -> np.ndarray:
    return _generator.standard_normal(dims).astype(np.float32)


def _pads(*amounts: int) -> list[list[int]]:
    return [[a, a] for a in amounts]


CONVOLUTIONS = {
    "few channels": ((2, 9, 11, 3), (3, 3, 3, 24), 2, _pads(1, 1), 1, 1),
    "many channels": ((1, 9, 9, 40), (3, 3, 40, 33), 1, _pads(1, 1), 1, 1),
    "no padding": ((1, 6, 7, 36), (2, 3, 36, 5), 1, _pads(0, 0), 1, 1),
    "dilation and groups": ((2, 12, 12, 8), (3, 5, 4, 16), 1, _pads(2, 2), 2, 2),
    "uneven padding, uneven stride": ((2, 8, 9, 6), (2, 3, 2, 12), (1, 2), [[0, 1], [1, 0]], 1, 3),
    "point-wise is a plain product": ((1, 5, 5, 4), (1, 1, 4, 60), 1, _pads(0, 0), 1, 1),
    "point-wise, padding below only": ((2, 5, 5, 4), (1, 1, 4, 9), 1, [[0, 1], [0, 0]], 1, 1),
    "point-wise with stride": ((1, 6, 6, 4), (1, 1, 4, 10), 2, _pads(0, 0), 1, 1),
    "kernel as large as the input": ((2, 4, 4, 3), (4, 4, 3, 10), 1, _pads(0, 0), 1, 1),
    "windows wider than the input": ((1, 2, 2, 5), (5, 5, 5, 7), 1, _pads(2, 2), 1, 1),
    "padding wider than the kernel": ((1, 3, 3, 2), (2, 2, 2, 3), 1, _pads(3, 3), 1, 1),
    "one pixel, one channel": ((1, 1, 1, 1), (3, 3, 1, 1), 1, _pads(1, 1), 1, 1),
    "more rows than a tile": ((1, 17, 19, 8), (3, 3, 8, 80), 1, _pads(1, 1), 1, 1),
}


@pytest.mark.parametrize("case", sampled(CONVOLUTIONS, 4))
def test_a_convolution_matches_the_reference(case: str) -> None:
    dims, weights, stride, pads, dilation, groups = CONVOLUTIONS[case]
    strides = [stride, stride] if isinstance(stride, int) else list(stride)
    params = {"stride": strides, "pad_amount": pads, "dilation": [dilation, dilation], "group": groups}
    inputs = [_random(*dims), _random(*weights), _random(weights[3])]
    check("Conv2d", inputs, params, statics=(1, 2), then=("Relu6",), kinds=_ALL if case in _GPU_TOO else ("cpu",))


@pytest.mark.parametrize("dims", [(2, 9, 11, 16), (1, 7, 5, 3), long((1, 6, 6, 12))])
@pytest.mark.parametrize("multiplier", [1, long(2)])
def test_a_depth_wise_convolution_matches_the_reference(dims: tuple[int, ...], multiplier: int) -> None:
    weights = _random(3, 3, 1, dims[-1] * multiplier)
    params = {"stride": [2, 1], "pad_amount": [[0, 1], [1, 1]], "dilation": [1, 1]}
    check(
        "DepthWiseConv2d",
        [_random(*dims), weights, _random(weights.shape[-1])],
        params,
        statics=(1, 2),
        kinds=("cpu", "tiles") if multiplier == 1 else ("cpu",),
    )


ROWS = {
    "one tap": ((1, 5, 9, 8), (3, 1), [1, 1], [[1, 1], [0, 0]], 1),
    "taps apart": ((1, 4, 21, 8), (1, 3), [1, 1], [[0, 0], [2, 2]], 2),
    "a long stride": ((2, 3, 23, 16), (3, 5), [1, 3], [[1, 1], [2, 2]], 1),
    "more taps than are written down": ((1, 3, 29, 8), (1, 13), [1, 2], [[0, 0], [6, 6]], 1),
    "windows wider than the image": ((1, 3, 3, 8), (3, 7), [1, 1], [[1, 1], [3, 3]], 1),
}


@pytest.mark.parametrize("case", sampled(ROWS, 2))
def test_depth_wise_kernels_with_several_taps_a_row_match_the_reference(case: str) -> None:
    dims, kernel, stride, pads, dilation = ROWS[case]
    params = {"stride": stride, "pad_amount": pads, "dilation": [1, dilation]}
    inputs = [_random(*dims), _random(*kernel, 1, dims[-1]), _random(dims[-1])]
    check("DepthWiseConv2d", inputs, params, statics=(1, 2))


@pytest.mark.parametrize("groups", [1, 2])
def test_a_transposed_convolution_matches_the_reference(groups: int) -> None:
    params = {"stride": [2, 3], "pad_amount": [[1, 0], [0, 1]], "group": groups, "output_padding": [1, 0]}
    check("TransposeConv2d", [_random(2, 5, 4, 8), _random(3, 4, 8, 6), _random(6 * groups)], params, statics=(1, 2))


def test_volumes_are_convolved() -> None:
    params = {"stride": [1, 2, 1], "pad_amount": [[1, 1]] * 3}
    check("Conv3d", [_random(2, 4, 5, 6, 4), _random(2, 3, 3, 4, 7)], params, statics=(1,))


PRODUCTS = {
    "a row": ((1, 70), (70, 300), {}),
    "two rows": ((2, 33), (33, 5), {}),
    "a matrix": ((100, 70), (70, 90), {}),
    "batches and one matrix": ((3, 2, 10, 12), (12, 20), {}),
    "batches of both": ((3, 1, 10, 12), (2, 12, 20), {}),
}


@pytest.mark.parametrize("static", [True, long(False)])
@pytest.mark.parametrize("case", sampled(PRODUCTS, 4))
def test_a_matrix_product_matches_the_reference(case: str, static: bool) -> None:
    left, right, params = PRODUCTS[case]
    check(
        "MatMul",
        [_random(*left), _random(*right)],
        params,
        statics=(1,) if static else (),
        kinds=_ALL if case in _GPU_TOO else ("cpu",),
    )


@pytest.mark.parametrize("static", [True, long(False)])
@pytest.mark.parametrize("turned", [(True, True), long((False, True)), long((True, False))])
@pytest.mark.parametrize("batch", [(3,), long(()), long((2, 3))])
def test_matrices_may_be_transposed(batch: tuple[int, ...], turned: tuple[bool, bool], static: bool) -> None:
    left = (*batch, 12, 10) if turned[0] else (*batch, 10, 12)
    right = (*batch, 20, 12) if turned[1] else (*batch, 12, 20)
    params = {"transpose_in0": turned[0], "transpose_in1": turned[1]}
    check("MatMul", [_random(*left), _random(*right)], params, statics=(1,) if static else ())


def test_a_dense_layer_matches_the_reference_in_either_precision() -> None:
    inputs = [_random(5, 37), _random(50, 37), _random(50)]
    check("FullyConnected", inputs, statics=(1, 2), kinds=("cpu", "thin"), precisions=BOTH)


@pytest.mark.parametrize("features", [1, long(2)])
def test_a_dense_layer_may_have_very_few_features(features: int) -> None:
    check("FullyConnected", [_random(5, features), _random(3, features), _random(3)], statics=(1, 2))


@pytest.mark.parametrize("dims", [((3, 4), (4, 0)), ((0, 4), (4, 5))])
def test_a_product_without_elements_is_one_without_launches(dims: tuple[tuple[int, int], tuple[int, int]]) -> None:
    for kind in ("cpu", "tiles"):
        program = prepare(graph_of("MatMul", [_random(*each) for each in dims]), traits(kind))
        assert not program.launches


def test_a_convolution_of_fp16_is_as_near_as_fp16_is() -> None:
    params = {"stride": [1, 1], "pad_amount": _pads(1, 1)}
    inputs = [_random(1, 9, 9, 16), _random(3, 3, 16, 24), _random(24)]
    check(
        "Conv2d",
        inputs,
        params,
        statics=(1, 2),
        kinds=("cpu", "tiles"),
        precisions=(FloatStorage.FP16,),
        then=("HardSwish", "Tanh"),
    )


@pytest.mark.parametrize("op", ["Conv2d", "DepthWiseConv2d"])
def test_a_convolution_of_bytes_is_within_a_quantization_step(op: str) -> None:
    image = _generator.integers(-128, 128, (1, 9, 9, 12)).astype(np.int8)
    weights = _generator.integers(-127, 128, (3, 3, 1 if op.startswith("Depth") else 12, 12)).astype(np.int8)
    scales = _generator.uniform(0.01, 0.02, 12)
    bias = _generator.integers(-500, 500, 12).astype(np.int32)
    check(
        op, [image, weights, bias], {"stride": [1, 1], "pad_amount": _pads(1, 1)}, statics=(1, 2),
        kinds=("cpu", "thin"), steps=1,
        precisions=BOTH,
        quantizations=[
            Quantization.per_tensor(0.05, 3), Quantization.per_channel(scales, np.zeros(12), 3),
            Quantization.per_channel(0.05 * scales, np.zeros(12), 0),
        ],
        results=[Quantization.per_tensor(0.3, -5)],
    )  # fmt: skip


@pytest.mark.parametrize("stride", [1, long(2)])
def test_weights_that_are_no_bytes_once_they_are_centred_are_multiplied_as_floats(stride: int) -> None:
    image = _generator.integers(0, 256, (1, 9, 8, 6)).astype(np.uint8)
    weights = _generator.integers(-128, 128, (3, 3, 6, 5)).astype(np.int8)
    params = {"stride": [stride, stride], "pad_amount": _pads(1, 1)}
    check(
        "Conv2d", [image, weights], params, statics=(1,), kinds=("cpu", "tiles"), steps=1,
        quantizations=[Quantization.per_tensor(0.05, -120), Quantization.per_tensor(0.02, 40)],
        results=[Quantization.per_tensor(0.5, -100)],
    )  # fmt: skip


@pytest.mark.parametrize("op", ["MatMul", "FullyConnected"])
def test_a_float_bias_keeps_fractions_of_the_unit_of_integer_sums(op: str) -> None:
    left, right = (_generator.integers(-3, 4, dims).astype(np.int8) for dims in ((3, 2), (2, 5)))
    check(
        op, [left, right if op == "MatMul" else right.T.copy(), np.float32([0.2, -0.2, 0.7, 1.3, -2.6])],
        statics=(1, 2), declared=[(DataType.SFIXED_POINT_8, (3, 5))],
        quantizations=[Quantization.per_tensor(1.0, 0), Quantization.per_tensor(0.5, 0), None],
        results=[Quantization.per_tensor(0.1, 0)],
    )  # fmt: skip


def test_floats_are_rounded_by_the_range_of_their_whole_row() -> None:
    """Where only the weights are bytes, LiteRT rounds floats so too."""
    x = _generator.standard_normal((3, 37)).astype(np.float32)
    x[:, 1], x[:, 36] = -9, 7
    weights = _generator.integers(-127, 128, (5, 37)).astype(np.int8)
    check(
        "FullyConnected", [x, weights], statics=(1,), declared=[(DataType.FLOAT_32, (3, 5))],
        quantizations=[None, Quantization.per_tensor(0.5, 0)],
    )  # fmt: skip


def test_work_space_behind_rounded_rows_is_aligned() -> None:
    """Devices read vectors there."""
    graph = Graph("hybrid")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (3, 37))
    weights = graph.constant("w", np.ones((5, 37), np.int8), Quantization.per_tensor(0.5, 0))
    (y,) = graph.emit("FullyConnected", [x, weights], dtypes=[DataType.FLOAT_32])
    step = Step("FullyConnected", "product", [x, weights], [y], {})
    plain = KernelLowering(lambda step, e: None, lambda step, traits: 1000)
    assert is_hybrid(step)
    assert hybrid(plain).work(step, traits("cpu")) == 1000 + 512
