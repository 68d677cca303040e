"""Limits on the size of a graph: what kernels can count to, tables can hold and a device can allocate at once.

A graph may come from an untrusted file. These checks run before anything of the size in question is allocated, on the
host or on the device.
"""

from __future__ import annotations

from isthmus.backends.gpu.compile.storage import stored_kind
from isthmus.backends.gpu.compile.traits import DeviceTraits
from isthmus.errors import Code, DoesNotFit
from isthmus.prepare.schedule import Schedule, Step

MAX_INDEX = 2**31 - 1
"""The largest element index in kernels, which count with signed 32-bit integers."""
MAX_RUNS = 1 << 22
"""The largest number of entries of a table that tells a kernel where runs of elements, or matrices, begin."""
_BY_TABLE = ("BatchToSpace", "Pad", "Resize", "ResizeBilinear", "ResizeNearestNeighbor", "SpaceToBatch")
# Operations whose kernels read a table: `_BY_TABLE` with an entry for each run of elements of the result, `_BY_BATCH`
# for each matrix of a batch.
_BY_BATCH = ("FullyConnected", "MatMul")


def refuses_tensors(step: Step) -> str | None:
    """Return why no kernel takes a step's tensors (their sizes, data types or quantization); None if kernels do."""
    tensors = [tensor for tensor in (*step.inputs, *step.outputs) if tensor is not None]
    for tensor in tensors:
        if max(tensor.elements, *tensor.dims, 0) > MAX_INDEX:
            return f"{tensor.describe()} has more than {MAX_INDEX:,} elements or a longer axis"
    for tensor in tensors:
        if stored_kind(tensor.dtype) is None:
            return f"{tensor.describe()} has a data type that no kernel knows"
        quantization = tensor.quantization if tensor.dtype.is_fixed_point and not tensor.is_static else None
        if quantization is not None and quantization.axis is not None:
            return f"{tensor.describe()} has a scale for each channel, which only constants may have"
    output = step.outputs[0]
    # Entries of the step's table: rows along the last axis if they are copied whole, else elements.
    runs = 0
    if step.op in _BY_TABLE and output.rank:
        source = tensors[0]
        runs = output.elements // (output.dims[-1] or 1) if source.dims[-1:] == output.dims[-1:] else output.elements
    elif step.op in _BY_BATCH and output.rank > 1:
        runs = output.elements // (output.dims[-1] * output.dims[-2] or 1)
    return None if runs <= MAX_RUNS else f"it would need a table of {runs:,} places, {MAX_RUNS:,} are possible"


def check_device(schedule: Schedule, traits: DeviceTraits) -> None:
    """Refuse a graph that needs a larger buffer than the device allocates.

    Raises COMMON_MEM_ALLOC, naming what needs the buffer.
    """
    _check(schedule, "its scratch", schedule.scratch_bytes, traits)
    _check(schedule, "its state", schedule.state_bytes, traits)
    for tensor in (*schedule.inputs, *schedule.outputs):
        _check(schedule, f"tensor '{tensor.name}'", tensor.nbytes, traits)


def check_constants(schedule: Schedule, nbytes: int, traits: DeviceTraits) -> None:
    """Refuse a graph whose buffer of constants is larger than the device allocates.

    Its size is known only once all steps are lowered.
    """
    _check(schedule, "its buffer of constants", nbytes, traits)


def _check(schedule: Schedule, what: str, nbytes: int, traits: DeviceTraits) -> None:
    """Raise an error if `what` needs more bytes than the device allocates at a time."""
    most = traits.largest_allocation
    if nbytes > most:
        rule = f"{what} needs {nbytes:,} bytes, the device allocates at most {most:,} at a time"
        raise DoesNotFit(Code.COMMON_MEM_ALLOC, f"graph '{schedule.name}'", rule)
