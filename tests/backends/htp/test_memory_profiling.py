"""Memory of the accelerator in profiles (DSP_MEMORY_PROFILING_ENABLED): before the first context and after the last."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.htp.client_memory import deferred, mapped_by_accelerator
from backends.htp.sized import binary_of, table_graph
from isthmus import qnn
from isthmus.errors import QnnError
from isthmus.memory import rpcmem
from isthmus.qnn import htp
from isthmus.tools.cli import main
from isthmus.tools.profile_viewer import read_log

BEFORE, AFTER = "DSP:before_context_created", "DSP:after_context_freed"
ON = {htp.DSP_MEMORY_PROFILING_ENABLED: True}
TABLE = 3 << 20


@pytest.fixture(scope="module")
def binary() -> bytes:
    return binary_of(5000)


@pytest.fixture
def backend() -> Iterator[qnn.Backend]:
    with qnn.Backend("htp") as opened:
        yield opened


class Recorded:
    """A profile that tells the memory events since the last call."""

    def __init__(self, backend: qnn.Backend) -> None:
        self.profile = qnn.Profile(backend, qnn.ProfileLevel.BASIC)
        self.seen = 0

    def new(self) -> dict[str, float]:
        events = self.profile.get_events(self.seen)
        self.seen += len(events)
        return {each.name: each.value for each in events if each.unit == "bytes"}


def test_the_first_creation_and_the_last_free_say_what_is_mapped(backend, binary) -> None:
    it = Recorded(backend)
    first = backend.create_context_from_binary(binary, ON, profile=it.profile)
    before = it.new()
    assert [*before] == [BEFORE]
    second = backend.create_context_from_binary(binary, ON, profile=it.profile)
    assert it.new() == {}, "it is not the first"
    first.free(it.profile)
    assert it.new() == {}, "it is not the last"
    second.free(it.profile)
    assert it.new() == {AFTER: before[BEFORE]}, "nothing is left"
    again = deferred(backend, binary, configs=ON, profile=it.profile)
    assert it.new() == before
    again.free(it.profile)
    assert it.new() == {AFTER: before[BEFORE]}


def test_contexts_with_data_callbacks_record_it_too(backend, binary, tmp_path) -> None:
    file = tmp_path / "one.bin"
    file.write_bytes(binary)
    it = Recorded(backend)
    context = backend.create_context_from_provider(file, qnn.FileProvider(file), ON)
    before = context.driver.memory_events
    assert [name for name, _ in before] == [BEFORE]
    context.free(it.profile)
    assert it.new() == {AFTER: before[0][1]}


def test_the_figure_is_what_the_system_says_of_the_accelerator(backend) -> None:
    """It grows by what the system has mapped for a context, and by its scratch and states."""
    with backend.create_context() as composed:
        table_graph(composed, "g", TABLE)
        content = composed.prepare_offline()

    def mapped() -> tuple[int, int]:
        stated = backend.driver.device.accelerator().call("counts")["mapped_bytes"]
        return stated, sum(nbytes for _, name, nbytes in mapped_by_accelerator(backend) if "doorbell" not in name)

    stated, seen = mapped()
    with backend.create_context_from_binary(content) as context, rpcmem.share(1 << 20) as buffer:
        [handle] = context.mem_register(
            [qnn.MemDescriptor((4,), qnn.DataType.INT_32, qnn.DescriptorType.ION, buffer.fd)]
        )
        grown, visible = mapped()
        assert visible - seen > TABLE + (1 << 20)
        assert 0 <= (grown - stated) - (visible - seen) < 4096, "scratch and states, which are not shared"
        context.mem_deregister([handle])
        assert mapped()[0] == grown - (1 << 20)
    assert mapped() == (stated, seen)


def test_only_contexts_with_the_option_record_it(backend, binary) -> None:
    it = Recorded(backend)
    for configs in ({}, {htp.DSP_MEMORY_PROFILING_ENABLED: False}):
        backend.create_context_from_binary(binary, configs, profile=it.profile).free(it.profile)
        assert it.new() == {}
    first = backend.create_context_from_binary(binary, ON, profile=it.profile)
    assert [*it.new()] == [BEFORE]
    last = backend.create_context_from_binary(binary, profile=it.profile)
    first.free(it.profile)
    last.free(it.profile)
    assert it.new() == {}, "the last one has not the option"


def test_it_may_be_turned_on_and_off_for_the_end_later(backend, binary) -> None:
    it = Recorded(backend)
    for was, will_be in ((False, True), (True, False)):
        context = backend.create_context_from_binary(
            binary, {htp.DSP_MEMORY_PROFILING_ENABLED: was}, profile=it.profile
        )
        assert [*it.new()] == [BEFORE] * was
        context.set_config(htp.DSP_MEMORY_PROFILING_ENABLED, will_be)
        context.free(it.profile)
        assert [*it.new()] == [AFTER] * will_be
    with pytest.raises(QnnError, match="must be a member of bool"):
        backend.create_context({htp.DSP_MEMORY_PROFILING_ENABLED: 1})


def test_composed_contexts_record_nothing(backend) -> None:
    it = Recorded(backend)
    context = backend.create_context(ON)
    table_graph(context, "g", 4096).finalize()
    context.free(it.profile)
    assert it.new() == {}


def test_a_call_records_its_time_also_without_the_option(backend, binary) -> None:
    profile = qnn.Profile(backend)
    backend.create_context_from_binary(binary, profile=profile).free(profile)
    events = profile.get_events()
    assert [(each.name, each.unit) for each in events] == [
        ("context created from binary", "us"),
        ("context freed", "us"),
    ]
    assert all(each.value > 0 for each in events)


def test_the_logs_of_tools_have_the_events(tmp_path: Path, binary, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("g.bin").write_bytes(binary)
    Path("config.json").write_text('{"htp": {"dsp_memory_profiling": true}}')
    Path("x.raw").write_bytes(bytes(16))
    Path("list.txt").write_text("x.raw\n")
    arguments = ["--retrieve_context", "g.bin", "--input_list", "list.txt", "--use_native_input_files"]
    more = ["--config_file", "config.json", "--profiling_level", "basic", "--output_dir", "out"]
    assert main(["net-run", "--backend", "libQnnHtp.so", *arguments, *more]) == 0
    _, calls = read_log(tmp_path / "out" / "qnn-profiling-data_0.log")
    found = {call.call: {each.name: each.value for each in call.events if each.unit == "bytes"} for call in calls}
    assert [*found["create context"]] == [BEFORE]
    assert [*found["free context"]] == [AFTER]
    assert found["create context"][BEFORE] == found["free context"][AFTER] > 0
