"""Offsets in topics that are gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.coordinator.groups.offset_format import offset_tombstone
from millstream.coordinator.groups.offsets import Offsets
from millstream.coordinator.rounds import Rounds
from millstream.coordinator.shard import Entry, Result, Timers

STEP = 10_000


class DeletedTopics:
    """Removes the offsets that groups had in deleted topics, not those committed later in new ones.

    So it does with those of open transactions. Where one was committed later, all stay: what removes a
    position removes also what a transaction would make of it.
    """

    def __init__(self, offsets: Offsets, timers: Timers) -> None:
        self._offsets = offsets
        self._rounds = Rounds("deleted topics", timers, STEP)
        self._gone: dict[str, int] = {}
        """The topics that are gone, and until when commits to them meant those."""

    def remove(self, topics: Mapping[str, int]) -> Result[Any]:
        """Begin to remove what was committed in these topics until they were deleted, which was when."""
        self._gone.update(topics)
        return self._rounds.begin(self._offsets, self._look, self._gone.clear)

    def _look(self, group_id: str) -> tuple[list[Entry], int]:
        entries = [
            offset_tombstone(group_id, partition)
            for partition, committed_ms in self._offsets.within(group_id, self._gone)
            if committed_ms <= self._gone[partition.topic]
        ]
        return entries, self._offsets.count(group_id)
