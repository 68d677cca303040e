"""Runs one operation through lowering and compiled kernels, every operand in memory of its own between guard pages.

A byte read or written outside an operand ends the test run with a segmentation fault. `check` compares a run with the
numpy reference of `isthmus.graph.evaluate`, with one and with two threads, in place where wanted.

A module marked with `ON_TARGETS` runs its tests on this machine's best target, and in `make test-long` on others too.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from isthmus.engine.native import control, loader
from isthmus.engine.native.compiler import compile_kernel
from isthmus.engine.native.lower import lowering_of
from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.program import Program
from isthmus.engine.native.target import Target, by_name, host, portable, runnable
from isthmus.engine.native.verification import verify
from isthmus.graph import DataType, Graph, Quantization, Tensor, TensorInfo, TensorType
from isthmus.graph.evaluate import evaluate
from isthmus.prepare.schedule import Place, Pool, Step

PAGE = mmap.PAGESIZE
_NO_ACCESS = 0
Guard = Literal["after", "before"]
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
ON_TARGETS = pytest.mark.usefixtures("targets_to_run")
all_targets = False
"""Whether the running test takes more targets than the best one (see `conftest.py`)."""
_KERNEL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)


class GuardedBuffer:
    """Memory of an exact size, its end (or its start) directly at a page that nobody may touch."""

    def __init__(self, nbytes: int, guard: Guard = "after") -> None:
        inner = max(-(-nbytes // PAGE), 1) * PAGE
        self._map = mmap.mmap(-1, inner + 2 * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for fence in (start, start + PAGE + inner):
            if _libc.mprotect(fence, PAGE, _NO_ACCESS):
                raise OSError(ctypes.get_errno(), "mprotect")
        offset = PAGE + (inner - nbytes if guard == "after" else 0)
        self.address = start + offset
        self.bytes = np.frombuffer(self._map, np.uint8, nbytes, offset)
        self.bytes[:] = 0xA5


@dataclass(frozen=True)
class Operand:
    """An input with more to say than a plain array can: static, quantized, or of a certain data type.

    `stored` are the 4-bit elements that a constant of floats was dequantized from.
    """

    array: np.ndarray
    static: bool = False
    quantization: Quantization | None = None
    dtype: DataType | None = None
    stored: Operand | None = None

    def tensor(self, name: str) -> Tensor:
        """The graph tensor it stands for."""
        dtype = self.dtype
        if dtype is None:
            of = DataType.of if self.quantization is None else DataType.fixed_point
            dtype = of(self.array.dtype)
        kind = TensorType.STATIC if self.static else TensorType.APP_WRITE
        data = self.array if self.static else None
        source = None if self.stored is None else self.stored.tensor(f"{name} stored")
        return Tensor(name, kind, dtype, self.array.shape, self.quantization, data, source=source)


@dataclass(frozen=True)
class Result:
    """The declaration of an output, where it is not what the operation's rule and in[0] give."""

    dims: tuple[int, ...] | None = None
    dtype: DataType | None = None
    quantization: Quantization | None = None


def static(array: np.ndarray, quantization: Quantization | None = None) -> Operand:
    """A constant input."""
    return Operand(np.asarray(array), True, quantization)


def quantized_input(array: np.ndarray, scale: float, zero_point: int = 0, static: bool = False) -> Operand:
    """A fixed-point input, quantized per tensor."""
    return Operand(np.asarray(array), static, Quantization.per_tensor(scale, zero_point))


def dequantized_constant(elements: np.ndarray, quantization: Quantization) -> Operand:
    """A constant of floats that knows the 4-bit elements it was dequantized from."""
    return Operand(quantization.dequantize(elements), True, stored=Operand(elements, True, quantization))


def make_step(
    op: str,
    inputs: Sequence[np.ndarray | Operand | None],
    params: dict[str, Any] | None = None,
    results: Sequence[Result] | None = None,
    clamp: tuple[float, float] | None = None,
) -> tuple[Step, list[np.ndarray | None]]:
    """A step of the operation with complete parameters, and the arrays of its inputs."""
    operands = [None if x is None else x if isinstance(x, Operand) else Operand(np.asarray(x)) for x in inputs]
    graph = Graph("tested")
    tensors = [None if o is None else graph.add_tensor(o.tensor(f"in{i}")) for i, o in enumerate(operands)]
    wanted = list(results or [])
    dims = [r.dims for r in wanted if r.dims is not None]
    graph.emit(
        op,
        tensors,
        params,
        dims=dims if wanted and len(dims) == len(wanted) else None,
        dtypes=[r.dtype for r in wanted] if wanted else None,
        quantizations=[r.quantization for r in wanted] if any(r.quantization for r in wanted) else None,
        outputs=max(len(wanted), 1),
    )
    node = graph.nodes[-1]
    step = Step(op, "tested", node.inputs, node.outputs, node.params, clamp)
    return step, [None if o is None else np.ascontiguousarray(o.array).reshape(o.array.shape) for o in operands]


