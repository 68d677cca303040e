"""The reference runtimes, behind one interface: LiteRT, ONNX Runtime and OpenVINO.

Tests ask them for the right answer (`run`), benchmarks for their best time (`prepare` once, then `invoke`,
which copies nothing in Python). Tensors carry the model file's own names.

Every ONNX Runtime session of the tests is opened here, by `onnx_session`, with 8-bit products that are exact on every
processor. ONNX Runtime's default is not: without VNNI, its x86 kernels add pairs of u8 x s8 products in 16 bits, which
saturates. Benchmarks race against that default (`exact=False`).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from support import zoo

Array = npt.NDArray[Any]
Feeds = dict[str, Array]
Specs = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
Shapes = Mapping[str, tuple[int, ...]]


class Inexact(Exception):
    """ONNX Runtime has no exact arithmetic for a model on every processor."""


def onnx_session(
    model: Path | str | bytes, options: Any = None, *, threads: int = 1, fuse: bool = True, exact: bool = True
) -> Any:
    """Open a model in ONNX Runtime; on its CPU provider unless `options` name another one.

    Parameters
    ----------
    model
        A file, or the bytes of one.
    options
        `SessionOptions` with providers or a log level of their own.
    threads
        Threads inside an operation.
    fuse
        Whether operations between DequantizeLinear and QuantizeLinear are computed in integers, not in floats.
    exact
        Whether 8-bit products are exact; if not, ONNX Runtime computes as it does by default on this processor.

    Raises
    ------
    Inexact
        If they are to be exact and cannot be.
    """
    onnxruntime: Any = importlib.import_module("onnxruntime")
    settings = {}
    if options is None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        settings["providers"] = ["CPUExecutionProvider"]
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    source = str(model) if isinstance(model, Path) else model
    products = _types_of_products(source) if exact else set()
    if any(left != "int8" and right == "int8" and not constant for left, right, constant in products):
        raise Inexact("products of u8 and s8 are exact on every processor only if the s8 operand is a constant")
    # With the option ONNX Runtime has no kernels for QLinear nodes of s8 by s8, which are exact without it.
    signed = {left for left, _, _ in products} == {"int8"}
    # Optimizations stay on: one of them makes products exact.
    options.add_session_config_entry("session.disable_quant_qdq", "0" if fuse else "1")
    options.add_session_config_entry("session.x64quantprecision", "1" if exact and not signed else "0")
    return onnxruntime.InferenceSession(source, options, **settings)


def onnx_answers(model: Path | str | bytes, feeds: Mapping[str, Array], *, fuse: bool = True) -> Feeds:
    """Ask ONNX Runtime for the outputs of a model, by name."""
    session = onnx_session(model, fuse=fuse)
    names = [output.name for output in session.get_outputs()]
    arrays = {name: np.asarray(value) for name, value in feeds.items()}
    return dict(zip(names, session.run(names, arrays), strict=True))


def onnx_optimized(model: Path, target: Path) -> None:
    """Save a model as ONNX Runtime's extended optimizations leave it, which fuse operators into its own."""
    onnxruntime: Any = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(target)
    onnx_session(model, options)


def _types_of_products(model: str | bytes) -> set[tuple[str, str, bool]]:
    """Find the integer products of a model: the types of both operands, and whether the second one is a constant."""
    import onnx

    read = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model, load_external_data=False)
    graph = read.graph
    constants = {constant.name: constant.data_type for constant in graph.initializer}
    types = constants | {value.name: value.type.tensor_type.elem_type for value in graph.input}
    names = {onnx.TensorProto.UINT8: "uint8", onnx.TensorProto.INT8: "int8"}
    found = set()
    for node in graph.node:
        if node.op_type in ("QLinearConv", "QLinearMatMul", "QGemm"):
            second, typed = node.input[3], (node.input[2], node.input[5])  # zero points have their operands' types
        elif node.op_type in ("ConvInteger", "MatMulInteger"):
            second, typed = node.input[1], (node.input[0], node.input[1])
        else:
            continue
        left, right = (names.get(types.get(name, 0), "unknown") for name in typed)
        found.add((left, right, second in constants))
    return found


class Oracle(ABC):
    """One model loaded in one runtime."""

    runtime: str
    inputs: Specs
    outputs: Specs

    def run(self, feeds: Mapping[str, Array]) -> Feeds:
        """Copies of the outputs for these inputs."""
        self.prepare(feeds)
        self.invoke()
        return self.results()

    @abstractmethod
    def prepare(self, feeds: Mapping[str, Array]) -> None:
        """Hand the inputs over once, so that `invoke` is the runtime's work alone."""

    @abstractmethod
    def invoke(self) -> None:
        """One inference on the prepared inputs."""

    @abstractmethod
    def results(self) -> Feeds:
        """Copies of the outputs of the last inference."""

    @abstractmethod
    def reset(self) -> None:
        """Forget the state carried from earlier inferences."""


