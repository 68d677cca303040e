"""Op packages of clients: libraries with operations of their own, each in a process of its own.

QNN loads a package into the client's process. Here that process may be a Python program or a program in C, and either
must survive a package that crashes, hangs or answers nonsense, so a package is foreign code like a model library. The
price is a message to another process for each execution of a node.
"""

from __future__ import annotations

import _thread
import io
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeGuard

import numpy as np

from isthmus.backends.foreign.process import LibraryProcess
from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.entries import ComposedTensor, EncodingEntry, GraphEntry, NodeEntry, Scalar
from isthmus.frontends.composed.serialization import write
from isthmus.graph import DataType, Node, Quantization, Tensor, TensorType
from isthmus.graph.operation import ISTHMUS, QTI, Call
from isthmus.graph.package import PackageOperation, package_operation, qualify
from isthmus.log import Log, LogLevel
from isthmus.system import isolated
from isthmus.system.lock import Lock
from isthmus.system.shield import shielded

CHILD = "isthmus.backends.cpu.op_package_process"
"""The module that the process runs."""
TARGET = "CPU"
"""The only target of the backend's packages."""
_ABSENT = "absent operand"
MAX_IMPLEMENTATIONS = 1 << 31
"""The limit of the numbers by which a package's process names implementations."""
# QNN_DATATYPE_STRING.
_STRING = 0x0608
# The size of the largest answer of a package's process in bytes: names, numbers and the package's messages.
_MAX_ANSWER = 1 << 26
# How long a package may take to end by itself.
_CLOSING_SECONDS = 5.0


class OpPackage:
    """A registered op package. If its process ends, the next use starts another.

    - `path`, `provider`: The library, and the function that provides its interface: the package's `name` and those of
      its `operations`.
    - `log`: Where its messages go.
    """

    @shielded(release=lambda package: package.close())
    def __init__(self, path: str, provider: str, log: Log) -> None:
        self.what = f"op package '{path}'"
        self._path = os.path.abspath(path) if os.path.exists(path) else path
        self._provider, self._log = provider, log
        self._lock = Lock()
        # Messages of the package that are not logged yet; the lock is held by the thread that logs them.
        self._messages: deque[tuple[LogLevel, str]] = deque()
        self._reporting = Lock()
        self._process: LibraryProcess | None = None
        self.name, self.operations = "", tuple[str, ...]()
        try:
            with self._lock:
                self.process()
        except QnnError as problem:
            self.close()
            # Whatever its library does while it is loaded is a failed registration.
            if problem.code in (Code.COMMON_SYSTEM_COMMUNICATION, Code.COMMON_GENERAL, Code.GRAPH_TIMED_OUT):
                code = Code.BACKEND_OP_PACKAGE_REGISTRATION_FAILED
                raise QnnError(code, problem.what, problem.rule) from None
            raise

    def definitions(self) -> dict[str, PackageOperation]:
        """Return the definitions of its operations by their qualified names."""
        return {qualify(self.name, op): package_operation(self.name, op, self.validate) for op in self.operations}

    def process(self) -> LibraryProcess:
        """Return its process, after starting one if there is none; the caller holds the lock.

        Raises `QnnError` if the package cannot be loaded, or is no longer the one that was registered.
        """
        if self._process is not None and self._process.alive:
            return self._process
        hint = "Its next use starts another process."
        process = LibraryProcess(self.what, CHILD, isolated.library_seconds(), hint=hint, max_bytes=_MAX_ANSWER)
        try:
            answer = self._answer(process, "open", {}, path=self._path, provider=self._provider)
            name, operations = answer["name"], tuple(answer["operations"])
            if not all(isinstance(each, str) and each for each in (name, *operations)):
                raise _nonsense(self.what)
            if self.name and (name, operations) != (self.name, self.operations):
                rule = "its library has changed since its registration"
                raise QnnError(Code.COMMON_LOADING_BINARIES, self.what, rule)
        except (QnnError, LookupError, TypeError) as problem:
            process.close()
            raise (problem if isinstance(problem, QnnError) else _nonsense(self.what)) from None
        self.name, self.operations, self._process = name, operations, process
        return process

    def _answer(
        self, process: LibraryProcess, call: str, sections: Mapping[str, bytes], fds: Sequence[int] = (), **more: Any
    ) -> dict[str, Any]:
        """Have the process do something and return its answer."""
        header, _ = process.call(call, sections, fds, tolerate=True, **more)
        self._check(process, header)
        return header

    def _check(self, process: LibraryProcess, header: Mapping[str, Any]) -> None:
        """Raise the error that an answer contains, and log its messages."""
        try:
            messages = [(LogLevel(min(max(int(level), 1), 5)), str(text)) for level, text in header["messages"]]
            refusal = (Code(header["refusal"][0]), str(header["refusal"][1])) if "refusal" in header else None
            failed = (str(header["function"]), int(header["result"])) if "result" in header else None
        except (LookupError, TypeError, ValueError):
            process.kill("its answer makes no sense")
            raise _nonsense(self.what) from None
        if messages:
            self._messages.extend(messages)
            # In another thread, because the caller may hold a lock, and a log callback may call anything.
            # If no thread can be started, the next report includes these messages.
            with suppress(RuntimeError):
                _thread.start_new_thread(self._report, ())
        if refusal is not None:
            raise QnnError(refusal[0], self.what, refusal[1])
        if failed is not None:
            raise QnnError(Code.COMMON_GENERAL, self.what, f"{failed[0]} answers {failed[1]}")

    def _report(self) -> None:
        """Log the package's messages in order."""
        with self._reporting:
            while self._messages:
                level, text = self._messages.popleft()
                self._log(level, f"{self.what}: {text}")

    def execute(self, process: LibraryProcess, number: int, stop: Callable[[], bool] | None) -> None:
        """Have its process execute an implementation."""
        answer = process.call_by_number(number, stop)
        if answer.header:
            self._check(process, answer.header)

    def validate(self, call: Call) -> None:
        """Refuse a call that the package does not take."""
        op = call.op.removeprefix(qualify(self.name, ""))
        composer = _NodeComposer(self.name)
        node = composer.node(call.node, op, call.inputs, call.declared or (), call.params)
        content = _to_bytes(GraphEntry("validation", tuple(composer.tensors.values()), (node,)))
        try:
            with self._lock:
                self._answer(self.process(), "validate", {"graph": content})
        except QnnError as problem:
            raise QnnError(
                Code.GRAPH_INVALID_OP_CONFIG,
                f"node '{call.node}' ({call.op})",
                f"{problem.what}: {problem.rule}",
                problem.hint,
            ) from None

    @shielded
    def close(self) -> None:
        """Let the package end, and end its process; safe to call again."""
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return
            try:
                if process.alive:
                    self._answer(process, "close", {}, seconds=_CLOSING_SECONDS)
            except QnnError:
                # It ends now in any case.
                pass
            finally:
                process.close()


