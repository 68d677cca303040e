"""Conversion between the floats of 16 bits that memory holds (f16, bf16) and the float32 that kernels compute with.

All functions take single values or vectors. Results are rounded to nearest, ties to even. On every target they have the
same bits, also those of infinities, NaN and denormal numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from isthmus.engine.native.target import Target

_I16, _I32, _HALF, _F32 = ir.IntType(16), ir.IntType(32), ir.HalfType(), ir.FloatType()
STORED = {"f16": _I16, "bf16": _I16}
"""The integers that store FLOAT_16 and BFLOAT_16, by the kernels' names of these types."""


def _like(value: Any, element: ir.Type) -> ir.Type:
    """Return the type of `element` in the shape of a value: a vector if the value is one."""
    return ir.VectorType(element, value.type.count) if isinstance(value.type, ir.VectorType) else element


def _constant(value: Any, element: ir.Type, number: float | int) -> Any:
    """Return a number in the shape of a value."""
    kind = _like(value, element)
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)


def _number_like(value: Any) -> Callable[[int], Any]:
    """Return the function for 32-bit integers in the shape of a value."""
    return lambda bits: _constant(value, _I32, bits)


def widen(builder: Any, stored: Any, kind: str, target: Target) -> Any:
    """Emit the conversion of stored 16-bit integers of a kind to float32, which is exact."""
    if kind == "bf16":
        wide = builder.zext(stored, _like(stored, _I32))
        return builder.bitcast(builder.shl(wide, _constant(stored, _I32, 16)), _like(stored, _F32))
    if target.converts_half:
        return builder.fpext(builder.bitcast(stored, _like(stored, _HALF)), _like(stored, _F32))
    return _widen_by_bits(builder, stored)


def narrow(builder: Any, value: Any, kind: str, target: Target) -> Any:
    """Emit the conversion of float32 to the 16-bit integers that store a kind, rounded once."""
    if kind == "bf16":
        return _narrow_to_bf16(builder, value)
    if target.converts_half:
        return builder.bitcast(builder.fptrunc(value, _like(value, _HALF)), _like(value, _I16))
    return _narrow_by_bits(builder, value)


def _widen_by_bits(builder: Any, stored: Any) -> Any:
    """Emit the conversion of f16 without an instruction for it."""
    number = _number_like(stored)
    wide = builder.zext(stored, _like(stored, _I32))
    magnitude = builder.and_(wide, number(0x7FFF))
    # In place of a float32's exponent, that of an f16 is smaller by the difference of their biases, 127 - 15.
    shifted = builder.bitcast(builder.shl(magnitude, number(13)), _like(stored, _F32))
    scaled = builder.bitcast(builder.fmul(shifted, _constant(stored, _F32, 2.0**112)), _like(stored, _I32))
    # Infinities get the largest exponent; a NaN also gets the bit of a quiet one, as from a processor's instruction.
    infinite = builder.icmp_unsigned(">=", magnitude, number(0x7C00))
    scaled = builder.select(infinite, builder.or_(scaled, number(0x7F800000)), scaled)
    undefined = builder.icmp_unsigned(">", magnitude, number(0x7C00))
    scaled = builder.select(undefined, builder.or_(scaled, number(0x00400000)), scaled)
    sign = builder.shl(builder.and_(wide, number(0x8000)), number(16))
    return builder.bitcast(builder.or_(scaled, sign), _like(stored, _F32))


def _narrow_by_bits(builder: Any, value: Any) -> Any:
    """Emit the conversion to f16 without an instruction for it."""
    number = _number_like(value)
    bits = builder.bitcast(value, _like(value, _I32))
    magnitude = builder.and_(bits, number(0x7FFFFFFF))
    sign = builder.and_(builder.lshr(bits, number(16)), number(0x8000))
    # Adding just under half of the last kept bit, and that bit itself, rounds ties to even when the rest is cut off.
    # The other term is the difference of the exponents' biases. Numbers from 65520 on carry into the exponent of
    # infinity.
    odd = builder.and_(builder.lshr(magnitude, number(13)), number(1))
    normal = builder.lshr(builder.add(builder.add(magnitude, number(0xC8000FFF)), odd), number(13))
    # The last bit of a denormal f16 is that of a float32 between 0.5 and 1: the addition rounds.
    small = builder.fadd(builder.bitcast(magnitude, _like(value, _F32)), _constant(value, _F32, 0.5))
    denormal = builder.sub(builder.bitcast(small, _like(value, _I32)), number(0x3F000000))
    result = builder.select(builder.icmp_unsigned("<", magnitude, number(0x38800000)), denormal, normal)
    large = builder.icmp_unsigned(">=", magnitude, number(0x47800000))
    result = builder.select(large, number(0x7C00), result)
    payload = builder.or_(builder.and_(builder.lshr(magnitude, number(13)), number(0x3FF)), number(0x7E00))
    result = builder.select(builder.icmp_unsigned(">", magnitude, number(0x7F800000)), payload, result)
    return builder.trunc(builder.or_(result, sign), _like(value, _I16))


def _narrow_to_bf16(builder: Any, value: Any) -> Any:
    """Emit the conversion to bf16: the upper half of the bits, rounded; a NaN stays one."""
    number = _number_like(value)
    bits = builder.bitcast(value, _like(value, _I32))
    upper = builder.lshr(bits, number(16))
    rounded = builder.lshr(builder.add(builder.add(bits, number(0x7FFF)), builder.and_(upper, number(1))), number(16))
    result = builder.select(builder.fcmp_unordered("uno", value, value), builder.or_(upper, number(0x40)), rounded)
    return builder.trunc(result, _like(value, _I16))
