"""The storage of elements in memory, and the OpenCL C that converts them to what kernels compute with, and back.

Kernels compute with fp32, fp16 and fixed-point numbers as floats, and with integers and booleans as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from isthmus.graph import DataType

C_TYPES = {
    "f32": "float", "f16": "half", "i8": "char", "u8": "uchar", "i16": "short", "u16": "ushort", "i32": "int",
    "u32": "uint", "i64": "long", "u64": "ulong", "bool": "uchar",
}  # fmt: skip
"""The OpenCL names of the types that elements are stored as."""
SIZES = {
    "f32": 4, "f16": 2, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8, "bool": 1,
}  # fmt: skip
"""Bytes of an element of each kind."""
KINDS: dict[DataType, str] = {
    DataType.FLOAT_32: "f32", DataType.FLOAT_16: "f16", DataType.INT_8: "i8", DataType.UINT_8: "u8",
    DataType.INT_16: "i16", DataType.UINT_16: "u16", DataType.INT_32: "i32", DataType.UINT_32: "u32",
    DataType.INT_64: "i64", DataType.UINT_64: "u64", DataType.BOOL_8: "bool",
}  # fmt: skip
"""Kinds of the plain types. Doubles are missing, because devices need not support them."""


VECTORS = "".join(
    f"typedef {name}{width} {name}{width}_u __attribute__((aligned({size})));\n"
    for name, size in sorted({(C_TYPES[kind], SIZES[kind]) for kind in C_TYPES if kind != "f16"})
    for width in (2, 4, 8)
)
"""Vector types that need no more alignment than their elements. Reading one through a pointer is one instruction where
``vload`` is a call, as it is on PoCL.
"""


@dataclass(frozen=True)
class OperandStorage:
    """The storage of one operand of a kernel.

    - `kind`: The stored type.
    - `real`: Whether elements represent reals, which are computed with as floats.
    - `quantized`: Whether elements have a scale and a zero point: the kernel has them as ``<name>_scale`` and
      ``<name>_zero``.
    - `steps`: How reals are converted to units of the scale before they are rounded: "quotient" divides by
      ``<name>_divisor``; "product" multiplies by ``<name>_factor``, the reciprocal, as LiteRT does; with "given" they
      are in these units already.
    """

    kind: str
    real: bool
    quantized: bool = False
    steps: Literal["quotient", "product", "given"] = "quotient"

    @property
    def c_type(self) -> str:
        """The type of a stored element."""
        return C_TYPES[self.kind]

    @property
    def computed(self) -> str:
        """The type that kernels compute with."""
        return "float" if self.real else C_TYPES[self.kind]

    @property
    def size(self) -> int:
        """Bytes of a stored element."""
        return SIZES[self.kind]

    def load(self, name: str, index: str, width: int = 1, aligned: bool = False) -> str:
        """Return an expression for `width` elements from `index` on, in the type that kernels compute with.

        - `aligned`: Whether the elements are known to be aligned to the size of the vector.
        """
        if self.kind == "f16":
            return f"vload_half({index}, {name})" if width == 1 else f"vload_half{width}(0, {name} + ({index}))"
        if width == 1:
            stored = f"{name}[{index}]"
        elif aligned:
            stored = f"*(global const {self.c_type}{width} *)({name} + ({index}))"
        else:
            stored = f"*(global const {self.c_type}{width}_u *)({name} + ({index}))"
        if not self.quantized:
            return stored
        wide = "" if width == 1 else str(width)
        return f"(convert_float{wide}({stored}) - {name}_zero) * {name}_scale"

    def load_whole(self, name: str, index: str, width: int = 1, aligned: bool = False) -> str:
        """Return an expression as `load` does, but of quantized elements the integers minus the zero point.

        Their scale is applied to sums of products later.
        """
        if not self.quantized:
            return self.load(name, index, width, aligned)
        if width == 1:
            return f"((float){name}[{index}] - {name}_zero)"
        return f"(convert_float{width}(*(global const {self.c_type}{width}_u *)({name} + ({index}))) - {name}_zero)"

    def store(self, name: str, index: str, value: str, width: int = 1, aligned: bool = False) -> str:
        """Return the statement that stores `width` computed elements from `index` on; parameters as for `load`."""
        if self.kind == "f16":
            if width == 1:
                return f"vstore_half({value}, {index}, {name});"
            return f"vstore_half{width}({value}, 0, {name} + ({index}));"
        if self.quantized:
            return self._store_rounded(name, index, value, width, aligned)
        return f"{self._element(name, index, width, aligned)} = {value};"

    def _element(self, name: str, index: str, width: int, aligned: bool) -> str:
        """Return an expression for the stored element or vector, to assign to."""
        if width == 1:
            return f"{name}[{index}]"
        return f"*(global {self.c_type}{width}{'' if aligned else '_u'} *)({name} + ({index}))"

    def _store_rounded(self, name: str, index: str, value: str, width: int, aligned: bool) -> str:
        """Return the statement that rounds reals to units of the scale and stores them."""
        wide = "" if width == 1 else str(width)
        steps = {"quotient": f" / {name}_divisor", "product": f" * {name}_factor", "given": ""}[self.steps]
        element, value = self._element(name, index, width, aligned), f"({value}){steps}"
        return f"{element} = convert_{self.c_type}{wide}_sat(rint({value}) + {name}_zero);"


FLOAT = OperandStorage("f32", real=True)
FP16 = OperandStorage("f16", real=True)


def stored_kind(dtype: DataType) -> str | None:
    """Return the kind of a type's stored elements, or None if kernels do not support it."""
    if dtype.is_fixed_point:
        return KINDS[DataType.of(dtype.numpy)]
    return KINDS.get(dtype)
