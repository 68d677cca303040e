"""Models with 4-bit weights beside the same models with 8-bit ones and with floats, interleaved, on one thread.

``python bench/four_bits.py [MODEL...] [--rounds N]``. The models are quantized by ONNX Runtime's own tools. For each,
the line has milliseconds and bytes of constants with 8-bit and with 4-bit weights (8-bit activations), and the ratios.
With ``--weight-only``, products have float activations and 4-bit weights in blocks of 32 (MatMulNBits), beside the
model of floats.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

import numpy as np
from ops import race

import isthmus

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from capi import ort_provider
from support import quantized_models, stimuli


def line(name: str, files: dict[str, Path], feeds: dict[str, np.ndarray], rounds: int) -> str:
    """Race two files of one model; the first is the one to compare with."""
    sessions = {form: isthmus.Session(path, threads=1) for form, path in files.items()}
    try:
        for session in sessions.values():
            session.run(feeds)
        seconds = race({form: session.run for form, session in sessions.items()}, rounds)
        sizes = {form: session.info.memory.constant_bytes for form, session in sessions.items()}
    finally:
        for session in sessions.values():
            session.close()
    old, new = files
    ratio = float(np.median(seconds[new] / seconds[old]))
    times = ", ".join(f"{form} {np.median(seconds[form]) * 1e3:.3f} ms {sizes[form]:,} B" for form in files)
    return f"{name:12} {times}; time x{ratio:.2f}, constants x{sizes[new] / sizes[old]:.2f}"


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=quantized_models.STATIC)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--weight-only", action="store_true")
    arguments = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        for key in arguments.models:
            source, feeds = ort_provider.fixed(key, Path(folder)), stimuli.stimuli(key)
            if arguments.weight_only:
                files = {"floats": source, "4 bits": quantized_models.weight_only(source, Path(folder) / "w4.onnx")}
            else:
                files = {
                    f"{bits} bits": quantized_models.static_qdq(
                        source, feeds[:2], bits, Path(folder) / f"{key}_w{bits}.onnx"
                    )
                    for bits in (8, 4)
                }
            print(line(key, files, feeds[0], arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
