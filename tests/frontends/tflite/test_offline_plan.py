"""A copy of a TFLite file with a memory plan for TFLite Micro: the same model, and a plan that holds."""

import struct
from pathlib import Path

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from frontends.tflite.build import Op, Subgraph, T, model, options
from frontends.tflite.runners import LiteRtRunner, random_input
from isthmus.errors import Code, QnnError
from isthmus.frontends.tflite.model import ModelFile
from isthmus.frontends.tflite.offline_plan import ALIGNMENT, METADATA_NAME, ArenaTensor, arena_tensors, embed
from isthmus.planning import PlannerBuffer, Problem, check, solve

MODELS = Path(__file__).parents[3] / ".models"
MARK = 0x0123456789ABCD
"""A number that a file holds only once."""


def read(name: str) -> bytes:
    path = MODELS / f"{name}.tflite"
    if not path.exists():
        pytest.skip(f"{path.name} has not been fetched")
    return path.read_bytes()


def branches() -> bytes:
    """x goes through two branches that are joined; w is a constant, v a variable that nothing reads but ADD."""
    tensors = [
        T("f32", [1, 64], name="x"),
        T("f32", [1, 64], data=np.ones((1, 64)), name="w"),
        T("f32", [1, 64], name="a"),
        T("f32", [1, 64], name="b"),
        T("f32", [1, 64], name="y"),
        T("f32", [1, 64], name="unused"),
    ]
    add = options("Add")
    return model(
        Subgraph(
            tensors,
            [Op("ADD", [0, 1], [2], add), Op("MUL", [0, 1], [3], options("Mul")), Op("ADD", [2, 3], [4], add)],
            [0],
            [4],
        )
    )


