"""Commands that can be enqueued on a device.

Every launch has its own kernel object, whose arguments were set before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isthmus.backends.gpu.runtime import numbers
from isthmus.backends.gpu.runtime.loop import CommandKind
from isthmus.backends.gpu.runtime.owned import Owned


@dataclass(frozen=True)
class Command:
    """One command.

    Parameters
    ----------
    operands
        The operands A, B, ... that `CommandKind` lists for the kind.
    label
        The purpose of the command, for messages.
    kernel
        The kernel that it launches, which is kept alive; None if it is no launch.
    global_size, local_size
        The work items of a launch and of one work group, along each dimension; empty if it is no launch, or if the
        driver chooses the local size.
    """

    kind: CommandKind
    operands: tuple[int, ...]
    label: str = ""
    kernel: Owned | None = None
    global_size: tuple[int, ...] = ()
    local_size: tuple[int, ...] = ()


def launch(kernel: Owned, global_size: Sequence[int], local_size: Sequence[int], label: str) -> Command:
    """Return a command that runs a kernel whose arguments are set; without a local size the driver chooses one."""
    operands = (kernel.handle, len(global_size), int(bool(local_size)))
    return Command(CommandKind.LAUNCH, operands, label, kernel, tuple(global_size), tuple(local_size))


def write(memory: int, offset: int, nbytes: int, address: int, label: str) -> Command:
    """Return a command that transfers host memory at `address` to a memory object of the device, from `offset` on."""
    return Command(CommandKind.WRITE, (memory, offset, nbytes, address), label)


def read(memory: int, offset: int, nbytes: int, address: int, label: str) -> Command:
    """Return a command that transfers a memory object of the device, from `offset` on, to host memory at `address`."""
    return Command(CommandKind.READ, (memory, offset, nbytes, address), label)


def map_at(memory: int, nbytes: int, address: int, label: str) -> Command:
    """Return a command that hands memory over to the host by mapping it, which must give the same address as before."""
    return Command(CommandKind.MAP, (memory, 0, nbytes, numbers.MAP_READ | numbers.MAP_WRITE, address), label)


def unmap(memory: int, address: int, label: str) -> Command:
    """Return a command that hands memory over to the device by ending its mapping at an address."""
    return Command(CommandKind.UNMAP, (memory, 0, 0, address), label)


def refuse_mapped(memory: int, label: str) -> Command:
    """Return a command that refuses the execution if the memory is mapped: a kernel must not use it meanwhile."""
    return Command(CommandKind.UNMAPPED, (memory,), label)
