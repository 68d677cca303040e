"""LiteRT's structures are found by its version and tried on the running library; what is not known is refused."""

import ctypes
import sys
from contextlib import suppress

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from frontends.tflite.build import Op, Subgraph, T, model, options
from frontends.tflite.cases import CASES
from support import zoo
from support.interruption import Alarm, Interrupt, everywhere

from isthmus.delegate import BackendType, Options, QnnDelegate, library, probe, probe_model, structures, view
from isthmus.delegate.parameters import PARAMETERS
from isthmus.errors import Code, QnnError
from isthmus.frontends.tflite.model import ModelFile


@pytest.fixture
def afresh(monkeypatch):
    """Forget that LiteRT was tried, as in a new process."""
    monkeypatch.setattr(probe, "_tried", False)
    monkeypatch.setattr(probe, "_verdict", None)


def refusal() -> QnnError:
    with pytest.raises(QnnError) as caught:
        QnnDelegate(Options(BackendType.CPU))
    assert caught.value.code is Code.COMMON_PLATFORM_NOT_SUPPORTED
    return caught.value


def test_the_running_library_is_as_its_version_says(afresh) -> None:
    probe.check()


@pytest.mark.parametrize("version", ["1.4.0", "3.0.0", "2.99.1", "2", "unknown", ""])
def test_an_unknown_version_is_refused(version, afresh, monkeypatch) -> None:
    monkeypatch.setattr(library, "version", lambda: version)
    assert "its C structures are not known" in str(refusal())


@pytest.mark.parametrize(
    ("name", "value", "doubt"),
    [
        ("TENSORS", probe_model.TENSORS[:-1], "the number of tensors would be 7, and is 6"),
        ("BIAS", (0.5, 1.5, 2.5), "the contents of tensor 2"),
        ("SCALES", (1.0, 1.0, 1.0), "the scales of tensor 6"),
        ("CONVOLUTION", {}, "the options of node 0"),
        ("CONSTANTS", (), "whether tensor 1 is a constant"),
        ("OUTPUT", 3, "the outputs of a delegate's node"),
    ],
)
def test_a_library_that_is_built_otherwise_is_refused_with_what_was_found(
    name, value, doubt, afresh, monkeypatch
) -> None:
    monkeypatch.setattr(probe_model, name, value)
    assert doubt in str(refusal())


def test_a_layout_with_invalid_pointers_is_refused_without_following_them(afresh, monkeypatch) -> None:
    class Shifted(ctypes.Structure):
        _fields_ = (("something new", ctypes.c_uint64), *structures.Tensor._fields_)

    class Context(ctypes.Structure):
        _fields_ = tuple(
            (name, ctypes.POINTER(Shifted)) if name == "tensors" else (name, kind)
            for name, kind in structures.Context._fields_
        )

    monkeypatch.setattr(structures, "Tensor", Shifted)
    monkeypatch.setattr(structures, "Context", Context)
    monkeypatch.setattr(structures.Layout, "fits", lambda self: True)
    assert "tensor 0" in str(refusal())


@pytest.mark.parametrize("by", [Interrupt, Alarm])
@pytest.mark.parametrize("where", ["_prepare", "_init", "_kernel_prepare", "_look_at_memory"])
def test_an_interrupt_in_the_midst_of_a_trial_refuses_nothing_later(where, by, afresh, monkeypatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda problem: None)
    look, times = getattr(probe.ProbeTrial, where), iter((by,))

    def interrupted(*arguments):
        for kind in times:
            raise kind
        return look(*arguments)

    monkeypatch.setattr(probe.ProbeTrial, where, interrupted)
    with suppress(by):
        probe.check()
    assert next(times, None) is None
    probe.check()


def test_a_layout_of_other_sizes_is_refused(afresh, monkeypatch) -> None:
    monkeypatch.setitem(structures.LAYOUTS, (2, 3), structures.Layout(112, 80, 80, 56, 200))
    monkeypatch.setattr(library, "version", lambda: "2.3.0")
    assert "its C structures are not known" in str(refusal())


def test_a_library_without_symbols_refuses_custom_memory_only(monkeypatch) -> None:
    library.set_custom_allocation.cache_clear()
    monkeypatch.setattr(library, "_SET_CUSTOM_ALLOCATION", b"no such symbol")
    try:
        with pytest.raises(QnnError, match="whose symbols were stripped"):
            library.set_custom_allocation()
        monkeypatch.setattr(probe, "_tried", False)
        probe.check()
    finally:
        library.set_custom_allocation.cache_clear()


def test_the_probes_model_is_what_its_description_says() -> None:
    arrays = {1: np.arange(24) / 8 - 1, 2: probe_model.BIAS, 4: probe_model.SHAPE, 6: np.arange(1, 7)}
    kinds = {1: "f32", 2: "i32", 9: "i8"}
    tensors = [
        T(kinds[kind], dims, arrays.get(index), name=name)
        for index, (name, kind, dims) in enumerate(probe_model.TENSORS)
    ]
    tensors[6].scale, tensors[6].zero = list(probe_model.SCALES), [0, 0, 0]
    given = probe_model.CONVOLUTION
    convolution = options(
        "Conv2D",
        padding=given["padding"],
        strideW=given["stride_w"],
        strideH=given["stride_h"],
        fusedActivationFunction=given["activation"],
        dilationWFactor=given["dilation_w"],
        dilationHFactor=given["dilation_h"],
    )
    made = (convolution, options("Reshape", newShape=list(probe_model.SHAPE)))
    operators = [Op(*node, each) for node, each in zip(probe_model.NODES, made, strict=True)]
    built = model(Subgraph(tensors, operators, [probe_model.INPUT], [probe_model.OUTPUT], "probe"))
    assert probe_model.content() == built


