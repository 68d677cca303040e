"""A tensor of a graph: name, type, data type, dimensions, quantization, and data if it is static."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.graph.datatypes import DataType, TensorMemType, TensorType
from isthmus.graph.quantization import Quantization

MAX_RANK = 8
MAX_BYTES = 1 << 40


@dataclass(eq=False)
class Tensor:
    """A tensor. Two tensors are equal only if they are the same object.

    - `type`: The tensor type: who writes and reads it.
    - `dims`: Dimensions, each at least 0; rank 0 is a scalar.
    - `quantization`: The mapping from stored elements to reals; required for fixed-point types.
    - `data`: The contents, as `DataType.elements` takes them. They are required for a STATIC tensor. For an
      APP_READWRITE (state) tensor they are the initial value, 0.0 if missing.
    - `mem_type`: The memory type that a client will use; MEMHANDLE only for graph inputs and outputs.
    - `source`: For a constant that preparation has expanded from 4-bit elements with equal values: the constant with
      these elements, for engines that keep them packed.
    """

    name: str
    type: TensorType
    dtype: DataType
    dims: tuple[int, ...]
    quantization: Quantization | None = None
    data: np.ndarray | None = None
    mem_type: TensorMemType = TensorMemType.RAW
    source: Tensor | None = None

    def __post_init__(self) -> None:
        try:
            self.dims = tuple(operator.index(d) for d in self.dims)
        except TypeError:
            rule = f"dimensions {self.dims} must be integers"
            raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, f"tensor '{self.name}'", rule) from None
        for name, kind in (("type", TensorType), ("dtype", DataType), ("mem_type", TensorMemType)):
            try:
                setattr(self, name, kind(getattr(self, name)))
            except ValueError:
                rule = f"{name} {getattr(self, name)!r} is none of {kind.__name__}"
                raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, f"tensor '{self.name}'", rule) from None
        if self.data is not None:
            self.data = self.dtype.elements(self.data)
        self.check()

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.dims)

    @property
    def itemsize(self) -> int:
        """The number of bytes per element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The number of bytes of its elements, dense and row-major."""
        return self.elements * self.itemsize

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.dims)

    @property
    def is_static(self) -> bool:
        """Whether the tensor is a constant."""
        return self.type is TensorType.STATIC

    @property
    def lacks_scales(self) -> bool:
        """Whether the tensor is a bias without scales: it is in units of the products that it is added to."""
        return self.is_static and self.dtype is DataType.SFIXED_POINT_32 and self.quantization is None

    @property
    def is_four_bit(self) -> bool:
        """Whether the tensor is a constant of 8-bit elements that use at most four bits."""
        eight_bit = self.dtype in (DataType.SFIXED_POINT_8, DataType.UFIXED_POINT_8)
        return self.is_static and eight_bit and self.quantization is not None and 0 < self.quantization.bits <= 4

    @property
    def stored_bytes(self) -> int:
        """The number of bytes of a constant where 4-bit elements are packed: those of its source, if it has one.

        Scales of blocks count too: a byte for a factor, or a float and, if it is not always the same, a byte for the
        offset. Those of channels do not, because they are few.
        """
        tensor = self.source or self
        if not tensor.is_four_bit:
            return tensor.nbytes
        quantization, nbytes = tensor.quantization, -(-tensor.elements // 2)
        if quantization is None or not quantization.block:
            return nbytes
        each = 1 if quantization.factors and self.dtype.is_fixed_point else 4 + (len(set(quantization.offsets)) > 1)
        return nbytes + each * len(quantization.scales)

    def initial(self) -> np.ndarray:
        """Return the value of a state before the first execution."""
        if self.data is not None:
            return self.data
        zero = np.zeros((1,) * self.rank)
        fixed = self.quantization if self.dtype.is_fixed_point else None
        stored = zero.astype(self.dtype.numpy) if fixed is None else fixed.quantize(zero, self.dtype.numpy)
        return np.broadcast_to(stored, self.dims)

    def describe(self) -> str:
        """Return a short text for messages: ``'x' FLOAT_32[1,3]``."""
        return f"'{self.name}' {self.dtype.name}[{','.join(map(str, self.dims))}]"

    def check(self) -> None:
        """Refuse parameters that QNN refuses for a tensor."""

        def refuse(rule: str) -> None:
            raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, f"tensor '{self.name}'", rule)

        if not self.name:
            refuse("a tensor needs a name")
        if self.dtype is DataType.UNDEFINED:
            refuse("its data type is undefined")
        if len(self.dims) > MAX_RANK:
            refuse(f"rank {len(self.dims)} is above the largest supported, {MAX_RANK}")
        if any(d < 0 for d in self.dims):
            refuse(f"dimensions {self.dims} must not be negative")
        if self.nbytes > MAX_BYTES:
            refuse(f"dimensions {self.dims} need {self.nbytes} bytes, above the limit of {MAX_BYTES}")
        if self.quantization is not None:
            axis = self.quantization.axis
            if axis is not None and not (0 <= axis < len(self.dims)):
                refuse(f"quantization axis {axis} is outside rank {len(self.dims)}")
            if axis is not None and not self.quantization.fits(self.dims):
                parts = f"blocks of {self.quantization.block}" if self.quantization.block else "channels"
                needed = math.prod(self.quantization.grid(self.dims))
                refuse(f"{len(self.quantization.scales)} scales for {needed} {parts} along axis {axis}")
            # 32-bit types are exempt, because their scales are products of two scales.
            if self.dtype.is_fixed_point and self.dtype.itemsize < 4 and not self.quantization.is_single:
                refuse("its scales must be positive and finite in single precision")
        elif self.dtype.is_fixed_point and not self.lacks_scales:
            refuse(f"data type {self.dtype.name} needs quantization parameters")
        if self.type is TensorType.STATIC and self.data is None:
            refuse("a STATIC tensor needs its data")
        if self.data is not None:
            if tuple(self.data.shape) != self.dims or self.data.dtype != self.dtype.numpy:
                refuse(
                    f"its data is {self.data.dtype}{list(self.data.shape)}, it is declared as "
                    f"{self.dtype.numpy}{list(self.dims)}"
                )
            if self.quantization is not None and self.quantization.bits and not self.quantization.holds(self.data):
                refuse(f"its data has elements of more than {self.quantization.bits} bits")
            if self.type not in (TensorType.STATIC, TensorType.APP_READWRITE):
                refuse(f"a tensor of type {self.type.name} cannot carry data")
        if self.mem_type is TensorMemType.MEMHANDLE and self.type not in (TensorType.APP_WRITE, TensorType.APP_READ):
            refuse("only graph inputs and outputs may be MEMHANDLE")
