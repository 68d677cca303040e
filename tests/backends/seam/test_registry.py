"""Backends are found by name: our own, those that others register, and those that others install."""

import errno
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from isthmus import QnnError, qnn
from isthmus.backends.seam import registry
from isthmus.capi import building
from isthmus.capi.building import LIBRARIES
from isthmus.delegate.options import BackendType, backend_types
from isthmus.tools import doctor

MODULE = """
from dataclasses import replace

from isthmus.backends.cpu import driver as cpu

ENTRY = replace(cpu.ENTRY, name="elsewhere", library="libQnnElsewhere.so")
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package of somebody else's that brings a backend."""
    (tmp_path / "elsewhere_backend.py").write_text(MODULE)
    facts = tmp_path / "elsewhere_backend-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere-backend\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[isthmus.backends]\nelsewhere = elsewhere_backend:ENTRY\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    registry._installed_entries.cache_clear()
    yield
    monkeypatch.undo()
    registry._installed_entries.cache_clear()


def test_an_installed_backend_is_found_by_its_names(installed) -> None:
    assert "elsewhere" in registry.names()
    assert registry.entry("/vendor/lib64/libQnnElsewhere.so").name == "elsewhere"
    with qnn.Backend("elsewhere") as backend:
        assert backend.name == "elsewhere"


@pytest.mark.parametrize(
    ("module", "point", "reason"),
    [
        ("raise RuntimeError('boom')", "elsewhere_backend:ENTRY", "failed: RuntimeError: boom"),
        ("import none_such", "elsewhere_backend:ENTRY", "failed: ModuleNotFoundError"),
        (MODULE, "elsewhere_backend", "must be 'module:name' of a BackendEntry"),
        (MODULE, "elsewhere_backend:ENTRANCE", "must be 'module:name' of a BackendEntry"),
    ],
)
def test_a_backend_that_cannot_be_imported_is_refused_and_disturbs_no_other(
    installed, tmp_path, caplog, module, point, reason
) -> None:
    (tmp_path / "elsewhere_backend.py").write_text(module)
    facts = tmp_path / "elsewhere_backend-1.0.dist-info"
    (facts / "entry_points.txt").write_text(f"[isthmus.backends]\nelsewhere = {point}\n")
    sys.modules.pop("elsewhere_backend", None)
    with pytest.raises(QnnError, match=reason):
        registry.entry("elsewhere")
    with qnn.Backend("cpu") as backend:
        binary = backend.create_context().get_binary()
    assert qnn.SystemContext().get_binary_info(binary).backend == "cpu"
    assert [entry.name for entry in registry.usable()] == [name for name in registry.names() if name != "elsewhere"]
    assert reason in caplog.text


def test_a_registered_backend_replaces_one_of_its_name(installed) -> None:
    first = registry.entry("elsewhere")
    again = type(first)(first.name, first.library, first.driver, first.read_config)
    registry.register(again)
    assert registry.entry("elsewhere") is again


def test_a_guest_is_registered_by_the_metadata_of_the_package_alone() -> None:
    assert "qnn-htp" not in registry.BUILT_IN
    assert registry.entry("qnn-htp").name == "qnn-htp"
    declared = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert '[project.entry-points."isthmus.backends"]\nqnn-htp = "isthmus.backends.vendor.driver:ENTRY"' in declared


@pytest.mark.parametrize("is_found", [True, False])
def test_metadata_that_declare_no_backend_are_reported_as_old(monkeypatch, is_found) -> None:
    """Such are those of an earlier installation, and a tree that was never installed has none."""

    def old(name):
        if not is_found:
            raise registry.PackageNotFoundError(name)
        return SimpleNamespace(entry_points=[SimpleNamespace(group="pytest11")])

    assert registry.install_again() == ""
    monkeypatch.setattr(registry, "distribution", old)
    monkeypatch.setattr(registry, "entry_points", lambda group: ())
    registry._installed_entries.cache_clear()
    monkeypatch.setattr(registry, "_entries", dict(registry.BUILT_IN))
    try:
        with pytest.raises(QnnError, match="Install isthmus again: the installed package does not declare all of its"):
            registry.entry("qnn-htp")
        assert "Install isthmus again" in next(each.remedy for each in doctor.find() if each.group == "backends")
    finally:
        registry._installed_entries.cache_clear()


@pytest.mark.parametrize("name", ["", "none", "libQnnNone.so", None, 3])
def test_an_unknown_name_is_refused_with_those_there_are(name) -> None:
    with pytest.raises(QnnError, match=r"must be one of cpu, htp, lpai"):
        registry.entry(name)


def test_a_backend_that_cannot_be_looked_up_for_lack_of_descriptors_is_refused() -> None:
    """In a new process: a backend that was looked up once needs no descriptor."""
    script = (
        "import os, resource; from isthmus import QnnError; from isthmus.backends.seam import registry\n"
        "limit = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "highest = max(map(int, os.listdir('/proc/self/fd')))\n"
        "for name in ('htp', 'nobody'):\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, limit[1]))\n"
        "    try:\n"
        "        registry.entry(name)\n"
        "    except QnnError as refusal:\n"
        "        print(int(refusal.code))\n"
        "    finally:\n"
        "        resource.setrlimit(resource.RLIMIT_NOFILE, limit)\n"
        "print(registry.entry('htp').name)\n"
    )
    reported = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert reported.stdout.split() == ["1010", "1010", "htp"], reported.stderr


@pytest.mark.parametrize(
    ("problem", "kind", "match"),
    [
        (OSError(errno.EMFILE, "Too many open files"), QnnError, "of other packages: cannot be looked up: Too many"),
        (TimeoutError("a handler's own"), TimeoutError, "a handler's own"),
    ],
)
def test_packages_that_cannot_be_looked_up_are_logged_and_looked_up_again(monkeypatch, problem, kind, match) -> None:
    def fails(group):
        raise problem

    registry._installed_entries.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(registry, "entry_points", fails)
        with pytest.raises(kind, match=match):
            registry._installed_entries()
    assert isinstance(registry._installed_entries(), dict)


def test_what_a_backend_declares_for_c_is_imported_for_clients_in_c_alone() -> None:
    script = (
        "import sys; from isthmus import qnn; from isthmus.backends.seam import registry\n"
        "for name in registry.names(): registry.entry(name)\n"
        "qnn.Backend('htp').free()\n"
        "assert not [name for name in sys.modules if name.endswith('.c') or name == 'isthmus.cabi.client']\n"
        "assert registry.c_facet('htp').backend_id == 6\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("name", ["cpu", "htp", "lpai", "gpu"])
def test_a_library_in_c_is_built_with_the_numbers_that_its_backend_declares(name) -> None:
    library = next(each for each in LIBRARIES if each.file == registry.entry(name).library)
    facet = registry.c_facet(name)
    assert library.defines[0] == f"SERVES_BACKEND={facet.backend_id}"
    assert library.defines[2] == f"PROVIDER_VERSION={','.join(map(str, facet.version))}"


def test_libraries_in_c_are_built_where_the_package_cannot_be_imported() -> None:
    """A wheel is built by this module alone, without what the package needs."""
    script = f"import runpy; print([each.file for each in runpy.run_path({building.__file__!r})['LIBRARIES']])"
    ran = subprocess.run([sys.executable, "-S", "-I", "-c", script], capture_output=True, text=True, check=True)
    assert "libQnnHtp.so" in ran.stdout


def test_a_delegates_backend_types_are_the_numbers_that_backends_declare() -> None:
    for name, number in backend_types().items():
        assert BackendType.__members__.get(name.upper(), number) == number
