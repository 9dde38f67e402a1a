"""ISR changes whose answers are late or lost, while what they rest on changes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millstream.broker.cluster_state import MAX_WAIT_MS
from millstream.cluster.peers import COPYING
from millstream.controller import tree
from millstream.errors import InvalidUpdateVersion, NetworkException
from millstream.model import TopicPartition
from millstream.protocol.messages import AlterPartitionRequest, AlterPartitionResponse
from millstream.registry.contract import Set
from tests.cluster.brokers import Brokers, run, until

RECORD = bytes(50_000)


def cut(brokers: Brokers, number: int, purpose: str) -> Callable[[], None]:
    """Let a broker's requests of one purpose get nowhere, until the answer is called."""
    peers = brokers[number].peers
    real = peers.request

    async def request(broker_id: int, wanted: str, *rest: Any) -> Any:
        if wanted == purpose:
            await asyncio.sleep(0.05)
            raise NetworkException("cut")
        return await real(broker_id, wanted, *rest)

    def join() -> None:
        peers.request = real  # type: ignore[method-assign]

    peers.request = request  # type: ignore[assignment]
    return join


def test_a_broker_that_comes_back_empty_copies_everything_before_it_is_in_sync(tmp_path: Path) -> None:
    """Also if it was proposed in the life before, and the controller hears of that only now."""

    async def test(brokers: Brokers) -> None:
        await brokers.create("t", 1, 3, min_insync_replicas="2", follower_replication_throttled_replicas="*")
        await until(lambda: brokers.isr_of("t") == [1, 2, 3])
        leader, controller = brokers.leader_of("t"), brokers.controller.config.node_id
        victim = next(each for each in brokers.ids if each not in (leader, controller))
        await brokers.stop(victim)
        await until(lambda: victim not in brokers.isr_of("t"))
        for _ in range(40):
            await brokers.send("t", RECORD)
        join = cut(brokers, leader, "isr")
        await brokers.start(victim)
        leadership = brokers.replica(leader, "t").leadership
        assert leadership is not None
        await until(lambda: victim in (leadership.proposed or ()))
        await brokers.stop(victim)
        shutil.rmtree(brokers.path / str(victim))
        await brokers.start(
            victim, follower_replication_throttled_rate="1000000", replica_fetch_max_bytes="50000"
        )
        await until(lambda: leadership.followers[victim].broker_epoch == brokers[victim].broker_epoch)
        join()
        await until(lambda: victim in brokers.isr_of("t"))
        assert brokers.replica(victim, "t").log.end_offset == 40

    run(test, tmp_path)


