"""Offsets in topics that are gone."""

from __future__ import annotations

from typing import Any

from millstream.coordinator.groups.offset_format import head_of, offset_tombstone, partition_at
from millstream.coordinator.groups.offsets import Offsets
from millstream.coordinator.rounds import Rounds
from millstream.coordinator.shard import Entry, Result, Timers

STEP = 10_000

TIMER = "deleted topics"


class DeletedTopics:
    """Removes the offsets that groups had in deleted topics, not those committed later in new ones.

    Which is which the order in this shard's log tells: a commit does not say which topic of that name it
    means, and clocks are set, or differ from the last coordinator's. What is there when the shard hears of
    the deletion goes, even if the last coordinator, which may have heard before, took it for the new topic:
    reading again does less harm than passing over what was never read. A shard that is loaded anew has not
    heard of anything: what was not removed by then stays.

    So it does with offsets of open transactions. Where one was committed later, all stay: what removes a
    position removes also what a transaction would make of it.
    """

    def __init__(self, offsets: Offsets, timers: Timers) -> None:
        self._offsets = offsets
        self._timers = timers
        self._rounds = Rounds(TIMER, timers, STEP)
        self._is_due = False
        self.later: dict[bytes, set[tuple[bytes, bytes]]] = {}
        """The topics that are gone, as their places begin, with the groups and places that something was
        committed for since."""

    def remove(self, topic: str) -> Result[Any]:
        """Begin to remove what was committed in a topic until now; soon, as many may go together.

        A round that is under way begins again, so that one that comes to its end has removed them all.
        """
        self.later[head_of(topic)] = set()
        if not self._is_due:
            self._is_due = True
            self._timers.set_idle(TIMER, self._begin)
        return Result(None)

    def committed(self, group: bytes, place: bytes) -> None:
        """Something was committed while there are topics whose offsets go."""
        later = self.later.get(place[:-4])
        if later is not None:
            later.add((group, place))

    def _begin(self) -> Result[Any]:
        self._is_due = False
        return self._rounds.begin(self._offsets, self._look, self.later.clear)

    def _look(self, group_id: str) -> tuple[list[Entry], int]:
        group = group_id.encode()
        entries = [
            offset_tombstone(group_id, partition_at(place))
            for place in self._offsets.within(group, self.later)
            if (group, place) not in self.later[place[:-4]]
        ]
        return entries, self._offsets.count(group_id)
