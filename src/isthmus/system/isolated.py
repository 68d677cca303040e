"""Starts one of our own modules as a child process that no folder and no variable of the caller's can slip code into.

A plain ``python -m`` puts the working folder first on the import path and obeys every ``PYTHON*`` variable: a file
``numpy.py`` beside a model would be run. An isolated child imports the very package that runs here, wherever it was
imported from, and everything else from the interpreter's own folders.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import site
import sys
from pathlib import Path

from isthmus.errors import Code, QnnError

_PR_SET_PDEATHSIG = 1
STANDARD = 2
"""The last of the standard descriptors: input, output, errors."""

_KEPT = frozenset(
    ("PATH", "HOME", "LANG", "TMPDIR", "XDG_CACHE_HOME", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
)
_KEPT_PREFIXES = ("LC_", "ISTHMUS_")
_LIBRARIES = "LD_LIBRARY_PATH"

# `-I` leaves the standard library and the interpreter's site-packages on the path. The user's own site-packages go
# between them, where this process has them too: versions must be the same here and there. The folder of the package
# comes last, for dependencies installed beside it (``pip install --target``); the package itself is taken from there
# and nowhere else, whatever else has its name.
_BOOTSTRAP = """\
import importlib.machinery, importlib.util, runpy, site, sys
root, user, module = sys.argv[1:4]
sys.argv[1:4] = []
if user:
    installed = [folder for folder in sys.path if folder in site.getsitepackages()]
    sys.path[:] = [folder for folder in sys.path if folder not in installed]
    site.addsitedir(user)
    sys.path += installed
sys.path.append(root)
spec = importlib.machinery.PathFinder.find_spec("isthmus", [root])
package = sys.modules["isthmus"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module of this package as a program, isolated.

    Start it with `environment`, or with more variables than those, but none that are meant for the interpreter.

    Parameters
    ----------
    module
        Its full name, for example ``"isthmus.backends.accelerator"``.
    arguments
        What it finds in ``sys.argv[1:]``.
    """
    if not sys.executable:
        raise QnnError(
            Code.COMMON_PLATFORM_NOT_SUPPORTED,
            f"child process for {module}",
            "this program does not say which Python interpreter it runs (sys.executable is empty)",
            "Set sys.executable before using Isthmus from an embedded interpreter.",
        )
    root = str(Path(__file__).absolute().parents[2])
    user = site.getusersitepackages() if site.ENABLE_USER_SITE else ""
    flags = ["-I", "-B"] if sys.dont_write_bytecode else ["-I"]
    # Found by a relative entry of PATH its name is relative, and the child begins in another folder.
    return [os.path.abspath(sys.executable), *flags, "-c", _BOOTSTRAP, root, user, module, *arguments]


def passable(fd: int) -> int:
    """Duplicate a descriptor beyond the standard ones, where it keeps its number in a child.

    A client that has closed its standard input or output gets their numbers for whatever it opens next, and a child has
    its own in these places.
    """
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, STANDARD + 1)


def environment() -> dict[str, str]:
    """The variables that a child needs: where things are, the language, and our own settings. Nothing else.

    Numba's settings are left behind too: what is compiled depends on what the key of the cache knows of, only. Of
    the folders to search for libraries those without a full name are dropped, as they mean the working folder.
    """
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}
    libraries = [folder for folder in os.environ.get(_LIBRARIES, "").split(os.pathsep) if os.path.isabs(folder)]
    if libraries:
        kept[_LIBRARIES] = os.pathsep.join(libraries)
    return kept


def end_with(parent: int) -> None:
    """In a child: have the system end this process with the thread that started it, in process `parent`."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # A parent that had died before could not be noticed that way.
    if os.getppid() != parent:
        os._exit(1)
