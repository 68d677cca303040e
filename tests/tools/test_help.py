"""Help, exit statuses, nearest matches and completion are the same for every command, and the examples run."""

import itertools
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
from support import dlc_graphs, dlc_write, libraries, tiny, zoo
from support.suites import sampled
from support.waiting import PATIENCE

from isthmus.backends.seam import registry
from isthmus.backends.vendor.library import is_installed
from isthmus.capi import installation
from isthmus.tools import cli, completion
from isthmus.tools.commands import COMMANDS, QUESTIONS, parser_of
from isthmus.tools.examples import EXAMPLES
from isthmus.tools.options import SIZES

LINES = [pytest.param(command, line, id=line) for command, lines in EXAMPLES.items() for line in lines]
THREADS = {
    "backends": [{"backendName": "cpu", "backendPath": "libQnnCpu.so"}],
    "models": [{"modelName": "model", "modelPath": "model.onnx", "inputPath": "list.txt"}],
    "contexts": [{"contextName": "context"}],
    "testCase": {
        "iteration": 1,
        "threads": [
            {"threadName": "one", "backend": "cpu", "context": "context", "model": "model", "loopUnit": "count",
             "loop": 2}
        ],
    },
}  # fmt: skip


def run(line):
    """Return the exit status of a command line."""
    name, *arguments = shlex.split(line)
    main = cli.main if name == "isthmus" else getattr(cli, name.removeprefix("qnn-").replace("-", "_"))
    try:
        return main(arguments)
    except SystemExit as ended:
        return ended.code


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with all files that examples name."""
    folder = tmp_path_factory.mktemp("examples")
    before = os.getcwd()
    os.chdir(folder)
    try:
        tiny.convolution(folder / "model.onnx")
        x = np.ones((1, 3, 8, 8), np.float32)
        np.savez(folder / "in.npz", x=x)
        x.tofile(folder / "x.raw")
        (folder / "list.txt").write_text("x:=x.raw\n")
        (folder / "problem.csv").write_text("id,lower,upper,size\na,1,3,2\nb,0,2,4\nc,2,7,4\nd,4,9,5\n")
        assert run("isthmus samples samples") == 0
        for name in ("camera.tflite", "camera.onnx", "camera_qdq.onnx"):
            shutil.copy(folder / "samples" / name, folder)
        (folder / "net.dlc").write_bytes(dlc_write.dlc([dlc_graphs.convolution("first")]))
        (folder / "threads.json").write_text(json.dumps(THREADS))
        assert run("qnn-context-binary-generator --model model.onnx --backend libQnnHtp.so --output_dir .") == 0
        run_line = "qnn-net-run --model model.onnx --backend libQnnCpu.so --input_list list.txt --profiling_level basic"
        assert run(run_line) == 0
        shutil.copy(next((folder / "output").glob("*.log")), folder / "profile.log")
    finally:
        os.chdir(before)
    return folder


@pytest.mark.parametrize(("command", "line"), sampled(LINES, 3))
def test_an_example_of_the_help_runs(prepared, monkeypatch, capsys, command, line) -> None:
    monkeypatch.chdir(prepared)
    if command == "device" and "--chips" not in line and not is_installed():
        pytest.skip("needs Qualcomm's library")
    if "model.tflite" in line:
        pytest.importorskip("ai_edge_litert", reason="needs LiteRT")
        try:
            shutil.copy(zoo.path("okay_nabu"), "model.tflite")
        except zoo.Unavailable as reason:
            pytest.skip(str(reason))
    if line.startswith("isthmus capi install"):
        monkeypatch.setattr(installation, "BUILT", libraries.compiled())
    assert run(line) == 0, capsys.readouterr().err


def test_every_command_shows_its_examples_and_the_statuses(capsys) -> None:
    assert EXAMPLES.keys() == COMMANDS.keys()
    for command, lines in EXAMPLES.items():
        assert run(f"isthmus {command} --help") == 0
        shown = capsys.readouterr().out
        for line in lines:
            assert f"\n  {line}\n" in shown
        assert "exit status is 0 for success" in shown
        assert shown.count("Example") == 1, f"{command} has its examples twice"
        assert " ".join(shown.split()).count("2 for bad input") == 1, f"{command} has its statuses twice"


def test_the_help_groups_the_commands_by_the_question_that_they_answer(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run("isthmus --help") == 0
    shown = capsys.readouterr().out
    places = [shown.index(f"\n{question[:60]}") for question in QUESTIONS]
    assert places == sorted(places)
    for (begin, end), commands in zip(itertools.pairwise([*places, len(shown)]), QUESTIONS.values(), strict=True):
        listed = re.findall(r"^  (\S+)", shown[begin:end], re.MULTILINE)
        assert listed == list(commands)
    assert max(map(len, shown.splitlines())) <= 100


def test_our_options_have_hyphens() -> None:
    qnns = {"context-binary-generator", "net-run", "throughput-net-run", "context-binary-utility", "profile-viewer"}
    known_to_qnn = {name for command in qnns for name in parser_of(command, "isthmus")._option_string_actions}
    for command in COMMANDS.keys() - qnns:
        for name in parser_of(command, "isthmus")._option_string_actions:
            assert "_" not in name or name in known_to_qnn, (command, name)
            assert name.replace("_", "-") in parser_of(command, "isthmus")._option_string_actions


def test_both_options_that_embed_a_plan_say_what_the_other_does(capsys) -> None:
    for command, other in (("plan", "isthmus split --embed-plan"), ("split", "isthmus plan --embed")):
        assert run(f"isthmus {command} --help") == 0
        assert f"({other} " in " ".join(capsys.readouterr().out.split())


def test_the_help_says_once_what_a_size_is(capsys) -> None:
    for command in COMMANDS:
        assert run(f"isthmus {command} --help") == 0
        shown = " ".join(capsys.readouterr().out.split())
        has_sizes = any(word in shown for word in ("--tcm SIZE", "--capacity SIZE", "--max-copied SIZE", "a SIZE,"))
        assert shown.count(SIZES) == has_sizes, command
        assert "BYTES" not in shown


def test_every_size_has_the_same_units(prepared, monkeypatch, capsys) -> None:
    monkeypatch.chdir(prepared)
    for size in ("2000", "2KB", "2kB", "2k"):
        assert run(f"isthmus plan model.onnx --scratch-limit {size} --json") == 0
        assert json.loads(capsys.readouterr().out)["scratch_limit_bytes"] == 2000
        assert run(f"isthmus pack problem.csv --capacity {size} --json") == 0
        assert json.loads(capsys.readouterr().out)["capacity"] == 2000
        assert run(f"isthmus fit model.onnx --rounds 1 --budget {size} --json") in (0, 1)
        assert json.loads(capsys.readouterr().out)["budget_bytes"] == 2000
        assert run(f"isthmus plan model.onnx --backend lpai --tcm {size} --json") == 1
        assert json.loads(capsys.readouterr().out)["lpai"]["tcm"]["pool_bytes"] == 2000


def test_a_limit_on_scratch_is_echoed_in_bytes(prepared, monkeypatch, capsys) -> None:
    monkeypatch.chdir(prepared)
    assert run("isthmus plan model.onnx --scratch-limit 3KiB") == 0
    assert "limit             3,072  of scratch" in capsys.readouterr().out


def test_every_command_that_reports_figures_has_json() -> None:
    others = {"capi", "completion", "context-binary-utility", "view"}  # paths, a script, JSON anyway, a page
    for command in COMMANDS.keys() - others:
        assert "--json" in parser_of(command, "isthmus")._option_string_actions, command


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        (EXAMPLES["net-run"][0], {"graph", "inferences", "seconds", "copied_bytes", "folder", "results"}),
        (EXAMPLES["context-binary-generator"][0], {"file", "bytes", "backend", "graphs", "open_shapes"}),
        (EXAMPLES["throughput-net-run"][0], {"total_us", "threads"}),
        (EXAMPLES["profile-viewer"][0], {"logs"}),
    ],
)
def test_qnns_tools_print_json_alone(prepared, monkeypatch, capsys, line, keys) -> None:
    monkeypatch.chdir(prepared)
    assert run(f"{line} --json") == 0
    assert json.loads(capsys.readouterr().out).keys() == keys


@pytest.mark.parametrize("command", ["plan", "run", "split"])
def test_what_does_not_fit_ends_with_status_1_and_bad_input_with_2(prepared, monkeypatch, capsys, command) -> None:
    monkeypatch.chdir(prepared)
    limit = "--live-limit" if command == "split" else "--scratch-limit"
    assert run(f"isthmus {command} model.onnx {limit} 1") == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert run(f"isthmus {command} absent.onnx") == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "nearest"),
    [
        ("isthmus run model.onnx --graph modl", "model"),
        ("isthmus plan model.onnx --target avx3", "avx2"),
        ("isthmus plan model.onnx --shape xx=1,3,8,8", "x"),
        ("isthmus run model.onnx --log-level debg", "debug"),
        ("isthmus run modle.onnx", "model.onnx"),
        ("isthmus inspect modl.bin", "model.bin"),
        ("isthmus run model.onnx --inputs inn.npz", "in.npz"),
        ("isthmus sweep modle.onnx", "model.onnx"),
        ("isthmus pack problm.csv", "problem.csv"),
        ("isthmus plan model.onnx --backend lpai --config thread.json", "threads.json"),
        ("qnn-net-run --model nte.dlc --backend libQnnCpu.so --input_list list.txt", "net.dlc"),
        ("qnn-net-run --model model.onnx --backend libQnnCpu.so --input_list lst.txt", "list.txt"),
        ("qnn-context-binary-utility --context_binary modl.bin", "model.bin"),
        ("qnn-profile-viewer --input_log profil.log", "profile.log"),
        ("isthmus run model.onnx --backend htp --io memhandel", "memhandle"),
        ("isthmus tflite-benchmark model.tflite --backend hpt", "htp"),
        ("isthmus capi instal", "install"),
        ("isthmus completion bsh", "bash"),
    ],
)
def test_a_misspelt_value_gets_the_nearest(prepared, monkeypatch, capsys, line, nearest) -> None:
    monkeypatch.chdir(prepared)
    assert run(line) == 2
    assert f"Did you mean '{nearest}'?" in capsys.readouterr().err.splitlines()[-1]


# -- completion --------------------------------------------------------------------------------------------------------


def completed(words, folder):
    """Return what bash offers for the last of some words."""
    script = f"""{completion.bash()}
        COMP_WORDS=({" ".join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}; _isthmus
        printf '%s\\n' "${{COMPREPLY[@]}}\""""
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["isthmus", "pl"], ["plan"]),
        (["isthmus", "run", "m.onnx", "--backend", "h"], ["htp"]),
        (["/usr/bin/isthmus", "run", "--scr"], ["--scratch-limit"]),
        (["isthmus", "run", "--log-level", "deb"], ["debug"]),
        (["isthmus", "run", "--log_level", "deb"], ["debug"]),
        (["isthmus", "completion", "z"], ["zsh"]),
        (["qnn-net-run", "--input_l"], ["--input_list"]),
        (["qnn-net-run", "--backend", "libQnnL"], ["libQnnLpai.so"]),
        (["isthmus", "run", "--inputs", "zzz"], []),
    ],
)
def test_bash_completes_commands_options_and_values(tmp_path, words, offered) -> None:
    assert completed(words, tmp_path) == offered


