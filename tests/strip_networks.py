"""Random small networks, made of what strips know: windows, pools, resizing, residuals, joins, gates behind means."""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.errors import QnnError
from isthmus.graph import DataType, Graph, Quantization, Tensor, TensorType

_KINDS = (
    "conv", "point", "point", "depthwise", "depthwise", "depthwise", "max", "average", "add", "add", "multiply",
    "function", "bilinear", "nearest", "pad", "join", "transposed", "gate", "prelu", "softmax", "blocks", "slice",
    "cells",
)  # fmt: skip
_MOST_ELEMENTS = 60_000


class _Builder:
    """A network under construction; all its tensors are images."""

    def __init__(self, rng: np.random.Generator, bytes_: bool) -> None:
        self.rng, self.bytes = rng, bytes_
        self.graph = Graph("random")
        height, width = self.pick(8, 33), self.pick(3, 17)
        if self.pick(0, 3) == 0:
            height, width = self.pick(2, 8), self.pick(16, 65)
        dims = (1, height, width, 4 * self.pick(1, 7))
        dtype = DataType.SFIXED_POINT_8 if bytes_ else DataType.FLOAT_32
        source = self.graph.create_tensor("x", TensorType.APP_WRITE, dtype, dims, self.quantization())
        self.images = [source]

    def pick(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high))

    def quantization(self) -> Quantization | None:
        scale, zero = float(self.rng.uniform(0.02, 0.1)), self.pick(-20, 20)
        return Quantization.per_tensor(scale, zero) if self.bytes else None

    def weights(self, *dims: int) -> Tensor:
        name = self.graph.fresh("w")
        if self.bytes:
            values = self.rng.integers(-127, 128, dims).astype(np.int8)
            return self.graph.constant(name, values, quantization=Quantization.per_tensor(0.01, 0))
        return self.graph.constant(name, self.rng.normal(0, 0.3, dims).astype(np.float32))

    def emit(
        self, op: str, inputs: list[Tensor], params: dict[str, Any] | None = None, own_scale: bool = True, **more: Any
    ) -> Tensor:
        if self.bytes and own_scale:
            more["quantizations"] = [self.quantization()]
        return self.graph.emit(op, inputs, params, **more)[0]

    def add(self, kind: str) -> None:
        """One operation more on the last image, if it takes it."""
        rng, image = self.rng, self.images[-1]
        _, height, width, channels = image.dims
        kernel, stride, dilation = int(rng.choice([1, 2, 3, 3, 5])), int(rng.choice([1, 1, 1, 2, 3])), self.pick(1, 3)
        pads = rng.integers(0, max(1, (kernel - 1) * dilation + 1), (2, 2)).astype(np.uint32)
        window = {"stride": [stride, stride], "pad_amount": pads, "dilation": [dilation, dilation]}
        alike = [other for other in self.images if other.dims == image.dims]
        if kind == "conv":
            made = self.emit("Conv2d", [image, self.weights(kernel, kernel, channels, 4 * self.pick(1, 6))], window)
        elif kind == "point":
            plain = {"stride": [1, 1], "pad_amount": np.zeros((2, 2), np.uint32)}
            made = self.emit("Conv2d", [image, self.weights(1, 1, channels, 4 * self.pick(1, 13))], plain)
        elif kind == "depthwise":
            made = self.emit("DepthWiseConv2d", [image, self.weights(kernel, kernel, 1, channels)], window)
        elif kind in ("max", "average"):
            params: dict[str, Any] = {"filter_size": [kernel, kernel], "stride": [stride, stride]}
            params |= {"pad_amount": np.minimum(pads, kernel - 1), "rounding_mode": self.pick(0, 2)}
            if kind == "max":
                made = self.emit("PoolMax2d", [image], params, own_scale=False)
            else:
                made = self.emit("PoolAvg2d", [image], params | {"count_pad_for_edges": bool(self.pick(0, 2))})
        elif kind == "cells":
            cell = [min(height, self.pick(1, 7)), min(width, self.pick(1, 4))]
            params = {"filter_size": cell, "stride": cell, "pad_amount": np.zeros((2, 2), np.uint32)}
            made = self.emit("PoolAvg2d", [image], params)
        elif kind in ("add", "multiply"):
            made = self.emit(f"ElementWise{kind.title()}", [image, alike[self.pick(0, len(alike))]])
        elif kind == "function":
            made = self.emit(str(rng.choice(["HardSwish", "Sigmoid", "Relu", "Tanh"])), [image])
        elif kind == "prelu":
            made = self.emit("Prelu", [image, self.weights(1, 1, channels)])
        elif kind == "softmax":
            made = self.emit("Softmax", [image], {"axis": 3})
        elif kind in ("bilinear", "nearest"):
            corners = bool(self.pick(0, 2))
            params = {"align_corners": corners, "half_pixel_centers": not corners and bool(self.pick(0, 2))}
            factor = int(rng.choice([2, 2, 3]))
            op = "ResizeBilinear" if kind == "bilinear" else "ResizeNearestNeighbor"
            dims = [(1, height * factor, width * factor, channels)]
            made = self.emit(op, [image], params, dims=dims, own_scale=False)
        elif kind == "pad":
            amounts = [[0, 0], rng.integers(0, 3, 2), rng.integers(0, 3, 2), [0, 4 * self.pick(0, 2)]]
            params = {"scheme": 0, "pad_amount": np.array(amounts, np.uint32), "pad_constant_value": 0}
            made = self.emit("Pad", [image], params, own_scale=False)
        elif kind == "join":
            beside = [other for other in self.images if other.dims[:3] == image.dims[:3]]
            made = self.emit("Concat", [image, beside[self.pick(0, len(beside))]], {"axis": 3})
        elif kind == "transposed":
            size = int(rng.choice([2, 3, 4]))
            params = {"stride": [2, 2], "pad_amount": rng.integers(0, size - 1, (2, 2)).astype(np.uint32)}
            weights = self.weights(size, size, channels, 4 * self.pick(1, 5))
            made = self.emit("TransposeConv2d", [image, weights], params)
        elif kind == "gate":
            mean = self.emit("ReduceMean", [image], {"axes": [1, 2], "keep_dims": True})
            made = self.emit("ElementWiseMultiply", [image, self.emit("Sigmoid", [mean])])
        elif kind == "blocks":
            made = self.emit("DepthToSpace", [image], {"block_size": [2, 2]}, own_scale=False)
        else:
            ranges = [[0, 1, 1], [0, height, 1], [0, width, 1], [0, max(4, channels // 2), 1]]
            made = self.emit("StridedSlice", [image], {"ranges": np.array(ranges)}, own_scale=False)
        if max(made.dims[1:3]) >= 2 and made.elements <= _MOST_ELEMENTS:
            self.images.append(made)


def network(seed: int) -> Graph | None:
    """The network of a seed, of bytes where that is odd; None where nothing came of it."""
    rng = np.random.default_rng(seed)
    builder = _Builder(rng, seed % 2 == 1)
    for _ in range(builder.pick(3, 11)):
        try:
            builder.add(str(rng.choice(_KINDS)))
        except QnnError:
            continue  # an operation that the image is too small for
    last, graph = builder.images[-1], builder.graph
    if last is builder.images[0]:
        return None
    result = graph.create_tensor("y", TensorType.APP_READ, last.dtype, last.dims, last.quantization)
    graph.add_node("end", "Reshape", [last], [result])
    graph.finalize()
    return graph


def squeezed(bytes_: bool) -> Graph:
    """A small network whose strips are repeated, keep rows, and add up a mean."""
    builder = _Builder(np.random.default_rng(3), bytes_)
    source = builder.images[0]
    graph = builder.graph = Graph("squeezed")
    image = graph.create_tensor("x", TensorType.APP_WRITE, source.dtype, (1, 128, 8, 4), source.quantization)
    window = {"stride": [1, 1], "pad_amount": np.ones((2, 2), np.uint32)}
    for _ in range(2):
        image = builder.emit("Conv2d", [image, builder.weights(1, 1, image.dims[3], 32)], window | {
            "pad_amount": np.zeros((2, 2), np.uint32)})  # fmt: skip
        image = builder.emit("DepthWiseConv2d", [image, builder.weights(3, 3, 1, 32)], window)
        image = builder.emit("Relu", [image])
    mean = builder.emit("ReduceMean", [image], {"axes": [1, 2], "keep_dims": True})
    result = graph.create_tensor("y", TensorType.APP_READ, mean.dtype, mean.dims, mean.quantization)
    graph.add_node("end", "Reshape", [mean], [result])
    graph.finalize()
    return graph


def chain(layers: int) -> Graph:
    """Convolutions in a row, by turns wide and narrow."""
    rng, graph = np.random.default_rng(0), Graph("chain")
    image = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 64, 16, 4))
    window = {"stride": [1, 1], "pad_amount": np.ones((2, 2), np.uint32)}
    for layer in range(layers):
        values = rng.normal(0, 0.1, (3, 3, image.dims[3], 4 if layer % 2 else 16)).astype(np.float32)
        [image] = graph.emit("Conv2d", [image, graph.constant(graph.fresh("w"), values)], window)
    result = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, image.dims)
    graph.add_node("end", "Relu", [image], [result])
    graph.finalize()
    return graph


