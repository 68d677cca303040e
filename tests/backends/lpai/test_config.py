"""LPAI's configuration: what is right is taken as it says, what is wrong refused with file, key and allowed values."""

import json

import pytest

from isthmus import Code, QnnError, qnn
from isthmus.backends.lpai.config import LpaiConfig, read
from isthmus.log import Log
from isthmus.qnn import lpai

FULL = {
    "lpai_backend": {"target_env": "adsp", "enable_hw_ver": "v5"},
    "lpai_graph": {
        "prepare": {"enable_batchnorm_fold": True, "exclude_io": True},
        "execute": {
            "fps": 33,
            "ftrt_ratio": 20,
            "client_type": "non_real_time",
            "affinity": "hard",
            "core_selection": 2,
            "mem_type": "tcm",
        },
    },
}


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_every_documented_key_is_understood(tmp_path) -> None:
    config = read(write(tmp_path / "all.conf", FULL), Log())
    assert config == LpaiConfig(
        states_mem_type=True,
        target_env="adsp",
        hw_ver="v5",
        alignment=lpai.BufferAlignmentReq(64, 64),
        prepare=lpai.Prepare(True, True),
        performance=lpai.PerfCfg(33, 20, lpai.ClientType.NON_REAL_TIME),
        affinity=lpai.CoreAffinity(lpai.Affinity.HARD, 2),
        mem_type=lpai.MemType.TCM,
        source=f"configuration file '{tmp_path / 'all.conf'}'",
    )


def test_a_dictionary_serves_as_well_as_a_file(tmp_path) -> None:
    one, other = read(FULL, Log()), read(write(tmp_path / "all.conf", FULL), Log())
    assert one.performance == other.performance
    assert one.source == "configuration"


@pytest.mark.parametrize("config", [None, {}, [], {"lpai_graph": {}}])
def test_a_key_that_is_left_out_has_its_default(config) -> None:
    found = read(config, Log())
    assert (found.target_env, found.mem_type) == ("x86", lpai.MemType.DDR)
    assert found.performance == lpai.PerfCfg(1, 10, lpai.ClientType.REAL_TIME)
    assert not found.prepare.exclude_io


def test_of_several_configurations_the_last_decides(tmp_path) -> None:
    path = write(tmp_path / "a.conf", FULL)
    config = read([path, {"lpai_backend": {"target_env": "arm"}}], Log())
    assert (config.target_env, config.hw_ver) == ("arm", "v5")


@pytest.mark.parametrize("relative", [True, False])
def test_the_tools_own_file_leads_to_the_backends(tmp_path, relative) -> None:
    inner = write(tmp_path / "eaiParams_direct.conf", {"lpai_graph": {"execute": {"mem_type": "tcm"}}})
    outer = write(
        tmp_path / "eaiParams_direct.json",
        {
            "backend_extensions": {
                "shared_library_path": "/data/local/tmp/libQnnLpaiNetRunExtensions.so",
                "config_file_path": inner.name if relative else str(inner),
            },
            "context_configs": {"is_persistent_binary": True},
        },
    )
    config = read(outer, Log())
    assert config.mem_type is lpai.MemType.TCM
    assert config.is_persistent_binary


def execute(key, value):
    return {"lpai_graph": {"execute": {key: value}}}


