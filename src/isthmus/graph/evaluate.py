"""The reference computation of each operation in numpy, used to verify kernels and to fold constants.

Integers and floats of 32 or 64 bits are computed as they are. Floats of 16 bits are computed in float32 and rounded
once, when the result is stored. Fixed-point operands are converted to reals, computed, and rounded back, with two
exceptions. Data movement leaves stored elements unchanged if the quantizations agree. Products of two
fixed-point tensors sum integers exactly and round once: ``rint(clamp(sum * scale)) + zero_point``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.graph.datatypes import DataType, changes_sign
from isthmus.graph.evaluation import (
    Computation,
    Outputs,
    Values,
    attention,
    convolution,
    detection,
    elementwise,
    movement,
    random,
    recurrent,
    reduction,
    sampling,
    signal,
    sparse,
)
from isthmus.graph.evaluation.convolution import PRODUCTS
from isthmus.graph.operation import Call, Operands, Params
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.quantization import Quantization
from isthmus.graph.rounding import HEXAGON, Ties, is_staged, round_steps, stages_of, ties_of
from isthmus.graph.tensor import Tensor, TensorType
from isthmus.graph.traits import Picks

_FAMILIES = (
    attention, convolution, detection, elementwise, movement, random, recurrent, reduction, sampling, signal, sparse,
)  # fmt: skip
_COMPUTATIONS: dict[str, Computation] = {op: compute for f in _FAMILIES for op, compute in f.COMPUTATIONS.items()}
# Operations that take float activations with fixed-point weights, and the axes along which activations are rounded.
#
# A convolution with 1x1 filters, stride 1 and no padding is a product of rows, and each row is rounded separately.
_HYBRID_AXES: dict[str, tuple[int, ...]] = {"FullyConnected": (-1,), "Conv2d": (1, 2, 3)}


def evaluate(
    op: str, inputs: Operands, arrays: Values, params: Params, outputs: Outputs, numerics: str = "exact"
) -> list[np.ndarray]:
    """Compute one operation.

    - `inputs`, `arrays`: The input tensors and their stored elements; None for an absent optional one.
    - `params`: Parameters; those with defaults may be omitted.
    - `outputs`: The output tensors: dimensions, data types and quantizations of the results.
    - `numerics`: The rounding mode of fixed-point results (see `Graph.numerics`); only "hexagon" differs from "exact"
      here.

    >>> import numpy as np
    >>> from isthmus.graph import DataType, Tensor, TensorType
    >>> x = Tensor("x", TensorType.NATIVE, DataType.FLOAT_32, (3,))
    >>> y = Tensor("y", TensorType.NATIVE, DataType.FLOAT_32, (3,))
    >>> evaluate("Relu", [x], [np.float32([-1, 0, 2])], {}, [y])
    [array([0., 0., 2.], dtype=float32)]
    """
    operation = OPERATIONS.get(op)
    if operation is None:
        raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, f"operation {op}", "there is no such operation")
    call = Call(op, op, inputs, operation.complete(op, params), outputs)
    operation.verify(call)
    if not any(t.elements for t in outputs):
        return [np.zeros(t.dims, t.dtype.numpy) for t in outputs]
    ties = ties_of(numerics, op, call.params)
    if numerics == HEXAGON:
        # A TFLite file asks for this rounding; chips ignore it.
        call.params.pop("ties_away_from_zero", None)
        if is_staged(op, inputs, call.params):
            return _in_stages(call, arrays)
    with np.errstate(all="ignore"):
        if op == "Cast" and changes_sign(call.tensor(0).dtype, outputs[0].dtype):
            numbers, kind = np.asarray(arrays[0]), outputs[0].dtype.numpy
            return [_store(numbers.astype(np.int64) - np.iinfo(numbers.dtype).min + np.iinfo(kind).min, outputs[0])]
        if op == "Cast":
            # Cast converts stored elements, also those of fixed-point tensors; their quantizations do not matter.
            return [_store(outputs[0].dtype.encode(call.tensor(0).dtype.decode(np.asarray(arrays[0]))), outputs[0])]
        if op in PRODUCTS and all(t is not None and t.dtype.is_fixed_point for t in (*inputs[:2], outputs[0])):
            exact = _fixed_point_product(call, arrays, ties, numerics == HEXAGON)
            if exact is not None:
                return [exact]
        arrays = _round_activations(call, arrays)
        moves = operation.traits.moves
        # Whether stored elements are only moved, so that they need not be converted to reals and back.
        keeps_stored = (
            moves is not None
            and moves.picks is Picks.PLACE
            and not call.params.get("reduction")
            and _same_encoding(inputs, outputs)
        )
        if moves is not None and moves.fills:
            # The filling is a real number; beside stored elements it must be encoded as they are.
            value = np.asarray(call.params.get("pad_constant_value", 0))
            call.params["pad_constant_value"] = (_encode(value, outputs[0], ties) if keeps_stored else value).item()
        values = [
            array if tensor is None or keeps_stored else _real(array, tensor)
            for tensor, array in zip(inputs, arrays, strict=True)
        ]
        results = _COMPUTATIONS[op](values, call.params, outputs)
        results = results if isinstance(results, list) else [results]
        # The last outputs of an operation may be omitted.
        pairs = zip(results, outputs, strict=False)
        return [_store(result if keeps_stored else _encode(result, output, ties), output) for result, output in pairs]


def _in_stages(call: Call, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """Compute an operation in the two steps of `stages_of`."""
    x, outputs = call.tensor(0), call.declared or ()
    dims, first_params, params = stages_of(x, call.params)
    between = Tensor("between", TensorType.NATIVE, x.dtype, dims, x.quantization)
    first = evaluate(call.op, [x], arrays, first_params, [between], HEXAGON)
    return evaluate(call.op, [between], first, params, outputs, HEXAGON)


def _real(array: Any, tensor: Tensor) -> np.ndarray:
    """Return the numbers that stored elements represent."""
    quantization = tensor.quantization
    if not tensor.dtype.is_fixed_point or quantization is None:
        return tensor.dtype.decode(array)
    return _subtract_zero(array, quantization) * quantization.spread(quantization.scales, array.shape)


def _subtract_zero(array: np.ndarray, quantization: Quantization) -> np.ndarray:
    """Return stored elements plus offset: integers, in float64."""
    return array.astype(np.float64) + quantization.spread(quantization.offsets, array.shape)


def _store(result: Any, output: Tensor) -> np.ndarray:
    """Convert elements to their tensor's type and dimensions, dense and row-major."""
    return np.ascontiguousarray(result, output.dtype.numpy).reshape(output.dims)


