"""Each room imports only what the architecture allows it to."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "isthmus"
_ROOMS = """
errors:
version:
system:                       errors
log:                          errors
compiled:                     errors system
planning:                     errors system compiled
graph:                        errors
cabi:                         errors
memory:                       errors system log
frontends:                    errors system graph
prepare:                      errors graph planning
engine:                       errors system compiled graph prepare memory
backends:
backends.seam:                errors version system log memory graph prepare engine backends
backends.accelerator:         errors system log memory graph engine backends.seam
backends.cpu:                 errors system log memory graph prepare engine backends.seam
backends.htp:                 errors system log memory graph prepare engine cabi backends.seam backends.accelerator \
                              backends.htp.delegate
backends.htp.delegate:        backends.seam backends.htp
backends.lpai:                errors system log memory graph prepare engine cabi backends.seam backends.accelerator
backends.gpu:                 errors version system log memory graph prepare compiled engine cabi backends.seam \
                              backends.gpu.runtime backends.gpu.compile backends.gpu.delegate
backends.gpu.delegate:        backends.seam
backends.gpu.runtime:         errors system compiled
backends.gpu.mixed_precision: errors graph prepare
backends.gpu.compile:         errors memory graph prepare backends.gpu.mixed_precision
qnn:                          errors version system log memory graph prepare frontends cabi backends.seam \
                              backends.htp backends.lpai backends.gpu
capi:                         errors version system log memory graph frontends cabi qnn delegate backends.seam
session:                      errors system log graph prepare qnn backends.seam
delegate:                     errors version system log memory graph prepare engine frontends qnn backends.seam \
                              backends.htp.delegate backends.gpu.delegate
report:                       errors prepare
split:                        errors graph frontends
tools:                        errors system log memory graph planning prepare frontends qnn capi delegate session \
                              report split backends.seam
"""
MAY_IMPORT = {
    room: set(others.split()) for room, _, others in (line.partition(":") for line in _ROOMS.strip().splitlines())
}
"""The rooms of the package, each with those that it may import: folders and modules, by the longest name that fits.

The delegate reads an interpreter's nodes with the frontend's converters and has native code run its graphs. The C
interface includes the delegate's library, and composes graphs of DLC files.
"""


def room_of(module: str) -> str:
    """Name the room of a module of the package: the longest listed name that it begins with, or its first part."""
    parts = module.split(".")
    beginnings = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in beginnings if name in MAY_IMPORT), parts[0])


def module_of(file: Path) -> str:
    """Name the module of a source file, without the package's own name."""
    return ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def rooms_imported(file: Path) -> set[str]:
    """List the rooms that a file imports from."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            # What is imported may be a module, which may be a room of its own.
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    modules = (name.removeprefix("isthmus.") for name in names if name.startswith("isthmus."))
    return {room_of(module) for module in modules if not module.startswith("__")}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_it_may_know(room):
    files = [file for file in SOURCE.rglob("*.py") if room_of(module_of(file)) == room]
    assert files, "a room without a file"
    for file in files:
        foreign = rooms_imported(file) - MAY_IMPORT[room] - {room}
        assert not foreign, f"{file.relative_to(SOURCE)} imports {foreign}"


def test_every_room_is_listed():
    rooms = {room_of(module_of(file)) for file in SOURCE.rglob("*.py")} - {"__init__", "__main__"}
    assert rooms == set(MAY_IMPORT)


def test_no_module_of_the_backends_imports_another_late():
    """An import inside a function hides that two modules need each other; only a process that starts has a reason."""
    for file in (file for file in (SOURCE / "backends").rglob("*.py") if file.name != "__main__.py"):
        functions = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)]
        late = [
            node.module
            for function in functions
            for node in ast.walk(function)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("isthmus.backends")
        ]
        assert not late, f"{file.name} imports {late} inside a function"


@pytest.mark.parametrize("room", ["memory", "engine", "backends/seam", "backends/accelerator", "session"])
def test_only_backends_know_their_names(room):
    """Whatever a module calls "htp" or "lpai" is either a backend's business or has another name."""
    files = list((SOURCE / room).rglob("*.py")) or [SOURCE / f"{room}.py"]
    for file in files:
        tree = ast.parse(file.read_text())
        said = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        assert not {"htp", "lpai"} & {text for text in said if isinstance(text, str)}, file.name


MIRRORS = (
    *("cabi/", "backends/gpu/c.py", "backends/htp/c.py", "backends/lpai/c.py"),
    *("delegate/structures.py", "frontends/dlc/version", "frontends/tflite/schema.py"),
)
"""Modules whose classes have the names of foreign structures: C structures, and tables of file formats."""


def test_a_public_class_name_means_one_thing():
    homes = defaultdict(list)
    for file in SOURCE.rglob("*.py"):
        where = file.relative_to(SOURCE).as_posix()
        if not where.startswith(MIRRORS):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].append(where)
    assert not {name: where for name, where in homes.items() if len(where) > 1}
