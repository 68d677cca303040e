"""A kernel under construction: its parameters, and the arguments that one launch passes for them.

Names, types and order are written once, so that source and arguments cannot disagree.
"""

from __future__ import annotations

import numpy as np

from isthmus.backends.gpu.compile.limits import MAX_INDEX
from isthmus.backends.gpu.compile.program import Argument, BufferRef, Local
from isthmus.backends.gpu.compile.storage import OperandStorage
from isthmus.errors import Code, QnnError


class Draft:
    """Parameters, declarations at the start of the body, and arguments of a kernel.

    Each method declares parameters and appends the arguments for them, in the same order.
    """

    def __init__(self) -> None:
        self.parameters: list[str] = []
        """Declarations of parameters in OpenCL C."""
        self.head: list[str] = []
        """Statements at the start of the body, which declare pointers."""
        self.arguments: list[Argument] = []

    def memory(self, name: str, place: BufferRef, c_type: str) -> None:
        """Declare memory as a pointer `name`.

        It takes two parameters, because a kernel gets a memory object and adds the offset in it by itself.
        """
        constant = "" if place.writes else "const "
        self.parameters += [f"global {constant}uchar *{name}_base", f"long {name}_at"]
        self.head.append(f"global {constant}{c_type} *{name} = (global {constant}{c_type} *)({name}_base + {name}_at);")
        self.arguments.append(place)

    def operand(self, name: str, place: BufferRef, storage: OperandStorage, scale: float = 1.0, zero: int = 0) -> None:
        """Declare memory with elements of some storage, and the scale and zero point of quantized ones.

        The parameters have the names that `OperandStorage` uses. One that is written has the scale in the form that
        `OperandStorage.steps` requires.
        """
        self.memory(name, place, storage.c_type)
        if not storage.quantized:
            return
        if not place.writes:
            self.floats(**{f"{name}_scale": scale})
        elif storage.steps == "quotient":
            self.floats(**{f"{name}_divisor": scale})
        elif storage.steps == "product":
            self.floats(**{f"{name}_factor": float(np.float32(1) / np.float32(scale))})
        self.floats(**{f"{name}_zero": float(zero)})

    def ints(self, **values: int) -> None:
        """Declare 32-bit integers."""
        for name, value in values.items():
            if not -MAX_INDEX - 1 <= value <= MAX_INDEX:
                raise QnnError(Code.COMMON_NOT_SUPPORTED, f"argument {name} of a kernel", f"{value} has over 32 bits")
            self.parameters.append(f"int {name}")
            self.arguments.append(np.int32(value))

    def longs(self, **values: int) -> None:
        """Declare 64-bit integers."""
        for name, value in values.items():
            self.parameters.append(f"long {name}")
            self.arguments.append(np.int64(value))

    def floats(self, **values: float) -> None:
        """Declare floats."""
        for name, value in values.items():
            self.parameters.append(f"float {name}")
            self.arguments.append(np.float32(value))

    def local(self, name: str, c_type: str, nbytes: int) -> None:
        """Declare local memory as a pointer `name`."""
        self.parameters.append(f"local {c_type} *{name}")
        self.arguments.append(Local(nbytes))

    def source(self, kernel: str, body: str, group: tuple[int, ...]) -> str:
        """Return the source of a kernel of this name; `group` promises the size of work-groups to the compiler."""
        promise = f"__attribute__((reqd_work_group_size{(*group, 1, 1)[:3]})) "
        head = "\n".join(f"  {line}" for line in self.head)
        return f"{promise}kernel void {kernel}({', '.join(self.parameters)})\n{{\n{head}\n{body}\n}}\n"


def by_axis(name: str, values: tuple[int, int, int]) -> dict[str, int]:
    """Name the values for depth, height and width; the axis letters are capitals unless `name` is lower case.

    >>> by_axis("O", (1, 2, 3)), by_axis("s", (1, 2, 3))
    ({'OD': 1, 'OH': 2, 'OW': 3}, {'sd': 1, 'sh': 2, 'sw': 3})
    """
    return {name + axis: value for axis, value in zip("dhw" if name.islower() else "DHW", values, strict=True)}
