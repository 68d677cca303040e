"""Context binaries are at most 1.05 times as large as those of the vendor's library: of models, and of sharing graphs.

Both are for one chip and in one precision. The figures in docs/context-binary.md are checked too.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from capi.qnn_calls import Client
from capi.test_binary_information import configs, on_chip
from capi.test_sharing_rules import PRECISIONS
from support import tiny, zoo
from support.alone import alone
from support.libraries import copy_into
from support.suites import LONG, sampled

from backends.htp.test_binary_sizes import size_of, tables
from isthmus import frontends, qnn
from isthmus.backends.htp.headers import CONTEXT_CONFIG
from isthmus.backends.htp.options import HtpContextOption
from isthmus.backends.vendor.library import find, is_installed
from isthmus.cabi import objects

pytestmark = pytest.mark.skipif(not is_installed(), reason="needs Qualcomm's library")
SOC = "SM8750"
MOST = 1.05
LITTLE = 80_000
"""What a further graph of the same weights may add."""
SIZE = 1024
NUMBERS = (np.random.default_rng(0).standard_normal((SIZE, SIZE)) * 0.05).astype(np.float32)
NAMES = [
    "okay_nabu", "hand_landmark_lite", "face_landmark", "iris_landmark", "selfie_segmentation", "palm_detection_lite",
    "efficientnet_lite0", "dtln_1", "dtln_2", "nsnet2", "kws_fp32", "kws_qdq", "precise_vad", "ppocr_det",
]  # fmt: skip
"""Models that the vendor's library compiles in some seconds."""
IN_8_BITS = ("okay_nabu", "efficientnet_lite0", "kws_qdq")


def ours(*models: Path) -> int:
    """The bytes of our binary of these models, which share weights."""
    with qnn.Backend("htp", {"htp": {"precision": "float16"}, "devices": [{"soc_model": 69}]}) as backend:
        context = backend.create_context({qnn.htp.WEIGHT_SHARING_ENABLED: True})
        for model in models:
            context.compose(model)
        return len(context.prepare_offline())


@functools.cache
def theirs(model: Path) -> int:
    """The bytes of the vendor's binary of one model."""
    with qnn.Backend("qnn-htp", {"qnn-htp": {"soc": SOC, "precision": "float16"}}) as backend:
        context = backend.create_context()
        context.add_graph(frontends.load(model)).finalize()
        return len(context.get_binary())


@pytest.mark.parametrize("name", sampled(NAMES, len(NAMES)))
def test_a_model_takes_no_more_than_with_the_vendors_library(name: str) -> None:
    ratio = ours(zoo.path(name)) / theirs(zoo.path(name))
    assert ratio <= MOST
    low, high = tables().range
    assert low - 0.01 <= ratio <= high + 0.01


def test_the_document_counts_the_models_and_those_in_8_bits() -> None:
    text = tables().text
    assert len(NAMES) == 14
    assert {name for name in NAMES if not has_float_weights(name)} == set(IN_8_BITS)
    assert re.search(r"Fourteen models of the tests, eleven in floats\s+of 16 bits and three in 8 bits,", text)
    assert len(IN_8_BITS) == 3


def has_float_weights(name: str) -> bool:
    """Return whether most constants of a model are floats."""
    constants = [each for each in frontends.load(zoo.path(name)).tensors.values() if each.data is not None]
    return max(constants, key=lambda each: each.nbytes).dtype.is_float


@LONG
@pytest.mark.parametrize("name", tables().floats)
def test_the_documented_bytes_of_the_vendors_library_are_its(name: str) -> None:
    documented = tables().floats[name][2]
    assert abs(theirs(zoo.path(name)) - documented) <= 0.02 * documented
    assert size_of(zoo.path(name), "float32") > MOST * theirs(zoo.path(name))


@LONG
@pytest.mark.parametrize("rows", [128, 1])
def test_graphs_of_one_product_take_no_more_than_one_with_the_vendors_library(rows: int, tmp_path: Path) -> None:
    from onnx import helper

    def product(count: int) -> Path:
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
        file = tmp_path / f"rows{count}.onnx"
        return tiny.save(file, nodes, {"x": [count, SIZE]}, {"y": [count, SIZE]}, {"w": NUMBERS})

    one, both = ours(product(rows)), ours(product(rows), product(32))
    assert both - one < LITTLE
    assert both <= MOST * theirs(product(rows))


WIDE = 2048
"""The rows and columns of weights, 4 million in a graph."""


def lengths(library: str, precision: str) -> list[int]:
    """The bytes of a library's binaries of one graph, and of two that share weights; in a process of its own."""
    client = Client(Path(library))
    backend, found = client.make("backendCreate", None, None), []
    device = on_chip(client, 69)
    client.make("contextCreate", backend, device, None)  # Keeps the accelerator's process.
    first = replace(PRECISIONS[precision], depth=WIDE, columns=WIDE)
    for graphs in ([first], [first, replace(first, rows=1)]):
        option = CONTEXT_CONFIG(HtpContextOption.WEIGHT_SHARING_ENABLED)
        option.weightSharingEnabled = True
        context = client.make("contextCreate", backend, device, configs(client, objects.ContextConfig, [option]))
        assert not any(each.compose(client, context, f"g{number}") for number, each in enumerate(graphs))
        found.append(len(client.binary(context)))
        client.do("contextFree", context, None)
    return found


@pytest.mark.parametrize("precision", sampled(list(PRECISIONS), 1))
def test_a_precision_takes_no_more_than_with_the_vendors_library(precision: str, tmp_path: Path) -> None:
    copy_into(tmp_path)
    one, both = alone(__file__, "lengths", str(tmp_path / "libQnnHtp.so"), precision)
    their_one, their_both = alone(__file__, "lengths", str(find().backend), precision)
    assert one <= MOST * their_one
    assert both <= MOST * their_both
    assert both - one <= LITTLE
