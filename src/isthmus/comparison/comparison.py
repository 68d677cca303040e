"""`compare`: every operation of a model against a reference, in the model and alone on the reference's inputs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.backends.seam import registry
from isthmus.comparison import tolerance
from isthmus.comparison.execution import GraphRunner, Group, groups, isolate, keep, tensors_after_fusion, to_stored
from isthmus.comparison.reference import Reference, find_reference, recompute
from isthmus.comparison.report import ComparisonReport, Deviation, TensorRow, Verdict, deviation
from isthmus.comparison.saturation import Saturation, input_range, limit_to_range, own_quantizer, saturation
from isthmus.comparison.subject import Arrays, HybridWeights, ModelComposition, ModelOperation, Subject, open_model
from isthmus.comparison.values import (
    CONVERSIONS,
    ReferenceValues,
    distance,
    holders,
    numbers,
    reals,
    rounded_deviation,
    with_conversions,
)
from isthmus.errors import Code, QnnError, did_you_mean, invalid_argument
from isthmus.frontends import ModelSource
from isthmus.graph import Graph, Tensor, TensorType
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.random_arrays import random_array

Progress = Callable[[str], None]
"""Called with the name of each stage as it begins."""
STAGES = ("load the model", "compute the reference", "run the model", "run each operation alone", "isolate")
"""The stages of a comparison, in order."""
NUDGES = 2
"""How often inputs are changed by one unit in the last place to measure how sensitive an operation is."""


def compare(
    model: str | os.PathLike[str],
    against: str | os.PathLike[str] | None = None,
    *,
    backend: str = registry.DEFAULT,
    inputs: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Iterable[int]] | None = None,
    constants: Mapping[str, Any] | None = None,
    graph: str | None = None,
    config: Any = None,
    threads: int = 1,
    seed: int = 0,
    progress: Progress | None = None,
) -> ComparisonReport:
    """Compare every operation of a model with a reference.

    The model runs as a whole, and each operation also runs alone on the reference's inputs. That tells an operation
    that is wrong by itself from one whose inputs are wrong.

    Parameters
    ----------
    model
        A ``.onnx``, ``.tflite`` or ``.dlc`` file, or a model library.
    against
        The reference. None: the model's own runtime (ONNX Runtime, LiteRT). A backend ("htp", "lpai", "qnn-htp"), a
        float type ("fp16", "bf16", "fp32"), or another ``.onnx`` or ``.tflite`` file with the same tensor names.
    backend, config, threads
        The backend that runs the model, its configuration, and its threads.
    inputs
        Input arrays by name; random ones where they are omitted.
    shapes, constants, graph
        As for `isthmus.Session`.
    seed
        The seed of random inputs.
    progress
        Called with the name of each stage as it begins.

    Raises
    ------
    QnnError
        If a file cannot be read or run, a runtime is not installed, or an argument is invalid.

    Examples
    --------
    ::

        report = isthmus.compare("model.onnx")
        print(report)                       # <ComparisonReport 'model.onnx' on cpu and ONNX Runtime agree>
        if not report.agrees:
            print(report.first.operation)   # the first operation that is wrong by itself
    """
    for what, value in (("model", model), ("against", against)):
        if not isinstance(value, (str, os.PathLike)) and (what == "model" or value is not None):
            raise invalid_argument(f"{what} {value!r}", "must be a path or a name")
    for what, mapping in (("inputs", inputs), ("shapes", shapes)):
        if not isinstance(mapping, (Mapping, type(None))):
            raise invalid_argument(what, f"must map names of inputs, is {type(mapping).__name__}")
    try:
        dims = None if shapes is None else {name: tuple(map(int, given)) for name, given in shapes.items()}
    except (TypeError, ValueError):
        raise invalid_argument(f"shapes {shapes!r}", "must be lists of dimensions") from None
    source = ModelSource(Path(model), dims, constants, graph)
    say = progress or (lambda stage: None)
    return open_comparison(source, against, backend, config, threads, say).run(inputs or {}, seed)


def open_comparison(
    source: ModelSource,
    against: str | os.PathLike[str] | None,
    backend: str,
    config: Any = None,
    threads: int = 1,
    progress: Progress = lambda stage: None,
) -> Comparison:
    """Read a model and find its reference, ready to run; the parameters are those of `compare`."""
    progress(STAGES[0])
    subject = open_model(source)
    name = registry.entry(backend).name
    return Comparison(subject, find_reference(subject, against, name, threads), name, config, threads, progress)


@dataclass(frozen=True)
class _Alone:
    """What running an operation alone has shown.

    - `from_reference`: the difference from the reference, on the reference's inputs; if it exceeds the tolerance, both
      are first limited to what quantizers can represent.
    - `in_context`: the difference between its result in the model and its result alone on the same inputs.
    - `tolerance`: how large both differences may be.
    - `saturation`: the reference's results that its quantizer cannot represent, if they differ by more than the
      tolerance.
    """

    from_reference: Deviation
    in_context: Deviation
    tolerance: float
    saturation: Saturation | None = None

    def verdict(self, in_model: Deviation) -> Verdict:
        """Decide about the operation; `in_model` is the difference of its result in the model from the reference."""
        if self.from_reference.max_abs > self.tolerance:
            return Verdict.WRONG
        if self.in_context.max_abs > self.tolerance:
            return Verdict.IN_CONTEXT
        if self.saturation is not None:
            return Verdict.SATURATES
        return Verdict.PASSES_ON if in_model.max_abs > self.tolerance else Verdict.AGREES


class Comparison:
    """One comparison of a model with a reference.

    - `backend`, `config`, `threads`: where and how the model runs.
    - `progress`: called with the name of each stage as it begins.
    """

    def __init__(
        self,
        subject: Subject,
        reference: Reference,
        backend: str = registry.DEFAULT,
        config: Any = None,
        threads: int = 1,
        progress: Progress = lambda stage: None,
    ) -> None:
        self.subject, self.reference = subject, reference
        self.backend, self.config, self.threads = backend, config, threads
        self._say = progress
        self.composition: ModelComposition = subject.compose()
        self.graph: Graph = self.composition.graph
        self.stored = self.composition.stored
        self._held = holders(self.composition, subject.operations)
        self._hybrids = _hybrid_weights(subject)

    def run(self, inputs: Mapping[str, Any], seed: int, are_real: bool | None = None) -> ComparisonReport:
        """Compare, on these inputs and random ones where they are missing.

        `are_real` says whether the inputs are like those that quantizers were calibrated for, so that a quantizer that
        saturates is wrong; by default they are if none is random.
        """
        self.feeds = input_arrays(self.graph, inputs, seed)
        self.are_real = all(name in inputs for name in self.feeds) if are_real is None else are_real
        after_fusion = tensors_after_fusion(self.graph)
        written = [name for name in self._held if name in after_fusion]
        self._say(STAGES[1])
        arrays = self.reference.run(self.feeds, written)
        self.origins: dict[str, str] = {}
        self.arrays: Arrays = arrays
        if self.reference.other is not None:
            self.arrays, self.origins = with_conversions(arrays, self.subject.operations)
        self.values = ReferenceValues(self.composition, self._held, self.arrays)
        # Where the reference has floats, every rounding to fixed point is looked at by itself.
        rounded = {name for name in self._held if self.values.is_rounded(self.graph.tensors[name])}
        self.is_rounded = bool(rounded)
        passed = _constants(self.graph) | (_quantized_only(self.graph) if rounded else set())
        self.observed = [
            name for name in self._held
            if (name in after_fusion or name in rounded) and self.values.as_stored(name) is not None
            and self.graph.tensors[name].type in (TensorType.NATIVE, TensorType.APP_READ)
            and self.graph.tensors[name] not in passed
        ]  # fmt: skip
        if not self.observed:
            rule = "it has no tensor that the model has too, by name, so nothing can be compared"
            raise invalid_argument(f"reference {self.reference.title}", rule)
        self._say(STAGES[2])
        self.whole = self._run_whole(self.observed)
        self._say(STAGES[3])
        alone = self._run_alone(self.observed)
        rows = [row for operation in self.subject.operations for row in self._rows(operation, alone)]
        # Random inputs may exceed what quantizers were calibrated for; then saturation is no fault.
        suspects = [row for row in rows if row.is_wrong or (self.are_real and row.verdict is Verdict.SATURATES)]
        self._say(STAGES[4])
        if not suspects:
            suspects = self._unobserved_suspects(rows)
        elif not self.is_rounded:
            # Quantizing tools leave activations out, so inside a fused operation equal names may mean other values.
            suspects = self._narrow(suspects)
        return ComparisonReport(
            self.subject.source.path.name, self.backend, self.reference.title, tuple(rows), tuple(suspects),
            dict(self.feeds), tuple(name for name in self.feeds if name not in inputs),
        )  # fmt: skip

    # -- values --------------------------------------------------------------------------------------------------------

    def _array_for(self, tensor: Tensor, own: bool) -> np.ndarray:
        """Return the value that an operation alone reads: the reference's, or with `own` that of the model run here."""
        if tensor.type is TensorType.APP_READWRITE:
            return np.asarray(tensor.initial())
        if tensor.type is TensorType.APP_WRITE:
            return to_stored(self.feeds[tensor.name], tensor)
        if own:
            return self.whole[tensor.name]
        value = self.values.as_stored(tensor.name)
        assert value is not None
        return value

    # -- executions ----------------------------------------------------------------------------------------------------

    def _run_whole(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Run the whole model with these tensors as additional outputs; return stored elements by tensor."""
        graph = self.subject.compose().graph
        keep(graph, names)
        with GraphRunner(graph, self.backend, self.config, self.threads) as runner:
            return runner.run(self._store_feeds(graph))

    def _store_feeds(self, graph: Graph) -> dict[str, np.ndarray]:
        """Return the inputs as a graph stores them."""
        return {tensor.name: to_stored(self.feeds[tensor.name], tensor) for tensor in graph.inputs}

    def operation_times(self, runs: int) -> dict[str, float]:
        """Run the model as it is, without additional outputs, after `run`.

        Return the median time of each operation of the prepared graph in microseconds, by its name.
        """
        graph = self.subject.compose().graph
        with GraphRunner(graph, self.backend, self.config, self.threads) as runner:
            return runner.operation_times(self._store_feeds(graph), runs)

    def _run_alone(self, targets: Sequence[str], given: Iterable[str] | None = None) -> dict[str, _Alone]:
        """Run the operations that compute these tensors, each alone, on values of `given`, by default the targets."""
        cut = {*(targets if given is None else given)}
        found = groups(self.graph, targets, cut)
        if not found:
            return {}
        isolated = isolate(self.graph, found)
        sources = {tensor.name: tensor for each in found for tensor in each.sources}
        reference = {isolated.inputs[name]: self._array_for(tensor, own=False) for name, tensor in sources.items()}
        tensors = isolated.graph.tensors
        with GraphRunner(isolated.graph, self.backend, self.config, self.threads) as runner:

            def run_changed(change: tolerance.Change, times: int) -> list[dict[str, np.ndarray]]:
                generator = np.random.default_rng(0)
                return [
                    runner.run({name: change(array, tensors[name], generator) for name, array in reference.items()})
                    for _ in range(times)
                ]

            alone = runner.run(reference)
            nudges = run_changed(tolerance.nudge_floats, NUDGES)
            steps = run_changed(tolerance.nudge_steps, NUDGES) if self.is_rounded else []
            steps += self._with_other_constants(found, reference) if self.is_rounded else []
            own = {isolated.inputs[name]: self._array_for(tensor, own=True) for name, tensor in sources.items()
                   if name in self.whole or tensor.type is not TensorType.NATIVE}  # fmt: skip
            in_context = runner.run(own) if len(own) == len(sources) else alone
        results = {}
        for each in found:
            target, made = each.target, isolated.outputs[each.target.name]
            nudge, step = (
                max((distance(target, run[made], alone[made]).max_abs for run in runs), default=0.0)
                for runs in (nudges, steps)
            )
            limit = self._tolerance(each, nudge, step)
            difference, beyond = self.values.deviation(target, alone[made]), None
            if self.is_rounded and difference.max_abs > limit:
                difference, beyond = self._within_ranges(each, alone[made])
            results[target.name] = _Alone(
                difference,
                distance(target, self.whole.get(target.name, in_context[made]), in_context[made]),
                limit, beyond,
            )  # fmt: skip
        return results

    def _with_other_constants(
        self, found: Sequence[Group], reference: Mapping[str, np.ndarray]
    ) -> list[dict[str, np.ndarray]]:
        """Run operations alone with every fixed-point constant changed by one step, up or down at random."""
        generator = np.random.default_rng(0)

        def step_constant(constant: Tensor) -> np.ndarray | None:
            return None if constant.data is None else tolerance.nudge_steps(constant.data, constant, generator)

        isolated = isolate(self.graph, found, step_constant)
        with GraphRunner(isolated.graph, self.backend, self.config, self.threads) as runner:
            return [runner.run(reference)]

    def _within_ranges(self, each: Group, own: np.ndarray) -> tuple[Deviation, Saturation | None]:
        """Compare the result of an operation alone with the reference, both as far as quantizers can represent them."""
        # If an input exceeds the range of its quantizer, the reference computes the result again from the limited
        # input. Also return the reference's values that exceed the range of the result's own quantizer.
        target = each.target
        expected = self._recompute(each)
        if expected is None:
            expected = self.values.in_stored_order(target.name)
        assert expected is not None
        quantizer = own_quantizer(target, each.nodes)
        if quantizer is None:
            return rounded_deviation(target, own, expected), None
        beyond = saturation(quantizer, expected)
        return rounded_deviation(target, own, limit_to_range(quantizer, expected)), beyond

    def _recompute(self, each: Group) -> np.ndarray | None:
        """Compute the reference's result from inputs limited to their ranges; None if all are within, or it cannot."""
        given: dict[str, np.ndarray] = {}
        is_limited = False
        for tensor in each.sources:
            if tensor.name not in self._held or self.reference.other is None:
                return None
            name = self._held[tensor.name][0]
            array = self.values.in_stored_order(tensor.name)
            if array is None:
                return None
            if self.values.is_rounded(tensor) and saturation(tensor, array) is not None:
                array, is_limited = limit_to_range(tensor, array).astype(array.dtype), True
            given[self.origins.get(name, name)] = self.stored[name].to_model(array)
        if not is_limited:
            return None
        name = self._held[each.target.name][0]
        origin = self.origins.get(name, name)
        result = given.get(origin)
        if result is None and self.reference.other is not None:
            result = recompute(self.reference.other, origin, given, self.arrays)
        return None if result is None else self.stored[name].to_stored(result)

    def _tolerance(self, each: Group, nudge: float, step: float) -> float:
        """Return how far an operation alone may be off; `nudge` and `step` are measured changes of its result."""
        if any(OPERATIONS[node.op].traits.varies for node in each.nodes):
            return math.inf
        target = each.target
        expected = self.values.as_stored(target.name)
        assert expected is not None
        sources = {tensor.name: reals(tensor, self._array_for(tensor, own=False)) for tensor in each.sources}
        bound, largest = tolerance.bound(each.nodes, self.reference.unit), _reach([reals(target, expected)])
        scale = tolerance.step_size(own_quantizer(target, each.nodes) or target)
        limit = bound.tolerance(scale, largest, nudge)
        reach = _reach(sources.values())
        written = {tensor.name for node in each.nodes for tensor in node.outputs}
        hybrids = {name: weights for name, weights in self._hybrids.items() if name in written}
        limit += max(
            tolerance.activation_step(each.nodes, sources),
            sum(tolerance.hybrid_step(weights, reach) for weights in hybrids.values()),
        )
        if self.reference.other is not None:
            there = _hybrid_weights(self.reference.other)
            limit += sum(tolerance.hybrid_rounding(hybrids[name], reach) for name in hybrids if name not in there)
        if self.is_rounded:
            limit += step + scale / 2
            limit += tolerance.weight_rounding(each.nodes, reach)
        return limit

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _rows(self, operation: ModelOperation, alone: Mapping[str, _Alone]) -> Iterable[TensorRow]:
        """Compare the results of an operation."""
        for name in operation.outputs:
            expected = self.arrays.get(name)
            if expected is None or expected.dtype.kind not in "fiub":
                continue
            if name in self.composition.folded:
                if not self._is_quantized_constant(operation, name):
                    yield self._folded_row(operation, name, expected)
            elif name in self.stored:
                yield self._row(operation, name, expected, alone)

    def _is_quantized_constant(self, operation: ModelOperation, name: str) -> bool:
        """Return whether a constant is quantized here but not in the reference; then only its readers are judged."""
        other = self.reference.other
        if other is None or operation.kind not in CONVERSIONS:
            return False
        return not any(name in each.outputs for each in other.operations if each.kind in CONVERSIONS)

    def _folded_row(self, operation: ModelOperation, name: str, expected: np.ndarray) -> TensorRow:
        """Compare a tensor that was computed when the model was loaded."""
        own = self.composition.folded[name]
        found = deviation(own, expected)
        largest = float(np.abs(expected.astype(np.float64)).max(initial=0)) if expected.dtype.kind == "f" else 0.0
        limit = tolerance.FUNCTION_ROUNDINGS * max(tolerance.SINGLE, self.reference.unit) * largest
        verdict = Verdict.WRONG if found.max_abs > limit else Verdict.AGREES
        return TensorRow(operation, name, expected.shape, str(own.dtype), verdict, found, found, limit)

    def _row(
        self, operation: ModelOperation, name: str, expected: np.ndarray, alone: Mapping[str, _Alone]
    ) -> TensorRow:
        """Compare a tensor that is computed when the model runs."""
        place = self.stored[name]
        tensor = self.graph.tensors[place.tensor]
        dtype = tensor.dtype.name.lower()
        carrier = self._held[place.tensor][0]
        stored = self.whole.get(place.tensor)
        if name != carrier:
            return self._view_row(operation, name, expected, carrier)
        if place.tensor not in alone or stored is None:
            same_shape = expected.shape == tuple(tensor.dims[axis] for axis in place.perm)
            return TensorRow(operation, name, expected.shape, dtype, Verdict.FUSED if same_shape else Verdict.WRONG)
        in_model = self.values.deviation(tensor, stored)
        found = alone[place.tensor]
        return TensorRow(
            operation, name, expected.shape, dtype, found.verdict(in_model), in_model, found.from_reference,
            found.tolerance, self._fused_operations(operation, self.observed), found.saturation,
        )  # fmt: skip

    def _view_row(self, operation: ModelOperation, name: str, array: np.ndarray, carrier: str) -> TensorRow:
        """Compare a tensor that only views another one, `carrier`, in a different axis order."""
        place = self.stored[name]
        tensor = self.graph.tensors[place.tensor]
        dtype = tensor.dtype.name.lower()
        stored = self.whole.get(place.tensor)
        reference = self.values.as_stored(place.tensor) if carrier in self.arrays else None
        if reference is None:
            return TensorRow(operation, name, array.shape, dtype, Verdict.FUSED)
        expected = array if tensor.dtype.is_float else to_stored(array, tensor)
        alone = deviation(place.to_model(numbers(tensor, reference)), expected, tensor)
        in_model = alone if stored is None else deviation(place.to_model(numbers(tensor, stored)), expected, tensor)
        verdict = Verdict.WRONG if alone.max_abs > 0 else Verdict.AGREES
        return TensorRow(operation, name, array.shape, dtype, verdict, in_model, alone)

    def _fused_operations(self, operation: ModelOperation, observed: Iterable[str]) -> tuple[ModelOperation, ...]:
        """Return the operations between an operation and the `observed` tensors before it, which are fused with it."""
        existing = {self._held[tensor][0] for tensor in observed} | set(self.feeds)
        writers = {name: each for each in self.subject.operations for name in each.outputs}
        found: dict[int, ModelOperation] = {}
        pending = [operation]
        while pending:
            for name in pending.pop().inputs:
                each = writers.get(name)
                computed = name not in existing and name not in self.composition.folded
                if each is not None and computed and each.index not in found:
                    found[each.index] = each
                    pending.append(each)
        return tuple(found[index] for index in sorted(found))

    # -- isolation -----------------------------------------------------------------------------------------------------

    def _narrow(self, suspects: Sequence[TensorRow]) -> list[TensorRow]:
        """Run the operations inside wrong fused ones alone, and replace a fused one by those inside that are wrong."""
        inside = {
            self.stored[name].tensor: None
            for row in suspects
            if row.fused
            for operation in (*row.fused, row.operation)
            for name in operation.outputs
            if name in self.stored and name in self.arrays
        }
        targets = [
            name for name in inside
            if self.graph.tensors[name].type in (TensorType.NATIVE, TensorType.APP_READ)
            and self.values.as_stored(name) is not None
        ]  # fmt: skip
        alone = self._run_alone(targets, [*self.observed, *targets]) if targets else {}
        found: dict[str, TensorRow] = {}
        for row in suspects:
            parts = [part for operation in (*row.fused, row.operation) for part in self._parts(operation, alone, row)]
            wrong = [part for part in parts if part.verdict is Verdict.WRONG]
            for each in wrong or [self._smaller(row, targets) if row is suspects[0] else row]:
                found.setdefault(each.tensor, each)
        return sorted(found.values(), key=lambda row: row.operation.index)

    def _smaller(self, row: TensorRow, inside: Iterable[str]) -> TensorRow:
        """Leave operations out of a fused one that is wrong only as a whole, as long as the rest is wrong."""
        # `inside` are the tensors at which it can be cut; what follows a cut reads the reference's value of the tensor.
        if row.verdict is not Verdict.WRONG or not row.fused:
            return row
        target = self.stored[row.tensor].tensor
        within = {self.stored[name].tensor for each in row.fused for name in each.outputs if name in self.stored}
        cuts: list[str] = []
        for name in inside:
            if name in within and name != target:
                found = self._run_alone([target], [*self.observed, *cuts, name])[target]
                if found.from_reference.max_abs > found.tolerance:
                    cuts.append(name)
        left = (*self._fused_operations(row.operation, [*self.observed, *cuts]), row.operation)
        # Conversions from and to fixed point are parts of the operation between them.
        named = next((each for each in reversed(left) if each.kind not in CONVERSIONS), row.operation)
        return replace(row, operation=named, fused=tuple(each for each in left if each is not named))

    def _parts(self, operation: ModelOperation, alone: Mapping[str, _Alone], row: TensorRow) -> Iterable[TensorRow]:
        """Return the rows of an operation inside a fused one, each run alone."""
        for name in operation.outputs:
            place = self.stored.get(name)
            if not row.fused or place is None or place.tensor not in alone or self._held[place.tensor][0] != name:
                continue
            found, tensor = alone[place.tensor], self.graph.tensors[place.tensor]
            verdict = Verdict.WRONG if found.from_reference.max_abs > found.tolerance else Verdict.AGREES
            yield TensorRow(
                operation, name, self.arrays[name].shape, tensor.dtype.name.lower(), verdict, None,
                found.from_reference, found.tolerance,
            )  # fmt: skip

    def _unobserved_suspects(self, rows: Sequence[TensorRow]) -> list[TensorRow]:
        """Run the model without additional outputs; find the operation that is wrong only then."""
        # Such a run may differ from the reference by as much as the run with additional outputs does, twice, and by the
        # tolerance. If it differs more, tensors are kept from the first one on until the outputs are right: the
        # operation that computes the last of these is at fault.
        by_tensor = {self.stored[row.tensor].tensor: row for row in rows if row.in_model is not None
                     and row.tensor in self.stored}  # fmt: skip
        outputs = [tensor.name for tensor in self.graph.outputs if tensor.name in by_tensor]

        def is_right(count: int) -> bool:
            results = self._run_whole(self.observed[:count])
            for name in outputs:
                row = by_tensor[name]
                assert row.in_model is not None
                found = self.values.deviation(self.graph.tensors[name], results[name])
                if found.max_abs > 2 * row.in_model.max_abs + row.tolerance:
                    return False
            return True

        if is_right(0):
            return []
        low, high = 0, len(self.observed)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if is_right(middle) else (middle, high)
        row = by_tensor[self.observed[high - 1]]
        return [replace(row, verdict=Verdict.IN_CONTEXT)]


def _reach(arrays: Iterable[np.ndarray]) -> float:
    """Return the largest finite magnitude in some arrays."""
    found = (np.abs(array[np.isfinite(array)].astype(np.float64)).max(initial=0) for array in arrays)
    return float(max(found, default=0.0))


def _hybrid_weights(subject: Subject) -> dict[str, HybridWeights]:
    """Return the weights of a model's hybrid operations by the names of their results."""
    return {name: each.hybrid for each in subject.operations if each.hybrid is not None for name in each.outputs}


def _constants(graph: Graph) -> set[Tensor]:
    """Return the tensors that are computed from constants alone."""
    found: set[Tensor] = set()
    for node in graph.nodes:
        is_constant = all(tensor is None or tensor.is_static or tensor in found for tensor in node.inputs)
        if is_constant and not OPERATIONS[node.op].traits.varies:
            found.update(node.outputs)
    return found


def _quantized_only(graph: Graph) -> set[Tensor]:
    """Return the tensors that only quantizers read: a quantizer may replace the activation before it by its range."""
    readers: dict[Tensor, set[str]] = {}
    for node in graph.nodes:
        for tensor in node.inputs:
            if tensor is not None:
                readers.setdefault(tensor, set()).add(node.op)
    return {tensor for tensor, kinds in readers.items() if kinds == {"Quantize"} and tensor.type is TensorType.NATIVE}


def input_arrays(graph: Graph, inputs: Mapping[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Return an array for every input of a graph: those given, checked, and random ones for the others."""
    tensors = {tensor.name: tensor for tensor in graph.inputs}
    for name in inputs:
        if name not in tensors:
            rule = f"the model has no such input; it has {', '.join(tensors)}"
            raise QnnError(Code.GRAPH_INVALID_TENSOR, f"input '{name}'", rule, did_you_mean(name, tensors))
    generator = np.random.default_rng(seed)
    arrays = {}
    for name, tensor in tensors.items():
        kind, dims = tensor.dtype.numpy, tensor.dims
        if name in inputs:
            array = tensor.dtype.elements(np.asarray(inputs[name]))
            if array.shape != dims or array.dtype != kind:
                rule = f"must be {kind}{list(dims)}, is {array.dtype}{list(array.shape)}"
                raise QnnError(Code.GRAPH_INVALID_TENSOR, f"input '{name}'", rule)
        elif tensor.dtype.is_float:
            # numpy has no type of its own for BFLOAT_16.
            within = input_range(graph, tensor) or (-1.0, 1.0)
            array = tensor.dtype.encode(random_array(generator, np.float64, dims, within))
        elif tolerance.is_fixed_point(tensor) and tensor.quantization is not None:
            least, most = tensor.quantization.limits(kind)
            array = np.asarray(generator.integers(least, most, dims, kind, endpoint=True))
        else:
            array = random_array(generator, kind, dims)
        arrays[name] = array
    return arrays
