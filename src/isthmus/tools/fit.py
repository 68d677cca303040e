"""``isthmus fit``: how far the scratch of a model can be reduced, what that costs, and which limit to choose.

With ``--judge htp``, Qualcomm's own compiler is the judge: the model is split into tiles at several limits, and each
variant is compiled for a chip. Only a variant that needs less there is advised, and ``--out`` writes it.

Otherwise the model is prepared with one limit after the other. All variants are run alternately, so that times can be
compared; noise is how far rounds of measurement differ. Without a budget the least scratch within ``--slower`` is
advised; with one, the mildest limit that fits it. All variants give bit-identical results.

With ``--tcm``, only what also fits TCM is advised. The exit status is 1 if nothing fits.

With ``--contexts`` or ``--context`` it says whether contexts fit into a chip's process domains together, and in what
order they must be loaded; if they do not fit, why, and what would help. ``--soc`` names a chip, or a file with a
profile.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from isthmus.backends.vendor.judge import JUDGE
from isthmus.errors import Code, QnnError, counted, invalid_argument
from isthmus.frontends import NeedsStages
from isthmus.graph import Graph
from isthmus.graph.random_arrays import random_array
from isthmus.prepare.tiling import SLOWER, ScratchLimit
from isthmus.report.page.tradeoffs import tradeoff_sections
from isthmus.report.text import BOUNDED, Point, choose, draw_tradeoff, limit_line, too_little
from isthmus.session import Session
from isthmus.system.progress import progress
from isthmus.tools import fit_contexts, fit_judged
from isthmus.tools.device import add_target_arguments
from isthmus.tools.files import file_name
from isthmus.tools.messages import print_report
from isthmus.tools.model_options import ModelRequest, add_model_options, open_shapes, refuses_shapes, request_of
from isthmus.tools.options import add_shared, size
from isthmus.tools.plan import EACH_ALONE, graphs_of_stages, plan_graphs
from isthmus.tools.report_options import add_html_argument, check_report_options, describe_plan, limits_of, write_page

LIMITS = ("75%", "50%", "35%", "25%", "20%", "16%", "13%", "10%")
"""The limits to try, from the mildest."""
ROUND_SECONDS = 0.02
"""How long each variant runs in a round of measurement."""
MAX_COLUMNS = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    add_model_options(parser, optional=True)
    add_shared(parser, "tcm")
    # A limit is the most scratch to advise: by default any, within what --slower permits.
    parser.set_defaults(scratch_limit="least")
    what = "memory for scratch, state, inputs and outputs together; with --tcm, or in TCM, also for the model binary"
    parser.add_argument("--budget", type=size, metavar="SIZE", help=what)
    parser.add_argument("--rounds", type=int, default=9, metavar="N", help="rounds of measurement (default 9)")
    add_html_argument(parser, compare="")
    judged = parser.add_argument_group("with a judge")
    judged.add_argument("--judge", choices=(JUDGE,), help="advise only what Qualcomm's compiler confirms for a chip")
    judged.add_argument("--out", type=file_name, metavar="FILE", help="write the variant that is advised")
    add_target_arguments(judged)
    fit_contexts.add_arguments(parser.add_argument_group("contexts on a chip (--soc)"))


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    check_report_options(options, options.model, options.config, *options.contexts)
    if fit_contexts.is_asked(options):
        return fit_contexts.main(options)
    if options.model is None:
        raise invalid_argument("isthmus fit", "names no model", "--contexts FILE asks whether contexts fit together.")
    if refuses_shapes(options, options.model):
        return 1
    if options.judge is not None:
        _refuse_with_judge(options)
        return fit_judged.main(options)
    if options.rounds < 1:
        raise invalid_argument(f"--rounds {options.rounds}", "must be at least 1")
    request = request_of(options)
    if request.binary is not None:
        rule, hint = "it is a context binary: its plan is fixed", "Fit the model that it was made from."
        raise QnnError(Code.COMMON_NOT_SUPPORTED, f"'{options.model}'", rule, hint)
    # The user's limit is the most scratch to advise; variants that are tried have limits of their own.
    most = request.limit or ScratchLimit()
    slower = SLOWER if most.slower is None else most.slower
    request = replace(request, limit=None)
    with ExitStack() as stack:
        sessions = [stack.enter_context(_session(request, None))]
        fitting = MemoryJudge(request, sessions[0], options.budget)
        # The most bytes of scratch that may be advised; None: any.
        room = fitting.room(most)
        # The limit of each session; those with equal scratch are the same plan and are measured once.
        limits = [""]
        refusal, bounded = "", False
        limits_to_try = (*LIMITS, "least", *([] if room is None else [str(max(room, 0))]))
        with progress("limits", len(limits_to_try)) as state:
            for index, limit in enumerate(limits_to_try):
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
        points = [fitting.judge(point, slower) for point in _points(limits, sessions, options.rounds)]
        plans = {session.info.memory.scratch_bytes: (session.plan, session.info) for session in sessions}
    chosen = choose(points, slower, room)
    report = _describe(request, points, chosen, room, refusal)
    report |= {"search_bounded": bounded, "open_shapes": open_shapes(options, options.model)}
    report |= {"budget_bytes": options.budget, "beside_scratch": fitting.beside}
    report |= {
        "limits": fitting.limits_of(chosen or points[0]),
        "problem": "" if chosen else fitting.problem(points, room),
    }
    if options.html is not None:
        shown = [plans[point.scratch_bytes] for point in dict.fromkeys((points[0], chosen or points[-1]))]
        described = [describe_plan(plan, info) for plan, info in shown if plan is not None]
        reports = [{"model": report["model"], "backend": report["backend"], **each} for each in described]
        title = f"{options.model.name}: scratch against time"
        text = f"{report['backend']} · {counted(report['threads'], 'thread')}"
        write_page(options.html, title, tradeoff_sections(report, reports), text, reports)
    print_report(options, report, _lines(report, points, chosen))
    return 0 if chosen is not None else 1


def _refuse_with_judge(options: argparse.Namespace) -> None:
    """Refuse ``--budget`` and ``--tcm``, by which Qualcomm's compiler does not judge."""
    for name in ("budget", "tcm"):
        if getattr(options, name) is not None:
            rule, hint = "a judge decides by spill-fill and total RAM of the chip", "--vtcm is its memory on the chip."
            raise invalid_argument(f"--{name} {getattr(options, name)}", rule, hint)


