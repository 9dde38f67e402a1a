"""One term of a controller: what it knows, what it tells the brokers, and what it decides with."""

from __future__ import annotations

import logging
from random import Random
from uuid import UUID

from millstream.config.broker import BrokerConfig
from millstream.controller import tree
from millstream.controller.feed import Feed
from millstream.controller.hindrances import Hindrances
from millstream.controller.ledger import Ledger
from millstream.controller.office import Office
from millstream.controller.partition_changes import PartitionChanges
from millstream.controller.picture import Picture
from millstream.controller.presence import Presence
from millstream.controller.reading import read_broker_configs, read_brokers, read_seen, read_topics
from millstream.controller.topic_changes import OwnReplicas, TopicChanges
from millstream.metrics import Counter
from millstream.registry.contract import Registry

log = logging.getLogger(__name__)


class Term:
    """A picture of the cluster and the feed of its changes. Used in the controller's turns."""

    def __init__(
        self,
        registry: Registry,
        office: Office,
        replicas: OwnReplicas,
        config: BrokerConfig,
        random: Random,
        unclean_elections: Counter,
        silent_rounds: int,
    ) -> None:
        """After `silent_rounds` of upkeep a broker that asks for nothing counts as cut off."""
        self._registry = registry
        self._office = office
        self._replicas = replicas
        self._config = config
        self._random = random
        self._unclean_elections = unclean_elections
        self.epoch = office.epoch
        self.feed = Feed()
        self.presence = Presence(config.node_id, silent_rounds)
        self._tried: dict[UUID, int] = {}
        self._begin()

    def _begin(self) -> None:
        registry, feed = self._registry, self.feed
        picture = self.picture = Picture(self._config)
        ledger = Ledger(registry, self._office, picture, feed, self._unclean_elections)
        self.partitions = PartitionChanges(picture, feed, ledger)
        self.hindrances = Hindrances(picture, ledger)
        self.topics = TopicChanges(
            registry, picture, feed, ledger, self._replicas, self._config, self._random, self._tried
        )

    async def read(self) -> None:
        """Read everything, and decide what was left undecided; brokers are told everything.

        A min.insync.replicas may have been written that no leader was told: by a controller before this one,
        or by this one, if it was not answered. So leaders have to hear this before they propose anything.
        """
        registry, before = self._registry, self.picture
        self._begin()
        picture = self.picture
        picture.stopping = before.stopping
        picture.configs = await read_broker_configs(registry)
        picture.take_seen(await read_seen(registry))
        deleted = set(await registry.children(tree.DELETED_TOPICS))
        topics, picture.unreadable = await read_topics(registry, await registry.children(tree.TOPICS))
        for name, reason in picture.unreadable.items():
            log.error("the topic %s is left as it is, until it can be read: %s", name, reason)
        for name, topic in topics.items():
            if name in deleted:
                picture.deleted[name] = topic
            else:
                picture.put(topic)
        await self.partitions.brokers_are(await read_brokers(registry))
        await self.partitions.complete()
        self.feed.restart()
        picture.min_isr_set_at = self.feed.sequence

    async def is_mended(self) -> bool:
        """Whether a topic that could not be read can be now, or is gone."""
        picture = self.picture
        topics, still = await read_topics(self._registry, list(picture.unreadable))
        if len(topics) + len(still) < len(picture.unreadable):
            return True
        known = picture.ids.keys() | {topic.topic_id for topic in picture.deleted.values()}
        return any(topic.topic_id not in known for topic in topics.values())

    async def look_at_brokers(self) -> None:
        """Draw the consequences, if brokers came or went."""
        found = await read_brokers(self._registry)
        if {broker_id: node.epoch for broker_id, (node, _) in found.items()} != self.picture.epochs:
            await self.partitions.brokers_are(found)

    def epoch_of(self, broker_id: int) -> int:
        """The registration of a live broker, once its consequences are drawn: before, it hears nothing."""
        node = self.picture.brokers.get(broker_id)
        return -1 if node is None or self.picture.seen.get(broker_id) != node.epoch else node.epoch
