"""Prepares float models with their floats stored in 16 bits: prints memory, time and error beside float32.

    python bench/half.py [KEY ...] [--type FLOAT_16|BFLOAT_16] [--rounds N]

Times are ratios of processor time of runs that take turns, on one thread. The error is the largest difference from
float32, as a part of the largest output.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from support import zoo
from tiles import Model, compare, graph_of, mean

from isthmus.backends.seam import native
from isthmus.errors import QnnError
from isthmus.graph import DataType
from isthmus.prepare import PlanOptions

MODELS = tuple(key for key, model in zoo.MODELS.items() if model.numerics == "float")
HEADER = (
    f"{'model':34}{'scratch':>12}{'in 16 bits':>12}{'part':>7}{'constants':>13}{'in 16 bits':>13}{'part':>7}"
    f"{'ms':>9}{'times':>8}{'error':>9}  operations through float32"
)


def differences(single: Model, half: Model) -> float:
    """The largest difference of outputs, as a part of the largest one of the same output."""
    worst = 0.0
    outputs = zip(single.outputs(1), half.outputs(1), single.program.outputs, strict=True)
    for first, second, info in outputs:
        if info.dtype is DataType.FLOAT_32:
            exact, rounded = (np.frombuffer(content, np.float32) for content in (first, second))
            worst = max(worst, float(np.abs(exact - rounded).max(initial=0) / max(np.abs(exact).max(initial=0), 1e-30)))
    return worst


def measure(key: str, dtype: DataType, rounds: int) -> tuple[float, float]:
    """Print a model's row, and return its ratios of scratch and of time."""
    graph = graph_of(key)
    compiled = [native.prepare(graph), native.prepare(graph, options=PlanOptions(float_storage=dtype))]
    models = [Model(one.program) for one in compiled]
    error = differences(*models)
    milliseconds, ratio = compare(models, rounds, 1)
    old, new = (one.program for one in compiled)
    scratch = new.scratch_bytes / max(1, old.scratch_bytes)
    plan = compiled[1].plan
    assert plan is not None
    print(
        f"{key:34}{old.scratch_bytes:>12,}{new.scratch_bytes:>12,}{scratch:>7.2f}{old.constant_bytes:>13,}"
        f"{new.constant_bytes:>13,}{new.constant_bytes / max(1, old.constant_bytes):>7.2f}{milliseconds:>9.3f}"
        f"{ratio:>8.3f}{error:>9.1e}  {', '.join(sorted({op for op, _ in plan.in_float})) or '-'}",
        flush=True,
    )
    for model in models:
        model.executor.close()
    return scratch, ratio


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("keys", nargs="*", metavar="KEY", choices=[[], *zoo.MODELS], help="models; all without any")
    parser.add_argument("--type", choices=("FLOAT_16", "BFLOAT_16"), default="FLOAT_16")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print(HEADER)
    rows = []
    for key in options.keys or MODELS:
        try:
            rows.append(measure(key, DataType[options.type], options.rounds))
        except (QnnError, zoo.Unavailable) as reason:
            print(f"{key:34}  {reason}", flush=True)
    if not rows:
        return 1
    scratch, ratio = (mean([row[index] for row in rows]) for index in (0, 1))
    print(f"geometric means: {scratch:.2f} of the scratch, {ratio:.3f} times the time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
