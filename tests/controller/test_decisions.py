"""The controller's decisions in a whole broker: what clashes, fails half way, and is tried again."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.server import Broker
from millstream.cluster.metadata import Topic
from millstream.config.broker import BrokerConfig
from millstream.controller import ledger, tree
from millstream.controller.topics import NewTopic
from millstream.errors import (
    CoordinatorLoadInProgress,
    InvalidConfig,
    KafkaStorageError,
    NotController,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from millstream.registry.contract import NodeExists, Operation, Unavailable
from millstream.registry.memory import MemoryRegistry, MemoryTree
from millstream.storage.os_disk import OsDisk


class SmallDisk(OsDisk):
    """A disk on which only so many more folders can be made."""

    def __init__(self) -> None:
        super().__init__(max_open_files=100)
        self.room = 1000

    def makedirs(self, path: str) -> None:
        if self.room == 0:
            raise OSError(errno.ENOSPC, "no space left")
        self.room -= 1
        super().makedirs(path)


class DeafRegistry(MemoryRegistry):
    """A registry that makes a write and does not answer, when told to."""

    is_deaf = False
    deaf_to = ""
    """The path of a node that is written when the answer is lost."""

    async def multi(self, operations: Sequence[Operation]) -> list[int]:
        made = await super().multi(operations)
        if self.is_deaf or any(each.path == self.deaf_to for each in operations):
            self.is_deaf, self.deaf_to = False, ""
            raise Unavailable("no answer in time")
        return made


class World:
    def __init__(self, folder: Path) -> None:
        self.disk = SmallDisk()
        self.tree = MemoryTree()
        self.registry = DeafRegistry(self.tree, session_timeout_ms=1000)
        self.broker = self.make(folder, self.registry)

    def make(self, folder: Path, registry: MemoryRegistry) -> Broker:
        values = {
            "node.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(folder),
            "registry.session.timeout.ms": "1000",
        }
        return Broker(BrokerConfig(values), registry=registry, disk=self.disk)

    async def create(self, name: str, partitions: int = 1) -> Topic:
        return await self.broker.controller.create_topic(NewTopic(name, partitions, 1))

    async def grow(self, name: str, total: int) -> None:
        await self.broker.controller.add_partitions(name, total, None, validate_only=False)

    async def delete(self, topic: Topic) -> None:
        await self.broker.controller.delete_topic(topic)

    def topic(self, name: str) -> Topic:
        return self.broker.metadata.topic(name)

    def check_nothing_left(self, name: str) -> None:
        assert name not in self.broker.metadata.topics
        assert self.broker.replicas.topic(name) == {}
        for root in (tree.TOPICS, tree.TOPIC_CONFIGS, tree.DELETED_TOPICS):
            assert name not in self.tree.children(root)
        assert not [log for log in self.broker.store if Path(log.folder).name.startswith(f"{name}-")]

    async def until_member(self) -> None:
        """Until a new session has begun and the broker is the controller in it."""
        async with asyncio.timeout(10):
            while True:
                try:
                    await self.broker.controller.create_topic(NewTopic("probe", 1, 1), validate_only=True)
                    return
                except NotController:
                    await asyncio.sleep(0.01)


Test = Callable[[World], Coroutine[Any, Any, None]]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Test], None]:
    def start(test: Test) -> None:
        async def main() -> None:
            world = World(tmp_path)
            async with asyncio.timeout(30), world.broker:
                await test(world)

        asyncio.run(main())

    return start


def test_an_old_topic_cannot_be_deleted_in_place_of_a_new_one_of_its_name(
    run: Callable[[Test], None],
) -> None:
    async def test(world: World) -> None:
        old = await world.create("t")
        first, again, second = await asyncio.gather(
            world.delete(old), world.create("t"), world.delete(old), return_exceptions=True
        )
        assert first is None
        assert isinstance(again, Topic)
        assert isinstance(second, UnknownTopicOrPartition)
        assert world.topic("t").topic_id == again.topic_id
        assert world.broker.replicas.leader("t", 0).topic_id == again.topic_id

    run(test)


def test_a_topic_that_grows_while_its_deletion_waits_is_deleted_whole(run: Callable[[Test], None]) -> None:
    async def test(world: World) -> None:
        topic = await world.create("t")
        await asyncio.gather(world.grow("t", 4), world.delete(topic))
        world.check_nothing_left("t")
        assert len((await world.create("t", 2)).partitions) == 2

    run(test)


def test_partitions_that_found_no_room_can_be_added_later(run: Callable[[Test], None]) -> None:
    async def test(world: World) -> None:
        await world.create("t")
        world.disk.room = 1
        with pytest.raises(KafkaStorageError):
            await world.grow("t", 4)
        assert len(world.topic("t").partitions) == 1
        assert world.tree.children(f"{tree.topic_path('t')}/partitions") == ["0"]
        world.disk.room = 1000
        await world.grow("t", 4)
        assert len(world.topic("t").partitions) == 4
        assert len(world.broker.replicas.topic("t")) == 4
        assert world.tree.children(f"{tree.topic_path('t')}/partitions") == ["0", "1", "2", "3"]
        await world.delete(world.topic("t"))
        world.check_nothing_left("t")

    run(test)


def test_a_topic_that_could_not_grow_is_deleted_with_what_was_made(run: Callable[[Test], None]) -> None:
    async def test(world: World) -> None:
        await world.create("t")
        world.disk.room = 2
        with pytest.raises(KafkaStorageError):
            await world.grow("t", 4)
        world.disk.room = 1000
        await world.delete(world.topic("t"))
        world.check_nothing_left("t")
        await world.create("t", 4)

    run(test)


def test_nodes_of_partitions_that_nobody_knows_of_are_no_hindrance(run: Callable[[Test], None]) -> None:
    async def test(world: World) -> None:
        for name in ("grows", "goes"):
            await world.create(name)
            for path in ("partitions/1", "partitions/1/state", "partitions/7"):
                await world.registry.create(f"{tree.topic_path(name)}/{path}")
        await world.grow("grows", 3)
        assert world.tree.children(f"{tree.topic_path('grows')}/partitions") == ["0", "1", "2"]
        await world.delete(world.topic("goes"))
        world.check_nothing_left("goes")

    run(test)


def test_a_lost_session_is_followed_by_another(run: Callable[[Test], None]) -> None:
    async def test(world: World) -> None:
        await world.create("before")
        epoch = world.broker.controller.epoch
        world.registry.lose()
        assert world.tree.children(tree.BROKERS) == []
        with pytest.raises(CoordinatorLoadInProgress):
            await world.broker.producer_ids.next()
        with pytest.raises(NotController):
            await world.create("meanwhile")
        await world.until_member()
        assert world.tree.children(tree.BROKERS) == ["1"]
        assert world.broker.controller.epoch == epoch + 1
        assert world.tree.get(tree.CONTROLLER_EPOCH).data == b"%d" % (epoch + 1)
        assert b'"brokerid":1' in world.tree.get(tree.CONTROLLER).data
        await world.create("after")
        assert await world.broker.producer_ids.next() == 0
        await world.delete(world.topic("before"))
        world.check_nothing_left("before")

    run(test)


def test_sessions_that_are_lost_again_and_again(run: Callable[[Test], None]) -> None:
    async def test(world: World) -> None:
        for pause_s in (0.0, 0.001, 0.01, 0.06, 0.0, 0.0):
            world.registry.lose()
            await asyncio.sleep(pause_s)
        await world.until_member()
        await world.create("after")
        assert world.tree.children(tree.BROKERS) == ["1"]

    run(test)


def test_a_registry_that_does_not_answer_is_a_reason_to_try_again(run: Callable[[Test], None]) -> None:
    async def test(world: World) -> None:
        topic = await world.create("t")
        world.registry.cut_off()
        for decision in (world.create("u"), world.delete(topic), world.grow("t", 2)):
            with pytest.raises(NotController):
                await decision
        with pytest.raises(CoordinatorLoadInProgress):
            await world.broker.producer_ids.next()
        world.registry.reconnect()
        await world.create("u")
        await world.grow("t", 2)
        await world.delete(topic)
        world.check_nothing_left("t")

    run(test)


def test_a_write_without_an_answer_may_have_been_made(run: Callable[[Test], None]) -> None:
    async def test(world: World) -> None:
        world.registry.is_deaf = True
        with pytest.raises(NotController):
            await world.create("t")
        with pytest.raises(TopicAlreadyExists):
            await world.create("t")
        assert world.broker.replicas.leader("t", 0).topic_id == world.topic("t").topic_id
        world.registry.is_deaf = True
        with pytest.raises(NotController):
            await world.grow("t", 3)
        await world.grow("t", 4)
        assert sorted(world.broker.replicas.topic("t")) == [0, 1, 2, 3]
        world.registry.is_deaf = True
        with pytest.raises(NotController):
            await world.delete(world.topic("t"))
        await world.create("t")
        assert len(world.topic("t").partitions) == 1

    run(test)


def test_a_replaced_controller_decides_nothing(run: Callable[[Test], None]) -> None:
    async def test(world: World) -> None:
        await world.registry.set(tree.CONTROLLER_EPOCH, b"77")
        with pytest.raises(NotController):
            await world.create("t")
        assert world.tree.children(tree.TOPICS) == []

    run(test)


def test_a_broker_config_that_was_not_written_has_no_effect(run: Callable[[Test], None]) -> None:
    async def test(world: World) -> None:
        async def set_bytes(text: str) -> None:
            await world.broker.controller.set_broker_config(
                "1", lambda _: {"message.max.bytes": text}, validate_only=False
            )

        config = world.broker.config
        before = config["message.max.bytes"]
        world.registry.cut_off()
        with pytest.raises(NotController):
            await set_bytes("7777")
        assert config["message.max.bytes"] == before
        world.registry.reconnect()
        with pytest.raises(InvalidConfig):
            await set_bytes("many")
        await set_bytes("7777")
        assert config["message.max.bytes"] == 7777

    run(test)


@pytest.mark.parametrize("most", [1, 4])
def test_a_deletion_that_was_cut_short_takes_no_later_topic_of_that_name(
    run: Callable[[Test], None], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker of a deletion goes together with the topic's node, however many writes it takes."""

    async def test(world: World) -> None:
        monkeypatch.setattr(ledger, "MAX_OPERATIONS", most)
        topic = await world.create("t")
        world.registry.deaf_to = tree.topic_path("t")
        with pytest.raises(NotController):
            await world.delete(topic)
        again = await world.create("t")
        world.registry.lose()
        await world.until_member()
        await world.broker.controller.finish_deletions()
        assert world.topic("t").topic_id == again.topic_id
        assert world.tree.children(tree.DELETED_TOPICS) == []

    run(test)


