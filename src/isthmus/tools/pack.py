"""``isthmus pack``: solve a memory packing problem exactly: assign offsets to buffers with known lifetimes."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from isthmus.errors import counted, one_line
from isthmus.planning.conflicts import MAX_CONFLICTS, count_conflicts
from isthmus.planning.greedy import greedy_by_size
from isthmus.planning.problem import PlannerBuffer, PlanningError, Problem, Solution, Status
from isthmus.planning.solver import solve
from isthmus.planning.table import csv_text, read_csv
from isthmus.planning.validate import check
from isthmus.system.progress import stages
from isthmus.system.reading import nearest_file
from isthmus.tools.files import file_name, write_whole
from isthmus.tools.options import add_shared, size
from isthmus.tools.report_options import check_report_options

# What a status says about the layout, for the report.
MEANING = {
    Status.OPTIMAL: "no layout is smaller",
    Status.FEASIBLE: "it fits; a smaller layout may exist",
    Status.INFEASIBLE: "no layout fits",
    Status.UNKNOWN: "neither a layout nor a proof that none exists",
}

# The first and the last stage of the command, for its progress; between them it searches.
_READING, _CHECKING = "read the problem", "check the layout"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    parser.add_argument(
        "problem",
        type=file_name,
        metavar="PROBLEM.csv",
        help="one buffer a row: id, lower, upper, size, and where needed alignment, gaps, offset",
    )
    what = "what to fit into; the smallest layout if not given"
    parser.add_argument("--capacity", type=size, metavar="SIZE", help=what)
    what = "alignment of buffers for which the file gives none"
    parser.add_argument("--align", type=size, metavar="SIZE", help=what)
    parser.add_argument(
        "--timeout", type=float, default=10.0, metavar="SECONDS", help="how long all of it may take (default 10)"
    )
    parser.add_argument("--out", type=file_name, metavar="SOLUTION.csv", help="write the problem with its offsets here")
    add_shared(parser, "json")


def main(options: argparse.Namespace) -> int:
    """Run the command; return 0 with a layout, 1 without one, 2 for bad input."""
    began = time.perf_counter()
    check_report_options(options, options.problem)
    try:
        if not options.timeout >= 0:
            raise PlanningError(f"--timeout {options.timeout} is not a number of seconds from 0 on")
        searching = f"search for at most {options.timeout:g} s"
        with stages((_READING, searching, _CHECKING)) as begin:
            begin(_READING)
            problem = _problem(options)
            begin(searching)
            # Checking and writing a layout take about as long as reading the problem did.
            seconds_left = max(0.0, options.timeout - 2 * (time.perf_counter() - began))
            solution = solve(problem, timeout=seconds_left, whole=True)
            begin(_CHECKING)
            if solution.offsets is not None:
                # No layout is reported without an independent check.
                check(problem, solution.offsets)
        if solution.offsets is not None and options.out:
            write_whole(options.out, f"solution '{options.out}'", csv_text(problem, solution.offsets).encode())
    except PlanningError as error:
        return _refuse(str(error))
    except OSError as error:
        hint = nearest_file(options.problem)
        return _refuse(f"{error.filename}: {error.strerror}{f'. {hint}' if hint else ''}")
    if solution.greedy is None and solution.stopped_by == "proof" and count_conflicts(problem) <= MAX_CONFLICTS:
        # The planner saw that the capacity is too small without placing anything.
        solution = replace(solution, greedy=_peak(problem, greedy_by_size(problem)))
    print(json.dumps(_facts(problem, solution)) if options.json else _report(problem, solution))
    if solution.nodes == 0 and solution.status is Status.INFEASIBLE:
        needed = solution.lower_bound
        _refuse(f"{options.problem}: capacity {problem.capacity} is below the {counted(needed, 'byte')} live at once")
    return 0 if solution.offsets is not None else 1


def _problem(options: argparse.Namespace) -> Problem:
    """Read the problem, with the alignment and the capacity of the options."""
    if options.align is not None:
        try:
            # A buffer refuses an invalid alignment.
            PlannerBuffer("", 0, 1, 0, options.align)
        except PlanningError:
            raise PlanningError(f"--align {options.align} is not an alignment") from None
    problem = read_csv(options.problem, alignment=options.align)
    return problem if options.capacity is None else replace(problem, capacity=options.capacity)


def _refuse(message: str) -> int:
    """Print an error and return the exit status for bad input."""
    print(one_line(f"isthmus pack: {message}"), file=sys.stderr)
    return 2


def _facts(problem: Problem, solution: Solution) -> dict[str, object]:
    """Return the result as plain data."""
    return {
        "status": solution.status.value,
        "peak": solution.peak,
        "lower_bound": solution.lower_bound,
        "seconds": solution.seconds,
        "nodes": solution.nodes,
        "stopped_by": solution.stopped_by,
        "loading_seconds": solution.loading,
        "buffers": len(problem),
        "capacity": problem.capacity,
        "greedy_by_size": solution.greedy,
    }


def _report(problem: Problem, solution: Solution) -> str:
    """Return the result as text."""
    facts = [
        ("status", f"{solution.status} ({MEANING[solution.status]})"),
        ("buffers", f"{len(problem):,}"),
        ("peak", "none" if solution.peak is None else counted(solution.peak, "byte")),
        ("lower bound", counted(solution.lower_bound, "byte")),
        ("greedy by size", "not tried" if solution.greedy is None else counted(solution.greedy, "byte")),
    ]
    if problem.capacity is not None:
        facts.insert(2, ("capacity", counted(problem.capacity, "byte")))
    ended = "the number of buffers that are live together" if solution.stopped_by == "size" else solution.stopped_by
    searched = f"{solution.seconds:.3f} s, {counted(solution.nodes, 'node')}, ended by {ended}"
    if solution.loading >= 0.01:
        searched += f" (and {solution.loading:.1f} s to load the compiled search)"
    facts.append(("search", searched))
    return "\n".join(f"{name:<16}{value}" for name, value in facts)


def _peak(problem: Problem, offsets: Sequence[int]) -> int:
    """Return the bytes that a layout takes."""
    return max((o + b.size for o, b in zip(offsets, problem.buffers, strict=True)), default=0)
