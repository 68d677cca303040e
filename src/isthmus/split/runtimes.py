"""Whether two files give the same bits in the runtime of their format, where it is installed, and LiteRT's arena.

Nothing else here needs a runtime: this is for those who want to see it.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.split.tflite import TfliteFile

ROUNDS = 2
"""How many random inputs are tried."""


def same_bits_onnx(before: bytes, after: bytes, threads: int = 1) -> dict[str, bool]:
    """Whether ONNX Runtime computes the same bits from both files, by how far it optimizes.

    With more than four threads its floats depend on how it shares out pixels, of one and the same file too.

    Raises
    ------
    QnnError
        COMMON_RESOURCE_UNAVAILABLE if it is not installed.
    """
    runtime = _installed("onnxruntime", "onnxruntime")
    levels = {"as written": "ORT_DISABLE_ALL", "optimized": "ORT_ENABLE_ALL"}
    found = {}
    for title, level in levels.items():
        sessions = []
        for data in (before, after):
            options = runtime.SessionOptions()
            options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, level)
            options.log_severity_level = 3
            options.intra_op_num_threads = threads
            sessions.append(runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"]))
        found[title] = True
        for seed in range(ROUNDS):
            rng = np.random.default_rng(seed)
            feeds = {
                entry.name: _random(rng, _ONNX_TYPES.get(entry.type, np.float32), entry.shape)
                for entry in sessions[1].get_inputs()
            }
            found[title] &= _equal(*(session.run(None, feeds) for session in sessions))
    return found


def same_bits_tflite(before: bytes, after: bytes) -> dict[str, bool]:
    """Whether LiteRT computes the same bits from both files, by which of its kernels.

    Raises
    ------
    QnnError
        COMMON_RESOURCE_UNAVAILABLE if it is not installed.
    """
    kinds = {"its own kernels": "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "with XNNPACK": "AUTO"}
    found = {}
    for title, kind in kinds.items():
        interpreters = [_interpreter(data, kind) for data in (before, after)]
        found[title] = True
        for seed in range(ROUNDS):
            results = []
            for interpreter in interpreters:
                rng = np.random.default_rng(seed)
                for entry in interpreter.get_input_details():
                    interpreter.set_tensor(entry["index"], _random(rng, entry["dtype"], entry["shape"]))
                interpreter.invoke()
                results.append([interpreter.get_tensor(e["index"]) for e in interpreter.get_output_details()])
            found[title] &= _equal(*results)
    return found


def litert_arena(data: bytes) -> int:
    """The bytes that LiteRT's arena spans: from the first byte of the lowest tensor in it to the last of the highest.

    The addresses are those that LiteRT itself gives its tensors, without delegates. It keeps inputs to the end.
    """
    file = TfliteFile(data, "model")
    interpreter = _interpreter(data, "BUILTIN_WITHOUT_DEFAULT_DELEGATES")
    touched = set(file.network.begin) - {index for index in file.network.begin if not file.network.values[index].bytes}
    places = []
    for index in touched:
        array = interpreter.tensor(index)()
        start = array.__array_interface__["data"][0]
        places.append((start, start + array.nbytes))
    return max(end for _, end in places) - min(start for start, _ in places)


_ONNX_TYPES: dict[str, Any] = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8, "tensor(int8)": np.int8, "tensor(int32)": np.int32, "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}  # fmt: skip


def _interpreter(data: bytes, kind: str) -> Any:
    module = _installed("ai_edge_litert.interpreter", "ai-edge-litert")
    resolver = getattr(module.OpResolverType, kind)
    interpreter = module.Interpreter(model_content=data, experimental_op_resolver_type=resolver, num_threads=1)
    interpreter.allocate_tensors()
    return interpreter


def _installed(module: str, package: str) -> Any:
    if find_spec(module.partition(".")[0]) is None:
        raise QnnError(
            Code.COMMON_RESOURCE_UNAVAILABLE,
            "--check",
            f"the package '{package}' is not installed",
            f"Install it with: pip install {package}",
        )
    return import_module(module)


def _random(rng: np.random.Generator, dtype: Any, shape: Any) -> np.ndarray:
    kind = np.dtype(dtype)
    dims = [int(d) for d in shape]
    if kind.kind == "f":
        return rng.uniform(-1, 1, dims).astype(kind)
    if kind.kind == "b":
        return rng.integers(0, 2, dims).astype(kind)
    low, high = (0, 2) if kind.itemsize > 1 else (np.iinfo(kind).min, np.iinfo(kind).max + 1)
    return rng.integers(low, high, dims).astype(kind)


def _equal(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(
        (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes()) for a, b in pairs
    )
