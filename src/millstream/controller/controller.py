"""The controller: the one broker that changes what topics exist and who leads their partitions.

It has one queue and one task, so that decisions never interleave. Every write to the registry is a
multi that checks the controller's epoch: a controller that was replaced writes nothing more.

The metadata and the partitions held follow what is written. Where it is not known whether a write was
made (the registry did not answer, the session was lost), the registry is read before the next decision.
While the registry cannot be used, every decision is refused with NotController, which clients retry.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Protocol, TypeVar
from uuid import UUID

from millstream.clock import Clock
from millstream.cluster.metadata import Metadata, PartitionState, Topic
from millstream.config.broker import BrokerConfig
from millstream.config.log import check_topic_overrides
from millstream.controller import tree
from millstream.controller.office import Office
from millstream.controller.reading import (
    partition_numbers,
    partition_removals,
    read_broker_config,
    read_topic,
)
from millstream.controller.topics import NewTopic, check_new_name, more_partitions, new_topic
from millstream.controller.turns import Turns
from millstream.errors import (
    InvalidConfig,
    KafkaError,
    NotController,
    TopicDeletionDisabled,
    UnknownTopicOrPartition,
)
from millstream.model import NO_UUID, encode_uuid
from millstream.registry.contract import (
    BadVersion,
    Create,
    Delete,
    NodeExists,
    Operation,
    Registry,
    RegistryError,
    SessionLost,
    Set,
    Unavailable,
)

log = logging.getLogger(__name__)

T = TypeVar("T")


class Replicas(Protocol):
    """What the controller tells a broker to do with its partitions."""

    async def take(self, topic: Topic) -> None:
        """Hold the partitions of a new or changed topic that are this broker's."""
        ...

    async def drop(self, topic: Topic) -> None:
        """Hold them no more, and delete their records."""
        ...

    def configure(self, topic: Topic) -> None:
        """The topic's configuration changed."""
        ...


