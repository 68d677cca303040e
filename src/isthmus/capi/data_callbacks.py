"""Callbacks of clients that bring the data of a context binary, and contexts that are created with them."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from isthmus.backends.seam.provider import BinaryProvider, BinaryReader, BinarySection, ProvidedBuffer
from isthmus.cabi.client import BadPointer, checked, pointer, read, read_bytes
from isthmus.cabi.objects import (
    PROVIDE_DATA,
    RELEASE_DATA,
    BinaryCallback,
    BinaryDataRequest,
    DmaDataMem,
    DmaDataResponse,
)
from isthmus.errors import Code, QnnError
from isthmus.log import LogLevel

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

# QNN_CONTEXT_CALLBACK_DMA_BUFFER and QNN_CONTEXT_CALLBACK_DMA_BUFFER_VERSION_1.
_DMA_BUFFER, _VERSION = 2, 1
_PAGE = 4096
_NO_FD = -1


class CallbackError(Exception):
    """The error that a client's callback has returned, which becomes that of the call."""

    def __init__(self, error: int) -> None:
        super().__init__(error)
        # The library takes what is returned as a number with a sign.
        self.error = ctypes.c_int64(error).value


class DataCallbacks(BinaryProvider):
    """A client's callbacks; `address` is that of their structure.

    Errors: COMMON_NOT_SUPPORTED for callbacks with raw buffers, CONTEXT_INVALID_ARGUMENT for a structure that is none.
    """

    def __init__(self, server: LibraryServer, address: int) -> None:
        callbacks = read(checked(address), BinaryCallback)
        versioned = callbacks.dmaBufferCallback
        if callbacks.type != _DMA_BUFFER:
            rule = f"their type {callbacks.type} is not supported, only that of DMA buffers ({_DMA_BUFFER})"
            raise QnnError(Code.COMMON_NOT_SUPPORTED, "data callbacks", rule)
        provide, release = (pointer(versioned.v1, name) for name in ("dataProvide", "dataRelease"))
        if versioned.version != _VERSION or not provide or not release:
            rule = f"their version must be {_VERSION}, and both functions must be there"
            raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, "data callbacks", rule)
        self._server = server
        self._provide, self._release = PROVIDE_DATA(provide), RELEASE_DATA(release)
        self._parameter = pointer(versioned.v1, "notifyParam") or None

    def provide(self, section: BinarySection) -> ProvidedBuffer:
        response = DmaDataResponse()
        response.dmaBuffer.fd = _NO_FD
        request = BinaryDataRequest(section.offset, section.nbytes, 1)
        error = self._provide(request, ctypes.addressof(response), self._parameter)
        if error:
            end = section.offset + section.nbytes
            rule = f"the callback returns {error} for the bytes {section.offset} to {end} of the binary"
            self._server.log(LogLevel.ERROR, f"data callbacks: {rule}")
            raise CallbackError(error)
        data = pointer(response.dmaBuffer, "data")
        fd, nbytes, start = response.dmaBuffer.fd, response.alignedSize, response.dataStartOffset
        buffer = ProvidedBuffer(fd, nbytes, start, data)
        if not data or data % _PAGE:
            self.release(buffer)
            rule = f"the address of a buffer must be a multiple of {_PAGE}, is {data:#x}"
            raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, "data callbacks", rule)
        return buffer

    def release(self, buffer: ProvidedBuffer) -> None:
        mem = DmaDataMem()
        mem.dmaBuffer.fd, mem.dmaBuffer.data, mem.memSize = buffer.fd, buffer.memory or None, buffer.nbytes
        error = self._release(mem, self._parameter)
        if error:
            self._server.log(LogLevel.WARN, f"data callbacks: the callback that gets a buffer back returns {error}")


class ClientBinary(BinaryReader):
    """A binary in a client's memory, of which only what is needed is copied."""

    def __init__(self, address: int, nbytes: int) -> None:
        self._address, self.nbytes = checked(address), nbytes

    def read(self, offset: int, nbytes: int) -> bytes:
        try:
            return read_bytes(self._address + offset, max(min(nbytes, self.nbytes - offset), 0))
        except BadPointer as problem:
            raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, "context binary", str(problem)) from None
