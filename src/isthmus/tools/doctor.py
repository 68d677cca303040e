"""``isthmus doctor``: what this machine has, what works, and what to install for the rest.

Every backend runs a small graph, and its results are checked. Optional packages are listed by the extra that installs
them. Nothing is changed on the machine, except that kernels are compiled into the cache if it lacks them.

With files, it says of each context binary which version, chip and library it needs, and whether libraries of this
machine load it: this project's, and Qualcomm's where it is installed.

The exit status is 0 if every backend whose requirements are installed works, or a library loads each file, else 1.
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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from isthmus import __version__, qnn
from isthmus.backends.seam import registry
from isthmus.backends.vendor import NAME as VENDOR
from isthmus.backends.vendor import library as vendor
from isthmus.backends.vendor.measurement import build_of, describe
from isthmus.backends.vendor.target import chips
from isthmus.compiled.folder import Folder, Unavailable
from isthmus.errors import Code, QnnError, counted, invalid_argument, one_line
from isthmus.frontends import is_model
from isthmus.memory import rpcmem
from isthmus.qnn.system import UNKNOWN_FORMAT
from isthmus.system import reading
from isthmus.tools.commands import QNN_TOOLS
from isthmus.tools.files import refuse_unreadable
from isthmus.tools.options import add_shared

MARKS = {"works": "ok", "missing": "--", "broken": "!!"}
"""How each state is shown."""
# Extras for developing this project, which a user does not need.
_WORK_EXTRAS = ("bench", "clients", "docs", "test", "wheel")
# A package that `isthmus compare` runs .onnx files in; no extra for users installs it.
_COMPARED = "onnxruntime"
_CACHE = "cache of compiled code"
_TOOLS = "commands and plugins"
_BACKENDS = "backends"
_INSTALL_AGAIN = "Install this package again with pip: the installed one does not declare all of its tools."
COMMANDS = tuple(f"qnn-{name}" for name in QNN_TOOLS)
"""QNN's commands that this package installs."""
PLUGIN = "isthmus.testing.plugin"
"""The module of the plugin, as the package declares it to pytest."""
_REQUIREMENT = re.compile(r"^(?P<package>[\w.-]+)(?:\[[\w,-]+\])?(?P<range>[^;]*)(?:;(?P<marker>.*))?$")
_BUILD = re.compile(r"v?(\d+\.\d+)\.")
_BINARY, _QUALCOMM = "context binary", "Qualcomm's library"
_NOT_OURS = "Generate a binary from the same model with Qualcomm's tools."
_NOT_THEIRS = "Generate a binary from the same model with this project's qnn-context-binary-generator."
_DIES_OF_SHARED = "Its x86 library fails at binaries whose graphs share weights; a device may load it."
MAX_BINARY = 1 << 36
"""The largest context binary that is read."""
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
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="context binaries, instead of the machine")
    add_shared(parser, "json")


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    if options.files:
        return _print([each for path in options.files for each in examine(path)], options.json, "every file is loaded")
    return _print(find(), options.json, "everything that is installed works")


def _print(found: Iterable[Finding], as_json: bool, verdict: str) -> int:
    """Print findings as they come, and a verdict; return the exit status."""
    findings = []
    group = ""
    for finding in found:
        findings.append(finding)
        if not as_json:
            if finding.group != group:
                group = finding.group
                print(group)
            print(f"  {MARKS[finding.state]}  {finding.name:<26} {finding.text}", flush=True)
            if finding.remedy:
                print(f"      {'':<26} {finding.remedy}")
    broken = [finding.name for finding in findings if finding.state == "broken"]
    if as_json:
        print(json.dumps({"works": not broken, "findings": [asdict(finding) for finding in findings]}))
    else:
        print(f"broken: {', '.join(broken)}" if broken else verdict)
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
        # The backend holds registered memory as long as it lives, so memory is closed last.
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


# -- context binaries --------------------------------------------------------------------------------------------------


