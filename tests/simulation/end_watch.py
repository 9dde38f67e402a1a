"""A client that asks for the end of partitions, over and over: it never goes back (KIP-207).

A broker that has lost its session and does not know it yet may tell of less; whoever knows a later leader
epoch does not believe it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random

from millstream.errors import error_for
from millstream.protocol.messages import ListOffsetsRequest
from tests.simulation.brokers import Brokers
from tests.simulation.client import LATEST
from tests.simulation.history import History
from tests.simulation.ledger import Place

VERSION = 7
REST_S = 0.5
"""How long it pauses at most."""


class EndWatch:
    """Complains of each end that is before one that was told."""

    def __init__(self, brokers: Brokers, history: History, random: Random) -> None:
        self.counts: Counter[str] = Counter()
        self._brokers = brokers
        self._history = history
        self._random = random
        self._told: dict[Place, tuple[int, int]] = {}
        """The leader epoch and the end that were told last."""

    async def run(self, places: Sequence[Place]) -> None:
        while True:
            for place in places:
                await self._ask(place)
            await asyncio.sleep(self._random.uniform(0.0, REST_S))

    async def _ask(self, place: Place) -> None:
        asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=place[1], timestamp=LATEST)
        topic = ListOffsetsRequest.ListOffsetsTopic(name=place[0], partitions=[asked])
        try:
            answer = await self._brokers.ask_leader(
                *place, ListOffsetsRequest(replica_id=-1, topics=[topic]), VERSION
            )
        except OSError:
            return
        found = answer.topics[0].partitions[0]
        if found.error_code:
            self._brokers.forget_leader(*place)
            self.counts[f"ends: {error_for(found.error_code).__name__}"] += 1
            return
        epoch, end = self._told.get(place, (-1, 0))
        if found.leader_epoch < epoch:
            return
        self.counts["ends told"] += 1
        self._told[place] = (found.leader_epoch, found.offset)
        if found.offset < end:
            self._history.complaints.append(
                f"{place} ends at {found.offset} in epoch {found.leader_epoch}, after {end} in epoch {epoch}"
            )
