"""The libraries are made where a user wants them, or a line says why not."""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.processes import small_disk

import isthmus
from isthmus import Code, QnnError, capi
from isthmus.backends import BUILT_IN
from isthmus.backends.seam import registry
from isthmus.cabi import tables as interface
from isthmus.capi import building, headers, installation
from isthmus.tools import cli

NAMES = (
    "QnnCpu", "QnnDsp", "QnnGpu", "QnnHtp", "QnnHtpNetRunExtensions", "QnnIr", "QnnLpai", "QnnLpaiNetRunExtensions",
    "QnnSaver", "QnnSystem", "QnnTFLiteDelegate", "cdsprpc",
)  # fmt: skip
FILES = {f"lib{name}.so" for name in NAMES}
SMALL = [library for library in building.LIBRARIES if library.name == "cdsprpc"]
"""The library that is compiled in the least time."""


@pytest.fixture(autouse=True)
def no_other_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget backends that other tests have registered."""
    monkeypatch.setattr(registry, "_entries", dict(BUILT_IN))


def test_the_command_makes_libraries_headers_and_settings(
    libraries: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "BUILT", libraries)
    assert cli.main(["capi", "install", str(tmp_path / "made")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert {Path(line).name for line in printed[: len(FILES) + 1]} == {*FILES, "include"}
    assert (tmp_path / "made" / "include" / "QNN" / "System" / "QnnSystemInterface.h").is_file()
    settings = (tmp_path / "made" / "isthmus.conf").read_text()
    assert f"\nexecutable={sys.executable}\n" in settings
    assert cli.main(["capi", "include"]) == 0
    assert (Path(capsys.readouterr().out.strip()) / "QNN" / "QnnInterface.h").is_file()


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_program_compiles_with_the_headers_that_a_user_gets(
    libraries: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "BUILT", libraries)
    installed = tmp_path / "libraries"
    assert cli.main(["capi", "install", str(installed)]) == 0
    capsys.readouterr()
    assert cli.main(["capi", "include"]) == 0
    printed = capsys.readouterr().out.strip()
    (tmp_path / "program.c").write_text(
        '#include "QNN/HTP/QnnHtpGraph.h"\n#include "QNN/QnnInterface.h"\n#include "QNN/QnnSdkBuildId.h"\n'
        "int main(void) {\n"
        "  const QnnInterface_t **list; uint32_t count;\n"
        "  return QnnInterface_getProviders(&list, &count) || count != 1 || list[0]->backendId != QNN_BACKEND_ID_CPU;\n"
        "}\n"
    )
    for folder in (printed, installed / "include"):
        flags = ["-Wall", "-Wextra", "-Werror", f"-I{folder}", f"-L{installed}", f"-Wl,-rpath,{installed}"]
        subprocess.run(["gcc", *flags, "program.c", "-lQnnCpu", "-o", "program"], cwd=tmp_path, check=True)
        subprocess.run([tmp_path / "program"], check=True)


def test_headers_that_cannot_be_written_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(headers, "FILES", {tmp_path / "file" / "header.h": str})
    with pytest.raises(QnnError, match=r"include.: cannot be written: .*File exists"):
        installation.include()


def test_an_sdk_has_libraries_tools_and_headers_where_clients_look(
    libraries: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "BUILT", libraries)
    root = tmp_path / "an sdk"
    folder = installation.SDK_FOLDERS[platform.machine()]
    for _ in range(2):  # again, over itself
        assert cli.main(["capi", "install", "--sdk", str(root)]) == 0
        printed = {str(Path(line).relative_to(root)) for line in capsys.readouterr().out.splitlines() if "/" in line}
        assert printed == {
            "include", *(f"lib/{folder}/{file}" for file in FILES),
            *(f"bin/{folder}/{tool}" for tool in installation.SDK_TOOLS),
        }  # fmt: skip
    assert all((root / path).exists() for path in printed)
    assert (root / "lib" / folder / "isthmus.conf").is_file()
    assert (root / "include" / "QNN" / "QnnInterface.h").is_file()
    # Nothing is imported from the working folder.
    for name in ("isthmus", "json", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the working folder was run')")
    reported = subprocess.run(
        [root / "bin" / folder / "qnn-net-run", "--version"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (reported.returncode, reported.stdout) == (0, f"qnn-net-run of isthmus {isthmus.__version__}\n"), (
        reported.stderr
    )
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    scripts = dict(re.findall(r'^(qnn-[a-z-]+) = "isthmus.tools.cli:(\w+)"$', project, re.MULTILINE))
    assert scripts == installation.SDK_TOOLS


def test_files_can_be_read_by_all_and_written_by_their_owner(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "BUILT", libraries)
    paths = capi.install_sdk(tmp_path)
    folder = paths[0].parent
    modes = {path.name: path.stat().st_mode & 0o777 for path in (*folder.iterdir(), *paths) if path.is_file()}
    assert {name for name, mode in modes.items() if mode == 0o644} == {"isthmus.conf", building.SUPPRESSIONS.name}
    assert set(modes.values()) == {0o644, 0o755}
    assert (folder / building.SUPPRESSIONS.name).read_bytes() == building.SUPPRESSIONS.read_bytes()
    (tmp_path / "file").write_text("")
    with pytest.raises(QnnError, match=f"folder '{tmp_path}/file/lib/.*cannot be written") as refused:
        capi.install_sdk(tmp_path / "file")
    assert refused.value.code is Code.COMMON_SYSTEM
    (tmp_path / "half" / "bin").mkdir(parents=True)
    (tmp_path / "half" / "include").write_text("")
    with pytest.raises(QnnError, match=f"folder '{tmp_path}/half': cannot be written"):
        capi.install_sdk(tmp_path / "half")


def test_the_settings_name_this_python_and_this_package() -> None:
    comment, library, executable, bootstrap, end = installation.settings().split("\n")
    assert comment.startswith("# Where a program without Python finds one.")
    assert library == f"libpython={installation.libpython() or ''}"
    assert (executable, end) == (f"executable={sys.executable}", "")
    source = str(Path(isthmus.__file__).parents[1])
    code = f"{bootstrap.removeprefix('bootstrap=')}; print(sys.path[0], isthmus.__file__, sep='\\n')"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [source, isthmus.__file__]


def test_libpython_is_found_where_its_name_is_that_of_a_shared_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A static library, though INSTSONAME names it, is passed over."""
    variables = {"INSTSONAME": "libpython.a", "LDLIBRARY": "libpython.so", "LIBDIR": str(tmp_path), "LIBPL": None}
    monkeypatch.setattr(installation.sysconfig, "get_config_var", variables.get)
    monkeypatch.setattr(installation.sys, "base_prefix", str(tmp_path / "nowhere"))
    (tmp_path / "libpython.a").write_text("")
    found = installation.libpython()
    assert found is None or found.parent != tmp_path
    (tmp_path / "libpython.so").write_text("")
    assert installation.libpython() == tmp_path / "libpython.so"


