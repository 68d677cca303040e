"""Start of our own modules as child processes into which no folder or variable of the caller can inject code.

A plain ``python -m`` puts the working folder first on the import path and obeys every ``PYTHON*`` variable: a file
``numpy.py`` beside a model would be run. An isolated child imports the same package that runs here, wherever it was
imported from, and everything else from the interpreter's own folders.
"""

from __future__ import annotations

import ctypes
import fcntl
import math
import os
import resource
import signal
import site
import sys
from pathlib import Path

from isthmus.errors import Code, QnnError

# The option of prctl(2) that sets the signal for the end of the parent.
_PR_SET_PDEATHSIG = 1
SECONDS = 60.0
"""How long a call of a client's library may take, unless ``ISTHMUS_MODEL_SECONDS`` overrides it."""
MIN_MEMORY = 1 << 32
"""Minimum memory limit of a process, even on the smallest machine: an interpreter and its libraries reserve more than
they use.
"""
STANDARD = 2
"""The last of the standard descriptors: input, output, error."""

# Variables that a child gets; others could change what it does.
_VARIABLES = frozenset(
    ("PATH", "HOME", "LANG", "TMPDIR", "XDG_CACHE_HOME", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
)
_PREFIXES = ("LC_", "ISTHMUS_")
_LIBRARIES = "LD_LIBRARY_PATH"

# `-I` leaves the standard library and the interpreter's site-packages on the path. The user's own site-packages go
# between them if this process has them too: versions must be the same in both. The folder of the package comes last,
# for dependencies installed beside it (``pip install --target``). The package itself is always taken from there,
# whatever else has its name.
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
    """Return the command line that runs a module of this package, by its full name, as an isolated program.

    Start it with the variables of `environment`. Others may be added, but none that the interpreter reads.
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
    # If it was found through a relative entry of PATH, its name is relative, and the child starts in another folder.
    return [os.path.abspath(sys.executable), *flags, "-c", _BOOTSTRAP, root, user, module, *arguments]


def passable(fd: int) -> int:
    """Duplicate a descriptor above the standard ones, so that it keeps its number in a child.

    If a client has closed its standard input or output, their numbers go to whatever it opens next; a child has its own
    descriptors there.
    """
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, STANDARD + 1)


def environment() -> dict[str, str]:
    """Return the variables that a child needs: paths, language and our own settings. Nothing else.

    Numba's settings are excluded too: compiled code may depend only on what the cache key covers. Relative library
    search folders are dropped, since they refer to the working folder.
    """
    variables = {name: value for name, value in os.environ.items() if name in _VARIABLES or name.startswith(_PREFIXES)}
    libraries = [folder for folder in os.environ.get(_LIBRARIES, "").split(os.pathsep) if os.path.isabs(folder)]
    if libraries:
        variables[_LIBRARIES] = os.pathsep.join(libraries)
    return variables


def library_seconds() -> float:
    """Return how long a call of a client's library may take: `SECONDS`, or the environment's value."""
    return seconds_of("ISTHMUS_MODEL_SECONDS", SECONDS)


def seconds_of(variable: str, default: float) -> float:
    """Return the time limit that a variable of the environment sets, or the default."""
    text = os.environ.get(variable)
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        rule = "must be a number of seconds above 0"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"{variable} '{text}'", rule)
    return seconds


def memory() -> int:
    """Return the size of this machine's memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def limit(max_file: int) -> None:
    """Limit this process's resources: it must not take the whole memory, fill the disk or dump core.

    `max_file` is the largest file that it may write, in bytes.
    """
    most = max(memory(), MIN_MEMORY)
    for kind, value in (
        (resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, most), (resource.RLIMIT_FSIZE, min(max_file, most)),
    ):  # fmt: skip
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def end_with(parent: int) -> None:
    """Make the system kill this child process when the thread that started it, in process `parent`, ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The signal does not come if the parent had died before.
    if os.getppid() != parent:
        os._exit(1)
