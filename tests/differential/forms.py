"""The layer of forms: unusual nodes as clients of QNN make them. Does each validate, finalize, and compute the same.

A form changes the use of an operation: a scalar result, a slice of one element, operands of mixed types, weights that
are no constants, a bias without scales.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from differential import execution
from differential.client import Encoding, Node, Param, TensorValue
from differential.operations import BOOL, ENCODINGS, F16, F32, I32, KINDS, U32, changed, node_of
from isthmus.graph.datatypes import DataType
from isthmus.graph.tensor import TensorType

D = DataType
WRITE, READ, STATIC = TensorType.APP_WRITE, TensorType.APP_READ, TensorType.STATIC
_WEIGHTED = ("Conv2d", "Conv3d", "DepthWiseConv2d", "FullyConnected", "TransposeConv2d", "TransposeConv3d")
_WEIGHTS = {
    D.UFIXED_POINT_8: Encoding((0.01,), (-128,)), D.SFIXED_POINT_8: Encoding((0.01,)),
    D.UFIXED_POINT_16: Encoding((0.0001,), (-32768,)),
}  # fmt: skip


def _tensor(name: str, dtype: int, dims: tuple[int, ...], type: int = WRITE, data: Any = None) -> TensorValue:
    stored = None if data is None else np.asarray(data, DataType(dtype).numpy).reshape(dims)
    return TensorValue(name, type if data is None else STATIC, dtype, dims, ENCODINGS.get(D(dtype)), stored)


def _node(op: str, inputs: list[TensorValue], dtype: int, dims: tuple[int, ...], **params: tuple[int, Any]) -> Node:
    """Return a node with one output."""
    return Node(op, inputs, [_tensor("y", dtype, dims, READ)], [Param(name, *each) for name, each in params.items()])


def _scalars() -> dict[str, Callable[[], Node]]:
    """Return nodes with one number as a result or operand, as [1] and with rank 0."""
    made: dict[str, Callable[[], Node]] = {}
    for out in ((1,), ()):
        to = f"to {list(out)}"
        for kind in ("fp32", "ufixed8"):
            x = _tensor("x", KINDS[kind], (2, 3, 4))
            for op in ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"):
                made[f"{op} {kind}: everything {to}"] = lambda op=op, x=x, out=out: _node(
                    op, [x], x.dtype, out, axes=(U32, [0, 1, 2])
                )
            for op in ("Argmax", "Argmin"):
                made[f"{op} {kind}: of a row {to}"] = lambda op=op, x=x, out=out: _node(
                    op, [replace(x, dims=(4,))], I32, out, axis=(U32, 0)
                )
        x = _tensor("x", F32, (4,))
        made[f"Squeeze fp32: all axes {to}"] = lambda out=out, x=x: _node(
            "Squeeze", [replace(x, dims=(1, 1))], F32, out, axes=(U32, [0, 1])
        )
        made[f"UnPack fp32: of a row {to}"] = lambda out=out, x=x: Node(
            "UnPack", [replace(x, dims=(2,))], [_tensor(name, F32, out, READ) for name in "yz"], [Param("axis", U32, 0)]
        )
        made[f"StridedSlice fp32: one element {to}"] = lambda out=out, x=x: _node(
            "StridedSlice", [x], F32, out, ranges=(I32, [[1, 2, 1]]), shrink_axes=(U32, 1)
        )
        made[f"GatherNd fp32: one element {to}"] = lambda out=out, x=x: _node(
            "GatherNd", [x, _tensor("i", I32, (1,))], F32, out
        )
        made[f"Cast fp32: on {list(out)}"] = lambda out=out: _node("Cast", [_tensor("x", F32, out)], I32, out)
        made[f"Dequantize ufixed8: on {list(out)}"] = lambda out=out: _node(
            "Dequantize", [_tensor("x", D.UFIXED_POINT_8, out)], F32, out
        )
        made[f"Relu fp32: on {list(out)}"] = lambda out=out: _node("Relu", [_tensor("x", F32, out)], F32, out)
        made[f"ElementWiseAdd fp32: with {list(out)}"] = lambda out=out, x=x: _node(
            "ElementWiseAdd", [x, _tensor("z", F32, out)], F32, (4,)
        )
        made[f"Gather fp32: index {list(out)}"] = lambda out=out, x=x: _node(
            "Gather", [replace(x, dims=(4, 3)), _tensor("i", I32, out)], F32, (*out, 3), axis=(I32, 0)
        )
    return made


def _slices() -> dict[str, Callable[[], Node]]:
    """Return slices whose axis is shrunk, and slices with negative bounds."""
    made: dict[str, Callable[[], Node]] = {}
    for kind in ("fp32", "ufixed8", "int32"):
        x = _tensor("x", KINDS[kind], (2, 4))
        for begin, end, stride in ((0, 0, 1), (1, 1, 1), (1, 0, 1), (0, 2, 1), (1, 99, 1), (1, -1, 1), (-1, 0, 1),
                                   (1, 1, 2), (1, 1, 0), (1, 1, -1), (2, 2, 1), (-3, 0, 1)):  # fmt: skip
            ranges = [[begin, end, stride], [0, 4, 1]]
            made[f"StridedSlice {kind}: shrunk at {begin}:{end}:{stride}"] = lambda x=x, ranges=ranges: _node(
                "StridedSlice", [x], x.dtype, (4,), ranges=(I32, ranges), shrink_axes=(U32, 1)
            )
        for begin, end, stride in ((-2, 4, 1), (1, -1, 1), (-3, -1, 1), (3, 1, -1)):
            ranges = [[0, 2, 1], [begin, end, stride]]
            made[f"StridedSlice {kind}: of {begin}:{end}:{stride}"] = lambda x=x, ranges=ranges: _node(
                "StridedSlice", [x], x.dtype, (2, 2), ranges=(I32, ranges)
            )
        for mode in (0, 1, 2):
            for op, dims in (("SpaceToDepth", (1, 4, 4, 128)), ("DepthToSpace", (1, 16, 16, 8))):
                made[f"{op} {kind}: mode {mode}"] = lambda op=op, kind=kind, dims=dims, mode=mode: _node(
                    op,
                    [_tensor("x", KINDS[kind], (1, 8, 8, 32))],
                    KINDS[kind],
                    dims,
                    block_size=(U32, [2, 2]),
                    mode=(U32, mode),
                )
    return made


def _mixed() -> dict[str, Callable[[], Node]]:
    """Return operands of different types."""
    made: dict[str, Callable[[], Node]] = {}
    for kind in ("ufixed8", "sfixed8", "ufixed16", "sfixed16", "fp16"):
        x = _tensor("x", KINDS[kind], (4, 4))
        for dtype, two in ((F32, 2), (I32, 2), (F16, 2), (D.UFIXED_POINT_8, 168), (D.UFIXED_POINT_16, 36768)):
            if dtype == x.dtype:
                continue
            two = _tensor("e", dtype, (1,), data=[two])
            name = f"{kind}: exponent {DataType(dtype).name}"
            made[f"ElementWisePower {name}"] = lambda x=x, two=two: _node("ElementWisePower", [x, two], x.dtype, (4, 4))
            made[f"ElementWiseBinary {name}"] = lambda x=x, two=two: _node(
                "ElementWiseBinary", [x, two], x.dtype, (4, 4), operation=(U32, 16)
            )
        for op in ("Add", "Multiply", "Maximum"):
            made[f"ElementWise{op} {kind}: with FLOAT_32"] = lambda op=op, x=x: _node(
                f"ElementWise{op}", [x, _tensor("z", F32, (1,), data=[2.0])], x.dtype, (4, 4)
            )
    for count in (1, 2, 3, 5, 7):
        made[f"Prelu fp32: {count} slopes for 3 channels"] = lambda count=count: _node(
            "Prelu",
            [_tensor("x", F32, (2, 5, 1, 3)), _tensor("s", F32, (count,), data=np.arange(count) / 4)],
            F32,
            (2, 5, 1, 3),
        )
    made["Prelu ufixed16: slopes of 8 bits"] = lambda: _node(
        "Prelu",
        [_tensor("x", D.UFIXED_POINT_16, (2, 4, 4, 8)), _tensor("s", D.UFIXED_POINT_8, (8,), data=np.arange(8) + 128)],
        D.UFIXED_POINT_16,
        (2, 4, 4, 8),
    )
    for dtype in (D.UINT_8, D.INT_8, I32, BOOL, F16):
        made[f"Dequantize ufixed8: to {DataType(dtype).name}"] = lambda dtype=dtype: _node(
            "Dequantize", [_tensor("x", D.UFIXED_POINT_8, (4, 4))], dtype, (4, 4)
        )
    for dtype in (D.UFIXED_POINT_8, D.SFIXED_POINT_8, D.UFIXED_POINT_16):
        made[f"Quantize fp16: to {DataType(dtype).name}"] = lambda dtype=dtype: _node(
            "Quantize", [_tensor("x", F16, (4, 4))], dtype, (4, 4)
        )
    for kind in ("fp32", "fp16", "ufixed8", "ufixed16"):
        cube = _tensor("x", KINDS[kind], (1, 4, 4, 4, 2))
        made[f"GridSample {kind}: of rank 5"] = lambda cube=cube: _node(
            "GridSample", [cube, _tensor("g", cube.dtype, (1, 4, 4, 4, 3))], cube.dtype, cube.dims
        )
    return made


def _weights() -> dict[str, Callable[[], Node]]:
    """Return products whose weights or bias are inputs, and whose bias is in units of the products."""
    made: dict[str, Callable[[], Node]] = {}
    for op in _WEIGHTED:
        for kind in ("fp32", "fp16", "ufixed8", "sfixed8", "a16w8"):
            if "3d" not in op or kind != "a16w8":
                made[f"{op} {kind}: weights as an input"] = lambda op=op, kind=kind: _with_input(op, kind, 1)
        made[f"{op} fp32: bias as an input"] = lambda op=op: _with_input(op, "fp32", 2)
        for kind in ("ufixed8", "sfixed8", "a16w8"):
            if "3d" not in op or kind != "a16w8":
                for name, encoding in (("scale 0", Encoding((0.0,))), ("no scale", None)):
                    made[f"{op} {kind}: bias of {name}"] = lambda op=op, kind=kind, encoding=encoding: _by_channel(
                        op, kind, encoding
                    )
    made["TransposeConv2d ufixed8: in groups, with scales by channel"] = lambda: _grouped(6)
    made["TransposeConv2d ufixed8: in groups, with scales of a group"] = lambda: _grouped(3)
    return made


def _with_input(op: str, kind: str, index: int) -> Node:
    """Return the use of an operation with an operand that is no constant."""
    node = node_of(op, kind)
    value = node.inputs[index]
    encoding = _WEIGHTS.get(D(value.dtype)) if index == 1 else value.encoding
    return replace(node, inputs=changed(node.inputs, index, type=WRITE, data=None, encoding=encoding))


def _by_channel(op: str, kind: str, encoding: Encoding | None) -> Node:
    """Return the use of a product with weights in scales by channel, and a bias in this encoding."""
    node, random = node_of(op, kind), np.random.default_rng(0)
    dims = node.inputs[1].dims
    axis = 0 if op == "FullyConnected" else len(dims) - 1
    scales = tuple(0.01 + 0.001 * index for index in range(dims[axis]))
    data = random.integers(-9, 10, dims).astype(np.int8)
    inputs = changed(
        node.inputs, 1, dtype=D.SFIXED_POINT_8, encoding=Encoding(scales, (0,) * len(scales), axis), data=data
    )
    bias = random.integers(-900, 900, node.inputs[2].dims).astype(np.int32)
    return replace(node, inputs=changed(inputs, 2, encoding=encoding, data=bias))


def _grouped(count: int) -> Node:
    """Return a transposed convolution in two groups of three channels; the bias has this many scales."""
    random, scales = np.random.default_rng(0), (0.01, 0.02, 0.03)
    weights = _tensor("w", D.SFIXED_POINT_8, (3, 3, 4, 3), data=random.integers(-9, 10, (3, 3, 4, 3)))
    bias = _tensor("b", D.SFIXED_POINT_32, (6,), data=random.integers(-900, 900, 6))
    products = tuple(0.05 * scale for scale in scales) * 2
    return _node(
        "TransposeConv2d",
        [_tensor("x", D.UFIXED_POINT_8, (1, 8, 8, 4)), replace(weights, encoding=Encoding(scales, (0,) * 3, 3)),
         replace(bias, encoding=Encoding(products[:count], (0,) * count, 0))],
        D.UFIXED_POINT_8, (1, 10, 10, 6), stride=(U32, [1, 1]), pad_amount=(U32, [[0, 0], [0, 0]]), group=(U32, 2),
    )  # fmt: skip


FORMS = {**_scalars(), **_slices(), **_mixed(), **_weights()}


def cases() -> list[str]:
    """Name the forms."""
    return list(FORMS)


def opened(library: Path, chip: int | None) -> Callable[[str], Any]:
    """Return the function that validates, finalizes and executes a form by name for a chip."""
    return execution.answering(library, chip, lambda name: FORMS[name]())
