"""Preparation of a graph as a program for an OpenCL device, with the options of the GPU backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.backends.gpu.compile import lower
from isthmus.backends.gpu.compile.program import KernelProgram
from isthmus.backends.gpu.compile.traits import DeviceTraits, FloatStorage
from isthmus.backends.gpu.config import GpuConfig
from isthmus.backends.gpu.options import GpuGraphOption, PrecisionMode
from isthmus.backends.gpu.runtime.context import ClContext
from isthmus.backends.gpu.runtime.device import ClDevice, choose
from isthmus.backends.seam.entry import PlanReport, PlanRequest
from isthmus.errors import Code, QnnError, counted
from isthmus.graph import DataType, Graph
from isthmus.prepare.tiling import ScratchLimit


def traits(device: ClDevice) -> DeviceTraits:
    """Return the properties of a device that kernels depend on."""
    return DeviceTraits(
        kind="cpu" if device.kind == "cpu" else "gpu",
        vector_width=device.vector_width,
        local_bytes=device.local_bytes,
        max_group=device.max_group,
        compute_units=device.compute_units,
        alignment=device.alignment,
        largest_allocation=device.largest_allocation,
    )


@np.errstate(all="ignore")
def prepare(graph: Graph, device: ClDevice, options: Mapping[GpuGraphOption, Any]) -> KernelProgram:
    """Turn a complete graph into a program for a device.

    `options` has values of the client's graph options; an option without a value has its default.

    Raises COMMON_NOT_SUPPORTED, naming every node that the engine cannot execute.
    """
    return lower.prepare(
        graph,
        traits(device),
        _float_storage(graph, options.get(GpuGraphOption.PRECISION, PrecisionMode.USER_PROVIDED)),
        fuse=not options.get(GpuGraphOption.DISABLE_NODE_OPTIMIZATIONS, False),
        optimize_memory=not options.get(GpuGraphOption.DISABLE_MEMORY_OPTIMIZATIONS, False),
    )


def _float_storage(graph: Graph, precision: PrecisionMode) -> FloatStorage:
    """Return how floats are stored between operations, for the precision that the client has set."""
    if precision is PrecisionMode.USER_PROVIDED:
        types = {tensor.dtype for tensor in (*graph.inputs, *graph.outputs)}
        is_fp16 = DataType.FLOAT_16 in types and DataType.FLOAT_32 not in types
        return FloatStorage.FP16 if is_fp16 else FloatStorage.FP32
    return FloatStorage.FP32 if precision is PrecisionMode.FP32 else FloatStorage.FP16


@dataclass(frozen=True)
class GpuReport:
    """The GPU backend's additions to a plan report."""

    device: ClDevice
    program: KernelProgram
    fits: bool = True
    """Always true: the program is not compared with the size of the device's memory."""
    limits: tuple[dict[str, Any], ...] = ()
    """None, for the same reason."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "device": self.device.name,
            "platform": self.device.platform_name,
            "driver": self.device.driver,
            "precision": self.program.precision.value,
            "launches": len(self.program.launches),
            "kernel_sources": len(self.program.units),
            "alignment": self.device.alignment,
            "shares_memory_with_host": self.device.unified,
            "command_buffers": self.device.command_buffers,
        }

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        device, program = self.device, self.program
        shares = "works in the host's memory" if device.unified else "has memory of its own"
        return [
            f"  device    {device.name}, {device.platform_name}, driver {device.driver}; it {shares}",
            f"  launches  {len(program.launches):>13,}  of kernels from {counted(len(program.units), 'source')}, "
            f"floats kept as {program.precision.value}",
            f"  buffers   {device.alignment:>13,}  bytes their offsets are a multiple of",
        ]


def refuse_limit(graph: Graph, limit: ScratchLimit | None) -> None:
    """Refuse a limit on scratch: only computing in tiles could keep it, and kernels compute whole tensors."""
    if limit is not None:
        rule = "a limit on scratch is kept by computing in tiles, but kernels on a device compute whole tensors"
        hint = "Without a limit it is planned as small as whole tensors allow; the CPU backend takes one."
        raise QnnError(Code.GRAPH_INVALID_ARGUMENT, f"graph '{graph.name}'", rule, hint)


def preparation(graph: Graph, config: GpuConfig, request: PlanRequest) -> PlanReport:
    """Report how the backend would prepare a graph for the configured device, without allocating memory there.

    The requested threads mean nothing here: the device decides how it runs kernels.
    """
    refuse_limit(graph, request.limit)
    if request.target is not None:
        rule = "it plans for an OpenCL device, which its configuration chooses"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"target '{request.target}' on backend 'gpu'", rule)
    device = (
        choose(config.platform, config.device)
        if config.context is None and config.queue is None
        else ClContext.of_client(config.context, config.queue).device
    )
    program = prepare(graph, device, config.options(graph.name))
    return PlanReport(program.info, program.schedule.statistics, 1, GpuReport(device, program))
