"""The layout of native KV caches: known places, the way there and back, and what has no such layout."""

import numpy as np
import pytest

from isthmus import QnnError
from isthmus.qnn import htp
from isthmus.qnn.htp import NativeCache


@pytest.mark.parametrize(
    ("kind", "dims", "element", "offset"),
    [
        (NativeCache.KEY, (128, 512), (1, 0), 1),
        (NativeCache.KEY, (128, 512), (4, 0), 128),
        (NativeCache.KEY, (128, 512), (0, 1), 4),
        (NativeCache.KEY, (128, 512), (5, 300), 33_969),
        (NativeCache.VALUE, (512, 128), (300, 5), 18_836),
        (NativeCache.VALUE, (512, 128), (32, 0), 2_048),
        (NativeCache.VALUE, (512, 128), (0, 64), 32_768),
    ],
)
def test_elements_are_where_clients_have_them(kind, dims, element, offset) -> None:
    assert htp.native_offset(kind, dims, *element) == offset
    flat = np.full(dims, 128, np.uint8)
    flat[element] = 200
    native = htp.to_native(kind, flat).reshape(-1)
    assert native[offset] == 200 - 128
    assert np.count_nonzero(native) == 1


@pytest.mark.parametrize("kind", NativeCache)
@pytest.mark.parametrize("dims", [(64, 256), (512, 512), (32, 32), (3, 128, 64), (1, 2, 32, 1024)])
def test_a_cache_is_restored_from_the_native_layout(kind, dims) -> None:
    flat = np.random.default_rng(0).integers(0, 256, dims, np.uint8)
    native = htp.to_native(kind, flat)
    assert native.shape == flat.shape
    assert (htp.to_flat(kind, native) == flat).all()
    rows, columns = dims[-2:]
    head = native.reshape(-1, rows * columns)[0]
    places = np.array([[htp.native_offset(kind, (rows, columns), r, c) for c in (0, columns - 1)] for r in range(rows)])
    first = flat.reshape(-1, rows, columns)[0][:, [0, columns - 1]]
    assert (head[places] == first - np.uint8(128)).all()


def test_an_empty_cache_is_0_in_the_native_layout_and_128_in_the_flat_one() -> None:
    empty = np.full((4, 64, 256), 128, np.uint8)
    assert not htp.to_native(NativeCache.KEY, empty).any()
    assert (htp.to_flat(NativeCache.VALUE, np.zeros((4, 256, 64), np.uint8)) == 128).all()


@pytest.mark.parametrize(
    ("kind", "dims"), [(NativeCache.KEY, (64, 1920)), (NativeCache.KEY, (48, 256)), (NativeCache.VALUE, (64, 40))]
)
def test_heads_that_are_not_made_of_whole_tiles_have_no_native_layout(kind, dims) -> None:
    for convert in (htp.to_native, htp.to_flat):
        with pytest.raises(QnnError, match=r"1004 .*rows must be a multiple of 32"):
            convert(kind, np.zeros(dims, np.uint8))
    with pytest.raises(QnnError, match="1004"):
        htp.native_offset(kind, dims, 0, 0)


def test_other_arrays_and_elements_outside_a_head_are_refused() -> None:
    for wrong in (np.zeros((32, 32), np.int8), np.zeros(32, np.uint8), [[0]]):
        with pytest.raises(QnnError, match="must be an array of uint8"):
            htp.to_native(NativeCache.KEY, wrong)
    with pytest.raises(QnnError, match="the head has 32 x 32"):
        htp.native_offset(NativeCache.KEY, (32, 32), 32, 0)


@pytest.mark.parametrize(("tokens", "budget"), [(1, 4064), (32, 4064), (33, 4032), (128, 3968)])
def test_new_tokens_begin_at_a_multiple_of_32(tokens, budget) -> None:
    assert htp.token_budget(4096, tokens) == budget
