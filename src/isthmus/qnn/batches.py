"""Variable batch: memory for several times the first dimension that a graph was prepared with.

The graph runs once for each part, in order, as one execution. Inputs and outputs have the same multiple.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from isthmus.backends.seam.driver import (
    DriverBinding,
    GraphDriver,
    GraphStats,
    Memories,
    TensorMemory,
    Timings,
    check_overlaps,
)
from isthmus.backends.seam.execution_deadline import ExecutionDeadline
from isthmus.errors import Code, QnnError
from isthmus.graph import TensorInfo
from isthmus.qnn.mem import MemHandle
from isthmus.qnn.tensor import ClientTensor


def multiple_of(dims: Sequence[int], prepared: Sequence[int]) -> int:
    """Return how many times the first prepared dimension some dimensions have; 0 if they differ in another way.

    >>> multiple_of((6, 4), (2, 4)), multiple_of((3, 4), (2, 4)), multiple_of((2, 8), (2, 4))
    (3, 0, 0)
    """
    if len(dims) != len(prepared) or not prepared or tuple(dims[1:]) != tuple(prepared[1:]):
        return 0
    times, rest = divmod(int(dims[0]), prepared[0])
    return 0 if rest else times


def check_multiples(graph: str, inputs: Sequence[int], outputs: Sequence[int]) -> int:
    """Return the multiple that all stated ones are; 1 if none is stated. Others are refused."""
    stated = [*inputs, *outputs] or [1]
    for each in stated:
        if each != stated[0]:
            rule = f"Mismatching input and output batch sizes ({stated[0]}, {each})"
            raise QnnError(Code.GRAPH_INVALID_TENSOR, graph, rule, "All inputs and outputs have the same batch.")
    return stated[0]


def multiple_in(graph: str, inputs: Sequence[TensorInfo], tensors: Sequence[Sequence[ClientTensor]]) -> int:
    """Return the multiple that a client's arrays and memory handles have."""
    infos = {info.name: info for info in inputs}
    # What is no tensor is refused where its memory is looked at.
    valid = [[each for each in kind if isinstance(each, ClientTensor)] for kind in tensors]
    kinds = [[_stated_multiple(each, infos[each.name]) for each in kind if each.name in infos] for kind in valid]
    return check_multiples(graph, *([each for each in kind if each] for kind in kinds))


def _stated_multiple(tensor: ClientTensor, info: TensorInfo) -> int:
    """Return the multiple that a tensor's memory has; 0 if it states none, or if its shape is wrong."""
    if isinstance(tensor.mem_handle, MemHandle):
        return multiple_of(tensor.mem_handle.descriptor.dims, info.dims)
    data = tensor.data
    # Bytes in one dimension may be memory of any type and shape.
    if not isinstance(data, np.ndarray) or (data.dtype == np.uint8 and (info.dtype.itemsize > 1 or data.ndim < 2)):
        return 0
    return multiple_of(data.shape, info.dims)


def times(info: TensorInfo, multiple: int) -> TensorInfo:
    """Return the description of a tensor with a multiple of its batch."""
    if multiple == 1:
        return info
    if not info.dims:
        raise QnnError(Code.GRAPH_INVALID_TENSOR, f"tensor '{info.name}'", "it has no dimensions, and so no batch")
    return replace(info, dims=(info.dims[0] * multiple, *info.dims[1:]), nbytes=info.nbytes * multiple)


def bind(driver: GraphDriver, memories: Memories, multiple: int) -> DriverBinding:
    """Bind memory for a multiple of a graph's batch."""
    return driver.bind(memories) if multiple == 1 else BatchBinding(driver, memories, multiple)


class BatchBinding(DriverBinding):
    """A binding for each part of the batch, executed one after the other. Registered memory is copied."""

    def __init__(self, driver: GraphDriver, memories: Memories, multiple: int) -> None:
        infos, graph, windows = driver.info.tensors, driver.what, []
        for info, memory in zip(infos, memories, strict=True):
            what = f"tensor '{info.name}' of {graph}"
            if memory is None:
                rule = f"it has no memory of its own for {multiple} times its batch"
                raise QnnError(Code.GRAPH_INVALID_TENSOR, what, rule)
            memory.window.check(what, info.nbytes * multiple, code=Code.GRAPH_INVALID_TENSOR)
            windows.append(memory.window.part(0, info.nbytes * multiple))
        check_overlaps(graph, infos, len(driver.info.inputs), windows)
        self._memories = memories
        self._parts: list[DriverBinding] = []
        try:
            for index in range(multiple):
                sizes = [info.nbytes for info in infos]
                parts = [each.part(index * size, size) for each, size in zip(windows, sizes, strict=True)]
                self._parts.append(driver.bind([TensorMemory(each) for each in parts]))
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:  # type: ignore[override]
        """Whether it is closed and refuses to execute."""
        return any(part.closed for part in self._parts)

    def _check(self) -> None:
        """Refuse memory that is closed or deregistered, before any part is executed."""
        for memory in self._memories:
            if memory is not None:
                memory.check_there("memory of a batch")

    def execute(self, limit: ExecutionDeadline | None = None) -> None:
        self._check()
        for part in self._parts:
            part.execute(limit)

    def execute_timed(self, limit: ExecutionDeadline | None = None) -> Timings:
        self._check()
        timings = [part.execute_timed(limit) for part in self._parts]
        return Timings(
            [each for timing in timings for each in timing.operations],
            sum(timing.preparation_us for timing in timings),
            [each for timing in timings for each in timing.spans],
            timings[0].pid,
            [each for timing in timings for each in timing.phases],
        )

    @property
    def stats(self) -> GraphStats:
        return sum((part.stats for part in self._parts), GraphStats())

    def close(self) -> None:
        for part in self._parts:
            part.close()

    def abandon(self) -> None:
        for part in self._parts:
            part.abandon()
