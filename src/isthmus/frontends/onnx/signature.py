"""The inputs of an ONNX graph: which are constants, and the dimensions of the others once all are fixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.errors import Code, QnnError, did_you_mean
from isthmus.frontends.formats import malformed
from isthmus.frontends.onnx.tensors import BFLOAT16_BITS, element_type
from isthmus.frontends.unsupported import unsupported
from isthmus.graph import DataType

_MAX_DIM = 1 << 31


@dataclass(frozen=True)
class Input:
    """A graph input in the file's own terms."""

    name: str
    dtype: np.dtype
    dims: tuple[int, ...]


def _invalid(what: str, rule: str, hint: str = "") -> QnnError:
    """Return the error for a shape or a value that a caller gives."""
    return QnnError(Code.GRAPH_INVALID_ARGUMENT, what, rule, hint)


def bound_arrays(graph: Any, constants: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the values that a caller binds to inputs, converted to the inputs' types."""
    inputs = {value.name: value for value in graph.input}
    arrays = {}
    for name, constant in constants.items():
        what = f"constant '{name}'"
        if name not in inputs:
            names = ", ".join(inputs) or "none"
            raise _invalid(what, "the model has no such input", f"Its inputs are {names}.")
        dtype = element_type(inputs[name].type.tensor_type.elem_type, what)
        array = np.asarray(constant)
        if dtype == BFLOAT16_BITS:
            arrays[name] = _bfloat16(array, what)
            continue
        if not np.can_cast(array.dtype, dtype, "same_kind"):
            raise _invalid(what, f"the model takes {dtype}, {array.dtype} is given")
        arrays[name] = array.astype(dtype.newbyteorder("="))
    return arrays


def _bfloat16(array: np.ndarray, what: str) -> np.ndarray:
    """Return numbers, or elements that are BFLOAT16 already (as bits, or in another package's type), as BFLOAT16."""
    array = DataType.BFLOAT_16.encode(array) if array.dtype.kind == "f" else DataType.BFLOAT_16.elements(array)
    if array.dtype != np.uint16:
        raise _invalid(what, f"the model takes bfloat16, {array.dtype} is given")
    return np.ascontiguousarray(array).reshape(array.shape).view(BFLOAT16_BITS)


def graph_inputs(graph: Any, shapes: Mapping[str, Sequence[int]], bound: Mapping[str, np.ndarray]) -> list[Input]:
    """Return the remaining inputs with fixed dimensions.

    A dynamic dimension takes the caller's size; otherwise the size that its symbolic name has elsewhere; otherwise 1.

    - `shapes`: the caller's dimensions of inputs, by name.
    - `bound`: the values of inputs that become constants, by name.
    """
    constants = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer} | set(bound)
    declared = [value for value in graph.input if value.name not in constants]
    names = [value.name for value in declared]
    if len(set(names)) != len(names) or "" in names:
        raise malformed(f"graph '{graph.name}'", "its inputs need a name each, each its own")
    for name in shapes:
        if name not in names:
            hint = f"{did_you_mean(name, names)} Its inputs are {', '.join(names) or 'none'}.".lstrip()
            raise _invalid(f"shape for '{name}'", "the model has no such input", hint)
    symbols: dict[str, int] = {}
    for value in graph.input:
        if value.name in bound:
            _bind(value, bound[value.name].shape, symbols)
        elif value.name in shapes:
            _bind(value, shapes[value.name], symbols)
    return [_fix(value, shapes.get(value.name), symbols) for value in declared]


def open_dims(graph: Any) -> dict[str, tuple[bool, ...]]:
    """Return which dimensions of each input the file leaves open; () for an input without a declared rank."""
    return {
        value.name: tuple(not dim.HasField("dim_value") or dim.dim_value < 0 for dim in _dims(value))
        for value in graph.input
    }


def assumed_shapes(graph: Any, shapes: Mapping[str, Sequence[int]]) -> dict[str, list[int | str]]:
    """Return the shapes of inputs in which `graph_inputs` takes dimensions as 1 because nothing gives their size.

    Such a dimension is its symbolic name, or "?" if it has none that a command line could show. An input without a
    declared rank has the shape ["..."].
    """
    constants = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    sizes = {
        dim.dim_param: size
        for value in graph.input if value.name in shapes
        for dim, size in zip(_dims(value), shapes[value.name], strict=False) if dim.dim_param != "?"
    }  # fmt: skip
    dims_by_name: dict[str, list[int | str]] = {}
    for value in graph.input:
        if value.name in shapes or value.name in constants:
            continue
        dims: list[int | str] = [
            dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0
            else sizes.get(dim.dim_param or "?", dim.dim_param if dim.dim_param.isidentifier() else "?")
            for dim in _dims(value)
        ]  # fmt: skip
        if not value.type.tensor_type.HasField("shape"):
            dims = ["..."]
        if any(isinstance(dim, str) for dim in dims):
            dims_by_name[value.name] = dims
    return dims_by_name


def _dims(value: Any) -> list[Any]:
    """Return the dimensions that the file declares for an input, as ONNX's messages; [] if it declares none."""
    if value.type.WhichOneof("value") != "tensor_type":
        kind = value.type.WhichOneof("value") or "no type"
        raise unsupported(f"input '{value.name}'", f"{kind} inputs are not supported")
    if not value.type.tensor_type.HasField("shape"):
        return []
    return list(value.type.tensor_type.shape.dim)


def _bind(value: Any, shape: Sequence[int], symbols: dict[str, int]) -> None:
    """Check a caller's shape against the file's and record the sizes of its symbolic dimensions."""
    what = f"shape {list(shape)} for '{value.name}'"
    dims = _dims(value)
    declared = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in dims]
    if value.type.tensor_type.HasField("shape") and len(shape) != len(dims):
        raise _invalid(what, f"the model declares rank {len(dims)}: {declared}")
    if any(int(size) != size or not 0 <= size < _MAX_DIM for size in shape):
        raise _invalid(what, f"each dimension must be an integer from 0 to {_MAX_DIM - 1}")
    for dim, size in zip(dims, shape, strict=False):
        if dim.HasField("dim_value") and dim.dim_value >= 0 and dim.dim_value != size:
            raise _invalid(what, f"the model fixes it to {declared}")
        if dim.dim_param and dim.dim_param != "?" and symbols.setdefault(dim.dim_param, int(size)) != size:
            raise _invalid(what, f"dimension '{dim.dim_param}' is {symbols[dim.dim_param]} in another input's shape")


def _fix(value: Any, shape: Sequence[int] | None, symbols: Mapping[str, int]) -> Input:
    """Return an input with the caller's dimensions, or the declared ones with a size for each open one."""
    dims = _dims(value)
    dtype = element_type(value.type.tensor_type.elem_type, f"input '{value.name}'")
    if shape is not None:
        return Input(value.name, dtype, tuple(int(size) for size in shape))
    sizes = [
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else symbols.get(dim.dim_param, 1)
        for dim in dims
    ]
    if any(size >= _MAX_DIM for size in sizes):
        raise malformed(f"input '{value.name}'", f"dimensions {sizes} are too large")
    return Input(value.name, dtype, tuple(sizes))
