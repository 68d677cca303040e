"""Comparison of two files' results in the runtime of their format, if that is installed, and the size of LiteRT's
arena.

No other module of this package needs a runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.frontends.runtimes import ONNX_DATA_FOLDER, converted_errors, import_runtime
from isthmus.graph.random_arrays import random_array

ROUNDS = 2
"""The number of random inputs to try."""
# The files before and after the split, in messages.
_FILES = ("the model", "the split file")


@dataclass(frozen=True)
class Difference:
    """The difference between the results of two files, over all inputs tried.

    - `same_bits`: whether all results have the same shapes, types and bits.
    - `largest`: the largest difference between two numbers; None if they cannot be compared: shapes differ, or only one
      is a number.
    - `reach`: the largest magnitude among the first file's results.
    """

    same_bits: bool = True
    largest: float | None = 0.0
    reach: float = 0.0

    def __str__(self) -> str:
        if self.same_bits:
            return "the same bits"
        if self.largest is None:
            return "OTHER BITS, which cannot be compared"
        return f"OTHER BITS, up to {self.largest:.2g} apart where results reach {self.reach:.2g}"


def compare_onnx(before: bytes, after: bytes, threads: int = 1, folder: Path | None = None) -> dict[str, Difference]:
    """Compare the results of both files in ONNX Runtime; return the difference for each optimization level by name.

    With more than four threads, its float results depend on how it divides pixels between threads, even for the same
    file.

    - `folder`: the folder of files with weights, if there are any.

    Raises `QnnError`: COMMON_RESOURCE_UNAVAILABLE if it is not installed, COMMON_NOT_SUPPORTED if it cannot load or run
    a file.
    """
    runtime = import_runtime("onnxruntime", "onnxruntime", "--check")
    levels = {"as written": "ORT_DISABLE_ALL", "optimized": "ORT_ENABLE_ALL"}
    differences = {}
    for title, level in levels.items():
        sessions = []
        for what, data in zip(_FILES, (before, after), strict=True):
            options = runtime.SessionOptions()
            options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, level)
            options.log_severity_level = 4  # only fatal errors
            options.intra_op_num_threads = threads
            if folder is not None:
                options.add_session_config_entry(ONNX_DATA_FOLDER, str(folder))
            with converted_errors(what, "ONNX Runtime cannot load it"):
                sessions.append(runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"]))
        differences[title] = Difference()
        for seed in range(ROUNDS):
            generator = np.random.default_rng(seed)
            feeds = {
                entry.name: random_array(generator, _ONNX_TYPES.get(entry.type, np.float32), entry.shape)
                for entry in sessions[1].get_inputs()
            }
            results = []
            for what, session in zip(_FILES, sessions, strict=True):
                with converted_errors(what, "ONNX Runtime cannot run it on random inputs"):
                    results.append(session.run(None, feeds))
            differences[title] = _compare(differences[title], *results)
    return differences


def compare_tflite(before: bytes, after: bytes) -> dict[str, Difference]:
    """Compare the results of both files in LiteRT; return the difference for each kind of kernels by name.

    Raises `QnnError`: COMMON_RESOURCE_UNAVAILABLE if it is not installed, COMMON_NOT_SUPPORTED if it cannot load or run
    a file.
    """
    kinds = {"its own kernels": "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "with XNNPACK": "AUTO"}
    differences = {}
    for title, kind in kinds.items():
        interpreters = []
        for what, data in zip(_FILES, (before, after), strict=True):
            with converted_errors(what, "LiteRT cannot load it"):
                interpreters.append(_interpreter(data, kind))
        differences[title] = Difference()
        for seed in range(ROUNDS):
            results = []
            for what, interpreter in zip(_FILES, interpreters, strict=True):
                generator = np.random.default_rng(seed)
                for entry in interpreter.get_input_details():
                    interpreter.set_tensor(entry["index"], random_array(generator, entry["dtype"], entry["shape"]))
                with converted_errors(what, "LiteRT cannot run it on random inputs"):
                    interpreter.invoke()
                results.append([interpreter.get_tensor(e["index"]) for e in interpreter.get_output_details()])
            differences[title] = _compare(differences[title], *results)
    return differences


_ONNX_TYPES: dict[str, Any] = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8, "tensor(int8)": np.int8, "tensor(int32)": np.int32, "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}  # fmt: skip


def _interpreter(data: bytes, kind: str) -> Any:
    """Return a LiteRT interpreter of a file; `kind` names the operator resolver, which selects the kernels."""
    module = import_runtime("ai_edge_litert.interpreter", "ai-edge-litert", "--check")
    resolver = getattr(module.OpResolverType, kind)
    interpreter = module.Interpreter(model_content=data, experimental_op_resolver_type=resolver, num_threads=1)
    interpreter.allocate_tensors()
    return interpreter


def _compare(so_far: Difference, one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> Difference:
    """Add the results of one more input to a known difference."""
    if [(a.shape, a.dtype) for a in one] != [(b.shape, b.dtype) for b in other]:
        return Difference(False, None, so_far.reach)
    same = all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))
    with np.errstate(invalid="ignore", over="ignore"):
        apart = [np.abs(a.astype(np.float64) - b.astype(np.float64)) for a, b in zip(one, other, strict=True)]
    # If both are NaN or the same infinity, there is no difference; if only one is, the difference cannot be measured.
    apart = [np.where(np.equal(a, b) | (np.isnan(a) & np.isnan(b)), 0, d)
             for a, b, d in zip(one, other, apart, strict=True)]  # fmt: skip
    largest = float(np.max([so_far.largest or 0.0, *(d.max(initial=0) for d in apart)]))
    reach = max([so_far.reach, *(float(np.abs(a.astype(np.float64)).max(initial=0)) for a in one)])
    comparable = so_far.largest is not None and bool(np.isfinite(largest))
    return Difference(so_far.same_bits and same, largest if comparable else None, reach)