class LiteRT(Oracle):
    """LiteRT on its default path, which is XNNPACK."""

    runtime = "LiteRT"

    def __init__(self, path: Path, threads: int = 1, shapes: Shapes | None = None) -> None:
        self._path, self._threads, self._shapes = path, threads, dict(shapes or {})
        self.reset()

    def reset(self) -> None:
        # Resource variables are set up by CALL_ONCE, which runs once in the life of an interpreter.
        litert: Any = importlib.import_module("ai_edge_litert.interpreter")
        with silenced():
            interpreter = litert.Interpreter(str(self._path), num_threads=self._threads)
            for detail in interpreter.get_input_details():
                if detail["name"] in self._shapes:
                    interpreter.resize_tensor_input(detail["index"], self._shapes[detail["name"]])
            interpreter.allocate_tensors()
        self._interpreter = interpreter
        self._input_index = {d["name"]: d["index"] for d in interpreter.get_input_details()}
        self._output_index = {d["name"]: d["index"] for d in interpreter.get_output_details()}
        self.inputs = _litert_specs(interpreter.get_input_details())
        self.outputs = _litert_specs(interpreter.get_output_details())

    def prepare(self, feeds: Mapping[str, Array]) -> None:
        for name, value in feeds.items():
            self._interpreter.set_tensor(self._input_index[name], value)

    def invoke(self) -> None:
        self._interpreter.invoke()

    def results(self) -> Feeds:
        return {name: self._interpreter.get_tensor(index) for name, index in self._output_index.items()}


class OnnxRuntime(Oracle):
    """ONNX Runtime's CPU provider with all its optimisations, dynamic dimensions fixed as for everyone."""

    runtime = "ONNX Runtime"

    def __init__(self, path: Path, threads: int = 1, shapes: Shapes | None = None, exact: bool = True) -> None:
        onnxruntime: Any = importlib.import_module("onnxruntime")
        try:
            source = _with_fixed_shapes(path, shapes) if shapes else path
            self._session = onnx_session(source, threads=threads, exact=exact)
        except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
            # Shape inference also visits branches that never run, and there the shapes may make no sense.
            self._session = onnx_session(path, threads=threads, exact=exact)
        fixed = dict(shapes or {})
        self.inputs = {
            spec.name: (fixed.get(spec.name) or _positive(spec.shape), _onnx_dtype(spec.type))
            for spec in self._session.get_inputs()
        }
        # The shape of an output is known for sure only after a first run.
        zeros = {name: np.zeros(shape, dtype) for name, (shape, dtype) in self.inputs.items()}
        if "sr" in zeros:
            zeros["sr"][...] = 16000  # the audio models accept no other value than a sample rate
        names = [spec.name for spec in self._session.get_outputs()]
        first = dict(zip(names, self._session.run(names, zeros), strict=True))
        self.outputs = {name: (value.shape, value.dtype) for name, value in first.items()}
        self._results: Feeds = first

    def reset(self) -> None:
        """ONNX models carry their state through inputs and outputs."""

    def prepare(self, feeds: Mapping[str, Array]) -> None:
        self._binding = self._session.io_binding()
        self._bound = {name: np.ascontiguousarray(value) for name, value in feeds.items()}
        self._results = {name: np.empty(shape, dtype) for name, (shape, dtype) in self.outputs.items()}
        for name, value in self._bound.items():
            self._binding.bind_cpu_input(name, value)
        for name, value in self._results.items():
            self._binding.bind_output(name, "cpu", 0, value.dtype, value.shape, value.ctypes.data)

    def invoke(self) -> None:
        self._session.run_with_iobinding(self._binding)

    def results(self) -> Feeds:
        return {name: value.copy() for name, value in self._results.items()}


