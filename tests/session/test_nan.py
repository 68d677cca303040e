"""A single NaN among the numbers fed to a session is refused, wherever it stands, before anything is written."""

import numpy as np
import pytest
from support import tiny

import isthmus
from isthmus import Code, QnnError

SIZE = 1000


@pytest.fixture
def session(tmp_path):
    with isthmus.Session(tiny.gate(tmp_path / "gate.onnx", SIZE)) as opened:
        yield opened


@pytest.mark.parametrize("name", ["x", "s"])
@pytest.mark.parametrize("place", [0, SIZE // 2, SIZE - 1])
def test_a_nan_is_refused_at_any_position(session, name, place) -> None:
    feeds = {"x": np.ones((1, SIZE), np.float32), "s": np.ones((1, SIZE), np.float32)}
    session.run(feeds)
    before = {key: view.copy() for key, view in session.inputs.items()}
    feeds = {key: value * 2 for key, value in feeds.items()}
    feeds[name][0, place] = np.nan
    with pytest.raises(QnnError, match=f"input '{name}'.*NaN") as refusal:
        session.run(feeds)
    assert refusal.value.code is Code.GRAPH_INVALID_TENSOR
    for key, view in session.inputs.items():
        np.testing.assert_array_equal(view, before[key])


def test_infinities_are_numbers(session) -> None:
    feeds = {"x": np.full((1, SIZE), np.inf, np.float32), "s": np.ones((1, SIZE), np.float32)}
    assert np.isinf(session.run(feeds)["y"]).all()
