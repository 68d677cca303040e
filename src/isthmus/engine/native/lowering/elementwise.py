"""Lowering of elementwise operations: which kernel a function and a type need, and broadcasting resolved into rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import inf

import numpy as np

from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.lowering.layout import collapse, dense_strides, operand
from isthmus.graph import DataType, Tensor
from isthmus.graph.operation import Operation
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.ops.elementwise import FUNCTIONS, NUMBERED, numbered
from isthmus.prepare.schedule import Step

Emit = Callable[[Step, Emitter], None]

KINDS: dict[DataType, str] = {
    DataType.FLOAT_32: "f32",
    DataType.FLOAT_64: "f64",
    DataType.INT_8: "i8",
    DataType.INT_16: "i16",
    DataType.INT_32: "i32",
    DataType.INT_64: "i64",
    DataType.UINT_8: "u8",
    DataType.UINT_16: "u16",
    DataType.UINT_32: "u32",
    DataType.UINT_64: "u64",
    DataType.BOOL_8: "bool",
}
"""The kernels' names of the plain types."""

_KERNELS = {"ElementWiseSquareRoot": "sqrt", "IsNaN": "isnan", "IsInf": "isinf"}
"""Functions whose kernels have shorter names than they."""


def _kernel(op: str) -> str:
    """What the kernel of a function is called: ``squared_difference`` for ElementWiseSquaredDifference."""
    return _KERNELS.get(op) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", op.removeprefix("ElementWise")).lower()


_UNSIGNED = ("u8", "u16", "u32", "u64")
_INTEGERS = ("i8", "i16", "i32", "i64", *_UNSIGNED)
_MISSING: dict[str, tuple[str, ...]] = {
    "ElementWiseNeg": _UNSIGNED,
    **dict.fromkeys((f"ElementWise{name}" for name in ("Divide", "FloorDiv", "Mod", "Fmod", "Power")), ("u64",)),
}
"""Kinds that a function has no kernel for: negative numbers have no unsigned kind, and these divide in signed words."""
_KINDS_OF: dict[str, frozenset[str]] = {
    name: frozenset(KINDS[t] for t in function.input_types[0] if t in KINDS) - {"f64", *_MISSING.get(name, ())}
    for name, function in FUNCTIONS.items()
}
"""The kinds that a function takes."""

# A power with one of these constant exponents is a plain function.
_POWERS = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
_SHORT_ROW = 64
_LONG_ROW = 512


def kind_of(tensor: Tensor, e: Emitter) -> str:
    """The kernels' name of a tensor's type; fixed-point types have none."""
    if tensor.dtype not in KINDS:
        raise e.refuse(f"{tensor.describe()} has a data type that this kernel does not compute with")
    return KINDS[tensor.dtype]


def _stored_kind(tensor: Tensor, e: Emitter) -> str:
    return KINDS[DataType.of(tensor.dtype.numpy)] if tensor.dtype.is_fixed_point else kind_of(tensor, e)


def clamp_in_place(step: Step, e: Emitter) -> None:
    """Limit the outputs to the step's fused activation, for kernels that do not do so themselves."""
    if step.clamp is None:
        return
    for tensor in step.outputs:
        if tensor.dtype is not DataType.FLOAT_32:
            raise e.refuse(f"a fused activation of {tensor.describe()} needs float32")
        e.emit("elementwise:unary.clamp_f32", e.at(tensor), e.at(tensor), tensor.elements, *map(float, step.clamp))


def _emit_unary(step: Step, e: Emitter, function: Operation) -> None:
    x, output = operand(step, 0), step.outputs[0]
    kind, name = kind_of(x, e), _kernel(function.name)
    parameters = [float(step.params[p.name]) for p in function.params]
    if kind not in _KINDS_OF[function.name]:
        raise e.refuse(f"{name} of {x.describe()} is not supported")
    if name in ("sin", "cos"):
        e.emit(f"elementwise:trigonometric.{name}", e.at(output), e.at(x), x.elements)
    else:
        e.emit(
            f"elementwise:unary.{name}_{kind}", e.at(output), e.at(x), x.elements, *[*parameters, 0.0, 0.0][:2]
        )
    clamp_in_place(step, e)


def _emit_clamp(step: Step, e: Emitter, low: float, high: float) -> None:
    x, output = operand(step, 0), step.outputs[0]
    if kind_of(x, e) != "f32":
        _emit_integer_clamp(step, e, low, high)
        return
    if step.clamp is not None:
        low, high = (min(max(v, step.clamp[0]), step.clamp[1]) for v in (low, high))
    e.emit("elementwise:unary.clamp_f32", e.at(output), e.at(x), x.elements, float(low), float(high))


def _emit_integer_clamp(step: Step, e: Emitter, low: float, high: float) -> None:
    x, output = operand(step, 0), step.outputs[0]
    kind = kind_of(x, e)
    if kind not in _INTEGERS:
        raise e.refuse(f"a clamp of {x.describe()} is not supported")
    source = e.at(x)
    for name, limit in (("maximum", low), ("minimum", high)):
        if np.isfinite(limit):
            bounds = np.iinfo(x.dtype.numpy)
            still = e.constant(np.array([min(max(int(limit), bounds.min), bounds.max)], x.dtype.numpy))
            e.emit(
                f"elementwise:binary.{name}_{kind}", e.at(output), source, still, x.elements, max(x.elements, 1), 2,
                0.0, 0.0, 0,
            )  # fmt: skip
            source = e.at(output)


