"""Steps that no kernel covers in the type of their tensors: computed in float32, or moved after requantization.

Both place temporaries in the step's work space and pass an ordinary step to the plain lowering. A step that can be
divided is computed in float32 piece by piece (see `float_pieces`).
"""

from __future__ import annotations

import numpy as np

from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.fixed16_elementwise import emit_convert, is_convertible
from isthmus.engine.native.lowering.fixed_point import (
    emit_dequantize,
    emit_lookup,
    emit_quantize,
    no_reals_of,
    not_from_reals,
)
from isthmus.engine.native.lowering.float_pieces import FloatPiece, divided, padded
from isthmus.engine.native.lowering.tables import converted_codes
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
    """Return the float tensor that replaces another one.

    If `contents` is False, a constant gets the value 1 everywhere, without the time and memory for its real contents.
    """
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


def _emit_widen(e: Emitter, stored: Tensor, goal: Operand) -> None:
    """Emit the conversion of a tensor to FLOAT_32."""
    if stored.dtype.is_fixed_point:
        emit_dequantize(e, stored, goal)
    elif stored.elements:
        variant = f"{KINDS[stored.dtype]}_f32"
        e.emit(f"elementwise:cast.{variant}", output=goal, x=e.at(stored), elements=stored.elements)


def _emit_narrow(e: Emitter, source: Operand, stored: Tensor, op: str) -> None:
    """Emit the conversion of FLOAT_32, the result of an operation, to the type of a tensor."""
    if stored.dtype.is_fixed_point:
        emit_quantize(e, source, stored, op)
    elif stored.elements:
        variant = f"f32_{KINDS[stored.dtype]}"
        e.emit(f"elementwise:cast.{variant}", output=e.at(stored), x=source, elements=stored.elements)


def through_float(plain: Lowering) -> Lowering:
    """Return a lowering that converts inputs to FLOAT_32, runs the float lowering and converts outputs back."""

    def twins(step: Step, contents: bool = True) -> FloatPiece:
        """Return the step on float tensors.

        Without `contents`, constants are not converted; this is enough to ask what the step needs.
        """
        # The float tensors by the identity of those that they replace.
        float_tensors: dict[int, Tensor] = {}

        def twin(tensor: Tensor | None) -> Tensor | None:
            """Return the float tensor that replaces another one, the same each time; or the tensor itself."""
            if tensor is None or not _needs_twin(tensor):
                return tensor
            if id(tensor) not in float_tensors:
                float_tensors[id(tensor)] = _real_twin(tensor, contents)
            return float_tensors[id(tensor)]

        inputs = [twin(t) for t in step.inputs]
        outputs = [_real_twin(t) if _needs_twin(t) else t for t in step.outputs]
        inner = Step(step.op, step.name, inputs, outputs, step.params, step.clamp, step.part)
        before = {
            id(t): (t, float_tensors[id(t)])
            for t in step.inputs
            if t is not None and id(t) in float_tensors and not t.is_static
        }
        after = [(t, o) for t, o in zip(step.outputs, outputs, strict=True) if t is not o]
        return FloatPiece(inner, list(before.values()), after)

    def pieces(whole: FloatPiece, threads: int) -> list[FloatPiece]:
        """Return the pieces of a step that the float lowering takes, or the step itself."""
        parts = divided(whole, threads)
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
                offset += padded(temporary.nbytes)
            for stored, temporary in part.before:
                _emit_widen(e, stored, e.at(temporary))
            with e.nested(part.step, offset):
                plain.emit(part.step, e)
            for stored, temporary in part.after:
                _emit_narrow(e, e.at(temporary), stored, step.op)

    def refuses(step: Step) -> str | None:
        whole = twins(step, contents=False)
        reasons = [
            *(no_reals_of(stored) for stored, _ in whole.before if stored.dtype.is_fixed_point),
            *(not_from_reals(stored) for stored, _ in whole.after if stored.dtype.is_fixed_point),
        ]
        return next((reason for reason in reasons if reason is not None), None) or plain.refuses(whole.step)

    return Lowering(emit, work, refuses)


def moved(plain: Lowering) -> Lowering:
    """Return a lowering that moves stored elements.

    If quantizations differ, inputs of 8 and 16 bits are converted to the output's; other steps are computed in float.
    """
    detour = through_float(plain)

    def differing(step: Step) -> list[Tensor]:
        """Return the inputs that are quantized differently from the output."""
        output = step.outputs[0]
        return [
            t
            for t in dict.fromkeys(t for t in step.inputs if t is not None)
            if t.dtype.is_fixed_point
            and output.dtype.is_fixed_point
            and (t.dtype is not output.dtype or t.quantization != output.quantization)
        ]

    def converted(step: Step) -> tuple[Step, list[tuple[Tensor, Tensor]]]:
        """Return the movement of converted tensors, and a pair of each replaced tensor and its replacement."""
        output, replacements = step.outputs[0], {}
        for tensor in differing(step):
            replacements[id(tensor)] = Tensor(
                tensor.name, TensorType.NATIVE, output.dtype, tensor.dims, output.quantization
            )
        inputs = [replacements.get(id(t), t) for t in step.inputs]
        inner = Step(step.op, step.name, inputs, step.outputs, step.params, part=step.part)
        return inner, [(tensor, replacements[id(tensor)]) for tensor in differing(step)]

    def converts(step: Step) -> bool:
        """Return whether all differing inputs can be converted, and the result can then be moved."""
        output = step.outputs[0]
        possible = all(all(map(is_eight_bit, (t, output))) or is_convertible(t, output) for t in differing(step))
        return step.clamp is None and possible and plain.refuses(converted(step)[0]) is None

    def direct(step: Step) -> bool:
        """Return whether stored elements can be moved as they are."""
        return step.clamp is None and not differing(step) and plain.refuses(step) is None

    def work(step: Step, target: Target, threads: int) -> int:
        if direct(step):
            return plain.work(step, target, threads)
        if not converts(step):
            return detour.work(step, target, threads)
        return sum(padded(t.nbytes) for _, t in converted(step)[1]) + plain.work(step, target, threads)

    def emit(step: Step, e: Emitter) -> None:
        if direct(step):
            plain.emit(step, e)
            return
        if not converts(step):
            detour.emit(step, e)
            return
        output, offset = step.outputs[0], 0
        inner, pairs = converted(step)
        for tensor, temporary in pairs:
            e.place_in_work(temporary, offset)
            if is_convertible(tensor, output):
                emit_convert(e, step, tensor, output, e.at(temporary))
            else:
                emit_lookup(e, tensor, e.at(temporary), converted_codes(tensor, output, e.numerics), step, output)
            offset += padded(temporary.nbytes)
        with e.nested(inner, offset):
            plain.emit(inner, e)

    def refuses(step: Step) -> str | None:
        return None if direct(step) or converts(step) else detour.refuses(step)

    return Lowering(emit, work, refuses)