def _encode(numbers: Any, output: Tensor, ties: Ties) -> np.ndarray:
    """Encode numbers as the elements of a tensor."""
    if output.dtype.is_half:
        return output.dtype.encode(np.asarray(numbers))
    return _quantize(numbers, output, ties) if output.dtype.is_fixed_point else np.asarray(numbers)


def _quantize(result: Any, output: Tensor, ties: Ties) -> np.ndarray:
    """Encode reals as the elements of a fixed-point tensor."""
    if output.quantization is None:
        raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, f"tensor '{output.name}'", "it has no quantization")
    return output.quantization.quantize(np.asarray(result), output.dtype.numpy, ties)


def _same_encoding(inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> bool:
    """Return whether equal stored elements represent equal reals in all fixed-point tensors."""
    encodings = {
        (t.dtype, t.quantization and (t.quantization.scales, t.quantization.offsets, t.quantization.block))
        for t in (*inputs, *outputs)
        if t is not None and t.dtype.is_fixed_point
    }
    return len(encodings) <= 1


def _channel_scales(call: Call, quantization: Quantization) -> np.ndarray | None:
    """Return the weights' scales per output channel; None if another axis is quantized."""
    weights = call.tensor(1)
    scales = np.asarray(quantization.scales, np.float32)
    if quantization.axis is None:
        return scales[0]
    # The output channels are the last axis of the weights, or the last but one if they are [out, in].
    flipped = call.op == "FullyConnected" or bool(call.params.get("transpose_in1"))
    if quantization.block or quantization.axis != weights.rank - (2 if flipped else 1):
        return None
    # All groups of a transposed convolution use the same scales: the last axis has channel_out / group elements.
    return np.tile(scales, call.params["group"]) if call.op.startswith("TransposeConv") else scales


def _fixed_point_product(call: Call, arrays: Sequence[Any], ties: Ties, as_chip: bool) -> np.ndarray | None:
    """Compute a product summed in integers and rounded once; return None if the scales do not allow it."""
    # With `as_chip`, as on Hexagon chips, the bias is truncated to whole units of the sum, and the ratio of the scales
    # is rounded to single precision only once.
    x, weights = call.tensor(0), call.tensor(1)
    output = (call.declared or ())[0]
    if x.quantization is None or output.quantization is None or weights.quantization is None:
        return None
    scales = _channel_scales(call, weights.quantization)
    if scales is None or x.quantization.axis is not None or output.quantization.axis is not None:
        return None
    values = [_subtract_zero(arrays[0], x.quantization), _subtract_zero(arrays[1], weights.quantization)]
    total: Any = PRODUCTS[call.op](values, call.params, [output])
    # The real number that 1 in the sum stands for, for each output channel.
    unit = np.float32(x.quantization.scale) * scales
    bias = call.optional(2)
    if bias is not None:
        units = arrays[2] if bias.dtype is DataType.INT_32 else _bias_units(bias, arrays[2], unit)
        total = total + (np.trunc(np.float32(units)) if as_chip else units)
    info = np.iinfo(output.dtype.numpy)
    factor = unit / np.float32(output.quantization.scale)
    if as_chip:
        factor = np.float32(float(x.quantization.scale) * scales.astype(np.float64) / output.quantization.scale)
    scaled = total.astype(np.float32) * factor
    zero = output.quantization.zero_point
    return (round_steps(np.clip(scaled, info.min - zero, info.max - zero), ties) + zero).astype(output.dtype.numpy)


def _round_activations(call: Call, arrays: Sequence[Any]) -> Sequence[Any]:
    """Round float activations with fixed-point weights to 256 steps of the range of their row or image."""
    # LiteRT's hybrid kernels quantize such activations to 8 bits at run time, with a scale and a zero point of their
    # own. Other operands are returned unchanged.
    axes = _HYBRID_AXES.get(call.op)
    if call.op == "Conv2d" and call.tensor(1).dims[:2] == (1, 1) and not np.any(call.params["pad_amount"]):
        axes = (3,) if np.all(np.asarray(call.params["stride"]) == 1) else axes
    weights = call.tensor(1) if axes is not None else None
    if axes is None or weights is None or call.tensor(0).dtype is not DataType.FLOAT_32:
        return arrays
    # Weights in blocks have no scale per channel by which sums of integers could be multiplied.
    if not weights.dtype.is_fixed_point or (weights.quantization is not None and weights.quantization.block):
        return arrays
    x = np.asarray(arrays[0], np.float32)
    low = np.minimum(x.min(axes, keepdims=True, initial=0), 0)
    high = np.maximum(x.max(axes, keepdims=True, initial=0), 0)
    factor = np.where(high > low, np.float32(255) / (high - low), np.float32(1)).astype(np.float32)
    # The zero point is computed from the end of the range that gives the smaller rounding error, as LiteRT does.
    zero = np.where((low + high) * factor > 1, -128 - low * factor, 127 - high * factor)
    zero = np.rint(np.clip(zero, -128, 127))
    stored = np.clip(np.rint(x * factor) + zero, -128, 127)
    return [((stored - zero) / factor).astype(np.float32), *arrays[1:]]


def _bias_units(bias: Tensor, array: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Return a bias in units of the product's sum."""
    # `unit` is the real number that 1 in the sum stands for. Stored elements are used directly if their scale is that
    # unit.
    quantization = bias.quantization
    if quantization is not None and np.allclose(quantization.scales, unit, rtol=1e-5, atol=0):
        return _subtract_zero(array, quantization)
    return _real(array, bias) / unit
