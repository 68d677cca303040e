"""The program in C that a Saver recording is: each call of the client as a function, and the bytes of its tensors."""

from __future__ import annotations

import hashlib
import math
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from isthmus.cabi.types import SCALAR_FIELDS, QuantizationEncoding
from isthmus.frontends.composed.entries import ComposedTensor, EncodingEntry, NodeEntry, Scalar
from isthmus.system.writing import rewrite

# The program around the calls, with names in capitals for what a recording adds.
_PROGRAM = Path(__file__).with_suffix(".c").read_text()


class SaverProgram:
    """A recording in the making, which threads may share.

    - `path`, `data_path`: The files of the program and of the bytes of tensors; the latter is created at once.
    """

    def __init__(self, path: Path, data_path: Path, made_by: str) -> None:
        self._path, self._data_name, self._made_by = path, data_path.name, made_by
        self._lock = threading.Lock()
        self._data: BinaryIO = data_path.open("wb")
        self._calls: list[str] = []
        # Where bytes are that were stored before, by their hash: clients give the data of parameters twice.
        self._places: dict[bytes, int] = {}

    def add(self, *lines: str, variable: str = "", now: bool = False) -> None:
        """Add a call of the client.

        - `variable`: The declaration of the variable that it sets, if there is one.
        - `now`: Write the program with it; if that fails, it is not added.
        """
        declaration = f"static {variable};\n" if variable else ""
        body = "".join(f"  {line}\n" for line in lines)
        with self._lock:
            call = f"{declaration}static void call_{len(self._calls)}(void) {{\n{body}}}\n"
            if now:
                self._write([*self._calls, call])
            self._calls.append(call)

    def write(self) -> None:
        """Write the program with the calls so far, in place of an earlier one."""
        with self._lock:
            self._write(self._calls)

    def _write(self, calls: Sequence[str]) -> None:
        """Write the program with these calls; the caller holds the lock."""
        names = ", ".join(f"call_{number}" for number in range(len(calls))) or "NULL"
        added = {"MADE_BY": self._made_by, "RECORDED_CALLS\n": "".join(calls), "CALL_NAMES": names}
        added["DATA_FILE"] = text(self._data_name)
        program = re.sub("|".join(added), lambda name: added[name[0]], _PROGRAM)
        # The bytes come first: a program does not refer to bytes that are not there.
        self._data.flush()
        with rewrite(self._path) as stream:
            stream.write(program.encode())

    def close(self) -> None:
        """Write the program, and close its files."""
        try:
            self.write()
        finally:
            self._data.close()

    def store(self, data: bytes | memoryview) -> str:
        """Store bytes of a tensor; return the expression that reads them."""
        key = hashlib.sha256(data).digest()
        with self._lock:
            if key not in self._places:
                place = self._data.tell()
                self._data.write(data)
                self._places[key] = place
        return f"stored({self._places[key]}, {len(data)})"

    def tensor(self, variable: str, tensor: ComposedTensor) -> list[str]:
        """Return the statements that describe a tensor in a variable."""
        at = f"{variable}.v1"
        lines = [
            f"{variable} = (Qnn_Tensor_t)QNN_TENSOR_INIT;",
            f"{variable}.version = QNN_TENSOR_VERSION_1;",
            f"{at}.name = {text(tensor.name)};",
            f"{at}.type = (Qnn_TensorType_t){tensor.type};",
            f"{at}.dataType = (Qnn_DataType_t){tensor.dtype:#06x};",
            f"{at}.rank = {len(tensor.dims)};",
            f"{at}.memType = (Qnn_TensorMemType_t){tensor.mem_type};",
        ]
        if tensor.dims:
            name = _local(variable, "dims")
            lines = [_array("uint32_t", name, tensor.dims), *lines, f"{at}.dimensions = {name};"]
        if tensor.encoding is not None:
            lines += _encoding(variable, tensor.encoding)
        if tensor.data is not None:
            lines.append(f"{at}.clientBuf.data = {self.store(tensor.data)};")
            lines.append(f"{at}.clientBuf.dataSize = {len(tensor.data)};")
        return lines

    def node(self, node: NodeEntry, variables: Mapping[str, str]) -> list[str]:
        """Return the statements that describe a node in the variable ``node``."""
        lines = ["Qnn_OpConfig_t node = QNN_OPCONFIG_INIT;", "node.version = QNN_OPCONFIG_VERSION_1;"]
        for side, names in (("input", node.inputs), ("output", node.outputs)):
            if names:
                lines.append(f"Qnn_Tensor_t {side}s[{len(names)}];")
            for index, name in enumerate(names):
                if name:
                    lines.append(f"{side}s[{index}] = {variables[name]};")
                else:
                    lines.append(f"{side}s[{index}] = (Qnn_Tensor_t)QNN_TENSOR_INIT;")
                    lines.append(f"{side}s[{index}].version = QNN_TENSOR_VERSION_1;")
                    lines.append(f"{side}s[{index}].v1.type = QNN_TENSOR_TYPE_NULL;")
        if node.params:
            lines.append(f"Qnn_Param_t params[{len(node.params)}];")
        for index, (name, value) in enumerate(node.params.items()):
            lines.append(f"params[{index}] = (Qnn_Param_t)QNN_PARAM_INIT;")
            lines.append(f"params[{index}].name = {text(name)};")
            lines += self._param(f"params[{index}]", value, node.kinds.get(name, 0), variables)
        for field, value in (("name", node.name), ("packageName", node.package), ("typeName", node.type)):
            lines.append(f"node.v1.{field} = {text(value)};")
        for field, count, array in (
            ("Params", len(node.params), "params"), ("Inputs", len(node.inputs), "inputs"),
            ("Outputs", len(node.outputs), "outputs"),
        ):  # fmt: skip
            if count:
                member = "params" if array == "params" else f"{array[:-1]}Tensors"
                lines += [f"node.v1.numOf{field} = {count};", f"node.v1.{member} = {array};"]
        return lines

    def _param(
        self, variable: str, value: Scalar | ComposedTensor, dtype: int, variables: Mapping[str, str]
    ) -> list[str]:
        """Return the statements that set a parameter; `dtype` is the data type of a scalar."""
        if isinstance(value, ComposedTensor):
            lines = [f"{variable}.paramType = QNN_PARAMTYPE_TENSOR;", *self.tensor(f"{variable}.tensorParam", value)]
            if value.name in variables:
                lines.append(f"{variable}.tensorParam.v1.id = {variables[value.name]}.v1.id;")
            return lines
        return [
            f"{variable}.paramType = QNN_PARAMTYPE_SCALAR;",
            f"{variable}.scalarParam.dataType = (Qnn_DataType_t){dtype:#06x};",
            f"{variable}.scalarParam.{SCALAR_FIELDS[dtype]} = {_literal(value)};",
        ]


