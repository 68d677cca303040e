"""A client of QNN's C functions, the same for our library and for the vendor's: values in, result codes out.

The vendor's library may end its process, so a client of it lives in a child process (`child`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.backends.htp.c import HtpGraphOption
from isthmus.backends.htp.headers import DEVICE_CONFIG, GRAPH_CONFIG, HtpDeviceOption
from isthmus.cabi import objects, tables, types
from isthmus.graph.datatypes import DataType
from isthmus.graph.tensor import TensorType

PACKAGE = "qti.aisw"
UNKNOWN = 0xDEAD0
"""A handle that no library has given out."""


@dataclass(frozen=True)
class Encoding:
    """A quantization encoding: one scale and offset, or a pair per index along an axis; of fewer bits if `bits`."""

    scales: tuple[float, ...]
    offsets: tuple[int, ...] = (0,)
    axis: int | None = None
    bits: int = 0

    def write(self, params: types.QuantizeParams) -> list[Any]:
        """Write it into a tensor's description; return what must stay alive with that."""
        kinds = types.QuantizationEncoding
        offsets = self.offsets * len(self.scales) if len(self.offsets) == 1 else self.offsets
        params.encodingDefinition = types.Definition.DEFINED
        if self.axis is None and not self.bits:
            params.quantizationEncoding = kinds.SCALE_OFFSET
            params.scaleOffsetEncoding = types.ScaleOffset(self.scales[0], offsets[0])
            return []
        if self.axis is None:
            params.quantizationEncoding = kinds.BW_SCALE_OFFSET
            params.bwScaleOffsetEncoding = types.BwScaleOffset(self.bits, self.scales[0], offsets[0])
            return []
        count = len(self.scales)
        if not self.bits:
            pairs = (types.ScaleOffset * count)(*map(types.ScaleOffset, self.scales, offsets))
            params.quantizationEncoding = kinds.AXIS_SCALE_OFFSET
            params.axisScaleOffsetEncoding = types.AxisScaleOffset(self.axis, count, pairs)
            return [pairs]
        scales, shifts = (ctypes.c_float * count)(*self.scales), (ctypes.c_int32 * count)(*offsets)
        params.quantizationEncoding = kinds.BW_AXIS_SCALE_OFFSET
        params.bwAxisScaleOffsetEncoding = types.BwAxisScaleOffset(self.bits, self.axis, count, scales, shifts)
        return [scales, shifts]


@dataclass
class TensorValue:
    """A tensor as a value; `id` is the one that a library has given it."""

    name: str
    type: int
    dtype: int
    dims: tuple[int, ...]
    encoding: Encoding | None = None
    data: np.ndarray | None = None
    id: int = 0

    def in_c(self) -> tuple[types.Tensor, list[Any]]:
        """Return its C structure, and what must stay alive with it."""
        tensor = types.Tensor()
        tensor.version = 1
        fields = tensor.v1
        fields.id, fields.name, fields.type, fields.dataType = self.id, self.name.encode(), self.type, self.dtype
        fields.quantizeParams.encodingDefinition = types.UNDEFINED
        fields.quantizeParams.quantizationEncoding = types.UNDEFINED
        kept: list[Any] = [] if self.encoding is None else self.encoding.write(fields.quantizeParams)
        fields.rank = len(self.dims)
        if self.dims:  # a tensor of rank 0 has null
            dims = (c_uint32 * len(self.dims))(*self.dims)
            fields.dimensions = dims
            kept.append(dims)
        if self.data is not None:
            data = np.ascontiguousarray(self.data)
            fields.clientBuf.data, fields.clientBuf.dataSize = data.ctypes.data, data.nbytes
            kept.append(data)
        return tensor, kept


@dataclass(frozen=True)
class Param:
    """A parameter: a number, or an array, which is a tensor with an id once a graph has it."""

    name: str
    dtype: int
    value: Any
    id: int = 0

    def tensor(self, node: str) -> TensorValue | None:
        """Return the tensor of an array, named after its node; None for a number."""
        if not isinstance(self.value, (list, tuple, np.ndarray)):
            return None
        elements = np.ascontiguousarray(self.value, DataType(self.dtype).numpy)
        dims = elements.shape or (1,)
        return TensorValue(f"{node}.{self.name}", TensorType.STATIC, self.dtype, dims, data=elements, id=self.id)


