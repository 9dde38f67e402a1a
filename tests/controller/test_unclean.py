"""Brokers that stop without writing everything down, disks that fail, and elections that may lose records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millstream.cluster.metadata import PartitionState, Topic
from millstream.controller import tree
from millstream.errors import KafkaStorageError, NotController, StaleBrokerEpoch
from millstream.model import TopicPartition
from millstream.protocol.messages import ClusterStateRequest, ClusterStateResponse
from tests.controller.cluster import Cluster

Test = Callable[[Cluster], Coroutine[Any, Any, None]]
Run = Callable[[Test], None]

CLEAN_FILE = ".kafka_cleanshutdown"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def start(test: Test) -> None:
        async def main() -> None:
            config = {"leader.imbalance.check.interval.seconds": "1"}
            async with asyncio.timeout(60), Cluster(tmp_path, config=config) as cluster:
                await test(cluster)

        asyncio.run(main())

    return start


def make_unclean(cluster: Cluster, broker_id: int) -> None:
    """Let a stopped broker's folder look as if it had not come to stop by itself."""
    (cluster.folder / f"broker-{broker_id}" / CLEAN_FILE).unlink()


def test_an_unclean_stop_costs_the_place_in_every_isr_with_another_member(run: Run) -> None:
    async def test(cluster: Cluster) -> None:
        first, second, third = cluster.ids
        await cluster.create("alone", assignment={0: [first]})
        await cluster.create("shared", assignment={0: [first, second]})
        for name in ("alone", "shared"):
            assert cluster.states(name)[0].leader == first
        (second_epoch,) = [state.leader_epoch for state in cluster.states("shared")]
        await cluster.stop(first)
        make_unclean(cluster, first)
        await cluster.until(lambda: cluster.agree("alone", lambda state: state.leader == -1))
        back = await cluster.start(first)
        assert not back.store.dirs.were_clean
        (alone,) = cluster.states("alone")
        assert (alone.leader, alone.isr) == (first, [first])
        assert alone.leader_epoch == 2  # one for nobody, one for the return
        await cluster.until_in_sync("shared", [first, second])
        assert cluster.states("shared")[0].leader_epoch > second_epoch
        assert third in cluster.brokers

    run(test)


def test_a_killed_process_on_a_machine_that_ran_on_has_lost_nothing(run: Run) -> None:
    async def test(cluster: Cluster) -> None:
        first = cluster.follower.config.node_id
        await cluster.create("alone", assignment={0: [first]})

        async def kill_and_start(boot_id: str) -> bool:
            await cluster.stop(first)
            make_unclean(cluster, first)
            cluster.boot_id = boot_id
            broker = await cluster.start(first)
            assert cluster.states("alone")[0].leader == first
            return broker.store.dirs.kept_all

        assert not await kill_and_start("a")
        assert await kill_and_start("a")
        assert not await kill_and_start("b")
        assert await kill_and_start("b")
        assert not await kill_and_start("")
        (cluster.folder / f"broker-{first}" / ".millstream_boot").unlink()
        assert not await kill_and_start("b")

    run(test)


def test_a_return_that_nobody_saw_leave_is_seen_by_its_epoch(run: Run) -> None:
    """The registration is replaced before the controller looks: the new number tells."""

    async def test(cluster: Cluster) -> None:
        controller = cluster.controller.config.node_id
        leader, other = (id_ for id_ in cluster.ids if id_ != controller)
        await cluster.create("t", assignment={0: [leader, other]})
        before = cluster.states("t")[0]
        registry = cluster.registries[other]
        path = f"{tree.BROKERS}/{leader}"
        node = await registry.get(path)
        assert b'"was_clean":false' in node.data  # a new folder: nothing says that it stopped cleanly
        await cluster.registries[leader].delete(path)
        await cluster.registries[leader].create(path, node.data, ephemeral=True)
        await cluster.until(lambda: cluster.states("t", controller)[0].leader == other)
        after = cluster.states("t", controller)[0]
        assert (after.isr, after.leader_epoch) == ([other], before.leader_epoch + 1)
        seen = await registry.get(f"{tree.SEEN_BROKERS}/{leader}")
        assert str((await registry.get(path)).created) in seen.data.decode()

    run(test)


