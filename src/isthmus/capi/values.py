"""Conversion of a client's tensors, quantizations, parameters and operations to those of the graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from isthmus import graph
from isthmus.cabi.client import pointer, read, read_array, text
from isthmus.cabi.tensors import MAX_RANK, check_dense, tensor_fields
from isthmus.cabi.types import (
    DATATYPE_SFIXED_POINT_4,
    DATATYPE_UFIXED_POINT_4,
    SCALAR_FIELDS,
    OpConfig,
    Param,
    ParamType,
    QuantizationEncoding,
    Tensor,
    TensorKind,
    TensorMemType,
    TensorV1,
)
from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.encodings import LPBQ_BITS, read_encoding
from isthmus.frontends.composed.recurrent import RECURRENT, is_batch_first
from isthmus.graph import DataType, Quantization, TensorType
from isthmus.graph.neutral import without_neutral
from isthmus.graph.nibbles import low_bits, unpack
from isthmus.graph.operation import Operation
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.package import number, qualify
from isthmus.qnn.batches import multiple_of

MAX_OPERANDS = 1 << 14
MAX_BYTES = 1 << 62
"""Maximum size of a tensor in bytes, counting dimensions of 0 as 1; larger sizes do not fit C's types."""
# The data types that mean that the client has not declared one.
_UNDECLARED = (0, int(DataType.UNDEFINED))
PACKAGES = frozenset(operation.package for operation in OPERATIONS.values())
"""The op packages that every backend has: QNN's, and this project's own."""
# The data types of parameters by their kind; a parameter of another kind may have any.
_PARAM_TYPES = {
    "u32": DataType.UINT_32, "i32": DataType.INT_32, "f32": DataType.FLOAT_32, "bool": DataType.BOOL_8,
}  # fmt: skip
_ENCODINGS = (
    QuantizationEncoding.SCALE_OFFSET, QuantizationEncoding.AXIS_SCALE_OFFSET, QuantizationEncoding.BW_SCALE_OFFSET,
    QuantizationEncoding.BW_AXIS_SCALE_OFFSET, QuantizationEncoding.BLOCK, QuantizationEncoding.BLOCKWISE_EXPANSION,
)  # fmt: skip
# Types that store two elements per byte, and the types they are unpacked to.
_PACKED = {
    DATATYPE_SFIXED_POINT_4: DataType.SFIXED_POINT_8,
    DATATYPE_UFIXED_POINT_4: DataType.UFIXED_POINT_8,
}


@dataclass(frozen=True)
class ClientTensorInfo:
    """A tensor as a client describes it.

    - `bits`: How many bits of each element are significant, if fewer than the type has.
    - `packed`: Whether the client's contents have two 4-bit elements per byte; `dtype` is then the type they are
      unpacked to.
    - `data_format`: QNN_TENSOR_DATA_FORMAT_*; constants are dense.
    """

    id: int
    name: str
    type: TensorType
    dtype: DataType
    dims: tuple[int, ...]
    quantization: Quantization | None
    mem_type: TensorMemType
    data: int
    nbytes: int
    bits: int = 0
    packed: bool = False
    data_format: int = 0

    @property
    def what(self) -> str:
        """The tensor, for messages."""
        return f"tensor '{self.name}'"

    @property
    def needed_bytes(self) -> int:
        """How many bytes its elements take."""
        count = math.prod(self.dims)
        return -(-count // 2) if self.packed else count * self.dtype.itemsize

    def contents(self) -> np.ndarray | None:
        """Copy its contents, if it has any."""
        if not self.data:
            return None
        if self.nbytes < self.needed_bytes:
            rule = f"its data has {self.nbytes} bytes, {self.needed_bytes} are needed"
            raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, self.what, rule)
        if self.packed:
            stored = read_array(self.data, np.uint8, (self.needed_bytes,))
            return unpack(stored, math.prod(self.dims), self.dtype.numpy).reshape(self.dims)
        stored = read_array(self.data, self.dtype.numpy, self.dims)
        return low_bits(stored, self.bits) if self.bits else stored


