"""A kernel under construction: its parameters, and the arguments that one launch passes for them.

Names, types and order are written once, so that source and arguments cannot disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from isthmus.backends.gpu.compile.limits import MAX_INDEX
from isthmus.backends.gpu.compile.program import Argument, BufferRef, Unit
from isthmus.backends.gpu.compile.storage import VECTORS, OperandStorage
from isthmus.errors import Code, QnnError
from isthmus.graph import Tensor

if TYPE_CHECKING:
    from isthmus.backends.gpu.compile.lowering.emitter import KernelEmitter

_OPTIONS = ("-cl-std=CL1.2", "-cl-mad-enable")


@dataclass(frozen=True)
class KernelOperand:
    """Memory that a kernel reads or writes.

    - `name`: Its name in the kernel.
    - `strides`: Strides in elements, one for each dimension of a walk.
    - `scale`, `zero`: The scale and zero point of a quantized tensor.
    - `start`: The element at which a walk begins, counted from `place`; only walks that go backwards need it.
    """

    name: str
    place: BufferRef
    storage: OperandStorage
    strides: Sequence[int] = (1,)
    scale: float = 1.0
    zero: int = 0
    start: int = 0


class KernelSource:
    """Parameters, declarations at the start of the body, and arguments of a kernel.

    Each method declares parameters and appends the arguments for them, in the same order.
    """

    def __init__(self, emitter: KernelEmitter) -> None:
        self._emitter = emitter
        # Declarations of parameters in OpenCL C, and statements at the start of the body, which declare pointers.
        self._parameters: list[str] = []
        self._head: list[str] = []
        self._arguments: list[Argument] = []

    def memory(self, name: str, place: BufferRef, c_type: str) -> None:
        """Declare memory as a pointer `name`.

        It takes two parameters, because a kernel gets a memory object and adds the offset in it by itself.
        """
        constant = "" if place.writes else "const "
        self._parameters += [f"global {constant}uchar *{name}_base", f"long {name}_at"]
        pointer = f"global {constant}{c_type} *"
        self._head.append(f"{pointer}{name} = ({pointer})({name}_base + {name}_at);")
        self._arguments.append(place)

    def tensor(self, name: str, tensor: Tensor) -> OperandStorage:
        """Declare a tensor that is read; return how it is stored."""
        operand = self._emitter.operand(name, tensor)
        self.declare(operand)
        return operand.storage

    def declare(self, *operands: KernelOperand) -> None:
        """Declare the memory of operands, and the scale and zero point of quantized ones.

        The parameters have the names that `OperandStorage` uses. One that is written has the scale in the form that
        `OperandStorage.steps` requires.
        """
        for operand in operands:
            name, storage = operand.name, operand.storage
            self.memory(name, operand.place, storage.c_type)
            if not storage.quantized:
                continue
            if not operand.place.writes:
                self.floats(**{f"{name}_scale": operand.scale})
            elif storage.steps == "quotient":
                self.floats(**{f"{name}_divisor": operand.scale})
            elif storage.steps == "product":
                self.floats(**{f"{name}_factor": float(np.float32(1) / np.float32(operand.scale))})
            self.floats(**{f"{name}_zero": float(operand.zero)})

    def ints(self, **values: int) -> None:
        """Declare 32-bit integers."""
        for name, value in values.items():
            if not -MAX_INDEX - 1 <= value <= MAX_INDEX:
                raise QnnError(Code.COMMON_NOT_SUPPORTED, f"argument {name} of a kernel", f"{value} has over 32 bits")
            self._parameters.append(f"int {name}")
            self._arguments.append(np.int32(value))

    def longs(self, **values: int) -> None:
        """Declare 64-bit integers."""
        for name, value in values.items():
            self._parameters.append(f"long {name}")
            self._arguments.append(np.int64(value))

    def floats(self, **values: float) -> None:
        """Declare floats."""
        for name, value in values.items():
            self._parameters.append(f"float {name}")
            self._arguments.append(np.float32(value))

    def launch(
        self, name: str, body: Sequence[str], items: Sequence[int], group: tuple[int, ...], prelude: str = ""
    ) -> None:
        """Emit a launch of the kernel; none if there are no work-items.

        - `body`: Its statements, and `prelude` functions that they call.
        - `items`: The work-items to launch. They are rounded up to whole work-groups, so kernels must check their
          bounds.
        - `group`: The size of a work-group, which is promised to the compiler.
        """
        if not prod(items):
            return
        # Built-in functions of OpenCL C cannot be names of kernels.
        name = f"isthmus_{name}"
        promise = f"__attribute__((reqd_work_group_size{(*group, 1, 1)[:3]})) "
        head = "\n".join(f"  {line}" for line in self._head)
        lines = "\n".join(body)
        source = f"{promise}kernel void {name}({', '.join(self._parameters)})\n{{\n{head}\n{lines}\n}}\n"
        rounded = tuple(-(-int(n) // each) * each for n, each in zip(items, group, strict=True))
        self._emitter.launch(Unit(VECTORS + prelude + source, _OPTIONS), name, self._arguments, rounded, group)


def by_axis(name: str, values: tuple[int, int, int]) -> dict[str, int]:
    """Name the values for depth, height and width; the axis letters are capitals unless `name` is lower case.

    >>> by_axis("O", (1, 2, 3)), by_axis("s", (1, 2, 3))
    ({'OD': 1, 'OH': 2, 'OW': 3}, {'sd': 1, 'sh': 2, 'sw': 3})
    """
    return {name + axis: value for axis, value in zip("dhw" if name.islower() else "DHW", values, strict=True)}
