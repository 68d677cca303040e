"""Hints for C clients: Python calls named in an error are replaced by their C counterparts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from isthmus.errors import QnnError

# Patterns of Python calls in messages, and their replacements.
_IN_C = (
    (r"\bfinalize\(\) of the context\b", "contextFinalize"),
    (r"\bfinalize\(\)", "graphFinalize"),
    (r"\bisthmus\.memory\.rpcmem(\.alloc\(\))?", "rpcmem_alloc"),
    (r"\bisthmus\.memory\.host\(nbytes, alignment=(\d+)\)", r"aligned_alloc(\1, size)"),
    (r"\bClose the buffer \(rpcmem_free\)", "Call rpcmem_free"),
    (r"\bCall mem_deregister \(memDeRegister\)", "Call memDeRegister"),
    (r"\(mem_register\)", "(memRegister)"),
    (r"\bFree it, or create it in a with block", "Free it"),
    (r"; reset\(\) restores states", "; a context that is created again has its states anew"),
)


def in_c(problem: QnnError, hints: Sequence[tuple[str, str]] = ()) -> QnnError:
    """Return the error with C names in its rule and hint; a backend's own replacements (`hints`) go first.

    >>> from isthmus.errors import Code
    >>> problem = QnnError(Code.GRAPH_NOT_FINALIZED, "graph 'g'", "it is not ready", "Call finalize() first.")
    >>> in_c(problem).hint
    'Call graphFinalize first.'
    """
    rule, hint = (worded_in_c(text, hints) for text in (problem.rule, problem.hint))
    return QnnError(problem.code, problem.what, rule, hint)


def worded_in_c(text: str, hints: Sequence[tuple[str, str]] = ()) -> str:
    """Return a text with C names, as `in_c` does."""
    for python, c in (*hints, *_IN_C):
        text = re.sub(python, c, text)
    return text
