"""Packed constants are made once in a program and once for all processes; results keep their bits."""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from support import tiny
from support.suites import long
from support.zoo import STORE

import isthmus
from isthmus.compiled.folder import Folder
from isthmus.compiled.weights import WeightFolder
from isthmus.engine.native import packing
from isthmus.engine.native.lowering.emitter import Emitter
from isthmus.engine.native.lowering.panels import pack_matrices, pack_panels
from isthmus.engine.native.packing import Packing, as_stored
from isthmus.engine.native.target import host
from isthmus.errors import QnnError


@pytest.fixture
def weights(tmp_path, monkeypatch):
    folder = WeightFolder(Folder(tmp_path / "weights"), 1 << 30)
    monkeypatch.setattr(packing, "weight_folder", lambda: replace(folder))
    return folder.folder.path


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def products(path: Path) -> Path:
    """Write a model with a product, a convolution for Winograd's algorithm, one in groups and one with a stride."""
    nodes = [
        helper.make_node("Conv", ["x", "square"], ["a"], name="square", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "groups"], ["b"], name="groups", pads=[1, 1, 1, 1], group=2),
        helper.make_node("Conv", ["b", "strided", "bias"], ["c"], name="strided", pads=[2, 2, 2, 2], strides=[2, 2]),
        helper.make_node("ConvTranspose", ["c", "turned"], ["d"], name="turned", strides=[2, 2]),
        helper.make_node("Conv", ["d", "pixel"], ["e"], name="pixel"),
        helper.make_node("MatMul", ["e", "matrix"], ["y"], name="product"),
    ]
    constants = {
        "square": random(64, 64, 3, 3), "groups": random(64, 32, 3, 3), "strided": random(64, 64, 5, 5),
        "bias": random(64), "turned": random(64, 256, 2, 2), "pixel": random(128, 256, 1, 1), "matrix": random(28, 700),
    }  # fmt: skip
    return tiny.save(path, nodes, {"x": (1, 64, 28, 28)}, {"y": (1, 128, 28, 700)}, constants)


def outputs(path: Path, **options) -> list[bytes]:
    with isthmus.Session(path, **options) as session:
        generator = np.random.default_rng(1)
        for array in session.inputs.values():
            values = generator.standard_normal(array.shape) if array.dtype.kind == "f" else np.ones(array.shape)
            array[...] = values.astype(array.dtype)
        session.run()
        return [np.array(array).tobytes() for array in session.outputs.values()]


def check_bits(path: Path, weights: Path, monkeypatch, **options) -> int:
    with monkeypatch.context() as patch:
        patch.setattr(packing, "weight_folder", lambda: None)
        expected = outputs(path, **options)
    assert outputs(path, **options) == expected
    kept = {file.name: file.stat().st_mtime_ns for file in weights.iterdir()}
    assert outputs(path, **options) == expected
    assert {file.name: file.stat().st_mtime_ns for file in weights.iterdir()} == kept, "the second packs nothing"
    return len(kept)


@pytest.mark.parametrize("threads", [1, 2])
def test_results_of_convolutions_and_products_keep_their_bits(weights, tmp_path, monkeypatch, threads) -> None:
    assert check_bits(products(tmp_path / "model.onnx"), weights, monkeypatch, threads=threads) >= 4


@pytest.mark.parametrize(
    "model",
    ["nsnet2.onnx", *map(long, ("deeplabv3.tflite", "efficientnet_lite0.tflite",
     "hand_landmark_full.tflite", "dtln_2.tflite", "minilm_l3.onnx"))],
)  # fmt: skip
def test_results_of_models_keep_their_bits(weights, monkeypatch, model) -> None:
    assert check_bits(STORE / model, weights, monkeypatch) > 0


def test_a_simulated_accelerator_keeps_its_bits(weights, tmp_path, monkeypatch) -> None:
    check_bits(products(tmp_path / "model.onnx"), weights, monkeypatch, backend="htp")


