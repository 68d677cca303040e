"""Buffers of the client, concurrent groups and the accelerator's memory in profiles, in C as device code calls them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends.htp.client_memory import SPILL_FILL, WEIGHTS, count_elsewhere
from backends.htp.sized import WIDTH, chain_of, chip

from capi.qnn_calls import Client
from capi.test_context_configs import config, properties
from capi.test_custom_configs import context_config
from capi.test_process_domains import OnChip
from capi.test_spill_fill_groups import right
from isthmus import qnn
from isthmus.backends.htp.headers import MEM_DESCRIPTOR
from isthmus.backends.htp.options import HtpContextOption
from isthmus.cabi import objects
from isthmus.cabi.objects import ContextOption, EventUnit
from isthmus.errors import Code
from isthmus.memory import rpcmem

ROWS = 256
NEED = 2 * 4 * ROWS * WIDTH
PROPERTIES = {WEIGHTS: 3, SPILL_FILL: 2}


@pytest.fixture(scope="module")
def chains() -> list[tuple[bytes, np.ndarray]]:
    return [chain_of(ROWS, seed) for seed in range(3)]


class Device(OnChip):
    """A backend on a chip of a version, and its contexts."""

    def __init__(self, client: Client, folder: Path, arch: str = "v81") -> None:
        self.client = client
        device = {"chip": chip(folder, domains=[0, 1], capacity=1 << 30)}
        self.backend = self.open_backend(folder, {"htp": device, "devices": [{"dsp_arch": arch}]})

    def listed(self, *lists: Any) -> Any:
        """Lists of configs as one."""
        configs = [each[0] for each in lists]
        return self.client.keep((ctypes.POINTER(objects.ContextConfig) * (len(configs) + 1))(*configs))

    def deferred(self, content: bytes) -> int:
        code, context = self.load(content, config(self.client, ContextOption.DEFER_GRAPH_INIT))
        assert code == 0
        return context

    def register_for(self, context: int, *buffers: tuple[int, rpcmem.RpcBuffer]) -> tuple[int, list[int]]:
        """Register buffers of the context, as working device code describes them: the code, and the handles."""
        descriptors = (objects.MemDescriptor * len(buffers))()
        for each, (kind, buffer) in zip(descriptors, buffers, strict=True):
            custom = self.client.keep(MEM_DESCRIPTOR(kind, buffer.nbytes))
            custom.sharedBufferConfig.fd = buffer.fd
            each.memShape.numDim, each.memShape.dimSize = 0, None
            each.dataType, each.memType = 0x7FFFFFFF, 2
            each.customInfo = ctypes.addressof(custom)
        out = (ctypes.c_void_p * len(buffers))(*[77] * len(buffers))
        code = self.client.memRegister(context, descriptors, len(buffers), out)
        return int(code), [each or 0 for each in out]

    def finalized(self, content: bytes, *kinds: int, spill: Any = None) -> tuple[int, dict[int, rpcmem.RpcBuffer]]:
        """A context with buffers of its own for these kinds."""
        context = self.deferred(content)
        asked = properties(self.client, context)
        buffers = {kind: rpcmem.share(asked[PROPERTIES[kind]][1]) for kind in kinds}
        if spill is not None:
            buffers[SPILL_FILL] = spill
        code, handles = self.register_for(context, *buffers.items())
        assert (code, all(handles), len({*handles})) == (0, True, len(buffers))
        self.client.do("contextFinalize", context, None)
        return context, buffers


@pytest.fixture
def device(libraries: Path, tmp_path: Path) -> Iterator[Device]:
    client = Client(libraries / "libQnnHtp.so")
    it = Device(client, tmp_path)
    yield it
    client.do("backendFree", it.backend)


def test_the_calls_of_device_code_put_weights_and_spill_fill_into_the_clients_memory(device: Device, chains) -> None:
    content, order = chains[0]
    context, buffers = device.finalized(content, WEIGHTS, SPILL_FILL)
    ones = 2 * WIDTH * 4
    assert np.count_nonzero(buffers[WEIGHTS].array) == ones, "the two bytes of each 1.0 of four permutations"
    assert count_elsewhere(buffers[WEIGHTS], 0) == buffers[WEIGHTS].nbytes - ones
    assert right(device.client, context, ROWS, order)
    assert buffers[SPILL_FILL].array.any()
    device.free(context)
    for each in buffers.values():
        each.close()


def test_one_spill_fill_buffer_serves_several_contexts(device: Device, chains) -> None:
    first, buffers = device.finalized(chains[0][0], SPILL_FILL)
    others = [device.finalized(content, WEIGHTS, spill=buffers[SPILL_FILL])[0] for content, _ in chains[1:]]
    for context, (_, order) in zip((first, *others), chains, strict=True):
        assert right(device.client, context, ROWS, order)
    device.free(first)
    assert right(device.client, others[0], ROWS, chains[1][1])
    device.free(*others)


def test_each_call_out_of_order_has_a_code_and_a_reason(device: Device, chains) -> None:
    content, order = chains[0]
    client = device.client
    with rpcmem.share(4 << 20) as buffer, rpcmem.share(4096) as small:
        loaded = device.load(content)[1]
        code, handles = device.register_for(loaded, (WEIGHTS, buffer))
        assert (code, handles) == (Code.MEM_UNSUPPORTED_MEMTYPE, [0])
        assert "a context that was created with deferred graphs" in client.reason(code)
        context = device.deferred(content)
        code, handles = device.register_for(context, (SPILL_FILL, buffer), (WEIGHTS, small))
        assert (code, handles) == (Code.MEM_INVALID_ARGUMENT, [0, 0])
        assert "WEIGHTS_BUFFER has 4096 bytes, the context needs 2097152" in client.reason(code)
        code, handles = device.register_for(context, (WEIGHTS, buffer))
        assert code == 0
        assert device.register_for(context, (WEIGHTS, buffer))[0] == Code.MEM_ALREADY_REGISTERED
        client.do("contextFinalize", context, None)
        assert device.register_for(context, (SPILL_FILL, buffer))[0] == Code.MEM_UNSUPPORTED_MEMTYPE
        assert "before the context is finalized" in client.reason(Code.MEM_UNSUPPORTED_MEMTYPE)
        client.do("memDeRegister", (ctypes.c_void_p * 1)(*handles), 1)
        assert client.memDeRegister((ctypes.c_void_p * 1)(*handles), 1) == Code.MEM_INVALID_HANDLE
        assert right(client, context, ROWS, order)
        device.free(context, loaded)


def test_a_group_and_buffers_of_the_client_exclude_each_other(device: Device, chains) -> None:
    group = {"firstGroupHandle": None, "maxSpillFillBuffer": NEED}
    listed = device.listed(
        config(device.client, ContextOption.DEFER_GRAPH_INIT),
        context_config(device.client, HtpContextOption.REGISTER_MULTI_CONTEXTS, groupRegistration=group),
    )
    code, context = device.load(chains[0][0], listed)
    assert code == 0
    with rpcmem.share(4 << 20) as buffer:
        assert device.register_for(context, (SPILL_FILL, buffer))[0] == Code.MEM_UNSUPPORTED_MEMTYPE
    device.client.do("contextFinalize", context, None)
    device.free(context)


# -- concurrent groups -------------------------------------------------------------------------------------------------


def concurrent(client: Client, first: int, nbytes: int) -> Any:
    value = {"firstGroupHandle": first or None, "maxSpillFillBuffer": nbytes}
    option = HtpContextOption.REGISTER_CONCURRENT_RESOURCE_SHARING
    return context_config(client, option, concurrentGroupRegistration=value)


def prioritized(client: Client, priority: int) -> Any:
    made = client.keep(objects.ContextConfig(ContextOption.PRIORITY))
    made.priority = priority
    return client.keep((ctypes.POINTER(objects.ContextConfig) * 2)(ctypes.pointer(made)))


def test_contexts_of_one_priority_make_a_concurrent_group(device: Device, chains) -> None:
    client = device.client
    high = prioritized(client, qnn.Priority.HIGH)
    code, first = device.load(chains[0][0], device.listed(concurrent(client, 0, NEED), high))
    assert code == 0
    code, _ = device.load(chains[1][0], concurrent(client, first, 0))
    assert code == Code.CONTEXT_CREATE_FROM_BINARY
    assert "have priority 200, not 100" in client.reason(code)
    code, second = device.load(chains[1][0], device.listed(high, concurrent(client, first, 0)))
    assert code == 0
    code, other = device.load(chains[2][0], concurrent(client, 0, NEED))
    assert code == 0
    for context, (_, order) in zip((first, second, other), chains, strict=True):
        assert right(client, context, ROWS, order)
    device.free(first, second, other)


@pytest.mark.parametrize("is_deferred", [False, True])
def test_a_member_keeps_its_priority(device: Device, chains, is_deferred) -> None:
    client = device.client
    lists = [concurrent(client, 0, NEED), prioritized(client, qnn.Priority.LOW)]
    deferring = config(client, ContextOption.DEFER_GRAPH_INIT)
    code, context = device.load(chains[0][0], device.listed(*lists, *[deferring] * is_deferred))
    assert code == 0
    for value in (qnn.Priority.LOW, qnn.Priority.HIGH):
        assert client.contextSetConfig(context, prioritized(client, value)) == Code.COMMON_NOT_SUPPORTED
        assert "keep the priority" in client.reason(Code.COMMON_NOT_SUPPORTED)
    if is_deferred:
        client.do("contextFinalize", context, None)
    graph = client.make("graphRetrieve", context, b"chain")
    of_graph = client.keep(objects.GraphConfig(objects.GraphOption.PRIORITY))
    of_graph.priority = qnn.Priority.HIGH
    listed = client.keep((ctypes.POINTER(objects.GraphConfig) * 2)(ctypes.pointer(of_graph)))
    assert client.graphSetConfig(graph, listed) == Code.COMMON_NOT_SUPPORTED
    assert right(client, context, ROWS, chains[0][1])
    # Without a group both are changed.
    lone = device.load(chains[0][0])[1]
    client.do("contextSetConfig", lone, prioritized(client, qnn.Priority.HIGH))
    client.do("graphSetConfig", client.make("graphRetrieve", lone, b"chain"), listed)
    device.free(context, lone)


def test_a_chip_before_v81_refuses_concurrent_groups(libraries: Path, tmp_path: Path, chains) -> None:
    client = Client(libraries / "libQnnHtp.so")
    it = Device(client, tmp_path, "v79")
    code, context = it.load(chains[0][0], concurrent(client, 0, NEED))
    assert (code, context) == (Code.COMMON_NOT_SUPPORTED, 0)
    assert "Concurrent resource sharing config is not supported" in client.reason(code)
    client.do("backendFree", it.backend)


# -- memory of the accelerator in profiles -----------------------------------------------------------------------------


def events(client: Client, profile: int) -> dict[str, tuple[int, int]]:
    """The unit and the value of each event of a profile, by name."""
    listed, count = ctypes.POINTER(ctypes.c_uint64)(), ctypes.c_uint32()
    client.do("profileGetEvents", profile, ctypes.byref(listed), ctypes.byref(count))
    found = {}
    for number in listed[: count.value]:
        data = objects.EventData()
        client.do("profileGetEventData", number, ctypes.byref(data))
        found[data.identifier.decode()] = data.unit, data.value
    return found


def test_profiles_have_the_accelerators_memory_before_the_first_context_and_after_the_last(
    device: Device, chains
) -> None:
    client, content = device.client, chains[0][0]
    profile = client.make("profileCreate", device.backend, 1)

    def load(*, is_on: bool = True) -> int:
        listed = context_config(client, HtpContextOption.DSP_MEMORY_PROFILING_ENABLED, dspMemoryProfilingEnabled=is_on)
        out = ctypes.c_void_p()
        client.do(
            "contextCreateFromBinary", device.backend, None, listed, content, len(content), ctypes.byref(out), profile
        )
        return out.value or 0

    first = load()
    unit, before = events(client, profile)["DSP:before_context_created"]
    assert (unit, before > 0) == (EventUnit.BYTES, True)
    second = load()
    assert [*events(client, profile)] == ["context created from binary"]
    client.do("contextFree", first, profile)
    assert [*events(client, profile)] == ["context freed"]
    client.do("contextFree", second, profile)
    assert events(client, profile)["DSP:after_context_freed"] == (EventUnit.BYTES, before)
    off = load(is_on=False)
    assert "DSP:before_context_created" not in events(client, profile)
    on = context_config(client, HtpContextOption.DSP_MEMORY_PROFILING_ENABLED, dspMemoryProfilingEnabled=True)
    client.do("contextSetConfig", off, on)
    client.do("contextFree", off, profile)
    assert events(client, profile)["DSP:after_context_freed"] == (EventUnit.BYTES, before)
    client.do("profileFree", profile)
