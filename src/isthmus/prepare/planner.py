"""The whole of preparation: a finalized graph in, a schedule out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, Graph, Tensor
from isthmus.prepare import order
from isthmus.prepare.inplace import write_in_place
from isthmus.prepare.layout import Layout, ThreadArenas, lay_out, most_alive
from isthmus.prepare.liveness import Life
from isthmus.prepare.overlays import OverlayBlock, layered, place_from_top
from isthmus.prepare.passes import run
from isthmus.prepare.pipelining import awaited, own_blocks
from isthmus.prepare.refused import check_executable
from isthmus.prepare.schedule import Place, Pool, Region, Repeat, Schedule, Step
from isthmus.prepare.states import settle
from isthmus.prepare.storage import Block, Storage, share
from isthmus.prepare.tiling import (
    LONGEST,
    SEARCHED,
    WHOLE_FIRST,
    Replanner,
    Strips,
    depth_first,
    fitted,
    whole_operands,
)
from isthmus.prepare.tiling.rematerialize import Remat, compute_again
from isthmus.prepare.tiling.step_table import Arranged, Engine
from isthmus.prepare.work import Work

DEFAULT_ALIGNMENT = 64
"""What the addresses of pools are a multiple of unless a backend asks for more."""


def rewritten(graph: Graph) -> Work:
    """A finalized graph after all passes; the graph is not changed."""
    if not graph.finalized:
        raise QnnError(
            Code.GRAPH_NOT_FINALIZED, f"graph '{graph.name}'", "only a finalized graph can be prepared",
            "Call finalize() first.",
        )
    work = Work(graph)
    run(work)
    return work


def schedule(
    graph: Graph,
    *,
    work_bytes: Callable[[Step], int],
    refusal: Callable[[Step], str | None] | None = None,
    alignment: int = DEFAULT_ALIGNMENT,
    io_in_scratch: bool = False,
    optimize_order: bool = True,
    plan_nodes: int = 20_000,
    reuse_memory: bool = True,
    strips: Strips | None = None,
    store: Callable[[Work], None] | None = None,
) -> Schedule:
    """Fuse, order and place a graph.

    Parameters
    ----------
    graph
        A finalized graph; it is not changed.
    work_bytes
        How many bytes of scratch a step needs besides its tensors.
    refusal
        Why the engine does not execute a step, or None. If it refuses any, the error names all their nodes.
    alignment
        What the offset of every block and state is a multiple of.
    io_in_scratch
        Whether the plan also gives the graph's inputs and outputs a place in scratch.
    optimize_order
        Whether to look for an order of the steps that needs less memory than the graph's own.
    plan_nodes
        Partial layouts that the planner may look at for a better one, once it has one; 0 for fast layouts only.
    reuse_memory
        Whether memory of what is no longer needed serves what comes later. Without it every block keeps its contents
        until the end, so that each can be looked at.
    strips
        A limit on scratch, which stretches of steps are computed by strips for.
    store
        Has the last word on how the tensors of a rewritten graph are stored.

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
    >>> s = schedule(g, work_bytes=lambda step: 0)
    >>> [(step.op, step.clamp) for step in s.steps], s.scratch_bytes
    ([('ElementWiseMultiply', (0.0, inf))], 0)
    """
    work = rewritten(graph)
    if refusal is not None:
        check_executable(graph, work.ordered(), refusal)
    if store is not None:
        store(work)

    if strips is None:
        planner = _Planner(
            graph, work_bytes, alignment, io_in_scratch, optimize_order, plan_nodes, reuse_memory, work_bytes
        )
        arranged = planner.arrange(work, {})
        assert arranged is not None
        return planner.place(work, arranged)
    if not reuse_memory:
        rule = "memory that is never used again cannot be limited"
        raise QnnError(Code.GRAPH_INVALID_ARGUMENT, f"graph '{graph.name}'", rule)
    # The same steps are asked for in every arrangement; from here on none is changed.
    work_bytes = cache(work_bytes)
    engine = Engine(
        work_bytes, strips.nanoseconds, strips.splits, strips.shared, strips.sharing, strips.threads, strips.effort
    )
    planner = _Planner(
        graph, work_bytes, alignment, io_in_scratch, optimize_order, plan_nodes, reuse_memory,
        strips.work_alone or work_bytes,
    )  # fmt: skip
    return fitted(planner.site(work, engine), strips)


_Order = tuple[Sequence[int], int]
"""The numbers of steps in an order, and the bytes that it saves."""


@dataclass(frozen=True)
class _Planner:
    """What a graph is arranged and placed by. It knows no site: what a site calls keeps the planner, and no more.

    Parameters
    ----------
    work_alone
        What `work_bytes` is for a step that one thread executes alone.
    """

    graph: Graph
    work_bytes: Callable[[Step], int]
    alignment: int
    io_in_scratch: bool
    optimize_order: bool
    nodes: int
    reuse_memory: bool
    work_alone: Callable[[Step], int]

    def planned(self, block: Block) -> bool:
        """Return whether a block gets a place in scratch."""
        return block.pool is None or (self.io_in_scratch and block.pool >= Pool.IO)

    def arrange(self, work: Work, orders: dict[str, _Order | None], kind: str = SEARCHED) -> Arranged | None:
        """Arrange the steps in an order of one kind; None where there is no such order."""
        return _arranged(work, kind, self.work_bytes, self.alignment, self.planned, self.optimize_order, orders)

    def place(
        self, work: Work, arranged: Arranged, repeats: Sequence[Repeat] = (), regions: Sequence[Region] = ()
    ) -> Schedule:
        """Place an arrangement in memory."""
        return _placed(
            self.graph, work, arranged, repeats, regions, work_bytes=self.work_bytes, work_alone=self.work_alone,
            alignment=self.alignment, planned=self.planned, io_in_scratch=self.io_in_scratch, nodes=self.nodes,
            reuse_memory=self.reuse_memory,
        )  # fmt: skip

    def site(self, work: Work, engine: Engine) -> Replanner:
        """Offer a rewritten graph to the search for strips."""
        orders: dict[str, _Order | None] = {}
        return Replanner(
            self.graph.name, partial(self.again, engine), partial(self.arrange, work, orders),
            partial(self.place, work), work.native, engine, self.alignment, self.planned,
        )  # fmt: skip

    def again(self, engine: Engine, chosen: Sequence[Remat]) -> Replanner:
        """Offer the graph with some tensors computed again."""
        other = rewritten(self.graph)
        compute_again(other, chosen)
        return self.site(other, engine)


def _arranged(
    work: Work,
    kind: str,
    work_bytes: Callable[[Step], int],
    alignment: int,
    planned: Callable[[Block], bool],
    optimize_order: bool,
    orders: dict[str, _Order | None],
) -> Arranged | None:
    """The steps in an order, with tensors that share memory; None where there is no such order.

    Orders that were found are in `orders` from then on: the same steps are arranged several times, in storage of their
    own each time.
    """
    storage, state_offsets, state_bytes = _bind(work, alignment)
    steps = share(work, work.ordered(), storage)
    given: tuple[Tensor, ...] = (*work.inputs, *work.states)
    if kind not in orders:
        orders[kind] = _order(work, steps, storage, kind, work_bytes, given, alignment, planned, optimize_order)
    found = orders[kind]
    if found is None:
        return None
    chosen, saved = found
    steps = settle(work, [steps[i] for i in chosen], storage, state_offsets)
    return Arranged(steps, storage, given, work.outputs, state_offsets, state_bytes, saved)


def _order(
    work: Work,
    steps: Sequence[Step],
    storage: Storage,
    kind: str,
    work_bytes: Callable[[Step], int],
    given: Sequence[Tensor],
    alignment: int,
    planned: Callable[[Block], bool],
    optimize_order: bool,
) -> _Order | None:
    """An order of steps; None where there is none of its kind."""
    if kind == SEARCHED and not (optimize_order and len(steps) <= order.LONGEST):
        return range(len(steps)), 0
    if kind != SEARCHED and len(steps) > LONGEST:
        return None
    kept = (*work.outputs, *(v for v in work.updates.values() if not v.is_static))
    graph_flow = order.flow(steps, storage, work_bytes, kept, given, alignment, planned)
    if kind == SEARCHED:
        return order.choose(graph_flow)
    whole = whole_operands(steps, graph_flow)
    return None if kind == WHOLE_FIRST and not any(whole) else (depth_first(graph_flow, kind, whole), 0)


def _placed(
    graph: Graph,
    work: Work,
    arranged: Arranged,
    repeats: Sequence[Repeat],
    regions: Sequence[Region],
    *,
    work_bytes: Callable[[Step], int],
    work_alone: Callable[[Step], int],
    alignment: int,
    planned: Callable[[Block], bool],
    io_in_scratch: bool,
    nodes: int,
    reuse_memory: bool,
) -> Schedule:
    """The schedule of an arrangement: results over operands where that can be, and a place for every block."""
    steps, storage = arranged.steps, arranged.storage
    life = Life(steps, storage, arranged.given, work.outputs, repeats)
    if reuse_memory:
        write_in_place(steps, storage, life, arranged.overlaid)
    blocks = [b for b in storage.blocks() if b in life and planned(b)]
    spaces = [work_bytes(step) for step in steps]
    for one in repeats:
        if one.threads > 1:
            # A turn is one thread's.
            spaces[one.first : one.last + 1] = map(work_alone, steps[one.first : one.last + 1])

    def laid_out(layers: Sequence[OverlayBlock]) -> Layout:
        return lay_out(
            steps,
            blocks,
            life,
            spaces,
            alignment=alignment,
            nodes=nodes,
            order_saved=arranged.order_saved,
            aliased=sum(sum(t.nbytes for t in b.members) - b.size for b in storage.blocks() if b in life),
            reuse=reuse_memory,
            layered=layers,
            lanes=lanes,
            alike=arranged.alike,
            made_in=lambda step: storage.block(step.outputs[0]),
        )

    shared = [repeat for repeat in repeats if repeat.threads > 1]
    lanes = [
        ThreadArenas(one.first, one.last, one.threads, [b for b in own_blocks(steps, storage, life, one) if planned(b)])
        for one in shared
    ]
    layers = layered(storage, life, arranged.overlaid, alignment)
    layout = laid_out(layers)
    if layers:
        # They have fixed places, and others may suit the rest better.
        alive = most_alive(layout.plan, alignment)
        for others in place_from_top(layers, alive):
            if layout.plan.bytes > alive:
                layout = min(layout, laid_out(others), key=lambda found: found.plan.bytes)
    places = {}
    touched = (t for s in steps for t in (*s.inputs, *s.outputs))
    for tensor in dict.fromkeys((*arranged.given, *work.outputs, *touched)):
        if tensor is not None and not tensor.is_static:
            block, low, _ = storage.span(tensor)
            pool, base = (Pool.SCRATCH, layout.blocks[block] - block.low) if block.pool is None else (
                block.pool, block.base)
            places[tensor] = Place(int(pool), base + low)
    placed = {one.first: replace(one, lane=lane) for one, lane in zip(shared, layout.lanes, strict=True)}
    placed = {at: replace(one, awaited=awaited(steps, one, places)) for at, one in placed.items()}
    io = [storage.block(t) for t in (*work.inputs, *work.outputs)]
    floats = [t for t, place in places.items() if place.pool == Pool.SCRATCH and t.dtype is DataType.FLOAT_32]
    half = sum(t.nbytes for t in floats if t.itemsize < t.dtype.itemsize)
    plan = replace(layout.plan, half_bytes=half, float_bytes=sum(t.nbytes for t in floats) - half)
    return Schedule(
        name=graph.name,
        steps=tuple(steps),
        inputs=work.inputs,
        outputs=work.outputs,
        states=work.states,
        places=places,
        work=layout.work,
        scratch_bytes=layout.plan.bytes,
        state_bytes=arranged.state_bytes,
        state_offsets=tuple(arranged.state_offsets[s] for s in work.states),
        io_offsets=tuple(layout.blocks[b] for b in io) if io_in_scratch else (),
        alignment=alignment,
        plan=replace(plan, regions=tuple(regions)) if regions else plan,
        numerics=graph.numerics,
        repeats=tuple(placed.get(repeat.first, repeat) for repeat in repeats),
    )


def _bind(work: Work, alignment: int) -> tuple[Storage, dict[Tensor, int], int]:
    """Bind inputs, outputs and states to their pools."""
    storage = Storage()
    for index, tensor in enumerate((*work.inputs, *work.outputs)):
        storage.bind(tensor, Pool.IO + index)
    offsets: dict[Tensor, int] = {}
    size = 0
    for state in work.states:
        offsets[state] = size
        storage.bind(state, Pool.STATE, size)
        size += -(-state.nbytes // alignment) * alignment
    return storage, offsets, size
