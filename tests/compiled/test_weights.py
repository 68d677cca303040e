"""Packed weights are kept in a folder and mapped from it; what cannot be kept or trusted costs nothing but time."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.processes import descriptors

from isthmus.compiled import weights as weights_module
from isthmus.compiled.folder import Folder
from isthmus.compiled.weights import WeightFolder, Weights
from isthmus.system.mapping import MappedFile

KEY, OTHER = (hashlib.sha256(name).digest() for name in (b"a key", b"another"))
CONTENT = np.random.default_rng(0).integers(0, 256, 300_001, np.uint8)


@pytest.fixture
def folder(tmp_path):
    return WeightFolder(Folder(tmp_path / "weights"), 1 << 20)


@pytest.fixture
def file(folder):
    folder.keep(KEY, Weights.of(CONTENT))
    return next(folder.folder.path.iterdir())


def mapped_here(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


def test_what_is_kept_is_mapped_by_the_one_who_kept_it_and_by_others(folder, tmp_path) -> None:
    kept = folder.keep(KEY, Weights.of(CONTENT))
    found = WeightFolder(folder.folder, 1 << 20).find(KEY)
    for weights in (kept, found):
        assert np.array_equal(weights.array, CONTENT)
        assert weights.digest == hashlib.sha256(CONTENT).digest()
        assert weights.array.ctypes.data % 64 == 0
        assert not weights.array.flags.writeable
    assert mapped_here(folder.folder.path) == 2
    assert folder.find(OTHER) is None


def test_a_mapping_needs_no_descriptor_outlives_its_file_and_ends_with_its_views(folder, file) -> None:
    before = descriptors()
    view = folder.find(KEY).array[5:]
    file.unlink()
    assert descriptors() == before
    assert np.array_equal(view, CONTENT[5:])
    assert mapped_here(file) == 1
    del view
    assert mapped_here(file) == 0


@pytest.mark.parametrize("place", [0, 10, 45, 80, 130, 130 + 70_000, -1])
def test_one_wrong_byte_anywhere_is_noticed(folder, file, place) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    assert folder.find(KEY) is None
    assert np.array_equal(folder.keep(KEY, Weights.of(CONTENT)).array, CONTENT)
    assert folder.find(KEY) is not None


@pytest.mark.parametrize(
    "change",
    [
        lambda content: b"", lambda content: content[:50], lambda content: content[:128], lambda content: content[:-1],
        lambda content: content[:200_000] + bytes(len(content) - 200_000), lambda content: content + b"\0",
        lambda content: b"something else" * 1000,
        lambda content: content[:128] + content[128 + 4096 : 128 + 8192] + content[128:4224] + content[8320:],
    ],
    ids=["empty", "part of the header", "only the header", "cut off", "zero pages", "more", "foreign", "exchanged"],
)  # fmt: skip
def test_a_damaged_file_counts_as_absent(folder, file, change) -> None:
    file.write_bytes(change(file.read_bytes()))
    assert folder.find(KEY) is None


def test_the_file_of_another_key_counts_as_absent(folder, file) -> None:
    folder.keep(OTHER, Weights.of(CONTENT[::-1]))
    (other,) = set(file.parent.iterdir()) - {file}
    other.replace(file)
    assert folder.find(KEY) is None


@pytest.mark.parametrize("mode", [0o666, 0o620])
def test_a_file_that_others_may_write_counts_as_absent(folder, file, mode) -> None:
    file.chmod(mode)
    assert folder.find(KEY) is None


def test_a_link_counts_as_absent(folder, file, tmp_path) -> None:
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert folder.find(KEY) is None


def test_a_file_on_another_machine_or_not_in_memory_is_not_mapped(folder, file, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(weights_module, "is_remote", lambda file: True)
        assert folder.find(KEY) is None
    monkeypatch.setattr(MappedFile, "is_in_memory", lambda mapped: False)
    assert folder.find(KEY) is None


def aged(folder, seconds: float) -> list[str]:
    for path in folder.folder.path.iterdir():
        status = path.stat()
        os.utime(path, (status.st_atime - seconds, status.st_mtime - seconds))
    return sorted(path.name for path in folder.folder.path.iterdir())


def test_what_was_unused_for_long_makes_room_and_what_was_used_stays(folder) -> None:
    folder.limit = 700_000
    keys = [hashlib.sha256(bytes([number])).digest() for number in range(4)]
    for key in keys[:2]:
        folder.keep(key, Weights.of(CONTENT))
    full = aged(folder, 1000)
    assert folder.keep(keys[2], Weights.of(CONTENT)).array is not None
    assert aged(folder, 10_000) == full, "others were used a moment ago"
    later = WeightFolder(folder.folder, folder.limit)
    assert later.find(keys[0]) is not None
    later.keep(keys[3], Weights.of(CONTENT))
    assert [later.find(key) is not None for key in keys] == [True, False, False, True]
    assert sum(path.stat().st_size for path in folder.folder.path.iterdir()) <= folder.limit


def test_weights_above_the_limit_are_not_kept(folder) -> None:
    folder.limit = 300_000
    kept = Weights.of(CONTENT)
    assert folder.keep(KEY, kept) is kept
    assert not folder.folder.path.exists()


def test_a_disk_keeps_as_much_free_as_the_folder_may_take(folder, monkeypatch) -> None:
    real = os.statvfs

    class Nearly:
        f_bavail, f_frsize = 300, 4096

    monkeypatch.setattr(os, "statvfs", lambda path: Nearly if Path(path) == folder.folder.path else real(path))
    kept = Weights.of(CONTENT)
    assert folder.keep(KEY, kept) is kept
    assert os.listdir(folder.folder.path) == []


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_write_that_fails_leaves_nothing_and_is_not_tried_again(folder, monkeypatch, fault) -> None:
    tried = []

    def refused(*arguments, **options):
        tried.append(arguments)
        raise OSError(fault, os.strerror(fault))

    kept = Weights.of(CONTENT)
    monkeypatch.setattr(os, "replace", refused)
    assert folder.keep(KEY, kept) is kept
    assert folder.keep(OTHER, kept) is kept
    assert len(tried) == 1
    assert os.listdir(folder.folder.path) == []


def test_without_permission_weights_are_those_of_the_process(folder, monkeypatch) -> None:
    def denied(*arguments, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", denied)
    kept = Weights.of(CONTENT)
    assert folder.keep(KEY, kept) is kept
    assert folder.find(KEY) is None


def test_a_folder_that_others_may_write_is_not_used(folder, file) -> None:
    file.parent.chmod(0o777)
    kept = Weights.of(CONTENT)
    assert folder.find(KEY) is None
    assert folder.keep(KEY, kept) is kept


WRITER = (
    "import hashlib, os, signal, sys; import numpy as np; from pathlib import Path\n"
    "from isthmus.compiled.folder import Folder; from isthmus.compiled.weights import WeightFolder, Weights\n"
    "content = np.random.default_rng(0).integers(0, 256, 300_001, np.uint8)\n"
    "if sys.argv[2] == 'killed': os.replace = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n"
    "if sys.argv[2] == 'waits': print('ready', flush=True); sys.stdin.readline()\n"
    "for _ in range(20):\n"
    "    kept = WeightFolder(Folder(Path(sys.argv[1])), 1 << 20).keep(hashlib.sha256(b'a key').digest(),"
    " Weights.of(content))\n"
    "    assert np.array_equal(kept.array, content)\n"
    "    for path in Path(sys.argv[1]).glob('*.packed'): path.unlink(missing_ok=True)\n"
)


def test_a_writer_that_is_killed_leaves_nothing_that_is_found(folder) -> None:
    done = subprocess.run([sys.executable, "-c", WRITER, str(folder.folder.path), "killed"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert folder.find(KEY) is None
    assert len(os.listdir(folder.folder.path)) == 1
    aged(folder, 2 * 24 * 3600)
    folder.keep(KEY, Weights.of(CONTENT))
    (left,) = os.listdir(folder.folder.path)
    assert left.endswith(".packed")


def test_writers_and_removers_at_once_all_have_right_weights(folder) -> None:
    command = [sys.executable, "-c", WRITER, str(folder.folder.path), "waits"]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)]
    for child in children:
        child.stdout.readline()
    for child in children:
        child.stdin.close()
    assert [child.wait() for child in children] == [0, 0, 0]
    for child in children:
        child.stdout.close()
    assert np.array_equal(folder.keep(KEY, Weights.of(CONTENT)).array, CONTENT)


def test_nothing_is_written_where_it_could_not_be_mapped(folder, monkeypatch) -> None:
    monkeypatch.setattr(weights_module, "is_remote", lambda file: True)
    assert np.array_equal(folder.keep(KEY, Weights.of(CONTENT)).array, CONTENT)
    assert list(folder.folder.path.iterdir()) == []


def test_a_file_that_is_not_in_memory_stays_as_it_is(folder, file, monkeypatch) -> None:
    before = file.stat()
    monkeypatch.setattr(MappedFile, "is_in_memory", lambda mapped: False)
    assert np.array_equal(folder.keep(KEY, Weights.of(CONTENT)).array, CONTENT)
    after = file.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_folders_that_are_made_belong_to_the_user_alone_whatever_the_umask(tmp_path) -> None:
    umask = os.umask(0o002)
    try:
        folder = Folder(tmp_path / "cache" / "isthmus" / "weights")
        assert WeightFolder(folder, 1 << 20).keep(KEY, Weights.of(CONTENT)).array.base is not None
    finally:
        os.umask(umask)
    for made in (folder.path, folder.path.parent):
        assert made.stat().st_mode & 0o777 == 0o700
    Folder(folder.path.parent).write("a.o", "key", b"code")
