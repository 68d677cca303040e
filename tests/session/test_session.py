"""A session runs a model in place or on copies, in the file's own names and shapes, and refuses bad input whole."""

import gc
import os
import sys
import threading
import time

import numpy as np
import pytest
from support import oracles, tiny
from support.processes import stop
from support.waiting import PATIENCE, run_in_threads

import isthmus
from isthmus import Code, QnnError
from isthmus.backends.seam.deadlines import Deadlines
from isthmus.engine.native import lower

ARM = {"backend": "lpai", "config": {"lpai_backend": {"target_env": "arm"}}}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.convolution(tmp_path_factory.mktemp("models") / "conv.onnx")


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    return tiny.gate(tmp_path_factory.mktemp("models") / "gate.onnx")


def reference(path, feeds):
    return list(oracles.onnx_answers(path, feeds).values())


def image(seed=0):
    return np.random.default_rng(seed).standard_normal((1, 3, 8, 8)).astype(np.float32)


def test_running_in_place_reads_and_writes_the_views(model) -> None:
    with isthmus.Session(model) as session:
        assert session.inputs["x"].shape == (1, 3, 8, 8), "an NCHW input stays NCHW for the user"
        session.inputs["x"][...] = image()
        assert session.run() == {}
        np.testing.assert_allclose(session.outputs["y"], reference(model, {"x": image()})[0], rtol=1e-5, atol=1e-5)
        assert session.stats.copied_bytes == 0


def test_running_on_feeds_returns_copies_and_counts_them(model) -> None:
    with isthmus.Session(model) as session:
        first = session.run({"x": image(1)})
        second = session.run({"x": image(2)})
        assert not np.array_equal(first["y"], second["y"])
        np.testing.assert_allclose(first["y"], reference(model, {"x": image(1)})[0], rtol=1e-5, atol=1e-5)
        assert session.stats.runs == 2
        assert session.stats.copied_in_bytes == 2 * image().nbytes
        assert session.stats.copied_out_bytes == 2 * first["y"].nbytes


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_results_do_not_depend_on_the_number_of_threads(model, threads, monkeypatch) -> None:
    monkeypatch.setattr(lower, "is_shared", lambda step: True)
    with isthmus.Session(model) as one, isthmus.Session(model, threads=threads) as many:
        assert (many.graph.driver.program.table[:, 2] == threads).all()
        for seed in range(5):
            assert np.array_equal(one.run({"x": image(seed)})["y"], many.run({"x": image(seed)})["y"])


def test_dynamic_dimensions_are_fixed_by_the_caller_or_to_one(tmp_path) -> None:
    path = tiny.convolution(tmp_path / "dynamic.onnx", height="h")
    with isthmus.Session(path) as session:
        assert session.inputs["x"].shape == (1, 3, 1, 8)
    with isthmus.Session(path, shapes={"x": (1, 3, 5, 8)}) as session:
        assert session.outputs["y"].shape == (1, 4, 5, 8)


def test_an_input_can_be_fixed_as_a_constant(gate) -> None:
    shift = np.linspace(0, 1, 1000, dtype=np.float32).reshape(1, 1000)
    x = np.ones((1, 1000), np.float32)
    with isthmus.Session(gate, constants={"s": shift}) as session:
        assert list(session.inputs) == ["x"]
        got = session.run({"x": x})["y"]
    np.testing.assert_allclose(got, reference(gate, {"x": x, "s": shift})[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("feeds", "words"),
    [
        ({}, "'x'.*missing"),
        ({"x": image(), "z": image()}, "'z'.*no such input; it has 'x'"),
        ({"x": image().astype(np.float64)}, "must be float32, is float64"),
        ({"x": image()[0]}, r"must have shape \(1, 3, 8, 8\), has \(3, 8, 8\)"),
        ({"x": np.full((1, 3, 8, 8), np.nan, np.float32)}, "NaN"),
        ({"x": "text"}, "must be float32"),
        ({"x": None}, "must be float32"),
        (image(), "must map input names to arrays"),
    ],
)
def test_bad_feeds_are_refused_with_a_sentence(model, feeds, words) -> None:
    with isthmus.Session(model) as session, pytest.raises(QnnError, match=words) as refusal:
        session.run(feeds)
    assert refusal.value.code is Code.GRAPH_INVALID_TENSOR


def test_a_refused_run_writes_nothing(gate) -> None:
    good = np.ones((1, 1000), np.float32)
    with isthmus.Session(gate) as session:
        before = session.run({"x": good, "s": good})
        with pytest.raises(QnnError):
            session.run({"x": 2 * good, "s": good[0]})
        assert (session.inputs["x"] == 1).all(), "the first feed must not be written when the second is refused"
        assert np.array_equal(session.outputs["y"], before["y"])
        assert session.stats.runs == 1


def test_nan_passes_when_allowed(gate) -> None:
    x = np.zeros((1, 1000), np.float32)
    x[0, 3] = np.nan
    with isthmus.Session(gate) as session:
        y = session.run({"x": x, "s": np.zeros_like(x)}, allow_nan=True)["y"]
    assert np.isnan(y[0, 3])
    assert np.isfinite(np.delete(y, 3)).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "abacus"}, "must be one of"),
        ({"threads": 0}, "number of threads"),
        ({"threads": 1000}, "number of threads"),
        ({"threads": 2.0}, "number of threads"),
        ({"threads": "2"}, "number of threads"),
        ({"shapes": 5}, "must map input names"),
        ({"shapes": {"x": "wide"}}, "not a list of dimensions"),
        ({"shapes": {"x": 3}}, "not a list of dimensions"),
        ({"shapes": {"x": (1, 3, -8, 8)}}, "must be positive"),
        ({"shapes": {"nobody": (1,)}}, "nobody"),
        ({"constants": {"nobody": np.zeros(1)}}, "nobody"),
    ],
)
def test_invalid_options_are_refused(model, options, words) -> None:
    with pytest.raises(QnnError, match=words):
        isthmus.Session(model, **options)


