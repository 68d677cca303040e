"""The OpenCL engine's kernels on one device: share of its arithmetic peak and of its bandwidth, PyTorch beside it.

Needs numpy, pyopencl and this package. ``python bench/gpu_kernels.py [--tiles] [--device N]``: `--tiles` also times the
tiles that products can be cut into, to choose among them. The device's own peaks are measured in the same run, so that
shares mean the same on any device. Times are the least of several batches of launches.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pyopencl as cl

from isthmus.backends.gpu.compile.lower import prepare
from isthmus.backends.gpu.compile.lowering import product, tiles
from isthmus.backends.gpu.compile.program import BufferRef, KernelPool, KernelProgram
from isthmus.backends.gpu.compile.traits import DeviceTraits, FloatStorage
from isthmus.graph import DataType, Graph, TensorType

warnings.simplefilter("ignore")
F32 = DataType.FLOAT_32


def traits_of(device: Any) -> DeviceTraits:
    """The device as lowering sees it."""
    return DeviceTraits(
        kind="cpu" if device.type & cl.device_type.CPU else "gpu",
        vector_width=max(device.native_vector_width_float, 1),
        local_bytes=device.local_mem_size,
        max_group=device.max_work_group_size,
        compute_units=device.max_compute_units,
        alignment=device.mem_base_addr_align // 8,
        largest_allocation=device.max_mem_alloc_size,
    )


class Bound:
    """A program with buffers, its arguments set."""

    def __init__(self, queue: Any, program: KernelProgram) -> None:
        self.queue, self.program = queue, program
        context, flags = queue.context, cl.mem_flags
        sizes = {(KernelPool.SCRATCH, 0): program.scratch_bytes, (KernelPool.STATE, 0): program.state_bytes}
        self.buffers = {key: cl.Buffer(context, flags.READ_WRITE, max(size, 1)) for key, size in sizes.items()}
        constants = program.constants if program.constants.size else np.zeros(1, np.uint8)
        self.buffers[KernelPool.CONSTANTS, 0] = cl.Buffer(
            context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=constants
        )
        for pool, infos in ((KernelPool.INPUT, program.inputs), (KernelPool.OUTPUT, program.outputs)):
            for index, info in enumerate(infos):
                self.buffers[pool, index] = cl.Buffer(context, flags.READ_WRITE, max(info.nbytes, 1))
        built: dict[int, Any] = {}
        started = time.perf_counter()
        self.kernels = []
        for launch in program.launches:
            unit = program.units[launch.unit]
            if launch.unit not in built:
                built[launch.unit] = cl.Program(context, unit.source).build(options=list(unit.options))
            kernel, values = cl.Kernel(built[launch.unit], launch.kernel), []
            for argument in launch.arguments:
                if isinstance(argument, BufferRef):
                    values += [self.buffers[argument.pool, argument.index], np.int64(argument.offset)]
                else:
                    values.append(argument)
            kernel.set_args(*values)
            self.kernels.append((kernel, launch.global_size, launch.local_size))
        self.build_seconds = time.perf_counter() - started

    def write(self, array: np.ndarray, index: int = 0) -> None:
        """Fill an input."""
        cl.enqueue_copy(self.queue, self.buffers[KernelPool.INPUT, index], np.ascontiguousarray(array))

    def read(self, index: int = 0) -> np.ndarray:
        """An output."""
        info = self.program.outputs[index]
        result = np.empty(info.dims, info.dtype.numpy)
        cl.enqueue_copy(self.queue, result, self.buffers[KernelPool.OUTPUT, index])
        return result

    def enqueue(self) -> None:
        """Enqueue all launches."""
        queue = self.queue
        for kernel, global_size, local_size in self.kernels:
            cl.enqueue_nd_range_kernel(queue, kernel, global_size, local_size)


def least(queue: Any, work: Callable[[], object], repeats: int = 20, batches: int = 7) -> float:
    """Seconds of one piece of work, of many enqueued at once."""
    work()
    queue.finish()
    best = float("inf")
    for _ in range(batches):
        started = time.perf_counter()
        for _ in range(repeats):
            work()
        queue.finish()
        best = min(best, (time.perf_counter() - started) / repeats)
    return best


def peak(queue: Any) -> tuple[float, float]:
    """Multiply-adds per second as FLOP/s, and bytes per second that a copy reads and writes."""
    source = """
