"""Speak to a streaming wake-word model that runs in memory this script provides, and watch it wake.

The model is okay_nabu from the package pymicro-wakeword; the features of the spoken phrase lie beside this script.
"""

from __future__ import annotations

import importlib.metadata
import sys
import time
from pathlib import Path

import numpy as np

import isthmus

FRAMES_PER_STEP = 3
STEP_SECONDS = 0.030
THRESHOLD = 0.95


def find_model() -> Path:
    """The model file inside the installed package."""
    try:
        files = importlib.metadata.files("pymicro-wakeword") or []
    except importlib.metadata.PackageNotFoundError:
        sys.exit("This example needs the package pymicro-wakeword: pip install 'isthmus[demo]'")
    return next(Path(str(f.locate())) for f in files if f.name == "okay_nabu.tflite")


def main() -> None:
    """Run the stream and report."""
    features = np.load(Path(__file__).parent / "data" / "okay_nabu_in_int8.npy")
    steps = len(features) // FRAMES_PER_STEP
    begin = time.perf_counter()
    with isthmus.Session(find_model()) as session:
        print(f"okay_nabu.tflite, ready after {time.perf_counter() - begin:.2f} s, for {session.info.target}")
        needs = session.info.memory
        print(f"  scratch   {needs.scratch_bytes:>7,} bytes  (planned; lower bound {session.plan.lower_bound:,})")
        print(f"  state     {needs.state_bytes:>7,} bytes  (kept between steps)")
        print(f"  constants {needs.constant_bytes:>7,} bytes")
        [(_, frame)], [(_, probability)] = session.inputs.items(), session.outputs.items()
        heard, spent = [], 0.0
        for step in range(steps):
            frame[...] = features[step * FRAMES_PER_STEP :][:FRAMES_PER_STEP]
            begin = time.perf_counter()
            session.run()
            spent += time.perf_counter() - begin
            heard.append(int(probability[0, 0]) / 255)
    bars = "".join(" ▁▂▃▄▅▆▇█"[round(p * 8)] for p in heard)
    print(f"\n  probability over {steps * STEP_SECONDS:.1f} s of speech\n  |{bars}|")
    loud = [i for i, p in enumerate(heard) if p > THRESHOLD]
    if not loud:
        sys.exit("  the wake word was not heard")
    print(f"  “okay nabu” heard at {loud[0] * STEP_SECONDS:.2f} s (p = {max(heard):.3f})")
    per_step = spent / steps
    print(
        f"\n  {per_step * 1e6:.1f} µs a step, {STEP_SECONDS / per_step:,.0f} times faster than real time; "
        f"{session.stats.copied_bytes} bytes copied"
    )


if __name__ == "__main__":
    main()