def test_the_command_takes_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, rule in (
        (["install"], "no folder is given"),
        (["install", str(tmp_path), "--sdk", str(tmp_path)], "give one folder"),
        (["include", "--sdk", str(tmp_path)], "takes no folder"),
    ):
        assert cli.main(["capi", *arguments]) == 2
        assert rule in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_sdk_is_refused_where_it_has_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(QnnError, match="not for riscv64") as refusal:
        capi.install_sdk(tmp_path / "made")
    assert refusal.value.code is Code.COMMON_PLATFORM_NOT_SUPPORTED
    assert not list(tmp_path.iterdir())


def test_installed_libraries_are_replaced_and_a_loaded_one_still_works(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "BUILT", libraries)
    capi.install(tmp_path)
    loaded = ctypes.CDLL(str(tmp_path / "libQnnCpu.so"))
    before = (tmp_path / "libQnnCpu.so").stat().st_ino
    capi.install(tmp_path)
    assert (tmp_path / "libQnnCpu.so").stat().st_ino != before
    assert loaded.QnnInterface_getProviders(None, None) == Code.COMMON_INVALID_ARGUMENT
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_each_library_offers_its_own_functions_only(libraries: Path) -> None:
    for file in FILES:
        symbols = subprocess.run(["nm", "-D", "--defined-only", libraries / file], capture_output=True, text=True)
        if symbols.returncode:
            pytest.skip("needs nm")
        names = {line.split()[-1] for line in symbols.stdout.splitlines() if " T " in line}
        if file == "libcdsprpc.so":
            assert {"rpcmem_alloc", "rpcmem_alloc2", "rpcmem_free", "rpcmem_to_fd"} <= names
        elif file == "libQnnLpaiNetRunExtensions.so":
            assert names == {f"QnnLpaiNetRunExtensions_{verb}Buffer" for verb in ("allocate", "free")}
        elif file == "libQnnHtpNetRunExtensions.so":
            assert names == {"createBackendInterface", "destroyBackendInterface"}
        elif file == "libQnnTFLiteDelegate.so":
            assert "TfLiteQnnDelegateCreate" in names
            assert all(name.startswith(("TfLiteQnnDelegate", "tflite_plugin_")) for name in names)
        else:
            system = file == "libQnnSystem.so"
            entries = interface.SYSTEM_FUNCTIONS if system else interface.BACKEND_FUNCTIONS
            expected = {headers.function_name(entry) for entry in entries if entry in interface.ARGUMENTS}
            expected.add("QnnSystemInterface_getProviders" if system else "QnnInterface_getProviders")
            if file == "libQnnSaver.so":
                expected.add("QnnSaver_initialize")
            assert names - {"QnnMem_deregister"} == expected
            assert len(expected) > 50


