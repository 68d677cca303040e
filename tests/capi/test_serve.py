"""A library that is left frees what its client has not, whatever goes wrong meanwhile."""

from __future__ import annotations

import ctypes

import pytest

from isthmus import audit, qnn
from isthmus.capi.serve import LibraryServer
from isthmus.errors import Code, QnnError
from isthmus.log import LogLevel


@pytest.fixture
def server() -> LibraryServer:
    """A server that no library has loaded."""
    return LibraryServer("QnnTFLiteDelegate")


def test_an_ending_that_is_refused_keeps_nothing_else_from_its_end(server: LibraryServer) -> None:
    backend, ended = qnn.Backend("cpu"), []
    server.handles.add(backend)

    def refused() -> None:
        raise QnnError(Code.COMMON_SYSTEM_COMMUNICATION, "delegate", "it is gone")

    server.endings[1] = lambda: ended.append(1)
    server.endings[2] = refused
    server.endings[3] = lambda: ended.append(3)
    server.leave()
    assert ended == [3, 1], "what was made last ends first"
    assert not server.endings
    assert "it is gone" in (server.reason(Code.COMMON_SYSTEM_COMMUNICATION) or "")
    with pytest.raises(QnnError, match="backend"):
        backend.create_context()


def test_a_server_that_no_library_has_loaded_calls_no_function_of_one() -> None:
    """Neither to ask where a call comes from, nor to log, nor to forget executions, nor when it is left."""
    server = LibraryServer("QnnCpu")
    log, backend, context = (ctypes.c_uint64() for _ in range(3))
    with audit():
        assert server.logCreate(16, LogLevel.VERBOSE, ctypes.addressof(log)) == 0
        assert server.backendCreate(log.value, 0, ctypes.addressof(backend)) == 0
        assert server.contextCreate(backend.value, 0, 0, ctypes.addressof(context)) == 0
        assert server.contextFree(backend.value, 0) == Code.CONTEXT_INVALID_HANDLE, "which is logged"
        assert server.contextFree(context.value, 0) == 0
    server.leave()


def test_an_ending_that_is_interrupted_is_on_record_until_it_is_done(server: LibraryServer) -> None:
    ended = []

    def interrupted() -> None:
        ended.append("begun")
        if len(ended) == 1:
            raise KeyboardInterrupt

    server.endings[1] = interrupted
    with pytest.raises(KeyboardInterrupt):
        server.leave()
    server.leave()
    assert ended == ["begun", "begun"]
    assert not server.endings
