"""The protobuf classes of ONNX files, without the rest of the `onnx` package.

Importing all of `onnx` takes longer than reading most models, and only its generated message classes are needed here.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from isthmus.errors import Code, QnnError
from isthmus.frontends.formats import KNOWN_FORMATS, beginning, malformed
from isthmus.frontends.onnx.tensors import ExternalData, keep_all_data

_MESSAGES = "onnx.onnx_ml_pb2"


@cache
def messages() -> ModuleType:
    """Return the module of the generated message classes (ModelProto, TensorProto …)."""
    if "onnx" in sys.modules:
        return importlib.import_module(_MESSAGES)
    # The module is loaded from its file, because importing it by name would import all of `onnx`.
    package = importlib.util.find_spec("onnx")
    for folder in (package.submodule_search_locations or ()) if package else ():
        file = Path(folder) / "onnx_ml_pb2.py"
        if file.is_file():
            spec = importlib.util.spec_from_file_location("isthmus.frontends.onnx.onnx_ml_pb2", file)
            if spec is None or spec.loader is None:
                continue
            module = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except ImportError as error:
                raise _missing(str(error)) from error
            return module
    try:
        return importlib.import_module(_MESSAGES)
    except ImportError as error:
        raise _missing(str(error)) from error


def _missing(why: str) -> QnnError:
    """Return the error for a missing or unusable 'onnx' package."""
    return QnnError(
        Code.COMMON_RESOURCE_UNAVAILABLE,
        "ONNX frontend",
        f"reading ONNX files needs the 'onnx' package ({why})",
        "Install it with: pip install 'isthmus[onnx]'",
    )


@dataclass(frozen=True)
class OnnxContents:
    """The contents of an ONNX file.

    - `nbytes`: the size of the file. Protobuf would have to serialize the message to tell it.
    - `external`: the data in other files; None if there may be none.
    """

    message: Any
    nbytes: int
    external: ExternalData | None

    @classmethod
    def parse(cls, data: bytes, name: str, folder: Path | None) -> OnnxContents:
        """Parse the bytes of an ONNX file; `folder` is the folder of its external data (None: not allowed)."""
        return cls(parse_model(data, name), len(data), None if folder is None else ExternalData(folder))

    def keep_external_data(self) -> None:
        """Read all data in other files and keep it, whatever happens to these files."""
        if self.external is not None:
            keep_all_data(self.message, self.external)


def parse_model(data: bytes, name: str) -> Any:
    """Parse the bytes of an ONNX file into a ModelProto.

    Raises `QnnError` if the bytes are not an ONNX model.
    """
    what = f"model file '{name}'"
    if not data:
        raise malformed(what, "the file is empty")
    model = messages().ModelProto()
    from google.protobuf.message import DecodeError

    try:
        model.ParseFromString(data)
    except (DecodeError, ValueError, RecursionError) as error:  # not all: a signal handler may raise any exception
        rule = f"the file is not an ONNX model or is damaged: {beginning(data)}"
        raise malformed(what, rule, KNOWN_FORMATS) from error
    if not model.HasField("graph"):
        rule = f"the file holds no ONNX graph: {beginning(data)}"
        raise malformed(what, rule, KNOWN_FORMATS)
    return model
