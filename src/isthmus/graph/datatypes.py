"""The enumerations of a QNN tensor with QNN's own numbers: data type, tensor type, memory type."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from isthmus.errors import Code, QnnError


class DataType(IntEnum):
    """QNN data types. Fixed-point types are integers with a quantization attached.

    The upper byte of a number is the kind: 0 signed, 1 unsigned, 2 float, 3 signed and 4 unsigned fixed point, 5 bool.
    The lower byte gives the bits per element in decimal digits (0x26 only distinguishes BFLOAT_16 from FLOAT_16).
    """

    INT_8 = 0x0008
    INT_16 = 0x0016
    INT_32 = 0x0032
    INT_64 = 0x0064
    UINT_8 = 0x0108
    UINT_16 = 0x0116
    UINT_32 = 0x0132
    UINT_64 = 0x0164
    FLOAT_16 = 0x0216
    BFLOAT_16 = 0x0226
    """The upper 16 bits of a FLOAT_32. numpy has no such type, so elements are stored as integers of 16 bits; `decode`
    and `encode` convert them, and `elements` takes arrays of ``ml_dtypes.bfloat16``.
    """
    FLOAT_32 = 0x0232
    FLOAT_64 = 0x0264
    SFIXED_POINT_8 = 0x0308
    SFIXED_POINT_16 = 0x0316
    SFIXED_POINT_32 = 0x0332
    UFIXED_POINT_8 = 0x0408
    UFIXED_POINT_16 = 0x0416
    UFIXED_POINT_32 = 0x0432
    BOOL_8 = 0x0508
    UNDEFINED = 0x7FFFFFFF

    @property
    def numpy(self) -> np.dtype:
        """The numpy type of the stored elements."""
        if self is DataType.UNDEFINED:
            raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, "data type UNDEFINED", "it has no storage")
        return _NUMPY[self]

    @property
    def itemsize(self) -> int:
        """The number of bytes per element."""
        return self.numpy.itemsize

    @property
    def is_fixed_point(self) -> bool:
        """Whether elements are quantized real numbers."""
        return 0x0300 <= self < 0x0500

    @property
    def is_float(self) -> bool:
        """Whether elements are floating point."""
        return 0x0200 <= self < 0x0300

    @property
    def is_integer(self) -> bool:
        """Whether elements are plain integers (not quantized, not bool)."""
        return self < 0x0200

    @property
    def is_half(self) -> bool:
        """Whether elements are floats of 16 bits, which are computed in float32 and rounded when they are stored."""
        return self in _HALVES

    @property
    def is_bits(self) -> bool:
        """Whether arrays have the bits of elements as integers, because numpy has no such type of floats."""
        return self.is_float and self.numpy.kind != "f"

    @property
    def largest(self) -> float:
        """The largest finite number of a type of floats."""
        return _HALVES[self].largest if self.is_half else float(np.finfo(self.numpy).max)

    @property
    def roundoff(self) -> float:
        """The largest relative error of a number that is rounded to this type of floats."""
        return _HALVES[self].roundoff if self.is_half else float(np.finfo(self.numpy).eps) / 2

    def decode(self, stored: np.ndarray) -> np.ndarray:
        """Return stored floats as numbers to compute with: those of 16 bits as float32, any other array itself.

        >>> DataType.BFLOAT_16.decode(np.array([0x3F80], np.uint16))
        array([1.], dtype=float32)
        """
        return _HALVES[self].decode(np.asarray(stored)) if self.is_half else stored

    def encode(self, numbers: np.ndarray) -> np.ndarray:
        """Return numbers as stored elements of this type, rounded to nearest; too large floats become infinite.

        >>> DataType.FLOAT_16.encode(np.array([1.0, 65520.0]))
        array([ 1., inf], dtype=float16)
        """
        with np.errstate(over="ignore"):
            numbers = np.asarray(numbers)
            return _HALVES[self].encode(numbers) if self.is_half else numbers.astype(self.numpy)

    def elements(self, array: np.ndarray) -> np.ndarray:
        """Return a caller's array in the numpy type of stored elements, where another package has its own type for it.

        An array of ``ml_dtypes.bfloat16`` becomes a view of its bits if this is BFLOAT_16, and so does an array of such
        elements that numpy has loaded from a file. An array of ``ml_dtypes.int4`` or ``uint4`` becomes a copy with
        one element in a byte if this is fixed-point of 8 bits with the same sign. Any other array is returned as it is.

        >>> DataType.BFLOAT_16.elements(np.array([b"\\x80\\x3f"], "V2"))
        array([16256], dtype=uint16)
        """
        name = array.dtype.name
        if self is DataType.BFLOAT_16 and (name == "bfloat16" or array.dtype == _FROM_FILE):
            return array.view(np.uint16)
        if self is _FOUR_BITS.get(name):
            return array.astype(self.numpy)
        return array

    @staticmethod
    def of(dtype: np.dtype | type) -> DataType:
        """Return the plain (not fixed-point) data type that stores elements of a numpy type, or of a bfloat16."""
        if np.dtype(dtype).name == "bfloat16":
            return DataType.BFLOAT_16
        try:
            return _PLAIN[np.dtype(dtype)]
        except KeyError:
            what = f"numpy type {np.dtype(dtype)}"
            raise QnnError(Code.TENSOR_UNSUPPORTED_TENSOR_PARAM, what, "QNN has no such type") from None

    @staticmethod
    def fixed_point(dtype: np.dtype | type) -> DataType:
        """Return the fixed-point data type that stores elements of a numpy integer type, or of 4-bit integers."""
        dtype = np.dtype(dtype)
        if dtype.name in _FOUR_BITS:
            return _FOUR_BITS[dtype.name]
        base = 0x0300 if dtype.kind == "i" else 0x0400
        bits = {1: 0x08, 2: 0x16, 4: 0x32}.get(dtype.itemsize if dtype.kind in "iu" else 0)
        if bits is None:
            what = f"numpy type {dtype}"
            raise QnnError(Code.TENSOR_UNSUPPORTED_TENSOR_PARAM, what, "it cannot hold fixed-point values")
        return DataType(base + bits)


def from_bfloat16(stored: np.ndarray) -> np.ndarray:
    """Convert stored BFLOAT_16 to float32.

    >>> from_bfloat16(np.array([0x3F80, 0xC049], np.uint16))
    array([ 1.      , -3.140625], dtype=float32)
    """
    return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Convert numbers to stored BFLOAT_16, rounded to nearest, ties to even; NaN stays NaN.

    >>> [hex(bits) for bits in to_bfloat16(np.float32([1, 1.00390625, 1.01171875, np.nan]))]
    ['0x3f80', '0x3f80', '0x3f82', '0x7fc0']
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    # Adding just under half of the last kept bit, and that bit itself, rounds ties to even when the rest is cut off.
    rounded = (bits + np.uint64(0x7FFF) + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
    # Rounding could turn a NaN into an infinity; its upper bits are kept instead, with the bit of a quiet NaN set.
    quiet = bits >> np.uint64(16) | np.uint64(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


class _Half(NamedTuple):
    """How floats of 16 bits are stored and converted.

    - `stored`: the numpy type of elements.
    - `decode`, `encode`: convert elements to float32, and numbers to elements.
    - `largest`, `roundoff`: see `DataType`.
    """

    stored: type[np.generic]
    decode: Callable[[np.ndarray], np.ndarray]
    encode: Callable[[np.ndarray], np.ndarray]
    largest: float
    roundoff: float


# The floats that kernels compute in float32.
_HALVES: dict[DataType, _Half] = {
    DataType.FLOAT_16: _Half(
        np.float16, lambda x: x.astype(np.float32), lambda x: x.astype(np.float16), 65504.0, 2.0**-11
    ),
    DataType.BFLOAT_16: _Half(np.uint16, from_bfloat16, to_bfloat16, (2 - 2.0**-7) * 2.0**127, 2.0**-8),
}

# numpy's names of the kinds of data types, by the upper byte of their numbers.
_KINDS = ("int", "uint", "float", "int", "uint", "bool")
_NUMPY: dict[DataType, np.dtype] = {
    dtype: np.dtype("bool" if dtype is DataType.BOOL_8 else f"{_KINDS[dtype >> 8]}{dtype & 0xFF:x}")
    for dtype in DataType
    if dtype is not DataType.UNDEFINED and dtype not in _HALVES
} | {dtype: np.dtype(half.stored) for dtype, half in _HALVES.items()}
_PLAIN: dict[np.dtype, DataType] = {
    dtype: data_type for data_type, dtype in _NUMPY.items() if not data_type.is_fixed_point and not data_type.is_bits
}
# Types of the package ml_dtypes are known by name, because the package may be missing.
_FOUR_BITS: dict[str, DataType] = {"int4": DataType.SFIXED_POINT_8, "uint4": DataType.UFIXED_POINT_8}
# The type of bfloat16 elements that numpy has loaded: its files do not name the types of other packages.
_FROM_FILE = np.dtype("V2")


# Groups of data types, for the rules of operations.
FLOATS = (DataType.FLOAT_32, DataType.FLOAT_16, DataType.BFLOAT_16, DataType.FLOAT_64)
FIXED_POINTS = tuple(d for d in DataType if d.is_fixed_point)
INTEGERS = tuple(d for d in DataType if d.is_integer)
UNSIGNED = tuple(d for d in INTEGERS if d >= DataType.UINT_8)
REALS = FLOATS + FIXED_POINTS
NUMBERS = REALS + INTEGERS
INDICES = (DataType.INT_32, DataType.UINT_32, DataType.INT_64)


class TensorType(IntEnum):
    """Tensor types: who writes and reads a tensor."""

    APP_WRITE = 0
    """A graph input."""
    APP_READ = 1
    """A graph output."""
    APP_READWRITE = 2
    """A state, which the graph keeps between executions."""
    NATIVE = 3
    """An intermediate result."""
    STATIC = 4
    """A constant."""
    NULL = 5
    """An absent optional operand."""


class TensorMemType(IntEnum):
    """Memory types: how a client provides a tensor's memory."""

    RAW = 0
    """A pointer to memory that the client owns."""
    MEMHANDLE = 1
    """The handle of a registration."""


def changes_sign(source: DataType, result: DataType) -> bool:
    """Return whether a Cast between these types moves stored numbers from an unsigned range to a signed one, or back.

    It does so for 8 and 16 bits if one of the types is fixed-point: the lowest number stays the lowest.
    """
    fixed = source.is_fixed_point or result.is_fixed_point
    whole = {source.numpy.kind, result.numpy.kind} == {"i", "u"} and not (source.is_float or result.is_float)
    return fixed and whole and source.itemsize == result.itemsize <= 2
