"""Buffers of a client for contexts with deferred graphs, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from isthmus import qnn
from isthmus.memory import rpcmem
from isthmus.qnn import DescriptorType, MemDescriptor, htp

WEIGHTS, SPILL_FILL, VTCM_BACKUP = (
    htp.MemType.WEIGHTS_BUFFER, htp.MemType.SHARED_SPILLFILL_BUFFER, htp.MemType.SHARED_VTCMBACKUP_BUFFER,
)  # fmt: skip
PROPERTY = {WEIGHTS: htp.WEIGHTS_BUFFER_SIZE, SPILL_FILL: htp.MAX_SPILLFILL_BUFFER_SIZE}


def deferred(backend: qnn.Backend, content: bytes, **more: Any) -> qnn.Context:
    return backend.create_context_from_binary(content, deferred=True, **more)


def descriptor(kind: Any, buffer: rpcmem.RpcBuffer, **changes: Any) -> MemDescriptor:
    """The descriptor of a buffer, as clients of devices fill it."""
    stated = {"size": buffer.nbytes, "fd": buffer.fd, "offset": 0, "type": kind, **changes}
    return MemDescriptor((), qnn.DataType.UNDEFINED, DescriptorType.CUSTOM, custom=htp.Descriptor(**stated))


def register(context: qnn.Context, kind: Any, buffer: rpcmem.RpcBuffer | None = None) -> rpcmem.RpcBuffer:
    """Register a buffer of the size that the context's property says, or a given one."""
    made = rpcmem.share(context.get_property(PROPERTY[kind])) if buffer is None else buffer
    context.mem_register([descriptor(kind, made)])
    return made


def count_elsewhere(buffer: rpcmem.RpcBuffer, value: int) -> int:
    """Return how many bytes of a buffer have a value, as another process reads them from its descriptor."""
    code = (
        "import mmap, sys; "
        "content = mmap.mmap(int(sys.argv[1]), int(sys.argv[2]), prot=mmap.PROT_READ); "
        "print(content[:].count(int(sys.argv[3])))"
    )
    assert buffer.fd is not None
    arguments = [sys.executable, "-c", code, str(buffer.fd), str(buffer.nbytes), str(value)]
    return int(subprocess.run(arguments, pass_fds=[buffer.fd], check=True, capture_output=True).stdout)


def mapped_by_accelerator(backend: qnn.Backend) -> list[tuple[int, str, int]]:
    """The shared mappings of the accelerator: inode, name and bytes of each, as the system lists them."""
    found = []
    for line in Path(f"/proc/{backend.get_property(htp.ACCELERATOR_PID)}/maps").read_text().splitlines():
        span, rights, _, _, inode, *name = line.split(maxsplit=5)
        begin, end = (int(each, 16) for each in span.split("-"))
        if rights.endswith("s"):
            found.append((int(inode), "".join(name), end - begin))
    return found


def inode(buffer: rpcmem.RpcBuffer) -> int:
    assert buffer.fd is not None
    return os.fstat(buffer.fd).st_ino
