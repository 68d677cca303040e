"""Staging memory of the accelerator: raw buffers are copied through it, because the accelerator cannot see them."""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.backends.accelerator.process import Accelerator, Slots
from isthmus.backends.seam.staging import pack
from isthmus.graph import TensorInfo
from isthmus.memory import rpcmem


class SharedStaging:
    """The staging memory of one graph: for each tensor its address here and its slot in the accelerator."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        # By a tensor's index: its address in this process, and its slot in the accelerator.
        self._places: dict[int, tuple[int, int]] = {}
        self._buffers: list[rpcmem.RpcBuffer] = []
        self._slots: list[Slots] = []

    def __getitem__(self, index: int) -> tuple[int, int]:
        """Return the address and the slot of a tensor that staging memory was reserved for."""
        return self._places[index]

    @property
    def nbytes(self) -> int:
        """Number of bytes reserved now."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def reserve(self, tensors: Sequence[TensorInfo], indices: Sequence[int]) -> None:
        """Reserve staging memory for the tensors with these indices that have none; all of it or nothing."""
        missing = [index for index in indices if index not in self._places]
        if not missing:
            return
        offsets, total = pack(tensors[index].nbytes for index in missing)
        buffer = rpcmem.share(total)
        assert buffer.fd is not None
        windows = [(buffer.fd, offset, tensors[index].nbytes) for index, offset in zip(missing, offsets, strict=True)]
        try:
            slots = self.accelerator.register(windows)
        except Exception:
            buffer.close()
            raise
        self._buffers.append(buffer)
        self._slots.append(slots)
        address = buffer.address
        self._places.update(
            {index: (address + offset, slot) for index, offset, slot in zip(missing, offsets, slots, strict=True)}
        )

    def close(self) -> None:
        """Release all of it; safe to call again."""
        self._places.clear()
        for slots in self._slots:
            self.accelerator.deregister(slots)
        self._slots.clear()
        for buffer in self._buffers:
            buffer.close()
        self._buffers.clear()
