"""ONNX Runtime's fused operators give its answers, and what is not supported is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto

import isthmus
from frontends.onnx.graphs import check, convert, expected, floats, model, node
from isthmus.errors import QnnError

RNG = np.random.default_rng(3)
INTS = TensorProto.INT32


def weights(*dims: int) -> np.ndarray:
    return RNG.standard_normal(dims).astype(np.float32)


def fused(
    op: str, operands: str, outputs: str, inputs: dict[str, Any], constants: dict[str, Any] | None = None, **more: Any
) -> ModelProto:
    """A model of one operator of com.microsoft; operands that are no inputs are constants."""
    made = node(op, operands, outputs, domain="com.microsoft", **more)
    return model([made], inputs, " ".join(n for n in outputs.split() if n != "-"), constants, domains=["com.microsoft"])


def gqa(
    operands: str, inputs: dict[str, Any] | None = None, total: int = 3, wants: str = "y r s", **more: Any
) -> ModelProto:
    """A GroupQueryAttention of two heads of queries and one of keys, with this many keys in all."""
    given = {"q": floats(1, 3, 32), "k": floats(1, 3, 16), "v": floats(1, 3, 16)} if "q" in operands.split() else {}
    lengths = {"n": np.int32([total - 1]), "t": np.int32(total), "cos": weights(16, 8), "sin": weights(16, 8)}
    constants = {name: value for name, value in lengths.items() if name in operands.split()}
    made = fused("GroupQueryAttention", operands, "y r s", given | (inputs or {}), constants, num_heads=2,
                 kv_num_heads=1, **more)  # fmt: skip
    del made.graph.output[len(wants.split()) :]
    return made


def conv(operands: str = "x w b", **more: Any) -> ModelProto:
    """A FusedConv of a small picture."""
    inputs = {"x": floats(1, 3, 6, 5)} | ({"z": floats(1, 4, 6, 5)} if "z" in operands else {})
    constants = {"w": weights(4, 3, 3, 3), "b": weights(4)}
    given = {name: value for name, value in constants.items() if name in operands.split()}
    return fused("FusedConv", operands, "y", inputs, given, pads=[1, 1, 1, 1], **more)


def gemm(**more: Any) -> ModelProto:
    """A FusedGemm of a small matrix."""
    return fused(
        "FusedGemm", "x w b", "y", {"x": floats(3, 6)}, {"w": weights(4, 6), "b": weights(4)}, transB=1, **more
    )


CONV_ACTIVATIONS: dict[str, Any] = {
    "Relu": {}, "Sigmoid": {}, "Tanh": {}, "LeakyRelu": {"activation_params": [0.3]},
    "Clip": {"activation_params": [-0.5, 1.5]}, "HardSigmoid": {"activation_params": [0.4, 0.3]},
}  # fmt: skip
GEMM_ACTIVATIONS: dict[str, Any] = {
    "Relu": {}, "Sigmoid": {}, "Softplus": {}, "Softsign": {}, "Tanh": {}, "Elu": {"activation_alpha": 0.7},
    "LeakyRelu": {"activation_alpha": 0.3}, "ThresholdedRelu": {"activation_alpha": 0.4},
    "HardSigmoid": {"activation_alpha": 0.4, "activation_beta": 0.3},
    "Selu": {"activation_alpha": 1.5, "activation_gamma": 1.2},
}  # fmt: skip
KV_PAST = {"pk": floats(1, 1, 5, 16), "pv": floats(1, 1, 5, 16)}
X, WIDE = {"x": floats(2, 3, 8)}, {"g": weights(8), "b": weights(8), "c": weights(8)}
QKV = {"q": floats(2, 3, 8), "k": floats(2, 5, 8), "v": floats(2, 5, 8)}
PAST = {"pk": floats(2, 2, 4, 4), "pv": floats(2, 2, 4, 4)}
TABLES = {"cos": weights(16, 4), "sin": weights(16, 4)}
HALF_TABLES = {"cos": weights(16, 2), "sin": weights(16, 2)}
PLACES = {"p": np.array([[3, 1, 2], [0, 5, 4]], np.int64)}
EMBEDDINGS = {"w": weights(9, 8), "t": weights(6, 8), "s": weights(3, 8), "g": weights(8), "b": weights(8)}
IDS = {"i": (INTS, (2, 4)), "j": (INTS, (2, 4))}
ATTENTION = {"w": weights(8, 24), "b": weights(24)}
CASES = {
    "BiasGelu": fused("BiasGelu", "x b", "y", X, WIDE),
    "FastGelu": fused("FastGelu", "x", "y", X),
    "FastGelu with a bias": fused("FastGelu", "x b", "y", X, WIDE),
    "QuickGelu": fused("QuickGelu", "x", "y", X),
    "QuickGelu of another slope": fused("QuickGelu", "x", "y", X, alpha=1.1),
    "Gelu": fused("Gelu", "x", "y", X),
    "FusedMatMul": fused("FusedMatMul", "x m", "y", X, {"m": weights(2, 8, 5)}, alpha=0.5),
    "FusedMatMul, both turned": fused("FusedMatMul", "x m", "y", X, {"m": weights(2, 5, 3)}, transA=1, transB=1),
    **{f"FusedConv, {name}": conv(activation=name, **params) for name, params in CONV_ACTIVATIONS.items()},
    "FusedConv without an activation": conv(),
    "FusedConv with a sum": conv("x w b z", activation="Relu"),
    "FusedConv with a sum and no bias": conv("x w - z", activation="LeakyRelu", activation_params=[0.2]),
    **{f"FusedGemm, {name}": gemm(activation=name, **params) for name, params in GEMM_ACTIVATIONS.items()},
    "FusedGemm, scaled": gemm(activation="Relu", alpha=0.5, beta=2.0),
    "SkipLayerNormalization": fused("SkipLayerNormalization", "x z g b c", "y - - t", X | {"z": floats(2, 3, 8)}, WIDE),
    "SkipLayerNormalization alone": fused("SkipLayerNormalization", "x z g", "y", X | {"z": floats(2, 3, 8)}, WIDE),
    "SkipSimplifiedLayerNormalization": fused(
        "SkipSimplifiedLayerNormalization", "x z g c", "y - - t", X | {"z": floats(2, 3, 8)}, WIDE, epsilon=1e-5
    ),
    "EmbedLayerNormalization": fused(
        "EmbedLayerNormalization", "i j w t s g b m", "y n", IDS | {"m": (INTS, (2, 4))}, EMBEDDINGS
    ),
    "EmbedLayerNormalization of positions": fused(
        "EmbedLayerNormalization", "i - w t - g b - p", "y n", IDS, EMBEDDINGS | {"p": np.int32([[3, 2, 1, 0]] * 2)}
    ),
    "Attention": fused("Attention", "x w b", "y", X, ATTENTION, num_heads=2),
    "Attention of one direction": fused("Attention", "x w b", "y", X, ATTENTION, num_heads=2, unidirectional=1),
    "Attention with a mask": fused(
        "Attention", "x w b m", "y", X, ATTENTION | {"m": np.int32([[1, 1, 0], [1, 0, 0]])}, num_heads=2
    ),
    "Attention with a past": fused(
        "Attention", "x w b - p", "y r", X | {"p": floats(2, 2, 2, 4, 4)}, ATTENTION, num_heads=2, unidirectional=1
    ),
    "Attention of another scale and sizes": fused(
        "Attention", "x w b", "y", X, {"w": weights(8, 20), "b": weights(20)}, num_heads=2, scale=0.3,
        qkv_hidden_sizes=[8, 8, 4],
    ),
    "MultiHeadAttention": fused("MultiHeadAttention", "q k v", "y", QKV, num_heads=2),
    "MultiHeadAttention with biases": fused(
        "MultiHeadAttention", "q k v b m a", "y", QKV | {"a": floats(2, 2, 3, 5)},
        {"b": weights(24), "m": np.int32([[1, 1, 1, 0, 1], [1, 0, 0, 1, 1]])}, num_heads=2,
    ),
    "MultiHeadAttention with a past": fused(
        "MultiHeadAttention", "q k v - - - pk pv", "y r s", QKV | {n: floats(2, 3, 8) for n in "kv"} | PAST,
        num_heads=2, unidirectional=1,
    ),
    "MultiHeadAttention of one direction to more keys": fused(
        "MultiHeadAttention", "q k v", "y", QKV, num_heads=2, unidirectional=1
    ),
    "MultiHeadAttention of one query to more keys": fused(
        "MultiHeadAttention", "q k v", "y", QKV | {"q": floats(2, 1, 8)}, num_heads=2, unidirectional=1
    ),
    "MultiHeadAttention of one direction to more keys with a past": fused(
        "MultiHeadAttention", "q k v - - - pk pv", "y r s", QKV | PAST, num_heads=2, unidirectional=1
    ),
    "MultiHeadAttention of one direction to fewer keys": fused(
        "MultiHeadAttention", "q k v", "y", QKV | {"q": floats(2, 7, 8)}, num_heads=2, unidirectional=1
    ),
    "MultiHeadAttention to heads": fused(
        "MultiHeadAttention", "q pk pv", "y", {"q": floats(2, 3, 8)} | PAST, num_heads=2, scale=0.7
    ),
    "GroupQueryAttention": gqa("q k v - - n t"),
    "GroupQueryAttention in one tensor": gqa("p - - - - n t", {"p": floats(1, 3, 64)}),
    "GroupQueryAttention with a past": gqa("q k v pk pv n t", KV_PAST, 8),
    "GroupQueryAttention with room in the past": gqa("q k v pk pv n t", KV_PAST, 5, wants="y"),
    "GroupQueryAttention, rotated": gqa("q k v pk pv n t cos sin", KV_PAST, 8, do_rotary=1),
    "GroupQueryAttention, neighbours rotated": gqa("q k v - - n t cos sin", do_rotary=1, rotary_interleaved=1),
    "GroupQueryAttention of a window": gqa("q k v pk pv n t", KV_PAST, 8, local_window_size=3, softcap=2.0),
    "RotaryEmbedding": fused("RotaryEmbedding", "x p cos sin", "y", X, TABLES | PLACES),
    "RotaryEmbedding, interleaved": fused("RotaryEmbedding", "x p cos sin", "y", X, TABLES | PLACES, interleaved=1),
    "RotaryEmbedding of heads from a position": fused(
        "RotaryEmbedding", "x p cos sin", "y", {"x": floats(2, 2, 3, 8)}, TABLES | {"p": np.array([4], np.int64)}
    ),
    "RotaryEmbedding of a part": fused(
        "RotaryEmbedding", "x p cos sin", "y", X, HALF_TABLES | PLACES, num_heads=1, rotary_embedding_dim=4
    ),
}  # fmt: skip
REFUSED = {
    "activation 'Cosine'": gemm(activation="Cosine"),
    r"activation 'Clip' with parameters \[1.0\]": conv(activation="Clip", activation_params=[1.0]),
    "attribute transBatchA = 1": fused("FusedMatMul", "x m", "y", X, {"m": weights(2, 8, 5)}, transBatchA=1),
    "the mean or the deviation": fused("SkipLayerNormalization", "x x g", "y m", X, WIDE),
    "attribute do_rotary = 1": fused("Attention", "x w b", "y", X, ATTENTION, num_heads=2, do_rotary=1),
    "a mask of dimensions": fused("Attention", "x w b m", "y", X, ATTENTION | {"m": np.int32([3, 1])}, num_heads=2),
    "queries, keys and values in one tensor": fused(
        "MultiHeadAttention", "q", "y", {"q": floats(2, 3, 2, 3, 4)}, num_heads=2
    ),
    "attribute is_packed_batching = 1": fused(
        "RotaryEmbedding", "x p cos sin", "y", X, TABLES | PLACES, is_packed_batching=1
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_fused_operator_is_what_it_fuses(case: str) -> None:
    check(CASES[case], 2e-5)


@pytest.mark.parametrize("reason", REFUSED)
def test_forms_that_are_not_supported_are_refused_by_name(reason: str) -> None:
    with pytest.raises(QnnError, match=reason):
        convert(REFUSED[reason])


def test_keys_and_values_of_the_past_grow_from_run_to_run(tmp_path: Any) -> None:
    """The lengths are inputs, and the past begins empty: each run has other shapes, in memory for the longest."""
    step = {"q": floats(1, "S", 32), "k": floats(1, "S", 16), "v": floats(1, "S", 16)}
    past = {"pk": floats(1, 1, "P", 16), "pv": floats(1, 1, "P", 16)}
    lengths = {"n": (INTS, (1,)), "t": (INTS, ())}
    tables = {"cos": weights(16, 8), "sin": weights(16, 8)}
    made = fused(
        "GroupQueryAttention", "q k v pk pv n t cos sin", "y pk2 pv2", step | past | lengths, tables, num_heads=2,
        kv_num_heads=1, do_rotary=1,
    )  # fmt: skip
    onnx.save(made, tmp_path / "step.onnx")
    greatest = {"q": (1, 4, 32), "pk": (1, 1, 6, 16)}
    cache = {name: np.zeros((1, 1, 0, 16), np.float32) for name in past}
    with isthmus.Session(tmp_path / "step.onnx", shapes=greatest) as session:
        for length in (4, 1, 1):
            total = cache["pk"].shape[2] + length
            feeds = {name: weights(1, length, dims[2]) for name, (_, dims) in step.items()}
            feeds |= cache | {"n": np.int32([total - 1]), "t": np.array(total, np.int32)}
            found = session.run(feeds)
            for name, wanted in expected(made, feeds).items():
                np.testing.assert_allclose(found[name], wanted, 1e-5, 1e-5)
            cache = {name: found[f"{name}2"] for name in past}
