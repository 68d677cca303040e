"""On simulated devices plans, figures and binaries depend on the model and the settings, not on the machine."""

import json
import os

import numpy as np
import pytest
from support import processes, tile_networks, tiny, zoo
from support.containers import damage, limit_memory
from support.suites import MODELS, long, only

import isthmus
from isthmus import Code, QnnError, qnn
from isthmus.backends.seam import binary, native, planned
from isthmus.engine.native import lower
from isthmus.engine.native.target import TARGETS, runnable
from isthmus.engine.native.verification import verify
from isthmus.graph import DataType, Graph, Quantization, TensorType
from isthmus.prepare import PlanOptions, serialization
from isthmus.prepare.tiling import ScratchLimit
from isthmus.tools.cli import main

RUNNABLE = [target.name for target in TARGETS if runnable(target)]
FOREIGN = [target.name for target in TARGETS if not runnable(target)]
DEVICES = ("lpai", "htp")


def model(key):
    try:
        return zoo.path(key)
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))


def options(key):
    """The arguments of a tool for the inputs of a model that have no fixed shape."""
    shapes = zoo.MODELS[key].shapes.items()
    return [word for name, dims in shapes for word in ("--shape", f"{name}={','.join(map(str, dims))}")]


FOUR_BITS = ("channels", "factors", "floats")
"""Forms of 4-bit weights: with a scale for each channel; in blocks with factors; in blocks with any scales."""


def four_bits(form):
    """A product with 48 x 64 weights of 4 bits, of bytes or, where blocks have any scales, of floats."""
    graph, random = Graph("nibbles"), np.random.default_rng(0)
    units = np.linspace(0.01, 0.02, 48).astype(np.float32).astype(np.float64)
    elements, kind = random.integers(-8, 8, (48, 64)).astype(np.int8), DataType.SFIXED_POINT_8
    weights = Quantization(tuple(units.tolist()), (0,) * 48, 0, 4)
    if form == "factors":
        factors = random.integers(1, 17, (48, 4))
        scales = tuple((units[:, None] * factors).reshape(-1).tolist())
        weights = Quantization(scales, (0,) * 192, 1, 4, 16, tuple(factors.reshape(-1).tolist()))
    elif form == "floats":
        scales = random.uniform(0.01, 0.02, 192).astype(np.float32).tolist()
        weights = Quantization(tuple(scales), tuple(random.integers(-15, 1, 192).tolist()), 1, 4, 16)
        elements, kind = (elements + 8).view(np.uint8), DataType.UFIXED_POINT_8
    q, ends = Quantization.per_tensor(0.5, 3), DataType.SFIXED_POINT_8
    if form == "floats":
        q, ends = None, DataType.FLOAT_32
    x = graph.create_tensor("x", TensorType.APP_WRITE, ends, (5, 64), q)
    y = graph.create_tensor("y", TensorType.APP_READ, ends, (5, 48), q)
    w = graph.create_tensor("w", TensorType.STATIC, kind, elements.shape, weights, elements)
    graph.add_node("product", "FullyConnected", [x, w], [y])
    graph.finalize()
    return graph


def eight_bits():
    """A convolution of 8-bit values, with 1,152 weights and 16 biases."""
    graph, random = Graph("bytes"), np.random.default_rng(0)
    q = Quantization.per_tensor(0.05, 3)
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.SFIXED_POINT_8, (1, 9, 9, 8), q)
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.SFIXED_POINT_8, (1, 9, 9, 16), q)
    weights = random.integers(-127, 128, (3, 3, 8, 16)).astype(np.int8)
    bias = random.integers(-999, 999, 16).astype(np.int32)
    scales = Quantization.per_channel(np.linspace(0.01, 0.02, 16), np.zeros(16), 3)
    sums = Quantization.per_channel(np.linspace(0.01, 0.02, 16) * 0.05, np.zeros(16), 0)
    operands = [
        x,
        graph.create_tensor("w", TensorType.STATIC, DataType.SFIXED_POINT_8, weights.shape, scales, weights),
        graph.create_tensor("b", TensorType.STATIC, DataType.SFIXED_POINT_32, bias.shape, sums, bias),
    ]
    graph.add_node("conv", "Conv2d", operands, [y], {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]})
    graph.finalize()
    return graph