class PackageNodes:
    """The nodes of a graph that one package implements; their tensors are at `offset_of` in shared memory."""

    def __init__(
        self, package: OpPackage, nodes: Sequence[Node], fd: int, nbytes: int, offset_of: Callable[[Tensor], int]
    ) -> None:
        self._package, self._nodes, self._fd, self._nbytes = package, tuple(nodes), fd, nbytes
        composer = _NodeComposer(package.name, with_contents=False)
        entries = [
            composer.node(node.name, node.op.removeprefix(qualify(package.name, "")), node.inputs, node.outputs,
                          node.params)
            for node in nodes
        ]  # fmt: skip
        self._content = _to_bytes(GraphEntry("nodes", tuple(composer.tensors.values()), tuple(entries)))
        self._offsets = {name: offset_of(tensor) for name, tensor in composer.places.items()}
        # The process that has the implementations, and their numbers by node.
        self._process: LibraryProcess | None = None
        self._implementations: dict[Node, int] = {}

    def create(self) -> LibraryProcess:
        """Have the package implement the nodes, unless its process has done so, and return that process."""
        package = self._package
        with package._lock:
            process = package.process()
            if process is not self._process:
                answer = package._answer(
                    process, "create", {"graph": self._content}, [self._fd], nbytes=self._nbytes, offsets=self._offsets
                )
                numbers = answer.get("implementations")
                if not _are_numbers(numbers, len(self._nodes)):
                    process.kill("its answer makes no sense")
                    raise _nonsense(package.what)
                self._implementations = dict(zip(self._nodes, numbers, strict=True))
                self._process = process
            return process

    def execute(self, node: Node, stop: Callable[[], bool] | None = None) -> None:
        """Execute a node. Its tensors are in shared memory."""
        process = self.create()
        self._package.execute(process, self._implementations[node], stop)

    def close(self) -> None:
        """Have the package free its implementations; safe to call again."""
        process, self._process = self._process, None
        if process is not None and process.alive:
            try:
                self._package._answer(process, "free", {}, implementations=list(self._implementations.values()))
            except QnnError as problem:
                self._package._log(LogLevel.WARN, str(problem))


