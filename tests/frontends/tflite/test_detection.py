"""TFLite_Detection_PostProcess gives LiteRT's detections, from floats and from bytes, and refuses odd options."""

from __future__ import annotations

import numpy as np
import pytest
from flatbuffers import flexbuffers

import isthmus
from frontends.tflite.build import Op, Subgraph, T, model
from frontends.tflite.runners import GraphRunner, LiteRtRunner
from isthmus.errors import QnnError
from isthmus.frontends import load
from isthmus.frontends.tflite.flexbuffer import scalars

BOXES, CLASSES = 120, 6
OPTIONS = {
    "max_detections": 10, "max_classes_per_detection": 1, "detections_per_class": 100, "use_regular_nms": False,
    "nms_score_threshold": 0.3, "nms_iou_threshold": 0.5, "num_classes": CLASSES, "y_scale": 10.0, "x_scale": 10.0,
    "h_scale": 5.0, "w_scale": 5.0,
}  # fmt: skip


def packed(values: dict) -> bytes:
    """A map as a flexbuffer."""
    builder = flexbuffers.Builder()
    with builder.Map():
        for name, value in values.items():
            builder.Key(name)
            kind = builder.Bool if isinstance(value, bool) else builder.Int if isinstance(value, int) else builder.Float
            kind(value)
    return bytes(builder.Finish())


def detector(options: dict | bytes, quantized: bool = False, background: int = 1) -> bytes:
    """A model of that operator alone: anchors in rows that overlap."""
    rng = np.random.default_rng(0)
    anchors = np.concatenate((rng.random((BOXES, 2)), rng.uniform(0.1, 0.4, (BOXES, 2))), 1).astype(np.float32)
    kind = {"type": "u8", "scale": 0.05, "zero": 128} if quantized else {"type": "f32"}
    scores = {"type": "u8", "scale": 1 / 256, "zero": 0} if quantized else {"type": "f32"}
    if isinstance(options, dict):
        room = options["max_detections"] * options["max_classes_per_detection"]
        options = packed(options)
    else:
        room = 10
    # LiteRT takes anchors for bytes where the boxes are.
    fixed = T("f32", (BOXES, 4), data=anchors)
    if quantized:
        fixed = T("u8", (BOXES, 4), data=np.rint(anchors * 200).astype(np.uint8), scale=1 / 200, zero=0)
    shapes = {"where": (1, room, 4), "what": (1, room), "how sure": (1, room), "how many": (1,)}
    tensors = [
        T(shape=(1, BOXES, 4), name="boxes", **kind),
        T(shape=(1, BOXES, CLASSES + background), name="scores", **scores),
        fixed,
        *(T("f32", shape, name=name) for name, shape in shapes.items()),
    ]
    operator = Op("CUSTOM:TFLite_Detection_PostProcess", [0, 1, 2], [3, 4, 5, 6], custom=options)
    return model(Subgraph(tensors, [operator], [0, 1], [3, 4, 5, 6]))


def inputs(rng: np.random.Generator, quantized: bool, background: int) -> list[np.ndarray]:
    """Boxes and scores, of which many boxes have the same; LiteRT leaves open which of the same classes comes first."""
    columns = CLASSES + background
    levels = columns * rng.integers(0, 20, (1, BOXES, columns)) + np.arange(columns)
    if quantized:
        return [rng.integers(100, 156, (1, BOXES, 4)).astype(np.uint8), levels.astype(np.uint8)]
    return [rng.standard_normal((1, BOXES, 4)).astype(np.float32), (levels / 150).astype(np.float32)]


CASES = {
    "fast": {},
    "fast, several classes": {"max_classes_per_detection": 3},
    "fast, more classes than there are": {"max_classes_per_detection": 8, "max_detections": 4},
    "fast, many": {"max_detections": 90, "nms_iou_threshold": 0.8},
    "fast, none": {"nms_score_threshold": 2.0},
    "regular": {"use_regular_nms": True},
    "regular, few of a class": {"use_regular_nms": True, "detections_per_class": 2, "max_detections": 30},
    "regular, none": {"use_regular_nms": True, "nms_score_threshold": 2.0},
}


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_detections_are_litert_s(tmp_path, case, quantized) -> None:
    options, background = OPTIONS | CASES[case], 0 if "several" in case else 1
    content = detector(options, quantized, background)
    path = tmp_path / "detector.tflite"
    path.write_bytes(content)
    theirs, reference, rng = LiteRtRunner(content), GraphRunner(load(path)), np.random.default_rng(1)
    per_box = 1 if options["use_regular_nms"] else options["max_classes_per_detection"]
    classes_per_box = min(per_box, CLASSES)
    with isthmus.Session(path) as session:
        for _ in range(5):
            arrays = inputs(rng, quantized, background)
            expected = theirs(*arrays)
            count = int(expected[3][0])
            assert (count == 0) == ("none" in case)
            found = list(session.run(dict(zip(session.inputs, arrays, strict=True))).values())
            for results in (found, reference(*arrays)):
                assert results[3] == expected[3]
                for ours, wanted in zip(results[:3], expected[:3], strict=True):
                    # LiteRT writes no rows after the last detection, nor those of a box beyond the model's classes.
                    ours, wanted = (
                        a.reshape(-1, per_box, *a.shape[2:])[:count, :classes_per_box] for a in (ours, wanted)
                    )
                    np.testing.assert_array_equal(ours, wanted)
            assert all(not a.reshape(-1, per_box, *a.shape[2:])[count:].any() for a in found[:3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (b"", "its options cannot be read"),
        (b"\x01\x02\x03\x04\x05", "its options cannot be read"),
        (packed({"max_detections": 3}), "its options lack 'max_classes_per_detection'"),
        (OPTIONS | {"num_classes": 9}, "num_classes 9 must be 1 to the 7"),
        (packed(OPTIONS | {"max_detections": -1}), "negative"),
        (OPTIONS | {"y_scale": 0.0}, "must not be 0"),
    ],
)
def test_odd_options_are_refused(tmp_path, options, message) -> None:
    path = tmp_path / "detector.tflite"
    path.write_bytes(detector(options))
    with pytest.raises(QnnError, match=message):
        load(path)


def test_numbers_of_all_sizes_are_read_and_damage_is_reported() -> None:
    values = {"small": 3, "wide": 70_000, "wider": -(1 << 40), "half": 0.5, "yes": True, "no": False, "third": 1 / 3}
    data = packed(values)
    assert scalars(data) == values
    rng = np.random.default_rng(0)
    for _ in range(3000):
        damaged = bytearray(data)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            damaged[place] = rng.integers(0, 256)
        try:
            scalars(bytes(damaged[: rng.integers(0, len(data) + 1)]))
        except ValueError:
            continue
