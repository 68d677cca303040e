"""Writes models in tiles and prints what is alive before and after, LiteRT's arena, and whether bits are the same.

    python bench/split.py [KEY ...] [--limit LIMIT]

Alive is what the order of the file keeps alive, every result in memory of its own. The arena is the span of addresses
that LiteRT gives to the tensors in it, without delegates. The exit status tells whether every output has the same bits.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import zoo
from support.arenas import litert_arena

from isthmus.errors import QnnError
from isthmus.prepare.tiling import ScratchLimit
from isthmus.split.onnx import OnnxFile
from isthmus.split.runtimes import compare_onnx, compare_tflite
from isthmus.split.search import split
from isthmus.split.tflite import TfliteFile

MODELS = (
    "efficientnet_lite0", "face_detection_short_range", "face_landmark", "hand_landmark_lite", "hand_recrop",
    "palm_detection_full", "pose_detection", "ppocr_det", "kws_fp32", "kws_qdq", "kws_qoperator",
)  # fmt: skip
SHAPES = {"ppocr_det": {"x": (1, 3, 320, 320)}}


def row(key: str, limit: str) -> tuple[str, bool]:
    """A line of the table, and whether the bits are the same."""
    data = zoo.MODELS[key].file.read_bytes()
    of_tflite = zoo.MODELS[key].kind == "tflite"
    file: OnnxFile | TfliteFile
    shapes = SHAPES.get(key, dict(zoo.MODELS[key].shapes))
    file = TfliteFile(data, key) if of_tflite else OnnxFile(data, key, None, shapes)
    began = time.process_time()
    found = split(file.network, ScratchLimit.of(limit).bytes_of(file.network.peak), key)
    seconds = time.process_time() - began
    written = file.write(found.network, found.instructions)
    differences = (compare_tflite if of_tflite else compare_onnx)(data, written)
    arena = ""
    if of_tflite:
        before, after = litert_arena(data), litert_arena(written)
        arena = f"{before:,} -> {after:,} ({after / before:.0%})"
    left = f"{found.before:,} -> {found.after:,} ({found.after / found.before:.0%})"
    nodes = f"{len(file.network.steps)} -> {len(found.instructions)}"
    growth = f"{len(written) / len(data) - 1:+.1%}"
    bits = "; ".join(f"{title}: {one}" for title, one in differences.items())
    same = all(one.same_bits for one in differences.values())
    return f"| {key} | {left} | {arena} | {nodes} | {growth} | {seconds:.1f} s | {bits} |", same


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("keys", nargs="*", metavar="KEY", help="models (default: those that gain)")
    parser.add_argument("--limit", default="least", help="bytes, a part like 50%%, or 'least' (the default)")
    options = parser.parse_args()
    print("| model | alive, bytes | LiteRT's arena, bytes | nodes | file | search | bits |")
    print("|---|---|---|---|---|---|---|")
    good = True
    for key in options.keys or MODELS:
        try:
            line, same = row(key, options.limit)
        except QnnError as refusal:
            line, same = f"| {key} | {refusal.rule} | | | | | |", True
        print(line, flush=True)
        good &= same
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