@pytest.mark.parametrize(
    ("content", "key", "rule"),
    [
        ({"lpai": {}}, "lpai", "no such key; known are lpai_backend, lpai_graph, backend_extensions, context_configs"),
        ({"lpai_graph": {"run": {}}}, "lpai_graph.run", "known are prepare, execute"),
        (execute("fsp", 1), "lpai_graph.execute.fsp", "known are fps, ftrt_ratio, client_type"),
        ({"lpai_graph": [1]}, "lpai_graph", r"must be an object with any of prepare, execute, is \[1\]"),
        ({"lpai_backend": "x86"}, "lpai_backend", 'must be an object .*, is "x86"'),
        (execute("fps", "30"), "lpai_graph.execute.fps", 'integer from 1 to 4294967295, is "30"'),
        (execute("fps", True), "lpai_graph.execute.fps", "is true"),
        (execute("fps", 1.5), "lpai_graph.execute.fps", "is 1.5"),
        (execute("fps", 0), "lpai_graph.execute.fps", "from 1 to 4294967295, is 0"),
        (execute("fps", 1 << 32), "lpai_graph.execute.fps", "is 4294967296"),
        (execute("fps", None), "lpai_graph.execute.fps", "is null"),
        (execute("ftrt_ratio", -1), "lpai_graph.execute.ftrt_ratio", "from 0 to 4294967295, is -1"),
        (execute("client_type", "fast"), "lpai_graph.execute.client_type", "'real_time', 'non_real_time', is \"fast\""),
        (execute("affinity", 1), "lpai_graph.execute.affinity", "'soft', 'hard', is 1"),
        (execute("core_selection", 3), "lpai_graph.execute.core_selection", "one core"),
        ({"lpai_backend": {"target_env": "dsp"}}, "lpai_backend.target_env", "'x86', 'arm', 'adsp', is \"dsp\""),
        (
            {"lpai_backend": {"enable_hw_ver": "v99"}},
            "lpai_backend.enable_hw_ver",
            "'v4', 'v5', 'v5.1', 'v6', 'v7', is \"v99\"",
        ),
        ({"lpai_backend": {"size_alignment": 48}}, "lpai_backend.size_alignment", "two from 1 to 65536, is 48"),
        ({"lpai_backend": {"start_addr_alignment": 0}}, "lpai_backend.start_addr_alignment", "power of two"),
        ({"lpai_graph": {"prepare": {"exclude_io": 1}}}, "lpai_graph.prepare.exclude_io", "true or false, is 1"),
        ({"context_configs": {"is_persistent_binary": "yes"}}, "context_configs.is_persistent_binary", "true or false"),
        ({"backend_extensions": {"config_file_path": 1}}, "backend_extensions.config_file_path", "a path, is 1"),
    ],
)
@pytest.mark.parametrize("as_file", [True, False])
def test_a_wrong_entry_is_refused_with_its_key_and_what_is_allowed(tmp_path, content, key, rule, as_file) -> None:
    path = tmp_path / "wrong.conf"
    config = write(path, content) if as_file else content
    where = f"configuration file '{path}'" if as_file else "configuration"
    with pytest.raises(QnnError, match=rf"^\[4012 BACKEND_INVALID_CONFIG\] {where}, key '{key}': .*{rule}"):
        qnn.Backend("lpai", config)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "not valid JSON.*line 1, column 1"),
        ("{", "not valid JSON"),
        ('{"lpai_graph": {,}}', "not valid JSON.*line 1, column 17"),
        ("[1, 2]", "must hold an object, holds a list"),
        ("null", "must hold an object, holds null"),
        ('"text"', "must hold an object, holds a text"),
        ('{"lpai_graph": {}, "lpai_graph": {}}', "key 'lpai_graph': it is given twice"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_broken_file_is_refused_by_name(tmp_path, text, rule) -> None:
    path = write(tmp_path / "broken.conf", text)
    with pytest.raises(QnnError, match=rf"broken.conf.*{rule}") as refusal:
        qnn.Backend("lpai", path)
    assert refusal.value.code is Code.BACKEND_INVALID_CONFIG


def test_bytes_that_are_no_text_are_refused(tmp_path) -> None:
    path = tmp_path / "binary.conf"
    path.write_bytes(b"\xff\xfe\x00{}")
    with pytest.raises(QnnError, match=r"binary.conf.*cannot be read"):
        qnn.Backend("lpai", path)


@pytest.mark.parametrize("name", ["absent.conf", ".", "no/such/folder/x.conf"])
def test_a_path_that_cannot_be_read_is_refused(tmp_path, name) -> None:
    with pytest.raises(QnnError, match=r"configuration file .*cannot be read: (No such file|a directory, not a file)"):
        qnn.Backend("lpai", tmp_path / name)


def test_a_configuration_that_names_a_missing_file_or_itself_is_refused(tmp_path) -> None:
    lost = write(tmp_path / "lost.json", {"backend_extensions": {"config_file_path": "gone.conf"}})
    with pytest.raises(QnnError, match=r"gone.conf.*cannot be read"):
        qnn.Backend("lpai", lost)
    circle = tmp_path / "circle.json"
    write(circle, {"backend_extensions": {"config_file_path": str(circle)}})
    with pytest.raises(QnnError, match="it leads back"):
        qnn.Backend("lpai", circle)


@pytest.mark.parametrize("config", [7, [7], object()])
def test_what_is_no_configuration_is_refused(config) -> None:
    with pytest.raises(QnnError, match="neither a path nor a dictionary") as refusal:
        qnn.Backend("lpai", config)
    assert refusal.value.code is Code.BACKEND_INVALID_CONFIG
