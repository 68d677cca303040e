"""Hints for C clients: Python calls named in an error are replaced by their C counterparts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from isthmus.errors import QnnError

# Patterns of Python calls in messages, and their replacements.
_IN_C = (
    (r"\bfinalize\(\)", "graphFinalize"),
    (r"\bisthmus\.memory\.rpcmem(\.alloc\(\))?", "rpcmem_alloc"),
    (r"\bisthmus\.memory\.host\(nbytes, alignment=(\d+)\)", r"aligned_alloc(\1, size)"),
    (r"; reset\(\) restores states", "; a context that is created again has its states anew"),
)


def in_c(problem: QnnError, hints: Sequence[tuple[str, str]] = ()) -> QnnError:
    """Return the error with C names in its rule and hint; a backend's own replacements (`hints`) go first.

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
