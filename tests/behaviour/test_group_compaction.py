"""The log of a group that commits on and on stays small, and says the same after a restart."""

from __future__ import annotations

from pathlib import Path

from millstream.protocol.messages import (
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from millstream.testing.broker import Broker
from tests.processes import until
from tests.transactional import until_settled
from tests.wire import Wire, create_topic

COMPACTING = {
    "offsets.topic.num.partitions": "1",
    "log.cleaner.backoff.ms": "50",
    "log.cleaner.min.cleanable.ratio": "0.1",
    "log.segment.delete.delay.ms": "50",
}
GROUPS = 5
ROUNDS = 2000


def commit(wire: Wire, group: str, offset: int) -> None:
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="orders", partitions=[partition])
    request = OffsetCommitRequest(group_id=group, member_id="", topics=[topic])
    assert until_settled(lambda: wire.ask(request, 9).topics[0].partitions[0]).error_code == 0


def committed(wire: Wire, group: str) -> int:
    asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)
    answer = until_settled(lambda: wire.ask(OffsetFetchRequest(groups=[asked]), 9).groups[0])
    assert answer.error_code == 0
    offset: int = answer.topics[0].partitions[0].committed_offset
    return offset


def make_segments_small(wire: Wire) -> None:
    change = IncrementalAlterConfigsRequest.AlterableConfig(
        name="internal.segment.bytes", config_operation=0, value="65536"
    )
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=2, resource_name="__consumer_offsets", configs=[change]
    )
    answer = wire.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
    assert answer.responses[0].error_code == 0, answer


def log_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "__consumer_offsets-0").glob("*.log"))


def test_the_log_of_many_commits_stays_small(tmp_path: Path) -> None:
    with Broker(COMPACTING, data=tmp_path) as broker:
        with Wire(broker.bootstrap) as wire:
            create_topic(wire, "orders")
            wire.ask(FindCoordinatorRequest(coordinator_key="", coordinator_keys=["group-0"]))
            make_segments_small(wire)
            for round_number in range(ROUNDS):
                for group in range(GROUPS):
                    commit(wire, f"group-{group}", round_number)
        written = ROUNDS * GROUPS * 110
        until(lambda: log_bytes(tmp_path) < written / 4, 30, "a compacted log")
        for _ in range(2):
            broker.restart()
            with Wire(broker.bootstrap) as wire:
                wire.ask(FindCoordinatorRequest(coordinator_key="", coordinator_keys=["group-0"]))
                assert [committed(wire, f"group-{group}") for group in range(GROUPS)] == [ROUNDS - 1] * GROUPS
