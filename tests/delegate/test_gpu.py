"""A delegate on the GPU backend: LiteRT's answers, in the precision that was asked for, tensors transferred."""

from __future__ import annotations

import numpy as np
import pytest
from frontends.tflite.test_control_flow import accumulator

from delegate.harness import chain, plain, run, with_delegate
from isthmus.delegate import GpuOptions, GpuPerformanceMode, GpuPrecision, Profiling, SkipOptions

pytest.importorskip("pyopencl", reason="the package pyopencl is not installed")

VECTOR = np.float32([[0.1, 0.2, 0.3, 0.4]])
NORMALIZED = chain("NEG", "LOG_SOFTMAX", "ABS")
"""Three operators that do not become one kernel: what lies between them is kept in the precision of the graph."""
HALF, SINGLE = 2.0**-10, 2.0**-20
"""How far off an answer near 1 may be, where what lies between operators has the digits of a half, rounded twice, and
those of a float, of which a device's logarithm and exponential may lose some."""


def distance(delegate) -> float:
    """Return how far the delegate's answers are from LiteRT's own."""
    ours, theirs = with_delegate(NORMALIZED, delegate), plain(NORMALIZED)
    theirs.allocate_tensors()
    return float(np.abs(run(ours, VECTOR)[0] - run(theirs, VECTOR)[0]).max())


def test_nodes_run_on_the_device_and_match_the_interpreter(make) -> None:
    delegate = make("GPU", gpu_options=GpuOptions(precision=GpuPrecision.FP32))
    assert distance(delegate) < SINGLE
    assert delegate.lines == [
        "INFO: TfLiteQnnDelegate delegate: 3 nodes delegated out of 3 nodes with 1 partitions.",
        "INFO: Replacing 3 node(s) with delegate (TfLiteQnnDelegate) node, yielding 1 partitions.",
    ]
    stats = delegate.stats
    assert (stats.executions, stats.copied_in_bytes, stats.copied_out_bytes) == (1, 16, 16)


@pytest.mark.parametrize("precision", GpuPrecision)
def test_floats_are_kept_in_the_precision_that_was_asked_for(precision, make) -> None:
    off = distance(make("GPU", gpu_options=GpuOptions(precision=precision)))
    if precision in (GpuPrecision.FP16, GpuPrecision.HYBRID):
        assert SINGLE < off < HALF
    else:
        assert off < SINGLE


def test_where_none_was_asked_for_floats_are_kept_as_fp16(make) -> None:
    assert SINGLE < distance(make("GPU")) < HALF


def test_a_binary_of_another_precision_is_not_taken_from_the_cache(make, tmp_path) -> None:
    found = []
    for precision in (GpuPrecision.FP32, GpuPrecision.FP16, GpuPrecision.FP32):
        delegate = make(
            "GPU", gpu_options=GpuOptions(precision=precision), cache_dir=tmp_path, model_token="m"
        )  # fmt: skip
        assert (distance(delegate) < SINGLE) == (precision is GpuPrecision.FP32)
        found.append(any("is taken from" in line for line in delegate.lines))
    assert found == [False, False, True]


def test_a_performance_mode_is_reported_as_without_effect(make) -> None:
    delegate = make("GPU", gpu_options=GpuOptions(GpuPerformanceMode.HIGH))
    assert delegate.lines == [
        "INFO: Option gpu_options.performance_mode = HIGH has no effect: OpenCL has no clocks to set"
    ]


def test_other_shapes_states_and_several_partitions_are_all_right(make) -> None:
    precise = GpuOptions(precision=GpuPrecision.FP32)
    delegate = make("GPU", gpu_options=precise, skip_options=SkipOptions(skip_delegate_ops=["LOG_SOFTMAX"]))
    ours, theirs = plain(NORMALIZED, experimental_delegates=[delegate]), plain(NORMALIZED)
    for rows in (1, 3):
        for each in (ours, theirs):
            each.resize_tensor_input(0, (rows, 4))
            each.allocate_tensors()
        x = np.random.default_rng(rows).random((rows, 4), np.float32)
        np.testing.assert_allclose(run(ours, x)[0], run(theirs, x)[0], rtol=2e-6)
    assert delegate.taken == [(2, 3, 2)]
    ours = with_delegate(accumulator(), delegate)
    assert [run(ours, np.float32([1, 2]))[0].tolist() for _ in range(3)] == [[11, 22], [12, 24], [13, 26]]
    del ours


def test_profiling_records_the_time_of_operations(make) -> None:
    delegate = make("GPU", profiling=Profiling.PER_OP)
    assert distance(delegate) < HALF
    names = [event.name for event in delegate.profile.get_events()]
    assert "execute" in names
    assert any("LogSoftmax" in name for name in names)
