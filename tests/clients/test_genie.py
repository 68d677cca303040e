"""Genie generates, on our libraries, the tokens that ONNX Runtime's CPU computes from the same decoder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clients_report import Results, needs
from support import oracles
from support.processes import answer

CLIENT = "Genie"
DECODER = Path(__file__).parents[2] / "examples" / "decoder"
COUNT = 24
PROMPTS = [[10, 11, 12], [*range(10, 56)]]
"""A prompt in one piece of 32 tokens, and one in two pieces."""
OPTIONS = {
    "no options": [],
    "use-mmap with a budget": ["use-mmap=true", "mmap-budget=25"],
    "spill-fill-bufsize": ["spill-fill-bufsize=1048576"],
    "allow-async-init": ["allow-async-init=true"],
    "enable-graph-switching": ["enable-graph-switching=true"],
    "graph-retention-order": ["enable-graph-switching=true", 'graph-retention-order=["ar1_cl512"]'],
    "kv-update-method": ["kv-update-method=POINTER_SHIFT"],
    "poll": ["poll=true"],
}

pytestmark = needs("onnxruntime_qnn", "onnx")


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small decoder."""
    folder = tmp_path_factory.mktemp("decoder")
    subprocess.run([sys.executable, DECODER / "make_decoder.py", folder], check=True)
    return folder


def quantized(angles: np.ndarray) -> np.ndarray:
    """Return sines or cosines as the decoder's inputs store them."""
    return np.clip(np.rint(angles.astype(np.float32) / np.float32(2 / 65535)) + 32768, 0, 65535).astype(np.uint16)


def generated(file: Path, prompt: list[int]) -> list[int]:
    """The likeliest tokens after a prompt by ONNX Runtime's CPU, which takes one token after the other."""
    session = oracles.onnx_session(file)
    shapes = {value.name: value.shape for value in session.get_inputs()}
    past = {name: np.full(shape, 128, np.uint8) for name, shape in shapes.items() if name.startswith("past")}
    width = shapes["position_ids_cos"][3]
    tokens = list(prompt)
    for position in range(len(prompt) + COUNT - 1):
        angles = position / 10000 ** (np.arange(width) / width)
        mask = np.zeros(shapes["attention_mask"], np.uint16)
        mask[..., :position] = mask[..., -1] = 65535
        feeds: dict[str, Any] = {
            "input_ids": np.array([[tokens[position]]], np.int32),
            "attention_mask": mask,
            "position_ids_cos": quantized(np.cos(angles)).reshape(1, 1, 1, -1),
            "position_ids_sin": quantized(np.sin(angles)).reshape(1, 1, 1, -1),
        }
        found = dict(zip([value.name for value in session.get_outputs()], session.run(None, feeds | past), strict=True))
        for name, kept in past.items():
            new = found[name.replace("_in", "_out")]
            if "key" in name:
                kept[..., position] = new[..., 0]
            else:
                kept[:, :, position] = new[:, :, 0]
        if position >= len(prompt) - 1:
            tokens.append(int(found["logits"].argmax()))
    return tokens[len(prompt) :]


@pytest.fixture(scope="module")
def expected(decoder: Path) -> list[list[int]]:
    """The tokens for each prompt; Genie puts the token of a sentence's beginning before it."""
    return [generated(decoder / "ar1_cl512.onnx", [1, *prompt]) for prompt in PROMPTS]


@pytest.mark.parametrize("name", OPTIONS)
def test_genie_generates_the_reference_tokens(
    name: str, decoder: Path, libraries: Path, expected: list[list[int]], results: Results
) -> None:
    prompts = [" ".join(f"w{token}" for token in prompt) for prompt in PROMPTS]
    settings = [part for setting in OPTIONS[name] for part in ("--set", setting)]
    command = [sys.executable, DECODER / "run_genie.py", "--libraries", libraries, "--count", str(COUNT), *settings]
    done = subprocess.run([*command, decoder, *prompts], capture_output=True, text=True, timeout=600)
    results.row(name, "passes" if done.returncode == 0 else done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    told = answer(done.stdout)
    results.used("onnxruntime-qnn", Genie=told["version"])
    assert told["prompts"] == PROMPTS
    if told["answers"] != expected:
        results.row(name, "other tokens than those of ONNX Runtime's CPU")
    assert told["answers"] == expected
    # Both graphs work: the prompts go through the first in pieces, all further tokens through the second.
    assert told["executions"] == {"ar32_cl512": 3, "ar1_cl512": len(PROMPTS) * (COUNT - 1)}