def rows(
    out_dims: Sequence[int], operands: Sequence[Tensor], sizes: Sequence[int]
) -> tuple[int, list[int], list[list[int]], list[int]]:
    """Broadcasting as rows: row length, outer dimensions, each operand's outer byte strides, each one's step in a row.

    Outer dimensions are innermost first.
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


def _emit_binary(step: Step, e: Emitter, function: Operation) -> None:
    left, right, output = operand(step, 0), operand(step, 1), step.outputs[0]
    kind, name = kind_of(left, e), _kernel(function.name)
    if kind not in _KINDS_OF[function.name] or right.dtype is not left.dtype:
        raise e.refuse(f"{name} of {left.describe()} and {right.describe()} is not supported")
    if name == "power" and kind == "f32" and right.is_static and right.elements == 1:
        _emit_power(step, e, float(np.asarray(right.data).reshape(())))
        return
    low, high = step.clamp or (-inf, inf)
    if step.clamp is not None and (kind != "f32" or output.dtype is not DataType.FLOAT_32):
        raise e.refuse(f"a fused activation of {output.describe()} needs float32")
    inner, dims, (left_strides, right_strides), steps = rows(output.dims, (left, right), [left.dtype.itemsize] * 2)
    places = [e.at(left), e.at(right)]
    # A short constant row is repeated, for a loop of a few elements is mostly overhead.
    for index, tensor in enumerate((left, right)):
        if tensor.is_static and tensor.elements == inner < _SHORT_ROW and len(dims) == 1 and steps == [1, 1]:
            repeats = _LONG_ROW // inner
            places[index] = e.constant(np.tile(np.asarray(tensor.data).reshape(-1), repeats))
            strides = [left_strides, right_strides]
            strides[1 - index][0] *= repeats
            inner, dims = inner * repeats, [-(-dims[0] // repeats)]
            break
    mode = {(1, 1): 0, (0, 1): 1, (1, 0): 2, (0, 0): 0}[steps[0], steps[1]]
    e.emit(
        f"elementwise:binary.{name}_{kind}", e.at(output), *places, output.elements, max(inner, 1), mode,
        float(low), float(high), len(dims), *dims, *left_strides, *right_strides,
    )  # fmt: skip


def _emit_power(step: Step, e: Emitter, exponent: float) -> None:
    x, output = operand(step, 0), step.outputs[0]
    name = _POWERS.get(exponent, "power")
    e.emit(f"elementwise:unary.{name}_f32", e.at(output), e.at(x), x.elements, exponent, 0.0)
    clamp_in_place(step, e)


def _emit_select(step: Step, e: Emitter) -> None:
    condition, yes, no = (operand(step, i) for i in range(3))
    output = step.outputs[0]
    if condition.dtype.itemsize != 1 or yes.dtype is not no.dtype or yes.quantization != no.quantization:
        raise e.refuse(f"a choice between {yes.describe()} and {no.describe()} is not supported")
    size = output.dtype.itemsize
    inner, dims, strides, steps = rows(output.dims, (condition, yes, no), [1, size, size])
    e.emit(
        f"elementwise:choose.{size}", e.at(output), e.at(condition), e.at(yes), e.at(no), output.elements,
        max(inner, 1), len(dims), *dims, *strides[0], *strides[1], *strides[2], *steps,
    )  # fmt: skip
    clamp_in_place(step, e)


def _emit_cast(step: Step, e: Emitter) -> None:
    """Stored elements keep their number, those of fixed-point tensors too."""
    x, output = operand(step, 0), step.outputs[0]
    source, goal = (_stored_kind(tensor, e) for tensor in (x, output))
    e.emit(f"elementwise:cast.{source}_{goal}", e.at(output), e.at(x), x.elements)
    clamp_in_place(step, e)


def _emit_relu_min_max(step: Step, e: Emitter) -> None:
    _emit_clamp(step, e, step.params["min_value"], step.params["max_value"])


_SPECIAL: dict[str, Emit] = {"ReluMinMax": _emit_relu_min_max, "ElementWiseSelect": _emit_select}


def _by_table(function: Operation) -> Emit:
    """How a function of elements is emitted, as its entry in the operations' table tells."""
    limits = function.traits.limits
    if limits is not None:
        return lambda step, e: _emit_clamp(step, e, *limits)
    emit = _emit_unary if function.inputs == (1, 1) else _emit_binary
    return lambda step, e: emit(step, e, function)


_FUNCTIONS: dict[str, Emit] = {name: _SPECIAL.get(name) or _by_table(f) for name, f in FUNCTIONS.items()}


def _emit_numbered(step: Step, e: Emitter) -> None:
    _FUNCTIONS[numbered(step.op, step.params["operation"]).name](step, e)


_EMITTERS: dict[str, Emit] = {
    **{name: emit for name, emit in _FUNCTIONS.items() if name in OPERATIONS},
    **dict.fromkeys(NUMBERED, _emit_numbered),
    "Cast": _emit_cast,
}


def _unless_empty(emit: Emit) -> Emit:
    def emit_unless_empty(step: Step, e: Emitter) -> None:
        if step.outputs[0].elements:
            emit(step, e)

    return emit_unless_empty


LOWERINGS: dict[str, Lowering] = {op: Lowering(_unless_empty(emit)) for op, emit in _EMITTERS.items()}