class MemoryJudge:
    """Judges variants of a model by a budget, and by the device memory (TCM) whose size the configuration states.

    - `whole`: the model without a limit.
    - `budget`: the bytes for scratch, state, inputs and outputs, and for the model binary if it is in TCM.
    """

    def __init__(self, request: ModelRequest, whole: Session, budget: int | None) -> None:
        self._request, self._whole, self._budget = request, whole, budget
        # Only backends with such memory are asked, since each answer takes another planning.
        self._graphs = _graphs(request) if request.entry.memory_sizes else []
        self._limits: dict[str, list[dict[str, Any]]] = {"": self._stated_limits(None)}
        if not self._limits[""]:
            self._graphs = []
        io_inside = whole.plan is not None and whole.plan.io_inside
        # State, inputs and outputs that are not in scratch.
        self._beside = whole.info.memory.state_bytes + (0 if io_inside else whole.info.io_bytes)

    def room(self, limit: ScratchLimit) -> int | None:
        """Return the most scratch that may be advised: what the budget leaves for it, and not above a limit."""
        left = None if self._budget is None else self._budget - self._beside - self._binary_bytes("")
        most = limit.bytes_of(self._whole.info.memory.scratch_bytes)
        return min((room for room in (left, most) if room is not None), default=None)

    def judge(self, point: Point, slower: float) -> Point:
        """Return a variant with what it takes besides scratch, and why it does not fit."""
        if point.limit and self._graphs:
            limit = ScratchLimit.of(point.limit, slower if point.limit == "least" else None)
            self._limits[point.limit] = self._stated_limits(limit)
        beside = self._beside + self._binary_bytes(point.limit)
        problems = [f"{each['name']}: {each['note']}" for each in self.limits_of(point) if not each["fits"]]
        if self._budget is not None and point.scratch_bytes + beside > self._budget:
            problems.append(f"{counted(point.scratch_bytes + beside - self._budget, 'byte')} more than the budget")
        return replace(point, beside_bytes=beside, problem="; ".join(problems))

    def limits_of(self, point: Point) -> list[dict[str, Any]]:
        """Return what a variant needs of the stated device memory, with whether it fits."""
        return self._limits.get(point.limit, [])

    def problem(self, points: Sequence[Point], room: int | None) -> str:
        """Return why no variant fits; `room` is the most scratch that may be advised."""
        if room is not None and all(point.scratch_bytes > room for point in points):
            return too_little(room, self.beside)
        return points[0].problem

    @property
    def beside(self) -> str:
        """What a budget counts besides scratch, in words."""
        return ", ".join(["state", "inputs", "outputs", *["model binary"] * bool(self._limits[""])])

    def _stated_limits(self, limit: ScratchLimit | None) -> list[dict[str, Any]]:
        """Return what the stages need of the stated device memory if scratch is limited, with whether it fits."""
        plans = plan_graphs(self._graphs, replace(self._request, limit=limit))
        return [
            {**each, "name": f"stage {number}: {each['name']}" if len(plans) > 1 else each["name"]}
            for number, plan in enumerate(plans, 1)
            for each in limits_of(plan)
            if each["stated"] and each["applies"]
        ]

    def _binary_bytes(self, limit: str) -> int:
        """Return the bytes of the model binary in the device memory, at a limit on scratch."""
        return sum(each["binary_bytes"] for each in self._limits.get(limit, []))


