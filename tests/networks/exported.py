"""Networks as exporters write them, compared with ONNX Runtime: a table of all kinds on all backends.

Run ``python tests/networks/exported.py``: every kind on cpu, and a sixth of them, by ``--rotation``, on the other
backends (``--all``: all of them). The exit status is 1 if a result is wrong, or if a refusal is not a known one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import convolutional  # noqa: E402, F401
import numpy as np  # noqa: E402
import onnx  # noqa: E402
import other_networks  # noqa: E402, F401
import recurrent  # noqa: E402, F401
import transformers  # noqa: E402, F401
from network_builder import KINDS, Network, network  # noqa: E402
from support import oracles  # noqa: E402

import isthmus  # noqa: E402

OTHERS = ("htp", "lpai", "gpu")
EVERY = 6
"""Of how many kinds one runs on each other backend."""
REFUSED = {
    ("Optical flow, GridSample", "gpu"): "(GridSample): the OpenCL engine does not execute this operation",
    ("Spatial transformer, GridSample of operator set 20", "gpu"): "(GridSample): the OpenCL engine does not execute",
    ("Graph convolution", "gpu"): "(ScatterElements): only a scatter that replaces elements is supported",
    ("Graph attention", "gpu"): "(ScatterElements): only a scatter that replaces elements is supported",
    ("GPT-2 with a past and at most two new words", "gpu"): "bytes of scratch that were planned",
    ("Linear layers, dynamic quantization", "gpu"): "(MatMulInteger): the OpenCL engine does not execute",
}
"""Refusals, by kind and backend: a part of the message. docs/dynamic-shapes.md#exported-networks lists them."""


OPTIMIZED = (
    "AlexNet", "SE-ResNet", "MobileNet v2", "MobileNet v3", "EfficientNet", "WaveNet", "YOLOv3", "DLRM",
    "Reinforcement learning, two heads", "UNet of any size", "BERT", "ViT",
)  # fmt: skip
"""Kinds that also run as ONNX Runtime's optimizations leave them: together they have every fusion of a product."""


class Outcome(NamedTuple):
    """What a backend did with a kind: "ok", "wrong", "refused" or "failed", and why or by how much."""

    verdict: str
    detail: str


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    """Return how far results are from those wanted, as a part of the greatest; infinite if they are other ones."""
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        return np.inf
    if expected.dtype.kind != "f":
        return 0.0 if np.array_equal(found, expected) else np.inf
    if not np.array_equal(np.isnan(found), np.isnan(expected)):
        return np.inf
    if not expected.size:
        return 0.0
    real, right = (np.nan_to_num(array.astype(np.float64)) for array in (found, expected))
    return float(np.max(np.abs(real - right)) / max(1e-3, np.max(np.abs(right))))


def compare(made: Network, path: Path, backend: str) -> Outcome:
    """Run a network on a backend, once for each of its inputs, and compare the results with ONNX Runtime's."""
    onnx.save(made.model, path)
    # Operations in fixed point are compared with those in floats that they stand for.
    expected = [oracles.onnx_answers(path, feeds, fuse=False) for feeds in made.runs]
    try:
        with isthmus.Session(path, backend, made.greatest or None) as session:
            found = [session.run(feeds) for feeds in made.runs]
    except isthmus.QnnError as refusal:
        return Outcome("refused", str(refusal))
    most = max(
        (difference(f[name], w[name]) for f, w in zip(found, expected, strict=True) for name in w), default=np.inf
    )
    return Outcome("ok" if most <= made.tolerance else "wrong", f"{most:.1e}")


def optimized(made: Network, folder: Path) -> Network:
    """Return a network as ONNX Runtime saves it after its extended optimizations."""
    before, after = folder / "before.onnx", folder / "after.onnx"
    onnx.save(made.model, before)
    oracles.onnx_optimized(before, after)
    return replace(made, model=onnx.load(after))


def main() -> int:
    """Compare kinds with ONNX Runtime and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help="parts of names of kinds; all by default")
    parser.add_argument("--backend", action="append", help="backends to run on instead of the usual ones")
    parser.add_argument("--rotation", type=int, default=0, help="which part of the kinds runs on the other backends")
    parser.add_argument("--all", action="store_true", help="run all kinds on all backends")
    options = parser.parse_args()
    counts = dict.fromkeys(("ok", "wrong", "refused", "failed"), 0)
    unknown = 0
    names = [name for name in KINDS if not options.kinds or any(part in name for part in options.kinds)]
    with tempfile.TemporaryDirectory() as folder:
        for index, name in enumerate(names):
            backends = ["cpu"]
            if options.all or index % EVERY == options.rotation % EVERY:
                backends += OTHERS
            for backend in options.backend or backends:
                began = time.perf_counter()
                try:
                    verdict, detail = compare(network(name), Path(folder) / "model.onnx", backend)
                except Exception as error:
                    verdict, detail = "failed", f"{type(error).__name__}: {error}"
                counts[verdict] += 1
                known = REFUSED.get((name, backend))
                unknown += verdict != "ok" and not (verdict == "refused" and known is not None and known in detail)
                line = detail.splitlines()[0][:200]
                print(f"{name:<52} {backend:<5} {verdict:<8} {time.perf_counter() - began:6.1f} s  {line}", flush=True)
    print(f"{len(names)} kinds: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
