"""Batch queries by real Spark from a real broker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from millstream.client.admin_blocking import Admin
from millstream.client.producer_blocking import Producer
from millstream.model import TopicPartition
from millstream.streams.options import BadOption
from millstream.streams.reading.batch import BatchReader
from millstream.streams.reading.errors import LostRecords, NoBroker, NoRecords, NoTopic
from millstream.testing import Broker
from tests.processes import until
from tests.streams.reading import frame, line_of, numbers_of, options_for, read_all, send, values_of

Name = Callable[[str], str]


@pytest.fixture
def topic(broker: Broker, new_name: Name) -> str:
    """A topic of two partitions."""
    return broker.create_topic(new_name("batch"), 2)


def test_columns_are_those_of_the_official_connector(
    spark: SparkSession, broker: Broker, producer: Producer, topic: str
) -> None:
    producer.send(
        topic, b"v", key=b"k", partition=1, timestamp_ms=1_700_000_000_123, headers=[("h", b"1"), ("h", None)]
    )
    producer.send(topic, None, partition=1, timestamp_ms=1_700_000_000_124)
    producer.flush()
    rows = frame(spark, options_for(broker, topic, includeHeaders="true")).orderBy("offset").collect()
    assert rows[0].asDict(recursive=True) == {
        "key": b"k",
        "value": b"v",
        "topic": topic,
        "partition": 1,
        "offset": 0,
        "timestamp": rows[0].timestamp,
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
    }
    assert rows[0].timestamp.replace(tzinfo=UTC) == datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
    assert (rows[1].key, rows[1].value, rows[1].headers) == (None, None, None)


def test_columns_that_are_named_are_read_alone(
    spark: SparkSession, broker: Broker, producer: Producer, topic: str
) -> None:
    send(producer, topic, range(3))
    rows = frame(spark, options_for(broker, topic, columns="offset,value")).orderBy("offset")
    assert rows.columns == ["offset", "value"]
    assert [tuple(row) for row in rows.collect()] == [(0, b"0"), (1, b"1"), (2, b"2")]


def test_an_empty_topic_has_no_rows(spark: SparkSession, broker: Broker, topic: str) -> None:
    assert frame(spark, options_for(broker, topic)).count() == 0


def test_topics_by_list_pattern_and_partition(
    broker: Broker, producer: Producer, topic: str, new_name: Name
) -> None:
    other = broker.create_topic(new_name(f"{topic}.other"), 1)
    send(producer, topic, range(3))
    send(producer, topic, range(10, 12), partition=1)
    send(producer, other, range(20, 22))

    def read(**options: object) -> list[int]:
        reader = BatchReader(options_for(broker, **options))
        return values_of(read_all(reader, reader.partitions()))

    assert read(subscribe=f"{topic}, {other}") == [0, 1, 2, 10, 11, 20, 21]
    assert read(subscribePattern=f"{topic}.*") == [0, 1, 2, 10, 11, 20, 21]
    assert read(subscribePattern=topic) == [0, 1, 2, 10, 11]
    assert read(subscribePattern="nothing-like-it") == []
    assert read(assign=f'{{"{topic}": [1]}}') == [10, 11]


def test_offsets_and_timestamps_bound_what_is_read(broker: Broker, producer: Producer, topic: str) -> None:
    for number in range(10):
        send(producer, topic, [number], timestamp_ms=1000 + number * 100)

    def read(**options: object) -> list[int]:
        reader = BatchReader(options_for(broker, topic, **options))
        return values_of(read_all(reader, reader.partitions()))

    def each(name: str, value: object, other: object) -> dict[str, object]:
        return {name: f'{{"{topic}": {{"0": {value}, "1": {other}}}}}'}

    assert read(**each("startingOffsets", 3, -2), **each("endingOffsets", 6, -1)) == [3, 4, 5]
    assert read(**each("startingOffsets", 8, 0)) == [8, 9]
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert read(startingTimestamp=1750, **latest) == [8, 9]
    assert read(startingTimestamp=1300, endingTimestamp=1500, **latest) == [3, 4]
    by_time = each("startingOffsetsByTimestamp", 1700, 0)
    assert read(**by_time, **each("endingOffsetsByTimestamp", 1900, 5), **latest) == [7, 8]
    assert read(endingTimestamp=99_999) == list(range(10))

    with pytest.raises(BadOption, match="has no record at or after 9999 ms; take an earlier time"):
        read(startingTimestamp=9999)
    with pytest.raises(BadOption, match=r"leaves out .*-1: name all"):
        read(startingOffsets=f'{{"{topic}": {{"0": 3}}}}')
    with pytest.raises(BadOption, match="which the query does not read"):
        read(startingOffsets=f'{{"{topic}": {{"0": 3, "1": 0, "2": 0}}}}')
    with pytest.raises(BadOption, match="lies before startingOffsets"):
        read(**each("startingOffsets", 5, 0), **each("endingOffsets", 3, 0))


def test_partitions_are_cut_for_more_tasks(
    spark: SparkSession, broker: Broker, producer: Producer, topic: str
) -> None:
    send(producer, topic, range(40))
    rows = frame(spark, options_for(broker, topic, minPartitions=4))
    assert rows.rdd.getNumPartitions() == 4
    assert numbers_of(rows) == list(range(40))
    reader = BatchReader(options_for(broker, topic, maxRecordsPerPartition=16))
    assert len(reader.partitions()) == 3


def test_committed_reads_end_behind_markers_and_aborted_records(
    broker: Broker, producer: Producer, topic: str, new_name: Name
) -> None:
    with Producer(broker.bootstrap, transactional_id=new_name("txn")) as txn:
        with txn.transaction():
            send(txn, topic, [1, 2])
        txn.begin_transaction()
        send(txn, topic, [3, 4])
        txn.abort_transaction()
        with txn.transaction():
            send(txn, topic, [5])
        txn.begin_transaction()
        send(txn, topic, [6])
        committed = BatchReader(options_for(broker, topic, kafka__isolation__level="read_committed"))
        assert values_of(read_all(committed, committed.partitions())) == [1, 2, 5]
        plain = BatchReader(options_for(broker, topic))
        assert values_of(read_all(plain, plain.partitions())) == [1, 2, 3, 4, 5, 6]
        txn.abort_transaction()
    # now the partition ends with a marker, behind records that nobody sees
    assert values_of(read_all(committed, committed.partitions())) == [1, 2, 5]


def test_compacted_topics_are_read_over_their_gaps(broker: Broker, new_name: Name) -> None:
    topic = broker.create_topic(
        new_name("compacted"),
        1,
        configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "100"},
    )
    with Producer(broker.bootstrap, linger_ms=0, compression="zstd") as producer:
        for number in range(50):
            send(producer, topic, [number], key=b"%d" % (number % 5))
        reader = BatchReader(options_for(broker, topic))

        def compacted() -> bool:
            send(producer, topic, [1000], key=b"last")  # closes the segment before it
            return len(read_all(reader, reader.partitions())) < 30

        until(compacted, 30, "the topic is compacted")
    rows = read_all(reader, reader.partitions())
    assert {45, 46, 47, 48, 49} <= set(values_of(rows))
    assert [row["offset"] for row in rows] == sorted(row["offset"] for row in rows)


def test_compressed_batches_are_read_in_bounded_pieces(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.streams.reading.task.MAX_COLUMN_BYTES", 20_000)
    values = [b"%d " % number + bytes(500) for number in range(400)]
    with Producer(broker.bootstrap, compression="lz4") as producer:
        for first in range(0, 400, 20):
            producer.send_batch(topic, values[first : first + 20], partition=0)
            producer.flush()
    reader = BatchReader(options_for(broker, topic))
    (piece,) = reader.partitions()
    batches = list(reader.read(piece))
    assert len(batches) > 5
    assert [value for batch in batches for value in batch["value"].to_pylist()] == values


def test_records_that_were_deleted_are_told(
    broker: Broker, producer: Producer, admin: Admin, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    send(producer, topic, range(10))
    start = f'{{"{topic}": {{"0": 2, "1": 0}}}}'
    planned = BatchReader(options_for(broker, topic, startingOffsets=start))
    slices = planned.partitions()
    admin.delete_records({TopicPartition(topic, 0): 5})

    lost = f"{topic}-0: the records at offsets 2 to 4 are lost, the partition begins at offset 5 now"
    with pytest.raises(LostRecords, match=f"{lost}. To go on without them set failOnDataLoss=false"):
        read_all(planned, slices)
    with pytest.raises(LostRecords, match=lost):
        planned.partitions()

    going_on = BatchReader(options_for(broker, topic, startingOffsets=start, failOnDataLoss="false"))
    assert values_of(read_all(going_on, slices)) == [5, 6, 7, 8, 9]
    assert lost in caplog.text
    assert values_of(read_all(going_on, going_on.partitions())) == [5, 6, 7, 8, 9]

    beyond = f'{{"{topic}": {{"0": 12, "1": 0}}}}'
    with pytest.raises(LostRecords, match="offsets 10 to 11 are lost, the partition ends at offset 10"):
        BatchReader(options_for(broker, topic, endingOffsets=beyond)).partitions()


def test_a_topic_deleted_while_it_is_read_is_told(
    broker: Broker, producer: Producer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    send(producer, topic, range(3))
    planned = BatchReader(options_for(broker, topic))
    slices = planned.partitions()
    broker.delete_topic(topic)
    with pytest.raises(LostRecords, match="offsets 0 to 2 are lost, the topic is gone"):
        read_all(planned, slices)
    going_on = BatchReader(options_for(broker, topic, failOnDataLoss="false"))
    assert read_all(going_on, slices) == []


def test_records_that_do_not_come_are_told(broker: Broker, producer: Producer, topic: str) -> None:
    from millstream.streams.reading.slices import Slice

    send(producer, topic, range(3))
    reader = BatchReader(options_for(broker, topic, kafkaConsumer__pollTimeoutMs=300))
    with pytest.raises(NoRecords, match=r"from offset 3 on \(of 5\) in 300 ms.*pollTimeoutMs"):
        read_all(reader, [Slice(topic, 0, 0, 5)])


def test_records_that_will_never_come_do_not_stop_a_query_that_is_to_go_on(
    broker: Broker, producer: Producer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic was made anew, shorter and with fewer partitions, after a batch of it was planned."""
    from millstream.streams.reading.slices import Slice

    send(producer, topic, range(3))
    reader = BatchReader(options_for(broker, topic, kafkaConsumer__pollTimeoutMs=300, failOnDataLoss="false"))
    assert values_of(read_all(reader, [Slice(topic, 0, 0, 5), Slice(topic, 7, 0, 5)])) == [0, 1, 2]
    assert f"{topic}-0: the records at offsets 3 to 4 are lost" in caplog.text
    assert f"{topic}-7: the records at offsets 0 to 4 are lost" in caplog.text


