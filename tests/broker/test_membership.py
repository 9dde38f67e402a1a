from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from millstream.broker.membership import Membership
from millstream.clock import SystemClock
from millstream.cluster.metadata import Endpoint
from millstream.config.broker import BrokerConfig
from millstream.controller import tree
from millstream.registry.contract import Node, NodeExists
from millstream.registry.memory import MemoryRegistry, MemoryTree


async def kept() -> bool:
    return True


async def nothing() -> None:
    """Nobody begins anything."""


class Member:
    """A broker that is a member of a cluster in memory, and loses its session."""

    def __init__(self, on_lost: Callable[[], None] = lambda: None) -> None:
        self.tree = MemoryTree()
        self.registry = MemoryRegistry(self.tree)
        self.back, self.replaced = asyncio.Event(), asyncio.Event()
        self.membership = Membership(
            self.registry,
            BrokerConfig({"node.id": "1"}),
            SystemClock(),
            (Endpoint("PLAINTEXT", "localhost", 9092),),
            "PLAINTEXT",
            on_lost=on_lost,
            on_replaced=self.replaced.set,
            on_joined=self.back.set,
        )

    async def __aenter__(self) -> Member:
        await self.registry.start()
        for root in tree.ROOTS:
            await self.registry.create(root)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.membership.leave()
        await self.registry.close()

    async def was_clean_after_a_loss(self) -> bool:
        """What it says in the session that follows one that was lost."""
        self.back.clear()
        self.registry.lose()
        async with asyncio.timeout(10):
            await self.back.wait()
        node = await self.registry.get(f"{tree.BROKERS}/1")
        return msgspec.json.decode(node.data, type=tree.BrokerIdNode).was_clean


def test_a_broker_comes_back_whatever_went_wrong_when_it_was_lost() -> None:
    def fail() -> None:
        raise RuntimeError("a defect")

    async def main() -> None:
        async with Member(on_lost=fail) as member:
            await member.membership.join(True, kept, nothing, nothing)
            before = member.membership.epoch
            await member.was_clean_after_a_loss()
            assert member.membership.epoch > before

    asyncio.run(main())


def test_what_a_crash_may_have_cost_is_said_until_a_controller_has_heard_it() -> None:
    async def main() -> None:
        async with Member() as member:
            await member.membership.join(False, kept, nothing, nothing)
            assert not await member.was_clean_after_a_loss()
            member.membership.answered_for()
            assert await member.was_clean_after_a_loss()

    asyncio.run(main())


def test_what_another_process_of_its_number_did_is_said_when_it_is_back() -> None:
    async def main() -> None:
        are_current, seen = True, []

        async def compare() -> bool:
            return are_current

        async with Member() as member:

            async def begin() -> None:
                seen.append(member.membership.epoch)

            await member.membership.join(True, compare, begin, nothing)
            assert await member.was_clean_after_a_loss()
            are_current = False
            assert not await member.was_clean_after_a_loss()
            are_current = True  # it has begun an edition since, and no controller has heard why
            assert not await member.was_clean_after_a_loss()
            member.membership.answered_for()
            assert await member.was_clean_after_a_loss()
            assert seen == [-1] * 5  # each time before it took part

    asyncio.run(main())


@pytest.mark.parametrize("port", [9092, 9093])
def test_a_process_that_has_its_number_is_heard_of_and_waited_for(
    caplog: pytest.LogCaptureFixture, port: int
) -> None:
    """But what an earlier session of its own has left is no other process."""

    async def main() -> None:
        async with Member() as member, asyncio.timeout(20):
            await member.membership.join(True, kept, nothing, nothing)
            other, may_start = MemoryRegistry(member.tree), asyncio.Event()
            start = member.registry.start

            async def start_later() -> None:
                await may_start.wait()
                await start()

            member.registry.start = start_later  # type: ignore[method-assign]
            member.registry.lose()
            await other.start()
            path = f"{tree.BROKERS}/1"
            node = tree.BrokerIdNode([f"PLAINTEXT://localhost:{port}"], "localhost", port, timestamp="0")
            await other.create(path, tree.dump(node), ephemeral=True)
            may_start.set()
            while not caplog.messages[1:]:  # the loss, and that there is another
                await asyncio.sleep(0.01)
            assert member.replaced.is_set() == (port == 9093)
            assert member.membership.epoch == -1
            await other.delete(path)
            await member.back.wait()
            assert member.membership.epoch >= 0
            await other.close()

    asyncio.run(main())
    assert sum(f"registered already, at localhost:{port}" in message for message in caplog.messages) == 1


def test_what_another_process_of_its_number_began_is_asked_for_again_once_it_is_registered() -> None:
    """Also by one that says already that it may lack something: what it begins next is to come after that."""

    async def main() -> None:
        asked: list[bool] = []

        async with Member() as member:

            async def compare() -> bool:
                asked.append("1" in await member.registry.children(tree.BROKERS))
                return False

            await member.membership.join(False, compare, nothing, nothing)
            assert asked == [False, True]

    asyncio.run(main())


