"""Reference computations of recurrent layers, step by step in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.graph.evaluation import Computation, Outputs, Params, Values, wide
from isthmus.graph.ops.functions import sigmoid
from isthmus.graph.ops.recurrent import REVERSE


def _operands(values: Values, count: int) -> list[Any]:
    """Return all operands in float64, None for absent ones."""
    padded = [*values, *[None] * (count - len(values))]
    return [None if v is None else wide(v) for v in padded]


def _clip(x: np.ndarray, threshold: float) -> np.ndarray:
    """Limit the magnitude of x; a threshold of 0 means no limit."""
    return np.clip(x, -threshold, threshold) if threshold > 0 else x


def _lstm(values: Values, params: Params, outputs: Outputs) -> list[np.ndarray]:
    """Compute an Lstm; `isthmus.graph.ops.recurrent` numbers its operands."""
    v = _operands(values, 24)
    x = v[0] if v[0].ndim == 3 else v[0][None]
    hidden, cell = v[10], v[11]

    def gate(step: np.ndarray, weights: int, recurrent: int, bias: int, peephole: int | None = None) -> np.ndarray:
        """Return the sum of a gate before its activation; the integers are indices of operands."""
        total = step @ v[weights].T + hidden @ v[recurrent].T + v[bias]
        return total + cell * v[peephole] if peephole is not None and v[peephole] is not None else total

    out = np.zeros((*x.shape[:2], v[4].shape[1]))
    times = range(x.shape[0])
    for time in reversed(times) if params["direction"] == REVERSE else times:
        step = x[time]
        forget = sigmoid(gate(step, 1, 4, 7, 19))
        input_gate = 1 - forget if v[16] is None else sigmoid(gate(step, 16, 17, 21, 18))
        candidate = np.tanh(gate(step, 2, 5, 8))
        cell = _clip(forget * cell + input_gate * candidate, params["cell_clip_threshold"])
        hidden = sigmoid(gate(step, 3, 6, 9, 20)) * np.tanh(cell)
        if v[22] is not None:
            hidden = hidden @ v[22].T + (0 if v[23] is None else v[23])
            hidden = _clip(hidden, params["output_clip_threshold"])
        out[time] = hidden
    return [out, cell, hidden]


def _gru(values: Values, params: Params, outputs: Outputs) -> list[np.ndarray]:
    """Compute a Gru; `isthmus.graph.ops.recurrent` numbers its operands."""
    v = _operands(values, 14)
    x, units = v[0], v[1].shape[0]
    v[7:13] = [np.zeros(units) if bias is None else bias for bias in v[7:13]]
    hidden = np.zeros((x.shape[1], units)) if v[13] is None else v[13][0]
    out = np.zeros((*x.shape[:2], units))
    times = range(x.shape[0])
    for time in reversed(times) if params["direction"] == REVERSE else times:
        step = x[time]
        update = sigmoid(step @ v[1].T + v[7] + hidden @ v[4].T + v[10])
        reset = sigmoid(step @ v[2].T + v[8] + hidden @ v[5].T + v[11])
        if params["linear_before_reset"]:
            new = np.tanh(step @ v[3].T + v[9] + reset * (hidden @ v[6].T + v[12]))
        else:
            new = np.tanh(step @ v[3].T + v[9] + (reset * hidden) @ v[6].T + v[12])
        hidden = update * hidden + (1 - update) * new
        out[time] = hidden
    return [out, hidden[None]]


COMPUTATIONS: dict[str, Computation] = {"Lstm": _lstm, "Gru": _gru}
