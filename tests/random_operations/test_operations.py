"""Operations with attributes at random compute what ONNX Runtime and LiteRT compute.

`ISTHMUS_RANDOM_CASES` and `ISTHMUS_RANDOM_SEED` ask for more, or other, cases; `long_run.py` beside this file takes
thousands and tells more about them.
"""

from __future__ import annotations

import os

import pytest
from support.suites import long

from random_operations.comparison import Account
from random_operations.kinds import MAKERS, seed_of

CASES = int(os.environ.get("ISTHMUS_RANDOM_CASES", "160"))
SEED = int(os.environ.get("ISTHMUS_RANDOM_SEED", "20"))


@pytest.mark.parametrize(("cases", "enough"), [(6, 3), long(CASES, CASES)])
@pytest.mark.parametrize("kind", MAKERS)
def test_random_operations_agree_with_the_reference(kind: str, cases: int, enough: int) -> None:
    """Try so many cases, or fewer if enough have agreed."""
    account = Account()
    for number in range(cases):
        if account.counts["agreed"] == enough:
            break
        account.add(seed_of(kind, SEED, number), MAKERS[kind])
    assert not account.failures, "\n\n".join(f"{seed}: {what}" for seed, what in list(account.failures.items())[:3])
    # A kind that is refused most of the time would prove nothing.
    assert account.counts["agreed"] >= cases / 2, (account.counts, account.refusals)
