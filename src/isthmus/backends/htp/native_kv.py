"""Native KV caches of HTP: the order of bytes in tensors whose data format is HMX_WEIGHT_LAYOUT.

No graph here computes with them: one whose inputs or outputs are native is refused when it is finalized, as the
vendor's library does. The other functions convert caches for a client that shares them with a chip. The
layout is as Qualcomm's clients have it. **It is not verified**: no graph is known that Qualcomm's library for x86
finalizes with such tensors and computes rightly.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from isthmus.errors import Code, QnnError, invalid_argument
from isthmus.graph import DataType, Tensor

NATIVE_FORMAT = 8
"""QNN_TENSOR_DATA_FORMAT_HMX_WEIGHT_LAYOUT."""
ZERO = 128
"""What zero is in a flat cache of unsigned bytes; in a native one it is 0."""
# A block has 32 rows in groups of 4, and 32 columns; the bytes of a group are neighbours.
_ROWS, _COLUMNS, _GROUP = 32, 32, 4


class NativeCache(IntEnum):
    """The kinds of caches; the value is how many columns a tile has at most.

    A head of keys has the rows of `head_dim` and the columns of the context; one of values the other way round.
    """

    KEY = 256
    VALUE = 64


def _tile(kind: NativeCache, rows: int, columns: int) -> int:
    """Return the columns of a tile; refuse a head that is not made of whole tiles."""
    tile = min(columns, int(kind))
    if rows < 1 or columns < 1 or rows % _ROWS or columns % tile or tile % _COLUMNS:
        rule = f"rows must be a multiple of {_ROWS}, columns of {_COLUMNS} and, above {int(kind)}, of that"
        raise invalid_argument(f"native cache of {rows} x {columns}", rule)
    return tile


def native_offset(kind: NativeCache, dims: tuple[int, int], row: int, column: int) -> int:
    """Return where an element of a head with these dimensions is, in bytes.

    >>> native_offset(NativeCache.KEY, (128, 512), 5, 300), native_offset(NativeCache.VALUE, (512, 128), 300, 5)
    (33969, 18836)
    """
    rows, columns = dims
    tile = _tile(kind, rows, columns)
    if not (0 <= row < rows and 0 <= column < columns):
        raise invalid_argument(f"element ({row}, {column})", f"the head has {rows} x {columns}")
    whole = column // tile * rows * tile + row // _ROWS * _ROWS * tile
    block = column % tile // _COLUMNS * _ROWS * _COLUMNS
    inside = row % _ROWS // _GROUP * _GROUP * _COLUMNS + column % _COLUMNS * _GROUP + row % _GROUP
    return whole + block + inside


def to_native(kind: NativeCache, flat: np.ndarray) -> np.ndarray:
    """Return a flat cache of unsigned bytes, [..., rows, columns], in the native order and with zero as 0."""
    _check(flat)
    rows, columns = flat.shape[-2:]
    tile = _tile(kind, rows, columns)
    blocks = flat.reshape(-1, rows // _ROWS, 8, _GROUP, columns // tile, tile // _COLUMNS, _COLUMNS)
    native: np.ndarray = blocks.transpose(0, 4, 1, 5, 2, 6, 3) - np.uint8(ZERO)
    return native.reshape(flat.shape)


def to_flat(kind: NativeCache, native: np.ndarray) -> np.ndarray:
    """Return what `to_native` was given.

    >>> flat = np.random.default_rng(0).integers(0, 256, (2, 64, 512), np.uint8)
    >>> bool((to_flat(NativeCache.KEY, to_native(NativeCache.KEY, flat)) == flat).all())
    True
    """
    _check(native)
    rows, columns = native.shape[-2:]
    tile = _tile(kind, rows, columns)
    blocks = native.reshape(-1, columns // tile, rows // _ROWS, tile // _COLUMNS, 8, _COLUMNS, _GROUP)
    flat: np.ndarray = blocks.transpose(0, 2, 4, 6, 1, 3, 5) + np.uint8(ZERO)
    return flat.reshape(native.shape)


def _check(cache: np.ndarray) -> None:
    """Refuse what is no cache of unsigned bytes."""
    if not isinstance(cache, np.ndarray) or cache.dtype != np.uint8 or cache.ndim < 2:
        raise invalid_argument("native cache", "must be an array of uint8 with rows and columns")


def token_budget(context: int, tokens: int) -> int:
    """Return how many tokens a context holds beside the new ones, which begin at a multiple of 32.

    >>> token_budget(4096, 1), token_budget(4096, 128)
    (4064, 3968)
    """
    return context - -(-tokens // _ROWS) * _ROWS


def refuse_native(tensors: Sequence[Tensor]) -> None:
    """Refuse a graph with native inputs and outputs by the vendor's codes and lines: no graph is known that works."""
    for tensor in tensors:
        wrong = ""
        if tensor.dtype is not DataType.UFIXED_POINT_8:
            wrong = "data type"
        elif tensor.quantization is None or set(tensor.quantization.offsets) != {-ZERO}:
            wrong = "encodings"
        if wrong:
            rule = f"Detected tensor with unsupported {wrong} been set to format{NATIVE_FORMAT}."
            hint = f"Native caches are unsigned bytes whose zero is {ZERO}."
            raise QnnError(Code.GRAPH_INVALID_TENSOR, f"tensor '{tensor.name}'", rule, hint)
    rule = "Supporting HMX layout for KVCache input or output tensors failed. Current graph pattern is unsupported."
    raise QnnError(Code.COMMON_MEM_ALLOC, f"tensor '{tensors[0].name}'", rule, "Graphs take dense caches here.")
