"""The model cache: a context binary of each partition, found again by a later process, and never a wrong one."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from frontends.tflite.build import Op, Subgraph, T, model
from frontends.tflite.test_control_flow import accumulator, lstm
from support.interruption import check_every_interrupt

from delegate.harness import ADD, chain, doubled, plain, run, with_delegate
from isthmus.delegate import SkipOptions, cache, partition

VECTOR = np.float32([[1, 2, 3, 4]])


def made_anew(delegate) -> int:
    return sum("is kept in" in line for line in delegate.lines)


def found_again(delegate) -> int:
    return sum("is taken from" in line for line in delegate.lines)


@pytest.mark.parametrize("backend", ["CPU", "HTP", "LPAI"])
def test_a_partition_is_found_again(backend, make, tmp_path, monkeypatch) -> None:
    options = {"cache_dir": tmp_path / "new" / "folder", "model_token": "twice"}
    first = make(backend, **options)
    interpreter = with_delegate(chain("NEG", "ABS"), first)
    expected = run(interpreter, VECTOR)[0]
    del interpreter
    assert (made_anew(first), found_again(first)) == (1, 0)
    [file] = (tmp_path / "new" / "folder").iterdir()
    assert file.name.startswith("twice-")
    monkeypatch.setattr(partition.tflite, "convert", lambda model: pytest.fail("it was converted again"))
    second = make(backend, **options)
    interpreter = with_delegate(chain("NEG", "ABS"), second)
    np.testing.assert_array_equal(run(interpreter, VECTOR)[0], expected)
    assert (made_anew(second), found_again(second)) == (0, 1)
    del interpreter


def test_each_partition_and_shape_has_a_binary_of_its_own(make, tmp_path) -> None:
    for again in (False, True):
        skip = SkipOptions(skip_delegate_ops=["ABS"])
        delegate = make(cache_dir=tmp_path, model_token="m", skip_options=skip)
        interpreter = with_delegate(chain("NEG", "ABS", "NEG"), delegate)
        for rows in (1, 2):
            interpreter.resize_tensor_input(0, (rows, 4))
            interpreter.allocate_tensors()
            x = np.ones((rows, 4), np.float32)
            np.testing.assert_array_equal(run(interpreter, x)[0], -x)
        assert (made_anew(delegate), found_again(delegate)) == ((0, 4) if again else (4, 0))
        del interpreter
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("content", [accumulator(), lstm(True)], ids=["resource variables", "variable tensors"])
def test_states_start_from_their_initial_values_in_a_graph_from_a_binary(content, make, tmp_path) -> None:
    theirs = plain(content)
    theirs.allocate_tensors()
    x = np.ones(theirs.get_input_details()[0]["shape"], np.float32)
    expected = [run(theirs, x)[0] for _ in range(3)]
    for _ in range(2):
        delegate = make(cache_dir=tmp_path, model_token="state")
        interpreter = with_delegate(content, delegate)
        for each in expected:
            np.testing.assert_allclose(run(interpreter, x)[0], each, rtol=1e-5, atol=1e-6)
        del interpreter
    assert found_again(delegate) == 1


def test_another_model_under_the_same_token_gets_no_binary_of_the_first(make, tmp_path) -> None:
    for content, sign in ((chain("NEG"), -1), (chain("ABS"), 1), (doubled(1, 4), 2)):
        delegate = make(cache_dir=tmp_path, model_token="same")
        interpreter = with_delegate(content, delegate)
        np.testing.assert_array_equal(run(interpreter, VECTOR)[0], sign * VECTOR)
        assert found_again(delegate) == 0
        del interpreter


def plus(constant: float) -> bytes:
    tensors = [T("f32", (1, 4), name="x"), T("f32", (1, 4), np.full((1, 4), constant)), T("f32", (1, 4), name="y")]
    return model(Subgraph(tensors, [Op("ADD", [0, 1], [2], ADD)], [0], [2]))


def test_the_same_model_with_other_weights_gets_a_binary_of_its_own(make, tmp_path) -> None:
    for constant, again in ((1, 0), (2, 0), (1, 1)):
        delegate = make(cache_dir=tmp_path, model_token="same")
        interpreter = with_delegate(plus(constant), delegate)
        np.testing.assert_array_equal(run(interpreter, VECTOR)[0], VECTOR + constant)
        assert found_again(delegate) == again
        del interpreter


def test_a_damaged_binary_is_made_again(make, tmp_path) -> None:
    delegate = make(cache_dir=tmp_path, model_token="m")
    with_delegate(doubled(1, 4), delegate)
    [file] = tmp_path.iterdir()
    whole = file.read_bytes()
    for damaged in (b"", b"nonsense", whole[:-100], whole[:200] + b"\xff" * 64 + whole[264:]):
        file.write_bytes(damaged)
        delegate = make(cache_dir=tmp_path, model_token="m")
        interpreter = with_delegate(doubled(1, 4), delegate)
        np.testing.assert_array_equal(run(interpreter, VECTOR)[0], 2 * VECTOR)
        assert any("is not used" in line for line in delegate.lines)
        assert file.read_bytes() == whole
        del interpreter


def test_a_binary_of_another_graph_in_its_place_is_not_used(make, tmp_path) -> None:
    delegate = make(cache_dir=tmp_path, model_token="m")
    with_delegate(doubled(1, 4), delegate)
    [file] = tmp_path.iterdir()
    other = make(cache_dir=tmp_path, model_token="m")
    with_delegate(doubled(1, 8), other)
    [another] = set(tmp_path.iterdir()) - {file}
    file.write_bytes(another.read_bytes())
    delegate = make(cache_dir=tmp_path, model_token="m")
    interpreter = with_delegate(doubled(1, 4), delegate)
    np.testing.assert_array_equal(run(interpreter, VECTOR)[0], 2 * VECTOR)
    assert any("are not those of the interpreter's nodes" in line for line in delegate.lines)
    del interpreter


def in_the_way(folder: Path) -> Path:
    folder.write_text("a file, no folder")
    return folder / "below"


def closed(folder: Path) -> Path:
    folder.mkdir()
    folder.chmod(0)
    return folder / "below"


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        (in_the_way, "Not a directory"),
        (closed, "Permission denied"),
        (lambda folder: folder / ("x" * 300), "File name too long"),
    ],
    ids=["no folder", "no permission", "no name"],
)
def test_an_unusable_folder_is_logged_and_the_model_runs_without_it(folder, reason, make, tmp_path) -> None:
    if reason == "Permission denied" and os.geteuid() == 0:
        pytest.skip("root may do anything")
    delegate = make(cache_dir=folder(tmp_path / "cache"), model_token="m")
    interpreter = with_delegate(doubled(1, 4), delegate)
    np.testing.assert_array_equal(run(interpreter, VECTOR)[0], 2 * VECTOR)
    warnings = [line for line in delegate.lines if line.startswith("WARN")]
    assert warnings
    assert all("cannot be" in line and reason in line for line in warnings)
    del interpreter


def test_a_full_disk_is_logged_and_leaves_no_partial_file(make, tmp_path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    delegate = make(cache_dir=tmp_path, model_token="m")
    with monkeypatch.context() as crowded:
        crowded.setattr(cache.os, "replace", full)
        interpreter = with_delegate(doubled(1, 4), delegate)
    np.testing.assert_array_equal(run(interpreter, VECTOR)[0], 2 * VECTOR)
    assert any("No space left on device" in line for line in delegate.lines)
    assert list(tmp_path.iterdir()) == []
    del interpreter


def test_what_is_no_file_in_the_place_of_a_binary_is_reported_and_kept(make, tmp_path) -> None:
    with_delegate(doubled(1, 4), make(cache_dir=tmp_path, model_token="m"))
    [file] = tmp_path.iterdir()
    file.unlink()
    file.mkdir()
    delegate = make(cache_dir=tmp_path, model_token="m")
    interpreter = with_delegate(doubled(1, 4), delegate)
    np.testing.assert_array_equal(run(interpreter, VECTOR)[0], 2 * VECTOR)
    assert ["is not used" in line or "is not kept" in line for line in delegate.lines].count(True) == 2
    assert list(tmp_path.iterdir()) == [file]
    del interpreter


def test_an_interrupt_leaves_a_whole_binary_or_none(tmp_path) -> None:
    path = tmp_path / "m-1.bin"

    def action() -> None:
        cache.keep(path, b"binary" * 1000)

    def whole(where: str) -> None:
        assert {file.name for file in tmp_path.iterdir()} <= {path.name}, where
        assert not path.exists() or path.read_bytes() == b"binary" * 1000
        path.unlink(missing_ok=True)

    assert check_every_interrupt(action, whole) > 10


def test_another_process_finds_the_binary_of_a_partition(make, tmp_path) -> None:
    delegate = make(cache_dir=tmp_path, model_token="m")
    with_delegate(doubled(1, 4), delegate)
    here = Path(__file__).parent
    paths = [str(here.parents[1] / "src"), str(here.parent)]
    code = f"""
import sys
sys.path[:0] = {paths!r}
from delegate.harness import *
delegate = LoggingDelegate("CPU", cache_dir={str(tmp_path)!r}, model_token="m")
interpreter = with_delegate(doubled(1, 4), delegate)
[doubled_ones] = run(interpreter, np.ones((1, 4), np.float32))
print(doubled_ones.tolist(), any("is taken from" in line for line in delegate.lines))
del interpreter
delegate.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, env=os.environ)
    assert done.stdout == "[[2.0, 2.0, 2.0, 2.0]] True\n", done.stderr
