"""MNN and ncnn as peers of bench/networks.py, each after its own converter has read the ONNX file.

Both are runtimes for phones that also have kernels for x86. They compute float32 here, and nothing else honestly:

- float16: MNN's "low" precision gives the bits of "high" on x86, in no less time. ncnn keeps weights of some layers in
  16 bits (resnet18: those of the last layer), and values never.
- int8: MNN's converter ends with an exception for resnet18 in the QDQ form; squeezenet1_1 is converted and cannot be
  run. pnnx keeps QuantizeLinear and DequantizeLinear as operations that ncnn does not have. Each has a quantizer of its
  own, so its network would be another one.

MNN's command `mnnconvert` is not used: its module `MNN.tools` calls `pip install` when it is imported, in whatever
environment is first in PATH, and reports conversions to a server. The converter itself is the module `_tools`. pnnx's
Python package needs torch, its program does not (`pip install --no-deps pnnx`). Converters run in processes of their
own, because some networks end MNN's with a signal. Neither runtime's instructions can be limited by a variable.

ncnn's threads are OpenMP's, which spin for each other: its times mean nothing while other processes use the cores.
"""

from __future__ import annotations

import importlib
import importlib.util
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from support import oracles, zoo

SECONDS = 300
"""How long a conversion may take."""
_MNN_CONVERT = "import sys, _tools; sys.exit(not _tools.mnnconvert(['mnnconvert', *sys.argv[1:]]))"


class MNN(oracles.Oracle):
    """MNN on the CPU, told to compute in float32."""

    runtime = "MNN"

    def __init__(self, path: Path, threads: int = 1) -> None:
        self.inputs, self.outputs = _specs(path)
        with tempfile.TemporaryDirectory() as folder, oracles.silenced(1), oracles.silenced(2):
            target = Path(folder) / "network.mnn"
            # A recurrent layer as one operation: as a loop, which is the default, it ends the converter with a signal.
            files = ["--modelFile", str(path), "--MNNModel", str(target)]
            _convert([sys.executable, "-c", _MNN_CONVERT, "-f", "ONNX", *files, "--bizCode", "", "--useOriginRNNImpl"])
            self._mnn: Any = importlib.import_module("MNN")
            self._interpreter = self._mnn.Interpreter(str(target))
            settings = {"backend": "CPU", "numThread": threads, "precision": "high"}
            self._session = self._interpreter.createSession(settings)

    def reset(self) -> None:
        """The networks carry no state."""

    def prepare(self, feeds: Mapping[str, oracles.Array]) -> None:
        for name, value in feeds.items():
            # MNN has no 64-bit integers.
            given = value.astype(np.int32) if value.dtype == np.int64 else value
            self._interpreter.getSessionInput(self._session, name).copyFrom(self._tensor(given))

    def invoke(self) -> None:
        self._interpreter.runSession(self._session)

    def results(self) -> oracles.Feeds:
        found = {}
        for name, (shape, dtype) in self.outputs.items():
            target = self._tensor(np.zeros(shape, dtype))
            if not self._interpreter.getSessionOutput(self._session, name).copyToHostTensor(target):
                raise zoo.Unavailable(f"the output {name} cannot be read")
            found[name] = np.array(target.getNumpyData()).reshape(shape)
        return found

    def _tensor(self, value: oracles.Array) -> Any:
        kind = {"float32": self._mnn.Halide_Type_Float, "int32": self._mnn.Halide_Type_Int}[value.dtype.name]
        layout = self._mnn.Tensor_DimensionType_Caffe
        return self._mnn.Tensor(value.shape, kind, np.ascontiguousarray(value), layout)


