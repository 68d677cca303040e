"""A word that says whether node blocks may run and call Python; a fork, by Python or C, and Python's exit clear it.

An interpreter calls compiled functions that know only a block. In a forked child that block is a copy: its threads and
the GIL are the parent's, and the accelerator's memory is shared with the parent. When Python forks, it runs a hook and
can handle the child. When a C program forks, no hook runs, so the kernel wipes the word.

An interpreter may also outlive our modules, or Python itself. The backends of all delegates end at Python's exit.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
from contextlib import suppress

# Linux's MADV_WIPEONFORK, which the mmap module does not define.
_WIPE_ON_FORK = 18

_page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
# Kernels before 4.14 do not support it; a child forked by Python still runs its hook.
with suppress(OSError):
    _page.madvise(_WIPE_ON_FORK)
_word = ctypes.c_int64.from_buffer(_page)
_word.value = 1
# A reference that is never dropped: an interpreter may outlive Python.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_word))

OWN = ctypes.addressof(_word)
"""The address of the word; the word is not zero if Python can be called."""


def _after_fork() -> None:
    # Python can be called here, unlike in a child that C forked, and itself refuses the parent's objects.
    _word.value = 1


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _at_exit() -> None:
    _word.value = 0
