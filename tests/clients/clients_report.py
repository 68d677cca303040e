"""The results of clients as JSON, one file for each client, and the tables that are made of them.

    python clients_report.py            # prints the tables
    python clients_report.py DOCUMENT   # also replaces the tables of a document, between its marks

A row says what was tried and how it ended: "passes", or a reason.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "build" / "clients"
PASSES = "passes"
BEGIN, END = "<!-- results of {} -->", "<!-- end of results -->"


class Results:
    """The rows of one client; writing is immediate, so that a run that is cut off leaves what it found."""

    def __init__(self, client: str) -> None:
        self.client = client
        self.file = FOLDER / f"{client}.json"
        self._content: dict[str, Any] = {"client": client, "versions": {}, "rows": {}}

    def used(self, *packages: str, **versions: str) -> None:
        """Record the versions of packages, or of something else."""
        known = {package: importlib.metadata.version(package) for package in packages}
        self._content["versions"] |= known | versions
        self._write()

    def row(self, name: str, outcome: str = PASSES, **facts: Any) -> None:
        """Record how something ended."""
        self._content["rows"][name] = {"outcome": outcome, **facts}
        self._write()

    def _write(self) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self._content, indent=1, sort_keys=True) + "\n")


def needs(*modules: str) -> pytest.MarkDecorator:
    """Skip where a client is not installed."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {' and '.join(missing)}: make test-clients")


def table(content: dict[str, Any]) -> list[str]:
    """Return the lines of a client's table: how many rows pass, and the others with their reasons."""
    rows = content["rows"]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(content["versions"].items()))
    passed = sum(row["outcome"] == PASSES for row in rows.values())
    lines = [f"Tried with {versions}: {passed} of {len(rows)} pass."]
    reasons = Counter(row["outcome"] for row in rows.values() if row["outcome"] != PASSES)
    if reasons:
        lines += ["", "| does not pass | why |", "|---|---|"]
        for reason, _ in reasons.most_common():
            names = [name for name, row in sorted(rows.items()) if row["outcome"] == reason]
            lines.append(f"| {', '.join(names)} | {' '.join(reason.replace('|', '/').split())} |")
    return lines


def contents() -> list[dict[str, Any]]:
    """Return what the last run has written."""
    return [json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))]


def replaced(text: str, tables: dict[str, list[str]]) -> str:
    """Return a document with new tables between their marks."""
    for client, lines in tables.items():
        begin = BEGIN.format(client)
        if begin in text:
            head, _, rest = text.partition(begin)
            text = "\n".join([head + begin, "", *lines, "", END + rest.partition(END)[2]])
    return text


def main() -> None:
    """Print the tables, and write them into a document."""
    tables = {content["client"]: table(content) for content in contents()}
    for client, lines in tables.items():
        print("\n".join([f"\n{client}", *lines]))
    for name in sys.argv[1:]:
        Path(name).write_text(replaced(Path(name).read_text(), tables))


if __name__ == "__main__":
    main()