def test_a_closed_session_refuses_to_run_and_keeps_its_views(model) -> None:
    session = isthmus.Session(model)
    result = session.run({"x": image()})["y"]
    outputs = session.outputs["y"]
    session.close()
    session.close()
    gc.collect()
    assert np.array_equal(outputs, result)
    with pytest.raises(QnnError, match="closed") as refusal:
        session.run()
    assert refusal.value.code is Code.GRAPH_INVALID_HANDLE


def test_sessions_are_independent_across_threads(model) -> None:
    wrong = []

    def work(seed):
        expected = reference(model, {"x": image(seed)})[0]
        with isthmus.Session(model, threads=2) as session:
            for _ in range(20):
                if not np.allclose(session.run({"x": image(seed)})["y"], expected, rtol=1e-5, atol=1e-5):
                    wrong.append(seed)

    run_in_threads(work, range(4))
    assert not wrong


def test_one_session_may_be_shared_by_threads(model) -> None:
    expected = [reference(model, {"x": image(seed)})[0] for seed in range(4)]
    wrong = []
    with isthmus.Session(model) as session:

        def work(seed):
            for _ in range(50):
                if not np.allclose(session.run({"x": image(seed)})["y"], expected[seed], rtol=1e-5, atol=1e-5):
                    wrong.append(seed)

        run_in_threads(work, range(4))
    assert not wrong


@pytest.mark.parametrize("threads", [1, 2])
def test_a_forked_process_makes_a_session_of_its_own(model, threads) -> None:
    if threads == 2 and sys.version_info >= (3, 12):
        pytest.skip("newer Pythons warn of forking beside threads")
    with isthmus.Session(model, threads=threads) as session:
        expected = [session.run({"x": image(seed)})["y"] for seed in range(3)]
        children = []
        for seed in range(3):
            child = os.fork()
            if child == 0:
                with isthmus.Session(model, threads=threads) as own:
                    same = all(np.array_equal(own.run({"x": image(seed)})["y"], expected[seed]) for _ in range(200))
                os._exit(0 if same else 1)
            children.append(child)
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]


def test_a_kept_engine_run_is_refused_after_the_session_is_closed(model) -> None:
    session = isthmus.Session(model)
    session.inputs["x"][...] = image()
    outputs, run = session.outputs["y"], session.engine_run
    run()
    expected = outputs.copy()
    session.close()
    del session
    gc.collect()
    with pytest.raises(QnnError, match="it has been freed"):
        run()
    assert np.array_equal(outputs, expected), "views stay readable"


def test_the_engine_is_one_native_call(model) -> None:
    with isthmus.Session(model) as session:
        session.inputs["x"][...] = image()
        session.engine_run()
        np.testing.assert_allclose(session.outputs["y"], reference(model, {"x": image()})[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("config", [{}, {"backend": "htp"}, ARM], ids=["cpu", "htp", "lpai-arm"])
def test_a_session_can_be_closed_while_another_thread_runs_it(model, config) -> None:
    session = isthmus.Session(model, **config)
    problems, begun = [], threading.Event()

    def work():
        try:
            while True:
                session.run({"x": image()})
                begun.set()
        except QnnError as problem:
            problems.append(problem.code)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert begun.wait(PATIENCE)
    session.close()
    thread.join(PATIENCE)
    assert problems == [Code.GRAPH_INVALID_HANDLE]


def test_a_session_whose_accelerator_is_silent_can_be_closed(model) -> None:
    session = isthmus.Session(model, **ARM)
    accelerator = session.graph.context.backend.driver.device.accelerator()
    accelerator.deadlines = Deadlines(closing=0.3, control=0.3, grace=0.1)
    stop(accelerator.pid)
    problems = []

    def work():
        with pytest.raises(QnnError) as refusal:
            session.run()
        problems.append(refusal.value.code)

    running = threading.Thread(target=work, daemon=True)
    running.start()
    while not accelerator.gate.busy:
        time.sleep(0.001)
    closing = threading.Thread(target=session.close, daemon=True)
    closing.start()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    running.join(PATIENCE)
    assert problems == [Code.GRAPH_INVALID_HANDLE]
