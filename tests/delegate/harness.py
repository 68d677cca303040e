"""Interpreters with and without a delegate, and small models for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from frontends.tflite.build import Op, Subgraph, T, model, options

from isthmus.delegate import BackendType, Options, QnnDelegate

ADD = options("Add")


class LoggingDelegate(QnnDelegate):
    """A delegate that remembers what it has said."""

    def __init__(self, backend: str = "CPU", **more: Any) -> None:
        self.lines: list[str] = []
        super().__init__(
            Options(BackendType[backend], **more), lambda level, text: self.lines.append(f"{level.name}: {text}")
        )

    @property
    def taken(self) -> list[tuple[int, int, int]]:
        """Of each subgraph: nodes taken, nodes in all, partitions."""
        return [(each.delegated, each.nodes, each.partitions) for each in self.delegations]


def plain(content: bytes, **more: Any) -> Interpreter:
    """An interpreter of LiteRT's own kernels, without any delegate."""
    kind = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    return Interpreter(model_content=content, experimental_op_resolver_type=kind, **more)


def with_delegate(content: bytes, delegate: QnnDelegate, **more: Any) -> Interpreter:
    """An interpreter whose nodes may be the delegate's; its tensors are allocated."""
    interpreter = plain(content, experimental_delegates=[delegate], **more)
    interpreter.allocate_tensors()
    return interpreter


def run(interpreter: Interpreter, *inputs: np.ndarray) -> list[np.ndarray]:
    """One invocation: arrays for the inputs in order, copies of the outputs."""
    for detail, array in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]


def doubled(*shape: int, signature: tuple[int, ...] | None = None) -> bytes:
    """Adds an input to itself."""
    tensors = [T("f32", shape, name="x", signature=signature), T("f32", shape, name="y", signature=signature)]
    return model(Subgraph(tensors, [Op("ADD", [0, 0], [1], ADD)], [0], [1]))


def chain(*codes: str) -> bytes:
    """One operator after the other on a vector, each with one operand."""
    tensors = [T("f32", (1, 4), name=f"t{index}") for index in range(len(codes) + 1)]
    operators = [Op(code, [index], [index + 1]) for index, code in enumerate(codes)]
    return model(Subgraph(tensors, operators, [0], [len(codes)]))
