"""The soak: random programs of API calls over all backends, for a time, with everything that may happen to them.

    python tests/soak/run.py --seconds 1200 --seed 1 [--backend htp --backend lpai-arm] [--without fork,kill]

Programs run in a process of their own. When one fails, hangs or crashes, its round, the last calls and what came of
them are printed, and the round is run again with fewer and fewer steps. A failure is reproduced with `--round`, and
with `--only` for some of its steps. Where growth comes from is told with `--origins`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_KINDS = (
    "cpu", "htp", "lpai-x86", "lpai-out", "lpai-adsp", "lpai-tcm", "lpai-arm", "gpu", "c-cpu", "c-htp", "litert-cpu",
    "litert-htp",
)  # fmt: skip
_LAST_CALLS = 30
_MAX = {
    "client growth": 4 << 20,
    "client heap growth": 1 << 20,
    "client blocks growth": 1000,
    "accelerator growth": 8 << 20,
}
"""How much there may be more of than after the warm-up.

Resident bytes are loose: what was freed lies scattered among what was not, and allocators keep it for later. (The C
library would keep it for each thread by itself; it is told not to, or threads that come and go would look like growth.)
What they have handed out is exact: blocks for Python's objects, bytes of the C library's heap for arrays and all else.
"""
_MAX_SHORT = {
    "client growth": 8 << 20,
    "client heap growth": 3 << 20,
    "client blocks growth": 500,
    "accelerator growth": 8 << 20,
}
"""The same after a short warm-up, when the process has not met its largest need.

