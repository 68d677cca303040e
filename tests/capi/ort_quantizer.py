"""Models of the zoo quantized by ONNX Runtime's own tools, with the settings they have for QNN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support import quantized_models, quiet, stimuli

from capi import ort_provider


@quiet.errors_only()
def quantized(key: str, folder: Path, activations: str, weights: str, per_channel: bool = False) -> Path:
    """A model with weights and activations of these types, named as in `QuantType` (``QUInt16``, ``QInt8``).

    Ranges come from the first stimuli of the model.
    """
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Feeds(CalibrationDataReader):  # type: ignore[misc]
        """The stimuli, one after the other."""

        def __init__(self) -> None:
            self._feeds = iter([{n: feed[n] for n in names} for feed in stimuli.stimuli(key)[:3]])

        def get_next(self) -> Any:
            return next(self._feeds, None)

    source = ort_provider.fixed(key, folder)
    onnx.save(quantized_models.with_initializers(source), source)
    # The provider rounds the numbers of a BatchNormalization to the type of weights, unless it is folded before.
    folded, ready = folder / f"{key}_folded.onnx", folder / f"{key}_ready.onnx"
    quant_pre_process(source, folded, skip_symbolic_shape=True)
    proto = onnx.load(folded)
    # The next tool fails on metadata.
    del proto.metadata_props[:]
    onnx.save(proto, folded)
    if not qnn_preprocess_model(folded, ready):
        ready = folded
    names = [value.name for value in onnx.load(str(ready)).graph.input]
    target = folder / f"{key}_{activations}_{weights}.onnx"
    config = get_qnn_qdq_config(
        ready, Feeds(), activation_type=getattr(QuantType, activations), weight_type=getattr(QuantType, weights),
        per_channel=per_channel,
    )  # fmt: skip
    quantize(ready, target, config)
    return target
