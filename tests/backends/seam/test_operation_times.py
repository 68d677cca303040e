"""A detailed profile has the time of each operation, and the execution computes what it computes without a profile."""

from types import SimpleNamespace

import numpy as np
import pytest
from support import tiny
from support.suites import long

from isthmus import qnn
from isthmus.backends.seam import runner

DETAILED = qnn.ProfileLevel.DETAILED
ARM = "lpai of arm"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.convolution(tmp_path_factory.mktemp("models") / "conv.onnx", 64, 64)


@pytest.mark.parametrize("limit", [None, "least"], ids=["whole", "tiled"])
@pytest.mark.parametrize(
    ("name", "threads"), [long("cpu", 1), ("cpu", 2), long("htp", 1), ("htp", 2), ("lpai", 1), (ARM, 1)]
)
def test_each_operation_has_a_time_in_a_detailed_profile(model, name, threads, limit) -> None:
    config = {"lpai_backend": {"target_env": "arm"}} if name == ARM else None
    with qnn.Backend(name.split()[0], config) as backend, qnn.Profile(backend, DETAILED) as profile:
        graph = backend.create_context().compose(model)
        graph.set_config(qnn.GraphConfig.THREADS, threads)
        graph.set_config(qnn.GraphConfig.SCRATCH_LIMIT, limit)
        memory = graph.allocate()
        x = np.random.default_rng(0).standard_normal(memory.inputs["x"].shape).astype(np.float32)
        memory.inputs["x"][...] = x
        memory.binding.execute()
        expected = memory.outputs["y"].copy()
        memory.outputs["y"][...] = 0
        memory.inputs["x"][...] = x
        memory.binding.execute(profile=profile)
        assert np.array_equal(memory.outputs["y"], expected)
        times = {event.name: event.value for event in profile.get_events() if event.name.startswith("operation: ")}
        total = next(event.value for event in profile.get_events() if event.name == "execute")
        assert any("conv_1" in label for label in times)
        assert all(value > 0 for value in times.values())
        assert sum(times.values()) <= total
        # Later executions are not timed, and one with a deadline can be.
        memory.inputs["x"][...] = x
        memory.binding.execute()
        memory.outputs["y"][...] = 0
        memory.inputs["x"][...] = x
        with qnn.Signal(backend, 60_000_000) as signal:
            memory.binding.execute(profile=profile, signal=signal)
        assert np.array_equal(memory.outputs["y"], expected)
        executed = graph.stats.executions
    assert executed == 4


def test_a_state_advances_once_in_a_timed_execution() -> None:
    with qnn.Backend("cpu") as backend, qnn.Profile(backend, DETAILED) as profile:
        graph = backend.create_context().create_graph("count")
        x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, (1, 4))
        y = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, (1, 4))
        zeros = np.zeros((1, 4), np.float32)
        state = graph.create_tensor("s", qnn.TensorType.APP_READWRITE, qnn.DataType.FLOAT_32, (1, 4), data=zeros)
        graph.add_node("add", "ElementWiseAdd", [x, state], [y])
        graph.update_state(state, y)
        graph.finalize()
        given, made = np.ones((1, 4), np.float32), np.zeros((1, 4), np.float32)
        with graph.bind([qnn.ClientTensor("x", given)], [qnn.ClientTensor("y", made)]) as binding:
            for _ in range(2):
                binding.execute(profile=profile)
                binding.execute()
        assert made.tolist() == [[4.0] * 4]


def test_the_time_of_an_execution_does_not_include_the_preparation_of_its_measurement(model, monkeypatch) -> None:
    times = iter([0.0, 7.0])
    with qnn.Backend("cpu") as backend, qnn.Profile(backend, DETAILED) as profile:
        memory = backend.create_context().compose(model).allocate()
        # The two times around the preparation; a clock of its own tells that they are subtracted.
        monkeypatch.setattr(runner, "time", SimpleNamespace(perf_counter=lambda: next(times)))
        memory.binding.execute(profile=profile)
        total = next(event.value for event in profile.get_events() if event.name == "execute")
    assert total < 0