def planned(data: bytes) -> tuple[list[ArenaTensor], Problem, dict[int, int]]:
    tensors = arena_tensors(ModelFile(data, "m"))
    sizes = [-(-t.bytes // ALIGNMENT) * ALIGNMENT for t in tensors]
    problem = Problem(
        tuple(
            PlannerBuffer(str(t.index), t.first, t.last + 1, s, ALIGNMENT) for t, s in zip(tensors, sizes, strict=True)
        )
    )
    found = solve(problem).offsets or ()
    return tensors, problem, {t.index: offset for t, offset in zip(tensors, found, strict=True)}


def metadata(data: bytes) -> dict[str, bytes]:
    """The metadata of a file as LiteRT's own schema classes read it."""
    read = schema.ModelT.InitFromPackedBuf(data)
    entries = [(entry.name.decode(), read.buffers[entry.buffer].data) for entry in read.metadata or []]
    assert len(dict(entries)) == len(entries)
    return {name: b"" if content is None else bytes(bytearray(content)) for name, content in entries}


def words(data: bytes) -> list[int]:
    return np.frombuffer(metadata(data)[METADATA_NAME], "<i4").tolist()


def test_tensors_live_from_the_operator_that_writes_them_to_the_last_that_reads_them() -> None:
    found = [(t.name, t.bytes, t.first, t.last) for t in arena_tensors(ModelFile(branches(), "m"))]
    assert found == [("x", 256, 0, 1), ("a", 256, 0, 2), ("b", 256, 1, 2), ("y", 256, 2, 2)]


def test_the_plan_is_read_back_with_minus_one_for_constants_and_what_is_not_used() -> None:
    data = branches()
    _, problem, offsets = planned(data)
    copy = embed(ModelFile(data, "m"), offsets)
    version, subgraph, count, *found = words(copy)
    assert (version, subgraph, count) == (1, 0, 6)
    assert found[1] == found[5] == -1
    assert check(problem, [found[i] for i in (0, 2, 3, 4)]) == 3 * 256


@pytest.mark.parametrize(
    "name", ["okay_nabu", "dtln_1", "efficientnet_lite0", "face_detection_short_range", "hand_recrop"]
)
def test_litert_computes_the_same_from_the_copy(name) -> None:
    data = read(name)
    tensors, problem, offsets = planned(data)
    copy = embed(ModelFile(data, name), offsets)
    found = words(copy)[3:]
    check(problem, [found[t.index] for t in tensors])
    assert len(found) == sum(len(s.tensors) for s in schema.ModelT.InitFromPackedBuf(data).subgraphs)
    before, after = LiteRtRunner(data), LiteRtRunner(copy)
    rng = np.random.default_rng(0)
    inputs = [random_input(rng, d["shape"], np.dtype(d["dtype"])) for d in before.interpreter.get_input_details()]
    for a, b in zip(before(*inputs), after(*inputs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_was_in_the_file_stays_in_it_byte_for_byte() -> None:
    data = read("okay_nabu")
    copy = embed(ModelFile(data, "m"), planned(data)[2])
    assert copy.endswith(data)
    assert (len(copy) - len(data)) % ALIGNMENT == 0
    old, new = metadata(data), metadata(copy)
    assert old
    assert {name: new[name] for name in old} == old
    assert set(new) - set(old) == {METADATA_NAME}


def test_a_plan_that_was_there_is_replaced() -> None:
    data = branches()
    once = embed(ModelFile(data, "m"), {0: 16})
    twice = embed(ModelFile(once, "m"), {0: 32})
    assert words(twice)[3:5] == [32, -1]
    buffers = [len(schema.ModelT.InitFromPackedBuf(d).buffers) for d in (data, once, twice)]
    assert buffers == [buffers[0], buffers[0] + 1, buffers[0] + 1]
    assert arena_tensors(ModelFile(twice, "m")) == arena_tensors(ModelFile(data, "m"))


def test_the_buffer_of_an_old_plan_is_kept_when_something_else_uses_it() -> None:
    once = schema.ModelT.InitFromPackedBuf(embed(ModelFile(branches(), "m"), {0: 16}))
    other = schema.MetadataT()
    other.name, other.buffer = "other", once.metadata[0].buffer
    once.metadata.append(other)
    builder = flatbuffers.Builder(1024)
    builder.Finish(once.Pack(builder), b"TFL3")
    shared = bytes(builder.Output())
    twice = embed(ModelFile(shared, "m"), {0: 32})
    assert metadata(twice)["other"] == metadata(shared)[METADATA_NAME]
    assert words(twice)[3] == 32


def test_bytes_outside_of_the_flatbuffer_are_found_in_the_copy() -> None:
    data = branches()
    made = schema.ModelT.InitFromPackedBuf(data)
    constant = next(b for b in made.buffers if b.data is not None)
    content, constant.data = bytes(bytearray(constant.data)), None
    constant.offset, constant.size = MARK, len(content)
    builder = flatbuffers.Builder(1024)
    builder.Finish(made.Pack(builder), b"TFL3")
    packed = bytearray(builder.Output())
    at = packed.index(struct.pack("<Q", MARK))
    packed += bytes(-len(packed) % 16)
    packed[at : at + 8] = struct.pack("<Q", len(packed))
    outside = bytes(packed) + content
    copy = embed(ModelFile(outside, "m"), planned(outside)[2])
    found = ModelFile(copy, "m")
    assert bytes(found.buffer(found.subgraph(0).tensor(1).buffer)) == content
    x = np.arange(64, dtype=np.float32).reshape(1, 64)
    np.testing.assert_array_equal(LiteRtRunner(copy)(x)[0], LiteRtRunner(data)(x)[0])


def test_variables_are_left_to_the_runtime() -> None:
    tensors = [T("f32", [1, 4], name="x"), T("f32", [1, 4], variable=True, name="v"), T("f32", [1, 4], name="y")]
    data = model(Subgraph(tensors, [Op("ADD", [0, 1], [2], options("Add"))], [0], [2]))
    assert [t.name for t in arena_tensors(ModelFile(data, "m"))] == ["x", "y"]


def test_numbers_that_another_subgraph_uses_too_are_left_to_the_runtime() -> None:
    main = Subgraph([T("f32", [1, 4], name=n) for n in "xyz"], [Op("ADD", [0, 0], [2], options("Add"))], [0], [2])
    other = Subgraph(
        [T("f32", [1, 4], name="p"), T("f32", [1, 4], data=np.ones((1, 4)), name="q")], [], [0], [0], name="other"
    )
    data = model(main, other)
    assert [t.name for t in arena_tensors(ModelFile(data, "m"))] == ["z"]
    assert words(embed(ModelFile(data, "m"), {2: 0})) == [1, 0, 5, -1, -1, 0, -1, -1]


def test_an_open_shape_is_refused() -> None:
    with pytest.raises(QnnError, match="is open") as refused:
        arena_tensors(ModelFile(read("precise_vad"), "vad"))
    assert refused.value.code is Code.COMMON_NOT_SUPPORTED


def test_an_offset_beyond_31_bits_is_refused() -> None:
    with pytest.raises(QnnError, match="31-bit"):
        embed(ModelFile(branches(), "m"), {0: 1 << 31})


def test_damaged_files_are_refused_or_planned_but_never_crash() -> None:
    data = bytearray(branches())
    rng = np.random.default_rng(1)
    refused = 0
    for _ in range(400):
        broken = bytearray(data)
        for _ in range(3):
            broken[rng.integers(len(broken))] = rng.integers(256)
        try:
            file = ModelFile(bytes(broken), "m")
            copy = embed(file, {t.index: 0 for t in arena_tensors(file)})
            ModelFile(copy, "m").subgraph(0)
        except QnnError:
            refused += 1
    assert refused > 100
