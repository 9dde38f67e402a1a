"""Three brokers and one controller: who decides, who follows, and what happens when one of them goes."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.coordinators import Coordinators
from millstream.cluster.metadata import BrokerNode
from millstream.cluster.partition import Partition
from millstream.controller import term, tree
from millstream.controller.reading import read_brokers
from millstream.controller.topics import NewTopic
from millstream.errors import (
    ElectionNotNeeded,
    KafkaStorageError,
    NoReassignmentInProgress,
    NotController,
    PreferredLeaderNotAvailable,
    StaleBrokerEpoch,
    StaleControllerEpoch,
    TopicAlreadyExists,
)
from millstream.model import TopicPartition
from millstream.protocol.messages import (
    AlterPartitionRequest,
    ClusterStateRequest,
    ControlledShutdownRequest,
)
from millstream.registry.contract import Registry
from tests.controller.cluster import Cluster

Test = Callable[[Cluster], Coroutine[Any, Any, None]]
Run = Callable[[Test], None]


@pytest.fixture(params=["memory", "sqlite"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    return _runner(tmp_path, request.param)


@pytest.fixture
def run_in_memory(tmp_path: Path) -> Run:
    return _runner(tmp_path, "memory")


def _runner(folder: Path, kind: str) -> Run:
    def start(test: Test) -> None:
        async def main() -> None:
            async with asyncio.timeout(60), Cluster(folder, kind) as cluster:
                await test(cluster)

        asyncio.run(main())

    return start


def test_one_broker_decides_and_all_know(run: Run) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("t", 6)
        controller = cluster.controller.config.node_id
        for broker in cluster.brokers.values():
            assert broker.metadata.controller_id == controller
            assert broker.metadata.controller_epoch == 1
            assert sorted(broker.metadata.brokers) == [1, 2, 3]
            assert len(broker.replicas.topic("t")) == 6
        assert sorted(each for (each,) in cluster.leaders("t")) == [1, 1, 2, 2, 3, 3]
        with pytest.raises(NotController):
            await cluster.follower.controller.create_topic(NewTopic("u", 1, 1))
        made = await cluster.follower.controller_link.create_topic(NewTopic("u", 2, 2))
        assert len(made.partitions) == 2
        again = await cluster.follower.controller_link.create_topic(NewTopic("u", 2, 2))
        assert again.topic_id == made.topic_id

    run(test)


def test_topics_grow_change_and_go_everywhere(run: Run) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("t", 2)
        controller = cluster.controller.controller
        await controller.add_partitions("t", 5, None, validate_only=False)
        assert [len(broker.replicas.topic("t")) for broker in cluster.brokers.values()] == [5, 5, 5]
        await controller.set_topic_config("t", lambda _: {"max.message.bytes": "7777"}, validate_only=False)
        await controller.set_broker_config(
            tree.DEFAULT_BROKER, lambda _: {"log.retention.ms": "123456"}, validate_only=False
        )
        await controller.set_broker_config(
            "2", lambda _: {"log.segment.bytes": "2000000"}, validate_only=False
        )
        for broker_id, broker in cluster.brokers.items():
            held = broker.replicas.topic("t")[0].log.config
            assert held.max_message_bytes == 7777
            assert held.retention_ms == 123456
            assert (held.segment_bytes == 2000000) == (broker_id == 2)
        await controller.delete_topic(cluster.controller.metadata.topic("t"))
        for broker in cluster.brokers.values():
            assert "t" not in broker.metadata.topics
            assert broker.replicas.topic("t") == {}
            assert not [log for log in broker.store if Path(log.folder).name.startswith("t-")]
        await cluster.create("t", 1)
        assert len(cluster.leaders("t")[0]) == 1

    run(test)


def test_leaders_move_before_a_broker_stops(run: Run) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("t", 6, min_insync_replicas="2")
        leaving = cluster.follower.config.node_id
        await cluster.stop(leaving)
        assert cluster.agree("t", lambda state: state.leader not in (-1, leaving))
        assert all(len(leaders) == 1 for leaders in cluster.leaders("t"))
        assert cluster.agree("t", lambda state: leaving not in state.isr)
        await cluster.start(leaving)
        await cluster.until_in_sync("t", [1, 2, 3])
        # Nobody gave leadership back by itself; asked to, the controller does.
        assert leaving not in {state.leader for state in cluster.states("t")}
        outcomes = await cluster.controller.controller.elect(None, is_unclean=False)
        for place, error in outcomes.items():
            was_preferred = cluster.states("t")[place.partition].replicas[0] != leaving
            assert isinstance(error, ElectionNotNeeded) if was_preferred else error is None
        assert sorted(each for (each,) in cluster.leaders("t")) == [1, 1, 2, 2, 3, 3]

    run(test)


def test_another_broker_takes_over_as_controller(run: Run) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("t", 3)
        first = cluster.controller.config.node_id
        await cluster.stop(first)
        second = await cluster.until_controller()
        assert second.controller.epoch == 2
        await cluster.create("u", 2, 2)
        with pytest.raises(TopicAlreadyExists):
            await cluster.create("t")
        for broker in cluster.brokers.values():
            await cluster.until(lambda broker=broker: broker.metadata.controller_epoch == 2)  # type: ignore[misc]
            assert broker.metadata.controller_id == second.config.node_id
        back = await cluster.start(first)
        assert not back.controller.is_active
        assert {"t", "u"} <= back.metadata.topics.keys()
        await cluster.until_in_sync("t", [1, 2, 3])

    run(test)


def test_a_controller_that_lost_its_session_follows_another(run_in_memory: Run) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("t", 6)
        first = cluster.controller
        epochs = [state.leader_epoch for state in cluster.states("t")]
        cluster.lose(first.config.node_id)
        with pytest.raises(NotController):
            await first.controller.create_topic(NewTopic("u", 1, 1))
        second = await cluster.until_controller()
        assert second is not first or second.controller.epoch == 2
        await cluster.until(lambda: all(b.metadata.controller_epoch == 2 for b in cluster.brokers.values()))
        await cluster.until_in_sync("t", [1, 2, 3])
        assert all(len(leaders) == 1 for leaders in cluster.leaders("t"))
        after = [state.leader_epoch for state in cluster.states("t")]
        assert all(new >= old for new, old in zip(after, epochs, strict=True))
        assert after != epochs
        await cluster.create("u", 3)

    run_in_memory(test)


def test_a_controller_whose_node_is_deleted_by_hand_makes_room_for_another(run: Run) -> None:
    """Nor does it go on for its own broker alone, which would hear of nothing that the other decides."""

    async def test(cluster: Cluster) -> None:
        old = cluster.controller
        epoch = old.controller.epoch
        await cluster.registries[old.config.node_id].delete(tree.CONTROLLER)
        await cluster.until(lambda: any(each.controller.epoch > epoch for each in cluster.brokers.values()))
        await cluster.until_controller()
        await cluster.create("later")
        await cluster.until_in_sync("later", cluster.ids)

    run(test)


def test_whatever_comes_from_an_earlier_epoch_is_refused(run_in_memory: Run) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("t", assignment={0: [1, 2, 3]})
        controller = cluster.controller.controller
        broker = cluster.brokers[1]
        old_epoch = broker.broker_epoch

        async def poll(epoch: int, controller_epoch: int) -> int:
            response = await controller.requests.poll(
                ClusterStateRequest(
                    broker_id=1, broker_epoch=epoch, controller_epoch=controller_epoch, max_wait_ms=0
                )
            )
            return response.error_code

        async def alter(epoch: int) -> int:
            return (
                await controller.requests.alter_partitions(
                    AlterPartitionRequest(broker_id=1, broker_epoch=epoch, topics=[])
                )
            ).error_code

        assert await poll(old_epoch, 1) == 0
        assert await poll(old_epoch - 1, 1) == StaleBrokerEpoch.code
        assert await alter(old_epoch - 1) == StaleBrokerEpoch.code
        assert await alter(old_epoch) == 0
        stopping = ControlledShutdownRequest(broker_id=1, broker_epoch=old_epoch - 1)
        assert (await controller.requests.stop_broker(stopping)).error_code == StaleBrokerEpoch.code
        assert cluster.states("t")[0].leader == 1
        # One that follows a later controller makes this one resign.
        assert await poll(old_epoch, 7) == StaleControllerEpoch.code
        assert not controller.is_active

    run_in_memory(test)


def test_a_strange_node_among_the_brokers_stands_in_nobodys_way(run: Run) -> None:
    async def test(cluster: Cluster) -> None:
        registry = cluster.registries[cluster.controller.config.node_id]
        await registry.create(f"{tree.BROKERS}/stranger", b"{}")
        await registry.create(f"{tree.BROKERS}/77", b"not json")
        gone = cluster.follower.config.node_id
        await cluster.stop(gone)
        await cluster.until(lambda: gone not in cluster.controller.metadata.brokers)
        assert 77 not in cluster.controller.metadata.brokers

    run(test)


def test_brokers_that_could_not_be_looked_at_are_looked_at_again(
    run_in_memory: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(cluster: Cluster) -> None:
        failures = iter([ValueError("a defect")])

        async def read(registry: Registry) -> dict[int, tuple[BrokerNode, bool]]:
            for failure in failures:
                raise failure
            return await read_brokers(registry)

        gone = cluster.follower.config.node_id
        monkeypatch.setattr(term, "read_brokers", read)
        await cluster.stop(gone)
        await cluster.until(lambda: gone not in cluster.controller.metadata.brokers)
        assert next(failures, None) is None

    run_in_memory(test)


def test_a_broker_that_starts_knows_all_topics_before_it_leads_anything(
    run_in_memory: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its coordinators look at topics: one that is not known yet is not there, for them."""

    async def test(cluster: Cluster) -> None:
        names = {f"t{number}" for number in range(5)}
        for name in names:
            await cluster.create(name, assignment={0: [1]})
        await cluster.stop(1)
        known: list[set[str]] = []
        lead = Coordinators.lead

        def note(self: Coordinators, partition: Partition) -> None:
            known.append(set(self._broker.metadata.topics))
            lead(self, partition)

        monkeypatch.setattr(Coordinators, "lead", note)
        await cluster.start(1)
        assert known == [names] * 5

    run_in_memory(test)