def test_without_a_compiler_the_user_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "BUILT", tmp_path / "none")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(QnnError, match=r"there is no C compiler \(no-such-compiler, cc, gcc, clang\)") as refusal:
        capi.install(tmp_path)
    assert refusal.value.code is Code.COMMON_PLATFORM_NOT_SUPPORTED
    assert refusal.value.hint == "Install gcc or clang, or set CC."


def test_the_compiler_command_may_have_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc -Wl,--build-id=0x1234abcd")
    (made,) = building.compile_all(tmp_path, SMALL)
    assert bytes.fromhex("1234abcd") in made.read_bytes()


def test_the_path_of_a_compiler_may_contain_a_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "my compilers" / "cc"
    compiler.parent.mkdir()
    compiler.write_text('#!/bin/sh\nexec cc -Wl,--build-id=0x1234abcd "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    (made,) = building.compile_all(tmp_path, SMALL)
    assert bytes.fromhex("1234abcd") in made.read_bytes()


def test_libraries_that_a_wheel_carries_need_no_compiler(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "BUILT", libraries)
    monkeypatch.setenv("PATH", "")
    made = capi.install(tmp_path)
    assert {file.name for file in made} == FILES
    assert (tmp_path / "libQnnHtp.so").read_bytes() == (libraries / "libQnnHtp.so").read_bytes()


def test_a_compiler_that_refuses_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "BUILT", tmp_path / "none")
    broken = tmp_path / "library.c"
    broken.write_text("this is no C\n")
    monkeypatch.setattr(building, "SOURCE", broken)
    with pytest.raises(QnnError, match=r"cannot compile libQnnCpu.so: .*error"):
        capi.install(tmp_path)
    assert not list(tmp_path.glob("*.so"))


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(QnnError, match="cannot be written"):
        capi.install(tmp_path / "file" / "below")


def test_a_full_disk_leaves_what_was_installed_before(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "BUILT", libraries)
    capi.install_sdk(tmp_path)
    installed = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    largest = max(len((libraries / file).read_bytes()) for file in FILES)
    monkeypatch.setattr(installation, "settings", lambda: "other settings")
    for limit in (1000, largest - 1):
        with small_disk(limit), pytest.raises(QnnError, match=r"folder '.*': cannot be written: ") as refused:
            capi.install_sdk(tmp_path)
        assert refused.value.code is Code.COMMON_SYSTEM
        assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == installed


def test_a_library_that_is_not_there_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(QnnError, match=re.escape("Run `isthmus capi install DIR`.")):
        capi.load(tmp_path)


def test_what_clients_in_c_have_in_this_process_is_seen(client: object) -> None:
    from capi.qnn_calls import Client, doubling, opened

    assert isinstance(client, Client)
    backend, context = opened(client)
    doubling(client, context, "seen from Python")
    assert "seen from Python" in [graph.name for graph in capi.graphs()]
    client.do("backendFree", backend)
    assert "seen from Python" not in [graph.name for graph in capi.graphs()]


@pytest.mark.parametrize("folder", [None, 5, "", b"bytes", "with\0null"])
def test_what_is_no_folder_is_a_plain_error(folder: Any) -> None:
    for action in (capi.install, capi.load):
        with pytest.raises(QnnError, match=re.escape(f"folder {folder!r}: must be the path of a folder")):
            action(folder)


@pytest.mark.parametrize("library", [None, 5, ""])
def test_what_is_no_name_of_a_library_is_a_plain_error(tmp_path: Path, library: Any) -> None:
    with pytest.raises(QnnError, match=re.escape(f"library {library!r}: must be the name of a file")):
        capi.load(tmp_path, library)
