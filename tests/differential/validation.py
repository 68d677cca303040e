"""The layer of validation: is an operation accepted, with each kind of data, as it is and with one thing wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from differential.client import Node, Param, Session, TensorValue
from differential.operations import USES, changed, kinds_of, node_of
from isthmus.graph.datatypes import DataType

D = DataType
_OTHER = {D.UFIXED_POINT_8: D.FLOAT_32, D.SFIXED_POINT_8: D.FLOAT_32, D.FLOAT_16: D.UFIXED_POINT_8}
"""The data types that replace those of a tensor, where it is made wrong; others become 16-bit integers."""


def _retyped(values: list[TensorValue], index: int) -> list[TensorValue]:
    """Return the tensors, one with another data type."""
    value = values[index]
    dtype = _OTHER.get(D(value.dtype), D.INT_16)
    data = None if value.data is None else np.zeros(value.dims, dtype.numpy)
    encoding = value.encoding if dtype.is_fixed_point else None
    return changed(values, index, dtype=dtype, encoding=encoding, data=data)


def _deeper(values: list[TensorValue], index: int) -> list[TensorValue]:
    """Return the tensors, one with two more dimensions of 1."""
    value = values[index]
    dims = (1, 1, *value.dims)
    return changed(values, index, dims=dims, data=None if value.data is None else value.data.reshape(dims))


def _changes(node: Node) -> Iterator[tuple[str, Callable[[Node], Node]]]:
    """Yield the ways to make a node wrong, each with a name."""
    yield "unknown parameter", lambda node: replace(node, params=[*node.params, Param("colour", D.UINT_32, 1)])
    for index, param in enumerate(node.params):
        without = [each for each in node.params if each is not param]
        yield f"without {param.name}", lambda node, without=without: replace(node, params=without)
        if not isinstance(param.value, list):
            wrong = list(node.params)
            wrong[index] = replace(param, dtype=D.INT_64, value=int(param.value))
            yield f"{param.name} as INT_64", lambda node, wrong=wrong: replace(node, params=wrong)
    yield "rank of in[0]", lambda node: replace(node, inputs=_deeper(node.inputs, 0))
    yield "rank of out[0]", lambda node: replace(node, outputs=_deeper(node.outputs, 0))
    for index in range(min(3, len(node.inputs))):
        yield f"type of in[{index}]", lambda node, index=index: replace(node, inputs=_retyped(node.inputs, index))
    yield "type of out[0]", lambda node: replace(node, outputs=_retyped(node.outputs, 0))
    yield (
        "dimensions of out[0]",
        lambda node: replace(
            node, outputs=changed(node.outputs, 0, dims=(*node.outputs[0].dims[:-1], node.outputs[0].dims[-1] + 1))
        ),
    )
    yield "no inputs", lambda node: replace(node, inputs=[])
    yield (
        "one input too many",
        lambda node: replace(
            node, inputs=[*node.inputs, *[replace(node.inputs[-1], name=f"more{index}") for index in range(4)]]
        ),
    )
    yield "no outputs", lambda node: replace(node, outputs=[])


CHANGED = ("fp32", "ufixed8", "ufixed16")
"""The kinds of data whose uses are also made wrong: others show the same rules."""


def _all() -> dict[str, Callable[[], Node]]:
    """Return the functions that make the nodes, by name."""
    made: dict[str, Callable[[], Node]] = {}
    for op in sorted(USES):
        for kind in kinds_of(op):
            made[f"{op} {kind}"] = lambda op=op, kind=kind: node_of(op, kind)
        for kind in CHANGED:
            for name, change in _changes(node_of(op, kind)):
                made[f"{op} {kind}: {name}"] = lambda op=op, kind=kind, change=change: change(node_of(op, kind))
    return made


NODES = _all()


def cases() -> list[str]:
    """Name the nodes."""
    return list(NODES)


def opened(library: Path, chip: int | None) -> Callable[[str], Any]:
    """Return the function that validates a node by name for a chip."""
    session = Session(library, chip)
    assert session.context

    def answer(name: str) -> int:
        code = session.code("backendValidateOpConfig", session.backend, session.operation(NODES[name]()))
        session.kept.clear()
        return code

    return answer
