"""Reduction of a model that differs from its reference to one of a few operations that still does.

Operations around a suspect are removed one after the other, with the reference's values as new inputs, as long as the
rest still differs. The result is a file of the same format, with the inputs to run it on, and for a comparison with
another file also the same operations of that file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.comparison.comparison import Comparison
from isthmus.comparison.reference import find_reference
from isthmus.comparison.report import ComparisonReport, TensorRow
from isthmus.comparison.subject import Arrays, ModelOperation, Subject, open_model
from isthmus.errors import Code, QnnError, invalid_argument
from isthmus.frontends import ModelSource


@dataclass(frozen=True)
class ModelReduction:
    """A smaller model that differs from its reference.

    - `operations`: the operations that are left, in order.
    - `model`, `other`: the bytes of the smaller model, and of the smaller reference if that is another file.
    - `inputs`: the arrays to run it on.
    """

    operations: tuple[ModelOperation, ...]
    model: bytes
    other: bytes | None
    inputs: dict[str, np.ndarray]
    report: ComparisonReport


def reduce_model(comparison: Comparison, report: ComparisonReport) -> ModelReduction:
    """Reduce a model to the fewest operations around its first suspect that still differ from the reference.

    - `comparison`, `report`: a comparison that has run, and its report, which has a suspect.

    Raises `QnnError`: COMMON_NOT_SUPPORTED if the format cannot be written, or if no small part of the model differs by
    itself; the first error of the parts if none of them can be compared.
    """
    suspect = report.first
    if suspect is None:
        raise invalid_argument(f"model '{report.model}'", "it agrees: there is nothing to reduce")
    with tempfile.TemporaryDirectory(prefix="isthmus-compare-") as folder:
        attempt = _Attempt(comparison, Path(folder))
        start = next(filter(None, map(attempt.run, _starts(comparison, report, suspect))), None)
        if start is None and attempt.problems and not attempt.agreed:
            problem = attempt.problems[0]
            rule = f"operation {suspect.operation} cannot be compared in a model of its own"
            why = f"{rule}: {problem.what}: {problem.rule}"
            raise QnnError(problem.code, f"model '{report.model}'", why, problem.hint) from problem
        if start is None:
            rule = f"operation {suspect.operation} is right in a model of its own; it is wrong only in the whole model"
            raise QnnError(Code.COMMON_NOT_SUPPORTED, f"model '{report.model}'", rule)
        return _shrink(attempt.run, start)


def _starts(comparison: Comparison, report: ComparisonReport, suspect: TensorRow) -> list[tuple[ModelOperation, ...]]:
    """Return sets of operations to start from: the suspect, what it is fused with, and what comes before and after."""
    operations = comparison.subject.operations
    fused = next((row for row in report.rows if row.fused and suspect.operation in (*row.fused, row.operation)), None)
    whole = (suspect.operation,) if fused is None else (*fused.fused, fused.operation)
    readers = tuple(o for o in operations if set(o.inputs) & {n for w in whole for n in w.outputs})
    results = {name: operation for operation in operations for name in operation.outputs}
    writers = tuple(results[name] for operation in whole for name in operation.inputs if name in results)
    found = [(suspect.operation,), whole, (*whole, *readers), (*writers, *whole, *readers)]
    return [tuple(sorted(set(each), key=lambda operation: operation.index)) for each in found]


def _shrink(run: Callable[[Sequence[ModelOperation]], ModelReduction | None], start: ModelReduction) -> ModelReduction:
    """Remove operations one by one, as long as the rest still differs."""
    best = start
    removed = True
    while removed and len(best.operations) > 1:
        removed = False
        for operation in best.operations:
            smaller = run([each for each in best.operations if each is not operation])
            if smaller is not None:
                best, removed = smaller, True
                break
    return best


class _Attempt:
    """Trials of smaller models.

    - `agreed`: whether a smaller model was compared and agrees.
    - `problems`: the errors of those that could not be compared.
    """

    def __init__(self, comparison: Comparison, folder: Path) -> None:
        self._comparison = comparison
        self._folder = folder
        self.agreed = False
        self.problems: list[QnnError] = []

    def run(self, operations: Sequence[ModelOperation]) -> ModelReduction | None:
        """Compare a model of these operations; return None if it agrees or cannot be run."""
        subject, values = self._comparison.subject, self._comparison.arrays
        written = {name for operation in operations for name in operation.outputs}
        computed = {name for operation in subject.operations for name in operation.outputs}
        inputs = set(self._comparison.feeds)
        given = {
            name: values[name]
            for operation in operations
            for name in operation.inputs
            if name not in written and (name in inputs or (name in computed and name in values))
        }
        read = {name for operation in operations for name in operation.inputs}
        outputs = {tensor.name for tensor in self._comparison.graph.outputs}
        results = [name for operation in operations for name in operation.outputs
                   if (name not in read or name in outputs) and name in values]  # fmt: skip
        if not given or not results:
            return None
        try:
            return self._compare(operations, given, results)
        except QnnError as problem:
            self.problems.append(problem)
            return None

    def _compare(
        self, operations: Sequence[ModelOperation], given: Arrays, results: Sequence[str]
    ) -> ModelReduction | None:
        """Write a model of these operations and compare it; return None if it agrees."""
        comparison = self._comparison
        model = comparison.subject.extract(operations, given, results)
        path = self._write(comparison.subject, "reduced", model)
        other: bytes | None = None
        against: str | Path | None
        if comparison.reference.other is not None:
            counterpart = comparison.reference.other
            by_result = {name: each for each in counterpart.operations for name in each.outputs}
            same = {by_result[name].index: by_result[name] for o in operations for name in o.outputs
                    if name in by_result}  # fmt: skip
            other = counterpart.extract([same[index] for index in sorted(same)], given, results)
            against = self._write(counterpart, "reference", other)
        else:
            against = comparison.reference.name
        subject = open_model(ModelSource(path))
        reference = find_reference(subject, against, comparison.backend, comparison.threads)
        smaller = Comparison(subject, reference, comparison.backend, comparison.config, comparison.threads)
        names = {tensor.name for tensor in smaller.graph.inputs}
        report = smaller.run({name: array for name, array in given.items() if name in names}, 0, comparison.are_real)
        if report.agrees:
            self.agreed = True
            return None
        return ModelReduction(tuple(operations), model, other, dict(given), report)

    def _write(self, subject: Subject, name: str, data: bytes) -> Path:
        """Write a model into the folder of trials, with the suffix of its format."""
        path = self._folder / f"{name}{subject.source.path.suffix}"
        path.write_bytes(data)
        return path


def possible_files(path: Path) -> tuple[Path, Path, Path]:
    """Return the paths of a reduction's files: the model, the arrays to run it on, the other model if there is one."""
    return path, path.with_suffix(".npz"), path.with_suffix(f".reference{path.suffix}")


def files(path: Path, reduction: ModelReduction) -> dict[Path, bytes | dict[str, Any]]:
    """Return the files of a reduction by path."""
    model, inputs, other = possible_files(path)
    found: dict[Path, bytes | dict[str, Any]] = {model: reduction.model, inputs: reduction.inputs}
    if reduction.other is not None:
        found[other] = reduction.other
    return found
