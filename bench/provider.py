"""ONNX Runtime's QNN provider: on our library, on the vendor's simulator, and what it adds to a session of our own.

Ways are timed in turns in one process, some runs at a time: after another turn the caches hold what that one used, so
the first runs of a turn are not counted. Figures are medians; overheads are given for the 10th percentile too, which
other programs on the machine disturb less. The simulator is measured in a few runs, since one takes long. The overhead
is that of the provider over a session on the same backend: bound to memory over a run in place, and with outputs of its
own over a run with copies.

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
from capi import ort_provider
from support import stimuli, zoo

import isthmus
from isthmus.capi import install

MODELS = ("kws_qdq", "kws_fp32", "mixed_ops", "silero_vad_16k")
TURNS, RUNS, UNCOUNTED = 40, 15, 5
SIMULATED = 5


def bound(session: Any, feed: dict[str, np.ndarray]) -> Callable[[], None]:
    """A run in memory that is bound once."""
    binding = session.io_binding()
    for name, value in feed.items():
        binding.bind_cpu_input(name, value)
    for made, value in zip(session.get_outputs(), session.run(None, feed), strict=True):
        binding.bind_output(made.name, "cpu", 0, value.dtype, list(value.shape), value.ctypes.data)
    return lambda: session.run_with_iobinding(binding)


def timed(
    ways: dict[str, Callable[[], object]], turns: int, runs: int = RUNS, uncounted: int = UNCOUNTED
) -> dict[str, np.ndarray]:
    """What each way takes in microseconds, in turns: the 10th percentile and the median."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, run in ways.items():
            for number in range(runs):
                begin = time.perf_counter()
                run()
                if number >= uncounted:
                    times[name].append((time.perf_counter() - begin) * 1e6)
    return {name: np.percentile(taken, [10, 50]) for name, taken in times.items()}


def over(figures: dict[str, np.ndarray], way: str, other: str) -> str:
    """How much longer one way takes than another."""
    return " ".join(f"{more:5.1f}" for more in figures[way] - figures[other])


def measure(key: str, libraries: Path, folder: Path) -> None:
    """Print the line of one model."""
    model = ort_provider.fixed(key, folder)
    ours = ort_provider.session(model, libraries / "libQnnHtp.so", exact=False)
    try:
        theirs = ort_provider.session(model, ort_provider.vendor_library("QnnHtp"), exact=False)
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
        figures = timed(ways, TURNS)
    told = "the simulator refuses it"
    if theirs is not None:
        simulator = timed({"simulator": lambda: theirs.run(None, feed)}, SIMULATED, 1, 0)["simulator"][1]
        told = f"simulator {simulator / 1e3:8.1f} ms  x{simulator / figures['provider'][1]:.0f}"
    mine, total = ort_provider.assigned(ours)
    print(
        f"{key:16} {mine:3}/{total:<3} nodes  session {figures['session'][1]:7.1f} us"
        f"  provider {figures['provider'][1]:7.1f} us  bound {figures['provider, bound'][1]:7.1f} us"
        f"  over a session (p10, median) {over(figures, 'provider, bound', 'session')} us,"
        f" copied {over(figures, 'provider', 'session, copied')} us  {told}"
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
