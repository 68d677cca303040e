"""Memory: resources that allocate it, buffers, windows of buffers, and holds on windows."""

from isthmus.memory import rpcmem, tcm
from isthmus.memory.adaptors import Fault, MemoryCap, Statistics, fault, limit, statistics
from isthmus.memory.adopt import adopt, window
from isthmus.memory.auditing import audit
from isthmus.memory.buffer import Buffer, PartBuffer
from isthmus.memory.host import host
from isthmus.memory.identity import Identity, Span
from isthmus.memory.resource import Adaptor, AllocationRequest, MemoryResource, current, provide
from isthmus.memory.rpcmem import RpcBuffer
from isthmus.memory.shareable import SharedFd
from isthmus.memory.window import Window

__all__ = [
    "Adaptor",
    "AllocationRequest",
    "Buffer",
    "Fault",
    "Identity",
    "MemoryCap",
    "MemoryResource",
    "PartBuffer",
    "RpcBuffer",
    "SharedFd",
    "Span",
    "Statistics",
    "Window",
    "adopt",
    "audit",
    "current",
    "fault",
    "host",
    "limit",
    "provide",
    "rpcmem",
    "statistics",
    "tcm",
    "window",
]
