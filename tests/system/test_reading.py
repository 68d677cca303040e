"""Files are read whole, and only if they are regular and no larger than expected."""

import os
import socket

import pytest
from support.processes import descriptors, opened_since

from isthmus.system import reading


def test_a_regular_file_is_read_up_to_its_bound(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert reading.contents(path, 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        reading.contents(path, 4)


def test_a_sparse_file_is_refused_before_it_is_read(tmp_path) -> None:
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, 1 << 38)
    with pytest.raises(OSError, match="larger than 1,024 bytes"):
        reading.contents(path, 1024)


def test_a_file_that_states_no_size_is_limited_too() -> None:
    assert os.stat("/proc/self/maps").st_size == 0
    with pytest.raises(OSError, match="larger than 10 bytes"):
        reading.contents("/proc/self/maps", 10)


def test_what_is_no_file_is_refused_at_once_and_leaves_nothing_open(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    before = descriptors()
    for name, words in (
        ("pipe", "a pipe or a device, not a file"),
        ("folder", "a directory, not a file"),
        ("link", "a pipe or a device, not a file"),
        ("socket", "No such device"),
        ("absent", "No such file"),
        ("a\0b", "null"),
    ):
        with pytest.raises(OSError, match=words) as caught:
            reading.contents(tmp_path / name, 10)
        assert caught.value.strerror
    assert opened_since(before) == []


def test_a_mapped_file_is_an_immutable_copy(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    before = descriptors()
    mapping = reading.map_file(path, 5)
    assert len(set(descriptors()) - set(before)) <= 1, "the mapping keeps at most a descriptor of its own"
    os.truncate(path, 1)
    path.write_bytes(b"other contents")
    assert bytes(mapping) == b"12345"
    with pytest.raises(TypeError):
        mapping[0] = 0
    mapping.close()
    assert opened_since(before) == []


def test_a_mapped_file_is_bounded_and_not_empty(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    before = descriptors()
    for name, most, words in (
        (path, 4, "larger than 4 bytes"),
        ("/proc/self/maps", 10, "larger than 10 bytes"),
        ("/dev/null", 10, "a pipe or a device"),
        (tmp_path / "none", 10, "No such file"),
    ):
        with pytest.raises(OSError, match=words):
            reading.map_file(name, most)
    (tmp_path / "empty").touch()
    with pytest.raises(OSError, match="empty"):
        reading.map_file(tmp_path / "empty", 10)
    assert opened_since(before) == []
