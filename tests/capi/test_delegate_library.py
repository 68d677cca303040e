"""libQnnTFLiteDelegate.so: what it was asked to keep ends with the delegate, and its defaults are those of Python."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from isthmus.cabi.delegate import DelegateOptions, ProfilingResult
from isthmus.capi import delegate
from isthmus.capi.serve import LibraryServer
from isthmus.delegate import BackendType, Options, Profiling, QnnDelegate, custom_memory


def test_profiling_results_end_with_the_delegate() -> None:
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
    found, expected = (asdict(each) for each in (delegate._options(ctypes.addressof(given)), Options()))
    for options in (found, expected):
        options["skip_options"] = {key: list(value) for key, value in options["skip_options"].items()}
    assert found == expected


@pytest.mark.parametrize("backend", [BackendType.CPU, BackendType.HTP, BackendType.LPAI])
def test_no_default_is_reported_as_without_effect(libraries: Path, backend: BackendType) -> None:
    default = ctypes.CDLL(libraries / "libQnnTFLiteDelegate.so").TfLiteQnnDelegateOptionsDefault
    default.restype = DelegateOptions
    given, messages = default(), []
    given.backend_type = backend
    QnnDelegate(delegate._options(ctypes.addressof(given)), lambda level, text: messages.append(text)).close()
    assert messages == []


def given_fields(structure: ctypes.Structure) -> dict[str, Any]:
    """The fields of a structure that are neither 0 nor null; texts are given even if they are empty."""
    found = {}
    for name, *_ in structure._fields_:
        value = getattr(structure, name)
        if isinstance(value, ctypes.Structure):
            value = given_fields(value)
        if value or value == b"":
            found[name] = value
    return found


def test_the_defaults_in_c_have_these_fields(libraries: Path) -> None:
    """Also those of which Python takes no notice."""
    default = ctypes.CDLL(libraries / "libQnnTFLiteDelegate.so").TfLiteQnnDelegateOptionsDefault
    default.restype = DelegateOptions
    assert given_fields(default()) == {
        "library_path": b"", "skel_library_dir": b"", "tensor_dump_output_path": b"", "cache_dir": b"",
        "model_token": b"", "gpu_options": {"precision": 2, "kernel_repo_dir": b""},
        "htp_options": {"useConvHmx": True},
    }  # fmt: skip


def test_arguments_and_results_in_c_are_in_their_places(libraries: Path) -> None:
    library = ctypes.CDLL(str(libraries / "libQnnTFLiteDelegate.so"))
    address, number = ctypes.c_void_p, ctypes.c_uint32

    def function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        called = getattr(library, name)
        called.restype, called.argtypes = result, arguments
        return called

    alloc = function("TfLiteQnnDelegateAllocCustomMem", address, ctypes.c_size_t, ctypes.c_size_t)
    free = function("TfLiteQnnDelegateFreeCustomMem", None, address)
    memory = alloc(300, 256)
    assert memory % 256 == 0
    assert alloc(256, 300) is None, "300 is no alignment"
    assert custom_memory.find(memory + 299) is not None
    free(memory)
    assert custom_memory.find(memory) is None
    create = function("TfLiteQnnDelegateCreate", address, ctypes.POINTER(DelegateOptions))
    assert create(DelegateOptions(tensor_dump_output_path=b"here")) is None
    delegate = create(DelegateOptions(backend_type=BackendType.HTP, profiling=Profiling.BASIC))
    vote = function("TfLiteQnnDelegateSetPerf", ctypes.c_bool, address, number)
    mode = function("TfLiteQnnDelegateUpdateHtpPerfMode", ctypes.c_bool, address, number)
    assert [vote(delegate, action) for action in (0, 1, 2)] == [True, True, False]
    assert [mode(delegate, each) for each in (0, 77)] == [True, False]
    assert not function("TfLiteQnnDelegateUpdateDspPerfMode", ctypes.c_bool, address, number)(delegate, 0)
    capable = function("TfLiteQnnDelegateHasCapability", number, number)
    assert [capable(each) for each in (0, 1, 77)] == [1, 1, 0]
    profile = function("TfLiteQnnDelegateGetProfilingResult", ProfilingResult, address)(delegate)
    assert json.loads(ctypes.string_at(profile.buffer, profile.buffer_length)) == []
    function("TfLiteQnnDelegateClearProfilingResult", None, address)(delegate)
    function("TfLiteQnnDelegateDelete", None, address)(delegate)
    assert not vote(delegate, 0), "there is none"
    texts, messages = ctypes.c_char_p * 2, []
    report = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(messages.append)
    made = function("tflite_plugin_create_delegate", address, texts, texts, ctypes.c_size_t, type(report))
    delegate = made(texts(b"backend_type", b"profiling"), texts(b"cpu", b"1"), 2, report)
    assert delegate
    assert not vote(delegate, 0), "the CPU has no clocks to vote for"
    function("tflite_plugin_destroy_delegate", None, address)(delegate)
    assert messages == []
    assert made(texts(b"backend_type", b"no option"), texts(b"cpu", b"1"), 2, report) is None
    assert "no option" in messages[0].decode()
