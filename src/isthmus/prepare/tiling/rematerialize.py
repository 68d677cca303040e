"""Tensors that are computed a second time rather than kept, since a mean over all of one is between its readers.

A gate scales an image by what the mean of the image says, so that the image is read by rows twice, before the mean and
after it, and would have to be whole in between. If it comes from something much smaller in a few steps, those are
repeated for the later readers: the tiles of either reading then need no whole image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isthmus.graph import Tensor
from isthmus.prepare.storage import Block
from isthmus.prepare.tiling.search import RegionSearch
from isthmus.prepare.work import Work

LARGE, SMALLER, LONGEST, MOST = 12, 3, 7, 12
"""A tensor counts from this part of the most bytes alive, if its source has at most that part of its own; steps to
repeat; tensors."""


@dataclass(frozen=True)
class Remat:
    """A tensor to compute again.

    Parameters
    ----------
    chain
        The steps that make it, each by the name of its result, the first one first.
    readers
        Those that read it late, by the names of their results.
    nanoseconds
        The time of the chain.
    """

    chain: tuple[str, ...]
    readers: tuple[str, ...]
    nanoseconds: float
    bytes: int


def candidates(search: RegionSearch) -> list[Remat]:
    """List what could be computed again, in order of time for each byte saved."""
    base = search.base
    passed, barriers = 0, []
    for index in range(len(base.steps)):
        passed += search.is_barrier(index)
        barriers.append(passed)
    readers: dict[Block, list[int]] = {}
    for index, operands in enumerate(base.operands):
        for _, _, source in operands:
            readers.setdefault(source, []).append(index)
    found = []
    for index, block in enumerate(base.result):
        if block is None or block not in base.simple or base.size[block] * LARGE < search.peak:
            continue
        reading = readers.get(block, [])
        late = [reader for reader in reading if barriers[reader] > barriers[reading[0]]]
        chain = _chain(search, index)
        if not late or chain is None or not _by_name(search, late, base.made(block)):
            continue
        names = tuple(base.steps[step].outputs[0].name for step in chain)
        found.append(
            Remat(
                names,
                tuple(base.steps[reader].outputs[0].name for reader in dict.fromkeys(late)),
                float(sum(base.time[step] for step in chain)),
                base.size[block],
            )
        )
    return sorted(found, key=lambda one: one.nanoseconds / one.bytes)[:MOST]


def _by_name(search: RegionSearch, readers: list[int], tensor: Tensor) -> bool:
    """Tell whether readers read a tensor itself, not the same bytes under another name."""
    return all(any(t is tensor for t in search.base.steps[reader].inputs) for reader in readers)


def _chain(search: RegionSearch, index: int) -> list[int] | None:
    """List the steps that compute a result from something much smaller, if there are few."""
    base = search.base
    block = base.result[index]
    assert block is not None
    chain = [index]
    while len(chain) <= LONGEST:
        operands = {source: tensor for _, tensor, source in base.operands[chain[0]]}
        if search.is_barrier(chain[0]) or len(operands) != 1:
            return None
        ((source, tensor),) = operands.items()
        if base.size[source] * SMALLER <= base.size[block]:
            return chain
        writer = base.writer.get(source, -1)
        if source not in base.simple or writer < 0 or base.made(source) is not tensor:
            return None
        chain.insert(0, writer)
    return None


def affordable(found: list[Remat], nanoseconds: float) -> list[Remat]:
    """Choose as many as a time allows."""
    chosen, left = [], nanoseconds
    for one in found:
        if one.nanoseconds <= left:
            chosen.append(one)
            left -= one.nanoseconds
    return chosen


def compute_again(work: Work, chosen: Sequence[Remat]) -> None:
    """Let the late readers of tensors read others that are computed for them."""
    makers = {tensor.name: step for step in work.steps for tensor in step.outputs}
    for one in chosen:
        readers = [makers[name] for name in one.readers]
        made: dict[Tensor, Tensor] = {}
        for name in one.chain:
            step = makers[name]
            result = step.outputs[0]
            made[result] = work.native(result.name, result.dims, result.dtype, result.quantization)
            inputs = [made.get(t, t) if t is not None else None for t in step.inputs]
            work.add(step.op, step.name, inputs, [made[result]], step.params, step.clamp, readers[0])
        old = makers[one.chain[-1]].outputs[0]
        for reader in readers:
            work.change(reader, inputs=[made[old] if t is old else t for t in reader.inputs])
