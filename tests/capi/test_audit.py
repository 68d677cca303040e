"""The audit of a program in C that ISTHMUS_AUDIT asks for: its mistakes with their lines, or none."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from test_audit_log import MISTAKES

from capi.host_programs import PROGRAMS, Build, complaints, execute

SOURCE = (PROGRAMS / "audited.c").read_text().splitlines()


def marked(where: str) -> str:
    """Return the comment on the line of the program that a place names."""
    line = re.match(r".*/audited\.c:(\d+) in main$", where)
    assert line, where
    comment = re.search(r"/\* (.*) \*/$", SOURCE[int(line[1]) - 1])
    return comment[1] if comment else ""


def python_names(text: str) -> list[str]:
    """Return what a text has of Python's API."""
    return re.findall(r"mem_register|mem_deregister|Close the buffer|with block|isthmus\.\w+|\w+\(\)", text)


def test_each_mistake_of_a_program_in_c_has_its_tensor_and_line(build: Build, libraries: Path, tmp_path: Path) -> None:
    if shutil.which("addr2line") is None:
        pytest.skip("needs addr2line")
    report = tmp_path / "audit.json"
    done = execute(build("audited"), libraries, "wrong", ISTHMUS_AUDIT=str(report))
    assert done.returncode == 0, done.stderr
    audit = json.loads(report.read_text())
    found = [(mistake["kind"], mistake["tensor"], marked(mistake["where"])) for mistake in audit["mistakes"]]
    # Each of the two handles that are registered on one line is leaked. A descriptor has no name; which tensor its
    # memory is for is known from the first execution on.
    assert sorted(found) == sorted([*MISTAKES, ("never deregistered", "'x'", "leaked")])
    assert all(mistake["remedy"] for mistake in audit["mistakes"])
    assert not python_names(report.read_text())


def test_an_audit_on_standard_error_names_functions_of_c(build: Build, libraries: Path) -> None:
    done = execute(build("audited"), libraries, "wrong", ISTHMUS_AUDIT="1")
    for call in ("Call rpcmem_free when", "Call memDeRegister before", "Register the memory (memRegister)"):
        assert call in done.stderr
    assert not python_names(done.stderr)


def test_a_correct_program_in_c_has_no_mistakes_and_no_copies(build: Build, libraries: Path, tmp_path: Path) -> None:
    report = tmp_path / "audit.txt"
    done = execute(build("audited"), libraries, ISTHMUS_AUDIT=str(report))
    assert done.returncode == 0, done.stderr
    assert not complaints(done)
    text = report.read_text()
    assert "copied: 0 bytes" in text
    assert "mistakes: none" in text
    assert re.search(r"execute +3 ", text)
    counts = dict(re.findall(r"^  (\w+) +(\d+) ", text, re.MULTILINE))
    for first, second in (("allocate", "free"), ("register", "deregister"), ("create", "destroy")):
        assert counts[first] == counts[second], text