def tensor_at(address: int, index: int = 0) -> ClientTensorInfo:
    """Return a client's tensor, or one of an array."""
    return describe(read(address, Tensor, index))


def describe(tensor: Tensor) -> ClientTensorInfo:
    """Return a tensor's description, checked as far as possible without its graph."""
    fields = tensor_fields(tensor)
    what = f"tensor '{fields.name}'"

    def refuse(rule: str, code: Code = Code.TENSOR_INVALID_TENSOR_PARAM) -> QnnError:
        return QnnError(code, what, rule)

    if fields.type == TensorKind.NULL:
        return ClientTensorInfo(
            fields.id, fields.name, TensorType.NULL, DataType.UNDEFINED, (), None, TensorMemType.RAW, 0, 0
        )
    if fields.type > TensorType.NULL:
        kinds = {int(kind): kind.name for kind in TensorKind}
        raise refuse(
            f"its type {kinds.get(fields.type, fields.type)} is not supported", Code.TENSOR_UNSUPPORTED_TENSOR_PARAM
        )
    if fields.type == TensorType.STATIC:
        check_dense(what, fields.data_format)
    packed = fields.dtype in _PACKED
    try:
        dtype = _PACKED[fields.dtype] if packed else DataType(fields.dtype)
    except ValueError:
        raise refuse(f"its data type {fields.dtype:#x} is not known") from None
    if math.prod(max(dim, 1) for dim in fields.dims) * dtype.itemsize > MAX_BYTES:
        raise refuse(f"its dimensions {list(fields.dims)} are those of no memory")
    encoding = fields.encoding
    if encoding is not None and encoding.kind not in _ENCODINGS:
        kinds = {int(kind): kind.name for kind in QuantizationEncoding}
        rule = f"its quantization encoding {kinds.get(encoding.kind, encoding.kind)} is not supported"
        raise refuse(rule, Code.TENSOR_UNSUPPORTED_TENSOR_PARAM)
    if encoding is not None and len(encoding.blocks) and fields.type != TensorType.STATIC:
        raise refuse("only static tensors have a quantization in blocks", Code.TENSOR_UNSUPPORTED_TENSOR_PARAM)
    quantization, bits = None, 0
    # Ignore an encoding that a client leaves on a type that is not fixed point.
    if encoding is not None and dtype.is_fixed_point:
        bits = LPBQ_BITS if encoding.kind == QuantizationEncoding.BLOCKWISE_EXPANSION else encoding.bits
        # Only constants are stored in fewer bits than their type has.
        narrow = fields.type == TensorType.STATIC and (packed or 0 < bits < 8 * dtype.itemsize)
        quantization = read_encoding(encoding, what, fields.dims, dtype, (4 if packed else bits) if narrow else 0)
    if fields.mem_type == TensorMemType.RETRIEVE_RAW:
        raise refuse("callbacks for its data are not supported", Code.TENSOR_UNSUPPORTED_TENSOR_PARAM)
    if fields.mem_type not in list(TensorMemType):
        raise refuse(f"its memory type {fields.mem_type} is neither RAW nor MEMHANDLE")
    return ClientTensorInfo(
        fields.id, fields.name, TensorType(fields.type), dtype, fields.dims, quantization,
        TensorMemType(fields.mem_type), fields.data, fields.nbytes, bits, packed, fields.data_format,
    )  # fmt: skip


