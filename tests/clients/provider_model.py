"""Run a model on ONNX Runtime's QNN provider in every way: a program for `test_provider_models.py`.

    python provider_model.py BACKEND MODEL FEED.npz WAY...

prints a line of JSON for each way: the largest difference from the CPU, as a part of the largest value, or the error.
The provider may end the process; then the lines of the ways before that one are there.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from capi import ort_provider
from support import oracles

Feeds = Mapping[str, np.ndarray]
CACHE = {"ep.context_enable": "1"}
SHARED = {"enable_htp_shared_memory_allocator": "1"}
TOGETHER = {"ep.share_ep_contexts": "1"}


def opened(model: Path, backend: Path, *options: Mapping[str, str]) -> Any:
    """Open a session; ONNX Runtime may put its own CPU in the place of a provider that fails."""
    session = ort_provider.session(model, backend, *options)
    if not ort_provider.assigned(session)[0]:
        raise AssertionError("no node is the provider's")
    return session


def plain(backend: Path, model: Path, feeds: Feeds, folder: Path) -> list[np.ndarray]:
    """Run the model itself, twice, the second time with options of a run."""
    session = opened(model, backend)
    session.run(None, feeds)
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("qnn.htp_perf_mode", "burst")
    options.add_run_config_entry("qnn.htp_perf_mode_post_run", "default")
    return list(session.run(None, feeds, options))


def cached(backend: Path, model: Path, feeds: Feeds, folder: Path, embedded: str) -> list[np.ndarray]:
    """Write a cache and run it."""
    file = folder / f"cache{embedded}.onnx"
    ort_provider.session(
        model, backend, config={**CACHE, "ep.context_embed_mode": embedded, "ep.context_file_path": str(file)}
    )
    return list(opened(file, backend).run(None, feeds))


def together(backend: Path, model: Path, feeds: Feeds, folder: Path) -> list[np.ndarray]:
    """Write the caches of two sessions into one context, and run both from it."""
    files = [folder / f"shared{number}.onnx" for number in range(2)]
    for number, file in enumerate(files):
        ending = {"ep.stop_share_ep_contexts": "1"} if file == files[-1] else {}
        # Two graphs of one context need two names, which come from the model's file.
        named = folder / f"model{number}.onnx"
        named.write_bytes(model.read_bytes())
        ort_provider.session(
            named, backend,
            config={**CACHE, **TOGETHER, **ending, "ep.context_embed_mode": "0", "ep.context_file_path": str(file)},
        )  # fmt: skip
    sessions = [opened(file, backend, {}, TOGETHER) for file in files]
    first, second = (session.run(None, feeds) for session in sessions)
    for one, other in zip(first, second, strict=True):
        if not np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
            raise AssertionError("the sessions give different results")
    return list(second)


def bound(backend: Path, model: Path, feeds: Feeds, folder: Path) -> list[np.ndarray]:
    """Run with bound inputs and outputs, and the allocator of shared memory."""
    session = opened(model, backend, SHARED)
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_cpu_input(name, value)
    for output in session.get_outputs():
        binding.bind_output(output.name)
    for _ in range(3):
        session.run_with_iobinding(binding)
    return list(binding.copy_outputs_to_cpu())


WAYS: dict[str, Callable[[Path, Path, Feeds, Path], list[np.ndarray]]] = {
    "plain": plain,
    "embedded cache": lambda *given: cached(*given, embedded="1"),
    "separate cache": lambda *given: cached(*given, embedded="0"),
    "shared context": together,
    "bound, shared memory": bound,
}


def difference(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Return the largest difference, as a part of the largest value of its tensor; infinite where one is no number."""
    most = 0.0
    for one, other in zip(found, expected, strict=True):
        if other.size and other.dtype != object:
            reals = np.asarray(one, np.float64), np.asarray(other, np.float64)
            finite = np.isfinite(reals[1])
            if not np.array_equal(reals[0][~finite], reals[1][~finite], equal_nan=True):
                return np.inf
            if finite.any():
                apart = np.abs(reals[0] - reals[1])[finite].max() / max(1e-6, np.abs(reals[1][finite]).max())
                most = max(most, np.inf if np.isnan(apart) else float(apart))
    return most


def main(backend: str, model: str, file: str, *ways: str) -> None:
    """Run in these ways and print what came of each, a line each: a process that dies has printed those before."""
    feeds = dict(np.load(file))
    expected = oracles.onnx_session(model).run(None, feeds)
    outcome: float | str
    for way in ways:
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcome = difference(WAYS[way](Path(backend), Path(model), feeds, Path(folder)), expected)
            except Exception as problem:
                outcome = f"{type(problem).__name__}: {str(problem)[-300:]}"
        print(json.dumps({way: outcome}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
