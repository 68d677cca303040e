"""Builder of the graph behind ONNX values. It emits operations, folds constants, and moves data only if it must.

Every change of how a tensor is stored goes through `OnnxBuilder`. So a tensor is transposed at most once, and constants
are rearranged when the model is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.formats import malformed
from isthmus.frontends.onnx.layout import (
    OnnxValue,
    Perm,
    channel_last,
    identity,
    inverse,
    keeps_order,
    pad_perm,
    reshape_groups,
)
from isthmus.frontends.onnx.tensors import BFLOAT16_BITS, data_type
from isthmus.frontends.unsupported import unsupported
from isthmus.graph import DataType, Graph, Quantization, Tensor
from isthmus.graph.folding import emit as emit_or_fold
from isthmus.graph.folding import held_bytes, is_repeated
from isthmus.graph.operation import Operands, Params

MAX_CONSTANT_BYTES = 1 << 28
"""The largest constant that a node may create, in bytes."""
MAX_NODES = 100_000
"""The most operations that a model may become. Folded operations on constants count although they leave no node,
because unrolled loops could need any number of them.
"""
MAX_FOLDED_BYTES = 1 << 30
"""The most bytes of constants that a model may compute while it is loaded, in addition to eight times its own size."""

RUNTIME_TYPES = frozenset(
    {
        DataType.FLOAT_32, DataType.INT_8, DataType.UINT_8, DataType.INT_32, DataType.INT_64, DataType.BOOL_8,
        DataType.UINT_32, DataType.SFIXED_POINT_8, DataType.UFIXED_POINT_8, DataType.SFIXED_POINT_16,
        DataType.UFIXED_POINT_16, DataType.SFIXED_POINT_32, DataType.FLOAT_16, DataType.BFLOAT_16,
        DataType.INT_16, DataType.UINT_16, DataType.UINT_64, DataType.FLOAT_64,
    }
)  # fmt: skip
"""The data types a value may have while a model runs; constants may have any."""


class OnnxBuilder:
    """The graph under construction and what is known about its tensors.

    - `given_bytes`: the size of the model and its constants: the larger it is, the more constants may be computed from
      them.
    - `node`: the name of the current ONNX node; emitted operations are named after it.
    """

    def __init__(self, name: str, given_bytes: int = 0) -> None:
        self.graph = Graph(name)
        self.node = name
        self.given_bytes = given_bytes
        self._folds = 0
        self._folded_bytes = 0
        # Tensors that were rearranged, reinterpreted or dequantized, by the source's name and what was done to it.
        self._rearranged: dict[tuple[Any, ...], Tensor] = {}
        self._scalars: dict[tuple[float, DataType], Tensor] = {}
        # The constant source of each tensor that is a dequantized constant, by the tensor's name.
        self._dequantized: dict[str, Tensor] = {}
        # The tensor that a Reshape was applied to, by the name of its result.
        self._viewed: dict[str, Tensor] = {}

    def emit(self, op: str, inputs: Operands, params: Params | None = None, **more: Any) -> list[Tensor]:
        """Add an operation, or evaluate it if all its inputs are constants; `more` are arguments of `Graph.emit`."""
        if all(t is None or t.is_static for t in inputs):
            self._check_operations()
            self._folds += 1
            outputs = emit_or_fold(self.graph, op, inputs, params, name=self.node, **more)
            arrays = [tensor.data for tensor in outputs if tensor.data is not None]
            if not all(map(is_repeated, arrays)):
                # Repeated elements were expanded for the computation.
                arrays += [t.data for t in inputs if t is not None and t.data is not None and is_repeated(t.data)]
                self.count_folded(sum(array.nbytes for array in arrays))
            return outputs
        return self._add(op, inputs, params, **more)

    def one(self, op: str, inputs: Operands, params: Params | None = None, **more: Any) -> Tensor:
        """Call `emit` for an operation with one output and return that output."""
        return self.emit(op, inputs, params, **more)[0]

    def _add(self, op: str, inputs: Operands, params: Params | None, **more: Any) -> list[Tensor]:
        """Add an operation that runs with the model; refuse data types that exist only in constants."""
        self._check_operations()
        outputs = self.graph.emit(op, inputs, params, name=self.node, **more)
        if all(tensor.elements == 0 for tensor in outputs):
            # Tensors without elements become constants, so that operations on them are folded too.
            return [self.empty(tensor.dtype, tensor.dims, tensor.quantization) for tensor in outputs]
        for tensor in (*outputs, *inputs):
            if tensor is not None and tensor.dtype not in RUNTIME_TYPES:
                raise unsupported(f"node '{self.node}'", f"data type {tensor.dtype.name} is not supported")
        return outputs

    def _check_operations(self) -> None:
        """Refuse a model that needs too many operations."""
        if len(self.graph.nodes) + self._folds >= MAX_NODES:
            raise malformed(f"node '{self.node}'", f"the model needs more than {MAX_NODES} operations")

    def count_folded(self, nbytes: int) -> None:
        """Count bytes of computed constants; refuse a model that computes far more than its size justifies."""
        self._folded_bytes += nbytes
        if self._folded_bytes > MAX_FOLDED_BYTES + 8 * self.given_bytes:
            rule = f"the constants that the model computes take {self._folded_bytes} bytes so far"
            hint = "So much out of so small a model is a mistake in it."
            raise QnnError(Code.COMMON_MEM_ALLOC, f"node '{self.node}'", rule, hint)

    def constant(self, value: Any, quantization: Quantization | None = None, name: str | None = None) -> Tensor:
        """Create a constant tensor. With a name it comes from the model; without one it is computed.

        An element that is repeated stays stored once. Constants of ONNX's 4-bit types are fixed point with a scale of 1
        (`four_bits`), so that a tensor always says how many bits its elements have; `plain` makes integers of them.
        """
        array = np.asarray(value)
        if not is_repeated(array):
            array = np.ascontiguousarray(array).reshape(array.shape)
        dtype = None if quantization is not None else data_type(array.dtype)
        if dtype is DataType.BFLOAT_16:
            array = array.view(np.uint16)
        if held_bytes(array) > MAX_CONSTANT_BYTES and name is None:
            raise malformed(f"node '{self.node}'", f"a constant of {array.nbytes} bytes is too large")
        if name is None:
            self.count_folded(held_bytes(array))
        return self.graph.constant(name or f"{self.node}/constant", array, quantization, dtype)

    def empty(self, dtype: DataType, dims: Sequence[int], quantization: Quantization | None = None) -> Tensor:
        """Create a constant without elements."""
        return self.graph.constant(f"{self.node}/empty", np.zeros(dims, dtype.numpy), quantization, dtype)

    def numbers(self, values: Any, dtype: DataType) -> Tensor:
        """Create a constant of numbers, rounded to a data type."""
        stored = dtype.encode(np.asarray(values))
        return self.constant(stored.view(BFLOAT16_BITS) if dtype is DataType.BFLOAT_16 else stored)

    def literal(self, value: Any) -> OnnxValue:
        """Create a constant as a value."""
        tensor = self.constant(value)
        return OnnxValue.of(tensor)

    def scalar(self, number: float, dtype: DataType) -> Tensor:
        """Return a constant of rank 0, created once for each number and type."""
        key = (number, dtype)
        if key not in self._scalars:
            self._scalars[key] = self.numbers(number, dtype)
        return self._scalars[key]

    def is_constant(self, value: OnnxValue) -> bool:
        """Return whether the contents of a value are known when the model is loaded."""
        return value.is_static or value.tensor.name in self._dequantized

    def array(self, value: OnnxValue) -> np.ndarray | None:
        """Return the contents of a constant value in ONNX's view; None if they are known only at run time.

        Those of BFLOAT16, which numpy does not have, are float32.
        """
        tensor = value.tensor
        source = self._dequantized.get(tensor.name)
        if source is not None and source.data is not None and source.quantization is not None:
            return source.quantization.dequantize(source.data).transpose(value.perm)
        if not tensor.is_static or tensor.data is None:
            return None
        data = tensor.dtype.decode(tensor.data) if tensor.dtype is DataType.BFLOAT_16 else tensor.data
        return data.transpose(value.perm)

    # --- fixed point and plain integers -------------------------------------------------------------------------

    def reinterpret(self, tensor: Tensor, dtype: DataType, quantization: Quantization | None = None) -> Tensor:
        """Return the same stored integers under another data type of the same width."""
        if tensor.dtype is dtype and tensor.quantization == quantization:
            return tensor
        key = (tensor.name, "type", dtype, quantization)
        if key not in self._rearranged:
            if tensor.is_static and tensor.data is not None:
                result = self.graph.constant(tensor.name, tensor.data, quantization, dtype)
            else:
                result = self._add("Cast", [tensor], None, dtypes=[dtype], quantizations=[quantization])[0]
            self._rearranged[key] = result
        return self._rearranged[key]

    def plain(self, value: OnnxValue) -> OnnxValue:
        """Return a fixed-point value as its stored integers; return other values unchanged."""
        if not value.tensor.dtype.is_fixed_point:
            return value
        return OnnxValue(self.reinterpret(value.tensor, DataType.of(value.tensor.dtype.numpy)), value.perm)

    def dequantize(self, tensor: Tensor) -> Tensor:
        """Dequantize a fixed-point tensor. A constant source is remembered, because integer operations need it."""
        key = (tensor.name, "dequantize")
        if key not in self._rearranged:
            result = self._add("Dequantize", [tensor], None, dtypes=[DataType.FLOAT_32])[0]
            if tensor.is_static:
                self._dequantized[result.name] = tensor
            self._rearranged[key] = result
        return self._rearranged[key]

    # --- how a tensor is stored ---------------------------------------------------------------------------------

    def arrange(self, tensor: Tensor, order: Sequence[int], dims: Sequence[int] | None = None) -> Tensor:
        """Return the tensor with its axes in this order, then reshaped to `dims`, with as few nodes as possible.

        A tensor that was rearranged in the same way before is used again. The dequantized form of a constant is
        rearranged before it is dequantized, so that it still has a constant source.
        """
        order = tuple(order)
        moved_dims = tuple(tensor.dims[a] for a in order)
        dims = moved_dims if dims is None else tuple(dims)
        if dims == tensor.dims and keeps_order(tensor.dims, order):
            return tensor
        key = (tensor.name, order, dims)
        if key not in self._rearranged:
            source = self._dequantized.get(tensor.name)
            if source is not None and (dims == moved_dims or not _per_channel(source)):
                result = self.dequantize(self.arrange(source, order, dims))
            elif keeps_order(tensor.dims, order):
                result = self._view(tensor, dims, order if dims == moved_dims else None)
            else:
                quantization = _move_axis(tensor, order)
                result = self.one("Transpose", [tensor], {"perm": list(order)}, quantizations=[quantization])
                if dims != moved_dims:
                    result = self._view(result, dims, None)
            self._rearranged[key] = result
        return self._rearranged[key]

    def _view(self, tensor: Tensor, dims: tuple[int, ...], order: Perm | None) -> Tensor:
        """Emit a Reshape. A per-channel quantization follows its axis."""
        # `order` is the new order of the tensor's axes if only axes of size 1 move; None for any other reshape.
        quantization = tensor.quantization
        axis = None if quantization is None else quantization.axis
        if quantization is None or axis is None:
            # A view of a view is replaced by a view of the original tensor.
            tensor = self._viewed.get(tensor.name, tensor)
            if tensor.dims == dims:
                return tensor
        elif order is not None:
            quantization = _move_axis(tensor, order)
        else:
            quantization = self._reshape_channels(quantization, tensor.dims, axis, dims)
        result = self.one("Reshape", [tensor], dims=[dims], quantizations=[quantization])
        self._viewed[result.name] = tensor
        return result

    def _reshape_channels(
        self, quantization: Quantization, dims: Sequence[int], axis: int, new_dims: Sequence[int]
    ) -> Quantization:
        """Return a per-channel quantization after a reshape, along the axis with the memory stride of `axis`."""
        elements_before = math.prod(dims[:axis])
        for candidate, size in enumerate(new_dims):
            if size == dims[axis] and math.prod(new_dims[:candidate]) == elements_before:
                return replace(quantization, axis=candidate)
        raise unsupported(f"node '{self.node}'", "a reshape across the channels of a quantized tensor")

    def store_as(self, value: OnnxValue, perm: Perm) -> Tensor:
        """Return the tensor of a value, stored so that this permutation gives ONNX's view."""
        return self.arrange(value.tensor, [value.perm[axis] for axis in inverse(perm)])

    def materialize(self, value: OnnxValue) -> Tensor:
        """Return the tensor of a value, stored in ONNX's own axis order."""
        return self.store_as(value, identity(value.rank))

    def channel_last(self, value: OnnxValue) -> Tensor:
        """Return the tensor of a value that is N, C, spatial… in ONNX's view, stored as N, spatial…, C."""
        return self.store_as(value, channel_last(value.rank))

    def is_free(self, value: OnnxValue, perm: Perm) -> bool:
        """Return whether storing a value for this permutation moves no data at run time."""
        order = [value.perm[axis] for axis in inverse(perm)]
        return self.is_constant(value) or keeps_order(value.tensor.dims, order)

    # --- values -------------------------------------------------------------------------------------------------

    def align(self, values: Sequence[OnnxValue]) -> tuple[list[Tensor], Perm]:
        """Return the operands of an elementwise operation in a common order, and the permutation of its result."""
        rank = max(v.rank for v in values)
        perm = self.common_perm(values, rank)
        return [self._broadcastable(v, perm) for v in values], perm

    def common_perm(self, values: Sequence[OnnxValue], rank: int) -> Perm:
        """Return the order that moves the fewest elements; on a tie not ONNX's own, since channel-last nodes follow."""
        # Constants are rearranged when the model is loaded, so they do not count if there is any other operand.
        running = [v for v in values if not self.is_constant(v)] or list(values)
        candidates = {pad_perm(v.perm, rank): v.rank for v in sorted(running, key=lambda v: v.rank)}

        def cost(perm: Perm) -> tuple[int, int, bool]:
            moved = sum(max(v.tensor.elements, 1) for v in running if not keeps_order(v.tensor.dims, _order(v, perm)))
            return moved, -candidates[perm], perm == identity(rank)

        return min(candidates, key=cost)

    def _broadcastable(self, value: OnnxValue, perm: Perm) -> Tensor:
        """Return the tensor of a value, stored for `perm` and with axes of size 1 wherever broadcasting needs them."""
        # `perm` may have a higher rank than the value. Missing leading axes are then left to the operation's own
        # broadcasting, if they are also stored first.
        missing = len(perm) - value.rank
        order = _order(value, perm)
        full_dims = tuple(value.dims[axis - missing] if axis >= missing else 1 for axis in inverse(perm))
        own_dims = tuple(value.tensor.dims[a] for a in order)
        if missing and _without_leading_ones(own_dims) == _without_leading_ones(full_dims):
            return self.arrange(value.tensor, order)
        return self.arrange(value.tensor, order, full_dims)

    def reshape_to(self, value: OnnxValue, dims: Sequence[int]) -> OnnxValue:
        """Apply ONNX's reshape. Axes that stay together keep their stored positions, so most reshapes move no data."""
        dims = tuple(int(d) for d in dims)
        if dims == value.dims:
            return value
        if math.prod(dims) != math.prod(value.dims):
            rule = f"dimensions {list(value.dims)} cannot be reshaped to {list(dims)}"
            raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, f"node '{self.node}'", rule)
        if 0 in dims:
            return OnnxValue(self.arrange(self.materialize(value), identity(value.rank), dims), identity(len(dims)))
        # Each group of axes that is reshaped by itself stays where it is stored; within a group, axes are stored in
        # ONNX's order. Axes of size 1 can be anywhere.
        groups = reshape_groups(value.dims, dims)
        groups.sort(key=lambda group: value.perm[group[0][-1]] if group[0] else -1)
        axes = [value.perm[axis] for ins, _ in groups for axis in ins]
        ones = [axis for axis in range(value.rank) if axis not in axes]
        outs = [axis for _, group in groups for axis in group]
        tensor = self.arrange(value.tensor, [*ones, *axes], [dims[axis] for axis in outs])
        return OnnxValue(tensor, inverse(outs))


def _order(value: OnnxValue, perm: Perm) -> list[int]:
    """Return the stored axes of a value in the order that `perm`, of the same or a higher rank, requires."""
    missing = len(perm) - value.rank
    return [value.perm[axis - missing] for axis in inverse(perm) if axis >= missing]


def _per_channel(tensor: Tensor) -> bool:
    """Return whether a tensor has a per-channel quantization."""
    return tensor.quantization is not None and tensor.quantization.axis is not None


def _without_leading_ones(dims: Sequence[int]) -> tuple[int, ...]:
    """Return dimensions from the first one that is not 1."""
    start = next((i for i, d in enumerate(dims) if d != 1), len(dims))
    return tuple(dims[start:])


def _move_axis(tensor: Tensor, order: Perm) -> Quantization | None:
    """Return the quantization of a tensor after a transposition to `order`."""
    return None if tensor.quantization is None else tensor.quantization.transpose(order, tensor.dims)
