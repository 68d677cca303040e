"""The result of a comparison: a row for each tensor, a verdict, and both as text and as plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from isthmus.comparison.saturation import Saturation
from isthmus.comparison.subject import ModelOperation
from isthmus.comparison.tolerance import is_fixed_point
from isthmus.errors import counted, one_line
from isthmus.graph import Tensor
from isthmus.report import findings
from isthmus.report.findings import beyond, finite_or_text, reasons, saturation_remark
from isthmus.report.names import shorten
from isthmus.report.rows import align

LARGEST_ROWS = 10
"""How many rows a report prints if not all."""
MOST_SATURATED = 3
"""How many operations that saturate a report describes."""
MAX_NAME = 32
"""The most characters of a name in a table."""
MAX_LONE_NAME = 80
"""The most characters of a name in a sentence."""


class Verdict(Enum):
    """What was found out about the operation that computes a tensor."""

    AGREES = "agrees"
    """Alone on the reference's inputs it computes the reference's result, within the tolerance."""
    WRONG = findings.WRONG
    """Alone on the reference's inputs it computes something else."""
    IN_CONTEXT = "wrong in the model"
    """Alone it is right; in the model it computes something else from the same inputs."""
    SATURATES = findings.SATURATES
    """Alone it is right, but the reference's result exceeds the range of its quantizer."""
    PASSES_ON = "inputs differ already"
    """Alone it is right; in the model its result differs because its inputs do."""
    FUSED = "inside a fused operation"
    """The tensor has no memory of its own, so it cannot be compared."""


@dataclass(frozen=True)
class Deviation:
    """How far a tensor is from the reference.

    - `max_abs`: the largest difference of two elements as real numbers; infinite if shapes differ or only one is NaN.
    - `rms`: the root of the mean of squared differences.
    - `relative`: the largest difference as a fraction of the reference's largest magnitude.
    - `steps`: the largest difference in steps of the tensor's quantization; None if it has none.
    """

    max_abs: float
    rms: float
    relative: float
    steps: float | None = None


def deviation(own: np.ndarray, reference: np.ndarray, tensor: Tensor | None = None) -> Deviation:
    """Measure how far an array is from the reference.

    `tensor` describes both, if their elements may be stored fixed point.
    """
    quantization = tensor.quantization if tensor is not None and is_fixed_point(tensor) else None
    scale = max(quantization.scales) if quantization is not None else 1.0
    if own.shape != reference.shape:
        return Deviation(math.inf, math.inf, math.inf, None if quantization is None else math.inf)
    with np.errstate(all="ignore"):
        a, b = (np.atleast_1d(array).astype(np.float64) for array in (own, reference))
        apart = np.abs(a - b)
        apart[(a == b) | (np.isnan(a) & np.isnan(b))] = 0
        apart[np.isnan(apart)] = np.inf
        largest = float(np.abs(b[np.isfinite(b)]).max(initial=0))
        most, rms = float(apart.max(initial=0)), float(np.sqrt(np.mean(np.square(apart)))) if apart.size else 0.0
    relative = most / largest if largest else (math.inf if most else 0.0)
    return Deviation(most * scale, rms * scale, relative, None if quantization is None else most)


