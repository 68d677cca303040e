"""Conversions of single numbers from one kind to another. Floats out of the range of an integer saturate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from isthmus.engine.native.kernels import base, mathematics
from isthmus.engine.native.kernels.base import device
from isthmus.engine.native.kernels.mathematics import f32, select
from isthmus.engine.native.signatures.elementwise import SIZES

_ZERO = f32(0)
_TWO_TO_31, _BELOW_TWO_TO_31 = f32(2.0**31), f32(2.0**31 - 128)
_MAX_I32 = np.int32(2**31 - 1)


def number_type(kind: str) -> type:
    """Return the numpy type of a kind of numbers."""
    name = {"f": "float", "i": "int", "u": "uint"}[kind[0]]
    return np.dtype(f"{name}{kind[1:]}").type


@device
def _to_i32(x):  # type: ignore[no-untyped-def]
    """Convert a float to an integer, vectorisably: the value is first limited to the convertible range."""
    x = select(x == x, x, _ZERO)
    limited = mathematics.int_of_float(mathematics.clamp(x, -_TWO_TO_31, _BELOW_TWO_TO_31))
    return _MAX_I32 if x >= _TWO_TO_31 else limited


def _to_small(goal: str) -> Callable:
    """Return the conversion of a float to an integer of 8 or 16 bits, which saturates."""
    kind = number_type(goal)
    low, high = f32(np.iinfo(kind).min), f32(np.iinfo(kind).max)
    return device(lambda x: kind(mathematics.int_of_float(mathematics.clamp(select(x == x, x, _ZERO), low, high))))


def _saturating(source: str, goal: str) -> Callable:
    """Return the conversion of a float to an integer towards zero; values out of range saturate, NaN becomes 0."""
    if source == "f32" and goal == "i32":
        return _to_i32
    if source == "f32" and SIZES[goal] < 4:
        return _to_small(goal)
    bits = 8 * SIZES[goal]
    signed = goal[0] == "i"
    name = f"llvm.fpto{'s' if signed else 'u'}i.sat.i{bits}.{source}"
    llvm_source, numba_source = {"f32": (base.F32, types.float32), "f64": (base.F64, types.float64)}[source]
    numba_goal = getattr(types, f"{'int' if signed else 'uint'}{bits}")

    @intrinsic
    def convert(typing_context: Any, value: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(ir.IntType(bits), [llvm_source])
            function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
            return builder.call(function, args)

        return numba_goal(numba_source), emit

    return convert


def converter(source: str, goal: str) -> Callable:
    """Return the conversion from one kind of number to another."""
    if goal == "bool":
        return device(lambda x: np.uint8(x != 0))
    if source in ("f32", "f64") and goal not in ("f32", "f64"):
        return _saturating(source, goal)
    kind = number_type(goal)
    return device(lambda x: kind(x))
