"""Compares thousands of random operations with ONNX Runtime and LiteRT.

    python tests/random_operations/long_run.py --cases 200 --seed 7 [kind ...]
    python tests/random_operations/long_run.py --show "onnx conv/7/31"

The first takes so many cases of each kind (all kinds, or those that begin with a name given); the second shows one
case again.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from random_operations.comparison import Account
from random_operations.kinds import MAKERS, seed_of


def main() -> int:
    """Run and print an account; the exit status says whether anything differed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200, help="cases of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", metavar="SEED", help="one case, by the seed that a failure named")
    parser.add_argument("kinds", nargs="*", help=", ".join(MAKERS))
    given = parser.parse_args()
    if given.show:
        account = Account()
        account.add(given.show, MAKERS[given.show.partition("/")[0]])
        print(account.counts, account.refusals, *account.failures.values(), sep="\n")
        return bool(account.failures)
    total = 0
    kinds = [kind for kind in MAKERS if not given.kinds or any(kind.startswith(k) for k in given.kinds)]
    for kind in kinds:
        account, begin = Account(), time.perf_counter()
        for number in range(given.cases):
            account.add(seed_of(kind, given.seed, number), MAKERS[kind])
        total += len(account.failures)
        counts = ", ".join(f"{count} {end}" for end, count in sorted(account.counts.items()))
        print(f"{kind}: {counts} ({time.perf_counter() - begin:.0f} s)", flush=True)
        for refusal, count in account.refusals.most_common(6):
            print(f"    {count:4} refused: {refusal}")
        for seed, problem in list(account.failures.items())[:8]:
            print(f"    {seed}: " + problem.replace("\n", "\n        "))
    return bool(total)


if __name__ == "__main__":
    sys.exit(main())
