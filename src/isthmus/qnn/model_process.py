"""The process that a model library composes in, isolated.

Its command line is ``isthmus.qnn.model_process RESULT MESSAGES PARENT LIBRARY PREFIX``. PREFIX_composeGraphs is the
function to call. RESULT and MESSAGES are file descriptors: the first takes the composed graphs; the second takes
remarks, a null byte after each, and then an error message.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import POINTER, byref, c_bool, c_uint32, c_void_p

from isthmus.cabi.system import ModelGraphInfo
from isthmus.cabi.tables import ComposingTable
from isthmus.frontends.composed import serialization
from isthmus.qnn.model_library import MAX_COMPOSED, MAX_MESSAGE, REMARK_END
from isthmus.qnn.recorder import Recorder
from isthmus.system import isolated
from isthmus.system.forbidden_calls import REFUSED, forbid

ANSWERS = {
    1: "a tensor", 2: "parameters", 3: "nodes", 4: "a graph", 5: "the context", 6: "generation", 7: "set-up",
    8: "an argument", 9: "a file", 10: "memory",
}  # fmt: skip
"""The meaning of the return codes of QnnModel_composeGraphs: where the error was."""


def main(arguments: list[str]) -> int:
    """Compose the graphs, write them or an error message to a descriptor, and end the process."""
    result, messages, parent = map(int, arguments[:3])
    path, prefix = arguments[3:]
    isolated.end_with(parent)
    isolated.limit(MAX_COMPOSED)

    def remark(text: str) -> None:
        os.write(messages, text.encode() + REMARK_END)

    recorder = Recorder()
    unable = forbid(lambda call: remark(f"it called {call}, {REFUSED}"))
    if unable:
        remark(f"its system calls are not restricted: {unable}")
    try:
        problem = compose(path, prefix, recorder)
        if not problem:
            with open(result, "wb", closefd=False) as stream:
                serialization.write(recorder.graphs, stream)
    except MemoryError:
        problem = f"it needs more memory than this machine has ({isolated.memory():,} bytes)"
    except OSError as error:
        problem = f"the graphs that it composes cannot be kept: {error.strerror}"
    if problem:
        os.write(messages, problem.encode()[:MAX_MESSAGE])
    # The library's exit handlers are of no use here, and may fail.
    os._exit(1 if problem else 0)


def compose(path: str, prefix: str, recorder: Recorder) -> str:
    """Load a library and let it compose; return an error message, or an empty string."""
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        return f"it cannot be loaded: {error}"
    try:
        function = getattr(library, f"{prefix}_composeGraphs")
    except AttributeError:
        return f"it does not export {prefix}_composeGraphs, so it is not a model library, or has another prefix"
    # The table is passed by value and is longer here than in any version of QNN. The last three arguments are the debug
    # flag, the log callback and the log level.
    function.argtypes = [
        c_void_p, ComposingTable, c_void_p, c_void_p, c_uint32, POINTER(POINTER(POINTER(ModelGraphInfo))),
        POINTER(c_uint32), c_bool, c_void_p, c_uint32,
    ]  # fmt: skip
    function.restype = c_uint32
    graphs, count = POINTER(POINTER(ModelGraphInfo))(), c_uint32()
    table = ComposingTable.of(recorder.table)
    # The recorder accepts any handle of a backend (0x10) and of a context (0x20).
    answer = function(0x10, table, 0x20, None, 0, byref(graphs), byref(count), False, None, 0)
    if answer:
        reason = f": {recorder.problem}" if recorder.problem else ""
        return f"{prefix}_composeGraphs answers {answer}, an error in {ANSWERS.get(answer, 'something')}{reason}"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
