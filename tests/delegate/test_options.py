"""Options as QNN's header has them: their defaults, and a refusal for each that is wrong."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from dataclasses import replace

import pytest

from delegate.harness import doubled, with_delegate
from isthmus.delegate import (
    BackendType,
    DelegateLogLevel,
    GpuOptions,
    GpuPerformanceMode,
    GpuPrecision,
    GraphPriority,
    HtpOptions,
    HtpPerformanceMode,
    HtpPrecision,
    Options,
    Profiling,
    QnnDelegate,
    SkipOptions,
    custom_memory,
)
from isthmus.delegate.c_names import (
    TfLiteQnnDelegateAllocCustomMem,
    TfLiteQnnDelegateCreate,
    TfLiteQnnDelegateDelete,
    TfLiteQnnDelegateFreeCustomMem,
    TfLiteQnnDelegateOptionsDefault,
    kCpuBackend,
    kHtpBackend,
    kUndefinedBackend,
)
from isthmus.errors import Code, QnnError

NUMBERS = {
    BackendType: {"UNDEFINED": 0, "GPU": 1, "HTP": 2, "DSP": 3, "LPAI": 100, "CPU": 101},
    DelegateLogLevel: {"OFF": 0, "ERROR": 1, "WARN": 2, "INFO": 3, "VERBOSE": 4, "DEBUG": 5},
    Profiling: {"OFF": 0, "BASIC": 1, "PER_OP": 2},
    HtpPerformanceMode: {
        "DEFAULT": 0, "SUSTAINED_HIGH_PERFORMANCE": 1, "BURST": 2, "HIGH_PERFORMANCE": 3, "POWER_SAVER": 4,
        "LOW_POWER_SAVER": 5, "HIGH_POWER_SAVER": 6, "LOW_BALANCED": 7, "BALANCED": 8, "EXTREME_POWER_SAVER": 9,
    },
    HtpPrecision: {"QUANTIZED": 0, "FP16": 1},
    GpuPerformanceMode: {"DEFAULT": 0, "HIGH": 1, "NORMAL": 2, "LOW": 3},
    GpuPrecision: {"USER_PROVIDED": 0, "FP32": 1, "FP16": 2, "HYBRID": 3},
    GraphPriority: {"DEFAULT": 0, "LOW": 1, "NORMAL": 2, "NORMAL_HIGH": 3, "HIGH": 4},
}  # fmt: skip


@pytest.mark.parametrize("kind", NUMBERS, ids=lambda kind: kind.__name__)
def test_options_have_the_numbers_of_the_header(kind) -> None:
    assert {name: int(number) for name, number in kind.__members__.items()} == NUMBERS[kind]


def test_defaults_are_those_of_the_header() -> None:
    options = TfLiteQnnDelegateOptionsDefault()
    assert options.backend_type is kUndefinedBackend
    assert (int(kUndefinedBackend), int(BackendType.GPU), int(kHtpBackend)) == (0, 1, 2)
    assert (options.library_path, options.skel_library_dir, options.cache_dir, options.model_token) == (None,) * 4
    assert (options.log_level, options.profiling, options.graph_priority) == (0, 0, 0)
    assert (options.htp_options.performance_mode, options.htp_options.precision) == (0, 0)
    assert (options.gpu_options.performance_mode, options.gpu_options.precision) == (0, 2)
    assert (options.skip_options.skip_delegate_ops, options.skip_options.skip_delegate_node_ids) == ((), ())


def test_the_backend_type_is_mandatory() -> None:
    for given in (None, Options()):
        with pytest.raises(QnnError, match="it is mandatory but not set") as caught:
            QnnDelegate(given)
        assert caught.value.code is Code.BACKEND_INVALID_ARGUMENT


def test_a_backend_that_is_not_there_is_refused() -> None:
    with pytest.raises(QnnError, match="DSP: not available here") as caught:
        QnnDelegate(Options(BackendType.DSP))
    assert caught.value.code is Code.BACKEND_NOT_SUPPORTED


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"backend_type": 77}, "backend_type"),
        ({"backend_type": "HTP"}, "backend_type"),
        ({"backend_type": True}, "backend_type"),
        ({"library_path": "libQnnHtp.so"}, "not a library of backend type CPU"),
        ({"library_path": "no/such.so"}, "no/such.so"),
        ({"library_path": 3}, "library_path"),
        ({"library_path": ""}, "library_path"),
        ({"library_path": "cpu"}, "not a library of backend type CPU"),
        ({"library_path": "libQnnCpu.so\0"}, "library_path"),
        ({"library_path": b"libQnnCpu.so"}, "library_path"),
        ({"skel_library_dir": 3}, "skel_library_dir"),
        ({"skel_library_dir": "\0"}, "skel_library_dir"),
        ({"log_level": 9}, "log_level"),
        ({"log_level": Profiling.BASIC}, "log_level"),
        ({"log_level": 1.0}, "log_level"),
        ({"profiling": -1}, "profiling"),
        ({"graph_priority": 50}, "graph_priority"),
        ({"htp_options": None}, "htp_options"),
        ({"htp_options": HtpOptions(performance_mode=99)}, "htp_options.performance_mode"),
        ({"htp_options": HtpOptions(precision="fp16")}, "htp_options.precision"),
        ({"gpu_options": GpuOptions(precision=4)}, "gpu_options.precision"),
        ({"gpu_options": 1}, "gpu_options"),
        ({"cache_dir": "x"}, "set both or neither"),
        ({"model_token": "x"}, "set both or neither"),
        ({"cache_dir": "x", "model_token": ""}, "model_token"),
        ({"cache_dir": "x", "model_token": "../escape"}, "model_token"),
        ({"cache_dir": "x", "model_token": "a" * 129}, "model_token"),
        ({"cache_dir": 5, "model_token": "a"}, "cache_dir"),
        ({"cache_dir": "", "model_token": "a"}, "cache_dir"),
        ({"cache_dir": "a\0b", "model_token": "a"}, "cache_dir"),
        ({"cache_dir": "x", "model_token": 7}, "model_token"),
        ({"cache_dir": "x", "model_token": "a\0"}, "model_token"),
        ({"skip_options": []}, "skip_options"),
        ({"skip_options": SkipOptions(skip_delegate_ops="ADD")}, "skip_delegate_ops"),
        ({"skip_options": SkipOptions(skip_delegate_ops=b"\0")}, "skip_delegate_ops"),
        ({"skip_options": SkipOptions(skip_delegate_ops=None)}, "skip_delegate_ops"),
        ({"skip_options": SkipOptions(skip_delegate_ops=[None])}, "skip_delegate_ops"),
        ({"skip_options": SkipOptions(skip_delegate_ops=["NO_SUCH"])}, "skip_delegate_ops"),
        ({"skip_options": SkipOptions(skip_delegate_ops=[100000])}, "skip_delegate_ops"),
        ({"skip_options": SkipOptions(skip_delegate_node_ids=[-1])}, "skip_delegate_node_ids"),
        ({"skip_options": SkipOptions(skip_delegate_node_ids=7)}, "skip_delegate_node_ids"),
        ({"skip_options": SkipOptions(skip_delegate_node_ids=[1.5])}, "skip_delegate_node_ids"),
        ({"skip_options": SkipOptions(skip_delegate_node_ids="12")}, "skip_delegate_node_ids"),
    ],
)
def test_an_option_that_is_wrong_is_named(change, match) -> None:
    with pytest.raises(QnnError, match=match):
        QnnDelegate(replace(Options(BackendType.CPU), **change))


@pytest.mark.parametrize("wrong", [{}, "HTP", 2])
def test_what_are_no_options_is_refused(wrong) -> None:
    with pytest.raises(QnnError, match="must be Options"):
        QnnDelegate(wrong)


def test_a_library_of_the_backend_is_taken(make) -> None:
    assert make("HTP", library_path="/vendor/lib64/libQnnHtp.so").backend_name == "htp"


def test_the_log_level_is_the_backends() -> None:
    messages = {level: [] for level in (DelegateLogLevel.OFF, DelegateLogLevel.INFO)}
    for level, lines in messages.items():
        delegate = QnnDelegate(Options(BackendType.HTP, log_level=level), lambda _, text, to=lines: to.append(text))
        interpreter = with_delegate(doubled(1, 4), delegate)
        del interpreter
        delegate.close()
    started = [any("Accelerator process" in text for text in lines) for lines in messages.values()]
    assert started == [False, True]
    assert all(any("nodes delegated" in text for text in lines) for lines in messages.values())


def test_the_priority_is_the_graphs(make) -> None:
    delegate = make("HTP", graph_priority=GraphPriority.HIGH)
    interpreter = with_delegate(doubled(1, 4), delegate)
    assert delegate.partitions[0]._runner.ready.graph.driver.priority == 200
    del interpreter


def test_options_without_effect_on_a_backend_are_reported_and_no_others(make) -> None:
    def said(backend, **options) -> list[str]:
        return make(backend, **options).lines

    assert said("HTP", htp_options=HtpOptions(HtpPerformanceMode.BURST, HtpPrecision.FP16)) == [
        "INFO: Option htp_options.performance_mode = BURST has no effect: "
        "the accelerator here is a process, and has no clocks to set",
    ]
    assert said("HTP", graph_priority=GraphPriority.HIGH, profiling=Profiling.BASIC) == []
    assert said("CPU", htp_options=HtpOptions(HtpPerformanceMode.BURST), gpu_options=GpuOptions(precision=1)) == [
        "INFO: Option htp_options.performance_mode = BURST has no effect: "
        "it is for the HTP backend, this delegate's is 'cpu'",
        "INFO: Option gpu_options.precision = FP32 has no effect: it is for the GPU backend, this delegate's is 'cpu'",
    ]
    assert said("LPAI", graph_priority=GraphPriority.LOW, skel_library_dir="/vendor/lib") == [
        "INFO: Option graph_priority = LOW has no effect: 'lpai' executes in the order of asking",
        "INFO: Option skel_library_dir has no effect: there is no DSP library to load",
    ]


# -- C names -----------------------------------------------------------------------------------------------------------


def test_the_c_names_create_and_free_delegates_and_memory() -> None:
    options = TfLiteQnnDelegateOptionsDefault()
    options.backend_type = kCpuBackend
    delegate = TfLiteQnnDelegateCreate(options)
    interpreter = with_delegate(doubled(1, 4), delegate)
    with pytest.raises(QnnError, match="still runs"):
        TfLiteQnnDelegateDelete(delegate)
    del interpreter
    TfLiteQnnDelegateDelete(delegate)
    TfLiteQnnDelegateDelete(None)
    for wrong in (5, object()):
        with pytest.raises(QnnError, match="must be a QnnDelegate"):
            TfLiteQnnDelegateDelete(wrong)


def test_null_options_are_refused() -> None:
    with pytest.raises(QnnError, match="they are null"):
        TfLiteQnnDelegateCreate(None)


def test_c_memory_is_an_address_or_none() -> None:
    address = TfLiteQnnDelegateAllocCustomMem(100, 64)
    assert address % 64 == 0
    kept = weakref.ref(custom_memory._memories[address])
    gc.collect()
    assert kept() is not None
    TfLiteQnnDelegateFreeCustomMem(address)
    assert kept() is None, "nobody has it after that"
    TfLiteQnnDelegateFreeCustomMem(None)
    for size, alignment in ((0, 64), (64, 3), (1 << 60, 64)):
        assert TfLiteQnnDelegateAllocCustomMem(size, alignment) is None
    with pytest.raises(QnnError, match="not allocated"):
        TfLiteQnnDelegateFreeCustomMem(address)


def test_c_memory_stays_until_it_is_freed() -> None:
    address = TfLiteQnnDelegateAllocCustomMem(100, 64)
    gc.collect()
    assert custom_memory.find(address).nbytes == 100
    TfLiteQnnDelegateFreeCustomMem(address)
    assert custom_memory.find(address) is None


ONE_DELEGATE_WITH_A_LOG_AND_TWO_WITHOUT = """
import sys
from ai_edge_litert.interpreter import Interpreter
from isthmus.delegate import BackendType, Options, QnnDelegate, probe_model
heard = []
for log in (lambda level, text: heard.append(text), None, None):
    delegate = QnnDelegate(Options(BackendType.CPU), log)
    interpreter = Interpreter(model_content=probe_model.content(), experimental_delegates=[delegate])
    del interpreter
    delegate.close()
