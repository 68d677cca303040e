"""Faults in a program in C that is not changed: ISTHMUS_FAULTS."""

from __future__ import annotations

from pathlib import Path

import pytest

from capi.host_programs import Build, execute


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ("ssr@1", "fault 'ssr@1' was injected"),
        # The library repeats the second execution and the third without reading the client's tensors again.
        ("ssr@3", "fault 'ssr@3' was injected"),
        ("map@2", "MEM_MAPPING"),
        ("srs@3", "ISTHMUS_FAULTS: fault 'srs@3' is unknown"),
    ],
)
def test_a_program_in_c_gets_the_fault_of_the_environment(
    build: Build, libraries: Path, faults: str, message: str
) -> None:
    done = execute(build("audited"), libraries, ISTHMUS_FAULTS=faults)
    assert done.returncode != 0
    assert any(message in line for line in done.stderr.splitlines()), done.stderr


def test_a_program_in_c_that_makes_fewer_calls_gets_none(build: Build, libraries: Path) -> None:
    done = execute(build("audited"), libraries, ISTHMUS_FAULTS="ssr@4,map@3,slow-unmap=1ms")
    assert done.returncode == 0, done.stderr