STARTS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source ./script\n"),
    "zsh": (["zsh", "-f", "-i"], "autoload -U compinit; compinit -u -D; source ./script\n"),
    "fish": (["fish", "--no-config", "-i"], "source ./script\n"),
}
"""How each shell starts without a user's settings, and what it is told first."""


@pytest.mark.parametrize("shell", STARTS)
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("isthmus pl\t", "isthmus plan"),
        ("isthmus plan --backend lp\t", "--backend lpai"),
        ("isthmus run my-m\t", "run my-model.onnx"),
        ("isthmus run my-model.onnx --inputs my-a\t", "--inputs my-arrays.npz"),
        ("qnn-net-run --profiling_level det\t", "--profiling_level detailed"),
        ("qnn-net-run --input_list my-l\t", "--input_list my-list.txt"),
    ],
)
def test_a_shell_completes_what_is_typed(tmp_path, shell, typed, offered) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    for name in ("my-model.onnx", "my-arrays.npz", "my-list.txt"):
        (tmp_path / name).touch()
    (tmp_path / "script").write_text(getattr(completion, shell)())
    command, first = STARTS[shell]
    settings = os.environ | {"TERM": "dumb", "PS1": "$ ", "HOME": str(tmp_path)}
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.execvpe(command[0], command, settings)
    try:
        # Quotes inside the word: the echo of what is typed is not yet "ready", only the output is.
        os.write(terminal, f"{first}echo rea''dy\n".encode())
        wait_for_text(terminal, "ready")
        os.write(terminal, typed.encode())
        wait_for_text(terminal, offered)
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)


def wait_for_text(terminal, text):
    """Read from a terminal until a text has appeared; fail after `PATIENCE`."""
    seen, end = "", time.monotonic() + PATIENCE
    while text not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0, end - time.monotonic()))
        assert ready, seen
        seen += os.read(terminal, 65536).decode(errors="replace")


def test_every_option_of_every_command_is_completed_in_every_shell() -> None:
    bash, fish = completion.bash(), completion.fish()
    assert bash in completion.zsh()
    for command in COMMANDS:
        [case] = [line for line in bash.splitlines() if line.startswith(f"        {command}:*) options=")]
        offered = re.split("[' ]", case.partition(" words=")[0])
        lines = [line for line in fish.splitlines() if f"__fish_seen_subcommand_from {command}'" in line]
        for action in parser_of(command, f"isthmus {command}")._actions:
            for option in action.option_strings:
                assert option in offered
                assert option == "-h" or any(f" -l {option[2:]} " in line for line in lines)
    for name in registry.names():
        assert name in fish
