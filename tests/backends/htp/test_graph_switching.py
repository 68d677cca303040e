"""Graph switching, retention and persistent binaries: what the accelerator has loaded and mapped, by its own count.

The worked cases are those of Qualcomm's documents: graphs A, B, C and D of one size, and room for two.
"""

from __future__ import annotations

import gc
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.interruption import check_every_interrupt
from support.processes import context_copies, forget_peak, mapped_bytes, peak_bytes

from backends.htp.harness import DIMS, alloc, counter, doubler, interrupt_after_unload, ion, kill
from backends.htp.sized import binary_of, chip, sizes_of, table_graph
from isthmus import qnn
from isthmus.domains import applied, choices
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, TensorMemType, TensorType
from isthmus.log import Log, LogLevel
from isthmus.memory import host
from isthmus.qnn import ClientTensor, htp

SIZE = 400_000
"""The bytes of each graph in a process domain."""
NAMES = "ABCD"
CASES = [
    (["A", "B"], "ABAB", "AB AB AB AB"),
    (["A", "B"], "ABCD", "AB AB AC AD"),
    (["A", "B"], "ABCABD", "AB AB AC AC AB AD"),
    ([], "ABBCA", "A B B C A"),
    (["B"], "ABACD", "AB AB AB BC BD"),
    (["C", "A", "B"], "BDB", "BC CD BC"),
]
"""The order of retention, the graphs that are executed, and those that are loaded after each. The first three are
Qualcomm's.
"""


@pytest.fixture(scope="module")
def four() -> bytes:
    return binary_of(*[SIZE] * 4, names=NAMES)


class Switched:
    """A backend on a chip, with what it has logged and what its accelerator has."""

    def __init__(self, backend: qnn.Backend, logged: list[tuple[LogLevel, str]]) -> None:
        self.backend, self.logged = backend, logged

    @property
    def loaded(self) -> str:
        return "".join(sorted(self.backend.get_property(htp.LOADED_GRAPHS)))

    @property
    def constants(self) -> int:
        """The bytes of constants that the accelerator has mapped."""
        return sum(mapped_bytes(self.backend.get_property(htp.ACCELERATOR_PID), "isthmus-context").values())

    @property
    def used(self) -> int:
        return sum(used for _, used, _ in self.backend.get_property(htp.PROCESS_DOMAINS))

    def has(self, names: str) -> bool:
        """Return whether these graphs are loaded, mapped and charged, and no others."""
        nbytes = len(names) * SIZE
        # The largest constants and the largest op data may be of two graphs; a page is mapped whole.
        return self.loaded == names and 0 <= self.used - nbytes < 100 and nbytes <= self.constants <= 1.1 * nbytes

    def switching(self, binary: Any, retained: Sequence[str] = (), **more: Any) -> qnn.Context:
        return self.backend.create_context_from_binary(
            binary, persistent=True, memory_limit=1, retained=retained, **more
        )


