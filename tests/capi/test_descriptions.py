"""What a client says of a tensor or a node must be what it is: packages, dimensions, data types, memory types."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes import answer

from capi.qnn_calls import Client, at, doubling, opened
from isthmus.backends.htp import c as htp_c
from isthmus.backends.htp import headers as htp_headers
from isthmus.cabi import objects, types
from isthmus.errors import Code
from isthmus.graph import DataType, TensorType

F32 = DataType.FLOAT_32


def described(client: Client, tensor: types.Tensor, **other: Any) -> types.Tensor:
    """The same tensor, described otherwise."""
    made = types.Tensor.from_buffer_copy(tensor)
    for field, value in other.items():
        if field == "dims":
            made.v1.rank = len(value)
            made.v1.dimensions = client.keep((ctypes.c_uint32 * len(value))(*value))
        else:
            setattr(made.v1, field, value)
    return made


def relu(client: Client, context: int) -> tuple[int, types.Tensor, types.Tensor]:
    """A graph with the tensors of a Relu, and without it."""
    graph = client.make("graphCreate", context, b"positive", None)
    x = client.tensor("x", TensorType.APP_WRITE, F32, (1, 8))
    y = client.tensor("y", TensorType.APP_READ, F32, (1, 8))
    for tensor in (x, y):
        client.do("tensorCreateGraphTensor", graph, ctypes.byref(tensor))
    return graph, x, y


# -- op packages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", [b"my.pkg", b"", None, b"qti.aisw2"], ids=repr)
def test_an_op_package_that_is_not_registered_is_refused(client: Client, package: bytes | None) -> None:
    backend, context = opened(client)
    graph, x, y = relu(client, context)
    node = client.operation("relu", "Relu", [x], [y])
    node.v1.packageName = package
    assert client.backendValidateOpConfig(backend, node) == Code.BACKEND_OP_PACKAGE_NOT_FOUND
    assert client.graphAddNode(graph, node) == Code.GRAPH_UNCONNECTED_NODE
    assert f"there is no op package '{(package or b'').decode()}'" in client.reason(Code.GRAPH_UNCONNECTED_NODE)
    node.v1.packageName = b"qti.aisw"
    client.do("backendValidateOpConfig", backend, node)
    client.do("graphAddNode", graph, node)
    client.do("graphFinalize", graph, None, None)
    client.do("backendFree", backend)


def test_an_operation_is_found_in_its_own_package_only(client: Client) -> None:
    backend, context = opened(client)
    graph, x, y = relu(client, context)
    for package, op in ((b"qti.aisw", "Mish"), (b"isthmus", "Relu"), (b"qti.aisw", "Nonsense")):
        node = client.operation("n", op, [x], [y])
        node.v1.packageName = package
        assert client.backendValidateOpConfig(backend, node) == Code.BACKEND_OP_PACKAGE_NOT_FOUND
        assert client.graphAddNode(graph, node) == Code.GRAPH_INVALID_OP_CONFIG
    node = client.operation("n", "Mish", [x], [y])
    node.v1.packageName = b"isthmus"
    client.do("backendValidateOpConfig", backend, node)
    client.do("graphAddNode", graph, node)
    client.do("backendFree", backend)


# -- tensors of nodes --------------------------------------------------------------------------------------------------

OTHERWISE: dict[str, dict[str, Any]] = {
    "dimensions": {"dims": (2, 4)},
    "fewer elements": {"dims": (1, 4)},
    "rank": {"dims": (8,)},
    "data type": {"dataType": DataType.INT_32},
}


@pytest.mark.parametrize("other", OTHERWISE.values(), ids=OTHERWISE)
@pytest.mark.parametrize("side", ["input", "output"])
def test_a_node_on_a_tensor_that_is_described_otherwise_is_refused(
    client: Client, side: str, other: dict[str, Any]
) -> None:
    backend, context = opened(client)
    graph, x, y = relu(client, context)
    wrong = (described(client, x, **other), y) if side == "input" else (x, described(client, y, **other))
    assert client.graphAddNode(graph, client.operation("relu", "Relu", [wrong[0]], [wrong[1]])) == (
        Code.GRAPH_INVALID_OP_CONFIG
    )
    assert "and was created as FLOAT_32[1, 8]" in client.reason(Code.GRAPH_INVALID_OP_CONFIG)
    client.do("graphAddNode", graph, client.operation("relu", "Relu", [x], [y]))
    client.do("backendFree", backend)


# -- tensors of executions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", OTHERWISE.values(), ids=OTHERWISE)
@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("restored", [False, True], ids=["composed", "from a binary"])
def test_an_execution_with_a_tensor_that_is_described_otherwise_is_refused(
    client: Client, restored: bool, side: str, other: dict[str, Any]
) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    if restored:
        graph = again(client, backend, context)
    given, made = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
    right = at(x, given), at(y, made)
    wrong = (described(client, right[0], **other), right[1])
    if side == "output":
        wrong = right[0], described(client, right[1], **other)
    assert client.execute(graph, [wrong[0]], [wrong[1]]) == Code.GRAPH_INVALID_TENSOR
    assert not made.any(), "nothing was executed"
    for _ in range(2):
        assert client.execute(graph, [right[0]], [right[1]]) == 0
        made[...] = 0
        # Also when the library remembers the memory, and would go straight to its binding.
        assert client.execute(graph, [wrong[0]], [wrong[1]]) == Code.GRAPH_INVALID_TENSOR
        assert not made.any()
    client.do("backendFree", backend)


def again(client: Client, backend: int, context: int) -> int:
    """The graph, restored from the binary of its context."""
    binary = client.binary(context)
    made = ctypes.c_void_p()
    client.do("contextCreateFromBinary", backend, None, None, binary, len(binary), ctypes.byref(made), None)
    return client.make("graphRetrieve", made, b"twice")


def test_dimensions_that_a_client_changes_in_place_are_used(client: Client) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    given, made = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
    dims = (ctypes.c_uint32 * 2)(1, 8)
    tensor = at(x, given)
    tensor.v1.dimensions = dims
    assert client.execute(graph, [tensor], [at(y, made)]) == 0
    for wrong in ((8, 1), (1, 9), (1, 0)):
        dims[:] = wrong
        assert client.execute(graph, [tensor], [at(y, made)]) == Code.GRAPH_INVALID_TENSOR
    dims[:] = 1, 8
    assert client.execute(graph, [tensor], [at(y, made)]) == 0
    client.do("backendFree", backend)


def test_what_a_client_leaves_out_of_a_description_is_not_compared(client: Client) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    given, made = np.full((1, 8), 3, np.float32), np.zeros((1, 8), np.float32)
    for other in ({"rank": 0}, {"dimensions": None}, {"dataType": 0}, {"dataType": DataType.UNDEFINED}):
        for _ in range(2):
            made[...] = 0
            assert client.execute(graph, [described(client, at(x, given), **other)], [at(y, made)]) == 0
            assert made.tolist() == [[6.0] * 8]
    client.do("backendFree", backend)


def test_dimensions_at_an_unreadable_address_are_answered_with_an_error(client: Client) -> None:
    backend, context = opened(client)
    graph, x, y = doubling(client, context)
    given, made = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
    wild = at(x, given)
    ctypes.c_uint64.from_buffer(wild, types.Tensor.v1.offset + types.TensorV1.dimensions.offset).value = 64
    for _ in range(2):
        assert client.execute(graph, [wild], [at(y, made)]) == Code.GRAPH_INVALID_ARGUMENT
        assert client.execute(graph, [at(x, given)], [at(y, made)]) == 0
    client.do("backendFree", backend)


# -- memory types ------------------------------------------------------------------------------------------------------

NONE, UNDEFINED = 9, int(types.TensorMemType.UNDEFINED)


@pytest.mark.parametrize("kind", [TensorType.APP_WRITE, TensorType.NATIVE, TensorType.STATIC])
@pytest.mark.parametrize("memory", [NONE, 3, UNDEFINED])
def test_a_memory_type_is_checked_when_a_tensor_is_created(client: Client, kind: TensorType, memory: int) -> None:
    backend, context = opened(client)
    graph = client.make("graphCreate", context, b"g", None)
    data = np.zeros((1, 8), np.float32) if kind is TensorType.STATIC else None
    tensor = client.tensor("t", kind, F32, (1, 8), data=data)
    tensor.v1.memType = memory
    taken = memory == UNDEFINED and kind is not TensorType.STATIC
    expected = 0 if taken else Code.TENSOR_INVALID_TENSOR_PARAM
    assert client.tensorCreateGraphTensor(graph, ctypes.byref(tensor)) == expected
    tensor.v1.memType = types.TensorMemType.RAW
    assert client.tensorCreateGraphTensor(graph, ctypes.byref(tensor)) == (7003 if taken else 0), "nothing was created"
    client.do("backendFree", backend)


# -- against the vendor's library --------------------------------------------------------------------------------------

VENDORS = """
import ctypes, json, sys
from pathlib import Path
from capi.test_descriptions import answers
from capi.qnn_calls import Client
print(json.dumps(answers(Client(Path(sys.argv[1])))))
"""


def answers(client: Client) -> dict[str, int]:
    """The codes that a library answers to the calls that this file tests."""
    backend, context = opened(client)
    graph, x, y = relu(client, context)
    found: dict[str, int] = {}
    for package in (b"my.pkg", b"", b"isthmus2"):
        node = client.operation("relu", "Relu", [x], [y])
        node.v1.packageName = package
        found[f"validate {package!r}"] = client.backendValidateOpConfig(backend, node)
        found[f"add {package!r}"] = client.graphAddNode(graph, node)
    client.do("graphAddNode", graph, client.operation("relu", "Relu", [x], [y]))
    client.do("graphFinalize", graph, None, None)
    given, made = np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)
    for name in ("dimensions", "fewer elements", "rank"):
        other = described(client, at(x, given), **OTHERWISE[name])
        found[f"execute {name}"] = client.execute(graph, [other], [at(y, made)])
    for other in ({"rank": 0}, {"dimensions": None}, {"dataType": 0}, {"name": b"z"}):
        found[f"execute {other}"] = client.execute(graph, [described(client, at(x, given), **other)], [at(y, made)])
    graph = client.make("graphCreate", context, b"memory", None)
    for kind in (TensorType.APP_WRITE, TensorType.STATIC):
        tensor = client.tensor(kind.name, kind, F32, (1, 8), data=given if kind is TensorType.STATIC else None)
        tensor.v1.memType = UNDEFINED
        found[f"create {kind.name}"] = client.tensorCreateGraphTensor(graph, ctypes.byref(tensor))
    for soc in (69, 4_000_000):
        found[f"chip {soc}"] = client.deviceCreate(None, chip(client, soc), ctypes.byref(ctypes.c_void_p()))
    client.do("contextFree", context, None)
    client.do("backendFree", backend)
    return found


def chip(client: Client, soc: int) -> Any:
    """Configs of a device that name a chip."""
    config = client.keep(htp_headers.DEVICE_CONFIG(htp_c.HtpDeviceOption.SOC))
    config.socModel = soc
    return device_configs(client, ctypes.addressof(config))


def test_the_answers_are_those_of_the_vendors_library(htp: Client) -> None:
    pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
    from capi import ort_provider

    here = Path(__file__).parent
    code = f"import sys\nsys.path[:0] = {[str(here.parent)]!r}\n{VENDORS}"
    done = subprocess.run(
        [sys.executable, "-c", code, ort_provider.vendor_library("QnnHtp")], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    theirs, ours = answer(done.stdout), answers(htp)
    assert theirs["chip 4000000"] == Code.DEVICE_INVALID_CONFIG, "there is no such chip"
    assert ours == theirs


def test_the_chip_of_a_device_is_read_where_clients_put_it(htp: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(10, "isthmus"):
        device = htp.make("deviceCreate", None, chip(htp, 69))
    assert "HTP device option SOC = 69" in caplog.messages
    htp.do("deviceFree", device)


GAP = 0x7FFD
"""What uninitialised memory may have where a structure has a gap: the upper half of an address."""
WITHOUT_EFFECT = ": accepted, but without effect here"
LAYOUTS = {
    # The option and what follows it, as 32-bit words; what the log has.
    "SOC, earlier": ((0, 69), "SOC = 69"),
    "SOC, later": ((0, 0, 69, 0), "SOC = 69"),
    "SOC, earlier, the rest of its union is not set": ((0, 69, GAP), "SOC = 69"),
    "SOC, later, its gap is not set": ((0, GAP, 69, GAP), "SOC = 69"),
    "SOC, later, its gap may be a chip": ((0, 30, 69, 0), "SOC = 69"),
    "SOC, none": ((0, 0, 0, 0), "SOC = 0"),
    "ARCH, earlier": ((1, 0, 79), "ARCH = v79 of device 0"),
    "ARCH, earlier, another device": ((1, 1, 79, 73), "ARCH = v79 of device 1"),
    "ARCH, later": ((1, 0, 0, 79), "ARCH = v79 of device 0"),
    "ARCH, later, another device, its gap is not set": ((1, GAP, 1, 79), "ARCH = v79 of device 1"),
    "ARCH, none": ((1, 0, 0, 0), "ARCH = v0 of device 0"),
    "SIGNEDPD, earlier": ((2, 0, 1), f"SIGNEDPD = True{WITHOUT_EFFECT}"),
    "SIGNEDPD, later": ((2, 0, 0, 1), f"SIGNEDPD = True{WITHOUT_EFFECT}"),
    "SIGNEDPD, later, its gap is not set": ((2, GAP, 0, 1), f"SIGNEDPD = True{WITHOUT_EFFECT}"),
    "SIGNEDPD, neither": ((2, 0, 0, 0), f"SIGNEDPD = False{WITHOUT_EFFECT}"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_device_config_has_either_layout_of_the_headers(
    htp: Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    words, expected = LAYOUTS[name]
    stored = np.array(words + (0,) * (3 - len(words)), np.uint32).tobytes()
    # The page after the structure cannot be read: only the shorter layout's bytes are there for those with 12.
    with guarded_pages() as end, caplog.at_level(10, "isthmus"):
        ctypes.memmove(end - len(stored), stored, len(stored))
        device = htp.make("deviceCreate", None, device_configs(htp, end - len(stored)))
    assert f"HTP device option {expected}" in caplog.messages
    htp.do("deviceFree", device)


@pytest.mark.parametrize("nbytes", [1, 4, 8, 11])
def test_a_device_config_that_ends_too_early_is_refused(htp: Client, nbytes: int) -> None:
    with guarded_pages() as end:
        ctypes.memmove(end - nbytes, bytes(nbytes), nbytes)
        made = ctypes.c_void_p()
        configs = device_configs(htp, end - nbytes)
        assert htp.deviceCreate(None, configs, ctypes.byref(made)) == Code.COMMON_INVALID_ARGUMENT
    assert not made.value


@contextmanager
def guarded_pages() -> Iterator[int]:
    """The address behind a page that can be written, where a page begins that cannot be read."""
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    first = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    libc = ctypes.CDLL(None, use_errno=True)
    protect = libc.mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert protect(first + mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0
    yield first + mmap.PAGESIZE
    assert protect(first + mmap.PAGESIZE, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE) == 0


def device_configs(client: Client, address: int) -> Any:
    """A list of configs of a device: the custom config at this address."""
    listed = client.keep(objects.DeviceConfig(objects.DeviceOption.CUSTOM))
    listed.customConfig = address
    return client.keep((ctypes.POINTER(objects.DeviceConfig) * 2)(ctypes.pointer(listed)))