@dataclass
class Node:
    """An operation on tensors."""

    op: str
    inputs: list[TensorValue]
    outputs: list[TensorValue]
    params: list[Param] = field(default_factory=list)
    name: str = "node"
    package: str = PACKAGE

    def in_c(self) -> tuple[types.OpConfig, list[Any]]:
        """Return its C structure, and what must stay alive with it."""
        kept: list[Any] = []

        def array(values: Sequence[TensorValue]) -> Any:
            made = (types.Tensor * max(1, len(values)))()
            for index, value in enumerate(values):
                made[index], alive = value.in_c()
                kept.append(alive)
            kept.append(made)
            return made

        params = (types.Param * max(1, len(self.params)))()
        for slot, param in zip(params, self.params, strict=False):
            slot.name = param.name.encode()
            value = param.tensor(self.name)
            if value is not None:
                slot.paramType = types.ParamType.TENSOR
                slot.tensorParam, alive = value.in_c()
                kept.append(alive)
            else:
                slot.paramType = types.ParamType.SCALAR
                slot.scalarParam.dataType = param.dtype
                setattr(slot.scalarParam, types.SCALAR_FIELDS[param.dtype], param.value)
        config = types.OpConfig()
        config.version = 1
        op = config.v1
        op.name, op.packageName, op.typeName = self.name.encode(), self.package.encode(), self.op.encode()
        op.numOfParams, op.params = len(self.params), params
        op.numOfInputs, op.inputTensors = len(self.inputs), array(self.inputs)
        op.numOfOutputs, op.outputTensors = len(self.outputs), array(self.outputs)
        return config, [params, *kept]


class Refused(Exception):
    """A call that had to succeed, and did not."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function} returned {code}")
        self.function, self.code = function, code


class Client:
    """The functions of one library, called as C calls them. Structures stay alive as long as the client."""

    def __init__(self, library: Path) -> None:
        self.table = tables.providers(ctypes.CDLL(str(library)))[0].table
        self.kept: list[Any] = []

    def keep(self, value: Any) -> Any:
        """Keep a value alive, and return it."""
        self.kept.append(value)
        return value

    def code(self, function: str, *arguments: Any) -> int:
        """Call a function and return its result code."""
        return int(tables.function(self.table, function)(*arguments))

    def must(self, function: str, *arguments: Any) -> None:
        """Call a function that has to succeed."""
        code = self.code(function, *arguments)
        if code:
            raise Refused(function, code)

    def make(self, function: str, *arguments: Any) -> int:
        """Call a function that writes a handle to its last argument, and return that handle."""
        out = c_void_p()
        self.must(function, *arguments, byref(out))
        return out.value or 0

    def configs(self, kind: Any, *settings: tuple[int, str, Any]) -> Any:
        """Return a null-terminated list of configs from options, fields of the union and values."""
        listed = self.keep((POINTER(kind) * (len(settings) + 1))())
        for index, (option, name, value) in enumerate(settings):
            config = self.keep(kind())
            config.option = option
            if name == "customConfig" and value is not None:
                value = ctypes.addressof(self.keep(value))
            if name:
                setattr(config, name, value)
            listed[index] = ctypes.pointer(config)
        return listed

    def tensor(self, value: TensorValue) -> types.Tensor:
        """Return a tensor's C structure, which stays alive."""
        tensor, kept = value.in_c()
        self.keep((tensor, kept))
        return tensor

    def operation(self, node: Node) -> types.OpConfig:
        """Return a node's C structure, which stays alive."""
        config, kept = node.in_c()
        self.keep((config, kept))
        return config