def narrowed(width: int, pads: tuple[int, int]) -> Graph:
    """A low, wide image, made wider by channels, narrowed by a window, and scaled: strips go along its columns."""
    rng, graph = np.random.default_rng(0), Graph("narrowed")
    still = np.zeros((2, 2), np.uint32)

    def convolved(source: Tensor, channels: int) -> Tensor:
        weights = graph.constant(graph.fresh("w"), rng.normal(0, 0.2, (1, 1, source.dims[3], channels)).astype("f4"))
        return graph.emit("Conv2d", [source, weights], {"stride": [1, 1], "pad_amount": still})[0]

    def scaled(source: Tensor) -> Tensor:
        [largest] = graph.emit("ReduceMax", [source], {"axes": [1, 2], "keep_dims": True})
        return graph.emit("ElementWiseMultiply", [source, largest])[0]

    image = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 4, 64, 4))
    wide = convolved(scaled(convolved(image, 16)), 96)
    weights = graph.constant("window", rng.normal(0, 0.2, (1, width, 1, 96)).astype("f4"))
    pad_amount = np.array([[0, 0], pads], np.uint32)
    [wide] = graph.emit("DepthWiseConv2d", [wide, weights], {"stride": [1, 1], "pad_amount": pad_amount})
    last = convolved(scaled(convolved(wide, 16)), 4)
    result = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, last.dims)
    graph.add_node("end", "Relu", [last], [result])
    graph.finalize()
    return graph
