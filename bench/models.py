"""Our speed beside the peers': LiteRT for .tflite, ONNX Runtime for .onnx, OpenVINO for both where it can.

All contestants of a model run in one process, interleaved: a round gives each a slice of time in turn, and
only times of the same round are divided by each other. So whatever else the machine does meets all alike.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from races import DISTURBED, OURS, Contestant, geometric_mean, race, versions
from support import oracles, stimuli, zoo

WORST_RATIO = 1.25  # what the project asks of every model,
MEAN_RATIO = 1.0  # and of all of them together


@dataclass
class Comparison:
    """What one model did with one number of threads."""

    model: str
    kind: str
    threads: int
    seconds: dict[str, list[float]]
    absent: dict[str, str]
    strangers: float | None  # cores that other processes kept busy during the race
    steps_from_exact: float  # of the peer's answers

    @property
    def peer(self) -> str:
        return oracles.PEERS[self.kind][0].runtime

    def milliseconds(self, name: str) -> tuple[float, float] | None:
        """Median and least of the rounds."""
        rounds = self.seconds.get(name)
        return (1e3 * statistics.median(rounds), 1e3 * min(rounds)) if rounds else None

    def ratio(self, other: str) -> float | None:
        """Our time over theirs: the median of the rounds' own ratios."""
        ours, theirs = self.seconds.get(OURS), self.seconds.get(other)
        if not ours or not theirs:
            return None
        return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def compare(model: zoo.Model, threads: int, rounds: int, slice_seconds: float) -> Comparison:
    """Race the contestants over one model."""
    feeds = stimuli.stimuli(model.key)
    feed = feeds[len(feeds) // 2]
    contestants, absent = [], {}
    for name, enter in (
        (OURS, _isthmus),
        (oracles.PEERS[model.kind][0].runtime, _reference),
        ("OpenVINO", _openvino),
    ):
        try:
            contestants.append(enter(model, threads, feed))
        except zoo.Unavailable as reason:
            absent[name] = str(reason)
    others = race(contestants, rounds, slice_seconds)
    seconds = {contestant.name: contestant.seconds for contestant in contestants}
    steps = steps_from_exact(model, feed)
    return Comparison(model.key, model.kind, threads, seconds, absent, others, steps)


def steps_from_exact(model: zoo.Model, feed: oracles.Feeds) -> float:
    """Count the steps between the peer's answers and exact ones; more than one means that 8-bit products saturate."""
    if model.kind != "onnx" or model.numerics != "int8":
        return 0.0
    try:
        exact, peer = oracles.reference(model).run(feed), oracles.peer(model, 1).run(feed)
    except zoo.Unavailable:
        return 0.0
    return max(float(np.abs(peer[n].astype(float) - v.astype(float)).max()) / model.step for n, v in exact.items())


def _isthmus(model: zoo.Model, threads: int, feed: oracles.Feeds) -> Contestant:
    if importlib.util.find_spec("isthmus") is None:
        raise zoo.Unavailable("the package `isthmus` is not installed")
    isthmus: Any = importlib.import_module("isthmus")
    constants = {name: np.asarray(feed[name]) for name in model.constants}
    extra = {"constants": constants} if constants else {}
    try:
        session = isthmus.Session(
            zoo.path(model.key), backend="cpu", shapes=dict(model.shapes) or None, threads=threads, **extra
        )
    except isthmus.QnnError as refusal:
        raise zoo.Unavailable(f"Isthmus refuses {model.key}: {str(refusal).splitlines()[0]}") from None
    for name, value in feed.items():
        if name not in constants:
            session.inputs[name][...] = value
    session.run()
    return Contestant(OURS, session.run, session.close)


def _reference(model: zoo.Model, threads: int, feed: oracles.Feeds) -> Contestant:
    return _oracle(oracles.peer(model, threads), feed)


def _openvino(model: zoo.Model, threads: int, feed: oracles.Feeds) -> Contestant:
    try:
        return _oracle(oracles.openvino(model, threads), feed)
    except RuntimeError as failure:
        raise zoo.Unavailable(f"OpenVINO cannot run {model.key}: {str(failure).splitlines()[-1]}") from None


def _oracle(oracle: oracles.Oracle, feed: oracles.Feeds) -> Contestant:
    oracle.prepare(feed)
    oracle.invoke()
    return Contestant(oracle.runtime, oracle.invoke)


def rows(comparisons: Sequence[Comparison]) -> list[list[str]]:
    """The table's text, a row per model and number of threads."""
    table = []
    for c in comparisons:
        ours, peer, openvino = c.milliseconds(OURS), c.milliseconds(c.peer), c.milliseconds("OpenVINO")
        table.append(
            [
                c.model,
                str(c.threads),
                _times(ours),
                c.peer,
                _times(peer),
                _ratio(c.ratio(c.peer)),
                _times(openvino),
                _ratio(c.ratio("OpenVINO")),
            ]
        )
    return table


def _times(median_and_least: tuple[float, float] | None) -> str:
    return "-" if median_and_least is None else "{:.3f} ({:.3f})".format(*median_and_least)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


HEADINGS = ("model", "threads", "ours ms", "peer", "peer ms", "ours/peer", "OpenVINO ms", "ours/OpenVINO")


def show(table: list[list[str]]) -> None:
    """Print the table, with `rich` where it is installed."""
    if importlib.util.find_spec("rich") is not None:
        from rich.console import Console
        from rich.table import Table

        picture = Table(title="milliseconds per inference: median of the rounds (least)")
        for heading in HEADINGS:
            picture.add_column(heading, justify="left" if heading in ("model", "peer") else "right")
        for row in table:
            picture.add_row(*row)
        Console(width=None if sys.stdout.isatty() else 140).print(picture)
        return
    widths = [max(len(row[i]) for row in [list(HEADINGS), *table]) for i in range(len(HEADINGS))]
    for row in [list(HEADINGS), *table]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def verdict(comparisons: Sequence[Comparison]) -> list[str]:
    """Geometric means and the slowest model, for each number of threads."""
    lines = []
    for threads in sorted({c.threads for c in comparisons}):
        group = [c for c in comparisons if c.threads == threads]
        ratios = {c.model: r for c in group if (r := c.ratio(c.peer)) is not None}
        mean = geometric_mean(ratios.values())
        beside = geometric_mean(c.ratio("OpenVINO") for c in group)
        if mean is None:
            lines.append(f"{threads} thread(s): Isthmus did not run, so there is nothing to compare")
            continue
        worst = max(ratios, key=lambda key: ratios[key])
        reached = mean <= MEAN_RATIO and ratios[worst] <= WORST_RATIO
        lines.append(
            f"{threads} thread(s): geometric mean {mean:.3f} of the peers' time over {len(ratios)} models "
            f"(aim {MEAN_RATIO}), worst {worst} {ratios[worst]:.2f} (aim {WORST_RATIO}): "
            f"{'reached' if reached else 'not reached'}"
            + (f"; against OpenVINO {beside:.3f}" if beside is not None else "")
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="core", help="keys with commas between, `core` or `all` (core)")
    parser.add_argument("--threads", default="1,2", help="numbers of threads (1,2)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each race (7)")
    parser.add_argument("--seconds", type=float, default=0.2, help="slice of each contestant in a round (0.2)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write every figure to this file")
    arguments = parser.parse_args()
    groups = {"core": list(zoo.CORE), "all": list(zoo.MODELS.values())}
    unknown = [key for key in arguments.models.split(",") if key not in groups and key not in zoo.MODELS]
    if unknown:
        parser.error(f"unknown models {unknown}; `python tests/support/zoo.py list` shows the known ones")
    if arguments.rounds < 1 or arguments.seconds <= 0:
        parser.error("a race needs at least one round and a slice longer than nothing")
    models = [m for key in arguments.models.split(",") for m in groups.get(key) or [zoo.MODELS[key]]]
    comparisons: list[Comparison] = []
    for threads in (int(text) for text in arguments.threads.split(",")):
        for model in models:
            try:
                comparison = compare(model, threads, arguments.rounds, arguments.seconds)
            except zoo.Unavailable as reason:
                print(f"{model.key}, {threads} thread(s): left out, {reason}", file=sys.stderr)
                continue
            comparisons.append(comparison)
            for name, why in comparison.absent.items():
                print(f"{model.key}, {threads} thread(s): without {name}, {why}", file=sys.stderr)
    show(rows(comparisons))
    print("\n".join(verdict(comparisons)))
    for name, steps in {c.model: c.steps_from_exact for c in comparisons if c.steps_from_exact > 1}.items():
        print(f"ONNX Runtime saturates 8-bit sums on this processor: {name} is {steps:.0f} steps off")
    disturbed = [c for c in comparisons if c.strangers is not None and c.strangers > DISTURBED]
    if disturbed:
        names = ", ".join(f"{c.model} ({c.threads} thread(s): {c.strangers:.1f} cores)" for c in disturbed)
        print(f"other processes were at work during these races, which makes them worth little: {names}")
    if arguments.json:
        report = {
            "versions": versions(),
            "slice_seconds": arguments.seconds,
            "races": [
                vars(c) | {"peer": c.peer, "ratio": c.ratio(c.peer), "ratio_openvino": c.ratio("OpenVINO")}
                for c in comparisons
            ],
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