Measured in five runs of 60 to 75 seconds on two loaded cores, with 43 to 102 rounds: at most 2.8 MB, 1.03 MB, 105
blocks and 0.6 MB. Most of the heap is one step of 0.96 MB, once in a process.
"""
_WARM_UP, _SHORT_WARM_UP = 250, 20
"""Rounds before growth is looked for: in a run of `_SECONDS_OF_A_LONG_RUN` or more, and in a shorter one."""
_SECONDS_OF_A_LONG_RUN = 900
_EXTRA_SECONDS = 300
"""How long a run may go on after its time until growth can be judged."""
_TRIES = 12
_MAX_SECONDS = 60
_SECONDS_BEYOND = 600
"""How long a round may go on after the time is up; a hang ends itself before."""


@dataclass
class Result:
    """What came of a run: figures, and the failure if there was one."""

    figures: dict[str, Any]
    failure: str = ""
    round: int | None = None


def soak(
    seconds: float,
    seed: int,
    kinds: tuple[str, ...] = _KINDS,
    without: tuple[str, ...] = (),
    threads: int = 3,
    rounds: list[int] | None = None,
    only: list[int] | None = None,
    warm_up: int | None = None,
    origins: bool = False,
) -> Result:
    """Run programs for so many seconds, or these rounds; growth is looked for, or traced, after so many of them.

    A run by time goes on after it until there are enough rounds to judge growth, and fails if there are not in the end.
    """
    if warm_up is None:
        warm_up = _WARM_UP if seconds >= _SECONDS_OF_A_LONG_RUN else _SHORT_WARM_UP
    with tempfile.TemporaryDirectory() as folder:
        trace, noise = Path(folder, "trace"), Path(folder, "noise")
        options = {
            "kinds": kinds,
            "without": without,
            "threads": threads,
            "seconds": seconds,
            "seed": seed,
            "rounds": rounds,
            "only": only,
            "trace": str(trace),
            "warm_up": warm_up,
            "origins": origins,
            "extra_seconds": _EXTRA_SECONDS,
        }
        paths = [str(_HERE), str(_HERE.parent), str(_HERE.parents[1] / "src")]
        with noise.open("w") as errors:
            child = subprocess.run(
                [sys.executable, str(_HERE / "worker.py"), json.dumps(options)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "MALLOC_ARENA_MAX": "1"},
                timeout=seconds + _EXTRA_SECONDS + _SECONDS_BEYOND,
                check=False,
            )
        reported: dict[str, Any] = {}
        for line in child.stdout.splitlines():
            reported.update(json.loads(line))
        result = Result(reported.get("figures", {}), reported.get("failure", ""), reported.get("round"))
        if child.returncode and not result.failure:
            last = "\n".join(trace.read_text().splitlines()[-_LAST_CALLS:])
            end = noise.read_text()[-6000:]
            result.failure = f"round {result.round}: the process ended with {child.returncode}\n{last}\n{end}"
        elif result.failure:
            # The log has the traceback of an answer that nobody expected.
            result.failure += f"\nthe last that the process said:\n{noise.read_text()[-3000:]}"
        limits = _MAX if warm_up >= _WARM_UP else _MAX_SHORT
        grown = {name: size for name, most in limits.items() if (size := result.figures.get(name) or 0) > most}
        if grown and not origins and not result.failure:
            result.failure = f"memory has grown: {grown}"
        unjudged = result.figures.get("not judged")
        if unjudged and rounds is None and not origins and not result.failure:
            result.failure = f"growth was not judged: {unjudged}"
            # The last round did not fail, and need not be run again.
            result.round = None
        return result


def smallest(result: Result, kinds: tuple[str, ...], without: tuple[str, ...], threads: int) -> list[int] | None:
    """The steps that a failing round still fails with, if it does so alone; None if it does not."""

    def fails(steps: list[int]) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return bool(soak(0, 0, kinds, without, threads, [result.round or 0], steps).failure)
        return True

    steps, tries, part = list(range(_MAX_SECONDS)), 1, _MAX_SECONDS // 2
    if not fails(steps):
        return None
    while part and tries < _TRIES:
        for start in range(len(steps) - part, -1, -part):
            fewer = steps[:start] + steps[start + part :]
            tries += 1
            if fails(fewer):
                steps = fewer
            if tries >= _TRIES:
                break
        part //= 2
    return steps


def main() -> int:
    """Run, and tell."""
    parser = argparse.ArgumentParser(description="Random programs of API calls over all backends.")
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    parser.add_argument("--backend", action="append", choices=_KINDS, help="run on these only")
    parser.add_argument("--without", default="", help="steps and trouble to do without, with commas")
    parser.add_argument("--threads", type=int, default=3, help="the most programs side by side")
    parser.add_argument("--round", type=int, action="append", help="run these rounds and no others")
    usual = f"{_WARM_UP}, or {_SHORT_WARM_UP} in less than {_SECONDS_OF_A_LONG_RUN} seconds"
    parser.add_argument("--warm-up", type=int, help=f"rounds before growth is looked for; {usual}")
    parser.add_argument("--origins", action="store_true", help="trace where growth comes from, and do not judge it")
    parser.add_argument("--only", help="steps to run of a program, with commas")
    parser.add_argument("--whole", action="store_true", help="do not look for the steps that a failure needs")
    given = parser.parse_args()
    kinds, without = tuple(given.backend or _KINDS), tuple(given.without.split(","))
    only = None if given.only is None else [int(step) for step in given.only.split(",")]
    print(f"seed {given.seed}, {given.seconds:g} seconds, {', '.join(kinds)}", flush=True)
    begin = time.monotonic()
    looked = {"warm_up": given.warm_up, "origins": given.origins}
    result = soak(given.seconds, given.seed, kinds, without, given.threads, given.round, only, **looked)
    print(f"{time.monotonic() - begin:.0f} seconds")
    origins, unjudged = result.figures.pop("origins", []), result.figures.pop("not judged", {})
    if (late := result.figures.get("seconds over", 0)) > 0:
        print(f"{given.seconds:g} seconds were too few to judge growth on this machine; it went on for {late} more")
    for name, value in result.figures.items():
        print(f"{name:20} {f'not judged: {unjudged.get(name, name)}' if value is None else value}")
    print("\n".join(origins), end="\n" if origins else "")
    if not result.failure:
        return 0
    print(f"FAILED\n{result.failure}")
    if not given.whole and result.round is not None:
        steps = smallest(result, kinds, without, given.threads)
        again = f"--round {result.round} --threads {given.threads} --only "
        print("alone it passes" if steps is None else f"again: {again}{','.join(map(str, steps))}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
