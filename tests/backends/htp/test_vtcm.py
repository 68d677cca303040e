"""Our plan of VTCM: options decide its size, and `isthmus plan` shows what moves, as text, data and a page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import tiny

from isthmus.backends.htp.options import HtpConfig, HtpGraphConfigOption, read_config
from isthmus.backends.htp.vtcm import VtcmReport, vtcm_bytes
from isthmus.backends.seam import planned, registry
from isthmus.backends.seam.entry import PlanRequest
from isthmus.graph import DataType, Graph, TensorType
from isthmus.log import Log
from isthmus.prepare.spill_fill import spill_fill_of
from isthmus.tools.cli import main

MIB = 1 << 20
SM8750 = 69
"""A chip with 8 MB of VTCM."""


def wide_graph(name: str = "wide") -> Graph:
    """A graph with a tensor of 6 MiB that waits while another one is computed."""
    graph = Graph(name)
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 4))
    first, second = (
        graph.emit("Tile", [x], {"multiples": [1, 6 * MIB // 16]}, name=f"wide {number}")[0] for number in range(2)
    )
    sums = [
        graph.emit("ReduceSum", [each], {"axes": [1], "keep_dims": True}, name=f"sum {number}")[0]
        for number, each in enumerate((second, first))
    ]
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 1))
    graph.add_node("y", "ElementWiseAdd", sums, [y])
    graph.finalize()
    return graph


def options(config: object, name: str = "wide") -> dict:
    return read_config(config, Log()).graph_options(name)


@pytest.mark.parametrize(
    ("config", "soc", "expected"),
    [
        (None, 0, 4),
        ({"htp": {"vtcm_mb": 2}}, 0, 2),
        ({"graphs": {"graph_names": ["wide"], "vtcm_mb": 8}}, 0, 8),
        ({"graphs": {"graph_names": ["other"], "vtcm_mb": 8}}, 0, 4),
        ({"htp": {"vtcm_mb": 2}, "graphs": {"graph_names": ["wide"], "vtcm_size_in_mb": 1}}, 0, 1),
        ({"htp": {"vtcm_mb": 0}}, 0, 4),
        ({"htp": {"vtcm_mb": 0}}, SM8750, 8),
    ],
)
def test_the_size_of_vtcm_is_the_graphs_the_configurations_or_the_chips(config, soc, expected) -> None:
    assert vtcm_bytes(options(config), soc, 79) == expected * MIB


def test_a_size_in_bytes_counts_from_version_81_on() -> None:
    chosen = {**HtpConfig().graph_options("g"), HtpGraphConfigOption.VTCM_SIZE_IN_BYTES: 3 * MIB}
    assert [vtcm_bytes(chosen, 0, arch) for arch in (79, 81)] == [4 * MIB, 3 * MIB]


@pytest.mark.parametrize(("vtcm_mb", "spills"), [(2, True), (16, False)])
def test_a_plan_has_a_section_about_the_vtcm_that_is_set(vtcm_mb, spills) -> None:
    entry = registry.entry("htp")
    assert entry.prepare is not None
    graph = wide_graph()
    report = entry.prepare(graph, entry.read_config({"htp": {"vtcm_mb": vtcm_mb}}, Log()), PlanRequest())
    assert isinstance(report.section, VtcmReport)
    expected = spill_fill_of(planned.plan(graph).schedule, vtcm_mb * MIB)
    shown = report.section.to_json()
    assert {name: shown[name] for name in ("vtcm", "spill_fill", "spilled", "filled", "written", "read", "enough")} == {
        "vtcm": vtcm_mb * MIB, "spill_fill": expected.spill_fill, "spilled": expected.spilled,
        "filled": expected.filled, "written": expected.written, "read": expected.read, "enough": expected.enough,
    }  # fmt: skip
    assert (expected.spill_fill > 0) is spills
    assert bool(shown["moved"]) is spills
    assert report.section.fits
    assert not report.section.limits


def test_the_command_names_the_tensors_that_move(tmp_path, capsys) -> None:
    model = tiny.convolution(tmp_path / "conv.onnx")
    arguments = ["plan", str(model), "--backend", "htp", "--set", "htp.vtcm_mb=1"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "VTCM of 1,048,576 bytes, planned by Isthmus; the vendor's compiler plans it in another way" in text
    assert main([*arguments, "--json"]) == 0
    section = json.loads(capsys.readouterr().out)["htp"]
    assert (section["vtcm"], section["spill_fill"], section["moved"]) == (MIB, 0, [])
    assert section["traffic"] == section["lower_bound"] == section["written"] + section["read"]


def test_text_and_page_list_what_moves(tmp_path, capsys) -> None:
    model = tiny.convolution(tmp_path / "conv.onnx", 300, 300)
    page = tmp_path / "page.html"
    arguments = ["plan", str(model), "--backend", "htp", "--set", "htp.vtcm_mb=1"]
    assert main([*arguments, "--html", str(page)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert main([*arguments, "--json"]) == 0
    [first, *_] = json.loads(capsys.readouterr().out)["htp"]["moved"]
    assert any(line.split()[:2] == [f"{first['spilled']:,}", f"{first['filled']:,}"] for line in lines)
    assert "  tiles may need less: --scratch-limit 1048576" in lines
    assert "Tensors that move between VTCM and DDR memory" in page.read_text()


def test_numbers_of_a_graph_in_16_bits_are_about_half(tmp_path) -> None:
    entry = registry.entry("htp")
    assert entry.prepare is not None
    found = {
        precision: entry.prepare(
            wide_graph(), entry.read_config({"htp": {"precision": precision}}, Log()), PlanRequest()
        ).section
        for precision in ("float32", "float16")
    }
    sizes = [section.to_json()["enough"] for section in found.values() if section is not None]
    assert np.isclose(sizes[0], 2 * sizes[1], rtol=0.1)


def test_the_bench_proves_its_plans_and_none_moves_more_than_the_simple_rule() -> None:
    script = Path(__file__).parents[3] / "bench" / "vtcm.py"
    names = ["chain_c16_h96_f16", "unet_c32_h128_f16", "block_s128_d512_f16"]
    done = subprocess.run(
        [sys.executable, str(script), *names, "--vtcm", "1", "2"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()[1:-1]]
    assert [(line[0], line[2]) for line in lines] == [(name, size) for name in names for size in "12"]
    assert all(line[7] == "optimal" for line in lines)
