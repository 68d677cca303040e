"""Genie generates, on our libraries, the tokens that ONNX Runtime's CPU computes from its decoder without a cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from clients_report import PASSES, Results, needs
from support import decoders
from support.processes import answer

from isthmus import qnn
from isthmus.domains import ContextSizes, GraphNeeds

CLIENT = "Genie"
COUNT = 200
OTHER_TOKENS = "other tokens than those of ONNX Runtime's CPU"
PROMPTS = [[10, 11, 12], [*range(10, 56)]]
"""A prompt in one piece of 32 tokens, and one in two pieces."""
OPTIONS = {
    "no options": [],
    "use-mmap with a budget": ["use-mmap=true", "mmap-budget=25"],
    "spill-fill-bufsize": ["spill-fill-bufsize=1048576"],
    "allow-async-init": ["allow-async-init=true"],
    "enable-graph-switching": ["enable-graph-switching=true"],
    "graph-retention-order": ["enable-graph-switching=true", 'graph-retention-order=["ar1_cl256"]'],
    "kv-update-method POINTER_SHIFT": ["kv-update-method=POINTER_SHIFT"],
    "kv-update-method NATIVE_KV": ["kv-update-method=NATIVE_KV"],
    "poll": ["poll=true"],
}
ZEROED = {"MALLOC_PERTURB_": "255"}
"""Genie leaves the cache as malloc returns it. Floats there may be NaN; with this variable, glibc makes them 0."""

pytestmark = needs("onnxruntime_qnn", "onnx")


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small decoder for two context lengths."""
    return decoders.make(tmp_path_factory.mktemp("decoder"), "--context", 128, 256)


def generate(
    folder: Path, libraries: Path, *settings: str, more: Sequence[str] = (), **environment: str
) -> tuple[subprocess.CompletedProcess[str], dict]:
    """Let Genie generate tokens for both prompts; return its process and what it told."""
    options = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, decoders.EXAMPLE / "run_genie.py", "--libraries", libraries, "--count", str(COUNT)]
    texts = [decoders.words(prompt) for prompt in PROMPTS]
    done = subprocess.run(
        [*command, *options, *more, folder, *texts],
        capture_output=True, text=True, timeout=600, env=os.environ | environment,
    )  # fmt: skip
    return done, answer(done.stdout) if done.returncode == 0 else {}


def check(folder: Path, reported: dict, tolerance: float = 0) -> None:
    """Check the tokens for both prompts; Genie puts the token of a sentence's beginning before them."""
    assert reported["prompts"] == PROMPTS
    for prompt, tokens in zip(PROMPTS, reported["answers"], strict=True):
        assert len(tokens) == COUNT
        decoders.check(folder, [decoders.BOS, *prompt], tokens, tolerance=tolerance)


@contextmanager
def recorded(results: Results, name: str, done: subprocess.CompletedProcess[str]) -> Iterator[None]:
    """Check that Genie has succeeded, let the caller check its tokens, and record how that ended."""
    outcome = done.stderr.strip().splitlines()[-1] if done.returncode else OTHER_TOKENS
    try:
        assert done.returncode == 0, done.stderr
        yield
        outcome = PASSES
    finally:
        results.row(name, outcome)


@pytest.mark.parametrize("name", OPTIONS)
def test_genie_generates_the_reference_tokens(name: str, decoder: Path, libraries: Path, results: Results) -> None:
    done, reported = generate(decoder, libraries, *OPTIONS[name], ISTHMUS_QNN_VALIDATE="1,exitcode=66")
    with recorded(results, name, done):
        check(decoder, reported)
    assert "0 mistakes" in done.stderr
    results.used("onnxruntime-qnn", Genie=reported["version"])
    # The prompts go through the first graph in pieces, all further tokens through the second; where a context becomes
    # too short, the graphs for the next one take over.
    assert reported["executions"]["ar32_cl128"] == 3
    assert reported["executions"]["ar1_cl256"] > 0
    assert sum(reported["executions"].values()) == 3 + len(PROMPTS) * (COUNT - 1)


