"""Random small networks, made of what tiles know and of what stops them, and some that are made for a purpose."""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.errors import QnnError
from isthmus.graph import DataType, Graph, Quantization, Tensor, TensorType

_KINDS = (
    "conv", "conv", "point", "point", "depthwise", "depthwise", "depthwise", "grouped", "max", "average", "add", "add",
    "multiply", "function", "resized", "resized", "pad", "mirrored", "join", "join", "stack", "transposed", "gate",
    "less_mean", "largest", "prelu", "softmax", "over_rows", "blocks", "cells", "part", "every_second", "split",
    "by_rows", "other_shape",
)  # fmt: skip
PARTS = (
    "split", "split", "split", "stack", "stack", "join", "less_mean", "less_mean", "mean", "mean", "conv", "point",
    "depthwise", "function", "resized", "part", "every_second", "other_shape", "add", "max", "pad",
)  # fmt: skip
"""Kinds of operations for networks whose tensors are mostly parts of others, joined in another order."""
_FLOATS = frozenset(("norm", "turned"))
"""What is computed with floats alone."""
_MAX_ELEMENTS = 60_000
_STILL = np.zeros((2, 2), np.uint32)
_PLAIN = {"stride": [1, 1], "pad_amount": _STILL}


class _Builder:
    """A network under construction; all its tensors are images."""

    def __init__(self, rng: np.random.Generator, bytes_: bool) -> None:
        self.rng, self.bytes = rng, bytes_
        self.unsigned = bytes_ and self.pick(0, 3) == 0
        self.graph = Graph("random")
        height, width = self.pick(8, 33), self.pick(3, 17)
        if self.pick(0, 3) == 0:
            height, width = self.pick(2, 8), self.pick(16, 65)
        dims = (1, height, width, 4 * self.pick(1, 7))
        self.images = [self.source("x", dims)]
        if self.pick(0, 4) == 0:
            self.images.insert(0, self.source("z", dims))

    def source(self, name: str, dims: tuple[int, ...]) -> Tensor:
        """An input of the network."""
        fixed = DataType.UFIXED_POINT_8 if self.unsigned else DataType.SFIXED_POINT_8
        dtype = fixed if self.bytes else DataType.FLOAT_32
        return self.graph.create_tensor(name, TensorType.APP_WRITE, dtype, dims, self.quantization())

    # -- numbers and constants -----------------------------------------------------------------------------------------

    def pick(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high))

    def any_of(self, *values: Any) -> Any:
        return values[self.pick(0, len(values))]

    def quantization(self) -> Quantization | None:
        if not self.bytes:
            return None
        zero = self.any_of(-128, -20, -3, 0, 7, 20, 127) + (128 if self.unsigned else 0)
        return Quantization.per_tensor(float(self.rng.uniform(0.02, 0.1)), zero)

    def weights(self, *dims: int) -> Tensor:
        name = self.graph.fresh("w")
        if self.bytes:
            values = self.rng.integers(-127, 128, dims).astype(np.int8)
            quantization = Quantization.per_tensor(0.01, 0)
            if len(dims) == 4 and self.pick(0, 2):
                scales = self.rng.uniform(0.005, 0.02, dims[3]).astype(np.float32)
                quantization = Quantization.per_channel(scales, np.zeros(dims[3], np.int64), 3)
            return self.graph.constant(name, values, quantization=quantization)
        return self.graph.constant(name, self.rng.normal(0, 0.3, dims).astype(np.float32))

    def values(self, *dims: int) -> Tensor:
        """A constant beside an image."""
        name = self.graph.fresh("c")
        if not self.bytes:
            return self.graph.constant(name, self.rng.normal(0, 0.3, dims).astype(np.float32))
        stored = self.rng.integers(0, 256, dims).astype(np.uint8)
        stored = stored if self.unsigned else stored.view(np.int8)
        return self.graph.constant(name, stored, quantization=self.quantization())

    def emit(
        self, op: str, inputs: list[Tensor], params: dict[str, Any] | None = None, own_scale: bool = True, **more: Any
    ) -> Tensor:
        if self.bytes and own_scale:
            more["quantizations"] = [self.quantization()]
        return self.graph.emit(op, inputs, params, **more)[0]

    def grow(self, kind: str) -> None:
        """One operation more on the last image, if it takes it."""
        made = getattr(self, kind)(self.images[-1])
        if max(made.dims[1:3]) >= 2 and 0 < made.elements <= _MAX_ELEMENTS:
            self.images.append(made)

    # -- windows -------------------------------------------------------------------------------------------------------

    def window(self, kernel: list[int], dilated: bool = True) -> dict[str, Any]:
        """Strides and padding for a filter, of one direction only at times."""
        stride = self.any_of([1, 1], [1, 1], [2, 2], [3, 3], [1, 2], [2, 1])
        dilation = self.any_of([1, 1], [2, 2], [1, 2], [2, 1]) if dilated else [1, 1]
        pads = [self.rng.integers(0, max(1, (k - 1) * d + 1), 2) for k, d in zip(kernel, dilation, strict=True)]
        found = {"stride": stride, "pad_amount": np.array(pads, np.uint32)}
        return found | {"dilation": dilation} if dilated else found

    def kernel(self) -> list[int]:
        return self.any_of([1, 1], [2, 2], [3, 3], [3, 3], [5, 5], [1, 3], [1, 5], [3, 1], [4, 2])

    def conv(self, image: Tensor) -> Tensor:
        kernel = self.kernel()
        return self.emit(
            "Conv2d", [image, self.weights(*kernel, image.dims[3], 4 * self.pick(1, 6))], self.window(kernel)
        )

    def point(self, image: Tensor) -> Tensor:
        return self.emit("Conv2d", [image, self.weights(1, 1, image.dims[3], 4 * self.pick(1, 13))], _PLAIN)

    def depthwise(self, image: Tensor) -> Tensor:
        kernel = self.kernel()
        return self.emit("DepthWiseConv2d", [image, self.weights(*kernel, 1, image.dims[3])], self.window(kernel))

    def grouped(self, image: Tensor) -> Tensor:
        kernel, groups = self.kernel(), self.any_of(2, 4)
        weights = self.weights(*kernel, image.dims[3] // groups, 4 * groups * self.pick(1, 3))
        return self.emit("Conv2d", [image, weights], self.window(kernel) | {"group": groups})

    def transposed(self, image: Tensor) -> Tensor:
        kernel, stride = (
            self.any_of([2, 2], [3, 3], [4, 4], [1, 3], [3, 2]),
            self.any_of([2, 2], [1, 2], [2, 1], [3, 2]),
        )
        pads = [self.rng.integers(0, max(1, k - 1), 2) for k in kernel]
        more = [self.pick(0, s) for s in stride]
        params = {"stride": stride, "pad_amount": np.array(pads, np.uint32), "output_padding": more}
        return self.emit("TransposeConv2d", [image, self.weights(*kernel, image.dims[3], 4 * self.pick(1, 5))], params)

    def pooled(self, image: Tensor) -> dict[str, Any]:
        kernel = self.kernel()
        window = self.window(kernel, dilated=False) | {"filter_size": kernel, "rounding_mode": self.pick(0, 2)}
        return window | {"pad_amount": np.minimum(window["pad_amount"], np.array(kernel)[:, None] - 1)}

    def max(self, image: Tensor) -> Tensor:
        return self.emit("PoolMax2d", [image], self.pooled(image), own_scale=False)

    def average(self, image: Tensor) -> Tensor:
        params = self.pooled(image) | {"count_pad_for_edges": bool(self.pick(0, 2))}
        return self.emit("PoolAvg2d", [image], params)

    def cells(self, image: Tensor) -> Tensor:
        cell = [min(image.dims[1], self.pick(1, 7)), min(image.dims[2], self.pick(1, 4))]
        return self.emit("PoolAvg2d", [image], {"filter_size": cell, "stride": cell, "pad_amount": _STILL})

    # -- element by element --------------------------------------------------------------------------------------------

    def beside(self, image: Tensor) -> Tensor:
        """An image of the same shape, whatever it was made of."""
        return self.any_of(*(other for other in self.images if other.dims == image.dims))

    def add(self, image: Tensor) -> Tensor:
        return self.emit("ElementWiseAdd", [image, self.beside(image)])

    def multiply(self, image: Tensor) -> Tensor:
        return self.emit("ElementWiseMultiply", [image, self.beside(image)])

    def function(self, image: Tensor) -> Tensor:
        return self.emit(self.any_of("HardSwish", "Sigmoid", "Relu", "Tanh", "Elu"), [image])

    def prelu(self, image: Tensor) -> Tensor:
        return self.emit("Prelu", [image, self.weights(1, 1, image.dims[3])])

    def by_rows(self, image: Tensor) -> Tensor:
        """A constant that has rows or columns of its own, or all of them."""
        _, height, width, channels = image.dims
        shape = self.any_of((1, height, 1, 1), (1, 1, width, 1), (1, height, width, 1), image.dims, (channels,))
        return self.emit(self.any_of("ElementWiseAdd", "ElementWiseMultiply"), [image, self.values(*shape)])

    def norm(self, image: Tensor) -> Tensor:
        scale = self.values(image.dims[3])
        return self.emit("LayerNorm", [image, scale, self.values(image.dims[3])], {"axes": [3]})

    # -- what brings rows together -------------------------------------------------------------------------------------

    def gate(self, image: Tensor) -> Tensor:
        mean = self.emit("ReduceMean", [image], {"axes": [1, 2], "keep_dims": True})
        return self.emit("ElementWiseMultiply", [image, self.emit("Sigmoid", [mean])])

    def less_mean(self, image: Tensor) -> Tensor:
        axes = self.any_of([1, 2], [1], [2], [1, 2, 3])
        return self.emit(
            "ElementWiseSubtract", [image, self.emit("ReduceMean", [image], {"axes": axes, "keep_dims": True})]
        )

    def mean(self, image: Tensor) -> Tensor:
        return self.emit("ReduceMean", [image], {"axes": self.any_of([1], [2], [3]), "keep_dims": True})

    def largest(self, image: Tensor) -> Tensor:
        most = self.emit(
            "ReduceMax", [image], {"axes": self.any_of([1, 2], [1], [2]), "keep_dims": True}, own_scale=False
        )
        return self.emit("ElementWiseMultiply", [image, most])

    def softmax(self, image: Tensor) -> Tensor:
        return self.emit("Softmax", [image], {"axis": 3})

    def over_rows(self, image: Tensor) -> Tensor:
        turned, back = self.any_of(([0, 3, 2, 1], [0, 3, 2, 1]), ([0, 1, 3, 2], [0, 1, 3, 2]))
        lines = self.emit("Softmax", [self.emit("Transpose", [image], {"perm": turned}, own_scale=False)], {"axis": 3})
        return self.emit("Transpose", [lines], {"perm": back}, own_scale=False)

    # -- movement ------------------------------------------------------------------------------------------------------

    def resized(self, image: Tensor) -> Tensor:
        _, height, width, channels = image.dims
        tall, wide = self.any_of((2, 2), (2, 2), (3, 3), (1, 2), (2, 1), (0.5, 0.5), (1.5, 1.5), (0.7, 1.3))
        dims = [(1, max(1, int(height * tall)), max(1, int(width * wide)), channels)]
        if not self.bytes and self.pick(0, 3) == 0:
            params = {"transformation_mode": self.pick(0, 4), "interpolation_mode": self.pick(0, 3)}
            return self.emit("Resize", [image], params, dims=dims, own_scale=False)
        corners = bool(self.pick(0, 2))
        params = {"align_corners": corners, "half_pixel_centers": not corners and bool(self.pick(0, 2))}
        op = self.any_of("ResizeBilinear", "ResizeNearestNeighbor")
        return self.emit(op, [image], params, dims=dims, own_scale=False)

    def pad(self, image: Tensor) -> Tensor:
        amounts = [[0, 0], self.rng.integers(0, 3, 2), self.rng.integers(0, 3, 2), [0, 4 * self.pick(0, 2)]]
        params = {"scheme": 0, "pad_amount": np.array(amounts, np.uint32), "pad_constant_value": self.pick(0, 2)}
        return self.emit("Pad", [image], params, own_scale=False)

    def mirrored(self, image: Tensor) -> Tensor:
        rows, columns = self.any_of((0, 2), (2, 0), (2, 2))
        amounts = [[0, 0], [min(rows, 1), rows], [columns, min(columns, 1)], [0, 0]]
        params = {"scheme": self.pick(1, 4), "pad_amount": np.array(amounts, np.uint32)}
        return self.emit("Pad", [image], params, own_scale=False)

    def join(self, image: Tensor) -> Tensor:
        beside = self.any_of(*(other for other in self.images if other.dims[:3] == image.dims[:3]))
        parts = [image, beside] if self.pick(0, 4) else [image, self.values(*image.dims[:3], 4), beside]
        return self.emit("Concat", parts, {"axis": 3})

    def stack(self, image: Tensor) -> Tensor:
        axis = self.any_of(1, 2)
        other = self.beside(image)
        parts = [image, other] if self.pick(0, 2) else [other, image]
        return self.emit("Concat", parts, {"axis": axis})

    def blocks(self, image: Tensor) -> Tensor:
        block = self.any_of([2, 2], [1, 2], [2, 1])
        return self.emit(self.any_of("DepthToSpace", "SpaceToDepth"), [image], {"block_size": block}, own_scale=False)

    def part(self, image: Tensor) -> Tensor:
        _, height, width, channels = image.dims
        ranges = [[0, 1, 1], [0, height, 1], [0, width, 1], [0, max(4, channels // 2), 1]]
        return self.emit("StridedSlice", [image], {"ranges": np.array(ranges)}, own_scale=False)

    def every_second(self, image: Tensor) -> Tensor:
        ranges = [[0, size, 1] for size in image.dims]
        axis = self.any_of(1, 2, 3)
        size = image.dims[axis]
        ranges[axis] = self.any_of([size % 2, size, 2], [min(1, size - 1), size, 1], [0, size - size % 3, 3])
        return self.emit("StridedSlice", [image], {"ranges": np.array(ranges)}, own_scale=False)

    def split(self, image: Tensor) -> Tensor:
        """Two results of one step, of which both are read later."""
        axis = self.any_of(3, 3, 1, 2)
        at = image.dims[axis] // 2
        parts = self.graph.emit("Split", [image], {"axis": axis, "split_index": [at]})
        self.images.append(parts[0])
        return parts[1]

    def other_shape(self, image: Tensor) -> Tensor:
        """The same bytes in rows of another shape."""
        _, height, width, channels = image.dims
        dims = self.any_of(
            (1, height, width * 2, channels // 2), (1, height * 2, width, channels // 2), (1, width, height, channels)
        )
        return self.emit("Reshape", [image], dims=[dims], own_scale=False)

    def turned(self, image: Tensor) -> Tensor:
        return self.emit("Transpose", [image], {"perm": [0, 2, 1, 3]}, own_scale=False)

    # -- the same size -------------------------------------------------------------------------------------------------

    def widened(self, image: Tensor) -> Tensor:
        """An image with many channels in between: what a limit on scratch divides into tiles."""
        window = {"stride": [1, 1], "pad_amount": np.ones((2, 2), np.uint32)}
        wide = self.emit("Conv2d", [image, self.weights(1, 1, image.dims[3], 48)], _PLAIN)
        wide = self.emit("DepthWiseConv2d", [wide, self.weights(3, 3, 1, 48)], window)
        return self.emit("Conv2d", [wide, self.weights(1, 1, 48, image.dims[3])], _PLAIN)

    def same_window(self, image: Tensor) -> Tensor:
        window = {"stride": [1, 1], "pad_amount": np.ones((2, 2), np.uint32)}
        if self.pick(0, 2):
            return self.emit("PoolMax2d", [image], window | {"filter_size": [3, 3]}, own_scale=False)
        return self.emit("Conv2d", [image, self.weights(3, 3, image.dims[3], image.dims[3])], window)

    def reversed(self, image: Tensor) -> Tensor:
        return self.emit("Reverse", [image], {"axes": [self.pick(1, 4)]}, own_scale=False)

    def exchanged(self, image: Tensor) -> Tensor:
        """The two halves of an image in the other order."""
        axis = self.any_of(1, 2, 3)
        first, second = self.graph.emit("Split", [image], {"axis": axis, "split_index": [image.dims[axis] // 2]})
        return self.emit("Concat", [second, first], {"axis": axis}, own_scale=False)

    def scattered(self, image: Tensor) -> Tensor:
        """An image with some elements of another image, which may be itself."""
        _, height, width, channels = image.dims
        updates = self.beside(image)
        rows = self.graph.constant(self.graph.fresh("i"), self.rng.integers(0, height, (1, height, 1)).astype(np.int32))
        if self.pick(0, 2):
            flat = [self.emit("Reshape", [t], dims=[(height, width * channels)], own_scale=False)
                    for t in (image, updates)]  # fmt: skip
            index = self.graph.constant(self.graph.fresh("i"), rows.data.reshape(height, 1))
            made = self.emit("ScatterNd", [flat[0], index, flat[1]], own_scale=False)
            return self.emit("Reshape", [made], dims=[image.dims], own_scale=False)
        chosen = self.graph.constant(
            self.graph.fresh("i"), np.broadcast_to(rows.data[..., None], image.dims).astype(np.int32)
        )
        return self.emit("ScatterElements", [image, chosen, updates], {"axis": 1}, own_scale=False)


_SAME_SIZE = (
    "add", "add", "multiply", "function", "prelu", "by_rows", "softmax", "over_rows", "less_mean", "gate", "largest",
    "widened", "widened", "same_window", "same_window", "reversed", "exchanged", "scattered", "scattered",
    "other_shape",
)  # fmt: skip


def of_one_size(seed: int) -> Graph:
    """Build a network of a seed, of bytes where that is odd, whose inputs and outputs all have the same size.

    Operations read any earlier image, inputs included, so that inputs are read late and outputs are written early.
    """
    builder = _Builder(np.random.default_rng([seed, 1]), seed % 2 == 1)
    first = builder.images[0]
    builder.images = [first, *(builder.source(f"x{i}", first.dims) for i in range(builder.pick(0, 3)))]
    builder.images = list(dict.fromkeys((*builder.graph.inputs, *builder.images)))
    for _ in range(builder.pick(1, 9)):
        image = builder.any_of(*builder.images)
        try:
            made = getattr(builder, builder.any_of(*_SAME_SIZE))(image)
        except QnnError:
            continue  # an operation that the image is too small for
        builder.images.append(made)
    graph = builder.graph
    for number in range(builder.pick(1, len(graph.inputs) + 1)):
        image = builder.images[-1] if not number else builder.any_of(*builder.images)
        result = graph.create_tensor(f"y{number}", TensorType.APP_READ, image.dtype, first.dims, image.quantization)
        graph.add_node(f"end y{number}", "Reshape", [image], [result])
    graph.finalize()
    return graph


def network(seed: int, kinds: tuple[str, ...] = _KINDS) -> Graph | None:
    """Build the network of a seed, of bytes where that is odd; None where nothing came of it."""
    rng = np.random.default_rng(seed)
    builder = _Builder(rng, seed % 2 == 1)
    kinds = kinds if builder.bytes else (*kinds, *sorted(_FLOATS))
    for _ in range(builder.pick(3, 13)):
        try:
            builder.grow(builder.any_of(*kinds))
        except QnnError:
            continue  # an operation that the image is too small for
    last, graph = builder.images[-1], builder.graph
    made = [image for image in builder.images if image.type is TensorType.NATIVE]
    if not made:
        return None
    for number, image in enumerate(dict.fromkeys((last, *rng.choice(np.array(made, object), builder.pick(0, 3))))):
        name = "y" if not number else f"y{number}"
        result = graph.create_tensor(name, TensorType.APP_READ, image.dtype, image.dims, image.quantization)
        graph.add_node(f"end {name}", "Reshape", [image], [result])
    graph.finalize()
    return graph


def squeezed(bytes_: bool) -> Graph:
    """A small network whose tiles are repeated, keep rows, and add up a mean."""
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


def parted(order: tuple[int, ...]) -> Graph:
    """An image in two parts that are joined in some order, and the mean of the columns: tiles go over a part."""
    graph = Graph("parted")
    image = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 17, 35, 4))
    parts = graph.emit("Split", [image], {"axis": 2, "split_index": [10]})
    [joined] = graph.emit("Concat", [parts[number] for number in order], {"axis": 2})
    result = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 17, 1, 4))
    graph.add_node("mean", "ReduceMean", [joined], [result], {"axes": [2], "keep_dims": True})
    graph.finalize()
    return graph


def resized_in_one_direction(size: tuple[int, int], resized: tuple[int, int], bytes_: bool) -> Graph:
    """An image made wide by channels, resized, and made narrow again."""
    builder = _Builder(np.random.default_rng(1), bytes_)
    graph = builder.graph = Graph("resized")
    image = builder.source("x", (1, *size, 4))
    image = builder.emit("Conv2d", [image, builder.weights(1, 1, 4, 32)], _PLAIN)
    image = builder.emit("ResizeBilinear", [image], dims=[(1, *resized, 32)], own_scale=False)
    image = builder.emit("Conv2d", [image, builder.weights(1, 1, 32, 4)], _PLAIN)
    result = graph.create_tensor("y", TensorType.APP_READ, image.dtype, image.dims, image.quantization)
    graph.add_node("end", "Reshape", [image], [result])
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


def branching() -> Graph:
    """Two convolutions of one image, added up at the end."""
    rng, graph = np.random.default_rng(0), Graph("branching")
    image = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 32, 32, 16))

    def convolved(source: Tensor) -> Tensor:
        weights = graph.constant(graph.fresh("w"), rng.normal(0, 0.2, (1, 1, 16, 16)).astype(np.float32))
        return graph.emit("Conv2d", [source, weights], {"stride": [1, 1], "pad_amount": np.zeros((2, 2), np.uint32)})[0]

    stem = convolved(image)
    result = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, image.dims)
    graph.add_node("end", "ElementWiseAdd", [convolved(stem), convolved(stem)], [result])
    graph.finalize()
    return graph


def narrowed(width: int, pads: tuple[int, int]) -> Graph:
    """A low, wide image, made wider by channels, narrowed by a window, and scaled: tiles go along its columns."""
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
