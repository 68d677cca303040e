"""Structures that are written for a library have the fields that C declares, and are read as what was written."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from isthmus.cabi import types
from isthmus.cabi.client import BadPointer, pointer
from isthmus.cabi.tensors import MAX_SCALES, EncodingFields, check_dense, tensor_fields
from isthmus.cabi.types import Definition, QuantizationEncoding, Tensor, TensorKind, TensorMemType
from isthmus.cabi.writer import write_node, write_tensor
from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.entries import ComposedTensor, EncodingEntry, NodeEntry, Scalar

S8 = 0x0308
DIMS = (2, 3)
DATA = memoryview(bytes(range(1, 7)))


def entry(kind: int, scales: list[float], offsets: list[int], **more: Any) -> EncodingEntry:
    for name, dtype in (("blocks", np.uint32), ("factors", np.uint16)):
        more[name] = np.array(more.get(name, ()), dtype)
    return EncodingEntry(np.array(scales, np.float32), np.array(offsets, np.int32), kind=kind, **more)


PAIRS = [0.5, 0.25, 2.0], [-3, 0, 7]
ENCODINGS = {
    "one scale": entry(0, [0.5], [-3]),
    "an axis": entry(1, *PAIRS, axis=1),
    "bits": entry(2, [0.125], [5], bits=4),
    "an axis and bits": entry(3, *PAIRS, axis=1, bits=6),
    "blocks": entry(4, [0.5, 0.25, 2.0, 8.0], [-3, 0, 7, 1], blocks=(1, 2)),
    "factors": entry(5, *PAIRS, axis=1, bits=7, blocks=(2,), factors=(1, 2, 3, 4, 5, 255)),
    "wide factors": entry(5, *PAIRS, axis=1, bits=12, blocks=(2,), factors=(1, 2, 3, 4, 5, 256)),
}
"""An encoding of each kind, for a tensor of 2 x 3 elements."""


def pairs(array: Any, count: int) -> list[tuple[float, int]]:
    return [(each.scale, each.offset) for each in array[:count]]


def fields_of(params: types.QuantizeParams) -> tuple[Any, ...]:
    """Return what a library reads of an encoding, field by field."""
    three = [(0.5, -3), (0.25, 0), (2.0, 7)]
    match params.quantizationEncoding:
        case 0:
            return params.scaleOffsetEncoding.scale, params.scaleOffsetEncoding.offset
        case 1:
            by_axis = params.axisScaleOffsetEncoding
            return by_axis.axis, by_axis.numScaleOffsets, pairs(by_axis.scaleOffset, 3) == three
        case 2:
            low = params.bwScaleOffsetEncoding
            return low.bitwidth, low.scale, low.offset
        case 3:
            low = params.bwAxisScaleOffsetEncoding
            return low.bitwidth, low.axis, low.numElements, low.scales[:3], low.offsets[:3]
        case 4:
            return params.blockEncoding.blockSize[:2], pairs(params.blockEncoding.scaleOffset, 4)
    expansion = params.blockwiseExpansion.contents
    stored = expansion.blocksScale16 if expansion.blockScaleStorageType else expansion.blocksScale8
    return (
        expansion.axis, pairs(expansion.scaleOffsets, 3) == three, expansion.numBlocksPerAxis,
        expansion.blockScaleBitwidth, expansion.blockScaleStorageType, stored[:6],
    )  # fmt: skip


WRITTEN = {
    "one scale": (0.5, -3),
    "an axis": (1, 3, True),
    "bits": (4, 0.125, 5),
    "an axis and bits": (6, 1, 3, [0.5, 0.25, 2.0], [-3, 0, 7]),
    "blocks": ([1, 2], [(0.5, -3), (0.25, 0), (2.0, 7), (8.0, 1)]),
    "factors": (1, True, 2, 7, 0, [1, 2, 3, 4, 5, 255]),
    "wide factors": (1, True, 2, 12, 1, [1, 2, 3, 4, 5, 256]),
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("case", ENCODINGS)
def test_a_tensor_has_the_fields_that_a_library_reads(case: str, version: int) -> None:
    composed = ComposedTensor("t", int(TensorKind.STATIC), S8, DIMS, ENCODINGS[case], DATA)
    written = write_tensor(composed, [], version, 17)
    fields = written.v1
    assert (written.version, fields.id, fields.name, fields.type, fields.dataType) == (version, 17, b"t", 4, S8)
    assert (fields.dataFormat, fields.rank, fields.dimensions[:2], fields.memType) == (0, 2, [2, 3], 0)
    assert ctypes.string_at(fields.clientBuf.data, fields.clientBuf.dataSize) == bytes(DATA)
    assert fields.quantizeParams.encodingDefinition == Definition.DEFINED
    assert fields.quantizeParams.quantizationEncoding == ENCODINGS[case].kind
    assert fields_of(fields.quantizeParams) == WRITTEN[case]


@pytest.mark.parametrize("case", ENCODINGS)
def test_what_is_written_is_read_again(case: str) -> None:
    composed = ComposedTensor("t", int(TensorKind.STATIC), S8, DIMS, ENCODINGS[case], DATA)
    keeps: list[Any] = []
    read = tensor_fields(write_tensor(composed, keeps, number=17))
    assert (read.id, read.name, read.type, read.dtype, read.dims, read.mem_type) == (17, "t", 4, S8, DIMS, 0)
    assert ctypes.string_at(read.data, read.nbytes) == bytes(DATA)
    check_encoding(read.encoding, ENCODINGS[case])


def check_encoding(found: EncodingFields | None, expected: EncodingEntry) -> None:
    assert found is not None
    assert (found.axis, found.bits, found.kind) == (expected.axis, expected.bits, expected.kind)
    for name in ("scales", "offsets", "blocks", "factors"):
        one, other = getattr(found, name), getattr(expected, name)
        assert one.dtype == other.dtype, name
        np.testing.assert_array_equal(one, other, name)


@pytest.mark.parametrize("case", ENCODINGS)
def test_all_that_a_tensor_points_to_is_kept(case: str) -> None:
    """A library may read it when the structure itself is gone."""
    keeps: list[Any] = []
    composed = ComposedTensor("t", int(TensorKind.STATIC), S8, DIMS, ENCODINGS[case], DATA)
    fields = write_tensor(composed, keeps).v1
    params = fields.quantizeParams
    addresses = [pointer(fields, "dimensions"), fields.clientBuf.data]
    nested = {
        1: (params.axisScaleOffsetEncoding, "scaleOffset"), 3: (params.bwAxisScaleOffsetEncoding, "scales", "offsets"),
        4: (params.blockEncoding, "blockSize", "scaleOffset"), 5: (params, "blockwiseExpansion"),
    }  # fmt: skip
    structure, *names = nested.get(params.quantizationEncoding, (params,))
    addresses += [pointer(structure, name) for name in names]
    if params.quantizationEncoding == QuantizationEncoding.BLOCKWISE_EXPANSION:
        expansion = params.blockwiseExpansion.contents
        addresses += [pointer(expansion, name) for name in ("scaleOffsets", "blocksScale8")]
    held = {each.ctypes.data if isinstance(each, np.ndarray) else ctypes.addressof(each) for each in keeps}
    assert set(addresses) <= held


def test_a_tensor_without_contents_dimensions_or_encoding_has_null_pointers() -> None:
    for data in (None, memoryview(b"")):
        fields = write_tensor(ComposedTensor("t", 3, S8, (), None, data), []).v1
        assert (fields.id, fields.type, fields.rank, pointer(fields, "dimensions")) == (0, 3, 0, 0)
        assert (fields.clientBuf.data, fields.clientBuf.dataSize) == (None, 0)
        assert fields.quantizeParams.encodingDefinition == types.UNDEFINED
        assert fields.quantizeParams.quantizationEncoding == types.UNDEFINED


def test_what_an_encoding_leaves_out_has_a_default() -> None:
    """Axis 0, and factors of 4 bits."""
    for kind, name in ((1, "axisScaleOffsetEncoding"), (3, "bwAxisScaleOffsetEncoding")):
        params = write_tensor(ComposedTensor("t", 4, S8, DIMS, entry(kind, *PAIRS)), []).v1.quantizeParams
        assert getattr(params, name).axis == 0
    plain = replace(ENCODINGS["factors"], bits=0, axis=None)
    expansion = write_tensor(ComposedTensor("t", 4, S8, DIMS, plain), []).v1.quantizeParams.blockwiseExpansion.contents
    assert (expansion.axis, expansion.blockScaleBitwidth) == (0, 4)
    none = replace(plain, factors=np.empty(0, np.uint16))
    expansion = write_tensor(ComposedTensor("t", 4, S8, DIMS, none), []).v1.quantizeParams.blockwiseExpansion.contents
    assert (pointer(expansion, "blocksScale8"), expansion.blockScaleStorageType) == (0, 0)


def test_an_encoding_of_one_scale_is_written_with_the_first_of_several() -> None:
    several = [0.5, 9.0], [-3, 9]
    params = write_tensor(ComposedTensor("t", 4, S8, DIMS, entry(0, *several)), []).v1.quantizeParams
    assert fields_of(params) == (0.5, -3)
    params = write_tensor(ComposedTensor("t", 4, S8, DIMS, entry(2, *several, bits=4)), []).v1.quantizeParams
    assert fields_of(params) == (4, 0.5, -3)


@pytest.mark.parametrize(
    ("encoding", "kind"),
    [(entry(6, [0.5], [0]), 6), (entry(7, [0.5], [0]), 7), (entry(0, [], []), 0), (entry(5, [], []), 5)],
)
def test_an_encoding_that_cannot_be_written_is_refused(encoding: EncodingEntry, kind: int) -> None:
    with pytest.raises(QnnError, match=rf"tensor 't': its quantization encoding {kind} is not supported") as refused:
        write_tensor(ComposedTensor("t", 4, S8, DIMS, encoding), [])
    assert refused.value.code is Code.TENSOR_UNSUPPORTED_TENSOR_PARAM


def test_contents_have_at_most_as_many_bytes_as_a_structure_can_say() -> None:
    with mmap.mmap(-1, 1 << 32) as pages, memoryview(pages) as view:
        with view[:-1] as most:
            written = write_tensor(ComposedTensor("t", 4, S8, DIMS, None, most), [])
            assert written.v1.clientBuf.dataSize == (1 << 32) - 1
            del written
        with pytest.raises(QnnError, match="its 4294967296 bytes are more than QNN's structures hold") as refused:
            write_tensor(ComposedTensor("t", 4, S8, DIMS, None, view), [])
    assert refused.value.code is Code.TENSOR_UNSUPPORTED_TENSOR_PARAM


# -- nodes -------------------------------------------------------------------------------------------------------------


SCALARS: list[tuple[Scalar, int, str]] = [
    (True, 0x508, "bool8Value"), (False, 0x508, "bool8Value"), ("text", 0x608, "stringValue"),
    (1.5, 0x232, "floatValue"), (0, 0x132, "uint32Value"), ((1 << 32) - 1, 0x132, "uint32Value"),
    (1 << 32, 0x164, "uint64Value"), (-1, 0x32, "int32Value"), (-(1 << 31), 0x32, "int32Value"),
    (-(1 << 31) - 1, 0x64, "int64Value"),
]  # fmt: skip
DECLARED = {
    0x0008: -8, 0x0016: -300, 0x0032: 5, 0x0064: -(1 << 40), 0x0108: 200, 0x0116: 60000, 0x0132: 7, 0x0164: 1 << 63,
    0x0232: 0.5, 0x0264: 1e300, 0x0508: True, 0x0608: "words",
}  # fmt: skip


@pytest.mark.parametrize(("value", "kind", "field"), SCALARS)
def test_a_scalar_gets_the_type_that_holds_it(value: Scalar, kind: int, field: str) -> None:
    node = write_node(NodeEntry("n", "Op", (), (), {"p": value}), {}, [])
    param = node.v1.params[0]
    assert (param.paramType, param.name, param.scalarParam.dataType) == (types.ParamType.SCALAR, b"p", kind)
    assert getattr(param.scalarParam, field) == (value.encode() if isinstance(value, str) else value)


@pytest.mark.parametrize("kind", DECLARED)
def test_a_scalar_has_the_type_that_is_declared(kind: int) -> None:
    value: Any = DECLARED[kind]
    node = write_node(NodeEntry("n", "Op", (), (), {"p": value}, kinds={"p": kind}), {}, [])
    scalar = node.v1.params[0].scalarParam
    assert scalar.dataType == kind
    assert getattr(scalar, types.SCALAR_FIELDS[kind]) == (value.encode() if isinstance(value, str) else value)


def test_a_node_has_the_fields_that_a_library_reads() -> None:
    keeps: list[Any] = []
    composed = [ComposedTensor(name, 3, S8, DIMS) for name in "xyzp"]
    tensors = {each.name: write_tensor(each, keeps, number=number) for number, each in enumerate(composed, 10)}
    params = {"q": 5, "p": composed[3]}
    node = write_node(NodeEntry("n", "Op", ("x", "y"), ("z",), params, package="own"), tensors, keeps)
    v1 = node.v1
    assert (node.version, v1.name, v1.packageName, v1.typeName) == (1, b"n", b"own", b"Op")
    assert (v1.numOfParams, v1.numOfInputs, v1.numOfOutputs) == (2, 2, 1)
    assert [each.v1.id for each in v1.inputTensors[:2]] == [10, 11]
    assert [each.v1.id for each in v1.outputTensors[:1]] == [12]
    assert [(each.name, each.paramType) for each in v1.params[:2]] == [(b"q", 0), (b"p", 1)]
    assert (v1.params[0].scalarParam.uint32Value, v1.params[1].tensorParam.v1.id) == (5, 13)
    held = {each.ctypes.data if isinstance(each, np.ndarray) else ctypes.addressof(each) for each in keeps}
    assert {pointer(v1, name) for name in ("params", "inputTensors", "outputTensors")} <= held
    empty = write_node(NodeEntry("n", "Op", (), (), {}), {}, []).v1
    assert [pointer(empty, name) for name in ("params", "inputTensors", "outputTensors")] == [0, 0, 0]
    assert (empty.numOfParams, empty.numOfInputs, empty.numOfOutputs, empty.packageName) == (0, 0, 0, b"qti.aisw")


def test_a_scalar_of_no_scalars_type_is_refused() -> None:
    rule = r"node 'n' \(Op\): the data type 0x0999 of parameter 'p' is not a data type of a scalar"
    with pytest.raises(QnnError, match=rule) as refused:
        write_node(NodeEntry("n", "Op", (), (), {"p": 1}, kinds={"p": 0x999}), {}, [])
    assert refused.value.code is Code.GRAPH_INVALID_OP_CONFIG


# -- what cannot be read -----------------------------------------------------------------------------------------------


def described(**fields: Any) -> Tensor:
    tensor = write_tensor(ComposedTensor("t", 3, S8, DIMS), _kept)
    for name, value in fields.items():
        setattr(tensor if name == "version" else tensor.v2, name, value)
    return tensor


_kept: list[Any] = []


def encoded(kind: int, **fields: Any) -> Tensor:
    """A tensor with an encoding, some fields of which are changed."""
    case = next(each for each in ENCODINGS.values() if each.kind == kind)
    tensor = write_tensor(ComposedTensor("t", 4, S8, DIMS, case, DATA), _kept)
    params = tensor.v2.quantizeParams
    names = {1: "axisScaleOffsetEncoding", 3: "bwAxisScaleOffsetEncoding", 4: "blockEncoding"}
    structure = params.blockwiseExpansion.contents if kind == 5 else getattr(params, names[kind])
    for name, value in fields.items():
        setattr(structure, name, value)
    return tensor


def array(*items: int) -> Any:
    _kept.append((ctypes.c_uint32 * len(items))(*items))
    return _kept[-1]


INVALID, UNSUPPORTED = Code.TENSOR_INVALID_TENSOR_PARAM, Code.TENSOR_UNSUPPORTED_TENSOR_PARAM
REFUSED: dict[str, tuple[Tensor, Code, str]] = {
    "version 0": (described(version=0), INVALID, "its version 0 is neither 1 nor 2"),
    "version 3": (described(version=3), INVALID, "its version 3 is neither 1 nor 2"),
    "rank 9": (described(rank=9), INVALID, "its rank 9 is above 8"),
    "the first dimension is dynamic": (
        described(isDynamicDimensions=(ctypes.c_uint8 * 2)(1, 0)), UNSUPPORTED, "it has dynamic dimensions"),
    "the last dimension is dynamic": (
        described(isDynamicDimensions=(ctypes.c_uint8 * 2)(0, 1)), UNSUPPORTED, "it has dynamic dimensions"),
    "a block of nothing": (encoded(4, blockSize=array(1, 0)), INVALID, "blocks of [1, 0] elements are none"),
    "an axis below": (encoded(5, axis=-1), INVALID, "axis -1 is outside rank 2"),
    "an axis above": (encoded(5, axis=2), INVALID, "axis 2 is outside rank 2"),
    "too many pairs": (
        encoded(1, numScaleOffsets=MAX_SCALES + 1), INVALID, "16777217 scales are more than any tensor has"),
    "too many scales": (
        encoded(3, numElements=MAX_SCALES + 1), INVALID, "16777217 scales are more than any tensor has"),
    "too many factors": (
        encoded(5, numBlocksPerAxis=MAX_SCALES // 3 + 1), INVALID, "16777218 scales are more than any tensor has"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_tensor_that_cannot_be_read_is_refused(case: str) -> None:
    tensor, code, rule = REFUSED[case]
    with pytest.raises(QnnError) as refused:
        tensor_fields(tensor)
    assert (refused.value.code, refused.value.what, refused.value.rule) == (code, "tensor 't'", rule)


def test_the_format_of_a_tensor_is_read_and_may_be_refused() -> None:
    fields = tensor_fields(described(dataFormat=8))
    assert (tensor_fields(described()).data_format, fields.data_format) == (0, 8)
    check_dense("tensor 't'", 0)
    with pytest.raises(QnnError, match=r"7005 .* tensor 't': its data format 8 is not dense"):
        check_dense("tensor 't'", fields.data_format)


def test_the_largest_and_smallest_valid_fields_are_read() -> None:
    most = described(rank=8, dimensions=array(*range(8)))
    assert tensor_fields(most).dims == tuple(range(8))
    fixed = described(isDynamicDimensions=(ctypes.c_uint8 * 2)(0, 0))
    assert tensor_fields(fixed).dims == DIMS
    # Version 1 does not have that field.
    first = described(version=1, isDynamicDimensions=ctypes.cast(16, ctypes.POINTER(ctypes.c_uint8)))
    assert tensor_fields(first).dims == DIMS
    with pytest.raises(BadPointer):
        tensor_fields(encoded(1, numScaleOffsets=MAX_SCALES, scaleOffset=None))
    for axis in (0, 1):
        assert tensor_fields(encoded(5, axis=axis)).encoding is not None
    scalar = encoded(4)
    scalar.v2.rank = 0
    with pytest.raises(QnnError, match=r"blocks of \[\] elements are none"):
        tensor_fields(scalar)


def test_offsets_that_a_client_leaves_out_are_zeros() -> None:
    found = tensor_fields(encoded(3, offsets=None)).encoding
    check_encoding(found, replace(ENCODINGS["an axis and bits"], offsets=np.zeros(3, np.int32)))


def test_factors_are_read_as_they_are_stored() -> None:
    """As bytes, unless the structure says that they have 16 bits."""
    for storage in (0, 2):
        found = tensor_fields(encoded(5, blockScaleStorageType=storage)).encoding
        assert found is not None
        assert found.factors.tolist() == [1, 2, 3, 4, 5, 255]


def test_an_absent_tensor_has_an_id_a_name_and_types_only() -> None:
    absent = described(version=1, id=5, type=int(TensorKind.NULL), dataFormat=1, rank=99, dimensions=None)
    found = tensor_fields(absent)
    assert (found.id, found.name, found.type, found.dtype, found.dims, found.encoding) == (5, "t", 5, S8, (), None)


def test_memory_of_a_handle_is_no_data() -> None:
    raw = write_tensor(ComposedTensor("t", 0, S8, DIMS, None, DATA), _kept)
    assert (tensor_fields(raw).data, tensor_fields(raw).nbytes) == (raw.v1.clientBuf.data, 6)
    raw.v1.memType = TensorMemType.MEMHANDLE
    found = tensor_fields(raw)
    assert (found.mem_type, found.data, found.nbytes) == (1, 0, 0)


def undefined() -> Iterator[Tensor]:
    for definition in (Definition.IMPL_GENERATED, Definition.UNDEFINED):
        tensor = encoded(1)
        tensor.v2.quantizeParams.encodingDefinition = definition
        yield tensor


def test_an_encoding_that_is_not_defined_is_none() -> None:
    assert [tensor_fields(tensor).encoding for tensor in undefined()] == [None, None]


@pytest.mark.parametrize("kind", [6, 77])
def test_an_encoding_of_another_kind_has_no_scales(kind: int) -> None:
    tensor = encoded(1)
    tensor.v2.quantizeParams.quantizationEncoding = kind
    check_encoding(
        tensor_fields(tensor).encoding, EncodingEntry(np.empty(0, np.float32), np.empty(0, np.int32), None, 0, kind)
    )
