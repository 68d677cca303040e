"""Memory for tensors that a client passes as RAW: they are transferred to the device and back at each execution.

If the device shares memory with the host, a copy into shared memory is enough. Otherwise a device fetches at the speed
of the bus from pinned memory only: small tensors are copied there first, and the pages of large ones are pinned in
place when they are bound. Pages that a tensor shares with its neighbours are not pinned, because two tensors cannot
both pin one page; their contents are copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from isthmus.backends.gpu import buffers
from isthmus.backends.gpu.runtime import commands
from isthmus.backends.gpu.runtime.commands import Command
from isthmus.backends.gpu.runtime.context import ClContext
from isthmus.backends.gpu.runtime.owned import Owned
from isthmus.graph import TensorInfo
from isthmus.memory import Buffer, Window

PIN_BYTES = 1 << 18
"""The size in bytes from which the client's own pages are pinned, which costs less than a few copies of them."""


@dataclass(frozen=True)
class HostPart:
    """Bytes of a tensor: their offset in it, their number, and the host address from which the device fetches them."""

    offset: int
    nbytes: int
    address: int


@dataclass(frozen=True)
class HostSide:
    """The host memory of a tensor, in parts.

    - `parts`: The parts of the tensor.
    - `pin`: The reference that keeps the client's own pages pinned, if some are.
    - `staging`: Our pinned memory that holds copies, if there are any. It must be kept as long as its addresses are in
      use.
    """

    parts: tuple[HostPart, ...]
    pin: Owned | None = None
    staging: buffers.PinnedBuffer | None = None


class Stage:
    """One tensor's memory on the device, and our memory on the host through which it is transferred.

    - `nbytes`: The size of the tensor.
    """

    def __init__(self, context: ClContext, nbytes: int) -> None:
        self._context, self.nbytes = context, nbytes
        size = max(nbytes, 1)
        self.shared: buffers.HostSharedBuffer | None = None
        """Memory that both the device and the host use, if the device works in host memory."""
        # The device's own memory otherwise.
        self._device: buffers.OpenClBuffer | None = None
        # The next two are each created once and never replaced, because bindings have their addresses.
        # Pinned memory for a copy of all bytes.
        self._copy: buffers.PinnedBuffer | None = None
        # Pinned memory for copies of the first and the last bytes, which share pages with other memory.
        self._ends: buffers.PinnedBuffer | None = None
        if context.device.unified:
            self.shared = buffers.shared_buffer(context, size)
        else:
            self._device = buffers.device_buffer(context, size)

    @property
    def handle(self) -> int:
        """The OpenCL memory object."""
        buffer = self.shared or self._device
        assert buffer is not None
        return buffer.handle

    @property
    def buffers(self) -> list[Buffer]:
        """All buffers that it has reserved."""
        return [buffer for buffer in (self.shared, self._device, self._copy, self._ends) if buffer is not None]

    def host_side(self, window: Window) -> HostSide:
        """Return the host memory from which the device fetches the tensor: the client's own if it can be fetched
        from.
        """
        if self.nbytes == 0:
            return HostSide(())
        if self.shared is not None:
            return HostSide((HostPart(0, self.nbytes, self.shared.address),))
        if isinstance(window.buffer, buffers.PinnedBuffer):
            return HostSide((HostPart(0, self.nbytes, window.address),))
        pinned = self._pin_in_place(window.address) if self.nbytes >= PIN_BYTES else None
        return self._whole_copy() if pinned is None else pinned

    def _whole_copy(self) -> HostSide:
        """Return memory for a copy of the whole tensor."""
        if self._copy is None:
            self._copy = buffers.pinned_buffer(self._context, self.nbytes)
        return HostSide((HostPart(0, self.nbytes, self._copy.address),), staging=self._copy)

    def _pin_in_place(self, address: int) -> HostSide | None:
        """Pin the pages that the tensor fills, with copies of the bytes around them; return None if that fails."""
        # The first byte of the first such page, and the first byte behind the last one, counted from the address.
        first = -address % buffers.PAGE
        last = (address + self.nbytes) // buffers.PAGE * buffers.PAGE - address
        if first >= last:
            return None
        pin = buffers.pin_pages(self._context, address + first, last - first)
        if pin is None:
            return None
        middle = HostPart(first, last - first, address + first)
        if not first and last == self.nbytes:
            return HostSide((middle,), pin)
        if self._ends is None:
            self._ends = buffers.pinned_buffer(self._context, 2 * buffers.PAGE)
        ends = self._ends.address
        parts = (HostPart(0, first, ends), middle, HostPart(last, self.nbytes - last, ends + buffers.PAGE))
        return HostSide(tuple(part for part in parts if part.nbytes), pin, self._ends)

    def before(self, side: HostSide, label: str, is_input: bool) -> list[Command]:
        """Return the commands that hand the tensor to the device before the kernels.

        - `side`: The host memory that `host_side` returned.
        - `label`: The tensor's name in messages.
        """
        if self.shared is not None:
            return [commands.unmap(self.shared.handle, self.shared.address, label)]
        if not is_input:
            return []
        return [commands.write(self.handle, part.offset, part.nbytes, part.address, label) for part in side.parts]

    def after(self, side: HostSide, label: str, is_input: bool) -> list[Command]:
        """Return the commands that hand the tensor back to the host behind the kernels; parameters as for `before`."""
        if self.shared is not None:
            return [commands.map_at(self.shared.handle, self.shared.facts.nbytes, self.shared.address, label)]
        if is_input:
            return []
        return [commands.read(self.handle, part.offset, part.nbytes, part.address, label) for part in side.parts]


class DeviceStaging:
    """The stages of a graph, by tensor index."""

    def __init__(self, context: ClContext) -> None:
        self._context = context
        self._stages: dict[int, Stage] = {}

    def reserve(self, infos: Sequence[TensorInfo], indexes: Iterable[int]) -> None:
        """Create a stage for each of these tensors that has none."""
        for index in indexes:
            if index not in self._stages:
                self._stages[index] = Stage(self._context, infos[index].nbytes)

    def __getitem__(self, index: int) -> Stage:
        return self._stages[index]

    @property
    def reserved(self) -> int:
        """Bytes that are currently reserved."""
        return sum(buffer.nbytes for stage in self._stages.values() for buffer in stage.buffers)

    def close(self) -> None:
        """Release all memory; safe to call again."""
        for stage in self._stages.values():
            for buffer in stage.buffers:
                buffer.close()
        self._stages.clear()
