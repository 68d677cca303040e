"""Small programs, at least one for each declared kernel: honest ones, to be forged and to hold declarations against."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
from support import tile_networks
from support.graph_cases import DETECTIONS

from engine.native import harness
from engine.native.harness import Operand, Result, make_step, quantized_input, static
from isthmus.backends.seam import native
from isthmus.engine.native.lower import lowering_of
from isthmus.engine.native.lowering import convolution, quantized_convolution
from isthmus.engine.native.lowering.emitter import Emitter
from isthmus.engine.native.program import Program
from isthmus.engine.native.target import Target, host
from isthmus.graph import DataType, Quantization, Tensor
from isthmus.prepare.schedule import Place, Pool, Step
from isthmus.prepare.tiling import ScratchLimit

_rng = np.random.default_rng(17)
_HALF = Quantization.per_tensor(0.05, 3)


def _floats(*dims: int) -> np.ndarray:
    return _rng.standard_normal(dims).astype(np.float32)


def _fp16(*dims: int) -> np.ndarray:
    return _floats(*dims).astype(np.float16)


def _weights(*dims: int) -> Operand:
    return static(_floats(*dims))


def _indices(size: int, *dims: int, kind: type = np.int32) -> np.ndarray:
    return _rng.integers(-size, size, dims).astype(kind)


def _bytes(*dims: int, kind: type = np.int8) -> Operand:
    info = np.iinfo(kind)
    return quantized_input(_rng.integers(info.min, info.max + 1, dims).astype(kind), 0.05, 3)


def _byte_weights(*dims: int) -> Operand:
    return quantized_input(_rng.integers(-127, 128, dims).astype(np.int8), 0.01, 0, static=True)


def _sixteen_bits(*dims: int) -> Operand:
    return _bytes(*dims, kind=np.uint16)


def _sixteen_bit_weights(*dims: int) -> Operand:
    return quantized_input(_rng.integers(-32767, 32768, dims).astype(np.int16), 1e-4, 0, static=True)


def _nibbles(*dims: int) -> Operand:
    quantization = Quantization((0.01,), (0,), bits=4)
    return Operand(_rng.integers(-8, 8, dims).astype(np.int8), True, quantization)


def _float_nibbles(*dims: int) -> Operand:
    return harness.dequantized_constant(_rng.integers(-8, 8, dims).astype(np.int8), Quantization((0.01,), (1,), bits=4))


def _stored(*dims: int, kind: DataType = DataType.SFIXED_POINT_8) -> list[Result]:
    return [Result(dims, kind, _HALF)]


def _lstm(projected: int) -> list[Any]:
    units, hidden = 20, projected or 20
    inputs: list[Any] = [_floats(3, 2, 5), *(_weights(units, 5) for _ in range(3))]
    inputs += [_weights(units, hidden) for _ in range(3)]
    inputs += [_weights(units) for _ in range(3)]
    inputs += [_floats(2, hidden), _floats(2, units), None, None, None, None]
    inputs += [_weights(units, 5), _weights(units, hidden), *(_weights(units) for _ in range(3)), _weights(units)]
    return inputs + ([_weights(hidden, units), _weights(hidden)] if projected else [None, None])


def _gru() -> list[Any]:
    inputs: list[Any] = [_floats(3, 2, 5), *(_weights(12, 5) for _ in range(3))]
    return inputs + [_weights(12, 12) for _ in range(3)] + [_weights(12) for _ in range(6)] + [_floats(1, 2, 12)]


_CONVOLUTION = {"stride": (1, 1), "pad_amount": ((1, 1), (1, 1)), "dilation": (1, 1), "group": 1}
_DEPTHWISE = {"stride": (1, 1), "pad_amount": ((1, 1), (1, 1)), "dilation": (1, 1)}
_POOL = {"filter_size": (3, 3), "stride": (2, 2), "pad_amount": ((1, 1), (1, 1))}

_CASES: dict[str, tuple[Any, ...]] = {
    "conv": ("Conv2d", [_floats(2, 6, 7, 5), _weights(3, 3, 5, 19), _weights(19)], _CONVOLUTION),
    "conv of few channels": ("Conv2d", [_floats(1, 9, 9, 3), _weights(3, 3, 3, 8)], _CONVOLUTION),
    "conv in groups": ("Conv2d", [_floats(1, 5, 5, 6), _weights(3, 3, 3, 8)], _CONVOLUTION | {"group": 2}),
    "conv of points": ("Conv2d", [_floats(1, 5, 5, 6), _weights(1, 1, 6, 9)],
                       _CONVOLUTION | {"pad_amount": ((0, 0), (0, 0))}),
    "transposed": ("TransposeConv2d", [_floats(1, 4, 4, 3), _weights(3, 3, 3, 5)],
                   {"stride": (2, 2), "pad_amount": ((1, 1), (1, 1)), "group": 1}),
    "depthwise": ("DepthWiseConv2d", [_floats(1, 6, 9, 20), _weights(3, 3, 1, 20), _weights(20)], _DEPTHWISE),
    "conv of 16 bits": ("Conv2d", [_sixteen_bits(2, 6, 7, 5), _byte_weights(3, 3, 5, 19)], _CONVOLUTION,
                        _stored(2, 6, 7, 19, kind=DataType.UFIXED_POINT_16)),
    "product of 16 bits with weights of 16 bits": (
        "FullyConnected", [_sixteen_bits(3, 300), _sixteen_bit_weights(20, 300)], {},
        _stored(3, 20, kind=DataType.UFIXED_POINT_16)),
    "depthwise of 16 bits": ("DepthWiseConv2d", [_sixteen_bits(1, 6, 9, 20), _byte_weights(3, 3, 1, 20)], _DEPTHWISE,
                             _stored(1, 6, 9, 20, kind=DataType.UFIXED_POINT_16)),
    "sum of 16 bits": ("ElementWiseAdd", [_sixteen_bits(3, 1, 20), _sixteen_bits(4, 20)], {},
                       _stored(3, 4, 20, kind=DataType.UFIXED_POINT_16)),
    "comparison of 16 bits": ("ElementWiseLess", [_sixteen_bits(3, 40), _sixteen_bits(3, 1)], {},
                              [Result((3, 40), DataType.BOOL_8)]),
    "function of 16 bits": ("Sigmoid", [_sixteen_bits(3, 40)], {}, _stored(3, 40, kind=DataType.UFIXED_POINT_16)),
    "conversion to 16 bits": ("Convert", [_bytes(3, 40)], {}, _stored(3, 40, kind=DataType.UFIXED_POINT_16)),
    "transposed of 16 bits": ("TransposeConv2d", [_sixteen_bits(1, 4, 4, 3), _byte_weights(3, 3, 3, 5)],
                              {"stride": (2, 2), "pad_amount": ((1, 1), (1, 1)), "group": 1},
                              _stored(1, 7, 7, 5, kind=DataType.UFIXED_POINT_16)),
    "product of matrices of 16 bits": ("MatMul", [_sixteen_bits(2, 9, 20), _sixteen_bits(2, 20, 19)], {},
                                       _stored(2, 9, 19, kind=DataType.UFIXED_POINT_16)),
    "mean of 16 bits": ("ReduceMean", [_sixteen_bits(2, 9, 20)], {"axes": np.array([1])},
                        _stored(2, 20, kind=DataType.UFIXED_POINT_16)),
    "average of 16 bits": ("PoolAvg2d", [_sixteen_bits(1, 7, 9, 20)], _POOL,
                           _stored(1, 4, 5, 20, kind=DataType.UFIXED_POINT_16)),
    "softmax of 16 bits": ("Softmax", [_sixteen_bits(3, 40)], {}, _stored(3, 40, kind=DataType.UFIXED_POINT_16)),
    "largest of 16 bits": ("PoolMax2d", [_sixteen_bits(1, 7, 9, 20)], _POOL,
                           [Result((1, 4, 5, 20), DataType.UFIXED_POINT_16, _HALF)]),
    "depthwise of any kernel": ("DepthWiseConv2d", [_floats(1, 6, 9, 20), _weights(2, 4, 1, 20)], _DEPTHWISE),
    "depthwise of few": ("DepthWiseConv2d", [_floats(1, 2, 2, 9), _weights(3, 3, 1, 9)], _DEPTHWISE),
    "unary": ("Gelu", [_floats(700)], {}),
    "sine": ("ElementWiseSin", [_floats(700)], {}),
    "binary": ("ElementWiseAdd", [_floats(3, 40, 70), _floats(40, 1)], {}),
    "binary of a short row": ("ElementWiseMultiply", [_floats(37, 6), static(_floats(6))], {}),
    "comparison": ("ElementWiseLess", [_floats(5, 60), _floats(5, 60)], {}),
    "choice": ("ElementWiseSelect", [_floats(4, 9) > 0, _floats(4, 9), _floats(1, 9)], {}),
    "cast": ("Cast", [_floats(50)], {}, [Result((50,), DataType.INT_8)]),
    "integer product": ("MatMulInteger", [_indices(100, 2, 5, 7, kind=np.int8), _indices(100, 7, 9, kind=np.int8)], {}),
    "product": ("MatMul", [_floats(3, 17, 8), _floats(3, 8, 21)], {}),
    "product of fp16": ("MatMul", [_fp16(3, 17, 8), _fp16(3, 8, 21)], {}),
    "row of fp16": ("MatMul", [_fp16(1, 8), _fp16(8, 21)], {}),
    "convolution of fp16": (
        "Conv2d", [_fp16(1, 7, 9, 5), static(_fp16(3, 3, 5, 21)), static(_fp16(21))],
        {"stride": [1, 2], "pad_amount": [[1, 1], [1, 0]]},
    ),
    "depth-wise of fp16": (
        "DepthWiseConv2d", [_fp16(1, 7, 9, 21), static(_fp16(3, 3, 1, 21))],
        {"stride": [1, 1], "pad_amount": [[1, 1], [1, 0]]},
    ),
    "mean of fp16": ("ReduceMean", [_fp16(3, 9, 21)], {"axes": [1]}),
    "product with weights": ("FullyConnected", [_floats(12, 30), _weights(40, 30), _weights(40)], {}),
    "product of one row": ("FullyConnected", [_floats(1, 30), _weights(40, 30)], {}),
    "slice": ("StridedSlice", [_floats(6, 8, 5)], {"ranges": ((0, 6, 2), (7, 0, -1), (1, 4, 1))}),
    "transpose": ("Transpose", [_floats(3, 20, 37)], {"perm": (0, 2, 1)}),
    "joined": ("Transpose", [_floats(3, 50)], {"perm": (1, 0)}),
    "parted": ("Transpose", [_floats(50, 3)], {"perm": (1, 0)}),
    "filled": ("ConstantOfShape", [static(np.array([4, 5], np.int32))], {"value": 1.0},
               [Result((4, 5), DataType.FLOAT_32)]),
    "padded": ("Pad", [_floats(3, 4, 5)], {"scheme": 0, "pad_amount": ((1, 0), (0, 2), (1, 1))}),
    "mirrored": ("Pad", [_floats(3, 4, 5)], {"scheme": 1, "pad_amount": ((1, 0), (0, 2), (1, 1))}),
    "softmax": ("Softmax", [_floats(4, 33)], {}),
    "softmax of columns": ("Softmax", [_floats(4, 33, 5)], {"axis": 1}),
    "layer norm": ("LayerNorm", [_floats(4, 33), _weights(33), _weights(33)], {"axes": (1,)}),
    "instance norm": ("InstanceNorm", [_floats(2, 5, 5, 9), _weights(9), _weights(9)], {}),
    "batch norm": ("Batchnorm", [_floats(2, 5, 9), _weights(9), _weights(9)], {}),
    "response": ("Lrn", [_floats(2, 3, 3, 9)], {"radius": 2, "alpha": 0.1, "beta": 0.75, "bias": 1.0, "region": 0}),
    "pool": ("PoolMax2d", [_floats(1, 9, 9, 6)], _POOL),
    "mean pool": ("PoolAvg2d", [_floats(1, 9, 9, 6)], _POOL),
    "reduction": ("ReduceSum", [_floats(4, 5, 6, 7)], {"axes": (1, 3)}),
    "reduction of columns": ("ReduceMax", [_floats(4, 5, 6, 7)], {"axes": (0, 2)}),
    "running sum": ("CumulativeSum", [_floats(4, 5, 6)], {"axis": 1, "exclusive": True, "reverse": True}),
    "bilinear": ("Resize", [_floats(2, 5, 7, 3)], {"interpolation_mode": 1}, [Result((2, 9, 10, 3))]),
    "cubic": ("Resize", [_floats(5, 7, 3)], {"interpolation_mode": 2}, [Result((9, 4, 3))]),
    "grid": ("GridSample", [_floats(2, 5, 7, 3), _floats(2, 4, 4, 2)], {}),
    "crops": ("CropAndResize", [_floats(2, 5, 7, 3), _floats(3, 4), _indices(2, 3)], {"resize_dims": (4, 4)}),
    "gather": ("Gather", [_floats(5, 6, 7), _indices(6, 4)], {"axis": 1}),
    "gather of elements": ("GatherElements", [_floats(5, 6), _indices(5, 4, 5)], {"axis": 0}),
    "gather of tuples": ("GatherNd", [_floats(5, 6, 7), _indices(5, 4, 2)], {"batch_dims": 0}),
    "scatter": ("ScatterNd", [_floats(5, 6, 7), _indices(5, 4, 2), _floats(4, 7)], {}),
    "scatter of elements": ("ScatterElements", [_floats(5, 6), _indices(5, 4, 5), _floats(4, 5)], {"axis": 0}),
    "one hot": ("OneHot", [_indices(5, 3, 4)], {"depth": 5}, [Result((3, 4, 5), DataType.FLOAT_32)]),
    "reversed": ("ReverseSequence", [_floats(4, 5, 3), np.array([1, 5, 9, -2], np.int32)],
                 {"batch_axis": 0, "time_axis": 1}),
    "argmax": ("Argmax", [_floats(4, 5, 6)], {"axis": 1}, [Result((4, 6), DataType.INT_32)]),
    "best": ("TopK", [_floats(4, 20)], {"k": 3}, [Result((4, 3)), Result((4, 3), DataType.INT_32)]),
    "detections": ("DetectionPostProcess", [_floats(1, 9, 4), _floats(1, 9, 4), _floats(9, 4)], DETECTIONS,
                   [Result(), Result(), Result(), Result()]),
    "detections of classes": ("DetectionPostProcess", [_floats(1, 9, 4), _floats(1, 9, 4), _floats(9, 4)],
                              DETECTIONS | {"use_regular_nms": True}, [Result(), Result(), Result(), Result()]),
    "boxes of classes": ("NonMaxSuppression", [_floats(2, 9, 4), _floats(2, 3, 9)], {"iou_threshold": 0.5},
                         [Result((7, 3), DataType.INT_32), Result((1,), DataType.INT_32)]),
    "best boxes": ("SelectBoxes", [_floats(2, 9, 4), _floats(2, 9, 3)], {"iou_threshold": 0.5},
                   [Result((2, 7)), Result((2, 7)), Result((2, 7)), Result((2,))]),
    "not zero": ("NonZero", [np.ones((3, 5), np.bool_)], {}, [Result((9, 2), DataType.INT_32)]),
    "regions": ("RoiAlign", [_floats(2, 6, 5, 3), _floats(4, 4), np.zeros(4, np.int32)],
                {"img_size_ratio": [1.0, 1.0]}, [Result((4, 2, 3, 3))]),
    "random numbers": ("RandomUniformLike", [np.array([3, 5], np.int32), _floats(1), np.zeros(1, np.int32)], {},
                       [Result((3, 5), DataType.FLOAT_32)]),
    "normal numbers": ("RandomNormalLike", [np.array([3, 5], np.int32), None, np.zeros(1, np.int32)], {},
                       [Result((3, 5), DataType.FLOAT_32)]),
    "lstm": ("Lstm", _lstm(0), {}, [Result()] * 3),
    "lstm projected": ("Lstm", _lstm(7), {}, [Result()] * 3),
    "gru": ("Gru", _gru(), {}, [Result()] * 2),
    "gru linear": ("Gru", _gru(), {"linear_before_reset": True}, [Result()] * 2),
    "bytes conv": ("Conv2d", [_bytes(1, 7, 9, 5), _byte_weights(3, 3, 5, 21)], _CONVOLUTION, _stored(1, 7, 9, 21)),
    "bytes conv in groups": ("Conv2d", [_bytes(1, 7, 9, 20), _byte_weights(3, 3, 4, 15)], _CONVOLUTION | {"group": 5},
                             _stored(1, 7, 9, 15)),
    "bytes conv of points": ("Conv2d", [_bytes(1, 5, 8, 8, kind=np.uint8), _byte_weights(1, 1, 8, 40)],
                             _CONVOLUTION | {"pad_amount": ((0, 0), (0, 0))},
                             _stored(1, 5, 8, 40, kind=DataType.UFIXED_POINT_8)),
    "bytes product": ("FullyConnected", [_bytes(3, 20), _byte_weights(30, 20)], {}, _stored(3, 30)),
    "bytes depthwise": ("DepthWiseConv2d", [_bytes(1, 7, 9, 83), _byte_weights(3, 3, 1, 83)], _DEPTHWISE,
                        _stored(1, 7, 9, 83)),
    "bytes depthwise of few": ("DepthWiseConv2d", [_bytes(1, 7, 9, 5), _byte_weights(3, 3, 1, 5)], _DEPTHWISE,
                               _stored(1, 7, 9, 5)),
    "bytes depthwise of a column": ("DepthWiseConv2d", [_bytes(1, 7, 1, 20), _byte_weights(3, 3, 1, 20)], _DEPTHWISE,
                                    _stored(1, 7, 1, 20)),
    "hybrid product": ("FullyConnected", [_floats(3, 20), _byte_weights(30, 20)], {},
                       [Result((3, 30), DataType.FLOAT_32)]),
    "hybrid conv": ("Conv2d", [_floats(1, 6, 6, 8), _byte_weights(3, 3, 8, 20)], _CONVOLUTION,
                    [Result((1, 6, 6, 20), DataType.FLOAT_32)]),
    "nibbles conv": ("Conv2d", [_bytes(1, 7, 9, 16), _nibbles(3, 3, 16, 21)], _CONVOLUTION, _stored(1, 7, 9, 21)),
    "nibbles product": ("FullyConnected", [_bytes(3, 32), _nibbles(30, 32)], {}, _stored(3, 30)),
    "nibbles depthwise": ("DepthWiseConv2d", [_bytes(1, 7, 9, 83), _nibbles(3, 3, 1, 83)], _DEPTHWISE,
                          _stored(1, 7, 9, 83)),
    "nibbles hybrid": ("FullyConnected", [_floats(3, 32), _nibbles(30, 32)], {}, [Result((3, 30), DataType.FLOAT_32)]),
    "floats times nibbles": ("FullyConnected", [_floats(9, 40), _float_nibbles(30, 40)], {}),
    "a row times nibbles": ("FullyConnected", [_floats(1, 40), _float_nibbles(30, 40)], {}),
    "floats conv of nibbles": ("Conv2d", [_floats(1, 6, 7, 16), _float_nibbles(3, 3, 16, 19)], _CONVOLUTION),
    "bytes function": ("Sigmoid", [_bytes(100)], {}, _stored(100)),
    "bytes to reals": ("Dequantize", [_bytes(100)], {}, [Result((100,), DataType.FLOAT_32)]),
    "reals to bytes": ("Quantize", [_floats(100)], {}, _stored(100)),
    "bytes sum": ("ElementWiseAdd", [_bytes(4, 5, 60), _bytes(5, 1)], {}, _stored(4, 5, 60)),
    "bytes products": ("ElementWiseMultiply", [_bytes(4, 5, 60), _bytes(5, 60)], {}, _stored(4, 5, 60)),
    "bytes mean": ("ReduceMean", [_bytes(3, 9, 20)], {"axes": (1,)}, _stored(3, 20)),
    "bytes pool": ("PoolAvg2d", [_bytes(1, 9, 9, 6)], _POOL, _stored(1, 5, 5, 6)),
    "bytes softmax": ("Softmax", [_bytes(4, 33)], {}, _stored(4, 33)),
    "bytes softmax of integers": ("Softmax", [_bytes(4, 33)], {}, _stored(4, 33), "onnxruntime"),
    "bytes resized": ("ResizeBilinear", [_bytes(1, 5, 7, 6)], {"half_pixel_centers": True}, _stored(1, 9, 10, 6)),
}  # fmt: skip
"""By name: operation, inputs, parameters, and where they do not follow from those the results and the numerics."""


def _lowered(step: Step, target: Target, threads: int, numerics: str) -> Program:
    places: dict[Tensor, Place] = {}
    for tensor in (*step.inputs, *step.outputs):
        if tensor is not None and not tensor.is_static and tensor not in places:
            places[tensor] = Place(Pool.IO + len(places), 0)
    lowering = lowering_of(step)
    emitter = Emitter(target, threads, places, numerics)
    emitter.begin(step, 0, threads)
    lowering.emit(step, emitter)
    return harness.program_of(emitter, places, -(-lowering.work(step, target, threads) // 64) * 64)


def programs(target: Target | None = None, threads: int = 2) -> Iterator[tuple[str, Program]]:
    """Each specimen's name and program."""
    for name, (op, inputs, params, *rest) in _CASES.items():
        results, numerics = [*rest, *(None, "exact")[len(rest) :]]
        step, _ = make_step(op, inputs, params, results)
        yield name, _lowered(step, target or host(), threads, numerics)
    for m in (2, 4):
        step, _ = make_step("Conv2d", [_floats(2, 6, 7, 16), _weights(3, 3, 16, 19), _weights(19)], _CONVOLUTION)
        step.winograd = m
        yield f"conv by squares of {m}", _lowered(step, target or host(), threads, "exact")
        inputs = [_fp16(2, 6, 7, 16), static(_fp16(3, 3, 16, 19)), static(_fp16(19))]
        step, _ = make_step("Conv2d", inputs, _CONVOLUTION)
        step.winograd = m
        yield f"conv of fp16 by squares of {m}", _lowered(step, target or host(), threads, "exact")
    with patch.object(quantized_convolution, "suits_blocks", lambda *_: True):
        step, _ = make_step("Conv2d", [_bytes(2, 6, 7, 16), _byte_weights(3, 3, 16, 19)], _CONVOLUTION,
                            _stored(2, 6, 7, 19))  # fmt: skip
        in_blocks = _lowered(step, target or host(), threads, "exact")
    yield "conv by blocks", in_blocks
    with patch.object(convolution, "suits_groups", lambda *_: True):
        step, _ = make_step("Conv2d", [_floats(2, 5, 6, 18), _weights(3, 3, 2, 18)], _CONVOLUTION | {"group": 9})
        in_vectors = _lowered(step, target or host(), threads, "exact")
    yield "conv in small groups", in_vectors
    # One thread repeats tiles, several take turns at it.
    for name, bytes_, several in (
        ("tiles of floats", False, 1), ("tiles of bytes", True, 1), ("pipelined floats", False, threads)
    ):  # fmt: skip
        graph = tile_networks.squeezed(bytes_)
        yield name, native.prepare(graph, several, target, limit=ScratchLimit.of("30%")).program
    yield "branches", native.prepare(tile_networks.branching(), threads, target).program
