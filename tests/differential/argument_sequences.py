"""Every function with one wrong argument at a time: a null handle, an unknown one, one of another kind, a null pointer.

The table has right arguments for each function; `cabi.declarations` says what each argument is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_uint32, c_uint64, c_void_p
from typing import Any

from differential.calls import UNKNOWN, Calls
from isthmus.cabi import objects, types
from isthmus.capi.protocol import HANDLES, NEEDED


def _binary(q: Calls) -> tuple[Any, int]:
    """Return a binary of the context, and its size."""
    q.ready()
    content = q.binary()
    return q.keep(ctypes.create_string_buffer(content, len(content))), len(content)


def _place(q: Calls, kind: Any = c_void_p) -> Any:
    """Return a pointer to a place for a result."""
    return byref(q.keep(kind()))


RIGHT: dict[str, Callable[[Calls], list[Any]]] = {
    "backendSetConfig": lambda q: [q.backend, None],
    "backendGetSupportedOperations": lambda q: [
        q.backend, _place(q, c_uint32), _place(q, POINTER(objects.OperationName))],
    "backendValidateOpConfig": lambda q: [q.backend, q.operation(q.relu())],
    "backendFree": lambda q: [q.backend],
    "contextCreate": lambda q: [q.backend, q.device, None, _place(q)],
    "contextSetConfig": lambda q: [q.context, None],
    "contextGetBinarySize": lambda q: [q.context, _place(q, c_uint64)],
    "contextGetBinary": lambda q: [q.context, *_binary(q), _place(q, c_uint64)],
    "contextCreateFromBinary": lambda q: [q.backend, q.device, None, *_binary(q), _place(q), None],
    "contextCreateFromBinaryWithSignal": lambda q: [q.backend, q.device, None, *_binary(q), _place(q), None, None],
    "contextCreateFromBinaryListAsync": lambda q: [
        q.backend, q.device, q.keep((POINTER(objects.ContextParams) * 1)()), None, None],
    "contextValidateBinary": lambda q: [q.backend, q.device, None, *_binary(q)],
    "contextFree": lambda q: [q.context, None],
    "contextFinalize": lambda q: [q.context, None],
    "contextGetProperty": lambda q: [q.context, q.keep((POINTER(objects.ContextProperty) * 1)())],
    "backendGetProperty": lambda q: [q.backend, q.keep((POINTER(objects.Property) * 1)())],
    "graphGetProperty": lambda q: [q.ready(), q.keep((POINTER(objects.Property) * 1)())],
    "graphCreate": lambda q: [q.context, b"more", None, _place(q)],
    "graphSetConfig": lambda q: [q.built(), None],
    "graphAddNode": lambda q: [q.started(), q.operation(q.relu())],
    "graphFinalize": lambda q: [q.built(), None, None],
    "graphRetrieve": lambda q: [q.context, b"g" if q.ready() else b"", _place(q)],
    "graphExecute": lambda q: [q.ready(), q.with_memory([q.x]), 1, q.with_memory([q.y]), 1, None, None],
    "graphPrepareExecutionEnvironment": lambda q: [q.ready(), q.keep((POINTER(objects.ExecuteEnvironment) * 1)()), 0],
    "graphReleaseExecutionEnvironment": lambda q: [q.ready(), q.keep((POINTER(objects.ExecuteEnvironment) * 1)()), 0],
    "tensorCreateGraphTensor": lambda q: [q.open(), byref(q.tensor(q.x))],
    "tensorCreateContextTensor": lambda q: [q.context, byref(q.tensor(q.x))],
    "tensorUpdateGraphTensors": lambda q: [q.ready(), q.keep((POINTER(types.Tensor) * 1)()), 0],
    "tensorUpdateContextTensors": lambda q: [q.context, q.keep((POINTER(types.Tensor) * 1)()), 0],
    "logCreate": lambda q: [None, 1, _place(q)],
    "logSetLogLevel": lambda q: [q.make("logCreate", None, 1), 2],
    "logFree": lambda q: [q.make("logCreate", None, 1)],
    "profileCreate": lambda q: [q.backend, 1, _place(q)],
    "profileSetConfig": lambda q: [q.profile(), None],
    "profileGetEvents": lambda q: [q.profile(), _place(q, POINTER(c_uint64)), _place(q, c_uint32)],
    "profileFree": lambda q: [q.profile()],
    "deviceGetPlatformInfo": lambda q: [None, _place(q, POINTER(objects.PlatformInfo))],
    "deviceGetInfrastructure": lambda q: [_place(q)],
    "deviceCreate": lambda q: [None, None, _place(q)],
    "deviceSetConfig": lambda q: [q.device, None],
    "deviceGetInfo": lambda q: [q.device, _place(q, POINTER(objects.PlatformInfo))],
    "deviceFree": lambda q: [q.make("deviceCreate", None, None)],
    "errorGetMessage": lambda q: [1002, _place(q, c_char_p)],
    "errorGetVerboseMessage": lambda q: [1002, _place(q, c_char_p)],
    "backendGetApiVersion": lambda q: [_place(q, types.Version * 2)],
    "backendGetBuildId": lambda q: [_place(q, c_char_p)],
}  # fmt: skip
"""Right arguments of each function. Signals and memory, which x86 does not offer, are in `object_sequences`."""


def _other(q: Calls, kind: str) -> int:
    """Return a handle of another kind than this one."""
    return q.device if kind != "device" else q.make("logCreate", None, 1)


def _with(function: str, index: int, wrong: Callable[[Calls], Any]) -> Callable[[Calls], int]:
    """Return the sequence that calls a function with one wrong argument."""

    def sequence(q: Calls) -> int:
        arguments = RIGHT[function](q)
        arguments[index] = wrong(q)
        return q.code(function, *arguments)

    return sequence


def _sequences() -> dict[str, Callable[[Calls], Any]]:
    """Make the sequences of all functions."""
    made: dict[str, Callable[[Calls], Any]] = {}
    for function in RIGHT:
        made[f"{function}: right arguments"] = lambda q, function=function: q.code(function, *RIGHT[function](q))
        for index, kind, optional in HANDLES.get(function, ()):
            name = f"{function}: {kind} "
            if not optional:
                made[f"{name}that is null"] = _with(function, index, lambda q: None)
            made[f"{name}that is unknown"] = _with(function, index, lambda q: UNKNOWN)
            made[f"{name}of another kind"] = _with(function, index, lambda q, kind=kind: _other(q, kind))
        for index in NEEDED.get(function, ()):
            made[f"{function}: argument {index + 1} is null"] = _with(function, index, lambda q: None)
    return made


SEQUENCES = _sequences()
