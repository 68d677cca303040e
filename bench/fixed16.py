"""Models with 16-bit activations beside ONNX Runtime on the same file, interleaved, with one thread.

ONNX Runtime's own tools quantize models of the zoo. Times are milliseconds, median and least of the rounds; the ratio
is ours over theirs, the median of the rounds' own ratios. Scratch is what our plan needs for the model in 16 bits and
in float32.

    python bench/fixed16.py [MODEL ...] [--weights QUInt8|QInt8|QInt16] [--rounds N]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ops import race

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from capi import ort_provider, ort_quantizer
from support import oracles, stimuli

import isthmus

MODELS = ("kws_fp32", "mixed_ops", "silero_vad_16k", "nsnet2", "ppocr_cls", "ppocr_det", "ppocr_rec")


def _bound(peer: Any, feed: dict[str, np.ndarray]) -> Any:
    """Inputs and outputs of a session of ONNX Runtime in memory that is bound once."""
    binding = peer.io_binding()
    for name, value in feed.items():
        binding.bind_cpu_input(name, value)
    for made in peer.get_outputs():
        binding.bind_output(made.name)
    return binding


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", default=MODELS)
    parser.add_argument("--weights", default="QUInt8")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    print(f"{'model':<24}{'ONNX Runtime ms':>20}{'Isthmus ms':>20}{'ratio':>8}{'scratch':>12}{'in float32':>12}")
    for key in arguments.models or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            model = ort_quantizer.quantized(key, Path(folder), "QUInt16", arguments.weights)
            peer = oracles.onnx_session(model, exact=False)
            feed = {given.name: stimuli.stimuli(key)[0][given.name] for given in peer.get_inputs()}
            with isthmus.Session(model) as session, isthmus.Session(ort_provider.fixed(key, Path(folder))) as floats:
                session.run(feed)
                contestants = {"peer": partial(peer.run_with_iobinding, _bound(peer, feed)), "ours": session.run}
                seconds = race(contestants, arguments.rounds)
                scratch = [opened.plan.bytes if opened.plan is not None else 0 for opened in (session, floats)]
            peer_ms, own_ms = (f"{1e3 * np.median(s):.3f} {1e3 * s.min():.3f}" for s in seconds.values())
            ratio = float(np.median(seconds["ours"] / seconds["peer"]))
            print(f"{key:<24}{peer_ms:>20}{own_ms:>20}{ratio:>8.2f}{scratch[0]:>12,}{scratch[1]:>12,}", flush=True)


if __name__ == "__main__":
    main()
