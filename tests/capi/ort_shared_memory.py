"""ONNX Runtime's shared-memory allocator on our library, through its C interface: a program for `test_provider.py`.

    python ort_shared_memory.py FOLDER MODEL

Python's own interface has no way to the allocator of a session. Of the C interface a dozen functions are called, by
their places in its table; that the table is the one that is meant is seen before anything else is done.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import onnxruntime_qnn
from support import oracles

from isthmus import capi

PLACES = {
    "GetErrorMessage": 2, "CreateEnv": 3, "CreateSession": 7, "Run": 9, "CreateSessionOptions": 10,
    "SetSessionLogSeverityLevel": 22, "SessionGetInputCount": 30, "CreateTensorWithDataAsOrtValue": 49,
    "CreateMemoryInfo": 68, "AllocatorAlloc": 75, "AllocatorFree": 76, "ReleaseSession": 95, "CreateAllocator": 131,
    "ReleaseAllocator": 132, "CreateKeyValuePairs": 295, "AddKeyValuePair": 296, "GetKeyValue": 297,
    "RegisterExecutionProviderLibrary": 301, "GetEpDevices": 303, "SessionOptionsAppendExecutionProvider_V2": 304,
}  # fmt: skip
VERSION = 22
RUNS = 5
WORD = ctypes.c_void_p


class Base(ctypes.Structure):
    """OrtApiBase."""

    _fields_ = [("GetApi", ctypes.CFUNCTYPE(WORD, ctypes.c_uint32)), ("GetVersionString", WORD)]


class Api:
    """The functions by name; an error ends the program."""

    def __init__(self) -> None:
        folder = Path(onnxruntime.__file__).parent / "capi"
        self._library = ctypes.CDLL(str(next(folder.glob("libonnxruntime.so*"))))
        self._library.OrtGetApiBase.restype = ctypes.POINTER(Base)
        self._table = self._library.OrtGetApiBase().contents.GetApi(VERSION)

    def raw(self, name: str, *arguments: Any) -> int | None:
        """Call a function with words."""
        function = WORD.from_address(self._table + 8 * PLACES[name]).value
        words = [WORD(argument) if isinstance(argument, int) else argument for argument in arguments]
        answer = ctypes.CFUNCTYPE(WORD)(function)(*words)
        return None if answer is None else int(answer)

    def __call__(self, name: str, *arguments: Any) -> None:
        status = self.raw(name, *arguments)
        if status:
            raise SystemExit(f"{name}: {ctypes.string_at(self.raw('GetErrorMessage', status) or 0)!r}")

    def create(self, name: str, *arguments: Any) -> WORD:
        """Call a function whose last argument is a place for a result, and return that."""
        out = WORD()
        self(name, *arguments, ctypes.byref(out))
        return out

    def is_known(self) -> bool:
        """Return whether the table has known functions at their places."""
        pairs = WORD()
        self.raw("CreateKeyValuePairs", ctypes.byref(pairs))
        self.raw("AddKeyValuePair", pairs, b"name", b"value")
        return ctypes.string_at(self.raw("GetKeyValue", pairs, b"name") or 0) == b"value"


def main(folder: str, model: str) -> None:
    """Run a model of one input and one output, all floats, in memory of the session's allocator."""
    library = capi.load(folder)
    api = Api()
    if not api.is_known():
        raise SystemExit("another table")
    env = api.create("CreateEnv", 3, b"isthmus")
    api("RegisterExecutionProviderLibrary", env, b"QNN", onnxruntime_qnn.get_library_path().encode())
    devices, count = ctypes.POINTER(WORD)(), ctypes.c_size_t()
    api("GetEpDevices", env, ctypes.byref(devices), ctypes.byref(count))
    options = api.create("CreateSessionOptions")
    api("SetSessionLogSeverityLevel", options, 3)
    settings = {b"backend_path": str(library).encode(), b"enable_htp_shared_memory_allocator": b"1"}
    keys = (ctypes.c_char_p * len(settings))(*settings)
    values = (ctypes.c_char_p * len(settings))(*settings.values())
    # The provider's devices come after ONNX Runtime's own.
    mine = (WORD * 1)(devices[count.value - 1])
    api("SessionOptionsAppendExecutionProvider_V2", options, env, mine, ctypes.c_size_t(1), keys, values, len(settings))
    session = api.create("CreateSession", env, model.encode(), options)

    python = oracles.onnx_session(model)
    (given,), (made,) = python.get_inputs(), python.get_outputs()
    x = np.random.default_rng(0).standard_normal(given.shape).astype(np.float32)
    (expected,) = python.run(None, {given.name: x})
    info = api.create("CreateMemoryInfo", b"QnnHtpShared", 0, 0, 0)
    allocator = api.create("CreateAllocator", session, info)

    def shared(shape: list[int]) -> tuple[np.ndarray, WORD, WORD]:
        nbytes = 4 * int(np.prod(shape))
        memory = api.create("AllocatorAlloc", allocator, ctypes.c_size_t(nbytes))
        array = np.frombuffer((ctypes.c_char * nbytes).from_address(memory.value or 0), np.float32).reshape(shape)
        dims = (ctypes.c_int64 * len(shape))(*shape)
        value = api.create("CreateTensorWithDataAsOrtValue", info, memory, ctypes.c_size_t(nbytes), dims, len(shape), 1)
        return array, memory, value

    array_in, memory_in, value_in = shared(given.shape)
    array_out, memory_out, value_out = shared(made.shape)
    array_in[...] = x
    names_in, names_out = (ctypes.c_char_p * 1)(given.name.encode()), (ctypes.c_char_p * 1)(made.name.encode())
    for _ in range(RUNS):
        api(
            "Run",
            session,
            None,
            names_in,
            (WORD * 1)(value_in),
            ctypes.c_size_t(1),
            names_out,
            ctypes.c_size_t(1),
            (WORD * 1)(value_out),
        )
    (graph,) = capi.graphs()
    stats = graph.stats
    reported = {
        "difference": float(abs(array_out - expected).max()),
        "executions": stats.executions,
        "copied": stats.copied_bytes,
        "staging": stats.staging_bytes,
        "in_place": stats.in_place_bytes,
        "used": RUNS * (array_in.nbytes + array_out.nbytes),
    }
    for memory in (memory_in, memory_out):
        api("AllocatorFree", allocator, memory)
    api.raw("ReleaseAllocator", allocator)
    api.raw("ReleaseSession", session)
    print(json.dumps(reported))


if __name__ == "__main__":
    main(*sys.argv[1:])
