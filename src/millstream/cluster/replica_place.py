"""Where a follower reads in one partition, as its leader keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from millstream.protocol.messages import FetchRequest

if TYPE_CHECKING:
    from millstream.cluster.leadership import Leadership
    from millstream.cluster.partition import Partition


class Notes(Protocol):
    """Who wants to know where something happened."""

    def noted(self, place: Place) -> None:
        """There is something to tell at a place."""
        ...

    def noted_later(self, place: Place) -> None:
        """There is something to tell that can wait for a moment."""
        ...

    def nudge(self) -> None:
        """Something must be told at once."""
        ...


class Place:
    """Where a follower reads in one partition, and what it was last told of it."""

    __slots__ = (
        "fetch_offset",
        "high_watermark",
        "index",
        "is_fresh",
        "last_fetched_epoch",
        "leader_epoch",
        "leadership",
        "max_bytes",
        "partition",
        "session",
        "start_offset",
        "told_start",
        "topic_id",
    )

    def __init__(self, session: Notes, topic_id: UUID, index: int) -> None:
        self.session = session
        self.topic_id = topic_id
        self.index = index
        self.partition: Partition | None = None
        self.leadership: Leadership | None = None
        """The leadership that knows of it."""

    def update(self, wanted: FetchRequest.FetchPartition) -> None:
        self.fetch_offset = wanted.fetch_offset
        self.last_fetched_epoch = wanted.last_fetched_epoch
        self.leader_epoch = wanted.current_leader_epoch
        self.start_offset = self.told_start = wanted.log_start_offset
        self.max_bytes = wanted.partition_max_bytes
        self.high_watermark = wanted.high_watermark
        self.is_fresh = True
        """Whether it has not been compared with this log yet."""

    def hold(self, partition: Partition) -> None:
        if partition is not self.partition:
            self.leave()
            self.partition = partition
            partition.watchers[self] = None

    def leave(self) -> None:
        if self.partition is not None:
            self.partition.watchers.pop(self, None)
            self.partition = None

    # Told by the partition

    def appended(self) -> None:
        self.session.noted(self)

    def changed(self) -> None:
        self.session.nudge()
        self.session.noted(self)

    def committed(self) -> None:
        if self.partition is not None and self.partition.is_awaited:
            self.session.nudge()
            self.session.noted(self)
        else:
            self.session.noted_later(self)
