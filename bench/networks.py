"""Well-known networks beside the peers: ONNX Runtime and, where they are installed, OpenVINO, MNN and ncnn.

    python bench/networks.py [--networks NAME,...] [--threads 1,2,4,all] [--numbers float32,int8,float16] [--layers]

The networks are written here with random weights (`tests/support/architectures.py`), so nothing is downloaded. With
`--torch`, those that torchvision has are exported from there instead, which takes the extra `networks`. Int8 is
static quantization by ONNX Runtime's own tool in the QDQ form; float16 stores weights and values in 16 bits. All
contestants of a network run in one process, interleaved, and each round's times are divided by each other. The fastest
peer of a network counts. OpenVINO comes with the extra `bench`, MNN and ncnn with the extra `peers`; they compute
float32 only (`bench/mobile_runtimes.py`). LiteRT has no part, since it reads no ONNX files: `bench/tiny.py`.

Before a race, outputs are compared with ONNX Runtime's: `error` is the largest difference as a part of the largest
value, ours and that of the worst peer in the race. A peer whose float results are wrong by more than a hundredth is not
in it. `--layers` prints our time and ONNX Runtime's node by node instead.

`ISTHMUS_TARGET=avx2` limits us to AVX2, and `ONEDNN_MAX_CPU_ISA=AVX2` the products and convolutions of OpenVINO. ONNX
Runtime, MNN and ncnn choose their instructions by what the processor says, and read no variable about it.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from races import DISTURBED, OURS, Contestant, geometric_mean, race, versions

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import mobile_runtimes
from support import architectures, oracles

import isthmus
from isthmus import qnn
from isthmus.qnn.profile import median_times

NUMBERS = ("float32", "int8", "float16")
CALIBRATIONS = 4
"""The number of random inputs that the ranges of int8 networks come from."""
REFERENCE = "ONNX Runtime"
"""The peer, the first one, that others are compared with."""
MAX_ERROR = 1e-2
"""The largest difference of a peer's float results, as a part of the largest value."""


@dataclass(frozen=True)
class Settings:
    """The folder of files, whether torchvision makes them, the rounds of a race, and each contestant's time in one."""

    folder: Path
    torch: bool = False
    rounds: int = 5
    seconds: float = 0.3


def exported(name: str) -> architectures.Architecture:
    """Export a network of torchvision with random weights; others are written here."""
    import torch
    import torchvision

    if name not in torchvision.models.list_models():
        return architectures.build(name)
    torch.manual_seed(0)
    network = torchvision.models.get_model(name, weights=None).eval()
    x = torch.randn(1, 3, 224, 224)
    content = io.BytesIO()
    torch.onnx.export(network, (x,), content, opset_version=17, input_names=["x"], dynamo=False)
    model = onnx.load_from_string(content.getvalue())
    for i, node in enumerate(model.graph.node):
        node.name = f"v{i}"  # `--layers` finds nodes by such names.
    count = sum(each.numel() for each in network.parameters())
    return architectures.Architecture(model, count, {"x": x.numpy()})


def file_of(name: str, numbers: str, settings: Settings) -> tuple[Path, oracles.Feeds]:
    """Write a network with one kind of numbers, unless the folder has it, and return the file and its inputs."""
    built = exported(name) if settings.torch else architectures.build(name)
    path = settings.folder / f"{name}{'-torch' if settings.torch else ''}-{numbers}.onnx"
    feeds: oracles.Feeds = {
        key: value.astype(np.float16) if numbers == "float16" and value.dtype == np.float32 else value
        for key, value in built.feeds.items()
    }
    if not path.exists():
        made = path.with_suffix(".part")
        if numbers == "int8":
            _quantize(built, made)
        elif numbers == "float16":
            from onnxruntime.transformers.float16 import convert_float_to_float16

            onnx.save(convert_float_to_float16(built.model), made)
        else:
            onnx.save(built.model, made)
        made.rename(path)
    return path, feeds


