"""Compiled code is cached by its sources and target; what is stale, damaged or foreign is rebuilt, never trusted."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from isthmus.engine.native import cache, loader
from isthmus.engine.native.target import TARGETS, by_name, host

KERNEL = "executor:stop"


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(loader, "_addresses", {})
    return tmp_path / "cache"


def test_a_kernel_is_compiled_once_and_found_again(empty_cache, capfd):
    assert cache.read(KERNEL, host()) is None
    loader.compile_into_cache([KERNEL], host())
    assert "compiling 1 kernels" in capfd.readouterr().err
    code = cache.read(KERNEL, host())
    assert code is not None
    assert code.startswith(b"\x7fELF")


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "foreign header"])
def test_damaged_code_is_not_trusted_and_rebuilt(empty_cache, damage):
    loader.compile_into_cache([KERNEL], host())
    file = cache.path(KERNEL, host())
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[-20] ^= 1
    elif damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "empty":
        content = bytearray()
    else:
        content[:8] = b"SOMEONES"
    file.write_bytes(content)
    assert cache.read(KERNEL, host()) is None
    assert loader._objects([KERNEL], host())[KERNEL].startswith(b"\x7fELF")


def test_code_that_others_may_write_is_not_trusted(empty_cache):
    loader.compile_into_cache([KERNEL], host())
    os.chmod(cache.path(KERNEL, host()), 0o666)
    assert cache.read(KERNEL, host()) is None


def test_the_key_changes_with_kernel_target_and_sources(monkeypatch):
    keys = {cache.key(kernel, target) for kernel in ("executor:run", "executor:work") for target in TARGETS}
    assert len(keys) == 2 * len(TARGETS)
    before = cache.key(KERNEL, host())
    real = cache._file_hash
    monkeypatch.setattr(cache, "_file_hash", lambda p: b"changed" if p.name == "base.py" else real(p))
    assert cache.key(KERNEL, host()) != before, "a module that the kernel imports counts too"


def test_a_kernel_module_counts_as_a_source_however_it_is_imported(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_KERNELS", tmp_path)
    (tmp_path / "outer.py").write_text("from isthmus.engine.native.kernels import inner, near as other\n")
    (tmp_path / "inner.py").write_text("from isthmus.engine.native.kernels.deep import something\n")
    (tmp_path / "near.py").write_text("from isthmus.errors import Code\n")
    (tmp_path / "deep.py").write_text("")
    assert cache._sources("outer") == {"outer", "inner", "near", "deep"}


@pytest.mark.parametrize("change", [{"vector_bytes": 8}, {"dot": "other"}])
def test_the_key_changes_with_what_a_target_says_of_vectors(change):
    assert cache.key(KERNEL, replace(host(), **change)) != cache.key(KERNEL, host())


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(blocker / "cache"))
    with pytest.raises(loader.QnnError, match="ISTHMUS_CACHE_DIR"):
        loader.compile_into_cache([KERNEL], host())


def test_without_a_home_folder_the_variable_to_set_is_named(monkeypatch):
    for name in ("ISTHMUS_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def no_entry(uid):
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", no_entry)
    with pytest.raises(loader.QnnError, match=r"no home folder.*ISTHMUS_CACHE_DIR"):
        loader.compile_into_cache([KERNEL], host())
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert str(cache.directory()) == "/caches/isthmus"


def test_a_compiler_that_fails_is_reported_with_its_words(empty_cache):
    with pytest.raises(loader.QnnError, match="nonsense"):
        loader.compile_into_cache(["executor:nonsense"], host())


def test_running_cached_kernels_loads_no_numba(empty_cache):
    script = (
        "import sys; from isthmus.engine.native import loader; from isthmus.engine.native.target import host\n"
        f"loader.addresses(['{KERNEL}'], host())\n"
        "assert 'numba' not in sys.modules, 'numba was loaded'"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ})


def test_an_unknown_target_is_refused_with_the_known_ones():
    with pytest.raises(loader.QnnError, match=r"avx2.*portable"):
        by_name("z80")
