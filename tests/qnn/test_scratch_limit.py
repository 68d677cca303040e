"""Graphs, sessions and configurations take a limit on scratch, until the graph is prepared."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from support import tiny

import isthmus
from isthmus import Code, QnnError, qnn
from isthmus.backends.lpai.config import read
from isthmus.log import Log
from isthmus.prepare.tiling import ScratchLimit, search
from isthmus.qnn import lpai


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A few convolutions, wide in between."""
    rng = np.random.default_rng(0)
    constants, nodes, last = {}, [], "x"
    for number, (source, filters, kernel) in enumerate(((3, 32, 3), (32, 32, 3), (32, 4, 1))):
        constants[f"w{number}"] = rng.normal(0, 0.2, (filters, source, kernel, kernel)).astype(np.float32)
        result = "y" if number == 2 else f"t{number}"
        pads = [kernel // 2] * 4
        nodes.append(helper.make_node("Conv", [last, f"w{number}"], [result], pads=pads, name=f"conv_{number}"))
        last = result
    path = tmp_path_factory.mktemp("models") / "wide.onnx"
    return tiny.save(path, nodes, {"x": [1, 3, 64, 32]}, {"y": [1, 4, 64, 32]}, constants)


PLAIN = {"cpu": {"winograd": False}}
"""Neither a graph with a limit nor a simulated device uses Winograd's algorithm."""


def outputs(session):
    for view in session.inputs.values():
        view[...] = np.linspace(-1, 1, view.size).reshape(view.shape)
    session.run()
    return [view.tobytes() for view in session.outputs.values()]


def test_a_session_takes_a_limit(model) -> None:
    with isthmus.Session(model, config=PLAIN) as whole, isthmus.Session(model, scratch_limit="30%") as split:
        assert split.info.memory.scratch_bytes <= 0.3 * whole.info.memory.scratch_bytes
        assert split.plan.regions
        assert not whole.plan.regions
        assert outputs(split) == outputs(whole)


@pytest.mark.parametrize("backend", ["lpai", "htp"])
def test_other_backends_take_a_limit(model, backend) -> None:
    with isthmus.Session(model, config=PLAIN) as whole, isthmus.Session(model, backend, scratch_limit="50%") as split:
        assert split.graph.get_property(qnn.GraphConfig.SCRATCH_LIMIT) == ScratchLimit(share=0.5)
        assert outputs(split) == outputs(whole)


def test_a_search_that_ends_at_its_bound_is_logged(model, monkeypatch) -> None:
    messages = []
    for share in (search.MIN_SHARE, 1):
        monkeypatch.setattr(search, "MIN_SHARE", share)
        monkeypatch.setattr(search, "MAX_GROWTH", share)
        with isthmus.Session(
            model, scratch_limit="least", slower=5, log=Log(lambda level, text: messages.append(text))
        ):
            assert any("left out long regions" in text for text in messages) == (share == 1)


def test_a_limit_that_nothing_fits_leaves_no_session(model) -> None:
    with pytest.raises(QnnError) as refused:
        isthmus.Session(model, scratch_limit=1000)
    assert refused.value.code is Code.COMMON_MEM_ALLOC
    assert "conv_" in refused.value.rule


@pytest.mark.parametrize("limit", ["few", -5, 2.5])
def test_a_limit_that_is_no_size_is_refused_by_sessions_and_graphs(model, limit) -> None:
    with pytest.raises(QnnError) as refused:
        isthmus.Session(model, scratch_limit=limit)
    assert refused.value.code is Code.COMMON_INVALID_ARGUMENT


def test_what_a_limit_may_cost_means_something_or_is_refused(model) -> None:
    for wrong in ({"slower": 0.1}, {"scratch_limit": "30%", "slower": 0.0}, {"scratch_limit": "30%", "slower": -1}):
        with pytest.raises(QnnError, match=r"cost|from 0 to 10"):
            isthmus.Session(model, **wrong)
    with isthmus.Session(model, scratch_limit="30%", slower=5) as split:
        assert split.plan.regions


def test_a_graph_takes_a_limit_until_it_is_prepared(model) -> None:
    with qnn.Backend("cpu") as backend:
        graph = backend.create_context().compose(model)
        assert graph.get_property(qnn.GraphConfig.SCRATCH_LIMIT) is None
        graph.set_config(qnn.GraphConfig.SCRATCH_LIMIT, "40%")
        with pytest.raises(QnnError):
            graph.set_config({qnn.GraphConfig.SCRATCH_LIMIT: None, qnn.GraphConfig.PRIORITY: 7})
        assert graph.get_property(int(qnn.GraphConfig.SCRATCH_LIMIT)) == ScratchLimit(share=0.4)
        assert graph.plan.regions
        with pytest.raises(QnnError) as refused:
            graph.set_config(qnn.GraphConfig.SCRATCH_LIMIT, None)
        assert refused.value.code is Code.GRAPH_FINALIZED


def test_a_context_binary_keeps_its_tiles(model) -> None:
    with qnn.Backend("cpu") as backend:
        context = backend.create_context()
        graph = context.compose(model)
        graph.set_config(qnn.GraphConfig.SCRATCH_LIMIT, "30%")
        graph.finalize()
        needs, name = graph.info.memory, graph.name
        binary = context.get_binary()
    with qnn.Backend("cpu") as backend:
        restored = backend.create_context_from_binary(binary).retrieve(name)
        assert restored.info.memory == needs


def test_lpai_takes_a_limit_in_its_configuration(model) -> None:
    config = {"lpai_graph": {"prepare": {"scratch_limit": "60%", "slower": 0.2, "exclude_io": True}}}
    assert read(config, Log()).prepare == lpai.Prepare(False, True, ScratchLimit(share=0.6, slower=0.2))
    plain = {"lpai_graph": {"prepare": {"exclude_io": True}}}
    with isthmus.Session(model, "lpai", config=plain) as whole, isthmus.Session(model, "lpai", config=config) as split:
        assert split.info.memory.scratch_bytes <= 0.6 * whole.info.memory.scratch_bytes
        assert outputs(split) == outputs(whole)
    dear = {"scratch_limit": "least", "slower": -1}
    for wrong in ({"scratch_limit": "some"}, {"scratch_limit": []}, {"slower": 1}, dear):
        with pytest.raises(QnnError) as refused:
            read({"lpai_graph": {"prepare": wrong}}, Log())
        assert refused.value.code is Code.BACKEND_INVALID_CONFIG
