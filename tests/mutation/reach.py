"""Which tests can notice a mistake in a function, by the record of what they enter, the quickest first.

The record is made by `recording.py`, in `.cache/reach`, and stands until it is made again: tests that are new since
then run with the others of their room.
"""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache
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


@cache
def _text(file: Path) -> str:
    """Read a file; one that is there no more has no text."""
    return file.read_text() if file.exists() else ""


@cache
def _functions(file: Path) -> dict[str, str]:
    """Return the texts of a file's functions by their qualified names; that of a function has those inside of it."""
    found: dict[str, str] = {}

    def collect(node: ast.AST, prefix: str) -> None:
        for each in ast.iter_child_nodes(node):
            if isinstance(each, (ast.FunctionDef, ast.ClassDef)):
                if isinstance(each, ast.FunctionDef):
                    found[f"{prefix}{each.name}"] = ast.get_source_segment(_text(file), each) or ""
                collect(each, f"{prefix}{each.name}.")
            else:
                collect(each, prefix)

    collect(ast.parse(_text(file)), "")
    return found


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
                reported = json.loads(line)
                names += reported["new"]
                if reported["passed"]:
                    reach.add(reported["test"], reported["seconds"], [names[number] for number in reported["entered"]])
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

    def using(self, path: str, names: Collection[str]) -> set[str]:
        """Tests in a file that has one of a module's names, and tests that enter a function which has one.

        No one enters a constant or an enumeration: these are the tests that may notice a mistake in it.
        """
        if not names:
            return set()
        word = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
        files = {test: ROOT / test.partition("::")[0] for test in self.seconds}
        having = {file for file in set(files.values()) if word.search(_text(file))}
        found = {test for test, file in files.items() if file in having}
        is_private = all(name.startswith("_") for name in names)
        for user in {path} if is_private else {entered.partition(" ")[0] for entered in self.entering}:
            file = ROOT / "src" / "isthmus" / user
            for within, source in _functions(file).items() if word.search(_text(file)) else ():
                if word.search(source):
                    found |= self.entering.get(f"{user} {within}", set())
        return found

    def first(
        self, path: str, within: str, near: tuple[str, ...], seconds: float, names: Collection[str] = ()
    ) -> list[str]:
        """Tests to try first, in the order to run them: those of so many seconds in all, at least one.

        Parameters
        ----------
        path, within, names
            The file of the package and the function with the mistake, and what the statement around it defines.
        near
            Beginnings of tests that are preferred, the best first.
        seconds
            The time that they may take, by the record.
        """
        direct = set() if self.is_entered(path, within) else self.using(path, names)

        def distance(test: str) -> tuple[bool, int]:
            return test not in direct, next((n for n, start in enumerate(near) if test.startswith(start)), len(near))

        of_file: dict[str, list[str]] = defaultdict(list)
        for test in sorted(self.tests(path, within) | direct, key=lambda test: (self.seconds[test], test)):
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
        files = sorted(chosen, key=lambda file: (distance(chosen[file][0]), cost[file], file))
        return [test for file in files for test in chosen[file]]
