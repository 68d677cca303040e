"""One error lists everything that a model uses and we cannot convert."""

import pytest

from isthmus.errors import Code, QnnError
from isthmus.frontends.unsupported import Unsupported


def test_nothing_found_raises_nothing() -> None:
    found = Unsupported("m")
    found.check()
    assert not found


def test_error_counts_operations_and_names_a_few_nodes() -> None:
    found = Unsupported("m")
    for index in range(5):
        found.add("WHERE", f"w{index}")
    found.add("CAST", "c", "reads quantized values")
    found.add("CAST", "c", "met again")
    with pytest.raises(QnnError) as caught:
        found.check()
    assert caught.value.code is Code.COMMON_NOT_SUPPORTED
    assert caught.value.rule == (
        "6 operations are not supported: WHERE x5 ('w0', 'w1', 'w2' and 2 more); CAST x1 (reads quantized values: 'c')"
    )
