"""Graphs of a context share equal weights: in its binary, by contents alone, if the context asks for it.

The rules are those measured of the vendor's library: what is shared is told by contents and encoding, not by operation,
name, order or settings.
"""

import numpy as np
import pytest
from support.processes import least_growth

from isthmus import Code, QnnError, qnn
from isthmus.backends.seam import binary
from isthmus.backends.seam.device_record import graph_sizes
from isthmus.graph import DataType, Quantization, TensorType
from isthmus.qnn import ClientTensor
from isthmus.system.contents import Contents

SIZE = 512
WEIGHTS = (np.random.default_rng(0).standard_normal((SIZE, SIZE)) * 0.05).astype(np.float32)
QUANTIZED = np.clip(np.rint(WEIGHTS / 0.002), -127, 127).astype(np.int8)
SHARING = {qnn.htp.WEIGHT_SHARING_ENABLED: True}
ROUNDED = {"htp": {"precision": "float16"}}


FORM = {"op": "MatMul", "tensors": ("x", "w", "y"), "scale": 0.002, "bits": 0, "act": 8}


def product(context, name, rows, weights=WEIGHTS, **form):
    """A graph of one product with constant weights: in floats, or fixed-point with 8-bit or 4-bit weights."""
    op, (x, w, y), scale, bits, act = {**FORM, **form}.values()
    graph = context.create_graph(name)
    fixed = weights.dtype == np.int8
    kind, io, w_kind = DataType.FLOAT_32, None, DataType.FLOAT_32
    w_encoding = None
    if fixed:
        kind = DataType.UFIXED_POINT_16 if act == 16 else DataType.UFIXED_POINT_8
        io = Quantization.per_tensor(0.01, -(1 << (act - 1)))
        w_kind = DataType.SFIXED_POINT_8
        w_encoding = Quantization((scale,), (0,), bits=bits)
    shape = (1, 1, rows, SIZE) if op == "Conv2d" else (rows, SIZE)
    stored = {"MatMul": weights, "FullyConnected": weights.T, "Conv2d": weights.reshape(1, 1, SIZE, SIZE)}[op]
    source = graph.create_tensor(x, TensorType.APP_WRITE, kind, shape, io)
    result = graph.create_tensor(y, TensorType.APP_READ, kind, shape, io)
    constant = graph.create_tensor(w, TensorType.STATIC, w_kind, stored.shape, w_encoding, np.ascontiguousarray(stored))
    params = {"Conv2d": {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]}}.get(op, {})
    graph.add_node(f"node of {w}", op, [source, constant], [result], params)
    return graph


def sizes_of(graphs, shares: bool):
    """The sizes that graphs will have in one context binary, by name."""
    contents = Contents(shares, stores=False)
    for graph in graphs:
        graph.to_bytes(contents.of(graph.name))
    return graph_sizes(contents.arrays)


def sizes(*graphs, configs=SHARING, config=ROUNDED):
    """The sizes of the graphs in a binary of a new context, in which each of the functions composes one."""
    with qnn.Backend("htp", config) as backend:
        context = backend.create_context(configs)
        for compose in graphs:
            compose(context)
        made = bytes(context.prepare_offline())
        assert (
            sizes_of([g.driver.prepared() for g in context.graphs.values()], bool(configs)) == binary.read(made).sizes
        )
    return len(made), list(binary.read(made).sizes.values())


def pair(**second):
    """The sizes of two graphs of one product, the second as given."""
    return sizes(lambda c: product(c, "prefill", 128), lambda c: product(c, "decode", 1, **second))


def test_a_second_graph_with_the_same_weights_adds_little() -> None:
    alone, [one] = sizes(lambda c: product(c, "prefill", 128))
    assert (one.constants, one.shared_weights) == (2 * SIZE * SIZE, 0), "floats in 16 bits; one graph shares nothing"
    both, (first, second) = pair()
    assert both - alone < 80_000
    assert first == second
    assert (first.constants, first.shared_weights) == (0, 2 * SIZE * SIZE)
    more, _ = sizes(*(lambda c, n=n: product(c, f"rows{n}", n) for n in (128, 1, 32, 64)))
    assert more - both < 2 * 80_000


