"""Every refusal carries QNN's code, the object, the rule and the remedy."""

import pickle

import pytest

import isthmus
from isthmus import Code, QnnError


def test_an_error_tells_code_object_rule_and_remedy():
    error = QnnError(Code.MEM_ALREADY_REGISTERED, "fd 7", "it is registered as handle 3", "Deregister it first.")
    assert error.code == 8002
    assert error.name == "MEM_ALREADY_REGISTERED"
    assert str(error) == "[8002 MEM_ALREADY_REGISTERED] fd 7: it is registered as handle 3. Deregister it first."


def test_an_error_survives_a_process_boundary():
    error = QnnError(Code.GRAPH_NOT_FINALIZED, "graph 'g'", "finalize it first", "Call finalize().")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.code, copy.what, copy.rule, copy.hint) == (error.code, error.what, error.rule, error.hint)


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (1000, "COMMON_NOT_SUPPORTED"),
        (1007, "COMMON_SYSTEM_COMMUNICATION"),
        (6005, "GRAPH_INVALID_OP_CONFIG"),
        (6022, "GRAPH_FINALIZE_FAILED"),
        (6023, "GRAPH_NOT_FINALIZED"),
        (7004, "TENSOR_INVALID_TENSOR_PARAM"),
        (8000, "MEM_INVALID_ARGUMENT"),
        (8005, "MEM_UNSUPPORTED_MEMTYPE"),
    ],
)
def test_codes_have_the_numbers_of_the_headers(number, name):
    assert Code(number).name == name


def test_the_package_names_what_it_offers():
    assert {"Session", "QnnError", "Code", "memory"} <= set(isthmus.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = isthmus.nonsense


DOCUMENTED = {
    0: "SUCCESS",
    1000: "COMMON_NOT_SUPPORTED",
    1002: "COMMON_MEM_ALLOC",
    1003: "COMMON_SYSTEM",
    1004: "COMMON_INVALID_ARGUMENT",
    1005: "COMMON_OPERATION_NOT_PERMITTED",
    1006: "COMMON_PLATFORM_NOT_SUPPORTED",
    1007: "COMMON_SYSTEM_COMMUNICATION",
    1008: "COMMON_INCOMPATIBLE_BINARIES",
    1009: "COMMON_LOADING_BINARIES",
    1010: "COMMON_RESOURCE_UNAVAILABLE",
    1011: "COMMON_SYSTEM_COMMUNICATION_FATAL",
    1100: "COMMON_GENERAL",
    6005: "GRAPH_INVALID_OP_CONFIG",
    6022: "GRAPH_FINALIZE_FAILED",
    6023: "GRAPH_NOT_FINALIZED",
    7004: "TENSOR_INVALID_TENSOR_PARAM",
    8000: "MEM_INVALID_ARGUMENT",
    8001: "MEM_INVALID_HANDLE",
    8002: "MEM_ALREADY_REGISTERED",
    8003: "MEM_MAPPING",
    8004: "MEM_INVALID_SHAPE",
    8005: "MEM_UNSUPPORTED_MEMTYPE",
}


def test_codes_have_the_numbers_of_the_documents():
    assert {number: Code(number).name for number in DOCUMENTED} == DOCUMENTED
    assert len({int(code) for code in Code}) == len(Code.__members__), "no two names share a number"
