"""How long a user waits: for the import, for the first inference ever, and for the first one of a later process.

Every figure is taken in a process of its own, from the moment it is started to the moment the answer is there.
The first inference ever begins with an empty cache folder for each model, so all it needs is compiled. Small models
come first: one from an ONNX file, and one of four operations that a program in C gives to libQnnHtp.so, in floats and
in 8 bits. Beside the seconds is the processor time of the process and of all that it has started; on a busy machine
only that can be compared.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import tiny, zoo
from support.libraries import copy_into

from isthmus.capi.installation import include

IMPORT_AIM, COLD_AIM, WARM_AIM = 1.0, 30.0, 1.5  # seconds
SMALL_COLD_AIM, SMALL_WARM_AIM = 3.0, 0.5
_PROGRAMS = Path(__file__).resolve().parents[1] / "tests" / "capi" / "programs"
_PR_SET_CHILD_SUBREAPER = 36

IMPORT = """
import time
start = time.perf_counter()
import isthmus
print(time.perf_counter() - start)
"""

# The parent's clock reading arrives as an argument: CLOCK_MONOTONIC is the same in all processes.
FIRST_INFERENCE = """
import json, sys, time
started, path, options = float(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
import isthmus
if "constants" in options:
    import numpy
    options["constants"] = {name: numpy.array(value) for name, value in options["constants"].items()}
with isthmus.Session(path, backend="cpu", **options) as session:
    session.run()
    print(time.clock_gettime(time.CLOCK_MONOTONIC) - started)
"""


def import_seconds(times: int) -> float:
    """Median time of `import isthmus`, in fresh processes."""
    return statistics.median(float(_lines(_python(IMPORT), {})[0][-1]) for _ in range(times))


def first_inference(model: Path, options: dict[str, Any], cache: Path) -> tuple[float, float]:
    """From the start of a process to the end of its first inference: seconds, and processor time."""
    started = time.clock_gettime(time.CLOCK_MONOTONIC)
    command = _python(FIRST_INFERENCE, repr(started), str(model), json.dumps(options))
    lines, processor = _lines(command, {"ISTHMUS_CACHE_DIR": str(cache)})
    return float(lines[-1]), processor


def first_execution(program: Path, libraries: Path, kind: str, cache: Path) -> tuple[float, float]:
    """From the start of a program in C to the end of its first execution: seconds, and processor time."""
    lines, processor = _lines([str(program), str(libraries), "libQnnHtp.so", kind], {"ISTHMUS_CACHE_DIR": str(cache)})
    return float(dict(line.split() for line in lines)["executed"]), processor


def small_models(folder: Path) -> dict[str, Callable[[Path], tuple[float, float]]]:
    """What measures each small model, from the folder of a cache."""
    model = tiny.convolution(folder / "small.onnx")
    measures = {"small ONNX model": partial(first_inference, model, {})}
    if shutil.which("gcc") is None:
        print("the models in C are left out: there is no gcc")
        return measures
    copy_into(folder / "libraries")
    program = folder / "ready"
    flags = ["-std=c11", "-D_GNU_SOURCE", f"-I{include()}", f"-I{_PROGRAMS}"]
    subprocess.run(["gcc", *flags, str(_PROGRAMS / "ready.c"), "-o", str(program), "-ldl"], check=True)
    for kind in ("float", "fixed"):
        measures[f"four operations in C, {kind}"] = partial(first_execution, program, folder / "libraries", kind)
    return measures


def _options(model: zoo.Model) -> dict[str, Any]:
    """The options of a session for a model of the zoo."""
    options: dict[str, Any] = {"shapes": {name: list(shape) for name, shape in model.shapes.items()} or None}
    if model.constants:
        options["constants"] = dict(model.constants)
    return options


def _python(*arguments: str) -> list[str]:
    """The command of a small program."""
    return [sys.executable, "-c", *arguments]


def _lines(command: list[str], environment: dict[str, str]) -> tuple[list[str], float]:
    """What a command prints, and the processor time of it and of all processes that it has started."""
    before = _processor_seconds()
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    # Compilers outlive the command for a moment. They became children of this process and count when they have ended.
    with suppress(ChildProcessError):
        while True:
            os.wait()
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise zoo.Unavailable(lines[-1] if lines else f"the process ended with {done.returncode}")
    return done.stdout.splitlines(), _processor_seconds() - before


def _processor_seconds() -> float:
    """The processor time of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _row(name: str, measure: Callable[[Path], tuple[float, float]], aims: tuple[float, float], times: int) -> Any:
    """Measure a model ever and later, each as the best of several; print the row and return its figures."""
    colds, warms = [], []
    try:
        for _ in range(times):
            with tempfile.TemporaryDirectory() as folder:
                colds.append(measure(Path(folder)))
                warms += [measure(Path(folder)) for _ in range(2)]
    except zoo.Unavailable as reason:
        print(f"{name:34} left out: {reason}")
        return None
    cold, warm = ([min(figures) for figures in zip(*each, strict=True)] for each in (colds, warms))
    seconds = [_told(each[0], aim) for each, aim in zip((cold, warm), aims, strict=True)]
    print(f"{name:34} {seconds[0]} {cold[1]:7.2f} s {seconds[1]} {warm[1]:7.2f} s", flush=True)
    names = ("first_ever_seconds", "first_ever_processor_seconds", "later_seconds", "later_processor_seconds")
    return {"model": name, **dict(zip(names, (*cold, *warm), strict=True))}


def _told(seconds: float, aim: float) -> str:
    return f"{seconds:8.2f} s{' ' if seconds <= aim else '!'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(model.key for model in zoo.CORE), help="keys (the core models)")
    parser.add_argument("--times", type=int, default=1, help="best of so many measurements (1)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the figures to this file")
    arguments = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        imported = import_seconds(5)
    except zoo.Unavailable as reason:
        raise SystemExit(f"the package cannot be imported: {reason}") from None
    print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} processors")
    print(f"import isthmus: {imported:.2f} s (aim: well under {IMPORT_AIM:g})")
    print(f"{'first inference of':34} {'ever':>10} {'processor':>9} {'later':>10} {'processor':>9}")
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for name, measure in small_models(Path(folder)).items():
            figures.append(_row(name, measure, (SMALL_COLD_AIM, SMALL_WARM_AIM), arguments.times))
    for key in filter(None, arguments.models.split(",")):
        model = zoo.MODELS[key]

        def measure(cache: Path, model: zoo.Model = model) -> tuple[float, float]:
            return first_inference(zoo.path(model.key), _options(model), cache)

        figures.append(_row(key, measure, (COLD_AIM, WARM_AIM), arguments.times))
    print(f"aims: small models {SMALL_COLD_AIM:g} and {SMALL_WARM_AIM:g} s, others {COLD_AIM:g} and {WARM_AIM:g} s")
    if arguments.json:
        report = {"import_seconds": imported, "models": [row for row in figures if row is not None]}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
