"""Runs the cases of a layer in child processes, restarts a child that has ended, and keeps every answer in a file."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from differential.child import ended_by
from differential.layers import HERE, QUESTIONS

ROOT = HERE.parents[1]
SOURCE = ROOT / "src" / "isthmus"
PACKAGE = "onnxruntime-qnn"


@dataclass(frozen=True)
class Side:
    """One of the two libraries.

    Parameters
    ----------
    name
        "vendor", "ours", or "ours as a chip", which is ours with the numerics of chips.
    build
        What answers depend on besides the cases: the library's version, or our sources.
    config
        The configuration file of our library, if it has one.
    """

    name: str
    library: Path
    build: str
    config: Path | None = None


def vendor() -> Side | None:
    """Return the vendor's library as the package has it; None where the package is not installed."""
    try:
        package = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        return None
    library = Path(str(package.locate_file("onnxruntime_qnn/libQnnHtp.so")))
    return Side("vendor", library, f"{package.version}-{library.stat().st_size}") if library.exists() else None


def ours(folder: Path) -> Side:
    """Install our libraries into a folder, and return the one with the same name as the vendor's."""
    from isthmus.capi.installation import install

    install(folder)
    return Side("ours", folder / "libQnnHtp.so", "")


def as_chip(side: Side) -> Side:
    """Return our library with numerics as on a chip; the configuration is written beside it."""
    config = side.library.with_name("numerics.json")
    config.parent.mkdir(exist_ok=True)
    config.write_text(json.dumps({"htp": {"numerics": "htp"}}))
    return replace(side, name="ours as a chip", config=config)


def _digest(files: Iterator[Path] | list[Path]) -> str:
    """Return a short digest of the contents of files."""
    total = hashlib.sha256()
    for file in sorted(files):
        total.update(file.name.encode() + b"\0" + file.read_bytes())
    return total.hexdigest()[:16]


def record(layer: str, side: Side, chip: int | None) -> Path:
    """Return the file that keeps the answers of a layer; its name changes with everything that answers depend on."""
    build = side.build
    if side.name != "vendor":
        build = _digest(file for room in QUESTIONS[layer].rooms for file in SOURCE.glob(room) if file.is_file())
    cases = _digest([HERE / name for name in ("client.py", f"{QUESTIONS[layer].module}.py", *QUESTIONS[layer].sources)])
    folder = Path(os.environ.get("DIFFERENTIAL_CACHE", ROOT / ".cache" / "differential"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{layer}-{side.name.replace(' ', '_')}-{chip or 'any'}-{build}-{cases}.jsonl"


def recorded_answers(layer: str, side: Side, chip: int | None) -> dict[str, Any]:
    """Return the answers that a file has already."""
    file = record(layer, side, chip)
    known: dict[str, Any] = {}
    if file.exists():
        for line in file.read_text().splitlines():
            # An interrupted run may leave half a line.
            if line.endswith("}"):
                known.update(json.loads(line))
    return known


def answers(layer: str, side: Side, chip: int | None, cases: list[str]) -> dict[str, Any]:
    """Return a library's answer to each case. Answers that are kept are not asked for again."""
    file, known = record(layer, side, chip), recorded_answers(layer, side, chip)
    missing = [name for name in cases if name not in known]
    with file.open("a") as journal:
        while missing:
            for name, answer in _ask(layer, side, chip, missing):
                known[name] = answer
                journal.write(json.dumps({name: answer}) + "\n")
                journal.flush()
            rest = [name for name in missing if name not in known]
            if len(rest) == len(missing):
                raise SystemExit(f"the child process of {layer} on {side.name} ends before its first case")
            missing = rest
    return {name: known[name] for name in cases}


def _ask(layer: str, side: Side, chip: int | None, cases: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield cases with their answers, until all are answered or the child has ended: that is the last case's answer."""
    reading, writing = os.pipe()
    alone = "alone" if QUESTIONS[layer].isolated and side.name == "vendor" else ""
    program = [sys.executable, "-m", "differential.child"]
    command = [*program, layer, str(side.library), str(chip or ""), alone, str(writing)]
    environment = {
        "ISTHMUS_CACHE_DIR": str(ROOT / ".cache" / "kernels"), **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (SOURCE.parent, HERE.parent))),
        **({"ISTHMUS_HTP_CONFIG": str(side.config)} if side.config else {}),
    }  # fmt: skip
    # A file, not a pipe: the child writes answers while it reads names, and neither side may wait for the other.
    with tempfile.TemporaryFile("w+") as names:
        names.write("".join(f"{name}\n" for name in cases))
        names.seek(0)
        child = subprocess.Popen(command, stdin=names, pass_fds=[writing], env=environment, cwd=ROOT)
    os.close(writing)
    begun = None
    try:
        with os.fdopen(reading) as pipe:
            for line in pipe:
                message = json.loads(line)
                begun = message.get("begin")
                if "case" in message:
                    yield message["case"], message["answer"]
        status = child.wait()
        if begun is not None:
            yield begun, ended_by(status)
    finally:
        child.kill()
        child.wait()
