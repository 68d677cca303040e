"""Gathers, scatters and the like pick what numpy picks, and no index can reach outside its tensor."""

from __future__ import annotations

import numpy as np
import pytest
from support.suites import long

from engine.native.harness import (
    ON_TARGETS,
    Machine,
    Result,
    bind,
    check,
    make_step,
    quantized_input,
    run,
    static,
    targets,
)
from isthmus.engine.native.target import Target, host
from isthmus.graph import DataType

pytestmark = ON_TARGETS
RNG = np.random.default_rng(6)
UNSIGNED = (np.uint8, np.uint16, np.uint32, np.uint64)


def numbers(*dims: int, dtype: type = np.float32) -> np.ndarray:
    return RNG.integers(-50, 50, dims).astype(dtype)


def indices(size: int, *dims: int, dtype: type = np.int32) -> np.ndarray:
    return RNG.integers(-size, size, dims).astype(dtype)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_gather(axis: int, kind: type) -> None:
    x = numbers(5, 6, 7)
    check("Gather", [x, indices(x.shape[axis], 3, 4, dtype=kind)], {"axis": axis})
    check("Gather", [static(x), indices(x.shape[axis], dtype=kind)], {"axis": axis})


def test_gather_of_fixed_point_and_of_any_size() -> None:
    check("Gather", [quantized_input(numbers(9, 3, dtype=np.int8), 0.1, 3), indices(9, 4)], {"axis": 0})
    for dtype in (np.int8, np.int16, np.int64):
        check("Gather", [numbers(9, dtype=dtype), indices(9, 20)], {"axis": 0})


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_elements(axis: int) -> None:
    x = numbers(5, 6, 7)
    check("GatherElements", [x, indices(x.shape[axis], 4, 5, 6)], {"axis": axis})
    check("GatherElements", [x.astype(np.int64), indices(x.shape[axis], 4, 5, 6, dtype=np.int64)], {"axis": axis})


@pytest.mark.parametrize(("dims", "batch"), [((4, 2), 0), ((4, 3), 0), ((3, 2, 1), 0), ((5, 4, 1), 1), ((5, 6, 1), 2)])
def test_gather_nd(dims: tuple, batch: int) -> None:
    check("GatherNd", [numbers(5, 6, 7), indices(5, *dims)], {"batch_dims": batch})


@pytest.mark.parametrize(
    "operation", ["Gather", "GatherElements", "GatherNd", "ScatterElements", "ScatterNd", "OneHot"]
)
def test_indices_outside_touch_nothing_outside(operation: str) -> None:
    wild = np.array([[2**31 - 1], [-(2**31)], [9]], np.int32)
    x, updates = numbers(4, 1), numbers(3, 1)
    inputs = {"OneHot": [wild]}.get(operation, [x, wild, updates] if "Scatter" in operation else [x, wild])
    params = {"Gather": {"axis": 0}, "OneHot": {"depth": 5}}.get(operation, {})
    results = [Result((3, 1, 5), DataType.FLOAT_32)] if operation == "OneHot" else None
    step, arrays = make_step(operation, inputs, params, results)
    for guard in ("after", "before"):
        run(step, arrays, guard=guard)  # type: ignore[arg-type]


INDEXED = {
    "Gather": ({"axis": 1}, (5, 4, 3), (7,)),
    "GatherElements": ({"axis": 1}, (5, 4, 3), (5, 2, 3)),
    "GatherNd": ({"batch_dims": 0}, (4, 4, 3), (6, 2)),
    "ScatterElements": ({"axis": 1}, (5, 4, 3), (5, 2, 3)),
    "ScatterNd": ({}, (4, 4, 3), (6, 2)),
}


def machine(operation: str, places: np.ndarray, from_end: bool, threads: int, target: Target) -> Machine:
    """An operation on an axis of four elements, bound to these indices."""
    params, dims, _ = INDEXED[operation]
    more = places.shape if "Elements" in operation else (*places.shape[:-1], 3)
    inputs = [numbers(*dims), places, *([numbers(*more)] if "Scatter" in operation else [])]
    step, arrays = make_step(operation, inputs, params | {"from_end": from_end})
    found = bind(step, target, threads)
    for view, array in zip(found.inputs, arrays, strict=True):
        assert view is not None
        view[...] = array
    return found


@pytest.mark.parametrize("kind", [np.int32, long(np.int64)])
@pytest.mark.parametrize("operation", INDEXED)
def test_an_index_outside_its_axis_is_reported_from_any_thread(operation: str, kind: type) -> None:
    dims = INDEXED[operation][2]
    for target in targets():
        for threads in (1, 2):
            for wrong, from_end, fault in (
                (4, True, True), (-5, True, True), (2**31 - 1, True, True), (-4, True, False), (3, True, False),
                (-1, False, True), (4, False, True), (0, False, False),
            ):  # fmt: skip
                for place in (0, -1):
                    places = RNG.integers(0, 4, dims).astype(kind)
                    places.reshape(-1)[place] = wrong
                    tested = machine(operation, places, from_end, threads, target)
                    tested.run()
                    assert tested.fault == fault, (target.name, threads, wrong, place)


