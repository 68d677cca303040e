"""Random TFLite models as cases, with LiteRT's answers."""

from __future__ import annotations

from functools import partial
from random import Random

from frontends.tflite.runners import LiteRtRunner, random_input

from random_operations.comparison import Case, Make
from random_operations.onnx_model import Refused
from random_operations.tflite_operations import FAMILIES, MOVEMENTS, TfliteModel, random_model


def _case(m: TfliteModel) -> Case:
    content = m.build()
    try:
        peer = LiteRtRunner(content)
        details = peer.interpreter.get_input_details()
        inputs = [random_input(m.numbers, tuple(d["shape"]), d["dtype"]().dtype) for d in details]
        results = peer(*inputs)
    except (RuntimeError, ValueError) as problem:
        raise Refused(str(problem)) from None
    if not all(a.size for a in results):
        raise Refused("an answer without elements")
    feeds = {d["name"]: x for d, x in zip(details, inputs, strict=True)}
    names = [d["name"] for d in peer.interpreter.get_output_details()]
    return Case(".tflite", content, feeds, dict(zip(names, results, strict=True)), m.describe, 1)


def _single(kind: str, family: str, rng: Random) -> Case:
    return _case(random_model(rng, kind, family))


def _pair(kind: str, rng: Random) -> Case:
    pair = [rng.choice(MOVEMENTS), rng.choice([f for f in FAMILIES if f not in MOVEMENTS])]
    rng.shuffle(pair)
    return _case(random_model(rng, kind, *pair))


MAKERS: dict[str, Make] = {
    **{f"tflite {k} {f}": partial(_single, k, f) for k in ("f32", "i8") for f in FAMILIES},
    **{f"tflite {k} pair": partial(_pair, k) for k in ("f32", "i8")},
}