@dataclass(frozen=True)
class ClientNode:
    """An operation as a client describes it.

    - `params`: Parameters by name, without those that change nothing.
    - `batch_first`: Whether it is a recurrent operation whose sequence has the batch first; in this project, time is
      first.
    - `param_types`: The data types of all parameters by name, as the client declares them.
    """

    name: str
    package: str
    op: str
    params: dict[str, Any]
    inputs: list[ClientTensorInfo]
    outputs: list[ClientTensorInfo]
    batch_first: bool = False
    param_types: dict[str, int] = field(default_factory=dict)
    param_infos: dict[str, ClientTensorInfo] = field(default_factory=dict)

    @property
    def what(self) -> str:
        """The node, for messages."""
        return f"node '{self.name}' ({self.op})"

    @property
    def is_packaged(self) -> bool:
        """Whether its operation is one of a client's package, if there is one."""
        return self.package not in PACKAGES

    @property
    def key(self) -> str:
        """The operation's name in a graph."""
        return qualify(self.package, self.op) if self.is_packaged else self.op

    def check_package(self, operations: Mapping[str, Operation], unknown: Code, missing: Code) -> None:
        """Refuse a package that is not registered, and an operation that is not in its package."""
        operation = operations.get(self.key)
        if operation is not None and operation.package == self.package:
            return
        packages = {each.package for each in operations.values()}
        if self.package not in packages:
            hint = f"Registered are {' and '.join(sorted(packages))}."
            raise QnnError(unknown, self.what, f"there is no op package '{self.package}'", hint)
        raise QnnError(missing, self.what, f"op package '{self.package}' has no such operation")

    def graph_params(self) -> dict[str, Any]:
        """Return the parameters as a graph takes them; those of a client's package keep the client's types."""
        if not self.is_packaged:
            return self.params
        return {name: self._typed_value(name, value) for name, value in self.params.items()}

    def _typed_value(self, name: str, value: Any) -> Any:
        """Return a parameter as a text, a number of its type or a constant."""
        info = self.param_infos.get(name)
        if info is None:
            return value if isinstance(value, str) else number(value, DataType(self.param_types[name]))
        return graph.Tensor(info.name or name, TensorType.STATIC, info.dtype, info.dims, info.quantization, value)

    def check_param_types(self, code: Code) -> None:
        """Refuse a parameter whose data type is not the one that QNN defines, even if its value fits."""
        for param in () if self.is_packaged else OPERATIONS[self.op].params:
            defined = _PARAM_TYPES.get(param.kind.removesuffix("[]"))
            if param.is_own or defined is None or param.name not in self.param_types:
                continue
            if self.param_types[param.name] != defined:
                declared = self.param_types[param.name]
                rule = f"parameter '{param.name}' has the data type {declared:#x}, and must be {defined.name}"
                raise QnnError(code, self.what, rule)

    def check_floats(self, code: Code) -> None:
        """Refuse BFLOAT_16 mixed with other floats, except in a Cast, and any BFLOAT_16 in a Convert."""
        floats = {info.dtype for info in (*self.inputs, *self.outputs) if info.dtype.is_float}
        if self.is_packaged:
            return
        if DataType.BFLOAT_16 in floats and self.op != "Cast" and (len(floats) > 1 or self.op == "Convert"):
            raise QnnError(code, self.what, "BFLOAT_16 becomes another type of floats by a Cast only")


def stated_dims(fields: TensorV1) -> tuple[int, ...] | None:
    """Return the dimensions in an execution's description of a tensor; None if it gives none."""
    where = pointer(fields, "dimensions")
    if not fields.rank or not where:
        return None
    return tuple(read_array(where, np.uint32, (min(fields.rank, MAX_RANK + 1),)).tolist())


def differences(fields: TensorV1, dtype: DataType, dims: tuple[int, ...], any_batch: bool = False) -> Iterator[str]:
    """Yield how an execution's description of a tensor, as far as it is given, differs from the created tensor.

    - `any_batch`: Whether the first dimension may be a multiple of the created one.
    """
    if fields.dataType not in (*_UNDECLARED, int(dtype)):
        yield f"is {_type_name(fields.dataType)}, and was created as {dtype.name}"
    described = stated_dims(fields)
    if described is None or described == dims:
        return
    difference = f"has the dimensions {[*described]}, and was created with {[*dims]}"
    if not any_batch or len(described) != len(dims):
        yield difference
    elif not multiple_of(described, dims):
        # In the words of the vendor's library.
        axis = next((axis for axis in range(1, len(dims)) if described[axis] != dims[axis]), 0)
        if axis:
            yield f"{difference}: Tensor ID {fields.id} dim {axis} mismatch. {described[axis]} != {dims[axis]}"
        else:
            yield f"{difference}: Tensor ID {fields.id} batch (dim[0]) incompatible. ({described[0]}, {dims[0]})"