def _quantize(built: architectures.Architecture, target: Path) -> None:
    """Quantize a network to 8 bits: weights by channel, values by tensor, with ranges from random inputs."""
    from onnxruntime import quantization

    generator: Any = np.random.default_rng(1)

    def random(value: np.ndarray) -> np.ndarray:
        return generator.standard_normal(value.shape).astype(np.float32) if value.dtype == np.float32 else value

    class Reader(quantization.CalibrationDataReader):
        """Random inputs, one after the other."""

        def __init__(self) -> None:
            self._left = CALIBRATIONS

        def get_next(self) -> oracles.Feeds | None:
            self._left -= 1
            return {key: random(value) for key, value in built.feeds.items()} if self._left >= 0 else None

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source.onnx"
        onnx.save(built.model, source)
        quantization.quantize_static(
            source, target, Reader(), quantization.QuantFormat.QDQ, per_channel=True,
            activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8,
        )  # fmt: skip


@dataclass
class Result:
    """What a network did with one kind of numbers and one number of threads; seconds for each call, by round."""

    name: str
    numbers: str
    threads: int
    seconds: dict[str, list[float]]
    absent: dict[str, str]
    errors: dict[str, float]
    strangers: float | None

    @property
    def fastest(self) -> str | None:
        """The peer with the least median."""
        medians = {name: statistics.median(rounds) for name, rounds in self.seconds.items() if name != OURS}
        return min(medians, key=lambda name: medians[name]) if medians else None

    @property
    def is_wrong(self) -> bool:
        """Whether our results differ too much; 8-bit ones may round otherwise at every step."""
        return self.numbers != "int8" and not self.errors.get(OURS, 0.0) <= MAX_ERROR

    @property
    def ratio(self) -> float | None:
        """Our time divided by that of the fastest peer: the median of the rounds' ratios."""
        ours, peer = self.seconds.get(OURS), self.fastest
        if ours is None or peer is None:
            return None
        return statistics.median(a / b for a, b in zip(ours, self.seconds[peer], strict=True))


def _ours(path: Path, threads: int, feeds: oracles.Feeds) -> tuple[Contestant, isthmus.Session]:
    session = isthmus.Session(path, backend="cpu", threads=threads)
    for name, value in feeds.items():
        session.inputs[name][...] = value
    session.run()
    return Contestant(OURS, session.run, session.close), session


def _peers() -> dict[str, Callable[[Path, int], oracles.Oracle]]:
    found: dict[str, Callable[[Path, int], oracles.Oracle]] = {
        REFERENCE: lambda path, threads: oracles.OnnxRuntime(path, threads, exact=False)
    }
    if importlib.util.find_spec("openvino") is not None:
        found["OpenVINO"] = oracles.OpenVINO
    return found | mobile_runtimes.found()


@dataclass
class Field:
    """The contestants of a network, ours first: their calls, why others are absent, and how far results differ."""

    contestants: list[Contestant]
    absent: dict[str, str]
    errors: dict[str, float]


def field_of(path: Path, feeds: oracles.Feeds, threads: int, max_error: float = MAX_ERROR) -> Field:
    """Load a network into all runtimes, and compare results with ONNX Runtime's; leave peers out that differ more."""
    field = Field([], {}, {})
    wanted: oracles.Feeds = {}
    for peer, enter in _peers().items():
        try:
            oracle = enter(path, threads)
            oracle.prepare(feeds)
            oracle.invoke()
            results = oracle.results()
        except Exception as problem:  # Peers raise errors of many kinds, and their absence must not end the table.
            field.absent[peer] = (str(problem).splitlines() or [type(problem).__name__])[-1]
            continue
        if peer == REFERENCE:
            wanted = results
        elif not wanted:
            field.absent[peer] = f"there are no results of {REFERENCE} to compare with"
            continue
        else:
            field.errors[peer] = error = worst_difference(results, wanted)
            if not error <= max_error:
                field.absent[peer] = f"its results are wrong by {error:.0e}"
                continue
        field.contestants.append(Contestant(peer, oracle.invoke))
    try:
        own, session = _ours(path, threads, feeds)
    except isthmus.QnnError as refusal:
        field.absent[OURS] = str(refusal).splitlines()[0]
    else:
        field.contestants.insert(0, own)
        if wanted:
            field.errors[OURS] = worst_difference({key: session.outputs[key] for key in wanted}, wanted)
    return field


