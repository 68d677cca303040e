"""The graph of a plan: which steps compute what a step reads, and which blocks of scratch it uses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from isthmus.prepare.schedule import ByteRange, Plan, PlanRow, Pool, StepOperands


@dataclass(frozen=True)
class StepLinks:
    """What a step is connected with.

    - `after`: the earlier steps whose results it reads.
    - `reads`, `writes`: the blocks of scratch that it reads and writes, as indices of the plan's rows.
    - `inputs`, `outputs`: the names of the graph's inputs and states that it reads as they were given, and of the
      outputs that it writes.
    """

    after: tuple[int, ...] = ()
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


def step_links(plan: Plan) -> list[StepLinks]:
    """Return the links of each step; none for a plan that does not tell what its steps read.

    What a step reads was computed by the step that wrote these bytes last.

    Examples
    --------
    >>> rows = PlanRow("a", 64, 0, 1, 0), PlanRow("b", 64, 1, 2, 64)
    >>> x, a, b, y = ByteRange(4, 0, 64), ByteRange(2, 0, 64), ByteRange(2, 64, 64), ByteRange(5, 0, 64)
    >>> operands = StepOperands(((x,), (a,), (b,)), ((a,), (b,), (y,)), ("x",), ("y",))
    >>> steps = ("Relu", "a"), ("Tanh", "b"), ("Neg", "y")
    >>> plan = Plan(128, 128, "optimal", 128, 128, 1, ("a", "b"), rows, steps, operands=operands)
    >>> for each in step_links(plan):
    ...     print(each.after, each.reads, each.writes, each.inputs, each.outputs)
    () () (0,) ('x',) ()
    (0,) (0,) (1,) () ()
    (1,) (1,) () () ('y',)
    """
    operands = plan.operands
    if operands is None:
        return []
    writers = _Writers()
    for number, name in enumerate(operands.inputs):
        writers.write(ByteRange(Pool.IO + number, 0, _ANY), name)
    for name, place in operands.states:
        writers.write(place, name)
    found, live, following = [], [], 0
    for step, (reads, writes) in enumerate(zip(operands.reads, operands.writes, strict=True)):
        while following < len(plan.rows) and plan.rows[following].first <= step:
            live.append(following)
            following += 1
        live = [row for row in live if plan.rows[row].last >= step]
        sources = [writer for each in reads for writer in writers.of(each)]
        blocks = [
            tuple(row for row in live if any(_overlaps(plan.rows[row], each, operands) for each in ranges))
            for ranges in (reads, writes)
        ]
        found.append(
            StepLinks(
                tuple(sorted({each for each in sources if isinstance(each, int)})),
                blocks[0],
                blocks[1],
                tuple(dict.fromkeys(each for each in sources if isinstance(each, str))),
                tuple(dict.fromkeys(_outputs(writes, operands))),
            )
        )
        for each in writes:
            writers.write(each, step)
    return found


# More bytes than any pool has.
_ANY = 1 << 62


class _Writers:
    """Who wrote the bytes of each pool last: the number of a step, or the name of an input or state."""

    def __init__(self) -> None:
        self._pools: dict[int, list[tuple[int, int, int | str]]] = {}

    def write(self, place: ByteRange, writer: int | str) -> None:
        low, high = place.offset, place.offset + place.bytes
        left: list[tuple[int, int, int | str]] = [(low, high, writer)]
        for begin, end, other in self._pools.get(place.pool, ()):
            # Keep the parts of earlier writes before and behind this one.
            left += [(a, b, other) for a, b in ((begin, min(end, low)), (max(begin, high), end)) if a < b]
        self._pools[place.pool] = left

    def of(self, place: ByteRange) -> list[int | str]:
        low, high = place.offset, place.offset + place.bytes
        return [writer for begin, end, writer in self._pools.get(place.pool, ()) if begin < high and end > low]


def _overlaps(row: PlanRow, place: ByteRange, operands: StepOperands) -> bool:
    """Return whether bytes that a step uses overlap a block of scratch, the row of a plan."""
    offset = place.offset
    if place.pool >= Pool.IO and operands.io_offsets:
        offset += operands.io_offsets[place.pool - Pool.IO]
    elif place.pool != Pool.SCRATCH:
        return False
    return row.offset < offset + place.bytes and row.offset + row.bytes > offset


def _outputs(writes: Iterable[ByteRange], operands: StepOperands) -> list[str]:
    """Return the names of the graph's outputs among what is written."""
    first = Pool.IO + len(operands.inputs)
    return [operands.outputs[each.pool - first] for each in writes if each.pool >= first]
