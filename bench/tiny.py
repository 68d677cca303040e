"""The networks of MLPerf Tiny beside LiteRT, in 8 bits and in float32.

    python bench/tiny.py [--networks NAME,...] [--numbers int8,float32] [--threads 1] [--layers]

The files are written here with random weights (`tests/support/tiny_networks.py`), so nothing is downloaded. Ours and
LiteRT take turns in one process, and each round's times are divided by each other. `steps` is the largest difference of
8-bit results, in steps; for floats it is a part of the largest value. Results that differ by more than one step, or by
more than 1e-4, are marked WRONG. `--layers` prints our time for each step of the plan instead; LiteRT has none.

A call is timed as programs make it, by `Session.run` and `Interpreter.invoke`. What it costs beside the kernels is a
large part of the time of ad01.

`ISTHMUS_TARGET=avx2` limits both sides to AVX2. LiteRT reads no variable about it: `bench/xnnpack.py` says how it is
limited, and the first line of the output whether it was.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from races import DISTURBED, OURS, Contestant, geometric_mean, race, versions
from xnnpack import limit_to_avx2

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import oracles, tiny_networks

import isthmus
from isthmus import qnn
from isthmus.qnn.profile import median_times

PEER = oracles.LiteRT.runtime
NUMBERS = ("int8", "float32")
MAX_STEPS, MAX_ERROR = 1, 1e-4
"""The largest differences from LiteRT, of 8-bit results and of floats."""


@dataclass(frozen=True)
class Settings:
    """The folder of files, the rounds of a race, and each contestant's time in one."""

    folder: Path
    rounds: int
    seconds: float


@dataclass
class Result:
    """What a network did with one kind of numbers and one number of threads; seconds for each call, by round."""

    name: str
    numbers: str
    threads: int
    seconds: dict[str, list[float]]
    difference: float
    strangers: float | None

    @property
    def ratio(self) -> float:
        """Our time divided by LiteRT's: the median of the rounds' ratios."""
        return statistics.median(a / b for a, b in zip(self.seconds[OURS], self.seconds[PEER], strict=True))

    @property
    def wrong(self) -> bool:
        """Whether our results are not LiteRT's."""
        return not self.difference <= (MAX_STEPS if self.numbers == "int8" else MAX_ERROR)


def file_of(name: str, numbers: str, folder: Path) -> Path:
    """Write a network with one kind of numbers, and return the file."""
    path = folder / f"{name}-{numbers}.tflite"
    path.write_bytes(tiny_networks.BUILDERS[name]().file(numbers))
    return path


def inputs(specs: oracles.Specs) -> oracles.Feeds:
    """Return random inputs."""
    generator = np.random.default_rng(1)
    return {
        key: generator.integers(-128, 128, shape).astype(dtype)
        if dtype == np.int8
        else generator.standard_normal(shape).astype(dtype)
        for key, (shape, dtype) in specs.items()
    }


def compare(name: str, numbers: str, threads: int, settings: Settings) -> Result:
    """Race over one network, after its results were compared."""
    path = file_of(name, numbers, settings.folder)
    peer = oracles.LiteRT(path, threads)
    feeds = inputs(peer.inputs)
    wanted = peer.run(feeds)
    session = isthmus.Session(path, backend="cpu", threads=threads)
    for key, value in feeds.items():
        session.inputs[key][...] = value
    session.run()
    difference = max(_difference(session.outputs[key], value) for key, value in wanted.items())
    contestants = [Contestant(OURS, session.run, session.close), Contestant(PEER, peer.invoke)]
    others = race(contestants, settings.rounds, settings.seconds)
    return Result(name, numbers, threads, {each.name: each.seconds for each in contestants}, difference, others)


def _difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """Return the largest difference: in steps, or of floats as a part of the largest value."""
    exact = wanted.astype(np.float64)
    largest = float(np.abs(found.astype(np.float64) - exact).max())
    return largest if wanted.dtype == np.int8 else largest / float(np.abs(exact).max())


