"""Real models in the types of NPUs, made by ONNX Runtime's own tools, and the APIs by which they can be run.

``python tests/capi/typed_models.py [MODEL...]`` prints a table: for each model and form, how far the answer of each API
is from that of ``isthmus run`` on the cpu backend, as a part of the largest number of an output.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support import oracles, stimuli
from support.oracles import Feeds

import isthmus
from capi import ort_provider, ort_quantizer
from isthmus.capi import install
from isthmus.errors import QnnError
from isthmus.frontends import load
from isthmus.graph import DataType
from isthmus.tools.cli import main
from isthmus.tools.raw_files import clean_name

KEYS = (
    "kws_fp32", "mixed_ops", "silero_vad_16k", "silero_vad_op18_ifless", "nsnet2", "nsnet2_48k", "minilm_l3",
    "ppocr_cls", "ppocr_det", "ppocr_rec",
)  # fmt: skip
QUANTIZED = {"a16w8": ("QUInt16", "QUInt8"), "a8w4": ("QUInt8", "QInt4"), "a16w4": ("QUInt16", "QInt4")}
"""Forms, with the types of activations and weights as ONNX Runtime's tools call them."""
FORMS = ("float16", *QUANTIZED)
BACKENDS = ("cpu", "htp", "lpai")


@dataclass(frozen=True)
class TypedModel:
    """A model file and an input for it."""

    path: Path
    feeds: Feeds


def typed_model(key: str, form: str, folder: Path) -> TypedModel:
    """Make a model in a form. Raises `zoo.Unavailable` if the model is not on this machine."""
    feeds = stimuli.stimuli(key)[0]
    path = folder / f"{key}_{form}.onnx"
    if form == "float16":
        _float16(ort_provider.fixed(key, folder), path)
        feeds = {n: v.astype(np.float16) if v.dtype == np.float32 else v for n, v in feeds.items()}
    else:
        # The tools have a scale for each channel of 4-bit weights; with one, little of a model remains.
        made = ort_quantizer.quantized(key, folder, *QUANTIZED[form], per_channel=form.endswith("w4"))
        made.rename(path)
    return TypedModel(path, {tensor.name: feeds[tensor.name] for tensor in load(path).inputs})


def _float16(source: Path, target: Path) -> None:
    """Convert a model to 16-bit floats, its inputs and outputs included."""
    import onnx
    from onnxruntime.transformers import float16

    with warnings.catch_warnings(action="ignore"):
        onnx.save(float16.convert_float_to_float16(onnx.load(source)), target)


def plain_convolutions(backend: str, folder: Path) -> list[str]:
    """The file of a configuration without Winograd's algorithm, which only the CPU has: its floats have other bits."""
    if backend != "cpu":
        return []
    own, extensions = folder / "cpu.json", folder / "extensions.json"
    own.write_text('{"cpu": {"winograd": false}}')
    extensions.write_text(f'{{"backend_extensions": {{"config_file_path": "{own}"}}}}')
    return [str(own), str(extensions)]


def by_run(model: TypedModel, backend: str, folder: Path) -> Feeds:
    """The answer of ``isthmus run``."""
    given, results = folder / "inputs.npz", folder / f"{backend}.npz"
    np.savez(given, **model.feeds)
    command = ["run", str(model.path), "--backend", backend, "--inputs", str(given), "--outputs", str(results)]
    for file in plain_convolutions(backend, folder)[:1]:
        command += ["--config", file]
    assert main([*command, "--json"]) == 0
    with np.load(results) as arrays:
        return dict(arrays)


def by_binary(model: TypedModel, backend: str, folder: Path) -> Feeds:
    """The answer of net-run on a binary of the generator."""
    for name, value in model.feeds.items():
        value.tofile(folder / f"{clean_name(name)}.raw")
    listed = folder / "list.txt"
    listed.write_text(" ".join(f"{name}:={folder / clean_name(name)}.raw" for name in model.feeds) + "\n")
    output = folder / f"output_{backend}"
    common = ["--backend", f"libQnn{backend.capitalize()}.so", "--output_dir", str(output)]
    generator = ["context-binary-generator", "--model", str(model.path), "--binary_file", "model", *common]
    for file in plain_convolutions(backend, folder)[1:]:
        generator += ["--config_file", file]
    assert main(generator) == 0
    binary = ["--retrieve_context", str(output / "model.bin"), "--input_list", str(listed)]
    assert main(["net-run", *binary, *common, "--use_native_input_files", "--use_native_output_files"]) == 0
    found = {}
    for tensor in load(model.path).outputs:
        ending = "" if tensor.dtype is DataType.FLOAT_32 else "_native"
        file = output / "Result_0" / f"{clean_name(tensor.name)}{ending}.raw"
        found[tensor.name] = np.fromfile(file, tensor.dtype.numpy).reshape(tensor.dims)
    return found


