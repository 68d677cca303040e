"""The process that calls the `onnx` package for `definitions`: ``...onnx.definitions_process SOCKET PARENT``.

The package is written in C++ and does not check everything, so a damaged model can end this process. It ends no other.
"""

from __future__ import annotations

import socket
import sys
from contextlib import suppress

from isthmus.system.channel import Channel, ChannelClosed, Message
from isthmus.system.isolated import end_with

IDLE_SECONDS = 5.0
"""How long the process waits for another request."""


def define(content: bytes) -> bytes:
    """Return the function that defines the only node of a model, with the defaults of the node's attributes."""
    from onnx import FunctionProto, ModelProto, defs, shape_inference

    model = ModelProto.FromString(content)
    node, opset = model.graph.node[0], model.opset_import[0]
    schema = defs.get_schema(node.op_type, max_inclusive_version=opset.version)
    types = {value.name: value.type for value in model.graph.input}
    # The functions that write definitions do not check the node themselves.
    shape_inference.infer_node_outputs(schema, node, types, opset_imports=[opset])
    if schema.has_function:  # type: ignore[attr-defined]
        function = schema.function_body
    else:
        # The type of an absent input is empty.
        inputs = [types[name].SerializeToString() if name else b"" for name in node.input]
        written = schema.get_context_dependent_function(node.SerializeToString(), inputs)  # type: ignore[attr-defined]
        function = FunctionProto.FromString(written)
    function.attribute_proto.extend(a.default_value for a in schema.attributes.values() if a.default_value.name)
    return bytes(function.SerializeToString())


def convert(content: bytes, opset: int) -> bytes:
    """Return a model as one of a newer operator set."""
    from onnx import ModelProto, checker, version_converter

    model = ModelProto.FromString(content)
    # The converter expects a model that is well-formed.
    checker.check_model(model)
    return bytes(version_converter.convert_version(model, opset).SerializeToString())


def main(end: str, parent: str) -> None:
    """Answer requests until there are no more, or none for `IDLE_SECONDS`.

    A request has a model and a job: ``define``, or the number of an operator set to convert to. An answer has the
    result, or the problem.
    """
    end_with(int(parent))
    channel = Channel(socket.socket(fileno=int(end)))
    while channel.is_ready(IDLE_SECONDS):
        request = channel.receive()
        job, content = request.header["job"], bytes(request.sections["model"])
        try:
            answer = Message({}, {"result": define(content) if job == "define" else convert(content, int(job))})
        except Exception as error:
            answer = Message({"problem": " ".join(str(error).split()) or type(error).__name__})
        channel.send(answer)


if __name__ == "__main__":
    with suppress(ChannelClosed):
        main(*sys.argv[1:])
