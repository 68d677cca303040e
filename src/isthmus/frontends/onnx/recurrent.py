"""LSTM, GRU and RNN. Each direction becomes one layer over the sequence, or unrolled steps if there is none."""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.frontends.onnx.layout import OnnxValue
from isthmus.frontends.onnx.movement import element_of, join, parts_of, stack_values
from isthmus.frontends.onnx.node import Converter, OnnxNode
from isthmus.graph import Tensor

# Values of the operations' direction parameter, one for each layer.
_DIRECTIONS = {"forward": (0,), "reverse": (1,), "bidirectional": (0, 1)}
# The most steps that are unrolled.
_MAX_STEPS = 512


# The operations of the functions that an RNN may have.
_RNN_ACTIVATIONS = {"tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid"}


def _directions(node: OnnxNode, activations: Sequence[str] | None = None) -> tuple[int, ...]:
    """Return the directions of the layer, after checking what all three operators share."""
    # `activations` are the functions that the operation has for one direction; None if the caller checks them.
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
        x = x.permute((1, 0, 2))
    lengths = node.optional(4)
    if lengths is not None and any(n != x.dims[0] for n in node.array(4).reshape(-1)):
        node.unsupported("sequences of different lengths")
    for weights in (1, 2):
        node.value(weights)  # refuses a node without them
    return x


def _gates(node: OnnxNode, index: int, direction: int, count: int, units: int) -> list[Tensor | None]:
    """Return the rows of each gate of one direction of operand `index`, [directions, gates * units, …]."""
    value = node.optional(index)
    if value is None:
        return [None] * count
    rows = element_of(node, value, 0, direction)
    return [node.materialize(part) for part in parts_of(node, rows, 0, [units] * count)]


def _state(node: OnnxNode, index: int, direction: int, batch: int, units: int) -> Tensor | None:
    """Return one direction of an initial state, as [batch, units]."""
    value = node.optional(index)
    if value is None:
        return None
    if node.attr("layout", 0):
        value = value.permute((1, 0, 2))
    return node.materialize(node.reshape_to(element_of(node, value, 0, direction), (batch, units)))


def _zeros(node: OnnxNode, *dims: int) -> Tensor:
    """Return a constant of zeros, of the type of the node's input."""
    zero = node.builder.scalar(0.0, node.value(0).tensor.dtype)
    tensor = node.builder.arrange(zero, (), (1,) * len(dims))
    return node.emit("Tile", [tensor], {"multiples": dims})


def _outputs(node: OnnxNode, sequences: list[Tensor], states: Sequence[list[Tensor]]) -> list[OnnxValue | None]:
    """Return Y [time, directions, batch, units] and the last states [directions, batch, units]."""
    # `sequences` are the hidden states of all steps [time, batch, units] of each direction; `states` has for each kind
    # of state (hidden, cell) the last one of each direction, [batch, units] or [1, batch, units].
    _, batch, units = sequences[0].dims
    y = stack_values(node, [OnnxValue.of(t) for t in sequences], 1)
    last = [join(node, [node.reshape_to(OnnxValue.of(t), (1, batch, units)) for t in parts], 0) for parts in states]
    # Layout 1 has the batch first: [batch, time, directions, units] and [batch, directions, units].
    if node.attr("layout", 0):
        return [y.permute((2, 0, 1, 3)), *(state.permute((1, 0, 2)) for state in last)]
    return [y, *last]


def _biases(node: OnnxNode, direction: int, count: int, units: int) -> list[Tensor | None]:
    """Return the sum of input bias and recurrent bias for each gate."""
    # Input 3 holds for each direction the input biases of all gates, then their recurrent biases.
    if node.optional(3) is None:
        return [_zeros(node, units) for _ in range(count)]
    biases = _gates(node, 3, direction, 2 * count, units)
    return [node.emit("ElementWiseAdd", [biases[gate], biases[count + gate]]) for gate in range(count)]


def _opposite(node: OnnxNode, tensor: Tensor | None) -> Tensor | None:
    """Return the negated tensor, None if there is none."""
    return None if tensor is None else node.emit("ElementWiseNeg", [tensor])


def _lstm(node: OnnxNode) -> list[OnnxValue | None]:
    """Emit an Lstm for each direction; `isthmus.graph.ops.recurrent` numbers its operands."""
    directions = _directions(node, ("Sigmoid", "Tanh", "Tanh"))
    x = _sequence(node)
    tensor = node.materialize(x)
    units, batch = node.value(1).dims[1] // 4, x.dims[1]
    sequences, hidden, cells = [], [], []
    for direction in range(len(directions)):
        # ONNX orders gates as input, output, forget, cell.
        w, r = (_gates(node, index, direction, 4, units) for index in (1, 2))
        b = _biases(node, direction, 4, units)
        initial_h = _state(node, 5, direction, batch, units) or _zeros(node, batch, units)
        initial_c = _state(node, 6, direction, batch, units) or _zeros(node, batch, units)
        peepholes = _gates(node, 7, direction, 3, units)
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
    x = _sequence(node)
    tensor = node.materialize(x)
    units, batch = node.value(1).dims[1] // 3, x.dims[1]
    sequences, hidden = [], []
    for direction in range(len(directions)):
        # ONNX orders gates as update, reset, hidden, which is the operation's order.
        w, r = (_gates(node, index, direction, 3, units) for index in (1, 2))
        biases = _gates(node, 3, direction, 6, units)
        initial = _state(node, 5, direction, batch, units) or _zeros(node, batch, units)
        initial = node.builder.arrange(initial, (0, 1), (1, batch, units))
        params = {"direction": directions[direction], "linear_before_reset": node.attr("linear_before_reset", 0)}
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
    x = _sequence(node)
    steps, batch, _ = x.dims
    units = node.value(1).dims[1]
    if steps > _MAX_STEPS:
        node.unsupported(f"more than {_MAX_STEPS} steps")
    tensor = node.materialize(x)
    sequences, hidden = [], []
    for direction in range(len(directions)):
        [w], [r] = (_gates(node, index, direction, 1, units) for index in (1, 2))
        inputs = node.emit("FullyConnected", [tensor, w, *_biases(node, direction, 1, units)], {"keep_dims": True})
        h = _state(node, 5, direction, batch, units) or _zeros(node, batch, units)
        order = range(steps) if directions[direction] == 0 else range(steps - 1, -1, -1)
        states: dict[int, Tensor] = {}
        for step in order:
            step_input = node.materialize(element_of(node, OnnxValue.of(inputs), 0, step))
            total = node.emit("ElementWiseAdd", [step_input, node.emit("FullyConnected", [h, r])])
            h = node.emit(_RNN_ACTIVATIONS[names[direction]], [total])
            states[step] = h
        sequences.append(node.emit("Pack", [states[step] for step in range(steps)], {"axis": 0}))
        hidden.append(h)
    return _outputs(node, sequences, [hidden])


CONVERTERS: dict[str, Converter] = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}
