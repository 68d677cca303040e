"""Decoders of `examples/decoder`, and what ONNX Runtime's CPU computes with them without a cache."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from support import oracles
from support.processes import answer

EXAMPLE = Path(__file__).parents[2] / "examples" / "decoder"
BOS = 1
FLOAT16_TOLERANCE = 0.02
"""Steps of float16 at 8, the size of the likeliest tokens' logits, are 0.008."""

NEAR_TIE = 32
"""Steps of quantized logits, 0.03. Both sides compute within a step of 16 bits. That step can become one of the cache's
8 bits, so that in some decoders one of some hundred tokens is another one of two that are almost equally likely.
"""


def make(folder: Path, *options: object) -> Path:
    """Write a decoder; return its folder."""
    subprocess.run([sys.executable, EXAMPLE / "make_decoder.py", folder, *map(str, options)], check=True)
    return folder


def run(program: str, *arguments: object) -> dict[str, Any]:
    """Run a program of the example; return what it prints."""
    command = [sys.executable, str(EXAMPLE / program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return dict(answer(done.stdout))


def words(tokens: Sequence[int]) -> str:
    """The text of tokens."""
    return " ".join(f"w{token}" for token in tokens)


def logits(folder: Path, tokens: Sequence[int], window: int = 0) -> np.ndarray:
    """The logits after each of some tokens, all of which are computed at once, without a cache."""
    [file] = [path for path in folder.glob("ar*_cl*.onnx") if len(set(path.stem[2:].split("_cl"))) == 1]
    session = oracles.onnx_session(file)
    shapes = {value.name: value.shape for value in session.get_inputs()}
    quantized = session.get_inputs()[1].type == "tensor(uint16)"
    ids = np.zeros(shapes["input_ids"], np.int32)
    ids[0, : len(tokens)] = tokens
    positions = np.arange(ids.size)
    ages = positions[:, None] - positions
    width = shapes["position_ids_cos"][3]
    angles = positions[:, None] / 10000 ** (np.arange(width) / width)

    def mask(seen: np.ndarray) -> np.ndarray:
        return np.where(seen, 65535, 0).astype(np.uint16) if quantized else np.where(seen, 0, -1000).astype(np.float16)

    def turns(values: np.ndarray) -> np.ndarray:
        # Rounded down, as Genie does.
        steps = np.floor(values.astype(np.float32) / np.float32(2 / 65535)) + 32768
        return np.clip(steps, 0, 65535).astype(np.uint16) if quantized else values.astype(np.float16)

    feeds = {
        "input_ids": ids,
        "attention_mask": mask(ages >= 0),
        "window_attention_mask": mask((ages >= 0) & (ages < window)),
        "position_ids_cos": turns(np.cos(angles)),
        "position_ids_sin": turns(np.sin(angles)),
    }
    given = {name: feeds[name].reshape(shape) for name, shape in shapes.items()}
    found: np.ndarray = session.run(["logits"], given)[0]
    return found[0, : len(tokens)].astype(np.float64)


def check(folder: Path, prompt: Sequence[int], tokens: Sequence[int], window: int = 0, tolerance: float = 0) -> None:
    """Check that each token is the likeliest one after those before it, or as likely within a tolerance."""
    found = logits(folder, [*prompt, *tokens[:-1]], window)[len(prompt) - 1 :]
    if tolerance:
        chosen = found[np.arange(len(tokens)), tokens]
        assert np.all(found.max(axis=1) - chosen <= tolerance)
        assert np.count_nonzero(found.argmax(axis=1) == tokens) >= 0.95 * len(tokens)
    else:
        assert found.argmax(axis=1).tolist() == list(tokens)
    # A decoder that repeats itself would show little.
    assert len(set(tokens)) > min(len(tokens), 100) / 3