def test_without_the_option_every_graph_has_its_own_weights() -> None:
    nbytes, found = sizes(lambda c: product(c, "a", 128), lambda c: product(c, "b", 1), configs=None)
    assert [(each.constants, each.shared_weights) for each in found] == [(2 * SIZE * SIZE, 0)] * 2
    assert nbytes > 4 * SIZE * SIZE


@pytest.mark.parametrize(
    "second",
    [{"tensors": ("x", "other", "y")}, {"op": "FullyConnected"}, {"op": "Conv2d"}, {"weights": WEIGHTS.copy()}],
    ids=["names", "transposed", "convolution", "another array"],
)
def test_names_and_operations_do_not_matter(second) -> None:
    _, found = pair(**second)
    assert [(each.constants, each.shared_weights) for each in found] == [(0, 2 * SIZE * SIZE)] * 2


def test_the_order_of_graphs_does_not_matter() -> None:
    _, forwards = pair()
    _, backwards = sizes(lambda c: product(c, "decode", 1), lambda c: product(c, "prefill", 128))
    assert forwards == backwards


def test_other_weights_and_another_encoding_are_not_shared() -> None:
    for second in ({"weights": WEIGHTS + 1}, {"weights": QUANTIZED}):
        _, found = pair(**second)
        assert found[0].constants == 2 * SIZE * SIZE
        assert found[0].shared_weights == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [({}, {}), ({}, {"scale": 0.004}), ({"act": 16}, {"act": 16}), ({"act": 16}, {"act": 8})],
    ids=["equal", "another scale", "16-bit activations", "16-bit beside 8-bit activations"],
)
def test_fixed_point_weights_are_shared_in_their_own_width_whatever_their_scale(first, second) -> None:
    _, found = sizes(
        lambda c: product(c, "a", 128, QUANTIZED, **first), lambda c: product(c, "b", 1, QUANTIZED, **second)
    )
    assert {each.shared_weights for each in found} == {SIZE * SIZE}
    assert max(each.constants for each in found) < 8192


