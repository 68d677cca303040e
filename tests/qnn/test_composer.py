"""A graph that is composed on a table of functions is what the table's library gets to know."""

import pytest

from isthmus.cabi.tables import CORE_VERSION
from isthmus.cabi.types import DATATYPE_STRING
from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.entries import ComposedTensor, GraphEntry, NodeEntry
from isthmus.graph import DataType, TensorType
from isthmus.qnn.composer import Composer
from isthmus.qnn.recorder import Recorder

X = ComposedTensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (2,))
Y = ComposedTensor("y", TensorType.APP_READ, DataType.FLOAT_32, (2,))


def test_a_recorder_looks_like_the_library_of_htp() -> None:
    provided = Recorder().interface
    assert (provided.backendId, provided.providerName) == (6, b"RECORDER_ISTHMUS")
    versions = [(v.major, v.minor, v.patch) for v in (provided.coreApiVersion, provided.backendApiVersion)]
    assert versions == [CORE_VERSION, (5, 0, 0)]


class TypeRecordingComposer(Composer):
    """A composer that remembers the data type of a node's first parameter, which a recorder does not."""

    kind = 0

    def _call(self, what, name, *arguments):
        super()._call(what, name, *arguments)
        if name == "graphAddNode" and arguments[1].v1.numOfParams:
            self.kind = arguments[1].v1.params[0].scalarParam.dataType


def composed(*nodes: NodeEntry) -> tuple[tuple[NodeEntry, ...], int]:
    """The nodes as they were recorded, and the type of the last one's scalar."""
    recorder = Recorder()
    composer = TypeRecordingComposer(recorder.table, 0x10, 0x20)
    composer.compose(GraphEntry("g", (X, Y), nodes))
    assert recorder.problem is None
    (graph,) = recorder.graphs
    return graph.nodes, composer.kind


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (False, DataType.BOOL_8), (True, DataType.BOOL_8), (1.0, DataType.FLOAT_32), (0.0, DataType.FLOAT_32),
        (0, DataType.UINT_32), (1, DataType.UINT_32), (2**32 - 1, DataType.UINT_32), (2**32, DataType.UINT_64),
        (-1, DataType.INT_32), (-(2**31), DataType.INT_32), (-(2**31) - 1, DataType.INT_64), ("", DATATYPE_STRING),
        ("name", DATATYPE_STRING),
    ],
)  # fmt: skip
def test_a_scalar_without_a_type_gets_the_narrowest_that_holds_it(value, kind) -> None:
    (node,), reported = composed(NodeEntry("n", "Op", ("x",), ("y",), {"p": value}))
    assert (node.params["p"], reported) == (value, kind)
    assert type(node.params["p"]) is type(value)


def test_a_scalar_has_the_type_that_is_given() -> None:
    (node,), reported = composed(NodeEntry("n", "Op", ("x",), ("y",), {"p": 7}, kinds={"p": DataType.INT_8}))
    assert (node.params["p"], reported) == (7, DataType.INT_8)


def test_a_scalar_of_a_type_that_scalars_cannot_have_is_refused_by_name() -> None:
    with pytest.raises(QnnError, match=r"node 'n' \(Op\).*data type 0x0408 of parameter 'p'") as caught:
        composed(NodeEntry("n", "Op", ("x",), ("y",), {"p": 7}, kinds={"p": DataType.UFIXED_POINT_8}))
    assert caught.value.code is Code.GRAPH_INVALID_OP_CONFIG


def test_a_tensor_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(QnnError, match=r"node 'n' .*there is no tensor 'z'") as caught:
        composed(NodeEntry("n", "Op", ("z",), ("y",), {}))
    assert caught.value.code is Code.GRAPH_INVALID_TENSOR


def test_parameters_that_are_tensors_get_names_of_their_own() -> None:
    held = ComposedTensor("x", TensorType.STATIC, DataType.UINT_32, (1,), data=memoryview(b"\1\0\0\0"))
    nodes, _ = composed(*(NodeEntry("n", "Op", ("x",), ("y",), {"p": held}) for _ in range(3)))
    assert [node.params["p"].name for node in nodes] == ["n_p", "n_p_", "n_p__"]
    assert all(bytes(node.params["p"].data) == b"\1\0\0\0" for node in nodes)