OTHERS = {
    "float16": (["--precision", "float16"], ZEROED, decoders.FLOAT16_TOLERANCE),
    "a context binary for each context length": (["--separate"], {}, 0),
    "AR-96, AR-32 and AR-1": (["--ar", 96, 32, 1], {}, 0),
}


@pytest.mark.parametrize("name", OTHERS)
def test_genie_generates_the_tokens_of_other_decoders(
    name: str, libraries: Path, results: Results, tmp_path: Path
) -> None:
    options, environment, tolerance = OTHERS[name]
    folder = decoders.make(tmp_path, "--context", 128, 256, *options)
    done, reported = generate(folder, libraries, **environment)
    with recorded(results, name, done):
        check(folder, reported, tolerance)


MADE = """
import json
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from make_decoder import genie_config, make
from model import A16W8, Decoder, Shape

folder, tokens, shape = Path(sys.argv[2]), int(sys.argv[3]), Shape(window=int(sys.argv[4]))
make(folder, Decoder(folder, shape, A16W8), [tokens, 1], [256], separate=False)
(folder / "genie_config.json").write_text(json.dumps(genie_config(shape, 256, ["decoder.bin"])))
"""
NOT_MADE = {"half of a context's tokens at once": (128, 0), "a sliding window": (32, 64)}


@pytest.mark.parametrize("name", NOT_MADE)
def test_genie_generates_other_tokens_from_graphs_that_the_example_does_not_make_for_it(
    name: str, libraries: Path, tmp_path: Path
) -> None:
    tokens_at_once, window = NOT_MADE[name]
    command = [sys.executable, "-c", MADE, decoders.EXAMPLE, tmp_path, str(tokens_at_once), str(window)]
    subprocess.run(command, check=True)
    done, reported = generate(tmp_path, libraries)
    assert done.returncode == 0, done.stderr
    prompt, tokens = [decoders.BOS, *PROMPTS[0]], reported["answers"][0]
    likeliest = decoders.logits(tmp_path, [*prompt, *tokens[:-1]], window)[len(prompt) - 1 :].argmax(axis=1)
    assert np.count_nonzero(likeliest == tokens) < 0.8 * COUNT
    # The graphs are right: a runner that updates the cache and both masks generates the tokens of ONNX Runtime's CPU.
    reported = decoders.run("run_shared.py", tmp_path, decoders.words(PROMPTS[0]), "--count", COUNT, "--window", window)
    decoders.check(tmp_path, prompt, reported["answer"], window)


# -- groups of contexts ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def separate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a decoder with a context binary for each of three context lengths."""
    folder = tmp_path_factory.mktemp("separate")
    (folder / "devices.json").write_text(json.dumps({"devices": [{"soc_model": 69, "dsp_arch": "v79"}]}))
    return decoders.make(folder, "--context", 128, 256, 512, "--separate")


def with_binaries(folder: Path, count: int) -> list[ContextSizes]:
    """Let Genie load the first binaries of a folder; return what they need, as their descriptions say."""
    file = folder / "genie_config.json"
    config = json.loads(file.read_text())
    names = [f"decoder_cl{context}.bin" for context in (128, 256, 512)[:count]]
    config["dialog"]["engine"]["model"]["binary"]["ctx-bins"] = names
    config["dialog"]["context"]["size"] = 128 << (count - 1)
    file.write_text(json.dumps(config))
    system = qnn.SystemContext()
    found = [system.get_binary_info(folder / name).graphs for name in names]
    return [ContextSizes(name, tuple(map(GraphNeeds.of, graphs))) for name, graphs in zip(names, found, strict=True)]


def grouped(folder: Path, libraries: Path, size: int, **environment: str) -> tuple[list[str], str, dict]:
    """Let Genie generate on a named chip with a spill-fill size; return our log, all it printed, and what it told."""
    more = ["--extensions", str(folder / "devices.json"), "--verbose"]
    done, reported = generate(folder, libraries, f"spill-fill-bufsize={size}", more=more, **environment)
    lines = [line for line in done.stderr.splitlines() if line.startswith(("INFO HTP ", "ERROR "))]
    return lines, done.stderr + done.stdout, reported


