"""The definition of an operation: its operands, its parameters, the rule for its outputs' shapes, and its traits.

The tables of all operations are in `isthmus.graph.ops`; each rule takes a `Call` and returns dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.graph.datatypes import DataType
from isthmus.graph.tensor import Tensor
from isthmus.graph.traits import PLAIN, Traits

QTI = "qti.aisw"
"""QNN's own operation package."""
ISTHMUS = "isthmus"
"""The package of operations that models need and QNN's package lacks."""

Dims = tuple[int, ...]
"""The dimensions of a tensor."""
Operands = Sequence[Tensor | None]
"""The tensors that a node reads, None for an absent optional one."""
Params = dict[str, Any]
"""The parameters of a node, by name."""


@dataclass(frozen=True)
class Param:
    """A parameter: its kind and, if it is optional, its default.

    `kind` is "u32", "i32", "f32" or "bool" for a scalar, the same with a trailing "[]" for an array of any shape, or
    "scalar" for a number in the type of the tensor (on fixed-point tensors, the real number). `is_own` marks a
    parameter that QNN's definition of the operation lacks.
    """

    name: str
    kind: str
    default: Any = None
    required: bool = True
    is_own: bool = False


def optional(name: str, kind: str, default: Any = None) -> Param:
    """Create an optional parameter."""
    return Param(name, kind, default, required=False)


def options(kind: str, **defaults: Any) -> tuple[Param, ...]:
    """Create optional parameters of one kind, by name with their defaults."""
    return tuple(optional(name, kind, default) for name, default in defaults.items())


def required(kind: str, *names: str) -> tuple[Param, ...]:
    """Create parameters of one kind that must be given."""
    return tuple(Param(name, kind) for name in names)


def own(name: str, kind: str, default: Any) -> Param:
    """Create an optional parameter that QNN's definition of the operation lacks."""
    return Param(name, kind, default, required=False, is_own=True)


