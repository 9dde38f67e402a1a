"""Looks into a simulated cluster for logs whose starts move as they must not.

Records are deleted only once they are committed: a log starts at or below its high watermark. A start that
was raised stays so for as long as the broker lives, unless the log itself is cut off below it. Beyond what
somebody asked for only retention raises it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from weakref import WeakKeyDictionary

from millstream.cluster.partition import Partition
from tests.simulation.history import History

INTERVAL_S = 0.05


class StartWatch:
    """Complains of each such move."""

    def __init__(
        self,
        replicas: Callable[[], Iterable[tuple[str, Partition]]],
        history: History,
        *,
        has_retention: bool,
    ) -> None:
        """`replicas` are those of the topic now, each with its broker's name; `history` is the topic's."""
        self.moves = 0
        """How often a start was seen to be another one than before."""
        self.by_size = 0
        """How often it was one that nobody had asked for."""
        self._replicas = replicas
        self._history = history
        self._has_retention = has_retention
        self._seen: WeakKeyDictionary[Partition, tuple[int, int]] = WeakKeyDictionary()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            for name, replica in self._replicas():
                self._look_at(name, replica)

    def _look_at(self, name: str, replica: Partition) -> None:
        log = replica.log
        if not log.start_offset <= replica.high_watermark <= log.end_offset:
            self._history.complaints.append(
                f"{replica.name} on {name}: starts at {log.start_offset}, ends at {log.end_offset}, and is "
                f"committed up to {replica.high_watermark}"
            )
        cuts, start_offset = self._seen.get(replica, (log.cuts, log.start_offset))
        if log.start_offset < start_offset and log.cuts == cuts:
            self._history.complaints.append(
                f"{replica.name} on {name}: its start went back from {start_offset} to {log.start_offset}"
            )
        if log.start_offset != start_offset:
            self.moves += 1
            if log.start_offset > self._history.trimmed(replica.name.partition):
                self.by_size += 1
                if not self._has_retention:
                    text = f"{replica.name} on {name}: starts at {log.start_offset}, which nobody asked for"
                    self._history.complaints.append(text)
        self._seen[replica] = (log.cuts, log.start_offset)
