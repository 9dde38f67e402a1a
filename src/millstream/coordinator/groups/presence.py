"""Who is in a group and reads what, in names, whichever protocol the group speaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from millstream.coordinator.groups.classic_group import ClassicGroup, State
from millstream.coordinator.groups.consumer_group import ConsumerGroup
from millstream.coordinator.groups.subscription import read_assignment, read_subscription
from millstream.coordinator.groups.topics import Topics
from millstream.errors import ProtocolError
from millstream.model import TopicPartition


class Presence(NamedTuple):
    """A member, what it is subscribed to, and what it reads; None while the group is not agreed on that.

    `pattern` says how it is subscribed: to topics by name ("static"), by a regular expression
    ("white_list"), or in a way that only its own kind of group knows (the protocol type).
    """

    member_id: str
    topics: frozenset[str]
    pattern: str
    partitions: list[TopicPartition] | None


BY_NAME = "static"
BY_REGEX = "white_list"


def presences(group: ClassicGroup | ConsumerGroup, topics: Topics) -> Iterator[Presence]:
    """All members of a group."""
    return _consumers(group, topics) if isinstance(group, ConsumerGroup) else _classic_members(group)


def _classic_members(group: ClassicGroup) -> Iterator[Presence]:
    for member in group.members.values():
        names: frozenset[str] = frozenset()
        partitions: list[TopicPartition] | None = None
        if group.is_consumer:
            try:
                names = frozenset(read_subscription(member.metadata(group.protocol_name)).topics)
                if group.state is State.STABLE:
                    partitions = [
                        TopicPartition(topic.topic, index)
                        for topic in read_assignment(member.assignment).assigned_partitions
                        for index in topic.partitions
                    ]
            except ProtocolError:
                pass
        yield Presence(
            member.member_id, names, BY_NAME if group.is_consumer else group.protocol_type or "", partitions
        )


def _consumers(group: ConsumerGroup, topics: Topics) -> Iterator[Presence]:
    for member in group.members.values():
        partitions = []
        for topic_id, held in member.assigned.items():
            topic = topics.by_id(topic_id)
            if topic is not None:
                partitions += [TopicPartition(topic.name, index) for index in held]
        matched = group.regexes.get(member.regex)
        names = member.topics if matched is None else member.topics | matched.topics
        yield Presence(member.member_id, frozenset(names), BY_REGEX if member.regex else BY_NAME, partitions)
