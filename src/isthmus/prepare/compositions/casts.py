"""The composition of a cast between signed and unsigned fixed-point types."""

from __future__ import annotations

from isthmus.graph import DataType, Quantization, Tensor
from isthmus.graph.datatypes import changes_sign
from isthmus.graph.ops import OPERATIONS
from isthmus.prepare.compositions.composer import Composition, StepComposer

_FIXED = {
    (1, False): DataType.UFIXED_POINT_8,
    (1, True): DataType.SFIXED_POINT_8,
    (2, False): DataType.UFIXED_POINT_16,
    (2, True): DataType.SFIXED_POINT_16,
}


def _cast(c: StepComposer) -> list[Tensor] | None:
    """Move the stored numbers of a signed type into the range of the unsigned one, or back, as HTP does.

    The casts around the conversion keep the bytes.
    """
    x, output = c.input(0), c.outputs[0]
    if not changes_sign(x.dtype, output.dtype):
        return None
    middle = 1 << (8 * x.itemsize - 1)
    was, becomes = (each.numpy.kind == "i" for each in (x.dtype, output.dtype))

    def number(signed: bool) -> tuple[DataType, Quantization]:
        """Return the fixed-point type whose reals are whole: the numbers of the unsigned type."""
        return _FIXED[x.itemsize, signed], Quantization((1.0,), (middle if signed else 0,))

    def step(op: str, tensor: Tensor, dtype: DataType, encoding: Quantization | None) -> Tensor:
        result = c.work.native(c.step.name, tensor.dims, dtype, encoding)
        params = OPERATIONS[op].complete(c.step.name, {})
        c.work.add(op, result.name, [tensor], [result], params, near=c.step)
        return result

    moved = step("Convert", step("Cast", x, *number(was)), *number(becomes))
    return [step("Cast", moved, output.dtype, output.quantization)]


COMPOSITIONS: dict[str, Composition] = {"Cast": _cast}
