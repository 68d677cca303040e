"""ONNX Runtime's QNN provider on a library of ours or the vendor's: sessions, fixed models, where the nodes went."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support import oracles, zoo

PROVIDER = "QNNExecutionProvider"


def vendor_library(name: str) -> Path:
    """A library of the package onnxruntime-qnn."""
    import onnxruntime_qnn

    return Path(onnxruntime_qnn.get_library_path()).parent / f"lib{name}.so"


def device() -> Any:
    """The provider's device; registered once a process, perhaps by another test."""
    import onnxruntime
    import onnxruntime_qnn

    def found() -> Any:
        return next((each for each in onnxruntime.get_ep_devices() if each.ep_name == PROVIDER), None)

    if found() is None:
        onnxruntime.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
    return found()


def session(
    model: Path | str | bytes,
    backend: Path | str,
    options: Mapping[str, str] | None = None,
    config: Mapping[str, str] | None = None,
    severity: int = 4,
    exact: bool = True,
) -> Any:
    """A session whose nodes are offered to the provider on a library."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = severity
    settings.add_provider_for_devices([device()], {"backend_path": str(backend), **(options or {})})
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for name, value in (config or {}).items():
        settings.add_session_config_entry(name, value)
    return oracles.onnx_session(model, settings, exact=exact)


def assigned(opened: Any) -> tuple[int, int]:
    """Return how many nodes of the model are the provider's, and how many there are."""
    mine = total = 0
    for part in opened.get_provider_graph_assignment_info():
        nodes = len(part.get_nodes())
        total += nodes
        mine += nodes if part.ep_name == PROVIDER else 0
    return mine, total


def fixed(key: str, folder: Path) -> Path:
    """A model of the zoo whose inputs have the sizes that tests use, and whose constants are constants."""
    import onnx
    from onnx import numpy_helper
    from onnxruntime.tools.onnx_model_utils import fix_output_shapes

    model = zoo.MODELS[key]
    proto = onnx.load(str(zoo.path(key)))
    graph = proto.graph
    for value in list(graph.input):
        if value.name in model.constants:
            import numpy as np

            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            graph.initializer.append(numpy_helper.from_array(np.array(model.constants[value.name], dtype), value.name))
            graph.input.remove(value)
            continue
        for index, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value") or dim.dim_value <= 0:
                expected = model.shapes.get(value.name)
                dim.dim_value = expected[index] if expected is not None else 1
    for value in graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                dim.Clear()
    del graph.value_info[:]
    try:
        proto = onnx.shape_inference.infer_shapes(proto)
        fix_output_shapes(proto)
    except Exception:
        # ONNX Runtime infers what it needs by itself.
        pass
    file = folder / f"{key}.onnx"
    onnx.save(proto, str(file))
    return file
