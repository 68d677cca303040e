"""ONNX Runtime's provider and the memory of contexts: groups, limits of I/O, shared resources, mapped files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends.htp.sized import WIDTH, chip, sizes_of

from capi import ort_provider
from isthmus import qnn

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
onnx = pytest.importorskip("onnx")

ROWS = (96, 256)
"""The rows of the tensors of two models: the second needs more spill-fill."""
SPILL_FILL = {"enable_htp_spill_fill_buffer": "1"}
STRICT = {"session.disable_cpu_ep_fallback": "1"}
TOGETHER = {"ep.share_ep_contexts": "1"}
NO_ROOM = "contextCreateFromBinary failed. Error: QNN_COMMON_ERROR_MEM_ALLOC"
"""What the provider says where the library answers 1002."""


def chain(file: Path, rows: int, steps: int = 4) -> tuple[Path, np.ndarray]:
    """A model that permutes columns, step by step through memory of its own; and the order that it leaves."""
    random, order = np.random.default_rng(rows), np.arange(WIDTH)
    constants, nodes = [], []
    for step in range(steps):
        permutation = random.permutation(WIDTH)
        order = order[permutation]
        matrix = np.eye(WIDTH, dtype=np.float32)[:, permutation]
        constants.append(onnx.numpy_helper.from_array(matrix, f"w{step}"))
        ends = ["x" if step == 0 else f"t{step}", f"w{step}"], ["y" if step == steps - 1 else f"t{step + 1}"]
        nodes.append(onnx.helper.make_node("MatMul", *ends))
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [rows, WIDTH]) for name in "xy")
    graph = onnx.helper.make_graph(nodes, f"chain{rows}", [x], [y], constants)
    opset = [onnx.helper.make_opsetid("", 21)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=10), str(file))
    return file, order


class Caches:
    """Chains as caches that are not embedded, each with its context binary."""

    def __init__(self, library: Path, folder: Path, options: Mapping[str, str], *rows: int) -> None:
        self.library, self.folder = library, folder
        self.files, self.orders = [], []
        for count in rows:
            model, order = chain(folder / f"chain{count}.onnx", count)
            file = folder / f"cache{count}.onnx"
            caching = {"ep.context_enable": "1", "ep.context_embed_mode": "0", "ep.context_file_path": str(file)}
            ort_provider.session(model, library, options, {**STRICT, **caching})
            self.files.append(file)
            self.orders.append(order)

    def nodes(self) -> list[Any]:
        """The EPContext node of each cache."""
        return [node for file in self.files for node in onnx.load(str(file)).graph.node]

    def binaries(self) -> list[Path]:
        """The context binary of each cache."""
        return [self.folder / attribute(node, "ep_cache_context").decode() for node in self.nodes()]

    def joined(self) -> Path:
        """One model with the nodes of all caches, whose inputs are x0, x1, … and whose outputs are y0, y1, …"""
        models = [onnx.load(str(file)) for file in self.files]
        parts: dict[str, list[Any]] = {"node": [], "input": [], "output": []}
        for number, model in enumerate(models):
            for value in (*model.graph.input, *model.graph.output):
                value.name += str(number)
            for node in model.graph.node:
                node.input[:], node.output[:] = [f"x{number}"], [f"y{number}"]
            for part, listed in parts.items():
                listed += getattr(model.graph, part)
        graph = onnx.helper.make_graph(parts["node"], "joined", parts["input"], parts["output"])
        opsets = list(models[0].opset_import)
        file = self.folder / "joined.onnx"
        made = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=models[0].ir_version)
        onnx.save(made, str(file))
        return file

    def run(self, options: Mapping[str, str], config: Mapping[str, str] | None = None, severity: int = 4) -> bool:
        """Load the joined caches and run them; return whether all results are right, to the last bit."""
        file = self.joined()
        session = ort_provider.session(file, self.library, options, {**STRICT, **(config or {})}, severity)
        feeds = {
            f"x{number}": np.random.default_rng(number).standard_normal(given.shape).astype(np.float32)
            for number, given in enumerate(session.get_inputs())
        }
        found = session.run([f"y{number}" for number in range(len(self.orders))], feeds)
        given = zip(feeds.values(), found, self.orders, strict=True)
        return all(np.array_equal(y, x[:, order]) for x, y, order in given)


def attribute(node: Any, name: str) -> Any:
    """The value of a node's attribute."""
    return next(onnx.helper.get_attribute_value(each) for each in node.attribute if each.name == name)


@pytest.fixture
def library(libraries: Path) -> Path:
    return libraries / "libQnnHtp.so"


