"""One ONNX node run by ONNX Runtime: the oracle of the reference computations."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from support import oracles


def ort(op: str, arrays: list, outputs: int = 1, opset: int = 17, **attributes: Any) -> list[np.ndarray]:
    """Run one node in ONNX Runtime."""
    names = ["" if a is None else f"in{i}" for i, a in enumerate(arrays)]
    results = [f"out{i}" for i in range(outputs)]
    node = onnx.helper.make_node(op, names, results, **attributes)
    (name, x), *constants = [(n, np.asarray(a)) for n, a in zip(names, arrays, strict=True) if n]
    dtype = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [onnx.helper.make_tensor_value_info(name, dtype, x.shape)],
        [onnx.ValueInfoProto(name=r) for r in results],
        # All operands but the first: 8-bit products are exact on every processor only with constant weights.
        [onnx.numpy_helper.from_array(a, n) for n, a in constants],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)
    session = oracles.onnx_session(model.SerializeToString())
    return session.run(None, {name: x})


def last(x: np.ndarray) -> np.ndarray:
    """Channels from the second axis to the last."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))
