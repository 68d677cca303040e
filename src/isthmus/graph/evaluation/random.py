"""Reference computations of random numbers: Philox 4x32 with 10 rounds, by J. Salmon and others (2011).

The numbers are the same as those of the engines, bit for bit: everything is integers, or double precision in a fixed
order of operations.
"""

from __future__ import annotations

import numpy as np

from isthmus.graph.evaluation import Computation, Outputs, Params, Values, absent

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_MASK = np.uint64(0xFFFFFFFF)

# P. Acklam's rational approximation of the inverse of the normal distribution: relative error 1.2e-9. The polynomials
# of the middle are in the square of the distance from 1/2, those of the tails in sqrt(-2 log p).
MIDDLE = (-3.969683028665376e01, 2.209460984245205e02, -2.759285104469687e02, 1.383577518672690e02,
          -3.066479806614716e01, 2.506628277459239e00)  # fmt: skip
MIDDLE_BELOW = (-5.447609879822406e01, 1.615858368580409e02, -1.556989798598866e02, 6.680131188771972e01,
                -1.328068155288572e01, 1.0)  # fmt: skip
TAIL = (-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e00, -2.549732539343734e00,
        4.374664141464968e00, 2.938163982698783e00)  # fmt: skip
TAIL_BELOW = (7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e00, 3.754408661907416e00, 1.0)
TAIL_ENDS = 0.02425
LOG_TERMS = 12
"""Terms of the series of the logarithm, in powers of (m - 1) / (m + 1) with m from 1/sqrt(2) to sqrt(2)."""
LOG_2 = 0.6931471805599453
HALF_ROOT = 0.7071067811865476


def random_bits(seed: int, stream: int, execution: int, count: int) -> np.ndarray:
    """Return `count` random integers of 32 bits. Each block of four is one call of Philox.

    The key is (seed, stream), the counter is (block, execution, 0, 0).
    """
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    words = [blocks & _MASK, np.full_like(blocks, execution), np.zeros_like(blocks), np.zeros_like(blocks)]
    keys = [seed, stream]
    for _ in range(ROUNDS):
        products = [np.uint64(multiplier) * word for multiplier, word in zip(MULTIPLIERS, words[::2], strict=True)]
        (high_0, low_0), (high_1, low_1) = ((product >> np.uint64(32), product & _MASK) for product in products)
        words = [high_1 ^ words[1] ^ np.uint64(keys[0]), low_1, high_0 ^ words[3] ^ np.uint64(keys[1]), low_0]
        keys = [(key + increment) & 0xFFFFFFFF for key, increment in zip(keys, INCREMENTS, strict=True)]
    return np.stack(words, -1).reshape(-1)[:count]


def uniform(seed: int, stream: int, execution: int, count: int) -> np.ndarray:
    """Return random numbers from 0 up to but not including 1: multiples of 2^-24, so that each is a float."""
    return (random_bits(seed, stream, execution, count) >> np.uint64(8)).astype(np.float64) * 2.0**-24


def normal(seed: int, stream: int, execution: int, count: int) -> np.ndarray:
    """Return normally distributed random numbers."""
    p = (random_bits(seed, stream, execution, count).astype(np.float64) + 0.5) * 2.0**-32
    q = p - 0.5
    r = q * q
    middle = _polynomial(MIDDLE, r) * q / _polynomial(MIDDLE_BELOW, r)
    t = np.sqrt(-2.0 * _log(np.minimum(p, 1.0 - p)))
    tail = _polynomial(TAIL, t) / _polynomial(TAIL_BELOW, t)
    tail = np.where(q < 0, tail, -tail)
    return np.where(np.abs(q) <= 0.5 - TAIL_ENDS, middle, tail)


def _polynomial(coefficients: tuple[float, ...], x: np.ndarray) -> np.ndarray:
    """Evaluate a polynomial whose highest coefficient is first."""
    result = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


def _log(x: np.ndarray) -> np.ndarray:
    """Compute the natural logarithm by additions, multiplications and one division."""
    fraction, exponent = np.frexp(x)
    small = fraction < HALF_ROOT
    fraction, exponent = np.where(small, fraction * 2.0, fraction), np.where(small, exponent - 1, exponent)
    z = (fraction - 1.0) / (fraction + 1.0)
    square, series = z * z, np.zeros_like(x)
    for term in range(LOG_TERMS - 1, -1, -1):
        series = series * square + 1.0 / (2 * term + 1)
    return exponent.astype(np.float64) * LOG_2 + 2.0 * z * series


def seed_bits(values: Values) -> int:
    """Return the bits of the seed, a float, as an unsigned integer; 0 if there is none."""
    return 0 if absent(values, 1) else int(np.asarray(values[1], np.float32).reshape(-1).view(np.uint32)[0])


def _execution(values: Values) -> int:
    """Return the number of the execution, as an unsigned integer."""
    return 0 if absent(values, 2) else int(np.reshape(values[2], -1)[0]) & 0xFFFFFFFF


def _uniform(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    low, high = float(np.float32(params["low"])), float(np.float32(params["high"]))
    numbers = uniform(seed_bits(values), params["random_stream"], _execution(values), outputs[0].elements)
    return (numbers * (high - low) + low).astype(np.float32).reshape(outputs[0].dims)


def _normal(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    mean, scale = float(np.float32(params["mean"])), float(np.float32(params["scale"]))
    numbers = normal(seed_bits(values), params["random_stream"], _execution(values), outputs[0].elements)
    return (numbers * scale + mean).astype(np.float32).reshape(outputs[0].dims)


COMPUTATIONS: dict[str, Computation] = {"RandomUniformLike": _uniform, "RandomNormalLike": _normal}