@pytest.fixture
def on_chip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets the library load contexts on a chip with one process domain of a capacity."""

    def configure(capacity: int, **context: Any) -> None:
        file, device = tmp_path / "config.json", {"chip": chip(tmp_path, domains=[0], capacity=capacity)}
        file.write_text(json.dumps({"htp": device, "context": context}))
        monkeypatch.setenv("ISTHMUS_HTP_CONFIG", str(file))

    return configure


def needs(binaries: Sequence[Path]) -> tuple[list[int], list[int]]:
    """The spill-fill of some binaries, and what each needs besides, without I/O."""
    sizes = [sizes_of(file.read_bytes()) for file in binaries]
    spill = [each.spill_fill for each in sizes]
    return spill, [sum(size for _, size in each.pieces) - each.spill_fill for each in sizes]


# -- spill-fill --------------------------------------------------------------------------------------------------------


def test_a_cache_states_the_spill_fill_of_its_binary_and_the_provider_loads_with_the_largest(
    library: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    caches = Caches(library, tmp_path, SPILL_FILL, *ROWS)
    stated = [attribute(node, "max_size") for node in caches.nodes()]
    system = qnn.SystemContext()
    figures = [system.get_binary_info(file).graphs[0].figures for file in caches.binaries()]
    assert stated == [each.spill_fill for each in figures if each is not None]
    assert stated == [2 * 4 * rows * WIDTH for rows in ROWS]
    capfd.readouterr()
    assert caches.run(SPILL_FILL, severity=0)
    said = capfd.readouterr().err
    assert said.count(f"Max spill fill buffer size: {max(stated)}") == len(ROWS)
    assert "Skip retrieve spill file buffer size" not in said


def test_two_caches_of_a_session_have_one_spill_fill_buffer(
    library: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caches = Caches(library, tmp_path, SPILL_FILL, *ROWS)
    with caplog.at_level("INFO", "isthmus"):
        assert caches.run(SPILL_FILL)
    [founder, member] = [each for each in caplog.messages if "REGISTER_MULTI_CONTEXTS" in each]
    size = 2 * 4 * max(ROWS) * WIDTH
    assert founder == f"HTP context option REGISTER_MULTI_CONTEXTS = maxSpillFillBuffer {size}"
    assert member.startswith("HTP context option REGISTER_MULTI_CONTEXTS = firstGroupHandle ")
    groups = [each.rpartition(" ")[2] for each in caplog.messages if "its spill-fill buffer is that of group" in each]
    assert len(groups) == len(ROWS)
    assert len({*groups}) == 1


def test_caches_that_fit_only_with_one_spill_fill_buffer_load_with_the_option(
    library: Path, tmp_path: Path, on_chip: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    caches = Caches(library, tmp_path, SPILL_FILL, *ROWS)
    spill, own = needs(caches.binaries())
    on_chip(max(spill) + sum(own))
    assert caches.run(SPILL_FILL)
    # A cache that was made without the option states no size, so the provider makes no group of it.
    apart = tmp_path / "apart"
    apart.mkdir()
    with pytest.raises(Exception, match=NO_ROOM):
        Caches(library, apart, {}, *ROWS).run(SPILL_FILL)
    assert "[1002 COMMON_MEM_ALLOC]" in caplog.text
    assert "`isthmus fit --contexts` finds an order that fits, or what would help" in caplog.text
    caplog.clear()
    # One byte less, and the last of the group has no room either.
    on_chip(max(spill) + sum(own) - 1)
    with pytest.raises(Exception, match=NO_ROOM):
        caches.run(SPILL_FILL)
    assert f"spill-fill of the group {max(spill):,}" in caplog.text


# -- limits of I/O -----------------------------------------------------------------------------------------------------


def test_a_limit_of_reused_io_takes_the_place_of_all_io_in_the_estimate(
    library: Path, tmp_path: Path, on_chip: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """The provider sets no IO_MEM_ESTIMATION; the configuration file does."""
    mib = 1 << 20
    caches = Caches(library, tmp_path, {}, 6 * mib // (4 * WIDTH))
    [spill], [own] = needs(caches.binaries())
    on_chip(spill + own + 2 * mib, io_memory_estimation=True)
    with pytest.raises(Exception, match=NO_ROOM):
        caches.run({"htp_reused_io_limit_mb": "3"})
    assert f"I/O {3 * mib:,}" in caplog.text
    with pytest.raises(Exception, match=NO_ROOM):
        caches.run({})
    assert f"I/O {12 * mib:,}" in caplog.text
    assert caches.run({"htp_reused_io_limit_mb": "2"})


def test_a_limit_of_reused_io_without_an_estimate_of_io_says_that_it_changes_nothing(
    library: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caches = Caches(library, tmp_path, {}, *ROWS)
    with caplog.at_level("INFO", "isthmus"):
        assert caches.run({"htp_reused_io_limit_mb": "1", "soc_model": "69"})
    assert "HTP context option REUSED_IO_LIMIT = 1" in caplog.messages
    line = "HTP context option REUSED_IO_LIMIT: without effect, since IO_MEM_ESTIMATION is not set"
    assert caplog.messages.count(line) == len(ROWS)


# -- lists and files ---------------------------------------------------------------------------------------------------


SHARING = """
import logging, sys
from pathlib import Path
from capi.test_provider_memory import ROWS, TOGETHER, Caches
logging.basicConfig(level=logging.INFO, format="%(message)s")
library, folder, option = sys.argv[1:]
assert Caches(Path(library), Path(folder), {}, *ROWS).run({option: "1"}, TOGETHER)
"""


@pytest.mark.parametrize("option", ["enable_vtcm_backup_buffer_sharing", "htp_share_resource_optimization"])
def test_caches_that_share_resources_are_loaded_as_a_list_and_our_log_names_the_options(
    library: Path, tmp_path: Path, option: str
) -> None:
    """In a child: a list that is answered wrongly ends the process, and an option is logged once a process."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", SHARING, library, tmp_path, option],
        capture_output=True, text=True, timeout=240, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert any(line.startswith("HTP context option SHARE_RESOURCES = True") for line in lines)
    assert any(line.startswith("HTP context option SHARE_RESOURCES_OPTIMIZATION_TYPE = 1") for line in lines)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "File mapped weights feature is only available on Windows arm64 devices"),
        ({"disable_file_mapped_weights": "1"}, "User specified disable_file_mapped_weights: 1"),
    ],
)
def test_the_provider_says_that_it_maps_files_of_weights_on_other_systems_only(
    library: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], options: Mapping[str, str], line: str
) -> None:
    caches = Caches(library, tmp_path, {}, *ROWS)
    capfd.readouterr()
    assert caches.run(options, severity=0)
    assert line in capfd.readouterr().err
