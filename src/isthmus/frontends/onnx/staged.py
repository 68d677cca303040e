"""A model that is converted in stages, and the stages for the greatest shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.onnx.importer import Importer
from isthmus.frontends.onnx.node_order import value_names
from isthmus.frontends.onnx.schema import OnnxContents
from isthmus.frontends.onnx.signature import Input, bound_arrays, graph_inputs
from isthmus.frontends.onnx.stage import Extreme, ModelStage, NeededValue, StageProgress, StageRecord, unused_mark

MAX_STAGES = 1024
"""The most stages for the greatest shapes, over all branches."""

Shapes = Mapping[str, Sequence[int]]


class StagedModel:
    """An ONNX model that is converted stage by stage.

    - `contents`, `name`: the contents of the file, with all external data, and the name of its graphs.
    - `shapes`: the greatest dimensions of inputs, by name, where the file leaves some open.
    - `bounds`: the greatest values, by name, of values that decide shapes; and the most turns of loops, by the node's
      name.
    - `selects`: whether graphs can have operations whose number of rows depends on the data; see `StageRecord`.
    """

    def __init__(
        self,
        contents: OnnxContents,
        name: str,
        shapes: Shapes | None = None,
        constants: Mapping[str, Any] | None = None,
        bounds: Mapping[str, Any] | None = None,
        selects: bool = True,
    ) -> None:
        self.name = name
        self._constants = constants or {}
        self._bounds = bounds or {}
        self._selects = selects
        # Converted once to an operator set that is known, if it is of an older one.
        model = Importer(contents, name).model
        self._contents = replace(contents, message=model)
        graph = model.graph
        self._mark = unused_mark(value_names(model))
        bound = bound_arrays(graph, self._constants)
        # The inputs at their greatest shapes.
        self.inputs: Sequence[Input] = graph_inputs(graph, shapes or {}, bound)
        # The names of the outputs, in order.
        self.output_names: Sequence[str] = [value.name for value in graph.output]

    def stage(self, shapes: Shapes, progress: StageProgress) -> ModelStage:
        """Convert the stage that follows; `shapes` are the true shapes of all inputs."""
        record = StageRecord(progress, self._selects, self._bounds, self._mark)
        return Importer(self._contents, self.name, record).convert_stage(shapes, self._constants)

    def greatest(self) -> Iterator[ModelStage]:
        """Yield the stages for the greatest shapes.

        Where a condition decides about a branch, the stages of both branches follow. A branch that cannot be converted
        at these shapes is left out: it may be for other inputs.
        """
        shapes = {each.name: each.dims for each in self.inputs}
        left, is_complete = MAX_STAGES, False
        refusal: QnnError | None = None
        # The progress before each stage to come, and whether it is one of several outcomes of a condition.
        waiting = [(StageProgress(), False)]
        while waiting:
            progress, is_choice = waiting.pop()
            left -= 1
            if not left:
                rule = f"its conditions have more than {MAX_STAGES} outcomes to plan for"
                raise QnnError(Code.COMMON_NOT_SUPPORTED, f"model '{self.name}'", rule)
            try:
                stage = self.stage(shapes, progress)
            except QnnError as error:
                if not is_choice:
                    raise
                refusal = error
                continue
            yield stage
            is_complete |= stage.is_last
            if not stage.is_last:
                counts = {path: stage.stored[path].dims[0] for path in stage.rows}
                outcomes = self._greatest_values(stage.needed)
                waiting += [(stage.next(counts, values), len(outcomes) > 1) for values in outcomes]
        if not is_complete and refusal is not None:
            raise refusal

    def _greatest_values(self, needed: Mapping[str, NeededValue]) -> list[dict[str, np.ndarray]]:
        """Return the values to plan the next stage with: one set, or one for each outcome of conditions."""
        combinations: list[dict[str, np.ndarray]] = [{}]
        for path, need in needed.items():
            dims = tuple(need.value.dims[axis] for axis in need.value.perm)
            choices: Sequence[Any]
            if path in self._bounds:
                choices = [self._bounds[path]]
            elif need.choices is None and need.is_condition:
                choices = [True, False]
            else:
                choices = [
                    _extreme(path, need, each) if isinstance(each, Extreme) else each
                    for each in need.choices or [Extreme.HIGHEST]
                ]
            try:
                arrays = [np.asarray(each, need.value.dtype.numpy) for each in choices]
                arrays = [np.broadcast_to(a.reshape(()) if a.size == 1 else a, dims) for a in arrays]
            except (ValueError, TypeError, OverflowError):
                rule = f"{choices[0]!r} is no value of {need.value.dtype.name}{list(dims)}"
                raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"bound of '{path}'", rule) from None
            combinations = [{**values, path: array} for values in combinations for array in arrays]
        return combinations


def _extreme(path: str, need: NeededValue, which: Extreme) -> np.ndarray:
    """Return the least or the greatest value that a needed value can have; refuse the model if it is unknown."""
    value = need.extremes[which]
    if value is None:
        how, kind = ("great", "greatest") if which is Extreme.HIGHEST else ("small", "least")
        rule = f"the value of '{path}' decides a shape, and how {how} it can be is unknown"
        hint = f"Give its {kind} value: bounds={{{path!r}: 100}} in Python, --bound {path}=100 for commands."
        raise QnnError(Code.COMMON_NOT_SUPPORTED, need.what, rule, hint)
    return value.transpose(need.value.perm)
