"""Every option of ONNX Runtime's QNN provider: it runs on our library, or the provider itself refuses it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes import answer
from support.suites import long, sampled

from capi import ort_provider
from capi.test_provider import convolution, image, reference

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
pytest.importorskip("onnx")

PRECISE = 1e-4
IN_FP16 = 0.02
"""The tolerance of a graph that stores its floats in 16 bits."""
"""How far results may be from ONNX Runtime's own, in floats."""


@dataclass(frozen=True)
class Choice:
    """Values of an option, and what else belongs to them.

    Parameters
    ----------
    needs
        Options that go with it; ``FOLDER`` is replaced by a folder.
    config
        Entries of the session's configuration.
    runs
        Entries of the configuration of single runs.
    """

    values: tuple[str, ...] = ("1",)
    needs: dict[str, str] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)

    def options(self, name: str, value: str, folder: Path) -> dict[str, str]:
        """Return the options of a session with this value, whose files are in a folder."""
        needed = {key: text.replace("FOLDER", str(folder)) for key, text in self.needs.items()}
        return {**needed, name: value} if value else needed

    def run_options(self) -> Any:
        """Return the options of its runs, as ONNX Runtime takes them."""
        import onnxruntime

        settings = onnxruntime.RunOptions()
        for key, text in self.runs.items():
            settings.add_run_config_entry(key, text)
        return settings


MODES = (
    "burst", "balanced", "default", "high_performance", "high_power_saver", "low_balanced", "low_power_saver",
    "power_saver", "sustained_high_performance", "extreme_power_saver", "nonsense",
)  # fmt: skip
TAKEN: dict[str, Choice] = {
    "htp_performance_mode": Choice(MODES),
    "profiling_level": Choice(("basic", "detailed", "optrace", "off"), {"profiling_file_path": "FOLDER/p.csv"}),
    "rpc_control_latency": Choice(("100",)),
    "vtcm_mb": Choice(("8", "-1")),
    "htp_graph_finalization_optimization_mode": Choice(("3", "1", "2")),
    "qnn_context_priority": Choice(("high", "low", "normal", "normal_high")),
    "htp_arch": Choice(("79", "68", "73", "75", "81")),
    "soc_model": Choice(("69",)),
    "enable_htp_fp16_precision": Choice(("1", "0"), {"soc_model": "69"}),
    "offload_graph_io_quantization": Choice(("0", "1")),
    "enable_htp_spill_fill_buffer": Choice(),
    "enable_htp_shared_memory_allocator": Choice(),
    "dump_json_qnn_graph": Choice(needs={"json_qnn_graph_dir": "FOLDER"}),
    "skip_qnn_version_check": Choice(),
    "skip_backend_op_validation": Choice(),
    "extended_udma": Choice(needs={"soc_model": "87"}),
    "disable_file_mapped_weights": Choice(),
    "enable_block_quant_weight_optimization": Choice(),
    "enable_framework_op_trace": Choice(),
    "enable_htp_fp16_clamp_overflow": Choice(),
    "enable_htp_graph_splitting": Choice(needs={"htp_graph_splitting_num_prepare_threads": "2"}),
    "htp_graph_splitting_num_prepare_threads": Choice(("2",)),
    "enable_htp_monolithic_lstm": Choice(),
    "enable_htp_prepare_and_load": Choice(),
    "htp_reused_io_limit_mb": Choice(("1", "1024")),
    "dump_qnn_ep_input_graph": Choice(needs={"dump_qnn_ep_input_graph_dir": "FOLDER"}),
    "a run's performance mode": Choice(
        ("",), runs={"qnn.htp_perf_mode": "burst", "qnn.htp_perf_mode_post_run": "default",
                     "qnn.rpc_control_latency": "50"},
    ),
    "a run's adapter": Choice(("",), runs={"qnn.lora_config": "/nonexistent.txt"}),
    "shared contexts that end": Choice(
        ("",), config={"ep.share_ep_contexts": "1", "ep.stop_share_ep_contexts": "1"}
    ),
    "a prefix of names": Choice(("",), config={"ep.context_node_name_prefix": "zz"}),
}  # fmt: skip
"""What runs on our library. What is no option by itself has a value of no text, and stands for its entries."""

