"""Each room imports only what the architecture allows it to, and has its tests in the folder of its name."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.backends import BUILT_IN
from isthmus.backends.vendor import NAME as VENDOR

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "isthmus"
_ROOMS = """
errors:
version:
system:                       errors
log:                          errors
audit_log:                    errors system
compiled:                     errors system
planning:                     errors system compiled
domains:                      errors system graph
graph:                        errors
cabi:                         errors
cabi.writer:                  errors cabi frontends
memory:                       errors system log audit_log
faults:                       errors system memory
frontends:                    errors system graph
prepare:                      errors system graph planning
engine:                       errors system compiled graph prepare memory
backends:
backends.seam:                errors version system log audit_log memory graph prepare engine backends
backends.accelerator:         errors system log faults memory graph engine backends.seam
backends.cpu:                 errors system log memory graph prepare engine frontends cabi backends.seam \
                              backends.foreign cabi.writer
backends.htp:                 errors system log memory graph domains prepare engine cabi backends.seam \
                              backends.accelerator backends.htp.delegate
backends.htp.delegate:        backends.seam backends.htp
backends.foreign:             errors system
backends.vendor:              errors system log memory graph frontends cabi cabi.writer backends.foreign \
                              backends.seam backends.htp
backends.lpai:                errors system log memory graph prepare engine cabi backends.seam backends.accelerator
backends.gpu:                 errors version system log memory graph prepare compiled cabi backends.seam \
                              backends.gpu.runtime backends.gpu.compile backends.gpu.delegate
backends.gpu.delegate:        backends.seam
backends.gpu.runtime:         errors system compiled cabi
backends.gpu.mixed_precision: errors graph prepare
backends.gpu.compile:         errors system memory graph prepare backends.gpu.mixed_precision
qnn:                          errors version system log audit_log faults memory graph prepare frontends cabi \
                              cabi.writer backends.seam backends.htp backends.lpai backends.gpu backends.vendor
capi:                         errors version system log audit_log memory graph frontends cabi cabi.writer qnn delegate \
                              backends.seam
session:                      errors system log audit_log graph prepare frontends qnn backends.seam
delegate:                     errors version system log memory graph prepare engine frontends qnn backends.seam \
                              backends.htp.delegate backends.gpu.delegate
report:                       errors prepare
split:                        errors graph frontends prepare
comparison:                   errors system graph frontends prepare report qnn backends.seam
tools:                        errors version system log memory graph planning domains prepare frontends qnn capi \
                              delegate session report split comparison compiled backends.seam backends.vendor
testing:                      errors audit_log faults memory qnn capi session backends.seam
"""
MAY_IMPORT = {
    room: set(others.split()) for room, _, others in (line.partition(":") for line in _ROOMS.strip().splitlines())
}
"""The rooms of the package, each with those that it may import: folders and modules, by the longest name that fits.