class Controller:
    """Creates, changes and deletes topics."""

    def __init__(
        self,
        registry: Registry,
        metadata: Metadata,
        replicas: Replicas,
        config: BrokerConfig,
        clock: Clock,
        random: Random,
    ) -> None:
        self._registry = registry
        self._metadata = metadata
        self._replicas = replicas
        self._config = config
        self._clock = clock
        self._random = random
        patience_s = 2 * config["registry.session.timeout.ms"] / 1000
        self._office = Office(registry, config.node_id, clock, patience_s)
        self._turns = Turns()
        self._unfinished: dict[str, Topic] = {}
        """Topics that are deleted, but whose records or nodes could not all be removed yet."""
        self._reasons: dict[str, str] = {}
        """Why they could not, as it was last logged."""
        self._tried: dict[UUID, int] = {}
        """How many partitions a topic was to have, where that failed after some were made."""
        self._is_unsure = False
        """Whether the registry may hold something else than this controller believes."""

    @property
    def epoch(self) -> int:
        """The controller's epoch; it grows each time the office is taken."""
        return self._office.epoch

    async def start(self) -> None:
        """Become the controller, with an epoch greater than any before."""
        await self._office.take()
        self._metadata.controller_id = self._config.node_id
        self._turns.start()

    def session_lost(self) -> None:
        """Decide nothing until `resume`: somebody else may be the controller."""
        self._office.leave()
        self._is_unsure = True

    async def resume(self) -> None:
        """Become the controller again, in a new session, after what was under way has ended."""
        await self._turns.take(self._office.take)

    async def stop(self) -> None:
        await self._turns.stop()

    async def load(self) -> None:
        """Read everything from the registry; note the deletions that were under way."""
        await self._load_broker_configs()
        deleted = set(await self._registry.children(tree.DELETED_TOPICS))
        for name in await self._registry.children(tree.TOPICS):
            topic = await read_topic(self._registry, name)
            if name in deleted:
                self._unfinished[name] = topic
            else:
                self._metadata.put([topic])

    async def _load_broker_configs(self) -> frozenset[str]:
        own = await read_broker_config(self._registry, str(self._config.node_id))
        default = await read_broker_config(self._registry, tree.DEFAULT_BROKER)
        return self._config.set_dynamic(broker=own, default=default)

    async def _catch_up(self) -> None:
        """Follow the registry in what was written without this controller knowing that it was."""
        deleted = set(await self._registry.children(tree.DELETED_TOPICS))
        for name in await self._registry.children(tree.TOPICS):
            found = await read_topic(self._registry, name)
            if name in deleted or name in self._unfinished:
                known = self._metadata.remove(name)
                self._unfinished.setdefault(name, known or found)
                continue
            await self._follow(found)
        if await self._load_broker_configs():
            self._configure_all()
        self._is_unsure = False

    async def _follow(self, found: Topic) -> None:
        known = self._metadata.topics.get(found.name)
        if known is None:
            await self._take_new(found)
        elif known.topic_id != found.topic_id:
            log.error("the registry has another topic %s than this broker", found.name)
        elif known != found:
            added = found.partitions[len(known.partitions) :]
            merged = Topic(found.name, found.topic_id, [*known.partitions, *added], found.overrides)
            await self._replicas.take(merged)
            self._metadata.put([merged])
            self._replicas.configure(merged)

    # What handlers ask for

    async def create_topic(self, wanted: NewTopic, *, validate_only: bool = False) -> Topic:
        """Make a topic, and answer when it can be produced to."""
        return await self._in_turn(lambda: self._create_topic(wanted, validate_only))

    async def delete_topic(self, topic: Topic) -> None:
        await self._in_turn(lambda: self._delete_topic(topic))

    async def add_partitions(
        self, name: str, total: int, assignments: Sequence[Sequence[int]] | None, *, validate_only: bool
    ) -> None:
        await self._in_turn(lambda: self._add_partitions(name, total, assignments, validate_only))

    async def set_topic_config(
        self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]], *, validate_only: bool
    ) -> None:
        """Change what a topic sets itself, by a function from what it sets now."""
        await self._in_turn(lambda: self._set_topic_config(name, change, validate_only))

    async def set_broker_config(
        self, broker: str, change: Callable[[Mapping[str, str]], Mapping[str, str]], *, validate_only: bool
    ) -> None:
        """Change what is set while running for a broker, or for all (DEFAULT_BROKER)."""
        await self._in_turn(lambda: self._set_broker_config(broker, change, validate_only))

    async def finish_deletions(self) -> None:
        """Go on with deletions that were cut short, by a crash or a disk that failed."""
        for topic in list(self._unfinished.values()):
            try:
                await self._in_turn(lambda topic=topic: self._finish_deletion(topic))  # type: ignore[misc]
            except KafkaError as error:
                if self._reasons.get(topic.name) != error.message:
                    self._reasons[topic.name] = error.message
                    log.warning("the topic %s could not be removed yet: %s", topic.name, error.message)

    async def _in_turn(self, decide: Callable[[], Awaitable[T]]) -> T:
        """Have a decision made when those before it are done; NotController if it cannot be."""

        async def decide_in_office() -> T:
            if not self._office.is_held:
                raise NotController("the session with the registry is lost; a new one is about to begin")
            try:
                if self._is_unsure:
                    await self._catch_up()
                return await decide()
            except RegistryError:
                self._is_unsure = True
                raise

        try:
            return await self._turns.take(decide_in_office)
        except RegistryError as error:
            is_expected = isinstance(error, SessionLost | Unavailable | BadVersion)
            log.warning("the registry refused a decision: %s", error, exc_info=None if is_expected else error)
            raise NotController(f"the registry cannot be used at the moment: {error}") from error

    # Decisions carried out, one at a time

    async def _create_topic(self, wanted: NewTopic, validate_only: bool) -> Topic:
        metadata, config = self._metadata, self._config
        check_new_name(wanted.name, metadata.topics)
        if wanted.name in self._unfinished and not validate_only:
            await self._finish_deletion(self._unfinished[wanted.name])
        check_topic_overrides(wanted.configs, config)
        racks = {broker.broker_id: broker.rack for broker in metadata.brokers.values()}
        topic = new_topic(
            wanted,
            self._new_id(),
            racks,
            config["num.partitions"],
            config["default.replication.factor"],
            self._random,
        )
        if validate_only:
            return topic
        node = tree.topic_path(topic.name)
        ops: list[Operation] = [Create(node, tree.dump(tree.node_of(topic))), Create(f"{node}/partitions")]
        if topic.overrides:
            ops.append(self._config_op(f"{tree.TOPIC_CONFIGS}/{topic.name}", topic.overrides, is_new=True))
        ops += self._state_ops(topic, topic.partitions, 0)
        await self._office.write(ops)
        await self._take_new(topic)
        log.info("created the topic %s with %d partitions", topic.name, len(topic.partitions))
        return topic

    async def _take_new(self, topic: Topic) -> None:
        """Put a topic that the registry has into service; if that fails, it is deleted again."""
        try:
            await self._replicas.take(topic)
        except Exception:  # a full disk: nothing half made may stand in the way of another try
            self._unfinished[topic.name] = topic
            await self._mark_deleted(topic.name)
            await self._finish_deletion(topic)
            raise
        self._metadata.put([topic])

    async def _delete_topic(self, wanted: Topic) -> None:
        if not self._config["delete.topic.enable"]:
            raise TopicDeletionDisabled
        topic = self._metadata.topic(wanted.name)  # `wanted` may have grown, or gone and come anew
        if topic.topic_id != wanted.topic_id:
            raise UnknownTopicOrPartition(f"that topic {wanted.name!r} was deleted; this is another one")
        await self._mark_deleted(topic.name)
        self._metadata.remove(topic.name)
        self._unfinished[topic.name] = topic
        await self._finish_deletion(topic)
        log.info("deleted the topic %s", topic.name)

    async def _mark_deleted(self, name: str) -> None:
        try:
            await self._office.write([Create(f"{tree.DELETED_TOPICS}/{name}")])
        except NodeExists:
            pass

    async def _finish_deletion(self, topic: Topic) -> None:
        """The records go first, the marker last: a deletion that is cut short goes on at the next start.

        What is removed is what there is, not what the topic was believed to have.
        """
        name = topic.name
        if self._unfinished.get(name) is not topic:
            return
        numbers = await partition_numbers(self._registry, name)
        count = max(len(topic.partitions), self._tried.get(topic.topic_id, 0), *(n + 1 for n in numbers), 0)
        missing = [PartitionState([], [], -1, 0)] * (count - len(topic.partitions))
        await self._replicas.drop(Topic(name, topic.topic_id, [*topic.partitions, *missing]))
        node = tree.topic_path(name)
        ops = await partition_removals(self._registry, name, numbers)
        rest = [
            f"{node}/partitions",
            node,
            f"{tree.TOPIC_CONFIGS}/{name}",
            f"{tree.DELETED_TOPICS}/{name}",
        ]
        existing = await self._registry.get_many(rest)
        ops += [Delete(path) for path, found in zip(rest, existing, strict=True) if found is not None]
        if ops:
            await self._office.write(ops)
        del self._unfinished[name]
        self._reasons.pop(name, None)
        self._tried.pop(topic.topic_id, None)

    async def _add_partitions(
        self, name: str, total: int, assignments: Sequence[Sequence[int]] | None, validate_only: bool
    ) -> None:
        """The logs are made before the registry knows of them: a full disk changes nothing that is known.

        What was made by then is found and taken when it is tried again.
        """
        topic = self._metadata.topic(name)
        racks = {broker.broker_id: broker.rack for broker in self._metadata.brokers.values()}
        added = more_partitions(topic, total, assignments, racks, self._random)
        if validate_only:
            return
        first = len(topic.partitions)
        grown = Topic(topic.name, topic.topic_id, [*topic.partitions, *added], topic.overrides)
        self._tried[topic.topic_id] = max(total, self._tried.get(topic.topic_id, 0))
        await self._replicas.take(grown)
        strays = [number for number in await partition_numbers(self._registry, name) if number >= first]
        ops = await partition_removals(self._registry, name, strays)
        ops.append(Set(tree.topic_path(name), tree.dump(tree.node_of(grown))))
        ops += self._state_ops(grown, added, first)
        await self._office.write(ops)
        if self._tried[topic.topic_id] <= total:
            del self._tried[topic.topic_id]
        self._metadata.put([grown])

    async def _set_topic_config(
        self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]], validate_only: bool
    ) -> None:
        topic = self._metadata.topic(name)
        overrides = dict(change(topic.overrides))
        check_topic_overrides(overrides, self._config)
        if validate_only:
            return
        path = f"{tree.TOPIC_CONFIGS}/{name}"
        is_new = await self._registry.exists(path) is None
        await self._office.write([self._config_op(path, overrides, is_new)])
        topic.overrides = overrides
        self._replicas.configure(topic)

    async def _set_broker_config(
        self, broker: str, change: Callable[[Mapping[str, str]], Mapping[str, str]], validate_only: bool
    ) -> None:
        if broker not in (tree.DEFAULT_BROKER, str(self._config.node_id)):
            raise InvalidConfig(f"there is no broker {broker}")
        is_default = broker == tree.DEFAULT_BROKER
        layer = self._config.layers[1 if is_default else 0]
        before = dict(layer.texts)
        after = dict(change(before))
        self._apply_broker_config(is_default, after)  # raises if it is not valid
        self._apply_broker_config(is_default, before)
        if validate_only:
            return
        path = f"{tree.BROKER_CONFIGS}/{broker}"
        is_new = await self._registry.exists(path) is None
        await self._office.write([self._config_op(path, after, is_new)])
        self._apply_broker_config(is_default, after)
        self._configure_all()

    def _configure_all(self) -> None:
        for topic in self._metadata.topics.values():
            self._replicas.configure(topic)

    def _apply_broker_config(self, is_default: bool, texts: Mapping[str, str]) -> None:
        if is_default:
            self._config.set_dynamic(default=texts)
        else:
            self._config.set_dynamic(broker=texts)

    # Writing

    def _state_ops(self, topic: Topic, partitions: Sequence[PartitionState], first: int) -> list[Operation]:
        ops: list[Operation] = []
        for index, state in enumerate(partitions, first):
            path = tree.state_path(topic.name, index)
            node = tree.StateNode(self._office.epoch, state.leader, state.leader_epoch, state.isr)
            ops += [Create(path.removesuffix("/state")), Create(path, tree.dump(node))]
        return ops

    @staticmethod
    def _config_op(path: str, config: Mapping[str, str], is_new: bool) -> Operation:
        data = tree.dump(tree.ConfigNode(dict(config)))
        return Create(path, data) if is_new else Set(path, data)

    def _new_id(self) -> UUID:
        while True:
            made = UUID(int=self._random.getrandbits(128), version=4)
            if made != NO_UUID and not encode_uuid(made).startswith("-"):
                return made