@dataclass
class Call:
    """One use of an operation, as input of its shape rule.

    A rule may replace a parameter by its resolved form (a default axis, a masked slice), so that later readers of the
    node's parameters find plain numbers.

    - `params`: the complete parameters, with defaults.
    - `declared`: the output tensors as the client declared them, or None if the graph derives them.
    - `omitted`: the names of parameters that the client left to their defaults, if that matters.
    """

    node: str
    op: str
    inputs: Sequence[Tensor | None]
    params: dict[str, Any]
    declared: Sequence[Tensor] | None = None
    omitted: Collection[str] = ()

    def refuse(self, rule: str) -> NoReturn:
        """Refuse the node with an error that names it."""
        raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, f"node '{self.node}' ({self.op})", rule)

    def optional(self, index: int) -> Tensor | None:
        """Return input `index`, or None if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    def tensor(self, index: int) -> Tensor:
        """Return input `index`, which must be present."""
        tensor = self.optional(index)
        if tensor is None:
            self.refuse(f"in[{index}] is missing")
        return tensor

    def dims(self, index: int) -> Dims:
        """Return the dimensions of input `index`, which must be present."""
        return self.tensor(index).dims

    def axis(self, name: str = "axis", rank: int | None = None) -> int:
        """Return parameter `name` as a checked axis of in[0]; negative counts from the end, None means the last.

        `rank` is the number of axes to choose from if it is not in[0]'s, as for an operation that inserts an axis.
        """
        rank = len(self.dims(0)) if rank is None else rank
        axis = rank - 1 if self.params[name] is None else int(self.params[name])
        if not -rank <= axis < rank:
            self.refuse(f"{name} {axis} is outside rank {rank}")
        self.params[name] = axis % rank
        return axis % rank

    def axes(self, name: str = "axes") -> tuple[int, ...]:
        """Return parameter `name` as different axes of in[0], checked and sorted."""
        rank = len(self.dims(0))
        axes = sorted(int(a) for a in np.asarray(self.params[name]).reshape(-1))
        if any(not 0 <= a < rank for a in axes) or len(set(axes)) != len(axes):
            self.refuse(f"{name} {axes} must be different axes below rank {rank}")
        self.params[name] = np.asarray(axes, np.int64)
        return tuple(axes)

    def numbers(self, name: str, *shape: int, least: int = 0) -> np.ndarray:
        """Return array parameter `name`, which must have this shape and no element below `least`."""
        array: np.ndarray = np.asarray(self.params[name])
        if array.shape != shape:
            self.refuse(f"{name} must have shape {list(shape)}, has {list(array.shape)}")
        if array.size and array.min() < least:
            self.refuse(f"{name} must be at least {least}, is {array.tolist()}")
        return array

    def number(self, name: str, least: int = 0, below: int | None = None) -> int:
        """Return scalar parameter `name`, which must be at least `least` and below `below`."""
        value = int(self.params[name])
        if value < least or (below is not None and value >= below):
            limit = f"at least {least}" if below is None else f"in {least}..{below - 1}"
            self.refuse(f"{name} must be {limit}, is {value}")
        return value

    def check_rank(self, index: int, *allowed: int) -> None:
        """Check that input `index` has one of these ranks."""
        rank = len(self.dims(index))
        if rank not in allowed:
            self.refuse(f"in[{index}] must have rank {' or '.join(map(str, allowed))}, has rank {rank}")

    def check_dims(self, index: int, *dims: int) -> None:
        """Check that input `index`, if it is present, has these dimensions."""
        tensor = self.optional(index)
        if tensor is not None and tensor.dims != dims:
            self.refuse(f"in[{index}] {tensor.describe()} must have dimensions {list(dims)}")

    def broadcast(self, *shapes: Dims) -> Dims:
        """Return the dimensions that all shapes broadcast to; they are aligned at the last axis."""
        rank = max(map(len, shapes))
        out = []
        for sizes in zip(*((1,) * (rank - len(s)) + tuple(s) for s in shapes), strict=True):
            size = next((s for s in sizes if s != 1), 1)
            if any(s not in (1, size) for s in sizes):
                self.refuse(f"dimensions {' and '.join(str(list(s)) for s in shapes)} do not broadcast")
            out.append(size)
        return tuple(out)

    def check_same_type(self, *indices: int) -> None:
        """Check that these inputs have the same data type."""
        first = self.tensor(indices[0])
        for index in indices[1:]:
            if self.tensor(index).dtype is not first.dtype:
                self.refuse(
                    f"in[{index}] {self.tensor(index).describe()} must have the data type of in[{indices[0]}], "
                    f"{first.dtype.name}"
                )

    def declared_dims(self, index: int = 0) -> Dims:
        """Return the dimensions of an output whose shape is known only from its declaration."""
        if self.declared is None or index >= len(self.declared):
            self.refuse("the shape of its output must be declared")
        return self.declared[index].dims


Rule = Callable[[Call], list[Dims]]
Types = tuple[DataType, ...]
TypeRule = DataType | Types | Callable[[Call], DataType] | None
"""The rule for an output's data type: a fixed type; one of several, the first unless declared otherwise; the return
value of a function of the call; or None for any declared type.
"""


def like(index: int) -> Callable[[Call], DataType]:
    """Return the type rule "as input `index`"."""
    return lambda call: call.tensor(index).dtype


@dataclass(frozen=True)
class Operation:
    """An operation of a package.

    - `inputs`, `outputs`: minimum and maximum number of them; a maximum of None means any number.
    - `rule`: returns the outputs' dimensions, or refuses the call.
    - `input_types`: data types that an input may have, by its index; an input that is not listed may have any.
    - `output_types`: the rule for the data type of an output, by its index; an output that is not listed has the type
      of in[0].
    - `function`: for an elementwise operation, the numpy function that takes the operands and, by name, the parameters.
      It gets integers in their own type. An operation on reals only gets float64, so that its result is the float32
      nearest to the true one.
    """

    name: str
    inputs: tuple[int, int | None]
    outputs: tuple[int, int | None]
    params: tuple[Param, ...]
    rule: Rule
    input_types: dict[int, Types] = field(default_factory=dict)
    output_types: dict[int, TypeRule] = field(default_factory=dict)
    package: str = QTI
    traits: Traits = PLAIN
    function: Callable[..., np.ndarray] | None = None

    def complete(self, node: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters with defaults filled in; refuse unknown, missing or ill-typed ones."""
        names = [param.name for param in self.params]

        def refuse(rule: str) -> NoReturn:
            raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, f"node '{node}' ({self.name})", rule)

        for name in params:
            if name not in names:
                refuse(f"parameter '{name}' is unknown; it takes {', '.join(names) or 'none'}")
        complete: dict[str, Any] = {}
        for param in self.params:
            value = params.get(param.name)
            if value is None:
                if param.required:
                    refuse(f"parameter '{param.name}' is missing")
                value = param.default
            try:
                complete[param.name] = None if value is None else _coerce(param.kind, value)
            except (TypeError, ValueError, OverflowError):
                refuse(f"parameter '{param.name}' must be {param.kind}, is {value!r}")
        return complete

    def derive(self, call: Call) -> list[Dims]:
        """Return the outputs' dimensions; refuse a call with a wrong number or wrong types of inputs."""
        # Newer definitions of an operation may have additional optional inputs; they are ignored if absent.
        further = [] if self.inputs[1] is None else call.inputs[self.inputs[1] :]
        ignored = 0 if any(tensor is not None for tensor in further) else len(further)
        self._check_count(call, "inputs", len(call.inputs) - ignored, self.inputs)
        for index in range(self.inputs[0]):
            call.tensor(index)
        for index, allowed in self.input_types.items():
            tensor = call.optional(index)
            if tensor is not None and tensor.dtype not in allowed:
                call.refuse(
                    f"in[{index}] {tensor.describe()} has an unsupported data type; it takes {names_of(allowed)}"
                )
        return self.rule(call)

    def verify(self, call: Call) -> None:
        """Refuse a call whose declared outputs do not match its inputs and parameters."""
        outputs = call.declared or ()
        self._check_count(call, "outputs", len(outputs), self.outputs)
        dims = self.derive(call)
        if len(outputs) > len(dims) or (self.outputs[1] is None and len(outputs) != len(dims)):
            call.refuse(f"it has {len(dims)} outputs, {len(outputs)} are given")
        for index, (tensor, expected) in enumerate(zip(outputs, dims, strict=False)):
            # A single number may be declared with or without a dimension.
            if tensor.dims != tuple(expected) and {tensor.dims, tuple(expected)} != {(), (1,)}:
                call.refuse(f"out[{index}] {tensor.describe()} must have dimensions {list(expected)}")
            allowed, _ = self.output_type(call, index)
            if allowed is not None and tensor.dtype not in allowed:
                call.refuse(f"out[{index}] {tensor.describe()} must be {names_of(allowed)}")

    @staticmethod
    def _check_count(call: Call, kind: str, count: int, limits: tuple[int, int | None]) -> None:
        """Refuse a call unless the number of its inputs or outputs (`kind`) is within the limits."""
        fewest, most = limits
        if count < fewest or (most is not None and count > most):
            allowed = f"{fewest}" if fewest == most else f"{fewest} to {'any number of' if most is None else most}"
            call.refuse(f"takes {allowed} {kind}, {count} given")

    def output_type(self, call: Call, index: int) -> tuple[Collection[DataType] | None, DataType | None]:
        """Return the data types that output `index` may have (None for any), and its default."""
        rule = self.output_types.get(index, like(0))
        if isinstance(rule, tuple):
            return rule, rule[0]
        dtype = rule if rule is None or isinstance(rule, DataType) else rule(call)
        return (None if dtype is None else (dtype,)), dtype


