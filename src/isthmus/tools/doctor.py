"""``isthmus doctor``: what this machine has, what works, and what to install for the rest.

Every backend runs a small graph, and its results are checked. Optional packages are listed by the extra that installs
them. Nothing is changed on the machine, except that kernels are compiled into the cache if it lacks them.

The exit status is 0 if every backend whose requirements are installed works, else 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import sysconfig
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

from isthmus import __version__, qnn
from isthmus.backends.seam import registry
from isthmus.compiled.folder import Folder, Unavailable
from isthmus.errors import Code, QnnError, counted, one_line
from isthmus.memory import rpcmem

MARKS = {"works": "ok", "missing": "--", "broken": "!!"}
"""How each state is shown."""
_WORK_EXTRAS = ("bench", "clients", "docs", "test", "wheel")
"""Extras for developing this project, which a user does not need."""
_COMPARED = "onnxruntime"
"""A package that `isthmus compare` runs .onnx files in; no extra for users installs it."""
_CACHE = "cache of compiled code"
_TOOLS = "commands and plugins"
_BACKENDS = "backends"
_INSTALL_AGAIN = "Install this package again with pip: the installed one does not declare all of its tools."
COMMANDS = (
    "qnn-net-run", "qnn-context-binary-generator", "qnn-context-binary-utility", "qnn-throughput-net-run",
    "qnn-profile-viewer",
)  # fmt: skip
"""QNN's commands that this package installs."""
PLUGIN = "isthmus.testing.plugin"
"""The module of the plugin, as the package declares it to pytest."""
_REQUIREMENT = re.compile(r"^(?P<package>[\w.-]+)(?:\[[\w,-]+\])?(?P<range>[^;]*)(?:;(?P<marker>.*))?$")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")


@dataclass(frozen=True)
class Finding:
    """What was found of one thing.

    - `group`: the heading that it is listed under.
    - `name`: what was looked for.
    - `state`: "works", "missing" or "broken".
    - `text`: what was found, or what is wrong.
    - `remedy`: what to do about it; empty if nothing need be done.
    """

    group: str
    name: str
    state: str
    text: str
    remedy: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    findings = []
    group = ""
    for finding in find():
        findings.append(finding)
        if not options.json:
            if finding.group != group:
                group = finding.group
                print(group)
            print(f"  {MARKS[finding.state]}  {finding.name:<26} {finding.text}", flush=True)
            if finding.remedy:
                print(f"      {'':<26} {finding.remedy}")
    broken = [finding.name for finding in findings if finding.state == "broken"]
    if options.json:
        print(json.dumps({"works": not broken, "findings": [asdict(finding) for finding in findings]}))
    else:
        print(f"broken: {', '.join(broken)}" if broken else "everything that is installed works")
    return 1 if broken else 0


def find() -> Iterator[Finding]:
    """Look at everything, one thing after the other; backends come last, since they take the longest."""
    yield from _machine()
    yield _commands()
    yield _pytest_plugin()
    yield from _packages()
    if remedy := registry.install_again():
        yield Finding(_BACKENDS, "backends of guests", "missing", "the installed package declares none", remedy)
    for name in registry.names():
        yield _backend(name)


def _machine() -> Iterator[Finding]:
    """Describe the interpreter, the processor, the cache and where shared memory comes from."""
    group = "machine"
    yield Finding(group, "isthmus", "works", f"{__version__} on Python {platform.python_version()}")
    text = f"{platform.machine()}, {counted(len(os.sched_getaffinity(0)), 'core')}"
    yield Finding(group, "processor", "works", text)
    try:
        folder = Folder.of_user()
        # A small file shows that the folder can be written.
        folder.write("doctor", "", b"")
        yield Finding(group, _CACHE, "works", one_line(str(folder.path)))
    except Unavailable as problem:
        yield Finding(group, _CACHE, "missing", one_line(str(problem)), "Each process compiles for itself.")
    source = os.environ.get("ISTHMUS_RPCMEM") or "memfd"
    try:
        buffer = rpcmem.alloc(rpcmem.HEAP_ID_SYSTEM, rpcmem.DEFAULT_FLAGS, 4096)
        buffer.close()
        yield Finding(group, "shared memory (rpcmem)", "works", one_line(f"from {source}"))
    except QnnError as problem:
        yield Finding(group, "shared memory (rpcmem)", "broken", one_line(f"{source}: {problem.rule}"), problem.hint)
    heaps = Path("/dev/dma_heap")
    if heaps.is_dir():
        yield Finding(group, "DMA heaps", "works", ", ".join(sorted(heap.name for heap in heaps.iterdir())) or "none")
    else:
        yield Finding(group, "DMA heaps", "missing", "this kernel has none; memfd is used instead")
    compiler = shutil.which("gcc")
    absent = "not found; it compiles the C libraries of other packages' backends"
    yield Finding(group, "gcc", "missing" if compiler is None else "works", one_line(compiler or absent))


