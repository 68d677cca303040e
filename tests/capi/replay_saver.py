"""Replays a Saver recording in this process, and executes its graph as soon as the recording has finalized it.

``python replay_saver.py RECORDING.so FEEDS.npz RESULTS.npz`` in the folder of ``params.bin``. The recording is compiled
as a library, its ``main`` renamed; the back end that it is linked with uses the interpreter that runs here.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from isthmus import qnn


def main(recording: str, feeds: str, results: str) -> int:
    given: Mapping[str, np.ndarray] = dict(np.load(feeds))
    outcome: dict[str, np.ndarray] = {}
    finalize = qnn.Graph.finalize

    def finalized(graph: qnn.Graph, *arguments: Any) -> None:
        finalize(graph, *arguments)
        outcome.update(executed(graph, given))

    qnn.Graph.finalize = finalized  # type: ignore[method-assign]
    answer = ctypes.CDLL(recording).recording(1, (ctypes.c_char_p * 2)(b"recording", None))
    np.savez(results, **{f"output {name}": value for name, value in outcome.items()})
    return int(answer)


def executed(graph: qnn.Graph, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what a graph makes of real numbers, as real numbers."""
    memory = graph.allocate()
    for info in graph.input_tensors:
        value = feeds[info.name]
        stored = value if info.quantization is None else info.quantization.quantize(value, info.dtype.numpy)
        memory.inputs[info.name][...] = stored.reshape(info.dims)
    memory.binding.execute()
    got = {}
    for info in graph.output_tensors:
        view = memory.outputs[info.name]
        got[info.name] = view.copy() if info.quantization is None else info.quantization.dequantize(view)
        if info.quantization is not None:
            got[f"step of {info.name}"] = np.float32(info.quantization.scale)
    memory.close()
    return got


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
