"""The planner: takes a finalized graph and returns a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, Graph, Tensor
from isthmus.prepare import order
from isthmus.prepare.engine_model import EngineModel
from isthmus.prepare.half_precision import store_floats_as
from isthmus.prepare.inplace import Overlaid, overlay_blocks, place_from_top, write_in_place
from isthmus.prepare.layout import Demand, Layout, lay_out, most_alive, thread_arenas
from isthmus.prepare.passes import run
from isthmus.prepare.pipelining import awaited_steps, own_blocks
from isthmus.prepare.refused import check_executable
from isthmus.prepare.schedule import ByteRange, Place, Plan, Pool, Region, Repeat, Schedule, Step, StepOperands
from isthmus.prepare.states import settle
from isthmus.prepare.storage import Block, Life, Storage, share
from isthmus.prepare.tiling.orders import MAX_STEPS, SEARCHED, WHOLE_FIRST, depth_first, whole_operands
from isthmus.prepare.work import Work

# An order as step numbers, and the bytes that it saves.
_Order = tuple[Sequence[int], int]


@dataclass(frozen=True)
class PlanOptions:
    """A backend's options for a plan.

    - `io_in_scratch`: whether the plan also places the graph's inputs and outputs in scratch.
    - `optimize_order`: whether to search for an order of the steps that needs less memory than the graph's own.
    - `plan_nodes`: the maximum number of partial layouts that the solver examines to improve its first layout; 0 for
      fast heuristics only.
    - `reuse_memory`: whether memory that is no longer needed is reused. If not, every block keeps its contents until
      the end, so that all of them can be inspected.
    - `float_storage`: the type of 16 bits in which FLOAT_32 intermediates and constants are stored; FLOAT_32 leaves
      them as they are.
    - `numerics`: the rounding mode of fixed-point results, if it is not that of the graph.
    - `winograd`: whether the engine may use Winograd's algorithm for convolutions.
    - `size_alignment`: the sizes of scratch and state memory are rounded up to a multiple of this many bytes.
    - `is_uniform`: whether the engine packs constant matrices alike for any number of rows, so that graphs can share
      them.
    """

    io_in_scratch: bool = False
    optimize_order: bool = True
    plan_nodes: int = 20_000
    reuse_memory: bool = True
    float_storage: DataType = DataType.FLOAT_32
    numerics: str | None = None
    winograd: bool = True
    size_alignment: int = 1
    is_uniform: bool = False

    def pad(self, nbytes: int) -> int:
        """Round a size of scratch or state memory up to `size_alignment`."""
        return -(-nbytes // self.size_alignment) * self.size_alignment


@dataclass(frozen=True)
class Arrangement:
    """The steps of a rewritten graph in order, and the blocks that hold their tensors.

    - `work`, `steps`, `storage`: the rewritten graph, its steps in order, and the blocks.
    - `state_offsets`, `state_bytes`: the offset of each state in state memory, and the size of that memory.
    - `order_saved`: the bytes that the order saves.
    - `overlaid`: results that are written over operands.
    - `alike`: groups of pairs of equivalent steps: the blocks and work spaces of both should have the same offsets.
    - `together`: ranges of steps that the engine makes one, by their first and last index.
    """

    work: Work
    steps: list[Step]
    storage: Storage
    state_offsets: dict[Tensor, int]
    state_bytes: int
    order_saved: int
    overlaid: Sequence[Overlaid] = ()
    alike: Sequence[Sequence[tuple[int, int]]] = ()
    together: Sequence[tuple[int, int]] = ()

    def life(self, repeats: Sequence[Repeat] = ()) -> Life:
        """Return the lifetime of each block."""
        ranges = (*self.together, *((repeat.first, repeat.last) for repeat in repeats))
        return Life(self.steps, self.storage, _initial_tensors(self.work), self.work.outputs, ranges)


class Planner:
    """The planner of one graph for an engine: it fuses, orders and places the graph's operations.

    - `graph`: a finalized graph; it is not changed.
    - `options`: the backend's options.
    - `engine`: the engine that will execute the schedule.

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.graph import DataType, Graph, TensorType
    >>> g = Graph("g")
    >>> x = g.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 4))
    >>> y = g.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 4))
    >>> half = g.emit("ElementWiseMultiply", [x, g.constant("half", np.float32([0.5]))])
    >>> node = g.add_node("relu", "Relu", half, [y])
    >>> g.finalize()
    >>> class Plain(EngineModel):
    ...     def work_bytes(self, step, threads):
    ...         return 0
    >>> s = Planner(g, PlanOptions(), Plain()).schedule()
    >>> [(step.op, step.clamp) for step in s.steps], s.scratch_bytes
    ([('ElementWiseMultiply', (0.0, inf))], 0)
    """

    def __init__(self, graph: Graph, options: PlanOptions, engine: EngineModel) -> None:
        self.graph, self.options, self.engine = graph, options, engine
        # Every arrangement asks about the same steps, and steps do not change after rewriting.
        self._work_bytes = cache(engine.work_bytes)
        # The order of each kind for a rewritten graph; None if there is none.
        self._orders: dict[tuple[Work, str], _Order | None] = {}

    def schedule(self) -> Schedule:
        """Plan the graph with whole tensors.

        Raises
        ------
        QnnError
            COMMON_NOT_SUPPORTED, listing every node that the engine does not execute.
        """
        arrangement = self.arrange(self.rewrite())
        assert arrangement is not None
        return self.place(arrangement)

    def rewrite(self) -> Work:
        """Run all passes over a copy of the graph, and let the engine choose how its tensors are stored."""
        work = rewritten(self.graph, self.options.numerics)
        if self.options.float_storage is not DataType.FLOAT_32:
            store_floats_as(work, self.options.float_storage)
        self.engine.convert(work)
        check_executable(self.graph, work.ordered(), self.engine.refusal)
        self.engine.store(work)
        return work

    def arrange(self, work: Work, kind: str = SEARCHED) -> Arrangement | None:
        """Arrange the steps in one kind of order, with new storage; return None if there is no such order.

        The kinds are those of `tiling.orders`.
        """
        storage, state_offsets, state_bytes = self._bind(work)
        steps = share(work, work.ordered(), storage)
        if (work, kind) not in self._orders:
            self._orders[work, kind] = self._order(work, steps, storage, kind)
        order_and_savings = self._orders[work, kind]
        if order_and_savings is None:
            return None
        numbers, saved = order_and_savings
        steps = settle(work, [steps[i] for i in numbers], storage, state_offsets)
        together = self.engine.together(steps, storage)
        return Arrangement(work, steps, storage, state_offsets, state_bytes, saved, together=together)

    def place(
        self, arrangement: Arrangement, repeats: Sequence[Repeat] = (), regions: Sequence[Region] = ()
    ) -> Schedule:
        """Write results over operands where possible, and place every block of an arrangement.

        `repeats` are its steps that are executed several times; `regions` describe its fused regions in the plan.
        """
        work, storage = arrangement.work, arrangement.storage
        life = arrangement.life(repeats)
        if self.options.reuse_memory:
            write_in_place(arrangement.steps, storage, life, arrangement.overlaid)
        else:
            self._keep_all(arrangement, life)
        layout = self._lay_out(arrangement, life, repeats)
        places = _places(arrangement, layout)
        io = [storage.block(t) for t in (*work.inputs, *work.outputs)]
        io_offsets = tuple(layout.blocks[b] for b in io) if self.options.io_in_scratch else ()
        facts = _facts(arrangement, life, places, layout.plan)
        return Schedule(
            name=self.graph.name,
            steps=tuple(arrangement.steps),
            inputs=work.inputs,
            outputs=work.outputs,
            states=work.states,
            places=places,
            work=layout.work,
            work_bytes=layout.work_bytes,
            scratch_bytes=layout.plan.bytes,
            state_bytes=arrangement.state_bytes,
            state_offsets=tuple(arrangement.state_offsets[s] for s in work.states),
            io_offsets=io_offsets,
            alignment=self.engine.alignment,
            plan=replace(facts, regions=tuple(regions), operands=_operands(arrangement, places, layout, io_offsets)),
            numerics=work.numerics,
            repeats=_pipeline(arrangement.steps, repeats, layout, places),
            tiled=tuple((region.first, region.last) for region in regions),
        )

    def is_planned(self, block: Block) -> bool:
        """Return whether a block is placed in scratch."""
        return block.pool is None or (self.options.io_in_scratch and block.pool >= Pool.IO)

    def work_bytes(self, step: Step) -> int:
        """Return the bytes of scratch that a step needs besides its tensors."""
        return self._work_bytes(step, self.engine.threads)

    def _bind(self, work: Work) -> tuple[Storage, dict[Tensor, int], int]:
        """Bind inputs, outputs and states to pools; return the storage, each state's offset, and the bytes of all."""
        storage = Storage()
        for index, tensor in enumerate((*work.inputs, *work.outputs)):
            storage.bind(tensor, Pool.IO + index)
        offsets: dict[Tensor, int] = {}
        size = 0
        for state in work.states:
            offsets[state] = size
            storage.bind(state, Pool.STATE, size)
            size += -(-state.nbytes // self.engine.alignment) * self.engine.alignment
        return storage, offsets, self.options.pad(size)

    def _order(self, work: Work, steps: Sequence[Step], storage: Storage, kind: str) -> _Order | None:
        """Order steps; return None if there is no order of that kind."""
        if kind == SEARCHED and not (self.options.optimize_order and len(steps) <= order.MAX_STEPS):
            return range(len(steps)), 0
        if kind != SEARCHED and len(steps) > MAX_STEPS:
            return None
        final = (*work.outputs, *(v for v in work.updates.values() if not v.is_static))
        flow = order.flow(
            steps, storage, self.work_bytes, final, _initial_tensors(work), self.engine.alignment, self.is_planned
        )
        if kind == SEARCHED:
            return order.choose(flow)
        whole = whole_operands(steps, flow)
        return None if kind == WHOLE_FIRST and not any(whole) else (depth_first(flow, kind, whole), 0)

    def _blocks(self, arrangement: Arrangement, life: Life) -> list[Block]:
        """List the blocks to place."""
        return [block for block in arrangement.storage.blocks() if block in life and self.is_planned(block)]

    def _keep_all(self, arrangement: Arrangement, life: Life) -> None:
        """Extend the lifetime of every block from the first step to the last."""
        blocks = self._blocks(arrangement, life)
        first, last = min(map(life.first, blocks), default=0), max(map(life.last, blocks), default=0)
        for block in blocks:
            life.set(block, min(first, 0), max(last, len(arrangement.steps) - 1))

    def _lay_out(self, arrangement: Arrangement, life: Life, repeats: Sequence[Repeat]) -> Layout:
        """Lay out scratch with each set of overlay offsets, and return the smallest layout."""
        demand = self._demand(arrangement, life, repeats)
        overlays = overlay_blocks(arrangement.storage, life, arrangement.overlaid, self.engine.alignment)
        layout = lay_out(demand, self.engine.alignment, self.options.plan_nodes, overlays)
        if overlays:
            alive = most_alive(layout.plan, self.engine.alignment)
            for others in place_from_top(overlays, alive):
                if layout.plan.bytes > alive:
                    other = lay_out(demand, self.engine.alignment, self.options.plan_nodes, others)
                    layout = min(layout, other, key=lambda one: one.plan.bytes)
        return replace(layout, plan=self._pad_plan(layout.plan))

    def _pad_plan(self, plan: Plan) -> Plan:
        """Round the sizes of scratch in a plan up."""
        pad = self.options.pad
        return replace(
            plan, bytes=pad(plan.bytes), lower_bound=pad(plan.lower_bound), greedy_bytes=pad(plan.greedy_bytes),
            unshared_bytes=pad(plan.unshared_bytes),
        )  # fmt: skip

    def _demand(self, arrangement: Arrangement, life: Life, repeats: Sequence[Repeat]) -> Demand:
        """Collect everything that needs scratch."""
        steps, storage = arrangement.steps, arrangement.storage
        spaces, arenas = list(map(self.work_bytes, steps)), []
        for repeat in _shared_repeats(repeats):
            numbers = range(repeat.first, repeat.last + 1)
            # Several threads execute iterations of this repeat, but each step runs on one thread.
            spaces[repeat.first : repeat.last + 1] = (self.engine.work_bytes(steps[i], 1) for i in numbers)
            own = [block for block in own_blocks(steps, storage, life, repeat) if self.is_planned(block)]
            arenas.append(thread_arenas(repeat, own, life, spaces, self.engine.alignment, self.options.plan_nodes))
        results = [storage.block(step.outputs[0]) for step in steps] if arrangement.alike else []
        # For each pair of steps, the blocks of their results, and the steps themselves for their work spaces.
        alike = [
            [pair for one, other in group for pair in ((results[one], results[other]), (one, other))]
            for group in arrangement.alike
        ]
        return Demand(steps, self._blocks(arrangement, life), life, spaces, arenas, alike)


def rewritten(graph: Graph, numerics: str | None = None) -> Work:
    """Run all passes over a copy of a finalized graph; `numerics` is as in `PlanOptions`."""
    if not graph.finalized:
        rule, hint = "only a finalized graph can be prepared", "Call finalize() first."
        raise QnnError(Code.GRAPH_NOT_FINALIZED, f"graph '{graph.name}'", rule, hint)
    work = Work(graph, numerics)
    run(work)
    return work


def _initial_tensors(work: Work) -> tuple[Tensor, ...]:
    """List the tensors that exist before the first step."""
    return (*work.inputs, *work.states)


def _shared_repeats(repeats: Sequence[Repeat]) -> list[Repeat]:
    """List the repeats that several threads execute at once."""
    return [repeat for repeat in repeats if repeat.threads > 1]


def _places(arrangement: Arrangement, layout: Layout) -> dict[Tensor, Place]:
    """Find the pool and offset of every tensor."""
    work, places = arrangement.work, {}
    touched = (t for s in arrangement.steps for t in (*s.inputs, *s.outputs))
    for tensor in dict.fromkeys((*_initial_tensors(work), *work.outputs, *touched)):
        if tensor is not None and not tensor.is_static:
            block, low, _ = arrangement.storage.span(tensor)
            if block.pool is None:
                places[tensor] = Place(int(Pool.SCRATCH), layout.blocks[block] - block.low + low)
            else:
                places[tensor] = Place(int(block.pool), block.base + low)
    return places


def _facts(arrangement: Arrangement, life: Life, places: Mapping[Tensor, Place], plan: Plan) -> Plan:
    """Add the statistics of an arrangement to those of its layout."""
    floats = [t for t, place in places.items() if place.pool == Pool.SCRATCH and t.dtype is DataType.FLOAT_32]
    half = sum(t.nbytes for t in floats if t.itemsize < t.dtype.itemsize)
    return replace(
        plan,
        order_saved_bytes=arrangement.order_saved,
        aliased_bytes=sum(sum(t.nbytes for t in b.members) - b.size for b in arrangement.storage.blocks() if b in life),
        fp16_bytes=half,
        float_bytes=sum(t.nbytes for t in floats) - half,
    )


def _operands(
    arrangement: Arrangement, places: Mapping[Tensor, Place], layout: Layout, io_offsets: tuple[int, ...]
) -> StepOperands:
    """List the memory that each step reads and writes."""
    work = arrangement.work
    ranges = {tensor: ByteRange(place.pool, place.offset, tensor.nbytes) for tensor, place in places.items()}
    spaces = (
        (ByteRange(int(Pool.SCRATCH), offset, size),) if size else ()
        for offset, size in zip(layout.work, layout.work_bytes, strict=True)
    )
    return StepOperands(
        tuple(tuple(ranges[t] for t in step.inputs if t in ranges) for step in arrangement.steps),
        tuple((*(ranges[t] for t in s.outputs), *space) for s, space in zip(arrangement.steps, spaces, strict=True)),
        tuple(tensor.name for tensor in work.inputs),
        tuple(tensor.name for tensor in work.outputs),
        tuple((tensor.name, ranges[tensor]) for tensor in work.states),
        io_offsets,
    )


def _pipeline(
    steps: Sequence[Step], repeats: Sequence[Repeat], layout: Layout, places: Mapping[Tensor, Place]
) -> tuple[Repeat, ...]:
    """Set the arenas of shared repeats, and for each step what the previous iteration must have completed."""
    by_first_step = {repeat.first: repeat for repeat in repeats}
    for repeat, arena in zip(_shared_repeats(repeats), layout.arenas, strict=True):
        placed = replace(repeat, arena=arena)
        by_first_step[repeat.first] = replace(placed, awaited=awaited_steps(steps, placed, places))
    return tuple(by_first_step.values())
