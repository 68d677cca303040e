"""Memory for tensors that a client brings as RAW: they are transferred to the device and back at each execution.

Where the device shares memory with the host, a copy into memory that both see is all it takes. Elsewhere the copy goes
to pinned memory, from where the device fetches it at the speed of the bus. The client's own memory is touched by copies
of the host only, while it waits: an execution that is given up writes nothing into it later.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from isthmus.graph import TensorInfo
from isthmus.memory import Buffer, Window, opencl
from isthmus.memory.opencl import HostSharedBuffer, OpenClBuffer, PinnedBuffer
from isthmus.opencl import commands
from isthmus.opencl.commands import Command
from isthmus.opencl.context import Context

PARALLEL_BYTES = 4 << 20
"""From here on a copy is shared out between threads: one alone is slower than the bus."""
_COPIERS = 4


class Stage:
    """One tensor's memory on the device, and the host's side of it.

    Parameters
    ----------
    context
        Where.
    nbytes
        Of the tensor.
    """

    def __init__(self, context: Context, nbytes: int) -> None:
        self._context, self.nbytes = context, nbytes
        size = max(nbytes, 1)
        self.shared: HostSharedBuffer | None = None
        self._device: OpenClBuffer | None = None
        self._pinned: PinnedBuffer | None = None
        if context.device.unified:
            self.shared = opencl.shared(context, size)
        else:
            self._device = opencl.device(context, size)

    @property
    def handle(self) -> int:
        """OpenCL's memory object."""
        buffer = self.shared or self._device
        assert buffer is not None
        return buffer.handle

    @property
    def buffers(self) -> list[Buffer]:
        """All that it has reserved."""
        return [buffer for buffer in (self.shared, self._device, self._pinned) if buffer is not None]

    def address_for(self, window: Window) -> int:
        """Where the host puts or finds the tensor: the client's own place, where the device may fetch from there."""
        if self.shared is not None:
            return self.shared.address
        if isinstance(window.buffer, PinnedBuffer):
            return window.address
        if self._pinned is None:
            self._pinned = opencl.pinned(self._context, max(self.nbytes, 1))
        return self._pinned.address

    def before(self, address: int, label: str, is_input: bool) -> list[Command]:
        """What hands the tensor to the device."""
        if self.shared is not None:
            return [commands.unmap(self.shared.handle, self.shared.address, label)]
        return [commands.write(self.handle, 0, self.nbytes, address, label)] if is_input and self.nbytes else []

    def after(self, address: int, label: str, is_input: bool) -> list[Command]:
        """What hands it back."""
        if self.shared is not None:
            return [commands.map_at(self.shared.handle, self.shared.facts.nbytes, self.shared.address, label)]
        return [] if is_input or not self.nbytes else [commands.read(self.handle, 0, self.nbytes, address, label)]


class Staging:
    """The stages of a graph, by the index of the tensor."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._stages: dict[int, Stage] = {}

    def reserve(self, infos: Sequence[TensorInfo], indexes: Iterable[int]) -> None:
        """Have a stage for each of these tensors."""
        for index in indexes:
            if index not in self._stages:
                self._stages[index] = Stage(self._context, infos[index].nbytes)

    def __getitem__(self, index: int) -> Stage:
        return self._stages[index]

    @property
    def reserved(self) -> int:
        """Bytes that are reserved now."""
        return sum(buffer.nbytes for stage in self._stages.values() for buffer in stage.buffers)

    def close(self) -> None:
        """Give all memory back; safe to call again."""
        for stage in self._stages.values():
            for buffer in stage.buffers:
                buffer.close()
        self._stages.clear()


class Copier:
    """Copies between the client's memory and a stage's. Large ones are shared out between threads of its own."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy bytes from one address to another."""
        if nbytes < PARALLEL_BYTES:
            ctypes.memmove(target, source, nbytes)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_COPIERS, "isthmus-copy")
        part = -(-nbytes // (_COPIERS * 4096)) * 4096
        list(
            self._pool.map(
                lambda at: ctypes.memmove(target + at, source + at, min(part, nbytes - at)), range(0, nbytes, part)
            )
        )

    def close(self) -> None:
        """End the threads; safe to call again."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
