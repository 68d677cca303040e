"""Rematerialization: tensors are computed again rather than kept if a mean over the whole is between their readers.

A gate scales an image by a function of its mean. The image is therefore read by rows twice, before and after the mean,
and would have to be whole in between. If a few steps compute it from something much smaller, they are repeated for the
later readers. Then neither reading needs the whole image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isthmus.graph import Tensor
from isthmus.prepare.storage import Block
from isthmus.prepare.tiling.search import RegionSearch
from isthmus.prepare.work import Work

LARGE, SMALLER, MAX_STEPS, MAX_TENSORS = 12, 3, 7, 12
"""A tensor qualifies if it has at least 1 / LARGE of the peak bytes and its source has at most 1 / SMALLER of its own.
At most MAX_STEPS steps are repeated for each tensor, and at most MAX_TENSORS tensors are rematerialized.
"""


@dataclass(frozen=True)
class Remat:
    """A tensor to rematerialize.

    - `chain`: the steps that compute it, by the names of their results, in order.
    - `readers`: its late readers, by the names of their results.
    - `nanoseconds`: the time of the chain.
    - `bytes`: the size of the tensor.
    """

    chain: tuple[str, ...]
    readers: tuple[str, ...]
    nanoseconds: float
    bytes: int


def candidates(search: RegionSearch) -> list[Remat]:
    """List the tensors that could be rematerialized, by ascending time per byte saved."""
    base = search.base
    # For each step, the number of barriers up to it; regions do not extend across a barrier.
    passed, barriers = 0, []
    for index in range(len(base.steps)):
        passed += search.is_barrier(index)
        barriers.append(passed)
    readers: dict[Block, list[int]] = {}
    for index, operands in enumerate(base.operands):
        for _, _, source in operands:
            readers.setdefault(source, []).append(index)
    remats = []
    for index, block in enumerate(base.result):
        if block is None or block not in base.simple or base.size[block] * LARGE < search.peak:
            continue
        own_readers = readers.get(block, [])
        late = [reader for reader in own_readers if barriers[reader] > barriers[own_readers[0]]]
        chain = _chain(search, index)
        if not late or chain is None or not _by_name(search, late, base.tensor_in(block)):
            continue
        names = tuple(base.steps[step].outputs[0].name for step in chain)
        remats.append(
            Remat(
                names,
                tuple(base.steps[reader].outputs[0].name for reader in dict.fromkeys(late)),
                float(sum(base.time[step] for step in chain)),
                base.size[block],
            )
        )
    return sorted(remats, key=lambda one: one.nanoseconds / one.bytes)[:MAX_TENSORS]


def _by_name(search: RegionSearch, readers: list[int], tensor: Tensor) -> bool:
    """Return whether readers read the tensor itself, not the same bytes under another name."""
    return all(any(t is tensor for t in search.base.steps[reader].inputs) for reader in readers)


def _chain(search: RegionSearch, index: int) -> list[int] | None:
    """List the few steps, each of one operand, that compute the result of step `index` from something much smaller."""
    base = search.base
    block = base.result[index]
    assert block is not None
    chain = [index]
    while len(chain) <= MAX_STEPS:
        operands = {source: tensor for _, tensor, source in base.operands[chain[0]]}
        if search.is_barrier(chain[0]) or len(operands) != 1:
            return None
        ((source, tensor),) = operands.items()
        if base.size[source] * SMALLER <= base.size[block]:
            return chain
        writer = base.writer.get(source, -1)
        if source not in base.simple or writer < 0 or base.tensor_in(source) is not tensor:
            return None
        chain.insert(0, writer)
    return None


def affordable(remats: list[Remat], nanoseconds: float) -> list[Remat]:
    """Choose, in the given order, every tensor whose time is still within `nanoseconds` in total."""
    chosen, time_left = [], nanoseconds
    for one in remats:
        if one.nanoseconds <= time_left:
            chosen.append(one)
            time_left -= one.nanoseconds
    return chosen


def compute_again(work: Work, chosen: Sequence[Remat]) -> None:
    """Make the late readers of tensors read copies that are computed for them."""
    writers = {tensor.name: step for step in work.steps for tensor in step.outputs}
    for one in chosen:
        readers = [writers[name] for name in one.readers]
        # The copy of each result of the chain.
        copies: dict[Tensor, Tensor] = {}
        for name in one.chain:
            step = writers[name]
            result = step.outputs[0]
            copies[result] = work.native(result.name, result.dims, result.dtype, result.quantization)
            inputs = [copies.get(t, t) if t is not None else None for t in step.inputs]
            work.add(step.op, step.name, inputs, [copies[result]], step.params, step.clamp, readers[0])
        old = writers[one.chain[-1]].outputs[0]
        for reader in readers:
            work.change(reader, inputs=[copies[old] if t is old else t for t in reader.inputs])
