"""A member of a consumer group as assignors see it."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from millstream.coordinator.groups.consumer_member import Partitions


class Subscriber(NamedTuple):
    """What a member reads, and what was meant for it so far."""

    topic_ids: frozenset[UUID]
    target: Partitions
    instance_id: str | None = None

    @property
    def target_size(self) -> int:
        return sum(map(len, self.target.values()))
