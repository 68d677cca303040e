"""A short soak with fixed seeds; `make soak` is the long one.

Where interrupts come up is a matter of microseconds, and no seed makes that the same twice: they must do no harm at any
place.
"""

import pytest
from run import soak


@pytest.mark.parametrize(
    "kinds", [("cpu", "lpai-x86", "lpai-out", "lpai-adsp", "lpai-tcm"), ("htp", "lpai-arm")], ids=["here", "over there"]
)
def test_random_programs_get_right_results_or_the_refusals_they_expect(kinds):
    result = soak(seconds=8, seed=1, kinds=kinds)
    assert not result.failure, result.failure
    assert result.figures["programs"] > 0
    assert result.figures["calls"] > 100