@functools.cache
def _compiler() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def compile_apart(kernel: str, target: Target, assembly: bool = False) -> bytes | str:
    """Compile a kernel in another process: compiling changes numba, which others use in this one."""
    return _compiler().submit(compile_kernel, kernel, target, assembly).result()


@dataclass
class Machine:
    """A step lowered and bound to guarded memory: fill `inputs`, call `run`, read `outputs`."""

    inputs: list[np.ndarray | None]
    outputs: list[np.ndarray]
    kernels: list[str]
    _calls: list[tuple[Any, int]]
    _bases: np.ndarray
    _control: np.ndarray
    _threads: int
    _alive: list[Any]

    @property
    def fault(self) -> bool:
        """Whether an instruction of the last run met an index outside its axis."""
        return bool(self._control[control.FAULT // 8])

    def run_on(self, arrays: Sequence[np.ndarray | None]) -> None:
        """Fill the inputs and execute once."""
        for view, array in zip(self.inputs, arrays, strict=True):
            if view is not None and array is not None:
                view[...] = array
        self.run()

    def run(self) -> None:
        """Execute once; each thread's share in turn, instruction by instruction."""
        self._control[control.FAULT // 8] = 0
        bases = self._bases.ctypes.data
        for function, words in self._calls:
            for thread in range(self._threads):
                function(words, bases, thread, self._threads)


def bind(
    step: Step,
    target: Target | None = None,
    threads: int = 1,
    guard: Guard = "after",
    in_place: int | None = None,
    lowering: Lowering | None = None,
    numerics: str = "exact",
) -> Machine:
    """Lower a step and give each operand a guarded buffer; `in_place` names the input that out[0] lies on."""
    target = target or host()
    lowering = lowering or lowering_of(step)
    buffers: dict[str, GuardedBuffer] = {}
    places: dict[Tensor, Place] = {}
    bases = [0, 0, 0, 0]
    for tensor in (*step.inputs, *step.outputs):
        if tensor is None or tensor.is_static or tensor in places:
            continue
        shared = step.inputs[in_place] if in_place is not None and tensor is step.outputs[0] else None
        if shared is not None:
            places[tensor] = places[shared]
            buffers[tensor.name] = buffers[shared.name]
            continue
        buffers[tensor.name] = GuardedBuffer(tensor.nbytes, guard)
        places[tensor] = Place(len(bases), 0)
        bases.append(buffers[tensor.name].address)
    emitter = Emitter(target, threads, places, numerics)
    emitter.begin(step, 0, threads)
    lowering.emit(step, emitter)
    # Work space is aligned by the planner, so its end is guarded only up to the alignment.
    scratch_bytes = -(-lowering.work(step, target, threads) // 64) * 64
    program = program_of(emitter, places, scratch_bytes)
    verify(program)
    constants, work = GuardedBuffer(program.constants.nbytes), GuardedBuffer(scratch_bytes)
    constants.bytes[:] = program.constants
    bases[Pool.CONSTANT], bases[Pool.SCRATCH] = constants.address, work.address
    kernels = list(program.kernels)
    found = loader.addresses(kernels, target)
    words = np.concatenate([program.words, [0]])
    calls = [(_KERNEL(found[kernels[k]]), words.ctypes.data + 8 * first) for k, first, _ in program.table.tolist()]

    def view(tensor: Tensor) -> np.ndarray:
        return buffers[tensor.name].bytes.view(tensor.dtype.numpy).reshape(tensor.dims)

    inputs = [None if t is None or t.is_static else view(t) for t in step.inputs]
    outputs = [view(t) for t in step.outputs]
    block = np.zeros(control.control_bytes(threads) // 8, np.int64)
    table = np.array([*[0] * control.HEADER_WORDS, *bases], np.int64)
    table[control.HEADER_WORDS + control.CONTROL] = block.ctypes.data
    table = table[control.HEADER_WORDS :]
    return Machine(inputs, outputs, kernels, calls, table, block, threads, [buffers, constants, work, words])


def program_of(emitter: Emitter, places: dict[Tensor, Place], scratch_bytes: int) -> Program:
    """Return what was emitted as a program. Its tensors are all outputs, since some are written in place."""
    tensors = {place.pool: tensor for tensor, place in places.items() if place.pool >= Pool.IO}
    return Program(
        name="tested",
        target=emitter.target.name,
        threads=emitter.threads,
        kernels=tuple(emitter.kernels),
        table=np.array(emitter.table, np.int64).reshape(-1, 3),
        words=np.array(emitter.words, np.int64),
        labels=tuple(emitter.labels),
        constants=emitter.constants(),
        inputs=(),
        outputs=tuple(map(TensorInfo.of, tensors.values())),
        states=(),
        state_offsets=(),
        state_initial=np.zeros(0, np.uint8),
        scratch_bytes=scratch_bytes,
        alignment=64,
    )


def run(
    step: Step,
    arrays: Sequence[np.ndarray | None],
    target: Target | None = None,
    threads: int = 1,
    guard: Guard = "after",
    in_place: int | None = None,
    lowering: Lowering | None = None,
    numerics: str = "exact",
) -> list[np.ndarray]:
    """The outputs of a step on these arrays."""
    machine = bind(step, target, threads, guard, in_place, lowering, numerics)
    machine.run_on(arrays)
    return [output.copy() for output in machine.outputs]


def targets(*others: str) -> list[Target]:
    """The targets of the running test: the best one, or also the portable one and those of `others` that run here."""
    if not all_targets:
        return [host()]
    return list(dict.fromkeys([host(), *filter(runnable, map(by_name, others)), portable()]))


def expected(step: Step, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """Return what the numpy reference says, with the step's clamp applied."""
    values = evaluate(step.op, step.inputs, arrays, step.params, step.outputs)
    if step.clamp is not None:
        low, high = (np.float32(limit) for limit in step.clamp)
        values = [np.clip(v, low, high) for v in values]
    return values


def check(
    op: str,
    inputs: Sequence[np.ndarray | Operand | None],
    params: dict[str, Any] | None = None,
    results: Sequence[Result] | None = None,
    *,
    clamp: tuple[float, float] | None = None,
    rtol: float = 1e-6,
    atol: float = 1e-7,
    in_place: Sequence[int] = (),
    reference: Sequence[np.ndarray] | None = None,
    lowering: Lowering | None = None,
) -> list[np.ndarray]:
    """Run on the targets of the test, with one and two threads, guards on both sides; compare; give the host's outputs.

    Integers and booleans must be equal, floats within the tolerances, and two threads must yield the bits of one.
    `in_place` lists inputs that out[0] may overwrite.
    """
    step, arrays = make_step(op, inputs, params, results, clamp)
    wanted = list(reference) if reference is not None else expected(step, arrays)
    first: list[np.ndarray] | None = None
    for target in targets():
        got = run(step, arrays, target, 1, "after", None, lowering)
        _compare(step, got, wanted, rtol, atol, f"{target.name}, one thread")
        again = run(step, arrays, target, 2, "before", None, lowering)
        _identical(step, got, again, f"{target.name}, two threads")
        for index in in_place:
            _identical(step, got, run(step, arrays, target, 2, "after", index, lowering), f"in place of in[{index}]")
        first = first or got
    assert first is not None
    return first


def _compare(
    step: Step, got: Sequence[np.ndarray], wanted: Sequence[np.ndarray], rtol: float, atol: float, where: str
) -> None:
    for index, (a, b) in enumerate(zip(got, wanted, strict=True)):
        title = f"{step.op} out[{index}] on {where}"
        assert (a.shape, a.dtype) == (tuple(b.shape), b.dtype), title
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=title)
        else:
            np.testing.assert_array_equal(a, b, err_msg=title)


def _identical(step: Step, one: Sequence[np.ndarray], other: Sequence[np.ndarray], where: str) -> None:
    for index, (a, b) in enumerate(zip(one, other, strict=True)):
        np.testing.assert_array_equal(
            np.ascontiguousarray(a).reshape(-1).view(np.uint8),
            np.ascontiguousarray(b).reshape(-1).view(np.uint8),
            err_msg=f"{step.op} out[{index}]: {where} differs",
        )
