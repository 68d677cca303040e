"""Recurrent layers as data: their sizes, and the concatenated weights and biases of all gates.

Gates are stored one after the other, each padded to a number of units that the engine chooses (`padded`). The numbers
of operands are those of QNN's Lstm and Gru.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isthmus.graph import DataType, Tensor
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.schedule import Step

INITIAL = {"Lstm": (10, 11), "Gru": (13,)}
"""The operands besides the input that need not be constants: the initial state."""


@dataclass(frozen=True)
class RecurrentLayer:
    """The sizes of an Lstm or Gru step.

    - `steps`, `batch`, `inputs`: time steps of the sequence, sequences in the batch, and features of the input at each
      time step.
    - `units`, `hidden`: elements of the cell state and of the hidden state; they differ if there is a projection.
    - `gates`: gates with their own weights: three for a Gru and for an Lstm whose input gate is coupled to the forget
      gate, otherwise four.
    """

    steps: int
    batch: int
    inputs: int
    units: int
    hidden: int
    gates: int

    @property
    def is_coupled(self) -> bool:
        """Whether an Lstm has no separate input gate."""
        return self.gates == 3


def recurrent_layer(step: Step) -> RecurrentLayer:
    """Return the sizes of a step's layer."""
    source, recurrent = operand(step), operand(step, 4)
    steps, batch, inputs = source.dims if source.rank == 3 else (1, *source.dims)
    gates = 3 if step.op == "Gru" or optional(step, 16) is None else 4
    return RecurrentLayer(steps, batch, inputs, operand(step, 1).dims[0], recurrent.dims[1], gates)


def optional(step: Step, index: int) -> Tensor | None:
    """Return an operand, or None if it is absent."""
    return step.inputs[index] if index < len(step.inputs) else None


def constant(step: Step, index: int) -> np.ndarray | None:
    """Return the data of a constant operand, or None if it is absent."""
    tensor = optional(step, index)
    return None if tensor is None else tensor.data


def input_weights(step: Step, padded: int) -> np.ndarray:
    """Return the input weights of all gates, [inputs, gates * padded]."""
    return gate_matrix(step, (1, 2, 3) if recurrent_layer(step).gates == 3 else (1, 2, 3, 16), padded)


def input_biases(step: Step, padded: int) -> np.ndarray:
    """Return the biases that are added to the input's contribution to all gates, [gates * padded]."""
    if step.op == "Lstm":
        return gate_biases(step, ((7,), (8,), (9,), (21,))[: recurrent_layer(step).gates], padded)
    # With linear_before_reset, in[12] is part of the reset gate's operand.
    return gate_biases(step, ((7, 10), (8, 11), (9,) if step.params["linear_before_reset"] else (9, 12)), padded)


def gate_matrix(step: Step, indices: Sequence[int], padded: int) -> np.ndarray:
    """Concatenate gate weights, operands `indices` [units, features], to one matrix [features, gates * padded]."""
    parts = []
    for index in indices:
        weights = constant(step, index)
        assert weights is not None
        parts.append(np.pad(weights.T, ((0, 0), (0, padded - weights.shape[0]))))
    return np.concatenate(parts, axis=1)


def gate_biases(step: Step, groups: Sequence[tuple[int, ...]], padded: int) -> np.ndarray:
    """Return the sum of each gate's biases, padded and concatenated; `groups` has the operands of each gate."""
    total = np.zeros((len(groups), padded), np.float32)
    for row, indices in zip(total, groups, strict=True):
        for index in indices:
            bias = constant(step, index)
            if bias is not None:
                row[: bias.size] += bias
    return total.reshape(-1)


def clip(step: Step, name: str) -> float:
    """Return the clipping threshold that a parameter sets; infinity if the parameter is not positive."""
    value = float(step.params[name])
    return value if value > 0 else np.inf


def offsets(sizes: dict[str, int], alignment: int) -> dict[str, int]:
    """Return the offsets of consecutive parts of a work space, given their sizes; "end" is the size of the whole."""
    by_name, end = {}, 0
    for name, size in sizes.items():
        by_name[name] = end
        end += -(-size // alignment) * alignment
    return {**by_name, "end": end}


def refuses_recurrent(step: Step) -> str | None:
    """Return why no engine executes a step: all operands must be floats and, except input and initial state,
    constants.
    """
    if any(t is not None and t.dtype is not DataType.FLOAT_32 for t in (*step.inputs, *step.outputs)):
        return "only FLOAT_32 operands are supported"
    if step.clamp is not None:
        return "it cannot be fused with an activation"
    if step.outputs[0].elements == 0:
        return "a sequence without steps is not supported"
    for index, tensor in enumerate(step.inputs):
        if tensor is not None and index not in (0, *INITIAL[step.op]) and not tensor.is_static:
            return f"in[{index}], weights or bias, must be a constant"
    return None
