"""A program in C gives the cpu backend a configuration by a file that the environment names."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from capi.qnn_calls import Client
from isthmus.errors import Code


@pytest.mark.parametrize(("value", "code"), [("false", 0), ('"no"', Code.BACKEND_INVALID_CONFIG)])
def test_the_file_that_the_environment_names_is_read_and_checked(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, code: int
) -> None:
    file = tmp_path / "cpu.json"
    file.write_text(f'{{"cpu": {{"winograd": {value}}}}}')
    monkeypatch.setenv("ISTHMUS_CPU_CONFIG", str(file))
    client, backend = Client(libraries / "libQnnCpu.so"), ctypes.c_void_p()
    assert client.backendCreate(None, None, ctypes.byref(backend)) == code
    if not code:
        client.do("backendFree", backend)
