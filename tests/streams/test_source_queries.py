"""Streaming queries by real Spark: restarts, AvailableNow, progress, lag."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millstream.client.admin_blocking import Admin
from millstream.client.producer_blocking import Producer
from millstream.model import TopicPartition
from millstream.streams.committing import GroupCommitter
from millstream.testing import Broker
from tests.processes import until
from tests.streams.reading import drain, line_of, options_for, send, started, stream, written

Name = Callable[[str], str]


@pytest.fixture
def topic(broker: Broker, new_name: Name) -> str:
    """A topic of two partitions."""
    return broker.create_topic(new_name("query"), 2)


def test_available_now_reads_in_several_batches_and_goes_on_where_it_ended(
    spark: SparkSession, broker: Broker, producer: Producer, topic: str, tmp_path: Path
) -> None:
    send(producer, topic, range(10))
    send(producer, topic, range(10, 15), partition=1)
    options = options_for(broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger=6)
    first = drain(spark, options, tmp_path / "checkpoint", tmp_path / "out")
    assert written(spark, tmp_path / "out") == list(range(15))
    assert [progress.numInputRows for progress in first.recentProgress if progress.numInputRows] == [6, 6, 3]
    source = first.recentProgress[0].sources[0]
    ends = [json.loads(text) if isinstance(text, str) else text for text in (source.endOffset,)]
    assert [each[topic] for each in ends] == [{"0": 4, "1": 2}]
    assert json.loads(str(source.latestOffset).replace("'", '"')) == {topic: {"0": 10, "1": 5}}

    send(producer, topic, range(15, 18))
    drain(spark, options, tmp_path / "checkpoint", tmp_path / "out")
    assert written(spark, tmp_path / "out") == list(range(18))


def test_a_stream_from_the_end_loses_nothing_over_a_restart(
    spark: SparkSession, broker: Broker, producer: Producer, topic: str, tmp_path: Path
) -> None:
    """The first batch is logged, its commit is lost: Spark does it again, from where it had begun."""
    send(producer, topic, range(3))
    options = options_for(broker, topic, startingOffsets="latest", maxOffsetsPerTrigger=100)
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    query = started(spark, options, checkpoint, out)
    try:
        until(lambda: (checkpoint / "commits" / "0").exists(), 60, "the first batch is done")
        send(producer, topic, range(3, 6))
        until(lambda: (checkpoint / "commits" / "1").exists(), 60, "the second batch is done")
    finally:
        query.stop()
    assert written(spark, out) == [3, 4, 5]
    # As if the process had died before the first batch that has rows was committed.
    first = checkpoint / "offsets" / "0"
    *head, last = first.read_text().splitlines()
    logged = json.loads(last)
    logged[topic]["0"] = 6
    shutil.rmtree(checkpoint / "commits")
    shutil.rmtree(checkpoint / "offsets")
    first.parent.mkdir()
    first.write_text("\n".join([*head, json.dumps(logged)]))
    send(producer, topic, range(6, 9))
    drain(spark, options, checkpoint, tmp_path / "again")
    assert written(spark, tmp_path / "again") == [3, 4, 5, 6, 7, 8]


def test_lag_is_seen_at_once_and_offsets_are_in_the_progress(
    spark: SparkSession,
    broker: Broker,
    producer: Producer,
    admin: Admin,
    topic: str,
    new_name: Name,
    tmp_path: Path,
) -> None:
    send(producer, topic, range(5))
    group, name = new_name("group"), new_name("name").replace("-", "_")
    committer = GroupCommitter(broker.bootstrap, group, query=name)
    spark.streams.addListener(committer)
    try:
        query = (
            stream(spark, options_for(broker, topic, startingOffsets="earliest"))
            .writeStream.format("memory")
            .queryName(name)
            .start()
        )
        try:
            expected = {TopicPartition(topic, 0): 0, TopicPartition(topic, 1): 0}
            until(lambda: admin.group_lag(group) == expected, 60, "the lag is 0")
        finally:
            query.stop()
        send(producer, topic, range(2))
        assert admin.group_lag(group)[TopicPartition(topic, 0)] == 2
    finally:
        spark.streams.removeListener(committer)
        committer.close()


def test_what_a_stream_cannot_do_is_told_in_one_line(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as raised:
        stream(spark, options_for(broker, topic, maxOffsetPerTrigger=3))
    assert "no option 'maxoffsetpertrigger': did you mean maxOffsetsPerTrigger?" in line_of(raised.value)
    for number, (options, line) in enumerate(
        [
            (options_for(broker, topic, endingOffsets="latest"), "option endingOffsets is for batch queries"),
            (options_for(broker, "no-such-topic"), "topic no-such-topic does not exist"),
        ]
    ):
        with pytest.raises(Exception) as raised:
            drain(spark, options, tmp_path / f"checkpoint{number}", tmp_path / "out")
        assert line in line_of(raised.value)


def test_a_query_that_lost_records_ends_with_one_line(
    spark: SparkSession, broker: Broker, producer: Producer, admin: Admin, topic: str, tmp_path: Path
) -> None:
    send(producer, topic, range(5))
    options = options_for(broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger=2)
    drain(spark, options, tmp_path / "checkpoint", tmp_path / "out")
    send(producer, topic, range(5, 10))
    admin.delete_records({TopicPartition(topic, 0): 7})
    with pytest.raises(Exception) as raised:
        drain(spark, options, tmp_path / "checkpoint", tmp_path / "out")
    line = line_of(raised.value)
    assert f"{topic}-0: the records at offsets 5 to 6 are lost, the partition begins at offset 7 now" in line
    assert "failOnDataLoss=false" in line
    lax = options | {"failOnDataLoss": "false"}
    drain(spark, lax, tmp_path / "checkpoint", tmp_path / "out")
    assert written(spark, tmp_path / "out") == [0, 1, 2, 3, 4, 7, 8, 9]
