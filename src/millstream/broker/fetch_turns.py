"""Whose turn it is among the partitions of a client whose answers are cut short."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.broker.fetch_session import FetchPosition, PartitionKey

MAX_REMEMBERED = 10_000


class FetchTurns:
    """The partitions that one connection was served since an answer last held all that there was.

    A client may leave out for a while what it has not handed on yet: it keeps its place meanwhile.
    """

    __slots__ = ("_served",)

    def __init__(self) -> None:
        self._served: dict[PartitionKey, None] = {}
        """The one that was served the longest ago first."""

    def ordered(self, positions: dict[PartitionKey, FetchPosition]) -> list[FetchPosition]:
        """Those that were not served yet as they were asked for, then the others, the last one at the end."""
        if not self._served:
            return list(positions.values())
        places = {key: place for place, key in enumerate(self._served, 1)}
        return [positions[key] for key in sorted(positions, key=lambda key: places.get(key, 0))]

    def cut(self, served: Iterable[PartitionKey]) -> None:
        """An answer left others out that the client had room for."""
        for key in served:
            self._served.pop(key, None)
            self._served[key] = None
        while len(self._served) > MAX_REMEMBERED:
            del self._served[next(iter(self._served))]

    def whole(self) -> None:
        """An answer held all that there was."""
        self._served.clear()
