"""Which TFLite operators can be computed by rows (axis 1 of N, H, W, C), and what changes in one that computes some.

Windows of TFLite know no padding but SAME and VALID, so a strip writes its padding out: zeros (the zero point of 8-bit
numbers) before a convolution, the lowest number before a maximum. An average leaves padding out of its count, so one
with padding stays whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd, prod

import numpy as np

from isthmus.frontends.tflite.entries import OperatorEntry, TfliteTensor
from isthmus.frontends.tflite.model import SubgraphEntry
from isthmus.frontends.tflite.schema import NUMPY_TYPES, ElementType
from isthmus.split.network import Rows, Rule

ROW_AXIS = 1
SAME = 0
LANES, COLUMNS = 8, 16
"""LiteRT's matrix products of floats take the channels that do not fill the lanes of a vector in another way, so many
pixels at a time: strips of such convolutions begin and end between those."""
Padding = tuple[Rows, Rows]
"""Rows before and after, columns before and after."""


@dataclass(frozen=True)
class OperatorRule:
    """How an operator is computed by rows.

    Parameters
    ----------
    padding
        The padding that must be written out for some rows of the result and of the operands.
    lowest
        Whether it is the lowest number instead of zero.
    valid
        Whether its own padding is switched off.
    constants
        Operands by number that become other arrays of 32-bit numbers.
    """

    rule: Rule
    padding: Callable[[Rows, Rows], Padding] | None = None
    lowest: bool = False
    valid: bool = False
    constants: Callable[[Rows, Rows], dict[int, np.ndarray]] = lambda rows, source: {}


@dataclass(frozen=True)
class OperatorFacts:
    """An operator, its subgraph, and which tensors are constants."""

    entry: OperatorEntry
    subgraph: SubgraphEntry
    static: frozenset[int]

    def tensor(self, index: int) -> TfliteTensor:
        """An operand."""
        return self.subgraph.tensor(self.entry.inputs[index])

    @property
    def result(self) -> TfliteTensor:
        """The result."""
        return self.subgraph.tensor(self.entry.outputs[0])

    @property
    def first(self) -> int:
        """The number of the first operand."""
        return self.entry.inputs[0]

    def is_image(self, index: int) -> bool:
        """Whether an operand is no constant and has rows."""
        return self.entry.inputs[index] not in self.static and len(self.tensor(index).shape) == 4

    def others_static(self) -> bool:
        """Whether all but the first operand are constants."""
        return all(index in self.static for index in self.entry.inputs[1:] if index >= 0)

    def numbers(self, index: int) -> np.ndarray | None:
        """A constant operand of 32-bit numbers."""
        tensor = self.tensor(index)
        data = self.subgraph.shared.buffer(tensor.buffer)
        if tensor.type is not ElementType.INT32 or len(data) != 4 * prod(tensor.shape):
            return None
        return np.frombuffer(data, "<i4").reshape(tensor.shape)


def operator_rule(facts: OperatorFacts) -> OperatorRule | None:
    """How an operator is computed by rows; None where it stays whole."""
    rule = _RULES.get(facts.entry.code)
    if rule is None or len(facts.entry.outputs) != 1 or -1 in facts.entry.inputs[:1]:
        return None
    shape = facts.result.shape
    if len(shape) != 4 or shape[0] != 1 or shape[ROW_AXIS] < 2:
        return None
    touched = [facts.result, *(facts.subgraph.tensor(i) for i in facts.entry.inputs if i >= 0)]
    if any(-1 in t.signature or t.is_variable or t.type not in NUMPY_TYPES for t in touched):
        return None
    return rule(facts)


def _same(sliced: list[int]) -> OperatorRule | None:
    names = tuple(dict.fromkeys(sliced))
    return OperatorRule(Rule(names, lambda a, b: (a, b))) if names else None


def _element_wise(facts: OperatorFacts) -> OperatorRule | None:
    sliced, rows = [], facts.result.shape[ROW_AXIS]
    for index in facts.entry.inputs:
        shape = facts.subgraph.tensor(index).shape if index >= 0 else ()
        if len(shape) < 3 or shape[-3] == 1:
            continue  # the same for every row
        if index in facts.static or len(shape) != 4 or shape[ROW_AXIS] != rows:
            return None
        sliced.append(index)
    return _same(sliced)


def _concatenation(facts: OperatorFacts) -> OperatorRule | None:
    count = len(facts.entry.inputs)
    if int(facts.entry.options["axis"]) % 4 == ROW_AXIS or not all(facts.is_image(i) for i in range(count)):
        return None
    return _same(list(facts.entry.inputs))


def _softmax(facts: OperatorFacts) -> OperatorRule | None:
    return _same([facts.first]) if facts.is_image(0) else None


def _windows(facts: OperatorFacts, kernel: tuple[int, int], lowest: bool, average: bool = False) -> OperatorRule | None:
    options, source, result = facts.entry.options, facts.tensor(0), facts.result
    if not facts.is_image(0) or not facts.others_static():
        return None
    strides = (int(options["stride_h"]), int(options["stride_w"]))
    dilations = (int(options.get("dilation_h", 1)), int(options.get("dilation_w", 1)))
    if min(*strides, *dilations, *kernel) < 1:
        return None
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    pads = [(0, 0), (0, 0)]
    if options["padding"] == SAME:
        for axis in (0, 1):
            total = max((result.shape[axis + 1] - 1) * strides[axis] + reach[axis] - source.shape[axis + 1], 0)
            pads[axis] = total // 2, total - total // 2
    padded = any(map(any, pads))
    if padded and average:
        return None
    height, stride, top = source.shape[ROW_AXIS], strides[0], pads[0][0]

    def need(a: int, b: int) -> Rows:
        return max(0, a * stride - top), min(height, (b - 1) * stride - top + reach[0])

    def padding(rows: Rows, given: Rows) -> Padding:
        first, last = rows[0] * stride - top, (rows[1] - 1) * stride - top + reach[0]
        return (given[0] - first, max(0, last - given[1])), pads[1]

    def prepared(rows: Rows, given: Rows) -> int:
        (above, below), (left, right) = padding(rows, given)
        if not above + below + left + right:
            return 0
        width, channels = source.shape[2] + left + right, source.shape[3]
        return (given[1] - given[0] + above + below) * width * channels * _itemsize(source)

    floats = source.type is ElementType.FLOAT32
    fewest = -(-2 // result.shape[2]) if floats else 1
    uneven = floats and facts.entry.code == "CONV_2D" and result.shape[3] % LANES
    grain = COLUMNS // gcd(COLUMNS, result.shape[2]) if uneven else 1
    rule = Rule((facts.first,), need, grain, fewest, prepared)
    return OperatorRule(rule, padding if padded else None, lowest, options["padding"] == SAME)


def _convolution(facts: OperatorFacts) -> OperatorRule | None:
    weights = facts.tensor(1)
    if len(weights.shape) != 4 or (facts.tensor(0).type is ElementType.FLOAT32) != (
        weights.type is ElementType.FLOAT32
    ):
        return None  # a float convolution with 8-bit weights rounds by the range of the whole image
    return _windows(facts, (weights.shape[1], weights.shape[2]), False)


def _maximum_pool(facts: OperatorFacts) -> OperatorRule | None:
    return _windows(facts, (int(facts.entry.options["filter_h"]), int(facts.entry.options["filter_w"])), True)


def _average_pool(facts: OperatorFacts) -> OperatorRule | None:
    window = (int(facts.entry.options["filter_h"]), int(facts.entry.options["filter_w"]))
    return _windows(facts, window, False, average=True)


def _pad(facts: OperatorFacts) -> OperatorRule | None:
    amounts = facts.numbers(1) if len(facts.entry.inputs) > 1 else None
    if not facts.is_image(0) or not facts.others_static() or amounts is None or amounts.shape != (4, 2):
        return None
    height, (top, bottom) = facts.tensor(0).shape[ROW_AXIS], (int(n) for n in amounts[ROW_AXIS])
    if amounts.min() < 0:
        return None

    def constants(rows: Rows, source: Rows) -> dict[int, np.ndarray]:
        inner = amounts.copy()
        inner[ROW_AXIS] = max(0, top - rows[0]), max(0, rows[1] - top - height)
        return {1: inner}

    rule = Rule((facts.first,), lambda a, b: (max(0, a - top), min(height, b - top)))
    return OperatorRule(rule, constants=constants) if top or bottom else OperatorRule(rule)


def _enlarged(facts: OperatorFacts) -> OperatorRule | None:
    """Rows repeated, two, four, eight times: with such factors a float has every place exactly."""
    source, result = facts.tensor(0).shape, facts.result.shape
    if not facts.is_image(0) or not facts.others_static() or facts.entry.options["align_corners"]:
        return None
    times = result[ROW_AXIS] // source[ROW_AXIS]
    if times * source[ROW_AXIS] != result[ROW_AXIS] or times & (times - 1):
        return None

    def constants(rows: Rows, source: Rows) -> dict[int, np.ndarray]:
        return {1: np.array([rows[1] - rows[0], result[2]], np.int32)}

    rule = Rule((facts.first,), lambda a, b: (a // times, -(-b // times)), times)
    return OperatorRule(rule, constants=constants)


def _depth_to_space(facts: OperatorFacts) -> OperatorRule | None:
    block = int(facts.entry.options["block_size"])
    if block < 1 or not facts.is_image(0):
        return None
    return OperatorRule(Rule((facts.first,), lambda a, b: (a // block, -(-b // block)), block))


def _itemsize(tensor: TfliteTensor) -> int:
    return np.dtype(NUMPY_TYPES[tensor.type]).itemsize


_RULES: dict[str, Callable[[OperatorFacts], OperatorRule | None]] = {
    **dict.fromkeys(
        (
            "ABS", "ADD", "CAST", "CEIL", "COS", "DEQUANTIZE", "DIV", "ELU", "EQUAL", "EXP", "FLOOR", "GELU", "GREATER",
            "GREATER_EQUAL", "HARD_SWISH", "LEAKY_RELU", "LESS", "LESS_EQUAL", "LOG", "LOGISTIC", "MAXIMUM", "MINIMUM",
            "MUL", "NEG", "NOT_EQUAL", "PRELU", "QUANTIZE", "RELU", "RELU6", "RELU_N1_TO_1", "ROUND", "RSQRT", "SIN",
            "SQRT", "SQUARE", "SQUARED_DIFFERENCE", "SUB", "TANH",
        ),
        _element_wise,
    ),
    **dict.fromkeys(("CONV_2D", "DEPTHWISE_CONV_2D"), _convolution),
    **dict.fromkeys(("PAD", "PADV2"), _pad),
    "AVERAGE_POOL_2D": _average_pool,
    "CONCATENATION": _concatenation,
    "DEPTH_TO_SPACE": _depth_to_space,
    "MAX_POOL_2D": _maximum_pool,
    "RESIZE_NEAREST_NEIGHBOR": _enlarged,
    "SOFTMAX": _softmax,
}  # fmt: skip
