"""Steps that no kernel covers in the type of their tensors: computed in float32, or moved after requantization.

Both place temporaries in the step's work space and pass an ordinary step to the plain lowering. A step is computed in
float32 piece by piece, if it can be divided: some rows of its result, or some time steps of a recurrent layer. So the
work space holds no whole tensors. Pieces have the bits of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from isthmus.engine.native.lowering import fixed_point
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.tables import conversion_codes
from isthmus.engine.native.program import Operand
from isthmus.engine.native.signatures.elementwise import KINDS
from isthmus.engine.native.target import Target
from isthmus.graph import DataType, Tensor, TensorType
from isthmus.graph.operation import Call
from isthmus.graph.rows import RowMap, row_map
from isthmus.prepare.geometry.fixed_point import is_eight_bit, quantization_of
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


def _needs_twin(tensor: Tensor) -> bool:
    """Return whether a tensor is replaced by one in FLOAT_32: fixed point, and floats of 16 bits."""
    return tensor.dtype.is_fixed_point or tensor.dtype.is_half


def _real_twin(tensor: Tensor, contents: bool = True) -> Tensor:
    """Return the float tensor that replaces another one."""
    # If `contents` is False, a constant gets the value 1 everywhere, without the time and memory for its real contents.
    if tensor.is_static:
        assert tensor.data is not None
        data = np.broadcast_to(np.float32(1), tensor.dims)
        if contents and tensor.dtype.is_half:
            data = tensor.dtype.decode(tensor.data)
        elif contents:
            data = quantization_of(tensor).dequantize(tensor.data)
        source = tensor if tensor.is_four_bit else tensor.source
        return Tensor(tensor.name, TensorType.STATIC, DataType.FLOAT_32, tensor.dims, None, data, source=source)
    return Tensor(tensor.name, TensorType.NATIVE, DataType.FLOAT_32, tensor.dims)


def _emit_reals(e: Emitter, stored: Tensor, reals: Operand, result_of: str = "") -> None:
    """Emit the conversion of a tensor to FLOAT_32; or back, if it is the result of an operation."""
    if stored.dtype.is_fixed_point:
        if result_of:
            fixed_point.emit_quantize(e, reals, stored, result_of)
        else:
            fixed_point.emit_dequantize(e, stored, reals)
    elif stored.elements:
        kind, place = KINDS[stored.dtype], e.at(stored)
        variant, output, x = (f"f32_{kind}", place, reals) if result_of else (f"{kind}_f32", reals, place)
        e.emit(f"elementwise:cast.{variant}", output=output, x=x, elements=stored.elements)


def through_float(plain: Lowering) -> Lowering:
    """Return a lowering that converts inputs to FLOAT_32, runs the float lowering and converts outputs back."""

    def twins(step: Step, contents: bool = True) -> FloatPiece:
        """Return the step on float tensors.

        Without `contents`, constants are not converted; this is enough to ask what the step needs.
        """
        reals = {t: _real_twin(t, contents) for t in step.inputs if t is not None and _needs_twin(t)}
        inputs = [t if t is None else reals.get(t, t) for t in step.inputs]
        outputs = [_real_twin(t) if _needs_twin(t) else t for t in step.outputs]
        before = [(t, real) for t, real in reals.items() if not t.is_static]
        after = [(t, o) for t, o in zip(step.outputs, outputs, strict=True) if t is not o]
        return FloatPiece(replace(step, inputs=inputs, outputs=outputs), before, after)

    def pieces(whole: FloatPiece, threads: int) -> list[FloatPiece]:
        """Return the pieces of a step that the float lowering takes, or the step itself."""
        parts = divide(whole, threads)
        return parts if all(plain.refuses(part.step) is None for part in parts) else [whole]

    def work(step: Step, target: Target, threads: int) -> int:
        parts = pieces(twins(step, contents=False), threads)
        return max(part.work_bytes + plain.work(part.step, target, threads) for part in parts)

    def emit(step: Step, e: Emitter) -> None:
        for part in pieces(twins(step), e.threads):
            for view, tensor, start in part.views:
                e.place_within(view, tensor, start)
            offset = 0
            for temporary in part.temporaries:
                e.place_in_work(temporary, offset)
                offset += padded_size(temporary.nbytes)
            for stored, temporary in part.before:
                _emit_reals(e, stored, e.at(temporary))
            with e.nested(part.step, offset):
                plain.emit(part.step, e)
            for stored, temporary in part.after:
                _emit_reals(e, stored, e.at(temporary), step.op)

    def refuses(step: Step) -> str | None:
        whole = twins(step, contents=False)
        reasons = [
            *(fixed_point.no_reals_of(stored) for stored, _ in whole.before if stored.dtype.is_fixed_point),
            *(fixed_point.not_from_reals(stored) for stored, _ in whole.after if stored.dtype.is_fixed_point),
        ]
        return next((reason for reason in reasons if reason is not None), None) or plain.refuses(whole.step)

    return Lowering(emit, work, refuses)


def movement(plain: Lowering) -> Callable[[Step], Lowering]:
    """Return a function that chooses the lowering of a movement; `plain` moves elements between equal quantizations.

    If quantizations differ, inputs of 8 and 16 bits are converted to the output's; other steps are computed in float.
    """

    def replacements(step: Step) -> dict[Tensor, Tensor]:
        """Return each input that is quantized differently from the output, with the tensor it is converted to."""
        output = step.outputs[0]
        return {
            t: Tensor(t.name, TensorType.NATIVE, output.dtype, t.dims, output.quantization)
            for t in step.inputs
            if t is not None
            and t.dtype.is_fixed_point
            and output.dtype.is_fixed_point
            and (t.dtype is not output.dtype or t.quantization != output.quantization)
        }

    def with_replacements(step: Step, pairs: Mapping[Tensor, Tensor]) -> Step:
        """Return the step with each input replaced by its partner in `pairs`, if it has one."""
        return replace(step, inputs=[t if t is None else pairs.get(t, t) for t in step.inputs])

    def work(step: Step, target: Target, threads: int) -> int:
        return sum(padded_size(t.nbytes) for t in replacements(step).values()) + plain.work(step, target, threads)

    def emit(step: Step, e: Emitter) -> None:
        output, offset, pairs = step.outputs[0], 0, replacements(step)
        for tensor, temporary in pairs.items():
            e.place_in_work(temporary, offset)
            if fixed_point.is_convertible(tensor, output):
                fixed_point.emit_convert(e, step, tensor, output, e.at(temporary))
            else:
                codes = conversion_codes(tensor, output, e.numerics)
                fixed_point.emit_lookup(e, tensor, e.at(temporary), codes, step, output)
            offset += padded_size(temporary.nbytes)
        inner = with_replacements(step, pairs)
        with e.nested(inner, offset):
            plain.emit(inner, e)

    conversion, detour = Lowering(emit, work), through_float(plain)

    def choose(step: Step) -> Lowering:
        output, pairs = step.outputs[0], replacements(step)
        possible = all(all(map(is_eight_bit, (t, output))) or fixed_point.is_convertible(t, output) for t in pairs)
        if step.clamp is not None or not possible or plain.refuses(with_replacements(step, pairs)) is not None:
            return detour
        return conversion if pairs else plain

    return choose
