"""Movements of channels in succession are one launch, or none behind a convolution, with the results they had apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import architectures

from backends.gpu.compile.checking import TOLERANCE, assert_close, expected, run, traits
from isthmus.backends.gpu.compile.lower import prepare
from isthmus.backends.gpu.compile.program import KernelProgram
from isthmus.backends.gpu.compile.traits import FloatStorage
from isthmus.frontends import load
from isthmus.graph import DataType, Graph, Tensor, TensorType

F32 = DataType.FLOAT_32


class _Network:
    """A graph under construction, with inputs and random weights."""

    def __init__(self, seed: int) -> None:
        self.graph, self.generator = Graph("moved"), np.random.default_rng(seed)
        self.arrays: list[np.ndarray] = []

    def input(self, *dims: int) -> Tensor:
        self.arrays.append(self.generator.standard_normal(dims).astype(np.float32))
        return self.graph.create_tensor(f"in{len(self.arrays) - 1}", TensorType.APP_WRITE, F32, dims)

    def conv(self, x: Tensor, filters: int) -> Tensor:
        weights = self.generator.standard_normal((1, 1, x.dims[-1], filters)).astype(np.float32)
        params = {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]}
        return self.graph.emit("Conv2d", [x, self.graph.constant("w", weights)], params)[0]

    def emit(self, op: str, inputs: list[Tensor], **params: Any) -> Tensor:
        return self.graph.emit(op, inputs, params)[0]

    def shuffle(self, x: Tensor, groups: int) -> Tensor:
        *rest, channels = x.dims
        apart = self.emit("Transpose", [self._view(x, *rest, groups, channels // groups)], perm=[0, 1, 2, 4, 3])
        return self._view(apart, *x.dims)

    def _view(self, x: Tensor, *dims: int) -> Tensor:
        return self.graph.emit("Reshape", [x], dims=[dims])[0]

    def halves(self, x: Tensor) -> list[Tensor]:
        middle = x.dims[-1] // 2
        *rest, _ = x.dims
        parts = [(*rest, middle), (*rest, x.dims[-1] - middle)]
        params = {"axis": len(rest), "split_index": np.array([middle], np.uint32)}
        return self.graph.emit("Split", [x], params, dims=parts, outputs=2)

    def finish(self, *outputs: Tensor) -> None:
        for tensor in outputs:
            tensor.type = TensorType.APP_READ
        self.graph.finalize()

    def check(self, launches: int | None, kinds: tuple[str, ...] = ("cpu", "tiles", "thin")) -> None:
        """Compare with numpy on each kind of device, fused or not; a GPU needs so many launches in fp32."""
        wanted = expected(self.graph, self.arrays)
        for kind in kinds:
            for precision in FloatStorage:
                for fuse in (True, False):
                    program = prepare(self.graph, traits(kind), precision, fuse)
                    where = f"on {kind} in {precision.value}, fuse={fuse}"
                    assert_close(run(program, self.arrays), wanted, TOLERANCE[precision], where)
                    if fuse and kind != "cpu" and precision is FloatStorage.FP32 and launches is not None:
                        assert len(program.launches) == launches, program.steps


def unit(channels: int, filters: int, blocks: int) -> _Network:
    """Units of a ShuffleNet: half of the channels through a convolution, and a shuffle of both halves."""
    net = _Network(channels)
    first, second = net.input(1, 5, 3, channels), net.conv(net.input(1, 5, 3, channels), filters)
    for _ in range(blocks):
        joined = net.emit("Concat", [first, second], axis=3)
        first, second = net.halves(net.shuffle(joined, 2))
        second = net.conv(second, second.dims[-1])
    net.finish(net.emit("Relu", [first]), net.emit("Relu", [second]))
    return net


def test_a_shuffle_behind_a_convolution_takes_no_launch() -> None:
    # A convolution for each block and one before; and the two Relus, of which the convolution takes one.
    unit(6, 6, 3).check(launches=4 + 1)


def test_a_shuffle_of_more_channels_than_the_convolution_has_is_one_launch() -> None:
    net = unit(8, 4, 1)
    net.check(launches=2 + 1 + 1)


@pytest.mark.parametrize("channels", [(8, 4, 12), (8, 3, 5)])
def test_a_join_is_one_launch_whether_or_not_vectors_are_aligned(channels: tuple[int, ...]) -> None:
    net = _Network(1)
    parts = [net.emit("Sigmoid", [net.input(1, 4, 3, count)]) for count in channels]
    joined = net.emit("Concat", parts, axis=3)
    net.finish(net.emit("ReduceMax", [joined], axes=np.array([3], np.uint32), keep_dims=True))
    net.check(launches=len(parts) + 2)


def test_a_result_between_movements_that_is_read_elsewhere_stays_in_memory() -> None:
    net = _Network(2)
    x = net.input(1, 4, 4, 6)
    conv = net.conv(x, 6)
    joined = net.emit("Concat", [x, conv], axis=3)
    first, second = net.halves(net.shuffle(joined, 3))
    net.finish(net.emit("Relu", [first]), net.emit("Tanh", [second]), net.emit("ElementWiseNeg", [joined]),
               net.emit("ElementWiseAbs", [conv]))  # fmt: skip
    net.check(launches=None)


def test_results_of_movements_may_be_outputs() -> None:
    net = _Network(3)
    conv = net.conv(net.input(1, 4, 4, 6), 6)
    net.finish(*net.halves(net.shuffle(net.emit("Concat", [conv, net.input(1, 4, 4, 6)], axis=3), 4)))
    net.check(launches=1)


def _movement(net: _Network, values: list[Tensor]) -> None:
    """Add a random movement or function of some values."""
    x = values[net.generator.integers(len(values))]
    kind = net.generator.integers(6)
    if kind == 0 and x.dims[-1] > 1:
        values += net.halves(x)
    elif kind == 1 and x.dims[-1] % 2 == 0:
        values.append(net.shuffle(x, 2))
    elif kind == 2:
        others = [t for t in values if t.dims[:-1] == x.dims[:-1]]
        other = others[net.generator.integers(len(others))]
        if x.dims[-1] + other.dims[-1] < 40:
            values.append(net.emit("Concat", [x, other], axis=3))
    elif kind == 3:
        values.append(net.conv(x, int(net.generator.integers(1, 9))))
    elif kind == 4:
        begin = int(net.generator.integers(x.dims[-1]))
        ranges = [[0, size, 1] for size in x.dims[:-1]] + [[begin, x.dims[-1], int(net.generator.integers(1, 3))]]
        values.append(net.emit("StridedSlice", [x], ranges=np.array(ranges, np.int32)))
    else:
        values.append(net.emit("Transpose", [x], perm=[0, 2, 1, 3]))


@pytest.mark.parametrize("seed", range(12))
def test_random_movements_between_convolutions_have_the_results_of_numpy(seed: int) -> None:
    net = _Network(100 + seed)
    values = [net.input(1, 3, 3, int(net.generator.integers(2, 9))) for _ in range(2)]
    for _ in range(14):
        _movement(net, values)
    read = {t for node in net.graph.nodes for t in node.inputs if t is not None}
    ends = [t for t in values if t not in read][:6]
    net.finish(*(net.emit("ElementWiseNeg", [t]) for t in ends))
    net.check(launches=None, kinds=("tiles",))


def _launches(name: str, tmp_path: Any) -> KernelProgram:
    """A network as a program for a GPU."""
    import onnx

    file = tmp_path / f"{name}.onnx"
    onnx.save(architectures.build(name).model, file)
    return prepare(load(file), traits("thin"))


def test_networks_with_shuffles_and_joins_need_few_launches(tmp_path) -> None:
    shuffles, joins = _launches("shufflenet_v2_x1_0", tmp_path), _launches("squeezenet1_1", tmp_path)
    # Convolutions, pooling, the mean, and the transpose of the input.
    assert len(shuffles.launches) == 38 + 19 + 3
    assert len(joins.launches) == 26 + 3 + 2
