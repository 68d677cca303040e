"""Custom configs of graphs mean what their structures in C hold, field by field."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capi.qnn_calls import Client, at, doubling, opened
from isthmus.backends.gpu import headers as gpu_headers
from isthmus.backends.htp import c as htp_c
from isthmus.backends.htp import headers as htp_headers
from isthmus.backends.htp.options import HtpContextConfigOption, HtpContextOption, HtpGraphOption
from isthmus.backends.lpai import headers as lpai_headers
from isthmus.cabi import objects
from isthmus.cabi.types import UNDEFINED
from isthmus.capi import inspection, options
from isthmus.capi.serve import LibraryServer
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType
from isthmus.qnn import gpu, lpai


def lpai_config(option: int, value: ctypes.Structure | None = None, noun: str = "graph") -> dict[Any, Any]:
    config = lpai_headers.CUSTOM()
    config.option, config.config = option, None if value is None else ctypes.addressof(value)
    return options.settings(LibraryServer("QnnLpai"), noun, ctypes.addressof(config))


def filled(kind: type[ctypes.Structure], **fields: Any) -> ctypes.Structure:
    made = kind()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("option", "given", "expected"),
    [
        (lpai.SCRATCH_MEM, filled(lpai_headers.STRUCTURES[lpai.SCRATCH_MEM], memType=1, size=64, addr=4096),
         lpai.Mem(lpai.MemType.DDR, 64, 4096)),
        (lpai.SCRATCH_MEM, filled(lpai_headers.STRUCTURES[lpai.SCRATCH_MEM], memType=1, size=0, addr=None),
         lpai.Mem(lpai.MemType.DDR, 0, 0)),
        (lpai.PERSISTENT_MEM, filled(lpai_headers.STRUCTURES[lpai.SCRATCH_MEM], memType=1, size=128, addr=8192),
         lpai.Mem(lpai.MemType.DDR, 128, 8192)),
        (lpai.PERSISTENT_MEM, filled(lpai_headers.STRUCTURES[lpai.SCRATCH_MEM], memType=3, size=0, addr=None),
         lpai.Mem(lpai.MemType.TCM, 0, 0)),
        (lpai.PERF_CFG, filled(lpai_headers.STRUCTURES[lpai.PERF_CFG], fps=30, ftrtRatio=5, clientType=2),
         lpai.PerfCfg(30, 5, lpai.ClientType.NON_REAL_TIME)),
        (lpai.CORE_AFFINITY, filled(lpai_headers.STRUCTURES[lpai.CORE_AFFINITY], affinity=2, coreSelection=1),
         lpai.CoreAffinity(lpai.Affinity.HARD, 1)),
        (lpai.RESET_STATE, None, None),
    ],
)  # fmt: skip
def test_a_config_of_lpai_is_read_field_by_field(
    caplog: pytest.LogCaptureFixture, option: int, given: Any, expected: Any
) -> None:
    with caplog.at_level(10, "isthmus"):
        assert lpai_config(option, given) == {option: expected}
    said = {
        lpai.PERF_CFG: "PERF_CFG = fps 30, ftrtRatio 5, clientType NON_REAL_TIME: accepted",
        lpai.CORE_AFFINITY: "CORE_AFFINITY = affinity HARD, coreSelection 1: accepted",
    }
    is_hint = option in said
    assert said.get(option, "") in caplog.text
    assert caplog.text.count("accepted, but without effect here") == is_hint


@pytest.mark.parametrize("cores", [None, b"0,1"])
def test_the_options_of_lpais_preparation_change_nothing_and_are_logged(
    caplog: pytest.LogCaptureFixture, cores: bytes | None
) -> None:
    address = None if cores is None else ctypes.cast(ctypes.c_char_p(cores), ctypes.c_void_p).value
    given = filled(lpai_headers.PREPARE, enablePerLayer=1, enableCoreSelection=address)
    with caplog.at_level(10, "isthmus"):
        assert lpai_config(lpai.PREPARE, given) == {}
    said = "enablePerLayer = 1" + (", cores '0,1'" if cores else "")
    assert f"LPAI graph option PREPARE, {said}: accepted, but without effect here" in caplog.text


@pytest.mark.parametrize("noun", ["graph", "backend", "context"])
def test_an_option_that_lpai_does_not_have_is_refused(noun: str) -> None:
    with pytest.raises(QnnError, match=f"LPAI {noun}.* it has no option 4711"):
        lpai_config(4711, noun=noun)


@pytest.mark.parametrize(
    ("target", "version", "expected"),
    [
        (0, 4, {"target_env": "x86", "enable_hw_ver": "v4"}),
        (1, 5, {"target_env": "arm", "enable_hw_ver": "v5"}),
        (2, 0x10005, {"target_env": "adsp", "enable_hw_ver": "v5.1"}),
        (2, 6, {"target_env": "adsp", "enable_hw_ver": "v6"}),
        (0, 7, {"target_env": "x86", "enable_hw_ver": "v7"}),
        (0, 0, {"target_env": "x86"}),
    ],
)
def test_hardware_of_lpai_named_in_c_is_that_of_a_configuration_file(
    target: int, version: int, expected: dict[str, str]
) -> None:
    given = filled(lpai_headers.HW_INFO, lpaiTarget=target, hwVersion=version)
    assert lpai_config(lpai.BackendConfig.HW_INFO, given, "backend") == {"lpai_backend": expected}


@pytest.mark.parametrize(
    ("target", "version", "said"),
    [(3, 6, "target 3"), (UNDEFINED, 6, "target 2147483647"), (0, 3, "hardware version 3"), (0, 9, "version 9")],
)
def test_hardware_of_lpai_that_is_not_simulated_is_refused(target: int, version: int, said: str) -> None:
    given = filled(lpai_headers.HW_INFO, lpaiTarget=target, hwVersion=version)
    with pytest.raises(QnnError, match=f"4012 .*{said}"):
        lpai_config(0, given, "backend")


def test_a_config_of_the_gpu_is_read_field_by_field() -> None:
    given = filled(
        gpu_headers.GRAPH_CONFIG, precision=1, disableMemoryOptimizations=0, disableNodeOptimizations=1,
        disableQueueRecording=0,
    )  # fmt: skip
    assert options.settings(LibraryServer("QnnGpu"), "graph", ctypes.addressof(given)) == {
        gpu.GraphConfig.PRECISION: 1, gpu.GraphConfig.DISABLE_MEMORY_OPTIMIZATIONS: 0,
        gpu.GraphConfig.DISABLE_NODE_OPTIMIZATIONS: 1, gpu.GraphConfig.DISABLE_QUEUE_RECORDING: 0,
    }  # fmt: skip


def gpu_config(noun: str, **fields: Any) -> dict[Any, Any]:
    kind = gpu_headers.CONTEXT_CONFIG if noun == "context" else gpu_headers.BACKEND_CONFIG
    given = filled(kind, **fields)
    return options.settings(LibraryServer("QnnGpu"), noun, ctypes.addressof(given))


def test_a_config_of_a_context_of_the_gpu_is_read_by_its_option(caplog: pytest.LogCaptureFixture) -> None:
    folder = ctypes.create_string_buffer(b"/a/folder")
    for option, field, value, expected in (
        (gpu.ContextConfig.PERF_HINT, "perfHint", 2, 2),
        (gpu.ContextConfig.USE_GL_BUFFERS, "useGLBuffers", 1, 1),
        (gpu.ContextConfig.KERNEL_REPO_DIR, "kernelRepoDir", ctypes.addressof(folder), "/a/folder"),
        (gpu.ContextConfig.INVALIDATE_KERNEL_REPO, "invalidateKernelRepo", 1, 1),
    ):
        with caplog.at_level(10, "isthmus"):
            assert gpu_config("context", option=option, **{field: value}) == {option: expected}
    assert caplog.text.count("without effect") == caplog.text.count("PERF_HINT = LOW: accepted, but without") == 1


@pytest.mark.parametrize("option", range(4))
def test_a_config_of_the_gpus_backend_changes_nothing_and_is_logged(
    caplog: pytest.LogCaptureFixture, option: int
) -> None:
    with caplog.at_level(10, "isthmus"):
        assert gpu_config("backend", option=option) == {}
    assert f"GPU backend option {gpu.BackendConfig(option).name}: accepted, but without effect here" in caplog.text


def test_hints_for_the_gpu_are_accepted_and_its_impossible_options_refused(libraries: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyopencl", reason="needs OpenCL")
    client = Client(libraries / "libQnnGpu.so")
    tuning = filled(gpu_headers.BACKEND_CONFIG, option=gpu.BackendConfig.ENABLE_TUNING_MODE)
    config = filled(objects.BackendConfig, customConfig=ctypes.addressof(tuning))
    backend = client.make("backendCreate", None, (ctypes.POINTER(objects.BackendConfig) * 2)(ctypes.pointer(config)))

    def created(**fields: Any) -> int:
        custom = filled(gpu_headers.CONTEXT_CONFIG, **fields)
        config = filled(objects.ContextConfig, customConfig=ctypes.addressof(custom))
        listed = (ctypes.POINTER(objects.ContextConfig) * 2)(ctypes.pointer(config))
        out = ctypes.c_void_p()
        error = client.contextCreate(backend, None, listed, ctypes.byref(out))
        if not error:
            client.do("contextFree", out, None)
        return int(error)

    folder = ctypes.create_string_buffer(str(tmp_path / "kernels").encode())
    assert [created(option=gpu.PERF_HINT, perfHint=hint) for hint in (0, 1, 2, 3)] == [0, 0, 0, 5010]
    assert [created(option=gpu.USE_GL_BUFFERS, useGLBuffers=use) for use in (0, 1, 2)] == [0, 5010, 5010]
    assert created(option=gpu.KERNEL_REPO_DIR, kernelRepoDir=ctypes.addressof(folder)) == 0
    assert created(option=gpu.KERNEL_REPO_DIR, kernelRepoDir=None) == 5010
    assert created(option=gpu.INVALIDATE_KERNEL_REPO, invalidateKernelRepo=1) == 0
    client.do("backendFree", backend)


@pytest.mark.parametrize("noun", ["backend", "context"])
def test_an_option_that_the_gpu_does_not_have_is_refused(noun: str) -> None:
    with pytest.raises(QnnError, match=f"GPU {noun}.* it has no option {UNDEFINED}"):
        gpu_config(noun, option=UNDEFINED)


@pytest.fixture(scope="module")
def opened_htp(libraries: Path) -> Iterator[tuple[Client, int, int]]:
    """A client of HTP with a backend and a context."""
    client = Client(libraries / "libQnnHtp.so")
    backend, context = opened(client)
    yield client, backend, context
    client.do("contextFree", context, None)
    client.do("backendFree", backend)


_names = itertools.count()


def created_with(opened_htp: tuple[Client, int, int], noun: str, option: int, kind: int = 3) -> str:
    """Create a graph or a context of HTP with one custom config and free it; why it was refused, if it was."""
    client, backend, context = opened_htp
    custom = filled(htp_headers.GRAPH_CONFIG, option=option)
    if option == HtpGraphOption.FINALIZE_CONFIG:
        custom.finalizeConfig.value.dataType = DataType.UINT_32
    if option == HtpGraphOption.OPTIMIZATION:
        custom.optimizationOption.type, custom.optimizationOption.floatValue = kind, 1
    config = (objects.GraphConfig if noun == "graph" else objects.ContextConfig)(0)
    config.customConfig = ctypes.addressof(custom)
    listed = (ctypes.POINTER(type(config)) * 2)(ctypes.pointer(config))
    out = ctypes.c_void_p()
    if noun == "graph":
        error = client.graphCreate(context, f"graph {next(_names)}".encode(), listed, ctypes.byref(out))
    else:
        error = client.contextCreate(backend, None, listed, ctypes.byref(out))
        if not error:
            client.do("contextFree", out, None)
    return client.reason(error) if error else ""


@pytest.mark.parametrize(("noun", "option"), [("graph", 21), ("graph", 1000), ("context", 26)])
def test_an_option_of_htp_without_a_name_is_ignored_with_a_warning(
    caplog: pytest.LogCaptureFixture, opened_htp: tuple[Client, int, int], noun: str, option: int
) -> None:
    assert created_with(opened_htp, noun, option) == ""
    assert f"HTP {noun} option {option} is unknown here and ignored" in caplog.text


@pytest.mark.parametrize(("noun", "option"), [("graph", UNDEFINED), ("context", UNDEFINED), ("context", 14)])
def test_an_option_that_htp_does_not_have_is_refused(
    opened_htp: tuple[Client, int, int], noun: str, option: int
) -> None:
    assert f"it has no option {option}" in created_with(opened_htp, noun, option)


@pytest.mark.parametrize("option", [each for each in HtpGraphOption if not each.refusal])
def test_an_option_of_an_htp_graph_is_understood_and_logged(
    caplog: pytest.LogCaptureFixture, opened_htp: tuple[Client, int, int], option: HtpGraphOption
) -> None:
    client = opened_htp[0]
    # A message is sent once for a backend, and an earlier test may have had it.
    client.do("backendFree", client.make("backendCreate", None, None))
    with caplog.at_level(10, "isthmus"):
        assert created_with(opened_htp, "graph", option) == ""
    assert f"HTP graph option {option.name}" in caplog.text


@pytest.mark.parametrize("option", [each for each in HtpGraphOption if each.refusal])
def test_an_option_of_an_htp_graph_that_the_vendor_removed_is_refused(
    opened_htp: tuple[Client, int, int], option: HtpGraphOption
) -> None:
    assert f"[1000 COMMON_NOT_SUPPORTED] HTP graph option {option.name}: " in created_with(opened_htp, "graph", option)


@pytest.mark.parametrize("kind", range(14))
def test_kinds_of_optimization_are_taken_as_by_the_vendors_library(
    opened_htp: tuple[Client, int, int], kind: int
) -> None:
    refused = created_with(opened_htp, "graph", HtpGraphOption.OPTIMIZATION, kind)
    assert ("6000" in refused) == (kind in (0, 2, *range(10, 14)))


def test_options_of_htp_have_a_number_each() -> None:
    """Two members of one number would be one."""
    for kind in (HtpGraphOption, HtpContextOption, htp_c.HtpPowerOption):
        assert len(kind) == len(kind.__members__)
    numbers = {name: int(option) for name, option in HtpContextOption.__members__.items()}
    assert list(numbers.values()) == [*range(1, 14), *range(16, 24), 25]
    assert (numbers["FILE_READ_MEMORY_BUDGET"], numbers["SHARE_RESOURCES"], numbers["INIT_ACCELERATION"]) == (3, 5, 8)


def context_config(client: Client, option: int, **fields: Any) -> Any:
    """A list of one custom config of a context; a mapping has the members of a structure."""
    custom = htp_headers.CONTEXT_CONFIG(option)
    for name, value in fields.items():
        for member, part in value.items() if isinstance(value, dict) else ():
            setattr(getattr(custom, name), member, part)
        if not isinstance(value, dict):
            setattr(custom, name, value)
    config = client.keep(objects.ContextConfig(0))
    config.customConfig = ctypes.addressof(client.keep(custom))
    return client.keep((ctypes.POINTER(objects.ContextConfig) * 2)(ctypes.pointer(config)))


WITHOUT_EFFECT: list[tuple[HtpContextOption, Any, str]] = [
    (HtpContextOption.FILE_READ_MEMORY_BUDGET, 25, "25"),
    (HtpContextOption.INIT_ACCELERATION, True, "True"),
    (HtpContextOption.SKIP_VALIDATION_ON_BINARY_SECTION, True, "True"),
    (HtpContextOption.LORA_WEIGHT_SHARING_ENABLED, True, "True"),
    (HtpContextOption.LORA_WEIGHT_SHARING_RAM_PRELOAD_ENABLED, True, "True"),
    (HtpContextOption.CONCURRENT_DESERIALIZATION_EXTRA_SIZE, 200_000, "102400"),
    (HtpContextOption.GRAPH_SPLITTING_ENABLED, True, "True"),
    (HtpContextOption.CONCURRENT_DESERIALIZATION_PATCH, -1, "-1"),
    (HtpContextOption.GRAPH_SPLITTING_CONFIGS, {"isEnabled": True}, "isEnabled 1"),
    (HtpContextOption.LORA_PRELOAD_BUFFER_GROUPS, {"numGroups": 2}, "numGroups 2"),
    (HtpContextOption.PARALLEL_WEIGHT_LOADING, {"mode": 1, "thresholdInMbOverride": 7},
     "mode 1, thresholdInMbOverride 7"),
]  # fmt: skip
EFFECTIVE = [each for each in HtpContextOption if each in list(HtpContextConfigOption)]


@pytest.mark.parametrize(("option", "value", "said"), WITHOUT_EFFECT, ids=[each[0].name for each in WITHOUT_EFFECT])
def test_an_option_of_an_htp_context_without_effect_is_logged_with_its_value(
    caplog: pytest.LogCaptureFixture,
    opened_htp: tuple[Client, int, int],
    option: HtpContextOption,
    value: Any,
    said: str,
) -> None:
    client, backend, _ = opened_htp
    with caplog.at_level(10, "isthmus"):
        listed = context_config(client, option, **{option.field: value})
        client.do("contextFree", client.make("contextCreate", backend, None, listed), None)
    assert f"HTP context option {option.name} = {said}: accepted, but without effect here" in caplog.text


def test_every_option_of_an_htp_context_has_an_effect_or_is_logged() -> None:
    assert {each[0] for each in WITHOUT_EFFECT} | {*EFFECTIVE} == {*HtpContextOption}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        (HtpContextOption.REGISTER_MULTI_CONTEXTS, {"maxSpillFillBuffer": 0}),
        (HtpContextOption.REGISTER_CONCURRENT_RESOURCE_SHARING, {"maxSpillFillBuffer": 0}),
        (HtpContextOption.SHARE_RESOURCES_OPTIMIZATION_TYPE, 3),
        (HtpContextOption.PARALLEL_WEIGHT_LOADING, {"mode": 3}),
    ],
)
def test_a_value_of_an_htp_context_without_a_meaning_is_refused(
    opened_htp: tuple[Client, int, int], option: HtpContextOption, value: Any
) -> None:
    client, backend, _ = opened_htp
    listed = context_config(client, option, **{option.field: value})
    assert client.contextCreate(backend, None, listed, ctypes.byref(ctypes.c_void_p())) == 5010


def test_a_later_member_of_a_group_needs_no_size(opened_htp: tuple[Client, int, int]) -> None:
    client, backend, context = opened_htp
    group = {"firstGroupHandle": context, "maxSpillFillBuffer": 0}
    listed = context_config(client, HtpContextOption.REGISTER_MULTI_CONTEXTS, groupRegistration=group)
    client.do("contextFree", client.make("contextCreate", backend, None, listed), None)


@pytest.mark.parametrize(("arch", "code"), [(79, 6000), (81, 0)])
def test_extended_udma_is_for_graphs_that_are_prepared_from_v81_on(
    caplog: pytest.LogCaptureFixture, opened_htp: tuple[Client, int, int], arch: int, code: int
) -> None:
    client, backend, _ = opened_htp
    listed = context_config(client, HtpContextOption.USE_EXTENDED_UDMA, useExtendedUdma=True)
    named = filled(htp_headers.DEVICE_CONFIG, option=1)
    named.arch.arch = arch
    config = filled(objects.DeviceConfig, customConfig=ctypes.addressof(named))
    configs = (ctypes.POINTER(objects.DeviceConfig) * 2)(ctypes.pointer(config))
    made = client.make("contextCreate", backend, client.make("deviceCreate", None, configs), listed)
    assert client.graphCreate(made, b"g", None, ctypes.byref(ctypes.c_void_p())) == code
    if code:
        assert f"only available for DSP architectures >= 81; the device is v{arch}" in client.reason(code)
    client.do("contextFree", made, None)
    other = client.make("contextCreate", backend, None, None)
    doubling(client, other)
    binary, out = client.binary(other), ctypes.c_void_p()
    with caplog.at_level("WARNING", "isthmus"):
        client.do("contextCreateFromBinary", backend, None, listed, binary, len(binary), ctypes.byref(out), None)
    assert "HTP context option USE_EXTENDED_UDMA is for graphs that are prepared: ignored" in caplog.text
    for each in (other, out):
        client.do("contextFree", each, None)


def test_a_context_that_prepares_only_makes_a_binary_and_executes_nothing(opened_htp: tuple[Client, int, int]) -> None:
    client, backend, _ = opened_htp
    listed = context_config(client, HtpContextOption.PREPARE_ONLY, isPrepareOnly=True)
    preparing, usual = (
        client.make("contextCreate", backend, None, listed),
        client.make("contextCreate", backend, None, None),
    )
    graph, x, y = doubling(client, preparing)
    doubling(client, usual)
    assert bytes(client.binary(preparing)) == bytes(client.binary(usual))
    (made,) = [each for each in inspection.graphs() if each.driver.context.prepare_only]
    assert made.driver.number == -1, "it is not loaded"
    given, found = np.full((1, 8), 3, np.float32), np.zeros((1, 8), np.float32)
    assert client.execute(graph, [at(x, given)], [at(y, found)]) == Code.COMMON_OPERATION_NOT_PERMITTED
    assert "its context only prepares graphs" in client.reason(Code.COMMON_OPERATION_NOT_PERMITTED)
    for each in (preparing, usual):
        client.do("contextFree", each, None)


def test_a_context_with_reference_weight_sharing_has_no_binary_of_its_own(opened_htp: tuple[Client, int, int]) -> None:
    client, backend, _ = opened_htp
    listed = context_config(
        client, HtpContextOption.REFERENCE_WEIGHT_SHARING_ENABLED, referenceWeightSharingEnabled=True
    )
    context = client.make("contextCreate", backend, None, listed)
    assert client.contextGetBinarySize(context, ctypes.byref(ctypes.c_uint64())) == Code.COMMON_NOT_SUPPORTED
    client.do("contextFree", context, None)


def test_a_config_of_an_earlier_header_is_read_no_further_than_its_value(opened_htp: tuple[Client, int, int]) -> None:
    """Earlier structures end after their value, and the memory may end there too."""
    client, backend, _ = opened_htp
    with mmap.mmap(-1, 2 * mmap.PAGESIZE) as memory:
        place = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        libc = ctypes.CDLL(None)
        assert libc.mprotect(ctypes.c_void_p(place + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
        address = place + mmap.PAGESIZE - 12
        ctypes.c_uint32.from_address(address).value = HtpContextOption.IO_MEM_ESTIMATION
        config = objects.ContextConfig(0)
        config.customConfig = address
        listed = (ctypes.POINTER(objects.ContextConfig) * 2)(ctypes.pointer(config))
        client.do("contextFree", client.make("contextCreate", backend, None, listed), None)
        assert libc.mprotect(ctypes.c_void_p(place + mmap.PAGESIZE), mmap.PAGESIZE, 3) == 0
