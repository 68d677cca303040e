"""Custom configs of graphs mean what their structures in C hold, field by field."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from qnn_calls import Client, opened

from isthmus.backends.gpu import c as gpu_c
from isthmus.backends.htp import c as htp_c
from isthmus.backends.lpai import c as lpai_c
from isthmus.cabi import objects
from isthmus.cabi.types import UNDEFINED
from isthmus.capi import options
from isthmus.capi.serve import LibraryServer
from isthmus.errors import QnnError
from isthmus.qnn import gpu, lpai


def lpai_config(option: int, value: ctypes.Structure | None = None) -> dict[Any, Any]:
    config = lpai_c.LpaiCustom()
    config.option, config.value = option, None if value is None else ctypes.addressof(value)
    return options.settings(LibraryServer("QnnLpai"), "graph", ctypes.addressof(config))


def filled(kind: type[ctypes.Structure], **fields: Any) -> ctypes.Structure:
    made = kind()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("option", "given", "wanted"),
    [
        (lpai.SCRATCH_MEM, filled(lpai_c.LpaiMem, memType=1, size=64, addr=4096), lpai.Mem(lpai.MemType.DDR, 64, 4096)),
        (lpai.PERSISTENT_MEM, filled(lpai_c.LpaiMem, memType=3, size=0, addr=None), lpai.Mem(lpai.MemType.TCM, 0, 0)),
        (lpai.PERF_CFG, filled(lpai_c.LpaiPerfCfg, fps=30, ftrtRatio=5, clientType=2),
         lpai.PerfCfg(30, 5, lpai.ClientType.NON_REAL_TIME)),
        (lpai.CORE_AFFINITY, filled(lpai_c.LpaiCoreAffinity, affinity=2, coreSelection=1),
         lpai.CoreAffinity(lpai.Affinity.HARD, 1)),
        (lpai.PREPARE, filled(lpai_c.LpaiPrepare, enableBatchnormFold=0, excludeIo=1), lpai.Prepare(False, True)),
        (lpai.PREPARE, filled(lpai_c.LpaiPrepare, enableBatchnormFold=1, excludeIo=0), lpai.Prepare(True, False)),
        (lpai.RESET_STATE, None, None),
    ],
)  # fmt: skip
def test_a_config_of_lpai_is_read_field_by_field(option: int, given: Any, wanted: Any) -> None:
    assert lpai_config(option, given) == {option: wanted}


def test_an_option_that_lpai_has_not_is_refused() -> None:
    with pytest.raises(QnnError, match="LPAI graph"):
        lpai_config(4711)


def test_a_config_of_the_gpu_is_read_field_by_field() -> None:
    given = filled(
        gpu_c.GpuGraphConfig, precision=1, disableMemoryOptimizations=0, disableNodeOptimizations=1,
        disableQueueRecording=0,
    )  # fmt: skip
    assert options.settings(LibraryServer("QnnGpu"), "graph", ctypes.addressof(given)) == {
        gpu.GraphConfig.PRECISION: 1, gpu.GraphConfig.DISABLE_MEMORY_OPTIMIZATIONS: 0,
        gpu.GraphConfig.DISABLE_NODE_OPTIMIZATIONS: 1, gpu.GraphConfig.DISABLE_QUEUE_RECORDING: 0,
    }  # fmt: skip


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
def test_an_option_that_htp_has_not_is_refused(
    opened_htp: tuple[Client, int, int], noun: str, option: int
) -> None:
    assert f"it has no option {option}" in created_with(opened_htp, noun, option)


@pytest.mark.parametrize("option", htp_c.HtpGraphOption)
def test_an_option_of_an_htp_graph_is_understood_and_said(
    caplog: pytest.LogCaptureFixture, opened_htp: tuple[Client, int, int], option: htp_c.HtpGraphOption
) -> None:
    with caplog.at_level(10, "isthmus"):
        assert created_with(opened_htp, "graph", option) == ""
    assert f"HTP graph option {option.name} = " in caplog.text


@pytest.mark.parametrize("option", htp_c.HtpContextOption)
def test_an_option_of_an_htp_context_is_understood_and_said(
    caplog: pytest.LogCaptureFixture, opened_htp: tuple[Client, int, int], option: htp_c.HtpContextOption
) -> None:
    with caplog.at_level(10, "isthmus"):
        assert created_with(opened_htp, "context", option) == ""
    assert f"HTP context option {option.name}: accepted" in caplog.text
