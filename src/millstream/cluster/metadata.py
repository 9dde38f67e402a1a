"""A broker's picture of the cluster: brokers, topics, who leads what. Filled by what the controller says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from uuid import UUID

from millstream.errors import UnknownTopicId, UnknownTopicOrPartition

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})

NO_LEADER = -1


@dataclass(slots=True)
class PartitionState:
    """Who holds a partition. `version` is the state node's, for writes that must not be stale.

    While a reassignment goes on, `replicas` has all of them: those that stay, those of `adding` and those
    of `removing`.
    """

    replicas: list[int]
    isr: list[int]
    leader: int
    leader_epoch: int
    version: int = 0
    """The partition epoch: it grows with every change of the state."""
    adding: list[int] = field(default_factory=list)
    removing: list[int] = field(default_factory=list)
    eligible: list[int] = field(default_factory=list)
    """Replicas outside of the ISR that have all that was committed: they left when it fell below
    min.insync.replicas, since when nothing more could be committed (KIP-966)."""
    doubted: list[int] = field(default_factory=list)
    """Replicas that had all that was committed until a stop that was not clean: each may have lost the end of
    its log, or nothing. They count until a leader has enough others in sync to commit more."""


@dataclass(slots=True)
class Topic:
    """A topic as the registry describes it."""

    name: str
    topic_id: UUID
    partitions: list[PartitionState]
    overrides: dict[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        """Of the first partition; without those that a reassignment removes."""
        first = self.partitions[0]
        return len(first.replicas) - len(first.removing)


@dataclass(slots=True)
class TopicChange:
    """A topic, and those of its partitions that are new or changed."""

    name: str
    topic_id: UUID
    overrides: dict[str, str]
    partitions: dict[int, PartitionState]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address under which a broker can be reached."""

    listener: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """A live broker."""

    broker_id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    epoch: int = -1
    """The number of its registration; a later one has a greater number."""
    peer_listener: str = ""
    """The name of the listener that is for brokers."""
    is_stopping: bool = False
    min_insync_replicas: int = field(default=1, compare=False)
    """What it was started with. Only the controller knows."""

    @property
    def peer_endpoint(self) -> Endpoint | None:
        """Its address for other brokers."""
        return self.endpoint(self.peer_listener)

    def endpoint(self, listener: str) -> Endpoint | None:
        """Its address on the listener that the client came by."""
        for endpoint in self.endpoints:
            if endpoint.listener == listener:
                return endpoint
        return None


class Metadata:
    """Topics by name and id, live brokers, the controller. Only the loop changes it."""

    def __init__(self, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        self.controller_id = -1
        self.controller_epoch = -1
        self.brokers: dict[int, BrokerNode] = {}
        self.topics: dict[str, Topic] = {}
        self.on_topic_change: Callable[[str], None] = lambda _: None
        """Told the name of a topic that came, went, or may look different."""
        self._by_id: dict[UUID, Topic] = {}
        self._awaited: dict[str, asyncio.Future[None]] = {}

    def topic(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        return topic

    def topic_by_id(self, topic_id: UUID) -> Topic:
        topic = self._by_id.get(topic_id)
        if topic is None:
            raise UnknownTopicId(f"no topic has the id {topic_id}")
        return topic

    def find_by_id(self, topic_id: UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def put(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            before = self.topics.get(topic.name)
            if before is not None and before.topic_id != topic.topic_id:
                self._by_id.pop(before.topic_id, None)  # deleted, and nobody said so
            self.topics[topic.name] = topic
            self._by_id[topic.topic_id] = topic
            self.on_topic_change(topic.name)
            awaited = self._awaited.pop(topic.name, None)
            if awaited is not None:
                awaited.set_result(None)

    async def when_known(self, name: str, partitions: int = 1) -> Topic:
        """A topic, once this broker has heard of it, and of so many partitions."""
        while name not in self.topics or len(self.topics[name].partitions) < partitions:
            awaited = self._awaited.get(name)
            if awaited is None:
                awaited = self._awaited[name] = asyncio.get_running_loop().create_future()
            await asyncio.shield(awaited)
        return self.topics[name]

    def remove(self, name: str) -> Topic | None:
        topic = self.topics.pop(name, None)
        if topic is not None:
            self._by_id.pop(topic.topic_id, None)
            self.on_topic_change(name)
        return topic
