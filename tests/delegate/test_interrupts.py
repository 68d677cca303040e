"""An interrupt at any place of a delegate's life: an error or the right answer, nothing left, and all goes on."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest
from frontends.tflite.test_control_flow import lstm
from support.interruption import Alarm, Interrupt, account, everywhere, left
from support.suites import LONG, long

from delegate.harness import chain, doubled, plain, run, with_delegate
from isthmus.delegate import BackendType, Options, QnnDelegate, callbacks, modify_graph_with_delegate
from isthmus.delegate.partition import Partition

VECTOR = np.float32([[1, 2, 3, 4]])
OUTSIDE = ("ai_edge_litert", "/frontends/", "/graph/", "/prepare/", "/planning/", "/lowering/", "/numpy/")
"""LiteRT's own part in Python, which keeps no promises; and what only computes, and has nothing to lose."""


class Attempts:
    """An action that LiteRT has a part in: what is raised in the middle of it comes out as an error of LiteRT's."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._deed = action
        self.failed = False

    def __call__(self) -> None:
        self.failed = True
        try:
            self._deed()
            self.failed = False
        except RuntimeError:
            pass


def life(backend: str) -> None:
    """Create, apply, invoke, destroy."""
    # Without a log, which would keep what is raised in its midst.
    delegate = QnnDelegate(Options(BackendType[backend]))
    interpreter = with_delegate(doubled(1, 4), delegate)
    assert (run(interpreter, VECTOR)[0] == 2 * VECTOR).all()
    del interpreter
    delegate.close()


@LONG
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("backend", "by", "most"), [("CPU", Interrupt, 40), ("LPAI", Alarm, 25), ("HTP", Interrupt, 3)]
)
def test_nothing_is_left_of_a_delegate_and_its_interpreter(backend, by, most) -> None:
    action = Attempts(lambda: life(backend))
    action()
    gc.collect()
    before, places = account(), 0
    for where in everywhere(action, by=by, outside=OUTSIDE, most=most):
        gc.collect()
        callbacks.sweep()
        assert not callbacks.partitions, where
        more = left(before)
        assert not more, f"{more}: interrupted at {where}"
        places += 1
    assert places >= most // 2
    life(backend)


@pytest.mark.parametrize(("backend", "most"), [("CPU", 50), long("LPAI", 150), long("HTP", 150)])
def test_an_invocation_fails_or_gives_the_right_answer_and_the_next_one_does(backend, most, make) -> None:
    interpreter = with_delegate(doubled(1, 4), make(backend))
    steps = iter(range(10**6))
    invoke = Attempts(interpreter.invoke)
    outcomes = set()

    def answer() -> np.ndarray:
        return interpreter.get_tensor(1)

    x = np.zeros((1, 4), np.float32)
    interpreter.set_tensor(0, x)
    for where in everywhere(invoke, outside=OUTSIDE, most=most):
        outcomes.add(invoke.failed)
        if not invoke.failed:
            np.testing.assert_array_equal(answer(), 2 * x, err_msg=where)
        x = np.full((1, 4), next(steps), np.float32)
        np.testing.assert_array_equal(run(interpreter, x)[0], 2 * x, err_msg=where)
        x = x + 0.5
        interpreter.set_tensor(0, x)
    assert True in outcomes


@pytest.mark.parametrize(("backend", "most"), [("LPAI", 60), long("HTP", 150)])
def test_an_invocation_changes_all_variables_or_none(backend, most, make) -> None:
    interpreter, random = with_delegate(lstm(True), make(backend)), np.random.default_rng(0)
    entry, variables = interpreter.get_input_details()[0], (13, 14)
    before: list[np.ndarray] = []
    outcomes = set()

    def prepare() -> None:
        interpreter.set_tensor(entry["index"], random.standard_normal(entry["shape"]).astype(np.float32))
        before[:] = [interpreter.get_tensor(index) for index in variables]

    for where in everywhere(Attempts(interpreter.invoke), outside=OUTSIDE, most=most, prepare=prepare):
        changed = {(old != interpreter.get_tensor(i)).any() for i, old in zip(variables, before, strict=True)}
        assert len(changed) == 1, where
        outcomes |= changed
    assert outcomes == {True, False}


@pytest.mark.parametrize("backend", ["CPU", "LPAI"])
def test_a_resize_that_was_interrupted_is_done_by_the_next_allocation(backend, make) -> None:
    interpreter = plain(doubled(1, 4), experimental_delegates=[make(backend)])
    shapes = [(1, 4), (2, 4)]

    def resize() -> None:
        shapes.reverse()
        interpreter.resize_tensor_input(0, shapes[0])
        interpreter.allocate_tensors()

    places = 0
    for where in everywhere(Attempts(resize), outside=OUTSIDE, most=60):
        rows = 1 + places % 3
        interpreter.resize_tensor_input(0, (rows, 4))
        interpreter.allocate_tensors()
        x = np.random.default_rng(places).random((rows, 4), np.float32)
        np.testing.assert_array_equal(run(interpreter, x)[0], 2 * x, err_msg=where)
        places += 1
    assert places > 30


def test_an_interpreter_is_delegated_or_as_it_was_and_the_delegate_can_be_deleted(make) -> None:
    content = chain("NEG", "LOG_SOFTMAX", "ABS")
    delegate = make()
    current = []

    def renew() -> None:
        current[:] = [plain(content)]
        current[0].allocate_tensors()

    def apply() -> None:
        modify_graph_with_delegate(current[0], delegate)

    renew()
    apply()
    expected = run(current[0], VECTOR)[0]
    places = 0
    renew()
    for where in everywhere(Attempts(apply), outside=OUTSIDE, most=120):
        current[0].allocate_tensors()
        np.testing.assert_allclose(run(current[0], VECTOR)[0], expected, rtol=1e-6, err_msg=where)
        renew()
        places += 1
    assert places > 50
    current.clear()
    gc.collect()
    delegate.close()


def test_a_node_whose_end_was_not_reported_keeps_no_delegate(make, monkeypatch) -> None:
    delegate = make()
    held = [with_delegate(doubled(1, 4), delegate)]
    run(held[0], VECTOR)

    def interrupted(*_: object) -> None:
        raise Interrupt

    with monkeypatch.context() as late:
        late.setattr(type(delegate), "_give_up", interrupted)
        held.clear()
        gc.collect()
    assert delegate.partitions
    delegate.close()
    assert not callbacks.partitions
    assert delegate.stats.executions == 1


def test_a_node_that_its_interpreter_never_got_keeps_no_delegate(make, monkeypatch) -> None:
    delegate = make()
    interpreter = plain(doubled(1, 4))
    take = type(delegate)._take

    def lost(*arguments: object) -> Partition:
        take(*arguments)
        raise Interrupt

    with monkeypatch.context() as late:
        late.setattr(type(delegate), "_take", lost)
        with pytest.raises(RuntimeError, match=r"Interrupt(?s:.*)not all of its nodes were taken over"):
            modify_graph_with_delegate(interpreter, delegate)
    interpreter.allocate_tensors()
    assert (run(interpreter, VECTOR)[0] == 2 * VECTOR).all()
    assert delegate.stats.executions == 0
    delegate.close()
    assert not callbacks.partitions