def compare(name: str, numbers: str, threads: int, settings: Settings) -> Result:
    """Run all contestants over one network."""
    # Eight bits have no such limit: each runtime rounds elsewhere, and steps add up.
    max_error = float("inf") if numbers == "int8" else MAX_ERROR
    field = field_of(*file_of(name, numbers, settings), threads, max_error)
    others = race(field.contestants, settings.rounds, settings.seconds)
    times = {contestant.name: contestant.seconds for contestant in field.contestants}
    return Result(name, numbers, threads, times, field.absent, field.errors, others)


def worst_difference(found: oracles.Feeds, wanted: oracles.Feeds) -> float:
    """Return the largest `difference` of all outputs."""
    return max(difference(found[key], value) for key, value in wanted.items())


def difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """Return the largest difference as a part of the largest value."""
    exact = wanted.astype(np.float64)
    return float(np.abs(found.astype(np.float64) - exact).max() / max(np.abs(exact).max(), 1e-30))


def show(results: Sequence[Result]) -> None:
    """Print a row for each race, and means for each kind of numbers and number of threads."""
    nan = float("nan")
    names = list(dict.fromkeys(name for r in results for name in (OURS, *r.seconds)))
    print(f"{'network':20}{'numbers':>9}{'threads':>8}" + "".join(f"{name + ' ms':>17}" for name in names)
          + f"{'ours/fastest':>14}{'error':>9}{'peers':>9}")  # fmt: skip
    for r in results:
        times = "".join(
            f"{1e3 * statistics.median(r.seconds[name]):>17.3f}" if name in r.seconds else f"{'-':>17}"
            for name in names
        )
        peers = max((error for name, error in r.errors.items() if name in r.seconds and name != OURS), default=nan)
        ratio = "-" if r.ratio is None else f"{r.ratio:.2f}"
        print(f"{r.name:20}{r.numbers:>9}{r.threads:>8}{times}{ratio:>14}{r.errors.get(OURS, nan):>9.0e}{peers:>9.0e}")
        if r.is_wrong:
            print(f"    WRONG: our results differ by {r.errors[OURS]:.0e}")
        for name, reason in r.absent.items():
            print(f"    without {name}: {reason}")
    for numbers, threads in dict.fromkeys((r.numbers, r.threads) for r in results):
        group = {r.name: r.ratio for r in results if (r.numbers, r.threads) == (numbers, threads) and r.ratio}
        mean = geometric_mean(group.values())
        if mean is not None:
            worst = max(group, key=lambda name: group[name] or 0)
            print(f"{numbers}, {threads} thread(s): geometric mean {mean:.2f} of {len(group)} networks, "
                  f"worst {worst} {group[worst]:.2f}")  # fmt: skip
    disturbed = len([r for r in results if r.strangers is not None and r.strangers > DISTURBED])
    if disturbed:
        print(f"other processes were at work during {disturbed} of {len(results)} races, which are worth less for it")


def layers(name: str, numbers: str, threads: int, settings: Settings) -> None:
    """Print the microseconds of each node of the file, ours and ONNX Runtime's: the median of some runs.

    Both runtimes fuse nodes, and name what is fused after its first node or its last one. So the time of a node of
    theirs that has no time of ours counts for the nearest node before it that has one.
    """
    path, feeds = file_of(name, numbers, settings)
    nodes = onnx.load(path).graph.node
    ours = _by_node(_our_times(path, threads, feeds, settings.rounds))
    theirs = _with_rows(_by_node(_their_times(path, threads, feeds, settings.rounds)), ours, nodes)
    ops = {node.name: node.op_type for node in nodes}
    print(f"{name}, {numbers}, {threads} thread(s)\n{'node':24}{'operation':24}{'ours us':>10}{'ONNX Runtime us':>17}")
    for node in dict.fromkeys((*ours, *theirs)):
        columns = "".join(
            f"{side[node]:>{width}.0f}" if node in side else f"{'-':>{width}}"
            for side, width in ((ours, 10), (theirs, 17))
        )
        print(f"{node:24}{ops.get(node, ''):24}{columns}")
    print(f"{'sum':48}{sum(ours.values()):>10.0f}{sum(theirs.values()):>17.0f}")


