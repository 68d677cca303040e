"""Limits on the size of a graph: what kernels can count to, tables can hold and a device can allocate at once.

A graph may come from an untrusted file. These checks run before anything of the size in question is allocated, on the
host or on the device.
"""

from __future__ import annotations

from isthmus.backends.gpu.compile.traits import DeviceTraits
from isthmus.errors import Code, DoesNotFit
from isthmus.prepare.schedule import Schedule, Step

MAX_INDEX = 2**31 - 1
"""The largest element index in kernels, which count with signed 32-bit integers."""
MAX_RUNS = 1 << 22
"""The largest number of entries in a table of the sources of element runs."""
_BY_TABLE = ("BatchToSpace", "Pad", "Resize", "ResizeBilinear", "ResizeNearestNeighbor", "SpaceToBatch")
_BY_BATCH = ("FullyConnected", "MatMul")
"""Operations whose kernels read a table with an entry for each run of elements, or for each matrix of a batch."""


def refuses_size(step: Step) -> str | None:
    """Return why a step is too large for the engine on any device, or None."""
    for tensor in (*step.inputs, *step.outputs):
        if tensor is not None and max(tensor.elements, *tensor.dims, 0) > MAX_INDEX:
            return f"{tensor.describe()} has more than {MAX_INDEX:,} elements or a longer axis"
    output = step.outputs[0]
    # Entries of the step's table: rows along the last axis if they are copied whole, else elements.
    runs = 0
    if step.op in _BY_TABLE and output.rank:
        source = next(tensor for tensor in step.inputs if tensor is not None)
        runs = output.elements // (output.dims[-1] or 1) if source.dims[-1:] == output.dims[-1:] else output.elements
    elif step.op in _BY_BATCH and output.rank > 1:
        runs = output.elements // (output.dims[-1] * output.dims[-2] or 1)
    return None if runs <= MAX_RUNS else f"it would need a table of {runs:,} places, {MAX_RUNS:,} are possible"


def check_device(schedule: Schedule, traits: DeviceTraits) -> None:
    """Refuse a graph that needs a larger buffer than the device allocates.

    Raises
    ------
    QnnError
        COMMON_MEM_ALLOC, naming what needs the buffer.
    """
    _check(schedule, "its scratch", schedule.scratch_bytes, traits)
    _check(schedule, "its state", schedule.state_bytes, traits)
    for tensor in (*schedule.inputs, *schedule.outputs):
        _check(schedule, f"tensor '{tensor.name}'", tensor.nbytes, traits)


def check_constants(schedule: Schedule, nbytes: int, traits: DeviceTraits) -> None:
    """Check the buffer of constants in the same way; its size is known once all steps are lowered."""
    _check(schedule, "its buffer of constants", nbytes, traits)


def _check(schedule: Schedule, what: str, nbytes: int, traits: DeviceTraits) -> None:
    """Raise an error if `what` needs more bytes than the device allocates at a time."""
    most = traits.largest_allocation
    if nbytes > most:
        rule = f"{what} needs {nbytes:,} bytes, the device allocates at most {most:,} at a time"
        raise DoesNotFit(Code.COMMON_MEM_ALLOC, f"graph '{schedule.name}'", rule)
