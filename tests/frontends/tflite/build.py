"""Builds small TFLite files, with LiteRT's own schema classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

TYPES = {
    "f32": ("FLOAT32", np.float32),
    "f16": ("FLOAT16", np.float16),
    "i32": ("INT32", np.int32),
    "u8": ("UINT8", np.uint8),
    "i64": ("INT64", np.int64),
    "bool": ("BOOL", np.bool_),
    "i16": ("INT16", np.int16),
    "i8": ("INT8", np.int8),
    "i4": ("INT4", np.int8),
    "resource": ("RESOURCE", np.int32),
    "c64": ("COMPLEX64", np.complex64),
}


@dataclass
class T:
    """One tensor: a type of TYPES, a shape, contents for a constant, scale and zero point for a quantized one."""

    type: str
    shape: Sequence[int]
    data: Any = None
    scale: Any = None
    zero: Any = 0
    axis: int = 0
    name: str = ""
    signature: Sequence[int] | None = None
    variable: bool = False


@dataclass
class Op:
    """One operator: its name, indices of its operands, and its options as an object of the schema."""

    code: str
    inputs: Sequence[int]
    outputs: Sequence[int]
    options: Any = None
    custom: bytes | None = None


@dataclass
class Subgraph:
    """One subgraph."""

    tensors: list[T]
    operators: list[Op]
    inputs: Sequence[int]
    outputs: Sequence[int]
    name: str = "main"


@dataclass
class _Built:
    buffers: list = field(default_factory=lambda: [schema.BufferT()])
    codes: dict[str, int] = field(default_factory=dict)


def options(kind: str, **fields: Any) -> Any:
    """Options of a kind such as "Conv2D", fields under the schema's names (for example strideW)."""
    made = getattr(schema, f"{kind}OptionsT")()
    for name, value in fields.items():
        if not hasattr(made, name):
            raise AttributeError(name)
        setattr(made, name, value)
    return made


def model(*subgraphs: Subgraph) -> bytes:
    """The bytes of a model file."""
    built = _Built()
    made = schema.ModelT()
    made.version = 3
    made.subgraphs = [_subgraph(s, built) for s in subgraphs]
    made.operatorCodes = [_code(name) for name in built.codes]
    made.buffers = built.buffers
    builder = flatbuffers.Builder(1024)
    builder.Finish(made.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def single(code: str, inputs: Sequence[T], outputs: Sequence[T], made: Any = None) -> bytes:
    """A model of one operator; inputs that hold data are constants."""
    tensors = [*inputs, *outputs]
    results = range(len(inputs), len(tensors))
    given = [i for i, t in enumerate(inputs) if t.data is None]
    return model(Subgraph(tensors, [Op(code, range(len(inputs)), results, made)], given, results))


def _code(name: str) -> Any:
    code = schema.OperatorCodeT()
    builtin, _, custom = name.partition(":")
    code.builtinCode = getattr(schema.BuiltinOperator, builtin)
    code.deprecatedBuiltinCode = min(code.builtinCode, 127)
    code.customCode = custom or None
    code.version = {"BROADCAST_TO": 2}.get(builtin, 1)
    return code


def _subgraph(subgraph: Subgraph, built: _Built) -> Any:
    made = schema.SubGraphT()
    made.name = subgraph.name
    made.tensors = [_tensor(t, index, built) for index, t in enumerate(subgraph.tensors)]
    made.inputs, made.outputs = list(subgraph.inputs), list(subgraph.outputs)
    made.operators = [_operator(op, built) for op in subgraph.operators]
    return made


def _operator(op: Op, built: _Built) -> Any:
    made = schema.OperatorT()
    made.opcodeIndex = built.codes.setdefault(op.code, len(built.codes))
    made.inputs, made.outputs = list(op.inputs), list(op.outputs)
    kind = type(op.options).__name__[:-1]
    if hasattr(schema.BuiltinOptions2, kind):
        made.builtinOptions2Type, made.builtinOptions2 = getattr(schema.BuiltinOptions2, kind), op.options
    elif op.options is not None:
        made.builtinOptionsType = getattr(schema.BuiltinOptions, kind)
        made.builtinOptions = op.options
    if op.custom is not None:
        made.customOptions = list(op.custom)
    return made


def _tensor(t: T, index: int, built: _Built) -> Any:
    made = schema.TensorT()
    name, dtype = TYPES[t.type]
    made.name = t.name or f"t{index}"
    made.shape = list(t.shape)
    made.type = getattr(schema.TensorType, name)
    made.isVariable = t.variable
    if t.signature is not None:
        made.shapeSignature = list(t.signature)
    if t.data is not None:
        data = np.asarray(t.data, dtype).reshape(t.shape)
        if t.type == "i4":
            nibbles = np.resize(data.reshape(-1), data.size + data.size % 2).view(np.uint8) & 15
            data = nibbles[0::2] | nibbles[1::2] << 4
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(data.tobytes(), np.uint8)
        made.buffer = len(built.buffers)
        built.buffers.append(buffer)
    if t.scale is not None:
        quantization = schema.QuantizationParametersT()
        quantization.scale = np.atleast_1d(t.scale).astype(np.float32).tolist()
        quantization.zeroPoint = np.broadcast_to(t.zero, len(quantization.scale)).tolist()
        quantization.quantizedDimension = t.axis
        made.quantization = quantization
    return made