def examine(path: Path) -> list[Finding]:
    """Say what a context binary needs, and which libraries of this machine load it.

    Errors: COMMON_INVALID_ARGUMENT for what is no file, and for a model.
    """
    if is_model(reading.beginning(path, 16)):
        raise invalid_argument(f"'{path}'", "it is a model, and no context binary", f"isthmus inspect {path}")
    with refuse_unreadable(f"'{path}'", path):
        content = reading.contents(path, MAX_BINARY)
    try:
        info = qnn.SystemContext().get_binary_info(content)
    except QnnError as problem:
        if problem.rule == UNKNOWN_FORMAT:
            return _examine_foreign(str(path), content)
        # Damaged, or of another version: the rule says which.
        text = f"of this project, but {one_line(problem.rule)}; generate it again from its model"
        return [Finding(str(path), _BINARY, "broken", text)]
    made = f"{info.producer} for {info.backend}, format version {info.version}, {counted(len(info.graphs), 'graph')}"
    name = f"library of {info.backend}"
    try:
        with qnn.Backend(info.backend) as backend:
            backend.create_context_from_binary(content).free()
        loaded = Finding(str(path), name, "works", "loads it")
    except QnnError as problem:
        loaded = Finding(str(path), name, "broken", one_line(f"{problem.what}: {problem.rule}"), one_line(problem.hint))
    return [
        Finding(str(path), "made by", "works", one_line(made)),
        Finding(str(path), "chip", "works", _chip(info.soc, info.arch)),
        Finding(str(path), "needs", "works", f"this project's libraries with format version {info.version}"),
        loaded,
        Finding(str(path), _QUALCOMM, "missing", "does not read this project's binaries", _NOT_OURS),
    ]


def _chip(soc: int | None, arch: int) -> str:
    """Name the chip that a binary is for."""
    named = {each.soc: each for each in chips()}.get(soc or 0)
    title = named.title if named is not None else f"chip {soc}" if soc else "no chip is stated"
    return f"{title}, v{arch}" if arch else title


def _examine_foreign(group: str, content: bytes) -> list[Finding]:
    """Say what a binary that is not of this project needs, as far as Qualcomm's library knows it."""
    if not vendor.is_installed():
        text = "nothing here knows it; Qualcomm's library may: pip install 'isthmus[qnn]'"
        return [Finding(group, _BINARY, "broken", text)]
    library = vendor.find()
    try:
        description = describe(content, library)
    except QnnError as problem:
        text = f"no library here knows it ({problem.rule}): it is damaged, of a newer SDK, or no context binary"
        return [Finding(group, _BINARY, "broken", one_line(text))]
    versions = f"core API {description['core']}, HTP {description['backend']}, blob {description['blob']}"
    graphs = counted(len(description["graphs"]), "graph")
    found = [
        Finding(group, "made by", "works", one_line(f"QNN {description['build']} ({versions}), {graphs}")),
        Finding(group, "chip", "works", _chip(description["soc"], description["arch"])),
        Finding(group, "needs", "works", _need(description)),
        Finding(group, "this project's libraries", "missing", "do not read binaries of Qualcomm's tools", _NOT_THEIRS),
    ]
    config = {VENDOR: {"soc": description["soc"]}} if description["soc"] else {}
    try:
        with qnn.Backend(VENDOR, config) as backend:
            backend.create_context_from_binary(content).free()
        return [*found, Finding(group, _QUALCOMM, "works", f"{build_of(library)} loads it")]
    except QnnError as problem:
        shares = any(each["figures"] and each["figures"]["shared_weights"] for each in description["graphs"])
        remedy = _DIES_OF_SHARED if shares else one_line(problem.hint) or f"The installed one is {build_of(library)}."
        return [*found, Finding(group, _QUALCOMM, "broken", one_line(f"{problem.what}: {problem.rule}"), remedy)]


def _need(description: Mapping[str, Any]) -> str:
    """Say which SDK a binary of Qualcomm's tools needs: libraries read what earlier ones have made."""
    build = _BUILD.match(description["build"])
    sdk = f"QNN {build[1]} or newer, with which it was made" if build else "the SDK that made it, or a newer one"
    return f"{sdk}; blobs from version 4 on need 2.49" if description["blob"].startswith("4.") else sdk