REFUSED: dict[tuple[str, str], str] = {
    ("device_id", "1"): "assigned to the default CPU EP",
    ("op_packages", "Relu:/nonexistent.so:If"): "assigned to the default CPU EP",
    ("enable_htp_prepare_only", "1"): "Conflicting session configuration",
    ("htp_bf16_enable", "1"): "Conflicting session configuration",
    ("extended_udma", "1"): "Failed to initialize qnn_model_wrapper",
}
"""What the provider refuses on any library: devices and packages that are not there, options without what they need.
Where it cannot be created at all, ONNX Runtime tries again without it, and says what it then lacks."""


def choices() -> Iterator[object]:
    """Every option with its first value, and the others, marked for `make test-long`."""
    for name, choice in TAKEN.items():
        for index, value in enumerate(choice.values):
            identity = f"{name}={value}" if value else name
            yield long(name, value, id=identity) if index else pytest.param(name, value, id=identity)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convolution(tmp_path_factory.mktemp("model") / "tiny.onnx")


@pytest.mark.parametrize(("name", "value"), sampled(choices(), 5))
def test_an_option_runs_and_so_does_the_cache_that_is_made_with_it(
    libraries: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    # Some options leave files where the program runs.
    monkeypatch.chdir(tmp_path)
    choice, library = TAKEN[name], libraries / "libQnnHtp.so"
    options, settings = choice.options(name, value, tmp_path), choice.run_options()
    config = {"session.disable_cpu_ep_fallback": "1", **choice.config}
    (expected,) = reference(tiny, image())
    cache = tmp_path / "cached.onnx"
    caching = {"ep.context_enable": "1", "ep.context_embed_mode": "0", "ep.context_file_path": str(cache)}
    halved = (name, value) == ("enable_htp_fp16_precision", "1")
    for model, more in ((tiny, caching), (cache, {})):
        session = ort_provider.session(model, library, options, {**config, **more})
        found = session.run(None, image(), settings)[0]
        np.testing.assert_allclose(found, expected, atol=IN_FP16 if halved else PRECISE)
        assert (np.abs(found - expected).max() > PRECISE) == halved
        del session


@pytest.mark.parametrize(("name", "value"), REFUSED, ids=lambda given: str(given)[:30])
def test_what_the_provider_refuses_ends_in_its_own_words(libraries: Path, tiny: Path, name: str, value: str) -> None:
    with pytest.raises(Exception, match=REFUSED[name, value]):
        ort_provider.session(tiny, libraries / "libQnnHtp.so", {name: value}, {"session.disable_cpu_ep_fallback": "1"})


SHARING = """
import json, sys
from pathlib import Path
import numpy as np
from capi import ort_provider
from capi.test_provider import image
model, library, cache, option = sys.argv[1:]
strict = {"session.disable_cpu_ep_fallback": "1"}
caching = {"ep.context_enable": "1", "ep.context_embed_mode": "0", "ep.context_file_path": cache}
ort_provider.session(model, library, config={**strict, **caching})
found = {}
for name, given in (("model", model), ("cache", cache)):
    try:
        session = ort_provider.session(given, library, {option: "1"}, {**strict, "ep.share_ep_contexts": "1"})
        found[name] = np.asarray(session.run(None, image())[0]).tolist()
        del session
    except Exception as problem:
        found[name] = str(problem)
print(json.dumps(found))
"""


@pytest.mark.parametrize("option", ["htp_share_resource_optimization", "enable_vtcm_backup_buffer_sharing"])
def test_options_that_share_resources_load_lists_of_binaries(
    libraries: Path, tiny: Path, tmp_path: Path, option: str
) -> None:
    """In a child: a list that is answered wrongly ends the process."""
    here = Path(__file__).parent
    path = os.pathsep.join([str(here.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", SHARING, tiny, libraries / "libQnnHtp.so", tmp_path / "cached.onnx", option],
        capture_output=True, text=True, timeout=240, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = answer(done.stdout)
    assert "assigned to the default CPU EP" in found["model"], "a model that is no cache has no binaries to share"
    np.testing.assert_allclose(found["cache"], reference(tiny, image())[0], atol=PRECISE)
