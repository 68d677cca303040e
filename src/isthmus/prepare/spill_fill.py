"""Spill-fill: what moves between a device's fast memory and its slow one when a schedule does not fit the fast one.

A schedule says which bytes each step reads and writes. Values are followed through the bytes: a value ends where its
bytes are overwritten, and values that a step reads as one tensor, or writes over each other, are one block. Such blocks
are the items of `planning.solve_spills`. Repeated steps are taken once for each iteration.

Constants are not planned: they are in slow memory, and each is read once. Work space is not counted either, since it is
that of this project's kernels. A step that needs an operand more than once, because neither of its operands stays, is
taken to read it once. So this is a figure of this project for its own schedules, not that of a chip's compiler.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from isthmus.graph import Tensor
from isthmus.planning.problem import Problem, Status
from isthmus.planning.solver import solve
from isthmus.planning.spill import (
    SpillItem,
    SpillProblem,
    SpillSolution,
    SpillUse,
    fast_layout,
    slow_layout,
    traffic_of,
    union,
)
from isthmus.planning.spill_search import solve_spills
from isthmus.prepare.schedule import ByteRange, Pool, Schedule

UNIT = 64 << 10
"""Spill-fill memory is a multiple of this many bytes. That is our choice; figures of QNN's compiler are such too."""
MAX_EXECUTED = 20_000
"""The most executions of steps that are followed one by one. Beyond it, all iterations of a repeat count as one."""
_NODES, _PATIENCE = 20_000, 10.0


@dataclass(frozen=True)
class SpilledTensor:
    """A block that moves between the memories more than it would if everything fitted.

    - `name`: the name of its largest tensor.
    - `bytes`: its size.
    - `kind`: "intermediate", "input", "output" or "state"; only intermediates need spill-fill memory.
    - `spilled`, `filled`: the bytes that it moves out of the fast memory and back, beyond what it would move anyway.
    - `first`, `last`: the first and the last step that uses it.
    """

    name: str
    bytes: int
    kind: str
    spilled: int
    filled: int
    first: int
    last: int

    @property
    def traffic(self) -> int:
        """The bytes that it moves."""
        return self.spilled + self.filled


@dataclass(frozen=True)
class SpillFill:
    """What an execution moves between VTCM and DDR memory, and the memory that this takes; all in bytes.

    - `vtcm`: the fast memory.
    - `spill_fill`: the DDR memory of intermediates that do not stay in VTCM, a multiple of 64 KiB.
    - `spilled`, `filled`: what moves to that memory and back.
    - `written`, `read`: all that moves to DDR memory and back: that, inputs, outputs and states, but no constants.
    - `constants`: the constants, which are read from DDR memory besides.
    - `enough`: the VTCM with which there is no spill-fill.
    - `status`: "optimal" if no choice moves less, else "feasible".
    - `lower_bound`: the bytes that any choice moves, as far as proved, beside `written` and `read` together.
    - `largest_first`: the bytes that the simple rule moves: the largest tensors that fit stay.
    - `tensors`: the tensors that cause spill-fill, or inputs and states to be read again, the most traffic first.
    """

    vtcm: int
    spill_fill: int
    spilled: int
    filled: int
    written: int
    read: int
    constants: int
    enough: int
    status: str
    lower_bound: int
    largest_first: int
    tensors: tuple[SpilledTensor, ...] = ()

    @property
    def traffic(self) -> int:
        """All bytes that move, without constants."""
        return self.written + self.read


