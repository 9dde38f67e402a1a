"""Topics created, grown, configured and deleted: one decision at a time, in the controller's turn."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Protocol
from uuid import UUID

from millstream.cluster.metadata import PartitionState, Topic
from millstream.config.broker import BrokerConfig, check_dynamic
from millstream.config.log import check_topic_overrides
from millstream.controller import tree
from millstream.controller.elections import NOBODY, Rules, settled, with_isr
from millstream.controller.feed import Feed
from millstream.controller.ledger import Decision, Ledger
from millstream.controller.picture import MIN_ISR, Picture
from millstream.controller.reading import partition_numbers
from millstream.controller.topics import NewTopic, check_new_name, more_partitions, new_topic
from millstream.errors import (
    InvalidConfig,
    KafkaStorageError,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownTopicOrPartition,
)
from millstream.model import NO_UUID, encode_uuid
from millstream.registry.contract import Registry

log = logging.getLogger(__name__)

Alteration = Callable[[Mapping[str, str]], Mapping[str, str]]
"""From what is set to what shall be set."""


class OwnReplicas(Protocol):
    """What the controller tells its own broker at once, to learn whether its disks are in order."""

    async def prepare(self, topic: Topic, first: int = 0) -> None:
        """Make the logs of a topic's partitions, from `first` on, that are this broker's.

        KafkaStorageError if one that nobody else has cannot be made.
        """
        ...

    async def drop(self, topic: Topic) -> None:
        """Hold its partitions no more, and delete their records."""
        ...


class TopicChanges:
    """Decides about topics and configurations, and writes that down."""

    def __init__(
        self,
        registry: Registry,
        picture: Picture,
        feed: Feed,
        ledger: Ledger,
        replicas: OwnReplicas,
        config: BrokerConfig,
        random: Random,
        tried: dict[UUID, int],
    ) -> None:
        """`tried` says how many partitions a topic was to have, where that failed after some were made."""
        self._registry = registry
        self._picture = picture
        self._feed = feed
        self._ledger = ledger
        self._replicas = replicas
        self._config = config
        self._random = random
        self._tried = tried

    async def create(self, wanted: NewTopic, validate_only: bool) -> Topic:
        picture, config = self._picture, self._config
        check_new_name(wanted.name, picture.topics)
        if wanted.name in picture.unreadable:
            raise TopicAlreadyExists(
                f"the topic exists, but cannot be read: {picture.unreadable[wanted.name]}"
            )
        if wanted.name in picture.deleted and not validate_only:
            await self.finish_deletion(picture.deleted[wanted.name])
        check_topic_overrides(wanted.configs, config)
        racks = self._racks(is_placed=bool(wanted.assignment))
        topic = new_topic(
            wanted,
            self._new_id(),
            racks,
            config["num.partitions"],
            config["default.replication.factor"],
            self._random,
            self._absent(racks),
        )
        if validate_only:
            return topic
        await self._ledger.add_topic(topic)
        try:
            await self._replicas.prepare(topic)
        except Exception:  # a full disk: nothing half made may stand in the way of another try
            await self._ledger.mark_deleted(topic)
            await self.finish_deletion(topic)
            raise
        self._ledger.announce(topic)
        log.info("created the topic %s with %d partitions", topic.name, len(topic.partitions))
        return topic

    def _racks(self, *, is_placed: bool) -> dict[int, str | None]:
        """The brokers that new replicas are placed on: those that follow already, and can make logs, unless
        somebody else has placed them.

        A broker that starts must be able to tell the logs that it lost from those that it never had: all
        that is in the first state it hears of, and counts it as in sync, was there before it came.
        """
        picture, epochs = self._picture, self._picture.epochs
        found = {
            broker_id: rack
            for broker_id, rack in picture.racks.items()
            if self._feed.has_applied(broker_id, epochs[broker_id])
        }
        unfit = NOBODY if is_placed else picture.without_disks()
        return {broker_id: rack for broker_id, rack in found.items() if broker_id not in unfit} or found

    def _absent(self, racks: Mapping[int, str | None]) -> dict[int, str | None]:
        """The other brokers of the cluster: away, about to stop, without a disk, or not heard of it yet."""
        known = self._picture.seen_racks
        return {broker_id: rack for broker_id, rack in known.items() if broker_id not in racks}

    async def grow(
        self, name: str, total: int, assignments: Sequence[Sequence[int]] | None, validate_only: bool
    ) -> None:
        """The logs are made before the registry knows of them: a full disk changes nothing that is known,
        where no other broker can lead.

        What was made by then is found and taken when it is tried again.
        """
        topic = self._picture.topic(name)
        racks = self._racks(is_placed=assignments is not None)
        added = more_partitions(topic, total, assignments, racks, self._random, self._absent(racks))
        if validate_only:
            return
        first = len(topic.partitions)
        grown = Topic(topic.name, topic.topic_id, [*topic.partitions, *added], topic.overrides)
        self._tried[topic.topic_id] = max(total, self._tried.get(topic.topic_id, 0))
        await self._replicas.prepare(grown, first)
        await self._ledger.grow_topic(grown, first)
        if self._tried[topic.topic_id] <= total:
            del self._tried[topic.topic_id]
        self._ledger.announce(grown, first)

    async def delete(self, wanted: Topic) -> None:
        if not self._config["delete.topic.enable"]:
            raise TopicDeletionDisabled
        topic = self._picture.topic(wanted.name)  # `wanted` may have grown, or gone and come anew
        if topic.topic_id != wanted.topic_id:
            raise UnknownTopicOrPartition(f"that topic {wanted.name!r} was deleted; this is another one")
        await self._ledger.mark_deleted(topic)
        await self.finish_deletion(topic)
        log.info("deleted the topic %s", topic.name)

    async def finish_deletion(self, topic: Topic) -> None:
        """The records go first, the marker last: a deletion that is cut short goes on at the next start.

        What is removed is what there is, not what the topic was believed to have. Brokers that are away
        find out when they return. What a broker cannot remove, for a log dir that failed, stands in nobody's
        way; a broker alone tries on until it is gone, and nothing can come back under the topic's name.
        """
        name = topic.name
        if self._picture.deleted.get(name) is not topic:
            return
        numbers = await partition_numbers(self._registry, name)
        count = max(len(topic.partitions), self._tried.get(topic.topic_id, 0), *(n + 1 for n in numbers), 0)
        missing = [PartitionState([], [], -1, 0)] * (count - len(topic.partitions))
        try:
            await self._replicas.drop(Topic(name, topic.topic_id, [*topic.partitions, *missing]))
        except KafkaStorageError as error:
            if self._picture.seen.keys() <= {self._config.node_id}:
                raise
            log.warning("the topic %s is deleted, but some of it stays here: %s", name, error.message)
        await self._ledger.remove_topic(name, numbers)
        self._tried.pop(topic.topic_id, None)

    # Configurations

    async def set_topic_config(self, name: str, change: Alteration, validate_only: bool) -> None:
        topic = self._picture.topic(name)
        overrides = dict(change(topic.overrides))
        check_topic_overrides(overrides, self._config)
        if validate_only:
            return
        write = await self._ledger.config_operation(f"{tree.TOPIC_CONFIGS}/{name}", overrides)
        changed = replace(topic, overrides=overrides)
        await self._ledger.decide(_no_more_eligible(topic, self._picture.rules(changed)), [write])
        before, topic.overrides = topic.overrides, overrides
        self._feed.publish({name: ()})
        self._note_min_isr(before, overrides)

    async def set_broker_config(self, broker: str, change: Alteration, validate_only: bool) -> None:
        """Change what is set while running for a broker, or for all."""
        is_default = broker == tree.DEFAULT_BROKER
        if not is_default and broker not in map(str, self._picture.brokers):
            raise InvalidConfig(f"there is no broker {broker}")
        before = self._picture.configs.get(broker, {})
        after = dict(change(before))
        self._check(broker, before, after)
        if validate_only:
            return
        write = await self._ledger.config_operation(f"{tree.BROKER_CONFIGS}/{broker}", after)
        picture = self._picture
        configs = {**picture.configs, broker: after}
        decisions = [
            each
            for topic in picture.topics.values()
            for each in _no_more_eligible(topic, picture.rules(topic, configs))
        ]
        await self._ledger.decide(decisions, [write])
        picture.configs[broker] = after
        self._feed.publish()
        self._note_min_isr(before, after)

    def _check(self, broker: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Raise InvalidConfig if a configuration is not valid, as far as this broker can tell.

        Another broker has judged its own before it passed them on.
        """
        is_default = broker == tree.DEFAULT_BROKER
        if is_default or broker == str(self._config.node_id):
            self._config.check_change(before, after, is_default=is_default)
        else:
            check_dynamic(after, per_broker=True)

    def _note_min_isr(self, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        if before.get(MIN_ISR) != after.get(MIN_ISR):
            self._picture.min_isr_set_at = self._feed.sequence

    def _new_id(self) -> UUID:
        while True:
            made = UUID(int=self._random.getrandbits(128), version=4)
            if made != NO_UUID and not encode_uuid(made).startswith("-"):
                return made


def _no_more_eligible(topic: Topic, rules: Rules) -> Iterator[Decision]:
    """With a smaller min.insync.replicas commits may go on without those outside the ISR."""
    for index, state in enumerate(topic.partitions):
        if state.eligible or state.doubted:
            decided = settled(with_isr(state, state.isr, rules), rules)
            if decided != state:
                yield Decision(topic, index, decided)
