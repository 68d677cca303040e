"""What a machine may lack: tests that need it are skipped, unless `ISTHMUS_REQUIRE` names it; then they fail."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

NAMES = {"browser": "Chromium", "site": "mkdocs and what else `make docs` installs"}
"""What can be required."""


def required() -> set[str]:
    """Return what `ISTHMUS_REQUIRE` names, separated by commas; a name that does not exist is an error."""
    names = set(filter(None, map(str.strip, os.environ.get("ISTHMUS_REQUIRE", "").split(","))))
    if unknown := names - set(NAMES):
        rule = f"there is no {', '.join(sorted(unknown))}; known are {', '.join(NAMES)}"
        raise pytest.UsageError(f"ISTHMUS_REQUIRE: {rule}")
    return names


def lacking(name: str, reason: str) -> NoReturn:
    """Skip the test, which needs something that this machine lacks, or fail it if that is required."""
    assert name in NAMES
    if name in required():
        pytest.fail(f"{reason}, and ISTHMUS_REQUIRE names '{name}'", pytrace=False)
    pytest.skip(reason)
