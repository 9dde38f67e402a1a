"""A member of a consumer group (KIP-848).

A member moves through epochs. It has `assigned` partitions, each with the epoch in which it got it
(KIP-1251), and `revoking` ones, which it was told to give up and may still be reading. Both are its own:
no other member gets a partition before it is in neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from millstream.coordinator.group_entries import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
)
from millstream.coordinator.groups.member import Protocols

Partitions = Mapping[UUID, frozenset[int]]
"""Partitions by topic id."""

Held = Mapping[UUID, Mapping[int, int]]
"""Partitions by topic id, each with the epoch in which its member got it."""


@lru_cache(65_536)
def same_id(topic_id: UUID) -> UUID:
    """One object for all ids that are equal: to find them is cheaper then, and so is to keep them."""
    return topic_id


@lru_cache(256)
def same_topics(topics: frozenset[str]) -> frozenset[str]:
    """One object for all subscriptions that are equal, as those of a group's members mostly are."""
    return topics


JOINING = 0
LEAVING = -1
LEAVING_FOR_A_WHILE = -2
"""The epoch of a static member that will come back within its session (KIP-345)."""

_Value = ConsumerGroupMemberMetadataValue
_Assignment = ConsumerGroupCurrentMemberAssignmentValue


class MemberState(IntEnum):
    """How far a member is on its way to the assignment that is meant for it."""

    STABLE = 0
    """It has what it should have in its epoch."""
    UNREVOKED_PARTITIONS = 1
    """It has to give partitions up, and has not said yet that it has."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that others have not given up yet."""


class ClassicSide(NamedTuple):
    """What a member that speaks the classic protocol said when it joined."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member as its coordinator knows it; a change makes a new one."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] = frozenset()
    """The topics that it is subscribed to by name."""
    regex: str = ""
    """The regular expression that it is subscribed by; "" is none."""
    assignor: str | None = None
    classic: ClassicSide | None = None
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Held = field(default_factory=dict)
    revoking: Held = field(default_factory=dict)

    # What it is

    @property
    def is_classic(self) -> bool:
        return self.classic is not None

    @property
    def protocols(self) -> Protocols:
        return [] if self.classic is None else list(self.classic.protocols)

    @property
    def assigned_partitions(self) -> dict[UUID, frozenset[int]]:
        return {topic_id: frozenset(epochs) for topic_id, epochs in self.assigned.items()}

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    def holds(self, topic_id: UUID, partition: int) -> bool:
        """Whether it may be reading a partition."""
        return partition in self.assigned.get(topic_id, ()) or partition in self.revoking.get(topic_id, ())

    # How it changes

    def moved(
        self, state: MemberState, epoch: int, assigned: Held, revoking: Held | None = None
    ) -> ConsumerMember:
        """It, further on its way; its epoch before this one is remembered."""
        return replace(
            self,
            state=state,
            epoch=epoch,
            previous_epoch=self.epoch,
            assigned=assigned,
            revoking={} if revoking is None else revoking,
        )

    # What the log keeps

    def metadata_value(self) -> _Value:
        classic = self.classic
        return _Value(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=sorted(self.topics),
            subscribed_topic_regex=self.regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.assignor,
            classic_member_metadata=None
            if classic is None
            else _Value.ClassicMemberMetadata(
                session_timeout_ms=classic.session_timeout_ms,
                supported_protocols=[
                    _Value.ClassicProtocol(name=name, metadata=metadata)
                    for name, metadata in classic.protocols
                ],
            ),
        )

    def assignment_value(self) -> _Assignment:
        return _Assignment(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=self.state.value,
            assigned_partitions=_written(self.assigned),
            partitions_pending_revocation=_written(self.revoking),
        )

    def with_metadata(self, value: _Value) -> ConsumerMember:
        """It, with what the log says of its subscription."""
        classic = value.classic_member_metadata
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            topics=same_topics(frozenset(value.subscribed_topic_names)),
            regex=value.subscribed_topic_regex or "",
            assignor=value.server_assignor,
            classic=None
            if classic is None
            else ClassicSide(
                classic.session_timeout_ms,
                tuple((each.name, each.metadata) for each in classic.supported_protocols),
            ),
        )

    def with_assignment(self, value: _Assignment | None) -> ConsumerMember:
        """It, with what the log says of its assignment; None if it has left."""
        if value is None:
            return replace(
                self,
                epoch=LEAVING,
                previous_epoch=LEAVING,
                state=MemberState.STABLE,
                assigned={},
                revoking={},
            )
        epoch = value.member_epoch
        return replace(
            self,
            epoch=epoch,
            previous_epoch=value.previous_member_epoch,
            # A state of a newer broker: its way is looked at again, which is right from everywhere.
            state=MemberState(value.state) if value.state in _STATES else MemberState.UNRELEASED_PARTITIONS,
            assigned=_read(value.assigned_partitions, epoch),
            revoking=_read(value.partitions_pending_revocation, epoch),
        )


_STATES = frozenset(state.value for state in MemberState)


def _written(held: Held) -> list[_Assignment.TopicPartitions]:
    return [
        _Assignment.TopicPartitions(
            topic_id=topic_id, partitions=list(epochs), assignment_epochs=list(epochs.values())
        )
        for topic_id, epochs in held.items()
    ]


def _read(topics: Iterable[_Assignment.TopicPartitions], epoch: int) -> Held:
    """Partitions whose epochs were not written count as got in the member's."""
    return {
        same_id(topic.topic_id): dict(zip(topic.partitions, topic.assignment_epochs, strict=True))
        if len(topic.assignment_epochs) == len(topic.partitions)
        else dict.fromkeys(topic.partitions, epoch)
        for topic in topics
    }
