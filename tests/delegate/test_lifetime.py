"""Delegates, interpreters and threads in any company and order: errors where there must be, never a crash or a leak."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support.exits import KEEPING
from support.growth import growth
from support.suites import long
from support.waiting import run_in_threads

from delegate.harness import LoggingDelegate, chain, doubled, plain, run, with_delegate
from isthmus.delegate import BackendType, Options, QnnDelegate, callbacks, modify_graph_with_delegate
from isthmus.errors import Code, QnnError
from isthmus.memory import holds

VECTOR = np.float32([[1, 2, 3, 4]])
SOURCE = Path(__file__).parents[2] / "src"


def cycle(backend: str) -> None:
    """Create, invoke, destroy."""
    delegate = LoggingDelegate(backend)
    interpreter = with_delegate(doubled(1, 4), delegate)
    assert (run(interpreter, VECTOR)[0] == 2 * VECTOR).all()
    del interpreter
    delegate.close()


@contextmanager
def cycles(backend: str) -> Iterator[Callable[[], None]]:
    yield lambda: cycle(backend)
    gc.collect()
    assert not callbacks.partitions
    assert not holds.present()


@contextmanager
def invocations(backend: str) -> Iterator[Callable[[], None]]:
    interpreter = with_delegate(doubled(1, 4), LoggingDelegate(backend))
    yield interpreter.invoke


@pytest.mark.parametrize(("backend", "rounds"), [("CPU", 60), long("LPAI", 30), long("HTP", 3)])
def test_creating_invoking_and_destroying_leaves_nothing(backend, rounds) -> None:
    left = growth(__file__, "cycles", backend, rounds=rounds)
    assert (left.descriptors, left.threads, left.records) == (0, 0, {})
    assert left.objects < 3
    assert left.resident < 1 << 20


@pytest.mark.parametrize(("backend", "rounds"), [("CPU", 3000), long("HTP", 1000)])
def test_invoking_leaves_nothing(backend, rounds) -> None:
    left = growth(__file__, "invocations", backend, rounds=rounds)
    assert (left.descriptors, left.threads, left.records) == (0, 0, {})
    assert left.objects < 3
    assert left.resident < 1 << 20


def test_a_delegate_outlives_its_interpreters_and_is_not_deleted_before(make) -> None:
    delegate = make()
    one, two = (with_delegate(doubled(1, 4), delegate) for _ in range(2))
    for rest in (2, 1):
        with pytest.raises(QnnError, match=f"an interpreter still runs {rest} of its nodes") as caught:
            delegate.close()
        assert caught.value.code is Code.COMMON_OPERATION_NOT_PERMITTED
        assert (run(two, VECTOR)[0] == 2 * VECTOR).all()
        one = None
        gc.collect()
    two = None
    gc.collect()
    delegate.close()
    delegate.close()
    assert one is None
    assert two is None


@pytest.mark.parametrize("backend", ["CPU", "LPAI"])
def test_nodes_of_a_delegate_that_was_ended_under_them_fail(backend) -> None:
    delegate = LoggingDelegate(backend)
    interpreter = with_delegate(doubled(1, 4), delegate)
    run(interpreter, VECTOR)
    delegate.end()
    for action in (interpreter.invoke, interpreter.allocate_tensors, interpreter.invoke):
        with pytest.raises(RuntimeError, match=r"it has been freed|not ready"):
            action()
        interpreter.resize_tensor_input(0, (2, 4))
    del interpreter, action
    gc.collect()
    delegate.close()
    assert not callbacks.partitions


def test_a_deleted_delegate_is_refused_everywhere(make) -> None:
    delegate = make()
    delegate.close()
    with pytest.raises(QnnError, match="it has been deleted"):
        plain(doubled(1, 4), experimental_delegates=[delegate])
    interpreter = plain(doubled(1, 4))
    with pytest.raises(QnnError, match="it has been deleted"):
        modify_graph_with_delegate(interpreter, delegate)
    interpreter.allocate_tensors()
    interpreter.invoke()


@pytest.mark.parametrize("wrong", [None, 7, object()])
def test_what_is_no_delegate_or_no_interpreter_is_refused(wrong, make) -> None:
    with pytest.raises(QnnError, match="must be a QnnDelegate"):
        modify_graph_with_delegate(plain(doubled(1, 4)), wrong)
    with pytest.raises(QnnError, match="must be an ai_edge_litert Interpreter"):
        modify_graph_with_delegate(wrong, make())


def test_an_interpreter_keeps_a_delegate_without_other_references() -> None:
    delegate = LoggingDelegate()
    alive = weakref.ref(delegate)
    interpreter = with_delegate(doubled(1, 4), delegate)
    backend = delegate._state.backend
    del delegate
    gc.collect()
    assert alive() is not None
    assert (run(interpreter, VECTOR)[0] == 2 * VECTOR).all()
    del interpreter
    gc.collect()
    assert alive() is None
    assert not backend.alive


def test_an_interpreter_keeps_a_delegate_that_it_was_given_later() -> None:
    delegate = QnnDelegate(Options(BackendType.CPU))
    interpreter = plain(doubled(1, 4))
    interpreter.allocate_tensors()
    modify_graph_with_delegate(interpreter, delegate)
    seen = weakref.ref(delegate)
    del delegate
    gc.collect()
    # The interpreter's nodes keep the delegate alive too, as long as there are any.
    assert seen() is not None
    assert interpreter._delegates == [seen()]
    assert (run(interpreter, VECTOR)[0] == 2 * VECTOR).all()
    del interpreter
    gc.collect()
    assert seen() is None


def test_an_array_of_a_tensor_keeps_nodes_going_after_their_interpreter(make) -> None:
    delegate = make()
    interpreter = with_delegate(doubled(1, 4), delegate)
    run(interpreter, VECTOR)
    array = interpreter.tensor(1)()
    del interpreter
    gc.collect()
    with pytest.raises(QnnError, match="still runs"):
        delegate.close()
    np.testing.assert_array_equal(array, 2 * VECTOR)
    del array
    gc.collect()
    delegate.close()


def test_two_delegates_share_an_interpreter(make) -> None:
    from isthmus.delegate import SkipOptions

    first = make("CPU", skip_options=SkipOptions(skip_delegate_ops=["ABS"]))
    second = make("HTP")
    interpreter = plain(chain("NEG", "ABS", "NEG"), experimental_delegates=[first, second])
    interpreter.allocate_tensors()
    np.testing.assert_array_equal(run(interpreter, VECTOR)[0], -VECTOR)
    assert (first.taken, second.taken) == ([(2, 3, 2)], [(1, 3, 1)])
    assert second.delegations[0].staying.keys() == {3, 4}, "they belong to another delegate"
    assert (first.stats.executions, second.stats.executions) == (2, 1)
    del interpreter


@pytest.mark.parametrize("backend", ["CPU", "HTP", "LPAI"])
def test_interpreters_of_one_delegate_run_in_threads(backend, make) -> None:
    delegate = make(backend)
    interpreters = [with_delegate(chain("NEG", "ABS", "NEG"), delegate) for _ in range(4)]
    wrong = []

    def work(number: int) -> None:
        for step in range(100):
            x = np.full((1, 4), number * 1000 + step, np.float32)
            if not (run(interpreters[number], x)[0] == -x).all():
                wrong.append((number, step))

    run_in_threads(work, range(4))
    assert not wrong
    assert delegate.stats.executions == 400
    interpreters.clear()


def test_delegates_are_made_and_ended_in_threads() -> None:
    problems = []

    def work() -> None:
        try:
            for _ in range(5):
                cycle("CPU")
        except BaseException as problem:
            problems.append(problem)

    run_in_threads(lambda _: work(), range(4))
    assert not problems


# -- the end of a process ----------------------------------------------------------------------------------------------

EVERYTHING = """
    import gc, sys
    sys.path[:0] = {paths!r}
    import numpy as np
    from delegate.harness import *
    from isthmus.delegate import *

    def go(backend):
        delegate = LoggingDelegate(backend)
        interpreter = with_delegate(doubled(1, 4), delegate)
        run(interpreter, np.ones((1, 4), np.float32))
        return delegate, interpreter, delegate.alloc_custom_mem(64) if backend == "HTP" else None
