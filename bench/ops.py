"""Single float32 operations beside ONNX Runtime and LiteRT: same numbers in, same numbers out, measured interleaved.

``python bench/ops.py [NAME...] [--threads N] [--rounds N]``. Times are microseconds, median and least of the rounds;
ONNX Runtime gets its own NCHW layout, LiteRT and we NHWC.

Products and dense convolutions also show their part of the FMA peak: the multiplications and additions of the plain
algorithm in our least time, divided by those that all threads' cores do in registers alone (`fma_peak.c`, with vectors
as wide as the target's, in the same race). Winograd's algorithm does fewer, so its part may be above 100 %.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import onnx
import onnxruntime
from ai_edge_litert import schema_py_generated as tfl
from ai_edge_litert.interpreter import Interpreter
from onnx import TensorProto, helper, numpy_helper

from isthmus.engine.native.executor import Executor
from isthmus.engine.native.lowering import convolution, matmul, recurrent
from isthmus.engine.native.lowering.emitter import Emitter
from isthmus.engine.native.program import Program
from isthmus.engine.native.target import host
from isthmus.graph import DataType, Tensor, TensorInfo, TensorType
from isthmus.graph.operation import Call
from isthmus.graph.ops import OPERATIONS
from isthmus.memory import host as host_memory
from isthmus.prepare.schedule import Place, Pool, Step

_SLICE_SECONDS = 0.02
_LOWERINGS = {**convolution.LOWERINGS, **matmul.LOWERINGS, **recurrent.LOWERINGS}
_generator = np.random.default_rng(0)


def _random(*dims: int) -> np.ndarray:
    return _generator.standard_normal(dims).astype(np.float32)


@dataclass(frozen=True)
class Convolution:
    """A convolution with "same" padding and Relu."""

    height: int
    width: int
    channels: int
    filters: int
    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    depth_wise: bool = False
    groups: int = 1

    @property
    def out(self) -> tuple[int, int]:
        """Output height and width."""
        return -(-self.height // self.stride[0]), -(-self.width // self.stride[1])

    @property
    def operations(self) -> int:
        """Multiplications and additions of the plain algorithm; 0 if it is depth-wise, where reading takes longer."""
        height, width = self.out
        dense = height * width * self.filters * self.kernel[0] * self.kernel[1] * self.channels // self.groups
        return 0 if self.depth_wise else 2 * dense

    @property
    def pads(self) -> list[list[int]]:
        """Zeros before and after, for each axis."""
        result = []
        for size, out, kernel, stride in zip(
            (self.height, self.width), self.out, self.kernel, self.stride, strict=True
        ):
            total = max((out - 1) * stride + kernel - size, 0)
            result.append([total // 2, total - total // 2])
        return result


@dataclass(frozen=True)
class Product:
    """A matrix product; a constant right matrix unless `dynamic`, several when `batch` is above 1."""

    rows: int
    depth: int
    columns: int
    batch: int = 1
    dynamic: bool = False
    transposed: bool = False

    @property
    def operations(self) -> int:
        """Multiplications and additions; 0 for a single row, whose time is that of reading the matrix."""
        return 2 * self.batch * self.rows * self.depth * self.columns if self.rows > 1 else 0


@dataclass(frozen=True)
class Recurrent:
    """A Gru or Lstm over a sequence."""

    op: str
    steps: int
    inputs: int
    units: int


_POINT = (1, 1)
CASES: dict[str, Convolution | Product | Recurrent] = {
    "pw56_24_144": Convolution(56, 56, 24, 144, _POINT),
    "pw56_144_24": Convolution(56, 56, 144, 24, _POINT),
    "pw14_96_576": Convolution(14, 14, 96, 576, _POINT),
    "pw7_160_960": Convolution(7, 7, 160, 960, _POINT),
    "pw112_32_16": Convolution(112, 112, 32, 16, _POINT),
    "dw112_32": Convolution(112, 112, 32, 32, depth_wise=True),
    "dw56_144": Convolution(56, 56, 144, 144, depth_wise=True),
    "dw56_144_s2": Convolution(56, 56, 144, 144, stride=(2, 2), depth_wise=True),
    "dw14_576": Convolution(14, 14, 576, 576, depth_wise=True),
    "dw7_960": Convolution(7, 7, 960, 960, depth_wise=True),
    "dw5_28_40": Convolution(28, 28, 240, 240, (5, 5), depth_wise=True),
    "c3s2_224_3_32": Convolution(224, 224, 3, 32, stride=(2, 2)),
    "c3_28_128": Convolution(28, 28, 128, 128),
    "c3_56_64": Convolution(56, 56, 64, 64),
    "c3_14_256": Convolution(14, 14, 256, 256),
    "c3_7_512": Convolution(7, 7, 512, 512),
    "pw56_64_256": Convolution(56, 56, 64, 256, _POINT),
    "pw28_128_512": Convolution(28, 28, 128, 512, _POINT),
    "pw14_256_1024": Convolution(14, 14, 256, 1024, _POINT),
    "pw7_512_2048": Convolution(7, 7, 512, 2048, _POINT),
    "g28_104_8": Convolution(28, 28, 104, 104, groups=13),
    "g14_208_8": Convolution(14, 14, 208, 208, groups=26),
    "c3s2_48_320_3_8": Convolution(48, 320, 3, 8, stride=(2, 2)),
    "pw24_160_8_16": Convolution(24, 160, 8, 16, _POINT),
    "dw24_160_16": Convolution(24, 160, 16, 16, stride=(2, 1), depth_wise=True),
    "pw3_160_96_96": Convolution(3, 80, 96, 96, _POINT),
    "c1d_4_128_64": Convolution(1, 4, 129, 128, (1, 3)),
    "fc1280_1000": Product(1, 1280, 1000),
    "fc128_128": Product(1, 128, 128),
    "mm64_384_384": Product(64, 384, 384),
    "mm64_384_1536": Product(64, 384, 1536),
    "mm64_1536_384": Product(64, 1536, 384),
    "mm512": Product(512, 512, 512),
    "mm197_3072_768": Product(197, 3072, 768),
    "attention_qk": Product(64, 32, 64, 12, True, True),
    "attention_pv": Product(64, 64, 32, 12, True),
    "gru400": Recurrent("Gru", 100, 400, 400),
    "lstm128": Recurrent("Lstm", 1, 128, 128),
    "lstm128x50": Recurrent("Lstm", 50, 128, 128),
}


class Ours:
    """One operation lowered, compiled and bound to memory."""

    def __init__(
        self, op: str, inputs: list[np.ndarray], constants: dict[int, np.ndarray], params: dict[str, Any],
        threads: int, clamp: tuple[float, float] | None = None,
    ) -> None:  # fmt: skip
        count = max([len(inputs) - 1, *constants]) + 1
        tensors: list[Tensor | None] = [None] * count
        for i, array in enumerate(inputs):
            tensors[i] = Tensor(f"in{i}", TensorType.APP_WRITE, DataType.FLOAT_32, array.shape)
        for i, array in constants.items():
            tensors[i] = Tensor(f"in{i}", TensorType.STATIC, DataType.FLOAT_32, array.shape, data=array)
        operation, target = OPERATIONS[op], host()
        complete = operation.complete(op, params)
        dims = operation.rule(Call(op, op, tensors, complete, None))[0]
        out = Tensor("out", TensorType.APP_READ, DataType.FLOAT_32, dims)
        step = Step(op, op, tensors, [out], complete, clamp)
        moving = [t for t in tensors if t is not None and not t.is_static]
        places = {t: Place(Pool.IO + i, 0) for i, t in enumerate([*moving, out])}
        emitter = Emitter(target, threads, places)
        emitter.begin(step, 0)
        lowering = _LOWERINGS[op]
        lowering.emit(step, emitter)
        infos = [TensorInfo(t.name, t.dtype, t.dims, None, t.nbytes) for t in [*moving, out]]
        program = Program(
            op, target.name, threads, tuple(emitter.kernels), np.array(emitter.table, np.int64).reshape(-1, 3),
            np.array(emitter.words, np.int64), tuple(emitter.labels), emitter.constants(), tuple(infos[:-1]),
            (infos[-1],), (), (), np.zeros(0, np.uint8), lowering.work(step, target, threads), 64,
        )  # fmt: skip
        self._buffers = [host_memory(max(64, i.nbytes), 64) for i in infos]
        self._scratch, self._state = host_memory(max(64, program.scratch_bytes), 64), host_memory(64, 64)
        for buffer, array in zip(self._buffers, inputs, strict=False):
            buffer.array[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        windows = [buffer.window() for buffer in self._buffers]
        self._executor = Executor(program, self._scratch.window(), self._state.window(), windows)
        self.run = self._executor.run
        self.run()
        self.result = self._buffers[-1].array[: out.nbytes].view(np.float32).reshape(out.dims)


def _ours(case: Any, data: list[np.ndarray], threads: int) -> Ours:
    if isinstance(case, Convolution):
        params = {"stride": list(case.stride), "pad_amount": case.pads}
        if case.groups > 1:
            params["group"] = case.groups
        op = "DepthWiseConv2d" if case.depth_wise else "Conv2d"
        return Ours(op, data[:1], {1: data[1], 2: data[2]}, params, threads, (0.0, np.inf))
    if isinstance(case, Product):
        if case.dynamic:
            return Ours("MatMul", data[:2], {}, {"transpose_in1": case.transposed}, threads)
        return Ours("MatMul", data[:1], {1: data[1], 2: data[2]}, {}, threads)
    units = case.units
    weights, recurrent, bias = (np.split(d, 3 if case.op == "Gru" else 4) for d in data[1:4])
    if case.op == "Gru":
        constants = dict(zip(range(1, 10), (*weights, *recurrent, *bias), strict=True))
        return Ours("Gru", data[:1], constants, {"linear_before_reset": 1}, threads)
    # ONNX orders the gates input, output, forget, cell.
    constants = {
        **dict(zip((16, 3, 1, 2), weights, strict=True)),
        **dict(zip((17, 6, 4, 5), recurrent, strict=True)),
        **dict(zip((21, 9, 7, 8), bias, strict=True)),
        10: np.zeros((1, units), np.float32),
        11: np.zeros((1, units), np.float32),
    }
    return Ours("Lstm", data[:1], constants, {}, threads)


def _data(case: Any) -> list[np.ndarray]:
    if isinstance(case, Convolution):
        depth = 1 if case.depth_wise else case.channels // case.groups
        weights = _random(*case.kernel, depth, case.filters) / np.float32(np.sqrt(depth * np.prod(case.kernel)))
        return [_random(1, case.height, case.width, case.channels), weights, _random(case.filters)]
    if isinstance(case, Product):
        outer = (case.batch,) if case.batch > 1 else ()
        right = (case.columns, case.depth) if case.transposed else (case.depth, case.columns)
        return [_random(*outer, case.rows, case.depth), _random(*outer, *right), _random(case.columns)]
    gates, scale = 3 if case.op == "Gru" else 4, np.float32(0.05)
    return [
        _random(case.steps, 1, case.inputs),
        _random(gates * case.units, case.inputs) * scale,
        _random(gates * case.units, case.units) * scale,
        _random(gates * case.units) * scale,
    ]


def _onnx_graph(case: Any, data: list[np.ndarray]) -> tuple[list[Any], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Nodes, inputs and constants of the same operation in ONNX."""
    if isinstance(case, Convolution):
        (top, bottom), (left, right) = case.pads
        weights = np.ascontiguousarray(data[1].transpose(3, 2, 0, 1))
        convolution = helper.make_node(
            "Conv", ["x", "w", "b"], ["t"], kernel_shape=list(case.kernel), strides=list(case.stride),
            pads=[top, left, bottom, right], group=case.channels if case.depth_wise else case.groups,
        )  # fmt: skip
        inputs = {"x": np.ascontiguousarray(data[0].transpose(0, 3, 1, 2))}
        return [convolution, helper.make_node("Relu", ["t"], ["y"])], inputs, {"w": weights, "b": data[2]}
    if isinstance(case, Product):
        if not case.dynamic:
            node = helper.make_node("Gemm", ["x", "w", "b"], ["y"])
            return [node], {"x": data[0]}, {"w": data[1], "b": data[2]}
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
        right = data[1]
        if case.transposed:
            right = np.ascontiguousarray(right.swapaxes(-1, -2))
        return nodes, {"x": data[0], "w": right}, {}
    more = {"linear_before_reset": 1} if case.op == "Gru" else {}
    node = helper.make_node(case.op.upper(), ["x", "w", "r", "b"], ["y"], hidden_size=case.units, **more)
    bias = np.concatenate([data[3], np.zeros_like(data[3])])
    return [node], {"x": data[0]}, {"w": data[1][None], "r": data[2][None], "b": bias[None]}


