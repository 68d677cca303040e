"""Short names keep what tells tensors apart and fit the room there is."""

from hypothesis import given
from hypothesis import strategies as st

from isthmus.report import shorten


def test_folders_that_all_names_share_are_left_out() -> None:
    assert shorten(["net/a/conv", "net/a/relu", "net/b/conv"], 40) == ["a/conv", "a/relu", "b/conv"]


def test_of_names_that_a_converter_joined_the_first_counts() -> None:
    assert shorten(["block/Relu6;block/norm;block/kernel"], 40) == ["block/Relu6"]


def test_work_space_and_iterations_of_a_loop_have_names_of_their_own() -> None:
    names = ["cell/MatMul;cell/BiasAdd@5#1", "cell/MatMul;cell/BiasAdd@5#2", "cell/MatMul;cell/BiasAdd@5#2 (work)"]
    assert shorten(names, 40) == ["MatMul@5#1", "MatMul@5#2", "MatMul@5#2 (work)"]


def test_a_name_that_is_too_long_keeps_its_end() -> None:
    assert shorten(["encoder/layer.0/attention/self/query"], 16) == ["…/self/query"]
    assert shorten(["encoder/layer.0/attention/self/query"], 20) == ["…ttention/self/query"]
    assert shorten(["a" * 50 + "z"], 5) == ["…aaaz"]
    assert shorten(["a" * 50 + "z"], 5, "~") == ["~aaaz"]


def test_names_without_anything_to_cut_stay_as_they_are() -> None:
    assert shorten([], 10) == []
    assert shorten(["", "/", "x"], 10) == ["", "/", "x"]


def test_a_name_cannot_command_the_terminal() -> None:
    assert shorten(["\x1b[2Jgone\nnext"], 40) == ["?[2Jgone?next"]


@given(st.lists(st.text(max_size=60), max_size=6), st.integers(1, 50))
def test_any_names_are_shortened_to_the_width(names, width) -> None:
    short = shorten(names, width)
    assert len(short) == len(names)
    assert all(len(name) <= width for name in short)
