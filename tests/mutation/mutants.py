"""Makes deliberate mistakes, one at a time, and says which of them the tests catch.

    python tests/mutation/mutants.py --count 100 --seed 7 [--rooms planning prepare ...] [--jobs 2]

Mistakes are taken at random over all source files, each in a copy of the tree, where tests run up to the first failure:
first those that enter the function with the mistake (`reach.py`), quickest first, as long as `--first-seconds` lasts;
then the names and types of ``make lint``; then all others of its room (`rooms.py`), long ones with `--also-long` only.
For the first part there must be a record, made once in a while by

    python -m pytest -q -n 2 --dist loadfile -p tests.mutation.recording

Without it, the rooms' tests alone decide, which takes several times as long. A test that fails is run again by itself
without the mistake: if it fails then too, it proves nothing, and the others go on without it. A mistake that hangs is
caught by the time limit of a single test or not at all. Those that change nothing (a bound that only saves time, say)
are listed in `equivalent.txt` with the reason, and left out.
"""

from __future__ import annotations

import argparse
import difflib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutation.reach import ROOT, Reach
from mutation.rooms import watching
from mutation.sites import Mistake, mistakes

PACKAGE = Path("src") / "isthmus"
OPENCL_KERNELS, TYPES = ROOT / ".cache" / "pocl", ROOT / ".mypy_cache"
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
_COPIED = (
    "src", "tests", "docs", "examples", "bench", "packaging", "pyproject.toml", "ruff-exceptions.toml", "Makefile",
    "LICENSE", "README.md", "CONTRIBUTING.md", "CHANGELOG.md",
)  # fmt: skip
_LINKED = (".models", ".venv")
_PASSED, _NONE_THERE = 0, 5
CAUGHT, LIVED, UNDECIDED = "caught", "LIVED", "undecided"


@dataclass
class Run:
    """How tests ended: pytest's exit status (None: out of time), the line that tells most, the test that failed."""

    status: int | None
    told: str
    failed: str = ""

    @property
    def passed(self) -> bool:
        """Whether no test failed; there may have been none."""
        return self.status in (_PASSED, _NONE_THERE)


