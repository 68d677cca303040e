"""The model cache: a context binary per partition, in the client's folder, under the client's token for the model.

A binary is looked up by everything it depends on: the nodes, their tensors and constants, the memory types, the backend
and this software's version. A file of another model or version is therefore never used by mistake. A damaged file is
refused when it is read, and made again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from isthmus.delegate.view import NodesModel
from isthmus.errors import Code, QnnError
from isthmus.frontends.tflite.entries import Subgraph
from isthmus.system.writing import write_whole
from isthmus.version import build_id


def digest(model: NodesModel, more: Sequence[object]) -> str:
    """Return a digest of everything that the binary of some nodes depends on.

    - `more`: What else it depends on: objects whose `repr` is the same in every process.
    """
    sha = hashlib.sha256(repr((build_id(), model.name, *more)).encode())
    for subgraph in model.reachable(initializers=True):
        _add(sha, model, subgraph)
    return sha.hexdigest()[:32]


def _add(sha: hashlib._Hash, model: NodesModel, subgraph: Subgraph) -> None:
    """Add a subgraph to a digest: its operators, their tensors, and the contents of constants."""
    sha.update(repr((subgraph.inputs, subgraph.outputs, subgraph.kept_variables)).encode())
    seen: set[int] = set()
    for operator in subgraph.operators():
        sha.update(repr((operator.code, operator.inputs, operator.outputs, operator.options)).encode())
        sha.update(operator.custom_options)
        for index in (*operator.inputs, *operator.outputs):
            if index < 0 or index in seen:
                continue
            seen.add(index)
            entry = subgraph.tensor(index)
            facts = (entry.name, int(entry.type), entry.shape, entry.is_variable, entry.quantized_dimension)
            sha.update(repr((*facts, entry.scales.tolist(), entry.zero_points.tolist())).encode())
            content = model.contents(subgraph, entry) if index not in subgraph.inputs else None
            if content is not None:
                sha.update(np.ascontiguousarray(content).view(np.uint8).reshape(-1).data if content.size else b"")


def file(cache: tuple[Path, str], number: str) -> Path:
    """Return the path of a binary; `cache` is the client's folder and token, `number` the binary's digest."""
    folder, token = cache
    return folder / f"{token}-{number}.bin"


def is_there(path: Path) -> bool:
    """Return whether a binary exists."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as problem:
        raise _refusal(path, "looked for", problem) from None
    return True


def keep(path: Path, binary: bytes) -> None:
    """Store a binary atomically: other processes see the whole file or none, and an interrupt leaves nothing behind."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, binary)
    except OSError as problem:
        raise _refusal(path, "kept", problem) from None


def _refusal(path: Path, done: str, problem: OSError) -> QnnError:
    """Return the error that the cache's folder cannot be used; `done` says what was tried."""
    rule = f"a context binary cannot be {done} there: {problem.strerror or problem}"
    return QnnError(Code.COMMON_SYSTEM, f"model cache '{path.parent}'", rule)
