"""Which brokers the controller hears of.

A session with the registry says that a broker is alive, not that the others can reach it. Brokers ask the
controller for news all the time, so one that has not asked for a while is cut off from it, though its session
goes on. Time is counted in rounds of the controller's own upkeep: one that was paused itself blames nobody.
"""

from __future__ import annotations

from collections.abc import Mapping


class Presence:
    """How many rounds ago each other broker was heard of, in one term."""

    def __init__(self, broker_id: int, max_rounds: int) -> None:
        """`broker_id` is the controller's own; after `max_rounds` another one counts as silent."""
        self._broker_id = broker_id
        self._max_rounds = max_rounds
        self._rounds: dict[int, tuple[int, int]] = {}  # broker → its epoch, and rounds since it was heard of
        self._noted: dict[int, int] = {}

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
        self._noted = {id_: epoch for id_, epoch in self._noted.items() if epochs.get(id_) == epoch}

    @property
    def silent(self) -> dict[int, int]:
        """The brokers that have been silent for too long, with their epochs."""
        return {id_: epoch for id_, (epoch, rounds) in self._rounds.items() if rounds >= self._max_rounds}

    @property
    def is_cut_off(self) -> bool:
        """Whether this broker hears of fewer than half of those that are alive, itself among them."""
        return 2 * len(self.silent) > len(self._rounds) + 1

    def news(self) -> dict[int, int]:
        """The silent brokers of which nothing has been noted yet."""
        return {id_: epoch for id_, epoch in self.silent.items() if self._noted.get(id_) != epoch}

    def note(self, broker_id: int, epoch: int) -> None:
        """The consequences of its silence are drawn."""
        self._noted[broker_id] = epoch

    def is_noted(self, broker_id: int) -> bool:
        return broker_id in self._noted

    def forget(self, broker_id: int) -> None:
        """It is heard of again, and the consequences of its silence are over."""
        self._noted.pop(broker_id, None)
