"""Random ONNX models as cases, with ONNX Runtime's answers."""

from __future__ import annotations

from functools import partial
from random import Random

import numpy as np
from frontends.onnx.graphs import expected
from onnx import ModelProto
from support import oracles

from random_operations import onnx_operations, onnx_quantized
from random_operations.comparison import Arrays, Case, Make
from random_operations.onnx_model import OnnxModel, Refused


def _case(m: OnnxModel) -> Case:
    made = m.build()
    try:
        answers = expected(made, m.feeds)
    except oracles.Inexact:
        raise
    except Exception as problem:
        raise Refused(str(problem)) from None
    if not all(a.size for a in answers.values()):
        raise Refused("an answer without elements")
    if any(a.dtype.kind == "f" and np.abs(a[np.isfinite(a)]).max(initial=0) > 1e30 for a in answers.values()):
        raise Refused("the least number there is, for the maximum of nothing")
    return Case(".onnx", made.SerializeToString(), m.feeds, answers, m.describe)


def _unfused(made: ModelProto, feeds: Arrays) -> dict[str, np.ndarray]:
    """Ask ONNX Runtime for answers with floats between DequantizeLinear and QuantizeLinear."""
    return oracles.onnx_answers(made.SerializeToString(), feeds, fuse=False)


def _quantized_case(m: OnnxModel) -> Case:
    """Fused and unfused quantized arithmetic differ by a step, in ONNX Runtime too: either is right."""
    plain = _case(m)
    others = (_unfused(m.build(), m.feeds),)
    return Case(plain.suffix, plain.content, plain.feeds, plain.answers, plain.describe, 1, others)


def _single(family: str, rng: Random) -> Case:
    return _case(onnx_operations.single(rng, family))


def _chain(length: int, rng: Random) -> Case:
    return _case(onnx_operations.chain(rng, length))


def _wrapped(family: str, rng: Random) -> Case:
    return _quantized_case(onnx_quantized.wrapped(rng, family))


def _wrapped_pair(rng: Random) -> Case:
    pair = [rng.choice(onnx_quantized.MOVEMENTS), rng.choice(onnx_quantized.COMPUTED)]
    rng.shuffle(pair)
    return _quantized_case(onnx_quantized.wrapped(rng, *pair))


def _of(make: object, rng: Random) -> Case:
    return _quantized_case(make(rng))  # type: ignore[operator]


MAKERS: dict[str, Make] = {
    **{f"onnx {family}": partial(_single, family) for family in onnx_operations.FAMILIES},
    "onnx chain of two": partial(_chain, 2),
    "onnx chain of five": partial(_chain, 5),
    **{f"qdq {f}": partial(_wrapped, f) for f in (*onnx_quantized.COMPUTED, *onnx_quantized.MOVEMENTS)},
    "qdq pair": _wrapped_pair,
    "qlinear convolution": partial(_of, onnx_quantized.integer_convolution),
    "qlinear product": partial(_of, onnx_quantized.integer_product),
    "qlinear operators": partial(_of, onnx_quantized.integer_operators),
}
