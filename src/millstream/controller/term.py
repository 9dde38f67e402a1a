"""One term of a controller: what it knows, what it tells the brokers, and what it decides with."""

from __future__ import annotations

from random import Random
from uuid import UUID

from millstream.config.broker import BrokerConfig
from millstream.controller import tree
from millstream.controller.feed import Feed
from millstream.controller.ledger import Ledger
from millstream.controller.office import Office
from millstream.controller.partition_changes import PartitionChanges
from millstream.controller.picture import Picture
from millstream.controller.reading import read_broker_configs, read_brokers, read_seen, read_topics
from millstream.controller.topic_changes import OwnReplicas, TopicChanges
from millstream.registry.contract import Registry

NOT_TOLD_YET = 1 << 62
"""A number that the feed never comes to."""


class Term:
    """A picture of the cluster and the feed of its changes. Used in the controller's turns."""

    def __init__(
        self,
        registry: Registry,
        office: Office,
        replicas: OwnReplicas,
        config: BrokerConfig,
        random: Random,
    ) -> None:
        self._registry = registry
        self._office = office
        self._replicas = replicas
        self._config = config
        self._random = random
        self.epoch = office.epoch
        self.feed = Feed()
        self._has_read = False
        self._tried: dict[UUID, int] = {}
        self._begin()

    def _begin(self) -> None:
        registry, feed = self._registry, self.feed
        picture = self.picture = Picture(
            self._config, lambda sequence: feed.is_applied(sequence, self.picture.epochs)
        )
        ledger = Ledger(registry, self._office, picture, feed)
        self.partitions = PartitionChanges(picture, feed, ledger)
        self.topics = TopicChanges(
            registry, picture, feed, ledger, self._replicas, self._config, self._random, self._tried
        )

    async def read(self) -> None:
        """Read everything, and decide what was left undecided; brokers are told everything."""
        registry, before = self._registry, self.picture
        self._begin()
        picture = self.picture
        picture.stopping = before.stopping
        if self._has_read:  # a min.insync.replicas may have been written that no leader was told
            picture.min_isr_set_at = NOT_TOLD_YET
        picture.configs = await read_broker_configs(registry)
        picture.seen = await read_seen(registry)
        deleted = set(await registry.children(tree.DELETED_TOPICS))
        for name, topic in (await read_topics(registry, await registry.children(tree.TOPICS))).items():
            if name in deleted:
                picture.deleted[name] = topic
            else:
                picture.put(topic)
        await self.partitions.brokers_are(await read_brokers(registry))
        await self.partitions.complete()
        self.feed.restart()
        if self._has_read:
            picture.min_isr_set_at = self.feed.sequence
        self._has_read = True

    async def look_at_brokers(self) -> None:
        """Draw the consequences, if brokers came or went."""
        found = await read_brokers(self._registry)
        if {broker_id: node.epoch for broker_id, (node, _) in found.items()} != self.picture.epochs:
            await self.partitions.brokers_are(found)

    def epoch_of(self, broker_id: int) -> int:
        """The registration of a live broker, once its consequences are drawn: before, it hears nothing."""
        node = self.picture.brokers.get(broker_id)
        return -1 if node is None or self.picture.seen.get(broker_id) != node.epoch else node.epoch
