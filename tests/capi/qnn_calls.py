"""A client of QNN in Python: the functions of a library by name, and structures that stay alive while it needs them."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.cabi import tables as interface
from isthmus.cabi import types
from isthmus.graph import DataType, TensorType


class Client:
    """A library's functions, called as C calls them."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self.provider: Any = (interface.system_providers if "System" in library.name else interface.providers)(
            self.library
        )[0]
        self._kept: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return interface.function(self.provider.table, name)

    def keep(self, thing: Any) -> Any:
        """Keep something alive as long as the client."""
        self._kept.append(thing)
        return thing

    def make(self, name: str, *arguments: Any) -> int:
        """Call a function whose last argument is where to put a handle, and answer that."""
        out = ctypes.c_void_p()
        error = getattr(self, name)(*arguments, ctypes.byref(out))
        assert error == 0, f"{name} answers {error}: {self.reason(error)}"
        assert out.value
        return out.value

    def do(self, name: str, *arguments: Any) -> None:
        """Call a function that must succeed."""
        error = getattr(self, name)(*arguments)
        assert error == 0, f"{name} answers {error}: {self.reason(error)}"

    def reason(self, error: int) -> str:
        """Return why an error was answered."""
        text = ctypes.c_char_p()
        if self.errorGetVerboseMessage(error, ctypes.byref(text)):
            return ""
        message = (text.value or b"").decode()
        # The message belongs to the client until this call.
        self.errorFreeVerboseMessage(text)
        return message

    def tensor(
        self,
        name: str,
        kind: TensorType,
        dtype: int,
        dims: tuple[int, ...],
        quantization: types.QuantizeParams | None = None,
        data: np.ndarray | None = None,
        version: int = 1,
    ) -> types.Tensor:
        """A description of a tensor."""
        tensor = self.keep(types.Tensor())
        tensor.version = version
        fields = tensor.v1
        fields.name, fields.type, fields.dataType, fields.rank = name.encode(), int(kind), int(dtype), len(dims)
        fields.dimensions = self.keep((ctypes.c_uint32 * len(dims))(*dims)) if dims else None
        fields.quantizeParams.encodingDefinition = fields.quantizeParams.quantizationEncoding = types.UNDEFINED
        if quantization is not None:
            fields.quantizeParams = quantization
        if data is not None:
            held = self.keep(np.ascontiguousarray(data))
            fields.clientBuf.data, fields.clientBuf.dataSize = held.ctypes.data, held.nbytes
        return tensor

    def quantize(self, scale: float, offset: int) -> types.QuantizeParams:
        """One scale for a tensor."""
        params = types.QuantizeParams(types.Definition.DEFINED, types.QuantizationEncoding.SCALE_OFFSET)
        params.scaleOffsetEncoding = types.ScaleOffset(scale, offset)
        return params

    def quantize_axis(self, axis: int, scales: list[float]) -> types.QuantizeParams:
        """A scale for each index of an axis."""
        pairs = self.keep((types.ScaleOffset * len(scales))(*[types.ScaleOffset(s, 0) for s in scales]))
        params = types.QuantizeParams(types.Definition.DEFINED, types.QuantizationEncoding.AXIS_SCALE_OFFSET)
        params.axisScaleOffsetEncoding = types.AxisScaleOffset(axis, len(scales), pairs)
        return params

    def quantize_bits(self, bits: int, axis: int | None, scales: list[float]) -> types.QuantizeParams:
        """Elements of so many bits."""
        params = types.QuantizeParams(types.Definition.DEFINED)
        if axis is None:
            params.quantizationEncoding = types.QuantizationEncoding.BW_SCALE_OFFSET
            params.bwScaleOffsetEncoding = types.BwScaleOffset(bits, scales[0], 0)
        else:
            params.quantizationEncoding = types.QuantizationEncoding.BW_AXIS_SCALE_OFFSET
            held = self.keep((ctypes.c_float * len(scales))(*scales))
            params.bwAxisScaleOffsetEncoding = types.BwAxisScaleOffset(bits, axis, len(scales), held, None)
        return params

    def quantize_blocks(self, sizes: list[int], scales: list[float], offset: int = 0) -> types.QuantizeParams:
        """A scale for each block of elements."""
        pairs = self.keep((types.ScaleOffset * len(scales))(*[types.ScaleOffset(s, offset) for s in scales]))
        params = types.QuantizeParams(types.Definition.DEFINED, types.QuantizationEncoding.BLOCK)
        params.blockEncoding = types.BlockEncoding(self.keep((ctypes.c_uint32 * len(sizes))(*sizes)), pairs)
        return params

    def quantize_expansion(self, axis: int, scales: list[float], factors: np.ndarray) -> types.QuantizeParams:
        """A scale for each output channel, and a factor for each of its blocks: [channels, blocks]."""
        pairs = self.keep((types.ScaleOffset * len(scales))(*[types.ScaleOffset(s, 0) for s in scales]))
        expansion = self.keep(types.BlockwiseExpansion(axis, pairs, factors.shape[1], 4, 0))
        expansion.blocksScale8 = self.keep((ctypes.c_uint8 * factors.size)(*factors.reshape(-1).tolist()))
        params = types.QuantizeParams(types.Definition.DEFINED, types.QuantizationEncoding.BLOCKWISE_EXPANSION)
        params.blockwiseExpansion = ctypes.pointer(expansion)
        return params

    def operation(
        self,
        name: str,
        op: str,
        inputs: list[types.Tensor],
        outputs: list[types.Tensor],
        scalars: dict[str, tuple[int, Any]] | None = None,
        tensors: dict[str, np.ndarray] | None = None,
    ) -> types.OpConfig:
        """A description of a node."""
        params = []
        for key, (dtype, value) in (scalars or {}).items():
            param = types.Param(types.ParamType.SCALAR, key.encode())
            param.scalarParam.dataType = dtype
            setattr(param.scalarParam, types.SCALAR_FIELDS[dtype], value)
            params.append(param)
        for key, array in (tensors or {}).items():
            param = types.Param(types.ParamType.TENSOR, key.encode())
            param.tensorParam = self.tensor(
                f"{name}.{key}", TensorType.STATIC, DataType.of(array.dtype), array.shape, data=array
            )
            params.append(param)
        config = self.keep(types.OpConfig())
        config.version = 1
        v1 = config.v1
        v1.name, v1.packageName, v1.typeName = name.encode(), b"qti.aisw", op.encode()
        v1.numOfParams, v1.params = len(params), self.keep((types.Param * len(params))(*params))
        v1.numOfInputs, v1.inputTensors = len(inputs), self.keep((types.Tensor * len(inputs))(*inputs))
        v1.numOfOutputs, v1.outputTensors = len(outputs), self.keep((types.Tensor * len(outputs))(*outputs))
        return config

    def binary(self, context: int) -> Any:
        """Return a context as a binary, in memory of the client's."""
        size = ctypes.c_uint64()
        self.do("contextGetBinarySize", context, ctypes.byref(size))
        content = ctypes.create_string_buffer(size.value)
        self.do("contextGetBinary", context, content, len(content), ctypes.byref(size))
        return content

    def execute(self, graph: int, inputs: list[types.Tensor], outputs: list[types.Tensor], *more: Any) -> int:
        """Execute with what the tensors say; the error."""
        input_array = (types.Tensor * len(inputs))(*inputs)
        output_array = (types.Tensor * len(outputs))(*outputs)
        profile, signal = (*more, None, None)[:2]
        return int(self.graphExecute(graph, input_array, len(inputs), output_array, len(outputs), profile, signal))


