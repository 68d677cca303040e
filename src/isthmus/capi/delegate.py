"""libQnnTFLiteDelegate.so: the functions of QNN's delegate header, for programs with TFLite's own interpreter.

Errors are printed on standard error, like TFLite's own log, because none of these functions returns an error code.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus import qnn
from isthmus.backends.seam import registry
from isthmus.cabi.client import BadPointer, checked, pointer, read, read_array, text, write
from isthmus.cabi.delegate import DelegateOptions, ProfilingResult
from isthmus.capi.functions import serves
from isthmus.errors import Code, QnnError
from isthmus.log import LogLevel, to_standard_error

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer
    from isthmus.delegate import Options, QnnDelegate

MAX_SKIPPED = 1 << 16
"""How many operations or nodes a client may exclude from delegation."""
MAX_OPTIONS = 256
_TEXTS = ("library_path", "skel_library_dir", "cache_dir", "model_token")
# The options that are texts, and those that are lists.
_LISTS = ("skip_delegate_ops", "skip_delegate_node_ids")
# The client's function for error messages.
_REPORT = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


def _serves(name: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Register a function under its C name. An error is printed, and the result is then 0."""

    def enter(handler: Callable[..., int]) -> Callable[..., int]:
        @serves(name, failure=0)
        @wraps(handler)
        def answer(server: LibraryServer, *arguments: int) -> int:
            try:
                return handler(server, *arguments)
            except (QnnError, BadPointer) as problem:
                to_standard_error(LogLevel.ERROR, str(problem))
                return 0

        return answer

    return enter


# -- delegates ---------------------------------------------------------------------------------------------------------


@_serves("TfLiteQnnDelegateCreate")
def create(server: LibraryServer, options: int) -> int:
    """Create a delegate; return the address of TFLite's structure, or null on error."""
    return _create(server, _options(options))


def _create(server: LibraryServer, options: Options) -> int:
    """Create a delegate, keep it until the client deletes it, and return the address of TFLite's structure."""
    from isthmus.delegate import QnnDelegate

    delegate = QnnDelegate(options)
    address = delegate._get_native_delegate_pointer()
    server.client_objects[address] = delegate
    server.endings[address] = delegate.end
    return address


def _delegate(server: LibraryServer, address: int) -> QnnDelegate:
    """Return the delegate of a client's pointer."""
    from isthmus.delegate import QnnDelegate

    delegate = server.client_objects.get(address)
    if not isinstance(delegate, QnnDelegate):
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"delegate at {address:#x}", "it is unknown, or was deleted")
    return delegate


@_serves("TfLiteQnnDelegateDelete")
def delete(server: LibraryServer, address: int) -> int:
    """Delete a delegate. If an interpreter still runs its nodes, print the error and keep it."""
    _delegate(server, address).close()
    del server.client_objects[address]
    # Its profiling result, which is kept under the negative address.
    server.client_objects.pop(-address, None)
    server.endings.pop(address, None)
    return 0


def _options(address: int) -> Options:
    """Read the client's options; refuse an unsupported option that would change results."""
    from isthmus.delegate import Options, SkipOptions
    from isthmus.delegate.options import BACKEND_OPTIONS

    if not address:
        raise QnnError(Code.BACKEND_INVALID_ARGUMENT, "options", "they are null")
    structure = read(address, DelegateOptions)
    if structure.op_package_options.num_op_package_infos > 0:
        raise QnnError(Code.COMMON_NOT_SUPPORTED, "option op_package_options", "operation packages are not offered")
    if text(pointer(structure, "tensor_dump_output_path")):
        raise QnnError(Code.COMMON_NOT_SUPPORTED, "option tensor_dump_output_path", "tensors are not dumped")
    # Each backend's own options are a structure inside the client's, with fields of the same names.
    values: dict[str, Any] = {
        name: kind(**{each.name: getattr(getattr(structure, name), each.name) for each in fields(kind)})
        for name, kind in BACKEND_OPTIONS.items()
    }
    values |= {name: getattr(structure, name) for name in ("backend_type", "log_level", "profiling", "graph_priority")}
    values |= {name: text(pointer(structure, name)) or None for name in _TEXTS}
    skipped = structure.skip_options
    lists = {name: _numbers(pointer(skipped, name), getattr(skipped, f"{name}_nr")) for name in _LISTS}
    return Options(skip_options=SkipOptions(**lists), **values)


