"""The numbers of OpenCL are those of its headers, as another wrapper of them has them too."""

import pytest

from isthmus.backends.gpu.runtime import numbers

cl = pytest.importorskip("pyopencl", reason="the package pyopencl is not installed")
FAMILIES = (
    ("DEVICE_TYPE_", (cl.device_type,)),
    ("DEVICE_", (cl.device_info,)),
    ("DRIVER", (cl.device_info,)),
    ("PLATFORM_", (cl.platform_info,)),
    ("CONTEXT_", (cl.context_info, cl.context_properties)),
    ("QUEUE_", (cl.command_queue_info, cl.command_queue_properties)),
    ("MEM_OBJECT_", (cl.mem_object_type,)),
    ("MEM_", (cl.mem_flags, cl.mem_info)),
    ("MAP_", (cl.map_flags,)),
    ("PROGRAM_BUILD_", (cl.program_build_info,)),
    ("PROGRAM_", (cl.program_info,)),
    ("EVENT_", (cl.event_info,)),
    ("PROFILING_COMMAND_", (cl.profiling_info,)),
    ("", (cl.status_code, cl.command_execution_status)),
)
OF_EXTENSIONS = {
    "TRUE": 1, "FALSE": 0, "DEVICE_COMMAND_BUFFER_CAPABILITIES_KHR": 0x12A9,
    "COMMAND_BUFFER_CAPABILITY_SIMULTANEOUS_USE_KHR": 4, "COMMAND_BUFFER_FLAGS_KHR": 0x1293,
    "COMMAND_BUFFER_SIMULTANEOUS_USE_KHR": 1, "NVIDIA_ILLEGAL_ACCESS": -9999, "INVALID_COMMAND_BUFFER_KHR": -1138,
    "INVALID_PROPERTY": -64, "INVALID_DEVICE_QUEUE": -70,
}  # fmt: skip
"""What that wrapper does not name."""


def of_the_headers(name: str) -> int:
    """A number by its name without ``CL_``."""
    if name in OF_EXTENSIONS:
        return OF_EXTENSIONS[name]
    for start, families in FAMILIES:
        short = name if start == "DRIVER" else name.removeprefix(start)
        for family in families:
            if name.startswith(start) and hasattr(family, short):
                return int(getattr(family, short)) & 0xFFFFFFFF if start == "DEVICE_TYPE_" else getattr(family, short)
    raise LookupError(name)


@pytest.mark.parametrize("name", sorted(name for name in vars(numbers) if name.isupper() and name != "STATUS_NAMES"))
def test_a_number_is_the_one_of_the_headers(name) -> None:
    assert getattr(numbers, name) == of_the_headers(name)


def test_a_status_has_the_name_of_the_headers() -> None:
    for status, name in numbers.STATUS_NAMES.items():
        known = numbers.NVIDIA_ILLEGAL_ACCESS if name == "illegal access of a kernel" else of_the_headers(name)
        assert status == known, name


def test_all_that_buffers_programs_and_kernels_can_answer_has_a_name() -> None:
    core = {*range(1, 9), *range(11, 16), 17, *range(30, 39), *range(42, 60), 61, 63, 64, 70}
    assert {-status for status in numbers.STATUS_NAMES} == core | {1001, 1138, 9999}
