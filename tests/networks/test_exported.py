"""Networks as exporters write them have ONNX Runtime's results, or are refused for a known reason."""

from __future__ import annotations

import pytest
from exported import KINDS, OPTIMIZED, OTHERS, REFUSED, compare, network, optimized
from support.suites import LONG, sampled

ON_OTHERS = [(name, OTHERS[index % len(OTHERS)]) for index, name in enumerate(KINDS)]
"""Each kind on one other backend than cpu. The script runs all of them on all."""


def test_there_are_kinds_of_all_sorts() -> None:
    assert len(KINDS) >= 120


@pytest.mark.parametrize("name", sampled(KINDS, 9))
def test_an_exported_network_has_the_results_of_onnx_runtime(tmp_path, name) -> None:
    outcome = compare(network(name), tmp_path / "model.onnx", "cpu")
    assert outcome.verdict == "ok", outcome.detail


@pytest.mark.parametrize("name", sampled(OPTIMIZED, 4))
def test_a_network_that_onnx_runtime_has_optimized_has_the_results_of_onnx_runtime(tmp_path, name) -> None:
    made = optimized(network(name), tmp_path)
    assert any(node.domain == "com.microsoft" for node in made.model.graph.node)
    outcome = compare(made, tmp_path / "model.onnx", "cpu")
    assert outcome.verdict == "ok", outcome.detail


@pytest.mark.parametrize(("name", "backend"), [pytest.param(*each, marks=LONG) for each in ON_OTHERS])
def test_an_exported_network_has_these_results_on_other_backends(tmp_path, name, backend) -> None:
    outcome = compare(network(name), tmp_path / "model.onnx", backend)
    refusal = REFUSED.get((name, backend))
    if refusal is None:
        assert outcome.verdict == "ok", outcome.detail
    else:
        assert outcome.verdict == "refused", outcome.detail
        assert refusal in outcome.detail


@LONG
@pytest.mark.parametrize(("name", "backend"), REFUSED)
def test_a_network_that_a_backend_cannot_compute_is_refused_with_the_reason(tmp_path, name, backend) -> None:
    outcome = compare(network(name), tmp_path / "model.onnx", backend)
    assert outcome.verdict == "refused"
    assert REFUSED[name, backend] in outcome.detail