def _onnx_runtime(case: Any, data: list[np.ndarray], threads: int) -> tuple[Callable[[], Any], np.ndarray]:
    nodes, inputs, constants = _onnx_graph(case, data)
    graph = helper.make_graph(
        nodes,
        "op",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(a.shape)) for n, a in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(
        onnx.shape_inference.infer_shapes(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    result = session.run(None, inputs)[0]
    binding = session.io_binding()
    kept = [onnxruntime.OrtValue.ortvalue_from_numpy(a) for a in inputs.values()]
    for name, value in zip(inputs, kept, strict=True):
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros_like(result)))
    if isinstance(case, Convolution):
        result = result.transpose(0, 2, 3, 1)
    return lambda: (session.run_with_iobinding(binding), kept)[0], result


def _lite_rt(case: Any, data: list[np.ndarray], threads: int) -> Callable[[], Any] | None:
    if isinstance(case, Recurrent) or (isinstance(case, Product) and case.dynamic):
        return None
    if isinstance(case, Convolution) and case.groups > 1:
        return None
    model, graph = tfl.ModelT(), tfl.SubGraphT()
    model.version, model.buffers, model.subgraphs, graph.tensors = 3, [tfl.BufferT()], [graph], []

    def tensor(dims: tuple[int, ...], content: np.ndarray | None = None) -> int:
        one = tfl.TensorT()
        one.shape, one.type, one.buffer = list(dims), tfl.TensorType.FLOAT32, 0
        if content is not None:
            buffer = tfl.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(content).tobytes(), np.uint8)
            model.buffers.append(buffer)
            one.buffer = len(model.buffers) - 1
        graph.tensors.append(one)
        return len(graph.tensors) - 1

    options: Any
    if isinstance(case, Product):
        weights, out = data[1].T, (case.rows, case.columns)
        code, kind, options = tfl.BuiltinOperator.FULLY_CONNECTED, "FullyConnectedOptions", tfl.FullyConnectedOptionsT()
    else:
        out = (1, *case.out, case.filters)
        if case.depth_wise:
            weights, code, kind = (
                data[1].transpose(2, 0, 1, 3),
                tfl.BuiltinOperator.DEPTHWISE_CONV_2D,
                "DepthwiseConv2D",
            )
            options = tfl.DepthwiseConv2DOptionsT()
            options.depthMultiplier = 1
        else:
            weights, code, kind = data[1].transpose(3, 0, 1, 2), tfl.BuiltinOperator.CONV_2D, "Conv2D"
            options = tfl.Conv2DOptionsT()
        kind += "Options"
        options.padding, options.fusedActivationFunction = tfl.Padding.SAME, tfl.ActivationFunctionType.RELU
        options.strideH, options.strideW = case.stride
        options.dilationHFactor = options.dilationWFactor = 1
    operator, operator_code = tfl.OperatorT(), tfl.OperatorCodeT()
    operator_code.builtinCode = operator_code.deprecatedBuiltinCode = code
    operator_code.version = 1
    model.operatorCodes, graph.operators = [operator_code], [operator]
    operator.inputs = [tensor(data[0].shape), tensor(weights.shape, weights), tensor(data[2].shape, data[2])]
    operator.outputs = [tensor(out)]
    operator.builtinOptionsType, operator.builtinOptions = getattr(tfl.BuiltinOptions, kind), options
    graph.inputs, graph.outputs = operator.inputs[:1], operator.outputs
    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(model.Pack(builder), b"TFL3")
    interpreter = Interpreter(model_content=bytes(builder.Output()), num_threads=threads)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], data[0])
    return interpreter.invoke


