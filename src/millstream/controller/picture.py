"""The controller's picture of the cluster: what the registry holds, as of the controller's last write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple
from uuid import UUID

from millstream.cluster.metadata import BrokerNode, PartitionState, Topic
from millstream.config.broker import BrokerConfig
from millstream.config.topic import TOPIC_KEYS
from millstream.controller.elections import NOBODY, UNTOLD, End, Ends, Rules
from millstream.controller.tree import DEFAULT_BROKER, SeenNode
from millstream.errors import UnknownTopicId, UnknownTopicOrPartition

MIN_ISR = "min.insync.replicas"

Replica = tuple[UUID, int]
"""A partition, by its topic's id and its number."""


class Hindered(NamedTuple):
    """Replicas of one broker that others should lead, if they can."""

    damaged: Mapping[Replica, int]
    """Those of which records cannot be read, with the last leader epoch in which each was led or fetched."""
    full: frozenset[Replica]
    """Those that cannot be written, for want of room."""


NOT_HINDERED = Hindered({}, frozenset())


class ToldEnd(NamedTuple):
    """Where a broker said that a replica ends, and in which leader epoch it said so."""

    end: End
    leader_epoch: int


class Picture:
    """Topics, live brokers and what is set for them. Only the controller's turns change it."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.topics: dict[str, Topic] = {}
        self.ids: dict[UUID, Topic] = {}
        self.brokers: dict[int, BrokerNode] = {}
        self.was_clean: dict[int, bool] = {}
        """Whether each live broker's last stop was clean."""
        self.seen: dict[int, int] = {}
        """The registrations, by broker, whose consequences were drawn."""
        self.seen_racks: dict[int, str | None] = {}
        """The racks of all brokers that belong to the cluster, also of those that are away."""
        self.doubted: set[int] = set()
        """Brokers whose last stop was not clean, or one before, before all topics could be read."""
        self.stopping: dict[int, int] = {}
        """Brokers that are about to stop, with their epochs."""
        self.failed: dict[int, frozenset[Replica]] = {}
        """Replicas that live brokers cannot serve, because a log dir failed or no log could be made."""
        self.hindered: dict[int, Hindered] = {}
        """Replicas of live brokers that others should lead."""
        self.ends: dict[int, Mapping[Replica, ToldEnd]] = {}
        """Where live brokers' replicas end that are doubted, where they told."""
        self.deleted: dict[str, Topic] = {}
        """Topics that are deleted, but whose records or nodes could not all be removed yet."""
        self.unreadable: dict[str, str] = {}
        """Topics whose nodes describe none, and why. They stay as they are until somebody mends them."""
        self.configs: dict[str, dict[str, str]] = {}
        """What is set while running, by broker, and for all (DEFAULT_BROKER)."""
        self.min_isr_set_at = 0
        """The number of the feed from which on every min.insync.replicas is as it is now."""

    def take_seen(self, seen: Mapping[int, SeenNode]) -> None:
        """Note what earlier controllers wrote down of the brokers."""
        self.seen = {broker_id: node.epoch for broker_id, node in seen.items()}
        self.seen_racks = {broker_id: node.rack for broker_id, node in seen.items()}
        self.doubted = {broker_id for broker_id, node in seen.items() if node.is_doubted}

    def topic(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        return topic

    def topic_by_id(self, topic_id: UUID) -> Topic:
        topic = self.ids.get(topic_id)
        if topic is None:
            raise UnknownTopicId(f"no topic has the id {topic_id}")
        return topic

    def partition(self, topic: Topic, index: int) -> PartitionState:
        if not 0 <= index < len(topic.partitions):
            raise UnknownTopicOrPartition(f"{topic.name!r} has no partition {index}")
        return topic.partitions[index]

    def put(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        self.ids[topic.topic_id] = topic

    def remove(self, name: str) -> None:
        topic = self.topics.pop(name)
        del self.ids[topic.topic_id]

    def partitions(self) -> Iterator[tuple[Topic, int, PartitionState]]:
        for topic in self.topics.values():
            for index, state in enumerate(topic.partitions):
                yield topic, index, state

    @property
    def racks(self) -> dict[int, str | None]:
        """The brokers that may be given new replicas, with their racks."""
        return {
            broker_id: node.rack for broker_id, node in self.brokers.items() if broker_id not in self.stopping
        }

    @property
    def epochs(self) -> dict[int, int]:
        return {broker_id: node.epoch for broker_id, node in self.brokers.items()}

    @property
    def candidates(self) -> frozenset[int]:
        """The brokers that may lead what they can serve."""
        return frozenset(self.brokers.keys() - self.stopping.keys())

    def candidates_for(self, topic: Topic, index: int, candidates: AbstractSet[int]) -> AbstractSet[int]:
        """Those of the candidates that can serve a partition."""
        if not self.failed:
            return candidates
        return candidates - self.failed_for(topic, index)

    def stopping_for(self, topic: Topic, index: int) -> AbstractSet[int]:
        """The brokers that are about to stop, and can serve a partition until then."""
        return self.candidates_for(topic, index, self.stopping.keys())

    def failed_for(self, topic: Topic, index: int) -> AbstractSet[int]:
        if not self.failed:
            return NOBODY
        place = topic.topic_id, index
        return {broker_id for broker_id, replicas in self.failed.items() if place in replicas}

    def hindered_for(self, topic: Topic, index: int) -> AbstractSet[int]:
        """The brokers whose replica of a partition others should lead."""
        if not self.hindered:
            return NOBODY
        place = topic.topic_id, index
        return {id_ for id_, (damaged, full) in self.hindered.items() if place in damaged or place in full}

    def without_disks(self) -> AbstractSet[int]:
        """The brokers none of whose replicas can be served or written: new ones could not be, either."""
        found = {id_: set(replicas) for id_, replicas in self.failed.items()}
        for id_, hindered in self.hindered.items():
            found.setdefault(id_, set()).update(hindered.full)
        if found:
            for topic, index, state in self.partitions():
                for id_ in state.replicas:
                    if id_ in found and (topic.topic_id, index) not in found[id_]:
                        del found[id_]
        return found.keys()

    def ends_for(self, topic: Topic, index: int) -> Ends:
        """Where the doubted replicas of a partition end, as far as brokers told since nobody leads it."""
        if not self.ends:
            return UNTOLD
        place, now = (topic.topic_id, index), topic.partitions[index].leader_epoch
        told = {broker_id: ends[place] for broker_id, ends in self.ends.items() if place in ends}
        found = {broker_id: each.end for broker_id, each in told.items() if each.leader_epoch == now}
        return {**found, **dict.fromkeys(self.failed_for(topic, index))}

    def rules(self, topic: Topic, configs: Mapping[str, Mapping[str, str]] | None = None) -> Rules:
        """What elections of a topic's partitions depend on, also if `configs` were what is set for brokers.

        A leader keeps to them whenever it hears of another ISR: what the controller decides comes to it
        together with the configuration, and what it proposes itself is refused until it has heard of that.
        """
        allows_unclean = bool(self._value(topic, "unclean.leader.election.enable"))
        if MIN_ISR in topic.overrides or not self.brokers:
            return Rules(self._value(topic, MIN_ISR), allows_unclean)
        own = self._min_isrs(self.configs if configs is None else configs)
        largest = max(own.values())
        return Rules(largest, allows_unclean, own if min(own.values()) < largest else {})

    def _min_isrs(self, configs: Mapping[str, Mapping[str, str]]) -> dict[int, int]:
        """What each live broker takes for min.insync.replicas, where a topic does not say it."""
        every = configs.get(DEFAULT_BROKER, {}).get(MIN_ISR)
        found = {}
        for broker_id, node in self.brokers.items():
            text = configs.get(str(broker_id), {}).get(MIN_ISR, every)
            found[broker_id] = node.min_insync_replicas if text is None else int(text)
        return found

    def _value(self, topic: Topic, name: str) -> int:
        text = topic.overrides.get(name)
        value = self._config.topic_default(name)[0] if text is None else TOPIC_KEYS[name].parse(text)
        assert isinstance(value, int)
        return value
