"""LSTM, GRU and RNN. Each direction becomes one layer over the sequence, or unrolled steps if there is none.

Functions in `CONVERTERS` take a node, emit operations, and return the node's results (see `Converter`).
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.frontends.onnx.layout import OnnxValue
from isthmus.frontends.onnx.movement import join, slice_value
from isthmus.frontends.onnx.node import Converter, OnnxNode
from isthmus.graph import Tensor

_DIRECTIONS = {"forward": (0,), "reverse": (1,), "bidirectional": (0, 1)}
"""Values of the operations' direction parameter, one for each layer."""
_MAX_STEPS = 512
"""The most steps that are unrolled."""


_RNN_ACTIVATIONS = {"tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid"}
"""The operations of the functions that an RNN may have."""


def _directions(node: OnnxNode, activations: Sequence[str] | None = None) -> tuple[int, ...]:
    """Return the directions of the layer, after checking what all three operators share.

    `activations` are the functions that the operation has for one direction; others are not supported. None if the
    caller checks them.
    """
    direction = node.attr("direction", "forward")
    if direction not in _DIRECTIONS:
        node.refuse(f"direction '{direction}' is unknown")
    directions = _DIRECTIONS[direction]
    requested = [name.lower() for name in node.attr("activations", ())]
    if activations is not None and requested and requested != [name.lower() for name in activations] * len(directions):
        node.unsupported(f"activations {', '.join(node.attr('activations'))}")
    if node.attr("clip"):
        node.unsupported("clip")
    return directions


def _sequence(node: OnnxNode) -> OnnxValue:
    """Return the input as [time, batch, features]."""
    x = node.value(0)
    if x.rank != 3:
        node.refuse(f"its input must have rank 3, has rank {x.rank}")
    if node.attr("layout", 0):
        x = OnnxValue(x.tensor, (x.perm[1], x.perm[0], x.perm[2]))
    lengths = node.optional(4)
    if lengths is not None and any(n != x.dims[0] for n in node.array(4).reshape(-1)):
        node.unsupported("sequences of different lengths")
    return x


def _part(node: OnnxNode, value: OnnxValue | None, direction: int, begin: int, end: int) -> Tensor | None:
    """Return rows begin..end of one direction of a weight [directions, rows, …], without the first axis."""
    if value is None:
        return None
    part = slice_value(node, value, {0: (direction, direction + 1, 1), 1: (begin, end, 1)})
    return node.builder.materialized(node.builder.reshaped(part, part.dims[1:]))


def _state(node: OnnxNode, index: int, direction: int, batch: int, units: int) -> Tensor | None:
    """Return one direction of an initial state, as [batch, units]."""
    value = node.optional(index)
    if value is None:
        return None
    if node.attr("layout", 0):
        value = OnnxValue(value.tensor, (value.perm[1], value.perm[0], value.perm[2]))
    part = slice_value(node, value, {0: (direction, direction + 1, 1)})
    return node.builder.materialized(node.builder.reshaped(part, (batch, units)))


def _zeros(node: OnnxNode, *dims: int) -> Tensor:
    """Return a constant of zeros, of the type of the node's input."""
    zero = node.builder.scalar(0.0, node.value(0).tensor.dtype)
    tensor = node.builder.arrange(zero, (), (1,) * len(dims))
    return node.emit("Tile", [tensor], {"multiples": dims})


def _outputs(node: OnnxNode, sequences: list[Tensor], states: Sequence[list[Tensor]]) -> list[OnnxValue | None]:
    """Return Y [time, directions, batch, units] and the last states [directions, batch, units].

    Parameters
    ----------
    sequences
        The hidden states of all steps [time, batch, units], one tensor for each direction.
    states
        For each kind of state (hidden, cell), the last one of each direction.
    """
    time, batch, units = sequences[0].dims
    layout = node.attr("layout", 0)
    parts = [node.builder.reshaped(node.unmoved(t), (time, 1, batch, units)) for t in sequences]
    y = join(node, parts, 1)
    # Layout 1 has the batch first: [batch, time, directions, units] and [batch, directions, units].
    if layout:
        y = OnnxValue(y.tensor, tuple(y.perm[axis] for axis in (2, 0, 1, 3)))
    results: list[OnnxValue | None] = [y]
    for last in states:
        parts = [node.builder.reshaped(node.unmoved(t), (1, batch, units)) for t in last]
        state = join(node, parts, 0)
        results.append(OnnxValue(state.tensor, (state.perm[1], state.perm[0], state.perm[2])) if layout else state)
    return results


def _bias(node: OnnxNode, direction: int, gate: int, count: int, units: int) -> Tensor:
    """Return the sum of a gate's input bias and recurrent bias.

    Input 3 holds for each direction the input biases of all `count` gates, then their recurrent biases.
    """
    biases = node.optional(3)
    if biases is None:
        return _zeros(node, units)
    first = _part(node, biases, direction, gate * units, (gate + 1) * units)
    second = _part(node, biases, direction, (count + gate) * units, (count + gate + 1) * units)
    return node.emit("ElementWiseAdd", [first, second])


def _opposite(node: OnnxNode, tensor: Tensor | None) -> Tensor | None:
    """Return the negated tensor, None if there is none."""
    return None if tensor is None else node.emit("ElementWiseNeg", [tensor])


