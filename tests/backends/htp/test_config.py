"""HTP takes the configuration files of QNN's documents: keys without effect here are checked and logged once."""

import json
from dataclasses import replace

import pytest

from isthmus import Code, QnnError, qnn
from isthmus.backends.htp.options import HtpConfig, HtpGraphConfigOption, read_config
from isthmus.backends.seam.config import ContextSettings
from isthmus.graph import DataType, TensorType
from isthmus.log import Log, LogLevel

DOCUMENTED = {
    "graphs": [
        {"graph_names": ["model"], "vtcm_mb": 8, "O": 3, "hvx_threads": 4, "dlbc": 1, "finalize_config": {"P": 2}},
        {"graph_names": ["other"], "vtcm_mb": 2, "O": 3.0, "weights_packing": True},
    ],
    "devices": [
        {
            "device_id": 0,
            "soc_id": 57,
            "dsp_arch": "v75",
            "pd_session": "unsigned",
            "cores": [{"core_id": 0, "perf_profile": "burst", "rpc_control_latency": 100}],
        }
    ],
    "context": {"weight_sharing_enabled": True, "file_read_memory_budget_in_mb": 25},
    "groupContext": {"share_resources": True},
    "memory": {"mem_type": "shared_buffer"},
}


def read(config):
    """The configuration and the log's messages."""
    messages = []
    return read_config(config, Log(lambda level, text: messages.append((level, text)))), messages


def test_the_documented_file_is_accepted_and_each_key_without_effect_is_logged_once(tmp_path) -> None:
    (tmp_path / "htp.json").write_text(json.dumps(DOCUMENTED))
    tools = tmp_path / "tools.json"
    tools.write_text(
        json.dumps(
            {
                "backend_extensions": {"shared_library_path": "libExt.so", "config_file_path": "htp.json"},
                "context_configs": {"context_priority": "high", "enable_graphs": ["model"], "weights_buffer": 1},
                "graph_configs": [{"graph_name": "model", "graph_priority": "normal_high"}],
            }
        )
    )
    config, messages = read(tools)
    assert config.contexts == ContextSettings(200, {"model": 150}, ("model",))
    assert [config.contexts.priority_of(name) for name in ("model", "other")] == [150, 200]
    assert replace(config, graphs=(), devices=(), contexts=ContextSettings()) == HtpConfig(
        weight_sharing=True, share_resources=True
    )
    assert {level for level, _ in messages} == {LogLevel.INFO}
    texts = [text for _, text in messages]
    assert len(set(texts)) == len(texts)
    for file, key, value in [("htp.json", "graphs.weights_packing", "true"),
                             ("htp.json", "graphs.finalize_config.P", "2"),
                             ("htp.json", "devices.cores.perf_profile", '"burst"'),
                             ("htp.json", "memory.mem_type", '"shared_buffer"'),
                             ("tools.json", "context_configs.weights_buffer", "1")]:  # fmt: skip
        line = f"configuration file '{tmp_path / file}', key '{key}' = {value}: accepted, but without effect here"
        assert sum(text.startswith(line) for text in texts) == 1, key


def test_priorities_and_enabled_graphs_of_the_tools_file_are_those_of_contexts() -> None:
    config = {
        "context_configs": {"context_priority": "low", "enable_graphs": ["one"]},
        "graph_configs": [{"graph_name": "one", "graph_priority": "high"}, {"graph_name": "other"}],
    }
    with qnn.Backend("htp", config) as backend:
        context = backend.create_context()
        for name in ("one", "two"):
            graph = context.create_graph(name)
            x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, (4,))
            graph.add_node("relu", "Relu", [x], [graph.create_tensor("y", qnn.TensorType.APP_READ, x.dtype, (4,))])
        priorities = {name: int(graph.get_property(qnn.GraphConfig.PRIORITY)) for name, graph in context.graphs.items()}
        assert priorities == {"one": 200, "two": 0}
        restored = backend.create_context_from_binary(context.prepare_offline())
        assert {name: int(graph.driver.priority) for name, graph in restored.graphs.items()} == {"one": 200}
        both = backend.create_context_from_binary(context.prepare_offline(), graphs=["one", "two"])
        assert [*both.graphs] == ["one", "two"]


def test_the_depth_of_queues_is_that_of_the_tools_file() -> None:
    with qnn.Backend("htp", {"context_configs": {"async_execute_queue_depth": 25}}) as backend:
        assert [qnn.Context(backend, queue_depth=each).executions.depth for each in (None, 4)] == [25, 4]


def test_our_own_keys_work_beside_the_documented_ones() -> None:
    config, _ = read({**DOCUMENTED, "htp": {"threads": 2}})
    assert config.threads == 2


@pytest.mark.parametrize("form", [lambda graph: graph, lambda graph: [graph]])
def test_graphs_may_be_one_object_as_in_old_files(form) -> None:
    config, _ = read({"graphs": form({"graph_names": ["g"], "vtcm_mb": 2})})
    sizes = [config.graph_options(name)[HtpGraphConfigOption.VTCM_SIZE_IN_MB] for name in ("g", "other")]
    assert sizes == [2, 4]


@pytest.mark.parametrize(
    ("config", "key", "words"),
    [
        ({"graphs": [{"vtcm_mbs": 8}]}, "graphs.vtcm_mbs", "Did you mean 'vtcm_mb'?"),
        ({"graphs": [{}, {"O": 4}]}, "graphs.O", "must be 1, 2 or 3, is 4"),
        ({"graphs": [3]}, "graphs", "must be an object"),
        ({"graphs": [{"graph_names": "model"}]}, "graphs.graph_names", "must be a list of names"),
        ({"devices": [{"dsp_arch": "75"}]}, "devices.dsp_arch", "such as 'v75'"),
        ({"devices": [{"cores": [{"perf_profile": "fast"}]}]}, "devices.cores.perf_profile", "must be one of"),
        ({"context": {"weight_sharing_enabled": 2}}, "context.weight_sharing_enabled", "true or false"),
        ({"devices": [{"soc_model": 999}]}, "devices.soc_model", "must be the number of a chip"),
        ({"graphs": [{"vtcm_mb": 4096}]}, "graphs.vtcm_mb", "an integer from 0 to 4095"),
        ({"device": []}, "device", "Did you mean 'devices'?"),
        ({"context_configs": {"context_priority": "urgent"}}, "context_configs.context_priority", "must be one of"),
    ],
)
def test_mistakes_are_refused_with_the_key_and_what_is_allowed(config, key, words) -> None:
    with pytest.raises(QnnError) as refusal:
        read(config)
    assert refusal.value.code is Code.BACKEND_INVALID_CONFIG
    assert f"key '{key}'" in str(refusal.value)
    assert words in str(refusal.value)


@pytest.mark.parametrize(("soc", "cores", "refused"), [(69, 1, False), (69, 2, True), (0, 2, True), (52, 2, False)])
def test_a_graph_for_several_cores_is_refused_where_the_chip_has_one(soc, cores, refused) -> None:
    config = {"graphs": [{"graph_names": ["g"], "num_cores": cores}], "devices": [{"soc_model": soc}]}
    with qnn.Backend("htp", config) as backend:
        graph = backend.create_context().create_graph("g")
        x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 8))
        y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 8))
        graph.add_node("relu", "Relu", [x], [y])
        if refused:
            with pytest.raises(QnnError, match="RouterX86 graph prepare failed 99") as refusal:
                graph.finalize()
            assert refusal.value.code is Code.COMMON_MEM_ALLOC
            graph.set_config(HtpGraphConfigOption.NUM_CORES, 1)
        graph.finalize()
