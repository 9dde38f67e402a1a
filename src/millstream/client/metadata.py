"""What a client knows of a cluster: its brokers, its topics, and who leads each partition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from uuid import UUID

from millstream.errors import LeaderNotAvailable, UnknownTopicOrPartition, error_for
from millstream.model import NO_UUID
from millstream.protocol.messages import MetadataResponse

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class Node:
    """A broker and the address at which it wants to be reached."""

    id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition as the cluster last described it."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic as the cluster last described it."""

    name: str
    id: UUID
    is_internal: bool
    partitions: dict[int, Partition]

    def known(self, index: int) -> Partition:
        """The partition, which must exist."""
        try:
            return self.partitions[index]
        except KeyError:
            last = len(self.partitions) - 1
            raise UnknownTopicOrPartition(
                f"topic {self.name} has partitions 0 to {last}, not {index}"
            ) from None

    def partition(self, index: int) -> Partition:
        """The partition, which must exist and have a leader."""
        partition = self.known(index)
        if partition.leader == NO_LEADER:
            raise LeaderNotAvailable(f"partition {self.name}-{index} has no leader at the moment")
        return partition


def check_topic(name: str) -> None:
    """Raise unless a name could be asked for; what it may consist of, brokers say."""
    if not isinstance(name, str):
        raise TypeError(f"a topic's name is a str, not {type(name).__name__}")
    name.encode()


@dataclass(slots=True)
class Metadata:
    """The newest picture of the cluster. A refresh of some topics leaves the others as they were.

    `errors` holds, by topic, the error code with which the cluster answered instead.
    """

    cluster_id: str | None = None
    controller_id: int = -1
    nodes: dict[int, Node] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)

    def update(self, response: MetadataResponse, *, is_complete: bool) -> None:
        """Take over an answer; `is_complete` when all topics were asked for.

        An answer that shows an older leader epoch than is known is behind the times (a broker that
        has not heard of the change) and does not replace the newer one.
        """
        self.cluster_id = response.cluster_id or self.cluster_id
        self.controller_id = response.controller_id
        self.nodes = {
            broker.node_id: Node(broker.node_id, broker.host, broker.port, broker.rack)
            for broker in response.brokers
        }
        if is_complete:
            answered = {topic.name for topic in response.topics}
            self.topics = {name: topic for name, topic in self.topics.items() if name in answered}
            self.errors.clear()
        for answer in response.topics:
            if answer.name is None:
                continue
            # A topic with an error for itself or still without leaders is listed all the same.
            if answer.error_code:
                self.errors[answer.name] = answer.error_code
                self.topics.pop(answer.name, None)
                continue
            self.errors.pop(answer.name, None)
            self.topics[answer.name] = self._topic(answer)

    def _topic(self, answer: MetadataResponse.MetadataResponseTopic) -> Topic:
        name = answer.name or ""
        known = self.topics.get(name)
        is_same = known is not None and known.id == answer.topic_id and answer.topic_id != NO_UUID
        partitions: dict[int, Partition] = {}
        for part in sorted(answer.partitions, key=lambda part: part.partition_index):
            index = part.partition_index
            new = Partition(
                index,
                part.leader_id,
                part.leader_epoch,
                tuple(part.replica_nodes),
                tuple(part.isr_nodes),
                tuple(part.offline_replicas),
            )
            old = known.partitions.get(index) if known is not None and is_same else None
            partitions[index] = old if old is not None and old.leader_epoch > new.leader_epoch else new
        return Topic(name, answer.topic_id, answer.is_internal, partitions)

    def take_leader(
        self, name: str, index: int, leader: int, leader_epoch: int, nodes: Iterable[Node]
    ) -> bool:
        """Take over what a broker that does not lead said of who does (KIP-951); whether that was news."""
        for node in nodes:
            self.nodes[node.id] = node
        topic = self.topics.get(name)
        known = topic.partitions.get(index) if topic is not None else None
        if topic is None or known is None or leader_epoch <= known.leader_epoch or leader not in self.nodes:
            return False
        topic.partitions[index] = replace(known, leader=leader, leader_epoch=leader_epoch)
        return True

    def topic(self, name: str) -> Topic:
        """The topic, or the error that the cluster gave for it."""
        if name in self.topics:
            return self.topics[name]
        code = self.errors.get(name, UnknownTopicOrPartition.code)
        if code == UnknownTopicOrPartition.code:
            raise UnknownTopicOrPartition(f"topic {name} does not exist")
        raise error_for(code)(f"topic {name}: {error_for(code)().message}")
