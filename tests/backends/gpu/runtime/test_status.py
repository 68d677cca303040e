"""What OpenCL answers becomes an error of QNN's."""

import pytest

from isthmus.backends.gpu.runtime.status import check, is_loss, refusal
from isthmus.errors import Code


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (-4, Code.COMMON_MEM_ALLOC),
        (-5, Code.COMMON_MEM_ALLOC),
        (-6, Code.COMMON_MEM_ALLOC),
        (-61, Code.COMMON_MEM_ALLOC),
        (-2, Code.COMMON_SYSTEM_COMMUNICATION),
        (-36, Code.COMMON_SYSTEM_COMMUNICATION),
        (-9999, Code.COMMON_SYSTEM_COMMUNICATION),
        (-1, Code.DEVICE_HARDWARE_UNAVAILABLE),
        (-30, Code.COMMON_SYSTEM),
        (-12345, Code.COMMON_SYSTEM),
    ],
)
def test_a_status_has_a_code_and_its_name(status, code) -> None:
    error = refusal(status, "thing", "clDoSomething")
    assert error.code is code
    assert f"clDoSomething answers {'an unknown status' if status == -12345 else ''}" in error.rule
    assert f"({status})" in error.rule


def test_success_is_no_error_and_a_lost_device_differs_from_a_full_one() -> None:
    check(0, "thing", "clDoSomething")
    assert is_loss(-36)
    assert not is_loss(-4)
