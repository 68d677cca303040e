"""Model libraries of our own, compiled from `qnn/model_library.c` with the weights linked in as a binary."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import isthmus.capi

SOURCE = Path(__file__).parents[1] / "qnn" / "model_library.c"
STATES = SOURCE.with_name("state_library.c")
HEADERS = Path(isthmus.capi.__file__).parent / "include"
PROGRAMS = Path(__file__).parents[1] / "capi" / "programs"

_RNG = np.random.default_rng(11)
CONV_W = _RNG.standard_normal((3, 3, 3, 8)).astype(np.float32) / 3
CONV_B = _RNG.standard_normal(8).astype(np.float32)
FC_W = _RNG.standard_normal((5, 32)).astype(np.float32) / 4
FC_B = _RNG.standard_normal(5).astype(np.float32)
BYTE_W = _RNG.integers(-127, 128, (4, 16), np.int8)
BYTE_B = _RNG.integers(-2000, 2000, 4, np.int32)

IMAGE = _RNG.standard_normal((1, 8, 8, 3)).astype(np.float32)
BYTES = _RNG.integers(0, 256, (1, 16), np.uint8)
WEIGHTS = b"".join(part.tobytes() for part in (CONV_W, CONV_B, FC_W, FC_B, BYTE_W, BYTE_B))


def build(folder: Path, source: Path = SOURCE, weights: bytes = WEIGHTS, **macros: object) -> Path:
    """A compiled library; skips the test where there is no compiler."""
    if shutil.which("gcc") is None or shutil.which("ld") is None:
        pytest.skip("gcc and ld are needed to compile a model library")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights.raw").write_bytes(weights)
    library = folder / "libqnn_model.so"
    defined = [f"-D{name}={value}" for name, value in macros.items()]
    compiler = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-fvisibility=hidden", "-Wl,-z,noexecstack"]
    for command in (
        ["ld", "-r", "-b", "binary", "-z", "noexecstack", "-o", "weights.o", "weights.raw"],
        [*compiler, *defined, f"-I{HEADERS}", f"-I{PROGRAMS}", str(source), "weights.o", "-o", str(library)],
    ):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return library


def image_result() -> np.ndarray:
    """Return what the graph "image" makes of `IMAGE`."""
    padded = np.pad(IMAGE, ((0, 0), (1, 1), (1, 1), (0, 0)))
    conv = sum(
        np.einsum("nhwc,co->nhwo", padded[:, i : i + 8 : 2, j : j + 8 : 2], CONV_W[i, j])
        for i in range(3)
        for j in range(3)
    )
    pool = np.maximum(conv + CONV_B, 0).reshape(1, 2, 2, 2, 2, 8).max((2, 4))
    logits = pool.reshape(1, 32) @ FC_W.T + FC_B
    e = np.exp(logits - logits.max())
    return e / e.sum()


def bytes_result() -> np.ndarray:
    """Return what the graph "bytes" makes of `BYTES`."""
    scales = np.float32([0.01, 0.02, 0.03, 0.04])
    real = (BYTES - 10.0) * 0.05 @ (BYTE_W * scales[:, None]).T + BYTE_B * (scales * 0.05)
    return np.clip(np.rint(real / 0.5) + 128, 0, 255)
