"""The sweep of models over VTCM sizes and levels: its jobs, and a table of results in ``sweep.csv``.

``python tests/differential/sweep.py`` writes the table again with the library that is installed.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from precisions import narrow, wide  # noqa: E402
from support import zoo  # noqa: E402

from isthmus import frontends  # noqa: E402
from isthmus.backends.vendor.composition import Composition, compose  # noqa: E402
from isthmus.backends.vendor.library import find  # noqa: E402
from isthmus.backends.vendor.measurement import (  # noqa: E402
    Compilation,
    Measurement,
    MeasurementCache,
    build_of,
    measure_all,
    prepared,
)
from isthmus.backends.vendor.target import ChipTarget  # noqa: E402
from isthmus.tools.device import measurement_cache  # noqa: E402

TABLE = Path(__file__).with_suffix(".csv")
SOC, SIZES, LEVELS = 69, (2, 4, 8), (1, 2, 3)
FIGURES = ("spill_fill", "op_data", "constants", "ddr", "io", "total_ram", "file_bytes")
COLUMNS = ("build", "model", "vtcm_mb", "level", *FIGURES)
MODELS = (
    "okay_nabu", "kws_fp32", "kws_qdq", "efficientnet_lite0", "efficientnet_lite0 a16w8", "efficientnet_lite0 a16w4",
    "efficientnet_lite0 a8w4", "ppocr_rec",
)  # fmt: skip


def composition(name: str) -> Composition:
    """A model of the zoo in a precision: as it is, or with activations of 16 bits and weights of 4."""
    key, _, precision = name.partition(" ")
    made = compose(frontends.load(zoo.path(key), dict(zoo.MODELS[key].shapes) or None))
    if precision.startswith("a16"):
        made = wide(made)
    return narrow(made) if precision.endswith("w4") else made


def jobs_of(name: str) -> list[Compilation]:
    """The nine targets of a model."""
    graphs = prepared([composition(name)])
    targets = [ChipTarget(SOC, size, level) for size in SIZES for level in LEVELS]
    return [Compilation(name, graphs, target) for target in targets]


def row(job: Compilation, build: str, measurement: Measurement) -> dict[str, str]:
    """A result as a row of the table."""
    (graph,) = measurement.graphs
    figures = {**graph.figures.to_json(), "total_ram": measurement.total_ram, "file_bytes": measurement.file_bytes}
    values = {"build": build, "model": job.model, "vtcm_mb": job.target.vtcm_mb, "level": job.target.level}
    return {name: str(value) for name, value in (values | figures).items() if name in COLUMNS}


def read_table() -> dict[tuple[str, str, str], dict[str, str]]:
    """The table, by model, VTCM size and level."""
    with TABLE.open() as stream:
        return {(each["model"], each["vtcm_mb"], each["level"]): each for each in csv.DictReader(stream)}


def measured(cache: MeasurementCache) -> Iterator[dict[str, str]]:
    """Measure all models."""
    library = find()
    build = build_of(library)
    for name in MODELS:
        jobs = jobs_of(name)
        results = measure_all(jobs, library, build, cache, workers=1)
        yield from (row(job, build, result) for job, result in zip(jobs, results, strict=True))


if __name__ == "__main__":
    with TABLE.open("w") as out:
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(measured(measurement_cache()))
