"""Process domains in C: contexts and buffers without room, with their codes, the vendor's lines and our sentence."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from backends.htp.sized import binary_of, chip

from capi.qnn_calls import Client
from capi.test_binary_information import on_chip
from capi.test_custom_configs import context_config
from isthmus import qnn
from isthmus.backends.htp.headers import MEM_DESCRIPTOR
from isthmus.backends.htp.options import HtpContextOption
from isthmus.cabi import objects
from isthmus.errors import Code
from isthmus.graph import DataType
from isthmus.memory import rpcmem

ESTIMATE = "Failed to find available PD for contextId {} on deviceId 0 coreId 0with context size estimate {}"


@pytest.fixture
def htp(libraries: Path) -> Client:
    return Client(libraries / "libQnnHtp.so")


class OnChip:
    """A backend on a chip with two small process domains, and its contexts."""

    def __init__(self, client: Client, folder: Path, **figures: Any) -> None:
        self.client = client
        self.backend = self.open_backend(folder, {"htp": {"chip": chip(folder, **figures)}})

    def open_backend(self, folder: Path, config: dict[str, Any]) -> int:
        """Create a backend with a configuration in a file."""
        file = folder / "config.json"
        file.write_text(json.dumps(config))
        option = self.client.keep(objects.BackendConfig(objects.BackendOption.PLATFORM))
        option.platformOption = self.client.keep(f"config_file_path:{file}".encode())
        listed = (ctypes.POINTER(objects.BackendConfig) * 2)(ctypes.pointer(option))
        return self.client.make("backendCreate", None, self.client.keep(listed))

    def load(self, content: bytes, configs: Any = None) -> tuple[int, int]:
        """Create a context from a binary: the code, and the handle."""
        out = ctypes.c_void_p()
        code = self.client.contextCreateFromBinary(
            self.backend, None, configs, content, len(content), ctypes.byref(out), None
        )
        return code, out.value or 0

    def free(self, *contexts: int) -> None:
        for context in contexts:
            self.client.do("contextFree", context, None)

    def register(self, context: int, buffer: rpcmem.RpcBuffer) -> tuple[int, int]:
        """Register a whole buffer: the code, and the handle."""
        custom = self.client.keep(MEM_DESCRIPTOR(1, buffer.nbytes))
        custom.sharedBufferConfig.fd = buffer.fd
        descriptor = self.client.keep(objects.MemDescriptor())
        dims = self.client.keep((ctypes.c_uint32 * 1)(buffer.nbytes))
        descriptor.memShape.numDim, descriptor.memShape.dimSize = 1, dims
        descriptor.dataType, descriptor.memType = DataType.UINT_8, 2
        descriptor.customInfo = ctypes.addressof(custom)
        out = ctypes.c_void_p()
        return self.client.memRegister(context, ctypes.byref(descriptor), 1, ctypes.byref(out)), out.value or 0


@pytest.fixture
def small(htp: Client, tmp_path: Path) -> Iterator[OnChip]:
    it = OnChip(htp, tmp_path, domains=[0, 1], capacity=100_000)
    yield it
    htp.do("backendFree", it.backend)


def test_a_third_context_gets_1002_with_the_vendors_lines_and_then_our_sentence(small: OnChip, caplog) -> None:
    content = binary_of(60_000)
    first, second = small.load(content)[1], small.load(content)[1]
    with caplog.at_level(10, "isthmus"):
        code, handle = small.load(content)
    assert (code, handle) == (Code.COMMON_MEM_ALLOC, 0)
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert errors[:-1] == [
        ESTIMATE.format(3, 60_000),
        "context create from binary failed on contextId 3",
        "Fail to create context from binary with err 1002",
        "Size Calculation encounter error! Doing Hard reset of reserved mem to 0.",
        "Failed to create context from binary with err 0x3ea",
    ]
    assert "needs 60,000 bytes in one process domain (weights " in errors[-1]
    assert "domain 0 has 40,000 of 100,000 bytes free; domain 1 has 40,000 of 100,000 bytes free" in errors[-1]
    assert "isthmus fit --contexts" in small.client.reason(code)
    assert small.client.contextValidateBinary(small.backend, None, None, content, len(content)) == 1002
    small.free(first)
    assert small.client.contextValidateBinary(small.backend, None, None, content, len(content)) == 0
    assert small.load(content)[0] == 0
    small.free(second)


def test_a_buffer_without_room_gets_8003_until_another_is_deregistered(small: OnChip) -> None:
    context = small.load(binary_of(60_000))[1]
    buffers = [rpcmem.alloc(rpcmem.HEAP_ID_SYSTEM, rpcmem.DEFAULT_FLAGS, 24_576) for _ in range(2)]
    code, handle = small.register(context, buffers[0])
    assert code == 0
    assert small.register(context, buffers[1]) == (Code.MEM_MAPPING, 0)
    assert "though domain 1 has room" in small.client.reason(Code.MEM_MAPPING)
    small.client.do("memDeRegister", ctypes.byref(ctypes.c_void_p(handle)), 1)
    assert small.register(context, buffers[1])[0] == 0
    small.free(context)
    # The context has taken its buffers with it.
    full = small.load(binary_of(100_000))
    assert full[0] == 0
    small.free(full[1])
    for each in buffers:
        each.close()


def test_the_estimate_of_io_is_a_custom_config(small: OnChip) -> None:
    content = binary_of(99_990)
    code, context = small.load(content)
    assert code == 0
    small.free(context)
    estimated = context_config(small.client, HtpContextOption.IO_MEM_ESTIMATION, ioMemEstimation=True)
    assert small.load(content, estimated)[0] == Code.COMMON_MEM_ALLOC
    assert "I/O 20" in small.client.reason(Code.COMMON_MEM_ALLOC)


def test_the_chip_of_a_device_has_its_domains(htp: Client) -> None:
    backend = htp.make("backendCreate", None, None)
    content = binary_of(60_000)
    out = ctypes.c_void_p()
    device = on_chip(htp, soc=69)
    with qnn.Backend("htp", {"devices": [{"soc_model": 69}]}) as other:
        _, before, capacity = other.get_property(qnn.htp.PROCESS_DOMAINS)[0]
        htp.do("contextCreateFromBinary", backend, device, None, content, len(content), ctypes.byref(out), None)
        assert other.get_property(qnn.htp.PROCESS_DOMAINS)[0] == (0, before + 60_000, 3_506_000_000)
    assert capacity == 3_506_000_000
    htp.do("contextFree", out, None)
    htp.do("backendFree", backend)
