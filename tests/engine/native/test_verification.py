"""A program from anywhere stays within its memory, or is refused before anything of it is compiled."""

from dataclasses import replace

import numpy as np
import pytest
from support import tiny

from engine.native import specimens
from isthmus import Code, QnnError
from isthmus.backends.seam import native
from isthmus.engine.native import loader, signatures
from isthmus.engine.native.describe import describe
from isthmus.engine.native.program import VARY, Operand
from isthmus.engine.native.serialization import assemble, from_bytes, header_of, to_bytes
from isthmus.engine.native.signatures import KERNELS
from isthmus.engine.native.signatures.tiles import changes
from isthmus.engine.native.verification import Unsafe, verify
from isthmus.engine.native.words import Real
from isthmus.frontends import load
from isthmus.prepare.schedule import Pool


@pytest.fixture(scope="module")
def honest():
    return dict(specimens.programs())


@pytest.fixture
def nothing_is_compiled(monkeypatch):
    def never(*arguments):
        raise AssertionError("something was compiled")

    monkeypatch.setattr(loader, "compile_absent", never)
    monkeypatch.setattr(loader, "addresses", never)


def changed(program, index=0, **values):
    """The program with other values for words of an instruction."""
    number, start, _ = program.table[index].tolist()
    signature = KERNELS[program.kernels[number]]
    words = program.words.copy()
    for name, value in values.items():
        words[place_of(program, index, start + signature.at[name])] = value
    return replace(program, words=words)


def place_of(program, index, place):
    """Where the value is that a word has in an instruction: in it, or in the last one before that changes the word."""
    found = place
    for before in program.varies:
        start = int(program.table[before, 1])
        reported = changes(program.words.tolist(), start)
        places = [each for words in reported.values() for each in words]
        if before < index and place in places:
            found = start + 2 + 2 * len(reported) + places.index(place)
    return found


def refused(program, reported):
    with pytest.raises(Unsafe, match=reported):
        verify(program)


def test_honest_programs_pass_and_go_to_bytes_and_back(honest) -> None:
    for name, program in honest.items():
        assert from_bytes(to_bytes(program)).kernels == program.kernels, name


def test_an_operand_may_end_where_its_pool_does_and_no_byte_later(honest) -> None:
    program = honest["unary"]
    [y] = [i for i in (4, 5) if program.words[0] >> 48 == i]
    verify(changed(program, output=Operand.at(y, 0)))
    refused(changed(program, output=Operand.at(y, 1)), "'output' takes bytes 1 to 2801 of pool 5, which has 2800")
    refused(changed(program, elements=701), "takes bytes 0 to 2804")
    refused(changed(program, x=Operand.at(9, 0)), "'x' is in no pool")
    refused(changed(program, x=-1), "'x' is in no pool")
    refused(changed(program, x=0), "'x' is in no pool")


def test_a_walk_backwards_may_not_leave_the_front(honest) -> None:
    program = honest["slice"]
    refused(changed(program, source=Operand.at(4, 0)), "'source' takes bytes -")


def test_constants_and_inputs_are_not_written(honest, tmp_path) -> None:
    spacious = replace(honest["unary"], constants=np.zeros(4096, np.uint8))
    refused(changed(spacious, output=Operand.at(Pool.CONSTANT, 0)), "'output' is written, but is in the constants")
    gate = native.prepare(load(tiny.gate(tmp_path / "gate.onnx"))).program
    verify(changed(gate, output=Operand.at(Pool.IO + 2, 0)))
    refused(changed(gate, output=Operand.at(Pool.IO + 1, 0)), "'output' is written, but is in pool 5")