@pytest.mark.parametrize("count", [-(2**31), -2, -1, 0, 1, 3])
def test_an_array_has_its_stated_number_of_elements_and_none_if_that_is_negative(count) -> None:
    reals = (ctypes.c_float * 4)(0, 0.5, 1.5, 2.5)
    whole = (ctypes.c_int * 4)(count, 5, 6, 7)
    ctypes.c_int.from_address(ctypes.addressof(reals)).value = count
    assert structures.reals(ctypes.addressof(reals)).tolist() == [0.5, 1.5, 2.5][: max(count, 0)]
    assert structures.integers(ctypes.addressof(whole)) == (5, 6, 7)[: max(count, 0)]


# -- what the interpreter tells is what the file says ------------------------------------------------------------------


class Reader:
    """A delegate that takes nothing and reads everything."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[view.Nodes, list, list]] = {}
        self.problem: Exception | None = None
        self._thunk = structures.DelegatePrepare(self._prepare)
        address = ctypes.cast(self._thunk, ctypes.c_void_p).value
        self._structure = structures.Delegate(prepare=address, flags=structures.ALLOW_DYNAMIC_TENSORS)

    def _get_native_delegate_pointer(self) -> int:
        return ctypes.addressof(self._structure)

    def _prepare(self, context: int, delegate: int) -> int:
        try:
            nodes = view.read(context)
            entries = [nodes.entry(i) if nodes.tensor(i).type else None for i in range(len(nodes.names))]
            constants = [
                None if entry is None or not nodes.is_constant(entry.index) else np.copy(nodes.contents(entry))
                for entry in entries
            ]
            self.found[nodes.index] = nodes, entries, constants
        except Exception as problem:
            self.problem = problem
        return structures.OK


def check_against_the_file(content: bytes) -> set[str]:
    reader = Reader()
    interpreter = Interpreter(model_content=content, experimental_delegates=[reader])
    file = ModelFile(content, "file")
    assert reader.problem is None
    codes = set()
    for index, (nodes, entries, constants) in reader.found.items():
        subgraph = file.subgraph(index)
        for found, written in zip(nodes.operators, subgraph.operators(), strict=True):
            assert (found.code, found.inputs, found.outputs) == (written.code, written.inputs, written.outputs)
            assert found.custom_options == written.custom_options
            codes.add(found.code)
            if found.code in PARAMETERS:
                # A shape that is not there is an empty one in memory.
                assert found.options == {
                    name: [] if value is None else value for name, value in written.options.items()
                }, found.code
        for entry, constant in zip(entries, constants, strict=False):
            if entry is None:
                continue
            written = subgraph.tensor(entry.index)
            assert (entry.type, entry.shape, entry.is_variable) == (written.type, written.shape, written.is_variable)
            np.testing.assert_array_equal(entry.scales, written.scales)
            if written.scales.size:
                assert entry.quantization() == written.quantization()
            if constant is not None:
                np.testing.assert_array_equal(constant, file.contents(subgraph, written))
    del interpreter
    return codes


def test_operators_options_tensors_and_constants_are_read_as_the_file_has_them() -> None:
    from frontends.tflite.test_control_flow import accumulator, lstm

    seen = set()
    for content in (*(case.model for case in CASES), accumulator(), lstm(True), lstm(False)):
        seen |= check_against_the_file(content)
    assert seen >= set(PARAMETERS), "every structure that is read was looked at"


@pytest.mark.parametrize(("nbytes", "more"), [(0, ""), (5000, ""), (1 << 16, ""), ((1 << 16) + 1, " with 65537 bytes")])
def test_custom_options_are_read_whole_or_the_operator_is_not_known(nbytes, more) -> None:
    many = bytes(index % 251 for index in range(nbytes))
    tensors = [T("f32", (1, 4), name="x"), T("f32", (1, 4), name="y")]
    content = model(Subgraph(tensors, [Op("CUSTOM:Unheard", [0], [1], custom=many)], [0], [1]))
    [operator] = ModelFile(content, "file").subgraph(0).operators()
    assert operator.code.startswith(f"CUSTOM:Unheard{more}")
    assert operator.custom_options == (b"" if more else many)
    assert check_against_the_file(content) == {operator.code}


def test_an_interrupt_leaves_the_interpreter_its_error_reporter() -> None:
    reporter = structures.ReportError(lambda address, text: None)
    acquire = structures.AcquireSubgraph(lambda *_: structures.ERROR)
    context = structures.Context(report_error=reporter, acquire_subgraph_context=acquire)
    address, found = ctypes.addressof(context), ctypes.c_void_p()
    word = ctypes.c_void_p.from_address(address + structures.Context.report_error.offset)
    before, places = word.value, 0
    for where in everywhere(lambda: view._acquire(context, address, 0, found)):
        assert word.value == before, where
        places += 1
    assert places > 3


@pytest.mark.parametrize("key", ["face_detection_full_range_sparse", "efficientnet_lite0", "okay_nabu", "precise_vad"])
def test_real_models_are_read_as_their_files_have_them(key) -> None:
    try:
        content = zoo.path(key).read_bytes()
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    check_against_the_file(content)