def show(results: Sequence[Result]) -> None:
    """Print a row for each race, and means for each kind of numbers and number of threads."""
    print(f"{'network':10}{'numbers':>9}{'threads':>9}{'ours us':>10}{'LiteRT us':>11}{'ours/LiteRT':>13}{'steps':>9}")
    for r in results:
        ours, peer = (1e6 * statistics.median(r.seconds[name]) for name in (OURS, PEER))
        note = "  WRONG" if r.wrong else ""
        print(f"{r.name:10}{r.numbers:>9}{r.threads:>9}{ours:>10.1f}{peer:>11.1f}{r.ratio:>13.2f}"
              f"{r.difference:>9.2g}{note}")  # fmt: skip
    for numbers, threads in dict.fromkeys((r.numbers, r.threads) for r in results):
        group = {r.name: r.ratio for r in results if (r.numbers, r.threads) == (numbers, threads)}
        worst = max(group, key=lambda name: group[name])
        print(f"{numbers}, {threads} thread(s): geometric mean {geometric_mean(group.values()):.2f} of {len(group)} "
              f"networks, worst {worst} {group[worst]:.2f}")  # fmt: skip
    disturbed = len([r for r in results if r.strangers is not None and r.strangers > DISTURBED])
    if disturbed:
        print(f"other processes were at work during {disturbed} of {len(results)} races, which are worth less for it")


def layers(name: str, numbers: str, threads: int, settings: Settings) -> None:
    """Print the median microseconds of each step of ours."""
    path = file_of(name, numbers, settings.folder)
    with isthmus.Session(path, backend="cpu", threads=threads) as session:
        feeds = inputs(oracles.LiteRT(path, threads).inputs)
        for key, value in feeds.items():
            session.inputs[key][...] = value
        session.run()
        with qnn.Profile(session.graph.context.backend, qnn.ProfileLevel.DETAILED) as profile:
            for _ in range(settings.rounds):
                session.run(profile=profile)
            times = median_times(profile.get_events())
    print(f"{name}, {numbers}, {threads} thread(s)")
    for label, microseconds in times.items():
        print(f"{label:40}{microseconds:>10.2f}")
    print(f"{'sum':40}{sum(times.values()):>10.2f}")


def main() -> None:
    """Read the arguments, run the races and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(tiny_networks.BUILDERS), help="names with commas between (all)")
    parser.add_argument("--numbers", default=",".join(NUMBERS), help="kinds of numbers (int8,float32)")
    parser.add_argument("--threads", default="1", help="numbers of threads (1)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each race (9)")
    parser.add_argument("--seconds", type=float, default=0.2, help="slice of each contestant in a round (0.2)")
    parser.add_argument("--layers", action="store_true", help="print our times step by step instead")
    parser.add_argument("--folder", type=Path, default=Path(".cache/networks"), help="where files go (.cache/networks)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write every figure to this file")
    arguments = parser.parse_args()
    names, numbers = arguments.networks.split(","), arguments.numbers.split(",")
    for given, known in ((names, list(tiny_networks.BUILDERS)), (numbers, list(NUMBERS))):
        unknown = [each for each in given if each not in known]
        if unknown:
            parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if os.environ.get("ISTHMUS_TARGET") == "avx2":
        try:
            limit_to_avx2()
            print("LiteRT is limited to AVX2")
        except LookupError as reason:
            print(f"LiteRT is not limited to AVX2: {reason}")
    settings = Settings(arguments.folder, arguments.rounds, arguments.seconds)
    results = []
    for kind in numbers:
        for threads in (int(text) for text in arguments.threads.split(",")):
            for name in names:
                if arguments.layers:
                    layers(name, kind, threads, settings)
                    continue
                results.append(compare(name, kind, threads, settings))
    if results:
        show(results)
    if arguments.json:
        races = [vars(r) | {"ratio": r.ratio} for r in results]
        arguments.json.write_text(json.dumps({"versions": versions(), "races": races}, indent=1) + "\n")
    if any(r.wrong for r in results):
        sys.exit("results differ from LiteRT's")


if __name__ == "__main__":
    main()
