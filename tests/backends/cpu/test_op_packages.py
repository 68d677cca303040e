"""Op packages of clients run as steps of graphs on the CPU, in a process of their own, whatever they do there."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from support.op_packages import AFFINE, PACKAGE, SHIFT, X, build, expected, in_the_middle
from support.processes import descriptors, opened_since
from support.suites import long
from support.waiting import eventually, interrupted_when, main_in

from isthmus import qnn
from isthmus.backends.foreign.process import LibraryProcess
from isthmus.errors import Code, QnnError
from isthmus.graph import Tensor
from isthmus.qnn.profile import OPERATION
from isthmus.system.channel import Channel

FLOAT = qnn.DataType.FLOAT_32
FAILED = Code.BACKEND_OP_PACKAGE_REGISTRATION_FAILED


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="module")
def shared(library):
    """A backend with the package, for all tests."""
    with qnn.Backend("cpu", log=lambda level, text: None) as made:
        made.register_op_package(library, "plain")
        yield made


@pytest.fixture
def backend(shared):
    yield shared
    for context in list(shared._owned):
        context.free()


def process_of(backend) -> LibraryProcess:
    return backend.driver._packages[PACKAGE]._process


def run(graph, x=X) -> np.ndarray:
    y = np.full_like(x, -1)
    graph.execute([qnn.ClientTensor("x", x)], [qnn.ClientTensor("y", y)])
    return y


@pytest.mark.parametrize("provider", ["plain", "second", "without_log"])
def test_a_packages_node_computes_between_two_of_ours(library, provider) -> None:
    messages = []
    with qnn.Backend("cpu", log=lambda level, text: messages.append((level, text))) as backend:
        backend.register_op_package(library, provider, "CPU")
        assert f"{PACKAGE}::Affine" in backend.get_supported_operations()
        graph = in_the_middle(backend.create_context())
        graph.finalize()
        for scale in (1, -2, 0.5):
            np.testing.assert_array_equal(run(graph, X * np.float32(scale)), expected(X * np.float32(scale)))
        # What a package reads and writes between two nodes of ours is shared, and nothing is copied.
        assert (graph.stats.copied_bytes, graph.stats.in_place_bytes) == (0, {"raw": 3 * 2 * X.nbytes})
        said = [
            (qnn.LogLevel.ERROR, "it begins with -1, 2.50 and 1099511627776"),
            (qnn.LogLevel.WARN, "validating middle of 1 inputs"),
        ]
        assert eventually(lambda: len(messages) >= 2 - (provider == "without_log"))
        assert [(level, text.rpartition(": ")[2]) for level, text in messages] == said[: len(messages)]
    # The package was asked to free what it had made, and to end.
    assert eventually(lambda: messages[-1][1].endswith(": it ends with 0"))


def test_a_package_uses_the_backends_own_memory_in_place_and_copies_a_clients(backend) -> None:
    graph = backend.create_context().create_graph("io")
    x, z = (graph.create_tensor(name, qnn.TensorType.APP_WRITE, FLOAT, X.shape) for name in "xz")
    y, w = (graph.create_tensor(name, qnn.TensorType.APP_READ, FLOAT, X.shape) for name in "yw")
    graph.add_node("pair", f"{PACKAGE}::Pair", [x, z], [y, w])
    graph.finalize()
    graph.inputs["x"][...], graph.inputs["z"][...] = X, 2 * X
    graph.execute()
    np.testing.assert_array_equal((graph.outputs["y"], graph.outputs["w"]), (3 * X, -X))
    assert graph.stats.copied_bytes == 0
    arrays = {"x": X, "z": X + 1, "y": np.zeros_like(X), "w": np.zeros_like(X)}
    tensors = {name: qnn.ClientTensor(name, array) for name, array in arrays.items()}
    graph.execute([tensors["x"], tensors["z"]], [tensors["y"], tensors["w"]])
    np.testing.assert_array_equal((arrays["y"], arrays["w"]), (X + (X + 1), X - (X + 1)))
    assert (graph.stats.copied_in_bytes, graph.stats.copied_out_bytes) == (2 * X.nbytes, 2 * X.nbytes)


def test_an_output_may_be_in_the_memory_of_an_input_around_a_package(backend) -> None:
    graph = in_the_middle(backend.create_context())
    graph.finalize()
    memory = X.copy()
    for _ in range(2):
        wanted = expected(memory)
        graph.execute([qnn.ClientTensor("x", memory)], [qnn.ClientTensor("y", memory)])
        np.testing.assert_array_equal(memory, wanted)
    assert graph.stats.copied_bytes == 2 * X.nbytes, "parts of a graph are not judged together"
    graph = backend.create_context().create_graph("both")
    x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, FLOAT, X.shape)
    y, v, w = (graph.create_tensor(name, qnn.TensorType.APP_READ, FLOAT, X.shape) for name in "yvw")
    graph.add_node("negative", "ElementWiseNeg", [x], [y])
    graph.add_node("pair", f"{PACKAGE}::Pair", [x, x], [v, w])
    graph.finalize()
    memory, sums, apart = X.copy(), np.zeros_like(X), np.zeros_like(X)
    others = [qnn.ClientTensor("v", sums), qnn.ClientTensor("w", apart)]
    graph.execute([qnn.ClientTensor("x", memory)], [qnn.ClientTensor("y", memory), *others])
    np.testing.assert_array_equal((memory, sums, apart), (-X, 2 * X, 0 * X))
    with pytest.raises(QnnError, match="the backend's own memory of tensor 'x'") as refused:
        graph.execute([], [qnn.ClientTensor("y", graph.inputs["x"]), *others])
    assert refused.value.code is Code.GRAPH_INVALID_TENSOR


@pytest.mark.parametrize("place", ["apart", "sum", "difference", "former", "negative"])
def test_a_state_takes_an_input_and_not_the_output_in_its_memory(backend, place) -> None:
    """Whichever output shares the input's memory: one of the package, or one of a part of the engine."""
    graph = backend.create_context().create_graph("delay")
    x, z = (graph.create_tensor(name, qnn.TensorType.APP_WRITE, FLOAT, X.shape) for name in "xz")
    state = graph.create_tensor("s", qnn.TensorType.APP_READWRITE, FLOAT, X.shape)
    names = ("sum", "difference", "former", "negative")
    outputs = [graph.create_tensor(name, qnn.TensorType.APP_READ, FLOAT, X.shape) for name in names]
    graph.add_node("pair", f"{PACKAGE}::Pair", [x, x], outputs[:2])
    graph.add_node("delay", "Relu", [state], [outputs[2]])
    graph.add_node("negative", "ElementWiseNeg", [z], [outputs[3]])
    graph.update_state(state, z)
    graph.finalize()
    memory = np.zeros_like(X)
    arrays = {name: memory if name == place else np.zeros_like(X) for name in names}
    former = 0
    for value in (7, 9, 11):
        memory[...] = value
        inputs = [qnn.ClientTensor("x", X), qnn.ClientTensor("z", memory)]
        graph.execute(inputs, [qnn.ClientTensor(name, array) for name, array in arrays.items()])
        assert {name: array.ravel().tolist() for name, array in arrays.items()} == {
            "sum": (2 * X).ravel().tolist(), "difference": [0] * 8, "former": [former] * 8, "negative": [-value] * 8,
        }  # fmt: skip
        former = value


