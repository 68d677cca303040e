"""Exceptions from the linters' rules are needed, and do not become more."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RULES = "N,ARG,SLF,PLR0913"
"""Rules of ruff that files from before them break: names, parameters without use, private members, many parameters."""
MOST = {
    "ARG001": 78,
    "ARG002": 27,
    "ARG004": 2,
    "ARG005": 46,
    "N802": 2,
    "N811": 1,
    "N816": 1,
    "N818": 28,
    "PLR0913": 137,
    "SLF001": 39,
}
"""The greatest number of files that may break each rule. A number may only shrink."""
MOST_MODULES = {"ignore_errors": 29, "warn_return_any": 39}
"""The greatest number of modules that mypy's overrides may exempt by name. A number may only shrink."""
ENTRY = re.compile(r'^"(.+)" = \[(.+)\]$', re.MULTILINE)


def exceptions() -> dict[str, set[str]]:
    """Read the exceptions from ruff's rules: the files or folders, each with its rules."""
    found = ENTRY.findall((ROOT / "ruff-exceptions.toml").read_text())
    return {path: set(re.findall(r"\w+", rules)) for path, rules in found}


def findings() -> dict[str, set[str]]:
    """Ask ruff which files break the rules, whatever the exceptions say."""
    pytest.importorskip("ruff", reason="needs the package ruff")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--exit-zero", "--output-format=json"]
    done = subprocess.run([*command, f"--select={RULES}", "."], cwd=ROOT, capture_output=True, text=True, check=True)
    found = defaultdict(set)
    for each in json.loads(done.stdout):
        found[Path(each["filename"]).relative_to(ROOT).as_posix()].add(each["code"])
    return found


def test_every_exception_from_a_rule_is_needed() -> None:
    listed = exceptions()
    folders = {path: rules for path, rules in listed.items() if "*" in path}
    broken = {
        (file, rule)
        for file, rules in findings().items()
        for rule in rules
        if not any(fnmatch(file, path) and rule in exempt for path, exempt in folders.items())
    }
    assert broken == {(file, rule) for file in listed.keys() - folders.keys() for rule in listed[file]}


def test_exceptions_from_rules_do_not_become_more() -> None:
    counts = Counter(rule for path, rules in exceptions().items() for rule in rules if "*" not in path)
    assert counts <= Counter(MOST), "a new file breaks a rule"


@pytest.mark.parametrize("setting", MOST_MODULES)
def test_modules_without_full_types_do_not_become_more(setting: str) -> None:
    text = (ROOT / "pyproject.toml").read_text()
    found = re.search(rf"^module = \[\n((?: .*\n)+)\]\n{setting} = ", text, re.MULTILINE)
    assert found
    modules = re.findall(r'"([\w.]+)"', found[1])
    assert len(modules) <= MOST_MODULES[setting]
    for module in modules:
        file = f"{module.replace('.', '/')}.py"
        assert any((ROOT / folder / file).is_file() for folder in ("src", "tests", "bench")), f"there is no {module}"