# -- plans -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", DEVICES)
@pytest.mark.parametrize("key", only(("okay_nabu",), sorted(zoo.MODELS)))
def test_a_plan_is_printed_alike_for_every_target(key, backend, capsys, monkeypatch) -> None:
    path, printed = model(key), set()
    for target in TARGETS:
        monkeypatch.setenv("ISTHMUS_TARGET", target.name)
        if main(["plan", str(path), "--backend", backend, "--table", *options(key)]):
            pytest.skip("the model cannot be planned")
        printed.add(capsys.readouterr().out)
    assert len(printed) == 1


@pytest.mark.parametrize("backend", ["cpu", *DEVICES])
def test_a_plan_can_be_drawn_for_a_target_that_this_machine_cannot_run(tmp_path, capsys, monkeypatch, backend) -> None:
    path = str(tiny.convolution(tmp_path / "conv.onnx"))
    assert main(["plan", path, "--backend", backend]) == 0
    here = capsys.readouterr().out
    assert main(["plan", path, "--backend", backend, "--target", FOREIGN[0]]) == 0
    named = capsys.readouterr().out
    monkeypatch.setenv("ISTHMUS_TARGET", FOREIGN[0])
    assert main(["plan", path, "--backend", backend]) == 0
    assert capsys.readouterr().out == named
    assert (FOREIGN[0] in named) == (backend == "cpu")
    assert (named == here) == (backend != "cpu")
    assert main(["plan", path, "--backend", backend, "--target", "abacus"]) == 2
    assert "target 'abacus': must be one of" in capsys.readouterr().err


def test_what_this_machine_cannot_run_is_refused_when_it_is_to_run(tmp_path, take_code_path) -> None:
    take_code_path(FOREIGN[0])
    for backend in ("cpu", *DEVICES):
        with pytest.raises(QnnError, match="this machine cannot run its code") as refusal:
            isthmus.Session(tiny.gate(tmp_path / "gate.onnx"), backend).close()
        assert refusal.value.code is Code.COMMON_PLATFORM_NOT_SUPPORTED


def test_constants_count_in_their_own_width() -> None:
    content = binary.to_bytes([planned.plan(eight_bits())], "htp")
    [graph] = binary.inspect(content).graphs
    assert graph.memory.constant_bytes == 1152 + 4 * 16
    assert graph.target == ""
    floats = planned.plan(tile_networks.squeezed(False))
    elements = {t: t.elements for step in floats.schedule.steps for t in step.inputs if t is not None and t.is_static}
    assert floats.info.memory.constant_bytes == 4 * sum(elements.values())


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("limit", [None, "40%"])
def test_a_plan_has_work_space_for_the_kernels_of_every_target(threads, limit) -> None:
    limit = None if limit is None else ScratchLimit.of(limit)
    small = (eight_bits(), *map(four_bits, FOUR_BITS))
    for graph in (*small, *(tile_networks.squeezed(bytes_) for bytes_ in (True, False))):
        if limit is not None and graph in small:
            continue
        schedule = planned.plan(graph, threads, limit=limit).schedule
        for target in TARGETS:
            verify(lower.lower(schedule, target, threads))
            alone = native.prepare(graph, threads, target, limit).program
            assert limit is not None or alone.scratch_bytes <= schedule.scratch_bytes


