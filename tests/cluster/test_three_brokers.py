"""Three brokers with their controller: replication as clients see it."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path

from millstream.controller.topics import NewTopic
from millstream.errors import (
    ClusterAuthorizationFailed,
    KafkaStorageError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
)
from millstream.model import TopicPartition
from millstream.protocol.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from tests.cluster.brokers import Brokers, run, until


def test_records_are_on_all_brokers_when_they_are_acknowledged(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("t", min_insync_replicas="2")
        for number in range(50):
            await brokers.send("t", b"%d" % number, b"x" * 100)
        for number in brokers.ids:
            assert brokers.replica(number, "t").log.end_offset == 100
            await brokers.until_committed(number, "t", 100)
            assert brokers.content(number, "t") == brokers.content(1, "t")

    run(test, tmp_path)


def test_a_broker_stops_and_comes_back(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("t", min_insync_replicas="2")
        await brokers.send("t", b"a")
        for number in brokers.ids:
            await brokers.stop(number)
            await brokers.send("t", b"without %d" % number)
            await brokers.start(number)
            await until(lambda: brokers.isr_of("t") == [1, 2, 3])
        await brokers.send("t", b"z")
        end = brokers.replica(1, "t").log.end_offset
        for number in brokers.ids:
            await brokers.until_committed(number, "t", end)
            assert brokers.content(number, "t") == brokers.content(1, "t")

    run(test, tmp_path)


def test_a_broker_with_an_empty_folder_holds_everything_before_it_counts(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("t")
        for number in range(20):
            await brokers.send("t", b"%d" % number, bytes(50_000))
        await brokers.stop(3)
        shutil.rmtree(tmp_path / "3")
        await brokers.start(3)
        await until(lambda: brokers.isr_of("t") == [1, 2, 3])
        await brokers.stop(1)
        await brokers.stop(2)
        await until(lambda: brokers.leader_of("t") == 3)
        assert brokers.replica(3, "t").high_watermark == 40
        assert brokers.content(3, "t").count(bytes(50_000)) == 20
        await brokers.send("t", b"alone")

    run(test, tmp_path)


def test_consumers_read_from_the_replica_in_their_rack(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("t")
        await brokers.send("t", b"a")
        leader = brokers.leader_of("t")
        near = next(number for number in brokers.ids if number != leader)
        await brokers.until_committed(near, "t", 1)
        sent = await brokers.fetch(leader, "t", 0, rack=f"rack-{near}")
        assert (sent.error_code, sent.preferred_read_replica, bytes(sent.records or b"")) == (0, near, b"")
        found = await brokers.fetch(near, "t", 0, rack=f"rack-{near}")
        assert (found.error_code, found.preferred_read_replica, found.high_watermark) == (0, -1, 1)
        assert bytes(found.records or b"") == brokers.content(leader, "t")
        at_home = await brokers.fetch(leader, "t", 0, rack=f"rack-{leader}")
        assert bytes(at_home.records or b"") == brokers.content(leader, "t")
        waiting = asyncio.create_task(brokers.fetch(near, "t", 1, rack=f"rack-{near}", max_wait_ms=5000))
        await asyncio.sleep(0.05)
        await brokers.send("t", b"b")
        assert (await waiting).high_watermark == 2

    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    run(test, tmp_path, replica_selector_class=selector)


def test_only_the_leader_says_that_an_offset_is_out_of_range(tmp_path: Path) -> None:
    """A follower may lag behind, and a consumer that takes it for the leader would begin anew elsewhere."""

    async def test(brokers: Brokers) -> None:
        await brokers.create("t")
        await brokers.send("t", b"a")
        for number in brokers.ids:
            is_leader = number == brokers.leader_of("t")
            expected = OffsetOutOfRange if is_leader else NotLeaderOrFollower
            assert (await brokers.fetch(number, "t", 2)).error_code == expected.code

    run(test, tmp_path, replica_selector_class="RackAwareReplicaSelector")


def test_without_a_selector_followers_send_consumers_to_the_leader(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("t")
        await brokers.send("t", b"a")
        leader = brokers.leader_of("t")
        near = next(number for number in brokers.ids if number != leader)
        assert (await brokers.fetch(leader, "t", 0, rack=f"rack-{near}")).preferred_read_replica == -1
        refused = await brokers.fetch(near, "t", 0, rack=f"rack-{near}")
        assert refused.error_code == NotLeaderOrFollower.code
        assert (await brokers.produce(near, "t", b"x")).error_code == NotLeaderOrFollower.code

    run(test, tmp_path)


def test_a_client_may_not_fetch_as_a_replica(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        link = await brokers.link(1)
        request = FetchRequest(
            replica_state=FetchRequest.ReplicaState(replica_id=2, replica_epoch=1),
            max_wait_ms=0,
            min_bytes=1,
            topics=[],
        )
        answer = await link.request(request, FetchResponse, 5000)
        assert answer.error_code == ClusterAuthorizationFailed.code

    run(test, tmp_path, count=1)


def test_who_asks_the_wrong_broker_is_told_who_leads(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("t")
        await brokers.send("t", b"a")
        leader = brokers.leader_of("t")
        other = next(number for number in brokers.ids if number != leader)
        response = await brokers.ask_produce(other, "t", b"x")
        (answer,) = response.responses[0].partition_responses
        assert answer.error_code == NotLeaderOrFollower.code
        assert answer.current_leader is not None
        assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (leader, 0)
        assert [(node.node_id, node.port) for node in response.node_endpoints] == [
            (leader, brokers[leader].port)
        ]
        topic_id = brokers[other].metadata.topic("t").topic_id
        wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            topics=[FetchRequest.FetchTopic(topic_id=topic_id, partitions=[wanted])],
        )
        fetched = await (await brokers.link(other)).request(request, FetchResponse, 5000)
        found = fetched.responses[0].partitions[0].current_leader
        assert found is not None
        assert found.leader_id == fetched.node_endpoints[0].node_id == leader

    run(test, tmp_path)


def test_a_new_producers_batches_do_not_overtake_one_that_came_before_the_broker_led(tmp_path: Path) -> None:
    """The producer heard of the new leader before that one did: its first batch is refused, and those in
    flight behind it come when the broker leads."""

    async def test(brokers: Brokers) -> None:
        async def send(number: int, sequence: int) -> int:
            value = b"%d" % sequence
            answer = await brokers.produce(
                number, "t", value, producer_id=7, producer_epoch=0, base_sequence=sequence
            )
            return answer.error_code

        await brokers.create("t", min_insync_replicas="2")
        await brokers.send("t", b"a")
        leader = brokers.leader_of("t")
        following = next(number for number in brokers.replica(leader, "t").state.replicas if number != leader)
        assert await send(following, 0) == NotLeaderOrFollower.code
        await brokers.stop(leader)
        await until(lambda: brokers.replica(following, "t").is_leader)
        assert await send(following, 1) == NotLeaderOrFollower.code
        assert [await send(following, sequence) for sequence in range(2)] == [0, 0]

    run(test, tmp_path)


def test_another_broker_leads_when_the_leaders_log_dir_fails(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("t", min_insync_replicas="2")
        await brokers.send("t", b"a")
        leader = brokers.leader_of("t")
        brokers[leader].replicas.dir_failed(brokers.replica(leader, "t").log.dir_path)
        refused = await brokers.produce(leader, "t", b"x")
        assert refused.error_code in (KafkaStorageError.code, NotLeaderOrFollower.code)
        await until(lambda: brokers.leader_of("t") not in (leader, -1))
        assert await brokers.send("t", b"b") == 1
        assert leader not in brokers.isr_of("t")

    run(test, tmp_path)


def test_with_flush_before_ack_every_replica_has_flushed_what_is_acknowledged(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("t", flush_before_ack="true", min_insync_replicas="2")
        for number in range(10):
            await brokers.send("t", b"%d" % number)
            for one in brokers.ids:
                assert brokers.replica(one, "t").log.recovery_point == number + 1

    run(test, tmp_path)


def test_a_topic_of_the_same_name_begins_empty_on_every_broker(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("t", partitions=3)
        for index in range(3):
            await brokers.send("t", b"old", index=index)
        controller = brokers.controller
        await controller.controller.delete_topic(controller.metadata.topic("t"))
        await brokers.create("t", partitions=3)
        for index in range(3):
            assert await brokers.send("t", b"new", index=index) == 0
        for number in brokers.ids:
            for index in range(3):
                await brokers.until_committed(number, "t", 1, index)
                assert b"old" not in brokers.content(number, "t", index)

    run(test, tmp_path)


def test_an_empty_folder_is_filled_though_some_of_it_is_nowhere_else(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        controller = brokers.controller.controller
        for name in ("a", "y"):  # nobody else has these
            await controller.create_topic(NewTopic(name, assignment={0: [3]}))
            await brokers.send(name, b"alone")
        for name in ("b", "x"):
            await brokers.create(name, partitions=3)
            for index in range(3):
                await brokers.send(name, b"copied", index=index)
        await brokers.stop(3)
        shutil.rmtree(tmp_path / "3")
        await brokers.start(3)
        for name in ("b", "x"):
            for index in range(3):
                await until(lambda name=name, index=index: brokers.isr_of(name, index) == [1, 2, 3])  # type: ignore[misc]
        for name in ("a", "y"):  # its disk may come back: no empty log takes its place
            assert brokers.replica(3, name).failure is not None

    run(test, tmp_path)


def test_a_leader_that_may_have_been_replaced_says_nothing_of_where_its_log_ends(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("t")
        await brokers.send("t", b"a")
        leader = brokers.leader_of("t")
        assert (await brokers.fetch(leader, "t", 5)).error_code == OffsetOutOfRange.code
        holder = brokers.replica(leader, "t")._holder
        is_lease_held, holder.is_lease_held = holder.is_lease_held, lambda: False
        assert (await brokers.fetch(leader, "t", 5)).error_code == NotLeaderOrFollower.code
        wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
        topic = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[wanted])
        link = await brokers.link(leader)
        request = ListOffsetsRequest(replica_id=-1, topics=[topic])
        answer = await link.request(request, ListOffsetsResponse, 5000)
        assert answer.topics[0].partitions[0].error_code == NotLeaderOrFollower.code
        found = await brokers.fetch(leader, "t", 0)  # what was committed stays so
        assert found.error_code == 0
        assert found.records
        holder.is_lease_held = is_lease_held

    run(test, tmp_path)


def test_a_broker_whose_log_dir_failed_goes_on_when_a_topic_there_is_deleted(tmp_path: Path) -> None:
    """What it cannot delete keeps it from nothing else; and a later topic of that name keeps its records."""

    async def test(brokers: Brokers) -> None:
        await brokers.start(2, log_dirs=f"{tmp_path / 'one'},{tmp_path / 'two'}")
        controller = brokers.controller
        await brokers.create("t", partitions=4, replicas=2)
        held = [brokers.replica(2, "t", index) for index in range(4)]
        held[3].log.fail(OSError(errno.EIO, "the disk is broken"))
        await until(lambda: held[3].failure is not None)
        await controller.controller.delete_topic(controller.metadata.topic("t"))
        assert all(partition.failure is not None for partition in held)
        await brokers.create("t", partitions=1, replicas=2)
        await brokers.send("t", b"a")
        brokers[2].cluster_state.begin_anew()  # it is told of the deletion once more
        asked_at = asyncio.get_running_loop().time()
        await until(lambda: brokers[2].cluster_state.knows_all_since(asked_at))
        assert brokers.replica(2, "t").failure is None
        await brokers.send("t", b"b")
        for broker_id in (1, 2):
            await brokers.until_committed(broker_id, "t", 2)
        assert brokers.content(2, "t") == brokers.content(1, "t")
        await brokers.stop(2)

    run(test, tmp_path, count=1, replica_lag_time_max_ms="1000")


def test_a_replica_that_was_taken_away_counts_for_nothing_when_it_is_added_again(tmp_path: Path) -> None:
    """Its log is empty then, also if the leader never heard that it was away."""

    async def test(brokers: Brokers) -> None:
        controller, place = brokers.controller.controller, TopicPartition("t", 0)
        await controller.create_topic(NewTopic("t", assignment={0: [2]}))
        await brokers.send("t", b"a")
        await controller.reassign({place: [2, 3, 4]}, may_resize=True)
        await brokers.stop(4)  # so that the move does not end
        await until(lambda: brokers.isr_of("t") == [2, 3])
        await brokers[2].cluster_state.stop()  # the leader hears nothing for a while
        taking_back = asyncio.create_task(controller.reassign({place: None}, may_resize=True))
        await until(lambda: 0 not in brokers[3].replicas.topic("t"))
        await brokers[3].cluster_state.stop()
        adding = asyncio.create_task(controller.reassign({place: [2, 3, 1]}, may_resize=True))
        await until(lambda: controller.term.picture.topic("t").partitions[0].adding == [3, 1])
        await brokers[2].cluster_state.start()
        await until(lambda: brokers.replica(1, "t").high_watermark == 1)
        await until(lambda: 1 in controller.term.picture.topic("t").partitions[0].isr)
        assert 3 not in controller.term.picture.topic("t").partitions[0].isr
        await brokers[3].cluster_state.start()
        await asyncio.gather(taking_back, adding)
        await until(lambda: brokers.isr_of("t") == [1, 2, 3])
        for number in (1, 3):
            await brokers.until_committed(number, "t", 1)
            assert brokers.content(number, "t") == brokers.content(2, "t")

    run(test, tmp_path, count=4)
