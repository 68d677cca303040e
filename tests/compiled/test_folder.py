"""Compiled code is taken from a folder and files that only its user could have written; all else is refused."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys

import pytest

from isthmus.compiled import folder as folder_module
from isthmus.compiled.folder import Folder, Unavailable
from isthmus.errors import Code, QnnError

KEY = "a key"
CODE = b"machine code" * 100


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "cache")


@pytest.fixture
def filled(folder):
    folder.write("f.o", KEY, CODE)
    return folder


def everything_in(folder):
    return sorted(os.listdir(folder.path))


def test_what_is_written_is_read(filled) -> None:
    assert filled.read("f.o", KEY) == CODE
    assert filled.read("f.o", "another key") is None
    assert filled.read("g.o", KEY) is None


def test_only_the_user_can_get_at_what_is_made(filled) -> None:
    assert filled.path.stat().st_mode & 0o777 == 0o700
    assert (filled.path / "f.o").stat().st_mode & 0o777 == 0o600


def test_reading_makes_nothing(folder) -> None:
    assert folder.read("f.o", KEY) is None
    assert not folder.path.exists()


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 500, None])
def test_a_damaged_file_counts_as_absent_and_can_be_replaced(filled, content) -> None:
    file = filled.path / "f.o"
    file.write_bytes(file.read_bytes()[:-1] if content is None else content)
    assert filled.read("f.o", KEY) is None
    filled.write("f.o", KEY, CODE)
    assert filled.read("f.o", KEY) == CODE


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702, 0o1777], ids=oct)
def test_a_folder_that_others_may_write_is_refused_with_the_remedy(filled, mode) -> None:
    os.chmod(filled.path, mode)
    remedy = r"ISTHMUS_CACHE_DIR" if mode & 0o1000 else r"chmod go-w .*ISTHMUS_CACHE_DIR"
    for use in (lambda: filled.read("f.o", KEY), lambda: filled.write("f.o", KEY, CODE), filled.check):
        with pytest.raises(QnnError, match=rf"can be written by others.*{remedy}") as refusal:
            use()
        assert refusal.value.code is Code.COMMON_OPERATION_NOT_PERMITTED
        assert not isinstance(refusal.value, Unavailable)


def test_a_folder_of_another_user_is_refused_with_the_remedy(filled, monkeypatch) -> None:
    monkeypatch.setattr(folder_module, "_trusted_owners", lambda: (os.geteuid() + 1, os.geteuid() + 2))
    with pytest.raises(QnnError, match=r"belongs to another user.*ISTHMUS_CACHE_DIR"):
        filled.read("f.o", KEY)
    with pytest.raises(QnnError, match="belongs to another user"):
        filled.write("f.o", KEY, CODE)


def test_a_file_of_another_user_is_refused(filled, monkeypatch) -> None:
    answers = iter([folder_module._trusted_owners(), ()])  # asked for the folder, then for the file
    monkeypatch.setattr(folder_module, "_trusted_owners", lambda: next(answers))
    with pytest.raises(QnnError, match=r"f\.o: belongs to another user.*Remove it"):
        filled.read("f.o", KEY)


def test_the_user_and_root_are_trusted() -> None:
    assert folder_module._trusted_owners() == (os.geteuid(), 0)


@pytest.mark.parametrize("mode", [0o620, 0o602], ids=oct)
def test_a_file_that_others_may_write_is_refused(filled, mode) -> None:
    os.chmod(filled.path / "f.o", mode)
    with pytest.raises(QnnError, match=r"f\.o: can be written by others.*Remove it"):
        filled.read("f.o", KEY)


def test_a_link_in_the_place_of_a_file_is_refused_even_to_good_code(filled) -> None:
    (filled.path / "linked.o").symlink_to(filled.path / "f.o")
    with pytest.raises(QnnError, match=r"linked\.o: is a symbolic link"):
        filled.read("linked.o", KEY)


def test_writing_replaces_a_link_and_leaves_what_it_led_to(filled, tmp_path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (filled.path / "g.o").symlink_to(precious)
    filled.write("g.o", KEY, CODE)
    assert precious.read_text() == "mine"
    assert filled.read("g.o", KEY) == CODE


def test_a_lock_that_is_a_link_is_not_followed(filled, tmp_path) -> None:
    (filled.path / "g.o.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unavailable, match="cannot be written"):
        filled.claim("g.o")
    assert filled.holder("g.o") is None
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket"])
def test_what_is_not_a_plain_file_is_refused_without_waiting(filled, kind) -> None:
    place = filled.path / "odd.o"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(place))
    with pytest.raises(QnnError, match=r"is not a plain file|cannot be read"):
        filled.read("odd.o", KEY)


def test_a_folder_behind_a_link_is_judged_by_what_the_link_leads_to(filled, tmp_path) -> None:
    link = tmp_path / "link"
    link.symlink_to(filled.path)
    assert Folder(link).read("f.o", KEY) == CODE
    os.chmod(filled.path, 0o777)
    with pytest.raises(QnnError, match="can be written by others"):
        Folder(link).read("f.o", KEY)


def test_a_folder_exchanged_after_the_check_is_not_what_is_read(filled, tmp_path, monkeypatch) -> None:
    """Another takes the name between the check of the folder and the opening of the file."""
    other = Folder(tmp_path / "other")
    other.write("f.o", KEY, b"theirs")
    real = os.fstat

    def exchange(file):
        status = real(file)
        if filled.path.stat().st_ino == status.st_ino:
            filled.path.rename(tmp_path / "away")
            other.path.rename(filled.path)
        return status

    monkeypatch.setattr(os, "fstat", exchange)
    assert filled.read("f.o", KEY) == CODE


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_is_reported_and_leaves_no_partial_file(filled, monkeypatch, fault) -> None:
    real = os.fdopen

    def full(file, mode, **more):
        stream = real(file, mode, buffering=0, **more)
        if mode != "wb":
            return stream

        class Full:
            def __enter__(self):
                return self

            def __exit__(self, *exception):
                stream.close()

            def write(self, content):
                stream.write(content[: len(content) // 2])
                raise OSError(fault, os.strerror(fault))

        return Full()

    monkeypatch.setattr(os, "fdopen", full)
    room = "Make room" if fault != errno.EIO else "Set"
    with pytest.raises(Unavailable, match=rf"cannot be written: {os.strerror(fault)}\. {room}.*ISTHMUS_CACHE_DIR"):
        filled.write("g.o", KEY, CODE)
    assert everything_in(filled) == ["f.o"]


def test_a_disk_that_is_really_full_is_reported(tmp_path) -> None:
    """A limit on the size of files stands for the disk: the system refuses in the middle of the write."""
    script = (
        "import resource, signal, sys; from pathlib import Path; from isthmus.compiled.folder import Folder\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "Folder(Path(sys.argv[1])).write('f.o', 'key', bytes(1000))"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "c")], capture_output=True, text=True)
    assert "cannot be written: File too large" in done.stderr.splitlines()[-1]
    assert everything_in(Folder(tmp_path / "c")) == []


def test_a_writer_killed_in_the_middle_leaves_the_old_file_and_nothing_that_is_read(filled) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from isthmus.compiled.folder import Folder\n"
        "os.replace = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)\n"
        "Folder(Path(sys.argv[1])).write('f.o', 'a key', b'new')"
    )
    done = subprocess.run([sys.executable, "-c", script, str(filled.path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert filled.read("f.o", KEY) == CODE
    (left,) = set(everything_in(filled)) - {"f.o"}
    filled.check()
    assert left in everything_in(filled), "it might still be written"
    (filled.path / "g.o.lock").touch()
    for name in (left, "g.o.lock"):
        os.utime(filled.path / name, (0, 0))
    filled.check()
    assert everything_in(filled) == ["f.o"]


def test_a_claim_keeps_others_away_from_one_name_until_it_is_released(filled) -> None:
    claim = filled.claim("g.o")
    assert filled.claim("g.o") is None
    assert filled.holder("g.o") == os.getpid()
    other = filled.claim("h.o")
    other.release()
    claim.release()
    claim.release()
    assert everything_in(filled) == ["f.o"]
    assert filled.holder("g.o") is None
    filled.claim("g.o").release()


def test_a_claim_ends_with_its_process(filled) -> None:
    script = (
        "import sys, time; from pathlib import Path; from isthmus.compiled.folder import Folder\n"
        "claim = Folder(Path(sys.argv[1])).claim('g.o'); print(); time.sleep(600)"
    )
    command = [sys.executable, "-u", "-c", script, str(filled.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert filled.claim("g.o") is None
        assert filled.holder("g.o") == other.pid
        other.kill()
    claim = filled.claim("g.o")
    assert claim is not None
    claim.release()


def test_a_claim_on_a_file_that_its_owner_removes_meanwhile_is_made_on_a_new_one(filled, monkeypatch) -> None:
    """The owner releases between the opening and the locking of its file here."""
    owner, real = filled.claim("g.o"), fcntl.flock

    def late(file, operation):
        monkeypatch.setattr(fcntl, "flock", real)
        owner.release()
        return real(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    claim = filled.claim("g.o")
    assert claim is not None
    assert filled.claim("g.o") is None
    claim.release()


def test_a_file_system_without_locks_gives_a_claim_to_everybody(filled, monkeypatch) -> None:
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    claims = [filled.claim("g.o"), filled.claim("g.o")]
    assert None not in claims
    for claim in claims:
        claim.release()
    assert everything_in(filled) == ["f.o"]


def test_a_full_disk_does_not_prevent_a_claim(filled, monkeypatch) -> None:
    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", full)
    claim = filled.claim("g.o")
    assert filled.holder("g.o") is None
    assert filled.claim("g.o") is None
    claim.release()


def test_the_folder_of_the_user_has_a_full_name(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", "here")
    assert Folder.of_user().path == tmp_path / "here"
    monkeypatch.delenv("ISTHMUS_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert str(Folder.of_user().path) == "/caches/isthmus"