def test_a_missing_topic_and_a_missing_broker_are_told_in_one_line(
    spark: SparkSession, broker: Broker, topic: str
) -> None:
    with pytest.raises(Exception) as raised:
        frame(spark, options_for(broker, "no-such-topic")).count()
    line = line_of(raised.value)
    assert "topic no-such-topic does not exist: create it with `millstream topic create no-such" in line
    with pytest.raises(NoTopic, match=r"topic .* has 2 partitions, numbered from 0"):
        BatchReader(options_for(broker, assign=f'{{"{topic}": [7]}}')).partitions()
    nowhere = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "200"}
    with pytest.raises(NoBroker, match="no broker answers at 127"):
        BatchReader(options_for(broker, topic) | nowhere).partitions()


def test_a_bad_option_is_told_in_one_line(spark: SparkSession, broker: Broker, topic: str) -> None:
    with pytest.raises(Exception) as raised:
        frame(spark, options_for(broker, topic, startingOffset="earliest")).count()
    assert "did you mean startingOffsets?" in line_of(raised.value)


def test_the_brokers_time_is_told_from_the_producers(
    broker: Broker, producer: Producer, new_name: Name
) -> None:
    topic = broker.create_topic(new_name("log-time"), 1, configs={"message.timestamp.type": "LogAppendTime"})
    send(producer, topic, [1], timestamp_ms=1000)
    reader = BatchReader(options_for(broker, topic))
    (row,) = read_all(reader, reader.partitions())
    assert row["timestampType"] == 1
    assert row["timestamp"].year > 2000


