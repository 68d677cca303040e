"""The ONNX node tests as cases, and the rule that says which of them are in scope.

The rule reads the case alone: its operations, data types and shapes. It never asks what the engine can do, so
the share of passed cases means something.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper
from support import zoo

Array = NDArray[Any]
Arrays = dict[str, Array]

# What real models hold as constants and the node tests feed as inputs, by input number: parameters that decide
# shapes or the course of the computation, and weights. They are bound when the model is loaded.
PARAMETERS: Mapping[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "BatchNormalization": (1, 2, 3, 4),
    "BlackmanWindow": (0,),
    "CausalConvWithState": (1, 2),
    "CenterCropPad": (1,),
    "Clip": (1, 2),
    "Col2Im": (1, 2),
    "Compress": (1,),
    "ConstantOfShape": (0,),
    "Conv": (1, 2),
    "ConvInteger": (1, 2, 3),
    "ConvTranspose": (1, 2),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "DeformConv": (1, 3),
    "DequantizeLinear": (1, 2),
    "Dropout": (1, 2),
    "Expand": (1,),
    "GRU": (1, 2, 3, 4),
    "Gemm": (1, 2),
    "GroupNormalization": (1, 2),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "If": (0,),
    "InstanceNormalization": (1, 2),
    "LSTM": (1, 2, 3, 4, 7),
    "LayerNormalization": (1, 2),
    "Loop": (0, 1),
    "MatMulInteger": (2, 3),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "NonMaxSuppression": (2, 3, 4),
    "OneHot": (1, 2),
    "PRelu": (1,),
    "Pad": (1, 2, 3),
    "QLinearConv": (1, 2, 3, 4, 5, 6, 7, 8),
    "QLinearMatMul": (1, 2, 4, 5, 6, 7),
    "QuantizeLinear": (1, 2),
    "RMSNormalization": (1,),
    "RNN": (1, 2, 3, 4),
    "Range": (0, 1, 2),
    "ReduceL1": (1,),
    "ReduceL2": (1,),
    "ReduceLogSum": (1,),
    "ReduceLogSumExp": (1,),
    "ReduceMax": (1,),
    "ReduceMean": (1,),
    "ReduceMin": (1,),
    "ReduceProd": (1,),
    "ReduceSum": (1,),
    "ReduceSumSquare": (1,),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "ReverseSequence": (1,),
    "STFT": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}

DOMAINS = frozenset(("", "ai.onnx", "ai.onnx.preview"))

TYPES = frozenset(
    (
        TensorProto.FLOAT,
        TensorProto.INT8,
        TensorProto.UINT8,
        TensorProto.INT32,
        TensorProto.INT64,
        TensorProto.BOOL,
        TensorProto.INT16,
        TensorProto.UINT16,
        TensorProto.UINT32,
        TensorProto.UINT64,
        TensorProto.DOUBLE,
        TensorProto.FLOAT16,
        TensorProto.BFLOAT16,
        TensorProto.INT4,
        TensorProto.UINT4,
    )
)
HELD_IN_BYTES = {TensorProto.INT4: np.int8, TensorProto.UINT4: np.uint8}
"""Types of fewer than eight bits, and those that their elements have in arrays."""


# Operations without a conversion, and why.
OPERATIONS_OUT_OF_SCOPE: Mapping[str, str] = {
    "Det": "determinants, which networks do not compute",
    "ImageDecoder": "decoding of image files, which no tensor holds",
    "TfIdfVectorizer": "counts of words in texts",
}

RANDOM = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)

DATA = "test_data_set_0"
"""The folder of a case's inputs and outputs."""

