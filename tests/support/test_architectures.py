"""The networks of bench/networks.py are the published ones, and the engine computes them as ONNX Runtime does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import isthmus
from support import architectures, oracles
from support.suites import only, sampled

PUBLISHED = {
    # https://docs.pytorch.org/vision/stable/models.html
    "mobilenet_v2": 3_504_872,
    "mobilenet_v3_small": 2_542_856,
    "efficientnet_b0": 5_288_548,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "squeezenet1_1": 1_235_496,
    "shufflenet_v2_x1_0": 2_278_604,
    "mnasnet1_0": 4_383_312,
    "regnet_y_400mf": 4_344_144,
    "densenet121": 7_978_856,
    "convnext_tiny": 28_589_128,
    "vit_b_16": 86_567_656,
    "googlenet": 6_624_904,
    # https://github.com/milesial/Pytorch-UNet, for two classes and with transposed convolutions.
    "unet": 31_037_698,
    # The 8,858,734 numbers of yolov3-tiny.weights, without means and variances of 3,184 channels.
    "yolov3_tiny": 8_858_734 - 2 * 3_184,
    # Two feed-forward layers, attention, the convolution module with its normalization, and five normalizations.
    "conformer_block": (
        2 * (256 * 1024 + 1024 + 1024 * 256 + 256)
        + 4 * (256 * 256 + 256)
        + (256 * 512 + 512) + (256 * 31 + 256) + 2 * 256 + (256 * 256 + 256)
        + 5 * 2 * 256
    ),
    # Words, two bidirectional layers of PyTorch's LSTM with two biases each, and tags.
    "lstm_tagger": (
        10_000 * 128
        + 2 * 4 * 256 * (128 + 256 + 2)
        + 2 * 4 * 256 * (512 + 256 + 2)
        + 512 * 17 + 17
    ),
}  # fmt: skip


def test_every_network_has_a_published_size() -> None:
    assert PUBLISHED.keys() == architectures.BUILDERS.keys()


@pytest.mark.parametrize("name", sampled(PUBLISHED, 4))
def test_a_network_has_as_many_parameters_as_the_published_one(name: str) -> None:
    built = architectures.build(name)
    onnx.checker.check_model(built.model, full_check=True)
    assert built.parameters == PUBLISHED[name]


@pytest.mark.parametrize("name", only(("squeezenet1_1", "regnet_y_400mf", "lstm_tagger"), architectures.BUILDERS))
def test_a_network_agrees_with_onnx_runtime(name: str, tmp_path: Path) -> None:
    built = architectures.build(name)
    path = tmp_path / f"{name}.onnx"
    onnx.save(built.model, path)
    expected = oracles.onnx_answers(path, built.feeds)
    with isthmus.Session(path, backend="cpu", threads=2) as session:
        for key, value in built.feeds.items():
            session.inputs[key][...] = value
        session.run()
        for key, value in expected.items():
            np.testing.assert_allclose(session.outputs[key], value, rtol=0, atol=1e-4 * np.abs(value).max())
