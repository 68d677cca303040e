"""ONNX's own definitions: operators that ONNX defines by other operators, and the conversion of older operator sets.

Both are computed by the `onnx` package, which is imported only if a model needs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.errors import Code, QnnError
from isthmus.frontends.onnx.layout import OnnxValue
from isthmus.frontends.onnx.schema import messages
from isthmus.frontends.onnx.tensors import NUMPY, data_type

_NUMBERS = {data_type(dtype): number for number, dtype in NUMPY.items()}
"""ONNX's numbers of the data types that values may have."""
_FAILURES = (RuntimeError, ValueError, TypeError, LookupError)
"""What functions of the `onnx` package raise for a model that is not well-formed, beside exceptions of their own."""


def is_defined(operator: str, opset: int) -> bool:
    """Return whether ONNX's operator set `opset` defines this operator by other operators."""
    schema = _schema(operator, opset)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def definition(
    operator: str,
    opset: int,
    attributes: Mapping[str, Any],
    inputs: Sequence[OnnxValue | None],
    outputs: Sequence[str],
    what: str,
) -> Any:
    """Return the function that defines a node of an operator for which `is_defined` is true.

    Some definitions depend on the node: on its attributes, on the types and dimensions of its inputs, and on which
    inputs and outputs it has. The function's own `attribute_proto` has the defaults of the attributes.

    Parameters
    ----------
    attributes
        The node's attributes as Python values.
    inputs
        The node's operands; None for one that is absent.
    outputs
        The names of the node's results; empty for one that is not used.
    what
        The node's name in errors.
    """
    from onnx import checker, helper, shape_inference

    schema = _schema(operator, opset)
    names = ["" if value is None else f"x{index}" for index, value in enumerate(inputs)]
    types = [_type(value) for value in inputs]
    try:
        node = helper.make_node(operator, names, outputs, **attributes)
        known = {name: type_ for name, type_ in zip(names, types, strict=True) if name}
        # The functions that write definitions do not check the node themselves.
        shape_inference.infer_node_outputs(schema, node, known, opset_imports=[helper.make_opsetid("", opset)])
        if schema.has_function:
            content = schema.function_body.SerializeToString()
        else:
            content = schema.get_context_dependent_function(
                node.SerializeToString(), [type_.SerializeToString() for type_ in types]
            )
    except (*_FAILURES, shape_inference.InferenceError, checker.ValidationError) as error:
        raise QnnError(
            Code.GRAPH_INVALID_OP_CONFIG, what, f"it breaks a rule of its operator ({' '.join(str(error).split())})"
        ) from error
    function = messages().FunctionProto.FromString(content)
    for attribute in schema.attributes.values():
        default = attribute.default_value
        if default.name:
            function.attribute_proto.append(messages().AttributeProto.FromString(default.SerializeToString()))
    return function


def _schema(operator: str, opset: int) -> Any:
    """Return the definition of an operator in ONNX's own domain, or None."""
    from onnx import defs

    try:
        return defs.get_schema(operator, max_inclusive_version=opset)
    except (defs.SchemaError, TypeError):
        # In a damaged file a name may not be text.
        return None


def _type(value: OnnxValue | None) -> Any:
    """Return the type of a value as ONNX's message; the type of an absent value is empty."""
    from onnx import TypeProto, helper

    if value is None:
        return TypeProto()
    return helper.make_tensor_type_proto(_NUMBERS[value.tensor.dtype], value.dims)


def converted(model: Any, opset: int, name: str) -> Any:
    """Return a model as one of a newer operator set, by ONNX's own version converter."""
    import onnx
    from onnx import version_converter

    try:
        whole = onnx.ModelProto.FromString(model.SerializeToString())
        # The converter expects a model that is well-formed.
        onnx.checker.check_model(whole)
        result = version_converter.convert_version(whole, opset)
    except (*_FAILURES, onnx.checker.ValidationError) as error:
        raise QnnError(
            Code.GRAPH_CREATE_FAILED,
            f"model '{name}'",
            f"ONNX's version converter cannot bring it to operator set {opset} ({' '.join(str(error).split())})",
        ) from error
    return messages().ModelProto.FromString(result.SerializeToString())
