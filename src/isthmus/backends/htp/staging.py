"""HTP's staging memory: what raw buffers are copied through, since the accelerator does not see them."""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.backends.accelerator import Queue, Slots
from isthmus.graph import TensorInfo
from isthmus.memory import rpcmem

_ALIGNMENT = 64


class SharedStaging:
    """The staging memory of one graph: for each tensor its address here, and its number over there.

    Parameters
    ----------
    lane
        The way to the accelerator that is to see it.
    """

    def __init__(self, lane: Queue) -> None:
        self._lane = lane
        self._places: dict[int, tuple[int, int]] = {}
        self._buffers: list[rpcmem.RpcBuffer] = []
        self._slots: list[Slots] = []

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self._places[index]

    def reserve(self, tensors: Sequence[TensorInfo], wanted: Sequence[int]) -> int:
        """See to it that these tensors have staging memory; how many bytes that took."""
        missing = [index for index in wanted if index not in self._places]
        if not missing:
            return 0
        offsets, total = [], 0
        for index in missing:
            offsets.append(total)
            total += -(-tensors[index].nbytes // _ALIGNMENT) * _ALIGNMENT
        buffer = rpcmem.share(total)
        assert buffer.fd is not None
        windows = [(buffer.fd, offset, tensors[index].nbytes) for index, offset in zip(missing, offsets, strict=True)]
        try:
            slots = self._lane.accelerator.register(windows)
        except BaseException:
            buffer.close()
            raise
        self._buffers.append(buffer)
        self._slots.append(slots)
        address = buffer.address
        self._places.update(
            {index: (address + offset, slot) for index, offset, slot in zip(missing, offsets, slots, strict=True)}
        )
        return buffer.nbytes

    def close(self) -> None:
        """Give it all back; safe to call again."""
        self._places.clear()
        for slots in self._slots:
            self._lane.accelerator.deregister(slots)
        self._slots.clear()
        for buffer in self._buffers:
            buffer.close()
        self._buffers.clear()
