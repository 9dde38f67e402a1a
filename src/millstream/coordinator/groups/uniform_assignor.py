"""The assignor `uniform`: every member gets as many partitions as its subscription allows, and keeps what
it has where that is possible.

Where all members read the same topics, nobody has more than one partition more than another. Where they do
not, no partition can be handed on, from member to member if need be, so that two members come nearer to
each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from heapq import heapify, heapreplace
from uuid import UUID

from millstream.coordinator.groups.consumer_member import Partitions
from millstream.coordinator.groups.subscriber import Subscriber

Partition = tuple[UUID, int]


def assign_uniformly(members: Mapping[str, Subscriber], counts: Mapping[UUID, int]) -> dict[str, Partitions]:
    """What each member is to have."""
    subscriptions = {member.topic_ids for member in members.values()}
    if len(subscriptions) == 1:
        (topic_ids,) = subscriptions
        held = _share_alike(members, {topic: counts[topic] for topic in sorted(topic_ids) if topic in counts})
    else:
        held = _Balance(members, counts).assign()
    return {member_id: _by_topic(partitions) for member_id, partitions in held.items()}


def _share_alike(members: Mapping[str, Subscriber], counts: Mapping[UUID, int]) -> dict[str, list[Partition]]:
    """Share what all of them read. Those that have the most keep one more where it does not divide."""
    kept, free = _kept_and_free(members, counts)
    share, rest = divmod(sum(counts.values()), len(members))
    for member_id in sorted(kept, key=lambda member_id: -len(kept[member_id])):
        partitions = kept[member_id]
        limit = share
        if rest and len(partitions) > share:
            limit, rest = share + 1, rest - 1
        free += partitions[limit:]
        del partitions[limit:]
    free.reverse()
    wanting = deque(member_id for member_id in kept if len(kept[member_id]) < share)
    while wanting:
        member_id = wanting.popleft()
        kept[member_id].append(free.pop())
        if len(kept[member_id]) < share:
            wanting.append(member_id)
    for member_id in kept:
        if free and len(kept[member_id]) == share:
            kept[member_id].append(free.pop())
    return kept


class _Balance:
    """Shares what members read that do not all read the same."""

    def __init__(self, members: Mapping[str, Subscriber], counts: Mapping[UUID, int]) -> None:
        self._readers: dict[UUID, list[str]] = {}
        for member_id, member in members.items():
            for topic_id in member.topic_ids:
                if topic_id in counts:
                    self._readers.setdefault(topic_id, []).append(member_id)
        read = {topic_id: counts[topic_id] for topic_id in sorted(self._readers)}
        kept, self._free = _kept_and_free(members, read)
        self._held: dict[str, dict[UUID, list[int]]] = {}
        self._load: dict[str, int] = {}
        for member_id, partitions in kept.items():
            self._load[member_id] = len(partitions)
            topics = self._held[member_id] = {}
            for topic_id, number in partitions:
                topics.setdefault(topic_id, []).append(number)

    def assign(self) -> dict[str, list[Partition]]:
        self._hand_out()
        while self._level():
            pass
        return {
            member_id: [(topic_id, number) for topic_id, numbers in topics.items() for number in numbers]
            for member_id, topics in self._held.items()
        }

    def _hand_out(self) -> None:
        """Give what nobody has to whoever has the least, the topics that few read first."""
        by_topic: dict[UUID, list[int]] = {}
        for topic_id, number in self._free:
            by_topic.setdefault(topic_id, []).append(number)
        for topic_id in sorted(by_topic, key=lambda topic_id: (len(self._readers[topic_id]), topic_id)):
            heap = [(self._load[member_id], member_id) for member_id in self._readers[topic_id]]
            heapify(heap)
            for number in by_topic[topic_id]:
                load, member_id = heap[0]
                self._held[member_id].setdefault(topic_id, []).append(number)
                self._load[member_id] = load + 1
                heapreplace(heap, (load + 1, member_id))

    def _level(self) -> bool:
        """Let partitions go from those that have many to those that have few; whether one did."""
        has_moved = False
        for member_id in sorted(self._load, key=lambda member_id: -self._load[member_id]):
            while path := self._path_down(member_id):
                for giver, topic_id, taker in path:
                    numbers = self._held[giver][topic_id]
                    self._held[taker].setdefault(topic_id, []).append(numbers.pop())
                    if not numbers:
                        del self._held[giver][topic_id]
                self._load[member_id] -= 1
                self._load[path[-1][2]] += 1
                has_moved = True
        return has_moved

    def _path_down(self, start: str) -> list[tuple[str, UUID, str]]:
        """How a partition of `start` can reach, from member to member, one that has at least two fewer.

        The shortest way, so that few partitions move; [] if there is none.
        """
        limit = self._load[start] - 2
        came_from: dict[str, tuple[str, UUID] | None] = {start: None}
        seen: set[UUID] = set()
        queue = deque([start])
        while queue:
            giver = queue.popleft()
            for topic_id in self._held[giver]:
                if topic_id in seen:
                    continue
                seen.add(topic_id)
                found: str | None = None
                for taker in self._readers[topic_id]:
                    if taker in came_from:
                        continue
                    came_from[taker] = (giver, topic_id)
                    queue.append(taker)
                    if self._load[taker] <= limit and (
                        found is None or self._load[taker] < self._load[found]
                    ):
                        found = taker
                if found is not None:
                    return _steps(came_from, found)
        return []


def _steps(came_from: Mapping[str, tuple[str, UUID] | None], end: str) -> list[tuple[str, UUID, str]]:
    steps = []
    taker = end
    while (step := came_from[taker]) is not None:
        giver, topic_id = step
        steps.append((giver, topic_id, taker))
        taker = giver
    return steps[::-1]


def _kept_and_free(
    members: Mapping[str, Subscriber], counts: Mapping[UUID, int]
) -> tuple[dict[str, list[Partition]], list[Partition]]:
    """What members have and may keep, and what nobody has."""
    taken: set[Partition] = set()
    kept: dict[str, list[Partition]] = {}
    for member_id in sorted(members):
        member = members[member_id]
        partitions = kept[member_id] = []
        for topic_id in sorted(member.target):
            if topic_id not in counts or topic_id not in member.topic_ids:
                continue
            for number in sorted(member.target[topic_id]):
                partition = (topic_id, number)
                if number < counts[topic_id] and partition not in taken:
                    taken.add(partition)
                    partitions.append(partition)
    free = [
        (topic_id, number)
        for topic_id, count in counts.items()
        for number in range(count)
        if (topic_id, number) not in taken
    ]
    return kept, free


def _by_topic(partitions: Iterable[Partition]) -> Partitions:
    topics: dict[UUID, set[int]] = {}
    for topic_id, number in partitions:
        topics.setdefault(topic_id, set()).add(number)
    return {topic_id: frozenset(numbers) for topic_id, numbers in topics.items()}
