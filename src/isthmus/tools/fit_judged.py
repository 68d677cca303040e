"""The part of ``isthmus fit`` with a judge: variants in tiles, compiled by Qualcomm's own compiler for a chip."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.backends.vendor.composition import compose
from isthmus.backends.vendor.judge import Variant, best, unsplit_best
from isthmus.backends.vendor.library import find
from isthmus.backends.vendor.measurement import Compilation, build_of, measure_all, prepared
from isthmus.errors import Code, QnnError, invalid_argument
from isthmus.frontends import DLC_MAGIC, LIBRARY_MAGIC, ModelSource, contents, is_tflite, load_data
from isthmus.report.page.tradeoffs import judged_sections
from isthmus.split.onnx import OnnxFile
from isthmus.split.search import Split, SplitChoice, neighbours, splits
from isthmus.split.tflite import TfliteFile
from isthmus.tools.device import measurement_cache, targets
from isthmus.tools.files import write_whole
from isthmus.tools.messages import print_report
from isthmus.tools.model_options import open_shapes, shapes_of
from isthmus.tools.report_options import write_page

LIMITS = (95, 90, 85, 80, 75, 70, 65, 60, 55, 50, 45, 40, 35, 30, 25, 20, 16, 13, 10)
"""The limits at which the model is split, in percent of its live bytes."""
ROUNDS = 4
"""How often the best variant so far is varied."""
MAX_FILES = 48
"""Maximum number of variants in tiles."""


@dataclass(frozen=True)
class VariantFile:
    """A model file.

    - `content`: its bytes.
    - `shapes`: dimensions of inputs that it leaves open.
    - `split`: how it was split; None for the model as it is.
    """

    content: bytes
    shapes: Mapping[str, Sequence[int]] | None = None
    split: Split | None = None

    @property
    def regions(self) -> tuple[SplitChoice, ...]:
        """The regions in tiles, which tell variants of a model apart."""
        return () if self.split is None else self.split.regions


class Judging:
    """The compilation of variants for the targets of a command line; each variant has a title.

    - `files`, `variants`: the files by title, and their results.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._model: Path = options.model
        self._targets = targets(options)
        if len({(target.soc, target.vtcm_mb) for target in self._targets}) > 1:
            raise invalid_argument("--judge", "one chip and one VTCM size at a time; levels may be several")
        self.chip = self._targets[0].chip
        self._library, self._workers = find(options.library), options.jobs
        self.build = build_of(self._library)
        self.files: dict[str, VariantFile] = {}
        self.variants: list[Variant] = []

    def judge(self, files: Iterable[VariantFile]) -> None:
        """Compile files that are new, as long as there are not too many."""
        jobs: list[Compilation] = []
        for file in files:
            if any(file.regions == other.regions for other in self.files.values()) or len(self.files) > MAX_FILES:
                continue
            title = f"tiles {len(self.files)}" if self.files else ""
            self.files[title] = file
            graphs = prepared([compose(load_data(file.content, ModelSource(self._model, file.shapes)))])
            jobs += [Compilation(title, graphs, target) for target in self._targets]
        results = measure_all(jobs, self._library, self.build, measurement_cache(), self._workers)
        self.variants += [
            Variant(job.model, job.target.level, result) for job, result in zip(jobs, results, strict=True)
        ]


def main(options: argparse.Namespace) -> int:
    """Run the command; the exit status is 1 if the compiler refuses the model."""
    judging = Judging(options)
    shapes = shapes_of(options)
    data = contents(options.model)
    if data.startswith((DLC_MAGIC, LIBRARY_MAGIC)):
        rule, hint = "only .onnx and .tflite files can be split", "`isthmus device` reports the memory of any model."
        raise QnnError(Code.COMMON_NOT_SUPPORTED, f"'{options.model}'", rule, hint)
    judging.judge([VariantFile(data, shapes or None)])
    plain = unsplit_best(judging.variants)
    if plain is None or plain.measurement.spill_fill:
        # Tiles can only save spill-fill: they add operations, and constants stay as they are.
        _split(judging, options.model, data, shapes)
    chosen = best(judging.variants)
    report = _describe(options, judging, chosen, plain) | {"open_shapes": open_shapes(options, options.model)}
    if options.out is not None and chosen is not None and chosen.title:
        write_whole(options.out, f"'{options.out}'", judging.files[chosen.title].content)
    if options.html is not None:
        text = f"for {report['chip']}, judged by Qualcomm's library, build {report['library']}"
        write_page(options.html, options.model.name, judged_sections(report), text, [report])
    print_report(options, report, _lines(report, options.out))
    return 0 if chosen is not None else 1


