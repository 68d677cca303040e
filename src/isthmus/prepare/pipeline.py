"""The whole of preparation: a finalized graph in, a schedule out."""

from __future__ import annotations

from collections.abc import Callable

from isthmus.errors import Code, QnnError
from isthmus.graph import Graph, Tensor
from isthmus.prepare import order
from isthmus.prepare.inplace import write_in_place
from isthmus.prepare.layout import lay_out
from isthmus.prepare.liveness import Life
from isthmus.prepare.passes import run
from isthmus.prepare.refused import check_executable
from isthmus.prepare.schedule import Place, Pool, Schedule, Step
from isthmus.prepare.states import settle
from isthmus.prepare.storage import Block, Storage, share
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
    storage, state_offsets, state_bytes = _bind(work, alignment)
    steps = share(work, work.ordered(), storage)

    def planned(block: Block) -> bool:
        return block.pool is None or (io_in_scratch and block.pool >= Pool.IO)

    given: tuple[Tensor, ...] = (*work.inputs, *work.states)
    saved = 0
    if optimize_order and len(steps) <= order.LONGEST:
        kept = (*work.outputs, *(v for v in work.updates.values() if not v.is_static))
        graph_flow = order.flow(steps, storage, work_bytes, kept, given, alignment, planned)
        chosen, saved = order.choose(graph_flow)
        steps = [steps[i] for i in chosen]
    steps = settle(work, steps, storage, state_offsets)
    life = Life(steps, storage, given, work.outputs)
    if reuse_memory:
        write_in_place(steps, storage, life)

    layout = lay_out(
        steps,
        [b for b in storage.blocks() if b in life and planned(b)],
        life,
        [work_bytes(step) for step in steps],
        alignment=alignment,
        nodes=plan_nodes,
        order_saved=saved,
        aliased=sum(sum(t.nbytes for t in b.members) - b.size for b in storage.blocks() if b in life),
        reuse=reuse_memory,
    )
    places = {}
    for tensor in dict.fromkeys((*given, *work.outputs, *(t for s in steps for t in (*s.inputs, *s.outputs)))):
        if tensor is not None and not tensor.is_static:
            block, low, _ = storage.span(tensor)
            pool, base = (Pool.SCRATCH, layout.blocks[block] - block.low) if block.pool is None else (
                block.pool, block.base)
            places[tensor] = Place(int(pool), base + low)
    io = [storage.block(t) for t in (*work.inputs, *work.outputs)]
    return Schedule(
        name=graph.name,
        steps=tuple(steps),
        inputs=work.inputs,
        outputs=work.outputs,
        states=work.states,
        places=places,
        work=layout.work,
        scratch_bytes=layout.plan.bytes,
        state_bytes=state_bytes,
        state_offsets=tuple(state_offsets[s] for s in work.states),
        io_offsets=tuple(layout.blocks[b] for b in io) if io_in_scratch else (),
        alignment=alignment,
        plan=layout.plan,
        numerics=graph.numerics,
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
