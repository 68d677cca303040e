"""Rules for TFLite operators that can be computed by rows (axis 1 of N, H, W, C), and the changes this needs in one.

TFLite's windows support only the paddings SAME and VALID, so a tile makes its padding explicit: zeros (the zero point
of 8-bit numbers) before a convolution, the lowest number before a maximum. An average does not count padding, so one
with padding stays whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from math import gcd, prod

import numpy as np

from isthmus.frontends.tflite.entries import OperatorEntry
from isthmus.frontends.tflite.model import SubgraphEntry
from isthmus.frontends.tflite.schema import NUMPY_TYPES, ElementType
from isthmus.graph.rows import Rows, enlarged_rows, padded_rows, same_rows, window_rows
from isthmus.split.network import Key, TileRule
from isthmus.split.rules import Operands

ROW_AXIS = 1
SAME = 0
"""The number of the padding SAME."""
LANES, COLUMNS = 8, 16
"""LiteRT's float matrix products handle channels that do not fill a vector of LANES in a different way, COLUMNS pixels
at a time. Tiles of such convolutions begin and end at multiples of COLUMNS pixels.
"""
Padding = tuple[Rows, Rows]
"""Rows before and after, columns before and after."""


@dataclass(frozen=True)
class OperatorRule(TileRule):
    """A rule for computing an operator by rows.

    - `padding`: a function that returns the explicit padding needed for some rows of the result and of the operands;
      None if the operator pads nothing.
    - `lowest`: whether the padding is the lowest number instead of zero.
    - `valid`: whether the operator's own padding is switched off.
    - `constants`: a function of the same rows that returns the operands, by number, that are replaced by other arrays
      of 32-bit integers.
    """

    padding: Callable[[Rows, Rows], Padding] | None = None
    lowest: bool = False
    valid: bool = False
    constants: Callable[[Rows, Rows], dict[int, np.ndarray]] = lambda rows, source: {}


@dataclass(frozen=True)
class OperatorFacts(Operands):
    """An operator with its operands, and the subgraph that contains it."""

    entry: OperatorEntry
    subgraph: SubgraphEntry

    def type(self, index: int) -> ElementType:
        """Return the element type of an operand."""
        return self.subgraph.tensor(self.entry.inputs[index]).type

    def option(self, name: str) -> int:
        """Return an option; 1 if the operator does not have it."""
        return int(self.entry.options.get(name, 1))

    def numbers(self, index: int) -> np.ndarray | None:
        """Return a constant operand of 32-bit integers; None if it is not one."""
        tensor = self.subgraph.tensor(self.entry.inputs[index])
        data = self.subgraph.shared.buffer(tensor.buffer)
        if tensor.type is not ElementType.INT32 or len(data) != 4 * prod(tensor.shape):
            return None
        return np.frombuffer(data, "<i4").reshape(tensor.shape)


def operator_rule(entry: OperatorEntry, subgraph: SubgraphEntry, static: Collection[int]) -> OperatorRule | None:
    """Return how an operator is computed by rows; None if it stays whole. `static` contains the constants."""
    rule = _RULES.get(entry.code)
    if rule is None or len(entry.outputs) != 1 or -1 in entry.inputs[:1]:
        return None
    result = subgraph.tensor(entry.outputs[0])
    if len(result.shape) != 4 or result.shape[0] != 1 or result.shape[ROW_AXIS] < 2:
        return None
    operands = [subgraph.tensor(index) if index >= 0 else None for index in entry.inputs]
    touched = [result, *(tensor for tensor in operands if tensor is not None)]
    if any(-1 in t.signature or t.is_variable or t.type not in NUMPY_TYPES for t in touched):
        return None
    keys = tuple(index if index >= 0 else None for index in entry.inputs)
    dims = tuple(() if tensor is None else tensor.shape for tensor in operands)
    constant = tuple(index in static for index in entry.inputs)
    return rule(OperatorFacts(keys, dims, constant, result.shape, ROW_AXIS, entry, subgraph))


def _same(facts: OperatorFacts, sliced: tuple[Key, ...] | None) -> OperatorRule | None:
    """Return the rule of an operator whose rows need the same rows of these operands; None without operands."""
    return None if sliced is None else OperatorRule(sliced, same_rows(facts.rows))


def _softmax(facts: OperatorFacts) -> OperatorRule | None:
    """Return the rule of a softmax, which TFLite computes along the channels of each pixel."""
    return _same(facts, facts.first() if facts.is_image() else None)


def _windows(
    facts: OperatorFacts, kernel: tuple[int, int], lowest: bool = False, average: bool = False
) -> OperatorRule | None:
    """Return the rule of a convolution or pooling."""
    if not facts.is_one_image:
        return None
    strides = facts.option("stride_h"), facts.option("stride_w")
    dilations = facts.option("dilation_h"), facts.option("dilation_w")
    if min(*strides, *dilations, *kernel) < 1:
        return None
    same, pads = facts.entry.options["padding"] == SAME, [(0, 0), (0, 0)]
    if same:
        pads = [(n // 2, n - n // 2) for n in facts.same_padding(kernel, strides, dilations)]
    padded = any(map(any, pads))
    if padded and average:
        return None
    rows = window_rows(facts.height, kernel[0], strides[0], dilations[0], *pads[0])

    def padding(tile: Rows, source: Rows) -> Padding:
        """Return the padding of a tile: rows above and below only where it reaches the edges of the image."""
        return rows.edges(tile, source), pads[1]

    def padded_bytes(tile: Rows, source: Rows) -> int:
        """Return the bytes of the padded copy of the operand for a tile; 0 if it needs no padding."""
        (above, below), (left, right) = padding(tile, source)
        if not above + below + left + right:
            return 0
        width, channels = facts.dims[0][2] + left + right, facts.dims[0][3]
        itemsize = np.dtype(NUMPY_TYPES[facts.type(0)]).itemsize
        return (source[1] - source[0] + above + below) * width * channels * itemsize

    floats, (_, _, width, channels) = facts.type(0) is ElementType.FLOAT32, facts.result
    if floats and facts.entry.code == "CONV_2D" and channels % LANES:
        rows = replace(rows, grain=COLUMNS // gcd(COLUMNS, width))
    fewest = -(-2 // width) if floats else 1
    return OperatorRule(
        facts.first(), rows, fewest, padded_bytes, padding=padding if padded else None, lowest=lowest, valid=same
    )


def _convolution(facts: OperatorFacts) -> OperatorRule | None:
    """Return the rule of a convolution of which input and weights are both floats, or both not."""
    weights = facts.dims[1]
    floats = [facts.type(index) is ElementType.FLOAT32 for index in (0, 1)]
    if len(weights) != 4 or floats[0] != floats[1]:
        return None  # a float convolution with 8-bit weights rounds by the value range of the whole image
    return _windows(facts, (weights[1], weights[2]))


def _pool(facts: OperatorFacts) -> OperatorRule | None:
    """Return the rule of an average or a maximum."""
    average = facts.entry.code == "AVERAGE_POOL_2D"
    return _windows(facts, (facts.option("filter_h"), facts.option("filter_w")), not average, average)


def _pad(facts: OperatorFacts) -> OperatorRule | None:
    """Pad by rows: a tile gets only the rows of padding that lie in it, so its constant of amounts is replaced."""
    amounts = facts.numbers(1) if len(facts.keys) > 1 else None
    if not facts.is_one_image or amounts is None or amounts.shape != (4, 2) or amounts.min() < 0:
        return None
    top, bottom = (int(n) for n in amounts[ROW_AXIS])
    rows = padded_rows(facts.height, top, bottom)

    def constants(tile: Rows, source: Rows) -> dict[int, np.ndarray]:
        """Return the amounts of padding of a tile in place of operand 1."""
        tile_amounts = amounts.copy()
        tile_amounts[ROW_AXIS] = rows.edges(tile, source)
        return {1: tile_amounts} if top or bottom else {}

    return OperatorRule(facts.first(), rows, constants=constants)


def _enlarge(facts: OperatorFacts) -> OperatorRule | None:
    """Return the rule of rows repeated 2, 4, 8, ... times: with these factors, floats have every position exactly."""
    times = facts.times if facts.is_one_image else None
    if times is None or facts.entry.options["align_corners"] or times & (times - 1):
        return None

    def constants(tile: Rows, source: Rows) -> dict[int, np.ndarray]:
        """Return the height and width of a tile in place of operand 1."""
        return {1: np.array([tile[1] - tile[0], facts.result[2]], np.int32)}

    return OperatorRule(facts.first(), enlarged_rows(facts.height, times), constants=constants)


def _depth_to_space(facts: OperatorFacts) -> OperatorRule | None:
    """Return the rule of DEPTH_TO_SPACE: each row of the operand becomes `block_size` rows."""
    block = facts.option("block_size")
    return OperatorRule(facts.first(), enlarged_rows(facts.height, block)) if block > 0 and facts.is_image() else None


_RULES: dict[str, Callable[[OperatorFacts], OperatorRule | None]] = {
    **dict.fromkeys(
        (
            "ABS", "ADD", "CAST", "CEIL", "COS", "DEQUANTIZE", "DIV", "ELU", "EQUAL", "EXP", "FLOOR", "GELU", "GREATER",
            "GREATER_EQUAL", "HARD_SWISH", "LEAKY_RELU", "LESS", "LESS_EQUAL", "LOG", "LOGISTIC", "MAXIMUM", "MINIMUM",
            "MUL", "NEG", "NOT_EQUAL", "PRELU", "QUANTIZE", "RELU", "RELU6", "RELU_N1_TO_1", "ROUND", "RSQRT", "SIN",
            "SQRT", "SQUARE", "SQUARED_DIFFERENCE", "SUB", "TANH",
        ),
        lambda facts: _same(facts, facts.element_wise()),
    ),
    **dict.fromkeys(("CONV_2D", "DEPTHWISE_CONV_2D"), _convolution),
    **dict.fromkeys(("PAD", "PADV2"), _pad),
    **dict.fromkeys(("AVERAGE_POOL_2D", "MAX_POOL_2D"), _pool),
    "CONCATENATION": lambda facts: _same(facts, facts.joined(int(facts.entry.options["axis"]))),
    "DEPTH_TO_SPACE": _depth_to_space,
    "RESIZE_NEAREST_NEIGHBOR": _enlarge,
    "SOFTMAX": _softmax,
}  # fmt: skip
