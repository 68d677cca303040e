"""Recurrent layers in float32, after the input's share of the gates has been computed for all steps by one product.

Units are divided among threads, gates lie one after the other, each padded to whole panels. An instruction runs a range
of steps: all of them for one thread, one (or one half) for several, since threads meet only between instructions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.engine.native.kernels.base import address, device, generated, read_f32, real, share, word, write_f32
from isthmus.engine.native.kernels.gemm import dense_tile, single_row
from isthmus.engine.native.kernels.mathematics import clamp, multiply_add, sigmoid, tanh
from isthmus.engine.native.target import Target

f32 = np.float32
_INFINITY = np.float32(np.inf)
_SUMS_IN_FLIGHT = 8

# Words that both layers share.
_INPUT_GATES, _PANELS, _INITIAL, _GATES, _OUT, _LAST = range(6)
_STEPS, _BATCH, _UNITS, _FIRST, _COUNT, _REVERSE, _PHASES = range(6, 13)
# Those of their own.
_RESET_HIDDEN, _NEW_PANELS = 13, 14
_INITIAL_CELL, _CELL, _LAST_CELL, _PEEPHOLES, _COUPLED, _CELL_CLIP = range(13, 19)
_HIDDEN, _PROJECTED, _PROJECTION, _OUT_CLIP = range(19, 23)


def _product(target: Target, vectors: int) -> Any:
    """A function that multiplies the rows of a batch by some panels of a packed matrix."""
    width = vectors * target.lanes
    height = 2 if target.lanes == 8 or target.name == "portable" else 4
    single = single_row(target, vectors, max(1, _SUMS_IN_FLIGHT // vectors))
    several = dense_tile(target, height, vectors)

    @device
    def product(rows, row_bytes, batch, depth, panels, goal, goal_bytes, begin, end, columns, limit):  # type: ignore[no-untyped-def]
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
    """Where in the sequence a step stands."""
    return word(p, _STEPS) - 1 - step if word(p, _REVERSE) != 0 else step


@device
def _take_part(p, tid, nt):  # type: ignore[no-untyped-def]
    """The number of threads that divide the instruction, 0 for a thread that has no part in it."""
    if word(p, _COUNT) == 1 and word(p, _PHASES) != 3:
        return nt
    return 1 if tid == 0 else 0


@device
def _before(p, b, step, features):  # type: ignore[no-untyped-def]
    """The hidden states that a step starts from."""
    if step == 0:
        return address(p, b, _INITIAL)
    return address(p, b, _OUT) + _time(p, step - 1) * word(p, _BATCH) * features * 4


@device
def _lstm_cells(p, x, gates, old, cell, hidden, peepholes, padded, begin, end):  # type: ignore[no-untyped-def]
    """The cells and hidden states of a range of units; gates are forget, new, output, input."""
    coupled, limit, units = word(p, _COUPLED) != 0, np.float32(real(p, _CELL_CLIP)), word(p, _UNITS)
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
    for u in range(begin, end):
        write_f32(goal, u, read_f32(source, u))


@generated
def lstm(target: Target, variant: str) -> Any:
    """Steps of an Lstm; the variant is the number of vectors in a panel.

    Words: the input's share of the gates, panels of the recurrent weights, initial hidden state, space for gates,
    hidden states, last hidden state (0 for none), steps, batch, units, first step to run, steps to run, whether the
    sequence is reversed, phases to run (1 cells, 2 projection, 3 both); initial cell state, space for cells, last cell
    state (0 for none), peephole weights of the input, forget and output gate (0 for none), whether the input gate is
    one minus the forget gate, limit of cells; space for hidden states before the projection, features after it (0 for
    no projection), panels of the projection, limit of its result.
    """
    vectors = int(variant)
    width = vectors * target.lanes
    product = _product(target, vectors)

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        batch, units, steps, projected = word(p, _BATCH), word(p, _UNITS), word(p, _STEPS), word(p, _PROJECTED)
        features = projected if projected != 0 else units
        unit_panels = (units + width - 1) // width
        padded = unit_panels * width
        gates = address(p, b, _GATES)
        gate_count = 3 if word(p, _COUPLED) != 0 else 4
        gate_bytes = gate_count * padded * 4
        parts = _take_part(p, tid, nt)
        if parts == 0:
            return
        first_panel, last_panel = share(unit_panels, tid, parts)
        begin, end = first_panel * width, min(last_panel * width, units)
        for step in range(word(p, _FIRST), word(p, _FIRST) + word(p, _COUNT)):
            time = _time(p, step)
            out = address(p, b, _OUT) + time * batch * features * 4
            hidden = address(p, b, _HIDDEN) if projected != 0 else out
            last = step == steps - 1
            if word(p, _PHASES) & 1:
                for g in range(gate_count):
                    product(
                        _before(p, b, step, features), features * 4, batch, features, address(p, b, _PANELS), gates,
                        gate_bytes, g * unit_panels + first_panel, g * unit_panels + last_panel, gate_count * padded,
                        _INFINITY,
                    )  # fmt: skip
                for i in range(batch):
                    cell = address(p, b, _CELL) + i * units * 4
                    old = address(p, b, _INITIAL_CELL) + i * units * 4 if step == 0 else cell
                    x = address(p, b, _INPUT_GATES) + (time * batch + i) * gate_bytes
                    _lstm_cells(
                        p, x, gates + i * gate_bytes, old, cell, hidden + i * units * 4, address(p, b, _PEEPHOLES),
                        padded, begin, end,
                    )  # fmt: skip
                    if last and address(p, b, _LAST_CELL) != 0:
                        _copy_range(cell, address(p, b, _LAST_CELL) + i * units * 4, begin, end)
                    if last and projected == 0 and address(p, b, _LAST) != 0:
                        _copy_range(out + i * units * 4, address(p, b, _LAST) + i * units * 4, begin, end)
            if projected != 0 and word(p, _PHASES) & 2:
                low, high = share((projected + width - 1) // width, tid, parts)
                product(
                    hidden, units * 4, batch, units, address(p, b, _PROJECTION), out, projected * 4, low, high,
                    projected, np.float32(real(p, _OUT_CLIP)),
                )  # fmt: skip
                if last and address(p, b, _LAST) != 0:
                    for i in range(batch):
                        row, goal = out + i * projected * 4, address(p, b, _LAST) + i * projected * 4
                        _copy_range(row, goal, low * width, min(high * width, projected))

    return kernel


@device
def _gru_update(update_gate, new_sum, before, out, u):  # type: ignore[no-untyped-def]
    new = tanh(new_sum)
    write_f32(out, u, multiply_add(sigmoid(update_gate), read_f32(before, u) - new, new))


@generated
def gru(target: Target, variant: str) -> Any:
    """Steps of a Gru; the variant is the number of vectors in a panel, after an "l" where reset follows the product.

    Words: as `lstm` to the phases (1 update and reset gate, 2 new gate, 3 both); space for hidden states after the
    reset, panels of the new gate. Gates are update, reset, new.
    """
    linear = variant.startswith("l")
    vectors = int(variant.lstrip("l"))
    width = vectors * target.lanes
    product = _product(target, vectors)
    direct_gates = 3 if linear else 2

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        batch, units, steps, phases = word(p, _BATCH), word(p, _UNITS), word(p, _STEPS), word(p, _PHASES)
        unit_panels = (units + width - 1) // width
        padded = unit_panels * width
        gates, held = address(p, b, _GATES), address(p, b, _RESET_HIDDEN)
        parts = _take_part(p, tid, nt)
        if parts == 0:
            return
        first_panel, last_panel = share(unit_panels, tid, parts)
        begin, end = first_panel * width, min(last_panel * width, units)
        for step in range(word(p, _FIRST), word(p, _FIRST) + word(p, _COUNT)):
            time, before = _time(p, step), _before(p, b, step, units)
            out = address(p, b, _OUT) + time * batch * units * 4
            inputs = address(p, b, _INPUT_GATES) + time * batch * padded * 12
            if phases & 1:
                for g in range(direct_gates):
                    product(
                        before, units * 4, batch, units, address(p, b, _PANELS), gates, padded * 12,
                        g * unit_panels + first_panel, g * unit_panels + last_panel, direct_gates * padded, _INFINITY,
                    )  # fmt: skip
                for i in range(batch):
                    x, sums = inputs + i * padded * 12, gates + i * padded * 12
                    old, goal, kept = before + i * units * 4, out + i * units * 4, held + i * units * 4
                    if linear:
                        for u in range(begin, end):
                            reset = sigmoid(read_f32(x, padded + u) + read_f32(sums, padded + u))
                            new = multiply_add(reset, read_f32(sums, 2 * padded + u), read_f32(x, 2 * padded + u))
                            _gru_update(read_f32(x, u) + read_f32(sums, u), new, old, goal, u)
                    else:
                        for u in range(begin, end):
                            reset = sigmoid(read_f32(x, padded + u) + read_f32(sums, padded + u))
                            write_f32(kept, u, reset * read_f32(old, u))
            if not linear and phases & 2:
                product(
                    held, units * 4, batch, units, address(p, b, _NEW_PANELS), gates + padded * 8, padded * 12,
                    first_panel, last_panel, padded, _INFINITY,
                )  # fmt: skip
                for i in range(batch):
                    x, sums = inputs + i * padded * 12, gates + i * padded * 12
                    old, goal = before + i * units * 4, out + i * units * 4
                    for u in range(begin, end):
                        new = read_f32(x, 2 * padded + u) + read_f32(sums, 2 * padded + u)
                        _gru_update(read_f32(x, u) + read_f32(sums, u), new, old, goal, u)
            if step == steps - 1 and address(p, b, _LAST) != 0 and (linear or phases & 2):
                for i in range(batch):
                    _copy_range(out + i * units * 4, address(p, b, _LAST) + i * units * 4, begin, end)

    return kernel
