"""The formats' own runtimes, ONNX Runtime and LiteRT, which a user may have installed to compare results with.

Frontends themselves need none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from isthmus.errors import Code, QnnError

ONNX_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
"""The ONNX Runtime option for the folder of weight files of a model given as bytes."""


def import_runtime(module: str, package: str, what: str) -> Any:
    """Import a runtime's module; if it is not installed, the error names the package to install.

    `what` names in that error what the runtime is needed for.
    """
    if find_spec(module.partition(".")[0]) is None:
        raise QnnError(
            Code.COMMON_RESOURCE_UNAVAILABLE, what, f"the package '{package}' is not installed",
            f"Install it with: pip install {package}",
        )  # fmt: skip
    return import_module(module)


@contextmanager
def converted_errors(what: str, rule: str) -> Iterator[None]:
    """Convert an exception of a runtime to a one-line error; every runtime has its own exception classes.

    `what` names the file and `rule` says what the runtime cannot do with it.
    """
    try:
        yield
    except QnnError:
        raise
    except Exception as error:
        raise QnnError(Code.COMMON_NOT_SUPPORTED, what, f"{rule} ({' '.join(str(error).split())})") from error
