"""Lowering of random numbers."""

from __future__ import annotations

import numpy as np

from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.graph import DataType
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.schedule import Step


def _refuses(step: Step) -> str | None:
    output = step.outputs[0]
    return None if output.dtype is DataType.FLOAT_32 else f"{output.describe()} is not float32"


def _emit(step: Step, e: Emitter) -> None:
    output, seed = step.outputs[0], step.inputs[1]
    params = {name: float(np.float32(value)) for name, value in step.params.items() if name != "random_stream"}
    if step.op == "RandomUniformLike":
        kernel, factor, summand = "random:numbers.uniform", params["high"] - params["low"], params["low"]
    else:
        kernel, factor, summand = "random:numbers.normal", params["scale"], params["mean"]
    e.emit(
        kernel, output=e.at(output), seed=e.constant(np.zeros(1, np.float32)) if seed is None else e.at(seed),
        execution=e.at(operand(step, 2)), stream=step.params["random_stream"], elements=output.elements, factor=factor,
        summand=summand,
    )  # fmt: skip


LOWERINGS: dict[str, Lowering] = dict.fromkeys(
    ("RandomNormalLike", "RandomUniformLike"), Lowering(_emit, refuses=_refuses)
)
