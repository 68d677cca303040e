"""Conversion of the fused LSTM over a sequence: operands in QNN's order, two states kept between executions.

Functions in `CONVERTERS` take an operator's context, emit operations, and return the results (see `Converter`).
"""

from __future__ import annotations

from isthmus.frontends.tflite.elementwise import Converter
from isthmus.frontends.tflite.operator_context import OperatorContext
from isthmus.frontends.tflite.schema import Activation
from isthmus.graph import DataType, Tensor

INPUT, HIDDEN_STATE, CELL_STATE = 0, 18, 19
"""Positions of the operands that are not weights."""
WEIGHTS: dict[int, int] = {
    # input, recurrent, bias, peephole, projection
    1: 2, 2: 3, 3: 4, 16: 1,
    4: 6, 5: 7, 6: 8, 17: 5,
    7: 13, 8: 14, 9: 15, 21: 12,
    18: 9, 19: 10, 20: 11,
    22: 16, 23: 17,
}
"""TFLite's operand number for each weight operand of QNN."""
LAYER_NORM = range(20, 24)
"""TFLite's operand numbers of the layer-norm weights."""


def _sequence_lstm(site: OperatorContext) -> list[Tensor]:
    """Convert to an Lstm over a time-first sequence, whose last states become the new values of the two variables.

    `isthmus.graph.ops.recurrent` numbers its operands.
    """
    x = site.ranked(INPUT, 3)
    if x.dtype is not DataType.FLOAT_32:
        site.unsupported("a quantized LSTM is not supported")
    if site.options["activation"] != Activation.TANH or site.options["diagonal"]:
        site.unsupported("an LSTM with another activation than TANH, or diagonal weights, is not supported")
    if any(site.given(i) is not None for i in LAYER_NORM):
        site.unsupported("an LSTM with layer normalisation is not supported")
    time_major = bool(site.options["time_major"])
    if not time_major:
        x = site.step("Transpose", [x], {"perm": (1, 0, 2)})
    inputs: list[Tensor | None] = [None] * 24
    inputs[0], inputs[10], inputs[11] = x, site.input(HIDDEN_STATE), site.input(CELL_STATE)
    for target, source in WEIGHTS.items():
        tensor = site.given(source)
        inputs[target] = None if tensor is None else site.real(tensor)
    while inputs[-1] is None:
        inputs.pop()
    params = {
        "cell_clip_threshold": float(site.options["cell_clip"]),
        "output_clip_threshold": float(site.options["proj_clip"]),
    }
    sequence, cell, hidden = site.graph.emit("Lstm", inputs, params, name=f"{site.name}/Lstm", outputs=3)
    site.store(HIDDEN_STATE, hidden)
    site.store(CELL_STATE, cell)
    if time_major:
        return site.finish(sequence)
    return [site.emit("Transpose", [sequence], {"perm": (1, 0, 2)})]


CONVERTERS: dict[str, Converter] = {"UNIDIRECTIONAL_SEQUENCE_LSTM": _sequence_lstm}
