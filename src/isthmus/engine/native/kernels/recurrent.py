"""Recurrent layers in float32, after the input's part of the gates has been computed for all steps by one product.

Units are divided among threads. Gates follow one another, each padded to whole panels. An instruction runs a range of
steps: all of them for one thread, one (or one phase of it) for several, since threads synchronise only between
instructions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.engine.native.kernels.base import device, generated, kernel, read_f32, share, write_f32
from isthmus.engine.native.kernels.gemm import dense_tile, single_row
from isthmus.engine.native.kernels.mathematics import clamp, multiply_add, sigmoid, tanh
from isthmus.engine.native.signatures.recurrent import GRU, LSTM
from isthmus.engine.native.target import Target

f32 = np.float32
_INFINITY = np.float32(np.inf)
# The number of independent sums that keep the processor busy while it reads a panel.
_SUMS_IN_FLIGHT = 8


@device
def _turn(number, begin, end, step):  # type: ignore[no-untyped-def]
    """Return a number from a range, counted from its end in every other step."""
    return begin + end - 1 - number if step & 1 else number


def _product(target: Target, vectors: int) -> Any:
    """Return a function that multiplies the rows of a batch by panels `begin` to `end` of a packed matrix.

    Results have `columns` columns and are limited to plus and minus `limit`.
    """
    # Every other step reads panels backwards: those read last are still in the cache, also if not all of them fit.
    width = vectors * target.lanes
    height = 2 if target.lanes == 8 or target.name == "portable" else 4
    single = single_row(target, vectors, max(1, _SUMS_IN_FLIGHT // vectors))
    several = dense_tile(target, height, vectors)

    @device
    def product(rows, row_bytes, batch, depth, panels, goal, goal_bytes, begin, end, columns, limit, step):  # type: ignore[no-untyped-def]
        """Multiply `batch` rows, `row_bytes` apart; rows of the result at `goal` are `goal_bytes` apart."""
        for i in range(begin, end):
            j = _turn(i, begin, end, step)
            panel, y = panels + j * (depth + 1) * width * 4, goal + j * width * 4
            if batch == 1:
                single(rows, 4, depth, 0, panel, y, columns - j * width, -limit, limit)
            else:
                for row in range(0, batch, height):
                    several(
                        rows + row * row_bytes, row_bytes, 4, depth, panel, panel + width * 4, y + row * goal_bytes,
                        goal_bytes, batch - row, columns - j * width, -limit, limit,
                    )  # fmt: skip

    return product


@device
def _time(steps, reverse, step):
    """Return the position of a step in the sequence."""
    return steps - 1 - step if reverse != 0 else step


@device
def _own_units(units, width, count, phases, tid, nt):
    """Return how many threads divide an instruction, and a thread's part of the panels and of the units.

    Threads divide only an instruction for one phase of one step, since they synchronise only between instructions.
    Otherwise the first one computes all of it.
    """
    parts = nt if count == 1 and phases != 3 else 1
    if tid >= parts:
        return 0, 0, 0, 0, 0
    first_panel, last_panel = share((units + width - 1) // width, tid, parts)
    return parts, first_panel, last_panel, first_panel * width, min(last_panel * width, units)


@device
def _before(initial, out, steps, reverse, step, step_bytes):
    """Return the address of the hidden states that a step starts from: the initial ones, or the previous output."""
    return initial if step == 0 else out + _time(steps, reverse, step - 1) * step_bytes


@device
def _lstm_cells(x, gates, old, cell, hidden, peepholes, padded, begin, end, units, coupled, limit):
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

    @kernel(LSTM)
    def execute(
        input_gates, panels, initial, gates, out, last, steps, batch, units, first, count, reverse, phases,
        initial_cell, cell, last_cell, peepholes, coupled, cell_clip: np.float32, hidden, projected, projection,
        out_clip: np.float32, tid, nt,
    ):  # fmt: skip
        features = projected if projected != 0 else units
        unit_panels = (units + width - 1) // width
        padded = unit_panels * width
        gate_count = 3 if coupled != 0 else 4
        gate_bytes = gate_count * padded * 4
        parts, first_panel, last_panel, begin, end = _own_units(units, width, count, phases, tid, nt)
        if parts == 0:
            return
        for step in range(first, first + count):
            time, is_last = _time(steps, reverse, step), step == steps - 1
            result = out + time * batch * features * 4
            states = hidden if projected != 0 else result
            if phases & 1:
                before = _before(initial, out, steps, reverse, step, batch * features * 4)
                for i in range(gate_count):
                    g = _turn(i, 0, gate_count, step)
                    product(
                        before, features * 4, batch, features, panels, gates, gate_bytes,
                        g * unit_panels + first_panel, g * unit_panels + last_panel, gate_count * padded, _INFINITY,
                        step,
                    )  # fmt: skip
                for i in range(batch):
                    new_cell = cell + i * units * 4
                    old = initial_cell + i * units * 4 if step == 0 else new_cell
                    x = input_gates + (time * batch + i) * gate_bytes
                    _lstm_cells(
                        x, gates + i * gate_bytes, old, new_cell, states + i * units * 4, peepholes, padded, begin,
                        end, units, coupled != 0, cell_clip,
                    )  # fmt: skip
                    if is_last and last_cell != 0:
                        _copy_range(new_cell, last_cell + i * units * 4, begin, end)
                    if is_last and projected == 0 and last != 0:
                        _copy_range(result + i * units * 4, last + i * units * 4, begin, end)
            if projected != 0 and phases & 2:
                low, high = share((projected + width - 1) // width, tid, parts)
                product(
                    states, units * 4, batch, units, projection, result, projected * 4, low, high, projected, out_clip,
                    step,
                )  # fmt: skip
                if is_last and last != 0:
                    for i in range(batch):
                        row, goal = result + i * projected * 4, last + i * projected * 4
                        _copy_range(row, goal, low * width, min(high * width, projected))

    return execute


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

    @kernel(GRU)
    def execute(
        input_gates, panels, initial, gates, out, last, steps, batch, units, first, count, reverse, phases,
        reset_hidden, new_panels, tid, nt,
    ):  # fmt: skip
        unit_panels = (units + width - 1) // width
        padded = unit_panels * width
        parts, first_panel, last_panel, begin, end = _own_units(units, width, count, phases, tid, nt)
        if parts == 0:
            return
        for step in range(first, first + count):
            time = _time(steps, reverse, step)
            before = _before(initial, out, steps, reverse, step, batch * units * 4)
            result = out + time * batch * units * 4
            inputs = input_gates + time * batch * padded * 12
            if phases & 1:
                for i in range(direct_gates):
                    g = _turn(i, 0, direct_gates, step)
                    product(
                        before, units * 4, batch, units, panels, gates, padded * 12,
                        g * unit_panels + first_panel, g * unit_panels + last_panel, direct_gates * padded, _INFINITY,
                        step,
                    )  # fmt: skip
                for i in range(batch):
                    x, sums = inputs + i * padded * 12, gates + i * padded * 12
                    old, goal = before + i * units * 4, result + i * units * 4
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
                    reset_hidden, units * 4, batch, units, new_panels, gates + padded * 8,
                    padded * 12, first_panel, last_panel, padded, _INFINITY, step,
                )  # fmt: skip
                for i in range(batch):
                    x, sums = inputs + i * padded * 12, gates + i * padded * 12
                    old, goal = before + i * units * 4, result + i * units * 4
                    for u in range(begin, end):
                        new = read_f32(x, 2 * padded + u) + read_f32(sums, 2 * padded + u)
                        _gru_update(read_f32(x, u) + read_f32(sums, u), new, old, goal, u)
            if step == steps - 1 and last != 0 and (linear or phases & 2):
                for i in range(batch):
                    _copy_range(result + i * units * 4, last + i * units * 4, begin, end)

    return execute
