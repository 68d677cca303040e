"""Which ONNX nodes can be computed by rows (axis 2 of N, C, H, W), and what changes in a node that computes some.

Only what has the same bits in ONNX Runtime is here: padding becomes explicit and stays at the edges of the image, and
convolutions that add up many products get enough pixels at a time, since its matrix products choose the blocks in
which they add up by the number of pixels that a thread has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from isthmus.split.network import Rows, Rule

ROW_AXIS = 2
BLOCK = 128
"""Products that are added up in one go whatever the number of pixels."""
PIXELS = 4 * (64 + 3 * 16) + 1
"""The blocks of longer sums do not depend on the number of pixels where each thread has more than 64. Up to four
threads share these, and all but the last take theirs rounded up to 16."""

Attributes = dict[str, list[int] | None]


@dataclass(frozen=True)
class NodeRule:
    """How a node is computed by rows.

    Parameters
    ----------
    attributes
        Attributes that differ for some rows of the result and of the operands; None takes one away.
    constants
        Operands by number that become other lists of numbers.
    """

    rule: Rule
    attributes: Callable[[Rows, Rows], Attributes] = lambda rows, source: {}
    constants: Callable[[Rows, Rows], dict[int, list[int]]] = lambda rows, source: {}


@dataclass(frozen=True)
class NodeFacts:
    """A node, and the dimensions of all that it reads and makes.

    Parameters
    ----------
    static
        The names that are constants.
    numbers
        The values of constants by name, where somebody asks.
    """

    op: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Any]
    dims: Mapping[str, tuple[int, ...]]
    static: frozenset[str]
    is_float: bool
    numbers: Callable[[str], list[float]] = field(default=lambda name: [])

    @property
    def rows(self) -> int:
        """Rows of the result."""
        return self.dims[self.output][ROW_AXIS]

    def is_image(self, index: int) -> bool:
        """Whether an operand is no constant and has rows."""
        name = self.inputs[index] if index < len(self.inputs) else ""
        return bool(name) and name not in self.static and len(self.dims[name]) == 4

    def ints(self, name: str, default: list[int]) -> list[int]:
        """An attribute of whole numbers."""
        return [int(v) for v in self.attributes.get(name) or default]


def node_rule(facts: NodeFacts) -> NodeRule | None:
    """How a node is computed by rows; None where it stays whole."""
    rule = _RULES.get(facts.op)
    if rule is None or len(facts.dims[facts.output]) != 4 or facts.dims[facts.output][0] != 1 or facts.rows < 2:
        return None
    return rule(facts)


def _same(facts: NodeFacts, sliced: list[str], again: bool = False) -> NodeRule | None:
    names = tuple(dict.fromkeys(sliced))
    return NodeRule(Rule(names, lambda a, b: (a, b), again=again)) if names else None


def _element_wise(facts: NodeFacts) -> NodeRule | None:
    sliced = []
    for name in facts.inputs:
        dims = facts.dims[name] if name else ()
        if len(dims) < 2 or dims[-2] == 1:
            continue  # the same for every row
        if name in facts.static or len(dims) != 4 or dims[ROW_AXIS] != facts.rows:
            return None
        sliced.append(name)
    return _same(facts, sliced)


def _of_channels(facts: NodeFacts) -> NodeRule | None:
    """One image; the other operands are constants without rows."""
    if not facts.is_image(0) or any(name and name not in facts.static for name in facts.inputs[1:]):
        return None
    axis = int(facts.attributes.get("axis", 1))
    per_axis = len(facts.inputs) > 1 and prod(facts.dims[facts.inputs[1]]) > 1
    if facts.op.endswith("Linear") and per_axis and axis % 4 == ROW_AXIS:
        return None
    return _same(facts, [facts.inputs[0]], again=facts.op == "DequantizeLinear")


def _softmax(facts: NodeFacts) -> NodeRule | None:
    # Before set 13 a softmax without an axis, or with one, brings all later axes together.
    axis = int(facts.attributes.get("axis", 1)) % 4
    return _same(facts, [facts.inputs[0]]) if facts.is_image(0) and axis == 3 else None


def _concat(facts: NodeFacts) -> NodeRule | None:
    if int(facts.attributes["axis"]) % 4 == ROW_AXIS or not all(facts.is_image(i) for i in range(len(facts.inputs))):
        return None
    return _same(facts, list(facts.inputs))


def _windows(facts: NodeFacts, kernel: list[int], fewest: int) -> NodeRule | None:
    if not facts.is_image(0) or facts.attributes.get("ceil_mode"):
        return None
    source, result = facts.dims[facts.inputs[0]], facts.dims[facts.output]
    strides, dilations = facts.ints("strides", [1, 1]), facts.ints("dilations", [1, 1])
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    auto = facts.attributes.get("auto_pad", b"NOTSET")
    if auto in (b"NOTSET", b""):
        pads = facts.ints("pads", [0, 0, 0, 0])
    elif auto == b"VALID":
        pads = [0, 0, 0, 0]
    else:
        totals = [max((result[i + 2] - 1) * strides[i] + reach[i] - source[i + 2], 0) for i in (0, 1)]
        less, more = [n // 2 for n in totals], [n - n // 2 for n in totals]
        pads = [*less, *more] if auto == b"SAME_UPPER" else [*more, *less]
    height, stride, top = source[ROW_AXIS], strides[0], pads[0]

    def need(a: int, b: int) -> Rows:
        return max(0, a * stride - top), min(height, (b - 1) * stride - top + reach[0])

    def attributes(rows: Rows, source: Rows) -> Attributes:
        first, last = rows[0] * stride - top, (rows[1] - 1) * stride - top + reach[0]
        return {"pads": [source[0] - first, pads[1], max(0, last - source[1]), pads[3]], "auto_pad": None}

    return NodeRule(Rule((facts.inputs[0],), need, fewest=fewest), attributes)


def _convolution(weights: int) -> Callable[[NodeFacts], NodeRule | None]:
    def rule(facts: NodeFacts) -> NodeRule | None:
        if any(name and name not in facts.static for name in facts.inputs[1:]):
            return None
        dims = facts.dims[facts.inputs[weights]]
        return _windows(facts, list(dims[2:]), _fewest(facts, prod(dims[1:]), facts.dims[facts.output][3]))

    return rule


def _fewest(facts: NodeFacts, products: int, width: int) -> int:
    """The fewest rows at a time of a convolution that adds up so many products."""
    if not facts.is_float:
        return 1
    return -(-(PIXELS if products > BLOCK else 2) // width)


def _pool(facts: NodeFacts) -> NodeRule | None:
    if any(name and name not in facts.static for name in facts.inputs[1:]):
        return None
    return _windows(facts, facts.ints("kernel_shape", [1, 1]), 1)


def _transposed_convolution(facts: NodeFacts) -> NodeRule | None:
    if not facts.is_image(0) or any(name and name not in facts.static for name in facts.inputs[1:]):
        return None
    weights, source = facts.dims[facts.inputs[1]], facts.dims[facts.inputs[0]]
    stride = facts.ints("strides", [1, 1])[0]
    plain = weights[2] == stride and facts.rows == stride * source[ROW_AXIS] and "output_shape" not in facts.attributes
    if not plain or facts.attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return None
    if any(facts.ints("pads", [0] * 4)[::2]) or any(facts.ints("output_padding", [0])):
        return None
    fewest = stride * _fewest(facts, weights[0], source[3])
    return NodeRule(Rule((facts.inputs[0],), lambda a, b: (a // stride, -(-b // stride)), stride, fewest))


def _enlarged(facts: NodeFacts) -> NodeRule | None:
    """Rows repeated a whole number of times."""
    if not facts.is_image(0) or facts.attributes.get("mode", b"nearest") != b"nearest":
        return None
    source, result = facts.dims[facts.inputs[0]], facts.dims[facts.output]
    times = result[ROW_AXIS] // source[ROW_AXIS]
    if times * source[ROW_AXIS] != result[ROW_AXIS]:
        return None
    if facts.op == "Resize":
        how = facts.attributes.get("coordinate_transformation_mode", b"half_pixel")
        nearest = facts.attributes.get("nearest_mode", b"round_prefer_floor")
        if (how, nearest) != (b"asymmetric", b"floor") and not (
            how == b"half_pixel" and nearest == b"round_prefer_floor" and times % 2 == 0
        ):
            return None
    sized = len(facts.inputs) > 3 and bool(facts.inputs[3])

    def constants(rows: Rows, source: Rows) -> dict[int, list[int]]:
        return {3: [*result[:2], rows[1] - rows[0], result[3]]} if sized else {}

    rule = Rule((facts.inputs[0],), lambda a, b: (a // times, -(-b // times)), times)
    return NodeRule(rule, constants=constants)


def _depth_to_space(facts: NodeFacts) -> NodeRule | None:
    block = int(facts.attributes["blocksize"])
    return NodeRule(Rule((facts.inputs[0],), lambda a, b: (a // block, -(-b // block)), block))


def _space_to_depth(facts: NodeFacts) -> NodeRule | None:
    block = int(facts.attributes["blocksize"])
    return NodeRule(Rule((facts.inputs[0],), lambda a, b: (a * block, b * block)))


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
        _element_wise,
    ),
    **dict.fromkeys(("BatchNormalization", "DequantizeLinear", "QuantizeLinear"), _of_channels),
    "Concat": _concat,
    "Conv": _convolution(1),
    "ConvInteger": _convolution(1),
    "ConvTranspose": _transposed_convolution,
    "DepthToSpace": _depth_to_space,
    "QLinearConv": _convolution(3),
    "Resize": _enlarged,
    "Softmax": _softmax,
    "SpaceToDepth": _space_to_depth,
    "Upsample": _enlarged,
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool", "com.microsoft:QLinearAveragePool"), _pool),
}  # fmt: skip
