"""What the GPU backend costs: launches, raw memory beside registered memory, models beside the CPU backend.

Where no driver is registered with the system, OCL_ICD_VENDORS names a folder with a file that holds the driver's path.

Figures of one row are measured in turn, round by round, so that whatever else the machine does meets them alike.
PyTorch is measured beside it where it can be imported and has a device.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import zoo

import isthmus
from isthmus import QnnError, qnn
from isthmus.backends.gpu.buffers import device_buffer
from isthmus.backends.gpu.runtime import commands, program
from isthmus.backends.gpu.runtime.context import ClContext
from isthmus.backends.gpu.runtime.device import choose
from isthmus.backends.gpu.runtime.execution import Commands
from isthmus.backends.gpu.runtime.library import library
from isthmus.graph import DataType, TensorType
from isthmus.tools.run import generate_inputs

SIZES = tuple(1 << bits for bits in (16, 18, 20, 22, 24, 26, 28))
"""Bytes of a tensor, from 64 KiB to 256 MiB."""
FEW, PIECE = 4, 1024
LAUNCHES = 200
US = 1e6


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller buffers and fewer models")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument("--only", choices=list(PARTS), action="append", help="only this part; may be repeated")
    parser.add_argument("--model", action="append", metavar="KEY", help="only this model; may be repeated")
    options = parser.parse_args()
    device = choose()
    print(f"{device.name}, {device.platform_name}, driver {device.driver}")
    figures: dict[str, Any] = {"device": device.name}
    for name, part in PARTS.items():
        if not options.only or name in options.only:
            print(f"\n{part.__doc__.splitlines()[0]}", flush=True)
            figures[name] = part(options)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


def in_turn(contestants: Mapping[str, Callable[[], object]], rounds: int, least: float = 0.0) -> dict[str, float]:
    """The best time of each in seconds; every round gives each of them a slice of at least so many seconds."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for call in contestants.values():
        call()
    for _ in range(rounds):
        for name, call in contestants.items():
            begin, calls = time.perf_counter(), 0
            while calls == 0 or time.perf_counter() - begin < least:
                call()
                calls += 1
            times[name].append((time.perf_counter() - begin) / calls)
    return {name: min(taken) for name, taken in times.items()}


def peer() -> Any:
    """PyTorch, if it has a device here."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


# -- launches ----------------------------------------------------------------------------------------------------------


def launches(options: argparse.Namespace) -> dict[str, float]:
    """Host time per launch, arguments set before; and a lone execution from call to return."""
    context = ClContext.create(choose())
    source = "kernel void touch(global int *x) { if (get_global_id(0) == 0) x[0] += 1; }"
    built = program.build(context, source, (), program.Repository(), "bench")
    memory = device_buffer(context, 4096)
    many = Commands(context, [_touch(built, memory) for _ in range(LAUNCHES)], "bench", 60, may_record=False)
    one = Commands(context, [_touch(built, memory)], "bench", 60)
    figures: dict[str, float] = {}
    rounds = 20 if options.quick else 300
    best = math.inf
    for _ in range(rounds):
        many.run()  # a processor that comes out of a wait is slow at first, whatever it does
        begin = time.perf_counter()
        event = many.enqueue(())
        best = min(best, time.perf_counter() - begin)
        event.wait(60)
        event.close()
    figures["enqueued from native code"] = best / LAUNCHES * US
    contestants: dict[str, Callable[[], object]] = {"one launch, waited for": one.run, f"{LAUNCHES} launches": many.run}
    try:
        cl = importlib.import_module("pyopencl")
    except ImportError:
        print("  pyopencl is not installed: its own call is not measured")
    else:
        queue = cl.CommandQueue.from_int_ptr(context.queue, retain=True)
        kernel = cl.Program.from_int_ptr(built.handle, retain=True).touch
        kernel.set_arg(0, cl.Buffer.from_int_ptr(memory.handle, retain=True))
        best = math.inf
        for _ in range(rounds):
            many.run()
            begin = time.perf_counter()
            for _ in range(LAUNCHES):
                cl.enqueue_nd_range_kernel(queue, kernel, (64,), (64,))
            best = min(best, time.perf_counter() - begin)
            queue.finish()
        figures["enqueued through pyopencl"] = best / LAUNCHES * US
    torch = peer()
    if torch is not None:
        x = torch.zeros(64, device="cuda")
        best = math.inf
        for _ in range(rounds):
            many.run()
            begin = time.perf_counter()
            for _ in range(LAUNCHES):
                x.add_(1)
            best = min(best, time.perf_counter() - begin)
            torch.cuda.synchronize()
        figures["PyTorch, an operation"] = best / LAUNCHES * US
    figures |= {name: seconds * US for name, seconds in in_turn(contestants, rounds, 0.002).items()}
    for name, taken in figures.items():
        print(f"  {name:28} {taken:10.2f} us")
    return figures


def _touch(built: Any, memory: Any) -> commands.Command:
    kernel = program.kernel(built, "touch", "bench")
    handle = ctypes.c_void_p(memory.handle)
    library().call("bench", "clSetKernelArg", kernel.handle, 0, 8, ctypes.byref(handle))
    return commands.launch(kernel, (64,), (64,), "touch")


# -- inputs and outputs ------------------------------------------------------------------------------------------------


def first_few(context: qnn.Context, elements: int) -> qnn.Graph:
    """A graph whose work does not depend on its input's size: it takes the first few elements."""
    graph = context.create_graph(f"few of {elements}")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, elements))
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, FEW))
    graph.add_node("slice", "StridedSlice", [x], [y], {"ranges": np.array([[0, 1, 1], [0, FEW, 1]], np.int32)})
    graph.finalize()
    return graph