SECOND = (
    "import sys, hashlib, numpy as np, isthmus\n"
    "with isthmus.Session(sys.argv[1]) as session:\n"
    "    session.run({name: np.ones(a.shape, a.dtype) for name, a in session.inputs.items()})\n"
    "    print(hashlib.sha256(np.array(session.outputs['y']).tobytes()).hexdigest(), flush=True)\n"
    "    sys.stdin.readline()\n"
)


@pytest.fixture
def model(tmp_path, monkeypatch):
    path = products(tmp_path / "model.onnx")
    outputs(path)
    # Kernels are those that are compiled already.
    kernels, folder = Path(os.environ["ISTHMUS_CACHE_DIR"]), tmp_path / "cache"
    folder.mkdir(mode=0o700)
    for file in kernels.glob("*.o"):
        shutil.copy(file, folder)
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(folder))
    monkeypatch.setenv("ISTHMUS_CACHE_WEIGHTS", "1GiB")
    return path


class Child:
    """A process that has a session of the model, until it is closed."""

    def __init__(self, model: Path, before: str = "") -> None:
        command = [sys.executable, "-c", before + SECOND, str(model)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.result = self.process.stdout.readline()

    def mapped(self) -> dict[str, int]:
        """Return the sum of each figure of the mappings of packed weights, in KiB."""
        figures: dict[str, int] = {}
        is_packed = False
        for line in Path(f"/proc/{self.process.pid}/smaps").read_text().splitlines():
            name, *rest = line.split()
            if not name.endswith(":"):
                is_packed = line.endswith(".packed")
            elif is_packed and rest[-1] == "kB":
                figures[name[:-1]] = figures.get(name[:-1], 0) + int(rest[0])
        return figures

    def close(self) -> None:
        self.process.communicate()


def test_processes_map_the_same_pages(model, tmp_path) -> None:
    children = []
    try:
        children = [Child(model) for _ in range(3)]
        assert len({child.result for child in children}) == 1
        assert len(children[0].result) == 65
        for child in children:
            figures = child.mapped()
            assert figures["Rss"] > 1000
            assert figures["Pss"] * 2 < figures["Rss"]
            assert figures["Private_Dirty"] == figures.get("Anonymous", 0) == 0
    finally:
        for child in children:
            child.close()
    packed = list((tmp_path / "cache" / "weights").iterdir())
    assert packed
    assert {path.suffix for path in packed} == {".packed"}
    assert {path.stat().st_mode & 0o777 for path in packed} == {0o600}


FULL = (
    "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))\n"
)
UNWRITABLE = "import os, pathlib; pathlib.Path(os.environ['ISTHMUS_CACHE_DIR'], 'weights').write_text('')\n"


@pytest.mark.parametrize(
    ("setting", "before"), [("", FULL), ("", UNWRITABLE), ("0", ""), ("1MB", "")],
    ids=["full disk", "no folder", "turned off", "small"],
)  # fmt: skip
def test_where_weights_are_not_kept_results_are_the_same(model, tmp_path, monkeypatch, setting, before) -> None:
    whole = Child(model)
    whole.close()
    folder = tmp_path / "cache" / "weights"
    shutil.rmtree(folder)
    monkeypatch.setenv("ISTHMUS_CACHE_WEIGHTS", setting)
    child = Child(model, before)
    child.close()
    assert child.result == whole.result != ""
    if folder.is_dir():
        assert sum(file.stat().st_size for file in folder.iterdir()) <= (10**6 if setting else 0)


def test_a_setting_that_is_no_size_is_named(monkeypatch) -> None:
    monkeypatch.setenv("ISTHMUS_CACHE_WEIGHTS", "plenty")
    with pytest.raises(QnnError, match="ISTHMUS_CACHE_WEIGHTS 'plenty': must be a size"):
        packing.weight_folder()


def test_a_key_depends_on_contents_function_and_every_argument_and_on_nothing_else(weights, monkeypatch) -> None:
    matrix, bias = random(128, 256), random(256)
    alike = [(matrix, bias, 32), (matrix.copy(), bias.copy(), 32)]
    changed = matrix.copy()
    changed[100, 100] += 1
    others = [
        (matrix, bias, 16), (matrix, None, 32), (matrix, bias + 1, 32), (changed, bias, 32), (matrix.T, bias, 32),
        (matrix.reshape(64, 512), bias, 32), (matrix.view(np.int32), bias, 32), (matrix[::-1], bias, 32),
        (matrix, bias, 32.0), (matrix, bias, "32"), ([matrix], bias, 32), (matrix, bias, 32, np.int8),
        (matrix, bias, 32, np.int16),
    ]  # fmt: skip
    keys = [Packing().key(pack_panels, arguments) for arguments in (*alike, *others)]
    assert keys[0] == keys[1]
    assert len(set(keys)) == len(keys) - 1
    assert Packing().key(pack_matrices, alike[0]) not in keys
    monkeypatch.setattr(packing, "_version", lambda: "later sources")
    assert Packing().key(pack_panels, alike[0]) not in keys
    with pytest.raises(TypeError, match="no key can have a object"):
        Packing().key(pack_panels, (matrix, object()))


@pytest.mark.parametrize("is_kept", [True, False])
def test_memory_that_is_used_again_for_another_array_is_not_taken_for_the_first(weights, monkeypatch, is_kept) -> None:
    if not is_kept:
        monkeypatch.setattr(packing, "weight_folder", lambda: None)
    many = Packing()
    keys = {many.key(as_stored, (np.full((300, 300), number, np.float32),)) for number in range(20)}
    assert len(keys) == 20


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_program_packs_an_array_once_and_has_equal_contents_once(weights, monkeypatch, is_kept) -> None:
    if not is_kept:
        monkeypatch.setattr(packing, "weight_folder", lambda: None)
    calls = []

    def pack(array, width):
        calls.append(width)
        return array

    emitter, array = Emitter(host(), 1, {}), random(128, 256)
    emitter.first_segment = 40
    places = {emitter.packed(pack, array[:], width) for width in (1, 1, 2, 1)}
    assert calls == [1, 2]
    assert len(places) == len(emitter.segments) == 1
    assert emitter.constant(array.copy()) in places


def test_small_constants_are_not_kept(weights) -> None:
    emitter = Emitter(host(), 1, {})
    emitter.first_segment = 40
    emitter.packed(pack_panels, random(100, 100), None, 32)
    assert not weights.exists()


def test_damaged_weights_are_packed_again(weights, tmp_path) -> None:
    path = products(tmp_path / "model.onnx")
    expected = outputs(path)
    for file in weights.iterdir():
        content = bytearray(file.read_bytes())
        content[5000] ^= 255
        file.write_bytes(content)
    assert outputs(path) == expected
    before = {file.name: hashlib.sha256(file.read_bytes()).digest() for file in weights.iterdir()}
    assert outputs(path) == expected
    assert {file.name: hashlib.sha256(file.read_bytes()).digest() for file in weights.iterdir()} == before


def test_contents_that_change_while_they_are_packed_are_not_kept(weights) -> None:
    array = random(300, 300)

    def change_and_pack(values: np.ndarray) -> np.ndarray:
        values[...] = 7
        return values.copy()

    packing = Packing()
    key = packing.key(change_and_pack, (array,))
    packing.make(key, change_and_pack, (array,))
    assert not list(weights.glob("*.packed"))


def test_what_may_be_encrypted_on_a_disk_is_not_kept(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ISTHMUS_CACHE_WEIGHTS", "1MiB")
    with packing.keep_nothing():
        assert packing.weight_folder() is None
    assert packing.weight_folder() is not None
