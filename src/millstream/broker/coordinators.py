"""The coordinators of this broker: which partition of which internal topic looks after whom."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from millstream.broker.internal_log import PartitionLog
from millstream.cluster.metadata import Topic
from millstream.cluster.partition import Partition
from millstream.controller.topics import NewTopic
from millstream.coordinator.groups.shard import GroupShard
from millstream.coordinator.runtime import Runtime
from millstream.errors import CoordinatorNotAvailable, InvalidReplicationFactor, KafkaError
from millstream.model import TopicPartition

if TYPE_CHECKING:
    from millstream.broker.server import Broker

GROUPS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"

MIN_SEGMENT_BYTES = 1 << 20
"""What segment.bytes may be at least; the keys of the internal topics have no limit of their own."""

_LOAD_KEYS = {
    GROUPS_TOPIC: "offsets.load.buffer.size",
    TRANSACTIONS_TOPIC: "transaction.state.log.load.buffer.size",
}


@lru_cache(4096)
def java_hash(text: str) -> int:
    """Java's String.hashCode, as a signed 32-bit number; it counts in UTF-16 units."""
    units = text.encode("utf-16-be")
    value = 0
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


class Coordinators:
    """The runtimes by internal topic. Partitions that are led here are loaded; others are let go."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._runtimes: dict[str, Runtime[Any]] = {}
        self._led: dict[TopicPartition, Partition] = {}

    def add(self, topic: str, runtime: Runtime[Any]) -> None:
        """Let a runtime serve the partitions of an internal topic."""
        self._runtimes[topic] = runtime

    def stop(self) -> None:
        for runtime in self._runtimes.values():
            runtime.stop()

    async def until_loaded(self, timeout_s: float) -> None:
        """Wait, not for long, until what is led here is in service: then nobody has to ask again."""
        tasks = [task for runtime in self._runtimes.values() for task in runtime.loading]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    # Told by the replicas

    def lead(self, partition: Partition) -> None:
        """A partition is led here, or goes on being led, in a new epoch, with what was loaded."""
        runtime = self._runtimes.get(partition.name.topic)
        if runtime is not None and self._led.get(partition.name) is not partition:
            self._led[partition.name] = partition
            config, topic = self._broker.config, partition.name.topic
            codec = config["offsets.topic.compression.codec"] if topic == GROUPS_TOPIC else 0
            internal = PartitionLog(partition, self._broker.clock, config[_LOAD_KEYS[topic]], codec)
            runtime.lead(partition.name.partition, internal)

    def resign(self, partition: Partition) -> None:
        runtime = self._runtimes.get(partition.name.topic)
        if runtime is not None and self._led.get(partition.name) is partition:
            del self._led[partition.name]
            runtime.resign(partition.name.partition)

    # Who looks after what

    def partition_of(self, topic: str, key: str) -> int:
        """The partition of an internal topic that a group or a transactional id belongs to.

        CoordinatorNotAvailable while the topic does not exist: asking for the coordinator makes it.
        """
        found = self._broker.metadata.topics.get(topic)
        if found is None:
            raise CoordinatorNotAvailable
        return (java_hash(key) & 0x7FFFFFFF) % len(found.partitions)

    def leader_of(self, topic: str, index: int) -> int | None:
        """The other broker that leads a partition of an internal topic; None if it is this one.

        CoordinatorNotAvailable while nobody does.
        """
        state = self._broker.metadata.topic(topic).partitions[index]
        if state.leader == self._broker.config.node_id or TopicPartition(topic, index) in self._led:
            return None
        if state.leader not in self._broker.metadata.brokers:
            raise CoordinatorNotAvailable
        return state.leader

    def group_shard(self, group_id: str) -> GroupShard | None:
        """The shard that looks after a group, if it is in service here."""
        try:
            return self._broker.groups.shard(self.partition_of(GROUPS_TOPIC, group_id))
        except CoordinatorNotAvailable:
            return None

    async def topic(self, name: str) -> Topic:
        """An internal topic, made if it does not exist yet."""
        found = self._broker.metadata.topics.get(name)
        if found is not None:
            return found
        try:
            return await self._broker.controller_link.create_topic(self._new_topic(name))
        except KafkaError as error:
            # No controller, no word from it, or too few brokers at the moment.
            if error.retriable or isinstance(error, InvalidReplicationFactor):
                raise CoordinatorNotAvailable(error.message) from error
            raise

    def _new_topic(self, name: str) -> NewTopic:
        config = self._broker.config
        prefix = "offsets.topic" if name == GROUPS_TOPIC else "transaction.state.log"
        factor = self._replication_factor(f"{prefix}.replication.factor")
        min_in_sync = 2 if factor >= 3 else 1
        if name == TRANSACTIONS_TOPIC:
            min_in_sync = min(config["transaction.state.log.min.isr"], factor)
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(max(config[f"{prefix}.segment.bytes"], MIN_SEGMENT_BYTES)),
            "min.insync.replicas": str(min_in_sync),
            "unclean.leader.election.enable": "false",
        }
        return NewTopic(name, config[f"{prefix}.num.partitions"], factor, {}, configs)

    def _replication_factor(self, key: str) -> int:
        """What is configured, for a cluster: it is not made with less because some brokers are away.

        A broker that is alone and was told nothing has to do with itself.
        """
        config = self._broker.config
        factor: int = config[key]
        is_told = key in config.layers[-1].texts or config["registry"].startswith("zookeeper:")
        return factor if is_told else min(factor, len(self._broker.metadata.brokers))