def _lstm(node: OnnxNode) -> list[OnnxValue | None]:
    """Emit an Lstm for each direction; `isthmus.graph.ops.recurrent` numbers its operands."""
    directions = _directions(node, ("Sigmoid", "Tanh", "Tanh"))
    x, weights, recurrence = _sequence(node), node.value(1), node.value(2)
    tensor = node.builder.materialized(x)
    units, batch = weights.dims[1] // 4, x.dims[1]
    sequences, hidden, cells = [], [], []
    for direction in range(len(directions)):
        # ONNX orders gates as input, output, forget, cell.
        w, r = (
            [_part(node, value, direction, gate * units, (gate + 1) * units) for gate in range(4)]
            for value in (weights, recurrence)
        )
        b: list[Tensor | None] = [_bias(node, direction, gate, 4, units) for gate in range(4)]
        initial_h = _state(node, 5, direction, batch, units) or _zeros(node, batch, units)
        initial_c = _state(node, 6, direction, batch, units) or _zeros(node, batch, units)
        peepholes = [_part(node, node.optional(7), direction, gate * units, (gate + 1) * units) for gate in range(3)]
        i, o, f, c = range(4)
        if node.attr("input_forget", 0):
            # The forget gate is 1 - input gate, which is the input gate with its sum negated. The operation computes
            # the input gate as 1 - forget gate if the input gate has no weights.
            w[f], r[f], b[f], peepholes[2] = (_opposite(node, t) for t in (w[i], r[i], b[i], peepholes[0]))
            w[i] = r[i] = b[i] = peepholes[0] = None
        operands: list[Tensor | None] = [
            tensor, w[f], w[c], w[o], r[f], r[c], r[o], b[f], b[c], b[o], initial_h, initial_c,
            None, None, None, None, w[i], r[i], peepholes[0], peepholes[2], peepholes[1], b[i],
        ]  # fmt: skip
        y, last_c, last_h = node.builder.emit("Lstm", operands, {"direction": directions[direction]}, outputs=3)
        sequences.append(y)
        hidden.append(last_h)
        cells.append(last_c)
    return _outputs(node, sequences, [hidden, cells])


def _gru(node: OnnxNode) -> list[OnnxValue | None]:
    """Emit a Gru for each direction; `isthmus.graph.ops.recurrent` numbers its operands."""
    directions = _directions(node, ("Sigmoid", "Tanh"))
    x, weights, recurrence = _sequence(node), node.value(1), node.value(2)
    tensor = node.builder.materialized(x)
    units, batch = weights.dims[1] // 3, x.dims[1]
    sequences, hidden = [], []
    for direction in range(len(directions)):
        # ONNX orders gates as update, reset, hidden, which is the operation's order.
        w, r = (
            [_part(node, value, direction, gate * units, (gate + 1) * units) for gate in range(3)]
            for value in (weights, recurrence)
        )
        biases: list[Tensor | None] = [None] * 6
        if node.optional(3) is not None:
            biases = [_part(node, node.optional(3), direction, gate * units, (gate + 1) * units) for gate in range(6)]
        initial = _state(node, 5, direction, batch, units) or _zeros(node, batch, units)
        initial = node.builder.arrange(initial, (0, 1), (1, batch, units))
        params = {
            "direction": directions[direction], "linear_before_reset": int(node.attr("linear_before_reset", 0)),
        }  # fmt: skip
        y, last = node.builder.emit("Gru", [tensor, *w, *r, *biases, initial], params, outputs=2)
        sequences.append(y)
        hidden.append(last)
    return _outputs(node, sequences, [hidden])


def _rnn(node: OnnxNode) -> list[OnnxValue | None]:
    """Unroll h = tanh(W x + R h + b), or another function; the products with W are computed for all steps at once."""
    directions = _directions(node)
    names = [name.lower() for name in node.attr("activations", ())] or ["tanh"] * len(directions)
    if len(names) != len(directions) or not set(names) <= set(_RNN_ACTIVATIONS):
        node.unsupported(f"activations {', '.join(node.attr('activations'))}")
    x, weights, recurrence = _sequence(node), node.value(1), node.value(2)
    steps, batch, _ = x.dims
    units = weights.dims[1]
    if steps > _MAX_STEPS:
        node.unsupported(f"more than {_MAX_STEPS} steps")
    tensor = node.builder.materialized(x)
    sequences, hidden = [], []
    for direction in range(len(directions)):
        w = _part(node, weights, direction, 0, units)
        r = _part(node, recurrence, direction, 0, units)
        bias = _bias(node, direction, 0, 1, units)
        inputs = node.emit("FullyConnected", [tensor, w, bias], {"keep_dims": True})
        h = _state(node, 5, direction, batch, units) or _zeros(node, batch, units)
        order = range(steps) if directions[direction] == 0 else range(steps - 1, -1, -1)
        states: dict[int, Tensor] = {}
        for step in order:
            part = slice_value(node, node.unmoved(inputs), {0: (step, step + 1, 1)})
            step_input = node.builder.materialized(node.builder.reshaped(part, (batch, units)))
            total = node.emit("ElementWiseAdd", [step_input, node.emit("FullyConnected", [h, r])])
            h = node.emit(_RNN_ACTIVATIONS[names[direction]], [total])
            states[step] = h
        sequences.append(node.emit("Pack", [states[step] for step in range(steps)], {"axis": 0}))
        hidden.append(h)
    return _outputs(node, sequences, [hidden])


CONVERTERS: dict[str, Converter] = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}
