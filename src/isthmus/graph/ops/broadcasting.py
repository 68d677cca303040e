"""How the dimensions of operands combine: aligned at the last axis, where 1 stretches to the other's size."""

from __future__ import annotations

from isthmus.graph.operation import Call, Dims


def broadcast(call: Call, *shapes: Dims) -> Dims:
    """The dimensions that all shapes stretch to, or a refusal of the call."""
    rank = max(map(len, shapes))
    out = []
    for sizes in zip(*((1,) * (rank - len(s)) + tuple(s) for s in shapes), strict=True):
        size = next((s for s in sizes if s != 1), 1)
        if any(s not in (1, size) for s in sizes):
            call.refuse(f"dimensions {' and '.join(str(list(s)) for s in shapes)} do not broadcast")
        out.append(size)
    return tuple(out)
