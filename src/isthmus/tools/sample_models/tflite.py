"""TFLite files from a description of their tensors and operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from isthmus.frontends.flatbuffer_writer import Field, TableFields, flatbuffer
from isthmus.frontends.tflite.file_patch import ALIGNMENT
from isthmus.frontends.tflite.schema import (
    EXTENDED,
    IDENTIFIER,
    NUMPY_TYPES,
    OPERATORS,
    OPTIONS,
    VERSION,
    BufferField,
    ElementType,
    ModelField,
    OperatorCodeField,
    OperatorField,
    QuantizationField,
    SubgraphField,
    TensorField,
)

# The field of an operator code that holds its version.
_CODE_VERSION = 2
_TYPES = {np.dtype(kind): element for element, kind in NUMPY_TYPES.items() if element is not ElementType.INT4}


@dataclass(frozen=True)
class SampleTensor:
    """A tensor of a subgraph.

    - `data`: the contents of a constant.
    - `scale`, `zero`: how stored integers map to reals; no scale for floats.
    - `element`: the type, if it is not that of `dtype`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any = np.float32
    data: np.ndarray | None = None
    scale: Sequence[float] = ()
    zero: int = 0
    element: ElementType | None = None

    def with_shape(self, *shape: int) -> SampleTensor:
        """Return the tensor with another shape."""
        return replace(self, shape=shape)


@dataclass
class TfliteSubgraph:
    """A subgraph in the making: tensors and operators in order.

    - `operators`: the name of each operator, the numbers of its inputs and outputs, and its options.
    """

    name: str = "main"
    tensors: list[SampleTensor] = field(default_factory=list)
    operators: list[tuple[str, list[int], list[int], Mapping[str, Any]]] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def tensor(self, name: str, shape: Sequence[int], dtype: Any = np.float32, **more: Any) -> int:
        """Add a tensor; return its number."""
        self.tensors.append(SampleTensor(name, tuple(shape), dtype, **more))
        return len(self.tensors) - 1

    def constant(self, name: str, data: np.ndarray, scale: Sequence[float] = ()) -> int:
        """Add a constant; return its number."""
        return self.tensor(name, data.shape, data.dtype, data=data, scale=scale)

    def add(self, code: str, inputs: Sequence[int], outputs: Sequence[int], **options: Any) -> None:
        """Add an operator, with options under the names of `isthmus.frontends.tflite.schema`."""
        self.operators.append((code, list(inputs), list(outputs), options))


def tflite_file(*subgraphs: TfliteSubgraph) -> bytes:
    """Return the bytes of a file with these subgraphs, of which the first is the main one."""
    codes = list(dict.fromkeys(code for subgraph in subgraphs for code, *_ in subgraph.operators))
    buffers: list[TableFields] = [{}]
    root: TableFields = {
        ModelField.VERSION: ("u32", VERSION),
        ModelField.OPERATOR_CODES: ("tables", [_code(code) for code in codes]),
        ModelField.SUBGRAPHS: ("tables", [_subgraph(each, codes, buffers) for each in subgraphs]),
        ModelField.DESCRIPTION: ("text", "sample of isthmus"),
        ModelField.BUFFERS: ("tables", buffers),
    }
    return flatbuffer(root, IDENTIFIER, ALIGNMENT)


def _code(name: str) -> TableFields:
    number = OPERATORS.index(name)
    return {
        OperatorCodeField.DEPRECATED_BUILTIN_CODE: ("i8", min(number, EXTENDED)),
        _CODE_VERSION: ("i32", 1),
        OperatorCodeField.BUILTIN_CODE: ("i32", number),
    }


def _subgraph(subgraph: TfliteSubgraph, codes: Sequence[str], buffers: list[TableFields]) -> TableFields:
    """Describe a subgraph, and add the contents of its constants to the buffers."""
    return {
        SubgraphField.TENSORS: ("tables", [_tensor(tensor, buffers) for tensor in subgraph.tensors]),
        SubgraphField.INPUTS: ("array", np.array(subgraph.inputs, np.int32)),
        SubgraphField.OUTPUTS: ("array", np.array(subgraph.outputs, np.int32)),
        SubgraphField.OPERATORS: ("tables", [_operator(each, codes) for each in subgraph.operators]),
        SubgraphField.NAME: ("text", subgraph.name),
    }


def _tensor(tensor: SampleTensor, buffers: list[TableFields]) -> TableFields:
    number = 0
    if tensor.data is not None:
        number = len(buffers)
        buffers.append({BufferField.DATA: ("array", np.frombuffer(tensor.data.tobytes(), np.uint8))})
    element = _TYPES[np.dtype(tensor.dtype)] if tensor.element is None else tensor.element
    fields: dict[int, Field] = {
        TensorField.SHAPE: ("array", np.array(tensor.shape, np.int32)),
        TensorField.TYPE: ("i8", int(element)),
        TensorField.BUFFER: ("u32", number),
        TensorField.NAME: ("text", tensor.name),
    }
    if len(tensor.scale):
        zeros = np.full(len(tensor.scale), tensor.zero, np.int64)
        fields[TensorField.QUANTIZATION] = (
            "table",
            {
                QuantizationField.SCALE: ("array", np.array(tensor.scale, np.float32)),
                QuantizationField.ZERO_POINT: ("array", zeros),
                QuantizationField.QUANTIZED_DIMENSION: ("i32", 0),
            },
        )
    return fields


def _operator(operator: tuple[str, list[int], list[int], Mapping[str, Any]], codes: Sequence[str]) -> TableFields:
    code, inputs, outputs, options = operator
    fields: dict[int, Field] = {
        OperatorField.OPCODE_INDEX: ("u32", codes.index(code)),
        OperatorField.INPUTS: ("array", np.array(inputs, np.int32)),
        OperatorField.OUTPUTS: ("array", np.array(outputs, np.int32)),
    }
    if options:
        table = OPTIONS[code]
        fields[OperatorField.OPTIONS_TYPE] = ("u8", table.union)
        fields[OperatorField.OPTIONS] = (
            "table",
            {table.fields[name].field: (table.fields[name].kind, value) for name, value in options.items()},
        )
    return fields
