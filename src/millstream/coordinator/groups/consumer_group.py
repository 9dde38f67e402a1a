"""A group of the consumer protocol (KIP-848), which the coordinator assigns partitions to.

Three epochs drive it. The *group epoch* grows with every change of members, subscriptions or topics. The
*assignment epoch* is the group epoch that the target assignment was made for. A *member epoch* is the
assignment epoch that the member has reached: the group is stable when all have reached the last.

Everything here but `empty_since_ms` is what the log says: only replaying changes it. Invariant: a partition
is held by at most one member (`owners` is the inverse of what the members hold).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from uuid import UUID

from millstream.coordinator.groups.assignor import ASSIGNORS
from millstream.coordinator.groups.consumer_entries import Matched, group_tombstones
from millstream.coordinator.groups.consumer_member import (
    LEAVING_FOR_A_WHILE,
    ConsumerMember,
    Held,
    Partitions,
)
from millstream.coordinator.groups.topics import KnownTopic, Topics, known_topics
from millstream.coordinator.shard import Entry
from millstream.errors import FencedInstanceId, UnknownMemberId

UNWRITTEN_EPOCH = 1
"""The epoch of a group that nobody has joined: the first member begins the next one, as in Kafka."""


class ConsumerState(Enum):
    """The states as clients are told them."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerGroup:
    """One group."""

    kind = "consumer"
    protocol_type = "consumer"
    is_consumer = True

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = UNWRITTEN_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = UNWRITTEN_EPOCH
        self.assignment_timestamp_ms = 0
        self.members: dict[str, ConsumerMember] = {}
        self.instances: dict[str, str] = {}
        """The member ids of static members, by instance id."""
        self.target: dict[str, Partitions] = {}
        self.regexes: dict[str, Matched] = {}
        """The topics of each regular expression that members are subscribed by."""
        self.owners: dict[tuple[UUID, int], str] = {}
        self.empty_since_ms: int | None = None
        """Since when it has had no members, as far as its coordinator has seen; the log does not tell."""
        self._subscribed: frozenset[str] | None = None

    # What it is

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> ConsumerState:
        """How far it is; may be asked from any thread."""
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in list(self.members.values())):
            return ConsumerState.STABLE
        return ConsumerState.RECONCILING

    @property
    def topics(self) -> frozenset[str]:
        """The topics that members are subscribed to, by name or by a regular expression."""
        if self._subscribed is None:
            self._subscribed = self.subscribed(self.members.values(), self.regexes)
        return self._subscribed

    def reads(self, topic: str) -> bool:
        return topic in self.topics

    @staticmethod
    def subscribed(members: Iterable[ConsumerMember], regexes: Mapping[str, Matched]) -> frozenset[str]:
        """The topics that these members are subscribed to."""
        sets = {member.topics for member in members}
        sets.update(regexes[member.regex].topics for member in members if member.regex in regexes)
        return frozenset().union(*sets)

    def regex_users(self, regex: str) -> int:
        return sum(member.regex == regex for member in self.members.values())

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        member_id = None if instance_id is None else self.instances.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def member(self, member_id: str) -> ConsumerMember:
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberId(f"{member_id} is not a member of the group {self.group_id}")
        return member

    def check_member(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """The member, or why the request is not from one: unknown, or fenced by a newer instance."""
        if instance_id is None:
            return self.member(member_id)
        member = self.static_member(instance_id)
        if member is None:
            raise UnknownMemberId(f"the instance id {instance_id} is not known")
        if member.member_id != member_id:
            raise FencedInstanceId(
                f"the instance id {instance_id} is that of the member {member.member_id} by now"
            )
        return member

    def target_of(self, member: ConsumerMember) -> Partitions:
        """What a member is to have; one that takes over a static member's place is to have the same."""
        target = self.target.get(member.member_id)
        if target is None and member.instance_id is not None:
            target = self.target.get(self.instances.get(member.instance_id, ""))
        return {} if target is None else target

    def is_free(self, topic_id: UUID, partition: int) -> bool:
        return (topic_id, partition) not in self.owners

    def preferred_assignor(self, members: Iterable[ConsumerMember]) -> str | None:
        """What most of the members that care want; the log may hold wishes that cannot be fulfilled here."""
        votes = Counter(member.assignor for member in members if member.assignor in ASSIGNORS)
        if not votes:
            return None
        best = max(votes.values())
        return min(name for name, count in votes.items() if name is not None and count == best)

    def has_left_for_a_while(self, member: ConsumerMember) -> bool:
        return member.epoch == LEAVING_FOR_A_WHILE

    def known_topics(self, topics: Topics) -> list[KnownTopic]:
        return known_topics(self.topics, topics)

    def tombstones(self) -> list[Entry]:
        """What removes it from the log."""
        return group_tombstones(self.group_id, {**self.members, **self.target}, self.regexes)

    # Replaying

    def put_member(self, member: ConsumerMember) -> None:
        """Take a member over as the log has it."""
        former = self.members.get(member.member_id)
        if former is not None:
            self._forget(former)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        for held in (member.assigned, member.revoking):
            for topic_id, number in _each(held):
                self.owners[topic_id, number] = member.member_id
        self._subscribed = None

    def remove_member(self, member_id: str) -> None:
        former = self.members.pop(member_id, None)
        if former is not None:
            self._forget(former)
            self._subscribed = None

    def loaded(self) -> None:
        """All of the log has been replayed: find out anew who has what.

        A log need not hold every entry that was ever written. So a member may have been replayed, for a
        while, with partitions that it had given up and that somebody else got meanwhile.
        """
        self.instances = {
            member.instance_id: member_id
            for member_id, member in self.members.items()
            if member.instance_id is not None
        }
        self.owners = {
            partition: member_id
            for member_id, member in self.members.items()
            for held in (member.assigned, member.revoking)
            for partition in _each(held)
        }

    def put_regex(self, regex: str, matched: Matched | None) -> None:
        if matched is None:
            self.regexes.pop(regex, None)
        else:
            self.regexes[regex] = matched
        self._subscribed = None

    def _forget(self, member: ConsumerMember) -> None:
        """Let go of a member's partitions and instance id, unless somebody else has them by now."""
        for held in (member.assigned, member.revoking):
            for partition in _each(held):
                if self.owners.get(partition) == member.member_id:
                    del self.owners[partition]
        if member.instance_id is not None and self.instances.get(member.instance_id) == member.member_id:
            del self.instances[member.instance_id]


def _each(held: Held) -> list[tuple[UUID, int]]:
    return [(topic_id, number) for topic_id, epochs in held.items() for number in epochs]