@pytest.fixture
def it(tmp_path: Path) -> Iterator[Switched]:
    """A chip with room for two of the graphs, and for some inputs and outputs."""
    logged: list[tuple[LogLevel, str]] = []
    log = Log(lambda level, text: logged.append((level, text)), LogLevel.INFO)
    config = {"htp": {"chip": chip(tmp_path, domains=[0], capacity=2 * SIZE + SIZE // 2)}}
    with qnn.Backend("htp", config, log) as backend:
        yield Switched(backend, logged)


def value(context: qnn.Context, name: str) -> int:
    """Execute a graph of `binary_of`; its value, 1 for the first graph."""
    y = np.zeros((4, 1), np.uint8)
    context.retrieve(name).execute([ClientTensor("x", np.zeros(4, np.int32))], [ClientTensor("y", y)])
    assert len(set(y.reshape(-1).tolist())) == 1
    return int(y[0, 0])


def right(context: qnn.Context, name: str) -> bool:
    return value(context, name) == 1 + NAMES.index(name)


# -- which graphs are loaded -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("retained", "executed", "loaded"), CASES)
def test_each_step_loads_and_unloads_what_the_documents_say(it: Switched, four, retained, executed, loaded) -> None:
    context = it.switching(four, retained)
    assert it.has("".join(sorted(retained[:2])) or "A")
    for name, expected in zip(executed, loaded.split(), strict=True):
        assert right(context, name)
        assert it.has(expected)
    context.free()
    assert (it.loaded, it.used, it.constants) == ("", 0, 0)


def test_without_a_chip_all_graphs_to_retain_stay_loaded(four) -> None:
    with qnn.Backend("htp") as backend:
        context = backend.create_context_from_binary(four, persistent=True, memory_limit=1, retained=["A", "B", "C"])
        for name in "DABCD":
            assert right(context, name)
        assert sorted(backend.get_property(htp.LOADED_GRAPHS)) == [*"ABCD"]


@pytest.mark.parametrize(("enabled", "first"), [(None, "A"), (["C", "B"], "C"), (["B", "D"], "B")])
def test_the_first_enabled_graph_is_loaded_at_creation(it: Switched, four, enabled, first) -> None:
    context = it.switching(four, graphs=enabled)
    assert it.loaded == first
    assert [*context.graphs] == sorted(enabled or NAMES)
    for name in context.graphs:
        assert right(context, name)


def test_a_new_order_of_retention_counts_from_the_next_switch_on(it: Switched, four) -> None:
    context = it.switching(four, ["A", "B"])
    context.retain(["C", "D"])
    assert it.loaded == "AB"
    assert right(context, "A")
    assert it.loaded == "AB"
    assert right(context, "C")
    assert it.loaded == "C"
    assert right(context, "D")
    assert it.loaded == "CD"
    context.retain([])
    assert right(context, "A")
    assert it.loaded == "A"


@pytest.mark.parametrize(
    ("persistent", "limit", "reported"),
    [
        (False, 64, "MEMORY_LIMIT_HINT = 64: without effect, its binary is not persistent"),
        (True, 0, ""),
        (False, 0, ""),
    ],
)
def test_switching_needs_both_a_hint_and_a_persistent_binary(four, persistent, limit, reported) -> None:
    logged: list[str] = []
    with qnn.Backend("htp", None, Log(lambda level, text: logged.append(text), LogLevel.INFO)) as backend:
        context = backend.create_context_from_binary(four, persistent=persistent, memory_limit=limit)
        assert sorted(backend.get_property(htp.LOADED_GRAPHS)) == [*NAMES]
        assert all(right(context, name) for name in NAMES)
        assert [text for text in logged if "MEMORY_LIMIT" in text] == [reported] * bool(reported)


def test_any_hint_means_the_same(it: Switched, four) -> None:
    for limit in (1, (1 << 64) - 1):
        context = it.backend.create_context_from_binary(four, persistent=True, memory_limit=limit)
        assert it.loaded == "A"
        context.free()


def test_an_order_without_a_hint_warns_in_the_vendors_words(it: Switched, four) -> None:
    warning = "Graph retention order set without memory limit hint. Disabling graph switching mode."
    with pytest.raises(QnnError):
        it.backend.create_context_from_binary(four, persistent=True, retained=["A", "nope"])
    context = it.backend.create_context_from_binary(four, graphs=["A", "B"], persistent=True, retained=["A"])
    assert it.loaded == "AB"
    context.retain(["B"])
    assert [text for level, text in it.logged if level is LogLevel.WARN] == [warning] * 2


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (["A", "nope"], "Graph name nope provided does not exist in the context."),
        (["D"], "Graph name D provided does not exist in the context."),
        (["A", "B", "A"], "Duplicate graph name A provided in the retention list."),
    ],
)
def test_a_wrong_order_is_refused_in_the_vendors_words_and_loads_nothing(it: Switched, four, order, said) -> None:
    both = f"{said} Failed to validate graph switching configs. Please provide valid configs."
    with pytest.raises(QnnError) as caught:
        it.switching(four, order, graphs=["A", "B", "C"])
    assert (caught.value.code, str(caught.value).endswith(both)) == (Code.CONTEXT_INVALID_CONFIG, True)
    assert (it.loaded, it.used) == ("", 0)
    context = it.switching(four, ["A", "B"], graphs=["A", "B", "C"])
    with pytest.raises(QnnError) as caught:
        context.retain(order)
    assert (caught.value.code, str(caught.value).endswith(both)) == (Code.CONTEXT_INVALID_CONFIG, True)
    assert context.driver.loading.retained == ("A", "B")


def test_a_composed_context_has_no_order_of_retention(it: Switched) -> None:
    context = it.backend.create_context()
    doubler(context, "A")
    context.retain([])
    with pytest.raises(QnnError, match="Invalid or duplicate graph names provided in graph switching config") as caught:
        context.retain(["A"])
    assert caught.value.code is Code.CONTEXT_INVALID_CONFIG


@pytest.mark.parametrize("wrong", [{"memory_limit": -1}, {"memory_limit": 1 << 64}, {"memory_limit": "1"},
                                   {"retained": "AB"}, {"retained": [1]}, {"retained": 3}])  # fmt: skip
def test_values_that_are_none_are_refused(it: Switched, four, wrong) -> None:
    with pytest.raises(QnnError) as caught:
        it.backend.create_context_from_binary(four, persistent=True, **wrong)
    assert caught.value.code is Code.CONTEXT_INVALID_CONFIG
    assert it.loaded == ""


def test_a_configuration_turns_it_on(four, tmp_path) -> None:
    config = {
        "context_configs": {"is_persistent_binary": True, "memory_limit_hint": 1, "graph_retention_order": ["B", "A"]},
        "htp": {"chip": chip(tmp_path, domains=[0], capacity=2 * SIZE)},
    }
    with qnn.Backend("htp", config) as backend:
        context = backend.create_context_from_binary(four)
        assert sorted(backend.get_property(htp.LOADED_GRAPHS)) == ["A", "B"]
        assert right(context, "C")
        assert sorted(backend.get_property(htp.LOADED_GRAPHS)) == ["B", "C"]
        context.free()
        # An argument takes precedence.
        backend.create_context_from_binary(four, graphs=["C", "D"], retained=[])
        assert backend.get_property(htp.LOADED_GRAPHS) == ("C",)


def test_other_backends_load_all_graphs_and_say_so() -> None:
    logged: list[str] = []
    with qnn.Backend("cpu", None, Log(lambda level, text: logged.append(text), LogLevel.INFO)) as backend:
        context = backend.create_context()
        doubler(context)
        binary = context.get_binary()
        backend.create_context_from_binary(binary, persistent=True, memory_limit=1, retained=["double"])
    assert "MEMORY_LIMIT_HINT = 1: without effect, this backend keeps all graphs loaded" in logged
    assert "PERSISTENT_BINARY = True: without effect, the binary is copied" in logged


def test_deferred_graphs_are_switched_too(it: Switched, four) -> None:
    context = it.switching(four, ["D", "B"], deferred=True)
    assert it.loaded == ""
    context.finalize()
    assert it.loaded == "BD"
    assert all(right(context, name) for name in NAMES)


def test_a_context_that_switches_takes_no_other_graphs(it: Switched, four) -> None:
    context = it.switching(four)
    with pytest.raises(QnnError) as caught:
        table_graph(context, "E", 16)
    assert caught.value.code is Code.COMMON_OPERATION_NOT_PERMITTED
    assert all(right(context, name) for name in NAMES)


# -- room --------------------------------------------------------------------------------------------------------------


def test_the_largest_graph_always_has_room_as_the_model_counts(tmp_path) -> None:
    sizes = (SIZE, 3 * SIZE, 2 * SIZE)
    binary = binary_of(*sizes, names=NAMES)
    [model] = applied("switch", [sizes_of(binary)])
    with qnn.Backend("htp", {"htp": {"chip": chip(tmp_path, domains=[0], capacity=4 * SIZE)}}) as backend:
        context = backend.create_context_from_binary(binary, persistent=True, memory_limit=1)
        used = [backend.get_property(htp.PROCESS_DOMAINS)[0][1]]
        # What another context takes meanwhile cannot keep a graph from being loaded.
        backend.create_context_from_binary(binary_of(SIZE, names="E"))
        for name in "ABC":
            assert right(context, name)
            used.append(backend.get_property(htp.PROCESS_DOMAINS)[0][1] - SIZE)
        # Two of them, and the constants and op data of the largest count apart: a few hundred bytes more at most.
        assert set(used) == {sum(size for _, size in model.pieces)}
        assert 3 * SIZE <= used[0] <= 3 * SIZE + 1000
        with pytest.raises(QnnError) as caught:
            backend.create_context_from_binary(binary, persistent=True, memory_limit=1)
        assert caught.value.code is Code.COMMON_MEM_ALLOC


def test_graphs_to_retain_are_loaded_as_far_as_they_fit(it: Switched, four) -> None:
    context = it.switching(four, ["D", "C", "B", "A"])
    assert it.loaded == "CD"
    other = it.switching(binary_of(SIZE // 2, names="E"))
    # Room for two, less another context's: one graph to retain beside nothing else.
    assert right(context, "A")
    assert it.loaded == "ADE"
    other.free()


def test_the_rule_keeps_the_most_important() -> None:
    assert choices("ABX", "ABC", "D")[0] == ("A", "B", "D")
    assert choices("BX", "ABC", "C") == [("B", "C"), ("C",)]


# -- what a client has stays valid -------------------------------------------------------------------------------------


def composed(actions: Any) -> bytes:
    with qnn.Backend("htp") as backend, backend.create_context() as context:
        actions(context)
        return context.get_binary()


def test_states_outlive_a_switch_and_reset_forgets_them(it: Switched) -> None:
    binary = composed(lambda context: (counter(context, "A"), counter(context, "B"), doubler(context, "C")))
    context = it.switching(binary)
    x, y = np.ones(DIMS, np.float32), np.zeros(DIMS, np.float32)

    def counted(name: str) -> float:
        context.retrieve(name).execute([ClientTensor("x", x)], [ClientTensor("y", y)])
        return float(y[0, 0])

    # Each begins at 1, and adds 1.
    assert [counted(name) for name in "AABACBBA"] == [2, 3, 2, 4, 2, 3, 4, 5]
    context.retrieve("B").reset()
    assert it.loaded == "A"
    assert [counted(name) for name in "BA"] == [2, 6]
    context.retrieve("A").reset()
    assert [counted(name) for name in "ABA"] == [2, 3, 3]


def test_registered_memory_and_bindings_outlive_a_switch(it: Switched) -> None:
    kinds = TensorMemType.MEMHANDLE, TensorMemType.MEMHANDLE
    binary = composed(lambda context: [doubler(context, name, kinds) for name in "AB"])
    context = it.switching(binary)
    buffers = alloc(), alloc()
    x, y = (buffer.view(np.float32, DIMS) for buffer in buffers)
    handles = context.mem_register(ion(buffer) for buffer in buffers)
    memories = [ClientTensor("x", mem_handle=handles[0])], [ClientTensor("y", mem_handle=handles[1])]
    with context.retrieve("A").bind(*memories) as first, context.retrieve("B").bind(*memories) as second:
        for number, binding in enumerate((first, first, second, first, second, second), 1):
            x[...] = number
            binding.execute()
            assert (y == 2 * number).all()
        assert (first.stats.executions, second.stats.executions) == (3, 3)
        assert (first.stats.copied_bytes, second.stats.copied_bytes) == (0, 0)
    context.mem_deregister(handles)


def test_results_have_the_bits_of_a_context_that_loads_all(it: Switched) -> None:
    def dense(context: qnn.Context) -> None:
        random = np.random.default_rng(5)
        for name in "AB":
            graph = context.create_graph(name)
            x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (8, 64))
            w = graph.create_tensor(
                "w",
                TensorType.STATIC,
                DataType.FLOAT_32,
                (64, 64),
                None,
                random.normal(size=(64, 64)).astype(np.float32),
            )
            t = graph.create_tensor("t", TensorType.NATIVE, DataType.FLOAT_32, (8, 64))
            graph.add_node("m", "MatMul", [x, w], [t])
            graph.add_node("s", "Softmax", [t], [graph.create_tensor("y", TensorType.APP_READ, t.dtype, (8, 64))])
            graph.finalize()

    binary = composed(dense)
    x = np.random.default_rng(6).normal(size=(8, 64)).astype(np.float32)

    def results(context: qnn.Context) -> list[bytes]:
        found = []
        for name in "ABAB":
            y = np.zeros_like(x)
            context.retrieve(name).execute([ClientTensor("x", x)], [ClientTensor("y", y)])
            found.append(y.tobytes())
        return found

    assert results(it.switching(binary)) == results(it.backend.create_context_from_binary(binary))


def test_shared_weights_stay_while_a_graph_uses_them(tmp_path) -> None:
    def sharing(context: qnn.Context) -> None:
        context.set_config(htp.WEIGHT_SHARING_ENABLED, True)
        random = np.random.default_rng(5)
        weights = random.normal(size=(512, 512)).astype(np.float32)
        for name, rows in (("A", 8), ("B", 1)):
            graph = context.create_graph(name)
            x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (rows, 512))
            w = graph.create_tensor("w", TensorType.STATIC, DataType.FLOAT_32, weights.shape, None, weights)
            y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (rows, 512))
            graph.add_node("m", "MatMul", [x, w], [y])
            graph.finalize()

    binary = composed(sharing)
    with qnn.Backend("htp") as backend:
        context = backend.create_context_from_binary(binary, persistent=True, memory_limit=1)

        def weights() -> int:
            return sum(mapped_bytes(backend.get_property(htp.ACCELERATOR_PID), "isthmus-weights").values())

        assert backend.get_property(htp.LOADED_GRAPHS) == ("A",)
        one = weights()
        assert one >= 512 * 512 * 4
        for name, rows in (("B", 1), ("A", 8), ("B", 1)):
            y = np.zeros((rows, 512), np.float32)
            context.retrieve(name).execute([ClientTensor("x", np.ones_like(y))], [ClientTensor("y", y)])
            assert y.any()
            assert (backend.get_property(htp.LOADED_GRAPHS), weights()) == ((name,), one)


