"""A fetch session with one broker: only what has changed is asked for again (KIP-227)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from millstream.model import NO_UUID, TopicPartition
from millstream.protocol.messages import FetchRequest, FetchResponse

NO_SESSION = 0
FIRST_EPOCH = 0
LARGEST_EPOCH = 2**31 - 1


LAST_VERSION_WITH_NAMES = 12
"""Newer versions of Fetch name topics by id, which a topic of an old cluster does not have."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How much one Fetch brings, and how long the broker may wait for `min_bytes` of it."""

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 16 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024


class Wanted(NamedTuple):
    """What a Fetch asks of one partition."""

    topic_id: UUID
    offset: int
    leader_epoch: int


class FetchSession:
    """What the broker remembers of the last Fetch.

    The partitions of a request are those that are wanted now: what the broker remembers beyond them is
    taken back, what it remembers as it is wanted is not said again.
    """

    def __init__(self) -> None:
        self.id = NO_SESSION
        self.epoch = FIRST_EPOCH
        self._known: dict[TopicPartition, Wanted] = {}
        self._names: dict[UUID, str] = {}

    def request(
        self,
        wanted: Mapping[TopicPartition, Wanted],
        limits: FetchLimits,
        isolation_level: int,
        rack: str,
    ) -> FetchRequest:
        """The Fetch for these partitions."""
        by_topic: dict[tuple[str, UUID], list[FetchRequest.FetchPartition]] = defaultdict(list)
        forgotten: dict[tuple[str, UUID], list[int]] = defaultdict(list)
        known = self._known if self.id != NO_SESSION else {}
        for partition, want in wanted.items():
            if known.get(partition) != want:
                by_topic[partition.topic, want.topic_id].append(
                    FetchRequest.FetchPartition(
                        partition=partition.partition,
                        current_leader_epoch=want.leader_epoch,
                        fetch_offset=want.offset,
                        partition_max_bytes=limits.partition_max_bytes,
                    )
                )
        for partition, old in known.items():
            new = wanted.get(partition)
            if new is None or new.topic_id != old.topic_id:
                forgotten[partition.topic, old.topic_id].append(partition.partition)
        self._known = dict(wanted)
        self._names = {want.topic_id: partition.topic for partition, want in wanted.items()}
        return FetchRequest(
            max_wait_ms=limits.max_wait_ms,
            min_bytes=limits.min_bytes,
            max_bytes=limits.max_bytes,
            isolation_level=isolation_level,
            session_id=self.id,
            session_epoch=self.epoch,
            topics=[
                FetchRequest.FetchTopic(topic=name, topic_id=topic_id, partitions=parts)
                for (name, topic_id), parts in by_topic.items()
            ],
            forgotten_topics_data=[
                FetchRequest.ForgottenTopic(topic=name, topic_id=topic_id, partitions=indexes)
                for (name, topic_id), indexes in forgotten.items()
            ],
            rack_id=rack,
        )

    @property
    def has_names_only(self) -> bool:
        """Whether a topic without an id is among what is asked for."""
        return NO_UUID in self._names

    def name_of(self, topic: FetchResponse.FetchableTopicResponse) -> str:
        """The name of a topic in an answer; "" if it was not asked for."""
        return topic.topic or self._names.get(topic.topic_id, "")

    def answered(self, response: FetchResponse) -> None:
        """Go on with the session as the broker answered."""
        if response.error_code or response.session_id == NO_SESSION:
            self.reset()
            return
        self.id = response.session_id
        self.epoch = 1 if self.epoch == LARGEST_EPOCH else self.epoch + 1

    def reset(self) -> None:
        """Begin a new session with the next request: what became of the last one is not known."""
        self.id = NO_SESSION
        self.epoch = FIRST_EPOCH
        self._known = {}
