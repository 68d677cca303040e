"""``isthmus samples``: write the small models that README and the documents use, with inputs for them.

All of them are made here, the same every time; none is trained. ONNX files need the package onnx, which reads them too,
and a model library needs a C compiler: without these they are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isthmus import qnn
from isthmus.errors import invalid_argument
from isthmus.frontends import ModelSource, load_data
from isthmus.tools.files import file_name, write_together
from isthmus.tools.messages import print_report
from isthmus.tools.options import add_shared
from isthmus.tools.sample_models import library, networks


@dataclass(frozen=True)
class Sample:
    """A file: what it is, and what makes its bytes from those of the files before it; None if that is not possible."""

    text: str
    make: Callable[[Mapping[str, bytes]], bytes | None]


def _binary(files: Mapping[str, bytes]) -> bytes:
    """Return a context binary of the camera network for HTP."""
    with qnn.Backend("libQnnHtp.so") as backend:
        context = backend.create_context()
        context.add_graph(load_data(files["camera.tflite"], ModelSource(Path("camera.tflite"))))
        return context.prepare_offline()


def _arrays(**arrays: np.ndarray) -> bytes:
    """Return the bytes of an .npz file."""
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


def _random(*shape: int) -> np.ndarray:
    """Return floats between 0 and 1, the same every time."""
    return np.random.default_rng(3).random(shape, np.float32)


def _json(content: object) -> bytes:
    return f"{json.dumps(content, indent=2)}\n".encode()


SAMPLES: Mapping[str, Sample] = {
    "model.onnx": Sample("a filter: one convolution of x [1, 3, 8, 8]", lambda files: networks.filter_onnx()),
    "text.onnx": Sample(
        "the same for images of any size: --shape x=1,3,48,320", lambda files: networks.filter_onnx("height", "width")
    ),
    "camera.onnx": Sample("ten classes of a picture, in floats", lambda files: networks.camera_onnx()),
    "camera_qdq.onnx": Sample("the same, with 8 bits (QDQ)", lambda files: networks.camera_onnx(8)),
    "camera_a16.onnx": Sample(
        "the same, with activations of 16 bits and weights of 8", lambda files: networks.camera_onnx(16)
    ),
    "camera.tflite": Sample("the same as a TFLite file, in floats", lambda files: networks.camera_tflite()),
    "model.tflite": Sample(
        "a streaming wake word model in int8, with variables", lambda files: networks.wake_word_tflite()
    ),
    "net.dlc": Sample("a DLC with two graphs, first and second", lambda files: networks.filter_dlc("first", "second")),
    "camera.bin": Sample("a context binary of camera.tflite for htp", _binary),
    "qnn_model.c": Sample("the source of a model library", lambda files: library.SOURCE.encode()),
    "libqnn_model.so": Sample(
        "the library for this machine, with a graph image", lambda files: library.compile_library()
    ),
    "in.npz": Sample("an input for text.onnx: x [1, 3, 48, 320]", lambda files: _arrays(x=_random(1, 3, 48, 320))),
    "x.raw": Sample("an input for model.onnx, in floats", lambda files: _random(1, 3, 8, 8).tobytes()),
    "input_list.txt": Sample("an input list for model.onnx", lambda files: b"x:=x.raw\n"),
    "dlc_x.raw": Sample("an input for net.dlc, in floats", lambda files: _random(1, 6, 6, 2).tobytes()),
    "dlc_list.txt": Sample("an input list for net.dlc", lambda files: b"in_x_0:=dlc_x.raw\n"),
    "problem.csv": Sample(
        "a packing problem for isthmus pack", lambda files: b"id,lower,upper,size\na,1,3,2\nb,0,2,4\nc,2,7,4\nd,4,9,5\n"
    ),
    "eaiParams.conf": Sample(
        "a configuration for lpai", lambda files: _json({"lpai_backend": {"enable_hw_ver": "v6"}})
    ),
    "eaiParams_direct.conf": Sample(
        "one for its direct mode: inputs and outputs in TCM",
        lambda files: _json({"lpai_graph": {"execute": {"mem_type": "tcm"}}}),
    ),
}
"""The files by name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    parser.add_argument("folder", type=file_name, metavar="DIR", help="where to write; created if it does not exist")
    parser.add_argument("--replace", action="store_true", help="replace files of these names that differ")
    add_shared(parser, "json")


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    folder: Path = options.folder
    files, left_out = make_all()
    unchanged = {name: content for name, content in files.items() if _same(folder / name, content)}
    for name in files:
        if name not in unchanged and (folder / name).exists() and not options.replace:
            rule, hint = "it exists already and differs", "Name another folder, or use --replace."
            raise invalid_argument(f"'{folder / name}'", rule, hint)
    write_together(folder, ((name, content) for name, content in files.items() if name not in unchanged))
    listed = [{"file": str(folder / name), "text": SAMPLES[name].text, "bytes": len(files[name])} for name in files]
    lines = [f"{each['file']:<32} {each['bytes']:>9,} bytes  {each['text']}" for each in listed]
    if left_out:
        missing = ", ".join(left_out)
        lines.append(f"left out: {missing}. ONNX files need pip install 'isthmus[onnx]', a library needs gcc.")
    print_report(options, {"files": listed, "left_out": left_out}, lines)
    return 0


def make_all() -> tuple[dict[str, bytes], list[str]]:
    """Make all samples; return their bytes by name, and the names of those that need what is missing here."""
    has_onnx = importlib.util.find_spec("onnx") is not None
    files: dict[str, bytes] = {}
    for name, sample in SAMPLES.items():
        content = sample.make(files) if has_onnx or not name.endswith(".onnx") else None
        if content is not None:
            files[name] = content
    return files, [name for name in SAMPLES if name not in files]


def _same(path: Path, content: bytes) -> bool:
    """Return whether a file exists and has this content."""
    with suppress(OSError):
        return path.stat().st_size == len(content) and path.read_bytes() == content
    return False
