"""Every refusal carries QNN's code, the object, the rule and the remedy."""

import pickle

import pytest

import isthmus
from isthmus import Code, QnnError


def test_an_error_has_code_object_rule_and_remedy() -> None:
    error = QnnError(Code.MEM_ALREADY_REGISTERED, "fd 7", "it is registered as handle 3", "Deregister it first.")
    assert error.code == 8002
    assert error.name == "MEM_ALREADY_REGISTERED"
    assert str(error) == "[8002 MEM_ALREADY_REGISTERED] fd 7: it is registered as handle 3. Deregister it first."


def test_an_error_survives_a_process_boundary() -> None:
    error = QnnError(Code.GRAPH_NOT_FINALIZED, "graph 'g'", "finalize it first", "Call finalize().")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.code, copy.what, copy.rule, copy.hint) == (error.code, error.what, error.rule, error.hint)


def test_the_package_names_what_it_offers() -> None:
    assert {"Session", "QnnError", "Code", "memory"} <= set(isthmus.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = isthmus.nonsense


NUMBERS = {
    "SUCCESS": 0,
    "COMMON_NOT_SUPPORTED": 1000, "COMMON_MEM_ALLOC": 1002, "COMMON_SYSTEM": 1003, "COMMON_INVALID_ARGUMENT": 1004,
    "COMMON_OPERATION_NOT_PERMITTED": 1005, "COMMON_PLATFORM_NOT_SUPPORTED": 1006,
    "COMMON_SYSTEM_COMMUNICATION": 1007, "COMMON_INCOMPATIBLE_BINARIES": 1008, "COMMON_LOADING_BINARIES": 1009,
    "COMMON_RESOURCE_UNAVAILABLE": 1010, "COMMON_SYSTEM_COMMUNICATION_FATAL": 1011, "COMMON_GENERAL": 1100,
    "OP_PACKAGE_VALIDATION_FAILURE": 3110,
    "BACKEND_CANNOT_INITIALIZE": 4000, "BACKEND_TERMINATE_FAILED": 4002, "BACKEND_NOT_SUPPORTED": 4003,
    "BACKEND_INVALID_ARGUMENT": 4004, "BACKEND_OP_PACKAGE_NOT_FOUND": 4005,
    "BACKEND_OP_PACKAGE_IF_PROVIDER_NOT_FOUND": 4006, "BACKEND_OP_PACKAGE_REGISTRATION_FAILED": 4007,
    "BACKEND_OP_PACKAGE_UNSUPPORTED_VERSION": 4008, "BACKEND_OP_PACKAGE_DUPLICATE": 4009,
    "BACKEND_INCONSISTENT_CONFIG": 4010, "BACKEND_INVALID_HANDLE": 4011, "BACKEND_INVALID_CONFIG": 4012,
    "SAVER_DUMMY_RETVALUE": 4950, "SAVER_ALREADY_INSTANTIATED": 4951,
    "CONTEXT_INVALID_ARGUMENT": 5000, "CONTEXT_CTX_DOES_NOT_EXIST": 5001, "CONTEXT_INVALID_HANDLE": 5002,
    "CONTEXT_NOT_FINALIZED": 5003, "CONTEXT_BINARY_VERSION": 5004, "CONTEXT_CREATE_FROM_BINARY": 5005,
    "CONTEXT_GET_BINARY_SIZE_FAILED": 5006, "CONTEXT_GET_BINARY_FAILED": 5007, "CONTEXT_BINARY_CONFIGURATION": 5008,
    "CONTEXT_SET_PROFILE": 5009, "CONTEXT_INVALID_CONFIG": 5010, "CONTEXT_BINARY_SUBOPTIMAL": 5011,
    "CONTEXT_ABORTED": 5012, "CONTEXT_TIMED_OUT": 5013, "CONTEXT_INCREMENT_INVALID_BUFFER": 5014,
    "GRAPH_INVALID_ARGUMENT": 6000, "GRAPH_INVALID_HANDLE": 6001, "GRAPH_DOES_NOT_EXIST": 6002,
    "GRAPH_INVALID_NAME": 6003, "GRAPH_INVALID_TENSOR": 6004, "GRAPH_INVALID_OP_CONFIG": 6005,
    "GRAPH_SET_PROFILE": 6006, "GRAPH_UNCONNECTED_NODE": 6007, "GRAPH_CREATE_FAILED": 6020,
    "GRAPH_OPTIMIZATION_FAILED": 6021, "GRAPH_FINALIZE_FAILED": 6022, "GRAPH_NOT_FINALIZED": 6023,
    "GRAPH_FINALIZED": 6024, "GRAPH_EXECUTION_ASYNC_FIFO_FULL": 6025, "GRAPH_SIGNAL_IN_USE": 6030,
    "GRAPH_ABORTED": 6031, "GRAPH_PROFILE_IN_USE": 6032, "GRAPH_TIMED_OUT": 6033, "GRAPH_SUBGRAPH": 6034,
    "TENSOR_INVALID_HANDLE": 7001, "TENSOR_DOES_NOT_EXIST": 7002, "TENSOR_ALREADY_EXISTS": 7003,
    "TENSOR_INVALID_TENSOR_PARAM": 7004, "TENSOR_UNSUPPORTED_TENSOR_PARAM": 7005,
    "MEM_INVALID_ARGUMENT": 8000, "MEM_INVALID_HANDLE": 8001, "MEM_ALREADY_REGISTERED": 8002, "MEM_MAPPING": 8003,
    "MEM_INVALID_SHAPE": 8004, "MEM_UNSUPPORTED_MEMTYPE": 8005,
    "ERROR_INVALID_ARGUMENT": 10000, "ERROR_INVALID_ERROR_HANDLE": 10001,
    "LOG_INVALID_ARGUMENT": 11003, "LOG_INVALID_HANDLE": 11004,
    "PROFILE_INVALID_HANDLE": 12000,
    "DEVICE_INVALID_HANDLE": 14000, "DEVICE_INVALID_CONFIG": 14001, "DEVICE_HARDWARE_UNAVAILABLE": 14002,
    "DEVICE_ASSOCIATED_TO_CONTEXT": 14003,
}  # fmt: skip
"""As clients have them compiled in."""


def test_codes_have_the_numbers_of_the_headers() -> None:
    assert {name: int(code) for name, code in Code.__members__.items()} == NUMBERS


def test_an_error_is_one_line_whatever_names_it_quotes() -> None:
    error = QnnError(Code.GRAPH_INVALID_NAME, "graph 'a\nb'", "it has 'c\r\x1b[2J\u2028'", "Rename\x85it\x9b31m\u202e.")
    assert len(str(error).splitlines()) == 1
    assert str(error).endswith(r"graph 'a\nb': it has 'c\r\x1b[2J\u2028'. Rename\x85it\x9b31m\u202e.")
