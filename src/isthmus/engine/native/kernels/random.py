"""Random numbers by Philox 4x32: the same bits on every target, however many threads compute them.

Everything is integers, or double precision without fused or reordered operations, as in
`isthmus.graph.evaluation.random`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from isthmus.engine.native.kernels.base import device, generated, kernel, load_u32, share, store_f32
from isthmus.engine.native.signatures.random import NUMBERS
from isthmus.engine.native.target import Target
from isthmus.graph.evaluation import random as reference

_MASK = 0xFFFFFFFF


@device
def _block(block, execution, seed, stream):  # type: ignore[no-untyped-def]
    """Return four random integers of 32 bits."""
    a, b, c, d = block & _MASK, execution, np.int64(0), np.int64(0)
    for _ in range(reference.ROUNDS):
        # Products wrap to 64 bits; after the shift the mask removes copies of the sign.
        product_a, product_c = reference.MULTIPLIERS[0] * a, reference.MULTIPLIERS[1] * c
        a, b, c, d = (
            (product_c >> 32 & _MASK) ^ b ^ seed,
            product_c & _MASK,
            (product_a >> 32 & _MASK) ^ d ^ stream,
            product_a & _MASK,
        )
        seed, stream = (seed + reference.INCREMENTS[0]) & _MASK, (stream + reference.INCREMENTS[1]) & _MASK
    return a, b, c, d


@device
def _uniform(bits):  # type: ignore[no-untyped-def]
    """Return a number from 0 up to but not including 1."""
    return np.float64(bits >> 8) * 2.0**-24


@device
def _polynomial(coefficients, x):  # type: ignore[no-untyped-def]
    """Evaluate a polynomial whose highest coefficient is first."""
    result = coefficients[0]
    for k in range(1, len(coefficients)):
        result = result * x + coefficients[k]
    return result


@device
def _log(odd):  # type: ignore[no-untyped-def]
    """Return the logarithm of an integer times 2^-33."""
    fraction, exponent = np.float64(odd), -33
    while fraction >= 1.0:
        fraction, exponent = fraction * 0.5, exponent + 1
    if fraction < reference.HALF_ROOT:
        fraction, exponent = fraction * 2.0, exponent - 1
    z = (fraction - 1.0) / (fraction + 1.0)
    square, series = z * z, 0.0
    for k in range(reference.LOG_TERMS):
        series = series * square + 1.0 / (2 * (reference.LOG_TERMS - 1 - k) + 1)
    return exponent * reference.LOG_2 + 2.0 * z * series


@device
def _normal(bits):  # type: ignore[no-untyped-def]
    """Return a normally distributed number: the inverse of the distribution at (bits + 1/2) * 2^-32."""
    p = (np.float64(bits) + 0.5) * 2.0**-32
    q = p - 0.5
    if abs(q) <= 0.5 - reference.TAIL_ENDS:
        r = q * q
        return _polynomial(reference.MIDDLE, r) * q / _polynomial(reference.MIDDLE_BELOW, r)
    odd = 2 * bits + 1
    t = math.sqrt(-2.0 * _log(odd if q < 0.0 else (1 << 33) - odd))
    tail = _polynomial(reference.TAIL, t) / _polynomial(reference.TAIL_BELOW, t)
    return tail if q < 0.0 else -tail


_OF_BITS = {"uniform": _uniform, "normal": _normal}


@generated
def numbers(target: Target, variant: str) -> Any:
    """Write random numbers. Variant: their distribution."""
    of_bits = _OF_BITS[variant]

    @kernel(NUMBERS)
    def execute(output, seed, execution, stream, elements, factor, summand, tid, nt):
        seed = np.int64(load_u32(seed, 0))
        execution = np.int64(load_u32(execution, 0))
        first, last = share((elements + 3) // 4, tid, nt)
        for block in range(first, last):
            bits = _block(block, execution, seed, stream)
            for k in range(4):
                if 4 * block + k < elements:
                    store_f32(output, 4 * block + k, np.float32(of_bits(bits[k]) * factor + summand))

    return execute
