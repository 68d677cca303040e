"""Errors of the C interface name calls of C, whichever room they come from."""

from __future__ import annotations

import ast
import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

import isthmus
from capi.qnn_calls import Client, opened
from isthmus.backends.seam import registry
from isthmus.cabi import objects
from isthmus.capi.hints import in_c
from isthmus.capi.installation import INCLUDE
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, TensorType
from isthmus.qnn import DescriptorType

SOURCES = Path(isthmus.__file__).parent
NEVER_IN_C = ("tools", "split", "delegate", "frontends", "session.py", "report", "system")
"""Rooms whose errors no function of the C interface answers: a library says which Python is run, for one."""
PYTHON = re.compile(
    r"\bisthmus\.\w+\.|\b\w+\(\)|\b[a-z]\w*\.\w+\(|\bset_config\(|\bMemType\.|\bqnn\.\w+\.\w+ |\bsys\.|"
    r"\b(?:lpai|htp|gpu|memory)\.[A-Z]"
)


PRINTERS = ("declarations.py", "headers.py", "notation.py", "saver_program.py")
"""Modules whose texts are sources in C."""
LOGGED = re.compile(r"(^|[._])(log|log_once|log_unused|debug|info|warning|error)$")
"""Functions that log a text."""


def texts() -> list[str]:
    """List the rules and remedies of errors in the package."""
    found: list[ast.expr] = []
    for file in reaching_c():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "QnnError":
                found += node.args[2:]
            elif isinstance(node, ast.Call) and re.search(r"(refuse|refusal)$", ast.unparse(node.func)):
                found += node.args
            elif isinstance(node, ast.Assign) and re.search("hint|rule", ast.unparse(node.targets[0]).lower()):
                found.append(node.value)
    return [text for each in found for text in literals(each)]


def reaching_c() -> Iterator[Path]:
    """Yield the sources whose texts a client in C can be told."""
    return (file for file in SOURCES.rglob("*.py") if file.relative_to(SOURCES).parts[0] not in NEVER_IN_C)


def logged() -> list[str]:
    """List the texts that are logged."""
    calls = (node for file in reaching_c() for node in ast.walk(ast.parse(file.read_text())))
    return [
        text
        for node in calls
        if isinstance(node, ast.Call) and LOGGED.search(ast.unparse(node.func))
        for argument in node.args
        for text in literals(argument)
    ]


def numbers_with_names() -> set[str]:
    """Find the members of structures in C that hold a number of an enumeration, by the printed headers."""
    text = "".join(file.read_text() for file in (INCLUDE / "QNN").rglob("*.h"))
    kinds = "|".join(re.findall(r"typedef enum[^}]*\}\s*(\w+);", text))
    return set(re.findall(rf"\b(?:{kinds}) (\w+)(?=[,;])", text))


def literals(node: ast.AST) -> Iterator[str]:
    """Spell the texts in an expression; what is computed in one is written as a number."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "64" for part in node.values)
    elif isinstance(node, ast.Constant):
        yield str(node.value)
    else:
        for child in ast.iter_child_nodes(node):
            yield from literals(child)


def test_no_error_that_reaches_a_client_in_c_names_a_call_of_python() -> None:
    every = [text for text in texts() if PYTHON.search(text)]
    assert len(every) > 6
    hints = [hint for name in registry.names() for hint in registry.c_facet(name).hints]
    for text in every:
        problem = in_c(QnnError(Code.COMMON_GENERAL, "something", text, text), hints)
        assert not PYTHON.search(problem.hint), problem.hint


def test_nothing_that_is_logged_names_python() -> None:
    """Logs go to the client's callback as they are: no name is replaced in them."""
    found = logged()
    assert len(found) > 60
    # A name of this package in a text is a file or a setting of the environment.
    assert [text for text in found if PYTHON.search(text)] == []
    assert [text for text in found if re.search(r"<class|object at|\bNone\b|\bwith block\b|\bself\b", text)] == []


def test_a_number_that_has_a_name_in_c_is_shown_by_that_name() -> None:
    """Only what no header names is told as a number, and then the text says so."""
    members = numbers_with_names()
    assert {"option", "type", "memType", "dataType", "perfHint", "clientType", "config"} <= members
    # Tensors that are read have it in words of Python. The name of a version is its number.
    members = members - {"version"} | {"mem_type"}
    unknown = re.compile(r"\b(no|neither|not known|unknown|not supported|not a file|cannot be answered)\b")
    reported, wrong = 0, []
    for file in reaching_c():
        is_of_c = {"capi", "cabi"} & set(file.parts) or file.name == "c.py"
        for node in ast.walk(ast.parse(file.read_text())) if is_of_c and file.name not in PRINTERS else ():
            if not isinstance(node, ast.JoinedStr):
                continue
            for part in node.values:
                value = part.value if isinstance(part, ast.FormattedValue) else None
                if isinstance(value, ast.Attribute) and value.attr in members and ast.unparse(value) != "node.type":
                    reported += 1
                    if not unknown.search("".join(literals(node))):
                        wrong.append(f"{file.name}:{node.lineno}: {ast.unparse(node)}")
    assert reported > 8
    assert not wrong, "\n".join(wrong)


def test_a_client_is_told_which_function_to_call(libraries: Path) -> None:
    client = Client(libraries / "libQnnLpai.so")
    backend, context = opened(client)
    graph = client.make("graphCreate", context, b"unready", None)
    x = client.tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 8))
    y = client.tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 8))
    for tensor in (x, y):
        client.do("tensorCreateGraphTensor", graph, ctypes.byref(tensor))
    client.do("graphAddNode", graph, client.operation("add", "ElementWiseAdd", [x, x], [y]))
    assert client.graphFinalize(graph, None, None) == Code.GRAPH_FINALIZE_FAILED
    assert "graphSetConfig with QNN_LPAI_GRAPH_SET_CFG_SCRATCH_MEM and " in client.reason(Code.GRAPH_FINALIZE_FAILED)
    client.do("backendFree", backend)


def test_a_client_is_told_which_structure_describes_memory(libraries: Path) -> None:
    client = Client(libraries / "libQnnLpai.so")
    backend, context = opened(client)
    dims = (ctypes.c_uint32 * 1)(8)
    descriptor = objects.MemDescriptor(objects.MemShape(1, dims, None), DataType.FLOAT_32, DescriptorType.ION)
    answer = client.memRegister(context, ctypes.byref(descriptor), 1, ctypes.byref(ctypes.c_void_p()))
    assert answer == Code.MEM_UNSUPPORTED_MEMTYPE
    assert "LPAI takes CUSTOM memory (QnnLpaiMem_MemInfoCustom_t), not ION" in client.reason(answer)
    client.do("backendFree", backend)
