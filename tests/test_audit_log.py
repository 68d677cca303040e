"""The audit of a program: what it does with memory, what is copied and why, and every mistake with its line."""

import contextlib
import gc
import json
import linecache
import os
import re
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack

import numpy as np
import pytest
from backends.htp.sized import binary_of, chip
from support import tiny
from support.interruption import everywhere
from support.waiting import run_in_threads, switched_often

import isthmus
from isthmus import QnnError, audit_log, faults, memory, qnn
from isthmus.backends.seam.binding import BindingBase
from isthmus.graph import DataType, TensorMemType, TensorType
from isthmus.memory import rpcmem
from isthmus.qnn import ClientTensor, DescriptorType, MemDescriptor, htp
from isthmus.tools import cli

DIMS = (1, 16)
NBYTES = 64


def composed(context, mem_type=TensorMemType.MEMHANDLE):
    """Return a finalized graph that doubles its input 'x' into 'y'."""
    graph = context.create_graph("double")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, DIMS, mem_type=mem_type)
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, DIMS, mem_type=mem_type)
    graph.add_node("add", "ElementWiseAdd", [x, x], [y])
    graph.finalize()
    return graph


def at(buffer, offset):
    """Describe a tensor at an offset of a shared buffer."""
    custom = htp.Descriptor(size=buffer.nbytes, fd=buffer.fd, offset=offset)
    return MemDescriptor(DIMS, DataType.FLOAT_32, DescriptorType.CUSTOM, custom=custom)


def registered(handles):
    """Return the inputs and outputs of an execution on two handles."""
    return [ClientTensor("x", mem_handle=handles[0])], [ClientTensor("y", mem_handle=handles[1])]


MISTAKES = [
    ("registered twice", "'x' or 'y'", "twice"),
    ("misaligned", "'x' or 'y'", "misaligned"),
    ("wrong context", "'x'", "wrong context"),
    ("not mapped", "'x'", "unmapped"),
    ("prepared for memhandle, run raw", "'x'", "raw"),
    ("freed too early", "'x', 'y'", "too early"),
    ("never deregistered", "'y'", "leaked"),
    ("never freed", "'x' or 'y'", "never freed"),
]
"""Kind, tensor and comment of each mistake of a wrong program, here and in C."""


def found(log):
    """Return each mistake as (kind, tensor, the comment on its line)."""
    places = []
    for mistake in log.mistakes:
        file, line = re.match(r"(.*):(\d+) in ", mistake.where).groups()
        assert file == __file__
        places.append((mistake.kind, mistake.tensor, linecache.getline(file, int(line)).partition("# ")[2].strip()))
    return places


def test_each_mistake_of_a_wrong_program_is_named_with_its_tensor_and_line() -> None:
    raw = np.zeros(DIMS, np.float32)
    with isthmus.audit() as log:
        with qnn.Backend("htp") as backend:
            context, other = backend.create_context(), backend.create_context()
            graph, theirs = composed(context), composed(other)
            buffer = rpcmem.alloc(rpcmem.HEAP_ID_SYSTEM, rpcmem.DEFAULT_FLAGS, 4 * NBYTES)
            handles = context.mem_register([at(buffer, 0), at(buffer, NBYTES)])  # leaked
            graph.execute(*registered(handles))
            with pytest.raises(QnnError):
                context.mem_register([at(buffer, 0)])  # twice
            with pytest.raises(QnnError):
                context.mem_register([at(buffer, 2 * NBYTES + 2)])  # misaligned
            with pytest.raises(QnnError):
                theirs.execute(*registered(handles))  # wrong context
            with pytest.raises(QnnError):
                graph.execute([ClientTensor("x", 4096, nbytes=NBYTES)], registered(handles)[1])  # unmapped
            graph.execute([ClientTensor("x", raw)], registered(handles)[1])  # raw
            with pytest.raises(QnnError):
                buffer.close()  # too early
            context.mem_deregister(handles[:1])
            kept = rpcmem.alloc(rpcmem.HEAP_ID_SYSTEM, rpcmem.DEFAULT_FLAGS, 5000)  # never freed
            context.mem_deregister(context.mem_register([at(kept, 0)]))
        buffer.close()
    # A descriptor has no name; which tensor its memory is for is known from the first execution on.
    assert sorted(found(log)) == sorted(MISTAKES)
    assert all(mistake.remedy for mistake in log.mistakes)
    assert str(kept.nbytes) in str(log)
    kept.close()


