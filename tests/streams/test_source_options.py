"""The source's options: what is taken, and the one line that says what is wrong with the rest."""

from __future__ import annotations

import pytest

from millstream.client.offsets import LATEST, READ_COMMITTED
from millstream.model import TopicPartition
from millstream.streams.options import BadOption
from millstream.streams.reading.schema import columns_of
from millstream.streams.reading.settings import SourceSettings, check_options, settings_of

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}


def settings(is_stream: bool = False, **options: str) -> SourceSettings:
    given = {name.replace("__", "."): value for name, value in options.items()}
    return settings_of(BASE | given, is_stream=is_stream)


def test_names_are_the_same_in_any_case() -> None:
    found = settings(FAILONDATALOSS="false", minpartitions="7", Kafka__Isolation__Level="read_committed")
    assert not found.fail_on_data_loss
    assert found.min_partitions == 7
    assert found.isolation == READ_COMMITTED


def test_all_options_of_the_official_connector_are_taken() -> None:
    found = settings(
        is_stream=True,
        startingOffsets='{"orders": {"0": 23, "1": -1}}',
        startingOffsetsByTimestampStrategy="latest",
        kafkaConsumer__pollTimeoutMs="1000",
        fetchOffset__numRetries="5",
        fetchOffset__retryIntervalMs="20",
        partition__metadata__cache__ttl__ms="-1",
        maxOffsetsPerTrigger="10",
        minOffsetsPerTrigger="5",
        maxTriggerDelay="3m",
        maxRecordsPerPartition="4",
        groupIdPrefix="x",
        includeHeaders="true",
        kafka__group__id="g",
        kafka__client__id="me",
        kafka__max__partition__fetch__bytes="100",
        kafka__max__poll__records="1",
        kafka__ssl__keystore__location="unused",
        kafka__security__protocol="plaintext",
    )
    assert found.starting.each == {TopicPartition("orders", 0): 23, TopicPartition("orders", 1): LATEST}
    assert found.starting.is_moving
    assert (found.max_offsets, found.min_offsets, found.max_trigger_delay_ms) == (10, 5, 180_000)
    assert (found.group, found.client_id, found.max_fetch_bytes) == ("g", "me", 100)
    assert found.columns[-1] == "headers"


def test_a_timestamp_comes_before_timestamps_before_offsets() -> None:
    each = '{"orders": {"0": 5}}'
    found = settings(startingTimestamp="7", startingOffsetsByTimestamp=each, startingOffsets="earliest")
    assert (found.starting.kind, found.starting.time_ms) == ("time", 7)
    assert settings(startingOffsetsByTimestamp=each, startingOffsets="earliest").starting.kind == "times"


def test_columns_are_chosen_in_any_order() -> None:
    assert columns_of({"columns": "Value, offset"}) == ("value", "offset")
    assert columns_of({"columns": "value", "includeheaders": "true"}) == ("value", "headers")
    assert "headers" not in columns_of({})


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"startingOffset": "earliest"}, "no option 'startingOffset': did you mean startingOffsets?"),
        ({"zebra": "1"}, "no option 'zebra'"),
        ({"provider": "millstream", "owner": "me"}, "write CREATE TEMPORARY VIEW name USING millstream"),
        ({"kafka.bootstrap.servers": "host:x"}, "'host:x' is not an address: write HOST:PORT"),
        ({"bootstrap.servers": "x"}, "did you mean kafka.bootstrap.servers?"),
        ({"assign": '{"orders": [0]}'}, "subscribe and assign exclude each other"),
        ({"startingOffsets": "latest"}, "cannot be latest in a batch query"),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, "cannot be latest in a batch query"),
        ({"startingOffsets": "yesterday"}, "is earliest, latest or JSON such as"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "orders-0 has no offset -3"),
        ({"endingOffsets": "earliest"}, "cannot be earliest"),
        ({"startingTimestamp": "noon"}, "is a whole number, not 'noon'"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "is one of error, latest, not 'guess'"),
        ({"failOnDataLoss": "maybe"}, "is true or false, not 'maybe'"),
        ({"minPartitions": "0"}, "is at least 1, not 0"),
        ({"maxTriggerDelay": "soon"}, "is a time such as 15m"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"}, "is more than maxOffsetsPerTrigger=3"),
        ({"columns": "value,ofset"}, "names no column 'ofset': did you mean offset?"),
        ({"columns": "value,value"}, "names value twice"),
        ({"kafka.auto.offset.reset": "latest"}, "startingOffsets says where to begin"),
        ({"kafka.enable.auto.commit": "true"}, "Spark's checkpoint keeps the offsets"),
        ({"kafka.key.deserializer": "x"}, "keys are binary"),
        ({"kafka.isolation.levle": "x"}, "did you mean kafka.isolation.level?"),
        ({"kafka.isolation.level": "dirty"}, "it is one of read_committed, read_uncommitted"),
        ({"kafka.request.timeout.ms": "-1"}, "it is a whole number above 0"),
        ({"kafka.security.protocol": "SASL_SSL"}, "speaks PLAINTEXT only"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(options: dict[str, str], line: str) -> None:
    with pytest.raises(BadOption) as raised:
        settings_of(BASE | options, is_stream=False)
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "nothing says what to read"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribePattern": "("}, "is no regular expression"),
        ({"assign": '{"orders": 3}'}, 'is JSON such as {"orders": [0, 1]}'),
        ({"assign": '{"orders": [-1]}'}, 'is JSON such as {"orders": [0, 1]}'),
    ],
)
def test_what_to_read_is_said_once(options: dict[str, str], line: str) -> None:
    with pytest.raises(BadOption) as raised:
        settings_of({"kafka.bootstrap.servers": "localhost:9092"} | options, is_stream=False)
    assert line in str(raised.value)


def test_the_broker_must_be_named() -> None:
    with pytest.raises(BadOption, match="no broker is named"):
        settings_of({"subscribe": "orders"}, is_stream=False)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"startingOffsets": "latest", "failOnDataLoss": "maybe"}, "failOnDataLoss is true or false"),
        ({"startingOffsets": "latest", "kafka.zebra": "1"}, "no Kafka client has an option 'kafka.zebra'"),
        ({"endingOffsets": "latest", "failOnDataLoss": "maybe"}, "failOnDataLoss is true or false"),
        ({"endingOffsets": "latest", "startingOffsets": "latest"}, "cannot be latest in a batch query"),
    ],
)
def test_what_neither_a_batch_nor_a_stream_can_do_is_said(options: dict[str, str], line: str) -> None:
    with pytest.raises(BadOption) as raised:
        check_options(BASE | options)
    assert line in str(raised.value)
    for only in ({"startingOffsets": "latest"}, {"endingOffsets": "latest"}):
        check_options(BASE | only)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(BadOption, match="endingOffsets is for batch queries"):
        settings(is_stream=True, endingOffsets="latest")
