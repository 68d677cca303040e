"""A short soak with fixed seeds; `make soak` is the long one.

Where interrupts come up is a matter of microseconds, and no seed makes that the same twice: they must do no harm at any
place. The same rounds come three times: when they have come once, the process has met all that they need, and whatever
it has more of in the end it has lost.
"""

import pytest
import run
from calls import wrong_context_calls
from run import soak
from support.suites import LONG

from isthmus import QnnError, qnn

ROUNDS, STEPS = 8, 10
BLOCKS, HEAP = 100, 64 << 10
GROUPS = {
    "here": ("cpu", "lpai-x86", "lpai-out", "lpai-adsp", "lpai-tcm", "c-cpu", "litert-cpu"),
    "over there": ("htp", "lpai-arm", "c-htp"),
    "gpu": ("gpu",),
}


@LONG
@pytest.mark.parametrize("kinds", GROUPS.values(), ids=GROUPS)
def test_random_programs_get_right_results_or_the_refusals_they_expect_and_lose_nothing(kinds) -> None:
    rounds = [*range(1, ROUNDS + 1)] * 3
    result = soak(0, 0, kinds, rounds=rounds, only=[*range(STEPS)], warm_up=ROUNDS)
    figures = result.figures
    assert not result.failure, result.failure
    if len(missing := figures["left out"]) == len(kinds):
        pytest.skip("; ".join(missing.values()))
    assert figures["rounds"] == len(rounds)
    assert figures["calls"] > 100
    assert figures["client growth"] is not None
    # Looser bounds than for one leak a round: interrupts leave caches filled or not.
    assert figures["client blocks growth"] < BLOCKS
    assert figures["client heap growth"] < HEAP
    for what in ("open files", "threads", "processes"):
        before, after = figures[what]
        assert after <= before, what


@LONG
def test_a_run_continues_after_its_time_until_growth_can_be_judged() -> None:
    result = soak(1, 1, ("cpu",))
    assert not result.failure, result.failure
    assert not result.figures["not judged"]
    assert result.figures["seconds over"] > 0
    assert None not in [result.figures[f"client {what}growth"] for what in ("", "heap ", "blocks ")]


@pytest.mark.parametrize(("kind", "name"), [("cpu", "client heap growth"), ("htp", "accelerator growth")])
def test_a_run_that_did_not_judge_growth_in_the_end_has_failed(kind, name, monkeypatch) -> None:
    monkeypatch.setattr(run, "_EXTRA_SECONDS", 0)
    result = soak(0.1, 1, (kind,))
    assert result.failure.startswith("growth was not judged")
    assert name in result.figures["not judged"]
    assert result.round is None


@pytest.mark.parametrize("name", ["cpu", "htp", "lpai"])
def test_each_wrong_call_of_the_soak_is_answered_as_it_expects(name) -> None:
    with qnn.Backend(name) as backend:
        for what, do, codes in wrong_context_calls(backend, backend.create_context()):
            with pytest.raises(QnnError) as caught:
                do()
            assert caught.value.code in codes, what