kernel void mads(global float *y, float a, float b) {
  float v[16]; int i = get_global_id(0);
  for (int j = 0; j < 16; ++j) v[j] = i + j;
  for (int n = 0; n < 512; ++n)
    for (int j = 0; j < 16; ++j) v[j] = mad(v[j], a, b);
  float sum = 0; for (int j = 0; j < 16; ++j) sum += v[j];
  if (sum == 12345.678f) y[i] = sum;
}
kernel void copy(global const float4 *x, global float4 *y) { y[get_global_id(0)] = x[get_global_id(0)]; }
"""
    context = queue.context
    program = cl.Program(context, source).build(options=["-cl-mad-enable"])
    nbytes = 256 << 20 if queue.device.type & cl.device_type.GPU else 32 << 20
    x, y = (cl.Buffer(context, cl.mem_flags.READ_WRITE, nbytes) for _ in range(2))
    mads, copy = cl.Kernel(program, "mads"), cl.Kernel(program, "copy")
    mads.set_args(y, np.float32(0.999), np.float32(0.001))
    copy.set_args(x, y)
    items = 1 << 20 if queue.device.type & cl.device_type.GPU else 1 << 12
    flops = items * 512 * 16 * 2 / least(queue, lambda: cl.enqueue_nd_range_kernel(queue, mads, (items,), (256,)), 3)
    seconds = least(queue, lambda: cl.enqueue_nd_range_kernel(queue, copy, (nbytes // 16,), (256,)), 3)
    return flops, 2 * nbytes / seconds


def matmul_graph(m: int, n: int, k: int, rng: np.random.Generator) -> tuple[Graph, np.ndarray]:
    """A product with a constant right matrix."""
    graph = Graph("matmul")
    x = graph.create_tensor("x", TensorType.APP_WRITE, F32, (m, k))
    y = graph.create_tensor("y", TensorType.APP_READ, F32, (m, n))
    weights = rng.standard_normal((k, n)).astype(np.float32)
    graph.add_node("product", "MatMul", [x, graph.constant("w", weights)], [y])
    graph.finalize()
    return graph, weights


def conv_graph(
    size: int,
    channels: int,
    filters: int,
    kernel: int,
    rng: np.random.Generator,
    stride: int = 1,
    depth_wise: bool = False,
) -> tuple[Graph, np.ndarray]:
    """A convolution of one image with padding that keeps its size."""
    graph, pad = Graph("conv"), kernel // 2
    x = graph.create_tensor("x", TensorType.APP_WRITE, F32, (1, size, size, channels))
    out = (size + 2 * pad - kernel) // stride + 1
    y = graph.create_tensor("y", TensorType.APP_READ, F32, (1, out, out, filters))
    shape = (kernel, kernel, 1 if depth_wise else channels, filters)
    weights = rng.standard_normal(shape).astype(np.float32)
    parameters = {"stride": [stride, stride], "pad_amount": [[pad, pad]] * 2}
    op = "DepthWiseConv2d" if depth_wise else "Conv2d"
    graph.add_node("conv", op, [x, graph.constant("w", weights)], [y], parameters)
    graph.finalize()
    return graph, weights


def mobile_net(rng: np.random.Generator) -> Graph:
    """A network with the layers of MobileNetV2 at 224x224, random weights."""
    graph = Graph("mobile")
    count = iter(range(10**6))

    def conv(x: Any, filters: int, kernel: int, stride: int, limit: bool, depth_wise: bool = False) -> Any:
        channels, pad = x.dims[-1], kernel // 2
        shape = (kernel, kernel, 1 if depth_wise else channels, filters)
        weights = (rng.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)
        bias = rng.standard_normal(filters).astype(np.float32)
        name = f"c{next(count)}"
        parameters = {"stride": [stride, stride], "pad_amount": [[pad, pad]] * 2}
        op = "DepthWiseConv2d" if depth_wise else "Conv2d"
        y = graph.emit(op, [x, graph.constant(name + "w", weights), graph.constant(name + "b", bias)], parameters)[0]
        return graph.emit("Relu6", [y])[0] if limit else y

    x = conv(graph.create_tensor("x", TensorType.APP_WRITE, F32, (1, 224, 224, 3)), 32, 3, 2, True)
    for expand, filters, repeats, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for index in range(repeats):
            start, step = x, stride if index == 0 else 1
            wide = start.dims[-1] * expand
            x = conv(start, wide, 1, 1, True) if expand > 1 else start
            x = conv(x, wide, 3, step, True, depth_wise=True)
            x = conv(x, filters, 1, 1, False)
            if step == 1 and start.dims == x.dims:
                x = graph.emit("ElementWiseAdd", [start, x])[0]
    x = conv(x, 1280, 1, 1, True)
    x = graph.emit("PoolAvg2d", [x], {"filter_size": [7, 7], "stride": [7, 7], "pad_amount": [[0, 0], [0, 0]]})[0]
    weights = (rng.standard_normal((1, 1, 1280, 1000)) / 36).astype(np.float32)
    y = graph.create_tensor("y", TensorType.APP_READ, F32, (1, 1, 1, 1000))
    parameters = {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]}
    graph.add_node("head", "Conv2d", [x, graph.constant("head", weights)], [y], parameters)
    graph.finalize()
    return graph


def measure(
    queue: Any, traits: DeviceTraits, graph: Graph, precision: FloatStorage = FloatStorage.FP32
) -> tuple[float, Bound]:
    """Seconds of one execution."""
    bound = Bound(queue, prepare(graph, traits, precision))
    for index, info in enumerate(bound.program.inputs):
        bound.write(np.random.default_rng(3).standard_normal(info.dims).astype(np.float32), index)
    return least(queue, bound.enqueue), bound


def torch_times() -> dict[str, float]:
    """The same on PyTorch, where it is installed and sees a device."""
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    def timed(work: Callable[[], object]) -> float:
        best = float("inf")
        for _ in range(7):
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(20):
                work()
            torch.cuda.synchronize()
            best = min(best, (time.perf_counter() - started) / 20)
        return best

    with torch.no_grad():
        a, b = (torch.randn(1024, 1024, device="cuda") for _ in range(2))
        image = torch.randn(1, 256, 56, 56, device="cuda")
        layer = torch.nn.Conv2d(256, 256, 3, padding=1).cuda()
        return {"matmul 1024^3": timed(lambda: a @ b), "conv 3x3 256ch 56x56": timed(lambda: layer(image))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiles", action="store_true", help="time every tile of a product as well")
    parser.add_argument("--device", type=int, default=0)
    arguments = parser.parse_args()
    devices = [device for platform in cl.get_platforms() for device in platform.get_devices()]
    device = sorted(devices, key=lambda d: not d.type & cl.device_type.GPU)[arguments.device]
    queue = cl.CommandQueue(cl.Context([device]))
    traits, rng = traits_of(device), np.random.default_rng(1)
    flops, bandwidth = peak(queue)
    print(f"{device.name}: {traits}")
    print(f"mad peak {flops / 1e12:.2f} TFLOP/s, copy {bandwidth / 1e9:.0f} GB/s", flush=True)
    torch = torch_times()
    for name, graph, weights, work in (
        ("matmul 1024^3", *matmul_graph(1024, 1024, 1024, rng), 2 * 1024**3),
        ("conv 3x3 256ch 56x56", *conv_graph(56, 256, 256, 3, rng), 2 * 56 * 56 * 256 * 256 * 9),
        ("conv 1x1 96>24 56x56", *conv_graph(56, 96, 24, 1, rng), 2 * 56 * 56 * 96 * 24),
        ("conv 1x1 320>1280 7x7", *conv_graph(7, 320, 1280, 1, rng), 2 * 49 * 320 * 1280),
        ("conv 1x1 960>160 7x7", *conv_graph(7, 960, 160, 1, rng), 2 * 49 * 960 * 160),
        ("depth-wise 3x3 384ch 14x14", *conv_graph(14, 384, 384, 3, rng, depth_wise=True), 2 * 196 * 384 * 9),
    ):
        seconds, bound = measure(queue, traits, graph)
        nbytes = weights.nbytes + sum(info.nbytes for info in (*bound.program.inputs, *bound.program.outputs))
        beside = f"; PyTorch {torch[name] * 1e6:.1f} us" if name in torch else ""
        print(
            f"{name:28} {seconds * 1e6:8.1f} us {work / seconds / 1e12:7.2f} TFLOP/s"
            f" ({100 * work / seconds / flops:.0f} % of peak), {nbytes / seconds / 1e9:.0f} GB/s"
            f" ({100 * nbytes / seconds / bandwidth:.0f} %), {len(bound.kernels)} launches,"
            f" built in {bound.build_seconds:.1f} s{beside}",
            flush=True,
        )
    if arguments.tiles:
        search(queue, traits, rng)
    network = mobile_net(rng)
    for precision in (FloatStorage.FP32, FloatStorage.FP16):
        bound = Bound(queue, prepare(network, traits, precision))
        bound.write(rng.standard_normal((1, 224, 224, 3)).astype(np.float32))
        queue.finish()

        def once(ready: Bound = bound) -> None:
            ready.enqueue()
            queue.finish()

        seconds = least(queue, once, 5)
        started = time.perf_counter()
        bound.enqueue()
        host = time.perf_counter() - started
        queue.finish()
        print(
            f"MobileNetV2-like {precision.value}: {seconds * 1e3:.3f} ms, {len(bound.kernels)} launches,"
            f" host {host * 1e6:.0f} us",
            flush=True,
        )
    profile(device, bound.program)


def profile(device: Any, program: KernelProgram) -> None:
    """Where the time of a network goes, by kernel."""
    queue = cl.CommandQueue(cl.Context([device]), properties=cl.command_queue_properties.PROFILING_ENABLE)
    bound = Bound(queue, program)
    bound.enqueue()
    queue.finish()
    rows = []
    for launch, (kernel, global_size, local_size) in zip(program.launches, bound.kernels, strict=True):
        times = []
        for _ in range(5):
            event = cl.enqueue_nd_range_kernel(queue, kernel, global_size, local_size)
            event.wait()
            times.append(event.profile.end - event.profile.start)
        rows.append((min(times), program.steps[launch.step], global_size, local_size))
    print(f"kernels alone: {sum(row[0] for row in rows) / 1e3:.0f} us")
    for nanoseconds, label, global_size, local_size in sorted(rows, reverse=True)[:12]:
        print(f"  {nanoseconds / 1e3:7.1f} us {label} {global_size} {local_size}")


def _always(candidate: tuple[int, ...]) -> Callable[..., tiles.ClTile]:
    rows, columns, depth, item_rows, item_columns, slices = candidate

    def fixed(traits: DeviceTraits, m: int, n: int, batches: int, k: int = 0) -> tiles.ClTile:
        return tiles.ClTile(False, rows, columns, item_rows, item_columns, depth, slices, -(-n // 4) * 4)

    return fixed


def search(queue: Any, traits: DeviceTraits, rng: np.random.Generator) -> None:
    """Time products and convolutions with every candidate tile."""
    candidates = [
        (128, 128, 8, 8, 8, 1), (64, 64, 16, 8, 8, 1), (64, 64, 8, 8, 8, 2), (64, 64, 16, 8, 8, 2),
        (64, 64, 8, 8, 8, 4), (64, 32, 16, 8, 4, 2), (64, 32, 16, 4, 4, 2), (32, 32, 16, 4, 4, 2),
        (32, 32, 16, 4, 4, 4), (64, 128, 8, 8, 8, 2), (32, 64, 16, 4, 8, 2), (32, 32, 16, 4, 4, 8),
        (16, 32, 16, 2, 4, 4), (32, 64, 8, 8, 8, 4), (64, 64, 16, 8, 4, 2),
        *((height, 32, 0, height, 1, slices) for height in (2, 4, 8) for slices in (8, 16)),
    ]  # fmt: skip
    chosen = tiles.product_tile
    shapes = {
        "matmul 1024": (matmul_graph(1024, 1024, 1024, rng)[0], 2 * 1024**3),
        "conv 256ch 56": (conv_graph(56, 256, 256, 3, rng)[0], 2 * 56 * 56 * 256 * 256 * 9),
        "1x1 16>96 112": (conv_graph(112, 16, 96, 1, rng)[0], 2 * 112 * 112 * 16 * 96),
        "1x1 144>32 28": (conv_graph(28, 144, 32, 1, rng)[0], 2 * 28 * 28 * 144 * 32),
        "1x1 384>64 14": (conv_graph(14, 384, 64, 1, rng)[0], 2 * 196 * 384 * 64),
        "1x1 64>384 14": (conv_graph(14, 64, 384, 1, rng)[0], 2 * 196 * 384 * 64),
        "1x1 960>160 7": (conv_graph(7, 960, 160, 1, rng)[0], 2 * 49 * 960 * 160),
        "1x1 160>960 7": (conv_graph(7, 160, 960, 1, rng)[0], 2 * 49 * 960 * 160),
    }
    try:
        for label, (graph, work) in shapes.items():
            found = []
            for candidate in candidates:
                if not candidate[2] and label in ("matmul 1024", "conv 256ch 56"):
                    continue
                product.product_tile = _always(candidate)
                try:
                    seconds, _ = measure(queue, traits, graph)
                except Exception as problem:  # a candidate that this device refuses
                    print(f"  {label} {candidate}: {type(problem).__name__} {str(problem)[:100]}")
                    queue = cl.CommandQueue(cl.Context([queue.device]))  # a fault leaves nothing of the old one
                    continue
                found.append((seconds, candidate))
            for seconds, candidate in sorted(found)[:6]:
                print(f"  {label} {candidate}: {seconds * 1e6:.1f} us {work / seconds / 1e12:.2f} TFLOP/s", flush=True)
    finally:
        product.product_tile = chosen


if __name__ == "__main__":
    main()
