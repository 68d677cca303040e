"""Compositions of elementwise operations, casts, quantizers and random numbers, which each execution draws anew."""

from __future__ import annotations

from isthmus.graph import DataType, Quantization, Tensor
from isthmus.graph.datatypes import changes_sign
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.ops.elementwise import numbered_function
from isthmus.prepare.compositions.composer import FLOAT, INTEGER, Composition, StepComposer

_FIXED = {
    (1, False): DataType.UFIXED_POINT_8,
    (1, True): DataType.SFIXED_POINT_8,
    (2, False): DataType.UFIXED_POINT_16,
    (2, True): DataType.SFIXED_POINT_16,
}


def _multiplex(c: StepComposer) -> list[Tensor]:
    """Select in[n + 1] where in[0] is n, by one Select for each operand; a number beyond them takes the nearest one."""
    selector, last = c.whole(0), len(c.step.inputs) - 1
    chosen = c.input(last)
    for index in range(last - 1, 0, -1):
        condition = c("ElementWiseLessEqual", selector, c.constant([index - 1], INTEGER))
        chosen = c("ElementWiseSelect", condition, c.input(index), chosen)
    if chosen.dims != c.outputs[0].dims:
        # With a single operand, no Select has broadcast it to the dimensions of the selector.
        always = c("ElementWiseEqual", selector, selector)
        chosen = c("ElementWiseSelect", always, chosen, c.zeros([1] * len(c.outputs[0].dims), chosen))
    return [chosen]


def _logit(c: StepComposer) -> list[Tensor]:
    """Compute log(x / (1 - x)), with x limited to epsilon … 1 - epsilon if in[1], epsilon, is given."""
    x, one = c.real(0), c.constant([1.0])
    if c.given(1) is not None:
        epsilon = c.reshape(c.real(1), 1)
        x = c("ElementWiseMaximum", x, epsilon)
        x = c("ElementWiseMinimum", x, c("ElementWiseSubtract", one, epsilon))
    return [c("ElementWiseLog", c("ElementWiseDivide", x, c("ElementWiseSubtract", one, x)))]


def _power(c: StepComposer) -> list[Tensor] | None:
    """Compute a power in reals if the exponent has another type than the base."""
    base, exponent = c.input(0), c.input(1)
    return None if base.dtype is exponent.dtype else [c("ElementWisePower", c.real(0), c.real(1))]


def _binary(c: StepComposer) -> list[Tensor] | None:
    return _power(c) if numbered_function(c.step.op, int(c.params["operation"])).name == "ElementWisePower" else None


def _dequantize(c: StepComposer) -> list[Tensor] | None:
    """Dequantize to FLOAT_32, which `StepComposer.finish` casts, if the result has another type of floats."""
    return None if c.outputs[0].dtype is FLOAT else [c.real(0)]


def _quantize(c: StepComposer) -> list[Tensor] | None:
    """Quantize floats of other types than FLOAT_32 after a cast to FLOAT_32."""
    return None if c.input(0).dtype is FLOAT else [c.real(0)]


def _cast(c: StepComposer) -> list[Tensor] | None:
    """Move the stored numbers of a signed type into the range of the unsigned one, or back, between casts of bytes."""
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


def execution_number(c: StepComposer) -> Tensor:
    """Return the number of the execution, which a state keeps."""
    one = c.constant([1], INTEGER)
    number = c.work.add_state(f"{c.step.name}.executions", [1], one)
    c.work.updates[number] = c("ElementWiseAdd", number, one)
    return number


def _random(c: StepComposer) -> list[Tensor] | None:
    """Add the number of the execution as the last operand; the numbers are FLOAT_32."""
    if c.given(2) is not None and c.outputs[0].dtype is FLOAT:
        return None
    seed = None if c.given(1) is None else c.real(1)
    number = c.given(2) or execution_number(c)
    return [c(c.step.op, c.input(0), seed, number, dims=c.outputs[0].dims, dtype=FLOAT, **c.params)]


COMPOSITIONS: dict[str, Composition] = {
    "Cast": _cast, "Dequantize": _dequantize, "ElementWiseBinary": _binary, "ElementWiseMux": _multiplex,
    "ElementWisePower": _power, "Logit": _logit, "Quantize": _quantize, "RandomNormalLike": _random,
    "RandomUniformLike": _random,
}  # fmt: skip
