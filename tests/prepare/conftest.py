"""Changes of rules that rewrite are noticed: a graph says that it has changed exactly if a rule has changed it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection, Hashable

import pytest

from isthmus.prepare import passes
from isthmus.prepare.rewrite import Rule, rewrite
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work


def _state(work: Work) -> Hashable:
    """All that a rule may change."""
    steps = tuple(
        (id(s), rank, s.op, tuple(map(id, s.inputs)), tuple(map(id, s.outputs)), s.clamp, id(s.params))
        for s, rank in work.steps.items()
    )
    return steps, tuple((id(state), id(value)) for state, value in work.updates.items())


def _watched(rule: Rule) -> Rule:
    def tried(work: Work, step: Step) -> None:
        before, params = _state(work), [s.params for s in work.steps]  # kept, so that none takes the place of another
        rule(work, step)
        name = getattr(rule, "__name__", repr(rule))
        assert work.has_changed is (_state(work) != before), f"{name} at {step.op} {step.name}"
        del params

    return tried


@pytest.fixture(autouse=True)
def _changes_of_rules_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def checked(work: Work, *entries: tuple[Collection[str], Rule]) -> None:
        rewrite(work, *((ops, _watched(rule)) for ops, rule in entries))

    for found in pkgutil.iter_modules(passes.__path__):
        module = importlib.import_module(f"{passes.__name__}.{found.name}")
        if hasattr(module, "rewrite"):
            monkeypatch.setattr(module, "rewrite", checked)