def test_a_correct_program_has_no_mistakes_and_copies_nothing() -> None:
    with isthmus.audit() as log, qnn.Backend("htp") as backend, rpcmem.alloc(25, 1, 2 * NBYTES) as buffer:
        context = backend.create_context()
        graph = composed(context)
        handles = context.mem_register([at(buffer, 0), at(buffer, NBYTES)])
        buffer.view(np.float32, DIMS)[...] = 3
        for _ in range(3):
            graph.execute(*registered(handles))
        assert (buffer.view(np.float32, DIMS, NBYTES) == 6).all()
        context.mem_deregister(handles)
    assert (log.mistakes, log.copied_bytes) == ([], 0)
    executions = [event for event in log.events if event.action is audit_log.Action.EXECUTE]
    assert [event.nbytes for event in executions] == 3 * [2 * NBYTES]
    assert {event.tensor for event in log.events if event.action is audit_log.Action.REGISTER} == {"'x'", "'y'"}
    assert [event.tensor for event in log.allocations if event.owner == "client"] == ["'x', 'y'"]
    assert "mistakes: none" in str(log)


def test_a_refusal_of_a_backend_has_its_tensor() -> None:
    raw = np.zeros(2 * NBYTES, np.uint8)
    with isthmus.audit() as log, qnn.Backend("cpu") as backend:
        graph = composed(backend.create_context(), TensorMemType.RAW)
        x, y = ClientTensor("x", raw[:NBYTES]), ClientTensor("y", raw[1 : NBYTES + 1])
        with pytest.raises(QnnError):
            graph.bind([x], [y])  # refused
    [(_, tensor, line)] = found(log)
    assert (tensor in ("'x'", "'y'"), line) == (True, "refused")


@pytest.mark.parametrize("backend", ["cpu", "htp", "lpai"])
@pytest.mark.parametrize("io", [None, "raw", "memhandle"])
def test_what_begins_ends_as_often(tmp_path, backend, io) -> None:
    if io == "memhandle" and backend == "cpu":
        pytest.skip("cpu has no memory handles")
    with isthmus.audit() as log, isthmus.Session(tiny.gate(tmp_path / "gate.onnx"), backend=backend, io=io) as session:
        session.run()
    counts = Counter(event.action.value for event in log.events)
    pairs = [("allocate", "free"), ("register", "deregister"), ("create", "destroy")]
    assert [counts[first] - counts[second] for first, second in pairs] == [0, 0, 0], counts
    assert (counts["allocate"] > 0, counts["create"]) == (True, 1)
    if io == "memhandle":
        registered = [event.tensor for event in log.events if event.action is audit_log.Action.REGISTER]
        assert registered == ["'x'", "'s'", "'y'"]
    assert not log.mistakes


def test_the_registrations_of_a_graphs_own_memory_end_with_the_backend() -> None:
    with isthmus.audit() as log:
        with qnn.Backend("htp") as backend:
            memory = composed(backend.create_context()).allocate()
        assert [event.action.value for event in log.events].count("deregister") == 2
        memory.close()
    assert not log.mistakes


def test_copies_are_listed_by_tensor_with_their_reason_and_remedy() -> None:
    x, y = np.ones(DIMS, np.float32), np.zeros(DIMS, np.float32)
    with isthmus.audit() as log, qnn.Backend("htp") as backend:
        graph = composed(backend.create_context(), TensorMemType.RAW)
        for _ in range(2):
            graph.execute([ClientTensor("x", x)], [ClientTensor("y", y)])
        assert graph.stats.copied_bytes == log.copied_bytes == 4 * NBYTES
    assert [(each.tensor, each.count, each.nbytes) for each in log.copies] == [("'x'", 2, 128), ("'y'", 2, 128)]
    assert all(each.reason and "mem_register" in each.remedy for each in log.copies)
    [line] = {each.where for each in log.copies}
    assert line.startswith(f"{__file__}:")
    assert str(log).count(f" at {line}\n") == 2
    assert not log.mistakes