The delegate reads an interpreter's nodes with the frontend's converters and has native code run its graphs. The C
interface includes the delegate's library, and composes graphs of DLC files. The vendor's library gets graphs in the
form in which QNN's own tools compose them, with the structures of HTP's headers; the tools report what it says of them.
"""


def room_of(module: str) -> str:
    """Name the room of a module of the package: the longest listed name that it begins with, or its first part."""
    parts = module.split(".")
    beginnings = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in beginnings if name in MAY_IMPORT), parts[0])


def module_of(file: Path) -> str:
    """Name the module of a source file, without the package's own name."""
    return ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def imported(file: Path) -> set[str]:
    """List what a file imports of the package: modules, and names in them, without the package's own name."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            # What is imported may be a module, which may be a room of its own.
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {name.removeprefix("isthmus.") for name in names if name.startswith("isthmus.")}


def rooms_imported(file: Path) -> set[str]:
    """List the rooms that a file imports from."""
    return {room_of(module) for module in imported(file) if not module.startswith("__")}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_it_may_know(room) -> None:
    files = [file for file in SOURCE.rglob("*.py") if room_of(module_of(file)) == room]
    assert files, "a room without a file"
    for file in files:
        foreign = rooms_imported(file) - MAY_IMPORT[room] - {room}
        assert not foreign, f"{file.relative_to(SOURCE)} imports {foreign}"


def test_every_room_is_listed() -> None:
    rooms = {room_of(module_of(file)) for file in SOURCE.rglob("*.py")} - {"__init__", "__main__"}
    assert rooms == set(MAY_IMPORT)


GUESTS = ("split", "comparison", "backends.vendor")
"""Rooms that could be packages of their own."""
MAY_IMPORT_GUESTS = {
    "__init__.py": "exports the comparison",
    "qnn/vendor.py": "has the names of the vendor's properties",
    "tools/": "has their commands",
}
"""Who may import a guest, and why. This list may only shrink."""
CONTRIBUTING = SOURCE.parents[1] / "CONTRIBUTING.md"


def section_of(title: str) -> str:
    """Read a section of the guide for contributors."""
    return CONTRIBUTING.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_an_addition_touches_at_most_four_files_which_exist() -> None:
    rows = [
        line.split("|")[3] for line in section_of("What an addition touches").splitlines() if line.startswith("| a")
    ]
    for row, limit in zip(rows[1:], (4, 4, 3, 3), strict=True):
        files = re.findall("`([a-z_./0-9]+)`", row)
        assert 0 < len(files) <= limit
        assert all((SOURCE / file).is_file() for file in files), files


def public_modules() -> tuple[str, ...]:
    """Read the list of what guests may use from the guide for contributors."""
    rows = [line.split("|")[1] for line in section_of("Guests").splitlines() if line.startswith("| `")]
    return tuple(name.removeprefix("isthmus.") for row in rows for name in re.findall("`([a-z_.]+)`", row))


@pytest.mark.parametrize("guest", GUESTS)
def test_a_guest_uses_only_what_is_public(guest) -> None:
    public = (*public_modules(), guest)
    assert len(public) > 5
    for file in (SOURCE / guest.replace(".", "/")).rglob("*.py"):
        foreign = {name for name in imported(file) if not any(f"{name}.".startswith(f"{each}.") for each in public)}
        private = {name for name in imported(file) if any(part.startswith("_") for part in name.split("."))}
        assert not foreign | private, f"{file.relative_to(SOURCE)} imports {foreign | private}"


def test_few_modules_import_a_guest() -> None:
    for file in SOURCE.rglob("*.py"):
        where = file.relative_to(SOURCE).as_posix()
        guests = {room_of(name) for name in imported(file)} & {*GUESTS} - {room_of(module_of(file))}
        assert not guests or where.startswith((*MAY_IMPORT_GUESTS,)), f"{where} imports {guests}"


def test_no_module_of_the_backends_imports_another_late() -> None:
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


MAY_NAME_A_BACKEND = {
    "backends/__init__.py": "lists the backends, for the registry",
    "qnn/__init__.py": "exports the modules of QNN's header names, which users import as qnn.htp",
    "qnn/gpu.py": "allocates memory of the GPU's device, and refuses another backend",
    "testing/plugin.py": "has a fixture for HTP, on which tests of other people run by default",
}
"""Modules outside a backend's package that name it all the same, and why. This list may only shrink."""
NAMES_OF_GPU = {
    "backends/__init__.py": "lists the backends, for the registry",
    "delegate/__init__.py": "exports the options of QNN's delegate header",
    "delegate/c_names.py": "has the names of QNN's delegate header",
    "delegate/options.py": "has the options of QNN's delegate header",
    "qnn/__init__.py": "exports the modules of QNN's header names",
    "qnn/gpu.py": "has the names of QNN's GPU headers",
    "session.py": "lists the backends for users",
}
"""Modules outside the GPU's package that mention it, and why: public names. This list may only shrink."""


BACKENDS = {**{name: name for name in BUILT_IN}, VENDOR: "vendor"}
"""The backends, each with the folder of its package."""


def outside(*names: str) -> list[Path]:
    """List the modules outside the packages of these backends."""
    packages = tuple(f"backends/{BACKENDS[name]}/" for name in names)
    return [file for file in SOURCE.rglob("*.py") if not file.relative_to(SOURCE).as_posix().startswith(packages)]


