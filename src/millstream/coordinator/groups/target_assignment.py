"""The assignment that a consumer group is to come to, made anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from millstream.coordinator.groups.assignor import Assignor
from millstream.coordinator.groups.consumer_entries import Matched
from millstream.coordinator.groups.consumer_group import ConsumerGroup
from millstream.coordinator.groups.consumer_member import ConsumerMember, Partitions, same_id
from millstream.coordinator.groups.subscriber import Subscriber
from millstream.coordinator.groups.topics import Topics, known_topics


class Subscriptions:
    """The topics that members read, by id: many members read the same, which is looked up once."""

    def __init__(self, regexes: Mapping[str, Matched], topics: Topics) -> None:
        self._regexes = regexes
        self._topics = topics
        self._found: dict[tuple[frozenset[str], str], frozenset[UUID]] = {}
        self.counts: dict[UUID, int] = {}
        """The partitions of each topic that somebody reads."""

    def of(self, member: ConsumerMember) -> frozenset[UUID]:
        key = (member.topics, member.regex)
        found = self._found.get(key)
        if found is None:
            names = ConsumerGroup.subscribed([member], self._regexes)
            known = known_topics(names, self._topics)
            self.counts.update((same_id(topic.topic_id), topic.partition_count) for topic in known)
            found = self._found[key] = frozenset(same_id(topic.topic_id) for topic in known)
        return found


def make_target(
    group: ConsumerGroup, members: Iterable[ConsumerMember], subscriptions: Subscriptions, assignor: Assignor
) -> dict[str, Partitions]:
    """What each of the members, which may be others than the group has, is to have."""
    subscribers = {
        member.member_id: Subscriber(subscriptions.of(member), group.target_of(member), member.instance_id)
        for member in members
    }
    return assignor(subscribers, subscriptions.counts) if subscribers else {}