def test_graphs_of_a_context_that_switches_never_execute_at_once(it: Switched, four) -> None:
    context = it.switching(four)
    wrong: list[str] = []

    def work(name: str) -> None:
        for _ in range(20):
            if not right(context, name):
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in "ABAC"]
    for thread in threads:
        thread.start()
    seen = set()
    while any(thread.is_alive() for thread in threads):
        seen.add(it.loaded)
    for thread in threads:
        thread.join()
    assert not wrong
    assert seen <= {"A", "B", "C", ""}


def test_a_switch_within_a_time_limit_and_a_timed_one_are_like_others(it: Switched, four) -> None:
    context = it.switching(four)
    profile = qnn.Profile(it.backend, qnn.ProfileLevel.DETAILED)
    with qnn.Signal(it.backend, timeout_us=600_000_000) as signal:
        for name, how in (("B", {"signal": signal}), ("C", {"profile": profile})):
            y = np.zeros((4, 1), np.uint8)
            graph = context.retrieve(name)
            graph.execute([ClientTensor("x", np.zeros(4, np.int32))], [ClientTensor("y", y)], **how)
            assert (it.loaded, int(y[0, 0])) == (name, 1 + NAMES.index(name))


def test_after_its_accelerator_has_died_a_switch_says_so(it: Switched, four) -> None:
    context = it.switching(four)
    kill(it.backend)
    with pytest.raises(QnnError) as caught:
        value(context, "B")
    assert caught.value.code is Code.COMMON_SYSTEM_COMMUNICATION
    context.free()
    assert right(it.switching(four), "B")


