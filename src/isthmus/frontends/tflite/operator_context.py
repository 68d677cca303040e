"""The context of one operator's conversion: its operands as graph tensors, its options, and methods to emit operations.

A final result takes the name, type and quantization that the file declares for it; its shape is always derived again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.tflite.entries import OperatorEntry, TfliteTensor
from isthmus.frontends.tflite.schema import NUMPY_TYPES, Activation, ElementType, Padding
from isthmus.frontends.unsupported import unsupported
from isthmus.graph import DataType, Graph, Quantization, Tensor, folding
from isthmus.graph.operation import Operands, Params
from isthmus.graph.ops import OPERATIONS

QUANTIZED_TYPES = frozenset(
    {ElementType.INT4, ElementType.INT8, ElementType.UINT8, ElementType.INT16, ElementType.UINT16}
)
"""Types that are fixed point if the file gives them a scale; wider integers stay plain integers."""
MAX_CONSTANT_BYTES = 1 << 30
"""The most bytes of a constant that the file only describes (by a fill, broadcast or range) and does not contain."""

MAX_FOLDED_PRODUCTS = 1 << 31
"""The most multiplications that are folded when both operands are constants; larger products are left to the graph."""
MAX_FOLDED_ELEMENTS = 1 << 14
"""The most elements for which window operations are folded."""

ACTIVATIONS: dict[Activation, tuple[str, dict[str, Any]]] = {
    Activation.RELU: ("Relu", {}),
    Activation.RELU_N1_TO_1: ("ReluMinMax", {"min_value": -1.0, "max_value": 1.0}),
    Activation.RELU6: ("Relu6", {}),
    Activation.TANH: ("Tanh", {}),
}
"""The operation for each fused activation."""


def data_type(entry: TfliteTensor) -> DataType:
    """Return the QNN data type of a tensor of the file."""
    if entry.type not in NUMPY_TYPES:
        raise unsupported(f"tensor '{entry.name}'", f"type {entry.type.name} is not supported")
    dtype = np.dtype(NUMPY_TYPES[entry.type])
    fixed = entry.type in QUANTIZED_TYPES and entry.scales.size > 0
    return DataType.fixed_point(dtype) if fixed else DataType.of(dtype)


@dataclass(frozen=True)
class Resource:
    """The value of a resource handle: the variable that it names."""

    container: str
    shared_name: str


@dataclass(frozen=True)
class Complex:
    """A complex value: two tensors, since QNN has no complex numbers."""

    real: Tensor
    imaginary: Tensor


@dataclass
class OperatorContext:
    """One operator during conversion.

    - `inputs`: the operands, None for an absent one.
    - `outputs`, `names`: the declarations of the results, and their names in the graph.
    """

    graph: Graph
    entry: OperatorEntry
    inputs: list[Tensor | None]
    outputs: list[TfliteTensor]
    names: list[str]
    derived: dict[Hashable, Tensor]
    """Constants derived from others (transposed, dequantized), so that each is made only once."""
    declared: list[TfliteTensor | None] = field(default_factory=list)
    """The declarations of the operands, None for an absent one."""
    variables: dict[int, Tensor] = field(default_factory=dict)
    """New values of operands that are variables, by position."""

    @property
    def name(self) -> str:
        """The name of the operator, which is that of its first result."""
        return self.names[0] if self.names else f"{self.entry.code}_{self.entry.index}"

    @property
    def options(self) -> dict[str, Any]:
        """The operator's options."""
        return self.entry.options

    @property
    def what(self) -> str:
        """The operator in messages."""
        return f"operator '{self.name}' ({self.entry.code})"

    def refuse(self, rule: str) -> NoReturn:
        """Refuse an invalid operator."""
        raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, self.what, rule)

    def unsupported(self, rule: str) -> NoReturn:
        """Refuse a valid operator that cannot be converted."""
        raise unsupported(self.what, rule)

    # Operands

    def optional(self, index: int) -> Tensor | None:
        """Return operand `index`, or None if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def input(self, index: int = 0) -> Tensor:
        """Return operand `index`, which must be present."""
        tensor = self.optional(index)
        if tensor is None:
            self.refuse(f"input {index} is missing")
        return tensor

    def output(self, index: int = 0) -> TfliteTensor:
        """Return the declaration of result `index`, which must be present."""
        if index >= len(self.outputs):
            self.refuse(f"output {index} is missing")
        return self.outputs[index]

    def input_of_rank(self, index: int, *ranks: int) -> Tensor:
        """Return operand `index`, which must have one of these ranks."""
        tensor = self.input(index)
        if tensor.rank not in ranks:
            self.refuse(f"input {index} must have rank {' or '.join(map(str, ranks))}, has rank {tensor.rank}")
        return tensor

    def value(self, index: int) -> np.ndarray:
        """Return the contents of operand `index`, which must be a constant once the shapes are known."""
        tensor = self.input(index)
        if tensor.data is None or not tensor.is_static:
            self.unsupported(f"input {index} '{tensor.name}' must be a constant")
        return tensor.data

    def integers(self, index: int) -> list[int]:
        """Return a constant operand, such as axes or sizes, as a flat list of integers. A long one is refused."""
        value = self.value(index)
        if value.dtype.kind not in "iu":
            self.refuse(f"input {index} must hold integers, holds {value.dtype}")
        if value.size > MAX_CONSTANT_BYTES >> 10:
            self.refuse(f"input {index} has {value.size} elements")
        return [int(v) for v in value.reshape(-1)]

    def integer(self, index: int) -> int:
        """Return a constant operand with one element as an integer."""
        values = self.integers(index)
        if len(values) != 1:
            self.refuse(f"input {index} must have one element, has {len(values)}")
        return values[0]

    def axis(self, axis: int, rank: int) -> int:
        """Check an axis, which counts from the end if it is negative; return it counted from the front."""
        if not -rank <= axis < rank:
            self.refuse(f"axis {axis} is outside rank {rank}")
        return axis % rank

    def axes(self, index: int, rank: int) -> list[int]:
        """Return a constant operand as sorted axes counted from the front, without duplicates."""
        return sorted({self.axis(axis, rank) for axis in self.integers(index)})

    def positive(self, *names: str) -> list[int]:
        """Return options that must be at least 1."""
        values = [int(self.options[name]) for name in names]
        for name, value in zip(names, values, strict=True):
            if value < 1:
                self.refuse(f"option {name} must be at least 1, is {value}")
        return values

    def padding(self, size: int, kernel: int, stride: int, dilation: int = 1) -> tuple[int, int]:
        """Return how much a window operator pads one axis before and after.

        - `size`: the input's size along the axis.
        - `kernel`, `stride`, `dilation`: the window's size, the step between windows and the step between taps.
        """
        if self.options["padding"] == Padding.VALID:
            return 0, 0
        if self.options["padding"] != Padding.SAME:
            self.refuse(f"padding {self.options['padding']} is unknown")
        total = max((math.ceil(size / stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
        return total // 2, total - total // 2

    def store(self, index: int, value: Tensor) -> None:
        """Assign a new value to the variable at operand `index`."""
        self.variables[index] = value

    # Results

    def emit(
        self, op: str, inputs: Operands, params: Params | None = None, *, dims: Sequence[int] | None = None
    ) -> Tensor:
        """Emit the operation that computes the operator's only result; `dims` only if it cannot derive them."""
        return self.emit_all(op, inputs, params, dims=None if dims is None else [dims])[0]

    def emit_all(
        self, op: str, inputs: Operands, params: Params | None = None, *, dims: Sequence[Sequence[int]] | None = None
    ) -> list[Tensor]:
        """Emit the operation that computes all of the operator's results."""
        # Refuse an operator without results.
        self.output()
        if any(entry.scales.size > 1 for entry in self.outputs):
            self.unsupported("results quantized per channel are not supported")
        dtypes = [data_type(entry) for entry in self.outputs]
        quantizations = [declared_quantization(entry) for entry in self.outputs]
        shapes = None if dims is None else [tuple(d) for d in dims]
        return self._emit(
            op, inputs, params, name=self.name, dims=shapes, dtypes=dtypes, quantizations=quantizations,
            outputs=len(self.outputs), output_names=self.names,
        )  # fmt: skip

    def _emit(self, op: str, inputs: Operands, params: Params | None, **more: Any) -> list[Tensor]:
        """Fold the operation if all its inputs are constants, unless computing it now would take too long."""
        # `more` are further arguments of `Graph.emit`.
        sizes = [t.elements for t in inputs if t is not None]
        products = 0
        traits = OPERATIONS[op].traits
        if traits.product is not None and inputs[0] is not None and inputs[0].dims:
            # Each element of in[0] is multiplied once for each output channel (an estimate).
            products = sizes[0] * sizes[1] // max(inputs[0].dims[-1], 1)
        if products > MAX_FOLDED_PRODUCTS or (traits.window and sum(sizes) > MAX_FOLDED_ELEMENTS):
            return self.graph.emit(op, inputs, params, **more)
        return folding.emit(self.graph, op, inputs, params, **more)

    def emit_activated(
        self, op: str, inputs: Operands, params: Params | None = None, *, dims: Sequence[int] | None = None
    ) -> list[Tensor]:
        """Emit the result, followed by the operator's fused activation if it has one.

        The value before the activation has the result's own quantization, so clamping stored integers is exact.
        """
        number = self.options.get("activation", 0)
        if number == Activation.NONE:
            return [self.emit(op, inputs, params, dims=dims)]
        try:
            activation, activation_params = ACTIVATIONS[Activation(number)]
        except (KeyError, ValueError):
            self.unsupported(f"the fused activation function {number} is not supported")
        entry = self.output()
        before = self.step(
            op, inputs, params, dims=dims, dtype=data_type(entry), quantization=declared_quantization(entry)
        )
        return [self.emit(activation, [before], activation_params)]

    def step(
        self, op: str, inputs: Operands, params: Params | None = None, *, dims: Sequence[int] | None = None,
        dtype: DataType | None = None, quantization: Quantization | None = None,
    ) -> Tensor:  # fmt: skip
        """Emit an intermediate operation; its type is that of its first input unless given."""
        shapes = None if dims is None else [tuple(dims)]
        dtypes, quantizations = (None, None) if dtype is None else ([dtype], [quantization])
        name = f"{self.name}/{op}"
        return self._emit(op, inputs, params, name=name, dims=shapes, dtypes=dtypes, quantizations=quantizations)[0]

    def reshape(self, tensor: Tensor, dims: Sequence[int]) -> Tensor:
        """Reshape an intermediate value."""
        return tensor if tensor.dims == tuple(dims) else self.step("Reshape", [tensor], dims=dims)

    def cast(self, tensor: Tensor, dtype: DataType) -> Tensor:
        """Cast an intermediate value to another plain type."""
        return tensor if tensor.dtype is dtype else self.step("Cast", [tensor], dtype=dtype)

    def finish(self, tensor: Tensor, dims: Sequence[int] | None = None) -> list[Tensor]:
        """Emit a result with the elements of an already computed value, reshaped to `dims` if given."""
        return [self.emit("Reshape", [tensor], dims=tensor.dims if dims is None else dims)]

    def constant(self, value: np.ndarray, name: str = "") -> Tensor:
        """Create an intermediate constant."""
        return self.graph.constant(f"{self.name}/{name or 'constant'}", value)

    def emit_constant(self, value: np.ndarray) -> list[Tensor]:
        """Return a result that is a constant."""
        entry = self.output()
        dtype = data_type(entry)
        return [self.graph.constant(self.name, np.asarray(value, dtype.numpy), declared_quantization(entry), dtype)]

    def check_size(self, dims: Sequence[int], itemsize: int = 8) -> tuple[int, ...]:
        """Check that a constant of these dimensions is not too large to be created; return them."""
        if any(d < 0 for d in dims) or len(dims) > 8 or math.prod(dims) * itemsize > MAX_CONSTANT_BYTES:
            self.refuse(f"a constant of dimensions {list(dims)} cannot be made")
        return tuple(dims)

    # Weights

    def derive(self, key: Hashable, create: Callable[[], Tensor]) -> Tensor:
        """Return the constant with this key, which is created only once in a model."""
        if key not in self.derived:
            self.derived[key] = create()
        return self.derived[key]

    def transpose(self, tensor: Tensor, perm: Sequence[int]) -> Tensor:
        """Transpose weights to QNN's axis order; the axis of a per-channel quantization moves with them."""
        perm = tuple(perm)
        if tensor.rank != len(perm):
            self.refuse(f"'{tensor.name}' must have rank {len(perm)}, has rank {tensor.rank}")
        quantization = tensor.quantization
        if quantization is not None and quantization.axis is not None:
            quantization = quantization.transpose(perm, tensor.dims)
        data = tensor.data
        if data is None or not tensor.is_static:
            return self.step("Transpose", [tensor], {"perm": perm}, dtype=tensor.dtype, quantization=quantization)

        def rearrange() -> Tensor:
            array = np.ascontiguousarray(data.transpose(perm))
            return self.graph.constant(f"{tensor.name}/transposed", array, quantization, tensor.dtype)

        return self.derive(("transposed", tensor.name, perm), rearrange)

    def real(self, tensor: Tensor, dtype: DataType = DataType.FLOAT_32) -> Tensor:
        """Return weights as floats of a type; quantized weights of a float operator are dequantized."""
        if tensor.dtype is dtype:
            return tensor
        key = ("real", tensor.name, dtype)
        result = self.derived.get(key)
        if result is None:
            op = "Dequantize" if tensor.dtype.is_fixed_point else "Cast"
            result = self.step(op, [tensor], dtype=dtype)
            if result.is_static:
                self.derived[key] = result
        return result

    def weights(self, index: int, activations: Tensor) -> Tensor:
        """Return the weights at operand `index`, in the type of the activations if these are floats."""
        tensor = self.input(index)
        return self.real(tensor, activations.dtype) if activations.dtype.is_float else tensor

    def bias(self, index: int, activations: Tensor, weights: Tensor, channels: int) -> Tensor | None:
        """Return the bias at operand `index`, which must have one element per channel.

        In a quantized operator the file's integers have no scale of their own; theirs is the product of the scales of
        the activations and the weights.
        """
        tensor = self.optional(index)
        if tensor is None:
            return None
        if tensor.elements != channels:
            self.refuse(f"the bias '{tensor.name}' has {tensor.elements} elements for {channels} channels")
        if activations.dtype.is_float:
            return self.reshape(self.real(tensor, activations.dtype), (channels,))
        if tensor.data is None or activations.quantization is None or weights.quantization is None:
            return self.reshape(tensor, (channels,))
        if tensor.dtype not in (DataType.INT_32, DataType.INT_64):
            self.refuse(f"the bias '{tensor.name}' must hold 32 or 64-bit integers, is {tensor.dtype.name}")
        limit = np.iinfo(np.int32)
        if tensor.elements and (tensor.data.min() < limit.min or tensor.data.max() > limit.max):
            self.unsupported(f"the bias '{tensor.name}' does not fit 32 bits")
        scales = tuple(activations.quantization.scale * s for s in weights.quantization.scales)
        quantization = Quantization(scales, (0,) * len(scales), None if weights.quantization.axis is None else 0)
        array = tensor.data.astype(np.int32).reshape(channels)
        return self.derive(
            ("bias", tensor.name, scales), lambda: self.graph.constant(f"{tensor.name}/bias", array, quantization)
        )


def declared_quantization(entry: TfliteTensor) -> Quantization | None:
    """Return the quantization of a fixed-point tensor of the file; None for other types."""
    return entry.quantization() if data_type(entry).is_fixed_point else None