def at(tensor: types.Tensor, array: np.ndarray) -> types.Tensor:
    """The tensor with this memory."""
    copy = types.Tensor.from_buffer_copy(tensor)
    copy.v1.memType = types.TensorMemType.RAW
    copy.v1.clientBuf.data, copy.v1.clientBuf.dataSize = array.ctypes.data, array.nbytes
    return copy


def in_handle(tensor: types.Tensor, handle: int) -> types.Tensor:
    """The tensor in registered memory."""
    copy = types.Tensor.from_buffer_copy(tensor)
    copy.v1.memType = types.TensorMemType.MEMHANDLE
    copy.v1.memHandle = handle
    return copy


def opened(client: Client) -> tuple[int, int]:
    """A back end and a context."""
    backend = client.make("backendCreate", None, None)
    return backend, client.make("contextCreate", backend, None, None)


def doubling(client: Client, context: int, name: str = "twice") -> tuple[int, types.Tensor, types.Tensor]:
    """A graph y = x + x, finalized, with its tensors."""
    graph = client.make("graphCreate", context, name.encode(), None)
    x = client.tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 8))
    y = client.tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 8))
    for tensor in (x, y):
        client.do("tensorCreateGraphTensor", graph, ctypes.byref(tensor))
    client.do("graphAddNode", graph, client.operation("add", "ElementWiseAdd", [x, x], [y]))
    client.do("graphFinalize", graph, None, None)
    return graph, x, y
