"""HTP's shared buffers, step by step: allocate with rpcmem, register, execute where the data lies, let go.

The accelerator is another process that sees only what is shared with it. The last step kills it, to show what a client
then sees and how it recovers.
"""

from __future__ import annotations

import os
import signal
import time

import numpy as np

from isthmus import QnnError, qnn
from isthmus.graph import DataType, TensorMemType, TensorType
from isthmus.memory import rpcmem
from isthmus.qnn import ClientTensor, DescriptorType, MemDescriptor, htp

DIMS = (1, 224, 224, 3)
NBYTES = 4 * 224 * 224 * 3


def compose(context: qnn.Context) -> qnn.Graph:
    """A graph that brightens an image, prepared for shared memory."""
    graph = context.create_graph("brighten")
    x = graph.create_tensor("image", TensorType.APP_WRITE, DataType.FLOAT_32, DIMS, mem_type=TensorMemType.MEMHANDLE)
    y = graph.create_tensor("result", TensorType.APP_READ, DataType.FLOAT_32, DIMS, mem_type=TensorMemType.MEMHANDLE)
    gain = graph.create_tensor("gain", TensorType.STATIC, DataType.FLOAT_32, (1,), None, np.float32([1.5]))
    graph.add_node("multiply", "ElementWiseMultiply", [x, gain], [y])
    graph.finalize()
    return graph


def register(
    context: qnn.Context, buffer: rpcmem.RpcBuffer
) -> tuple[tuple[ClientTensor, ...], tuple[ClientTensor, ...]]:
    """Both tensors in one buffer, each at an offset with a handle of its own."""
    handles = context.mem_register(
        MemDescriptor(
            DIMS,
            DataType.FLOAT_32,
            DescriptorType.CUSTOM,
            custom=htp.Descriptor(size=buffer.nbytes, fd=rpcmem.to_fd(buffer), offset=offset),
        )
        for offset in (0, NBYTES)
    )
    return (ClientTensor("image", mem_handle=handles[0]),), (ClientTensor("result", mem_handle=handles[1]),)


def main() -> None:
    """Walk through the steps."""
    with qnn.Backend("htp") as backend:
        context = backend.create_context()
        print(f"1. accelerator        process {backend.get_property(htp.ACCELERATOR_PID)}, this one is {os.getpid()}")

        graph = compose(context)
        print(f"2. prepared           {graph.stats.staging_prepare_bytes} bytes reserved for copies")

        buffer = rpcmem.alloc(rpcmem.HEAP_ID_SYSTEM, rpcmem.DEFAULT_FLAGS, 2 * NBYTES)
        image, result = (buffer.view(np.float32, DIMS, offset) for offset in (0, NBYTES))
        print(f"3. allocated          {buffer.nbytes:,} bytes, file descriptor {buffer.fd}")

        inputs, outputs = register(context, buffer)
        print("4. registered         two handles in one buffer")

        image[...] = np.random.default_rng(0).random(DIMS, np.float32)
        times = []
        for _ in range(1000):
            begin = time.perf_counter()
            graph.execute(inputs, outputs)
            times.append(time.perf_counter() - begin)
        right = np.array_equal(result, image * np.float32(1.5))
        print(
            f"5. executed           {len(times)} times, {np.median(times) * 1e6:.1f} µs each, "
            f"{graph.stats.copied_bytes} bytes copied, results {'right' if right else 'WRONG'}"
        )

        try:
            rpcmem.free(buffer)
        except QnnError as refusal:
            print(f"6. freed too early    {refusal}")

        os.kill(backend.get_property(htp.ACCELERATOR_PID), signal.SIGKILL)
        try:
            while True:
                graph.execute(inputs, outputs)
        except QnnError as refusal:
            print(f"7. killed             {refusal}")

        context.free()
        context = backend.create_context()
        graph = compose(context)
        inputs, outputs = register(context, buffer)
        result[...] = 0
        graph.execute(inputs, outputs)
        right = np.array_equal(result, image * np.float32(1.5))
        print(f"8. recovered          the image was still there, results {'right' if right else 'WRONG'}")
        context.free()
        rpcmem.free(buffer)


if __name__ == "__main__":
    main()
