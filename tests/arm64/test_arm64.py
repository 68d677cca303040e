"""Code for arm64 does there what it does here. The whole of it is `make test-arm64`; this much of it takes a minute.

Where the emulated machine is not set up, or this machine is an arm64 one, all but the first test are skipped.
"""

import signal

import arm64_machine as machine
import arm64_run
import pytest
from arm64_models import Case
from arm64_run import Outcome
from support import zoo

TARGETS = tuple(machine.PROCESSORS)
MODELS = (Case("okay_nabu"), Case("okay_nabu", "lpai"), Case("kws_qdq"), Case("kws_qdq", threads=2), Case("dtln_1"))
TESTS = (
    "tests/engine/native/test_matmul.py", "tests/engine/native/test_executor.py", "tests/backends/lpai/test_state.py"
)  # fmt: skip
PICK = "from isthmus.engine.native.target import host; print(host().name)"
STOP = """
import ctypes, numpy
from isthmus.engine.native import loader
from isthmus.engine.native.target import by_name
control = numpy.zeros(64, numpy.int64)
stop = loader.addresses(["executor:stop"], by_name("neon-dot"))["executor:stop"]
ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(stop)(control.ctypes.data, 0, 0, 1)
print("stopped")
"""


@pytest.fixture(scope="module")
def emulated():
    try:
        machine.require()
    except machine.Unavailable as reason:
        pytest.skip(str(reason))


def test_without_debians_tools_one_line_says_so(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(machine, "STORE", tmp_path)
    monkeypatch.setattr(machine, "_COMPLETE", tmp_path / "complete")
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(machine.shutil, "which", lambda tool: None)
    assert machine.main() == 1
    assert capsys.readouterr().err == (
        "the emulated arm64 machine is made of Debian's packages, and apt-get is not here\n"
    )


@pytest.mark.parametrize("target", TARGETS)
def test_a_processor_picks_the_best_code_that_it_can_run(emulated, target) -> None:
    assert machine.call(["-c", PICK], target).stdout.strip() == target


def test_a_processor_refuses_what_it_lacks(emulated) -> None:
    assert machine.call(["-c", STOP], "neon-dot").stdout == "stopped\n"
    assert machine.call(["-c", STOP], "neon").returncode == -signal.SIGILL


@pytest.mark.parametrize("target", TARGETS)
def test_models_give_the_bits_of_this_machine(emulated, target) -> None:
    try:
        for case in MODELS:
            zoo.path(case.key)
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    outcome = Outcome(target)
    arm64_run.hold_models(outcome, arm64_run.answer_here(MODELS))
    assert not outcome.failed
    assert [c.case for c in outcome.comparisons if c.identical] == list(MODELS)


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_threads_and_pools_pass_their_tests_on_an_emulated_machine(emulated, target) -> None:
    outcome = Outcome(target)
    arm64_run.hold_tests(outcome, TESTS)
    assert not outcome.failed
    assert outcome.passed > 30
