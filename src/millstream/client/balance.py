"""An even placement of replicas with few moves. Pure: from what lies where to what should."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from millstream.client.wording import counted
from millstream.errors import InvalidReplicationFactor
from millstream.model import TopicPartition

Placement = Mapping[TopicPartition, Sequence[int]]


class Balance:
    """Replicas by partition, the preferred leader first, and how many each broker has.

    Counts of the same topic come before counts of all topics: each topic is spread evenly, and so is the
    whole. A partition never has two replicas on a broker, and its replicas lie in as many racks as
    they can.
    """

    def __init__(
        self, placement: Placement, brokers: Collection[int], racks: Mapping[int, str | None]
    ) -> None:
        self.placement = {partition: list(replicas) for partition, replicas in placement.items()}
        self._brokers = sorted(set(brokers))
        self._racks = {broker: racks.get(broker) or f"broker {broker}" for broker in self._brokers}
        self._topics: dict[str, list[TopicPartition]] = {}
        for partition in sorted(self.placement):
            self._topics.setdefault(partition.topic, []).append(partition)
        self._all: Counter[int] = Counter()
        self._of: dict[str, Counter[int]] = {topic: Counter() for topic in self._topics}
        for partition, replicas in self.placement.items():
            for broker in replicas:
                self._count(partition, broker, 1)

    def spread(self, factor: int | None) -> None:
        """Give every partition as many replicas as asked (as it has, where None), on these brokers only."""
        for partition in sorted(self.placement):
            replicas = self.placement[partition]
            wanted = len(replicas) if factor is None else factor
            if wanted > len(self._brokers):
                room = counted(len(self._brokers), "broker")
                raise InvalidReplicationFactor(
                    f"{partition} is to have {counted(wanted, 'replica')} on {room}"
                )
            for broker in [broker for broker in replicas if broker not in self._brokers]:
                replicas.remove(broker)
                self._count(partition, broker, -1)
            while len(replicas) > wanted:
                broker = self._dispensable(partition, replicas)
                replicas.remove(broker)
                self._count(partition, broker, -1)
            while len(replicas) < wanted:
                used = {self._racks[broker] for broker in replicas}
                broker = min(
                    (broker for broker in self._brokers if broker not in replicas),
                    key=lambda broker: (self._racks[broker] in used, *self._load(partition, broker), broker),
                )
                replicas.append(broker)
                self._count(partition, broker, 1)

    def part_racks(self) -> None:
        """Move replicas that share a rack to racks that have none, as after racks were named or changed."""
        for partition, replicas in sorted(self.placement.items()):
            while self._rack_count(replicas) < len(replicas):
                used = {self._racks[broker] for broker in replicas}
                free = [broker for broker in self._brokers if self._racks[broker] not in used]
                if not free:
                    break
                full = self._dispensable(partition, replicas)
                empty = min(free, key=lambda broker: (*self._load(partition, broker), broker))
                replicas[replicas.index(full)] = empty
                self._count(partition, full, -1)
                self._count(partition, empty, 1)

    def even_replicas(self) -> None:
        """Move replicas from brokers with many to brokers with few, until no move makes it more even."""
        everything = sorted(self.placement)
        while any(
            self._move_one(partitions, self._of[topic], None) for topic, partitions in self._topics.items()
        ) or self._move_one(everything, self._all, self._of):
            pass

    def even_leaders(self) -> None:
        """Choose preferred leaders so that each broker has as many as the others; moves nothing."""
        everything = sorted(self.placement)
        of = {topic: Counter(self.placement[p][0] for p in parts) for topic, parts in self._topics.items()}
        total = Counter(replicas[0] for replicas in self.placement.values())
        while any(
            self._lead_elsewhere(partitions, of[topic], total, of)
            for topic, partitions in self._topics.items()
        ) or self._lead_elsewhere(everything, total, total, of):
            pass

    def _move_one(
        self,
        partitions: Sequence[TopicPartition],
        counts: Counter[int],
        of: Mapping[str, Counter[int]] | None,
    ) -> bool:
        for full, empty in self._gaps(counts):
            for partition in partitions:
                replicas = self.placement[partition]
                if full not in replicas or empty in replicas:
                    continue
                if of is not None and of[partition.topic][full] <= of[partition.topic][empty]:
                    continue
                moved = [empty if broker == full else broker for broker in replicas]
                if self._rack_count(moved) < self._rack_count(replicas):
                    continue
                self.placement[partition] = moved
                self._count(partition, full, -1)
                self._count(partition, empty, 1)
                return True
        return False

    def _lead_elsewhere(
        self,
        partitions: Sequence[TopicPartition],
        counts: Counter[int],
        total: Counter[int],
        of: Mapping[str, Counter[int]],
    ) -> bool:
        for full, empty in self._gaps(counts):
            for partition in partitions:
                replicas, topic = self.placement[partition], of[partition.topic]
                if replicas[0] == full and empty in replicas and topic[full] > topic[empty]:
                    replicas.remove(empty)
                    replicas.insert(0, empty)
                    for count in (total, topic):
                        count[full] -= 1
                        count[empty] += 1
                    return True
        return False

    def _gaps(self, counts: Counter[int]) -> Iterator[tuple[int, int]]:
        """Pairs of brokers of which the first has at least two more, the widest gaps first."""
        pairs = [
            (counts[full] - counts[empty], full, empty)
            for full in self._brokers
            for empty in self._brokers
            if counts[full] - counts[empty] >= 2
        ]
        for _, full, empty in sorted(pairs, key=lambda pair: (-pair[0], pair[1], pair[2])):
            yield full, empty

    def _dispensable(self, partition: TopicPartition, replicas: Sequence[int]) -> int:
        """Which replica to do without: one of a rack that has more of them, of the broker that has most."""
        held = Counter(self._racks[broker] for broker in replicas)
        return max(
            replicas, key=lambda broker: (held[self._racks[broker]] > 1, self._load(partition, broker))
        )

    def _rack_count(self, replicas: Sequence[int]) -> int:
        return len({self._racks[broker] for broker in replicas})

    def _load(self, partition: TopicPartition, broker: int) -> tuple[int, int]:
        return self._of[partition.topic][broker], self._all[broker]

    def _count(self, partition: TopicPartition, broker: int, by: int) -> None:
        self._all[broker] += by
        self._of[partition.topic][broker] += by


def balanced(
    placement: Placement,
    brokers: Collection[int],
    racks: Mapping[int, str | None] | None = None,
    factor: int | None = None,
) -> dict[TopicPartition, list[int]]:
    """The partitions whose replicas should change, with their new replicas.

    After the moves each of `brokers` has as many replicas and preferred leaders as any other, or one more
    or less, as far as racks allow; brokers that are not named have none.
    """
    balance = Balance(placement, brokers, racks or {})
    balance.spread(factor)
    balance.part_racks()
    balance.even_replicas()
    balance.even_leaders()
    return {
        partition: replicas
        for partition, replicas in sorted(balance.placement.items())
        if replicas != list(placement[partition])
    }
