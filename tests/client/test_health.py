"""What metadata shows to be wrong."""

from __future__ import annotations

from millstream.client.health import judge
from millstream.client.metadata import Metadata, Node, Partition, Topic
from millstream.errors import KafkaStorageError
from millstream.model import NO_UUID, TopicPartition
from millstream.protocol.messages import DescribeLogDirsResponse


def metadata(*partitions: Partition, nodes: tuple[int, ...] = (1, 2, 3), controller: int = 1) -> Metadata:
    topic = Topic("t", NO_UUID, False, {partition.index: partition for partition in partitions})
    return Metadata("id", controller, {n: Node(n, "localhost", 9092 + n) for n in nodes}, {"t": topic})


FINE = Partition(0, 1, 0, (1, 2, 3), (1, 2, 3))
KEY = TopicPartition("t", 0)


def test_a_whole_cluster_is_healthy() -> None:
    found = judge(metadata(FINE), {"t": 2})
    assert found.is_healthy
    assert found.summary == "healthy: 3 brokers, 1 partition"


def test_each_lack_is_named() -> None:
    shrunk = judge(metadata(Partition(0, 1, 0, (1, 2, 3), (1, 2))), {"t": 2})
    assert (list(shrunk.under_replicated), list(shrunk.under_min_isr), list(shrunk.offline)) == (
        [KEY],
        [],
        [],
    )
    refusing = judge(metadata(Partition(0, 1, 0, (1, 2, 3), (1,))), {"t": 2})
    assert (list(refusing.under_replicated), list(refusing.under_min_isr)) == ([KEY], [KEY])
    leaderless = judge(metadata(Partition(0, -1, 0, (1, 2, 3), (1,))), {"t": 1})
    assert list(leaderless.offline) == [KEY]
    for found in (shrunk, refusing, leaderless):
        assert not found.is_healthy
    assert leaderless.summary == "unhealthy: 1 offline; 1 under-replicated (of 1 partition)"


def test_a_broker_that_is_away_counts_before_the_controller_has_said_so() -> None:
    found = judge(metadata(FINE, nodes=(1, 2)), {"t": 3})
    assert found.missing_brokers == [3]
    assert list(found.under_replicated) == list(found.under_min_isr) == [KEY]
    assert found.offline == {}
    assert list(judge(metadata(FINE, nodes=(2, 3)), {}).offline) == [KEY]


def test_no_more_replicas_are_asked_for_than_there_are() -> None:
    """As the brokers take it, and Kafka's UnderMinIsr: min.insync.replicas beyond the replicas means all."""
    assert judge(metadata(Partition(0, 1, 0, (1,), (1,))), {"t": 2}).is_healthy
    assert judge(metadata(Partition(0, 1, 0, (1, 2), (1, 2))), {"t": 3}).is_healthy
    assert list(judge(metadata(Partition(0, 1, 0, (1, 2), (1,))), {"t": 3}).under_min_isr) == [KEY]


def test_no_controller_is_no_health() -> None:
    found = judge(metadata(FINE, controller=-1), {})
    assert not found.is_healthy
    assert "no controller" in found.summary


def test_log_dirs_that_are_full_or_failed_and_damaged_records_are_no_health() -> None:
    described = DescribeLogDirsResponse.DescribeLogDirsResult
    fine = described(log_dir="/a", topics=[])
    failed = described(log_dir="/b", topics=[], error_code=KafkaStorageError.code)
    full = described(log_dir="/c", topics=[], is_full=True)
    bad = DescribeLogDirsResponse.DamagedTopic(name="t", partitions=[0])
    damaged = described(log_dir="/d", topics=[], damaged=[bad])
    assert judge(metadata(FINE), {}, {1: [fine], 2: [fine]}).is_healthy
    found = judge(metadata(FINE), {}, {1: [fine, failed], 2: [full, damaged], 3: [damaged]})
    assert not found.is_healthy
    assert (found.failed_dirs, found.full_dirs, found.damaged) == ({1: ["/b"]}, {2: ["/c"]}, {KEY: [2, 3]})
    assert found.summary == (
        "unhealthy: 1 with damaged records; log dir /b of broker 1 has failed; "
        "log dir /c of broker 2 is full (of 1 partition)"
    )


def test_a_broker_that_does_not_answer_is_no_health() -> None:
    """It may lead, and nobody elects another while its session with the registry lives."""
    found = judge(metadata(FINE), {}, {}, [1, 3])
    assert not found.is_healthy
    assert found.unresponsive_brokers == [1, 3]
    assert found.summary == "unhealthy: brokers that do not answer: 1, 3 (of 1 partition)"