def test_four_bit_weights_take_half_a_byte() -> None:
    four = np.clip(QUANTIZED, -7, 7)
    _, found = sizes(lambda c: product(c, "a", 128, four, bits=4), lambda c: product(c, "b", 1, four, bits=4))
    assert {each.shared_weights for each in found} == {SIZE * SIZE // 2}


def test_floats_that_are_16_bit_numbers_take_16_bits_and_keep_their_bits() -> None:
    exact = WEIGHTS.astype(np.float16).astype(np.float32)
    exact[0, :3] = np.inf, -0.0, 2**-24
    nbytes = {}
    for name, weights in (("exact", exact), ("others", WEIGHTS)):
        with qnn.Backend("htp") as backend:
            context = backend.create_context()
            product(context, "g", 4, weights)
            made = bytes(context.prepare_offline())
        nbytes[name] = binary.read(made).sizes["g"].constants
        [step] = binary.read(made).planned["g"].schedule.steps
        assert step.inputs[1].data.tobytes() == weights.tobytes()
    assert nbytes == {"exact": 2 * SIZE * SIZE, "others": 4 * SIZE * SIZE}


@pytest.mark.parametrize("shares", [True, False])
def test_a_restored_context_keeps_what_its_binary_has(shares) -> None:
    x = np.random.default_rng(1).standard_normal((128, SIZE)).astype(np.float32)
    with qnn.Backend("htp", ROUNDED) as backend:
        context = backend.create_context(SHARING if shares else None)
        graphs = [product(context, "prefill", 128), product(context, "decode", 1)]
        for graph in graphs:
            graph.finalize()
        made = bytes(context.get_binary())
        results = [run(graph, x) for graph in graphs]
    with qnn.Backend("htp") as backend:
        # The option says nothing about graphs that are there already.
        context = backend.create_context_from_binary(made, {qnn.htp.WEIGHT_SHARING_ENABLED: not shares})
        assert context.get_property(qnn.htp.WEIGHT_SHARING_ENABLED) is shares
        assert bytes(context.get_binary()) == made
        for name, result in zip(("prefill", "decode"), results, strict=True):
            assert np.array_equal(run(context.retrieve(name), x), result)


@pytest.mark.parametrize(
    ("weights", "form"),
    [(WEIGHTS, {}), (QUANTIZED, {}), (QUANTIZED, {"act": 16}), (np.clip(QUANTIZED, -7, 7), {"bits": 4})],
    ids=["floats", "8 bits", "16-bit activations", "4 bits"],
)
def test_results_are_those_of_graphs_that_do_not_share(weights, form) -> None:
    """Weights are packed for any number of rows then, which changes no bit of a result."""
    x = np.random.default_rng(2).standard_normal((128, SIZE)).astype(np.float32)
    if weights.dtype == np.int8:
        x = np.random.default_rng(2).integers(0, 256, (128, SIZE)).astype(f"u{form.get('act', 8) // 8}")
    results = []
    for configs in (SHARING, None):
        with qnn.Backend("htp", ROUNDED) as backend:
            context = backend.create_context(configs)
            graphs = [product(context, f"rows {rows}", rows, weights, **form) for rows in (128, 20, 1)]
            for graph in graphs:
                graph.finalize()
            results.append([run(graph, x).tobytes() for graph in graphs])
    assert results[0] == results[1]


def run(graph, x):
    """The results of a graph for its first rows."""
    rows = x[: graph.info.inputs[0].dims[0]]
    result = np.zeros_like(rows)
    graph.execute([ClientTensor("x", rows)], [ClientTensor("y", result)])
    return result


def test_the_option_is_a_truth_value_for_contexts_without_graphs() -> None:
    with qnn.Backend("htp") as backend:
        with pytest.raises(QnnError) as refusal:
            backend.create_context({qnn.htp.WEIGHT_SHARING_ENABLED: 1})
        assert refusal.value.code is Code.CONTEXT_INVALID_CONFIG
        context = backend.create_context()
        assert context.get_property(qnn.htp.WEIGHT_SHARING_ENABLED) is False
        product(context, "g", 1)
        context.set_config(qnn.htp.WEIGHT_SHARING_ENABLED, True)
        assert context.get_property(qnn.htp.WEIGHT_SHARING_ENABLED) is False, "too late, as with the vendor's library"
    with qnn.Backend("htp", {"context": {"weight_sharing_enabled": 1}}) as backend:
        assert backend.create_context().get_property(qnn.htp.WEIGHT_SHARING_ENABLED) is True


LINE = "DLBC Weights with Weight sharing feature is not supported"


def test_dlbc_of_weights_excludes_sharing() -> None:
    with qnn.Backend("htp") as backend:
        graph = product(backend.create_context(SHARING), "g", 1)
        with pytest.raises(QnnError, match=LINE) as refusal:
            graph.set_config(qnn.htp.DLBC_WEIGHTS, True)
        assert refusal.value.code is Code.COMMON_NOT_SUPPORTED
        graph.set_config(qnn.htp.DLBC_WEIGHTS, False)
        product(backend.create_context(), "g", 1).set_config(qnn.htp.DLBC_WEIGHTS, True)
    files = {"context": {"weight_sharing_enabled": True}, "graphs": [{"graph_names": ["g"], "dlbc_weights": True}]}
    with qnn.Backend("htp", files) as backend:
        context = backend.create_context()
        product(context, "other", 1)
        with pytest.raises(QnnError, match=LINE) as refusal:
            product(context, "g", 1)
        assert refusal.value.code is Code.COMMON_NOT_SUPPORTED
        assert list(context.graphs) == ["other"]


@pytest.mark.parametrize("backend", ["cpu", "lpai"])
def test_other_backends_share_without_the_option(backend) -> None:
    with qnn.Backend(backend) as made:
        nbytes = []
        for names in (["a"], ["a", "b"]):
            context = made.create_context()
            for name in names:
                product(context, name, 4)
            nbytes.append(len(context.prepare_offline()))
    assert nbytes[1] - nbytes[0] < 80_000


# -- why constants are not shared --------------------------------------------------------------------------------------


REASONS = {
    "shared": (SHARING, {}, set()),
    "not asked for": (None, {}, {"equal in {}, but the context was created without weight sharing"}),
    "transposed, not asked for": (
        None,
        {"op": "FullyConnected"},
        {"equal in {}, but the context was created without weight sharing"},
    ),
    "other contents": (SHARING, {"weights": WEIGHTS + 1}, {"other contents than in {}"}),
    "other encoding": (
        SHARING,
        {"weights": QUANTIZED},
        {
            "another encoding, FLOAT_16, than in decode, SFIXED_POINT_8",
            "another encoding, SFIXED_POINT_8, than in prefill, FLOAT_16",
        },
    ),
}


@pytest.mark.parametrize("case", REASONS)
def test_a_binary_says_why_its_graphs_do_not_share_a_constant(case) -> None:
    configs, second, reasons = REASONS[case]
    with qnn.Backend("htp", ROUNDED) as backend:
        context = backend.create_context(configs)
        product(context, "prefill", 128)
        product(context, "decode", 1, **second)
        made = bytes(context.prepare_offline())
    found = qnn.SystemContext().get_unshared_constants(made)
    sizes = qnn.SystemContext().get_binary_info(made).graphs
    other = {"prefill": "decode", "decode": "prefill"}
    assert {each.reason for each in found} == {reason.format(graph) for reason in reasons for graph in other}
    assert {each.graph: each.nbytes for each in found} == {
        graph.name: graph.sizes.constants for graph in sizes if graph.sizes.constants
    }
    assert all(each.constants == 1 for each in found)


def test_constants_of_graphs_are_set_beside_those_of_as_many_elements() -> None:
    with qnn.Backend("htp") as backend:
        context = backend.create_context()
        product(context, "small", 4)
        assert qnn.SystemContext().get_unshared_constants(context.prepare_offline()) == (), "there is no other graph"
        layer(context, "large", 4, np.full((LARGE, LARGE), 0.5, np.float32))
        found = qnn.SystemContext().get_unshared_constants(context.prepare_offline())
    reason = "no other graph has one of as many elements in its place"
    assert [(each.graph, each.other, each.reason) for each in found] == [("small", "", reason), ("large", "", reason)]


# -- in the accelerator's memory, as the system counts it --------------------------------------------------------------


LARGE = 2048
"""The rows and columns of weights that are most of what the accelerator has."""


class Accelerator:
    """The accelerator of a backend, whose memory is counted from outside: what its process has more than at first."""

    def __init__(self, backend):
        backend.create_context()
        self.pid = backend.get_property(qnn.htp.ACCELERATOR_PID)
        self.before = self.resident()

    def resident(self) -> int:
        """The bytes of all mappings of the process that are in memory."""
        with open(f"/proc/{self.pid}/smaps_rollup") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("Rss:"))

    def mappings(self) -> int:
        """The number of mappings of shared memory, which weights and inputs are in."""
        with open(f"/proc/{self.pid}/maps") as file:
            return sum("memfd:" in line for line in file)

    @property
    def grown(self) -> int:
        return self.resident() - self.before


