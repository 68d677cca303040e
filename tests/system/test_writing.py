"""A file that is written is there whole or stays as it was, whoever else writes it, whatever goes wrong."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.interruption import check_every_interrupt
from support.waiting import run_in_threads

from isthmus.system.writing import write_files_together, write_whole


@pytest.mark.parametrize("before", [None, b"older"], ids=["no file", "an older file"])
def test_an_interrupt_leaves_the_new_file_or_what_was_there(before: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "file"

    def restore() -> None:
        path.unlink(missing_ok=True)
        if before is not None:
            path.write_bytes(before)

    def whole(where: str) -> None:
        assert {file.name for file in tmp_path.iterdir()} <= {path.name}, where
        assert (path.read_bytes() if path.exists() else None) in (before, b"content" * 1000), where
        restore()

    restore()
    assert check_every_interrupt(lambda: write_whole(path, b"content" * 1000), whole) > 10


def test_a_refusal_of_the_system_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"older")
    wrong = {"folder": "directory", "file/below": "Not a directory", "nowhere/below": "No such", "n" * 300: "too long"}
    for path, reason in wrong.items():
        with pytest.raises(OSError, match=reason):
            write_whole(tmp_path / path, b"content")
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["file", "folder"]
    assert (tmp_path / "file").read_bytes() == b"older"


def test_the_longest_name_there_is_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    write_whole(path, memoryview(b"content"))
    assert path.read_bytes() == b"content"


@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_a_file_has_the_permissions_that_it_is_to_have(mode: int, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "file", b"", mode)
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode & ~0o027


def test_threads_may_write_one_file_at_the_same_time(tmp_path: Path) -> None:
    path, problems = tmp_path / "file", []
    contents = [bytes([letter]) * 70000 for letter in b"ab"]
    path.write_bytes(contents[0])

    def often(content: bytes) -> None:
        try:
            for _ in range(100):
                write_whole(path, content)
                assert path.read_bytes() in contents
        except BaseException as problem:
            problems.append(problem)

    run_in_threads(often, contents)
    assert not problems
    assert list(tmp_path.iterdir()) == [path]


def together(path: Path, content: bytes) -> None:
    with write_files_together() as write:
        write(path, content)


@pytest.mark.parametrize("write", [write_whole, together])
def test_a_pipe_or_device_is_written_to_and_stays(write: Callable[[Path, bytes], None], tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write(pipe, b"content")
    reader.join()
    assert read == [b"content"]
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("write", [write_whole, together])
def test_a_link_stays_and_the_file_behind_it_is_replaced(write: Callable[[Path, bytes], None], tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"older")
    link.symlink_to(file)
    write(link, b"content")
    assert link.is_symlink()
    assert file.read_bytes() == b"content"
