"""``isthmus fit``: how far the scratch of a model can be reduced, what that costs, and which limit to choose.

With ``--judge htp``, Qualcomm's own compiler is the judge: the model is split into tiles at several limits, and each
variant is compiled for a chip. Only a variant that needs less there is advised, and ``--out`` writes it.

Otherwise the model is prepared with one limit after the other. All variants are run alternately, so that times can be
compared. Without a budget the least scratch within ``--slower`` is advised; with one, the mildest limit that fits it.
All variants give bit-identical results.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from isthmus.backends.vendor.judge import JUDGE
from isthmus.errors import Code, QnnError, counted
from isthmus.graph.random_arrays import random_array
from isthmus.prepare.tiling import SLOWER, ScratchLimit
from isthmus.report.page.tradeoffs import tradeoff_sections
from isthmus.report.tradeoff import BOUNDED, Point, choose, draw_tradeoff, too_little
from isthmus.session import Session
from isthmus.system.progress import progress
from isthmus.tools import fit_judged
from isthmus.tools.device import add_target_arguments
from isthmus.tools.files import file_name
from isthmus.tools.messages import print_line
from isthmus.tools.model_options import ModelRequest, add_model_options, requested
from isthmus.tools.report_options import add_html_argument, check_report_options, describe_plan, write_page

LIMITS = ("75%", "50%", "35%", "25%", "20%", "16%", "13%", "10%")
"""The limits to try, from the mildest."""
ROUND_SECONDS = 0.02
"""How long each variant runs in a round of measurement."""
MAX_COLUMNS = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    add_model_options(parser)
    # A limit is the most scratch to advise: by default any, within what --slower permits.
    parser.set_defaults(scratch_limit="least")
    parser.add_argument("--budget", metavar="BYTES", help="memory for scratch, state, inputs and outputs together")
    parser.add_argument("--rounds", type=int, default=9, metavar="N", help="rounds of measurement (default 9)")
    add_html_argument(parser, compare="")
    judged = parser.add_argument_group("with a judge")
    judged.add_argument("--judge", choices=(JUDGE,), help="advise only what Qualcomm's compiler confirms for a chip")
    judged.add_argument("--out", type=file_name, metavar="FILE", help="write the variant that is advised")
    judged.add_argument("--jobs", type=int, default=0, metavar="N", help="processes at a time (default: processors)")
    add_target_arguments(judged)


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    check_report_options(options, options.model, options.config)
    if options.judge is not None:
        return fit_judged.main(options)
    if options.rounds < 1:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--rounds {options.rounds}", "must be at least 1")
    budget = _budget(options)
    request = requested(options)
    if request.binary is not None:
        rule, hint = "it is a context binary: its plan is fixed", "Fit the model that it was made from."
        raise QnnError(Code.COMMON_NOT_SUPPORTED, f"'{options.model}'", rule, hint)
    most = request.limit or ScratchLimit()
    slower = SLOWER if most.slower is None else most.slower
    request = replace(request, limit=None)
    with ExitStack() as stack:
        sessions = [stack.enter_context(_session(request, None))]
        room = _room(sessions[0], budget, most)
        # The limit of each session; those with equal scratch are the same plan and are measured once.
        limits = [""]
        refusal, bounded = "", False
        wanted = (*LIMITS, "least", *([] if room is None else [str(max(room, 0))]))
        with progress("limits", len(wanted)) as state:
            for index, limit in enumerate(wanted):
                state.reach(index, limit)
                if refusal and limit in LIMITS:
                    # Smaller limits would be refused too.
                    continue
                try:
                    tried = ScratchLimit.of(limit, slower if limit == "least" else None)
                    session = stack.enter_context(_session(request, tried))
                except QnnError as problem:
                    if problem.code is not Code.COMMON_MEM_ALLOC:
                        raise
                    refusal = problem.rule
                    continue
                bounded |= session.plan is not None and session.plan.bounded
                if all(session.info.memory.scratch_bytes != other.info.memory.scratch_bytes for other in sessions):
                    sessions.append(session)
                    limits.append(limit)
        points = _points(limits, sessions, options.rounds)
        plans = {session.info.memory.scratch_bytes: (session.plan, session.info) for session in sessions}
    chosen = choose(points, slower, room)
    report = _described(request, points, chosen, room, refusal) | {"search_bounded": bounded}
    if options.html is not None:
        shown = [plans[point.scratch_bytes] for point in dict.fromkeys((points[0], chosen or points[-1]))]
        described = [describe_plan(plan, info) for plan, info in shown if plan is not None]
        reports = [{"model": report["model"], "backend": report["backend"], **each} for each in described]
        title = f"{options.model.name}: scratch against time"
        text = f"{report['backend']} · {counted(report['threads'], 'thread')}"
        write_page(options.html, title, tradeoff_sections(report, reports), text, reports)
    if options.json:
        print(json.dumps(report))
    else:
        _print(report, points, chosen)
    return 0 if chosen is not None else 1


def _budget(options: argparse.Namespace) -> int | None:
    """Return the bytes that the options allow for scratch, state, inputs and outputs; None for no budget."""
    if options.budget is None:
        return None
    try:
        budget = ScratchLimit.of(options.budget).bytes
    except QnnError:
        budget = None
    if budget is None:
        rule = "must be a number of bytes, such as 1200000, 300KiB or 2MiB"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--budget {options.budget}", rule)
    return budget


def _beside_scratch(session: Session) -> int:
    """Return the bytes of state, inputs and outputs that are not in scratch."""
    io_inside = session.plan is not None and session.plan.io_inside
    return session.info.memory.state_bytes + (0 if io_inside else session.info.io_bytes)


def _room(whole: Session, budget: int | None, limit: ScratchLimit) -> int | None:
    """Return the most scratch that may be advised: what a budget leaves for it, and not above a limit."""
    left = None if budget is None else budget - _beside_scratch(whole)
    most = limit.bytes_of(whole.info.memory.scratch_bytes)
    return min((room for room in (left, most) if room is not None), default=None)


def _session(request: ModelRequest, limit: ScratchLimit | None) -> Session:
    """Prepare the model with a limit of scratch, and fill its inputs with random values."""
    session = request.session(limit=limit)
    generator = np.random.default_rng(0)
    for view in session.inputs.values():
        view[...] = random_array(generator, view.dtype, view.shape)
    return session


def _points(limits: Sequence[str], sessions: Sequence[Session], rounds: int) -> list[Point]:
    """Measure all points, and return them with the largest scratch first.

    Times are medians of each round's ratio to the run without a limit, which is the first session's.
    """
    # For each session the seconds of a run, by round.
    seconds: list[list[float]] = [[] for _ in sessions]
    for session in sessions:
        session.engine_run()
    with progress("rounds of measurement", rounds) as state:
        for number in range(rounds):
            # Each round begins with another session, so that none always runs first.
            for which in [(number + k) % len(sessions) for k in range(len(sessions))]:
                run, count, begin = sessions[which].engine_run, 0, time.perf_counter()
                while count < 2 or time.perf_counter() - begin < ROUND_SECONDS:
                    run()
                    count += 1
                seconds[which].append((time.perf_counter() - begin) / count)
            state.step()
    points = []
    for limit, session, times in zip(limits, sessions, seconds, strict=True):
        ratio = statistics.median(limited / unlimited for limited, unlimited in zip(times, seconds[0], strict=True))
        regions = len(session.plan.regions) if session.plan is not None else 0
        points.append(Point(limit, session.info.memory.scratch_bytes, ratio, regions))
    return sorted(points, key=lambda point: -point.scratch_bytes)


def _described(
    request: ModelRequest, points: Sequence[Point], chosen: Point | None, room: int | None, refusal: str
) -> dict[str, Any]:
    """Return the result as plain data; `refusal` is why smaller limits are not possible."""
    return {
        "model": str(request.source.path),
        "backend": request.entry.name,
        "threads": request.threads,
        "room_bytes": room,
        "points": [vars(point) for point in points],
        "advised": None if chosen is None else chosen.limit or "none",
        "held_up": refusal,
    }


def _print(report: dict[str, Any], points: Sequence[Point], chosen: Point | None) -> None:
    """Print the result as text."""
    columns = min(shutil.get_terminal_size((80, 24)).columns, MAX_COLUMNS)
    unicode = "utf" in (sys.stdout.encoding or "").lower()
    print_line(f"{report['model']} on {report['backend']}, {counted(report['threads'], 'thread')}")
    print(draw_tradeoff(points, chosen, columns, unicode))
    if report["held_up"]:
        print_line(f"below that: {report['held_up']}")
    if report["search_bounded"]:
        print(f"the search {BOUNDED}")
    if chosen is None:
        print(f"nothing fits: {too_little(report['room_bytes'])}")
    elif not chosen.limit:
        print("advised: no limit")
    else:
        size = counted(chosen.scratch_bytes, "byte")
        print(f"advised: --scratch-limit {chosen.limit} ({size}, {chosen.times:.3f} times)")
