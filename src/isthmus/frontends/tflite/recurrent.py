"""Conversion of operators with a state that is kept between executions: the LSTM over a sequence, and SVDF."""

from __future__ import annotations

import math

import numpy as np

from isthmus.frontends.tflite.elementwise import Converter
from isthmus.frontends.tflite.integer_arithmetic import (
    combine,
    doubles,
    in_range_of,
    look_up,
    product,
    rescale,
    saturate,
    sigmoid_table,
    store_as,
    tanh_table,
)
from isthmus.frontends.tflite.operator_context import OperatorContext, data_type, declared_quantization
from isthmus.frontends.tflite.schema import Activation
from isthmus.graph import DataType, Tensor

INPUT, HIDDEN_STATE, CELL_STATE = 0, 18, 19
"""Positions of the operands that are not weights."""
WEIGHTS: dict[int, int] = {
    # A line each: input weights, recurrent weights, biases, peepholes, projection.
    1: 2, 2: 3, 3: 4, 16: 1,
    4: 6, 5: 7, 6: 8, 17: 5,
    7: 13, 8: 14, 9: 15, 21: 12,
    18: 9, 19: 10, 20: 11,
    22: 16, 23: 17,
}  # fmt: skip
"""TFLite's operand number for each weight operand of QNN."""
LAYER_NORM = range(20, 24)
"""TFLite's operand numbers of the layer-norm weights."""


def _sequence_lstm(node: OperatorContext) -> list[Tensor]:
    """Convert to an Lstm over a time-first sequence, whose last states become the new values of the two variables."""
    # `isthmus.graph.ops.recurrent` numbers its operands.
    x = node.input_of_rank(INPUT, 3)
    if node.options["activation"] != Activation.TANH or node.options["diagonal"]:
        node.unsupported("an LSTM with another activation than TANH, or diagonal weights, is not supported")
    if any(node.optional(i) is not None for i in LAYER_NORM):
        node.unsupported("an LSTM with layer normalisation is not supported")
    if x.dtype is not DataType.FLOAT_32:
        return _integer_lstm(node, x)
    time_major = bool(node.options["time_major"])
    if not time_major:
        x = node.step("Transpose", [x], {"perm": (1, 0, 2)})
    inputs: list[Tensor | None] = [None] * 24
    inputs[0], inputs[10], inputs[11] = x, node.input(HIDDEN_STATE), node.input(CELL_STATE)
    for target, source in WEIGHTS.items():
        tensor = node.optional(source)
        inputs[target] = None if tensor is None else node.real(tensor)
    while inputs[-1] is None:
        inputs.pop()
    params = {
        "cell_clip_threshold": float(node.options["cell_clip"]),
        "output_clip_threshold": float(node.options["proj_clip"]),
    }
    sequence, cell, hidden = node.graph.emit("Lstm", inputs, params, name=f"{node.name}/Lstm", outputs=3)
    node.store(HIDDEN_STATE, hidden)
    node.store(CELL_STATE, cell)
    if time_major:
        return node.finish(sequence)
    return [node.emit("Transpose", [sequence], {"perm": (1, 0, 2)})]


GATES = 4
"""The gates: input, forget, cell, output. TFLite's weights and biases are in this order."""
_GATE_SCALE = 2.0**-12
_UNIT_SCALE = 2.0**-15


def _array(node: OperatorContext, index: int) -> np.ndarray:
    """Return the stored integers of a constant operand."""
    return np.asarray(node.value(index))


def _scale(tensor: Tensor) -> float:
    """Return the scale of a tensor with one scale, in single precision as LiteRT stores it."""
    assert tensor.quantization is not None
    return float(np.float32(tensor.quantization.scale))


def _zero(tensor: Tensor) -> int:
    """Return the stored integer that represents 0."""
    assert tensor.quantization is not None
    return tensor.quantization.zero_point


