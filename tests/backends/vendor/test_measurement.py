"""Figures, targets, chips, the cache of measurements, and the judge."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backends.vendor.harness import needs_package
from isthmus.backends.htp.blobs import figures_of, graph_blob
from isthmus.backends.vendor import measurement as vendor_measurement
from isthmus.backends.vendor.composition import specimen
from isthmus.backends.vendor.judge import Variant, best
from isthmus.backends.vendor.library import find
from isthmus.backends.vendor.measurement import (
    Compilation,
    DdrTraffic,
    MeasuredGraph,
    Measurement,
    MeasurementCache,
    key_of,
    measure,
    measure_all,
    prepared,
)
from isthmus.backends.vendor.target import ChipTarget, chip, chips
from isthmus.errors import QnnError
from isthmus.graph.figures import GraphFigures, total_ram

TARGET = ChipTarget(69, 8, 3)


def measurement(spill=0, constants=100, problem=""):
    graphs = () if problem else (MeasuredGraph("g", GraphFigures(spill, 1000, constants=constants), 0.5),)
    return Measurement("v1", graphs, 4096, problem)


def test_figures_are_read_from_both_versions_of_a_graphs_blob() -> None:
    figures = GraphFigures(64, 8 << 20, 20, 30, 40, 10, 50, 3, 4, 0, 1)
    blob = graph_blob(figures)
    assert len(blob) == 112
    assert figures_of(blob) == figures
    assert figures_of(blob[:40]) == GraphFigures(64, 8 << 20, level=3, hvx_threads=4)
    assert figures_of(b"short") is None
    # Older libraries give VTCM in MB.
    assert figures_of(blob[:16] + (8).to_bytes(4, "little") + blob[20:]).vtcm == 8 << 20


def test_total_ram_counts_shared_weights_once() -> None:
    each = GraphFigures(1, 2, 3, 4, 5, 6, shared_weights=100)
    assert total_ram([each, each]) == 2 * (1 + 2 + 3 + 4 + 5 + 6) + 100


def test_the_table_of_chips_names_those_with_htp() -> None:
    with_htp = [each for each in chips() if each.vtcm_mb]
    assert len(with_htp) >= 60
    assert chip("sm8750") == chip(69) == chip("69")
    assert (chip("SM8650").arch, chip("SM8650").vtcm_mb) == (75, 8)


def test_every_chip_can_be_a_target_or_says_why_not() -> None:
    for each in chips():
        target = ChipTarget(each.soc, each.vtcm_mb or None)
        if each.vtcm_mb:
            target.check()
            with pytest.raises(QnnError, match=f"has {each.vtcm_mb} MB"):
                replace(target, vtcm_mb=each.vtcm_mb + 1).check()
        else:
            with pytest.raises(QnnError, match="has no HTP"):
                target.check()


def test_a_measurement_depends_on_graphs_target_and_build() -> None:
    keys = {
        key_of([b"a"], TARGET, "v1"), key_of([b"b"], TARGET, "v1"), key_of([b"a", b"b"], TARGET, "v1"),
        key_of([b"a"], replace(TARGET, level=2), "v1"), key_of([b"a"], TARGET, "v2"),
    }  # fmt: skip
    assert len(keys) == 5


def test_the_cache_keeps_what_lasts(tmp_path) -> None:
    cache = MeasurementCache(tmp_path / "made")
    assert cache.get("k") is None
    cache.put("k", measurement(7))
    assert cache.get("k") == measurement(7)
    cache.put("late", replace(measurement(problem="it took too long"), is_lasting=False))
    assert cache.get("late") is None
    (tmp_path / "made" / "k.json").write_text("{}")
    assert cache.get("k") is None


def test_ddr_traffic_is_kept_and_needs_every_figure_of_the_log(tmp_path) -> None:
    logged = {"spill_bytes": 1, "fill_bytes": 2, "write_total_bytes": 3, "read_total_bytes": 4}
    traffic = DdrTraffic.of_log(logged)
    assert traffic == DdrTraffic(spilled=1, filled=2, written=3, read=4)
    assert all(DdrTraffic.of_log({n: v for n, v in logged.items() if n != name}) is None for name in logged)
    one = MeasuredGraph("g", GraphFigures(0, 1000), 0.5, traffic)
    known = Measurement("v1", (one, replace(one, name="h")))
    cache = MeasurementCache(tmp_path)
    cache.put("k", known)
    assert cache.get("k") == known
    assert known.traffic == DdrTraffic(2, 4, 6, 8)
    assert replace(known, graphs=(one, replace(one, traffic=None))).traffic is None


@needs_package
def test_the_compilers_ddr_traffic_is_in_the_measurement(tmp_path) -> None:
    [entry] = prepared([specimen()])
    found = measure([entry], TARGET, find())
    assert found.traffic is not None
    assert (found.traffic.spilled, found.traffic.filled) == (0, 0)
    assert found.traffic.written > 0
    assert found.traffic.read > 0


def test_only_what_is_missing_is_measured_and_each_result_is_kept(tmp_path, monkeypatch) -> None:
    cache = MeasurementCache(tmp_path)
    jobs = [Compilation("m", [("g", b"content")], replace(TARGET, vtcm_mb=n + 1)) for n in range(4)]
    asked, refused = [], [2]

    def measured(graphs, target, library, started):
        asked.append(target.vtcm_mb - 1)
        if target.vtcm_mb - 1 in refused:
            raise KeyboardInterrupt
        return measurement(target.vtcm_mb - 1)

    monkeypatch.setattr(vendor_measurement, "measure", measured)
    with pytest.raises(KeyboardInterrupt):
        measure_all(jobs, None, "v1", cache, workers=1)
    assert asked[:3] == [0, 1, 2]
    asked.clear()
    refused.clear()
    found = measure_all(jobs, None, "v1", cache, workers=1)
    assert [result.spill_fill for result in found] == [0, 1, 2, 3]
    assert 2 in asked
    assert not {0, 1} & set(asked)
    asked.clear()
    assert measure_all(jobs, None, "v1", cache) == found
    assert not asked
    assert measure_all(jobs, None, "v1", MeasurementCache(tmp_path, fresh=True)) == found
    assert sorted(asked) == [0, 1, 2, 3]


def test_the_judge_keeps_only_what_really_helps() -> None:
    plain = Variant("", 3, measurement(100))
    less = Variant("a", 3, measurement(50))
    traded = Variant("b", 3, measurement(10, constants=5000))
    refused = Variant("c", 3, measurement(problem="no"))
    assert best([plain, less, traded, refused]) == less
    # Less spill-fill for more total RAM is no gain.
    assert best([plain, traded]) == plain
    assert best([plain, Variant("same", 3, measurement(100))]) == plain
    assert best([refused]) is None
    assert best([Variant("", 3, measurement(problem="no")), less]) == less


def test_the_judge_compares_with_the_best_level_of_the_model_itself() -> None:
    levels = [Variant("", 2, measurement(40)), Variant("", 3, measurement(100))]
    assert best([*levels, Variant("a", 3, measurement(50))]) == levels[0]


@needs_package
def test_the_compiler_is_asked_and_its_processes_end(tmp_path) -> None:
    jobs = [Compilation("m", prepared([specimen()]), replace(TARGET, vtcm_mb=size)) for size in (2, 8)]
    found = measure_all(jobs, find(), "v1", MeasurementCache(tmp_path), workers=2)
    assert [result.graphs[0].figures.vtcm >> 20 for result in found] == [2, 8]
    assert {result.problem for result in found} == {""}
    assert all(result.total_ram > result.graphs[0].figures.vtcm for result in found)


@needs_package
def test_a_model_that_the_compiler_refuses_has_a_reason() -> None:
    ((name, content),) = prepared([specimen()])
    refused = measure([(name, content), (name, content)], TARGET, find())
    assert not refused.graphs
    assert "graphCreate answers" in refused.problem