def test_states_pass_from_one_execution_to_the_next_through_a_package(backend) -> None:
    graph = backend.create_context().create_graph("count")
    x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, FLOAT, X.shape)
    state = graph.create_tensor("s", qnn.TensorType.APP_READWRITE, FLOAT, X.shape, data=np.full(X.shape, 5, np.float32))
    total, gone = (graph.create_tensor(name, qnn.TensorType.NATIVE, FLOAT, X.shape) for name in ("total", "gone"))
    y = graph.create_tensor("y", qnn.TensorType.APP_READ, FLOAT, X.shape)
    graph.add_node("pair", f"{PACKAGE}::Pair", [state, x], [total, gone])
    graph.add_node("relu", "Relu", [total], [y])
    graph.update_state(state, total)
    graph.finalize()
    ones = np.ones_like(X)
    assert [run(graph, ones)[0, 0] for _ in range(3)] == [6, 7, 8]
    graph.reset()
    assert run(graph, ones)[0, 0] == 6


def test_parts_of_a_graph_alternate_and_an_implementation_keeps_its_memory(backend) -> None:
    graph = backend.create_context().create_graph("chain")
    x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, FLOAT, X.shape)
    value, wanted = x, X
    for number in range(4):
        a, b = (graph.create_tensor(f"{name}{number}", qnn.TensorType.NATIVE, FLOAT, X.shape) for name in "ab")
        graph.add_node(f"affine{number}", f"{PACKAGE}::Affine", [value], [a], AFFINE)
        graph.add_node(f"tanh{number}", "Tanh", [a], [b])
        value, wanted = b, np.tanh(3 * wanted + SHIFT)
    count = graph.create_tensor("count", qnn.TensorType.NATIVE, FLOAT, X.shape)
    graph.add_node("count", f"{PACKAGE}::Count", [value], [count])
    y = graph.create_tensor("y", qnn.TensorType.APP_READ, FLOAT, X.shape)
    graph.add_node("sum", "ElementWiseAdd", [value, count], [y])
    graph.finalize()
    for times in (1, 2, 3):
        np.testing.assert_allclose(run(graph), wanted + times, atol=1e-5)
    with qnn.Profile(backend, qnn.ProfileLevel.DETAILED) as profile:
        graph.execute(profile=profile)
        named = [event.name for event in profile.get_events() if PACKAGE in event.name]
        assert named == [f"{OPERATION}{PACKAGE}::Affine affine{n}" for n in range(4)] + [
            f"{OPERATION}{PACKAGE}::Count count"
        ]
    graph.reset()


