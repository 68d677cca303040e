"""Remedies as a client in C carries them out: where an error names a call of Python's, the one of C."""

from __future__ import annotations

import re

from isthmus.errors import QnnError

_IN_C = tuple(
    (re.compile(python), c)
    for python, c in (
        (r"\bset_config\((\w+), Mem\(MemType\.DDR, (\d+), buffer\)\) before finalize\(\)",
         r"graphSetConfig with QNN_LPAI_GRAPH_SET_CFG_\1 and \2 bytes of QNN_LPAI_MEM_TYPE_DDR before graphFinalize"),
        (r"\bfinalize\(\)", "graphFinalize"),
        (r"\bisthmus\.memory\.rpcmem(\.alloc\(\))?", "rpcmem_alloc"),
        (r"\bisthmus\.memory\.host\(nbytes, alignment=(\d+)\)", r"aligned_alloc(\1, size)"),
        (r"\bqnn\.gpu\.allocate makes it for a backend", "clCreateBuffer makes it, in the context of the others"),
        (r"; reset\(\) restores states", "; a context that is created again has its states anew"),
        (r"\bMemType\.(DDR|TCM)\b", r"QNN_LPAI_MEM_TYPE_\1"),
    )
)  # fmt: skip


def in_c(problem: QnnError) -> QnnError:
    """Answer an error whose rule and remedy speak of C.

    Examples
    --------
    >>> from isthmus.errors import Code
    >>> problem = QnnError(Code.GRAPH_NOT_FINALIZED, "graph 'g'", "it is not ready", "Call finalize() first.")
    >>> in_c(problem).hint
    'Call graphFinalize first.'
    """
    rule, hint = problem.rule, problem.hint
    for python, c in _IN_C:
        rule, hint = python.sub(c, rule), python.sub(c, hint)
    return QnnError(problem.code, problem.what, rule, hint)
