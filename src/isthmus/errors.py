"""QNN's error codes by name, and the one exception that carries them.

Every refusal in the project is a `QnnError`: the code that QNN itself would return, the object that was refused, the
rule that it broke and what to do about it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from enum import IntEnum


class Code(IntEnum):
    """QNN error codes under the names of the C headers, without their ``QNN_`` and ``_ERROR`` parts."""

    SUCCESS = 0

    COMMON_NOT_SUPPORTED = 1000
    COMMON_MEM_ALLOC = 1002
    COMMON_SYSTEM = 1003
    COMMON_INVALID_ARGUMENT = 1004
    COMMON_OPERATION_NOT_PERMITTED = 1005
    COMMON_PLATFORM_NOT_SUPPORTED = 1006
    COMMON_SYSTEM_COMMUNICATION = 1007
    COMMON_INCOMPATIBLE_BINARIES = 1008
    COMMON_LOADING_BINARIES = 1009
    COMMON_RESOURCE_UNAVAILABLE = 1010
    COMMON_SYSTEM_COMMUNICATION_FATAL = 1011
    COMMON_GENERAL = 1100

    OP_PACKAGE_VALIDATION_FAILURE = 3110

    BACKEND_CANNOT_INITIALIZE = 4000
    BACKEND_TERMINATE_FAILED = 4002
    BACKEND_NOT_SUPPORTED = 4003
    BACKEND_INVALID_ARGUMENT = 4004
    BACKEND_OP_PACKAGE_NOT_FOUND = 4005
    BACKEND_OP_PACKAGE_IF_PROVIDER_NOT_FOUND = 4006
    BACKEND_OP_PACKAGE_REGISTRATION_FAILED = 4007
    BACKEND_OP_PACKAGE_UNSUPPORTED_VERSION = 4008
    BACKEND_OP_PACKAGE_DUPLICATE = 4009
    BACKEND_INCONSISTENT_CONFIG = 4010
    BACKEND_INVALID_HANDLE = 4011
    BACKEND_INVALID_CONFIG = 4012
    SAVER_DUMMY_RETVALUE = 4950
    SAVER_ALREADY_INSTANTIATED = 4951

    CONTEXT_INVALID_ARGUMENT = 5000
    CONTEXT_CTX_DOES_NOT_EXIST = 5001
    CONTEXT_INVALID_HANDLE = 5002
    CONTEXT_NOT_FINALIZED = 5003
    CONTEXT_BINARY_VERSION = 5004
    CONTEXT_CREATE_FROM_BINARY = 5005
    CONTEXT_GET_BINARY_SIZE_FAILED = 5006
    CONTEXT_GET_BINARY_FAILED = 5007
    CONTEXT_BINARY_CONFIGURATION = 5008
    CONTEXT_SET_PROFILE = 5009
    CONTEXT_INVALID_CONFIG = 5010
    CONTEXT_BINARY_SUBOPTIMAL = 5011
    CONTEXT_ABORTED = 5012
    CONTEXT_TIMED_OUT = 5013
    CONTEXT_INCREMENT_INVALID_BUFFER = 5014

    GRAPH_INVALID_ARGUMENT = 6000
    GRAPH_INVALID_HANDLE = 6001
    GRAPH_DOES_NOT_EXIST = 6002
    GRAPH_INVALID_NAME = 6003
    GRAPH_INVALID_TENSOR = 6004
    GRAPH_INVALID_OP_CONFIG = 6005
    GRAPH_SET_PROFILE = 6006
    GRAPH_UNCONNECTED_NODE = 6007
    GRAPH_CREATE_FAILED = 6020
    GRAPH_OPTIMIZATION_FAILED = 6021
    GRAPH_FINALIZE_FAILED = 6022
    GRAPH_NOT_FINALIZED = 6023
    GRAPH_FINALIZED = 6024
    GRAPH_EXECUTION_ASYNC_FIFO_FULL = 6025
    GRAPH_SIGNAL_IN_USE = 6030
    GRAPH_ABORTED = 6031
    GRAPH_PROFILE_IN_USE = 6032
    GRAPH_TIMED_OUT = 6033
    GRAPH_SUBGRAPH = 6034

    TENSOR_INVALID_HANDLE = 7001
    TENSOR_DOES_NOT_EXIST = 7002
    TENSOR_ALREADY_EXISTS = 7003
    TENSOR_INVALID_TENSOR_PARAM = 7004
    TENSOR_UNSUPPORTED_TENSOR_PARAM = 7005

    MEM_INVALID_ARGUMENT = 8000
    MEM_INVALID_HANDLE = 8001
    MEM_ALREADY_REGISTERED = 8002
    MEM_MAPPING = 8003
    MEM_INVALID_SHAPE = 8004
    MEM_UNSUPPORTED_MEMTYPE = 8005

    ERROR_INVALID_ARGUMENT = 10000
    ERROR_INVALID_ERROR_HANDLE = 10001

    LOG_INVALID_ARGUMENT = 11003
    LOG_INVALID_HANDLE = 11004

    PROFILE_INVALID_HANDLE = 12000

    DEVICE_INVALID_HANDLE = 14000
    DEVICE_INVALID_CONFIG = 14001
    DEVICE_HARDWARE_UNAVAILABLE = 14002
    DEVICE_ASSOCIATED_TO_CONTEXT = 14003


# Characters that end a line or change the direction in which a terminal writes.
_FORMAT_CHARACTERS = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF)
# Escapes of characters that end a line or control a terminal.
_ESCAPED = {number: repr(chr(number))[1:-1] for number in (*range(32), *range(127, 160), *_FORMAT_CHARACTERS)}


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> counted(1, "graph"), counted(2000, "byte")
    ('1 graph', '2,000 bytes')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def code_of(problem: OSError, otherwise: Code) -> Code:
    """Return the code of a system's error: COMMON_RESOURCE_UNAVAILABLE for a lack of descriptors, else `otherwise`."""
    return Code.COMMON_RESOURCE_UNAVAILABLE if problem.errno in (errno.EMFILE, errno.ENFILE) else otherwise


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """Return a hint with the name nearest to a misspelt one; empty if none is near.

    Examples
    --------
    >>> did_you_mean("ElementWiseAd", ["Relu", "ElementWiseAdd"])
    "Did you mean 'ElementWiseAdd'?"
    >>> did_you_mean("relu", ["Relu", "Sigmoid"]), did_you_mean("x", ["Relu"])
    ("Did you mean 'Relu'?", '')
    >>> did_you_mean("SM8751", ["SM8975", "SM8750"])
    "Did you mean 'SM8750'?"
    """
    nearest_name = nearest(name, names)
    return f"Did you mean '{nearest_name}'?" if nearest_name else ""