def test_copies_of_two_lines_are_listed_for_each(tmp_path) -> None:
    with isthmus.audit() as log, isthmus.Session(tiny.gate(tmp_path / "gate.onnx")) as session:
        feeds = {name: view.copy() for name, view in session.inputs.items()}
        session.run(feeds)
        session.run(feeds)
    tensors = len(session.inputs) + len(session.outputs)
    assert [each.count for each in log.copies] == 2 * tensors * [1]
    assert len({each.where for each in log.copies}) == 2


def test_copies_of_a_command_have_no_line(tmp_path, capsys) -> None:
    model = tiny.gate(tmp_path / "gate.onnx")
    assert cli.main(["run", str(model), "--backend", "htp", "--io", "raw", "--audit"]) == 0
    text = capsys.readouterr().err
    assert "copies of 'x'" in text or "copy of 'x'" in text
    assert ".py:" not in text


def test_the_tables_say_which_fault_occurred_how_often() -> None:
    with isthmus.audit() as log, faults.inject("alloc@1,alloc@3"), qnn.Backend("cpu"):
        for _ in range(3):
            with contextlib.suppress(QnnError):
                rpcmem.alloc(25, 1, NBYTES).close()
    assert "injected fault: alloc@1, 1 time\ninjected fault: alloc@3, 1 time\n" in str(log)


def test_a_session_reports_the_copies_of_its_feeds(tmp_path) -> None:
    with isthmus.audit() as log, isthmus.Session(tiny.gate(tmp_path / "gate.onnx")) as session:
        feeds = {name: view.copy() for name, view in session.inputs.items()}
        session.run(feeds)
        copied = log.copied_bytes
        session.run()
        assert copied == log.copied_bytes == session.stats.copied_bytes
    assert not log.mistakes


def test_a_suspended_audit_records_only_the_end_of_what_began_before() -> None:
    with isthmus.audit() as log:
        before = memory.host(32)
        with audit_log.suspend():
            before.close()
            kept = memory.host(64)
            with isthmus.audit() as inner:
                memory.host(16).close()
        kept.close()
        memory.host(8).close()
    assert [(event.action.value, event.nbytes) for event in log.events] == [
        ("allocate", 32), ("free", 32), ("allocate", 8), ("free", 8),
    ]  # fmt: skip
    assert [(event.action.value, event.nbytes) for event in inner.events] == [("allocate", 16), ("free", 16)]
    assert not log.mistakes


def test_an_audit_sees_nothing_before_and_after_its_block() -> None:
    before = memory.host(64)
    with isthmus.audit() as log:
        before.close()
    memory.host(64).close()
    assert (log.events, log.mistakes, audit_log.active) == ([], [], ())


def test_executions_of_bindings_that_are_older_than_the_audit_are_seen_and_pay_nothing_after_it() -> None:
    plain = BindingBase.execute
    with qnn.Backend("htp") as backend:
        memory = composed(backend.create_context()).allocate()
        with isthmus.audit() as log:
            memory.binding.execute()
            assert BindingBase.execute is not plain
        memory.binding.execute()
    assert [event.action for event in log.events].count(audit_log.Action.EXECUTE) == 1
    assert BindingBase.execute is plain


def test_an_audit_may_be_of_some_kinds_of_memory() -> None:
    with isthmus.audit("rpcmem") as log, memory.host(64), rpcmem.alloc(25, 1, 768):
        pass
    assert [(event.kind, event.nbytes) for event in log.events] == 2 * [("rpcmem", 768)]
    with pytest.raises(QnnError, match="memory of kind 'disk'"), isthmus.audit("disk"):
        pass
    assert audit_log.active == ()