print(len(heard))
"""


def test_without_a_log_lines_go_to_standard_error_and_that_of_the_runtime_once_a_process() -> None:
    """One delegate has a log, two have none: only these two write to standard error."""
    ran = subprocess.run(
        [sys.executable, "-c", ONE_DELEGATE_WITH_A_LOG_AND_TWO_WITHOUT], capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 0, ran.stderr
    lines = [
        "INFO: TfLiteQnnDelegate delegate: 2 nodes delegated out of 2 nodes with 1 partitions.",
        "INFO: Replacing 2 node(s) with delegate (TfLiteQnnDelegate) node, yielding 1 partitions.",
    ]
    said = [line for line in ran.stderr.splitlines() if line.startswith("INFO: ")]
    assert said == ["INFO: Initialized TensorFlow Lite runtime.", *lines, *lines]
    assert ran.stdout.strip() == "2", "lines given to a log must not be written to standard error too"


@pytest.mark.parametrize(
    ("part", "name", "hint"),
    [
        ("", "log_levl", "Did you mean 'log_level'?"),
        ("htp_options", "precison", "Did you mean 'precision'?"),
        ("gpu_options", "performance_mod", "Did you mean 'performance_mode'?"),
        ("skip_options", "skip_delegate_op", "Did you mean 'skip_delegate_ops'?"),
        ("", "zzz", "Options are backend_type, library_path"),
    ],
)
def test_an_attribute_that_is_no_option_is_refused_with_the_nearest_name(part, name, hint) -> None:
    options = Options(BackendType.CPU)
    setattr(getattr(options, part) if part else options, name, 1)
    with pytest.raises(QnnError, match="there is no such option") as refused:
        QnnDelegate(options)
    assert hint in str(refused.value)
