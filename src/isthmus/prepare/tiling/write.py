"""The writer of tiled schedules: the steps of a region tile by tile, with views, halos and repeated tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from isthmus.graph import DataType, Tensor
from isthmus.graph.rows import Rows
from isthmus.prepare.inplace import Overlaid
from isthmus.prepare.passes.canonical import plain_slice
from isthmus.prepare.schedule import Region, Repeat, RowRange, Step, StepRows
from isthmus.prepare.storage import Storage
from isthmus.prepare.tiling.search import RegionChoice
from isthmus.prepare.tiling.step_table import StepTable, in_one_run, row_bytes
from isthmus.prepare.tiling.tiles import Native, RegionSteps, Tile, cut, longest_run, region_steps

# The minimum number of equal tiles that are written as a repeat.
_WORTH_REPEATING = 2
MAX_STRIDES = 32
"""The maximum number of base addresses that advance in a repeat, each by its own stride."""


@dataclass
class _Held:
    """Available rows of a tensor: a tensor that holds them, in the shape of its producer's result."""

    tensor: Tensor
    rows: Rows


@dataclass
class TiledSteps:
    """Steps of a schedule, some of which are computed in tiles.

    - `steps`, `repeats`, `regions`: the steps in order, those of them that are repeated, and the regions that are
      computed in tiles.
    - `overlaid`: results that are written over operands.
    - `alike`: for each tile that is not repeated, its steps paired with the equivalent steps of the repeated tile.
    """

    steps: list[Step] = field(default_factory=list)
    repeats: list[Repeat] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    overlaid: list[Overlaid] = field(default_factory=list)
    alike: list[list[tuple[int, int]]] = field(default_factory=list)


def write(base: StepTable, chosen: Sequence[RegionChoice], native: Native) -> TiledSteps | None:
    """Write the steps of an arrangement with some regions in tiles; return None if a tile would read nothing.

    `native` creates the tensors of tiles.
    """
    written = TiledSteps()
    at = 0
    for choice in chosen:
        whole = region_steps(base, choice, native)
        tiles = cut(whole)
        if tiles is None:
            return None
        written.steps += base.steps[at : choice.region.first]
        _RegionWriter(base.storage, whole, tiles, native, written).write()
        at = choice.region.last + 1
    written.steps += base.steps[at:]
    return written


