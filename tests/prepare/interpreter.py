"""Executes graphs, rewritten graphs and schedules in numpy; a schedule in real memory, at the places it names.

In real memory a step sees its operands change while it writes, so that a result may lie on an operand only where it
truly can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from isthmus.backends.gpu.mixed_precision import Fp16Tensor, to_fp16
from isthmus.graph import DataType, Graph, Quantization, Tensor, TensorType
from isthmus.graph.evaluate import evaluate
from isthmus.prepare.schedule import Place, Pool, Schedule, Step
from isthmus.prepare.work import Work

Arrays = dict[str, np.ndarray]


class Builder:
    """Builds small graphs in few words."""

    def __init__(self) -> None:
        self.graph = Graph("test")

    def input(
        self, *dims: int, name: str = "x", dtype: DataType = DataType.FLOAT_32, q: Quantization | None = None
    ) -> Tensor:
        return self.graph.create_tensor(self.graph.fresh(name), TensorType.APP_WRITE, dtype, dims, q)

    def state(self, value: np.ndarray, name: str = "s") -> Tensor:
        return self.graph.create_tensor(
            self.graph.fresh(name), TensorType.APP_READWRITE, DataType.of(value.dtype), value.shape, None, value
        )

    def constant(self, value, q: Quantization | None = None) -> Tensor:
        value = np.asarray(value)
        return self.graph.constant("c", value.astype(np.float32) if value.dtype == np.float64 else value, q)

    def op(self, op: str, *inputs, q: Quantization | None = None, dtype: DataType | None = None, dims=None, **params):
        """Add a node; plain numbers and arrays become constants. Gives its output, or a list of several."""
        tensors = [t if t is None or isinstance(t, Tensor) else self.constant(t) for t in inputs]
        outputs = self.graph.emit(
            op,
            tensors,
            params,
            dims=None if dims is None else [tuple(dims)],
            dtypes=None if dtype is None else [dtype],
            quantizations=None if q is None else [q],
        )
        return outputs[0] if len(outputs) == 1 else outputs

    def output(self, tensor: Tensor, name: str = "y") -> Tensor:
        """Make the tensor that a node wrote a graph output."""
        tensor.type = TensorType.APP_READ
        return tensor

    def finish(self, *outputs: Tensor) -> Graph:
        for tensor in outputs:
            self.output(tensor)
        self.graph.finalize()
        return self.graph


def random_inputs(tensors: Sequence[Tensor], seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    made = {}
    for tensor in tensors:
        dtype = tensor.dtype.numpy
        if dtype.kind == "f":
            made[tensor.name] = rng.normal(size=tensor.dims).astype(dtype)
        else:
            info = np.iinfo(dtype)
            made[tensor.name] = rng.integers(max(info.min, -128), min(info.max, 255) + 1, tensor.dims).astype(dtype)
    return made


def compute(step: Step, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """Return what a step with its clamp gives."""
    results = evaluate(step.op, step.inputs, arrays, step.params, step.outputs)
    if step.clamp is None:
        return results
    tensor = step.outputs[0]
    low, high = step.clamp
    if tensor.dtype.is_fixed_point:
        info, q = np.iinfo(tensor.dtype.numpy), tensor.quantization
        bounds = np.clip(np.array([low, high]) / q.scale, -1e9, 1e9)
        low, high = np.clip(np.rint(bounds) + q.zero_point, info.min, info.max)
    return [np.clip(results[0], low, high).astype(results[0].dtype), *results[1:]]


def _as_stored(tensor: Tensor, value: np.ndarray) -> np.ndarray:
    """Elements as they lie in memory."""
    return to_fp16(value) if isinstance(tensor, Fp16Tensor) else value


def _run(steps: Sequence[Step], values: dict[Tensor, np.ndarray]) -> None:
    for step in steps:
        arrays = [None if t is None else t.data if t.is_static else values[t] for t in step.inputs]
        for tensor, array in zip(step.outputs, compute(step, arrays), strict=False):
            assert array.shape == tensor.dims, f"{step.op} {step.name}: {array.shape} for {tensor.describe()}"
            values[tensor] = _as_stored(tensor, array).astype(array.dtype)


def _answer(outputs, updates: Mapping[Tensor, Tensor], values: dict[Tensor, np.ndarray]) -> Arrays:
    def value(tensor: Tensor) -> np.ndarray:
        return tensor.data if tensor.is_static else values[tensor]

    return {t.name: value(t) for t in outputs} | {f"state {s.name}": value(v) for s, v in updates.items()}


def run_graph(graph: Graph, inputs: Arrays) -> Arrays:
    """Outputs, and new values of states, by direct evaluation."""
    values = {t: inputs[t.name] for t in graph.inputs} | {s: s.data for s in graph.states}
    _run([Step(n.op, n.name, n.inputs, n.outputs, n.params) for n in graph.nodes], values)
    updates = {graph.tensors[name]: value for name, value in graph.state_updates.items()}
    return _answer(graph.outputs, updates, values)


def run_work(work: Work, inputs: Arrays) -> Arrays:
    """Outputs and new values of states of a graph that is being rewritten."""
    values = {t: inputs[t.name] for t in work.inputs} | {s: s.data for s in work.states}
    _run(work.ordered(), values)
    return _answer(work.outputs, work.updates, values)


def ops(work: Work) -> list[str]:
    return [step.op for step in work.ordered()]


def rewritten(graph: Graph, *passes: Callable[[Work], None], tolerance: float = 1e-5, seed: int = 0) -> Work:
    """The graph after these passes, after checking that its results did not change."""
    inputs = random_inputs(graph.inputs, seed)
    expected = run_graph(graph, inputs)
    work = Work(graph)
    for one in passes:
        one(work)
        assert_close(run_work(work, inputs), expected, tolerance)
    return work


def assert_close(found: Arrays, expected: Arrays, tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].shape == value.shape
        if value.dtype.kind == "f":
            np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)


class Memory:
    """Pools of bytes, and tensors as arrays in them."""

    def __init__(self, schedule: Schedule, seed: int = 0) -> None:
        self.schedule = schedule
        self.rng = np.random.default_rng(seed)
        self.pools: dict[int, np.ndarray] = {
            Pool.SCRATCH: self._garbage(schedule.scratch_bytes),
            Pool.STATE: self._garbage(schedule.state_bytes),
        }
        scratch = self.pools[Pool.SCRATCH]
        for index, tensor in enumerate((*schedule.inputs, *schedule.outputs)):
            if schedule.io_offsets:
                start = schedule.io_offsets[index]
                assert start + tensor.nbytes <= scratch.size
                self.pools[Pool.IO + index] = scratch[start : start + tensor.nbytes]
            else:
                self.pools[Pool.IO + index] = self._garbage(tensor.nbytes)
        for tensor, offset in zip(schedule.states, schedule.state_offsets, strict=True):
            self.write(Place(Pool.STATE, offset), tensor.data)

    def _garbage(self, size: int) -> np.ndarray:
        return self.rng.integers(0, 256, size, np.uint8)

    def write(self, place: Place, value: np.ndarray, chosen: np.ndarray | None = None) -> None:
        """Write all elements, or those that `chosen` says."""
        content = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
        assert place.offset >= 0
        assert place.offset + content.size <= self.pools[place.pool].size
        goal = self.pools[place.pool][place.offset : place.offset + content.size]
        goal[...] = content if chosen is None else np.where(np.repeat(chosen, value.dtype.itemsize), content, goal)

    def read(self, tensor: Tensor) -> np.ndarray:
        place = self.schedule.places[tensor]
        content = self.pools[place.pool][place.offset : place.offset + tensor.nbytes]
        assert content.size == tensor.nbytes
        stored = np.float16 if isinstance(tensor, Fp16Tensor) else tensor.dtype.numpy
        return np.frombuffer(content.tobytes(), stored).astype(tensor.dtype.numpy).reshape(tensor.dims)

    def _execute(self, step: Step) -> None:
        """Write some elements, then read the operands again for the others, as a kernel does that copies nothing.

        A result that lies on an operand is right only if no element is read after it was overwritten, in any order.
        """
        parts = [self.rng.random(t.elements) < 0.5 for t in step.outputs]
        for chosen in (parts, [~part for part in parts]):
            arrays = [None if t is None else t.data if t.is_static else self.read(t) for t in step.inputs]
            with np.errstate(all="ignore"):
                results = compute(step, arrays)
            for tensor, value, part in zip(step.outputs, results, chosen, strict=False):
                self.write(self.schedule.places[tensor], _as_stored(tensor, value), part)

    def run(self, inputs: Arrays, work_bytes: Callable[[Step], int]) -> Arrays:
        """One execution: outputs and the states after it."""
        schedule = self.schedule
        for index, tensor in enumerate(schedule.inputs):
            self.write(Place(Pool.IO + index, 0), inputs[tensor.name])
        scratch = self.pools[Pool.SCRATCH]
        for step, work in zip(schedule.steps, schedule.work, strict=True):
            size = work_bytes(step)
            assert work + size <= scratch.size
            scratch[work : work + size] = self._garbage(size)
            self._execute(step)
            scratch[work : work + size] = self._garbage(size)
        answer = {t.name: self.read(t) for t in schedule.outputs}
        for tensor, offset in zip(schedule.states, schedule.state_offsets, strict=True):
            content = self.pools[Pool.STATE][offset : offset + tensor.nbytes]
            answer[f"state {tensor.name}"] = np.frombuffer(content.tobytes(), tensor.dtype.numpy).reshape(tensor.dims)
        return answer