def test_a_failed_log_dir_is_led_by_others(run: Run) -> None:
    async def test(cluster: Cluster) -> None:
        controller = cluster.controller.config.node_id
        leader, other = (id_ for id_ in cluster.ids if id_ != controller)
        await cluster.create("shared", assignment={0: [leader, other]})
        await cluster.create("alone", assignment={0: [leader]})
        for partition in cluster.brokers[leader].replicas:
            partition.fail(KafkaStorageError("the disk is gone"))
        await cluster.until(lambda: cluster.states("shared", controller)[0].leader == other)
        await cluster.until(lambda: cluster.states("alone", controller)[0].leader == -1)
        assert cluster.states("shared", controller)[0].isr == [other]
        assert cluster.states("alone", controller)[0].isr == [leader]

    run(test)


def test_a_topic_that_allows_it_is_led_by_whoever_is_there(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """Each such election is told in the log, and counted."""

    async def test(cluster: Cluster) -> None:
        controller = cluster.controller.config.node_id
        leader, behind = (id_ for id_ in cluster.ids if id_ != controller)
        for name in ("asks", "is-told", "by-hand", "waits"):
            await cluster.create(name, assignment={0: [leader, behind]})
        await cluster.stop(behind)
        for name in ("asks", "is-told", "by-hand", "waits"):
            await cluster.until_in_sync(name, [leader])
        office = cluster.controller.controller
        unclean = {"unclean.leader.election.enable": "true"}
        await office.set_topic_config("asks", lambda _: unclean, validate_only=False)
        await cluster.stop(leader)
        await cluster.start(behind)
        await cluster.until(lambda: cluster.states("asks")[0].leader == behind)
        for name in ("is-told", "by-hand", "waits"):
            state = cluster.states(name)[0]
            assert (state.leader, state.isr) == (-1, [leader])
        await office.set_topic_config("is-told", lambda _: unclean, validate_only=False)
        assert cluster.states("is-told")[0].leader == behind
        place = TopicPartition("by-hand", 0)
        assert await office.elect([place], is_unclean=True) == {place: None}
        assert cluster.states("by-hand")[0].isr == [behind]
        assert cluster.states("waits")[0].leader == -1
        await cluster.start(leader)
        await cluster.until_in_sync("waits", [leader, behind])
        assert cluster.states("waits")[0].leader == leader
        told = [each.getMessage() for each in caplog.records if "unclean election" in each.getMessage()]
        assert [name for name in ("asks", "is-told", "by-hand", "waits") for one in told if name in one] == [
            "asks",
            "is-told",
            "by-hand",
        ]
        assert all(f"broker {behind} leads" in one and f"in sync were [{leader}]" in one for one in told)
        assert office.unclean_elections.value == 3

    run(test)


def test_preferred_leaders_are_given_back_by_themselves(run: Run) -> None:
    async def test(cluster: Cluster) -> None:
        controller = cluster.controller.config.node_id
        leader, other = (id_ for id_ in cluster.ids if id_ != controller)
        await cluster.create("t", assignment={0: [leader, other]})
        await cluster.stop(leader)
        await cluster.until(lambda: cluster.agree("t", lambda state: state.leader == other))
        await cluster.start(leader)
        await cluster.until(lambda: cluster.agree("t", lambda state: state.leader == leader))
        await cluster.until(lambda: cluster.leaders("t") == [[leader]])

    run(test)


def test_a_creation_that_was_cut_short_is_completed_by_the_next_controller(run: Run) -> None:
    """Of many partitions' states only the first were written."""

    async def test(cluster: Cluster) -> None:
        controller = cluster.controller.config.node_id
        registry = cluster.registries[controller]
        states = [PartitionState([1, 2, 3], [1, 2, 3], 1, 0), PartitionState([2, 3, 1], [2, 3, 1], 2, 0)]
        topic = Topic("t", UUID(int=77), states)
        node = tree.topic_path("t")
        await registry.create(node, tree.dump(tree.node_of(topic)))
        first = tree.state_path("t", 0)
        await registry.create(first, tree.dump(tree.state_of(states[0], 1)), make_parents=True)
        await cluster.stop(controller)
        await cluster.until_controller()
        await cluster.until(lambda: all("t" in each.metadata.topics for each in cluster.brokers.values()))
        assert cluster.agree("t", lambda state: state.leader in cluster.brokers)
        await cluster.start(controller)
        await cluster.until_in_sync("t", cluster.ids)
        assert all(len(leaders) == 1 for leaders in cluster.leaders("t"))

    run(test)


def test_a_replica_that_was_moved_away_meanwhile_is_set_aside(run: Run) -> None:
    async def test(cluster: Cluster) -> None:
        controller = cluster.controller.config.node_id
        away, other = (id_ for id_ in cluster.ids if id_ != controller)
        await cluster.create("t", assignment={0: [controller, away]})
        await cluster.stop(away)
        place = TopicPartition("t", 0)
        office = cluster.controller.controller
        assert await office.reassign({place: [controller, other]}, may_resize=False) == {place: None}
        await cluster.until_in_sync("t", [controller, other])
        await cluster.until(lambda: cluster.agree("t", lambda state: not state.removing))
        back = await cluster.start(away)
        assert back.replicas.topic("t") == {}
        assert not [log for log in back.store if log.partition == place]
        assert list((cluster.folder / f"broker-{away}").glob("t-0.*-stray"))

    run(test)


def test_a_crash_that_the_cluster_has_not_heard_of_is_told_at_the_next_start(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that is cut short leaves neither the mark of a clean stop nor that of the boot."""

    async def test(cluster: Cluster) -> None:
        broker_id = cluster.follower.config.node_id
        await cluster.stop(broker_id)
        make_unclean(cluster, broker_id)
        cluster.boot_id = "after the power loss"
        with monkeypatch.context() as patch:
            patch.setattr(cluster.controller.controller.requests, "poll", refuse)
            starting = asyncio.create_task(cluster.start(broker_id))
            registry = cluster.registries[cluster.controller.config.node_id]
            async with asyncio.timeout(10):
                while await registry.exists(f"{tree.BROKERS}/{broker_id}") is None:
                    await asyncio.sleep(0.005)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        broker = await cluster.start(broker_id)
        assert not broker.store.dirs.kept_all
        await cluster.stop(broker_id)
        make_unclean(cluster, broker_id)
        broker = await cluster.start(broker_id)
        assert broker.store.dirs.kept_all  # the cluster had heard of it, and the machine ran on

    async def refuse(_: object) -> ClusterStateResponse:
        return ClusterStateResponse(error_code=NotController.code, error_message="not now")

    run(test)


def test_what_a_broker_said_before_it_began_again_elects_nobody(run: Run) -> None:
    """It may have lost records since: where its log ended does not count, though its turn comes only then."""

    async def test(cluster: Cluster) -> None:
        await cluster.create("t")
        told, controller = cluster.follower, cluster.controller.controller
        broker_id, epoch = told.config.node_id, told.broker_epoch
        end = ClusterStateRequest.DoubtedPartition(index=0, leader_epoch=0, epoch=0, end_offset=100)
        topic_id = told.metadata.topic("t").topic_id
        topic = ClusterStateRequest.DoubtedTopic(topic_id=topic_id, partitions=[end])
        request = ClusterStateRequest(broker_id=broker_id, broker_epoch=epoch, doubted=[topic], max_wait_ms=0)
        turn = asyncio.Event()
        held = asyncio.create_task(controller.in_turn(turn.wait))
        asked = asyncio.create_task(controller.requests.poll(request))
        await asyncio.sleep(0.01)
        cluster.lose(broker_id)
        await cluster.until(lambda: told.broker_epoch > epoch)
        turn.set()
        assert (await asked).error_code == StaleBrokerEpoch.code
        assert broker_id not in controller.term.picture.ends
        await held

    run(test)
