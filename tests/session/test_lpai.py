"""A session on LPAI gives the CPU's answers, wherever its configuration puts inputs and outputs, and ends clean."""

import json

import numpy as np
import pytest
from support import tiny

import isthmus
from isthmus import Code, QnnError
from isthmus.memory import tcm
from isthmus.tools.cli import main

PREPARED_OUT = {"prepare": {"exclude_io": True}}
DIRECT = {"target_env": "adsp"}
CONFIGS = {
    "default": None,
    "v5": {"lpai_backend": {"enable_hw_ver": "v5"}},
    "arm": {"lpai_backend": {"target_env": "arm"}},
    "excluded": {"lpai_graph": PREPARED_OUT},
    "tcm": {"lpai_backend": DIRECT, "lpai_graph": {"execute": {"mem_type": "tcm"}}},
    "tcm, excluded": {"lpai_backend": DIRECT, "lpai_graph": {**PREPARED_OUT, "execute": {"mem_type": "tcm"}}},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.convolution(tmp_path_factory.mktemp("models") / "conv.onnx")


def image(seed=0):
    return np.random.default_rng(seed).standard_normal((1, 3, 8, 8)).astype(np.float32)


@pytest.mark.parametrize("name", CONFIGS)
def test_answers_are_those_of_the_cpu(model, name) -> None:
    with (
        isthmus.Session(model) as cpu,
        isthmus.Session(model, backend="lpai", config=CONFIGS[name]) as session,
    ):
        for seed in range(3):
            expected = cpu.run({"x": image(seed)})["y"]
            assert np.array_equal(session.run({"x": image(seed)})["y"], expected)
            session.inputs["x"][...] = image(seed)
            session.run()
            assert np.array_equal(session.outputs["y"], expected)
        assert session.stats.copied_bytes == 3 * (image().nbytes + expected.nbytes), "only the feeds were copied"
    assert tcm.pool().allocations == 0


def test_inputs_survive_a_run_only_outside_scratch(model) -> None:
    for name, survive in (("default", False), ("excluded", True), ("tcm", True)):
        with isthmus.Session(model, backend="lpai", config=CONFIGS[name]) as session:
            assert session.inputs_survive is survive


def test_a_closed_session_is_refused_and_its_views_stay_readable(model) -> None:
    session = isthmus.Session(model, backend="lpai")
    session.inputs["x"][...] = 1
    session.run()
    y = session.outputs["y"]
    session.close()
    session.close()
    assert np.isfinite(y).all()
    with pytest.raises(QnnError) as refusal:
        session.run()
    assert refusal.value.code is Code.GRAPH_INVALID_HANDLE


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"backend": "lpai", "threads": 2}, "one thread"),
        ({"backend": "cpu", "config": {"lpai_graph": {}}}, "there is no such key; known are cpu"),
        ({"backend": "lpai", "config": {"lpai": 1}}, "no such key"),
        ({"backend": "lpai", "config": {"lpai_graph": {"execute": {"mem_type": "tcm"}}}}, "ADSP direct mode"),
    ],
)
def test_invalid_options_are_refused(model, options, rule) -> None:
    with pytest.raises(QnnError, match=rule):
        isthmus.Session(model, **options)


@pytest.fixture
def direct_config(tmp_path):
    path = tmp_path / "eaiParams_direct.conf"
    path.write_text('{"lpai_graph": {"execute": {"mem_type": "tcm"}}}')
    return path


def test_the_command_runs_lpai_and_shows_its_messages(model, direct_config, capsys, fresh_tcm) -> None:
    arguments = ["run", model, "--backend", "lpai", "--config", direct_config, "--direct_mode", "adsp"]
    assert main([*map(str, arguments), "--log_level", "debug", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["backend"] == "lpai"
    # What the machine says of its caches is no message of the backend.
    first, *others = (line for line in captured.err.splitlines() if line.startswith("["))
    assert first == "[INFO] TCM pool current size: 0 max_size: 2035712"
    assert all(line.startswith("[INFO] Allocate size ") for line in others)
    assert len(others) == 3


def test_the_command_runs_in_tcm_of_the_requested_size(model, direct_config, capsys, fresh_tcm) -> None:
    arguments = ["run", model, "--backend", "lpai", "--config", direct_config, "--direct-mode", "adsp", "--tcm"]
    assert main([*map(str, arguments), "1MiB", "--log-level", "info", "--json"]) == 0
    assert "[INFO] TCM pool current size: 0 max_size: 1048576" in capsys.readouterr().err
    assert main([*map(str, arguments), "1KiB"]) == 1
    assert "of TCM are needed in one piece, 1024 of 1024 are left" in capsys.readouterr().err


def test_the_command_repeats_with_inputs_in_scratch(model, tmp_path, capsys) -> None:
    x = image(4)
    np.savez(tmp_path / "in.npz", x=x)
    arguments = ["run", model, "--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz", "--repeat", 3]
    assert main([*map(str, arguments), "--backend", "lpai"]) == 0
    with np.load(tmp_path / "out.npz") as written, isthmus.Session(model) as cpu:
        assert np.array_equal(written["y"], cpu.run({"x": x})["y"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--backend", "lpai", "--config", "CONFIG"], "ADSP direct mode"),
        (["--backend", "lpai", "--config", "absent.conf"], "absent.conf"),
        (["--backend", "cpu", "--config", "CONFIG"], "there is no such key; known are cpu"),
    ],
)
def test_the_command_answers_bad_configurations_with_one_line(model, direct_config, capsys, options, words) -> None:
    status = main(["run", str(model), *(str(direct_config) if o == "CONFIG" else o for o in options)])
    captured = capsys.readouterr()
    assert (status, captured.out) == (2, "")
    assert words in captured.err
    assert len(captured.err.strip().splitlines()) == 1


def test_the_plan_reports_the_three_pools_and_the_fit_in_tcm(model, tmp_path, capsys) -> None:
    config = tmp_path / "v5.conf"
    config.write_text('{"lpai_backend": {"enable_hw_ver": "v5"}}')
    assert main(["plan", str(model), "--backend", "lpai", "--config", str(config)]) == 0
    text = capsys.readouterr().out
    for words in ("LPAI v5: addresses a multiple of 64, sizes of 64", "persistent", "inside scratch", "v5 has no TCM"):
        assert words in text
    assert main(["plan", str(model), "--backend", "lpai", "--config", str(config), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)["lpai"]
    with isthmus.Session(model, backend="lpai", config=config) as session:
        assert reported["scratch"]["bytes"] == -(-session.info.memory.scratch_bytes // 64) * 64
    assert reported["tcm"]["fits"] is False
    assert main(["plan", str(model), "--backend", "lpai"]) == 0
    assert ": fits, " in capsys.readouterr().out
    assert main(["plan", str(model), "--config", str(config)]) == 2
    assert "there is no such key; known are cpu" in capsys.readouterr().err
