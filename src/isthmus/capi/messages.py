"""QnnError_*: error codes by name, with a sentence for each, and the reason why a call was refused."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from isthmus.cabi.client import text, write_number
from isthmus.cabi.declarations import name_of
from isthmus.cabi.objects import PropertyAnswer
from isthmus.capi.functions import serves
from isthmus.errors import Code, QnnError

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

# The message of a result that only propertyHasCapability returns, so that it is none of `Code`.
_UNKNOWN_KEY = "QNN_PROPERTY_ERROR_UNKNOWN_KEY: there is no capability with this key"
SENTENCES = {
    Code.SUCCESS: "the call succeeded",
    Code.COMMON_NOT_SUPPORTED: "this library does not support the function or the request",
    Code.COMMON_MEM_ALLOC: "memory could not be allocated",
    Code.COMMON_SYSTEM: "a call of the operating system failed",
    Code.COMMON_INVALID_ARGUMENT: "an argument is not valid",
    Code.COMMON_OPERATION_NOT_PERMITTED: "the object is in a state that does not permit the call",
    Code.COMMON_PLATFORM_NOT_SUPPORTED: "this platform is not supported",
    Code.COMMON_SYSTEM_COMMUNICATION: "the accelerator has ended; create the contexts again",
    Code.COMMON_INCOMPATIBLE_BINARIES: "libraries of different versions cannot work together",
    Code.COMMON_LOADING_BINARIES: "a library could not be loaded",
    Code.COMMON_RESOURCE_UNAVAILABLE: "a resource is not available at present",
    Code.COMMON_SYSTEM_COMMUNICATION_FATAL: "the accelerator has ended and cannot be started again",
    Code.COMMON_GENERAL: "an error that has no code of its own",
    Code.OP_PACKAGE_VALIDATION_FAILURE: "the backend cannot execute this operation as it is configured",
    Code.BACKEND_CANNOT_INITIALIZE: "the backend could not be initialized",
    Code.BACKEND_TERMINATE_FAILED: "the backend could not be freed",
    Code.BACKEND_NOT_SUPPORTED: "the backend does not support the request",
    Code.BACKEND_INVALID_ARGUMENT: "an argument is not valid",
    Code.BACKEND_OP_PACKAGE_NOT_FOUND: "the op package or its operation was not found",
    Code.BACKEND_OP_PACKAGE_IF_PROVIDER_NOT_FOUND: "the op package has no such interface provider",
    Code.BACKEND_OP_PACKAGE_REGISTRATION_FAILED: "the op package could not be registered",
    Code.BACKEND_OP_PACKAGE_UNSUPPORTED_VERSION: "the version of the op package is not supported",
    Code.BACKEND_OP_PACKAGE_DUPLICATE: "an op package of this name is registered already",
    Code.BACKEND_INCONSISTENT_CONFIG: "the configs of the backend contradict each other",
    Code.BACKEND_INVALID_HANDLE: "the handle is not that of a backend",
    Code.BACKEND_INVALID_CONFIG: "a config of the backend is not valid",
    Code.SAVER_DUMMY_RETVALUE: "the call is recorded, or not, and has no result",
    Code.SAVER_ALREADY_INSTANTIATED: "the recording has begun already",
    Code.CONTEXT_INVALID_ARGUMENT: "an argument is not valid",
    Code.CONTEXT_CTX_DOES_NOT_EXIST: "the context does not exist",
    Code.CONTEXT_INVALID_HANDLE: "the handle is not that of a context",
    Code.CONTEXT_NOT_FINALIZED: "a graph of the context is not finalized",
    Code.CONTEXT_BINARY_VERSION: "the version of the context binary is not supported",
    Code.CONTEXT_CREATE_FROM_BINARY: "no context could be created from the binary",
    Code.CONTEXT_GET_BINARY_SIZE_FAILED: "the size of the context binary could not be determined",
    Code.CONTEXT_GET_BINARY_FAILED: "the context binary could not be written",
    Code.CONTEXT_BINARY_CONFIGURATION: "the context binary does not fit the backend's configuration",
    Code.CONTEXT_SET_PROFILE: "the profile could not be set",
    Code.CONTEXT_INVALID_CONFIG: "a config of the context is not valid",
    Code.CONTEXT_BINARY_SUBOPTIMAL: "the context binary was made for another chip and would not run at its best",
    Code.CONTEXT_ABORTED: "the creation of the context was aborted by its signal",
    Code.CONTEXT_TIMED_OUT: "the creation of the context took longer than its signal allows",
    Code.CONTEXT_INCREMENT_INVALID_BUFFER: "the buffer is no piece of the context's binary",
    Code.GRAPH_INVALID_ARGUMENT: "an argument is not valid",
    Code.GRAPH_INVALID_HANDLE: "the handle is not that of a graph",
    Code.GRAPH_DOES_NOT_EXIST: "the graph does not exist",
    Code.GRAPH_INVALID_NAME: "the name is not valid, used already, or not known",
    Code.GRAPH_INVALID_TENSOR: "a tensor is missing, unknown or not valid",
    Code.GRAPH_INVALID_OP_CONFIG: "the description of the operation is not valid",
    Code.GRAPH_SET_PROFILE: "the profile could not be set",
    Code.GRAPH_UNCONNECTED_NODE: "the node cannot be added before what it depends on",
    Code.GRAPH_CREATE_FAILED: "the graph could not be created",
    Code.GRAPH_OPTIMIZATION_FAILED: "the graph could not be optimized",
    Code.GRAPH_FINALIZE_FAILED: "the graph could not be finalized",
    Code.GRAPH_NOT_FINALIZED: "the graph is not finalized",
    Code.GRAPH_FINALIZED: "the graph is finalized and cannot be changed",
    Code.GRAPH_EXECUTION_ASYNC_FIFO_FULL: "too many executions of the context are waiting",
    Code.GRAPH_SIGNAL_IN_USE: "another call uses the signal",
    Code.GRAPH_ABORTED: "the call was aborted by its signal",
    Code.GRAPH_PROFILE_IN_USE: "another call uses the profile",
    Code.GRAPH_TIMED_OUT: "the call took longer than its signal allows",
    Code.GRAPH_SUBGRAPH: "a subgraph does not permit the call",
    Code.TENSOR_INVALID_HANDLE: "the handle or the tensor is not valid",
    Code.TENSOR_DOES_NOT_EXIST: "the tensor does not exist",
    Code.TENSOR_ALREADY_EXISTS: "a tensor of this name exists already",
    Code.TENSOR_INVALID_TENSOR_PARAM: "a field of the tensor is not valid",
    Code.TENSOR_UNSUPPORTED_TENSOR_PARAM: "a field of the tensor has a value that is not supported",
    Code.MEM_INVALID_ARGUMENT: "an argument is not valid",
    Code.MEM_INVALID_HANDLE: "the handle is not that of registered memory",
    Code.MEM_ALREADY_REGISTERED: "the memory is registered already",
    Code.MEM_MAPPING: "the memory could not be mapped",
    Code.MEM_INVALID_SHAPE: "the shape or the alignment of the memory is not valid",
    Code.MEM_UNSUPPORTED_MEMTYPE: "the backend does not support this type of memory",
    Code.ERROR_INVALID_ARGUMENT: "an argument is not valid",
    Code.ERROR_INVALID_ERROR_HANDLE: "there is no error with this code",
    Code.LOG_INVALID_ARGUMENT: "an argument is not valid",
    Code.LOG_INVALID_HANDLE: "the handle is not that of a log",
    Code.PROFILE_INVALID_HANDLE: "the handle is not that of a profile",
    Code.DEVICE_INVALID_HANDLE: "the handle is not that of a device",
    Code.DEVICE_INVALID_CONFIG: "a config of the device is not valid",
    Code.DEVICE_HARDWARE_UNAVAILABLE: "the hardware is not available",
    Code.DEVICE_ASSOCIATED_TO_CONTEXT: "a context uses the device",
}
"""What each code means."""


def message_of(error: int) -> str:
    """Return the name and the sentence of an error that a function has returned; its code is in the low 16 bits."""
    number = error & 0xFFFF
    if number == PropertyAnswer.UNKNOWN_KEY:
        return _UNKNOWN_KEY
    try:
        code = Code(number)
    except ValueError:
        raise QnnError(Code.ERROR_INVALID_ERROR_HANDLE, f"error {error}", "no function returns it") from None
    return f"{name_of(code)}: {SENTENCES[code]}"


@serves("notOffered")
def not_offered(server: LibraryServer, name: int) -> int:
    """Log that no library here has a function, and return the code."""
    function = text(name) or ""
    return server.record_failure(
        function, QnnError(Code.COMMON_NOT_SUPPORTED, "function", "no library here implements it")
    )


@serves("errorGetMessage", Code.ERROR_INVALID_ARGUMENT)
def error_get_message(server: LibraryServer, error: int, out: int) -> None:
    """Write the name and the sentence of an error code."""
    write_number(out, 0)
    write_number(out, server.keep_text(message_of(error)))


@serves("errorGetVerboseMessage", Code.ERROR_INVALID_ARGUMENT)
def error_get_verbose_message(server: LibraryServer, error: int, out: int) -> None:
    """Write why an error code was last returned, or its message if it never was."""
    message = server.reason(error & 0xFFFF) or message_of(error)
    write_number(out, server.keep(ctypes.create_string_buffer(message.encode(errors="backslashreplace"))))


@serves("errorFreeVerboseMessage", Code.ERROR_INVALID_ARGUMENT)
def error_free_verbose_message(server: LibraryServer, message: int) -> None:
    """Free a message."""
    if server.client_objects.pop(message, None) is None:
        raise QnnError(Code.ERROR_INVALID_ARGUMENT, f"message at {message:#x}", "it does not belong to this library")