TURNS = 4_000_000
"""What each thread multiplies and adds in a call: some milliseconds, beside which handing it over takes no time."""


@functools.cache
def multiply_and_add() -> Callable[[int, int], int]:
    """Return the function of `fma_peak.c`, with vectors as wide as the target's."""
    with tempfile.TemporaryDirectory() as folder:
        library, width = Path(folder) / "fma_peak.so", host().vector_bytes
        wide = [f"-mprefer-vector-width={8 * width}", f"-DBYTES={width}"]
        source = Path(__file__).with_name("fma_peak.c")
        options = ["-O3", "-march=native", "-ffp-contract=fast", *wide, "-shared", "-fPIC"]
        subprocess.run(["cc", *options, "-o", library, source], check=True)
        function = ctypes.CDLL(str(library)).multiply_and_add
    function.restype, function.argtypes = ctypes.c_long, [ctypes.c_long, ctypes.c_void_p]
    return function


@functools.cache
def _peak(threads: int) -> tuple[Callable[[], Any], int]:
    """Return a call that multiplies and adds on all threads, and the number of its operations."""
    sinks = np.full((threads, 64), 0.5, np.float32)
    pool, function = ThreadPoolExecutor(threads), multiply_and_add()

    def work() -> int:
        return sum(pool.map(lambda sink: function(TURNS, sink.ctypes.data), sinks))

    return work, work()