def test_a_state_that_cannot_be_restored_is_kept_for_the_next_attempt(it: Switched, monkeypatch) -> None:
    context = it.switching(composed(lambda made: (counter(made, "A"), doubler(made, "B"))))
    x, y = np.ones(DIMS, np.float32), np.zeros(DIMS, np.float32)

    def counted(name: str) -> float:
        context.retrieve(name).execute([ClientTensor("x", x)], [ClientTensor("y", y)])
        return float(y[0, 0])

    def refuse(*_: Any, **__: Any) -> None:
        raise QnnError(Code.COMMON_MEM_ALLOC, "state", "there is no memory for it")

    assert [counted(name) for name in "AAB"] == [2, 3, 2]
    monkeypatch.setattr(context.driver.queue, "restore_state", refuse)
    with pytest.raises(QnnError, match="no memory for it"):
        counted("A")
    monkeypatch.undo()
    assert it.loaded == ""
    assert [counted(name) for name in "ABA"] == [4, 2, 5]


def test_a_binary_of_which_a_graph_cannot_be_loaded_leaves_none(it: Switched, four, monkeypatch) -> None:
    context = it.switching(four, ["A", "B"], deferred=True)
    load = context.driver.load

    def refuse_second(programs: Any) -> dict[str, int]:
        if programs[0].name == "B":
            raise QnnError(Code.COMMON_MEM_ALLOC, "accelerator", "it is out of memory")
        return load(programs)

    monkeypatch.setattr(context.driver, "load", refuse_second)
    with pytest.raises(QnnError, match="out of memory"):
        context.finalize()
    monkeypatch.undo()
    assert it.has("")
    context.finalize()
    assert it.has("AB")
    assert right(context, "C")


