"""Which ONNX nodes can be computed by rows (axis 2 of N, C, H, W), and what changes in a node that computes some.

Only nodes that have the same bits in ONNX Runtime are here: padding becomes explicit and stays at the edges of the
image, and convolutions that add up many products get enough pixels at a time, since its matrix products choose the
blocks in which they add up by the number of pixels that a thread has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from isthmus.graph.rows import RowRule, Rows, enlarged_rows, reduced_rows, same_rows, window_rows
from isthmus.split.network import Key, TileRule
from isthmus.split.rules import Operands

ROW_AXIS = 2
BLOCK = 128
"""Products that are added up in one go whatever the number of pixels."""
PIXELS = 4 * (64 + 3 * 16) + 1
"""The blocks of longer sums do not depend on the number of pixels where each thread has more than 64. Up to four
threads share these, and all but the last take theirs rounded up to 16."""

Attributes = dict[str, list[int] | None]


@dataclass(frozen=True)
class NodeRule(TileRule):
    """Computation of a node by rows.

    Parameters
    ----------
    attributes
        Attributes that differ for some rows of the result and of the operands; None takes one away.
    constants
        Operands by number that become other lists of numbers.
    """

    attributes: Callable[[Rows, Rows], Attributes] = lambda rows, source: {}
    constants: Callable[[Rows, Rows], dict[int, list[int]]] = lambda rows, source: {}


@dataclass(frozen=True)
class NodeFacts(Operands):
    """A node with its operands."""

    op: str
    attributes: Mapping[str, Any]
    is_float: bool

    def ints(self, name: str, default: list[int]) -> list[int]:
        """Read an attribute of whole numbers."""
        return [int(v) for v in self.attributes.get(name) or default]


def node_rule(facts: NodeFacts) -> NodeRule | None:
    """Find how a node is computed by rows; None where it stays whole."""
    rule = _RULES.get(facts.op)
    if rule is None or len(facts.result) != 4 or facts.result[0] != 1 or facts.rows < 2:
        return None
    return rule(facts)


def _same(facts: NodeFacts, sliced: tuple[Key, ...] | None) -> NodeRule | None:
    return None if sliced is None else NodeRule(sliced, same_rows(facts.rows))


def _of_channels(facts: NodeFacts) -> NodeRule | None:
    """One image; the other operands are constants without rows."""
    axis = int(facts.attributes.get("axis", 1))
    per_axis = len(facts.dims) > 1 and prod(facts.dims[1]) > 1
    of_rows = facts.op.endswith("Linear") and per_axis and axis % 4 == ROW_AXIS
    if of_rows or not facts.is_one_image:
        return None
    return NodeRule(facts.first(), same_rows(facts.rows), recomputed=facts.op == "DequantizeLinear")


def _softmax(facts: NodeFacts) -> NodeRule | None:
    # Before set 13 a softmax without an axis, or with one, brings all later axes together.
    along_columns = int(facts.attributes.get("axis", 1)) % 4 == 3
    return _same(facts, facts.first() if facts.is_image() and along_columns else None)


def _windows(facts: NodeFacts, kernel: list[int], fewest: int) -> NodeRule | None:
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
        above, below = rows.edges(tile, source)
        return {"pads": [above, left, below, right], "auto_pad": None}

    return NodeRule(facts.first(), rows, fewest, attributes=attributes)


def _convolution(weights: int) -> Callable[[NodeFacts], NodeRule | None]:
    def rule(facts: NodeFacts) -> NodeRule | None:
        dims = facts.dims[weights]
        return _windows(facts, list(dims[2:]), _fewest(facts, prod(dims[1:]), facts.result[3]))

    return rule


def _fewest(facts: NodeFacts, products: int, width: int) -> int:
    """Find the fewest rows at a time of a convolution that adds up so many products."""
    if not facts.is_float:
        return 1
    return -(-(PIXELS if products > BLOCK else 2) // width)


def _pool(facts: NodeFacts) -> NodeRule | None:
    return _windows(facts, facts.ints("kernel_shape", [1, 1]), 1)


def _transposed_convolution(facts: NodeFacts) -> NodeRule | None:
    """Find the rule of one whose rows do not overlap."""
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


def _enlarged(facts: NodeFacts) -> NodeRule | None:
    """Find the rule of rows that are repeated a whole number of times."""
    if not facts.is_image() or facts.times is None or facts.attributes.get("mode", b"nearest") != b"nearest":
        return None
    if facts.op == "Resize":
        how = facts.attributes.get("coordinate_transformation_mode", b"half_pixel")
        nearest = facts.attributes.get("nearest_mode", b"round_prefer_floor")
        if (how, nearest) != (b"asymmetric", b"floor") and not (
            how == b"half_pixel" and nearest == b"round_prefer_floor" and facts.times % 2 == 0
        ):
            return None
    sized = len(facts.keys) > 3 and facts.keys[3] is not None

    def constants(rows: Rows, source: Rows) -> dict[int, list[int]]:
        return {3: [*facts.result[:2], rows[1] - rows[0], facts.result[3]]} if sized else {}

    return NodeRule(facts.first(), enlarged_rows(facts.height, facts.times), constants=constants)


def _blocks(rows: Callable[[int, int], RowRule]) -> Callable[[NodeFacts], NodeRule | None]:
    def rule(facts: NodeFacts) -> NodeRule | None:
        if not facts.is_image():
            return None
        return NodeRule(facts.first(), rows(facts.height, int(facts.attributes["blocksize"])))

    return rule


_RULES: dict[str, Callable[[NodeFacts], NodeRule | None]] = {
    **dict.fromkeys(
        (
            "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Cos", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu",
            "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Less", "LessOrEqual",
            "Log", "Max", "Min", "Mish", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round",
            "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Tanh", "Where", "Xor",
            "com.microsoft:QLinearAdd", "com.microsoft:QLinearLeakyRelu", "com.microsoft:QLinearMul",
            "com.microsoft:QLinearSigmoid",
        ),
        lambda facts: _same(facts, facts.element_wise()),
    ),
    **dict.fromkeys(("BatchNormalization", "DequantizeLinear", "QuantizeLinear"), _of_channels),
    "Concat": lambda facts: _same(facts, facts.joined(int(facts.attributes["axis"]))),
    "Conv": _convolution(1),
    "ConvInteger": _convolution(1),
    "ConvTranspose": _transposed_convolution,
    "DepthToSpace": _blocks(enlarged_rows),
    "QLinearConv": _convolution(3),
    "Resize": _enlarged,
    "Softmax": _softmax,
    "SpaceToDepth": _blocks(reduced_rows),
    "Upsample": _enlarged,
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool", "com.microsoft:QLinearAveragePool"), _pool),
}  # fmt: skip
