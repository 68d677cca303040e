"""The program of the process that runs an op package of a client: the requests that it answers.

Tensors are in memory that is shared with the parent. The package's functions are called one at a time.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.backends.cpu import c
from isthmus.backends.foreign.serving import CallError, enter, serve
from isthmus.cabi.client import BadPointer, pointer, read, text
from isthmus.cabi.op_package import VERSIONS, OpPackageInfo, OpPackageInterface
from isthmus.cabi.tables import LOG_CALLBACK
from isthmus.cabi.writer import Keeps, write_node, write_tensor
from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.entries import ComposedTensor, NodeEntry
from isthmus.frontends.composed.serialization import read as read_graphs
from isthmus.graph.datatypes import TensorType
from isthmus.system import isolated
from isthmus.system.channel import Message
from isthmus.system.forbidden_calls import REFUSED, forbid

MAX_OPERATIONS = 1 << 12
MAX_LINES = 256
"""How many messages of the package one answer has."""
_MAX_LINE = 1 << 12
# The largest file that the package may write.
_MAX_FILE = 1 << 34
# QNN_LOG_LEVEL_DEBUG: the parent filters.
_LOG_LEVEL = 5
# QNN's log levels of the message types ERROR and DEBUG; the others are information.
_LEVELS = {1: 1, 2: 5}
_WARNING, _INFO = 2, 3
# Functions that a package may lack.
_OPTIONAL = ("logInitialize", "logSetLevel", "logTerminate")
# A conversion of printf: flags with width and precision, length, kind.
_CONVERSION = re.compile(r"%([-+ #0]*\d*(?:\.\d+)?)(hh|h|ll|l|z|j|t)?([diouxXcsfFeEgGp%])")
_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class Implementation:
    """An implementation of a node that the package has made, by the address of its structure.

    `keeps` has the node and its memory. Packages keep addresses of the node's members, although they should not.
    """

    what: str
    address: int
    function: Callable[[int | None], int]
    argument: int | None
    keeps: object


class PackageServer:
    """What the process holds: the package, its implementations, and its messages since the last answer."""

    def __init__(self, stage: mmap.mmap) -> None:
        isolated.limit(_MAX_FILE)
        self._stage = stage
        self.messages: list[tuple[int, str]] = []
        unable = forbid(self._report_refusal)
        if unable:
            self._say(_WARNING, f"its system calls are not restricted: {unable}".encode())
        self._functions: dict[str, Callable[..., int]] = {}
        self._handle: tuple[c_uint64, ...] = ()
        """The handle that functions of version 2.0 take first."""
        self._callback = LOG_CALLBACK(self._log)
        self._infrastructure = c.CpuGlobalInfrastructure(
            c.REPORT_FUNCTION(self._report), c.PROFILE_FUNCTION(lambda kind, milliseconds: None)
        )
        self._implementations: dict[int, Implementation] = {}
        self._count = 0

    def answer(self, message: Message) -> Message:
        """Do what a request asks for; a request that is a number asks to execute the implementation of that number.

        The answer to a number is 0 if there is nothing to report. Other answers have the package's messages too.
        """
        try:
            if not message.header:
                self._execute(message.number)
                if not self.messages:
                    return Message()
            arguments = dict(message.header)
            handler: Callable[..., dict[str, Any] | None] = getattr(self, f"do_{arguments.pop('call', 'nothing')}")
            answer = handler(message, **arguments) or {}
        except CallError as problem:
            answer = {"result": problem.code, "function": problem.function}
        except QnnError as problem:
            answer = {"refusal": [int(problem.code), problem.rule]}
        except BadPointer as problem:
            answer = {
                "refusal": [int(Code.BACKEND_OP_PACKAGE_REGISTRATION_FAILED), f"in {self._function()}: {problem}"]
            }
        except (LookupError, TypeError, ValueError) as problem:
            answer = {"refusal": [int(Code.COMMON_GENERAL), f"{type(problem).__name__}: {problem}"]}
        finally:
            message.close()
        messages, self.messages = self.messages, []
        return Message({**answer, "messages": messages})

    def _report_refusal(self, call: str) -> None:
        """Log that a system call was refused, also on the stage: the package may end its process because of it."""
        self._say(_WARNING, f"it called {call}, {REFUSED}".encode())
        enter(self._stage, f"{self._function()}, after it called {call}, {REFUSED}")

    def _function(self) -> str:
        """Return the name of the function that was called last."""
        return bytes(self._stage[:]).split(b"\0", 1)[0].decode("utf-8", "replace")

    def _log(self, line: bytes, level: int, time: int, arguments: int) -> None:
        """Keep a line of the package's log; its arguments are a va_list."""
        room = ctypes.create_string_buffer(_MAX_LINE)
        _libc.vsnprintf(room, c_uint64(_MAX_LINE), c_char_p(line), c_void_p(arguments))
        self._say(level, room.value)

    def _report(self, kind: int, line: bytes | None, *arguments: Any) -> None:
        """Keep a message; its format's arguments are integers, then doubles."""
        integers, doubles = arguments[: c.REPORT_INTEGERS], arguments[c.REPORT_INTEGERS :]
        content = format_message((line or b"").decode(errors="replace"), integers, doubles)
        self._say(_LEVELS.get(kind, _INFO), content.encode(errors="replace")[:_MAX_LINE])

    def _say(self, level: int, line: bytes) -> None:
        """Keep a message for the next answer, unless that has `MAX_LINES` already."""
        if len(self.messages) < MAX_LINES:
            self.messages.append((level, line.decode(errors="replace").strip()))

    # -- the package ---------------------------------------------------------------------------------------------------

    def do_open(self, message: Message, path: str, provider: str) -> dict[str, Any]:
        """Load the package, and return its name, its operations and its version."""
        enter(self._stage, "the start of the library")
        try:
            library = ctypes.CDLL(path)
        except OSError as problem:
            raise QnnError(Code.BACKEND_OP_PACKAGE_NOT_FOUND, "", f"it cannot be loaded: {problem}") from None
        try:
            provide = getattr(library, provider)
        except AttributeError:
            code, rule = Code.BACKEND_OP_PACKAGE_IF_PROVIDER_NOT_FOUND, f"it does not export '{provider}'"
            raise QnnError(code, "", rule) from None
        interface = OpPackageInterface()
        provide.argtypes, provide.restype = [POINTER(OpPackageInterface)], c_uint64
        enter(self._stage, provider)
        self._check(provider, provide(byref(interface)))
        version = interface.interfaceVersion
        types = VERSIONS.get((version.major, version.minor))
        if types is None:
            versions = " and ".join(f"{major}.{minor}" for major, minor in VERSIONS)
            rule = f"its interface has the version {version}; supported are {versions}"
            raise QnnError(Code.BACKEND_OP_PACKAGE_UNSUPPORTED_VERSION, "", rule)
        for (name, kinds), address in zip(types.items(), interface.functions, strict=False):
            if address:
                self._functions[name] = ctypes.CFUNCTYPE(c_uint64, *kinds)(address)
            elif name not in _OPTIONAL:
                raise QnnError(Code.BACKEND_OP_PACKAGE_REGISTRATION_FAILED, "", f"its function {name} is null")
        self._begin()
        name, operations = self._info()
        return {"name": name, "operations": operations, "version": str(version)}

    def _begin(self) -> None:
        """Let the package begin, with a log."""
        infrastructure, callback = ctypes.addressof(self._infrastructure), ctypes.cast(self._callback, c_void_p)
        if "create" in self._functions:
            handle = c_uint64()
            self._call("create", infrastructure, callback, _LOG_LEVEL, byref(handle))
            self._handle = (handle,)
            return
        self._call("init", infrastructure)
        if "logInitialize" in self._functions:
            # A package need not have a log.
            self._code("logInitialize", callback, _LOG_LEVEL)

    def _info(self) -> tuple[str, list[str]]:
        """Return the package's name and those of its operations."""
        found = c_void_p()
        self._call("getInfo", byref(found))

        def refuse(rule: str) -> QnnError:
            return QnnError(Code.BACKEND_OP_PACKAGE_REGISTRATION_FAILED, "", rule)

        if not found.value:
            raise refuse("getInfo answers a null pointer")
        info = read(found.value, OpPackageInfo)
        name = text(pointer(info, "packageName"))
        if not name:
            raise refuse("it has no name")
        if not 0 < info.numOperations <= MAX_OPERATIONS:
            raise refuse(f"it says that it has {info.numOperations} operations; 1 to {MAX_OPERATIONS} are possible")
        names = pointer(info, "operationNames")
        operations = [text(read(names, c_uint64, index).value) for index in range(info.numOperations)]
        if not all(operations):
            raise refuse(f"its operation {operations.index(next(each for each in operations if not each))} has no name")
        twice = next((each for each in operations if operations.count(each) > 1), None)
        if twice is not None:
            raise refuse(f"it has two operations of the name '{twice}'")
        return name, [each for each in operations if each]

    def _code(self, name: str, *arguments: Any, of: str = "") -> int:
        """Call a function of the package and return its code; `of` says what it is called for."""
        enter(self._stage, f"{name}{of}")
        return int(self._functions[name](*arguments))

    def _call(self, name: str, *arguments: Any, of: str = "") -> None:
        """Call a function of the package; raise its code if that is not 0."""
        self._check(f"{name}{of}", self._code(name, *arguments, of=of))

    @staticmethod
    def _check(function: str, code: int) -> None:
        if code:
            raise CallError(function, code)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def do_validate(self, message: Message) -> None:
        """Let the package validate a node."""
        (graph,) = read_graphs(memoryview(message.sections["graph"]), "the parent process")
        (node,) = graph.nodes
        keeps = Keeps()
        params = [value for value in node.params.values() if isinstance(value, ComposedTensor)]
        tensors = {each.name: write_tensor(each, keeps, version=1) for each in (*graph.tensors, *params)}
        config = write_node(node, tensors, keeps)
        self._call("validateOpConfig", *self._handle, config, of=f" of {node.type}")

    def do_create(self, message: Message, nbytes: int, offsets: dict[str, int]) -> dict[str, Any]:
        """Let the package implement nodes; tensors are at `offsets` in shared memory of `nbytes`, which comes along."""
        (graph,) = read_graphs(memoryview(message.sections["graph"]), "the parent process")
        shared = np.frombuffer(mmap.mmap(message.descriptors[0], nbytes), np.uint8)
        made: list[int] = []
        tensors = {each.name: each for each in graph.tensors}
        try:
            for node in graph.nodes:
                keeps: Keeps = [shared]
                described = _cpu_node(node, tensors, shared.ctypes.data, offsets, keeps)
                made.append(self._implement(node, described, keeps))
        except (CallError, QnnError, BadPointer):
            self.do_free(message, made)
            raise
        return {"implementations": made}

    def _implement(self, node: NodeEntry, described: c.CpuNode, keeps: Keeps) -> int:
        """Let the package implement a node, and return the implementation's number; `keeps` is the node's memory."""
        found = c_void_p()
        of = f" of node '{node.name}' ({node.type})"
        self._call("createOpImpl", *self._handle, None, ctypes.addressof(described), byref(found), of=of)
        if not found.value:
            raise QnnError(Code.GRAPH_FINALIZE_FAILED, "", f"createOpImpl{of} answers a null pointer")
        made = read(found.value, c.CpuOpImpl)
        if not made.opImplFn:
            raise QnnError(Code.GRAPH_FINALIZE_FAILED, "", f"the implementation{of} has no function")
        self._count += 1
        what, function = f"the implementation{of}", c.OP_IMPL_FUNCTION(made.opImplFn)
        self._implementations[self._count] = Implementation(
            what, found.value, function, made.userData, (described, keeps)
        )
        return self._count

    def do_nothing(self, message: Message) -> None:
        """Answer with nothing but messages."""

    def _execute(self, number: int) -> None:
        """Execute an implementation."""
        made = self._implementations[number]
        enter(self._stage, made.what)
        code = made.function(made.argument)
        if code:
            raise CallError(made.what, code)

    def do_free(self, message: Message, implementations: Iterable[int]) -> None:
        """Let the package free implementations."""
        for number in implementations:
            self._code("freeOpImpl", *self._handle, self._implementations.pop(number).address)

    def do_close(self, message: Message) -> None:
        """Let the package end."""
        self.do_free(message, list(self._implementations))
        for name in ("logTerminate", "terminate", "free"):
            if name in self._functions:
                self._code(name, *self._handle)


