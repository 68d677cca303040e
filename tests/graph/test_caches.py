"""Which inputs and outputs are caches, and how many tokens they hold, is told by names and shapes."""

import pytest

from isthmus.graph import DataType, GraphInfo, TensorInfo
from isthmus.graph.caches import GraphCache, caches_of

U8, F16 = DataType.UFIXED_POINT_8, DataType.FLOAT_16


def tensor(name: str, *dims: int, dtype: DataType = U8) -> TensorInfo:
    nbytes = dtype.itemsize
    for each in dims:
        nbytes *= each
    return TensorInfo(name, dtype, dims, None, nbytes)


def graph(inputs: list[TensorInfo], outputs: list[TensorInfo]) -> GraphInfo:
    return GraphInfo("g", tuple(inputs), tuple(outputs))


@pytest.mark.parametrize(
    ("read", "written"),
    [
        ("past_key_0_in", "past_key_0_out"),
        ("past_key_values.0.key", "present.0.key"),
        ("k_cache_0_input", "k_cache_0_output"),
        ("past_value_3", "present_value_3"),
    ],
)
def test_names_of_exporters_are_known(read: str, written: str) -> None:
    [[found]] = caches_of([graph([tensor(read, 2, 1, 16, 96)], [tensor(written, 2, 1, 16, 32)])])
    assert (found.bits, found.nbytes, found.tokens) == (8, 2 * 16 * 128, 128)


@pytest.mark.parametrize(
    ("read", "written"),
    [
        # No word for a cache: this may be sound before and after a filter.
        (tensor("sound_in", 1, 96), tensor("sound_out", 1, 96)),
        (tensor("past_key_0_in", 1, 96), tensor("past_key_1_out", 1, 32)),
        (tensor("past_key_0_in", 1, 96), tensor("past_key_0_out", 1, 32, dtype=F16)),
        (tensor("past_key_0_in", 2, 96), tensor("past_key_0_out", 1, 32)),
        (tensor("past_key_0_in", 2, 96), tensor("past_key_0_out", 32)),
    ],
)
def test_other_tensors_are_no_cache(read: TensorInfo, written: TensorInfo) -> None:
    assert caches_of([graph([read], [written])]) == [[]]


def test_two_inputs_of_one_name_are_no_pair() -> None:
    inputs = [tensor("past_key_0_in", 1, 96), tensor("present_key_0_in", 1, 96)]
    assert caches_of([graph(inputs, [tensor("past_key_0_out", 1, 32)])]) == [[]]


def test_the_graphs_of_a_set_show_caches_that_one_alone_does_not() -> None:
    half = graph([tensor("past_key_0_in", 16, 64)], [tensor("past_key_0_out", 16, 64)])
    single = graph([tensor("past_key_0_in", 16, 127)], [tensor("past_key_0_out", 16, 1)])
    first = graph([tensor("input_ids", 1, 64)], [tensor("past_key_0_out", 16, 64)])
    assert caches_of([half]) == [[GraphCache("key_0", 8, 2048, None)]]
    assert caches_of([half, single, first]) == [
        [GraphCache("key_0", 8, 2048, 128)],
        [GraphCache("key_0", 8, 2048, 128)],
        [GraphCache("key_0", 8, 1024, 64)],
    ]


def test_a_name_with_two_axes_of_tokens_has_no_length() -> None:
    rows = graph([tensor("past_0_in", 96, 16)], [tensor("past_0_out", 32, 16)])
    columns = graph([tensor("past_0_in", 16, 96)], [tensor("past_0_out", 16, 32)])
    assert [found.tokens for [found] in caches_of([rows, columns])] == [None, None]


def test_a_tensor_of_another_rank_has_no_length() -> None:
    pair = graph([tensor("past_0_in", 16, 96)], [tensor("past_0_out", 16, 32)])
    flat = graph([], [tensor("past_0_out", 512)])
    assert [found.tokens for [found] in caches_of([pair, flat])] == [128, None]