def test_a_proposal_goes_on_once_the_controller_can_read_the_topic_again(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("t", 1, 3, min_insync_replicas="2")
        await brokers.send("t", b"first")
        leader, controller = brokers.leader_of("t"), brokers.controller
        lame = next(each for each in brokers.ids if each not in (leader, controller.config.node_id))
        path, registry = f"{tree.TOPIC_CONFIGS}/t", brokers.registries[lame]
        good = (await registry.get(path)).data
        await registry.multi([Set(path, b"{")])
        controller.controller._is_unsure = True  # as after a write without an answer: it reads all again
        await until(lambda: "t" in controller.controller.term.picture.unreadable)
        cut(brokers, lame, "fetch")
        brokers[lame].peers.link(leader, "fetch").abort()
        leadership = brokers.replica(leader, "t").leadership
        assert leadership is not None
        await brokers.produce(leader, "t", b"second", timeout_ms=100)
        await until(lambda: leadership.proposed is not None)
        await asyncio.sleep(0.2)
        await registry.multi([Set(path, good)])
        await until(lambda: leadership.isr == [each for each in leadership.replicas if each != lame])
        assert (await brokers.produce(leader, "t", b"third")).error_code == 0

    run(test, tmp_path, replica_lag_time_max_ms="1000")


def test_a_refused_proposal_lets_nobody_in_by_a_copy_that_comes_late(tmp_path: Path) -> None:
    """What is acknowledged after the refusal would be lacking in who is let in then."""

    async def test(brokers: Brokers) -> None:
        await brokers.create("t", 1, 3, min_insync_replicas="2")
        await brokers.send("t", b"first")
        leader, controller = brokers.leader_of("t"), brokers.controller
        victim = next(each for each in brokers.ids if each not in (leader, controller.config.node_id))
        join = cut(brokers, victim, "fetch")
        await brokers.send("t", b"second")
        await until(lambda: victim not in brokers.isr_of("t"))
        late: list[AlterPartitionRequest] = []
        peers = brokers[leader].peers
        real = peers.request

        async def request(broker_id: int, purpose: str, asked: Any, *rest: Any) -> Any:
            if purpose == "isr" and not late:
                late.append(asked)
                raise NetworkException("not answered in time")
            return await real(broker_id, purpose, asked, *rest)

        peers.request = request  # type: ignore[assignment]
        picture = controller.controller.term.picture
        fit = picture.hindered_for
        picture.hindered_for = lambda topic, index: {victim}  # type: ignore[method-assign]
        join()
        leadership = brokers.replica(leader, "t").leadership
        assert leadership is not None
        await until(lambda: bool(late) and leadership.proposed is None)
        cut(brokers, victim, "fetch")
        picture.hindered_for = fit  # type: ignore[method-assign]
        await brokers.send("t", b"third")
        answer = await real(controller.config.node_id, "isr", late[0], AlterPartitionResponse, 5000.0)
        assert [part.error_code for topic in answer.topics for part in topic.partitions] == [
            InvalidUpdateVersion.code
        ]
        assert victim not in brokers.isr_of("t")

    run(test, tmp_path, replica_lag_time_max_ms="1000")


def test_a_leader_that_waits_for_another_before_it_stops_leads_on_whoever_leaves(tmp_path: Path) -> None:
    """With unclean elections, too: nobody takes over who lacks records while the leader is there."""

    async def test(brokers: Brokers) -> None:
        controller = brokers.controller.config.node_id
        leader, heir, other = (each for each in brokers.ids if each != controller)
        clean = {"follower.replication.throttled.replicas": "*"}
        topics = {"clean": clean, "unclean": {**clean, "unclean.leader.election.enable": "true"}}
        for name, configs in topics.items():
            await brokers.place(name, {0: [leader, heir]}, configs)
        await brokers.stop(heir)
        await until(lambda: brokers.isr_of("clean") == brokers.isr_of("unclean") == [leader])
        for _ in range(20):
            for name in topics:
                await brokers.send(name, RECORD)
        await brokers.start(
            heir, follower_replication_throttled_rate="1000000", replica_fetch_max_bytes="50000"
        )
        stopping = asyncio.create_task(brokers[leader].controller_link.hand_over())
        await asyncio.sleep(0.3)
        await brokers.stop(other)
        while not stopping.done():
            for name in topics:
                state = brokers.controller.metadata.topic(name).partitions[0]
                assert state.leader == leader or (state.leader == heir and leader not in state.isr)
            await asyncio.sleep(0.005)
        for name in topics:
            assert brokers.leader_of(name) == heir
            assert brokers.replica(heir, name).log.end_offset == 20

    run(test, tmp_path, count=4)


def test_a_leader_that_hears_late_that_a_move_has_ended_is_done_with_it(tmp_path: Path) -> None:
    """The answer to what it proposed came first, and has the same version."""

    async def test(brokers: Brokers) -> None:
        controller = brokers.controller
        leader, other = (each for each in brokers.ids if each != controller.config.node_id)
        await brokers.place("t", {0: [leader]}, {})
        await brokers.send("t", RECORD)
        copies = cut(brokers, other, COPYING)
        moves = {TopicPartition("t", 0): [leader, other]}
        await controller.controller.reassign(moves, may_resize=True)
        await until(lambda: brokers.replica(leader, "t").state.adding == [other])
        hears = cut(brokers, leader, "controller")
        await asyncio.sleep(MAX_WAIT_MS / 1000 + 0.1)  # until what it asked before is answered
        copies()
        await until(lambda: brokers.isr_of("t") == sorted([leader, other]))
        await until(lambda: sorted(brokers.replica(leader, "t").state.isr) == sorted([leader, other]))
        assert brokers.replica(leader, "t").state.adding == [other]
        hears()
        await until(lambda: brokers.replica(leader, "t").state.adding == [])
        leadership = brokers.replica(leader, "t").leadership
        assert leadership is not None
        await brokers.stop(other)
        await until(lambda: brokers.isr_of("t") == [leader])
        await until(lambda: leadership.is_under_replicated)

    run(test, tmp_path)