def _are_numbers(answer: Any, count: int) -> TypeGuard[list[int]]:
    """Return whether a package's process has answered with so many numbers of implementations."""
    return (
        isinstance(answer, list)
        and len(answer) == count
        and all(type(number) is int and 0 <= number < MAX_IMPLEMENTATIONS for number in answer)
    )


class _NodeComposer:
    """Nodes as plain data for the process; without contents, constants are in shared memory."""

    def __init__(self, package: str, with_contents: bool = True) -> None:
        self._package, self._with_contents = package, with_contents
        self.tensors: dict[str, ComposedTensor] = {}
        self.names: dict[Tensor, str] = {}
        self.places: dict[str, Tensor] = {}

    def node(
        self,
        name: str,
        op: str,
        inputs: Iterable[Tensor | None],
        outputs: Iterable[Tensor],
        params: Mapping[str, Any],
    ) -> NodeEntry:
        """Convert a node, and add its tensors."""
        read, written = tuple(map(self._name, inputs)), tuple(map(self._name, outputs))
        converted: dict[str, Scalar | ComposedTensor] = {}
        kinds: dict[str, int] = {}
        for key, value in params.items():
            if isinstance(value, Tensor):
                converted[key] = self._compose(value, self._fresh(value, f"{name}.{key}"))
            elif isinstance(value, str):
                converted[key], kinds[key] = value, _STRING
            else:
                converted[key], kinds[key] = value.item(), int(DataType.of(value.dtype))
        return NodeEntry(name, op, read, written, converted, package=self._package, kinds=kinds)

    def _fresh(self, tensor: Tensor, name: str) -> str:
        """Record and return a name that no other tensor has; a state and its next value, for example, share a name."""
        while name in self.places:
            name += "'"
        self.places[name] = tensor
        return name

    def _name(self, tensor: Tensor | None) -> str:
        """Return the name of an operand, after adding it if it is new."""
        if tensor is None:
            self.tensors.setdefault(_ABSENT, ComposedTensor(_ABSENT, TensorType.NULL, DataType.FLOAT_32, ()))
            return _ABSENT
        if tensor not in self.names:
            name = self.names[tensor] = self._fresh(tensor, tensor.name)
            self.tensors[name] = self._compose(tensor, name)
        return self.names[tensor]

    def _compose(self, tensor: Tensor, name: str) -> ComposedTensor:
        data = tensor.data if tensor.is_static and self._with_contents else None
        content = None if data is None else np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
        return ComposedTensor(
            name, int(tensor.type), int(tensor.dtype), tensor.dims, _encoding(tensor.quantization), content
        )


def _encoding(quantization: Quantization | None) -> EncodingEntry | None:
    """Return a quantization as plain data; refuse one in blocks."""
    if quantization is None:
        return None
    if quantization.block:
        rule = "op packages take no tensors that are quantized in blocks"
        raise QnnError(Code.COMMON_NOT_SUPPORTED, "quantization", rule)
    scales, offsets = np.asarray(quantization.scales, np.float32), np.asarray(quantization.offsets, np.int32)
    return EncodingEntry(scales, offsets, quantization.axis, quantization.bits, int(quantization.encoding))


def _to_bytes(graph: GraphEntry) -> bytes:
    stream = io.BytesIO()
    write([graph], stream)
    return stream.getvalue()


def _nonsense(what: str) -> QnnError:
    return QnnError(Code.COMMON_SYSTEM_COMMUNICATION, what, "its process answered nothing that makes sense")


def check_name(package: OpPackage, registered: Iterable[str]) -> None:
    """Refuse a package whose name another one has."""
    if package.name in (QTI, ISTHMUS, *registered):
        rule = f"a package of the name '{package.name}' is registered already"
        raise QnnError(Code.BACKEND_OP_PACKAGE_DUPLICATE, package.what, rule)
