"""How a kernel reports an index that is out of range: it stays within its memory, and the run fails."""

from __future__ import annotations

from isthmus.compiled.instructions import atomic_store
from isthmus.engine.native.control import CONTROL, FAULT
from isthmus.engine.native.kernels.base import device, load_i64


@device
def report_outside(p, b, outside):  # type: ignore[no-untyped-def]
    """Record the instruction as one that met an index outside its axis, unless `outside` is 0."""
    if outside != 0:
        atomic_store(load_i64(b, CONTROL) + FAULT, p)