class OpenVINO(Oracle):
    """OpenVINO's CPU plugin, told to favour latency and to compute float models in float32."""

    runtime = "OpenVINO"

    def __init__(self, path: Path, threads: int = 1, shapes: Shapes | None = None) -> None:
        openvino: Any = importlib.import_module("openvino")
        core = openvino.Core()
        model = core.read_model(str(path))
        if shapes:
            model.reshape({name: list(shape) for name, shape in shapes.items()})
        # bfloat16 is the plugin's default on CPUs that have it, and far outside the tolerance asked of us.
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
        }
        compiled = core.compile_model(model, "CPU", settings)
        self._request = compiled.create_infer_request()
        self._tensor = openvino.Tensor
        self._input_index = {name: i for i, port in enumerate(compiled.inputs) for name in port.names}
        self._output_index = {name: i for i, port in enumerate(compiled.outputs) for name in port.names}
        self.inputs = {name: _openvino_spec(compiled.inputs[i]) for name, i in self._input_index.items()}
        self.outputs = {name: _openvino_spec(compiled.outputs[i]) for name, i in self._output_index.items()}

    def reset(self) -> None:
        self._request.reset_state()

    def prepare(self, feeds: Mapping[str, Array]) -> None:
        self._bound = {name: np.ascontiguousarray(value) for name, value in feeds.items()}
        for name, value in self._bound.items():
            tensor = self._tensor(value, shared_memory=value.ndim > 0)
            self._request.set_input_tensor(self._input_index[name], tensor)

    def invoke(self) -> None:
        # The synchronous call: `start_async` and `wait` hand the work to another thread, which costs more
        # than this call's Python wrapping on every model here.
        self._request.infer(share_outputs=True)

    def results(self) -> Feeds:
        return {name: self._request.get_output_tensor(i).data.copy() for name, i in self._output_index.items()}


def reference(model: zoo.Model) -> Oracle:
    """Load a model in the runtime that says what is right for its format; `zoo.Unavailable` if that is missing."""
    runtime, module = PEERS[model.kind]
    _require(module)
    return runtime(zoo.path(model.key), shapes=model.shapes)


def peer(model: zoo.Model, threads: int) -> Oracle:
    """Load a model in the same runtime as `reference`, as its users run it: with its default arithmetic."""
    runtime, module = PEERS[model.kind]
    _require(module)
    defaults = {"exact": False} if runtime is OnnxRuntime else {}
    return runtime(zoo.path(model.key), threads, model.shapes, **defaults)


def openvino(model: zoo.Model, threads: int = 1) -> Oracle:
    """The model in OpenVINO; `zoo.Unavailable` where that is not installed or refuses the model."""
    _require("openvino")
    try:
        return OpenVINO(zoo.path(model.key), threads, model.shapes)
    except RuntimeError as failure:
        lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
        raise zoo.Unavailable(f"OpenVINO refuses {model.key}: {lines[-1]}") from None


PEERS: dict[str, tuple[type[LiteRT] | type[OnnxRuntime], str]] = {
    "tflite": (LiteRT, "ai_edge_litert"),
    "onnx": (OnnxRuntime, "onnxruntime"),
}


def _require(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise zoo.Unavailable(f"the Python module `{module}` is not installed")


def _litert_specs(details: list[dict[str, Any]]) -> Specs:
    return {d["name"]: (tuple(int(n) for n in d["shape"]), np.dtype(d["dtype"])) for d in details}


def _openvino_spec(port: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    return tuple(int(n) for n in port.shape), np.dtype(port.element_type.to_dtype())


def _onnx_dtype(text: str) -> np.dtype[Any]:
    """numpy's type for ONNX Runtime's way to write it, `tensor(float)`."""
    name = text.removeprefix("tensor(").removesuffix(")")
    return np.dtype({"float": "float32", "double": "float64"}.get(name, name))


def _positive(shape: list[int | str | None]) -> tuple[int, ...]:
    return tuple(n if isinstance(n, int) and n > 0 else 1 for n in shape)


def _with_fixed_shapes(path: Path, shapes: Shapes) -> bytes:
    """The model with the shapes written into its inputs: ONNX Runtime can then fold what depends on them."""
    import onnx

    model = onnx.load(path)
    for value in model.graph.input:
        if value.name in shapes:
            dims = value.type.tensor_type.shape.dim
            for dim, size in zip(dims, shapes[value.name], strict=True):
                dim.dim_value = size
    del model.graph.value_info[:]  # stale: written for the dynamic shapes
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return bytes(model.SerializeToString())


@contextlib.contextmanager
def silenced(descriptor: int = 2) -> Iterator[None]:
    """Hide what libraries print to standard error (2) or output (1): LiteRT reports each delegate that it creates."""
    saved = os.dup(descriptor)
    with open(os.devnull, "wb") as sink:
        os.dup2(sink.fileno(), descriptor)
    try:
        yield
    finally:
        os.dup2(saved, descriptor)
        os.close(saved)
