"""What the TFLite delegate takes over, what it costs, what shared tensors save, and that nothing is left behind.

Figures of one row are measured in turn, round by round, so that whatever else the machine does meets them alike.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from ai_edge_litert.interpreter import Interpreter
from delegate.harness import LoggingDelegate, doubled, plain, run, with_delegate
from support import oracles, stimuli, zoo
from support.growth import growth

import isthmus
from isthmus.delegate import modify_graph_with_delegate, set_custom_allocation

MODELS = [model for model in zoo.MODELS.values() if model.kind == "tflite"]
LARGE = 16 << 20
LIFETIME = str(Path(__file__).resolve().parents[1] / "tests" / "delegate" / "test_lifetime.py")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and cycles")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument("--only", choices=list(PARTS), action="append", help="only this part; may be repeated")
    options = parser.parse_args()
    logging.getLogger("isthmus").setLevel(logging.ERROR)
    figures = {}
    for name, part in PARTS.items():
        if not options.only or name in options.only:
            print(f"\n{part.__doc__.splitlines()[0]}", flush=True)
            figures[name] = part(options.quick)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


def alternating(ways: Sequence[Callable[[], object]], rounds: int) -> list[np.ndarray]:
    """The seconds of each way, run in turn, in an order that changes: what ran before leaves its caches."""
    times: list[list[float]] = [[] for _ in ways]
    both = list(zip(ways, times, strict=True))
    order = random.Random(1)
    for number in range(rounds + 1):
        for way, seconds in order.sample(both, len(both)):
            begin = time.perf_counter()
            way()
            if number:
                seconds.append(time.perf_counter() - begin)
    return [np.array(seconds) for seconds in times]


# -- parts -------------------------------------------------------------------------------------------------------------


def coverage(quick: bool) -> list[dict[str, Any]]:
    """Nodes that the delegate takes over of each model, and how far its answers are from LiteRT's."""
    rows = []
    print(f"  {'model':34}{'delegated':>14}{'%':>7}{'partitions':>12}{'worst difference':>22}")
    for model in MODELS:
        try:
            path, feeds = zoo.path(model.key), stimuli.stimuli(model.key)[: 10 if quick else None]
        except zoo.Unavailable as reason:
            print(f"  {model.key:34}{reason}")
            continue
        reference = oracles.reference(model)
        delegate = LoggingDelegate("CPU")
        interpreter = Interpreter(str(path), experimental_delegates=[delegate], num_threads=1)
        for detail in interpreter.get_input_details():
            if detail["name"] in model.shapes:
                interpreter.resize_tensor_input(detail["index"], model.shapes[detail["name"]])
        interpreter.allocate_tensors()
        inputs = {detail["name"]: detail["index"] for detail in interpreter.get_input_details()}
        worst = 0.0
        for feed in feeds:
            for name, value in feed.items():
                interpreter.set_tensor(inputs[name], value)
            interpreter.invoke()
            expected = reference.run(feed)
            for detail in interpreter.get_output_details():
                theirs = expected[detail["name"]].astype(np.float64)
                difference = np.abs(interpreter.get_tensor(detail["index"]) - theirs).max(initial=0)
                scale = model.step if model.numerics == "int8" else max(np.abs(theirs).max(initial=0), 1e-30)
                worst = max(worst, float(difference / scale))
        taken, nodes, parts = (sum(each[n] for each in delegate.taken) for n in range(3))
        unit = "steps" if model.numerics == "int8" else "of largest"
        print(f"  {model.key:34}{f'{taken} of {nodes}':>14}{100 * taken / nodes:7.1f}{parts:12}{worst:11.2g} {unit}")
        rows.append({"model": model.key, "delegated": taken, "nodes": nodes, "partitions": parts, "worst": worst})
        del interpreter
        delegate.close()
    return rows