@pytest.mark.parametrize(
    ("name", "word", "entry", "kind", "reported"),
    [
        ("cubic", "places", 99, np.int64, "places.most < size"),
        ("cubic", "places", -1, np.int64, "0 <= places.least"),
        ("mirrored", "table", 1 << 40, np.int64, "'x' takes bytes"),
        ("bilinear", "lower", 1 << 40, np.int64, "'x' takes bytes"),
        ("product", "table", -64, np.int64, "takes bytes -64"),
        ("bytes sum", "b_offsets", 1 << 20, np.int32, "'b' takes bytes"),
        ("bytes conv", "offsets", -4, np.int64, "offsets.least >= 0"),
        ("bytes depthwise", "offsets", 1 << 30, np.int64, "work_bytes >="),
        ("bytes depthwise", "blocks", 80, np.int64, "inside.blocks"),
        ("bytes resized", "lower", 1 << 40, np.int64, "'x' takes bytes"),
    ],
)
def test_indices_among_the_constants_are_held_to_what_they_index(honest, name, word, entry, kind, reported) -> None:
    program = honest[name]
    for number, start, _ in program.table.tolist():
        signature = KERNELS[program.kernels[number]]
        if word in signature.at:
            offset = Operand(program.words[start + signature.at[word]]).offset
    constants = program.constants.copy()
    size = np.dtype(kind).itemsize
    constants[offset : offset + size] = np.array([entry], kind).view(np.uint8)
    refused(replace(program, constants=constants), reported)


def test_reading_tables_again_and_again_is_bounded(honest) -> None:
    program = honest["bytes sum"]
    several = replace(
        program,
        table=np.array([[0, len(program.words) * i, 1] for i in range(100)]),
        words=np.concatenate([program.words] * 100),
        labels=program.labels * 100,
    )
    verify(several)
    for i in range(100):
        several.words[len(program.words) * i + KERNELS[program.kernels[0]].at["rows"]] -= i % 15
    refused(several, "tables overlap too often")


def test_a_table_must_be_a_constant(honest) -> None:
    refused(changed(honest["cubic"], places=Operand.at(4, 0)), "'places' names memory, but is not a constant")


def test_nothing_is_written_into_work_space_that_holds_addresses(honest) -> None:
    program = honest["conv"]
    values, _ = KERNELS[program.kernels[0]].decode(program.words.tolist())
    large = replace(program, scratch_bytes=1 << 20)
    verify(changed(large, result=Operand.at(Pool.SCRATCH, 2 * values["work_bytes"])))
    refused(changed(large, result=Operand.at(Pool.SCRATCH, 64)), "'result' is written into work space")


def test_words_belong_to_one_instruction_or_to_several_that_are_the_same(honest) -> None:
    program = honest["lstm"]
    table = program.table.copy()
    table[1, 1] -= 1
    refused(replace(program, table=table), "neither begins where the one before it ends nor equals an earlier one")
    again = np.concatenate([program.table, program.table[:1]])
    verify(replace(program, table=again, labels=(*program.labels, program.labels[0])))
    another = next(row for row in program.table[1:] if row[0] != program.table[0, 0]).copy()
    another[1] = 0
    wrong = replace(program, table=np.concatenate([program.table, another[None]]), labels=(*program.labels, ""))
    refused(wrong, "nor equals an earlier one")
    refused(replace(program, words=np.append(program.words, 0)), "words that belong to no instruction")
    refused(replace(program, words=program.words[:-1]), "too few words")


def test_a_list_may_not_be_longer_than_there_are_words(honest) -> None:
    refused(changed(honest["binary"], rank=1 << 40), "'rank' is 1099511627776")
    refused(changed(honest["binary"], rank=31), "too few words|is ")


@pytest.mark.usefixtures("nothing_is_compiled")
@pytest.mark.parametrize(
    "name", ["matmul:packed.300x300", "executor:run", "doorbell:serve", "os:system", "movement:copy.4.4", "x" * 1000]
)
def test_a_kernel_that_is_not_declared_is_refused_before_anything_is_compiled(honest, name) -> None:
    program = honest["unary"]
    header = header_of(program) | {"kernels": [name]}
    arrays = {n: getattr(program, n) for n in ("table", "words", "constants", "state_initial")}
    with pytest.raises(QnnError, match="there is no kernel") as refusal:
        from_bytes(assemble(header, arrays))
    assert refusal.value.code is Code.COMMON_LOADING_BINARIES
    assert len(str(refusal.value)) < 300