def _graphs(request: ModelRequest) -> list[Graph]:
    """Return the graph of a model, or the graphs of its stages."""
    try:
        return [request.load()]
    except NeedsStages:
        return graphs_of_stages(request)


def _session(request: ModelRequest, limit: ScratchLimit | None) -> Session:
    """Prepare the model with a limit of scratch, and fill its inputs with random values."""
    session = request.session(limit=limit)
    generator = np.random.default_rng(0)
    for view in session.inputs.values():
        view[...] = random_array(generator, view.dtype, view.shape)
    return session


def _points(limits: Sequence[str], sessions: Sequence[Session], rounds: int) -> list[Point]:
    """Measure the median ratio of each round's time to that of the first session; return the largest scratch first."""
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
        ratios = [limited / unlimited for limited, unlimited in zip(times, seconds[0], strict=True)]
        regions = len(session.plan.regions) if session.plan is not None else 0
        ratio = statistics.median(ratios)
        points.append(Point(limit, session.info.memory.scratch_bytes, ratio, regions, _noise(ratios)))
    return sorted(points, key=lambda point: -point.scratch_bytes)


def _noise(ratios: Sequence[float]) -> float | None:
    """Return how far the ratios of half of all rounds are from their median; None for one round.

    Examples
    --------
    >>> round(_noise([1.0, 1.01, 1.02, 1.03, 1.5]), 3), _noise([1.0])
    (0.01, None)
    """
    middle = statistics.median(ratios)
    return statistics.median(abs(ratio - middle) for ratio in ratios) if len(ratios) > 1 else None


def _describe(
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


def _lines(report: dict[str, Any], points: Sequence[Point], chosen: Point | None) -> Iterator[str]:
    """Yield the result as text."""
    columns = min(shutil.get_terminal_size((80, 24)).columns, MAX_COLUMNS)
    unicode = "utf" in (sys.stdout.encoding or "").lower()
    yield f"{report['model']} on {report['backend']}, {counted(report['threads'], 'thread')}"
    yield from draw_tradeoff(points, chosen, columns, unicode).splitlines()
    if report["held_up"]:
        yield f"below that: {report['held_up']}"
    if report["search_bounded"]:
        yield f"the search {BOUNDED}"
    yield from map(limit_line, report["limits"])
    if len(report["limits"]) > 1:
        yield EACH_ALONE
    if report["budget_bytes"] is not None:
        beside = report["beside_scratch"]
        yield f"budget: {report['budget_bytes']:,} bytes for scratch and what is beside it ({beside})"
    if chosen is None:
        yield f"nothing fits: {report['problem']}"
    elif not chosen.limit:
        yield "advised: no limit"
    else:
        size = counted(chosen.scratch_bytes, "byte")
        yield f"advised: --scratch-limit {chosen.limit} ({size}, {chosen.times:.3f} times)"
    if len(points) > 1:
        yield _about_noise(points, chosen)


def _about_noise(points: Sequence[Point], chosen: Point | None) -> str:
    """Return which differences in time mean nothing."""
    limited = [point for point in points if point.limit]
    if any(point.noise is None for point in limited):
        return "noise: one round of measurement cannot tell it; --rounds 9 does"
    if all(point.is_noise for point in limited):
        return "noise: all differences in time are within it, so no limit is known to be slower or faster than none"
    if chosen is not None and chosen.limit and chosen.is_noise:
        return "noise: the difference in time of the advised limit is within it"
    within = [point.limit for point in limited if point.is_noise]
    if not within:
        return "noise: no difference in time is within it"
    return f"noise: within it are the differences in time of {', '.join(within)}"
