"""The list of code that a wheel contains is complete."""

import platform
import re
import sys
from pathlib import Path

import pytest
from support.suites import LONG

from isthmus.engine.native.target import TARGETS, host

PACKAGING = Path(__file__).parents[2] / "packaging"


@pytest.fixture
def precompiled(monkeypatch):
    monkeypatch.syspath_prepend(str(PACKAGING))
    import precompiled

    yield precompiled
    del sys.modules["precompiled"]


def test_the_catalogue_has_every_kernel_that_the_package_names(precompiled) -> None:
    """Finds names of kernels in the package's source, beside those that programs use."""
    source = Path(precompiled.loader.__file__).parents[2]
    modules = "|".join(file.stem for file in (source / "engine" / "native" / "kernels").glob("*.py"))
    named = set()
    for file in source.rglob("*.py"):
        named.update(re.findall(rf'"((?:{modules}):\w+)"', file.read_text()))
    assert {"executor:run", "clock:read"} <= named
    assert named <= {kernel.partition(".")[0] for kernel in precompiled.CATALOGUE}, "each has at least one variant"


def test_every_target_is_in_one_wheel(precompiled) -> None:
    shipped = [target for architecture in precompiled.ARCHITECTURES for target in precompiled.targets(architecture)]
    assert sorted(target.name for target in shipped) == sorted(target.name for target in TARGETS)


@LONG
def test_functions_are_written_for_an_architecture_that_is_not_this_machine(precompiled, tmp_path, monkeypatch) -> None:
    nbytes = precompiled.write_functions("aarch64", tmp_path / "aarch64.zip")
    assert nbytes > 0
    monkeypatch.setattr(precompiled.shipped, "FOLDER", tmp_path)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    for group, _ in precompiled._FUNCTIONS:
        codes = group.objects()
        assert len(codes) == len(group.functions)
        assert all(int.from_bytes(code[18:20], "little") == 183 for code in codes), "ELF's number of arm64"


def test_an_archive_of_kernels_serves_a_target(precompiled, tmp_path, monkeypatch) -> None:
    target = next(precompiled.targets("x86_64"))
    monkeypatch.setattr(precompiled, "CATALOGUE", ("executor:stop", "movement:copy.4"))
    precompiled.write_kernels(target, tmp_path / f"{target.name}.zip")
    monkeypatch.setattr(precompiled.shipped, "FOLDER", tmp_path)
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path / "empty"))
    assert set(precompiled.loader.objects(precompiled.CATALOGUE, target)) == set(precompiled.CATALOGUE)
    assert not (tmp_path / "empty").exists()


def test_a_wheel_for_this_machine_has_its_target_alone_and_lines_say_how_far_it_is(
    precompiled, tmp_path, monkeypatch, capsys
) -> None:
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[platform.machine()]
    assert list(precompiled.targets(platform.machine(), "native")) == [host()]
    assert list(precompiled.targets(other, "native")) == []
    monkeypatch.setattr(precompiled, "CATALOGUE", ("executor:stop", "movement:copy.4"))
    monkeypatch.setattr(precompiled, "_PART", 1)
    monkeypatch.setattr(precompiled, "write_functions", lambda architecture, file: file.write_bytes(b""))
    precompiled.write_all(platform.machine(), tmp_path, "native")
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"  {host().name}: 1 of 2 kernels, about \d+ s left", lines[0])
    assert re.fullmatch(rf"  {host().name}: 2 of 2 kernels, \d+ s", lines[1])
    assert {file.name for file in tmp_path.iterdir()} == {f"{host().name}.zip", f"{platform.machine()}.zip"}
