"""One small use of each operation of QNN's package: its operands, results and parameters.

A tensor is a role and dimensions. Roles: "x" has the data type that is tried, "w" is a constant of weights, "b" a
constant bias, "s" a constant of the type that is tried; a data type stands for itself, and None for an operand that is
left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from differential.client import Encoding, Node, Param, TensorValue
from isthmus.graph.datatypes import DataType
from isthmus.graph.tensor import TensorType

D = DataType
F32, F16, I32, U32, U8, BOOL = D.FLOAT_32, D.FLOAT_16, D.INT_32, D.UINT_32, D.UINT_8, D.BOOL_8
Role = tuple[Any, tuple[int, ...]] | None


@dataclass(frozen=True)
class Use:
    """A use of an operation; parameters are name, data type and value."""

    inputs: tuple[Role, ...]
    outputs: tuple[Role, ...]
    params: tuple[tuple[str, int, Any], ...] = ()


def _uses() -> dict[str, Use]:
    """Return the uses by operation."""
    uses: dict[str, Use] = {}
    image, row, cube = (1, 8, 8, 32), (1, 1, 8, 32), (1, 4, 8, 8, 32)

    def add(names: str, inputs: Any, outputs: Any, **params: tuple[int, Any]) -> None:
        values = tuple((name.rstrip("_"), dtype, value) for name, (dtype, value) in params.items())
        for name in names.split():
            uses[name] = Use(tuple(inputs), tuple(outputs), values)

    def flat(*dims: int) -> Role:
        return ("x", dims)

    x = ("x", image)
    mask = (BOOL, image)
    prefix = "ElementWise"
    singles = "Abs Asin Atan Ceil Cos Exp Floor Log Neg Round Rsqrt Sign Sin SquareRoot"
    pairs = "Add Divide FloorDiv Maximum Minimum Mod Multiply Power SquaredDifference Subtract"
    tests = "Equal Greater GreaterEqual Less LessEqual NotEqual"
    for name in singles.split():
        add(prefix + name, [x], [x])
    for name in pairs.split():
        add(prefix + name, [x, x], [x])
    for name in tests.split():
        add(prefix + name, [x, x], [mask])
    for name in ("And", "Or", "Xor"):
        add(prefix + name, [mask, mask], [mask])
    add(prefix + "Not", [mask], [mask])
    add(prefix + "Select", [mask, x, x], [x])
    add(prefix + "Mux", [(I32, image), x, x], [x])
    add(prefix + "Unary", [x], [x], operation=(U32, 0))
    add(prefix + "Binary", [x, x], [x], operation=(U32, 0))
    add(prefix + "Neuron", [x], [x], operation=(U32, 4))
    add("Relu Relu1 Relu6 Gelu HardSwish Sigmoid Tanh Logit Convert", [x], [x])
    add("Elu", [x], [x], alpha=(F32, 1.0))
    add("ReluMinMax", [x], [x], min_value=(F32, 0.0), max_value=(F32, 6.0))
    add("IsInf IsNan", [x], [mask])
    add("Prelu", [x, ("s", (32,))], [x])
    add("Argmax Argmin", [x], [(I32, image[:3])], axis=(U32, 3))
    add("BatchToSpace", [flat(4, 4, 4, 32)], [x], block_size=(U32, [2, 2]))
    add("SpaceToBatch", [x], [flat(4, 4, 4, 32)], block_size=(U32, [2, 2]), pad_amount=(U32, [[0, 0], [0, 0]]))
    add("DepthToSpace", [x], [flat(1, 16, 16, 8)], block_size=(U32, [2, 2]))
    add("SpaceToDepth", [x], [flat(1, 4, 4, 128)], block_size=(U32, [2, 2]))
    add("Batchnorm", [x, ("w", (32,)), ("b", (32,))], [x])
    add("Buffer", [flat(1, 8, 32)], [flat(1, 16, 32)], buffer_size=(U32, 16), buffer_dim=(U32, 1), stride=(U32, 8))
    add("Cast", [x], [(I32, image)])
    add("ChannelShuffle", [x], [x], num_groups=(U32, 4), axis=(U32, 3))
    add("Concat", [x, x], [flat(1, 8, 8, 64)], axis=(U32, 3))
    plane: dict[str, Any] = {"stride": (U32, [1, 1]), "pad_amount": (U32, [[0, 0], [0, 0]])}
    space: dict[str, Any] = {"stride": (U32, [1, 1, 1]), "pad_amount": (U32, [[0, 0]] * 3)}
    add("Conv2d", [x, ("w", (3, 3, 32, 16)), ("b", (16,))], [flat(1, 6, 6, 16)], **plane)
    add("DepthWiseConv2d", [x, ("w", (3, 3, 1, 32)), ("b", (32,))], [flat(1, 6, 6, 32)], **plane)
    add("TransposeConv2d", [x, ("w", (3, 3, 32, 16)), ("b", (16,))], [flat(1, 10, 10, 16)], **plane)
    add("Conv3d", [("x", cube), ("w", (2, 3, 3, 32, 16)), ("b", (16,))], [flat(1, 3, 6, 6, 16)], **space)
    add("TransposeConv3d", [flat(1, 4, 4, 4, 32), ("w", (2, 2, 2, 32, 16)), ("b", (16,))], [flat(1, 5, 5, 5, 16)],
        **space)  # fmt: skip
    add("CreateSparse", [(I32, (4, 4)), flat(4)], [x])
    add("GetSparseIndices", [x], [(I32, (4, 4))], num_specified_elements=(U32, 4))
    add("GetSparseValues", [x], [flat(4)], num_specified_elements=(U32, 4))
    add("SparseToDense", [x], [x])
    add("CumulativeSum", [x], [x], axis=(U32, 3))
    add("Dequantize", [x], [(F32, image)])
    add("Quantize", [(F32, image)], [x])
    add("DetectionOutput", [flat(1, 16, 3), flat(1, 16, 4), ("s", (16, 4))],
        [flat(1, 8), flat(1, 8, 4), (I32, (1, 8)), (U32, (1,))], delta_scaling_factors=(F32, [1.0] * 4),
        confidence_threshold=(F32, 0.1), iou_threshold=(F32, 0.5))  # fmt: skip
    add("ExpandDims", [flat(8, 8, 32)], [x], axis=(U32, 0))
    add("Squeeze", [x], [flat(8, 8, 32)], axes=(U32, [0]))
    add("Reshape", [x], [flat(1, 64, 32)])
    add("ExtractGlimpse", [x, (F32, (1, 2))], [flat(1, 4, 4, 32)], size=(I32, [4, 4]))
    add("ExtractPatches", [x], [flat(1, 4, 4, 128)], size=(U32, [2, 2]), stride=(U32, [2, 2]), rate=(U32, [1, 1]),
        padding=(U32, 0))  # fmt: skip
    add("FullyConnected", [flat(4, 32), ("w", (16, 32)), ("b", (16,))], [flat(4, 16)])
    add("MatMul", [("x", row), ("w", (1, 1, 32, 16))], [flat(1, 1, 8, 16)])
    add("Gather", [flat(16, 32), (I32, (4,))], [flat(4, 32)], axis=(I32, 0))
    add("GatherElements", [flat(16, 32), (I32, (4, 32))], [flat(4, 32)], axis=(U32, 0))
    add("GatherNd", [flat(16, 32), (I32, (4, 1))], [flat(4, 32)])
    add("ScatterElements", [flat(16, 32), (I32, (4, 32)), flat(4, 32)], [flat(16, 32)], axis=(U32, 0))
    add("ScatterNd", [flat(16, 32), (I32, (4, 1)), flat(4, 32)], [flat(16, 32)])
    add("GridSample", [x, flat(1, 4, 4, 2)], [flat(1, 4, 4, 32)])
    norm = [x, ("w", (32,)), ("b", (32,))]
    add("GroupNorm", norm, [x], epsilon=(F32, 1e-5), group=(U32, 4))
    add("InstanceNorm", norm, [x], epsilon=(F32, 1e-5))
    add("LayerNorm RmsNorm", [("x", row), ("w", (32,)), ("b", (32,))], [("x", row)], epsilon=(F32, 1e-5),
        axes=(U32, [3]))  # fmt: skip
    cache = flat(1, 2, 16, 16)
    add("GroupQueryAttention", [flat(1, 1, 64), flat(1, 1, 32), flat(1, 1, 32), cache, cache, (I32, (1,)), (I32, (1,))],
        [flat(1, 1, 64), cache, cache], num_heads=(U32, 4), kv_num_heads=(U32, 2))  # fmt: skip
    gates = [("w", (16, 32))] * 3 + [("w", (16, 16))] * 3
    add("Gru", [flat(4, 1, 32), *gates, *[("b", (16,))] * 6, flat(1, 1, 16)], [flat(4, 1, 16), flat(1, 1, 16)])
    add("Lstm", [flat(4, 1, 32), *gates, *[("b", (16,))] * 3, flat(1, 16), flat(1, 16)],
        [flat(4, 1, 16), flat(1, 16), flat(1, 16)])  # fmt: skip
    add("HadamardTransform", [flat(1, 8, 32)], [flat(1, 8, 32)])
    add("L2Norm", [x], [x], axis=(U32, 3))
    add("Softmax LogSoftmax", [("x", row)], [("x", row)], axis=(U32, 3))
    add("Lrn", [x], [x], alpha=(F32, 1e-4), beta=(F32, 0.75), bias=(F32, 1.0), radius=(I32, 2))
    thresholds: dict[str, Any] = {"iou_threshold": (F32, 0.5), "score_threshold": (F32, 0.1)}
    add("MultiClassNms", [flat(1, 16, 4), flat(1, 16, 3)], [flat(1, 8, 4), flat(1, 8), (I32, (1, 8)), (U32, (1,))],
        **thresholds)  # fmt: skip
    add("NonMaxSuppression", [flat(1, 16, 4), flat(1, 3, 16)], [(I32, (24, 3)), (U32, (1,))], **thresholds,
        max_boxes_selected=(U32, 8))  # fmt: skip
    add("NonZero", [flat(16, 4)], [(I32, (64, 2))])
    add("Nv12ToRgb", [(U8, (1, 96))], [(U8, (1, 8, 8, 3))], output_order=(I32, 0))
    add("OneHot", [(I32, (4,))], [flat(4, 16)], depth=(U32, 16), axis=(U32, 1))
    add("Pack", [flat(8, 32)] * 2, [flat(2, 8, 32)], axis=(U32, 0))
    add("UnPack", [flat(2, 8, 32)], [flat(8, 32)] * 2, axis=(U32, 0))
    add("Pad", [x], [flat(1, 10, 10, 32)], scheme=(U32, 0), pad_amount=(U32, [[0, 0], [1, 1], [1, 1], [0, 0]]))
    add("PoolAvg2d PoolMax2d", [x], [flat(1, 4, 4, 32)], filter_size=(U32, [2, 2]), stride=(U32, [2, 2]),
        pad_amount=(U32, [[0, 0], [0, 0]]))  # fmt: skip
    add("PoolAvg3d", [("x", cube)], [flat(1, 2, 4, 4, 32)], filter_size=(U32, [2] * 3), stride=(U32, [2] * 3),
        pad_amount=(U32, [[0, 0]] * 3))  # fmt: skip
    add("RandomNormalLike RandomUniformLike", [(U32, (4,)), (F32, (1,))], [x])
    add("ReduceMax ReduceMean ReduceMin ReduceSum", [x], [flat(1, 8, 8, 1)], axes=(U32, [3]), keep_dims=(BOOL, 1))
    add("Resize", [x], [flat(1, 16, 16, 32)], interpolation_mode=(U32, 1))
    add("ResizeBilinear ResizeNearestNeighbor", [x], [flat(1, 16, 16, 32)])
    add("RoiAlign", [x, flat(2, 4), (I32, (2,))], [flat(2, 4, 4, 32)], img_size_ratio=(F32, [1.0, 1.0]))
    add("RotaryEmbedding", [flat(1, 4, 8, 32), flat(1, 8, 16), flat(1, 8, 16)], [flat(1, 4, 8, 32)])
    add("Split", [x], [flat(1, 8, 8, 16)] * 2, axis=(U32, 3), split_index=(U32, [16]))
    add("Stft", [flat(1, 256, 1)], [flat(1, 3, 65, 2)], frame_step=(U32, 64), frame_length=(U32, 128))
    add("StridedSlice", [x], [flat(1, 8, 8, 16)], ranges=(I32, [[0, 1, 1], [0, 8, 1], [0, 8, 1], [0, 16, 1]]))
    add("Tile", [x], [flat(1, 16, 8, 32)], multiples=(U32, [1, 2, 1, 1]))
    add("TopK", [x], [flat(1, 8, 8, 4), (I32, (1, 8, 8, 4))], k=(U32, 4))
    add("Transpose", [x], [flat(1, 32, 8, 8)], perm=(U32, [0, 3, 1, 2]))
    return uses


USES = _uses()
KINDS: dict[str, int] = {
    "fp32": F32, "fp16": F16, "ufixed8": D.UFIXED_POINT_8, "sfixed8": D.SFIXED_POINT_8, "ufixed16": D.UFIXED_POINT_16,
    "sfixed16": D.SFIXED_POINT_16, "int32": I32, "a8w4": D.UFIXED_POINT_8, "a16w4": D.UFIXED_POINT_16,
    "a16w8": D.UFIXED_POINT_16,
}  # fmt: skip
"""What the role "x" becomes; the last three have weights of other types than activations."""
ENCODINGS = {
    D.UFIXED_POINT_8: Encoding((0.05,), (-128,)), D.SFIXED_POINT_8: Encoding((0.05,)),
    D.UFIXED_POINT_16: Encoding((0.0005,), (-32768,)), D.SFIXED_POINT_16: Encoding((0.0005,)),
    D.SFIXED_POINT_32: Encoding((0.0005,)),
}  # fmt: skip


def _constant(op: str, kind: str, role: str, dims: tuple[int, ...]) -> tuple[int, Encoding | None]:
    """Return the data type and encoding of a constant."""
    dtype = KINDS[kind]
    if role == "w" and kind in ("a8w4", "a16w4"):
        if len(dims) == 1:
            return D.SFIXED_POINT_8, Encoding((0.1,), bits=4)
        axis = 0 if op == "FullyConnected" else len(dims) - 1
        return D.SFIXED_POINT_8, Encoding((0.1,) * dims[axis], axis=axis, bits=4)
    if role == "w" and kind == "a16w8":
        dtype = D.SFIXED_POINT_8
    elif role == "b" and DataType(dtype).is_fixed_point:
        dtype = D.SFIXED_POINT_32
    return dtype, ENCODINGS.get(D(dtype))


def node_of(op: str, kind: str) -> Node:
    """Return the use of an operation with a kind of data."""
    use, random = USES[op], np.random.default_rng(0)

    def tensor(spec: Role, name: str, side: int) -> TensorValue:
        if spec is None:
            return TensorValue(name, TensorType.NULL, F32, ())
        role, dims = spec
        if role == "x" or not isinstance(role, str):
            dtype = KINDS[kind] if role == "x" else role
            return TensorValue(name, side, dtype, dims, ENCODINGS.get(D(dtype)))
        dtype, encoding = _constant(op, kind, role, dims)
        stored = DataType(dtype).numpy
        data = random.standard_normal(dims) if DataType(dtype).is_float else random.integers(0, 7, dims)
        return TensorValue(name, TensorType.STATIC, dtype, dims, encoding, data.astype(stored))

    return Node(
        op,
        [tensor(spec, f"in{index}", TensorType.APP_WRITE) for index, spec in enumerate(use.inputs)],
        [tensor(spec, f"out{index}", TensorType.APP_READ) for index, spec in enumerate(use.outputs)],
        [Param(*param) for param in use.params],
    )


def kinds_of(op: str) -> list[str]:
    """Name the kinds of data to try: those with other weights only where there are weights."""
    weights = any(spec is not None and spec[0] == "w" for spec in USES[op].inputs)
    return [kind for kind in KINDS if weights or "w" not in kind]


def changed(values: list[TensorValue], index: int, **fields: Any) -> list[TensorValue]:
    """Return the tensors with fields of one replaced."""
    return [replace(value, **fields) if index == each else value for each, value in enumerate(values)]
