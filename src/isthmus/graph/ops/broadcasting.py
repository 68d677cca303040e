"""Broadcasting of dimensions: shapes are aligned at the last axis, and a size of 1 extends to the other's size."""

from __future__ import annotations

from isthmus.graph.operation import Call, Dims


def broadcast(call: Call, *shapes: Dims) -> Dims:
    """Return the dimensions that all shapes broadcast to, or refuse the call."""
    rank = max(map(len, shapes))
    out = []
    for sizes in zip(*((1,) * (rank - len(s)) + tuple(s) for s in shapes), strict=True):
        size = next((s for s in sizes if s != 1), 1)
        if any(s not in (1, size) for s in sizes):
            call.refuse(f"dimensions {' and '.join(str(list(s)) for s in shapes)} do not broadcast")
        out.append(size)
    return tuple(out)