def context_with_rows(context, rows, form):
    """A context with a graph of the same weights for each number of rows, finalized or from a binary as `form` says."""
    weights = (np.random.default_rng(5).standard_normal((LARGE, LARGE)) * 0.05).astype(np.float32)
    for number in rows:
        layer(context, f"rows {number}", number, weights)
    if form == "binary":
        backend, content = context.backend, bytes(context.prepare_offline())
        context.free()
        return backend.create_context_from_binary(content)
    for graph in context.graphs.values():
        graph.finalize()
    return context


def layer(context, name, rows, weights):
    """A graph of one product with many weights."""
    graph = context.create_graph(name)
    x, y = (
        graph.create_tensor(each, kind, DataType.FLOAT_32, (rows, LARGE))
        for each, kind in (("x", TensorType.APP_WRITE), ("y", TensorType.APP_READ))
    )
    w = graph.create_tensor("w", TensorType.STATIC, DataType.FLOAT_32, weights.shape, None, weights)
    graph.add_node("product", "MatMul", [x, w], [y])


@pytest.mark.parametrize("form", ["composed", "binary"])
def test_two_graphs_take_the_accelerators_memory_of_one(form) -> None:
    with qnn.Backend("htp", ROUNDED) as backend:
        with context_with_rows(backend.create_context(SHARING), [32, 1], form):
            """Code of kernels is loaded once and stays."""
        accelerator = Accelerator(backend)
        with context_with_rows(backend.create_context(SHARING), [32], form):
            one = accelerator.grown
        assert one > 2 * LARGE * LARGE
        with context_with_rows(backend.create_context(SHARING), [32, 1], form) as context:
            assert accelerator.grown <= 1.05 * one
            x = np.random.default_rng(1).standard_normal((32, LARGE)).astype(np.float32)
            results = run(context.graphs["rows 32"], x)
            context.release_graph(context.graphs["rows 32"])
            assert 2 * LARGE * LARGE < accelerator.grown <= 1.05 * one
            assert np.allclose(run(context.graphs["rows 1"], x), results[:1], rtol=1e-2, atol=1e-2)
        assert accelerator.grown < one / 10


