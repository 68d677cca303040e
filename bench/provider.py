"""ONNX Runtime's QNN provider: on our library, on the vendor's simulator, and what it adds to a session of our own.

Ways are timed in turns in one process; figures are medians. The simulator is measured in a few runs, since one takes
long. The overhead is that of the provider over a session on the same backend: bound to memory over a run in place, and
with outputs of its own over a run with copies.

    python bench/provider.py [MODEL ...]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "capi"))
import ort_provider
import stimuli
import zoo

import isthmus
from isthmus.capi import install

MODELS = ("kws_qdq", "kws_fp32", "mixed_ops", "silero_vad_16k")
ROUNDS = 400
SIMULATED = 5


def bound(session: Any, feed: dict[str, np.ndarray]) -> Callable[[], None]:
    """A run in memory that is bound once."""
    binding = session.io_binding()
    for name, value in feed.items():
        binding.bind_cpu_input(name, value)
    for made, value in zip(session.get_outputs(), session.run(None, feed), strict=True):
        binding.bind_output(made.name, "cpu", 0, value.dtype, list(value.shape), value.ctypes.data)
    return lambda: session.run_with_iobinding(binding)


def timed(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median of each way in microseconds, in turns."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            begin = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - begin) * 1e6)
    return {name: float(np.median(taken)) for name, taken in times.items()}


def measure(key: str, libraries: Path, folder: Path) -> None:
    """Print the line of one model."""
    model = ort_provider.fixed(key, folder)
    ours = ort_provider.session(model, libraries / "libQnnHtp.so")
    try:
        theirs = ort_provider.session(model, ort_provider.vendor_library("QnnHtp"))
    except Exception:
        # Some models it cannot prepare.
        theirs = None
    names = {given.name for given in ours.get_inputs()}
    feed = {name: value for name, value in stimuli.stimuli(key)[0].items() if name in names}
    with isthmus.Session(model, "htp", io="raw") as session:
        for name, value in feed.items():
            session.inputs[name][...] = value
        ways: dict[str, Callable[[], object]] = {
            "session": session.run,
            "session, copied": lambda: session.run(feed),
            "provider, bound": bound(ours, feed),
            "provider": lambda: ours.run(None, feed),
        }
        figures = timed(ways, ROUNDS)
    told = "the simulator refuses it"
    if theirs is not None:
        simulator = timed({"simulator": lambda: theirs.run(None, feed)}, SIMULATED)["simulator"]
        told = f"simulator {simulator / 1e3:8.1f} ms  x{simulator / figures['provider']:.0f}"
    mine, total = ort_provider.assigned(ours)
    print(
        f"{key:16} {mine:3}/{total:<3} nodes  session {figures['session']:7.1f} us  provider {figures['provider']:7.1f}"
        f" us  bound {figures['provider, bound']:7.1f} us  over a session"
        f" {figures['provider, bound'] - figures['session']:5.1f} us, copied"
        f" {figures['provider'] - figures['session, copied']:5.1f} us  {told}"
    )


def main(keys: list[str]) -> None:
    """Measure models by name, or the usual ones."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        install(folder)
        for key in keys or MODELS:
            try:
                measure(key, folder, folder)
            except zoo.Unavailable as reason:
                print(f"{key}: {reason}")


if __name__ == "__main__":
    main(sys.argv[1:])
