"""Models with 16-bit activations and 8-bit weights: LiteRT's numbers, bit for bit where its arithmetic is plain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isthmus
from frontends.tflite.build import T, options, single
from frontends.tflite.runners import LiteRtRunner

RNG = np.random.default_rng(0)
SCALES = RNG.uniform(0.002, 0.01, 8).astype(np.float32)
INPUT = np.float32(0.0011)
BIAS = T("i64", (8,), RNG.integers(-(1 << 20), 1 << 20, 8), SCALES * INPUT, np.zeros(8, int))
STEP = {"strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1}
PAIR = (33, 40)


def halves(*dims: int, scale: float = 2**-12) -> T:
    """A 16-bit tensor; its zero point is always 0."""
    return T("i16", dims, scale=scale)


def filters(*dims: int, axis: int) -> T:
    """8-bit weights with a scale for each filter."""
    return T("i8", dims, RNG.integers(-127, 128, dims), SCALES, np.zeros(8, int), axis)


def one_scale(*dims: int) -> T:
    """8-bit weights with one scale."""
    return T("i8", dims, RNG.integers(-127, 128, dims), 0.01)


CASES: dict[str, tuple[str, Sequence[T], T, Any]] = {
    "conv": ("CONV_2D", [halves(2, 7, 9, 5, scale=INPUT), filters(8, 3, 3, 5, axis=0), BIAS],
             halves(2, 7, 9, 8, scale=0.013), options("Conv2D", padding=0, **STEP)),
    "conv with relu": ("CONV_2D", [halves(2, 7, 9, 5, scale=INPUT), filters(8, 3, 3, 5, axis=0), BIAS],
                       halves(2, 5, 7, 8, scale=0.013),
                       options("Conv2D", padding=1, fusedActivationFunction=1, **STEP)),
    "depthwise": ("DEPTHWISE_CONV_2D", [halves(2, 7, 9, 8, scale=INPUT), filters(1, 3, 3, 8, axis=3), BIAS],
                  halves(2, 7, 9, 8, scale=0.003), options("DepthwiseConv2D", padding=0, depthMultiplier=1, **STEP)),
    "transposed": ("TRANSPOSE_CONV", [T("i32", (4,), [1, 14, 18, 8]), filters(8, 3, 3, 5, axis=0),
                                      halves(1, 7, 9, 5, scale=INPUT)],
                   halves(1, 14, 18, 8, scale=0.01), options("TransposeConv", padding=0, strideW=2, strideH=2)),
    "fully connected": ("FULLY_CONNECTED", [halves(20, 40, scale=INPUT), one_scale(8, 40),
                                            T("i64", (8,), RNG.integers(-999, 999, 8), 0.01 * INPUT)],
                        halves(20, 8, scale=0.01), options("FullyConnected")),
    "add": ("ADD", [halves(*PAIR, scale=0.0011), halves(*PAIR, scale=0.0007)], halves(*PAIR, scale=0.002),
            options("Add")),
    "subtract": ("SUB", [halves(*PAIR, scale=0.0011), halves(*PAIR, scale=0.0007)], halves(*PAIR, scale=0.002),
                 options("Sub")),
    "multiply": ("MUL", [halves(*PAIR, scale=0.0011), halves(*PAIR, scale=0.0007)], halves(*PAIR, scale=0.002),
                 options("Mul")),
    "maximum": ("MAXIMUM", [halves(*PAIR), halves(*PAIR)], halves(*PAIR), options("MaximumMinimum")),
    "average": ("AVERAGE_POOL_2D", [halves(1, 8, 8, 5)], halves(1, 4, 4, 5),
                options("Pool2D", padding=0, strideW=2, strideH=2, filterWidth=3, filterHeight=3)),
    "largest": ("MAX_POOL_2D", [halves(1, 8, 8, 5)], halves(1, 4, 4, 5),
                options("Pool2D", padding=1, strideW=2, strideH=2, filterWidth=2, filterHeight=2)),
    "from 8 bits": ("QUANTIZE", [T("i8", PAIR, scale=0.05, zero=3)], halves(*PAIR, scale=0.0003), None),
    "to 8 bits": ("QUANTIZE", [halves(*PAIR, scale=0.0003)], T("i8", PAIR, scale=0.05, zero=3), None),
    "to another scale": ("QUANTIZE", [halves(*PAIR, scale=0.0003)], halves(*PAIR, scale=0.0005), None),
    "to 32 bits": ("QUANTIZE", [halves(*PAIR, scale=0.0003)], T("i32", PAIR, scale=0.0001), None),
    "relu": ("RELU", [halves(*PAIR, scale=0.0003)], halves(*PAIR, scale=0.0002), None),
    "leaky relu": ("LEAKY_RELU", [halves(*PAIR, scale=0.0003)], halves(*PAIR, scale=0.0002),
                   options("LeakyRelu", alpha=0.2)),
    "pad": ("PAD", [halves(2, 3, 4), T("i32", (3, 2), [[0, 1], [2, 1], [0, 0]])], halves(3, 6, 4), None),
    "slice": ("STRIDED_SLICE", [halves(*PAIR), *(T("i32", (2,), v) for v in ([1, 3], [33, 40], [2, 1]))],
              halves(16, 37), options("StridedSlice")),
}  # fmt: skip


def answers(made: bytes, inputs: Sequence[T], folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Our result and LiteRT's, for numbers of the whole range."""
    feeds = [
        RNG.integers(-128 if t.type == "i8" else -32768, 128 if t.type == "i8" else 32768, t.shape).astype(
            np.int8 if t.type == "i8" else np.int16
        )
        for t in inputs
        if t.data is None
    ]
    path = folder / "model.tflite"
    path.write_bytes(made)
    with isthmus.Session(path) as session:
        [own] = session.run(dict(zip(session.inputs, feeds, strict=True))).values()
    [theirs] = LiteRtRunner(made)(*feeds)
    return own, theirs


@pytest.mark.parametrize("name", CASES)
def test_16_bit_operators_give_litert_s_numbers(name: str, tmp_path: Path) -> None:
    code, inputs, output, made = CASES[name]
    own, theirs = answers(single(code, inputs, [output], made), inputs, tmp_path)
    # LiteRT rounds each operand of a sum to an integer, and some negative numbers down; ours are the nearest.
    steps = 1 if name in ("add", "subtract", "leaky relu", "to 8 bits") else 0
    assert np.abs(own.astype(int) - theirs).max() <= steps


@pytest.mark.parametrize(("code", "steps"), [("LOGISTIC", 2), ("TANH", 3), ("SOFTMAX", 8)])
def test_functions_of_16_bits_are_near_litert_s_tables(code: str, steps: int, tmp_path: Path) -> None:
    x = halves(4, 500, scale=0.0003)
    made = options("Softmax", beta=1.0) if code == "SOFTMAX" else None
    own, theirs = answers(single(code, [x], [halves(4, 500, scale=2**-15)], made), [x], tmp_path)
    assert np.abs(own.astype(int) - theirs).max() <= steps
