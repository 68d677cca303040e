"""Two thousand random sequences of calls end no process, and leave a library that serves the next client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import dlc_graphs, dlc_write
from support.suites import long

import isthmus

HERE = Path(__file__).parent
SECONDS = 280


@pytest.mark.parametrize(
    ("library", "seed", "count"),
    # A context of HTP is a process, which takes its time.
    [
        ("libQnnCpu.so", 1, 570),
        long("libQnnCpu.so", 10_000, 570),
        long("libQnnLpai.so", 20_000, 490),
        long("libQnnHtp.so", 30_000, 10),
        long("libQnnGpu.so", 40_000, 60),
        ("libQnnSystem.so", 50_000, 300),
    ],
)
def test_no_sequence_of_calls_ends_the_process(
    libraries: Path, tmp_path: Path, library: str, seed: int, count: int
) -> None:
    if library == "libQnnGpu.so":
        pytest.importorskip("pyopencl", reason="the package pyopencl is not installed")
    ours = Path(isthmus.__file__).parents[1]
    path = os.pathsep.join([str(HERE.parent), str(ours), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", HERE / "random_calls.py", libraries / library, str(seed), str(count)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert (done.returncode, done.stdout) == (0, "served SUPPORTED\n"), done.stderr[-3000:]


def test_no_sequence_of_calls_about_dlc_files_ends_the_process(libraries: Path, tmp_path: Path) -> None:
    file = tmp_path / "net.dlc"
    file.write_bytes(dlc_write.dlc([dlc_graphs.convolution()]))
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [
            sys.executable, "-X", "faulthandler", HERE / "random_dlc_calls.py", libraries / "libQnnSystem.so",
            libraries / "libQnnCpu.so", file, "1", "150",
        ],
        capture_output=True, text=True, timeout=SECONDS, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "composed\n"), done.stderr[-3000:]
