"""An arrangement of steps as seen by the search for tiles: writers and readers of each block, and live bytes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from operator import add

import numpy as np

from isthmus.graph import Tensor, TensorType
from isthmus.graph.operation import Call
from isthmus.graph.rows import Rate, RowMap, mean_map, row_map
from isthmus.prepare.inplace import write_in_place
from isthmus.prepare.planner import Arrangement, Planner
from isthmus.prepare.schedule import RowRange, Step
from isthmus.prepare.storage import Block
from isthmus.prepare.tiling.region_path import live_bytes

WIDTH = 2
"""The image axis for tiles if the height is too small; the usual axis is 1."""

CACHED = 1 << 20
"""The number of bytes of tensors that a fast cache holds."""


@dataclass(frozen=True)
class TiledRead:
    """The data of a block that a tiled step reads.

    - `tensor`, `source`, `writer`: the operand, its block, and the step that writes the block; -1 if none does.
    - `by_rows`: whether the block may exist in tiles, because the step needs only some rows at a time.
    - `axis`: the axis of these rows in the tensor that the block's writer writes, if there is one.
    - `bytes`, `run`: the bytes of a row, and whether rows are contiguous; 0 and true if the operand is read as a whole.
    """

    tensor: Tensor
    source: Block
    writer: int
    by_rows: bool
    axis: int | None
    bytes: int
    run: bool


@dataclass(frozen=True)
class TiledStep:
    """A step that is computed in tiles along an axis.

    - `axis`, `rows`: the axis of the rows in its result, and its row map: which rows of its operands they need.
    - `count`: the number of its rows; if it reduces rows, those of the operand.
    - `plain`: whether a tile may have any number of rows: the rate is an integer and the grain is 1.
    - `bytes`, `run`, `runs`: the bytes of a row of its result, whether rows are contiguous, and the number of runs that
      a row consists of.
    - `space`, `space_a_row`: the approximate work space: fixed bytes, and bytes per row.
    - `sums`: if it reduces rows, the bytes of sums that are alive throughout.
    - `reads`: the blocks that it reads.
    - `losses`: the cached results of `StepTable.loss`.
    """

    axis: int
    rows: RowMap
    count: int
    plain: bool
    bytes: int
    run: bool
    runs: int
    space: float
    space_a_row: float
    sums: int
    reads: list[TiledRead]
    losses: dict[tuple[Rate, int], np.ndarray | None]


def profile(arrangement: Arrangement, planner: Planner) -> tuple[list[int], list[int]]:
    """Write results over operands; return the live bytes at each step, and the bytes of its work space."""
    steps, storage, alignment = arrangement.steps, arrangement.storage, planner.engine.alignment
    life = arrangement.life()
    write_in_place(steps, storage, life)
    blocks = [block for block in storage.blocks() if block in life and planner.is_planned(block)]
    lives = ((life.first(block), life.last(block), align(block.size, alignment)) for block in blocks)
    spaces = [align(planner.work_bytes(step), alignment) for step in steps]
    return list(map(add, live_bytes(lives, len(steps)), spaces)), spaces


def align(size: int, alignment: int) -> int:
    """Round a size up to a multiple of the alignment."""
    return -(-size // alignment) * alignment


class StepTable:
    """The steps of an arrangement with the data that the search needs, computed once.

    - `arrangement`, `planner`: the steps with their blocks, and the planner of their graph.
    - `live`, `work`, `peak`: the live bytes and the work space of each step (see `profile`), and the maximum of live
      bytes.
    - `writer`: the last step that writes each block.
    - `simple`: the blocks of scratch that one step writes, and all of whose tensors occupy the whole block; only these
      can exist in tiles.
    - `results`, `operands`: for each step, the blocks of its results, and its operands that are not constants, as
      position, tensor and block.
    - `result`: the block that each step writes, or None if it has several results.
    - `begin`, `end`: the first and the last step that use a block.
    - `size`: the bytes of scratch that a block occupies.
    - `time`, `together`: the approximate time of each step on one thread, and on all threads that share it.
    - `beyond`: the bytes that each step uses beyond those that a cache holds.
    - `begun`: the blocks that each step uses first.
    - `entering`: the bytes of blocks used before a step and also in it or later.
    """

    def __init__(self, arrangement: Arrangement, live: list[int], work: list[int], planner: Planner) -> None:
        self.steps, self.storage, self.live, self.work = arrangement.steps, arrangement.storage, live, work
        self.engine, self.alignment = planner.engine, planner.engine.alignment
        steps, storage, life, engine = self.steps, self.storage, arrangement.life(), self.engine
        self.begin: dict[Block, int] = {}
        self.end: dict[Block, int] = {}
        self.size: dict[Block, int] = {}
        self.writer: dict[Block, int] = {}
        self._made: dict[Block, Tensor] = {}
        self.simple: set[Block] = set()
        writers: dict[Block, int] = {}
        self.result: list[Block | None] = []
        self.results: list[list[Block]] = []
        self.operands: list[list[tuple[int, Tensor, Block]]] = []
        for index, step in enumerate(steps):
            self.results.append([storage.block(tensor) for tensor in step.outputs])
            for block, tensor in zip(self.results[index], step.outputs, strict=True):
                self.writer[block], self._made[block] = index, tensor
                writers[block] = writers.get(block, 0) + 1
            self.result.append(self.results[index][0] if len(step.outputs) == 1 else None)
            self.operands.append(
                [(k, t, storage.block(t)) for k, t in enumerate(step.inputs) if t is not None and not t.is_static]
            )
        pairs = zip(steps, self.operands, strict=True)
        touched = ((*step.outputs, *(tensor for _, tensor, _ in own)) for step, own in pairs)
        self.beyond = [max(0, sum(tensor.nbytes for tensor in each) - CACHED) for each in touched]
        count = len(steps)
        self.begun: list[list[Block]] = [[] for _ in steps]
        for block in storage.blocks():
            if block not in life:
                continue
            first, last = life.first(block), life.last(block)
            # Blocks in a pool are whole in every fused region; their bytes are counted for as long as they are needed.
            self.begin[block], self.end[block] = first, last if block.pool is None else count
            self.size[block] = align(block.size, self.alignment) if planner.is_planned(block) else 0
            if 0 <= first < count:
                self.begun[first].append(block)
            if writers.get(block) == 1 and block.pool is None and first >= 0:
                extent = (block.low, block.high)
                if all((low, low + t.nbytes) == extent for t, low in block.members.items()):
                    self.simple.add(block)
        lives = ((life.first(block) + 1, life.last(block), size) for block, size in self.size.items())
        self.entering = live_bytes(lives, count)
        self.peak = max(live, default=0)
        self.time = np.array([engine.nanoseconds(step) for step in steps])
        shared = np.array([engine.threads > 1 and engine.is_shared(step) for step in steps], bool)
        self.together = np.where(shared, self.time / engine.threads + engine.sharing, self.time)
        self._maps: dict[tuple[int, int], RowMap | None] = {}
        self._sinks: dict[tuple[int, int], tuple[int, RowMap] | None] = {}
        self._alongs: dict[tuple[int, int], TiledStep | None] = {}
        self._last_alongs: dict[tuple[int, int], TiledStep | None] = {}
        self._shapes: dict[tuple[Tensor, int], tuple[int, bool]] = {}

    def tensor_in(self, block: Block) -> Tensor:
        """Return the tensor that the only writer of a block writes there; the step may write others elsewhere."""
        return self._made[block]

    def map(self, index: int, axis: int) -> RowMap | None:
        """Return the row map of a step along an axis of its result, if the engine can compute it in tiles."""
        key = index, axis
        if key not in self._maps:
            step = self.steps[index]
            rows = row_map(_call(step), axis)
            if rows is not None and not self.engine.can_tile(step, axis):
                rows = None
            self._maps[key] = rows
        return self._maps[key]

    def sink(self, index: int, mode: int) -> tuple[int, RowMap] | None:
        """Return the axis and the row map of a step that ends a region of tiles along `mode`, an image axis.

        None if it cannot end one. A mean over all pixels can: it reduces the rows of its operand tile by tile.
        """
        key = index, mode
        if key not in self._sinks:
            self._sinks[key] = self._sink(index, mode)
        return self._sinks[key]

    def _sink(self, index: int, mode: int) -> tuple[int, RowMap] | None:
        """Compute the result of `sink`; tensors of rank 2 and 3 have their rows before the last axis."""
        step = self.steps[index]
        mean = mean_map(_call(step), mode)
        if mean is not None and self.engine.can_tile(step, mode):
            return mode, mean
        result = step.outputs[0]
        if result.rank == 4:
            axis = mode
        elif mode == WIDTH or result.rank not in (2, 3):
            return None
        else:
            axis = result.rank - 2
        rows = self.map(index, axis) if result.dims[axis] > 1 else None
        return None if rows is None else (axis, rows)

    def along(self, index: int, axis: int) -> TiledStep | None:
        """Return a step in tiles along an axis of its result; None if that is impossible."""
        key = index, axis
        if key not in self._alongs:
            rows = self.map(index, axis)
            self._alongs[key] = None if rows is None else self._along(index, axis, rows)
        return self._alongs[key]

    def last_along(self, index: int, mode: int) -> TiledStep | None:
        """Return a step that ends a region of tiles along `mode`; None if that is impossible."""
        key = index, mode
        if key not in self._last_alongs:
            axis_and_rows = self.sink(index, mode)
            self._last_alongs[key] = None if axis_and_rows is None else self._along(index, *axis_and_rows)
        return self._last_alongs[key]

    def _along(self, index: int, axis: int, rows: RowMap) -> TiledStep:
        """Describe a step in tiles along an axis, with its row map."""
        result, sliced = self.steps[index].outputs[0], dict(rows.sliced)
        reads = [self._read(sliced.get(k), t, b) for k, t, b in self.operands[index]]
        bytes_, run = (0, True) if rows.reduces else self.shape(result, axis)
        sums = 4 * result.elements if rows.reduces and result.dtype.is_fixed_point else 0
        return TiledStep(
            axis, rows, rows.height if rows.reduces else result.dims[axis],
            rows.rate.__class__ is int and rows.grain == 1, bytes_, run, prod(result.dims[:axis]),
            *self._space(index, axis), align(sums, self.alignment), reads, {},
        )  # fmt: skip

    def _read(self, axis: int | None, tensor: Tensor, source: Block) -> TiledRead:
        """Describe how a tiled step reads an operand."""
        # `axis` is the axis of the rows that a tile needs; None if every tile needs the whole operand. Only a block in
        # `simple` can be read by rows; any other must exist as a whole.
        by_rows, written_axis = False, None
        if axis is not None and source in self.simple:
            by_rows, written_axis = True, self.axis_in(source, tensor, axis)
        bytes_, run = (0, True) if axis is None else self.shape(tensor, axis)
        return TiledRead(tensor, source, self.writer.get(source, -1), by_rows, written_axis, bytes_, run)

    def loss(self, index: int, along: TiledStep, rate: Rate, counted: int) -> np.ndarray | None:
        """Estimate the nanoseconds by which a tile of a step takes longer than its share of the whole.

        There is one value for each number of rows of the region's reference tensor, from 0 to `counted`; the step has
        `rate` times as many rows.
        """
        key = rate, counted
        if key not in along.losses:
            effort, height = self.engine.effort(self.steps[index], along.axis), along.count
            along.losses[key] = None
            if effort is not None:
                rows = np.minimum(np.ceil(np.arange(counted + 1) * float(rate)).astype(np.int64), height)
                whole_effort = max(float(effort(np.array([height]))[0]), 1.0)
                along.losses[key] = self.time[index] * (effort(rows) / whole_effort - rows / height)
        return along.losses[key]

    def shape(self, tensor: Tensor, axis: int) -> tuple[int, bool]:
        """Return the bytes of a row, and whether rows are contiguous."""
        shape = self._shapes.get((tensor, axis))
        if shape is None:
            shape = self._shapes[tensor, axis] = row_bytes(tensor, axis), in_one_run(tensor, axis)
        return shape

    def axis_in(self, block: Block, tensor: Tensor, axis: int) -> int | None:
        """Return the axis, in the tensor written to a block, of the rows along `axis` of another view of the block.

        None if there is no such axis.
        """
        own = self.tensor_in(block)
        if own is tensor:
            return axis
        outer, rows = prod(tensor.dims[:axis]), tensor.dims[axis]
        matches = (a for a in range(own.rank) if own.dims[a] == rows and prod(own.dims[:a]) == outer)
        return next(matches, None) if self.storage.span(own) == self.storage.span(tensor) else None

    def _space(self, index: int, axis: int) -> tuple[float, float]:
        """Estimate the work space of a step: a constant, and bytes per row of its result."""
        # Both come from the line through the work space of an eighth of the rows and that of the whole.
        step, whole = self.steps[index], self.work[index]
        if not whole:
            return 0.0, 0.0
        rows = self.map(index, axis)
        height = step.outputs[0].dims[axis] if axis < step.outputs[0].rank else 0
        few = max(1, height // 8)
        if rows is None or height <= few:
            return float(whole), 0.0
        part = shape_of_tile(step, rows, axis, (0, few))
        small = align(self.engine.work_bytes(part, self.engine.threads), self.alignment)
        slope = max(0.0, (whole - small) / (height - few))
        return small - slope * few, slope


def shape_of_tile(step: Step, mapping: RowMap, axis: int, rows: tuple[int, int]) -> Step:
    """Return a step with the shapes of some of its rows, for properties that depend only on shapes."""
    low, high = mapping.need(*rows)
    inputs = list(step.inputs)
    for index, own in mapping.sliced:
        tensor = inputs[index]
        assert tensor is not None
        inputs[index] = cut(tensor, own, max(1, high - low))
    whole = step.outputs[0]
    part = RowRange(axis, rows[0], whole.dims[axis], mapping.sliced[0][1], low, mapping.height)
    result = cut(whole, axis, rows[1] - rows[0])
    return Step(step.op, step.name, inputs, [result], mapping.params(rows, (low, high)), step.clamp, part)


def cut(tensor: Tensor, axis: int, rows: int, name: str = "tile") -> Tensor:
    """Return a tensor with the shape of some rows of another."""
    dims = (*tensor.dims[:axis], rows, *tensor.dims[axis + 1 :])
    return Tensor(name, TensorType.NATIVE, tensor.dtype, dims, tensor.quantization)


def row_bytes(tensor: Tensor, axis: int) -> int:
    """Return the bytes of one row, contiguous or not."""
    return tensor.nbytes // tensor.dims[axis]


def in_one_run(tensor: Tensor, axis: int) -> bool:
    """Return whether rows along an axis are contiguous."""
    return prod(tensor.dims[:axis]) == 1


def _call(step: Step) -> Call:
    """Return a step in the form in which the rules of operations take it."""
    return Call(step.name, step.op, step.inputs, step.params, step.outputs)
