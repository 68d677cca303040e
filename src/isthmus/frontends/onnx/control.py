"""Control flow: If, and Loop with a known number of iterations. An If at run time computes both branches."""

from __future__ import annotations

import numpy as np

from isthmus.errors import QnnError
from isthmus.frontends.onnx.layout import OnnxValue
from isthmus.frontends.onnx.movement import join
from isthmus.frontends.onnx.node import Converter, OnnxNode

MAX_TURNS = 1024
"""The most iterations of a loop that are unrolled."""


_UNDECIDED = "its condition is known only at run time (an input that decides it can be bound as a constant)"


def _if(node: OnnxNode) -> list[OnnxValue | None]:
    condition = node.builder.array(node.value(0))
    branches = [node.attr(name) for name in ("then_branch", "else_branch")]
    if None in branches:
        node.refuse("it needs two branches")
    if condition is not None:
        if condition.size != 1:
            node.refuse(f"its condition has {condition.size} elements")
        return list(node.run(branches[0 if condition.reshape(()) else 1], []))
    try:
        then, otherwise = (node.run(branch, []) for branch in branches)
    except QnnError as error:
        node.unsupported(f"{_UNDECIDED}, and one of its branches cannot be computed ({error.what}: {error.rule})")
    pairs = zip(then, otherwise, strict=True)
    if any(a.dims != b.dims or a.tensor.dtype is not b.tensor.dtype for a, b in pairs):
        node.unsupported(f"{_UNDECIDED}, and its branches differ in shape or type")
    return [
        node.elementwise("ElementWiseSelect", node.builder.reshaped(node.value(0), ()), a, b)
        for a, b in zip(then, otherwise, strict=True)
    ]


def _loop(node: OnnxNode) -> list[OnnxValue | None]:
    body = node.attr("body")
    if body is None:
        node.refuse("it has no body")
    turns = None if node.optional(0) is None else int(node.number(0))
    going = True if node.optional(1) is None else bool(node.number(1))
    carried = [node.value(index) for index in range(2, len(node.inputs))]
    scans: list[list[OnnxValue]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    turn = 0
    while going and (turns is None or turn < turns):
        if turn >= MAX_TURNS:
            node.unsupported(f"more than {MAX_TURNS} turns")
        index = node.builder.literal(np.array(turn, np.int64))
        condition = node.builder.literal(np.array(going))
        again, *values = node.run(body, [index, condition, *carried])
        known = node.builder.array(again)
        if known is None:
            node.unsupported("the number of turns depends on the data")
        going = bool(known.reshape(()))
        carried, scanned = values[: len(carried)], values[len(carried) :]
        for scan, value in zip(scans, scanned, strict=True):
            scan.append(node.builder.reshaped(value, (1, *value.dims)))
        turn += 1
    if scans and not turn:
        node.unsupported("no turn at all")
    return [*carried, *(join(node, scan, 0) for scan in scans)]


CONVERTERS: dict[str, Converter] = {"If": _if, "Loop": _loop}
