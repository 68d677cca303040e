"""The tests' own tools: interrupts at every place."""

from __future__ import annotations

import weakref

from support.interruption import everywhere


class Mortal:
    """Something that a weak reference can be to."""


def test_a_forgotten_object_leaves_no_dead_reference_and_no_new_place_behind():
    known = weakref.WeakSet()

    def deed():
        mortal = Mortal()
        known.add(mortal)
        for reference in known.data:
            reference()
        del mortal
        end()

    def end():
        pass

    places = list(everywhere(deed))
    assert not known.data, "what was forgotten is struck off, wherever the interrupt came"
    assert any(" end < " in place for place in places), "places after the one where it was forgotten"
    assert not any("_remove" in place for place in places)
    assert len(places) == len(list(everywhere(deed))), "as many places as before"


def test_a_deed_is_prepared_each_time_without_an_interrupt():
    calls, ready = [], []

    def prepare():
        calls.append("prepared")
        ready.append(True)

    def deed():
        assert ready, "prepared"
        ready.clear()

    places = list(everywhere(deed, prepare=prepare))
    assert len(calls) == 2 + len(places)
    assert not any(" prepare < " in place for place in places)
