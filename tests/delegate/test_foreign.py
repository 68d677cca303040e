"""A TFLite that is not the LiteRT that was tried: with the same structures it is taken, with others it is refused."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from delegate_harness import plain

from isthmus.delegate import foreign, library, probe_model, structures
from isthmus.delegate import interpreter as interpreters
from isthmus.errors import Code, QnnError

COUNT = len(probe_model.TENSORS)


class Foreign:
    """A context whose functions are not LiteRT's and whose tensors are copies of a live interpreter's.

    Parameters
    ----------
    more
        Fields that its structure of a tensor has before those that are known.
    """

    def __init__(self, more: tuple[tuple[str, Any], ...] = ()) -> None:
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


def test_the_litert_that_was_tried_is_known_by_its_functions():
    interpreter = plain(probe_model.content())
    address = interpreters._context(interpreter)
    foreign.check(address)
    pointer = ctypes.c_void_p.from_address(address + structures.Context.get_execution_plan.offset).value
    assert library.has_code_at(pointer)
    assert not library.has_code_at(ctypes.addressof(ctypes.c_int()))


def test_another_tflite_with_the_same_structures_is_taken():
    Foreign().check()


@pytest.mark.parametrize("kind", [ctypes.c_int64, ctypes.c_int64 * 2, ctypes.c_void_p * 5])
def test_another_tflite_whose_tensors_have_more_fields_is_refused(kind):
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
def test_structures_that_make_no_sense_are_refused_with_what_was_found(change, match):
    made = Foreign()
    change(made)
    refused(made, match)


@pytest.mark.parametrize("address", [0, 8, 1 << 46])
def test_a_context_where_there_is_no_memory_is_refused(address):
    with pytest.raises(QnnError, match="a context would be at"):
        foreign.check(address)


def test_a_delegate_refuses_it_before_it_reads_a_node(make):
    delegate, made = make("CPU"), Foreign((("something new", ctypes.c_int64),))
    with pytest.raises(QnnError, match="its structures differ"):
        delegate._prepare(ctypes.addressof(made.context))
    assert delegate.lines == []
