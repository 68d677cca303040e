"""Rules for ONNX nodes that can be computed by rows (axis 2 of N, C, H, W), and the changes this needs in a node.

Only nodes that give the same bits in ONNX Runtime are supported. Padding becomes explicit and stays at the edges of the
image. Convolutions that add many products get enough pixels at a time, because ONNX Runtime's matrix products choose
their summation blocks by the number of pixels of a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from isthmus.graph.ops.elementwise import FUNCTIONS
from isthmus.graph.rows import RowRule, Rows, enlarged_rows, reduced_rows, same_rows, window_rows
from isthmus.split.network import Key, TileRule
from isthmus.split.rules import Operands

ROW_AXIS = 2
BLOCK = 128
"""The number of products that are added in one block for any number of pixels."""
PIXELS = 4 * (64 + 3 * 16) + 1
"""The minimum number of pixels at a time for longer sums. Their blocks do not depend on the number of pixels if each
thread has more than 64. Up to four threads share the pixels, and all but the last round their share up to 16.
"""

Attributes = dict[str, list[int] | None]
"""New values of a node's attributes by name; None removes one."""


@dataclass(frozen=True)
class NodeRule(TileRule):
    """A rule for computing a node by rows.

    - `attributes`: a function that returns the attributes that change for some rows of the result and of the operands;
      None removes one.
    - `constants`: a function of the same rows that returns the operands, by number, that are replaced by other lists of
      numbers.
    """

    attributes: Callable[[Rows, Rows], Attributes] = lambda rows, source: {}
    constants: Callable[[Rows, Rows], dict[int, list[int]]] = lambda rows, source: {}


@dataclass(frozen=True)
class NodeFacts(Operands):
    """A node with its operands.

    - `op`: the operator, with its domain before a colon if that is not ONNX's own.
    - `attributes`: the attributes by name; text as bytes.
    - `is_float`: whether the elements of the first operand have more than one byte.
    """

    op: str
    attributes: Mapping[str, Any]
    is_float: bool

    def ints(self, name: str, default: list[int]) -> list[int]:
        """Return an attribute of integers."""
        return [int(v) for v in self.attributes.get(name) or default]


def node_rule(facts: NodeFacts) -> NodeRule | None:
    """Return how a node is computed by rows; None if it stays whole."""
    rule = _RULES.get(facts.op)
    if rule is None or len(facts.result) != 4 or facts.result[0] != 1 or facts.rows < 2:
        return None
    return rule(facts)


def _same(facts: NodeFacts, sliced: tuple[Key, ...] | None) -> NodeRule | None:
    """Return the rule of a node whose rows need the same rows of these operands; None without operands."""
    return None if sliced is None else NodeRule(sliced, same_rows(facts.rows))


def _of_channels(facts: NodeFacts) -> NodeRule | None:
    """Return the rule of a node with one image, whose other operands are constants without rows."""
    # A quantization with a scale for each row stays whole: its scales would have to be sliced too.
    axis = int(facts.attributes.get("axis", 1))
    per_axis = len(facts.dims) > 1 and prod(facts.dims[1]) > 1
    of_rows = facts.op.endswith("Linear") and per_axis and axis % 4 == ROW_AXIS
    if of_rows or not facts.is_one_image:
        return None
    return NodeRule(facts.first(), same_rows(facts.rows), recomputed=facts.op == "DequantizeLinear")


def _softmax(facts: NodeFacts) -> NodeRule | None:
    """Return the rule of a softmax within each row."""
    along_columns = int(facts.attributes.get("axis", -1)) % 4 == 3
    return _same(facts, facts.first() if facts.is_image() and along_columns else None)