QUANTIZED = frozenset(("DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "QuantizeLinear"))


@dataclass(frozen=True)
class Case:
    """One node test.

    `operation` is the one under test, also where the file holds its expansion into simpler ones. `excluded` says
    why the case is out of scope.
    """

    name: str
    folder: Path
    original_folder: Path
    operation: str
    excluded: str | None

    @property
    def model_path(self) -> Path:
        return self.folder / "model.onnx"

    def original(self) -> ModelProto:
        """The model with the operation under test, where this one has its expansion into simpler ones."""
        return onnx.load(self.original_folder / "model.onnx")

    def arrays(self) -> tuple[Arrays, Arrays, Arrays]:
        """The inputs to feed, those to bind as constants, and the expected outputs."""
        model = onnx.load(self.model_path)
        data = self.folder / DATA
        inputs = _inputs(model, self.folder)
        outputs = _read(data, "output", [value.name for value in model.graph.output])
        bound = (parameter_inputs(model.graph) | parameter_inputs(self.original().graph)) & inputs.keys()
        feeds = {name: _stored(value) for name, value in inputs.items() if name not in bound}
        return feeds, {name: inputs[name] for name in bound}, outputs

    @property
    def quantized(self) -> bool:
        return self.operation in QUANTIZED


@functools.cache
def cases() -> tuple[Case, ...]:
    """All node tests, by name; raises `zoo.Unavailable` where they cannot be had."""
    folders = {folder.name: folder for folder in sorted(zoo.node_tests().iterdir())}
    return tuple(_case(name, folder, folders) for name, folder in folders.items())


def parameter_inputs(graph: GraphProto) -> set[str]:
    """The graph inputs that some node uses as a parameter."""
    inputs = {value.name for value in graph.input}
    return {
        node.input[i]
        for node in graph.node
        for i in PARAMETERS.get(node.op_type, ())
        if i < len(node.input) and node.input[i] in inputs
    }


def _case(name: str, folder: Path, folders: Mapping[str, Path]) -> Case:
    model = onnx.load(folder / "model.onnx")
    original = folders.get(re.sub(r"_expanded.*$", "", name), folder)
    operation = str((model if original == folder else onnx.load(original / "model.onnx")).graph.node[0].op_type)
    return Case(name, folder, original, operation, _exclusion(model, folder))


def _exclusion(model: ModelProto, folder: Path) -> str | None:
    """Return why the case is out of scope, or None; the first reason that holds."""
    nodes = list(_nodes(model.graph))
    values = [*model.graph.input, *model.graph.output]
    if domains := sorted({node.domain for node in nodes} - DOMAINS):
        return f"operations of the domain {domains[0]}"
    # The values of an inner graph may have no type.
    kinds = {value.type.WhichOneof("value") for value in [*values, *_inner_values(model.graph)]}
    if kinds - {"tensor_type", None}:
        return "sequences, maps and optional values"
    if foreign := sorted(_types(model) - TYPES):
        return f"data type {TensorProto.DataType.Name(foreign[0]).lower()}"
    if without := sorted({node.op_type for node in nodes} & OPERATIONS_OUT_OF_SCOPE.keys()):
        return OPERATIONS_OUT_OF_SCOPE[without[0]]
    if any(node.op_type == "Unique" and any(each.name == "axis" for each in node.attribute) for node in nodes):
        return "distinct slices, which no operation of QNN compares"
    if {node.op_type for node in nodes} & RANDOM:
        return "random numbers"
    if any(_drops(node, model, folder) for node in nodes):
        return "random numbers"
    return None


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """The nodes of a graph and of the graphs inside them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _nodes(attribute.g)


def _inner_values(graph: GraphProto) -> Iterator[ValueInfoProto]:
    """Yield what the graphs inside a graph take and give."""
    for node in _nodes(graph):
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from attribute.g.input
                yield from attribute.g.output


def _types(model: ModelProto) -> set[int]:
    """Every data type that is written anywhere in the model."""
    found = {value.type.tensor_type.elem_type for value in [*model.graph.input, *model.graph.output]}
    found |= {value.type.tensor_type.elem_type for value in _inner_values(model.graph)} - {TensorProto.UNDEFINED}
    found |= {tensor.data_type for tensor in model.graph.initializer}
    for node in _nodes(model.graph):
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                found.add(attribute.t.data_type)
            elif attribute.name == "to" and node.op_type == "Cast":
                found.add(attribute.i)
    return found


def _drops(node: NodeProto, model: ModelProto, folder: Path) -> bool:
    """Return whether this is a Dropout that sets elements to 0: it trains, and its ratio is not 0."""
    trains = node.op_type == "Dropout" and len(node.input) > 2
    return trains and bool(_inputs(model, folder).get(node.input[1], 0.5))


def _stored(value: Array) -> Array:
    """An input as a session takes it: bfloat16, which numpy lacks, as its bits."""
    return value.view(np.uint16) if value.dtype.name == "bfloat16" else value


def _inputs(model: ModelProto, folder: Path) -> Arrays:
    return _read(folder / DATA, "input", [value.name for value in model.graph.input])


def _read(folder: Path, kind: str, names: list[str]) -> Arrays:
    """The arrays of one side of a data set; the files are numbered like the graph's own values."""
    arrays: Arrays = {}
    for number, name in enumerate(names):
        path = folder / f"{kind}_{number}.pb"
        if path.exists():
            tensor = TensorProto()
            tensor.ParseFromString(path.read_bytes())
            array = numpy_helper.to_array(tensor)
            arrays[name] = array.astype(HELD_IN_BYTES.get(tensor.data_type, array.dtype))
    return arrays
