"""Which tests can notice a mistake in a function, by the record of what they enter, the quickest first.

The record is made by `recording.py`, in `.cache/reach`, and stands until it is made again: tests that are new since
then run with the others of their room.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".cache" / "reach"
_AT_A_TIME = 8


def function(path: str, qualified: str) -> str:
    """The name of a function as mistakes have it (`Mistake.within`), after its file.

    Lambdas and comprehensions are part of what they stand in.

    >>> function("memory/tcm.py", "TcmPool.take.<locals>.<lambda>")
    'memory/tcm.py TcmPool.take'
    >>> function("graph/ops/elementwise.py", "<lambda>")
    'graph/ops/elementwise.py module'
    """
    parts = [part for part in qualified.split(".") if not part.startswith("<")]
    return f"{path} {'.'.join(parts) or 'module'}"


@dataclass
class Reach:
    """Tests that pass, by functions they enter, with the time that each takes in seconds."""

    seconds: dict[str, float] = field(default_factory=dict)
    entering: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    @staticmethod
    def read(folder: Path = FOLDER) -> Reach:
        """The record, empty where none was made."""
        reach = Reach()
        for file in sorted(folder.glob("*.jsonl")):
            names: list[str] = []
            for line in file.read_text().splitlines():
                told = json.loads(line)
                names += told["new"]
                if told["passed"]:
                    reach.add(told["test"], told["seconds"], [names[number] for number in told["entered"]])
        return reach

    def add(self, test: str, seconds: float, functions: list[str]) -> None:
        """Add what one test enters."""
        self.seconds[test] = seconds
        for name in functions:
            self.entering[name].add(test)

    def tests(self, path: str, within: str) -> set[str]:
        """Tests that enter a function; for a module, a class, or a function never entered, what is inside of it.

        Kernels are compiled, and no one sees them entered: theirs are the tests of the lowering that has their name.
        """
        if "/kernels/" in path:
            return self._within(path, within) | self._within(path.replace("/kernels/", "/lowering/"), "module")
        return self._within(path, within)

    def is_entered(self, path: str, within: str) -> bool:
        """Whether any test enters this very function; what a module or a class says for itself is never entered."""
        return within != "module" and f"{path} {within}" in self.entering

    def _within(self, path: str, within: str) -> set[str]:
        exact = self.entering.get(f"{path} {within}", set())
        if exact and within != "module":
            return exact
        start = f"{path} " if within == "module" else f"{path} {within}."
        return set().union(*(tests for name, tests in self.entering.items() if name.startswith(start)))

    def first(self, path: str, within: str, near: tuple[str, ...], seconds: float) -> list[str]:
        """Tests to try first, in the order to run them: those of so many seconds in all, at least one.

        Parameters
        ----------
        path, within
            The file of the package and the function with the mistake.
        near
            Beginnings of tests that are preferred, the best first.
        seconds
            The time that they may take, by the record.
        """

        def distance(test: str) -> int:
            return next((number for number, start in enumerate(near) if test.startswith(start)), len(near))

        of_file: dict[str, list[str]] = defaultdict(list)
        for test in sorted(self.tests(path, within), key=lambda test: (self.seconds[test], test)):
            of_file[test.partition("::")[0]].append(test)
        # Some of each file come before more of one: tests of a file are alike.
        rounds = ((place // _AT_A_TIME, test) for tests in of_file.values() for place, test in enumerate(tests))
        chosen: dict[str, list[str]] = defaultdict(list)
        total = 0.0
        for _, test in sorted(rounds, key=lambda each: (distance(each[1]), each[0], self.seconds[each[1]])):
            total += self.seconds[test]
            if chosen and total > seconds:
                break
            chosen[test.partition("::")[0]].append(test)
        # A file's tests stay together, since they share fixtures.
        cost = {file: sum(self.seconds[test] for test in tests) for file, tests in chosen.items()}
        files = sorted(chosen, key=lambda file: (distance(file), cost[file], file))
        return [test for file in files for test in chosen[file]]
