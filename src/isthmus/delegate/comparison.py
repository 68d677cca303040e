"""A comparison of one model in LiteRT: its own kernels, XNNPACK, a delegate, a delegate in shared memory.

The runs of all variants alternate, so that other load on the machine affects them alike. Only `invoke` is measured; the
inputs are the same and stay in place.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from isthmus import frontends
from isthmus.delegate import custom_memory, library
from isthmus.delegate.custom_memory import CustomMemory
from isthmus.delegate.delegate import QnnDelegate
from isthmus.delegate.interpreter import set_custom_allocation
from isthmus.delegate.options import BackendType, Options, checked
from isthmus.errors import Code, QnnError
from isthmus.log import LogLevel, to_standard_error

KERNELS, XNNPACK, ORDINARY, SHARED = (
    "LiteRT", "LiteRT with XNNPACK", "delegate, ordinary tensors", "delegate, shared tensors",
)  # fmt: skip


@dataclass
class ComparedRun:
    """One variant of running the model.

    Parameters
    ----------
    name
        The variant's name.
    refusal
        Why the variant cannot run; None if it can.
    seconds
        The time of each invocation.
    copied_bytes
        Bytes that an invocation copied between the interpreter's memory and the backend's.
    delegated, nodes, partitions
        Delegated nodes, all nodes, and partitions, over all subgraphs.
    """

    name: str
    refusal: str | None = None
    seconds: list[float] = field(default_factory=list)
    copied_bytes: int | None = None
    delegated: int | None = None
    nodes: int | None = None
    partitions: int | None = None
    outputs: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """The median time, in seconds."""
        return float(np.median(self.seconds)) if self.seconds else float("nan")

    @property
    def least(self) -> float:
        """The shortest time, in seconds."""
        return min(self.seconds, default=float("nan"))


def compare(
    model: Path,
    backend: BackendType | int = BackendType.HTP,
    rounds: int = 50,
    threads: int = 1,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> list[ComparedRun]:
    """Run a model in all variants, alternating.

    Parameters
    ----------
    model
        A TFLite file.
    backend
        The delegate's backend; shared tensors need a backend that shares memory.
    rounds
        How often each variant is run, after one warm-up run.
    threads
        Threads of the interpreter.
    shapes
        Shapes of inputs by name, if they differ from the file's.

    Raises
    ------
    QnnError
        If the file cannot be read or is not a TFLite model, or a shape is given for something that is not an input.
    """
    if not frontends.is_tflite(frontends.contents(model)):
        rule, hint = "it is not a TFLite model", "TFLite files carry 'TFL3' at byte 4; LiteRT runs no others."
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"model file '{model}'", rule, hint)
    with ExitStack() as ends:
        made = _Maker(model, backend, threads, dict(shapes or {}), ends)
        ways = [made.way(name) for name in (KERNELS, XNNPACK, ORDINARY, SHARED)]
        made.run(rounds)
        made.finish()
        return ways


def _tell_of_problems(level: LogLevel, text: str) -> None:
    """Print only warnings and errors of delegates: the comparison itself reports their nodes."""
    if level <= LogLevel.WARN:
        to_standard_error(level, text)


class _Maker:
    """The factory of a comparison's interpreters, which also ends them in the right order."""

    def __init__(
        self, model: Path, backend: BackendType | int, threads: int, shapes: dict[str, Sequence[int]], ends: ExitStack
    ) -> None:
        self._model, self._backend, self._threads, self._shapes = model, backend, threads, shapes
        self._litert = library.module()
        self._made: list[tuple[ComparedRun, Any, QnnDelegate | None]] = []
        self._memories: list[CustomMemory] = []
        ends.callback(self._end)

    def way(self, name: str) -> ComparedRun:
        """Create a variant, with its interpreter if it can run."""
        way = ComparedRun(name)
        delegate = None
        try:
            if name in (ORDINARY, SHARED):
                options = Options(self._backend)
                if name == SHARED:
                    checked(options).check_shares("shared tensors")
                delegate = QnnDelegate(options, _tell_of_problems)
            interpreter = self._interpreter(name == KERNELS, delegate)
            self._made.append((way, interpreter, delegate))
            if name == SHARED:
                assert delegate is not None
                self._share(interpreter, delegate)
            _feed(interpreter)
        except (QnnError, RuntimeError, ValueError) as refusal:
            if isinstance(refusal, QnnError) and refusal.code is Code.COMMON_INVALID_ARGUMENT:
                raise
            way.refusal = _reason(refusal)
        return way

    def _interpreter(self, kernels: bool, delegate: QnnDelegate | None) -> Any:
        resolvers = self._litert.OpResolverType
        kind = resolvers.BUILTIN_WITHOUT_DEFAULT_DELEGATES if kernels else resolvers.AUTO
        interpreter = self._litert.Interpreter(
            str(self._model),
            experimental_op_resolver_type=kind,
            experimental_delegates=None if delegate is None else [delegate],
            num_threads=self._threads,
        )
        inputs = {detail["name"]: detail["index"] for detail in interpreter.get_input_details()}
        for name, shape in self._shapes.items():
            if name not in inputs:
                known = ", ".join(f"'{each}'" for each in inputs)
                rule = f"the model has no such input; it has {known}"
                raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"input '{name}'", rule)
            interpreter.resize_tensor_input(inputs[name], shape)
        interpreter.allocate_tensors()
        return interpreter

    def _share(self, interpreter: Any, delegate: QnnDelegate) -> None:
        for detail in (*interpreter.get_input_details(), *interpreter.get_output_details()):
            nbytes = int(np.prod(detail["shape"])) * np.dtype(detail["dtype"]).itemsize
            memory = delegate.alloc_custom_mem(nbytes)
            if memory is None:
                raise QnnError(Code.COMMON_MEM_ALLOC, "shared tensors", f"{nbytes} bytes could not be allocated")
            self._memories.append(memory)
            set_custom_allocation(interpreter, detail["index"], memory)
        interpreter.allocate_tensors()

    def run(self, rounds: int) -> None:
        """Invoke all variants, alternating."""
        for number in range(rounds + 1):
            for way, interpreter, _ in self._made:
                if way.refusal is not None:
                    continue
                begin = time.perf_counter()
                try:
                    interpreter.invoke()
                except RuntimeError as refusal:
                    way.refusal = _reason(refusal)
                if number:
                    way.seconds.append(time.perf_counter() - begin)

    def finish(self) -> None:
        """Record outputs and counters."""
        for way, interpreter, delegate in self._made:
            if way.refusal is not None:
                continue
            way.outputs = {
                detail["name"]: interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()
            }
            if delegate is not None:
                way.copied_bytes = delegate.stats.copied_bytes // max(len(way.seconds) + 1, 1)
                way.delegated = sum(each.delegated for each in delegate.delegations)
                way.nodes = sum(each.nodes for each in delegate.delegations)
                way.partitions = sum(each.partitions for each in delegate.delegations)

    def _end(self) -> None:
        delegates = [delegate for _, _, delegate in self._made if delegate is not None]
        self._made.clear()
        # After an exception its frames may still refer to an interpreter; what the interpreter uses is released with
        # it.
        with suppress(QnnError):
            for memory in self._memories:
                custom_memory.free(memory)
            for delegate in delegates:
                delegate.close()


def _reason(refusal: Exception) -> str:
    return str(refusal).splitlines()[0] if str(refusal) else type(refusal).__name__


def _feed(interpreter: Any) -> None:
    """Set trial inputs: floats in [0, 1), small integers; the same every time."""
    random = np.random.default_rng(0)
    for detail in interpreter.get_input_details():
        dtype, shape = np.dtype(detail["dtype"]), tuple(detail["shape"])
        value = random.random(shape, np.float32) if dtype.kind == "f" else random.integers(0, 2, shape)
        interpreter.set_tensor(detail["index"], np.asarray(value).astype(dtype))
