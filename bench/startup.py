"""How long a user waits: for the import, for the first inference ever, and for the first one of a later process.

Every figure is taken in a process of its own, from the moment it is started to the moment the answer is there.
The first inference ever begins with an empty cache folder for each model, so all it needs is compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import zoo

IMPORT_AIM, COLD_AIM, WARM_AIM = 1.0, 30.0, 1.5  # seconds

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
    return statistics.median(float(_python([IMPORT], {})) for _ in range(times))


def first_inference_seconds(model: zoo.Model, cache: Path) -> float:
    """From the start of a process to the end of its first inference."""
    options: dict[str, Any] = {"shapes": {name: list(shape) for name, shape in model.shapes.items()} or None}
    if model.constants:
        options["constants"] = dict(model.constants)
    environment = {"ISTHMUS_CACHE_DIR": str(cache)}
    started = time.clock_gettime(time.CLOCK_MONOTONIC)
    arguments = [FIRST_INFERENCE, repr(started), str(zoo.path(model.key)), json.dumps(options)]
    return float(_python(arguments, environment))


def _python(arguments: list[str], environment: dict[str, str]) -> str:
    """The last line that a small program prints."""
    command = [sys.executable, "-c", *arguments]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise zoo.Unavailable(lines[-1] if lines else f"the process ended with {done.returncode}")
    return done.stdout.splitlines()[-1]


def _told(seconds: float, aim: float) -> str:
    return f"{seconds:8.2f} s{' ' if seconds <= aim else '!'}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--models", default=",".join(model.key for model in zoo.CORE), help="keys (the core models)"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the figures to this file")
    arguments = parser.parse_args()
    try:
        imported = import_seconds(5)
    except zoo.Unavailable as reason:
        raise SystemExit(f"the package cannot be imported: {reason}") from None
    print(f"import isthmus: {imported:.2f} s (aim: well under {IMPORT_AIM:g})")
    print(f"{'first inference of':34} {f'ever (aim {COLD_AIM:g})':>16} {f'later (aim {WARM_AIM:g})':>16}")
    figures = []
    for key in arguments.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            try:
                cold = first_inference_seconds(zoo.MODELS[key], Path(folder))
                warm = min(first_inference_seconds(zoo.MODELS[key], Path(folder)) for _ in range(2))
            except zoo.Unavailable as reason:
                print(f"{key:34} left out: {reason}")
                continue
        print(f"{key:34} {_told(cold, COLD_AIM):>16} {_told(warm, WARM_AIM):>16}".rstrip())
        figures.append({"model": key, "first_ever_seconds": cold, "later_process_seconds": warm})
    if arguments.json:
        report = {"import_seconds": imported, "models": figures}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
