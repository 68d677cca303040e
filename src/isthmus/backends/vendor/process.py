"""The process that runs the vendor's library."""

from __future__ import annotations

from isthmus.backends.foreign.process import LibraryProcess
from isthmus.backends.vendor.library import VendorLibrary
from isthmus.system.shield import shielded

CHILD = "isthmus.backends.vendor.child"
"""The module that the process runs."""
SECONDS = 900.0
"""How long a call may take; compiling a large graph takes minutes."""
_PASSED = ("ADSP_LIBRARY_PATH", "CDSP_LIBRARY_PATH", "DSP_LIBRARY_PATH")
"""Variables by which the library finds its other half on a device."""


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
