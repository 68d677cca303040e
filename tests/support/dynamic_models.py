"""ONNX models whose shapes are known only at run time: a detector of boxes and a detector of text, for any picture."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


class Builder:
    """Nodes and weights of a model under construction; results are named by number."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._rng = np.random.default_rng(seed)

    def add(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node and return the name of its result, or the names if there are several."""
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, dtype: type = np.int64) -> str:
        """Add a constant."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def conv(self, x: str, ins: int, outs: int, size: int = 3, stride: int = 1) -> str:
        """Add a convolution with random weights."""
        taps = self._rng.standard_normal((outs, ins, size, size)) / np.sqrt(ins * size * size)
        bias = self.constant(self._rng.standard_normal(outs) * 0.1, np.float32)
        pads = [size // 2] * 4
        return self.add("Conv", x, self.constant(taps, np.float32), bias, strides=[stride] * 2, pads=pads)

    def model(self, inputs: list[Any], outputs: list[Any]) -> ModelProto:
        """Return the model."""
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _tensor(name: str, kind: int, *dims: int | str) -> Any:
    return helper.make_tensor_value_info(name, kind, dims)


def box_detector() -> ModelProto:
    """Return a detector: a backbone, a grid of boxes over its cells, NonMaxSuppression, and the selected boxes.

    The picture has any height and width that are multiples of 8.
    """
    b = Builder(7)
    x = b.add("Relu", b.conv("picture", 3, 8, stride=2))
    x = b.add("Relu", b.conv(x, 8, 16, stride=2))
    x = b.add("Relu", b.conv(x, 16, 16, stride=2))
    head = b.conv(x, 16, 4 + 2, size=1)
    # Cells as rows: [1, cells, 6].
    rows = b.add("Reshape", b.add("Transpose", head, perm=[0, 2, 3, 1]), b.constant([0, -1, 6]))
    offsets, scores = b.add("Split", rows, b.constant([4, 2]), outputs=2, axis=2)
    # The centre of each cell, from the shape of the head.
    shape = b.add("Shape", head)
    height, width = (b.add("Gather", shape, b.constant(axis)) for axis in (2, 3))
    zero, one = b.constant(0), b.constant(1)
    axes = [b.add("Cast", b.add("Range", zero, size, one), to=FLOAT) for size in (height, width)]
    size = b.add("Concat", *(b.add("Unsqueeze", each, b.constant([0])) for each in (height, width)), axis=0)
    down = b.add("Expand", b.add("Unsqueeze", axes[0], b.constant([1])), size)
    along = b.add("Expand", b.add("Unsqueeze", axes[1], b.constant([0])), size)
    grid = b.add("Concat", *(b.add("Unsqueeze", e, b.constant([2])) for e in (down, along)), axis=2)
    centres = b.add("Reshape", grid, b.constant([1, -1, 2]))
    low, high = b.add("Split", b.add("Sigmoid", offsets), b.constant([2, 2]), outputs=2, axis=2)
    boxes = b.add("Concat", b.add("Sub", centres, low), b.add("Add", centres, high), axis=2)
    chances = b.add("Transpose", b.add("Sigmoid", scores), perm=[0, 2, 1])
    most, overlap, least = b.constant(5), b.constant(0.3, np.float32), b.constant(0.5, np.float32)
    chosen = b.add("NonMaxSuppression", boxes, chances, most, overlap, least)
    index = b.add("Gather", chosen, b.constant(2), axis=1)
    kind = b.add("Gather", chosen, b.constant(1), axis=1)
    b.nodes.append(helper.make_node("Gather", [b.add("Squeeze", boxes, b.constant([0])), index], ["boxes"], axis=0))
    pairs = b.add("Concat", *(b.add("Unsqueeze", e, b.constant([1])) for e in (kind, index)), axis=1)
    b.nodes.append(helper.make_node("GatherND", [b.add("Squeeze", chances, b.constant([0])), pairs], ["scores"]))
    b.nodes.append(helper.make_node("Identity", [kind], ["classes"]))
    b.nodes.append(helper.make_node("Shape", [chosen], ["count"], start=0, end=1))
    return b.model(
        [_tensor("picture", FLOAT, 1, 3, "height", "width")],
        [_tensor("boxes", FLOAT, "n", 4), _tensor("scores", FLOAT, "n"), _tensor("classes", INT64, "n"),
         _tensor("count", INT64, 1)],
    )  # fmt: skip


def text_detector() -> ModelProto:
    """Return a detector of text: features at two scales, the smaller resized to the larger one's size, and a map.

    The picture has any height and width; the map has the same.
    """
    b = Builder(8)
    fine = b.add("Relu", b.conv("picture", 3, 8, stride=2))
    coarse = b.add("HardSwish", b.conv(fine, 8, 16, stride=2))
    top = b.conv(coarse, 16, 8, size=1)

    def sized(x: str, like: str, mode: str) -> str:
        """Resize to the height and width of another value."""
        shape = b.add("Shape", like)
        size = b.add("Slice", shape, b.constant([2]), b.constant([4]), b.constant([0]))
        first = b.add("Slice", b.add("Shape", x), b.constant([0]), b.constant([2]), b.constant([0]))
        sizes = b.add("Concat", first, b.add("Cast", size, to=INT64), axis=0)
        return str(b.add("Resize", x, "", "", sizes, mode=mode, coordinate_transformation_mode="half_pixel"))

    merged = b.add("Add", sized(top, fine, "nearest"), b.conv(fine, 8, 8, size=1))
    joined = b.add("Concat", merged, sized(top, merged, "linear"), axis=1)
    head = b.conv(b.add("Relu", b.conv(joined, 16, 8)), 8, 1, size=1)
    b.nodes.append(helper.make_node("Sigmoid", [sized(head, "picture", "linear")], ["map"]))
    return b.model(
        [_tensor("picture", FLOAT, 1, 3, "height", "width")], [_tensor("map", FLOAT, 1, 1, "height", "width")]
    )
