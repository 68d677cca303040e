"""Clients run under valgrind and the sanitizers, which find mistakes of the client's and none of Python's."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.suites import long

from capi.host_programs import SECONDS, Build, execute

WRONG = 9


def valgrind(libraries: Path, program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program under valgrind; errors and leaks end it with `WRONG`."""
    if shutil.which("valgrind") is None:
        pytest.skip("needs valgrind")
    command = ["valgrind", "-q", "--leak-check=full", f"--error-exitcode={WRONG}",
               f"--suppressions={libraries / 'isthmus.supp'}", program, *arguments]  # fmt: skip
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=SECONDS)


def test_valgrind_finds_the_results_initialized(libraries: Path, build: Build) -> None:
    done = valgrind(libraries, build("checked"), libraries, "libQnnCpu.so", "table")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize("library", [long("libQnnCpu.so"), long("libQnnHtp.so")])
def test_valgrind_finds_nothing_in_a_client_that_does_right(libraries: Path, build: Build, library: str) -> None:
    done = valgrind(libraries, build("checked"), libraries, library)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "done"


@pytest.mark.parametrize("how", [long("lose")])
def test_valgrind_finds_what_the_client_loses_and_nothing_else(libraries: Path, build: Build, how: str) -> None:
    done = valgrind(libraries, build("checked"), libraries, "libQnnCpu.so", how)
    assert done.returncode == WRONG
    assert re.findall(r"([\d,]+) bytes in \d+ blocks are \w+ lost", done.stderr) == ["4,711"]


@pytest.mark.parametrize("library", ["libQnnCpu.so", "libQnnHtp.so"])
def test_the_sanitizers_find_nothing_in_a_client_that_does_right(libraries: Path, build: Build, library: str) -> None:
    done = execute(build("checked", "gcc", sanitize=True), libraries, library)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "done"


def test_the_sanitizers_find_what_the_client_loses_and_nothing_else(libraries: Path, build: Build) -> None:
    done = execute(build("checked", "gcc", sanitize=True), libraries, "libQnnHtp.so", "lose")
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == "SUMMARY: AddressSanitizer: 4711 byte(s) leaked in 1 allocation(s)."
