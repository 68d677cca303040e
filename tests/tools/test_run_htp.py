"""``isthmus run --backend htp`` shares inputs and outputs or copies them, as it is told, and says what it did."""

import json

import pytest
from support import tiny

from isthmus.tools.cli import main


@pytest.mark.parametrize("io", ["memhandle", "raw"])
def test_what_is_copied_depends_on_the_kind_of_memory(tmp_path, capsys, io) -> None:
    model = tiny.convolution(tmp_path / "conv.onnx")
    assert main(["run", str(model), "--backend", "htp", "--io", io, "--repeat", "3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["backend"] == "htp"
    assert report["backend_copied_bytes"] == (3 * report["io_bytes"] if io == "raw" else 0)
    assert (report["staging_bytes"] > 0) == (io == "raw")


def test_a_backend_without_shared_memory_refuses_memory_handles(tmp_path, capsys) -> None:
    model = tiny.convolution(tmp_path / "conv.onnx")
    assert main(["run", str(model), "--io", "memhandle"]) == 2
    assert "backend 'cpu' has 'raw'" in capsys.readouterr().err
