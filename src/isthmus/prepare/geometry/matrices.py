"""The matrices of a matrix product, as stored in dense tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Matrices:
    """Equally large matrices in a dense tensor.

    - `batch`: for each batch of the product, the number of the matrix that it uses.
    - `rows`, `columns`: the size of a matrix.
    - `row_step`, `column_step`: the elements in memory from one row to the next, and from one column to the next.
    """

    batch: np.ndarray
    rows: int
    columns: int
    row_step: int
    column_step: int

    @staticmethod
    def of(dims: tuple[int, ...], transposed: bool, batch_dims: tuple[int, ...]) -> Matrices:
        """Return the matrices in a tensor's last two dimensions; the others are broadcast to `batch_dims`."""
        *outer, rows, columns = dims
        numbers = np.arange(math.prod(outer), dtype=np.int64).reshape(outer)
        batch = np.broadcast_to(numbers, batch_dims).reshape(-1)
        if transposed:
            return Matrices(batch, columns, rows, 1, columns)
        return Matrices(batch, rows, columns, columns, 1)

    @property
    def elements(self) -> int:
        """The number of elements of one matrix."""
        return self.rows * self.columns