def text(value: str) -> str:
    """Return a text as C writes it.

    >>> print(text('a "name"??'))
    "a \\042name\\042\\077\\077"
    """
    raw = value.encode(errors="surrogateescape")
    return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in raw) + '"'


def _literal(value: Scalar) -> str:
    """Return a scalar as C writes it; floats exactly."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        if math.isfinite(value):
            return value.hex()
        return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
    if isinstance(value, str):
        return text(value)
    return f"{value}{'ULL' if value >= 1 << 63 else 'LL' if abs(value) >= 1 << 31 else ''}"


def _local(variable: str, name: str) -> str:
    """Return the name of an array that belongs to a variable."""
    return "".join(each if each.isalnum() else "_" for each in variable) + f"_{name}"


def _array(kind: str, name: str, values: Iterable[Any]) -> str:
    """Return the definition of a static array of numbers."""
    return f"static {kind} {name}[] = {{{', '.join(str(value) for value in values)}}};"


def _pairs(name: str, encoding: EncodingEntry) -> str:
    """Return the definition of an array of scales and offsets."""
    pairs = zip(encoding.scales.tolist(), encoding.offsets.tolist(), strict=True)
    return _array("Qnn_ScaleOffset_t", name, (f"{{{_literal(scale)}, {offset}}}" for scale, offset in pairs))


def _encoding(variable: str, encoding: EncodingEntry) -> Sequence[str]:
    """Return the statements that set the quantization of a tensor."""
    at, kind = f"{variable}.v1.quantizeParams", encoding.kind
    lines = [
        f"{at}.encodingDefinition = QNN_DEFINITION_DEFINED;",
        f"{at}.quantizationEncoding = (Qnn_QuantizationEncoding_t){kind};",
    ]
    scales, offsets, pairs = (_local(variable, name) for name in ("scales", "offsets", "pairs"))
    scale = _literal(float(encoding.scales[0])) if len(encoding.scales) else "0"
    offset = int(encoding.offsets[0]) if len(encoding.offsets) else 0
    count, axis = len(encoding.scales), encoding.axis or 0
    if kind == QuantizationEncoding.SCALE_OFFSET:
        lines += [f"{at}.scaleOffsetEncoding = (Qnn_ScaleOffset_t){{{scale}, {offset}}};"]
    elif kind == QuantizationEncoding.BW_SCALE_OFFSET:
        lines += [f"{at}.bwScaleOffsetEncoding = (Qnn_BwScaleOffset_t){{{encoding.bits}, {scale}, {offset}}};"]
    elif kind == QuantizationEncoding.AXIS_SCALE_OFFSET:
        lines = [_pairs(pairs, encoding), *lines]
        lines += [f"{at}.axisScaleOffsetEncoding = (Qnn_AxisScaleOffset_t){{{axis}, {count}, {pairs}}};"]
    elif kind == QuantizationEncoding.BW_AXIS_SCALE_OFFSET:
        lines = [
            _array("float", scales, map(_literal, encoding.scales.tolist())),
            _array("int32_t", offsets, encoding.offsets.tolist()),
            *lines,
        ]
        value = f"{{{encoding.bits}, {axis}, {count}, {scales}, {offsets}}}"
        lines += [f"{at}.bwAxisScaleOffsetEncoding = (Qnn_BwAxisScaleOffset_t){value};"]
    elif kind == QuantizationEncoding.BLOCK:
        blocks = _local(variable, "blocks")
        lines = [_pairs(pairs, encoding), _array("uint32_t", blocks, encoding.blocks.tolist()), *lines]
        lines += [f"{at}.blockEncoding = (Qnn_BlockEncoding_t){{{blocks}, {pairs}}};"]
    elif kind == QuantizationEncoding.BLOCKWISE_EXPANSION:
        factors, expansion = _local(variable, "factors"), _local(variable, "expansion")
        lines = [
            _pairs(pairs, encoding),
            _array("uint16_t", factors, encoding.factors.tolist()),
            f"static Qnn_BlockwiseExpansion_t {expansion};",
            *lines,
            f"{expansion}.axis = {axis};",
            f"{expansion}.scaleOffsets = {pairs};",
            f"{expansion}.numBlocksPerAxis = {int(encoding.blocks[0])};",
            f"{expansion}.blockScaleBitwidth = {encoding.bits};",
            f"{expansion}.blockScaleStorageType = QNN_BLOCKWISE_EXPANSION_BITWIDTH_SCALE_STORAGE_16;",
            f"{expansion}.blocksScale16 = {factors};",
            f"{at}.blockwiseExpansion = &{expansion};",
        ]
    return lines
