"""The vendor's libraries, at a path, in an SDK or in the package onnxruntime-qnn, and the process that runs them."""

from __future__ import annotations

import importlib.util
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from isthmus.backends.foreign.process import LibraryProcess
from isthmus.errors import Code, QnnError
from isthmus.system.shield import shielded

BACKEND, SYSTEM = "libQnnHtp.so", "libQnnSystem.so"
SDK_VARIABLE = "QNN_SDK_ROOT"
PACKAGE = "onnxruntime_qnn"
# The folders of an SDK with libraries for a machine, the first that exists counts.
_SDK_FOLDERS = {
    "x86_64": ("x86_64-linux-clang",),
    "aarch64": ("aarch64-oe-linux-gcc11.2", "aarch64-oe-linux-gcc9.3", "aarch64-ubuntu-gcc9.4", "aarch64-android"),
}
INSTALL = "Install it with: pip install 'isthmus[qnn]' (or set QNN_SDK_ROOT, or give library=)."


@dataclass(frozen=True)
class VendorLibrary:
    """The files of an installation.

    - `backend`: The HTP library, which contains the compiler.
    - `system`: The system library, which describes context binaries.
    """

    backend: Path
    system: Path

    @property
    def what(self) -> str:
        """The library's description in messages."""
        return f"library '{self.backend}'"


def find(given: str | os.PathLike[str] | None = None) -> VendorLibrary:
    """Find the vendor's libraries.

    - `given`: The HTP library, or the folder that it is in. If omitted, the SDK that ``QNN_SDK_ROOT`` names, or the
      package onnxruntime-qnn.

    Raises COMMON_LOADING_BINARIES if there is none; the message says what to install.
    """
    if given is not None:
        path = Path(given).absolute()
        return _check(path / BACKEND if path.is_dir() else path)
    root = os.environ.get(SDK_VARIABLE)
    if root:
        folders = [Path(root).absolute() / "lib" / name for name in _SDK_FOLDERS.get(platform.machine(), ())]
        found = next((folder for folder in folders if (folder / BACKEND).is_file()), None)
        if found is None:
            rule = f"it has no {BACKEND} for {platform.machine()}"
            raise QnnError(Code.COMMON_LOADING_BINARIES, f"{SDK_VARIABLE} '{root}'", rule)
        return _check(found / BACKEND)
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise QnnError(Code.COMMON_PLATFORM_NOT_SUPPORTED, "Qualcomm's HTP library", "it is not installed", INSTALL)
    return _check(Path(spec.origin).absolute().parent / BACKEND)


def is_installed() -> bool:
    """Return whether the libraries are found without a path."""
    try:
        find()
    except QnnError:
        return False
    return True


def _check(backend: Path) -> VendorLibrary:
    """Return the libraries with this HTP library; refuse one that does not exist."""
    if not backend.is_file():
        raise QnnError(Code.COMMON_LOADING_BINARIES, f"library '{backend}'", "there is no such file", INSTALL)
    return VendorLibrary(backend, backend.with_name(SYSTEM))


CHILD = "isthmus.backends.vendor.child"
"""The module that the process runs."""
SECONDS = 900.0
"""How long a call may take; compiling a large graph takes minutes."""
# Variables by which the library finds its other half on a device.
_PASSED = ("ADSP_LIBRARY_PATH", "CDSP_LIBRARY_PATH", "DSP_LIBRARY_PATH")


class VendorProcess(LibraryProcess):
    """A running process that has loaded the library; a context manager.

    `log_level` is QNN's, 1 (errors) to 5; the last lines become part of errors. `build` is the library's build id, and
    `versions` are those of the core and of HTP's interface.
    """

    @shielded(release=LibraryProcess.close)
    def __init__(self, library: VendorLibrary, log_level: int = 1) -> None:
        self.library = library
        super().__init__(library.what, CHILD, SECONDS, _PASSED, "A new context starts a new process.")
        try:
            hello, _ = self.call("open", backend=str(library.backend), system=str(library.system), log_level=log_level)
            self.build, self.versions = str(hello["build"]), dict(hello["versions"])
        except Exception:
            self.close()
            raise
