"""ONNX's own definitions: operators that ONNX defines by other operators, and the conversion of older operator sets.

Both are computed by the `onnx` package, in a process of its own and only if a model needs them: the package is written
in C++ and may crash if a model is damaged.
"""

from __future__ import annotations

import atexit
import os
import signal
import time
from functools import lru_cache
from typing import Any

from isthmus.errors import Code, QnnError
from isthmus.frontends.formats import malformed
from isthmus.frontends.onnx.node import OnnxNode
from isthmus.frontends.onnx.schema import messages
from isthmus.frontends.onnx.tensors import NUMPY, data_type
from isthmus.system.channel import Channel, ChannelClosed, Message
from isthmus.system.child import Child, describe_status
from isthmus.system.lock import Lock
from isthmus.system.shield import check

# ONNX's numbers of the data types that values may have.
_NUMBERS = {data_type(dtype): number for number, dtype in NUMPY.items()}
MAX_SECONDS = 120
"""The longest time for a call of the `onnx` package."""


def is_defined(operator: str, opset: int) -> bool:
    """Return whether ONNX's operator set `opset` defines this operator by other operators."""
    schema = _schema(operator, opset)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def definition(node: OnnxNode) -> Any:
    """Return the function that defines a node of an operator for which `is_defined` is true.

    Some definitions depend on the node: on its attributes, on the types and dimensions of its inputs, and on which
    inputs and outputs it has. The function's own `attribute_proto` has the defaults of the attributes.
    """
    from onnx import helper

    names = ["" if value is None else f"x{index}" for index, value in enumerate(node.inputs)]
    declared = [
        helper.make_tensor_value_info(name, _NUMBERS[value.tensor.dtype], value.dims)
        for name, value in zip(names, node.inputs, strict=True)
        if value is not None
    ]
    # The names of results do not matter, so that equal nodes have equal requests.
    results = [f"y{index}" if name else "" for index, name in enumerate(node.outputs)]
    call = helper.make_node(node.op, names, results, **node.attributes)
    graph = helper.make_graph([call], "definition", declared, [])
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", node.opset)]).SerializeToString()
    try:
        function = _define(content)
    except _FailedError as failure:
        rule = f"it breaks a rule of its operator ({failure})"
        raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, node.what, rule) from failure
    return messages().FunctionProto.FromString(function)


def convert_model(model: Any, opset: int, name: str) -> Any:
    """Return a model as one of a newer operator set, by ONNX's own version converter."""
    from google.protobuf.message import EncodeError

    try:
        content = _answer(str(opset), model.SerializeToString())
    except (_FailedError, EncodeError) as failure:
        rule = f"ONNX's version converter cannot bring it to operator set {opset} ({failure})"
        raise malformed(f"model '{name}'", rule) from failure
    return messages().ModelProto.FromString(content)


class _FailedError(Exception):
    """The `onnx` package failed, for the reason in the text."""


@lru_cache(maxsize=256)
def _define(content: bytes) -> bytes:
    """Return the definition of the node in a model; nodes of equal types share one."""
    return _answer("define", content)


class _Worker:
    """The process that calls the `onnx` package; it ends by itself when it is idle."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._channel, theirs = Channel.pair()
        with theirs:
            module = "isthmus.frontends.onnx.definitions_process"
            self._process = Child(module, str(self.owner), descriptors=[theirs.fileno()], stderr=None)

    def ask(self, job: str, content: bytes) -> Message | None:
        """Return the answer to a request; None if the process had ended before, because nothing needed it."""
        limit = time.monotonic() + MAX_SECONDS

        def end_in_time() -> None:
            check()
            if time.monotonic() > limit:
                self._process.kill()

        try:
            self._channel.send(Message({"job": job}, {"model": content}), end_in_time)
            return self._channel.receive(end_in_time)
        except ChannelClosed:
            status = self._process.wait()
            # The system kills it when the thread that started it ends.
            if status in (0, -signal.SIGKILL):
                return None
            raise _FailedError(f"its process ended ({describe_status(status)})") from None

    def close(self) -> None:
        """End the process."""
        self._channel.close()
        self._process.end()


_lock = Lock()
# The worker while it waits for a request.
_idle: list[_Worker] = []


def _answer(job: str, content: bytes) -> bytes:
    """Let the worker do a job with a model; see `definitions_process`."""
    for _ in range(2):
        with _lock:
            worker = _idle.pop() if _idle else _Worker()
        if worker.owner != os.getpid():
            # A process that was forked has copies of its parent's pipes.
            worker = _Worker()
        try:
            answer = worker.ask(job, content)
        except BaseException:
            worker.close()
            raise
        if answer is None:
            worker.close()
            continue
        with _lock:
            _idle.append(worker)
        if "problem" in answer.header:
            raise _FailedError(answer.header["problem"][:500])
        return bytes(answer.sections["result"])
    raise _FailedError("its process ends before it answers")


@atexit.register
def _close_idle() -> None:
    """End the worker."""
    while _idle:
        worker = _idle.pop()
        if worker.owner == os.getpid():
            worker.close()


def _schema(operator: str, opset: int) -> Any:
    """Return the definition of an operator in ONNX's own domain, or None."""
    from onnx import defs

    try:
        return defs.get_schema(operator, max_inclusive_version=opset)
    except (defs.SchemaError, TypeError):
        # In a damaged file a name may not be text.
        return None
