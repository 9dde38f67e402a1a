"""What a sink refuses, in one line that says what to do."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from millstream.client.producer_settings import ProducerSettings
from millstream.errors import MillstreamError
from millstream.streams.datasource import MillstreamSource
from millstream.streams.options import BadOption
from millstream.streams.sink import BatchWriter, StreamWriter
from millstream.streams.sink_columns import RECORD_COLUMNS, by_topic, gathered
from millstream.streams.sink_errors import BadRow
from millstream.streams.sink_options import FORBIDDEN, KNOWN, SETTINGS, sink_options

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("spark")]  # which parses the schemas

OPTIONS = {"kafka.bootstrap.servers": "localhost:9092", "topic": "out"}
HEADERS = "array<struct<key:string,value:binary>>"


def schema(text: str) -> StructType:
    found = StructType.fromDDL(text)
    assert isinstance(found, StructType)
    return found


@pytest.mark.parametrize("writer", [BatchWriter, StreamWriter])
@pytest.mark.parametrize(
    "columns",
    [
        "value string",
        "key binary, value binary",
        f"key string, value string, headers {HEADERS}, topic string, partition int",
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp",
    ],
)
def test_columns_that_can_be_written(writer: type[BatchWriter | StreamWriter], columns: str) -> None:
    writer(OPTIONS, schema(columns))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("id bigint", "a sink needs a column named value, string or binary; there are: id"),
        (
            "value bigint",
            'column value is bigint, not string or binary: cast it, as in df.withColumn."value',
        ),
        ("value string, key int", "column key is int, not string or binary"),
        ("value string, topic int", "column topic is int, not string"),
        ("value string, partition bigint", "column partition is bigint, not int"),
        ("value string, headers map<string,binary>", f"column headers is map.*; it has to be {HEADERS}"),
        ("value string, headers array<struct<key:string,value:string>>", "it has to be array<struct<"),
    ],
)
def test_columns_that_cannot(columns: str, message: str) -> None:
    with pytest.raises(MillstreamError, match=message) as raised:
        StreamWriter(OPTIONS, schema(columns))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka.bootstrap.servers": ""}, "no broker is named: add .option"),
        ({"guarantee": "once"}, "option guarantee is one of at-least-once, exactly-once, not 'once'"),
        ({"garantee": "exactly-once"}, "has no option 'garantee': did you mean guarantee?"),
        ({"topic": ""}, "option topic is empty"),
        (
            {"kafka.key.serializer": "x"},
            "option kafka.key.serializer cannot be set on a sink: keys and values",
        ),
        ({"kafka.value.serializer": "x"}, "cast the columns instead"),
        ({"kafka.interceptor.classes": "x"}, "option kafka.interceptor.classes cannot be set on a sink"),
        ({"kafka.transactional.id": "x"}, "the sink makes its own"),
        ({"kafka.partitioner.class": "x"}, "name each row's partition in a column partition"),
        ({"kafka.linger.ms": "soon"}, "option kafka.linger.ms=soon cannot be used"),
        ({"kafka.compresion.type": "lz4"}, "did you mean kafka.compression.type?"),
        ({"kafka.compression.type": "rar"}, "compression is none, gzip, snappy, lz4 or zstd, not 'rar'"),
        ({"kafka.enable.idempotence": "false"}, "exactly-once needs kafka.acks=all and"),
        ({"kafka.acks": "1"}, 'needs kafka.acks=all .*, or set .option."guarantee", "at-least-once".'),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, str], message: str) -> None:
    with pytest.raises(MillstreamError, match=message) as raised:
        StreamWriter({**OPTIONS, **options}, schema("value string"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, (32 << 20, 1 << 20, 64 << 10)),
        ({"kafka.batch.size": "2000000"}, (32 << 20, 1 << 20, 1 << 20)),
        ({"kafka.max.request.size": "67108864"}, (64 << 20, 64 << 20, 64 << 10)),
        ({"kafka.buffer.memory": "50000"}, (50_000, 50_000, 50_000)),
        ({"kafka.buffer.memory": "500", "kafka.max.request.size": "1000"}, (500, 500, 500)),
    ],
)
def test_sizes_that_kafka_takes(options: dict[str, str], sizes: tuple[int, int, int]) -> None:
    found = ProducerSettings(**sink_options({**OPTIONS, **options}).producer)
    assert (found.buffer_bytes, found.max_request_bytes, found.batch_bytes) == sizes


def test_a_topic_is_needed_once() -> None:
    given = {"kafka.bootstrap.servers": "localhost:9092"}
    with pytest.raises(MillstreamError, match="no topic is named"):
        BatchWriter(given, schema("value string"))
    BatchWriter(given, schema("value string, topic string"))


def test_nothing_is_overwritten() -> None:
    source = MillstreamSource(OPTIONS)
    with pytest.raises(BadOption, match=r'nothing is overwritten: write .mode."append"'):
        source.writer(schema("value string"), overwrite=True)
    source.streamWriter(schema("value string"), overwrite=True)  # complete mode: all rows with each batch


@pytest.mark.parametrize("headers", [[None], [{"key": None, "value": b"x"}]])
def test_a_header_has_a_key(headers: list[object]) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    good = [None, [], [{"key": "h", "value": None}]]
    for rows, is_good in ((good, True), ([*good, headers], False)):
        columns = {"value": pa.array([b"x"] * len(rows)), "headers": pa.array(rows, kind)}
        batch = pa.record_batch(columns).slice(1)
        if is_good:
            assert [topic for topic, _ in by_topic(batch, "out")] == ["out"]
        else:
            with pytest.raises(BadRow, match="a row has a header without a key"):
                list(by_topic(batch, "out"))


def test_weak_acks_are_for_at_least_once() -> None:
    StreamWriter({**OPTIONS, "kafka.acks": "1", "guarantee": "At-Least-Once"}, schema("value string"))


def test_the_page_names_every_option_and_column() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "spark-sink.md").read_text(encoding="utf-8")
    names = [*SETTINGS, *(f"kafka.{name}" for name in FORBIDDEN), *KNOWN, *RECORD_COLUMNS, "topic"]
    assert [name for name in names if f"`{name}`" not in page and name != "includeHeaders"] == []


def _part(number: int, topic: str, wide: int = 1) -> pa.RecordBatch:
    values = [b"%05d" % (10 * number + row) for row in range(10)]
    return pa.record_batch({"value": values, "topic": [topic] * 10, "other": [bytes(wide)] * 10})


def test_rows_are_gathered_by_topic_in_their_order() -> None:
    parts = [_part(number, topic) for number, topic in enumerate(["a", "b", "a", "a", "b", "a"])]
    enough = 3 * parts[0].nbytes
    found = [
        (topic, table.column("value").to_pylist()) for topic, table in gathered(iter(parts), None, enough)
    ]
    firsts = [(topic, [int(value) for value in values[::10]]) for topic, values in found]
    assert firsts == [("a", [0, 20]), ("b", [10]), ("a", [30, 50]), ("b", [40])]
    assert sum(len(values) for _, values in found) == 60
    assert list(gathered(iter([]), None, 1)) == []
    assert len(list(gathered(iter(parts), None, 1))) == len(parts)


def test_columns_that_a_record_does_not_have_count_in_what_is_gathered() -> None:
    """They are in memory as long as the others, which came in one piece with them."""
    taken = iter([_part(number, "a", wide=10_000) for number in range(4)])
    topic, table = next(gathered(taken, None, 100_000))
    assert (topic, table.column_names, table.num_rows) == ("a", ["value"], 10)
    assert len(list(taken)) == 3
