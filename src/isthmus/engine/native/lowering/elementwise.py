"""Lowering of elementwise operations: the kernel for a function and a type, and broadcasting resolved into rows.

Fixed point of 16 bits is a kind among others, with words for its scales and zero points. Fixed point of 8 bits has
tables (see `quantized`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np

from isthmus.engine.native.lowering import fixed_point
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.fixed_point import operand_words, result_words, scale_of
from isthmus.engine.native.program import Operand
from isthmus.engine.native.signatures import elementwise as declared
from isthmus.engine.native.signatures.elementwise import FLOATS, INTEGERS, KINDS, KINDS_OF, STEPS, kernel_of
from isthmus.engine.native.words import Value
from isthmus.graph import DataType, Tensor, TensorType
from isthmus.graph.operation import Operation
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.ops.elementwise import FUNCTIONS, NUMBERED, numbered_function
from isthmus.prepare.geometry.fixed_point import is_eight_bit, is_sixteen_bit
from isthmus.prepare.geometry.layout import collapse, dense_strides, operand
from isthmus.prepare.schedule import Step

# A power with one of these constant exponents is a plain function.
_POWERS = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
# Constant rows with fewer elements than this are repeated.
_SHORT_ROW = 64
# The approximate number of elements of a repeated row.
_LONG_ROW = 512


def kind_of(tensor: Tensor) -> str:
    """Return the kernels' name of a tensor's type; fixed-point types have none."""
    return KINDS[tensor.dtype]


def without_kind(*tensors: Tensor) -> str | None:
    """Return why kernels cannot compute with one of these tensors, or None."""
    for tensor in tensors:
        if tensor.dtype not in KINDS:
            return f"{tensor.describe()} has a data type that this kernel does not compute with"
    return None


def without_clamp(step: Step) -> str | None:
    """Return why `clamp_in_place` cannot limit the outputs of a step to its fused activation, or None."""
    for tensor in step.outputs:
        if step.clamp is not None and KINDS.get(tensor.dtype) not in FLOATS:
            return f"a fused activation of {tensor.describe()} needs floats"
    return None


def _stored_type(tensor: Tensor) -> DataType:
    """Return the plain type of a tensor's stored elements."""
    return DataType.of(tensor.dtype.numpy) if tensor.dtype.is_fixed_point else tensor.dtype


def _emit_function(
    e: Emitter, variant: str, output: Operand, x: Operand, elements: int, first: float = 0.0, second: float = 0.0
) -> None:
    """Emit a function of one element and up to two parameters."""
    e.emit(f"elementwise:unary.{variant}", output=output, x=x, elements=elements, first=first, second=second)


def clamp_in_place(step: Step, e: Emitter) -> None:
    """Limit the outputs to the step's fused activation, for kernels that do not limit them."""
    if step.clamp is None:
        return
    for tensor in step.outputs:
        variant = f"clamp_{kind_of(tensor)}"
        _emit_function(e, variant, e.at(tensor), e.at(tensor), tensor.elements, *map(float, step.clamp))


def _emit_unary(step: Step, e: Emitter, function: Operation) -> None:
    x, output = operand(step, 0), step.outputs[0]
    kind, name = kind_of(x), kernel_of(function.name)
    parameters = [float(step.params[p.name]) for p in function.params]
    if name in ("sin", "cos") and kind in FLOATS:
        e.emit(f"elementwise:trigonometric.{name}_{kind}", output=e.at(output), x=e.at(x), elements=x.elements)
    else:
        _emit_function(e, f"{name}_{kind}", e.at(output), e.at(x), x.elements, *parameters)
    clamp_in_place(step, e)