def assert_one_answer(model: TypedModel, folder: Path) -> Feeds:
    """Check that ``isthmus run`` and net-run give the same bits on every backend; return them."""
    expected = by_run(model, "cpu", folder)
    for backend in BACKENDS:
        for api in (by_run, by_binary):
            found = api(model, backend, folder)
            for name, value in expected.items():
                np.testing.assert_array_equal(found[name], value, err_msg=f"{name}: {api.__name__} on {backend}")
    return expected


def by_provider(model: TypedModel, library: Path) -> tuple[Feeds, float]:
    """The answer of ONNX Runtime's provider on a library, and the part of the nodes that it took."""
    session = ort_provider.session(model.path, library)
    mine, total = ort_provider.assigned(session)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, model.feeds), strict=True)), mine / total


def layers(model: TypedModel, folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray, float]]:
    """Return what each layer of a quantized model computes here and in ONNX Runtime, from the input that it has here.

    A layer is what computes a quantized activation from others. Returns, for each by name, both results and the scale.
    """
    import onnx

    proto = onnx.load(model.path)
    graph = proto.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    activations = {
        node.output[0]: float(onnx.numpy_helper.to_array(constants[node.input[1]]).max())
        for node in graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] not in constants and node.input[1] in constants
    }
    known = {value.name for value in graph.output}
    floats = onnx.TensorProto.FLOAT
    graph.output.extend(
        onnx.helper.make_tensor_value_info(name, floats, None) for name in activations if name not in known
    )
    onnx.save(proto, folder / "open.onnx")
    with isthmus.Session(folder / "open.onnx") as session:
        here = {name: value.copy() for name, value in session.run(model.feeds).items()}
    # Every reader of an activation reads an input of the model instead.
    del graph.value_info[:]
    given = {}
    for node in graph.node:
        for at, name in enumerate(node.input):
            if name in activations:
                node.input[at] = f"{name}/given"
                given[f"{name}/given"] = here[name]
    graph.input.extend(onnx.helper.make_tensor_value_info(n, floats, v.shape) for n, v in given.items())
    onnx.save(proto, folder / "cut.onnx")
    there = oracles.onnx_answers(folder / "cut.onnx", {**model.feeds, **given}, fuse=False)
    return {name: (here[name], there[name], scale) for name, scale in activations.items()}


def off(found: Feeds, expected: Feeds) -> float:
    """The largest difference between two answers, as a part of the largest number of each output."""
    return max(
        float(np.abs(found[name].astype(np.float64) - value).max() / max(float(np.abs(value).max()), 1e-3))
        for name, value in expected.items()
    )


def _line(key: str, form: str, libraries: Path) -> str:
    """A row of the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = typed_model(key, form, folder)
        with contextlib.redirect_stdout(io.StringIO()):
            expected = by_run(model, "cpu", folder)
        apis: dict[str, Callable[[], Feeds]] = {
            "run htp": lambda: by_run(model, "htp", folder),
            "run lpai": lambda: by_run(model, "lpai", folder),
            **{f"net-run {b}": lambda b=b: by_binary(model, b, folder) for b in BACKENDS},
            "provider": lambda: by_provider(model, libraries / "libQnnHtp.so")[0],
        }
        cells: list[Any] = []
        for api in apis.values():
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    answer = api()
                same = all(answer[n].tobytes() == value.tobytes() for n, value in expected.items())
                cells.append("same bits" if same else f"{off(answer, expected):.1e}")
            except (QnnError, AssertionError) as problem:
                cells.append(f"refused: {problem}")
    return f"| {key} | {form} | {' | '.join(cells)} |"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        install(Path(place))
        titles = ("model", "form", "run htp", "run lpai", *(f"net-run {b}" for b in BACKENDS), "provider")
        print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}", flush=True)
        for asked in sys.argv[1:] or KEYS:
            for chosen in FORMS:
                print(_line(asked, chosen, Path(place)), flush=True)