def test_times_beyond_those_of_spark_are_its_last_and_first(
    broker: Broker, producer: Producer, new_name: Name
) -> None:
    configs = {f"message.timestamp.{side}.max.ms": str(2**63 - 1) for side in ("before", "after")}
    topic = broker.create_topic(new_name("far"), 1, configs=configs)
    for far in (2**62, 1000):
        send(producer, topic, [far], timestamp_ms=far)
    reader = BatchReader(options_for(broker, topic))
    times = [
        time for piece in reader.partitions() for batch in reader.read(piece) for time in batch["timestamp"]
    ]
    assert [time.value for time in times] == [(2**63 - 1) // 1000 * 1000, 1_000_000]


def test_a_reader_that_leaves_early_keeps_nobody_from_reading(
    broker: Broker, producer: Producer, topic: str
) -> None:
    send(producer, topic, range(50))
    reader = BatchReader(options_for(broker, topic, kafka__max__partition__fetch__bytes=100))
    (piece,) = reader.partitions()
    for _ in range(3):
        reading = reader.read(piece)
        assert next(reading).num_rows > 0
        reading.close()  # type: ignore[attr-defined]
    assert values_of(read_all(reader, [piece])) == list(range(50))


def test_rows_are_read_by_several_tasks_at_once_in_one_process(
    broker: Broker, producer: Producer, topic: str
) -> None:
    send(producer, topic, range(20))
    send(producer, topic, range(20, 40), partition=1)
    reader = BatchReader(options_for(broker, topic, kafka__max__partition__fetch__bytes=100))
    first, second = (reader.read(piece) for piece in reader.partitions())
    rows = [row for pair in zip(first, second, strict=True) for batch in pair for row in batch.to_pylist()]
    assert sorted(values_of(rows)) == list(range(40))