def _emit_clamp(step: Step, e: Emitter, low: float, high: float) -> None:
    """Limit elements to a range, and further to the step's fused activation."""
    x, output = operand(step, 0), step.outputs[0]
    if kind_of(x) not in FLOATS:
        _emit_other_clamp(step, e, low, high)
        return
    if step.clamp is not None:
        low, high = (min(max(v, step.clamp[0]), step.clamp[1]) for v in (low, high))
    _emit_function(e, f"clamp_{kind_of(x)}", e.at(output), e.at(x), x.elements, float(low), float(high))


def _emit_other_clamp(step: Step, e: Emitter, low: float, high: float) -> None:
    """Limit integers or doubles by the maximum with the lower limit, then the minimum with the upper one."""
    # A limit that is not finite is left out, if the other one writes the result.
    x, output = operand(step, 0), step.outputs[0]
    source = x
    for name, limit in (("maximum", low), ("minimum", high)):
        if np.isfinite(limit) or (name == "minimum" and source is x):
            if x.dtype.is_integer:
                bounds = np.iinfo(x.dtype.numpy)
                limit = int(min(max(limit, bounds.min), bounds.max))
            data = np.array([limit], x.dtype.numpy)
            fixed = Tensor("limit", TensorType.STATIC, x.dtype, (1,), None, data)
            _emit_pairs(e, f"elementwise:binary.{name}_{kind_of(x)}", output, source, fixed, low=0.0, high=0.0)
            source = output


def rows(
    out_dims: Sequence[int], operands: Sequence[Tensor], sizes: Sequence[int]
) -> tuple[int, list[int], list[list[int]], list[int]]:
    """Return broadcasting as rows along which each operand advances or stays.

    `sizes` has the bytes of an element of each operand. The result has four parts: the length of a row; the outer
    dimensions, innermost first; for each operand, its byte strides along these; and for each operand, its step from one
    element of a row to the next (0 or 1).
    """
    strides = []
    for tensor in operands:
        padded = (1,) * (len(out_dims) - tensor.rank) + tensor.dims
        dense = dense_strides(padded)
        strides.append([0 if d == 1 else s for d, s in zip(padded, dense, strict=True)])
    dims, collapsed = collapse(out_dims, strides)
    steps = [s[-1] for s in collapsed]
    outer = [[s * size for s in reversed(each[:-1])] for each, size in zip(collapsed, sizes, strict=True)]
    return dims[-1], list(reversed(dims[:-1])), outer, steps


# By the steps of two operands in a row: both advance (0), or only the right one (1) or the left one (2).
_MODES = {(1, 1): 0, (0, 1): 1, (1, 0): 2, (0, 0): 0}


