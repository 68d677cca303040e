"""The client's own OpenCL buffers as tensors, step by step: allocate, register, fill by a kernel, execute, map, let go.

It follows the listing of QNN's GPU tutorial and puts its slips right: what is registered is the OpenCL buffer and not
the memory that malloc gave; each tensor has a buffer of its own; what is mapped are all bytes of the buffer and not the
size of a size; and every call's own answer is looked at, which in Python an exception does.

A camera's bytes are turned into floats by a kernel of the client's, straight into the registered input. A drawing
kernel reads the registered output. The three are chained by events: nothing leaves the device in between.
"""

from __future__ import annotations

import time

import numpy as np
import pyopencl as cl

from isthmus import QnnError, qnn
from isthmus.qnn import ClientTensor, DataType, DescriptorType, MemDescriptor, TensorMemType, TensorType, gpu

DIMS = (64, 128)
NBYTES = 64 * 128 * 4

KERNELS = """
kernel void to_floats(global const uchar *camera, global float *input) {
    size_t i = get_global_id(0);
    input[i] = camera[i] / 255.0f;
}
kernel void to_pixels(global const float *output, global uchar *screen) {
    size_t i = get_global_id(0);
    screen[i] = convert_uchar_sat_rte(output[i] * 255.0f);
}
"""


def compose(context: qnn.Context) -> qnn.Graph:
    """A graph that brightens an image. Its tensors will lie in registered memory, so nothing is reserved for copies."""
    graph = context.create_graph("brighten")
    x = graph.create_tensor("input", TensorType.APP_WRITE, DataType.FLOAT_32, DIMS, mem_type=TensorMemType.MEMHANDLE)
    y = graph.create_tensor("output", TensorType.APP_READ, DataType.FLOAT_32, DIMS, mem_type=TensorMemType.MEMHANDLE)
    gain = graph.create_tensor("gain", TensorType.STATIC, DataType.FLOAT_32, (1,), None, np.float32([1.5]))
    graph.add_node("multiply", "ElementWiseMultiply", [x, gain], [y])
    graph.finalize()
    return graph


def describe(buffer: cl.Buffer) -> MemDescriptor:
    """A tensor's memory: CUSTOM, with the GPU's own structure, which names the OpenCL buffer."""
    custom = gpu.GpuMemInfo(mem_type=gpu.MemType.OPENCL, buffer=buffer)
    return MemDescriptor(DIMS, DataType.FLOAT_32, DescriptorType.CUSTOM, custom=custom)


def main() -> None:
    """Walk through the steps."""
    # The client has its own context and queue. A backend that is told of none makes its own, and tells of them.
    context = cl.create_some_context(interactive=False)
    queue = cl.CommandQueue(context)
    with qnn.Backend("gpu", {"gpu": {"context": context, "queue": queue}}) as backend:
        print(f"1. device       {queue.device.name}, in the client's own context and queue")

        qnn_context = backend.create_context()
        graph = compose(qnn_context)
        print(f"2. prepared     {graph.stats.staging_prepare_bytes} bytes reserved for copies")

        flags = cl.mem_flags.READ_WRITE
        tensors = {name: cl.Buffer(context, flags, NBYTES) for name in ("input", "output")}
        image = np.random.default_rng(0).integers(0, 256, DIMS, np.uint8)
        camera = cl.Buffer(context, cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR, hostbuf=image)
        screen = cl.Buffer(context, flags, image.nbytes)
        print(f"3. allocated    an OpenCL buffer of {NBYTES:,} bytes for each tensor")

        handles = qnn_context.mem_register([describe(buffer) for buffer in tensors.values()])
        inputs = [ClientTensor("input", mem_handle=handles[0])]
        outputs = [ClientTensor("output", mem_handle=handles[1])]
        print("4. registered   one buffer, one handle, one tensor")
        try:
            qnn_context.mem_register([describe(tensors["input"])])
        except QnnError as refusal:
            print(f"5. again        {refusal}")

        program = cl.Program(context, KERNELS).build()
        to_floats, to_pixels = cl.Kernel(program, "to_floats"), cl.Kernel(program, "to_pixels")
        to_floats.set_args(camera, tensors["input"])
        to_pixels.set_args(tensors["output"], screen)
        binding = graph.bind(inputs, outputs)

        def frame() -> cl.Event:
            filled = cl.enqueue_nd_range_kernel(queue, to_floats, (image.size,), None)
            brightened = binding.execute(wait_for=[filled])
            return cl.enqueue_nd_range_kernel(queue, to_pixels, (image.size,), None, wait_for=[brightened.cl])

        frame().wait()
        times = []
        for _ in range(100):
            begin = time.perf_counter()
            frame().wait()
            times.append(time.perf_counter() - begin)
        stats = binding.stats
        print(
            f"6. executed     {stats.executions} frames, {np.median(times) * 1e6:.0f} µs each, "
            f"{stats.copied_bytes} bytes between host and device, in place {stats.in_place_bytes}"
        )

        output = tensors["output"]
        mapped, event = cl.enqueue_map_buffer(queue, output, cl.map_flags.READ, 0, DIMS, np.float32, is_blocking=False)
        event.wait()
        right = np.allclose(mapped, image / np.float32(255) * np.float32(1.5), rtol=1e-6)
        print(f"7. mapped       {mapped.nbytes:,} bytes of the output, results {'right' if right else 'WRONG'}")
        try:
            binding.execute()
        except QnnError as refusal:
            print(f"8. too early    {refusal}")
        mapped.base.release(queue).wait()

        binding.execute()
        binding.close()
        qnn_context.mem_deregister(handles)
        print("9. deregistered the buffers are the client's alone")
    for buffer in (*tensors.values(), camera, screen):
        buffer.release()


if __name__ == "__main__":
    main()
