"""What groups show in the registry: members, owners, offsets, and nothing of what is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from millstream.broker.group_nodes import GroupNodes, escape
from millstream.coordinator.groups.commits import Caller, Commit
from millstream.coordinator.groups.shard import GroupShard
from millstream.coordinator.groups.topics import NoTopics
from millstream.model import TopicPartition as Place
from millstream.protocol.messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from millstream.registry.contract import Create, Delete, NoNode, Registry, TooLarge
from millstream.registry.memory import MemoryRegistry, MemoryTree
from millstream.registry.sqlite import SqliteRegistry
from millstream.testing.broker import Broker
from tests.coordinator.groups.host import Host
from tests.processes import until

T = TypeVar("T")


async def tree(registry: Registry, path: str = "/consumers") -> dict[str, bytes]:
    """All nodes below a path, without those that only hold others."""
    found = {}
    for name in await registry.children(path):
        below = f"{path}/{name}"
        if inner := await tree(registry, below):
            found.update(inner)
        elif (node := await registry.get(below)).data:
            found[below] = node.data
    return found


class Shown:
    """A shard of groups whose changes are shown in a registry in memory."""

    def __init__(self, nodes: MemoryTree, seed: int = 0) -> None:
        self.registry = MemoryRegistry(nodes)
        self.host = Host(seed=seed)
        self.nodes = GroupNodes(self.registry, self.host.clock, NoTopics(), self.find)
        self.leads = True
        self.host.shard._watcher = self.nodes
        self.host.shard._rebalances._on_change = self.nodes.group_changed

    def find(self, group_id: str) -> GroupShard | None:
        return self.host.shard if self.leads else None

    async def start(self) -> None:
        await self.registry.start()
        if await self.registry.exists("/consumers") is None:
            await self.registry.create("/consumers")

    def enter(self, group: str, topic: str, *partitions: int) -> str:
        """A group of one that reads these partitions; the member's id."""
        subscribed = b"\x00\x00" + ConsumerProtocolSubscription(topics=[topic]).encode(0)
        member_id, join = self.host.enter(group, protocols={"range": subscribed})
        self.host.run_timers()
        assigned = ConsumerProtocolAssignment(
            assigned_partitions=[
                ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=list(partitions))
            ]
        )
        generation = join.result().generation_id
        self.host.sync(group, member_id, generation, {member_id: b"\x00\x00" + assigned.encode(0)})
        return member_id

    def commit(self, group: str, partition: Place, offset: int) -> None:
        self.host.apply(self.host.shard.commits.commit(group, Caller(), [Commit(partition, offset, -1, "")]))


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def test_a_group_is_shown_and_disappears() -> None:
    async def story() -> None:
        shown = Shown(MemoryTree())
        await shown.start()
        member = shown.enter("app", "orders", 3)
        shown.host.apply(
            shown.host.shard.commits.commit(
                "app", Caller(1, member), [Commit(Place("orders", 3), 42, -1, "")]
            )
        )
        assert await tree(shown.registry) == {}  # nothing waits for the registry
        await shown.nodes.show()
        found = await tree(shown.registry)
        node = msgspec.json.decode(found.pop(f"/consumers/app/ids/{member}"))
        assert node.pop("timestamp") == str(shown.host.clock.now_ms())
        assert node == {"version": 1, "subscription": {"orders": 1}, "pattern": "static"}
        assert found == {
            "/consumers/app/owners/orders/3": member.encode(),
            "/consumers/app/offsets/orders/3": b"42",
        }
        shown.host.leave("app", (member, None))
        await shown.nodes.show()
        assert await tree(shown.registry) == {"/consumers/app/offsets/orders/3": b"42"}
        shown.host.apply(shown.host.shard.delete_group("app"))
        await shown.nodes.show()
        assert await shown.registry.children("/consumers") == []

    run(story())


def test_many_changes_are_one_write() -> None:
    async def story() -> None:
        shown = Shown(MemoryTree())
        await shown.start()
        writes = []
        original = shown.registry.multi

        async def counted(operations: Any) -> list[int]:
            writes.append(len(operations))
            return await original(operations)

        shown.registry.multi = counted  # type: ignore[method-assign]
        for offset in range(1000):
            shown.commit("app", Place("orders", offset % 5), offset)
        await shown.nodes.show()
        assert len(writes) == 1
        assert len(await tree(shown.registry)) == 5
        await shown.nodes.show()
        shown.commit("app", Place("orders", 0), 995)  # as it is shown already
        await shown.nodes.show()
        assert len(writes) == 1

    run(story())


