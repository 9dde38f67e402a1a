from __future__ import annotations

import pytest

from millstream.controller.patience import MAX_ROUNDS, MEMORY_S, STAND_BACK_S, Patience
from millstream.controller.presence import Presence

EPOCHS = {1: 10, 2: 20, 3: 30}


def silent_for(rounds: int) -> Presence:
    """A term in which nobody was heard of."""
    presence = Presence(1, max_rounds=3)
    for _ in range(rounds):
        presence.next_round(EPOCHS)
    return presence


def test_room_is_made_at_once_and_then_ever_more_rarely() -> None:
    patience = Patience()
    for rounds in (0, 3, 6, 12):
        assert not patience.is_over(silent_for(2 + rounds))
        presence = silent_for(3 + rounds)
        assert patience.is_over(presence)
        patience.makes_room(presence, 0.0)
        patience.listened(silent_for(1), 1.0)  # a term that has just begun shows nothing
    for _ in range(20):
        patience.makes_room(presence, 0.0)
    assert patience.is_over(silent_for(MAX_ROUNDS + 3))


@pytest.mark.parametrize(("now", "is_heard"), [(MEMORY_S, False), (1.0, True)])
def test_what_was_tried_is_forgotten_in_time_or_when_others_are_heard_of(now: float, is_heard: bool) -> None:
    patience, presence = Patience(), silent_for(1)
    patience.makes_room(silent_for(3), 0.0)
    assert patience.is_tried(MEMORY_S - 1.0)
    assert not patience.is_over(silent_for(3))
    for _ in range(3):
        if is_heard:
            presence.heard(2)
        presence.next_round(EPOCHS)
    patience.listened(presence, now)
    assert not patience.is_tried(now)
    assert patience.is_over(silent_for(3))


def test_a_free_office_is_left_to_others_for_a_moment() -> None:
    patience = Patience()
    assert not patience.is_tried(0.0)
    patience.makes_room(silent_for(3), 0.0)
    assert patience.seeks_at(0.0, is_free=True) == STAND_BACK_S
    assert patience.seeks_at(0.5, is_free=True) == STAND_BACK_S
    assert patience.seeks_at(0.6, is_free=False) == 0.6
    assert patience.seeks_at(5.0, is_free=True) == 5.0 + STAND_BACK_S
    patience.sought()
    assert patience.seeks_at(9.0, is_free=True) == 9.0 + STAND_BACK_S
