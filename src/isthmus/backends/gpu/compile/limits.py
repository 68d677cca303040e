"""How large a graph may be: what kernels can count to, what tables may take, what a device allocates at a time.

A graph may come out of a file that nobody vouches for. What is looked at here is looked at before anything of such a
size is made, on the host or on the device.
"""

from __future__ import annotations

from isthmus.backends.gpu.compile.traits import DeviceTraits
from isthmus.errors import Code, QnnError
from isthmus.prepare.schedule import Schedule, Step

LARGEST_INDEX = 2**31 - 1
"""What kernels count elements with: 32 bits with a sign."""
MOST_RUNS = 1 << 22
"""Entries of a table that says where each run of elements comes from."""
_BY_TABLE = ("BatchToSpace", "Pad", "Resize", "ResizeBilinear", "ResizeNearestNeighbor", "SpaceToBatch")
_BY_BATCH = ("FullyConnected", "MatMul")


def refuses_size(step: Step) -> str | None:
    """Why a step is too large for the engine, whatever the device; None where it is not."""
    for tensor in (*step.inputs, *step.outputs):
        if tensor is not None and max(tensor.elements, *tensor.dims, 0) > LARGEST_INDEX:
            return f"{tensor.describe()} has more than {LARGEST_INDEX:,} elements or a longer axis"
    output = step.outputs[0]
    runs = 0
    if step.op in _BY_TABLE and output.rank:
        source = next(tensor for tensor in step.inputs if tensor is not None)
        runs = output.elements // (output.dims[-1] or 1) if source.dims[-1:] == output.dims[-1:] else output.elements
    elif step.op in _BY_BATCH and output.rank > 1:
        runs = output.elements // (output.dims[-1] * output.dims[-2] or 1)
    return None if runs <= MOST_RUNS else f"it would need a table of {runs:,} places, {MOST_RUNS:,} are possible"


def check_device(schedule: Schedule, traits: DeviceTraits) -> None:
    """Refuse a graph that needs a larger buffer than the device allocates.

    Raises
    ------
    QnnError
        COMMON_MEM_ALLOC with what it is that needs it.
    """
    _check(schedule, "its scratch", schedule.scratch_bytes, traits)
    _check(schedule, "its state", schedule.state_bytes, traits)
    for tensor in (*schedule.inputs, *schedule.outputs):
        _check(schedule, f"tensor '{tensor.name}'", tensor.nbytes, traits)


def check_constants(schedule: Schedule, nbytes: int, traits: DeviceTraits) -> None:
    """The same for the one buffer of constants, whose size is known when all steps are lowered."""
    _check(schedule, "its buffer of constants", nbytes, traits)


def _check(schedule: Schedule, what: str, nbytes: int, traits: DeviceTraits) -> None:
    most = traits.largest_allocation
    if nbytes > most:
        rule = f"{what} needs {nbytes:,} bytes, the device allocates at most {most:,} at a time"
        raise QnnError(Code.COMMON_MEM_ALLOC, f"graph '{schedule.name}'", rule)
