"""Plans every model of the zoo and prints what its scratch takes, beside greedy by size and beside no sharing.

    python bench/plans.py [KEY ...]

Times are of planning alone: blocks and their lives in, places out. The first run of a process loads the planner.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import zoo

from isthmus.backends.seam import native
from isthmus.frontends import load
from isthmus.prepare.schedule import Plan

REPEAT = 3
SMALL, SMALL_SECONDS, LARGE, LARGE_SECONDS = 300, 0.1, 1000, 2.0
"""What is asked for: so many blocks are planned within so many seconds."""


def plan(key: str) -> Plan:
    """The plan of a model; of several the one that took the least time."""
    model = zoo.MODELS[key]
    constants = {name: np.int64(value) for name, value in model.constants.items()}
    graph = load(zoo.path(key), model.shapes, constants)
    return min((native.prepare(graph).plan for _ in range(REPEAT)), key=lambda made: made.seconds)


def faults(made: Plan) -> list[str]:
    """Where a plan falls short of what is asked for."""
    limit = SMALL_SECONDS if len(made.rows) <= SMALL else LARGE_SECONDS if len(made.rows) <= LARGE else float("inf")
    return [
        *(["not proved"] if made.status != "optimal" else []),
        *(["above greedy"] if made.bytes > made.greedy_bytes else []),
        *(["slow"] if made.seconds > limit else []),
    ]


def main() -> int:
    """Print the table; the exit status tells whether every plan is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("keys", nargs="*", metavar="KEY", choices=[[], *zoo.MODELS], help="models; all without any")
    keys = parser.parse_args().keys or list(zoo.MODELS)
    print(
        f"{'model':34}{'steps':>6}{'blocks':>7}{'scratch':>12}{'status':>9}{'greedy':>12}{'unshared':>12}"
        f"{'by order':>11}{'aliased':>12}{'ms':>8}"
    )
    wrong = 0
    for key in keys:
        try:
            made = plan(key)
        except zoo.Unavailable as reason:
            print(f"{key:34}{reason}")
            continue
        found = faults(made)
        wrong += bool(found)
        print(
            f"{key:34}{len(made.steps):>6}{len(made.rows):>7}{made.bytes:>12,}{made.status:>9}{made.greedy_bytes:>12,}"
            f"{made.unshared_bytes:>12,}{made.order_saved_bytes:>11,}{made.aliased_bytes:>12,}"
            f"{made.seconds * 1e3:>8.1f}{'  ' + ', '.join(found) if found else ''}",
            flush=True,
        )
    print(f"{wrong} plans fall short" if wrong else "every plan is proved, in time and never above greedy")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
