"""libQnnTFLiteDelegate.so: every option that a program gives in C, or as a text, is the delegate's own."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from capi.served import UNREADABLE, Served
from isthmus import delegate as delegates
from isthmus.cabi.delegate import DelegateOptions, ProfilingResult
from isthmus.capi import delegate
from isthmus.delegate import Options, custom_memory
from isthmus.errors import Code, QnnError

NULL = "a pointer is null"


class FakeDelegate:
    """A stand-in for a delegate, which keeps its options and how it ended."""

    made: ClassVar[list[FakeDelegate]] = []
    refusal: QnnError | None = None

    def __init__(self, options: Options) -> None:
        self.options, self.ended, self.address = options, "", 0x1000 * (1 + len(self.made))
        facet = SimpleNamespace(performance_modes=(0, 3))
        self.settings = SimpleNamespace(facet=facet)
        self.profile: Any = None
        self.made.append(self)

    def _get_native_delegate_pointer(self) -> int:
        return self.address

    def end(self) -> None:
        self.ended = "ended"

    def close(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.ended = "closed"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeDelegate]]:
    monkeypatch.setattr(delegates, "QnnDelegate", FakeDelegate)
    FakeDelegate.made.clear()
    yield FakeDelegate.made
    FakeDelegate.made.clear()


@pytest.fixture
def served() -> Served:
    return Served("QnnTFLiteDelegate")


def listed(options: Options) -> dict[str, Any]:
    """Options as plain values that can be compared."""
    plain = dict(vars(options))
    plain["skip_options"] = (
        list(options.skip_options.skip_delegate_ops),
        list(options.skip_options.skip_delegate_node_ids),
    )
    return plain


def test_every_field_of_a_programs_options_is_an_option(served: Served, made: list[FakeDelegate]) -> None:
    given = DelegateOptions(
        backend_type=2, library_path=b"lib", skel_library_dir=b"skel", log_level=3, profiling=1, cache_dir=b"cache",
        model_token=b"token", graph_priority=4,
    )  # fmt: skip
    given.gpu_options.precision, given.gpu_options.performance_mode = 3, 2
    given.htp_options.precision, given.htp_options.performance_mode = 1, 5
    ops, nodes = (ctypes.c_int32 * 3)(3, 4, -1), (ctypes.c_int32 * 2)(7, 8)
    skipped = given.skip_options
    skipped.skip_delegate_ops, skipped.skip_delegate_ops_nr = ops, 3
    skipped.skip_delegate_node_ids, skipped.skip_delegate_node_ids_nr = nodes, 2
    assert served.call("TfLiteQnnDelegateCreate", given) == 0x1000
    found = listed(made[0].options)
    assert vars(found.pop("htp_options")) == {"performance_mode": 5, "precision": 1}
    assert vars(found.pop("gpu_options")) == {"performance_mode": 2, "precision": 3}
    assert found == {
        "backend_type": 2, "library_path": "lib", "skel_library_dir": "skel", "log_level": 3, "profiling": 1,
        "cache_dir": "cache", "model_token": "token", "skip_options": ([3, 4, -1], [7, 8]), "graph_priority": 4,
    }  # fmt: skip


def test_what_a_program_leaves_out_is_none(served: Served, made: list[FakeDelegate]) -> None:
    given = DelegateOptions(backend_type=101, library_path=b"", cache_dir=b"")
    assert served.call("TfLiteQnnDelegateCreate", given)
    options = made[0].options
    assert (options.library_path, options.skel_library_dir, options.cache_dir, options.model_token) == (None,) * 4
    assert listed(options)["skip_options"] == ([], [])


def said(capfd: pytest.CaptureFixture[str]) -> str:
    return capfd.readouterr().err.strip()


def test_options_that_would_change_results_are_refused(
    served: Served, made: list[FakeDelegate], capfd: pytest.CaptureFixture[str]
) -> None:
    packaged, dumping, many = DelegateOptions(), DelegateOptions(tensor_dump_output_path=b"here"), DelegateOptions()
    packaged.op_package_options.num_op_package_infos = 1
    many.skip_options.skip_delegate_ops_nr = 65537
    for given, code, rule in (
        (0, Code.BACKEND_INVALID_ARGUMENT, "options: they are null"),
        (packaged, Code.COMMON_NOT_SUPPORTED, "option op_package_options: operation packages are not offered"),
        (dumping, Code.COMMON_NOT_SUPPORTED, "option tensor_dump_output_path: tensors are not dumped"),
        (many, Code.BACKEND_INVALID_ARGUMENT, "option skip_options: 65537 of one kind are too many"),
    ):
        assert served.call("TfLiteQnnDelegateCreate", given) == 0
        line = said(capfd)
        assert line.endswith(f"[{int(code)} {code.name}] {rule}"), line
    assert served.call("TfLiteQnnDelegateCreate", UNREADABLE) == 0
    assert said(capfd).endswith("are not memory of this process")
    most, nodes = DelegateOptions(), (ctypes.c_int32 * 65536)()
    most.skip_options.skip_delegate_ops, most.skip_options.skip_delegate_ops_nr = nodes, 65536
    none = DelegateOptions()
    none.op_package_options.num_op_package_infos = 0
    assert served.call("TfLiteQnnDelegateCreate", most)
    assert served.call("TfLiteQnnDelegateCreate", none)
    assert len(listed(made[0].options)["skip_options"][0]) == 65536
    for field in ("skip_delegate_ops_nr", "skip_delegate_node_ids_nr"):
        nowhere = DelegateOptions()
        setattr(nowhere.skip_options, field, 1)
        assert served.call("TfLiteQnnDelegateCreate", nowhere) == 0
        assert said(capfd).endswith(NULL)


def test_a_delegate_that_cannot_be_deleted_stays_and_a_deleted_one_is_unknown(
    served: Served, made: list[FakeDelegate], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = served.call("TfLiteQnnDelegateCreate", DelegateOptions())
    server = served.server
    assert server.client_objects == {address: made[0]}
    assert list(server.endings) == [address]
    result = ProfilingResult()
    assert served.call("TfLiteQnnDelegateGetProfilingResult", address, result) == 0
    assert json.loads(ctypes.string_at(result.buffer, result.buffer_length)) == []
    monkeypatch.setattr(FakeDelegate, "refusal", QnnError(Code.COMMON_GENERAL, "delegate", "it runs"))
    assert served.call("TfLiteQnnDelegateDelete", address) == 0
    assert said(capfd).endswith("delegate: it runs")
    assert len(server.client_objects) == 2  # the delegate and its profiling result
    monkeypatch.setattr(FakeDelegate, "refusal", None)
    assert served.call("TfLiteQnnDelegateDelete", address) == 0
    assert (made[0].ended, server.client_objects, server.endings) == ("closed", {}, {})
    # Calls with the address of the deleted delegate return 0, and all but the last write why.
    unknown = f"delegate at {address:#x}: it is unknown, or was deleted"
    for name, more in (
        ("TfLiteQnnDelegateDelete", ()), ("TfLiteQnnDelegateSetPerf", (0,)),
        ("TfLiteQnnDelegateUpdateHtpPerfMode", (0,)), ("TfLiteQnnDelegateGetProfilingResult", (result,)),
    ):  # fmt: skip
        assert served.call(name, address, *more) == 0
        assert said(capfd).endswith(unknown), name
    assert served.call("TfLiteQnnDelegateClearProfilingResult", address) == 0
    other = served.call("TfLiteQnnDelegateCreate", DelegateOptions())
    server.leave()  # as when the process exits: a delegate that was not deleted is ended
    assert (made[1].ended, other) == ("ended", 0x2000)


def test_events_are_a_list_in_json(served: Served, made: list[FakeDelegate]) -> None:
    address = served.call("TfLiteQnnDelegateCreate", DelegateOptions())
    events = [SimpleNamespace(name="one", value=1.5, unit="us"), SimpleNamespace(name="two", value=2, unit="bytes")]
    made[0].profile = SimpleNamespace(get_events=lambda: events)
    result = ProfilingResult()
    assert served.call("TfLiteQnnDelegateGetProfilingResult", address, result) == 0
    assert json.loads(ctypes.string_at(result.buffer, result.buffer_length)) == [
        {"name": "one", "value": 1.5, "unit": "us"}, {"name": "two", "value": 2, "unit": "bytes"},
    ]  # fmt: skip
    assert ctypes.addressof(served.server.client_objects[-address]) == ctypes.addressof(result.buffer.contents)
    assert served.call("TfLiteQnnDelegateClearProfilingResult", address) == 0
    assert -address not in served.server.client_objects


def test_votes_for_clocks_are_understood_by_number(served: Served, made: list[FakeDelegate]) -> None:
    address = served.call("TfLiteQnnDelegateCreate", DelegateOptions())
    assert [served.call("TfLiteQnnDelegateSetPerf", address, action) for action in (0, 1, 2)] == [1, 1, 0]
    assert [served.call("TfLiteQnnDelegateUpdateHtpPerfMode", address, mode) for mode in (0, 1, 3)] == [1, 0, 1]
    made[0].settings.facet.performance_modes = ()
    assert served.call("TfLiteQnnDelegateSetPerf", address, 0) == 0


def test_capabilities_are_those_of_backends_that_run_here(served: Served) -> None:
    found = [served.call("TfLiteQnnDelegateHasCapability", number) for number in (0, 1, 77)]
    assert found == [1, 1, 0]


def test_custom_memory_is_allocated_aligned_and_freed(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    address = served.call("TfLiteQnnDelegateAllocCustomMem", 100, 64)
    assert address
    assert address % 64 == 0
    ctypes.memset(address, 1, 100)
    assert custom_memory.find(address) is not None
    assert served.call("TfLiteQnnDelegateFreeCustomMem", address) == 0
    assert custom_memory.find(address) is None
    assert said(capfd) == ""
    assert served.call("TfLiteQnnDelegateAllocCustomMem", 1 << 60, 64) == 0
    assert said(capfd).endswith("1152921504606846976 bytes: it could not be allocated, aligned to 64")


def test_custom_memory_that_an_interpreter_has_goes_with_it(
    served: Served, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = served.call("TfLiteQnnDelegateAllocCustomMem", 100, 64)
    with monkeypatch.context() as patched:
        patched.setattr("isthmus.delegate.c_names.TfLiteQnnDelegateFreeCustomMem", lambda given: None)
        assert served.call("TfLiteQnnDelegateFreeCustomMem", address) == 0
    line = said(capfd)
    assert not line or line.endswith(
        f"Custom memory at {address:#x} goes with the interpreter that has a tensor there."
    )
    assert served.call("TfLiteQnnDelegateFreeCustomMem", address) == 0


# -- options as texts --------------------------------------------------------------------------------------------------


def created(served: Served, report: int = 0, **texts: str) -> Any:
    keys = served.listed(*[key.encode() for key in texts], end=False) if texts else 0
    values = served.listed(*[value.encode() for value in texts.values()], end=False) if texts else 0
    return served.call("tflite_plugin_create_delegate", keys, values, len(texts), report)


def test_every_option_can_be_given_as_a_text(served: Served, made: list[FakeDelegate]) -> None:
    assert created(
        served, backend_type="htp", log_level="3", profiling="PER_OP", graph_priority="high", library_path="lib",
        skel_library_dir="skel", cache_dir="cache", model_token="", htp_performance_mode="burst", htp_precision="fp16",
        gpu_performance_mode="2", gpu_precision="hybrid", skip_delegate_ops=" CONV_2D, 4 ,, x",
        skip_delegate_node_ids="7,8",
    ) == 0x1000  # fmt: skip
    found = listed(made[0].options)
    assert found.pop("skip_options") == (["CONV_2D", 4, "x"], [7, 8])
    assert {name: int(value) for name, value in vars(found.pop("htp_options")).items()} == {
        "performance_mode": 2, "precision": 1,
    }  # fmt: skip
    assert {name: int(value) for name, value in vars(found.pop("gpu_options")).items()} == {
        "performance_mode": 2, "precision": 3,
    }  # fmt: skip
    assert found == {
        "backend_type": 2, "library_path": "lib", "skel_library_dir": "skel", "log_level": 3, "profiling": 2,
        "cache_dir": "cache", "model_token": None, "graph_priority": 4,
    }  # fmt: skip


def test_without_texts_all_options_have_their_defaults(served: Served, made: list[FakeDelegate]) -> None:
    assert created(served)
    assert listed(made[0].options) == listed(Options())


def test_texts_that_are_no_options_are_refused(
    served: Served, made: list[FakeDelegate], capfd: pytest.CaptureFixture[str]
) -> None:
    reported: list[str] = []
    callback = served.client.keep(ctypes.CFUNCTYPE(None, ctypes.c_char_p)(lambda text: reported.append(text.decode())))
    report = ctypes.cast(callback, ctypes.c_void_p).value or 0
    begin = "[4004 BACKEND_INVALID_ARGUMENT]"
    assert created(served, report, log_level="loud") == 0
    assert reported.pop() == (
        f"{begin} option log_level: must be one of off 0, error 1, warn 2, info 3, verbose 4, debug 5, is 'loud'"
    )
    assert created(served, report, beta="1", alpha="2", profiling="0") == 0
    line = reported.pop()
    assert line.startswith(
        f"{begin} options: there is no option named alpha, beta. There are backend_type, cache_dir, "
    )
    names = line.partition("There are ")[2].rstrip(".").split(", ")
    assert names == sorted(names)
    assert {"gpu_precision", "htp_performance_mode", "skip_delegate_ops", "model_token", "log_level"} <= set(names)
    assert len(names) == 14
    assert created(served, log_level="loud") == 0
    assert "option log_level: must be one of off 0" in said(capfd)
    for keys, values in ((0, served.listed(b"1", end=False)), (served.listed(b"log_level", end=False), 0),
                         (served.listed(0, end=False), served.listed(b"1", end=False))):  # fmt: skip
        assert served.call("tflite_plugin_create_delegate", keys, values, 1, report) == 0
        assert reported.pop() == NULL
    assert served.call("tflite_plugin_create_delegate", 0, 0, 257, report) == 0
    assert reported.pop() == f"{begin} options: 257 of them are too many"
    assert made == []


def test_the_largest_allowed_number_of_options_is_read(served: Served, made: list[FakeDelegate]) -> None:
    assert delegate.MAX_OPTIONS == 256
    keys = served.listed(*[b"log_level"] * 256, end=False)
    values = served.listed(*[b"2"] * 256, end=False)
    assert served.call("tflite_plugin_create_delegate", keys, values, 256, 0)
    assert made[0].options.log_level == 2
