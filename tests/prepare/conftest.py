"""Rules that rewrite tell the truth about it: what a rule says it changed it did, and what it left it left whole."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Hashable

import pytest

from isthmus.prepare import passes
from isthmus.prepare.rewrite import Rule, Rules, rewrite
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work


def _state(work: Work) -> Hashable:
    """All that a rule may change."""
    steps = tuple(
        (id(s), rank, s.op, tuple(map(id, s.inputs)), tuple(map(id, s.outputs)), s.clamp, id(s.params))
        for s, rank in work.steps.items()
    )
    return steps, tuple((id(state), id(value)) for state, value in work.updates.items())


def _held_to_its_word(rule: Rule) -> Rule:
    def tried(work: Work, step: Step) -> bool:
        before, params = _state(work), [s.params for s in work.steps]  # kept, so that none takes the place of another
        answer = rule(work, step)
        name = getattr(rule, "__name__", repr(rule))
        assert answer is (_state(work) != before), f"{name} says {answer} at {step.op} {step.name}"
        del params
        return answer

    return tried


@pytest.fixture(autouse=True)
def _rules_are_held_to_their_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def checked(work: Work, rules: Rules) -> None:
        rewrite(work, {op: [_held_to_its_word(rule) for rule in tried] for op, tried in rules.items()})

    for found in pkgutil.iter_modules(passes.__path__):
        module = importlib.import_module(f"{passes.__name__}.{found.name}")
        if hasattr(module, "rewrite"):
            monkeypatch.setattr(module, "rewrite", checked)
