"""A word that says whether this process may run what its blocks lead to: a fork clears it, by whomever it is made.

An interpreter calls compiled functions that know nothing but a block. In a forked child that block is a copy: the
threads behind it and the GIL are the parent's, the accelerator's memory is shared with it. Where Python forks, it is
told of it and can answer for the child. Where a program in C forks nobody is told, so the kernel wipes the word.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress

_WIPE_ON_FORK = 18
"""Linux's MADV_WIPEONFORK, which the module mmap does not name."""

_page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
# A kernel before 4.14 does not know it: there a child of Python's is told all the same.
with suppress(OSError):
    _page.madvise(_WIPE_ON_FORK)
_word = ctypes.c_int64.from_buffer(_page)
_word.value = 1
# One reference that nobody gives back: an interpreter may outlive all of Python.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_word))

OWN = ctypes.addressof(_word)
"""Where the word is; it is not zero where Python can be called."""


def _after_fork() -> None:
    # Python has made this child, and says itself what is the parent's.
    _word.value = 1


os.register_at_fork(after_in_child=_after_fork)