def test_what_another_broker_removes_at_once_is_shown_again() -> None:
    """As a broker does that coordinated the group until now, and has only just heard of that."""

    async def story() -> None:
        shown = Shown(MemoryTree())
        await shown.start()
        member = shown.enter("app", "orders", 3)
        path = f"/consumers/app/ids/{member}"
        original = shown.registry.multi

        async def then_removed(operations: Any) -> list[int]:
            results = await original(operations)
            shown.registry.multi = original  # type: ignore[method-assign]
            await original([Delete(path)])
            return results

        shown.registry.multi = then_removed  # type: ignore[method-assign]
        await shown.nodes.show()
        assert path not in await tree(shown.registry)
        await shown.nodes.show()
        assert path in await tree(shown.registry)
        shown.host.leave("app", (member, None))
        await shown.nodes.show()
        assert await tree(shown.registry) == {}

    run(story())


def test_what_is_too_large_for_the_registry_is_written_in_parts() -> None:
    """ZooKeeper takes a megabyte at a time."""

    async def story() -> None:
        shown = Shown(MemoryTree())
        await shown.start()
        original = shown.registry.multi

        async def limited(operations: Any) -> list[int]:
            if len(operations) > 40:
                raise TooLarge("too much at once")
            return await original(operations)

        shown.registry.multi = limited  # type: ignore[method-assign]
        for index in range(300):
            shown.commit("app", Place("orders", index), index)
        for _ in range(30):
            await shown.nodes.show()
        assert len(await tree(shown.registry)) == 300

    run(story())


def test_a_group_that_is_too_large_for_the_registry_is_written_in_parts_and_holds_nobody_up() -> None:
    async def story() -> None:
        shown = Shown(MemoryTree())
        await shown.start()
        original = shown.registry.multi

        async def limited(operations: Any) -> list[int]:
            if len(operations) > 40:
                raise TooLarge("too much at once")
            return await original(operations)

        shown.registry.multi = limited  # type: ignore[method-assign]
        member = shown.enter("large", "orders", *range(300))
        for _ in range(8):  # until it is known how much the registry takes
            await shown.nodes.show()
        small = shown.enter("small", "orders", 7)
        for number in range(200):
            shown.commit("other", Place("orders", number), 5)
        for _ in range(60):
            await shown.nodes.show()
        found = await tree(shown.registry)
        assert all(found[f"/consumers/large/owners/orders/{n}"] == member.encode() for n in range(300))
        assert found["/consumers/small/owners/orders/7"] == small.encode()
        assert found["/consumers/other/offsets/orders/199"] == b"5"
        shown.host.leave("large", (member, None))
        for _ in range(60):
            await shown.nodes.show()
        assert not any(path.startswith("/consumers/large/") for path in await tree(shown.registry))

    run(story())


def test_a_registry_that_cannot_be_reached_is_written_later() -> None:
    async def story() -> None:
        shown = Shown(MemoryTree())
        await shown.start()
        shown.commit("app", Place("orders", 0), 1)
        shown.registry.cut_off()
        await shown.nodes.show()
        shown.commit("app", Place("orders", 0), 2)
        shown.registry.reconnect()
        await shown.nodes.show()
        assert await tree(shown.registry) == {"/consumers/app/offsets/orders/0": b"2"}

    run(story())


def test_a_new_session_shows_the_members_again() -> None:
    async def story() -> None:
        shown = Shown(MemoryTree())
        await shown.start()
        member = shown.enter("app", "orders", 0)
        await shown.nodes.show()
        shown.registry.lose()
        await shown.nodes.show()
        await shown.registry.start()
        assert await tree(shown.registry) == {}
        await shown.nodes.show()
        assert (await shown.registry.get("/consumers/app/owners/orders/0")).data == member.encode()

    run(story())


