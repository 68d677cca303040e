"""Options are told apart by the object they are asked of; several are set all or none; what can be set can be asked."""

import numpy as np
import pytest

from isthmus import Code, QnnError, memory, qnn
from isthmus.backends.seam import registry
from isthmus.qnn import DataType, GraphConfig, Priority, TensorType, htp, lpai


@pytest.fixture
def backend():
    with qnn.Backend("lpai") as backend:
        yield backend


@pytest.fixture
def graph(backend):
    graph = backend.create_context().create_graph("relu")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 16))
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 16))
    graph.add_node("relu", "Relu", [x], [y])
    return graph


def refused(code, text):
    return pytest.raises(QnnError, match=rf"\[{int(code)}.*{text}")


def test_a_property_is_no_config_whatever_its_number(graph) -> None:
    assert int(lpai.IO_OFFSETS) == int(lpai.RESET_STATE)
    with refused(Code.GRAPH_INVALID_ARGUMENT, r"GraphProperty\.IO_OFFSETS is no config of it"):
        graph.set_config(lpai.IO_OFFSETS, None)


def test_an_option_of_a_graph_is_none_of_its_backend(backend, graph) -> None:
    for option in (lpai.SCRATCH_MEM_SIZE, lpai.SCRATCH_MEM, htp.ACCELERATOR_PID, GraphConfig.PRIORITY):
        with refused(Code.BACKEND_NOT_SUPPORTED, "is no property of it"):
            backend.get_property(option)
    with refused(Code.GRAPH_INVALID_ARGUMENT, "is no property of it"):
        graph.get_property(lpai.ALIGNMENT_REQ)


@pytest.mark.parametrize("option", ["x", None, 1.5, True, object(), 99_999])
def test_what_is_no_option_is_refused(backend, graph, option) -> None:
    for target in (backend, graph, graph.context):
        with pytest.raises(QnnError):
            target.get_property(option)
        with pytest.raises(QnnError):
            target.set_config(option, 1)


def test_numbers_count_in_the_enumeration_of_the_object_asked(backend, graph) -> None:
    assert backend.get_property(0) == backend.get_property(lpai.ALIGNMENT_REQ)
    assert graph.get_property(1) == graph.get_property(lpai.SCRATCH_MEM_SIZE)


def test_general_options_have_numbers_that_no_backend_uses(graph) -> None:
    graph.set_config(3, 200)
    assert graph.get_property(3) is Priority.HIGH
    assert graph.get_property(int(GraphConfig.THREADS)) == 1
    for name in (name for name in registry.names() if registry.entry(name).library):
        with qnn.Backend(name) as backend:
            driver = type(backend.create_context().create_graph("g").driver)
        own = {int(option) for kind in (driver.properties, driver.configs) for option in kind or ()}
        assert not own & {int(option) for option in GraphConfig}


def test_several_configs_are_set_together(graph) -> None:
    expected = {lpai.PERF_CFG: lpai.PerfCfg(fps=30), GraphConfig.PRIORITY: Priority.HIGH, 301: lpai.CoreAffinity()}
    graph.set_config(expected)
    assert graph.get_property(lpai.PERF_CFG).fps == 30
    assert graph.get_property(GraphConfig.PRIORITY) is Priority.HIGH


def test_a_refused_config_undoes_the_others(graph) -> None:
    before = graph.get_property(lpai.PERF_CFG)
    with memory.host(graph.get_property(lpai.SCRATCH_MEM_SIZE), 128) as scratch:
        pool = lpai.Mem(lpai.MemType.DDR, scratch.nbytes, scratch)
        with pytest.raises(QnnError):
            graph.set_config(
                {
                    lpai.PERF_CFG: lpai.PerfCfg(fps=30),
                    GraphConfig.PRIORITY: Priority.LOW,
                    lpai.SCRATCH_MEM: pool,
                    lpai.CORE_AFFINITY: "any",
                }
            )
        assert graph.get_property(lpai.PERF_CFG) == before
        assert graph.get_property(GraphConfig.PRIORITY) is Priority.NORMAL
        # The scratch is free again: it can be closed.


def test_every_option_that_can_be_set_can_be_read(backend, graph) -> None:
    for config in (lpai.PERF_CFG, lpai.CORE_AFFINITY, lpai.PREPARE):
        value = graph.get_property(config)
        graph.set_config(config, value)
        assert graph.get_property(config) == value
    assert graph.context.get_property(lpai.MODEL_BUFFER_MEM_TYPE) is lpai.MemType.DDR
    scratch = memory.host(graph.get_property(lpai.SCRATCH_MEM_SIZE), 128)
    assert graph.get_property(lpai.SCRATCH_MEM) is None
    graph.set_config(lpai.SCRATCH_MEM, lpai.Mem(lpai.MemType.DDR, scratch.nbytes, scratch))
    assert graph.get_property(lpai.SCRATCH_MEM).addr is scratch


def test_the_number_of_threads_is_a_config_of_every_graph() -> None:
    with qnn.Backend("cpu") as backend:
        graph = backend.create_context().create_graph("relu")
        x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (512, 512))
        y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (512, 512))
        graph.add_node("relu", "Relu", [x], [y])
        graph.set_config(GraphConfig.THREADS, np.int64(2))
        graph.finalize()
        assert graph.get_property(GraphConfig.THREADS) == 2
        assert graph.driver.program.threads == 2
        with refused(Code.GRAPH_FINALIZED, "threads is fixed"):
            graph.set_config(GraphConfig.THREADS, 1)


def test_a_backend_that_runs_on_one_thread_says_so(graph) -> None:
    graph.set_config(GraphConfig.THREADS, 1)
    with refused(Code.GRAPH_INVALID_ARGUMENT, "one thread"):
        graph.set_config(GraphConfig.THREADS, 2)


def test_the_enumerations_of_qnn_are_exported() -> None:
    assert (qnn.DataType.FLOAT_32, qnn.TensorType.APP_READ, qnn.TensorMemType.MEMHANDLE) == (0x0232, 1, 1)