def spill_fill_of(schedule: Schedule, vtcm: int) -> SpillFill:
    """Return what a schedule moves between a fast memory of so many bytes and a slow one.

    The result depends on the schedule only, also if it was read from a file.
    """
    blocks = _Blocks(schedule)
    items = [block.item(number) for number, block in enumerate(blocks.found)]
    alignment = schedule.alignment
    problem = SpillProblem(tuple(items), vtcm // alignment * alignment, alignment)
    solution = solve_spills(problem)
    tensors = _tensors(blocks, problem, solution)
    intermediate = [each for each in tensors if each.kind == "intermediate"]
    slow = _peak(slow_layout(problem, solution.stays, alignment))
    all_kept = fast_layout(problem, [(True,) * (len(item.uses) - 1) for item in items])
    return SpillFill(
        vtcm=vtcm,
        spill_fill=-(-slow // UNIT) * UNIT,
        spilled=sum(each.spilled for each in intermediate),
        filled=sum(each.filled for each in intermediate),
        written=solution.traffic.written,
        read=solution.traffic.read,
        constants=schedule.constant_bytes,
        enough=_peak(Problem(all_kept.buffers)),
        status="optimal" if solution.status is Status.OPTIMAL else "feasible",
        lower_bound=solution.lower_bound,
        largest_first=solution.largest_first,
        tensors=tuple(sorted(tensors, key=lambda each: (-each.traffic, each.first, each.name))),
    )


def _peak(problem: Problem) -> int:
    """Return the bytes of the smallest layout that is found."""
    return solve(problem, timeout=_PATIENCE, node_limit=_NODES).peak or 0


def _tensors(blocks: _Blocks, problem: SpillProblem, solution: SpillSolution) -> list[SpilledTensor]:
    """List the blocks that move more than they would if they stayed."""
    found = []
    for block, item, stays in zip(blocks.found, problem.items, solution.stays, strict=True):
        moved, least = traffic_of(item, stays), traffic_of(item, (True,) * len(stays))
        if moved != least:
            spilled, filled = moved.written - least.written, moved.read - least.read
            steps = sorted(block.steps)
            found.append(
                SpilledTensor(block.name, item.size, block.kind, spilled, filled, block.steps[steps[0]],
                              block.steps[steps[-1]])
            )  # fmt: skip
    return found


# -- from steps to blocks ----------------------------------------------------------------------------------------------


@dataclass
class _Block:
    """Bytes of one pool that are one item.

    - `pool`: the pool that they are in; `is_before`, `is_after`: as in `SpillItem`.
    - `reads`, `writes`: the ranges at each execution of a step, by the number of the execution.
    - `steps`: the number of the step of each execution.
    - `tensors`: the tensors in it.
    """

    pool: int
    kind: str = "intermediate"
    is_before: bool = False
    is_after: bool = False
    reads: defaultdict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    writes: defaultdict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    steps: dict[int, int] = field(default_factory=dict)
    tensors: dict[Tensor, None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the largest tensor; of equal ones the last, since models name results."""
        return max(reversed(self.tensors), key=lambda tensor: tensor.nbytes).name

    def absorb(self, other: _Block) -> None:
        """Take over all of another block."""
        self.is_before |= other.is_before
        self.is_after |= other.is_after
        for step, ranges in other.reads.items():
            self.reads[step] += ranges
        for step, ranges in other.writes.items():
            self.writes[step] += ranges
        self.steps |= other.steps
        self.tensors |= other.tensors

    def item(self, number: int) -> SpillItem:
        """Return the block as an item."""
        every = [*self.reads.values(), *self.writes.values()]
        low = min(start for ranges in every for start, _ in ranges)
        high = max(end for ranges in every for _, end in ranges)
        uses = (
            SpillUse(
                time, *(union((a - low, b - low) for a, b in each.get(time, ())) for each in (self.reads, self.writes))
            )
            for time in sorted(self.steps)
        )
        return SpillItem(str(number), high - low, tuple(uses), self.is_before, self.is_after)


class _Blocks:
    """The blocks of a schedule, in the order of their first use."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        ends = (*schedule.inputs, *schedule.outputs)
        self._sizes = {int(Pool.SCRATCH): schedule.scratch_bytes, int(Pool.STATE): schedule.state_bytes}
        self._sizes |= {Pool.IO + number: tensor.nbytes for number, tensor in enumerate(ends)}
        # What each byte of a pool holds: ranges with the number of their value, in order.
        self._content: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self._values: list[_Block] = []
        self._same: list[int] = []
        for number, tensor in enumerate(schedule.inputs):
            self._new(ByteRange(Pool.IO + number, 0, tensor.nbytes), "input", is_before=True)
        for tensor, offset in zip(schedule.states, schedule.state_offsets, strict=True):
            self._new(ByteRange(int(Pool.STATE), offset, tensor.nbytes), "state", is_before=True)
        for time, (step, moved) in enumerate(_executions(schedule)):
            self._execute(time, step, moved)
        for pool, content in self._content.items():
            if pool == Pool.STATE or pool >= Pool.IO + len(schedule.inputs):
                for _, _, value in content:
                    self._block(value).is_after = True
        self.found = [
            block for value, block in enumerate(self._values) if self._same[value] == value and block.steps
        ]  # fmt: skip

    def _new(self, place: ByteRange, kind: str, is_before: bool = False) -> int:
        """Add a value that fills some bytes, which lose what they held; return its number."""
        value, low, high = len(self._values), place.offset, place.offset + place.bytes
        self._values.append(_Block(place.pool, kind, is_before))
        self._same.append(value)
        left = [(low, high, value)]
        for begin, end, other in self._content[place.pool]:
            left += [(a, b, other) for a, b in ((begin, min(end, low)), (max(begin, high), end)) if a < b]
        self._content[place.pool] = left
        return value

    def _find(self, value: int) -> int:
        """Return the number of the block that a value belongs to."""
        while self._same[value] != value:
            self._same[value] = self._same[self._same[value]]
            value = self._same[value]
        return value

    def _block(self, value: int) -> _Block:
        return self._values[self._find(value)]

    def _join(self, values: Sequence[int]) -> int:
        """Make one block of several values, and return its number."""
        numbers = sorted({self._find(value) for value in values})
        for other in numbers[1:]:
            self._values[numbers[0]].absorb(self._values[other])
            self._values[other] = _Block(self._values[other].pool)
            self._same[other] = numbers[0]
        return numbers[0]

    def _execute(self, time: int, number: int, moved: int) -> None:
        """Follow one execution of a step, after `moved` iterations of its repeat."""
        step = self._schedule.steps[number]
        read: list[tuple[ByteRange, int]] = []
        for tensor in step.operands:
            place = self._place(tensor, number, moved)
            if place.bytes:
                value = self._read(place)
                read.append((place, value))
                self._note(value, time, number, tensor).reads[time].append((place.offset, place.offset + place.bytes))
        for tensor in step.outputs:
            place = self._place(tensor, number, moved)
            if not place.bytes:
                continue
            over = [value for other, value in read if _overlap(place, other)]
            is_output = place.pool >= Pool.IO + len(self._schedule.inputs)
            kind = "output" if is_output else "state" if place.pool == Pool.STATE else "intermediate"
            value = self._join([*over, self._new(place, kind)])
            self._note(value, time, number, tensor).writes[time].append((place.offset, place.offset + place.bytes))

    def _read(self, place: ByteRange) -> int:
        """Return the block that some bytes belong to; all values in them become one."""
        low, high = place.offset, place.offset + place.bytes
        values = [value for begin, end, value in self._content[place.pool] if begin < high and low < end]
        # A file may have a step that reads what nothing wrote.
        return self._join(values) if values else self._new(place, "intermediate")

    def _note(self, value: int, time: int, number: int, tensor: Tensor) -> _Block:
        """Record that an execution uses a block, and return it."""
        block = self._block(value)
        block.steps[time] = number
        block.tensors[tensor] = None
        return block

    def _place(self, tensor: Tensor, number: int, moved: int) -> ByteRange:
        """Return the bytes that a step uses of a tensor, within the tensor's pool."""
        place = self._schedule.places[tensor]
        low, high = place.offset, place.offset + tensor.nbytes
        repeat = next((each for each in self._schedule.repeats if each.first <= number <= each.last), None)
        if repeat is not None and tensor in repeat.advances:
            stride = repeat.advances[tensor]
            begin, until = (0, repeat.times - 1) if moved < 0 else (moved, moved)
            low, high = low + min(begin * stride, until * stride), high + max(begin * stride, until * stride)
        low, high = max(low, 0), min(high, self._sizes[place.pool])
        return ByteRange(place.pool, low, max(high - low, 0))


def _overlap(one: ByteRange, other: ByteRange) -> bool:
    """Return whether two ranges of pools have bytes in common."""
    same_bytes = one.offset < other.offset + other.bytes and other.offset < one.offset + one.bytes
    return one.pool == other.pool and same_bytes


def _executions(schedule: Schedule) -> Iterator[tuple[int, int]]:
    """Yield the steps in order of execution, each with the iterations before it; -1 stands for all of them at once."""
    steps = len(schedule.steps)
    more = sum((each.last + 1 - each.first) * (each.times - 1) for each in schedule.repeats)
    repeats = {each.first: each for each in schedule.repeats}
    number = 0
    while number < steps:
        repeat = repeats.get(number)
        if repeat is None:
            yield number, 0
            number += 1
            continue
        for iteration in range(repeat.times) if steps + more <= MAX_EXECUTED else (-1,):
            yield from ((each, iteration) for each in range(repeat.first, repeat.last + 1))
        number = repeat.last + 1
