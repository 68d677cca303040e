"""What crosses from Python to C: handles, lists, capabilities and descriptions, to the last field."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from capi.qnn_calls import Client, at, doubling, opened
from isthmus.cabi import objects, types
from isthmus.capi import dlc, extensions, values
from isthmus.capi.context import _MAX_NAMES, _names
from isthmus.capi.handles import Handles
from isthmus.capi.installation import INCLUDE
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, TensorType

SUPPORTED, NOT_SUPPORTED, UNKNOWN = objects.PropertyAnswer


def test_handles_look_like_aligned_pointers_and_are_never_issued_again() -> None:
    handles = Handles()
    numbers = [handles.add("one")]
    handles.remove(numbers[0])
    numbers += [handles.add("one") for _ in range(3)]
    assert len(set(numbers)) == 4
    assert all(number % 16 == 0 and number >= 1 << 16 for number in numbers)


def test_what_a_handle_owns_ends_with_it_and_nothing_else() -> None:
    handles = Handles()
    owner, other = handles.add("owner"), handles.add("other")
    inner = handles.add("inner", owner)
    leaf, gone = handles.add("leaf", inner), handles.add("gone", inner)
    assert handles.remove(gone) == ["gone"]
    assert handles.remove(owner) == ["owner", "inner", "leaf"]
    for number in (owner, inner, leaf, gone):
        with pytest.raises(QnnError, match="unknown handle"):
            handles.get(number, str, Code.COMMON_INVALID_ARGUMENT, "text")
    assert handles.get(other, str, Code.COMMON_INVALID_ARGUMENT, "text") == "other"


@pytest.mark.parametrize("count", [0, 1, 1023, 1024])
def test_a_list_of_names_ends_at_its_null_pointer(count: int) -> None:
    name = ctypes.create_string_buffer(b"graph")
    pointers = (ctypes.c_uint64 * (count + 1))(*[ctypes.addressof(name)] * count, 0)
    assert _names(ctypes.addressof(pointers)) == ["graph"] * count


def test_a_list_of_names_without_an_end_is_cut() -> None:
    name = ctypes.create_string_buffer(b"graph")
    pointers = (ctypes.c_uint64 * (_MAX_NAMES + 4))(*[ctypes.addressof(name)] * (_MAX_NAMES + 4))
    assert len(_names(ctypes.addressof(pointers))) == _MAX_NAMES == 1024


def test_every_encoding_that_tensors_may_have_is_a_capability(client: Client) -> None:
    macros = {}
    for line in (INCLUDE / "QNN" / "QnnProperty.h").read_text().splitlines():
        if line.startswith("#define QNN_PROPERTY_TENSOR_SUPPORT_QUANTIZATION_ENCODING_"):
            name, number = line.split()[1:]
            macros[name.partition("ENCODING_")[2]] = int(number)
    taken = ("SCALE_OFFSET", "AXIS_SCALE_OFFSET", "BW_SCALE_OFFSET", "BW_AXIS_SCALE_OFFSET", "BLOCK",
             "BLOCKWISE_EXPANSION")  # fmt: skip
    assert {name: client.propertyHasCapability(macros[name]) for name in taken} == dict.fromkeys(taken, SUPPORTED)


def test_a_key_is_unknown_before_the_first_of_its_group_and_behind_the_last(client: Client) -> None:
    answers = [client.propertyHasCapability(key) for key in (0, 1, 60, 61, 100, 101, 99_999)]
    assert answers == [UNKNOWN, NOT_SUPPORTED, NOT_SUPPORTED, UNKNOWN, UNKNOWN, NOT_SUPPORTED, UNKNOWN]


def test_the_platform_has_one_device_with_one_core(client: Client) -> None:
    info = ctypes.POINTER(objects.PlatformInfo)()
    client.do("deviceGetPlatformInfo", None, ctypes.byref(info))
    platform = info.contents.v1
    assert (info.contents.version, platform.numHwDevices) == (1, 1)
    device = platform.hwDevices[0]
    assert (device.version, device.v1.deviceId, device.v1.deviceType, device.v1.numCores) == (1, 0, 0, 1)
    core = device.v1.cores[0]
    assert (core.version, core.v1.coreId, core.v1.coreType, core.v1.coreInfoExtension) == (1, 0, 0, None)
    client.do("deviceFreePlatformInfo", None, info)


@pytest.mark.parametrize(
    ("code", "is_raised"), [(Code.COMMON_OPERATION_NOT_PERMITTED, False), (Code.COMMON_MEM_ALLOC, True)]
)
def test_a_buffer_that_an_execution_still_holds_is_freed_with_the_last_hold(
    monkeypatch: pytest.MonkeyPatch, code: Code, is_raised: bool
) -> None:
    def close() -> None:
        raise QnnError(code, "buffer", "it is held")

    monkeypatch.setattr(extensions, "_buffers", {4096: SimpleNamespace(close=close)})
    if is_raised:
        with pytest.raises(QnnError, match="it is held"):
            extensions.free_buffer(cast(Any, None), 4096)
    else:
        extensions.free_buffer(cast(Any, None), 4096)
    assert extensions._buffers == {}


@pytest.mark.parametrize("version", [0, 3, 1 << 31])
def test_a_tensor_of_an_unknown_version_is_refused_where_it_is_created_and_where_it_is_executed(
    client: Client, version: int
) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    other = client.tensor("other", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 8), version=version)
    new = client.make("graphCreate", context, b"new", None)
    assert client.tensorCreateGraphTensor(new, ctypes.byref(other)) == Code.TENSOR_INVALID_TENSOR_PARAM
    assert f"its version {version} is neither 1 nor 2" in client.reason(Code.TENSOR_INVALID_TENSOR_PARAM)
    given, found = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
    for wrong in (0, 1):
        tensors = [at(x, given), at(y, found)]
        tensors[wrong].version = version
        assert client.execute(graph, tensors[:1], tensors[1:]) == Code.GRAPH_INVALID_TENSOR
        assert not found.any()
    for version in (1, 2):
        tensors = [at(x, given), at(y, found)]
        for tensor in tensors:
            tensor.version = version
        assert client.execute(graph, tensors[:1], tensors[1:]) == 0
        assert (found == 2).all()
    client.do("backendFree", backend)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("backendCreate", (5, None)),
        ("contextCreate", (5, None, None)),
        ("deviceCreate", (5, None)),
        ("graphCreate", (5, b"graph", None)),
        ("graphRetrieve", (5, b"graph")),
        ("profileCreate", (5, 1)),
        ("signalCreate", (5, None)),
        ("logCreate", (None, 99)),
    ],
)
def test_a_handle_that_could_not_be_created_is_null(client: Client, name: str, arguments: tuple[Any, ...]) -> None:
    out = ctypes.c_void_p(0xA5A5A5A5)
    assert getattr(client, name)(*arguments, ctypes.byref(out)) != 0
    assert out.value is None


@pytest.mark.parametrize("bits", [None, 4])
def test_tensors_that_a_client_owns_have_copies_of_the_scales_of_each_channel(client: Client, bits: int | None) -> None:
    scales = [0.5, 0.25, 0.125]
    encoding = client.quantize_axis(1, scales) if bits is None else client.quantize_bits(bits, 1, scales)
    if bits is not None:
        encoding.bwAxisScaleOffsetEncoding.offsets = client.keep((ctypes.c_int32 * 3)(-1, 0, 1))
    given = client.tensor("x", TensorType.APP_WRITE, DataType.SFIXED_POINT_8, (2, 3), encoding, version=2)
    found = types.Tensor.from_address(dlc._client_tensors((given,))).v2
    assert (found.name, list(found.dimensions[:2])) == (b"x", [2, 3])
    params = found.quantizeParams
    if bits is None:
        pairs = params.axisScaleOffsetEncoding.scaleOffset
        assert ctypes.addressof(pairs[0]) != ctypes.addressof(encoding.axisScaleOffsetEncoding.scaleOffset[0])
        assert [(each.scale, each.offset) for each in pairs[:3]] == [(scale, 0) for scale in scales]
    else:
        copied = params.bwAxisScaleOffsetEncoding
        assert (copied.scales[:3], copied.offsets[:3]) == (scales, [-1, 0, 1])


@pytest.mark.parametrize(
    ("kind", "dtype", "given", "bits"),
    [
        (TensorType.STATIC, 0x308, 4, 4), (TensorType.STATIC, 0x308, 7, 7), (TensorType.STATIC, 0x308, 8, 0),
        (TensorType.STATIC, 0x308, 0, 0), (TensorType.STATIC, 0x316, 8, 8), (TensorType.STATIC, 0x316, 16, 0),
        (TensorType.STATIC, 0x304, 4, 4), (TensorType.STATIC, 0x404, 4, 4), (TensorType.NATIVE, 0x308, 4, 0),
        (TensorType.APP_WRITE, 0x316, 8, 0),
    ],
)  # fmt: skip
def test_constants_alone_are_stored_in_fewer_bits_than_their_type_has(
    client: Client, kind: TensorType, dtype: int, given: int, bits: int
) -> None:
    for axis, scales in ((None, [0.5]), (1, [0.5, 0.25, 0.125])):
        encoding = client.quantize_bits(given, axis, scales)
        quantization = values.describe(client.tensor("t", kind, dtype, (2, 3), encoding)).quantization
        assert quantization is not None
        assert quantization.bits == bits
