"""Programs that end with objects still open.

Names of a module are set to None when the interpreter exits, for modules that something still refers to. Programs in C
that embed Python, and extension modules, hold such references, also to `__main__`; then functions of a module have lost
its names when the objects in `__main__` end.
"""

from __future__ import annotations

import subprocess
import sys

KEEPING = """
import ctypes, sys
ctypes.pythonapi.Py_IncRef.argtypes = [ctypes.py_object]
for module in [sys.modules[each] for each in sys.modules if each.startswith(("isthmus", "__main__"))]:
    ctypes.pythonapi.Py_IncRef(module)
"""
"""A program's last lines, which keep our modules and its own beyond its end."""

COMPILING = ("isthmus: compiling ", "isthmus: waiting ")


def end(program: str, *arguments: object, keeping: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; `keeping` keeps our modules and its own.

    What it prints about kernels that it is the first to need is left out.
    """
    command = [sys.executable, "-W", "default", "-c", program + KEEPING * keeping, *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    lines = ended.stderr.splitlines(keepends=True)
    ended.stderr = "".join(line for line in lines if not line.startswith(COMPILING))
    return ended
