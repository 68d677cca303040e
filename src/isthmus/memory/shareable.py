"""File descriptors of memory that two processes, or a process and an accelerator, can both map."""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import weakref
from dataclasses import dataclass
from typing import Any

from isthmus.errors import Code, QnnError
from isthmus.memory.buffer import MappedBuffer
from isthmus.memory.identity import Identity, file_identity
from isthmus.memory.integers import as_int, is_int
from isthmus.memory.window import Window
from isthmus.system.interrupts import FileDescriptor, own_fd
from isthmus.system.lock import Lock

_DMA_BUFFERS = ("/dmabuf", "anon_inode:dmabuf")
# Prefixes of the link in /proc/self/fd that mark memory that can be shared.
_SHAREABLE = ("/memfd:", "/dev/shm/", *_DMA_BUFFERS)


@dataclass(frozen=True)
class SharedFd:
    """Shared memory as a client names it: a file descriptor, an offset and a number of bytes."""

    fd: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class SharedFile:
    """The file that an open descriptor refers to.

    - `identity`: Its identity, which is the same for every descriptor and every mapping of this memory.
    - `can_shrink`: Whether it can be truncated. A process that then touches the missing pages is killed by the system.
    """

    identity: Identity
    nbytes: int
    can_shrink: bool = True


def shared_file(descriptor: Any, what: str) -> SharedFile:
    """Inspect shared memory by its file descriptor, and seal it against shrinking if possible.

    Raises `QnnError`: MEM_INVALID_ARGUMENT for anything but an open descriptor of shared memory: a file, a folder, a
    pipe, a socket.
    """
    if not is_int(descriptor) or not 0 <= descriptor < 1 << 31:
        raise QnnError(Code.MEM_INVALID_ARGUMENT, what, f"file descriptor {descriptor!r} is not one")
    fd = int(descriptor)
    try:
        # The link names the kind of memory, such as "/memfd:name (deleted)".
        status, link = os.fstat(fd), os.readlink(f"/proc/self/fd/{fd}")
        kind = stat.S_IFMT(status.st_mode)
        shareable = link.startswith(_SHAREABLE) and kind not in (stat.S_IFDIR, stat.S_IFIFO)
        # A descriptor opened with O_PATH only names a file; it cannot be mapped.
        usable = shareable and not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH
        can_shrink = usable and not link.startswith(_DMA_BUFFERS) and not _seal_against_shrinking(fd)
        # The size is read after sealing. A DMA buffer reports its size only through lseek.
        nbytes = (os.fstat(fd).st_size or os.lseek(fd, 0, os.SEEK_END)) if usable else 0
    except OSError as problem:
        rule = f"file descriptor {fd} cannot be used: {problem.strerror}"
        raise QnnError(Code.MEM_INVALID_ARGUMENT, what, rule) from None
    if not usable:
        raise QnnError(
            Code.MEM_INVALID_ARGUMENT,
            what,
            f"file descriptor {fd} is not shared memory ({link})",
            "isthmus.memory.rpcmem.alloc() makes such memory.",
        )
    return SharedFile(file_identity(status.st_dev, status.st_ino), nbytes, can_shrink)


def _seal_against_shrinking(fd: int) -> bool:
    """Seal a memfd against shrinking, if that is allowed; return whether it is sealed."""
    try:
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    except OSError:
        # A file in /dev/shm, a memfd made without MFD_ALLOW_SEALING, or a read-only descriptor.
        return False
    return True


class SharedMapping(MappedBuffer):
    """Shared memory that this process has mapped, from the start.

    The mapping closes its descriptor; a client's must be duplicated first.
    """

    def __new__(cls, own: FileDescriptor, nbytes: int, kind: str = "shared") -> SharedMapping:
        return super().__new__(cls, own.fileno(), nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)

    def __init__(self, own: FileDescriptor, nbytes: int, kind: str = "shared") -> None:
        self.fd = own.fileno()
        self._own = own
        super().__init__(kind, nbytes, shared_file(self.fd, "shared memory").identity, 0)

    def _release(self) -> None:
        self._own.close()
        super()._release()


# The mapping of each shared memory that this process has mapped, so that it is mapped only once.
_mappings: weakref.WeakValueDictionary[Identity, SharedMapping] = weakref.WeakValueDictionary()
_lock = Lock()


def remember(mapping: SharedMapping) -> None:
    """Register a mapping: windows of this memory use it from now on."""
    with _lock:
        _mappings[mapping.identity] = mapping


def mapping_of(identity: Identity) -> SharedMapping | None:
    """Return the open mapping of some shared memory, if this process has one."""
    with _lock:
        mapping = _mappings.get(identity)
    return None if mapping is None or mapping.is_closed else mapping


def mapped_window(shared: SharedFd, what: str, untouched: bool = False, file: SharedFile | None = None) -> Window:
    """Return the window of a descriptor, an offset and a length, in an existing mapping or a new one.

    - `untouched`: Whether only another process accesses the memory. Then memory that can shrink is accepted.
    - `file`: The inspected file, if the caller has it already.

    Raises `QnnError`: MEM_INVALID_ARGUMENT for anything but shared memory, or if it can shrink while this process uses
    it; MEM_INVALID_SHAPE for bytes outside it; MEM_MAPPING if the system refuses to map it.
    """
    file = file or shared_file(shared.fd, what)
    if file.can_shrink and not untouched:
        raise QnnError(
            Code.MEM_INVALID_ARGUMENT,
            what,
            f"file descriptor {shared.fd} is memory that can be made smaller while it is used, which ends the process",
            "Make it with MFD_ALLOW_SEALING, or by isthmus.memory.rpcmem.alloc().",
        )
    for number in (shared.offset, shared.nbytes):
        as_int(number, what, Code.MEM_INVALID_ARGUMENT)
    if shared.offset < 0 or shared.nbytes < 0 or shared.offset + shared.nbytes > file.nbytes:
        rule = f"bytes {shared.offset} to {shared.offset + shared.nbytes} are outside a buffer of {file.nbytes} bytes"
        raise QnnError(Code.MEM_INVALID_SHAPE, what, rule)
    mapping = mapping_of(file.identity)
    # A file may have grown since it was mapped.
    if mapping is None or mapping.nbytes < shared.offset + shared.nbytes:
        mapping = _map(shared.fd, file.nbytes, what)
    return mapping.window(shared.offset, shared.nbytes)


def _map(fd: int, nbytes: int, what: str) -> SharedMapping:
    """Map a client's shared memory and register the mapping."""
    try:
        # A duplicate, because the client may close its descriptor and reuse the number at any time.
        own = own_fd(fcntl.fcntl, fd, fcntl.F_DUPFD_CLOEXEC, 0)
    except OSError as problem:
        rule = f"file descriptor {fd} cannot be kept: {problem.strerror}"
        raise QnnError(Code.MEM_MAPPING, what, rule) from None
    try:
        mapping = SharedMapping(own, nbytes)
    except (OSError, ValueError, OverflowError) as problem:
        own.close()
        raise QnnError(Code.MEM_MAPPING, what, f"file descriptor {fd} cannot be mapped: {problem}") from None
    remember(mapping)
    return mapping


def map_whole(fd: int, nbytes: int, what: str, writable: bool = True) -> mmap.mmap:
    """Map the first `nbytes` of shared memory, with its pages faulted in; MEM_MAPPING if the system refuses."""
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    try:
        return mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=access)
    except (OSError, ValueError, OverflowError) as problem:
        raise QnnError(Code.MEM_MAPPING, what, f"file descriptor {fd} cannot be mapped: {problem}") from None