def _by_node(times: dict[str, float]) -> dict[str, float]:
    """Add up times by the number of the node that names of steps contain, as in ``v12_nchwc`` and ``v12.2``."""
    sums: dict[str, float] = {}
    for label, microseconds in times.items():
        found = re.search(r"\bv\d+", label)
        node = found.group() if found else label
        sums[node] = sums.get(node, 0.0) + microseconds
    return sums


def _with_rows(times: dict[str, float], rows: Container[str], nodes: Iterable[onnx.NodeProto]) -> dict[str, float]:
    """Add up the times of nodes by rows; a node without a row goes to that of the nearest node before it."""
    producers = {output: node for node in nodes for output in node.output}
    names = {node.name: node for node in producers.values()}
    sums: dict[str, float] = {}
    for name, microseconds in times.items():
        node = names.get(name)
        while node is not None and node.name not in rows:
            node = next((producers[each] for each in node.input if each in producers), None)
        row = name if node is None else node.name
        sums[row] = sums.get(row, 0.0) + microseconds
    return sums


def _our_times(path: Path, threads: int, feeds: oracles.Feeds, rounds: int) -> dict[str, float]:
    with isthmus.Session(path, backend="cpu", threads=threads) as session:
        for name, value in feeds.items():
            session.inputs[name][...] = value
        session.run()
        with qnn.Profile(session.graph.context.backend, qnn.ProfileLevel.DETAILED) as profile:
            for _ in range(rounds):
                session.run(profile=profile)
            return median_times(profile.get_events())


def _their_times(path: Path, threads: int, feeds: oracles.Feeds, rounds: int) -> dict[str, float]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = oracles.onnx_session(path, options, threads=threads, exact=False)
        for _ in range(rounds + 1):
            session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    times: dict[str, list[float]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            times.setdefault(event["name"].removesuffix("_kernel_time"), []).append(float(event["dur"]))
    return {label: statistics.median(values) for label, values in times.items()}


def main() -> None:
    """Read the arguments, run the races and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(architectures.BUILDERS), help="names with commas between (all)")
    parser.add_argument("--threads", default="1,2,4,all", help="numbers of threads (1,2,4,all)")
    parser.add_argument("--numbers", default="float32", help=f"kinds of numbers: {', '.join(NUMBERS)} (float32)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each race (5)")
    parser.add_argument("--seconds", type=float, default=0.3, help="slice of each contestant in a round (0.3)")
    parser.add_argument("--layers", action="store_true", help="print times node by node instead")
    parser.add_argument("--torch", action="store_true", help="export networks by torch and torchvision")
    parser.add_argument("--folder", type=Path, default=Path(".cache/networks"), help="where files go (.cache/networks)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write every figure to this file")
    arguments = parser.parse_args()
    names, numbers = arguments.networks.split(","), arguments.numbers.split(",")
    for given, known in ((names, list(architectures.BUILDERS)), (numbers, list(NUMBERS))):
        unknown = [each for each in given if each not in known]
        if unknown:
            parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
    cores = len(os.sched_getaffinity(0))
    threads = sorted({cores if text == "all" else int(text) for text in arguments.threads.split(",")})
    arguments.folder.mkdir(parents=True, exist_ok=True)
    settings = Settings(arguments.folder, arguments.torch, arguments.rounds, arguments.seconds)
    results = []
    for kind in numbers:
        for count in (each for each in threads if each <= cores):
            for name in names:
                if arguments.layers:
                    layers(name, kind, count, settings)
                    continue
                results.append(compare(name, kind, count, settings))
                print(f"{name} {kind} {count}: {results[-1].ratio}", file=sys.stderr)
    if results:
        show(results)
    if arguments.json:
        races: list[dict[str, Any]] = [vars(r) | {"fastest": r.fastest, "ratio": r.ratio} for r in results]
        arguments.json.write_text(json.dumps({"versions": versions(), "races": races}, indent=1) + "\n")
    sys.exit(any(result.is_wrong for result in results))


if __name__ == "__main__":
    main()
