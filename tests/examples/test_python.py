"""The examples do what they say."""

import importlib.util
import sys
from pathlib import Path

import pytest
from support import zoo

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    """Loads an example by name, with the wake word from the models of the tests."""
    try:
        path = zoo.path("okay_nabu")
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    monkeypatch.syspath_prepend(EXAMPLES)

    def load(name):
        for module in ("wake_word", "lpai_wake_word"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        wake_word = importlib.import_module("wake_word")
        monkeypatch.setattr(wake_word, "find_model", lambda: path)
        return importlib.import_module(name)

    return load


def test_the_eight_steps_of_the_recommended_workflow_detect_the_wake_word(example, capsys) -> None:
    example("lpai_wake_word").main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(".")[0] for line in lines[:8]] == [str(number) for number in range(1, 9)]
    assert "87 times, 0 bytes copied" in lines[7]
    assert any("“okay nabu” heard at 2.22 s" in line for line in lines)


def test_the_wake_word_example_detects_the_wake_word(example, capsys) -> None:
    example("wake_word").main()
    assert "“okay nabu” heard at 2.22 s" in capsys.readouterr().out


def test_demo_shows_the_lpai_example_first() -> None:
    recipe = (EXAMPLES.parent / "Makefile").read_text().split("\ndemo:")[1].split("\n\n")[0]
    assert recipe.splitlines()[1].strip() == "$(BIN)/python examples/lpai_wake_word.py"