class Session(Client):
    """A client with a backend, a device for a chip, and a context.

    Parameters
    ----------
    chip
        The chip's number; none leaves the choice to the library.
    """

    def __init__(self, library: Path, chip: int | None = None) -> None:
        super().__init__(library)
        self.chip = chip

    @cached_property
    def backend(self) -> int:
        """The backend, created at the first use."""
        return self.make("backendCreate", None, None)

    @cached_property
    def device(self) -> int:
        """The device, created at the first use."""
        settings = None
        if self.chip is not None:
            config = DEVICE_CONFIG()
            config.option, config.socModel = HtpDeviceOption.SOC, self.chip
            settings = self.configs(objects.DeviceConfig, (objects.DeviceOption.CUSTOM, "customConfig", config))
        return self.make("deviceCreate", None, settings)

    @cached_property
    def context(self) -> int:
        """The context, created at the first use."""
        return self.make("contextCreate", self.backend, self.device, None)

    def create(self, graph: int, value: TensorValue) -> int:
        """Create a tensor in a graph, note its id, and return the result code."""
        tensor = self.tensor(value)
        code = self.code("tensorCreateGraphTensor", graph, byref(tensor))
        value.id = tensor.v1.id
        return code

    def add(self, graph: int, node: Node) -> int:
        """Add a node and return the result code."""
        return self.code("graphAddNode", graph, self.operation(node))

    def graph(self, name: str = "graph") -> int:
        """Create an empty graph; one for a chip may use all of the chip's VTCM."""
        settings = None
        if self.chip is not None:
            vtcm, level, precision = GRAPH_CONFIG(), GRAPH_CONFIG(), GRAPH_CONFIG()
            vtcm.option, vtcm.vtcmSizeInMB = HtpGraphOption.VTCM_SIZE_IN_MB, 0
            level.option, level.optimizationOption.type, level.optimizationOption.floatValue = 1, 3, 2.0
            precision.option, precision.precision = HtpGraphOption.PRECISION, 1
            customs = [(objects.GraphOption.CUSTOM, "customConfig", each) for each in (vtcm, level, precision)]
            settings = self.configs(objects.GraphConfig, *customs)
        return self.make("graphCreate", self.context, name.encode(), settings)

    def compose(self, nodes: Sequence[Node], name: str = "graph") -> int:
        """Create a graph with the tensors of the nodes, and the nodes; it is not finalized."""
        graph = self.graph(name)
        created: set[str] = set()
        for node in nodes:
            for value in (*node.inputs, *node.outputs):
                if value.type != TensorType.NULL and value.name not in created:
                    if code := self.create(graph, value):
                        raise Refused("tensorCreateGraphTensor", code)
                    created.add(value.name)
            params = []
            for param in node.params:
                value = param.tensor(node.name)
                if value is not None and (code := self.create(graph, value)):
                    raise Refused("tensorCreateGraphTensor", code)
                params.append(param if value is None else replace(param, id=value.id))
            if code := self.add(graph, replace(node, params=params)):
                raise Refused("graphAddNode", code)
        return graph

    def finalized(self, nodes: Sequence[Node], name: str = "graph") -> int:
        """Compose and finalize a graph."""
        graph = self.compose(nodes, name)
        self.must("graphFinalize", graph, None, None)
        return graph

    def arrays(self, values: Sequence[TensorValue], arrays: Sequence[np.ndarray]) -> Any:
        """Return the C array of tensors in this memory, for an execution."""
        made = self.keep((types.Tensor * max(1, len(values)))())
        for index, (value, array) in enumerate(zip(values, arrays, strict=True)):
            made[index] = self.tensor(value)
            made[index].v1.clientBuf.data, made[index].v1.clientBuf.dataSize = array.ctypes.data, array.nbytes
            self.keep(array)
        return made

    def execute(
        self, graph: int, inputs: Sequence[tuple[TensorValue, np.ndarray]], outputs: Sequence[TensorValue]
    ) -> list[np.ndarray]:
        """Execute a graph on arrays, and return its outputs."""
        results = [np.zeros(value.dims, DataType(value.dtype).numpy) for value in outputs]
        given = self.arrays([value for value, _ in inputs], [np.ascontiguousarray(array) for _, array in inputs])
        taken = self.arrays(outputs, results)
        self.must("graphExecute", graph, given, len(inputs), taken, len(outputs), None, None)
        return results

    def binary(self) -> bytes:
        """Return the context's binary."""
        size, written = c_uint64(), c_uint64()
        self.must("contextGetBinarySize", self.context, byref(size))
        room = ctypes.create_string_buffer(size.value)
        self.must("contextGetBinary", self.context, room, size.value, byref(written))
        return room.raw[: written.value]
