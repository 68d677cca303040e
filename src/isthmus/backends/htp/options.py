"""Constants of HTP's memory and configs: option numbers and structures, as QNN's HTP headers name them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum


class HtpMemType(IntEnum):
    """QNN_HTP_MEM_*: the kind of memory of a custom descriptor. The numbers 2 to 4 are this project's, not public."""

    QURT = 0
    SHARED_BUFFER = 1
    WEIGHTS_BUFFER = 2
    SHARED_SPILLFILL_BUFFER = 3
    SHARED_VTCMBACKUP_BUFFER = 4
    UNDEFINED = 0x7FFFFFFF


@dataclass(frozen=True)
class HtpDescriptor:
    """The location of a tensor in a buffer that it shares with others (QnnMemHtp_Descriptor_t).

    Parameters
    ----------
    size
        Size of the whole buffer in bytes.
    fd
        Its file descriptor.
    offset
        The offset of the tensor in it.
    type
        The kind of memory; only SHARED_BUFFER can be registered from the host.
    """

    size: int
    fd: int
    offset: int = 0
    type: HtpMemType = HtpMemType.SHARED_BUFFER


class Reregistration(Enum):
    """Whether a registered location may be registered again. QNN's documentation does not specify it."""

    REFUSE = "refuse"
    """Never: MEM_ALREADY_REGISTERED."""
    OTHER_SHAPE = "other_shape"
    """With another shape or data type, as a further handle; an identical registration is refused."""


class HtpContextConfigOption(IntEnum):
    """Custom configs of a context; numbers from 20001 on are this project's own."""

    REREGISTRATION = 20001
    """A `Reregistration`: whether a location may be registered again."""


class HtpFloatPrecision(IntEnum):
    """QNN_PRECISION_*: how the floats of a FLOAT_32 graph are stored between its inputs and outputs."""

    FLOAT32 = 0
    FLOAT16 = 1


class HtpNumerics(Enum):
    """How results are rounded. QNN has no such setting: its chips round in one way."""

    EXACT = "exact"
    """To the nearest, halves to even; graphs of TFLite and ONNX files as their runtimes do."""
    HTP = "htp"
    """As HTP's chips do. FLOAT_32 graphs are computed in fp16, as on chips from v69 on."""


class HtpGraphConfigOption(IntEnum):
    """The custom configs of a graph that have an effect here, with the numbers of QNN's HTP headers."""

    PRECISION = 2
    """An `HtpFloatPrecision`; set it before the graph is finalized."""


class HtpBackendProperty(IntEnum):
    """Custom properties of the backend; numbers from 20001 on are this project's own."""

    ACCELERATOR_PID = 20001
    """The process id of the accelerator; None before the first context."""