def test_two_context_binaries_on_a_named_chip_have_one_spill_fill_buffer(
    separate: Path, libraries: Path, results: Results
) -> None:
    size = max(each.spill_fill for each in with_binaries(separate, 2))
    lines, printed, reported = grouped(separate, libraries, size)
    outcome = "no tokens"
    try:
        assert reported, printed
        check(separate, reported)
        outcome = PASSES
    finally:
        results.row("two context binaries in a spill-fill group", outcome)
    assert reported["executions"]["ar1_cl128"] > 0
    assert reported["executions"]["ar1_cl256"] > 0
    # libGenie.so logs nothing of it; these are the options that it passes, as our library logs them.
    assert "INFO HTP device option SOC = 69" in lines
    [founder, member] = [line for line in lines if "REGISTER_MULTI_CONTEXTS" in line]
    assert founder == f"INFO HTP context option REGISTER_MULTI_CONTEXTS = maxSpillFillBuffer {size}"
    assert member.startswith("INFO HTP context option REGISTER_MULTI_CONTEXTS = firstGroupHandle ")
    assert member.endswith(f", maxSpillFillBuffer {size}")
    groups = [line.rpartition(" ")[2] for line in lines if "its spill-fill buffer is that of group" in line]
    assert len(groups) == 2
    assert len({*groups}) == 1
    assert [line for line in lines if "is in process domain" in line] == [
        "INFO HTP context 1 is in process domain 0", "INFO HTP context 2 is in process domain 0",
    ]  # fmt: skip


def test_a_spill_fill_size_that_a_binary_exceeds_is_refused_with_both_sizes(separate: Path, libraries: Path) -> None:
    small, large = (each.spill_fill for each in with_binaries(separate, 2))
    assert small < large
    lines, printed, reported = grouped(separate, libraries, small)
    assert not reported
    rule = f"Shared spill-fill size {small} is smaller than required spill-fill size {large}"
    assert any("[5005 " in line and rule in line for line in lines), printed
    assert "Could not create context from binary for context index = 1 : err 5005" in printed


def test_a_third_binary_that_does_not_fit_gets_1002_and_a_chip_with_room_takes_it(
    separate: Path, libraries: Path, results: Results, tmp_path: Path
) -> None:
    needs = with_binaries(separate, 3)
    size = max(each.spill_fill for each in needs)
    own = [each.charge - each.spill_fill - sum(each.io) for each in needs]
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"htp": {"chip": str(tmp_path / "chip.json")}}))

    def on_chip(capacity: int) -> tuple[list[str], str, dict]:
        (tmp_path / "chip.json").write_text(json.dumps({"name": "board", "domains": [0], "capacity": capacity}))
        return grouped(separate, libraries, size, ISTHMUS_HTP_CONFIG=str(config))

    lines, printed, reported = on_chip(size + sum(own) - 1)
    assert not reported
    assert "Could not create context from binary for context index = 2 : err 1002" in printed
    errors = [line.removeprefix("ERROR ") for line in lines if line.startswith("ERROR ")]
    begin = errors.index(
        f"Failed to find available PD for contextId 3 on deviceId 0 coreId 0with context size estimate {own[2] + size}"
    )
    sentence = next(line for line in errors[begin:] if "[1002 COMMON_MEM_ALLOC]" in line)
    assert f"spill-fill of the group {size:,}" in sentence
    assert f"domain 0 has {own[2] - 1:,} of {size + sum(own) - 1:,} bytes free" in sentence
    assert "`isthmus fit --contexts` finds an order that fits, or what would help" in sentence
    # One byte more, and all three run in the group.
    lines, printed, reported = on_chip(size + sum(own))
    assert reported, printed
    check(separate, reported)
    results.row("three context binaries in a group, of which the third has just room", PASSES)
    assert sum("is in process domain 0" in line for line in lines) == 3
