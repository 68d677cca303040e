"""Common parts of the rules for ONNX nodes and TFLite operators: images, and operands that are read by rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isthmus.split.network import Key


@dataclass(frozen=True)
class Operands:
    """The operands of a node, and the dimensions of its four-dimensional result.

    - `keys`, `dims`, `static`: each operand, its dimensions, and whether it is a constant; the key of a missing operand
      is None.
    - `result`: the dimensions of the result.
    - `row_axis`: the axis of rows in four-dimensional tensors.
    """

    keys: tuple[Key | None, ...]
    dims: tuple[tuple[int, ...], ...]
    static: tuple[bool, ...]
    result: tuple[int, ...]
    row_axis: int

    def is_image(self, index: int = 0) -> bool:
        """Return whether an operand has rows and is not a constant."""
        if index >= len(self.keys) or self.keys[index] is None:
            return False
        return not self.static[index] and len(self.dims[index]) == 4

    @property
    def is_one_image(self) -> bool:
        """Whether the first operand is an image and all others are constants."""
        others = zip(self.keys[1:], self.static[1:], strict=True)
        return self.is_image() and all(static or key is None for key, static in others)

    @property
    def height(self) -> int:
        """The number of rows of the first operand."""
        return self.dims[0][self.row_axis]

    @property
    def rows(self) -> int:
        """The number of rows of the result."""
        return self.result[self.row_axis]

    @property
    def times(self) -> int | None:
        """The number of result rows for each row of the first operand, if that is an integer."""
        times = self.rows // self.height if self.height else 0
        return times if times and times * self.height == self.rows else None

    def first(self) -> tuple[Key, ...]:
        """Return the first operand as the one that is read by rows."""
        return (self.keys[0],)

    def element_wise(self) -> tuple[Key, ...] | None:
        """List the operands of an element-wise function that are read by rows.

        None if there are none, or if one cannot be read by rows. Operands that broadcast along the rows are left out.
        """
        sliced: dict[Key, None] = {}
        for key, dims, static in zip(self.keys, self.dims, self.static, strict=True):
            if key is None or len(dims) < 4 - self.row_axis or dims[self.row_axis - 4] == 1:
                continue  # the same for every row
            if static or len(dims) != 4 or dims[self.row_axis] != self.rows:
                return None
            sliced[key] = None
        return tuple(sliced) or None

    def joined(self, axis: int) -> tuple[Key, ...] | None:
        """List the operands of a concatenation along an axis; None if they cannot be read by rows."""
        if axis % 4 == self.row_axis or not all(self.is_image(index) for index in range(len(self.keys))):
            return None
        return tuple(dict.fromkeys(self.keys))

    def same_padding(self, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> list[int]:
        """Return the total rows and columns of padding with which windows give a result of this size.

        The arguments hold two numbers each, for rows and columns.
        """
        axes = slice(self.row_axis, self.row_axis + 2)
        sizes = zip(self.dims[0][axes], self.result[axes], kernel, strides, dilations, strict=True)
        return [max((o - 1) * s + (k - 1) * d + 1 - i, 0) for i, o, k, s, d in sizes]
