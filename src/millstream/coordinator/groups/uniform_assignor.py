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


def assign_uniformly(members: Mapping[str, Subscriber], counts: Mapping[UUID, int]) -> dict[str, Partitions]:
    """What each member is to have."""
    subscriptions = {member.topic_ids for member in members.values()}
    read = frozenset[UUID]().union(*subscriptions)
    places = _Places({topic_id: counts[topic_id] for topic_id in sorted(read) if topic_id in counts})
    is_alike = len(subscriptions) == 1
    kept, free = places.kept_and_free(members, is_alike=is_alike)
    if is_alike:
        before = {member_id: list(held) for member_id, held in kept.items()}
        _share_alike(kept, free)
        return {
            member_id: members[member_id].target
            if held == before[member_id] and len(held) == members[member_id].target_size
            else places.by_topic(held)
            for member_id, held in kept.items()
        }
    return _Balance(members, places, kept, free).assign()


class _Places:
    """Numbers all partitions through, topic after topic: numbers are cheaper to handle than ids."""

    def __init__(self, counts: Mapping[UUID, int]) -> None:
        self.topic_ids = list(counts)
        self.spans: dict[UUID, tuple[int, int]] = {}
        """The first place of each topic, and the number of its partitions."""
        self.firsts: list[int] = []
        """The first place of each topic, by its place in `topic_ids`."""
        self.topic_of: list[int] = []
        """The topic of each place, by its place in `topic_ids`."""
        for i, (topic_id, count) in enumerate(counts.items()):
            self.spans[topic_id] = len(self.topic_of), count
            self.firsts.append(len(self.topic_of))
            self.topic_of += [i] * count

    def kept_and_free(
        self, members: Mapping[str, Subscriber], *, is_alike: bool
    ) -> tuple[dict[str, list[int]], list[int]]:
        """The places that members have and may keep, in order, and those that nobody has.

        Members that read alike read every topic that is here.
        """
        spans = self.spans
        is_taken = bytearray(len(self.topic_of))
        kept: dict[str, list[int]] = {}
        for member_id in sorted(members):
            member = members[member_id]
            places = kept[member_id] = []
            for topic_id, numbers in member.target.items():
                span = spans.get(topic_id)
                if span is None or not (is_alike or topic_id in member.topic_ids):
                    continue
                start, count = span
                for number in numbers:
                    if number < count and not is_taken[start + number]:
                        is_taken[start + number] = 1
                        places.append(start + number)
            places.sort()
        return kept, [place for place, taken in enumerate(is_taken) if not taken]

    def by_topic(self, places: Iterable[int]) -> Partitions:
        found: dict[int, list[int]] = {}
        topic_of = self.topic_of
        for place in places:
            topic = topic_of[place]
            if topic in found:
                found[topic].append(place - self.firsts[topic])
            else:
                found[topic] = [place - self.firsts[topic]]
        return {self.topic_ids[topic]: frozenset(numbers) for topic, numbers in found.items()}


def _share_alike(kept: dict[str, list[int]], free: list[int]) -> None:
    """Share what all of them read. Those that have the most keep one more where it does not divide."""
    share, rest = divmod(sum(map(len, kept.values())) + len(free), len(kept))
    for places in sorted(kept.values(), key=len, reverse=True):
        limit = share
        if rest and len(places) > share:
            limit, rest = share + 1, rest - 1
        free += places[limit:]
        del places[limit:]
    free.reverse()
    wanting = deque(places for places in kept.values() if len(places) < share)
    while wanting:
        places = wanting.popleft()
        places.append(free.pop())
        if len(places) < share:
            wanting.append(places)
    for places in kept.values():
        if free and len(places) == share:
            places.append(free.pop())