@pytest.mark.parametrize("form", FOUR_BITS)
def test_constants_of_four_bits_take_half_a_byte_for_each_element(form) -> None:
    made = planned.plan(four_bits(form))
    # A byte for each factor of a block; a float and a byte for each other scale of a block.
    blocks = 48 * 64 // 16
    expected = 48 * 64 // 2 + {"channels": 0, "factors": blocks, "floats": 5 * blocks}[form]
    assert made.info.memory.constant_bytes == expected
    _, contents = split(made)
    assert len(contents) <= expected + 4 * 48
    again = planned.from_bytes(made.to_bytes())
    assert again.info.memory == made.info.memory
    for target in TARGETS:
        programs = [lower.lower(graph.schedule, target, 1) for graph in (made, again)]
        assert any("nibbles" in kernel for kernel in programs[0].kernels)
        assert programs[0].kernels == programs[1].kernels
        assert bytes(programs[0].constants) == bytes(programs[1].constants)


# -- binaries ----------------------------------------------------------------------------------------------------------


def binary_of(path, backend, shapes):
    with isthmus.Session(path, backend, shapes) as session:
        return session.graph.context.get_binary()


def results(content, backend, inputs):
    """Return what the graph of a binary makes of some inputs, two times."""
    with qnn.Backend(backend) as made:
        context = made.create_context_from_binary(content)
        [graph] = context.graphs.values()
        if backend == "lpai":
            for option, size in (
                (qnn.lpai.SCRATCH_MEM, qnn.lpai.SCRATCH_MEM_SIZE),
                (qnn.lpai.PERSISTENT_MEM, qnn.lpai.PERSISTENT_MEM_SIZE),
            ):
                nbytes = graph.get_property(size)
                if nbytes:
                    pool = isthmus.memory.host(nbytes, 128)
                    graph.set_config(option, qnn.lpai.Mem(qnn.lpai.MemType.DDR, nbytes, pool))
            graph.finalize()
        found = []
        for _ in range(2):
            arrays = {}
            for info in graph.output_tensors:
                buffer = isthmus.memory.host(-(-info.nbytes // 128) * 128, 128)
                arrays[info.name] = buffer
            given = [qnn.ClientTensor(name, buffer) for name, buffer in inputs.items()]
            graph.execute(given, [qnn.ClientTensor(name, buffer) for name, buffer in arrays.items()])
            found.append({name: buffer.array.tobytes() for name, buffer in arrays.items()})
        return found


def inputs_of(content):
    random, found = np.random.default_rng(5), {}
    [graph] = binary.inspect(content).graphs
    for info in graph.inputs:
        buffer = isthmus.memory.host(-(-info.nbytes // 128) * 128, 128)
        elements = int(np.prod(info.dims))
        values = random.standard_normal(elements) if info.dtype.is_float else random.integers(0, 100, elements)
        buffer.view(info.dtype.numpy, (elements,))[:] = values
        found[info.name] = buffer
    return found


EXACT = ("okay_nabu", "kws_qdq", "hey_jarvis", "efficientnet_lite0")
"""Models of integers, whose results have the same bits on every target."""


@pytest.mark.parametrize(
    ("key", "targets"), [("okay_nabu", (RUNNABLE[0], RUNNABLE[-1])), *(long(key, RUNNABLE) for key in EXACT)]
)
@pytest.mark.parametrize("backend", DEVICES)
def test_a_binary_of_any_target_runs_on_every_other_with_the_same_bits(key, targets, backend, take_code_path) -> None:
    path, shapes = model(key), dict(zoo.MODELS[key].shapes) or None
    made, answers = {}, {}
    for name in targets:
        take_code_path(name)
        made[name] = binary_of(path, backend, shapes)
        answers[name] = results(made[targets[0]], backend, inputs_of(made[targets[0]]))
    assert len(set(made.values())) == 1, "the bytes are the same whatever made them"
    assert all(answer == answers[targets[0]] for answer in answers.values())


@pytest.mark.parametrize("key", only(("kws_fp32",), MODELS))
def test_a_device_computes_what_the_cpu_does(key, take_code_path) -> None:
    path, shapes = model(key), dict(zoo.MODELS[key].shapes) or None
    found = []
    for backend in ("cpu", *DEVICES):
        with isthmus.Session(path, backend, shapes) as session:
            random = np.random.default_rng(3)
            for view in session.inputs.values():
                view[...] = random.standard_normal(view.shape) if view.dtype.kind == "f" else 1
            session.run()
            found.append({name: view.tobytes() for name, view in session.outputs.items()})
    assert found[0] == found[1] == found[2]


# -- forged binaries ---------------------------------------------------------------------------------------------------


def split(graph):
    header, sections = serialization.FORMAT.unpack(graph.to_bytes())
    return header, bytes(sections["contents"])


def test_less_work_space_than_kernels_need_is_refused_as_another_version() -> None:
    header, contents = split(planned.plan(eight_bits()))
    [step] = header["steps"]
    step["work"] = [step["work"][0], 64]
    graph = planned.from_bytes(serialization.assemble(header, contents))
    with pytest.raises(QnnError, match="less work space than this version needs") as refusal:
        native.lowered(graph)
    assert refusal.value.code is Code.CONTEXT_BINARY_VERSION
    assert refusal.value.hint == "Generate it again."


ROUNDS = int(os.environ.get("ISTHMUS_FORGERIES", "300"))


def test_a_forged_schedule_is_refused_or_stays_inside_its_memory(monkeypatch) -> None:
    """Whatever a header says, its program is refused, or passes the check of every operand of every instruction."""
    limit = ScratchLimit.of("40%")
    graphs = [
        planned.plan(eight_bits(), alignment=128, options=PlanOptions(io_in_scratch=True)),
        planned.plan(tile_networks.squeezed(True), 2, limit=limit),
        planned.plan(tile_networks.squeezed(False), options=PlanOptions(io_in_scratch=True), limit=limit),
        *(planned.plan(four_bits(form)) for form in FOUR_BITS),
    ]
    assert any(repeat.threads > 1 for graph in graphs for repeat in graph.schedule.repeats)
    originals = [split(graph) for graph in graphs]
    random = np.random.default_rng(2)

    def action():
        limit_memory(1 << 30)
        refused = 0
        for number in range(ROUNDS):
            original, contents = originals[number % len(originals)]
            header = json.loads(json.dumps(original))
            for _ in range(1 + number % 3):
                damage(header, random)
            try:
                graph = planned.from_bytes(serialization.assemble(header, contents))
                program = native.lowered(graph)
            except QnnError:
                refused += 1
                continue
            verify(program, graph.schedule.io_offsets)
        assert ROUNDS // 4 < refused < ROUNDS

    assert processes.in_child(action) == 0


FORGERIES = {
    "no threads": lambda h: h["engine"].update(threads=0),
    "many threads": lambda h: h["engine"].update(threads=10**6),
    "threads of a repetition": lambda h: h["repeats"][0].update(threads=3),
    "a repetition without end": lambda h: h["repeats"][0].update(times=1 << 60),
    "a repetition of no step": lambda h: h["repeats"][0].update(first=5, last=4),
    "a tensor that leaves its memory": lambda h: h["repeats"][0]["advances"][0].__setitem__(1, 1 << 31),
    "memory of threads outside scratch": lambda h: h["repeats"][0]["arena"].__setitem__(1, 1 << 30),
    "steps that are not there": lambda h: h["tiled"].append([0, 1 << 20]),
    "a part of something else": lambda h: next(s for s in h["steps"] if "part" in s).update(part=[9, 9]),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_threads_and_repetitions_are_refused(forgery) -> None:
    graph = planned.plan(tile_networks.squeezed(True), 2, limit=ScratchLimit.of("40%"))
    header, contents = split(graph)
    assert header["repeats"][0]["arena"]
    FORGERIES[forgery](header)
    with pytest.raises(QnnError) as refusal:
        native.lowered(planned.from_bytes(serialization.assemble(header, contents)))
    assert refusal.value.code in (Code.COMMON_LOADING_BINARIES, Code.CONTEXT_CREATE_FROM_BINARY)
