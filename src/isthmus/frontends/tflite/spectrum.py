"""The real Fourier transform as products with constant matrices, and the few operators on complex values.

A complex value is two tensors. Data movement moves both. A product that is never read is dropped when the graph is
prepared, so a model that needs only one part computes only that one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from isthmus.frontends.tflite.elementwise import Converter
from isthmus.frontends.tflite.movement import CONVERTERS as MOVEMENTS
from isthmus.frontends.tflite.operator_context import Complex, OperatorContext, data_type
from isthmus.frontends.tflite.schema import ElementType
from isthmus.graph import DataType, Tensor
from isthmus.graph.ops.movement import CONSTANT

MAX_LENGTH = 8192
"""The longest transform; its matrices have up to the square of this number of elements."""


def _waves(node: OperatorContext, length: int, count: int) -> tuple[Tensor, Tensor]:
    """Return cosines and negative sines of the first `count` frequencies, one column each."""
    # `length` is the number of samples, one row each.

    def matrix(name: str, function: Callable[[np.ndarray], np.ndarray]) -> Tensor:
        # The product of indices is reduced modulo the length, so that large angles stay exact.
        turns = np.outer(np.arange(length), np.arange(count)) % length / length
        value = function(2 * np.pi * turns).astype(np.float32)
        return node.graph.constant(f"{name} {length}x{count}", value)

    cosines = node.derive(("cosines", length, count), lambda: matrix("cosines", np.cos))
    return cosines, node.derive(("sines", length, count), lambda: matrix("sines", lambda angle: -np.sin(angle)))


def _fit(node: OperatorContext, x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Cut the last axes, or pad them with zeros, to `sizes`."""
    lead = x.rank - len(sizes)
    ranges = [(0, d, 1) for d in x.dims[:lead]] + [(0, min(d, s), 1) for d, s in zip(x.dims[lead:], sizes, strict=True)]
    if any(end < d for (_, end, _), d in zip(ranges, x.dims, strict=True)):
        x = node.step("StridedSlice", [x], {"ranges": ranges})
    pads = [(0, 0)] * lead + [(0, s - d) for d, s in zip(x.dims[lead:], sizes, strict=True)]
    if any(after for _, after in pads):
        x = node.step("Pad", [x], {"scheme": CONSTANT, "pad_amount": pads})
    return x


def _rfft_2d(node: OperatorContext) -> list[Any]:
    """Transform along the width by products with real input, then along the height with complex input."""
    x, sizes = node.input(0), node.integers(1)
    if len(sizes) != 2 or x.rank < 2 or not all(1 <= s <= MAX_LENGTH for s in sizes):
        node.refuse(f"a transform of lengths {sizes} does not fit {list(x.dims)} (at most {MAX_LENGTH})")
    if x.dtype is not DataType.FLOAT_32:
        node.refuse(f"input 0 must be FLOAT_32, is {x.dtype.name}")
    x = _fit(node, x, sizes)
    height, width = sizes
    real, imaginary = (node.step("MatMul", [x, waves]) for waves in _waves(node, width, width // 2 + 1))
    if height > 1:
        # Along the height the input is complex: (c + i s)(real + i imaginary).
        cosines, sines = _waves(node, height, height)
        products = [[node.step("MatMul", [w, part]) for part in (real, imaginary)] for w in (cosines, sines)]
        real = node.step("ElementWiseSubtract", [products[0][0], products[1][1]])
        imaginary = node.step("ElementWiseAdd", [products[0][1], products[1][0]])
    return [Complex(real, imaginary)]


def convert_complex(node: OperatorContext, operands: Sequence[Any]) -> list[Any]:
    """Convert an operator that has complex operands; return its real or complex results.

    `operands` are all operands; `node` has only the real ones. Data movement is applied to both parts.
    """
    if node.entry.code in MOVEMENTS:
        parts = []
        for part in ("real", "imaginary"):
            moved = replace(
                node,
                inputs=[getattr(v, part) if isinstance(v, Complex) else v for v in operands],
                outputs=[replace(entry, type=ElementType.FLOAT32) for entry in node.outputs],
                names=[f"{name}/{part}" for name in node.names],
            )
            parts.append(MOVEMENTS[node.entry.code](moved))
        return [Complex(real, imaginary) for real, imaginary in zip(*parts, strict=True)]
    z = operands[0]
    if node.entry.code not in PARTS or not isinstance(z, Complex):
        node.unsupported("complex operands are not supported")
    return PARTS[node.entry.code](node, z)


def _real(node: OperatorContext, z: Complex) -> list[Tensor]:
    if data_type(node.output()) is not DataType.FLOAT_32:
        node.unsupported("complex numbers become FLOAT32 only")
    return node.finish(z.real)


def _imaginary(node: OperatorContext, z: Complex) -> list[Tensor]:
    return node.finish(z.imaginary)


def _magnitude(node: OperatorContext, z: Complex) -> list[Tensor]:
    squares = [node.step("ElementWiseMultiply", [part, part]) for part in (z.real, z.imaginary)]
    return [node.emit("ElementWiseSquareRoot", [node.step("ElementWiseAdd", squares)])]


PARTS = {"CAST": _real, "REAL": _real, "IMAG": _imaginary, "COMPLEX_ABS": _magnitude}
"""Operators that turn complex numbers into real ones; a cast keeps the real part."""


def _needs_complex(node: OperatorContext) -> list[Tensor]:
    """Refuse an operator on complex numbers whose operand is real."""
    node.refuse("its operand must be complex")


CONVERTERS: dict[str, Converter] = {
    "RFFT2D": _rfft_2d,
    "REAL": _needs_complex,
    "IMAG": _needs_complex,
    "COMPLEX_ABS": _needs_complex,
}
