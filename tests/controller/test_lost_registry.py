"""Brokers that cannot reach the registry, lose their sessions, stop and start: the cluster finds together."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from millstream.broker import cluster_state
from millstream.broker.server import Broker
from millstream.config.broker import BrokerConfig
from millstream.controller.topics import NewTopic
from millstream.errors import KafkaError, NotController
from millstream.model import NO_UUID
from millstream.protocol.messages import ClusterStateResponse
from millstream.registry.contract import Node, Operation, Unavailable
from millstream.registry.memory import MemoryRegistry, MemoryTree
from tests.controller.cluster import Cluster


def registry(cluster: Cluster, broker_id: int) -> MemoryRegistry:
    found = cluster.registries[broker_id]
    assert isinstance(found, MemoryRegistry)
    return found


async def check_whole(cluster: Cluster, name: str) -> None:
    """Every broker follows one controller; every partition has one leader and all replicas in sync."""
    controller = await cluster.until_controller()

    def is_whole() -> bool:
        if sum(broker.controller.is_active for broker in cluster.brokers.values()) != 1:
            return False
        epoch = cluster.controller.controller.epoch
        return all(
            broker.metadata.controller_epoch == epoch and broker.metadata.brokers.keys() == set(cluster.ids)
            for broker in cluster.brokers.values()
        )

    await cluster.until(is_whole)
    await cluster.until_in_sync(name, cluster.ids)
    await cluster.until(lambda: all(len(leaders) == 1 for leaders in cluster.leaders(name)))
    for index, (leader,) in enumerate(cluster.leaders(name)):
        for broker in cluster.brokers.values():
            state = broker.metadata.topic(name).partitions[index]
            assert state.leader == leader
            assert broker.replicas.topic(name)[index].leader_epoch == state.leader_epoch
    assert controller.config.node_id in cluster.ids


def test_a_controller_that_is_cut_off_is_replaced_and_follows(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), Cluster(tmp_path) as cluster:
            await cluster.create("t", 6, min_insync_replicas="2")
            old = cluster.controller
            registry(cluster, old.config.node_id).cut_off()
            with pytest.raises(KafkaError):
                await old.controller.create_topic(NewTopic("refused", 1, 1))
            await cluster.until(
                lambda: any(b.controller.is_active for b in cluster.brokers.values() if b is not old)
            )
            registry(cluster, old.config.node_id).reconnect()
            await check_whole(cluster, "t")
            assert cluster.controller is not old
            assert "refused" not in old.metadata.topics
            await cluster.create("after", 3)

    asyncio.run(main())


def test_a_controller_that_may_have_been_replaced_says_nothing_of_topics(tmp_path: Path) -> None:
    """It is not told of its lost session yet, as after a pause: another one may know better by now."""

    async def main() -> None:
        async with asyncio.timeout(60), Cluster(tmp_path, count=2) as cluster:
            await cluster.create("gone", replicas=2)
            old = cluster.controller
            lost = registry(cluster, old.config.node_id)
            told, lost.on_session_lost = lost.on_session_lost, None
            lost.lose()
            await cluster.until(
                lambda: any(b.controller.is_active for b in cluster.brokers.values() if b is not old)
            )
            new = next(broker for broker in cluster.brokers.values() if broker is not old)
            await new.controller.delete_topic(new.metadata.topic("gone"))
            made = await new.controller.create_topic(NewTopic("made", 1, 1))
            with pytest.raises(NotController):
                await old.controller.topic(None, made.topic_id)
            with pytest.raises(NotController):
                await old.controller.topic("gone", NO_UUID)
            lost.on_session_lost = told
            assert told is not None
            told()
            await cluster.until(lambda: old.metadata.topics.keys() == {"made"})

    asyncio.run(main())


def test_what_was_told_before_a_session_was_lost_is_not_applied_in_the_next(tmp_path: Path) -> None:
    """A broker that hangs in its disk for so long would lead what another broker leads by now."""

    async def main() -> None:
        async with asyncio.timeout(60), Cluster(tmp_path) as cluster:
            late = cluster.follower
            others = [number for number in cluster.ids if number != late.config.node_id]
            await cluster.create("gone")
            await cluster.create("t", assignment={0: [late.config.node_id, *others]})
            led: list[int] = []
            late.replicas.on_lead = lambda partition: led.append(partition.leader_epoch)
            hung, sync_names = threading.Event(), late.store.sync_names

            def hang() -> None:
                hung.wait(20)
                sync_names()

            late.store.sync_names = hang  # type: ignore[method-assign]
            late.cluster_state.begin_anew()  # so that it is told of everything together with the deletion
            topic = cluster.controller.metadata.topic("gone")
            deleting = asyncio.create_task(cluster.controller.controller.delete_topic(topic))
            await cluster.until(lambda: "gone" not in late.metadata.topics)
            is_found, begin = asyncio.Event(), late.registry.start

            async def begin_later() -> None:
                await is_found.wait()
                await begin()

            late.registry.start = begin_later  # type: ignore[method-assign]
            cluster.lose(late.config.node_id)
            await cluster.until(lambda: cluster.controller.metadata.topic("t").partitions[0].leader in others)
            is_found.set()
            await cluster.until(lambda: late.broker_epoch >= 0)
            hung.set()
            await deleting
            await check_whole(cluster, "t")
            assert led == []

    asyncio.run(main())


def test_a_start_that_waits_for_the_controller_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), Cluster(tmp_path) as cluster:
            await cluster.stop(3)
            monkeypatch.setattr(cluster_state, "START_QUIET_S", 0.3)
            with monkeypatch.context() as patch:
                patch.setattr(cluster.controller.controller.requests, "poll", refuse)
                starting = asyncio.create_task(cluster.start(3))
                await cluster.until(lambda: "the start waits for word" in caplog.text)
                assert not starting.done()
            await starting

    async def refuse(_: object) -> ClusterStateResponse:
        return ClusterStateResponse(error_code=NotController.code, error_message="not now")

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_to_sessions_the_cluster_is_whole_afterwards(tmp_path: Path, seed: int) -> None:
    random = Random(seed)

    async def disturb(cluster: Cluster) -> None:
        broker_id = random.choice(list(cluster.ids))
        what = random.choice(("lose", "cut", "restart", "topic"))
        if what == "lose":
            registry(cluster, broker_id).lose()
        elif what == "cut":
            cut = registry(cluster, broker_id)
            cut.cut_off()
            await asyncio.sleep(random.choice((0.05, 0.5, 2.0)))
            cut.reconnect()
        elif what == "restart":
            await cluster.stop(broker_id)
            await cluster.start(broker_id)
        else:
            try:
                await cluster.brokers[broker_id].controller_link.create_topic(
                    NewTopic(f"more-{random.randrange(1000)}", 2, 2)
                )
            except KafkaError:
                pass
        await asyncio.sleep(random.choice((0.0, 0.01, 0.3)))

    async def main() -> None:
        async with asyncio.timeout(110), Cluster(tmp_path) as cluster:
            await cluster.create("t", 4, min_insync_replicas="2")
            for _ in range(8):
                await disturb(cluster)
            await check_whole(cluster, "t")
            await cluster.create("after", 2)

    asyncio.run(main())


def test_a_registry_that_goes_away_during_a_start_ends_it_with_that_error(tmp_path: Path) -> None:
    """At any of the questions that a start asks; the folder is free for the next one."""

    class Vanishing(MemoryRegistry):
        answers = 0

        async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
            self.answers -= 1
            if self.answers < 0:
                raise Unavailable("the registry is gone")
            return await super().get_many(paths)

        async def get(self, path: str) -> Node:
            self.answers -= 1
            if self.answers < 0:
                raise Unavailable("the registry is gone")
            return await super().get(path)

    async def main() -> None:
        tree, config = MemoryTree(), {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
        for answers in range(3):  # the cluster's id, the editions, the own registration
            registry = Vanishing(tree, 1500)
            registry.answers = answers
            with pytest.raises(Unavailable, match="the registry is gone"):
                await Broker(BrokerConfig(config), registry=registry).start()
        async with Broker(BrokerConfig(config), registry=MemoryRegistry(tree, 1500)) as broker:
            assert not broker.store.dirs[0].is_outdated

    asyncio.run(main())


def test_a_stop_does_not_wait_for_a_registry_that_is_silent_for_longer_than_a_session(tmp_path: Path) -> None:
    """Else what it has to write down would come after all that the registry is asked, each for a time-out."""

    class Silent(MemoryRegistry):
        is_silent = False
        asked = 0

        def session_deadline(self) -> float:
            return -math.inf if self.is_silent else super().session_deadline()

        async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
            await self._wait()
            return await super().get_many(paths)

        async def multi(self, operations: Sequence[Operation]) -> list[int]:
            await self._wait()
            return await super().multi(operations)

        async def _wait(self) -> None:
            if self.is_silent:
                self.asked += 1
                await asyncio.sleep(1)
                raise Unavailable("no server can be reached")

    async def main() -> None:
        registry = Silent(MemoryTree(), 1000)
        config = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
        broker = Broker(BrokerConfig(config), registry=registry)
        await broker.start()
        registry.is_silent = True
        await broker.stop()
        assert registry.asked == 0

    asyncio.run(main())
