"""Custom configs of graphs mean what their structures in C hold, field by field."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capi.qnn_calls import Client, opened
from isthmus.backends.gpu import headers as gpu_headers
from isthmus.backends.htp import c as htp_c
from isthmus.backends.lpai import headers as lpai_headers
from isthmus.cabi import objects
from isthmus.cabi.types import UNDEFINED
from isthmus.capi import options
from isthmus.capi.serve import LibraryServer
from isthmus.errors import QnnError
from isthmus.qnn import gpu, lpai


def lpai_config(option: int, value: ctypes.Structure | None = None, noun: str = "graph") -> dict[Any, Any]:
    config = lpai_headers.CUSTOM.ctype()
    config.option, config.config = option, None if value is None else ctypes.addressof(value)
    return options.settings(LibraryServer("QnnLpai"), noun, ctypes.addressof(config))


def filled(kind: type[ctypes.Structure], **fields: Any) -> ctypes.Structure:
    made = kind()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("option", "given", "wanted"),
    [
        (lpai.SCRATCH_MEM, filled(lpai_headers.STRUCTURES[lpai.SCRATCH_MEM].ctype, memType=1, size=64, addr=4096),
         lpai.Mem(lpai.MemType.DDR, 64, 4096)),
        (lpai.SCRATCH_MEM, filled(lpai_headers.STRUCTURES[lpai.SCRATCH_MEM].ctype, memType=1, size=0, addr=None),
         lpai.Mem(lpai.MemType.DDR, 0, 0)),
        (lpai.PERSISTENT_MEM, filled(lpai_headers.STRUCTURES[lpai.SCRATCH_MEM].ctype, memType=1, size=128, addr=8192),
         lpai.Mem(lpai.MemType.DDR, 128, 8192)),
        (lpai.PERSISTENT_MEM, filled(lpai_headers.STRUCTURES[lpai.SCRATCH_MEM].ctype, memType=3, size=0, addr=None),
         lpai.Mem(lpai.MemType.TCM, 0, 0)),
        (lpai.PERF_CFG, filled(lpai_headers.STRUCTURES[lpai.PERF_CFG].ctype, fps=30, ftrtRatio=5, clientType=2),
         lpai.PerfCfg(30, 5, lpai.ClientType.NON_REAL_TIME)),
        (lpai.CORE_AFFINITY, filled(lpai_headers.STRUCTURES[lpai.CORE_AFFINITY].ctype, affinity=2, coreSelection=1),
         lpai.CoreAffinity(lpai.Affinity.HARD, 1)),
        (lpai.RESET_STATE, None, None),
    ],
)  # fmt: skip
def test_a_config_of_lpai_is_read_field_by_field(
    caplog: pytest.LogCaptureFixture, option: int, given: Any, wanted: Any
) -> None:
    with caplog.at_level(10, "isthmus"):
        assert lpai_config(option, given) == {option: wanted}
    is_hint = option in (lpai.PERF_CFG, lpai.CORE_AFFINITY)
    assert caplog.text.count("accepted, but without effect here") == is_hint


@pytest.mark.parametrize("cores", [None, b"0,1"])
def test_the_options_of_lpais_preparation_change_nothing_and_say_so(
    caplog: pytest.LogCaptureFixture, cores: bytes | None
) -> None:
    address = None if cores is None else ctypes.cast(ctypes.c_char_p(cores), ctypes.c_void_p).value
    given = filled(lpai_headers.PREPARE.ctype, enablePerLayer=1, enableCoreSelection=address)
    with caplog.at_level(10, "isthmus"):
        assert lpai_config(lpai.PREPARE, given) == {}
    said = "enablePerLayer = 1" + (", cores '0,1'" if cores else "")
    assert f"LPAI graph option PREPARE, {said}: accepted, but without effect here" in caplog.text


@pytest.mark.parametrize("noun", ["graph", "backend", "context"])
def test_an_option_that_lpai_has_not_is_refused(noun: str) -> None:
    with pytest.raises(QnnError, match=f"LPAI {noun}.* it has no option 4711"):
        lpai_config(4711, noun=noun)


@pytest.mark.parametrize(
    ("target", "version", "wanted"),
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
    target: int, version: int, wanted: dict[str, str]
) -> None:
    given = filled(lpai_headers.HW_INFO.ctype, lpaiTarget=target, hwVersion=version)
    assert lpai_config(lpai.BackendConfig.HW_INFO, given, "backend") == {"lpai_backend": wanted}


@pytest.mark.parametrize(
    ("target", "version", "said"),
    [(3, 6, "target 3"), (UNDEFINED, 6, "target 2147483647"), (0, 3, "hardware version 3"), (0, 9, "version 9")],
)
def test_hardware_of_lpai_that_is_not_simulated_is_refused(target: int, version: int, said: str) -> None:
    given = filled(lpai_headers.HW_INFO.ctype, lpaiTarget=target, hwVersion=version)
    with pytest.raises(QnnError, match=f"4012 .*{said}"):
        lpai_config(0, given, "backend")


def test_a_config_of_the_gpu_is_read_field_by_field() -> None:
    given = filled(
        gpu_headers.GRAPH_CONFIG.ctype, precision=1, disableMemoryOptimizations=0, disableNodeOptimizations=1,
        disableQueueRecording=0,
    )  # fmt: skip
    assert options.settings(LibraryServer("QnnGpu"), "graph", ctypes.addressof(given)) == {
        gpu.GraphConfig.PRECISION: 1, gpu.GraphConfig.DISABLE_MEMORY_OPTIMIZATIONS: 0,
        gpu.GraphConfig.DISABLE_NODE_OPTIMIZATIONS: 1, gpu.GraphConfig.DISABLE_QUEUE_RECORDING: 0,
    }  # fmt: skip


def gpu_config(noun: str, **fields: Any) -> dict[Any, Any]:
    kind = gpu_headers.CONTEXT_CONFIG if noun == "context" else gpu_headers.BACKEND_CONFIG
    given = filled(kind.ctype, **fields)
    return options.settings(LibraryServer("QnnGpu"), noun, ctypes.addressof(given))


def test_a_config_of_a_context_of_the_gpu_is_read_by_its_option(caplog: pytest.LogCaptureFixture) -> None:
    folder = ctypes.create_string_buffer(b"/a/folder")
    for option, field, value, wanted in (
        (gpu.ContextConfig.PERF_HINT, "perfHint", 2, 2),
        (gpu.ContextConfig.USE_GL_BUFFERS, "useGLBuffers", 1, 1),
        (gpu.ContextConfig.KERNEL_REPO_DIR, "kernelRepoDir", ctypes.addressof(folder), "/a/folder"),
        (gpu.ContextConfig.INVALIDATE_KERNEL_REPO, "invalidateKernelRepo", 1, 1),
    ):
        with caplog.at_level(10, "isthmus"):
            assert gpu_config("context", option=option, **{field: value}) == {option: wanted}
    assert caplog.text.count("without effect") == caplog.text.count("PERF_HINT = 2: accepted, but without effect") == 1


@pytest.mark.parametrize("option", range(4))
def test_a_config_of_the_gpus_backend_changes_nothing_and_says_so(
    caplog: pytest.LogCaptureFixture, option: int
) -> None:
    with caplog.at_level(10, "isthmus"):
        assert gpu_config("backend", option=option) == {}
    assert f"GPU backend option {gpu.BackendConfig(option).name}: accepted, but without effect here" in caplog.text


def test_hints_for_the_gpu_are_accepted_and_its_impossible_options_refused(libraries: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyopencl", reason="needs OpenCL")
    client = Client(libraries / "libQnnGpu.so")
    tuning = filled(gpu_headers.BACKEND_CONFIG.ctype, option=gpu.BackendConfig.ENABLE_TUNING_MODE)
    config = filled(objects.BackendConfig, customConfig=ctypes.addressof(tuning))
    backend = client.make("backendCreate", None, (ctypes.POINTER(objects.BackendConfig) * 2)(ctypes.pointer(config)))

    def created(**fields: Any) -> int:
        custom = filled(gpu_headers.CONTEXT_CONFIG.ctype, **fields)
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
def test_an_option_that_the_gpu_has_not_is_refused(noun: str) -> None:
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


def created_with(opened_htp: tuple[Client, int, int], noun: str, option: int) -> str:
    """Create a graph or a context of HTP with one custom config and free it; why it was refused, if it was."""
    client, backend, context = opened_htp
    custom = filled(htp_c.HtpGraphConfig, option=option)
    config = (objects.GraphConfig if noun == "graph" else objects.ContextConfig)(0)
    config.customConfig = ctypes.addressof(custom)
    listed = (ctypes.POINTER(type(config)) * 2)(ctypes.pointer(config))
    out = ctypes.c_void_p()
    if noun == "graph":
        error = client.graphCreate(context, f"graph {option}".encode(), listed, ctypes.byref(out))
    else:
        error = client.contextCreate(backend, None, listed, ctypes.byref(out))
        if not error:
            client.do("contextFree", out, None)
    return client.reason(error) if error else ""


@pytest.mark.parametrize(("noun", "option"), [("graph", 16), ("graph", 1000), ("context", 26)])
def test_an_option_of_htp_without_a_name_is_ignored_with_a_warning(
    caplog: pytest.LogCaptureFixture, opened_htp: tuple[Client, int, int], noun: str, option: int
) -> None:
    assert created_with(opened_htp, noun, option) == ""
    assert f"HTP {noun} option {option} is unknown here and ignored" in caplog.text


@pytest.mark.parametrize(("noun", "option"), [("graph", UNDEFINED), ("context", UNDEFINED), ("context", 14)])
def test_an_option_that_htp_has_not_is_refused(opened_htp: tuple[Client, int, int], noun: str, option: int) -> None:
    assert f"it has no option {option}" in created_with(opened_htp, noun, option)


@pytest.mark.parametrize("option", htp_c.HtpGraphOption)
def test_an_option_of_an_htp_graph_is_understood_and_said(
    caplog: pytest.LogCaptureFixture, opened_htp: tuple[Client, int, int], option: htp_c.HtpGraphOption
) -> None:
    with caplog.at_level(10, "isthmus"):
        assert created_with(opened_htp, "graph", option) == ""
    assert f"HTP graph option {option.name} = " in caplog.text


def test_options_of_htp_have_a_number_each() -> None:
    """Two members of one number would be one."""
    for kind in (htp_c.HtpGraphOption, htp_c.HtpContextOption, htp_c.HtpPowerOption):
        assert len(kind) == len(kind.__members__)
    numbers = {name: int(option) for name, option in htp_c.HtpContextOption.__members__.items()}
    assert list(numbers.values()) == [*range(1, 13), 17, 22]
    assert (numbers["FILE_READ_MEMORY_BUDGET"], numbers["SHARE_RESOURCES"], numbers["INIT_ACCELERATION"]) == (3, 5, 8)


@pytest.mark.parametrize("option", htp_c.HtpContextOption)
def test_an_option_of_an_htp_context_is_understood_and_said(
    caplog: pytest.LogCaptureFixture, opened_htp: tuple[Client, int, int], option: htp_c.HtpContextOption
) -> None:
    with caplog.at_level(10, "isthmus"):
        assert created_with(opened_htp, "context", option) == ""
    assert f"HTP context option {option.name}: accepted" in caplog.text
