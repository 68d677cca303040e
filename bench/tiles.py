"""Prepares vision models with a limit on scratch: prints what is left, what that costs, and whether bits are the same.

    python bench/tiles.py [KEY ...] [--limit LIMIT] [--slower PART] [--threads N] [--rounds N]

Times are ratios of runs that take turns. With one thread they are of processor time, which other processes disturb
less, and medians; with several they are of wall time, and of the fastest run of each. The exit status tells whether
every output has the same bits and the figures that are asked for are met.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import zoo

from isthmus.backends.seam import native
from isthmus.backends.seam.native import CompiledGraph
from isthmus.engine.native.executor import Executor
from isthmus.engine.native.program import Program
from isthmus.errors import QnnError
from isthmus.frontends import load
from isthmus.graph import Graph
from isthmus.memory import host
from isthmus.prepare.tiling import ScratchLimit

MODELS = (
    "efficientnet_lite0", "face_detection_short_range", "face_detection_full_range_sparse", "face_landmark",
    "hand_landmark_full", "hand_landmark_lite", "hand_recrop", "iris_landmark", "palm_detection_full",
    "palm_detection_lite", "pose_detection", "pose_landmark_full", "selfie_segmentation",
    "selfie_segmentation_landscape", "deeplabv3", "ppocr_det", "ppocr_rec", "ppocr_cls", "kws_qdq", "kws_qoperator",
    "kws_fp32", "mixed_ops",
)  # fmt: skip
MAX_LEFT, MAX_TIME = 0.33, 1.03
"""The geometric means over all models that are asked for."""
MAX_TIME_OF_TWO = 1.10
"""The same of models on two threads with a fourth of their scratch."""
A_ROUND = 0.03
SEEDS = 3


@dataclass(frozen=True)
class Row:
    """What a limit did to a model."""

    key: str
    limit: str
    before: CompiledGraph
    after: CompiledGraph
    seconds: float
    milliseconds: float
    ratio: float
    same: bool

    @property
    def left(self) -> float:
        """The part of scratch that is left."""
        return self.after.program.scratch_bytes / max(1, self.before.program.scratch_bytes)

    def line(self) -> str:
        """The row as text."""
        old, new = self.before.program, self.after.program
        assert self.after.plan is not None
        tiles = sum(len(region.tiles) for region in self.after.plan.regions)
        return (
            f"{self.key:34}{self.limit:>7}{old.scratch_bytes:>11,}{new.scratch_bytes:>11,}{self.left:>7.1%}"
            f"{self.milliseconds:>9.3f}{self.ratio:>8.3f}{len(old.table):>6}{len(new.table):>6}"
            f"{table_bytes(old):>9,}{table_bytes(new):>9,}{new.constant_bytes - old.constant_bytes:>+8,}{tiles:>7}"
            f"{self.seconds:>7.2f}  {'same' if self.same else 'DIFFERS'}"
        )


HEADER = (
    f"{'model':34}{'limit':>7}{'scratch':>11}{'by tiles':>11}{'left':>7}{'ms':>9}{'times':>8}{'instr':>6}{'':>6}"
    f"{'table':>9}{'':>9}{'const':>8}{'tiles':>7}{'s':>7}  bits"
)


class Model:
    """A program in memory of its own."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._pools = [host(max(size, 1), program.alignment) for size in (program.scratch_bytes, program.state_bytes)]
        self.io = [host(info.nbytes, 64) for info in (*program.inputs, *program.outputs)]
        scratch, state = (buffer.window() for buffer in self._pools)
        self.executor = Executor(program, scratch, state, [buffer.window() for buffer in self.io])
        self.executor.reset()
        self.run = self.executor.run

    def outputs(self, seed: int) -> list[bytes]:
        """All outputs for random inputs, from the initial state."""
        rng = np.random.default_rng(seed)
        for buffer, info in zip(self.io, self.program.inputs, strict=False):
            values = buffer.array[: info.nbytes].view(info.dtype.numpy)
            if values.dtype.kind == "f":
                values[:] = rng.uniform(-1, 1, values.shape)
            else:
                values[:] = rng.integers(0, 100, values.shape)
        self.executor.reset()
        self.run()
        count = len(self.program.inputs)
        results = zip(self.io[count:], self.program.outputs, strict=True)
        return [buffer.array[: info.nbytes].tobytes() for buffer, info in results]


def table_bytes(program: Program) -> int:
    """Bytes of instructions."""
    return int(program.table.nbytes + program.words.nbytes)


def graph_of(key: str) -> Graph:
    """The graph of a model."""
    model = zoo.MODELS[key]
    return load(zoo.path(key), model.shapes, {name: np.int64(value) for name, value in model.constants.items()})


def compare(models: list[Model], rounds: int, threads: int) -> tuple[float, float]:
    """Milliseconds of the first model, and how many times that the second takes, in rounds that take turns."""
    if threads > 1:
        fastest = [float("inf")] * 2
        for number in range(rounds):
            for which in (0, 1) if number % 2 else (1, 0):
                end = time.perf_counter() + A_ROUND
                while (begin := time.perf_counter()) < end:
                    models[which].run()
                    fastest[which] = min(fastest[which], time.perf_counter() - begin)
        return fastest[0] * 1e3, fastest[1] / fastest[0]
    clock = time.thread_time
    times: list[list[float]] = [[], []]
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            run, count, begin = models[which].run, 0, clock()
            while count < 2 or clock() - begin < A_ROUND:
                run()
                count += 1
            times[which].append((clock() - begin) / count)
    ratios = [after / before for before, after in zip(*times, strict=True)]
    return float(np.median(times[0])) * 1e3, float(np.median(ratios))


def measure(key: str, limit: str, slower: float, threads: int, rounds: int) -> Row:
    """What a limit does to a model."""
    graph = graph_of(key)
    before = native.prepare(graph, threads)
    begin = time.process_time()
    after = native.prepare(graph, threads, limit=ScratchLimit.of(limit, slower if limit == "least" else None))
    seconds = time.process_time() - begin
    models = [Model(before.program), Model(after.program)]
    same = all(models[0].outputs(seed) == models[1].outputs(seed) for seed in range(SEEDS))
    milliseconds, ratio = compare(models, rounds, threads)
    for model in models:
        model.executor.close()
    return Row(key, limit, before, after, seconds, milliseconds, ratio, same)


def mean(values: list[float]) -> float:
    """The geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def main() -> int:
    """Print the table; the exit status tells whether all is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("keys", nargs="*", metavar="KEY", choices=[[], *zoo.MODELS], help="models; all without any")
    parser.add_argument("--limit", default="least", help="bytes, a part, or 'least'; several with commas between")
    parser.add_argument("--slower", type=float, default=0.06, help="what 'least' may cost (default 0.06)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print(HEADER)
    rows = []
    for key in options.keys or MODELS:
        for limit in options.limit.split(","):
            try:
                rows.append(measure(key, limit, options.slower, options.threads, options.rounds))
                print(rows[-1].line(), flush=True)
            except (QnnError, zoo.Unavailable) as reason:
                print(f"{key:34}{limit:>7}  {reason}", flush=True)
    if not rows:
        return 1
    left, ratio = mean([row.left for row in rows]), mean([row.ratio for row in rows])
    print(f"geometric means: {left:.1%} of scratch left, {ratio:.3f} times the time")
    missed = not options.keys and options.limit == "least" and (left > MAX_LEFT or ratio > MAX_TIME)
    missed |= options.limit == "25%" and options.threads == 2 and ratio > MAX_TIME_OF_TWO
    return int(missed or not all(row.same for row in rows))


if __name__ == "__main__":
    sys.exit(main())
