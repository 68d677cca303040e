"""The recommended workflow of the low-power AI core (LPAI), step by step, on a streaming wake word.

Every byte that the graph works in is allocated here: scratch that may be overwritten, and persistent memory that keeps
the stream's state. To prove it, scratch is filled with garbage between every two steps.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from wake_word import FRAMES_PER_STEP, STEP_SECONDS, THRESHOLD, find_model

from isthmus import memory, qnn
from isthmus.qnn import lpai

CONFIG = {
    "lpai_backend": {"target_env": "x86", "enable_hw_ver": "v6"},
    "lpai_graph": {"execute": {"fps": 33, "ftrt_ratio": 10, "client_type": "real_time"}},
}


def main() -> None:
    """Walk through the eight steps."""
    features = np.load(Path(__file__).parent / "data" / "okay_nabu_in_int8.npy")
    with qnn.Backend("lpai", CONFIG) as backend:
        context = backend.create_context()
        graph = context.compose(find_model())

        alignment = backend.get_property(lpai.ALIGNMENT_REQ)
        start, step = alignment.start_addr_alignment, alignment.size_alignment
        print(f"1. alignment          addresses a multiple of {start}, sizes of {step}")

        scratch_size = graph.get_property(lpai.SCRATCH_MEM_SIZE)
        print(f"2. scratch size       {scratch_size:,} bytes, inputs and outputs among them")

        persistent_size = graph.get_property(lpai.PERSISTENT_MEM_SIZE)
        print(f"3. persistent size    {persistent_size:,} bytes")

        scratch = memory.host(scratch_size, start)
        persistent = memory.host(persistent_size, start)
        print(f"4. allocated          scratch at {scratch.address:#x}, state at {persistent.address:#x}")

        graph.set_config(lpai.SCRATCH_MEM, lpai.Mem(lpai.MemType.DDR, scratch_size, scratch))
        graph.set_config(lpai.PERSISTENT_MEM, lpai.Mem(lpai.MemType.DDR, persistent_size, persistent))
        print("5. set                both pools are the graph's now")

        graph.finalize()
        print("6. finalized          the initial state lies in persistent memory")

        [frame], [probability] = graph.inputs.values(), graph.outputs.values()
        print(f"7. IO                 views inside scratch: {frame.dtype}{list(frame.shape)} in, a probability out")

        heard, spent = [], []
        garbage = np.random.default_rng(0)
        for frames in features[: len(features) // FRAMES_PER_STEP * FRAMES_PER_STEP].reshape(-1, *frame.shape):
            scratch.array[:] = garbage.integers(0, 256, scratch_size, np.uint8)
            frame[...] = frames
            begin = time.perf_counter()
            graph.execute()
            spent.append(time.perf_counter() - begin)
            heard.append(int(probability[0, 0]) / 255)
        stats = graph.stats
        print(f"8. executed           {stats.executions} times, {stats.copied_bytes} bytes copied\n")
    scratch.close()
    persistent.close()

    bars = "".join(" ▁▂▃▄▅▆▇█"[round(p * 8)] for p in heard)
    print(f"   probability over {len(heard) * STEP_SECONDS:.1f} s of speech\n   |{bars}|")
    loud = [i for i, p in enumerate(heard) if p > THRESHOLD]
    if not loud:
        sys.exit("   the wake word was not heard")
    per_step = float(np.median(spent))
    print(
        f"   “okay nabu” heard at {loud[0] * STEP_SECONDS:.2f} s (p = {max(heard):.3f}); "
        f"{per_step * 1e6:.1f} µs a step (median), {STEP_SECONDS / per_step:,.0f} times faster than real time"
    )


if __name__ == "__main__":
    main()
