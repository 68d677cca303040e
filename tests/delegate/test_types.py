"""Real TFLite models in the types of NPUs have one answer: from a session on every backend and from the delegate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from frontends.tflite.type_cases import converted
from support import oracles, stimuli, zoo
from support.suites import long

import isthmus
from delegate.harness import run, with_delegate

FORMS = ("a16w8", "a8w4", "a16w4")
OF_BYTES = ("okay_nabu", "alexa", "hey_jarvis", "hey_mycroft")
OF_FLOATS = ("dtln_1", "dtln_2", "face_detection_short_range", "hand_recrop", "palm_detection_lite")
SHORT = (("okay_nabu", "a16w4"), ("dtln_1", "float16"))
CASES = [
    *((key, form) for key in OF_BYTES for form in FORMS), *((key, "float16") for key in OF_FLOATS),
    # With 16-bit activations, a bias of this model takes more than 32 bits.
    ("efficientnet_lite0", "a8w4"),
]  # fmt: skip
BACKENDS = ("cpu", "htp", "lpai")


@pytest.mark.parametrize(("key", "form"), [case if case in SHORT else long(*case) for case in CASES])
def test_sessions_and_the_delegate_have_one_answer(key: str, form: str, make, tmp_path: Path) -> None:
    try:
        content, feeds = zoo.path(key).read_bytes(), stimuli.stimuli(key)
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    model, stored = converted(content, form)
    (tmp_path / "model.tflite").write_bytes(model)
    answers = {}
    for backend in BACKENDS:
        with isthmus.Session(tmp_path / "model.tflite", backend=backend) as session:
            names = list(session.inputs)
            given = [{n: stored(feed[n], at) for at, n in enumerate(names)} for feed in feeds]
            answers[backend] = [[value.copy() for value in session.run(feed).values()] for feed in given]
    for backend in BACKENDS:
        delegate = make(backend.upper())
        with oracles.silenced():
            interpreter = with_delegate(model, delegate)
        # A signature's inputs are in the order of their names, the file's in its own.
        order = [detail["name"] for detail in interpreter.get_input_details()]
        results = [run(interpreter, *(feed[name] for name in order)) for feed in given]
        taken, nodes = (sum(each[index] for each in delegate.taken) for index in (0, 1))
        if taken == nodes:
            answers[f"delegate on {backend}"] = results
        else:
            # HTP refuses some types of 16 bits and results of rank 0, as the vendor's library does. LiteRT runs those
            # nodes as it does.
            reasons = [reason for each in delegate.delegations for reason in each.staying.values()]
            assert backend == "htp"
            assert form.startswith("a16") or all("no tensors of rank 0" in reason for reason in reasons), reasons
            assert taken > 0
        del interpreter
    for api, found in answers.items():
        for results, wanted in zip(found, answers["cpu"], strict=True):
            for got, expected in zip(results, wanted, strict=True):
                np.testing.assert_array_equal(got, expected, err_msg=api)
    assert len({result[0].tobytes() for result in answers["cpu"]}) > 1, "the answers depend on the input"