def test_a_group_moves_to_another_broker() -> None:
    async def story() -> None:
        nodes = MemoryTree()
        before, after = Shown(nodes, 1), Shown(nodes, 2)
        await before.start()
        await after.start()
        first = before.enter("app", "orders", 0)
        await before.nodes.show()
        second = after.enter("app", "orders", 0)
        await after.nodes.show()  # it does not wait for the other's session to end
        found = await tree(after.registry)
        assert found["/consumers/app/owners/orders/0"] == second.encode()
        before.leads = False
        before.nodes.group_changed("app")
        await before.nodes.show()
        found = await tree(after.registry)
        assert found["/consumers/app/owners/orders/0"] == second.encode()
        assert f"/consumers/app/ids/{first}" not in found
        assert f"/consumers/app/ids/{second}" in found

    run(story())


def test_owners_are_kept_while_a_group_shares_anew() -> None:
    async def story() -> None:
        shown = Shown(MemoryTree())
        await shown.start()
        member = shown.enter("app", "orders", 0)
        await shown.nodes.show()
        shown.host.join("app", member, protocols={"range": b"\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"})
        shown.nodes.group_changed("app")
        await shown.nodes.show()
        assert (await shown.registry.get("/consumers/app/owners/orders/0")).data == member.encode()

    run(story())


@pytest.mark.parametrize("name", ["a/b", "50%", ".", "..", "tab\there", "ümlaut", "a b", "%2F"])
def test_any_name_is_one_part_of_a_path(name: str) -> None:
    async def story() -> None:
        shown = Shown(MemoryTree())
        await shown.start()
        shown.commit(name, Place("t", 0), 7)
        await shown.nodes.show()
        assert await shown.registry.children("/consumers") == [escape(name)]
        assert await tree(shown.registry) == {f"/consumers/{escape(name)}/offsets/t/0": b"7"}

    run(story())


def test_what_stands_in_the_way_does_not_stop_it() -> None:
    async def story() -> None:
        shown = Shown(MemoryTree())
        await shown.start()
        await shown.registry.multi(
            [Create("/consumers/app"), Create("/consumers/app/offsets", ephemeral=True)]
        )
        shown.commit("app", Place("t", 0), 7)
        await shown.nodes.show()
        await shown.registry.delete("/consumers/app/offsets")
        await shown.nodes.show()
        assert (await shown.registry.get("/consumers/app/offsets/t/0")).data == b"7"

    run(story())


def test_through_a_real_broker(tmp_path: Path) -> None:
    """A consumer of librdkafka, seen from outside of the broker, within the five seconds promised."""

    def nodes() -> dict[str, bytes]:
        async def look() -> dict[str, bytes]:
            registry = SqliteRegistry(str(tmp_path / "registry.db"), 6000)
            await registry.start()
            try:
                return await tree(registry)
            except NoNode:
                return {}
            finally:
                await registry.close()

        return run(look())

    with Broker(data=tmp_path) as broker:
        broker.create_topic("orders", 2)
        settings = {"bootstrap.servers": broker.bootstrap, "group.id": "app", "session.timeout.ms": 6000}
        with closing(Consumer(settings)) as consumer:
            consumer.subscribe(["orders"])
            until(lambda: [consumer.poll(0.1)] and len(consumer.assignment()) == 2, 20, "an assignment")
            consumer.commit(offsets=[TopicPartition("orders", 1, 17)], asynchronous=False)
            until(lambda: nodes().get("/consumers/app/offsets/orders/1") == b"17", 5, "the offset")
            found = nodes()
            (member,) = [path.rpartition("/")[2] for path in found if "/ids/" in path]
            assert found["/consumers/app/owners/orders/0"] == member.encode()
            assert found["/consumers/app/owners/orders/1"] == member.encode()
        until(lambda: list(nodes()) == ["/consumers/app/offsets/orders/1"], 5, "the member is gone")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for future in admin.delete_consumer_groups(["app"]).values():
            future.result(10)
        until(lambda: nodes() == {}, 5, "nothing of the group")


def test_names_that_no_path_holds_are_written_otherwise() -> None:
    """ZooKeeper refuses control characters, private ones and the last ones of the first plane."""
    assert escape("plain-group.1 ü 日本") == "plain-group.1 ü 日本"
    assert escape("a/b%c\n\x7f") == "a%2Fb%25c%0A%7F"
    assert escape("..") == "%2E%2E"
    for odd in ("\x80", "\ue000", "\uf8ff", "\ufff0", "\ufffd", "\uffff"):
        assert escape(odd).isascii()
    assert len({escape(name) for name in ("\ue000", "%EE%80%80", "\x80", "/")}) == 4