def conditions(tree: ast.AST) -> Iterator[ast.expr]:
    """Find the expressions that a module decides by."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            yield node.test
        elif isinstance(node, ast.Compare):
            yield node
        elif isinstance(node, ast.Match):
            yield node.subject
        elif isinstance(node, ast.comprehension):
            yield from node.ifs


def backends_named(tree: ast.AST) -> set[str]:
    """List the backends that are named by a whole text, or by a part of an identifier in a condition.

    A processor is called "cpu" too, so identifiers with that are left out.
    """
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    texts = {value.lower() for value in constants if isinstance(value, str)}
    deciding = [node for condition in conditions(tree) for node in ast.walk(condition)]
    identifiers = [node.id for node in deciding if isinstance(node, ast.Name)]
    identifiers += [node.attr for node in deciding if isinstance(node, ast.Attribute)]
    words = {word.lower() for each in identifiers for word in re.findall(r"[A-Z]*[a-z0-9]*", each)}
    return texts & BACKENDS.keys() | words & BACKENDS.keys() - {"cpu"}


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ('if backend == "htp": pass', {"htp"}),
        ('TABLE = {"cpu": 3, "LPAI": 12}', {"cpu", "lpai"}),
        ("x = 1 if kind is BackendType.HTP else 2", {"htp"}),
        ("found = [each for each in all if isinstance(each, GpuOptions)]", {"gpu"}),
        ("options.htp_options = HtpOptions()", set()),
        ('help = "one of cpu, htp and lpai"', set()),
    ],
)
def test_the_names_of_backends_are_found(source, named) -> None:
    assert backends_named(ast.parse(source)) == named


def test_only_a_backends_package_names_it() -> None:
    naming = {
        file.relative_to(SOURCE).as_posix()
        for file in outside(*BACKENDS)
        if backends_named(ast.parse(file.read_text()))
    }
    assert naming == MAY_NAME_A_BACKEND.keys()


def test_few_modules_outside_its_package_mention_the_gpu() -> None:
    mentioning = {
        file.relative_to(SOURCE).as_posix()
        for file in outside("gpu")
        if re.search("gpu|opencl", file.read_text(), re.IGNORECASE)
    }
    assert mentioning == NAMES_OF_GPU.keys()


MIRRORS = (
    *("cabi/", "backends/gpu/c.py", "backends/htp/c.py", "backends/lpai/c.py"),
    *("delegate/structures.py", "frontends/dlc/version", "frontends/tflite/schema.py"),
)
"""Modules whose classes have the names of foreign structures: C structures, and tables of file formats."""


def test_a_public_class_name_means_one_thing() -> None:
    homes = defaultdict(list)
    for file in SOURCE.rglob("*.py"):
        where = file.relative_to(SOURCE).as_posix()
        if not where.startswith(MIRRORS):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].append(where)
    assert not {name: where for name, where in homes.items() if len(where) > 1}


SUITES = {
    "arm64": "kernels and models on an emulated machine",
    "clients": "programs of others on our libraries",
    "differential": "our library compared with the vendor's",
    "examples": "the programs in examples",
    "models": "real models, on every target and in every type",
    "mutation": "deliberate mistakes, and the tests that notice them",
    "networks": "networks in the forms that frameworks export",
    "nodes": "ONNX's own tests of nodes",
    "packaging": "wheels, and the site of the documents",
    "random_operations": "random operations compared with other runtimes",
    "soak": "random programs of API calls, for a long time",
    "support": "what several folders of tests use",
}
"""Folders of tests that belong to no room of the package, with what they test."""
OF_THE_PROJECT = {"behaviour", "client_results", "documents", "lint", "names", "rooms", "suites"}
"""Files beside this one that test documents and tests; the others there test a module of the package."""


def folders_of_tests() -> list[Path]:
    """List the folders with tests that belong to a room, relative to that of all tests."""
    folders = {file.parent.relative_to(TESTS) for file in TESTS.rglob("test_*.py")} - {Path()}
    return sorted(folder for folder in folders if folder.parts[0] not in SUITES)


def test_a_folder_of_tests_has_the_path_of_a_room() -> None:
    for folder in folders_of_tests():
        room = SOURCE / folder
        assert room.is_dir() or room.with_suffix(".py").is_file(), f"tests/{folder} has no room"
    assert SUITES.keys() <= {file.name for file in TESTS.iterdir()}


def test_files_beside_the_folders_test_a_module() -> None:
    names = {file.stem.removeprefix("test_") for file in TESTS.glob("test_*.py")}
    assert names - OF_THE_PROJECT <= {file.stem for file in SOURCE.glob("*.py")}


def test_no_file_of_tests_repeats_the_name_of_its_folder() -> None:
    """Names need not be unique, because these folders are packages."""
    for folder in folders_of_tests():
        prefixes = tuple(prefix for part in folder.parts for prefix in (f"test_{part}_", f"{part}_"))
        assert not [file.name for file in (TESTS / folder).glob("*.py") if file.name.startswith(prefixes)], folder
        for package in (folder, *list(folder.parents)[:-1]):
            assert (TESTS / package / "__init__.py").is_file(), f"tests/{package} is no package"


def test_every_test_is_annotated_alike() -> None:
    """With `-> None` and, where that helps a reader, types of parameters: one habit instead of two."""
    for file in TESTS.rglob("*.py"):
        functions = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)]
        open_ = [each.name for each in functions if each.name.startswith("test_") and each.returns is None]
        assert not open_, f"{file.relative_to(TESTS)} has tests without `-> None`"
