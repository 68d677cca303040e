"""Instances of which the answer is known: published ones, and squares cut into pieces."""

from pathlib import Path

import pytest

from isthmus.planning import Status, check, read_csv, solve
from planning.squares import square_in_pieces

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "minimalloc"
CAPACITY = 1_048_576

needs_files = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"MiniMalloc's instances are not in {FOLDER}")


@needs_files
@pytest.mark.parametrize("name", "ABCDEF")
def test_a_published_instance_fits_its_capacity(name) -> None:
    problem = read_csv(FOLDER / f"{name}.{CAPACITY}.csv", capacity=CAPACITY)
    plan = solve(problem, timeout=None)
    assert check(problem, plan.offsets) == plan.peak <= CAPACITY


@needs_files
@pytest.mark.parametrize("name", "ABCEF")
def test_a_published_instance_is_packed_to_its_lower_bound(name) -> None:
    problem = read_csv(FOLDER / f"{name}.{CAPACITY}.csv")
    plan = solve(problem, timeout=None)
    assert plan.status is Status.OPTIMAL
    assert check(problem, plan.offsets) == plan.peak == plan.lower_bound


@needs_files
def test_the_hardest_published_instance_is_packed_below_its_capacity() -> None:
    problem = read_csv(FOLDER / f"D.{CAPACITY}.csv")
    plan = solve(problem, timeout=None, node_limit=400_000)
    assert check(problem, plan.offsets) == plan.peak <= CAPACITY


@pytest.mark.parametrize("seed", range(5))
def test_a_square_in_pieces_is_put_together_again(seed) -> None:
    problem = square_in_pieces(60, seed)
    plan = solve(problem, timeout=None)
    assert plan.status is Status.OPTIMAL
    assert check(problem, plan.offsets) == plan.peak == 256
