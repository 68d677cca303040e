"""The table of what the native engine accepts. A test compares it with the answers of the engine's lowerings."""

from __future__ import annotations

from isthmus.engine.native.lowering.fixed_point import STORED
from isthmus.engine.native.signatures.elementwise import KINDS, KINDS_OF
from isthmus.graph.acceptance import Acceptance, load
from isthmus.graph.datatypes import DataType
from isthmus.graph.operation import Operation


def _accepts(function: Operation, dtype: DataType) -> bool:
    """Return whether a kernel computes an elementwise function in a type; all compute in fixed point."""
    return KINDS.get(dtype) in KINDS_OF[function.name] or dtype in STORED


ACCEPTED = Acceptance(load(__file__, "accepted.txt", _accepts))