@pytest.mark.parametrize(
    ("provider", "code", "words"),
    [
        long("absent", Code.BACKEND_OP_PACKAGE_IF_PROVIDER_NOT_FOUND, "it does not export 'absent'"),
        long("refusing", FAILED, "refusing answers 1100"),
        ("null_function", FAILED, "its function createOpImpl is null"),
        ("wrong_version", Code.BACKEND_OP_PACKAGE_UNSUPPORTED_VERSION, "version 3.4.0; supported are 1.4 and 2.0"),
        ("crash_in_init", FAILED, "ended the process (SIGSEGV) in init"),
        long("hang_in_init", FAILED, "did not return from init in time"),
        long("fail_in_init", FAILED, "init answers 3100"),
        long("null_info", FAILED, "getInfo answers a null pointer"),
        long("huge_count", FAILED, "it says that it has 4000000000 operations"),
        ("wrong_count", FAILED, ""),
        ("same_names", FAILED, "two operations of the name 'Affine'"),
        long("null_name", FAILED, "its operation 1 has no name"),
        long("nameless_package", FAILED, "it has no name"),
        long("no_operations", FAILED, "it says that it has 0 operations"),
        ("name_of_qnn", Code.BACKEND_OP_PACKAGE_DUPLICATE, "'qti.aisw' is registered already"),
        long("wild_name", FAILED, "in getInfo: "),
    ],
)
def test_a_package_that_lies_crashes_or_hangs_is_refused_and_another_registered(
    library, provider, code, words, monkeypatch
) -> None:
    if provider == "hang_in_init":
        monkeypatch.setenv("ISTHMUS_MODEL_SECONDS", "3")
    with qnn.Backend("cpu", log=lambda level, text: None) as backend:
        before = descriptors(), backend.get_supported_operations()
        with pytest.raises(QnnError) as caught:
            backend.register_op_package(library, provider)
        assert caught.value.code is code, caught.value
        assert words in caught.value.rule
        assert str(library) in caught.value.what
        assert (opened_since(before[0]), backend.get_supported_operations()) == ([], before[1])