def test_a_broker_that_missed_too_much_asks_for_everything(
    run_in_memory: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.controller.feed.KEPT", 3)

    async def test(cluster: Cluster) -> None:
        await cluster.create("gone", 2)
        slow = cluster.follower
        await slow.cluster_state.stop()
        deletion = cluster.controller.controller.delete_topic(cluster.controller.metadata.topic("gone"))
        await asyncio.gather(deletion, *(cluster.create(f"t{number}", 1) for number in range(5)))
        assert "t4" not in slow.metadata.topics
        assert "gone" in slow.metadata.topics
        await slow.cluster_state.start()
        assert {f"t{number}" for number in range(5)} <= slow.metadata.topics.keys()
        assert "gone" not in slow.metadata.topics
        assert slow.replicas.topic("gone") == {}

    run_in_memory(test)


def test_a_broker_that_does_not_follow_yet_is_given_replicas_last_and_does_not_count(
    run_in_memory: Run,
) -> None:
    """It could not tell a log that is new from one that it lost."""

    async def test(cluster: Cluster) -> None:
        silent = cluster.follower
        await silent.cluster_state.stop()
        cluster.lose(silent.config.node_id)
        await cluster.until(
            lambda: silent.broker_epoch in cluster.controller.controller.term.picture.epochs.values()
        )
        await cluster.create("all", 6, 3)
        await cluster.create("some", 6, 2)
        all_, some = (cluster.controller.metadata.topic(name).partitions for name in ("all", "some"))
        assert all(silent.config.node_id not in (state.leader, *state.isr) for state in all_)
        assert all(silent.config.node_id not in state.replicas for state in some)
        await silent.cluster_state.start()
        await cluster.until_in_sync("all", cluster.ids)

    run_in_memory(test)


def test_a_controller_whose_log_dir_failed_makes_grows_and_deletes_topics(run_in_memory: Run) -> None:
    """Others lead what it cannot hold; it refuses only what would be nowhere else."""

    async def test(cluster: Cluster) -> None:
        await cluster.create("old", partitions=3)
        await cluster.create("kept", assignment={0: [1], 1: [2], 2: [3]})
        broker, controller = cluster.controller, cluster.controller.controller
        own = broker.config.node_id
        others = [id_ for id_ in cluster.ids if id_ != own]
        dirs = broker.store.dirs
        dirs.failed(dirs[0], OSError(errno.EIO, "the disk is broken"))
        await cluster.create("new", assignment={0: [own, *others], 1: [others[0], own, others[1]]})
        await cluster.until_in_sync("new", others)
        await controller.add_partitions("new", 3, [[own, *others]], validate_only=False)
        await cluster.until_in_sync("new", others)
        await controller.add_partitions("kept", 4, [others[:1]], validate_only=False)
        await cluster.until(lambda: cluster.leaders("new") == [others[:1]] * 3)
        await controller.delete_topic(broker.metadata.topic("old"))
        assert cluster.tree.children(tree.DELETED_TOPICS) == []
        await cluster.create("old", partitions=3)
        await cluster.until_in_sync("old", others)
        with pytest.raises(KafkaStorageError):
            await cluster.create("alone", assignment={0: [own]})
        with pytest.raises(KafkaStorageError):
            await controller.add_partitions("kept", 5, [[own]], validate_only=False)
        assert sorted(cluster.tree.children(tree.TOPICS)) == ["kept", "new", "old"]
        assert len(broker.metadata.topic("kept").partitions) == 4

    run_in_memory(test)


def test_preferred_leaders_that_cannot_lead_are_told(run_in_memory: Run) -> None:
    async def test(cluster: Cluster) -> None:
        first = next(id_ for id_, broker in cluster.brokers.items() if broker is not cluster.controller)
        others = [id_ for id_ in cluster.ids if id_ != first]
        await cluster.create("t", assignment={0: [first, *others]})
        await cluster.stop(first)
        place = TopicPartition("t", 0)
        outcomes = await cluster.controller.controller.elect([place], is_unclean=False)
        assert isinstance(outcomes[place], PreferredLeaderNotAvailable)
        missing = TopicPartition("t", 7)
        assert (await cluster.controller.controller.elect([missing], is_unclean=False))[missing] is not None

    run_in_memory(test)


def test_replicas_are_spread_over_the_racks_that_brokers_say(tmp_path: Path) -> None:
    async def main() -> None:
        racks = {1: "here", 2: "here", 3: "there"}
        cluster = Cluster(tmp_path)
        async with asyncio.timeout(60):
            try:
                for broker_id, rack in racks.items():
                    await cluster.start(broker_id, {"broker.rack": rack})
                await cluster.create("t", 6, 2)
                for state in cluster.states("t"):
                    assert {racks[replica] for replica in state.replicas} == {"here", "there"}
                await cluster.controller.controller.add_partitions("t", 9, None, validate_only=False)
                for state in cluster.states("t"):
                    assert {racks[replica] for replica in state.replicas} == {"here", "there"}
            finally:
                await cluster.__aexit__(None, None, None)

    asyncio.run(main())


def test_a_partition_moves_to_other_brokers(run: Run) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.create("t", assignment={0: [1, 2], 1: [2, 3]})
        controller = cluster.controller.controller
        place = TopicPartition("t", 0)
        outcomes = await controller.reassign({place: [3, 2]}, may_resize=False)
        assert outcomes == {place: None}
        await cluster.until(
            lambda: all(
                b.metadata.topic("t").partitions[0].replicas == [3, 2] for b in cluster.brokers.values()
            )
        )
        state = cluster.states("t")[0]
        assert (set(state.isr), state.adding, state.removing) == ({3, 2}, [], [])
        assert state.leader in (3, 2)
        await cluster.until(lambda: 0 not in cluster.brokers[1].replicas.topic("t"))
        assert await controller.reassignments() == {}
        assert isinstance(
            (await controller.reassign({place: None}, may_resize=True))[place], NoReassignmentInProgress
        )

    run(test)


def test_a_move_ends_when_enough_are_in_sync_or_fewer_are_asked_for(run_in_memory: Run) -> None:
    async def test(cluster: Cluster) -> None:
        controller = cluster.controller.config.node_id
        gone, other = (id_ for id_ in cluster.ids if id_ != controller)
        place = TopicPartition("t", 0)
        await cluster.create("t", assignment={0: [controller, other, gone]}, min_insync_replicas="2")
        moving = cluster.controller.controller
        cluster.brokers[gone].replicas.topic("t")[0].fail(KafkaStorageError("its disk is gone"))
        await cluster.until(lambda: cluster.states("t", controller)[0].isr == [controller, other])
        assert await moving.reassign({place: [controller, gone]}, may_resize=True) == {place: None}
        assert cluster.states("t", controller)[0].removing == [other]
        assert cluster.states("t", controller)[0].isr == [controller, other]
        await moving.set_topic_config("t", lambda _: {"min.insync.replicas": "1"}, validate_only=False)
        await cluster.until(lambda: cluster.states("t", controller)[0].removing == [])
        assert cluster.states("t", controller)[0].isr == [controller]

    run_in_memory(test)


def test_a_replica_whose_broker_is_away_may_stay(run_in_memory: Run) -> None:
    async def test(cluster: Cluster) -> None:
        controller = cluster.controller.config.node_id
        here, away = (id_ for id_ in cluster.ids if id_ != controller)
        await cluster.create("t", assignment={0: [controller, away], 1: [away, controller]})
        await cluster.create("other", assignment={0: [here]})
        await cluster.stop(away)
        targets = [[controller, away, here], [controller, away]]
        outcomes = await cluster.controller.controller.reassign(
            {
                TopicPartition("t", 0): targets[0],
                TopicPartition("t", 1): targets[1],
                TopicPartition("other", 0): [here, away],
            },
            may_resize=True,
        )
        assert [error is None for error in outcomes.values()] == [True, True, False]
        await cluster.until(lambda: set(cluster.states("t", controller)[0].isr) == {controller, here})
        states = cluster.states("t", controller)
        assert [state.replicas for state in states] == targets
        assert not any(state.adding or state.removing for state in states)

    run_in_memory(test)


def test_a_move_survives_its_controller_and_can_be_taken_back(run_in_memory: Run) -> None:
    async def test(cluster: Cluster) -> None:
        controller = cluster.controller.config.node_id
        keeping, away = (id_ for id_ in cluster.ids if id_ != controller)
        await cluster.create("t", assignment={0: [keeping], 1: [keeping]})
        await cluster.stop(away)
        place, other = TopicPartition("t", 0), TopicPartition("t", 1)
        refused = await cluster.controller.controller.reassign({place: [away]}, may_resize=True)
        assert refused[place] is not None  # nobody moves to a broker that is not there
        await cluster.start(away)
        # Nothing is copied there for a while: the moves stay under way.
        await cluster.brokers[away].replicas.stop()
        outcomes = await cluster.controller.controller.reassign(
            {place: [away], other: [away]}, may_resize=True
        )
        assert outcomes == {place: None, other: None}
        assert sorted(await cluster.controller.controller.reassignments()) == [place, other]
        await cluster.stop(controller)
        second = await cluster.until_controller()
        moving = await second.controller.reassignments()
        assert {place: (each.adding, each.removing) for place, each in moving.items()} == {
            place: ([away], [keeping]),
            other: ([away], [keeping]),
        }
        assert await second.controller.reassign({other: None}, may_resize=True) == {other: None}
        assert cluster.states("t")[1].replicas == [keeping]
        assert list(await second.controller.reassignments()) == [place]

    run_in_memory(test)
