"""The part of ``isthmus fit`` with a judge: variants in tiles, compiled by Qualcomm's own compiler for a chip."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.backends.vendor.composition import compose
from isthmus.backends.vendor.judge import Variant, best, unsplit_best
from isthmus.backends.vendor.library import find
from isthmus.backends.vendor.measurement import MeasurementCache, prepared
from isthmus.backends.vendor.sweep import Job, LocalRunner, build_of, sweep
from isthmus.errors import Code, QnnError
from isthmus.frontends import ModelSource, contents, is_tflite, load_data
from isthmus.prepare.tiling import ScratchLimit
from isthmus.split.onnx import OnnxFile
from isthmus.split.search import split
from isthmus.split.tflite import TfliteFile
from isthmus.tools.device import targets
from isthmus.tools.files import written_whole
from isthmus.tools.messages import print_line
from isthmus.tools.shapes import parse_shape

LIMITS = ("75%", "50%", "35%", "25%", "16%", "10%", "least")
"""The limits at which the model is split, from the mildest."""


def main(options: argparse.Namespace) -> int:
    """Run the command; the exit status is 1 if the compiler refuses the model."""
    wanted = targets(options)
    if len({(target.soc, target.vtcm_mb) for target in wanted}) > 1:
        rule = "one chip and one VTCM size at a time; levels may be several"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "--judge", rule)
    library = find(options.library)
    build = build_of(library)
    shapes = dict(parse_shape(text) for text in options.shape)

    def judged(files: Mapping[str, VariantFile]) -> list[Variant]:
        """Compile files, by their titles, for all targets."""
        jobs: list[Job] = []
        for title, file in files.items():
            graphs = prepared([compose(load_data(file.content, ModelSource(options.model, file.shapes)))])
            jobs += [Job(len(jobs) + index, title, graphs, target) for index, target in enumerate(wanted)]
        results = sweep(jobs, build, MeasurementCache(), LocalRunner(library, options.jobs))
        found = {job.number: Variant(job.model, job.target.level, result) for job, result in results}
        return [found[number] for number in sorted(found)]

    files = {"": VariantFile(contents(options.model), shapes or None)}
    variants = judged(files)
    plain = unsplit_best(variants)
    if plain is None or plain.measurement.spill_fill:
        # Tiles can only save spill-fill: they add operations, and constants stay as they are.
        tiles = in_tiles(options.model, files[""].content, shapes)
        variants += judged(tiles)
        files |= tiles
    chosen = best(variants)
    report = _described(options, build, wanted[0].chip, variants, chosen, plain)
    if options.out is not None and chosen is not None and chosen.title:
        with written_whole(options.out, f"'{options.out}'") as stream:
            stream.write(files[chosen.title].content)
    if options.json:
        print(json.dumps(report))
    else:
        _print(report, options.out)
    return 0 if chosen is not None else 1


@dataclass(frozen=True)
class VariantFile:
    """A model file: its contents, and dimensions for inputs that it leaves open."""

    content: bytes
    shapes: Mapping[str, Sequence[int]] | None = None


def in_tiles(model: Path, data: bytes, shapes: Mapping[str, Sequence[int]]) -> dict[str, VariantFile]:
    """Split a model at several limits; return the files by limit.

    Limits that cannot be met are left out, and so are files that are equal to an earlier one.
    """
    file: OnnxFile | TfliteFile
    if is_tflite(data):
        file = TfliteFile(data, model.name)
    else:
        file = OnnxFile(data, model.name, model.parent, dict(shapes))
    found: dict[str, VariantFile] = {}
    for text in LIMITS:
        limit = ScratchLimit.of(text).bytes_of(file.network.peak)
        try:
            result = split(file.network, limit, f"'{model.name}' under {text}")
        except QnnError as problem:
            if problem.code is not Code.COMMON_MEM_ALLOC:
                raise
            continue
        if result.regions:
            written = file.written(result.network, result.instructions)
            if all(written != other.content for other in found.values()):
                # Dimensions are fixed in a split file.
                found[text] = VariantFile(written)
    return found


def _described(
    options: argparse.Namespace,
    build: str,
    chip: Any,
    variants: Sequence[Variant],
    chosen: Variant | None,
    plain: Variant | None,
) -> dict[str, Any]:
    """Return the result as plain data."""

    def described(variant: Variant | None) -> dict[str, Any] | None:
        if variant is None:
            return None
        measurement = variant.measurement
        return {
            "variant": variant.title or "unsplit", "level": variant.level, "spill_fill": measurement.spill_fill,
            "total_ram": measurement.total_ram, "file_bytes": measurement.file_bytes,
            "finalize_seconds": measurement.finalize_seconds, "problem": measurement.problem,
        }  # fmt: skip

    return {
        "model": str(options.model),
        "judge": options.judge,
        "library": build,
        "chip": chip.title,
        "variants": [described(each) for each in variants],
        "unsplit": described(plain),
        "advised": described(chosen),
    }


def _print(report: dict[str, Any], out: Path | None) -> None:
    """Print the result as text."""
    print_line(f"{report['model']} for {report['chip']}, judged by Qualcomm's library, build {report['library']}")
    print(f"  {'variant':<10}{'O':>3}{'spill-fill':>14}{'total RAM':>14}{'finalize s':>12}")
    for each in report["variants"]:
        start = f"  {each['variant']:<10}{each['level']:>3}"
        if each["problem"]:
            print_line(f"{start}  {each['problem']}")
        else:
            print(f"{start}{each['spill_fill']:>14,}{each['total_ram']:>14,}{each['finalize_seconds']:>12.2f}")
    advised, plain = report["advised"], report["unsplit"]
    if advised is None:
        print("the compiler refuses the model and all its variants")
    elif advised == plain:
        reason = "it spills nothing" if not plain["spill_fill"] else "no variant in tiles needs less on this chip"
        print(f"advised: the model as it is, at level {plain['level']}; {reason}")
    else:
        before = plain or {"spill_fill": 0, "total_ram": 0}
        print(
            f"advised: {advised['variant']}, at level {advised['level']}: spill-fill {before['spill_fill']:,} to "
            f"{advised['spill_fill']:,}, total RAM {before['total_ram']:,} to {advised['total_ram']:,} bytes"
        )
        hint = f"written to {out}" if out is not None else "--out FILE writes it"
        print_line(hint)
