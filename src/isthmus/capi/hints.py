"""Remedies as a client in C carries them out: where an error names a call of Python's, the one of C."""

from __future__ import annotations

import re
from collections.abc import Sequence

from isthmus.errors import QnnError

_IN_C = (
    (r"\bfinalize\(\)", "graphFinalize"),
    (r"\bisthmus\.memory\.rpcmem(\.alloc\(\))?", "rpcmem_alloc"),
    (r"\bisthmus\.memory\.host\(nbytes, alignment=(\d+)\)", r"aligned_alloc(\1, size)"),
    (r"; reset\(\) restores states", "; a context that is created again has its states anew"),
)


def in_c(problem: QnnError, hints: Sequence[tuple[str, str]] = ()) -> QnnError:
    """Answer an error whose rule and remedy speak of C; a backend's own hints go first.

    Examples
    --------
    >>> from isthmus.errors import Code
    >>> problem = QnnError(Code.GRAPH_NOT_FINALIZED, "graph 'g'", "it is not ready", "Call finalize() first.")
    >>> in_c(problem).hint
    'Call graphFinalize first.'
    """
    rule, hint = problem.rule, problem.hint
    for python, c in (*hints, *_IN_C):
        rule, hint = re.sub(python, c, rule), re.sub(python, c, hint)
    return QnnError(problem.code, problem.what, rule, hint)
