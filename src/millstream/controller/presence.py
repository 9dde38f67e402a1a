"""Which brokers the controller hears of.

A session with the registry says that a broker is alive, not that the others can reach it. Brokers ask the
controller for news all the time, so one that has not asked for a while is cut off from it, though its session
goes on. Time is counted in rounds of the controller's own upkeep: one that was paused itself blames nobody.
"""

from __future__ import annotations

from collections.abc import Mapping

QUIET_ROUNDS = 4
"""After how many rounds a broker has missed its time to ask for news, and may turn out to be silent, too."""


class Presence:
    """How many rounds ago each other broker was heard of, in one term."""

    def __init__(self, broker_id: int, max_rounds: int) -> None:
        """`broker_id` is the controller's own; after `max_rounds` another one counts as silent."""
        self.max_rounds = max_rounds
        self.cut_off_rounds = 0
        """For how many rounds this broker has been cut off."""
        self._broker_id = broker_id
        self._rounds: dict[int, tuple[int, int]] = {}  # broker → its epoch, and rounds since it was heard of
        self._noted: dict[int, int] = {}
        self._leaving: dict[int, int] = {}
        self._passed = 0

    def heard(self, broker_id: int) -> None:
        """A broker has asked for news."""
        if broker_id in self._rounds:
            self._rounds[broker_id] = (self._rounds[broker_id][0], 0)

    def next_round(self, epochs: Mapping[int, int]) -> None:
        """Count one round more for each of the live brokers."""
        known = self._rounds
        self._rounds = {}
        for broker_id, epoch in epochs.items():
            if broker_id != self._broker_id:
                before, rounds = known.get(broker_id, (epoch, 0))
                self._rounds[broker_id] = (epoch, rounds + 1 if before == epoch else 1)
        self._noted = _still(self._noted, epochs)
        self._leaving = _still(self._leaving, epochs)
        self._passed += 1
        self.cut_off_rounds = self.cut_off_rounds + 1 if self.is_cut_off else 0

    @property
    def is_cut_off(self) -> bool:
        """Whether fewer than half of the live brokers are heard of, this one among them."""
        return self._is_cut_off_without(self.max_rounds)

    @property
    def is_in_doubt(self) -> bool:
        """Whether this broker will be cut off if those that have just missed their time stay silent.

        No cut silences all the others in the same round; the first of them would be taken for the one that is
        cut off.
        """
        return not self.is_cut_off and self._is_cut_off_without(QUIET_ROUNDS)

    def _is_cut_off_without(self, max_rounds: int) -> bool:
        missed = sum(rounds >= max_rounds for _, rounds in self._rounds.values())
        return 2 * missed > len(self._rounds) + 1

    @property
    def is_in_touch(self) -> bool:
        """Whether at least half of the brokers are heard of; a term that has just begun does not know."""
        return self._passed >= self.max_rounds and not self.cut_off_rounds

    @property
    def silent(self) -> dict[int, int]:
        """The brokers that have been silent for too long, with their epochs."""
        return {id_: epoch for id_, (epoch, rounds) in self._rounds.items() if rounds >= self.max_rounds}

    @property
    def has_news(self) -> bool:
        """Whether a broker is silent of which nothing has been noted yet."""
        return any(self._noted.get(id_) != epoch for id_, epoch in self.silent.items())

    def note(self, epochs: Mapping[int, int]) -> None:
        """The consequences of the silence of these brokers are drawn."""
        self._noted.update(epochs)

    def is_parted_with(self, broker_id: int, epoch: int) -> bool:
        """Whether a broker is to have a part again once it is heard of. One that leaves is not."""
        return self._noted.get(broker_id) == epoch and self._leaving.get(broker_id) != epoch

    def without_noted(self, epochs: Mapping[int, int]) -> dict[int, int]:
        """Those of the brokers whose word is waited for."""
        return {id_: epoch for id_, epoch in epochs.items() if self._noted.get(id_) != epoch}

    def forget(self, broker_id: int) -> None:
        """What is noted of a broker is over: it is heard of again."""
        self._noted.pop(broker_id, None)

    def leaves(self, broker_id: int, epoch: int) -> None:
        """A broker says itself that it stops."""
        self._leaving[broker_id] = epoch


def _still(noted: Mapping[int, int], epochs: Mapping[int, int]) -> dict[int, int]:
    """What is noted of brokers that are there in the same epoch."""
    return {broker_id: epoch for broker_id, epoch in noted.items() if epochs.get(broker_id) == epoch}
