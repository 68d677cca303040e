"""Small graphs as a DLC holds them, with what they compute."""

from __future__ import annotations

import numpy as np

from isthmus.frontends.composed.entries import ComposedTensor, GraphEntry, NodeEntry
from isthmus.graph import DataType, TensorType
from support.dlc_write import node, static, tensor

WRITE, READ, NATIVE, STATIC = TensorType.APP_WRITE, TensorType.APP_READ, TensorType.NATIVE, TensorType.STATIC

WEIGHTS = ((np.arange(72) * 37 % 17 - 8) / 32).astype(np.float32).reshape(3, 3, 2, 4)
BIAS = np.float32([0.5, -0.25, 0.125, 0])
ONES, PADS = np.uint32([1, 1]), np.uint32([[1, 1], [1, 1]])


def convolution(name: str = "net") -> GraphEntry:
    """A convolution and a ReLU by its number; names of the source model that QNN would not take."""
    tensors = (
        tensor("c", NATIVE, (1, 6, 6, 4)),
        static("conv/w:0", WEIGHTS),
        static("1", BIAS),
        tensor("in/x:0", WRITE, (1, 6, 6, 2)),
        tensor("y", READ, (1, 6, 6, 4)),
    )
    params = {"stride": ONES, "pad_amount": PADS, "group": 1, "reuse_sparse_indices": False}
    return GraphEntry(
        name,
        tensors,
        (
            node("conv", "Conv2d", ["in/x:0", "conv/w:0", "1"], ["c"], params),
            node("relu", "Neuron", ["c"], ["y"], {"operation": 4}),
        ),
    )


def convolved(x: np.ndarray) -> np.ndarray:
    """Return what `convolution` computes."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    parts = (
        np.einsum("nhwc,co->nhwo", padded[:, i : i + 6, j : j + 6], WEIGHTS[i, j]) for i in range(3) for j in range(3)
    )
    return np.maximum(sum(parts) + BIAS, 0)


def single(
    operation: NodeEntry, dims: tuple[int, ...] = (1, 4, 4, 2), out: tuple[int, ...] | None = None,
    dtype: DataType = DataType.FLOAT_32, more: tuple[ComposedTensor, ...] = (),
) -> GraphEntry:  # fmt: skip
    """A graph of one node from x to y."""
    return GraphEntry("net", (tensor("x", WRITE, dims), *more, tensor("y", READ, out or dims, dtype)), (operation,))


def fully_connected(weights: ComposedTensor) -> GraphEntry:
    """A fully connected layer of three bytes to two, with weights `w` of [2, 3]."""
    fixed = {"dtype": DataType.UFIXED_POINT_8, "offset": -3}
    return GraphEntry(
        "net",
        (tensor("x", WRITE, (1, 3), scale=0.1, **fixed), weights, tensor("y", READ, (1, 2), scale=0.2, **fixed)),
        (node("fc", "FullyConnected", ["x", "w"], ["y"]),),
    )