def _numbers(address: int, count: int) -> list[int]:
    """Read a list of operations or nodes that the client excludes."""
    if count > MAX_SKIPPED:
        raise QnnError(Code.BACKEND_INVALID_ARGUMENT, "option skip_options", f"{count} of one kind are too many")
    return [int(each) for each in read_array(address, np.int32, (count,))] if count else []


# -- shared memory -----------------------------------------------------------------------------------------------------


@_serves("TfLiteQnnDelegateAllocCustomMem")
def alloc_custom_mem(server: LibraryServer, nbytes: int, alignment: int) -> int:
    """Allocate shared memory and return its address, or null on error."""
    from isthmus.delegate import c_names

    address = c_names.TfLiteQnnDelegateAllocCustomMem(nbytes, alignment)
    if address is None:
        what = f"custom memory of {nbytes} bytes"
        raise QnnError(Code.COMMON_MEM_ALLOC, what, f"it could not be allocated, aligned to {alignment}")
    return address


@_serves("TfLiteQnnDelegateFreeCustomMem")
def free_custom_mem(server: LibraryServer, address: int) -> int:
    """Free shared memory. It is released after the interpreters whose delegated nodes have registered it.

    A delegate cannot know which other memory an interpreter was given in C++.
    """
    from isthmus.delegate import c_names, custom_memory

    c_names.TfLiteQnnDelegateFreeCustomMem(address)
    if custom_memory.find(address) is not None:
        text = f"Custom memory at {address:#x} goes with the interpreter that has a tensor there."
        to_standard_error(LogLevel.INFO, text)
    return 0


# -- performance and profiling -----------------------------------------------------------------------------------------


@_serves("TfLiteQnnDelegateSetPerf")
def set_perf(server: LibraryServer, address: int, action: int) -> int:
    """Return whether a clock vote was understood; it has no effect here."""
    return int(bool(_performance_modes(server, address)) and action in (0, 1))


@_serves("TfLiteQnnDelegateUpdateHtpPerfMode")
def update_perf_mode(server: LibraryServer, address: int, mode: int) -> int:
    """Return whether a performance mode was understood."""
    return int(mode in _performance_modes(server, address))


def _performance_modes(server: LibraryServer, address: int) -> list[int]:
    """Return the performance modes that a delegate's backend knows; empty if it has none."""
    return [int(mode) for mode in _delegate(server, address).settings.facet.performance_modes]


@serves("TfLiteQnnDelegateHasCapability", failure=0)
def has_capability(server: LibraryServer, capability: int) -> int:
    """Return whether a backend with the capability runs here: it may need a device, and no backend offers a DSP."""
    for entry in registry.usable():
        if capability in entry.delegate.capabilities:
            try:
                qnn.Backend(entry.name).free()
            except QnnError:
                continue
            return 1
    return 0


@_serves("TfLiteQnnDelegateGetProfilingResult")
def get_profiling_result(server: LibraryServer, address: int, out: int) -> int:
    """Write the events so far as a JSON list; it is valid until cleared or requested again."""
    delegate = _delegate(server, address)
    events = () if delegate.profile is None else delegate.profile.get_events()
    content = json.dumps([{"name": event.name, "value": event.value, "unit": event.unit} for event in events]).encode()
    result = server.client_objects[-address] = ctypes.create_string_buffer(content, len(content))
    write(out, ProfilingResult(ctypes.cast(result, ctypes.POINTER(ctypes.c_uint8)), len(content)))
    return 0


