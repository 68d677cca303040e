"""The steps of a region from which tiles are cut, including the fetch of an operand that a result overwrites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from isthmus.graph import Tensor
from isthmus.prepare.schedule import Step
from isthmus.prepare.storage import Block
from isthmus.prepare.tiling.search import RegionChoice
from isthmus.prepare.tiling.step_table import StepTable, aligned

Native = Callable[..., Tensor]
"""A function that creates a tensor from its name, dimensions, data type and quantization."""


@dataclass(frozen=True)
class RegionSteps:
    """The steps of a region.

    Parameters
    ----------
    choice
        The region and the rows of its tiles.
    steps
        The whole steps. If an operand is overwritten, the first is a Reshape that fetches it.
    results
        For each block, the index of the step that writes it.
    operands
        For each step, the block of each operand by its position.
    overlaid
        An operand and the result that is written over it.
    """

    choice: RegionChoice
    steps: list[Step]
    results: dict[Block, int]
    operands: list[dict[int, Block]]
    overlaid: tuple[Tensor, Tensor] | None = None

    def result(self, number: int) -> Tensor:
        """Return the result of a step."""
        return self.steps[number].outputs[0]

    def readers(self) -> list[list[int]]:
        """List for each step the steps that read its result by rows."""
        readers: list[list[int]] = [[] for _ in self.steps]
        for reader, rows in enumerate(self.choice.region.maps):
            for position, _ in rows.sliced:
                writer = self.results.get(self.operands[reader][position])
                if writer is not None and reader not in readers[writer]:
                    readers[writer].append(reader)
        return readers


def region_steps(base: StepTable, choice: RegionChoice, native: Native) -> RegionSteps:
    """Return the steps of a choice; a result that is written over an operand shares its block from now on."""
    region = choice.region
    numbers = range(region.first, region.last + 1)
    steps = [base.steps[index] for index in numbers]
    blocks = [base.result[index] for index in numbers]
    operands = [{position: block for position, _, block in base.operands[index]} for index in numbers]
    overlay = region.overlay
    overlaid = None
    if overlay is not None:
        source, storage = base.steps[overlay.source].outputs[overlay.output], base.storage
        # The operand's block; its present one in `storage` may already be shared by an earlier region.
        source_block = base.results[overlay.source][overlay.output]
        fetched = native(source.name, source.dims, source.dtype, source.quantization)
        block = storage.block(fetched)
        # Steps of the region read the fetched rows, in the same views of its bytes as before.
        replaced: dict[Tensor, Tensor] = {source: fetched}
        for number, step in enumerate(steps):
            positions = [position for position, read in operands[number].items() if read is source_block]
            if not positions:
                continue
            inputs = list(step.inputs)
            for position in positions:
                tensor = inputs[position]
                assert tensor is not None
                if tensor not in replaced:
                    replaced[tensor] = native(tensor.name, tensor.dims, tensor.dtype, tensor.quantization)
                    storage.join(fetched, replaced[tensor])
                inputs[position] = replaced[tensor]
                operands[number][position] = block
            steps[number] = Step(step.op, step.name, inputs, step.outputs, step.params, step.clamp)
        steps.insert(0, Step("Reshape", source.name, [source], [fetched]))
        blocks.insert(0, block)
        operands.insert(0, {0: source_block})
        # A larger result ends where the operand ends, so it begins before it.
        result = base.steps[overlay.result].outputs[0]
        storage.join(source, result, -aligned(max(0, result.nbytes - source.nbytes), base.alignment))
        overlaid = source, result
    results = {block: number for number, block in enumerate(blocks) if block is not None}
    return RegionSteps(choice, steps, results, operands, overlaid)