def _integer_lstm(node: OperatorContext, x: Tensor) -> list[Tensor]:
    """Unroll an LSTM in integers, as LiteRT Micro computes it."""
    # Gates have 16 bits, 12 of them after the point; sigmoid and tanh give 15. The hidden state has the type of the
    # input, the cell state 16 bits and a power of two as scale.
    hidden, cell = node.input(HIDDEN_STATE), node.input(CELL_STATE)
    weights = [node.input(index) for index in range(1, 1 + 2 * GATES)]
    if x.dtype not in (DataType.SFIXED_POINT_8, DataType.SFIXED_POINT_16) or hidden.dtype is not x.dtype:
        node.unsupported(f"an LSTM of {x.dtype.name} is not supported")
    if cell.dtype is not DataType.SFIXED_POINT_16 or any(t.dtype is not DataType.SFIXED_POINT_8 for t in weights):
        node.unsupported("an integer LSTM needs 8-bit weights and a 16-bit cell state")
    if any(node.optional(index) is not None for index in (9, 10, 11, 16, 17)):
        node.unsupported("an integer LSTM with peepholes or a projection is not supported")
    power = math.log2(_scale(cell))
    if power != int(power) or any(_zero(t) for t in (cell, *weights)):
        node.refuse("the cell's scale must be a power of two, and cell and weights need the zero point 0")
    clip = min(float(node.options["cell_clip"]) / _scale(cell), 32767.0) // 1 or math.inf
    time_major = bool(node.options["time_major"])
    steps, batch = x.dims[:2] if time_major else x.dims[1::-1]
    units = weights[GATES].dims[1]
    # All gates at once: their weights stacked, one scale per output.
    stacks = [np.concatenate([_array(node, first + g) for g in range(GATES)]) for first in (1, 1 + GATES)]
    scales = [
        np.repeat([_scale(weights[first + g]) * _scale(source) / _GATE_SCALE for g in range(GATES)], units)
        for first, source in ((0, x), (GATES, hidden))
    ]
    biases = np.concatenate([np.zeros(units) if node.optional(b) is None else _array(node, b) for b in range(12, 16)])
    rows = x if time_major else node.step("Transpose", [x], {"perm": (1, 0, 2)})
    wide = x.dtype is DataType.SFIXED_POINT_16
    rows = node.reshape(rows, (steps * batch, x.dims[2]))
    sums = combine(node, "Add", product(node, rows, _zero(x), stacks[0]), biases)
    from_input = in_range_of(node, rescale(node, sums, scales[0], wide), DataType.INT_16)
    sigmoids, tanhs, cell_tanhs = sigmoid_table(), tanh_table(-12), tanh_table(int(power))
    state = doubles(node, node.reshape(cell, (batch, units)))
    hidden_now = node.reshape(hidden, (batch, units))
    results = []
    for step in range(steps):
        sums = product(node, hidden_now, _zero(hidden), stacks[1])
        gates = in_range_of(node, rescale(node, sums, scales[1], wide), DataType.INT_16)
        gates = combine(node, "Add", gates, _part(node, from_input, 0, step * batch, batch))
        gates = in_range_of(node, gates, DataType.INT_16)
        pieces = [_part(node, gates, 1, g * units, units) for g in range(GATES)]
        enter, forget, leave = (look_up(node, pieces[g], sigmoids, "lstm/sigmoid") for g in (0, 1, 3))
        new = look_up(node, pieces[2], tanhs, "lstm/tanh")
        remembered = rescale(node, combine(node, "Multiply", forget, state), _UNIT_SCALE)
        added = rescale(node, combine(node, "Multiply", enter, new), _UNIT_SCALE**2 / _scale(cell))
        state = combine(node, "Add", *(in_range_of(node, v, DataType.INT_16) for v in (remembered, added)))
        state = saturate(node, state, max(-32768.0, -clip), min(32767.0, clip))
        shown = look_up(node, state, cell_tanhs, f"lstm/tanh{int(power)}")
        value = rescale(node, combine(node, "Multiply", leave, shown), _UNIT_SCALE**2 / _scale(hidden))
        value = in_range_of(node, combine(node, "Add", value, float(_zero(hidden))), hidden.dtype)
        hidden_now = store_as(node, value, hidden.dtype, hidden.quantization)
        results.append(node.reshape(hidden_now, (1, batch, units)))
    node.store(HIDDEN_STATE, node.reshape(hidden_now, hidden.dims))
    node.store(CELL_STATE, node.reshape(store_as(node, state, cell.dtype, cell.quantization), cell.dims))
    sequence = node.step("Concat", results, {"axis": 0}) if steps > 1 else results[0]
    if time_major:
        return node.finish(sequence)
    return [node.emit("Transpose", [sequence], {"perm": (1, 0, 2)})]