def test_a_number_that_another_broker_has_is_told_with_its_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        shared = MemoryTree()
        registries = [MemoryRegistry(shared, 1000), MemoryRegistry(shared, 1000)]
        memberships = []
        for number, registry in enumerate(registries):
            await registry.start()
            memberships.append(
                Membership(
                    registry,
                    BrokerConfig({"node.id": "2"}),
                    SystemClock(),
                    (Endpoint("PLAINTEXT", "::1", 9092 + number),),
                    "PLAINTEXT",
                    on_lost=lambda: None,
                    on_replaced=lambda: None,
                    on_joined=lambda: None,
                )
            )
        for root in tree.ROOTS:
            await registries[0].create(root)
        await memberships[0].join(True, kept, nothing, nothing)
        with pytest.raises(NodeExists) as refused:
            await memberships[1].join(True, kept, nothing, nothing)
        told = "broker 2 is running already, at [::1]:9092: give this one another node.id"
        assert str(refused.value) == told
        (waiting,) = caplog.messages
        assert waiting.startswith("broker 2 is registered already, at [::1]:9092; waiting up to 2 s")
        await registries[0].set(f"{tree.BROKERS}/2", b"what nobody can read")
        with pytest.raises(NodeExists, match="broker 2 is running already: give this one another"):
            await memberships[1].join(True, kept, nothing, nothing)
        await memberships[0].leave()
        await memberships[1].join(True, kept, nothing, nothing)
        await memberships[1].leave()
        for registry in registries:
            await registry.close()

    asyncio.run(main())


def test_a_killed_broker_starts_again_whatever_session_time_out_was_granted_to_it() -> None:
    """ZooKeeper grants at least two of its ticks: so long the registration of a killed process stays."""

    async def main() -> None:
        shared = MemoryTree()
        killed, registry = MemoryRegistry(shared, 1000), MemoryRegistry(shared, 1000)
        for each in (killed, registry):
            await each.start()
        for root in tree.ROOTS:
            await registry.create(root)
        await killed.create(f"{tree.BROKERS}/1", ephemeral=True)
        killed.cut_off()
        membership = Membership(
            registry,
            BrokerConfig({"node.id": "1", "registry.session.timeout.ms": "100"}),
            SystemClock(),
            (Endpoint("PLAINTEXT", "localhost", 9092),),
            "PLAINTEXT",
            on_lost=lambda: None,
            on_replaced=lambda: None,
            on_joined=lambda: None,
        )
        await membership.join(True, kept, nothing, nothing)
        await membership.leave()
        await registry.close()

    asyncio.run(main())


def test_a_broker_that_leaves_takes_nobody_elses_registration_away() -> None:
    """One that lost its session, and whose number another process has taken meanwhile."""

    async def main() -> None:
        shared = MemoryTree()
        mine, other = MemoryRegistry(shared), MemoryRegistry(shared)
        await mine.start()
        await other.start()
        for root in tree.ROOTS:
            await mine.create(root)
        lost = asyncio.Event()
        membership = Membership(
            mine,
            BrokerConfig({"node.id": "1"}),
            SystemClock(),
            (Endpoint("PLAINTEXT", "localhost", 9092),),
            "PLAINTEXT",
            on_lost=lost.set,
            on_replaced=lambda: None,
            on_joined=lambda: None,
        )
        await membership.join(True, kept, nothing, nothing)
        path = f"{tree.BROKERS}/1"
        mine.lose()
        await other.create(path, b"{}", ephemeral=True)
        await lost.wait()
        await asyncio.sleep(0.2)  # it has a new session by now, and waits for the other to go
        await membership.leave()
        assert (await other.get(path)).data == b"{}"
        await mine.close()
        await other.close()

    asyncio.run(main())


def test_a_registration_whose_loss_is_heard_of_before_its_number_is_none() -> None:
    """A process that was paused just then wakes up to both. Its number may be another's by now."""

    async def main() -> None:
        left: list[int] = []
        async with Member() as member:
            membership, mine = member.membership, member.registry
            other = MemoryRegistry(member.tree)
            await other.start()

            async def leave() -> None:
                left.append(membership.epoch)

            await membership.join(True, kept, nothing, leave)
            registration, get = f"{tree.BROKERS}/1", mine.get

            async def lost_meanwhile(path: str) -> Node:
                node = await get(path)
                if path == registration:
                    mine.get = get  # type: ignore[method-assign]
                    mine.lose()
                    await other.create(registration, b"{}", ephemeral=True)
                    await asyncio.sleep(0)  # the loop tells of the loss first
                return node

            mine.get = lost_meanwhile  # type: ignore[method-assign]
            mine.lose()
            await asyncio.sleep(0.6)  # it has a third session by now, and waits for the other to go
            assert membership.epoch == -1
            await membership.leave()
            assert not left
            assert (await other.get(registration)).data == b"{}"
            await other.close()

    asyncio.run(main())
