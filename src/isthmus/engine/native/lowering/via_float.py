"""Steps that no kernel covers in the type of their tensors: computed in float32, or moved after requantization.

Both place temporaries in the step's work space and pass an ordinary step to the plain lowering. A step that can be
divided is computed in float32 piece by piece (see `float_pieces`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from isthmus.engine.native.lowering import fixed_point
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.float_pieces import FloatPiece, divide, padded_size
from isthmus.engine.native.lowering.tables import conversion_codes
from isthmus.engine.native.program import Operand
from isthmus.engine.native.signatures.elementwise import KINDS
from isthmus.engine.native.target import Target
from isthmus.graph import DataType, Tensor, TensorType
from isthmus.prepare.geometry.fixed_point import is_eight_bit, quantization_of
from isthmus.prepare.schedule import Step


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
        inputs = [t if t is None else pairs.get(t, t) for t in step.inputs]
        return Step(step.op, step.name, inputs, step.outputs, step.params, part=step.part)

    def work(step: Step, target: Target, threads: int) -> int:
        return sum(padded_size(t.nbytes) for t in replacements(step).values()) + plain.work(step, target, threads)

    def emit(step: Step, e: Emitter) -> None:
        output, offset, pairs = step.outputs[0], 0, replacements(step)
        for tensor, temporary in pairs.items():
            e.place_in_work(temporary, offset)
            if fixed_point.is_convertible(tensor, output):
                fixed_point.emit_convert(e, step, tensor, output, e.at(temporary))
            else:
                fixed_point.emit_lookup(
                    e, tensor, e.at(temporary), conversion_codes(tensor, output, e.numerics), step, output
                )
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
