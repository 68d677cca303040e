"""The networks of bench/tiny.py are those of MLPerf Tiny, and the engine computes them as LiteRT does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import isthmus
from isthmus.engine.native.target import by_name, runnable
from support import oracles, tiny_networks

BENCH = Path(__file__).parents[2] / "bench"
PUBLISHED = {
    # Keras counts four numbers for each channel that is normalized, which is folded here:
    # https://github.com/mlcommons/tiny/tree/master/benchmark/training
    "ad01": 269_992 - 4 * (8 * 128 + 8),
    "ds_cnn": 24_908 - 4 * 9 * 64,
    "vww": 221_794 - 4 * 2_736,
    "resnet8": 78_666 - 4 * (3 * 16 + 2 * 32 + 2 * 64),
}


@pytest.mark.parametrize("name", tiny_networks.BUILDERS)
def test_a_network_has_as_many_parameters_as_the_published_one(name: str) -> None:
    assert tiny_networks.BUILDERS[name]().parameters == PUBLISHED[name]


@pytest.mark.parametrize("numbers", ["float32", "int8"])
@pytest.mark.parametrize("name", tiny_networks.BUILDERS)
def test_a_network_agrees_with_litert(name: str, numbers: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.tflite"
    path.write_bytes(tiny_networks.BUILDERS[name]().file(numbers))
    oracle = oracles.LiteRT(path)
    generator = np.random.default_rng(1)
    feeds = {
        key: generator.integers(-128, 128, shape).astype(dtype)
        if numbers == "int8"
        else generator.standard_normal(shape).astype(dtype)
        for key, (shape, dtype) in oracle.inputs.items()
    }
    wanted = oracle.run(feeds)
    with isthmus.Session(path, backend="cpu", threads=1) as session:
        for key, value in feeds.items():
            session.inputs[key][...] = value
        session.run()
        for key, value in wanted.items():
            found, exact = session.outputs[key].astype(np.float64), value.astype(np.float64)
            atol = 1 if numbers == "int8" else 1e-5 * np.abs(exact).max()
            np.testing.assert_allclose(found, exact, rtol=0, atol=atol)
            assert len(np.unique(value)) > min(5, value.size - 1), "the results say too little"


@pytest.mark.skipif(not runnable(by_name("avx2")), reason="needs a processor with AVX2")
def test_xnnpack_keeps_no_instructions_beyond_avx2() -> None:
    program = "import xnnpack; xnnpack.limit_to_avx2(); print(hex(xnnpack.instructions().value))"
    done = subprocess.run([sys.executable, "-c", program], cwd=BENCH, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "0xff", done.stderr


@pytest.mark.skipif(not runnable(by_name("avx2")), reason="needs a processor with AVX2")
def test_the_bench_limits_both_sides_to_avx2_and_compares_results(tmp_path: Path) -> None:
    script, figures = BENCH / "tiny.py", tmp_path / "figures.json"
    short = ["--networks", "ad01", "--rounds", "1", "--seconds", "0.01", "--folder", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(script), *short, "--json", str(figures)],
        capture_output=True, text=True, check=False, env={**os.environ, "ISTHMUS_TARGET": "avx2"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "LiteRT is limited to AVX2"
    races = json.loads(figures.read_text())["races"]
    assert [(race["name"], race["numbers"], sorted(race["seconds"])) for race in races] == [
        ("ad01", numbers, ["Isthmus", "LiteRT"]) for numbers in ("int8", "float32")
    ]
    assert races[0]["difference"] <= 1
