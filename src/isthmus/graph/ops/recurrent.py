"""Recurrent layers over a whole sequence [time, batch, features], operands in QNN's order.

Lstm: 0 input; 1, 2, 3 input weights [H, I] and 4, 5, 6 recurrent weights [H, R] of the forget gate, cell gate and
output gate; 7, 8, 9 their biases [H]; 10 initial hidden state [batch, R]; 11 initial cell state [batch, H]; 12 to 15
layer-norm weights (refused); 16, 17, 21 input weights, recurrent weights and bias of the input gate (without them it
is 1 - forget gate); 18, 19, 20 peephole weights [H] from the cell to the input, forget and output gate; 22 projection
weights [R, H]; 23 projection bias [R]. Without a projection R = H. Outputs: 0 hidden states [time, batch, R]; 1 last
cell state [batch, H]; 2 last hidden state [batch, R]. A two-dimensional input is one step, [batch, features], and
output 0 is then [batch, R].

Gru: 0 input; 1, 2, 3 input weights [H, I] and 4, 5, 6 recurrent weights [H, H] of the update gate, reset gate and new
gate; 7, 8, 9 input biases and 10, 11, 12 recurrent biases [H] in the same order; 13 initial hidden state
[1, batch, H]. Outputs: 0 hidden states [time, batch, H]; 1 last hidden state [1, batch, H].
"""

from __future__ import annotations

from isthmus.graph.datatypes import REALS
from isthmus.graph.operation import Call, Dims, define, options
from isthmus.graph.traits import Traits

FORWARD, REVERSE = 0, 1
"""Values of direction."""


def _lstm(call: Call) -> list[Dims]:
    """Check an Lstm and return the dimensions of its outputs; the module's docstring numbers the operands."""
    call.check_rank(0, 2, 3)
    call.check_rank(1, 2)
    call.check_rank(4, 2)
    call.number("direction", below=2)
    *steps, batch, features = call.dims(0)
    units, hidden = call.dims(1)[0], call.dims(4)[1]
    for index in range(12, 16):
        if call.optional(index) is not None:
            call.refuse(f"in[{index}], layer normalisation inside the cell, is not supported")
    for indices, dims in (
        ((1, 2, 3, 16), (units, features)),
        ((4, 5, 6, 17), (units, hidden)),
        ((7, 8, 9, 18, 19, 20, 21), (units,)),
        ((10,), (batch, hidden)),
        ((11,), (batch, units)),
        ((22,), (hidden, units)),
        ((23,), (hidden,)),
    ):
        for index in indices:
            call.check_dims(index, *dims)
    if call.optional(22) is None and hidden != units:
        call.refuse(f"without projection weights in[22] the recurrent weights must be [{units},{units}]")
    if call.optional(23) is not None and call.optional(22) is None:
        call.refuse("a projection bias in[23] needs projection weights in[22]")
    _together(call, 16, 17, 21)
    if call.optional(18) is not None and call.optional(16) is None:
        call.refuse("in[18] needs the weights of the input gate, in[16] and in[17]")
    return [(*steps, batch, hidden), (batch, units), (batch, hidden)]


def _together(call: Call, *indices: int) -> None:
    """Refuse a call with some but not all of these optional inputs."""
    present = [i for i in indices if call.optional(i) is not None]
    if present and len(present) != len(indices):
        call.refuse(f"in{list(indices)} must be given together, only in{present} are")


def _gru(call: Call) -> list[Dims]:
    """Check a Gru and return the dimensions of its outputs; the module's docstring numbers the operands."""
    call.check_rank(0, 3)
    call.check_rank(1, 2)
    call.number("direction", below=2)
    call.number("linear_before_reset", below=2)
    steps, batch, features = call.dims(0)
    units = call.dims(1)[0]
    for indices, dims in (
        (range(1, 4), (units, features)),
        (range(4, 7), (units, units)),
        (range(7, 13), (units,)),
        ((13,), (1, batch, units)),
    ):
        for index in indices:
            call.check_dims(index, *dims)
    return [(steps, batch, units), (1, batch, units)]


OPERATIONS = (
    define(
        "Lstm",
        _lstm,
        *options("u32", direction=FORWARD),
        *options("f32", cell_clip_threshold=0.0, output_clip_threshold=0.0),
        *options("f32", input_gate_qscale=0.0, forget_gate_qscale=0.0, cell_gate_qscale=0.0, output_gate_qscale=0.0),
        *options("f32", hidden_state_offset=0.0, hidden_state_qscale=0.0),
        inputs=(12, 24),
        outputs=(1, 3),
        types=[REALS] * 24,
        traits=Traits(gates=4),
    ),
    define(
        "Gru",
        _gru,
        *options("u32", direction=FORWARD, linear_before_reset=0),
        inputs=(7, 14),
        outputs=(1, 2),
        types=[REALS] * 14,
        traits=Traits(gates=3),
    ),
)
