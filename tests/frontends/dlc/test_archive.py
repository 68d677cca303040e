"""The archive around a DLC: entries are found as they are stored, and nothing outside the file is ever followed."""

import random
import struct
import zipfile

import pytest
from support.dlc_write import archive

from isthmus.errors import Code, QnnError
from isthmus.frontends.dlc.archive import MAX_ENTRIES, read

ENTRIES = {"model": b"abc" * 7, "model.params": b"", "htp.cache.0": bytes(range(256))}


def entries(data: bytes) -> dict[str, bytes]:
    return {name: bytes(content) for name, content in read(memoryview(data), "f").entries.items()}


def refused(data: bytes, rule: str) -> None:
    with pytest.raises(QnnError, match=rule) as caught:
        read(memoryview(data), "f")
    assert caught.value.code is Code.COMMON_LOADING_BINARIES


@pytest.mark.parametrize("wide", [True, False])
def test_entries_are_found_whichever_sizes_they_have(wide) -> None:
    assert entries(archive(ENTRIES, wide)) == ENTRIES


def test_entries_are_views_of_the_file() -> None:
    data = memoryview(bytearray(archive(ENTRIES)))
    content = read(data, "f").entries["model"]
    content[0] = ord("z")
    assert bytes(read(data, "f").entries["model"]).startswith(b"z")


def test_an_ordinary_zip_of_stored_entries_is_read_too(tmp_path) -> None:
    path = tmp_path / "plain.dlc"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as made:
        for name, content in ENTRIES.items():
            made.writestr(name, content)
        made.comment = b"a comment, PK\x05\x06 and all"
    assert entries(path.read_bytes()) == ENTRIES


def test_compressed_entries_are_refused_by_name(tmp_path) -> None:
    path = tmp_path / "packed.dlc"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("model", b"a" * 1000)
    refused(path.read_bytes(), "'model' is compressed or encrypted")


def test_two_entries_of_one_name_are_refused() -> None:
    data = archive({"model": b"1", "other": b"2"}).replace(b"other", b"model")
    refused(data, "two entries 'model'")


def test_a_directory_without_end_is_refused() -> None:
    data = bytearray(archive({"model": b"1"}))
    at = data.rfind(b"PK\x06\x06")
    struct.pack_into("<Q", data, at + 32, MAX_ENTRIES + 1)
    refused(bytes(data), f"{MAX_ENTRIES + 1} entries, above the limit")


@pytest.mark.parametrize(
    ("offset", "value", "rule"),
    [(48, 1 << 60, "is outside the file"), (40, 1 << 60, "is outside the file"), (48, 3, "directory is broken")],
    ids=["start", "size", "place"],
)
def test_a_directory_elsewhere_is_refused(offset, value, rule) -> None:
    data = bytearray(archive({"model": b"1"}))
    struct.pack_into("<Q", data, data.rfind(b"PK\x06\x06") + offset, value)
    refused(bytes(data), rule)


def test_an_entry_beyond_the_file_is_refused() -> None:
    data = bytearray(archive({"model": b"12345678"}))
    at = data.rfind(b"model") + len(b"model")
    struct.pack_into("<QQ", data, at + 4, 1 << 40, 1 << 40)
    refused(bytes(data), "'model' of 1099511627776 bytes")


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", bytes(100), b"PK\x05\x06" * 20], ids=range(4))
def test_what_is_no_archive_is_refused(data) -> None:
    refused(data, "its end is missing|is broken")


def test_damaged_archives_are_read_or_refused() -> None:
    rng, data = random.Random(4), archive(ENTRIES)
    for _ in range(3000):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
        cut = damaged[: rng.randint(0, len(damaged))] if rng.random() < 0.2 else damaged
        try:
            for content in read(memoryview(cut), "f").entries.values():
                assert len(content) <= len(cut)
        except QnnError:
            pass
