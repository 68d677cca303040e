"""Pipelined iterations on several threads compute what one thread does, without deadlock and in arenas of their own."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import replace

import numpy as np
import pytest
from support import tile_networks

from engine.native.test_tiles import Guarded
from isthmus.backends.seam import native
from isthmus.engine.native.program import Operand, Program
from isthmus.engine.native.serialization import from_bytes, to_bytes
from isthmus.engine.native.signatures import KERNELS
from isthmus.engine.native.signatures.tiles import PIPELINE
from isthmus.engine.native.verification import Unsafe, verify
from isthmus.errors import QnnError
from isthmus.prepare.schedule import Pool
from isthmus.prepare.tiling import ScratchLimit

RUNS = 100


def pipelined_program(bytes_: bool = False, threads: int = 2) -> Program:
    """Prepare a program with pipelined iterations, within a limit that makes this target's search choose them."""
    graph = tile_networks.squeezed(bytes_)
    for limit in ("40%", "50%", "60%", "70%"):
        program = native.prepare(graph, threads, limit=ScratchLimit.of(limit)).program
        if program.pipelines:
            return program
    raise AssertionError("no limit leads to pipelining")


@pytest.fixture(scope="module")
def expected():
    """Return what the network computes as a whole, of floats and of bytes."""
    found = []
    for bytes_ in (False, True):
        model = Guarded(native.prepare(tile_networks.squeezed(bytes_)).program)
        found.append([model.run(0), model.run(1)])
        model.close()
    return found


@pytest.mark.parametrize(("bytes_", "threads"), [(False, 2), (False, 3), (False, 4), (True, 2), (True, 3)])
def test_pipelined_iterations_compute_the_same_bits_every_time(expected, bytes_, threads) -> None:
    program = from_bytes(to_bytes(pipelined_program(bytes_, threads)))
    model = Guarded(program)
    for _ in range(RUNS):
        assert [model.run(0), model.run(1)] == expected[bytes_]
    model.close()


def test_iterations_that_no_other_thread_runs_are_run_by_the_caller(expected) -> None:
    model = Guarded(pipelined_program(threads=3))
    model.close()
    assert [model.run(0), model.run(1)] == expected[False]


def test_a_run_that_is_aborted_in_an_iteration_ends_and_does_not_disturb_the_next(expected) -> None:
    model = Guarded(pipelined_program())
    word = ctypes.c_int64()
    ended = []
    for _ in range(RUNS):
        word.value = 0
        aborting = threading.Thread(target=lambda: setattr(word, "value", 1))
        aborting.start()
        ended.append(model.executor.run_abortable(word))
        aborting.join()
    word.value = 1
    assert not model.executor.run_abortable(word)
    assert [model.run(0), model.run(1)] == expected[False]
    model.close()


def test_profiles_run_the_instructions_of_an_iteration_one_by_one(expected) -> None:
    program = pipelined_program()
    model = Guarded(program)
    for index in range(len(program.table)):
        model.executor.step(index)
    assert model.outputs() != expected[False][0], "nothing but one iteration was computed"
    assert any(any(output) for output in model.outputs()), "that iteration was computed"
    assert model.run(0) == expected[False][0]
    model.close()


def test_tensors_private_to_an_iteration_are_in_an_arena_of_its_thread() -> None:
    program = pipelined_program(threads=2)
    (pipeline,) = program.pipelines
    words = program.words.tolist()
    values, _ = PIPELINE.decode(words, int(program.table[pipeline, 1]))
    body = range(pipeline + 1, pipeline + 1 + values["instructions"])
    offsets = [
        operand.offset
        for index in body
        for operand in operands(program, index)
        if operand.pool == values["first_cursor"]
    ]
    assert len(offsets) >= 4
    assert max(offsets) - min(offsets) < values["arena_bytes"]
    assert min(offsets) + 2 * values["arena_bytes"] <= program.scratch_bytes
    assert all(program.table[index, 2] == 1 for index in body)
    # The next iteration may begin long before this one ends.
    assert values["lead"] < values["instructions"] // 2


def operands(program: Program, index: int) -> list[Operand]:
    number, start, _ = program.table[index].tolist()
    values, _ = KERNELS[program.kernels[number]].decode(program.words.tolist(), start)
    return [value for value in values.values() if isinstance(value, Operand) and value]


def forged(program: Program, place: int, value: int) -> Program:
    """The program with another word."""
    words = program.words.copy()
    words[place] = value
    return replace(program, words=words)


def test_iterations_in_arenas_that_are_too_small_are_refused() -> None:
    program = pipelined_program()
    (pipeline,) = program.pipelines
    place = int(program.table[pipeline, 1]) + PIPELINE.at["arena_bytes"]
    verify(program)
    with pytest.raises(Unsafe, match=r"bytes of arenas that have"):
        verify(forged(program, place, int(program.words[place]) // 2))
    with pytest.raises(Unsafe, match="SCRATCH"):
        verify(forged(program, place, program.scratch_bytes))


def test_iterations_that_write_into_the_arena_of_another_thread_are_refused() -> None:
    # Its convolutions have work space too.
    program = native.prepare(tile_networks.chain(6), 2, limit=ScratchLimit.of("60%")).program
    pipeline = program.pipelines[0]
    values, _ = PIPELINE.decode(program.words.tolist(), int(program.table[pipeline, 1]))
    refused = []
    for place, word in enumerate(program.words.tolist()):
        if Operand(word).pool == values["first_cursor"]:
            # All threads use the bytes in the arena of the first thread.
            try:
                verify(forged(program, place, Operand.at(Pool.SCRATCH, Operand(word).offset)))
            except Unsafe as problem:
                refused.append(str(problem))
    assert any("arenas that may belong to another thread" in text for text in refused)
    assert any("work space of several threads" in text for text in refused)


def test_an_instruction_of_an_iteration_is_not_divided_between_threads() -> None:
    program = pipelined_program()
    (pipeline,) = program.pipelines
    table = program.table.copy()
    table[pipeline + 1, 2] = 2
    with pytest.raises(Unsafe, match="inside a pipelined repetition"):
        verify(replace(program, table=table))
    table = program.table.copy()
    table[pipeline, 2] = 1
    with pytest.raises(Unsafe, match="repeats"):
        verify(replace(program, table=table))


def test_iterations_on_more_threads_than_a_program_has_are_refused() -> None:
    program = pipelined_program()
    table = program.table.copy()
    table[program.pipelines[0], 2] = 3  # its shares
    with pytest.raises(QnnError, match="more shares than there are threads"):
        from_bytes(to_bytes(replace(program, table=table)))


def test_one_thread_repeats_tiles_without_pipelining() -> None:
    program = native.prepare(tile_networks.squeezed(False), 1, limit=ScratchLimit.of("30%")).program
    assert program.repeats
    assert not program.pipelines
    assert np.all(program.table[:, 2] == 1)


def test_an_arena_has_the_work_space_of_one_thread() -> None:
    # Every convolution lists addresses in work space, for each thread that shares it.
    one, several = (native.prepare(tile_networks.chain(6), threads, limit=ScratchLimit.of("60%")) for threads in (1, 2))
    assert several.program.pipelines
    assert several.program.scratch_bytes < 1.5 * one.program.scratch_bytes


def test_the_estimate_of_a_region_counts_the_arenas_of_all_threads() -> None:
    split = native.prepare(tile_networks.squeezed(False), 4, limit=ScratchLimit.of("40%"))
    assert split.program.pipelines
    (region,) = split.plan.regions
    assert split.plan.bytes * 0.7 < region.peak_bytes < split.plan.bytes * 1.5
