"""A plugin of pytest: of the tests that are collected, run those of a list, in its order, or all but those of a list.

It also writes down which test failed first.

A list of node ids for the command line may be longer than a command line, and one that is there no more would be an
error; a test that a file of the list no longer has is passed over.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    parser.addoption("--listed", type=Path, help="file with node ids, one a line: only these, in this order")
    parser.addoption("--unlisted", type=Path, help="file with node ids, one a line: all but these")
    parser.addoption("--failed", type=Path, help="file to write the node id of the first test into that failed")


def pytest_configure(config: pytest.Config) -> None:
    """Watch for failures, where that is asked for."""
    if failed := config.getoption("--failed"):
        config.pluginmanager.register(_Failure(failed))


class _Failure:
    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not (self._file.exists() and self._file.read_text()):
            self._file.write_text(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose, and put into order."""
    if listed := config.getoption("--listed"):
        place = {test: number for number, test in enumerate(listed.read_text().splitlines())}
        _keep(config, items, sorted((i for i in items if i.nodeid in place), key=lambda item: place[item.nodeid]))
    if unlisted := config.getoption("--unlisted"):
        without = set(unlisted.read_text().splitlines())
        _keep(config, items, [item for item in items if item.nodeid not in without])


def _keep(config: pytest.Config, items: list[pytest.Item], kept: list[pytest.Item]) -> None:
    chosen = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = kept