class _Balance:
    """Shares what members read that do not all read the same. Topics are known by their number here."""

    def __init__(
        self,
        members: Mapping[str, Subscriber],
        places: _Places,
        kept: Mapping[str, list[int]],
        free: Iterable[int],
    ) -> None:
        self._places = places
        self._readers: list[list[str]] = [[] for _ in places.topic_ids]
        numbers = {topic_id: number for number, topic_id in enumerate(places.topic_ids)}
        for topic_ids, readers in _by_subscription(members).items():
            for topic_id in topic_ids:
                if topic_id in numbers:
                    self._readers[numbers[topic_id]] += readers
        self._free: dict[int, list[int]] = {}
        for place in free:
            self._free.setdefault(places.topic_of[place], []).append(place)
        self._held: dict[str, dict[int, list[int]]] = {}
        self._load = {member_id: len(held) for member_id, held in kept.items()}
        for member_id, held in kept.items():
            topics = self._held[member_id] = {}
            for place in held:
                topics.setdefault(places.topic_of[place], []).append(place)

    def assign(self) -> dict[str, Partitions]:
        self._hand_out()
        self._hand_over()
        while self._level():
            pass
        return {
            member_id: self._places.by_topic(place for places in topics.values() for place in places)
            for member_id, topics in self._held.items()
        }

    def _hand_out(self) -> None:
        """Give what nobody has to whoever has the least, the topics that few read first."""
        for topic in sorted(self._free, key=lambda topic: (len(self._readers[topic]), topic)):
            heap = [(self._load[member_id], member_id) for member_id in self._readers[topic]]
            heapify(heap)
            for place in self._free[topic]:
                load, member_id = heap[0]
                self._held[member_id].setdefault(topic, []).append(place)
                self._load[member_id] = load + 1
                heapreplace(heap, (load + 1, member_id))

    def _hand_over(self) -> None:
        """Let partitions go from those that have many straight to those that read the topic and have few.

        What is left to do then takes more than one step (`_level`), but it is little: else a member that was
        alone for a while would hold up those that come after it, with each of its partitions.
        """
        heaps: dict[int, list[tuple[int, str]]] = {}
        floor = min(self._load.values())
        for giver in sorted(self._load, key=lambda member_id: -self._load[member_id]):
            if self._load[giver] - floor < 2:
                continue
            held = self._held[giver]
            has_given = False
            for topic in sorted(held, key=lambda topic: (len(self._readers[topic]), topic)):
                places = held[topic]
                while places:
                    least, taker = self._least(topic, heaps)
                    if self._load[giver] - least < 2:
                        break
                    self._held[taker].setdefault(topic, []).append(places.pop())
                    self._load[giver] -= 1
                    self._load[taker] += 1
                    has_given = True
                if not places:
                    del held[topic]
            if has_given:
                floor = min(self._load.values())

    def _least(self, topic: int, heaps: dict[int, list[tuple[int, str]]]) -> tuple[int, str]:
        """A reader of a topic that has few partitions, and how many. Those that gave some are not seen."""
        heap = heaps.get(topic)
        if heap is None:
            heap = heaps[topic] = [(self._load[member_id], member_id) for member_id in self._readers[topic]]
            heapify(heap)
        while heap[0][0] != self._load[heap[0][1]]:
            member_id = heap[0][1]
            heapreplace(heap, (self._load[member_id], member_id))
        return heap[0]

    def _level(self) -> bool:
        """Let partitions go from those that have many to those that have few; whether one did.

        From whoever one cannot reach anybody who has two fewer, nobody on the way can either, if those that
        have more come first: so each member is looked at once.
        """
        has_moved = False
        settled: set[str] = set()
        least = min(self._load.values())
        for member_id in sorted(self._load, key=lambda member_id: -self._load[member_id]):
            while member_id not in settled and self._load[member_id] - least > 1:
                path = self._path_down(member_id, settled)
                for giver, topic, taker in path:
                    places = self._held[giver][topic]
                    self._held[taker].setdefault(topic, []).append(places.pop())
                    if not places:
                        del self._held[giver][topic]
                if path:
                    self._load[member_id] -= 1
                    self._load[path[-1][2]] += 1
                    has_moved = True
        return has_moved

    def _path_down(self, start: str, settled: set[str]) -> list[tuple[str, int, str]]:
        """How a partition of `start` can reach, from member to member, one that has at least two fewer.

        The shortest way, so that few partitions move. If there is none, [], and all that can be reached
        are settled.
        """
        limit = self._load[start] - 2
        came_from: dict[str, tuple[str, int] | None] = {start: None}
        seen: set[int] = set()
        queue = deque([start])
        while queue:
            giver = queue.popleft()
            for topic in self._held[giver]:
                if topic in seen:
                    continue
                seen.add(topic)
                found: str | None = None
                for taker in self._readers[topic]:
                    if taker in came_from:
                        continue
                    came_from[taker] = (giver, topic)
                    queue.append(taker)
                    load = self._load[taker]
                    if load <= limit and (found is None or load < self._load[found]):
                        found = taker
                if found is not None:
                    return _steps(came_from, found)
        settled.update(came_from)
        return []


def _by_subscription(members: Mapping[str, Subscriber]) -> dict[frozenset[UUID], list[str]]:
    """The members that read the same: many do, and looking up topics by their ids is dear."""
    found: dict[frozenset[UUID], list[str]] = {}
    for member_id, member in members.items():
        found.setdefault(member.topic_ids, []).append(member_id)
    return found


def _steps(came_from: Mapping[str, tuple[str, int] | None], end: str) -> list[tuple[str, int, str]]:
    steps = []
    taker = end
    while (step := came_from[taker]) is not None:
        giver, topic = step
        steps.append((giver, topic, taker))
        taker = giver
    return steps[::-1]
