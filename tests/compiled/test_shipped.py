"""Code that a wheel contains is used if it was compiled from the installed sources, and then nothing is compiled."""

import importlib.metadata
import platform

import pytest

from isthmus.compiled import shipped, toolchain
from isthmus.engine.native import cache, loader
from isthmus.engine.native.signatures import KERNELS
from isthmus.engine.native.target import host
from isthmus.errors import Code, QnnError
from isthmus.planning import machine

KERNEL = "executor:stop"
CODE = b"machine code"


@pytest.fixture
def archives(tmp_path, monkeypatch):
    """An empty folder of archives, and a cache that is empty too and in which nothing can be compiled."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    monkeypatch.setattr(shipped, "FOLDER", folder)
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def no_compiler(monkeypatch):
    """Make the packages of the compiler look as if they were not installed."""

    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    toolchain.toolchain.cache_clear()
    cache._toolchain.cache_clear()
    monkeypatch.setattr(importlib.metadata, "version", absent)
    yield
    toolchain.toolchain.cache_clear()
    cache._toolchain.cache_clear()


def ship(folder, code=CODE, key=None):
    key = key or cache.shipped_key(host())
    shipped.write(folder / f"{host().name}.zip", {cache.shipped_file(KERNEL): (key, code)})


def test_shipped_kernels_need_neither_a_compiler_nor_a_cache(archives, no_compiler, tmp_path) -> None:
    ship(archives)
    assert loader.objects([KERNEL], host()) == {KERNEL: CODE}
    assert not (tmp_path / "cache").exists()


def test_code_of_other_sources_is_not_used(archives, monkeypatch, tmp_path) -> None:
    ship(archives)
    changed = tmp_path / "changed.py"
    changed.write_text("")
    files = cache.shipped_sources()
    monkeypatch.setattr(cache, "shipped_sources", lambda: {*files, changed})
    cache.forget_sources()
    try:
        assert cache.read(KERNEL, host()) is None
    finally:
        cache.forget_sources()


@pytest.mark.parametrize("damage", ["other key", "cut", "not an archive", "changed"])
def test_damaged_archives_count_as_absent(archives, damage) -> None:
    ship(archives, key="another" if damage == "other key" else None)
    file = archives / f"{host().name}.zip"
    content = file.read_bytes()
    if damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "not an archive":
        file.write_bytes(b"text")
    elif damage == "changed":
        at = content.index(b".o") + 10
        file.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
    assert cache.read(KERNEL, host()) is None


def test_equal_code_gives_equal_archives(tmp_path) -> None:
    codes = {"b.o": ("key", b"2"), "a.o": ("key", b"1")}
    shipped.write(tmp_path / "one.zip", codes)
    shipped.write(tmp_path / "two.zip", dict(reversed(codes.items())))
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


def test_the_key_of_shipped_code_covers_every_source_of_every_kernel() -> None:
    modules = {kernel.partition(":")[0] for kernel in (*KERNELS, "executor:run", "doorbell:serve", "callback:free")}
    sources = {(cache._KERNELS / f"{name}.py").resolve() for module in modules for name in cache._sources(module)}
    assert sources <= {file.resolve() for file in cache.shipped_sources()}


def test_functions_of_an_architecture_are_shipped_too(archives, no_compiler) -> None:
    search = machine.SEARCH
    key = search.shipped_key(platform.machine())
    codes = {search.shipped_file(name): (key, name.encode()) for name in search.functions}
    shipped.write(archives / f"{platform.machine()}.zip", codes)
    assert search.objects() == [name.encode() for name in search.functions]


def test_without_a_compiler_the_extra_to_install_is_named(archives, no_compiler) -> None:
    sentences = r"'llvmlite' is not installed\. .*pip install 'isthmus\[compile\]'"
    for ask in (lambda: loader.objects([KERNEL], host()), machine.SEARCH.objects):
        with pytest.raises(QnnError, match=sentences) as refusal:
            ask()
        assert refusal.value.code is Code.COMMON_RESOURCE_UNAVAILABLE