def race(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, np.ndarray]:
    """Seconds of a call of each contestant, one figure for each round."""
    repeats = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, int(_SLICE_SECONDS / max(time.perf_counter() - start, 1e-7)))
    seconds = {name: np.zeros(rounds) for name in calls}
    for i in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            seconds[name][i] = (time.perf_counter() - start) / repeats[name]
    return seconds


def main() -> None:
    """Print a line for each operation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    for name in arguments.names or CASES:
        case = CASES[name]
        data = _data(case)
        ours = _ours(case, data, arguments.threads)
        peer, wanted = _onnx_runtime(case, data, arguments.threads)
        difference = float(np.abs(ours.result.reshape(-1) - wanted.reshape(-1)).max() / np.abs(wanted).max())
        calls: dict[str, Callable[[], Any]] = {"isthmus": ours.run, "onnxruntime": peer}
        lite = _lite_rt(case, data, arguments.threads)
        if lite is not None:
            calls["litert"] = lite
        operations = getattr(case, "operations", 0)
        peak, at_peak = _peak(arguments.threads)
        if operations:
            calls["peak"] = peak
        seconds = race(calls, arguments.rounds)
        rate = at_peak / seconds.pop("peak").min() if operations else 0.0
        best = min(np.median(s) for n, s in seconds.items() if n != "isthmus")
        figures = "  ".join(f"{n} {np.median(s) * 1e6:8.1f} ({s.min() * 1e6:8.1f})" for n, s in seconds.items())
        ratio = np.median(seconds["isthmus"]) / best
        part = (
            f"   {operations / seconds['isthmus'].min() / rate:4.0%} of {rate / 1e9:.0f} GFLOP/s" if operations else ""
        )
        print(f"{name:16s} {ratio:5.2f} of the best peer   {figures}   difference {difference:.1e}{part}", flush=True)


if __name__ == "__main__":
    main()
