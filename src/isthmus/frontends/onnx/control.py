"""Control flow: If, Scan and Loop. Loops are unrolled, and the number of their turns must be known when their stage is
converted. So must the branch of an If, unless its branches have the same shapes: then both are computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.onnx.layout import OnnxValue
from isthmus.frontends.onnx.movement import element_of, stack_values
from isthmus.frontends.onnx.node import Converter, OnnxNode, Results
from isthmus.frontends.onnx.sequences import OnnxSequence
from isthmus.frontends.onnx.stage import Deferred

MAX_TURNS = 1024
"""The most iterations of a loop that are unrolled."""


_UNDECIDED = "its condition is known only at run time (an input that decides it can be bound as a constant)"


def _if(node: OnnxNode) -> list[OnnxValue | None]:
    """Convert the branch that a constant condition selects."""
    # If the condition is known only at run time, both branches are converted and an operation selects between their
    # results.
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
    except Deferred:
        node.need(node.value(0), _UNDECIDED)
    except QnnError as error:
        node.need(
            node.value(0), f"{_UNDECIDED}, and one of its branches cannot be computed ({error.what}: {error.rule})"
        )
    pairs = zip(then, otherwise, strict=True)
    if any(a.dims != b.dims or a.tensor.dtype is not b.tensor.dtype or isinstance(a, OnnxSequence) for a, b in pairs):
        node.need(node.value(0), f"{_UNDECIDED}, and its branches differ in shape or type")
    return [node.choose(node.reshape_to(node.value(0), ()), a, b) for a, b in zip(then, otherwise, strict=True)]


def _loop(node: OnnxNode) -> list[OnnxValue | None]:
    """Unroll a loop: convert its body once per iteration."""
    # Inputs are the number of iterations, the first condition, and the carried values. The body takes the iteration,
    # the condition and the carried values; it returns the next condition, the next carried values, and scanned values,
    # which are joined over all iterations.
    body = node.attr("body")
    if body is None:
        node.refuse("it has no body")
    iterations = None if node.optional(0) is None else int(node.number(0))
    continues = True if node.optional(1) is None else bool(node.number(1))
    carried = [node.value(index) for index in range(2, len(node.inputs))]
    scans: list[list[OnnxValue]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    iteration = 0
    while continues and (iterations is None or iteration < iterations):
        if iteration >= MAX_TURNS:
            node.unsupported(f"more than {MAX_TURNS} turns")
        index = node.literal(np.array(iteration, np.int64))
        condition = node.literal(np.array(continues))
        next_condition, *values = node.run(body, [index, condition, *carried])
        condition_array = node.builder.array(next_condition)
        if condition_array is None:
            goes_on = iteration + 1 < _most_turns(node, iterations)
            node.need(next_condition, "the number of turns depends on the data", goes_on, values)
        continues = bool(condition_array.reshape(()))
        carried, scanned = values[: len(carried)], values[len(carried) :]
        for scan, value in zip(scans, scanned, strict=True):
            scan.append(value)
        iteration += 1
    if scans and not iteration:
        # Without turns the scanned results are empty; one turn, whose results are not used, tells their shapes.
        start = [node.literal(np.array(0, np.int64)), node.literal(np.array(True))]
        shown = node.run(body, [*start, *carried])[1 + len(carried) :]
        empty = [node.builder.empty(v.tensor.dtype, (0, *v.dims), v.tensor.quantization) for v in shown]
        return [*carried, *map(OnnxValue.of, empty)]
    return [*carried, *(stack_values(node, scan, 0) for scan in scans)]


def _most_turns(node: OnnxNode, iterations: int | None) -> float:
    """Return the most turns of a loop whose condition is known only at run time, to plan with."""
    bounds = {} if node.stage is None else node.stage.bounds
    most = bounds.get(node.name, iterations)
    if node.stage is not None and (most is None or np.max(most) > MAX_TURNS):
        rule = "its condition decides how many turns it has, and how many these can be is unknown"
        hint = f"Give their number: bounds={{{node.name!r}: 10}} in Python, --bound {node.name}=10 for commands."
        raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, node.what, rule, hint)
    return float(np.max(most)) if most is not None else 0.0


def _scan(node: OnnxNode) -> Results:
    """Unroll a scan: convert its body once per element of the scanned axes."""
    # Inputs are the carried values, then the scanned ones. In operator set 8 the lengths of the sequences come first,
    # and the first axis of all values is the batch.
    if node.opset >= 9:
        inputs = [node.value(index) for index in range(len(node.inputs))]
        return _unroll(node, inputs, "scan_input_directions")
    if node.optional(0) is not None:
        node.unsupported("sequences of different lengths")
    inputs = [node.value(index) for index in range(1, len(node.inputs))]
    batches = {value.dims[0] if value.rank else 0 for value in inputs}
    if len(batches) != 1 or 0 in batches:
        node.refuse("its inputs need the same batch, which is not 0")
    turns = [
        _unroll(node, [element_of(node, value, 0, index) for value in inputs], "directions")
        for index in range(batches.pop())
    ]
    return [stack_values(node, values, 0) for values in zip(*turns, strict=True)]


def _unroll(node: OnnxNode, inputs: Sequence[OnnxValue], directions: str) -> list[OnnxValue]:
    """Convert a scan without batches; `directions` is the name of the attribute for those of the inputs."""
    # The body takes the carried values and one element of each scanned one. It returns the next carried values and
    # elements of the results, which are joined.
    body = node.attr("body")
    if body is None:
        node.refuse("it has no body")
    scanned_count = int(node.attr("num_scan_inputs", 0))
    if not 1 <= scanned_count <= len(inputs) or len(body.output) < len(inputs) - scanned_count:
        node.refuse(f"num_scan_inputs {scanned_count} does not fit {len(inputs)} inputs")
    carried, scanned = inputs[:-scanned_count], inputs[-scanned_count:]
    result_count = len(body.output) - len(carried)
    axes = _per_scan(node, "scan_input_axes", scanned_count)
    axes = [node.axis(axis, value.rank) for axis, value in zip(axes, scanned, strict=True)]
    lengths = {value.dims[axis] for value, axis in zip(scanned, axes, strict=True)}
    length = lengths.pop()
    if lengths or not length:
        node.refuse("its scanned inputs need the same length, which is not 0")
    if length > MAX_TURNS:
        node.unsupported(f"more than {MAX_TURNS} turns")
    backwards = _per_scan(node, directions, scanned_count)
    results: list[list[OnnxValue]] = [[] for _ in range(result_count)]
    for turn in range(length):
        elements = [
            element_of(node, value, axis, length - 1 - turn if flag else turn)
            for value, axis, flag in zip(scanned, axes, backwards, strict=True)
        ]
        values = node.run(body, [*carried, *elements])
        carried = values[: len(carried)]
        for result, value in zip(results, values[len(carried) :], strict=True):
            result.append(value)
    joined = []
    out_axes = _per_scan(node, "scan_output_axes", result_count)
    reversals = _per_scan(node, "scan_output_directions", result_count)
    for result, axis, flag in zip(results, out_axes, reversals, strict=True):
        joined.append(stack_values(node, result[::-1] if flag else result, node.axis(axis, result[0].rank + 1)))
    return [*carried, *joined]


def _per_scan(node: OnnxNode, name: str, count: int) -> list[int]:
    """Return an attribute with one number per scanned value; all are 0 by default."""
    numbers = list(node.attr(name) or [0] * count)
    if len(numbers) != count:
        node.refuse(f"{name} needs {count} numbers, has {len(numbers)}")
    return numbers


CONVERTERS: dict[str, Converter] = {"If": _if, "Loop": _loop, "Scan": _scan}