def test_the_live_buffers_of_an_audit_are_known_after_it_and_nothing_else_is_recorded() -> None:
    with isthmus.audit() as log:
        buffer = memory.host(64)
    mistakes = list(log.mistakes)
    assert log.live == log.allocations == log.events
    buffer.close()
    assert (log.live, len(log.events), log.mistakes) == ([], 1, mistakes)


def test_a_buffer_that_is_collected_just_before_the_end_is_no_mistake() -> None:
    with isthmus.audit() as log:
        memory.host(64)
    assert [event.action.value for event in log.events] == ["allocate", "free"]
    assert not log.mistakes


@pytest.mark.parametrize("look", ["name_memory", "tensors_in", "live", "finish"])
def test_what_the_collector_ends_while_an_audit_is_looked_at_does_no_harm(look) -> None:
    """A finalizer may run between any two lines of the thread that has the lock."""

    class Span:
        def overlaps(self, other):
            audit_log.end(second)
            return False

    class Ending(list):
        """A list of events in which reading one element ends the second event."""

        def __getitem__(self, index):
            audit_log.end(second)
            return super().__getitem__(index)

    with isthmus.audit() as log:
        first, second = audit_log.new_key(), audit_log.new_key()
        for key in (first, second):
            audit_log.begin(key, audit_log.Action.ALLOCATE, "memory", 8, spans=[Span()])
        if look in ("live", "finish"):
            log.events = Ending(log.events)
        found = getattr(log, look)
        if look == "name_memory":
            found([Span()], "'x'", True)
        elif look == "tensors_in":
            assert found([Span()]) == ""
        elif look == "finish":
            found()
        audit_log.end(first)


def test_the_audit_of_the_memory_module_is_that_of_the_package() -> None:
    assert memory.audit is isthmus.audit


def test_audits_inside_each_other_see_the_same() -> None:
    with isthmus.audit() as outer:
        with isthmus.audit() as inner:
            memory.host(64).close()
        memory.host(32).close()
    assert [event.nbytes for event in inner.events] == [64, 64]
    assert [event.nbytes for event in outer.events] == [64, 64, 32, 32]


def test_an_audit_that_outlasts_the_one_before_it_still_sees_allocations() -> None:
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(isthmus.audit())
        log = second.enter_context(isthmus.audit())
        first.close()
        memory.host(64).close()
    assert [event.action.value for event in log.events] == ["allocate", "free"]


