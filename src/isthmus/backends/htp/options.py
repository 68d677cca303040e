"""The words of HTP's memory and configs: option numbers and structures, as QNN's HTP headers name them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum


class HtpMemType(IntEnum):
    """QNN_HTP_MEM_*: what a custom descriptor points to. The numbers 2 to 4 are not public: they are this project's."""

    QURT = 0
    SHARED_BUFFER = 1
    WEIGHTS_BUFFER = 2
    SHARED_SPILLFILL_BUFFER = 3
    SHARED_VTCMBACKUP_BUFFER = 4
    UNDEFINED = 0x7FFFFFFF


@dataclass(frozen=True)
class HtpDescriptor:
    """Where a tensor lies in a buffer that it shares with others (QnnMemHtp_Descriptor_t).

    Parameters
    ----------
    size
        Bytes of the whole buffer.
    fd
        Its file descriptor.
    offset
        Where the tensor begins in it.
    type
        The kind of memory; SHARED_BUFFER is the one that a client on the host can register.
    """

    size: int
    fd: int
    offset: int = 0
    type: HtpMemType = HtpMemType.SHARED_BUFFER


class Reregistration(Enum):
    """Whether a place that is registered may be registered again. QNN's documents leave it open."""

    REFUSE = "refuse"
    """Never: MEM_ALREADY_REGISTERED."""
    OTHER_SHAPE = "other_shape"
    """With another shape or data type, as a further handle; the same once more is refused."""


class HtpContextConfigOption(IntEnum):
    """Custom configs of a context; numbers from 20001 on are this project's own."""

    REREGISTRATION = 20001


class HtpBackendProperty(IntEnum):
    """Custom properties of the backend; numbers from 20001 on are this project's own."""

    ACCELERATOR_PID = 20001
    """The process that serves as the accelerator; None before the first context."""