def shared(quick: bool) -> dict[str, float]:
    """Ordinary and shared tensors of 16 MiB, in and out, on HTP; and what two copies of 16 MiB take."""
    elements = LARGE // 4
    content = doubled(1, elements)
    ordinary_delegate, shared_delegate = LoggingDelegate("HTP"), LoggingDelegate("HTP")
    ordinary = with_delegate(content, ordinary_delegate)
    in_place = plain(content)
    memories = [shared_delegate.alloc_custom_mem(LARGE) for _ in range(2)]
    for index, memory in enumerate(memories):
        set_custom_allocation(in_place, index, memory)
    in_place.allocate_tensors()
    modify_graph_with_delegate(in_place, shared_delegate)
    x = np.random.default_rng(0).random((1, elements), np.float32)
    for interpreter in (ordinary, in_place):
        assert (run(interpreter, x)[0] == 2 * x).all()
    sources, targets = ([np.ones(LARGE, np.uint8) for _ in range(2)] for _ in range(2))

    def copies() -> None:
        for source, target in zip(sources, targets, strict=True):
            ctypes.memmove(target.ctypes.data, source.ctypes.data, LARGE)

    times = alternating([ordinary.invoke, in_place.invoke, copies], 30 if quick else 200)
    figures = {
        name: float(np.median(seconds)) * 1e3
        for name, seconds in zip(("ordinary_ms", "shared_ms", "two_copies_ms"), times, strict=True)
    }
    figures["saved_ms"] = float(np.median(times[0] - times[1])) * 1e3
    figures["saved_in_copies"] = float(np.median((times[0] - times[1]) / times[2]))
    print(
        f"  ordinary {figures['ordinary_ms']:.2f} ms, shared {figures['shared_ms']:.2f} ms, saved "
        f"{figures['saved_ms']:.2f} ms; two copies {figures['two_copies_ms']:.2f} ms "
        f"(saved: {figures['saved_in_copies']:.2f} times that); copied by shared tensors: "
        f"{shared_delegate.stats.copied_bytes} bytes"
    )
    del ordinary, in_place, interpreter
    for memory in memories:
        shared_delegate.free_custom_mem(memory)
    for delegate in (ordinary_delegate, shared_delegate):
        delegate.close()
    return figures


def against_session(quick: bool) -> list[dict[str, Any]]:
    """A delegated model on the CPU beside our own Session (a bare run of its engine), and LiteRT with XNNPACK."""
    rows = []
    print(f"  {'model':34}{'session':>10}{'delegate':>10}{'XNNPACK':>10} us  delegate - session; least, in us")
    for key in ("okay_nabu", "dtln_1", "hand_recrop", "face_detection_short_range", "efficientnet_lite0"):
        try:
            path = zoo.path(key)
        except zoo.Unavailable as reason:
            print(f"  {key:34}{reason}")
            continue
        delegate = LoggingDelegate("CPU")
        interpreter = Interpreter(str(path), experimental_delegates=[delegate], num_threads=1)
        theirs = Interpreter(str(path), num_threads=1)
        for each in (interpreter, theirs):
            each.allocate_tensors()
        with isthmus.Session(path) as session:
            small = key in ("okay_nabu", "dtln_1")
            rounds = (200 if quick else 3000) if small else (10 if quick else 100)
            times = alternating([session.engine_run, interpreter.invoke, theirs.invoke], rounds)
        ours, delegated, xnnpack = (float(np.median(seconds)) * 1e6 for seconds in times)
        more = float(np.median(times[1] - times[0])) * 1e6
        ratio, least = delegated / ours, [float(seconds.min()) * 1e6 for seconds in times]
        print(
            f"  {key:34}{ours:10.1f}{delegated:10.1f}{xnnpack:10.1f}     {more:+.1f} us, ratio {ratio:.3f}; "
            f"{' '.join(f'{each:.1f}' for each in least)} ({least[1] - least[0]:+.1f})"
        )
        rows.append(
            {"model": key, "session_us": ours, "delegate_us": delegated, "xnnpack_us": xnnpack, "more_us": more,
             "least_us": least}
        )  # fmt: skip
        del interpreter, theirs, each
        delegate.close()
    return rows


def leaks(quick: bool) -> list[dict[str, Any]]:
    """What is left after 10,000 invocations, and after 1,000 times creating, invoking and destroying.

    Each figure is of a process that does nothing else.
    """
    rows = []
    invocations, cycles = (1000, 20) if quick else (10_000, 1000)
    for backend in ("CPU", "LPAI", "HTP"):
        for name, rounds in (("invocations", invocations), ("cycles", cycles)):
            left = asdict(growth(LIFETIME, name, backend, rounds=rounds, seconds=3600))
            rows.append({"backend": backend, name: rounds, **left})
            told = ", ".join(f"{more:+,} {what}" for what, more in left.items())
            print(f"  {backend:5} {rounds:6,} {name}: {told}".replace("resident", "bytes"), flush=True)
    return rows


PARTS: dict[str, Callable[[bool], Any]] = {
    "coverage": coverage,
    "shared": shared,
    "session": against_session,
    "leaks": leaks,
}

if __name__ == "__main__":
    sys.exit(main())
