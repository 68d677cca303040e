"""The decoder's tokens are those of ONNX Runtime without a cache; no token takes memory or copies any."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import decoders
from support.processes import answer

from isthmus.capi import installation

COUNT = 200
PROMPT = [*range(10, 50)]
"""With the token of a sentence's beginning, a piece of 32 tokens and one of 9."""
KINDS = {
    "a16w8": (["--precision", "a16w8"], 0, 0),
    "float16": (["--precision", "float16"], 0, decoders.FLOAT16_TOLERANCE),
    "a16w8, sliding window": (["--precision", "a16w8", "--window", 40], 40, 0),
    "one head for keys": (
        ["--kv-heads", 1, "--layers", 3, "--head-width", 8, "--vocabulary", 128],
        0,
        decoders.NEAR_TIE,
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, float]:
    """The folder of a decoder with graphs for two context lengths, its window, and the tolerance of its logits."""
    options, window, tolerance = KINDS[request.param]
    folder = decoders.make(tmp_path_factory.mktemp("decoder"), "--ar", 32, 1, "--context", 128, 256, *options)
    return folder, window, tolerance


@pytest.mark.parametrize("update", ["smart-mask", "shift-pointer"])
def test_tokens_in_one_shared_buffer_are_those_without_a_cache(decoder: tuple[Path, int, float], update: str) -> None:
    folder, window, tolerance = decoder
    reported = decoders.run(
        "run_shared.py", folder, decoders.words(PROMPT), "--count", COUNT, "--update", update, "--window", window
    )
    assert reported["prompt"] == [decoders.BOS, *PROMPT]
    assert len(reported["answer"]) == COUNT
    decoders.check(folder, reported["prompt"], reported["answer"], window, tolerance)
    assert (reported["copied_bytes"], reported["allocated_bytes"]) == (0, 0)
    # The prompt takes two executions. When the sentence is too long for the first context, the second one takes over.
    assert reported["executions"]["ar32_cl128"] == 2
    assert reported["executions"]["ar1_cl128"] == 128 - len(reported["prompt"])
    assert sum(reported["executions"].values()) == COUNT + 1


WATCHED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from cache import Runner
from isthmus import qnn
from isthmus.qnn import htp

with qnn.Backend("libQnnHtp.so") as backend:
    context = backend.create_context_from_binary(Path(sys.argv[2]) / "decoder.bin")
    runner = Runner(context, sys.argv[3])
    token = runner.read([1, 10, 11, 12])
    runner.prepare(80)
    for index in range(80):
        token = runner.step([token])
        if index in (9, 19, 79):
            print(backend.get_property(htp.ACCELERATOR_PID), sys.getallocatedblocks(), flush=True)
            sys.stdin.readline()
    context.free()
"""


def mapped(pid: int) -> list[str]:
    """The mappings of a process, each with the memory that it has."""
    lines = Path(f"/proc/{pid}/smaps").read_text().splitlines()
    return [line for line in lines if "-" in line.split()[0] or line.startswith("Rss:")]


def resident(lines: list[str]) -> int:
    """The memory of all mappings in kB."""
    return sum(int(line.split()[1]) for line in lines[1::2])


@pytest.mark.parametrize("update", ["smart-mask", "shift-pointer"])
def test_the_system_sees_no_new_memory_for_a_token(decoder: tuple[Path, int, float], update: str) -> None:
    command = [sys.executable, "-c", WATCHED, decoders.EXAMPLE, decoder[0], update]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        seen = []
        for _ in range(3):
            accelerator, blocks = map(int, client.stdout.readline().split())
            seen.append((mapped(client.pid), mapped(accelerator), blocks))
            client.stdin.write("\n")
            client.stdin.flush()
    assert client.returncode == 0
    # The first time makes room for what reading and printing take.
    _, before, after = seen
    for earlier, later in zip(before[:2], after[:2], strict=True):
        assert later[::2] == earlier[::2], "60 tokens later, all mappings have the same places"
        # Reading and printing may touch another page of the heap.
        assert resident(later) - resident(earlier) <= 16, "and the same memory"
    assert after[2] - before[2] < 20, "and Python has no more objects"


def test_a_decoder_with_a_sliding_window_is_not_for_genie(decoder: tuple[Path, int, float]) -> None:
    folder, window, _ = decoder
    assert (folder / "genie_config.json").exists() == (window == 0)
    if window:
        command = [sys.executable, decoders.EXAMPLE / "run_genie.py", "--libraries", folder, folder, "w10"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 2
        assert "has no genie_config.json; make_decoder.py writes one unless --window is given" in done.stderr


def test_graphs_for_half_a_context_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    command = [sys.executable, decoders.EXAMPLE / "make_decoder.py", tmp_path / "decoder"]
    options = ["--ar", "128", "32", "1", "--context", "128", "256"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert "ar128_cl256: Genie takes a graph for half of its context's tokens" in done.stderr
    assert not (tmp_path / "decoder").exists()


@pytest.fixture(scope="module")
def static_runner(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The runner in C++, and the folder of our libraries."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("static_runner")
    libraries, program = folder / "libraries", folder / "static_runner"
    installation.install(libraries)
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{installation.INCLUDE}"]
    source = decoders.EXAMPLE / "static_runner.cpp"
    subprocess.run(["g++", *flags, source, "-o", program, "-ldl"], check=True)
    return program, libraries


def generated(static_runner: tuple[Path, Path], folder: Path, graphs: list[str]) -> subprocess.CompletedProcess[str]:
    """Let the runner in C++ generate tokens by a graph for the prompt and others for tokens."""
    program, libraries = static_runner
    first, *others = graphs
    prompt = [decoders.BOS, *PROMPT]
    command = [program, libraries, folder / "decoder.bin", first, ",".join(others), COUNT, *prompt]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module", params=["a16w8", "float16"])
def quantized_or_not(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The folder of a decoder in a precision, and the tolerance of its logits."""
    folder = tmp_path_factory.mktemp(request.param)
    decoders.make(folder, "--ar", 32, 1, "--context", 128, 256, "--precision", request.param)
    return folder, decoders.FLOAT16_TOLERANCE if request.param == "float16" else 0


@pytest.mark.parametrize("contexts", [(256,), (128, 256)], ids=["one context length", "two context lengths"])
def test_the_static_runner_generates_the_same_tokens_and_requests_no_memory(
    static_runner: tuple[Path, Path], quantized_or_not: tuple[Path, float], contexts: tuple[int, ...]
) -> None:
    folder, tolerance = quantized_or_not
    graphs = [f"ar32_cl{contexts[0]}", *(f"ar1_cl{context}" for context in contexts)]
    done = generated(static_runner, folder, graphs)
    assert done.returncode == 0, done.stderr
    reported = answer(done.stdout)
    assert len(reported["answer"]) == COUNT
    decoders.check(folder, [decoders.BOS, *PROMPT], reported["answer"], tolerance=tolerance)
    # Of every token but the one of the prompt and the first of each graph; the count includes our library and its
    # interpreter, which ask for megabytes before.
    assert reported["tokens_counted"] == COUNT - 1 - len(contexts)
    assert (reported["requested_bytes"], reported["moves"]) == (0, 0)
    assert reported["requested_in_all"] > 1_000_000


def test_the_static_runner_says_that_a_sentence_is_too_long(
    static_runner: tuple[Path, Path], quantized_or_not: tuple[Path, float]
) -> None:
    done = generated(static_runner, quantized_or_not[0], ["ar32_cl128", "ar1_cl128"])
    assert done.returncode == 1
    assert "the sentence is too long for all graphs" in done.stderr
