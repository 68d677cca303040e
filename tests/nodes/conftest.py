"""Sums up the ONNX node tests at the end of a run: passed, failed, and out of scope with the reason."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

MODULE = "test_onnx_nodes.py::test_node["
SHOWN = 40  # failures named in the summary


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found = _reports(terminalreporter)
    if not found["passed"] and not found["failed"] and not found["xfailed"]:
        return
    import node_cases

    counted = {case.name for case in node_cases.cases() if case.listed and case.excluded is None}
    write = terminalreporter.write_line
    terminalreporter.section("ONNX node tests")
    passed, beyond = counted & found["passed"].keys(), found["passed"].keys() - counted
    missed = (found["failed"].keys() | found["xfailed"].keys()) & counted
    share = 100 * len(passed) / max(1, len(passed) + len(missed))
    write(f"passed: {len(passed)} of {len(passed) + len(missed)} in scope ({share:.1f} %)")
    write(f"passed beyond the list of operations: {len(beyond)}")
    for kind, title in (("failed", "failed"), ("xfailed", "known to fail")):
        names = sorted(found[kind])
        write(f"{title}: {len(names)}")
        for name in names[:SHOWN]:
            write(f"    {name}: {found[kind][name]}")
        if len(names) > SHOWN:
            write(f"    and {len(names) - SHOWN} more")
    reasons = Counter(found["skipped"].values())
    write(f"out of scope: {reasons.total()}")
    for reason, count in reasons.most_common():
        write(f"    {count:4} {reason}")
        if terminalreporter.verbosity > 0:
            for name in sorted(n for n, why in found["skipped"].items() if why == reason):
                write(f"         {name}")


def _reports(terminalreporter: pytest.TerminalReporter) -> dict[str, dict[str, str]]:
    """Reason by name of case, for each kind of end."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for kind in ("passed", "failed", "xfailed", "skipped"):
        for report in terminalreporter.stats.get(kind, ()):
            node = getattr(report, "nodeid", "")
            # A passed test also leaves reports of its set-up and tear-down.
            if MODULE not in node or (kind == "passed" and report.when != "call"):
                continue
            name = node.partition(MODULE)[2].rstrip("]")
            found[kind][name] = _reason(report)
    return found


def _reason(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail).removeprefix("reason: ")
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ").removeprefix("out of scope: ")
    return str(report.longrepr).splitlines()[0] if report.longrepr else ""
