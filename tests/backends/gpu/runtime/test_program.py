"""Programs are built once, kept on disk and checked; one that does not build shows the compiler's own words."""

import os
import uuid

import pytest
from support.opencl_device import DEVICE

from isthmus.backends.gpu.runtime.context import ClContext
from isthmus.backends.gpu.runtime.program import Repository, build, kernel
from isthmus.compiled.folder import Folder
from isthmus.errors import Code, QnnError

SOURCE = "kernel void one(global int *x) { x[get_global_id(0)] = VALUE; }"


@pytest.fixture
def context():
    made = ClContext.create(DEVICE)
    yield made
    made.close()


@pytest.fixture
def repository(tmp_path):
    return Repository(Folder(tmp_path / "kernels"))


def files(repository):
    return sorted(name for name in os.listdir(repository.folder.path) if name.endswith(".bin"))


def built(context, repository, source=SOURCE, options=("-DVALUE=1",)):
    again = Repository(repository.folder, repository.is_valid)
    build(context, source, options, again, "test").close()
    return again.hits, again.builds


def test_a_program_is_built_once_and_found_afterwards(context, repository) -> None:
    assert built(context, repository) == (0, 1)
    assert built(context, repository) == (1, 0)
    assert len(files(repository)) == 1


def test_a_program_that_was_found_has_its_kernels(context, repository) -> None:
    built(context, repository)
    program = build(context, SOURCE, ("-DVALUE=1",), repository, "test")
    kernel(program, "one", "test").close()
    assert repository.hits == 1


def test_other_source_options_or_driver_is_another_file(context, repository) -> None:
    from dataclasses import replace

    built(context, repository)
    assert built(context, repository, options=("-DVALUE=2",)) == (0, 1)
    assert built(context, repository, source=SOURCE + "\n") == (0, 1)
    context.device = replace(context.device, driver=context.device.driver + ".1")
    assert built(context, repository) == (0, 1)
    assert len(files(repository)) == 4


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: b"\0" + content[1:], lambda _: b""])
def test_a_damaged_file_is_built_again_and_replaced(context, repository, damage) -> None:
    built(context, repository)
    (name,) = files(repository)
    path = repository.folder.path / name
    path.write_bytes(damage(path.read_bytes()))
    assert built(context, repository) == (0, 1)
    assert built(context, repository) == (1, 0)


def test_a_kept_program_that_the_driver_refuses_is_built_again(context, repository) -> None:
    built(context, repository)
    (name,) = files(repository)
    import hashlib

    key = hashlib.sha256("\0".join((context.device.identity, SOURCE, "-DVALUE=1")).encode()).hexdigest()
    repository.folder.write(name, key, b"no program of any driver")
    assert built(context, repository) == (0, 1)


def test_an_invalidated_repository_is_written_and_not_read(context, repository) -> None:
    built(context, repository)
    repository.is_valid = False
    assert built(context, repository) == (0, 1)
    repository.is_valid = True
    assert built(context, repository) == (1, 0)


def test_a_folder_that_others_may_write_is_refused(context, repository) -> None:
    built(context, repository)
    repository.folder.path.chmod(0o777)
    with pytest.raises(QnnError, match="can be written by others") as refused:
        built(context, repository)
    assert refused.value.code is Code.COMMON_OPERATION_NOT_PERMITTED


def test_a_file_that_is_a_link_is_refused(context, repository, tmp_path) -> None:
    built(context, repository)
    (name,) = files(repository)
    path = repository.folder.path / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(QnnError, match="is a symbolic link"):
        built(context, repository)


def test_a_program_is_built_although_there_is_no_folder_to_keep_it_in(context, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    assert built(context, Repository(Folder(tmp_path / "file" / "kernels"))) == (0, 1)


def test_a_program_that_does_not_build_shows_the_log(context, repository) -> None:
    with pytest.raises(QnnError) as refused:
        build(context, "kernel void one(global int *x) { x[0] = undeclared_name; }", (), repository, "graph 'g'")
    assert refused.value.code is Code.GRAPH_FINALIZE_FAILED
    assert "undeclared_name" in refused.value.rule
    assert context.device.name in refused.value.rule
    assert built(context, repository) == (0, 1)


def test_warnings_of_the_compiler_do_not_reach_standard_error(context, repository, capfd) -> None:
    # PoCL prints "1 warning generated." for this conversion, unless warnings are off. A new name misses PoCL's cache.
    source = f"kernel void k{uuid.uuid4().hex}(global char *x) {{ char c = 300; x[0] = c; }}"
    build(context, source, (), repository, "test").close()
    assert capfd.readouterr().err == ""