def _windows(facts: NodeFacts, kernel: list[int], fewest: int) -> NodeRule | None:
    """Return the rule of a convolution or pooling, computed at least `fewest` rows at a time."""
    # A tile at the edge of the image pads that edge; all others pad only columns.
    if not facts.is_one_image or facts.attributes.get("ceil_mode"):
        return None
    strides, dilations = (facts.ints(name, [1, 1]) for name in ("strides", "dilations"))
    pads, auto = [0, 0, 0, 0], facts.attributes.get("auto_pad", b"NOTSET")
    if auto in (b"NOTSET", b""):
        pads = facts.ints("pads", pads)
    elif auto != b"VALID":
        totals = facts.same_padding(kernel, strides, dilations)
        less, more = [n // 2 for n in totals], [n - n // 2 for n in totals]
        pads = [*less, *more] if auto == b"SAME_UPPER" else [*more, *less]
    top, left, bottom, right = pads
    rows = window_rows(facts.height, kernel[0], strides[0], dilations[0], top, bottom)

    def attributes(tile: Rows, source: Rows) -> Attributes:
        """Return the padding of a tile: rows above and below only where it reaches the edges of the image."""
        above, below = rows.edges(tile, source)
        return {"pads": [above, left, below, right], "auto_pad": None}

    return NodeRule(facts.first(), rows, fewest, attributes=attributes)


def _convolution(weights: int) -> Callable[[NodeFacts], NodeRule | None]:
    """Make the rule function of convolutions whose weights are operand number `weights`."""

    def rule(facts: NodeFacts) -> NodeRule | None:
        dims = facts.dims[weights]
        return _windows(facts, list(dims[2:]), _fewest(facts, prod(dims[1:]), facts.result[3]))

    return rule


def _fewest(facts: NodeFacts, products: int, width: int) -> int:
    """Return the minimum number of rows, `width` pixels each, of a convolution that adds `products` products."""
    # A tile of floats has at least two pixels, and enough for sums that are added in several blocks; see `PIXELS`.
    if not facts.is_float:
        return 1
    return -(-(PIXELS if products > BLOCK else 2) // width)


def _pool(facts: NodeFacts) -> NodeRule | None:
    """Return the rule of a pooling, which may be computed any number of rows at a time."""
    return _windows(facts, facts.ints("kernel_shape", [1, 1]), 1)


def _transposed_convolution(facts: NodeFacts) -> NodeRule | None:
    """Return the rule of a transposed convolution whose rows do not overlap."""
    if not facts.is_one_image:
        return None
    weights, stride = facts.dims[1], facts.ints("strides", [1, 1])[0]
    plain = weights[2] == stride == facts.times and "output_shape" not in facts.attributes
    if not plain or facts.attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return None
    if any(facts.ints("pads", [0] * 4)[::2]) or any(facts.ints("output_padding", [0])):
        return None
    fewest = stride * _fewest(facts, weights[0], facts.dims[0][3])
    return NodeRule(facts.first(), enlarged_rows(facts.height, stride), fewest)


def _enlarge(facts: NodeFacts) -> NodeRule | None:
    """Return the rule of rows that are repeated an integer number of times."""
    if not facts.is_image() or facts.times is None or facts.attributes.get("mode", b"nearest") != b"nearest":
        return None
    if facts.op == "Resize":
        how = facts.attributes.get("coordinate_transformation_mode", b"half_pixel")
        nearest = facts.attributes.get("nearest_mode", b"round_prefer_floor")
        if (how, nearest) != (b"asymmetric", b"floor") and not (
            how == b"half_pixel" and nearest == b"round_prefer_floor" and facts.times % 2 == 0
        ):
            return None
    # Operand 3, if present, holds the dimensions of the result, so each tile needs its own.
    sized = len(facts.keys) > 3 and facts.keys[3] is not None

    def constants(rows: Rows, source: Rows) -> dict[int, list[int]]:
        """Return the dimensions of a tile in place of operand 3."""
        return {3: [*facts.result[:2], rows[1] - rows[0], facts.result[3]]} if sized else {}

    return NodeRule(facts.first(), enlarged_rows(facts.height, facts.times), constants=constants)


def _blocks(rows: Callable[[int, int], RowRule]) -> Callable[[NodeFacts], NodeRule | None]:
    """Make the rule function of DepthToSpace or SpaceToDepth; `rows` takes the operand's height and the block size."""

    def rule(facts: NodeFacts) -> NodeRule | None:
        if not facts.is_image():
            return None
        return NodeRule(facts.first(), rows(facts.height, int(facts.attributes["blocksize"])))

    return rule


# Functions that ONNX Runtime computes differently for the last elements of a tensor, which do not fill a vector.
_BY_VECTORS = frozenset(("Acos", "Asin", "Atan"))
_ELEMENT_WISE = {
    # The functions that have the same name in QNN and ONNX, then those that ONNX calls otherwise.
    *{name.removeprefix("ElementWise") for name in FUNCTIONS} - _BY_VECTORS,
    "Cast", "Clip", "Div", "GreaterOrEqual", "Identity", "LeakyRelu", "LessOrEqual", "Max", "Min", "Mul", "PRelu",
    "Pow", "Selu", "Softsign", "Sqrt", "Sub", "Sum", "Where", "com.microsoft:QLinearAdd",
    "com.microsoft:QLinearLeakyRelu", "com.microsoft:QLinearMul", "com.microsoft:QLinearSigmoid",
}  # fmt: skip

_RULES: dict[str, Callable[[NodeFacts], NodeRule | None]] = {
    **dict.fromkeys(_ELEMENT_WISE, lambda facts: _same(facts, facts.element_wise())),
    **dict.fromkeys(("BatchNormalization", "DequantizeLinear", "QuantizeLinear"), _of_channels),
    "Concat": lambda facts: _same(facts, facts.joined(int(facts.attributes["axis"]))),
    "Conv": _convolution(1),
    "ConvInteger": _convolution(1),
    "ConvTranspose": _transposed_convolution,
    "DepthToSpace": _blocks(enlarged_rows),
    "QLinearConv": _convolution(3),
    "Resize": _enlarge,
    "Softmax": _softmax,
    "SpaceToDepth": _blocks(reduced_rows),
    "Upsample": _enlarge,
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool", "com.microsoft:QLinearAveragePool"), _pool),
}
