"""libQnnTFLiteDelegate.so: what it was asked to keep ends with the delegate, and its defaults are those of Python."""

from __future__ import annotations

import ctypes
import json

from isthmus.capi.serve import Server
from isthmus.delegate import BackendType, Profiling
from isthmus.qnn.interface.delegate import DelegateOptions, ProfilingResult


def test_what_profiling_told_ends_with_the_delegate() -> None:
    server = Server("QnnTFLiteDelegate")
    options = DelegateOptions(backend_type=BackendType.CPU, profiling=Profiling.BASIC)
    for clear in (True, False):
        made = server.TfLiteQnnDelegateCreate(ctypes.addressof(options))
        result = ProfilingResult()
        for _ in range(2):
            server.TfLiteQnnDelegateGetProfilingResult(made, ctypes.addressof(result))
            place, nbytes = (getattr(result, name) for name, *_ in ProfilingResult._fields_)
            assert json.loads(ctypes.string_at(place, nbytes)) == []
        assert len(server.kept) == 2
        if clear:
            server.TfLiteQnnDelegateClearProfilingResult(made)
            assert len(server.kept) == 1
        server.TfLiteQnnDelegateDelete(made)
        assert (server.kept, server.endings) == ({}, {})