def _split(judging: Judging, model: Path, data: bytes, shapes: Mapping[str, Sequence[int]]) -> None:
    """Judge the model in tiles at several limits, then variants of the best one until none is better."""
    file: OnnxFile | TfliteFile
    if is_tflite(data):
        file = TfliteFile(data, model.name)
    else:
        file = OnnxFile(data, model.name, model.parent, dict(shapes))
    network = file.network

    def write_variants(found: Iterable[Split]) -> Iterator[VariantFile]:
        # Dimensions are fixed in a split file.
        return (VariantFile(file.write(each.network, each.instructions), None, each) for each in found)

    judging.judge(write_variants(splits(network, [network.peak * percent // 100 for percent in LIMITS])))
    for _ in range(ROUNDS):
        # Not `best`, which prefers the model as it is: a variant near a worse one may be better than both.
        compiled = [each for each in judging.variants if each.title and not each.measurement.problem]
        nearest = min(compiled, key=lambda each: each.cost, default=None)
        split = None if nearest is None else judging.files[nearest.title].split
        count = len(judging.files)
        if split is None or nearest is None or not nearest.measurement.spill_fill:
            return
        judging.judge(write_variants(neighbours(network, split)))
        if len(judging.files) == count:
            return


def _describe(
    options: argparse.Namespace, judging: Judging, chosen: Variant | None, plain: Variant | None
) -> dict[str, Any]:
    """Return the result as plain data."""

    def describe_variant(variant: Variant | None) -> dict[str, Any] | None:
        if variant is None:
            return None
        measurement = variant.measurement
        regions = [vars(region) for region in judging.files[variant.title].regions]
        return {
            "variant": variant.title or "unsplit", "regions": regions, "level": variant.level,
            "spill_fill": measurement.spill_fill, "total_ram": measurement.total_ram,
            "file_bytes": measurement.file_bytes, "finalize_seconds": measurement.finalize_seconds,
            "problem": measurement.problem,
        }  # fmt: skip

    return {
        "model": str(options.model),
        "judge": options.judge,
        "library": judging.build,
        "chip": "" if judging.chip is None else judging.chip.title,
        "variants": [describe_variant(each) for each in judging.variants],
        "unsplit": describe_variant(plain),
        "advised": describe_variant(chosen),
    }


def _lines(report: dict[str, Any], out: Path | None) -> Iterator[str]:
    """Yield the result as text."""
    yield f"{report['model']} for {report['chip']}, judged by Qualcomm's library, build {report['library']}"
    yield f"  {'variant':<10}{'O':>3}{'spill-fill':>14}{'total RAM':>14}{'finalize s':>12}  tiles of each region"
    for each in report["variants"]:
        start = f"  {each['variant']:<10}{each['level']:>3}"
        tiles = " ".join(str(region["count"]) for region in each["regions"])
        if each["problem"]:
            yield f"{start}  {each['problem']}"
        else:
            yield f"{start}{each['spill_fill']:>14,}{each['total_ram']:>14,}{each['finalize_seconds']:>12.2f}  {tiles}"
    advised, plain = report["advised"], report["unsplit"]
    if advised is None:
        yield "the compiler refuses the model and all its variants"
    elif advised == plain:
        reason = "it spills nothing" if not plain["spill_fill"] else "no variant in tiles needs less on this chip"
        yield f"advised: the model as it is, at level {plain['level']}; {reason}"
    else:
        before = plain or {"spill_fill": 0, "total_ram": 0}
        yield (
            f"advised: {advised['variant']}, at level {advised['level']}: spill-fill {before['spill_fill']:,} to "
            f"{advised['spill_fill']:,}, total RAM {before['total_ram']:,} to {advised['total_ram']:,} bytes"
        )
        if out is None:
            yield "--out FILE writes it"
