"""An Lstm and a Gru that keep their states between executions, and a reference that computes them step by step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from isthmus import qnn
from isthmus.frontends.composed.entries import GraphEntry, NodeEntry
from isthmus.graph import DataType, TensorType
from support.dlc_write import node, tensor

TIME, FEATURES, UNITS = 2, 3, 4
"""Also in `capi/programs/recurrent_graph.h`."""
FORMS = {"Lstm": "WWWRRRBBBSS----WR---B---", "Gru": "WWWRRRBBBBBBS-"}
"""The inputs behind the sequence in QNN's order: weights, recurrent weights, biases, states, and absent ones.
The last one, absent too, is the reset of newer definitions."""
OUTPUT_STATES = {"Lstm": (11, 10), "Gru": (13,)}
"""The inputs whose next values the outputs behind the first one are."""
F32, STATE = DataType.FLOAT_32, TensorType.APP_READWRITE


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@dataclass(frozen=True)
class Recurrent:
    """A layer of one of the two operations with weights and initial states of its own."""

    op: str

    @cached_property
    def operands(self) -> dict[int, np.ndarray]:
        """What each input holds, by its index; absent inputs are left out."""
        random = np.random.default_rng(19)
        state = (1, UNITS) if self.op == "Lstm" else (1, 1, UNITS)
        dims = {"W": (UNITS, FEATURES), "R": (UNITS, UNITS), "B": (UNITS,), "S": state}
        return {
            index: random.standard_normal(dims[kind]).astype(np.float32)
            for index, kind in enumerate(FORMS[self.op], 1)
            if kind != "-"
        }

    @cached_property
    def frames(self) -> np.ndarray:
        """Sequences for six executions, each [TIME, 1, FEATURES]."""
        return np.random.default_rng(20).standard_normal((6, TIME, 1, FEATURES)).astype(np.float32)

    @cached_property
    def expected(self) -> np.ndarray:
        """What the executions give one after the other, in float64."""
        step = self._lstm if self.op == "Lstm" else self._gru
        held = {index: array.astype(np.float64) for index, array in self.operands.items()}
        return np.array([[step(held, x) for x in frame] for frame in self.frames.astype(np.float64)])

    @staticmethod
    def _lstm(v: dict[int, np.ndarray], x: np.ndarray) -> np.ndarray:
        forget, cell, output, input_ = (
            x @ v[w].T + v[10] @ v[r].T + v[b] for w, r, b in ((1, 4, 7), (2, 5, 8), (3, 6, 9), (16, 17, 21))
        )
        v[11] = _sigmoid(forget) * v[11] + _sigmoid(input_) * np.tanh(cell)
        v[10] = _sigmoid(output) * np.tanh(v[11])
        return v[10]

    @staticmethod
    def _gru(v: dict[int, np.ndarray], x: np.ndarray) -> np.ndarray:
        [h] = v[13]
        update = _sigmoid(x @ v[1].T + v[7] + h @ v[4].T + v[10])
        reset = _sigmoid(x @ v[2].T + v[8] + h @ v[5].T + v[11])
        new = np.tanh(x @ v[3].T + v[9] + (reset * h) @ v[6].T + v[12])
        h = (1 - update) * new + update * h
        v[13] = h[None]
        return h

    @property
    def params(self) -> dict[str, Any]:
        """The parameters by which the sequence has the time first."""
        return {"time_major": True} if self.op == "Lstm" else {}

    @property
    def blob(self) -> bytes:
        """All that the inputs hold, in their order."""
        return b"".join(array.tobytes() for array in self.operands.values())

    def is_state(self, index: int) -> bool:
        """Return whether an input is a state."""
        return index in OUTPUT_STATES[self.op]

    def compose(self, context: qnn.Context) -> qnn.Graph:
        """The layer as a graph of QNN's API, with inputs "x" and outputs "y"."""
        graph = context.create_graph(self.op)
        x = graph.create_tensor("x", TensorType.APP_WRITE, F32, (TIME, 1, FEATURES))
        y = graph.create_tensor("y", TensorType.APP_READ, F32, (TIME, 1, UNITS))
        inputs: dict[int, Any] = {
            index: graph.create_tensor(
                f"in{index}", STATE if self.is_state(index) else TensorType.STATIC, F32, array.shape, data=array
            )
            for index, array in self.operands.items()
        }
        outputs = [y, *(inputs[index] for index in OUTPUT_STATES[self.op])]
        graph.add_node("layer", self.op, [x, *map(inputs.get, range(1, len(FORMS[self.op]) + 1))], outputs)
        return graph

    def entry(self) -> GraphEntry:
        """The layer as a DLC holds it."""
        tensors = [
            tensor(f"in{index}", STATE if self.is_state(index) else TensorType.STATIC, array.shape, data=array)
            for index, array in self.operands.items()
        ]
        names = [f"in{index}" if index in self.operands else "" for index in range(1, len(FORMS[self.op]) + 1)]
        layer: NodeEntry = node(
            "layer", self.op, ["x", *names], ["y", *(f"in{index}" for index in OUTPUT_STATES[self.op])], self.params
        )
        x = tensor("x", TensorType.APP_WRITE, (TIME, 1, FEATURES))
        y = tensor("y", TensorType.APP_READ, (TIME, 1, UNITS))
        return GraphEntry(self.op, (x, y, *tensors), (layer,))


LAYERS = [Recurrent("Lstm"), Recurrent("Gru")]


def check(layer: Recurrent, found: Any) -> None:
    """Compare results of the executions with the reference."""
    np.testing.assert_allclose(np.asarray(found), layer.expected, rtol=1e-5, atol=1e-6)