def test_a_program_made_before_two_operands_were_exchanged_is_incompatible(honest, monkeypatch) -> None:
    content = to_bytes(honest["unary"])
    [kernel] = honest["unary"].kernels
    signature = KERNELS[kernel]
    output, x, *rest = signature.words
    exchanged = replace(signature, words=(x, output, *rest))
    monkeypatch.setitem(signatures.KERNELS, kernel, exchanged)
    with pytest.raises(QnnError, match=r"words of kernel .* Generate it again") as refusal:
        from_bytes(content)
    assert refusal.value.code is Code.COMMON_INCOMPATIBLE_BINARIES


def test_an_unknown_target_is_refused(honest) -> None:
    with pytest.raises(QnnError, match="must be one of"):
        from_bytes(to_bytes(replace(honest["unary"], target="z80")))


def test_an_instruction_is_described_by_the_names_of_its_words(honest) -> None:
    assert describe(honest["unary"], 0) == (
        "elementwise:unary.gelu_f32(output=Gelu+0, x=in0+0, elements=700, first=0, second=0) in 2 shares"
    )
    text = describe(honest["product with weights"], 0)
    assert "panels=constant+0" in text
    assert "table=none" in text
    assert "most=inf" in text


def repeating(program):
    """The first instruction that repeats others, and the pool number of the first cursor."""
    (first, *_) = program.repeats
    cursor = Pool.IO + len(program.inputs) + len(program.outputs)
    return first, cursor


def test_a_repetition_is_of_instructions_that_are_there(honest) -> None:
    program = honest["tiles of floats"]
    first, _ = repeating(program)
    refused(changed(program, first, instructions=len(program.table)), "but fewer follow")
    refused(changed(program, first, times=1 << 20), "'times' is")
    refused(changed(program, first, first_cursor=Pool.SCRATCH), "cursors that are pools")


def test_what_repeats_others_is_not_repeated(honest) -> None:
    program = honest["tiles of floats"]
    first, _ = repeating(program)
    start = int(program.table[first, 1])
    end = int(program.table[first + 1, 1])
    words, table = program.words, program.table.tolist()
    again = np.concatenate([words[:start], words[start:end], words[start:]])
    rows = [*table[:first], table[first], *([n, s + end - start, shares] for n, s, shares in table[first:])]
    nested = replace(program, words=again, table=np.array(rows), labels=("", *program.labels))
    refused(changed(nested, first, instructions=3), "is itself repeated")


def test_all_places_of_a_cursor_are_in_its_pool(honest) -> None:
    program = honest["tiles of floats"]
    first, _ = repeating(program)
    signature = KERNELS["tiles:repeat"]
    start = int(program.table[first, 1])
    values, _ = signature.decode(program.words.tolist(), start)
    strides = start + signature.at["pools"] + values["cursors"]
    for stride in (1 << 30, -(1 << 30)):
        words = program.words.copy()
        words[strides] = stride
        refused(replace(program, words=words), "takes bytes")
    words = program.words.copy()
    words[start + signature.at["pools"]] = 40
    refused(replace(program, words=words), "in no pool")
    words[start + signature.at["pools"]] = Pool.CONSTANT
    refused(replace(program, words=words), "'pools' is")


def test_a_cursor_is_known_where_it_is_moved_only(honest) -> None:
    program = honest["tiles of bytes"]
    first, cursor = repeating(program)
    index = next(index for index in range(first) if index not in program.varies)
    number = int(program.table[index, 0])
    word = next(name for name in KERNELS[program.kernels[number]].at if name in ("x", "a"))
    moved = Operand.at(cursor, 0)
    refused(changed(program, index, **{word: moved}), "is in no pool")


def test_inputs_are_not_written_through_a_cursor(honest) -> None:
    program = honest["tiles of floats"]
    first, cursor = repeating(program)
    for index in range(first + 1, len(program.table)):
        number, start, _ = program.table[index].tolist()
        at = KERNELS[program.kernels[number]].at
        source = next((name for name in ("x", "a") if name in at), None)
        read = 0 if source is None else int(program.words[place_of(program, index, start + at[source])])
        if read >> 48 < cursor:
            continue
        result = next(name for name in ("result", "y", "c", "destination", "output") if name in at)
        # A smaller result, so that it would fit there.
        few = changed(program, index, rows=1, **{result: read})
        refused(few, "is written, but is in")
        return
    raise AssertionError("no instruction reads an input through a cursor")


