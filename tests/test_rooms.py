"""Each room imports only what the architecture allows it to."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "isthmus"
MAY_IMPORT = {
    "errors": set(),
    "version": set(),
    "system": {"errors"},
    "log": {"errors"},
    "compiled": {"system", "errors"},
    "planning": {"system", "compiled", "errors"},
    "graph": {"errors"},
    "cabi": {"errors"},
    "memory": {"system", "errors", "log"},
    "frontends": {"graph", "system", "errors"},
    "prepare": {"graph", "planning", "errors"},
    "engine": {"system", "compiled", "graph", "prepare", "memory", "errors"},
    "backends.seam": {"system", "engine", "prepare", "graph", "memory", "log", "errors", "version"},
    "backends.accelerator": {"system", "backends.seam", "engine", "graph", "memory", "log", "errors"},
    "backends.cpu": {"system", "backends.seam", "engine", "prepare", "graph", "memory", "log", "errors"},
    "backends.htp": {
        "system", "backends.seam", "backends.accelerator", "engine", "prepare", "graph", "memory", "log", "errors",
    },
    "backends.lpai": {
        "system", "backends.seam", "backends.accelerator", "engine", "prepare", "graph", "memory", "log", "errors",
    },
    "backends.gpu": {
        "system", "backends.seam", "backends.gpu.runtime", "backends.gpu.compile", "prepare", "graph", "memory",
        "compiled", "log", "errors", "version",
    },
    "backends.gpu.runtime": {"system", "compiled", "errors"},
    "backends.gpu.mixed_precision": {"graph", "prepare"},
    "backends.gpu.compile": {"backends.gpu.mixed_precision", "engine", "graph", "prepare", "memory", "errors"},
    "qnn": {"system", "cabi", "backends", "frontends", "prepare", "graph", "memory", "log", "errors", "version"},
    # libQnnTFLiteDelegate.so is the delegate, under its names in C; libQnnSystem.so composes what DLC files hold.
    "capi": {
        "cabi", "qnn", "delegate", "frontends", "backends", "graph", "memory", "system", "log", "errors", "version",
    },
    "session": {"qnn", "backends", "prepare", "graph", "system", "log", "errors"},
    # A delegate reads an interpreter's nodes with the frontend's converters and has native code run its graphs.
    "delegate": {
        "qnn", "backends", "frontends", "engine", "prepare", "graph", "memory", "system", "log", "errors", "version",
    },
    "report": {"prepare", "errors"},
    "split": {"frontends", "graph", "errors"},
    "tools": {
        "session", "capi", "delegate", "qnn", "report", "split", "backends", "frontends", "prepare", "planning",
        "graph", "log", "system", "errors",
    },
}


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


@pytest.mark.parametrize("room", ["memory", "engine", "binary", "backends/accelerator", "session"])
def test_only_backends_know_their_names(room):
    """Whatever a module calls "htp" or "lpai" is either a backend's business or has another name."""
    files = list((SOURCE / room).rglob("*.py")) or [SOURCE / f"{room}.py"]
    for file in files:
        tree = ast.parse(file.read_text())
        said = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        assert not {"htp", "lpai"} & {text for text in said if isinstance(text, str)}, file.name