def _emit_pairs(e: Emitter, kernel: str, output: Tensor, left: Tensor, right: Tensor, **words: Value) -> None:
    """Emit a function of two elements, with broadcasting; `words` are the kernel's other words."""
    inner, dims, strides, steps = rows(output.dims, (left, right), [left.dtype.itemsize] * 2)
    locations = [e.at(left), e.at(right)]
    # A short constant row is repeated, because a loop over a few elements is mostly overhead.
    for index, tensor in enumerate((left, right)):
        if tensor.is_static and tensor.elements == inner < _SHORT_ROW and len(dims) == 1 and steps == [1, 1]:
            repeats = _LONG_ROW // inner
            locations[index] = e.constant(np.tile(np.asarray(tensor.data).reshape(-1), repeats))
            # A row is now as long as several rows of the other operand.
            strides[1 - index][0] *= repeats
            inner, dims = inner * repeats, [-(-dims[0] // repeats)]
            break
    e.emit(
        kernel, output=e.at(output), left=locations[0], right=locations[1], elements=output.elements,
        inner=max(inner, 1), mode=_MODES[steps[0], steps[1]], dims=dims, left_strides=strides[0],
        right_strides=strides[1], **words,
    )  # fmt: skip


def _emit_binary(step: Step, e: Emitter, function: Operation) -> None:
    left, right, output = operand(step, 0), operand(step, 1), step.outputs[0]
    kind, name = kind_of(left), kernel_of(function.name)
    if name == "power" and kind in FLOATS and right.is_static and right.elements == 1:
        _emit_power(step, e, float(right.dtype.decode(np.asarray(right.data)).reshape(())))
        return
    low, high = step.clamp or (-inf, inf)
    _emit_pairs(e, f"elementwise:binary.{name}_{kind}", output, left, right, low=float(low), high=float(high))


def _emit_power(step: Step, e: Emitter, exponent: float) -> None:
    """Emit a power with a constant exponent, as a function of one element."""
    x, output = operand(step, 0), step.outputs[0]
    name = _POWERS.get(exponent, "power")
    _emit_function(e, f"{name}_{kind_of(x)}", e.at(output), e.at(x), x.elements, exponent)
    clamp_in_place(step, e)


def _emit_select(step: Step, e: Emitter) -> None:
    condition, yes, no = (operand(step, i) for i in range(3))
    output = step.outputs[0]
    size = output.dtype.itemsize
    inner, dims, strides, steps = rows(output.dims, (condition, yes, no), [1, size, size])
    e.emit(
        f"elementwise:choose.{size}", output=e.at(output), condition=e.at(condition), yes=e.at(yes), no=e.at(no),
        elements=output.elements, inner=max(inner, 1), dims=dims, condition_strides=strides[0], yes_strides=strides[1],
        no_strides=strides[2], condition_step=steps[0], yes_step=steps[1], no_step=steps[2],
    )  # fmt: skip
    clamp_in_place(step, e)


def _emit_cast(step: Step, e: Emitter) -> None:
    """Emit a cast; stored elements keep their number, also those of fixed-point tensors."""
    x, output = operand(step, 0), step.outputs[0]
    source, goal = (KINDS[_stored_type(tensor)] for tensor in (x, output))
    e.emit(f"elementwise:cast.{source}_{goal}", output=e.at(output), x=e.at(x), elements=x.elements)
    clamp_in_place(step, e)


def _emit_bit_cast(step: Step, e: Emitter) -> None:
    x, output = operand(step, 0), step.outputs[0]
    kind = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}[x.dtype.itemsize]
    e.emit(f"elementwise:cast.{kind}_{kind}", output=e.at(output), x=e.at(x), elements=x.elements)
    clamp_in_place(step, e)


def _emit_relu_min_max(step: Step, e: Emitter) -> None:
    _emit_clamp(step, e, step.params["min_value"], step.params["max_value"])


def _refuses_function(step: Step, function: Operation) -> str | None:
    """Return why no kernel exists, or None: for types, mixed types, or an activation of results other than floats."""
    operands = [operand(step, index) for index in range(function.inputs[0])]
    unknown = without_kind(operands[0])
    if unknown is not None:
        return unknown
    if kind_of(operands[0]) not in KINDS_OF[function.name] or len({t.dtype for t in operands}) > 1:
        return f"{kernel_of(function.name)} of {' and '.join(t.describe() for t in operands)} is not supported"
    return without_clamp(step)


def _refuses_clamp(step: Step) -> str | None:
    x = operand(step, 0)
    if x.dtype in KINDS and kind_of(x) not in (*FLOATS, "f64", *INTEGERS):
        return f"a clamp of {x.describe()} is not supported"
    return without_kind(x) or without_clamp(step)


def _refuses_select(step: Step) -> str | None:
    condition, yes, no = (operand(step, i) for i in range(3))
    if condition.dtype.itemsize != 1 or yes.dtype is not no.dtype or yes.quantization != no.quantization:
        return f"a choice between {yes.describe()} and {no.describe()} is not supported"
    return without_clamp(step)


def _refuses_cast(step: Step) -> str | None:
    for tensor in (operand(step, 0), step.outputs[0]):
        if _stored_type(tensor) not in KINDS:
            return without_kind(tensor)
    return without_clamp(step)


# Functions whose kernels have other operands than those of one or two elements.
_SPECIAL: dict[str, Lowering] = {
    "ReluMinMax": Lowering(_emit_relu_min_max, refuses=_refuses_clamp),
    "ElementWiseSelect": Lowering(_emit_select, refuses=_refuses_select),
}


def _lowering_of(function: Operation) -> Lowering:
    """Return the lowering of an elementwise function, from its entry in the table of operations."""
    limits = function.traits.limits
    if limits is not None:
        return Lowering(lambda step, e: _emit_clamp(step, e, *limits), refuses=_refuses_clamp)
    emit = _emit_unary if function.inputs == (1, 1) else _emit_binary
    return Lowering(lambda step, e: emit(step, e, function), refuses=lambda step: _refuses_function(step, function))


_FUNCTIONS: dict[str, Lowering] = {name: _SPECIAL.get(name) or _lowering_of(f) for name, f in FUNCTIONS.items()}


def _function(step: Step) -> Operation | None:
    """Return the elementwise function of a step, which may be selected by a number; None for a conversion."""
    if step.op in NUMBERED:
        return numbered_function(step.op, step.params["operation"])
    return FUNCTIONS.get(step.op)


def _numbered_lowering(step: Step) -> Lowering:
    """Return the lowering of the function that a step selects by a number in its parameter ``operation``."""
    return _FUNCTIONS[numbered_function(step.op, step.params["operation"]).name]


_NUMBERED = Lowering(
    lambda step, e: _numbered_lowering(step).emit(step, e), refuses=lambda step: _numbered_lowering(step).refuses(step)
)
_ENTRIES: dict[str, Lowering] = {
    **{name: entry for name, entry in _FUNCTIONS.items() if name in OPERATIONS},
    **dict.fromkeys(NUMBERED, _NUMBERED),
    "Cast": Lowering(_emit_cast, refuses=_refuses_cast),
    "Convert": Lowering(_emit_cast, refuses=_refuses_cast),
    "BitCast": Lowering(_emit_bit_cast, refuses=without_clamp),
}


def _unless_empty(entry: Lowering) -> Lowering:
    """Return a lowering that refuses nothing if the result has no elements."""
    return replace(entry, refuses=lambda step: entry.refuses(step) if step.outputs[0].elements else None)


LOWERINGS: dict[str, Lowering] = {op: _unless_empty(entry) for op, entry in _ENTRIES.items()}


# -- fixed point of 16 bits --------------------------------------------------------------------------------------------


def _factors(step: Step, function: Operation | None) -> tuple[float, float] | None:
    """Return the factors of a function that multiplies reals above and below zero; None for another function."""
    if function is None or function.traits.limits is not None or function.name == "ReluMinMax":
        return 1.0, 1.0
    if function.name == "Prelu":
        slope = fixed_point.slope_of(step)
        return None if slope is None else (1.0, float(slope))
    return {"ElementWiseNeg": (-1.0, -1.0), "ElementWiseAbs": (1.0, -1.0)}.get(function.name)


def _limits(step: Step, function: Operation | None) -> tuple[float, float]:
    """Return the reals that a function limits its result to."""
    if function is not None and function.name == "ReluMinMax":
        return float(step.params["min_value"]), float(step.params["max_value"])
    limits = None if function is None else function.traits.limits
    return (-inf, inf) if limits is None else limits


def _second(step: Step) -> Tensor:
    """Return the second operand; constant slopes of 8 bits are widened to 16."""
    tensor = operand(step, 1)
    if step.op != "Prelu" or not tensor.is_static or not is_eight_bit(tensor) or tensor.data is None:
        return tensor
    wide = np.int16 if tensor.dtype is DataType.SFIXED_POINT_8 else np.uint16
    return replace(tensor, dtype=DataType.fixed_point(wide), data=tensor.data.astype(wide))


def _covers_one(step: Step) -> bool:
    """Return whether `_emit_one_of_steps` can emit a step."""
    x, output, function = step.inputs[0], step.outputs[0], _function(step)
    if _factors(step, function) is not None:
        return fixed_point.is_convertible(x, output)
    exists = function is not None and f"{kernel_of(function.name)}_{STEPS}" in declared.UNARY_OF_STEPS.variants
    return exists and is_sixteen_bit(x) and is_sixteen_bit(output)


def _covers_pairs(step: Step) -> bool:
    """Return whether `_emit_pairs_of_steps` can emit a step."""
    function, output = _function(step), step.outputs[0]
    if function is None or function.inputs != (2, 2):
        return False
    if not is_sixteen_bit(step.inputs[0]) or not is_sixteen_bit(_second(step)):
        return False
    name = kernel_of(function.name)
    result = output.dtype is DataType.BOOL_8 if name in declared.COMPARISONS else is_sixteen_bit(output)
    return result and f"{name}_{STEPS}" in declared.BINARY_OF_STEPS.variants


def _emit_one_of_steps(step: Step, e: Emitter) -> None:
    """Emit a function of one fixed-point tensor, or its conversion, in quantization steps."""
    x, output, function = operand(step, 0), step.outputs[0], _function(step)
    factors = _factors(step, function)
    if factors is not None:
        fixed_point.emit_convert(e, step, x, output, e.at(output), factors, _limits(step, function))
        return
    assert function is not None
    first, second, *_ = (*(float(step.params[p.name]) for p in function.params), 0.0, 0.0)
    e.emit(
        f"elementwise:unary.{kernel_of(function.name)}_{STEPS}", output=e.at(output), x=e.at(x), elements=x.elements,
        first=first, second=second, scale=scale_of(x), inverse=1.0 / scale_of(output), **operand_words(x, "in"),
        **result_words(step, output),
    )  # fmt: skip


def _pair_factors(name: str, left: float, right: float, result: float) -> tuple[float, float, float]:
    """Return the factors of the operands and of the function's result, from the three scales."""
    # Ratios of scales are computed first: many are powers of two, and ties are then exact.
    if name in ("add", "subtract", "maximum", "minimum"):
        return left / result, right / result, 1.0
    if name == "prelu":
        return left / result, right, 1.0
    if name == "multiply":
        return 1.0, 1.0, left * right / result
    if name == "divide":
        return 1.0, 1.0, left / (right * result)
    return left, right, 1.0 / result


def _emit_pairs_of_steps(step: Step, e: Emitter) -> None:
    """Emit a function of two 16-bit tensors in quantization steps."""
    left, right, output, function = operand(step, 0), _second(step), step.outputs[0], _function(step)
    assert function is not None
    name = kernel_of(function.name)
    if name in declared.COMPARISONS:
        kernel = f"elementwise:binary.{name}_{STEPS}"
        factors = scale_of(left), scale_of(right), 1.0
        result = dict.fromkeys(("out_zero", "out_flip", "least", "most"), 0)
    else:
        kernel = fixed_point.rounding_kernel(e, step.op, "elementwise:binary", f"{name}_{STEPS}")
        factors = _pair_factors(name, scale_of(left), scale_of(right), scale_of(output))
        result = result_words(step, output)
    _emit_pairs(
        e, kernel, output, left, right, left_factor=factors[0], right_factor=factors[1], factor=factors[2],
        **operand_words(left, "left"), **operand_words(right, "right"), **result,
    )  # fmt: skip


_OF_STEPS = Lowering(lambda step, e: (_emit_pairs_of_steps if _covers_pairs(step) else _emit_one_of_steps)(step, e))
FIXED16 = {
    op: (lambda step: bool(step.outputs[0].elements) and (_covers_pairs(step) or _covers_one(step)), _OF_STEPS)
    for op in (*FUNCTIONS, *NUMBERED, "Convert")
}
"""For each operation, a test of which steps its 16-bit lowering covers, and that lowering."""