def test_a_block_does_not_end_the_audit_of_the_process(tmp_path) -> None:
    report = tmp_path / "audit.json"
    program = """
import isthmus
from isthmus import memory

with isthmus.audit():
    from isthmus import qnn
memory.host(64).close()
"""
    environment = {"PATH": "", "ISTHMUS_AUDIT": str(report)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    assert [each["action"] for each in json.loads(report.read_text())["events"]] == ["allocate", "free"]


def test_audits_of_many_threads_each_see_their_allocations_and_all_end() -> None:
    def work():
        for _ in range(200):
            with isthmus.audit() as log:
                memory.host(64).close()
            seen.append({event.action.value for event in log.events} >= {"allocate", "free"})

    seen, plain = [], memory.current("host")
    with switched_often():
        run_in_threads(lambda _: work(), range(4))
    assert seen == 800 * [True]
    assert audit_log.active == ()
    assert memory.current("host") is plain


def test_an_audit_that_is_interrupted_anywhere_has_ended() -> None:
    def action():
        with isthmus.audit():
            pass

    plain = memory.current("host")
    for where in everywhere(action):
        gc.collect()
        assert (audit_log.active, memory.current("host")) == ((), plain), where


def test_allocations_that_are_interrupted_anywhere_are_no_mistakes() -> None:
    with isthmus.audit() as log:
        places = list(everywhere(lambda: memory.host(64).close()))
        gc.collect()
    assert len(places) > 20
    assert not log.mistakes


def test_a_backend_that_is_never_freed_is_a_mistake() -> None:
    with isthmus.audit() as log:
        backend = qnn.Backend("cpu")  # forgotten
    assert found(log) == [("never freed", "", "forgotten")]
    backend.free()


@pytest.mark.parametrize("suffix", [".txt", ".json"])
def test_the_environment_asks_for_the_audit_of_a_process(tmp_path, suffix) -> None:
    program, report = tmp_path / "program.py", tmp_path / f"audit{suffix}"
    program.write_text("from isthmus import qnn\nfrom isthmus.memory import rpcmem\nkept = rpcmem.alloc(25, 1, 768)\n")
    subprocess.run([sys.executable, program], check=True, env={"PATH": "", "ISTHMUS_AUDIT": str(report)})
    text = report.read_text()
    assert f"{program}:3 in <module>" in text
    assert "never freed" in text
    if suffix == ".json":
        assert [each["nbytes"] for each in json.loads(text)["events"]] == [768]


@pytest.mark.parametrize(("value", "times"), [("1", 1), ("/dev/stderr", 1), ("0", 0)])
def test_the_audit_of_a_process_goes_to_standard_error_and_replaces_no_file(tmp_path, value, times) -> None:
    program = "import sys; from isthmus import qnn, memory; print('before', file=sys.stderr); kept = memory.host(64)"
    report = tmp_path / "errors.txt"
    with report.open("w") as stream:
        environment = {**os.environ, "ISTHMUS_AUDIT": value}
        subprocess.run([sys.executable, "-c", program], check=True, stderr=stream, env=environment, cwd=tmp_path)
    text = report.read_text()
    assert text.startswith("before\n")
    assert text.count("never freed: host buffer of 64 bytes") == times
    assert list(tmp_path.iterdir()) == [report]


def test_an_audit_file_that_cannot_be_written_is_one_line(tmp_path) -> None:
    program = "from isthmus import qnn, memory; memory.host(64)"
    environment = {"PATH": "", "ISTHMUS_AUDIT": str(tmp_path / "missing" / "file")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert "cannot be written" in done.stderr


def test_refused_lists_of_binaries_and_data_callbacks_are_named_with_their_line(tmp_path) -> None:
    (tmp_path / "none.bin").write_bytes(b"none")
    with isthmus.audit() as log, qnn.Backend("htp") as backend:
        for create in (
            lambda: backend.create_contexts_from_binaries([b"none"]),
            lambda: backend.create_context_from_provider(tmp_path / "none.bin", qnn.FileProvider(tmp_path)),
        ):
            with pytest.raises(QnnError):
                create()
    assert [mistake.kind for mistake in log.mistakes] == ["CONTEXT_CREATE_FROM_BINARY"] * 2
    for mistake in log.mistakes:
        assert __file__ in mistake.where


def test_contexts_that_are_refused_are_named_with_their_line_and_remedy(tmp_path) -> None:
    """By their group, and for want of room in a process domain; what a group has is the backend's own memory."""
    size = 1 << 16
    content, config = binary_of(size), {"htp": {"chip": chip(tmp_path, domains=[0], capacity=3 * size)}}
    with isthmus.audit() as log, qnn.Backend("htp", config) as backend:

        def load(founder=None, nbytes=size, deferred=False):
            group = {htp.REGISTER_MULTI_CONTEXTS: htp.GroupRegistration(founder, nbytes)}
            return backend.create_context_from_binary(content, group, deferred=deferred)

        with pytest.raises(QnnError):
            load(nbytes=0)
        contexts = [load()]
        contexts.append(load(contexts[0]))
        held = [event.owner for event in log.live if event.nbytes == size]
        # The buffer of the group and two contexts fill the domain.
        with pytest.raises(QnnError):
            load(contexts[0])
        late = load(contexts[0], deferred=True)
        with pytest.raises(QnnError):
            late.finalize()
    assert held == ["backend"]
    assert not [event for event in log.live if event.nbytes == size]
    assert [mistake.kind for mistake in log.mistakes] == [
        "CONTEXT_CREATE_FROM_BINARY", "COMMON_MEM_ALLOC", "COMMON_MEM_ALLOC",
    ]  # fmt: skip
    for mistake in log.mistakes:
        assert __file__ in mistake.where
    for mistake in log.mistakes[1:]:
        assert "in one process domain" in mistake.rule
        assert "isthmus fit" in mistake.remedy