def node_at(address: int, static: Callable[[int], np.ndarray | None] = lambda number: None) -> ClientNode:
    """Return a client's operation.

    - `static`: Returns the contents of a static tensor by id, for parameters without contents of their own.
    """
    config = read(address, OpConfig)
    op = config.v1
    name, kind = text(pointer(op, "name")) or "", text(pointer(op, "typeName")) or ""
    what = f"node '{name}' ({kind})"
    if config.version != 1:
        raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, what, f"the version {config.version} of its config is not 1")
    counts = {"parameters": op.numOfParams, "inputs": op.numOfInputs, "outputs": op.numOfOutputs}
    for noun, count in counts.items():
        if count > MAX_OPERANDS:
            raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, what, f"{count} {noun} are more than any operation has")
    params: dict[str, Any] = {}
    param_types: dict[str, int] = {}
    param_infos: dict[str, ClientTensorInfo] = {}
    for index in range(op.numOfParams):
        param = read(pointer(op, "params"), Param, index)
        param_name = text(pointer(param, "name")) or ""
        params[param_name] = _value(what, param, static)
        is_scalar = param.paramType == ParamType.SCALAR
        param_types[param_name] = param.scalarParam.dataType if is_scalar else param.tensorParam.v1.dataType
        if not is_scalar:
            param_infos[param_name] = describe(param.tensorParam)
    inputs = [tensor_at(pointer(op, "inputTensors"), index) for index in range(op.numOfInputs)]
    outputs = [tensor_at(pointer(op, "outputTensors"), index) for index in range(op.numOfOutputs)]
    package = text(pointer(op, "packageName")) or ""
    if package not in PACKAGES:
        return ClientNode(
            name, package, kind, params, inputs, outputs, param_types=param_types, param_infos=param_infos
        )
    dims = inputs[0].dims if inputs else ()
    batch_first = is_batch_first(kind, params, dims)
    if kind in RECURRENT:
        # Drop time_major, which `batch_first` states, and hidden_size, which follows from the weights.
        params = {key: value for key, value in params.items() if key not in RECURRENT[kind]}
    params = without_neutral(kind, params, dims)
    return ClientNode(name, package, kind, params, inputs, outputs, batch_first, param_types)


def _type_name(number: int) -> str:
    """Return the name of a data type in C, or its number if no type has it."""
    return next((each.name for each in DataType if int(each) == number), f"{number:#x}")


def _value(what: str, param: Param, static: Callable[[int], np.ndarray | None]) -> Any:
    """Return the value of a node's parameter: a number, a text or an array. `static` is as for `node_at`."""
    name = text(pointer(param, "name")) or ""
    if param.paramType == ParamType.SCALAR:
        field = SCALAR_FIELDS.get(param.scalarParam.dataType)
        if field is None:
            dtype = _type_name(param.scalarParam.dataType)
            rule = f"the data type {dtype} of parameter '{name}' is not one of a number"
            raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, what, rule)
        if field == "stringValue":
            return text(pointer(param.scalarParam, field))
        return getattr(param.scalarParam, field)
    if param.paramType != ParamType.TENSOR:
        rule = f"parameter '{name}' is neither a scalar nor a tensor"
        raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, what, rule)
    tensor = describe(param.tensorParam)
    contents = tensor.contents()
    if contents is None:
        contents = static(tensor.id)
    if contents is None:
        raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, what, f"parameter '{name}' has no data")
    return contents