@dataclass
class Tree:
    """A copy of the project to make mistakes in."""

    folder: Path
    seconds: float
    test_seconds: float
    also_long: bool

    @staticmethod
    def copy(seconds: float, test_seconds: float, also_long: bool) -> Tree:
        """Copy the working tree."""
        folder = Path(tempfile.mkdtemp(prefix="mutants-"))
        for name in _COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy2(source, folder / name)
        for cache in (OPENCL_KERNELS, TYPES):
            if cache.exists():
                ignored = shutil.ignore_patterns("tempfile_*")
                shutil.copytree(cache, folder / cache.relative_to(ROOT), ignore=ignored)
        for name in _LINKED:
            if (ROOT / name).exists():
                (folder / name).symlink_to((ROOT / name).resolve())
        # Before the first mistake, which might spoil what later ones are judged by.
        code = "from support.libraries import compiled; compiled()"
        paths = os.pathsep.join(str(folder / name) for name in ("src", "tests"))
        subprocess.run([sys.executable, "-c", code], cwd=folder, env={**os.environ, "PYTHONPATH": paths}, check=False)
        return Tree(folder, seconds, test_seconds, also_long)

    def check(self) -> None:
        """Refuse a copy in which names and types are wrong without a mistake: it would catch everything."""
        run = self.lint()
        if not run.passed:
            raise SystemExit(f"fails without a mistake: {run.told}")

    def close(self) -> None:
        """Remove the copy."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def lint(self) -> Run:
        """Check names and types as ``make lint`` does; its rules of style would catch how a mistake is written."""
        for name, *options in (("ruff", "check", "-q", "--select", "F", "src"), ("mypy", "src")):
            command = [sys.executable, "-m", name, *options]
            done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
            if done.returncode:
                return Run(done.returncode, f"{name}: {(done.stdout + done.stderr).strip().splitlines()[0]}")
        return Run(_PASSED, "")

    def listed(self, tests: list[str], kernels: Path) -> Run:
        """Run these tests, in this order."""
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        return self._run([file for file in files if (self.folder / file).exists()], "--listed", tests, kernels)

    def rest(self, path: str, done: list[str], kernels: Path) -> Run:
        """Run the tests of a source file's room, those that have its name first, but for what is done."""
        room = [file for name in watching(path) for file in sorted((self.folder / "tests").glob(name))]
        named = [file for folder in room if folder.is_dir() for file in folder.rglob(f"test_{Path(path).stem}*.py")]
        return self._run([str(file.relative_to(self.folder)) for file in (*named, *room)], "--unlisted", done, kernels)

    def _run(self, paths: list[str], option: str, tests: list[str], kernels: Path) -> Run:
        environment = {
            **os.environ, "PYTHONPATH": str(self.folder / "src"), "ISTHMUS_CACHE_DIR": str(kernels),
            "ISTHMUS_TEST_SECONDS": str(self.test_seconds), "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        names, failed = self.folder / "tests.txt", self.folder / "failed.txt"
        names.write_text("\n".join(tests))
        failed.write_text("")
        command = [
            sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-r", "fE",
            "-o", f"faulthandler_timeout={self.test_seconds + 30}",
            "-p", "tests.mutation.choosing", option, str(names), "--failed", str(failed),
            *(() if self.also_long else ("-m", "not long")),
        ]  # fmt: skip
        process = subprocess.Popen(
            [*command, *paths], cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=self.seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return Run(None, "out of time")
        reported = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR", "Fatal"))]
        return Run(process.returncode, (reported or output.splitlines()[-1:] or [""])[0], failed.read_text())


@dataclass
class Judge:
    """Decides on mistakes, in any number of trees at a time."""

    reach: Reach
    first_seconds: float
    first_only: bool = False
    unsound: list[str] = field(default_factory=list)
    """Tests that fail without any mistake: they would catch everything and prove nothing."""

    def judge(self, tree: Tree, mistake: Mistake) -> tuple[str, str]:
        """Make a mistake, run tests, undo it: how it ended, and what caught it."""
        near = tuple(f"tests/{name.partition('*')[0]}" for name in watching(mistake.path))
        first = self.reach.first(mistake.path, mistake.within, near, self.first_seconds, mistake.names)
        parts: list[Callable[[Path], Run]] = []
        if first:
            parts.append(lambda kernels: tree.listed([t for t in first if t not in self.unsound], kernels))
        parts.append(lambda kernels: tree.lint())
        if not (self.first_only and self.reach.is_entered(mistake.path, mistake.within)):
            parts.append(lambda kernels: tree.rest(mistake.path, first + self.unsound, kernels))
        for part in parts:
            while not (run := self._made(tree, mistake, part)).passed:
                if run.status is None:
                    return UNDECIDED, run.told
                if not run.failed or tree.listed([run.failed], shared_kernels()).passed:
                    return CAUGHT, run.told
                print(f"fails without a mistake, or cannot run alone: {run.failed}", flush=True)
                self.unsound.append(run.failed)
        return LIVED, ""

    @staticmethod
    def _made(tree: Tree, mistake: Mistake, part: Callable[[Path], Run]) -> Run:
        """Run a part of the tests with a mistake made."""
        file = tree.folder / PACKAGE / mistake.path
        source = file.read_text()
        own = Path(tempfile.mkdtemp(prefix="kernels-")) if may_spoil_kernels(mistake.path) else None
        try:
            file.write_text(mistake.apply(source))
            if own is not None and shared_kernels().exists():
                shutil.copytree(shared_kernels(), own, dirs_exist_ok=True)
            return part(own or shared_kernels())
        finally:
            file.write_text(source)
            if own is not None:
                shutil.rmtree(own, ignore_errors=True)


def shared_kernels() -> Path:
    """The project's compiled kernels."""
    return Path(os.environ.get("ISTHMUS_CACHE_DIR", ROOT / ".cache" / "kernels"))


def may_spoil_kernels(path: str) -> bool:
    """Return whether a mistake may put machine code into the cache that is wrong, or that no one will ask for again."""
    return path.startswith("engine/native/") and not path.startswith("engine/native/lowering/")


def known_equivalent() -> set[str]:
    """Keys of mistakes that change nothing."""
    lines = EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else []
    return {line.rpartition(" | ")[0].strip() for line in lines if line.strip() and not line.startswith("#")}


def sample(count: int, seed: int, rooms: list[str]) -> list[Mistake]:
    """Mistakes at random: first a file, by its size, then a place in it."""
    rng, known = random.Random(seed), known_equivalent()
    found: list[Mistake] = []
    for file in sorted((ROOT / PACKAGE).rglob("*.py")):
        path = file.relative_to(ROOT / PACKAGE).as_posix()
        if not rooms or any(path == room or path.startswith(f"{room}/") for room in rooms):
            found += [m for m in mistakes(path, file.read_text()) if m.key not in known]
    return rng.sample(found, min(count, len(found)))


def difference(mistake: Mistake) -> str:
    """The mistake as a diff."""
    source = (ROOT / PACKAGE / mistake.path).read_text()
    lines = difflib.unified_diff(
        source.splitlines(), mistake.apply(source).splitlines(), mistake.path, mistake.path, lineterm="", n=2
    )
    return "\n".join(f"    {line}" for line in lines)


def main() -> int:
    """Judge a sample and print an account; the exit status says whether a mistake lived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rooms", nargs="*", default=[], help="folders and files of the package; all without it")
    parser.add_argument("--jobs", type=int, default=1, help="mistakes judged at a time")
    parser.add_argument(
        "--first-seconds", type=float, default=90, help="time for tests that enter the function of a mistake"
    )
    parser.add_argument(
        "--first-only", action="store_true", help="believe them when they let a mistake live, where there are any"
    )
    parser.add_argument("--also-long", action="store_true", help="run the long tests too, which make test leaves out")
    parser.add_argument("--seconds", type=float, default=1800, help="time for each of the two parts of the tests")
    parser.add_argument("--test-seconds", type=float, default=120, help="time for a single test")
    given = parser.parse_args()
    chosen = sample(given.count, given.seed, given.rooms)
    trees = [Tree.copy(given.seconds, given.test_seconds, given.also_long) for _ in range(given.jobs)]
    judges = Judge(Reach.read(), given.first_seconds, given.first_only)
    free, ends, printing = list(trees), dict.fromkeys((CAUGHT, LIVED, UNDECIDED), 0), threading.Lock()

    def judge(mistake: Mistake) -> None:
        with printing:
            tree = free.pop()
        begin = time.perf_counter()
        end, reported = judges.judge(tree, mistake)
        with printing:
            free.append(tree)
            ends[end] += 1
            where = f"{mistake.path}:{mistake.start[0]} {mistake.within}"
            print(f"{end}: {where}, {mistake.kind} ({time.perf_counter() - begin:.0f} s) {reported}", flush=True)
            if end != CAUGHT:
                print(difference(mistake), f"    key: {mistake.key}", sep="\n", flush=True)

    try:
        with ThreadPoolExecutor(given.jobs) as pool:
            list(pool.map(Tree.check, trees))
            list(pool.map(judge, chosen))
    finally:
        for tree in trees:
            tree.close()
    print(", ".join(f"{count} {end}" for end, count in ends.items()))
    return bool(ends[LIVED])


if __name__ == "__main__":
    sys.exit(main())
