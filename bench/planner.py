"""How small and how fast the planner is: published instances, instances made to be hard, and growth with size.

Run ``python bench/planner.py [FOLDER]``. The folder holds MiniMalloc's instances, ``NAME.CAPACITY.csv``; without it
that table is left out. Times are of planning alone; loading the compiled search is shown once, at the top.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path

from isthmus.planning import PlannerBuffer, Problem, Solution, check, greedy_by_size, lower_bound, read_csv, solve

UNIT = 1024


def sliced(pieces: int, seed: int, *, dropped: float = 0.0, side: int = 1024) -> Problem:
    """A square of time and memory cut into pieces at random, some of them left out.

    Nothing is wasted where nothing was left out, so the capacity of the square is known to be enough and to be tight.
    """
    chance = random.Random(seed)
    rectangles = [(0, side, 0, side)]
    while len(rectangles) < pieces:
        weights = [(x1 - x0) * (y1 - y0) for x0, x1, y0, y1 in rectangles]
        k = chance.choices(range(len(rectangles)), weights)[0]
        x0, x1, y0, y1 = rectangles[k]
        if chance.random() < 0.5 and x1 - x0 > 1:
            cut = chance.randrange(x0 + 1, x1)
            rectangles[k : k + 1] = [(x0, cut, y0, y1), (cut, x1, y0, y1)]
        elif y1 - y0 > 1:
            cut = chance.randrange(y0 + 1, y1)
            rectangles[k : k + 1] = [(x0, x1, y0, cut), (x0, x1, cut, y1)]
    kept = [r for r in rectangles if chance.random() >= dropped]
    chance.shuffle(kept)
    return Problem(tuple(PlannerBuffer(str(i), x0, x1, (y1 - y0) * UNIT) for i, (x0, x1, y0, y1) in enumerate(kept)))


def woven(pieces: int, seed: int, *, steps: int = 100, height: int = 1024) -> Problem:
    """Buffers of all widths laid on the lowest place of a growing pile, up to a level top.

    No straight cut goes through. The level is the capacity, again enough and tight.
    """
    chance = random.Random(seed)
    pile = [0] * steps
    buffers: list[PlannerBuffer] = []
    while min(pile) < height:
        low = min(pile)
        start = pile.index(low)
        end = start
        while end < steps and pile[end] == low:
            end += 1
        width = min(end - start, 1 + int(chance.expovariate(1 / 8)))
        size = max(1, int(chance.lognormvariate(0, 1) * steps * height / pieces / 8))
        if low + size > height - height // 50:
            size = height - low
        pile[start : start + width] = [low + size] * width
        buffers.append(PlannerBuffer(str(len(buffers)), start, start + width, size * UNIT))
    chance.shuffle(buffers)
    return Problem(tuple(buffers))


def network(tensors: int, seed: int) -> Problem:
    """Tensors of a network: a chain with residual and long connections, large ones early, a few live at once."""
    chance = random.Random(seed)
    buffers = []
    for i in range(tensors):
        shrink = 0.5 ** (6 * i / tensors)
        size = int(2**21 * shrink * chance.choice((0.25, 0.5, 1, 1, 1, 1.5, 2, 6)))
        kind = chance.random()
        life = 2 if kind < 0.7 else chance.randint(3, 8) if kind < 0.97 else chance.randint(8, 60)
        buffers.append(PlannerBuffer(f"t{i}", i, min(i + life, tensors + 1), max(size, 64), alignment=64))
    return Problem(tuple(buffers))


def with_capacity(problem: Problem, capacity: int | None) -> Problem:
    return Problem(problem.buffers, capacity)


def timed(problem: Problem, timeout: float) -> tuple[Solution, int]:
    """Plan, check, and compare with greedy-by-size."""
    solution = solve(problem, timeout=timeout)
    if solution.offsets is not None:
        check(problem, solution.offsets)
    return solution, check(Problem(problem.buffers), greedy_by_size(problem))


def row(name: str, problem: Problem, timeout: float) -> str:
    solution, greedy = timed(problem, timeout)
    peak = "-" if solution.peak is None else f"{solution.peak:,}"
    given = "-" if problem.capacity is None else f"{problem.capacity:,}"
    return (
        f"{name:<12}{len(problem):>8,}{given:>12}{solution.status.value:>12}{peak:>14}{solution.lower_bound:>14,}"
        f"{greedy:>14,}{solution.seconds * 1e3:>11,.1f}{solution.nodes:>12,}"
    )


HEADER = (
    f"{'instance':<12}{'buffers':>8}{'capacity':>12}{'status':>12}{'peak':>14}{'lower bound':>14}"
    f"{'greedy':>14}{'ms':>11}{'nodes':>12}"
)


def published(folder: Path, timeout: float) -> Iterator[str]:
    for path in sorted(folder.glob("*.csv")):
        name, capacity = path.name.split(".")[:2]
        problem = read_csv(path)
        yield row(name, with_capacity(problem, int(capacity)), timeout)
        yield row(name, problem, timeout)


def made(timeout: float, seeds: int) -> Iterator[str]:
    capacity = 1024 * UNIT
    families = {
        "sliced": lambda seed: sliced(200, seed),
        "sliced -5%": lambda seed: sliced(250, seed, dropped=0.05),
        "woven": lambda seed: woven(200, seed),
    }
    for name, make in families.items():
        for seed in range(seeds):
            yield row(name, with_capacity(make(seed), capacity), timeout)


def growth(timeout: float) -> Iterator[str]:
    for tensors in (100, 200, 300, 500, 1000, 2000, 5000):
        problem = network(tensors, seed=1)
        began = time.perf_counter()
        fast = solve(problem, node_limit=0)
        anytime = time.perf_counter() - began
        best, greedy = timed(problem, timeout)
        yield (
            f"{tensors:>8,}{anytime * 1e3:>12,.1f}{anytime * 1e6 / tensors:>12,.1f}{fast.peak or 0:>14,}"
            f"{best.seconds * 1e3:>12,.1f}{best.peak or 0:>14,}{best.status.value:>12}{lower_bound(problem):>14,}"
            f"{greedy:>14,}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="MiniMalloc's instances")
    parser.add_argument("--timeout", type=float, default=10.0)
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    first = solve(with_capacity(sliced(200, seed=0), 1024 * UNIT), timeout=0.1)
    print(f"loading the compiled search: {first.loading:.2f} s")
    if options.folder:
        print(f"\n{HEADER}")
        for line in published(options.folder, options.timeout):
            print(line, flush=True)
    print(f"\n{HEADER}")
    for line in made(options.timeout, options.seeds):
        print(line, flush=True)
    print(
        f"\n{'tensors':>8}{'fast ms':>12}{'us/tensor':>12}{'fast peak':>14}{'exact ms':>12}{'peak':>14}{'status':>12}"
        f"{'lower bound':>14}{'greedy':>14}"
    )
    for line in growth(options.timeout):
        print(line, flush=True)


if __name__ == "__main__":
    main()