def format_message(text_format: str, integers: Sequence[int], doubles: Sequence[float]) -> str:
    """Return a text as C's printf makes it of a format; what cannot be converted stays as it is.

    >>> format_message("%d of %5.1f%%, %lu", [2**64 - 1, 2**40], [2.25])
    '-1 of   2.2%, 1099511627776'
    """
    remaining_integers, remaining_doubles = iter(integers), iter(doubles)

    def convert(match: re.Match[str]) -> str:
        """Return the text of a conversion, or the conversion itself if no argument is left or the next does not fit."""
        flags, length, kind = match.groups()
        try:
            if kind == "%":
                return "%"
            if kind in "fFeEgG":
                return f"%{flags}{kind}" % next(remaining_doubles)
            value = next(remaining_integers)
            if kind == "s":
                return f"%{flags}s" % (text(value) or "(null)")
            if kind == "p":
                return f"{value:#x}"
            bits = 64 if length in ("l", "ll", "z", "j", "t") else 32
            value &= (1 << bits) - 1
            if kind in "di" and value >> (bits - 1):
                value -= 1 << bits
            return f"%{flags}{'d' if kind in 'diu' else kind}" % value
        except (StopIteration, BadPointer, ValueError, OverflowError):
            return match.group()

    return _CONVERSION.sub(convert, text_format)