def _part(node: OperatorContext, matrix: Tensor, axis: int, first: int, count: int) -> Tensor:
    """Return some rows (axis 0) or columns (axis 1) of a matrix."""
    ranges = [(0, size, 1) for size in matrix.dims]
    ranges[axis] = (first, first + count, 1)
    return node.step("StridedSlice", [matrix], {"ranges": ranges})


def _svdf(node: OperatorContext) -> list[Tensor]:
    """Convert a layer of filters over features and time; the state holds the features of the last steps."""
    # Operands are the input [batch, in], feature weights [filters, in], time weights [filters, memory], a bias and the
    # state [batch, filters * memory]. Each output adds the results of `rank` filters.
    x, feature_weights, time_weights = (node.input_of_rank(index, 2) for index in range(3))
    state = node.input(4)
    rank, (filters, memory), batch = int(node.options["rank"]), time_weights.dims, x.dims[0]
    fits = feature_weights.dims == (filters, x.dims[1]) and state.elements == batch * filters * memory
    if rank < 1 or filters % rank or not fits:
        node.refuse(f"weights {list(time_weights.dims)} of rank {rank} do not fit its operands")
    is_float = x.dtype is DataType.FLOAT_32
    if is_float:
        features = node.step("FullyConnected", [x, node.real(feature_weights)])
        past, factors = state, node.real(time_weights)
    else:
        features = _integer_features(node, x, feature_weights, state)
        past, factors = doubles(node, state), doubles(node, time_weights)
    past = node.reshape(past, (batch, filters, memory))
    later = node.step("StridedSlice", [past], {"ranges": [(0, batch, 1), (0, filters, 1), (1, memory, 1)]})
    now = node.step("Concat", [later, node.reshape(features, (batch, filters, 1))], {"axis": 2})
    new_state = node.reshape(now, state.dims)
    node.store(4, new_state if is_float else store_as(node, new_state, state.dtype, state.quantization))
    sums = node.step("ReduceSum", [node.step("ElementWiseMultiply", [now, factors])], {"axes": [2]})
    sums = node.step("ReduceSum", [node.reshape(sums, (batch, filters // rank, rank))], {"axes": [2]})
    bias = node.optional(3)
    if bias is not None:
        sums = node.step("ElementWiseAdd", [sums, node.real(bias) if is_float else doubles(node, bias)])
    if is_float:
        return node.emit_activated("Reshape", [sums], dims=sums.dims)
    quantization = declared_quantization(node.output())
    assert quantization is not None
    scale = _scale(state) * _scale(time_weights) / float(np.float32(quantization.scale))
    shifted = combine(node, "Add", rescale(node, sums, scale), float(quantization.zero_point))
    # As in LiteRT, only the range of the output limits an integer result; it begins at 0 if there is an activation.
    return [node.emit("Cast", [in_range_of(node, shifted, data_type(node.output()))])]


def _integer_features(node: OperatorContext, x: Tensor, weights: Tensor, state: Tensor) -> Tensor:
    """Return the features of a step as integers of the state's type and scale, in doubles."""
    dtypes = (x.dtype, weights.dtype, state.dtype)
    if x.dtype is not DataType.SFIXED_POINT_8 or weights.dtype is not x.dtype or not state.dtype.is_fixed_point:
        node.unsupported(f"filters of {', '.join(dtype.name for dtype in dtypes)} are not supported")
    scale = _scale(x) * _scale(weights) / _scale(state)
    sums = product(node, x, _zero(x), _array(node, 1))
    return in_range_of(node, rescale(node, sums, scale), state.dtype)


CONVERTERS: dict[str, Converter] = {"UNIDIRECTIONAL_SEQUENCE_LSTM": _sequence_lstm, "SVDF": _svdf}