class _RegionWriter:
    """The writer of one region.

    - `storage`: the blocks of all tensors, in which tiles' tensors are joined to those of which they are views.
    - `whole`, `tiles`: the whole steps of the region, and its tiles.
    - `native`: a function that creates a tensor.
    - `written`: the steps so far, to which those of the region are added.
    """

    def __init__(
        self, storage: Storage, whole: RegionSteps, tiles: list[Tile], native: Native, written: TiledSteps
    ) -> None:
        self._storage, self._whole, self._tiles = storage, whole, tiles
        self._native, self._written = native, written
        self._choice = whole.choice
        self._halos: dict[int, _Held] = {}
        """By step of the region: the rows of its result that the tile just written keeps for the next tile."""
        self._halo_memory: dict[int, Tensor] = {}
        """By step of the region: the memory reserved for its halo, as large as any tile needs."""
        self._sums: dict[int, Tensor] = {}
        """By step of the region: the integer sums of a mean of 8-bit values."""
        self._advances: dict[Tensor, int] = {}
        """The views in the repeated tile whose location changes with each iteration, and by how many bytes."""
        self._moved: dict[int, tuple[int, int]] = {}
        """In the repeated tile, by step: how many rows further the next tile is, in the step's result and in its
        operands.
        """
        self._done: list[dict[tuple[int, str, int], int]] = []
        """For each tile written: the index in `written.steps` of each of its steps. The key is the region's step, the
        operation, and a counter where that step became several steps with the same operation.
        """

    def write(self) -> None:
        """Write all tiles; of equal tiles only the first, as a repeat."""
        steps = self._written.steps
        begin = len(steps)
        first, times = longest_run(self._choice, self._tiles)
        if times < _WORTH_REPEATING or not self._tiles[first].entries:
            first, times = 0, 0
        number = 0
        repeated: dict[tuple[int, str, int], int] = {}
        while number < len(self._tiles):
            if times and number == first:
                following = self._tiles[number + 1]
                self._moved = {
                    e.step: (f.rows[0] - e.rows[0], f.source[0] - e.source[0])
                    for e, f in zip(self._tiles[number].entries, following.entries, strict=True)
                }
                at, self._advances = len(steps), {}
                self._tile(number)
                self._moved = {}
                if self._strides() > MAX_STRIDES:
                    # The tile stays as an ordinary one, and the tiles equal to it are written out too.
                    number, first, times = number + 1, 0, 0
                    continue
                threads = self._choice.arenas
                self._written.repeats.append(Repeat(at, len(steps) - 1, times, self._advances, threads))
                repeated = self._done.pop()
                number += times
                # After the last iteration, the kept rows are those of the last repeated tile.
                last = self._tiles[number - 1]
                for entry in last.entries:
                    if entry.step in self._halos:
                        self._halos[entry.step].rows = last.halo[entry.step]
            else:
                self._tile(number)
                number += 1
        self._written.regions.append(self._region(begin, (first, times)))
        for done in self._done if repeated else ():
            self._written.alike.append([(index, repeated[what]) for what, index in done.items() if what in repeated])
        if self._whole.overlaid is not None:
            self._written.overlaid.append(Overlaid(*self._whole.overlaid, begin, len(steps) - 1))

    def _strides(self) -> int:
        """Count the base addresses that advance, each by its own stride."""
        return len({(self._storage.block(tensor).pool, stride) for tensor, stride in self._advances.items()})

    def _region(self, begin: int, repeated: tuple[int, int]) -> Region:
        """Describe the region, whose steps begin at step `begin` of the schedule, for the plan."""
        region = self._choice.region
        peak = self._choice.arenas * (region.lines[0] + region.lines[1] * self._choice.rows).max()
        return Region(
            steps=tuple((step.op, step.name) for step in self._whole.steps),
            axes=tuple(inner.axis for inner in region.inner),
            tiles=tuple(tile.entries for tile in self._tiles),
            repeated=repeated,
            first=begin,
            last=len(self._written.steps) - 1,
            carried_bytes=region.carried,
            peak_bytes=int(region.floor + peak),
        )

    # -- one tile -----------------------------------------------------------------------------------------------------

    def _tile(self, number: int) -> None:
        """Write one tile, and keep its halo for the next."""
        tile = self._tiles[number]
        # By step: the rows of its result that are available, at first those kept from the tile before.
        held = dict(self._halos)
        # For each step, the last step of the tile that reads its result.
        last_use: dict[int, int] = {}
        for entry in tile.entries:
            last_use.setdefault(entry.step, entry.step)
            for source in self._sources(entry.step):
                last_use[source] = entry.step
        steps, done = self._written.steps, dict[tuple[int, str, int], int]()
        for entry in tile.entries:
            begin = len(steps)
            self._compute(entry, held)
            if self._choice.arenas > 1 and entry.step in tile.halo:
                # Keep the halo as soon as it is computed, since another thread is about to read it.
                self._keep(entry.step, held[entry.step], tile.halo[entry.step])
            for k, user in last_use.items():
                if user == entry.step and k in held:
                    if self._choice.arenas == 1 or k not in tile.halo:
                        self._keep(k, held[k], tile.halo.get(k))
                    del held[k]
            for index in range(begin, len(steps)):
                place = sum(1 for step, op, _ in done if (step, op) == (entry.step, steps[index].op))
                done[entry.step, steps[index].op, place] = index
        self._done.append(done)
        for k in [k for k in self._halos if k not in tile.halo]:
            del self._halos[k]

    def _sources(self, k: int) -> list[int]:
        """List the steps of the region whose results a step reads by rows and which exist only in tiles."""
        writers = dict.fromkeys(self._whole.results.get(block) for block in self._whole.operands[k].values())
        return [s for s in writers if s is not None and not self._choice.region.inner[s].whole]

    def _compute(self, entry: StepRows, held: dict[int, _Held]) -> None:
        """Write a step on some rows: into the whole result, after the rows kept from the last tile, or separately."""
        k = entry.step
        region, step = self._choice.region, self._whole.steps[k]
        rows, inner = region.maps[k], region.inner[k]
        inputs = list(step.inputs)
        source_axis = rows.sliced[0][1]
        for position, axis in rows.sliced:
            tensor = inputs[position]
            assert tensor is not None
            source = self._whole.results.get(self._whole.operands[k][position])
            inputs[position] = self._rows_of(entry, tensor, axis, source, held)
        result = step.outputs[0]
        if rows.reduces:
            image = step.input()
            pixels = image.elements // result.elements
            part = RowRange(inner.axis, entry.rows[0], rows.height, source_axis, entry.source[0], rows.height, pixels)
            self._gather(step, entry, inputs, part)
            return
        part = RowRange(inner.axis, entry.rows[0], result.dims[inner.axis], source_axis, entry.source[0], rows.height)
        params = rows.params(entry.rows, entry.source)
        a, b = entry.rows
        run = in_one_run(result, inner.axis)
        if inner.whole and run:
            piece = self._view(result, inner.axis, entry.rows, self._moved.get(k, (0, 0))[0])
            self._add(step, inputs, piece, params, part)
        elif inner.whole:
            piece = self._new(result, inner.axis, b - a)
            self._add(step, inputs, piece, params, part)
            place = self._alias(result, inner.axis, self._moved.get(k, (0, 0))[0])
            where = RowRange(inner.axis, a, result.dims[inner.axis], inner.axis, a, result.dims[inner.axis])
            self._emit("Concat", [piece], place, {"axis": inner.axis}, where)
        elif k in held and held[k].rows[1] == a:
            before, low = held[k].tensor, held[k].rows[0]
            joined = self._new(result, inner.axis, b - low)
            if run:
                top = self._within(joined, inner.axis, (0, a - low))
                piece = self._within(joined, inner.axis, (a - low, b - low))
                self._emit("Reshape", [before], top)
                self._add(step, inputs, piece, params, part)
            else:
                piece = self._new(result, inner.axis, b - a)
                self._add(step, inputs, piece, params, part)
                self._emit("Concat", [before, piece], joined, {"axis": inner.axis})
            held[k] = _Held(joined, (low, b))
        else:
            piece = self._new(result, inner.axis, b - a)
            self._add(step, inputs, piece, params, part)
            held[k] = _Held(piece, entry.rows)

    def _gather(self, step: Step, entry: StepRows, inputs: list[Tensor | None], part: RowRange) -> None:
        """Write a tile of a mean: floats are accumulated in the result itself, 8-bit values in integer sums."""
        result, source = step.outputs[0], step.input()
        is_last = entry.rows[1] == part.height
        if not source.dtype.is_fixed_point:
            clamp = step.clamp if is_last else None
            self._written.steps.append(Step(step.op, step.name, inputs, [result], dict(step.params), clamp, part))
            return
        if entry.step not in self._sums:
            self._sums[entry.step] = self._native(
                f"{result.name} (sums)", result.dims, DataType.INT_32, source.quantization
            )
        sums = self._sums[entry.step]
        self._written.steps.append(Step(step.op, step.name, inputs, [sums], dict(step.params), None, part))
        if is_last:
            self._written.steps.append(Step(step.op, step.name, [sums], [result], dict(step.params), step.clamp, part))

    def _keep(self, k: int, held: _Held, rows: Rows | None) -> None:
        """Keep the rows `rows` of step k's result, if any, for the next tiles, in memory that outlasts the tile."""
        if rows is None:
            self._halos.pop(k, None)
            return
        halo = self._halos.get(k)
        if halo is not None and halo.tensor is held.tensor:
            return
        axis = self._choice.region.inner[k].axis
        last = self._part(held, axis, rows)
        memory = self._room(k, rows[1] - rows[0])
        self._emit("Reshape", [last], memory)
        self._halos[k] = _Held(memory, rows)

    def _room(self, k: int, rows: int) -> Tensor:
        """Return a view of `rows` rows of the memory for step k's halo, which is reserved at first use."""
        axis = self._choice.region.inner[k].axis
        result = self._whole.result(k)
        if k not in self._halo_memory:
            most = max(high - low for tile in self._tiles for low, high in [tile.halo.get(k, (0, 0))])
            self._halo_memory[k] = self._new(result, axis, most)
        view = self._new(result, axis, rows)
        self._storage.join(self._halo_memory[k], view)
        return view

    # -- tensors -------------------------------------------------------------------------------------------------------

    def _rows_of(
        self, entry: StepRows, tensor: Tensor, axis: int, writer: int | None, held: dict[int, _Held]
    ) -> Tensor:
        """Return the rows of an operand that an entry reads; `writer` is the step of the region that writes it."""
        if writer is not None and not self._choice.region.inner[writer].whole:
            rows = self._part(held[writer], self._choice.region.inner[writer].axis, entry.source)
            if self._whole.result(writer) is tensor:
                return rows
            dims = (*tensor.dims[:axis], entry.source[1] - entry.source[0], *tensor.dims[axis + 1 :])
            named = self._native(tensor.name, dims, tensor.dtype, tensor.quantization)
            self._storage.join(rows, named)
            return named
        moved = self._moved.get(entry.step, (0, 0))[1]
        if in_one_run(tensor, axis):
            return self._view(tensor, axis, entry.source, moved)
        return self._slice(self._alias(tensor, axis, moved), axis, entry.source)

    def _part(self, held: _Held, axis: int, rows: Rows) -> Tensor:
        """Return some of the available rows: a view if they are contiguous, otherwise a copy."""
        low = held.rows[0]
        if rows == held.rows:
            return held.tensor
        inside = rows[0] - low, rows[1] - low
        if in_one_run(held.tensor, axis):
            return self._within(held.tensor, axis, inside)
        return self._slice(held.tensor, axis, inside)

    def _view(self, tensor: Tensor, axis: int, rows: Rows, moved: int) -> Tensor:
        """Return a view of rows of a whole tensor; it advances by `moved` rows with each iteration."""
        view = self._within(tensor, axis, rows)
        if moved:
            self._advances[view] = moved * row_bytes(tensor, axis)
        return view

    def _alias(self, tensor: Tensor, axis: int, moved: int) -> Tensor:
        """Return an alias of a whole tensor with scattered rows that advances by `moved` rows with each iteration."""
        if not moved:
            return tensor
        alias = self._native(tensor.name, tensor.dims, tensor.dtype, tensor.quantization)
        self._storage.join(tensor, alias)
        self._advances[alias] = moved * prod(tensor.dims[axis + 1 :]) * tensor.dtype.itemsize
        return alias

    def _within(self, tensor: Tensor, axis: int, rows: Rows) -> Tensor:
        """Return a view of contiguous rows of a tensor."""
        view = self._new(tensor, axis, rows[1] - rows[0])
        self._storage.join(tensor, view, rows[0] * row_bytes(tensor, axis))
        return view

    def _slice(self, tensor: Tensor, axis: int, rows: Rows) -> Tensor:
        """Write a copy of rows of a tensor, and return the copy."""
        ranges = np.array([[0, d, 1] for d in tensor.dims], np.int64)
        ranges[axis] = *rows, 1
        result = self._new(tensor, axis, rows[1] - rows[0])
        self._emit("StridedSlice", [tensor], result, plain_slice(ranges))
        return result

    def _new(self, like: Tensor, axis: int, rows: int) -> Tensor:
        """Return a new tensor such as another one, with another number of rows."""
        dims = (*like.dims[:axis], rows, *like.dims[axis + 1 :])
        return self._native(like.name, dims, like.dtype, like.quantization)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _add(
        self, step: Step, inputs: list[Tensor | None], result: Tensor, params: dict[str, Any], part: RowRange
    ) -> None:
        """Write a step of the region on the rows `part`."""
        self._written.steps.append(Step(step.op, step.name, inputs, [result], params, step.clamp, part))

    def _emit(
        self,
        op: str,
        inputs: list[Tensor],
        result: Tensor,
        params: dict[str, Any] | None = None,
        part: RowRange | None = None,
    ) -> None:
        """Write a step that only moves rows."""
        self._written.steps.append(Step(op, result.name, list(inputs), [result], params or {}, None, part))
