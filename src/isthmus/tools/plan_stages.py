"""The plan of a model that runs in stages because shapes in it are known only at run time: each at its greatest."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from isthmus.backends.seam.entry import PlanReport
from isthmus.errors import Code, QnnError, counted
from isthmus.frontends import SELECTING, staged_model
from isthmus.graph import Graph, TensorInfo
from isthmus.prepare.tiling import ScratchLimit
from isthmus.report.text import fact_lines, heading, limit_line, tabulate, tensor_lines
from isthmus.tools.messages import print_line, print_lines
from isthmus.tools.model_options import ModelRequest
from isthmus.tools.report_options import limits_of
from isthmus.tools.shapes import open_shapes

if TYPE_CHECKING:
    from isthmus.frontends.onnx.staged import StagedModel

EACH_ALONE = "each stage is judged alone; in a run, the graphs of all stages take such memory together"
"""What a verdict on a memory of limited size leaves out."""


def print_stages(options: argparse.Namespace, request: ModelRequest, columns: int) -> int:
    """Plan all stages of a model and print them; return the exit status."""
    for name in ("html", "svg", "embed", "compare"):
        if getattr(options, name) is not None:
            rule = "the model runs in stages, and a picture shows one graph"
            raise QnnError(Code.COMMON_NOT_SUPPORTED, f"--{name} of '{options.model}'", rule)
    report, plans = planned_stages(options, request)
    report["open_shapes"] = open_shapes(options, options.model)
    status = 0 if all(each.section is None or each.section.fits for each in plans) else 1
    if options.json:
        print(json.dumps(report))
        return status
    print_line(f"{heading(report)}, {counted(len(plans), 'stage')}; shapes are the greatest")
    for number, (stage, plan) in enumerate(zip(report["stages"], plans, strict=True), 1):
        steps = counted(stage["steps"], "step")
        print_line(f"  stage {number}   {stage['scratch_bytes']:>13,}  bytes of scratch, {steps}")
        print_lines(tensor_lines(stage, "    "))
        for name in stage["waits_for"]:
            print_line(f"    then    {name} is read, and decides the shapes behind it")
        for limit in limits_of(plan):
            print_line(f"    {limit_line(limit)}")
            for remedy in limit["remedies"]:
                print_line(f"      {remedy}")
        if options.table and plan.plan.rows:
            print(f"\n{tabulate(plan.plan.rows, columns)}\n")
    facts = (
        ("scratch", report["scratch_bytes"], "the most of any stage; all stages use it"),
        ("between", report["between_bytes"], "values between stages"),
        ("io", report["io_bytes"], "inputs and outputs"),
        ("constants", report["constant_bytes"], "weights of all stages, once for each combination of shapes in use"),
    )
    print("\n".join(fact_lines(facts)))
    if any(map(limits_of, plans)):
        print(f"  {EACH_ALONE}")
    return status


def planned_stages(options: argparse.Namespace, request: ModelRequest) -> tuple[dict[str, Any], list[PlanReport]]:
    """Plan all stages of a model at their greatest shapes; return the description as plain data, and the plans."""
    began = time.perf_counter()
    model = _model_in_stages(request)
    found = list(model.greatest())
    plans = plan_graphs([stage.graph for stage in found if stage.graph is not None], request, options.target)
    stages: list[dict[str, Any]] = []
    sizes: dict[str, int] = {}
    for stage in found:
        for name, value in stage.stored.items():
            sizes[name] = max(sizes.get(name, 0), value.nbytes)
        for name, array in stage.constants.items():
            sizes[name] = max(sizes.get(name, 0), array.nbytes)
        if stage.graph is None:
            continue
        report = plans[len(stages)]
        info = report.info
        stages.append(
            {
                "steps": len(report.plan.steps),
                "scratch_bytes": info.memory.scratch_bytes,
                "inputs": _describe_tensors(info.inputs),
                "outputs": _describe_tensors(info.outputs),
                "waits_for": [*stage.needed, *sorted(stage.rows)],
                **({} if report.section is None else {request.entry.name: report.section.to_json()}),
            }
        )
    ends = {each.name: math.prod(each.dims) * each.dtype.itemsize for each in model.inputs}
    ends |= {name: sizes.get(name, 0) for name in model.output_names}
    description = {
        "model": str(options.model),
        "backend": request.entry.name,
        "target": plans[0].info.target if plans else "",
        "threads": request.threads,
        "stages": stages,
        "scratch_bytes": max((stage["scratch_bytes"] for stage in stages), default=0),
        "between_bytes": sum(nbytes for name, nbytes in sizes.items() if name not in ends),
        "io_bytes": sum(ends.values()),
        "constant_bytes": sum(plan.info.memory.constant_bytes for plan in plans),
        "seconds": time.perf_counter() - began,
    }
    return description, plans


def graphs_of_stages(request: ModelRequest) -> list[Graph]:
    """Return the graphs of all stages of a model, at their greatest shapes."""
    return [stage.graph for stage in _model_in_stages(request).greatest() if stage.graph is not None]


def _model_in_stages(request: ModelRequest) -> StagedModel:
    """Read a model that runs in stages."""
    accepted = request.entry.accepted
    selects = accepted is None or all(op in accepted.types for op in SELECTING)
    return staged_model(request.source, request.bounds, selects)


def plan_graphs(graphs: Sequence[Graph], request: ModelRequest, target: str | None = None) -> list[PlanReport]:
    """Plan the graphs of all stages. A limit on scratch that is a share is that of the stage with most."""
    if len(graphs) == 1:
        return [request.plan(graphs[0], target)]
    plans = [replace(request, limit=None).plan(graph, target) for graph in graphs]
    limit = request.limit
    if limit is None:
        return plans
    sizes = [plan.info.memory.scratch_bytes for plan in plans]
    most = limit.bytes_of(max(sizes, default=0))
    within = replace(request, limit=limit if most is None else ScratchLimit(most, slower=limit.slower))
    return [
        plan if most is not None and size <= most else within.plan(graph, target)
        for graph, plan, size in zip(graphs, plans, sizes, strict=True)
    ]


def _describe_tensors(infos: tuple[TensorInfo, ...]) -> dict[str, Any]:
    """Return the shapes and types of tensors by name."""
    return {info.name: {"shape": list(info.dims), "dtype": str(info.dtype.numpy)} for info in infos}