def test_an_interrupted_switch_loses_nothing(four) -> None:
    with qnn.Backend("htp") as backend:
        context = backend.create_context_from_binary(four, persistent=True, memory_limit=1)
        x, y = np.zeros(4, np.int32), np.zeros((4, 1), np.uint8)
        bound = [context.retrieve(name).bind([ClientTensor("x", x)], [ClientTensor("y", y)]) for name in "AB"]

        def action() -> None:
            for binding in bound:
                binding.execute()

        assert check_every_interrupt(action, most=80) > 10
        for binding in bound:
            binding.close()
        assert all(right(context, name) for name in NAMES)
        assert len(backend.get_property(htp.LOADED_GRAPHS)) == 1


def test_an_unload_whose_answer_is_interrupted_loses_nothing(four, monkeypatch) -> None:
    """The accelerator has unloaded the graph, and the client's thread is interrupted before it knows."""
    with qnn.Backend("htp") as backend:
        context = backend.create_context_from_binary(four, persistent=True, memory_limit=1)
        interrupt_after_unload(context.driver.queue.accelerator, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            value(context, "B")
        assert backend.get_property(htp.LOADED_GRAPHS) == ()
        for name in "BACA":
            assert right(context, name)
            assert backend.get_property(htp.LOADED_GRAPHS) == (name,)


def test_an_execution_waits_while_a_graph_is_released(four, monkeypatch) -> None:
    """A switch sees the graph loaded or gone, and never in between."""
    with qnn.Backend("htp") as backend:
        context = backend.create_context_from_binary(four, persistent=True, memory_limit=1)
        queue, unload, began = context.driver.queue, context.driver.queue.unload, threading.Event()
        results: list[bool] = []
        other = threading.Thread(target=lambda: results.append(right(context, "B")))
        switch_to = context.driver.switch_to

        def switching(graph: Any) -> None:
            began.set()
            switch_to(graph)

        def released(number: int) -> None:
            monkeypatch.setattr(queue, "unload", unload)
            other.start()
            assert not began.wait(0.3)
            unload(number)

        monkeypatch.setattr(context.driver, "switch_to", switching)
        monkeypatch.setattr(queue, "unload", released)
        context.release_graph(context.retrieve("A"))
        other.join()
        assert (results, backend.get_property(htp.LOADED_GRAPHS)) == ([True], ("B",))


def test_a_released_graph_of_a_context_that_switches_uses_no_memory(tmp_path) -> None:
    binary = binary_of(SIZE, 2 * SIZE, names="AB")
    with qnn.Backend("htp", {"htp": {"chip": chip(tmp_path, domains=[0], capacity=3 * SIZE)}}) as backend:
        it = Switched(backend, [])
        context = it.switching(binary)
        assert it.used >= 2 * SIZE
        context.release_graph(context.retrieve("B"))
        assert it.used < 1.1 * SIZE
        assert right(context, "A")
        context.release_graph(context.retrieve("A"))
        assert (it.loaded, it.used < 1000) == ("", True)


def test_a_graph_is_released_though_the_persistent_binary_has_changed(it: Switched) -> None:
    binary = binary_of(SIZE, SIZE, names="AB")
    held = host(len(binary), 64).array
    held[:] = np.frombuffer(binary, np.uint8)
    context = it.backend.create_context_from_binary(held.data, persistent=True)
    assert it.has("AB")
    held[binary.index(bytes([1] * 1000))] = 77
    context.release_graph(context.retrieve("B"))
    # Both came to the accelerator in one file, of which A is a part.
    assert (it.loaded, 0 <= it.used - SIZE < 100) == ("A", True)
    assert [*context.graphs] == ["A"]


def test_a_release_that_failed_can_be_repeated(it: Switched, four, monkeypatch) -> None:
    context = it.switching(four)
    graph = context.retrieve("A")
    interrupt_after_unload(context.driver.queue.accelerator, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        context.release_graph(graph)
    context.release_graph(graph)
    assert it.loaded == ""
    assert all(right(context, name) for name in "BCD")


# -- persistent binaries -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 1])
def test_a_persistent_binary_is_not_copied(four, tmp_path, limit) -> None:
    file = tmp_path / "four.bin"
    file.write_bytes(four)
    held = host(len(four), 64).array
    held[:] = np.frombuffer(four, np.uint8)
    before = context_copies()
    with qnn.Backend("htp") as backend:
        for source in (four, held.data, file, str(file)):
            context = backend.create_context_from_binary(source, persistent=True, memory_limit=limit)
            assert context_copies() <= before
            assert (str(file) in Path("/proc/self/maps").read_text()) is (source in (file, str(file)))
            assert all(right(context, name) for name in NAMES)
            context.free()
            gc.collect()
            assert str(file) not in Path("/proc/self/maps").read_text()
        assert len(context_copies() - before) == 0
        context = backend.create_context_from_binary(four)
        assert len(context_copies() - before) == 1


def test_memory_that_is_not_aligned_is_copied_and_that_is_logged(it: Switched, four) -> None:
    held = host(len(four) + 64, 64).array[1 : 1 + len(four)]
    held[:] = np.frombuffer(four, np.uint8)
    context = it.switching(held.data)
    held[:] = 0
    assert all(right(context, name) for name in NAMES)
    line = "the persistent context binary is copied: its memory does not start at a multiple of 8"
    assert (LogLevel.INFO, line) in it.logged


def test_a_mapping_is_in_use_until_the_context_is_freed(it: Switched, four, tmp_path) -> None:
    file = tmp_path / "four.bin"
    file.write_bytes(four)
    with file.open("rb") as stream:
        pages = mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ)
    context = it.switching(pages)
    assert right(context, "C")
    with pytest.raises(BufferError):
        pages.close()
    context.free()
    gc.collect()
    pages.close()


def test_a_binary_that_has_changed_is_refused_and_nothing_is_lost(it: Switched, four) -> None:
    held = host(len(four), 64).array
    held[:] = np.frombuffer(four, np.uint8)
    context = it.switching(held.data, ["A", "B"])
    [place] = [four.rindex(bytes([3] * 1000))]
    held[place] = 77
    for _ in range(2):
        with pytest.raises(QnnError, match="its memory has changed since the context was created") as caught:
            value(context, "C")
        assert (caught.value.code, it.loaded) == (Code.CONTEXT_CREATE_FROM_BINARY, "AB")
    # The bytes of other graphs are as they were.
    assert all(right(context, name) for name in "ABD")
    with pytest.raises(QnnError, match="its memory has changed"):
        context.get_binary()
    held[place] = 3
    assert right(context, "C")
    assert context.get_binary() == four


@pytest.mark.parametrize("left", [0, 4096])
def test_a_file_that_was_cut_is_refused_and_nothing_is_lost(it: Switched, four, tmp_path, left) -> None:
    file = tmp_path / "four.bin"
    file.write_bytes(four)
    context = it.switching(file, ["A", "B"])
    os.truncate(file, left)
    for _ in range(2):
        with pytest.raises(QnnError, match="its memory is not there any more") as caught:
            value(context, "D")
        assert (caught.value.code, it.loaded) == (Code.CONTEXT_CREATE_FROM_BINARY, "AB")
    assert all(right(context, name) for name in "AB")
    file.write_bytes(four)
    assert right(context, "D")


@pytest.mark.parametrize("damage", ["empty", "short", "changed", "other"])
def test_damaged_binaries_are_refused_as_others_are(it: Switched, four, tmp_path, damage) -> None:
    changed = bytearray(four)
    changed[len(four) // 2] ^= 1
    content = {"empty": b"", "short": four[:-5], "changed": bytes(changed), "other": b"no binary"}[damage]
    file = tmp_path / "damaged.bin"
    file.write_bytes(content)
    for source in (content, file):
        with pytest.raises(QnnError) as kept:
            it.switching(source)
        with pytest.raises(QnnError) as plain:
            it.backend.create_context_from_binary(source)
        assert kept.value.code is plain.value.code
    with pytest.raises(QnnError) as caught:
        it.switching(tmp_path / "none.bin")
    assert caught.value.code is not Code.COMMON_GENERAL
    assert (it.loaded, it.used) == ("", 0)


@pytest.mark.parametrize("left", [0, 4096, 50 * 4096])
def test_a_mapping_beyond_the_end_of_its_file_is_refused(it: Switched, four, left) -> None:
    fd = os.memfd_create("cut")
    try:
        os.ftruncate(fd, len(four))
        pages = mmap.mmap(fd, len(four))
        pages[:] = four
        os.ftruncate(fd, left)
    finally:
        os.close(fd)
    for persistent in (True, False):
        with pytest.raises(QnnError) as caught:
            it.backend.create_context_from_binary(pages, persistent=persistent)
        assert caught.value.code is Code.COMMON_MEM_ALLOC
    assert (it.loaded, it.used) == ("", 0)


def test_a_persistent_binary_saves_the_memory_of_a_copy(tmp_path) -> None:
    size = 48 << 20
    binary = binary_of(size, names="A")
    peaks = []
    with qnn.Backend("htp") as backend:
        for persistent in (True, False, True):
            gc.collect()
            forget_peak()
            before = peak_bytes()
            context = backend.create_context_from_binary(binary, persistent=persistent)
            peaks.append(peak_bytes() - before)
            assert right(context, "A")
            context.free()
    assert max(peaks[0], peaks[2]) < peaks[1] - size // 2
