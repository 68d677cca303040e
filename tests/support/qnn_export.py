"""What ONNX Runtime's QNN provider makes of an ONNX model: a DLC, by QNN's own libQnnIr.so, or a Saver recording.

As a program, ``python qnn_export.py dlc|saver MODEL.onnx FOLDER``: the provider is registered for a whole process.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from support import oracles

SECONDS = 120
PROVIDER = "QNNExecutionProvider"


def library(name: str) -> Path:
    """A library of QNN's as the provider's package ships it; skips the test where that is not installed."""
    spec = importlib.util.find_spec("onnxruntime_qnn")
    path = None if spec is None or spec.origin is None else Path(spec.origin).parent / f"lib{name}.so"
    if path is None or not path.exists():
        pytest.skip(f"the package onnxruntime-qnn with lib{name}.so is not installed")
    return path


def export_dlc(model: Path, folder: Path) -> list[Path]:
    """The DLCs of a model, one for each part that the provider took, in order."""
    library("QnnIr")
    _run("dlc", model, folder)
    return sorted(folder.glob("*.dlc"), key=lambda path: path.stem.split("_")[-2:])


def export_saver(model: Path, folder: Path, libraries: Path | None = None) -> Path:
    """The folder with ``saver_output.c`` and ``params.bin`` of a model, by QNN's Saver or one in a folder."""
    library("QnnSaver")
    _run("saver", model, folder, libraries)
    return folder / "saver_output"


def _run(kind: str, model: Path, folder: Path, libraries: Path | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, kind, str(model), str(folder), *([] if libraries is None else [libraries])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]


def with_static_shapes(model: Path, shapes: Mapping[str, Sequence[int]], out: Path) -> Path:
    """A copy of an ONNX file with static shapes throughout, which is all that the provider takes."""
    import onnx

    read = onnx.load(model)
    for value in read.graph.input:
        if value.name in shapes:
            value.type.tensor_type.shape.ClearField("dim")
            for size in shapes[value.name]:
                value.type.tensor_type.shape.dim.add().dim_value = size
    read.graph.ClearField("value_info")
    for value in read.graph.output:
        value.type.tensor_type.ClearField("shape")
    onnx.save(onnx.shape_inference.infer_shapes(read), out)
    return out


def _main(kind: str, model: str, folder: str, other: str = "") -> None:
    import onnxruntime
    import onnxruntime_qnn

    libraries = Path(other) if other else Path(onnxruntime_qnn.get_library_path()).parent
    options = {
        "dlc": {
            "backend_path": str(libraries / "libQnnIr.so"),
            "qnn_ir_backend_path": str(libraries / "libQnnIr.so"),
            "dump_qnn_ir_dlc": "1",
            "dump_qnn_ir_dlc_dir": folder,
        },
        "saver": {"backend_path": str(libraries / "libQnnHtp.so"), "qnn_saver_path": str(libraries / "libQnnSaver.so")},
    }[kind]
    os.chdir(folder)  # the Saver writes into the working folder
    onnxruntime.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
    device = next(device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    settings.add_provider_for_devices([device], options)
    oracles.onnx_session(model, settings)


if __name__ == "__main__":
    _main(*sys.argv[1:])
