"""A comparison of one model in LiteRT: its own kernels, XNNPACK, a delegate, a delegate in shared memory.

The runs of all variants alternate, so that other load on the machine affects them alike. Only `invoke` is measured; the
inputs are the same and stay in place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
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
from isthmus.delegate.options import BackendType, Options, check_options
from isthmus.errors import Code, QnnError, did_you_mean
from isthmus.graph.random_arrays import random_array
from isthmus.log import LogLevel, to_standard_error

KERNELS, XNNPACK, ORDINARY, SHARED = (
    "LiteRT", "LiteRT with XNNPACK", "delegate, ordinary tensors", "delegate, shared tensors",
)  # fmt: skip
"""The variants."""


@dataclass
class ComparedRun:
    """One variant of running the model.

    - `refusal`: Why the variant cannot run; None if it can.
    - `copied_bytes`: Bytes that an invocation copied between the interpreter's memory and the backend's.
    - `delegated`, `nodes`, `partitions`: Delegated nodes, all nodes, and partitions, over all subgraphs; None without a
      delegate.
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
    step: Callable[[], object] = lambda: None,
) -> list[ComparedRun]:
    """Run a model in all variants, alternating.

    - `backend`: The delegate's backend; shared tensors need a backend that shares memory.
    - `rounds`: How often each variant is run, after one warm-up run.
    - `shapes`: Shapes of inputs by name, if they differ from the file's.

    Raises `QnnError` if the file cannot be read or is not a TFLite model, or a shape is given for something that is not
    an input.
    """
    if not frontends.is_tflite(frontends.contents(model)):
        rule, hint = "it is not a TFLite model", "TFLite files carry 'TFL3' at byte 4; LiteRT runs no others."
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"model file '{model}'", rule, hint)
    with ExitStack() as ends:
        interpreters = _Interpreters(model, backend, threads, dict(shapes or {}), ends)
        variants = [interpreters.add(name) for name in (KERNELS, XNNPACK, ORDINARY, SHARED)]
        interpreters.run(rounds, step)
        interpreters.finish()
        return variants


def _print_problems(level: LogLevel, text: str) -> None:
    """Print only warnings and errors of delegates: the comparison itself reports their nodes."""
    if level <= LogLevel.WARN:
        to_standard_error(level, text)


class _Interpreters:
    """The interpreters of a comparison, which it creates and runs; they end, in the right order, with `ends`."""

    def __init__(
        self, model: Path, backend: BackendType | int, threads: int, shapes: dict[str, Sequence[int]], ends: ExitStack
    ) -> None:
        self._model, self._backend, self._threads, self._shapes = model, backend, threads, shapes
        self._litert = library.module()
        # Each variant with its interpreter and its delegate.
        self._variants: list[tuple[ComparedRun, Any, QnnDelegate | None]] = []
        self._memories: list[CustomMemory] = []
        ends.callback(self._end)

    def add(self, name: str) -> ComparedRun:
        """Create a variant, with its interpreter if it can run."""
        variant = ComparedRun(name)
        delegate = None
        try:
            if name in (ORDINARY, SHARED):
                options = Options(self._backend)
                if name == SHARED:
                    check_options(options).check_shares("shared tensors")
                delegate = QnnDelegate(options, _print_problems)
            interpreter = self._interpreter(name == KERNELS, delegate)
            self._variants.append((variant, interpreter, delegate))
            if name == SHARED:
                assert delegate is not None
                self._share(interpreter, delegate)
            _feed(interpreter)
        except (QnnError, RuntimeError, ValueError) as refusal:
            # A mistake of the caller ends the comparison; any other refusal ends only this variant.
            if isinstance(refusal, QnnError) and refusal.code is Code.COMMON_INVALID_ARGUMENT:
                raise
            variant.refusal = _reason(refusal)
        return variant

    def _interpreter(self, kernels: bool, delegate: QnnDelegate | None) -> Any:
        """Create an interpreter with its tensors allocated; with `kernels`, LiteRT applies no delegate of its own."""
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
                names = ", ".join(f"'{each}'" for each in inputs)
                rule = f"the model has no such input; it has {names}"
                raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"input '{name}'", rule, did_you_mean(name, inputs))
            interpreter.resize_tensor_input(inputs[name], shape)
        interpreter.allocate_tensors()
        return interpreter

    def _share(self, interpreter: Any, delegate: QnnDelegate) -> None:
        """Place all inputs and outputs in shared memory."""
        for detail in (*interpreter.get_input_details(), *interpreter.get_output_details()):
            nbytes = int(np.prod(detail["shape"])) * np.dtype(detail["dtype"]).itemsize
            memory = delegate.alloc_custom_mem(nbytes)
            if memory is None:
                raise QnnError(Code.COMMON_MEM_ALLOC, "shared tensors", f"{nbytes} bytes could not be allocated")
            self._memories.append(memory)
            set_custom_allocation(interpreter, detail["index"], memory)
        interpreter.allocate_tensors()

    def run(self, rounds: int, step: Callable[[], object]) -> None:
        """Invoke all variants, alternating; the first round is not measured. Call `step` after each other round."""
        for number in range(rounds + 1):
            for variant, interpreter, _ in self._variants:
                if variant.refusal is not None:
                    continue
                begin = time.perf_counter()
                try:
                    interpreter.invoke()
                except RuntimeError as refusal:
                    variant.refusal = _reason(refusal)
                if number:
                    variant.seconds.append(time.perf_counter() - begin)
            if number:
                step()

    def finish(self) -> None:
        """Record outputs and counters."""
        for variant, interpreter, delegate in self._variants:
            if variant.refusal is not None:
                continue
            variant.outputs = {
                detail["name"]: interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()
            }
            if delegate is not None:
                # One more run than was measured: the first is a warm-up.
                variant.copied_bytes = delegate.stats.copied_bytes // max(len(variant.seconds) + 1, 1)
                variant.delegated = sum(each.delegated for each in delegate.delegations)
                variant.nodes = sum(each.nodes for each in delegate.delegations)
                variant.partitions = sum(each.partitions for each in delegate.delegations)

    def _end(self) -> None:
        """Let go of the interpreters, then free their memory, then delete their delegates."""
        delegates = [delegate for _, _, delegate in self._variants if delegate is not None]
        self._variants.clear()
        # After an exception its frames may still refer to an interpreter; what the interpreter uses is released with
        # it.
        with suppress(QnnError):
            for memory in self._memories:
                custom_memory.free(memory)
            for delegate in delegates:
                delegate.close()


def _reason(refusal: Exception) -> str:
    """Return the first line of an error, or its type."""
    return str(refusal).splitlines()[0] if str(refusal) else type(refusal).__name__


def _feed(interpreter: Any) -> None:
    """Set random inputs, the same every time."""
    generator = np.random.default_rng(0)
    for detail in interpreter.get_input_details():
        interpreter.set_tensor(detail["index"], random_array(generator, detail["dtype"], detail["shape"]))
