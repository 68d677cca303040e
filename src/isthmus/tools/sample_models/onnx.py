"""ONNX files from a description of their nodes and constants, in floats or with quantized tensors (QDQ)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from isthmus.frontends.onnx.schema import messages

OPSET, IR_VERSION = 21, 10
"""The operator set, which has quantized tensors of 16 bits, and the version of the file format."""
# ONNX's numbers of element types.
_NUMBERS = {"float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int32": 6, "int64": 7}
# ONNX's numbers of attribute types.
_FLOAT, _INT, _INTS = 1, 2, 7


@dataclass
class OnnxGraph:
    """A graph in the making: nodes in order, constants, inputs and outputs. Dimensions may be names."""

    name: str
    inputs: dict[str, Sequence[int | str]]
    outputs: dict[str, Sequence[int | str]]
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    nodes: list[tuple[str, Sequence[str], str, Mapping[str, Any]]] = field(default_factory=list)

    def add(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add a node, which is named after its output; return the output."""
        self.nodes.append((op, inputs, output, attributes))
        return output

    def constant(self, name: str, value: np.ndarray) -> str:
        """Add a constant; return its name."""
        self.constants[name] = value
        return name


def onnx_file(graph: OnnxGraph) -> bytes:
    """Return the bytes of a file with this graph, whose inputs and outputs are floats."""
    model = messages().ModelProto(ir_version=IR_VERSION, producer_name="isthmus samples")
    model.opset_import.add(domain="", version=OPSET)
    model.graph.name = graph.name
    for op, inputs, output, attributes in graph.nodes:
        node = model.graph.node.add(op_type=op, input=inputs, output=[output], name=f"{op}_{output}")
        for name, value in attributes.items():
            if isinstance(value, float):
                node.attribute.add(name=name, type=_FLOAT, f=value)
            elif isinstance(value, int):
                node.attribute.add(name=name, type=_INT, i=value)
            else:
                node.attribute.add(name=name, type=_INTS, ints=value)
    for name, array in graph.constants.items():
        number = _NUMBERS[array.dtype.name]
        model.graph.initializer.add(name=name, dims=array.shape, data_type=number, raw_data=array.tobytes())
    for listed, ends in ((model.graph.input, graph.inputs), (model.graph.output, graph.outputs)):
        for name, dims in ends.items():
            tensor = listed.add(name=name).type.tensor_type
            tensor.elem_type = _NUMBERS["float32"]
            for dim in dims:
                tensor.shape.dim.add(**{"dim_param" if isinstance(dim, str) else "dim_value": dim})
    content: bytes = model.SerializeToString(deterministic=True)
    return content