def test_what_is_no_library_a_second_registration_and_another_target_are_refused(backend, library, tmp_path) -> None:
    text = tmp_path / "text.so"
    text.write_text("no library")
    for path, provider, target, code in (
        (tmp_path / "missing.so", "plain", None, Code.BACKEND_OP_PACKAGE_NOT_FOUND),
        (text, "plain", None, Code.BACKEND_OP_PACKAGE_NOT_FOUND),
        (library, "second", None, Code.BACKEND_OP_PACKAGE_DUPLICATE),
        (library, "plain", "HTP", Code.BACKEND_INVALID_ARGUMENT),
        (library, "", None, Code.BACKEND_INVALID_ARGUMENT),
        ("", "plain", None, Code.BACKEND_INVALID_ARGUMENT),
    ):
        with pytest.raises(QnnError) as caught:
            backend.register_op_package(path, provider, target)
        assert caught.value.code is code, (path, caught.value)
    np.testing.assert_array_equal(run(finalized(in_the_middle(backend.create_context()))), expected())


def finalized(graph):
    graph.finalize()
    return graph


@pytest.mark.parametrize(("name", "words"), [("htp", "Hexagon"), ("lpai", "accelerator")])
def test_a_package_for_another_processor_is_refused_with_the_reason(library, name, words) -> None:
    with qnn.Backend(name) as backend, pytest.raises(QnnError, match=words) as caught:
        backend.register_op_package(library, "plain", "HTP")
    assert caught.value.code is Code.COMMON_NOT_SUPPORTED


def test_the_package_itself_validates_its_nodes(backend) -> None:
    context = backend.create_context()
    x, y = (Tensor(n, k, FLOAT, (8,)) for n, k in (("x", qnn.TensorType.APP_WRITE), ("y", qnn.TensorType.APP_READ)))
    backend.validate_op_config("node", f"{PACKAGE}::Affine", [x], [y], AFFINE)
    for params in ({**AFFINE, "mode": "odd"}, {**AFFINE, "scale": np.float64(3)}, {}):
        with pytest.raises(QnnError, match="validateOpConfig of Affine answers 3110") as caught:
            backend.validate_op_config("node", f"{PACKAGE}::Affine", [x], [y], params)
        assert caught.value.code is Code.OP_PACKAGE_VALIDATION_FAILURE
    with pytest.raises(QnnError, match="validateOpConfig of Affine answers 3110") as caught:
        in_the_middle(context, params={})
    assert caught.value.code is Code.GRAPH_INVALID_OP_CONFIG
    graph = context.graphs["g"]
    assert [node.name for node in graph.driver.graph.nodes] == ["twice"]
    with pytest.raises(QnnError, match="there is no such operation") as caught:
        graph.add_node("n", f"{PACKAGE}::Absent", [], [])
    for value in (object(), np.float16(1), 1 << 40):
        with pytest.raises(QnnError, match="is no text, number, array or constant"):
            graph.add_node("n", f"{PACKAGE}::Count", [], [graph.driver.graph.tensors["b"]], {"p": value})


@pytest.mark.parametrize(
    ("op", "code", "words"),
    [
        ("Fail", Code.COMMON_GENERAL, "the implementation of node 'middle' (Fail) answers 1100"),
        ("Crash", Code.COMMON_SYSTEM_COMMUNICATION, "SIGSEGV) in the implementation of node 'middle' (Crash)"),
        long("Abort", Code.COMMON_SYSTEM_COMMUNICATION, "SIGABRT) in the implementation of node 'middle' (Abort)"),
        long("Exit", Code.COMMON_SYSTEM_COMMUNICATION, "status 3) in the implementation of node 'middle' (Exit)"),
        ("Hang", Code.GRAPH_TIMED_OUT, "did not return from the implementation of node 'middle' (Hang) in time"),
    ],
)
def test_an_execution_that_fails_in_a_package_loses_nothing(backend, op, code, words, monkeypatch) -> None:
    context = backend.create_context()
    good, bad = finalized(in_the_middle(context)), finalized(in_the_middle(context, op, name="bad"))
    monkeypatch.setattr(process_of(backend), "_seconds", 1.0)
    y = np.full_like(X, 7)
    with pytest.raises(QnnError) as caught:
        bad.execute([qnn.ClientTensor("x", X)], [qnn.ClientTensor("y", y)])
    assert caught.value.code is code
    assert words in caught.value.rule
    # If its process has ended, another one serves both graphs. Results that were not computed were not written.
    np.testing.assert_array_equal(run(good), expected())
    assert (y == 7).all()


