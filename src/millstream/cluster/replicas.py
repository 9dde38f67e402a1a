"""The partitions that this broker holds, found by topic and number."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from uuid import UUID

from millstream.clock import Clock
from millstream.cluster.metadata import Topic
from millstream.cluster.partition import Partition
from millstream.cluster.transactional_appends import Admission
from millstream.config.broker import BrokerConfig
from millstream.config.log import LogConfig, log_config
from millstream.errors import (
    FencedLeaderEpoch,
    KafkaStorageError,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)
from millstream.metrics import Metrics, TopicCounters
from millstream.model import TopicPartition
from millstream.storage.log import Log
from millstream.storage.store import Store

log = logging.getLogger(__name__)

YIELD_SECONDS = 0.01
"""How long opening or dropping many partitions may hold the loop at a time."""


class Replicas:
    """Every partition of this broker. Only the loop changes it."""

    def __init__(
        self, store: Store, config: BrokerConfig, clock: Clock, metrics: Metrics, admission: Admission
    ) -> None:
        """`admission` asks the coordinators about transactional batches."""
        self._metrics = metrics
        self._store = store
        self._config = config
        self._clock = clock
        self._admission = admission
        self._topics: dict[str, dict[int, Partition]] = {}
        self.on_lead: Callable[[Partition], None] = lambda _: None
        """Told of each partition that this broker begins to lead."""
        self.on_resign: Callable[[Partition], None] = lambda _: None
        """Told of each partition that this broker leads no more."""

    def __iter__(self) -> Iterator[Partition]:
        for partitions in list(self._topics.values()):
            yield from list(partitions.values())

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    def topic(self, name: str) -> dict[int, Partition]:
        """The partitions of a topic that this broker holds, by number."""
        return self._topics.get(name, {})

    def leader(self, topic: str, index: int, leader_epoch: int = -1) -> Partition:
        """The partition, if this broker leads it, and in the epoch the client believes in (KIP-320)."""
        try:
            partition = self._topics[topic][index]
        except KeyError:
            raise UnknownTopicOrPartition(f"there is no partition {index} of {topic!r} here") from None
        if partition.failure is not None:
            raise partition.failure
        if leader_epoch >= 0 and leader_epoch != partition.leader_epoch:
            if leader_epoch < partition.leader_epoch:
                raise FencedLeaderEpoch
            raise UnknownLeaderEpoch
        return partition

    async def take(self, topic: Topic, *, is_new: bool = True) -> None:
        """Hold the partitions of a topic that are this broker's.

        Those not held yet are made if they `is_new`. At a start, one that is not there is made only if its
        records cannot lie in a log dir that is not there either; else it is held, but offline.
        """
        loop = asyncio.get_running_loop()
        config = log_config(topic.overrides, self._config)
        held = self._topics.setdefault(topic.name, {})
        counters = TopicCounters(self._metrics, topic.name)
        pause_at = loop.time() + YIELD_SECONDS
        for index, state in enumerate(topic.partitions):
            if self._config.node_id not in state.replicas or index in held:
                continue
            name = TopicPartition(topic.name, index)
            opened = self._open(name, topic.topic_id, config, is_new)
            partition = Partition(
                name,
                topic.topic_id,
                state,
                opened,
                self._clock,
                counters,
                self._config["max.decompressed.bytes"],
                self._admission,
            )
            held[index] = partition
            if opened.failure is not None:
                partition.fail(KafkaStorageError(opened.failure))
            else:
                self.on_lead(partition)
            if loop.time() > pause_at:
                await asyncio.sleep(0)
                pause_at = loop.time() + YIELD_SECONDS

    def _open(self, name: TopicPartition, topic_id: UUID, config: LogConfig, is_new: bool) -> Log:
        store = self._store
        try:
            opened = store.get(name, topic_id)
            if opened is not None:
                opened.config = config
                return opened
            if is_new or store.may_create_missing:
                return store.create(name, topic_id, config)
        except KafkaStorageError as error:
            if is_new:
                raise
            return store.absent(name, config, error.message)
        return store.absent(name, config)

    async def drop(self, topic: Topic) -> None:
        """Hold a deleted topic's partitions no more; their folders are renamed now and removed later."""
        loop = asyncio.get_running_loop()
        held = self._topics.pop(topic.name, {})
        self._metrics.forget_topic(topic.name)
        pause_at = loop.time() + YIELD_SECONDS
        gone = UnknownTopicOrPartition(f"the topic {topic.name!r} was deleted")
        for index in range(len(topic.partitions)):
            partition = held.get(index)
            if partition is not None:
                partition.fail(gone)
                self.on_resign(partition)
            self._store.delete(TopicPartition(topic.name, index))
            if loop.time() > pause_at:
                await asyncio.sleep(0)
                pause_at = loop.time() + YIELD_SECONDS
        await loop.run_in_executor(None, self._store.sync_names)

    def configure(self, topic: Topic) -> None:
        """Take over a topic's changed configuration."""
        config = log_config(topic.overrides, self._config)
        for partition in self._topics.get(topic.name, {}).values():
            partition.configure(config)

    def dir_failed(self, path: str) -> None:
        """A log dir failed: its partitions go offline, the others go on."""
        for partition in self:
            if partition.log.dir_path == path:
                partition.fail(KafkaStorageError(f"the log dir {path} has failed"))
                self.on_resign(partition)
