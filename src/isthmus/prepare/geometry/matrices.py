"""Matrices of a product, as they lie in dense tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Matrices:
    """Equal matrices in a dense tensor: which of them each batch uses, their size and their strides in elements."""

    batch: np.ndarray
    rows: int
    columns: int
    row_step: int
    column_step: int

    @staticmethod
    def of(dims: tuple[int, ...], transposed: bool, batch_dims: tuple[int, ...]) -> Matrices:
        """The last two dimensions of a tensor are matrices, the others are broadcast to `batch_dims`."""
        *outer, rows, columns = dims
        numbers = np.arange(math.prod(outer), dtype=np.int64).reshape(outer)
        batch = np.broadcast_to(numbers, batch_dims).reshape(-1)
        if transposed:
            return Matrices(batch, columns, rows, 1, columns)
        return Matrices(batch, rows, columns, columns, 1)

    @property
    def elements(self) -> int:
        """Elements of one matrix."""
        return self.rows * self.columns
