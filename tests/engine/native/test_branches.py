"""Threads share neighbouring instructions that do not depend on each other without waiting in between."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from support import tile_networks

from engine.native.harness import GuardedBuffer
from engine.native.test_tiles import Guarded
from isthmus.backends.seam import native
from isthmus.engine.native import executor
from isthmus.engine.native.program import BRANCHES, MAX_SHARES, VARY, Program
from isthmus.engine.native.serialization import from_bytes, to_bytes
from isthmus.engine.native.signatures import KERNELS
from isthmus.engine.native.timed import TimedExecutor
from isthmus.engine.native.verification import Unsafe, accesses, verify
from isthmus.errors import QnnError
from isthmus.graph import DataType, Graph, TensorType


def branching(threads: int = 2) -> Program:
    return native.prepare(tile_networks.branching(), threads).program


def groups(program: Program) -> list[range]:
    """The instructions that are shared together, by number."""
    words = program.words.tolist()
    return [range(index + 1, index + 1 + words[program.table[index, 1]]) for index in program.branches]


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_branches_compute_the_bits_of_one_thread_every_time(threads) -> None:
    alone, together = Guarded(branching(1)), Guarded(from_bytes(to_bytes(branching(threads))))
    assert groups(together.program)
    assert not alone.program.branches
    for seed in range(50):
        assert together.run(seed) == alone.run(seed)
    alone.close()
    together.close()


def test_shares_of_instructions_together_are_those_of_each() -> None:
    program = branching(3)
    for index, group in zip(program.branches, groups(program), strict=True):
        assert program.table[index, 2] == program.table[group.start : group.stop, 2].sum() > 3


def test_their_order_does_not_matter() -> None:
    program = branching(3)
    model = Guarded(program)
    expected = [model.run(seed) for seed in range(3)]
    model.close()
    for group in groups(program):
        for order in itertools.permutations(group):
            table = program.table.copy()
            table[group.start : group.stop] = program.table[list(order)]
            other = Guarded(replace(program, table=table))
            assert [other.run(seed) for seed in range(3)] == expected
            other.close()


def test_no_run_touches_anything_behind_the_control_block(monkeypatch) -> None:
    blocks = []

    def guarded(nbytes: int, alignment: int) -> SimpleNamespace:
        assert nbytes % alignment == 0
        blocks.append(GuardedBuffer(nbytes))
        return SimpleNamespace(array=blocks[-1].bytes, address=blocks[-1].address)

    monkeypatch.setattr(executor, "host", guarded)
    model = Guarded(branching(2))
    model.run(0)
    model.close()
    assert blocks


def test_an_aborted_run_computes_none_of_them() -> None:
    model = Guarded(branching(2))
    model.run(0)
    expected = model.outputs()
    word = ctypes.c_int64(1)
    for buffer in model.io[len(model.program.inputs) :]:
        buffer.bytes[:] = 0
    assert not model.executor.run_abortable(word)
    assert model.outputs() != expected
    model.close()


@pytest.mark.parametrize("name", ["a_step", "a_count_of_too_many", "other_shares", "branches_in_branches"])
def test_a_program_that_shares_what_depends_on_each_other_is_refused(name) -> None:
    program = branching()
    index, group = program.branches[0], groups(program)[0]
    table, words = program.table.copy(), program.words.copy()
    if name == "a_step":
        # The first of them is followed by itself, so both write the same bytes.
        table[group.start + 1] = table[group.start]
        words = words[: table[group.start + 2, 1]]
        table, labels = table[: group.start + 2], program.labels[: group.start + 2]
        rule = "accesses memory that one which is shared together with it writes|neither begins where"
    else:
        labels = program.labels
    if name == "a_count_of_too_many":
        words[table[index, 1]] = len(table)
        rule = "are shared together than there are|'instructions' is|accesses memory"
    elif name == "other_shares":
        table[index, 2] += 1
        rule = "have other shares than they have together"
    elif name == "branches_in_branches":
        table[group.start] = table[index]
        rule = "controls others, and is shared together with them"
    with pytest.raises(Unsafe, match=rule):
        verify(replace(program, table=table, words=words, labels=labels))


def test_more_shares_than_fit_into_a_ticket_are_refused() -> None:
    program = branching()
    table = program.table.copy()
    table[program.branches[0], 2] = MAX_SHARES + 1
    with pytest.raises(QnnError, match="more shares than there are threads"):
        from_bytes(to_bytes(replace(program, table=table)))


def test_a_profile_times_each_of_them_alone() -> None:
    model = Guarded(branching())
    timed = TimedExecutor(model.executor)
    timed.run()
    labels = [label for label, _ in timed.times()]
    assert BRANCHES not in labels
    assert {label for label in model.program.labels if label != BRANCHES} <= set(labels)
    timed.close()
    model.close()


def test_an_input_is_not_read_beside_an_output_that_clients_may_put_into_its_memory() -> None:
    graph = Graph("aliased")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (64, 4096))
    z = graph.create_tensor("z", TensorType.APP_WRITE, DataType.FLOAT_32, (64, 4096))
    for name, op, source in (("y", "Relu", x), ("w", "Tanh", z)):
        result = graph.create_tensor(name, TensorType.APP_READ, DataType.FLOAT_32, x.dims)
        graph.add_node(name, op, [source], [result])
    graph.finalize()
    program = native.prepare(graph, 2).program
    assert program.shareable_io >= {(0, 1)} or program.shareable_io >= {(1, 0)}
    assert not program.branches
    apart = replace(program, shareable_io=frozenset())
    one, other = accesses(apart)
    assert not one.conflict(other, apart)
    assert one.conflict(other, program)


def test_no_instruction_changes_how_many_are_shared_together() -> None:
    program = branching()
    index = program.branches[0]
    first = int(program.table[index, 1])
    # It is inserted at the front, so the words of all others move by as many as it has itself.
    own = len(KERNELS[VARY].encode({"firsts": [0], "masks": [1], "values": [2]}))
    words = KERNELS[VARY].encode({"firsts": [first + own], "masks": [1], "values": [2]})
    rows = program.table + np.array([0, len(words), 0])
    forgery = replace(
        program,
        kernels=(*program.kernels, VARY),
        table=np.concatenate([[[len(program.kernels), 0, 1]], rows]),
        words=np.concatenate([words, program.words]),
        labels=("", *program.labels),
    )
    with pytest.raises(Unsafe, match="its words may not be changed"):
        verify(forgery)