def _commands() -> Finding:
    """Look for QNN's commands on PATH."""
    found = {name: shutil.which(name) for name in COMMANDS}
    absent = [name for name, path in found.items() if path is None]
    name = "QNN's commands"
    if not absent:
        folders = dict.fromkeys(str(Path(path).parent) for path in found.values() if path)
        return Finding(_TOOLS, name, "works", one_line(f"{counted(len(found), 'command')} in {', '.join(folders)}"))
    scripts = sysconfig.get_path("scripts")
    installed = all(Path(scripts, each).exists() for each in absent)
    remedy = f"Add {scripts} to PATH." if installed else _INSTALL_AGAIN
    return Finding(_TOOLS, name, "missing", f"not on PATH: {', '.join(absent)}", one_line(remedy))


def _pytest_plugin() -> Finding:
    """Find out whether pytest loads the plugin by itself."""
    name = "pytest plugin"
    try:
        pytest = f"pytest {metadata.version('pytest')}"
    except metadata.PackageNotFoundError:
        return Finding(_TOOLS, name, "missing", "pytest is not installed", "pip install pytest")
    if not any(each.value == PLUGIN for each in metadata.entry_points(group="pytest11")):
        return Finding(_TOOLS, name, "missing", f"{pytest} does not find it", _INSTALL_AGAIN)
    if os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        text = f"{pytest} does not load it: PYTEST_DISABLE_PLUGIN_AUTOLOAD is set"
        return Finding(_TOOLS, name, "missing", text, f"Use pytest -p {PLUGIN}")
    return Finding(_TOOLS, name, "works", f"{pytest} loads it")


def _packages() -> Iterator[Finding]:
    """Describe the optional packages, each with the first extra that installs it, or by itself if none does."""
    seen = set()
    for extra, package in (*_optional(), ("", _COMPARED)):
        if package in seen:
            continue
        seen.add(package)
        try:
            yield Finding("optional packages", package, "works", metadata.version(package))
        except metadata.PackageNotFoundError:
            yield Finding(
                "optional packages", package, "missing", "not installed",
                f"pip install 'isthmus[{extra}]'" if extra else f"pip install {package}",
            )  # fmt: skip


def _optional() -> Iterator[tuple[str, str]]:
    """Yield the extras of this installation and the packages that they need on this machine."""
    try:
        requirements = metadata.requires("isthmus") or []
    except metadata.PackageNotFoundError:
        return
    for requirement in requirements:
        parts = _REQUIREMENT.match(requirement)
        extra = _EXTRA.search(requirement)
        if parts is None or extra is None or extra[1] in _WORK_EXTRAS or parts["package"] == "isthmus":
            continue
        if "platform_machine" in requirement and platform.machine() not in requirement:
            continue
        yield extra[1], parts["package"]


def _backend(name: str) -> Finding:
    """Run a small graph on a backend and compare its results with numpy's."""
    x = np.array([[-2, -1, 0, 1, 2, 3, 4, 5]], np.float32)
    result = np.empty_like(x)
    began = time.perf_counter()
    try:
        # Memory is closed last: while the backend lives, it holds it.
        with ExitStack() as memories, qnn.Backend(name) as backend:
            graph = backend.create_context().create_graph("doctor")
            source = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, x.shape)
            positive = graph.create_tensor("positive", qnn.TensorType.NATIVE, qnn.DataType.FLOAT_32, x.shape)
            doubled = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, x.shape)
            graph.add_node("relu", "Relu", [source], [positive])
            graph.add_node("double", "ElementWiseAdd", [positive, positive], [doubled])
            memory = graph.allocate()
            memories.callback(memory.close)
            np.copyto(memory.inputs["x"], x)
            memory.binding.execute()
            np.copyto(result, memory.outputs["y"])
            kernels = f" with kernels for {graph.info.target}" if graph.info.target else ""
    except QnnError as problem:
        absent = problem.code in (Code.COMMON_PLATFORM_NOT_SUPPORTED, Code.BACKEND_NOT_SUPPORTED)
        state = "missing" if absent else "broken"
        return Finding(_BACKENDS, name, state, one_line(f"{problem.what}: {problem.rule}"), one_line(problem.hint))
    if not np.array_equal(result, 2 * np.maximum(x, 0)):
        return Finding(_BACKENDS, name, "broken", f"gave {result.tolist()} for {x.tolist()}")
    return Finding(_BACKENDS, name, "works", f"ran a graph in {time.perf_counter() - began:.1f} s{kernels}")
