"""Makes deliberate mistakes, one at a time, and says which of them the tests catch.

    python tests/mutation/mutants.py --count 100 --seed 7 [--rooms planning prepare ...] [--jobs 2]

Mistakes are taken at random over all source files, each in a copy of the tree, where the tests of its room run up to
the first failure. A mistake that hangs is caught by the time limit of a single test or not at all. Those that change
nothing (a bound that only saves time, say) are listed in `equivalent.txt` with the reason, and left out.
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutation.rooms import watching
from mutation.sites import Mistake, mistakes

ROOT = Path(__file__).parents[2]
PACKAGE = Path("src") / "isthmus"
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
_COPIED = (
    "src", "tests", "docs", "examples", "bench", "pyproject.toml", "Makefile", "LICENSE", "README.md",
    "CONTRIBUTING.md", "CHANGELOG.md",
)  # fmt: skip
_LINKED = (".models", ".venv")
_PASSED = 0
CAUGHT, LIVED, UNDECIDED = "caught", "LIVED", "undecided"


@dataclass
class Tree:
    """A copy of the project to make mistakes in, with what is known of its tests without any."""

    folder: Path
    seconds: float
    test_seconds: float
    trusted: bool = False
    sound: dict[tuple[str, ...], str] = field(default_factory=dict)

    @staticmethod
    def copy(seconds: float, test_seconds: float, trusted: bool = False) -> Tree:
        """Copy the working tree."""
        folder = Path(tempfile.mkdtemp(prefix="mutants-"))
        for name in _COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy2(source, folder / name)
        for name in _LINKED:
            if (ROOT / name).exists():
                (folder / name).symlink_to((ROOT / name).resolve())
        return Tree(folder, seconds, test_seconds, trusted)

    def close(self) -> None:
        """Remove the copy."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, tests: tuple[str, ...], kernels: Path) -> tuple[int | None, str]:
        """Run tests up to the first failure: pytest's exit status (None: out of time) and the line that tells most."""
        environment = {
            **os.environ, "PYTHONPATH": str(self.folder / "src"), "ISTHMUS_CACHE_DIR": str(kernels),
            "ISTHMUS_TEST_SECONDS": str(self.test_seconds), "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        hard = f"faulthandler_timeout={self.test_seconds + 30}"
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-o", hard, "-r", "fE"]
        paths = [str(path) for name in tests for path in sorted((self.folder / "tests").glob(name))]
        process = subprocess.Popen(
            [*command, *paths], cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=self.seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return None, "out of time"
        told = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR", "Fatal"))]
        return process.returncode, (told or output.splitlines()[-1:] or [""])[0]

    def fault(self, tests: tuple[str, ...]) -> str:
        """What fails without any mistake, if anything does: such tests catch everything and prove nothing."""
        if tests not in self.sound:
            status, told = self.run(tests, shared_kernels())
            self.sound[tests] = "" if status == _PASSED else told or f"exit status {status}"
        return self.sound[tests]

    def judge(self, mistake: Mistake) -> tuple[str, str]:
        """Make a mistake, run the tests of its room, undo it: how it ended, and what caught it."""
        tests = watching(mistake.path)
        if not self.trusted and (fault := self.fault(tests)):
            return UNDECIDED, f"the tests {', '.join(tests)} do not pass as they are: {fault}"
        file = self.folder / PACKAGE / mistake.path
        source = file.read_text()
        own = Path(tempfile.mkdtemp(prefix="kernels-")) if may_spoil_kernels(mistake.path) else None
        try:
            file.write_text(mistake.made(source))
            if own is not None and shared_kernels().exists():
                shutil.copytree(shared_kernels(), own, dirs_exist_ok=True)
            status, told = self.run(tests, own or shared_kernels())
        finally:
            file.write_text(source)
            if own is not None:
                shutil.rmtree(own, ignore_errors=True)
        if status is None:
            return UNDECIDED, told
        return (LIVED, "") if status == _PASSED else (CAUGHT, told)


def shared_kernels() -> Path:
    """The project's compiled kernels."""
    return Path(os.environ.get("ISTHMUS_CACHE_DIR", ROOT / ".cache" / "kernels"))


def may_spoil_kernels(path: str) -> bool:
    """Whether a mistake may put machine code into the cache that is wrong, or that no one will ask for again."""
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
        source.splitlines(), mistake.made(source).splitlines(), mistake.path, mistake.path, lineterm="", n=2
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
        "--sound", action="store_true", help="take it as known that the tests pass without a mistake, and save the time"
    )
    parser.add_argument("--seconds", type=float, default=1800, help="time for the tests of one mistake")
    parser.add_argument("--test-seconds", type=float, default=120, help="time for a single test")
    given = parser.parse_args()
    chosen = sample(given.count, given.seed, given.rooms)
    trees = [Tree.copy(given.seconds, given.test_seconds, given.sound) for _ in range(given.jobs)]
    free, ends, printing = list(trees), dict.fromkeys((CAUGHT, LIVED, UNDECIDED), 0), threading.Lock()

    def judge(mistake: Mistake) -> None:
        with printing:
            tree = free.pop()
        begin = time.perf_counter()
        end, told = tree.judge(mistake)
        with printing:
            free.append(tree)
            ends[end] += 1
            where = f"{mistake.path}:{mistake.start[0]} {mistake.within}"
            print(f"{end}: {where}, {mistake.kind} ({time.perf_counter() - begin:.0f} s) {told}", flush=True)
            if end != CAUGHT:
                print(difference(mistake), f"    key: {mistake.key}", sep="\n", flush=True)

    try:
        with ThreadPoolExecutor(given.jobs) as pool:
            list(pool.map(judge, chosen))
    finally:
        for tree in trees:
            tree.close()
    print(", ".join(f"{count} {end}" for end, count in ends.items()))
    return bool(ends[LIVED])


if __name__ == "__main__":
    sys.exit(main())
