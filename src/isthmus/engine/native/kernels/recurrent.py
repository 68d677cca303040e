"""Recurrent layers in float32, after the input's part of the gates has been computed for all steps by one product.

Units are divided among threads. Gates follow one another, each padded to whole panels. An instruction runs a range of
steps: all of them for one thread, one (or one phase of it) for several, since threads synchronise only between
instructions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.engine.native.kernels.base import address, device, generated, read_f32, real, share, word, write_f32
from isthmus.engine.native.kernels.gemm import dense_tile, single_row
from isthmus.engine.native.kernels.mathematics import clamp, multiply_add, sigmoid, tanh
from isthmus.engine.native.signatures.recurrent import GRU, LSTM
from isthmus.engine.native.target import Target

f32 = np.float32
_INFINITY = np.float32(np.inf)
_SUMS_IN_FLIGHT = 8
"""The number of independent sums that keep the processor busy while it reads a panel."""

# Operands that both layers share are at the same positions.
_LSTM, _GRU = LSTM.place, GRU.place


def _product(target: Target, vectors: int) -> Any:
    """Return a function that multiplies the rows of a batch by panels `begin` to `end` of a packed matrix.

    Results have `columns` columns and are limited to plus and minus `limit`.
    """
    width = vectors * target.lanes
    height = 2 if target.lanes == 8 or target.name == "portable" else 4
    single = single_row(target, vectors, max(1, _SUMS_IN_FLIGHT // vectors))
    several = dense_tile(target, height, vectors)

    @device
    def product(rows, row_bytes, batch, depth, panels, goal, goal_bytes, begin, end, columns, limit):  # type: ignore[no-untyped-def]
        """Multiply `batch` rows, `row_bytes` apart; rows of the result at `goal` are `goal_bytes` apart."""
        for j in range(begin, end):
            panel, y = panels + j * (depth + 1) * width * 4, goal + j * width * 4
            if batch == 1:
                single(rows, 4, depth, panel, y, columns - j * width, -limit, limit)
            else:
                for i in range((batch + height - 1) // height):
                    several(
                        rows + i * height * row_bytes, row_bytes, 4, depth, panel, panel + width * 4,
                        y + i * height * goal_bytes, goal_bytes, batch - i * height, columns - j * width, -limit, limit,
                    )  # fmt: skip

    return product


@device
def _time(p, step):  # type: ignore[no-untyped-def]
    """Return the position of a step in the sequence."""
    return word(p, _LSTM.steps) - 1 - step if word(p, _LSTM.reverse) != 0 else step


@device
def _take_part(p, tid, nt):  # type: ignore[no-untyped-def]
    """Return the number of threads that divide the instruction, or 0 if this thread takes no part in it.

    Threads divide only an instruction for one phase of one step, since they synchronise only between instructions.
    """
    if word(p, _LSTM.count) == 1 and word(p, _LSTM.phases) != 3:
        return nt
    return 1 if tid == 0 else 0


@device
def _before(p, b, step, features):  # type: ignore[no-untyped-def]
    """Return the address of the hidden states that a step starts from: the initial ones, or the previous output."""
    if step == 0:
        return address(p, b, _LSTM.initial)
    return address(p, b, _LSTM.out) + _time(p, step - 1) * word(p, _LSTM.batch) * features * 4


@device
def _lstm_cells(p, x, gates, old, cell, hidden, peepholes, padded, begin, end):  # type: ignore[no-untyped-def]
    """Compute the cells and hidden states of units `begin` to `end`; gates are forget, new, output, input.

    Parameters
    ----------
    x, gates
        The input's part of the gates' sums, and the recurrent part; gates are `padded` units apart.
    old, cell, hidden
        The cells of the step before, and where the new cells and hidden states are written.
    peepholes
        Weights of the cell for the input, forget and output gates, or 0.
    """
    coupled, limit, units = word(p, _LSTM.coupled) != 0, np.float32(real(p, _LSTM.cell_clip)), word(p, _LSTM.units)
    for u in range(begin, end):
        c = read_f32(old, u)
        forget_sum, enter_sum = read_f32(x, u) + read_f32(gates, u), f32(0)
        out_sum = read_f32(x, 2 * padded + u) + read_f32(gates, 2 * padded + u)
        if not coupled:
            enter_sum = read_f32(x, 3 * padded + u) + read_f32(gates, 3 * padded + u)
        if peepholes != 0:
            enter_sum = multiply_add(c, read_f32(peepholes, u), enter_sum)
            forget_sum = multiply_add(c, read_f32(peepholes, units + u), forget_sum)
        forget = sigmoid(forget_sum)
        enter = f32(1) - forget if coupled else sigmoid(enter_sum)
        new = tanh(read_f32(x, padded + u) + read_f32(gates, padded + u))
        c = clamp(multiply_add(forget, c, enter * new), -limit, limit)
        if peepholes != 0:
            out_sum = multiply_add(c, read_f32(peepholes, 2 * units + u), out_sum)
        write_f32(cell, u, c)
        write_f32(hidden, u, sigmoid(out_sum) * tanh(c))


@device
def _copy_range(source, goal, begin, end):  # type: ignore[no-untyped-def]
    """Copy the floats `begin` to `end`."""
    for u in range(begin, end):
        write_f32(goal, u, read_f32(source, u))


@generated
def lstm(target: Target, variant: str) -> Any:
    """Run steps of an Lstm; the variant is the number of vectors in a panel.

    Phases to run: 1 for cells, 2 for the projection, 3 for both.
    """
    vectors = int(variant)
    width = vectors * target.lanes
    product = _product(target, vectors)

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        batch, units, steps, projected = (
            word(p, _LSTM.batch),
            word(p, _LSTM.units),
            word(p, _LSTM.steps),
            word(p, _LSTM.projected),
        )
        features = projected if projected != 0 else units
        unit_panels = (units + width - 1) // width
        padded = unit_panels * width
        gates = address(p, b, _LSTM.gates)
        gate_count = 3 if word(p, _LSTM.coupled) != 0 else 4
        gate_bytes = gate_count * padded * 4
        parts = _take_part(p, tid, nt)
        if parts == 0:
            return
        first_panel, last_panel = share(unit_panels, tid, parts)
        begin, end = first_panel * width, min(last_panel * width, units)
        for step in range(word(p, _LSTM.first), word(p, _LSTM.first) + word(p, _LSTM.count)):
            time = _time(p, step)
            out = address(p, b, _LSTM.out) + time * batch * features * 4
            hidden = address(p, b, _LSTM.hidden) if projected != 0 else out
            last = step == steps - 1
            if word(p, _LSTM.phases) & 1:
                for g in range(gate_count):
                    product(
                        _before(p, b, step, features), features * 4, batch, features, address(p, b, _LSTM.panels),
                        gates, gate_bytes, g * unit_panels + first_panel, g * unit_panels + last_panel,
                        gate_count * padded, _INFINITY,
                    )  # fmt: skip
                for i in range(batch):
                    cell = address(p, b, _LSTM.cell) + i * units * 4
                    old = address(p, b, _LSTM.initial_cell) + i * units * 4 if step == 0 else cell
                    x = address(p, b, _LSTM.input_gates) + (time * batch + i) * gate_bytes
                    _lstm_cells(
                        p, x, gates + i * gate_bytes, old, cell, hidden + i * units * 4, address(p, b, _LSTM.peepholes),
                        padded, begin, end,
                    )  # fmt: skip
                    if last and address(p, b, _LSTM.last_cell) != 0:
                        _copy_range(cell, address(p, b, _LSTM.last_cell) + i * units * 4, begin, end)
                    if last and projected == 0 and address(p, b, _LSTM.last) != 0:
                        _copy_range(out + i * units * 4, address(p, b, _LSTM.last) + i * units * 4, begin, end)
            if projected != 0 and word(p, _LSTM.phases) & 2:
                low, high = share((projected + width - 1) // width, tid, parts)
                product(
                    hidden, units * 4, batch, units, address(p, b, _LSTM.projection), out, projected * 4, low, high,
                    projected, np.float32(real(p, _LSTM.out_clip)),
                )  # fmt: skip
                if last and address(p, b, _LSTM.last) != 0:
                    for i in range(batch):
                        row, goal = out + i * projected * 4, address(p, b, _LSTM.last) + i * projected * 4
                        _copy_range(row, goal, low * width, min(high * width, projected))

    return kernel


@device
def _gru_update(update_gate, new_sum, before, out, u):  # type: ignore[no-untyped-def]
    """Write the state of unit `u`: between the new one and that of the step before, as the update gate says.

    `update_gate` and `new_sum` are sums before their activation.
    """
    new = tanh(new_sum)
    write_f32(out, u, multiply_add(sigmoid(update_gate), read_f32(before, u) - new, new))


@generated
def gru(target: Target, variant: str) -> Any:
    """Run steps of a Gru; the variant is the number of vectors in a panel, after an "l" if reset follows the product.

    Phases to run: 1 for the update and reset gates, 2 for the new gate, 3 for both. Gates are update, reset, new.
    """
    linear = variant.startswith("l")
    vectors = int(variant.lstrip("l"))
    width = vectors * target.lanes
    product = _product(target, vectors)
    direct_gates = 3 if linear else 2

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        batch, units, steps, phases = (
            word(p, _GRU.batch),
            word(p, _GRU.units),
            word(p, _GRU.steps),
            word(p, _GRU.phases),
        )
        unit_panels = (units + width - 1) // width
        padded = unit_panels * width
        gates, reset_hidden = address(p, b, _GRU.gates), address(p, b, _GRU.reset_hidden)
        parts = _take_part(p, tid, nt)
        if parts == 0:
            return
        first_panel, last_panel = share(unit_panels, tid, parts)
        begin, end = first_panel * width, min(last_panel * width, units)
        for step in range(word(p, _GRU.first), word(p, _GRU.first) + word(p, _GRU.count)):
            time, before = _time(p, step), _before(p, b, step, units)
            out = address(p, b, _GRU.out) + time * batch * units * 4
            inputs = address(p, b, _GRU.input_gates) + time * batch * padded * 12
            if phases & 1:
                for g in range(direct_gates):
                    product(
                        before, units * 4, batch, units, address(p, b, _GRU.panels), gates, padded * 12,
                        g * unit_panels + first_panel, g * unit_panels + last_panel, direct_gates * padded, _INFINITY,
                    )  # fmt: skip
                for i in range(batch):
                    x, sums = inputs + i * padded * 12, gates + i * padded * 12
                    old, goal = before + i * units * 4, out + i * units * 4
                    if linear:
                        for u in range(begin, end):
                            reset = sigmoid(read_f32(x, padded + u) + read_f32(sums, padded + u))
                            new = multiply_add(reset, read_f32(sums, 2 * padded + u), read_f32(x, 2 * padded + u))
                            _gru_update(read_f32(x, u) + read_f32(sums, u), new, old, goal, u)
                    else:
                        for u in range(begin, end):
                            reset = sigmoid(read_f32(x, padded + u) + read_f32(sums, padded + u))
                            write_f32(reset_hidden + i * units * 4, u, reset * read_f32(old, u))
            if not linear and phases & 2:
                product(
                    reset_hidden, units * 4, batch, units, address(p, b, _GRU.new_panels), gates + padded * 8,
                    padded * 12, first_panel, last_panel, padded, _INFINITY,
                )  # fmt: skip
                for i in range(batch):
                    x, sums = inputs + i * padded * 12, gates + i * padded * 12
                    old, goal = before + i * units * 4, out + i * units * 4
                    for u in range(begin, end):
                        new = read_f32(x, 2 * padded + u) + read_f32(sums, 2 * padded + u)
                        _gru_update(read_f32(x, u) + read_f32(sums, u), new, old, goal, u)
            if step == steps - 1 and address(p, b, _GRU.last) != 0 and (linear or phases & 2):
                for i in range(batch):
                    _copy_range(out + i * units * 4, address(p, b, _GRU.last) + i * units * 4, begin, end)

    return kernel