def nearest(name: object, names: Iterable[str]) -> str:
    """Return the name nearest to a misspelt one; empty if none is near."""
    # Imported on demand: few processes make a mistake.
    from difflib import SequenceMatcher, get_close_matches

    wrong, by_lower = str(name).lower(), {each.lower(): each for each in names}
    near = get_close_matches(wrong, by_lower, 5)
    matchers = {each: SequenceMatcher(None, each, wrong) for each in near}
    # Of names that are equally near, the one that begins alike.
    alike = {each: (by.ratio(), by.get_matching_blocks()[0].size) for each, by in matchers.items()}
    return by_lower[max(near, key=alike.__getitem__)] if near else ""


def one_line(text: str) -> str:
    """Escape a text from a file, such as a name, so that it neither ends a line nor controls a terminal.

    Examples
    --------
    >>> print(one_line("a\\x1b[31m\\nb"))
    a\\x1b[31m\\nb
    """
    return text.translate(_ESCAPED)


causes: dict[str, str] = {}
"""Known causes of errors, by a text that their rules contain: the system only says that something has run out, and the
injected fault behind it is named here. Normally empty.
"""


def with_cause(rule: str) -> str:
    """Return why something failed, with the causes of that which are known."""
    return rule + "".join(f" ({cause})" for text, cause in causes.items() if text in rule and cause not in rule)


class QnnError(Exception):
    """A refusal: QNN's code, the object, the rule it broke, and the remedy.

    Parameters
    ----------
    code
        The code that QNN returns in this situation.
    what
        The object that was refused, for example ``"node 'conv_1' (Conv2d)"``.
    rule
        The rule it broke, as a sentence part: ``"in[0] must have rank 4, has rank 3"``.
    hint
        What to do about it; may be empty.
    mistake
        The name of the mistake in an audit, where it says more than the code's name.

    Examples
    --------
    >>> error = QnnError(Code.GRAPH_NOT_FINALIZED, "graph 'g'", "only a finalized graph can be executed")
    >>> error.code, error.name
    (<Code.GRAPH_NOT_FINALIZED: 6023>, 'GRAPH_NOT_FINALIZED')
    >>> print(error)
    [6023 GRAPH_NOT_FINALIZED] graph 'g': only a finalized graph can be executed
    """

    def __init__(self, code: Code, what: str, rule: str, hint: str = "", *, mistake: str = "") -> None:
        self.code = Code(code)
        self.what = what
        self.rule = with_cause(rule)
        self.hint = hint
        self.mistake = mistake
        super().__init__(str(self))

    @property
    def name(self) -> str:
        """The code's name."""
        return self.code.name

    def __str__(self) -> str:
        text = f"[{int(self.code)} {self.code.name}] {self.what}: {self.rule}"
        # In one line, even if names in it contain line breaks.
        return one_line(f"{text}. {self.hint}" if self.hint else text)

    # Without this, pickle and copy would pass only the message to the constructor.
    def __reduce__(self) -> tuple[type[QnnError], tuple[Code, str, str, str], dict[str, str]]:
        return type(self), (self.code, self.what, self.rule, self.hint), {"mistake": self.mistake}


def invalid_argument(what: str, rule: str, hint: str = "") -> QnnError:
    """Return the refusal of an argument that breaks a rule."""
    return QnnError(Code.COMMON_INVALID_ARGUMENT, what, rule, hint)


class DoesNotFit(QnnError):
    """A refusal because memory, or a limit on it, is too small. Commands end with status 1 for it, not 2."""
