"""Matrix products agree with the numpy reference, for constant and for computed right matrices."""

from __future__ import annotations

import numpy as np
import pytest

from engine.native import harness
from engine.native.harness import check, static
from isthmus.engine.native.lowering.panels import PanelTile, choose_tile, pack_panels
from isthmus.engine.native.target import TARGETS, by_name
from isthmus.errors import QnnError

pytestmark = harness.ON_TARGETS
_generator = np.random.default_rng(11)
_CLOSE = {"rtol": 1e-5, "atol": 2e-5}
SIZES = [(1, 7, 5), (1, 130, 70), (2, 1, 1), (5, 33, 17), (13, 24, 144), (40, 9, 24), (17, 700, 50)]


def _random(*dims: int) -> np.ndarray:
    return _generator.standard_normal(dims).astype(np.float32)


def _scaled(*dims: int) -> np.ndarray:
    return _random(*dims) / np.float32(np.sqrt(max(dims)))


@pytest.mark.parametrize(("rows", "depth", "columns"), SIZES)
def test_a_fully_connected_layer_matches_the_reference(rows: int, depth: int, columns: int) -> None:
    inputs = [_random(rows, depth), static(_scaled(columns, depth)), static(_random(columns))]
    check("FullyConnected", inputs, clamp=(-1.0, 2.0), **_CLOSE)


@pytest.mark.parametrize(("rows", "depth", "columns"), SIZES)
def test_a_right_matrix_may_be_computed(rows: int, depth: int, columns: int) -> None:
    check("MatMul", [_random(rows, depth), _scaled(depth, columns), _random(columns)], **_CLOSE)


@pytest.mark.parametrize(("rows", "depth", "columns"), SIZES)
def test_both_operands_may_be_transposed(rows: int, depth: int, columns: int) -> None:
    params = {"transpose_in0": True, "transpose_in1": True}
    check("MatMul", [_random(depth, rows), _scaled(columns, depth)], params, **_CLOSE)
    check("MatMul", [_random(depth, rows), static(_scaled(columns, depth))], params, **_CLOSE)


BATCHES = {
    "each its own": ((3, 2, 19, 20), (3, 2, 20, 33)),
    "left broadcast": ((1, 2, 19, 8), (4, 1, 8, 33)),
    "right of lower rank": ((3, 1, 19, 8), (2, 8, 33)),
    "one right for all": ((3, 2, 4, 20), (20, 33)),
    "single rows": ((3, 2, 1, 20), (3, 2, 20, 33)),
}


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("case", BATCHES)
def test_batches_are_broadcast(case: str, fixed: bool) -> None:
    left, right = BATCHES[case]
    matrix = _scaled(*right)
    check("MatMul", [_random(*left), static(matrix) if fixed else matrix], **_CLOSE)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("left", [(3, 20, 1), (2, 3, 1, 20), (3, 1, 1), (4, 20, 5)])
def test_transposed_batches_may_share_a_right_matrix(left: tuple[int, ...], fixed: bool) -> None:
    matrix = _scaled(left[-2], 33)
    check("MatMul", [_random(*left), static(matrix) if fixed else matrix], {"transpose_in0": True}, **_CLOSE)


def test_attention_shapes_match_the_reference() -> None:
    queries, keys = _random(2, 3, 64, 32), _scaled(2, 3, 64, 32)
    check("MatMul", [queries, keys], {"transpose_in1": True}, **_CLOSE)


def test_an_empty_product_runs_nothing() -> None:
    step, arrays = harness.make_step("MatMul", [np.zeros((0, 3), np.float32), static(_random(3, 4))])
    assert harness.run(step, arrays)[0].shape == (0, 4)


def test_a_product_over_no_elements_is_refused() -> None:
    step, _ = harness.make_step("MatMul", [np.zeros((2, 0), np.float32), np.zeros((0, 4), np.float32)])
    with pytest.raises(QnnError, match=r"'tested' \(MatMul\)"):
        harness.bind(step)


def test_panels_hold_the_bias_and_then_the_columns() -> None:
    right, bias = np.arange(6, dtype=np.float32).reshape(2, 3), np.float32([7, 8, 9])
    panels = pack_panels(right, bias, 2).view(np.float32).reshape(2, 3, 2)
    np.testing.assert_array_equal(panels, [[[7, 8], [0, 1], [3, 4]], [[9, 0], [2, 0], [5, 0]]])


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_few_columns_choose_a_narrow_tile(target: object) -> None:
    narrow = choose_tile(1000, 4, target)  # type: ignore[arg-type]
    assert narrow.vectors == 1


def test_many_columns_choose_the_preferred_tile() -> None:
    assert choose_tile(512, 480, by_name("avx512")) == PanelTile(8, 3)


def test_a_depth_is_divided_evenly() -> None:
    tile, target = PanelTile(8, 3), by_name("avx512")
    assert tile.depth_block(100, 1, target) == 100
    assert tile.depth_block(1536, 1, target) == 192
    assert tile.depth_block(9 * 128, 128, target) == 1