def test_a_killed_process_is_replaced_at_the_next_use(backend) -> None:
    graph = finalized(in_the_middle(backend.create_context()))
    first = process_of(backend).pid
    os.kill(first, signal.SIGKILL)
    with pytest.raises(QnnError, match="ended the process") as caught:
        run(graph)
    assert caught.value.code is Code.COMMON_SYSTEM_COMMUNICATION
    np.testing.assert_array_equal(run(graph), expected())
    assert process_of(backend).pid != first


def test_a_time_limit_and_an_abort_end_an_execution_inside_a_package(backend) -> None:
    graph = finalized(in_the_middle(backend.create_context(), "Hang"))
    with qnn.Signal(backend, timeout_us=200_000) as limit, pytest.raises(QnnError) as caught:
        graph.execute(signal=limit)
    assert caught.value.code is Code.GRAPH_TIMED_OUT
    with qnn.Signal(backend) as abort:
        execution = graph.execute_async(signal=abort)
        assert eventually(lambda: process_of(backend).alive and "middle" in process_of(backend).stage)
        abort.trigger()
        with pytest.raises(QnnError) as caught:
            execution.result()
    assert caught.value.code is Code.GRAPH_ABORTED


def test_an_interrupt_ends_an_execution_inside_a_package(backend) -> None:
    context = backend.create_context()
    hanging, good = finalized(in_the_middle(context, "Hang")), finalized(in_the_middle(context, name="good"))
    with pytest.raises(KeyboardInterrupt), interrupted_when(lambda: main_in(Channel._wait)):
        run(hanging)
    np.testing.assert_array_equal(run(good), expected())


@pytest.mark.parametrize(("op", "words"), [("NullImpl", "answers a null pointer"), ("NoFunction", "has no function")])
def test_a_null_or_incomplete_implementation_is_refused_when_the_graph_is_finalized(backend, op, words) -> None:
    context = backend.create_context()
    with pytest.raises(QnnError, match=words) as caught:
        in_the_middle(context, op).finalize()
    assert caught.value.code is Code.GRAPH_FINALIZE_FAILED
    np.testing.assert_array_equal(run(finalized(in_the_middle(context, name="good"))), expected())


def test_a_context_binary_with_a_packages_nodes_is_refused_with_the_reason(backend) -> None:
    context = backend.create_context()
    in_the_middle(context).finalize()
    with pytest.raises(QnnError, match=f"nodes of op packages.*{PACKAGE}::Affine") as caught:
        context.get_binary()
    assert caught.value.code is Code.COMMON_NOT_SUPPORTED


def test_no_code_of_a_package_is_loaded_into_this_process(backend, library) -> None:
    np.testing.assert_array_equal(run(finalized(in_the_middle(backend.create_context()))), expected())
    mapped = {pid: str(library) in Path(f"/proc/{pid}/maps").read_text() for pid in ("self", process_of(backend).pid)}
    assert list(mapped.values()) == [False, True]


def test_the_process_ends_with_its_backend_and_nothing_is_left(library) -> None:
    before = descriptors()
    with qnn.Backend("cpu", log=lambda level, text: None) as backend:
        backend.register_op_package(library, "plain")
        graph = finalized(in_the_middle(backend.create_context()))
        run(graph)
        pid = process_of(backend).pid
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())
    del graph
    assert opened_since(before) == []


def test_graphs_that_are_freed_leave_nothing_in_the_packages_process(backend) -> None:
    def mappings() -> int:
        return len(Path(f"/proc/{process_of(backend).pid}/maps").read_text().splitlines())

    counts = []
    for _ in range(6):
        context = backend.create_context()
        run(finalized(in_the_middle(context)))
        context.free()
        counts.append(mappings())
    assert counts[-1] == counts[2]


def test_a_package_reaches_no_network_program_process_or_file_to_write(library) -> None:
    messages = []
    with qnn.Backend("cpu", log=lambda level, text: messages.append(text)) as backend:
        backend.register_op_package(library, "plain")
        graph = in_the_middle(backend.create_context(), "Reach")
        graph.finalize()
        # The package ends its process only if all of its attempts were refused; the error names the last such call.
        with pytest.raises(QnnError, match=r"SIGABRT\).*'middle' \(Reach\), .*after it called kill, which is"):
            run(graph)