def _cpu_node(
    node: NodeEntry, tensors: Mapping[str, ComposedTensor], base: int, offsets: Mapping[str, int], keeps: Keeps
) -> c.CpuNode:
    """Build a node as the CPU backend shows it; its tensors are at `offsets` from `base`."""

    def cpu_tensor(entry: ComposedTensor) -> c.CpuTensor:
        structure = write_tensor(entry, keeps, version=1)
        dims = (c_uint32 * max(1, len(entry.dims)))(*entry.dims)
        made = c.CpuTensor(0, entry.dtype, len(entry.dims), dims, dims, base + offsets[entry.name])
        made.quantizeParams = structure.v1.quantizeParams
        keeps.extend((dims, made))
        return made

    def pointers(kind: Any, items: list[Any]) -> Any:
        """Return an array of pointers, null for an operand that is left out."""
        array = (POINTER(kind) * max(1, len(items)))(*(item and ctypes.pointer(item) for item in items))
        keeps.extend((array, items))
        return array

    made: dict[str, c.CpuTensor] = {}
    for name in (*node.inputs, *node.outputs):
        if name not in made and tensors[name].type != TensorType.NULL:
            made[name] = cpu_tensor(tensors[name])
    params = []
    for name, value in node.params.items():
        param = c.CpuParam(c.CpuParamType.SCALAR, name.encode())
        if isinstance(value, ComposedTensor):
            param.type, param.tensorParam = c.CpuParamType.TENSOR, ctypes.pointer(cpu_tensor(value))
        elif isinstance(value, str):
            param.type, param.string = c.CpuParamType.STRING, value.encode()
        else:
            param.scalarParam = float(value)
        params.append(param)
    inputs, outputs = ([made.get(name) for name in side] for side in (node.inputs, node.outputs))
    return c.CpuNode(
        node.name.encode(), node.package.encode(), node.type.encode(),
        len(params), pointers(c.CpuParam, params),
        len(inputs), pointers(c.CpuTensor, inputs),
        len(outputs), pointers(c.CpuTensor, outputs),
    )  # fmt: skip


if __name__ == "__main__":
    serve(sys.argv[1:], lambda stage: PackageServer(stage).answer)
