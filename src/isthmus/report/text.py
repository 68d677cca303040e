"""Reports as text: the lines that commands print. A report is what they print with ``--json``.

The trade-off between scratch and time has a line per limit, with bars for memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isthmus.errors import counted
from isthmus.prepare.schedule import PlanRow
from isthmus.report.names import shorten

Report = Mapping[str, Any]
Fact = tuple[str, int | None, str]
"""A line: what it is about, its bytes if it has any, and a note."""
FLOATS_SHOWN = 5
"""Number of float steps that are named."""
# The width of the columns of a table before the name.
_FIXED = 4 * 12 + 2
BOUNDED = "left out long regions because there are many steps: more tiles might need less"
"""The message for a tiling search that has reached its bound of work."""


def fact_lines(facts: Iterable[Fact | str]) -> list[str]:
    """Return facts as lines with aligned bytes; a text is a heading between them.

    Examples
    --------
    >>> for line in fact_lines([("scratch", 4096, "proved optimal"), "saved:", ("", 12, "by the order")]):
    ...     print(line)
      scratch           4,096  proved optimal
      saved:
                           12  by the order
    """
    return [f"  {each}" if isinstance(each, str) else _fact_line(*each) for each in facts]


def _fact_line(name: str, nbytes: int | None, note: str) -> str:
    return f"  {name:<10}{'' if nbytes is None else f'{nbytes:,}':>13}  {note}".rstrip()


def heading(report: Report) -> str:
    """Return the line that says which model was prepared, and for what."""
    made_for = ", ".join(filter(None, (report["target"], counted(report["threads"], "thread"))))
    return f"{report['model']} on {report['backend']} ({made_for})"


def tensor_lines(report: Report, indent: str = "  ") -> list[str]:
    """Return a line for each input and output, which the report has by name."""
    ends = [(kind[:-1], *each) for kind in ("inputs", "outputs") for each in report[kind].items()]
    return [f"{indent}{kind:7} {name}: {tensor['dtype']}{tensor['shape']}" for kind, name, tensor in ends]


def memory_line(report: Report, constants: str = "constant_bytes") -> str:
    """Return the sizes of all pools in a line; `constants` is the key of that of constants."""
    sizes = f"scratch {report['scratch_bytes']:,}  state {report['state_bytes']:,}  constants {report[constants]:,}"
    return f"  memory  {sizes}  io {report['io_bytes']:,} bytes"


def limit_line(limit: Report) -> str:
    """Return what a plan takes of a limited memory, and whether it fits."""
    return f"{limit['name']}: {limit['bytes']:,} bytes of {limit['limit']:,}: {limit['note']}"


def operation_lines(operations: Sequence[Report], in_stages: bool = False) -> list[str]:
    """Return the time of each operation, the longest first; a model in stages has none."""
    if not operations:
        why = ", because the model runs in stages" if in_stages else " here"
        return [f"  times of operations are not measured{why}"]
    total = sum(each["us"] for each in operations)
    return [
        f"  time per operation, {total / 1e3:.3f} ms in all",
        *(
            f"    {each['us']:12,.1f} us  {each['us'] / total if total else 0:6.1%}  {each['name']}"
            for each in sorted(operations, key=lambda each: -each["us"])
        ),
    ]


def plan_lines(report: Report, io_inside: bool, columns: int = 80, unicode: bool = True) -> list[str]:
    """Return the lines of a plan: its sizes, what they would be otherwise, what saves memory, and the peak.

    - `io_inside`: whether inputs and outputs are in scratch.
    - `columns`, `unicode`: the width of a line, and whether the terminal shows all characters.
    """
    title = f"{heading(report)}, {counted(report['steps'], 'step')}"
    return [title, *fact_lines(_plan_facts(report, io_inside, columns, unicode))]


def _plan_facts(report: Report, io_inside: bool, columns: int, unicode: bool) -> Iterator[Fact | str]:
    """Yield what a plan's report says, in order."""
    scratch = report["scratch_bytes"]

    def other(nbytes: int, title: str) -> Fact:
        is_other = scratch and nbytes != scratch
        return "", nbytes, f"{title}, {nbytes / scratch:.2f} times as much" if is_other else title

    proofs = {
        "optimal": "proved optimal: no layout of these blocks is smaller",
        "feasible": f"not proved: at least {report['lower_bound']:,} are needed",
    }
    packed = "weights, packed for the kernels" if report["target"] else "weights, as the model stores them"
    yield "scratch", scratch, proofs[report["status"]]
    yield "state", report["state_bytes"], "kept from run to run"
    yield "io", report["io_bytes"], f"inputs and outputs{', inside scratch' * io_inside}"
    yield "constants", report["constant_bytes"], packed
    if "scratch_limit_bytes" in report:
        yield "limit", report["scratch_limit_bytes"], "of scratch (--scratch-limit)"
    yield "instead of scratch:"
    yield other(report["unshared_bytes"], "without sharing")
    yield other(report["greedy_bytes"], "greedy by size")
    yield "", report["lower_bound"], "lower bound"
    yield "saved on the way:"
    yield "", report["order_saved_bytes"], "live bytes at the peak, by the order of operations"
    yield "", report["aliased_bytes"], "bytes by tensors that share memory"
    if report["fp16_bytes"]:
        yield "floats in scratch, each tensor by itself:"
        yield "", report["fp16_bytes"], "bytes of fp16 tensors"
        yield "", report["float_bytes"], "bytes that stay float32: fp16 would be too inexact"
    floats = report["in_float"]
    for step in floats[:FLOATS_SHOWN]:
        name = shorten([step["name"]], max(columns - 70, 16))[0]
        yield "in float", None, f"{step['op']} {name} has no integer kernel for its operands"
    if len(floats) > FLOATS_SHOWN:
        yield "in float", None, f"and {len(floats) - FLOATS_SHOWN} more"
    for region in report["regions"]:
        ends = list(dict.fromkeys((region["steps"][0], region["steps"][-1])))
        tiles, steps = counted(region["tiles"], "tile"), counted(len(region["steps"]), "step")
        names = " to ".join(shorten(ends, max((columns - 60) // 2, 12)))
        yield "tiles", region["carried_bytes"], f"carried between {tiles} of {steps}, {names}"
    short = max(columns - 50, 16)
    for name in report["rematerialized"]:
        yield "remat", None, f"{shorten([name], short)[0]} is computed twice rather than kept"
    if report["search_bounded"]:
        yield "search", None, BOUNDED
    if "embedded" in report:
        embedded = report["embedded"]
        how = f"{embedded['status']}, greedy by size {embedded['greedy_bytes']:,}"
        yield "embedded", embedded["arena_bytes"], f"of arena for {counted(embedded['planned'], 'tensor')} ({how})"
        yield "", None, f"in {embedded['path']}"
    if report["peak"]:
        peak = report["peak"]
        name = shorten([peak["name"]], short)[0] if unicode else ascii(peak["name"])[1:-1]
        yield "peak", peak["live_bytes"], f"live at step {peak['step']}, {peak['op']} {name}"


def tabulate(rows: Sequence[PlanRow], columns: int = 80) -> str:
    """Return a line for each block: offset, bytes, first and last step, name.

    Examples
    --------
    >>> print(tabulate([PlanRow("conv_1", 4096, 0, 2, 0), PlanRow("conv_2", 512, 1, 3, 4096)]))
          offset       bytes  first step   last step  name
               0       4,096           0           2  conv_1
           4,096         512           1           3  conv_2
    """
    names = shorten([row.name for row in rows], max(columns - _FIXED, 16))
    lines = [f"{'offset':>12}{'bytes':>12}{'first step':>12}{'last step':>12}  name"]
    for row, name in zip(rows, names, strict=True):
        lines.append(f"{row.offset:>12,}{row.bytes:>12,}{row.first:>12}{row.last:>12}  {name}")
    return "\n".join(lines)


@dataclass(frozen=True)
class Point:
    """The result of one limit.

    - `limit`: the limit as a user writes it; empty for none.
    - `scratch_bytes`: the scratch of the plan with this limit.
    - `times`: the time of a run relative to a run without a limit.
    - `regions`: number of fused regions.
    - `noise`: how far `times` varies from one round of measurement to another: half of the rounds are within it. None
      if one round was measured.
    - `beside_bytes`: bytes of what a budget counts besides scratch.
    - `problem`: why the result does not fit memory of the device; empty if it fits.
    """

    limit: str
    scratch_bytes: int
    times: float
    regions: int
    noise: float | None = None
    beside_bytes: int = 0
    problem: str = ""

    @property
    def is_noise(self) -> bool:
        """Whether its time differs from that without a limit by no more than rounds of measurement differ."""
        return self.noise is not None and abs(self.times - 1) <= self.noise


def choose(points: Sequence[Point], slower: float, room: int | None) -> Point | None:
    """Choose a point: the one with the most scratch that fits into `room` bytes, since it is the fastest.

    Without `room`, it is the least scratch whose time is at most `slower` (0.05 for 5 %) above that without a limit.
    The first point is the one without a limit. None is returned if no point fits, or all have problems.

    Examples
    --------
    >>> points = [Point("", 100, 1.0, 0), Point("50%", 50, 1.01, 1), Point("20%", 20, 1.2, 2)]
    >>> choose(points, 0.05, None).limit, choose(points, 0.05, 30).limit, choose(points, 0.05, 10)
    ('50%', '20%', None)
    """
    possible = [point for point in points if not point.problem]
    if room is not None:
        fitting = [point for point in possible if point.scratch_bytes <= room]
        return max(fitting, key=lambda point: point.scratch_bytes, default=None)
    cheap = [point for point in possible if point.times <= 1 + slower] or possible[:1]
    return min(cheap, key=lambda point: point.scratch_bytes, default=None)


def too_little(room: int, beside: str = "state, inputs, outputs") -> str:
    """Explain why nothing fits a budget that leaves `room` bytes; `beside` is what it counts besides scratch.

    Examples
    --------
    >>> too_little(1)
    'the budget leaves 1 byte for scratch'
    """
    if room < 0:
        return f"what is beside scratch ({beside}) takes {-room:,} bytes more than the budget"
    return f"the budget leaves {counted(room, 'byte')} for scratch"


def draw_tradeoff(points: Sequence[Point], chosen: Point | None, columns: int = 80, unicode: bool = True) -> str:
    """Draw the points as a table with bars; mark the chosen one.

    Examples
    --------
    >>> points = [Point("", 1000, 1.0, 0, 0.0), Point("50%", 480, 1.013, 1, 0.004)]
    >>> print(draw_tradeoff(points, points[1], columns=60, unicode=False))
        limit      scratch   left   times   noise
         none        1,000   100%   1.000          #############
    >     50%          480    48%   1.013  +-.004  ######
    """
    most = max((point.scratch_bytes for point in points), default=0)
    # The bar takes what the columns before it leave.
    width = max(columns - 47, 8)
    bar, either = ("█", " ±") if unicode else ("#", "+-")
    lines = [f"{'limit':>9}{'scratch':>13}{'left':>7}{'times':>8}{'noise':>8}"]
    for point in points:
        share = point.scratch_bytes / most if most else 1.0
        mark = ">" if point is chosen else " "
        filled = bar * max(1, round(share * width))
        # It is below 1; leaving out the zero makes room for digits.
        noise = f"{either}{min(point.noise, 0.999):.3f}".replace("0.", ".", 1) if point.noise else ""
        figures = f"{point.scratch_bytes:>13,}{share:>7.0%}{point.times:>8.3f}{noise:>8}"
        lines.append(f"{mark}{point.limit or 'none':>8}{figures}  {filled}")
    return "\n".join(lines)