def varying(program):
    """The first instruction that changes others, where its words begin, and what they say."""
    index = program.varies[0]
    start = int(program.table[index, 1])
    return index, start, KERNELS[VARY].decode(program.words.tolist(), start)[0]


def changed_floats(program, start):
    """For each word that the instruction at `start` changes, whether it is a float: any value of a float is safe."""
    kernels = {begin: KERNELS[program.kernels[number]] for number, begin, _ in program.table.tolist()}
    return [
        any(isinstance(word, Real) and kernels[first].at[word.name] == place - first for word in kernels[first].words)
        for first, new_values in changes(program.words.tolist(), start).items()
        for place in new_values
    ]


def with_word(program, place, value):
    words = program.words.copy()
    words[place] = value
    return replace(program, words=words)


@pytest.mark.parametrize("name", ["tiles of bytes", "tiles of floats"])
def test_words_that_are_changed_are_held_to_what_they_are_changed_to(honest, name) -> None:
    program = honest[name]
    _, start, said = varying(program)
    values = start + 2 + 2 * len(said["firsts"])
    for number, is_float in enumerate(changed_floats(program, start)):
        if not is_float:
            with pytest.raises(Unsafe):
                verify(with_word(program, values + number, (1 << 47) - 1))


def test_only_words_of_one_instruction_are_changed_and_always_the_same(honest) -> None:
    program = honest["tiles of bytes"]
    _, start, said = varying(program)
    first, mask = start + 1, start + 1 + len(said["firsts"])
    refused(with_word(program, mask, said["masks"][0] | 1 << 62), "more or fewer words")
    for place, value in (
        (first, len(program.words)),
        (first, said["firsts"][0] + 1),
        (first, said["firsts"][1]),
        (mask, said["masks"][0] << 1),
        (mask, 1 << 40),
        (start, said["targets"] - 1),
    ):
        with pytest.raises(Unsafe):
            verify(with_word(program, place, value))


def test_an_instruction_is_changed_before_it_is_used(honest) -> None:
    program = honest["tiles of bytes"]
    index, _, said = varying(program)
    rows = program.table.tolist()
    used = next(i for i, row in enumerate(rows) if row[1] == said["firsts"][0])
    # Used once more before: by what the last run left in it.
    early = np.array([*rows[:index], rows[used], *rows[index:]])
    refused(replace(program, table=early, labels=("", *program.labels)), "neither begins|used as it is")


def test_what_changes_others_is_neither_repeated_nor_shared_nor_changed(honest) -> None:
    program = honest["tiles of bytes"]
    index, start, _ = varying(program)
    table = program.table.copy()
    table[index, 2] = 2
    refused(replace(program, table=table), "is itself repeated or shared")
    first, _ = repeating(program)
    rows = program.table.tolist()
    inside = [*rows[: first + 1], rows[index], *rows[first + 1 :]]
    nested = replace(program, table=np.array(inside), labels=("", *program.labels))
    refused(nested, "is itself repeated or shared")
    refused(with_word(program, start + 1, start), "not be changed|used as it is")


def test_a_box_and_its_class_are_one_number_of_32_bits(honest) -> None:
    """A larger one would be cut off, and lead outside the boxes; the memory of so many is there."""
    program = honest["detections of classes"]
    large = replace(program, scratch_bytes=1 << 36)
    operands = {
        name: Operand.at(Pool.SCRATCH, place << 33)
        for place, name in enumerate(("encodings", "scores", "anchors", "work"))
    }
    verify(changed(large, count=1 << 15, columns=(1 << 16) - 1, class_count=(1 << 16) - 1, **operands))
    refused(changed(large, count=1 << 15, columns=1 << 16, class_count=1 << 16, **operands), "count . class_count < 1")
