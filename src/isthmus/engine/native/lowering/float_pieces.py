"""Pieces of a step that is computed in float32: some rows of its result, or some time steps of a recurrent layer.

Only the tensors of one piece are converted at a time, so that the work space holds no whole tensors. Pieces have the
bits of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from isthmus.graph import DataType, Tensor, TensorType
from isthmus.graph.operation import Call
from isthmus.graph.rows import RowMap, row_map
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.geometry.recurrent import INITIAL, recurrent_layer
from isthmus.prepare.schedule import Step
from isthmus.prepare.tiling.step_table import cut, in_one_run, row_bytes, shape_of_tile

_ALIGNMENT = 64
# The least bytes of float tensors in a piece for each thread, so that instructions take longer than their start.
_MIN_PIECE = 32 << 10
MAX_PIECES = 32
"""The most pieces with one thread; several threads wait for each other after every instruction."""
# The least time steps of a piece: the product for their gates computes this many rows together.
_MIN_TIMES = 16

# Pairs of a stored tensor and the float tensor that replaces it.
_Pairs = list[tuple[Tensor, Tensor]]


def padded_size(nbytes: int) -> int:
    """Return the bytes of work space that a temporary of this size takes."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


@dataclass(frozen=True)
class FloatPiece:
    """Some rows of a step that is computed in float32, or all of them.

    Parameters
    ----------
    step
        The step on float tensors.
    before, after
        The tensors to convert before and after the step.
    views
        Tensors of some rows, each with the tensor that contains it and the offset in bytes.
    states
        Float tensors that a piece passes on to the next; all pieces of a step have the same.
    """

    step: Step
    before: _Pairs
    after: _Pairs
    views: tuple[tuple[Tensor, Tensor, int], ...] = ()
    states: tuple[Tensor, ...] = ()

    @property
    def temporaries(self) -> list[Tensor]:
        """The float tensors in work space, in the order of their places."""
        return [*self.states, *(tensor for _, tensor in self.before + self.after)]

    @property
    def work_bytes(self) -> int:
        """The size of the float tensors in work space."""
        return sum(padded_size(t.nbytes) for t in self.temporaries)


def divide(whole: FloatPiece, threads: int) -> list[FloatPiece]:
    """Divide a step that this many threads share into pieces; return the step itself if it cannot be divided."""
    if any(t.quantization is not None and t.quantization.axis is not None for t, _ in whole.before + whole.after):
        # Some rows would need their own part of the scales.
        return [whole]
    return _by_time(whole, threads) if whole.step.op in INITIAL else _by_rows(whole, threads)


def _row_ranges(step: Step, axis: int, rows: RowMap, threads: int) -> list[tuple[int, int]]:
    """Divide the rows of a step on float tensors: each range is the first row, and the one after the last."""
    # The list is empty if the step is too small.
    height = step.outputs[0].dims[axis]
    total = sum(t.nbytes for t in (*step.inputs, *step.outputs) if t is not None and not t.is_static)
    pieces = min(MAX_PIECES, total // _MIN_PIECE) // threads
    if pieces < 2:
        return []
    length = -(-height // (pieces * rows.grain)) * rows.grain
    ranges = [(first, min(first + length, height)) for first in range(0, height, length)]
    # A range that needs no rows of the operands is only padding.
    return ranges if all(low < high for low, high in (rows.need(*piece) for piece in ranges)) else []


def _by_rows(whole: FloatPiece, threads: int) -> list[FloatPiece]:
    """Divide a step into pieces of contiguous rows; return the step itself if it cannot be divided."""
    step, stored = whole.step, {real: tensor for tensor, real in whole.before + whole.after}
    output = step.outputs[0]
    axis = next((a for a, size in enumerate(output.dims) if size > 1), None)
    if axis is None or step.part is not None:
        return [whole]
    rows = row_map(Call(step.name, step.op, step.inputs, step.params, step.outputs), axis)
    if rows is None:
        return [whole]
    sliced = [(operand(step, index), own) for index, own in rows.sliced]
    # Every converted operand must have rows, and they must be contiguous.
    if {real for _, real in whole.before} - {tensor for tensor, _ in sliced}:
        return [whole]
    if not all(in_one_run(tensor, own) for tensor, own in sliced):
        return [whole]
    pieces = []
    for first, last in _row_ranges(step, axis, rows, threads):
        tile, low = shape_of_tile(step, rows, axis, (first, last)), rows.need(first, last)[0]
        parts = [(operand(tile, index), operand(step, index), own, low) for index, own in rows.sliced]
        parts.append((tile.outputs[0], output, axis, first))
        views, pairs = [], []
        for part, tensor, own, row in parts:
            source = stored.get(tensor, tensor)
            view = part if source is tensor else cut(source, own, part.dims[own])
            views.append((view, source, row * row_bytes(source, own)))
            pairs.append((view, part))
        inputs, outputs = ([(v, t) for v, t in some if v is not t] for some in (pairs[:-1], pairs[-1:]))
        pieces.append(FloatPiece(tile, inputs, outputs, tuple(views)))
    return pieces or [whole]


def _by_time(whole: FloatPiece, threads: int) -> list[FloatPiece]:
    """Divide a recurrent layer into pieces of its sequence, each of which begins with the states after the one before.

    The states stay in float32. Two tensors for each are used in turn, because a step may write one while another thread
    reads the other.
    """
    step, stored = whole.step, {real: tensor for tensor, real in whole.before + whole.after}
    x, out, layer = operand(step), step.outputs[0], recurrent_layer(step)
    count = min(MAX_PIECES // threads, layer.steps // _MIN_TIMES)
    if count < 2 or x not in stored or out not in stored:
        return [whole]
    bounds = [layer.steps * number // count for number in range(count + 1)]
    ranges = list(pairwise(bounds))
    if step.params["direction"]:
        ranges.reverse()
    # Outputs after the first one are the last states: the cell, if there is one, and the hidden state.
    indices = INITIAL[step.op][::-1]
    sizes = (layer.units, layer.hidden)[-len(indices) :]
    states = [
        [Tensor("state", TensorType.NATIVE, DataType.FLOAT_32, (layer.batch, size)) for size in sizes] for _ in range(2)
    ]
    pieces = []
    for number, (first, last) in enumerate(ranges):
        inputs: list[Tensor | None] = list(step.inputs) + [None] * (max(indices) + 1 - len(step.inputs))
        pairs, views = [], []
        for tensor in (x, out):
            source = stored[tensor]
            view, part = cut(source, 0, last - first), cut(tensor, 0, last - first)
            views.append((view, source, first * row_bytes(source, 0)))
            pairs.append((view, part))
        inputs[0] = pairs[0][1]
        if number:
            for index, state in zip(indices, states[(number - 1) % 2], strict=True):
                inputs[index] = state
        is_last = number == count - 1
        results = step.outputs[1:] if is_last else states[number % 2]
        before = [pair for pair in whole.before if pair[1] is not x] if number == 0 else []
        after = [pair for pair in whole.after if pair[1] is not out] if is_last else []
        piece = replace(step, inputs=inputs, outputs=[pairs[1][1], *results])
        pieces.append(
            FloatPiece(piece, [pairs[0], *before], [pairs[1], *after], tuple(views), (*states[0], *states[1]))
        )
    return pieces
