"""The controller: the one broker that changes what topics exist and who leads their partitions.

It has one queue and one task, so that decisions never interleave. Every write to the registry is a
multi that checks the controller's epoch: a controller that was replaced writes nothing more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Any, Protocol, TypeVar
from uuid import UUID

import msgspec

from millstream.clock import Clock
from millstream.cluster.metadata import Metadata, PartitionState, Topic
from millstream.config.broker import BrokerConfig
from millstream.config.log import check_topic_overrides
from millstream.controller import tree
from millstream.controller.topics import NewTopic, check_new_name, more_partitions, new_topic
from millstream.errors import InvalidConfig, KafkaStorageError, TopicDeletionDisabled
from millstream.model import NO_UUID, encode_uuid
from millstream.registry.contract import Check, Create, Delete, NodeExists, NoNode, Operation, Registry, Set

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
        self._epoch = 0
        self._epoch_version = 0
        self._queue: asyncio.Queue[tuple[Callable[[], Awaitable[Any]], asyncio.Future[Any]]] = asyncio.Queue()
        self._unfinished: dict[str, Topic] = {}
        """Topics that are deleted, but whose records or nodes could not all be removed yet."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Become the controller, with an epoch greater than any before, and load what there is."""
        node = tree.CONTROLLER
        me = {"version": 2, "brokerid": self._config.node_id, "timestamp": str(self._clock.now_ms())}
        await self._registry.create(node, msgspec.json.encode(me), ephemeral=True)
        try:
            current = await self._registry.get(tree.CONTROLLER_EPOCH)
            self._epoch = int(current.data) + 1
            self._epoch_version = await self._registry.set(
                tree.CONTROLLER_EPOCH, b"%d" % self._epoch, current.version
            )
        except NoNode:
            self._epoch = 1
            await self._registry.create(tree.CONTROLLER_EPOCH, b"1")
            self._epoch_version = 0
        self._metadata.controller_id = self._config.node_id
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def load(self) -> None:
        """Read every topic from the registry; note the deletions that were under way."""
        names = await self._registry.children(tree.TOPICS)
        deleted = set(await self._registry.children(tree.DELETED_TOPICS))
        configured = set(await self._registry.children(tree.TOPIC_CONFIGS))
        for name in names:
            topic = await self._read_topic(name, name in configured)
            if name in deleted:
                self._unfinished[name] = topic
            else:
                self._metadata.put([topic])

    async def _read_topic(self, name: str, is_configured: bool) -> Topic:
        registry = self._registry
        data = (await registry.get(tree.topic_path(name))).data
        node = msgspec.json.decode(data, type=tree.TopicNode)
        paths = [tree.state_path(name, index) for index in range(len(node.partitions))]
        states = {}
        for index, found in enumerate(await registry.get_many(paths)):
            if found is not None:
                states[index] = (msgspec.json.decode(found.data, type=tree.StateNode), found.version)
        config: dict[str, str] = {}
        if is_configured:
            data = (await registry.get(f"{tree.TOPIC_CONFIGS}/{name}")).data
            config = msgspec.json.decode(data, type=tree.ConfigNode).config
        return tree.topic_of(name, node, states, config)

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
            await self._in_turn(lambda topic=topic: self._finish_deletion(topic))  # type: ignore[misc]

    async def _in_turn(self, work: Callable[[], Awaitable[T]]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((work, future))
        return await asyncio.shield(future)

    async def _work(self) -> None:
        while True:
            work, future = await self._queue.get()
            try:
                result = await work()
            except asyncio.CancelledError:
                future.cancel()
                raise
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # seen here, also if the one who asked has gone
            else:
                if not future.done():
                    future.set_result(result)

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
        await self._write(ops)
        try:
            await self._replicas.take(topic)
        except KafkaStorageError:  # a full disk: nothing half made may stand in the way of another try
            self._unfinished[topic.name] = topic
            await self._write([Create(f"{tree.DELETED_TOPICS}/{topic.name}")])
            await self._finish_deletion(topic)
            raise
        metadata.put([topic])
        log.info("created the topic %s with %d partitions", topic.name, len(topic.partitions))
        return topic

    async def _delete_topic(self, topic: Topic) -> None:
        if not self._config["delete.topic.enable"]:
            raise TopicDeletionDisabled
        if self._metadata.topics.get(topic.name) is not topic:
            self._metadata.topic(topic.name)
        try:
            await self._write([Create(f"{tree.DELETED_TOPICS}/{topic.name}")])
        except NodeExists:
            pass
        self._metadata.remove(topic.name)
        self._unfinished[topic.name] = topic
        await self._finish_deletion(topic)
        log.info("deleted the topic %s", topic.name)

    async def _finish_deletion(self, topic: Topic) -> None:
        """The records go first, the marker last: a deletion that is cut short goes on at the next start."""
        if self._unfinished.get(topic.name) is not topic:
            return
        await self._replicas.drop(topic)
        node = tree.topic_path(topic.name)
        ops: list[Operation] = []
        for index in range(len(topic.partitions)):
            path = tree.state_path(topic.name, index)
            if await self._registry.exists(path) is not None:
                ops += [Delete(path), Delete(path.removesuffix("/state"))]
        ops += [Delete(f"{node}/partitions"), Delete(node)]
        if await self._registry.exists(f"{tree.TOPIC_CONFIGS}/{topic.name}") is not None:
            ops.append(Delete(f"{tree.TOPIC_CONFIGS}/{topic.name}"))
        if await self._registry.exists(f"{tree.DELETED_TOPICS}/{topic.name}") is not None:
            ops.append(Delete(f"{tree.DELETED_TOPICS}/{topic.name}"))
        await self._write(ops)
        del self._unfinished[topic.name]

    async def _add_partitions(
        self, name: str, total: int, assignments: Sequence[Sequence[int]] | None, validate_only: bool
    ) -> None:
        topic = self._metadata.topic(name)
        racks = {broker.broker_id: broker.rack for broker in self._metadata.brokers.values()}
        added = more_partitions(topic, total, assignments, racks, self._random)
        if validate_only:
            return
        grown = Topic(topic.name, topic.topic_id, [*topic.partitions, *added], topic.overrides)
        ops: list[Operation] = [Set(tree.topic_path(name), tree.dump(tree.node_of(grown)))]
        ops += self._state_ops(grown, added, len(topic.partitions))
        await self._write(ops)
        await self._replicas.take(grown)
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
        await self._write([self._config_op(path, overrides, is_new)])
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
        self._apply_broker_config(is_default, after)
        if validate_only:
            self._apply_broker_config(is_default, before)
            return
        path = f"{tree.BROKER_CONFIGS}/{broker}"
        is_new = await self._registry.exists(path) is None
        await self._write([self._config_op(path, after, is_new)])
        for topic in self._metadata.topics.values():
            self._replicas.configure(topic)

    def _apply_broker_config(self, is_default: bool, texts: Mapping[str, str]) -> None:
        if is_default:
            self._config.set_dynamic(default=texts)
        else:
            self._config.set_dynamic(broker=texts)

    # Writing

    async def _write(self, ops: list[Operation]) -> None:
        """All or nothing, if this is still the controller."""
        await self._registry.multi([Check(tree.CONTROLLER_EPOCH, self._epoch_version), *ops])

    def _state_ops(self, topic: Topic, partitions: Sequence[PartitionState], first: int) -> list[Operation]:
        ops: list[Operation] = []
        for index, state in enumerate(partitions, first):
            path = tree.state_path(topic.name, index)
            node = tree.StateNode(self._epoch, state.leader, state.leader_epoch, state.isr)
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