@pytest.mark.parametrize("configs", [None, SHARING], ids=["alone", "sharing"])
def test_equal_weights_of_one_graph_are_stored_mapped_and_counted_once(configs) -> None:
    def chain(context, products):
        graph = context.create_graph("chain")
        weights = (np.random.default_rng(5).standard_normal((LARGE, LARGE)) * 0.05).astype(np.float32)
        source = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (4, LARGE))
        for number in range(products):
            kind = TensorType.APP_READ if number == products - 1 else TensorType.NATIVE
            w = graph.create_tensor(f"w{number}", TensorType.STATIC, DataType.FLOAT_32, weights.shape, None, +weights)
            result = graph.create_tensor(f"y{number}", kind, DataType.FLOAT_32, (4, LARGE))
            graph.add_node(f"product {number}", "MatMul", [source, w], [result])
            source = result
        graph.finalize()
        return graph

    with qnn.Backend("htp", ROUNDED) as backend:
        with backend.create_context(configs) as context:
            chain(context, 3)
        accelerator, taken = Accelerator(backend), []
        for products in (1, 3):
            with backend.create_context(configs) as context:
                graph = chain(context, products)
                assert graph.info.memory.constant_bytes == 2 * LARGE * LARGE
                [stated] = binary.read(bytes(context.get_binary())).sizes.values()
                assert (stated.constants, stated.shared_weights) == (2 * LARGE * LARGE, 0)
                taken.append(accelerator.grown)
        assert 2 * LARGE * LARGE < taken[1] <= 1.05 * taken[0]


def test_without_the_option_each_graph_has_its_own_weights_in_the_accelerator() -> None:
    with qnn.Backend("htp", ROUNDED) as backend:
        with context_with_rows(backend.create_context(), [32, 1], "composed"):
            """Code of kernels is loaded once and stays."""
        accelerator = Accelerator(backend)
        with context_with_rows(backend.create_context(), [32, 1], "composed"):
            assert accelerator.grown > 1.9 * 2 * LARGE * LARGE


@pytest.mark.parametrize("form", ["composed", "binary"])
def test_contexts_that_share_leave_nothing_in_the_accelerator(form) -> None:
    with qnn.Backend("htp", ROUNDED) as backend:
        context = backend.create_context()
        accelerator = context.driver.queue.accelerator

        def cycle() -> None:
            context_with_rows(backend.create_context(SHARING), [32, 1], form).free()

        cycle()
        grown = least_growth(accelerator.counts, cycle, 20)
    for kind in ("descriptors", "queues", "graphs", "memory", "mappings"):
        assert grown[kind] == 0, kind
    assert grown["resident_bytes"] < 1 << 20, "weights of one context are 8 MB"


def test_twenty_contexts_from_binaries_leave_nothing_as_the_system_counts_it() -> None:
    with qnn.Backend("htp", ROUNDED) as backend:
        with context_with_rows(backend.create_context(SHARING), [32, 1], "composed") as context:
            content = bytes(context.get_binary())
        # Code of kernels is loaded once and stays, and an allocator keeps some memory.
        for _ in range(3):
            backend.create_context_from_binary(content).free()
        accelerator = Accelerator(backend)

        def cycle() -> None:
            backend.create_context_from_binary(content).free()

        mappings = accelerator.mappings()
        grown = least_growth(lambda: {"resident": accelerator.resident()}, cycle, 20)
        assert accelerator.mappings() == mappings, "files and shared memory are unmapped"
    assert grown["resident"] < 1 << 20, "weights of one context are 8 MB"