def test_one_topic_that_cannot_be_removed_does_not_stop_the_others(
    run: Callable[[Test], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def test(world: World) -> None:
        controller, replicas = world.broker.controller, world.broker.replicas
        failing = {"stuck", "free"}
        drop = replicas.drop

        async def drop_unless_failing(topic: Topic) -> None:
            if topic.name in failing:
                raise KafkaStorageError("the log dir has failed")
            await drop(topic)

        replicas.drop = drop_unless_failing  # type: ignore[method-assign]
        for name in ("stuck", "free"):
            topic = await world.create(name)
            with pytest.raises(KafkaStorageError):
                await world.delete(topic)
        failing.remove("free")
        with caplog.at_level(logging.WARNING):
            await controller.finish_deletions()
            await controller.finish_deletions()
        world.check_nothing_left("free")
        assert "stuck" in world.tree.children(tree.TOPICS)
        assert caplog.text.count("stuck could not be removed yet") == 1
        failing.clear()
        await controller.finish_deletions()
        world.check_nothing_left("stuck")

    run(test)


def test_a_broker_waits_for_the_nodes_of_its_session_before(tmp_path: Path) -> None:
    """A process that was killed leaves them to the session time-out."""

    async def main() -> None:
        world = World(tmp_path)
        before = MemoryRegistry(world.tree, session_timeout_ms=1000)
        await before.start()
        await before.create(tree.CONTROLLER, b'{"brokerid":1}', ephemeral=True)
        await before.create(f"{tree.BROKERS}/1", ephemeral=True, make_parents=True)
        asyncio.get_running_loop().call_later(0.3, before.lose)
        async with asyncio.timeout(30), world.broker:
            await world.create("t")
            assert world.tree.children(tree.BROKERS) == ["1"]

    asyncio.run(main())


def test_a_broker_serves_nothing_before_it_has_heard_from_the_controller(tmp_path: Path) -> None:
    """Another broker holds the office and does not answer; when it is gone, this one takes it."""

    async def main() -> None:
        world = World(tmp_path)
        other = MemoryRegistry(world.tree, session_timeout_ms=1000)
        await other.start()
        await other.create(tree.CONTROLLER, b'{"brokerid":2}', ephemeral=True)
        starting = asyncio.create_task(world.broker.start())
        await asyncio.sleep(0.3)
        listeners = world.broker.listeners
        assert [listeners["PLAINTEXT"].is_open, starting.done()] == [False, False]
        other.lose()
        async with asyncio.timeout(10):
            await starting
        assert [listeners["PLAINTEXT"].is_open, starting.done()] == [True, True]
        assert world.broker.metadata.controller_id == 1
        await world.create("t")
        await world.broker.stop()

    asyncio.run(main())


def test_a_node_that_stays_is_an_error_in_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(tmp_path)
        other = MemoryRegistry(world.tree, session_timeout_ms=1000)
        await other.start()
        await other.create(f"{tree.BROKERS}/1", ephemeral=True, make_parents=True)
        with pytest.raises(NodeExists):
            await world.broker.start()
        assert tree.CONTROLLER.removeprefix("/") not in world.tree.children("/")

    asyncio.run(main())
