"""HTP takes the configuration files of QNN's documents: keys without effect here are checked and logged once."""

import json

import pytest

from isthmus import Code, QnnError
from isthmus.backends.htp.options import HtpConfig, read_config
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
    "context": {"weight_sharing_enabled": True, "file_read_memory_budget_in_mb": 0},
    "groupContext": {"share_resources": True},
    "memory": {"mem_type": "shared_buffer"},
}


def read(config):
    """The configuration and the log's messages."""
    heard = []
    return read_config(config, Log(lambda level, text: heard.append((level, text)))), heard


def test_the_documented_file_is_accepted_and_each_key_without_effect_is_logged_once(tmp_path) -> None:
    (tmp_path / "htp.json").write_text(json.dumps(DOCUMENTED))
    tools = tmp_path / "tools.json"
    tools.write_text(
        json.dumps(
            {
                "backend_extensions": {"shared_library_path": "libExt.so", "config_file_path": "htp.json"},
                "context_configs": {"context_priority": "high", "enable_graphs": ["model"], "memory_limit_hint": 1},
                "graph_configs": [{"graph_name": "model", "graph_priority": "normal_high"}],
            }
        )
    )
    config, heard = read(tools)
    assert config == HtpConfig()
    assert {level for level, _ in heard} == {LogLevel.INFO}
    texts = [text for _, text in heard]
    assert len(set(texts)) == len(texts)
    for file, key in [("htp.json", "graphs.vtcm_mb"), ("htp.json", "graphs.finalize_config.P"),
                      ("htp.json", "devices.cores.perf_profile"), ("htp.json", "memory.mem_type"),
                      ("tools.json", "context_configs.context_priority"),
                      ("tools.json", "graph_configs.graph_priority")]:  # fmt: skip
        line = f"configuration file '{tmp_path / file}', key '{key}': accepted, but without effect here"
        assert texts.count(line) == 1, key


def test_our_own_keys_work_beside_them() -> None:
    config, _ = read({**DOCUMENTED, "htp": {"threads": 2}})
    assert config.threads == 2


@pytest.mark.parametrize("form", [lambda graph: graph, lambda graph: [graph]])
def test_graphs_may_be_one_object_as_in_old_files(form) -> None:
    assert read({"graphs": form({"graph_names": ["g"], "vtcm_mb": 4})})[0] == HtpConfig()


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
