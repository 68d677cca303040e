"""The arithmetic of LiteRT Micro's integer kernels, as operations on doubles that hold integers.

A double holds every integer of 53 bits, and the operations on it exist already. So products, sums and multiplications
by a quantized scale have the bits of LiteRT's 32-bit and 64-bit integers.
"""

from __future__ import annotations

import math

import numpy as np

from isthmus.frontends.tflite.operator_context import OperatorContext
from isthmus.graph import DataType, Quantization, Tensor

# The distance between the entries of LiteRT's table of sigmoids.
_TABLE_STEP = 1 / 24


def doubles(node: OperatorContext, tensor: Tensor) -> Tensor:
    """Return the stored integers of a tensor as doubles."""
    return tensor if tensor.dtype is DataType.FLOAT_64 else node.step("Cast", [tensor], dtype=DataType.FLOAT_64)


def combine(node: OperatorContext, op: str, x: Tensor, other: Tensor | np.ndarray | float) -> Tensor:
    """Emit ``ElementWise{op}`` of two values; a number or an array becomes a constant."""
    if not isinstance(other, Tensor):
        other = node.constant(np.asarray(other, np.float64).reshape(np.shape(other) or (1,)), op)
    return node.step(f"ElementWise{op}", [x, other])


def _multiplier(scale: float) -> tuple[int, int]:
    """Return a scale as LiteRT quantizes it: a factor of 31 bits, and the power of two that it is multiplied by."""
    if scale == 0:
        return 0, 0
    fraction, exponent = math.frexp(scale)
    # The fraction is rounded half away from zero; it is positive.
    bits = math.floor(fraction * 2.0**31 + 0.5)
    if bits == 1 << 31:
        bits, exponent = bits // 2, exponent + 1
    return (0, 0) if exponent < -31 else (bits, exponent)


def rescale(node: OperatorContext, x: Tensor, scales: float | np.ndarray, wide: bool = False) -> Tensor:
    """Multiply integers by a real scale, or by one per element of the last axis, as LiteRT does.

    The product with the 31-bit factor is rounded, halves up; then it is divided by a power of two and rounded again,
    halves away from zero. Sums of 64 bits (`wide`) are multiplied by a factor of 15 bits and rounded once, halves up.
    """
    pairs = [_multiplier(float(scale)) for scale in np.atleast_1d(scales)]
    if wide:
        factors = [min((bits + (1 << 15)) >> 16, 0x7FFF) * 2.0 ** (power - 15) for bits, power in pairs]
    else:
        factors = [bits * 2.0 ** (max(power, 0) - 31) for bits, power in pairs]
    multiplied = combine(node, "Multiply", x, np.array(factors))
    rounded = node.step("ElementWiseFloor", [combine(node, "Add", multiplied, 0.5)])
    divisors = np.array([2.0 ** max(-power, 0) for _, power in pairs])
    if wide or (divisors == 1).all():
        return rounded
    size = combine(node, "Multiply", node.step("ElementWiseAbs", [rounded]), 1 / divisors)
    size = node.step("ElementWiseFloor", [combine(node, "Add", size, 0.5)])
    return combine(node, "Multiply", size, node.step("ElementWiseSign", [rounded]))


def saturate(node: OperatorContext, x: Tensor, low: float, high: float) -> Tensor:
    """Limit integers to a range."""
    return combine(node, "Minimum", combine(node, "Maximum", x, low), high)


def in_range_of(node: OperatorContext, x: Tensor, dtype: DataType) -> Tensor:
    """Limit integers to the range of a data type."""
    info = np.iinfo(dtype.numpy)
    return saturate(node, x, info.min, info.max)


def store_as(node: OperatorContext, x: Tensor, dtype: DataType, quantization: Quantization | None = None) -> Tensor:
    """Return integers in doubles, which are in range, as the stored elements of a data type."""
    return node.step("Cast", [x], dtype=dtype, quantization=quantization)


def product(node: OperatorContext, x: Tensor, zero: int, weights: np.ndarray) -> Tensor:
    """Multiply rows [rows, in] of stored 8-bit or 16-bit integers, less their zero point, by 8-bit weights [out, in].

    16-bit integers are multiplied in two halves, of which the lower one has no sign. The result is in doubles.
    """
    matrix = node.graph.constant(f"{node.name}/weights", np.ascontiguousarray(weights.T))
    if x.dtype.itemsize == 1:
        point = node.graph.constant(f"{node.name}/zero", np.array([zero], x.dtype.numpy))
        plain = node.step("Cast", [x], dtype=DataType.of(x.dtype.numpy))
        return doubles(node, node.step("MatMulInteger", [plain, matrix, point], dtype=DataType.INT_32))
    whole = doubles(node, x)
    upper = node.step("ElementWiseFloor", [combine(node, "Multiply", whole, 1 / 256)])
    lower = combine(node, "Subtract", whole, combine(node, "Multiply", upper, 256.0))
    parts = []
    for part, dtype in ((upper, DataType.INT_8), (lower, DataType.UINT_8)):
        bytes_ = store_as(node, part, dtype)
        parts.append(doubles(node, node.step("MatMulInteger", [bytes_, matrix], dtype=DataType.INT_32)))
    total = combine(node, "Add", combine(node, "Multiply", parts[0], 256.0), parts[1])
    return combine(node, "Subtract", total, zero * weights.astype(np.float64).sum(1)) if zero else total