@dataclass(frozen=True)
class TensorRow:
    """The comparison of one tensor of the model.

    - `operation`: the operation that computes it.
    - `tensor`, `shape`, `dtype`: its name in the model, its dimensions there, and the type of its elements.
    - `verdict`: what was found out about the operation.
    - `in_model`: the difference when the whole model runs here; None if it cannot be compared.
    - `alone`: the difference when the operation alone runs here on the reference's inputs.
    - `tolerance`: how far the result of the operation alone may be apart.
    - `fused`: the other operations that are computed in one step with it, in order.
    - `saturation`: the reference's values that its quantizer cannot represent, if that makes a difference.
    """

    operation: ModelOperation
    tensor: str
    shape: tuple[int, ...]
    dtype: str
    verdict: Verdict
    in_model: Deviation | None = None
    alone: Deviation | None = None
    tolerance: float = 0.0
    fused: tuple[ModelOperation, ...] = ()
    saturation: Saturation | None = None

    @property
    def is_wrong(self) -> bool:
        """Whether the operation itself is at fault."""
        return self.verdict in (Verdict.WRONG, Verdict.IN_CONTEXT)

    def as_data(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {
            "operation": self.operation.name, "kind": self.operation.kind, "tensor": self.tensor,
            "shape": list(self.shape), "dtype": self.dtype, "verdict": self.verdict.value,
            "tolerance": self.tolerance if math.isfinite(self.tolerance) else None,
            "fused": [operation.name for operation in self.fused],
            **{
                name: None if found is None else finite_or_text(vars(found))
                for name in ("in_model", "alone", "saturation")
                for found in (getattr(self, name),)
            },
        }  # fmt: skip


@dataclass(frozen=True)
class ComparisonReport:
    """The result of `isthmus.compare`.

    - `model`, `backend`, `reference`: the model's file, the backend that ran it, and what it was compared with.
    - `rows`: the tensors in the order of the model's operations.
    - `suspects`: the operations that are wrong, in order, each as narrowly as it could be isolated: the rows of the
      operations inside a fused one if one of them is wrong on its own, else the row of the fused one.
    - `random_inputs`: the names of those that were drawn at random.
    """

    model: str
    backend: str
    reference: str
    rows: tuple[TensorRow, ...]
    suspects: tuple[TensorRow, ...]
    inputs: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    random_inputs: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether every operation computes what the reference computes."""
        return not self.suspects

    @property
    def first(self) -> TensorRow | None:
        """The first operation that is wrong; None if all agree."""
        return self.suspects[0] if self.suspects else None

    @property
    def compared(self) -> tuple[TensorRow, ...]:
        """The rows of tensors that could be compared."""
        return tuple(row for row in self.rows if row.verdict is not Verdict.FUSED)

    @property
    def saturated(self) -> tuple[TensorRow, ...]:
        """The rows whose quantizers cannot represent all values, those that exceed their range most first."""
        found = [row for row in self.rows if row.saturation is not None]
        return tuple(sorted(found, key=lambda row: -row.saturation.span if row.saturation else 0.0))

    @property
    def largest(self) -> tuple[TensorRow, ...]:
        """The rows with the largest differences in the model, by fraction of the reference's magnitude."""
        found = [row for row in self.compared if row.in_model is not None and row.in_model.max_abs > 0]
        return tuple(sorted(found, key=lambda row: -row.in_model.relative if row.in_model else 0.0))

    def as_data(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "model": self.model, "backend": self.backend, "reference": self.reference, "agrees": self.agrees,
            "compared": len(self.compared), "fused": len(self.rows) - len(self.compared),
            "saturated": len(self.saturated), "random_inputs": list(self.random_inputs),
            "first": None if self.first is None else self.first.operation.name,
            "suspects": [row.as_data() for row in self.suspects], "tensors": [row.as_data() for row in self.rows],
        }  # fmt: skip

    def text(self, every: bool = False) -> str:
        """Return the report as text; `every` lists all tensors, otherwise only the largest differences."""
        inside = len(self.rows) - len(self.compared)
        lines = [
            f"{self.model} on {self.backend}, compared with {self.reference}",
            f"  {counted(len(self.compared), 'tensor')} compared"
            + (f"; {inside} more {'is' if inside == 1 else 'are'} inside fused operations" if inside else ""),
        ]
        if self.agrees:
            lines.append("  agrees: every operation alone computes what the reference computes")
        for row in self.suspects:
            lines += _suspect_lines(row, row is self.suspects[0])
        lines += _saturation_lines([row for row in self.saturated if row not in self.suspects])
        rows = self.rows if every else self.largest[:LARGEST_ROWS]
        if rows:
            lines += ["", "  all tensors" if every else "  largest differences in the model", *_table(rows)]
        return "\n".join(one_line(line) for line in lines)

    def __repr__(self) -> str:
        where = f"'{self.model}' on {self.backend} and {self.reference}"
        what = "agree" if self.first is None else f"differ first at {self.first.operation}"
        return f"<ComparisonReport {where} {what}>"


def _suspect_lines(row: TensorRow, first: bool) -> list[str]:
    """Describe one wrong operation."""
    lines = [f"  {'DIFFERS first' if first else 'differs also'} at {_short(row.operation)}: {row.verdict.value}"]
    lines += [f"    {reason}" for reason in reasons(row.as_data())]
    if row.fused:
        lines.append(f"    computed in one step with {', '.join(map(_short, row.fused))}")
    return lines


def _saturation_lines(rows: Sequence[TensorRow]) -> list[str]:
    """Describe operations that saturate on random inputs."""
    if not rows:
        return []
    return [
        f"  {saturation_remark(len(rows))}",
        *(
            f"    {_short(row.operation)}: {beyond(vars(row.saturation))}"
            for row in rows[:MOST_SATURATED]
            if row.saturation
        ),
        *([f"    and {len(rows) - MOST_SATURATED} more"] if len(rows) > MOST_SATURATED else []),
    ]


def _short(operation: ModelOperation) -> str:
    """Describe an operation; of names that a converter has joined, show the first."""
    return f"{shorten([operation.name], MAX_LONE_NAME)[0]} ({operation.kind})"


def _table(rows: tuple[TensorRow, ...]) -> list[str]:
    """Return rows as a table of text."""
    head = ("operation", "tensor", "shape", "type", "max abs", "relative", "rms", "steps", "alone", "tolerance",
            "verdict")  # fmt: skip
    cells = [head]
    operations = shorten([row.operation.name for row in rows], MAX_NAME)
    tensors = shorten([row.tensor for row in rows], MAX_NAME)
    for row, operation, tensor in zip(rows, operations, tensors, strict=True):
        there, alone = row.in_model, row.alone
        numbers = ("", "", "", "") if there is None else (
            f"{there.max_abs:.3g}", f"{there.relative:.2g}", f"{there.rms:.3g}",
            "" if there.steps is None else f"{there.steps:.0f}",
        )  # fmt: skip
        cells.append((
            f"{operation} ({row.operation.kind})", tensor, "x".join(map(str, row.shape)), row.dtype, *numbers,
            "" if alone is None else f"{alone.max_abs:.3g}", "" if alone is None else f"{row.tolerance:.3g}",
            row.verdict.value,
        ))  # fmt: skip
    right = {"max abs", "relative", "rms", "steps", "alone", "tolerance"}
    return [f"    {line}" for line in align(cells, [name in right for name in head])]
