"""One ONNX node run by ONNX Runtime: the oracle of the reference computations."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime


def ort(op: str, arrays: list, outputs: int = 1, opset: int = 17, **attributes: Any) -> list[np.ndarray]:
    """The results of one ONNX node in ONNX Runtime."""
    names = ["" if a is None else f"in{i}" for i, a in enumerate(arrays)]
    results = [f"out{i}" for i in range(outputs)]
    node = onnx.helper.make_node(op, names, results, **attributes)
    inputs = [
        onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, arrays, strict=True)
        if n
    ]
    graph = onnx.helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=r) for r in results])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {n: np.asarray(a) for n, a in zip(names, arrays, strict=True) if n})


def last(x: np.ndarray) -> np.ndarray:
    """Channels from the second axis to the last."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))