# --- softmax of 8-bit integers with a result of 16 bits ----------------------------------------------------------


def wide_softmax(node: OperatorContext, x: Tensor, axis: int, beta: float) -> Tensor:
    """Emit the softmax of 8-bit integers along the last axis with a result of 16 bits, in the arithmetic of LiteRT.

    Exponentials come from a table, by the distance to the largest element. They are floats and added up in their order,
    so their sum is the last one of a cumulative sum; quotients are rounded half away from zero.
    """
    before, after = x.quantization, node.output().quantization()
    if before is None or after is None or before.axis is not None:
        node.refuse("its input and its result need a scale each")
    step = -np.float32(before.scale) * np.float32(beta)
    table = np.exp((step * np.arange(256, dtype=np.float32)).astype(np.float64)).astype(np.float32)
    stored_x = node.step("Cast", [x], dtype=DataType.INT_32)
    largest = node.step("ReduceMax", [stored_x], {"axes": [axis], "keep_dims": True})
    distances = node.step("ElementWiseSubtract", [largest, stored_x])
    powers = node.step("Gather", [node.constant(table, "table"), distances], {"axis": 0})
    sums = node.step("CumulativeSum", [powers], {"axis": axis})
    last = [(0, size, 1) for size in x.dims[:-1]] + [(x.dims[-1] - 1, x.dims[-1], 1)]
    total = node.step("StridedSlice", [sums], {"ranges": np.array(last, np.int64)})
    scaled = node.step("ElementWiseMultiply", [total, node.constant(np.array([after.scale], np.float32), "scale")])
    factor = node.step("ElementWiseDivide", [node.constant(np.ones(1, np.float32), "one"), scaled])
    quotients = doubles(node, node.step("ElementWiseMultiply", [powers, factor]))
    rounded = node.step("ElementWiseFloor", [combine(node, "Add", quotients, 0.5)])
    shifted = combine(node, "Add", rounded, float(after.zero_point))
    return node.emit("Cast", [in_range_of(node, shifted, DataType.SFIXED_POINT_16)])


# --- sigmoid and tanh of 16-bit integers -------------------------------------------------------------------------


def _sigmoids() -> np.ndarray:
    """Return LiteRT's table of 256 sigmoids with 16 bits, each raised by half of the largest error of interpolation."""
    y = 1 / (1 + np.exp(-np.arange(256) * _TABLE_STEP))
    curvature = y * (1 - y) * (1 - 2 * y)
    return np.minimum(np.rint(65536 * (y - _TABLE_STEP**2 / 16 * curvature)), 65535).astype(np.int64)


def _interpolate(x: np.ndarray, bits: int, last: int) -> np.ndarray:
    """Interpolate the table between entries that are 2**bits apart; beyond it, return `last`."""
    table = _sigmoids()
    index = np.minimum(x >> bits, 255)
    following = table[np.minimum(index + 1, 255)]
    inner = (table[index] << bits) + (x & ((1 << bits) - 1)) * (following - table[index])
    return np.where(index >= 255, last, inner)


def sigmoid_table() -> np.ndarray:
    """Return the sigmoid of each 16-bit integer, from the lowest on: of units of 2**-12, in units of 2**-15."""
    x = 3 * np.arange(-(1 << 15), 1 << 15)
    y = _interpolate(np.abs(x), 9, 0x7FFF << 10)
    return (np.where(x >= 0, y + (1 << 9), (1 << 25) - y + (1 << 9) - 1) >> 10).astype(np.int16)


def tanh_table(power: int) -> np.ndarray:
    """Return the tanh of each 16-bit integer, from the lowest on: of units of 2**power, in units of 2**-15."""
    x = np.arange(-(1 << 15), 1 << 15)
    shift = power + 12
    x = 3 * x << shift if shift >= 0 else (3 * x + (1 << (-shift - 1))) >> -shift
    y = _interpolate(np.abs(x), 8, 0xFFFF << 8)
    return (np.where(x >= 0, y - (1 << 23) + (1 << 7), -y + (1 << 23) + (1 << 7) - 1) >> 8).astype(np.int16)


def look_up(node: OperatorContext, x: Tensor, table: np.ndarray, name: str) -> Tensor:
    """Look up 16-bit integers, in doubles, in a table of all results; `name` tells tables apart."""
    entries = node.derive(("table", name), lambda: node.graph.constant(name, table))
    index = node.step("Cast", [combine(node, "Add", x, float(1 << 15))], dtype=DataType.INT_32)
    return doubles(node, node.step("Gather", [entries, index], {"axis": 0}))