class NCNN(oracles.Oracle):
    """ncnn on the CPU, told to store and compute float32."""

    runtime = "ncnn"

    def __init__(self, path: Path, threads: int = 1) -> None:
        self.inputs, self.outputs = _specs(path)
        self._ncnn: Any = importlib.import_module("ncnn")
        self._net = self._ncnn.Net()
        options = self._net.opt
        options.num_threads = threads
        options.use_vulkan_compute = options.use_bf16_storage = False
        options.use_fp16_packed = options.use_fp16_storage = options.use_fp16_arithmetic = False
        with tempfile.TemporaryDirectory() as folder, oracles.silenced(1), oracles.silenced(2):
            source, params, weights = (Path(folder) / f"network.{end}" for end in ("onnx", "ncnn.param", "ncnn.bin"))
            source.symlink_to(path.resolve())
            # The program stores weights in 16 bits unless it is told not to.
            _convert([str(_pnnx()), source.name, "fp16=0"], folder)
            if self._net.load_param(str(params)) or self._net.load_model(str(weights)):
                raise zoo.Unavailable("what pnnx made cannot be loaded: an operation is missing")
        # pnnx gives inputs and outputs other names, in the same order.
        self._inputs = dict(zip(self.inputs, self._net.input_names(), strict=True))
        self._outputs = dict(zip(self.outputs, self._net.output_names(), strict=True))

    def reset(self) -> None:
        """The networks carry no state."""

    def prepare(self, feeds: Mapping[str, oracles.Array]) -> None:
        self._bound = {}
        for name, value in feeds.items():
            # An ncnn.Mat has no batch, and integers of 32 bits.
            given = value[0] if value.ndim > 1 and value.shape[0] == 1 else value
            given = given.astype(np.int32) if given.dtype == np.int64 else given
            self._bound[self._inputs[name]] = self._ncnn.Mat(np.ascontiguousarray(given)).clone()

    def invoke(self) -> None:
        extractor = self._net.create_extractor()
        for name, value in self._bound.items():
            extractor.input(name, value)
        self._results = {name: extractor.extract(found)[1] for name, found in self._outputs.items()}

    def results(self) -> oracles.Feeds:
        # Dimensions of 1 may be missing.
        return {name: np.array(self._results[name]).reshape(shape) for name, (shape, _) in self.outputs.items()}


def found() -> dict[str, type[MNN] | type[NCNN]]:
    """Return the peers that are installed, with their converters, by name."""
    peers: dict[str, type[MNN] | type[NCNN]] = {}
    if all(importlib.util.find_spec(module) is not None for module in ("MNN", "_tools")):
        peers[MNN.runtime] = MNN
    if importlib.util.find_spec("ncnn") is not None and _pnnx() is not None:
        peers[NCNN.runtime] = NCNN
    return peers


def _pnnx() -> Path | None:
    """Return pnnx's program, found without its module, which needs torch."""
    spec = importlib.util.find_spec("pnnx")
    program = Path(spec.origin).parent / "pnnx" if spec is not None and spec.origin is not None else None
    return program if program is not None and program.is_file() else None


def _specs(path: Path) -> tuple[oracles.Specs, oracles.Specs]:
    """Return the inputs and outputs of a network in float32; refuse other kinds of numbers."""
    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    narrow = {onnx.TensorProto.FLOAT16, onnx.TensorProto.INT8, onnx.TensorProto.UINT8}
    if any(each.data_type in narrow for each in model.graph.initializer):
        raise zoo.Unavailable("only float32 networks are raced (bench/mobile_runtimes.py says why)")

    def specs(values: Any) -> oracles.Specs:
        types = [each.type.tensor_type for each in values]
        shapes = [tuple(dim.dim_value for dim in each.shape.dim) for each in types]
        dtypes = [onnx.helper.tensor_dtype_to_np_dtype(each.elem_type) for each in types]
        return {each.name: pair for each, pair in zip(values, zip(shapes, dtypes, strict=True), strict=True)}

    return specs(model.graph.input), specs(model.graph.output)


def _convert(command: list[str], folder: str | None = None) -> None:
    """Run a converter; raise `zoo.Unavailable` if it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode < 0:
        raise zoo.Unavailable(f"the converter ended with {signal.Signals(-done.returncode).name}")
    if done.returncode:
        raise zoo.Unavailable("the converter failed")