"""


def ends(code: str, last: str = "") -> None:
    paths = [str(SOURCE), str(Path(__file__).parents[1])]
    program = textwrap.dedent(EVERYTHING).format(paths=paths) + textwrap.dedent(code) + last
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program], capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_process_that_releases_everything_prints_nothing() -> None:
    ends("""
        for backend in ("CPU", "HTP", "LPAI"):
            delegate, interpreter, memory = go(backend)
            del interpreter
            delegate.free_custom_mem(memory)
            delegate.close()
        delegate, interpreter, _ = go("CPU")
        del delegate, interpreter
        delegate, interpreter, _ = go("CPU")
        del interpreter, delegate
        gc.collect()
        print("done")
    """)


@pytest.mark.parametrize("last", ["", KEEPING], ids=["", "keeping"])
def test_a_process_that_exits_with_everything_alive_prints_nothing(last) -> None:
    ends(
        """
        import atexit
        kept = [go(backend) for backend in ("CPU", "HTP", "LPAI")]
        in_a_circle = [go("CPU")]
        in_a_circle.append(in_a_circle)
        in_a_circle[0][1].delegate = in_a_circle
        atexit.register(lambda: kept[0][1].invoke())
        print("done")
    """,
        last,
    )


def test_the_base_install_does_not_need_litert() -> None:
    code = "import sys; sys.modules['ai_edge_litert'] = None\nimport isthmus, isthmus.tools.cli, isthmus.delegate"
    code += "\nfrom isthmus.delegate import *"
    code += "\ntry: QnnDelegate(Options(BackendType.CPU))\nexcept Exception as problem: print(problem)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)}
    )
    assert "Install isthmus[delegate]" in done.stdout, done.stderr


def test_a_delegate_is_a_context_manager() -> None:
    with QnnDelegate(Options(BackendType.CPU)) as delegate:
        assert delegate.backend_name == "cpu"
    with pytest.raises(QnnError, match="deleted"):
        delegate._get_native_delegate_pointer()