@serves("TfLiteQnnDelegateClearProfilingResult", failure=0)
def clear_profiling_result(server: LibraryServer, address: int) -> int:
    """Free the profiling result."""
    server.client_objects.pop(-address, None)
    return 0


# -- options as strings ------------------------------------------------------------------------------------------------


@serves("tflite_plugin_create_delegate", failure=0)
def plugin_create_delegate(server: LibraryServer, keys: int, values: int, count: int, report: int) -> int:
    """Create a delegate from options as strings, as TFLite's tools and LiteRT's ``load_delegate`` pass them."""
    try:
        if count > MAX_OPTIONS:
            raise QnnError(Code.BACKEND_INVALID_ARGUMENT, "options", f"{count} of them are too many")
        texts = {_text(keys, index): _text(values, index) for index in range(count)}
        return _create(server, _from_texts(texts))
    except (QnnError, BadPointer) as problem:
        if report:
            _REPORT(report)(str(problem).encode(errors="backslashreplace"))
        else:
            to_standard_error(LogLevel.ERROR, str(problem))
        return 0


def _text(address: int, index: int) -> str:
    """Read one text of an array of pointers."""
    return text(checked(read(checked(address), ctypes.c_uint64, index).value)) or ""


def _from_texts(remaining: dict[str, str]) -> Options:
    """Return the options that a client gives as texts by name."""
    # Each option that is understood is removed from `remaining`; what is left at the end is refused.
    from isthmus.delegate import BackendType, DelegateLogLevel, GraphPriority, Options, Profiling, SkipOptions
    from isthmus.delegate.options import BACKEND_OPTIONS, backend_types

    options = Options(skip_options=SkipOptions())

    def number(key: str, kind: Any) -> Any:
        """Return a member by its number, or by its name in upper or lower case."""
        value = remaining.pop(key)
        members = {each.name.lower(): each for each in kind} | {str(int(each)): each for each in kind}
        member = members.get(value.lower())
        if member is None and kind is BackendType:
            types = backend_types()
            member = (types | {str(number): number for number in types.values()}).get(value.lower())
        if member is None:
            choices = ", ".join(f"{each.name.lower()} {int(each)}" for each in kind)
            raise QnnError(Code.BACKEND_INVALID_ARGUMENT, f"option {key}", f"must be one of {choices}, is '{value}'")
        return member

    def items(key: str) -> list[Any]:
        """Return the parts of a list with commas, numbers as integers."""
        parts = [part.strip() for part in remaining.pop(key).split(",") if part.strip()]
        return [int(part) if part.isdecimal() else part for part in parts]

    # By option name: the object to set an attribute of, the attribute's name, and its enumeration.
    members: dict[str, tuple[Any, str, Any]] = {
        "backend_type": (options, "backend_type", BackendType),
        "log_level": (options, "log_level", DelegateLogLevel),
        "profiling": (options, "profiling", Profiling),
        "graph_priority": (options, "graph_priority", GraphPriority),
    }
    for name in BACKEND_OPTIONS:
        own = getattr(options, name)
        for mode, default in vars(own).items():
            members[f"{name.removesuffix('_options')}_{mode}"] = own, mode, type(default)
    for key in list(remaining):
        if key in members:
            target, name, kind = members[key]
            setattr(target, name, number(key, kind))
        elif key in _TEXTS:
            setattr(options, key, remaining.pop(key) or None)
        elif key in _LISTS:
            setattr(options.skip_options, key, items(key))
    if remaining:
        choices = ", ".join(sorted((*members, *_TEXTS, *_LISTS)))
        rule = f"there is no option named {', '.join(sorted(remaining))}"
        raise QnnError(Code.BACKEND_INVALID_ARGUMENT, "options", rule, f"There are {choices}.")
    return options
