"""A TFLite that is not the LiteRT that was tried: with the same structures it is taken, with others it is refused."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import pytest

from delegate.harness import plain
from isthmus.delegate import callbacks, foreign, library, probe_model, structures
from isthmus.delegate import interpreter as interpreters
from isthmus.errors import Code, QnnError

COUNT = len(probe_model.TENSORS)
CONTEXT_FIELDS = [name for name, _ in structures.Context._fields_]


class Foreign:
    """A context whose functions are not LiteRT's and whose tensors are copies of a live interpreter's.

    Parameters
    ----------
    more
        Fields that its structure of a tensor has before those that are known.
    functions
        Functions of the context; those that are not given end the process.
    """

    def __init__(self, more: tuple[tuple[str, Any], ...] = (), **functions: Any) -> None:
        self.interpreter = plain(probe_model.content())
        self.interpreter.allocate_tensors()
        real = structures.Context.from_address(interpreters._context(self.interpreter))

        class Tensor(ctypes.Structure):
            _fields_ = (*more, *structures.Tensor._fields_)

        self.tensors = (Tensor * COUNT)()
        for index, tensor in enumerate(self.tensors):
            ctypes.memmove(
                ctypes.addressof(tensor) + Tensor.type.offset,
                ctypes.addressof(real.tensors[index]), ctypes.sizeof(structures.Tensor),
            )  # fmt: skip
        self.nodes = [structures.Node() for _ in probe_model.NODES]
        self.registrations = [structures.Registration(builtin_code=3, version=1) for _ in probe_model.NODES]
        self.arrays = [structures.integer_array(range(len(self.nodes)))]
        for node, (_, inputs, outputs) in zip(self.nodes, probe_model.NODES, strict=True):
            node.inputs, node.outputs = self.array(*inputs), self.array(*outputs)
        self.thunks = structures.GetExecutionPlan(self.plan), structures.GetNodeAndRegistration(self.node)
        self.context = structures.Context(COUNT, get_execution_plan=self.thunks[0])
        self.context.get_node_and_registration = self.thunks[1]
        for name in ("replace_node_subsets", "report_error", "acquire_subgraph_context", "release_subgraph_context"):
            kind = dict(structures.Context._fields_)[name]
            setattr(self.context, name, functions.get(name) or kind(lambda *_: os.abort()))
        self.context.tensors = ctypes.cast(self.tensors, ctypes.POINTER(structures.Tensor))

    def array(self, *values: int) -> int:
        self.arrays.append(structures.integer_array(values))
        return ctypes.addressof(self.arrays[-1])

    def plan(self, context: int, found: Any) -> int:
        found[0] = ctypes.addressof(self.arrays[0])
        return structures.OK

    def node(self, context: int, number: int, node: Any, registration: Any) -> int:
        node[0] = ctypes.addressof(self.nodes[number])
        registration[0] = ctypes.addressof(self.registrations[number])
        return structures.OK

    def check(self) -> None:
        foreign.check(ctypes.addressof(self.context))


def refused(made: Foreign, match: str) -> None:
    with pytest.raises(QnnError, match=rf"is not the LiteRT .* differ: .*{match}") as caught:
        made.check()
    assert caught.value.code is Code.COMMON_PLATFORM_NOT_SUPPORTED


def test_the_litert_that_was_tried_is_known_by_its_functions() -> None:
    interpreter = plain(probe_model.content())
    address = interpreters._context(interpreter)
    foreign.check(address)
    pointer = ctypes.c_void_p.from_address(address + structures.Context.get_execution_plan.offset).value
    assert library.has_code_at(pointer)
    assert not library.has_code_at(ctypes.addressof(ctypes.c_int()))


def test_another_tflite_with_the_same_structures_is_taken() -> None:
    Foreign().check()


@pytest.mark.parametrize("kind", [ctypes.c_int64, ctypes.c_int64 * 2, ctypes.c_void_p * 5])
def test_another_tflite_whose_tensors_have_more_fields_is_refused(kind) -> None:
    refused(Foreign((("something new", kind),)), "tensor")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda made: setattr(made.context, "tensors_size", 1 << 60), "tensors"),
        (lambda made: setattr(made.context, "tensors_size", 0), "0 tensors"),
        (lambda made: setattr(made.tensors[1], "type", 99), "tensor 1 would be of type 99"),
        (lambda made: setattr(made.tensors[2], "allocation_type", 77), "kind 77"),
        (lambda made: setattr(made.tensors[0], "dims", 8), "the dimensions of tensor 0 would be at 0x8"),
        (lambda made: setattr(made.tensors[0], "dims", made.array(*range(99))), "would be 99 numbers"),
        (lambda made: setattr(made.nodes[0], "inputs", made.array(COUNT)), "would have tensor"),
        (lambda made: setattr(made.nodes[1], "outputs", 16), "the outputs of node 1 would be at 0x10"),
        (lambda made: setattr(made.registrations[0], "builtin_code", 1 << 20), "operator 1048576"),
        (lambda made: setattr(made.registrations[1], "version", 0), "version 0"),
        (lambda made: made.arrays.__setitem__(0, (ctypes.c_int * 1)(-4)), "-4"),
    ],
)  # fmt: skip
def test_structures_that_make_no_sense_are_refused_with_what_was_found(change, match) -> None:
    made = Foreign()
    change(made)
    refused(made, match)


@pytest.mark.parametrize("name", foreign._FUNCTIONS)
@pytest.mark.parametrize("address", ["nowhere", "data"])
def test_a_function_where_there_is_no_code_is_refused_before_anything_is_called(name, address) -> None:
    made = Foreign()
    field = ctypes.c_void_p.from_address(ctypes.addressof(made.context) + getattr(structures.Context, name).offset)
    field.value = 0x10 if address == "nowhere" else ctypes.addressof(made.context)
    refused(made, f"the function '{name}' would be at")


SHIFTS = {
    "a field first": ["new", *CONTEXT_FIELDS],
    "a field after the tensors": [*CONTEXT_FIELDS[:3], "new", *CONTEXT_FIELDS[3:]],
    "a field less": [name for name in CONTEXT_FIELDS if name != "impl"],
    "no function for errors": [name for name in CONTEXT_FIELDS if name != "report_error"],
    "functions in reverse order": CONTEXT_FIELDS[::-1],
}
"""The fields of TfLiteContext in layouts that another version of LiteRT could have, in order."""


@pytest.mark.parametrize("fields", SHIFTS.values(), ids=SHIFTS)
def test_a_delegate_calls_nothing_of_a_context_of_another_layout(fields, make, capfd) -> None:
    made, delegate = Foreign(), make("CPU")
    kinds = dict(structures.Context._fields_)

    class Other(ctypes.Structure):
        _fields_ = tuple((name, kinds.get(name, ctypes.c_void_p)) for name in fields)

    other, room = Other(), (ctypes.c_char * 4096)()
    for name in fields:
        if name in kinds:
            setattr(other, name, getattr(made.context, name))
    ctypes.memmove(room, ctypes.addressof(other), ctypes.sizeof(other))
    answer = ctypes.c_int64()
    address = ctypes.addressof(delegate._state.structure)
    # As LiteRT calls the delegate's first function, which prepares it.
    callbacks._THUNKS[0](ctypes.addressof(room), address, ctypes.addressof(answer))
    assert answer.value == 0
    assert "its structures differ" in capfd.readouterr().err


@pytest.mark.parametrize("address", [0, 8, 1 << 46])
def test_a_context_where_there_is_no_memory_is_refused(address) -> None:
    with pytest.raises(QnnError, match="a context would be at"):
        foreign.check(address)


def test_a_delegate_refuses_a_foreign_context_before_it_reads_a_node(make) -> None:
    delegate, made = make("CPU"), Foreign((("something new", ctypes.c_int64),))
    with pytest.raises(QnnError, match="its structures differ"):
        delegate._prepare(ctypes.addressof(made.context))
    assert delegate.lines == []
