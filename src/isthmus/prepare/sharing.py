"""Why graphs of a context binary do not share constants: what another graph has in their place.

Constants are compared as a binary stores them (see `tensor_entries`). One that a graph has alone is set beside one of
another graph: that of as many elements which has the same number, in the order of the steps.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isthmus.errors import counted
from isthmus.graph import Tensor
from isthmus.prepare.schedule import Schedule
from isthmus.prepare.tensor_entries import tensor_fields
from isthmus.system.contents import Contents

SMALLEST = 4096
"""Bytes of a constant from which a reason is given; below it are scales, tables and biases."""


@dataclass(frozen=True)
class UnsharedConstants:
    """Constants that a graph of a context binary does not share, for one reason.

    - `graph`: The name of the graph.
    - `constants`: How many they are.
    - `nbytes`: Their bytes.
    - `other`: The graph that has others in their place; empty if there is none.
    - `reason`: Why they are not shared.
    """

    graph: str
    constants: int
    nbytes: int
    other: str
    reason: str

    def __str__(self) -> str:
        return f"{self.graph}: {counted(self.nbytes, 'byte')} in {counted(self.constants, 'constant')}: {self.reason}"


@dataclass(frozen=True)
class _Constant:
    """A constant: where it would be if graphs shared all that is equal, its size, and how its elements are stored."""

    offset: int
    nbytes: int
    elements: int
    encoding: str


def unshared(schedules: Sequence[Schedule], shares: bool) -> tuple[UnsharedConstants, ...]:
    """Return which large constants the graphs of one context do not share, and why; of one graph nothing.

    - `shares`: Whether the graphs share any.
    """
    contents = Contents(stores=False)
    graphs = {schedule.name: _by_elements(schedule, contents) for schedule in schedules}
    found = [
        (name, constant.nbytes, *reason)
        for name, lengths in graphs.items()
        for listed in lengths.values()
        for place, constant in enumerate(listed)
        if (reason := _reason(name, constant, place, graphs, shares)) is not None
    ]
    return add_up_constants(found) if len(graphs) > 1 else ()


def add_up_constants(found: Iterable[tuple[str, int, str, str]]) -> tuple[UnsharedConstants, ...]:
    """Return constants, each with its graph, bytes, other graph and reason, as one item for each reason."""
    sums: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for graph, nbytes, other, reason in found:
        sums[graph, other, reason].append(nbytes)
    return tuple(
        UnsharedConstants(graph, len(sizes), sum(sizes), other, reason)
        for (graph, other, reason), sizes in sums.items()
    )


def _by_elements(schedule: Schedule, contents: Contents) -> dict[int, list[_Constant]]:
    """Return the large constants of a graph by their number of elements, and add all to contents."""
    found: dict[int, list[_Constant]] = defaultdict(list)
    for constant in _constants(schedule, contents):
        found[constant.elements].append(constant)
    return found


def _constants(schedule: Schedule, contents: Contents) -> Iterator[_Constant]:
    """Yield the large constants of a graph in the order of its steps, and add all to contents."""
    part = contents.of(schedule.name)
    tensors = dict.fromkeys(tensor for step in schedule.steps for tensor in step.inputs if tensor is not None)
    seen = set()
    for tensor in tensors:
        fields: dict[str, Any] = tensor_fields(tensor, part) if tensor.is_static else {}
        offset = fields.get("source", fields).get("data")
        nbytes = contents.arrays[schedule.name].get(offset, 0)
        if nbytes >= SMALLEST and offset not in seen:
            seen.add(offset)
            yield _Constant(offset, nbytes, math.prod(tensor.dims), _encoding(tensor, fields))


def _encoding(tensor: Tensor, fields: dict[str, Any]) -> str:
    """Say how the elements of a constant are stored, given its entry."""
    stored = tensor.source or tensor
    name = "FLOAT_16" if fields.get("fp16") or fields.get("half") else stored.dtype.name
    q = stored.quantization
    bits = f" of {q.bits} bits" if q is not None and q.bits else ""
    scales = "" if q is None or q.axis is None else f" with scales along axis {q.axis}"
    return f"{name}{bits}{scales}{' in blocks' * bool(q is not None and q.block)}"


def _reason(
    name: str, constant: _Constant, place: int, graphs: Mapping[str, Mapping[int, list[_Constant]]], shares: bool
) -> tuple[str, str] | None:
    """Return a graph that has another constant in the place of one, and why they are two; None if it is shared."""
    alike = {other: found.get(constant.elements, []) for other, found in graphs.items() if other != name}
    for other, listed in alike.items():
        if any(each.offset == constant.offset for each in listed):
            return None if shares else (other, f"equal in {other}, but the context was created without weight sharing")
    for other, listed in alike.items():
        if place < len(listed):
            if listed[place].encoding == constant.encoding:
                return other, f"other contents than in {other}"
            return other, f"another encoding, {constant.encoding}, than in {other}, {listed[place].encoding}"
    return "", "no other graph has one of as many elements in its place"