def test_an_unsigned_index_is_never_negative() -> None:
    tested = machine("Gather", np.array([1, 2**32 - 1], np.uint32), True, 1, host())
    tested.run()
    assert tested.fault


def test_a_length_beyond_its_sequence_is_reported() -> None:
    for length, fault in ((5, False), (0, False), (6, True), (-1, True)):
        inputs = [numbers(4, 5, 3), np.array([1, 2, 3, length], np.int32)]
        step, arrays = make_step("ReverseSequence", inputs, {"batch_axis": 0, "time_axis": 1})
        tested = bind(step)
        tested.run_on(arrays)
        assert tested.fault == fault, length


def test_a_negative_class_is_none_where_negative_indices_are_not_allowed() -> None:
    params = {"depth": 4, "from_end": False}
    found = check("OneHot", [np.array([-1, 2, 4], np.int32)], params, [Result((3, 4), DataType.FLOAT_32)])
    assert found[0].tolist() == [[0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("reduction", range(5))
@pytest.mark.parametrize(
    "dtype", [np.float32, np.int8, *(long(t) for t in (np.int64, np.float64, np.int16, np.int32, *UNSIGNED))]
)
def test_scatters(reduction: int, dtype: type) -> None:
    x = numbers(5, 6, 7, dtype=dtype)
    params = {"reduction": reduction}
    # Without a reduction the order of equal places would decide.
    places = np.argsort(RNG.random((5, 4, 7)), 0).astype(np.int32) if reduction == 0 else indices(5, 5, 4, 7)
    check("ScatterElements", [x, places, numbers(5, 4, 7, dtype=dtype)], {**params, "axis": 0}, in_place=[0])
    tuples = np.array([[0, 1], [-1, 2], [3, 5]] + [[2, 2]] * (1 if reduction == 0 else 3), np.int32)
    check("ScatterNd", [x, tuples, numbers(len(tuples), 7, dtype=dtype)], params, in_place=[0])


@pytest.mark.parametrize("dtype", [np.uint64, long(np.float64), long(np.int16), long(np.uint16), long(np.uint32)])
def test_order_of_other_numbers(dtype: type) -> None:
    x = numbers(4, 33, dtype=dtype)
    check("TopK", [x], {"k": 5}, [Result((4, 5), DataType.of(dtype)), Result((4, 5), DataType.INT_64)])
    check("Argmin", [x], {"axis": 1}, [Result((4,), DataType.INT_32)])


def test_scatter_of_fixed_point_moves_stored_values() -> None:
    x, updates = (quantized_input(numbers(n, 3, dtype=np.int8), 0.1, 3) for n in (9, 2))
    check("ScatterNd", [x, np.array([[1], [4]], np.int32), updates])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_one_hot(axis: int) -> None:
    for dtype in (DataType.FLOAT_32, DataType.INT_64, DataType.UINT_8):
        params = {"depth": 6, "axis": axis, "on_value": 3, "off_value": 1}
        dims = [4, 5]
        dims.insert(axis, 6)
        check("OneHot", [np.abs(indices(6, 4, 5)) % 6], params, [Result(tuple(dims), dtype)])


@pytest.mark.parametrize(("batch", "time"), [(0, 1), (1, 0), (2, 0), (0, 2)])
def test_reverse_sequence(batch: int, time: int) -> None:
    x = numbers(4, 5, 6, 3)
    lengths = RNG.integers(0, x.shape[time] + 1, x.shape[batch]).astype(np.int32)
    check("ReverseSequence", [x, lengths], {"batch_axis": batch, "time_axis": time})


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("op", ["Argmax", "Argmin"])
def test_places_of_extremes(op: str, axis: int) -> None:
    dims = tuple(d for i, d in enumerate((5, 13, 7)) if i != axis)
    for x in (
        numbers(5, 13, 7),
        numbers(5, 13, 7, dtype=np.int64),
        quantized_input(numbers(5, 13, 7, dtype=np.int8), 0.1),
    ):
        check(op, [x], {"axis": axis}, [Result(dims, DataType.INT_32)])
    check(op, [numbers(5, 13, 7)], {"axis": axis, "keep_dims": True},
          [Result((*dims[:axis], 1, *dims[axis:]), DataType.INT_64)])  # fmt: skip


@pytest.mark.parametrize("k", [1, 5, 33])
def test_top_k_keeps_the_order_of_equals(k: int) -> None:
    results = [Result((4, k)), Result((4, k), DataType.INT_32)]
    for largest in (True, False):
        check("TopK", [numbers(4, 33)], {"k": k, "largest": largest}, results)