def rectified(context: qnn.Context, elements: int) -> qnn.Graph:
    """A graph that reads and writes as much."""
    graph = context.create_graph(f"relu of {elements}")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, elements))
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, elements))
    graph.add_node("relu", "Relu", [x], [y])
    graph.finalize()
    return graph


def inputs_and_outputs(options: argparse.Namespace) -> dict[str, Any]:
    """Raw memory beside registered memory, in microseconds: a large input of which little is read, and a Relu."""
    figures: dict[str, Any] = {}
    torch = peer()
    print(f"  {'bytes':>11} {'graph':9} {'raw':>10} {'registered':>10} {'difference':>10} {'GB/s':>6}  PyTorch's moves")
    for nbytes in SIZES[:5] if options.quick else SIZES:
        with qnn.Backend("gpu") as backend:
            for make in (first_few, rectified):
                try:
                    row = _raw_and_registered(backend, make, nbytes // 4, 5 if options.quick else 20)
                except QnnError as problem:
                    print(f"  {nbytes:>11,} {make.__name__:9} {problem}")
                    continue
                beside = _torch_transfers(torch, nbytes, make is rectified) if torch is not None else {}
                moved = nbytes * (2 if make is rectified else 1)
                more, pinned = row["raw"] - row["registered"], row.pop("pinned")
                told = ", ".join(f"{name} {taken * US:,.0f}" for name, taken in beside.items()) or "none"
                told = f"{told}; {pinned:.0f} tensors of ours pinned"
                print(
                    f"  {nbytes:>11,} {make.__name__:9} {row['raw'] * US:>10,.0f} {row['registered'] * US:>10,.0f} "
                    f"{more * US:>10,.0f} {moved / max(more, 1e-9) / 1e9:>6.1f}  {told}", flush=True,
                )  # fmt: skip
                figures[f"{make.__name__} {nbytes}"] = {name: taken * US for name, taken in {**row, **beside}.items()}
        gc.collect()
    return figures


def _raw_and_registered(
    backend: qnn.Backend, make: Callable[..., qnn.Graph], elements: int, rounds: int
) -> dict[str, float]:
    context = backend.create_context()
    graph = make(context, elements)
    infos = (*graph.input_tensors, *graph.output_tensors)
    arrays = [np.ones(info.dims, np.float32) for info in infos]
    raw = graph.bind([qnn.ClientTensor("x", arrays[0])], [qnn.ClientTensor("y", arrays[1])])
    buffers = [qnn.gpu.allocate(backend, info.nbytes) for info in infos]
    handles = context.mem_register(
        [
            qnn.MemDescriptor(
                info.dims, info.dtype, qnn.DescriptorType.CUSTOM,
                custom=qnn.gpu.GpuMemInfo(qnn.gpu.MemType.OPENCL, buffer),
            )
            for info, buffer in zip(infos, buffers, strict=True)
        ]
    )  # fmt: skip
    registered = graph.bind(
        [qnn.ClientTensor("x", mem_handle=handles[0])], [qnn.ClientTensor("y", mem_handle=handles[1])]
    )
    try:
        taken = in_turn({"raw": raw.execute, "registered": registered.execute}, rounds, 0.002)
        return {**taken, "pinned": sum(side.pin is not None for side in raw._driver._sides)}
    finally:
        raw.close()
        registered.close()
        context.free()
        for buffer in buffers:
            buffer.close()


def _torch_transfers(torch: Any, nbytes: int, back: bool) -> dict[str, float]:
    """What PyTorch takes to move as much, from ordinary and from pinned memory."""
    device = torch.empty(nbytes // 4, device="cuda")
    contestants = {}
    for name, host in (("pageable", torch.ones(nbytes // 4)), ("pinned", torch.ones(nbytes // 4).pin_memory())):

        def move(host: Any = host) -> None:
            device.copy_(host, non_blocking=True)
            if back:
                host.copy_(device, non_blocking=True)
            torch.cuda.synchronize()

        contestants[name] = move
    return in_turn(contestants, 5)


# -- models ------------------------------------------------------------------------------------------------------------


def models(options: argparse.Namespace) -> dict[str, Any]:
    """Models beside the CPU backend with two threads, in milliseconds."""
    figures: dict[str, Any] = {}
    ratios = []
    print(f"  {'model':32} {'CPU':>9} {'GPU':>9} {'GPU/CPU':>8} {'fp16':>9} {'kernels':>9} {'launches':>8}  difference")
    for key, model in zoo.MODELS.items():
        if options.model and key not in options.model:
            continue
        try:
            path = zoo.path(key)
        except zoo.Unavailable as reason:
            print(f"  {key:32} {reason}")
            continue
        try:
            row = _beside_cpu(path, model, 5 if options.quick else 15)
        except QnnError as problem:
            print(f"  {key:32} {str(problem)[:120]}", flush=True)
            continue
        figures[key] = row
        ratios.append(row["gpu"] / row["cpu"])
        print(
            f"  {key:32} {row['cpu']:>9.3f} {row['gpu']:>9.3f} {ratios[-1]:>8.2f} {row['fp16']:>9.3f} "
            f"{row['kernels']:>9.3f} {row['launches']:>8.0f}  {row['difference']:.1e}", flush=True,
        )  # fmt: skip
    if ratios:
        print(f"  geometric mean of GPU/CPU over {len(ratios)} models: {statistics.geometric_mean(ratios):.3f}")
        figures["geometric mean"] = statistics.geometric_mean(ratios)
    return figures


def _beside_cpu(path: Path, model: zoo.Model, rounds: int) -> dict[str, float]:
    given: dict[str, Any] = {"shapes": dict(model.shapes) or None}
    if model.constants:
        given["constants"] = {name: np.array(value, np.int64) for name, value in model.constants.items()}
    configs: dict[str, Any] = {"cpu": {}, "gpu": {}, "fp16": {"config": {"precision_mode": "fp16"}}}
    sessions: dict[str, isthmus.Session] = {}
    try:
        for name, more in configs.items():
            where = {"backend": "cpu", "threads": 2} if name == "cpu" else {"backend": "gpu", **more}
            sessions[name] = isthmus.Session(path, **where, **given)
        feeds = generate_inputs(sessions["cpu"].inputs, skip={})
        answers = {}
        for name, session in sessions.items():
            answers[name] = session.run(feeds)
            session.reset()
        runs = {name: session.engine_run for name, session in sessions.items()}
        taken = {name: seconds * 1e3 for name, seconds in in_turn(runs, rounds, 0.01).items()}
        backend = sessions["gpu"].graph.context.backend
        profile = qnn.Profile(backend, qnn.ProfileLevel.DETAILED)
        sessions["gpu"].run(profile=profile)
        operations = [event.value for event in profile.get_events() if event.name.startswith("operation: ")]
        apart = max(_apart(answers["cpu"][name], answers["gpu"][name]) for name in answers["cpu"])
        return {**taken, "kernels": sum(operations) / 1e3, "launches": len(operations), "difference": apart}
    finally:
        for session in sessions.values():
            session.close()


def _apart(expected: np.ndarray, given: np.ndarray) -> float:
    """The largest difference, as a part of the largest value."""
    one, other = expected.astype(np.float64), given.astype(np.float64)
    return float(np.abs(one - other).max(initial=0) / max(np.abs(one).max(initial=0), 1e-30))


PARTS = {"launches": launches, "io": inputs_and_outputs, "models": models}

if __name__ == "__main__":
    sys.exit(main())
