"""A consumer reads from the replica in its rack, and from others when that one goes (KIP-392)."""

from __future__ import annotations

from pathlib import Path

from millstream import AsyncConsumer, TopicPartition
from tests.client.consuming import read
from tests.cluster.brokers import Brokers, run

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
HERE = TopicPartition("near", 0)


def test_reads_from_its_rack_and_survives_its_end_and_that_of_the_leader(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("near")
        await brokers.send("near", b"0")
        leader = brokers.leader_of("near")
        near = next(number for number in brokers.ids if number != leader)
        await brokers.until_committed(near, "near", 1)
        bootstrap = [f"127.0.0.1:{brokers[number].port}" for number in brokers.ids]
        async with AsyncConsumer(
            bootstrap, rack=f"rack-{near}", offset_reset="earliest", fetch_max_wait_ms=100
        ) as consumer:
            consumer.assign([HERE])
            values = [record.value for record in await read(consumer, 1)]
            assert consumer._assignment[HERE].preferred_replica == near
            for number in range(1, 6):
                await brokers.send("near", b"%d" % number)
            values += [record.value for record in await read(consumer, 5)]
            assert consumer._assignment[HERE].preferred_replica == near
            await brokers.stop(near)
            await brokers.send("near", b"6")
            values += [record.value for record in await read(consumer, 1)]
            assert consumer._assignment[HERE].preferred_replica == -1
            await brokers.start(near)
            await brokers.stop(leader)
            await brokers.send("near", b"7")
            values += [record.value for record in await read(consumer, 1)]
            assert values == [b"%d" % number for number in range(8)]
            assert await consumer.position(HERE) == 8

    run(test, tmp_path, replica_selector_class=SELECTOR)
