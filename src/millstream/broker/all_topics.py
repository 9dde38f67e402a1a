"""All topics, as Metadata tells them: made once for all clients that asked before it was begun.

After a restart every client asks, and with thousands of topics what one of them is told is megabytes of
objects, which take long to make. Made for each at the same time, all would wait for the last of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

from millstream.cluster.metadata import Topic
from millstream.pauses import Pauses
from millstream.protocol.messages import MetadataResponse

Told = list[MetadataResponse.MetadataResponseTopic]


class AllTopics:
    """What is being told of all topics. It is nobody's to change."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._begun = 0
        self._asking = 0
        self._made: dict[Hashable, tuple[int, Told]] = {}
        """By what makes a difference, such as the listener: the number of the making, and what was made."""

    async def told(
        self,
        way: Hashable,
        topics: dict[str, Topic],
        tell: Callable[[Topic], MetadataResponse.MetadataResponseTopic],
    ) -> Told:
        """All topics as of now or later, told in a way. Between topics others have their turn."""
        begun_before = self._begun
        self._asking += 1
        try:
            async with self._turn:
                number, made = self._made.get(way, (0, []))
                if number <= begun_before:
                    self._begun += 1
                    number, made = self._begun, await _make(topics, tell)
                    self._made[way] = number, made
                return made
        finally:
            self._asking -= 1
            if not self._asking:
                self._made.clear()


async def _make(
    topics: dict[str, Topic], tell: Callable[[Topic], MetadataResponse.MetadataResponseTopic]
) -> Told:
    made: Told = []
    pauses = Pauses()
    for name in list(topics):
        if pauses.is_due:
            await pauses.take()
        known = topics.get(name)
        if known is not None:
            made.append(tell(known))
    return made
