"""libQnnTFLiteDelegate.so: what it was asked to keep ends with the delegate, and its defaults are those of Python."""

from __future__ import annotations

import ctypes
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from isthmus.cabi.delegate import DelegateOptions, ProfilingResult
from isthmus.capi import delegate
from isthmus.capi.serve import LibraryServer
from isthmus.delegate import BackendType, Options, Profiling, QnnDelegate


def test_what_profiling_told_ends_with_the_delegate() -> None:
    server = LibraryServer("QnnTFLiteDelegate")
    options = DelegateOptions(backend_type=BackendType.CPU, profiling=Profiling.BASIC)
    for clear in (True, False):
        made = server.TfLiteQnnDelegateCreate(ctypes.addressof(options))
        result = ProfilingResult()
        for _ in range(2):
            server.TfLiteQnnDelegateGetProfilingResult(made, ctypes.addressof(result))
            place, nbytes = (getattr(result, name) for name, *_ in ProfilingResult._fields_)
            assert json.loads(ctypes.string_at(place, nbytes)) == []
        assert len(server.client_objects) == 2
        if clear:
            server.TfLiteQnnDelegateClearProfilingResult(made)
            assert len(server.client_objects) == 1
        server.TfLiteQnnDelegateDelete(made)
        assert (server.client_objects, server.endings) == ({}, {})


def test_the_defaults_in_c_are_those_of_python(libraries: Path) -> None:
    default = ctypes.CDLL(libraries / "libQnnTFLiteDelegate.so").TfLiteQnnDelegateOptionsDefault
    default.restype = DelegateOptions
    given = default()
    found, wanted = (asdict(each) for each in (delegate._options(ctypes.addressof(given)), Options()))
    for options in (found, wanted):
        options["skip_options"] = {key: list(value) for key, value in options["skip_options"].items()}
    assert found == wanted


@pytest.mark.parametrize("backend", [BackendType.CPU, BackendType.HTP, BackendType.LPAI])
def test_no_default_is_said_to_have_no_effect(libraries: Path, backend: BackendType) -> None:
    default = ctypes.CDLL(libraries / "libQnnTFLiteDelegate.so").TfLiteQnnDelegateOptionsDefault
    default.restype = DelegateOptions
    given, heard = default(), []
    given.backend_type = backend
    QnnDelegate(delegate._options(ctypes.addressof(given)), lambda level, text: heard.append(text)).close()
    assert heard == []