def define(
    name: str, rule: Rule, *params: Param, inputs: int | tuple[int, int | None] = 1,
    types: Sequence[Types | None] = (), **more: Any,
) -> Operation:  # fmt: skip
    """Create an operation for a table of its family; it has one output unless `more` says otherwise.

    - `inputs`: the number of inputs, or the fewest and the most.
    - `types`: the data types that each input may have, in order; None for any.
    - `more`: further fields of `Operation`.
    """
    limits = (inputs, inputs) if isinstance(inputs, int) else inputs
    input_types = {index: allowed for index, allowed in enumerate(types) if allowed is not None}
    return Operation(name, limits, more.pop("outputs", (1, 1)), params, rule, input_types, **more)


def names_of(types: Collection[DataType]) -> str:
    """Return the names of data types as a text for messages."""
    return ", ".join(t.name for t in types)


_RANGES = {"u32": (0, 2**32 - 1), "i32": (-(2**31), 2**31 - 1)}


def _coerce(kind: str, value: Any) -> Any:
    """Return a parameter's value as Python's or numpy's type for its kind; raise a ValueError if it is not of it."""
    if kind.endswith("[]"):
        return _coerce_array(kind[:-2], np.asarray(value))
    number = np.asarray(value).reshape(()).item()
    # Only a "scalar", which may fill a float tensor, can be NaN.
    if not isinstance(number, (bool, int, float)) or (kind != "scalar" and number != number):
        raise ValueError(kind)
    if kind == "scalar":
        return number
    if kind == "f32":
        return float(number)
    if kind == "bool":
        if number not in (0, 1):
            raise ValueError(kind)
        return bool(number)
    least, most = _RANGES[kind]
    if int(number) != number or not least <= number <= most:
        raise ValueError(kind)
    return int(number)


def _coerce_array(kind: str, array: np.ndarray) -> np.ndarray:
    """Return a parameter's array as float32, or as int64; a ValueError names the kind if an element is out of range."""
    if kind == "f32":
        return array.astype(np.float32)
    if array.size == 0:
        return array.astype(np.int64)
    least, most = _RANGES[kind]
    if array.dtype.kind not in "iub" or int(array.min()) < least or int(array.max()) > most:
        raise ValueError(kind)
    return array.astype(np.int64)
